//! FEDERATION, which Redis does not have: how the federation is, and changes of it. See
//! [`crate::federation`]. What cluster clients need to know is told by `CLUSTER`.

use super::entry::{container, help, plain};
use super::{Call, Command, flag};
use crate::client::{Awaited, Then};
use crate::federation::{FederationError, FederationRequest};
use crate::protocol::number::parse_integer;
use ecotone_keyspace::error::{Failure, Outcome, texts};

const ADMIN: u32 = flag::ADMIN | flag::NOSCRIPT | flag::NO_MULTI | flag::NO_ASYNC_LOADING;

/// Redis has none; the version that clients may take this server for.
const SINCE: &str = "7.2.0";

const fn subcommand(name: &'static str, arity: i32, summary: &'static str, run: super::Run) -> Command {
    Command {
        complexity: "O(N) where N is the number of servers and shards, and the time in which servers agree on it",
        ..plain(name, arity, ADMIN, "server", SINCE, summary, run)
    }
}

/// The family.
pub const COMMANDS: &[Command] = &[container(
    "federation",
    "server",
    SINCE,
    "A container for commands about the servers and shards of the federation.",
    FEDERATION,
)];

const FEDERATION: &[Command] = &[
    subcommand("federation|status", 2, "Returns as JSON which servers and shards there are, and who leads.", status),
    subcommand("federation|token", 2, "Returns as JSON a token with which one server can join within an hour.", token),
    Command {
        usage: "[shards:integer] [COPIES copies:integer] [LEVEL level]",
        ..subcommand("federation|create", -2, "Deals all hash slots to shards, once, and these to servers.", create)
    },
    Command {
        usage: "server",
        ..subcommand("federation|drain", 3, "Has a server get nothing more and vote no longer.", |call| {
            drain(call, true)
        })
    },
    Command {
        usage: "server",
        ..subcommand("federation|undrain", 3, "Takes back that a server is drained.", |call| drain(call, false))
    },
    Command { usage: "server [FORCE]", ..subcommand("federation|remove", -3, "Removes a server for ever.", remove) },
    subcommand(
        "federation|rebalance",
        2,
        "Returns as JSON which copies are being moved, and which shards should be moved by hand.",
        rebalance,
    ),
    Command {
        usage: "shard:integer (TO server)",
        ..subcommand("federation|move", 5, "States that a shard was moved by hand.", move_shard)
    },
    Command {
        usage: "shard:integer (TO server)",
        ..subcommand("federation|switchover", 5, "Hands a shard over to another copy, without loss.", switch_over)
    },
    Command {
        usage: "shard:integer (TO server) [FORCE]",
        ..subcommand("federation|promote", -5, "Makes a copy the primary that may lack what was acknowledged.", promote)
    },
    Command {
        usage: "shard:integer [SERVER server] [PROGRESS]",
        ..subcommand(
            "federation|repair",
            -3,
            "Compares the files of a shard's copies, replaces those that differ, and returns as JSON how far that is.",
            repair,
        )
    },
    Command {
        usage: "[name]",
        ..subcommand("federation|get", -2, "Returns as JSON the settings of the whole federation, or one.", get)
    },
    Command {
        usage: "name [value]",
        ..subcommand("federation|set", -3, "Sets a setting of the whole federation, or takes it back.", set)
    },
    subcommand("federation|export", 2, "Returns the map of the federation, for another one to begin with.", export),
    plain(
        "federation|help",
        2,
        flag::LOADING | flag::STALE,
        "server",
        SINCE,
        "Returns helpful text about the different subcommands.",
        federation_help,
    ),
];

impl From<FederationError> for Failure {
    fn from(error: FederationError) -> Self {
        match error {
            FederationError::Busy => Self::with(format!("BUSY {error}")),
            error => Self::with(format!("ERR {error}")),
        }
    }
}

/// The reply is the answer, once it is there.
fn ask(call: &mut Call<'_>, request: FederationRequest) -> Outcome {
    let answer = {
        let host = call.service.host.clone();
        call.service.federation.begin(move || host.federation(&request))?
    };
    call.client.awaited = Some(Awaited::Federation(answer));
    call.client.then = Then::Follow;
    Ok(())
}

/// An argument that is a text: names and values of a federation are.
fn text(argument: &[u8]) -> Outcome<String> {
    String::from_utf8(argument.to_vec()).map_err(|_| Failure::text("ERR the argument is not UTF-8"))
}

fn number(argument: &[u8]) -> Outcome<u32> {
    let number = parse_integer(argument).ok_or(texts::NOT_AN_INTEGER)?;
    u32::try_from(number).map_err(|_| texts::OUT_OF_RANGE_POSITIVE)
}

fn status(call: &mut Call<'_>) -> Outcome {
    ask(call, FederationRequest::Status)
}

fn token(call: &mut Call<'_>) -> Outcome {
    ask(call, FederationRequest::Token)
}

fn create(call: &mut Call<'_>) -> Outcome {
    let mut options = &call.arguments[2..];
    let (mut shards, mut copies, mut level) = (None, None, None);
    while let [word, rest @ ..] = options {
        options = match rest {
            [value, rest @ ..] if word.eq_ignore_ascii_case(b"COPIES") && copies.is_none() => {
                copies = Some(number(value)?);
                rest
            }
            [value, rest @ ..] if word.eq_ignore_ascii_case(b"LEVEL") && level.is_none() => {
                level = Some(text(value)?.to_ascii_lowercase());
                rest
            }
            rest if (shards, copies, &level) == (None, None, &None) => {
                shards = Some(number(word)?);
                rest
            }
            _ => return Err(texts::SYNTAX),
        };
    }
    ask(call, FederationRequest::Create { shards, copies, level })
}

fn drain(call: &mut Call<'_>, drain: bool) -> Outcome {
    let server = text(call.arguments[2])?;
    ask(call, FederationRequest::Drain { server, drain })
}

fn remove(call: &mut Call<'_>) -> Outcome {
    let (server, force) = match call.arguments[2..] {
        [server] => (server, false),
        [server, option] if option.eq_ignore_ascii_case(b"FORCE") => (server, true),
        _ => return Err(texts::SYNTAX),
    };
    ask(call, FederationRequest::Remove { server: text(server)?, force })
}

fn rebalance(call: &mut Call<'_>) -> Outcome {
    ask(call, FederationRequest::Rebalance)
}

/// `shard TO server`.
fn shard_and_server(words: &[&[u8]]) -> Outcome<(u32, String)> {
    match words {
        [shard, to, server] if to.eq_ignore_ascii_case(b"TO") => Ok((number(shard)?, text(server)?)),
        _ => Err(texts::SYNTAX),
    }
}

fn move_shard(call: &mut Call<'_>) -> Outcome {
    let (shard, to) = shard_and_server(&call.arguments[2..])?;
    ask(call, FederationRequest::Move { shard, to })
}

fn switch_over(call: &mut Call<'_>) -> Outcome {
    let (shard, to) = shard_and_server(&call.arguments[2..])?;
    ask(call, FederationRequest::SwitchOver { shard, to })
}

fn promote(call: &mut Call<'_>) -> Outcome {
    let (words, force) = match &call.arguments[2..] {
        [words @ .., force] if force.eq_ignore_ascii_case(b"FORCE") => (words, true),
        words => (words, false),
    };
    let (shard, to) = shard_and_server(words)?;
    ask(call, FederationRequest::Promote { shard, to, force })
}

fn repair(call: &mut Call<'_>) -> Outcome {
    let (words, begin) = match &call.arguments[2..] {
        [words @ .., progress] if progress.eq_ignore_ascii_case(b"PROGRESS") => (words, false),
        words => (words, true),
    };
    let (shard, server) = match words {
        [shard] => (shard, None),
        [shard, option, server] if option.eq_ignore_ascii_case(b"SERVER") => (shard, Some(text(server)?)),
        _ => return Err(texts::SYNTAX),
    };
    ask(call, FederationRequest::Repair { shard: number(shard)?, server, begin })
}

fn get(call: &mut Call<'_>) -> Outcome {
    let name = match call.arguments[2..] {
        [] => None,
        [name] => Some(text(name)?),
        _ => return Err(texts::SYNTAX),
    };
    ask(call, FederationRequest::Get { name })
}

fn set(call: &mut Call<'_>) -> Outcome {
    let (name, value) = match call.arguments[2..] {
        [name] => (name, None),
        [name, value] => (name, Some(text(value)?)),
        _ => return Err(texts::SYNTAX),
    };
    ask(call, FederationRequest::Set { name: text(name)?, value })
}

fn export(call: &mut Call<'_>) -> Outcome {
    ask(call, FederationRequest::Export)
}

fn federation_help(call: &mut Call<'_>) -> Outcome {
    help(
        call,
        &[
            "STATUS",
            "    Return as JSON which servers and shards there are, who leads and who votes.",
            "TOKEN",
            "    Return as JSON a token with which one server can join within an hour.",
            "CREATE [<shards>] [COPIES <copies>] [LEVEL ONE|QUORUM|ALL]",
            "    Deal all hash slots to <shards> shards (default: one for each server that can hold one), each of which",
            "    is to have <copies> copies; a write is acknowledged when as many have it as the level says.",
            "DRAIN <server>",
            "    Have a server get no more shards and vote no longer. Shards with copies leave it by themselves; others stay",
            "    until they are moved.",
            "UNDRAIN <server>",
            "    Take that back.",
            "REMOVE <server> [FORCE]",
            "    Remove a server for ever. FORCE loses shards of which it has the only copy.",
            "REBALANCE",
            "    Return as JSON which copies are being moved, and which shards should be moved by hand.",
            "MOVE <shard> TO <server>",
            "    State that a shard was moved by hand, while its server was stopped.",
            "SWITCHOVER <shard> TO <server>",
            "    Hand a shard over to another copy of it that is in sync. Nothing is lost.",
            "PROMOTE <shard> TO <server> FORCE",
            "    Make a copy the primary, whatever it lacks: acknowledged writes may be lost. Stop the old primary before.",
            "REPAIR <shard> [SERVER <server>] [PROGRESS]",
            "    Compare the files of all copies of a shard, or of one server's, with what they should hold, and replace those",
            "    that differ by another copy's. Returns as JSON how far that is; PROGRESS only does that.",
            "GET [<name>]",
            "    Return as JSON the settings of the whole federation, or one of them.",
            "SET <name> [<value>]",
            "    Set a setting of the whole federation; without a value it has its default again.",
            "EXPORT",
            "    Return the map of the federation, as `ecotone cluster import` takes it.",
        ],
    );
    Ok(())
}
