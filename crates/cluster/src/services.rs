//! The gRPC services of one server.

use std::pin::Pin;
use std::sync::Arc;

use ecotone_transport::Error as TransportError;
use ecotone_transport::listener::Caller;
use ecotone_transport::peers::Call;
use ecotone_transport::protocol::{MAX_MESSAGE_BYTES, PROTOCOL_VERSION};
use ecotone_transport::wire::coordinator_server::Coordinator;
use ecotone_transport::wire::peer_server::Peer;
use ecotone_transport::wire::worker_server::Worker;
use ecotone_transport::wire::{
    HelloReply, HelloRequest, JobEvent, JobOffer, PlaceReply, PlaceRequest, ProbeReply, ProbeRequest, ReleaseReply,
    ReleaseRequest, ReportReply, ReportRequest,
};
use ecotone_types::ServerId;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};
use tracing::warn;

use crate::coordinator;
use crate::error::Error;
use crate::member::Member;
use crate::reports;
use crate::steps::Step;
use crate::worker;

/// All services; cheap to clone, as tonic wants it.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) member: Arc<Member>,
}

fn status(error: Error) -> Status {
    match error {
        Error::Transport(TransportError::Unauthorised(_)) => Status::permission_denied(error.to_string()),
        // Of the caller, that is: the coordinator refuses its name.
        Error::Configuration(_) => Status::already_exists(error.to_string()),
        Error::FederationFull(_) => Status::resource_exhausted(error.to_string()),
        _ => Status::unavailable(error.to_string()),
    }
}

/// Counts the call against the quota of its caller. Ends when dropped; `None` in plain text.
fn begin_call<T>(request: &Request<T>) -> Result<Option<Call>, Status> {
    let Some(connection) = request.extensions().get::<Caller>().and_then(|caller| caller.0.as_ref()) else {
        return Ok(None);
    };
    let refused = || {
        Status::resource_exhausted(format!("{} has as many calls in flight as a server may", connection.peer().name))
    };
    connection.begin_call().map(Some).ok_or_else(refused)
}

/// Refuses who speaks for a server that it is not.
fn check_name<T>(request: &Request<T>, spoken_for: &str) -> Result<(), Status> {
    match request.extensions().get::<Caller>().and_then(|caller| caller.0.as_ref()) {
        Some(connection) if connection.peer().name.as_str() != spoken_for => {
            let spoken_for: String = spoken_for.chars().take(64).flat_map(char::escape_debug).collect();
            let name: &ServerId = &connection.peer().name;
            Err(Status::permission_denied(format!("the certificate is of {name}, which cannot speak for {spoken_for}")))
        }
        _ => Ok(()),
    }
}

#[tonic::async_trait]
impl Peer for Services {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let hello = request.into_inner();
        if hello.protocol_version != PROTOCOL_VERSION {
            // The other side compares, too, and reports it to its operator.
            warn!(server = hello.server, theirs = hello.protocol_version, ours = PROTOCOL_VERSION, "another protocol");
        }
        Ok(Response::new(HelloReply {
            protocol_version: PROTOCOL_VERSION,
            server: self.member.name.as_str().to_owned(),
            coordinator_address: self.member.coordinator_address().unwrap_or_default(),
        }))
    }

    async fn probe(&self, request: Request<ProbeRequest>) -> Result<Response<ProbeReply>, Status> {
        let _call = begin_call(&request)?;
        let bytes = (request.into_inner().reply_bytes as usize).min(MAX_MESSAGE_BYTES / 2);
        Ok(Response::new(ProbeReply { payload: vec![0; bytes] }))
    }
}

#[tonic::async_trait]
impl Worker for Services {
    type RunStream = Pin<Box<dyn Stream<Item = Result<JobEvent, Status>> + Send>>;

    async fn run(&self, request: Request<JobOffer>) -> Result<Response<Self::RunStream>, Status> {
        check_name(&request, &request.get_ref().owner)?;
        let call = begin_call(&request)?;
        let receiver = worker::accept(&self.member, request.into_inner());
        let events = tokio_stream::wrappers::ReceiverStream::new(receiver).map(move |event| {
            // In flight for as long as its events are.
            let _held = &call;
            event
        });
        Ok(Response::new(Box::pin(events)))
    }

    async fn release(&self, request: Request<ReleaseRequest>) -> Result<Response<ReleaseReply>, Status> {
        let _call = begin_call(&request)?;
        self.member.worker.release(&request.into_inner().token).map_err(status)?;
        self.member.step(Step::Released);
        Ok(Response::new(ReleaseReply {}))
    }
}

#[tonic::async_trait]
impl Coordinator for Services {
    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportReply>, Status> {
        self.member.require_coordinator().map_err(status)?;
        let _call = begin_call(&request)?;
        check_name(&request, request.get_ref().load.as_ref().map_or("", |load| &load.server))?;
        let reply = reports::receive(&self.member, request.into_inner()).map_err(status)?;
        Ok(Response::new(reply))
    }

    async fn place(&self, request: Request<PlaceRequest>) -> Result<Response<PlaceReply>, Status> {
        let _call = begin_call(&request)?;
        check_name(&request, &request.get_ref().owner)?;
        let reply = coordinator::place(&self.member, request.into_inner()).await.map_err(status)?;
        Ok(Response::new(reply))
    }
}
