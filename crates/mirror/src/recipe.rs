//! How a segment that GC wrote is made of others: the bytes that come with a `Collect`.
//!
//! ```text
//!  +---------+------+----------+----------+------+------+- - -
//!  | version | base | segments | steps    |      |      |      all numbers are varints
//!  +---------+------+----------+----------+------+------+- - -
//!
//!  segments:  how many, and their numbers
//!  a step:    2 * index of a segment, offset, length      bytes of that segment
//!             2 * length + 1, bytes                       these bytes
//! ```
//!
//! The first `base` bytes are those that came before, by `Append`; the steps follow one another
//! behind them, up to the length that the item's content id says.
//!
//! Invariants: a decoded one makes exactly so many bytes as are asked for, and each of its steps
//! makes some. What it names may be missing, or be something else: who carries it out compares the
//! content id.
//!
//! Bounds: [`MAX_RECIPE_BYTES`]; memory in proportion to the bytes that are read.

use std::collections::HashMap;

use ecotone_control::codec::{Malformed, Problem, Reader, Writer};

use ecotone_replica::stream::MAX_ITEM_BYTES;

/// Bytes of a recipe. A segment of which more would have to be said travels as bytes.
pub const MAX_RECIPE_BYTES: usize = MAX_ITEM_BYTES;

const VERSION: u8 = 1;
const WHAT: &str = "a recipe of a segment";

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe<'a> {
    /// So many bytes of the segment are there already.
    pub base: u64,
    /// What follows.
    pub steps: Vec<Step<'a>>,
}

/// Some bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// The same as in another one.
    Copy {
        /// The number of the other one.
        segment: u32,
        /// Where they begin there.
        offset: u64,
        /// How many they are; not 0.
        len: u64,
    },
    /// These; at least one.
    Bytes(&'a [u8]),
}

impl Step<'_> {
    /// How many bytes it makes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Copy { len, .. } => *len,
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Whether that is none. Never of one that was decoded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> Recipe<'a> {
    /// From the bytes of an item whose content is `len` bytes long.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: it is no recipe of a segment of that length.
    pub fn decode(bytes: &'a [u8], len: u64) -> Result<Self, Malformed> {
        let mut r = Reader::new(bytes, WHAT);
        if bytes.len() > MAX_RECIPE_BYTES {
            return Err(r.wrong(Problem::TooMany { found: bytes.len() as u64, limit: MAX_RECIPE_BYTES as u64 }));
        }
        match r.byte()? {
            VERSION => (),
            other => return Err(r.wrong(Problem::Version(other.into()))),
        }
        let base = r.at_most(len)?;
        let count = r.count(MAX_RECIPE_BYTES)?;
        let mut segments = Vec::with_capacity(count);
        for _ in 0..count {
            segments.push(r.small()?);
        }
        let (mut steps, mut end) = (Vec::new(), base);
        while !r.is_at_end() {
            let head = r.number()?;
            let half = usize::try_from(head / 2).unwrap_or(usize::MAX);
            let step = if head % 2 == 1 {
                Step::Bytes(r.raw(half)?)
            } else {
                let segment = *segments.get(half).ok_or_else(|| r.wrong(Problem::Value(head)))?;
                Step::Copy { segment, offset: r.number()?, len: r.number()? }
            };
            let is_in_a_file = match step {
                Step::Copy { offset, len, .. } => offset.checked_add(len).is_some_and(|end| end <= i64::MAX as u64),
                Step::Bytes(_) => true,
            };
            end = Some(step.len())
                .filter(|bytes| *bytes > 0 && is_in_a_file)
                .and_then(|bytes| end.checked_add(bytes))
                .filter(|end| *end <= len)
                .ok_or_else(|| r.wrong(Problem::Value(step.len())))?;
            steps.push(step);
        }
        if end != len {
            return Err(r.wrong(Problem::Inconsistent(format!("it makes {end} bytes, not {len}"))));
        }
        Ok(Self { base, steps })
    }
}

/// How many bytes of a segment of `len` bytes a recipe has spared who was sent it. 0 of what is no
/// recipe.
#[must_use]
pub fn spared_bytes(recipe: &[u8], len: u64) -> u64 {
    let mut r = Reader::new(recipe, WHAT);
    let base = r.byte().and_then(|_| r.at_most(len));
    base.map_or(0, |base| (len - base).saturating_sub(recipe.len() as u64))
}

/// Makes a recipe, as the bytes of a segment pass.
#[derive(Debug)]
pub(crate) struct RecipeWriter {
    base: u64,
    segments: Vec<u32>,
    indexes: HashMap<u32, usize>,
    steps: Writer,
    step_bytes: usize,
    last: Last,
}

/// The step that is not written yet, since what follows may belong to it.
#[derive(Debug)]
enum Last {
    None,
    Copy { index: usize, offset: u64, len: u64 },
    Bytes(Vec<u8>),
}

/// A number takes so much at most.
const MAX_NUMBER_BYTES: usize = 10;

impl RecipeWriter {
    /// Of what is behind the first `base` bytes.
    pub fn new(base: u64) -> Self {
        Self {
            base,
            segments: Vec::new(),
            indexes: HashMap::new(),
            steps: Writer::new(),
            step_bytes: 0,
            last: Last::None,
        }
    }

    /// These bytes follow.
    pub fn bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if let Last::Bytes(before) = &mut self.last {
            before.extend_from_slice(bytes);
            return;
        }
        self.write_last();
        self.last = Last::Bytes(bytes.to_vec());
    }

    /// Bytes follow that are those of another segment.
    pub fn copy(&mut self, segment: u32, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let next = self.segments.len();
        let index = *self.indexes.entry(segment).or_insert(next);
        if index == next {
            self.segments.push(segment);
        }
        if let Last::Copy { index: of, offset: begin, len: before } = &mut self.last
            && (*of, *begin + *before) == (index, offset)
        {
            *before += len;
            return;
        }
        self.write_last();
        self.last = Last::Copy { index, offset, len };
    }

    fn write_last(&mut self) {
        let mut written = Writer::new();
        match std::mem::replace(&mut self.last, Last::None) {
            Last::None => return,
            Last::Copy { index, offset, len } => {
                written.number(2 * index as u64);
                written.number(offset);
                written.number(len);
            }
            Last::Bytes(bytes) => {
                written.number(2 * bytes.len() as u64 + 1);
                written.raw(&bytes);
            }
        }
        let written = written.done();
        self.step_bytes += written.len();
        self.steps.raw(&written);
    }

    /// How long it may be by now, at most.
    pub fn max_bytes(&self) -> usize {
        let last = if let Last::Bytes(bytes) = &self.last { bytes.len() } else { 0 };
        // With the version and the base, the count of segments and their numbers of 32 bits.
        self.step_bytes + last + 6 * MAX_NUMBER_BYTES + 5 * self.segments.len()
    }

    /// The recipe.
    pub fn finish(mut self) -> Vec<u8> {
        self.write_last();
        let mut w = Writer::with_capacity(self.max_bytes());
        w.byte(VERSION);
        w.number(self.base);
        w.count(self.segments.len());
        self.segments.iter().for_each(|segment| w.number(u64::from(*segment)));
        w.raw(&self.steps.done());
        w.done()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Of 333 bytes behind the first 32.
    fn written() -> Vec<u8> {
        let mut writer = RecipeWriter::new(32);
        writer.copy(7, 1000, 300);
        writer.copy(7, 1300, 20);
        writer.bytes(b"x");
        writer.bytes(b"yz");
        writer.copy(900, 64, 5);
        writer.copy(7, 64, 5);
        writer.finish()
    }

    #[test]
    fn a_recipe_is_these_bytes() {
        let bytes = written();
        #[rustfmt::skip]
        let golden = [
            1, 32,
            2, 7, 0x84, 0x07,
            // 320 bytes from 1000 on, as two ranges that are one.
            0, 0xe8, 0x07, 0xc0, 0x02,
            // Three bytes.
            7, b'x', b'y', b'z',
            2, 64, 5,
            0, 64, 5,
        ];
        assert_eq!(bytes, golden);
        let recipe = Recipe::decode(&bytes, 365).unwrap();
        let copy = |segment, offset, len| Step::Copy { segment, offset, len };
        let steps = vec![copy(7, 1000, 320), Step::Bytes(b"xyz"), copy(900, 64, 5), copy(7, 64, 5)];
        assert_eq!(recipe, Recipe { base: 32, steps });
        assert_eq!(spared_bytes(&bytes, 365), 333 - golden.len() as u64);
    }

    /// What a hostile server may send.
    #[test]
    fn what_cannot_be_is_refused() {
        let encoded = |base: u64, segments: &[u64], steps: &[&[u64]], behind: &[u8]| {
            let mut w = Writer::new();
            w.byte(VERSION);
            w.number(base);
            w.count(segments.len());
            segments.iter().chain(steps.iter().copied().flatten()).for_each(|number| w.number(*number));
            w.raw(behind);
            w.done()
        };
        let sound = encoded(10, &[3], &[&[0, 5, 20]], &[]);
        assert!(Recipe::decode(&sound, 30).is_ok());
        let max = u64::MAX;
        for (what, bytes, len) in [
            ("another length", sound.clone(), 31),
            ("a length below the base", sound.clone(), 9),
            ("nothing", Vec::new(), 0),
            ("another version", [&[2], &sound[1..]].concat(), 30),
            ("cut short", sound[..sound.len() - 1].to_vec(), 30),
            ("a segment that is not listed", encoded(0, &[3], &[&[2, 5, 20]], &[]), 20),
            ("no number of a segment", encoded(0, &[1 << 32], &[&[0, 5, 20]], &[]), 20),
            ("more segments than bytes", encoded(0, &[], &[], &[]).into_iter().chain([9]).collect(), 0),
            ("no bytes of a segment", encoded(0, &[3], &[&[0, 5, 0], &[0, 5, 20]], &[]), 20),
            ("no bytes", encoded(0, &[], &[&[1]], &[]), 0),
            ("bytes that are not there", encoded(0, &[], &[&[2 * 5 + 1]], b"four"), 5),
            ("an end beyond any file", encoded(0, &[3], &[&[0, max - 5, 20]], &[]), 20),
            ("a sum that overflows", encoded(10, &[3], &[&[0, 0, 1 << 62], &[0, 0, max - 5]], &[]), max),
            ("two steps that overflow", encoded(0, &[3], &[[0, 0, 1 << 62].as_slice(); 5], &[]), max),
            ("a length of all bits", encoded(0, &[], &[&[max]], &[]), max),
            ("too many bytes", vec![VERSION; MAX_RECIPE_BYTES + 1], 30),
        ] {
            assert!(Recipe::decode(&bytes, len).is_err(), "{what}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            base in 0..1000_u64,
            parts in prop::collection::vec((0..4_u32, 0..5_u64, 0..40_u64), 0..30),
        ) {
            // The other segments, and this one of parts of them and of bytes of its own.
            let others: Vec<Vec<u8>> = (0..3).map(|of| (0..100).map(|at| at * 3 + of).collect()).collect();
            let mut bytes = Vec::new();
            let mut writer = RecipeWriter::new(base);
            for (of, offset, len) in parts {
                let (begin, end) = (offset as usize, (offset + len) as usize);
                match others.get(of as usize) {
                    Some(other) => {
                        writer.copy(of, offset, len);
                        bytes.extend_from_slice(&other[begin..end]);
                    }
                    None => {
                        writer.bytes(&vec![of as u8; len as usize]);
                        bytes.extend(vec![of as u8; len as usize]);
                    }
                }
            }
            let max_bytes = writer.max_bytes();
            let encoded = writer.finish();
            prop_assert!(encoded.len() <= max_bytes);
            let recipe = Recipe::decode(&encoded, base + bytes.len() as u64).unwrap();
            prop_assert_eq!(recipe.base, base);
            let mut made = Vec::new();
            for step in recipe.steps {
                match step {
                    Step::Copy { segment, offset, len } => {
                        made.extend_from_slice(&others[segment as usize][offset as usize..(offset + len) as usize]);
                    }
                    Step::Bytes(bytes) => made.extend_from_slice(bytes),
                }
            }
            prop_assert_eq!(made, bytes);
        }

        /// Whatever comes, it is refused, or makes what was asked for, and is written so and not otherwise.
        #[test]
        fn any_bytes_are_refused_or_sound(
            at in any::<prop::sample::Index>(),
            with in any::<[u8; 6]>(),
            how in 0..3,
            len in prop_oneof![Just(365_u64), any::<u64>(), 0..2000_u64],
        ) {
            let mut bytes = written();
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = with[0],
                1 => bytes.truncate(at),
                _ => drop(bytes.splice(at..at, with)),
            }
            if let Ok(recipe) = Recipe::decode(&bytes, len) {
                let made = recipe.steps.iter().try_fold(recipe.base, |end, step| end.checked_add(step.len()));
                prop_assert_eq!(made, Some(len));
                prop_assert!(recipe.steps.iter().all(|step| !step.is_empty()));
                prop_assert!(spared_bytes(&bytes, len) <= len);
            }
        }
    }
}
