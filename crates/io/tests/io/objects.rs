//! Immutable files through a loss of power at every moment, errors at every step, and damage.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::numbers::Numbers;
use ecotone_io::objects::{
    Checksum, Crc32c, Object, ObjectDirectory, Summary, Unchecked, Unsealed, read_past_cache, read_whole, summary_of,
};
use ecotone_io::remote_files::RangedRead;
use ecotone_io::tap::{Tap, TapEvent, WriteTap};

fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut numbers = Numbers(seed);
    (0..bytes).map(|_| numbers.next() as u8).collect()
}

fn crc32c(bytes: &[u8]) -> u32 {
    let mut checksum = Crc32c::default();
    checksum.update(bytes);
    checksum.finish()
}

fn written(directory: &ObjectDirectory, name: &str, bytes: &[u8]) -> io::Result<Summary<u32>> {
    let mut object = directory.create::<Crc32c>(name)?;
    for piece in bytes.chunks(1000) {
        object.append(piece)?;
    }
    object.seal()
}

fn silent(path: &Path) -> ObjectDirectory {
    ObjectDirectory::new(path, Tap::SILENT)
}

/// A device that keeps what it was told to, and of names either what was synced or all.
#[derive(Clone, Default)]
struct Device {
    files: Vec<File>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
}

#[derive(Clone, Default)]
struct File {
    content: Vec<u8>,
    durable: Vec<u8>,
}

impl Device {
    fn change(&mut self, event: TapEvent<'_>) {
        match event {
            TapEvent::Created { path } => {
                self.files.push(File::default());
                self.names.insert(path.to_path_buf(), self.files.len() - 1);
            }
            TapEvent::Appended { path, offset, bytes } => {
                let content = &mut self.at(path).content;
                assert_eq!(content.len() as u64, offset, "objects are written from front to back");
                content.extend(bytes);
            }
            TapEvent::Truncated { path, len } => self.at(path).content.truncate(len as usize),
            TapEvent::Synced { path, len } => {
                let file = self.at(path);
                file.durable = file.content[..len as usize].to_vec();
            }
            TapEvent::Renamed { from, to } => {
                let file = self.names.remove(from).expect("has a name");
                self.names.insert(to.to_path_buf(), file);
            }
            TapEvent::Linked { from, to } => {
                let file = self.names[from];
                assert!(self.names.insert(to.to_path_buf(), file).is_none(), "a link replaces nothing");
            }
            TapEvent::Deleted { path } => _ = self.names.remove(path).expect("has a name"),
            TapEvent::DirectorySynced { path } => {
                self.durable_names.retain(|name, _| name.parent() != Some(path));
                let now = self.names.iter().filter(|(name, _)| name.parent() == Some(path));
                self.durable_names.extend(now.map(|(name, file)| (name.clone(), *file)));
            }
            TapEvent::Closed { .. } | TapEvent::DirectoryCreated { .. } => (),
            other => panic!("{other:?}"),
        }
    }

    fn at(&mut self, path: &Path) -> &mut File {
        &mut self.files[self.names[path]]
    }

    /// What a loss of power leaves: the device may have kept any names that were not synced.
    fn after_power_loss(&self, path: &Path) -> [Option<&[u8]>; 2] {
        [&self.durable_names, &self.names].map(|names| names.get(path).map(|file| &self.files[*file].durable[..]))
    }
}

/// Keeps the state of the device after each change.
#[derive(Default)]
struct History(Mutex<Vec<Device>>);

impl WriteTap for History {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        let mut states = self.0.lock().expect("no test panics in it");
        let mut next = states.last().cloned().unwrap_or_default();
        next.change(event);
        states.push(next);
        Ok(())
    }
}

impl History {
    fn len(&self) -> usize {
        self.0.lock().expect("no test panics in it").len()
    }
}

#[test]
fn a_loss_of_power_at_any_moment_takes_nothing_that_was_sealed_and_synced() {
    let root = tempfile::tempdir().expect("a directory");
    let history = Arc::new(History::default());
    let directory = |name: &str| ObjectDirectory::new(root.path().join(name), Tap::new(history.clone()));
    let (first, second) = (directory("first/objects"), directory("second"));
    first.make().expect("makes");
    second.make().expect("makes");
    let path = |directory: &ObjectDirectory, name: &str| directory.path().join(name);
    // From which change on, until the next one of the same name, a file is this, or not there.
    let mut promised: Vec<(usize, PathBuf, Option<Vec<u8>>)> = Vec::new();
    let one = content(1, 5000);
    written(&first, "one", &one).expect("writes");
    first.sync().expect("syncs");
    promised.push((history.len(), path(&first, "one"), Some(one.clone())));
    first.link("one", &second).expect("links");
    second.sync().expect("syncs");
    promised.push((history.len(), path(&second, "one"), Some(one.clone())));
    first.remove("one").expect("removes");
    first.sync().expect("syncs");
    promised.push((history.len(), path(&first, "one"), None));
    // By the name that the content gives, over one of the same name.
    for _ in 0..2 {
        let mut object = second.create::<Crc32c>("unfinished").expect("creates");
        object.append(&one).expect("appends");
        object.seal_as(&first, |crc| crc.to_string()).expect("seals");
    }
    first.sync().expect("syncs");
    let by_content = path(&first, &crc32c(&one).to_string());
    promised.push((history.len(), by_content.clone(), Some(one.clone())));
    // Small files that replace each other.
    let marks: Vec<Vec<u8>> = (2..6).map(|seed| content(seed, 100)).collect();
    let replaced = history.len();
    for mark in &marks {
        second.replace("MARK", "MARK.tmp", mark).expect("writes");
        second.sync().expect("syncs");
        promised.push((history.len(), path(&second, "MARK"), Some(mark.clone())));
    }
    // One that is given up is nowhere.
    let mut given_up = first.create::<Unchecked>("given up").expect("creates");
    given_up.append(b"some").expect("appends");
    drop(given_up);
    first.sync().expect("syncs");
    promised.push((history.len(), path(&first, "given up"), None));

    let states = history.0.lock().expect("no test panics in it");
    for (index, (from, path, expected)) in promised.iter().enumerate() {
        let until = promised[index + 1..].iter().find(|(_, other, _)| other == path);
        let until = until.map_or(states.len(), |(until, ..)| *until - 1);
        for (at, state) in states[..until].iter().enumerate().skip(from - 1) {
            let [strict, _] = state.after_power_loss(path);
            // While it is being replaced it may be the next one.
            let fits = strict == expected.as_deref()
                || path.ends_with("MARK") && marks.iter().any(|mark| strict == Some(mark));
            assert!(fits, "after change {at} {} is lost", path.display());
        }
    }
    for state in &states[replaced..] {
        for found in state.after_power_loss(&path(&second, "MARK")).into_iter().flatten() {
            assert!(marks.iter().any(|mark| mark == found), "it is never one in part");
        }
    }
    for state in states.iter() {
        for found in state.after_power_loss(&by_content).into_iter().flatten() {
            assert_eq!(found, one, "what is named by its content holds that");
        }
    }
    // The tap was told of all there is.
    let last = states.last().expect("there are changes");
    for (path, file) in &last.names {
        assert_eq!(fs::read(path).expect("is there"), last.files[*file].content);
    }
    let there: usize = [&first, &second].iter().map(|directory| directory.list().expect("lists").len()).sum();
    assert_eq!(there, last.names.len());
}

/// Refuses one change.
struct Refuses(AtomicUsize);

impl WriteTap for Refuses {
    fn record(&self, _: TapEvent<'_>) -> io::Result<()> {
        match self.0.fetch_sub(1, Ordering::Relaxed) {
            0 => Err(ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }
}

#[test]
fn an_error_at_any_step_leaves_no_object_that_is_not_whole() {
    let bytes = content(9, 3500);
    let mut errors = 0;
    for step in 0.. {
        let root = tempfile::tempdir().expect("a directory");
        let tap = Tap::new(Arc::new(Refuses(AtomicUsize::new(step))));
        let directory = ObjectDirectory::new(root.path(), tap);
        match written(&directory, "object", &bytes) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::StorageFull),
            Ok(summary) => {
                assert_eq!(summary, Summary { bytes: 3500, checksum: crc32c(&bytes) });
                break;
            }
        }
        errors += 1;
        assert!(silent(root.path()).list().expect("lists").is_empty(), "step {step}");
        // The name is free.
        written(&directory, "object", &bytes).expect("writes");
    }
    assert_eq!(errors, 7, "created, four appends, synced, closed");
    // After an error it takes no more, though the file system would.
    let root = tempfile::tempdir().expect("a directory");
    let directory = ObjectDirectory::new(root.path(), Tap::new(Arc::new(Refuses(AtomicUsize::new(1)))));
    let mut object = directory.create::<Unchecked>("object").expect("creates");
    object.append(b"lost").expect_err("is refused");
    object.append(b"more").expect_err("takes no more");
    object.seal().expect_err("is not whole");
    assert!(directory.list().expect("lists").is_empty());
}

#[test]
fn a_name_is_given_once_and_leads_nowhere_else() {
    let root = tempfile::tempdir().expect("a directory");
    let (first, second) = (silent(&root.path().join("first")), silent(&root.path().join("second")));
    first.make().expect("makes");
    second.make().expect("makes");
    first.make().expect("is there");
    written(&first, "object", b"first").expect("writes");
    written(&second, "object", b"second").expect("writes");
    let is_there = |error: io::Error| error.kind() == ErrorKind::AlreadyExists;
    assert!(written(&first, "object", b"other").is_err_and(is_there));
    assert!(first.link("object", &second).is_err_and(is_there));
    assert_eq!(fs::read(second.path().join("object")).expect("reads"), b"second");
    assert_eq!(fs::read(first.path().join("object")).expect("reads"), b"first");
    for name in ["", ".", "..", "/etc/passwd", "../second/object", "a/b", "object/", "./object"] {
        let refused = |error: io::Error| error.kind() == ErrorKind::InvalidInput;
        assert!(first.create::<Unchecked>(name).map(drop).is_err_and(refused), "{name:?}");
        assert!(first.open(name).map(drop).is_err_and(refused), "{name:?}");
        assert!(first.remove(name).is_err_and(refused), "{name:?}");
    }
    fs::write(root.path().join("file"), "in the way").expect("writes");
    silent(&root.path().join("file")).make().expect_err("is no directory");
    silent(&root.path().join("file/below")).make().expect_err("is no directory");
}

#[test]
fn what_is_read_is_what_was_written_by_range_and_whole() {
    let root = tempfile::tempdir().expect("a directory");
    let directory = silent(root.path());
    let bytes = content(3, 100_001);
    let summary = written(&directory, "object", &bytes).expect("writes");
    let object = directory.open("object").expect("opens");
    assert_eq!(object.len(), 100_001);
    for (offset, len) in [(0, 10), (4095, 4097), (99_999, 10), (100_001, 5), (u64::MAX, 1), (0, 200_000)] {
        let mut found = vec![0; len];
        let read = object.read_at(offset, &mut found).expect("reads");
        let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        assert_eq!(found[..read], bytes[begin..(begin + len).min(bytes.len())]);
        assert_eq!(read_past_cache(&root.path().join("object"), begin as u64, read).expect("reads"), found[..read]);
    }
    for piece_bytes in [1, 1000, 1 << 20] {
        let mut found = Vec::new();
        let read = read_whole::<Crc32c, io::Error>(&object, piece_bytes, |piece| {
            found.extend(piece);
            Ok(())
        });
        assert_eq!((read.expect("reads"), &found), (summary, &bytes));
    }
    // A copy of it, and of its begin.
    let mut copy = directory.create::<Crc32c>("copy").expect("creates");
    copy.append_from(&object, u64::MAX).expect("copies");
    assert_eq!(copy.seal().expect("seals"), summary);
    let mut begin = directory.create::<Crc32c>("begin").expect("creates");
    begin.append_from(&object, 70_000).expect("copies");
    assert_eq!(begin.seal().expect("seals"), Summary { bytes: 70_000, checksum: crc32c(&bytes[..70_000]) });
    // What another has written.
    fs::write(root.path().join("found"), &bytes).expect("writes");
    let adopted = directory.adopt("found").expect("seals");
    assert_eq!(summary_of::<Crc32c>(&adopted).expect("reads"), summary);
    let empty = directory.create::<Crc32c>("empty").expect("creates").seal().expect("seals");
    assert_eq!(empty, summary_of::<Crc32c>(&directory.open("empty").expect("opens")).expect("reads"));
}

#[test]
fn damage_is_found_and_a_short_file_is_an_error() {
    let root = tempfile::tempdir().expect("a directory");
    let directory = silent(root.path());
    let bytes = content(4, 50_000);
    let summary = written(&directory, "object", &bytes).expect("writes");
    let path = root.path().join("object");
    let found = |path: &Path| Object::open(path).and_then(|object| summary_of::<Crc32c>(&object));
    for at in [0, 4096, 25_000, 49_999] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        fs::write(&path, damaged).expect("writes");
        assert_ne!(found(&path).expect("reads"), summary);
    }
    fs::write(&path, &bytes).expect("writes");
    assert_eq!(found(&path).expect("reads"), summary);
    let open = directory.open("object").expect("opens");
    fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(40_000)).expect("cuts");
    assert_ne!(found(&path).expect("reads"), summary);
    let ends = |error: io::Error| error.kind() == ErrorKind::UnexpectedEof;
    assert!(summary_of::<Crc32c>(&open).is_err_and(ends));
    assert!(open.read_at(39_999, &mut [0; 2]).is_err_and(ends));
    let mut copy = directory.create::<Unchecked>("copy").expect("creates");
    assert!(copy.append_from(&open, u64::MAX).is_err_and(ends));
    drop(copy);
    assert_eq!(directory.list().expect("lists"), [("object".to_owned(), 40_000)]);
}

#[test]
fn what_is_removed_can_be_read_by_who_has_it_open() {
    let root = tempfile::tempdir().expect("a directory");
    let directory = silent(root.path());
    let bytes = content(5, 10_000);
    let summary = written(&directory, "object", &bytes).expect("writes");
    let open = directory.open("object").expect("opens");
    directory.remove("object").expect("removes");
    assert_eq!(summary_of::<Crc32c>(&open).expect("reads"), summary);
    let is_gone = |error: io::Error| error.kind() == ErrorKind::NotFound;
    assert!(directory.open("object").map(drop).is_err_and(is_gone));
    assert!(directory.remove("object").is_err_and(is_gone));
    // Its name can be another's.
    written(&directory, "object", b"other").expect("writes");
    assert_eq!(summary_of::<Crc32c>(&open).expect("reads"), summary);
}

#[test]
fn what_stays_is_gone_on_with_as_far_as_it_is_right() {
    let root = tempfile::tempdir().expect("a directory");
    let directory = silent(root.path());
    let bytes = content(6, 10_000);
    let resumed = |right: usize| {
        Unsealed::<Crc32c>::resume::<io::Error>(&directory, "object", 10_000, 1000, |at, piece| {
            let at = at as usize;
            Ok(at + piece.len() <= right && piece == &bytes[at..at + piece.len()])
        })
        .expect("resumes")
    };
    let mut object = resumed(10_000);
    assert_eq!(object.bytes(), 0);
    object.append(&bytes[..4500]).expect("appends");
    drop(object);
    assert_eq!(resumed(10_000).bytes(), 4500);
    assert_eq!(resumed(2000).bytes(), 2000);
    let mut object = resumed(10_000);
    object.append(&bytes[2000..]).expect("appends");
    let summary = object.seal_as(&directory, |crc| format!("{crc:08x}")).expect("seals");
    assert_eq!(summary, Summary { bytes: 10_000, checksum: crc32c(&bytes) });
    assert_eq!(directory.list().expect("lists"), [(format!("{:08x}", summary.checksum), 10_000)]);
    // What a process left that was killed is lost where it is begun anew.
    let kept = directory.create::<Unchecked>("kept").expect("creates").stays();
    drop(kept);
    assert!(directory.create::<Unchecked>("kept").is_err());
    let mut over = directory.create_over::<Crc32c>("kept").expect("creates");
    over.append(b"new").expect("appends");
    assert_eq!(over.seal().expect("seals"), Summary { bytes: 3, checksum: crc32c(b"new") });
}
