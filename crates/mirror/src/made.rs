//! Tables that this server made for the primary, kept until the copy here wants them: in
//! `D.copy/made/`, as links.
//!
//! A worker whose copy is of the job's shard has the job's outputs on its disk before their owner
//! has them. When the stream names a table of the length of one that is kept, that one is compared
//! with what is wanted ([`check_fetched`](crate::directory::check_fetched)) before anybody is asked
//! for it. What is kept is a guess: nothing rests on it.
//!
//! Bounds: [`MAX_MADE_TABLES`], [`MAX_MADE_BYTES`], the oldest go first; nothing is kept for longer
//! than [`MAX_MADE_AGE_US`], nor over a restart.
//!
//! Failure: what cannot be linked is not kept, and is fetched.

use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::names::beside;
use crate::record;

/// Tables that are kept at a time.
pub const MAX_MADE_TABLES: usize = 256;
/// Bytes of them.
pub const MAX_MADE_BYTES: u64 = 1 << 30;
/// The owner verifies and installs what it was sent, and the stream then names it: all of that
/// takes less, or the job has failed.
pub const MAX_MADE_AGE_US: u64 = 120_000_000;

const MADE_DIRECTORY: &str = "made";

/// See the module.
#[derive(Debug)]
pub struct Made {
    folder: PathBuf,
    /// The oldest first.
    tables: VecDeque<Table>,
    bytes: u64,
    next: u64,
}

#[derive(Debug)]
struct Table {
    path: PathBuf,
    len: u64,
    since_us: u64,
}

impl Made {
    /// Of the copy at `directory`: nothing is kept yet, nor anything of an earlier process.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn begin(directory: &Path) -> Result<Self> {
        let folder = beside(directory, MADE_DIRECTORY);
        record::remove_directory(&folder)?;
        Ok(Self { folder, tables: VecDeque::new(), bytes: 0, next: 0 })
    }

    /// Keeps the table at `path`, which is complete. `now_us` is the caller's clock.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::TooMuch`]: it is not kept.
    pub fn keep(&mut self, path: &Path, now_us: u64) -> Result<()> {
        let metadata = fs::metadata(path).map_err(|error| Error::io("look at", path, error))?;
        let len = metadata.len();
        if len > MAX_MADE_BYTES {
            return Err(Error::TooMuch { what: "bytes of a table that was made here", limit: MAX_MADE_BYTES });
        }
        while self.tables.len() >= MAX_MADE_TABLES || self.bytes + len > MAX_MADE_BYTES {
            self.drop_first()?;
        }
        fs::create_dir_all(&self.folder).map_err(|error| Error::io("create the directory", &self.folder, error))?;
        let kept = self.folder.join(self.next.to_string());
        record::link(path, &kept).map_err(|error| Error::io("link", &kept, error))?;
        self.next += 1;
        self.bytes += len;
        self.tables.push_back(Table { path: kept, len, since_us: now_us });
        Ok(())
    }

    /// Gives one of this length the name `to`, and keeps it no more. False where there is none.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: it is not kept any more.
    pub fn take(&mut self, len: u64, to: &Path) -> Result<bool> {
        let Some(at) = self.tables.iter().position(|table| table.len == len) else { return Ok(false) };
        let Some(table) = self.tables.remove(at) else { return Ok(false) };
        self.bytes -= table.len;
        match fs::rename(&table.path, to) {
            Ok(()) => Ok(true),
            // Another directory has taken the copy's place.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::io("rename", &table.path, error)),
        }
    }

    /// Removes what nobody has wanted in time.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: it is not kept any more.
    pub fn expire(&mut self, now_us: u64) -> Result<()> {
        while self.tables.front().is_some_and(|table| now_us >= table.since_us + MAX_MADE_AGE_US) {
            self.drop_first()?;
        }
        Ok(())
    }

    fn drop_first(&mut self) -> Result<()> {
        let Some(table) = self.tables.pop_front() else { return Ok(()) };
        self.bytes -= table.len;
        record::remove_file(&table.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn kept_in(directory: &Path) -> usize {
        fs::read_dir(beside(directory, MADE_DIRECTORY)).map_or(0, Iterator::count)
    }

    #[test]
    fn what_was_made_here_is_taken_once_by_its_length_and_outlives_the_job() {
        let above = tempfile::tempdir().unwrap();
        let directory = above.path().join("store");
        fs::create_dir_all(&directory).unwrap();
        let mut made = Made::begin(&directory).unwrap();
        let outputs = [table(above.path(), "1.sst", b"one"), table(above.path(), "2.sst", b"three")];
        for output in &outputs {
            made.keep(output, 0).unwrap();
            fs::remove_file(output).unwrap();
        }
        let to = above.path().join("taken");
        assert!(!made.take(4, &to).unwrap());
        assert!(made.take(5, &to).unwrap());
        assert_eq!(fs::read(&to).unwrap(), b"three");
        assert!(!made.take(5, &to).unwrap());
        assert_eq!(kept_in(&directory), 1);
        // Whoever begins anew does not know what it was made for.
        drop(made);
        assert!(!Made::begin(&directory).unwrap().take(3, &to).unwrap());
        assert_eq!(kept_in(&directory), 0);
    }

    #[test]
    fn it_goes_with_time_and_the_oldest_makes_way() {
        let above = tempfile::tempdir().unwrap();
        let directory = above.path().join("store");
        fs::create_dir_all(&directory).unwrap();
        let mut made = Made::begin(&directory).unwrap();
        for number in 0..=MAX_MADE_TABLES {
            let output = table(above.path(), "table", &vec![7; number + 1]);
            made.keep(&output, number as u64).unwrap();
            fs::remove_file(&output).unwrap();
        }
        assert_eq!(kept_in(&directory), MAX_MADE_TABLES);
        let to = above.path().join("taken");
        assert!(!made.take(1, &to).unwrap() && made.take(2, &to).unwrap());
        made.expire(MAX_MADE_AGE_US + 10).unwrap();
        assert!(!made.take(11, &to).unwrap() && made.take(12, &to).unwrap());
        made.expire(u64::MAX).unwrap();
        assert_eq!(kept_in(&directory), 0);
        // A sparse file: as long as all that may be kept.
        let long = above.path().join("long");
        fs::File::create(&long).unwrap().set_len(MAX_MADE_BYTES).unwrap();
        made.keep(&table(above.path(), "short", b"s"), 0).unwrap();
        made.keep(&long, 0).unwrap();
        assert_eq!(kept_in(&directory), 1);
        assert!(!made.take(1, &to).unwrap() && made.take(MAX_MADE_BYTES, &to).unwrap());
        fs::File::options().write(true).open(&to).unwrap().set_len(MAX_MADE_BYTES + 1).unwrap();
        assert!(matches!(made.keep(&to, 0), Err(Error::TooMuch { .. })));
    }
}
