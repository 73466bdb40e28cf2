//! Replies of one event loop that wait until copies of a shard have what they tell of.
//!
//! For each gate and level there is a queue, in the order of places: what one client waits for is
//! most often what others of its turn wait for, and they share one entry. Whenever a gate moves, a
//! task of the event loop asks it once for each level that somebody waits at, and lets go all that
//! may be told. It looks by itself as well, if seldom: nobody wakes it where a lease ends.
//!
//! Bounds: an entry stays for [`MAX_WAIT_FOR_COPIES`] at most, whether anybody still waits for it or
//! not. Failure: what a gate refuses, it refuses to all that wait for it at that level.
//!
//! Threads: of one event loop; gates wake it from any.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ecotone_keyspace::SeenGate;
use ecotone_keyspace::gate::{CommitGate, Level, Place, has_reached};
use tokio::sync::Notify;

use super::outcome::OutcomeFuture;
use crate::copies::{MAX_WAIT_FOR_COPIES, Unanswered};

/// So often gates are asked while somebody waits, though they wake nobody: a lease ends by itself.
const ASK_AGAIN_EVERY: Duration = Duration::from_millis(100);

/// Stands for what a reply waits for until that is reached, or refused.
pub(super) type ReachedFuture = OutcomeFuture<Unanswered>;

/// What is waited for at a gate.
struct Held {
    gate: Arc<dyn CommitGate>,
    place: Place,
    until: Instant,
    reached: Rc<ReachedFuture>,
}

/// A gate that wakes this event loop.
struct Watched {
    gate: Weak<dyn CommitGate>,
    /// By level.
    queues: [VecDeque<Held>; 3],
}

/// What wakes the event loop when a gate has moved.
#[derive(Default)]
struct Moved {
    notify: Notify,
    /// Whether anybody waits.
    is_awaited: AtomicBool,
}

/// The replies that wait.
pub(super) struct HeldReplies {
    watched: RefCell<Vec<Watched>>,
    moved: Arc<Moved>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl Default for HeldReplies {
    fn default() -> Self {
        let moved = Arc::<Moved>::default();
        let wakes = moved.clone();
        let wake = move || {
            // Either it sees that somebody waits, or who waits has not asked the gate yet.
            fence(Ordering::SeqCst);
            if wakes.is_awaited.load(Ordering::SeqCst) {
                wakes.notify.notify_one();
            }
        };
        Self { watched: RefCell::default(), moved, wake: Arc::new(wake) }
    }
}

impl HeldReplies {
    /// What a reply waits for that tells of what is behind `seen` by now, at `level`.
    pub(super) fn hold(&self, seen: &SeenGate, level: Level, only_reads: bool) -> Rc<ReachedFuture> {
        let gate = seen.gate();
        let reached = |place| Ok((place, has_reached(&**gate, level, place, only_reads)?));
        let place = match seen.awaited().and_then(reached) {
            Ok((place, false)) => place,
            Ok((_, true)) => return ReachedFuture::done(Ok(())),
            Err(refused) => return ReachedFuture::done(Err(Unanswered::Refused(refused))),
        };
        let mut watched = self.watched.borrow_mut();
        let watched = self.watch(&mut watched, gate);
        if !self.moved.is_awaited.swap(true, Ordering::SeqCst) {
            // From now on somebody waits: the task is to know until when.
            self.moved.notify.notify_one();
        }
        fence(Ordering::SeqCst);
        // It may have moved before it could wake anybody.
        match has_reached(&**gate, level, place, only_reads) {
            Ok(false) => {}
            Ok(true) => return ReachedFuture::done(Ok(())),
            Err(refused) => return ReachedFuture::done(Err(Unanswered::Refused(refused))),
        }
        let queue = &mut watched.queues[level as usize];
        match queue.back() {
            Some(last) if last.place == place => last.reached.clone(),
            _ => {
                let (gate, reached) = (gate.clone(), Rc::<ReachedFuture>::default());
                let until = Instant::now() + MAX_WAIT_FOR_COPIES;
                queue.push_back(Held { gate, place, until, reached: reached.clone() });
                reached
            }
        }
    }

    fn watch<'w>(&self, watched: &'w mut Vec<Watched>, gate: &Arc<dyn CommitGate>) -> &'w mut Watched {
        let known = Arc::downgrade(gate);
        let index = watched.iter().position(|watched| watched.gate.ptr_eq(&known)).unwrap_or_else(|| {
            // Those that have gone; what waits for one keeps it.
            watched.retain(|watched| watched.gate.strong_count() > 0);
            gate.wakes(&self.wake);
            watched.push(Watched { gate: known, queues: Default::default() });
            watched.len() - 1
        });
        &mut watched[index]
    }

    /// Lets go what may be told, for ever.
    pub(super) async fn let_go(self: Rc<Self>) {
        let mut until: Option<Instant> = None;
        loop {
            let over = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.moved.notify.notified() => {}
                () = over => {}
            }
            until = self.let_go_at(Instant::now());
        }
    }

    /// The same once. When to look again, if anybody waits.
    fn let_go_at(&self, now: Instant) -> Option<Instant> {
        let mut until: Option<Instant> = None;
        let mut watched = self.watched.borrow_mut();
        for watched in &mut *watched {
            for (queue, level) in watched.queues.iter_mut().zip([Level::One, Level::Quorum, Level::All]) {
                while let Some(first) = queue.front() {
                    let outcome = match has_reached(&*first.gate, level, first.place, false) {
                        Ok(true) => Ok(()),
                        Ok(false) if first.until <= now => Err(Unanswered::TimedOut),
                        Ok(false) => break,
                        Err(refused) => Err(Unanswered::Refused(refused)),
                    };
                    first.reached.finish(outcome);
                    queue.pop_front();
                }
                let first = queue.front().map(|first| first.until);
                until = [until, first].into_iter().flatten().min();
            }
        }
        self.moved.is_awaited.store(until.is_some(), Ordering::SeqCst);
        until.map(|until| until.min(now + ASK_AGAIN_EVERY))
    }
}

#[cfg(test)]
mod tests {
    use ecotone_keyspace::ShardSet;
    use ecotone_keyspace::gate::Refused;
    use parking_lot::Mutex;
    use tokio::runtime::Builder;
    use tokio::task::{LocalSet, spawn_local};

    use super::*;

    type Waker = Weak<dyn Fn() + Send + Sync>;

    /// What is written, up to where is answered, and what is refused.
    #[derive(Debug, Default)]
    struct State {
        written: Place,
        answerable: u64,
        refused: Option<Refused>,
    }

    #[derive(Default)]
    struct Given {
        state: Mutex<State>,
        wakers: Mutex<Vec<Waker>>,
    }

    impl std::fmt::Debug for Given {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.state.fmt(f)
        }
    }

    impl Given {
        fn change(&self, change: impl FnOnce(&mut State)) {
            change(&mut self.state.lock());
            let wakers: Vec<_> = self.wakers.lock().iter().filter_map(Weak::upgrade).collect();
            wakers.iter().for_each(|wake| wake());
        }
    }

    impl CommitGate for Given {
        fn written(&self) -> Place {
            self.state.lock().written
        }

        fn answerable(&self, _: Level) -> Result<Place, Refused> {
            let State { written, answerable, refused } = *self.state.lock();
            refused.map_or(Ok(Place { epoch: written.epoch, number: answerable }), Err)
        }

        fn takes_writes(&self) -> bool {
            true
        }

        fn level(&self) -> Level {
            Level::Quorum
        }

        fn copies_with(&self, _: Place, _: bool) -> usize {
            0
        }

        fn clock_limit_ms(&self) -> u64 {
            u64::MAX
        }

        fn wakes(&self, wake: &Arc<dyn Fn() + Send + Sync>) {
            self.wakers.lock().push(Arc::downgrade(wake));
        }
    }

    fn run(test: impl AsyncFnOnce(&HeldReplies, &Arc<Given>, &SeenGate)) {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let (held, gate) = (Rc::<HeldReplies>::default(), Arc::new(Given::default()));
            spawn_local(held.clone().let_go());
            let seen = SeenGate::of(ShardSet::ALL, &(gate.clone() as Arc<dyn CommitGate>));
            test(&held, &gate, &seen).await;
        });
    }

    #[test]
    fn each_is_let_go_when_its_place_is_reached_and_all_when_the_gate_refuses() {
        run(async |held, gate, seen| {
            assert_eq!(held.hold(seen, Level::Quorum, false).outcome().await, Ok(()), "nothing was written");
            let mut all = Vec::new();
            for number in 1..=2000 {
                gate.change(|state| state.written.number = number);
                all.push(held.hold(seen, Level::Quorum, false));
            }
            assert!(Rc::ptr_eq(&all[1999], &held.hold(seen, Level::Quorum, true)), "one entry for one place");
            gate.change(|state| state.answerable = 1000);
            for reached in &all[..1000] {
                assert_eq!(reached.outcome().await, Ok(()));
            }
            assert!(all[1000..].iter().all(|reached| !reached.is_over()));
            let refused = Err(Unanswered::Refused(Refused::NoLease));
            gate.change(|state| state.refused = Some(Refused::NoLease));
            for reached in &all[1000..] {
                assert_eq!(reached.outcome().await, refused);
            }
            assert_eq!(held.hold(seen, Level::All, false).outcome().await, refused);
            // Another epoch has nothing of this one, however much it has.
            gate.change(|state| state.refused = None);
            let last = held.hold(seen, Level::Quorum, false);
            gate.change(|state| (state.written.epoch, state.answerable) = (1, u64::MAX));
            let over = Err(Unanswered::Refused(Refused::NotPrimary));
            assert_eq!(last.outcome().await, over);
            assert_eq!(held.hold(seen, Level::Quorum, false).outcome().await, over);
            assert_eq!(gate.wakers.lock().len(), 1, "it is asked for once to wake");
        });
    }

    #[test]
    fn no_wake_is_lost_however_soon_it_comes() {
        run(async |held, gate, seen| {
            let (moved, ends) = (gate.clone(), Arc::new(AtomicBool::new(false)));
            let until = ends.clone();
            let moves = std::thread::spawn(move || {
                while !until.load(Ordering::SeqCst) {
                    let written = moved.written().number;
                    moved.change(|state| state.answerable = written);
                }
            });
            for number in 1..=5000 {
                gate.state.lock().written.number = number;
                assert_eq!(held.hold(seen, Level::Quorum, false).outcome().await, Ok(()), "{number}");
            }
            ends.store(true, Ordering::SeqCst);
            moves.join().unwrap();
        });
    }
}
