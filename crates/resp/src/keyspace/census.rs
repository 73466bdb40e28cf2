//! How many keys there are, about, without a look at all of them.
//!
//! Few keys are counted. Of many a sample is taken: keys stand in the order of two hashes (see [`super::layout`]), so stretches of that order
//! are as full as any other. Two things are in the way of that. Keys that share a hash tag share a slot: where the sample meets it the stretches differ, and where it
//! does not there are far fewer keys than the store estimates. The store's estimate is right however keys are spread, but too high by the elements of large collections
//! and by what memtables hide. So it counts where stretches differ, and where it is much higher and there are no large collections; else the sample does.
//!
//! Bounds: [`MOST_COUNTED`] and [`STRETCHES`] times [`SAMPLED`] entries are looked at, expired ones included. Values are not read.

use std::ops::{ControlFlow, Range};

use ecotone_engine::Direction;

use super::keys::Keys;
use super::layout::{self, PLACES};
use crate::error::Outcome;

/// So many keys are counted one by one.
const MOST_COUNTED: u64 = 4096;

/// Parts of all places, each with a sample at its beginning.
const STRETCHES: u32 = 16;

/// Keys of each sample. Of evenly spread keys samples of this size differ by a sixteenth from one another, seldom by three.
const SAMPLED: u64 = 256;

/// Samples agree if none is denser by more than this factor than another: beyond what chance does to evenly spread keys.
const AGREEING: f64 = 1.75;

/// Where the store estimates more than so many times the entries that the sample stands for, the sample has missed a slot with many. Memtables may hide as many.
const MOST_MISSED: f64 = 3.0;

/// What [`Keys::census`] finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Census {
    /// Keys whose time is not over.
    pub keys: u64,
    /// Those among them that have a time.
    pub expiring: u64,
    /// How long those have on average.
    pub average_ttl_ms: u64,
}

/// What stands from one place on.
#[derive(Debug, Default)]
struct Look {
    /// Entries that were looked at.
    entries: u64,
    /// Those whose time is not over.
    keys: u64,
    expiring: u64,
    ttl_ms: u128,
    /// The place of the next one, where there is one.
    stopped_at: Option<u32>,
}

impl Look {
    /// `keys` that are as those that were looked at.
    fn census(&self, keys: u64) -> Census {
        let average = |sum: u128, of: u64| if of == 0 { 0 } else { (sum / u128::from(of)) as u64 };
        Census {
            keys,
            expiring: average(u128::from(self.expiring) * u128::from(keys), self.keys),
            average_ttl_ms: average(self.ttl_ms, self.expiring),
        }
    }

    /// Entries for each of `places`, which were looked at from the first on.
    fn density(&self, places: Range<u32>) -> f64 {
        let end = self.stopped_at.unwrap_or(places.end);
        // Several may share one place.
        self.entries as f64 / f64::from((end - places.start).max(1))
    }
}

impl Keys<'_> {
    /// How many keys there are, about. Takes a few milliseconds: for who may wait.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn census(&mut self) -> Outcome<Census> {
        let first = self.look(0..PLACES, MOST_COUNTED)?;
        if first.stopped_at.is_none() {
            return Ok(first.census(first.keys));
        }
        let (mut all, mut entries, mut densities) = (Look::default(), 0.0, Vec::new());
        for stretch in 0..STRETCHES {
            let places = stretch * (PLACES / STRETCHES)..(stretch + 1) * (PLACES / STRETCHES);
            let look = self.look(places.clone(), SAMPLED)?;
            let density = look.density(places.clone());
            entries += density * f64::from(places.end - places.start);
            densities.push(density);
            all.entries += look.entries;
            all.keys += look.keys;
            all.expiring += look.expiring;
            all.ttl_ms += look.ttl_ms;
        }
        let least = densities.iter().copied().fold(f64::INFINITY, f64::min);
        let most = densities.iter().copied().fold(0.0, f64::max);
        let estimate = self.entries_estimate()?;
        let is_sampled =
            most <= least * AGREEING && (estimate as f64 <= entries * MOST_MISSED || self.has_large_collections()?);
        let entries = if is_sampled { entries as u64 } else { estimate };
        let live = all.keys as f64 / all.entries.max(1) as f64;
        Ok(all.census(((entries as f64 * live) as u64).max(first.keys)))
    }

    /// Looks at up to `most` entries of keys from `places` on.
    fn look(&mut self, places: Range<u32>, most: u64) -> Outcome<Look> {
        let now_ms = self.now_ms();
        let end = if places.end == PLACES { layout::all_keys().end } else { layout::from_place(places.end) };
        let mut look = Look::default();
        self.visit(layout::from_place(places.start)..end, Direction::Forward, false, |stored, attributes, _| {
            if look.entries == most {
                look.stopped_at = layout::place_of(stored);
                return ControlFlow::Break(());
            }
            look.entries += 1;
            match attributes.expires_at_ms {
                Some(at_ms) if at_ms <= now_ms => {}
                Some(at_ms) => {
                    look.keys += 1;
                    look.expiring += 1;
                    look.ttl_ms += u128::from(at_ms - now_ms);
                }
                None => look.keys += 1,
            }
            ControlFlow::Continue(())
        })?;
        Ok(look)
    }

    fn entries_estimate(&self) -> Outcome<u64> {
        let store = self.keyspace().store();
        let properties = store.properties()?;
        Ok(store.dedup_at_once().map_or(properties.keys_estimate, |dedup| dedup.keys_about(&properties)))
    }

    fn has_large_collections(&mut self) -> Outcome<bool> {
        let (ledger, mut has_any) = (layout::whole_ledger(), false);
        self.visit(ledger, Direction::Forward, false, |_, _, _| {
            has_any = true;
            ControlFlow::Break(())
        })?;
        Ok(has_any)
    }
}
