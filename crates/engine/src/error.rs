//! The errors of this crate. Each kind tells the caller what to do: wait, choose another directory,
//! fix the configuration, free disk space, reopen, or restore from a copy.

use std::path::{Path, PathBuf};

use rust_rocksdb::ErrorKind;

use crate::space::free_space::FreeSpace;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call on a store failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process, or another [`Store`](crate::Store) of this process, has the directory open
    /// for writing. Close it there, or open read-only. A lock left by a process that died does not
    /// cause this.
    #[error("store {directory:?} is locked by {holder}: close it there, or open it read-only here ({detail})")]
    Locked {
        /// The store's directory.
        directory: PathBuf,
        /// Who holds the lock, as far as it is known.
        holder: LockHolder,
        /// RocksDB's words.
        detail: String,
    },
    /// What was read does not fit together, and somebody has the store open for writing, who
    /// removes files and makes others meanwhile. Nothing is known to be wrong. Close the store
    /// there, or make a checkpoint and read that; then try again.
    #[error(
        "the store {directory:?} is in use by {holder}, which changes files while they are read here: close it there, or read \
         a checkpoint, then try again ({detail})"
    )]
    InUse {
        /// The store's directory.
        directory: PathBuf,
        /// Who has it open.
        holder: LockHolder,
        /// What did not fit.
        detail: String,
    },
    /// There is no store in the directory. Create one, or correct the path.
    #[error("no store in {directory:?}: {reason}")]
    NotFound {
        /// The directory that was to be opened.
        directory: PathBuf,
        /// What is missing.
        reason: &'static str,
    },
    /// A store was to be created where one exists. Open it, or choose another directory.
    #[error("a store exists already in {directory:?}: open it, or choose another directory")]
    AlreadyExists {
        /// The directory.
        directory: PathBuf,
    },
    /// The directory holds something else, or a store of a format that this version cannot read.
    #[error("{directory:?} is not a store that this version can open: {reason}")]
    WrongFormat {
        /// The directory.
        directory: PathBuf,
        /// What was found, and what to do.
        reason: String,
    },
    /// Bytes that were read are not those that were written. Stop using the store and restore it
    /// from a replica or a checkpoint; opening again does not heal it.
    #[error("corrupt data in {}: {detail}", location.as_deref().unwrap_or("the store"))]
    Corrupt {
        /// The file or the key, where it is known.
        location: Option<String>,
        /// What does not match.
        detail: String,
    },
    /// The device is full, though the store keeps some of it free: another process was faster, or
    /// the reserve is too small. Free space; the store takes writes again by itself, a few seconds
    /// later.
    #[error("no space left for the store: {detail}: free space on the device")]
    DiskFull {
        /// RocksDB's words.
        detail: String,
    },
    /// The store is near the end of the space that it may take, and refuses writes before it meets
    /// the end. Reads go on, and so do deletions for a while. Delete data or free space; the store
    /// then takes writes again by itself: retry later.
    #[error("the store {directory:?} refuses this write: {}", shortage(free_space))]
    OutOfSpace {
        /// The store's directory.
        directory: PathBuf,
        /// What was found when somebody looked last.
        free_space: Box<FreeSpace>,
    },
    /// A write to a store that was opened read-only.
    #[error("the store {directory:?} is open read-only")]
    ReadOnly {
        /// The store's directory.
        directory: PathBuf,
    },
    /// An argument or an option is out of its range. Fix the caller or the configuration.
    #[error("invalid {field}: {reason}")]
    InvalidArgument {
        /// The argument or the option, as it is named in the API.
        field: &'static str,
        /// What is wrong, and the range.
        reason: String,
    },
    /// The operating system refused an operation.
    #[error("cannot {action} {path:?}: {detail}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The reason.
        detail: String,
    },
    /// Background work (flush, compaction) or a sync failed earlier, and the store takes no more
    /// writes. Reads go on. Remove the cause, then close and open the store again.
    #[error("the store stopped taking writes after a background error: {detail}: remove the cause, then reopen it")]
    Background {
        /// The first error.
        detail: String,
    },
    /// The store is closing or closed.
    #[error("the store is closed")]
    Closed,
    /// RocksDB is busy with a conflicting operation, or asks to try again. Retry later.
    #[error("the store is busy: {detail}: try again")]
    Busy {
        /// RocksDB's words.
        detail: String,
    },
    /// It cannot be had at once, and the caller does not wait. Try again where waiting is allowed.
    #[error("this cannot be had without waiting")]
    WouldBlock,
    /// Any other failure that RocksDB reports.
    #[error("RocksDB: {detail}")]
    Rocks {
        /// RocksDB's words.
        detail: String,
    },
}

/// Who holds a store's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockHolder {
    /// A store of this process.
    ThisProcess,
    /// Another process.
    AnotherProcess {
        /// Its number, where the kernel tells it.
        pid: Option<i32>,
    },
}

impl std::fmt::Display for LockHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ThisProcess => f.write_str("this process"),
            Self::AnotherProcess { pid: Some(pid) } => write!(f, "process {pid}"),
            Self::AnotherProcess { pid: None } => f.write_str("another process"),
        }
    }
}

impl Error {
    /// [`Error::InvalidArgument`].
    pub fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        Self::InvalidArgument { field, reason: reason.into() }
    }

    /// [`Error::InUse`], after something that did not fit was `found`.
    pub fn in_use(directory: &Path, holder: LockHolder, found: &impl ToString) -> Self {
        Self::InUse { directory: directory.to_path_buf(), holder, detail: found.to_string() }
    }

    /// What the operating system said to `action` on `path`: [`Error::DiskFull`] or [`Error::Io`].
    pub fn io(action: &'static str, path: &Path, error: &std::io::Error) -> Self {
        if matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded) {
            return Self::DiskFull { detail: format!("cannot {action} {path:?}: {error}") };
        }
        Self::Io { action, path: path.to_path_buf(), detail: error.to_string() }
    }

    /// Sorts what RocksDB said while a store was being opened. `another_process` finds who holds
    /// its lock.
    pub(crate) fn from_open(
        directory: &Path,
        error: &rust_rocksdb::Error,
        another_process: impl FnOnce(&Path) -> LockHolder,
    ) -> Self {
        let detail = error.as_ref();
        // Two messages of env/fs_posix.cc: its own table of locks, and fcntl's refusal.
        if detail.contains("lock hold by current process") {
            return Self::Locked {
                directory: directory.to_path_buf(),
                holder: LockHolder::ThisProcess,
                detail: detail.to_owned(),
            };
        }
        if detail.contains("While lock file") && detail.contains("Resource temporarily unavailable") {
            return Self::Locked {
                directory: directory.to_path_buf(),
                holder: another_process(directory),
                detail: detail.to_owned(),
            };
        }
        // CURRENT names the MANIFEST, and nothing else does.
        if detail.contains("No such file or directory")
            && table_in(detail).is_some_and(|file| file.contains("MANIFEST-"))
        {
            return Self::Corrupt {
                location: Some(directory.join("CURRENT").display().to_string()),
                detail: format!("it names a file that is missing: {detail}"),
            };
        }
        match Self::from_rocks(error) {
            Self::Corrupt { location: None, detail } => {
                Self::Corrupt { location: Some(directory.display().to_string()), detail }
            }
            sorted => sorted,
        }
    }

    /// Sorts what RocksDB said during any other call.
    pub(crate) fn from_rocks(error: &rust_rocksdb::Error) -> Self {
        let detail = error.as_ref().to_owned();
        if is_disk_full(&detail) {
            return Self::DiskFull { detail };
        }
        match error.kind() {
            ErrorKind::Corruption => Self::Corrupt { location: table_in(&detail), detail },
            ErrorKind::InvalidArgument => Self::InvalidArgument { field: "argument", reason: detail },
            ErrorKind::ShutdownInProgress => Self::Closed,
            ErrorKind::Busy | ErrorKind::TryAgain | ErrorKind::TimedOut => Self::Busy { detail },
            _ => Self::Rocks { detail },
        }
    }

    pub(crate) fn corrupt_value(key: &[u8], reason: &impl std::fmt::Display) -> Self {
        Self::Corrupt { location: Some(format!("the value of key {}", Printable(key))), detail: reason.to_string() }
    }
}

impl From<ecotone_valuelog::Error> for Error {
    fn from(error: ecotone_valuelog::Error) -> Self {
        match error {
            ecotone_valuelog::Error::Corrupt { location, detail } => Self::Corrupt { location, detail },
            ecotone_valuelog::Error::DiskFull { detail } => Self::DiskFull { detail },
            ecotone_valuelog::Error::Io { action, path, detail } => Self::Io { action, path, detail },
            ecotone_valuelog::Error::Background { detail } => Self::Background { detail },
            // There may be some for the next call.
            error @ (ecotone_valuelog::Error::NoMemory { .. } | ecotone_valuelog::Error::NotMoved { .. }) => {
                Self::Busy { detail: error.to_string() }
            }
            ecotone_valuelog::Error::WouldBlock => Self::WouldBlock,
        }
    }
}

impl From<rust_rocksdb::Error> for Error {
    fn from(error: rust_rocksdb::Error) -> Self {
        Self::from_rocks(&error)
    }
}

/// What an [`Error::OutOfSpace`] says of the room that is left.
fn shortage(free_space: &FreeSpace) -> String {
    let FreeSpace { free_bytes, used_bytes, max_bytes, reserved_bytes, reserve_bytes, .. } = free_space;
    let kept = format!(
        "{reserved_bytes} bytes will be taken by what was written before, and {reserve_bytes} are kept free (space.reserve_bytes)"
    );
    match (used_bytes, max_bytes) {
        (Some(used), Some(max)) if free_space.max_is_nearer() => format!(
            "it takes {used} of its {max} bytes (space.max_bytes), {kept}: delete data or raise the limit, then try again"
        ),
        _ => format!("its file system has {free_bytes} bytes free, {kept}: free space or delete data, then try again"),
    }
}

pub(crate) fn is_disk_full(detail: &str) -> bool {
    detail.contains("No space left on device") || detail.contains("Space limit reached") || detail.contains("NoSpace")
}

/// The first word of RocksDB's message that names one of its files.
fn table_in(detail: &str) -> Option<String> {
    detail
        .split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ',' | ';' | '(' | ')'))
        .map(|word| word.trim_end_matches(['.', ':']))
        .find(|word| {
            let name = word.rsplit('/').next().unwrap_or(word);
            name.starts_with("MANIFEST-") || [".sst", ".log", ".ldb"].iter().any(|end| name.ends_with(end))
        })
        .map(str::to_owned)
}

/// How many bytes of a key an error shows.
const SHOWN_KEY_BYTES: usize = 64;

/// A key as an error shows it: escaped, and cut.
pub struct Printable<'a>(pub &'a [u8]);

impl std::fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN_KEY_BYTES)];
        write!(f, "\"{}\"", shown.escape_ascii())?;
        if shown.len() < self.0.len() {
            write!(f, " and {} more bytes", self.0.len() - shown.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_file_in_what_rocksdb_says() {
        for (said, file) in [
            (
                "Corruption: block checksum mismatch: stored = 1, computed = 2  in /d/000012.sst offset 5 size 9",
                "/d/000012.sst",
            ),
            ("Corruption: Can't access /000034.sst: IO error: No such file", "/000034.sst"),
            ("Corruption: checksum mismatch in MANIFEST-000005.", "MANIFEST-000005"),
        ] {
            assert_eq!(table_in(said).as_deref(), Some(file), "{said}");
        }
        assert_eq!(table_in("Corruption: unknown WriteBatch tag"), None);
    }

    #[test]
    fn a_long_or_binary_key_stays_readable() {
        assert_eq!(Printable(b"a\x00\xff\"").to_string(), r#""a\x00\xff\"""#);
        let long = Printable(&[b'k'; 100]).to_string();
        assert!(long.ends_with("and 36 more bytes"), "{long}");
    }
}
