//! The ACL categories of commands, which clients ask for. Nothing here is allowed or refused by
//! them.

use super::{Command, flag};

/// All categories that Redis 7.0 has, in its order.
pub const ALL: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// Categories that follow neither from the group nor from the flags of a command.
const BESIDES: &[(&str, &[&str])] = &[
    ("command", &["connection"]),
    ("flushall", &["keyspace", "dangerous"]),
    ("flushdb", &["keyspace", "dangerous"]),
    ("info", &["dangerous"]),
    ("keys", &["dangerous"]),
    ("lastsave", &["admin", "dangerous"]),
    ("restore", &["dangerous"]),
    ("role", &["admin", "dangerous"]),
    ("sort", &["set", "sortedset", "list", "dangerous"]),
    ("sort_ro", &["set", "sortedset", "list", "dangerous"]),
    ("asking", &["connection"]),
    ("readonly", &["connection"]),
    ("readwrite", &["connection"]),
    ("wait", &["connection"]),
    ("waitaof", &["connection"]),
    ("dbsize", &["keyspace"]),
    ("swapdb", &["keyspace", "dangerous"]),
];

/// In the group `generic`, and yet not in `keyspace`.
const NOT_OF_THE_KEYSPACE: &[&str] = &["sort", "sort_ro", "wait", "waitaof"];

/// The categories of `command`, in the order of [`ALL`].
pub fn categories(command: &'static Command) -> impl Iterator<Item = &'static str> {
    ALL.into_iter().filter(|category| is_in(command, category))
}

fn is_in(command: &Command, category: &str) -> bool {
    let container = command.name.split('|').next().unwrap_or_default();
    let is_besides = BESIDES.iter().any(|(name, besides)| *name == container && besides.contains(&category));
    // A container has none by itself: its subcommands have them.
    let is_container = !command.subcommands.is_empty() && command.arity != -1;
    let has_group = |group: &str| command.group == group && !is_container;
    is_besides
        || match category {
            "keyspace" => has_group("generic") && !NOT_OF_THE_KEYSPACE.contains(&command.name),
            "read" => command.has(flag::READONLY),
            "write" => command.has(flag::WRITE),
            "sortedset" => has_group("sorted-set"),
            "transaction" => has_group("transactions"),
            "admin" | "dangerous" => command.has(flag::ADMIN),
            "fast" => command.has(flag::FAST),
            "slow" => !command.has(flag::FAST),
            "pubsub" | "scripting" | "blocking" => false,
            group => has_group(group),
        }
}
