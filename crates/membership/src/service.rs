//! What other servers call: messages of Raft, changes that they ask for, the seal of the
//! authority's key.

use std::sync::Arc;

use ecotone_control::entry::{Entry, Proposal};
use ecotone_control::ids::MemberId;
use ecotone_control::map::Map;
use ecotone_transport::listener::Caller;
use ecotone_transport::wire::control_server::Control;
use ecotone_transport::wire::{ProposeReply, ProposeRequest, RaftEnd, RaftMessage, SealKeyReply, SealKeyRequest};
use ecotone_types::ServerId;
use tokio_stream::StreamExt;
use tonic::{Request, Response, Status, Streaming};

use crate::outbox::MAX_ADDRESS_BYTES;
use crate::proposals::outdated;
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

/// What becomes of what another server asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// The leader proposes it.
    Allowed,
    /// Nothing would come of it: the shard is in a later epoch.
    Outdated,
    Denied,
}

/// Whether a server may ask the leader for this: what it says of itself, what people ask it, and, of a
/// shard that it is the primary of, who is in sync and who follows it. All else a leader proposes by
/// itself.
fn may_ask(from: MemberId, entry: &Entry, map: &Map) -> Asked {
    let is_allowed = match entry {
        Entry::Announce { member, .. } => *member == from,
        Entry::SetInSync { shard, epoch, .. } | Entry::SetPrimary { shard, epoch, .. } => match map.shards.get(shard) {
            Some(there) if there.epoch > *epoch => return Asked::Outdated,
            Some(there) => there.primary == Some(from) && there.epoch == *epoch,
            None => false,
        },
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
        | Entry::RaiseFeatureLevel { .. }
        | Entry::SetAuthority { .. }
        | Entry::Prune { .. } => false,
    };
    if is_allowed { Asked::Allowed } else { Asked::Denied }
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
        let known = self.0.known();
        let asked = if proposal.by == from { may_ask(from, &proposal.entry, &known.map) } else { Asked::Denied };
        match asked {
            Asked::Allowed => Ok(Response::new(self.0.propose_here(proposal).await)),
            Asked::Outdated => Ok(Response::new(outdated(known.applied))),
            Asked::Denied => Err(Status::permission_denied(format!("{from} may not ask for this"))),
        }
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
    use std::collections::BTreeSet;

    use ecotone_control::ids::{DirectoryId, Epoch, FederationId, ShardId};
    use ecotone_control::map::{Addresses, Features, Shard};

    use super::*;

    const ONE: MemberId = MemberId(1);
    const TWO: MemberId = MemberId(2);
    const SHARD: ShardId = ShardId(1);

    /// Shard 1 has copies on 1 and 2; 1 is its primary, in epoch 5.
    fn map(primary: Option<MemberId>) -> Map {
        let mut map = Map::new(FederationId([1; 8]));
        let copies = BTreeSet::from([ONE, TWO]);
        let (in_sync, epoch) = (copies.clone(), Epoch(5));
        map.shards.insert(SHARD, Shard { slots: Vec::new(), copies, in_sync, primary, epoch, set_version: 3 });
        map
    }

    #[test]
    fn a_server_asks_for_itself_and_for_people() {
        let map = map(Some(TWO));
        let announce = |member| Entry::Announce {
            member,
            directory: DirectoryId([1; 16]),
            addresses: Addresses::default(),
            zone: String::new(),
            features: Features { min: 1, max: 1 },
        };
        assert_eq!(may_ask(ONE, &announce(ONE), &map), Asked::Allowed);
        assert_eq!(may_ask(ONE, &announce(TWO), &map), Asked::Denied);
        let (shard, epoch) = (SHARD, Epoch(5));
        for entry in [
            Entry::Barrier,
            Entry::Drain { member: TWO, drain: true },
            Entry::Remove { member: TWO, force: true },
            Entry::Move { shard, epoch, to: TWO },
            Entry::Set { name: "a".into(), value: None },
        ] {
            assert_eq!(may_ask(ONE, &entry, &map), Asked::Allowed, "{entry:?}");
        }
        for entry in [
            Entry::SetPrimary { shard, epoch, primary: Some(ONE) },
            Entry::AddCopy { shard, epoch, member: ONE },
            Entry::RemoveCopy { shard, epoch, member: ONE },
            Entry::RaiseFeatureLevel { level: 2 },
            Entry::SetAuthority { authority: vec![1] },
            Entry::Prune { now_s: u64::MAX },
        ] {
            assert_eq!(may_ask(ONE, &entry, &map), Asked::Denied, "{entry:?}");
        }
    }

    #[test]
    fn a_primary_asks_for_its_shard_in_its_epoch_and_nobody_else_does() {
        let set = |shard, epoch| Entry::SetInSync {
            shard: ShardId(shard),
            epoch: Epoch(epoch),
            set_version: 3,
            in_sync: BTreeSet::from([ONE]),
        };
        let hand_over =
            |shard, epoch, to| Entry::SetPrimary { shard: ShardId(shard), epoch: Epoch(epoch), primary: Some(to) };
        let has_primary = map(Some(ONE));
        for entry in [set(1, 5), hand_over(1, 5, TWO)] {
            assert_eq!(may_ask(ONE, &entry, &has_primary), Asked::Allowed);
            assert_eq!(may_ask(TWO, &entry, &has_primary), Asked::Denied, "a copy asks for nothing");
            assert_eq!(may_ask(ONE, &entry, &map(None)), Asked::Denied, "it was frozen: the leader decides");
        }
        for (epoch, asked) in [(4, Asked::Outdated), (6, Asked::Denied)] {
            assert_eq!(may_ask(ONE, &set(1, epoch), &has_primary), asked);
            assert_eq!(may_ask(TWO, &hand_over(1, epoch, TWO), &has_primary), asked);
        }
        assert_eq!(may_ask(ONE, &set(2, 5), &has_primary), Asked::Denied, "there is no such shard");
    }
}
