//! SCAN, and what it has in common with the scans of collections: cursors and options.
//!
//! The cursor is the place (see [`ecotone_keyspace::layout`]) that the scan goes on from. Places
//! follow from the keys alone, so the server remembers nothing between two calls, and a key that is
//! there from the first call to the last is returned once. All keys of one place are returned
//! together. A step ends early where what it found would take too much memory.

use std::cell::Cell;
use std::ops::ControlFlow;

use super::entry::plain;
use super::{Call, Command, flag, word};
use crate::protocol::glob::Pattern;
use crate::protocol::number::parse_integer;
use crate::protocol::reply::Reply;
use ecotone_keyspace::MAX_KEY_BYTES;
use ecotone_keyspace::collections::page::{Page, ScanPosition};
use ecotone_keyspace::error::{Failure, Outcome, texts};
use ecotone_keyspace::layout::POSITIONS;

/// Keys or elements that one call examines without `COUNT`, as in Redis.
const DEFAULT_COUNT: usize = 10;

/// The family.
pub const COMMANDS: &[Command] = &[Command {
    usage: "cursor:integer [MATCH pattern] [COUNT count:integer] [TYPE type]@6.0.0",
    complexity: "O(1) for every call, O(N) for all, where N is the number of keys.",
    ..plain(
        "scan",
        -2,
        flag::READONLY | flag::WAITS,
        "generic",
        "2.8.0",
        "Goes through all keys, some at each call.",
        scan,
    )
}];

/// Elements of a pattern by bytes of what is matched with it, and bytes of a pattern that is read:
/// as much takes some milliseconds at most, so an event loop has no time for more.
const MAX_NONBLOCKING_MATCHES: usize = 1 << 22;

/// One step matches no more than this and one name, wherever it is carried out: between two steps
/// its client can be killed.
const MAX_MATCHED: usize = 1 << 27;

/// Elements of a pattern that are matched in a microsecond at least.
const MATCHED_IN_A_STEP: usize = 256;

/// What it takes to match a name with a pattern, in steps as
/// [`CancellationCheck`](ecotone_keyspace::CancellationCheck) counts them.
pub(crate) fn match_steps(pattern: &Pattern, name: &[u8]) -> usize {
    1 + pattern.steps().saturating_mul(name.len()) / MATCHED_IN_A_STEP
}

/// What a scan was asked for besides its cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScanOptions<'a> {
    /// How many keys or elements to examine, about; not 0.
    pub(crate) count: usize,
    pattern: Option<Pattern>,
    type_name: Option<&'a [u8]>,
    /// As [`MAX_MATCHED`].
    matched: Cell<usize>,
}

impl<'a> ScanOptions<'a> {
    /// Reads `COUNT` and `MATCH`, and `TYPE` where keys are scanned.
    ///
    /// # Errors
    ///
    /// Redis'; [`Failure::WouldBlock`] where a pattern is so long that reading it alone takes long.
    pub(crate) fn parse(options: &[&'a [u8]], of_keys: bool, may_take_long: bool) -> Outcome<Self> {
        let mut parsed = Self { count: DEFAULT_COUNT, pattern: None, type_name: None, matched: Cell::new(0) };
        let mut rest = options;
        while let [option, value, behind @ ..] = rest {
            match word::upper(option).as_slice() {
                b"COUNT" => {
                    let count = parse_integer(value).ok_or(texts::NOT_AN_INTEGER)?;
                    parsed.count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or(texts::SYNTAX)?;
                }
                b"MATCH" => {
                    if value.len() > MAX_NONBLOCKING_MATCHES && !may_take_long {
                        return Err(Failure::WouldBlock);
                    }
                    // Fields and members are no longer than keys.
                    parsed.pattern = Some(Pattern::new(value, MAX_KEY_BYTES));
                }
                b"TYPE" if of_keys => parsed.type_name = Some(*value),
                _ => return Err(texts::SYNTAX),
            }
            rest = behind;
        }
        if rest.is_empty() { Ok(parsed) } else { Err(texts::SYNTAX) }
    }

    /// [Offers](Page::offer) what has this `name` to `page`, where `MATCH` lets it through; it
    /// takes so many bytes there.
    pub(crate) fn offer<T>(
        &self,
        page: &mut Page<'_, T>,
        place: ScanPosition,
        (name, bytes): (&[u8], usize),
        may_take_long: bool,
        make: impl FnOnce() -> T,
    ) -> ControlFlow<()> {
        let Some(pattern) = &self.pattern else { return page.offer(place, Some(bytes), make) };
        let matched = self.matched.get().saturating_add(pattern.steps().saturating_mul(name.len()));
        self.matched.set(matched);
        if matched > MAX_NONBLOCKING_MATCHES && !may_take_long {
            return page.would_block();
        }
        let offered = page.offer(place, pattern.matches(name).then_some(bytes), make);
        if matched > MAX_MATCHED {
            page.has_enough();
        }
        offered
    }
}

/// A cursor: what C's `strtoul` takes for one.
///
/// # Errors
///
/// Redis'.
pub(crate) fn parse_cursor(cursor: &[u8]) -> Outcome<u64> {
    let invalid = Failure::text("ERR invalid cursor");
    // A string ends there in C.
    let cursor = cursor.split(|byte| *byte == 0).next().unwrap_or_default();
    let (negative, digits) = match cursor {
        [] => return Ok(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(invalid);
    }
    let add = |number: u64, digit: &u8| number.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    let number = digits.iter().try_fold(0, add).ok_or(invalid)?;
    Ok(if negative { number.wrapping_neg() } else { number })
}

/// Replies what one step has found: the next cursor, and what `tell` replies for each, which are so
/// many answers.
pub(crate) fn tell_page<T>(
    reply: &mut Reply,
    page: Page<'_, T>,
    answers_each: usize,
    mut tell: impl FnMut(&mut Reply, &T),
) -> Outcome {
    let (found, next_cursor) = page.found()?;
    reply.array(2);
    reply.bulk_text(&next_cursor.to_string());
    reply.array(answers_each * found.len());
    found.iter().for_each(|one| tell(reply, one));
    Ok(())
}

fn scan(call: &mut Call<'_>) -> Outcome {
    let cursor = parse_cursor(call.arguments[1])?;
    let options = ScanOptions::parse(&call.arguments[2..], true, true)?;
    let mut page = Page::for_reply(call.keys.reserve_memory(), options.count, call.reply.bytes_left());
    // Beyond the places there is nothing.
    if let Some(from) = u32::try_from(cursor).ok().filter(|from| *from < POSITIONS) {
        let mut cancellation = call.keys.cancellation_check();
        call.keys.visit_keys(from, |place, key, tag| {
            let steps = options.pattern.as_ref().map_or(1, |pattern| match_steps(pattern, key));
            cancellation.after_steps(steps)?;
            let is_of_type = options.type_name.is_none_or(|name| name.eq_ignore_ascii_case(tag.of.name().as_bytes()));
            let place = ScanPosition { number: place, cursor: place.into() };
            if !is_of_type {
                return page.offer(place, None, Vec::new);
            }
            options.offer(&mut page, place, (key, key.len()), true, || key.to_vec())
        })?;
        cancellation.end()?;
    }
    tell_page(call.reply, page, 1, |reply, key| reply.bulk(key))
}
