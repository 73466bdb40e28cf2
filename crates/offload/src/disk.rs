//! The disk below a folder.

use std::io;
use std::path::Path;

/// Bytes free for this process on the file system that holds `directory`.
///
/// # Errors
/// The system's, for a folder that is not there or may not be asked about.
pub fn free_bytes(directory: &Path) -> io::Result<u64> {
    let system = rustix::fs::statvfs(directory)?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}
