//! Values whose time is over go with the compactions that meet them, where
//! [`StoreSettings::reclaim_expired`](crate::StoreSettings::reclaim_expired) asks for it.
//!
//! The expiry in the header decides alone, by the clock at the compaction's begin: neither type,
//! version nor place of the value is looked at, and no value is read. A snapshot does not keep such
//! a value, and a key that goes is deleted, so that no older version reappears: the layer above
//! takes it for gone.
//!
//! A store with a value log has one filter for this and for garbage collection (see
//! [`crate::gc::copying`]), any other the one here.
//!
//! A compaction that only moves tables asks no filter: what came in the order of its keys is moved
//! to the last level, and rests there. So tables are rewritten once they are old
//! ([`StoreSettings::expired_compaction_seconds`](crate::StoreSettings::expired_compaction_seconds)),
//! and sooner where writes are refused ([`crate::space::expired_tables`]). Nor has a worker a
//! filter, so that such compactions stay here (see [`crate::offload::adapter`]); of others that run
//! there every value comes back.
//!
//! Which tables those are follows from their property [`PROPERTY`], which a collector leaves in
//! them here and on workers.
//!
//! ```text
//!  property: | the earliest expiry of a value in the table |      u64, little-endian, ms since 1970 UTC; the greatest one where none has any
//! ```
//!
//! A table without it, of an earlier version of this program or from a worker of one, or from when
//! nothing was reclaimed, may hold anything.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use ecotone_rocks::compaction_filter::{CompactionFilter, CompactionFilterFactory, FilterContext, Verdict};
use ecotone_rocks::properties::{EntryKind, TableCollector};

use crate::header::{Attributes, Header};

/// The name of the property.
pub(crate) const PROPERTY: &str = "ecotone.expiry";

thread_local! {
    /// Values that the compaction on this thread has removed, or the part of one.
    static REMOVED: Cell<u64> = const { Cell::new(0) };
}

/// How many values the compaction on this thread has removed, or the part of one, since this was
/// last asked.
pub(crate) fn take_removed() -> u64 {
    REMOVED.take()
}

/// The time, in ms since 1970 UTC.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64)
}

/// Has compactions remove values whose time is over. As a factory of filters it is for stores
/// without a value log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpiredValues;

impl ExpiredValues {
    /// `None` where they are to stay.
    pub(crate) fn of(reclaims_expired: bool) -> Option<Self> {
        reclaims_expired.then_some(Self)
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
    /// Whether the time of a value with these attributes is over.
    #[inline]
    pub(crate) fn is_over(&self, attributes: &Attributes) -> bool {
        attributes.expires_at_ms.is_some_and(|expires_at_ms| expires_at_ms <= self.now_ms)
    }

    /// Whether a value with these attributes goes; one that does is counted ([`take_removed`]).
    #[inline]
    pub(crate) fn takes(&self, attributes: &Attributes) -> bool {
        let is_over = self.is_over(attributes);
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

/// The property of a table whose earliest expiry is this.
fn encode(earliest_ms: u64) -> Vec<u8> {
    earliest_ms.to_le_bytes().into()
}

/// The earliest expiry in a table, `None` where the property does not say.
pub(crate) fn decode(property: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(property.try_into().ok()?))
}

/// Finds the earliest expiry of the values in a table, beside what `next` collects.
pub(crate) struct ExpiryCollector {
    next: Option<Box<dyn TableCollector>>,
    earliest_ms: u64,
}

impl ExpiryCollector {
    pub(crate) fn before(next: Option<Box<dyn TableCollector>>) -> Self {
        Self { next, earliest_ms: u64::MAX }
    }
}

impl TableCollector for ExpiryCollector {
    fn begin(&mut self) -> u64 {
        if let Some(next) = &mut self.next {
            next.begin();
        }
        // Each may have an expiry.
        0
    }

    fn add(&mut self, key: &[u8], value: &[u8], kind: EntryKind, sequence: u64, file_bytes: u64) {
        if kind == EntryKind::Put
            && let Ok(Header { attributes: Attributes { expires_at_ms: Some(expires_at_ms), .. }, .. }) =
                Header::decode(value)
        {
            self.earliest_ms = self.earliest_ms.min(expires_at_ms);
        }
        if let Some(next) = &mut self.next {
            next.add(key, value, kind, sequence, file_bytes);
        }
    }

    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        let mut properties = self.next.as_mut().map(|next| next.finish()).unwrap_or_default();
        properties.push((PROPERTY.into(), encode(self.earliest_ms)));
        properties
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::encode_inline;
    use crate::mutation::mutated;

    fn said(expiries: &[Option<u64>]) -> Option<u64> {
        let mut collector = ExpiryCollector::before(None);
        for expires_at_ms in expiries {
            let mut stored = Vec::new();
            encode_inline(&Attributes { expires_at_ms: *expires_at_ms, ..Attributes::NONE }, &mut stored).unwrap();
            stored.push(7);
            collector.add(b"key", &stored, EntryKind::Put, 1, 0);
            // Neither a deletion nor what cannot be read has an expiry.
            collector.add(b"key", &[], EntryKind::Delete, 1, 0);
            collector.add(b"key", &[0xFF; 20], EntryKind::Put, 1, 0);
        }
        let [(name, property)] = collector.finish().try_into().unwrap();
        assert_eq!(name, PROPERTY);
        decode(&property)
    }

    #[test]
    fn a_table_says_when_the_first_of_its_values_expires() {
        assert_eq!(said(&[None, Some(9), Some(7), None, Some(u64::MAX)]), Some(7));
        assert_eq!((said(&[None, None]), said(&[])), (Some(u64::MAX), Some(u64::MAX)));
    }

    #[test]
    fn a_mutated_property_is_one_or_is_none() {
        mutated(&[encode(0), encode(1_764_000_000_000), encode(u64::MAX)], |bytes, _| {
            if let Some(earliest_ms) = decode(&bytes) {
                assert_eq!(encode(earliest_ms), bytes);
            }
        });
    }
}
