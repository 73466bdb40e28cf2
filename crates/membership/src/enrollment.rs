//! The leader lets servers in, and gives them their certificates.

use std::sync::Arc;

use ecotone_control::entry::{Entry, NewServer};
use ecotone_control::ids::{DirectoryId, KeyHash, MemberId, TokenId};
use ecotone_control::map::{Addresses, Features, Role};
use ecotone_identity::{Authority, Peer, requested_key};
use ecotone_transport::enrollment::{
    Asked, AskedToJoin, Enrollment, granted, no_authority, no_leader, not_here, refused,
};
use ecotone_transport::wire::{EnrollReply, EnrollRequest};
use tracing::{debug, warn};

use crate::error::Error;
use crate::proposals::Decision;
use crate::shared::Shared;

/// Answers where this server leads; else it says who does.
pub(crate) struct AtLeader(pub(crate) Arc<Shared>);

impl Enrollment for AtLeader {
    fn answer(&self, request: &EnrollRequest, peer: Option<&Peer>) -> EnrollReply {
        let asked = match Asked::read(request, peer) {
            Ok(asked) => asked,
            Err(refused) => return *refused,
        };
        let (shared, known) = (&self.0, self.0.known());
        if !known.leads() {
            let leader = shared.leader_address();
            return if leader.is_empty() { no_leader() } else { not_here(&leader) };
        }
        let authority = match shared.custody.authority(&known.map) {
            Ok(Some(authority)) => authority,
            // It asks the others for the seal.
            Ok(None) => return no_authority(),
            Err(error) => {
                warn!(%error, "this server leads, and cannot open the authority");
                return refused(error.kind(), error);
            }
        };
        let now = shared.identity.now();
        let (number, asked) = match asked {
            Asked::Renew { member, certificate_request, .. } => (member, certificate_request),
            Asked::Join(asked) => match self.let_in(&authority, &asked) {
                Ok(member) => (member, asked.certificate_request),
                Err(refused) => return *refused,
            },
        };
        // Whatever it calls itself: by the map of now, as it may also have been removed meanwhile.
        let known = shared.known();
        let Some(name) = known.map.server(MemberId(number.number())).map(|server| server.name.clone()) else {
            return refused("removed", "the server is no longer one of the federation");
        };
        match authority.issue(number, &name, &asked, now) {
            Ok(issued) => granted(&issued, number, known.map.generation),
            Err(error) => refused(error.kind(), error),
        }
    }
}

impl AtLeader {
    /// Has the log give a server its number, for a token that is good.
    fn let_in(
        &self,
        authority: &Authority,
        asked: &AskedToJoin,
    ) -> Result<ecotone_identity::MemberId, Box<EnrollReply>> {
        let (shared, about) = (&self.0, &asked.about);
        let claim = authority.check_token(&asked.token, shared.identity.now()).map_err(|error| {
            // Who guesses is counted; it must not fill the log.
            debug!(server = %asked.name, %error, "a token is not taken");
            Box::new(refused(error.kind(), error))
        })?;
        let server = NewServer {
            directory: DirectoryId(asked.directory),
            name: asked.name.clone(),
            addresses: Addresses { peers: about.address.clone().unwrap_or_default(), clients: String::new() },
            zone: about.zone.clone(),
            role: if about.is_witness { Role::Witness } else { Role::Data },
            features: Features { min: about.min_feature_level, max: about.max_feature_level },
        };
        let key = requested_key(&asked.certificate_request);
        let key = KeyHash(key.map_err(|error| Box::new(refused(error.kind(), error)))?);
        let join = Entry::Join { token: TokenId(claim.id), token_expires_s: claim.ends.0, key, server };
        match shared.runtime.block_on(shared.propose(join)) {
            Ok(decided) => match decided.decision {
                Decision::Joined(member) => Ok(ecotone_identity::MemberId::from_number(member.0)),
                other => {
                    Err(Box::new(refused("refused", format!("the federation's answer makes no sense: {other:?}"))))
                }
            },
            Err(Error::NotDecided(_)) => Err(Box::new(no_leader())),
            Err(error) => {
                warn!(server = %asked.name, %error, "a server is not let in");
                Err(Box::new(refused(error.kind(), error)))
            }
        }
    }
}
