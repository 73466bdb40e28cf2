//! Detection of a thread that no longer serves: one of its background tasks has panicked, or it
//! hangs.
//!
//! Failure: a background task that panics (one that accepts connections, or commits) would remain
//! unnoticed until no client was let in or answered any more. So the thread ends with it, and its
//! starter is notified.
//!
//! Threads: [`BackgroundTasks`] belong to one; of a [`Heartbeat`] one beats, and any may read it.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

/// Tasks that go on until the server stops. They are ended when this is dropped.
#[derive(Debug, Default)]
pub(super) struct BackgroundTasks(JoinSet<()>);

impl BackgroundTasks {
    /// Begins one. Belongs to a runtime of one thread.
    pub(super) fn begin(&mut self, task: impl Future<Output = ()> + 'static) {
        self.0.spawn_local(task);
    }

    /// Never returns: panics as soon as one of them has panicked. Those that have ended otherwise
    /// are not missed.
    pub(super) async fn watch(&mut self) -> Infallible {
        loop {
            match self.0.join_next().await {
                Some(Ok(())) => {}
                Some(Err(panicked)) => std::panic::resume_unwind(panicked.into_panic()),
                None => std::future::pending().await,
            }
        }
    }
}

/// Between two beats of an event loop.
pub(super) const BEAT: Duration = Duration::from_secs(1);

/// When a thread last gave a sign of life.
#[derive(Debug)]
pub struct Heartbeat {
    base: Instant,
    /// Milliseconds from `base` to the last beat.
    beat_ms: AtomicU64,
}

impl Default for Heartbeat {
    /// Beats now for the first time.
    fn default() -> Self {
        Self { base: Instant::now(), beat_ms: AtomicU64::new(0) }
    }
}

impl Heartbeat {
    /// The thread lives at `now`.
    pub fn beat(&self, now: Instant) {
        self.beat_ms.store(now.saturating_duration_since(self.base).as_millis() as u64, Ordering::Relaxed);
    }

    /// From the last beat to `now`.
    pub fn silent_for(&self, now: Instant) -> Duration {
        let beat = Duration::from_millis(self.beat_ms.load(Ordering::Relaxed));
        now.saturating_duration_since(self.base).saturating_sub(beat)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test fails where it is surprised

    use std::panic::{AssertUnwindSafe, catch_unwind};

    use tokio::runtime::Builder;
    use tokio::task::{LocalSet, yield_now};

    use super::*;

    fn watches(tasks: impl FnOnce(&mut BackgroundTasks)) -> bool {
        let runtime = Builder::new_current_thread().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let mut background = BackgroundTasks::default();
            tasks(&mut background);
            let watched = async {
                for _ in 0..100 {
                    yield_now().await;
                }
            };
            tokio::select! {
                biased;
                never = background.watch() => match never {},
                () = watched => true,
            }
        })
    }

    #[test]
    fn the_thread_ends_with_one_that_panics_and_with_no_other() {
        assert!(watches(|background| {
            background.begin(async {});
            background.begin(std::future::pending());
        }));
        assert!(watches(|_| {}));
        let panics = || {
            watches(|background| {
                background.begin(std::future::pending());
                background.begin(async {});
                background.begin(async {
                    yield_now().await;
                    panic!("as a test asks");
                });
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    }
}
