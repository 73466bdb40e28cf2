//! What an event loop's clients wait for of the device, without a thread for each.
//!
//! A request that does not find in memory what it reads is tried again when the kernel has read it.
//! Where the kernel does not offer that, or it is not to be used, or what was missed is long or too
//! much at a time (see [`AwaitedReads`]), a thread waits instead.
//!
//! Failure: when the ring fails it is logged and not used any more, and all that wait try again.
//!
//! Threads: of one event loop.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use ecotone_engine::{Arrived, AwaitedReads, MissedRead, noting_missed, with_arrived};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{Notify, oneshot};

/// Represents the reads of one client, which is notified when the last is over.
type Token = Rc<ReadCompletion>;

struct ReadCompletion {
    arrived: RefCell<Vec<Arrived>>,
    over: RefCell<Option<oneshot::Sender<Vec<Arrived>>>>,
}

impl Drop for ReadCompletion {
    fn drop(&mut self) {
        if let Some(over) = self.over.take() {
            // The client may have stopped waiting.
            let _ = over.send(self.arrived.take());
        }
    }
}

/// Reads of the device that are under way.
#[derive(Default)]
pub(super) struct Device {
    /// `None`: threads wait.
    reads: RefCell<Option<AwaitedReads<Token>>>,
    /// Can be read when some are over.
    over: Cell<Option<OwnedFd>>,
    /// Some are ready that have not begun.
    wants_submit: Notify,
}

/// Reads that one client waits for.
pub(super) struct Reading(oneshot::Receiver<Vec<Arrived>>);

impl Reading {
    /// Waits until they are over, however they end. What they brought that is not in the kernel's
    /// memory is for the next try.
    pub(super) async fn over(self) -> Vec<Arrived> {
        self.0.await.unwrap_or_default()
    }
}

impl Device {
    /// For clients of this thread's event loop.
    pub(super) fn new() -> Self {
        match AwaitedReads::new() {
            Ok((reads, over)) => {
                Self { reads: RefCell::new(Some(reads)), over: Cell::new(Some(over)), wants_submit: Notify::new() }
            }
            Err(error) => {
                tracing::info!(%error, "threads wait for the device, since the kernel gives no io_uring");
                Self::default()
            }
        }
    }

    /// Calls `run`, which finds what has `arrived` for it, and notes what it misses in memory, if
    /// it could be read here.
    pub(super) fn noting_missed<T>(&self, arrived: &mut Vec<Arrived>, run: impl FnOnce() -> T) -> (T, Vec<MissedRead>) {
        // Each note holds a descriptor.
        if self.reads.borrow().is_some() { with_arrived(arrived, || noting_missed(run)) } else { (run(), Vec::new()) }
    }

    /// Lets the kernel read `missed`. `None`: it will not, and a thread must.
    pub(super) fn read(&self, missed: Vec<MissedRead>) -> Option<Reading> {
        if missed.is_empty() {
            return None;
        }
        let (sender, over) = oneshot::channel();
        let mut reads = self.reads.borrow_mut();
        let completion = ReadCompletion { arrived: RefCell::default(), over: RefCell::new(Some(sender)) };
        let added = reads.as_mut()?.add(missed, &Rc::new(completion));
        match added {
            Ok(true) => {
                self.wants_submit.notify_one();
                Some(Reading(over))
            }
            Ok(false) => None,
            Err(error) => {
                give_up(&mut reads, &error);
                None
            }
        }
    }

    /// Begins reads, until there are none any more: those of all clients in one turn are submitted
    /// together.
    pub(super) async fn begin_reads(self: Rc<Self>) {
        loop {
            self.wants_submit.notified().await;
            // After all requests of this turn.
            tokio::task::yield_now().await;
            let mut reads = self.reads.borrow_mut();
            let Some(submitted) = reads.as_mut().map(AwaitedReads::submit) else { return };
            if let Err(error) = submitted {
                give_up(&mut reads, &error);
            }
        }
    }

    /// Ends reads as they are over, until there are none any more.
    pub(super) async fn end_reads(self: Rc<Self>) {
        let Some(over) = self.over.take() else { return };
        let error = self.end_reads_told_by(over).await;
        give_up(&mut self.reads.borrow_mut(), &error);
    }

    async fn end_reads_told_by(&self, over: OwnedFd) -> io::Error {
        let mut over = match Receiver::from_file_unchecked(over.into()) {
            Ok(over) => over,
            Err(error) => return error,
        };
        // Longer than what there is to read, so that nothing is left.
        let mut count = [0; 16];
        loop {
            let completion = over.read(&mut count).await;
            let ended = completion.and_then(|_| self.reads.borrow_mut().as_mut().map_or(Ok(()), end_some));
            if let Err(error) = ended {
                return error;
            }
        }
    }
}

fn end_some(reads: &mut AwaitedReads<Token>) -> io::Result<()> {
    reads.end_some(|completion, arrived| completion.arrived.borrow_mut().push(arrived))
}

fn give_up(reads: &mut Option<AwaitedReads<Token>>, error: &io::Error) {
    if reads.take().is_some() {
        tracing::warn!(%error, "threads wait for the device from now on, since the kernel's io_uring failed");
    }
}
