//! Byte strings one behind the other, each with its length before it: the value of a small collection.
//!
//! ```text
//!  +--------+-------+--------+-------+- - -
//!  | length | bytes | length | bytes |
//!  +--------+-------+--------+-------+- - -
//! ```
//!
//! A length is a varint: seven bits a byte, the lowest first, the high bit set in all bytes but the last; never longer than it needs
//! to be.

use ecotone_engine::Error as StoreError;

use super::{MOST_SMALL_BYTES, corrupt};

/// Appends `item`.
pub fn push(to: &mut Vec<u8>, item: &[u8]) {
    let mut length = item.len();
    while length >= 0x80 {
        to.push(length as u8 | 0x80);
        length >>= 7;
    }
    to.push(length as u8);
    to.extend_from_slice(item);
}

/// The value of a small collection of `items`; `None` if it would have more than [`MOST_SMALL_BYTES`].
pub fn pack_small<'i>(items: impl Iterator<Item = &'i [u8]>) -> Option<Vec<u8>> {
    let mut packed = Vec::new();
    for item in items {
        // Before it is copied: it can be long.
        if packed.len() + item.len() >= MOST_SMALL_BYTES {
            return None;
        }
        push(&mut packed, item);
    }
    (packed.len() <= MOST_SMALL_BYTES).then_some(packed)
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
                // A last byte of 0 says nothing, unless it is the only one.
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
            let mut packed = Vec::new();
            let many = [many, vec![vec![7; long]]].concat();
            many.iter().for_each(|item| push(&mut packed, item));
            let found: Result<Vec<_>, _> = items(&packed).collect();
            prop_assert_eq!(found.unwrap(), many);
        }

        #[test]
        fn any_bytes_are_items_that_pack_to_the_same_bytes_or_an_error(bytes: Vec<u8>) {
            let found: Result<Vec<_>, _> = items(&bytes).collect();
            if let Ok(found) = found {
                let mut packed = Vec::new();
                found.iter().for_each(|item| push(&mut packed, item));
                prop_assert_eq!(packed, bytes);
            }
        }
    }
}
