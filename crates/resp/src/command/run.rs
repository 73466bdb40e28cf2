//! Executes one command: takes its latches, runs it, and undoes it where it fails or has to be
//! executed again.
//!
//! Threads: any; the changes of a command are in the group, and its reply must not be sent before
//! that is committed.

use std::cell::OnceCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ecotone_engine::Error as StoreError;
use smallvec::SmallVec;

use super::{Call, Command, KeyPositions, flag, secrets};
use crate::client::Client;
use crate::client_events::ClientEvent;
use crate::copies::{self, Did, Unanswered};
use crate::protocol::reply::Reply;
use crate::service::Service;
use ecotone_keyspace::error::Failure;
use ecotone_keyspace::{Blocking, KeyspaceSnapshot, Prefetched, ReadStats, ShardSet, Slot, WriteGroup};

/// Commands with more arguments are executed where blocking is allowed: they take longer than other
/// clients of a thread should wait.
pub(crate) const MAX_NONBLOCKING_ARGUMENTS: usize = 1024;

/// A command that makes nothing larger may write this much into a full store: a small collection
/// with an element less.
const MAX_FREELY_WRITTEN_BYTES: usize = 16 * 1024;

/// Most commands have no more keys, and take no allocation for them.
const FEW_SLOTS: usize = 4;

/// The reply to a command that panicked; the panic itself is on standard error.
const PANICKED: Failure = Failure::text("ERR the server failed while it carried out this command; its log tells more");

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It has a reply.
    Done {
        /// Whether the reply may be sent only once the group is committed.
        depends: bool,
    },
    /// A latch is held by another client. Nothing was done: commit the group, and try again.
    Latched,
    /// It takes more than reads from memory. Nothing was done: try again where blocking is allowed.
    WouldBlock,
    /// Its keys are another server's, which is to be asked for the client. Nothing was done.
    Elsewhere,
}

/// What a command is given besides its arguments.
#[derive(Debug)]
pub struct ExecutionMode<'s> {
    /// Whether its thread may block.
    pub blocking: Blocking,
    /// Whether its thread may wait for latches as well; else it takes those that are free.
    pub waits_for_latches: bool,
    /// What a prefetch has read of its first key.
    pub prefetched: Option<Prefetched<'s>>,
}

impl From<Blocking> for ExecutionMode<'_> {
    fn from(blocking: Blocking) -> Self {
        Self { blocking, waits_for_latches: true, prefetched: None }
    }
}

/// Executes `command` with `arguments`, which it takes, for a client that may use it.
pub fn execute_command<'s>(
    service: &'s Service,
    client: &mut Client,
    group: &mut WriteGroup,
    command: &'static Command,
    arguments: &[&[u8]],
    reply: &mut Reply,
    mode: impl Into<ExecutionMode<'s>>,
) -> Step {
    let ExecutionMode { blocking, waits_for_latches, mut prefetched } = mode.into();
    let takes_long = command.has(flag::WAITS) && blocking != Blocking::Allowed;
    if takes_long || arguments.len() > MAX_NONBLOCKING_ARGUMENTS && blocking == Blocking::Never {
        return Step::WouldBlock;
    }
    if command.has(flag::WRITE) && group.is_closed_to(command.has(flag::DENYOOM)) {
        return Step::Latched;
    }
    if command.has(flag::WRITE)
        && service.keyspace.has_gates()
        && let Err(failure) = check_gates(service, client, slots(command, arguments))
    {
        reply_error(service, reply, &failure);
        return Step::Done { depends: false };
    }
    let mut has_latches = command.flags & (flag::WRITE | flag::LATCHES | flag::ALL_SLOTS) != 0;
    let for_latches = if waits_for_latches { blocking } else { Blocking::Never };
    let held = group.latches_held();
    // A command that only reads, and may take long, holds no latches but uses a snapshot.
    let mut sees_one_moment = reads_alone(group, blocking) && command.has(flag::READONLY);
    let shards = OnceCell::new();
    let mut snapshot = None;
    let mut of_keys = SmallVec::new();
    loop {
        if has_latches {
            of_keys = slots(command, arguments);
        }
        if has_latches && sees_one_moment {
            group.see(of_keys.iter().copied());
            let shards = shards.get_or_init(|| group.keyspace().held());
            snapshot = Some(shards.snapshot(of_keys.iter().copied()));
            prefetched = None;
        } else if has_latches && !group.hold(&of_keys, for_latches) {
            let cancelled = group.cancellation();
            return cancelled.map_or(Step::Latched, |failure| {
                reply_error(service, reply, &failure);
                Step::Done { depends: false }
            });
        }
        let has_keys = command.keys != KeyPositions::None;
        if has_keys && client.is_outdated(&service.cluster) {
            // Whoever has the keys now may have been told that no more is written here.
            group.release_beyond(held);
            return Step::Latched;
        }
        group.takes_memory_beyond(arguments.iter().map(|argument| argument.len()).sum());
        let (began, replied) = (Instant::now(), reply.len());
        let now_ms = group.keyspace().clock().ms_at(began);
        let context = ExecutionContext {
            blocking,
            began,
            now_ms,
            slot: of_keys.first().copied(),
            prefetched: prefetched.take(),
            snapshot: snapshot.as_ref(),
        };
        let step = match run_latched(service, client, group, command, arguments, reply, context) {
            // It may have read what another server has changed since.
            Ok(_) if has_keys && command.has(flag::READONLY) && client.is_outdated(&service.cluster) => {
                reply.truncate(replied);
                group.release_beyond(held);
                Step::Latched
            }
            Ok(ran) => {
                ran.count(service, client, arguments);
                Step::Done { depends: ran.depends }
            }
            Err(Retry::NeedsLatch) if !has_latches => {
                has_latches = true;
                continue;
            }
            // Most of what it reads it may read from a snapshot, but what it counts now is noted.
            Err(Retry::NeedsLatch) if snapshot.is_some() && command.has(flag::COUNTS_RANKS) => {
                (snapshot, sees_one_moment) = (None, false);
                continue;
            }
            Err(Retry::NeedsLatch | Retry::WouldBlock) => {
                if !command.has(flag::WRITE) {
                    // It goes on on another thread, or later, and takes them again.
                    group.release_beyond(held);
                }
                Step::WouldBlock
            }
        };
        group.keep();
        return step;
    }
}

/// Whether a snapshot has the current state: the group has no writes that are not in the store.
pub(crate) fn reads_alone(group: &WriteGroup, blocking: Blocking) -> bool {
    blocking == Blocking::Allowed && group.is_empty() && !group.holds_any()
}

/// How a command is executed.
pub(crate) struct ExecutionContext<'s> {
    pub(crate) blocking: Blocking,
    /// Now.
    pub(crate) began: Instant,
    /// The time by which keys have expired.
    pub(crate) now_ms: u64,
    /// The slot of one of its keys, where it may take room.
    pub(crate) slot: Option<Slot>,
    /// What a prefetch has read of its first key.
    pub(crate) prefetched: Option<Prefetched<'s>>,
    /// The snapshot that is read instead of the stores, where no latches are held.
    pub(crate) snapshot: Option<&'s KeyspaceSnapshot<'s>>,
}

/// Why a command was not executed, and nothing of it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// It needs the latches of its keys though it only reads.
    NeedsLatch,
    /// As [`Step::WouldBlock`].
    WouldBlock,
}

/// A command that was executed, and has a reply.
#[derive(Debug)]
pub(crate) struct Executed {
    /// Whether the reply may be sent only once the group is committed.
    pub(crate) depends: bool,
    command: &'static Command,
    took: Duration,
    stats: ReadStats,
    error: Option<Failure>,
}

impl Executed {
    /// Counts it, once it is certain that it is not undone and executed again.
    pub(crate) fn count(&self, service: &Service, client: &Client, arguments: &[&[u8]]) {
        let Self { command, took, stats, ref error, .. } = *self;
        if let Some(error) = error {
            count_error(service, error);
        }
        let statistics = &service.statistics;
        statistics.commands.fetch_add(1, Ordering::Relaxed);
        if stats.hits + stats.misses > 0 {
            statistics.hits.fetch_add(stats.hits.into(), Ordering::Relaxed);
            statistics.misses.fetch_add(stats.misses.into(), Ordering::Relaxed);
        }
        statistics.usage.carried_out(command.id(), took, error.is_some());
        note_if_slow(service, client, command, arguments, took);
    }
}

/// Executes a command whose latches are held. The caller has it [counted](Executed::count).
pub(crate) fn run_latched(
    service: &Service,
    client: &mut Client,
    group: &mut WriteGroup,
    command: &'static Command,
    arguments: &[&[u8]],
    reply: &mut Reply,
    context: ExecutionContext<'_>,
) -> Result<Executed, Retry> {
    let (savepoint, replied, seen) = (group.savepoint(), reply.len(), group.take_seen());
    let takes_room = command.has(flag::DENYOOM);
    group.begins(takes_room);
    let room = if takes_room { group.check_free_space(context.slot) } else { Ok(()) };
    let mut keys = group.keys_at(context.now_ms, context.blocking, context.prefetched, context.snapshot);
    keys.count_lookups(command.has(flag::READONLY));
    let mut call = Call { arguments, keys, reply, client, service, command, sleeps: Duration::ZERO };
    let outcome = match room {
        // A panic must not affect others: this thread serves other clients, and its group has their
        // writes.
        Ok(()) => catch_unwind(AssertUnwindSafe(|| (command.run)(&mut call))).unwrap_or(Err(PANICKED)),
        Err(error) => Err(error.into()),
    };
    let outcome = match outcome {
        Ok(()) if call.reply.is_over() => Err(too_long(service)),
        outcome => call.keys.refusal().map_or(outcome, Err),
    };
    let (stats, sleeps) = (call.keys.read_stats(), call.sleeps);
    drop(call);
    // What is answered by a server that has lost touch with its copies waits for none: it is how
    // people find out why.
    let told = if command.has(flag::STALE) { ShardSet::default() } else { group.take_seen() };
    group.set_seen(seen.union(told));
    let mut error = None;
    match outcome {
        // Writing all of a long value again for a new expiry takes space as well.
        Ok(()) => group.begins(group.written_since(savepoint) > MAX_FREELY_WRITTEN_BYTES),
        Err(failure) => {
            reply.truncate(replied);
            group.rollback_to(savepoint);
            match failure {
                Failure::WouldBlock => return Err(Retry::WouldBlock),
                Failure::NeedsLatch => return Err(Retry::NeedsLatch),
                failure => {
                    reply.error(failure.reply());
                    error = Some(failure);
                }
            }
        }
    }
    let depends = group.has_written_since(savepoint) || stats.is_uncommitted;
    Ok(Executed { depends, command, took: context.began.elapsed().saturating_add(sleeps), stats, error })
}

/// The error instead of a reply that exceeds its bound.
fn too_long(service: &Service) -> Failure {
    let most = service.limits.read().output_bytes;
    Failure::with(format!(
        "ERR the reply is longer than a client may be owed: {most} bytes (clients.max_output_bytes), less where all clients together owe \
         much memory (clients.max_memory_bytes); ask for less at a time"
    ))
}

fn note_if_slow(service: &Service, client: &Client, command: &Command, arguments: &[&[u8]], took: Duration) {
    if !service.slowlog.is_slow(took) || command.has(flag::SKIP_SLOWLOG) {
        return;
    }
    let at_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let name = client.info.name.lock();
    let arguments = secrets::redacted(service, command, arguments);
    let most = service.limits.read().slowlog_entries;
    service.slowlog.add(&arguments, at_s, took, &client.info.address, &name, most);
}

/// Refuses a write to these slots before it is made, where the reply to it is refused already.
pub(crate) fn check_gates(
    service: &Service,
    client: &Client,
    slots: impl IntoIterator<Item = Slot>,
) -> Result<(), Failure> {
    let checked = service.keyspace.check_gates(slots, client.level);
    checked.map_err(|refused| copies::failure(Unanswered::Refused(refused), Did::Nothing))
}

/// The slots of its keys, in their order.
pub(crate) fn key_slots<'a>(command: &Command, arguments: &'a [&'a [u8]]) -> impl Iterator<Item = Slot> + 'a {
    command.keys.of(arguments).map(|index| Slot::of(arguments[index]))
}

/// The slots whose latches a command needs: ascending, each once.
pub(crate) fn slots(command: &Command, arguments: &[&[u8]]) -> SmallVec<[Slot; FEW_SLOTS]> {
    if command.has(flag::ALL_SLOTS) {
        return Slot::all().collect();
    }
    let mut slots: SmallVec<_> = command.keys.of(arguments).map(|index| Slot::of(arguments[index])).collect();
    slots.sort_unstable();
    slots.dedup();
    slots
}

pub(crate) fn reply_error(service: &Service, reply: &mut Reply, failure: &Failure) {
    reply.error(failure.reply());
    count_error(service, failure);
}

fn count_error(service: &Service, failure: &Failure) {
    service.statistics.count_errors(failure.reply().as_ref(), 1);
    // A full store is logged by the store itself, once; here it would be with every write.
    if let Failure::Store(error) = failure
        && !matches!(error, StoreError::OutOfSpace { .. })
        && let Some(others) = service.client_events.note(ClientEvent::StoreFailed)
    {
        tracing::warn!(%error, others, "a command failed");
    }
}
