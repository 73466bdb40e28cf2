//! How many elements of one ordered collection lie between which places: an order-statistic index
//! of blocks.
//!
//! A block is a range of places and the number of elements in it. All blocks together cover all
//! places, in order; they are grouped into chunks that keep their sum, so a rank is a sum over
//! chunks, one over the blocks of a chunk, and a read of the elements of one block. The index
//! begins as one block with all elements, whose number the collection's key has. A caller that
//! steps over elements of a [wide](Block::is_wide) block says where it can be cut, so that they
//! need not be stepped over again.
//!
//! Invariants: there is at least one chunk, and no chunk without blocks; the first block begins
//! before all places; the sums are right as long as each addition and removal is reported.
//! What cannot be (a block with fewer than no elements) is returned to the caller, which drops the
//! index.
//!
//! Bounds: the caller's, in bytes: a cut that would exceed them is not made.
//!
//! Threads: of its owner.

/// Elements of a block when it is cut: so many are stepped over for a rank, twice that for some.
pub const BLOCK_ELEMENTS: u64 = 128;

/// A block with more is cut when its elements are stepped over. The distance between the two keeps
/// a block from being cut and united again and again.
const MAX_BLOCK_ELEMENTS: u64 = 4 * BLOCK_ELEMENTS;

/// Neighbours with so few together become one where one of them has lost elements.
const MERGED_ELEMENTS: u64 = BLOCK_ELEMENTS / 2;

/// A chunk with more blocks is cut into halves: as many are summed up for a rank, and moved for a
/// cut.
const MAX_CHUNK_BLOCKS: usize = 256;

/// Neighbours with so few together become one.
const MERGED_CHUNK_BLOCKS: usize = MAX_CHUNK_BLOCKS / 4;

/// Bytes of a place that are kept in its block, and compared before the rest: of a member's place
/// they are its score.
const HEAD_BYTES: usize = size_of::<u64>();

/// What an allocation takes besides its bytes, about.
const ALLOCATION_BYTES: usize = 16;

/// What a block takes, besides what is behind its head: lists grow by doubling.
const BLOCK_BYTES: usize = 2 * size_of::<Part>();
const CHUNK_BYTES: usize = 2 * size_of::<Chunk>() + ALLOCATION_BYTES;

/// A place, split into what is compared first and the rest. A place is no shorter than a head; of
/// ends of ranges that are, all that is missing is 0, which makes no difference to any place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Split<'p> {
    head: u64,
    rest: &'p [u8],
}

impl<'p> Split<'p> {
    fn of(place: &'p [u8]) -> Self {
        if let Some((head, rest)) = place.split_first_chunk::<HEAD_BYTES>() {
            return Self { head: u64::from_be_bytes(*head), rest };
        }
        let mut head = [0; HEAD_BYTES];
        head[..place.len()].copy_from_slice(place);
        Self { head: u64::from_be_bytes(head), rest: &[] }
    }
}

/// A block where it is kept.
#[derive(Debug)]
struct Part {
    /// Its elements' places are not before this one, nor those of the block before not before it.
    head: u64,
    rest: Box<[u8]>,
    elements: u64,
}

impl Part {
    fn new(start: Split<'_>, elements: u64) -> Self {
        Self { head: start.head, rest: start.rest.into(), elements }
    }

    fn start(&self) -> Split<'_> {
        Split { head: self.head, rest: &self.rest }
    }

    fn start_bytes(&self) -> Vec<u8> {
        [&self.head.to_be_bytes(), &self.rest[..]].concat()
    }

    fn bytes(&self) -> usize {
        BLOCK_BYTES + if self.rest.is_empty() { 0 } else { self.rest.len() + ALLOCATION_BYTES }
    }
}

/// Blocks in a row.
#[derive(Debug)]
struct Chunk {
    /// The head of its first block, so that most chunks need not be read.
    head: u64,
    elements: u64,
    parts: Vec<Part>,
}

impl Chunk {
    fn of(parts: Vec<Part>) -> Self {
        let elements = parts.iter().map(|part| part.elements).sum();
        Self { head: parts.first().map_or(0, |part| part.head), elements, parts }
    }

    fn begins_at_or_before(&self, place: Split<'_>) -> bool {
        self.head < place.head || self.head == place.head && self.parts[0].start() <= place
    }
}

/// Where a block is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct At {
    chunk: usize,
    part: usize,
}

/// A block as callers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Elements before it.
    pub before: u64,
    /// Elements in it.
    pub elements: u64,
    /// None of its elements' places is before this one.
    pub start: Vec<u8>,
    /// All of them are before this one; `None`: it is the last block.
    pub end: Option<Vec<u8>>,
}

impl Block {
    /// Whether it is to be cut when its elements are stepped over.
    pub fn is_wide(&self) -> bool {
        self.elements > MAX_BLOCK_ELEMENTS
    }
}

/// Where a block can be cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// What is before this place is before the cut.
    pub at: Vec<u8>,
    /// As many elements of the block are there.
    pub before: u64,
}

/// What came of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Kept {
    /// The index counts all elements.
    Whole,
    /// It counts what cannot be, and is to be dropped.
    Wrong,
}

/// The blocks of one collection.
#[derive(Debug)]
pub struct Blocks {
    chunks: Vec<Chunk>,
    elements: u64,
    bytes: usize,
    /// No element is before `first` or behind `last`, where that is known: additions at an end make
    /// new blocks without a read.
    first: Option<Vec<u8>>,
    last: Option<Vec<u8>>,
}

impl Blocks {
    /// Of a collection with so many elements.
    pub fn new(elements: u64) -> Self {
        let whole = Part::new(Split::of(&[]), elements);
        let bytes = size_of::<Self>() + CHUNK_BYTES + whole.bytes();
        Self { chunks: vec![Chunk::of(vec![whole])], elements, bytes, first: None, last: None }
    }

    /// How many elements there are.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// What it takes of memory, about.
    pub fn bytes(&self) -> usize {
        let ends = [&self.first, &self.last].into_iter().flatten();
        self.bytes + ends.map(|end| end.len() + ALLOCATION_BYTES).sum::<usize>()
    }

    fn find(&self, place: Split<'_>) -> At {
        let chunk = self.chunks.partition_point(|chunk| chunk.begins_at_or_before(place)).saturating_sub(1);
        let parts = &self.chunks[chunk].parts;
        At { chunk, part: parts.partition_point(|part| part.start() <= place).saturating_sub(1) }
    }

    fn block(&self, at: At) -> Block {
        let Chunk { parts, .. } = &self.chunks[at.chunk];
        let before: u64 = self.chunks[..at.chunk].iter().map(|chunk| chunk.elements).sum();
        let before = before + parts[..at.part].iter().map(|part| part.elements).sum::<u64>();
        let behind = parts.get(at.part + 1).or_else(|| self.chunks.get(at.chunk + 1)?.parts.first());
        let Part { elements, .. } = parts[at.part];
        Block { before, elements, start: parts[at.part].start_bytes(), end: behind.map(Part::start_bytes) }
    }

    /// The block that `place` is in.
    pub fn at_place(&self, place: &[u8]) -> Block {
        self.block(self.find(Split::of(place)))
    }

    /// The block of the element with this `rank`; the last one if there are not so many.
    pub fn at_rank(&self, rank: u64) -> Block {
        let mut left = rank;
        let mut is_within = |elements: u64| {
            let passed = left >= elements;
            if passed {
                left -= elements;
            }
            !passed
        };
        let last = self.chunks.len() - 1;
        let chunk = self.chunks.iter().position(|chunk| is_within(chunk.elements)).unwrap_or(last);
        let parts = &self.chunks[chunk].parts;
        let part = parts.iter().position(|part| is_within(part.elements)).unwrap_or(parts.len() - 1);
        self.block(At { chunk, part })
    }

    /// No element is before `first`.
    pub fn begin_at(&mut self, first: &[u8]) {
        set(&mut self.first, first);
    }

    /// No element is behind `last`.
    pub fn end_at(&mut self, last: &[u8]) {
        set(&mut self.last, last);
    }

    /// An element was added at `place`. It grows to `max_bytes` and not beyond.
    pub fn add(&mut self, place: &[u8], max_bytes: usize) {
        let at = self.find(Split::of(place));
        let chunk = &mut self.chunks[at.chunk];
        chunk.elements += 1;
        self.elements += 1;
        let part = &mut chunk.parts[at.part];
        part.elements += 1;
        let (elements, is_full) = (part.elements, part.elements > BLOCK_ELEMENTS);
        let cut = if self.last.as_deref().is_some_and(|last| last < place) {
            let last = self.last.take().unwrap_or_default();
            let cut = is_full.then(|| Cut { at: separator(&last, place).to_vec(), before: elements - 1 });
            self.last = Some(reused(last, place));
            cut
        } else if self.first.as_deref().is_some_and(|first| place < first) {
            let first = self.first.take().unwrap_or_default();
            let cut = is_full.then(|| Cut { at: separator(place, &first).to_vec(), before: 1 });
            self.first = Some(reused(first, place));
            cut
        } else {
            None
        };
        if let Some(cut) = cut {
            // It is in the block: the ends are those of all.
            let _ = self.cut_at(at, &[cut], max_bytes);
        }
    }

    /// An element was removed from `place`.
    pub fn remove(&mut self, place: &[u8]) -> Kept {
        let at = self.find(Split::of(place));
        let chunk = &mut self.chunks[at.chunk];
        let part = &mut chunk.parts[at.part];
        if part.elements == 0 {
            return Kept::Wrong;
        }
        part.elements -= 1;
        chunk.elements -= 1;
        self.elements -= 1;
        if part.elements <= MERGED_ELEMENTS {
            self.merge(at);
        }
        Kept::Whole
    }

    /// Unites the block at `at`, which has few elements, with a neighbour that has few as well.
    fn merge(&mut self, At { chunk: index, part }: At) {
        let chunk = &mut self.chunks[index];
        let few = |part: usize| chunk.parts[part].elements + chunk.parts[part + 1].elements <= MERGED_ELEMENTS;
        let first = [part.checked_sub(1), Some(part)].into_iter().flatten();
        let Some(first) = first.filter(|first| first + 1 < chunk.parts.len()).find(|first| few(*first)) else { return };
        let second = chunk.parts.remove(first + 1);
        self.bytes -= second.bytes();
        chunk.parts[first].elements += second.elements;
        let both = |one: usize| {
            let [one, other] = self.chunks.get(one..one + 2)? else { return None };
            (one.parts.len() + other.parts.len() <= MERGED_CHUNK_BLOCKS).then_some(())
        };
        let first = [index.checked_sub(1), Some(index)].into_iter().flatten().find(|one| both(*one).is_some());
        if let Some(first) = first {
            let second = self.chunks.remove(first + 1);
            self.bytes -= CHUNK_BYTES;
            self.chunks[first].elements += second.elements;
            self.chunks[first].parts.extend(second.parts);
        }
    }

    /// Cuts the block that begins at `start` at `cuts`, which ascend and are within it, unless that
    /// would take more than `max_bytes`.
    pub fn cut(&mut self, start: &[u8], cuts: &[Cut], max_bytes: usize) -> Kept {
        let at = self.find(Split::of(start));
        self.cut_at(at, cuts, max_bytes)
    }

    fn cut_at(&mut self, at: At, cuts: &[Cut], max_bytes: usize) -> Kept {
        let whole = self.chunks[at.chunk].parts[at.part].elements;
        let Some(first) = cuts.first() else { return Kept::Whole };
        let mut parts = Vec::with_capacity(cuts.len());
        let ends = cuts[1..].iter().map(|cut| cut.before).chain([whole]);
        for (cut, end) in cuts.iter().zip(ends) {
            let Some(elements) = end.checked_sub(cut.before) else { return Kept::Wrong };
            parts.push(Part::new(Split::of(&cut.at), elements));
        }
        let bytes: usize = parts.iter().map(Part::bytes).sum();
        if self.bytes() + bytes + CHUNK_BYTES * (parts.len() / MAX_CHUNK_BLOCKS + 1) > max_bytes {
            return Kept::Whole;
        }
        self.bytes += bytes;
        let chunk = &mut self.chunks[at.chunk];
        chunk.parts[at.part].elements = first.before;
        let behind = at.part + 1;
        chunk.parts.splice(behind..behind, parts);
        if chunk.parts.len() > MAX_CHUNK_BLOCKS {
            self.cut_chunk(at.chunk);
        }
        Kept::Whole
    }

    fn cut_chunk(&mut self, index: usize) {
        let mut rest = std::mem::take(&mut self.chunks[index].parts).into_iter();
        let chunks: Vec<Chunk> = std::iter::from_fn(|| {
            let parts: Vec<Part> = rest.by_ref().take(MAX_CHUNK_BLOCKS / 2).collect();
            (!parts.is_empty()).then(|| Chunk::of(parts))
        })
        .collect();
        self.bytes += CHUNK_BYTES * (chunks.len() - 1);
        self.chunks.splice(index..=index, chunks);
    }
}

/// `place` in the memory of `end`.
fn reused(mut end: Vec<u8>, place: &[u8]) -> Vec<u8> {
    end.clear();
    end.extend_from_slice(place);
    end
}

fn set(end: &mut Option<Vec<u8>>, place: &[u8]) {
    *end = Some(reused(end.take().unwrap_or_default(), place));
}

/// A short place behind `before`, and at most `place`.
pub fn separator<'p>(before: &[u8], place: &'p [u8]) -> &'p [u8] {
    let alike = before.iter().zip(place).take_while(|(one, other)| one == other).count();
    &place[..place.len().min(alike + 1)]
}

#[cfg(test)]
mod tests;
