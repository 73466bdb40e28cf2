//! What the finished files of a directory hold: their content ids, so that nobody reads them again
//! to know.
//!
//! A cache in `D.copy/catalog`, appended to without syncs:
//!
//! ```text
//!  "ECOCATA1" | record | record | ...
//!
//!  0        4      5      6      8        16    24     40         48
//!  +--------+------+------+------+--------+-----+------+----------+
//!  | crc32c | what | kind | zero | number | len | hash | modified |     little-endian
//!  +--------+------+------+------+--------+-----+------+----------+
//! ```
//!
//! # Invariants
//!
//! - What is in it is on the device: whoever puts an id has synced the file before. So a loss of
//!   power leaves no id of a file that lost its bytes, however early the kernel wrote the catalog.
//! - An id counts only for a file of the same length that was not changed since
//!   (`modified`: nanoseconds since 1970). Another file of the same name has another time.
//!
//! Failure: a torn or damaged record is the end, and what stood behind it is computed again. An id
//! that could not be written holds until the catalog is closed.
//!
//! Bounds: where more than half of the records are of no use the file is written anew.
//!
//! Threads: one owner.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use ecotone_replica::stream::{ContentId, FileKind};
use twox_hash::XxHash3_128;

use crate::error::{Error, Result};
use crate::names::{FileName, beside, copy_directory, path_of};

const CATALOG_FILE: &str = "catalog";
const NEW_CATALOG_FILE: &str = "catalog.new";
const MAGIC: &[u8; 8] = b"ECOCATA1";
const RECORD_BYTES: usize = 48;
const CHECKSUM_BYTES: usize = 4;
/// A file of fewer records is never written anew.
const MIN_REWRITTEN_RECORDS: usize = 256;

/// Bytes that are read at a time: enough for sequential reads, few enough for the cache of a core.
const PIECE_BYTES: usize = 256 << 10;

/// Computes the content id of bytes as they pass.
pub struct Hasher {
    hash: XxHash3_128,
    len: u64,
}

impl Hasher {
    /// Of no bytes yet.
    #[must_use]
    pub fn new() -> Self {
        Self { hash: XxHash3_128::new(), len: 0 }
    }

    /// These follow.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hash.write(bytes);
        self.len += bytes.len() as u64;
    }

    /// How many there were.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// They were all.
    #[must_use]
    pub fn finish(self) -> ContentId {
        ContentId { len: self.len, hash: self.hash.finish_128() }
    }
}

impl Default for Hasher {
    fn default() -> Self {
        Self::new()
    }
}

/// The content id of the file at `path`, all of which is read.
///
/// # Errors
///
/// [`Error::Io`].
pub fn hash_file(path: &Path) -> Result<ContentId> {
    let file = File::open(path).map_err(|error| Error::io("open", path, error))?;
    hash_opened(&file, path)
}

fn hash_opened(mut file: &File, path: &Path) -> Result<ContentId> {
    let (mut hasher, mut piece) = (Hasher::new(), vec![0; PIECE_BYTES]);
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(bytes) => hasher.update(&piece[..bytes]),
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(error) => return Err(Error::io("read", path, error)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    content: ContentId,
    modified_ns: i64,
}

impl Entry {
    fn is_of(&self, metadata: &Metadata) -> bool {
        self.content.len == metadata.len() && self.modified_ns == modified_ns(metadata)
    }
}

fn modified_ns(metadata: &Metadata) -> i64 {
    metadata.mtime().wrapping_mul(1_000_000_000).wrapping_add(metadata.mtime_nsec())
}

/// See the module.
pub struct Catalog {
    directory: PathBuf,
    path: PathBuf,
    file: File,
    /// Bytes of the file that count.
    len: u64,
    /// Records in these.
    records: usize,
    entries: HashMap<FileName, Entry>,
    by_content: BTreeSet<(ContentId, FileName)>,
}

impl Catalog {
    /// The catalog of `directory`, made where it is missing.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn open(directory: &Path) -> Result<Self> {
        let above = copy_directory(directory);
        fs::create_dir_all(&above).map_err(|error| Error::io("create the directory", &above, error))?;
        let path = beside(directory, CATALOG_FILE);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|error| Error::io("open", &path, error))?;
        let mut catalog = Self {
            directory: directory.to_path_buf(),
            path,
            file,
            len: 0,
            records: 0,
            entries: HashMap::new(),
            by_content: BTreeSet::new(),
        };
        catalog.load().map_err(|error| Error::io("read", &catalog.path, error))?;
        Ok(catalog)
    }

    fn load(&mut self) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        (&self.file).read_to_end(&mut bytes)?;
        if let Some(records) = bytes.strip_prefix(MAGIC) {
            for record in records.chunks(RECORD_BYTES) {
                let Some((file, entry)) = record.try_into().ok().and_then(decode) else { break };
                self.set(file, entry);
                self.records += 1;
            }
        } else {
            self.file.set_len(0)?;
            self.file.write_all_at(MAGIC, 0)?;
        }
        self.len = (MAGIC.len() + self.records * RECORD_BYTES) as u64;
        // What is appended follows a whole record.
        self.file.set_len(self.len)
    }

    fn set(&mut self, file: FileName, entry: Option<Entry>) {
        let before = match entry {
            Some(entry) => {
                self.by_content.insert((entry.content, file));
                self.entries.insert(file, entry)
            }
            None => self.entries.remove(&file),
        };
        if let Some(before) = before
            && Some(before.content) != entry.map(|entry| entry.content)
        {
            self.by_content.remove(&(before.content, file));
        }
    }

    /// What the file holds, if that is known of it as it is now.
    #[must_use]
    pub fn get(&self, file: FileName) -> Option<ContentId> {
        let entry = self.entries.get(&file)?;
        let metadata = fs::metadata(path_of(&self.directory, file)).ok()?;
        entry.is_of(&metadata).then_some(entry.content)
    }

    /// What each file held when it was put, whatever has become of it since.
    pub fn entries(&self) -> impl Iterator<Item = (FileName, ContentId)> + '_ {
        self.entries.iter().map(|(file, entry)| (*file, entry.content))
    }

    /// Remembers what the file holds. All of it is on the device, and it is where its name says.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`]; [`Error::Mismatch`] where the file has another length; [`Error::Io`],
    /// after which it is remembered, but not over a restart.
    pub fn put(&mut self, file: FileName, content: ContentId) -> Result<()> {
        let metadata = metadata_of(&path_of(&self.directory, file), file)?;
        if metadata.len() != content.len {
            let what = format!("it has {} bytes, not {}", metadata.len(), content.len);
            return Err(Error::Mismatch { file, what });
        }
        self.remember(file, Entry { content, modified_ns: modified_ns(&metadata) })
    }

    fn remember(&mut self, file: FileName, entry: Entry) -> Result<()> {
        if self.entries.get(&file) == Some(&entry) {
            return Ok(());
        }
        self.set(file, Some(entry));
        self.write(&encode(file, Some(&entry)))
    }

    /// Forgets a file.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], after which it is forgotten, but not over a restart.
    pub fn remove(&mut self, file: FileName) -> Result<()> {
        if !self.entries.contains_key(&file) {
            return Ok(());
        }
        self.set(file, None);
        self.write(&encode(file, None))
    }

    /// No file is found by this content until it is put again, or the catalog is opened again. What
    /// they should hold is still known: were it forgotten, the bytes that are there would be taken for
    /// it.
    pub fn distrust(&mut self, content: ContentId) {
        self.by_content.retain(|(of, _)| *of != content);
    }

    /// Forgets the files that are not there any more.
    ///
    /// # Errors
    ///
    /// As [`remove`](Self::remove).
    pub fn forget_missing(&mut self) -> Result<()> {
        let is_missing = |file: &FileName| {
            fs::metadata(path_of(&self.directory, *file)).is_err_and(|error| error.kind() == ErrorKind::NotFound)
        };
        let missing: Vec<_> = self.entries.keys().copied().filter(is_missing).collect();
        missing.into_iter().try_for_each(|file| self.remove(file))
    }

    /// A file that holds this, as it is now.
    #[must_use]
    pub fn find(&self, content: ContentId) -> Option<FileName> {
        let first = (content, FileName { kind: FileKind::Segment, number: 0 });
        let with_it = self.by_content.range(first..).take_while(|(of, _)| *of == content);
        with_it.map(|(_, file)| *file).find(|file| self.get(*file).is_some())
    }

    /// What the file in `directory` holds. Where that is not known of it as it is now it is read,
    /// and remembered if this is the catalog's directory, for which it is brought to the device.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`], [`Error::Io`].
    pub fn content_of(&mut self, directory: &Path, file: FileName) -> Result<ContentId> {
        let path = path_of(directory, file);
        let metadata = metadata_of(&path, file)?;
        let known = self.entries.get(&file).filter(|entry| entry.is_of(&metadata));
        if let Some(known) = known {
            return Ok(known.content);
        }
        let opened = File::open(&path).map_err(|error| io_or_missing("open", &path, file, error))?;
        let content = hash_opened(&opened, &path)?;
        if directory == self.directory && content.len == metadata.len() {
            opened.sync_data().map_err(|error| Error::io("sync", &path, error))?;
            // Changed while it was read: the next one reads it again.
            let after = metadata_of(&path, file)?;
            let entry = Entry { content, modified_ns: modified_ns(&metadata) };
            if entry.is_of(&after) {
                self.remember(file, entry)?;
            }
        }
        Ok(content)
    }

    fn write(&mut self, record: &[u8; RECORD_BYTES]) -> Result<()> {
        if self.records >= MIN_REWRITTEN_RECORDS && self.records >= 2 * self.entries.len() {
            return self.rewrite();
        }
        // After a failure the next one is written over what this one left.
        self.file.write_all_at(record, self.len).map_err(|error| Error::io("write", &self.path, error))?;
        self.len += RECORD_BYTES as u64;
        self.records += 1;
        Ok(())
    }

    fn rewrite(&mut self) -> Result<()> {
        let mut bytes = Vec::with_capacity(MAGIC.len() + self.entries.len() * RECORD_BYTES);
        bytes.extend_from_slice(MAGIC);
        self.entries.iter().for_each(|(file, entry)| bytes.extend_from_slice(&encode(*file, Some(entry))));
        let new = beside(&self.directory, NEW_CATALOG_FILE);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&new);
        let file = file.and_then(|file| file.write_all_at(&bytes, 0).map(|()| file));
        let file = file.and_then(|file| fs::rename(&new, &self.path).map(|()| file));
        self.file = file.map_err(|error| Error::io("write", &new, error))?;
        (self.len, self.records) = (bytes.len() as u64, self.entries.len());
        Ok(())
    }
}

fn metadata_of(path: &Path, file: FileName) -> Result<Metadata> {
    fs::metadata(path).map_err(|error| io_or_missing("look at", path, file, error))
}

fn io_or_missing(action: &'static str, path: &Path, file: FileName, error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::Missing { file },
        _ => Error::io(action, path, error),
    }
}

/// That the file is so, or that nothing is known of it.
fn encode(file: FileName, entry: Option<&Entry>) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[4] = u8::from(entry.is_some());
    record[5] = file.kind as u8;
    record[8..16].copy_from_slice(&file.number.to_le_bytes());
    if let Some(entry) = entry {
        record[16..24].copy_from_slice(&entry.content.len.to_le_bytes());
        record[24..40].copy_from_slice(&entry.content.hash.to_le_bytes());
        record[40..].copy_from_slice(&entry.modified_ns.to_le_bytes());
    }
    let checksum = crc32c::crc32c(&record[CHECKSUM_BYTES..]);
    record[..CHECKSUM_BYTES].copy_from_slice(&checksum.to_le_bytes());
    record
}

fn decode(record: &[u8; RECORD_BYTES]) -> Option<(FileName, Option<Entry>)> {
    let (checksum, checked) = record.split_first_chunk::<CHECKSUM_BYTES>()?;
    (u32::from_le_bytes(*checksum) == crc32c::crc32c(checked)).then_some(())?;
    let number =
        |at: usize| record[at..at + 8].iter().rev().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    let kind = FileKind::ALL.into_iter().find(|kind| *kind as u8 == record[5])?;
    let hash = u128::from(number(32)) << 64 | u128::from(number(24));
    let entry = Entry { content: ContentId { len: number(16), hash }, modified_ns: number(40) as i64 };
    let file = FileName { kind, number: number(8) };
    match record[4] {
        0 => Some((file, None)),
        1 => Some((file, Some(entry))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(number: u64) -> FileName {
        FileName { kind: FileKind::Table, number }
    }

    struct Store {
        _above: tempfile::TempDir,
        directory: PathBuf,
    }

    impl Store {
        fn new() -> Self {
            let above = tempfile::tempdir().unwrap();
            let directory = above.path().join("store");
            fs::create_dir(&directory).unwrap();
            Self { _above: above, directory }
        }

        fn catalog(&self) -> Catalog {
            Catalog::open(&self.directory).unwrap()
        }

        fn write(&self, number: u64, bytes: &[u8]) -> ContentId {
            fs::write(path_of(&self.directory, table(number)), bytes).unwrap();
            ContentId { len: bytes.len() as u64, hash: XxHash3_128::oneshot(bytes) }
        }

        fn file(&self) -> PathBuf {
            beside(&self.directory, CATALOG_FILE)
        }
    }

    #[test]
    fn bytes_in_pieces_have_the_id_of_the_whole_file() {
        let store = Store::new();
        let bytes: Vec<u8> = (0..700_001_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let content = store.write(1, &bytes);
        for pieces in [1, 240, 241, 4096, 262_144, 1 << 20] {
            let mut hasher = Hasher::new();
            bytes.chunks(pieces).for_each(|piece| hasher.update(piece));
            assert_eq!(hasher.finish(), content);
        }
        assert_eq!(hash_file(&path_of(&store.directory, table(1))).unwrap(), content);
        assert_eq!(Hasher::new().finish(), store.write(2, b""));
    }

    #[test]
    fn what_was_put_is_known_after_a_restart_and_what_was_removed_is_not() {
        let store = Store::new();
        let mut catalog = store.catalog();
        let contents: Vec<_> = (0..5).map(|number| store.write(number, &[number as u8; 100])).collect();
        for (number, content) in (0..).zip(&contents) {
            catalog.put(table(number), *content).unwrap();
        }
        catalog.remove(table(3)).unwrap();
        for catalog in [catalog, store.catalog()] {
            for (number, content) in (0..).zip(&contents) {
                let is_known = number != 3;
                assert_eq!(catalog.get(table(number)), is_known.then_some(*content));
                assert_eq!(catalog.find(*content), is_known.then_some(table(number)));
            }
        }
    }

    #[test]
    fn an_id_counts_only_for_the_file_that_it_was_computed_of() {
        let store = Store::new();
        let mut catalog = store.catalog();
        let content = store.write(1, b"before");
        catalog.put(table(1), content).unwrap();
        let path = path_of(&store.directory, table(1));
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        let set_time = |time| File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();

        // Of another length at the same time, of the same length at another time.
        store.write(1, b"longer than before");
        set_time(time);
        assert_eq!((catalog.get(table(1)), catalog.find(content)), (None, None));
        let other = store.write(1, b"BEFORE");
        set_time(time + std::time::Duration::from_nanos(1));
        assert_eq!((catalog.get(table(1)), catalog.find(content)), (None, None));
        assert_eq!(catalog.content_of(&store.directory, table(1)).unwrap(), other);
        assert_eq!(store.catalog().get(table(1)), Some(other));

        fs::remove_file(&path).unwrap();
        assert_eq!(catalog.get(table(1)), None);
        assert!(
            matches!(catalog.content_of(&store.directory, table(1)), Err(Error::Missing { file }) if file == table(1))
        );
        assert!(matches!(catalog.put(table(1), other), Err(Error::Missing { .. })));
        catalog.forget_missing().unwrap();
        store.write(1, b"BEFORE");
        set_time(time + std::time::Duration::from_nanos(1));
        assert_eq!(catalog.get(table(1)), None);
        assert!(matches!(catalog.put(table(1), ContentId { len: 5, ..other }), Err(Error::Mismatch { .. })));
    }

    #[test]
    fn a_file_is_read_once_and_that_of_another_directory_is_not_remembered() {
        let store = Store::new();
        let mut catalog = store.catalog();
        let content = store.write(1, &[1; 1000]);
        assert_eq!(catalog.content_of(&store.directory, table(1)).unwrap(), content);
        // Nobody can tell that its bytes have changed but who reads them.
        let path = path_of(&store.directory, table(1));
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        store.write(1, &[2; 1000]);
        File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        assert_eq!(catalog.content_of(&store.directory, table(1)).unwrap(), content);

        let elsewhere = Store::new();
        let other = elsewhere.write(2, b"elsewhere");
        assert_eq!(catalog.content_of(&elsewhere.directory, table(2)).unwrap(), other);
        store.write(2, b"ELSEWHERE");
        assert_eq!(catalog.get(table(2)), None);
    }

    #[test]
    fn of_equal_files_any_is_found_that_is_there() {
        let store = Store::new();
        let mut catalog = store.catalog();
        let content = store.write(7, b"same");
        store.write(8, b"same");
        [7, 8].into_iter().for_each(|number| catalog.put(table(number), content).unwrap());
        fs::remove_file(path_of(&store.directory, table(7))).unwrap();
        assert_eq!(catalog.find(content), Some(table(8)));
        catalog.remove(table(8)).unwrap();
        assert_eq!(catalog.find(content), None);
    }

    #[test]
    fn damage_takes_what_stands_behind_it_and_nothing_else() {
        let store = Store::new();
        let contents: Vec<_> = (0..4).map(|number| store.write(number, &[number as u8; 10])).collect();
        let mut catalog = store.catalog();
        (0..).zip(&contents).for_each(|(number, content)| catalog.put(table(number), *content).unwrap());
        drop(catalog);
        let whole = fs::read(store.file()).unwrap();
        assert_eq!(whole.len(), MAGIC.len() + 4 * RECORD_BYTES);
        let known = |catalog: &Catalog| (0..4).filter(|number| catalog.get(table(*number)).is_some()).count();
        for cut in 0..=whole.len() {
            fs::write(store.file(), &whole[..cut]).unwrap();
            assert_eq!(known(&store.catalog()), cut.saturating_sub(MAGIC.len()) / RECORD_BYTES, "cut at {cut}");
        }
        for bit in (0..whole.len() * 8).step_by(7) {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            fs::write(store.file(), &damaged).unwrap();
            let mut catalog = store.catalog();
            let before = (bit / 8).checked_sub(MAGIC.len()).map_or(0, |at| at / RECORD_BYTES);
            assert_eq!(known(&catalog), before, "bit {bit}");
            // What is put behind it is there at the next start.
            catalog.put(table(3), contents[3]).unwrap();
            assert_eq!(store.catalog().get(table(3)), Some(contents[3]), "bit {bit}");
        }
    }

    #[test]
    fn a_file_of_garbage_is_written_anew() {
        let store = Store::new();
        let content = store.write(1, b"stays");
        let mut catalog = store.catalog();
        catalog.put(table(1), content).unwrap();
        let passing = store.write(2, b"comes and goes");
        for _ in 0..5 * MIN_REWRITTEN_RECORDS {
            catalog.put(table(2), passing).unwrap();
            catalog.remove(table(2)).unwrap();
            let records = (fs::metadata(store.file()).unwrap().len() as usize - MAGIC.len()) / RECORD_BYTES;
            assert!(records <= MIN_REWRITTEN_RECORDS, "{records}");
        }
        catalog.put(table(2), passing).unwrap();
        let catalog = store.catalog();
        assert_eq!((catalog.get(table(1)), catalog.get(table(2))), (Some(content), Some(passing)));
    }
}
