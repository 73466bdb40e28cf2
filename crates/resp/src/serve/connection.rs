//! One connection: received bytes, replies, and the client between them.
//!
//! Requests are executed in rounds: all that have come whole, one after the other. The replies of a
//! round are sent when its writes are committed, and copies of the shards that it has read or
//! written have what the level of the client at each command asks for.
//!
//! Bounds: a round ends after [`Limits::pipeline_requests`](crate::service::Limits) requests,
//! [`Limits::ROUND_REPLY_BYTES`] of replies or [`ROUND_TIME`] after the first, so that no client
//! monopolizes a thread, and replies do not pile up. A request that is longer than the limits allow
//! is refused before its bytes are kept. What comes while a client takes no replies waits, up to
//! [`Limits::output_bytes`](crate::service::Limits): many clients send everything before they read.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::answer::Answer;
use crate::client::{Awaited, Client, Then};
use crate::client_events::ClientEvent;
use crate::command::flag;
use crate::command::table::resolve;
use crate::copies::{Did, Unanswered, failure};
use crate::execute::{ExecutionMode, Step, destination, execute};
use crate::protocol::reply::{Reply, Version};
use crate::protocol::request::{self, Parser, ProtocolError, range_bytes};
use crate::service::{Limits, Service};
use ecotone_keyspace::error::{Failure, texts};
use ecotone_keyspace::gate::Level;
use ecotone_keyspace::{Blocking, CommitError, SeenGate, ShardSet, Slot, WriteGroup};

use super::held_replies::{HeldReplies, ReachedFuture};
use super::memory::Charge;
use super::prefetch::read_keys;

/// Bytes that are read from a socket at once.
pub(super) const READ_BYTES: usize = 64 * 1024;

/// A round of several requests ends after this: some read a long value for a short reply.
const ROUND_TIME: Duration = Duration::from_millis(1);

/// A buffer that has grown beyond this is freed when it is empty; any is while clients take half of
/// their memory limit, so that idle ones leave the rest to others.
const KEPT_BYTES: usize = 16 * 1024;

/// A full buffer grows by one part in so many.
const GROWTH: usize = 8;

/// Requests of a pipeline that other servers are asked for before their replies are awaited.
const MAX_FORWARDED_AT_ONCE: usize = 256;

/// Bytes of these after which no further one is taken.
const MAX_FORWARDED_BYTES: usize = 1 << 20;

/// Arguments that take no allocation.
const FEW: usize = 16;

/// The reply instead of one that is longer than its client may be owed.
const TOO_LONG: &str = "ERR the reply is longer than a client may be owed (clients.max_output_bytes)";

/// The state of a connection between two rounds. May move between threads.
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) reply: Reply,
    /// What came and was not executed.
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were executed.
    done: usize,
    parser: Parser,
    ranges: Vec<Range<usize>>,
    /// Replies that depend on a commit or on copies, in their order.
    dependents: Vec<Dependent>,
    /// The gates that they depend on, as they were before anything was read or written.
    gates: Vec<SeenGate>,
    /// The shards that its client has written to since it was throttled last.
    pub(super) written: ShardSet,
    /// Where the reply begins that is sent after throttling.
    rests_from: usize,
    /// How long it is still to be throttled for its writes.
    pub(super) owed_rest: Duration,
    charge: Charge,
    /// Memory of the replies that are being sent.
    sending_bytes: usize,
    limits: Arc<Limits>,
    /// Whether a round ends before what takes a latch.
    only_reads: bool,
    /// Whether data of the store was read since the last call of `may_tell_unsynced`.
    has_read: bool,
}

/// A reply that may have to be another one, or to wait.
struct Dependent {
    /// Where it is.
    replied: Range<usize>,
    /// The shards for which the commit must not fail. None once it is over.
    commits_to: ShardSet,
    /// The shards with copies that it tells of.
    seen: ShardSet,
    /// The level of its client then.
    level: Option<Level>,
    /// Whether its command has written.
    wrote: bool,
}

/// What replies wait for at one gate.
pub(super) struct Condition {
    shard: ShardSet,
    level: Option<Level>,
    wrote: bool,
    /// That it is reached.
    pub(super) reached: Rc<ReachedFuture>,
}

/// Why a round has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// All that came is executed.
    Empty,
    /// There is more, after the replies are sent.
    Full,
    /// The next request needs a latch that another client holds.
    Latched,
    /// The next request takes more than reads from memory.
    WouldBlock,
    /// The same, and it needs no latch: uncommitted writes of others do not concern it.
    ReadWouldBlock,
    /// The next request is another server's, which is to be asked for the client.
    Elsewhere,
    /// The connection closes when the replies are sent.
    Closes,
}

impl Connection {
    pub(super) fn new(client: Client, limits: Arc<Limits>) -> Self {
        Self {
            client,
            reply: Reply::new(Version::Resp2),
            buffer: Vec::new(),
            done: 0,
            parser: Parser::new(),
            ranges: Vec::new(),
            dependents: Vec::new(),
            gates: Vec::new(),
            written: ShardSet::default(),
            rests_from: 0,
            owed_rest: Duration::ZERO,
            charge: Charge::default(),
            sending_bytes: 0,
            limits,
            only_reads: false,
            has_read: false,
        }
    }

    /// Its limits.
    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Adopts the current limits.
    pub(super) fn take_limits(&mut self, service: &Service) {
        let limits = service.limits.read();
        if !Arc::ptr_eq(&limits, &self.limits) {
            self.limits = limits.clone();
        }
    }

    /// Whether its client is authenticated, or need not be any more.
    fn is_let_in(&self) -> bool {
        self.client.is_authenticated || self.limits.password.is_none()
    }

    /// The first byte that waits to be executed.
    pub(super) fn next_byte(&self) -> Option<u8> {
        self.buffer.get(self.done).copied()
    }

    /// More bytes came.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        // A long rest is not moved for each short request.
        if self.done > self.waiting_bytes() {
            self.buffer.drain(..self.done);
            self.done = 0;
        }
        let needs = self.parser.needs().map_or(0, |needs| needs.saturating_sub(self.waiting_bytes()));
        if needs.max(bytes.len()) > self.buffer.capacity() - self.buffer.len() {
            // Not to twice the size: all clients share the memory.
            self.buffer.reserve_exact(needs.max(bytes.len()).max(self.buffer.len() / GROWTH));
        }
        self.buffer.extend_from_slice(bytes);
        // Before a command that lists clients is executed.
        self.show_received();
    }

    fn show_received(&self) {
        let buffers = &self.client.info.buffers;
        buffers.query_bytes.store(self.waiting_bytes(), Ordering::Relaxed);
        buffers.query_capacity.store(self.buffer.capacity(), Ordering::Relaxed);
    }

    /// Publishes the memory that it takes, after a round that has ended so.
    fn show(&self, ended: Ended) {
        self.show_received();
        let buffers = &self.client.info.buffers;
        let argument_bytes = match ended {
            // The beginning of a request may be left.
            Ended::Empty if self.waiting_bytes() == 0 => 0,
            Ended::Full | Ended::Closes => 0,
            Ended::Empty | Ended::Latched | Ended::WouldBlock | Ended::ReadWouldBlock | Ended::Elsewhere => {
                self.parser.argument_bytes()
            }
        };
        buffers.argument_bytes.store(argument_bytes, Ordering::Relaxed);
        buffers.other_bytes.store(self.other_bytes(), Ordering::Relaxed);
        self.show_replies();
        buffers.note_peaks(self.client.info.active_ms.load(Ordering::Relaxed));
    }

    /// Publishes how much is replied and not sent.
    fn show_replies(&self) {
        let buffers = &self.client.info.buffers;
        buffers.reply_bytes.store(self.reply.len(), Ordering::Relaxed);
        buffers.reply_capacity.store(self.reply.capacity(), Ordering::Relaxed);
    }

    /// Whether the replies since the last call may reveal writes of others that are not synced yet.
    /// The caller syncs them then.
    pub(super) fn may_tell_unsynced(&mut self, service: &Service) -> bool {
        std::mem::take(&mut self.has_read) && !self.reply.is_empty() && service.keyspace.has_unsynced()
    }

    /// Bytes that wait to be executed.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.buffer.len() - self.done
    }

    /// Whether more may come before the replies that are being sent are taken.
    pub(super) fn may_receive_more(&self, service: &Service) -> bool {
        let bytes = self.memory_bytes() + READ_BYTES + self.buffer.len() / GROWTH;
        self.is_let_in() && bytes <= self.limits.output_bytes.min(self.charge.left(service, true))
    }

    /// More bytes came, before the replies that are being sent were taken.
    pub(super) fn receive_more(&mut self, service: &Service, bytes: &[u8]) {
        self.receive(bytes);
        self.charge.set(service, self.memory_bytes());
    }

    /// Executes the next request and those behind it, where they only read; [`Ended::Latched`]
    /// where the next one needs a latch that is held. May block.
    pub(super) fn reading_round(&mut self, service: &Service, group: &mut WriteGroup) -> Ended {
        self.only_reads = true;
        let ended = self.round(service, group, Blocking::Allowed);
        self.only_reads = false;
        ended
    }

    /// Executes what has come. Does not commit; [`depends`](Self::depends) returns whether the
    /// replies must wait for that.
    pub(super) fn round(&mut self, service: &Service, group: &mut WriteGroup, blocking: Blocking) -> Ended {
        self.take_limits(service);
        self.reply.bound_to(self.limits.output_bytes.min(self.charge.left(service, self.is_let_in())));
        self.reply.take_from(service.keyspace.memory());
        // Of whoever wrote into the group before.
        group.take_gates();
        let ended = self.carry_out(service, group, blocking);
        for seen in group.take_gates() {
            // One that has gone meanwhile refuses what depends on another in its place.
            if self.gates.iter().all(|known| known.shard() != seen.shard()) {
                self.gates.push(seen);
            }
        }
        if self.done == self.buffer.len() {
            self.done = 0;
            if self.buffer.capacity() > self.kept_bytes(service) {
                self.buffer = Vec::new();
            } else {
                self.buffer.clear();
            }
            self.parser.forget(&mut self.ranges);
        }
        self.charge.set(service, self.memory_bytes());
        self.reply.is_counted();
        self.show(ended);
        ended
    }

    /// See [`KEPT_BYTES`].
    fn kept_bytes(&self, service: &Service) -> usize {
        let is_half_taken = service.client_memory.load(Ordering::Relaxed) > self.limits.memory_bytes / 2;
        if is_half_taken { 0 } else { KEPT_BYTES }
    }

    /// Memory that it takes.
    fn memory_bytes(&self) -> usize {
        self.buffer.capacity() + self.reply.capacity() + self.sending_bytes + self.other_bytes()
    }

    /// The part of that which is neither requests nor replies.
    fn other_bytes(&self) -> usize {
        self.parser.memory_bytes() + range_bytes(&self.ranges) + self.client.memory_bytes()
    }

    fn carry_out(&mut self, service: &Service, group: &mut WriteGroup, blocking: Blocking) -> Ended {
        let shards = OnceCell::new();
        // No prefetch once it was of no use: each row is looked up once.
        let (mut prefetched, mut looks_ahead) = (VecDeque::new(), true);
        // At the second request: most rounds have one.
        let mut began = None;
        for number in 0..self.limits.pipeline_requests {
            if self.done == self.buffer.len() {
                return Ended::Empty;
            }
            // After a request that was refused for this none may be executed.
            if service.stops.load(Ordering::Relaxed) {
                return Ended::Closes;
            }
            let is_long = number > 0 && began.get_or_insert_with(Instant::now).elapsed() >= ROUND_TIME;
            if is_long || self.reply.len() >= Limits::ROUND_REPLY_BYTES || self.reply.is_half_full() {
                return Ended::Full;
            }
            let limits = self.request_limits();
            let bytes = &self.buffer[self.done..];
            let consumed = match self.parser.parse(bytes, &limits, &mut self.ranges) {
                // What came while something was sent may be a whole request.
                Ok(parsed) if parsed.unwrap_or(bytes.len()) > self.limits.request_bytes => {
                    let most = self.limits.request_bytes;
                    let why = format!(
                        "ERR Protocol error: the request is longer than {most} bytes (clients.max_request_bytes)"
                    );
                    if let Some(others) = service.client_events.note(ClientEvent::MaxRequestBytes) {
                        tracing::info!(
                            client = %self.client.info.address, limit = "max_request_bytes", limit_bytes = most, others,
                            "a client sent a longer request; it is disconnected"
                        );
                    }
                    return self.refuse(service, why.as_bytes());
                }
                Ok(Some(consumed)) => consumed,
                Ok(None) if self.is_refused_memory(service, bytes.len()) => {
                    if let Some(others) = service.client_events.note(ClientEvent::MaxMemoryBytes) {
                        tracing::warn!(
                            client = %self.client.info.address, limit = "max_memory_bytes", limit_bytes = self.limits.memory_bytes, others,
                            "all clients together keep as much memory as they may, and one sends more; it is disconnected"
                        );
                    }
                    return self.refuse(service, &texts::SHORT_OF_MEMORY.reply());
                }
                Ok(None) => return Ended::Empty,
                Err(error) => {
                    if error == ProtocolError::ExcessiveBulk
                        && self.is_let_in()
                        && let Some(others) = service.client_events.note(ClientEvent::MaxArgumentBytes)
                    {
                        tracing::info!(
                            client = %self.client.info.address, limit = "max_argument_bytes", limit_bytes = limits.bulk_bytes, others,
                            "a client announced a longer argument; it is disconnected"
                        );
                    }
                    return self.refuse(service, &error.reply());
                }
            };
            self.client.info.buffers.argument_bytes.store(self.parser.argument_bytes(), Ordering::Relaxed);
            let source = self.parser.source(bytes);
            let began = self.reply.len();
            // The round holds latches for its earlier writes, and may hold them for a short read
            // from the device, but no longer.
            let briefly = blocking == Blocking::Allowed && group.holds_any();
            let blocking = if briefly { Blocking::Briefly } else { blocking };
            if prefetched.is_empty() && looks_ahead && bytes.len() > consumed && self.client.is_plain() {
                let keys = read_keys(bytes);
                let shards = shards.get_or_init(|| service.keyspace.held());
                if keys.len() > 1 && service.keyspace.are_newest(shards) {
                    group.see(keys.iter().map(|key| Slot::of(key)));
                    prefetched = shards.prefetch(keys.into_iter(), blocking, None);
                }
            }
            let mode =
                ExecutionMode { blocking, waits_for_latches: !self.only_reads, prefetched: prefetched.pop_front() };
            self.has_read |= mode.prefetched.is_some();
            group.take_has_read();
            group.take_touched();
            group.take_seen();
            group.take_wrote();
            let mut only_reads = false;
            let only_reads_here = self.only_reads && number > 0;
            let step = with_arguments(source, &self.ranges, |arguments| {
                if only_reads_here && (self.client.transaction.is_some() || !takes_no_latch(arguments)) {
                    return Step::Latched;
                }
                let step = execute(service, &mut self.client, group, arguments, &mut self.reply, mode);
                let is_done = matches!(step, Step::Done { .. });
                only_reads = !is_done && self.client.transaction.is_none() && takes_no_latch(arguments);
                step
            });
            let has_read = group.take_has_read();
            let (touched, seen, wrote) = (group.take_touched(), group.take_seen(), group.take_wrote());
            self.has_read |= has_read;
            if has_read && !prefetched.is_empty() {
                // Its client has seen a later state than the prefetched rows.
                prefetched.clear();
                looks_ahead = false;
            }
            match step {
                Step::Done { depends } => {
                    self.done += consumed;
                    if depends || !seen.is_empty() {
                        let replied = began..self.reply.len();
                        let (level, wrote) = (self.client.level, depends && wrote);
                        let dependent = Dependent { replied, commits_to: touched, seen, level, wrote };
                        self.note_dependent(service, dependent, depends);
                    }
                }
                Step::Elsewhere => return Ended::Elsewhere,
                // The next round finds out what it needs.
                Step::Latched | Step::WouldBlock if only_reads_here => return Ended::Full,
                // On another thread it sees the committed keys, whoever holds their latches.
                Step::Latched if only_reads && blocking == Blocking::Never => return Ended::ReadWouldBlock,
                Step::Latched => return Ended::Latched,
                Step::WouldBlock if briefly => return Ended::Latched,
                Step::WouldBlock if only_reads => return Ended::ReadWouldBlock,
                Step::WouldBlock => return Ended::WouldBlock,
            }
            match self.client.then {
                Then::Go => {}
                Then::Rest(_) | Then::Follow => {
                    self.rests_from = began;
                    return Ended::Full;
                }
                Then::Close => return Ended::Closes,
            }
        }
        Ended::Full
    }

    /// Takes the requests that come next as far as they are other servers': of each its server's
    /// place in the view, and its bytes. [`forwarded`](Self::forwarded) is called with each reply.
    pub(super) fn take_forwarded(&mut self, service: &Service) -> Vec<(usize, Vec<u8>)> {
        let (mut taken, mut bytes_taken) = (Vec::new(), 0);
        while taken.len() < MAX_FORWARDED_AT_ONCE && bytes_taken < MAX_FORWARDED_BYTES {
            let limits = self.request_limits();
            let bytes = &self.buffer[self.done..];
            // What is incomplete or malformed is for the next round.
            let Ok(Some(consumed)) = self.parser.parse(bytes, &limits, &mut self.ranges) else { break };
            let source = self.parser.source(bytes);
            let arguments: Vec<&[u8]> = self.ranges.iter().map(|range| &source[range.clone()]).collect();
            if arguments.is_empty() {
                break;
            }
            let Some(server) = destination(service, &mut self.client, &arguments) else { break };
            let request = encoded(&arguments);
            bytes_taken += request.len();
            taken.push((server, request));
            self.done += consumed;
        }
        taken
    }

    /// The reply of another server, or why there is none.
    pub(super) fn forwarded(&mut self, service: &Service, reply: Result<&[u8], &str>) {
        match reply {
            Ok(reply) if reply.len() <= self.reply.bytes_left() => self.reply.raw(reply),
            Ok(_) => self.forwarded(service, Err(TOO_LONG)),
            Err(why) => {
                self.reply.error(why);
                service.statistics.count_errors(why.as_bytes(), 1);
            }
        }
    }

    /// Replies with an error after which nothing can be parsed.
    pub(super) fn refuse(&mut self, service: &Service, why: &[u8]) -> Ended {
        self.reply.error(why);
        service.statistics.count_errors(why, 1);
        Ended::Closes
    }

    /// Whether the beginning of a request, so many bytes, may not be kept.
    fn is_refused_memory(&self, service: &Service, bytes: usize) -> bool {
        self.charge.is_refused(service, bytes + self.parser.memory_bytes(), self.is_let_in())
    }

    fn request_limits(&self) -> request::Limits {
        if self.is_let_in() {
            request::Limits { bulk_bytes: self.limits.argument_bytes, ..request::Limits::DEFAULT }
        } else {
            request::Limits::UNAUTHENTICATED
        }
    }

    fn note_dependent(&mut self, service: &Service, dependent: Dependent, depends: bool) {
        let mut commits_to = if depends { dependent.commits_to } else { ShardSet::default() };
        if depends && commits_to.is_empty() {
            // What wrote nothing and says that it depends may depend on any.
            commits_to = ShardSet::ALL;
        }
        self.written = self.written.union(commits_to);
        if dependent.wrote && dependent.seen.is_empty() && service.keyspace.has_gates() {
            self.client.last_writes.note_uncopied();
        }
        self.dependents.push(Dependent { commits_to, ..dependent });
    }

    /// Takes what the client waits for.
    pub(super) fn take_awaited(&mut self) -> Option<Awaited> {
        let mut awaited = self.client.awaited.take();
        if let Some(Awaited::Copies(copies)) = &mut awaited {
            // All that it has sent before is committed by now.
            copies.of(self.client.last_writes.take_told());
        }
        awaited
    }

    /// Takes the replies before the command after which the client is throttled, if it is; the
    /// reply of that command stays, to be sent afterwards.
    pub(super) fn take_before_rest(&mut self) -> Vec<u8> {
        let mut before = self.take_replies();
        self.reply.raw(&before.split_off(std::mem::take(&mut self.rests_from)));
        before
    }

    /// Replies with the error of what the client waited for.
    pub(super) fn fail_after_rest(&mut self, service: &Service, why: &str) {
        self.reply.clear();
        self.reply.error(why.as_bytes());
        service.statistics.count_errors(why.as_bytes(), 1);
    }

    /// Replies with the answer that the client waited for.
    pub(super) fn answer_after_rest(&mut self, service: &Service, answer: &Answer) {
        self.reply.clear();
        if let Answer::Bulk(bytes) = answer
            && bytes.len() > self.reply.bytes_left()
        {
            return self.fail_after_rest(service, TOO_LONG);
        }
        answer.write(&mut self.reply);
    }

    /// Takes the replies, to be sent; [`sent`](Self::sent) is to be called then.
    pub(super) fn take_replies(&mut self) -> Vec<u8> {
        let replies = self.reply.take();
        self.sending_bytes = replies.capacity();
        self.show_replies();
        let buffers = &self.client.info.buffers;
        buffers.sending_bytes.store(replies.len(), Ordering::Relaxed);
        buffers.sending_capacity.store(self.sending_bytes, Ordering::Relaxed);
        replies
    }

    /// These replies are sent.
    pub(super) fn sent(&mut self, service: &Service, replies: Vec<u8>) {
        self.sending_bytes = 0;
        if replies.capacity() <= self.kept_bytes(service) {
            self.reply.reuse(replies);
        }
        self.show_replies();
        let buffers = &self.client.info.buffers;
        buffers.sending_bytes.store(0, Ordering::Relaxed);
        buffers.sending_capacity.store(0, Ordering::Relaxed);
        self.charge.set_known(self.memory_bytes());
    }

    /// Whether replies wait for a commit.
    pub(super) fn depends(&self) -> bool {
        self.dependents.iter().any(|dependent| !dependent.commits_to.is_empty())
    }

    /// The commit is over: replies that depend on it may be sent, as far as copies let them, or are
    /// replaced by an error where the shard failed that they depend on.
    pub(super) fn committed(&mut self, service: &Service, outcome: &Result<(), CommitError>) {
        if let Err(CommitError { error, failed }) = outcome {
            let failure = Failure::Store(error.clone());
            self.replace(service, |dependent| dependent.commits_to.meets(*failed).then(|| failure.reply()));
        }
        self.dependents.retain_mut(|dependent| {
            dependent.commits_to = ShardSet::default();
            !dependent.seen.is_empty()
        });
    }

    /// Has the replies wait that tell of shards with copies, now that all of it is committed or
    /// read. What they wait for is none where nothing is to be waited for.
    pub(super) fn hold(&mut self, held: &HeldReplies) -> Vec<Condition> {
        let mut conditions: Vec<Condition> = Vec::new();
        for dependent in &self.dependents {
            for seen in self.gates.iter().filter(|seen| seen.shard().meets(dependent.seen)) {
                let (shard, level, wrote) = (seen.shard(), dependent.level, dependent.wrote);
                if conditions.iter().any(|known| (known.shard, known.level, known.wrote) == (shard, level, wrote)) {
                    continue;
                }
                if wrote && let Ok(place) = seen.awaited() {
                    self.client.last_writes.note(seen.gate(), place);
                }
                let of_gate = level.unwrap_or_else(|| seen.gate().level());
                conditions.push(Condition { shard, level, wrote, reached: held.hold(seen, of_gate, !wrote) });
            }
        }
        if conditions.is_empty() {
            self.dependents.clear();
            self.gates.clear();
        }
        conditions
    }

    /// What the conditions came to: replies may be sent, or are replaced by an error.
    pub(super) fn let_go(&mut self, service: &Service, outcomes: &[(Condition, Result<(), Unanswered>)]) {
        if outcomes.iter().any(|(_, outcome)| outcome.is_err()) {
            self.replace(service, |dependent| {
                let concerns = |condition: &Condition| {
                    condition.shard.meets(dependent.seen)
                        && (condition.level, condition.wrote) == (dependent.level, dependent.wrote)
                };
                let (_, outcome) =
                    outcomes.iter().find(|(condition, outcome)| outcome.is_err() && concerns(condition))?;
                let did = if dependent.wrote { Did::Write } else { Did::Read };
                outcome.err().map(|why| failure(why, did).reply().into_owned().into())
            });
        }
        self.dependents.clear();
        self.gates.clear();
    }

    /// Replaces replies by errors, where `instead` gives one. The others go on to depend on what they
    /// did.
    fn replace<'e>(&mut self, service: &Service, instead: impl Fn(&Dependent) -> Option<Cow<'e, [u8]>>) {
        let dependents = std::mem::take(&mut self.dependents);
        let (replied, version) = (self.reply.take(), self.reply.version());
        let rests_from = self.rests_from;
        let (mut sent, mut from) = (Vec::with_capacity(replied.len()), 0);
        for mut dependent in dependents {
            sent.extend_from_slice(&replied[from..dependent.replied.start]);
            from = dependent.replied.end;
            let begin = sent.len();
            if let Some(error) = instead(&dependent) {
                service.statistics.count_errors(&error, 1);
                let mut reply = Reply::new(version);
                reply.error(error);
                sent.extend_from_slice(reply.bytes());
                if from <= rests_from {
                    self.rests_from = self.rests_from + reply.len() - dependent.replied.len();
                }
            } else {
                sent.extend_from_slice(&replied[dependent.replied.clone()]);
                dependent.replied = begin..sent.len();
                self.dependents.push(dependent);
            }
        }
        sent.extend_from_slice(&replied[from..]);
        self.reply.raw(&sent);
    }
}

/// Whether it needs no latch where it may block: a command that only reads uses a snapshot there.
fn takes_no_latch(arguments: &[&[u8]]) -> bool {
    const LATCHED: u32 = flag::WRITE | flag::LATCHES | flag::ALL_SLOTS;
    resolve(arguments).is_ok_and(|command| command.has(flag::READONLY) || command.flags & LATCHED == 0)
}

/// Calls `then` with the arguments in `ranges` of `source`.
fn with_arguments(source: &[u8], ranges: &[Range<usize>], then: impl FnOnce(&[&[u8]]) -> Step) -> Step {
    if ranges.is_empty() {
        return Step::Done { depends: false };
    }
    if ranges.len() <= FEW {
        let mut arguments: [&[u8]; FEW] = [&[]; FEW];
        for (argument, range) in arguments.iter_mut().zip(ranges) {
            *argument = &source[range.clone()];
        }
        return then(&arguments[..ranges.len()]);
    }
    let arguments: Vec<&[u8]> = ranges.iter().map(|range| &source[range.clone()]).collect();
    then(&arguments)
}

/// A request as it is sent to another server.
fn encoded(arguments: &[&[u8]]) -> Vec<u8> {
    const AROUND_ARGUMENT_BYTES: usize = 16;
    let bytes = arguments.iter().map(|argument| argument.len() + AROUND_ARGUMENT_BYTES).sum::<usize>();
    let mut request = Vec::with_capacity(AROUND_ARGUMENT_BYTES + bytes);
    request.extend_from_slice(format!("*{}\r\n", arguments.len()).as_bytes());
    for argument in arguments {
        request.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        request.extend_from_slice(argument);
        request.extend_from_slice(b"\r\n");
    }
    request
}
