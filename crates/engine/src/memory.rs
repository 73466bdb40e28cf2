//! One limit of memory for block cache and memtables, shared by all stores of a process.
//!
//! The block cache has the limit as its capacity. Memtables are charged to it by RocksDB's write
//! buffer manager with dummy entries, so that a byte used by a memtable is a byte less for blocks.
//! The limit is soft: blocks that are in use and memtables that wait for a flush can exceed it for
//! a while; writers are never stopped for it, memtables are flushed earlier instead.

use std::fmt;
use std::sync::Arc;

use rust_rocksdb::{Cache, WriteBufferManager};

use crate::{Error, Result};

/// The least limit: enough for one small memtable and the blocks of a lookup.
pub const MIN_LIMIT_BYTES: u64 = 4 * 1024 * 1024;

/// Memtables may take this part of the limit before they are flushed for it (one in this many).
const MEMTABLE_SHARE: u64 = 2;

/// A limit of memory. Clones share it.
#[derive(Clone)]
pub struct MemoryLimit {
    shared: Arc<SharedLimit>,
}

struct SharedLimit {
    limit_bytes: u64,
    cache: Cache,
    memtables: WriteBufferManager,
}

impl MemoryLimit {
    /// A limit of `limit_bytes` for block cache and memtables together. Half of it may be
    /// memtables.
    pub fn new(limit_bytes: u64) -> Self {
        let capacity = usize::try_from(limit_bytes).unwrap_or(usize::MAX);
        let memtable_bytes = usize::try_from(limit_bytes / MEMTABLE_SHARE).unwrap_or(usize::MAX);
        let cache = Cache::new_lru_cache(capacity);
        let memtables = WriteBufferManager::new_write_buffer_manager_with_cache(memtable_bytes, false, cache.clone());
        Self { shared: Arc::new(SharedLimit { limit_bytes, cache, memtables }) }
    }

    /// The limit, in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.shared.limit_bytes
    }

    /// Bytes in the block cache, those charged for memtables included.
    pub fn used_bytes(&self) -> u64 {
        self.shared.cache.get_usage() as u64
    }

    /// Bytes in memtables of all stores that share the limit.
    pub fn memtable_bytes(&self) -> u64 {
        self.shared.memtables.get_usage() as u64
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.shared.cache
    }

    pub(crate) fn memtables(&self) -> &WriteBufferManager {
        &self.shared.memtables
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if self.shared.limit_bytes < MIN_LIMIT_BYTES {
            return Err(Error::invalid(
                "memory",
                format!("{} bytes is below the least, {MIN_LIMIT_BYTES}", self.shared.limit_bytes),
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLimit")
            .field("limit_bytes", &self.limit_bytes())
            .field("used_bytes", &self.used_bytes())
            .field("memtable_bytes", &self.memtable_bytes())
            .finish()
    }
}
