//! Intersections, unions and differences of sets.
//!
//! All three are one thing: members of some of the sets are gone through, and each is looked for in others. An intersection is the smallest
//! set as far as all others have it; a difference the first set as far as no other has it; a union each set as far as none before
//! it has it. So nothing is kept in memory but the result.
//!
//! Invariant: the latches of all keys are held, so that all sets are of one moment.

use std::ops::ControlFlow;

use super::sets::command;
use super::{Call, Command, KeyPositions, flag};
use crate::collections::named::Room;
use crate::collections::set::{Members, Set};
use crate::error::{Failure, Outcome, texts};
use crate::keyspace::Keys;
use crate::protocol::number::parse_integer;

/// Looks at members on behalf of one client while others wait for the thread.
const MOST_LOOKS_AT_ONCE: u64 = 1000;

/// Members that are read before they are looked for in other sets.
const PAGE: usize = 500;

const READ: u32 = flag::READONLY | flag::LATCHES;
const STORE: u32 = flag::WRITE | flag::DENYOOM;

/// The family.
pub const COMMANDS: &[Command] = &[
    Command {
        summary: "Returns the members that all of several sets have.",
        complexity: "O(N*M) where N is the size of the smallest set and M the number of sets.",
        keys: KeyPositions::ALL,
        ..command("sinter", -2, READ, "1.0.0", |call| tell(call, Operation::Intersection))
    },
    Command {
        summary: "Counts the members that all of several sets have.",
        complexity: "O(N*M) where N is the size of the smallest set and M the number of sets.",
        keys: KeyPositions::Counted { count: 1, also: 0 },
        ..command("sintercard", -3, READ | flag::MOVABLE_KEYS, "7.0.0", count_intersection)
    },
    Command {
        summary: "Stores the members that all of several sets have.",
        complexity: "O(N*M) where N is the size of the smallest set and M the number of sets.",
        keys: KeyPositions::ALL,
        ..command("sinterstore", -3, STORE, "1.0.0", |call| store(call, Operation::Intersection))
    },
    Command {
        summary: "Returns the members that any of several sets has.",
        complexity: "O(N*M) where N is the size of all sets and M their number.",
        keys: KeyPositions::ALL,
        ..command("sunion", -2, READ, "1.0.0", |call| tell(call, Operation::Union))
    },
    Command {
        summary: "Stores the members that any of several sets has.",
        complexity: "O(N*M) where N is the size of all sets and M their number.",
        keys: KeyPositions::ALL,
        ..command("sunionstore", -3, STORE, "1.0.0", |call| store(call, Operation::Union))
    },
    Command {
        summary: "Returns the members of the first set that no other set has.",
        complexity: "O(N*M) where N is the size of the first set and M the number of sets.",
        keys: KeyPositions::ALL,
        ..command("sdiff", -2, READ, "1.0.0", |call| tell(call, Operation::Difference))
    },
    Command {
        summary: "Stores the members of the first set that no other set has.",
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

/// A set whose members are gone through: those belong to the result that all, or none, of `others` have.
struct Part<'s, 'c> {
    set: &'s Set<'c>,
    others: Vec<&'s Set<'c>>,
    others_have: bool,
}

fn parts<'s, 'c>(operation: Operation, sets: &'s [Option<Set<'c>>]) -> Outcome<Vec<Part<'s, 'c>>> {
    let there: Vec<&Set<'c>> = sets.iter().flatten().collect();
    let mut parts = Vec::new();
    match operation {
        Operation::Intersection if there.len() < sets.len() => {}
        Operation::Intersection => {
            let mut smallest: Option<(usize, u64)> = None;
            for (index, set) in there.iter().enumerate() {
                let count = set.count()?;
                if smallest.is_none_or(|(_, least)| count < least) {
                    smallest = Some((index, count));
                }
            }
            if let Some((index, _)) = smallest {
                let mut others = there;
                let set = others.remove(index);
                parts.push(Part { set, others, others_have: true });
            }
        }
        Operation::Difference => {
            if let [Some(set), others @ ..] = sets {
                parts.push(Part { set, others: others.iter().flatten().collect(), others_have: false });
            }
        }
        Operation::Union => {
            for (index, set) in there.iter().enumerate() {
                parts.push(Part { set, others: there[..index].to_vec(), others_have: false });
            }
        }
    }
    Ok(parts)
}

/// Shows `visit` the members of the result, each once, until it breaks.
fn combine<'c>(
    keys: &mut Keys<'c>,
    operation: Operation,
    names: &[&[u8]],
    mut visit: impl FnMut(&[u8]) -> Outcome<ControlFlow<()>>,
) -> Outcome {
    let sets = names.iter().map(|name| Set::read(keys, name)).collect::<Outcome<Vec<Option<Set<'c>>>>>()?;
    let parts = parts(operation, &sets)?;
    if !keys.may_take_long() {
        let mut looks: u64 = 0;
        for part in &parts {
            looks = looks.saturating_add(part.set.count()?.saturating_mul(1 + part.others.len() as u64));
        }
        if looks > MOST_LOOKS_AT_ONCE {
            return Err(Failure::MustWait);
        }
    }
    for Part { set, others, others_have } in parts {
        let (mut cursor, mut page) = (0, Vec::new());
        loop {
            cursor = set.scan(keys, cursor, PAGE, |[member, _]| page.push(member.to_vec()))?;
            for member in page.drain(..) {
                let mut belongs = true;
                for other in &others {
                    belongs = other.has(keys, &member)? == others_have;
                    if !belongs {
                        break;
                    }
                }
                if belongs && visit(&member)?.is_break() {
                    return Ok(());
                }
            }
            if cursor == 0 {
                break;
            }
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
        Ok(ControlFlow::Continue(()))
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
    let mut room = Room::of::<Members>(&call.keys);
    let mut members: Vec<Vec<u8>> = Vec::new();
    combine(&mut call.keys, operation, names, |member| {
        room.take(member)?;
        members.push(member.to_vec());
        Ok(ControlFlow::Continue(()))
    })?;
    let members: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
    Set::replace(&mut call.keys, to, &members)?;
    call.reply.integer(members.len() as i64);
    Ok(())
}
