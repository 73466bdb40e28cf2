//! Where a value lies: what stands with the key instead of it.
//!
//! ```text
//!  0         4        8              12
//!  +---------+--------+--------------+
//!  | segment | offset | value length |     each u32, little-endian
//!  +---------+--------+--------------+
//! ```
//!
//! The pointer follows the value's header (see [`crate::header`]). The offset is that of the record; the key's length is
//! known wherever a pointer is.

use std::fmt;

use crate::options::MAX_VALUE_BYTES;

use super::record::record_bytes;

/// The length of an encoded pointer.
pub const POINTER_BYTES: usize = 12;

/// The number of a segment. Numbers rise and are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentNumber(pub u32);

impl fmt::Display for SegmentNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06}", self.0)
    }
}

/// Where a value's record lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    /// In which segment.
    pub segment: SegmentNumber,
    /// Where the record begins, in bytes from the begin of the segment.
    pub offset: u32,
    /// The length of the value.
    pub value_bytes: u32,
}

impl Pointer {
    /// The pointer as it is stored.
    pub fn encode(self) -> [u8; POINTER_BYTES] {
        let mut bytes = [0; POINTER_BYTES];
        bytes[..4].copy_from_slice(&self.segment.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..].copy_from_slice(&self.value_bytes.to_le_bytes());
        bytes
    }

    /// The pointer that `bytes` are; `None` where they are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; POINTER_BYTES] = bytes.try_into().ok()?;
        let [a, b, c, d, e, f, g, h, i, j, k, l] = *bytes;
        let value_bytes = u32::from_le_bytes([i, j, k, l]);
        (value_bytes as usize <= MAX_VALUE_BYTES).then_some(Self {
            segment: SegmentNumber(u32::from_le_bytes([a, b, c, d])),
            offset: u32::from_le_bytes([e, f, g, h]),
            value_bytes,
        })
    }

    /// The length of the record of a key of `key_bytes`.
    pub fn record_bytes(self, key_bytes: usize) -> usize {
        record_bytes(key_bytes, self.value_bytes as usize)
    }

    /// Where the record of a key of `key_bytes` ends.
    pub fn end(self, key_bytes: usize) -> u64 {
        u64::from(self.offset) + self.record_bytes(key_bytes) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::mutated;
    use crate::options::MAX_KEY_BYTES;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_of_a_pointer_never_change() {
        let pointer = Pointer { segment: SegmentNumber(0x0403_0201), offset: 0x0807_0605, value_bytes: 0x000b_0a09 };
        assert_eq!(pointer.encode(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0]);
    }

    #[test]
    fn a_mutated_pointer_is_one_or_is_refused_and_its_end_never_overflows() {
        let pointer = Pointer { segment: SegmentNumber(7), offset: 32, value_bytes: 1000 };
        mutated(&[pointer.encode().to_vec(), vec![0xFF; POINTER_BYTES]], |bytes, _| {
            let Some(pointer) = Pointer::decode(&bytes) else { return };
            assert_eq!(pointer.encode()[..], bytes[..]);
            let record = 12 + u64::from(pointer.value_bytes) + MAX_KEY_BYTES as u64;
            assert_eq!(pointer.end(MAX_KEY_BYTES), u64::from(pointer.offset) + record);
        });
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_pointer_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..16)) {
            if let Some(pointer) = Pointer::decode(&bytes) {
                prop_assert_eq!(&pointer.encode()[..], &bytes[..]);
            }
        }

        #[test]
        fn what_is_encoded_is_decoded(segment: u32, offset: u32, value_bytes in 0..=MAX_VALUE_BYTES as u32) {
            let pointer = Pointer { segment: SegmentNumber(segment), offset, value_bytes };
            prop_assert_eq!(Pointer::decode(&pointer.encode()), Some(pointer));
        }
    }
}
