//! The coordinator's bounded queue of requests.
//!
//! It serialises requests that many servers send at once (ECO-KVS, section VI-B, Scheduler). A full
//! queue, like a coordinator that is not there, means: run it locally.

use ecotone_policy::machine::{PlacementAnswer, PlacementRequest};
use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, Result};

/// A request, and where its answer goes.
pub(crate) struct WaitingRequest {
    pub(crate) request: PlacementRequest,
    pub(crate) answer: oneshot::Sender<PlacementAnswer>,
}

/// Entrance of the coordinator's queue.
pub(crate) struct PlacementQueue {
    sender: mpsc::Sender<WaitingRequest>,
}

impl PlacementQueue {
    /// Creates the queue of at most `bound` requests; its end must be served for it to move.
    pub(crate) fn new(bound: usize) -> (PlacementQueue, PlacementQueueEnd) {
        let (sender, receiver) = mpsc::channel(bound);
        (PlacementQueue { sender }, PlacementQueueEnd(receiver))
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// [`Error::Transport`] when the queue is full or the server stops.
    pub(crate) async fn ask(&self, request: PlacementRequest) -> Result<PlacementAnswer> {
        let (answer, answered) = oneshot::channel();
        self.sender
            .try_send(WaitingRequest { request, answer })
            .map_err(|_| Error::unreachable("coordinator", "its queue is full"))?;
        answered.await.map_err(|_| Error::unreachable("coordinator", "it stopped"))
    }
}

/// Exit of the coordinator's queue.
pub(crate) struct PlacementQueueEnd(mpsc::Receiver<WaitingRequest>);

impl PlacementQueueEnd {
    /// The next request; `None` when the server stops.
    pub(crate) async fn next(&mut self) -> Option<WaitingRequest> {
        self.0.recv().await
    }
}
