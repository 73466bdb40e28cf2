//! The keys of one store or several as Redis knows them: typed, with an expiry, changed under
//! latches, watched.
//!
//! From the bottom: [`slot`] and [`layout`] say where a key lies in a store, [`shards`] in which;
//! [`latches`] keep
//! commands apart; a [`WriteGroup`] is what one thread has written and not committed, and [`Keys`]
//! reads and writes keys through it; [`collections`] is how hashes, sets, lists and sorted sets lie
//! in the store, and [`ranks`] what is known of their order; [`Maintenance`] does in the background
//! what no command waits for. [`memory`] is what all commands together may take, [`error`] why one
//! was not carried out.
//!
//! What must never be in here: commands, replies, clients, connections and the threads that serve
//! them (that is `resp`); files and tables (that is `engine`).

mod cancellation;
mod clock;
pub mod collections;
pub mod error;
pub mod gate;
mod id_allocator;
mod key_count;
mod key_moves;
mod keys;
mod keyspace;
mod latches;
pub mod layout;
mod maintenance;
pub mod memory;
mod pending;
mod prefetch;
mod ranked_elements;
pub mod ranks;
mod reclaim;
mod reclaimable;
mod replica;
mod rewrite;
mod seen_gate;
mod shards;
pub mod slot;
mod slow_reads;
mod value_arena;
mod visits;
mod watch;
mod write_group;

pub use cancellation::{
    CancelReason, CancellationCheck, CancellationSource, CancellationToken, MAX_HALF_CLOSED, MAX_LATCH_HOLD,
};
pub use clock::{CLOCK_PERSIST_INTERVAL, Clock};
pub use error::Blocking;
pub use id_allocator::DerivedKeys;
pub use key_count::KeyCountEstimate;
pub use key_moves::KeyMetadata;
pub use keys::{Entry, Keys, MAX_KEY_BYTES, ReadStats};
pub use keyspace::{GatedStore, Keyspace, KeyspaceSnapshot, Unsynced};
pub use latches::Latches;
pub use layout::{CollectionId, Tag, Type};
pub use maintenance::{MAINTENANCE_HZ, Maintenance};
pub use prefetch::{MAX_PREFETCH_KEYS, Prefetched};
pub use reclaim::Reclaimed;
pub use reclaimable::ReclaimableCollections;
pub use replica::{Held, Replica};
pub use seen_gate::SeenGate;
pub use shards::{
    HeldShards, MAX_LOCAL_SHARDS, OpenShard, Shard, ShardError, ShardId, ShardSet, SlotRanges, all_slots,
};
pub use slot::Slot;
pub use watch::{WatchFlag, Watches};
pub use write_group::{CommitError, Committed, Savepoint, WriteGroup};
