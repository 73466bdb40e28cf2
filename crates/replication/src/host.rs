//! What replication asks of the server around it: to open and close stores.

use std::path::PathBuf;
use std::sync::Arc;

use ecotone_control::ids::ShardId;
use ecotone_control::map::SlotRange;
use ecotone_io::tap::WriteTap;
use ecotone_types::DutyObserver;

use crate::gate::CommitGate;
use crate::primary_tables::PrimaryTables;

/// A store that is to be opened for writing.
pub struct Opening {
    /// Whose.
    pub shard: ShardId,
    /// The slots of the shard.
    pub slots: Vec<SlotRange>,
    /// Follows every change of its files, from the first on.
    pub tap: Arc<dyn WriteTap>,
    /// The least number that a new segment may get.
    pub least_segment: u64,
    /// What replies wait for.
    pub gate: Arc<CommitGate>,
    /// What its tables hold, and who has copies: for jobs of it that run elsewhere.
    pub tables: PrimaryTables,
}

/// The server around. Its methods may take long, and are called on threads of their own.
pub trait Host: Send + Sync {
    /// Whom threads of copies tell what they are for; `None`: nobody.
    fn duties(&self) -> Option<Arc<dyn DutyObserver>> {
        None
    }

    /// Where the store of a shard lies, or will.
    fn directory(&self, shard: ShardId) -> PathBuf;

    /// From now on the files of the shard are replication's. False where the server has the store
    /// open by itself, or is about to: ask again.
    fn reserve(&self, shard: ShardId) -> bool;

    /// They are not any more. False while the store is open still.
    fn release(&self, shard: ShardId) -> bool;

    /// Opens a store for writing, all that was in its WAL in tables before its new MANIFEST is in
    /// force, and serves clients from it.
    ///
    /// # Errors
    /// Why not, for people. The store is closed then.
    fn open(&self, opening: Opening) -> Result<(), String>;

    /// Stops serving clients from it, and closes it. Nothing touches its files afterwards.
    ///
    /// # Errors
    /// Why its files may still be touched, for people.
    fn close(&self, shard: ShardId) -> Result<(), String>;

    /// Makes durable what was written to an open store.
    ///
    /// # Errors
    /// Why it is not, for people.
    fn sync(&self, shard: ShardId) -> Result<(), String>;
}
