//! A disk that loses what was not synced.
//!
//! A [`Recorder`] is the tap of a store: it writes down every change of the store's directory in
//! the order in which they happened. An [`Image`] is what a disk makes of the first so many of
//! them: what processes see, what is durable, and what lies between. [`Image::after_power_loss`]
//! writes into a directory what the disk may hold after a loss of power at that moment:
//!
//! - bytes that a sync of the file covered, and names that a sync of their directory covered;
//! - of the other bytes of each file any part: none, all, a begin, some writes with holes of zeros
//!   between, all but some sectors;
//! - behind what was written to a WAL or segment zeros: space that was reserved for more. It is cut
//!   off when the file is ended, and in a WAL that is followed by another one a later sync covers
//!   that;
//! - of the other changes of names in each directory a begin, in their order, as a journal keeps
//!   them. Nothing is promised between directories, nor between a file's bytes and its name.
//!
//! Changes are told after they happened. A name that comes up while its directory is being synced
//! may so be taken for durable a moment too early; bytes never are, since a sync tells how many it
//! covers.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_rocks::filesystem::FileSystemHooks;

use super::random::{Random, soak_time};

/// A change of the directory, or what the test says of its progress. Paths are relative to the
/// recorded root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Created(PathBuf),
    Written(PathBuf, u64, Vec<u8>),
    Truncated(PathBuf, u64),
    Synced(PathBuf, u64),
    Renamed(PathBuf, PathBuf),
    Deleted(PathBuf),
    DirectoryCreated(PathBuf),
    DirectorySynced(PathBuf),
    /// The background thread begins to sync.
    SyncBegins,
    /// A write is about to be made. The number is the test's.
    Begun(usize),
    /// So many writes were acknowledged.
    Acknowledged(usize),
    /// So many writes must survive whatever comes.
    Promised(usize),
}

#[derive(Debug, Clone)]
pub struct Recorded {
    pub change: Change,
    pub at: Instant,
    /// Whether it was made by the thread that syncs in the background.
    pub in_background: bool,
}

impl Recorded {
    pub fn is_sync(&self) -> bool {
        matches!(self.change, Change::Synced(..) | Change::DirectorySynced(_))
    }

    /// Whether the background thread has just ended a sync of a WAL.
    pub fn ends_background_sync(&self) -> bool {
        self.in_background && matches!(&self.change, Change::Synced(path, _) if is(path, "log"))
    }
}

/// Syncs of one life that are looked at, about; in a soak all are.
const MAX_SYNCS: usize = 300;

/// The moments to look at, as numbers of changes that have happened by then, rising: right before
/// or right after each sync, or a part of many, and so many elsewhere.
pub fn moments(changes: &[Recorded], elsewhere: usize, random: &mut Random) -> Vec<usize> {
    let mut syncs: Vec<_> = (0..changes.len()).filter(|number| changes[*number].is_sync()).collect();
    let many = syncs.len();
    if soak_time().is_zero() && many > MAX_SYNCS {
        syncs.retain(|_| random.below(many) < MAX_SYNCS);
    }
    let mut moments: Vec<_> = syncs.into_iter().map(|number| number + random.below(2)).collect();
    moments.extend((0..elsewhere).map(|_| random.below(changes.len() + 1)));
    moments.sort_unstable();
    moments
}

/// The thread of `Durability::EverySecond`.
const BACKGROUND_SYNC: &str = "ecotone-wal-sync";

pub struct Recorder {
    root: PathBuf,
    recorded: Mutex<Vec<Recorded>>,
}

impl Recorder {
    /// For a store anywhere below `root`.
    pub fn below(root: &Path) -> Arc<Self> {
        Arc::new(Self { root: root.canonicalize().unwrap(), recorded: Mutex::default() })
    }

    pub fn hooks(self: &Arc<Self>) -> FileSystemHooks {
        FileSystemHooks { tap: Some(self.clone()), ..FileSystemHooks::default() }
    }

    pub fn note(&self, change: Change) {
        let in_background = std::thread::current().name() == Some(BACKGROUND_SYNC);
        self.recorded.lock().unwrap().push(Recorded { change, at: Instant::now(), in_background });
    }

    pub fn take(&self) -> Vec<Recorded> {
        std::mem::take(&mut self.recorded.lock().unwrap())
    }

    /// Rounds of background syncs that have begun.
    pub fn background_rounds(&self) -> usize {
        self.recorded.lock().unwrap().iter().filter(|recorded| recorded.change == Change::SyncBegins).count()
    }

    pub fn background_syncs(&self) -> usize {
        self.recorded.lock().unwrap().iter().filter(|recorded| recorded.ends_background_sync()).count()
    }
}

/// RocksDB's log for people, and its lock: no part of a store.
fn is_beside_the_point(path: &Path) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with("LOG") || name == "LOCK" || name == "BALLAST")
}

impl WriteTap for Recorder {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        let Ok(path) = event.path().strip_prefix(&self.root) else { return Ok(()) };
        let path = path.to_path_buf();
        if is_beside_the_point(&path) {
            return Ok(());
        }
        self.note(match event {
            TapEvent::Created { .. } => Change::Created(path),
            TapEvent::Appended { offset, bytes, .. } => Change::Written(path, offset, bytes.to_vec()),
            TapEvent::Truncated { len, .. } => Change::Truncated(path, len),
            TapEvent::Synced { len, .. } => Change::Synced(path, len),
            TapEvent::Closed { .. } => return Ok(()),
            TapEvent::Renamed { from, .. } => Change::Renamed(from.strip_prefix(&self.root).unwrap().into(), path),
            TapEvent::Deleted { .. } => Change::Deleted(path),
            TapEvent::DirectoryCreated { .. } => Change::DirectoryCreated(path),
            TapEvent::DirectorySynced { .. } => Change::DirectorySynced(path),
            TapEvent::SyncBegins { .. } => Change::SyncBegins,
            TapEvent::Linked { .. } | TapEvent::DirectoryDeleted { .. } => {
                return Err(io::Error::other(format!("{event:?} is nothing that a store does")));
            }
        });
        Ok(())
    }
}

/// A file or a directory, whatever its names.
#[derive(Debug, Clone, Default)]
struct Node {
    is_directory: bool,
    durable: Vec<u8>,
    /// Bytes from the begin that are durable, some of which may not have been told yet.
    durable_len: u64,
    pending: Vec<Pending>,
    reserves: Reserves,
    /// Whether it is written over in place: then a write that comes after a sync is covered by
    /// none.
    is_overwritten: bool,
}

/// Whether zeros may follow what was written to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Reserves {
    #[default]
    Nothing,
    /// For what will be appended.
    Space,
    /// They were cut off, which no sync has covered yet.
    SpaceOnDevice,
}

#[derive(Debug, Clone)]
enum Pending {
    Write(u64, Vec<u8>),
    Truncate(u64),
}

impl Pending {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(offset, written) => {
                let (begin, end) = (*offset as usize, *offset as usize + written.len());
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[begin..end].copy_from_slice(written);
            }
            Self::Truncate(len) => bytes.resize(*len as usize, 0),
        }
    }

    /// What is left of it after a truncation.
    fn cut(&mut self, to: u64) {
        if let Self::Write(offset, written) = self {
            written.truncate(to.saturating_sub(*offset) as usize);
            *offset = to.min(*offset);
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Write(_, written) => written.len(),
            Self::Truncate(_) => 0,
        }
    }
}

impl Node {
    fn change(&mut self, pending: Pending) {
        match &pending {
            // Its sync was told before it was.
            Pending::Write(offset, written) if offset + written.len() as u64 <= self.durable_len => {
                pending.apply(&mut self.durable);
            }
            _ => self.pending.push(pending),
        }
    }

    fn sync(&mut self, len: u64) {
        if self.reserves == Reserves::SpaceOnDevice {
            self.reserves = Reserves::Nothing;
        }
        self.durable_len = if self.is_overwritten { 0 } else { self.durable_len.max(len) };
        let mut left = Vec::new();
        for pending in self.pending.drain(..) {
            match pending {
                Pending::Write(offset, written) if offset + written.len() as u64 > len => {
                    let covered = len.saturating_sub(offset) as usize;
                    if covered > 0 {
                        Pending::Write(offset, written[..covered].to_vec()).apply(&mut self.durable);
                    }
                    left.push(Pending::Write(offset + covered as u64, written[covered..].to_vec()));
                }
                whole => {
                    if let Pending::Truncate(to) = whole {
                        left.iter_mut().for_each(|earlier| earlier.cut(to));
                    }
                    whole.apply(&mut self.durable);
                }
            }
        }
        self.pending = left;
    }

    /// What processes see.
    fn all(&self) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        self.pending.iter().for_each(|pending| pending.apply(&mut bytes));
        bytes
    }

    fn begin_of_pending(&self, mut left: usize) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        for pending in &self.pending {
            match pending {
                Pending::Write(offset, written) if written.len() > left => {
                    Pending::Write(*offset, written[..left].to_vec()).apply(&mut bytes);
                    break;
                }
                whole => whole.apply(&mut bytes),
            }
            left -= pending.bytes();
        }
        bytes
    }

    fn after_power_loss(&self, with_holes: bool, random: &mut Random) -> Vec<u8> {
        let pending = self.pending.iter().map(Pending::bytes).sum::<usize>();
        match random.below(if with_holes { 5 } else { 3 }) {
            0 => self.durable.clone(),
            1 => self.all(),
            2 => self.begin_of_pending(random.below(pending + 1)),
            3 => {
                let mut bytes = self.durable.clone();
                for pending in &self.pending {
                    if random.once_in(2) {
                        pending.apply(&mut bytes);
                    }
                }
                bytes
            }
            _ => {
                let mut bytes = self.all();
                let begin = self.durable.len().min(bytes.len());
                let from = begin + random.below(bytes.len() - begin + 1);
                let to = from + random.below(bytes.len() - from + 1);
                zero_sectors(&mut bytes, begin, from, to);
                bytes
            }
        }
    }
}

/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// Makes a hole of the sectors from that of `from` to that of `to`, as far as they are behind
/// `durable`.
pub fn zero_sectors(bytes: &mut [u8], durable: usize, from: usize, to: usize) {
    let from = durable.max(from / SECTOR_BYTES * SECTOR_BYTES);
    let to = to.next_multiple_of(SECTOR_BYTES).min(bytes.len());
    if from < to {
        bytes[from..to].fill(0);
    }
}

/// Space is reserved up to the end of a page, so many pages further at most.
const MAX_RESERVED_PAGES: usize = 64;
const PAGE_BYTES: usize = 4096;

/// Makes a file as long as it is while it is appended to, where `written` bytes were: every other
/// time, since a file need not have reserved anything.
fn reserve(bytes: &mut Vec<u8>, written: usize, random: &mut Random) {
    if random.once_in(2) {
        let pages = *random.of(&[0, 1, MAX_RESERVED_PAGES]);
        bytes.resize(bytes.len().max(written).next_multiple_of(PAGE_BYTES) + pages * PAGE_BYTES, 0);
    }
}

fn is(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

fn is_overwritten(path: &Path) -> bool {
    path.ends_with("values/WATERMARK") || path.ends_with("DURABLE")
}

type NodeNumber = usize;

#[derive(Debug, Clone)]
enum NameChange {
    Bound(PathBuf, NodeNumber),
    Unbound(PathBuf),
    Moved(PathBuf, PathBuf),
}

type Names = BTreeMap<PathBuf, NodeNumber>;

impl NameChange {
    fn apply(&self, names: &mut Names) {
        match self {
            Self::Bound(path, node) => drop(names.insert(path.clone(), *node)),
            Self::Unbound(path) => drop(names.remove(path)),
            Self::Moved(from, to) => {
                if let Some(node) = names.remove(from) {
                    names.insert(to.clone(), node);
                }
            }
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Image {
    nodes: Vec<Node>,
    /// As processes see them.
    names: Names,
    durable: Names,
    /// By directory.
    pending: BTreeMap<PathBuf, Vec<NameChange>>,
}

impl Image {
    /// A disk that holds what is below `root`, all of it durable.
    pub fn of(root: &Path) -> Self {
        let mut image = Self::default();
        for (path, bytes) in contents_below(root) {
            let is_directory = bytes.is_none();
            let durable = bytes.unwrap_or_default();
            let is_overwritten = is_overwritten(&path);
            let durable_len = if is_overwritten { 0 } else { durable.len() as u64 };
            image.nodes.push(Node { is_directory, durable, durable_len, is_overwritten, ..Node::default() });
            image.names.insert(path.clone(), image.nodes.len() - 1);
        }
        image.durable = image.names.clone();
        image
    }

    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Created(path) => self.bind(path, false),
            Change::DirectoryCreated(path) => self.bind(path, true),
            Change::Written(path, offset, bytes) => self.change(path, Pending::Write(*offset, bytes.clone())),
            Change::Truncated(path, len) => self.change(path, Pending::Truncate(*len)),
            Change::Synced(path, len) => {
                // What has no name any more cannot come back.
                if let Some(node) = self.names.get(path) {
                    self.nodes[*node].sync(*len);
                }
            }
            Change::Renamed(from, to) => {
                assert_eq!(from.parent(), to.parent());
                self.rename(NameChange::Moved(from.clone(), to.clone()), from);
            }
            Change::Deleted(path) => self.rename(NameChange::Unbound(path.clone()), path),
            Change::DirectorySynced(path) => {
                for change in self.pending.remove(path).unwrap_or_default() {
                    change.apply(&mut self.durable);
                }
            }
            Change::SyncBegins | Change::Begun(_) | Change::Acknowledged(_) | Change::Promised(_) => (),
        }
    }

    fn bind(&mut self, path: &Path, is_directory: bool) {
        if is(path, "log") {
            for (_, node) in self.names.iter().filter(|(path, _)| is(path, "log")) {
                let reserves = &mut self.nodes[*node].reserves;
                if *reserves == Reserves::Space {
                    *reserves = Reserves::SpaceOnDevice;
                }
            }
        }
        // When a segment is ended nobody is told.
        let reserves = if is(path, "log") || is(path, "segment") { Reserves::Space } else { Reserves::Nothing };
        self.nodes.push(Node { is_directory, reserves, is_overwritten: is_overwritten(path), ..Node::default() });
        self.rename(NameChange::Bound(path.to_path_buf(), self.nodes.len() - 1), path);
    }

    fn rename(&mut self, change: NameChange, path: &Path) {
        change.apply(&mut self.names);
        self.pending.entry(path.parent().unwrap().to_path_buf()).or_default().push(change);
    }

    fn change(&mut self, path: &Path, pending: Pending) {
        if let Some(node) = self.names.get(path) {
            self.nodes[*node].change(pending);
        }
    }

    /// A process dies: what it had reserved is there for others to see. Writes below `root`, which
    /// is empty, what the next one finds.
    pub fn after_kill(&mut self, root: &Path, random: &mut Random) {
        for node in self.nodes.iter_mut().filter(|node| node.reserves == Reserves::Space) {
            let mut bytes = node.all();
            let written = bytes.len();
            reserve(&mut bytes, 0, random);
            if bytes.len() > written {
                node.pending.push(Pending::Write(written as u64, bytes.split_off(written)));
            }
            node.reserves = Reserves::Nothing;
        }
        self.write(root, &self.names, |_, node| node.all());
    }

    /// Writes below `root`, which is empty, what a loss of power leaves.
    pub fn after_power_loss(&self, root: &Path, random: &mut Random) {
        let mut names = self.durable.clone();
        for changes in self.pending.values() {
            let some = random.below(changes.len() + 1);
            let kept = *random.of(&[0, some, changes.len()]);
            changes[..kept].iter().for_each(|change| change.apply(&mut names));
        }
        // Once in a while all that was not synced is gone.
        let all_lost = random.once_in(4);
        self.write(root, &names, |path, node| {
            let mut bytes =
                if all_lost { node.durable.clone() } else { node.after_power_loss(may_have_holes(path), random) };
            if node.reserves != Reserves::Nothing {
                reserve(&mut bytes, node.all().len(), random);
            }
            bytes
        });
    }

    /// What processes see, by path; `None` is a directory.
    pub fn contents(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let content = |node: &NodeNumber| {
            let node = &self.nodes[*node];
            (!node.is_directory).then(|| node.all())
        };
        self.names.iter().map(|(path, node)| (path.clone(), content(node))).collect()
    }

    fn write(&self, root: &Path, names: &Names, mut bytes: impl FnMut(&Path, &Node) -> Vec<u8>) {
        // Directories come before what they hold.
        for (path, node) in names {
            let (to, node) = (root.join(path), &self.nodes[*node]);
            if !to.parent().unwrap().is_dir() {
                continue;
            }
            if node.is_directory {
                fs::create_dir(&to).unwrap();
            } else {
                fs::write(&to, bytes(path, node)).unwrap();
            }
        }
    }
}

/// Each record of a MANIFEST is synced before the next one is written, so that at most its last one
/// can be torn.
fn may_have_holes(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    !name.starts_with("MANIFEST-")
}

/// What is below `root`, by path; `None` is a directory.
pub fn contents_below(root: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let relative = path.strip_prefix(root).unwrap().to_path_buf();
            if path.is_dir() {
                found.insert(relative, None);
                directories.push(path);
            } else if !is_beside_the_point(&path) {
                found.insert(relative, Some(fs::read(path).unwrap()));
            }
        }
    }
    found
}

/// Makes a directory that holds what [`contents_below`] found in another.
pub fn write_contents(root: &Path, contents: &BTreeMap<PathBuf, Option<Vec<u8>>>) {
    fs::create_dir(root).unwrap();
    for (path, bytes) in contents {
        match bytes {
            Some(bytes) => fs::write(root.join(path), bytes).unwrap(),
            None => fs::create_dir(root.join(path)).unwrap(),
        }
    }
}
