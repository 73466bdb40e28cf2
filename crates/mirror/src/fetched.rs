//! Files that a copy fetches, until they take their places: in `D.copy/fetch/`.
//!
//! Invariant: one whose name says that it was checked holds what was wanted, and is on the device.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ecotone_replica::stream::{ContentId, FileKind};

use crate::catalog::hash_file;
use crate::error::{Error, Result};
use crate::files::names_in;
use crate::names::{FileName, beside};
use crate::record;

const FETCH_DIRECTORY: &str = "fetch";
const CHECKED_SUFFIX: &str = "checked";

/// A file to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Want {
    /// Which one.
    pub file: FileName,
    /// What it holds.
    pub content: ContentId,
}

/// Compares a file that was fetched with what was wanted, and syncs it. On any thread, before
/// [`Directory::fetched`](crate::directory::Directory::fetched), which does it otherwise.
///
/// # Errors
///
/// [`Error::Mismatch`]: it is removed. [`Error::Missing`], [`Error::Io`].
pub fn check_fetched(temporary: &Path, want: &Want) -> Result<()> {
    let found = match hash_file(temporary) {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
            return Err(Error::Missing { file: want.file });
        }
        found => found?,
    };
    if found != want.content {
        record::remove_file(temporary)?;
        let what = format!("{} bytes were fetched that are not its {}", found.len, want.content.len);
        return Err(Error::Mismatch { file: want.file, what });
    }
    let synced = File::open(temporary).and_then(|opened| record::flush(&opened));
    synced.map_err(|error| Error::io("sync", temporary, error))?;
    record::rename(temporary, &checked_path(temporary))
}

pub(crate) fn temporary_in(fetched: &Path, want: &Want) -> PathBuf {
    let Want { file, content } = want;
    fetched.join(format!("{}-{}-{}-{:032x}", file.kind as u8, file.number, content.len, content.hash))
}

pub(crate) fn checked_path(temporary: &Path) -> PathBuf {
    temporary.with_extension(CHECKED_SUFFIX)
}

pub(crate) fn fetched_in(directory: &Path) -> PathBuf {
    beside(directory, FETCH_DIRECTORY)
}

/// Removes what was fetched, but for what is wanted.
pub(crate) fn remove_fetched(directory: &Path, is_wanted: impl Fn(&Want) -> bool) -> Result<()> {
    let fetched = fetched_in(directory);
    for name in names_in(&fetched)? {
        let mut parts = name.strip_suffix(&format!(".{CHECKED_SUFFIX}")).unwrap_or(&name).split('-');
        let mut part = || parts.next();
        let want = (|| {
            let kind: u8 = part()?.parse().ok()?;
            let kind = FileKind::ALL.into_iter().find(|known| *known as u8 == kind)?;
            let (number, len) = (part()?.parse().ok()?, part()?.parse().ok()?);
            let hash = u128::from_str_radix(part()?, 16).ok()?;
            Some(Want { file: FileName { kind, number }, content: ContentId { len, hash } })
        })();
        if !want.is_some_and(|want| is_wanted(&want)) {
            record::remove_file(&fetched.join(name))?;
        }
    }
    Ok(())
}
