//! Values whose time is over go with the compactions that meet them, where [`StoreOptions::reclaim_expired`] asks for it.
//!
//! The expiry in the header decides alone, by the clock at the compaction's begin: neither type, version nor place of the value is looked
//! at, and no value is read. A snapshot does not keep such a value, and a key that goes is deleted, so that no older version reappears: the
//! layer above takes it for gone.
//!
//! A store with a value log has one filter for this and for relocation (see [`crate::values::relocation`]), any other the one here.
//!
//! A compaction that only moves tables asks no filter: what came in the order of its keys is moved to the last level, and rests there. So
//! tables are rewritten once they are old ([`StoreOptions::expired_sweep_seconds`]). Nor has a worker a filter, so that such compactions
//! stay here (see [`crate::offload::adapter`]); of others that run there every value comes back.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use ecotone_rocks_sys::compaction_filter::{CompactionFilter, CompactionFilterFactory, FilterContext, Verdict};

use crate::StoreOptions;
use crate::header::{Attributes, Header};

thread_local! {
    /// Values that the compaction on this thread has removed, or the part of one.
    static REMOVED: Cell<u64> = const { Cell::new(0) };
}

/// How many values the compaction on this thread has removed, or the part of one, since this was last asked.
pub(crate) fn take_removed() -> u64 {
    REMOVED.take()
}

/// The time, in ms since 1970 UTC.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64)
}

/// Has compactions remove values whose time is over. As a factory of filters it is for stores without a value log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpiredValues;

impl ExpiredValues {
    /// `None` where they are to stay.
    pub(crate) fn of(options: &StoreOptions) -> Option<Self> {
        options.reclaim_expired.then_some(Self)
    }

    /// What one compaction, or a part of one, removes that begins now.
    pub(crate) fn at_begin(self) -> ExpiredAtBegin {
        ExpiredAtBegin { now_ms: now_ms() }
    }
}

impl CompactionFilterFactory for ExpiredValues {
    fn filter(&self, _context: FilterContext) -> Option<Box<dyn CompactionFilter>> {
        Some(Box::new(self.at_begin()))
    }
}

/// See [`ExpiredValues::at_begin`].
pub(crate) struct ExpiredAtBegin {
    now_ms: u64,
}

impl ExpiredAtBegin {
    /// Whether a value with these attributes goes; one that does is counted ([`take_removed`]).
    #[inline]
    pub(crate) fn takes(&self, attributes: &Attributes) -> bool {
        let is_over = attributes.expires_at_ms.is_some_and(|expires_at_ms| expires_at_ms <= self.now_ms);
        if is_over {
            REMOVED.set(REMOVED.get() + 1);
        }
        is_over
    }
}

impl CompactionFilter for ExpiredAtBegin {
    fn decide(&mut self, _level: u32, _key: &[u8], value: &[u8]) -> Verdict<'_> {
        match Header::decode(value) {
            Ok(header) if self.takes(&header.attributes) => Verdict::Remove,
            // What cannot be read is for its reader to tell.
            _ => Verdict::Keep,
        }
    }
}
