//! One sync for all writers that wait for one.
//!
//! A writer that comes while a sync runs cannot know what it covers, so it waits for the next one;
//! whoever comes first then runs it for all. At most one runs at a time.

use parking_lot::{Condvar, Mutex};

use crate::{Error, Result};

/// Shared by all writers of a store.
#[derive(Debug, Default)]
pub(crate) struct GroupSync {
    rounds: Mutex<Rounds>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Rounds {
    begun: u64,
    done: u64,
    running: bool,
    /// The last round that failed, and how.
    failed: Option<(u64, Error)>,
}

impl GroupSync {
    /// Returns once a `sync` that began after the call has ended, this one's or another caller's,
    /// with its outcome.
    pub(crate) fn wait(&self, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut rounds = self.rounds.lock();
        let mine = rounds.begun + 1;
        while rounds.running {
            self.ended.wait(&mut rounds);
            if rounds.done >= mine {
                return rounds.outcome_of(mine);
            }
        }
        rounds.begun += 1;
        rounds.running = true;
        let round = rounds.begun;
        // Also on a panic of `sync`: the others would wait for ever.
        let mut ends = Ends { group: self, round, failed: None };
        drop(rounds);
        let outcome = sync();
        ends.failed = outcome.clone().err();
        outcome
    }
}

impl Rounds {
    fn outcome_of(&self, round: u64) -> Result<()> {
        match &self.failed {
            // A later round that failed says no less of what this one was to make durable.
            Some((failed, error)) if *failed >= round => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

struct Ends<'g> {
    group: &'g GroupSync,
    round: u64,
    failed: Option<Error>,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let mut rounds = self.group.rounds.lock();
        let panicked = std::thread::panicking()
            .then(|| Error::Background { detail: "the thread that synced for all others panicked".into() });
        if let Some(error) = self.failed.take().or(panicked) {
            rounds.failed = Some((self.round, error));
        }
        rounds.done = self.round;
        rounds.running = false;
        self.group.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Each writer bumps a counter and then syncs; a sync makes the counter it saw at its begin
    /// durable.
    #[test]
    fn every_writer_is_covered_by_a_sync_that_began_after_it_wrote() {
        let (group, written, durable) =
            (Arc::<GroupSync>::default(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let writers: Vec<_> = (0..8)
            .map(|_| {
                let (group, written, durable) = (group.clone(), written.clone(), durable.clone());
                std::thread::spawn(move || {
                    for _ in 0..500 {
                        let mine = written.fetch_add(1, Ordering::SeqCst) + 1;
                        group
                            .wait(|| {
                                let seen = written.load(Ordering::SeqCst);
                                std::thread::yield_now();
                                durable.fetch_max(seen, Ordering::SeqCst);
                                Ok(())
                            })
                            .unwrap();
                        assert!(durable.load(Ordering::SeqCst) >= mine);
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    }

    #[test]
    fn a_failure_is_told_to_all_who_waited_for_it_and_to_nobody_later() {
        let group = Arc::<GroupSync>::default();
        let (begun, begins) = std::sync::mpsc::channel();
        let (go, goes) = std::sync::mpsc::channel::<()>();
        let first = std::thread::spawn({
            let group = group.clone();
            move || {
                group.wait(|| {
                    begun.send(()).unwrap();
                    goes.recv().unwrap();
                    Err(Error::Closed)
                })
            }
        });
        begins.recv().unwrap();
        let second = std::thread::spawn({
            let group = group.clone();
            move || group.wait(|| Ok(()))
        });
        go.send(()).unwrap();
        assert_eq!(first.join().unwrap(), Err(Error::Closed));
        assert_eq!(second.join().unwrap(), Ok(()), "it came while the failing one ran, so the next one counts");
        assert_eq!(group.wait(|| Ok(())), Ok(()));
    }
}
