//! The write tap as replication uses it: a store is mirrored into a second directory that opens
//! after every prefix of what the tap saw, with everything acknowledged up to that point.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::common::{Model, Numbers, content, key, small_store};
use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_rocks::filesystem::{FileSystemHooks, hooked_env};
use rust_rocksdb::{DB, Options, WriteBatch, WriteOptions};

/// A tap event that owns what it names; names are without directory.
#[derive(Debug, Clone)]
enum Change {
    Created(String),
    Appended(String, u64, Vec<u8>),
    Truncated(String, u64),
    Synced(String, u64),
    Closed(String),
    Renamed(String, String),
    Deleted(String),
    /// Not the tap's: write number n was acknowledged.
    Acknowledged(u64),
    /// Not the tap's: write number n begins.
    Begun(u64),
}

/// Records all changes of a store with one flat directory.
#[derive(Default)]
struct Recorder(Mutex<Vec<Change>>);

impl Recorder {
    fn push(&self, change: Change) {
        self.0.lock().expect("not poisoned").push(change);
    }
}

fn name(path: &Path) -> String {
    path.file_name().expect("a file has a name").to_string_lossy().into_owned()
}

impl WriteTap for Recorder {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        self.push(match event {
            TapEvent::Created { path } => Change::Created(name(path)),
            TapEvent::Appended { path, offset, bytes } => Change::Appended(name(path), offset, bytes.to_vec()),
            TapEvent::Truncated { path, len } => Change::Truncated(name(path), len),
            TapEvent::Synced { path, len } => Change::Synced(name(path), len),
            TapEvent::Closed { path, .. } => Change::Closed(name(path)),
            TapEvent::Renamed { from, to } => Change::Renamed(name(from), name(to)),
            TapEvent::Deleted { path } => Change::Deleted(name(path)),
            TapEvent::DirectoryCreated { .. } | TapEvent::DirectorySynced { .. } => return Ok(()),
            TapEvent::Linked { .. } | TapEvent::DirectoryDeleted { .. } | TapEvent::SyncBegins { .. } => {
                return Err(io::Error::other("this workload links nothing and deletes no directory"));
            }
        });
        Ok(())
    }
}

/// The one key that names the last write in a store.
const LAST_WRITE: &[u8] = b"last-write";

/// Changes the options of a workload.
type Variant = fn(&mut Options);

fn mirrored_options(recorder: &Arc<Recorder>, variant: Variant, maps_wals: bool) -> Options {
    let mut options = small_store();
    options.set_recycle_log_file_num(0);
    variant(&mut options);
    let hooks = FileSystemHooks { tap: Some(recorder.clone()), maps_wals, ..FileSystemHooks::default() };
    options.set_env(&hooked_env(hooks).expect("an environment"));
    options
}

/// Writes, deletes, flushes, compacts and reopens. Returns what the store held after each write.
fn run_workload(
    directory: &Path,
    recorder: &Arc<Recorder>,
    writes: u64,
    seed: u64,
    variant: Variant,
    maps_wals: bool,
) -> Vec<Model> {
    let mut numbers = Numbers(seed);
    let mut models = vec![Model::new()];
    let mut db = DB::open(&mirrored_options(recorder, variant, maps_wals), directory).expect("opens");
    for write in 1..=writes {
        let mut model = models[models.len() - 1].clone();
        let mut batch = WriteBatch::default();
        for _ in 0..=numbers.below(3) {
            let key = key(numbers.below(40));
            if numbers.below(4) == 0 {
                batch.delete(&key);
                model.remove(&key);
            } else {
                let len = numbers.below(300) as usize;
                let value = numbers.bytes(len);
                batch.put(&key, &value);
                model.insert(key, value);
            }
        }
        batch.put(LAST_WRITE, write.to_string());
        model.insert(LAST_WRITE.to_vec(), write.to_string().into_bytes());
        let mut options = WriteOptions::default();
        options.set_sync(numbers.below(3) == 0);
        recorder.push(Change::Begun(write));
        db.write_opt(&batch, &options).expect("writes");
        recorder.push(Change::Acknowledged(write));
        models.push(model);
        if write % 17 == 0 {
            db.flush().expect("flushes");
        }
        if write % 40 == 0 {
            db.compact_range(None::<&[u8]>, None::<&[u8]>);
        }
        if write % 50 == 0 {
            drop(db);
            db = DB::open(&mirrored_options(recorder, variant, maps_wals), directory).expect("reopens");
        }
    }
    models
}

fn write_at(path: &Path, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).expect("opens");
    file.write_all_at(bytes, offset).expect("writes");
}

/// A second directory, kept by what the tap tells.
trait Mirror {
    fn apply(&mut self, change: &Change);
}

/// Does at once what the store did: the state that a crash of the process would leave.
struct Literal(PathBuf);

impl Mirror for Literal {
    fn apply(&mut self, change: &Change) {
        let at = |name: &String| self.0.join(name);
        match change {
            Change::Created(name) => drop(std::fs::File::create(at(name)).expect("creates")),
            Change::Appended(name, offset, bytes) => write_at(&at(name), *offset, bytes),
            Change::Truncated(name, len) => {
                let file = std::fs::OpenOptions::new().write(true).open(at(name)).expect("opens");
                file.set_len(*len).expect("truncates");
            }
            Change::Renamed(from, to) => std::fs::rename(at(from), at(to)).expect("renames"),
            Change::Deleted(name) => std::fs::remove_file(at(name)).expect("deletes"),
            Change::Synced(..) | Change::Closed(_) | Change::Acknowledged(_) | Change::Begun(_) => {}
        }
    }
}

/// Sends what a replica is sent, and in its order: WAL bytes at once, tables when complete, a
/// MANIFEST up to its last sync, other files when complete or renamed, deletions `delay` changes
/// later.
struct Ordered {
    directory: PathBuf,
    /// What files hold that are not sent yet, or not wholly.
    held: BTreeMap<String, Vec<u8>>,
    /// How much of each MANIFEST is sent.
    sent: BTreeMap<String, u64>,
    deletions: Vec<(usize, String)>,
    changes: usize,
    delay: usize,
}

impl Ordered {
    fn new(directory: PathBuf, delay: usize) -> Self {
        Self { directory, held: BTreeMap::new(), sent: BTreeMap::new(), deletions: Vec::new(), changes: 0, delay }
    }

    fn send(&mut self, name: &str) {
        let bytes = &self.held[name];
        std::fs::write(self.directory.join(name), bytes).expect("writes");
    }
}

impl Mirror for Ordered {
    fn apply(&mut self, change: &Change) {
        self.changes += 1;
        let at = |name: &String| self.directory.join(name);
        match change {
            Change::Created(name) if name.ends_with(".log") => drop(std::fs::File::create(at(name)).expect("creates")),
            Change::Created(name) => drop(self.held.insert(name.clone(), Vec::new())),
            Change::Appended(name, offset, bytes) if name.ends_with(".log") => write_at(&at(name), *offset, bytes),
            Change::Appended(name, offset, bytes) => {
                let held = self.held.get_mut(name).expect("created before");
                assert_eq!(*offset, held.len() as u64, "files only grow at their end");
                held.extend_from_slice(bytes);
            }
            Change::Synced(name, len) if name.starts_with("MANIFEST") => {
                let sent = self.sent.entry(name.clone()).or_default();
                let fresh = &self.held[name][*sent as usize..*len as usize];
                write_at(&self.directory.join(name), *sent, fresh);
                *sent = *len;
            }
            Change::Closed(name) if name.ends_with(".sst") => self.send(name),
            Change::Renamed(from, to) => {
                let bytes = self.held.remove(from).expect("created before");
                self.held.insert(to.clone(), bytes);
                self.send(to);
            }
            Change::Deleted(name) => self.deletions.push((self.changes + self.delay, name.clone())),
            // A reopened store cuts its last WAL to what is valid in it.
            Change::Truncated(name, len) => {
                assert!(name.ends_with(".log"), "nothing else is cut: {name}");
                let file = std::fs::OpenOptions::new().write(true).open(at(name)).expect("opens");
                file.set_len(*len).expect("truncates");
            }
            Change::Synced(..) | Change::Closed(_) | Change::Acknowledged(_) | Change::Begun(_) => {}
        }
        let due = self.deletions.iter().take_while(|(when, _)| *when <= self.changes).count();
        for (_, name) in self.deletions.drain(..due) {
            self.held.remove(&name);
            // A file that was created and deleted without being sent is not there.
            let _ = std::fs::remove_file(self.directory.join(name));
        }
    }
}

/// Opens a copy of `directory` as a store of its own and returns what it holds.
fn open_copy(directory: &Path) -> Model {
    let copy = tempfile::tempdir().expect("a directory");
    crate::common::copy_directory(directory, copy.path());
    let mut options = small_store();
    options.create_if_missing(false);
    let db = DB::open(&options, copy.path()).expect("a prefix opens");
    content(&db)
}

/// Applies all changes and opens the mirror after each one. Before CURRENT is there, there is no
/// store yet.
fn check_every_prefix(changes: &[Change], models: &[Model], mirror: &mut dyn Mirror, directory: &Path) -> usize {
    let (mut begun, mut acknowledged, mut opened) = (0, 0, 0);
    for (position, change) in changes.iter().enumerate() {
        mirror.apply(change);
        match change {
            Change::Begun(write) => begun = *write,
            Change::Acknowledged(write) => acknowledged = *write,
            _ => {}
        }
        if !directory.join("CURRENT").exists() {
            assert_eq!(acknowledged, 0, "nothing is acknowledged before the store exists");
            continue;
        }
        let found = open_copy(directory);
        let last = found.get(LAST_WRITE).map_or(0, |text| String::from_utf8_lossy(text).parse().expect("a number"));
        assert!(
            (acknowledged..=begun).contains(&last),
            "after change {position} ({change:?}) write {last} is the last; {acknowledged} was acknowledged"
        );
        assert_eq!(found, models[last as usize], "after change {position} ({change:?})");
        opened += 1;
    }
    opened
}

fn recorded(writes: u64, seed: u64) -> (Vec<Change>, Vec<Model>) {
    let directory = tempfile::tempdir().expect("a directory");
    let recorder = Arc::new(Recorder::default());
    let models = run_workload(directory.path(), &recorder, writes, seed, |_| (), seed.is_multiple_of(2));
    let changes = std::mem::take(&mut *recorder.0.lock().expect("not poisoned"));
    // The info log is no part of the store.
    let of_log = |name: &String| name.starts_with("LOG");
    let changes = changes
        .into_iter()
        .filter(|change| match change {
            Change::Created(name)
            | Change::Appended(name, ..)
            | Change::Truncated(name, _)
            | Change::Synced(name, _)
            | Change::Closed(name)
            | Change::Renamed(name, _)
            | Change::Deleted(name) => !of_log(name),
            Change::Acknowledged(_) | Change::Begun(_) => true,
        })
        .collect();
    (changes, models)
}

#[test]
fn a_literal_mirror_opens_after_every_change() {
    let (changes, models) = recorded(102, 1);
    let mirror = tempfile::tempdir().expect("a directory");
    let opened = check_every_prefix(&changes, &models, &mut Literal(mirror.path().to_owned()), mirror.path());
    assert!(opened > 300, "{opened} prefixes of {} changes were opened", changes.len());
}

#[test]
fn a_mirror_in_the_order_of_replication_opens_after_every_change() {
    for delay in [0, 7, usize::MAX / 2] {
        let (changes, models) = recorded(60, 2);
        let mirror = tempfile::tempdir().expect("a directory");
        let mut ordered = Ordered::new(mirror.path().to_owned(), delay);
        let opened = check_every_prefix(&changes, &models, &mut ordered, mirror.path());
        assert!(opened > 150, "{opened} prefixes of {} changes were opened", changes.len());
    }
}

#[test]
fn the_tap_sees_every_byte_of_every_file() {
    let variants: [(&str, Variant); 5] = [
        ("plain", |_| ()),
        ("recycled WALs", |options| options.set_recycle_log_file_num(2)),
        ("direct IO", |options| options.set_use_direct_io_for_flush_and_compaction(true)),
        ("small syncs on the way", |options| {
            options.set_bytes_per_sync(4096);
            options.set_wal_bytes_per_sync(1024);
        }),
        ("reused MANIFEST", |options| options.set_reuse_manifest_on_open(true)),
    ];
    for ((name_of_variant, variant), maps_wals) in variants.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let directory = tempfile::tempdir().expect("a directory");
        let recorder = Arc::new(Recorder::default());
        run_workload(directory.path(), &recorder, 120, 3, variant, maps_wals);
        let mirror = tempfile::tempdir().expect("a directory");
        let mut literal = Literal(mirror.path().to_owned());
        for change in recorder.0.lock().expect("not poisoned").iter() {
            literal.apply(change);
        }
        let files = |path: &Path| -> BTreeMap<String, Vec<u8>> {
            std::fs::read_dir(path)
                .expect("lists")
                .map(|entry| entry.expect("lists").path())
                .map(|path| (name(&path), std::fs::read(&path).expect("reads")))
                .collect()
        };
        let (original, mirrored) = (files(directory.path()), files(mirror.path()));
        assert_eq!(original.keys().collect::<Vec<_>>(), mirrored.keys().collect::<Vec<_>>(), "{name_of_variant}");
        for (name, bytes) in &original {
            let same = bytes.iter().zip(&mirrored[name]).take_while(|(a, b)| a == b).count();
            let (len, mirrored) = (bytes.len(), mirrored[name].len());
            assert!(
                same == len && same == mirrored,
                "{name} with {name_of_variant}: {same} of {len} and {mirrored} bytes"
            );
        }
    }
}
