//! Who learns that flushes and compactions have changed the tables.
//!
//! RocksDB tells the listener of its own compactions, and nobody of those that are asked for by the
//! names of their tables: of these [`super::internal`] tells.
//!
//! Invariant: subscribers are told in the order in which they subscribed, so what has come is known
//! before anybody is woken who asks for it.
//!
//! Threads: any.

use std::sync::Arc;

use rust_rocksdb::event_listener::{CompactionJobInfo, FlushJobInfo};

use super::jobs::CompactionPurpose;

/// A compaction that has ended.
pub(crate) struct CompactedTables<'a> {
    pub(crate) info: &'a CompactionJobInfo,
    /// What it was for, where it was one of our own by the names of its tables; `None` where
    /// RocksDB tells of it.
    pub(crate) purpose: Option<CompactionPurpose>,
    /// A worker has run a subcompaction of it.
    pub(crate) is_remote: bool,
    /// It has not only moved tables.
    pub(crate) rewrites: bool,
}

/// Learns of changes. Called on the threads that make them: must not wait.
pub(crate) trait TableSubscriber: Send + Sync {
    /// A memtable is full, or is to be flushed for another reason; the next one is empty.
    fn memtable_sealed(&self) {}

    /// A flush has ended.
    fn flushed(&self, info: &FlushJobInfo) {
        let _ = info;
    }

    /// A compaction has ended.
    fn compacted(&self, compaction: &CompactedTables<'_>);
}

/// See the module.
#[derive(Default)]
pub(crate) struct TableChanges {
    subscribers: Vec<Arc<dyn TableSubscriber>>,
}

impl TableChanges {
    /// These are told, in this order.
    pub(crate) fn new(subscribers: Vec<Arc<dyn TableSubscriber>>) -> Self {
        Self { subscribers }
    }

    /// See [`TableSubscriber::memtable_sealed`].
    pub(crate) fn memtable_sealed(&self) {
        self.subscribers.iter().for_each(|subscriber| subscriber.memtable_sealed());
    }

    /// See [`TableSubscriber::flushed`].
    pub(crate) fn flushed(&self, info: &FlushJobInfo) {
        self.subscribers.iter().for_each(|subscriber| subscriber.flushed(info));
    }

    /// See [`TableSubscriber::compacted`].
    pub(crate) fn compacted(&self, compaction: &CompactedTables<'_>) {
        self.subscribers.iter().for_each(|subscriber| subscriber.compacted(compaction));
    }
}
