//! A folder of backups.
//!
//! ```text
//! ECOTONE-BACKUPS            what this folder is, and its format: 2 with backups of federations
//! LOCK                       the lock of who writes
//! objects/<SHA-256>          what files hold, each content once
//! backups/<id>/MANIFEST      a backup
//! partial/                   what has not come whole, of a backup that was cut short
//! ```

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::manifest::{Manifest, number_of};
use super::objects::{Objects, sync_directory, write_whole};
use super::{BackupError, Result};

const MARKER: &str = "ECOTONE-BACKUPS";

/// What the marker says of a folder with backups of stores.
const FORMAT_TEXT: &str = "ecotone backups\nformat 1\n";

/// What it says once there may be one of a federation, too.
const FEDERATION_TEXT: &str = "ecotone backups\nformat 2\n";

const MANIFEST: &str = "MANIFEST";

/// A folder of backups that is open.
#[derive(Debug)]
pub(super) struct Repository {
    directory: PathBuf,
    pub(super) objects: Objects,
    /// `None` where the file system has no locks, and on one that cannot be written.
    _lock: Option<File>,
}

/// What lies where a backup does.
#[derive(Debug, Clone)]
pub struct BackupEntry {
    /// Its name.
    pub id: String,
    /// What it consists of, or why that cannot be read.
    pub manifest: Result<Manifest, String>,
}

/// What a removal of old backups took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pruned {
    pub(super) backups: u64,
    pub(super) objects: u64,
    pub(super) bytes: u64,
}

/// All backups in `directory`, the oldest first.
///
/// # Errors
///
/// It is no folder of backups, or cannot be read.
pub fn list(directory: &Path) -> Result<Vec<BackupEntry>> {
    Repository::open(directory)?.entries()
}

impl Repository {
    /// For writing: makes it if there is nothing.
    pub(super) fn create_or_open(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory).map_err(|error| BackupError::io("create the folder", directory, error))?;
        let failed = |error| BackupError::io("list", directory, error);
        if !is_there(&directory.join(MARKER))? {
            let mut entries = fs::read_dir(directory).map_err(failed)?;
            // The lock may be all that somebody who was killed has made.
            let other = entries.find(|entry| {
                entry.as_ref().map_or(true, |entry| {
                    !["LOCK", "ECOTONE-BACKUPS.tmp", "lost+found"].iter().any(|own| entry.file_name() == *own)
                })
            });
            if let Some(other) = other {
                let name = other.map_err(failed)?.file_name();
                return Err(BackupError::Refused(format!(
                    "{} holds {}, and is no folder of backups: name an empty one, or one that is not there",
                    directory.display(),
                    Path::new(&name).display()
                )));
            }
        }
        let lock = lock(directory, File::try_lock)?;
        for within in ["objects", "backups", "partial"] {
            let within = directory.join(within);
            fs::create_dir_all(&within).map_err(|error| BackupError::io("create the folder", &within, error))?;
        }
        if !is_there(&directory.join(MARKER))? {
            write_whole(directory, MARKER, FORMAT_TEXT.as_bytes())?;
            sync_directory(directory)?;
            // It may be new itself.
            directory.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(Ok(()), sync_directory)?;
        }
        Self::of(directory, lock)
    }

    /// For reading: nothing is removed meanwhile.
    pub(super) fn open(directory: &Path) -> Result<Self> {
        if !is_there(&directory.join(MARKER))? {
            return Err(BackupError::Refused(format!(
                "{} is no folder of backups: the file {MARKER} is missing",
                directory.display()
            )));
        }
        let lock = lock(directory, File::try_lock_shared)?;
        Self::of(directory, lock)
    }

    fn of(directory: &Path, lock: Option<File>) -> Result<Self> {
        let marker = directory.join(MARKER);
        let text = fs::read(&marker).map_err(|error| BackupError::io("read", &marker, error))?;
        if ![FORMAT_TEXT, FEDERATION_TEXT].iter().any(|known| text == known.as_bytes()) {
            return Err(BackupError::Refused(format!(
                "{} says neither {FORMAT_TEXT:?} nor {FEDERATION_TEXT:?}: it is damaged, or a newer version wrote it",
                marker.display()
            )));
        }
        Ok(Self { directory: directory.to_path_buf(), objects: Objects::within(directory), _lock: lock })
    }

    /// There may be backups of federations from now on: an older version, which does not know them,
    /// refuses the folder.
    pub(super) fn takes_federations(&self) -> Result<()> {
        let marker = self.directory.join(MARKER);
        let text = fs::read(&marker).map_err(|error| BackupError::io("read", &marker, error))?;
        if text != FEDERATION_TEXT.as_bytes() {
            write_whole(&self.directory, MARKER, FEDERATION_TEXT.as_bytes())?;
            sync_directory(&self.directory)?;
        }
        Ok(())
    }

    /// Where what has not come whole lies.
    pub(super) fn partial(&self) -> PathBuf {
        self.directory.join("partial")
    }

    fn backups(&self) -> PathBuf {
        self.directory.join("backups")
    }

    /// All backups, the oldest first. What has no MANIFEST is none.
    pub(super) fn entries(&self) -> Result<Vec<BackupEntry>> {
        let mut entries = Vec::new();
        for id in self.names()? {
            let path = self.backups().join(&id).join(MANIFEST);
            let manifest = match fs::read(&path) {
                Ok(bytes) => Manifest::decode(&bytes).and_then(|manifest| match manifest.id == id {
                    true => Ok(manifest),
                    false => Err(format!("it is that of {}", manifest.id)),
                }),
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => Err(error.to_string()),
            };
            let manifest = manifest.map_err(|why| format!("{}: {why}", path.display()));
            entries.push(BackupEntry { id, manifest });
        }
        Ok(entries)
    }

    /// Names of folders that are or were to become a backup, in their order.
    fn names(&self) -> Result<Vec<String>> {
        let backups = self.backups();
        let failed = |error| BackupError::io("list", &backups, error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&backups).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            names.extend(name.into_string().ok().filter(|name| number_of(name).is_some()));
        }
        names.sort_unstable_by_key(|name| (number_of(name), name.clone()));
        Ok(names)
    }

    /// The greatest number in a name.
    pub(super) fn last_number(&self) -> Result<Option<u64>> {
        Ok(self.names()?.last().and_then(|name| number_of(name)))
    }

    /// Makes a backup of what has come: from here on it is one.
    pub(super) fn commit(&self, manifest: &Manifest) -> Result<()> {
        self.objects.sync()?;
        let encoded = manifest.encode().map_err(BackupError::Refused)?;
        let directory = self.backups().join(&manifest.id);
        fs::create_dir(&directory).map_err(|error| BackupError::io("create the folder", &directory, error))?;
        sync_directory(&self.backups())?;
        write_whole(&directory, MANIFEST, &encoded)?;
        sync_directory(&directory)
    }

    /// Removes all but the last `keep` backups of `store`, which may be a federation, what was never complete, and what no
    /// backup names.
    ///
    /// # Errors
    ///
    /// A MANIFEST that cannot be read: what it references is unknown.
    pub(super) fn prune(&self, store: &str, keep: Option<u64>) -> Result<Pruned> {
        let mut pruned = Pruned::default();
        let mut manifests = Vec::new();
        for entry in self.entries()? {
            manifests.push(entry.manifest.map_err(|why| {
                BackupError::Damaged(format!(
                    "{why}; nothing is removed from {} until that folder is: nobody knows what it needs",
                    self.directory.display()
                ))
            })?);
        }
        let own = manifests.iter().filter(|manifest| manifest.store == store).count();
        let mut too_many = keep.map_or(0, |keep| own.saturating_sub(usize::try_from(keep).unwrap_or(usize::MAX)));
        let mut named = HashSet::new();
        let mut kept = HashSet::new();
        for manifest in &manifests {
            if too_many > 0 && manifest.store == store {
                too_many -= 1;
                let directory = self.backups().join(&manifest.id);
                // From here on it is no backup, so what it names may go.
                let path = directory.join(MANIFEST);
                fs::remove_file(&path).map_err(|error| BackupError::io("remove", &path, error))?;
                sync_directory(&directory)?;
                pruned.backups += 1;
                continue;
            }
            kept.insert(manifest.id.as_str());
            named.extend(manifest.files.iter().map(|file| file.object.as_str()));
        }
        for name in self.names()?.into_iter().filter(|name| !kept.contains(name.as_str())) {
            let path = self.backups().join(name);
            fs::remove_dir_all(&path).map_err(|error| BackupError::io("remove", &path, error))?;
        }
        for (object, bytes) in self.objects.all()? {
            if !named.contains(object.as_str()) {
                self.objects.remove(&object)?;
                pruned.objects += 1;
                pruned.bytes += bytes;
            }
        }
        Ok(pruned)
    }

    /// Removes what has not come whole: a backup is complete, and needs none of it.
    pub(super) fn forget_partial(&self) -> Result<()> {
        let partial = self.partial();
        fs::remove_dir_all(&partial)
            .and_then(|()| fs::create_dir(&partial))
            .map_err(|error| BackupError::io("empty", &partial, error))
    }
}

fn is_there(path: &Path) -> Result<bool> {
    path.try_exists().map_err(|error| BackupError::io("inspect", path, error))
}

/// A lock that ends with the process; `None` where the file system has none.
fn lock(directory: &Path, take: impl FnOnce(&File) -> Result<(), TryLockError>) -> Result<Option<File>> {
    let path = directory.join("LOCK");
    // A reader on a medium that cannot be written finds it, or does without: nobody else writes
    // there either.
    let opened = File::options().create(true).truncate(false).write(true).open(&path).or_else(|_| File::open(&path));
    let Ok(file) = opened else { return Ok(None) };
    match take(&file) {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(BackupError::Refused(format!(
            "{} is in use: another backup, verification or restore runs there; try again when it has ended",
            directory.display()
        ))),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}
