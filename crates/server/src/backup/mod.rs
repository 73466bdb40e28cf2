//! Backups: copies of a store as it was at one moment, in a folder that holds many of them and each
//! file once; or of all shards of a federation, each as it was at a moment of its own.
//!
//! - [`Source`] is what is copied: a checkpoint of this process ([`local`]), or of a server
//!   elsewhere (`ecotone backup`). [`FederationSource`] finds one for each shard.
//! - [`repository`] is the folder, [`manifest`] what one backup in it consists of.
//!   docs/internals/formats.md describes their bytes.
//! - [`back_up`] and [`back_up_federation`] copy, [`verify`] reads everything again, [`restore`]
//!   makes a server's folder of a backup, [`restore_federation`] that of the first server of a new
//!   federation. [`pace`] bounds the rate.
//!
//! Invariants: a backup is there once its MANIFEST is, which is written last, after everything that
//! it names is durable. An object is named by the SHA-256 of what it holds, so the same content
//! lies there once, and whoever reads it can tell whether it is still that. Nothing that a MANIFEST
//! names is ever removed, and nothing at all while one of them cannot be read.
//!
//! Failure: whatever is cut short leaves all backups as they were, and what has come; the next one
//! goes on from there.
//!
//! Threads: one process writes to a folder at a time, by a lock; others may read it.

mod copy;
mod federation;
#[cfg(test)]
mod federation_tests;
mod local;
mod manifest;
mod objects;
mod pace;
mod repository;
mod restore;
#[cfg(test)]
mod tests;
mod verify;

pub use copy::{BackupOptions, BackupReport, CopyProgress, back_up};
pub use federation::{FederationBackupReport, FederationSource, ShardProgress, ShardSource, back_up_federation};
pub(crate) use local::LocalTarget;
pub use manifest::{Manifest, ManifestFile, SavedFederation, SavedShard};
pub use pace::{Limiter, MIN_LIMIT_BYTES_PER_S, Pace};
pub use repository::{BackupEntry, list};
pub use restore::{FederationRestoreReport, RestoreReport, refuse_unfinished, restore, restore_federation};
pub use verify::{DamagedObject, VerifyBackupsReport, verify};

pub use ecotone_resp::backups::sha256;

pub use crate::error::BackupError;

/// The outcome of what this module does.
pub type Result<T, E = BackupError> = std::result::Result<T, E>;

/// Bytes that are read, sent and written at a time, at most.
pub const MAX_PIECE_BYTES: usize = ecotone_resp::backups::MAX_READ_BYTES;

/// Bytes whose checksums are compared at a time, at most.
pub const MAX_COMPARED_BYTES: u64 = ecotone_resp::backups::MAX_HASHED_BYTES;

/// The rate at which a server's files are read unless another is asked for: less than what a disk
/// gives, so that clients keep the rest.
pub const DEFAULT_LIMIT_BYTES_PER_S: u64 = 64 << 20;

/// What a backup is made of.
#[derive(Debug, Clone)]
pub struct Begun {
    /// The store's [lineage](ecotone_engine::Store::lineage): `--keep` counts backups that have the
    /// same.
    pub store: String,
    /// The moment that it shows, in ms since 1970.
    pub time_ms: u64,
    /// Where it is of a shard with copies: the epoch, and the number up to which all is in it.
    pub position: Option<(u64, u64)>,
    /// All files.
    pub files: Vec<SourceFile>,
}

/// A file of the store, which does not change while it is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// Where it lies in the store's folder, with `/` between names.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// A file with the same path, length and stamp in the same store is the same file.
    pub stamp: String,
}

/// A store that is held as it was at one moment.
pub trait Source {
    /// Holds it, and lists its files.
    ///
    /// # Errors
    ///
    /// Why it cannot be held, and what to do.
    fn begin(&mut self) -> Result<Begun>;

    /// Gives what `file` holds from `from` on, piece by piece, to `take`. Each piece waits for its
    /// turn by `limiter`.
    ///
    /// # Errors
    ///
    /// Those of `take`, and why no more comes.
    fn read(
        &mut self,
        file: &SourceFile,
        from: u64,
        limiter: &mut Limiter<'_>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()>;

    /// The SHA-256, in hexadecimal digits, of at most [`MAX_COMPARED_BYTES`] of `file` from `from`
    /// on.
    ///
    /// # Errors
    ///
    /// Why it cannot be had.
    fn hash(&mut self, file: &SourceFile, from: u64, bytes: u64) -> Result<String>;

    /// Is still wanted, though nothing is read of it for a while.
    ///
    /// # Errors
    ///
    /// It is not held any more.
    fn keep(&mut self) -> Result<()>;

    /// Holds it no more. With `is_completed` all of it was copied.
    ///
    /// # Errors
    ///
    /// It was given up before: what was copied may still be whole, since each file was while it
    /// could be read.
    fn end(&mut self, is_completed: bool) -> Result<()>;
}
