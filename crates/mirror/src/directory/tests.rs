//! A model of a primary makes streams; a copy takes them, is killed, loses power, runs out of disk.
//! Its MANIFESTs, tables, WALs and segments are text, which a model of an engine opens: what it then
//! finds is compared with what was written up to the copy's mark.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use ecotone_control::ids::Epoch;
use ecotone_replica::position::{BootId, History, Mark, Position};
use ecotone_replica::receiver::Sync;
use ecotone_replica::standing::Standing;
use ecotone_replica::stream::{ContentId, FileKind, Item, Kind};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::files::names_in;
use crate::names::parse;
use crate::readers::Reading;
use crate::recipe::{Recipe, RecipeWriter, Step};
use crate::record::faults;
use crate::seed::{Building, Listing};

/// Numbers that a model of a primary skips in a new epoch.
const GAP: u64 = 100;
/// Bytes of a value.
const VALUE_BYTES: u64 = 9;

/// Small, and the same for one seed everywhere.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

fn name(kind: FileKind, number: u64) -> FileName {
    FileName { kind, number }
}

fn content_id(bytes: &[u8]) -> ContentId {
    let mut hasher = Hasher::new();
    hasher.update(bytes);
    hasher.finish()
}

fn value(id: u32) -> String {
    format!("v{id:07}\n")
}

fn manifest_name(number: u64) -> Vec<u8> {
    format!("MANIFEST-{number:06}\n").into_bytes()
}

/// Where the value of an id is.
type Pointer = (u64, u64);

/// A primary, and the stream that it has made so far.
struct World {
    random: Random,
    mark: Mark,
    items: Vec<(Item, Vec<u8>)>,
    /// Before each item, and after the last one, how many ids were written.
    written: Vec<u32>,
    /// Its directory.
    files: BTreeMap<FileName, Vec<u8>>,
    contents: HashMap<ContentId, Vec<u8>>,
    tables: BTreeMap<u64, BTreeMap<u32, Pointer>>,
    memtable: BTreeMap<u32, Pointer>,
    growing: Vec<u64>,
    wal: u64,
    manifest: u64,
    next: u64,
    next_segment: u64,
    ids: u32,
}

impl World {
    /// The first epoch is opened.
    fn new(seed: u64) -> Self {
        let mut world = Self {
            random: Random(seed),
            mark: Mark::default(),
            items: Vec::new(),
            written: vec![0],
            files: BTreeMap::new(),
            contents: HashMap::new(),
            tables: BTreeMap::new(),
            memtable: BTreeMap::new(),
            growing: Vec::new(),
            wal: 0,
            manifest: 0,
            next: 1,
            next_segment: 1,
            ids: 0,
        };
        world.open_epoch();
        world
    }

    fn push(&mut self, kind: Kind, bytes: &[u8]) {
        let item = Item::behind(self.mark, kind, bytes.len() as u64, crc32c::crc32c(bytes));
        self.mark = item.mark();
        self.items.push((item, bytes.to_vec()));
        self.written.push(self.ids);
    }

    fn append(&mut self, file: FileName, bytes: &[u8]) {
        let cut = if self.random.once_in(3) { self.random.below(bytes.len() as u64) as usize } else { 0 };
        for piece in [&bytes[..cut], &bytes[cut..]] {
            if !piece.is_empty() {
                let there = self.files.entry(file).or_default();
                let offset = there.len() as u64;
                there.extend_from_slice(piece);
                self.push(Kind::Append { file: file.kind, number: file.number, offset }, piece);
            }
        }
    }

    fn finish(&mut self, file: FileName) {
        let bytes = self.files[&file].clone();
        let content = content_id(&bytes);
        self.contents.insert(content, bytes);
        self.push(Kind::Finished { file: file.kind, number: file.number, content }, &[]);
    }

    fn delete(&mut self, file: FileName) {
        self.files.remove(&file).unwrap();
        self.push(Kind::Delete { file: file.kind, number: file.number }, &[]);
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn put(&mut self) {
        let mut at = self.random.below(self.growing.len() as u64) as usize;
        if self.growing.is_empty() || self.growing.len() < 3 && self.random.once_in(8) {
            at = self.growing.len();
            self.growing.push(self.next_segment);
            self.next_segment += 1;
        }
        let (segment, id) = (self.growing[at], self.ids + 1);
        let offset = self.files.get(&name(FileKind::Segment, segment)).map_or(0, Vec::len) as u64;
        self.append(name(FileKind::Segment, segment), value(id).as_bytes());
        self.append(name(FileKind::Wal, self.wal), format!("{id} {segment} {offset}\n").as_bytes());
        self.ids = id;
        *self.written.last_mut().unwrap() = id;
        self.memtable.insert(id, (segment, offset));
    }

    fn seal(&mut self) {
        if let Some(segment) = self.growing.pop() {
            self.finish(name(FileKind::Segment, segment));
        }
    }

    fn table(&mut self, entries: BTreeMap<u32, Pointer>) -> u64 {
        let number = self.next();
        let text: String = entries.iter().map(|(id, (segment, at))| format!("{id} {segment} {at}\n")).collect();
        self.files.insert(name(FileKind::Table, number), text.into_bytes());
        self.tables.insert(number, entries);
        self.finish(name(FileKind::Table, number));
        number
    }

    fn edit(&mut self, edit: &str) {
        self.append(name(FileKind::Manifest, self.manifest), format!("{edit}\n").as_bytes());
        if self.random.once_in(2) {
            self.push(Kind::Sync, &[]);
        }
    }

    fn flush(&mut self) {
        if self.memtable.is_empty() {
            return;
        }
        let entries = std::mem::take(&mut self.memtable);
        let old = name(FileKind::Wal, self.wal);
        self.wal = self.next();
        let table = self.table(entries);
        self.edit(&format!("+{table} W{}", self.wal));
        self.delete(old);
    }

    /// Tables become one, and values of a segment may move.
    fn compact(&mut self, moved: Option<u64>) {
        let is_of = |entries: &BTreeMap<u32, Pointer>| {
            moved.is_none_or(|moved| entries.values().any(|(segment, _)| *segment == moved))
        };
        let inputs: Vec<u64> =
            self.tables.iter().filter(|(_, entries)| is_of(entries)).map(|(table, _)| *table).collect();
        let inputs = if moved.is_some() { &inputs[..] } else { &inputs[..inputs.len().min(2)] };
        if inputs.is_empty() {
            return;
        }
        let mut merged = BTreeMap::new();
        inputs.iter().for_each(|input| merged.extend(self.tables.remove(input).unwrap()));
        if let Some(moved) = moved {
            let to = self.next_segment;
            self.next_segment += 1;
            let of_it: Vec<_> = merged.iter().filter(|(_, (of, _))| *of == moved).map(|(id, at)| (*id, at.1)).collect();
            // Some travel as bytes, and the others as instructions.
            let as_bytes = if self.random.once_in(2) { 0 } else { self.random.below(of_it.len() as u64 + 1) as usize };
            for (number, (id, _)) in of_it.iter().enumerate() {
                let text = value(*id);
                if number < as_bytes {
                    self.append(name(FileKind::Segment, to), text.as_bytes());
                } else {
                    self.files.entry(name(FileKind::Segment, to)).or_default().extend(text.as_bytes());
                }
                merged.insert(*id, (to, number as u64 * VALUE_BYTES));
            }
            self.instruct(to, moved, as_bytes, &of_it);
        }
        let output = self.table(merged);
        let removed: String = inputs.iter().map(|input| format!("-{input} ")).collect();
        self.edit(&format!("{removed}+{output}"));
        inputs.iter().for_each(|input| self.delete(name(FileKind::Table, *input)));
        moved.into_iter().for_each(|moved| self.delete(name(FileKind::Segment, moved)));
    }

    /// A segment is made of another one, but for what was appended of it.
    fn instruct(&mut self, to: u64, moved: u64, as_bytes: usize, of_it: &[(u32, u64)]) {
        if as_bytes == of_it.len() {
            return self.finish(name(FileKind::Segment, to));
        }
        let mut recipe = RecipeWriter::new(as_bytes as u64 * VALUE_BYTES);
        for (id, at) in &of_it[as_bytes..] {
            match self.random.below(12) {
                // What the primary is wrong about: other bytes, or a segment that was never there.
                0 => recipe.copy(moved as u32, 0, VALUE_BYTES),
                1 => recipe.copy(99_999, *at, VALUE_BYTES),
                2 | 3 => recipe.bytes(value(*id).as_bytes()),
                _ => recipe.copy(moved as u32, *at, VALUE_BYTES),
            }
        }
        let bytes = self.files[&name(FileKind::Segment, to)].clone();
        let content = content_id(&bytes);
        self.contents.insert(content, bytes);
        self.push(Kind::Collect { content, number: to }, &recipe.finish());
    }

    fn collect(&mut self) {
        let is_sealed = |file: &FileName| file.kind == FileKind::Segment && !self.growing.contains(&file.number);
        let sealed: Vec<u64> = self.files.keys().filter(|file| is_sealed(file)).map(|file| file.number).collect();
        let is_free = |segment: &u64| !self.memtable.values().any(|(of, _)| of == segment);
        let segment = sealed.into_iter().find(is_free);
        if segment.is_some() {
            self.compact(segment);
        }
    }

    fn snapshot(&self) -> String {
        let tables: String = self.tables.keys().map(|table| format!("+{table} ")).collect();
        format!("{tables}W{}\n", self.wal)
    }

    fn roll_over(&mut self) {
        let old = std::mem::replace(&mut self.manifest, self.next);
        self.next += 1;
        let snapshot = self.snapshot();
        self.append(name(FileKind::Manifest, self.manifest), snapshot.as_bytes());
        self.put_current();
        if old != 0 {
            self.delete(name(FileKind::Manifest, old));
        }
    }

    fn put_current(&mut self) {
        let content = manifest_name(self.manifest);
        self.files.insert(name(FileKind::Current, 0), content.clone());
        self.push(Kind::Put { file: FileKind::Current, number: self.manifest }, &content);
    }

    /// Another primary opens what there is.
    fn open_epoch(&mut self) {
        let epoch = Epoch(self.mark.position.epoch.0 + 1);
        self.mark = self.mark.open(epoch);
        (self.next, self.next_segment) = (self.next + GAP, self.next_segment + GAP);
        let stock: Vec<FileName> = self.files.keys().filter(|file| file.is_finished_once()).copied().collect();
        stock.into_iter().for_each(|file| self.finish(file));
        self.growing.clear();
        if epoch == Epoch(1) {
            self.files.insert(name(FileKind::Store, 0), b"a store".to_vec());
            self.push(Kind::Put { file: FileKind::Store, number: 0 }, b"a store");
        }
        self.push(Kind::Clock { limit_ms: epoch.0 * 10 }, &[]);
        let old = name(FileKind::Wal, self.wal);
        let entries = std::mem::take(&mut self.memtable);
        self.wal = self.next();
        if !entries.is_empty() {
            self.table(entries);
        }
        let old_manifest = std::mem::replace(&mut self.manifest, self.next);
        self.next += 1;
        let snapshot = self.snapshot();
        self.append(name(FileKind::Manifest, self.manifest), snapshot.as_bytes());
        self.put_current();
        for file in [old, name(FileKind::Manifest, old_manifest)] {
            if self.files.contains_key(&file) {
                self.delete(file);
            }
        }
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0 => self.seal(),
            1 | 2 => self.flush(),
            3 | 4 => self.compact(None),
            5 => self.collect(),
            6 => self.roll_over(),
            7 if self.random.once_in(2) => self.open_epoch(),
            8 => self.push(Kind::Clock { limit_ms: u64::from(self.ids) }, &[]),
            9 => self.push(Kind::Sync, &[]),
            _ => self.put(),
        }
    }

    fn run(mut self, steps: usize) -> Self {
        (0..steps).for_each(|_| self.step());
        self
    }

    /// Items up to the mark.
    fn index(&self, position: Position) -> usize {
        self.items.partition_point(|(item, _)| item.position <= position)
    }

    /// Items that may be sent behind what was taken: the next epoch's only to who has all before.
    fn fed_up_to(&self, taken: Mark, applied: Mark, count: usize) -> usize {
        let at = self.index(taken.position);
        let Some((next, _)) = self.items.get(at) else { return at };
        let epoch = next.position.epoch;
        if epoch > taken.position.epoch && taken != applied {
            return at;
        }
        let of_it = self.items[at..].iter().take(count).take_while(|(item, _)| item.position.epoch == epoch);
        at + of_it.count()
    }

    /// How long each file of the log side was before the item.
    fn lengths(&self, index: usize) -> HashMap<FileName, u64> {
        let mut lengths = HashMap::new();
        for (item, bytes) in &self.items[..index] {
            if let Kind::Append { file, number, offset } = item.kind {
                lengths.insert(name(file, number), offset + bytes.len() as u64);
            }
        }
        lengths
    }
}

fn is_sound(directory: &Directory) -> bool {
    let done = directory.begin_verify().unwrap().run().unwrap();
    directory.verified(&done).unwrap()
}

/// The engine: the ids in the directory, each value looked at.
fn open_store(directory: &Path) -> BTreeSet<u32> {
    read_store(directory).0
}

/// The same, with the files that it has read.
fn read_store(directory: &Path) -> (BTreeSet<u32>, BTreeSet<FileName>) {
    let used = std::cell::RefCell::new(BTreeSet::new());
    let read = |file| {
        used.borrow_mut().insert(file);
        fs::read(path_of(directory, file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    };
    let current = names::named_by_current(&read(name(FileKind::Current, 0))).unwrap();
    let manifest = String::from_utf8(read(name(FileKind::Manifest, current))).unwrap();
    let (mut tables, mut min_wal) = (BTreeSet::new(), 0);
    for edit in manifest.split_inclusive('\n').filter(|edit| edit.ends_with('\n')) {
        for change in edit.split_whitespace() {
            let number: u64 = change[1..].parse().unwrap();
            match &change[..1] {
                "+" => assert!(tables.insert(number)),
                "-" => assert!(tables.remove(&number)),
                _ => min_wal = number,
            }
        }
    }
    let mut lines: Vec<Vec<u8>> = tables.iter().map(|table| read(name(FileKind::Table, *table))).collect();
    for (file, _) in files_in(directory).unwrap() {
        if file.kind == FileKind::Wal && file.number >= min_wal {
            lines.push(read(file));
        }
    }
    let mut ids = BTreeSet::new();
    for text in lines {
        let text = String::from_utf8(text).unwrap();
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let fields: Vec<u64> = line.split_whitespace().map(|field| field.parse().unwrap()).collect();
            let (id, at) = (fields[0] as u32, fields[2] as usize);
            let segment = read(name(FileKind::Segment, fields[1]));
            assert_eq!(segment[at..at + VALUE_BYTES as usize], *value(id).as_bytes(), "{id}");
            ids.insert(id);
        }
    }
    (ids, used.take())
}

fn boot(number: u8) -> BootId {
    BootId([number; 16])
}

/// A copy of the world's store.
struct Copy<'a> {
    world: &'a World,
    _above: TempDir,
    path: PathBuf,
    boots: u8,
    directory: Option<Directory>,
    random: Random,
    /// What a loss of power leaves: items, and bytes of what is pending.
    synced_items: usize,
    flushed_items: usize,
    synced_pending: (PathBuf, u64),
    fetched: BTreeSet<FileName>,
    now_us: u64,
    wanted: BTreeSet<FileName>,
}

impl<'a> Copy<'a> {
    fn new(world: &'a World, seed: u64) -> Self {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("store");
        let (directory, found) = Directory::open(&path, boot(0)).unwrap();
        assert_eq!((found.standing, found.at), (None, Mark::default()));
        Self {
            world,
            _above: above,
            path,
            boots: 0,
            directory: Some(directory),
            random: Random(seed),
            synced_items: 0,
            flushed_items: 0,
            synced_pending: (PathBuf::new(), 0),
            fetched: BTreeSet::new(),
            now_us: 0,
            wanted: BTreeSet::new(),
        }
    }

    fn directory(&mut self) -> &mut Directory {
        self.directory.as_mut().unwrap()
    }

    fn index(&self) -> usize {
        self.world.index(self.directory.as_ref().unwrap().applied().position)
    }

    fn feed(&mut self, count: usize) -> Result<()> {
        let from = self.index();
        // What is held behind an opening comes again now and then.
        let taken = self.world.index(self.directory().taken.position);
        let from = if self.random.once_in(3) { from } else { taken };
        let to = self.world.fed_up_to(self.directory().taken, self.directory().reached, count);
        let epoch = self.directory().applied().position.epoch;
        let applied = self.directory.as_mut().unwrap().apply(&self.world.items[from.min(to)..to]);
        // Also where it failed behind an opening.
        self.note_switch(epoch);
        let applied = applied?;
        assert_eq!(applied, self.directory().applied().position);
        Ok(())
    }

    /// What was there at an opening is durable.
    fn note_switch(&mut self, before: Epoch) {
        let at = self.directory().applied().position;
        if at.epoch != before {
            let opening = Position { epoch: at.epoch, number: 1 };
            let first = self.world.index(opening) - 1;
            let behind = &self.world.items[first..];
            let is_last = |(item, _): &(Item, Vec<u8>)| matches!(item.kind, Kind::Put { file: FileKind::Current, .. });
            self.synced_items = first + behind.iter().position(is_last).unwrap() + 1;
            self.flushed_items = self.synced_items;
        }
    }

    fn sync(&mut self) -> Result<()> {
        // What is synced may be more than what was recorded before.
        let index = self.world.index(self.directory().reached.position);
        let directory = self.directory.as_mut().unwrap();
        let pending = (directory.pending.file().0, directory.pending.end() - directory.pending.start());
        let job = directory.begin_sync(Sync::Segments);
        if self.random.once_in(3) {
            // Meanwhile items are applied.
            self.feed(3)?;
        }
        let done = job.run()?;
        self.directory().synced(done)?;
        let job = self.directory().begin_sync(Sync::Wal);
        if self.random.once_in(3) {
            self.feed(3)?;
        }
        let durable = Arc::clone(&self.directory().durable);
        let is_same = Arc::ptr_eq(&job.durable, &durable);
        let done = job.run();
        if is_same && !self.directory().has_failed.load(Ordering::SeqCst) {
            // All files are synced, whether the record says so or not.
            (self.flushed_items, self.synced_pending) = (index, pending);
        }
        let done = done?;
        if is_same {
            self.synced_items = index;
        }
        self.directory().synced(done)
    }

    fn advance(&mut self) -> Result<()> {
        self.now_us += 400_000;
        let (epoch, now_us) = (self.directory().applied().position.epoch, self.now_us);
        let result = self.directory().advance(now_us);
        self.note_switch(epoch);
        result
    }

    /// A segment is made here of others, one of which may be damaged or missing.
    fn make(&mut self) -> Result<()> {
        let Some(job) = self.directory().to_collect()? else { return Ok(()) };
        let want = *job.want();
        let hurt = self.hurt_source(&job);
        let result = job.run();
        if let Some((path, bytes)) = &hurt {
            fs::write(path, bytes).unwrap();
        }
        match result {
            Ok(()) => {
                assert!(self.world.contents.contains_key(&want.content));
                self.fetched.insert(want.file);
                self.directory().fetched(&want).map(drop)
            }
            Err(Error::Missing { .. } | Error::Mismatch { .. }) => {
                self.directory().not_collected(&want);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn hurt_source(&mut self, job: &CollectJob) -> Option<(PathBuf, Vec<u8>)> {
        if !self.random.once_in(4) {
            return None;
        }
        let recipe = Recipe::decode(&job.recipe, job.want().content.len).unwrap();
        let copied = |step: &Step<'_>| if let Step::Copy { segment, .. } = step { Some(*segment) } else { None };
        let path = path_of(&self.path, name(FileKind::Segment, recipe.steps.iter().find_map(copied)?.into()));
        let bytes = fs::read(&path).ok()?;
        match self.random.below(3) {
            0 => fs::remove_file(&path).unwrap(),
            1 => fs::write(&path, &bytes[..bytes.len() / 2]).unwrap(),
            _ => fs::write(&path, bytes.iter().map(|byte| byte ^ 1).collect::<Vec<_>>()).unwrap(),
        }
        Some((path, bytes))
    }

    fn fetch(&mut self) -> Result<()> {
        let now_us = self.now_us;
        for want in self.directory().wants(now_us) {
            self.wanted.insert(want.file);
            let bytes = &self.world.contents[&want.content];
            if self.random.once_in(4) && !self.directory().is_opening() {
                // Nobody answers.
                continue;
            }
            let temporary = self.directory().temporary(&want);
            // One that was compared before a failure is taken as it is.
            if self.random.once_in(6) && !checked_path(&temporary).exists() {
                fs::write(&temporary, b"something else").unwrap();
                assert!(matches!(self.directory().fetched(&want), Err(Error::Mismatch { .. } | Error::Io { .. })));
            }
            fs::write(&temporary, bytes).unwrap();
            if self.random.once_in(2) {
                check_fetched(&temporary, &want)?;
            }
            self.fetched.insert(want.file);
            let epoch = self.directory().applied().position.epoch;
            let result = self.directory().fetched(&want);
            self.note_switch(epoch);
            result?;
        }
        Ok(())
    }

    /// The process is killed, and starts again.
    fn kill(&mut self) {
        let before = self.directory.take().map(|directory| directory.applied());
        let (directory, found) = Directory::open(&self.path, boot(self.boots)).unwrap();
        assert_eq!(found.at, directory.applied());
        // What was acknowledged is there; an opening may have ended.
        assert!(found.at.position >= before.unwrap().position, "{before:?} {found:?}");
        self.directory = Some(directory);
        self.note_switch(before.unwrap().position.epoch);
        self.check();
    }

    /// The machine loses power: of what was not synced some bytes are there, or others.
    fn lose_power(&mut self) {
        let before = self.directory.take().unwrap();
        let epoch = before.applied().position.epoch;
        // What an opening writes once it is committed is synced, or written again.
        let is_switching = before.opening.as_ref().is_some_and(Opening::is_begun);
        drop(before);
        let lengths = self.world.lengths(self.flushed_items);
        for (file, len) in files_in(&self.path).unwrap() {
            let is_log = matches!(file.kind, FileKind::Wal | FileKind::Segment);
            if !is_log || is_switching || self.fetched.contains(&file) {
                continue;
            }
            let base = lengths.get(&file).copied().unwrap_or(0).min(len);
            let left = base + self.random.below(len - base + 1);
            let path = path_of(&self.path, file);
            let mut bytes = fs::read(&path).unwrap();
            bytes.truncate(left as usize);
            if self.random.once_in(2) {
                let zeros = base + self.random.below(left - base + 1);
                bytes[zeros as usize..].fill(0);
            }
            fs::write(&path, bytes).unwrap();
        }
        faults::lose_names(&names::copy_directory(&self.path));
        for entry in names_in(&names::copy_directory(&self.path)).unwrap() {
            let path = beside(&self.path, &entry);
            if entry.starts_with("pending-") {
                let base = if path == self.synced_pending.0 { self.synced_pending.1 } else { 0 };
                let len = fs::metadata(&path).unwrap().len();
                let left = base + self.random.below(len.saturating_sub(base) + 1);
                fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(left.min(len)).unwrap();
            }
        }
        if self.random.once_in(2) {
            // It may be gone already.
            record::remove_file(&beside(&self.path, MARK_FILE)).unwrap();
        }
        self.boots += 1;
        let (directory, found) = Directory::open(&self.path, boot(self.boots)).unwrap();
        self.directory = Some(directory);
        self.note_switch(epoch);
        assert!(self.world.index(found.at.position) >= self.synced_items, "{found:?}");
        self.check();
    }

    /// What its directory holds is what was written up to its mark, however it is opened.
    fn check(&self) {
        let directory = self.directory.as_ref().unwrap();
        let at = directory.reached;
        assert!(is_sound(directory));
        if at == Mark::default() || directory.is_switching() {
            return;
        }
        let index = self.world.index(at.position);
        assert_eq!(self.world.items[index - 1].0.mark(), at, "marks are the stream's");
        let expected: BTreeSet<u32> = (1..=self.world.written[index]).collect();
        assert_eq!(open_store(&self.path), expected, "at {at:?}");
    }

    /// Takes all there is.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            self.feed(50).unwrap();
            self.sync().unwrap();
            self.advance().unwrap();
            self.make().unwrap();
            self.fetch().unwrap();
            let directory = self.directory.as_ref().unwrap();
            if directory.applied() == self.world.mark && directory.pending.entries().is_empty() {
                break;
            }
        }
        self.check();
        let mut found: BTreeMap<FileName, Vec<u8>> = BTreeMap::new();
        for (file, _) in files_in(&self.path).unwrap() {
            found.insert(file, fs::read(path_of(&self.path, file)).unwrap());
        }
        let (expected, found): (Vec<_>, Vec<_>) = (self.world.files.iter().collect(), found.iter().collect());
        assert_eq!(expected, found);
        let directory = self.directory.as_ref().unwrap();
        assert_eq!(names_in(&fetched_in(&self.path)).unwrap(), Vec::<String>::new());
        assert_eq!(directory.clock_limit_ms, clock_of(self.world));
    }

    /// One thing happens, of all that can. Its failures are the faults.
    fn step(&mut self) -> Result<()> {
        match self.random.below(14) {
            0..5 => {
                let count = 1 + self.random.below(6) as usize;
                self.feed(count)
            }
            5 | 6 => self.sync(),
            7 | 8 => self.advance(),
            9 | 10 => self.fetch(),
            11 | 12 => self.make(),
            _ => {
                // One that was committed, and failed then, is ended.
                let epoch = self.directory().applied().position.epoch;
                let result = self.directory().abandon();
                self.note_switch(epoch);
                result
            }
        }
    }
}

fn clock_of(world: &World) -> u64 {
    let clock = |(item, _): &(Item, Vec<u8>)| match item.kind {
        Kind::Clock { limit_ms } => limit_ms,
        _ => 0,
    };
    world.items.iter().map(clock).max().unwrap()
}

fn is_injected(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.to_string() == "injected")
        || matches!(error, Error::Io { source, .. } if source.to_string().starts_with("a sync has failed"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 64, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_deleted_that_a_reader_has_not_passed(seed in any::<u64>(), steps in 10..160_usize) {
        let world = World::new(seed).run(steps);
        let mut copy = Copy::new(&world, seed ^ 7);
        let readers = Arc::new(Readers::default());
        copy.directory = copy.directory.take().map(|directory| directory.with_readers(readers.clone()));
        let mut random = Random(seed ^ 11);
        // With the files of what it shows.
        let mut reader: Option<(Reading, BTreeSet<FileName>)> = None;
        for _ in 0..300 {
            copy.step().unwrap();
            // One that was asked to end takes its time.
            reader = reader.filter(|(reading, _)| !reading.is_over() || random.once_in(2));
            let goes_on = reader.iter().filter(|(reading, _)| !reading.is_over());
            for file in goes_on.flat_map(|(_, needed)| needed) {
                prop_assert!(path_of(&copy.path, *file).exists(), "{file}");
            }
            match (&mut reader, random.below(4)) {
                (Some((reading, needed)), 0 | 1) if !reading.is_over() => {
                    let drained = reading.drained();
                    *needed = read_store(&copy.path).1;
                    reading.passed(drained);
                }
                (Some(_), 2) if random.once_in(4) => reader = None,
                (None, 3) => {
                    reader = readers.begin().map(|reading| {
                        let drained = reading.drained();
                        let needed = read_store(&copy.path).1;
                        reading.passed(drained);
                        (reading, needed)
                    });
                }
                _ => {}
            }
        }
        drop(reader);
        copy.finish();
    }

    /// Whatever fails, and whenever, the copy is what was written up to its mark, and in the end the
    /// same files.
    #[test]
    fn a_copy_is_its_mark_whatever_fails(seed in any::<u64>(), steps in 10..160_usize) {
        let world = World::new(seed).run(steps);
        let mut copy = Copy::new(&world, seed ^ 77);
        for _ in 0..4 * steps {
            match copy.random.below(20) {
                0 => copy.kill(),
                1 => copy.lose_power(),
                2..6 => {
                    let is_crash = copy.random.once_in(2);
                    let (after, torn) = (copy.random.below(30), copy.random.below(40) as usize);
                    faults::fail_after(after, is_crash, torn);
                    let result = copy.step();
                    let has_failed = faults::stop();
                    if let Err(error) = &result {
                        assert!(has_failed && is_injected(error), "{error}");
                    }
                    // A full disk is tried again; what else happened is known to the next start only.
                    let has_lost = copy.directory().has_failed.load(Ordering::SeqCst);
                    if has_lost {
                        // The sync that failed may have been of bytes that are lost.
                        copy.lose_power();
                    } else if has_failed && is_crash {
                        copy.kill();
                    }
                }
                _ => copy.step().unwrap(),
            }
            if copy.random.once_in(4) {
                copy.check();
            }
        }
        copy.finish();
    }
}

/// Up to the end, with all that is pending done.
fn caught_up<'a>(world: &'a World, until: usize) -> Copy<'a> {
    let mut copy = Copy::new(world, 5);
    copy.random = Random(5);
    while copy.index() < until {
        let taken = world.index(copy.directory().taken.position);
        let to = world.fed_up_to(copy.directory().taken, copy.directory().reached, until - taken);
        copy.directory().apply(&world.items[taken..to]).unwrap();
        copy.now_us += 2 * FETCH_DELAY_US;
        copy.make().unwrap();
        copy.fetch().unwrap();
        if world.index(copy.directory().taken.position) == until && copy.directory().is_opening() {
            let wants = copy.directory().wants(u64::MAX);
            if wants.is_empty() {
                break;
            }
        }
    }
    for _ in 0..50 {
        let job = copy.directory().begin_sync(Sync::Segments);
        let done = job.run().unwrap();
        copy.directory().synced(done).unwrap();
        let job = copy.directory().begin_sync(Sync::Wal);
        let done = job.run().unwrap();
        copy.directory().synced(done).unwrap();
        copy.now_us += 2 * FETCH_DELAY_US;
        let now_us = copy.now_us;
        copy.directory().advance(now_us).unwrap();
        copy.make().unwrap();
        copy.fetch().unwrap();
        if copy.directory().pending.entries().is_empty() {
            break;
        }
    }
    copy
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A world whose last epoch begins at the index that is returned.
fn world_with_opening(seed: u64) -> (World, usize) {
    let mut world = World::new(seed);
    for _ in 0..30 {
        world.put();
    }
    world.flush();
    world.put();
    world.seal();
    world.flush();
    world.compact(None);
    (0..5).for_each(|_| world.put());
    let before = world.items.len();
    world.open_epoch();
    (0..3).for_each(|_| world.put());
    (world, before)
}

#[test]
fn an_opening_is_done_as_a_whole_or_not_at_all_wherever_it_is_interrupted() {
    let (world, before) = world_with_opening(3);
    let old = caught_up(&world, before);
    old.check();
    let end = old.directory.as_ref().unwrap().applied();
    let image = old._above;
    drop(old.directory);
    let mut seen = BTreeSet::new();
    for is_crash in [true, false] {
        for after in 0.. {
            let mut copy = Copy::new(&world, 1);
            drop(copy.directory.take());
            copy_tree(image.path(), copy._above.path());
            copy.directory = Some(Directory::open(&copy.path, boot(0)).unwrap().0);
            faults::fail_after(after, is_crash, 5);
            let mut tries = 0;
            while copy.index() < world.items.len() && tries < 4 {
                tries += 1;
                let taken = world.index(copy.directory().taken.position);
                let result = copy.directory().apply(&world.items[taken..]).map(|_| ());
                let result = result.and_then(|()| copy.fetch());
                if let Err(error) = result {
                    assert!(is_injected(&error), "{error}");
                }
                let at = copy.directory().applied().position;
                assert!(at <= end.position || world.index(at) > before, "half of it");
            }
            if !faults::stop() {
                break;
            }
            if is_crash {
                let (directory, found) = Directory::open(&copy.path, boot(0)).unwrap();
                copy.directory = Some(directory);
                let is_new = found.at.position.epoch > end.position.epoch;
                assert!(is_new || found.at == end, "{found:?}");
                seen.insert(is_new);
                copy.check();
            }
            if copy.directory().has_failed.load(Ordering::SeqCst) {
                copy.directory = Some(Directory::open(&copy.path, boot(1)).unwrap().0);
            }
            copy.finish();
        }
    }
    assert_eq!(seen, BTreeSet::from([false, true]));
}

#[test]
fn an_opening_waits_for_what_it_names_and_can_be_thrown_away() {
    let (world, before) = world_with_opening(4);
    let mut copy = caught_up(&world, before);
    let end = copy.directory().applied();
    let position = copy.directory().apply(&world.items[before..]).unwrap();
    assert_eq!(position, end.position);
    assert!(copy.directory().is_opening());
    copy.check();
    let wants = copy.directory().wants(0);
    assert_eq!(wants.len(), 1, "the table that the new primary flushed: {wants:?}");
    let temporary = copy.directory().temporary(&wants[0]);
    fs::write(&temporary, &world.contents[&wants[0].content][1..]).unwrap();
    assert!(matches!(copy.directory().fetched(&wants[0]), Err(Error::Mismatch { .. })));
    copy.directory().abandon().unwrap();
    assert!(!copy.directory().is_opening());
    assert_eq!(copy.directory().applied(), end);
    copy.check();
    // It comes again.
    copy.directory().apply(&world.items[before..]).unwrap();
    fs::write(&temporary, &world.contents[&wants[0].content]).unwrap();
    let position = copy.directory().fetched(&wants[0]).unwrap();
    assert_eq!(position, world.mark.position, "and what waited behind it");
    copy.finish();
}

#[test]
fn tables_that_live_short_are_never_fetched_and_edits_wait_for_the_others() {
    let mut world = World::new(9);
    (0..3).for_each(|_| world.put());
    world.flush();
    world.put();
    world.flush();
    world.compact(None);
    let lasting = *world.tables.keys().next().unwrap();
    let mut copy = Copy::new(&world, 1);
    copy.directory().advance(5).unwrap();
    copy.directory().apply(&world.items).unwrap();
    let done = copy.directory().begin_sync(Sync::Segments).run().unwrap();
    copy.directory().synced(done).unwrap();
    copy.directory().advance(6).unwrap();
    assert!(!copy.directory().pending.entries().is_empty(), "the WAL is not synced");
    let done = copy.directory().begin_sync(Sync::Wal).run().unwrap();
    copy.directory().synced(done).unwrap();
    copy.directory().advance(7).unwrap();
    copy.check();
    assert_eq!(copy.directory().wants(FETCH_DELAY_US), Vec::new(), "too soon");
    let wants = copy.directory().wants(FETCH_DELAY_US + 5);
    assert_eq!(wants.iter().map(|want| want.file).collect::<Vec<_>>(), [name(FileKind::Table, lasting)]);
    let manifest = path_of(&copy.path, name(FileKind::Manifest, world.manifest));
    let before = fs::read(&manifest).unwrap();
    fs::write(copy.directory().temporary(&wants[0]), &world.contents[&wants[0].content]).unwrap();
    copy.directory().fetched(&wants[0]).unwrap();
    assert!(fs::read(&manifest).unwrap().len() > before.len());
    assert!(copy.directory().pending.entries().is_empty());
    copy.finish();
}

/// The last thing that happens is that the values of a segment move to one that a copy is to make.
fn world_with_instructions() -> World {
    let worlds = (0..).map(|seed| {
        let mut world = World::new(seed);
        (0..20).for_each(|_| world.put());
        while !world.growing.is_empty() {
            world.seal();
        }
        world.flush();
        world.collect();
        world
    });
    let is_one = |world: &World| world.items.iter().any(|(item, _)| matches!(item.kind, Kind::Collect { .. }));
    worlds.into_iter().find(is_one).unwrap()
}

#[test]
fn what_is_to_be_made_is_waited_for_and_a_copy_can_be_opened_before() {
    let world = world_with_instructions();
    let all: BTreeSet<u32> = (1..=world.ids).collect();
    for is_opened in [true, false] {
        let mut copy = Copy::new(&world, 1);
        copy.directory().apply(&world.items).unwrap();
        sync(copy.directory()).unwrap();
        for _ in 0..3 {
            copy.now_us += 2 * FETCH_DELAY_US;
            let now_us = copy.now_us;
            copy.directory().advance(now_us).unwrap();
            // All but what it is to make.
            for want in copy.directory().wants(now_us) {
                assert_eq!(want.file.kind, FileKind::Table);
                fs::write(copy.directory().temporary(&want), &world.contents[&want.content]).unwrap();
                copy.directory().fetched(&want).unwrap();
            }
        }
        let job = copy.directory().to_collect().unwrap().unwrap();
        assert_eq!(open_store(&copy.path), all, "by the MANIFEST before it");
        if is_opened {
            copy.directory().prepare_opening(in_epoch(2, 0), 0).unwrap();
            assert_eq!(open_store(&copy.path), all);
            // It comes too late, and is of no use.
            drop(job.run());
            assert_eq!(open_store(&copy.path), all);
            continue;
        }
        // Whatever it was made of is damaged: it is fetched.
        let temporary = copy.directory().temporary(job.want());
        assert!(copy.directory.as_ref().unwrap().wants(copy.now_us).is_empty(), "not as long as it may be made");
        copy.directory().not_collected(job.want());
        assert!(copy.directory().to_collect().unwrap().is_none());
        let want = copy.directory.as_ref().unwrap().wants(copy.now_us)[0];
        assert_eq!(want, *job.want());
        fs::write(temporary, &world.contents[&want.content]).unwrap();
        copy.directory().fetched(&want).unwrap();
        copy.finish();
    }
}

#[test]
fn what_comes_twice_is_passed_over_and_what_does_not_follow_is_refused() {
    let mut world = World::new(1);
    (0..4).for_each(|_| world.put());
    let mut copy = Copy::new(&world, 1);
    for _ in 0..3 {
        copy.directory().apply(&world.items).unwrap();
    }
    let mark = copy.directory().applied();
    let end = copy.directory().growing[&name(FileKind::Wal, world.wal)].len;
    let append = |number, offset, bytes: &[u8]| {
        let kind = Kind::Append { file: FileKind::Wal, number, offset };
        (Item::behind(mark, kind, bytes.len() as u64, crc32c::crc32c(bytes)), bytes.to_vec())
    };
    let (wal, there) = (world.wal, world.files[&name(FileKind::Wal, world.wal)].clone());
    for (item, bytes) in [append(wal, end + 1, b"x"), append(wal, end - 1, b"xy"), append(999, 4, b"x")] {
        let refused = copy.directory().apply(&[(item, bytes)]);
        assert!(matches!(refused, Err(Error::Mismatch { .. } | Error::Missing { .. })), "{refused:?}");
    }
    let (item, _) = append(wal, end, b"x");
    assert!(matches!(copy.directory().apply(&[(item, b"y".to_vec())]), Err(Error::Malformed { .. })));
    let skipped = Item::behind(item.mark(), item.kind, 1, item.checksum);
    assert!(matches!(copy.directory().apply(&[(skipped, b"x".to_vec())]), Err(Error::Malformed { .. })));
    for kind in [
        Kind::Append { file: FileKind::Table, number: 1, offset: 0 },
        Kind::Finished { file: FileKind::Wal, number: 1, content: content_id(b"") },
        Kind::Put { file: FileKind::Current, number: 3 },
        Kind::Delete { file: FileKind::Current, number: 0 },
        Kind::Append { file: FileKind::Wal, number: 1, offset: u64::MAX },
    ] {
        let item = Item::behind(mark, kind, 0, 0);
        assert!(matches!(copy.directory().apply(&[(item, Vec::new())]), Err(Error::Malformed { .. })), "{kind:?}");
    }
    copy.check();
    // The same bytes at the same place.
    let last = there.len() - 3;
    copy.directory().apply(&[append(wal, last as u64, &there[last..])]).unwrap();
    assert_eq!(fs::read(path_of(&copy.path, name(FileKind::Wal, wal))).unwrap(), there);
}

#[test]
fn a_bit_that_is_flipped_on_the_way_is_refused_by_name_and_what_comes_again_is_taken() {
    let mut world = World::new(3);
    (0..4).for_each(|_| world.put());
    world.roll_over();
    (0..4).for_each(|_| world.put());
    let mut copy = Copy::new(&world, 3);
    for (item, bytes) in &world.items {
        let before = copy.directory().applied();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            let refused = copy.directory().apply(&[(*item, flipped)]);
            let Err(Error::Malformed { path, what }) = refused else { panic!("{item:?}, byte {at}: {refused:?}") };
            assert!(what.contains(&format!("{:?}", item.position)) && path == copy.path, "{what}");
        }
        assert_eq!(copy.directory().applied(), before, "nothing of it is taken");
        copy.directory().apply(&[(*item, bytes.clone())]).unwrap();
    }
    assert_eq!(copy.directory().applied(), world.mark);
    copy.finish();
}

#[test]
fn files_are_cut_where_the_stream_says_so_and_links_keep_what_they_held() {
    let mut world = World::new(1);
    (0..4).for_each(|_| world.put());
    let mut copy = caught_up(&world, world.items.len());
    let (wal, segment) = (name(FileKind::Wal, world.wal), name(FileKind::Segment, world.growing[0]));
    let offer = copy.directory().offer().unwrap();
    for (file, is_crash) in [(wal, true), (segment, false)] {
        let mark = copy.directory().applied();
        let kind = Kind::Truncate { file: file.kind, number: file.number, len: 5 };
        let items = [(Item::behind(mark, kind, 0, 0), Vec::new())];
        for after in 0.. {
            faults::fail_after(after, is_crash, 3);
            let applied = copy.directory().apply(&items);
            if !faults::stop() && applied.is_ok() {
                break;
            }
            if is_crash {
                let (directory, found) = Directory::open(&copy.path, boot(0)).unwrap();
                assert!(found.at == mark || found.at == items[0].0.mark());
                copy.directory = Some(directory);
            }
            assert!(is_sound(copy.directory()));
        }
        assert_eq!(copy.directory().applied(), items[0].0.mark());
        assert_eq!(fs::read(path_of(&copy.path, file)).unwrap(), world.files[&file][..5]);
        assert!(is_sound(copy.directory()));
    }
    // Where the process that offered it still runs, the offer holds what it did.
    let offered = offer.files.iter().find(|offered| offered.file == segment).unwrap();
    if let Ok(opened) = offer.open(segment) {
        let mut bytes = vec![0; offered.len as usize];
        opened.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, world.files[&segment]);
    }
}

#[test]
fn verify_finds_a_flipped_bit_in_any_file_that_grows() {
    let mut world = World::new(2);
    (0..6).for_each(|_| world.put());
    let mut copy = caught_up(&world, world.items.len());
    for (file, bytes) in world.files.iter().filter(|(file, _)| file.is_appended_to()) {
        let path = path_of(&copy.path, *file);
        for at in [0, bytes.len() / 2, bytes.len() - 1] {
            let mut bad = bytes.clone();
            bad[at] ^= 4;
            fs::write(&path, &bad).unwrap();
            assert!(!is_sound(copy.directory()), "{file} {at}");
            fs::write(&path, bytes).unwrap();
            assert!(is_sound(copy.directory()));
        }
        fs::write(&path, &bytes[1..]).unwrap();
        assert!(!is_sound(copy.directory()));
        // What lost bytes that were acknowledged holds nothing from the next start on.
        copy.directory().persist(&Standing::founded()).unwrap();
        let (_, found) = Directory::open(&copy.path, boot(0)).unwrap();
        assert_eq!(found.at, Mark::default());
        assert!(!found.standing.unwrap().is_whole);
        copy = caught_up(&world, world.items.len());
    }
}

#[test]
fn what_was_acknowledged_in_this_boot_and_is_not_known_any_more_makes_it_less_than_whole() {
    let mut world = World::new(2);
    (0..6).for_each(|_| world.put());
    let mut copy = caught_up(&world, world.items.len());
    let standing = Standing { unsynced_in: Some(boot(0)), ..Standing::founded() };
    copy.directory().persist(&standing).unwrap();
    let (_, found) = Directory::open(&copy.path, boot(0)).unwrap();
    assert_eq!(found.standing, Some(standing.clone()));
    fs::remove_file(beside(&copy.path, MARK_FILE)).unwrap();
    let (_, found) = Directory::open(&copy.path, boot(0)).unwrap();
    assert_eq!(found.standing, Some(Standing { is_whole: false, ..standing }));
}

#[test]
fn too_many_items_are_refused_and_change_nothing() {
    let world = World::new(1);
    let mut copy = caught_up(&world, world.items.len());
    let mut mark = copy.directory().applied();
    let content = content_id(b"never here");
    let mut items = Vec::new();
    for number in 0..=pending::MAX_PENDING_ITEMS as u64 {
        let item = Item::behind(mark, Kind::Finished { file: FileKind::Table, number: 1000 + number, content }, 0, 0);
        mark = item.mark();
        items.push((item, Vec::new()));
    }
    let refused = copy.directory().apply(&items);
    assert!(matches!(refused, Err(Error::TooMuch { .. })), "{refused:?}");
    let last = items[items.len() - 2].0.mark();
    assert_eq!(copy.directory().applied(), last, "up to there it is taken");
    assert_eq!(copy.directory().wants(0).len(), MAX_WANTS, "at once");
    let (directory, found) = Directory::open(&copy.path, boot(0)).unwrap();
    assert_eq!(found.at, last);
    copy.directory = Some(directory);
    copy.check_files_open();
}

impl Copy<'_> {
    fn check_files_open(&self) {
        open_store(&self.path);
    }
}

#[test]
fn numbers_are_raised_above_all_that_are_here_or_pending() {
    let mut world = World::new(6);
    (0..4).for_each(|_| world.put());
    world.flush();
    world.seal();
    world.put();
    let mut copy = Copy::new(&world, 1);
    copy.directory().apply(&world.items).unwrap();
    let greatest = world.next - 1;
    assert!(copy.directory().pending.entries().iter().any(|entry| !entry.is_present));
    let at = copy.directory().applied().open(Epoch(2));
    let segment = copy.directory().prepare_opening(at, 7).unwrap();
    assert_eq!(segment, world.next_segment - 1 + NUMBER_GAP);
    let raised = path_of(&copy.path, name(FileKind::Table, greatest.max(world.wal) + NUMBER_GAP));
    assert_eq!(fs::metadata(raised).unwrap().len(), 0);
    // Nothing acknowledged is lost by opening it so.
    assert_eq!(open_store(&copy.path).len(), world.ids as usize);
    assert!(copy.directory().apply(&world.items).is_err(), "it is open for writing");
    let end = Mark { position: Position { epoch: Epoch(2), number: 9 }, chain: 5 };
    // The engine writes on.
    fs::write(path_of(&copy.path, name(FileKind::Wal, world.wal)), b"longer than it ever was").unwrap();
    let (_, found) = Directory::open(&copy.path, boot(1)).unwrap();
    assert_eq!((found.at, found.clock_limit_ms), (at, 10), "the world's limit is the greater one");
    let (mut directory, _) = Directory::open(&copy.path, boot(1)).unwrap();
    directory.closed(end, 70).unwrap();
    let (_, found) = Directory::open(&copy.path, boot(1)).unwrap();
    assert_eq!((found.at, found.clock_limit_ms), (end, 70));
    let len = fs::metadata(path_of(&copy.path, name(FileKind::Wal, world.wal))).unwrap().len();
    assert_eq!(len, 23, "nothing is cut");
}

#[test]
fn a_first_opening_that_was_cut_short_leaves_nothing_that_the_engine_takes_for_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let open = |number: u8| Directory::open(&path, boot(number)).unwrap().0;
    open(0).prepare_opening(in_epoch(1, 0), 0).unwrap();
    // The engine came so far, and the power was gone.
    fs::create_dir(&path).unwrap();
    for begun in ["STORE", "MANIFEST-000001"] {
        fs::write(path.join(begun), b"").unwrap();
    }
    open(1).prepare_opening(in_epoch(3, 0), 0).unwrap();
    let names = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let tables: Vec<String> = names.filter(|name| name.ends_with(".sst")).collect();
    assert!(tables.is_empty(), "{tables:?}");
}

fn in_epoch(epoch: u64, number: u64) -> Mark {
    Mark { position: Position { epoch: Epoch(epoch), number }, chain: number as u32 }
}

/// A directory that the engine has open since epoch 2 began.
fn opened(world: &World) -> Copy<'_> {
    let mut copy = caught_up(world, world.items.len());
    copy.directory().prepare_opening(in_epoch(2, 0), 7).unwrap();
    copy
}

fn sync(directory: &mut Directory) -> Result<()> {
    for stage in [Sync::Segments, Sync::Wal] {
        let done = directory.begin_sync(stage).run()?;
        directory.synced(done)?;
    }
    Ok(())
}

#[test]
fn a_primary_that_was_killed_has_all_that_was_said_in_its_epoch_and_after_a_loss_of_power_what_it_synced() {
    let mut world = World::new(6);
    (0..4).for_each(|_| world.put());
    let open = |copy: &Copy, number: u8| Directory::open(&copy.path, boot(number)).unwrap();
    let at = |copy: &Copy, number: u8| open(copy, number).1.at;
    let copy = opened(&world);
    assert_eq!(at(&copy, 1), in_epoch(2, 0), "it said that nothing is synced");

    let copy = opened(&world);
    Directory::synced_open(&copy.path, boot(0), in_epoch(2, 5), 50).unwrap();
    Directory::synced_open(&copy.path, boot(0), in_epoch(2, 9), 40).unwrap();
    Directory::synced_open(&copy.path, boot(0), in_epoch(2, 7), 90).unwrap();
    let found = open(&copy, 0).1;
    let end = Position::behind_all(Epoch(2));
    assert_eq!((found.at.position, found.clock_limit_ms), (end, 90));
    assert_eq!(at(&copy, 0), found.at, "whoever starts again in this boot");
    // Nobody has synced what it found.
    let after_power = open(&copy, 1).1;
    assert_eq!((after_power.at, after_power.clock_limit_ms), (in_epoch(2, 9), 90));
    assert_eq!(at(&copy, 1), in_epoch(2, 9), "that holds in this boot");

    // Its successor syncs all: then no boot takes it.
    let copy = opened(&world);
    sync(&mut open(&copy, 0).0).unwrap();
    assert_eq!(at(&copy, 3).position, end);

    // In another epoch nothing counts of the one before, nor what comes late of it.
    let mut copy = opened(&world);
    Directory::synced_open(&copy.path, boot(0), in_epoch(2, 9), 0).unwrap();
    copy.directory().closed(in_epoch(2, 11), 0).unwrap();
    copy.directory().prepare_opening(in_epoch(4, 0), 0).unwrap();
    Directory::synced_open(&copy.path, boot(0), in_epoch(2, 10), 0).unwrap();
    assert_eq!(at(&copy, 1), in_epoch(4, 0));
}

#[test]
fn what_was_closed_is_durable_once_it_is_synced() {
    let mut world = World::new(6);
    (0..4).for_each(|_| world.put());
    for is_synced in [false, true] {
        let mut copy = opened(&world);
        Directory::synced_open(&copy.path, boot(0), in_epoch(2, 9), 0).unwrap();
        copy.directory().closed(in_epoch(2, 11), 0).unwrap();
        if is_synced {
            sync(copy.directory()).unwrap();
            assert_eq!(copy.directory().synced_up_to(), in_epoch(2, 11).position);
        }
        let at = |number: u8| Directory::open(&copy.path, boot(number)).unwrap().1.at;
        assert_eq!(at(0), in_epoch(2, 11), "in this boot");
        assert_eq!(at(1), in_epoch(2, if is_synced { 11 } else { 9 }));
    }
}

#[test]
fn files_that_the_engine_wrote_are_synced_before_it_is_said() {
    let mut world = World::new(6);
    (0..4).for_each(|_| world.put());
    let all = files_in(&opened(&world).path).unwrap().len();
    for fails in 0..all as u64 {
        let copy = opened(&world);
        Directory::synced_open(&copy.path, boot(0), in_epoch(2, 9), 0).unwrap();
        let (mut directory, found) = Directory::open(&copy.path, boot(0)).unwrap();
        faults::fail_after(fails, false, 0);
        let result = sync(&mut directory);
        faults::stop();
        assert!(result.is_err_and(|error| is_injected(&error)), "one of {all} files, {fails}");
        assert!(directory.has_failed());
        // The kernel has reported it, and reports it no more.
        assert!(sync(&mut directory).is_err());
        drop(directory);
        let (mut directory, again) = Directory::open(&copy.path, boot(0)).unwrap();
        assert_eq!((found.at.position, again.at), (Position::behind_all(Epoch(2)), in_epoch(2, 9)));
        sync(&mut directory).unwrap();
    }
}

#[test]
fn after_a_sync_that_failed_nothing_is_synced_until_it_is_opened_again() {
    let mut world = World::new(3);
    (0..6).for_each(|_| world.put());
    let until = world.items.len();
    (0..6).for_each(|_| world.put());
    let mut copy = caught_up(&world, until);
    sync(copy.directory()).unwrap();
    let synced = copy.directory().applied();
    copy.directory().apply(&world.items).unwrap();
    // One that began before, and runs after.
    let other = copy.directory().begin_sync(Sync::Wal);
    faults::fail_after(0, false, 0);
    let failed = copy.directory().begin_sync(Sync::Segments).run();
    faults::stop();
    assert!(failed.is_err() && copy.directory().has_failed());
    assert!(other.run().is_err());
    assert!(sync(copy.directory()).is_err());
    assert_eq!(copy.directory().synced_up_to(), synced.position);
    let (mut directory, found) = Directory::open(&copy.path, boot(0)).unwrap();
    assert_eq!(found.at, synced);
    directory.apply(&world.items).unwrap();
    sync(&mut directory).unwrap();
    assert_eq!(directory.synced_up_to(), world.mark.position);
}

#[test]
fn verify_finds_a_damaged_log_of_an_engine_that_was_killed() {
    let mut world = World::new(6);
    (0..4).for_each(|_| world.put());
    let copy = opened(&world);
    // Two whole records, and a part of one.
    let record = |payload: &[u8]| {
        let checked = [&[1], payload].concat();
        let masked = crc32c::crc32c(&checked).rotate_right(15).wrapping_add(0xa282_ead8);
        [&masked.to_le_bytes()[..], &(payload.len() as u16).to_le_bytes(), &checked].concat()
    };
    let wal = [record(b"one"), record(b"two"), record(b"three")].concat();
    let path = path_of(&copy.path, name(FileKind::Wal, world.wal + NUMBER_GAP * 2));
    for (flipped, len, expected) in
        [(None, wal.len(), true), (None, wal.len() - 2, true), (Some(8), wal.len(), false), (Some(24), 25, true)]
    {
        let mut bytes = wal[..len].to_vec();
        flipped.into_iter().for_each(|at: usize| bytes[at] ^= 1);
        fs::write(&path, &bytes).unwrap();
        let (directory, _) = Directory::open(&copy.path, boot(0)).unwrap();
        assert_eq!(is_sound(&directory), expected, "{flipped:?} of {len}");
    }
}

/// Fetches all that a directory lacks, in pieces.
fn build(building: &mut Building, offer: &Offer) -> Result<()> {
    while let Some((file, offset, len)) = building.next() {
        let mut bytes = vec![0; len.min(7) as usize];
        offer.open(file)?.read_exact_at(&mut bytes, offset).unwrap();
        building.write(file, offset, &bytes)?;
    }
    Ok(())
}

fn listing(offer: &Offer) -> Listing {
    Listing::decode(&offer.listing().encode()).unwrap()
}

/// A sibling that has nearly all, and a world that goes on.
fn sibling(world: &World) -> Copy<'_> {
    let mut copy = caught_up(world, world.items.len() - 12);
    while copy.index() < world.items.len() {
        copy.feed(12).unwrap();
        copy.fetch().unwrap();
    }
    copy
}

#[test]
fn a_directory_is_built_from_what_is_here_and_the_rest_wherever_it_is_interrupted() {
    let world = World::new(8).run(120);
    let mut sibling = sibling(&world);
    let offer = sibling.directory().offer().unwrap();
    assert!(!offer.pending.is_empty());
    let mut fetched = BTreeSet::new();
    for after in 0.. {
        // A copy that has some of it, under another number too.
        let behind = caught_up(&world, world.index(Position { epoch: Epoch(1), number: 40 }));
        let path = behind.path.clone();
        let mut directory = behind.directory.unwrap();
        let standing = Standing { history: History::default().and(world.mark), ..Standing::founded() };
        let known = offer.files.iter().find(|offered| offered.content.is_some()).unwrap();
        fs::write(path_of(&path, name(FileKind::Table, 77_777)), &world.contents[&known.content.unwrap()]).unwrap();
        faults::fail_after(after, true, 3);
        let built = Building::begin(&path, listing(&offer)).and_then(|mut building| {
            build(&mut building, &offer)?;
            building.finish()
        });
        let has_failed = faults::stop();
        assert!(built.is_err() || !has_failed);
        // Whatever there is of the new one, the old one is as it was.
        drop(directory);
        directory = Directory::open(&path, boot(0)).unwrap().0;
        assert!(is_sound(&directory));
        let mut building = Building::begin(&path, listing(&offer)).unwrap();
        let (done, all) = building.progress();
        fetched.insert(all - done);
        build(&mut building, &offer).unwrap();
        assert_eq!(building.progress(), (all, all));
        let built = building.finish().unwrap();
        assert_eq!(built.mark(), world.mark);
        let directory = directory.switch(built, &standing).unwrap();
        assert_eq!(directory.applied(), world.mark);
        assert_eq!(record::read_standing(&path).unwrap(), Some(standing));
        let mut copy = Copy { directory: Some(directory), path, _above: behind._above, ..Copy::new(&world, 3) };
        copy.check();
        copy.kill();
        copy.finish();
        if !has_failed {
            break;
        }
    }
    // What grows is always fetched anew.
    assert!(fetched.len() > 10, "it goes on with what was fetched: {fetched:?}");
}

#[test]
fn a_directory_that_is_damaged_before_it_takes_its_place_is_not_taken_for_what_it_should_be() {
    let world = World::new(8).run(60);
    let mut sibling = sibling(&world);
    let offer = sibling.directory().offer().unwrap();
    let behind = caught_up(&world, 5);
    let (path, _above) = (behind.path.clone(), behind._above);
    let mut building = Building::begin(&path, listing(&offer)).unwrap();
    build(&mut building, &offer).unwrap();
    let built = building.finish().unwrap();
    let new = names::new_directory(&path);
    let (manifest, len) =
        files_in(&new).unwrap().into_iter().find(|(file, _)| file.kind == FileKind::Manifest).unwrap();
    fs::File::options().write(true).open(path_of(&new, manifest)).unwrap().set_len(len - 1).unwrap();
    let switched = behind.directory.unwrap().switch(built, &Standing::founded()).map(drop);
    assert!(switched.is_err());
    let (_, found) = Directory::open(&path, boot(0)).unwrap();
    assert!(found.standing.is_some_and(|standing| !standing.is_whole));
}

#[test]
fn a_switch_is_finished_wherever_it_is_interrupted() {
    let world = World::new(8).run(60);
    let mut sibling = sibling(&world);
    let offer = sibling.directory().offer().unwrap();
    let mut seen = BTreeSet::new();
    for after in 0.. {
        let other = World::new(99).run(30);
        let behind = caught_up(&other, other.items.len());
        let (path, above) = (behind.path.clone(), behind._above);
        let directory = behind.directory.unwrap();
        let before = directory.applied();
        let mut building = Building::begin(&path, listing(&offer)).unwrap();
        build(&mut building, &offer).unwrap();
        let built = building.finish().unwrap();
        let standing = Standing { history: History::default().and(world.mark), ..Standing::founded() };
        let wals = other.files.iter().filter(|(file, bytes)| file.kind == FileKind::Wal && !bytes.is_empty()).count();
        faults::fail_after(after, true, 3);
        let switched = directory.switch(built, &standing).map(drop);
        let has_failed = faults::stop();
        assert!(switched.is_err() || !has_failed);
        let (directory, found) = Directory::open(&path, boot(0)).unwrap();
        seen.insert(found.at == world.mark);
        if found.at == world.mark {
            assert_eq!(found.standing, Some(standing));
            assert_eq!(directory.kept_aside().unwrap(), wals, "its tail is in no other copy");
            assert!(!names::old_directory(&path).exists() && !names::new_directory(&path).exists());
            let mut copy = Copy { directory: Some(directory), path, _above: above, ..Copy::new(&world, 3) };
            copy.check();
            copy.finish();
        } else {
            assert_eq!((found.at, found.standing), (before, None), "the old one");
            assert_eq!(open_store(&path).len(), other.ids as usize);
        }
        if !has_failed {
            break;
        }
    }
    assert_eq!(seen, BTreeSet::from([false, true]));
}

#[test]
fn what_is_fetched_for_a_new_directory_is_compared() {
    let world = World::new(8).run(60);
    let mut sibling = sibling(&world);
    let offer = sibling.directory().offer().unwrap();
    let above = tempfile::tempdir().unwrap();
    let path = above.path().join("store");
    let mut building = Building::begin(&path, listing(&offer)).unwrap();
    let mut has_refused = false;
    while let Some((file, offset, len)) = building.next() {
        let mut bytes = vec![0; len as usize];
        offer.open(file).unwrap().read_exact_at(&mut bytes, offset).unwrap();
        assert!(matches!(building.write(file, offset + 1, &bytes), Err(Error::Mismatch { .. })));
        if !has_refused
            && file.is_finished_once()
            && offer.files.iter().any(|of| of.file == file && of.content.is_some())
        {
            has_refused = true;
            bytes[0] ^= 1;
            assert!(matches!(building.write(file, offset, &bytes), Err(Error::Mismatch { .. })));
            assert_eq!(building.next(), Some((file, 0, len)), "it is fetched again");
            continue;
        }
        building.write(file, offset, &bytes).unwrap();
    }
    assert!(has_refused);
    let built = building.finish().unwrap();
    let (directory, _) = Directory::open(&path, boot(0)).unwrap();
    let directory = directory.switch(built, &Standing::default()).unwrap();
    let mut copy = Copy { directory: Some(directory), path, _above: above, ..Copy::new(&world, 3) };
    copy.check();
    copy.finish();
    // A finished file for another copy, or to repair this one.
    let table = name(FileKind::Table, *world.tables.keys().next().unwrap());
    assert!(copy.directory().open_finished(table).unwrap().is_some());
    assert!(copy.directory().open_finished(name(FileKind::Wal, world.wal)).unwrap().is_none());
    let want = Want { file: table, content: content_id(&world.files[&table]) };
    fs::write(copy.directory().temporary(&want), &world.files[&table]).unwrap();
    copy.directory().fetched(&want).unwrap();
    copy.finish();
}

proptest! {
    /// Whatever a listing says, it is refused or the same again; and a directory is begun or refused.
    #[test]
    fn mutated_listings_are_refused_or_sound(at in any::<prop::sample::Index>(), with in any::<[u8; 8]>(), how in 0..3) {
        let world = World::new(8).run(20);
        let files = world.files.iter().map(|(file, bytes)| {
            let content = file.is_finished_once().then(|| content_id(bytes));
            OfferedFile { file: *file, len: bytes.len() as u64, content }
        });
        let listing = Listing {
            mark: world.mark,
            clock_limit_ms: 5,
            files: files.collect(),
            pending: world.items[..3].to_vec(),
        };
        let mut bytes = listing.encode();
        prop_assert_eq!(Listing::decode(&bytes), Some(listing));
        let at = at.index(bytes.len());
        match how {
            0 => bytes[at] = with[0],
            1 => bytes.truncate(at),
            _ => drop(bytes.splice(at..at, with)),
        }
        if let Some(listing) = Listing::decode(&bytes) {
            prop_assert_eq!(listing.encode(), bytes);
            let above = tempfile::tempdir().unwrap();
            let begun = Building::begin(&above.path().join("store"), listing);
            let is_expected = matches!(begun, Ok(_) | Err(Error::Malformed { .. }));
            prop_assert!(is_expected);
        }
    }
}

#[test]
fn offered_names_are_those_of_the_directory() {
    let world = World::new(8).run(60);
    let mut copy = caught_up(&world, world.items.len());
    let offer = copy.directory().offer().unwrap();
    for offered in &offer.files {
        assert_eq!(offered.len, world.files[&offered.file].len() as u64);
        assert_eq!(parse(&copy.path, &path_of(&copy.path, offered.file)), Some(offered.file));
    }
    assert_eq!(offer.files.len(), world.files.len());
    let links: Vec<String> = names_in(&names::copy_directory(&copy.path)).unwrap();
    assert!(links.iter().any(|name| name.starts_with("offer-")));
    drop(offer);
    let left = names_in(&names::copy_directory(&copy.path)).unwrap();
    assert!(!left.iter().any(|name| name.starts_with("offer-")));
}

#[test]
fn a_table_is_linked_by_what_it_holds_whatever_its_number_and_not_once_it_was_changed() {
    let world = World::new(8).run(60);
    let mut copy = caught_up(&world, world.items.len());
    copy.finish();
    let (file, bytes) = world.files.iter().find(|(file, _)| file.kind == FileKind::Table).unwrap();
    let content = content_id(bytes);
    let to = copy._above.path().join("linked");
    assert!(copy.directory().link_table(content, &to).unwrap());
    assert_eq!(&fs::read(&to).unwrap(), bytes);
    // Of the same length and under the same number, and another one.
    let other = ContentId { hash: content.hash ^ 1, ..content };
    let elsewhere = copy._above.path().join("other");
    assert!(!copy.directory().link_table(other, &elsewhere).unwrap() && !elsewhere.exists());
    // The copy may lose it: whoever has the link has its bytes.
    let path = path_of(&copy.path, *file);
    fs::remove_file(&path).unwrap();
    assert_eq!(&fs::read(&to).unwrap(), bytes);
    assert!(!copy.directory().link_table(content, &elsewhere).unwrap());
    // Another file of the same name is not the one that was compared.
    fs::write(&path, bytes.iter().map(|byte| byte ^ 1).collect::<Vec<_>>()).unwrap();
    assert!(!copy.directory().link_table(content, &elsewhere).unwrap());
    // Nor is one of which somebody has found that it is not what it should be.
    fs::remove_file(&path).unwrap();
    fs::hard_link(&to, &path).unwrap();
    assert!(copy.directory().link_table(content, &elsewhere).unwrap());
    copy.directory().distrust(content);
    let third = copy._above.path().join("third");
    assert!(!copy.directory().link_table(content, &third).unwrap());
    // What it should hold is not what is there now, to whoever compares it or is offered it.
    assert_eq!(copy.directory().held().unwrap().finished.get(file), Some(&content));
    let offer = copy.directory().offer().unwrap();
    assert_eq!(offer.files.iter().find(|offered| offered.file == *file).unwrap().content, Some(content));
}

mod comparing;
