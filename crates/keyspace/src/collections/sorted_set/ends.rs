//! Bounds of the places of a large sorted set's members.
//!
//! What is taken from an end leaves tombstones until compactions drop them, and a search for the
//! first member steps over all of them: each pop of a queue would take longer than the one before.
//! So the key of such a set stores bounds: updated at once where members are popped, and soon where
//! first or last ones are removed by their names, or given other scores.
//!
//! ```text
//!  nothing                                     the members may lie anywhere
//!  bytes:u8 first  bytes:u8 behind             first <= place < behind, for each of them
//! ```
//!
//! Both are cut to [`MAX_BYTES`], such that they still hold.
//!
//! Invariant: every member's place is within. An addition widens the bounds in the same batch.

use std::ops::Range;

use ecotone_engine::Error as StoreError;

use super::score;
use crate::collections::corrupt;

/// Longer places are cut: this is written with each change of the set.
const MAX_BYTES: usize = 64;

/// The range that all places are in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ends(Range<Vec<u8>>);

impl Default for Ends {
    fn default() -> Self {
        Self(score::all())
    }
}

impl Ends {
    /// Decodes what the key of a set has behind the number of its members.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`].
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
            let (length, rest) = bytes.split_first()?;
            rest.split_at_checked(usize::from(*length))
        }
        let ends = part(bytes).and_then(|(first, rest)| {
            let (behind, rest) = part(rest)?;
            (rest.is_empty() && first < behind).then(|| Self(first.to_vec()..behind.to_vec()))
        });
        ends.ok_or_else(|| corrupt("the key of a sorted set does not say between which places its members lie"))
    }

    /// Appends that to `to`.
    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        if !self.are_all() {
            for end in [&self.0.start, &self.0.end] {
                // Never more than MAX_BYTES.
                to.push(end.len() as u8);
                to.extend_from_slice(end);
            }
        }
    }

    fn are_all(&self) -> bool {
        let Range { start, end } = &self.0;
        start.is_empty() && *end == [u8::MAX; score::SCORE_BYTES]
    }

    /// Widens the bounds for a `member` with `score`.
    pub(super) fn include(&mut self, score: f64, member: &[u8]) {
        let Range { start, end } = &self.0;
        let first = &score::encode(score)[..];
        // Mostly the score decides.
        if &start[..] <= first && first < &end[..] && !end.starts_with(first) {
            return;
        }
        let place = score::place(score, member);
        if place < self.0.start {
            self.0.start = not_behind(&place);
        }
        if place >= self.0.end {
            self.0.end = not_before(&[&place[..], &[0]].concat());
        }
    }

    /// Narrows the bounds: no member is left in `range`.
    pub(super) fn exclude(&mut self, range: &Range<Vec<u8>>) {
        if range.start <= self.0.start && range.end > self.0.start {
            self.0.start = not_behind(&range.end);
        }
        if range.end >= self.0.end && range.start < self.0.end {
            self.0.end = not_before(&range.start);
        }
    }

    /// The part of `range` where members may be.
    pub(super) fn within(&self, range: &Range<Vec<u8>>) -> Range<Vec<u8>> {
        let Self(ends) = self;
        (&range.start).max(&ends.start).clone()..(&range.end).min(&ends.end).clone()
    }
}

/// A short place that is not behind `place`.
fn not_behind(place: &[u8]) -> Vec<u8> {
    place[..place.len().min(MAX_BYTES)].to_vec()
}

/// A short place that is not before `place`.
fn not_before(place: &[u8]) -> Vec<u8> {
    let mut short = not_behind(place);
    if short.len() < place.len() {
        // Behind all that begin like this.
        while short.pop_if(|last| *last == u8::MAX).is_some() {}
        match short.last_mut() {
            Some(last) => *last += 1,
            None => return score::all().end,
        }
    }
    short
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place() -> impl Strategy<Value = Vec<u8>> {
        let name = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..4),
            prop::collection::vec(prop::sample::select(vec![0, 1, 0xff]), 60..70)
        ];
        (prop::sample::select(vec![-1.0, 0.0, 1.0, f64::INFINITY]), name)
            .prop_map(|(score, name)| score::place(score, &name))
    }

    proptest! {
        #[test]
        fn every_member_is_within(steps in prop::collection::vec((place(), place(), any::<bool>()), 1..40)) {
            let mut members = std::collections::BTreeSet::new();
            let mut ends = Ends::default();
            for (one, other, adds) in steps {
                if adds {
                    let (score, member) = score::split(&one).unwrap();
                    ends.include(score, member);
                    members.insert(one);
                } else {
                    let range = one.clone().min(other.clone())..one.max(other);
                    members.retain(|place| !range.contains(place));
                    ends.exclude(&range);
                }
                let mut encoded = Vec::new();
                ends.encode(&mut encoded);
                // Where nothing is left there is no set.
                if !members.is_empty() {
                    prop_assert_eq!(&Ends::decode(&encoded).unwrap(), &ends);
                }
                prop_assert!(encoded.len() <= 2 * (MAX_BYTES + 1));
                let within = ends.within(&score::all());
                prop_assert!(members.iter().all(|place| within.contains(place)));
            }
        }
    }

    #[test]
    fn what_was_taken_from_an_end_is_out() {
        let mut ends = Ends::default();
        ends.include(1.0, b"a");
        ends.exclude(&(Vec::new()..score::place(1.0, b"a\0")));
        assert_eq!(ends.within(&score::all()).start, score::place(1.0, b"a\0"));
        ends.exclude(&(score::place(7.0, b"z")..score::all().end));
        assert_eq!(ends.within(&score::all()).end, score::place(7.0, b"z"));
        // From the middle: there may be members before it.
        let before = ends.clone();
        ends.exclude(&(score::place(3.0, b"")..score::place(4.0, b"")));
        assert_eq!(ends, before);
        for damaged in [&b"\x01"[..], b"\x01a", b"\x01b\x01a", b"\x01a\x01b\0", b"\x00\x00"] {
            assert!(Ends::decode(damaged).is_err(), "{damaged:?}");
        }
    }
}
