//! A directory of one lab, which is removed with the lab, and by the next lab if this one is
//! killed.
//!
//! Each holds a file that its lab keeps locked (`flock`). The kernel frees the lock when the lab
//! ends, however it ends: a directory whose file can be locked belongs to a dead lab. Servers do
//! not hold it, and die with their lab.
//!
//! Invariant: the file bears its name only once it is locked, so that no other lab takes a
//! directory in the making for dead. One that was killed before that leaves an empty directory,
//! which nobody removes.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use rustix::fs::{FlockOperation, flock};

const PREFIX: &str = "ecotone-lab-";
const LOCK_FILE: &str = ".lab.lock";
const UNLOCKED_FILE: &str = ".lab.unlocked";

/// A directory that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct LockedDirectory {
    directory: tempfile::TempDir,
    _lock: File,
}

impl LockedDirectory {
    /// Makes one in `parent`, after removing those of dead labs there.
    pub(crate) fn make_in(parent: &Path) -> io::Result<LockedDirectory> {
        remove_dead(parent);
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        let unlocked = directory.path().join(UNLOCKED_FILE);
        let lock = File::create(&unlocked)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        fs::rename(&unlocked, directory.path().join(LOCK_FILE))?;
        Ok(LockedDirectory { directory, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes the directories of dead labs in `parent`. What cannot be removed is left with a warning:
/// it may be another user's.
fn remove_dead(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_labs = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX))
            && entry.file_type().is_ok_and(|kind| kind.is_dir());
        let Some(_lock) = is_labs.then(|| lock_of_the_dead(&entry.path())).flatten() else { continue };
        let directory = entry.path();
        match fs::remove_dir_all(&directory) {
            Ok(()) => tracing::info!(directory = %directory.display(), "removed what a killed lab had left"),
            Err(error) => {
                tracing::warn!(directory = %directory.display(), %error, "cannot remove what a killed lab has left");
            }
        }
    }
}

/// The lock of a lab that no longer holds it.
fn lock_of_the_dead(directory: &Path) -> Option<File> {
    // Others may write in the parent: neither a link nor a pipe of theirs is followed or waited
    // for.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let lock = OpenOptions::new().read(true).custom_flags(flags).open(directory.join(LOCK_FILE)).ok()?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).ok().map(|()| lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_labs_directory_is_removed_and_a_living_ones_stays() {
        let parent = tempfile::tempdir().unwrap();
        let living = LockedDirectory::make_in(parent.path()).unwrap();
        // A lab that is killed loses its lock and leaves its files.
        let LockedDirectory { directory, _lock } = LockedDirectory::make_in(parent.path()).unwrap();
        let dead = directory.keep();
        drop(_lock);
        fs::create_dir_all(dead.join("eco/low-1/store")).unwrap();
        fs::write(dead.join("eco/low-1/store/000001.sst"), "data").unwrap();
        let strangers = ["ecotone-lab-notes", "other"].map(|name| parent.path().join(name));
        strangers.iter().for_each(|stranger| fs::create_dir(stranger).unwrap());

        let next = LockedDirectory::make_in(parent.path()).unwrap();
        assert!(!dead.exists(), "the dead lab's stores still take space");
        for kept in [living.path(), next.path(), &strangers[0], &strangers[1]] {
            assert!(kept.exists(), "{}", kept.display());
        }
    }
}
