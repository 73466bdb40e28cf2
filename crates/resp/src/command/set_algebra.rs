//! Intersections, unions and differences of sets.
//!
//! All three iterate over members of some of the sets and look each up in others. An intersection
//! is the smallest set as far as all others have it; a difference the first set as far as no other
//! has it; a union each set as far as none before it has it. So only the result is kept in memory.
//!
//! Invariant: the latches of all keys are held, so that all sets are of one moment.

use std::ops::ControlFlow;

use super::sets::command;
use super::{Call, Command, KeyPositions, flag, go_on};
use crate::protocol::number::parse_integer;
use ecotone_keyspace::Keys;
use ecotone_keyspace::collections::named::Set;
use ecotone_keyspace::collections::page::Page;
use ecotone_keyspace::error::{Failure, Outcome, texts};
use ecotone_keyspace::memory::BoundedVec;

/// Looks at members on behalf of one client while others wait for the thread.
const MAX_NONBLOCKING_LOOKUPS: u64 = 1000;

/// Members that are read before they are looked up in other sets.
const PAGE: usize = 500;

/// Bytes of such members.
const PAGE_BYTES: usize = 1024 * 1024;

const READ: u32 = flag::READONLY | flag::LATCHES;
const STORE: u32 = flag::WRITE | flag::DENYOOM;

/// The family.
pub const COMMANDS: &[Command] = &[
    Command {
        summary: "Returns the members that all of several sets have.",
        usage: "key...",
        complexity: "O(N*M) where N is the size of the smallest set and M the number of sets.",
        keys: KeyPositions::ALL,
        ..command("sinter", -2, READ, "1.0.0", |call| tell(call, Operation::Intersection))
    },
    Command {
        summary: "Counts the members that all of several sets have.",
        usage: "numkeys:integer key... [LIMIT limit:integer]",
        complexity: "O(N*M) where N is the size of the smallest set and M the number of sets.",
        keys: KeyPositions::Counted { count: 1, also: 0 },
        ..command("sintercard", -3, READ | flag::MOVABLE_KEYS, "7.0.0", count_intersection)
    },
    Command {
        summary: "Stores the members that all of several sets have.",
        usage: "destination:key key...",
        complexity: "O(N*M) where N is the size of the smallest set and M the number of sets.",
        keys: KeyPositions::ALL,
        ..command("sinterstore", -3, STORE, "1.0.0", |call| store(call, Operation::Intersection))
    },
    Command {
        summary: "Returns the members that any of several sets has.",
        usage: "key...",
        complexity: "O(N*M) where N is the size of all sets and M their number.",
        keys: KeyPositions::ALL,
        ..command("sunion", -2, READ, "1.0.0", |call| tell(call, Operation::Union))
    },
    Command {
        summary: "Stores the members that any of several sets has.",
        usage: "destination:key key...",
        complexity: "O(N*M) where N is the size of all sets and M their number.",
        keys: KeyPositions::ALL,
        ..command("sunionstore", -3, STORE, "1.0.0", |call| store(call, Operation::Union))
    },
    Command {
        summary: "Returns the members of the first set that no other set has.",
        usage: "key...",
        complexity: "O(N*M) where N is the size of the first set and M the number of sets.",
        keys: KeyPositions::ALL,
        ..command("sdiff", -2, READ, "1.0.0", |call| tell(call, Operation::Difference))
    },
    Command {
        summary: "Stores the members of the first set that no other set has.",
        usage: "destination:key key...",
        complexity: "O(N*M) where N is the size of the first set and M the number of sets.",
        keys: KeyPositions::ALL,
        ..command("sdiffstore", -3, STORE, "1.0.0", |call| store(call, Operation::Difference))
    },
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Intersection,
    Union,
    Difference,
}

/// A set whose members are gone through: those belong to the result that all, or none, of `others`
/// have.
struct Part<'s, 'c> {
    set: &'s Set<'c>,
    others: &'s [Set<'c>],
    others_have: bool,
}

/// The parts of an operation on `sets`, which are those of `named` sets that are there, in the
/// order of their names; the first name's is among them if `has_first`. The order may change.
fn parts<'s, 'c>(
    operation: Operation,
    sets: &'s mut [Set<'c>],
    named: usize,
    has_first: bool,
) -> Outcome<impl Iterator<Item = Part<'s, 'c>> + Clone> {
    let parts = match operation {
        Operation::Intersection if sets.len() < named => 0..0,
        Operation::Intersection => {
            let mut smallest: Option<(usize, u64)> = None;
            for (index, set) in sets.iter().enumerate() {
                let count = set.count()?;
                if smallest.is_none_or(|(_, least)| count < least) {
                    smallest = Some((index, count));
                }
            }
            if let Some((index, _)) = smallest {
                sets.swap(0, index);
            }
            0..usize::from(smallest.is_some())
        }
        Operation::Difference => 0..usize::from(has_first),
        Operation::Union => 0..sets.len(),
    };
    let sets: &[Set<'c>] = sets;
    let others_have = operation == Operation::Intersection;
    Ok(parts.map(move |index| match operation {
        Operation::Union => Part { set: &sets[index], others: &sets[..index], others_have },
        _ => Part { set: &sets[index], others: &sets[index + 1..], others_have },
    }))
}

/// Shows `visit` the members of the result, each once, until it breaks.
fn combine<'c>(
    keys: &mut Keys<'c>,
    operation: Operation,
    names: &[&[u8]],
    mut visit: impl FnMut(&[u8]) -> Outcome<ControlFlow<()>>,
) -> Outcome {
    let (mut sets, mut has_first) = (BoundedVec::new(keys.reserve_memory()), false);
    for (index, name) in names.iter().enumerate() {
        if let Some(set) = Set::read(keys, name)? {
            has_first |= index == 0;
            if sets.add(set.bytes(), || set).is_break() {
                break;
            }
        }
    }
    let mut sets = sets.whole()?;
    let parts = parts(operation, &mut sets, names.len(), has_first)?;
    if !keys.may_take_long() {
        let mut looks: u64 = 0;
        for part in parts.clone() {
            looks = looks.saturating_add(part.set.count()?.saturating_mul(1 + part.others.len() as u64));
        }
        if looks > MAX_NONBLOCKING_LOOKUPS {
            return Err(Failure::WouldBlock);
        }
    }
    for Part { set, others, others_have } in parts {
        let mut cursor = 0;
        loop {
            let mut page = Page::new(keys.reserve_memory(), PAGE, PAGE_BYTES);
            set.scan(keys, cursor, &mut page, |page, place, [member, _]| {
                page.offer(place, Some(member.len()), || member.to_vec())
            })?;
            let (members, next_cursor) = page.found()?;
            for member in members.iter() {
                let mut belongs = true;
                for other in others {
                    belongs = other.has(keys, member)? == others_have;
                    if !belongs {
                        break;
                    }
                }
                if belongs && visit(member)?.is_break() {
                    return Ok(());
                }
            }
            if next_cursor == 0 {
                break;
            }
            cursor = next_cursor;
        }
    }
    Ok(())
}

fn tell(call: &mut Call<'_>, operation: Operation) -> Outcome {
    let reply = &mut *call.reply;
    let (mark, mut told) = (reply.begin(), 0);
    combine(&mut call.keys, operation, &call.arguments[1..], |member| {
        reply.bulk(member);
        told += 1;
        Ok(go_on(reply))
    })?;
    reply.end_set(mark, told);
    Ok(())
}

fn count_intersection(call: &mut Call<'_>) -> Outcome {
    let count = parse_integer(call.arguments[1]).and_then(|count| usize::try_from(count).ok());
    let count = count.filter(|count| *count > 0).ok_or(Failure::text("ERR numkeys should be greater than 0"))?;
    let Some((names, mut options)) = call.arguments[2..].split_at_checked(count) else {
        return Err(Failure::text("ERR Number of keys can't be greater than number of args"));
    };
    let mut limit = 0;
    while let [option, behind @ ..] = options {
        let [value, behind @ ..] = behind else { return Err(texts::SYNTAX) };
        if !option.eq_ignore_ascii_case(b"LIMIT") {
            return Err(texts::SYNTAX);
        }
        let value = parse_integer(value).and_then(|value| u64::try_from(value).ok());
        limit = value.ok_or(Failure::text("ERR LIMIT can't be negative"))?;
        options = behind;
    }
    let mut found = 0;
    combine(&mut call.keys, Operation::Intersection, names, |_| {
        found += 1;
        Ok(if found == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    call.reply.integer(found as i64);
    Ok(())
}

fn store(call: &mut Call<'_>, operation: Operation) -> Outcome {
    let [_, to, names @ ..] = call.arguments else { return Err(texts::SYNTAX) };
    let mut found = BoundedVec::new(call.keys.reserve_memory());
    call.keys.count_lookups(true);
    combine(&mut call.keys, operation, names, |member| Ok(found.add(member.len(), || member.to_vec())))?;
    call.keys.count_lookups(false);
    let found = found.whole()?;
    let mut members = BoundedVec::new(call.keys.reserve_memory());
    let _ = found.iter().try_for_each(|member| members.add(0, || member.as_slice()));
    let members = members.whole()?;
    Set::replace(&mut call.keys, to, &members)?;
    call.reply.integer(members.len() as i64);
    Ok(())
}
