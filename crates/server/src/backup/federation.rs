//! Makes a backup of a federation: one shard after the other, each of its primary as that has it at a
//! moment of its own, and one MANIFEST for all of them, written last.
//!
//! Each shard is whole by itself: all that was acknowledged before the backup began, up to the
//! position that the manifest states. Shards are of different moments, so what was written to two of
//! them while the backup ran may be there in one only.
//!
//! Failure: where a primary is gone, or is no longer the primary, the shard is asked for again at who
//! has it then, [`MAX_SHARD_TRIES`] times. What has come of it stays, and is compared. Where that does
//! not help there is no backup, and those that were there are as they were.

use std::time::Instant;

use serde::Serialize;

use super::copy::{BackupReport, Copying, Counts, Known, report};
use super::manifest::{FEDERATION_FORMAT, Manifest, ManifestFile, SavedFederation, SavedShard, folder_of, next_id};
use super::repository::Repository;
use super::restore::check_fits;
use super::{BackupError, BackupOptions, CopyProgress, Limiter, Result, Source};

/// How often the primary of a shard is looked for, and begun with: more often than a failover takes
/// seconds.
pub const MAX_SHARD_TRIES: u32 = 30;

/// A federation that is backed up.
pub trait FederationSource {
    /// What it is now. Of its shards only numbers and slots count.
    ///
    /// # Errors
    ///
    /// Why that cannot be known.
    fn describe(&mut self) -> Result<SavedFederation>;

    /// The store of a shard at its primary, not begun yet. `tries` were in vain: where there were some
    /// it rests first, and looks for the primary anew.
    ///
    /// # Errors
    ///
    /// [`BackupError::Gone`] where there may be one later; others end the backup.
    fn shard(&mut self, shard: u32, tries: u32) -> Result<ShardSource<'_>>;
}

/// A shard at its primary.
pub struct ShardSource<'s> {
    /// The server.
    pub server: String,
    /// The epoch in which it is the primary, by the map.
    pub epoch: u64,
    /// Its store.
    pub source: Box<dyn Source + 's>,
}

/// How far a backup of a federation is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShardProgress {
    /// The shard that is copied.
    pub shard: u32,
    /// Shards that are there.
    pub done_shards: usize,
    /// All shards.
    pub shards: usize,
    /// How far that one is.
    pub copy: CopyProgress,
}

/// What a backup of a federation came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FederationBackupReport {
    /// All shards together.
    #[serde(flatten)]
    pub backup: BackupReport,
    /// Which federation it is of.
    pub federation: String,
    /// Its shards, at their positions.
    pub shards: Vec<SavedShard>,
    /// Tries that ended since a primary was gone.
    pub retries: u64,
    /// Why this version cannot restore it, if it cannot.
    pub not_restorable: Option<String>,
}

/// Makes a backup of all shards in `directory`, which becomes a folder of backups if there is
/// nothing. It is complete, and durable, when this returns.
///
/// # Errors
///
/// What went wrong, and what to do. What has come is kept for the next try.
pub fn back_up_federation(
    directory: &std::path::Path,
    source: &mut dyn FederationSource,
    options: BackupOptions,
    goes_on: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(ShardProgress),
) -> Result<FederationBackupReport> {
    let began = Instant::now();
    let repository = Repository::create_or_open(directory)?;
    let mut federation = source.describe()?;
    if federation.shards.is_empty() {
        return Err(BackupError::Refused(format!(
            "federation {} has no shards yet, so there is nothing to back up: `ecotone cluster create` deals them",
            federation.id
        )));
    }
    let store = name_of(&federation.id);
    let mut all = All {
        repository: &repository,
        known: Known::read(&repository, &store)?,
        limiter: Limiter::new(options.limit_bytes_per_s, goes_on),
        files: Vec::new(),
        at: CopyProgress::default(),
        counts: Counts::default(),
        retries: 0,
    };
    let count = federation.shards.len();
    for (place, shard) in federation.shards.iter_mut().enumerate() {
        let number = shard.shard;
        let said = ShardProgress { shard: number, done_shards: place, shards: count, ..ShardProgress::default() };
        progress(said);
        let mut told = |copy| progress(ShardProgress { copy, ..said });
        let SavedShard { slots, .. } = std::mem::replace(shard, all.tried(source, number, &mut told)?);
        shard.slots = slots;
    }
    let All { files, at, counts, retries, .. } = all;
    let manifest = Manifest {
        format: FEDERATION_FORMAT,
        id: next_id(repository.last_number()?, federation.shards.iter().map(|shard| shard.time_ms).min().unwrap_or(0)),
        program: env!("CARGO_PKG_VERSION").into(),
        store,
        time_ms: federation.shards.iter().map(|shard| shard.time_ms).min().unwrap_or(0),
        took_ms: began.elapsed().as_millis() as u64,
        bytes: at.bytes,
        new_bytes: at.new_bytes,
        files,
        federation: Some(federation.clone()),
    };
    // What it says is what a restore will ask.
    federation
        .check(&manifest.files)
        .map_err(|why| BackupError::Source(format!("the shards make no federation: {why}")))?;
    // Not before: older versions read the folder until there is one.
    repository.takes_federations()?;
    repository.commit(&manifest)?;
    repository.forget_partial()?;
    let not_restorable = check_fits(&federation, &manifest.id).err().map(|error| error.to_string());
    let backup = report(&repository, &manifest, at, &counts, options, began);
    let SavedFederation { id, shards, .. } = federation;
    Ok(FederationBackupReport { backup, federation: id, shards, retries, not_restorable })
}

/// What backups of a federation have in common, and no store's.
fn name_of(federation: &str) -> String {
    format!("federation {federation}")
}

/// What has come of all shards.
struct All<'a, 'g> {
    repository: &'a Repository,
    known: Known,
    limiter: Limiter<'g>,
    files: Vec<ManifestFile>,
    at: CopyProgress,
    counts: Counts,
    retries: u64,
}

impl All<'_, '_> {
    /// Copies a shard of who is its primary, whoever that comes to be.
    fn tried(
        &mut self,
        source: &mut dyn FederationSource,
        shard: u32,
        progress: &mut dyn FnMut(CopyProgress),
    ) -> Result<SavedShard> {
        let mut tries = 0;
        loop {
            let tried = source.shard(shard, tries).and_then(|from| self.copied(from, shard, progress));
            let why = match tried {
                Err(BackupError::Gone(why)) => why,
                outcome => return outcome,
            };
            tries += 1;
            self.retries += 1;
            self.known.look_again();
            if tries >= MAX_SHARD_TRIES {
                return Err(BackupError::Source(format!(
                    "shard {shard} cannot be backed up, tried {tries} times: {why}. Earlier backups are as they were. See `ecotone cluster \
                     status`; once the shard has a primary run this again: it goes on from there"
                )));
            }
            tracing::info!(shard, why, "the shard is asked for again");
        }
    }

    fn copied(
        &mut self,
        from: ShardSource<'_>,
        shard: u32,
        progress: &mut dyn FnMut(CopyProgress),
    ) -> Result<SavedShard> {
        let ShardSource { server, epoch, mut source } = from;
        let begun = source.begin()?;
        let prefix = folder_of(shard) + "/";
        let mut copying =
            Copying::new(self.repository, &mut *source, &mut self.limiter, &mut self.known, &prefix, &begun, progress);
        let copied = copying.all(&begun.files);
        let (at, counts) = (copying.at, copying.counts);
        self.at.new_bytes += at.new_bytes;
        self.counts.new_files += counts.new_files;
        self.counts.compared_bytes += counts.compared_bytes;
        self.counts.resumed_bytes += counts.resumed_bytes;
        // Where the server can no longer be reached it gives the backup up by itself.
        if let Err(error) = source.end(copied.is_ok()) {
            tracing::warn!(shard, %error, "the server was not notified that the backup of the shard has ended");
        }
        self.files.extend(copied?);
        self.at.files += at.files;
        self.at.bytes += at.bytes;
        let (epoch, number) = begun.position.map_or((epoch, None), |(epoch, number)| (epoch, Some(number)));
        Ok(SavedShard {
            shard,
            slots: Vec::new(),
            server,
            store: begun.store,
            epoch,
            number,
            time_ms: begun.time_ms,
            files: at.files,
            bytes: at.bytes,
        })
    }
}
