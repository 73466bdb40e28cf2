//! Whether the files of a copy hold what they should: they are read past the kernel's page cache,
//! so from the device, and compared by content.
//!
//! What they should hold is known by the catalog, by the mark record and by other copies. This
//! module reads and compares; who is asked, and what is done about a file that differs, is decided
//! above it.
//!
//! How far a scrub has come is kept in `D.copy/scrub` ([`Progress`]), so that a server that is
//! started anew each day comes through.
//!
//! Invariant: what the device refuses to read (`EIO`) is damage, as other bytes are: a file like
//! that is replaced. Other errors say nothing of the file.
//!
//! Threads: functions, on the thread of who calls. Files may change meanwhile: whoever finds a
//! difference asks again what the file should hold, and compares once more.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ecotone_io::objects::read_past_cache;
use ecotone_replica::position::Mark;
use ecotone_replica::stream::ContentId;

use crate::catalog::Hasher;
use crate::error::{Error, Result};
use crate::fetched::{Want, checked_path, temporary_in};
use crate::files::files_in;
use crate::names::{FileName, beside, path_of};
use crate::record::{self, Reader};

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 1 << 20;
const PROGRESS_FILE: &str = "scrub";
const PROGRESS_MAGIC: &[u8; 8] = b"ECOSCRB1";
/// What is fetched to take the place of damaged files.
const MEND_DIRECTORY: &str = "mend";

/// How many bytes were read. False: stop.
pub type Pace<'a> = &'a mut dyn FnMut(u64) -> bool;

/// What a comparison has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compared {
    /// It holds what it should.
    Same,
    /// It does not: how that is seen.
    Differs(String),
    /// There is no such file.
    Missing,
    /// The pace has said so.
    Stopped,
}

/// The first bytes of a file that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which file.
    pub file: FileName,
    /// How many.
    pub len: u64,
    /// Their CRC-32C.
    pub crc: u32,
}

/// What the files of a copy should hold, as the copy itself knows it.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// At this mark.
    pub mark: Mark,
    /// Finished files whose content is known.
    pub finished: BTreeMap<FileName, ContentId>,
    /// Files that grow, as far as they are recorded.
    pub growing: Vec<Part>,
    /// Finished files that are still to be fetched.
    pub absent: BTreeSet<FileName>,
}

/// The tables and segments in a directory, with their lengths. A segment may be growing.
///
/// # Errors
///
/// [`Error::Io`].
pub fn tables_and_segments(directory: &Path) -> Result<Vec<(FileName, u64)>> {
    Ok(files_in(directory)?.into_iter().filter(|(file, _)| file.is_finished_once()).collect())
}

/// Compares a finished file with its content id.
///
/// # Errors
///
/// [`Error::Io`], which says nothing of what it holds.
pub fn compare_finished(directory: &Path, file: FileName, content: ContentId, pace: Pace<'_>) -> Result<Compared> {
    let path = path_of(directory, file);
    let len = match fs::metadata(&path) {
        Ok(metadata) => metadata.len(),
        Err(error) => return judge("look at", &path, error),
    };
    if len != content.len {
        return Ok(Compared::Differs(format!("it has {len} bytes, not {}", content.len)));
    }
    let mut hasher = Hasher::new();
    let read = |at, bytes: usize| read_past_cache(&path, at, bytes);
    let seen = each_piece(&path, len, read, pace, |piece| hasher.update(piece))?;
    if seen != Compared::Same || hasher.finish() == content {
        return Ok(seen);
    }
    Ok(Compared::Differs("its bytes are not those that were written".to_owned()))
}

/// Compares the first bytes of a file that grows. They are read through the page cache: what was
/// just written is there.
///
/// # Errors
///
/// [`Error::Io`], which says nothing of what it holds.
pub fn compare_part(directory: &Path, part: Part, pace: Pace<'_>) -> Result<Compared> {
    let path = path_of(directory, part.file);
    let opened = match File::open(&path) {
        Ok(opened) => opened,
        Err(error) => return judge("open", &path, error),
    };
    let mut crc = 0;
    let read = |at, bytes: usize| {
        let mut piece = vec![0; bytes];
        opened.read_exact_at(&mut piece, at).map(|()| piece)
    };
    let seen = each_piece(&path, part.len, read, pace, |piece| crc = crc32c::crc32c_append(crc, piece))?;
    if seen != Compared::Same || crc == part.crc {
        return Ok(seen);
    }
    Ok(Compared::Differs(format!("its first {} bytes are not those that were written", part.len)))
}

fn each_piece(
    path: &Path,
    len: u64,
    read: impl Fn(u64, usize) -> io::Result<Vec<u8>>,
    pace: Pace<'_>,
    mut take: impl FnMut(&[u8]),
) -> Result<Compared> {
    let mut at = 0;
    while at < len {
        let bytes = usize::try_from(len - at).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
        match read(at, bytes) {
            Ok(piece) => take(&piece),
            Err(error) => return judge("read", path, error),
        }
        at += bytes as u64;
        if !pace(bytes as u64) {
            return Ok(Compared::Stopped);
        }
    }
    Ok(Compared::Same)
}

/// What an error says of a file, if it says something.
fn judge(action: &'static str, path: &Path, error: io::Error) -> Result<Compared> {
    match error.kind() {
        ErrorKind::NotFound => Ok(Compared::Missing),
        ErrorKind::UnexpectedEof => Ok(Compared::Differs("it ends too early".to_owned())),
        _ if error.raw_os_error() == Some(libc::EIO) => Ok(Compared::Differs("the device cannot read it".to_owned())),
        _ => Err(Error::io(action, path, error)),
    }
}

/// Where what is to take the place of a damaged file is fetched to, and where
/// [`check_fetched`](crate::directory::check_fetched) then has it.
#[must_use]
pub fn mend_path(directory: &Path, want: &Want) -> PathBuf {
    temporary_in(&beside(directory, MEND_DIRECTORY), want)
}

pub(crate) fn mended_path(directory: &Path, want: &Want) -> PathBuf {
    checked_path(&mend_path(directory, want))
}

/// Removes what was fetched and took no place.
///
/// # Errors
///
/// [`Error::Io`].
pub fn remove_unused(directory: &Path) -> Result<()> {
    record::remove_directory(&beside(directory, MEND_DIRECTORY))
}

/// How far the comparison of all files has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Files up to this one were compared in this round; none: it has not begun.
    pub after: Option<FileName>,
    /// When this round began, in seconds since 1970.
    pub began_s: u64,
    /// When the last whole round ended, in seconds since 1970; 0: there was none.
    pub ended_s: u64,
}

impl Progress {
    /// What is remembered of the directory's copy. What cannot be understood is as nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn read(directory: &Path) -> Result<Progress> {
        let decode = |reader: &mut Reader| {
            let after = if reader.bool()? { Some(reader.file()?) } else { None };
            Some(Progress { after, began_s: reader.u64()?, ended_s: reader.u64()? })
        };
        match record::read_checked(&beside(directory, PROGRESS_FILE), PROGRESS_MAGIC, decode) {
            Ok(progress) => Ok(progress.unwrap_or_default()),
            Err(Error::Malformed { .. }) => Ok(Progress::default()),
            Err(error) => Err(error),
        }
    }

    /// Remembers it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: what was remembered before is.
    pub fn write(&self, directory: &Path) -> Result<()> {
        let mut payload = record::Writer::default();
        payload.u8(u8::from(self.after.is_some()));
        if let Some(file) = self.after {
            payload.file(file);
        }
        payload.u64(self.began_s).u64(self.ended_s);
        record::write_checked(&beside(directory, PROGRESS_FILE), PROGRESS_MAGIC, &payload.0)
    }
}

#[cfg(test)]
mod tests {
    use ecotone_replica::stream::FileKind;

    use super::*;
    use crate::catalog::hash_file;
    use crate::names::copy_directory;

    const TABLE: FileName = FileName::new(FileKind::Table, 12);

    /// A table of three pieces and some bytes, and what it holds.
    fn table(directory: &Path) -> (Vec<u8>, ContentId) {
        let bytes: Vec<u8> = (0..3 * PIECE_BYTES + 17).map(|at| (at.wrapping_mul(31) >> 3) as u8).collect();
        fs::write(path_of(directory, TABLE), &bytes).unwrap();
        (bytes, hash_file(&path_of(directory, TABLE)).unwrap())
    }

    #[test]
    fn a_flipped_bit_a_lost_end_and_a_lost_file_are_seen() {
        let directory = tempfile::tempdir().unwrap();
        let (bytes, content) = table(directory.path());
        let path = path_of(directory.path(), TABLE);
        let compare = || compare_finished(directory.path(), TABLE, content, &mut |_| true).unwrap();
        assert_eq!(compare(), Compared::Same);
        for at in [0, PIECE_BYTES - 1, PIECE_BYTES, bytes.len() - 1] {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(&path, bad).unwrap();
            assert!(matches!(compare(), Compared::Differs(_)), "{at}");
        }
        for len in [0, PIECE_BYTES, bytes.len() - 1] {
            fs::write(&path, &bytes[..len]).unwrap();
            assert!(matches!(compare(), Compared::Differs(what) if what.contains(&len.to_string())), "{len}");
        }
        fs::write(&path, &bytes).unwrap();
        assert_eq!(compare(), Compared::Same);
        fs::remove_file(&path).unwrap();
        assert_eq!(compare(), Compared::Missing);
    }

    #[test]
    fn a_part_is_compared_and_what_follows_it_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let (bytes, _) = table(directory.path());
        let path = path_of(directory.path(), TABLE);
        let len = PIECE_BYTES + 100;
        let part = Part { file: TABLE, len: len as u64, crc: crc32c::crc32c(&bytes[..len]) };
        let compare = || compare_part(directory.path(), part, &mut |_| true).unwrap();
        for (at, is_same) in [(0, false), (len - 1, false), (len, true)] {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            fs::write(&path, changed).unwrap();
            assert_eq!(compare() == Compared::Same, is_same, "{at}");
        }
        fs::write(&path, &bytes[..len - 1]).unwrap();
        assert!(matches!(compare(), Compared::Differs(_)));
        fs::remove_file(&path).unwrap();
        assert_eq!(compare(), Compared::Missing);
    }

    #[test]
    fn all_bytes_are_counted_and_a_stop_is_no_finding() {
        let directory = tempfile::tempdir().unwrap();
        let (bytes, content) = table(directory.path());
        let mut counted = 0;
        let mut count = |bytes| {
            counted += bytes;
            true
        };
        assert_eq!(compare_finished(directory.path(), TABLE, content, &mut count).unwrap(), Compared::Same);
        assert_eq!(counted, bytes.len() as u64);
        let mut bad = bytes;
        bad[0] ^= 1;
        fs::write(path_of(directory.path(), TABLE), bad).unwrap();
        let stopped = compare_finished(directory.path(), TABLE, content, &mut |_| false).unwrap();
        assert_eq!(stopped, Compared::Stopped);
    }

    #[test]
    fn progress_is_remembered_and_damage_of_it_begins_anew() {
        let above = tempfile::tempdir().unwrap();
        let directory = above.path().join("store");
        fs::create_dir_all(copy_directory(&directory)).unwrap();
        assert_eq!(Progress::read(&directory).unwrap(), Progress::default());
        for after in [Some(TABLE), None] {
            let progress = Progress { after, began_s: 70, ended_s: 9 };
            progress.write(&directory).unwrap();
            assert_eq!(Progress::read(&directory).unwrap(), progress);
        }
        let path = beside(&directory, PROGRESS_FILE);
        let mut bytes = fs::read(&path).unwrap();
        bytes[9] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(Progress::read(&directory).unwrap(), Progress::default());
    }
}
