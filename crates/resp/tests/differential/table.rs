//! What the table says of each command is what Redis' `COMMAND INFO` and `COMMAND DOCS` say.

use std::collections::{BTreeMap, BTreeSet};

use ecotone_resp::command::{Command, KeyPositions, flag, table};

use crate::common::redis::{RealRedis, RedisClient, elements, text};

const FLAGS: &[(u32, &str)] = &[
    (flag::WRITE, "write"),
    (flag::READONLY, "readonly"),
    (flag::DENYOOM, "denyoom"),
    (flag::ADMIN, "admin"),
    (flag::FAST, "fast"),
    (flag::NOSCRIPT, "noscript"),
    (flag::NO_AUTH, "no_auth"),
    (flag::NO_MULTI, "no_multi"),
    (flag::LOADING, "loading"),
    (flag::STALE, "stale"),
    (flag::MOVABLE_KEYS, "movablekeys"),
    (flag::ALLOW_BUSY, "allow_busy"),
    (flag::SKIP_SLOWLOG, "skip_slowlog"),
    (flag::NO_ASYNC_LOADING, "no_async_loading"),
];

fn string(answer: &[u8]) -> String {
    String::from_utf8_lossy(text(answer)).into_owned()
}

fn strings(answer: &[u8]) -> Vec<String> {
    elements(answer).unwrap().into_iter().map(string).collect()
}

fn check(command: &Command, redis: &mut RedisClient, is_old: bool) {
    let name = command.name;
    // Redis 7.2 gave them an argument more.
    if ["zrank", "zrevrank", "command|getkeysandflags", "command|getkeys"].contains(&name) && is_old {
        return;
    }
    let info = redis.send(&[b"COMMAND", b"INFO", name.as_bytes()]);
    let info = elements(&info).unwrap()[0];
    let Some(info) = elements(info).filter(|info| !info.is_empty()) else { return };
    assert_eq!(string(info[1]), command.arity.to_string(), "arity of {name}");
    let theirs: BTreeSet<String> = strings(info[2]).into_iter().collect();
    let theirs: BTreeSet<&str> = FLAGS.iter().map(|(_, flag)| *flag).filter(|flag| theirs.contains(*flag)).collect();
    let ours: BTreeSet<&str> = FLAGS.iter().filter(|(flag, _)| command.has(*flag)).map(|(_, name)| *name).collect();
    assert_eq!(ours, theirs, "flags of {name}");
    let (first, last, step) = match command.keys {
        KeyPositions::Range { first, last, step } => (first, last, step),
        KeyPositions::None => (0, 0, 0),
        // Redis tells these in other ways.
        KeyPositions::Counted { .. } => return,
    };
    let theirs: Vec<String> = info[3..6].iter().map(|answer| string(answer)).collect();
    assert_eq!([first.to_string(), last.to_string(), step.to_string()], *theirs, "keys of {name}");
    let docs = redis.send(&[b"COMMAND", b"DOCS", name.as_bytes()]);
    let docs = elements(elements(&docs).unwrap()[1]).unwrap();
    let docs: BTreeMap<String, String> = docs.chunks(2).map(|pair| (string(pair[0]), string(pair[1]))).collect();
    assert_eq!(command.group, docs["group"], "group of {name}");
    assert_eq!(command.since, docs["since"], "since of {name}");
    assert!(!command.summary.is_empty() && !command.complexity.is_empty(), "{name}");
}

#[test]
fn commands_are_told_as_in_redis() {
    let redis = RealRedis::start();
    let (mut client, is_old) = (redis.client(2), redis.is_before_7_2());
    for command in table::all().flat_map(|command| [command].into_iter().chain(command.subcommands)) {
        check(command, &mut client, is_old);
    }
}
