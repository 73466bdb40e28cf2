//! What a disk makes of recorded calls, and what a loss of power leaves of it.
//!
//! - Bytes that a sync of the file covered are there, and names that a sync of their directory
//!   covered.
//! - Of the other bytes of each file there is any part: none, all, a begin, some writes with holes
//!   of zeros between, all but some sectors.
//! - Of the other changes of names in each directory there is a begin, in their order, as a journal
//!   keeps them. A file that goes from one directory to another is in one of them, and what is
//!   durable of the one is so of the other. Nothing is promised between directories else, nor
//!   between a file's bytes and its name.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::calls::Call;
use crate::random::Random;

/// A file, however often the number of its inode was given before.
type Inode = u64;

#[derive(Debug, Clone)]
enum Pending {
    Write(u64, Vec<u8>),
    Resize(u64),
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
            Self::Resize(len) => bytes.resize(*len as usize, 0),
        }
    }
}

/// A file, whatever its names.
#[derive(Debug, Clone, Default)]
struct Node {
    is_directory: bool,
    durable: Vec<u8>,
    pending: Vec<Pending>,
}

/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

impl Node {
    /// What processes see.
    fn all(&self) -> Vec<u8> {
        self.begin_of(self.pending.len())
    }

    fn begin_of(&self, changes: usize) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        self.pending[..changes].iter().for_each(|pending| pending.apply(&mut bytes));
        bytes
    }

    fn after_power_loss(&self, may_have_holes: bool, random: &mut Random) -> Vec<u8> {
        if self.pending.is_empty() {
            return self.durable.clone();
        }
        match random.below(if may_have_holes { 5 } else { 3 }) {
            0 => self.durable.clone(),
            1 => self.all(),
            2 => {
                let whole = random.below(self.pending.len());
                let mut bytes = self.begin_of(whole);
                // One that is torn.
                if let Pending::Write(offset, written) = &self.pending[whole] {
                    Pending::Write(*offset, written[..random.below(written.len())].to_vec()).apply(&mut bytes);
                }
                bytes
            }
            3 => {
                let mut bytes = self.durable.clone();
                self.pending.iter().filter(|_| random.once_in(2)).for_each(|pending| pending.apply(&mut bytes));
                bytes
            }
            _ => {
                let mut bytes = self.all();
                let begin = self.durable.len().min(bytes.len());
                let from = begin + random.below(bytes.len() - begin + 1);
                let to = from + random.below(bytes.len() - from + 1);
                let from = begin.max(from / SECTOR_BYTES * SECTOR_BYTES);
                let to = to.next_multiple_of(SECTOR_BYTES).min(bytes.len());
                if from < to {
                    bytes[from..to].fill(0);
                }
                bytes
            }
        }
    }
}

#[derive(Debug, Clone)]
enum NameChange {
    Bound(OsString, Inode),
    Unbound(OsString),
    Moved(OsString, OsString, Inode),
    /// Half of a change: the other one, of the same number, is in that directory.
    Gone(OsString, u64, Inode),
    Come(OsString, Inode, u64, Inode),
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<OsString, Inode>) {
        match self {
            Self::Bound(name, node) | Self::Come(name, node, ..) => _ = names.insert(name.clone(), *node),
            Self::Unbound(name) | Self::Gone(name, ..) => _ = names.remove(name),
            Self::Moved(from, to, node) => {
                names.remove(from);
                names.insert(to.clone(), *node);
            }
        }
    }

    /// The other half: which directory, and which number.
    fn other_half(&self) -> Option<(Inode, u64)> {
        match self {
            Self::Gone(_, number, directory) | Self::Come(_, _, number, directory) => Some((*directory, *number)),
            _ => None,
        }
    }
}

type Names = BTreeMap<Inode, BTreeMap<OsString, Inode>>;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Image {
    root: Inode,
    /// By the numbers that the kernel gives, some of them once more.
    inodes: BTreeMap<u64, Inode>,
    nodes: BTreeMap<Inode, Node>,
    /// By directory, as processes see them.
    names: Names,
    durable: Names,
    pending: BTreeMap<Inode, Vec<NameChange>>,
    moves: u64,
}

impl Image {
    pub fn apply(&mut self, call: &Call) {
        match call {
            Call::DirectoryCreated { path, inode } if path.as_os_str().is_empty() => {
                self.root = self.add(*inode, true);
            }
            Call::Created { path, inode } => self.create(path, *inode, false),
            Call::DirectoryCreated { path, inode } => self.create(path, *inode, true),
            Call::Linked { path, inode } => self.bind(path, self.inodes[inode]),
            Call::Renamed { from, to } => self.rename(from, to),
            Call::Removed { path } => {
                let (directory, name) = self.place(path);
                self.change(directory, NameChange::Unbound(name));
            }
            Call::Written { inode, offset, bytes } => self.write(*inode, Pending::Write(*offset, bytes.clone())),
            Call::Resized { inode, len } => self.write(*inode, Pending::Resize(*len)),
            Call::Synced { inode } => self.sync(*inode),
            Call::Noted(_) => (),
        }
    }

    /// The directory in which a path is, as processes see it, and its name there.
    fn place(&self, path: &Path) -> (Inode, OsString) {
        let above = path.parent().into_iter().flat_map(Path::iter);
        let directory = above.fold(self.root, |directory, name| self.names[&directory][name]);
        (directory, path.file_name().unwrap().to_owned())
    }

    fn create(&mut self, path: &Path, inode: u64, is_directory: bool) {
        let node = self.add(inode, is_directory);
        self.bind(path, node);
    }

    fn add(&mut self, inode: u64, is_directory: bool) -> Inode {
        let node = self.nodes.len() as Inode;
        self.nodes.insert(node, Node { is_directory, ..Node::default() });
        self.inodes.insert(inode, node);
        node
    }

    fn bind(&mut self, path: &Path, inode: Inode) {
        let (directory, name) = self.place(path);
        self.change(directory, NameChange::Bound(name, inode));
    }

    fn rename(&mut self, from: &Path, to: &Path) {
        let ((from, old), (to, new)) = (self.place(from), self.place(to));
        let node = self.names[&from][&old];
        if from == to {
            self.change(from, NameChange::Moved(old, new, node));
            return;
        }
        self.moves += 1;
        self.change(to, NameChange::Come(new, node, self.moves, from));
        self.change(from, NameChange::Gone(old, self.moves, to));
    }

    fn change(&mut self, directory: Inode, change: NameChange) {
        change.apply(self.names.entry(directory).or_default());
        self.pending.entry(directory).or_default().push(change);
    }

    fn write(&mut self, inode: u64, pending: Pending) {
        if let Some(node) = self.inodes.get(&inode).and_then(|node| self.nodes.get_mut(node)) {
            node.pending.push(pending);
        }
    }

    fn sync(&mut self, inode: u64) {
        let Some(inode) = self.inodes.get(&inode).copied() else { return };
        let Some(node) = self.nodes.get_mut(&inode) else { return };
        if node.is_directory {
            let all = self.pending.get(&inode).map_or(0, Vec::len);
            let kept = self.complete([(inode, all)].into());
            for (directory, count) in kept {
                let pending = self.pending.entry(directory).or_default();
                let names = self.durable.entry(directory).or_default();
                pending.drain(..count).for_each(|change| change.apply(names));
            }
            return;
        }
        let Node { durable, pending, .. } = node;
        pending.drain(..).for_each(|pending| pending.apply(durable));
    }

    /// So many changes of each directory are there, and as many more as go with them.
    fn complete(&self, mut kept: BTreeMap<Inode, usize>) -> BTreeMap<Inode, usize> {
        loop {
            let mut more = BTreeMap::new();
            for (directory, count) in &kept {
                for change in &self.pending.get(directory).map_or(&[][..], |all| all)[..*count] {
                    let Some((other, number)) = change.other_half() else { continue };
                    let is_it = |change: &NameChange| change.other_half() == Some((*directory, number));
                    // Else it is durable already.
                    if let Some(at) = self.pending.get(&other).and_then(|all| all.iter().position(is_it))
                        && kept.get(&other).is_none_or(|count| *count <= at)
                    {
                        let least = more.entry(other).or_insert(0);
                        *least = (at + 1).max(*least);
                    }
                }
            }
            if more.is_empty() {
                return kept;
            }
            kept.extend(more);
        }
    }

    /// Writes below `to`, which is empty, what is there once power is lost, for the folders that
    /// `loses` names. The processes of the others have died, and the kernel has all that they
    /// wrote.
    pub fn after_power_loss(&self, to: &Path, loses: &BTreeSet<PathBuf>, random: &mut Random) {
        let mut kept = BTreeMap::new();
        for (directory, changes) in &self.pending {
            let some = random.below(changes.len() + 1);
            kept.insert(*directory, *random.of(&[0, some, changes.len()]));
        }
        let mut after = self.durable.clone();
        for (directory, count) in self.complete(kept) {
            let names = after.entry(directory).or_default();
            self.pending[&directory][..count].iter().for_each(|change| change.apply(names));
        }
        // Once in a while all that was not synced is gone.
        let is_all_lost = random.once_in(4);
        if is_all_lost {
            after.clone_from(&self.durable);
        }
        let mut written = BTreeMap::new();
        for (name, node) in &self.names[&self.root] {
            let is_lost = loses.contains(Path::new(name));
            let names = if is_lost { &after } else { &self.names };
            let mut bytes = |path: &Path, node: &Node| match is_lost {
                false => node.all(),
                true if is_all_lost => node.durable.clone(),
                true => node.after_power_loss(may_have_holes(path), random),
            };
            self.put(&to.join(name), *node, names, &mut written, &mut bytes);
        }
    }

    fn put(
        &self,
        to: &Path,
        inode: Inode,
        names: &Names,
        written: &mut BTreeMap<Inode, PathBuf>,
        bytes: &mut dyn FnMut(&Path, &Node) -> Vec<u8>,
    ) {
        let node = &self.nodes[&inode];
        if node.is_directory {
            fs::create_dir(to).unwrap();
            for (name, inode) in names.get(&inode).into_iter().flatten() {
                self.put(&to.join(name), *inode, names, written, bytes);
            }
        } else if let Some(other) = written.get(&inode) {
            fs::hard_link(other, to).unwrap();
        } else {
            fs::write(to, bytes(to, node)).unwrap();
            written.insert(inode, to.to_path_buf());
        }
    }

    /// Compares what processes should see with what is below `root`.
    pub fn assert_is(&self, root: &Path) {
        let mut told = BTreeMap::new();
        self.list(self.root, Path::new(""), &mut told);
        let mut there = BTreeMap::new();
        list(root, Path::new(""), &mut there);
        assert!(told.keys().eq(there.keys()), "{:?} were told of, {:?} are there", told.keys(), there.keys());
        for (path, bytes) in there {
            let lens = (told[&path].as_ref().map(Vec::len), bytes.as_ref().map(Vec::len));
            let first = told[&path].iter().flatten().zip(bytes.iter().flatten()).position(|(a, b)| a != b);
            assert!(told[&path] == bytes, "not all that was written to {path:?} was told, {lens:?} {first:?}");
        }
    }

    fn list(&self, inode: Inode, path: &Path, found: &mut BTreeMap<PathBuf, Option<Vec<u8>>>) {
        for (name, inode) in self.names.get(&inode).into_iter().flatten() {
            let path = path.join(name);
            let node = &self.nodes[inode];
            if !is_beside_the_point(&path) {
                found.insert(path.clone(), (!node.is_directory).then(|| node.all()));
            }
            self.list(*inode, &path, found);
        }
    }
}

fn list(root: &Path, path: &Path, found: &mut BTreeMap<PathBuf, Option<Vec<u8>>>) {
    for entry in fs::read_dir(root.join(path)).unwrap() {
        let path = path.join(entry.unwrap().file_name());
        let there = root.join(&path);
        if there.is_dir() {
            found.insert(path.clone(), None);
            list(root, &path, found);
        } else if !is_beside_the_point(&path) {
            found.insert(path, Some(fs::read(there).unwrap()));
        }
    }
}

/// RocksDB's log for people, and its lock: no part of a store.
fn is_beside_the_point(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with("LOG") || name == "LOCK" || name == "BALLAST"
}

/// Each record of a primary's MANIFEST is synced before the next one is written, so that at most
/// its last one can be torn.
fn may_have_holes(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    !name.starts_with("MANIFEST-")
}
