//! An estimate of the number of keys, without reading all of them.
//!
//! Few keys are counted. Of many, the beginning of each slot is sampled, and the estimate follows
//! from the position up to which the sample reached: within a slot keys are spread evenly by a hash
//! (see [`crate::layout`]). All slots are sampled, so keys that share a hash tag, and with it a
//! slot, are found wherever they are; slots with many keys are sampled further. Deleted and
//! overwritten keys are not seen by a reader, so they do not count, whatever RocksDB estimates.
//!
//! A count is cached until enough was written since ([`KeyCountCache::is_stale`]). It knows the
//! expiry of some keys, and so how many have expired since.
//!
//! Error: slots of up to [`SLOT_KEYS`] keys are exact. Of others the standard deviation is a
//! quarter, which all 16,384 of them together make a five hundredth; where a few slots have nearly
//! all keys it is one in 32. Keys that somebody has chosen by their hashes may mislead it.
//!
//! Bounds: [`SLOT_KEYS`] keys of each slot, and [`HEAVY_SLOT_KEYS`] of [`MAX_HEAVY`] slots
//! ([`MAX_SLOT_KEYS`] where many share each position), expired ones included: half a second or
//! less, however many keys there are. Values are not read, and what is read stays out of the block
//! cache. The thread of [`crate::maintenance`] counts again after a pause of [`PAUSE_FACTOR`] times
//! as long as the last count took, [`MAX_PAUSE`] at most: a sixtieth of one core while clients
//! write, and nothing once they do not.
//!
//! Threads: any; one counts at a time.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ecotone_engine::{Attributes, Direction, Error as StoreError, Store};
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::layout::{self, POSITIONS_PER_SLOT};
use crate::slot::SLOTS;

/// So many keys are counted one by one, by whoever asks.
pub(super) const MAX_COUNTED: u64 = 4096;

/// Keys of each slot that are looked at.
const SLOT_KEYS: u64 = 16;

/// Keys that are looked at of slots that have many.
const HEAVY_SLOT_KEYS: u64 = 1024;

/// Slots that may have many: those with more than this part of all keys, one in so many.
const MAX_HEAVY: usize = 256;

/// Places that are looked at of such a slot, and keys at most: where each place has many keys a few
/// places say little.
const HEAVY_POSITIONS: u32 = 64;
const MAX_SLOT_KEYS: u64 = 65_536;

/// Times that are remembered.
const MAX_TIMES: usize = 4096;

/// What share of all keys must have been written for the count to be made anew.
const STALE_SHARE: f64 = 0.01;

/// From this share on who asks has it counted, where that costs little.
const OUTDATED_SHARE: f64 = 0.05;

/// A count may take this part of the time of one core, one in so many, while nobody asks; and where
/// somebody does.
const PAUSE_FACTOR: u32 = 60;
const PAUSE_FACTOR_IF_ASKED: u32 = 20;

/// Between two counts that nobody asks for.
const MIN_PAUSE: Duration = Duration::from_secs(5);
const MAX_PAUSE: Duration = Duration::from_secs(45);

/// Writes that nobody counts: a range was removed.
const ALL_CHANGED: u64 = 1 << 40;

/// What [`Keys::estimate_key_count`](crate::Keys::estimate_key_count) finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyCountEstimate {
    /// Keys whose time is not over.
    pub keys: u64,
    /// Those among them that have a time.
    pub expiring: u64,
    /// How long those have on average.
    pub average_ttl_ms: u64,
}

impl std::iter::Sum for KeyCountEstimate {
    fn sum<I: Iterator<Item = Self>>(estimates: I) -> Self {
        let (mut sum, mut ttl_ms) = (Self::default(), 0_u128);
        for of in estimates {
            sum.keys += of.keys;
            sum.expiring += of.expiring;
            ttl_ms += u128::from(of.average_ttl_ms) * u128::from(of.expiring);
        }
        sum.average_ttl_ms = ttl_ms.checked_div(u128::from(sum.expiring)).unwrap_or(0) as u64;
        sum
    }
}

/// What was counted last.
#[derive(Debug, Default)]
pub(super) struct KeyCountCache {
    last: Mutex<Option<CachedCount>>,
    /// Held by who counts.
    counting: Mutex<()>,
    /// Keys that were written or removed since the keyspace was opened.
    changes: AtomicU64,
    /// Whether a thread counts by itself.
    pub(super) is_refreshed_in_background: AtomicBool,
}

/// One count.
#[derive(Debug, Clone)]
struct CachedCount {
    at: Instant,
    took: Duration,
    /// Of [`KeyCountCache::changes`], when it began.
    changes: u64,
    tally: Tally,
}

impl KeyCountCache {
    /// A group was committed that writes so many keys and elements, and may remove ranges of them.
    #[inline]
    pub(super) fn changed(&self, writes: usize, removes_ranges: bool) {
        let changes = if removes_ranges { ALL_CHANGED } else { writes as u64 };
        self.changes.fetch_add(changes, Ordering::Relaxed);
    }

    /// Whether more than this share of the keys may have changed since.
    fn is_stale(&self, counted: &CachedCount, share: f64) -> bool {
        let changes = self.changes.load(Ordering::Relaxed).saturating_sub(counted.changes);
        changes as f64 > counted.tally.keys * share
    }
}

/// Keys, some of which stand for many.
#[derive(Debug, Clone, Default)]
struct Tally {
    /// Those whose time was not over.
    keys: f64,
    expiring: f64,
    /// When some of them expire: the slot, the time, and how many keys that stands for; of one in
    /// `stride`.
    times: Vec<(u16, u64, f32)>,
    stride: usize,
    passed: usize,
}

impl Tally {
    fn add(&mut self, slot: u16, sample: &SlotSample) {
        let stands_for = sample.stands_for();
        self.keys += sample.keys as f64 * stands_for;
        self.expiring += sample.expires_at_ms.len() as f64 * stands_for;
        for expires_at_ms in &sample.expires_at_ms {
            if self.passed.is_multiple_of(self.stride.max(1)) {
                self.times.push((slot, *expires_at_ms, stands_for as f32));
            }
            self.passed += 1;
            if self.times.len() == MAX_TIMES {
                // Every other one stands for both.
                let mut number = 0;
                self.times.retain(|_| {
                    number += 1;
                    number % 2 == 1
                });
                self.stride = self.stride.max(1) * 2;
            }
        }
    }

    fn remove(&mut self, slot: u16, sample: &SlotSample) {
        let stands_for = sample.stands_for();
        self.keys -= sample.keys as f64 * stands_for;
        self.expiring -= sample.expires_at_ms.len() as f64 * stands_for;
        self.times.retain(|(of, ..)| *of != slot);
    }

    /// What is left of it at `now_ms`.
    fn at(&self, now_ms: u64) -> KeyCountEstimate {
        let (mut all, mut left, mut ttl_ms) = (0.0, 0.0, 0.0);
        for (_, at_ms, stands_for) in &self.times {
            let stands_for = f64::from(*stands_for);
            all += stands_for;
            if *at_ms > now_ms {
                left += stands_for;
                ttl_ms += (at_ms - now_ms) as f64 * stands_for;
            }
        }
        let expiring = if all > 0.0 { self.expiring * left / all } else { 0.0 };
        KeyCountEstimate {
            keys: (self.keys - self.expiring + expiring).max(0.0).round() as u64,
            expiring: expiring.round() as u64,
            average_ttl_ms: if left > 0.0 { (ttl_ms / left) as u64 } else { 0 },
        }
    }
}

/// The beginning of one slot.
#[derive(Debug, Default)]
pub(super) struct SlotSample {
    /// Keys whose time is not over.
    pub(super) keys: u64,
    /// When those of them expire that do.
    pub(super) expires_at_ms: Vec<u64>,
    /// All of them, and those whose time is over.
    pub(super) entries: u64,
    /// The places that were looked at, where there are more behind them.
    positions: Option<u32>,
}

impl SlotSample {
    /// How many keys of the slot one stands for that was looked at.
    fn stands_for(&self) -> f64 {
        self.positions.map_or(1.0, |positions| f64::from(POSITIONS_PER_SLOT) / f64::from(positions.max(1)))
    }

    fn estimate(&self) -> f64 {
        self.entries as f64 * self.stands_for()
    }

    pub(super) fn take(&mut self, attributes: &Attributes, now_ms: u64) {
        self.entries += 1;
        match attributes.expires_at_ms {
            Some(at_ms) if at_ms <= now_ms => {}
            Some(at_ms) => {
                self.keys += 1;
                self.expires_at_ms.push(at_ms);
            }
            None => self.keys += 1,
        }
    }

    /// The same, if its slot is to be looked at no further: what is next stands at this place of
    /// it, another one than the last.
    fn ends_at(&mut self, position: u32, bounds: &Bounds) -> bool {
        let is_enough = self.entries >= bounds.keys && (position >= bounds.positions || self.entries >= MAX_SLOT_KEYS);
        if is_enough {
            self.positions = Some(position);
        }
        is_enough
    }
}

/// How much of a slot is looked at.
struct Bounds {
    keys: u64,
    positions: u32,
}

/// One look at the beginnings of slots, as of one time.
struct SlotScan<'s> {
    store: &'s Store,
    now_ms: u64,
}

impl SlotScan<'_> {
    /// Looks at the slots from `first` to before `end`, one after the other, and shows each to
    /// `found` that has any keys; ends where that breaks.
    fn slots(
        &self,
        (first, end): (u32, u32),
        bounds: &Bounds,
        found: &mut dyn FnMut(u32, SlotSample) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let begin = |slot: u32| {
            if slot < u32::from(SLOTS) {
                layout::from_position(slot * POSITIONS_PER_SLOT)
            } else {
                layout::all_keys().end
            }
        };
        let (mut from, to) = (begin(first), begin(end));
        'scans: while from < to {
            let mut scan = self.store.scan_aside(from.as_slice()..to.as_slice(), Direction::Forward);
            let (mut slot, mut look, mut last_place) = (None, SlotSample::default(), None);
            while let Some((stored, attributes)) = scan.next_key()? {
                let Some(position) = layout::position_of(stored) else { continue };
                let (of, position) = (position / POSITIONS_PER_SLOT, position % POSITIONS_PER_SLOT);
                if let Some(before) = slot.filter(|before| *before != of)
                    && found(before, std::mem::take(&mut look)).is_break()
                {
                    return Ok(());
                }
                if slot == Some(of) && last_place != Some(position) && look.ends_at(position, bounds) {
                    drop(scan);
                    if found(of, look).is_break() {
                        return Ok(());
                    }
                    from = begin(of + 1);
                    continue 'scans;
                }
                (slot, last_place) = (Some(of), Some(position));
                look.take(&attributes, self.now_ms);
            }
            if let Some(slot) = slot {
                // Whether it breaks makes no difference any more.
                let _ = found(slot, look);
            }
            return Ok(());
        }
        Ok(())
    }
}

impl KeyCountCache {
    /// How many keys there are at `now_ms`, by the last count; `None` before the first.
    pub(super) fn at(&self, now_ms: u64) -> Option<KeyCountEstimate> {
        self.last.lock().as_ref().map(|counted| counted.tally.at(now_ms))
    }

    /// Counts again if that is due. `goes_on` is asked again and again; `false` ends it.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub(super) fn refresh_if_due(
        &self,
        store: &Store,
        clock: &Clock,
        goes_on: impl Fn() -> bool,
    ) -> Result<(), StoreError> {
        self.is_refreshed_in_background.store(true, Ordering::Relaxed);
        let is_due = self.last.lock().as_ref().is_none_or(|counted| {
            let rest = (counted.took * PAUSE_FACTOR).clamp(MIN_PAUSE, MAX_PAUSE);
            counted.at.elapsed() >= rest && self.is_stale(counted, STALE_SHARE)
        });
        if is_due && let Some(_counting) = self.counting.try_lock() {
            self.count(store, clock, goes_on)?;
        }
        Ok(())
    }

    /// The last count where it is recent enough, or a new one. May block.
    pub(super) fn recent(&self, store: &Store, clock: &Clock) -> Result<KeyCountEstimate, StoreError> {
        let recent = |counts: &KeyCountCache| {
            let last = counts.last.lock();
            let counted = last.as_ref()?;
            let is_refreshed_in_background = counts.is_refreshed_in_background.load(Ordering::Relaxed);
            let is_good = match is_refreshed_in_background {
                true => {
                    counted.at.elapsed() < counted.took * PAUSE_FACTOR_IF_ASKED
                        || !counts.is_stale(counted, OUTDATED_SHARE)
                }
                false => !counts.is_stale(counted, 0.0),
            };
            is_good.then(|| counted.tally.at(clock.now_ms()))
        };
        if let Some(estimate) = recent(self) {
            return Ok(estimate);
        }
        let _counting = self.counting.lock();
        // Somebody may just have done so.
        if let Some(estimate) = recent(self) {
            return Ok(estimate);
        }
        self.count(store, clock, || true)?;
        Ok(self.at(clock.now_ms()).unwrap_or_default())
    }

    /// Counts, while nobody else does.
    fn count(&self, store: &Store, clock: &Clock, goes_on: impl Fn() -> bool) -> Result<(), StoreError> {
        let began = Instant::now();
        let changes = self.changes.load(Ordering::Relaxed);
        let scan = SlotScan { store, now_ms: clock.now_ms() };
        let mut tally = Tally::default();
        let mut cut = Vec::new();
        let mut ended = false;
        let mut add = |slot: u32, sample: SlotSample| {
            tally.add(slot as u16, &sample);
            if sample.positions.is_some() {
                cut.push((slot, sample));
            }
            ended = !goes_on();
            if ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        scan.slots((0, SLOTS.into()), &Bounds { keys: SLOT_KEYS, positions: 1 }, &mut add)?;
        if ended {
            return Ok(());
        }
        let all: f64 = tally.keys.max(1.0);
        cut.retain(|(_, sample)| sample.estimate() > all / MAX_HEAVY as f64);
        cut.sort_by(|(_, one), (_, other)| other.estimate().total_cmp(&one.estimate()));
        // Where most has expired more of them may be found than that.
        cut.truncate(MAX_HEAVY);
        for (slot, before) in cut {
            if !goes_on() {
                return Ok(());
            }
            let mut now = SlotSample::default();
            let bounds = Bounds { keys: HEAVY_SLOT_KEYS, positions: HEAVY_POSITIONS };
            scan.slots((slot, slot + 1), &bounds, &mut |_, sample| {
                now = sample;
                ControlFlow::Break(())
            })?;
            tally.remove(slot as u16, &before);
            tally.add(slot as u16, &now);
        }
        let counted = CachedCount { at: Instant::now(), took: began.elapsed(), changes, tally };
        *self.last.lock() = Some(counted);
        Ok(())
    }
}
