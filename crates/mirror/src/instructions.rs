//! A segment that GC writes, at the source: its bytes are held back while it is known of which other
//! segments they are copies, so that how to make it goes into the stream in their place.
//!
//! They are let go as bytes after all when the segment is synced before it is sealed, since a table
//! may refer to them from then on, and where saying how to make them takes too much of them.
//!
//! Bounds: [`MAX_RECIPE_BYTES`](crate::recipe::MAX_RECIPE_BYTES) of memory for the bytes that are
//! copies of nothing, and a few bytes for each range and each held piece. Threads: one at a time.

use std::collections::VecDeque;

use ecotone_io::tap::CopiedRange;

use ecotone_replica::stream::MAX_ITEM_BYTES;

use crate::recipe::{MAX_RECIPE_BYTES, RecipeWriter};

/// A recipe is worth it where it is at most this part of what it stands for.
const MIN_GAIN: u64 = 4;
/// So much is held back before that is judged: the first bytes may be no copies.
const MIN_JUDGED_BYTES: u64 = 1 << 20;

/// Bytes of a file that are to be an item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub offset: u64,
    pub len: u64,
    pub checksum: u32,
}

impl Piece {
    /// These bytes, as one or several.
    pub fn all(offset: u64, bytes: &[u8]) -> impl Iterator<Item = Self> {
        bytes.chunks(MAX_ITEM_BYTES).enumerate().map(move |(at, piece)| {
            let offset = offset + (at * MAX_ITEM_BYTES) as u64;
            Self { offset, len: piece.len() as u64, checksum: crc32c::crc32c(piece) }
        })
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Instructions {
    recipe: RecipeWriter,
    /// What is known of bytes that have not come yet, by their offsets.
    ranges: VecDeque<CopiedRange>,
    held: Vec<Piece>,
    held_bytes: u64,
    /// Where the next bytes must begin.
    end: u64,
}

impl Instructions {
    /// Of a file of which the first `base` bytes are in the stream.
    pub fn new(base: u64) -> Self {
        Self { recipe: RecipeWriter::new(base), ranges: VecDeque::new(), held: Vec::new(), held_bytes: 0, end: base }
    }

    /// Of what comes next, these are copies.
    pub fn copied(&mut self, ranges: &[CopiedRange]) {
        self.ranges.extend(ranges);
    }

    /// Holds these bytes back. False: it is of no use to hold back anything of this file, and nothing
    /// has changed.
    pub fn hold(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let len = bytes.len() as u64;
        let copied: u64 =
            self.ranges.iter().take_while(|range| range.offset < offset + len).map(|range| range.len).sum();
        let held = self.held_bytes + len;
        let said = self.recipe.max_bytes() as u64 + len.saturating_sub(copied);
        let is_too_much = said > MAX_RECIPE_BYTES as u64 || (held >= MIN_JUDGED_BYTES && said > held / MIN_GAIN);
        if offset != self.end || is_too_much {
            return false;
        }
        self.note(offset, bytes);
        self.held.extend(Piece::all(offset, bytes));
        (self.held_bytes, self.end) = (held, offset + len);
        true
    }

    /// Says how to make these bytes.
    fn note(&mut self, offset: u64, bytes: &[u8]) {
        let (mut at, end) = (offset, offset + bytes.len() as u64);
        while let Some(range) = self.ranges.front_mut().filter(|range| range.offset < end) {
            // What lies before was told of, and was not appended then.
            let passed = at.saturating_sub(range.offset).min(range.len);
            let begin = range.offset + passed;
            let len = (range.len - passed).min(end - begin.min(end));
            if len > 0
                && let Ok(segment) = u32::try_from(range.from)
            {
                self.recipe.bytes(&bytes[(at - offset) as usize..(begin - offset) as usize]);
                self.recipe.copy(segment, range.from_offset + passed, len);
                at = begin + len;
            }
            if passed + len < range.len {
                // The rest comes with the next bytes.
                let done = passed + len;
                *range = CopiedRange {
                    offset: range.offset + done,
                    len: range.len - done,
                    from: range.from,
                    from_offset: range.from_offset + done,
                };
                break;
            }
            self.ranges.pop_front();
        }
        self.recipe.bytes(&bytes[(at - offset) as usize..]);
    }

    /// What was held back, which is to be bytes. It goes on behind it.
    pub fn let_go(&mut self) -> Vec<Piece> {
        self.recipe = RecipeWriter::new(self.end);
        self.held_bytes = 0;
        std::mem::take(&mut self.held)
    }

    /// The file is complete: how to make what was held back, if that is worth it.
    pub fn finish(&mut self) -> Option<Vec<u8>> {
        if self.held.is_empty() {
            return None;
        }
        let recipe = std::mem::replace(&mut self.recipe, RecipeWriter::new(self.end)).finish();
        let is_worth_it = recipe.len() <= MAX_RECIPE_BYTES && recipe.len() as u64 <= self.held_bytes / MIN_GAIN;
        is_worth_it.then_some(recipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{Recipe, Step};

    fn range(offset: u64, len: u64, from: u64, from_offset: u64) -> CopiedRange {
        CopiedRange { offset, len, from, from_offset }
    }

    fn copy(segment: u32, offset: u64, len: u64) -> Step<'static> {
        Step::Copy { segment, offset, len }
    }

    #[test]
    fn what_is_known_of_bytes_becomes_steps_however_they_are_cut() {
        let mut it = Instructions::new(32);
        it.copied(&[range(40, 500, 3, 1000), range(540, 460, 4, 64)]);
        assert!(it.hold(32, &[b'a'; 108]));
        assert!(it.hold(140, &[b'b'; 860]));
        let recipe = it.finish().unwrap();
        let steps = vec![Step::Bytes(b"aaaaaaaa"), copy(3, 1000, 500), copy(4, 64, 460)];
        assert_eq!(Recipe::decode(&recipe, 1000), Ok(Recipe { base: 32, steps }));
    }

    #[test]
    fn what_was_told_of_and_never_appended_is_passed_over() {
        let mut it = Instructions::new(100);
        it.copied(&[range(20, 30, 1, 0), range(90, 20, 2, 500), range(110, 390, 3, 0)]);
        assert!(it.hold(100, &[0; 400]));
        let recipe = it.finish().unwrap();
        assert_eq!(
            Recipe::decode(&recipe, 500),
            Ok(Recipe { base: 100, steps: vec![copy(2, 510, 10), copy(3, 0, 390)] })
        );
    }

    #[test]
    fn what_is_let_go_is_the_base_of_what_follows() {
        let mut it = Instructions::new(0);
        it.copied(&[range(0, 1000, 3, 64)]);
        assert!(it.hold(0, &[1; 1000]));
        let pieces: Vec<_> = it.let_go().into_iter().map(|piece| (piece.offset, piece.len)).collect();
        assert_eq!(pieces, [(0, 1000)]);
        assert_eq!(it.finish(), None, "nothing is held");
        it.copied(&[range(1000, 500, 3, 64)]);
        assert!(it.hold(1000, &[2; 500]));
        let recipe = it.finish().unwrap();
        assert_eq!(Recipe::decode(&recipe, 1500), Ok(Recipe { base: 1000, steps: vec![copy(3, 64, 500)] }));
    }

    #[test]
    fn what_is_hardly_a_copy_of_anything_is_not_held() {
        let mut it = Instructions::new(0);
        assert!(!it.hold(5, &[1; 10]), "it does not follow");
        assert!(!it.hold(0, &vec![1; MAX_RECIPE_BYTES + 1]), "all of it would have to be said");
        it.copied(&[range(0, 700, 3, 0)]);
        assert!(it.hold(0, &[1; 1000]));
        assert_eq!(it.finish(), None, "a third of it");
        // Long runs of copies, and then ever more of other bytes.
        let mut it = Instructions::new(0);
        it.copied(&[range(0, 1 << 20, 3, 0)]);
        assert!(it.hold(0, &vec![1; 1 << 20]));
        let mut end = 1 << 20;
        while it.hold(end, &[2; 1000]) {
            end += 1000;
            assert!(end < 2 << 20);
        }
        let held: u64 = it.let_go().iter().map(|piece| piece.len).sum();
        assert_eq!(held, end);
    }
}
