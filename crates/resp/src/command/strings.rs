//! Strings.

use super::{Call, Command, KeyPositions, flag};
use crate::error::{Failure, Outcome, texts};
use crate::keyspace::Tag;
use crate::protocol::number::parse_integer;

const fn command(name: &'static str, arity: i32, flags: u32, summary: &'static str, run: super::Run) -> Command {
    Command {
        name,
        arity,
        flags,
        keys: KeyPositions::FIRST,
        group: "string",
        since: "1.0.0",
        summary,
        complexity: "O(1)",
        subcommands: &[],
        run,
    }
}

/// The family.
pub const COMMANDS: &[Command] = &[
    command("get", 2, flag::READONLY | flag::FAST, "Returns the string value of a key.", get),
    command(
        "set",
        -3,
        flag::WRITE | flag::DENYOOM,
        "Sets the string value of a key, ignoring its type. The key is created if it doesn't exist.",
        set,
    ),
];

fn get(call: &mut Call<'_>) -> Outcome {
    match call.keys.string(call.arguments[1])? {
        Some(value) => call.reply.bulk(&value),
        None => call.reply.null(),
    }
    Ok(())
}

/// What `SET` was asked to do besides.
#[derive(Debug, Default)]
struct SetOptions {
    only_if_there: Option<bool>,
    returns_old: bool,
    keeps_expiry: bool,
    expires_at_ms: Option<u64>,
}

fn set(call: &mut Call<'_>) -> Outcome {
    let [_, key, value, options @ ..] = call.arguments else { return Err(texts::SYNTAX) };
    let options = set_options(options, call.keys.now_ms())?;
    let mut expires_at_ms = options.expires_at_ms;
    // Without an option nothing is read: a stream of writes costs no look at what they overwrite.
    if options.only_if_there.is_some() || options.returns_old || options.keeps_expiry {
        let old = if options.returns_old { call.keys.string(key)? } else { call.keys.entry(key)? };
        if options.keeps_expiry {
            expires_at_ms = old.as_ref().and_then(|old| old.expires_at_ms);
        }
        let sets = options.only_if_there.is_none_or(|there| there == old.is_some());
        if sets {
            call.keys.set(key, Tag::STRING, expires_at_ms, value)?;
        }
        match (options.returns_old, old, sets) {
            (true, Some(old), _) => call.reply.bulk(&old),
            (true, None, _) | (false, _, false) => call.reply.null(),
            (false, _, true) => call.reply.simple("OK"),
        }
        return Ok(());
    }
    call.keys.set(key, Tag::STRING, expires_at_ms, value)?;
    call.reply.simple("OK");
    Ok(())
}

fn set_options(options: &[&[u8]], now_ms: u64) -> Outcome<SetOptions> {
    let mut parsed = SetOptions::default();
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        let upper = option.to_ascii_uppercase();
        match upper.as_slice() {
            b"NX" if parsed.only_if_there.is_none() => parsed.only_if_there = Some(false),
            b"XX" if parsed.only_if_there.is_none() => parsed.only_if_there = Some(true),
            b"GET" => parsed.returns_old = true,
            b"KEEPTTL" if parsed.expires_at_ms.is_none() => parsed.keeps_expiry = true,
            b"EX" | b"PX" | b"EXAT" | b"PXAT" if parsed.expires_at_ms.is_none() && !parsed.keeps_expiry => {
                let time = rest.next().ok_or(texts::SYNTAX)?;
                parsed.expires_at_ms = Some(expiry(&upper, time, now_ms, "set")?);
            }
            _ => return Err(texts::SYNTAX),
        }
    }
    Ok(parsed)
}

/// The time in ms since 1970 that `EX`, `PX`, `EXAT` or `PXAT` with `time` means to `command`.
///
/// # Errors
///
/// Redis': not a number, not positive, or beyond what a time can be.
pub(crate) fn expiry(unit: &[u8], time: &[u8], now_ms: u64, command: &str) -> Outcome<u64> {
    let invalid = || Failure::with(format!("ERR invalid expire time in '{command}' command"));
    let time = parse_integer(time).ok_or(texts::NOT_AN_INTEGER)?;
    if time <= 0 {
        return Err(invalid());
    }
    let factor = if unit.starts_with(b"EX") { 1000 } else { 1 };
    let begin = if unit.ends_with(b"AT") { 0 } else { i64::try_from(now_ms).map_err(|_| invalid())? };
    let at_ms = time.checked_mul(factor).and_then(|ms| ms.checked_add(begin)).ok_or_else(invalid)?;
    u64::try_from(at_ms).map_err(|_| invalid())
}
