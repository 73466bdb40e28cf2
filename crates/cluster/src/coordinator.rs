//! The coordinator's side: requests are answered one after the other. And how an owner asks it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ecotone_policy::machine::{Command, Event, PlacementAnswer, PlacementRequest};
use ecotone_transport::Error as TransportError;
use ecotone_transport::protocol::{MAX_MESSAGE_BYTES, failed_call};
use ecotone_transport::wire::coordinator_client::CoordinatorClient;
use ecotone_transport::wire::{PlaceReply, PlaceRequest};

use crate::convert;
use crate::error::{Error, Result};
use crate::member::{Coordinator, Member};
use crate::placement_queue::{PlacementQueueEnd, WaitingRequest};
use crate::steps::Step;

/// Answers requests until the server stops.
pub(crate) async fn serve(member: Arc<Member>, mut queue: PlacementQueueEnd) {
    while let Some(WaitingRequest { request, answer }) = queue.next().await {
        member.step(Step::Placing);
        let job = request.job;
        let owner = request.owner.clone();
        let commands = member.decide(Event::PlacementRequested { request });
        let decision = commands.into_iter().find_map(|command| match command {
            Command::AnswerPlacement { owner: to, job: of, answer } if to == owner && of == job => Some(answer),
            _ => None,
        });
        member.step(Step::Placed);
        if let Some(decision) = decision {
            // Whoever asked may have stopped waiting.
            let _ = answer.send(decision);
        }
    }
}

/// Serves a request that came over the network. Only a server whose reports are taken is given a
/// place: of any other one nothing is registered, or its name is another's.
pub(crate) async fn place(member: &Arc<Member>, request: PlaceRequest) -> Result<PlaceReply> {
    let queue = member.require_coordinator()?;
    let session = request.session;
    let request = convert::request_from_wire(&request)?;
    if !member.registry.lock().is_accepted(&request.owner, session) {
        return Err(TransportError::Unauthorised(format!(
            "no report of this start of {} was taken by {}, so its jobs are not placed; the answers to its reports say why",
            request.owner, member.name
        ))
        .into());
    }
    let answer = queue.ask(request).await?;
    let address = match &answer {
        PlacementAnswer::Worker { worker, .. } => member.address_of(worker),
        PlacementAnswer::Local { .. } => None,
    };
    Ok(convert::answer_to_wire(&answer, address))
}

/// Asks the coordinator, wherever it is. Blocks the calling thread for at most the placement
/// timeout.
pub(crate) fn ask(member: &Arc<Member>, request: PlacementRequest) -> Result<PlacementAnswer> {
    member.step(Step::Seeking);
    let job = request.job;
    let asked = async {
        match member.coordinator() {
            Coordinator::Here => member.queue.ask(request).await,
            Coordinator::At(address) => ask_remote(member, &address, request).await,
            Coordinator::Unknown => Err(Error::unreachable("coordinator", "nobody leads the federation now")),
        }
    };
    member
        .runtime
        .block_on(async { tokio::time::timeout(member.placement_timeout(), asked).await })
        .map_err(|_| Error::unreachable("coordinator", format!("no answer for job {job} in time")))?
}

async fn ask_remote(member: &Arc<Member>, address: &str, request: PlacementRequest) -> Result<PlacementAnswer> {
    let unavailable = |why| Error::unreachable(format!("coordinator {address}"), why);
    // The reports log its refusal.
    if !member.is_accepted.load(Ordering::Acquire) {
        return Err(unavailable("it has not taken the last report of this server"));
    }
    // Only the reports connect: a coordinator that is away costs a compaction no time.
    let channel = member.connections.if_open(address).ok_or_else(|| unavailable("not connected"))?;
    // The lock must not be held while the answer is awaited: the reports take it on the run time's
    // threads.
    let session = member.unreported.lock().session();
    let reply = CoordinatorClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .place(convert::request_to_wire(&request, session))
        .await
        .map_err(|status| failed_call(format!("coordinator {address}"), &status))?
        .into_inner();
    let answer = convert::answer_from_wire(&reply)?;
    if let PlacementAnswer::Worker { worker, .. } = &answer
        && !member.learn_address(worker, &reply.worker_address)
    {
        return Err(unavailable("it names more workers than max_servers, or one without an address"));
    }
    Ok(answer)
}
