//! What reaches the node's thread, and how.

use std::sync::mpsc::SyncSender;

use ecotone_control::entry::Proposal;
use ecotone_control::ids::MemberId;
use ecotone_control::machine::Outcome;
use ecotone_control::node::NotProposed;
use tokio::sync::oneshot;

/// Messages and proposals that wait for the node.
pub const MAX_WAITING_EVENTS: usize = 1024;

/// The answer to a proposal.
pub(crate) type Answer = std::result::Result<(u64, Outcome), NotProposed>;

/// What reaches the node's thread.
pub(crate) enum Input {
    /// A message of another server.
    Receive { from: MemberId, bytes: Vec<u8> },
    /// A change that is asked for.
    Propose { proposal: Proposal, answer: oneshot::Sender<Answer> },
    /// A message could not be sent.
    Unreachable(MemberId),
    /// The log has been written further, or has failed.
    Written,
    /// The server stops.
    Stop,
}

/// A way to reach the node.
#[derive(Clone)]
pub(crate) struct Events(pub(crate) SyncSender<Input>);

impl Events {
    /// Passes an event on, or drops it where too many wait. Never blocks.
    pub(crate) fn offer(&self, input: Input) {
        let _ = self.0.try_send(input);
    }
}
