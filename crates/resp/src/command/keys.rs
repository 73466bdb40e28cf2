//! Keys, whatever they hold: DEL, UNLINK, EXISTS, TYPE, TOUCH, RENAME, RENAMENX, COPY, DBSIZE,
//! FLUSHDB, FLUSHALL, KEYS, RANDOMKEY.
//!
//! `SCAN` is in [`super::scan`], times are in [`super::expiry`]. There is one database, number 0.

use std::ops::{ControlFlow, Range};

use super::entry::plain;
use super::scan::match_steps;
use super::{Call, Command, KeyPositions, Run, flag, go_on, word};
use crate::protocol::glob::Pattern;
use crate::protocol::number::parse_integer;
use ecotone_keyspace::MAX_KEY_BYTES;
use ecotone_keyspace::collections::draw::Draw;
use ecotone_keyspace::error::{Failure, Outcome, texts};
use ecotone_keyspace::layout::{POSITIONS, POSITIONS_PER_SLOT};

const TWO: KeyPositions = KeyPositions::Range { first: 1, last: 2, step: 1 };

const fn command(name: &'static str, arity: i32, flags: u32, keys: KeyPositions, run: Run) -> Command {
    Command { keys, ..plain(name, arity, flags, "generic", "1.0.0", "", run) }
}

/// The family.
pub const COMMANDS: &[Command] = &[
    Command {
        summary: "Deletes one or more keys.",
        usage: "key...",
        complexity: "O(N) where N is the number of keys.",
        ..command("del", -2, flag::WRITE, KeyPositions::ALL, delete)
    },
    Command {
        summary: "Deletes one or more keys.",
        usage: "key...",
        complexity: "O(N) where N is the number of keys.",
        since: "4.0.0",
        ..command("unlink", -2, flag::WRITE | flag::FAST, KeyPositions::ALL, delete)
    },
    Command {
        summary: "Counts the keys that are there.",
        usage: "key...",
        complexity: "O(N) where N is the number of keys.",
        ..command("exists", -2, flag::READONLY | flag::FAST | flag::LATCHES, KeyPositions::ALL, count_present)
    },
    Command {
        summary: "Counts the keys that are there. No time of access is kept.",
        usage: "key...",
        complexity: "O(N) where N is the number of keys.",
        since: "3.2.1",
        ..command("touch", -2, flag::READONLY | flag::FAST | flag::LATCHES, KeyPositions::ALL, count_present)
    },
    Command {
        summary: "Returns the type of what a key holds.",
        usage: "key",
        ..command("type", 2, flag::READONLY | flag::FAST | flag::DESCRIBES, KeyPositions::FIRST, type_of)
    },
    Command {
        summary: "Renames a key, and overwrites the new name.",
        usage: "key newkey:key",
        ..command("rename", 3, flag::WRITE, TWO, |call| rename(call, true))
    },
    Command {
        summary: "Renames a key, only if the new name is not there.",
        usage: "key newkey:key",
        ..command("renamenx", 3, flag::WRITE | flag::FAST, TWO, |call| rename(call, false))
    },
    Command {
        summary: "Copies a key.",
        usage: "source:key destination:key [DB destination-db:integer] [REPLACE]",
        complexity: "O(N) where N is the number of elements of a collection, O(1) for a string.",
        since: "6.2.0",
        ..command("copy", -3, flag::WRITE | flag::DENYOOM, TWO, copy)
    },
    Command {
        summary: "Returns the keys that match a pattern.",
        usage: "pattern",
        complexity: "O(N) where N is the number of all keys.",
        ..command("keys", 2, flag::READONLY | flag::WAITS, KeyPositions::None, keys)
    },
    Command {
        summary: "Returns any key.",
        ..command("randomkey", 1, flag::READONLY | flag::WAITS, KeyPositions::None, random_key)
    },
    Command {
        group: "server",
        summary: "Counts all keys.",
        complexity: "O(N) where N is the number of all keys.",
        ..command("dbsize", 1, flag::READONLY | flag::FAST | flag::WAITS, KeyPositions::None, count_all)
    },
    Command {
        group: "server",
        summary: "Removes all keys of the database.",
        usage: "[flush-type: ASYNC@4.0.0 | SYNC@6.2.0]",
        ..command("flushdb", -1, flag::WRITE | flag::WAITS | flag::ALL_SLOTS, KeyPositions::None, flush)
    },
    Command {
        group: "server",
        summary: "Removes all keys of all databases; there is one.",
        usage: "[flush-type: ASYNC@4.0.0 | SYNC@6.2.0]",
        ..command("flushall", -1, flag::WRITE | flag::WAITS | flag::ALL_SLOTS, KeyPositions::None, flush)
    },
];

fn delete(call: &mut Call<'_>) -> Outcome {
    let mut deleted = 0;
    for key in &call.arguments[1..] {
        deleted += i64::from(call.keys.delete(key)?);
    }
    call.reply.integer(deleted);
    Ok(())
}

fn count_present(call: &mut Call<'_>) -> Outcome {
    let mut present = 0;
    for key in &call.arguments[1..] {
        present += i64::from(call.keys.peek(key)?.is_some());
    }
    call.reply.integer(present);
    Ok(())
}

fn type_of(call: &mut Call<'_>) -> Outcome {
    let name = call.keys.peek(call.arguments[1])?.map_or("none", |(tag, _)| tag.of.name());
    call.reply.simple(name);
    Ok(())
}

fn rename(call: &mut Call<'_>, overwrites: bool) -> Outcome {
    let (from, to) = (call.arguments[1], call.arguments[2]);
    if call.keys.peek(from)?.is_none() {
        return Err(texts::NO_SUCH_KEY);
    }
    let moves = from != to && (overwrites || call.keys.peek(to)?.is_none());
    if moves && let Some(entry) = call.keys.take(from)? {
        call.keys.put_entry(to, &entry)?;
    }
    if overwrites {
        call.reply.simple("OK");
    } else {
        call.reply.integer(moves.into());
    }
    Ok(())
}

fn copy(call: &mut Call<'_>) -> Outcome {
    let [_, from, to, options @ ..] = call.arguments else { return Err(texts::SYNTAX) };
    let replaces = copy_replaces(options)?;
    if from == to {
        return Err(Failure::text("ERR source and destination objects are the same"));
    }
    call.keys.count_lookups(true);
    let found = call.keys.entry(from)?;
    call.keys.count_lookups(false);
    let copied = match found {
        Some(entry) if replaces || call.keys.peek(to)?.is_none() => {
            call.keys.put_copy(to, &entry)?;
            true
        }
        _ => false,
    };
    call.reply.integer(copied.into());
    Ok(())
}

/// Whether `COPY` may overwrite. There is one database, as in a Redis with `databases 1`.
fn copy_replaces(options: &[&[u8]]) -> Outcome<bool> {
    let mut replaces = false;
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        match (word::upper(option).as_slice(), rest.as_slice()) {
            (b"REPLACE", _) => replaces = true,
            (b"DB", [database, ..]) => {
                rest.next();
                let database = parse_integer(database).ok_or(texts::NOT_AN_INTEGER)?;
                if i32::try_from(database).is_err() {
                    let (least, most) = (i32::MIN, i32::MAX);
                    let text = format!("ERR value is out of range, value must between {least} and {most}");
                    return Err(Failure::with(text));
                }
                if database != 0 {
                    return Err(Failure::text("ERR DB index is out of range"));
                }
            }
            _ => return Err(texts::SYNTAX),
        }
    }
    Ok(replaces)
}

fn keys(call: &mut Call<'_>) -> Outcome {
    let pattern = Pattern::new(call.arguments[1], MAX_KEY_BYTES);
    let (reply, mut cancellation) = (&mut *call.reply, call.keys.cancellation_check());
    let (mark, mut found) = (reply.begin(), 0);
    call.keys.visit_keys(0, |_, key, _| {
        if pattern.matches(key) {
            reply.bulk(key);
            found += 1;
        }
        cancellation.after_steps(match_steps(&pattern, key))?;
        go_on(reply)
    })?;
    cancellation.end()?;
    reply.end_array(mark, found);
    Ok(())
}

/// A key that was drawn.
struct Drawn {
    place: u32,
    key: Vec<u8>,
    /// Whether all that there were had the same chance.
    is_of_all: bool,
}

/// A slot by the keys behind a random place, then one of its keys: those with one hash tag are all
/// in one slot, which is drawn about as often as others.
fn random_key(call: &mut Call<'_>) -> Outcome {
    let drawn = match draw_key(call, 0..POSITIONS)? {
        Some(drawn) if !drawn.is_of_all => {
            let first = drawn.place & !(POSITIONS_PER_SLOT - 1);
            Some(draw_key(call, first..first + POSITIONS_PER_SLOT)?.unwrap_or(drawn))
        }
        drawn => drawn,
    };
    match drawn {
        Some(drawn) => call.reply.bulk(&drawn.key),
        None => call.reply.null(),
    }
    Ok(())
}

/// One of the keys whose places are in `places`.
fn draw_key(call: &mut Call<'_>, places: Range<u32>) -> Outcome<Option<Drawn>> {
    let mut draw = Draw::within(places.start.into()..places.end.into());
    while let Some(from) = draw.next_from() {
        call.keys.visit_keys(from as u32, |place, key, _| draw.offer(place.into(), || (place, key.to_vec())))?;
    }
    let is_of_all = draw.saw_all();
    Ok(draw.drawn().map(|(place, key)| Drawn { place, key, is_of_all }))
}

fn count_all(call: &mut Call<'_>) -> Outcome {
    let mut count = 0;
    call.keys.visit_keys(0, |_, _, _| {
        count += 1;
        ControlFlow::Continue(())
    })?;
    call.reply.integer(count);
    Ok(())
}

fn flush(call: &mut Call<'_>) -> Outcome {
    match &call.arguments[1..] {
        [] => {}
        [how] if how.eq_ignore_ascii_case(b"SYNC") || how.eq_ignore_ascii_case(b"ASYNC") => {}
        _ => return Err(texts::SYNTAX),
    }
    call.keys.clear();
    call.reply.simple("OK");
    Ok(())
}
