//! What each fuzz target does with its input. Included by the targets of libFuzzer and by the tests
//! of `ecotone-valuelog`. A target panics where something is wrong.

#![allow(dead_code)] // each target of libFuzzer uses its part

use std::sync::LazyLock;

use ecotone_valuelog::compression::dictionary::{self, Dictionary, DictionaryId, MAX_DICTIONARY_BYTES};
use ecotone_valuelog::compression::{Codec, Level, Method, Stored, pack, unpack};
use ecotone_valuelog::packed_record;
use ecotone_valuelog::pointer::{MAX_PACKED_POINTER_BYTES, RecordPointer, SegmentNumber};
use ecotone_valuelog::segment_header::{self, SEGMENT_HEADER_BYTES};

/// Bytes as a disk, or an adversary, gives them: what decodes encodes to the same bytes.
pub fn records(input: &[u8]) {
    if let Some(pointer) = RecordPointer::decode_packed(input) {
        let mut again = Vec::new();
        pointer.encode(&mut again);
        assert_eq!(again, input);
        assert!(input.len() <= MAX_PACKED_POINTER_BYTES);
        assert!(pointer.record_bytes(7) > pointer.stored_bytes.expect("it is of format 2") as usize);
    }
    if let Some(found) = input.first_chunk::<SEGMENT_HEADER_BYTES>() {
        let number = SegmentNumber(u32::from_le_bytes([found[12], found[13], found[14], found[15]]));
        if let Ok(says) = segment_header::check(found, number) {
            assert_eq!(segment_header::encode(number, says), *found);
        }
        let _ = segment_header::is_one_but_for_a_bit(found);
    }
    // As one who knows the format would write it.
    let mut bytes = input.to_vec();
    if let Ok(need) = packed_record::announced_bytes(&bytes)
        && need <= bytes.len()
    {
        let checksum = crc32c::crc32c(&bytes[4..need]);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    }
    for bytes in [input, &bytes] {
        let Ok(layout) = packed_record::check(bytes) else { continue };
        let (key, stored) = (&bytes[layout.key.clone()], &bytes[layout.stored.clone()]);
        let header = packed_record::encode_header(layout.packing, key, stored, layout.value_bytes);
        assert_eq!([&header[..], key, stored].concat(), bytes[..layout.stored.end]);
        let lengths = packed_record::Lengths { stored_bytes: layout.stored.len(), value_bytes: layout.value_bytes };
        assert_eq!(
            packed_record::check_for(&bytes[..layout.stored.end], key, lengths).is_ok(),
            layout.value_in(DictionaryId::decode(1)).is_some()
        );
        assert_eq!(packed_record::flipped_bit_of(&bytes[..layout.stored.end], key, lengths), None);
    }
}

static DICTIONARY: LazyLock<Dictionary> = LazyLock::new(|| {
    let content = br#"{"device":"edge-0001","site":"plant-01/line-1","temperature":21.5,"status":"ok"}"#.repeat(10);
    Dictionary::new(content).expect("it has the length of one")
});

/// What was packed, or pretends to be: it gives the length that is stated, or an error, and takes
/// no more memory than that.
pub fn frames(input: &[u8]) {
    let [method, length_0, length_1, length_2, rest @ ..] = input else { return };
    let value_bytes = u32::from_le_bytes([*length_0, *length_1, *length_2 & 0x0F, 0]) as usize;
    let by = [Method::None, Method::Lz4, Method::Zstd][usize::from(method % 3)];
    let with = (method & 0x80 != 0).then_some(&*DICTIONARY);
    let stored = Stored { method: by, dictionary: with.map(Dictionary::id), value_bytes };
    let mut value = Vec::with_capacity(value_bytes);
    let capacity = value.capacity();
    let is_whole = unpack(stored, with, rest, &mut value).is_ok();
    assert_eq!(value.len(), if is_whole { value_bytes } else { 0 });
    assert_eq!(value.capacity(), capacity);
    // And as a value.
    for codec in [Codec::Lz4, Codec::Zstd(Level::MIN), Codec::Zstd(Level::MAX)] {
        let (mut packed, mut unpacked) = (Vec::new(), Vec::new());
        if let Some(stored) = pack(codec, with, rest, &mut packed) {
            assert!(packed.len() <= rest.len() - rest.len() / 8);
            unpack(stored, with, &packed, &mut unpacked).expect("what was packed is unpacked");
            assert_eq!(unpacked, rest);
        }
    }
    // And as a dictionary.
    if let Ok(content) = dictionary::unpack(DictionaryId::of(rest), stored, rest) {
        assert!(content == rest && content.len() <= MAX_DICTIONARY_BYTES);
    }
}
