//! The coordinator's side: a bounded queue of requests, answered one after the other.
//!
//! The queue serialises requests that many servers send at once (ECO-KVS, section VI-B, Scheduler). A full queue, like a
//! coordinator that is not there, means: run it locally.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ecotone_policy::machine::{Command, Event, PlacementAnswer, PlacementRequest};
use tokio::sync::{mpsc, oneshot};

use crate::convert;
use crate::error::{Error, Result};
use crate::federation::Shared;
use crate::protocol::wire::coordinator_client::CoordinatorClient;
use crate::protocol::wire::{PlaceReply, PlaceRequest};
use crate::protocol::{MESSAGE_BYTES_MAX, failed_call};
use crate::steps::Step;

struct Waiting {
    request: PlacementRequest,
    answer: oneshot::Sender<PlacementAnswer>,
}

/// Entrance of the coordinator's queue.
pub(crate) struct Queue {
    sender: mpsc::Sender<Waiting>,
}

impl Queue {
    /// Creates the queue of at most `bound` requests; `serve` must run for it to move.
    pub(crate) fn new(bound: usize) -> (Queue, QueueEnd) {
        let (sender, receiver) = mpsc::channel(bound);
        (Queue { sender }, QueueEnd(receiver))
    }

    async fn ask(&self, request: PlacementRequest) -> Result<PlacementAnswer> {
        let (answer, answered) = oneshot::channel();
        self.sender
            .try_send(Waiting { request, answer })
            .map_err(|_| Error::unreachable("coordinator", "its queue is full"))?;
        answered.await.map_err(|_| Error::unreachable("coordinator", "it stopped"))
    }
}

/// Exit of the coordinator's queue.
pub(crate) struct QueueEnd(mpsc::Receiver<Waiting>);

/// Answers requests until the server stops.
pub(crate) async fn serve(shared: Arc<Shared>, mut queue: QueueEnd) {
    while let Some(Waiting { request, answer }) = queue.0.recv().await {
        shared.step(Step::Placing);
        let job = request.job;
        let owner = request.owner.clone();
        let commands = shared.decide(Event::PlacementRequested { request });
        let decision = commands.into_iter().find_map(|command| match command {
            Command::AnswerPlacement { owner: to, job: of, answer } if to == owner && of == job => Some(answer),
            _ => None,
        });
        shared.step(Step::Placed);
        if let Some(decision) = decision {
            // Whoever asked may have stopped waiting.
            let _ = answer.send(decision);
        }
    }
}

/// Serves a request that came over the network. Only a server whose reports are taken is given a place: of any other one
/// nothing is known, or its name is another's.
pub(crate) async fn place(shared: &Arc<Shared>, request: PlaceRequest) -> Result<PlaceReply> {
    let queue = shared.require_coordinator()?;
    let session = request.session;
    let request = convert::request_from_wire(&request)?;
    if !shared.heard.lock().is_accepted(&request.owner, session) {
        return Err(Error::Unauthorised(format!(
            "no report of this start of {} was taken by {}, so it is given no place; what it is told of its reports says why",
            request.owner, shared.name
        )));
    }
    let answer = queue.ask(request).await?;
    let address = match &answer {
        PlacementAnswer::Worker { worker, .. } => shared.address_of(worker),
        PlacementAnswer::Local { .. } => None,
    };
    Ok(convert::answer_to_wire(&answer, address))
}

/// Asks the coordinator, wherever it is. Blocks the calling thread for at most the placement timeout.
pub(crate) fn ask(shared: &Arc<Shared>, request: PlacementRequest) -> Result<PlacementAnswer> {
    shared.step(Step::Seeking);
    let job = request.job;
    let asked = async {
        match &shared.queue {
            Some(queue) => queue.ask(request).await,
            None => ask_remote(shared, request).await,
        }
    };
    shared
        .runtime
        .block_on(async { tokio::time::timeout(shared.placement_timeout(), asked).await })
        .map_err(|_| Error::unreachable("coordinator", format!("no answer for job {job} in time")))?
}

async fn ask_remote(shared: &Arc<Shared>, request: PlacementRequest) -> Result<PlacementAnswer> {
    let address = shared.coordinator_address();
    let unavailable = |why| Error::unreachable(format!("coordinator {address}"), why);
    // Its refusal is told, and logged, by the reports.
    if !shared.is_accepted.load(Ordering::Acquire) {
        return Err(unavailable("it has not taken the last report of this server"));
    }
    // Only the reports connect: a coordinator that is away costs a compaction no time.
    let channel = shared.connections.if_open(&address).ok_or_else(|| unavailable("not connected"))?;
    // The lock must not be held while the answer is awaited: the reports take it on the run time's threads.
    let session = shared.unreported.lock().session();
    let reply = CoordinatorClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .place(convert::request_to_wire(&request, session))
        .await
        .map_err(|status| failed_call(format!("coordinator {address}"), &status))?
        .into_inner();
    let answer = convert::answer_from_wire(&reply)?;
    if let PlacementAnswer::Worker { worker, .. } = &answer
        && !shared.learn_address(worker, &reply.worker_address)
    {
        return Err(unavailable("it names more workers than max_servers, or one without an address"));
    }
    Ok(answer)
}
