//! The parts of one compaction agree on what they read, before the first of them reports success.
//!
//! RocksDB compares the records that all parts read with those of the input tables once every part has ended, and stops the
//! store when they differ. One part cannot be checked alone: nobody knows how many records lie in its range. So the parts
//! that ran on workers wait here until all have ended, which costs nothing, because RocksDB joins them anyway. When the sum
//! is wrong, one of them is run here, and the others wait on; so it goes until the sum is right, at worst until all have run
//! here.
//!
//! A part that does not say its count, or that cannot be followed, ends the comparison: then RocksDB's own remains.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::adapter::compaction_of;

/// The longest that a part waits for its siblings; then it reports success on its own. Far more than a part of a compaction
/// takes on the slowest server.
const LONGEST_WAIT: Duration = Duration::from_secs(15 * 60);

/// Compactions whose end RocksDB never told are forgotten beyond this number.
const MAX_COMPACTIONS: usize = 1024;

#[derive(Default)]
pub(crate) struct Siblings {
    compactions: Mutex<HashMap<i32, Parts>>,
    changed: Condvar,
}

/// The parts of one compaction by RocksDB's number of them.
#[derive(Default)]
struct Parts {
    known: HashMap<u32, Part>,
    incomparable: bool,
}

struct Part {
    begin: Option<Vec<u8>>,
    end: Option<Vec<u8>>,
    /// What it read, once it has ended.
    records: Option<u64>,
}

impl Parts {
    /// The records that all parts read; `None` while some part has not begun or not ended.
    fn records(&self) -> Option<u64> {
        let mut parts: Vec<_> = self.known.values().collect();
        parts.sort_by(|a, b| a.begin.cmp(&b.begin));
        let meet = parts.windows(2).all(|pair| pair[0].end.is_some() && pair[0].end == pair[1].begin);
        let whole = parts.first()?.begin.is_none() && parts.last()?.end.is_none() && meet;
        if !whole {
            return None;
        }
        parts.into_iter().try_fold(0_u64, |sum, part| Some(sum.saturating_add(part.records?)))
    }
}

impl Siblings {
    /// A part of a compaction begins, for the keys from `begin` to before `end`.
    pub(crate) fn begin(&self, rocks_job: u64, begin: Option<&[u8]>, end: Option<&[u8]>) {
        let mut compactions = self.compactions.lock();
        if compactions.len() >= MAX_COMPACTIONS {
            compactions.clear();
        }
        let part = Part { begin: begin.map(<[u8]>::to_vec), end: end.map(<[u8]>::to_vec), records: None };
        compactions.entry(compaction_of(rocks_job)).or_default().known.insert(part_of(rocks_job), part);
        self.changed.notify_all();
    }

    /// A part has ended, here or there, and read so many records; `None` when that is not known exactly.
    pub(crate) fn ended(&self, rocks_job: u64, records: Option<u64>) {
        let mut compactions = self.compactions.lock();
        let Some(parts) = compactions.get_mut(&compaction_of(rocks_job)) else {
            return;
        };
        match (records, parts.known.get_mut(&part_of(rocks_job))) {
            (Some(_), Some(part)) => part.records = records,
            _ => parts.incomparable = true,
        }
        self.changed.notify_all();
    }

    /// The compaction has a part that cannot be followed.
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

    /// Waits until all parts have ended, and says whether this one may report success. When not, it must be run here: the
    /// others then wait for that.
    pub(crate) fn agree(&self, rocks_job: u64, input_records: u64, give_up: impl Fn() -> bool) -> bool {
        let until = Instant::now() + LONGEST_WAIT;
        let mut compactions = self.compactions.lock();
        loop {
            if give_up() {
                return false;
            }
            let Some(parts) = compactions.get_mut(&compaction_of(rocks_job)) else {
                return true;
            };
            if parts.incomparable {
                return true;
            }
            match parts.records() {
                Some(records) if records == input_records => return true,
                Some(_) => {
                    if let Some(part) = parts.known.get_mut(&part_of(rocks_job)) {
                        part.records = None;
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

/// RocksDB's number of a part within its compaction (`CompactionJob::GetCompactionId`).
fn part_of(rocks_job: u64) -> u32 {
    rocks_job as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn job(part: u64) -> u64 {
        (7 << 32) | part
    }

    /// Three parts that cover all keys, begun and not ended.
    fn three() -> Siblings {
        let siblings = Siblings::default();
        siblings.begin(job(1), Some(b"f"), Some(b"p"));
        siblings.begin(job(0), None, Some(b"f"));
        siblings.begin(job(2), Some(b"p"), None);
        siblings
    }

    #[test]
    fn parts_that_read_everything_agree() {
        let siblings = three();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                siblings.ended(job(0), Some(10));
                siblings.agree(job(0), 60, || false)
            });
            siblings.ended(job(1), Some(20));
            siblings.ended(job(2), Some(30));
            assert!(waiting.join().unwrap());
        });
        assert!(siblings.agree(job(1), 60, || false));
    }

    #[test]
    fn a_wrong_sum_sends_one_part_home_and_the_others_wait_for_it() {
        let siblings = three();
        for (part, records) in [(0, 10), (1, 20), (2, 29)] {
            siblings.ended(job(part), Some(records));
        }
        assert!(!siblings.agree(job(2), 60, || false), "the first that asks is run again");
        std::thread::scope(|scope| {
            let others = [0, 1].map(|part| {
                let siblings = &siblings;
                scope.spawn(move || siblings.agree(job(part), 60, || false))
            });
            siblings.ended(job(2), Some(30));
            assert!(others.into_iter().all(|other| other.join().unwrap()), "with its true count all agree");
        });
    }

    #[test]
    fn what_cannot_be_compared_is_not_waited_for() {
        let siblings = three();
        siblings.ended(job(0), Some(1));
        siblings.ended(job(1), None);
        assert!(siblings.agree(job(0), 60, || false));
        let siblings = three();
        siblings.give_up(7);
        assert!(siblings.agree(job(0), 60, || false));
        siblings.forget(7);
        assert!(siblings.agree(job(0), 60, || false));
    }

    #[test]
    fn nobody_waits_once_the_store_closes() {
        assert!(!three().agree(job(0), 60, || true));
    }
}
