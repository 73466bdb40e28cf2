//! What a thread does for all clients for as long as the server runs: it takes connections, commits, gives signs of life.
//!
//! Failure: one of these that panics would be missed by nobody until no client was let in or answered any more. So the thread ends with it, and
//! whoever started the thread is told.
//!
//! Threads: of one.

use std::convert::Infallible;

use tokio::task::JoinSet;

/// Tasks that go on until the server stops. They are ended when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Lasting(JoinSet<()>);

impl Lasting {
    /// Begins one. Belongs to a runtime of one thread.
    pub(super) fn begin(&mut self, task: impl Future<Output = ()> + 'static) {
        self.0.spawn_local(task);
    }

    /// Never returns: panics as soon as one of them has panicked. Those that have ended otherwise are not missed.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test fails where it is surprised

    use std::panic::{AssertUnwindSafe, catch_unwind};

    use tokio::runtime::Builder;
    use tokio::task::{LocalSet, yield_now};

    use super::*;

    fn watches(tasks: impl FnOnce(&mut Lasting)) -> bool {
        let runtime = Builder::new_current_thread().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let mut lasting = Lasting::default();
            tasks(&mut lasting);
            let watched = async {
                for _ in 0..100 {
                    yield_now().await;
                }
            };
            tokio::select! {
                biased;
                never = lasting.watch() => match never {},
                () = watched => true,
            }
        })
    }

    #[test]
    fn the_thread_ends_with_one_that_panics_and_with_no_other() {
        assert!(watches(|lasting| {
            lasting.begin(async {});
            lasting.begin(std::future::pending());
        }));
        assert!(watches(|_| {}));
        let panics = || {
            watches(|lasting| {
                lasting.begin(std::future::pending());
                lasting.begin(async {});
                lasting.begin(async {
                    yield_now().await;
                    panic!("as a test asks");
                });
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    }
}
