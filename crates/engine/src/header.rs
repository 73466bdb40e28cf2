//! The header that begins every stored value: one byte in the common case.
//!
//! ```text
//!            7 6   5   4   3   2   1 0
//!          +-----+---+---+---+---+-----+ - - - - - - - - - + - - - - - - - - - + - - - - - - - + - - - - -
//!  byte 0  | 0 1 | 0 | T | V | E |  K  |  expiry (if E)    |  version (if V)   |  type (if T)  |  payload
//!          +-----+---+---+---+---+-----+ - - - - - - - - - + - - - - - - - - - + - - - - - - - + - - - - -
//!          format  must                  8 bytes, u64,       8 bytes, u64,       1 byte
//!          version be 0                  little-endian,      little-endian
//!                                        ms since 1970 UTC
//! ```
//!
//! - Format version: `01` is format 1, this one. `00` is never used, so that a zeroed byte is
//!   refused. `10` and `11` are kept for later formats.
//! - `K`, the kind of the payload: `00` inline (the payload is the value). `01` separated: the
//!   payload is a pointer to a record of format 1 of the value log. `10` separated: to a record of
//!   format 2, where the value may be compressed (both: see [`ecotone_valuelog::pointer`]). `11` is
//!   free; this version refuses it.
//! - `E`: an expiry follows. `V`: a version follows. `T`: a type follows. None may be 0: absent is
//!   how none is written, so that every value has exactly one encoding.
//!
//! The header stands with the key, never in the value log, so that no decision of a compaction
//! needs the value. The store keeps expiry, version and type; what they mean is for the layer
//! above. Decoding is strict: a byte that this version does not know is an error, never a guess.

use std::num::NonZeroU8;

use ecotone_valuelog::pointer::{MAX_PACKED_POINTER_BYTES, POINTER_BYTES, Pointer, RecordPointer};
use ecotone_valuelog::record::MAX_VALUE_BYTES;

const FORMAT_MASK: u8 = 0b1100_0000;
const FORMAT_1: u8 = 0b0100_0000;
const RESERVED_MASK: u8 = 0b0010_0000;
const HAS_TYPE: u8 = 0b0001_0000;
const HAS_VERSION: u8 = 0b0000_1000;
const HAS_EXPIRY: u8 = 0b0000_0100;
const KIND_MASK: u8 = 0b0000_0011;
const KIND_INLINE: u8 = 0b00;
const KIND_SEPARATED: u8 = 0b01;
const KIND_PACKED: u8 = 0b10;

/// The header of a plain value: format 1, inline, no expiry, no version, no type.
pub const PLAIN: u8 = FORMAT_1 | KIND_INLINE;

/// The longest header, in bytes.
pub const MAX_HEADER_BYTES: usize = 18;

/// What stands beside a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// When the value expires, in ms since 1970 UTC; not 0. The store keeps it and does not act on
    /// it.
    pub expires_at_ms: Option<u64>,
    /// A version that the layer above gives to the value; not 0. The store keeps it and does not
    /// act on it.
    pub version: Option<u64>,
    /// A type that the layer above gives to the value. The store keeps it and does not act on it.
    pub type_tag: Option<NonZeroU8>,
}

impl Attributes {
    /// Neither expiry, version nor type.
    pub const NONE: Self = Self { expires_at_ms: None, version: None, type_tag: None };

    /// Whether they can be encoded.
    ///
    /// Errors: an expiry or a version of 0.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), HeaderError> {
        if self.expires_at_ms == Some(0) {
            return Err(HeaderError::Zero("expiry"));
        }
        if self.version == Some(0) {
            return Err(HeaderError::Zero("version"));
        }
        Ok(())
    }
}

/// A header that cannot be decoded, or attributes that cannot be encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// There is no byte at all.
    #[error("the value has no header")]
    Empty,
    /// The two format bits are not those of format 1.
    #[error("value header byte {0:#04x} is of a format that this version does not know")]
    UnknownFormat(u8),
    /// A bit that must be 0 is set.
    #[error("value header byte {0:#04x} sets a bit that this version does not know")]
    ReservedBits(u8),
    /// The kind is not one this version can read.
    #[error("value header byte {0:#04x} is of a kind that this version does not know")]
    UnknownKind(u8),
    /// The value ends inside its header.
    #[error("the value ends inside its header: {have} of {need} bytes")]
    Truncated {
        /// Bytes there are.
        have: usize,
        /// Bytes the first byte asks for.
        need: usize,
    },
    /// The payload of a separated value is not a pointer.
    #[error("the value's pointer cannot be one: it has {0} bytes")]
    Pointer(usize),
    /// A separated value in a store that has no value log.
    #[error("the value is in the value log, and the store has none")]
    NoValueLog,
    /// An expiry, version or type of 0, which is written as its absence.
    #[error("the value's {0} is 0, which is written as its absence")]
    Zero(&'static str),
}

/// Where the value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Behind the header.
    Inline,
    /// In the value log.
    Separated(RecordPointer),
}

/// A decoded header: its attributes, where the value is, and where the payload begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Expiry, version and type.
    pub attributes: Attributes,
    /// Where the value is.
    pub kind: Kind,
    /// The header's length in bytes: 1, 9 or 17, and one more with a type.
    pub bytes: usize,
}

impl Header {
    const PLAIN: Self = Self { attributes: Attributes::NONE, kind: Kind::Inline, bytes: 1 };

    /// Decodes the header that begins `stored`; the payload is `stored[header.bytes..]`, and behind
    /// a separated value's there is nothing.
    #[inline]
    pub fn decode(stored: &[u8]) -> Result<Self, HeaderError> {
        match stored.first() {
            Some(&PLAIN) => Ok(Self::PLAIN),
            Some(&first) => Self::decode_longer(first, stored),
            None => Err(HeaderError::Empty),
        }
    }

    fn decode_longer(first: u8, stored: &[u8]) -> Result<Self, HeaderError> {
        if first & FORMAT_MASK != FORMAT_1 {
            return Err(HeaderError::UnknownFormat(first));
        }
        if first & RESERVED_MASK != 0 {
            return Err(HeaderError::ReservedBits(first));
        }
        let kind = first & KIND_MASK;
        if !matches!(kind, KIND_INLINE | KIND_SEPARATED | KIND_PACKED) {
            return Err(HeaderError::UnknownKind(first));
        }
        let fields = usize::from(first & HAS_EXPIRY != 0) + usize::from(first & HAS_VERSION != 0);
        let need = 1 + 8 * fields + usize::from(first & HAS_TYPE != 0);
        let Some(mut rest) = stored.get(1..need) else {
            return Err(HeaderError::Truncated { have: stored.len(), need });
        };
        let mut next = |name: &'static str| {
            let (field, after) = rest.split_first_chunk::<8>().ok_or(HeaderError::Zero(name))?;
            rest = after;
            match u64::from_le_bytes(*field) {
                0 => Err(HeaderError::Zero(name)),
                set => Ok(set),
            }
        };
        let expires_at_ms = if first & HAS_EXPIRY != 0 { Some(next("expiry")?) } else { None };
        let version = if first & HAS_VERSION != 0 { Some(next("version")?) } else { None };
        let type_tag = match (first & HAS_TYPE != 0, rest) {
            (true, [tag]) => Some(NonZeroU8::new(*tag).ok_or(HeaderError::Zero("type"))?),
            _ => None,
        };
        let payload = &stored[need..];
        let pointer = match kind {
            KIND_SEPARATED => Pointer::decode(payload).map(RecordPointer::from),
            KIND_PACKED => RecordPointer::decode_packed(payload),
            _ => {
                return Ok(Self {
                    attributes: Attributes { expires_at_ms, version, type_tag },
                    kind: Kind::Inline,
                    bytes: need,
                });
            }
        };
        let kind = Kind::Separated(pointer.ok_or(HeaderError::Pointer(payload.len()))?);
        Ok(Self { attributes: Attributes { expires_at_ms, version, type_tag }, kind, bytes: need })
    }
}

/// Appends the header of an inline value to `to`.
///
/// Errors: an expiry or a version of 0.
#[inline]
pub fn encode_inline(attributes: &Attributes, to: &mut Vec<u8>) -> Result<(), HeaderError> {
    attributes.check()?;
    let Attributes { expires_at_ms, version, type_tag } = *attributes;
    let expiry_bit = if expires_at_ms.is_some() { HAS_EXPIRY } else { 0 };
    let version_bit = if version.is_some() { HAS_VERSION } else { 0 };
    let type_bit = if type_tag.is_some() { HAS_TYPE } else { 0 };
    to.push(PLAIN | expiry_bit | version_bit | type_bit);
    for field in [expires_at_ms, version].into_iter().flatten() {
        to.extend_from_slice(&field.to_le_bytes());
    }
    to.extend(type_tag.map(NonZeroU8::get));
    Ok(())
}

/// The length of the header of an inline value.
#[inline]
pub(crate) fn inline_header_bytes(attributes: &Attributes) -> usize {
    let Attributes { expires_at_ms, version, type_tag } = attributes;
    let fields = usize::from(expires_at_ms.is_some()) + usize::from(version.is_some());
    1 + 8 * fields + usize::from(type_tag.is_some())
}

/// Appends what is stored instead of the inline value that `header` begins, once its payload is in
/// the value log.
///
/// `header` is the bytes of the header alone.
pub(crate) fn encode_separated(header: &[u8], pointer: RecordPointer, to: &mut Vec<u8>) {
    let begin = to.len();
    to.extend_from_slice(header);
    let kind = if pointer.stored_bytes.is_some() { KIND_PACKED } else { KIND_SEPARATED };
    to[begin] = to[begin] & !KIND_MASK | kind;
    pointer.encode(to);
}

/// The longest value that separates its payload from its key, in bytes.
pub const MAX_SEPARATED_BYTES: usize = MAX_HEADER_BYTES + MAX_PACKED_POINTER_BYTES;
const _: () = assert!(POINTER_BYTES <= MAX_PACKED_POINTER_BYTES);

// A stored value must fit RocksDB's 32-bit lengths with its header.
const _: () = assert!(MAX_VALUE_BYTES + MAX_HEADER_BYTES < u32::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::mutated;
    use ecotone_valuelog::pointer::SegmentNumber;
    use proptest::prelude::*;

    fn attributes() -> impl Strategy<Value = Attributes> {
        let field = || proptest::option::of(1..=u64::MAX);
        (field(), field(), any::<Option<NonZeroU8>>()).prop_map(|(expires_at_ms, version, type_tag)| Attributes {
            expires_at_ms,
            version,
            type_tag,
        })
    }

    #[test]
    fn the_bytes_of_format_1_never_change() {
        let encoded = |attributes| {
            let mut bytes = Vec::new();
            encode_inline(&attributes, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(encoded(Attributes::NONE), [0x40]);
        assert_eq!(
            encoded(Attributes { expires_at_ms: Some(0x0102_0304_0506_0708), ..Attributes::NONE }),
            [0x44, 8, 7, 6, 5, 4, 3, 2, 1]
        );
        assert_eq!(encoded(Attributes { version: Some(1), ..Attributes::NONE }), [0x48, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            encoded(Attributes { expires_at_ms: Some(2), version: Some(3), ..Attributes::NONE }),
            [0x4c, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]
        );
        let typed = Attributes { type_tag: NonZeroU8::new(5), ..Attributes::NONE };
        assert_eq!(encoded(typed), [0x50, 5]);
        assert_eq!(
            encoded(Attributes { expires_at_ms: Some(2), version: Some(3), ..typed }),
            [0x5c, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 5]
        );
    }

    #[test]
    fn every_first_byte_is_either_known_or_refused_with_its_reason() {
        for first in 0..=u8::MAX {
            let mut stored = vec![first];
            // No pointer, of whatever length.
            stored.extend_from_slice(&[0xFF; 18]);
            let decoded = Header::decode(&stored);
            match first {
                0x40 | 0x44 | 0x48 | 0x4c | 0x50 | 0x54 | 0x58 | 0x5c => assert!(decoded.is_ok(), "{first:#x}"),
                0x41 | 0x45 | 0x49 | 0x4d | 0x51 | 0x55 | 0x59 | 0x5d | 0x42 | 0x46 | 0x4a | 0x4e | 0x52 | 0x56
                | 0x5a | 0x5e => {
                    assert!(matches!(decoded, Err(HeaderError::Pointer(_))), "{first:#x}");
                }
                _ if first >> 6 != 1 => assert_eq!(decoded, Err(HeaderError::UnknownFormat(first))),
                _ if first & 0x20 != 0 => assert_eq!(decoded, Err(HeaderError::ReservedBits(first))),
                _ => assert_eq!(decoded, Err(HeaderError::UnknownKind(first))),
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(attributes in attributes(), payload: Vec<u8>) {
            let mut stored = Vec::new();
            encode_inline(&attributes, &mut stored).unwrap();
            prop_assert!(stored.len() <= MAX_HEADER_BYTES);
            let begin = stored.len();
            prop_assert_eq!(begin, inline_header_bytes(&attributes));
            stored.extend_from_slice(&payload);
            let header = Header::decode(&stored).unwrap();
            prop_assert_eq!(header, Header { attributes, kind: Kind::Inline, bytes: begin });
            prop_assert_eq!(&stored[header.bytes..], &payload[..]);
        }

        #[test]
        fn any_bytes_decode_to_what_encodes_back_to_them_or_to_an_error(stored: Vec<u8>) {
            if let Ok(header) = Header::decode(&stored) {
                let mut inline = Vec::new();
                encode_inline(&header.attributes, &mut inline).unwrap();
                match header.kind {
                    Kind::Inline => prop_assert_eq!(&stored[..header.bytes], &inline[..]),
                    Kind::Separated(pointer) => {
                        let mut again = Vec::new();
                        encode_separated(&inline, pointer, &mut again);
                        prop_assert_eq!(stored, again);
                    }
                }
            }
        }

        #[test]
        fn a_pointer_stands_behind_the_same_header(attributes in attributes(), segment: u32, offset: u32, value_bytes in 0..1_000_000_u32, stored_share in proptest::option::of(0..=100_u32)) {
            let stored_bytes = stored_share.map(|share| value_bytes / 100 * share);
            let pointer = RecordPointer { segment: SegmentNumber(segment), offset, value_bytes, stored_bytes };
            let (mut inline, mut stored) = (Vec::new(), Vec::new());
            encode_inline(&attributes, &mut inline).unwrap();
            encode_separated(&inline, pointer, &mut stored);
            prop_assert!(stored.len() <= MAX_SEPARATED_BYTES);
            let header = Header { attributes, kind: Kind::Separated(pointer), bytes: inline.len() };
            prop_assert_eq!(Header::decode(&stored), Ok(header));
            for cut in 0..stored.len() {
                prop_assert!(Header::decode(&stored[..cut]).is_err());
            }
            stored.push(0);
            prop_assert!(Header::decode(&stored).is_err(), "nothing may follow a pointer");
        }

        #[test]
        fn a_cut_header_is_refused(attributes in attributes()) {
            let mut stored = Vec::new();
            encode_inline(&attributes, &mut stored).unwrap();
            for cut in 0..stored.len() {
                prop_assert!(Header::decode(&stored[..cut]).is_err());
            }
        }
    }

    #[test]
    fn a_mutated_header_is_one_or_is_refused() {
        let both = Attributes { expires_at_ms: Some(1_900_000_000_000), version: Some(7), type_tag: None };
        let all = Attributes { type_tag: NonZeroU8::new(3), ..both };
        let plain = RecordPointer { segment: SegmentNumber(7), offset: 32, value_bytes: 1000, stored_bytes: None };
        let packed = RecordPointer { stored_bytes: Some(130), ..plain };
        let mut originals = Vec::new();
        for attributes in [Attributes::NONE, Attributes { version: None, ..both }, both, all] {
            let (mut inline, mut separated, mut of_packed) = (Vec::new(), Vec::new(), Vec::new());
            encode_inline(&attributes, &mut inline).unwrap();
            encode_separated(&inline, plain, &mut separated);
            encode_separated(&inline, packed, &mut of_packed);
            inline.extend_from_slice(b"value");
            originals.extend([inline, separated, of_packed]);
        }
        mutated(&originals, |stored, _| {
            let Ok(header) = Header::decode(&stored) else { return };
            let (mut inline, mut again) = (Vec::new(), Vec::new());
            encode_inline(&header.attributes, &mut inline).unwrap();
            match header.kind {
                Kind::Inline => again.extend([&inline, &stored[header.bytes..]].concat()),
                Kind::Separated(pointer) => encode_separated(&inline, pointer, &mut again),
            }
            assert_eq!(again, stored);
        });
    }

    #[test]
    fn zero_fields_are_refused_both_ways() {
        for zero in [
            Attributes { expires_at_ms: Some(0), ..Attributes::NONE },
            Attributes { version: Some(0), ..Attributes::NONE },
        ] {
            assert!(encode_inline(&zero, &mut Vec::new()).is_err());
        }
        assert_eq!(Header::decode(&[0x44, 0, 0, 0, 0, 0, 0, 0, 0]), Err(HeaderError::Zero("expiry")));
        assert_eq!(Header::decode(&[0x48, 0, 0, 0, 0, 0, 0, 0, 0]), Err(HeaderError::Zero("version")));
        assert_eq!(Header::decode(&[0x50, 0]), Err(HeaderError::Zero("type")));
    }
}
