//! Who is told that flushes and compactions have changed the tables.
//!
//! RocksDB tells the listener of its own compactions, and nobody of those that are asked for by the names of their tables: of these
//! [`crate::own_compactions`] tells.
//!
//! Invariant: what has come is known before anybody is woken who asks for it.
//!
//! Threads: any.

use std::sync::Arc;

use rust_rocksdb::event_listener::{CompactionJobInfo, FlushJobInfo};

use crate::data_layer::TableEvents;
use crate::dedup;
use crate::dedup::known::KnownSamples;
use crate::own_compactions::Purpose;

/// See the module.
#[derive(Default)]
pub(crate) struct TableChanges {
    /// Where tables tell of their keys.
    pub(crate) known: Option<Arc<KnownSamples>>,
    /// Where the store has a value log.
    pub(crate) values: Option<TableEvents>,
    /// Where duplicates are looked for.
    pub(crate) dedup: Option<Arc<dedup::Shared>>,
}

impl TableChanges {
    /// A flush has ended.
    pub(crate) fn flushed(&self, info: &FlushJobInfo) {
        if let Some(known) = &self.known {
            known.flushed(info);
        }
        if let Some(values) = &self.values {
            values.tables_changed();
        }
    }

    /// A compaction has ended: by the names of its tables for a `purpose` of our own, or one that RocksDB tells of. A worker has run a part of it
    /// if it `is_remote`. `rewrites`: it has not only moved tables.
    pub(crate) fn compacted(
        &self,
        info: &CompactionJobInfo,
        purpose: Option<Purpose>,
        is_remote: bool,
        rewrites: bool,
    ) {
        if let Some(known) = &self.known {
            known.compacted(info, is_remote);
        }
        // Who relocates by names knows of it, and is not to be woken from its rest.
        if let Some(values) = self.values.as_ref().filter(|_| purpose != Some(Purpose::Relocation)) {
            values.tables_changed();
        }
        // One that merges duplicates goes on itself with what it has written.
        if let Some(dedup) = self.dedup.as_ref().filter(|_| rewrites && purpose != Some(Purpose::Dedup)) {
            dedup.queue.compacted(info);
        }
    }
}
