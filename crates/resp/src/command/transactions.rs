//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.
//!
//! The commands of a transaction are executed in order under the latches of all keys that they and
//! `WATCH` name, into one group: it reaches the store in one batch, so all of it is visible, or
//! survives a crash, or nothing.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ecotone_engine::MAX_BATCH_BYTES;

use super::entry::plain;
use super::run::{self, Executed, ExecutionContext, Retry, Step};
use super::{Call, Command, KeyPositions, flag, table};
use crate::client::{Client, Then, Transaction, Watched};
use crate::cluster_view::Destination;
use crate::protocol::reply::Reply;
use crate::service::Service;
use ecotone_keyspace::error::{Failure, Outcome, texts};
use ecotone_keyspace::{Blocking, Slot, WatchFlag, WriteGroup};

/// Memory of a watched key besides its bytes, about: an allocation, a place in a list.
const WATCHED_KEY_BYTES: usize = 64;

const BASE: u32 = flag::NOSCRIPT | flag::LOADING | flag::STALE | flag::NOT_QUEUED;
const FAST: u32 = flag::FAST | flag::ALLOW_BUSY;

const fn command(name: &'static str, arity: i32, flags: u32, summary: &'static str, run: super::Run) -> Command {
    plain(name, arity, BASE | flags, "transactions", "1.2.0", summary, run)
}

/// The family.
pub const COMMANDS: &[Command] = &[
    command("multi", 1, FAST, "Starts a transaction.", multi),
    Command { since: "2.0.0", ..command("discard", 1, FAST, "Discards a transaction.", discard) },
    Command {
        complexity: "Depends on commands in the transaction",
        ..command("exec", 1, flag::SKIP_SLOWLOG, "Executes all commands in a transaction.", exec_alone)
    },
    Command {
        usage: "key...",
        since: "2.2.0",
        keys: KeyPositions::ALL,
        complexity: "O(1) for every key.",
        ..command(
            "watch",
            -2,
            FAST | flag::LATCHES,
            "Monitors changes to keys to determine the execution of a transaction.",
            watch,
        )
    },
    Command {
        since: "2.2.0",
        // Queued like any other: watched keys are checked before it is executed.
        flags: (BASE | FAST) & !flag::NOT_QUEUED,
        ..command("unwatch", 1, FAST, "Forgets about watched keys of a transaction.", unwatch)
    },
];

fn multi(call: &mut Call<'_>) -> Outcome {
    if call.client.transaction.is_some() {
        return Err(Failure::text("ERR MULTI calls can not be nested"));
    }
    call.client.transaction = Some(Transaction::default());
    call.client.info.queued.store(0, Ordering::Relaxed);
    call.reply.simple("OK");
    Ok(())
}

fn discard(call: &mut Call<'_>) -> Outcome {
    if call.client.transaction.is_none() {
        return Err(Failure::text("ERR DISCARD without MULTI"));
    }
    end(call.client, call.service);
    call.reply.simple("OK");
    Ok(())
}

/// The entry of the table: `EXEC` outside of a transaction. Inside of one it is [`exec`].
fn exec_alone(_: &mut Call<'_>) -> Outcome {
    Err(Failure::text("ERR EXEC without MULTI"))
}

fn watch(call: &mut Call<'_>) -> Outcome {
    if call.client.transaction.is_some() {
        return Err(Failure::text("ERR WATCH inside MULTI is not allowed"));
    }
    let (mut watched, mut bytes) = (HashMap::new(), 0);
    let most = call.service.limits.read().transaction_bytes;
    for key in &call.arguments[1..] {
        if call.client.watched.contains_key(*key) || watched.contains_key(*key) {
            continue;
        }
        // By the client, and by the registry of watches.
        bytes += 2 * (key.len() + WATCHED_KEY_BYTES);
        if call.client.watched_bytes + bytes > most {
            return Err(Failure::with(format!(
                "ERR too many keys are watched: they may take {most} bytes (clients.transaction_bytes)"
            )));
        }
        // Before it is looked at: the watch is of what was there in this epoch.
        let epoch = call.keys.keyspace().epoch_of(Slot::of(key));
        let found = match call.keys.peek(key)? {
            Some((_, expires_at_ms)) => Watched::There { expires_at_ms },
            None => Watched::Missing,
        };
        watched.insert(key.to_vec(), (found, epoch));
    }
    if call.service.is_short_of_memory(call.client.watched_bytes + bytes) {
        return Err(texts::SHORT_OF_MEMORY);
    }
    call.client.watched_bytes += bytes;
    // Under the latches: later writers notify the watch, and earlier ones have committed, or are in
    // this group.
    let watches = call.keys.keyspace().watches();
    for (key, found) in watched {
        watches.add(&key, &call.client.watch_flag);
        if matches!(found, (Watched::There { .. }, _)) {
            call.client.cleared.get_or_insert_with(|| watches.cleared());
        }
        call.client.watched.insert(key, found);
    }
    call.client.info.watched.store(call.client.watched.len(), Ordering::Relaxed);
    call.reply.simple("OK");
    Ok(())
}

fn unwatch(call: &mut Call<'_>) -> Outcome {
    call.client.unwatch(call.keys.keyspace());
    call.reply.simple("OK");
    Ok(())
}

/// The end of a transaction, executed or not.
pub(crate) fn end(client: &mut Client, service: &Service) {
    client.transaction = None;
    client.info.queued.store(-1, Ordering::Relaxed);
    client.info.buffers.queued_bytes.store(0, Ordering::Relaxed);
    client.unwatch(&service.keyspace);
}

/// The reply of `EXEC` where `failure` prevents it.
pub(crate) fn aborted_by(failure: &Failure) -> Failure {
    let text = failure.reply();
    let why = text.strip_prefix(b"ERR ").unwrap_or(&text);
    Failure::with([b"EXECABORT Transaction discarded because of: ", why].concat())
}

/// Carries `EXEC` out, which is `command`, for a client that has a transaction.
pub(crate) fn carry_out(
    service: &Service,
    client: &mut Client,
    group: &mut WriteGroup,
    command: &'static Command,
    reply: &mut Reply,
    blocking: Blocking,
) -> Step {
    let began = Instant::now();
    let (step, has_failed) = match exec(service, client, group, reply, blocking) {
        Ok(step) => (step, false),
        Err(failure) => {
            // The transaction has ended.
            run::reply_error(service, reply, &failure);
            (Step::Done { depends: false }, true)
        }
    };
    if matches!(step, Step::Done { .. }) {
        service.statistics.commands.fetch_add(1, Ordering::Relaxed);
        // Nothing else than a command that sleeps makes a transaction's client rest.
        let sleeps = if let Then::Rest(rest) = client.then { rest } else { Duration::ZERO };
        service.statistics.usage.carried_out(command.id(), began.elapsed().saturating_add(sleeps), has_failed);
    }
    step
}

/// Executes the transaction of `client`, which has one.
fn exec(
    service: &Service,
    client: &mut Client,
    group: &mut WriteGroup,
    reply: &mut Reply,
    blocking: Blocking,
) -> Result<Step, Failure> {
    let Some(transaction) = client.transaction.take() else { return Err(Failure::text("ERR EXEC without MULTI")) };
    if transaction.is_refused {
        end(client, service);
        return Err(Failure::text("EXECABORT Transaction discarded because of previous errors."));
    }
    let replied = reply.len();
    let step = exec_queued(service, client, group, &transaction, reply, blocking);
    match step {
        Ok(Step::Done { .. }) | Err(_) => end(client, service),
        Ok(Step::Latched | Step::WouldBlock | Step::Elsewhere) => {
            reply.truncate(replied);
            client.transaction = Some(transaction);
        }
    }
    step
}

fn exec_queued(
    service: &Service,
    client: &mut Client,
    group: &mut WriteGroup,
    transaction: &Transaction,
    reply: &mut Reply,
    blocking: Blocking,
) -> Result<Step, Failure> {
    let arguments: usize = transaction.queued.iter().map(Vec::len).sum();
    if arguments + client.watched.len() > run::MAX_NONBLOCKING_ARGUMENTS && blocking == Blocking::Never {
        return Ok(Step::WouldBlock);
    }
    let queued: Vec<Vec<&[u8]>> =
        transaction.queued.iter().map(|arguments| arguments.iter().map(Vec::as_slice).collect()).collect();
    let mut commands = Vec::with_capacity(queued.len());
    let mut needs_all = false;
    let mut slots: Vec<Slot> = client.watched.keys().map(|key| Slot::of(key)).collect();
    for arguments in &queued {
        // It was resolved when it was queued.
        let Ok(command) = table::resolve(arguments) else { continue };
        // What is not undone with the group must not be done twice, so it is begun where it need
        // not be executed again.
        if (command.has(flag::WAITS) || !is_undone(command)) && blocking != Blocking::Allowed {
            return Ok(Step::WouldBlock);
        }
        // KEYS, SCAN and their like name no key and see all: none may be written before the end.
        needs_all |= command.has(flag::ALL_SLOTS) || command.has(flag::READONLY | flag::WAITS);
        if !needs_all {
            slots.extend(run::slots(command, arguments));
        }
        commands.push((command, arguments));
    }
    if needs_all {
        slots = Slot::all().collect();
    }
    slots.sort_unstable();
    slots.dedup();
    let writes = commands.iter().any(|(command, _)| command.has(flag::WRITE));
    if writes && service.keyspace.has_gates() {
        run::check_gates(service, client, slots.iter().copied()).map_err(|failure| aborted_by(&failure))?;
    }
    let takes = commands.iter().any(|(command, _)| command.has(flag::DENYOOM));
    if takes {
        // All or nothing: not only those of its commands that take no space.
        let free = service.keyspace.check_free_space(slots.iter().copied());
        free.map_err(|error| aborted_by(&error.into()))?;
    }
    // What one of them would have to read under the latch after all is not begun from a snapshot:
    // all of them would be carried out again.
    let sees_one_moment = run::reads_alone(group, blocking)
        && commands.iter().all(|(command, _)| command.has(flag::READONLY) && !command.has(flag::COUNTS_RANKS));
    if group.is_closed_to(takes) || !group.hold(&slots, blocking) {
        return group.cancellation().map_or(Ok(Step::Latched), Err);
    }
    if client.is_outdated(&service.cluster) {
        // As with one command: it begins anew, and asks again whose the keys are.
        return Ok(Step::Latched);
    }
    let savepoint = group.savepoint();
    group.takes_memory_beyond(transaction.bytes);
    // One time for all of them.
    let now_ms = group.keyspace().clock().now_ms();
    if is_disturbed(client, service, now_ms) {
        // The reply tells that somebody wrote.
        group.see(client.watched.keys().map(|key| Slot::of(key)));
        reply.null_array();
        return Ok(Step::Done { depends: false });
    }
    // A transaction that only reads holds no latches.
    if group.keyspace().has_gates() {
        group.see(slots.iter().copied());
    }
    let shards = sees_one_moment.then(|| group.keyspace().held());
    let snapshot = shards.as_ref().map(|shards| shards.snapshot(slots.iter().copied()));
    if snapshot.is_some() {
        group.release_beyond(0);
    }
    let replied = reply.len();
    let max_bytes = service.limits.read().memory_bytes.min(MAX_BATCH_BYTES);
    let (mut uncounted, mut depends) = (Vec::with_capacity(commands.len()), false);
    reply.array(commands.len());
    for (command, arguments) in commands {
        if !is_undone(command) {
            // A later command may show the counts, and none is executed again from here on.
            count(service, client, &mut uncounted);
        }
        let slot = if command.has(flag::DENYOOM) { run::slots(command, arguments).first().copied() } else { None };
        let context = ExecutionContext {
            blocking,
            began: Instant::now(),
            now_ms,
            slot,
            prefetched: None,
            snapshot: snapshot.as_ref(),
        };
        let (is_closing, told) = (client.then == Then::Close, reply.len());
        match run::run_latched(service, client, group, command, arguments, reply, context) {
            Ok(ran) => {
                if is_closing {
                    // A client that has killed itself gets no further reply.
                    reply.truncate(told);
                }
                depends |= ran.depends;
                uncounted.push((ran, arguments));
            }
            Err(Retry::NeedsLatch | Retry::WouldBlock) => {
                group.rollback_to(savepoint);
                watch_anew(client, service);
                return Ok(Step::WouldBlock);
            }
        }
        if let Some(failure) = group.cancellation() {
            group.rollback_to(savepoint);
            reply.truncate(replied);
            return Err(failure);
        }
        // All writes of a transaction are kept until it ends, also those that it overwrites.
        if group.written_since(savepoint) > max_bytes || group.is_refused_memory() {
            group.rollback_to(savepoint);
            reply.truncate(replied);
            reply.error(format!(
                "ERR the transaction writes more than {max_bytes} bytes, or than all clients together have left of them \
                 (clients.max_memory_bytes); nothing of it was written"
            ));
            return Ok(Step::Done { depends: false });
        }
    }
    if sees_one_moment && client.is_outdated(&service.cluster) {
        // Nothing was written, and what was read may have been changed elsewhere since.
        group.rollback_to(savepoint);
        return Ok(Step::Latched);
    }
    count(service, client, &mut uncounted);
    group.keep();
    Ok(Step::Done { depends })
}

/// Whether the command's effects are in the group only.
fn is_undone(command: &Command) -> bool {
    command.flags & (flag::WRITE | flag::READONLY) != 0
}

fn count(service: &Service, client: &Client, uncounted: &mut Vec<(Executed, &Vec<&[u8]>)>) {
    for (ran, arguments) in uncounted.drain(..) {
        ran.count(service, client, arguments);
    }
}

/// The writes of the transaction before it was undone have touched its own watches. From here on
/// only writes of others count: none can have come between, since the latches are held.
fn watch_anew(client: &mut Client, service: &Service) {
    let watch_flag = WatchFlag::default();
    for key in client.watched.keys() {
        service.keyspace.watches().add(key, &watch_flag);
        service.keyspace.watches().remove(key, &client.watch_flag);
    }
    client.watch_flag = watch_flag;
}

/// Whether a watched key was written or flushed, or has expired since, or its shard has begun
/// another epoch: what was there in the one before may be lost. The latches are held.
fn is_disturbed(client: &mut Client, service: &Service, now_ms: u64) -> bool {
    let is_over = |watched: &Watched| match *watched {
        Watched::Missing => false,
        Watched::There { expires_at_ms } => !service.keyspace.is_there(expires_at_ms, now_ms),
    };
    client.watch_flag.is_set()
        || watches_elsewhere(client, service)
        || client.cleared.is_some_and(|cleared| cleared != service.keyspace.watches().cleared())
        || client.watched.values().any(|(watched, _)| is_over(watched))
        || client.watched.iter().any(|(key, (_, epoch))| service.keyspace.epoch_of(Slot::of(key)) != *epoch)
}

/// Whether a watched key is another server's by now: what became of it is not known here.
fn watches_elsewhere(client: &mut Client, service: &Service) -> bool {
    let slots: Vec<Slot> = client.watched.keys().map(|key| Slot::of(key)).collect();
    let seen = client.seen(&service.cluster);
    seen.has_rules() && slots.iter().any(|slot| seen.destination([*slot]) != Destination::Here)
}
