//! Entries of the WAL in the order of their keys, in files of their own: the WAL may exceed the
//! memory.
//!
//! Entries are collected up to [`RUN_BYTES`], sorted, and written as one *run*; runs are read side
//! by side. Of one key only the newest is kept in a run. The files are working space, and
//! never synced.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use ecotone_engine::{Error, Result};
use ecotone_rocks::salvage::{EntryKind, TableEntry};

/// Bytes of keys and values that are sorted in memory.
pub(super) const RUN_BYTES: usize = 64 * 1024 * 1024;

/// What an entry takes in memory beside its key and value.
const ENTRY_BYTES: usize = size_of::<TableEntry>();

const PUT: u8 = 1;
const DELETE: u8 = 0;

/// Sorts entries into runs.
pub(super) struct Runs {
    directory: PathBuf,
    max_bytes: usize,
    entries: Vec<TableEntry>,
    bytes: usize,
    written: Vec<PathBuf>,
}

impl Runs {
    /// Runs of about `max_bytes` in `directory`, which exists.
    pub(super) fn new(directory: &Path, max_bytes: usize) -> Self {
        Self { directory: directory.to_path_buf(), max_bytes, entries: Vec::new(), bytes: 0, written: Vec::new() }
    }

    /// Adds an entry, put or delete.
    pub(super) fn add(&mut self, entry: TableEntry) -> Result<()> {
        self.bytes += entry.key.len() + entry.value.len() + ENTRY_BYTES;
        self.entries.push(entry);
        if self.bytes >= self.max_bytes { self.write() } else { Ok(()) }
    }

    /// No more is added.
    pub(super) fn finish(&mut self) -> Result<()> {
        if self.entries.is_empty() { Ok(()) } else { self.write() }
    }

    /// All that was added, to be read; after [`finish`](Self::finish), as often as need be.
    pub(super) fn read(&self) -> Result<Vec<Run>> {
        self.written.iter().cloned().map(Run::open).collect()
    }

    fn write(&mut self) -> Result<()> {
        self.entries.sort_by(|one, other| one.key.cmp(&other.key).then(other.sequence.cmp(&one.sequence)));
        self.entries.dedup_by(|older, newest| older.key == newest.key);
        let path = self.directory.join(format!("{:06}.run", self.written.len()));
        let written = File::create(&path).and_then(|file| {
            let mut file = BufWriter::new(file);
            for entry in self.entries.drain(..) {
                let kind = if entry.kind == EntryKind::Put { PUT } else { DELETE };
                // Keys and values of a batch have 32-bit lengths.
                file.write_all(&(entry.key.len() as u32).to_le_bytes())?;
                file.write_all(&(entry.value.len() as u32).to_le_bytes())?;
                file.write_all(&entry.sequence.to_le_bytes())?;
                file.write_all(&[kind])?;
                file.write_all(&entry.key)?;
                file.write_all(&entry.value)?;
            }
            file.flush()
        });
        written.map_err(|error| Error::io("write", &path, &error))?;
        self.bytes = 0;
        self.written.push(path);
        Ok(())
    }
}

/// A run, being read.
pub(super) struct Run {
    path: PathBuf,
    file: BufReader<File>,
    /// Bytes that are left to read.
    rest: u64,
}

impl Run {
    fn open(path: PathBuf) -> Result<Self> {
        let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (rest, file) = opened.map_err(|error| Error::io("open", &path, &error))?;
        Ok(Self { path, file: BufReader::new(file), rest })
    }

    /// The next entry.
    pub(super) fn next_entry(&mut self) -> Result<Option<TableEntry>> {
        if self.rest == 0 {
            return Ok(None);
        }
        let read = read_entry(&mut self.file);
        let (entry, bytes) = read.map_err(|error| Error::io("read", &self.path, &error))?;
        self.rest = self.rest.saturating_sub(bytes);
        Ok(Some(entry))
    }
}

fn read_entry(file: &mut impl Read) -> std::io::Result<(TableEntry, u64)> {
    let (mut length, mut sequence, mut kind) = ([0; 4], [0; 8], [0]);
    let mut next_length = |file: &mut dyn Read| file.read_exact(&mut length).map(|()| u32::from_le_bytes(length));
    let (key_bytes, value_bytes) = (next_length(file)?, next_length(file)?);
    file.read_exact(&mut sequence)?;
    file.read_exact(&mut kind)?;
    let (mut key, mut value) = (vec![0; key_bytes as usize], vec![0; value_bytes as usize]);
    file.read_exact(&mut key)?;
    file.read_exact(&mut value)?;
    let kind = if kind == [PUT] { EntryKind::Put } else { EntryKind::Delete };
    let bytes = 17 + u64::from(key_bytes) + u64::from(value_bytes);
    Ok((TableEntry { key, sequence: u64::from_le_bytes(sequence), kind, value }, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn of_each_key_the_newest_comes_out_in_order(
            keys in proptest::collection::vec((proptest::collection::vec(0..4_u8, 0..4), any::<bool>()), 0..200),
            max_bytes in 1..5000_usize,
        ) {
            let directory = tempfile::tempdir().unwrap();
            let mut runs = Runs::new(directory.path(), max_bytes);
            let mut newest = BTreeMap::new();
            for ((key, is_put), sequence) in keys.into_iter().zip(1..) {
                let kind = if is_put { EntryKind::Put } else { EntryKind::Delete };
                let value = if is_put { vec![sequence as u8; sequence as usize] } else { Vec::new() };
                let entry = TableEntry { key: key.clone(), sequence, kind, value };
                newest.insert(key, entry.clone());
                runs.add(entry).unwrap();
            }
            let mut found = BTreeMap::<Vec<u8>, TableEntry>::new();
            runs.finish().unwrap();
            for mut run in runs.read().unwrap() {
                let mut last = None;
                while let Some(entry) = run.next_entry().unwrap() {
                    prop_assert!(last.as_ref() < Some(&entry.key), "keys rise within a run");
                    last = Some(entry.key.clone());
                    let known = found.entry(entry.key.clone()).or_insert_with(|| entry.clone());
                    if known.sequence < entry.sequence {
                        *known = entry;
                    }
                }
            }
            prop_assert_eq!(found, newest);
        }
    }
}
