//! How the files of a store are called, and what lies beside its directory.
//!
//! Only files that the stream speaks of have a name here. `DURABLE`, the watermark, `LOCK`, `LOG`,
//! `OPTIONS-*`, `IDENTITY`, and all that lies in other subdirectories than `values` belong to one
//! copy alone.
//!
//! Invariant: each number has one spelling, so that no two paths are one file.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ecotone_replica::stream::FileKind;

/// Where the segments of the value log are, in the directory of a store.
pub const VALUES_DIRECTORY: &str = "values";

const CURRENT: &str = "CURRENT";
const STORE: &str = "STORE";
const MANIFEST_PREFIX: &str = "MANIFEST-";
const WAL_SUFFIX: &str = ".log";
const TABLE_SUFFIX: &str = ".sst";
const SEGMENT_SUFFIX: &str = ".segment";

/// Digits that a number has at least in a name.
const MIN_DIGITS: usize = 6;

/// A file of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName {
    /// Which kind of file.
    pub kind: FileKind,
    /// Its number. That of `CURRENT` is not in its name but in it, and 0 where nobody has looked.
    pub number: u64,
}

impl FileName {
    /// A file.
    #[must_use]
    pub const fn new(kind: FileKind, number: u64) -> Self {
        Self { kind, number }
    }

    /// Whether it is appended to, at once or later, as items of the stream say.
    #[must_use]
    pub const fn is_appended_to(self) -> bool {
        matches!(self.kind, FileKind::Segment | FileKind::Wal | FileKind::Manifest)
    }

    /// Whether it is finished once, and never changed after.
    #[must_use]
    pub const fn is_finished_once(self) -> bool {
        matches!(self.kind, FileKind::Segment | FileKind::Table)
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number;
        match self.kind {
            FileKind::Segment => write!(f, "{VALUES_DIRECTORY}/{number:0MIN_DIGITS$}{SEGMENT_SUFFIX}"),
            FileKind::Wal => write!(f, "{number:0MIN_DIGITS$}{WAL_SUFFIX}"),
            FileKind::Manifest => write!(f, "{MANIFEST_PREFIX}{number:0MIN_DIGITS$}"),
            FileKind::Table => write!(f, "{number:0MIN_DIGITS$}{TABLE_SUFFIX}"),
            FileKind::Current => f.write_str(CURRENT),
            FileKind::Store => f.write_str(STORE),
        }
    }
}

/// The file of the store in `directory` that is called `path`; `None` for one that the stream does
/// not speak of.
#[must_use]
pub fn parse(directory: &Path, path: &Path) -> Option<FileName> {
    // Of bytes, because each append to a log comes by here.
    let within = path.as_os_str().as_bytes().strip_prefix(trimmed(directory.as_os_str().as_bytes()))?;
    let name = behind_slashes(within)?;
    let (kind, digits) = match name.strip_prefix(VALUES_DIRECTORY.as_bytes()).and_then(behind_slashes) {
        Some(name) => (FileKind::Segment, name.strip_suffix(SEGMENT_SUFFIX.as_bytes())?),
        None if name == CURRENT.as_bytes() => return Some(FileName::new(FileKind::Current, 0)),
        None if name == STORE.as_bytes() => return Some(FileName::new(FileKind::Store, 0)),
        None => match (name.strip_suffix(WAL_SUFFIX.as_bytes()), name.strip_suffix(TABLE_SUFFIX.as_bytes())) {
            (Some(digits), _) => (FileKind::Wal, digits),
            (None, Some(digits)) => (FileKind::Table, digits),
            (None, None) => (FileKind::Manifest, name.strip_prefix(MANIFEST_PREFIX.as_bytes())?),
        },
    };
    let number = number_in(digits)?;
    (kind != FileKind::Segment || u32::try_from(number).is_ok()).then_some(FileName { kind, number })
}

/// The number of the MANIFEST that a `CURRENT` with this content names.
#[must_use]
pub fn named_by_current(content: &[u8]) -> Option<u64> {
    number_in(content.strip_prefix(MANIFEST_PREFIX.as_bytes())?.strip_suffix(b"\n")?)
}

/// The number, if it is spelled as numbers of files are.
fn number_in(digits: &[u8]) -> Option<u64> {
    let is_one_spelling = digits.len() == MIN_DIGITS || (digits.len() > MIN_DIGITS && digits[0] != b'0');
    (is_one_spelling && digits.iter().all(u8::is_ascii_digit)).then_some(())?;
    digits.iter().try_fold(0_u64, |number, digit| number.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

fn behind_slashes(path: &[u8]) -> Option<&[u8]> {
    let begin = path.iter().position(|byte| *byte != b'/')?;
    (begin > 0).then(|| &path[begin..])
}

fn trimmed(mut directory: &[u8]) -> &[u8] {
    while let [rest @ .., b'/'] = directory {
        directory = rest;
    }
    directory
}

/// How the file is called in `directory`.
#[must_use]
pub fn path_of(directory: &Path, file: FileName) -> PathBuf {
    directory.join(file.to_string())
}

/// `what` in the directory beside `directory` that holds what a copy knows of itself.
#[must_use]
pub fn beside(directory: &Path, what: &str) -> PathBuf {
    copy_directory(directory).join(what)
}

/// The directory beside `directory` that holds what a copy knows of itself.
#[must_use]
pub fn copy_directory(directory: &Path) -> PathBuf {
    with_suffix(directory, ".copy")
}

/// Where the directory is built that takes the place of `directory`.
#[must_use]
pub fn new_directory(directory: &Path) -> PathBuf {
    with_suffix(directory, ".new")
}

/// Where `directory` goes when another one takes its place.
#[must_use]
pub fn old_directory(directory: &Path) -> PathBuf {
    with_suffix(directory, ".old")
}

fn with_suffix(directory: &Path, suffix: &str) -> PathBuf {
    // Without slashes at its end.
    let mut path = directory.components().as_path().as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(path: &str) -> Option<(FileKind, u64)> {
        parse(Path::new("/data/store"), Path::new(path)).map(|file| (file.kind, file.number))
    }

    #[test]
    fn files_of_the_stream_are_told_from_all_others() {
        use FileKind::{Current, Manifest, Segment, Store, Table, Wal};
        assert_eq!(parsed("/data/store/000012.log"), Some((Wal, 12)));
        assert_eq!(parsed("/data/store//1234567.sst"), Some((Table, 1_234_567)));
        assert_eq!(parsed("/data/store/MANIFEST-000005"), Some((Manifest, 5)));
        assert_eq!(parsed("/data/store/values/000007.segment"), Some((Segment, 7)));
        assert_eq!(parsed("/data/store/CURRENT"), Some((Current, 0)));
        assert_eq!(parsed("/data/store/STORE"), Some((Store, 0)));
        for other in [
            "DURABLE",
            "LOCK",
            "LOG",
            "LOG.old.1",
            "OPTIONS-000007",
            "IDENTITY",
            "values/watermark",
            "values/000012.log",
            "000012.segment",
            "checkpoint_tmp/000012.sst",
            "session_tmp/job/000012.sst",
            "values/old/000007.segment",
            "000012.dbtmp",
            "STORE.77.tmp",
            "MANIFEST-000005.dbtmp",
            "12.log",
            "0000012.log",
            "+00012.log",
            "99999999999999999999.sst",
            "values/4294967296.segment",
            "",
        ] {
            assert_eq!(parsed(&format!("/data/store/{other}")), None, "{other}");
        }
        for elsewhere in ["/data/store", "/data/store2/000012.log", "/data/000012.log", "000012.log"] {
            assert_eq!(parsed(elsewhere), None, "{elsewhere}");
        }
    }

    #[test]
    fn paths_lead_back_to_their_files_also_from_a_directory_that_is_spelled_otherwise() {
        for directory in ["/data/store", "/data/store/", "store", "shards/7"].map(Path::new) {
            for kind in FileKind::ALL {
                let is_numbered = !matches!(kind, FileKind::Current | FileKind::Store);
                for number in [1, 999_999, 1_000_000, u64::from(u32::MAX)] {
                    let file = FileName::new(kind, if is_numbered { number } else { 0 });
                    assert_eq!(parse(directory, &path_of(directory, file)), Some(file));
                }
            }
        }
    }

    #[test]
    fn current_names_a_manifest() {
        assert_eq!(named_by_current(b"MANIFEST-000005\n"), Some(5));
        for other in ["MANIFEST-000005", "MANIFEST-5\n", "000005\n", "", "MANIFEST-000005\n\n"] {
            assert_eq!(named_by_current(other.as_bytes()), None, "{other:?}");
        }
    }

    #[test]
    fn what_lies_beside_a_directory_is_on_its_file_system() {
        for directory in ["/data/shards/7", "/data/shards/7/"].map(Path::new) {
            assert_eq!(beside(directory, "kept"), Path::new("/data/shards/7.copy/kept"));
            assert_eq!(new_directory(directory), Path::new("/data/shards/7.new"));
            assert_eq!(old_directory(directory), Path::new("/data/shards/7.old"));
        }
    }
}
