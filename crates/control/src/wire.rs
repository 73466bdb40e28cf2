//! Raft's messages between servers as bytes. Raft has a codec of its own, protobuf 2, which follows
//! nested groups without a limit (RUSTSEC-2024-0437); this one is bounded and strict, and nothing
//! that another server sent is read by the other. A heartbeat is 28 bytes by it: servers that are
//! idle speak all the time.

use raft::eraftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState, Entry, EntryType, HardState,
    Message, MessageType, Snapshot,
};

use crate::codec::{Malformed, Problem, Reader, Writer};
use crate::entry::MAX_ENTRY_BYTES;
use crate::ids::HistoryId;
use crate::map::{MAX_MAP_BYTES, MAX_REMOVED_SERVERS, MAX_SERVERS};

/// Entries in a message.
pub const MAX_MESSAGE_ENTRIES: usize = 4_096;
/// What Raft attaches to a message: a mark of why an election was begun.
const MAX_CONTEXT_BYTES: usize = 256;
/// Servers in a configuration of Raft.
const MAX_CONFIGURATION: usize = MAX_SERVERS + MAX_REMOVED_SERVERS;
const VERSION: u8 = 1;
/// The longest message that is no snapshot: entries of one message, or a single one.
pub const MAX_SMALL_MESSAGE_BYTES: usize = 256 << 10;
/// The longest of all: a snapshot, with what is around the map.
pub const MAX_LARGE_MESSAGE_BYTES: usize = MAX_MAP_BYTES + (256 << 10);

/// What servers say to each other, at the place of its number.
const MESSAGES: [MessageType; 10] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgSnapshot,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgTimeoutNow,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
];

const ENTRIES: [EntryType; 3] = [EntryType::EntryNormal, EntryType::EntryConfChange, EntryType::EntryConfChangeV2];

/// A message as bytes, for servers of the same generation and history; none for one that goes to no
/// server.
pub(crate) fn encode_message((generation, history): (u64, HistoryId), m: &Message) -> Option<Vec<u8>> {
    let kind = MESSAGES.iter().position(|kind| *kind == m.get_msg_type())?;
    let mut w = Writer::new();
    w.byte(VERSION);
    w.number(generation);
    w.raw(&history.0);
    w.byte(kind as u8);
    w.number(m.to);
    w.number(m.from);
    w.number(m.term);
    w.number(m.log_term);
    w.number(m.index);
    w.number(m.commit);
    w.number(m.commit_term);
    w.number(m.request_snapshot);
    w.flag(m.reject);
    w.number(m.reject_hint);
    w.number(m.priority as u64);
    w.bytes(&m.context);
    w.count(m.entries.len());
    for entry in m.get_entries() {
        encode_entry(entry, &mut w);
    }
    w.flag(m.has_snapshot());
    if m.has_snapshot() {
        encode_snapshot(m.get_snapshot(), &mut w);
    }
    Some(w.done())
}

/// Generation and history of the sender, and what kind of message it is.
fn decode_head(r: &mut Reader<'_>) -> Result<((u64, HistoryId), MessageType), Malformed> {
    let version = r.byte()?;
    if version != VERSION {
        return Err(r.wrong(Problem::Version(u64::from(version))));
    }
    Ok(((r.number()?, HistoryId(r.array()?)), kind(&MESSAGES, r)?))
}

/// Whether these bytes may be a message: all but snapshots are small.
pub(crate) fn has_a_length_to_be(bytes: &[u8]) -> bool {
    let is_snapshot = || {
        let head = decode_head(&mut Reader::new(bytes, "message of a server"));
        head.is_ok_and(|(_, kind)| kind == MessageType::MsgSnapshot)
    };
    bytes.len() <= MAX_SMALL_MESSAGE_BYTES || bytes.len() <= MAX_LARGE_MESSAGE_BYTES && is_snapshot()
}

/// Reads a message, and the generation and history of its sender.
pub(crate) fn decode_message(bytes: &[u8]) -> Result<((u64, HistoryId), Message), Malformed> {
    let mut r = Reader::new(bytes, "message of a server");
    let (of, kind) = decode_head(&mut r)?;
    let mut m = Message::default();
    m.set_msg_type(kind);
    m.to = r.number()?;
    m.from = r.number()?;
    m.term = r.number()?;
    m.log_term = r.number()?;
    m.index = r.number()?;
    m.commit = r.number()?;
    m.commit_term = r.number()?;
    m.request_snapshot = r.number()?;
    m.reject = r.flag()?;
    m.reject_hint = r.number()?;
    m.priority = r.number()? as i64;
    m.context = r.bytes(MAX_CONTEXT_BYTES)?.into();
    for _ in 0..r.count(MAX_MESSAGE_ENTRIES)? {
        let entry = decode_entry(&mut r)?;
        m.mut_entries().push(entry);
    }
    if r.flag()? {
        m.set_snapshot(decode_snapshot(&mut r)?);
    }
    r.end()?;
    Ok((of, m))
}

fn kind<T: Copy>(kinds: &[T], r: &mut Reader<'_>) -> Result<T, Malformed> {
    let kind = r.byte()?;
    kinds.get(usize::from(kind)).copied().ok_or_else(|| r.wrong(Problem::Value(u64::from(kind))))
}

pub(crate) fn encode_entry(entry: &Entry, w: &mut Writer) {
    w.byte(ENTRIES.iter().position(|kind| *kind == entry.get_entry_type()).unwrap_or_default() as u8);
    w.number(entry.term);
    w.number(entry.index);
    w.bytes(&entry.data);
}

pub(crate) fn decode_entry(r: &mut Reader<'_>) -> Result<Entry, Malformed> {
    let mut entry = Entry::default();
    entry.set_entry_type(kind(&ENTRIES, r)?);
    entry.term = r.number()?;
    entry.index = r.number()?;
    entry.data = r.bytes(MAX_ENTRY_BYTES)?.into();
    Ok(entry)
}

pub(crate) fn encode_hard_state(state: &HardState, w: &mut Writer) {
    w.number(state.term);
    w.number(state.vote);
    w.number(state.commit);
}

pub(crate) fn decode_hard_state(r: &mut Reader<'_>) -> Result<HardState, Malformed> {
    Ok(HardState { term: r.number()?, vote: r.number()?, commit: r.number()?, ..HardState::default() })
}

pub(crate) fn encode_snapshot(snapshot: &Snapshot, w: &mut Writer) {
    let metadata = snapshot.get_metadata();
    w.number(metadata.index);
    w.number(metadata.term);
    let configuration = metadata.get_conf_state();
    for members in
        [&configuration.voters, &configuration.learners, &configuration.voters_outgoing, &configuration.learners_next]
    {
        w.count(members.len());
        members.iter().for_each(|member| w.number(*member));
    }
    w.flag(configuration.auto_leave);
    w.bytes(&snapshot.data);
}

pub(crate) fn decode_snapshot(r: &mut Reader<'_>) -> Result<Snapshot, Malformed> {
    let mut snapshot = Snapshot::default();
    let metadata = snapshot.mut_metadata();
    metadata.index = r.number()?;
    metadata.term = r.number()?;
    let configuration = ConfState {
        voters: decode_configuration(r)?,
        learners: decode_configuration(r)?,
        voters_outgoing: decode_configuration(r)?,
        learners_next: decode_configuration(r)?,
        auto_leave: r.flag()?,
        ..ConfState::default()
    };
    metadata.set_conf_state(configuration);
    snapshot.data = r.bytes(MAX_MAP_BYTES)?.into();
    Ok(snapshot)
}

/// Reads a change of voters, which raft has written as protobuf.
pub(crate) fn decode_change(bytes: &[u8]) -> Result<ConfChangeV2, Malformed> {
    const TRANSITIONS: [ConfChangeTransition; 3] =
        [ConfChangeTransition::Auto, ConfChangeTransition::Implicit, ConfChangeTransition::Explicit];
    const CHANGES: [ConfChangeType; 3] =
        [ConfChangeType::AddNode, ConfChangeType::RemoveNode, ConfChangeType::AddLearnerNode];
    /// A kind and a number, each with its tag.
    const MAX_CHANGE_BYTES: usize = 16;
    let mut r = Reader::new(bytes, "change of voters");
    let mut change = ConfChangeV2::default();
    while !r.is_at_end() {
        match r.byte()? {
            0x08 => change.set_transition(kind(&TRANSITIONS, &mut r)?),
            0x12 => {
                let bytes = r.bytes(MAX_CHANGE_BYTES)?;
                let mut r = Reader::new(&bytes, "change of a voter");
                let mut single = ConfChangeSingle::default();
                while !r.is_at_end() {
                    match r.byte()? {
                        0x08 => single.set_change_type(kind(&CHANGES, &mut r)?),
                        0x10 => single.node_id = r.number()?,
                        other => return Err(r.wrong(Problem::Value(u64::from(other)))),
                    }
                }
                change.mut_changes().push(single);
            }
            other => return Err(r.wrong(Problem::Value(u64::from(other)))),
        }
    }
    Ok(change)
}

fn decode_configuration(r: &mut Reader<'_>) -> Result<Vec<u64>, Malformed> {
    (0..r.count(MAX_CONFIGURATION)?).map(|_| r.number()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry() -> Entry {
        Entry { term: 7, index: 3, data: vec![1, 2, 3].into(), ..Entry::default() }
    }

    #[test]
    fn changes_of_voters_are_read_as_raft_writes_them() {
        // Explicit; 300 becomes a voter, 1 a learner, 2 goes.
        let bytes = [8, 2, 18, 3, 16, 0xac, 2, 18, 4, 8, 2, 16, 1, 18, 4, 8, 1, 16, 2];
        let change = decode_change(&bytes).unwrap();
        assert_eq!(change.get_transition(), ConfChangeTransition::Explicit);
        let read: Vec<_> = change.get_changes().iter().map(|one| (one.get_change_type(), one.node_id)).collect();
        let kinds = (ConfChangeType::AddNode, ConfChangeType::AddLearnerNode, ConfChangeType::RemoveNode);
        assert_eq!(read, [(kinds.0, 300), (kinds.1, 1), (kinds.2, 2)]);
        assert_eq!(decode_change(&[]), Ok(ConfChangeV2::default()));
        assert!(decode_change(&[0x1b; 64]).is_err(), "a group in a group");
    }

    #[test]
    fn messages_are_read_as_written() {
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgSnapshot);
        (message.to, message.from, message.term, message.index, message.commit) = (2, 1, 7, 1 << 40, 9);
        (message.reject, message.reject_hint, message.priority) = (true, 3, -1);
        message.context = b"CampaignTransfer".to_vec().into();
        message.mut_entries().push(entry());
        message.mut_snapshot().data = vec![4; 100].into();
        message.mut_snapshot().mut_metadata().mut_conf_state().voters = vec![1, 2, 3];
        let of = (5, HistoryId([6; 8]));
        let bytes = encode_message(of, &message).unwrap();
        assert_eq!(decode_message(&bytes), Ok((of, message)));
        for cut in 0..bytes.len() {
            assert!(decode_message(&bytes[..cut]).is_err(), "cut to {cut}");
        }
    }

    #[test]
    fn heartbeats_are_small() {
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgHeartbeat);
        (message.to, message.from, message.term, message.commit) = (200, 100, 1_000, 1_000_000);
        let bytes = encode_message((1, HistoryId([1; 8])), &message).unwrap().len();
        assert!(bytes <= 32, "{bytes} bytes");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_message(&bytes);
        }

        #[test]
        fn a_mutated_message_is_read_as_what_it_says(at in 0..70_usize, byte in any::<u8>()) {
            let mut message = Message::default();
            message.set_msg_type(MessageType::MsgAppend);
            message.mut_entries().push(entry());
            let mut bytes = encode_message((5, HistoryId([6; 8])), &message).unwrap();
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            if let Ok((of, read)) = decode_message(&bytes) {
                prop_assert_eq!(encode_message(of, &read), Some(bytes));
            }
        }
    }
}
