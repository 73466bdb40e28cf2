//! The subcompactions of one compaction agree on what they read, before the first of them reports
//! success.
//!
//! RocksDB compares the records that all subcompactions read with those of the input tables once
//! every subcompaction has ended, and stops the store when they differ. One subcompaction cannot be
//! checked alone: nobody knows how many records lie in its range. So the subcompactions that ran on
//! workers wait here until all have ended, which costs nothing, because RocksDB joins them anyway.
//! When the sum is wrong, one of them is run here, and the others wait on; so it goes until the sum
//! is right, at worst until all have run here.
//!
//! A subcompaction that does not say its count, or that cannot be followed, ends the comparison:
//! then RocksDB's own remains.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::compaction::jobs::{compaction_of, subcompaction_of};

/// The longest that a subcompaction waits for the others; then it reports success on its own. Far
/// more than a subcompaction of a compaction takes on the slowest server.
const LONGEST_WAIT: Duration = Duration::from_secs(15 * 60);

/// Compactions whose end RocksDB never told are forgotten beyond this number.
const MAX_COMPACTIONS: usize = 1024;

#[derive(Default)]
pub(crate) struct Subcompactions {
    compactions: Mutex<HashMap<i32, SubcompactionSet>>,
    changed: Condvar,
}

/// The subcompactions of one compaction by RocksDB's number of them.
#[derive(Default)]
struct SubcompactionSet {
    known: HashMap<u32, Subcompaction>,
    incomparable: bool,
}

struct Subcompaction {
    begin: Option<Vec<u8>>,
    end: Option<Vec<u8>>,
    /// What it read, once it has ended.
    records: Option<u64>,
}

impl SubcompactionSet {
    /// The records that all subcompactions read; `None` while some subcompaction has not begun or
    /// not ended.
    fn records(&self) -> Option<u64> {
        let mut set: Vec<_> = self.known.values().collect();
        set.sort_by(|a, b| a.begin.cmp(&b.begin));
        let meet = set.windows(2).all(|pair| pair[0].end.is_some() && pair[0].end == pair[1].begin);
        let whole = set.first()?.begin.is_none() && set.last()?.end.is_none() && meet;
        if !whole {
            return None;
        }
        set.into_iter().try_fold(0_u64, |sum, subcompaction| Some(sum.saturating_add(subcompaction.records?)))
    }
}

impl Subcompactions {
    /// A subcompaction of a compaction begins, for the keys from `begin` to before `end`.
    pub(crate) fn begin(&self, rocks_job: u64, begin: Option<&[u8]>, end: Option<&[u8]>) {
        let mut compactions = self.compactions.lock();
        if compactions.len() >= MAX_COMPACTIONS {
            compactions.clear();
        }
        let subcompaction =
            Subcompaction { begin: begin.map(<[u8]>::to_vec), end: end.map(<[u8]>::to_vec), records: None };
        compactions
            .entry(compaction_of(rocks_job))
            .or_default()
            .known
            .insert(subcompaction_of(rocks_job), subcompaction);
        self.changed.notify_all();
    }

    /// A subcompaction has ended, here or there, and read so many records; `None` when that is not
    /// known exactly.
    pub(crate) fn ended(&self, rocks_job: u64, records: Option<u64>) {
        let mut compactions = self.compactions.lock();
        let Some(set) = compactions.get_mut(&compaction_of(rocks_job)) else {
            return;
        };
        match (records, set.known.get_mut(&subcompaction_of(rocks_job))) {
            (Some(_), Some(subcompaction)) => subcompaction.records = records,
            _ => set.incomparable = true,
        }
        self.changed.notify_all();
    }

    /// The compaction has a subcompaction that cannot be followed.
    pub(crate) fn give_up(&self, compaction: i32) {
        self.compactions.lock().entry(compaction).or_default().incomparable = true;
        self.changed.notify_all();
    }

    /// The compaction has ended.
    pub(crate) fn forget(&self, compaction: i32) {
        self.compactions.lock().remove(&compaction);
        self.changed.notify_all();
    }

    /// Makes every waiter ask its `give_up` again.
    pub(crate) fn wake_all(&self) {
        // Under the lock, so that a waiter is either before its question or in its wait.
        let _compactions = self.compactions.lock();
        self.changed.notify_all();
    }

    /// Waits until all subcompactions have ended, and says whether this one may report success.
    /// When not, it must be run here: the others then wait for that.
    pub(crate) fn agree(&self, rocks_job: u64, input_records: u64, give_up: impl Fn() -> bool) -> bool {
        let until = Instant::now() + LONGEST_WAIT;
        let mut compactions = self.compactions.lock();
        loop {
            if give_up() {
                return false;
            }
            let Some(set) = compactions.get_mut(&compaction_of(rocks_job)) else {
                return true;
            };
            if set.incomparable {
                return true;
            }
            match set.records() {
                Some(records) if records == input_records => return true,
                Some(_) => {
                    if let Some(subcompaction) = set.known.get_mut(&subcompaction_of(rocks_job)) {
                        subcompaction.records = None;
                    }
                    return false;
                }
                None => {}
            }
            // Unchecked success could stop the store; to run here costs only work.
            if self.changed.wait_until(&mut compactions, until).timed_out() {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn job(subcompaction: u64) -> u64 {
        (7 << 32) | subcompaction
    }

    /// Three subcompactions that cover all keys, begun and not ended.
    fn three() -> Subcompactions {
        let subcompactions = Subcompactions::default();
        subcompactions.begin(job(1), Some(b"f"), Some(b"p"));
        subcompactions.begin(job(0), None, Some(b"f"));
        subcompactions.begin(job(2), Some(b"p"), None);
        subcompactions
    }

    #[test]
    fn parts_that_read_everything_agree() {
        let subcompactions = three();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                subcompactions.ended(job(0), Some(10));
                subcompactions.agree(job(0), 60, || false)
            });
            subcompactions.ended(job(1), Some(20));
            subcompactions.ended(job(2), Some(30));
            assert!(waiting.join().unwrap());
        });
        assert!(subcompactions.agree(job(1), 60, || false));
    }

    #[test]
    fn a_wrong_sum_sends_one_part_home_and_the_others_wait_for_it() {
        let subcompactions = three();
        for (subcompaction, records) in [(0, 10), (1, 20), (2, 29)] {
            subcompactions.ended(job(subcompaction), Some(records));
        }
        assert!(!subcompactions.agree(job(2), 60, || false), "the first that asks is run again");
        std::thread::scope(|scope| {
            let others = [0, 1].map(|subcompaction| {
                let subcompactions = &subcompactions;
                scope.spawn(move || subcompactions.agree(job(subcompaction), 60, || false))
            });
            subcompactions.ended(job(2), Some(30));
            assert!(others.into_iter().all(|other| other.join().unwrap()), "with its true count all agree");
        });
    }

    #[test]
    fn what_cannot_be_compared_is_not_waited_for() {
        let subcompactions = three();
        subcompactions.ended(job(0), Some(1));
        subcompactions.ended(job(1), None);
        assert!(subcompactions.agree(job(0), 60, || false));
        let subcompactions = three();
        subcompactions.give_up(7);
        assert!(subcompactions.agree(job(0), 60, || false));
        subcompactions.forget(7);
        assert!(subcompactions.agree(job(0), 60, || false));
    }

    #[test]
    fn nobody_waits_once_the_store_closes() {
        assert!(!three().agree(job(0), 60, || true));
    }
}
