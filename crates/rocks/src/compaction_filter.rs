//! Filters that keep, remove or change each value that a compaction rewrites.
//!
//! What a filter does is part of the compaction: it becomes visible with the new tables, or not at
//! all. This is how values move from one segment to another without a write of their own. The
//! filters of `rust_rocksdb` do not serve for this: they are not told the column family, a changed
//! value must live for ever, several threads share one factory mutably, and a panic ends the
//! process.
//!
//! # What RocksDB guarantees
//!
//! - Filters are made for compactions only, here, never for a flush or for recovery; one for each
//!   subcompaction.
//! - Of each key only the newest version among the inputs comes; older ones that a snapshot keeps
//!   alive stay as they are. Upper levels and memtables may hold still newer ones, lower levels
//!   older ones.
//! - Only plain values come. Deletions of all kinds, operands of merges and wide columns are kept.
//!   What RocksDB itself keeps in blob files comes as the plain value that it is, read for this
//!   purpose.
//! - A changed value keeps its place among the versions of its key. A removed one becomes a
//!   deletion, so that nothing older reappears. Table collectors ([`crate::properties`]) see what
//!   was decided.
//!
//! # What it does not
//!
//! - Not every compaction filters. An automatic one that only moves tables to a lower level reads
//!   nothing and asks nobody.
//! - A decision is not yet a fact. A filter is dropped before the tables are installed; the
//!   compaction may still fail or be given up, and another will then pass the same entries to
//!   another filter.
//! - Snapshots protect nothing. A change or removal is seen through each snapshot that sees the
//!   version; only iterators that were made before go on reading the old tables. So a value must
//!   mean the same before and after, or nobody may look.
//! - A value that comes need not be seen by any reader: a range deletion may shadow it. Where
//!   operands of a merge stand above a value, it may come, or go into the merge unasked.
//! - A remote compaction does not take it over. Where a compaction service runs a job, the owner's
//!   filter is not asked; the worker's options decide
//!   (`CompactionServiceOptionsOverride::from_options` copies the factory).
//!
//! # What else it changes
//!
//! With a factory RocksDB compacts each table of a levelled column family that has seen no
//! compaction for 30 days, unless `Options::set_periodic_compaction_seconds` says otherwise. Manual
//! compactions no longer move tables, and `compact_range` rewrites the bottom level as well, unless
//! its options say otherwise.
//!
//! # Failure
//!
//! A filter never fails a compaction, nor can it. When one panics it is not asked again, the entry
//! it panicked at and all that follow in its (sub)compaction are kept, and the panic is counted
//! ([`crate::contained_failures`]). A factory that panics gives no filter. A changed value of 4 GiB
//! or more, which RocksDB would call corruption, counts as a panic.
//!
//! # Threads
//!
//! A factory is shared by all threads that compact; a filter belongs to one (sub)compaction and one
//! thread at a time. Both are called while the compaction waits.

#[allow(unsafe_code)] // the C functions that C++ calls: raw pointers in, panics contained
mod trampolines;

use std::sync::Arc;

/// The compaction that begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterContext {
    /// The column family.
    pub column_family_id: u32,
    /// Whether its inputs are all tables of the column family.
    pub is_full: bool,
    /// Whether it was asked for by `compact_range` or its kin. To the worker of a remote compaction
    /// everything is.
    pub is_manual: bool,
    /// The lowest numbered level among the inputs, `None` where RocksDB does not know.
    pub input_level: Option<u32>,
}

/// What becomes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'v> {
    /// It stays as it is.
    Keep,
    /// It is deleted.
    Remove,
    /// It gets this value, of less than 4 GiB; the bytes are copied at once.
    Change(&'v [u8]),
}

/// Decides on the values of one (sub)compaction, in the order of their keys.
pub trait CompactionFilter: Send {
    /// One value. `key` is the user key; `level` the lowest numbered level among the inputs of the
    /// compaction, from whichever of them the value comes.
    fn decide(&mut self, level: u32, key: &[u8], value: &[u8]) -> Verdict<'_>;
}

/// Makes a filter for each (sub)compaction.
pub trait CompactionFilterFactory: Send + Sync {
    /// A filter for the compaction, or `None` for one that needs none: nothing is then asked for
    /// its entries.
    fn filter(&self, context: FilterContext) -> Option<Box<dyn CompactionFilter>>;
}

/// Puts a factory into `options`, in place of the one before. It ends with the last options and the
/// last store that use it. A filter set by `Options::set_compaction_filter` would come before it;
/// set none.
pub fn set_compaction_filter(options: &mut rust_rocksdb::Options, factory: Arc<dyn CompactionFilterFactory>) {
    trampolines::set(options, factory);
}
