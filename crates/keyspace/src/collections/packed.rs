//! Byte strings one behind the other, each with its length before it: the value of a small
//! collection.
//!
//! ```text
//!  +--------+-------+--------+-------+- - -
//!  | length | bytes | length | bytes |
//!  +--------+-------+--------+-------+- - -
//! ```
//!
//! A length is a varint: seven bits a byte, the lowest first, the high bit set in all bytes but the
//! last; in its shortest form.

use std::sync::Arc;

use ecotone_engine::Error as StoreError;

use super::{MAX_SMALL_BYTES, corrupt};

/// Items that make the value of a small collection.
#[derive(Debug)]
pub struct Small<I> {
    items: I,
    bytes: usize,
}

impl<'i, I: Iterator<Item = &'i [u8]> + Clone> Small<I> {
    /// `None` if the value would have more than [`MAX_SMALL_BYTES`].
    pub fn of(items: I) -> Option<Self> {
        Some(Self::all(items)).filter(|small| small.bytes <= MAX_SMALL_BYTES)
    }

    /// Any number of them: they were a small collection before some were removed.
    pub fn all(items: I) -> Self {
        let bytes = items.clone().map(|item| length_bytes(item.len()) + item.len()).sum();
        Self { items, bytes }
    }

    /// Length of the value.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The value, packed where it stays.
    pub fn pack(self) -> Arc<[u8]> {
        let mut packed: Arc<[u8]> = std::iter::repeat_n(0, self.bytes).collect();
        if let Some(mut rest) = Arc::get_mut(&mut packed) {
            for item in self.items {
                rest = put(rest, item);
            }
        }
        packed
    }
}

/// Bytes of the varint of `length`.
fn length_bytes(length: usize) -> usize {
    let bits = (usize::BITS - length.leading_zeros()).max(1);
    bits.div_ceil(7) as usize
}

/// Writes `item` to the begin of `to`, which is long enough. Returns the rest.
fn put<'t>(to: &'t mut [u8], item: &[u8]) -> &'t mut [u8] {
    let (length, to) = to.split_at_mut(length_bytes(item.len()));
    for (place, byte) in length.iter_mut().enumerate() {
        *byte = (item.len() >> (7 * place)) as u8 | 0x80;
    }
    if let Some(last) = length.last_mut() {
        *last &= 0x7F;
    }
    let (bytes, rest) = to.split_at_mut(item.len());
    bytes.copy_from_slice(item);
    rest
}

/// The items of `packed`. Ends after the first error.
pub fn items(packed: &[u8]) -> Items<'_> {
    Items { rest: packed }
}

/// See [`items`].
#[derive(Debug, Clone)]
pub struct Items<'p> {
    rest: &'p [u8],
}

impl<'p> Iterator for Items<'p> {
    type Item = Result<&'p [u8], StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let item = self.take();
        if item.is_none() {
            self.rest = &[];
        }
        Some(item.ok_or_else(|| corrupt("a small collection ends within an element")))
    }
}

impl<'p> Items<'p> {
    fn take(&mut self) -> Option<&'p [u8]> {
        let (mut length, mut shift) = (0_usize, 0);
        loop {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            length |= usize::from(byte & 0x7F).checked_shl(shift)?;
            shift += 7;
            if byte & 0x80 == 0 {
                // A last byte of 0 is redundant, unless it is the only one.
                if byte == 0 && shift > 7 {
                    return None;
                }
                break;
            }
            if shift > 28 {
                return None;
            }
        }
        let (item, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_packed_is_found_again(many: Vec<Vec<u8>>, long in 0..20_000_usize) {
            let many = [many, vec![vec![7; long]]].concat();
            let small = Small::all(many.iter().map(Vec::as_slice));
            let bytes = small.bytes();
            let packed = small.pack();
            prop_assert_eq!(packed.len(), bytes);
            let found: Result<Vec<_>, _> = items(&packed).collect();
            prop_assert_eq!(found.unwrap(), many);
        }

        #[test]
        fn any_bytes_are_items_that_pack_to_the_same_bytes_or_an_error(bytes: Vec<u8>) {
            let found: Result<Vec<_>, _> = items(&bytes).collect();
            if let Ok(found) = found {
                prop_assert_eq!(&Small::all(found.iter().copied()).pack()[..], &bytes[..]);
            }
        }
    }
}
