//! Strings.

use std::ops::ControlFlow;
use std::sync::Arc;

use ecotone_engine::MAX_VALUE_BYTES;

use super::entry::plain;
use super::expiry::Unit;
use super::{Call, Command, Deprecation, KeyPositions, Run, flag, word};
use crate::protocol::extended::add_decimals;
use crate::protocol::number::parse_integer;
use ecotone_keyspace::error::{Failure, Outcome, texts};
use ecotone_keyspace::{Entry, Tag};

const TOO_LONG: Failure = Failure::text("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
const PAIRS: KeyPositions = KeyPositions::Range { first: 1, last: -1, step: 2 };
const GROW: u32 = flag::WRITE | flag::DENYOOM;
const GROW_FAST: u32 = GROW | flag::FAST;

const fn command(name: &'static str, arity: i32, flags: u32, since: &'static str, run: Run) -> Command {
    Command { keys: KeyPositions::FIRST, ..plain(name, arity, flags, "string", since, "", run) }
}

const GETRANGE: Command = Command {
    summary: "Returns a part of a string.",
    usage: "key start:integer end:integer",
    complexity: "O(N) where N is the length of what is returned.",
    ..command("getrange", 4, flag::READONLY, "2.4.0", get_range)
};

/// The family.
pub const COMMANDS: &[Command] = &[
    Command {
        summary: "Returns the string value of a key.",
        usage: "key",
        ..command("get", 2, flag::READONLY | flag::FAST, "1.0.0", get)
    },
    Command {
        summary: "Sets the string value of a key, ignoring its type. The key is created if it doesn't exist.",
        usage: "key value [condition: NX | XX]@2.6.12 [GET]@6.2.0 \
                [expiration: EX seconds:integer@2.6.12 | PX milliseconds:integer@2.6.12 | \
                EXAT unix-time-seconds:unix-time@6.2.0 | PXAT unix-time-milliseconds:unix-time@6.2.0 | KEEPTTL@6.0.0]",
        ..command("set", -3, GROW, "1.0.0", set)
    },
    Command {
        keys: KeyPositions::ALL,
        summary: "Returns the string values of keys.",
        usage: "key...",
        complexity: "O(N) where N is the number of keys.",
        ..command("mget", -2, flag::READONLY | flag::FAST | flag::LATCHES, "1.0.0", get_many)
    },
    Command {
        keys: PAIRS,
        summary: "Sets the string values of keys, all at once.",
        usage: "(data: key value)...",
        complexity: "O(N) where N is the number of keys.",
        ..command("mset", -3, GROW, "1.0.1", set_many)
    },
    Command {
        keys: PAIRS,
        summary: "Sets the string values of keys, all at once, only if none of them is there.",
        usage: "(data: key value)...",
        complexity: "O(N) where N is the number of keys.",
        ..command("msetnx", -3, GROW, "1.0.1", set_many_new)
    },
    Command {
        summary: "Sets the string value of a key, only if it is not there.",
        usage: "key value",
        ..command("setnx", 3, GROW_FAST, "1.0.0", set_new)
    },
    Command {
        summary: "Sets the string value of a key and its expiration in seconds.",
        usage: "key seconds:integer value",
        ..command("setex", 4, GROW, "2.0.0", |call| set_expiring(call, Unit::SECONDS))
    },
    Command {
        summary: "Sets the string value of a key and its expiration in milliseconds.",
        usage: "key milliseconds:integer value",
        ..command("psetex", 4, GROW, "2.6.0", |call| set_expiring(call, Unit::MILLISECONDS))
    },
    Command {
        summary: "Sets the string value of a key and returns the old one.",
        usage: "key value",
        deprecated: Some(Deprecation { since: "6.2.0", instead: "`SET key value GET`" }),
        ..command("getset", 3, GROW_FAST, "1.0.0", get_and_set)
    },
    Command {
        summary: "Returns the string value of a key and deletes the key.",
        usage: "key",
        ..command("getdel", 2, flag::WRITE | flag::FAST, "6.2.0", get_and_delete)
    },
    Command {
        summary: "Returns the string value of a key and changes its expiration.",
        usage: "key [expiration: EX seconds:integer | PX milliseconds:integer | EXAT unix-time-seconds:unix-time | \
                PXAT unix-time-milliseconds:unix-time | PERSIST]",
        ..command("getex", -2, flag::WRITE | flag::FAST, "6.2.0", get_and_expire)
    },
    Command {
        summary: "Appends to the string value of a key. The key is created if it doesn't exist.",
        usage: "key value",
        complexity: "O(N) where N is the length of the new string.",
        ..command("append", 3, GROW_FAST, "2.0.0", append)
    },
    Command {
        summary: "Returns the length of a string.",
        usage: "key",
        ..command("strlen", 2, flag::READONLY | flag::FAST | flag::DESCRIBES, "2.2.0", length)
    },
    GETRANGE,
    Command {
        name: "substr",
        since: "1.0.0",
        deprecated: Some(Deprecation { since: "2.0.0", instead: "`GETRANGE key start end`" }),
        ..GETRANGE
    },
    Command {
        summary: "Overwrites a part of a string from an offset on. What is missing before becomes zero bytes.",
        usage: "key offset:integer value",
        complexity: "O(N) where N is the length of the new string.",
        ..command("setrange", 4, GROW, "2.2.0", set_range)
    },
    Command {
        summary: "Adds one to the number in a key; 0 if it doesn't exist.",
        usage: "key",
        ..command("incr", 2, GROW_FAST, "1.0.0", |call| add(call, 1))
    },
    Command {
        summary: "Takes one from the number in a key; 0 if it doesn't exist.",
        usage: "key",
        ..command("decr", 2, GROW_FAST, "1.0.0", |call| add(call, -1))
    },
    Command {
        summary: "Adds a whole number to the number in a key; 0 if it doesn't exist.",
        usage: "key increment:integer",
        ..command("incrby", 3, GROW_FAST, "1.0.0", increment)
    },
    Command {
        summary: "Takes a whole number from the number in a key; 0 if it doesn't exist.",
        usage: "key decrement:integer",
        ..command("decrby", 3, GROW_FAST, "1.0.0", decrement)
    },
    Command {
        summary: "Adds a floating-point number to the number in a key; 0 if it doesn't exist.",
        usage: "key increment:double",
        ..command("incrbyfloat", 3, GROW_FAST, "2.6.0", add_decimal)
    },
];

fn reply_value(call: &mut Call<'_>, value: Option<&[u8]>) {
    match value {
        Some(value) => call.reply.bulk(value),
        None => call.reply.null(),
    }
}

fn integer(text: &[u8]) -> Outcome<i64> {
    parse_integer(text).ok_or(texts::NOT_AN_INTEGER)
}

fn get(call: &mut Call<'_>) -> Outcome {
    let value = call.keys.string(call.arguments[1])?;
    reply_value(call, value.as_deref());
    Ok(())
}

fn get_many(call: &mut Call<'_>) -> Outcome {
    let keys = &call.arguments[1..];
    call.reply.array(keys.len());
    let reply = &mut *call.reply;
    call.keys.visit_entries(keys, |entry| {
        match entry.filter(|entry| entry.tag == Tag::STRING) {
            Some(value) => reply.bulk(&value),
            None => reply.null(),
        }
        if reply.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

/// What `SET` and `GETEX` were asked to do besides.
#[derive(Debug, Default)]
struct Options<'a> {
    only_if_there: Option<bool>,
    returns_old: bool,
    keeps_expiry: bool,
    loses_expiry: bool,
    expiry: Option<(Unit, &'a [u8])>,
}

impl<'a> Options<'a> {
    /// Those of `SET`, or of `GETEX`. An option may be repeated, the last expiry counts.
    fn parse(options: &[&'a [u8]], of_set: bool) -> Outcome<Self> {
        let mut parsed = Self::default();
        let mut rest = options.iter();
        while let Some(option) = rest.next() {
            let option = word::upper(option);
            match option.as_slice() {
                b"NX" if of_set && parsed.only_if_there != Some(true) => parsed.only_if_there = Some(false),
                b"XX" if of_set && parsed.only_if_there != Some(false) => parsed.only_if_there = Some(true),
                b"GET" if of_set => parsed.returns_old = true,
                b"KEEPTTL" if of_set && parsed.expiry.is_none() => parsed.keeps_expiry = true,
                b"PERSIST" if !of_set && parsed.expiry.is_none() => parsed.loses_expiry = true,
                name => {
                    let unit = match name {
                        b"EX" => Unit::SECONDS,
                        b"PX" => Unit::MILLISECONDS,
                        b"EXAT" => Unit::AT_SECONDS,
                        b"PXAT" => Unit::AT_MILLISECONDS,
                        _ => return Err(texts::SYNTAX),
                    };
                    let other = parsed.expiry.is_some_and(|(known, _)| known != unit);
                    if other || parsed.keeps_expiry || parsed.loses_expiry {
                        return Err(texts::SYNTAX);
                    }
                    parsed.expiry = Some((unit, rest.next().ok_or(texts::SYNTAX)?));
                }
            }
        }
        Ok(parsed)
    }

    fn expires_at_ms(&self, call: &Call<'_>) -> Outcome<Option<u64>> {
        let Some((unit, time)) = self.expiry else { return Ok(None) };
        unit.positive_at_ms(time, call.keys.now_ms(), call.command).map(Some)
    }
}

fn set(call: &mut Call<'_>) -> Outcome {
    let [_, key, value, options @ ..] = call.arguments else { return Err(texts::SYNTAX) };
    let options = Options::parse(options, true)?;
    let mut expires_at_ms = options.expires_at_ms(call)?;
    // Without an option nothing is read: plain writes need no read of what they overwrite.
    // The elements of a large collection are found in the ledger later.
    if options.only_if_there.is_none() && !options.returns_old && !options.keeps_expiry {
        call.keys.set(key, Tag::STRING, expires_at_ms, value)?;
        call.reply.simple("OK");
        return Ok(());
    }
    call.keys.count_lookups(options.returns_old);
    // Where the old value is returned, another type than a string is refused, so there are no
    // elements to reclaim.
    let old = if options.returns_old { call.keys.string(key)? } else { None };
    let stood = if options.returns_old { None } else { call.keys.metadata(key)? };
    if options.keeps_expiry {
        expires_at_ms = old.as_ref().map_or(stood.and_then(|stood| stood.expires_at_ms), |old| old.expires_at_ms);
    }
    let sets = options.only_if_there.is_none_or(|there| there == (old.is_some() || stood.is_some()));
    if sets {
        call.keys.set(key, Tag::STRING, expires_at_ms, value)?;
        if let Some(stood) = stood {
            call.keys.give_up(stood);
        }
    }
    if options.returns_old {
        reply_value(call, old.as_deref());
    } else if sets {
        call.reply.simple("OK");
    } else {
        call.reply.null();
    }
    Ok(())
}

fn set_many(call: &mut Call<'_>) -> Outcome {
    for (key, value) in pairs(call)? {
        call.keys.set(key, Tag::STRING, None, value)?;
    }
    call.reply.simple("OK");
    Ok(())
}

fn set_many_new(call: &mut Call<'_>) -> Outcome {
    let mut sets = true;
    for (key, _) in pairs(call)? {
        sets = sets && call.keys.peek(key)?.is_none();
    }
    if sets {
        for (key, value) in pairs(call)? {
            call.keys.set(key, Tag::STRING, None, value)?;
        }
    }
    call.reply.integer(sets.into());
    Ok(())
}

fn pairs<'c>(call: &Call<'c>) -> Outcome<impl Iterator<Item = (&'c [u8], &'c [u8])> + use<'c>> {
    let (pairs, rest) = call.arguments[1..].as_chunks::<2>();
    if !rest.is_empty() {
        return Err(Failure::with(format!("ERR wrong number of arguments for '{}' command", call.command.name)));
    }
    Ok(pairs.iter().map(|[key, value]| (*key, *value)))
}

fn set_new(call: &mut Call<'_>) -> Outcome {
    let (key, value) = (call.arguments[1], call.arguments[2]);
    let sets = call.keys.peek(key)?.is_none();
    if sets {
        call.keys.set(key, Tag::STRING, None, value)?;
    }
    call.reply.integer(sets.into());
    Ok(())
}

fn set_expiring(call: &mut Call<'_>, unit: Unit) -> Outcome {
    let at_ms = unit.positive_at_ms(call.arguments[2], call.keys.now_ms(), call.command)?;
    call.keys.set(call.arguments[1], Tag::STRING, Some(at_ms), call.arguments[3])?;
    call.reply.simple("OK");
    Ok(())
}

fn get_and_set(call: &mut Call<'_>) -> Outcome {
    call.keys.count_lookups(true);
    let old = call.keys.string(call.arguments[1])?;
    call.keys.set(call.arguments[1], Tag::STRING, None, call.arguments[2])?;
    reply_value(call, old.as_deref());
    Ok(())
}

fn get_and_delete(call: &mut Call<'_>) -> Outcome {
    call.keys.count_lookups(true);
    let old = call.keys.string(call.arguments[1])?;
    if old.is_some() {
        call.keys.remove(call.arguments[1])?;
    }
    reply_value(call, old.as_deref());
    Ok(())
}

fn get_and_expire(call: &mut Call<'_>) -> Outcome {
    let key = call.arguments[1];
    let options = Options::parse(&call.arguments[2..], false)?;
    call.keys.count_lookups(true);
    // A wrong time is an error only where there is a string.
    let Some(value) = call.keys.string(key)? else {
        call.reply.null();
        return Ok(());
    };
    match options.expires_at_ms(call)? {
        Some(at_ms) if at_ms <= call.keys.now_ms() => call.keys.remove(key)?,
        Some(at_ms) => call.keys.set(key, Tag::STRING, Some(at_ms), &value)?,
        None if options.loses_expiry && value.expires_at_ms.is_some() => {
            call.keys.set(key, Tag::STRING, None, &value)?;
        }
        None => {}
    }
    call.reply.bulk(&value);
    Ok(())
}

/// Refuses a string of `length` bytes that would be too long, and one whose length is no number.
fn check_length(call: &Call<'_>, length: Option<usize>) -> Outcome<usize> {
    // Redis' `proto-max-bulk-len`, and what the store takes at most.
    let max_bytes = call.service.limits.read().argument_bytes.min(MAX_VALUE_BYTES);
    length.filter(|length| *length <= max_bytes).ok_or(TOO_LONG)
}

/// Puts a string of `length` bytes that begins as `old` does under a key; `write` writes what is
/// new into it.
fn build(call: &mut Call<'_>, old: Option<&Entry<'_>>, length: usize, write: impl FnOnce(&mut [u8])) -> Outcome {
    let mut reservation = call.keys.reserve_memory();
    // It is in memory as well.
    reservation.take(old.map_or(0, |old| old.len()))?;
    let expires_at_ms = old.and_then(|old| old.expires_at_ms);
    call.keys.set_to(call.arguments[1], Tag::STRING, expires_at_ms, length, || {
        // In its place: it may be long.
        let mut built: Arc<[u8]> = std::iter::repeat_n(0, length).collect();
        if let Some(bytes) = Arc::get_mut(&mut built) {
            let old = old.map_or(&[][..], |old| &old[..]);
            bytes[..old.len()].copy_from_slice(old);
            write(bytes);
        }
        built
    })
}

fn append(call: &mut Call<'_>) -> Outcome {
    let (key, more) = (call.arguments[1], call.arguments[2]);
    let old = call.keys.string(key)?;
    let begin = old.as_ref().map_or(0, |old| old.len());
    let length = check_length(call, begin.checked_add(more.len()))?;
    build(call, old.as_ref(), length, |value| value[begin..].copy_from_slice(more))?;
    call.reply.integer(length as i64);
    Ok(())
}

fn length(call: &mut Call<'_>) -> Outcome {
    let length = call.keys.string_bytes(call.arguments[1])?.unwrap_or(0);
    call.reply.integer(length as i64);
    Ok(())
}

fn get_range(call: &mut Call<'_>) -> Outcome {
    let (first, last) = (integer(call.arguments[2])?, integer(call.arguments[3])?);
    let value = call.keys.string(call.arguments[1])?;
    call.reply.bulk(part(value.as_deref().unwrap_or_default(), first, last));
    Ok(())
}

/// From `first` to `last`, both counted, from the end where negative.
fn part(value: &[u8], first: i64, last: i64) -> &[u8] {
    // Redis checks this before it counts from the end, where both may become 0.
    if first < 0 && last < 0 && first > last {
        return &[];
    }
    let length = value.len() as i64;
    let from_begin = |index: i64| if index < 0 { (length + index).max(0) } else { index };
    let end = from_begin(last).min(length - 1) + 1;
    value.get(from_begin(first) as usize..end as usize).unwrap_or_default()
}

fn set_range(call: &mut Call<'_>) -> Outcome {
    let (key, part) = (call.arguments[1], call.arguments[3]);
    let offset = integer(call.arguments[2])?;
    let offset = usize::try_from(offset).map_err(|_| Failure::text("ERR offset is out of range"))?;
    if part.is_empty() {
        return length(call);
    }
    let old = call.keys.string(key)?;
    let end = check_length(call, offset.checked_add(part.len()))?;
    let length = old.as_ref().map_or(0, |old| old.len()).max(end);
    build(call, old.as_ref(), length, |value| value[offset..end].copy_from_slice(part))?;
    call.reply.integer(length as i64);
    Ok(())
}

fn increment(call: &mut Call<'_>) -> Outcome {
    let by = integer(call.arguments[2])?;
    add(call, by)
}

fn decrement(call: &mut Call<'_>) -> Outcome {
    let by = integer(call.arguments[2])?;
    add(call, by.checked_neg().ok_or(Failure::text("ERR decrement would overflow"))?)
}

fn add(call: &mut Call<'_>, by: i64) -> Outcome {
    let key = call.arguments[1];
    let old = call.keys.string(key)?;
    let number = old.as_deref().map_or(Ok(0), integer)?;
    let sum = number.checked_add(by).ok_or(texts::OVERFLOW)?;
    call.keys.set(key, Tag::STRING, old.and_then(|old| old.expires_at_ms), sum.to_string().as_bytes())?;
    call.reply.integer(sum);
    Ok(())
}

fn add_decimal(call: &mut Call<'_>) -> Outcome {
    let key = call.arguments[1];
    let old = call.keys.string(key)?;
    let number = old.as_deref().unwrap_or(b"0");
    let sum = add_decimals(number, call.arguments[2]).map_err(|error| Failure::with(format!("ERR {error}")))?;
    call.keys.set(key, Tag::STRING, old.and_then(|old| old.expires_at_ms), sum.as_bytes())?;
    call.reply.bulk(sum.as_bytes());
    Ok(())
}
