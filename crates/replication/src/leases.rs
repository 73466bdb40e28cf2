//! What servers promise each other: one heartbeat for each pair of servers, over all shards.
//!
//! Invariants: an answer never waits for a disk or a store; a promise is given only while the
//! machine of the copy allows it, and both locks are taken in the order given, machine, held.
//!
//! Threads: `ecotone-leases` sends heartbeats. Whoever receives one answers it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ecotone_control::ids::{Epoch, MemberId, ShardId};
use ecotone_replica::lease::{Given, Heartbeat, Held, LeaseTimes, Promise};
use parking_lot::Mutex;

use crate::clock::now_us;
use crate::error::{Error, Result};

/// The promises of a server.
pub(crate) struct Leases {
    pub(crate) given: Mutex<Given>,
    pub(crate) held: Mutex<Held>,
}

impl Leases {
    /// A process that starts does not know what it promised before.
    pub(crate) fn new() -> Leases {
        let times = LeaseTimes::default();
        Leases { given: Mutex::new(Given::new(times, now_us())), held: Mutex::new(Held::new(times)) }
    }

    /// Answers a heartbeat; `may` says which copies may promise.
    pub(crate) fn answer(&self, heartbeat: &Heartbeat, may: impl FnMut(ShardId, Epoch) -> bool) -> Promise {
        self.given.lock().answer(heartbeat, may, now_us())
    }

    /// Another server has promised.
    pub(crate) fn promised(&self, from: MemberId, promise: &Promise) {
        self.held.lock().promised(from, promise);
    }
}

/// Has heartbeats sent until it is dropped.
pub(crate) struct Beating {
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Beating {
    /// Calls `beat` as often as heartbeats are due, until it says that it is over.
    pub(crate) fn start(mut beat: impl FnMut() -> bool + Send + 'static) -> Result<Beating> {
        let is_stopping = Arc::new(AtomicBool::new(false));
        let stopping = is_stopping.clone();
        let every = Duration::from_micros(LeaseTimes::default().every_us);
        let thread = std::thread::Builder::new()
            .name("ecotone-leases".into())
            .spawn(move || {
                while !stopping.load(Ordering::Acquire) && beat() {
                    std::thread::park_timeout(every);
                }
            })
            .map_err(|source| Error::Thread { what: "the leases", source })?;
        Ok(Beating { is_stopping, thread: Some(thread) })
    }
}

impl Drop for Beating {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
