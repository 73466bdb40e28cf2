//! A sorted set in one value: the places of its members, in their order, as [`packed`] has them.

use std::ops::Range;

use ecotone_engine::Error as StoreError;

use super::score::{self, SCORE_BYTES};
use crate::collections::{MAX_SMALL_BYTES, MAX_SMALL_ELEMENTS, packed};

/// The members of a small one, at hand.
#[derive(Debug, Default)]
pub(super) struct Small {
    bytes: Vec<u8>,
    /// Where the places are in `bytes`, in the order of the members.
    places: Vec<Range<usize>>,
}

impl Small {
    pub(super) fn decode(payload: &[u8]) -> Result<Self, StoreError> {
        let mut small = Self { bytes: Vec::with_capacity(payload.len()), places: Vec::new() };
        for place in packed::items(payload) {
            let place = place?;
            score::split(place)?;
            let range = small.append(place);
            small.places.push(range);
        }
        Ok(small)
    }

    /// What its value is packed from.
    pub(super) fn packing(&self) -> packed::Small<impl Iterator<Item = &[u8]> + Clone> {
        packed::Small::all(self.places())
    }

    fn append(&mut self, place: &[u8]) -> Range<usize> {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(place);
        begin..self.bytes.len()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn places(&self) -> impl DoubleEndedIterator<Item = &[u8]> + Clone {
        self.places.iter().map(|range| &self.bytes[range.clone()])
    }

    /// The places within `range`.
    pub(super) fn within(&self, range: &Range<Vec<u8>>) -> impl DoubleEndedIterator<Item = &[u8]> {
        let begin = self.places.partition_point(|place| self.bytes[place.clone()] < range.start[..]);
        let end = self.places.partition_point(|place| self.bytes[place.clone()] < range.end[..]);
        self.places[begin..end.max(begin)].iter().map(|range| &self.bytes[range.clone()])
    }

    fn find(&self, member: &[u8]) -> Option<usize> {
        self.places().position(|place| &place[SCORE_BYTES..] == member)
    }

    pub(super) fn score(&self, member: &[u8]) -> Result<Option<f64>, StoreError> {
        let place = self.find(member).map(|index| &self.bytes[self.places[index].clone()]);
        place.map(|place| score::decode(&place[..SCORE_BYTES])).transpose()
    }

    /// Adds `member`, or moves it.
    pub(super) fn put(&mut self, member: &[u8], score: f64) {
        self.remove(member);
        let place = score::place(score, member);
        let index = self.places.partition_point(|other| self.bytes[other.clone()] < place[..]);
        let range = self.append(&place);
        self.places.insert(index, range);
    }

    pub(super) fn remove(&mut self, member: &[u8]) {
        if let Some(index) = self.find(member) {
            self.places.remove(index);
        }
    }

    pub(super) fn is_too_large(&self) -> bool {
        // A length takes one byte below 128, two in whatever may fit.
        let bytes = |place: &[u8]| place.len() + 1 + usize::from(place.len() > 0x7F);
        self.places.len() > MAX_SMALL_ELEMENTS || self.places().map(bytes).sum::<usize>() > MAX_SMALL_BYTES
    }
}
