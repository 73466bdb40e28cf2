//! What makes a directory a store: the file [`IDENTITY_FILE`], and the version of the format it
//! names.
//!
//! The file is written, synced and renamed into place before RocksDB makes its first file. So a
//! crash at any moment of a creation leaves a directory that is either not yet a store or can be
//! created on.
//!
//! ```text
//! ecotone store
//! format 1
//! ```
//!
//! Format 1 has no value log. A store becomes format 2 before its first segment is made: a program
//! that knows format 1 only would write tables that do not say which segments they refer to. A third
//! line then says which tables are older than that, and refer to none:
//!
//! ```text
//! ecotone store
//! format 2
//! tables below 57 are plain
//! ```
//!
//! It becomes format 3, with the same line, before its first segment of format 2 is made, in which
//! values may be compressed. A format is never given up again.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use ecotone_io::objects::ObjectDirectory;
use ecotone_io::tap::{self, Tap, TapEvent};

use crate::{Error, OpenMode, Result};

/// The name of the file that makes a directory a store.
pub const IDENTITY_FILE: &str = "STORE";

/// The newest version of the format of a store that this version reads and writes: its files,
/// column families and value headers together.
pub const FORMAT_VERSION: u32 = 3;

/// The format of a store whose segments are all of format 1.
const PLAIN_VALUES_FORMAT: u32 = 2;

/// The format of a store without a value log.
const PLAIN_FORMAT: u32 = 1;

const FIRST_LINE: &str = "ecotone store";

/// More than any identity file of any version; a larger one is not read.
const MAX_IDENTITY_BYTES: u64 = 4096;

/// What a directory is before it is opened.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// No directory.
    Missing,
    /// A directory in which a store can be made.
    Empty,
    /// A store whose creation did not finish: identity, but no RocksDB yet.
    Unfinished,
    /// A store.
    Store,
}

/// Checks the directory against the mode, and makes the directory and its identity where the mode
/// allows it.
pub(crate) fn prepare(directory: &Path, mode: OpenMode, tap: &Tap) -> Result<()> {
    let found = look(directory)?;
    let not_found = |reason| Err(Error::NotFound { directory: directory.to_path_buf(), reason });
    match (mode, found) {
        (OpenMode::Create, Found::Store) => Err(Error::AlreadyExists { directory: directory.to_path_buf() }),
        (OpenMode::Create | OpenMode::CreateOrOpen, found @ (Found::Missing | Found::Empty | Found::Unfinished)) => {
            if found == Found::Missing {
                create_directory(directory, tap)?;
            }
            match found {
                // Its process may have been killed before the names were durable.
                Found::Unfinished => sync_names(directory, tap)?,
                _ => write(directory, Identity::PLAIN, tap)?,
            }
            sync_above(directory, tap);
            Ok(())
        }
        (OpenMode::CreateOrOpen | OpenMode::Open | OpenMode::ReadOnly, Found::Store) => Ok(()),
        (OpenMode::Open | OpenMode::ReadOnly, Found::Missing) => not_found("the directory does not exist"),
        (OpenMode::Open | OpenMode::ReadOnly, Found::Empty) => not_found("the directory holds no store"),
        (OpenMode::Open | OpenMode::ReadOnly, Found::Unfinished) => not_found("its creation did not finish"),
    }
}

fn look(directory: &Path) -> Result<Found> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Missing),
        Err(error) => return Err(Error::io("list the directory", directory, &error)),
    };
    let (mut identity, mut current, mut database_file, mut data_file) = (false, false, None, None);
    for entry in entries {
        let name = entry.map_err(|e| Error::io("list the directory", directory, &e))?.file_name();
        let Some(name) = name.to_str() else { continue };
        identity |= name == IDENTITY_FILE;
        current |= name == "CURRENT";
        if is_data_file(name) {
            data_file = Some(name.to_owned());
        }
        if is_data_file(name) || is_database_file(name) {
            database_file = Some(name.to_owned());
        }
    }
    if identity {
        read(directory)?;
        return match data_file {
            _ if current => Ok(Found::Store),
            None => Ok(Found::Unfinished),
            // RocksDB makes CURRENT before any of these: it was lost. Creating here would remove
            // them.
            Some(file) => Err(Error::Corrupt {
                location: Some(directory.join("CURRENT").display().to_string()),
                detail: format!("the file is missing, while {file} is there"),
            }),
        };
    }
    match database_file {
        Some(file) => Err(Error::WrongFormat {
            directory: directory.to_path_buf(),
            reason: format!(
                "it holds a plain RocksDB database or an unfinished checkpoint ({file} is there, {IDENTITY_FILE} is \
                 not): choose another directory"
            ),
        }),
        None => Ok(Found::Empty),
    }
}

/// Files in which RocksDB keeps data.
fn is_data_file(name: &str) -> bool {
    [".sst", ".log", ".ldb", ".blob"].into_iter().any(|end| {
        name.strip_suffix(end).is_some_and(|stem| !stem.is_empty() && stem.bytes().all(|b| b.is_ascii_digit()))
    })
}

/// Files that say where RocksDB keeps data.
fn is_database_file(name: &str) -> bool {
    name == "CURRENT" || name.starts_with("MANIFEST-") || name.starts_with("OPTIONS-")
}

/// What the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    format: u32,
    /// Tables with a lower number were written before the store had a value log. 0 in format 1.
    pub(crate) plain_tables_below: u64,
}

impl Identity {
    const PLAIN: Self = Self { format: PLAIN_FORMAT, plain_tables_below: 0 };

    /// That of a store which may have a value log.
    pub(crate) const fn with_value_log(plain_tables_below: u64) -> Self {
        Self { format: PLAIN_VALUES_FORMAT, plain_tables_below }
    }

    /// That of a store which may have a value log with compressed values.
    pub(crate) const fn with_packed_values(self) -> Self {
        Self { format: FORMAT_VERSION, ..self }
    }

    /// The file that says this.
    fn text(self) -> String {
        let plain = format!("tables below {} are plain\n", self.plain_tables_below);
        format!("{FIRST_LINE}\nformat {}\n{}", self.format, if self.has_value_log() { plain.as_str() } else { "" })
    }

    /// Whether the store may have a value log.
    pub(crate) const fn has_value_log(self) -> bool {
        self.format > PLAIN_FORMAT
    }

    /// Whether values in it may be compressed.
    pub(crate) const fn has_packed_values(self) -> bool {
        self.format > PLAIN_VALUES_FORMAT
    }
}

/// Why a file is not an identity that this version reads.
enum Unreadable {
    /// A newer version wrote it.
    Newer(u32),
    /// It is damaged, or no identity at all.
    Damaged(String),
}

/// The identity of the store in `directory`.
pub(crate) fn read(directory: &Path) -> Result<Identity> {
    let wrong = |reason| Err(Error::WrongFormat { directory: directory.to_path_buf(), reason });
    match parse_file(&directory.join(IDENTITY_FILE))? {
        Ok(identity) => Ok(identity),
        Err(Unreadable::Damaged(reason)) => wrong(reason),
        Err(Unreadable::Newer(format)) => wrong(newer(format)),
    }
}

/// The identity of a store that may be damaged: the reason where the file is missing or not to be
/// read.
///
/// # Errors
///
/// [`Error::WrongFormat`] where a newer version wrote it: what it would do with the files nobody
/// here knows.
pub(crate) fn read_damaged(directory: &Path) -> Result<std::result::Result<Identity, String>> {
    match parse_file(&directory.join(IDENTITY_FILE)) {
        Ok(Ok(identity)) => Ok(Ok(identity)),
        Ok(Err(Unreadable::Damaged(reason))) => Ok(Err(reason)),
        Ok(Err(Unreadable::Newer(format))) => Err(Error::WrongFormat {
            directory: directory.to_path_buf(),
            reason: format!(
                "{}; if the file {IDENTITY_FILE} is damaged, copy the folder without it and repair the copy: other files \
                 tell the format",
                newer(format)
            ),
        }),
        Err(error) => Ok(Err(error.to_string())),
    }
}

fn newer(format: u32) -> String {
    format!("{IDENTITY_FILE} says format {format}, this version reads up to {FORMAT_VERSION}: use a newer version")
}

fn parse_file(path: &Path) -> Result<std::result::Result<Identity, Unreadable>> {
    let bytes = fs::metadata(path).map_err(|e| Error::io("read", path, &e))?.len();
    if bytes > MAX_IDENTITY_BYTES {
        let reason = format!("{IDENTITY_FILE} has {bytes} bytes and is no store's: choose another directory");
        return Ok(Err(Unreadable::Damaged(reason)));
    }
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::InvalidData => String::new(),
        Err(error) => return Err(Error::io("read", path, &error)),
    };
    Ok(parse(&text))
}

fn parse(text: &str) -> std::result::Result<Identity, Unreadable> {
    let damaged = |reason: String| Err(Unreadable::Damaged(reason));
    let mut lines = text.lines();
    if lines.next() != Some(FIRST_LINE) {
        return damaged(format!("{IDENTITY_FILE} does not begin with {FIRST_LINE:?}: choose another directory"));
    }
    let version = lines.next().and_then(|line| line.strip_prefix("format ")).and_then(|v| v.parse::<u32>().ok());
    let identity = match version {
        Some(PLAIN_FORMAT) => Identity::PLAIN,
        Some(format @ (PLAIN_VALUES_FORMAT | FORMAT_VERSION)) => {
            let plain = lines.next().and_then(|line| line.strip_prefix("tables below ")?.strip_suffix(" are plain"));
            match plain.and_then(|number| number.parse().ok()) {
                Some(plain_tables_below) => Identity { format, plain_tables_below },
                None => {
                    return damaged(format!("{IDENTITY_FILE} does not say which tables are plain: restore the file"));
                }
            }
        }
        Some(newer) if newer > FORMAT_VERSION => return Err(Unreadable::Newer(newer)),
        Some(older) => return damaged(format!("{IDENTITY_FILE} says format {older}, which never was")),
        None => return damaged(format!("{IDENTITY_FILE} names no format version: restore the file")),
    };
    if identity.text() != text {
        return damaged(format!("{IDENTITY_FILE} holds more, or otherwise, than a store's: restore the file"));
    }
    Ok(identity)
}

/// Writes the identity into a directory that exists, durably.
pub(crate) fn write(directory: &Path, identity: Identity, tap: &Tap) -> Result<()> {
    let unfinished = format!("{IDENTITY_FILE}.{}.tmp", std::process::id());
    ObjectDirectory::new(directory, tap.clone())
        .replace(IDENTITY_FILE, &unfinished, identity.text().as_bytes())
        .map_err(|error| Error::io("write", &directory.join(IDENTITY_FILE), &error))?;
    sync_names(directory, tap)
}

/// Makes the names in `directory` durable, and its own: it may be new as well.
fn sync_names(directory: &Path, tap: &Tap) -> Result<()> {
    sync_directory(directory, tap)?;
    match directory.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_directory(parent, tap),
        _ => Ok(()),
    }
}

/// Makes the names of the directories above `directory` durable: any of them may have been made by
/// a process that was killed before it came to this. One that cannot be synced is not ours: we
/// could not have made anything in it.
fn sync_above(directory: &Path, tap: &Tap) {
    for above in directory.ancestors().skip(2) {
        let _ = sync_directory(above, tap);
    }
}

/// Makes `directory`, and those above it that are missing.
fn create_directory(directory: &Path, tap: &Tap) -> Result<()> {
    if let Some(parent) = directory.parent()
        && !parent.exists()
    {
        create_directory(parent, tap)?;
    }
    let created = fs::create_dir(directory).and_then(|()| tap.tell(TapEvent::DirectoryCreated { path: directory }));
    created.map_err(|e| Error::io("create the directory", directory, &e))
}

/// Makes the names in `directory` durable.
pub(crate) fn sync_directory(directory: &Path, tap: &Tap) -> Result<()> {
    tap::sync_directory(directory, tap).map_err(|error| Error::io("sync", directory, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::mutated;

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn a_creation_cut_short_can_be_finished_and_is_no_store_before() {
        let directory = directory();
        prepare(directory.path(), OpenMode::Create, &Tap::SILENT).unwrap();
        assert!(matches!(prepare(directory.path(), OpenMode::Open, &Tap::SILENT), Err(Error::NotFound { .. })));
        prepare(directory.path(), OpenMode::Create, &Tap::SILENT).unwrap();
        prepare(directory.path(), OpenMode::CreateOrOpen, &Tap::SILENT).unwrap();
    }

    #[test]
    fn what_is_written_is_read() {
        let directory = directory();
        let with_values = Identity::with_value_log(57);
        for identity in [Identity::PLAIN, Identity::with_value_log(0), with_values, with_values.with_packed_values()] {
            write(directory.path(), identity, &Tap::SILENT).unwrap();
            assert_eq!(read(directory.path()).unwrap(), identity);
        }
    }

    #[test]
    fn a_store_that_lost_its_current_file_is_never_created_anew() {
        let directory = directory();
        prepare(directory.path(), OpenMode::Create, &Tap::SILENT).unwrap();
        // What a creation cut short leaves.
        fs::write(directory.path().join("MANIFEST-000001"), "x").unwrap();
        prepare(directory.path(), OpenMode::Create, &Tap::SILENT).unwrap();
        // What only a store has.
        fs::write(directory.path().join("000012.sst"), "x").unwrap();
        for mode in [OpenMode::Create, OpenMode::CreateOrOpen, OpenMode::Open, OpenMode::ReadOnly] {
            assert!(matches!(prepare(directory.path(), mode, &Tap::SILENT), Err(Error::Corrupt { .. })), "{mode:?}");
        }
    }

    #[test]
    fn other_peoples_files_do_not_hinder_but_a_database_does() {
        let directory = directory();
        fs::write(directory.path().join("notes.txt"), "x").unwrap();
        fs::create_dir(directory.path().join("lost+found")).unwrap();
        assert_eq!(look(directory.path()).unwrap(), Found::Empty);
        for file in ["CURRENT", "MANIFEST-000001", "000012.sst", "000004.log"] {
            let path = directory.path().join(file);
            fs::write(&path, "x").unwrap();
            let refused = prepare(directory.path(), OpenMode::CreateOrOpen, &Tap::SILENT).unwrap_err();
            assert!(matches!(&refused, Error::WrongFormat { reason, .. } if reason.contains(file)), "{refused}");
            fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_mutated_identity_is_one_or_is_refused() {
        let originals = [Identity::PLAIN, Identity::with_value_log(0), Identity::with_value_log(57)];
        let mut originals: Vec<_> = originals.map(|identity| identity.text().into_bytes()).into();
        // What a number's parser takes and nobody writes, and what an editor leaves.
        originals.extend(
            ["ecotone store\nformat +1\n", "ecotone store\r\nformat 01\r\n\n"].map(|it| it.as_bytes().to_vec()),
        );
        mutated(&originals, |bytes, _| {
            let Ok(text) = std::str::from_utf8(&bytes) else { return };
            if let Ok(identity) = parse(text) {
                assert_eq!(identity.text(), text);
            }
        });
    }

    #[test]
    fn an_identity_that_is_not_ours_is_refused_with_its_reason() {
        for (text, reason) in [
            ("", "does not begin"),
            ("something else\n", "does not begin"),
            ("ecotone store\n", "names no format"),
            ("ecotone store\nformat one\n", "names no format"),
            ("ecotone store\nformat 4\n", "use a newer version"),
            ("ecotone store\nformat 3\n", "which tables are plain"),
            ("ecotone store\nformat 2\n", "which tables are plain"),
            ("ecotone store\nformat 2\ntables below x are plain\n", "which tables are plain"),
            ("ecotone store\nformat 0\n", "never was"),
            ("ecotone store\nformat 1", "holds more, or otherwise"),
            ("ecotone store\nformat 01\n", "holds more, or otherwise"),
            ("ecotone store\nformat 1\ntables below 0 are plain\n", "holds more, or otherwise"),
            ("ecotone store\nformat 2\ntables below 0 are plain\nand so on\n", "holds more, or otherwise"),
        ] {
            let directory = directory();
            fs::write(directory.path().join(IDENTITY_FILE), text).unwrap();
            fs::write(directory.path().join("CURRENT"), "MANIFEST-000001\n").unwrap();
            let refused = prepare(directory.path(), OpenMode::Open, &Tap::SILENT).unwrap_err();
            assert!(
                matches!(&refused, Error::WrongFormat { reason: r, .. } if r.contains(reason)),
                "{text:?}: {refused}"
            );
        }
        let directory = directory();
        fs::write(directory.path().join(IDENTITY_FILE), [0xff; 100]).unwrap();
        assert!(matches!(prepare(directory.path(), OpenMode::Open, &Tap::SILENT), Err(Error::WrongFormat { .. })));
    }
}
