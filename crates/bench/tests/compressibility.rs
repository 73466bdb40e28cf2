//! How far compressors shorten the values of benchmarks: they must be what they are said to be.
//!
//! Measured with RocksDB's own zstd and LZ4, by the length of a table.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

use ecotone_bench::workload::{ValueKind, ValueSource, mix64};
use rust_rocksdb::{BlockBasedOptions, DBCompressionType, Options, SstFileWriter};

const COUNT: u64 = 4_000;

/// As RocksDB has it unless asked for otherwise: level 3 of zstd.
const DEFAULT_WINDOW_BITS: i32 = -14;
const DEFAULT_LEVEL: i32 = 32_767;

#[derive(Clone, Copy)]
struct Blocks {
    compression: DBCompressionType,
    bytes: usize,
    dictionary_bytes: i32,
}

/// Each value in a block of its own.
const ALONE: Blocks = Blocks { compression: DBCompressionType::Zstd, bytes: 1, dictionary_bytes: 0 };
const WITH_DICTIONARY: Blocks = Blocks { dictionary_bytes: 64 << 10, ..ALONE };
/// Blocks as the bare targets have them.
const TOGETHER: Blocks = Blocks { bytes: 16 << 10, ..ALONE };
const TOGETHER_LZ4: Blocks = Blocks { compression: DBCompressionType::Lz4, ..TOGETHER };

fn table_bytes(blocks: Blocks, value: &mut dyn FnMut(u64) -> Vec<u8>) -> u64 {
    let mut table = BlockBasedOptions::default();
    table.set_block_size(blocks.bytes);
    let mut options = Options::default();
    options.set_block_based_table_factory(&table);
    options.set_compression_type(blocks.compression);
    options.set_compression_options(DEFAULT_WINDOW_BITS, DEFAULT_LEVEL, 0, blocks.dictionary_bytes);
    options.set_zstd_max_train_bytes(100 * blocks.dictionary_bytes);
    let directory = tempfile::tempdir().unwrap();
    let mut writer = SstFileWriter::create(&options);
    writer.open(directory.path().join("table")).unwrap();
    for number in 0..COUNT {
        writer.put(number.to_be_bytes(), value(number)).unwrap();
    }
    writer.finish().unwrap();
    writer.file_size()
}

/// By how much values shrink. What a table takes besides is subtracted: that of values of one byte.
fn ratio(kind: &str, value_bytes: u32, blocks: Blocks) -> f64 {
    let source = ValueSource::new(kind.parse::<ValueKind>().unwrap(), 1, value_bytes);
    let mut values = source.values();
    let with = table_bytes(blocks, &mut |number| values.next_value(mix64(number), value_bytes).to_vec());
    let without = table_bytes(Blocks { dictionary_bytes: 0, ..blocks }, &mut |number| vec![number as u8]);
    let ratio = (COUNT * u64::from(value_bytes)) as f64 / (with - without) as f64;
    println!("{kind} of {value_bytes} B: {ratio:.2}");
    ratio
}

fn assert_within(band: std::ops::Range<f64>, kind: &str, value_bytes: u32, blocks: Blocks) {
    let ratio = ratio(kind, value_bytes, blocks);
    assert!(band.contains(&ratio), "{kind} of {value_bytes} B shrink {ratio:.2} times, not {band:?}");
}

#[test]
fn telemetry_shrinks_three_times_alone_and_more_with_a_dictionary() {
    assert_within(2.4..3.2, "json", 1000, ALONE);
    assert_within(4.5..7.0, "json", 1000, WITH_DICTIONARY);
    assert_within(4.5..7.0, "json", 1000, TOGETHER);
    assert_within(2.0..5.0, "json", 1000, TOGETHER_LZ4);
    assert_within(1.0..1.5, "json", 300, ALONE);
    assert_within(2.5..4.5, "json", 300, WITH_DICTIONARY);
    assert_within(3.5..5.0, "json", 300, TOGETHER);
}

#[test]
fn lines_of_a_log_shrink_twice_and_more() {
    assert_within(1.6..2.2, "text", 1000, ALONE);
    assert_within(2.2..3.4, "text", 1000, WITH_DICTIONARY);
    assert_within(2.2..3.2, "text", 1000, TOGETHER);
    assert_within(1.2..2.2, "text", 1000, TOGETHER_LZ4);
}

#[test]
fn halves_shrink_to_a_half_and_zeros_vanish() {
    for blocks in [ALONE, TOGETHER, TOGETHER_LZ4] {
        assert_within(1.7..2.4, "half", 1000, blocks);
        assert_within(1.7..2.1, "zeros:0.5", 1000, blocks);
    }
    assert_within(1.25..1.4, "zeros:0.25", 1000, TOGETHER);
    assert_within(20.0..1e9, "zeros:1", 1000, TOGETHER);
}

/// Also not with a dictionary, which would hold a part of the pool that they are made from.
#[test]
fn random_values_do_not_shrink() {
    for blocks in [ALONE, WITH_DICTIONARY, TOGETHER, TOGETHER_LZ4] {
        assert_within(0.95..1.02, "random", 1000, blocks);
    }
    assert_within(1.7..2.2, "half", 1000, WITH_DICTIONARY);
}
