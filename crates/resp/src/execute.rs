//! From a request to its reply: finds the command, asks whether it may be carried out now, takes its latches, carries it out.
//!
//! Threads: any; what a request changes is in the group, and its client must not be told before that is committed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ecotone_engine::{Error as StoreError, Snapshot};
use smallvec::SmallVec;

use crate::client::{Client, Then};
use crate::command::{Call, Command, flag, secrets, table, transactions};
use crate::error::{Failure, repeated, texts};
use crate::keyspace::{Group, Known, Seen, Slot, Waiting, Wanted};
use crate::occasions::Occasion;
use crate::protocol::reply::Reply;
use crate::service::Service;

/// Bytes of names, and of all arguments together, that the reply to an unknown command repeats, as in Redis.
const MAX_REPEATED: usize = 128;

/// Commands with more arguments are carried out where waiting is allowed: they take longer than other clients of a thread should wait.
pub(crate) const MAX_ARGUMENTS_AT_ONCE: usize = 1024;

/// A command that makes nothing larger may write this much, all the same, into a full store: a small collection with an element less.
const MAX_FREELY_WRITTEN_BYTES: usize = 16 * 1024;

/// Most commands have no more keys. For those no memory is taken.
const FEW_SLOTS: usize = 4;

/// What keeping an argument of a queued command takes besides its bytes.
const QUEUED_ARGUMENT_BYTES: usize = 48;

/// What a client is told whose command panicked; the panic itself is on standard error.
const PANICKED: Failure = Failure::text("ERR the server failed while it carried out this command; its log tells more");

/// In Redis' words, which name its setting; here it is a name of `clients.enable_debug_command`.
const DEBUG_NOT_ALLOWED: Failure = Failure::text(
    "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local connection, otherwise \
     you need to set this option in the configuration file, and then restart the server.",
);

/// What came of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It is replied. `depends`: on the commit of the group.
    Done {
        /// Whether the reply may be sent only once the group is committed.
        depends: bool,
    },
    /// Somebody else has a latch. Nothing was done: commit what is held, and try again.
    Latched,
    /// It takes more than a look into memory. Nothing was done: try again where waiting is allowed.
    MustWait,
}

/// What a command is given besides what it is asked for.
#[derive(Debug)]
pub struct Given<'s> {
    /// Whether its thread may wait.
    pub waiting: Waiting,
    /// Whether its thread may wait for latches as well; else it takes those that are free.
    pub waits_for_latches: bool,
    /// What is known of the key that it reads first.
    pub known: Option<Known<'s>>,
}

impl From<Waiting> for Given<'_> {
    fn from(waiting: Waiting) -> Self {
        Self { waiting, waits_for_latches: true, known: None }
    }
}

/// Carries out one request of `client`. `arguments` are its name and what follows, at least one.
pub fn execute<'s>(
    service: &'s Service,
    client: &mut Client,
    group: &mut Group,
    arguments: &[&[u8]],
    reply: &mut Reply,
    given: impl Into<Given<'s>>,
) -> Step {
    let given = given.into();
    // What a lane does by itself is bounded.
    let waits = given.waiting != Waiting::Never;
    group.begins_request(waits.then(|| Wanted::from_now(client.info.interest.clone(), service.stops.clone())));
    let command = match find(arguments) {
        Ok(command) => command,
        Err(_) if is_of_http(arguments[0]) => {
            if let Some(others) = service.occasions.note(Occasion::Http) {
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
        service.statistics.usage.refused(command);
        // A transaction whose end is refused has ended all the same, and so has what was watched for one that never began.
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
        let (step, has_failed) = match transactions::exec(service, client, group, reply, given.waiting) {
            Ok(step) => (step, false),
            Err(failure) => (refuse(service, client, reply, &failure), true),
        };
        if matches!(step, Step::Done { .. }) {
            service.statistics.commands.fetch_add(1, Ordering::Relaxed);
            // Nothing else than a command that sleeps makes a transaction's client rest.
            let sleeps = if let Then::Rest(rest) = client.then { rest } else { Duration::ZERO };
            service.statistics.usage.carried_out(command, began.elapsed().saturating_add(sleeps), has_failed);
        }
        step
    } else {
        execute_command(service, client, group, command, arguments, reply, given)
    }
}

/// Whether a request begins as lines of HTTP do, whose body would be carried out as well: any web page could send that. The words are Redis'.
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

/// The command, or the subcommand, that `arguments` begin with.
///
/// # Errors
///
/// Redis' refusals.
pub fn resolve(arguments: &[&[u8]]) -> Result<&'static Command, Failure> {
    let command = find(arguments)?;
    check_number(command, arguments)?;
    Ok(command)
}

/// The same, whether or not it takes so many arguments.
pub(crate) fn find(arguments: &[&[u8]]) -> Result<&'static Command, Failure> {
    let name = arguments[0];
    let mut command = table::find(name).ok_or_else(|| unknown(arguments))?;
    if let (false, [_, sub, ..]) = (command.subcommands.is_empty(), arguments) {
        command = command.subcommand(sub).ok_or_else(|| {
            let behind = format!("'. Try {} HELP.", command.name.to_ascii_uppercase());
            Failure::repeating("ERR unknown subcommand '", shown(sub), &behind)
        })?;
    }
    Ok(command)
}

fn check_number(command: &Command, arguments: &[&[u8]]) -> Result<(), Failure> {
    if command.takes(arguments.len()) {
        return Ok(());
    }
    Err(Failure::with(format!("ERR wrong number of arguments for '{}' command", command.name)))
}

fn unknown(arguments: &[&[u8]]) -> Failure {
    let mut begin = Vec::new();
    for argument in &arguments[1..] {
        if begin.len() >= MAX_REPEATED {
            break;
        }
        let argument = &argument[..argument.len().min(MAX_REPEATED - begin.len())];
        begin.extend_from_slice(&[b"'", repeated(argument), b"' "].concat());
    }
    Failure::with([b"ERR unknown command '", shown(arguments[0]), b"', with args beginning with: ", &begin].concat())
}

/// What of a name is repeated where Redis repeats no more than its beginning.
pub(crate) fn shown(name: &[u8]) -> &[u8] {
    repeated(&name[..name.len().min(MAX_REPEATED)])
}

fn refuse(service: &Service, client: &mut Client, reply: &mut Reply, failure: &Failure) -> Step {
    if let Some(transaction) = &mut client.transaction {
        transaction.is_refused = true;
    }
    reply_error(service, reply, failure);
    Step::Done { depends: false }
}

fn reply_error(service: &Service, reply: &mut Reply, failure: &Failure) {
    reply.error(failure.reply());
    count_error(service, failure);
}

fn count_error(service: &Service, failure: &Failure) {
    service.statistics.count_errors(failure.reply().as_ref(), 1);
    // That the store is full it has told itself, once; here it would come with every write.
    if let Failure::Store(error) = failure
        && !matches!(error, StoreError::OutOfSpace { .. })
        && let Some(others) = service.occasions.note(Occasion::StoreFailed)
    {
        tracing::warn!(%error, others, "a command failed");
    }
}

fn queue(
    service: &Service,
    client: &mut Client,
    command: &'static Command,
    arguments: &[&[u8]],
    reply: &mut Reply,
) -> Step {
    if command.has(flag::NO_MULTI) {
        service.statistics.usage.refused(command);
        return refuse(service, client, reply, &Failure::text("ERR Command not allowed inside a transaction"));
    }
    if command.has(flag::DENYOOM)
        && let Err(error) = service.keyspace.store().check_room()
    {
        service.statistics.usage.refused(command);
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

/// Carries out `command` with `arguments`, which it takes, for a client that may use it.
pub fn execute_command<'s>(
    service: &'s Service,
    client: &mut Client,
    group: &mut Group,
    command: &'static Command,
    arguments: &[&[u8]],
    reply: &mut Reply,
    given: impl Into<Given<'s>>,
) -> Step {
    let Given { waiting, waits_for_latches, mut known } = given.into();
    let takes_long = command.has(flag::WAITS) && waiting != Waiting::Allowed;
    if takes_long || arguments.len() > MAX_ARGUMENTS_AT_ONCE && waiting == Waiting::Never {
        return Step::MustWait;
    }
    if command.has(flag::WRITE) && group.is_closed_to(command.has(flag::DENYOOM)) {
        return Step::Latched;
    }
    let mut has_latches = command.flags & (flag::WRITE | flag::LATCHES | flag::ALL_SLOTS) != 0;
    let for_latches = if waits_for_latches { waiting } else { Waiting::Never };
    let held = group.latches_held();
    // Who only reads, and may take long, keeps nobody from the keys: it sees them as they are at one moment.
    let mut sees_one_moment = reads_alone(group, waiting) && command.has(flag::READONLY);
    let mut snapshot = None;
    loop {
        if has_latches && sees_one_moment {
            snapshot = Some(service.keyspace.store().snapshot());
            known = None;
        } else if has_latches && !group.hold(&slots(command, arguments), for_latches) {
            let unwanted = group.unwanted();
            return unwanted.map_or(Step::Latched, |failure| {
                reply_error(service, reply, &failure);
                Step::Done { depends: false }
            });
        }
        group.takes_memory_beyond(arguments.iter().map(|argument| argument.len()).sum());
        let began = Instant::now();
        let now_ms = service.keyspace.clock().ms_at(began);
        let turn = Turn { waiting, began, now_ms, known: known.take(), snapshot: snapshot.as_ref() };
        let step = match run_latched(service, client, group, command, arguments, reply, turn) {
            Ok(ran) => {
                ran.count(service, client, arguments);
                Step::Done { depends: ran.depends }
            }
            Err(SentBack::MustLatch) if !has_latches => {
                has_latches = true;
                continue;
            }
            // It notes for others what it reads, and must see what is there now.
            Err(SentBack::MustLatch) if snapshot.is_some() => {
                (snapshot, sees_one_moment) = (None, false);
                continue;
            }
            Err(SentBack::MustLatch | SentBack::MustWait) => {
                if !command.has(flag::WRITE) {
                    // It reads on elsewhere, or later, and takes them again.
                    group.release_beyond(held);
                }
                Step::MustWait
            }
        };
        group.keep();
        return step;
    }
}

/// Whether what is read now may be read from a snapshot: nothing was written that is not in the store yet.
pub(crate) fn reads_alone(group: &Group, waiting: Waiting) -> bool {
    waiting == Waiting::Allowed && group.is_empty() && !group.holds_any()
}

/// How a command is carried out.
pub(crate) struct Turn<'s> {
    pub(crate) waiting: Waiting,
    /// Now.
    pub(crate) began: Instant,
    /// The time by which keys have expired.
    pub(crate) now_ms: u64,
    /// What is known of the key that it reads first.
    pub(crate) known: Option<Known<'s>>,
    /// What is read instead of the store, where nobody is kept from changing it.
    pub(crate) snapshot: Option<&'s Snapshot<'s>>,
}

/// Why a command was not carried out, and nothing of it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SentBack {
    /// It needs the latches of its keys though it only reads.
    MustLatch,
    /// As [`Step::MustWait`].
    MustWait,
}

/// A command that was carried out, and replied.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Whether the reply may be sent only once the group is committed.
    pub(crate) depends: bool,
    command: &'static Command,
    took: Duration,
    seen: Seen,
    error: Option<Failure>,
}

impl Ran {
    /// Counts it. Not before it is certain that it is not undone and carried out again.
    pub(crate) fn count(&self, service: &Service, client: &Client, arguments: &[&[u8]]) {
        let Self { command, took, seen, ref error, .. } = *self;
        if let Some(error) = error {
            count_error(service, error);
        }
        let statistics = &service.statistics;
        statistics.commands.fetch_add(1, Ordering::Relaxed);
        if seen.hits + seen.misses > 0 {
            statistics.hits.fetch_add(seen.hits.into(), Ordering::Relaxed);
            statistics.misses.fetch_add(seen.misses.into(), Ordering::Relaxed);
        }
        statistics.usage.carried_out(command, took, error.is_some());
        note_if_slow(service, client, command, arguments, took);
    }
}

/// Carries out a command whose latches are held. Who calls sees to it that it is [counted](Ran::count).
pub(crate) fn run_latched(
    service: &Service,
    client: &mut Client,
    group: &mut Group,
    command: &'static Command,
    arguments: &[&[u8]],
    reply: &mut Reply,
    turn: Turn<'_>,
) -> Result<Ran, SentBack> {
    let (mark, replied) = (group.mark(), reply.len());
    let takes_room = command.has(flag::DENYOOM);
    group.begins(takes_room);
    let room = if takes_room { service.keyspace.store().check_room() } else { Ok(()) };
    let mut keys = group.keys_at(turn.now_ms, turn.waiting, turn.known, turn.snapshot);
    keys.count_lookups(command.has(flag::READONLY));
    let mut call = Call { arguments, keys, reply, client, service, command, sleeps: Duration::ZERO };
    let outcome = match room {
        // A command that panics takes nobody else down: this thread serves other clients, and its group has what they wrote.
        Ok(()) => catch_unwind(AssertUnwindSafe(|| (command.run)(&mut call))).unwrap_or(Err(PANICKED)),
        Err(error) => Err(error.into()),
    };
    let outcome = match outcome {
        Ok(()) if call.reply.is_over() => Err(too_long(service)),
        outcome => call.keys.refusal().map_or(outcome, Err),
    };
    let (seen, sleeps) = (call.keys.seen(), call.sleeps);
    drop(call);
    let mut error = None;
    match outcome {
        // To write all of a long value again for a new time takes room as well.
        Ok(()) => group.begins(group.written_since(mark) > MAX_FREELY_WRITTEN_BYTES),
        Err(failure) => {
            reply.truncate(replied);
            group.undo_to(mark);
            match failure {
                Failure::MustWait => return Err(SentBack::MustWait),
                Failure::MustLatch => return Err(SentBack::MustLatch),
                failure => {
                    reply.error(failure.reply());
                    error = Some(failure);
                }
            }
        }
    }
    let depends = group.has_written_since(mark) || seen.is_uncommitted;
    Ok(Ran { depends, command, took: turn.began.elapsed().saturating_add(sleeps), seen, error })
}

/// What a client is told instead of a reply that is longer than it may be.
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
