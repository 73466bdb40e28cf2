//! From a request to its reply: finds the command, asks whether it may be carried out now, takes
//! its latches, carries it out.
//!
//! Threads: any; what a request changes is in the group, and its client must not be told before
//! that is committed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::client::{Client, Then};
use crate::client_events::ClientEvent;
use crate::command::run::reply_error;
use crate::command::table::{check_number, find_called};
use crate::command::{Command, flag, table, transactions};
use crate::host::Host;
use crate::protocol::reply::Reply;
use crate::service::{Limits, Service};
use crate::usage::Usage;
use ecotone_keyspace::error::{Failure, texts};
use ecotone_keyspace::{Blocking, CancellationToken, Keyspace, WriteGroup};

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
    if client.transaction.is_some() && !command.has(flag::NOT_QUEUED) {
        return queue(service, client, command, arguments, reply);
    }
    if command.name == "exec" && client.transaction.is_some() {
        let began = Instant::now();
        let (step, has_failed) = match transactions::exec(service, client, group, reply, mode.blocking) {
            Ok(step) => (step, false),
            Err(failure) => (refuse(service, client, reply, &failure), true),
        };
        if matches!(step, Step::Done { .. }) {
            service.statistics.commands.fetch_add(1, Ordering::Relaxed);
            // Nothing else than a command that sleeps makes a transaction's client rest.
            let sleeps = if let Then::Rest(rest) = client.then { rest } else { Duration::ZERO };
            service.statistics.usage.carried_out(command.id(), began.elapsed().saturating_add(sleeps), has_failed);
        }
        step
    } else {
        execute_command(service, client, group, command, arguments, reply, mode)
    }
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
        && let Err(error) = service.keyspace.store().check_free_space()
    {
        service.statistics.usage.refused(command.id());
        return refuse(service, client, reply, &error.into());
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
