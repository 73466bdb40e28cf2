//! Makes the folder of a server of a backup: of a store, or of all shards of a federation.
//!
//! One process at a time writes there: it locks the folder, and looks before each file whether the
//! folder is still the one that it has locked, with its marker in it. A server does not start in
//! one that is locked.
//!
//! Order: first what says that a restore is under way; then `CURRENT`, with which the folder is no
//! store and no place for a new one; all other files, each durable and read against its checksum;
//! last, by one rename, `STORE`, with which it is a store. So whatever cuts it short, a store opens
//! that is whole, or none.
//!
//! Of a federation all shards come in this order together, then the identity of its first server and
//! its log. It has an id and an authority of its own: servers of the old one do not speak with it.
//! Until the log is durable no server starts there ([`refuse_unfinished`]): it would be one with some
//! of the shards, and alone.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ecotone_control::ids::ShardId;
use ecotone_control::map::SlotRange;
use ecotone_engine::IDENTITY_FILE;
use ecotone_io::objects::{ObjectDirectory, Unchecked};
use ecotone_io::tap::Tap;
use ecotone_keyspace::MAX_LOCAL_SHARDS;
use serde::Serialize;

use super::manifest::{CURRENT, Manifest, ManifestFile, SavedFederation, SavedShard, folder_of};
use super::objects::{Objects, read_whole, sync_directory, write_whole};
use super::repository::Repository;
use super::{BackupError, CopyProgress, Result};
use crate::founding::{RestoredServer, check_founding, found_restored};

/// Says which backup is being restored.
const MARKER: &str = "RESTORING";

/// What it begins with where that is one of a federation.
const OF_FEDERATION: &str = "federation ";

/// The shard that a store without a federation is.
const FIRST_SHARD: u32 = 1;

/// What a file of the backup is called that is not whole yet, and is a store's last one.
const UNNAMED: &str = "restored";

/// What was restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RestoreReport {
    /// The backup.
    pub id: String,
    /// The moment that it shows, in ms since 1970.
    pub time_ms: u64,
    /// Its files.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes that an earlier try had written.
    pub resumed_bytes: u64,
    /// How long it took.
    pub took_ms: u64,
}

/// What was restored of a federation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FederationRestoreReport {
    /// All shards together.
    #[serde(flatten)]
    pub restored: RestoreReport,
    /// The federation that was made.
    pub federation: String,
    /// The one that the backup is of.
    pub old_federation: String,
    /// The first server of the new one.
    pub server: String,
    /// The settings of the old one.
    pub old_settings: BTreeMap<String, String>,
    /// Those of the new one.
    pub settings: BTreeMap<String, String>,
    /// Its shards, at the positions that they have in the backup.
    pub shards: Vec<SavedShard>,
}

/// Makes `to` the folder of a server with the store of a backup in `backups`: of the one that is
/// named, or the newest of a store.
///
/// # Errors
///
/// What went wrong, and what to do. A folder that holds anything but an unfinished restore of the
/// same backup is left as it is; one that is unfinished opens as no store.
pub fn restore(
    backups: &Path,
    backup: Option<&str>,
    to: &Path,
    progress: &mut dyn FnMut(CopyProgress),
) -> Result<RestoreReport> {
    let repository = Repository::open(backups)?;
    let manifest = chosen(&repository, backups, backup, false)?;
    let restoring = Restoring::new(&repository, &manifest, to);
    let ended = |resumed: bool| match resumed && restoring.is_store_there()? {
        false => Ok(()),
        true => Err(BackupError::Refused(format!(
            "{} has a store, and the restore of backup {} has ended there: remove {}, and start the server",
            to.display(),
            manifest.id,
            restoring.marker().display()
        ))),
    };
    restoring.all(&ended, progress, &mut || Ok(()))
}

/// Makes `to` the folder of the first server of a new federation, with all shards of a backup in
/// `backups`: of the one that is named, or the newest of a federation. `server` says who that is, by
/// what was saved.
///
/// # Errors
///
/// What went wrong, and what to do. A folder that holds anything but an unfinished restore of the
/// same backup is left as it is; no server starts in one that is unfinished.
pub fn restore_federation(
    backups: &Path,
    backup: Option<&str>,
    to: &Path,
    server: &dyn Fn(&SavedFederation) -> RestoredServer,
    progress: &mut dyn FnMut(CopyProgress),
) -> Result<FederationRestoreReport> {
    let repository = Repository::open(backups)?;
    let manifest = chosen(&repository, backups, backup, true)?;
    let Some(saved) = &manifest.federation else {
        return Err(BackupError::Refused(format!(
            "backup {} is of one store, and no federation: `ecotone restore {} --backup {} --to DIR`",
            manifest.id,
            backups.display(),
            manifest.id
        )));
    };
    check_fits(saved, &manifest.id)?;
    let server = server(saved);
    let range = |&(first, last): &(u16, u16)| SlotRange { first, last };
    let shards: BTreeMap<ShardId, Vec<SlotRange>> =
        saved.shards.iter().map(|shard| (ShardId(shard.shard), shard.slots.iter().map(range).collect())).collect();
    // All that is known before is asked before: copying takes long.
    check_founding(&server, &shards)
        .map_err(|why| BackupError::Refused(format!("no federation can be made of backup {}: {why}", manifest.id)))?;
    let mut first = None;
    let restored = Restoring::new(&repository, &manifest, to).all(&|_| Ok(()), progress, &mut || {
        let founded = found_restored(to, &server, &shards);
        first = Some(founded.map_err(|error| {
            BackupError::Refused(format!("all shards are restored, but no federation can be made of them: {error}"))
        })?);
        Ok(())
    })?;
    Ok(FederationRestoreReport {
        restored,
        federation: first.as_ref().map(|first| first.federation.to_string()).unwrap_or_default(),
        old_federation: saved.id.clone(),
        server: first.map_or(server.name, |first| first.name).to_string(),
        old_settings: saved.settings.clone(),
        settings: server.settings,
        shards: saved.shards.clone(),
    })
}

/// Whether a server of this build can have what was saved.
pub(super) fn check_fits(saved: &SavedFederation, id: &str) -> Result<()> {
    let most = ecotone_membership::FEATURES.max;
    if saved.feature_level > most {
        return Err(BackupError::Refused(format!(
            "backup {id} is of a federation at feature level {}, and this version knows levels up to {most}: restore it by a newer version",
            saved.feature_level
        )));
    }
    if saved.shards.len() > MAX_LOCAL_SHARDS {
        return Err(BackupError::Refused(format!(
            "backup {id} has {} shards, and the first server, which holds all of them at first, can hold {MAX_LOCAL_SHARDS}",
            saved.shards.len()
        )));
    }
    Ok(())
}

/// Refuses a server's folder into which something is restored now, and one in which the restore of
/// a federation has not ended: what is there may be some of its shards only.
///
/// # Errors
///
/// What to do.
pub fn refuse_unfinished(directory: &Path) -> Result<(), String> {
    let marker = directory.join(MARKER);
    // Where there is no folder, or there are no locks, the marker tells.
    if let Ok(Err(TryLockError::WouldBlock)) = File::open(directory).map(|folder| folder.try_lock_shared()) {
        return Err(format!(
            "a restore into {} is under way: start the server when it has ended, or end it and run it again",
            directory.display()
        ));
    }
    match fs::read_to_string(&marker) {
        Ok(text) if text.starts_with(OF_FEDERATION) => Err(format!(
            "the restore of a federation into {} was cut short, and it is no server yet: run the same `ecotone cluster restore` again, and it \
             goes on (it restores backup {})",
            directory.display(),
            text.trim_start_matches(OF_FEDERATION)
        )),
        // That of a store opens as none until it is whole.
        Ok(_) => Ok(()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
        Err(error) => Err(format!("cannot read {}: {error}", marker.display())),
    }
}

/// One backup, on its way into a server's folder.
struct Restoring<'r> {
    repository: &'r Repository,
    manifest: &'r Manifest,
    to: &'r Path,
    /// All files, with where each lies in the server's folder.
    files: Vec<(PathBuf, &'r ManifestFile)>,
    /// What the marker says.
    text: String,
}

impl<'r> Restoring<'r> {
    fn new(repository: &'r Repository, manifest: &'r Manifest, to: &'r Path) -> Self {
        let (within, text) = match &manifest.federation {
            Some(_) => (to.to_path_buf(), format!("{OF_FEDERATION}{}", manifest.id)),
            None => (to.join(folder_of(FIRST_SHARD)), manifest.id.clone()),
        };
        let mut files: Vec<_> = manifest.files.iter().map(|file| (within.join(&file.path), file)).collect();
        files.sort_by_key(|(path, _)| (is_called(path, IDENTITY_FILE), !is_called(path, CURRENT)));
        Self { repository, manifest, to, files, text }
    }

    fn marker(&self) -> PathBuf {
        self.to.join(MARKER)
    }

    /// Whether the last file of a store is there.
    fn is_store_there(&self) -> Result<bool> {
        let last = self.files.iter().filter(|(path, _)| self.is_last(path));
        let mut there =
            last.map(|(path, _)| path.try_exists().map_err(|error| BackupError::io("inspect", path, error)));
        there.try_fold(false, |any, is_there| Ok(any | is_there?))
    }

    /// Whether a file makes a folder a store.
    fn is_last(&self, path: &Path) -> bool {
        is_called(path, IDENTITY_FILE) && self.is_at_top(path)
    }

    /// Whether it lies in the folder of a store itself.
    fn is_at_top(&self, path: &Path) -> bool {
        let folders = match &self.manifest.federation {
            Some(federation) => federation.shards.iter().map(|shard| shard.shard).collect(),
            None => vec![FIRST_SHARD],
        };
        let above = path.parent();
        folders.into_iter().any(|shard| above == Some(self.to.join(folder_of(shard)).as_path()))
    }

    /// Restores all of it. `ended` is asked before anything is written, whether an earlier try is gone
    /// on with; `found` makes a server of the stores, once they are whole.
    fn all(
        &self,
        ended: &dyn Fn(bool) -> Result<()>,
        progress: &mut dyn FnMut(CopyProgress),
        found: &mut dyn FnMut() -> Result<()>,
    ) -> Result<RestoreReport> {
        let began = Instant::now();
        let (to, manifest, marker) = (self.to, self.manifest, self.marker());
        fs::create_dir_all(to).map_err(|error| BackupError::io("create the folder", to, error))?;
        let locked = self.lock()?;
        let is_resumed = self.prepare()?;
        ended(is_resumed)?;
        self.check_space()?;
        if !self.files.iter().any(|(path, _)| self.is_last(path)) {
            return Err(BackupError::Damaged(format!(
                "backup {} has no file {IDENTITY_FILE}, so it is of no store",
                manifest.id
            )));
        }
        if !is_resumed {
            write_whole(to, MARKER, self.text.as_bytes())?;
            sync_directory(to)?;
            sync_above(to)?;
        }
        let directories = self.make_directories()?;
        let mut at = CopyProgress { files: self.files.len() as u64, bytes: manifest.bytes, ..CopyProgress::default() };
        let mut resumed_bytes = 0;
        let first = self.files.partition_point(|(path, _)| is_called(path, CURRENT));
        let last = self.files.partition_point(|(path, _)| !is_called(path, IDENTITY_FILE));
        for (place, (path, file)) in self.files.iter().enumerate() {
            if place == first || place == last {
                directories.iter().try_for_each(|directory| sync_directory(directory))?;
            }
            self.check_own(&locked)?;
            if is_resumed && is_there(file, path) {
                resumed_bytes += file.bytes;
            } else if self.is_last(path) {
                let unnamed = path.with_extension(UNNAMED);
                write(&self.repository.objects, file, &unnamed)?;
                fs::rename(&unnamed, path).map_err(|error| BackupError::io("rename to", path, error))?;
            } else {
                write(&self.repository.objects, file, path)?;
            }
            at.done_files += 1;
            at.done_bytes += file.bytes;
            at.new_bytes = at.done_bytes - resumed_bytes;
            progress(at);
        }
        directories.iter().try_for_each(|directory| sync_directory(directory))?;
        self.check_own(&locked)?;
        found()?;
        fs::remove_file(&marker).map_err(|error| BackupError::io("remove", &marker, error))?;
        sync_directory(to)?;
        Ok(RestoreReport {
            id: manifest.id.clone(),
            time_ms: manifest.time_ms,
            files: self.files.len() as u64,
            bytes: manifest.bytes,
            resumed_bytes,
            took_ms: began.elapsed().as_millis() as u64,
        })
    }

    /// All folders that files come into, and those above, the server's first.
    fn make_directories(&self) -> Result<Vec<PathBuf>> {
        let mut directories = vec![self.to.to_path_buf()];
        for (path, _) in &self.files {
            let above = path.ancestors().skip(1).take_while(|above| *above != self.to);
            directories.extend(above.map(Path::to_path_buf));
        }
        directories.sort();
        directories.dedup();
        for directory in &directories {
            fs::create_dir_all(directory).map_err(|error| BackupError::io("create the folder", directory, error))?;
        }
        Ok(directories)
    }

    /// The folder, of which nobody else who restores has a lock while this is open. Where the file
    /// system has none it is open all the same.
    fn lock(&self) -> Result<File> {
        let folder = File::open(self.to).map_err(|error| BackupError::io("open", self.to, error))?;
        match folder.try_lock() {
            Err(TryLockError::WouldBlock) => Err(BackupError::Refused(format!(
                "another restore into {} is under way: wait until it has ended, or name another folder",
                self.to.display()
            ))),
            Ok(()) | Err(TryLockError::Error(_)) => Ok(folder),
        }
    }

    /// Makes sure that what is written comes into the folder that is locked: whoever was stopped
    /// for long may find another one there, or that another restore has ended and a server runs.
    fn check_own(&self, locked: &File) -> Result<()> {
        let failed = |error| BackupError::io("inspect", self.to, error);
        let (own, found) = (locked.metadata().map_err(failed)?, fs::metadata(self.to).map_err(failed)?);
        let text = fs::read_to_string(self.marker()).unwrap_or_default();
        if (own.dev(), own.ino()) != (found.dev(), found.ino()) || text != self.text {
            return Err(BackupError::Refused(format!(
                "{} is not what it was any more: it was removed, or another restore has ended there; nothing more is written",
                self.to.display()
            )));
        }
        Ok(())
    }

    /// Makes sure that nothing is overwritten. Whether an earlier try is gone on with.
    fn prepare(&self) -> Result<bool> {
        let (to, marker) = (self.to, self.marker());
        let shown = to.display();
        match fs::read_to_string(&marker) {
            Ok(text) if text == self.text => return Ok(true),
            Ok(text) => {
                let (id, command) = match text.strip_prefix(OF_FEDERATION) {
                    Some(id) => (id, "ecotone cluster restore"),
                    None => (text.as_str(), "ecotone restore"),
                };
                return Err(BackupError::Refused(format!(
                    "{shown} holds an unfinished restore of backup {id}, and not of {}: go on with that by `{command}` and --backup {id}, \
                     or name an empty folder",
                    self.manifest.id
                )));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(BackupError::io("read", &marker, error)),
        }
        for entry in fs::read_dir(to).map_err(|error| BackupError::io("list", to, error))? {
            let name = entry.map_err(|error| BackupError::io("list", to, error))?.file_name();
            // What a fresh file system has, and what a restore leaves that was killed at once.
            if name == "lost+found" || name == "RESTORING.tmp" {
                continue;
            }
            return Err(BackupError::Refused(format!(
                "{shown} holds {}, and nothing is overwritten: name an empty folder, or one that is not there",
                Path::new(&name).display()
            )));
        }
        Ok(false)
    }

    /// Checks the free space before anything is written.
    fn check_space(&self) -> Result<()> {
        // Where it cannot be measured, writing will tell.
        let Ok(system) = rustix::fs::statvfs(self.to) else { return Ok(()) };
        let free_bytes = system.f_bavail.saturating_mul(system.f_frsize);
        let there = self.files.iter().filter_map(|(path, _)| fs::metadata(path).ok());
        let needed_bytes = self.manifest.bytes.saturating_sub(there.map(|file| file.len()).sum());
        if free_bytes < needed_bytes {
            return Err(BackupError::Refused(format!(
                "{} has {free_bytes} bytes free, and the backup takes {needed_bytes}: free some, or name a folder elsewhere",
                self.to.display()
            )));
        }
        Ok(())
    }
}

fn is_called(path: &Path, name: &str) -> bool {
    path.file_name().is_some_and(|found| found == name)
}

/// The backup that is named, or else the newest of a federation, or of a store.
fn chosen(repository: &Repository, backups: &Path, backup: Option<&str>, of_federation: bool) -> Result<Manifest> {
    let mut entries = repository.entries()?;
    let is_other = |manifest: &Manifest| manifest.federation.is_some() != of_federation;
    let (other, how) = match of_federation {
        true => ("of one store", "ecotone restore"),
        false => ("of a federation", "ecotone cluster restore"),
    };
    match backup {
        Some(backup) => entries.retain(|entry| entry.id == backup),
        // One that cannot be read may be what is meant.
        None => {
            let others = entries.len();
            entries.retain(|entry| !entry.manifest.as_ref().is_ok_and(is_other));
            if entries.is_empty() && others > 0 {
                return Err(BackupError::Refused(format!(
                    "all backups in {} are {other}: see `{how} --help`",
                    backups.display()
                )));
            }
        }
    }
    let Some(entry) = entries.pop() else {
        let which = backup.map_or_else(String::new, |backup| format!(" {backup}"));
        return Err(BackupError::Refused(format!(
            "{} has no backup{which}: `ecotone backup --list {}` names all",
            backups.display(),
            backups.display()
        )));
    };
    let manifest = entry.manifest.map_err(|why| {
        BackupError::Damaged(format!("backup {} cannot be restored: {why}; name another with --backup", entry.id))
    })?;
    if is_other(&manifest) {
        return Err(BackupError::Refused(format!("backup {} is {other}: see `{how} --help`", manifest.id)));
    }
    Ok(manifest)
}

/// Whether an earlier try has written all of `file`: it is read.
fn is_there(file: &ManifestFile, path: &Path) -> bool {
    let right = read_whole(path, &file.object, file.bytes, &mut |_| Ok(()));
    let seal = || place(path).and_then(|(directory, name)| directory.adopt(name));
    right.is_ok_and(|right| right.is_ok()) && seal().is_ok()
}

fn write(objects: &Objects, file: &ManifestFile, path: &Path) -> Result<()> {
    let failed = |error| BackupError::io("write", path, error);
    let begun = place(path).and_then(|(directory, name)| directory.create_over::<Unchecked>(name));
    // What is not whole stays: with `CURRENT`, whatever is in it, no store is made here.
    let mut to = begun.map_err(failed)?.stays();
    let read = objects.read(&file.object, file.bytes, &mut |piece| to.append(piece).map_err(failed))?;
    if let Err(reason) = read {
        return Err(BackupError::Damaged(format!(
            "the object {} of {} is damaged: {reason}; nothing that opens was made. Restore another backup (--backup), or fetch this object \
             from another copy of the folder",
            objects.path(&file.object).display(),
            file.path
        )));
    }
    to.seal().map(|_| ()).map_err(failed)
}

/// Where a file of the store lies, and its name there.
fn place(path: &Path) -> io::Result<(ObjectDirectory, &str)> {
    let name = path.file_name().and_then(OsStr::to_str).ok_or(ErrorKind::InvalidInput)?;
    Ok((ObjectDirectory::new(path.parent().unwrap_or(path), Tap::SILENT), name))
}

/// Makes the names of the folders above durable, as far as they are ours to sync.
fn sync_above(directory: &Path) -> Result<()> {
    let directory = std::path::absolute(directory).map_err(|error| BackupError::io("resolve", directory, error))?;
    for above in directory.ancestors().skip(1) {
        if sync_directory(above).is_err() {
            break;
        }
    }
    Ok(())
}
