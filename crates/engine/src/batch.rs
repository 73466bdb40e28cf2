//! Writes that are applied together, as a list of operations.
//!
//! An [`Operation`] says what is wanted and nothing of how it is stored: where a value goes is
//! decided when the operations are [encoded](crate::write). [`Batch`] keeps operations in memory of
//! its own; who has them already gives [`Store::write`](crate::Store::write) an iterator over them
//! instead, and nothing is copied.
//!
//! Invariant: what a [`Batch`] has was checked when it came: lengths, attributes, ranges.

use std::ops::{Bound, RangeBounds};

use ecotone_valuelog::record::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

use crate::batch_records::BATCH_HEADER_BYTES;
use crate::header::{Attributes, inline_header_bytes};
use crate::{Error, Result};

/// One write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation<'b> {
    /// `key` has `value` from now on.
    Put {
        /// The key.
        key: &'b [u8],
        /// What stands beside the value.
        attributes: Attributes,
        /// The value.
        value: &'b [u8],
    },
    /// `key` is removed, if it is there.
    Delete {
        /// The key.
        key: &'b [u8],
    },
    /// All keys of a range are removed. One that is empty or reversed removes nothing.
    DeleteRange {
        /// The first key of it.
        from: &'b [u8],
        /// The key before which it ends.
        to: &'b [u8],
    },
}

impl Operation<'_> {
    /// Whether the store takes it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`]: something is too long, or an attribute is 0.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Put { key, attributes, value } => {
                check_key(key)?;
                check_value(value)?;
                attributes.check().map_err(|error| Error::invalid("attributes", error.to_string()))
            }
            Self::Delete { key } => check_key(key),
            Self::DeleteRange { from, to } => check_range(from, to),
        }
    }

    /// Whether it writes anything.
    #[inline]
    pub(crate) fn has_effect(&self) -> bool {
        !matches!(self, Self::DeleteRange { from, to } if from >= to)
    }

    /// What it takes in RocksDB's batch with its value inline: a tag, the number of the column
    /// family, and strings behind their lengths.
    #[inline]
    pub(crate) fn inline_bytes(&self) -> usize {
        2 + match self {
            Self::Put { key, attributes, value } => {
                string_bytes(key.len()) + string_bytes(inline_header_bytes(attributes) + value.len())
            }
            Self::Delete { key } => string_bytes(key.len()),
            Self::DeleteRange { from, to } => string_bytes(from.len()) + string_bytes(to.len()),
        }
    }
}

/// Bytes of a string behind its length, a varint32.
#[inline]
pub(crate) fn string_bytes(bytes: usize) -> usize {
    let length_bytes = (usize::BITS - (bytes | 1).leading_zeros()).div_ceil(7) as usize;
    length_bytes + bytes
}

/// Several writes that are applied together or not at all. Given to
/// [`Store::write`](crate::Store::write), of any store, and reusable after [`clear`](Self::clear).
/// Later writes of a batch win over earlier ones.
#[derive(Debug, Clone)]
pub struct Batch {
    operations: Vec<Entry>,
    /// Keys and values, one behind the other.
    arena: Vec<u8>,
    bytes: usize,
}

/// An operation whose strings are in the arena, the second behind the first.
#[derive(Debug, Clone, Copy)]
struct Entry {
    kind: Kind,
    begin: usize,
    first_bytes: u32,
    second_bytes: u32,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Put(Attributes),
    Delete,
    DeleteRange,
}

impl Default for Batch {
    fn default() -> Self {
        Self { operations: Vec::new(), arena: Vec::new(), bytes: BATCH_HEADER_BYTES }
    }
}

impl Batch {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `key` to `value`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`], and nothing was added; as of all that follow.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_with(key, value, &Attributes::NONE)
    }

    /// Sets `key` to `value` with expiry, version and type.
    pub fn put_with(&mut self, key: &[u8], value: &[u8], attributes: &Attributes) -> Result<()> {
        self.push(Operation::Put { key, attributes: *attributes, value })
    }

    /// Removes `key`, if it is there.
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.push(Operation::Delete { key })
    }

    /// Removes all keys of `range`. A range that is empty or reversed removes nothing. Where space
    /// is low this is several writes in the log, as in
    /// [`Store::delete_range`](crate::Store::delete_range).
    pub fn delete_range<'k>(&mut self, range: impl RangeBounds<&'k [u8]>) -> Result<()> {
        match half_open(&range)? {
            Some((from, to)) => self.push(Operation::DeleteRange { from: &from, to: &to }),
            None => Ok(()),
        }
    }

    fn push(&mut self, operation: Operation<'_>) -> Result<()> {
        operation.check()?;
        let (kind, first, second): (_, _, &[u8]) = match operation {
            Operation::Put { key, attributes, value } => (Kind::Put(attributes), key, value),
            Operation::Delete { key } => (Kind::Delete, key, &[]),
            Operation::DeleteRange { from, to } => (Kind::DeleteRange, from, to),
        };
        let begin = self.arena.len();
        self.arena.extend_from_slice(first);
        self.arena.extend_from_slice(second);
        // Both were checked to be short enough.
        let (first_bytes, second_bytes) = (first.len() as u32, second.len() as u32);
        self.operations.push(Entry { kind, begin, first_bytes, second_bytes });
        self.bytes += operation.inline_bytes();
        Ok(())
    }

    /// Writes in the batch.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Bytes of keys, values and framing, as they count for
    /// [`MAX_BATCH_BYTES`](crate::MAX_BATCH_BYTES).
    pub fn size_bytes(&self) -> usize {
        self.bytes
    }

    /// Empties the batch; its memory is kept.
    pub fn clear(&mut self) {
        self.operations.clear();
        self.arena.clear();
        self.bytes = BATCH_HEADER_BYTES;
    }

    /// What it has, in order.
    pub fn operations(&self) -> Operations<'_> {
        Operations { rest: self.operations.iter(), arena: &self.arena }
    }
}

impl<'b> IntoIterator for &'b Batch {
    type Item = Operation<'b>;
    type IntoIter = Operations<'b>;

    fn into_iter(self) -> Operations<'b> {
        self.operations()
    }
}

/// The operations of a [`Batch`].
#[derive(Debug, Clone)]
pub struct Operations<'b> {
    rest: std::slice::Iter<'b, Entry>,
    arena: &'b [u8],
}

impl<'b> Iterator for Operations<'b> {
    type Item = Operation<'b>;

    #[inline]
    fn next(&mut self) -> Option<Operation<'b>> {
        let Entry { kind, begin, first_bytes, second_bytes } = *self.rest.next()?;
        let (first, behind) = self.arena[begin..].split_at(first_bytes as usize);
        let second = &behind[..second_bytes as usize];
        Some(match kind {
            Kind::Put(attributes) => Operation::Put { key: first, attributes, value: second },
            Kind::Delete => Operation::Delete { key: first },
            Kind::DeleteRange => Operation::DeleteRange { from: first, to: second },
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rest.size_hint()
    }
}

// The lengths of an entry have 32 bits.
const _: () = assert!(MAX_KEY_BYTES < u32::MAX as usize);
const _: () = assert!(MAX_VALUE_BYTES <= u32::MAX as usize);

#[inline]
fn check_key(key: &[u8]) -> Result<()> {
    if key.len() > MAX_KEY_BYTES { Err(too_long("key", key.len(), MAX_KEY_BYTES)) } else { Ok(()) }
}

#[inline]
fn check_value(value: &[u8]) -> Result<()> {
    if value.len() > MAX_VALUE_BYTES { Err(too_long("value", value.len(), MAX_VALUE_BYTES)) } else { Ok(()) }
}

/// An end may be one byte longer than a key: the one after it.
pub(crate) fn check_range(from: &[u8], to: &[u8]) -> Result<()> {
    let longest = from.len().max(to.len());
    if longest > MAX_KEY_BYTES + 1 { Err(too_long("range", longest, MAX_KEY_BYTES)) } else { Ok(()) }
}

#[cold]
fn too_long(what: &'static str, bytes: usize, most: usize) -> Error {
    Error::invalid(what, format!("{bytes} bytes, the most is {most}"))
}

/// A range as RocksDB takes it: from a key to before a key. `None` when it holds nothing.
pub(crate) fn half_open<'k>(range: &impl RangeBounds<&'k [u8]>) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
    let from = lower_bound(range.start_bound());
    let to = match upper_bound(range.end_bound()) {
        Some(to) => to,
        // Greater than every key that is not longer than the longest.
        None => vec![0xFF; MAX_KEY_BYTES + 1],
    };
    check_range(&from, &to)?;
    Ok((from < to).then_some((from, to)))
}

/// The least key of a range.
pub(crate) fn lower_bound(bound: Bound<&&[u8]>) -> Vec<u8> {
    match bound {
        Bound::Included(key) => key.to_vec(),
        Bound::Excluded(key) => after(key),
        Bound::Unbounded => Vec::new(),
    }
}

/// The key before which a range ends.
pub(crate) fn upper_bound(bound: Bound<&&[u8]>) -> Option<Vec<u8>> {
    match bound {
        Bound::Included(key) => Some(after(key)),
        Bound::Excluded(key) => Some(key.to_vec()),
        Bound::Unbounded => None,
    }
}

/// The least key that is greater than `key`.
fn after(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}
