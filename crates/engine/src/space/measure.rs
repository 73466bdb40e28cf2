//! What is free on a file system, and what a store's directory takes.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use ecotone_valuelog::ValueLog;
use ecotone_valuelog::log::VALUES_DIRECTORY;
use ecotone_valuelog::segment::number_in;

use crate::layout::{CHECKED_DIRECTORY, CHECKPOINTS_DIRECTORY};

/// A table or sealed segment that has not changed for so long is taken to be complete, and not
/// asked again for its length. A segment that is appended to may rest for longer, and is asked each
/// time.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// After so long every file is asked again.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// A unit of `st_blocks`, by POSIX.
const BLOCK_BYTES: u64 = 512;

/// Bytes free for this process on the file system that holds `directory`, and with them those that
/// are taken. What a file system keeps back for its administrator is neither: ext4 a twentieth, and
/// on some machines most of it.
pub(crate) fn file_system(directory: &Path) -> io::Result<(u64, u64)> {
    let system = rustix::fs::statvfs(directory)?;
    let bytes = |blocks: u64| blocks.saturating_mul(system.f_frsize);
    let blocks = free_and_all(system.f_blocks, system.f_bfree, system.f_bavail);
    Ok((bytes(blocks.0), bytes(blocks.1)))
}

fn free_and_all(blocks: u64, free: u64, available: u64) -> (u64, u64) {
    (available, blocks.saturating_sub(free).saturating_add(available))
}

/// Bytes of all files in `directory` that are called tables, whoever names them.
pub(crate) fn table_bytes(directory: &Path) -> io::Result<u64> {
    let mut bytes: u64 = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if is(&entry.file_name(), "sst") {
            bytes = bytes.saturating_add(there(entry.metadata())?.map_or(0, |metadata| metadata.len()));
        }
    }
    Ok(bytes)
}

/// Bytes of the write-ahead logs in `directory`: of each its length or what is allocated for it,
/// whichever is more.
pub(crate) fn log_bytes(directory: &Path) -> io::Result<u64> {
    let mut bytes: u64 = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if is(&entry.file_name(), "log") {
            let taken = |found: Metadata| found.len().max(found.blocks().saturating_mul(BLOCK_BYTES));
            bytes = bytes.saturating_add(there(entry.metadata())?.map_or(0, taken));
        }
    }
    Ok(bytes)
}

/// Counts what a store's directory takes, and remembers the lengths of files that do not change any
/// more.
#[derive(Debug, Default)]
pub(crate) struct OwnBytes {
    settled: HashMap<OsString, u64>,
    since: Option<Instant>,
}

impl OwnBytes {
    /// Bytes of all files below `directory`, whose segments are those of `values`; of each its
    /// length or what is allocated for it, whichever is more.
    pub(crate) fn measure(&mut self, directory: &Path, values: Option<&ValueLog>) -> io::Result<u64> {
        if self.since.is_none_or(|since| since.elapsed() > FORGET_AFTER) {
            self.settled.clear();
            self.since = Some(Instant::now());
        }
        self.below(directory, SystemTime::now(), true, values)
    }

    /// Names of tables and segments are never used again, but for those of outputs that a worker
    /// made: only in `settles` lengths are remembered.
    fn below(
        &mut self,
        directory: &Path,
        now: SystemTime,
        settles: bool,
        values: Option<&ValueLog>,
    ) -> io::Result<u64> {
        let Some(entries) = there(std::fs::read_dir(directory))? else { return Ok(0) };
        let mut bytes: u64 = 0;
        for entry in entries {
            // Removed meanwhile: the rest counts.
            let Some(entry) = there(entry)? else { continue };
            let name = entry.file_name();
            // They are the store's own files by another name.
            if settles && name == CHECKED_DIRECTORY {
                continue;
            }
            let of_entry = match self.settled.get(&name) {
                Some(known) if settles => *known,
                _ => self.of_entry(&entry, name, now, settles, values)?,
            };
            bytes = bytes.saturating_add(of_entry);
        }
        Ok(bytes)
    }

    fn of_entry(
        &mut self,
        entry: &DirEntry,
        name: OsString,
        now: SystemTime,
        settles: bool,
        values: Option<&ValueLog>,
    ) -> io::Result<u64> {
        // Before its length: what is complete now has all its bytes.
        let may_settle = settles && (is(&name, "sst") || is_sealed(&name, values));
        let Some(metadata) = there(entry.metadata())? else { return Ok(0) };
        if metadata.is_dir() && settles && name == CHECKPOINTS_DIRECTORY {
            let mut found = HashMap::new();
            only_within(&entry.path(), &mut found)?;
            return Ok(found.values().map(Found::own_bytes).sum());
        }
        if metadata.is_dir() {
            let settles = settles && name == VALUES_DIRECTORY;
            return self.below(&entry.path(), now, settles, values);
        }
        let bytes = metadata.len().max(metadata.blocks().saturating_mul(BLOCK_BYTES));
        if may_settle && is_settled(&metadata, now) {
            self.settled.insert(name, bytes);
        }
        Ok(bytes)
    }
}

/// A file in the folder of checkpoints.
struct Found {
    bytes: u64,
    /// All its names, wherever they are.
    names: u64,
    /// Those in that folder.
    names_within: u64,
}

impl Found {
    /// What it adds to the store: nothing where the store has it under a name of its own, and
    /// counts it there.
    fn own_bytes(&self) -> u64 {
        if self.names_within == self.names { self.bytes } else { 0 }
    }
}

/// Notes the files below `directory`, each once however many names it has.
fn only_within(directory: &Path, found: &mut HashMap<u64, Found>) -> io::Result<()> {
    for entry in there(std::fs::read_dir(directory))?.into_iter().flatten() {
        let Some(entry) = there(entry)? else { continue };
        let Some(metadata) = there(entry.metadata())? else { continue };
        if metadata.is_dir() {
            only_within(&entry.path(), found)?;
            continue;
        }
        let bytes = metadata.len().max(metadata.blocks().saturating_mul(BLOCK_BYTES));
        found
            .entry(metadata.ino())
            .or_insert(Found { bytes, names: metadata.nlink(), names_within: 0 })
            .names_within += 1;
    }
    Ok(())
}

fn is_settled(metadata: &Metadata, now: SystemTime) -> bool {
    metadata.modified().is_ok_and(|then| now.duration_since(then).is_ok_and(|passed| passed > SETTLED_AFTER))
}

/// Whether it is a segment that nobody appends to any more. One that is just being made is not
/// known yet.
fn is_sealed(name: &OsStr, values: Option<&ValueLog>) -> bool {
    let number = name.to_str().and_then(number_in);
    let segment = values.zip(number).and_then(|(values, number)| values.segment(number));
    segment.is_some_and(|segment| segment.is_sealed())
}

fn is(name: &OsStr, extension: &str) -> bool {
    Path::new(name).extension().is_some_and(|found| found == extension)
}

/// `None` for what is not there any more.
fn there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ecotone_io::tap::Tap;
    use ecotone_valuelog::log::ValueOrigin;

    #[test]
    fn what_a_file_system_keeps_back_is_neither_free_nor_taken() {
        assert_eq!(free_and_all(100, 60, 60), (60, 100));
        // Of 100 blocks 40 are taken and 50 kept back: a fifth of what is for us is free.
        assert_eq!(free_and_all(100, 60, 10), (10, 50));
    }

    #[test]
    fn every_file_counts_and_those_that_are_gone_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        std::fs::create_dir_all(path.join("values")).unwrap();
        std::fs::create_dir_all(path.join("session_tmp/job-1")).unwrap();
        let names =
            ["000007.sst", "values/000001.segment", "session_tmp/job-1/000007.sst", "000009.log", "MANIFEST-000001"];
        // Whole blocks, so that what is allocated is what is written.
        for (number, name) in names.into_iter().enumerate() {
            std::fs::write(path.join(name), vec![1; 65536 * (number + 1)]).unwrap();
        }
        names[..3].iter().for_each(|name| rest(&path.join(name)));
        // Its segments are those of a process before.
        let values = ValueLog::open(path, 1 << 20, Tap::SILENT).unwrap();
        let mut own = OwnBytes::default();
        let measure = |own: &mut OwnBytes| own.measure(path, Some(&values)).unwrap();
        let all = measure(&mut own);
        assert!((15 * 65536..16 * 65536).contains(&all), "{all}");
        assert_eq!(table_bytes(path).unwrap(), 65536);
        // A table of another folder has the same name as one whose length is known.
        assert_eq!(own.settled.len(), 2);
        assert_eq!(measure(&mut own), all);
        std::fs::remove_file(path.join(names[0])).unwrap();
        std::fs::remove_dir_all(path.join("session_tmp")).unwrap();
        assert_eq!(measure(&mut own), all - 4 * 65536);
        assert!(file_system(path).is_ok_and(|(free, all)| free <= all && all > 0));
    }

    #[test]
    fn what_only_checkpoints_name_counts_once_and_what_the_store_names_too_counts_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        for checkpoint in ["1", "2"] {
            std::fs::create_dir_all(path.join(CHECKPOINTS_DIRECTORY).join(checkpoint).join("values")).unwrap();
        }
        let mut own = OwnBytes::default();
        let mut measure = || own.measure(path, None).unwrap();
        let nothing = measure();
        std::fs::write(path.join("000007.sst"), vec![1; 65536]).unwrap();
        for name in ["1/values/000007.sst", "2/values/000007.sst"] {
            std::fs::hard_link(path.join("000007.sst"), path.join(CHECKPOINTS_DIRECTORY).join(name)).unwrap();
        }
        assert_eq!(measure(), nothing + 65536);
        std::fs::remove_file(path.join("000007.sst")).unwrap();
        assert_eq!(measure(), nothing + 65536, "two checkpoints hold it");
        std::fs::write(path.join(CHECKPOINTS_DIRECTORY).join("1/000009.log"), vec![1; 65536]).unwrap();
        assert_eq!(measure(), nothing + 2 * 65536);
        std::fs::remove_dir_all(path.join(CHECKPOINTS_DIRECTORY)).unwrap();
        assert!(measure() <= nothing);
    }

    /// Says that nobody has written to a file for long.
    fn rest(path: &Path) {
        std::fs::File::open(path).unwrap().set_modified(SystemTime::now() - 2 * SETTLED_AFTER).unwrap();
    }

    #[test]
    fn a_segment_that_rests_while_it_is_appended_to_counts_as_long_as_it_grows() {
        const PIECE: usize = 512 << 10;
        let directory = tempfile::tempdir().unwrap();
        let values = ValueLog::open(directory.path(), 64 << 20, Tap::SILENT).unwrap();
        let append = |key: &[u8]| values.append(ValueOrigin::Written, key, &[1; PIECE]).unwrap().0.segment;
        let mut own = OwnBytes::default();
        let mut measure = || own.measure(directory.path(), Some(&values)).unwrap();
        let number = append(b"first");
        let path = values.segment(number).unwrap().path().to_path_buf();
        let mut counted = 0;
        // Each time it is looked at after it has rested for long, and then grows.
        for grown in 1..=3 {
            rest(&path);
            measure();
            assert_eq!(append(b"later"), number, "it is the same segment that grows");
            let now = measure();
            assert!(now >= counted + PIECE as u64 && now > grown * PIECE as u64, "{now} after {counted}");
            counted = now;
        }
        // Sealed it grows no more, and is not asked again.
        values.seal_active();
        rest(&path);
        let sealed = measure();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(1).unwrap();
        assert_eq!(measure(), sealed);
    }
}
