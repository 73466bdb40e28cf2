//! Random members of sorted sets: ZRANDMEMBER.
//!
//! In a large set members are drawn by their hashes.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;

use ecotone_engine::Direction;

use super::sorted_sets::{answers, command, reply_member};
use super::{Answers, Call, Command, Drawing, flag, go_on};
use crate::protocol::number::parse_integer;
use ecotone_keyspace::Keys;
use ecotone_keyspace::collections::by_hash::{ALL_HASHES, MAX_READ_ONCE_BYTES, Selection, is_read_once};
use ecotone_keyspace::collections::draw::Draw;
use ecotone_keyspace::collections::sorted_set::{Member, SortedSet, score};
use ecotone_keyspace::error::{Failure, Outcome, texts};
use ecotone_keyspace::memory::BoundedVec;

/// Draws for each different member that is wanted, before all of them are read instead. A set
/// with many members behind one hash would take very many.
const MAX_DRAWS_EACH: u64 = 8;

/// What a name that was drawn takes besides its bytes: a place in a tree.
const KNOWN_NAME_BYTES: usize = 48;

/// Draws on behalf of one client while others wait for the thread: each is a lookup in the store.
const MAX_NONBLOCKING_DRAWS: u64 = 100;

/// The family.
pub const COMMANDS: &[Command] = &[Command {
    summary: "Returns random members of a sorted set.",
    usage: "key [options: count:integer [WITHSCORES]]",
    complexity: "O(M) where M is the number of members that are returned.",
    ..command("zrandmember", -2, flag::READONLY, "6.2.0", draw)
}];

/// splitmix64, begun anywhere.
struct Random(u64);

impl Random {
    fn new() -> Self {
        Self(RandomState::new().hash_one(()))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

fn draw(call: &mut Call<'_>) -> Outcome {
    let [_, key, options @ ..] = call.arguments else { return Err(texts::SYNTAX) };
    let (count, with_scores) = match options {
        [] => (None, false),
        [count, rest @ ..] => {
            let (count, with_scores) = parse(count, rest)?;
            (Some(count), with_scores)
        }
    };
    let set = SortedSet::find(&mut call.keys, key)?;
    let mut random = Random::new();
    match (set, count) {
        (None, None) => call.reply.null(),
        (Some(set), None) => match Source::of(&set, &mut call.keys, 1)?.draw(&mut call.keys, &mut random)? {
            Some(member) => call.reply.bulk(&member.name),
            None => call.reply.null(),
        },
        (None, Some(_)) | (_, Some(0)) => call.reply.array(0),
        (Some(set), Some(count)) => {
            let reply = &mut *call.reply;
            let number = if count < 0 { count.unsigned_abs() } else { count.unsigned_abs().min(set.len()) };
            let wanted = Answers::new(call.service, reply, number, 1 + usize::from(with_scores), "members");
            wanted.check(0)?;
            let mut drawing = Drawing::begin(wanted, &call.keys, reply);
            let (mark, mut told) = (reply.begin(), 0);
            let tell = |score: f64, name: &[u8]| {
                reply_member(reply, name, with_scores.then_some(score));
                told += 1;
                // Different members are all replied, or it is an error as with any other reply.
                if count < 0 { drawing.go_on(reply) } else { go_on(reply) }
            };
            if count < 0 {
                let check = |bytes| wanted.check(bytes);
                draw_repeatedly(&set, &mut call.keys, count.unsigned_abs(), &mut random, check, tell)?;
                drawing.end(call.reply)?;
            } else {
                draw_different(&set, &mut call.keys, count.unsigned_abs(), &mut random, tell)?;
            }
            let answers = answers(call.reply, told, with_scores);
            call.reply.end_array(mark, answers);
        }
    }
    Ok(())
}

fn parse(count: &[u8], options: &[&[u8]]) -> Outcome<(i64, bool)> {
    let count = parse_integer(count).ok_or(texts::NOT_AN_INTEGER)?;
    if count == i64::MIN {
        let (least, most) = (-i64::MAX, i64::MAX);
        return Err(Failure::with(format!("ERR value is out of range, value must between {least} and {most}")));
    }
    match options {
        [] => Ok((count, false)),
        [option] if option.eq_ignore_ascii_case(b"WITHSCORES") => {
            if count.unsigned_abs() > i64::MAX.unsigned_abs() / 2 {
                return Err(Failure::text("ERR value is out of range"));
            }
            Ok((count, true))
        }
        _ => Err(texts::SYNTAX),
    }
}

/// What members are drawn from: those at hand of a small set, or of one that so many draws are
/// wanted of that it is read once; or the entries of a large one.
enum Source<'s, 'k, 'c> {
    AtHand(BoundedVec<'c, Member>),
    Stored(&'s SortedSet<'k>),
}

impl<'s, 'k, 'c> Source<'s, 'k, 'c> {
    /// For `count` draws.
    fn of(set: &'s SortedSet<'k>, keys: &mut Keys<'c>, count: u64) -> Outcome<Self> {
        let is_large = set.visit_by_hash(keys, u32::MAX, |_, _, _| ControlFlow::Break(()))?;
        if is_large && !is_read_once(keys, set.len(), count) {
            return Ok(Self::Stored(set));
        }
        Ok(all(set, keys)?.map_or(Self::Stored(set), Self::AtHand))
    }

    /// Bytes that each has at least, where that is known.
    fn min_bytes(&self) -> usize {
        match self {
            Self::AtHand(members) => members.iter().map(|member| member.name.len()).min().unwrap_or(0),
            Self::Stored(_) => 0,
        }
    }

    fn draw(&self, keys: &mut Keys<'_>, random: &mut Random) -> Outcome<Option<Member>> {
        let set = match self {
            Self::AtHand(members) => return Ok(members.get(random.below(members.len())).cloned()),
            Self::Stored(set) => set,
        };
        let mut draw = Draw::within(ALL_HASHES);
        while let Some(from) = draw.next_from() {
            set.visit_by_hash(keys, from as u32, |hash, name, score| {
                draw.offer(hash.into(), || Member { score, name: name.to_vec() })
            })?;
        }
        let drawn = draw.drawn();
        if drawn.is_none() {
            // All of it was replaced since its key was read; else it is damaged.
            set.hold_still(keys)?;
        }
        Ok(drawn)
    }
}

/// All members; `None`: they take too much memory, or there is none.
fn all<'c>(set: &SortedSet<'_>, keys: &mut Keys<'c>) -> Outcome<Option<BoundedVec<'c, Member>>> {
    let (mut members, mut bytes) = (BoundedVec::new(keys.reserve_memory()), 0);
    set.visit(keys, &score::all(), Direction::Forward, |score, name| {
        bytes += name.len();
        if bytes > MAX_READ_ONCE_BYTES {
            return ControlFlow::Break(());
        }
        members.add(name.len(), || Member { score, name: name.to_vec() })
    })?;
    let is_whole = bytes <= MAX_READ_ONCE_BYTES && members.refusal().is_none() && !members.is_empty();
    Ok(is_whole.then_some(members))
}

/// Before `count` draws: ensures that the set does not change between them.
fn hold_still_for(set: &SortedSet<'_>, keys: &Keys<'_>, count: u64) -> Outcome {
    if count > MAX_NONBLOCKING_DRAWS && !keys.may_take_long() {
        return Err(Failure::WouldBlock);
    }
    // One draw is one read.
    if count > 1 { set.hold_still(keys) } else { Ok(()) }
}

fn draw_repeatedly(
    set: &SortedSet<'_>,
    keys: &mut Keys<'_>,
    count: u64,
    random: &mut Random,
    check: impl FnOnce(usize) -> Outcome,
    mut visit: impl FnMut(f64, &[u8]) -> ControlFlow<()>,
) -> Outcome {
    hold_still_for(set, keys, count)?;
    let source = Source::of(set, keys, count)?;
    check(source.min_bytes())?;
    for _ in 0..count {
        if let Source::AtHand(members) = &source {
            let member = &members[random.below(members.len())];
            if visit(member.score, &member.name).is_break() {
                break;
            }
            continue;
        }
        let Some(member) = source.draw(keys, random)? else { break };
        if visit(member.score, &member.name).is_break() {
            break;
        }
    }
    Ok(())
}

fn draw_different(
    set: &SortedSet<'_>,
    keys: &mut Keys<'_>,
    count: u64,
    random: &mut Random,
    mut visit: impl FnMut(f64, &[u8]) -> ControlFlow<()>,
) -> Outcome {
    let is_few = count.saturating_mul(3) < set.len();
    if is_few && let source @ Source::Stored(_) = Source::of(set, keys, 1)? {
        hold_still_for(set, keys, count)?;
        let (mut drawn, mut names) = (BoundedVec::new(keys.reserve_memory()), BTreeSet::new());
        for _ in 0..count.saturating_mul(MAX_DRAWS_EACH) {
            if drawn.len() as u64 == count {
                break;
            }
            let Some(member) = source.draw(keys, random)? else { continue };
            // The name twice: also among those that were drawn.
            let bytes = 2 * (member.name.len() + KNOWN_NAME_BYTES);
            if names.insert(member.name.clone()) && drawn.add(bytes, || member).is_break() {
                break;
            }
        }
        let drawn = drawn.whole()?;
        if drawn.len() as u64 == count {
            let _ = drawn.iter().try_for_each(|member| visit(member.score, &member.name));
            return Ok(());
        }
    }
    // As many as its key says.
    set.hold_still(keys)?;
    let mut selection = Selection::new(count, set.len());
    set.visit(keys, &score::all(), Direction::Forward, |score, name| {
        if selection.takes() {
            visit(score, name)?;
        }
        if selection.is_whole() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}
