//! Any value, any dictionary, any damage.
#![allow(unsafe_code)] // looks at memory behind a vector's end

use proptest::prelude::*;

use super::dictionary::{MAX_DICTIONARY_BYTES, MIN_DICTIONARY_BYTES};
use super::*;
use crate::mutation::{Random, mutated};

include!("../../tests/common/telemetry.rs");

pub(crate) const CODECS: [Codec; 4] = [Codec::None, Codec::Lz4, Codec::Zstd(Level::MIN), Codec::Zstd(Level::MAX)];

/// A dictionary trained from telemetry.
pub(crate) fn trained(max_bytes: usize) -> Dictionary {
    let mut samples = training::Samples::default();
    (0..4000).for_each(|number| samples.offer(&telemetry(number, 300)));
    training::train(&samples, max_bytes).unwrap()
}

fn round_trip(codec: Codec, dictionary: Option<&Dictionary>, value: &[u8]) -> (Stored, Vec<u8>) {
    let mut bytes = b"before".to_vec();
    let packed = pack(codec, dictionary, value, &mut bytes);
    assert_eq!(&bytes[..6], b"before");
    let mut bytes = bytes.split_off(6);
    let stored = packed.unwrap_or_else(|| {
        assert!(bytes.is_empty());
        bytes.extend_from_slice(value);
        Stored::as_it_is(value.len())
    });
    assert!(packed.is_none() || bytes.len() <= max_packed_bytes(value.len()));
    let mut read = b"before".to_vec();
    unpack(stored, dictionary, &bytes, &mut read).unwrap();
    assert_eq!(&read[..6], b"before");
    assert_eq!(&read[6..], value);
    (stored, bytes)
}

#[test]
fn telemetry_shrinks_by_every_codec_and_more_with_a_dictionary() {
    let dictionary = trained(16 * 1024);
    for codec in [Codec::Lz4, Codec::Zstd(Level::MIN), Codec::Zstd(Level::MAX)] {
        let (mut with, mut without) = (0, 0);
        for number in 10_000..10_200 {
            let value = telemetry(number, 300);
            let (stored, bytes) = round_trip(codec, Some(&dictionary), &value);
            assert_eq!(stored.dictionary, Some(dictionary.id()));
            with += bytes.len();
            without += round_trip(codec, None, &value).1.len();
        }
        assert!(with * 2 < without, "{codec:?}: {with} with it, {without} without");
    }
}

#[test]
fn what_does_not_shrink_by_an_eighth_is_stored_as_it_is() {
    let mut random = Random::new(1);
    let noise: Vec<u8> = std::iter::repeat_with(|| random.next().to_le_bytes()).take(100_000).flatten().collect();
    for codec in CODECS {
        for length in [0, 1, 31, 32, 100, 1000, 300_000] {
            assert_eq!(round_trip(codec, None, &noise[..length]).0.method, Method::None);
        }
        // A tenth of it repeats.
        let almost = [&noise[..9000], &[0; 1000]].concat();
        assert_eq!(round_trip(codec, None, &almost).0.method, Method::None);
        let enough = [&noise[..8000], &[0; 2000]].concat();
        assert_eq!(round_trip(codec, None, &enough).0.method == Method::None, codec == Codec::None);
    }
}

#[test]
fn long_values_and_any_thread_have_contexts() {
    let value = telemetry(1, 3 << 20);
    std::thread::scope(|scope| {
        for codec in CODECS {
            let value = &value;
            scope.spawn(move || {
                for length in [300, value.len(), 1000, MAX_KEPT_CONTEXT_VALUE_BYTES, MAX_KEPT_CONTEXT_VALUE_BYTES + 1] {
                    round_trip(codec, None, &value[..length]);
                }
            });
        }
    });
}

/// What this thread is counted to keep.
fn kept_here() -> u64 {
    (CONTEXTS.with_borrow(|kept| kept.bytes) + BUFFER.with_borrow(|kept| kept.bytes)) as u64
}

#[test]
fn what_a_thread_keeps_is_counted_and_bounded_and_nothing_where_all_keep_too_much() {
    let dictionaries = [None, Some(trained(16 * 1024))];
    let all_kinds = move || {
        for dictionary in &dictionaries {
            for length in [300, 5000, MAX_KEPT_CONTEXT_VALUE_BYTES, MAX_KEPT_CONTEXT_VALUE_BYTES + 1, 1 << 20] {
                for codec in CODECS {
                    let value = telemetry(7, length);
                    with_buffer(length, |bytes| {
                        if let Some(stored) = pack(codec, dictionary.as_ref(), &value, bytes) {
                            let mut read = Vec::new();
                            unpack(stored, dictionary.as_ref(), bytes, &mut read).unwrap();
                            // As a reader leaves it: the value takes the place of what it was packed to.
                            *bytes = read;
                        }
                    });
                    assert!(kept_here() <= MAX_THREAD_BYTES, "{} bytes after {length}", kept_here());
                }
            }
        }
    };
    // The bound is of the process: other tests go on without what it does not let them keep.
    std::thread::spawn(move || {
        all_kinds();
        let least = 100 * 1024;
        assert!(kept_here() > least && thread_memory() >= kept_here());
        keep_at_most(least / 4);
        all_kinds();
        keep_at_most(DEFAULT_KEPT_BYTES);
        assert!(kept_here() <= least / 4, "{} bytes", kept_here());
    })
    .join()
    .unwrap();
}

#[test]
fn a_dictionary_is_needed_and_no_other_will_do() {
    let (one, other) = (trained(16 * 1024), trained(8 * 1024));
    assert_ne!(one.id(), other.id());
    for codec in [Codec::Lz4, Codec::Zstd(Level::MIN)] {
        let (stored, bytes) = round_trip(codec, Some(&one), &telemetry(20_000, 300));
        for wrong in [None, Some(&other)] {
            let mut read = Vec::new();
            let refused = unpack(stored, wrong, &bytes, &mut read);
            assert_eq!(refused, Err(UnpackError::WithoutDictionary(one.id())));
            assert!(read.is_empty());
        }
    }
}

/// Whatever it is told that these bytes are, it gives so many bytes or an error, and takes no more.
fn takes_no_more_than_stated(method: Method, dictionary: Option<&Dictionary>, bytes: &[u8], value_bytes: usize) {
    let stored = Stored { method, dictionary: dictionary.map(Dictionary::id), value_bytes };
    let mut read = Vec::with_capacity(value_bytes + 16);
    read.resize(read.capacity(), 0x5A);
    read.clear();
    let capacity = read.capacity();
    let result = unpack(stored, dictionary, bytes, &mut read);
    assert_eq!(read.capacity(), capacity, "no more memory than for the value");
    assert_eq!(read.len(), if result.is_ok() { value_bytes } else { 0 });
    let begin = value_bytes - read.len();
    // SAFETY: all of it was written above.
    let behind = read.spare_capacity_mut()[begin..].iter().map(|byte| unsafe { byte.assume_init() });
    assert!(behind.into_iter().all(|byte| byte == 0x5A), "what lies behind the value was written");
}

#[test]
fn mutated_frames_give_the_stated_length_or_an_error() {
    let dictionary = trained(16 * 1024);
    let values = [telemetry(1, 300), telemetry(2, 1000), telemetry(3, 70_000), vec![0; 100_000]];
    let mut frames = Vec::new();
    for codec in &CODECS[1..] {
        for value in &values {
            for with in [None, Some(&dictionary)] {
                frames.push(round_trip(*codec, with, value).1);
            }
        }
    }
    mutated(&frames, |bytes, random| {
        let method = *random.of(&[Method::None, Method::Lz4, Method::Zstd]);
        let value_bytes = *random.of(&[0, 1, 299, 300, 301, 1000, 65_536, 70_000, 100_000]);
        let with = random.once_in(2).then_some(&dictionary);
        takes_no_more_than_stated(method, with, &bytes, value_bytes);
    });
}

#[test]
fn a_frame_that_claims_much_gives_no_more_than_is_stated() {
    // A few bytes that stand for a megabyte.
    for codec in &CODECS[1..] {
        let (stored, bytes) = round_trip(*codec, None, &vec![0; 1 << 20]);
        assert!(bytes.len() < 5000);
        for value_bytes in [0, 1, 1000, (1 << 20) - 1, (1 << 20) + 1] {
            takes_no_more_than_stated(stored.method, None, &bytes, value_bytes);
            let mut read = Vec::new();
            let wrong = Stored { value_bytes, ..stored };
            assert_eq!(
                unpack(wrong, None, &bytes, &mut read),
                Err(UnpackError::NotThatLength { value_bytes }),
                "{codec:?}"
            );
        }
    }
}

#[test]
fn mutated_dictionaries_are_another_or_refused_and_whatever_they_are_can_be_used() {
    let dictionary = trained(4096);
    let dictionary::Packed { stored, bytes: packed } = dictionary.packed();
    let (stored, packed) = (*stored, packed.clone());
    assert!(packed.len() < dictionary.content().len());
    assert_eq!(dictionary::unpack(dictionary.id(), stored, &packed).unwrap(), dictionary.content());
    mutated(std::slice::from_ref(&packed), |bytes, _| {
        if let Ok(content) = dictionary::unpack(dictionary.id(), stored, &bytes) {
            assert_eq!(content, dictionary.content(), "its name is that of its content");
        }
    });
    let value = telemetry(7, 300);
    mutated(&[dictionary.content().to_vec()], |content, random| {
        // One who knows the format can write any.
        let Ok(other) = Dictionary::new(content) else { return };
        if random.once_in(100) {
            CODECS.iter().for_each(|codec| _ = round_trip(*codec, Some(&other), &value));
        }
    });
    let too_long = Stored { value_bytes: MAX_DICTIONARY_BYTES + 1, ..stored };
    assert_eq!(
        dictionary::unpack(dictionary.id(), too_long, &packed),
        Err(dictionary::DictionaryError::Length(MAX_DICTIONARY_BYTES + 1))
    );
}

/// Values with something to find in them, and without.
fn any_value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..2000),
        (any::<u64>(), 1_usize..5000).prop_map(|(number, length)| telemetry(number, length)),
        (prop::collection::vec(any::<u8>(), 1..50), 1_usize..400).prop_map(|(piece, times)| piece.repeat(times)),
    ]
}

proptest! {
    #[test]
    fn any_value_and_any_dictionary_come_back(
        value in any_value(),
        content in prop::collection::vec(any_value(), 1..5),
        codec in prop::sample::select(&CODECS[..]),
    ) {
        let mut content = content.concat();
        content.truncate(MAX_DICTIONARY_BYTES);
        content.resize(content.len().max(MIN_DICTIONARY_BYTES), 1);
        let dictionary = Dictionary::new(content).unwrap();
        round_trip(codec, Some(&dictionary), &value);
        round_trip(codec, None, &value);
    }

    #[test]
    fn any_bytes_give_the_stated_length_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        value_bytes in 0_usize..100_000,
        method in prop::sample::select(&[Method::None, Method::Lz4, Method::Zstd][..]),
    ) {
        takes_no_more_than_stated(method, None, &bytes, value_bytes);
    }
}
