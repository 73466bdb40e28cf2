//! Compactions that have ended and are to be looked at: what the listener hands to the thread of
//! [`super::thread`].
//!
//! Bounds: [`MAX_FINISHED`]; beyond it the oldest is forgotten, and counted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rust_rocksdb::event_listener::CompactionJobInfo;

use crate::compaction::by_names::number_of;

/// More than ever end while one merge runs: RocksDB begins few then. Older ones have most likely
/// been compacted again.
const MAX_FINISHED: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Numbers of the tables that each of them wrote.
    finished: VecDeque<Vec<u64>>,
    /// Some were taken, and the thread has not come back for more.
    is_looked_at: bool,
    stops: bool,
}

impl Queue {
    /// A compaction has ended that rewrote tables.
    pub(crate) fn compacted(&self, info: &CompactionJobInfo) {
        if info.status().is_ok() {
            self.written(info.output_files().filter_map(number_of).collect());
        }
    }

    fn written(&self, tables: Vec<u64>) {
        if tables.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        if state.finished.len() >= MAX_FINISHED {
            state.finished.pop_front();
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        state.finished.push_back(tables);
        self.changed.notify_one();
    }

    /// Those that were forgotten.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Whether some of them are still to be looked at, or are just now.
    pub(super) fn has_more(&self) -> bool {
        let state = self.state.lock();
        state.is_looked_at || !state.finished.is_empty()
    }

    /// Waits until one has ended, and then until `not_before`, and takes all there are; or for
    /// `most`, and takes what there is if it is late enough. `None` when the thread is to end.
    pub(crate) fn wait(&self, most: Option<Duration>, not_before: Instant) -> Option<Vec<Vec<u64>>> {
        let mut state = self.state.lock();
        state.is_looked_at = false;
        let until = most.map(|most| Instant::now() + most);
        loop {
            let now = Instant::now();
            let waits_for = if state.finished.is_empty() { until } else { Some(not_before) };
            let waits_for = [waits_for, until].into_iter().flatten().min();
            if state.stops || waits_for.is_some_and(|until| until <= now) {
                break;
            }
            match waits_for {
                Some(until) => drop(self.changed.wait_until(&mut state, until)),
                None => self.changed.wait(&mut state),
            }
        }
        if !state.stops && Instant::now() < not_before {
            return Some(Vec::new());
        }
        let taken: Vec<_> = state.finished.drain(..).collect();
        state.is_looked_at = !taken.is_empty();
        (!state.stops).then_some(taken)
    }

    /// Tells the thread to end.
    pub(super) fn ask_to_stop(&self) {
        self.state.lock().stops = true;
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_ends_waits_for_the_next_look_and_is_taken_with_all_that_has_ended_by_then() {
        let queue = Queue::default();
        queue.written(vec![1]);
        queue.written(Vec::new());
        // Too early: the wait ends when it is to end, and takes nothing.
        assert!(queue.wait(Some(Duration::from_millis(1)), Instant::now() + LONG).unwrap().is_empty());
        assert!(queue.has_more());
        queue.written(vec![2, 3]);
        let not_before = Instant::now() + Duration::from_millis(50);
        assert_eq!(queue.wait(None, not_before).unwrap(), [vec![1], vec![2, 3]]);
        assert!(Instant::now() >= not_before);
        assert!(queue.has_more(), "it is being looked at");
        assert!(queue.wait(Some(Duration::ZERO), Instant::now()).unwrap().is_empty());
        assert!(!queue.has_more());
    }

    #[test]
    fn the_oldest_are_forgotten_and_who_is_to_end_waits_for_nothing() {
        let queue = Queue::default();
        (0..MAX_FINISHED as u64 + 3).for_each(|table| queue.written(vec![table]));
        assert_eq!(queue.dropped(), 3);
        let taken = queue.wait(None, Instant::now()).unwrap();
        assert_eq!((taken.len(), &taken[0]), (MAX_FINISHED, &vec![3]));
        queue.ask_to_stop();
        assert!(queue.wait(None, Instant::now() + LONG).is_none());
    }
}
