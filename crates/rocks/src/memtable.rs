//! Memtables that are ordered by a tree with fifteen entries in a node, instead of RocksDB's skip
//! list: insertions and lookups meet fewer misses of the processor's caches (`cpp/memtable_tree.h`
//! tells how it works).
//!
//! Nothing on disk depends on it, and the store's OPTIONS file says skip list. It costs about 15
//! bytes more for each entry, which count as the memtable's.
//!
//! Failure: none. With another order of keys than by their bytes memtables are skip lists after
//! all.
//!
//! Threads: one writer at a time, as RocksDB's write thread is; so writers that stand in one group
//! are written one after the other (`allow_concurrent_memtable_write` is off). Readers beside it
//! never wait.

use rust_rocksdb::{AsRawPtr, Options};

use crate::{buffer, ffi};

/// Memtables of stores that are opened with `options` are trees from now on. The options must be
/// the store's as well as those of the column family: RocksDB refuses to open a family whose
/// memtables take one writer in a store that inserts by several.
pub fn use_tree(options: &mut Options) {
    // SAFETY: the options are borrowed for the call.
    let set = buffer::call("use the memtable's tree", |out| unsafe {
        ffi::ecotone_use_memtable_tree(options.as_raw_ptr().cast(), out)
    });
    if let Err(error) = set {
        // Only for want of memory, in which a process does not go on.
        panic!("{error}");
    }
}
