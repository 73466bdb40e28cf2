//! A row cache that several stores of a process share, so that all rows together stay within one
//! limit, whichever store they are of.
//!
//! Invariants:
//!
//! - A key that has a row is in one of the stores at most. So their keys are disjoint, but for
//!   those with the private prefix, of which no row is told or kept.
//! - What a store still finds once its keys may be in another one is not kept
//!   ([`StoreRows::give_up`]).
//!
//! Threads: any.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::row_cache::{RowCache, RowChange, RowCounts};

/// One row cache for several stores. Clones share it.
#[derive(Clone)]
pub struct SharedRows {
    cache: Arc<RowCache>,
    private_prefix: u8,
}

impl SharedRows {
    /// Of about `bytes`, for stores that separate values if `has_pointers` says so. Keys that begin
    /// with `private_prefix` may be in several of them.
    pub fn new(bytes: u64, has_pointers: bool, private_prefix: u8) -> Self {
        Self { cache: Arc::new(RowCache::new(bytes, has_pointers)), private_prefix }
    }

    /// How often rows were asked for, and what they take; of all stores together.
    pub fn counts(&self) -> RowCounts {
        self.cache.counts()
    }
}

impl std::fmt::Debug for SharedRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedRows").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// The rows of one store, which may share them.
pub(crate) struct StoreRows {
    cache: Arc<RowCache>,
    /// Where they are shared: of keys that begin so there are none.
    private_prefix: Option<u8>,
    /// Nothing more is kept.
    is_given_up: AtomicBool,
}

impl StoreRows {
    pub(crate) fn own(cache: RowCache) -> Self {
        Self { cache: Arc::new(cache), private_prefix: None, is_given_up: AtomicBool::new(false) }
    }

    pub(crate) fn shared(rows: SharedRows) -> Self {
        let SharedRows { cache, private_prefix } = rows;
        Self { cache, private_prefix: Some(private_prefix), is_given_up: AtomicBool::new(false) }
    }

    /// Whether rows of other stores are among them.
    pub(crate) fn are_shared(&self) -> bool {
        self.private_prefix.is_some()
    }

    /// Whether `key` may have a row.
    #[inline]
    pub(crate) fn may_have(&self, key: &[u8]) -> bool {
        self.private_prefix.is_none_or(|prefix| key.first() != Some(&prefix))
    }

    /// Where they are shared: rows that are there go, and what lookups of this store still find is
    /// not kept until it no longer `gives_up`.
    pub(crate) fn give_up(&self, gives_up: bool) {
        if self.are_shared() {
            // Before they go: a lookup that is under way either is told of a change, or sees this.
            self.is_given_up.store(gives_up, Ordering::Release);
            drop(self.begin_write(std::iter::once(RowChange::DeleteRange { from: &[0], to: &[u8::MAX] })));
        }
    }

    /// Whether what was found may be kept.
    #[inline]
    pub(crate) fn keeps(&self) -> bool {
        !self.is_given_up.load(Ordering::Acquire)
    }
}

impl Deref for StoreRows {
    type Target = RowCache;

    #[inline]
    fn deref(&self) -> &RowCache {
        &self.cache
    }
}
