//! What clients ask of the federation (`FEDERATION`): how it is, and changes of it.
//!
//! The server around the protocol does it (`Host::federation`).
//! A change waits until servers have agreed on it, for seconds where nobody leads, so each request
//! has a thread of its own.
//!
//! Invariants: at most [`MAX_REQUESTS`] run, for all clients. One whose client has gone is carried
//! out all the same: a change may be on its way already.
//!
//! Failure: a request fails with what to do; whether a change that nobody answered was made is seen
//! by asking how the federation is.
//!
//! Threads: any may ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Requests that are carried out at a time. One is seldom more than a person's.
pub const MAX_REQUESTS: usize = 8;

/// What is asked of the federation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FederationRequest {
    /// How it is.
    Status,
    /// A token with which one server can join.
    Token,
    /// Shards: so many, or as many as there are servers that can hold one.
    Create {
        /// How many.
        shards: Option<u32>,
        /// How many copies each is to have, where that is said.
        copies: Option<u32>,
        /// Who must have a write before it is acknowledged, where that is said.
        level: Option<String>,
    },
    /// A server is to be emptied, or no longer is.
    Drain {
        /// Its name or number.
        server: String,
        /// Whether it is.
        drain: bool,
    },
    /// A server is gone for ever.
    Remove {
        /// Its name or number.
        server: String,
        /// Also when it has the only copy of a shard, or votes.
        force: bool,
    },
    /// What moves, and what should be moved by hand.
    Rebalance,
    /// A shard is handed over to another copy, without loss.
    SwitchOver {
        /// Its number.
        shard: u32,
        /// The name or number of the server that is to have it.
        to: String,
    },
    /// A copy is made the primary that may lack what was acknowledged.
    Promote {
        /// The number of its shard.
        shard: u32,
        /// The name or number of its server.
        to: String,
        /// Whether it is known that writes may be lost.
        force: bool,
    },
    /// The files of a shard's copies are compared, and those that differ are replaced.
    Repair {
        /// Its number.
        shard: u32,
        /// The name or number of the only server whose copy it is about.
        server: Option<String>,
        /// Else it is only asked how far that is.
        begin: bool,
    },
    /// A shard was moved by hand.
    Move {
        /// Its number.
        shard: u32,
        /// The name or number of the server that has it now.
        to: String,
    },
    /// The settings of the whole federation.
    Get {
        /// The name of the only one that is wanted.
        name: Option<String>,
    },
    /// A setting of the whole federation is changed.
    Set {
        /// Its name.
        name: String,
        /// Its value; none to have the default again.
        value: Option<String>,
    },
    /// The map, as bytes.
    Export,
}

/// Why a request did not begin.
#[derive(Debug, thiserror::Error)]
pub enum FederationError {
    /// Too many run.
    #[error("{MAX_REQUESTS} requests to the federation are under way already; try again when they are answered")]
    Busy,
    /// The server stops.
    #[error("the server stops")]
    Stops,
    /// No thread could be had.
    #[error("no thread for a request to the federation: {0}")]
    NoThread(#[from] std::io::Error),
}

/// The requests that run.
#[derive(Debug, Default)]
pub struct FederationRequests {
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Those that have not been answered; a thread ends a little later.
    running: Arc<AtomicUsize>,
    stops: AtomicBool,
}

/// An answer that is waited for.
#[derive(Debug)]
pub struct FederationAnswer(oneshot::Receiver<Result<Vec<u8>, String>>);

impl FederationAnswer {
    /// Waits for it.
    ///
    /// # Errors
    ///
    /// Why there is none, as a client is told it.
    pub async fn answered(&mut self) -> Result<Vec<u8>, String> {
        let panicked = || Err("the request to the federation has failed; the log of the server tells more".into());
        let answer = (&mut self.0).await.unwrap_or_else(|_| panicked());
        answer.map_err(|why| format!("ERR {}", why.replace(['\r', '\n'], " ")))
    }
}

/// A request that runs until this is dropped, also by a panic.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl FederationRequests {
    /// Begins to carry out a request, `work`, on a thread of its own.
    ///
    /// # Errors
    ///
    /// See [`FederationError`].
    pub fn begin(
        &self,
        work: impl FnOnce() -> Result<Vec<u8>, String> + Send + 'static,
    ) -> Result<FederationAnswer, FederationError> {
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        // Under the lock, so that a stop waits for all that have begun.
        if self.stops.load(Ordering::Acquire) {
            return Err(FederationError::Stops);
        }
        if self.running.load(Ordering::Acquire) >= MAX_REQUESTS {
            return Err(FederationError::Busy);
        }
        self.running.fetch_add(1, Ordering::AcqRel);
        let running = Running(self.running.clone());
        let (answer, awaited) = oneshot::channel();
        let thread = std::thread::Builder::new().name("federation".into()).spawn(move || {
            let answered = work();
            // Who is answered may ask again.
            drop(running);
            // Who asked may have gone.
            let _ = answer.send(answered);
        })?;
        threads.push(thread);
        Ok(FederationAnswer(awaited))
    }

    /// Begins no more, and waits for those that run: a host gives none longer than some seconds.
    pub fn finish(&self) {
        self.stops.store(true, Ordering::Release);
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // One that panicked has told so.
            let _ = thread.join();
        }
    }
}
