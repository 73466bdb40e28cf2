//! What is known of the keys of tables.
//!
//! It is much, and a decision asks for little of it: so it is asked table by table. Whatever
//! implements this must answer the same for as long as one event is handled.

use std::sync::Arc;

use super::estimate::TableSketch;
use super::filter::FilterView;
use super::ordered::OrderedHashes;
use super::plan::Table;
use crate::duplicates::KeySample;

/// See the module. By the tables' numbers.
pub trait KeySketches {
    /// Of so many keys one is sampled.
    fn one_in(&self) -> u64;

    /// The samples of a table, rising by hash; `None` where it has told none. Such a table may hold
    /// any key.
    fn samples(&self, table: u64) -> Option<&[KeySample]>;

    /// The filter of a table; `None` where it carries none, or there was no room for it.
    fn filter(&self, _table: u64) -> Option<FilterView<'_>> {
        None
    }

    /// The hashes of all keys of a table, where they are still known: just after it was written.
    fn key_hashes(&self, _table: u64) -> Option<Arc<OrderedHashes>> {
        None
    }

    /// What a table tells of its keys by its samples.
    fn sketch<'a>(&'a self, table: &'a Table) -> TableSketch<'a> {
        let samples = self.samples(table.number);
        let sketch = table.sketch(samples.unwrap_or_default());
        if table.entries == 0 && samples.is_none() {
            // RocksDB has not looked at it since the store was opened. It has no more entries than
            // bytes: so it counts as unknown, and not as small.
            return TableSketch { entries: table.bytes.0, ..sketch };
        }
        sketch
    }
}
