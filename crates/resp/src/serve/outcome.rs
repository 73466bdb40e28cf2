//! What many clients of an event loop wait for, and how it ended.
//!
//! Threads: of one event loop.

use std::cell::OnceCell;
use std::rc::Rc;

use tokio::sync::Notify;

/// Stands for what many clients wait for, until it is over.
pub(super) struct OutcomeFuture<E> {
    outcome: OnceCell<Result<(), E>>,
    done: Notify,
}

impl<E> Default for OutcomeFuture<E> {
    fn default() -> Self {
        Self { outcome: OnceCell::new(), done: Notify::new() }
    }
}

impl<E: Clone> OutcomeFuture<E> {
    /// One that is over.
    pub(super) fn done(outcome: Result<(), E>) -> Rc<Self> {
        let done = Self::default();
        done.finish(outcome);
        Rc::new(done)
    }

    /// It is over.
    pub(super) fn finish(&self, outcome: Result<(), E>) {
        let _ = self.outcome.set(outcome);
        self.done.notify_waiters();
    }

    /// Whether it is over.
    #[cfg(test)]
    pub(super) fn is_over(&self) -> bool {
        self.outcome.get().is_some()
    }

    /// Waits until it is over.
    pub(super) async fn outcome(&self) -> Result<(), E> {
        loop {
            if let Some(outcome) = self.outcome.get() {
                return outcome.clone();
            }
            self.done.notified().await;
        }
    }
}
