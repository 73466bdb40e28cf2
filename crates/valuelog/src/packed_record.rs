//! One value in a segment of format 2, packed or as it is.
//!
//! ```text
//!  0        4         5
//!  +--------+---------+------------+---------------+- - - - - - - +-----+--------+
//!  | crc32c | packing | key length | stored length | saved bytes  | key | stored |
//!  | u32    | u8      | varint     | varint        | varint       |     |        |
//!  +--------+---------+------------+---------------+- - - - - - - +-----+--------+
//!           |<------------------ what the checksum is over ------------------->|
//! ```
//!
//! `saved bytes` is by how much the value is longer than what is stored; it is there where the value
//! is packed, and not 0. The packing is one of
//!
//! | byte | what is stored |
//! |---|---|
//! | 00 | the value |
//! | 01, 02 | the value, by LZ4, zstd |
//! | 11, 12 | the same, with the dictionary of the segment |
//! | 20, 22 | a dictionary as it is, by zstd; its key is its name, 8 bytes |
//!
//! Each record has one encoding. A dictionary is the first record of its segment, and no other is
//! one. Seven zeros are no record.

use std::ops::Range;

use crate::compression::dictionary::DictionaryId;
use crate::compression::{Method, Stored};
use crate::record::{self, MAX_KEY_BYTES, MAX_VALUE_BYTES, RecordError};
use crate::varint::{self, MAX_VARINT_BYTES, Varint, varint_bytes};

/// The longest that stands before the key.
pub const MAX_HEADER_BYTES: usize = PACKING_AT + 1 + 3 * MAX_VARINT_BYTES;

/// The shortest.
pub const MIN_HEADER_BYTES: usize = PACKING_AT + 3;

const PACKING_AT: usize = 4;
const WITH_DICTIONARY: u8 = 0x10;
const IS_DICTIONARY: u8 = 0x20;

/// What is in a record, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// A value.
    Value {
        /// How it is packed.
        method: Method,
        /// Whether with the dictionary of the segment.
        with_dictionary: bool,
    },
    /// The dictionary of the segment.
    Dictionary(Method),
}

impl Packing {
    /// That of a value.
    pub fn of(stored: &Stored) -> Self {
        Self::Value { method: stored.method, with_dictionary: stored.dictionary.is_some() }
    }

    fn encode(self) -> u8 {
        let by = |method| match method {
            Method::None => 0,
            Method::Lz4 => 1,
            Method::Zstd => 2,
        };
        match self {
            Self::Value { method, with_dictionary: false } => by(method),
            Self::Value { method, with_dictionary: true } => by(method) | WITH_DICTIONARY,
            Self::Dictionary(method) => by(method) | IS_DICTIONARY,
        }
    }

    fn decode(byte: u8) -> Option<Self> {
        Some(match byte {
            0x00 => Self::Value { method: Method::None, with_dictionary: false },
            0x01 => Self::Value { method: Method::Lz4, with_dictionary: false },
            0x02 => Self::Value { method: Method::Zstd, with_dictionary: false },
            0x11 => Self::Value { method: Method::Lz4, with_dictionary: true },
            0x12 => Self::Value { method: Method::Zstd, with_dictionary: true },
            0x20 => Self::Dictionary(Method::None),
            0x22 => Self::Dictionary(Method::Zstd),
            _ => return None,
        })
    }

    /// By what it is packed.
    pub fn method(self) -> Method {
        match self {
            Self::Value { method, .. } | Self::Dictionary(method) => method,
        }
    }

    /// Whether it is of a value that the dictionary of the segment is needed for.
    pub fn needs_dictionary(self) -> bool {
        matches!(self, Self::Value { with_dictionary: true, .. })
    }

    /// Whether what is stored is shorter than what it stands for.
    fn is_packed(self) -> bool {
        self.method() != Method::None
    }
}

/// The lengths of a value that its pointer states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// How much is stored.
    pub stored_bytes: usize,
    /// The length of the value: more than that where it is packed, and never less.
    pub value_bytes: usize,
}

/// What a record says of itself before its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    packing: Packing,
    key_bytes: usize,
    stored_bytes: usize,
    value_bytes: usize,
    /// The header's own length.
    bytes: usize,
}

impl Header {
    fn record_bytes(&self) -> usize {
        self.bytes + self.key_bytes + self.stored_bytes
    }
}

/// A record that is whole, and where its parts lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedLayout {
    /// What is stored, and how.
    pub packing: Packing,
    /// The key's bytes.
    pub key: Range<usize>,
    /// What is stored.
    pub stored: Range<usize>,
    /// The length of the value, or dictionary, that it stands for.
    pub value_bytes: usize,
}

impl PackedLayout {
    /// How its value is stored, in a segment of that dictionary. `None` where it has no value, or
    /// needs a dictionary, and the segment names none.
    pub fn value_in(&self, dictionary: Option<DictionaryId>) -> Option<Stored> {
        let Packing::Value { method, with_dictionary } = self.packing else { return None };
        let dictionary = if with_dictionary { Some(dictionary?) } else { None };
        Some(Stored { method, dictionary, value_bytes: self.value_bytes })
    }
}

/// The bytes of the record of a key, and a value of which so much is stored. It is packed where that
/// is less than the value.
pub const fn record_bytes(key_bytes: usize, stored_bytes: usize, value_bytes: usize) -> usize {
    let saved = match value_bytes - stored_bytes {
        0 => 0,
        saved => varint_bytes(saved as u32),
    };
    PACKING_AT
        + 1
        + varint_bytes(key_bytes as u32)
        + varint_bytes(stored_bytes as u32)
        + saved
        + key_bytes
        + stored_bytes
}

/// The bytes before the key of a record.
#[derive(Debug, Clone, Copy)]
pub struct EncodedHeader {
    bytes: [u8; MAX_HEADER_BYTES],
    length: usize,
}

impl std::ops::Deref for EncodedHeader {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The header of a record of `key` and a value of `value_bytes`, of which `stored` is stored.
///
/// Lengths are those that a store takes, and `stored` is no longer than the value.
pub fn encode_header(packing: Packing, key: &[u8], stored: &[u8], value_bytes: usize) -> EncodedHeader {
    let mut header = unchecked_header(packing, key.len(), stored.len(), value_bytes);
    let checksum = checksum_of(&header, key, stored);
    header.bytes[..PACKING_AT].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// The same without a checksum.
fn unchecked_header(packing: Packing, key_bytes: usize, stored_bytes: usize, value_bytes: usize) -> EncodedHeader {
    let mut bytes = [0; MAX_HEADER_BYTES];
    bytes[PACKING_AT] = packing.encode();
    let mut length = PACKING_AT + 1;
    length += varint::write(key_bytes as u32, &mut bytes[length..]);
    length += varint::write(stored_bytes as u32, &mut bytes[length..]);
    if packing.is_packed() {
        length += varint::write((value_bytes - stored_bytes) as u32, &mut bytes[length..]);
    }
    EncodedHeader { bytes, length }
}

fn checksum_of(header: &[u8], key: &[u8], stored: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&header[PACKING_AT..]), key), stored)
}

fn header(bytes: &[u8]) -> Result<Header, RecordError> {
    let cut = || RecordError::Truncated { have: bytes.len(), need: (bytes.len() + 1).max(MIN_HEADER_BYTES) };
    let packing = *bytes.get(PACKING_AT).ok_or_else(cut)?;
    let packing = Packing::decode(packing).ok_or(RecordError::Packing(packing))?;
    let mut at = PACKING_AT + 1;
    let mut next = || match varint::read(&bytes[at..]) {
        Varint::Number(number, length) => {
            at += length;
            Ok(number)
        }
        Varint::Cut => Err(cut()),
        Varint::Wrong => Err(RecordError::LengthEncoding),
    };
    let (key_bytes, stored_bytes) = (next()?, next()?);
    let saved = match packing.is_packed() {
        true => next()?,
        false => 0,
    };
    let wrong = RecordError::Length { key_bytes, value_bytes: stored_bytes.saturating_add(saved) };
    let value_bytes = u64::from(stored_bytes) + u64::from(saved);
    if key_bytes as usize > MAX_KEY_BYTES
        || value_bytes > MAX_VALUE_BYTES as u64
        || packing.is_packed() != (saved > 0)
        || (matches!(packing, Packing::Dictionary(_)) && key_bytes as usize != DICTIONARY_KEY_BYTES)
    {
        return Err(wrong);
    }
    let [key_bytes, stored_bytes] = [key_bytes, stored_bytes].map(|length| length as usize);
    Ok(Header { packing, key_bytes, stored_bytes, value_bytes: value_bytes as usize, bytes: at })
}

/// The key of a dictionary: its name.
pub const DICTIONARY_KEY_BYTES: usize = 8;

/// The length of the record that begins `bytes`, as it says itself; its checksum is not looked at.
///
/// # Errors
///
/// [`RecordError::Truncated`] where there is no whole header, others where it cannot be one.
pub fn announced_bytes(bytes: &[u8]) -> Result<usize, RecordError> {
    header(bytes).map(|header| header.record_bytes())
}

/// How what is in the record that begins `bytes` is packed, as it says itself; `None` where it cannot
/// be one. Its checksum is not looked at.
pub fn packing(bytes: &[u8]) -> Option<Packing> {
    bytes.get(PACKING_AT).copied().and_then(Packing::decode)
}

/// Checks the record that begins `bytes`, and says where its parts lie.
///
/// # Errors
///
/// Whatever is wrong with it. Never panics, whatever the bytes are.
pub fn check(bytes: &[u8]) -> Result<PackedLayout, RecordError> {
    let header = header(bytes)?;
    let need = header.record_bytes();
    let Some(record) = bytes.get(..need) else {
        return Err(RecordError::Truncated { have: bytes.len(), need });
    };
    let Some((stored, rest)) = record.split_first_chunk::<PACKING_AT>() else {
        return Err(RecordError::Truncated { have: bytes.len(), need });
    };
    let (stored, computed) = (u32::from_le_bytes(*stored), crc32c::crc32c(rest));
    if stored != computed {
        return Err(RecordError::Checksum { stored, computed });
    }
    let key_end = header.bytes + header.key_bytes;
    Ok(PackedLayout {
        packing: header.packing,
        key: header.bytes..key_end,
        stored: key_end..need,
        value_bytes: header.value_bytes,
    })
}

/// Like [`check`], for a record that must be the whole of `bytes`, and a value of `key` of these
/// lengths.
///
/// # Errors
///
/// As [`check`], and [`RecordError::AnotherKey`].
pub fn check_for(bytes: &[u8], key: &[u8], lengths: Lengths) -> Result<PackedLayout, RecordError> {
    let layout = check(bytes)?;
    if matches!(layout.packing, Packing::Dictionary(_))
        || layout.stored.end != bytes.len()
        || bytes[layout.key.clone()] != *key
        || (Lengths { stored_bytes: layout.stored.len(), value_bytes: layout.value_bytes }) != lengths
    {
        return Err(RecordError::AnotherKey);
    }
    Ok(layout)
}

/// Which bit of `bytes` would have to be another for them to be the record of `key` and a value of
/// these lengths, counted from the least of the first byte on, if one alone. Of other damage to a
/// record of 1 MiB one in some hundred looks so.
pub fn flipped_bit_of(bytes: &[u8], key: &[u8], lengths: Lengths) -> Option<usize> {
    let Lengths { stored_bytes, value_bytes } = lengths;
    let is_packed = value_bytes > stored_bytes;
    let found = *bytes.get(PACKING_AT)?;
    // By what it was packed nobody else says: it is what the record says, or one bit from that.
    let candidates = [0x00, 0x01, 0x02, 0x11, 0x12].into_iter().filter_map(Packing::decode);
    let mut bits = candidates
        .filter(|packing| packing.is_packed() == is_packed && (packing.encode() ^ found).count_ones() <= 1)
        .filter_map(|packing| {
            let header = unchecked_header(packing, key.len(), stored_bytes, value_bytes);
            record::flipped_bit_behind(bytes, &[&header[PACKING_AT..], key].concat())
        });
    bits.next()
}

/// Which bit of `bytes` would have to be another for them to begin with the record of the dictionary
/// of that name, if one alone, and how long that record is. `bytes` are as they were afterwards.
///
/// Nobody else knows its lengths, and how it is packed: where they are what is wrong, each bit of
/// them is tried. With the checksum, the name tells a record from what only looks like one.
pub fn flipped_bit_of_dictionary(bytes: &mut [u8], name: DictionaryId) -> Option<(usize, usize)> {
    let name = name.get().to_le_bytes();
    let is_it = |bytes: &[u8], packing, key: Range<usize>| {
        matches!(packing, Packing::Dictionary(_)) && bytes.get(key) == Some(&name)
    };
    let tried = PACKING_AT * 8..bytes.len().min(MAX_HEADER_BYTES + DICTIONARY_KEY_BYTES) * 8;
    for bit in tried {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let is_named = header(bytes)
            .is_ok_and(|header| is_it(bytes, header.packing, header.bytes..header.bytes + header.key_bytes));
        let checked = is_named.then(|| check(bytes).ok()).flatten();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Some(layout) = checked {
            return Some((bit, layout.stored.end));
        }
    }
    // It is in the checksum, or in the content.
    let header = header(bytes).ok()?;
    let key_end = header.bytes + header.key_bytes;
    if !is_it(bytes, header.packing, header.bytes..key_end) {
        return None;
    }
    let record = bytes.get(..header.record_bytes())?;
    record::flipped_bit_behind(record, &record[PACKING_AT..key_end]).map(|bit| (bit, record.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::mutated;
    use proptest::prelude::*;

    fn lengths(stored: &[u8], value_bytes: usize) -> Lengths {
        Lengths { stored_bytes: stored.len(), value_bytes }
    }

    fn encode(packing: Packing, key: &[u8], stored: &[u8], value_bytes: usize) -> Vec<u8> {
        [&encode_header(packing, key, stored, value_bytes)[..], key, stored].concat()
    }

    fn packings() -> Vec<Packing> {
        (0..=u8::MAX).filter_map(Packing::decode).collect()
    }

    const PLAIN: Packing = Packing::Value { method: Method::None, with_dictionary: false };
    const BY_ZSTD: Packing = Packing::Value { method: Method::Zstd, with_dictionary: true };

    #[test]
    fn the_bytes_of_a_record_never_change() {
        let record = encode(PLAIN, b"key", b"value", 5);
        assert_eq!(record[4..], *b"\x00\x03\x05keyvalue");
        assert_eq!(record[..4], crc32c::crc32c(&record[4..]).to_le_bytes());
        let record = encode(BY_ZSTD, b"key", b"stored", 306);
        assert_eq!(record[4..], *b"\x12\x03\x06\xac\x02keystored");
        let record = encode(Packing::Dictionary(Method::Zstd), b"its name", b"content", 8);
        assert_eq!(record[4..], *b"\x22\x08\x07\x01its namecontent");
        assert_eq!(packings().into_iter().map(Packing::encode).collect::<Vec<_>>(), [0, 1, 2, 0x11, 0x12, 0x20, 0x22]);
    }

    #[test]
    fn zeros_are_no_record() {
        for length in 0..40 {
            assert!(check(&vec![0; length]).is_err());
        }
    }

    /// A record of any kind, and what it was made of.
    fn any_record() -> impl Strategy<Value = (Packing, Vec<u8>, Vec<u8>, usize)> {
        let bytes = |most| prop::collection::vec(any::<u8>(), 0..most);
        (prop::sample::select(packings()), bytes(200), bytes(300), 1_usize..100_000).prop_map(
            |(packing, mut key, stored, saved)| {
                if matches!(packing, Packing::Dictionary(_)) {
                    key.resize(DICTIONARY_KEY_BYTES, 0);
                }
                let value_bytes = stored.len() + if packing.is_packed() { saved } else { 0 };
                (packing, key, stored, value_bytes)
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read((packing, key, stored, value_bytes) in any_record(), behind: Vec<u8>) {
            let record = encode(packing, &key, &stored, value_bytes);
            prop_assert_eq!(record.len(), record_bytes(key.len(), stored.len(), value_bytes));
            let in_segment = [&record[..], &behind].concat();
            let layout = check(&in_segment).unwrap();
            prop_assert_eq!((&in_segment[layout.key.clone()], &in_segment[layout.stored.clone()]), (&key[..], &stored[..]));
            prop_assert_eq!((layout.packing, layout.value_bytes), (packing, value_bytes));
            let whole = check_for(&record, &key, lengths(&stored, value_bytes));
            match packing {
                Packing::Dictionary(_) => prop_assert_eq!(whole, Err(RecordError::AnotherKey)),
                Packing::Value { .. } => prop_assert_eq!(whole, Ok(layout)),
            }
        }

        #[test]
        fn a_flipped_bit_is_noticed_and_found(
            (packing, key, stored, value_bytes) in any_record(),
            bits: [prop::sample::Index; 2],
        ) {
            prop_assume!(!matches!(packing, Packing::Dictionary(_)));
            let record = encode(packing, &key, &stored, value_bytes);
            let lengths = lengths(&stored, value_bytes);
            prop_assert_eq!(flipped_bit_of(&record, &key, lengths), None, "nothing is wrong with it");
            let [one, other] = bits.map(|bit| bit.index(record.len() * 8));
            let flip = |bit: usize, record: &mut Vec<u8>| record[bit / 8] ^= 1 << (bit % 8);
            let mut flipped = record.clone();
            flip(one, &mut flipped);
            prop_assert!(check_for(&flipped, &key, lengths).is_err());
            prop_assert_eq!(flipped_bit_of(&flipped, &key, lengths), Some(one));
            flip(other, &mut flipped);
            prop_assert_eq!(flipped_bit_of(&flipped, &key, lengths), None, "two, or none");
        }

        #[test]
        fn a_cut_record_is_noticed((packing, key, stored, value_bytes) in any_record(), at: prop::sample::Index) {
            let record = encode(packing, &key, &stored, value_bytes);
            let cut = at.index(record.len());
            match check(&record[..cut]) {
                // So that one who reads more comes to an end.
                Err(RecordError::Truncated { have, need }) => {
                    prop_assert!(have == cut && cut < need && need <= record.len());
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }

        #[test]
        fn any_bytes_are_a_record_or_an_error(bytes: Vec<u8>) {
            if let Ok(layout) = check(&bytes) {
                let (key, stored) = (&bytes[layout.key], &bytes[layout.stored.clone()]);
                prop_assert_eq!(&encode(layout.packing, key, stored, layout.value_bytes)[..], &bytes[..layout.stored.end]);
            }
        }
    }

    #[test]
    fn a_mutated_record_is_one_or_is_refused() {
        let records = [
            encode(PLAIN, b"", b"", 0),
            encode(PLAIN, b"key", b"value", 5),
            encode(BY_ZSTD, &[1; 40], &[2; 300], 70_000),
            encode(Packing::Dictionary(Method::Zstd), &[3; 8], &[4; 100], 1000),
        ];
        mutated(&records, |mut bytes, random| {
            // Half of them as one who knows the format would write them.
            if let Ok(need) = announced_bytes(&bytes)
                && need <= bytes.len()
                && random.once_in(2)
            {
                let checksum = crc32c::crc32c(&bytes[4..need]);
                bytes[..4].copy_from_slice(&checksum.to_le_bytes());
            }
            if let Ok(layout) = check(&bytes) {
                let (key, stored) = (&bytes[layout.key.clone()], &bytes[layout.stored.clone()]);
                assert_eq!(encode(layout.packing, key, stored, layout.value_bytes), bytes[..layout.stored.end]);
                assert!(layout.value_bytes <= MAX_VALUE_BYTES && layout.value_bytes >= stored.len());
                assert_eq!(
                    layout.value_in(None).is_some(),
                    matches!(layout.packing, Packing::Value { with_dictionary: false, .. })
                );
            }
        });
    }

    #[test]
    fn what_a_pointer_does_not_say_is_refused() {
        let record = encode(BY_ZSTD, b"ab", b"stored", 306);
        let right = lengths(b"stored", 306);
        assert!(check_for(&record, b"ab", right).is_ok());
        for wrong in [Lengths { value_bytes: 305, ..right }, Lengths { stored_bytes: 5, ..right }] {
            assert_eq!(check_for(&record, b"ab", wrong), Err(RecordError::AnotherKey));
        }
        assert_eq!(check_for(&record, b"a", right), Err(RecordError::AnotherKey));
        assert_eq!(check_for(&[&record[..], b"x"].concat(), b"ab", right), Err(RecordError::AnotherKey));
    }
}
