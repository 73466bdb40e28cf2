//! When keys expire: EXPIRE, PEXPIRE, EXPIREAT, PEXPIREAT, TTL, PTTL, EXPIRETIME, PEXPIRETIME,
//! PERSIST.

use super::entry::plain;
use super::{Call, Command, KeyPositions, Run, flag, word};
use crate::protocol::number::parse_integer;
use ecotone_keyspace::error::{Failure, Outcome, texts};

const fn command(name: &'static str, arity: i32, flags: u32, since: &'static str, run: Run) -> Command {
    Command { keys: KeyPositions::FIRST, ..plain(name, arity, flags | flag::FAST, "generic", since, "", run) }
}

/// The family.
pub const COMMANDS: &[Command] = &[
    Command {
        summary: "Sets the expiration of a key in seconds from now.",
        usage: "key seconds:integer [condition: NX | XX | GT | LT]@7.0.0",
        ..command("expire", -3, flag::WRITE, "1.0.0", |call| expire(call, Unit::SECONDS))
    },
    Command {
        summary: "Sets the expiration of a key in milliseconds from now.",
        usage: "key milliseconds:integer [condition: NX | XX | GT | LT]@7.0.0",
        ..command("pexpire", -3, flag::WRITE, "2.6.0", |call| expire(call, Unit::MILLISECONDS))
    },
    Command {
        summary: "Sets the expiration of a key to a time in seconds since 1970.",
        usage: "key unix-time-seconds:unix-time [condition: NX | XX | GT | LT]@7.0.0",
        ..command("expireat", -3, flag::WRITE, "1.2.0", |call| expire(call, Unit::AT_SECONDS))
    },
    Command {
        summary: "Sets the expiration of a key to a time in milliseconds since 1970.",
        usage: "key unix-time-milliseconds:unix-time [condition: NX | XX | GT | LT]@7.0.0",
        ..command("pexpireat", -3, flag::WRITE, "2.6.0", |call| expire(call, Unit::AT_MILLISECONDS))
    },
    Command {
        summary: "Returns the seconds until a key expires.",
        usage: "key",
        ..command("ttl", 2, flag::READONLY | flag::DESCRIBES, "1.0.0", |call| tell(call, Unit::SECONDS))
    },
    Command {
        summary: "Returns the milliseconds until a key expires.",
        usage: "key",
        ..command("pttl", 2, flag::READONLY | flag::DESCRIBES, "2.6.0", |call| tell(call, Unit::MILLISECONDS))
    },
    Command {
        summary: "Returns when a key expires, in seconds since 1970.",
        usage: "key",
        ..command("expiretime", 2, flag::READONLY | flag::DESCRIBES, "7.0.0", |call| tell(call, Unit::AT_SECONDS))
    },
    Command {
        summary: "Returns when a key expires, in milliseconds since 1970.",
        usage: "key",
        ..command("pexpiretime", 2, flag::READONLY | flag::DESCRIBES, "7.0.0", |call| tell(call, Unit::AT_MILLISECONDS))
    },
    Command {
        summary: "Removes the expiration of a key.",
        usage: "key",
        ..command("persist", 2, flag::WRITE, "2.2.0", persist)
    },
];

/// What a time is counted in, and from when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unit {
    ms: i64,
    is_absolute: bool,
}

impl Unit {
    /// Seconds from now.
    pub(crate) const SECONDS: Self = Self { ms: 1000, is_absolute: false };
    /// Milliseconds from now.
    pub(crate) const MILLISECONDS: Self = Self { ms: 1, is_absolute: false };
    /// Seconds since 1970 UTC.
    pub(crate) const AT_SECONDS: Self = Self { ms: 1000, is_absolute: true };
    /// Milliseconds since 1970 UTC.
    pub(crate) const AT_MILLISECONDS: Self = Self { ms: 1, is_absolute: true };

    /// `time` in ms since 1970 UTC; `None` beyond what 64 bits hold.
    fn at_ms(self, time: i64, now_ms: u64) -> Option<i64> {
        let begin = if self.is_absolute { 0 } else { i64::try_from(now_ms).ok()? };
        time.checked_mul(self.ms)?.checked_add(begin)
    }

    /// The time that the argument `time` of `command` means, in ms since 1970 UTC.
    ///
    /// # Errors
    ///
    /// Redis': not a number, not positive, or beyond what a time can be.
    pub(crate) fn positive_at_ms(self, time: &[u8], now_ms: u64, command: &Command) -> Outcome<u64> {
        let time = parse_integer(time).ok_or(texts::NOT_AN_INTEGER)?;
        let at_ms = if time > 0 { self.at_ms(time, now_ms) } else { None };
        at_ms.and_then(|at_ms| u64::try_from(at_ms).ok()).ok_or_else(|| invalid_time(command))
    }
}

fn invalid_time(command: &Command) -> Failure {
    Failure::with(format!("ERR invalid expire time in '{}' command", command.name))
}

/// When `EXPIRE` and its like do it.
#[derive(Debug, Default)]
struct Conditions {
    has_none: bool,
    has_one: bool,
    is_later: bool,
    is_earlier: bool,
}

impl Conditions {
    fn parse(options: &[&[u8]]) -> Outcome<Self> {
        let mut parsed = Self::default();
        for option in options {
            match word::upper(option).as_slice() {
                b"NX" => parsed.has_none = true,
                b"XX" => parsed.has_one = true,
                b"GT" => parsed.is_later = true,
                b"LT" => parsed.is_earlier = true,
                _ => return Err(Failure::repeating("ERR Unsupported option ", option, "")),
            }
        }
        if parsed.has_none && (parsed.has_one || parsed.is_later || parsed.is_earlier) {
            let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(Failure::text(text));
        }
        if parsed.is_later && parsed.is_earlier {
            return Err(Failure::text("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(parsed)
    }

    /// Whether a key that expires at `old` may get `new`. Without an expiry it never does: later
    /// than any time.
    fn hold(&self, old: Option<u64>, new: i64) -> bool {
        let old = old.map(|old| i64::try_from(old).unwrap_or(i64::MAX));
        !(self.has_none && old.is_some()
            || self.has_one && old.is_none()
            || self.is_later && old.is_none_or(|old| new <= old)
            || self.is_earlier && old.is_some_and(|old| new >= old))
    }
}

fn expire(call: &mut Call<'_>, unit: Unit) -> Outcome {
    let [_, key, time, options @ ..] = call.arguments else { return Err(texts::SYNTAX) };
    let conditions = Conditions::parse(options)?;
    let time = parse_integer(time).ok_or(texts::NOT_AN_INTEGER)?;
    let now_ms = call.keys.now_ms();
    let at_ms = unit.at_ms(time, now_ms).ok_or_else(|| invalid_time(call.command))?;
    let entry = call.keys.entry(key)?.filter(|entry| conditions.hold(entry.expires_at_ms, at_ms));
    let Some(entry) = entry else {
        call.reply.integer(0);
        return Ok(());
    };
    match u64::try_from(at_ms) {
        Ok(at_ms) if at_ms > now_ms => call.keys.set(key, entry.tag, Some(at_ms), &entry)?,
        _ => {
            call.keys.delete(key)?;
        }
    }
    call.reply.integer(1);
    Ok(())
}

fn persist(call: &mut Call<'_>) -> Outcome {
    let key = call.arguments[1];
    let entry = call.keys.entry(key)?.filter(|entry| entry.expires_at_ms.is_some());
    if let Some(entry) = &entry {
        call.keys.set(key, entry.tag, None, entry)?;
    }
    call.reply.integer(entry.is_some().into());
    Ok(())
}

fn tell(call: &mut Call<'_>, unit: Unit) -> Outcome {
    let begin = if unit.is_absolute { 0 } else { call.keys.now_ms() };
    let told = match call.keys.peek(call.arguments[1])? {
        None => -2,
        Some((_, None)) => -1,
        Some((_, Some(at_ms))) => {
            let unit_ms = unit.ms.unsigned_abs();
            // To the nearest.
            i64::try_from((at_ms.saturating_sub(begin) + unit_ms / 2) / unit_ms).unwrap_or(i64::MAX)
        }
    };
    call.reply.integer(told);
    Ok(())
}
