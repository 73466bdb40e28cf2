//! The commands: one file for each family, and the table of them all.

pub mod acl;
mod arguments;
pub mod backup;
pub mod categories;
pub mod clients;
pub mod cluster;
mod cluster_map;
pub mod compaction;
pub mod config;
pub mod connection;
pub mod diagnostics;
mod entry;
pub mod expiry;
pub mod federation;
pub mod hashes;
pub mod info;
pub mod inspecting;
pub mod introspection;
mod key_access;
pub mod keys;
pub mod lists;
pub mod run;
pub mod saving;
pub mod scan;
pub(crate) mod secrets;
pub mod set_algebra;
pub mod sets;
pub mod sorted_set_random;
pub mod sorted_set_ranges;
pub mod sorted_sets;
pub mod strings;
pub mod table;
mod tips;
pub mod transactions;
pub(crate) mod word;

use std::ops::ControlFlow;
use std::time::Duration;

use crate::client::Client;
use crate::protocol::reply::Reply;
use crate::service::Service;
use ecotone_keyspace::error::{Failure, Outcome};
use ecotone_keyspace::{CancellationCheck, Keys};

/// Everything a command is executed with.
///
/// A command first reads and checks, then writes to [`keys`](Self::keys), then replies. Where it
/// fails its writes and its reply are undone. The latches of the keys that its table entry names
/// are held if it writes.
pub struct Call<'c> {
    /// The command's name and its arguments.
    pub arguments: &'c [&'c [u8]],
    /// The keys, as this command sees them.
    pub keys: Keys<'c>,
    /// Where the reply goes.
    pub reply: &'c mut Reply,
    /// Its client.
    pub client: &'c mut Client,
    /// What all clients share.
    pub service: &'c Service,
    /// The table's entry.
    pub command: &'static Command,
    /// How long its client is throttled after it; that counts as time that the command took.
    pub sleeps: Duration,
}

/// Breaks a visit whose reply has become too long.
pub(crate) fn go_on(reply: &Reply) -> ControlFlow<()> {
    if reply.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Bytes of a string in a reply beside its own, at least.
const AROUND_BULK_BYTES: usize = b"$0\r\n\r\n".len();

/// Number and size of the answers that are requested: what cannot fit into the reply is refused
/// before anything is done for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answers {
    number: u64,
    /// Strings in each of them.
    strings: usize,
    max_bytes: usize,
    /// What they are.
    what: &'static str,
}

impl Answers {
    /// `number` of them, each of so many `strings`, after what `reply` has.
    pub(crate) fn new(service: &Service, reply: &Reply, number: u64, strings: usize, what: &'static str) -> Self {
        let max_bytes = service.limits.read().output_bytes.min(reply.bytes_left());
        Self { number, strings, max_bytes, what }
    }

    /// Sets the least bytes of each.
    ///
    /// # Errors
    ///
    /// They do not fit into the reply.
    pub(crate) fn check(&self, bytes: usize) -> Outcome {
        let each = (self.strings * AROUND_BULK_BYTES).saturating_add(bytes);
        if self.number.saturating_mul(each as u64) <= self.max_bytes as u64 {
            return Ok(());
        }
        Err(self.are_too_many())
    }

    fn are_too_many(&self) -> Failure {
        let Self { max_bytes, what, .. } = self;
        Failure::with(format!(
            "ERR the reply would take more than {max_bytes} bytes (clients.max_output_bytes); ask for fewer {what}"
        ))
    }
}

/// A visit to elements that are drawn repeatedly. No more are drawn than the reply can hold, also
/// where it has no bound; and none once the client has gone.
pub(crate) struct Drawing {
    cancellation: CancellationCheck,
    answers: Answers,
    /// Where the reply began.
    begin: usize,
}

impl Drawing {
    /// Before the first draw, which follows what `reply` has.
    pub(crate) fn begin(answers: Answers, keys: &Keys<'_>, reply: &Reply) -> Self {
        Self { cancellation: keys.cancellation_check(), answers, begin: reply.len() }
    }

    /// After each draw, once it is in the reply: breaks where the next is in vain.
    pub(crate) fn go_on(&mut self, reply: &Reply) -> ControlFlow<()> {
        self.cancellation.after_steps(1)?;
        if self.is_too_long(reply) { ControlFlow::Break(()) } else { go_on(reply) }
    }

    fn is_too_long(&self, reply: &Reply) -> bool {
        reply.len() - self.begin > self.answers.max_bytes
    }

    /// After the last: whether all were drawn.
    pub(crate) fn end(self, reply: &Reply) -> Outcome {
        if self.is_too_long(reply) {
            return Err(self.answers.are_too_many());
        }
        self.cancellation.end()
    }
}

/// Executes a command.
pub type Run = fn(&mut Call<'_>) -> Outcome;

/// A command, as the table has it and `COMMAND` describes it.
#[derive(Debug)]
pub struct Command {
    /// In lower case; a subcommand as `container|name`.
    pub name: &'static str,
    /// Number of arguments with the name: exactly, or at least its negative.
    pub arity: i32,
    /// See [`flag`].
    pub flags: u32,
    /// Where its keys are.
    pub keys: KeyPositions,
    /// As `COMMAND DOCS` names them: `string`, `generic`, `hash`, `sorted-set`, `set`, `list`,
    /// `connection`, `server`, `transactions`.
    pub group: &'static str,
    /// The version of Redis that had it first.
    pub since: &'static str,
    /// Since when it is deprecated for another command.
    pub deprecated: Option<Deprecation>,
    /// One line.
    pub summary: &'static str,
    /// As `COMMAND DOCS` states it.
    pub complexity: &'static str,
    /// The arguments after its name, in the syntax that `arguments.rs` defines; empty: not
    /// documented.
    pub usage: &'static str,
    /// Its subcommands; then `run` is only called without one.
    pub subcommands: &'static [Command],
    /// Executes it.
    pub run: Run,
}

/// That a command is deprecated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deprecation {
    /// The version of Redis that deprecated it.
    pub since: &'static str,
    /// What replaces it, as one would type it.
    pub instead: &'static str,
}

/// Flags of a command. The first ones are Redis' and are shown to clients.
pub mod flag {
    /// It changes keys: the latches of their slots are held.
    pub const WRITE: u32 = 1;
    /// It only reads keys.
    pub const READONLY: u32 = 1 << 1;
    /// It may make the store grow.
    pub const DENYOOM: u32 = 1 << 2;
    /// It is for administrators.
    pub const ADMIN: u32 = 1 << 3;
    /// It takes constant or logarithmic time.
    pub const FAST: u32 = 1 << 4;
    /// Not in a script.
    pub const NOSCRIPT: u32 = 1 << 5;
    /// Also without authentication.
    pub const NO_AUTH: u32 = 1 << 6;
    /// Not between `MULTI` and `EXEC`.
    pub const NO_MULTI: u32 = 1 << 7;
    /// While the data is loaded.
    pub const LOADING: u32 = 1 << 8;
    /// At a replica that has lost its primary.
    pub const STALE: u32 = 1 << 9;
    /// Its keys are found by parsing its arguments.
    pub const MOVABLE_KEYS: u32 = 1 << 10;
    /// While a script takes long.
    pub const ALLOW_BUSY: u32 = 1 << 11;
    /// It is left out of the slow log.
    pub const SKIP_SLOWLOG: u32 = 1 << 12;
    /// Not while the data is loaded beside the old.
    pub const NO_ASYNC_LOADING: u32 = 1 << 13;
    /// It writes all keys: all latches are held. Internal.
    pub const ALL_SLOTS: u32 = 1 << 16;
    /// It reads many keys, or may take long: only where blocking is allowed. Internal.
    pub const WAITS: u32 = 1 << 17;
    /// The latches of its keys are held though it does not write. Internal.
    pub const LATCHES: u32 = 1 << 19;
    /// It reads and may count members of a large sorted set, which is noted for all who ask later:
    /// what is counted must be there now, under the latch, and is not of a snapshot. Internal.
    pub const COUNTS_RANKS: u32 = 1 << 22;
    /// It asks what is known of its key's value, without the value, which may have to be read and
    /// decompressed. Internal.
    pub const DESCRIBES: u32 = 1 << 23;
    /// It is executed between `MULTI` and `EXEC`, not queued. Internal.
    pub const NOT_QUEUED: u32 = 1 << 18;
    /// Its arguments may include passwords, which are logged nowhere. Internal.
    pub const SECRET: u32 = 1 << 20;
    /// Only for debugging the server. `COMMAND DOCS` states it.
    pub const INTERNAL: u32 = 1 << 21;
}

/// Where the keys of a command are among its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPositions {
    /// It has none.
    None,
    /// From `first` to `last` by `step`; a negative `last` counts from the end.
    Range {
        /// Index of the first key.
        first: usize,
        /// Index of the last one, -1 for the last argument.
        last: isize,
        /// From one key to the next.
        step: usize,
    },
    /// The number of keys is at `count`, the keys follow. `also`: one more key at this index, or 0.
    Counted {
        /// Index of the number.
        count: usize,
        /// Index of another key, 0 for none.
        also: usize,
    },
}

impl KeyPositions {
    /// One key after the name.
    pub const FIRST: Self = Self::Range { first: 1, last: 1, step: 1 };
    /// All arguments are keys.
    pub const ALL: Self = Self::Range { first: 1, last: -1, step: 1 };

    /// The indices of the keys among `arguments`. Empty where they make no sense: the command will
    /// refuse them.
    pub fn of(self, arguments: &[&[u8]]) -> impl Iterator<Item = usize> + use<> {
        let (first, end, step, also) = match self {
            Self::None => (0, 0, 1, 0),
            Self::Range { first, last, step } => {
                let end = if last < 0 { arguments.len() as isize + last + 1 } else { last + 1 };
                (first, (end.max(0) as usize).min(arguments.len()), step, 0)
            }
            Self::Counted { count, also } => {
                let number = arguments.get(count).and_then(|number| crate::protocol::number::parse_integer(number));
                let number = number.and_then(|number| usize::try_from(number).ok()).unwrap_or(0);
                let end = (count + 1).saturating_add(number);
                let has_all = end <= arguments.len();
                (count + 1, if has_all { end } else { 0 }, 1, if has_all { also } else { 0 })
            }
        };
        (also > 0).then_some(also).into_iter().chain((first..end).step_by(step))
    }
}

/// All commands by family. Not a constant, so that a command is identified by its address.
static COMMAND_TABLE: &[&[Command]] = &[
    strings::COMMANDS,
    keys::COMMANDS,
    expiry::COMMANDS,
    scan::COMMANDS,
    hashes::COMMANDS,
    sets::COMMANDS,
    set_algebra::COMMANDS,
    lists::COMMANDS,
    sorted_sets::COMMANDS,
    sorted_set_ranges::COMMANDS,
    sorted_set_random::COMMANDS,
    transactions::COMMANDS,
    connection::COMMANDS,
    clients::COMMANDS,
    introspection::COMMANDS,
    info::COMMANDS,
    config::COMMANDS,
    diagnostics::COMMANDS,
    saving::COMMANDS,
    inspecting::COMMANDS,
    compaction::COMMANDS,
    backup::COMMANDS,
    cluster::COMMANDS,
    federation::COMMANDS,
    acl::COMMANDS,
];
