//! Which folder is meant where that of a store is asked for.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Files of which every store has one, unless it is damaged.
const SIGNS: [&str; 2] = ["CURRENT", "STORE"];

/// `folder`, or the store in it where it is the folder of a server (`ecotone serve --dir`), which is no store itself.
pub(crate) fn store_in(folder: &Path) -> PathBuf {
    // Of one that may not be looked into whoever opens it says so.
    let is_there =
        |path: PathBuf| path.try_exists().unwrap_or_else(|error| error.kind() == ErrorKind::PermissionDenied);
    let is_store = |folder: &Path| SIGNS.iter().any(|sign| is_there(folder.join(sign)));
    let within = folder.join("store");
    if !is_store(folder) && is_store(&within) { within } else { folder.to_path_buf() }
}
