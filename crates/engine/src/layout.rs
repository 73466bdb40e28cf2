//! Folders in a store's directory that hold copies of it for a time, and what an opening removes of
//! those of a killed process.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// The folder of checkpoints that are held, in the store's directory.
pub const CHECKPOINTS_DIRECTORY: &str = "checkpoint_tmp";

/// Where the checkpoint lies, in the store's folder. What it takes beside the store's own files is
/// not counted.
pub(crate) const CHECKED_DIRECTORY: &str = "checked";

/// Removes the checkpoints that a killed process held. The store must be open for writing, so that
/// nobody else holds any.
pub(crate) fn remove_held_checkpoints(directory: &Path) {
    let all = directory.join(CHECKPOINTS_DIRECTORY);
    match fs::remove_dir_all(&all) {
        Ok(()) => tracing::info!(directory = %all.display(), "removed what a killed process left of checkpoints"),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(directory = %all.display(), %error, "left checkpoints cannot be removed; they take space")
        }
    }
}

/// Removes what a process left behind that was killed during a check.
pub(crate) fn remove_checked(directory: &Path) {
    // RocksDB makes a checkpoint under this name first.
    for name in [CHECKED_DIRECTORY.to_owned(), format!("{CHECKED_DIRECTORY}.tmp")] {
        let path = directory.join(name);
        if path.is_dir() {
            remove_checked_copy(&path);
        }
    }
}

/// Removes one checkpoint that was checked.
pub(crate) fn remove_checked_copy(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!(folder = ?path, %error, "what was checked could not be removed; the next start does");
    }
}
