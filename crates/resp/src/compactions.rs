//! Compactions of everything that clients ask for (`COMPACT`).
//!
//! Invariants: at most one runs. One whose client waits for it ends, between two pieces, when that
//! client goes; one in the background ends when it is done or told to.
//!
//! Failure: what was compacted before one failed or was ended stays so.
//!
//! Threads: any may ask. The compaction has a thread of its own, which ends with it, so that no
//! thread that serves clients waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ecotone_engine::{CompactionProgress, CompactionStage, Error as StoreError};
use parking_lot::Mutex;
use tokio::sync::watch;

use ecotone_keyspace::Keyspace;

/// The compactions of a server's stores.
#[derive(Debug, Default)]
pub struct Compactions {
    last: Mutex<Option<Arc<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// One compaction, until another one begins.
#[derive(Debug)]
struct Job {
    began: Instant,
    is_cancelled: AtomicBool,
    progress: Mutex<CompactionProgress>,
    ended: watch::Sender<Option<Ended>>,
}

/// How one has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ended {
    took: Duration,
    outcome: Result<(), String>,
}

/// What is known of the compaction that runs, or ran last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompactionStatus {
    /// Whether it runs.
    pub runs: bool,
    /// For how long it has run.
    pub took: Duration,
    /// How far it is.
    pub progress: CompactionProgress,
    /// Why it has failed, if it has.
    pub failure: Option<String>,
}

/// Why none begins.
#[derive(Debug, thiserror::Error)]
pub enum CompactionError {
    /// One runs.
    #[error("A compaction is in progress already")]
    Running,
    /// No thread could be had.
    #[error("The compaction could not be started: {0}")]
    NoThread(#[from] std::io::Error),
}

/// Waits for a compaction; it ends when this is dropped.
#[derive(Debug)]
pub struct Following {
    job: Arc<Job>,
    ended: watch::Receiver<Option<Ended>>,
}

impl Following {
    /// Waits until it has ended.
    ///
    /// # Errors
    ///
    /// Why not all was compacted, as a client is told it.
    pub async fn over(&mut self) -> Result<(), String> {
        match self.ended.wait_for(Option::is_some).await {
            Ok(ended) => ended.as_ref().map_or(Ok(()), |ended| ended.outcome.clone()),
            Err(_) => Err(PANICKED.into()),
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.job.is_cancelled.store(true, Ordering::Relaxed);
    }
}

/// What is told of one that was ended.
const ENDED: &str = "ERR the compaction was ended before all was done; what was compacted stays so";

/// What is told of one whose thread has panicked.
const PANICKED: &str = "ERR the compaction has failed; the log of the server tells more";

impl Compactions {
    /// Begins one that ends when what this returns is dropped.
    ///
    /// # Errors
    ///
    /// See [`CompactionError`].
    pub fn follow(&self, keyspace: &Arc<Keyspace>) -> Result<Following, CompactionError> {
        let job = self.begin(keyspace)?;
        let ended = job.ended.subscribe();
        Ok(Following { job, ended })
    }

    /// Begins one in the background.
    ///
    /// # Errors
    ///
    /// See [`CompactionError`].
    pub fn begin_in_background(&self, keyspace: &Arc<Keyspace>) -> Result<(), CompactionError> {
        self.begin(keyspace).map(drop)
    }

    fn begin(&self, keyspace: &Arc<Keyspace>) -> Result<Arc<Job>, CompactionError> {
        let mut last = self.last.lock();
        if last.as_ref().is_some_and(|job| job.runs()) {
            return Err(CompactionError::Running);
        }
        let job = Arc::new(Job {
            began: Instant::now(),
            is_cancelled: AtomicBool::new(false),
            progress: Mutex::default(),
            ended: watch::Sender::new(None),
        });
        let (inside, keyspace) = (Running(job.clone()), keyspace.clone());
        let thread = std::thread::Builder::new().name("compact".into()).spawn(move || inside.run(&keyspace))?;
        // The thread before it has ended, or is about to: there is only one at a time.
        *self.thread.lock() = Some(thread);
        *last = Some(job.clone());
        Ok(job)
    }

    /// Ends the one that runs, between two pieces. Whether one does.
    pub fn end(&self) -> bool {
        let last = self.last.lock();
        let Some(job) = last.as_ref().filter(|job| job.runs()) else { return false };
        job.is_cancelled.store(true, Ordering::Relaxed);
        true
    }

    /// What is known of the one that runs, or ran last; `None` where none ever did.
    pub fn status(&self) -> Option<CompactionStatus> {
        let job = self.last.lock().clone()?;
        let ended = job.ended.borrow().clone();
        Some(CompactionStatus {
            runs: ended.is_none(),
            took: ended.as_ref().map_or_else(|| job.began.elapsed(), |ended| ended.took),
            progress: *job.progress.lock(),
            failure: ended.and_then(|ended| ended.outcome.err()),
        })
    }

    /// Ends the one that runs, and waits for it: before the store is closed.
    pub fn finish(&self) {
        self.end();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // One that panicked has told so.
            let _ = thread.join();
        }
    }
}

impl Job {
    fn runs(&self) -> bool {
        self.ended.borrow().is_none()
    }

    fn end(&self, outcome: Result<(), String>) {
        let ended = Ended { took: self.began.elapsed(), outcome };
        self.ended.send_if_modified(|now| {
            let is_first = now.is_none();
            if is_first {
                *now = Some(ended);
            }
            is_first
        });
    }
}

/// A compaction that runs until this is dropped, also by a panic.
struct Running(Arc<Job>);

impl Running {
    fn run(self, keyspace: &Keyspace) {
        let job = &self.0;
        // One store after the other: side by side they would take the device from clients.
        let mut done = CompactionProgress { stage: CompactionStage::Done, ..CompactionProgress::default() };
        let mut outcome = Ok(());
        for store in keyspace.stores() {
            let mut goes_on = |progress: &CompactionProgress| {
                *job.progress.lock() = beside(&done, progress);
                !job.is_cancelled.load(Ordering::Relaxed) && keyspace.has_store(&store)
            };
            let compacted = store.compact_all(&mut goes_on);
            if !keyspace.has_store(&store) {
                // It is served here no more, and what there is to do is another server's.
                continue;
            }
            match compacted {
                Ok(progress) => done = beside(&done, &progress),
                Err(error) => {
                    tracing::warn!(%error, "a compaction that was asked for has failed");
                    outcome = Err(told(&error));
                    break;
                }
            }
            if done.stage != CompactionStage::Done {
                outcome = Err(ENDED.to_owned());
                break;
            }
        }
        if outcome.is_ok() || done.stage == CompactionStage::Ended {
            *job.progress.lock() = done;
        }
        job.end(outcome);
    }
}

/// How far the compaction of a store is, with what was done of others before.
fn beside(done: &CompactionProgress, now: &CompactionProgress) -> CompactionProgress {
    CompactionProgress {
        stage: now.stage,
        pieces: done.pieces + now.pieces,
        pieces_done: done.pieces_done + now.pieces_done,
        bytes_before: done.bytes_before + now.bytes_before,
        bytes: done.bytes + now.bytes,
    }
}

/// An error in one line, as a client is told it.
fn told(error: &StoreError) -> String {
    format!("ERR {}", error.to_string().replace(['\r', '\n'], " "))
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.end(Err(PANICKED.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_panics_is_over_and_failed() {
        let ended = watch::Sender::new(None);
        let job = Arc::new(Job {
            began: Instant::now(),
            is_cancelled: AtomicBool::new(false),
            progress: Mutex::default(),
            ended,
        });
        let compactions = Compactions { last: Mutex::new(Some(job.clone())), ..Compactions::default() };
        assert!(compactions.status().unwrap().runs && compactions.end());
        let running = Running(job);
        let panicked = std::thread::spawn(move || {
            let _running = running;
            panic!("as a test asks");
        });
        assert!(panicked.join().is_err());
        let status = compactions.status().unwrap();
        assert!(!status.runs && status.failure.as_deref() == Some(PANICKED) && !compactions.end(), "{status:?}");
    }
}
