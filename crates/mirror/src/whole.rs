//! What is done to all files of a copy that nobody drives now.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use ecotone_replica::stream::FileKind;

use crate::error::{Error, Result};
use crate::files::files_in;
use crate::names;
use crate::record;

/// Makes all that a store has written durable: segments before what names them.
///
/// # Errors
///
/// [`Error::Io`]. Nobody knows then what is durable.
pub fn sync(directory: &Path) -> Result<()> {
    // Before the first opening there is nothing.
    let mut files = if directory.exists() { files_in(directory)? } else { Vec::new() };
    files.sort_unstable_by_key(|(file, _)| (file.kind != FileKind::Segment, *file));
    for (file, _) in files {
        let path = names::path_of(directory, file);
        match File::open(&path) {
            Ok(opened) => record::flush(&opened).map_err(|source| Error::io("sync", &path, source))?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(source) => return Err(Error::io("open", &path, source)),
        }
    }
    for named in [directory.join(names::VALUES_DIRECTORY), directory.to_owned()] {
        if named.exists() {
            record::sync_directory(&named)?;
        }
    }
    Ok(())
}

/// Removes a copy: others have the shard. What it remembers goes last, so that one that is half
/// removed is never taken for a new one.
///
/// # Errors
///
/// [`Error::Io`]: it may be removed again.
pub fn remove(directory: &Path) -> Result<()> {
    for path in [names::new_directory(directory), names::old_directory(directory), directory.to_owned()] {
        remove_all(&path)?;
    }
    remove_all(&names::copy_directory(directory))
}

fn remove_all(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", path, error)),
        _ => Ok(()),
    }
}
