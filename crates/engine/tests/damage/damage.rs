//! Flipped bits in every kind of file of a store that was closed or killed: a right answer or a
//! typed error that names the file, never a wrong one.
//!
//! The last record of the write-ahead log is the one thing that may be gone without an error: a
//! loss of power leaves it in any state. What is found then is what the store held before it,
//! whole.

use crate::common;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::appended::{SEGMENT_HEADER_BYTES, dictionary_record, segment_records};
use common::disk::{contents_below, write_contents};
use common::random::{Random, with_seeds};
use common::telemetry::telemetry;
use common::{Model, compressing_early, directory_in_memory, until_compression, value_of};
use ecotone_engine::{
    Compression, CompressionMode, Direction, Error, OpenMode, Separation, Store, StoreSettings, WriteOptions,
};
use ecotone_inspect::verify;
use ecotone_policy::gc::GcParameters;
use ecotone_types::units::Bytes;

fn options() -> StoreSettings {
    StoreSettings {
        separation: Some(Separation { min_bytes: 50, segment_bytes: 4096 }),
        gc: GcParameters {
            begin_ratio: 1.1,
            end_ratio: 1.05,
            min_garbage_bytes: Bytes(1024),
            ..GcParameters::default()
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
        Self::new(false, false)
    }

    /// Killed: replay looks at the values that were not known to be synced.
    fn killed() -> Self {
        Self::new(true, false)
    }

    /// With `compresses` its values are compressed, from when a dictionary is trained.
    fn new(is_killed: bool, compresses: bool) -> Self {
        let mode = if compresses { CompressionMode::Zstd } else { CompressionMode::None };
        let mut written = compressing_early(mode, options());
        // The values are short and few.
        written.compression_parameters.samples = Bytes(6 * 1024);
        let directory = directory_in_memory();
        let path = directory.path().join("store");
        // Tables from before there was a value log are among the others.
        let plain = StoreSettings { separation: None, ..options() };
        let store = Store::open(&path, OpenMode::Create, plain).unwrap();
        let tables = || {
            let named = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
            named.filter(|path| path.extension().is_some_and(|it| it == "sst")).collect::<Vec<_>>()
        };
        let mut model = Model::new();
        let put = |store: &Store, model: &mut Model, number: u64, bytes| {
            let key = format!("key{number:04}").into_bytes();
            let value = match compresses {
                true => telemetry(number << 8 | bytes as u64, bytes),
                false => value_of(&key, bytes as u64, bytes),
            };
            store.put(&key, &value).unwrap();
            model.insert(key, value);
        };
        (0..40).for_each(|number| put(&store, &mut model, number, 60));
        store.flush(true).unwrap();
        let plain_tables = tables();
        (40..100).for_each(|number| put(&store, &mut model, number, 60));
        store.close().unwrap();
        let store = Store::open(&path, OpenMode::Open, written).unwrap();
        if compresses {
            let is_there = |now: &ecotone_engine::CompressionProperties| now.installed_dictionaries > 0;
            until_compression(&store, is_there, |at| put(&store, &mut model, 50 + at % 150, 70));
        }
        (50..200).for_each(|number| put(&store, &mut model, number, 70));
        store.flush(true).unwrap();
        (100..200).step_by(2).for_each(|number| put(&store, &mut model, number, 80));
        (100..120).for_each(|number| put(&store, &mut model, number, 10));
        store.flush(true).unwrap();
        // What lives beside what was overwritten is relocated.
        let began = Instant::now();
        while store.value_log().unwrap().relocated_bytes == 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", store.value_log());
            store.compact(&b"key0040"[..]..).unwrap();
        }
        assert!(!plain_tables.is_empty() && plain_tables.iter().all(|table| table.exists()));
        let mut states = Vec::new();
        // Over more than one segment.
        for number in 200..300 {
            states.push(model.clone());
            put(&store, &mut model, number, if number.is_multiple_of(2) { 90 } else { 20 });
        }
        states.push(model.clone());
        let mut batch = ecotone_engine::Batch::new();
        batch.delete(b"key0000").unwrap();
        // No flipped bit makes zeros of its end, which a loss of power might have left.
        batch.put(b"key0001", &[3; 100]).unwrap();
        store.write(&batch, WriteOptions::default()).unwrap();
        model.remove(&b"key0000"[..]);
        model.insert(b"key0001".to_vec(), vec![3; 100]);
        // The last long value is not the last write.
        for number in 300..303 {
            states.push(model.clone());
            put(&store, &mut model, number, 20);
        }
        states.push(model);
        let killed = is_killed.then(|| contents_at_rest(&path));
        store.close().unwrap();
        Self { files: killed.unwrap_or_else(|| contents_below(&path)), states }
    }

    fn last(&self) -> &Model {
        self.states.last().unwrap()
    }

    fn write(&self, to: &Path) {
        write_contents(to, &self.files);
    }

    /// The bytes of a file.
    fn bytes(&self, file: &Path) -> &[u8] {
        self.files[file].as_ref().unwrap()
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
/// Of two damages RocksDB knows the consequence only, and names that: a MANIFEST whose last record
/// is lost, by the WAL that it then misses, and one that describes a table wrongly, by that table
/// and the word; properties of a table that cannot be read while the store is opened, by the
/// MANIFEST that has the table.
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

/// Whether the values of this segment were relocated: by its header, as docs/internals/formats.md
/// has it.
fn is_relocated(segment: &[u8]) -> bool {
    segment[16..20] != [0; 4]
}

/// What of a segment is lost with this byte: its header, a record, what needs its dictionary, or what
/// is reserved behind the last record.
fn lost_with(segment: &[u8], byte: usize) -> Range<usize> {
    if dictionary_record(segment).is_some_and(|record| record.contains(&byte)) {
        // Any value behind it may need it.
        return SEGMENT_HEADER_BYTES..segment.len();
    }
    let records = segment_records(segment);
    let end = records.last().map_or(SEGMENT_HEADER_BYTES, |last| last.end);
    match records.into_iter().find(|record| record.contains(&byte)) {
        Some(record) => record,
        None if byte < SEGMENT_HEADER_BYTES => 0..SEGMENT_HEADER_BYTES,
        None => end..segment.len(),
    }
}

/// The offset in `file` that is told, if one is.
fn offset_in(file: &str, said: &str) -> Option<usize> {
    let (_, behind) = said.split_once(&format!("{file} at offset "))?;
    behind.split(|it: char| !it.is_ascii_digit()).next()?.parse().ok()
}

/// The block of the table `file` that is told to be damaged, with its trailer, where one is.
fn block_in(file: &str, said: &str) -> Option<Range<usize>> {
    let (_, behind) = said.split_once(&format!("{file} offset "))?;
    let (offset, behind) = behind.split_once(" size ")?;
    let begin: usize = offset.parse().ok()?;
    let bytes: usize = behind.split(|it: char| !it.is_ascii_digit()).next()?.parse().ok()?;
    // A footer of which the version is wrong is read as one of before, with a place in it that is
    // none.
    (bytes > 0).then(|| begin..begin + bytes + TRAILER_BYTES)
}

/// Of a store that is open: what is there twice in a row, while obsolete files may go.
fn contents_at_rest(path: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let check = || std::panic::catch_unwind(|| contents_below(path)).ok();
    let mut before = check();
    loop {
        std::thread::sleep(Duration::from_millis(50));
        match check() {
            Some(now) if before.as_ref() == Some(&now) => return now,
            now => before = now,
        }
    }
}

/// What is to be found in a damaged store.
struct Check<'s> {
    sound: &'s Sound,
    /// The file that is damaged.
    file: &'s str,
    /// Its byte that is.
    byte: usize,
    /// What is lost with it, if that is a segment.
    lost: Option<Range<usize>>,
    /// How often a block of a table was told that holds it.
    blocks_reported: Cell<usize>,
    /// How many of the last writes may be gone.
    may_lose: usize,
    what: String,
}

impl Check<'_> {
    fn at(&self, path: &Path, mode: OpenMode, options: StoreSettings, compacts: bool) {
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
        if let Some(lost) = &self.lost {
            let Error::Corrupt { location: Some(location), .. } = error else {
                panic!("{}: {which} says {error:?}", self.what);
            };
            let offset = offset_in(self.file, location);
            assert!(offset.is_some_and(|offset| lost.contains(&offset)), "{}: {which} says {error:?}", self.what);
        }
        if let Some(block) = block_in(self.file, &error.to_string()) {
            assert!(block.contains(&self.byte), "{}: {which} says {error:?}", self.what);
            self.blocks_reported.set(self.blocks_reported.get() + 1);
        }
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

/// What RocksDB puts behind each block of a table: how it is compressed, and its checksum.
const TRAILER_BYTES: usize = 5;

/// The end of a table, where the blocks about its blocks are.
const TABLE_END_BYTES: usize = 1024;

/// One in so many damaged stores is compacted: RocksDB rests a second after a compaction that
/// failed.
const COMPACTED: u64 = 25;

/// Which bit of so many bytes the flip of this number hits.
fn bit_to_flip(name: &str, bytes: usize, number: usize, random: &mut Random) -> usize {
    let begin =
        if name.ends_with(".sst") && number.is_multiple_of(2) { bytes.saturating_sub(TABLE_END_BYTES) } else { 0 };
    let part = (bytes - begin).div_ceil(PARTS);
    let at = begin + part * (number / 2 % PARTS) + random.below(part);
    at.min(bytes - 1) * 8 + random.below(8)
}

/// Flips one bit of a file, and looks at the store. How many of the errors named a block of a
/// table.
fn flip_bit(sound: &Sound, file: &Path, bit: usize, seed: u64, may_lose: usize) -> usize {
    let still = StoreSettings { l0_compaction_trigger: 20, gc: GcParameters::default(), ..options() };
    let name = file.file_name().unwrap().to_str().unwrap();
    let directory = directory_in_memory();
    let path = directory.path().join("store");
    sound.write(&path);
    let mut bytes = sound.bytes(file).to_vec();
    let lost = name.ends_with(".segment").then(|| lost_with(&bytes, bit / 8));
    bytes[bit / 8] ^= 1 << (bit % 8);
    fs::write(path.join(file), &bytes).unwrap();
    let what = format!("seed {seed}, bit {} of byte {} of {file:?}, {} bytes", bit % 8, bit / 8, bytes.len());

    match verify(&path, |_| ()) {
        Ok(report) => {
            for finding in report.damaged.iter().chain(&report.torn_ends) {
                let said = format!("{} {}", finding.place, finding.detail);
                assert!(says(&said, name), "{what}: {finding:?}");
                if let Some(lost) = &lost {
                    let offset = offset_in(name, &said);
                    assert!(offset.is_some_and(|offset| lost.contains(&offset)), "{what}: {finding:?}");
                }
            }
            let named = report.damaged.iter().any(|finding| finding.place.contains(name));
            assert!(named || !name.ends_with(".sst"), "{what}: {report:?}");
            let all_there = report.entries == sound.last().len() as u64;
            assert!(!report.is_sound() || all_there || may_lose > 0, "{what}: {report:?}");
        }
        Err(error) => assert!(names(&error, name), "{what}: verify says {error:?}"),
    }
    let check = Check { sound, file: name, byte: bit / 8, lost, blocks_reported: Cell::new(0), may_lose, what };
    // A store that is opened to be read is not changed, so both looks meet the damage.
    if seed.is_multiple_of(2) {
        check.at(&path, OpenMode::ReadOnly, still.clone(), false);
    }
    let compacts = seed.is_multiple_of(COMPACTED);
    check.at(&path, OpenMode::Open, if compacts { options() } else { still }, compacts);
    check.blocks_reported.get()
}

/// Flips one bit of a file of a kind, so many times, and looks at the store.
fn flip(sound: &Sound, is_of_kind: impl Fn(&str) -> bool, flips: u64, may_lose: usize) {
    let files = sound.files(is_of_kind);
    let (mut relocated, mut blocks_reported) = (0, 0);
    with_seeds(flips, |seed| {
        let mut random = Random::new(seed);
        let file = files[seed as usize % files.len()];
        let name = file.file_name().unwrap().to_str().unwrap();
        let bytes = sound.bytes(file);
        relocated += u64::from(name.ends_with(".segment") && is_relocated(bytes));
        let bit = bit_to_flip(name, bytes.len(), seed as usize / files.len(), &mut random);
        blocks_reported += flip_bit(sound, file, bit, seed, may_lose);
    });
    let are_segments = files.iter().all(|file| file.extension().is_some_and(|extension| extension == "segment"));
    assert!(!are_segments || relocated > 0, "no relocated value was ever hit");
    let are_tables = files.iter().all(|file| file.extension().is_some_and(|extension| extension == "sst"));
    assert!(!are_tables || blocks_reported > 0, "no error named the block that is damaged");
}

#[test]
fn in_tables() {
    flip(&Sound::closed(), |name| name.ends_with(".sst"), 200, 0);
}

#[test]
fn in_segments() {
    flip(&Sound::closed(), |name| name.ends_with(".segment"), 150, 0);
}

#[test]
fn in_segments_of_a_killed_process() {
    flip(&Sound::killed(), |name| name.ends_with(".segment"), 150, 0);
}

#[test]
fn in_segments_of_compressed_values() {
    for is_killed in [false, true] {
        let sound = Sound::new(is_killed, true);
        let segments = sound.files(|name| name.ends_with(".segment"));
        let with_dictionary = segments.iter().filter(|file| dictionary_record(sound.bytes(file)).is_some());
        assert!(with_dictionary.count() > 1);
        flip(&sound, |name| name.ends_with(".segment"), 80, 0);
    }
}

/// Where it begins, and where a loss of power would have begun to take something: what is wrong
/// there must not pass for that.
#[test]
fn at_both_ends_of_a_segment_that_may_not_have_been_synced() {
    let mut sound = Sound::killed();
    sound.files.retain(|path, _| !path.ends_with("WATERMARK"));
    let has_records = |file: &&&PathBuf| {
        let bytes = sound.bytes(file);
        !is_relocated(bytes) && !segment_records(bytes).is_empty()
    };
    let segments = sound.files(|name| name.ends_with(".segment"));
    let last = segments.iter().rfind(has_records).unwrap();
    let record = segment_records(sound.bytes(last)).pop().unwrap();
    let header = 0..SEGMENT_HEADER_BYTES * 8;
    for bit in header.chain((record.start * 8..record.end * 8).step_by(5)) {
        flip_bit(&sound, last, bit, bit as u64, 0);
    }
}

#[test]
fn in_the_watermark() {
    for sound in [Sound::closed(), Sound::killed()] {
        flip(&sound, |name| name == "WATERMARK", 50, 0);
    }
}

#[test]
fn in_the_identity() {
    flip(&Sound::closed(), |name| name == "STORE" || name == "IDENTITY", 60, 0);
}

#[test]
fn in_the_manifest() {
    for sound in [Sound::closed(), Sound::killed()] {
        flip(&sound, |name| name.starts_with("MANIFEST-"), 100, 0);
    }
}

#[test]
fn in_current() {
    for sound in [Sound::closed(), Sound::killed()] {
        flip(&sound, |name| name == "CURRENT", 20, 0);
    }
}

#[test]
fn in_the_options() {
    flip(&Sound::closed(), |name| name.starts_with("OPTIONS-"), 20, 0);
}

#[test]
fn in_the_write_ahead_log() {
    for sound in [Sound::closed(), Sound::killed()] {
        flip(&sound, |name| name.ends_with(".log"), 100, 1);
    }
}
