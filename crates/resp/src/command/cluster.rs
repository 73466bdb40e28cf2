//! CLUSTER, READONLY, READWRITE, ASKING, ROLE, WAIT, WAITAOF: the replies of a standalone server.

use std::time::Duration;

use super::entry::{container, plain};
use super::{Call, Command, Deprecation, flag};
use crate::client::Then;
use crate::protocol::number::parse_integer;
use ecotone_keyspace::error::{Failure, Outcome, texts};

const fn command(name: &'static str, arity: i32, flags: u32, summary: &'static str, run: super::Run) -> Command {
    plain(name, arity, flags, "cluster", "3.0.0", summary, run)
}

const fn subcommand(name: &'static str, arity: i32, summary: &'static str) -> Command {
    command(name, arity, flag::STALE, summary, disabled)
}

const FAST: u32 = flag::LOADING | flag::STALE | flag::FAST;

/// The family.
pub const COMMANDS: &[Command] = &[
    container("cluster", "cluster", "3.0.0", "A container for cluster commands.", SUBCOMMANDS),
    command("readonly", 1, FAST, "Enables read-only queries for a connection to a cluster replica.", disabled),
    command("readwrite", 1, FAST, "Enables read-write queries for a connection to a cluster replica.", disabled),
    command("asking", 1, flag::FAST, "Signals that a cluster client is following an -ASK redirect.", disabled),
    Command {
        group: "server",
        since: "2.8.12",
        ..command("role", 1, FAST | flag::NOSCRIPT, "Returns the replication role.", role)
    },
    Command {
        usage: "numreplicas:integer timeout:integer",
        group: "generic",
        ..command(
            "wait",
            3,
            flag::NOSCRIPT,
            "Blocks until the replication of all preceding writes sent by the connection is completed.",
            wait,
        )
    },
    Command {
        usage: "numlocal:integer numreplicas:integer timeout:integer",
        group: "generic",
        since: "7.2.0",
        ..command(
            "waitaof",
            4,
            flag::NOSCRIPT | flag::WAITS,
            "Blocks until all of the preceding write commands sent by the connection are written to the append-only file of the master and/or replicas.",
            wait_for_log,
        )
    },
];

const SUBCOMMANDS: &[Command] = &[
    subcommand("cluster|info", 2, "Returns information about the state of a node."),
    subcommand("cluster|myid", 2, "Returns the ID of a node."),
    Command { since: "7.2.0", ..subcommand("cluster|myshardid", 2, "Returns the shard ID of a node.") },
    subcommand("cluster|nodes", 2, "Returns the cluster configuration for a node."),
    Command {
        deprecated: Some(Deprecation { since: "7.0.0", instead: "`CLUSTER SHARDS`" }),
        ..subcommand("cluster|slots", 2, "Returns the mapping of cluster slots to nodes.")
    },
    Command { since: "7.0.0", ..subcommand("cluster|shards", 2, "Returns the mapping of cluster slots to shards.") },
    Command {
        since: "7.0.0",
        ..subcommand("cluster|links", 2, "Returns a list of all TCP links to and from peer nodes.")
    },
    Command { usage: "key:string", ..subcommand("cluster|keyslot", 3, "Returns the hash slot for a key.") },
    Command {
        usage: "slot:integer",
        ..subcommand("cluster|countkeysinslot", 3, "Returns the number of keys in a hash slot.")
    },
    Command {
        usage: "slot:integer count:integer",
        ..subcommand("cluster|getkeysinslot", 4, "Returns the key names in a hash slot.")
    },
    Command {
        since: "5.0.0",
        flags: flag::LOADING | flag::STALE,
        ..subcommand("cluster|help", 2, "Returns helpful text about the different subcommands.")
    },
];

fn disabled(_: &mut Call<'_>) -> Outcome {
    Err(Failure::text("ERR This instance has cluster support disabled"))
}

fn role(call: &mut Call<'_>) -> Outcome {
    call.reply.array(3);
    call.reply.bulk_text("master");
    call.reply.integer(0);
    call.reply.array(0);
    Ok(())
}

/// There are no replicas. A client that waits for some gets the reply after its timeout, as in
/// Redis; one without a timeout gets it at once.
fn wait(call: &mut Call<'_>) -> Outcome {
    let replicas = parse_integer(call.arguments[1]).ok_or(texts::NOT_AN_INTEGER)?;
    let timeout_ms = timeout_ms(call, 2, replicas)?;
    rest(call, replicas, timeout_ms);
    call.reply.integer(0);
    Ok(())
}

/// The log of this server is what Redis' append-only file is, and it waits for that; replicas are
/// as with [`wait`].
fn wait_for_log(call: &mut Call<'_>) -> Outcome {
    let local = parse_integer(call.arguments[1]).ok_or(texts::NOT_AN_INTEGER)?;
    if !(0..=1).contains(&local) {
        return Err(Failure::text("ERR value is out of range, value must between 0 and 1"));
    }
    let replicas = parse_integer(call.arguments[2]).filter(|replicas| *replicas >= 0);
    let replicas = replicas.ok_or(texts::OUT_OF_RANGE_POSITIVE)?;
    let timeout_ms = timeout_ms(call, 3, replicas)?;
    let setting = |name: &str| call.service.host.settings(&|known| known == name).remove(name).unwrap_or_default();
    let is_synced = if local == 1 {
        if setting("appendonly") != "yes" {
            return Err(Failure::text("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled."));
        }
        call.keys.keyspace().store().sync()?;
        true
    } else {
        setting("appendfsync") == "always"
    };
    rest(call, replicas, timeout_ms);
    call.reply.array(2);
    call.reply.integer(is_synced.into());
    call.reply.integer(0);
    Ok(())
}

/// The time at `index` among the arguments, for which so many replicas are waited for.
fn timeout_ms(call: &Call<'_>, index: usize, replicas: i64) -> Outcome<u64> {
    let timeout_ms = parse_integer(call.arguments[index]);
    let timeout_ms = timeout_ms.ok_or(Failure::text("ERR timeout is not an integer or out of range"))?;
    let timeout_ms = u64::try_from(timeout_ms).map_err(|_| Failure::text("ERR timeout is negative"))?;
    if replicas > 0 && call.keys.now_ms().checked_add(timeout_ms).is_none_or(|until| i64::try_from(until).is_err()) {
        return Err(Failure::text("ERR timeout is out of range"));
    }
    Ok(timeout_ms)
}

/// Nothing waits within a transaction.
fn rest(call: &mut Call<'_>, replicas: i64, timeout_ms: u64) {
    if replicas > 0 && timeout_ms > 0 && !call.client.info.is_in_transaction() {
        call.client.then = Then::Rest(Duration::from_millis(timeout_ms));
    }
}
