//! Space that is kept for the next opening. An opening writes a MANIFEST, OPTIONS and a WAL before
//! anything is read, so a disk that somebody else has filled to the last byte would keep a store
//! from being read. A file without meaning holds as much, and goes first.
//!
//! - While there is room, the file is as long as an opening needs, twice over ([`Ballast::keep`]).
//! - An opening that finds less free than it may write removes the file ([`Shortage::relieve`]). If
//!   that is not enough it removes what RocksDB would remove once it is open, and has no use for
//!   before: its logs for people, former OPTIONS, tables that no MANIFEST names, and what is
//!   allocated behind the ends of WALs. And it writes no more than it must: what lies in WALs stays
//!   there instead of being flushed.
//! - As soon as the store is open the file is made again, as long as what is left allows: so the
//!   next start is as good, also where nobody frees anything, and whoever fills the disk is not
//!   faster.
//!
//! Failure: a file that cannot be made is tried again; where there is none, an opening on a full
//! disk fails as it says.
//!
//! Threads: that which opens the store, then that of [`super::watch`].

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::measure;
use crate::offline::survey::unnamed_tables;

/// Its name, in the store's folder.
pub(crate) const BALLAST_FILE: &str = "BALLAST";

const MIB: u64 = 1 << 20;

/// What an opening writes beside the MANIFEST: OPTIONS, CURRENT, and the first piece of a WAL.
const OPENING_BYTES: u64 = MIB / 2;

/// The most that it takes of the space there is (one part in so many).
const MAX_SHARE: u64 = 64;

/// Left free where the file is made again on a disk that is full.
const LEFT_BYTES: u64 = MIB / 16;

/// A shorter file helps nobody.
const MIN_BYTES: u64 = MIB / 16;

/// Between two probes at how long the file is to be.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// What an opening of the store in `directory` writes at most, beside what it flushes: the MANIFEST
/// is written anew, and no longer.
fn opening_bytes(directory: &Path) -> u64 {
    let manifest = fs::read_to_string(directory.join("CURRENT")).ok().and_then(|current| {
        let name = current.trim_end();
        Some(fs::metadata(directory.join(name)).ok()?.len()).filter(|_| name.starts_with("MANIFEST-"))
    });
    OPENING_BYTES + manifest.unwrap_or(0)
}

/// Bytes of all WALs.
fn wal_bytes(directory: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if Path::new(&entry.file_name()).extension().is_some_and(|extension| extension == "log") {
            bytes += entry.metadata().map_or(0, |metadata| metadata.len());
        }
    }
    Ok(bytes)
}

/// That there is less free than an opening may write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shortage {
    /// Bytes that replay may bring into memtables, which are not to be flushed.
    pub(crate) wal_bytes: u64,
}

impl Shortage {
    /// Whether the store in `directory` is short of space, after what can be freed was freed.
    /// `None`: it is not. `met` says that the end of the disk was met, whatever the file system
    /// says that is free (there are quotas). `tables_may_go`: the MANIFEST is known to be whole, so
    /// that a table which it does not name is of no use.
    ///
    /// # Errors
    ///
    /// Where the file system or the folder cannot be asked.
    pub(crate) fn relieve(directory: &Path, met: bool, tables_may_go: bool) -> io::Result<Option<Self>> {
        let wal_bytes = wal_bytes(directory)?;
        let opening = opening_bytes(directory);
        let free = || measure::file_system(directory).map(|(free, _)| free);
        // What is in a WAL is flushed, into tables that are no longer, and there may be a new WAL
        // of the same length.
        let all = opening.saturating_mul(2).saturating_add(wal_bytes.saturating_mul(2));
        let before = free()?;
        if before >= all && !met {
            return Ok(None);
        }
        let released = remove(&directory.join(BALLAST_FILE));
        let mut freed = 0;
        if met || free()? < opening {
            freed = free_what_has_no_use(directory, tables_may_go);
        }
        let now = free()?;
        tracing::warn!(
            ?directory,
            free_bytes = before,
            released_bytes = released,
            freed_bytes = freed,
            now_free_bytes = now,
            "the disk is full, or nearly so: the store is opened with the space that was kept for this, for reading and for what deletions \
             the reserve allows; writes are taken once there is room again"
        );
        Ok((met || now < all).then_some(Self { wal_bytes }))
    }
}

/// Removes what RocksDB removes once the store is open. Returns how many bytes that were.
fn free_what_has_no_use(directory: &Path, tables_may_go: bool) -> u64 {
    let (mut logs, mut wals, mut options) = (Vec::new(), Vec::new(), Vec::new());
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_name().as_encoded_bytes() {
            b"LOG" => logs.push(entry.path()),
            name if name.starts_with(b"LOG.old.") => logs.push(entry.path()),
            name if name.starts_with(b"OPTIONS-") => options.push(entry.path()),
            name if name.ends_with(b".log") => wals.push(entry.path()),
            _ => (),
        }
    }
    for wal in wals {
        let cut = File::options().write(true).open(&wal).and_then(|file| file.set_len(file.metadata()?.len()));
        if let Err(error) = cut {
            tracing::warn!(?wal, %error, "what is allocated behind the end of the log could not be freed");
        }
    }
    let tables = if tables_may_go { unnamed_tables(directory).unwrap_or_default() } else { Vec::new() };
    // The newest one stays: a worker may be reading it.
    options.sort();
    options.pop();
    logs.iter().chain(&options).chain(&tables).map(|path| remove(path)).sum()
}

/// Removes a file. Returns how many bytes it had.
fn remove(path: &Path) -> u64 {
    let bytes = fs::metadata(path).map_or(0, |metadata| metadata.len());
    match fs::remove_file(path) {
        Ok(()) => bytes,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(?path, %error, "the file could not be removed to make room");
            }
            0
        }
    }
}

/// The file of a store that is open.
#[derive(Debug)]
pub(crate) struct Ballast {
    directory: PathBuf,
    /// How long it is.
    bytes: u64,
    looked: Option<Instant>,
}

impl Ballast {
    pub(crate) fn of(directory: &Path) -> Self {
        let bytes = fs::metadata(directory.join(BALLAST_FILE)).map_or(0, |metadata| metadata.len());
        Self { directory: directory.to_path_buf(), bytes, looked: None }
    }

    /// Makes the file as long as it should be, or as `free_bytes` of `space_bytes` allow. To be
    /// called again and again.
    pub(crate) fn keep(&mut self, free_bytes: u64, space_bytes: u64) {
        if self.looked.is_some_and(|looked| looked.elapsed() < PROBE_INTERVAL) {
            return;
        }
        self.looked = Some(Instant::now());
        let wanted = opening_bytes(&self.directory).saturating_mul(2).min(space_bytes / MAX_SHARE);
        let possible = self.bytes.saturating_add(free_bytes.saturating_sub(LEFT_BYTES)).min(wanted);
        if possible <= self.bytes || possible < MIN_BYTES {
            return;
        }
        match lengthen(&self.directory.join(BALLAST_FILE), possible) {
            Ok(()) => self.bytes = possible,
            // Somebody was faster.
            Err(error) => {
                tracing::debug!(directory = ?self.directory, %error, "no space is kept for the next opening yet")
            }
        }
    }
}

/// Has `bytes` of the device for a file. One that cannot have them all is left as it was.
fn lengthen(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = File::options().create(true).append(true).open(path)?;
    let before = file.metadata()?.len();
    let taken = match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        // A file system that cannot reserve takes what is written.
        Err(Errno::OPNOTSUPP) => fill(&mut file, bytes.saturating_sub(before)),
        Err(error) => Err(error.into()),
    };
    taken.inspect_err(|_| drop(if before == 0 { fs::remove_file(path) } else { file.set_len(before) }))
}

fn fill(file: &mut File, bytes: u64) -> io::Result<()> {
    let zeros = [0; 64 * 1024];
    let mut left = bytes;
    while left > 0 {
        let piece = left.min(zeros.len() as u64);
        file.write_all(&zeros[..piece as usize])?;
        left -= piece;
    }
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn it_takes_what_an_opening_writes_twice_over_and_no_more_than_its_share() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(BALLAST_FILE);
        let kept = |free, space| {
            Ballast::of(directory.path()).keep(free, space);
            fs::metadata(&path).map_or(0, |metadata| metadata.len())
        };
        assert_eq!(kept(LEFT_BYTES + MIN_BYTES - 1, u64::MAX), 0, "too short to be of use");
        assert_eq!(kept(LEFT_BYTES + MIN_BYTES, u64::MAX), MIN_BYTES, "what is left");
        assert_eq!(kept(0, u64::MAX), MIN_BYTES, "it does not get shorter");
        assert_eq!(kept(100 * MIB, 16 * MIB), MIB / 4, "its share");
        assert_eq!(kept(100 * MIB, u64::MAX), 2 * OPENING_BYTES);
        fs::write(directory.path().join("CURRENT"), "MANIFEST-000001\n").unwrap();
        fs::write(directory.path().join("MANIFEST-000001"), vec![0; 3 * MIB as usize]).unwrap();
        assert_eq!(kept(100 * MIB, u64::MAX), 2 * (OPENING_BYTES + 3 * MIB));
        assert!(
            fs::metadata(&path).unwrap().blocks() * 512 >= 2 * (OPENING_BYTES + 3 * MIB),
            "it has them of the device"
        );
    }
}
