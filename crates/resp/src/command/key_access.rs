//! What commands do to their keys, as `COMMAND INFO` states it for each key spec: for proxies that
//! forward reads.
//!
//! The words are Redis' (`RO`, `RW`, `OW`, `RM`: read, read and written, overwritten, removed; and
//! what of the value that is), as Redis 7.0 states it for its commands, without its notes in prose.

use super::{Command, flag};

/// What is done to the keys of one spec.
pub(super) type Access = &'static [&'static str];

const READ: Access = &["RO"];
const TOLD: Access = &["RO", "access"];
const CHANGED: Access = &["RW", "update"];
const CHANGED_AND_TOLD: Access = &["RW", "access", "update"];
const ADDED_TO: Access = &["RW", "insert"];
const TAKEN_FROM: Access = &["RW", "delete"];
const TAKEN_FROM_AND_TOLD: Access = &["RW", "access", "delete"];
const OVERWRITTEN: Access = &["OW", "update"];
const MADE: Access = &["OW", "insert"];
const REMOVED: Access = &["RM", "delete"];

/// The same of one call of it, whose flags may say more than the table can (`variable_flags`).
pub(super) fn of_call(command: &Command, arguments: &[&[u8]]) -> &'static [Access] {
    match command.name {
        "set" if arguments.iter().skip(3).any(|word| word.eq_ignore_ascii_case(b"get")) => &[CHANGED_AND_TOLD],
        "set" => &[OVERWRITTEN],
        _ => of(command),
    }
}

/// Of the key specs of `command`, in their order; all behind the last one are as that.
pub(super) fn of(command: &Command) -> &'static [Access] {
    match command.name {
        "set" => &[&["RW", "access", "update", "variable_flags"]],
        "mset" | "setex" | "psetex" => &[OVERWRITTEN],
        "msetnx" | "setnx" => &[MADE],
        "getset" | "getex" | "incr" | "decr" | "incrby" | "decrby" | "incrbyfloat" | "hincrby" | "hincrbyfloat"
        | "zincrby" => &[CHANGED_AND_TOLD],
        "getdel" | "spop" | "lpop" | "rpop" | "zpopmin" | "zpopmax" => &[TAKEN_FROM_AND_TOLD],
        "append" | "hsetnx" | "sadd" | "lpush" | "rpush" | "lpushx" | "rpushx" | "linsert" => &[ADDED_TO],
        "hdel" | "srem" | "ltrim" | "lrem" | "zrem" | "zremrangebyrank" | "zremrangebyscore" | "zremrangebylex" => {
            &[TAKEN_FROM]
        }
        "strlen" | "exists" | "touch" | "type" | "hexists" | "hlen" | "hstrlen" | "sismember" | "scard" | "llen"
        | "zcard" | "memory|usage" => &[READ],
        "del" | "unlink" => &[REMOVED],
        "rename" => &[TAKEN_FROM_AND_TOLD, OVERWRITTEN],
        "renamenx" => &[TAKEN_FROM_AND_TOLD, MADE],
        "copy" => &[TOLD, OVERWRITTEN],
        "smove" | "lmove" | "rpoplpush" => &[TAKEN_FROM_AND_TOLD, ADDED_TO],
        "sunionstore" | "sdiffstore" => &[OVERWRITTEN, TOLD],
        "sinterstore" => &[CHANGED, TOLD],
        _ if command.has(flag::WRITE) => &[CHANGED],
        _ if command.has(flag::READONLY) => &[TOLD],
        // WATCH.
        _ => &[READ],
    }
}
