//! Sorted sets by their members: ZADD, ZINCRBY, ZREM, ZSCORE, ZMSCORE, ZCARD, ZRANK, ZREVRANK,
//! ZPOPMIN, ZPOPMAX, ZSCAN.
//!
//! Ranges of them are in [`super::sorted_set_ranges`], random members in
//! [`super::sorted_set_random`]. What is stored is in
//! [`ecotone_keyspace::collections::sorted_set`].

use std::ops::ControlFlow;

use ecotone_engine::Direction;

use super::entry::plain;
use super::scan::{ScanOptions, parse_cursor, tell_page};
use super::{Answers, Call, Command, KeyPositions, Run, flag, word};
use crate::protocol::number::{format_double, parse_double, parse_integer};
use crate::protocol::reply::{Reply, Version};
use ecotone_keyspace::collections::page::{Page, ScanPosition};
use ecotone_keyspace::collections::sorted_set::{Member, SortedSet, score};
use ecotone_keyspace::error::{Failure, Outcome, texts};
use ecotone_keyspace::memory::BoundedVec;

pub(super) const fn command(name: &'static str, arity: i32, flags: u32, since: &'static str, run: Run) -> Command {
    Command { keys: KeyPositions::FIRST, ..plain(name, arity, flags, "sorted-set", since, "", run) }
}

const GROW: u32 = flag::WRITE | flag::DENYOOM | flag::FAST;
const SHRINK: u32 = flag::WRITE | flag::FAST;
const READ: u32 = flag::READONLY | flag::FAST;
const RANKED: u32 = READ | flag::LATCHES | flag::COUNTS_RANKS;

const RANK: &str = "O(log(N)) where N is the number of all members; O(N) where N is the rank, from the nearer end, and nobody has counted before.";
const POP: &str = "O(M) where M is the number of members that are removed.";

/// The family.
pub const COMMANDS: &[Command] = &[
    Command {
        summary: "Adds members to a sorted set, or changes their scores. The key is created if it doesn't exist.",
        usage: "key [condition: NX | XX]@3.0.2 [comparison: GT | LT]@6.2.0 \
                [change: CH]@3.0.2 [increment: INCR]@3.0.2 (data: score:double member)...",
        complexity: "O(1) for each member.",
        ..command("zadd", -4, GROW, "1.2.0", |call| add(call, false))
    },
    Command {
        summary: "Adds to the score of a member of a sorted set; 0 if it is not there.",
        usage: "key increment:integer member",
        ..command("zincrby", 4, GROW, "1.2.0", |call| add(call, true))
    },
    Command {
        summary: "Removes members from a sorted set. The key is deleted with the last one.",
        usage: "key member...",
        complexity: "O(1) for each member.",
        ..command("zrem", -3, SHRINK, "1.2.0", remove)
    },
    Command {
        summary: "Returns the score of a member of a sorted set.",
        usage: "key member",
        ..command("zscore", 3, READ, "1.2.0", tell_score)
    },
    Command {
        summary: "Returns the scores of members of a sorted set.",
        usage: "key member...",
        complexity: "O(N) where N is the number of members that are asked for.",
        ..command("zmscore", -3, READ | flag::LATCHES, "6.2.0", tell_scores)
    },
    Command {
        summary: "Counts the members of a sorted set.",
        usage: "key",
        ..command("zcard", 2, READ, "1.2.0", count)
    },
    Command {
        summary: "Returns how many members of a sorted set come before one.",
        usage: "key member [WITHSCORE]",
        complexity: RANK,
        ..command("zrank", -3, RANKED, "2.0.0", |call| rank(call, Direction::Forward))
    },
    Command {
        summary: "Returns how many members of a sorted set come after one.",
        usage: "key member [WITHSCORE]",
        complexity: RANK,
        ..command("zrevrank", -3, RANKED, "2.0.0", |call| rank(call, Direction::Reverse))
    },
    Command {
        summary: "Removes the members with the lowest scores from a sorted set and returns them.",
        usage: "key [count:integer]",
        complexity: POP,
        ..command("zpopmin", -2, SHRINK, "5.0.0", |call| pop(call, Direction::Forward))
    },
    Command {
        summary: "Removes the members with the highest scores from a sorted set and returns them.",
        usage: "key [count:integer]",
        complexity: POP,
        ..command("zpopmax", -2, SHRINK, "5.0.0", |call| pop(call, Direction::Reverse))
    },
    Command {
        summary: "Goes through all members of a sorted set, some at each call.",
        usage: "key cursor:integer [MATCH pattern] [COUNT count:integer]",
        complexity: "O(1) for every call, O(N) for all, where N is the number of members.",
        ..command("zscan", -3, flag::READONLY, "2.8.0", scan)
    },
];

/// A member, and its score behind it where one is given: as a pair in RESP3.
pub(super) fn reply_member(reply: &mut Reply, name: &[u8], score: Option<f64>) {
    if score.is_some() && reply.version() == Version::Resp3 {
        reply.array(2);
    }
    reply.bulk(name);
    if let Some(score) = score {
        reply.double(score);
    }
}

/// How many answers an array of `members` has that were given by [`reply_member`].
pub(super) fn answers(reply: &Reply, members: usize, with_scores: bool) -> usize {
    if with_scores && reply.version() == Version::Resp2 { 2 * members } else { members }
}

fn reply_score(reply: &mut Reply, score: Option<f64>) {
    match score {
        Some(score) => reply.double(score),
        None => reply.null(),
    }
}

/// What `ZADD` was asked to do besides.
#[derive(Debug, Default)]
struct Options {
    only_new: bool,
    only_old: bool,
    only_greater: bool,
    only_less: bool,
    counts_changed: bool,
    increments: bool,
}

impl Options {
    /// Reads the options before the scores; the rest are scores and members.
    fn parse<'a, 'b>(arguments: &'b [&'a [u8]], increments: bool) -> Outcome<(Self, &'b [[&'a [u8]; 2]])> {
        let mut options = Self { increments, ..Self::default() };
        let mut rest = arguments;
        while let [option, behind @ ..] = rest {
            match word::upper(option).as_slice() {
                b"NX" => options.only_new = true,
                b"XX" => options.only_old = true,
                b"GT" => options.only_greater = true,
                b"LT" => options.only_less = true,
                b"CH" => options.counts_changed = true,
                b"INCR" => options.increments = true,
                _ => break,
            }
            rest = behind;
        }
        let (pairs, []) = rest.as_chunks::<2>() else { return Err(texts::SYNTAX) };
        if pairs.is_empty() {
            return Err(texts::SYNTAX);
        }
        if options.only_new && options.only_old {
            return Err(Failure::text("ERR XX and NX options at the same time are not compatible"));
        }
        if u8::from(options.only_new) + u8::from(options.only_greater) + u8::from(options.only_less) > 1 {
            return Err(Failure::text("ERR GT, LT, and/or NX options at the same time are not compatible"));
        }
        if options.increments && pairs.len() > 1 {
            return Err(Failure::text("ERR INCR option supports a single increment-element pair"));
        }
        Ok((options, pairs))
    }

    /// The score of a member that had `old` and was given `score`; `None` where it stays as it is.
    fn apply(&self, old: Option<f64>, score: f64) -> Outcome<Option<f64>> {
        let Some(old) = old else { return Ok((!self.only_old).then_some(score)) };
        if self.only_new {
            return Ok(None);
        }
        let score = if self.increments { old + score } else { score };
        if score.is_nan() {
            return Err(Failure::text("ERR resulting score is not a number (NaN)"));
        }
        let stays = self.only_less && score >= old || self.only_greater && score <= old;
        Ok((!stays).then_some(score))
    }
}

fn add(call: &mut Call<'_>, increments: bool) -> Outcome {
    let (options, pairs) = Options::parse(&call.arguments[2..], increments)?;
    let scores: Option<Vec<f64>> = pairs.iter().map(|[score, _]| parse_double(score)).collect();
    let scores = scores.ok_or(texts::NOT_A_FLOAT)?;
    let key = call.arguments[1];
    let found = SortedSet::find(&mut call.keys, key)?;
    let mut set = found.unwrap_or_else(|| SortedSet::new(key));
    let (mut added, mut moved, mut result) = (0, 0, None);
    for ([_, member], score) in pairs.iter().zip(scores) {
        let old = set.score(&mut call.keys, member)?;
        result = options.apply(old, score)?;
        if let Some(score) = result
            && old != Some(score)
        {
            set.put(&mut call.keys, member, score, old)?;
            *if old.is_none() { &mut added } else { &mut moved } += 1;
        }
    }
    if added + moved > 0 {
        set.save(&mut call.keys)?;
    }
    if options.increments {
        reply_score(call.reply, result);
    } else {
        call.reply.integer(if options.counts_changed { added + moved } else { added });
    }
    Ok(())
}

fn remove(call: &mut Call<'_>) -> Outcome {
    let mut removed = 0;
    if let Some(mut set) = SortedSet::find(&mut call.keys, call.arguments[1])? {
        for member in &call.arguments[2..] {
            if let Some(score) = set.score(&mut call.keys, member)? {
                set.remove(&mut call.keys, member, score);
                removed += 1;
            }
        }
        if removed > 0 {
            set.save(&mut call.keys)?;
        }
    }
    call.reply.integer(removed);
    Ok(())
}

fn tell_score(call: &mut Call<'_>) -> Outcome {
    let set = SortedSet::find(&mut call.keys, call.arguments[1])?;
    let score = set.map_or(Ok(None), |set| set.score(&mut call.keys, call.arguments[2]))?;
    reply_score(call.reply, score);
    Ok(())
}

fn tell_scores(call: &mut Call<'_>) -> Outcome {
    let set = SortedSet::find(&mut call.keys, call.arguments[1])?;
    let members = &call.arguments[2..];
    call.reply.array(members.len());
    for member in members {
        let score = set.as_ref().map_or(Ok(None), |set| set.score(&mut call.keys, member))?;
        reply_score(call.reply, score);
    }
    Ok(())
}

fn count(call: &mut Call<'_>) -> Outcome {
    let members = SortedSet::find(&mut call.keys, call.arguments[1])?.map_or(0, |set| set.len());
    call.reply.integer(members as i64);
    Ok(())
}

fn rank(call: &mut Call<'_>, direction: Direction) -> Outcome {
    let member = call.arguments[2];
    let with_score = match call.arguments[3..] {
        [] => false,
        [option] if option.eq_ignore_ascii_case(b"WITHSCORE") => true,
        [_] => return Err(texts::SYNTAX),
        _ => return Err(Failure::with(format!("ERR wrong number of arguments for '{}' command", call.command.name))),
    };
    let set = SortedSet::find(&mut call.keys, call.arguments[1])?;
    let score = set.as_ref().map_or(Ok(None), |set| set.score(&mut call.keys, member))?;
    let (Some(set), Some(score)) = (set, score) else {
        if with_score {
            call.reply.null_array()
        } else {
            call.reply.null()
        }
        return Ok(());
    };
    let rank = set.rank(&mut call.keys, &Member { score, name: member.to_vec() })?;
    let rank = if direction == Direction::Forward { rank } else { (set.len() - 1).saturating_sub(rank) };
    if with_score {
        call.reply.array(2);
    }
    call.reply.integer(rank as i64);
    if with_score {
        call.reply.double(score);
    }
    Ok(())
}

fn pop(call: &mut Call<'_>, direction: Direction) -> Outcome {
    let count = match &call.arguments[2..] {
        [] => None,
        [count] => {
            let count = parse_integer(count).and_then(|count| u64::try_from(count).ok());
            Some(count.ok_or(texts::OUT_OF_RANGE_POSITIVE)?)
        }
        _ => return Err(texts::SYNTAX),
    };
    let set = SortedSet::find(&mut call.keys, call.arguments[1])?;
    let (Some(set), 1..) = (set, count.unwrap_or(1)) else {
        call.reply.array(0);
        return Ok(());
    };
    let mut popped = BoundedVec::new(call.keys.reserve_memory());
    let most = count.unwrap_or(1);
    Answers::new(call.service, call.reply, most.min(set.len()), 2, "members").check(0)?;
    set.visit_ranks(&mut call.keys, 0, most, direction, |score, name| {
        popped.add(name.len(), || Member { score, name: name.to_vec() })
    })?;
    let popped = popped.whole()?;
    if let Some(last) = popped.last() {
        let all = score::all();
        let range = match direction {
            Direction::Forward => all.start..last.behind(),
            Direction::Reverse => last.place()..all.end,
        };
        set.remove_and_save(&mut call.keys, &popped, &range)?;
    }
    // One that was not counted is no array of pairs, in RESP3 neither.
    if count.is_none() {
        call.reply.array(2 * popped.len());
        for member in popped.iter() {
            call.reply.bulk(&member.name);
            call.reply.double(member.score);
        }
    } else {
        call.reply.array(answers(call.reply, popped.len(), true));
        popped.iter().for_each(|member| reply_member(call.reply, &member.name, Some(member.score)));
    }
    Ok(())
}

/// What a score takes as text, about.
const SCANNED_SCORE_BYTES: usize = 48;

/// A score as `ZSCAN` replies it for a small set: Redis keeps whole numbers up to 2⁶² in such sets
/// as integers, and shows all their digits.
fn scanned_score(score: f64) -> String {
    const MAX: f64 = (1_u64 << 62) as f64;
    if score.trunc() == score && score.abs() <= MAX {
        (score as i64).to_string()
    } else {
        format_double(score).to_string()
    }
}

/// The cursor is the hash of the next member. Members of one hash are returned together, a small
/// set whole.
fn scan(call: &mut Call<'_>) -> Outcome {
    let cursor = parse_cursor(call.arguments[2])?;
    let set = SortedSet::find(&mut call.keys, call.arguments[1])?;
    let reply_bytes = call.reply.bytes_left();
    let mut page = Page::for_reply(call.keys.reserve_memory(), usize::MAX, reply_bytes);
    if let Some(set) = set {
        let may_take_long = call.keys.may_take_long();
        let options = ScanOptions::parse(&call.arguments[3..], false, may_take_long)?;
        page = Page::for_reply(call.keys.reserve_memory(), options.count, reply_bytes);
        // Beyond the hashes there is nothing.
        let (from, is_beyond) = u32::try_from(cursor).map_or((u32::MAX, true), |from| (from, false));
        let is_large = set.visit_by_hash(&mut call.keys, from, |hash, name, score| {
            if is_beyond {
                return ControlFlow::Break(());
            }
            let place = ScanPosition { number: hash, cursor: hash.into() };
            let sized = (name, name.len() + SCANNED_SCORE_BYTES);
            options.offer(&mut page, place, sized, may_take_long, || (name.to_vec(), format_double(score).to_string()))
        })?;
        if !is_large {
            set.visit(&mut call.keys, &score::all(), Direction::Forward, |score, name| {
                let sized = (name, name.len() + SCANNED_SCORE_BYTES);
                options.offer(&mut page, ScanPosition::ONLY, sized, may_take_long, || {
                    (name.to_vec(), scanned_score(score))
                })
            })?;
        }
    }
    tell_page(call.reply, page, 2, |reply, (name, score)| {
        reply.bulk(name);
        reply.bulk_text(score);
    })
}
