//! Where a value lies: what stands with the key instead of it.
//!
//! A [`Pointer`] leads to a record of format 1:
//!
//! ```text
//!  0         4        8              12
//!  +---------+--------+--------------+
//!  | segment | offset | value length |     each u32, little-endian
//!  +---------+--------+--------------+
//! ```
//!
//! The pointer follows the value's header (the engine's `header`). The offset is that of the
//! record; the key's length is known wherever a pointer is.
//!
//! A [`RecordPointer`] leads to a record of either format. To one of format 2 it is
//!
//! ```text
//!  0         4        8
//!  +---------+--------+---------------+-------------+
//!  | segment | offset | stored length | saved bytes |
//!  | u32     | u32    | varint        | varint      |
//!  +---------+--------+---------------+-------------+
//! ```
//!
//! where `saved bytes` is by how much the value is longer than what is stored: 0 where it is stored
//! as it is. So both lengths are known without a read. It is 10 to 18 bytes long, 11 of a value of
//! 300 bytes that takes 60; the value's header says which of the two pointers follows.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use crate::packed_record::{self, Lengths};
use crate::record::{MAX_VALUE_BYTES, record_bytes};
use crate::varint::{self, Varint};

/// The length of an encoded pointer.
pub const POINTER_BYTES: usize = 12;

/// The number of a segment. Numbers rise and are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentNumber(pub u32);

/// A map that is asked for each entry of a compaction.
pub type SegmentMap<V> = HashMap<SegmentNumber, V, BuildHasherDefault<SegmentHasher>>;

/// A set that is asked for each entry of a compaction.
pub type SegmentSet = HashSet<SegmentNumber, BuildHasherDefault<SegmentHasher>>;

/// Numbers of segments are given out one after the other by ourselves, so that nobody can choose
/// them to collide, and a multiplication spreads them well enough (Knuth, The Art of Computer
/// Programming 3, section 6.4).
#[derive(Debug, Clone, Copy, Default)]
pub struct SegmentHasher(u64);

impl Hasher for SegmentHasher {
    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.0 = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

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

/// The longest encoding of a pointer to a record of format 2.
pub const MAX_PACKED_POINTER_BYTES: usize = 18;

/// Where a value's record lies, of either format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordPointer {
    /// In which segment.
    pub segment: SegmentNumber,
    /// Where the record begins, in bytes from the begin of the segment.
    pub offset: u32,
    /// The length of the value.
    pub value_bytes: u32,
    /// How much of it is stored in a record of format 2, no more than the value; `None` where the
    /// record is of format 1.
    pub stored_bytes: Option<u32>,
}

impl From<Pointer> for RecordPointer {
    fn from(Pointer { segment, offset, value_bytes }: Pointer) -> Self {
        Self { segment, offset, value_bytes, stored_bytes: None }
    }
}

impl RecordPointer {
    /// Appends the pointer as it is stored: of a record of format 1 that of [`Pointer`].
    pub fn encode(self, to: &mut Vec<u8>) {
        let Self { segment, offset, value_bytes, stored_bytes } = self;
        let Some(stored) = stored_bytes else {
            return to.extend_from_slice(&Pointer { segment, offset, value_bytes }.encode());
        };
        to.extend_from_slice(&segment.0.to_le_bytes());
        to.extend_from_slice(&offset.to_le_bytes());
        let mut lengths = [0; 2 * varint::MAX_VARINT_BYTES];
        let mut length = varint::write(stored, &mut lengths);
        length += varint::write(value_bytes.saturating_sub(stored), &mut lengths[length..]);
        to.extend_from_slice(&lengths[..length]);
    }

    /// The pointer to a record of format 2 that `bytes` are; `None` where they are none.
    pub fn decode_packed(bytes: &[u8]) -> Option<Self> {
        let (segment, rest) = bytes.split_first_chunk::<4>()?;
        let (offset, rest) = rest.split_first_chunk::<4>()?;
        let Varint::Number(stored, length) = varint::read(rest) else { return None };
        let rest = &rest[length..];
        let Varint::Number(saved, length) = varint::read(rest) else { return None };
        let value_bytes = stored.checked_add(saved)?;
        (value_bytes as usize <= MAX_VALUE_BYTES && length == rest.len()).then_some(Self {
            segment: SegmentNumber(u32::from_le_bytes(*segment)),
            offset: u32::from_le_bytes(*offset),
            value_bytes,
            stored_bytes: Some(stored),
        })
    }

    /// By how much the value is longer than what is stored of it.
    pub fn saved_bytes(self) -> u32 {
        self.stored_bytes.map_or(0, |stored| self.value_bytes.saturating_sub(stored))
    }

    /// The lengths that a record of format 2 has; `None` of one of format 1.
    pub fn packed_lengths(self) -> Option<Lengths> {
        let lengths = |stored| Lengths { stored_bytes: stored as usize, value_bytes: self.value_bytes as usize };
        self.stored_bytes.map(lengths)
    }

    /// The length of the record of a key of `key_bytes`.
    pub fn record_bytes(self, key_bytes: usize) -> usize {
        let value_bytes = self.value_bytes as usize;
        match self.stored_bytes {
            None => record_bytes(key_bytes, value_bytes),
            Some(stored) => packed_record::record_bytes(key_bytes, stored as usize, value_bytes),
        }
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
    use crate::record::MAX_KEY_BYTES;
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

    fn encoded(pointer: RecordPointer) -> Vec<u8> {
        let mut bytes = b"before".to_vec();
        pointer.encode(&mut bytes);
        assert_eq!(&bytes[..6], b"before");
        bytes.split_off(6)
    }

    #[test]
    fn the_bytes_of_a_pointer_to_a_packed_record_never_change() {
        let pointer = RecordPointer {
            segment: SegmentNumber(0x0403_0201),
            offset: 0x0807_0605,
            value_bytes: 300,
            stored_bytes: Some(60),
        };
        assert_eq!(encoded(pointer), [1, 2, 3, 4, 5, 6, 7, 8, 60, 0xF0, 1]);
        let plain = RecordPointer { stored_bytes: Some(300), ..pointer };
        assert_eq!(encoded(plain), [1, 2, 3, 4, 5, 6, 7, 8, 0xAC, 2, 0]);
        let of_format_1 = Pointer { segment: pointer.segment, offset: pointer.offset, value_bytes: 300 };
        assert_eq!(encoded(of_format_1.into()), of_format_1.encode());
    }

    #[test]
    fn a_mutated_pointer_to_a_packed_record_is_one_or_is_refused_and_its_end_never_overflows() {
        let of = |offset, stored, value_bytes| {
            encoded(RecordPointer { segment: SegmentNumber(7), offset, value_bytes, stored_bytes: Some(stored) })
        };
        let longest = MAX_VALUE_BYTES as u32;
        mutated(&[of(32, 60, 300), of(u32::MAX, 0, longest), of(0, longest, longest)], |bytes, _| {
            let Some(pointer) = RecordPointer::decode_packed(&bytes) else { return };
            assert_eq!(encoded(pointer), bytes);
            assert!(bytes.len() <= MAX_PACKED_POINTER_BYTES);
            assert!(pointer.value_bytes as usize <= MAX_VALUE_BYTES);
            assert!(pointer.end(MAX_KEY_BYTES) < u64::from(pointer.offset) + (1 << 30));
        });
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_pointer_to_a_packed_record_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
            if let Some(pointer) = RecordPointer::decode_packed(&bytes) {
                prop_assert_eq!(encoded(pointer), bytes);
            }
        }

        #[test]
        fn what_is_encoded_of_a_packed_record_is_decoded(
            segment: u32,
            offset: u32,
            value_bytes in 0..=MAX_VALUE_BYTES as u32,
            stored: u32,
        ) {
            let stored_bytes = Some(stored % (value_bytes + 1));
            let pointer = RecordPointer { segment: SegmentNumber(segment), offset, value_bytes, stored_bytes };
            prop_assert_eq!(RecordPointer::decode_packed(&encoded(pointer)), Some(pointer));
        }

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
