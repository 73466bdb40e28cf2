//! Syncs the WAL in the background for [`Durability::EverySecond`](crate::Durability::EverySecond).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::{Error, Result};

/// The longest time between a write with [`Durability::EverySecond`](crate::Durability::EverySecond) and the begin of the
/// sync that makes it durable.
pub const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// What became of a sync that has not failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Synced {
    /// All is durable.
    Now,
    /// It must be tried again: nothing can be synced while the disk is full, and nothing is written either.
    Later,
}

/// The thread that syncs, and what writers and it tell each other.
pub(crate) struct WalSync {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// A write since the last sync wants one.
    wanted: AtomicBool,
    /// The first sync that failed. Never cleared: the kernel may have dropped the bytes it could not write, and later
    /// syncs would then say success for nothing.
    failed: AtomicBool,
    failure: Mutex<Option<String>>,
    stop: Mutex<bool>,
    stopped: Condvar,
}

impl WalSync {
    /// Starts the thread; `sync` makes all of the WAL durable.
    pub(crate) fn start(
        sync: impl Fn() -> std::result::Result<Synced, String> + Send + 'static,
        on_failure: impl Fn(&str) + Send + 'static,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("ecotone-wal-sync".into())
            .spawn(move || of_thread.run(&sync, &on_failure))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Says that a write wants to be durable within [`SYNC_INTERVAL`].
    #[inline]
    pub(crate) fn want(&self) {
        // Read first: the line then stays shared between the cores of all writers.
        if !self.shared.wanted.load(Ordering::Relaxed) {
            self.shared.wanted.store(true, Ordering::Release);
        }
    }

    /// The error of the first sync that failed.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.shared.failed.load(Ordering::Relaxed) { Err(self.failure()) } else { Ok(()) }
    }

    #[cold]
    fn failure(&self) -> Error {
        let detail = self.shared.failure.lock().clone().unwrap_or_default();
        Error::Background { detail: format!("the WAL could not be synced: {detail}") }
    }

    /// Ends the thread. Writes since its last sync are for the caller to sync.
    pub(crate) fn stop(&mut self) {
        *self.shared.stop.lock() = true;
        self.shared.stopped.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread's closures do not panic; if one did, the join says so and there is nothing left to do.
            let _ = thread.join();
        }
    }
}

impl Drop for WalSync {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn run(&self, sync: &dyn Fn() -> std::result::Result<Synced, String>, on_failure: &dyn Fn(&str)) {
        let mut stop = self.stop.lock();
        while !*stop {
            self.stopped.wait_for(&mut stop, SYNC_INTERVAL);
            if *stop || !self.wanted.swap(false, Ordering::AcqRel) {
                continue;
            }
            let outcome = parking_lot::MutexGuard::unlocked(&mut stop, sync);
            if outcome == Ok(Synced::Later) {
                self.wanted.store(true, Ordering::Release);
            }
            if let Err(reason) = outcome
                && !self.failed.load(Ordering::Acquire)
            {
                *self.failure.lock() = Some(reason.clone());
                self.failed.store(true, Ordering::Release);
                on_failure(&reason);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_failed_sync_is_told_once_and_fails_every_later_write() {
        let (told, heard) = mpsc::channel();
        let sync = WalSync::start(|| Err("disk on fire".into()), move |reason| told.send(reason.to_owned()).unwrap());
        let sync = sync.unwrap();
        sync.check().unwrap();
        sync.want();
        assert_eq!(heard.recv_timeout(10 * SYNC_INTERVAL).unwrap(), "disk on fire");
        for _ in 0..2 {
            match sync.check() {
                Err(Error::Background { detail }) => assert!(detail.contains("disk on fire")),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn syncs_when_a_write_wants_it_and_only_then() {
        let (told, heard) = mpsc::channel();
        let mut sync =
            WalSync::start(move || told.send(()).map(|()| Synced::Now).map_err(|e| e.to_string()), |_| ()).unwrap();
        sync.want();
        heard.recv_timeout(20 * SYNC_INTERVAL).unwrap();
        assert!(heard.recv_timeout(2 * SYNC_INTERVAL).is_err(), "no further write wanted a sync");
        sync.stop();
    }

    #[test]
    fn what_cannot_be_synced_for_want_of_space_is_tried_again() {
        let (told, heard) = mpsc::channel();
        let sync = move || {
            told.send(()).unwrap();
            Ok(Synced::Later)
        };
        let sync = WalSync::start(sync, |reason| panic!("{reason}")).unwrap();
        sync.want();
        for _ in 0..2 {
            heard.recv_timeout(20 * SYNC_INTERVAL).unwrap();
        }
        sync.check().unwrap();
    }
}
