//! What a keyspace does beside its clients: reclaims orphans, makes collections anew that are read slowly, counts keys, and writes down what time it is.
//!
//! Failure: what could not be done is tried again the next time; the first of a row of failures is logged. Who starts it is told of a panic: nothing of this
//! would be done any more.
//!
//! At the end the time is written down once more, unless that would have to wait.
//!
//! Threads: two of its own, one of them for [`super::renewal`], from the start to the drop; longer only where they wait for the store then.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{Keyspace, NOTED_EVERY, Waiting};

/// Time between two looks.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// The same as looks in a second.
pub const UPKEEP_HZ: u64 = 1000 / LOOKS_EVERY.as_millis() as u64;

/// Orphans that are reclaimed in one look.
const MAX_IN_A_LOOK: usize = 1000;

/// Time between two readings of the whole ledger.
const READS_LEDGER_EVERY: Duration = Duration::from_secs(3600);

/// The thread may wait for a latch whose holder waits for the store, and the store may have no room for long: nobody waits longer for it
/// to end.
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// Works until it is dropped.
#[derive(Debug)]
pub struct Upkeep {
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

impl Upkeep {
    /// Begins. `ending`, and its clone, are dropped on the threads when they end.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub fn of(keyspace: Arc<Keyspace>, ending: impl Clone + Send + 'static) -> std::io::Result<Self> {
        let stopping = Arc::new(Stopping::default());
        let (renewing, inside, of_all) = (keyspace.clone(), stopping.clone(), keyspace.clone());
        let work = move || {
            let mut noted = Instant::now();
            let mut read_ledger: Option<Instant> = None;
            let mut has_failed = false;
            let mut known_before = 0;
            while !inside.within(LOOKS_EVERY) {
                let goes_on = || !*inside.is_set.lock();
                // None before the second look.
                let mut outcome = keyspace.reclaim_known(known_before.min(MAX_IN_A_LOOK), goes_on).map(drop);
                known_before = keyspace.known_orphans();
                let is_due = read_ledger.is_none_or(|at| at.elapsed() >= READS_LEDGER_EVERY);
                if outcome.is_ok() && is_due && known_before < MAX_IN_A_LOOK {
                    // Where more were found than are remembered, again once they have been reclaimed.
                    outcome = keyspace.find_orphans(goes_on).map(|is_whole| read_ledger = is_whole.then(Instant::now));
                }
                if outcome.is_ok() && noted.elapsed() >= NOTED_EVERY {
                    noted = Instant::now();
                    outcome = keyspace.note_time(Waiting::Allowed);
                }
                if let Err(error) = keyspace.count_if_due(goes_on) {
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
            // A device without a battery for its clock that is restarted in good order is not to bring back what was gone.
            if let Err(error) = keyspace.note_time(Waiting::Never) {
                tracing::warn!(%error, "the time is not noted; keys whose time was over may come back if the system's clock is set back before the next start");
            }
        };
        let (ends, ended) = std::sync::mpsc::channel();
        let mut upkeep = Self { keyspace: of_all, stopping, threads: Vec::new(), ended: Mutex::new(ended) };
        let (of_renewal, renewal_ends) = (ending.clone(), ends.clone());
        upkeep.start("ecotone-keyspace", work, ending, ends)?;
        upkeep.start("ecotone-renewal", move || renewing.renew_slow(), of_renewal, renewal_ends)?;
        Ok(upkeep)
    }
}

impl Upkeep {
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

impl Drop for Upkeep {
    fn drop(&mut self) {
        *self.stopping.is_set.lock() = true;
        self.stopping.changed.notify_all();
        self.keyspace.slow.stop();
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
