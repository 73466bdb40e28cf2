//! What a server knows of its federation, and what it says of itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use ecotone_control::ids::MemberId;
use ecotone_control::map::Map;
use ecotone_control::node::Node;

/// What this server knows of the federation. Replaced whole whenever it changes.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// The map, as far as this server has read the log.
    pub map: Arc<Map>,
    /// This server.
    pub member: MemberId,
    /// Who leads, if that is known.
    pub leader: Option<MemberId>,
    /// In which term.
    pub term: u64,
    /// Who votes. While that changes, both the old and the new voters.
    pub voters: BTreeSet<MemberId>,
    /// Servers that the leader has not heard for long; known to the leader only.
    pub gone: BTreeSet<MemberId>,
    /// The last entry that is applied.
    pub applied: u64,
    /// Why this server takes no part any more, if it does not.
    pub stopped: Option<String>,
    /// Another server has refused this one as removed. Nobody sends it the entry that says so.
    pub told_removed: bool,
}

impl Known {
    /// Whether this server leads.
    pub fn leads(&self) -> bool {
        self.leader == Some(self.member) && self.stopped.is_none() && !self.is_removed()
    }

    /// Whether this server is removed, by the map or by what others say.
    pub fn is_removed(&self) -> bool {
        self.told_removed || self.map.is_removed(self.member)
    }
}

/// Where a server can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    /// By other servers, as `host:port`.
    pub peers: String,
    /// By clients; `None`: not known yet, what was announced before stays.
    pub clients: Option<String>,
}

/// What a node knows, whose map is this one.
pub(crate) fn known_of(node: &Node, map: Arc<Map>) -> Known {
    Known {
        map,
        member: node.member(),
        leader: node.leader(),
        term: node.term(),
        voters: node.voters(),
        gone: node.gone().clone(),
        applied: node.applied(),
        stopped: None,
        told_removed: false,
    }
}
