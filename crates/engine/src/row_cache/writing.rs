//! A write that is under way: while it is, what it changes is neither told nor kept; when it is
//! over, rows have what it wrote, or are gone.
//!
//! Threads: any number at a time, each with a write of its own.

use twox_hash::XxHash3_64;

use super::RowCache;

/// One change of a write, as it concerns rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowChange<'c> {
    /// `key` has `stored` from now on.
    Put {
        key: &'c [u8],
        /// The header, and the value or a pointer.
        stored: &'c [u8],
        /// The value that the pointer leads to, where it is one.
        separated: Option<&'c [u8]>,
    },
    /// `key` is removed.
    Delete { key: &'c [u8] },
    /// The keys from `from` to before `to` are removed.
    DeleteRange { from: &'c [u8], to: &'c [u8] },
}

/// A write that is under way, of `changes`, which come in the same order each time.
#[must_use]
pub(crate) struct Writing<'c, C: Iterator<Item = RowChange<'c>> + Clone> {
    cache: &'c RowCache,
    changes: C,
    changes_all: bool,
    is_written: bool,
}

impl<'c, C: Iterator<Item = RowChange<'c>> + Clone> Writing<'c, C> {
    /// The write with this number begins.
    pub(super) fn begin(cache: &'c RowCache, changes: C, number: u64) -> Self {
        let mut changes_all = false;
        for change in changes.clone() {
            match change {
                RowChange::Put { key, .. } | RowChange::Delete { key } => {
                    cache.shard(XxHash3_64::oneshot(key)).lock().begin(number);
                }
                RowChange::DeleteRange { .. } => changes_all = true,
            }
        }
        if changes_all {
            cache.shards.iter().for_each(|shard| shard.lock().begin(number));
        }
        Self { cache, changes, changes_all, is_written: false }
    }

    /// RocksDB has all of it.
    pub(crate) fn succeed(mut self) {
        self.is_written = true;
    }
}

impl<'c, C: Iterator<Item = RowChange<'c>> + Clone> Drop for Writing<'c, C> {
    fn drop(&mut self) {
        let cache = self.cache;
        for change in self.changes.clone() {
            match change {
                RowChange::Put { key, stored, separated } => {
                    let hash = XxHash3_64::oneshot(key);
                    let mut shard = cache.shard(hash).lock();
                    if self.is_written && !self.changes_all {
                        cache.put(&mut shard, hash, key, stored, separated);
                    } else {
                        cache.remove_key(&mut shard, hash, key);
                    }
                    shard.end();
                }
                RowChange::Delete { key } => {
                    let hash = XxHash3_64::oneshot(key);
                    let mut shard = cache.shard(hash).lock();
                    cache.remove_key(&mut shard, hash, key);
                    shard.end();
                }
                RowChange::DeleteRange { from, to } => cache.remove(from..to),
            }
        }
        if self.changes_all {
            cache.shards.iter().for_each(|shard| shard.lock().end());
        }
    }
}
