//! From a request to its reply: finds the command, asks whether it may be carried out now, takes
//! its latches, carries it out.
//!
//! Threads: any; what a request changes is in the group, and its client must not be told before
//! that is committed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::client::{Client, Then};
use crate::client_events::ClientEvent;
use crate::cluster_view::Destination;
use crate::command::cluster::moved;
use crate::command::run::{check_gates, key_slots, reply_error};
use crate::command::table::{check_number, find_called};
use crate::command::{Command, KeyPositions, flag, table, transactions};
use crate::host::Host;
use crate::protocol::reply::Reply;
use crate::replica_reads;
use crate::service::{Limits, Service};
use crate::usage::Usage;
use ecotone_keyspace::error::{Failure, texts};
use ecotone_keyspace::{Blocking, CancellationToken, Keyspace, Replica, Slot, WriteGroup};

pub use crate::command::run::{ExecutionMode, Step, execute_command};

/// What keeping an argument of a queued command takes besides its bytes.
const QUEUED_ARGUMENT_BYTES: usize = 48;

/// In Redis' words, which name its setting; here it is a name of `clients.enable_debug_command`.
const DEBUG_NOT_ALLOWED: Failure = Failure::text(
    "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local connection, otherwise \
     you need to set this option in the configuration file, and then restart the server.",
);

impl Service {
    /// Serves `keyspace` from now on, with the commands of the [table].
    pub fn new(keyspace: Arc<Keyspace>, limits: Limits, host: Arc<dyn Host>) -> Self {
        let commands = table::all_with_subcommands();
        let usage = Usage::of(commands.map(|command| (command.id(), command.name, command.group, command.flags)));
        Self::with_usage(keyspace, limits, host, usage)
    }
}

/// Carries out one request of `client`. `arguments` are its name and what follows, at least one.
pub fn execute<'s>(
    service: &'s Service,
    client: &mut Client,
    group: &mut WriteGroup,
    arguments: &[&[u8]],
    reply: &mut Reply,
    mode: impl Into<ExecutionMode<'s>>,
) -> Step {
    let mode = mode.into();
    // What an event loop does by itself is bounded.
    let waits = mode.blocking != Blocking::Never;
    group.begin_request(
        waits.then(|| CancellationToken::from_now(client.info.cancellation.clone(), service.stops.clone())),
    );
    let command = match find_called(arguments) {
        Ok(command) => command,
        Err(_) if is_of_http(arguments[0]) => {
            if let Some(others) = service.client_events.note(ClientEvent::Http) {
                tracing::warn!(
                    client = %client.info.address, others,
                    "a client speaks HTTP at an address for Redis' protocol, as a browser does that a web page uses to reach this server; it is \
                     disconnected"
                );
            }
            client.then = Then::Close;
            return Step::Done { depends: false };
        }
        Err(failure) => {
            *client.info.last_command.lock() = "NULL";
            return refuse(service, client, reply, &failure);
        }
    };
    *client.info.last_command.lock() = command.name;
    if let Err(failure) = may_be_tried(service, client, command, arguments) {
        service.statistics.usage.refused(command.id());
        // A transaction whose end is refused has ended all the same, and so has what was watched
        // for one that never began.
        if command.name == "exec" {
            transactions::end(client, service);
            reply_error(service, reply, &transactions::aborted_by(&failure));
            return Step::Done { depends: false };
        }
        return refuse(service, client, reply, &failure);
    }
    let seen = client.seen(&service.cluster);
    seen.refresh(&service.cluster);
    let mut at_replica = None;
    if seen.has_rules() || service.keyspace.has_several() {
        match may_be_carried_out_here(service, client, command, arguments) {
            Ok(Where::Here) => {}
            Ok(Where::Elsewhere) => return Step::Elsewhere,
            Ok(Where::AtReplica(replica)) => at_replica = Some(replica),
            Err(failure) => {
                service.statistics.usage.refused(command.id());
                if command.name == "exec" {
                    transactions::end(client, service);
                }
                return refuse(service, client, reply, &failure);
            }
        }
    }
    if client.transaction.is_some() && !command.has(flag::NOT_QUEUED) {
        return queue(service, client, command, arguments, reply);
    }
    if let Some(replica) = at_replica {
        let step = replica_reads::carry_out(service, client, &replica, command, arguments, reply, mode.blocking);
        return step.unwrap_or_else(|| {
            // It has ended meanwhile. A transaction that has not begun is over as well.
            if command.name == "exec" {
                transactions::end(client, service);
            }
            let failure = replica_reads::ended(service, client, command, arguments);
            refuse(service, client, reply, &failure)
        });
    }
    if command.name == "exec" && client.transaction.is_some() {
        return transactions::carry_out(service, client, group, command, reply, mode.blocking);
    }
    execute_command(service, client, group, command, arguments, reply, mode)
}

/// Whether a request begins as lines of HTTP do, whose body would be carried out as well: any web
/// page could send that. The words are Redis'.
fn is_of_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:")
}

fn may_be_tried(service: &Service, client: &Client, command: &Command, arguments: &[&[u8]]) -> Result<(), Failure> {
    check_number(command, arguments)?;
    if command.name == "debug" && !service.limits.read().debug_command.lets(&client.info) {
        return Err(DEBUG_NOT_ALLOWED);
    }
    // It may have been taken away since the client came.
    let asks_password = || service.limits.read().password.is_some();
    if !client.is_authenticated && !command.has(flag::NO_AUTH) && asks_password() {
        return Err(Failure::text("NOAUTH Authentication required."));
    }
    Ok(())
}

/// Where a request is carried out.
#[derive(Debug)]
enum Where {
    Here,
    /// From a copy of another server's shard, for a client that has said `READONLY`.
    AtReplica(Arc<Replica>),
    /// By the server that [`destination`] names, which is asked for the client.
    Elsewhere,
}

/// The server, by its place in the view that `client` has seen, that carries out a request for it;
/// `None`: this one does, or refuses it. For requests that are
/// [`Step::Elsewhere`](crate::command::run::Step).
pub(crate) fn destination(service: &Service, client: &mut Client, arguments: &[&[u8]]) -> Option<usize> {
    let command = table::resolve(arguments).ok()?;
    let seen = client.seen(&service.cluster);
    let (has_rules, is_proxied) = (seen.has_rules(), seen.is_proxied());
    if !has_rules || !is_proxied || !client.is_forwardable() || !is_forwarded(command) {
        return None;
    }
    let seen = client.seen(&service.cluster);
    match seen.destination(key_slots(command, arguments)) {
        Destination::Moved { server, .. } => Some(server),
        _ => None,
    }
}

/// Whether another server can carry it out: what it does depends on its arguments alone.
fn is_forwarded(command: &Command) -> bool {
    command.keys != KeyPositions::None && command.flags & (flag::WRITE | flag::READONLY) != 0
}

/// Whether the keys of a request are this server's, as Redis decides it: before it is carried out
/// or queued; and for `EXEC` once more, over all that was queued.
fn may_be_carried_out_here(
    service: &Service,
    client: &mut Client,
    command: &Command,
    arguments: &[&[u8]],
) -> Result<Where, Failure> {
    let destination = if command.keys != KeyPositions::None {
        let seen = client.seen(&service.cluster);
        let destination = seen.destination(key_slots(command, arguments));
        in_one_store(service, destination, || key_slots(command, arguments))
    } else if command.name == "exec" {
        destination_of_queued(service, client)
    } else {
        Destination::Here
    };
    if matches!(destination, Destination::Moved { .. } | Destination::Unserved)
        && let Some(replica) = replica_reads::find(service, client, command, arguments)
    {
        return Ok(Where::AtReplica(replica));
    }
    match destination {
        Destination::Here => Ok(Where::Here),
        Destination::Moved { slot, server } => {
            let (is_forwardable, is_tls) = (client.is_forwardable(), client.info.is_tls.load(Ordering::Relaxed));
            let seen = client.seen(&service.cluster);
            if seen.is_proxied() && is_forwardable && is_forwarded(command) {
                return Ok(Where::Elsewhere);
            }
            Err(moved(seen.view(), slot, server, is_tls))
        }
        Destination::CrossSlot => Err(Failure::text("CROSSSLOT Keys in request don't hash to the same slot")),
        Destination::Unserved => Err(Failure::text("CLUSTERDOWN Hash slot not served")),
        Destination::Down => Err(Failure::text("CLUSTERDOWN The cluster is down")),
    }
}

/// Of all keys that were queued since `MULTI`; `EXEC` without that is refused by itself.
fn destination_of_queued(service: &Service, client: &mut Client) -> Destination {
    let Some(transaction) = client.transaction.take() else { return Destination::Here };
    let mut slots = Vec::new();
    for arguments in &transaction.queued {
        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        // It was found when it was queued.
        if let Ok(command) = table::resolve(&arguments) {
            slots.extend(key_slots(command, &arguments));
        }
    }
    client.transaction = Some(transaction);
    let destination = client.seen(&service.cluster).destination(slots.iter().copied());
    in_one_store(service, destination, || slots.iter().copied())
}

/// The same where the view does not know yet how slots lie in the stores of this server: no command
/// has keys of two.
fn in_one_store<S: Iterator<Item = Slot>>(
    service: &Service,
    destination: Destination,
    slots: impl FnOnce() -> S,
) -> Destination {
    let is_apart =
        destination == Destination::Here && service.keyspace.has_several() && !service.keyspace.are_together(slots());
    if is_apart { Destination::CrossSlot } else { destination }
}

fn refuse(service: &Service, client: &mut Client, reply: &mut Reply, failure: &Failure) -> Step {
    if let Some(transaction) = &mut client.transaction {
        transaction.is_refused = true;
    }
    reply_error(service, reply, failure);
    Step::Done { depends: false }
}

fn queue(
    service: &Service,
    client: &mut Client,
    command: &'static Command,
    arguments: &[&[u8]],
    reply: &mut Reply,
) -> Step {
    if command.has(flag::NO_MULTI) {
        service.statistics.usage.refused(command.id());
        return refuse(service, client, reply, &Failure::text("ERR Command not allowed inside a transaction"));
    }
    if command.has(flag::DENYOOM)
        && let Err(error) = service.keyspace.check_free_space(key_slots(command, arguments))
    {
        service.statistics.usage.refused(command.id());
        return refuse(service, client, reply, &error.into());
    }
    if command.has(flag::WRITE)
        && service.keyspace.has_gates()
        && let Err(failure) = check_gates(service, client, key_slots(command, arguments))
    {
        service.statistics.usage.refused(command.id());
        return refuse(service, client, reply, &failure);
    }
    let bytes: usize = arguments.iter().map(|argument| argument.len() + QUEUED_ARGUMENT_BYTES).sum();
    let most = service.limits.read().transaction_bytes;
    let Some(transaction) = &mut client.transaction else { return Step::Done { depends: false } };
    if transaction.bytes + bytes > most {
        let text = format!(
            "ERR the transaction is too long: commands since MULTI may take {most} bytes (clients.transaction_bytes)"
        );
        return refuse(service, client, reply, &Failure::with(text));
    }
    if service.is_short_of_memory(transaction.bytes + bytes) {
        return refuse(service, client, reply, &texts::SHORT_OF_MEMORY);
    }
    transaction.bytes += bytes;
    transaction.queued.push(arguments.iter().map(|argument| argument.to_vec()).collect());
    client.info.queued.store(transaction.queued.len() as i64, Ordering::Relaxed);
    client.info.buffers.queued_bytes.store(transaction.bytes, Ordering::Relaxed);
    reply.simple("QUEUED");
    Step::Done { depends: false }
}
