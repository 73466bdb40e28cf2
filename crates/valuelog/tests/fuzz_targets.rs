//! The fuzz targets, on the stable compiler: mutations of sound inputs, the same in every run. See
//! `fuzz/README.md`.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

#[path = "../../engine/src/mutation.rs"]
mod mutation;
#[path = "../fuzz/targets.rs"]
mod targets;

use ecotone_valuelog::compression::{Codec, Level, Method, pack};
use ecotone_valuelog::packed_record::{Packing, encode_header};
use ecotone_valuelog::pointer::{RecordPointer, SegmentNumber};
use ecotone_valuelog::segment_header::{SegmentFormat, SegmentHeader, encode};

use mutation::mutated;

include!("common/telemetry.rs");

#[test]
fn records_decode_strictly() {
    let mut pointer = Vec::new();
    let stored_bytes = Some(60);
    RecordPointer { segment: SegmentNumber(7), offset: 32, value_bytes: 300, stored_bytes }.encode(&mut pointer);
    let head = SegmentHeader { format: SegmentFormat::Packed(None), resting_level: Some(3) };
    let record = |packing, key: &[u8], value_bytes: usize| {
        [&encode_header(packing, key, b"stored", value_bytes)[..], key, b"stored"].concat()
    };
    let plain = Packing::Value { method: Method::None, with_dictionary: false };
    let packed = Packing::Value { method: Method::Zstd, with_dictionary: true };
    let inputs = [
        pointer,
        encode(SegmentNumber(7), head).to_vec(),
        record(plain, b"key", 6),
        record(packed, b"key", 300),
        record(Packing::Dictionary(Method::Zstd), b"its name", 4096),
    ];
    mutated(&inputs, |input, _| targets::records(&input));
}

#[test]
fn frames_give_what_they_state_or_an_error() {
    let mut inputs = vec![[&[0, 44, 1, 0][..], &telemetry(1, 300)].concat()];
    for (method, codec) in [(1, Codec::Lz4), (2, Codec::Zstd(Level::MIN))] {
        for bytes in [1000, 4000] {
            let [low, high, ..] = u32::to_le_bytes(bytes as u32);
            let mut packed = Vec::new();
            pack(codec, None, &telemetry(1, bytes), &mut packed).unwrap();
            inputs.push([&[method, low, high, 0][..], &packed].concat());
        }
    }
    mutated(&inputs, |input, _| targets::frames(&input));
}
