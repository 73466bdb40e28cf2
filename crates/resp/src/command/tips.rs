//! Hints about a command for clients of several servers and proxies, as `COMMAND INFO` states them:
//! whether its replies to the same request differ, which servers to ask, and how to combine their
//! replies.

use super::Command;

const TIPS: [(&str, &[&str]); 10] = [
    (
        "nondeterministic_output",
        &[
            "client|info",
            "client|list",
            "cluster|bumpepoch",
            "cluster|count-failure-reports",
            "cluster|getkeysinslot",
            "cluster|info",
            "cluster|links",
            "cluster|nodes",
            "cluster|replicas",
            "cluster|shards",
            "cluster|slaves",
            "cluster|slots",
            "hrandfield",
            "hscan",
            "info",
            "lastsave",
            "memory|doctor",
            "memory|malloc-stats",
            "pttl",
            "randomkey",
            "scan",
            "slowlog|get",
            "slowlog|len",
            "spop",
            "srandmember",
            "sscan",
            "time",
            "ttl",
            "zrandmember",
            "zscan",
        ],
    ),
    (
        "nondeterministic_output_order",
        &[
            "command",
            "command|docs",
            "command|info",
            "command|list",
            "hgetall",
            "hkeys",
            "hvals",
            "keys",
            "sdiff",
            "sinter",
            "smembers",
            "sunion",
        ],
    ),
    ("request_policy:all_nodes", &["config|set", "slowlog|get", "slowlog|len", "slowlog|reset"]),
    (
        "request_policy:all_shards",
        &[
            "dbsize",
            "flushall",
            "flushdb",
            "info",
            "keys",
            "memory|doctor",
            "memory|malloc-stats",
            "memory|purge",
            "ping",
            "randomkey",
            "wait",
        ],
    ),
    ("request_policy:multi_shard", &["del", "exists", "mget", "mset", "msetnx", "touch", "unlink"]),
    ("request_policy:special", &["scan"]),
    ("response_policy:agg_min", &["msetnx", "wait"]),
    ("response_policy:agg_sum", &["dbsize", "del", "exists", "slowlog|len", "touch", "unlink"]),
    (
        "response_policy:all_succeeded",
        &["config|set", "flushall", "flushdb", "memory|purge", "mset", "ping", "slowlog|reset"],
    ),
    ("response_policy:special", &["info", "memory|doctor", "memory|malloc-stats"]),
];

/// The tips of `command`.
pub(super) fn tips(command: &Command) -> impl Iterator<Item = &'static str> {
    TIPS.iter().filter(|(_, commands)| commands.contains(&command.name)).map(|(tip, _)| *tip)
}
