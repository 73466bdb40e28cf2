//! Lists: what clients ask of them. How they lie in the store is in
//! [`ecotone_keyspace::collections::list`].

use std::ops::{ControlFlow, Range};

use ecotone_engine::Direction;

use super::entry::plain;
use super::{Answers, Call, Command, Deprecation, KeyPositions, Run, flag, go_on};
use crate::protocol::number::parse_integer;
use crate::protocol::reply::Reply;
use ecotone_keyspace::collections::list::{End, List};
use ecotone_keyspace::error::{Failure, Outcome, texts};
use ecotone_keyspace::memory::BoundedVec;

// The ends of a large list are in its key and its elements are not: all of them are read before a
// write of another client, or after it.
const READ: u32 = flag::READONLY | flag::LATCHES;
const GROW: u32 = flag::WRITE | flag::DENYOOM;
const GROW_FAST: u32 = GROW | flag::FAST;
const SHRINK_FAST: u32 = flag::WRITE | flag::FAST;

const BOTH: KeyPositions = KeyPositions::Range { first: 1, last: 2, step: 1 };
const PUSH: &str = "O(N) where N is the number of elements.";
const POP: &str = "O(N) where N is the number of elements returned.";

const fn command(name: &'static str, arity: i32, flags: u32, since: &'static str, run: Run) -> Command {
    Command { keys: KeyPositions::FIRST, ..plain(name, arity, flags, "list", since, "", run) }
}

/// The family.
pub const COMMANDS: &[Command] = &[
    Command {
        summary: "Puts elements before the first of a list. The list is created if it doesn't exist.",
        usage: "key element...",
        complexity: PUSH,
        ..command("lpush", -3, GROW_FAST, "1.0.0", |call| push(call, End::Left, true))
    },
    Command {
        summary: "Puts elements behind the last of a list. The list is created if it doesn't exist.",
        usage: "key element...",
        complexity: PUSH,
        ..command("rpush", -3, GROW_FAST, "1.0.0", |call| push(call, End::Right, true))
    },
    Command {
        summary: "Puts elements before the first of a list, only if the list is there.",
        usage: "key element...",
        complexity: PUSH,
        ..command("lpushx", -3, GROW_FAST, "2.2.0", |call| push(call, End::Left, false))
    },
    Command {
        summary: "Puts elements behind the last of a list, only if the list is there.",
        usage: "key element...",
        complexity: PUSH,
        ..command("rpushx", -3, GROW_FAST, "2.2.0", |call| push(call, End::Right, false))
    },
    Command {
        summary: "Removes the first elements of a list and returns them.",
        usage: "key [count:integer]@6.2.0",
        complexity: POP,
        ..command("lpop", -2, SHRINK_FAST, "1.0.0", |call| pop(call, End::Left))
    },
    Command {
        summary: "Removes the last elements of a list and returns them.",
        usage: "key [count:integer]@6.2.0",
        complexity: POP,
        ..command("rpop", -2, SHRINK_FAST, "1.0.0", |call| pop(call, End::Right))
    },
    Command {
        summary: "Returns the elements of a list from one index to another.",
        usage: "key start:integer stop:integer",
        complexity: POP,
        ..command("lrange", 4, READ, "1.0.0", range)
    },
    Command {
        summary: "Counts the elements of a list.",
        usage: "key",
        ..command("llen", 2, flag::READONLY | flag::FAST, "1.0.0", count)
    },
    Command {
        summary: "Returns the element of a list at an index.",
        usage: "key index:integer",
        ..command("lindex", 3, READ, "1.0.0", element)
    },
    Command {
        summary: "Sets the element of a list at an index.",
        usage: "key index:integer element",
        ..command("lset", 4, GROW, "1.0.0", set)
    },
    Command {
        summary: "Removes the elements of a list before one index and behind another.",
        usage: "key start:integer stop:integer",
        complexity: "O(N) where N is the number of elements to be removed.",
        ..command("ltrim", 4, flag::WRITE, "1.0.0", trim)
    },
    Command {
        summary: "Removes the first or last elements of a list that equal one, or all that do.",
        usage: "key count:integer element",
        complexity: "O(N) where N is the length of the list.",
        ..command("lrem", 4, flag::WRITE, "1.0.0", remove)
    },
    Command {
        summary: "Puts an element before or behind another one of a list.",
        usage: "key (where: BEFORE | AFTER) pivot element",
        complexity: "O(N) where N is the length of the list.",
        ..command("linsert", 5, GROW, "2.2.0", insert)
    },
    Command {
        summary: "Removes the first or last element of a list, puts it at an end of another list and returns it.",
        usage: "source:key destination:key (wherefrom: LEFT | RIGHT) (whereto: LEFT | RIGHT)",
        keys: BOTH,
        ..command("lmove", 5, GROW, "6.2.0", |call| {
            let [_, _, _, from, to] = call.arguments else { return Err(texts::SYNTAX) };
            let (from, to) = (parse_end(from)?, parse_end(to)?);
            move_one(call, from, to)
        })
    },
    Command {
        summary: "Removes the last element of a list, puts it before the first of another list and returns it.",
        usage: "source:key destination:key",
        deprecated: Some(Deprecation { since: "6.2.0", instead: "`LMOVE source destination RIGHT LEFT`" }),
        keys: BOTH,
        ..command("rpoplpush", 3, GROW, "1.2.0", |call| move_one(call, End::Right, End::Left))
    },
    Command {
        summary: "Returns the indices of the elements of a list that equal one.",
        usage: "key element [RANK rank:integer] [COUNT num-matches:integer] [MAXLEN len:integer]",
        complexity: "O(N) where N is the length of the list.",
        ..command("lpos", -3, READ, "6.0.6", positions)
    },
];

fn integer(argument: &[u8]) -> Outcome<i64> {
    parse_integer(argument).ok_or(texts::NOT_AN_INTEGER)
}

fn parse_end(argument: &[u8]) -> Outcome<End> {
    if argument.eq_ignore_ascii_case(b"LEFT") {
        return Ok(End::Left);
    }
    if argument.eq_ignore_ascii_case(b"RIGHT") { Ok(End::Right) } else { Err(texts::SYNTAX) }
}

/// The position that an index means, a negative one counted from the end.
fn position(index: i64, count: u64) -> Option<u64> {
    let position = if index < 0 { count.checked_sub(index.unsigned_abs())? } else { index.unsigned_abs() };
    (position < count).then_some(position)
}

/// The positions from one index to another.
fn positions_between(first: i64, last: i64, count: u64) -> Range<u64> {
    let from_start =
        |index: i64| if index < 0 { count.checked_sub(index.unsigned_abs()) } else { Some(index.unsigned_abs()) };
    let first = from_start(first).unwrap_or(0);
    match from_start(last) {
        Some(last) if first <= last && first < count => first..(last + 1).min(count),
        _ => 0..0,
    }
}

fn push(call: &mut Call<'_>, end: End, creates: bool) -> Outcome {
    let [_, key, elements @ ..] = call.arguments else { return Err(texts::SYNTAX) };
    let list = List::read(&mut call.keys, key)?;
    let count =
        if list.is_some() || creates { List::push(&mut call.keys, key, list.as_ref(), end, elements)? } else { 0 };
    call.reply.integer(count as i64);
    Ok(())
}

fn pop(call: &mut Call<'_>, end: End) -> Outcome {
    let (key, count) = match call.arguments {
        [_, key] => (key, None),
        [_, key, count] => {
            let count = parse_integer(count).and_then(|count| u64::try_from(count).ok());
            (key, Some(count.ok_or(texts::OUT_OF_RANGE_POSITIVE)?))
        }
        _ => {
            return Err(Failure::with(format!("ERR wrong number of arguments for '{}' command", call.command.name)));
        }
    };
    let Some(list) = List::read(&mut call.keys, key)? else {
        match count {
            Some(_) => call.reply.null_array(),
            None => call.reply.null(),
        }
        return Ok(());
    };
    let wanted = count.unwrap_or(1);
    let reply = &mut *call.reply;
    if count.is_some() {
        let number = wanted.min(list.count()?);
        Answers::new(call.service, reply, number, 1, "elements").check(0)?;
        reply.array(number as usize);
    }
    if wanted == 0 {
        return Ok(());
    }
    list.pop(&mut call.keys, key, end, wanted, |element| {
        reply.bulk(element);
        go_on(reply)
    })
}

fn range(call: &mut Call<'_>) -> Outcome {
    let [_, key, first, last] = call.arguments else { return Err(texts::SYNTAX) };
    let (first, last) = (integer(first)?, integer(last)?);
    let Some(list) = List::read(&mut call.keys, key)? else {
        call.reply.array(0);
        return Ok(());
    };
    let positions = positions_between(first, last, list.count()?);
    let reply = &mut *call.reply;
    let number = positions.end - positions.start;
    Answers::new(call.service, reply, number, 1, "elements").check(0)?;
    reply.array(number as usize);
    list.visit(&mut call.keys, positions, Direction::Forward, |_, element| {
        reply.bulk(element);
        go_on(reply)
    })
}

fn count(call: &mut Call<'_>) -> Outcome {
    let count = List::read(&mut call.keys, call.arguments[1])?.map_or(Ok(0), |list| list.count())?;
    call.reply.integer(count as i64);
    Ok(())
}

fn element(call: &mut Call<'_>) -> Outcome {
    // A wrong index is an error only where there is a list.
    let Some(list) = List::read(&mut call.keys, call.arguments[1])? else {
        call.reply.null();
        return Ok(());
    };
    let index = integer(call.arguments[2])?;
    match position(index, list.count()?) {
        Some(position) => {
            let reply = &mut *call.reply;
            list.element(&mut call.keys, position, |element| reply_element(reply, element))
        }
        None => {
            call.reply.null();
            Ok(())
        }
    }
}

fn reply_element(reply: &mut Reply, element: Option<&[u8]>) {
    match element {
        Some(element) => reply.bulk(element),
        None => reply.null(),
    }
}

fn set(call: &mut Call<'_>) -> Outcome {
    let [_, key, index, element] = call.arguments else { return Err(texts::SYNTAX) };
    let list = List::read(&mut call.keys, key)?.ok_or(texts::NO_SUCH_KEY)?;
    let position = position(integer(index)?, list.count()?).ok_or(texts::INDEX_OUT_OF_RANGE)?;
    list.set(&mut call.keys, key, position, element)?;
    call.reply.simple("OK");
    Ok(())
}

fn trim(call: &mut Call<'_>) -> Outcome {
    let [_, key, first, last] = call.arguments else { return Err(texts::SYNTAX) };
    let (first, last) = (integer(first)?, integer(last)?);
    if let Some(list) = List::read(&mut call.keys, key)? {
        let positions = positions_between(first, last, list.count()?);
        list.trim(&mut call.keys, key, positions)?;
    }
    call.reply.simple("OK");
    Ok(())
}

fn remove(call: &mut Call<'_>) -> Outcome {
    let [_, key, count, element] = call.arguments else { return Err(texts::SYNTAX) };
    let count = integer(count)?;
    let mut found = BoundedVec::new(call.keys.reserve_memory());
    if let Some(list) = List::read(&mut call.keys, key)? {
        let direction = if count < 0 { Direction::Reverse } else { Direction::Forward };
        let most = if count == 0 { u64::MAX } else { count.unsigned_abs() };
        let all = 0..list.count()?;
        list.visit(&mut call.keys, all, direction, |position, known| {
            if known == *element {
                found.add(0, || position)?;
            }
            if found.len() as u64 == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        found = found.whole()?;
        found.sort_unstable();
        list.remove(&mut call.keys, key, &found)?;
    }
    call.reply.integer(found.len() as i64);
    Ok(())
}

fn insert(call: &mut Call<'_>) -> Outcome {
    let [_, key, place, pivot, element] = call.arguments else { return Err(texts::SYNTAX) };
    let behind = match place {
        place if place.eq_ignore_ascii_case(b"AFTER") => 1,
        place if place.eq_ignore_ascii_case(b"BEFORE") => 0,
        _ => return Err(texts::SYNTAX),
    };
    let Some(list) = List::read(&mut call.keys, key)? else {
        call.reply.integer(0);
        return Ok(());
    };
    let count = list.count()?;
    let mut found = None;
    list.visit(&mut call.keys, 0..count, Direction::Forward, |position, known| {
        if known != *pivot {
            return ControlFlow::Continue(());
        }
        found = Some(position);
        ControlFlow::Break(())
    })?;
    match found {
        Some(position) => {
            list.insert(&mut call.keys, key, position + behind, element)?;
            call.reply.integer(count as i64 + 1);
        }
        None => call.reply.integer(-1),
    }
    Ok(())
}

fn move_one(call: &mut Call<'_>, from: End, to: End) -> Outcome {
    let (source, target) = (call.arguments[1], call.arguments[2]);
    let Some(list) = List::read(&mut call.keys, source)? else {
        call.reply.null();
        return Ok(());
    };
    let moved = if source == target {
        list.rotate(&mut call.keys, source, from, to)?
    } else {
        let other = List::read(&mut call.keys, target)?;
        let element = list.pop_one(&mut call.keys, source, from)?;
        List::push(&mut call.keys, target, other.as_ref(), to, &[&element])?;
        element
    };
    call.reply.bulk(&moved);
    Ok(())
}

fn positions(call: &mut Call<'_>) -> Outcome {
    let [_, key, element, options @ ..] = call.arguments else { return Err(texts::SYNTAX) };
    let (rank, count, max_looks) = parse_position_options(options)?;
    let mut found = BoundedVec::new(call.keys.reserve_memory());
    if let Some(list) = List::read(&mut call.keys, key)? {
        let all = list.count()?;
        let looks = if max_looks == 0 { all } else { max_looks.min(all) };
        let (range, direction) =
            if rank < 0 { (all - looks..all, Direction::Reverse) } else { (0..looks, Direction::Forward) };
        let most = match count {
            None => 1,
            Some(0) => usize::MAX,
            Some(count) => usize::try_from(count).unwrap_or(usize::MAX),
        };
        let mut to_skip = rank.unsigned_abs() - 1;
        list.visit(&mut call.keys, range, direction, |position, known| {
            if known == *element {
                if to_skip == 0 {
                    found.add(0, || position)?;
                } else {
                    to_skip -= 1;
                }
            }
            if found.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        found = found.whole()?;
    }
    match (count, found.first()) {
        (Some(_), _) => {
            call.reply.array(found.len());
            found.iter().for_each(|position| call.reply.integer(*position as i64));
        }
        (None, Some(position)) => call.reply.integer(*position as i64),
        (None, None) => call.reply.null(),
    }
    Ok(())
}

/// `RANK`, which is not 0; `COUNT`, where it is given; `MAXLEN`, 0 for none.
fn parse_position_options(options: &[&[u8]]) -> Outcome<(i64, Option<u64>, u64)> {
    let natural = |argument: &[u8], refusal: &'static str| {
        let number = parse_integer(argument).and_then(|number| u64::try_from(number).ok());
        number.ok_or(Failure::text(refusal))
    };
    let (mut rank, mut count, mut max_looks) = (1, None, 0);
    let (pairs, rest) = options.as_chunks::<2>();
    for [name, value] in pairs {
        if name.eq_ignore_ascii_case(b"RANK") {
            rank = integer(value)?;
            if rank == i64::MIN {
                let (least, most) = (-i64::MAX, i64::MAX);
                return Err(Failure::with(format!("ERR value is out of range, value must between {least} and {most}")));
            }
            if rank == 0 {
                return Err(Failure::text(ZERO_RANK));
            }
        } else if name.eq_ignore_ascii_case(b"COUNT") {
            count = Some(natural(value, "ERR COUNT can't be negative")?);
        } else if name.eq_ignore_ascii_case(b"MAXLEN") {
            max_looks = natural(value, "ERR MAXLEN can't be negative")?;
        } else {
            return Err(texts::SYNTAX);
        }
    }
    if rest.is_empty() { Ok((rank, count, max_looks)) } else { Err(texts::SYNTAX) }
}

const ZERO_RANK: &str = "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start \
                         from the end of the list";
