//! What reaches the node's thread, and how.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use ecotone_control::entry::Proposal;
use ecotone_control::ids::MemberId;
use ecotone_control::machine::Outcome;
use ecotone_control::node::{MAX_RECEIVED_BYTES, NotProposed, may_be_message};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Messages and proposals that wait for the node.
pub const MAX_WAITING_EVENTS: usize = 1024;
/// Messages of one server that wait for the node: a share, so that none takes the place of others.
pub const MAX_WAITING_OF_MEMBER: usize = MAX_WAITING_EVENTS / 4;
/// Bytes of them: one snapshot.
pub const MAX_WAITING_BYTES_OF_MEMBER: usize = MAX_RECEIVED_BYTES;
/// Bytes of all messages that wait.
pub const MAX_WAITING_BYTES: usize = 4 * MAX_RECEIVED_BYTES;

/// The answer to a proposal.
pub(crate) type Answer = std::result::Result<(u64, Outcome), NotProposed>;

/// What reaches the node's thread.
pub(crate) enum Input {
    /// A message of another server.
    Receive { from: MemberId, bytes: Vec<u8>, place: Place },
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

/// How much of each server waits for the node.
#[derive(Debug, Default)]
pub(crate) struct Backlog(Mutex<HashMap<MemberId, (usize, usize)>>);

impl Backlog {
    /// A place for a message; none where it cannot be one, or its sender has too many that wait.
    pub(crate) fn admit(self: &Arc<Self>, from: MemberId, bytes: &[u8]) -> Option<Place> {
        if !may_be_message(bytes) {
            return None;
        }
        let mut waiting = self.0.lock();
        let total: usize = waiting.values().map(|(_, bytes)| bytes).sum();
        let (messages, of_member) = waiting.get(&from).copied().unwrap_or_default();
        let is_full = messages >= MAX_WAITING_OF_MEMBER
            || of_member + bytes.len() > MAX_WAITING_BYTES_OF_MEMBER
            || total + bytes.len() > MAX_WAITING_BYTES;
        if is_full {
            return None;
        }
        waiting.insert(from, (messages + 1, of_member + bytes.len()));
        drop(waiting);
        Some(Place { backlog: self.clone(), from, bytes: bytes.len() })
    }
}

/// The place of a message that waits. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    backlog: Arc<Backlog>,
    from: MemberId,
    bytes: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiting = self.backlog.0.lock();
        if let Some((messages, bytes)) = waiting.get_mut(&self.from) {
            (*messages, *bytes) = (messages.saturating_sub(1), bytes.saturating_sub(self.bytes));
            if *messages == 0 {
                waiting.remove(&self.from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_takes_no_more_than_its_share() {
        let backlog = Arc::new(Backlog::default());
        let (greedy, other) = (MemberId(1), MemberId(2));
        let small = [1; 40];
        let mut places: Vec<Place> = Vec::new();
        while let Some(place) = backlog.admit(greedy, &small) {
            places.push(place);
        }
        assert_eq!(places.len(), MAX_WAITING_OF_MEMBER);
        assert!(backlog.admit(other, &small).is_some());
        places.pop();
        assert!(backlog.admit(greedy, &small).is_some(), "a place is given back");
        places.clear();
        assert!(backlog.0.lock().is_empty());
        // Large messages that are no snapshots, at once; others by their bytes.
        assert!(backlog.admit(greedy, &[1; 1 << 20]).is_none());
        let full = vec![1; 256 << 10];
        while let Some(place) = backlog.admit(greedy, &full) {
            places.push(place);
        }
        assert!(places.len() < MAX_WAITING_OF_MEMBER, "{}", places.len());
        assert!(backlog.admit(other, &full).is_some());
    }
}
