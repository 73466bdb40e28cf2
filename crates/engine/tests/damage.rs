//! Flipped bits in every kind of file of a closed store: a right answer or a typed error that names the file, never a wrong one.
//!
//! The last record of the write-ahead log is the one thing that may be gone without an error: a loss of power leaves it in any
//! state. What is found then is what the store held before it, whole.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::disk::contents_below;
use common::random::{Random, with_seeds};
use common::{Model, directory_in_memory, value_of};
use ecotone_engine::{Compression, Direction, Error, OpenMode, Separation, Store, StoreOptions, WriteOptions, verify};
use ecotone_policy::relocation::RelocationParameters;
use ecotone_policy::units::Bytes;

fn options() -> StoreOptions {
    StoreOptions {
        separation: Some(Separation { min_bytes: 50, segment_bytes: 4096 }),
        relocation: RelocationParameters {
            begin_ratio: 1.1,
            end_ratio: 1.05,
            min_garbage_bytes: Bytes(1024),
            ..RelocationParameters::default()
        },
        compression: Compression::Lz4,
        ..common::small()
    }
}

/// A store that was closed or killed, and what it held, write by write.
struct Sound {
    files: BTreeMap<PathBuf, Option<Vec<u8>>>,
    /// Before the last writes, one by one, and after them.
    states: Vec<Model>,
}

impl Sound {
    /// Closed: of all values it is known that they were synced.
    fn closed() -> Self {
        Self::new(false)
    }

    /// Killed: replay looks at the values that were not known to be synced.
    fn killed() -> Self {
        Self::new(true)
    }

    fn new(is_killed: bool) -> Self {
        let directory = directory_in_memory();
        let path = directory.path().join("store");
        // Tables from before there was a value log are among the others.
        let plain = StoreOptions { separation: None, ..options() };
        let store = Store::open(&path, OpenMode::Create, plain).unwrap();
        let mut model = Model::new();
        let put = |store: &Store, model: &mut Model, number: u64, bytes| {
            let key = format!("key{number:04}").into_bytes();
            let value = value_of(&key, bytes as u64, bytes);
            store.put(&key, &value).unwrap();
            model.insert(key, value);
        };
        (0..100).for_each(|number| put(&store, &mut model, number, 60));
        store.close().unwrap();
        let store = Store::open(&path, OpenMode::Open, options()).unwrap();
        (50..200).for_each(|number| put(&store, &mut model, number, 70));
        store.flush(true).unwrap();
        (100..200).step_by(2).for_each(|number| put(&store, &mut model, number, 80));
        (100..120).for_each(|number| put(&store, &mut model, number, 10));
        store.flush(true).unwrap();
        let mut states = Vec::new();
        // Over more than one segment.
        for number in 200..300 {
            states.push(model.clone());
            put(&store, &mut model, number, if number.is_multiple_of(2) { 90 } else { 20 });
        }
        states.push(model.clone());
        let mut batch = store.batch();
        batch.delete(b"key0000").unwrap();
        batch.put(b"key0001", &[1; 100]).unwrap();
        store.write(&batch, WriteOptions::default()).unwrap();
        model.remove(&b"key0000"[..]);
        model.insert(b"key0001".to_vec(), vec![1; 100]);
        states.push(model);
        let killed = is_killed.then(|| contents_at_rest(&path));
        store.close().unwrap();
        Self { files: killed.unwrap_or_else(|| contents_below(&path)), states }
    }

    fn last(&self) -> &Model {
        self.states.last().unwrap()
    }

    fn write(&self, to: &Path) {
        fs::create_dir(to).unwrap();
        for (path, bytes) in &self.files {
            match bytes {
                Some(bytes) => fs::write(to.join(path), bytes).unwrap(),
                None => fs::create_dir(to.join(path)).unwrap(),
            }
        }
    }

    /// Files of each kind, by what their names begin or end with.
    fn files(&self, is_of_kind: impl Fn(&str) -> bool) -> Vec<&PathBuf> {
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let found: Vec<_> = self
            .files
            .iter()
            .filter(|(path, bytes)| bytes.is_some() && is_of_kind(&name(path)))
            .map(|it| it.0)
            .collect();
        assert!(!found.is_empty());
        found
    }
}

/// Whether a typed error names the file that is damaged.
///
/// Of two damages RocksDB knows the consequence only, and names that: a MANIFEST whose last record is lost, by the WAL that it then
/// misses, and one that describes a table wrongly, by that table and the word; properties of a table that cannot be read while the store is
/// opened, by the MANIFEST that has the table.
fn names(error: &Error, file: &str) -> bool {
    let typed = matches!(error, Error::Corrupt { .. } | Error::WrongFormat { .. } | Error::NotFound { .. });
    typed && says(&error.to_string(), file)
}

fn says(said: &str, file: &str) -> bool {
    let consequence = match file {
        manifest if manifest.starts_with("MANIFEST-") => {
            said.contains("Missing WAL") || said.contains(".sst") && said.to_lowercase().contains("manifest")
        }
        table if table.ends_with(".sst") => said.contains("MANIFEST-") && said.contains("may be corrupted"),
        _ => false,
    };
    said.contains(file) || consequence
}

/// Of a store that is open: what is there twice in a row, while obsolete files may go.
fn contents_at_rest(path: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let look = || std::panic::catch_unwind(|| contents_below(path)).ok();
    let mut before = look();
    loop {
        std::thread::sleep(Duration::from_millis(50));
        match look() {
            Some(now) if before.as_ref() == Some(&now) => return now,
            now => before = now,
        }
    }
}

/// What is to be found in a damaged store.
struct Look<'s> {
    sound: &'s Sound,
    /// The file that is damaged.
    file: &'s str,
    /// How many of the last writes may be gone.
    may_lose: usize,
    what: String,
}

impl Look<'_> {
    fn at(&self, path: &Path, mode: OpenMode, options: StoreOptions, compacts: bool) {
        match Store::open(path, mode, options) {
            Ok(store) => {
                self.read_all(&store);
                if compacts {
                    // It fails, or leaves what it cannot read where it was.
                    let _ = store.compact(..);
                    self.read_all(&store);
                }
                let _ = store.close();
            }
            Err(error) => self.check(&error, "opening"),
        }
    }

    fn check(&self, error: &Error, which: &str) {
        assert!(names(error, self.file), "{}: {which} says {error:?}", self.what);
    }

    /// Reads in every way.
    fn read_all(&self, store: &Store) {
        let what = &self.what;
        let mut found = Model::new();
        let mut damaged = 0;
        let last = self.sound.last();
        let keys: Vec<_> = last.keys().cloned().chain([b"key0000".to_vec()]).collect();
        for (key, together) in keys.iter().zip(store.multi_get(&keys)) {
            match store.get(key) {
                Ok(value) => {
                    assert_eq!(together.unwrap().as_deref(), value.as_deref(), "{what}");
                    found.extend(value.map(|value| (key.clone(), value.to_vec())));
                }
                Err(error) => {
                    self.check(&error, "a lookup");
                    self.check(&together.unwrap_err(), "a lookup of many");
                    damaged += 1;
                }
            }
        }
        let matches = |state: &Model| {
            let all_right = found.iter().all(|(key, value)| state.get(key) == Some(value));
            all_right && found.len() + damaged >= state.len()
        };
        let states = self.sound.states.iter().rev().take(1 + self.may_lose);
        assert!(states.clone().any(matches), "{what}: {} values, {damaged} damaged: not what was written", found.len());
        for direction in [Direction::Forward, Direction::Reverse] {
            let mut scan = store.scan(.., direction, None).unwrap();
            loop {
                match scan.next_entry() {
                    Ok(Some(entry)) => assert_eq!(found.get(entry.key).map(Vec::as_slice), Some(entry.value), "{what}"),
                    Ok(None) => break,
                    Err(error) => break self.check(&error, "a scan"),
                }
            }
        }
    }
}

/// Parts of a file that are hit equally often.
const PARTS: usize = 16;

/// The end of a table, where the blocks about its blocks are.
const TABLE_END_BYTES: usize = 1024;

/// One in so many damaged stores is compacted: RocksDB rests a second after a compaction that failed.
const COMPACTED: u64 = 25;

/// Which bit of so many bytes the flip of this number hits.
fn bit_to_flip(name: &str, bytes: usize, number: usize, random: &mut Random) -> usize {
    let begin =
        if name.ends_with(".sst") && number.is_multiple_of(2) { bytes.saturating_sub(TABLE_END_BYTES) } else { 0 };
    let part = (bytes - begin).div_ceil(PARTS);
    let at = begin + part * (number / 2 % PARTS) + random.below(part);
    at.min(bytes - 1) * 8 + random.below(8)
}

/// Flips one bit of a file of a kind, so many times, and looks at the store.
fn flip(sound: &Sound, is_of_kind: impl Fn(&str) -> bool, flips: u64, may_lose: usize) {
    let files = sound.files(is_of_kind);
    let still = StoreOptions { l0_compaction_trigger: 20, relocation: RelocationParameters::default(), ..options() };
    with_seeds(flips, |seed| {
        let mut random = Random::new(seed);
        let file = files[seed as usize % files.len()];
        let name = file.file_name().unwrap().to_str().unwrap();
        let directory = directory_in_memory();
        let path = directory.path().join("store");
        sound.write(&path);
        let mut bytes = sound.files[file].clone().unwrap();
        let bit = bit_to_flip(name, bytes.len(), seed as usize / files.len(), &mut random);
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(path.join(file), &bytes).unwrap();
        let what = format!("seed {seed}, bit {} of byte {} of {file:?}, {} bytes", bit % 8, bit / 8, bytes.len());

        match verify(&path, |_| ()) {
            Ok(report) => {
                for finding in report.damaged.iter().chain(&report.torn_ends) {
                    assert!(says(&format!("{} {}", finding.place, finding.detail), name), "{what}: {finding:?}");
                }
                let named = report.damaged.iter().any(|finding| finding.place.contains(name));
                assert!(named || report.is_sound() || !name.ends_with(".sst"), "{what}: {report:?}");
                let all_there = report.entries == sound.last().len() as u64;
                assert!(!report.is_sound() || all_there || may_lose > 0, "{what}: {report:?}");
            }
            Err(error) => assert!(names(&error, name), "{what}: verify says {error:?}"),
        }
        let look = Look { sound, file: name, may_lose, what };
        // A store that is opened to be read is not changed, so both looks meet the damage.
        if seed % 2 == 0 {
            look.at(&path, OpenMode::ReadOnly, still.clone(), false);
        }
        let compacts = seed % COMPACTED == 0;
        look.at(&path, OpenMode::Open, if compacts { options() } else { still.clone() }, compacts);
    });
}

#[test]
fn in_tables() {
    flip(&Sound::closed(), |name| name.ends_with(".sst"), 200, 0);
}

#[test]
fn in_segments() {
    flip(&Sound::closed(), |name| name.ends_with(".segment"), 150, 0);
}

/// The last value may be one that was being written; of all others replay sees that they were not.
#[test]
fn in_segments_of_a_killed_process() {
    flip(&Sound::killed(), |name| name.ends_with(".segment"), 150, 1);
}

#[test]
fn in_the_watermark() {
    flip(&Sound::closed(), |name| name == "WATERMARK", 50, 0);
}

#[test]
fn in_the_identity() {
    flip(&Sound::closed(), |name| name == "STORE", 50, 0);
}

#[test]
fn in_the_manifest() {
    flip(&Sound::closed(), |name| name.starts_with("MANIFEST-"), 150, 0);
}

#[test]
fn in_current() {
    flip(&Sound::closed(), |name| name == "CURRENT", 40, 0);
}

#[test]
fn in_the_options() {
    flip(&Sound::closed(), |name| name.starts_with("OPTIONS-"), 20, 0);
}

#[test]
fn in_the_write_ahead_log() {
    flip(&Sound::closed(), |name| name.ends_with(".log"), 150, 1);
}
