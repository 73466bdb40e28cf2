//! Sets: what clients ask of one of them. How they lie in the store is in
//! [`ecotone_keyspace::collections::named`].

use std::ops::ControlFlow;

use super::entry::plain;
use super::scan::{ScanOptions, parse_cursor, tell_page};
use super::{Answers, Call, Command, Drawing, KeyPositions, Run, flag, go_on};
use crate::protocol::number::parse_integer;
use ecotone_keyspace::collections::named::Set;
use ecotone_keyspace::collections::page::Page;
use ecotone_keyspace::error::{Failure, Outcome, texts};
use ecotone_keyspace::memory::BoundedVec;

const READ_FAST: u32 = flag::READONLY | flag::FAST;
const WRITE_FAST: u32 = flag::WRITE | flag::FAST;

pub(super) const fn command(name: &'static str, arity: i32, flags: u32, since: &'static str, run: Run) -> Command {
    Command { keys: KeyPositions::FIRST, ..plain(name, arity, flags, "set", since, "", run) }
}

/// The family.
pub const COMMANDS: &[Command] = &[
    Command {
        summary: "Adds members. The set is created if it doesn't exist.",
        usage: "key member...",
        complexity: "O(N) where N is the number of members to be added.",
        ..command("sadd", -3, WRITE_FAST | flag::DENYOOM, "1.0.0", add)
    },
    Command {
        summary: "Removes members. The set is deleted with its last one.",
        usage: "key member...",
        complexity: "O(N) where N is the number of members to be removed.",
        ..command("srem", -3, WRITE_FAST, "1.0.0", remove)
    },
    Command {
        summary: "Moves a member from one set to another.",
        usage: "source:key destination:key member",
        keys: KeyPositions::Range { first: 1, last: 2, step: 1 },
        ..command("smove", 4, WRITE_FAST, "1.0.0", move_member)
    },
    Command {
        summary: "Tells whether a member is there.",
        usage: "key member",
        ..command("sismember", 3, READ_FAST, "1.0.0", has)
    },
    Command {
        summary: "Tells of each member whether it is there.",
        usage: "key member...",
        complexity: "O(N) where N is the number of members asked for.",
        // The members of a large set are looked for one by one: all of them before a write of
        // another client, or all after it.
        ..command("smismember", -3, READ_FAST | flag::LATCHES, "6.2.0", has_many)
    },
    Command { summary: "Counts the members.", usage: "key", ..command("scard", 2, READ_FAST, "1.0.0", count) },
    Command {
        summary: "Returns all members.",
        usage: "key",
        complexity: "O(N) where N is the size of the set.",
        ..command("smembers", 2, flag::READONLY, "1.0.0", all)
    },
    Command {
        summary: "Removes members at random and returns them. The set is deleted with its last one.",
        usage: "key [count:integer]@3.2.0",
        complexity: "O(N) where N is the number of members returned.",
        ..command("spop", -2, WRITE_FAST, "1.0.0", pop)
    },
    Command {
        summary: "Returns members at random.",
        usage: "key [count:integer]@2.6.0",
        complexity: "O(N) where N is the number of members returned.",
        ..command("srandmember", -2, flag::READONLY, "1.0.0", random)
    },
    Command {
        summary: "Goes through all members, some at each call.",
        usage: "key cursor:integer [MATCH pattern] [COUNT count:integer]",
        complexity: "O(1) for every call, O(N) for all, where N is the size of the set.",
        ..command("sscan", -3, flag::READONLY, "2.8.0", scan)
    },
];

fn add(call: &mut Call<'_>) -> Outcome {
    let [_, key, members @ ..] = call.arguments else { return Err(texts::SYNTAX) };
    let set = Set::read(&mut call.keys, key)?;
    let added = Set::add(&mut call.keys, key, set.as_ref(), members)?;
    call.reply.integer(added as i64);
    Ok(())
}

fn remove(call: &mut Call<'_>) -> Outcome {
    let [_, key, members @ ..] = call.arguments else { return Err(texts::SYNTAX) };
    let removed = match Set::read(&mut call.keys, key)? {
        Some(set) => set.remove(&mut call.keys, key, members)?,
        None => 0,
    };
    call.reply.integer(removed as i64);
    Ok(())
}

fn move_member(call: &mut Call<'_>) -> Outcome {
    let [_, from, to, member] = *call.arguments else { return Err(texts::SYNTAX) };
    let keys = &mut call.keys;
    let mut moves = false;
    // What the other key holds matters only where there is a set.
    if let Some(source) = Set::read(keys, from)? {
        let destination = Set::read(keys, to)?;
        moves = source.has(keys, member)?;
        if moves && from != to {
            source.remove(keys, from, &[member])?;
            Set::add(keys, to, destination.as_ref(), &[member])?;
        }
    }
    call.reply.integer(moves.into());
    Ok(())
}

fn has(call: &mut Call<'_>) -> Outcome {
    let is_there = match Set::read(&mut call.keys, call.arguments[1])? {
        Some(set) => set.has(&mut call.keys, call.arguments[2])?,
        None => false,
    };
    call.reply.integer(is_there.into());
    Ok(())
}

fn has_many(call: &mut Call<'_>) -> Outcome {
    let members = &call.arguments[2..];
    let set = Set::read(&mut call.keys, call.arguments[1])?;
    call.reply.array(members.len());
    for member in members {
        let is_there = match &set {
            Some(set) => set.has(&mut call.keys, member)?,
            None => false,
        };
        call.reply.integer(is_there.into());
    }
    Ok(())
}

fn count(call: &mut Call<'_>) -> Outcome {
    let count = Set::read(&mut call.keys, call.arguments[1])?.map_or(Ok(0), |set| set.count())?;
    call.reply.integer(count as i64);
    Ok(())
}

fn all(call: &mut Call<'_>) -> Outcome {
    let set = Set::read(&mut call.keys, call.arguments[1])?;
    let reply = &mut *call.reply;
    let (mark, mut members) = (reply.begin(), 0);
    if let Some(set) = set {
        Answers::new(call.service, reply, set.count()?, 1, "members").check(0)?;
        set.visit(&mut call.keys, |[member, _]| {
            reply.bulk(member);
            members += 1;
            go_on(reply)
        })?;
    }
    reply.end_set(mark, members);
    Ok(())
}

fn pop(call: &mut Call<'_>) -> Outcome {
    let [_, key, options @ ..] = call.arguments else { return Err(texts::SYNTAX) };
    let keys = &mut call.keys;
    let count = match options {
        [] => None,
        [count] => {
            let count = parse_integer(count).and_then(|count| usize::try_from(count).ok());
            Some(count.ok_or(texts::OUT_OF_RANGE_POSITIVE)?)
        }
        _ => return Err(texts::SYNTAX),
    };
    let (set, reply) = (Set::read(keys, key)?, &mut *call.reply);
    let (Some(set), 1..) = (set, count.unwrap_or(1)) else {
        match count {
            Some(_) => reply.set(0),
            None => reply.null(),
        }
        return Ok(());
    };
    let (wanted, all) = (count.unwrap_or(1) as u64, set.count()?);
    Answers::new(call.service, reply, wanted.min(all), 1, "members").check(0)?;
    let (mark, mut told) = (reply.begin(), 0);
    let mut tell = |member: &[u8]| {
        reply.bulk(member);
        told += 1;
        if told as u64 == wanted { ControlFlow::Break(()) } else { go_on(reply) }
    };
    if wanted >= all {
        if count.is_some() {
            // Redis reads such a set as a union of one, so it counts as asked for.
            keys.count_as_asked_for();
        }
        // Nothing is kept in memory: all go with their key.
        set.visit(keys, |[member, _]| tell(member))?;
        keys.delete(key)?;
    } else {
        let (set, drawn) = set.draw_to_remove(keys, key, wanted)?;
        let mut members = BoundedVec::new(keys.reserve_memory());
        let _ = drawn.iter().try_for_each(|member| members.add(0, || member.as_slice()));
        set.remove(keys, key, &members.whole()?)?;
        let _ = drawn.iter().try_for_each(|member| tell(member));
    }
    match count {
        Some(_) => reply.end_set(mark, told),
        // What is stored may be damaged.
        None if told == 0 => reply.null(),
        None => {}
    }
    Ok(())
}

fn random(call: &mut Call<'_>) -> Outcome {
    let [_, key, options @ ..] = call.arguments else { return Err(texts::SYNTAX) };
    let count = match options {
        [] => return random_one(call),
        [count] => parse_integer(count).ok_or(texts::NOT_AN_INTEGER)?,
        _ => return Err(texts::SYNTAX),
    };
    if count == i64::MIN {
        let (least, most) = (-i64::MAX, i64::MAX);
        return Err(Failure::with(format!("ERR value is out of range, value must between {least} and {most}")));
    }
    let set = Set::read(&mut call.keys, key)?;
    let reply = &mut *call.reply;
    let (mark, mut told) = (reply.begin(), 0);
    match set {
        Some(set) if count < 0 => {
            let answers = Answers::new(call.service, reply, count.unsigned_abs(), 1, "members");
            answers.check(0)?;
            let mut drawing = Drawing::begin(answers, &call.keys, reply);
            let check = |bytes| answers.check(bytes);
            set.draw(&mut call.keys, key, count.unsigned_abs(), false, check, |[member, _]| {
                reply.bulk(member);
                told += 1;
                drawing.go_on(reply)
            })?;
            drawing.end(reply)?;
        }
        Some(set) if count > 0 => {
            let number = count.unsigned_abs().min(set.count()?);
            Answers::new(call.service, reply, number, 1, "members").check(0)?;
            set.draw_different(&mut call.keys, key, count.unsigned_abs(), false, |[member, _]| {
                reply.bulk(member);
                told += 1;
                go_on(reply)
            })?;
        }
        _ => {}
    }
    reply.end_array(mark, told);
    Ok(())
}

fn random_one(call: &mut Call<'_>) -> Outcome {
    let mut drawn = None;
    if let Some(set) = Set::read(&mut call.keys, call.arguments[1])? {
        set.draw(
            &mut call.keys,
            call.arguments[1],
            1,
            false,
            |_| Ok(()),
            |[member, _]| {
                drawn = Some(member.to_vec());
                ControlFlow::Break(())
            },
        )?;
    }
    match drawn {
        Some(member) => call.reply.bulk(&member),
        None => call.reply.null(),
    }
    Ok(())
}

fn scan(call: &mut Call<'_>) -> Outcome {
    let cursor = parse_cursor(call.arguments[2])?;
    let reply_bytes = call.reply.bytes_left();
    let mut page = Page::for_reply(call.keys.reserve_memory(), usize::MAX, reply_bytes);
    // Wrong options are an error only where there is a set.
    if let Some(set) = Set::read(&mut call.keys, call.arguments[1])? {
        let may_take_long = call.keys.may_take_long();
        let options = ScanOptions::parse(&call.arguments[3..], false, may_take_long)?;
        page = Page::for_reply(call.keys.reserve_memory(), options.count, reply_bytes);
        set.scan(&mut call.keys, cursor, &mut page, |page, place, [member, _]| {
            options.offer(page, place, (member, member.len()), may_take_long, || member.to_vec())
        })?;
    }
    tell_page(call.reply, page, 1, |reply, member| reply.bulk(member))
}
