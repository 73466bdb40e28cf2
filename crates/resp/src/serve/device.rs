//! What a lane's clients wait for of the device, without a thread for each.
//!
//! A request that does not find in memory what it reads is tried again when the kernel has read it. Where the kernel does not offer that,
//! or the request needs more than a few turns of it, a thread waits instead.
//!
//! Threads: of one lane.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use ecotone_engine::{AwaitedReads, MissedRead};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;

/// Stands for the reads of one client: it is told when the last is over.
type Token = Rc<oneshot::Sender<()>>;

/// Reads of the device that are under way.
#[derive(Default)]
pub(super) struct Device {
    /// `None` where the kernel cannot, or can no more.
    reads: RefCell<Option<AwaitedReads<Token>>>,
    /// Can be read when some are over.
    over: Cell<Option<OwnedFd>>,
}

impl Device {
    /// For clients of this thread's lane.
    pub(super) fn new() -> Self {
        match AwaitedReads::new() {
            Ok((reads, over)) => Self { reads: RefCell::new(Some(reads)), over: Cell::new(Some(over)) },
            Err(error) => {
                tracing::info!(%error, "threads wait for the device, since the kernel gives no io_uring");
                Self::default()
            }
        }
    }

    /// Waits until the kernel has read `missed`. `false`: it will not, and a thread must.
    pub(super) async fn read(&self, missed: &mut Vec<MissedRead>) -> bool {
        if missed.is_empty() {
            return false;
        }
        let (sender, over) = oneshot::channel();
        let begun = {
            let mut reads = self.reads.borrow_mut();
            let begun = reads.as_mut().map_or(Ok(false), |reads| reads.begin(std::mem::take(missed), &Rc::new(sender)));
            self.unless_failed(&mut reads, begun)
        };
        if begun == Some(true) {
            // It is never sent anything; the last of its tokens is dropped.
            let _ = over.await;
        }
        begun == Some(true)
    }

    /// Ends reads as they are over, for ever.
    pub(super) async fn end_reads(self: Rc<Self>) {
        let Some(over) = self.over.take() else { return };
        let Ok(mut over) = Receiver::from_file_unchecked(over.into()) else {
            self.reads.take();
            return;
        };
        // Longer than what there is to read: so it is known that nothing is left.
        let mut count = [0; 16];
        while over.read(&mut count).await.is_ok() {
            let mut reads = self.reads.borrow_mut();
            let ended = reads.as_mut().map_or(Ok(()), AwaitedReads::end_some);
            if self.unless_failed(&mut reads, ended).is_none() || reads.is_none() {
                return;
            }
        }
    }

    /// After a failure there are none any more, and everybody who waits tries again.
    fn unless_failed<T>(&self, reads: &mut Option<AwaitedReads<Token>>, done: std::io::Result<T>) -> Option<T> {
        done.inspect_err(|error| {
            tracing::warn!(%error, "threads wait for the device from now on, since the kernel's io_uring failed");
            *reads = None;
        })
        .ok()
    }
}
