//! CLUSTER, READONLY, READWRITE, ASKING, as a server of a Redis cluster answers them; ROLE, WAIT,
//! WAITAOF.
//!
//! What is told of servers and slots is in [`super::cluster_map`]. Slots are dealt, and servers
//! come and go, by the commands of `ecotone cluster`: where Redis has a subcommand for that, the
//! reply says which. Slots never migrate key by key, so nothing is asked for with `ASKING`.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::cluster_map::{self, Addressed};
use super::entry::{container, help, plain};
use super::{Call, Command, Deprecation, flag};
use crate::client::{Awaited, Then};
use crate::cluster_view::{ClusterView, ReplicaView, ShardView};
use crate::copies::CopiesAwaited;
use crate::protocol::number::parse_integer;
use ecotone_keyspace::Slot;
use ecotone_keyspace::error::{Failure, Outcome, repeated, texts};

pub(crate) use super::cluster_map::moved;

const fn command(name: &'static str, arity: i32, flags: u32, summary: &'static str, run: super::Run) -> Command {
    plain(name, arity, flags, "cluster", "3.0.0", summary, run)
}

const fn told(name: &'static str, arity: i32, summary: &'static str, run: super::Run) -> Command {
    command(name, arity, flag::STALE, summary, run)
}

const ADMIN: u32 = flag::ADMIN | flag::STALE;
const FAST: u32 = flag::LOADING | flag::STALE | flag::FAST;

/// What Redis changes its map by.
const fn otherwise(name: &'static str, arity: i32, summary: &'static str) -> Command {
    command(name, arity, ADMIN | flag::NO_ASYNC_LOADING, summary, done_otherwise)
}

/// The family.
pub const COMMANDS: &[Command] = &[
    container("cluster", "cluster", "3.0.0", "A container for cluster commands.", SUBCOMMANDS),
    command("readonly", 1, FAST, "Enables read-only queries for a connection to a cluster replica.", |call| {
        reads_replicas(call, true)
    }),
    command("readwrite", 1, FAST, "Enables read-write queries for a connection to a cluster replica.", |call| {
        reads_replicas(call, false)
    }),
    command("asking", 1, flag::FAST, "Signals that a cluster client is following an -ASK redirect.", asking),
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

const OF_SERVERS: &str = "O(N) where N is the number of servers";

const SUBCOMMANDS: &[Command] = &[
    told("cluster|info", 2, "Returns information about the state of a node.", info),
    told("cluster|myid", 2, "Returns the ID of a node.", my_id),
    Command { since: "7.2.0", ..told("cluster|myshardid", 2, "Returns the shard ID of a node.", my_shard_id) },
    Command {
        complexity: OF_SERVERS,
        ..told("cluster|nodes", 2, "Returns the cluster configuration for a node.", nodes)
    },
    Command {
        complexity: OF_SERVERS,
        deprecated: Some(Deprecation { since: "7.0.0", instead: "`CLUSTER SHARDS`" }),
        ..told("cluster|slots", 2, "Returns the mapping of cluster slots to nodes.", slots)
    },
    Command {
        complexity: OF_SERVERS,
        since: "7.0.0",
        ..told("cluster|shards", 2, "Returns the mapping of cluster slots to shards.", shards)
    },
    Command {
        complexity: OF_SERVERS,
        since: "7.0.0",
        ..told("cluster|links", 2, "Returns a list of all TCP links to and from peer nodes.", links)
    },
    Command {
        usage: "key:string",
        complexity: "O(N) where N is the number of bytes in the key",
        ..told("cluster|keyslot", 3, "Returns the hash slot for a key.", key_slot)
    },
    Command {
        usage: "slot:integer",
        complexity: "O(N) where N is the number of keys in the slot",
        ..told("cluster|countkeysinslot", 3, "Returns the number of keys in a hash slot.", count_keys)
    },
    Command {
        usage: "slot:integer count:integer",
        complexity: "O(N) where N is the number of requested keys",
        ..told("cluster|getkeysinslot", 4, "Returns the key names in a hash slot.", keys_in_slot)
    },
    Command {
        usage: "node-id",
        ..command(
            "cluster|count-failure-reports",
            3,
            ADMIN,
            "Returns the number of active failure reports active for a node.",
            failure_reports,
        )
    },
    Command {
        usage: "node-id",
        since: "5.0.0",
        ..command("cluster|replicas", 3, ADMIN, "Lists the replica nodes of a master node.", replicas)
    },
    Command {
        usage: "node-id",
        deprecated: Some(Deprecation { since: "5.0.0", instead: "`CLUSTER REPLICAS`" }),
        ..command("cluster|slaves", 3, ADMIN, "Lists the replica nodes of a master node.", replicas)
    },
    Command { usage: "slot:integer...", ..otherwise("cluster|addslots", -3, "Assigns new hash slots to a node.") },
    Command {
        usage: "(start-slot:integer end-slot:integer)...",
        since: "7.0.0",
        ..otherwise("cluster|addslotsrange", -4, "Assigns new hash slot ranges to a node.")
    },
    otherwise("cluster|bumpepoch", 2, "Advances the cluster config epoch."),
    Command { usage: "slot:integer...", ..otherwise("cluster|delslots", -3, "Sets hash slots as unbound for a node.") },
    Command {
        usage: "(start-slot:integer end-slot:integer)...",
        since: "7.0.0",
        ..otherwise("cluster|delslotsrange", -4, "Sets hash slot ranges as unbound for a node.")
    },
    Command {
        usage: "[options: FORCE | TAKEOVER]",
        ..command(
            "cluster|failover",
            -2,
            ADMIN | flag::NO_ASYNC_LOADING,
            "Forces a replica to perform a manual failover of its master.",
            fail_over,
        )
    },
    otherwise("cluster|flushslots", 2, "Deletes all slots information from a node."),
    Command { usage: "node-id", ..otherwise("cluster|forget", 3, "Removes a node from the nodes table.") },
    Command {
        usage: "ip port:integer [cluster-bus-port:integer]@4.0.0",
        ..otherwise("cluster|meet", -4, "Forces a node to handshake with another node.")
    },
    Command {
        usage: "node-id",
        ..otherwise("cluster|replicate", 3, "Configures a node as a replica of a master node.")
    },
    Command {
        usage: "[reset-type: HARD | SOFT]",
        flags: ADMIN | flag::NOSCRIPT,
        ..otherwise("cluster|reset", -2, "Resets a node.")
    },
    otherwise("cluster|saveconfig", 2, "Forces a node to save the cluster configuration to disk."),
    Command {
        usage: "config-epoch:integer",
        ..otherwise("cluster|set-config-epoch", 3, "Sets the configuration epoch for a new node.")
    },
    Command {
        usage: "slot:integer (subcommand: IMPORTING node-id | MIGRATING node-id | NODE node-id | STABLE)",
        ..otherwise("cluster|setslot", -4, "Binds a hash slot to a node.")
    },
    Command {
        since: "5.0.0",
        flags: flag::LOADING | flag::STALE,
        ..told("cluster|help", 2, "Returns helpful text about the different subcommands.", cluster_help)
    },
];

/// The federation as this command found it.
///
/// # Errors
///
/// Clients do not speak to this server as to one of a cluster.
fn view(call: &mut Call<'_>) -> Outcome<Arc<ClusterView>> {
    let seen = call.client.seen(&call.service.cluster);
    if seen.is_cluster() {
        Ok(seen.view().clone())
    } else {
        Err(Failure::text("ERR This instance has cluster support disabled"))
    }
}

pub(super) fn addressed<'v>(call: &Call<'_>, view: &'v ClusterView) -> Addressed<'v> {
    Addressed::to(view, &call.client.info)
}

fn info(call: &mut Call<'_>) -> Outcome {
    let text = cluster_map::info(&*view(call)?);
    call.reply.verbatim(*b"txt", &text);
    Ok(())
}

fn my_id(call: &mut Call<'_>) -> Outcome {
    let view = view(call)?;
    call.reply.bulk_text(&view.servers()[view.own()].id);
    Ok(())
}

fn my_shard_id(call: &mut Call<'_>) -> Outcome {
    let view = view(call)?;
    let is_own = |shard: &&ShardView| shard.primary == view.own();
    let shard = view.shards().iter().find(is_own).or_else(|| view.replica_of(view.own()));
    // A server without a shard has one of its own in Redis.
    call.reply.bulk_text(shard.map_or(&view.servers()[view.own()].id, |shard| &shard.id));
    Ok(())
}

fn nodes(call: &mut Call<'_>) -> Outcome {
    let view = view(call)?;
    let addressed = addressed(call, &view);
    let lines: String = (0..view.servers().len()).map(|server| addressed.line(server) + "\n").collect();
    call.reply.verbatim(*b"txt", &lines);
    Ok(())
}

fn slots(call: &mut Call<'_>) -> Outcome {
    let view = view(call)?;
    addressed(call, &view).slots(call.reply);
    Ok(())
}

fn shards(call: &mut Call<'_>) -> Outcome {
    let view = view(call)?;
    addressed(call, &view).shards(call.reply);
    Ok(())
}

fn links(call: &mut Call<'_>) -> Outcome {
    let view = view(call)?;
    cluster_map::links(&view, call.service.host.links(), call.reply);
    Ok(())
}

fn key_slot(call: &mut Call<'_>) -> Outcome {
    view(call)?;
    call.reply.integer(Slot::of(call.arguments[2]).number().into());
    Ok(())
}

fn slot_of(argument: &[u8], refusal: Failure) -> Outcome<Slot> {
    let number = parse_integer(argument).ok_or(texts::NOT_AN_INTEGER)?;
    u16::try_from(number).ok().and_then(Slot::new).ok_or(refusal)
}

fn count_keys(call: &mut Call<'_>) -> Outcome {
    view(call)?;
    let slot = slot_of(call.arguments[2], Failure::text("ERR Invalid slot"))?;
    let mut count = 0;
    call.keys.visit_keys_of_slot(slot, |_| {
        count += 1;
        ControlFlow::Continue(())
    })?;
    call.reply.integer(count);
    Ok(())
}

fn keys_in_slot(call: &mut Call<'_>) -> Outcome {
    view(call)?;
    const INVALID: Failure = Failure::text("ERR Invalid slot or number of keys");
    // In Redis both must be numbers before either is judged.
    let most = parse_integer(call.arguments[3]);
    parse_integer(call.arguments[2]).and(most).ok_or(texts::NOT_AN_INTEGER)?;
    let slot = slot_of(call.arguments[2], INVALID)?;
    let most = most.and_then(|most| usize::try_from(most).ok()).ok_or(INVALID)?;
    let (reply, mut found) = (&mut *call.reply, 0);
    let mark = reply.begin();
    if most > 0 {
        call.keys.visit_keys_of_slot(slot, |key| {
            reply.bulk(key);
            found += 1;
            if found < most { super::go_on(reply) } else { ControlFlow::Break(()) }
        })?;
    }
    reply.end_array(mark, found);
    Ok(())
}

/// The place of the server that the command names.
fn named(call: &Call<'_>, view: &ClusterView) -> Outcome<usize> {
    let id = call.arguments[2];
    view.find(id).ok_or_else(|| Failure::with([b"ERR Unknown node ", repeated(id)].concat()))
}

fn failure_reports(call: &mut Call<'_>) -> Outcome {
    let view = view(call)?;
    let server = named(call, &view)?;
    call.reply.integer(view.servers()[server].failure_reports.into());
    Ok(())
}

fn replicas(call: &mut Call<'_>) -> Outcome {
    let view = view(call)?;
    let server = named(call, &view)?;
    if view.replica_of(server).is_some() {
        return Err(Failure::text("ERR The specified node is not a master"));
    }
    let addressed = addressed(call, &view);
    // Also those that are the primary of other shards, which Redis knows nothing of.
    let is_replica =
        |other: &usize| view.shards().iter().any(|shard| shard.primary == server && shard.replica_at(*other).is_some());
    let replicas: Vec<usize> = (0..view.servers().len()).filter(is_replica).collect();
    call.reply.array(replicas.len());
    replicas.into_iter().for_each(|replica| call.reply.bulk_text(&addressed.line(replica)));
    Ok(())
}

fn reads_replicas(call: &mut Call<'_>, reads: bool) -> Outcome {
    view(call)?;
    call.client.seen(&call.service.cluster).reads_replicas = reads;
    call.client.info.is_readonly.store(reads, Ordering::Relaxed);
    call.reply.simple("OK");
    Ok(())
}

/// Its next command is carried out as any other: no slot is ever half here.
fn asking(call: &mut Call<'_>) -> Outcome {
    view(call)?;
    call.reply.simple("OK");
    Ok(())
}

/// Waits until the server has done it, or has failed to, as its clients are told then.
fn fail_over(call: &mut Call<'_>) -> Outcome {
    view(call)?;
    let force = match call.arguments[2..] {
        [] => false,
        [option] if option.eq_ignore_ascii_case(b"FORCE") || option.eq_ignore_ascii_case(b"TAKEOVER") => true,
        _ => return Err(texts::SYNTAX),
    };
    let host = call.service.host.clone();
    let begun = call
        .service
        .federation
        .begin(move || host.fail_over(force).map(|()| Vec::new()).map_err(|error| error.to_string()));
    let answer = begun.map_err(|error| Failure::with(format!("ERR {error}")))?;
    call.client.awaited = Some(Awaited::FailOver(answer));
    call.client.then = Then::Follow;
    call.reply.simple("OK");
    Ok(())
}

/// How a federation does what Redis does by a subcommand of `CLUSTER`.
fn done_otherwise(call: &mut Call<'_>) -> Outcome {
    view(call)?;
    let name = call.command.name.trim_start_matches("cluster|");
    let instead = match name {
        "meet" => "a server joins by: ecotone cluster token, then ecotone serve --join HOST:PORT --token TOKEN",
        "forget" | "reset" => "a server leaves by: ecotone cluster drain, then remove",
        "replicate" => "its leader decides which servers have copies of a shard",
        "saveconfig" | "bumpepoch" | "set-config-epoch" => {
            "its servers keep the map, and count its epochs, by themselves"
        }
        // Of slots.
        _ => "slots are dealt once, by: ecotone cluster create; a shard moves whole, by: ecotone cluster move",
    };
    Err(Failure::with(format!("ERR CLUSTER {} is not how a federation changes: {instead}", name.to_ascii_uppercase())))
}

fn cluster_help(call: &mut Call<'_>) -> Outcome {
    view(call)?;
    help(
        call,
        &[
            "COUNT-FAILURE-REPORTS <node-id>",
            "    Return number of failure reports for <node-id>.",
            "COUNTKEYSINSLOT <slot>",
            "    Return the number of keys in <slot>.",
            "FAILOVER [FORCE|TAKEOVER]",
            "    Promote current replica node to being a master.",
            "GETKEYSINSLOT <slot> <count>",
            "    Return key names stored by current node in a slot.",
            "INFO",
            "    Return information about the cluster.",
            "KEYSLOT <key>",
            "    Return the hash slot for <key>.",
            "MYID",
            "    Return the node id.",
            "MYSHARDID",
            "    Return the node's shard id.",
            "NODES",
            "    Return cluster configuration seen by node. Output format:",
            "    <id> <ip:port> <flags> <master> <pings> <pongs> <epoch> <link> <slot> ...",
            "REPLICAS <node-id>",
            "    Return <node-id> replicas.",
            "SLOTS",
            "    Return information about slots range mappings. Each range is made of:",
            "    start, end, master and replicas IP addresses, ports and ids",
            "SHARDS",
            "    Return information about slot range mappings and the nodes associated with them.",
            "LINKS",
            "    Return information about all network links between this node and its peers.",
            "    Output format is an array where each array element is a map containing attributes of a link",
        ],
    );
    Ok(())
}

/// As in Redis, over all shards that this server is the primary of, or that it has a copy of where
/// it is the primary of none. Offsets are bytes of what primaries send their copies.
fn role(call: &mut Call<'_>) -> Outcome {
    let view = call.client.seen(&call.service.cluster).view().clone();
    let (own, addressed) = (view.own(), addressed(call, &view));
    let reply = &mut *call.reply;
    if let Some(shard) = view.replica_of(own) {
        reply.array(5);
        reply.bulk_text("slave");
        reply.bulk_text(addressed.ip(shard.primary));
        reply.integer(addressed.port(shard.primary).into());
        let is_in_sync = shard.replica_at(own).is_some_and(|replica| replica.is_in_sync);
        reply.bulk_text(if is_in_sync { "connected" } else { "sync" });
        reply.integer(shard.offset_at(own) as i64);
        return Ok(());
    }
    let replicas: Vec<(&ShardView, &ReplicaView)> = replicas_of(&view, own).collect();
    reply.array(3);
    reply.bulk_text("master");
    reply.integer(written_bytes(&view, own) as i64);
    reply.array(replicas.len());
    for (shard, replica) in replicas {
        reply.array(3);
        reply.bulk_text(addressed.ip(replica.server));
        reply.bulk_text(&addressed.port(replica.server).to_string());
        reply.bulk_text(&shard.offset_at(replica.server).to_string());
    }
    Ok(())
}

/// The copies of the shards that a server is the primary of.
pub(super) fn replicas_of(view: &ClusterView, primary: usize) -> impl Iterator<Item = (&ShardView, &ReplicaView)> {
    let own = view.shards().iter().filter(move |shard| shard.primary == primary);
    own.flat_map(|shard| shard.replicas.iter().map(move |replica| (shard, replica)))
}

/// What a server has sent the copies of its shards.
pub(super) fn written_bytes(view: &ClusterView, primary: usize) -> u64 {
    view.shards().iter().filter(|shard| shard.primary == primary).map(|shard| shard.written_bytes).sum()
}

/// Where no shard has copies, a client that waits for some gets the reply after its timeout, as in
/// Redis; one without a timeout gets it at once.
fn wait(call: &mut Call<'_>) -> Outcome {
    let replicas = parse_integer(call.arguments[1]).ok_or(texts::NOT_AN_INTEGER)?;
    let timeout_ms = timeout_ms(call, 2, replicas)?;
    if call.service.keyspace.has_gates() {
        wait_for_copies(call, replicas, None, timeout_ms);
        return Ok(());
    }
    rest(call, replicas, timeout_ms);
    call.reply.integer(0);
    Ok(())
}

/// As of Redis' connection, the writes are those before this command; they are committed when it
/// waits. Within a transaction nothing waits, and what the transaction writes is not counted.
fn wait_for_copies(call: &mut Call<'_>, replicas: i64, local: Option<bool>, timeout_ms: u64) {
    let timeout = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms));
    let copies = usize::try_from(replicas).unwrap_or(0);
    let mut awaited = CopiesAwaited::new(call.service.keyspace.clone(), copies, local, timeout);
    if call.client.info.is_in_transaction() {
        awaited.of(call.client.last_writes.clone());
        awaited.reached().0.write(call.reply);
        return;
    }
    call.client.awaited = Some(Awaited::Copies(awaited));
    call.client.then = Then::Follow;
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
        call.keys.keyspace().sync()?;
        true
    } else {
        setting("appendfsync") == "always"
    };
    if call.service.keyspace.has_gates() {
        wait_for_copies(call, replicas, Some(is_synced), timeout_ms);
        return Ok(());
    }
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
