//! Files that nobody but the server may read. Each is replaced whole: written beside, synced,
//! renamed, and its folder synced.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::error::{Error, Result};

/// More than any of these files has.
const MAX_FILE_BYTES: u64 = 8 << 20;
/// Owner only.
const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_FOLDER: u32 = 0o700;
/// What group and others may do.
const OF_OTHERS: u32 = 0o077;

/// Makes the folder, and those above it, if they are not there.
pub(crate) fn make_folder(folder: &Path) -> Result<()> {
    if let Some(above) = folder.parent() {
        fs::create_dir_all(above).map_err(|error| Error::io("make", above, error))?;
    }
    match DirBuilder::new().mode(PRIVATE_FOLDER).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(Error::io("make", folder, error)),
        _ => {}
    }
    if let Some(above) = folder.parent() {
        sync_folder(above)?;
    }
    Ok(())
}

/// Replaces the file at `path`. When this returns the new content is durable; before, the old one
/// is there or the new one, whole.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let beside = path.with_extension("new");
    let written = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(PRIVATE_FILE).open(&beside)?;
        // One that was left behind may have other rights.
        file.set_permissions(fs::Permissions::from_mode(PRIVATE_FILE))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    written().map_err(|error| Error::io("write", path, error))?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// The content of a file; `None` if it is not there, or could not be: who makes its folder says why.
///
/// # Errors
/// [`Error::Usage`] if others may read it: what it holds may be known to them.
pub(crate) fn read(path: &Path) -> Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => return Err(Error::io("open", path, error)),
    };
    let mode = file.metadata().map_err(|error| Error::io("look at", path, error))?.mode();
    if mode & OF_OTHERS != 0 {
        return Err(Error::Usage(format!(
            "{} may be read or written by others (mode {:o}): what is in it is to be secret; if nobody has, chmod 600 it",
            path.display(),
            mode & 0o777
        )));
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(|error| Error::io("read", path, error))?;
    Ok(Some(text))
}

pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", path, error)),
        _ => Ok(()),
    }
}

/// Holds the lock on `path`, made if it is not there, until it is dropped; waits for it.
pub(crate) fn lock(path: &Path) -> Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(PRIVATE_FILE).open(path);
    let file = file.map_err(|error| Error::io("open", path, error))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|error| Error::io("lock", path, error.into()))?;
    Ok(file)
}

fn sync_folder(folder: &Path) -> Result<()> {
    // The parent of a relative path of one part.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| Error::io("sync", folder, error))
}
