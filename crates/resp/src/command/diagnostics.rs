//! SLOWLOG, MEMORY, DEBUG, TIME: commands for diagnosis.

use std::ops::ControlFlow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ecotone_engine::header::encode_inline;
use ecotone_engine::{Attributes, Direction};

use super::entry::{container, help, plain, unknown_or_wrong_number};
use super::{Call, Command, KeyPositions, flag};
use crate::client::Then;
use crate::protocol::number::parse_integer;
use ecotone_keyspace::collections::Large;
use ecotone_keyspace::error::{Failure, Outcome, texts};
use ecotone_keyspace::layout::{ELEMENT_PREFIX_BYTES, KEY_PREFIX_BYTES};
use ecotone_keyspace::{Keys, Type};

const ALWAYS: u32 = flag::LOADING | flag::STALE;
const HELPS: &str = "Returns helpful text about the different subcommands.";

const fn slowlog(name: &'static str, arity: i32, summary: &'static str, run: super::Run) -> Command {
    plain(name, arity, ALWAYS | flag::ADMIN, "server", "2.2.12", summary, run)
}

const fn memory(name: &'static str, arity: i32, flags: u32, summary: &'static str, run: super::Run) -> Command {
    plain(name, arity, flags, "server", "4.0.0", summary, run)
}

/// The family.
pub const COMMANDS: &[Command] = &[
    container("slowlog", "server", "2.2.12", "A container for slow log commands.", SLOWLOG),
    container("memory", "server", "4.0.0", "A container for memory diagnostics commands.", MEMORY),
    Command {
        complexity: "Depends on subcommand.",
        ..plain(
            "debug",
            -2,
            ALWAYS | flag::ADMIN | flag::NOSCRIPT | flag::INTERNAL,
            "server",
            "1.0.0",
            "A container for debugging commands.",
            debug,
        )
    },
    plain("time", 1, ALWAYS | flag::FAST, "server", "2.6.0", "Returns the server time.", time),
];

const SLOWLOG: &[Command] = &[
    Command {
        usage: "[count:integer]",
        complexity: "O(N) where N is the number of entries returned",
        ..slowlog("slowlog|get", -2, "Returns the slow log's entries.", slowlog_get)
    },
    slowlog("slowlog|len", 2, "Returns the number of entries in the slow log.", slowlog_len),
    Command {
        complexity: "O(N) where N is the number of entries in the slowlog",
        ..slowlog("slowlog|reset", 2, "Clears all entries from the slow log.", slowlog_reset)
    },
    Command { flags: ALWAYS, since: "6.2.0", ..slowlog("slowlog|help", 2, HELPS, slowlog_help) },
];

const MEMORY: &[Command] = &[
    Command {
        usage: "key [SAMPLES count:integer]",
        keys: KeyPositions::Range { first: 2, last: 2, step: 1 },
        complexity: "O(N) where N is the number of samples.",
        ..memory("memory|usage", -3, flag::READONLY, "Estimates the memory usage of a key.", memory_usage)
    },
    memory("memory|doctor", 2, 0, "Outputs a memory problems report.", memory_doctor),
    memory("memory|malloc-stats", 2, 0, "Returns the allocator statistics.", memory_malloc_stats),
    memory("memory|purge", 2, 0, "Asks the allocator to release memory.", memory_purge),
    memory("memory|help", 2, ALWAYS, HELPS, memory_help),
];

/// Entries that `SLOWLOG GET` replies by default.
const SLOW_BY_DEFAULT: usize = 10;

fn slowlog_get(call: &mut Call<'_>) -> Outcome {
    let most = match call.arguments[2..] {
        [] => SLOW_BY_DEFAULT,
        [most] => match parse_integer(most) {
            Some(-1) => usize::MAX,
            most => most
                .and_then(|most| usize::try_from(most).ok())
                .ok_or(Failure::text("ERR count should be greater than or equal to -1"))?,
        },
        _ => return Err(unknown_or_wrong_number("SLOWLOG", call.arguments[1])),
    };
    let entries = call.service.slowlog.newest(most);
    let reply = &mut *call.reply;
    reply.array(entries.len());
    for slow in entries {
        reply.array(6);
        reply.integer(slow.id as i64);
        reply.integer(slow.at_s as i64);
        reply.integer(slow.took.as_micros() as i64);
        reply.array(slow.arguments.len());
        slow.arguments.iter().for_each(|argument| reply.bulk(argument));
        reply.bulk_text(&slow.address);
        reply.bulk(&slow.name);
    }
    Ok(())
}

fn slowlog_len(call: &mut Call<'_>) -> Outcome {
    call.reply.integer(call.service.slowlog.len() as i64);
    Ok(())
}

fn slowlog_reset(call: &mut Call<'_>) -> Outcome {
    call.service.slowlog.clear();
    call.reply.simple("OK");
    Ok(())
}

fn slowlog_help(call: &mut Call<'_>) -> Outcome {
    help(
        call,
        &[
            "GET [<count>]",
            "    Return top <count> entries from the slowlog (default: 10, -1 mean all).",
            "    Entries are made of:",
            "    id, timestamp, time in microseconds, arguments array, client IP and port,",
            "    client name",
            "LEN",
            "    Return the length of the slowlog.",
            "RESET",
            "    Reset the slowlog.",
        ],
    );
    Ok(())
}

/// Elements of a large collection that `MEMORY USAGE` samples by default, as in Redis.
const DEFAULT_SAMPLES: u64 = 5;

/// Bytes of the key and its value as they are stored, before compression. Of a large collection's
/// elements some are sampled, and the others assumed to be as long as those.
fn memory_usage(call: &mut Call<'_>) -> Outcome {
    let mut samples = DEFAULT_SAMPLES;
    for option in call.arguments[3..].chunks(2) {
        match *option {
            [name, count] if name.eq_ignore_ascii_case(b"SAMPLES") => {
                let count = parse_integer(count).ok_or(texts::NOT_AN_INTEGER)?;
                samples = u64::try_from(count).map_err(|_| texts::SYNTAX)?;
            }
            _ => return Err(texts::SYNTAX),
        }
    }
    let key = call.arguments[2];
    // Measuring memory is no use of the key.
    call.keys.count_lookups(false);
    let Some(entry) = call.keys.entry(key)? else {
        call.reply.null();
        return Ok(());
    };
    let attributes =
        Attributes { expires_at_ms: entry.expires_at_ms, type_tag: entry.tag.encode(), ..Attributes::NONE };
    let mut bytes = (KEY_PREFIX_BYTES + key.len() + header_bytes(&attributes) + entry.len()) as u64;
    if entry.tag.is_large {
        let (large, _) = Large::decode(&entry)?;
        bytes += element_bytes(&mut call.keys, large, entry.tag.of, if samples == 0 { u64::MAX } else { samples })?;
    }
    call.reply.integer(bytes as i64);
    Ok(())
}

/// Bytes of the elements of a large collection, by `samples` of them if it has more.
fn element_bytes(keys: &mut Keys<'_>, large: Large, of: Type, samples: u64) -> Outcome<u64> {
    let around = ELEMENT_PREFIX_BYTES + header_bytes(&Attributes::NONE);
    let mut bytes_of = |most: u64, direction| {
        let (mut bytes, mut left) = (0, most);
        keys.visit_all_elements(large.id, direction, |sub_key, value| {
            bytes += (around + sub_key.len() + value.len()) as u64;
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok::<u64, Failure>(bytes)
    };
    if samples >= large.elements {
        return bytes_of(u64::MAX, Direction::Forward);
    }
    let mut sampled = bytes_of(samples, Direction::Forward)?;
    // It has two entries for each element: those of one kind precede those of the other.
    if of == Type::SortedSet {
        sampled += bytes_of(samples, Direction::Reverse)?;
    }
    Ok((u128::from(sampled) * u128::from(large.elements) / u128::from(samples)) as u64)
}

fn header_bytes(attributes: &Attributes) -> usize {
    let mut header = Vec::new();
    // What is in the store has had a header.
    let _ = encode_inline(attributes, &mut header);
    header.len()
}

fn memory_doctor(call: &mut Call<'_>) -> Outcome {
    call.reply.verbatim(
        *b"txt",
        "Hi Sam, I can't find any memory issue in your instance. I can only account for what occurs on this base.\n",
    );
    Ok(())
}

fn memory_malloc_stats(call: &mut Call<'_>) -> Outcome {
    match call.service.host.allocator() {
        Some(allocator) => call.reply.verbatim(*b"txt", &allocator.report()),
        None => call.reply.bulk_text("Stats not supported for the current allocator"),
    }
    Ok(())
}

fn memory_purge(call: &mut Call<'_>) -> Outcome {
    // The C library's gives back by itself what it can.
    if call.service.host.allocator().is_some_and(|allocator| !allocator.purge()) {
        return Err(Failure::text("ERR Error purging dirty pages"));
    }
    call.reply.simple("OK");
    Ok(())
}

fn memory_help(call: &mut Call<'_>) -> Outcome {
    help(
        call,
        &[
            "DOCTOR",
            "    Return memory problems reports.",
            "MALLOC-STATS",
            "    Return internal statistics report from the memory allocator.",
            "PURGE",
            "    Attempt to purge dirty pages for reclamation by the allocator.",
            "USAGE <key> [SAMPLES <count>]",
            "    Return memory in bytes used by <key> and its value. Nested values are",
            "    sampled up to <count> times (default: 5, 0 means sample all).",
        ],
    );
    Ok(())
}

/// Only this client sleeps; Redis makes all of them wait.
fn debug(call: &mut Call<'_>) -> Outcome {
    match call.arguments[1..] {
        [subcommand, seconds] if subcommand.eq_ignore_ascii_case(b"SLEEP") => {
            call.sleeps = Duration::try_from_secs_f64(leading_number(seconds)).unwrap_or_default();
            // In a transaction the rests come together, behind its end.
            call.client.then = match call.client.then {
                Then::Go => Then::Rest(call.sleeps),
                Then::Rest(rest) => Then::Rest(rest.saturating_add(call.sleeps)),
                then @ (Then::Follow | Then::Close) => then,
            };
            call.reply.simple("OK");
            Ok(())
        }
        [subcommand] if subcommand.eq_ignore_ascii_case(b"HELP") => {
            help(
                call,
                &["SLEEP <seconds>", "    Let this client wait for <seconds>, decimals allowed. Others do not."],
            );
            Ok(())
        }
        [subcommand, ..] => Err(unknown_or_wrong_number("DEBUG", subcommand)),
        [] => Err(texts::SYNTAX),
    }
}

/// Digits, a point and an exponent that a number of seconds may need; the rest is ignored.
const NUMBER_BYTES: usize = 32;

/// What `text` begins with, as C's `strtod` reads it (but for hexadecimal digits): what begins with
/// no number is 0.
fn leading_number(text: &[u8]) -> f64 {
    let text = text.trim_ascii_start();
    let most = text.len().min(NUMBER_BYTES);
    let number = |length| std::str::from_utf8(&text[..length]).ok().and_then(|text| text.parse().ok());
    (1..=most).rev().find_map(number).unwrap_or(0.0)
}

fn time(call: &mut Call<'_>) -> Outcome {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    call.reply.array(2);
    call.reply.bulk_text(&since.as_secs().to_string());
    call.reply.bulk_text(&since.subsec_micros().to_string());
    Ok(())
}
