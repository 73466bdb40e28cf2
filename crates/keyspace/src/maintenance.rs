//! Background work of a keyspace: reclaims collections, rewrites those that are read slowly,
//! refreshes the key count, and persists the clock.
//!
//! Failure: what failed is tried again the next time; the first of a row of failures is logged. A
//! panic is reported to whoever started the threads: none of this would be done any more.
//!
//! At the end the clock is persisted once more, unless that would block.
//!
//! Threads: two of its own, one of them for [`crate::rewrite`], from the start to the drop; longer
//! only where they wait for the store then.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::clock::CLOCK_PERSIST_INTERVAL;
use crate::error::Blocking;
use crate::keyspace::Keyspace;

/// Time between two rounds.
const INTERVAL: Duration = Duration::from_secs(1);

/// The same as rounds in a second.
pub const MAINTENANCE_HZ: u64 = 1000 / INTERVAL.as_millis() as u64;

/// Collections that are reclaimed in one round.
const MAX_RECLAIMED_PER_ROUND: usize = 1000;

/// Time between two readings of the whole ledger.
const LEDGER_READ_INTERVAL: Duration = Duration::from_secs(3600);

/// The thread may wait for a latch whose holder waits for the store, and the store may have no room
/// for long: nobody waits longer for it to end.
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// Works until it is dropped.
#[derive(Debug)]
pub struct Maintenance {
    keyspace: Arc<Keyspace>,
    stopping: Arc<Stopping>,
    threads: Vec<JoinHandle<()>>,
    /// Says nothing, and is closed when all threads have ended.
    ended: Mutex<Receiver<()>>,
}

#[derive(Debug, Default)]
struct Stopping {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Stopping {
    /// Waits for `time`, or until it is set: whether it is.
    fn within(&self, time: Duration) -> bool {
        let mut is_set = self.is_set.lock();
        if !*is_set {
            self.changed.wait_for(&mut is_set, time);
        }
        *is_set
    }
}

impl Maintenance {
    /// Begins. `ending`, and its clone, are dropped on the threads when they end.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub fn of(keyspace: Arc<Keyspace>, ending: impl Clone + Send + 'static) -> std::io::Result<Self> {
        let stopping = Arc::new(Stopping::default());
        let (rewriting, inside, of_all) = (keyspace.clone(), stopping.clone(), keyspace.clone());
        let work = move || {
            let mut persisted = Instant::now();
            let mut read_ledger: Option<Instant> = None;
            let mut has_failed = false;
            let mut queued_before = 0;
            while !inside.within(INTERVAL) {
                let goes_on = || !*inside.is_set.lock();
                // None in the first round.
                let mut outcome =
                    keyspace.reclaim_collections(queued_before.min(MAX_RECLAIMED_PER_ROUND), goes_on).map(drop);
                queued_before = keyspace.reclaimable_collections();
                let is_due = read_ledger.is_none_or(|at| at.elapsed() >= LEDGER_READ_INTERVAL);
                if outcome.is_ok() && is_due && queued_before < MAX_RECLAIMED_PER_ROUND {
                    // Where more were found than are remembered, again once they have been
                    // reclaimed.
                    outcome =
                        keyspace.find_reclaimable(goes_on).map(|is_whole| read_ledger = is_whole.then(Instant::now));
                }
                if outcome.is_ok() && persisted.elapsed() >= CLOCK_PERSIST_INTERVAL {
                    persisted = Instant::now();
                    outcome = keyspace.persist_clock(Blocking::Allowed);
                }
                if let Err(error) = keyspace.refresh_key_count_if_due(goes_on) {
                    // Who asks for the number is told.
                    tracing::debug!(%error, "the keys cannot be counted; it is tried again");
                }
                match outcome {
                    Ok(()) => has_failed = false,
                    Err(error) if !std::mem::replace(&mut has_failed, true) => {
                        tracing::warn!(%error, "what deleted collections left cannot be removed; it is tried again");
                    }
                    Err(_) => {}
                }
            }
            // A device without a battery for its clock that is restarted in good order is not to
            // bring back what was gone.
            if let Err(error) = keyspace.persist_clock(Blocking::Never) {
                tracing::warn!(%error, "the time is not noted; keys whose time was over may come back if the system's clock is set back before the next start");
            }
        };
        let (ends, ended) = std::sync::mpsc::channel();
        let mut maintenance = Self { keyspace: of_all, stopping, threads: Vec::new(), ended: Mutex::new(ended) };
        let (ending_rewrite, rewrite_ends) = (ending.clone(), ends.clone());
        maintenance.start("ecotone-keyspace", work, ending, ends)?;
        maintenance.start(
            "ecotone-rewrite",
            move || rewriting.rewrite_slow_collections(),
            ending_rewrite,
            rewrite_ends,
        )?;
        Ok(maintenance)
    }
}

impl Maintenance {
    fn start(
        &mut self,
        name: &str,
        work: impl FnOnce() + Send + 'static,
        ending: impl Send + 'static,
        ends: Sender<()>,
    ) -> std::io::Result<()> {
        let work = move || {
            // Whatever ends it drops these, the last one first.
            let _ending = ending;
            let _ends = ends;
            work();
        };
        self.threads.push(std::thread::Builder::new().name(name.into()).spawn(work)?);
        Ok(())
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        *self.stopping.is_set.lock() = true;
        self.stopping.changed.notify_all();
        self.keyspace.slow_reads.stop();
        if self.ended.get_mut().recv_timeout(STOP_WITHIN) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("a thread of the keyspace still waits for the store, and is left behind");
            return;
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the keyspace panicked");
            }
        }
    }
}
