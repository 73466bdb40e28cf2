//! What is read of the files of a store in its directory, and how they are made, cut and replaced.
//!
//! Invariant: a file that others may hold by a link is never cut where it is.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use ecotone_replica::stream::{ContentId, FileKind};

use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::names::{self, FileName, beside, path_of};
use crate::record;

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 256 << 10;

/// The names in a directory; none where it is missing. Names that are no text are nobody's.
pub(crate) fn names_in(directory: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("list", directory, error)),
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| Error::io("list", directory, error))?;
        all.extend(entry.file_name().into_string().ok());
    }
    Ok(all)
}

/// The files of a store in its directory, with their lengths.
pub(crate) fn files_in(directory: &Path) -> Result<Vec<(FileName, u64)>> {
    let mut all = Vec::new();
    for below in [directory.to_path_buf(), directory.join(names::VALUES_DIRECTORY)] {
        for name in names_in(&below)? {
            let path = below.join(name);
            let Some(file) = names::parse(directory, &path) else { continue };
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_file() => all.push((file, metadata.len())),
                Ok(_) => (),
                Err(error) if error.kind() == ErrorKind::NotFound => (),
                Err(error) => return Err(Error::io("look at", &path, error)),
            }
        }
    }
    all.sort_unstable();
    Ok(all)
}

/// The checksum of the first `len` bytes of the file.
pub(crate) fn crc_of(path: &Path, file: FileName, len: u64) -> Result<u32> {
    let opened = File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::Missing { file },
        _ => Error::io("open", path, error),
    })?;
    crc_of_open(&opened, path, file, len)
}

/// The same of a file that is open, which may have another name by now.
pub(crate) fn crc_of_open(opened: &File, path: &Path, file: FileName, len: u64) -> Result<u32> {
    let (mut crc, mut at, mut piece) = (0, 0, vec![0; PIECE_BYTES]);
    while at < len {
        let bytes = usize::try_from(len - at).map_or(PIECE_BYTES, |rest| rest.min(PIECE_BYTES));
        match opened.read_at(&mut piece[..bytes], at) {
            Ok(0) => {
                return Err(Error::Mismatch { file, what: format!("it ends at {at}, before {len}") });
            }
            Ok(read) => {
                crc = crc32c::crc32c_append(crc, &piece[..read]);
                at += read as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(error) => return Err(Error::io("read", path, error)),
        }
    }
    Ok(crc)
}

/// Whether the file of `directory` holds this.
pub(crate) fn holds(catalog: &mut Catalog, directory: &Path, file: FileName, content: ContentId) -> Result<bool> {
    match fs::metadata(path_of(directory, file)) {
        Ok(metadata) if metadata.len() != content.len => return Ok(false),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        _ => (),
    }
    match catalog.content_of(directory, file) {
        Ok(found) => Ok(found == content),
        Err(Error::Missing { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(crate) fn open(path: &Path) -> Result<File> {
    OpenOptions::new().read(true).write(true).open(path).map_err(|error| Error::io("open", path, error))
}

/// Makes the directory of a file, and those above it, durably.
pub(crate) fn make_parent(path: &Path) -> Result<()> {
    let Some(parent) = path.parent().filter(|parent| !parent.exists()) else { return Ok(()) };
    make_parent(parent)?;
    record::make_directory(parent)?;
    parent.parent().map_or(Ok(()), record::sync_directory)
}

/// A new file, whatever had its name.
pub(crate) fn create(path: &Path) -> Result<File> {
    make_parent(path)?;
    record::remove_file(path)?;
    let created = OpenOptions::new().read(true).write(true).create_new(true).open(path);
    created.map_err(|error| Error::io("create", path, error))
}

pub(crate) fn len_of(path: &Path, file: FileName) -> Result<u64> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.len()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::Missing { file }),
        Err(error) => Err(Error::io("look at", path, error)),
    }
}

/// Cuts a file of `directory`; if others hold it by a link it is copied first.
pub(crate) fn cut(directory: &Path, path: &Path, len: u64) -> Result<File> {
    let opened = open(path)?;
    let failed = |error| Error::io("cut", path, error);
    if opened.metadata().map_err(failed)?.nlink() == 1 {
        record::set_len(&opened, len).map_err(failed)?;
        return Ok(opened);
    }
    let copy = beside(directory, "cut");
    let copied = File::create(&copy).and_then(|mut to| {
        std::io::copy(&mut std::io::Read::take(&opened, len), &mut to)?;
        record::flush(&to)
    });
    copied.map_err(|error| Error::io("write", &copy, error))?;
    record::rename(&copy, path)?;
    open(path)
}

pub(crate) fn put_current(directory: &Path, content: &[u8]) -> Result<()> {
    let path = path_of(directory, FileName::new(FileKind::Current, 0));
    record::replace_file(&path, &beside(directory, "current.new"), content)
}

pub(crate) fn put_store(directory: &Path, content: &[u8]) -> Result<()> {
    let path = path_of(directory, FileName::new(FileKind::Store, 0));
    record::replace_file(&path, &beside(directory, "store.new"), content)
}
