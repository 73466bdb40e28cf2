//! The gRPC services of one server.

use std::pin::Pin;
use std::sync::Arc;

use ecotone_transport::Error as TransportError;
use ecotone_transport::protocol::{MAX_MESSAGE_BYTES, PROTOCOL_VERSION};
use ecotone_transport::wire::coordinator_server::Coordinator;
use ecotone_transport::wire::peer_server::Peer;
use ecotone_transport::wire::worker_server::Worker;
use ecotone_transport::wire::{
    HelloReply, HelloRequest, JobEvent, JobOffer, PlaceReply, PlaceRequest, ProbeReply, ProbeRequest, ReleaseReply,
    ReleaseRequest, ReportReply, ReportRequest,
};
use tokio_stream::Stream;
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
            coordinator_address: self.member.coordinator_address(),
        }))
    }

    async fn probe(&self, request: Request<ProbeRequest>) -> Result<Response<ProbeReply>, Status> {
        let bytes = (request.into_inner().reply_bytes as usize).min(MAX_MESSAGE_BYTES / 2);
        Ok(Response::new(ProbeReply { payload: vec![0; bytes] }))
    }
}

#[tonic::async_trait]
impl Worker for Services {
    type RunStream = Pin<Box<dyn Stream<Item = Result<JobEvent, Status>> + Send>>;

    async fn run(&self, request: Request<JobOffer>) -> Result<Response<Self::RunStream>, Status> {
        let receiver = worker::accept(&self.member, request.into_inner());
        Ok(Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(receiver))))
    }

    async fn release(&self, request: Request<ReleaseRequest>) -> Result<Response<ReleaseReply>, Status> {
        self.member.worker.release(&request.into_inner().token).map_err(status)?;
        self.member.step(Step::Released);
        Ok(Response::new(ReleaseReply {}))
    }
}

#[tonic::async_trait]
impl Coordinator for Services {
    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportReply>, Status> {
        self.member.require_coordinator().map_err(status)?;
        let reply = reports::receive(&self.member, request.into_inner()).map_err(status)?;
        Ok(Response::new(reply))
    }

    async fn place(&self, request: Request<PlaceRequest>) -> Result<Response<PlaceReply>, Status> {
        let reply = coordinator::place(&self.member, request.into_inner()).await.map_err(status)?;
        Ok(Response::new(reply))
    }
}
