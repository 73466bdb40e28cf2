//! The opening of an epoch at a copy: its first items, up to the first `CURRENT`.
//!
//! They are held in memory. When the last one is there it is planned what D will be: which files are
//! appended to and how far, which are fetched, which stay. Then, once nothing lacks, the plan is
//! written to `D.copy/opening`, and that is the moment at which the copy belongs to the new epoch:
//! what the plan says is done, after a crash by who starts next.
//!
//! All that the new epoch's MANIFEST can name is named in the opening: its primary tells of every
//! table and segment that it has, and has flushed what its WALs held. So all else goes, whatever old
//! MANIFESTs, pending items or leftovers there are.
//!
//! Invariants: nothing of D changes before `opening` is durable; to do what it says twice is to do
//! it once. It is `magic, payload, crc32c`, and removed when all of it is done.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Read;
use std::path::{Path, PathBuf};

use ecotone_replica::position::Mark;
use ecotone_replica::stream::{ContentId, FileKind, Item, Kind};

use crate::catalog::{Catalog, Hasher, hash_file};
use crate::error::{Error, Result};
use crate::fetched::{Want, checked_path, fetched_in, remove_fetched, temporary_in};
use crate::files::{crc_of, create, cut, files_in, holds, len_of, make_parent, put_current, put_store};
use crate::names::{self, FileName, beside, path_of};
use crate::pending::{deleted_by, finished_by};
use crate::record::{self, FileState, LogState, MAX_OPEN_FILES, Reader, SYNCED_FILE, Slots, Synced, Tail, Writer};
use crate::seed::MAX_OFFERED_FILES;

const OPENING_FILE: &str = "opening";
const MAGIC: &[u8; 8] = b"ECOOPEN1";

/// What D is, where an opening begins.
pub(crate) struct Base<'a> {
    pub directory: &'a Path,
    /// Where fetched files are.
    pub fetched: PathBuf,
    pub log: LogState,
}

/// Bytes behind the first ones of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Written {
    file: FileName,
    base: u64,
    bytes: Vec<u8>,
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    synced: Synced,
    writes: Vec<Written>,
    fetched: Vec<Want>,
    store: Option<Vec<u8>>,
    /// Of tables, segments, WALs and MANIFESTs, what stays.
    kept: Vec<FileName>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Opening {
    items: Vec<(Item, Vec<u8>)>,
    bytes: u64,
    /// Its last item is there.
    is_whole: bool,
    plan: Option<Plan>,
    lacking: BTreeSet<Want>,
    /// It was tried to commit it: `opening` may be there.
    is_begun: bool,
    is_committed: bool,
}

impl Opening {
    /// What it takes of memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the next item.
    pub fn hold(&mut self, item: Item, bytes: &[u8]) {
        self.bytes += item.cost();
        self.is_whole = matches!(item.kind, Kind::Put { file: FileKind::Current, .. });
        self.items.push((item, bytes.to_vec()));
    }

    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    pub fn needs_plan(&self) -> bool {
        self.is_whole && self.plan.is_none()
    }

    /// Where the copy is when it is done.
    pub fn end(&self) -> Option<Mark> {
        self.plan.as_ref().map(|plan| plan.synced.log.mark)
    }

    /// Nothing lacks.
    pub fn is_ready(&self) -> bool {
        self.plan.is_some() && self.lacking.is_empty()
    }

    pub fn is_committed(&self) -> bool {
        self.is_committed
    }

    /// Whether a start may do it.
    #[cfg(test)]
    pub fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// No start does it any more. Not of one that is committed.
    pub fn withdraw(&mut self, directory: &Path) -> Result<()> {
        if self.is_begun {
            record::remove_file(&beside(directory, OPENING_FILE))?;
            record::sync_directory(&names::copy_directory(directory))?;
            self.is_begun = false;
        }
        Ok(())
    }

    /// What lacks.
    pub fn lacking(&self) -> impl Iterator<Item = Want> {
        self.lacking.iter().copied()
    }

    /// A file was fetched, and compared.
    pub fn fetched(&mut self, want: &Want) {
        self.lacking.remove(want);
    }

    /// Sees what is to be done, and what lacks.
    pub fn plan(&mut self, base: &Base, catalog: &mut Catalog) -> Result<()> {
        let mut planning = Planning::new(base);
        for (item, bytes) in &self.items {
            planning.take(item, bytes)?;
        }
        let last = self.items.last().map_or(base.log.mark, |(item, _)| item.mark());
        let plan = planning.finish(last, catalog)?;
        let is_missing = |want: &&Want| !checked_path(&temporary_in(&base.fetched, want)).exists();
        self.lacking = plan.fetched.iter().filter(is_missing).copied().collect();
        self.plan = Some(plan);
        self.items = Vec::new();
        Ok(())
    }

    /// From here on it is done, whatever happens.
    pub fn commit(&mut self, directory: &Path) -> Result<()> {
        let Some(plan) = &self.plan else { return Ok(()) };
        record::sync_directory(&fetched_in(directory))?;
        self.is_begun = true;
        record::write_checked(&beside(directory, OPENING_FILE), MAGIC, &encode(plan))?;
        self.is_committed = true;
        Ok(())
    }
}

/// A file as it will be.
struct Grown {
    /// Bytes that it has, with their checksum.
    base: u64,
    base_crc: u32,
    /// Those behind.
    bytes: Vec<u8>,
    /// It differs from what is there.
    is_changed: bool,
    is_finished: bool,
}

impl Grown {
    fn len(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }
}

struct Planning<'a> {
    base: &'a Base<'a>,
    grown: BTreeMap<FileName, Grown>,
    named: BTreeSet<FileName>,
    finished: BTreeMap<FileName, ContentId>,
    current: Option<(u64, Vec<u8>)>,
    store: Option<Vec<u8>>,
    clock_limit_ms: u64,
}

impl<'a> Planning<'a> {
    fn new(base: &'a Base<'a>) -> Self {
        let grown = |tail: &Tail| {
            let (base, base_crc) = (tail.len, tail.crc);
            (tail.file, Grown { base, base_crc, bytes: Vec::new(), is_changed: false, is_finished: false })
        };
        Self {
            base,
            grown: base.log.tails.iter().map(grown).collect(),
            named: BTreeSet::new(),
            finished: BTreeMap::new(),
            current: None,
            store: None,
            clock_limit_ms: base.log.clock_limit_ms,
        }
    }

    /// The file that an item changes, which now has `len` bytes or more.
    fn changed(&mut self, file: FileName, len: u64) -> Result<&mut Grown> {
        self.named.insert(file);
        if !self.grown.contains_key(&file) {
            // One that is finished here, or begins.
            let (base, base_crc) = match len {
                0 => (0, 0),
                _ => (len, crc_of(&path_of(self.base.directory, file), file, len)?),
            };
            let grown = Grown { base, base_crc, bytes: Vec::new(), is_changed: true, is_finished: false };
            self.grown.insert(file, grown);
        }
        let grown = self.grown.get_mut(&file).ok_or(Error::Missing { file })?;
        (grown.is_changed, grown.is_finished) = (true, false);
        Ok(grown)
    }

    fn take(&mut self, item: &Item, bytes: &[u8]) -> Result<()> {
        if let Some((file, content)) = finished_by(item) {
            self.named.insert(file);
            self.finished.insert(file, content);
            if let Some(grown) = self.grown.get_mut(&file) {
                grown.is_finished = true;
            }
            return Ok(());
        }
        if let Some(file) = deleted_by(item) {
            self.named.remove(&file);
            self.finished.remove(&file);
            self.grown.remove(&file);
            return Ok(());
        }
        match item.kind {
            Kind::Append { file: kind, number, offset } => {
                let file = FileName { kind, number };
                let grown = self.changed(file, offset)?;
                if offset != grown.len() {
                    let what = format!("{} bytes at {offset} do not continue {}", bytes.len(), grown.len());
                    return Err(Error::Mismatch { file, what });
                }
                grown.bytes.extend_from_slice(bytes);
            }
            Kind::Truncate { file: kind, number, len } => {
                let file = FileName { kind, number };
                let path = path_of(self.base.directory, file);
                let grown = self.changed(file, len)?;
                if len > grown.len() {
                    let what = format!("it has {} bytes, not {len}", grown.len());
                    return Err(Error::Mismatch { file, what });
                }
                if len < grown.base {
                    (grown.base, grown.base_crc) = (len, crc_of(&path, file, len)?);
                }
                grown.bytes.truncate((len - grown.base) as usize);
            }
            Kind::Put { file: FileKind::Current, number } => self.current = Some((number, bytes.to_vec())),
            Kind::Put { .. } => self.store = Some(bytes.to_vec()),
            Kind::Clock { limit_ms } => self.clock_limit_ms = self.clock_limit_ms.max(limit_ms),
            _ => (),
        }
        Ok(())
    }

    fn finish(mut self, mark: Mark, catalog: &mut Catalog) -> Result<Plan> {
        let directory = self.base.directory;
        let mut fetched = Vec::new();
        for (file, content) in &self.finished {
            let is_here = match self.grown.get(file) {
                // Cut or appended to after it was finished: what is there then is not named by it.
                Some(grown) if !grown.is_finished => true,
                Some(grown) => grown.len() == content.len && content_of(directory, *file, grown)? == *content,
                None => holds(catalog, directory, *file, *content)?,
            };
            if !is_here {
                self.grown.remove(file);
                fetched.push(Want { file: *file, content: *content });
            }
        }
        let (mut tails, mut manifests, mut writes) = (Vec::new(), Vec::new(), Vec::new());
        for (file, grown) in self.grown {
            if !self.named.contains(&file) {
                continue;
            }
            let tail = Tail { file, len: grown.len(), crc: crc32c::crc32c_append(grown.base_crc, &grown.bytes) };
            match file.kind {
                _ if grown.is_finished => (),
                FileKind::Manifest => manifests.push(tail),
                _ => tails.push(tail),
            }
            if grown.is_changed {
                writes.push(Written { file, base: grown.base, bytes: grown.bytes });
            }
        }
        let in_force = self.current.as_ref().map(|(number, _)| FileName::new(FileKind::Manifest, *number));
        if let Some(file) = in_force.filter(|file| !manifests.iter().any(|tail| tail.file == *file)) {
            return Err(Error::Missing { file });
        }
        let end = self.base.log.pending_end;
        let side = FileState { start: end, deleted: end, drained: end, manifests, current: self.current };
        let log = LogState {
            boot: self.base.log.boot,
            mark,
            clock_limit_ms: self.clock_limit_ms,
            generation: self.base.log.generation + 1,
            is_foreign: false,
            is_open: false,
            pending_end: end,
            tails,
        };
        let kept = self.named.into_iter().collect();
        Ok(Plan { synced: Synced { log, side }, writes, fetched, store: self.store, kept })
    }
}

/// What the file will hold.
fn content_of(directory: &Path, file: FileName, grown: &Grown) -> Result<ContentId> {
    let path = path_of(directory, file);
    if grown.bytes.is_empty() && len_of(&path, file)? == grown.base {
        return hash_file(&path);
    }
    let mut hasher = Hasher::new();
    if grown.base > 0 {
        let opened = OpenOptions::new().read(true).open(&path).map_err(|error| Error::io("open", &path, error))?;
        let (mut rest, mut piece) = (opened.take(grown.base), vec![0; 256 << 10]);
        loop {
            match rest.read(&mut piece).map_err(|error| Error::io("read", &path, error))? {
                0 => break,
                read => hasher.update(&piece[..read]),
            }
        }
    }
    hasher.update(&grown.bytes);
    Ok(hasher.finish())
}

/// Does what a plan says that was committed, if there is one and it was not done.
pub(crate) fn recover(directory: &Path) -> Result<()> {
    let path = beside(directory, OPENING_FILE);
    let Some(plan) = record::read_checked(&path, MAGIC, decode)? else { return Ok(()) };
    let (mut slots, synced) = Slots::open(beside(directory, SYNCED_FILE), record::decode_synced)?;
    let (done, planned) = (synced.map_or(0, |synced| synced.log.generation), plan.synced.log.generation);
    if done < planned {
        carry_out(directory, &plan)?;
        slots.write(&record::encode_synced(&plan.synced))?;
        slots.sync()?;
    }
    if done <= planned {
        // Nothing was taken since, or `opening` would not be there but for a loss of power, after which
        // `synced` may be behind it and names what was written since. So that is looked at again.
        remove_others(directory, &plan, done == planned)?;
        remove_fetched(directory, |_| false)?;
    }
    record::remove_file(&path)?;
    record::sync_directory(&names::copy_directory(directory))
}

fn carry_out(directory: &Path, plan: &Plan) -> Result<()> {
    let fetched = fetched_in(directory);
    for want in &plan.fetched {
        let (from, to) = (checked_path(&temporary_in(&fetched, want)), path_of(directory, want.file));
        if from.exists() {
            make_parent(&to)?;
            record::rename(&from, &to)?;
        } else if len_of(&to, want.file)? != want.content.len {
            return Err(Error::Missing { file: want.file });
        }
    }
    for Written { file, base, bytes } in &plan.writes {
        let path = path_of(directory, *file);
        let opened = if *base == 0 {
            create(&path)?
        } else if len_of(&path, *file)? > *base {
            cut(directory, &path, *base)?
        } else {
            let opened = OpenOptions::new().read(true).write(true).open(&path);
            opened.map_err(|error| Error::io("open", &path, error))?
        };
        let written = record::write_at(&opened, bytes, *base).and_then(|()| record::flush(&opened));
        written.map_err(|error| Error::io("write", &path, error))?;
    }
    if let Some(store) = &plan.store {
        put_store(directory, store)?;
    }
    for below in [directory.join(names::VALUES_DIRECTORY), directory.to_path_buf()] {
        if below.exists() {
            record::sync_directory(&below)?;
        }
    }
    plan.synced.side.current.as_ref().map_or(Ok(()), |(_, content)| put_current(directory, content))
}

/// Removes what the new epoch does not name. Where items may have been applied since, only what no
/// later one can have made.
fn remove_others(directory: &Path, plan: &Plan, is_later: bool) -> Result<()> {
    let kept: BTreeSet<FileName> = plan.kept.iter().copied().collect();
    let greatest = |is_segment: bool| {
        let same = kept.iter().filter(|file| (file.kind == FileKind::Segment) == is_segment);
        same.map(|file| file.number).max().unwrap_or(0)
    };
    let (segment, other) = (greatest(true), greatest(false));
    for (file, _) in files_in(directory)? {
        let is_ours = !matches!(file.kind, FileKind::Current | FileKind::Store);
        let is_new = file.number > if file.kind == FileKind::Segment { segment } else { other };
        if is_ours && !kept.contains(&file) && !(is_later && is_new) {
            record::remove_file(&path_of(directory, file))?;
        }
    }
    Ok(())
}

fn encode(plan: &Plan) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.synced(&plan.synced);
    writer.list(&plan.writes, |writer, written| {
        writer.file(written.file).u64(written.base).bytes(&written.bytes);
    });
    writer.list(&plan.fetched, |writer, want| {
        writer.file(want.file).content(want.content);
    });
    writer.list(&plan.store.iter().collect::<Vec<_>>(), |writer, store| {
        writer.bytes(store);
    });
    writer.list(&plan.kept, |writer, file| {
        writer.file(*file);
    });
    writer.0
}

fn decode(reader: &mut Reader) -> Option<Plan> {
    let synced = reader.synced()?;
    let writes = reader.list(2 * MAX_OPEN_FILES, |reader| {
        Some(Written { file: reader.file()?, base: reader.u64()?, bytes: reader.bytes()?.to_vec() })
    })?;
    let fetched =
        reader.list(MAX_OFFERED_FILES, |reader| Some(Want { file: reader.file()?, content: reader.content()? }))?;
    let store = reader.list(1, |reader| reader.bytes().map(<[u8]>::to_vec))?.pop();
    let kept = reader.list(MAX_OFFERED_FILES, Reader::file)?;
    Some(Plan { synced, writes, fetched, store, kept })
}
