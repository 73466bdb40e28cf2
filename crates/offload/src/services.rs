//! The gRPC services of one server.

use std::pin::Pin;
use std::sync::Arc;

use tokio_stream::Stream;
use tonic::{Request, Response, Status};
use tracing::warn;

use crate::coordinator;
use crate::error::Error;
use crate::federation::Shared;
use crate::protocol::wire::coordinator_server::Coordinator;
use crate::protocol::wire::peer_server::Peer;
use crate::protocol::wire::worker_server::Worker;
use crate::protocol::wire::{
    HelloReply, HelloRequest, JobEvent, JobOffer, PlaceReply, PlaceRequest, ProbeReply, ProbeRequest, ReleaseReply,
    ReleaseRequest, ReportReply, ReportRequest,
};
use crate::protocol::{MESSAGE_BYTES_MAX, PROTOCOL_VERSION};
use crate::reports;
use crate::steps::Step;
use crate::worker;

/// All services; cheap to clone, as tonic wants it.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) shared: Arc<Shared>,
}

fn status(error: Error) -> Status {
    match error {
        Error::Unauthorised(_) => Status::permission_denied(error.to_string()),
        // Of the caller, that is: the coordinator refuses its name.
        Error::Configuration(_) => Status::already_exists(error.to_string()),
        Error::NoRoom(_) => Status::resource_exhausted(error.to_string()),
        _ => Status::unavailable(error.to_string()),
    }
}

#[tonic::async_trait]
impl Peer for Services {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let hello = request.into_inner();
        if hello.protocol_version != PROTOCOL_VERSION {
            // The other side compares, too, and knows by this answer what to tell its operator.
            warn!(server = hello.server, theirs = hello.protocol_version, ours = PROTOCOL_VERSION, "another protocol");
        }
        Ok(Response::new(HelloReply {
            protocol_version: PROTOCOL_VERSION,
            server: self.shared.name.as_str().to_owned(),
            coordinator_address: self.shared.coordinator_address(),
        }))
    }

    async fn probe(&self, request: Request<ProbeRequest>) -> Result<Response<ProbeReply>, Status> {
        let bytes = (request.into_inner().reply_bytes as usize).min(MESSAGE_BYTES_MAX / 2);
        Ok(Response::new(ProbeReply { payload: vec![0; bytes] }))
    }
}

#[tonic::async_trait]
impl Worker for Services {
    type RunStream = Pin<Box<dyn Stream<Item = Result<JobEvent, Status>> + Send>>;

    async fn run(&self, request: Request<JobOffer>) -> Result<Response<Self::RunStream>, Status> {
        let receiver = worker::accept(&self.shared, request.into_inner());
        Ok(Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(receiver))))
    }

    async fn release(&self, request: Request<ReleaseRequest>) -> Result<Response<ReleaseReply>, Status> {
        self.shared.worker.release(&request.into_inner().token).map_err(status)?;
        self.shared.step(Step::Released);
        Ok(Response::new(ReleaseReply {}))
    }
}

#[tonic::async_trait]
impl Coordinator for Services {
    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportReply>, Status> {
        self.shared.require_coordinator().map_err(status)?;
        let reply = reports::receive(&self.shared, request.into_inner()).map_err(status)?;
        Ok(Response::new(reply))
    }

    async fn place(&self, request: Request<PlaceRequest>) -> Result<Response<PlaceReply>, Status> {
        let reply = coordinator::place(&self.shared, request.into_inner()).await.map_err(status)?;
        Ok(Response::new(reply))
    }
}
