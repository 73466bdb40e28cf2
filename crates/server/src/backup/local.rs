//! Backups that the server makes by itself, of its own store: `BGSAVE` where `backup.dir` is set.

use std::path::PathBuf;
use std::sync::Arc;

use ecotone_resp::backups::{BackupSnapshot, Backups};
use ecotone_resp::host::BackupTarget;
use tracing::info;

use super::{BackupError, BackupOptions, Begun, Limiter, Result, Source, SourceFile, back_up};

/// A folder of backups, and how they are made.
#[derive(Debug)]
pub(crate) struct LocalTarget {
    pub(crate) directory: PathBuf,
    pub(crate) options: BackupOptions,
}

impl BackupTarget for LocalTarget {
    fn copy(&self, backups: &Backups, held: &Arc<BackupSnapshot>, goes_on: &dyn Fn() -> bool) -> Result<(), String> {
        let mut source = HeldSource { backups, held };
        let report = back_up(&self.directory, &mut source, self.options, goes_on, &mut |_| {})
            .map_err(|error| format!("the backup in {} failed: {error}", self.directory.display()))?;
        info!(
            directory = %self.directory.display(), backup = report.id, bytes = report.bytes, new_bytes = report.new_bytes,
            removed_backups = report.removed_backups, took_ms = report.took_ms, "a backup was made"
        );
        if let Some(why) = report.not_removed {
            tracing::warn!(why, "old backups were not removed");
        }
        Ok(())
    }
}

/// A checkpoint of this process.
struct HeldSource<'h> {
    backups: &'h Backups,
    held: &'h BackupSnapshot,
}

fn failed(error: &ecotone_resp::backups::BackupError) -> BackupError {
    BackupError::Source(format!("the store cannot be read: {error}"))
}

impl Source for HeldSource<'_> {
    fn begin(&mut self) -> Result<Begun> {
        let files = self.held.checkpoint.files().iter();
        let files =
            files.map(|(path, file)| SourceFile { path: path.clone(), bytes: file.bytes, stamp: file.stamp.clone() });
        Ok(Begun { store: self.held.store.clone(), time_ms: self.held.time_ms, position: None, files: files.collect() })
    }

    fn read(
        &mut self,
        file: &SourceFile,
        from: u64,
        limiter: &mut Limiter<'_>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut at = from;
        while at < file.bytes {
            let bytes = limiter.piece_bytes().min(usize::try_from(file.bytes - at).unwrap_or(usize::MAX));
            limiter.wait_for(bytes as u64)?;
            let piece = self.backups.read(self.held, &file.path, at, bytes).map_err(|error| failed(&error))?;
            if piece.is_empty() {
                return Ok(());
            }
            at += piece.len() as u64;
            take(&piece)?;
        }
        Ok(())
    }

    fn hash(&mut self, file: &SourceFile, from: u64, bytes: u64) -> Result<String> {
        self.backups.hash(self.held, &file.path, from, bytes).map_err(|error| failed(&error))
    }

    fn keep(&mut self) -> Result<()> {
        self.backups.find(self.held.id.as_bytes()).map(drop).map_err(|error| failed(&error))
    }

    /// Who began it ends it.
    fn end(&mut self, _is_completed: bool) -> Result<()> {
        Ok(())
    }
}
