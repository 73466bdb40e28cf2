//! The baseline of measurements: levels compared at intervals, each with the next one, and merged
//! as a whole where that is worth it ("deduplication-triggered compaction", reference 15 of the
//! paper).
//!
//! Bounds: as many merges as levels fill; [`MAX_ATTEMPTS`] at one that meets running compactions.

use std::collections::VecDeque;

use ecotone_types::units::{Bytes, Seconds, Time};

use super::candidates::{Allowance, Choice};
use super::deferral::retry_pause;
use super::plan::{Merge, MergeLimits, Table, Unfit, closure, merges};

/// So often a merge is tried whose tables are being compacted: 6 s in all. Then RocksDB has most
/// likely merged them further.
const MAX_ATTEMPTS: u32 = 6;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct LevelsCompared {
    interval: Seconds,
    next_check: Time,
    /// In the order in which they were decided.
    waiting: VecDeque<Waiting>,
}

/// Tables that are to go to a level.
#[derive(Clone, Debug)]
struct Waiting {
    seeds: Vec<u64>,
    to_level: u32,
    attempts: u32,
    again: Time,
}

impl LevelsCompared {
    /// With the first comparison after an interval.
    pub(super) fn new(interval: Seconds) -> Self {
        Self { interval, next_check: Time::default() + interval, waiting: VecDeque::new() }
    }

    /// How long until levels are compared next.
    pub(super) fn until_check(&self, now: Time) -> Seconds {
        self.next_check.since(now)
    }

    /// Levels were compared, and this was decided. What still waits of the last time was decided
    /// anew.
    pub(super) fn decided(&mut self, now: Time, merges: Vec<Merge>) {
        self.next_check = now + self.interval;
        let waiting =
            |merge: Merge| Waiting { seeds: merge.seeds, to_level: merge.output_level, attempts: 0, again: now };
        self.waiting = merges.into_iter().map(waiting).collect();
    }

    /// When the first of those that wait may be tried; `None` where nothing waits.
    pub(super) fn soonest(&self) -> Option<Time> {
        self.waiting.iter().map(|waiting| waiting.again).min_by(|a, b| a.0.0.total_cmp(&b.0.0))
    }

    /// The next merge, in order.
    pub(super) fn next(
        &mut self,
        now: Time,
        tables: &[Table],
        max_bytes: Bytes,
        allowance: Allowance,
    ) -> Choice<Merge> {
        let mut at = 0;
        while let Some(waiting) = self.waiting.get_mut(at) {
            if waiting.again > now {
                at += 1;
                continue;
            }
            let plan = |max_bytes| {
                let merges = merges(tables, &waiting.seeds, waiting.to_level, &MergeLimits { max_bytes });
                merges.into_iter().next()
            };
            let fits = max_bytes.min(allowance.free_space);
            match plan(fits.min(allowance.time)) {
                Some(merge) => return Choice::Merge(merge),
                None if plan(fits).is_some() => return Choice::NoTime,
                None if plan(max_bytes).is_some() => return Choice::NoSpace,
                None => (),
            }
            // Its tables are being compacted, or it is done.
            let is_busy = |seed: &u64| matches!(closure(tables, &[*seed], waiting.to_level), Err(Unfit::Busy(_)));
            let meets_others = waiting.seeds.iter().any(is_busy);
            if !meets_others || !waiting.tries_again(now) {
                self.waiting.remove(at);
            }
        }
        if self.waiting.is_empty() { Choice::Nothing } else { Choice::Busy }
    }

    /// These tables have been merged.
    pub(super) fn merged(&mut self, inputs: &[u64]) {
        for waiting in &mut self.waiting {
            let before = waiting.seeds.len();
            waiting.seeds.retain(|seed| !inputs.contains(seed));
            if waiting.seeds.len() < before {
                waiting.attempts = 0;
            }
        }
        self.waiting.retain(|waiting| !waiting.seeds.is_empty());
    }

    /// A merge of these tables met a compaction.
    pub(super) fn met_another(&mut self, now: Time, inputs: &[u64]) {
        self.waiting
            .retain_mut(|waiting| !waiting.seeds.iter().any(|seed| inputs.contains(seed)) || waiting.tries_again(now));
    }

    /// A merge of these tables came to nothing: what was decided with it is given up.
    pub(super) fn give_up(&mut self, inputs: &[u64]) {
        self.waiting.retain(|waiting| !waiting.seeds.iter().any(|seed| inputs.contains(seed)));
    }
}

impl Waiting {
    /// Whether there is to be another attempt, after a pause.
    fn tries_again(&mut self, now: Time) -> bool {
        self.again = now + retry_pause(self.attempts);
        self.attempts += 1;
        self.attempts < MAX_ATTEMPTS
    }
}
