//! A source that is made up, and a folder of backups through everything that may happen to it.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::copy::{Copying, Known, ROUNDS};
use super::repository::Repository;
use super::*;

/// A store whose files are in memory: path, content, and a number that is another for each content
/// that was written.
#[derive(Default)]
pub(super) struct Made {
    pub(super) lineage: String,
    pub(super) files: BTreeMap<String, (Vec<u8>, u64)>,
    /// Bytes that may still be read before it fails.
    pub(super) left: Option<u64>,
    pub(super) read_bytes: u64,
    hashed_bytes: u64,
    /// How often it was asked to be kept.
    pub(super) kept: u64,
    pub(super) ended: Vec<bool>,
}

/// Bytes that no other seed gives.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(byte).take(bytes).collect()
}

impl Made {
    pub(super) fn new() -> Self {
        let mut made = Self { lineage: "one".into(), ..Self::default() };
        made.write("CURRENT", 1, 16);
        made.write("STORE", 2, 40);
        made
    }

    pub(super) fn write(&mut self, path: &str, seed: u64, bytes: usize) {
        let stamp = self.files.values().map(|(_, stamp)| *stamp).max().unwrap_or(0) + 1;
        self.files.insert(path.into(), (noise(seed, bytes), stamp));
    }

    /// All files are new ones with the same content, as in a store that was restored.
    pub(super) fn is_restored(&mut self) {
        self.files.values_mut().for_each(|(_, stamp)| *stamp += 1_000_000);
    }

    fn bytes(&self) -> u64 {
        self.files.values().map(|(content, _)| content.len() as u64).sum()
    }
}

impl Source for Made {
    fn begin(&mut self) -> Result<Begun> {
        let files = self.files.iter().map(|(path, (content, stamp))| SourceFile {
            path: path.clone(),
            bytes: content.len() as u64,
            stamp: stamp.to_string(),
        });
        Ok(Begun { store: self.lineage.clone(), time_ms: 1_795_832_210_000, position: None, files: files.collect() })
    }

    fn read(
        &mut self,
        file: &SourceFile,
        from: u64,
        limiter: &mut Limiter<'_>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        for piece in self.files[&file.path].0[from as usize..].chunks(10_000) {
            limiter.wait_for(piece.len() as u64)?;
            if let Some(left) = &mut self.left {
                *left = left.checked_sub(piece.len() as u64).ok_or(BackupError::Gone("it is gone".into()))?;
            }
            self.read_bytes += piece.len() as u64;
            take(piece)?;
        }
        Ok(())
    }

    fn hash(&mut self, file: &SourceFile, from: u64, bytes: u64) -> Result<String> {
        self.hashed_bytes += bytes;
        Ok(sha256(&self.files[&file.path].0[from as usize..][..bytes as usize]))
    }

    fn keep(&mut self) -> Result<()> {
        self.kept += 1;
        Ok(())
    }

    fn end(&mut self, is_completed: bool) -> Result<()> {
        self.ended.push(is_completed);
        Ok(())
    }
}

pub(super) const ALL: BackupOptions = BackupOptions { limit_bytes_per_s: None, keep: None };

pub(super) fn make(directory: &Path, made: &mut Made, options: BackupOptions) -> Result<BackupReport> {
    (made.read_bytes, made.hashed_bytes) = (0, 0);
    back_up(directory, made, options, &|| true, &mut |_| {})
}

fn is_sound(directory: &Path) -> bool {
    verify(directory, None, &mut |_| {}).unwrap().is_sound()
}

/// Restores a backup into a new folder, and says what its store holds.
fn restored(directory: &Path, backup: &str) -> BTreeMap<String, Vec<u8>> {
    let to = tempfile::tempdir().unwrap();
    restore(directory, Some(backup), &to.path().join("new"), &mut |_| {}).unwrap();
    let store = to.path().join("new/store");
    let (mut found, mut folders) = (BTreeMap::new(), vec![store.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(&store).unwrap().display().to_string();
                found.insert(name, fs::read(path).unwrap());
            }
        }
    }
    assert!(fs::read_dir(to.path().join("new")).unwrap().count() == 1, "nothing but the store");
    found
}

fn contents(made: &Made) -> BTreeMap<String, Vec<u8>> {
    made.files.iter().map(|(path, (content, _))| (path.clone(), content.clone())).collect()
}

pub(super) fn objects(directory: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> = fs::read_dir(directory.join("objects")).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

#[test]
fn only_what_is_new_is_read_and_the_same_content_lies_there_once() {
    let directory = tempfile::tempdir().unwrap();
    let (path, mut made) = (directory.path().join("backups"), Made::new());
    made.write("000001.sst", 10, 100_000);
    made.write("values/000001.segment", 11, 300_000);
    let first = make(&path, &mut made, ALL).unwrap();
    assert_eq!((first.new_bytes, made.read_bytes), (made.bytes(), made.bytes()));
    assert_eq!(make(&path, &mut made, ALL).unwrap().new_bytes, 0);
    made.write("000002.sst", 12, 50_000);
    // The content of another file, and too short to be compared.
    made.write("MANIFEST-000005", 1, 16);
    let third = make(&path, &mut made, ALL).unwrap();
    assert_eq!((third.new_files, third.new_bytes, made.read_bytes), (2, 50_016, 50_016));
    assert_eq!(objects(&path).len(), 5);
    // The same store elsewhere: long files are compared, and short ones read.
    made.is_restored();
    let fourth = make(&path, &mut made, ALL).unwrap();
    assert_eq!(made.read_bytes, 50_000 + 16 + 16 + 40, "{fourth:?}");
    assert_eq!((fourth.compared_bytes, made.hashed_bytes), (400_000, 400_000));
    assert_eq!(objects(&path).len(), 5);
    // One of the same length that differs in its last byte is another.
    let (content, stamp) = made.files.get_mut("values/000001.segment").unwrap();
    *content.last_mut().unwrap() ^= 1;
    *stamp += 1;
    assert_eq!(make(&path, &mut made, ALL).unwrap().new_bytes, 300_000);
    assert_eq!(made.ended, [true; 5]);
    assert!(is_sound(&path));
    for entry in list(&path).unwrap() {
        let manifest = entry.manifest.unwrap();
        assert_eq!(restored(&path, &entry.id).len(), manifest.files.len());
    }
    let last = list(&path).unwrap().pop().unwrap().id;
    assert_eq!(restored(&path, &last), contents(&made));
}

#[test]
fn a_source_is_asked_to_be_kept_while_what_is_there_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let (path, mut made) = (directory.path(), Made::new());
    for number in 0..2 * ROUNDS {
        made.write(&format!("{number:06}.sst"), number, 3_000 + number as usize);
    }
    make(path, &mut made, ALL).unwrap();
    let repository = Repository::create_or_open(path).unwrap();
    let begun = made.begin().unwrap();
    let mut known = Known::read(&repository, "one").unwrap();
    made.read_bytes = 0;
    // As if each took longer than a server waits; and at a rate at which one does not.
    for (asks_every, is_asked) in [(Duration::ZERO, true), (Duration::MAX, false)] {
        made.kept = 0;
        let mut limiter = Limiter::new(None, &|| true);
        let mut nothing = |_| {};
        let mut copying = Copying::new(&repository, &mut made, &mut limiter, &mut known, "", &begun, &mut nothing);
        copying.asks_every = asks_every;
        copying.all(&begun.files).unwrap();
        assert_eq!((made.kept > 0, made.read_bytes), (is_asked, 0));
    }
}

#[test]
fn what_was_cut_short_anywhere_is_gone_on_with() {
    let mut made = Made::new();
    made.write("000001.sst", 10, 95_000);
    made.write("000002.sst", 11, 95_000);
    let all = made.bytes();
    for left in (0..all + 20_000).step_by(7_919) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        made.left = Some(left);
        let Err(error) = make(path, &mut made, ALL) else {
            assert!(left >= all);
            continue;
        };
        assert!(error.to_string().contains("it is gone"), "{error}");
        assert_eq!(made.ended.pop(), Some(false));
        assert!(list(path).unwrap().is_empty(), "what is not complete is no backup");
        let came = made.read_bytes;
        made.left = None;
        // What has come may have been damaged since, or be longer than it should be.
        let partial = fs::read_dir(path.join("partial")).unwrap().map(|entry| entry.unwrap().path());
        let partial = partial
            .filter(|path| path.file_name().unwrap() != "KNOWN")
            .max_by_key(|path| fs::metadata(path).unwrap().len());
        let mut damaged = 0;
        if let Some(partial) = partial.filter(|_| left % 2 == 1) {
            let mut content = fs::read(&partial).unwrap();
            damaged = content.len() as u64;
            content.push(7);
            content[0] ^= 1;
            fs::write(&partial, content).unwrap();
        }
        let report = make(path, &mut made, ALL).unwrap();
        assert_eq!(report.new_bytes, all - (came - damaged), "{left} bytes had come, {damaged} of them damaged");
        assert_eq!(restored(path, &report.id), contents(&made));
        assert_eq!(fs::read_dir(path.join("partial")).unwrap().count(), 0);
        assert!(is_sound(path));
    }
}

#[test]
fn who_ends_it_in_the_middle_leaves_what_was_there() {
    let directory = tempfile::tempdir().unwrap();
    let (path, mut made) = (directory.path(), Made::new());
    let first = make(path, &mut made, ALL).unwrap();
    made.write("000001.sst", 10, 100_000);
    let asked = Cell::new(0);
    let goes_on = || asked.replace(asked.get() + 1) < 5;
    let ended = back_up(path, &mut made, ALL, &goes_on, &mut |_| {});
    assert!(matches!(ended, Err(BackupError::Ended)), "{ended:?}");
    assert_eq!(list(path).unwrap().len(), 1);
    assert!(is_sound(path));
    restored(path, &first.id);
}

#[test]
fn old_backups_go_and_nothing_that_is_needed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (mut made, mut other) = (Made::new(), Made::new());
    other.lineage = "other".into();
    other.write("other", 99, 5000);
    make(path, &mut other, ALL).unwrap();
    let options = BackupOptions { keep: Some(3), ..ALL };
    let mut states = Vec::new();
    for round in 0..12_u64 {
        made.write(&format!("{:06}.sst", round % 5), 100 + round, 1000 + round as usize);
        // Two files of the same content, one of which goes sooner.
        made.write(&format!("values/{}.segment", round % 2), 500 + round / 4, 70_000);
        let report = make(path, &mut made, options).unwrap();
        states.push((report.id, contents(&made)));
        assert_eq!((report.removed_backups, report.not_removed), (u64::from(round >= 3), None));
        assert!(is_sound(path));
        let there: Vec<String> = list(path).unwrap().into_iter().map(|entry| entry.id).collect();
        assert_eq!(there.len(), 1 + states.len().min(3), "that of the other store stays");
        for (id, state) in states.iter().rev().take(3) {
            assert_eq!(&restored(path, id), state);
        }
        assert_eq!(restored(path, &there[0]), contents(&other));
        let report = verify(path, None, &mut |_| {}).unwrap();
        assert_eq!((report.unneeded_objects, report.objects), (0, objects(path).len() as u64));
    }
    // What nobody can read is not judged: nothing goes while it is there.
    let first = path.join("backups").join(&list(path).unwrap()[1].id).join("MANIFEST");
    let whole = fs::read(&first).unwrap();
    fs::write(&first, &whole[..whole.len() / 2]).unwrap();
    let before = objects(path).len();
    let report = make(path, &mut made, BackupOptions { keep: Some(1), ..ALL }).unwrap();
    assert!(report.not_removed.unwrap().contains(&first.display().to_string()));
    assert_eq!((list(path).unwrap().len(), objects(path).len()), (5, before));
    assert!(!is_sound(path));
    fs::write(&first, whole).unwrap();
    let report = make(path, &mut made, BackupOptions { keep: Some(1), ..ALL }).unwrap();
    assert_eq!((report.removed_backups, list(path).unwrap().len()), (4, 2));
    assert!(is_sound(path));
    assert_eq!(
        (restored(path, &report.id), restored(path, &list(path).unwrap()[0].id)),
        (contents(&made), contents(&other))
    );
}

#[test]
fn damage_is_found_named_and_never_restored() {
    let directory = tempfile::tempdir().unwrap();
    let (path, mut made) = (directory.path().join("backups"), Made::new());
    made.write("000001.sst", 10, 1_000_000);
    let id = make(&path, &mut made, ALL).unwrap().id;
    let object = path.join("objects").join(sha256(&made.files["000001.sst"].0));
    let whole = fs::read(&object).unwrap();
    for (number, damage) in [
        |bytes: &mut Vec<u8>| bytes[700_000] ^= 4,
        |bytes: &mut Vec<u8>| bytes.truncate(999_999),
        |bytes: &mut Vec<u8>| {
            bytes.push(0);
        },
    ]
    .into_iter()
    .enumerate()
    {
        let mut damaged = whole.clone();
        damage(&mut damaged);
        fs::write(&object, damaged).unwrap();
        let report = verify(&path, None, &mut |_| {}).unwrap();
        let [found] = &report.damaged_objects[..] else { panic!("{report:?}") };
        assert_eq!(found.path, object.display().to_string());
        assert_eq!(found.needed_by, [format!("{id}: 000001.sst")]);
        let to = directory.path().join(format!("restored-{number}"));
        let error = restore(&path, None, &to, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(&object.display().to_string()) && error.contains("000001.sst"), "{error}");
        assert!(!to.join("store/STORE").exists(), "it would open");
        assert!(to.join("store/CURRENT").exists(), "a new store could be made there");
        // Healed, the same command goes on, and keeps what was right.
        fs::write(&object, &whole).unwrap();
        let report = restore(&path, None, &to, &mut |_| {}).unwrap();
        assert!(report.resumed_bytes >= 16 && report.resumed_bytes < 1_000_000, "{report:?}");
        assert_eq!(fs::read(to.join("store/000001.sst")).unwrap(), whole);
        assert!(!to.join("RESTORING").exists());
    }
    // One that is missing is fetched again by the next backup, and one that is too short as well.
    for heals in [None, Some(&whole[..10])] {
        heals.map_or_else(|| fs::remove_file(&object).unwrap(), |bytes| fs::write(&object, bytes).unwrap());
        assert!(!is_sound(&path));
        assert_eq!(make(&path, &mut made, ALL).unwrap().new_bytes, 1_000_000);
        assert!(is_sound(&path));
    }
    // One of the right length is mended by the next backup once somebody has looked, and else by
    // one of the next eight.
    let mut damaged = whole.clone();
    damaged[500_000] ^= 1;
    fs::write(&object, &damaged).unwrap();
    assert!(!is_sound(&path));
    assert_eq!(make(&path, &mut made, ALL).unwrap().new_bytes, 1_000_000);
    assert!(is_sound(&path));
    fs::write(&object, &damaged).unwrap();
    let read: u64 = (0..8).map(|_| make(&path, &mut made, ALL).unwrap().new_bytes).sum();
    assert_eq!(read, 1_000_000);
    assert!(is_sound(&path));
    assert_eq!(fs::read(&object).unwrap(), whole);
}

#[test]
fn nothing_is_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let (path, mut made) = (directory.path().join("backups"), Made::new());
    let first = make(&path, &mut made, ALL).unwrap().id;
    made.write("000001.sst", 10, 100);
    let second = make(&path, &mut made, ALL).unwrap().id;
    let refused = |to: &Path, backup: Option<&str>| restore(&path, backup, to, &mut |_| {}).unwrap_err().to_string();
    // Somebody's folder.
    let to = directory.path().join("to");
    fs::create_dir_all(to.join("store")).unwrap();
    fs::write(to.join("store/STORE"), "live").unwrap();
    assert!(refused(&to, None).contains("holds store, and nothing is overwritten"));
    assert_eq!(fs::read(to.join("store/STORE")).unwrap(), b"live");
    // An unfinished restore of another backup, and one that has ended before somebody could say so.
    fs::remove_dir_all(&to).unwrap();
    fs::create_dir_all(&to).unwrap();
    fs::write(to.join("RESTORING"), &first).unwrap();
    assert!(refused(&to, None).contains(&format!("--backup {first}")));
    restore(&path, Some(&first), &to, &mut |_| {}).unwrap();
    assert!(!to.join("store/000001.sst").exists());
    fs::write(to.join("RESTORING"), &first).unwrap();
    assert!(refused(&to, Some(&first)).contains("has ended there"));
    // What is no folder of backups, or has no such backup.
    assert!(refused(&directory.path().join("x"), Some("000009-x")).contains("has no backup 000009-x"));
    let error = restore(&to, None, &directory.path().join("x"), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("is no folder of backups"), "{error}");
    let error = make(&to, &mut made, ALL).unwrap_err().to_string();
    assert!(error.contains("is no folder of backups"), "{error}");
    // A file that leads out of it is not even read.
    made.write("../../evil", 1, 10);
    assert!(make(&path, &mut made, ALL).is_err());
    made.files.remove("../../evil");
    // Two at a time.
    let locked = fs::File::open(path.join("LOCK")).unwrap();
    locked.lock().unwrap();
    assert!(make(&path, &mut made, ALL).unwrap_err().to_string().contains("is in use"));
    assert!(refused(&directory.path().join("x"), Some(&second)).contains("is in use"));
    drop(locked);
    make(&path, &mut made, ALL).unwrap();
}
