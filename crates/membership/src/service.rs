//! What other servers call: messages of Raft, changes that they ask for, the seal of the
//! authority's key.

use std::sync::Arc;

use ecotone_control::entry::{Entry, Proposal};
use ecotone_control::ids::MemberId;
use ecotone_transport::listener::Caller;
use ecotone_transport::wire::control_server::Control;
use ecotone_transport::wire::{ProposeReply, ProposeRequest, RaftEnd, RaftMessage, SealKeyReply, SealKeyRequest};
use ecotone_types::ServerId;
use tokio_stream::StreamExt;
use tonic::{Request, Response, Status, Streaming};

use crate::shared::Shared;

/// The service of one server; cheap to clone.
#[derive(Clone)]
pub struct Service(pub(crate) Arc<Shared>);

/// Who calls, by its certificate.
fn caller<T>(request: &Request<T>) -> Result<(MemberId, ServerId), Status> {
    let connection = request.extensions().get::<Caller>().and_then(|caller| caller.0.as_ref());
    let connection = connection.ok_or_else(|| Status::permission_denied("only servers with a certificate may ask"))?;
    let peer = connection.peer();
    Ok((MemberId(peer.member.number()), peer.name.clone()))
}

#[tonic::async_trait]
impl Control for Service {
    async fn raft(&self, request: Request<Streaming<RaftMessage>>) -> Result<Response<RaftEnd>, Status> {
        let (from, name) = caller(&request)?;
        let mut messages = request.into_inner();
        while let Some(message) = messages.next().await {
            let message = message?;
            if !message.address.is_empty() {
                self.0.callers.note(from, &message.address, &name);
            }
            let Some(driver) = self.0.driver() else { break };
            driver.receive(from, message.message);
        }
        Ok(Response::new(RaftEnd {}))
    }

    async fn propose(&self, request: Request<ProposeRequest>) -> Result<Response<ProposeReply>, Status> {
        let (from, _) = caller(&request)?;
        let proposal = Proposal::decode(&request.into_inner().proposal);
        let proposal = proposal.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let is_of_leaders =
            matches!(proposal.entry, Entry::Found { .. } | Entry::Join { .. } | Entry::SetAuthority { .. });
        if proposal.by != from || is_of_leaders {
            return Err(Status::permission_denied(format!("{from} may not ask for this")));
        }
        Ok(Response::new(self.0.propose_here(proposal).await))
    }

    async fn seal_key(&self, request: Request<SealKeyRequest>) -> Result<Response<SealKeyReply>, Status> {
        let (from, _) = caller(&request)?;
        let known = self.0.known();
        if !known.voters.contains(&from) || known.map.server(from).is_none() {
            return Err(Status::permission_denied(format!("{from} does not vote, as far as this server knows")));
        }
        match self.0.custody.seal() {
            Some(seal) => Ok(Response::new(SealKeyReply { key: seal.bytes().to_vec() })),
            None => Err(Status::unavailable("this server does not have it")),
        }
    }
}
