//! A filter of the keys of a table, which it keeps as property [`PROPERTY`] where duplicates are
//! counted by filters. Its bytes are those of [`ecotone_policy::dedup::filter`].
//!
//! The filters of lower levels are asked for all keys of a new table. These are kept in memory for
//! a while ([`RecentHashes`]) after it was written, found again by its filter: who writes a table
//! does not know the number that it will have.
//!
//! Bounds: [`MAX_KEYS`] of one table while it is written; a larger one has no filter.
//! [`RecentHashes::new`] is told how much of hashes with their fences, the oldest go first.

use std::collections::VecDeque;
use std::sync::Arc;

use ecotone_policy::dedup::filter::{DEFAULT_BITS_PER_KEY, build};
use ecotone_policy::dedup::ordered::OrderedHashes;
use parking_lot::Mutex;
use twox_hash::XxHash3_64;

/// The name of the property.
pub(crate) const PROPERTY: &str = "ecotone.filter";

/// Whole bits, as a worker is told.
pub(crate) const BITS_PER_KEY: u8 = DEFAULT_BITS_PER_KEY.ceil() as u8;

/// Keys of a table that are remembered while it is written: 32 MiB of hashes, and up to 5 MiB of
/// what tells their order.
const MAX_KEYS: usize = 1 << 22;

/// What a table's filter is known by: the hash of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilterName(u64);

impl FilterName {
    pub(crate) fn of(filter: &[u8]) -> Self {
        Self(XxHash3_64::oneshot(filter))
    }
}

/// The hashes of all keys of a table.
pub(crate) type KeyHashes = Arc<OrderedHashes>;

/// The keys of a table that is being written.
#[derive(Debug)]
pub(crate) struct KeysOfTable {
    hashes: OrderedHashes,
    bits_per_key: u8,
    is_too_large: bool,
}

impl KeysOfTable {
    pub(crate) fn new(bits_per_key: u8) -> Self {
        Self { hashes: OrderedHashes::default(), bits_per_key, is_too_large: false }
    }

    /// One more, in the order of the table.
    #[inline]
    pub(crate) fn add(&mut self, key: &[u8], hash: u64) {
        if self.hashes.all().len() < MAX_KEYS {
            self.hashes.push(key, hash);
        } else {
            self.is_too_large = true;
        }
    }

    /// The filter, unless there are too many keys for one. Leaves the keys in `recent`.
    pub(crate) fn build(mut self, recent: &RecentHashes) -> Option<Vec<u8>> {
        if self.is_too_large {
            return None;
        }
        let filter = build(self.hashes.all(), self.bits_per_key.into());
        self.hashes.shrink_to_fit();
        recent.keep(&filter, self.hashes.into());
        Some(filter)
    }
}

/// The keys of tables that are new.
#[derive(Debug)]
pub(crate) struct RecentHashes {
    max_bytes: usize,
    recent: Mutex<Recent>,
}

#[derive(Debug, Default)]
struct Recent {
    /// The oldest first.
    tables: VecDeque<(FilterName, KeyHashes)>,
    bytes: usize,
}

impl RecentHashes {
    /// At most so many bytes of hashes.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, recent: Mutex::default() }
    }

    /// The keys of the table whose filter has this name, where they are still there.
    pub(crate) fn of(&self, filter: FilterName) -> Option<KeyHashes> {
        self.recent.lock().tables.iter().rev().find(|(found, _)| *found == filter).map(|(_, hashes)| hashes.clone())
    }

    fn keep(&self, filter: &[u8], hashes: KeyHashes) {
        if hashes.bytes() > self.max_bytes {
            return;
        }
        let mut recent = self.recent.lock();
        recent.bytes += hashes.bytes();
        recent.tables.push_back((FilterName::of(filter), hashes));
        while recent.bytes > self.max_bytes
            && let Some((_, oldest)) = recent.tables.pop_front()
        {
            recent.bytes -= oldest.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(first: u64, keys: u64) -> KeysOfTable {
        let mut table = KeysOfTable::new(BITS_PER_KEY);
        (first..first + keys).for_each(|key| table.add(&key.to_be_bytes(), key.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        table
    }

    #[test]
    fn the_keys_of_the_newest_tables_are_there_and_no_more_than_fit() {
        let keys = MAX_KEYS as u64 / 4;
        // Four of them, and not five.
        let recent = RecentHashes::new(MAX_KEYS * size_of::<u64>() * 9 / 8);
        let filters: Vec<_> = (0..6).map(|number| table(number * keys, keys).build(&recent).unwrap()).collect();
        let of = |filter: &[u8]| recent.of(FilterName::of(filter));
        let known: Vec<_> = filters.iter().map(|filter| of(filter).is_some()).collect();
        assert_eq!(known, [false, false, true, true, true, true]);
        assert_eq!(of(&filters[5]).unwrap().all().len() as u64, keys);
        assert!(of(b"no filter").is_none());
    }

    #[test]
    fn a_table_of_too_many_keys_has_no_filter() {
        let recent = RecentHashes::new(usize::MAX);
        assert!(table(0, MAX_KEYS as u64).build(&recent).is_some());
        assert!(table(0, MAX_KEYS as u64 + 1).build(&recent).is_none());
    }
}
