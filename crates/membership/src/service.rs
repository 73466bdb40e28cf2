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

use crate::outbox::MAX_ADDRESS_BYTES;
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

/// Whether a server may ask the leader for this: what it says of itself, and what people ask it.
/// All else a leader proposes by itself.
fn may_ask(from: MemberId, entry: &Entry) -> bool {
    match entry {
        Entry::Announce { member, .. } => *member == from,
        Entry::Drain { .. }
        | Entry::Remove { .. }
        | Entry::Deal { .. }
        | Entry::Move { .. }
        | Entry::Set { .. }
        | Entry::Barrier => true,
        Entry::Found { .. }
        | Entry::Join { .. }
        | Entry::AddCopy { .. }
        | Entry::RemoveCopy { .. }
        | Entry::SetInSync { .. }
        | Entry::SetPrimary { .. }
        | Entry::RaiseFeatureLevel { .. }
        | Entry::SetAuthority { .. }
        | Entry::Prune { .. } => false,
    }
}

#[tonic::async_trait]
impl Control for Service {
    async fn raft(&self, request: Request<Streaming<RaftMessage>>) -> Result<Response<RaftEnd>, Status> {
        let (from, name) = caller(&request)?;
        let mut messages = request.into_inner();
        while let Some(message) = messages.next().await {
            let message = message?;
            if message.address.len() > MAX_ADDRESS_BYTES {
                return Err(Status::invalid_argument("the address is too long"));
            }
            if !message.address.is_empty() {
                self.0.callers.note(from, &message.address, &name);
            }
            let Some(driver) = self.0.driver() else { break };
            // Without a message it only says where it is.
            if !message.message.is_empty() {
                driver.receive(from, message.message);
            }
        }
        Ok(Response::new(RaftEnd {}))
    }

    async fn propose(&self, request: Request<ProposeRequest>) -> Result<Response<ProposeReply>, Status> {
        let (from, _) = caller(&request)?;
        let proposal = Proposal::decode(&request.into_inner().proposal);
        let proposal = proposal.map_err(|error| Status::invalid_argument(error.to_string()))?;
        if proposal.by != from || !may_ask(from, &proposal.entry) {
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

#[cfg(test)]
mod tests {
    use ecotone_control::ids::{DirectoryId, Epoch, ShardId};
    use ecotone_control::map::{Addresses, Features};

    use super::*;

    #[test]
    fn a_server_asks_for_itself_and_for_people_and_for_nothing_else() {
        let (one, two) = (MemberId(1), MemberId(2));
        let announce = |member| Entry::Announce {
            member,
            directory: DirectoryId([1; 16]),
            addresses: Addresses::default(),
            zone: String::new(),
            features: Features { min: 1, max: 1 },
        };
        assert!(may_ask(one, &announce(one)) && !may_ask(one, &announce(two)));
        let (shard, epoch) = (ShardId(1), Epoch(1));
        for entry in [
            Entry::Barrier,
            Entry::Drain { member: two, drain: true },
            Entry::Remove { member: two, force: true },
            Entry::Move { shard, epoch, to: two },
            Entry::Set { name: "a".into(), value: None },
        ] {
            assert!(may_ask(one, &entry), "{entry:?}");
        }
        for entry in [
            Entry::SetPrimary { shard, epoch, primary: Some(one) },
            Entry::AddCopy { shard, epoch, member: one },
            Entry::RaiseFeatureLevel { level: 2 },
            Entry::SetAuthority { authority: vec![1] },
            Entry::Prune { now_s: u64::MAX },
        ] {
            assert!(!may_ask(one, &entry), "{entry:?}");
        }
    }
}
