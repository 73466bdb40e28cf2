//! One server's part of the Raft group: events in, commands out.
//!
//! Whoever drives it does what the commands say, in their order, and answers each
//! [`Command::Persist`] by [`Event::Persisted`] once it is durable. Messages that promise something
//! (a vote, entries that are stored) are kept back until then; so commands that are given may be
//! done at once, and others go on while a disk is slow. Nothing here knows the time but by ticks.
//!
//! Voters come and go by themselves, while this server leads: see [`crate::voters`]. Every other
//! server that is not removed learns.
//!
//! Invariants: a message counts only if it comes from whom it names, is of this generation and
//! history, not from a removed server, and not what would make raft panic; what a leader says only
//! from a voter, as far as this server knows; an entry is proposed only if every server can read it; after the same
//! events, two nodes of the same seed have given the same commands.
//!
//! Failure modes: [`Node::handle`] fails when the log holds what this build cannot read, or another
//! server sent a map that is damaged. The node is of no use then, and the server goes on with the
//! last map. Where memory and messages contradict each other (a disk lied), raft itself panics.
//!
//! Threads: none. One thread owns it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use raft::eraftpb::{
    ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState, Entry as RaftEntry, EntryType, Message, MessageType,
    Snapshot,
};
use raft::{Config, RawNode, Ready, SnapshotStatus, StateRole};

use crate::codec::Malformed;
use crate::entries::Entries;
use crate::entry::{Entry, Proposal};
use crate::error::Error;
use crate::ids::{FederationId, HistoryId, MemberId};
use crate::log::{Content, Identity, Records};
use crate::machine::{Machine, Outcome, Rules};
use crate::map::Map;
use crate::{voters, wire};

/// How long a tick is, in milliseconds.
pub const TICK_MS: u64 = 25;
/// Ticks between heartbeats of the leader.
pub const HEARTBEAT_TICKS: usize = 4;
/// The shortest silence of a leader before another is elected, in ticks.
pub const MIN_ELECTION_TICKS: usize = 13;
/// Ticks by which one voter waits longer than the one before it: longer than a round trip, so that
/// two do not divide the votes. Who is first changes with each term.
const ELECTION_STEP_TICKS: usize = 5;
/// Ticks that are drawn at random on top: voters may disagree who comes when, while they change.
const ELECTION_JITTER_TICKS: u64 = 3;
/// The longest silence, in ticks, exclusive.
pub const MAX_ELECTION_TICKS: usize =
    MIN_ELECTION_TICKS + voters::MAX_VOTERS * ELECTION_STEP_TICKS + ELECTION_JITTER_TICKS as usize;
/// Ticks of silence after which a server is gone for long, and another votes in its place: 30 s.
pub const GONE_TICKS: u64 = 30_000 / TICK_MS;
/// Ticks that a server must have been heard for until it is no longer gone: 10 s.
pub const BACK_TICKS: u64 = 10_000 / TICK_MS;
/// Ticks of silence that interrupt being heard: 2 s.
const SILENCE_TICKS: u64 = 2_000 / TICK_MS;
/// Ticks between two looks at who votes.
const VOTERS_TICKS: u64 = 8;
/// The most ticks that a node says it does nothing for: half a second.
pub const MAX_QUIET_TICKS: u64 = 500 / TICK_MS;
/// Ticks after which a snapshot that was sent counts as lost: 5 s.
const SNAPSHOT_TICKS: u64 = 5_000 / TICK_MS;
/// Entries after which the log is compacted.
pub const COMPACT_ENTRIES: usize = 4_096;
/// Entries before a snapshot that are kept, for servers that lag a little.
pub const KEEP_ENTRIES: u64 = 1_024;
/// Entries that a learner may lack when it becomes a voter.
const MAX_LAG_ENTRIES: u64 = 64;
/// Proposals without an outcome.
pub const MAX_PENDING_PROPOSALS: usize = 4_096;
/// Bytes of entries that are not committed.
const MAX_UNCOMMITTED_BYTES: u64 = 8 << 20;
/// Bytes of entries in a message. With the shortest of them this is
/// [`wire::MAX_MESSAGE_ENTRIES`] at most.
const MAX_MESSAGE_BYTES: u64 = 64 << 10;
/// Messages to a server that are not answered.
const MAX_INFLIGHT_MESSAGES: usize = 64;
/// Generations that a message may be ahead: as often as a federation was begun anew while a server
/// was off.
pub const MAX_GENERATION_STEP: u64 = 16;
/// Terms that a message may be ahead: more elections than there are while a server is off, and few
/// enough that terms never come to their end.
pub const MAX_TERM_STEP: u64 = 1 << 32;

/// What a node is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// [`TICK_MS`] have passed, by a clock that never goes back.
    Tick,
    /// A message came.
    Receive {
        /// Whom the connection belongs to, as its certificate says.
        from: MemberId,
        /// The message.
        bytes: Vec<u8>,
    },
    /// Somebody asks for a change. It is answered by [`Command::Decided`] or
    /// [`Command::NotProposed`], or never, if this server stops leading meanwhile.
    Propose {
        /// To know the answer by.
        id: u64,
        /// What is asked, and by whom.
        proposal: Proposal,
    },
    /// [`Command::Persist`] of this number, and all before, are durable.
    Persisted(u64),
    /// A message could not be sent to this server.
    Unreachable(MemberId),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Make this durable by [`crate::log::Log::persist`], then say [`Event::Persisted`].
    Persist {
        /// Counts up.
        number: u64,
        /// What is to be durable.
        records: Records,
    },
    /// The same, to make the log shorter; nobody waits for it.
    Compact(Records),
    /// Send this, if it can be; what is lost is sent again.
    Send {
        /// To whom.
        to: MemberId,
        /// What.
        bytes: Vec<u8>,
    },
    /// An entry is applied. After a start, those behind the last snapshot come again.
    Applied {
        /// Its index.
        index: u64,
        /// What was asked.
        proposal: Proposal,
        /// What became of it.
        outcome: Outcome,
    },
    /// The map came from another server, whole: look at all of it.
    MapReplaced,
    /// What became of a proposal.
    Decided {
        /// The one.
        id: u64,
        /// Where it is in the log.
        index: u64,
        /// What became of it.
        outcome: Outcome,
    },
    /// Nothing became of a proposal, nor will.
    NotProposed {
        /// The one.
        id: u64,
        /// Why.
        why: NotProposed,
    },
    /// Another leads now, or nobody does.
    Leader {
        /// Who.
        leader: Option<MemberId>,
        /// In which term.
        term: u64,
    },
    /// The federation was begun anew by force, and its leader has sent a snapshot, which is checked:
    /// see [`crate::log::begin_generation`]. This node takes no further part; the one that goes on
    /// with the new log is to be told the message again, to answer it.
    NewGeneration {
        /// Who this server is in the new generation.
        identity: Identity,
        /// What it begins with.
        snapshot: Box<Snapshot>,
        /// Who sent it.
        from: MemberId,
        /// The message.
        bytes: Vec<u8>,
    },
}

/// Why a proposal cannot be decided here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotProposed {
    /// Ask the leader.
    #[error("this server does not lead; {}", leader.map_or("nobody does".into(), |leader| format!("{leader} does")))]
    NotLeader {
        /// Who leads, if that is known.
        leader: Option<MemberId>,
    },
    /// Ask again in a moment.
    #[error("too many changes wait, or the leader is about to change: try again")]
    Busy,
    /// Another leader's entry is in its place: ask again.
    #[error("the leader changed before this was decided: try again")]
    Superseded,
    /// Drain it first; it loses its vote within seconds.
    #[error("{0} still votes: drain it first, or use force")]
    StillVotes(MemberId),
    /// Drain it first; another leads then.
    #[error("{0} leads the federation: drain it first, also to remove it by force")]
    Leads(MemberId),
    /// Nothing could be decided any more.
    #[error(
        "without {0} the voters that are heard are no majority, and nothing could be decided any more: start the \
         others first, or drain it"
    )]
    LeavesNoMajority(MemberId),
    /// The control plane of this server does not run.
    #[error("this server takes no part in the control plane now: {0}")]
    Stopped(String),
    /// It breaks a limit.
    #[error(transparent)]
    Invalid(#[from] Malformed),
}

/// One server's part of the Raft group.
pub struct Node {
    raw: RawNode<Entries>,
    machine: Machine,
    member: MemberId,
    federation: FederationId,
    identity: Identity,
    /// Who votes and who learns, as of the last applied entry.
    configuration: ConfState,
    timeouts: Timeouts,
    ticks: u64,
    presence: Presence,
    /// Proposals of the term in which they were made, by index.
    pending: BTreeMap<u64, (u64, u64)>,
    unpersisted: VecDeque<Unpersisted>,
    /// Learners a snapshot was sent to, and when.
    snapshots: BTreeMap<MemberId, u64>,
    last_leader: (Option<MemberId>, u64),
    /// When a message of the leader came last.
    leader_contact: u64,
    /// Removals of voters that are on their way, by index.
    removals: BTreeMap<u64, MemberId>,
    /// Who has last spoken of this generation, and of another history.
    other_history: Option<MemberId>,
    refused_messages: u64,
    /// Entries after which the log is compacted, and how many stay.
    compaction: (usize, u64),
    is_over: bool,
}

/// A step of raft that waits until it is durable.
struct Unpersisted {
    number: u64,
    /// Nothing to write: it only waits for those before.
    is_written: bool,
    messages: Vec<Message>,
}

/// How long a voter waits for its leader. Raft draws it at random; ours goes by the voters' order,
/// which the term turns, so that they do not stand for election at once, and by a seed, so that the
/// same one gives the same run.
struct Timeouts {
    state: u64,
    ticks: usize,
    seen: (u64, StateRole, u64),
    /// Voters have changed.
    is_due: bool,
}

/// When the leader heard of whom.
#[derive(Default)]
struct Presence {
    /// The last time, and since when without a break.
    contacts: BTreeMap<MemberId, (u64, u64)>,
    leads_since: u64,
    gone: BTreeSet<MemberId>,
}

impl Node {
    /// A node that goes on with the content of a log. `seed` differs from server to server, and
    /// from start to start.
    ///
    /// # Errors
    /// When the log holds what this build cannot read.
    pub fn new(content: Content, seed: u64) -> Result<Self, Error> {
        let Content { mut identity, snapshot, base, entries, hard_state, .. } = content;
        let metadata = snapshot.get_metadata();
        let (index, configuration) = (metadata.index, metadata.get_conf_state().clone());
        let map = if index == 0 {
            let Identity { federation, generation, history, .. } = identity;
            Map { generation, history, ..Map::new(federation) }
        } else {
            Map::decode(&snapshot.data).map_err(Error::Map)?
        };
        if index != 0 {
            identity.history = map.history;
        }
        let mut timeouts = Timeouts::new(seed);
        let config = Config {
            id: identity.member.0,
            election_tick: MIN_ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            min_election_tick: MIN_ELECTION_TICKS,
            max_election_tick: MAX_ELECTION_TICKS,
            applied: index,
            max_size_per_msg: MAX_MESSAGE_BYTES,
            max_inflight_msgs: MAX_INFLIGHT_MESSAGES,
            check_quorum: true,
            pre_vote: true,
            max_uncommitted_size: MAX_UNCOMMITTED_BYTES,
            max_committed_size_per_ready: MAX_UNCOMMITTED_BYTES,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let store = Entries::new(snapshot, base, entries, hard_state);
        let mut raw = RawNode::new(&config, store, &logger).map_err(Error::raft)?;
        timeouts.apply(&mut raw, &configuration, true);
        Ok(Self {
            raw,
            machine: Machine::new(map, index),
            member: identity.member,
            federation: identity.federation,
            identity,
            configuration,
            timeouts,
            ticks: 0,
            presence: Presence::default(),
            pending: BTreeMap::new(),
            unpersisted: VecDeque::new(),
            snapshots: BTreeMap::new(),
            last_leader: (None, 0),
            leader_contact: 0,
            removals: BTreeMap::new(),
            other_history: None,
            refused_messages: 0,
            compaction: (COMPACT_ENTRIES, KEEP_ENTRIES),
            is_over: false,
        })
    }

    /// Takes an event, and adds to `commands` what is to be done.
    ///
    /// # Errors
    /// When what came cannot be read, and going on without it would be wrong.
    pub fn handle(&mut self, event: Event, commands: &mut Vec<Command>) -> Result<(), Error> {
        if self.is_over {
            return Ok(());
        }
        let mut has_campaigned = false;
        match event {
            Event::Tick => has_campaigned = self.tick(),
            Event::Receive { from, bytes } => self.receive(from, bytes, commands),
            Event::Propose { id, proposal } => {
                if let Err(why) = self.propose(id, &proposal) {
                    commands.push(Command::NotProposed { id, why });
                }
            }
            Event::Persisted(number) => self.persisted(number, commands),
            Event::Unreachable(member) => self.raw.report_unreachable(member.0),
        }
        if self.is_over {
            return Ok(());
        }
        while self.raw.has_ready() {
            self.step(commands)?;
        }
        if self.leads() && self.is_joint() {
            // At once: as long as two sets of voters decide, the loss of most of either stops both.
            self.change_voters();
            while self.raw.has_ready() {
                self.step(commands)?;
            }
        }
        self.timeouts.apply(&mut self.raw, &self.configuration, has_campaigned);
        self.compact(commands);
        self.tell_of_leader(commands);
        Ok(())
    }

    /// How many ticks from now something is done, or known, that was not before, if no other event
    /// comes: at least 1. The ticks before that one do nothing, so whoever drives this may sleep, and
    /// tick as often at once. (A leader looks at who votes by a few ticks later then.)
    pub fn quiet_ticks(&self) -> u64 {
        if self.is_over {
            return MAX_QUIET_TICKS;
        }
        let waits_for_loss = self.leads() && !self.snapshots.is_empty();
        let is_untold = self.last_leader != (self.leader(), self.term());
        if !self.unpersisted.is_empty() || waits_for_loss || is_untold {
            return 1;
        }
        let raft = &self.raw.raft;
        let left = |limit: usize, elapsed: usize| limit.saturating_sub(elapsed) as u64;
        let ConfState { voters, voters_outgoing, learners, .. } = &self.configuration;
        let quiet = if self.leads() && voters.len() + voters_outgoing.len() + learners.len() == 1 {
            VOTERS_TICKS - self.ticks % VOTERS_TICKS
        } else if self.leads() {
            let heartbeat = left(raft.heartbeat_timeout(), raft.heartbeat_elapsed());
            heartbeat.min(left(raft.election_timeout(), raft.election_elapsed))
        } else {
            let stands = left(raft.randomized_election_timeout(), raft.election_elapsed);
            let forgets = self.leader().map(|_| MAX_ELECTION_TICKS as u64 + 1 - (self.ticks - self.leader_contact));
            Some(stands).filter(|_| raft.promotable()).into_iter().chain(forgets).min().unwrap_or(MAX_QUIET_TICKS)
        };
        quiet.clamp(1, MAX_QUIET_TICKS)
    }

    /// The map, as far as this server knows.
    pub fn map(&self) -> &Map {
        self.machine.map()
    }

    /// Compacts after so many entries and keeps so many: fewer than usual, for tests.
    #[doc(hidden)]
    pub fn set_compaction(&mut self, compact: usize, keep: u64) {
        self.compaction = (compact, keep);
    }

    /// The index of the last applied entry.
    pub fn applied(&self) -> u64 {
        self.machine.applied()
    }

    /// The number of this server.
    pub fn member(&self) -> MemberId {
        self.member
    }

    /// Whether this server leads.
    pub fn leads(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// Who leads, as far as this server knows. One that learns elects nobody, and would know the last
    /// one for ever.
    pub fn leader(&self) -> Option<MemberId> {
        let is_present = self.leads() || self.ticks - self.leader_contact <= MAX_ELECTION_TICKS as u64;
        Some(MemberId(self.raw.raft.leader_id)).filter(|leader| leader.0 != 0 && is_present)
    }

    /// Who has last spoken of this generation, and of another history of it: two servers have begun
    /// the federation anew, each by itself.
    pub fn other_history(&self) -> Option<MemberId> {
        self.other_history
    }

    /// The term.
    pub fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// Who votes. While they change, both the old and the new.
    pub fn voters(&self) -> BTreeSet<MemberId> {
        let both = self.configuration.voters.iter().chain(&self.configuration.voters_outgoing);
        both.copied().map(MemberId).collect()
    }

    /// Whether voters are about to change: both the old and the new ones decide.
    pub fn is_joint(&self) -> bool {
        !self.configuration.voters_outgoing.is_empty()
    }

    /// Who learns only.
    pub fn learners(&self) -> BTreeSet<MemberId> {
        self.configuration.learners.iter().copied().map(MemberId).collect()
    }

    /// The servers that this leader has not heard for long.
    pub fn gone(&self) -> &BTreeSet<MemberId> {
        &self.presence.gone
    }

    /// How many messages were refused: unreadable, of another generation, not from whom they say,
    /// from a removed server.
    pub fn refused_messages(&self) -> u64 {
        self.refused_messages
    }

    /// Entries of Raft that this server keeps in memory.
    pub fn entry_count(&self) -> usize {
        self.raw.store().all().len()
    }

    /// Leaves out a rule, to see that tests find out.
    #[doc(hidden)]
    pub fn plant(&mut self, planted: Planted) {
        let rules = match planted {
            Planted::NoEpochs => Rules { compare_epochs: false, ..Rules::default() },
            Planted::RemovedMayAsk => Rules { refuse_removed: false, ..Rules::default() },
            Planted::FencePruned => Rules { remember_numbers: false, ..Rules::default() },
            Planted::TokensForEver => Rules { spend_tokens: false, ..Rules::default() },
        };
        self.machine.set_rules(rules);
    }

    fn tick(&mut self) -> bool {
        self.ticks += 1;
        // An only voter leads at once, and raft takes for granted that nothing waits then.
        if !self.unpersisted.is_empty() && !self.leads() && self.configuration.voters == [self.member.0] {
            return false;
        }
        let elapsed = self.raw.raft.election_elapsed;
        self.raw.tick();
        let has_campaigned = !self.leads() && self.raw.raft.election_elapsed < elapsed;
        if self.leads() {
            let members = self.configuration_members();
            self.presence.look(self.ticks, &members);
            self.forget_lost_snapshots();
            if self.ticks.is_multiple_of(VOTERS_TICKS) {
                self.change_voters();
            }
        }
        has_campaigned
    }

    fn receive(&mut self, from: MemberId, bytes: Vec<u8>, commands: &mut Vec<Command>) {
        let taken = self.take(from, bytes, commands);
        self.refused_messages += u64::from(taken.is_none());
    }

    /// Takes a message, unless it is to be refused.
    fn take(&mut self, from: MemberId, bytes: Vec<u8>, commands: &mut Vec<Command>) -> Option<()> {
        let ((generation, history), message) = wire::decode_message(&bytes).ok()?;
        let is_to_us = message.from == from.0 && message.to == self.member.0;
        if !is_to_us || self.map().is_removed(from) || generation < self.identity.generation {
            return None;
        }
        if generation > self.identity.generation {
            return self.take_new_generation((generation, history), from, bytes, &message, commands);
        }
        if history != self.identity.history {
            if self.identity.history != HistoryId::UNKNOWN {
                self.other_history = Some(from);
                return None;
            }
            if !is_of_leader(&message) {
                return None;
            }
            self.identity.history = history;
        }
        let raft = &self.raw.raft;
        let last = raft.raft_log.last_index();
        let is_term = message.term != 0 && message.term <= raft.term.saturating_add(MAX_TERM_STEP);
        // Nothing here sets these.
        if !is_term || message.priority != 0 || message.request_snapshot != 0 {
            return None;
        }
        match message.get_msg_type() {
            MessageType::MsgAppendResponse if message.index > last => return None,
            MessageType::MsgHeartbeat if message.commit > last => return None,
            MessageType::MsgAppend if !are_in_order(&message) => return None,
            MessageType::MsgSnapshot => drop(self.checked_snapshot((generation, history), &message)?),
            _ => {}
        }
        if is_of_leader(&message) && !self.configuration.voters.is_empty() && !self.voters().contains(&from) {
            // All voters may have changed while this server was off: a snapshot will say so. But not
            // while one is heard that leads by what this server knows.
            if self.leader().is_some() || message.get_msg_type() == MessageType::MsgTimeoutNow {
                return None;
            }
            if message.get_msg_type() != MessageType::MsgSnapshot {
                commands.extend(self.ask_for_snapshot((generation, history), &message));
                return Some(());
            }
        }
        self.presence.note(from, self.ticks);
        // Refused are answers to a leader that it is no more, or of a server that it does not know
        // yet; both come again if they matter.
        let _ = self.raw.step(message);
        if self.raw.raft.leader_id == from.0 {
            self.leader_contact = self.ticks;
        }
        Some(())
    }

    /// What a later generation says. It has this server as one that knows nothing: nothing is given
    /// up here before its snapshot has come and is found to be right.
    fn take_new_generation(
        &mut self,
        of: (u64, HistoryId),
        from: MemberId,
        bytes: Vec<u8>,
        message: &Message,
        commands: &mut Vec<Command>,
    ) -> Option<()> {
        if of.0 - self.identity.generation > MAX_GENERATION_STEP || message.term == 0 {
            return None;
        }
        if message.get_msg_type() != MessageType::MsgSnapshot {
            commands.push(self.ask_for_snapshot(of, message)?);
            return Some(());
        }
        let map = self.checked_snapshot(of, message)?;
        map.server(self.member)?;
        self.is_over = true;
        let identity = Identity { generation: of.0, history: of.1, ..self.identity };
        let snapshot = Box::new(message.get_snapshot().clone());
        commands.push(Command::NewGeneration { identity, snapshot, from, bytes });
        Some(())
    }

    /// Answers a leader so that it sends its snapshot: as a server does that has nothing. Promises
    /// nothing.
    fn ask_for_snapshot(&self, of: (u64, HistoryId), to: &Message) -> Option<Command> {
        let mut answer = Message { to: to.from, from: self.member.0, term: to.term, ..Message::default() };
        match to.get_msg_type() {
            MessageType::MsgAppend => {
                answer.set_msg_type(MessageType::MsgAppendResponse);
                (answer.index, answer.reject) = (to.index, true);
            }
            MessageType::MsgHeartbeat => answer.set_msg_type(MessageType::MsgHeartbeatResponse),
            _ => return None,
        }
        let bytes = wire::encode_message(of, &answer)?;
        Some(Command::Send { to: MemberId(to.from), bytes })
    }

    /// The map of a snapshot that this server can begin with, sent by one of its voters.
    fn checked_snapshot(&self, (generation, history): (u64, HistoryId), message: &Message) -> Option<Map> {
        let snapshot = message.get_snapshot();
        let metadata = snapshot.get_metadata();
        let configuration = metadata.get_conf_state();
        let (voters, outgoing) = (unique(&configuration.voters)?, unique(&configuration.voters_outgoing)?);
        let (learners, next) = (unique(&configuration.learners)?, unique(&configuration.learners_next)?);
        let (is_voter, learns) =
            (|member: u64| voters.contains(&member) || outgoing.contains(&member), |member| learners.contains(&member));
        let is_configuration = !voters.is_empty()
            && is_voter(message.from)
            && (is_voter(self.member.0) || learns(self.member.0))
            && !learners.iter().any(|member| is_voter(*member))
            && next.is_subset(&outgoing)
            && next.is_disjoint(&voters);
        let is_place = metadata.index > 0 && (1..=message.term).contains(&metadata.term);
        if !is_configuration || !is_place {
            return None;
        }
        let map = Map::decode(&snapshot.data).ok()?;
        let is_ours = map.federation == self.federation && (map.generation, map.history) == (generation, history);
        is_ours.then_some(map)
    }

    /// Whether the federation can go on without this server, which is to be removed.
    fn check_removal(&self, member: MemberId, force: bool) -> Result<(), NotProposed> {
        let map = self.map();
        // The last server is refused with better words.
        if map.is_removed(member) || map.members().count() == 1 {
            return Ok(());
        }
        if member == self.member {
            return Err(NotProposed::Leads(member));
        }
        if !self.voters().contains(&member) {
            return Ok(());
        }
        if !force {
            return Err(NotProposed::StillVotes(member));
        }
        // Entries of former leaders may remove somebody as well. Who leads since a moment ago has
        // heard nobody.
        let log = &self.raw.raft.raft_log;
        let is_settled = self.raw.raft.commit_to_current_term()
            && self.machine.applied() == log.committed
            && self.removals.is_empty()
            && !self.is_joint()
            && self.ticks - self.presence.leads_since > SILENCE_TICKS;
        if !is_settled || self.voters().iter().any(|voter| map.is_removed(*voter)) {
            return Err(NotProposed::Busy);
        }
        let is_present = |voter: &&u64| {
            let voter = MemberId(**voter);
            voter != member && (voter == self.member || self.presence.is_in_touch(voter, self.ticks))
        };
        let voters = &self.configuration.voters;
        if voters.iter().filter(is_present).count() * 2 <= voters.len() {
            return Err(NotProposed::LeavesNoMajority(member));
        }
        Ok(())
    }

    fn propose(&mut self, id: u64, proposal: &Proposal) -> Result<(), NotProposed> {
        if !self.leads() {
            return Err(NotProposed::NotLeader { leader: self.leader() });
        }
        let bytes = proposal.encode();
        // What cannot be read again would stop every server.
        Proposal::decode(&bytes)?;
        if let Entry::Remove { member, force } = proposal.entry {
            self.check_removal(member, force)?;
        }
        if self.pending.len() >= MAX_PENDING_PROPOSALS {
            return Err(NotProposed::Busy);
        }
        self.raw.propose(Vec::new(), bytes).map_err(|_| NotProposed::Busy)?;
        let index = self.raw.raft.raft_log.last_index();
        self.pending.insert(index, (self.term(), id));
        if let Entry::Remove { member, .. } = proposal.entry {
            self.removals.insert(index, member);
        }
        Ok(())
    }

    /// Takes one step of raft, in the order that it asks for.
    fn step(&mut self, commands: &mut Vec<Command>) -> Result<(), Error> {
        let mut ready = self.raw.ready();
        self.send(ready.take_messages(), commands);
        let mut records = Records::new(self.identity.history, ready.must_sync());
        if !ready.snapshot().is_empty() {
            let snapshot = ready.snapshot().clone();
            self.install(snapshot.clone(), commands)?;
            records.base = self.raw.store().base();
            records.snapshot = Some(snapshot);
        }
        if let Some(hard_state) = ready.hs() {
            self.raw.mut_store().set_hard_state(hard_state.clone());
            records.hard_state = Some(hard_state.clone());
        } else if records.snapshot.is_some() {
            records.hard_state = Some(self.raw.store().hard_state().clone());
        }
        records.entries = ready.take_entries();
        self.raw.mut_store().append(&records.entries);
        let committed = ready.take_committed_entries();
        self.apply(committed, commands)?;
        self.persist(ready, records, commands);
        Ok(())
    }

    fn persist(&mut self, mut ready: Ready, records: Records, commands: &mut Vec<Command>) {
        let number = ready.number();
        let messages = ready.take_persisted_messages();
        let has_snapshot = records.snapshot.is_some();
        let is_written = records.snapshot.is_none() && records.hard_state.is_none() && records.entries.is_empty();
        if !is_written {
            commands.push(Command::Persist { number, records });
        }
        self.raw.advance_append_async(ready);
        if !has_snapshot {
            self.advance_apply();
        }
        self.unpersisted.push_back(Unpersisted { number, is_written, messages });
        self.persisted(0, commands);
    }

    /// Lets go what waited for `number`, or for nothing.
    fn persisted(&mut self, number: u64, commands: &mut Vec<Command>) {
        let mut last = None;
        while let Some(first) = self.unpersisted.front()
            && (first.is_written || first.number <= number)
            && let Some(first) = self.unpersisted.pop_front()
        {
            last = Some(first.number);
            self.send(first.messages, commands);
        }
        if let Some(last) = last {
            self.raw.on_persist_ready(last);
            self.advance_apply();
        }
    }

    fn advance_apply(&mut self) {
        let log = &self.raw.raft.raft_log;
        let applied = self.machine.applied();
        // A snapshot is applied here before it is durable, and raft hears of it afterwards.
        if applied <= log.committed.min(log.persisted) && applied > log.applied {
            self.raw.advance_apply_to(applied);
        }
    }

    fn send(&mut self, messages: Vec<Message>, commands: &mut Vec<Command>) {
        for message in messages {
            let to = MemberId(message.to);
            if message.get_msg_type() == MessageType::MsgSnapshot {
                self.snapshots.insert(to, self.ticks);
            }
            let of = (self.identity.generation, self.identity.history);
            let bytes = wire::encode_message(of, &message);
            commands.extend(bytes.map(|bytes| Command::Send { to, bytes }));
        }
    }

    fn install(&mut self, snapshot: Snapshot, commands: &mut Vec<Command>) -> Result<(), Error> {
        let metadata = snapshot.get_metadata();
        let map = Map::decode(&snapshot.data).map_err(Error::Map)?;
        let rules = self.machine.rules();
        self.machine = Machine::new(map, metadata.index);
        self.machine.set_rules(rules);
        self.configuration = metadata.get_conf_state().clone();
        self.timeouts.is_due = true;
        self.raw.mut_store().install(snapshot);
        let superseded = self.pending.split_off(&(self.machine.applied() + 1));
        self.pending = superseded;
        commands.push(Command::MapReplaced);
        Ok(())
    }

    fn apply(&mut self, committed: Vec<RaftEntry>, commands: &mut Vec<Command>) -> Result<(), Error> {
        let mut has_changed_voters = false;
        for entry in committed {
            let index = entry.index;
            self.removals.remove(&index);
            let mut outcome = None;
            match entry.get_entry_type() {
                EntryType::EntryNormal if entry.data.is_empty() => self.machine.skip(index),
                EntryType::EntryNormal => {
                    let proposal = Proposal::decode(&entry.data).map_err(|why| Error::Entry { index, why })?;
                    let became = self.machine.apply(index, &proposal);
                    outcome = Some(became.clone());
                    commands.push(Command::Applied { index, proposal, outcome: became });
                }
                EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
                    self.machine.skip(index);
                    let change = wire::decode_change(&entry.data).map_err(|why| Error::Entry { index, why })?;
                    self.configuration = self.raw.apply_conf_change(&change).map_err(Error::raft)?;
                    has_changed_voters = true;
                }
            }
            if let Some((term, id)) = self.pending.remove(&index) {
                commands.push(match outcome {
                    Some(outcome) if term == entry.term => Command::Decided { id, index, outcome },
                    _ => Command::NotProposed { id, why: NotProposed::Superseded },
                });
            }
        }
        if has_changed_voters {
            self.timeouts.is_due = true;
            // A learner takes no snapshot that does not know it.
            let snapshot = self.snapshot()?;
            self.raw.mut_store().set_snapshot(snapshot);
        }
        Ok(())
    }

    /// The map as it is now.
    fn snapshot(&self) -> Result<Snapshot, Error> {
        let index = self.machine.applied();
        let mut snapshot = Snapshot { data: self.map().encode().into(), ..Snapshot::default() };
        let metadata = snapshot.mut_metadata();
        metadata.index = index;
        metadata.term = self.raw.store().term_at(index).ok_or(Error::Raft(format!("entry {index} has no term")))?;
        metadata.set_conf_state(self.configuration.clone());
        Ok(snapshot)
    }

    fn compact(&mut self, commands: &mut Vec<Command>) {
        let store = self.raw.store();
        let applied = self.machine.applied();
        let (most, keep) = self.compaction;
        if store.all().len() < most + keep as usize || applied < store.base().0 + keep + most as u64 / 2 {
            return;
        }
        // Without a term there is nothing to compact to: it is not reached, and if it were, the log
        // would only be longer.
        let Ok(snapshot) = self.snapshot() else { return };
        let store = self.raw.mut_store();
        store.compact(snapshot.clone(), keep);
        commands.push(Command::Compact(Records {
            snapshot: Some(snapshot),
            base: store.base(),
            hard_state: Some(store.hard_state().clone()),
            entries: store.all().to_vec(),
            ..Records::new(self.identity.history, true)
        }));
    }

    fn tell_of_leader(&mut self, commands: &mut Vec<Command>) {
        let now = (self.leader(), self.term());
        if now == self.last_leader {
            return;
        }
        self.last_leader = now;
        self.removals.clear();
        self.presence = Presence { leads_since: self.ticks, ..Presence::default() };
        let (leader, term) = now;
        commands.push(Command::Leader { leader, term });
    }

    /// All others that vote or learn.
    fn configuration_members(&self) -> BTreeSet<MemberId> {
        let mut members = self.voters();
        members.extend(self.learners());
        members.remove(&self.member);
        members
    }

    fn forget_lost_snapshots(&mut self) {
        let now = self.ticks;
        let lost: Vec<MemberId> = self
            .snapshots
            .iter()
            .filter(|(_, sent)| now - **sent > SNAPSHOT_TICKS)
            .map(|(member, _)| *member)
            .collect();
        for member in lost {
            self.snapshots.remove(&member);
            // Nothing comes of it where it has arrived.
            self.raw.report_snapshot(member.0, SnapshotStatus::Failure);
        }
    }

    /// Brings voters and learners closer to what they should be, one change at a time.
    fn change_voters(&mut self) {
        let raft = &self.raw.raft;
        if raft.has_pending_conf() || raft.lead_transferee.is_some() || !raft.commit_to_current_term() {
            return;
        }
        if self.is_joint() {
            // Refused only when another change is on its way; then it is tried again.
            let _ = self.raw.propose_conf_change(Vec::new(), ConfChangeV2::default());
            return;
        }
        let voters: BTreeSet<MemberId> = self.configuration.voters.iter().copied().map(MemberId).collect();
        let wanted = voters::choose(self.map(), &voters, &self.presence.gone, self.member);
        if wanted.is_empty() {
            return;
        }
        if !wanted.contains(&self.member) && wanted.is_subset(&voters) {
            let best = wanted.iter().copied().filter(|member| self.is_near(*member));
            let progress = |member: &MemberId| raft.prs().get(member.0).map_or(0, |progress| progress.matched);
            if let Some(next) = best.max_by_key(progress) {
                self.raw.transfer_leader(next.0);
            }
            return;
        }
        let changes = self.changes(&voters, &self.reachable(&voters, &wanted));
        if !changes.is_empty() {
            let change = ConfChangeV2 { changes: changes.into(), ..ConfChangeV2::default() };
            let change = explicit(change);
            let _ = self.raw.propose_conf_change(Vec::new(), change);
        }
    }

    /// The voters that can be had now: `wanted` once all of them have caught up; until then those of
    /// today, but for those that are lost, whose place goes to who is ready.
    fn reachable(&self, voters: &BTreeSet<MemberId>, wanted: &BTreeSet<MemberId>) -> BTreeSet<MemberId> {
        let ready: BTreeSet<MemberId> =
            wanted.iter().copied().filter(|member| voters.contains(member) || self.is_near(*member)).collect();
        let mut reachable = if ready == *wanted {
            ready
        } else {
            let is_lost = |member: &MemberId| self.map().is_removed(*member) || self.presence.gone.contains(member);
            let mut kept = voters.clone();
            let mut replacements = ready.difference(voters).copied();
            for lost in voters.iter().filter(|member| is_lost(member)) {
                let replacement = replacements.next();
                if replacement.is_some() || self.map().is_removed(*lost) {
                    kept.remove(lost);
                }
                kept.extend(replacement);
            }
            kept
        };
        // It gives up the lead before its vote.
        reachable.insert(self.member);
        reachable
    }

    /// Whether a server has been heard and lacks few entries.
    fn is_near(&self, member: MemberId) -> bool {
        let raft = &self.raw.raft;
        let lacks_little = raft
            .prs()
            .get(member.0)
            .is_some_and(|progress| progress.matched + MAX_LAG_ENTRIES >= raft.raft_log.committed);
        member == self.member || lacks_little && self.presence.is_in_touch(member, self.ticks)
    }

    fn changes(&self, voters: &BTreeSet<MemberId>, to: &BTreeSet<MemberId>) -> Vec<ConfChangeSingle> {
        let learners = self.learners();
        let members: BTreeSet<MemberId> = self.map().members().map(|(member, _)| member).collect();
        let single = |member: &MemberId, kind: ConfChangeType| {
            let mut change = ConfChangeSingle { node_id: member.0, ..ConfChangeSingle::default() };
            change.set_change_type(kind);
            change
        };
        let mut changes = Vec::new();
        changes.extend(to.difference(voters).map(|member| single(member, ConfChangeType::AddNode)));
        for member in voters.difference(to) {
            let stays = members.contains(member);
            let kind = if stays { ConfChangeType::AddLearnerNode } else { ConfChangeType::RemoveNode };
            changes.push(single(member, kind));
        }
        let others = members.iter().filter(|member| !voters.contains(member) && !to.contains(member));
        let new = others.filter(|member| !learners.contains(member));
        changes.extend(new.map(|member| single(member, ConfChangeType::AddLearnerNode)));
        let past = learners.iter().filter(|member| !members.contains(member) && !to.contains(member));
        changes.extend(past.map(|member| single(member, ConfChangeType::RemoveNode)));
        changes
    }
}

/// Whether only a leader says this.
fn is_of_leader(message: &Message) -> bool {
    matches!(
        message.get_msg_type(),
        MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot | MessageType::MsgTimeoutNow
    )
}

/// Whether entries follow each other, and what is before them, in terms up to the message's.
fn are_in_order(message: &Message) -> bool {
    let (mut index, mut term) = (message.index, message.log_term);
    let follow = message.get_entries().iter().all(|entry| {
        let follows = index.checked_add(1) == Some(entry.index) && term <= entry.term;
        (index, term) = (entry.index, entry.term);
        follows
    });
    follow && term <= message.term
}

/// Members of a configuration of raft, if none is there twice.
fn unique(members: &[u64]) -> Option<BTreeSet<u64>> {
    let all: BTreeSet<u64> = members.iter().copied().filter(|member| *member != 0).collect();
    (all.len() == members.len()).then_some(all)
}

/// Whether these bytes may be a message of another server: only snapshots are large. Whoever gives
/// messages to a node keeps so much of them at most.
pub fn may_be_message(bytes: &[u8]) -> bool {
    wire::has_a_length_to_be(bytes)
}

/// The longest message.
pub const MAX_RECEIVED_BYTES: usize = wire::MAX_LARGE_MESSAGE_BYTES;

/// Several changes at once go through joint consensus. Whoever leads then proposes to leave it:
/// raft's own way forgets to, where the leader changes in between.
fn explicit(mut change: ConfChangeV2) -> ConfChangeV2 {
    if change.changes.len() > 1 {
        change.set_transition(raft::eraftpb::ConfChangeTransition::Explicit);
    }
    change
}

/// What tests leave out, to see that they find out.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Entries about shards are applied whatever epoch they assume.
    NoEpochs,
    /// What removed servers ask for is done.
    RemovedMayAsk,
    /// A removed server is known by what is remembered of it, not by its number.
    FencePruned,
    /// A token is good for ever.
    TokensForEver,
}

impl Timeouts {
    fn new(seed: u64) -> Self {
        Self { state: seed, ticks: MIN_ELECTION_TICKS, seen: (0, StateRole::Follower, 0), is_due: true }
    }

    /// Draws anew when raft has, and puts ours in place of its own.
    fn apply(&mut self, raw: &mut RawNode<Entries>, configuration: &ConfState, has_campaigned: bool) {
        let raft = &mut raw.raft;
        let now = (raft.term, raft.state, raft.leader_id);
        if has_campaigned || self.is_due || now != self.seen {
            self.seen = now;
            self.is_due = false;
            let all: BTreeSet<u64> =
                configuration.voters.iter().chain(&configuration.voters_outgoing).copied().collect();
            let position = all.iter().position(|voter| *voter == raft.id).unwrap_or_default();
            let rank = (position + raft.term as usize) % all.len().max(1);
            let jitter = (self.draw() % ELECTION_JITTER_TICKS) as usize;
            self.ticks = MIN_ELECTION_TICKS + rank.min(voters::MAX_VOTERS) * ELECTION_STEP_TICKS + jitter;
        }
        raft.set_randomized_election_timeout(self.ticks);
    }

    /// SplitMix64 (Steele, Lea and Flood 2014).
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }
}

impl Presence {
    fn note(&mut self, member: MemberId, now: u64) {
        let (last, since) = self.contacts.entry(member).or_insert((now, now));
        if now - *last > SILENCE_TICKS {
            *since = now;
        }
        *last = now;
    }

    fn is_in_touch(&self, member: MemberId, now: u64) -> bool {
        self.contacts.get(&member).is_some_and(|(last, _)| now - last <= SILENCE_TICKS)
    }

    /// Notes who is gone for long, and who is back.
    fn look(&mut self, now: u64, members: &BTreeSet<MemberId>) {
        self.gone.retain(|member| members.contains(member));
        self.contacts.retain(|member, _| members.contains(member));
        for member in members.iter().copied() {
            match self.contacts.get(&member) {
                Some((last, since)) if now - last <= SILENCE_TICKS => {
                    if now - since >= BACK_TICKS {
                        self.gone.remove(&member);
                    }
                }
                Some((last, _)) if now - last <= GONE_TICKS => {}
                None if now - self.leads_since <= GONE_TICKS => {}
                _ => {
                    self.gone.insert(member);
                }
            }
        }
    }
}
