//! The files of the control plane's log: `control`'s [`Storage`], on a directory.
//!
//! **Never in this crate:** what the bytes mean. That is `control::log`'s.
//!
//! Invariants: a file is replaced through `NAME.new`, which is synced before it gets its name; the
//! directory is synced after each name that it gets. What a new generation replaces is kept in a
//! directory beside it, `NAME.old-GENERATION`, of which there is one. One process has the directory: a lock on the
//! file `lock` says so, and ends with the process.
//!
//! Failure modes: after a write or sync that failed, everything fails ([`Directory`] remembers): what
//! the kernel holds then is unknown. Threads: none; calls block as long as the disk takes.

use std::fs::{self, DirBuilder, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ecotone_control::log::{File, MAX_LOG_BYTES, Storage, StorageError};

/// A directory with a log in it.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// The log, open for appending.
    log: Option<fs::File>,
    /// What failed before.
    failed: Option<StorageError>,
    /// Held for the lock on it.
    _lock: fs::File,
}

impl Directory {
    /// Opens the directory `path`, made if it is not there.
    ///
    /// # Errors
    /// When it cannot be made or written, or another process has it.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StorageError> {
        let path = path.into();
        let failed = |what: &str, error: io::Error| storage_error(what, &path, &error);
        if !path.exists() {
            // Only this server's: the sealed key of the authority lies in it.
            DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(|error| failed("make", error))?;
            if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                sync_directory(parent).map_err(|error| failed("sync the parent of", error))?;
            }
        }
        let lock = path.join("lock");
        let lock = owned(OpenOptions::new().create(true).truncate(false).write(true)).open(lock);
        let lock = lock.map_err(|error| failed("lock", error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let path = path.display();
                return Err(StorageError(format!("{path}: another process runs the control plane of this directory")));
            }
            Err(TryLockError::Error(error)) => return Err(failed("lock", error)),
        }
        // Half of a file that never got its name.
        for file in File::ALL {
            let new = path.join(format!("{}.new", file.name()));
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("clean", error)),
                _ => {}
            }
        }
        Ok(Self { path, log: None, failed: None, _lock: lock })
    }

    fn file(&self, file: File) -> PathBuf {
        self.path.join(file.name())
    }

    /// Does `work`, unless something failed before; what fails is final.
    fn attempt<T>(
        &mut self,
        what: &str,
        file: File,
        work: impl FnOnce(&mut Self) -> io::Result<T>,
    ) -> Result<T, StorageError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let path = self.file(file);
        work(self).map_err(|error| {
            let failed = storage_error(what, &path, &error);
            self.failed = Some(failed.clone());
            failed
        })
    }

    fn log(&mut self) -> io::Result<&mut fs::File> {
        if self.log.is_none() {
            self.log = Some(OpenOptions::new().append(true).open(self.file(File::Log))?);
        }
        self.log.as_mut().ok_or_else(|| io::Error::other("the log is not open"))
    }
}

impl Storage for Directory {
    fn read(&mut self, file: File) -> Result<Option<Vec<u8>>, StorageError> {
        self.attempt("read", file, |directory| match fs::File::open(directory.file(file)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(open) => {
                let mut bytes = Vec::new();
                open.take(MAX_LOG_BYTES as u64 + 1).read_to_end(&mut bytes)?;
                Ok(Some(bytes))
            }
        })
    }

    fn replace(&mut self, file: File, content: &[u8]) -> Result<(), StorageError> {
        self.attempt("replace", file, |directory| {
            let new = directory.path.join(format!("{}.new", file.name()));
            let mut open = owned(OpenOptions::new().create(true).truncate(true).write(true)).open(&new)?;
            open.write_all(content)?;
            open.sync_all()?;
            if file == File::Log {
                directory.log = None;
            }
            fs::rename(&new, directory.file(file))?;
            sync_directory(&directory.path)
        })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        self.attempt("append to", File::Log, |directory| directory.log()?.write_all(bytes))
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.attempt("sync", File::Log, |directory| directory.log()?.sync_data())
    }

    fn truncate(&mut self, length: u64) -> Result<(), StorageError> {
        self.attempt("cut", File::Log, |directory| {
            let log = directory.log()?;
            log.set_len(length)?;
            log.sync_all()
        })
    }

    fn keep_aside(&mut self, generation: u64) -> Result<(), StorageError> {
        self.attempt("keep aside", File::Snapshot, |directory| keep_aside(&directory.path, generation))
    }
}

/// Copies the files of `path` to a directory beside it, and removes the one that was there before.
fn keep_aside(path: &Path, generation: u64) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err(io::Error::other("a directory of this name has none beside it"));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let prefix = format!("{name}.old-");
    let (aside, new) = (format!("{prefix}{generation}"), format!("{prefix}{generation}.new"));
    let new = parent.join(new);
    if new.exists() {
        fs::remove_dir_all(&new)?;
    }
    DirBuilder::new().mode(0o700).create(&new)?;
    for file in File::ALL {
        match fs::File::open(path.join(file.name())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(mut from) => {
                let mut to = owned(OpenOptions::new().create_new(true).write(true)).open(new.join(file.name()))?;
                io::copy(&mut from, &mut to)?;
                to.sync_all()?;
            }
        }
    }
    sync_directory(&new)?;
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let is_older = entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)) && entry.path() != new;
        if is_older {
            fs::remove_dir_all(entry.path())?;
        }
    }
    fs::rename(&new, parent.join(aside))?;
    sync_directory(parent)
}

fn owned(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

fn storage_error(what: &str, path: &Path, error: &io::Error) -> StorageError {
    StorageError(format!("cannot {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use ecotone_control::ids::{DirectoryId, FederationId, HistoryId, MemberId};
    use ecotone_control::log::{Identity, LogError, begin_generation, create, open};
    use ecotone_control::node::{Command, Event, Node};
    use ecotone_control::recover;

    use super::*;

    const IDENTITY: Identity = Identity {
        federation: FederationId([1; 8]),
        generation: 1,
        history: HistoryId([1; 8]),
        member: MemberId(1),
        directory: DirectoryId([2; 16]),
    };

    /// Runs a federation of one until it leads: a term, a vote and an entry on the disk.
    fn lead(path: &Path) -> u64 {
        let opened = open(Directory::open(path).unwrap()).unwrap();
        let (mut log, content) = opened.unwrap_or_else(|| {
            create(Directory::open(path).unwrap(), IDENTITY, recover::found(IDENTITY.federation)).unwrap()
        });
        let mut node = Node::new(content, 1).unwrap();
        while !node.leads() {
            let mut commands = Vec::new();
            node.handle(Event::Tick, &mut commands).unwrap();
            while !commands.is_empty() {
                let mut next = Vec::new();
                for command in commands {
                    if let Command::Persist { number, records } = command {
                        log.persist(&records).unwrap();
                        node.handle(Event::Persisted(number), &mut next).unwrap();
                    }
                }
                commands = next;
            }
        }
        node.term()
    }

    #[test]
    fn a_log_goes_on_after_each_start() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let terms: Vec<u64> = (0..5).map(|_| lead(&path)).collect();
        assert_eq!(terms, [2, 3, 4, 5, 6], "each start begins a term that none had before");
    }

    #[test]
    fn one_process_has_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let first = Directory::open(directory.path()).unwrap();
        let second = Directory::open(directory.path()).unwrap_err();
        assert!(second.0.contains("another process"), "{second}");
        drop(first);
        Directory::open(directory.path()).unwrap();
    }

    #[test]
    fn half_of_a_file_without_its_name_is_nothing() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("identity.new"), b"half").unwrap();
        assert!(open(Directory::open(directory.path()).unwrap()).unwrap().is_none());
        assert!(!directory.path().join("identity.new").exists());
    }

    #[test]
    fn a_log_that_is_gone_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        lead(directory.path());
        fs::remove_file(directory.path().join("log")).unwrap();
        let refused = open(Directory::open(directory.path()).unwrap()).unwrap_err();
        assert_eq!(refused, LogError::Missing { file: File::Log });
    }

    #[test]
    fn what_a_new_generation_replaces_is_kept_beside_it_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        lead(&path);
        for generation in 2..4 {
            let before = fs::read(path.join("snapshot")).unwrap();
            let (log, content) = open(Directory::open(&path).unwrap()).unwrap().unwrap();
            let map = ecotone_control::map::Map { next_member: 2, ..recover::replay(&content).unwrap().0 };
            let map = ecotone_control::map::Map { servers: [(MemberId(1), server())].into(), ..map };
            let snapshot = recover::force_new(&map, 9, &content, HistoryId([generation as u8; 8])).unwrap();
            let identity = recover::identity(&content.identity, &snapshot).unwrap();
            assert_eq!(identity.generation, generation);
            begin_generation(log.into_storage(), identity, snapshot).unwrap();
            let aside: Vec<_> =
                fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(aside.len(), 2, "{aside:?}");
            let kept = directory.path().join(format!("control.old-{}", generation - 1));
            assert_eq!(fs::read(kept.join("snapshot")).unwrap(), before);
            assert!(open(Directory::open(&kept).unwrap()).unwrap().is_some(), "it can be gone back to");
        }
    }

    fn server() -> ecotone_control::map::Server {
        use ecotone_control::map::{Addresses, Features, Role, Server, ServerState};
        Server {
            directory: IDENTITY.directory,
            name: "a".parse().unwrap(),
            addresses: Addresses::default(),
            zone: String::new(),
            role: Role::Data,
            state: ServerState::Active,
            features: Features { min: 1, max: 1 },
        }
    }

    #[test]
    fn what_fails_once_fails_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let mut storage = Directory::open(directory.path()).unwrap();
        let first = storage.append(b"there is no log yet").unwrap_err();
        assert_eq!(storage.replace(File::Log, b"a log"), Err(first));
    }
}
