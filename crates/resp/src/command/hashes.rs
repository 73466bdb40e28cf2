//! Hashes: what clients ask of them. How they lie in the store is in
//! [`ecotone_keyspace::collections::named`].

use std::ops::ControlFlow;

use super::entry::plain;
use super::scan::{ScanOptions, parse_cursor, tell_page};
use super::{Answers, Call, Command, Deprecation, Drawing, KeyPositions, Run, flag, go_on};
use crate::protocol::extended::{DecimalError, add_decimals};
use crate::protocol::number::parse_integer;
use crate::protocol::reply::{Reply, Version};
use ecotone_keyspace::collections::by_hash::Pair;
use ecotone_keyspace::collections::named::Hash;
use ecotone_keyspace::collections::page::Page;
use ecotone_keyspace::error::{Failure, Outcome, texts};

const READ: u32 = flag::READONLY;
const READ_FAST: u32 = flag::READONLY | flag::FAST;
const GROW_FAST: u32 = flag::WRITE | flag::DENYOOM | flag::FAST;

const fn command(name: &'static str, arity: i32, flags: u32, since: &'static str, run: Run) -> Command {
    Command { keys: KeyPositions::FIRST, ..plain(name, arity, flags, "hash", since, "", run) }
}

/// The family.
pub const COMMANDS: &[Command] = &[
    Command {
        summary: "Sets the values of fields. The hash is created if it doesn't exist.",
        usage: "key (data: field value)...",
        complexity: "O(N) where N is the number of fields.",
        ..command("hset", -4, GROW_FAST, "2.0.0", |call| set(call, |reply, created| reply.integer(created as i64)))
    },
    Command {
        summary: "Sets the values of fields. The hash is created if it doesn't exist.",
        usage: "key (data: field value)...",
        deprecated: Some(Deprecation { since: "4.0.0", instead: "`HSET key (field value)...`" }),
        complexity: "O(N) where N is the number of fields.",
        ..command("hmset", -4, GROW_FAST, "2.0.0", |call| set(call, |reply, _| reply.simple("OK")))
    },
    Command {
        summary: "Sets the value of a field, only if it is not there.",
        usage: "key field value",
        ..command("hsetnx", 4, GROW_FAST, "2.0.0", set_new)
    },
    Command {
        summary: "Returns the value of a field.",
        usage: "key field",
        ..command("hget", 3, READ_FAST, "2.0.0", get)
    },
    Command {
        summary: "Returns the values of fields.",
        usage: "key field...",
        complexity: "O(N) where N is the number of fields.",
        // The fields of a large hash are read one by one: all of them before a write of another
        // client, or all after it.
        ..command("hmget", -3, READ_FAST | flag::LATCHES, "2.0.0", get_many)
    },
    Command {
        summary: "Returns all fields with their values.",
        usage: "key",
        complexity: "O(N) where N is the size of the hash.",
        ..command("hgetall", 2, READ, "2.0.0", get_all)
    },
    Command {
        summary: "Deletes fields. The hash is deleted with its last one.",
        usage: "key field...",
        complexity: "O(N) where N is the number of fields to be deleted.",
        ..command("hdel", -3, flag::WRITE | flag::FAST, "2.0.0", delete)
    },
    Command {
        summary: "Tells whether a field is there.",
        usage: "key field",
        ..command("hexists", 3, READ_FAST, "2.0.0", exists)
    },
    Command { summary: "Counts the fields.", usage: "key", ..command("hlen", 2, READ_FAST, "2.0.0", count) },
    Command {
        summary: "Returns all fields.",
        usage: "key",
        complexity: "O(N) where N is the size of the hash.",
        ..command("hkeys", 2, READ, "2.0.0", |call| list(call, |[field, _]| field))
    },
    Command {
        summary: "Returns all values.",
        usage: "key",
        complexity: "O(N) where N is the size of the hash.",
        ..command("hvals", 2, READ, "2.0.0", |call| list(call, |[_, value]| value))
    },
    Command {
        summary: "Returns the length of a value.",
        usage: "key field",
        ..command("hstrlen", 3, READ_FAST, "3.2.0", length)
    },
    Command {
        summary: "Adds a whole number to the number in a field; 0 if it doesn't exist.",
        usage: "key field increment:integer",
        ..command("hincrby", 4, GROW_FAST, "2.0.0", add)
    },
    Command {
        summary: "Adds a floating-point number to the number in a field; 0 if it doesn't exist.",
        usage: "key field increment:double",
        ..command("hincrbyfloat", 4, GROW_FAST, "2.6.0", add_decimal)
    },
    Command {
        summary: "Goes through all fields and their values, some at each call.",
        usage: "key cursor:integer [MATCH pattern] [COUNT count:integer]",
        complexity: "O(1) for every call, O(N) for all, where N is the size of the hash.",
        ..command("hscan", -3, READ, "2.8.0", scan)
    },
    Command {
        summary: "Returns fields at random.",
        usage: "key [options: count:integer [WITHVALUES]]",
        complexity: "O(N) where N is the number of fields returned.",
        ..command("hrandfield", -2, READ, "6.2.0", random)
    },
];

fn reply_value(reply: &mut Reply, value: Option<&[u8]>) {
    match value {
        Some(value) => reply.bulk(value),
        None => reply.null(),
    }
}

fn set(call: &mut Call<'_>, tell: fn(&mut Reply, u64)) -> Outcome {
    let (pairs, rest) = call.arguments[2..].as_chunks::<2>();
    if !rest.is_empty() {
        return Err(Failure::with(format!("ERR wrong number of arguments for '{}' command", call.command.name)));
    }
    let hash = Hash::read(&mut call.keys, call.arguments[1])?;
    let created = Hash::put(&mut call.keys, call.arguments[1], hash.as_ref(), pairs.iter().copied())?;
    tell(call.reply, created);
    Ok(())
}

fn set_new(call: &mut Call<'_>) -> Outcome {
    let [_, key, field, value] = *call.arguments else { return Err(texts::SYNTAX) };
    let hash = Hash::read(&mut call.keys, key)?;
    let sets = match &hash {
        Some(hash) => !hash.has(&mut call.keys, field)?,
        None => true,
    };
    if sets {
        Hash::put(&mut call.keys, key, hash.as_ref(), [[field, value]])?;
    }
    call.reply.integer(sets.into());
    Ok(())
}

/// Replies what `tell` makes of the value of a field.
fn tell_value(call: &mut Call<'_>, tell: impl FnOnce(&mut Reply, Option<&[u8]>)) -> Outcome {
    let reply = &mut *call.reply;
    match Hash::read(&mut call.keys, call.arguments[1])? {
        Some(hash) => hash.value(&mut call.keys, call.arguments[2], |value| tell(reply, value)),
        None => {
            tell(reply, None);
            Ok(())
        }
    }
}

fn get(call: &mut Call<'_>) -> Outcome {
    tell_value(call, reply_value)
}

fn length(call: &mut Call<'_>) -> Outcome {
    tell_value(call, |reply, value| reply.integer(value.map_or(0, <[u8]>::len) as i64))
}

fn exists(call: &mut Call<'_>) -> Outcome {
    let is_there = match Hash::read(&mut call.keys, call.arguments[1])? {
        Some(hash) => hash.has(&mut call.keys, call.arguments[2])?,
        None => false,
    };
    call.reply.integer(is_there.into());
    Ok(())
}

fn count(call: &mut Call<'_>) -> Outcome {
    let count = Hash::read(&mut call.keys, call.arguments[1])?.map_or(Ok(0), |hash| hash.count())?;
    call.reply.integer(count as i64);
    Ok(())
}

fn get_many(call: &mut Call<'_>) -> Outcome {
    let fields = &call.arguments[2..];
    let hash = Hash::read(&mut call.keys, call.arguments[1])?;
    let reply = &mut *call.reply;
    reply.array(fields.len());
    for field in fields {
        match &hash {
            Some(hash) => hash.value(&mut call.keys, field, |value| reply_value(reply, value))?,
            None => reply.null(),
        }
        if reply.is_over() {
            break;
        }
    }
    Ok(())
}

fn get_all(call: &mut Call<'_>) -> Outcome {
    let hash = Hash::read(&mut call.keys, call.arguments[1])?;
    let reply = &mut *call.reply;
    let (mark, mut pairs) = (reply.begin(), 0);
    if let Some(hash) = hash {
        Answers::new(call.service, reply, hash.count()?, 2, "fields").check(0)?;
        hash.visit(&mut call.keys, |pair| {
            pair.into_iter().for_each(|item| reply.bulk(item));
            pairs += 1;
            go_on(reply)
        })?;
    }
    reply.end_map(mark, pairs);
    Ok(())
}

fn list(call: &mut Call<'_>, part: for<'p> fn(Pair<'p>) -> &'p [u8]) -> Outcome {
    let hash = Hash::read(&mut call.keys, call.arguments[1])?;
    let reply = &mut *call.reply;
    let (mark, mut items) = (reply.begin(), 0);
    if let Some(hash) = hash {
        Answers::new(call.service, reply, hash.count()?, 1, "fields").check(0)?;
        hash.visit(&mut call.keys, |pair| {
            reply.bulk(part(pair));
            items += 1;
            go_on(reply)
        })?;
    }
    reply.end_array(mark, items);
    Ok(())
}

fn delete(call: &mut Call<'_>) -> Outcome {
    let [_, key, fields @ ..] = call.arguments else { return Err(texts::SYNTAX) };
    let deleted = match Hash::read(&mut call.keys, key)? {
        Some(hash) => hash.remove(&mut call.keys, key, fields)?,
        None => 0,
    };
    call.reply.integer(deleted as i64);
    Ok(())
}

/// Sets a field to what `add` makes of its value, replies that with `tell`.
fn change<T: ToString>(
    call: &mut Call<'_>,
    add: impl FnOnce(Option<&[u8]>) -> Outcome<T>,
    tell: impl FnOnce(&mut Reply, T),
) -> Outcome {
    let (key, field) = (call.arguments[1], call.arguments[2]);
    let hash = Hash::read(&mut call.keys, key)?;
    let sum = match &hash {
        Some(hash) => hash.value(&mut call.keys, field, add)?,
        None => add(None),
    }?;
    Hash::put(&mut call.keys, key, hash.as_ref(), [[field, sum.to_string().as_bytes()]])?;
    tell(call.reply, sum);
    Ok(())
}

fn add(call: &mut Call<'_>) -> Outcome {
    let by = parse_integer(call.arguments[3]).ok_or(texts::NOT_AN_INTEGER)?;
    let add = |value: Option<&[u8]>| {
        let not_a_number = Failure::text("ERR hash value is not an integer");
        let number = value.map_or(Some(0), parse_integer).ok_or(not_a_number)?;
        number.checked_add(by).ok_or(texts::OVERFLOW)
    };
    change(call, add, Reply::integer)
}

fn add_decimal(call: &mut Call<'_>) -> Outcome {
    let by = call.arguments[3];
    // The increment is checked before the key.
    add_decimals(b"0", by).map_err(refuse_decimal)?;
    let add = |value: Option<&[u8]>| add_decimals(value.unwrap_or(b"0"), by).map_err(refuse_decimal);
    change(call, add, |reply, sum| reply.bulk_text(&sum))
}

fn refuse_decimal(error: DecimalError) -> Failure {
    match error {
        DecimalError::Value => Failure::text("ERR hash value is not a float"),
        DecimalError::Increment => texts::NOT_A_FLOAT,
        DecimalError::InfiniteIncrement => Failure::text("ERR value is NaN or Infinity"),
        DecimalError::InfiniteSum => Failure::text("ERR increment would produce NaN or Infinity"),
    }
}

fn scan(call: &mut Call<'_>) -> Outcome {
    let cursor = parse_cursor(call.arguments[2])?;
    let reply_bytes = call.reply.bytes_left();
    let mut page = Page::for_reply(call.keys.reserve_memory(), usize::MAX, reply_bytes);
    // Wrong options are an error only where there is a hash.
    if let Some(hash) = Hash::read(&mut call.keys, call.arguments[1])? {
        let may_take_long = call.keys.may_take_long();
        let options = ScanOptions::parse(&call.arguments[3..], false, may_take_long)?;
        page = Page::for_reply(call.keys.reserve_memory(), options.count, reply_bytes);
        hash.scan(&mut call.keys, cursor, &mut page, |page, place, [field, value]| {
            let sized = (field, field.len() + value.len());
            options.offer(page, place, sized, may_take_long, || [field.to_vec(), value.to_vec()])
        })?;
    }
    tell_page(call.reply, page, 2, |reply, pair| pair.iter().for_each(|item| reply.bulk(item)))
}

fn random(call: &mut Call<'_>) -> Outcome {
    let [_, key, options @ ..] = call.arguments else { return Err(texts::SYNTAX) };
    let [count, options @ ..] = options else { return random_one(call) };
    let count = parse_integer(count).ok_or(texts::NOT_AN_INTEGER)?;
    if count == i64::MIN {
        let (least, most) = (-i64::MAX, i64::MAX);
        return Err(Failure::with(format!("ERR value is out of range, value must between {least} and {most}")));
    }
    let with_values = match options {
        [] => false,
        [option] if option.eq_ignore_ascii_case(b"WITHVALUES") => true,
        _ => return Err(texts::SYNTAX),
    };
    if with_values && count.unsigned_abs() > i64::MAX.unsigned_abs() / 2 {
        return Err(Failure::text("ERR value is out of range"));
    }
    let hash = Hash::read(&mut call.keys, key)?;
    let reply = &mut *call.reply;
    let strings = 1 + usize::from(with_values);
    let (mark, mut told) = (reply.begin(), 0);
    match hash {
        Some(hash) if count < 0 => {
            let answers = Answers::new(call.service, reply, count.unsigned_abs(), strings, "fields");
            answers.check(0)?;
            let mut drawing = Drawing::begin(answers, &call.keys, reply);
            let check = |bytes| answers.check(bytes);
            hash.draw(&mut call.keys, key, count.unsigned_abs(), with_values, check, |pair| {
                told += tell_drawn(reply, pair, with_values);
                drawing.go_on(reply)
            })?;
            drawing.end(reply)?;
        }
        Some(hash) if count > 0 => {
            let number = count.unsigned_abs().min(hash.count()?);
            Answers::new(call.service, reply, number, strings, "fields").check(0)?;
            hash.draw_different(&mut call.keys, key, count.unsigned_abs(), with_values, |pair| {
                told += tell_drawn(reply, pair, with_values);
                go_on(reply)
            })?;
        }
        _ => {}
    }
    reply.end_array(mark, told);
    Ok(())
}

/// Replies a field that was drawn; returns as how many elements.
fn tell_drawn(reply: &mut Reply, [field, value]: Pair<'_>, with_values: bool) -> usize {
    if !with_values {
        reply.bulk(field);
        return 1;
    }
    let is_pair = reply.version() == Version::Resp3;
    if is_pair {
        reply.array(2);
    }
    reply.bulk(field);
    reply.bulk(value);
    if is_pair { 1 } else { 2 }
}

fn random_one(call: &mut Call<'_>) -> Outcome {
    let mut drawn = None;
    if let Some(hash) = Hash::read(&mut call.keys, call.arguments[1])? {
        hash.draw(
            &mut call.keys,
            call.arguments[1],
            1,
            false,
            |_| Ok(()),
            |[field, _]| {
                drawn = Some(field.to_vec());
                ControlFlow::Break(())
            },
        )?;
    }
    reply_value(call.reply, drawn.as_deref());
    Ok(())
}
