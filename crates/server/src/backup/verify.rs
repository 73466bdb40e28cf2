//! Reads everything in a folder of backups again, and reports what is not as it was written.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::repository::Repository;
use super::{BackupError, CopyProgress, Result};

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VerifyBackupsReport {
    /// Backups that were checked.
    pub backups: u64,
    /// Objects that they consist of.
    pub objects: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Backups that can no longer be read: why.
    pub damaged_backups: Vec<String>,
    /// Objects that are not what they were.
    pub damaged_objects: Vec<DamagedObject>,
    /// Objects that no backup needs. The next backup removes them.
    pub unneeded_objects: u64,
    /// Bytes of those.
    pub unneeded_bytes: u64,
}

/// An object that is not what it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DamagedObject {
    /// Its path.
    pub path: String,
    /// What is wrong with it.
    pub reason: String,
    /// What needs it: a backup's name, a colon, a file's path.
    pub needed_by: Vec<String>,
}

impl VerifyBackupsReport {
    /// Whether all backups can be restored.
    pub fn is_sound(&self) -> bool {
        self.damaged_backups.is_empty() && self.damaged_objects.is_empty()
    }
}

/// Reads all objects of all backups in `directory`, or of the one that is named.
///
/// # Errors
///
/// It is no folder of backups, it cannot be read, or there is no such backup. Damage is no error:
/// the report tells, and the next backup reads those files again.
pub fn verify(
    directory: &Path,
    backup: Option<&str>,
    progress: &mut dyn FnMut(CopyProgress),
) -> Result<VerifyBackupsReport> {
    let repository = Repository::open(directory)?;
    let mut report = VerifyBackupsReport::default();
    let mut needed: BTreeMap<String, (u64, Vec<String>)> = BTreeMap::new();
    let mut entries = repository.entries()?;
    if let Some(backup) = backup {
        entries.retain(|entry| entry.id == backup);
        if entries.is_empty() {
            return Err(BackupError::Refused(format!(
                "{} has no backup {backup}: --list names all",
                directory.display()
            )));
        }
    }
    for entry in entries {
        report.backups += 1;
        match entry.manifest {
            Ok(manifest) => {
                for file in manifest.files {
                    let (_, by) = needed.entry(file.object).or_insert((file.bytes, Vec::new()));
                    by.push(format!("{}: {}", entry.id, file.path));
                }
            }
            Err(why) => report.damaged_backups.push(why),
        }
    }
    let mut at = CopyProgress {
        files: needed.len() as u64,
        bytes: needed.values().map(|(bytes, _)| bytes).sum(),
        ..CopyProgress::default()
    };
    (report.objects, report.bytes) = (at.files, at.bytes);
    for (object, (bytes, needed_by)) in &needed {
        let before = at.done_bytes;
        let read = repository.objects.read(object, *bytes, &mut |piece| {
            at.done_bytes += piece.len() as u64;
            progress(at);
            Ok(())
        })?;
        (at.done_files, at.done_bytes) = (at.done_files + 1, before + bytes);
        if let Err(reason) = read {
            repository.objects.note_damaged(object);
            let path = repository.objects.path(object).display().to_string();
            report.damaged_objects.push(DamagedObject { path, reason, needed_by: needed_by.clone() });
        }
    }
    if backup.is_none() {
        for (_, bytes) in repository.objects.all()?.iter().filter(|(object, _)| !needed.contains_key(object)) {
            report.unneeded_objects += 1;
            report.unneeded_bytes += bytes;
        }
    }
    Ok(report)
}
