//! How many keys there are, about, without a look at all of them.
//!
//! Few keys are counted. Of many it is counted how many stand at the beginning of each slot, and up to which place: within a slot keys are spread evenly by a hash
//! (see [`super::layout`]), so a slot has as many keys as its beginning says. All slots are looked at, so keys that share a hash tag, and with it a slot, are found
//! wherever they are; slots that have many are looked at for longer. What was deleted or overwritten is no key to who reads, so nothing of it counts, whatever RocksDB
//! estimates.
//!
//! A count stands until enough was written since ([`Counts::is_stale`]). It tells how many keys have expired meanwhile by itself: it knows the times of some of them.
//!
//! Error: slots of up to [`SLOT_KEYS`] keys are counted. Of others the standard deviation is a quarter, which all 16,384 of them together make a five hundredth; where a few slots have
//! nearly all keys it is one in 32. Keys that somebody has chosen by their hashes may mislead it.
//!
//! Bounds: [`SLOT_KEYS`] keys of each slot, and [`HEAVY_SLOT_KEYS`] of [`MAX_HEAVY`] slots ([`MAX_SLOT_KEYS`] where many share each place), expired ones included: half a
//! second or less, however many there are. Values are not read, and what is read stays out of the block cache. The thread of [`super::upkeep`] counts again once it has rested for
//! [`RESTS`] times as long as that took, [`MAX_REST`] at most: a sixtieth of one core while clients write, and nothing once they do not.
//!
//! Threads: any; one counts at a time.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ecotone_engine::{Attributes, Direction, Error as StoreError, Store};
use parking_lot::Mutex;

use super::Keyspace;
use super::keys::Keys;
use super::layout::{self, PLACES_OF_SLOT};
use super::slot::SLOTS;
use crate::error::Outcome;

/// So many keys are counted one by one, by whoever asks.
const MAX_COUNTED: u64 = 4096;

/// Keys of each slot that are looked at.
const SLOT_KEYS: u64 = 16;

/// Keys that are looked at of slots that have many.
const HEAVY_SLOT_KEYS: u64 = 1024;

/// Slots that may have many: those with more than this part of all keys, one in so many.
const MAX_HEAVY: usize = 256;

/// Places that are looked at of such a slot, and keys at most: where each place has many keys a few places say little.
const HEAVY_PLACES: u32 = 64;
const MAX_SLOT_KEYS: u64 = 65_536;

/// Times that are remembered.
const MAX_TIMES: usize = 4096;

/// What share of all keys must have been written for the count to be made anew.
const STALE_SHARE: f64 = 0.01;

/// From this share on who asks has it counted, where that costs little.
const WRONG_SHARE: f64 = 0.05;

/// A count may take this part of the time of one core, one in so many, while nobody asks; and where somebody does.
const RESTS: u32 = 60;
const RESTS_IF_ASKED: u32 = 20;

/// Between two counts that nobody asks for.
const MIN_REST: Duration = Duration::from_secs(5);
const MAX_REST: Duration = Duration::from_secs(45);

/// Writes that nobody counts: a range was removed.
const ALL_CHANGED: u64 = 1 << 40;

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

/// What was counted last.
#[derive(Debug, Default)]
pub(super) struct Counts {
    last: Mutex<Option<Counted>>,
    /// Held by who counts.
    counting: Mutex<()>,
    /// Keys that were written or removed since the keyspace was opened.
    changes: AtomicU64,
    /// Whether a thread counts by itself.
    pub(super) is_kept: AtomicBool,
}

/// One count.
#[derive(Debug, Clone)]
struct Counted {
    at: Instant,
    took: Duration,
    /// Of [`Counts::changes`], when it began.
    changes: u64,
    tally: Tally,
}

impl Counts {
    /// A group was committed that writes so many keys and elements, and may remove ranges of them.
    #[inline]
    pub(super) fn changed(&self, writes: usize, removes_ranges: bool) {
        let changes = if removes_ranges { ALL_CHANGED } else { writes as u64 };
        self.changes.fetch_add(changes, Ordering::Relaxed);
    }

    /// Whether more than this share of the keys may have changed since.
    fn is_stale(&self, counted: &Counted, share: f64) -> bool {
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
    /// When some of them expire: the slot, the time, and how many keys that stands for; of one in `stride`.
    times: Vec<(u16, u64, f32)>,
    stride: usize,
    passed: usize,
}

impl Tally {
    fn add(&mut self, slot: u16, looked: &SlotLook) {
        let stands_for = looked.stands_for();
        self.keys += looked.keys as f64 * stands_for;
        self.expiring += looked.expires_at_ms.len() as f64 * stands_for;
        for expires_at_ms in &looked.expires_at_ms {
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

    fn remove(&mut self, slot: u16, looked: &SlotLook) {
        let stands_for = looked.stands_for();
        self.keys -= looked.keys as f64 * stands_for;
        self.expiring -= looked.expires_at_ms.len() as f64 * stands_for;
        self.times.retain(|(of, ..)| *of != slot);
    }

    /// What is left of it at `now_ms`.
    fn at(&self, now_ms: u64) -> Census {
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
        Census {
            keys: (self.keys - self.expiring + expiring).max(0.0).round() as u64,
            expiring: expiring.round() as u64,
            average_ttl_ms: if left > 0.0 { (ttl_ms / left) as u64 } else { 0 },
        }
    }
}

/// The beginning of one slot.
#[derive(Debug, Default)]
struct SlotLook {
    /// Keys whose time is not over.
    keys: u64,
    /// When those of them expire that do.
    expires_at_ms: Vec<u64>,
    /// All of them, and those whose time is over.
    entries: u64,
    /// The places that were looked at, where there are more behind them.
    places: Option<u32>,
}

impl SlotLook {
    /// How many keys of the slot one stands for that was looked at.
    fn stands_for(&self) -> f64 {
        self.places.map_or(1.0, |places| f64::from(PLACES_OF_SLOT) / f64::from(places.max(1)))
    }

    fn estimate(&self) -> f64 {
        self.entries as f64 * self.stands_for()
    }

    fn take(&mut self, attributes: &Attributes, now_ms: u64) {
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

    /// The same, if its slot is to be looked at no further: what is next stands at this place of it, another one than the last.
    fn ends_at(&mut self, place: u32, bounds: &Bounds) -> bool {
        let is_enough = self.entries >= bounds.keys && (place >= bounds.places || self.entries >= MAX_SLOT_KEYS);
        if is_enough {
            self.places = Some(place);
        }
        is_enough
    }
}

/// How much of a slot is looked at.
struct Bounds {
    keys: u64,
    places: u32,
}

/// One look at the beginnings of slots, as of one time.
struct Walk<'s> {
    store: &'s Store,
    now_ms: u64,
}

impl Walk<'_> {
    /// Looks at the slots from `first` to before `end`, one after the other, and shows each to `found` that has any keys; ends where that breaks.
    fn slots(
        &self,
        (first, end): (u32, u32),
        bounds: &Bounds,
        found: &mut dyn FnMut(u32, SlotLook) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let begin = |slot: u32| {
            if slot < u32::from(SLOTS) { layout::from_place(slot * PLACES_OF_SLOT) } else { layout::all_keys().end }
        };
        let (mut from, to) = (begin(first), begin(end));
        'scans: while from < to {
            let mut scan = self.store.scan_aside(from.as_slice()..to.as_slice(), Direction::Forward);
            let (mut slot, mut look, mut last_place) = (None, SlotLook::default(), None);
            while let Some((stored, attributes)) = scan.next_key()? {
                let Some(place) = layout::place_of(stored) else { continue };
                let (of, place) = (place / PLACES_OF_SLOT, place % PLACES_OF_SLOT);
                if let Some(before) = slot.filter(|before| *before != of)
                    && found(before, std::mem::take(&mut look)).is_break()
                {
                    return Ok(());
                }
                if slot == Some(of) && last_place != Some(place) && look.ends_at(place, bounds) {
                    drop(scan);
                    if found(of, look).is_break() {
                        return Ok(());
                    }
                    from = begin(of + 1);
                    continue 'scans;
                }
                (slot, last_place) = (Some(of), Some(place));
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

impl Keyspace {
    /// How many keys there are, as they were counted last; `None` before.
    pub fn counted(&self) -> Option<Census> {
        let now_ms = self.clock.now_ms();
        self.counts.last.lock().as_ref().map(|counted| counted.tally.at(now_ms))
    }

    /// Counts again if that is due. `goes_on` is asked again and again; `false` ends it.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn count_if_due(&self, goes_on: impl Fn() -> bool) -> Result<(), StoreError> {
        self.counts.is_kept.store(true, Ordering::Relaxed);
        let is_due = self.counts.last.lock().as_ref().is_none_or(|counted| {
            let rest = (counted.took * RESTS).clamp(MIN_REST, MAX_REST);
            counted.at.elapsed() >= rest && self.counts.is_stale(counted, STALE_SHARE)
        });
        if is_due && let Some(_counting) = self.counts.counting.try_lock() {
            self.count(goes_on)?;
        }
        Ok(())
    }

    /// As they were counted lately, for who may wait: by somebody who counts all the time, or now.
    fn count_lately(&self) -> Result<Census, StoreError> {
        let known = |counts: &Counts| {
            let last = counts.last.lock();
            let counted = last.as_ref()?;
            let is_kept = counts.is_kept.load(Ordering::Relaxed);
            let is_good = match is_kept {
                true => counted.at.elapsed() < counted.took * RESTS_IF_ASKED || !counts.is_stale(counted, WRONG_SHARE),
                false => !counts.is_stale(counted, 0.0),
            };
            is_good.then(|| counted.tally.at(self.clock.now_ms()))
        };
        if let Some(census) = known(&self.counts) {
            return Ok(census);
        }
        let _counting = self.counts.counting.lock();
        // Somebody may just have done so.
        if let Some(census) = known(&self.counts) {
            return Ok(census);
        }
        self.count(|| true)?;
        Ok(self.counted().unwrap_or_default())
    }

    /// Counts, while nobody else does.
    fn count(&self, goes_on: impl Fn() -> bool) -> Result<(), StoreError> {
        let began = Instant::now();
        let changes = self.counts.changes.load(Ordering::Relaxed);
        let walk = Walk { store: &self.store, now_ms: self.clock.now_ms() };
        let mut tally = Tally::default();
        let mut cut = Vec::new();
        let mut ended = false;
        let mut look = |slot: u32, look: SlotLook| {
            tally.add(slot as u16, &look);
            if look.places.is_some() {
                cut.push((slot, look));
            }
            ended = !goes_on();
            if ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        walk.slots((0, SLOTS.into()), &Bounds { keys: SLOT_KEYS, places: 1 }, &mut look)?;
        if ended {
            return Ok(());
        }
        let all: f64 = tally.keys.max(1.0);
        cut.retain(|(_, look)| look.estimate() > all / MAX_HEAVY as f64);
        cut.sort_by(|(_, one), (_, other)| other.estimate().total_cmp(&one.estimate()));
        // Where most has expired more of them may be found than that.
        cut.truncate(MAX_HEAVY);
        for (slot, before) in cut {
            if !goes_on() {
                return Ok(());
            }
            let mut now = SlotLook::default();
            let bounds = Bounds { keys: HEAVY_SLOT_KEYS, places: HEAVY_PLACES };
            walk.slots((slot, slot + 1), &bounds, &mut |_, look| {
                now = look;
                ControlFlow::Break(())
            })?;
            tally.remove(slot as u16, &before);
            tally.add(slot as u16, &now);
        }
        let counted = Counted { at: Instant::now(), took: began.elapsed(), changes, tally };
        *self.counts.last.lock() = Some(counted);
        Ok(())
    }
}

impl Keys<'_> {
    /// How many keys there are, about. Takes a few milliseconds most of the time: for who may wait.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn census(&mut self) -> Outcome<Census> {
        let now_ms = self.now_ms();
        let mut look = SlotLook::default();
        let mut is_whole = true;
        self.visit(layout::all_keys(), Direction::Forward, false, |_, attributes, _| {
            is_whole = look.entries < MAX_COUNTED;
            if !is_whole {
                return ControlFlow::Break(());
            }
            look.take(attributes, now_ms);
            ControlFlow::Continue(())
        })?;
        if !is_whole {
            return Ok(self.keyspace().count_lately()?);
        }
        let expiring = look.expires_at_ms.len() as u64;
        let ttl_ms: u128 = look.expires_at_ms.iter().map(|at_ms| u128::from(at_ms - now_ms)).sum();
        let average_ttl_ms = if expiring > 0 { (ttl_ms / u128::from(expiring)) as u64 } else { 0 };
        Ok(Census { keys: look.keys, expiring, average_ttl_ms })
    }
}
