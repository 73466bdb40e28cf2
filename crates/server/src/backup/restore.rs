//! Makes the folder of a server of a backup.
//!
//! Order: first what says that a restore is under way; then `CURRENT`, with which the folder is no
//! store and no place for a new one; all other files, each durable and read against its checksum;
//! last, by one rename, `STORE`, with which it is a store. So whatever cuts it short, a store opens
//! that is whole, or none.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Instant;

use ecotone_engine::IDENTITY_FILE;
use ecotone_io::objects::{ObjectDirectory, Unchecked};
use ecotone_io::tap::Tap;
use serde::Serialize;

use super::manifest::{Manifest, ManifestFile};
use super::objects::{Objects, read_whole, sync_directory, write_whole};
use super::repository::Repository;
use super::{BackupError, CopyProgress, Result};

/// Says which backup is being restored.
const MARKER: &str = "RESTORING";

/// The store in a server's folder.
const STORE: &str = "store";

/// Comes second, as [`IDENTITY_FILE`] comes last.
const CURRENT: &str = "CURRENT";

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

/// Makes `to` the folder of a server with the store of a backup in `backups`: of the one that is
/// named, or the newest.
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
    let began = Instant::now();
    let repository = Repository::open(backups)?;
    let manifest = chosen(&repository, backups, backup)?;
    let marker = to.join(MARKER);
    let is_resumed = prepare(to, &marker, &manifest)?;
    check_space(to, &manifest)?;
    if !is_resumed {
        write_whole(to, MARKER, manifest.id.as_bytes())?;
        sync_directory(to)?;
        sync_above(to)?;
    }
    let store = to.join(STORE);
    let mut directories = vec![store.clone()];
    directories.extend(manifest.files.iter().filter_map(|file| store.join(&file.path).parent().map(Path::to_path_buf)));
    directories.sort();
    directories.dedup();
    for directory in &directories {
        fs::create_dir_all(directory).map_err(|error| BackupError::io("create the folder", directory, error))?;
    }
    let mut at = CopyProgress { files: manifest.files.len() as u64, bytes: manifest.bytes, ..CopyProgress::default() };
    let mut resumed_bytes = 0;
    let mut files: Vec<&ManifestFile> = manifest.files.iter().collect();
    files.sort_by_key(|file| (file.path == IDENTITY_FILE, file.path != CURRENT));
    let Some((identity, others)) = files.split_last().filter(|(last, _)| last.path == IDENTITY_FILE) else {
        return Err(BackupError::Damaged(format!(
            "backup {} has no file {IDENTITY_FILE}, so it is of no store",
            manifest.id
        )));
    };
    for file in others {
        let path = store.join(&file.path);
        if is_resumed && is_there(file, &path) {
            resumed_bytes += file.bytes;
        } else {
            write(&repository.objects, file, &path)?;
        }
        at.done_files += 1;
        at.done_bytes += file.bytes;
        at.new_bytes = at.done_bytes - resumed_bytes;
        progress(at);
        if file.path == CURRENT {
            sync_directory(&store)?;
            sync_directory(to)?;
        }
    }
    for directory in &directories {
        sync_directory(directory)?;
    }
    let unnamed = store.join(format!("{IDENTITY_FILE}.restored"));
    write(&repository.objects, identity, &unnamed)?;
    let named = store.join(IDENTITY_FILE);
    fs::rename(&unnamed, &named).map_err(|error| BackupError::io("rename to", &named, error))?;
    sync_directory(&store)?;
    fs::remove_file(&marker).map_err(|error| BackupError::io("remove", &marker, error))?;
    sync_directory(to)?;
    Ok(RestoreReport {
        id: manifest.id.clone(),
        time_ms: manifest.time_ms,
        files: manifest.files.len() as u64,
        bytes: manifest.bytes,
        resumed_bytes,
        took_ms: began.elapsed().as_millis() as u64,
    })
}

fn chosen(repository: &Repository, backups: &Path, backup: Option<&str>) -> Result<Manifest> {
    let mut entries = repository.entries()?;
    if let Some(backup) = backup {
        entries.retain(|entry| entry.id == backup);
    }
    let Some(entry) = entries.pop() else {
        let which = backup.map_or_else(String::new, |backup| format!(" {backup}"));
        return Err(BackupError::Refused(format!("{} has no backup{which}: --list names all", backups.display())));
    };
    entry.manifest.map_err(|why| {
        BackupError::Damaged(format!("backup {} cannot be restored: {why}; name another with --backup", entry.id))
    })
}

/// Makes sure that nothing is overwritten. Whether an earlier try is gone on with.
fn prepare(to: &Path, marker: &Path, manifest: &Manifest) -> Result<bool> {
    fs::create_dir_all(to).map_err(|error| BackupError::io("create the folder", to, error))?;
    let shown = to.display();
    match fs::read_to_string(marker) {
        Ok(id) => {
            let store = to.join(STORE).join(IDENTITY_FILE);
            if store.try_exists().map_err(|error| BackupError::io("inspect", &store, error))? {
                return Err(BackupError::Refused(format!(
                    "{shown} has a store, and the restore of backup {id} has ended there: remove {}, and start the server",
                    marker.display()
                )));
            }
            if id != manifest.id {
                return Err(BackupError::Refused(format!(
                    "{shown} holds an unfinished restore of backup {id}, and not of {}: go on with that by --backup {id}, or name an empty folder",
                    manifest.id
                )));
            }
            return Ok(true);
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(BackupError::io("read", marker, error)),
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
fn check_space(to: &Path, manifest: &Manifest) -> Result<()> {
    // Where it cannot be measured, writing will tell.
    let Ok(system) = rustix::fs::statvfs(to) else { return Ok(()) };
    let free_bytes = system.f_bavail.saturating_mul(system.f_frsize);
    let there_bytes: u64 = manifest
        .files
        .iter()
        .filter_map(|file| fs::metadata(to.join(STORE).join(&file.path)).ok())
        .map(|file| file.len())
        .sum();
    let needed_bytes = manifest.bytes.saturating_sub(there_bytes);
    if free_bytes < needed_bytes {
        return Err(BackupError::Refused(format!(
            "{} has {free_bytes} bytes free, and the backup takes {needed_bytes}: free some, or name a folder elsewhere",
            to.display()
        )));
    }
    Ok(())
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
