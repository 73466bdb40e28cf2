//! Ranges of sorted sets, by rank, score or member: ZRANGE, ZRANGEBYSCORE, ZRANGEBYLEX, ZREVRANGE,
//! ZREVRANGEBYSCORE, ZREVRANGEBYLEX, ZCOUNT, ZLEXCOUNT, ZREMRANGEBYRANK, ZREMRANGEBYSCORE,
//! ZREMRANGEBYLEX.
//!
//! A range by score or member goes no further than its limit: the first hundred of millions cost a
//! hundred.

use std::ops::{ControlFlow, Range};

use ecotone_engine::Direction;

use super::sorted_sets::{answers, command, reply_member};
use super::{Answers, Call, Command, Deprecation, flag, word};
use crate::protocol::number::{parse_double_leniently, parse_integer};
use ecotone_keyspace::Keys;
use ecotone_keyspace::collections::sorted_set::{Member, SortedSet, score};
use ecotone_keyspace::error::{Failure, Outcome, texts};
use ecotone_keyspace::memory::BoundedVec;

const READ: u32 = flag::READONLY | flag::COUNTS_RANKS;
const BY_RANK: &str = "O(log(N)+M) where N is the number of all members and M that of those that are returned; N of those between them and the \
                       nearer end, and no logarithm, where nobody has counted before.";
const BY_ORDER: &str = "O(log(N)+M) where N is the number of all members and M that of those that are returned; O(N+M) where N is the offset \
                        and nobody has counted before.";
const REMOVE: &str = "O(M) where M is the number of members that are removed.";
const COUNT: &str = "O(log(N)) where N is the number of all members; O(M) where M is the number of those that are counted and nobody has \
                     counted before; O(1) for all of them.";

/// The family.
pub const COMMANDS: &[Command] = &[
    Command {
        summary: "Returns the members of a sorted set within a range of ranks, scores or members.",
        usage: "key start stop [sortby: BYSCORE | BYLEX]@6.2.0 [REV]@6.2.0 \
                [limit: LIMIT offset:integer count:integer]@6.2.0 [WITHSCORES]",
        complexity: BY_RANK,
        ..command("zrange", -4, READ, "1.2.0", |call| range(call, None, None))
    },
    Command {
        summary: "Returns the members of a sorted set within a range of ranks, from the last one on.",
        usage: "key start:integer stop:integer [WITHSCORES]",
        deprecated: Some(Deprecation { since: "6.2.0", instead: "`ZRANGE key start stop REV`" }),
        complexity: BY_RANK,
        ..command("zrevrange", -4, READ, "1.2.0", |call| range(call, Some(By::Rank), Some(Direction::Reverse)))
    },
    Command {
        summary: "Returns the members of a sorted set within a range of scores.",
        usage: "key min:double max:double [WITHSCORES]@2.0.0 [limit: LIMIT offset:integer count:integer]",
        deprecated: Some(Deprecation { since: "6.2.0", instead: "`ZRANGE key min max BYSCORE`" }),
        complexity: BY_ORDER,
        ..command("zrangebyscore", -4, READ, "1.0.5", |call| range(call, Some(By::Score), Some(Direction::Forward)))
    },
    Command {
        summary: "Returns the members of a sorted set within a range of scores, from the last one on.",
        usage: "key max:double min:double [WITHSCORES] [limit: LIMIT offset:integer count:integer]",
        deprecated: Some(Deprecation { since: "6.2.0", instead: "`ZRANGE key max min BYSCORE REV`" }),
        complexity: BY_ORDER,
        ..command("zrevrangebyscore", -4, READ, "2.2.0", |call| range(call, Some(By::Score), Some(Direction::Reverse)))
    },
    Command {
        summary: "Returns the members of a sorted set within a range of members. All should have one score.",
        usage: "key min max [limit: LIMIT offset:integer count:integer]",
        deprecated: Some(Deprecation { since: "6.2.0", instead: "`ZRANGE key min max BYLEX`" }),
        complexity: BY_ORDER,
        ..command("zrangebylex", -4, READ, "2.8.9", |call| range(call, Some(By::Name), Some(Direction::Forward)))
    },
    Command {
        summary: "Returns the members of a sorted set within a range of members, from the last one on.",
        usage: "key max min [limit: LIMIT offset:integer count:integer]",
        deprecated: Some(Deprecation { since: "6.2.0", instead: "`ZRANGE key max min BYLEX REV`" }),
        complexity: BY_ORDER,
        ..command("zrevrangebylex", -4, READ, "2.8.9", |call| range(call, Some(By::Name), Some(Direction::Reverse)))
    },
    Command {
        summary: "Counts the members of a sorted set within a range of scores.",
        usage: "key min:double max:double",
        complexity: COUNT,
        ..command("zcount", 4, READ | flag::FAST, "2.0.0", |call| count(call, By::Score))
    },
    Command {
        summary: "Counts the members of a sorted set within a range of members. All should have one score.",
        usage: "key min max",
        complexity: COUNT,
        ..command("zlexcount", 4, READ | flag::FAST, "2.8.9", |call| count(call, By::Name))
    },
    Command {
        summary: "Removes the members of a sorted set within a range of ranks.",
        usage: "key start:integer stop:integer",
        complexity: REMOVE,
        ..command("zremrangebyrank", 4, flag::WRITE, "2.0.0", |call| remove(call, By::Rank))
    },
    Command {
        summary: "Removes the members of a sorted set within a range of scores.",
        usage: "key min:double max:double",
        complexity: REMOVE,
        ..command("zremrangebyscore", 4, flag::WRITE, "1.2.0", |call| remove(call, By::Score))
    },
    Command {
        summary: "Removes the members of a sorted set within a range of members. All should have one score.",
        usage: "key min max",
        complexity: REMOVE,
        ..command("zremrangebylex", 4, flag::WRITE, "2.8.9", |call| remove(call, By::Name))
    },
];

/// What a range goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Name,
}

/// One end of a range of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Name<'a> {
    /// Before all.
    Least,
    At(&'a [u8]),
    /// Behind all.
    Greatest,
}

/// A range of members: the ends, and whether each of them is left out.
#[derive(Debug, Clone, Copy)]
struct Names<'a> {
    least: (Name<'a>, bool),
    greatest: (Name<'a>, bool),
}

impl<'a> Names<'a> {
    fn parse(least: &'a [u8], greatest: &'a [u8]) -> Outcome<Self> {
        let end = |text: &'a [u8]| match text {
            [b'+'] | [b'+', 0, ..] => Some((Name::Greatest, true)),
            [b'-'] | [b'-', 0, ..] => Some((Name::Least, true)),
            [b'(', name @ ..] => Some((Name::At(name), true)),
            [b'[', name @ ..] => Some((Name::At(name), false)),
            _ => None,
        };
        let invalid = || Failure::text("ERR min or max not valid string range item");
        Ok(Self { least: end(least).ok_or_else(invalid)?, greatest: end(greatest).ok_or_else(invalid)? })
    }

    fn is_empty(&self) -> bool {
        let ((least, without_least), (greatest, without_greatest)) = (self.least, self.greatest);
        least > greatest || least == greatest && (without_least || without_greatest)
    }

    fn is_before(&self, name: &[u8]) -> bool {
        let (least, is_left_out) = self.least;
        Name::At(name) < least || is_left_out && Name::At(name) == least
    }

    fn is_behind(&self, name: &[u8]) -> bool {
        let (greatest, is_left_out) = self.greatest;
        Name::At(name) > greatest || is_left_out && Name::At(name) == greatest
    }

    /// The places of its members, where all have one score.
    fn places(&self, of: f64) -> Range<Vec<u8>> {
        let place = |name: &[u8], is_behind: bool| {
            let mut place = score::place(of, name);
            place.extend(is_behind.then_some(0));
            place
        };
        let start = match self.least {
            (Name::At(name), is_left_out) => place(name, is_left_out),
            (Name::Least, _) => score::before(of),
            (Name::Greatest, _) => score::behind(of),
        };
        let end = match self.greatest {
            (Name::At(name), is_left_out) => place(name, !is_left_out),
            (Name::Least, _) => score::before(of),
            (Name::Greatest, _) => score::behind(of),
        };
        start..end
    }

    fn count(&self, set: &SortedSet<'_>, keys: &mut Keys<'_>) -> Outcome<u64> {
        set.hold_still(keys)?;
        let (first, last) = (set.end(keys, Direction::Forward)?, set.end(keys, Direction::Reverse)?);
        if let (Some(first), Some(last)) = (first, last)
            && first.score == last.score
        {
            return if self.is_empty() { Ok(0) } else { set.count(keys, &self.places(first.score)) };
        }
        let mut members = 0;
        self.visit(set, keys, Direction::Forward, 0, |_, _| {
            members += 1;
            ControlFlow::Continue(())
        })?;
        Ok(members)
    }

    /// Shows `visit` its members but the first `offset`. Where not all members have one score it
    /// does what Redis does: it goes to the first member within the range, and from there to the
    /// first one beyond it; what `offset` leaves out is not examined.
    fn visit(
        &self,
        set: &SortedSet<'_>,
        keys: &mut Keys<'_>,
        direction: Direction,
        mut offset: u64,
        mut visit: impl FnMut(f64, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        set.hold_still(keys)?;
        let (first, last) = (set.end(keys, Direction::Forward)?, set.end(keys, Direction::Reverse)?);
        let (Some(first), Some(last)) = (first, last) else { return Ok(()) };
        if self.is_empty() || self.is_before(&last.name) || self.is_behind(&first.name) {
            return Ok(());
        }
        if first.score == last.score {
            return set.visit_behind(keys, &self.places(first.score), direction, offset, visit);
        }
        let mut is_within = false;
        set.visit(keys, &score::all(), direction, |score, name| {
            let (is_not_there, is_beyond) = match direction {
                Direction::Forward => (self.is_before(name), self.is_behind(name)),
                Direction::Reverse => (self.is_behind(name), self.is_before(name)),
            };
            if !is_within && is_not_there {
                return ControlFlow::Continue(());
            }
            if is_beyond && (!is_within || offset == 0) {
                return ControlFlow::Break(());
            }
            is_within = true;
            if offset > 0 {
                offset -= 1;
                return ControlFlow::Continue(());
            }
            visit(score, name)
        })
    }
}

/// A range of scores as one of places.
fn parse_scores(least: &[u8], greatest: &[u8]) -> Outcome<Range<Vec<u8>>> {
    let end = |text: &[u8]| {
        let (is_left_out, number) = text.strip_prefix(b"(").map_or((false, text), |number| (true, number));
        let number = parse_double_leniently(number).ok_or(Failure::text("ERR min or max is not a float"))?;
        Ok::<_, Failure>((number, is_left_out))
    };
    let ((least, without_least), (greatest, without_greatest)) = (end(least)?, end(greatest)?);
    let start = if without_least { score::behind(least) } else { score::before(least) };
    let end = if without_greatest { score::before(greatest) } else { score::behind(greatest) };
    Ok(start..end)
}

/// A range of any kind.
enum Span<'a> {
    /// First and last, as they were given.
    Ranks(i64, i64),
    Scores(Range<Vec<u8>>),
    Names(Names<'a>),
}

impl<'a> Span<'a> {
    fn parse(by: By, least: &'a [u8], greatest: &'a [u8]) -> Outcome<Self> {
        let rank = |text| parse_integer(text).ok_or(texts::NOT_AN_INTEGER);
        Ok(match by {
            By::Rank => Self::Ranks(rank(least)?, rank(greatest)?),
            By::Score => Self::Scores(parse_scores(least, greatest)?),
            By::Name => Self::Names(Names::parse(least, greatest)?),
        })
    }

    /// Whether every member is within, whatever members there are.
    fn is_all(&self) -> bool {
        match self {
            Self::Ranks(first, last) => (*first, *last) == (0, -1),
            // No score is beyond the infinite ones.
            Self::Scores(range) => {
                range.start <= score::before(f64::NEG_INFINITY) && range.end >= score::behind(f64::INFINITY)
            }
            Self::Names(names) => names.least.0 == Name::Least && names.greatest.0 == Name::Greatest,
        }
    }

    /// The first of the ranks, and how many there are.
    fn ranks(first: i64, last: i64, members: u64) -> (u64, u64) {
        let members = i64::try_from(members).unwrap_or(i64::MAX);
        let from_begin = |rank: i64| if rank < 0 { rank + members } else { rank };
        let (first, end) = (from_begin(first).max(0), from_begin(last).min(members - 1) + 1);
        (first.unsigned_abs(), end.saturating_sub(first).max(0).unsigned_abs())
    }

    /// A range of places whose members are all from `first` to `last`, in a set of so many: it
    /// reaches beyond them where none are.
    fn places(&self, members: u64, first: &Member, last: &Member) -> Range<Vec<u8>> {
        let all = score::all();
        let (from_begin, to_end) = match self {
            // No score is beyond the infinite ones.
            Self::Scores(range) => {
                let first =
                    if range.start <= score::before(f64::NEG_INFINITY) { all.start } else { range.start.clone() };
                let end = if range.end >= score::behind(f64::INFINITY) { all.end } else { range.end.clone() };
                return first..end;
            }
            Self::Ranks(from, to) => {
                let (rank, count) = Self::ranks(*from, *to, members);
                (rank == 0, rank + count == members)
            }
            Self::Names(_) => (false, false),
        };
        let start = if from_begin { all.start } else { first.place() };
        let end = if to_end { all.end } else { last.behind() };
        start..end
    }

    /// How many members it has.
    fn count(&self, set: &SortedSet<'_>, keys: &mut Keys<'_>) -> Outcome<u64> {
        match self {
            Self::Ranks(first, last) => Ok(Self::ranks(*first, *last, set.len()).1),
            Self::Scores(range) => set.count(keys, range),
            Self::Names(names) => names.count(set, keys),
        }
    }

    /// Shows `visit` its members but the first `offset`, which ranges of ranks do not have.
    fn visit(
        &self,
        set: &SortedSet<'_>,
        keys: &mut Keys<'_>,
        direction: Direction,
        offset: u64,
        visit: impl FnMut(f64, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        match self {
            Self::Ranks(first, last) => {
                let (first, count) = Self::ranks(*first, *last, set.len());
                set.visit_ranks(keys, first, count, direction, visit)
            }
            Self::Scores(range) => set.visit_behind(keys, range, direction, offset, visit),
            Self::Names(names) => names.visit(set, keys, direction, offset, visit),
        }
    }
}

/// The options after a range.
#[derive(Debug)]
struct Options {
    by: By,
    direction: Direction,
    with_scores: bool,
    offset: i64,
    limit: i64,
}

impl Options {
    /// `by` and `direction` where the command's name says them.
    fn parse(options: &[&[u8]], by: Option<By>, direction: Option<Direction>) -> Outcome<Self> {
        let (mut found_by, mut found_direction) = (by, direction);
        let (mut with_scores, mut offset, mut limit) = (false, 0, -1);
        let mut rest = options;
        while let [option, behind @ ..] = rest {
            rest = behind;
            match (word::upper(option).as_slice(), behind) {
                (b"WITHSCORES", _) => with_scores = true,
                (b"LIMIT", [first, second, behind @ ..]) => {
                    offset = parse_integer(first).ok_or(texts::NOT_AN_INTEGER)?;
                    limit = parse_integer(second).ok_or(texts::NOT_AN_INTEGER)?;
                    rest = behind;
                }
                (b"REV", _) if found_direction.is_none() => found_direction = Some(Direction::Reverse),
                (b"BYSCORE", _) if found_by.is_none() => found_by = Some(By::Score),
                (b"BYLEX", _) if found_by.is_none() => found_by = Some(By::Name),
                _ => return Err(texts::SYNTAX),
            }
        }
        let by = found_by.unwrap_or(By::Rank);
        if limit != -1 && by == By::Rank {
            let text = "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX";
            return Err(Failure::text(text));
        }
        if with_scores && by == By::Name {
            let text = "ERR syntax error, WITHSCORES not supported in combination with BYLEX";
            return Err(Failure::text(text));
        }
        Ok(Self { by, direction: found_direction.unwrap_or(Direction::Forward), with_scores, offset, limit })
    }
}

fn range(call: &mut Call<'_>, by: Option<By>, direction: Option<Direction>) -> Outcome {
    let [_, key, first, second, options @ ..] = call.arguments else { return Err(texts::SYNTAX) };
    let options = Options::parse(options, by, direction)?;
    // Against the order the greater end comes first, but for ranks.
    let is_turned = options.direction == Direction::Reverse && options.by != By::Rank;
    let (least, greatest) = if is_turned { (second, first) } else { (first, second) };
    let span = Span::parse(options.by, least, greatest)?;
    let set = SortedSet::find(&mut call.keys, key)?;
    let (is_by_rank, limit) = (options.by == By::Rank, u64::try_from(options.limit).unwrap_or(u64::MAX));
    let reply = &mut *call.reply;
    let (mark, mut members) = (reply.begin(), 0);
    // Behind a negative offset there is nothing, and ranks have none.
    let offset = if is_by_rank { Some(0) } else { u64::try_from(options.offset).ok() };
    if let (Some(set), Some(offset), 1..) = (set, offset, limit) {
        if let Span::Ranks(first, last) = span {
            let strings = 1 + usize::from(options.with_scores);
            let (_, number) = Span::ranks(first, last, set.len());
            Answers::new(call.service, reply, number, strings, "members").check(0)?;
        }
        span.visit(&set, &mut call.keys, options.direction, offset, |score, name| {
            reply_member(reply, name, options.with_scores.then_some(score));
            members += 1;
            if members as u64 == limit || reply.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
    }
    let answers = answers(reply, members, options.with_scores);
    reply.end_array(mark, answers);
    Ok(())
}

fn count(call: &mut Call<'_>, by: By) -> Outcome {
    let span = Span::parse(by, call.arguments[2], call.arguments[3])?;
    let mut members = 0;
    if let Some(set) = SortedSet::find(&mut call.keys, call.arguments[1])? {
        members = if span.is_all() { set.len() } else { span.count(&set, &mut call.keys)? } as i64;
    }
    call.reply.integer(members);
    Ok(())
}

fn remove(call: &mut Call<'_>, by: By) -> Outcome {
    let span = Span::parse(by, call.arguments[2], call.arguments[3])?;
    let mut removed = 0;
    if let Some(set) = SortedSet::find(&mut call.keys, call.arguments[1])? {
        let mut members = BoundedVec::new(call.keys.reserve_memory());
        span.visit(&set, &mut call.keys, Direction::Forward, 0, |score, name| {
            members.add(name.len(), || Member { score, name: name.to_vec() })
        })?;
        let members = members.whole()?;
        removed = members.len() as i64;
        if let (Some(first), Some(last)) = (members.first(), members.last()) {
            let range = span.places(set.len(), first, last);
            set.remove_and_save(&mut call.keys, &members, &range)?;
        }
    }
    call.reply.integer(removed);
    Ok(())
}
