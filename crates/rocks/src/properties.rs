//! Collectors that see every entry of a table while RocksDB writes it, and leave properties in it.
//!
//! The properties come back through `rust_rocksdb`'s table properties
//! (`DB::get_properties_of_all_tables` and its kin). Which tables refer to which segment, and by
//! how many bytes, is counted this way.
//!
//! A worker of a remote compaction must be given the same collectors: put them into an `Options`,
//! and make the override with `CompactionServiceOptionsOverride::from_options`, which copies them.
//! The override itself gives no way to add one.
//!
//! # Failure
//!
//! A collector never fails a table. When one panics it is not called again for that table, the
//! table gets none of its properties, and the panic is counted ([`crate::contained_failures`]). So
//! a reader must allow for tables without properties.
//!
//! # Threads
//!
//! A factory is shared by all threads that write tables; a collector belongs to one table and one
//! thread at a time.

#[allow(unsafe_code)] // the C functions that C++ calls: raw pointers in, panics contained
pub(crate) mod trampolines;

use std::sync::Arc;

/// What an entry of a table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EntryKind {
    /// A value.
    Put,
    /// A deletion.
    Delete,
    /// A deletion of exactly one earlier value.
    SingleDelete,
    /// An operand of a merge.
    Merge,
    /// The deletion of a range: the key is its begin, the value its end.
    RangeDelete,
    /// A value with attributes (wide columns).
    WideColumns,
    /// Anything that RocksDB adds later, and what our stores do not use.
    Other,
}

/// The table that is about to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableContext {
    /// The column family, `None` where RocksDB does not know.
    pub column_family_id: Option<u32>,
    /// The level that the table will be in, `None` where RocksDB does not know.
    pub level: Option<u32>,
}

/// So many entries come before a collector is [asked](TableCollector::begin) again.
pub const ENTRIES_AT_A_TIME: u32 = 1024;

/// Sees the entries of one table, in the order of the table.
pub trait TableCollector: Send {
    /// Before each [`ENTRIES_AT_A_TIME`] entries, those that do not come among them: which keys it
    /// need not see. An entry comes if the 64-bit XXH3 (seed 0) of its key has none of these bits;
    /// with 0 all do. To call a collector takes longer than to hash a key, so who wants few should
    /// say so.
    ///
    /// Who reads a table again ([`crate::verify::recount_table`]) does not ask, and gives it all.
    fn begin(&mut self) -> u64 {
        0
    }

    /// One entry. `key` is the user key; `file_bytes` the bytes of data blocks written so far,
    /// without the one being filled. Range deletions come too, apart from the order of the others.
    fn add(&mut self, key: &[u8], value: &[u8], kind: EntryKind, sequence: u64, file_bytes: u64);

    /// The table is complete: the properties to leave in it, by name. Names should begin with a
    /// word of one's own (`ecotone.`); two of the same name leave the last.
    fn finish(&mut self) -> Vec<(String, Vec<u8>)>;
}

/// Makes a collector for each table.
pub trait TableCollectorFactory: Send + Sync {
    /// A collector for the table, or `None` for a table that needs none.
    fn collector(&self, context: TableContext) -> Option<Box<dyn TableCollector>>;
}

/// Adds a factory to `options`. Several may be added; each table gets a collector of each.
pub fn add_table_collector(options: &mut rust_rocksdb::Options, factory: Arc<dyn TableCollectorFactory>) {
    trampolines::add(options, factory);
}
