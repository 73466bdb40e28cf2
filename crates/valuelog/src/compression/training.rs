//! Samples of the values of a store, and dictionaries from them.
//!
//! Bounds: [`MAX_SAMPLES_BYTES`] of samples, [`MAX_SAMPLES`] of them, of each value at most
//! [`MAX_SAMPLE_BYTES`]; training takes about as much again, and [`COUNTERS_BYTES`].
//!
//! The same values in the same order give the same samples, and the same dictionary.

use ecotone_io::zstd::{self, Training};

use super::dictionary::{Dictionary, MAX_DICTIONARY_BYTES, MIN_DICTIONARY_BYTES};

/// Samples that are kept at most, in bytes. A dictionary is trained from some ten times as much or
/// more.
pub const MAX_SAMPLES_BYTES: usize = 2 * 1024 * 1024;

/// And in number.
pub const MAX_SAMPLES: usize = 16 * 1024;

/// So much of a value is a sample: what repeats within it the codec finds by itself.
pub const MAX_SAMPLE_BYTES: usize = 4096;

/// From fewer samples no dictionary is trained: it would be a copy of them.
pub const MIN_SAMPLES: usize = 64;

/// And from less than so many times its length.
pub const MIN_SAMPLES_PER_DICTIONARY: usize = 8;

/// So many suffice also once they are [split](Samples::split).
pub const MIN_SPLIT_SAMPLES: usize = MIN_SAMPLES.div_ceil(SPLIT - 1) * SPLIT;

/// One in so many samples is measured with.
const SPLIT: usize = 4;

/// The length that a dictionary is trained to, unless there is a reason for another. On telemetry of
/// one kind 4 KiB do the same, and 112 KiB nothing more; a store has a few kinds. It packs to a few
/// KiB, a thousandth of a segment of 4 MiB (measured: see below).
pub const DEFAULT_DICTIONARY_BYTES: usize = 16 * 1024;

/// Of pieces of this length a dictionary is put together (measured on telemetry; see
/// docs/experiments/2026-11-28-value-compression.md).
const PIECE_BYTES: u32 = 256;

const COUNTERS_LOG: u32 = 18;

/// Memory of the counters of one training.
pub const COUNTERS_BYTES: usize = 4 << COUNTERS_LOG;

/// Memory of one training beside its samples: their two parts, the counters and a half as much again
/// for what was seen of a piece, the dictionary and zstd's contexts of level 3 for one of its length.
pub const MAX_TRAINING_BYTES: usize = MAX_SAMPLES_BYTES + COUNTERS_BYTES * 3 / 2 + 1024 * 1024;

/// Values of a store, one in so many; which ones their number decides, so that no rhythm of the
/// writer's is met.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    bytes: Vec<u8>,
    /// The number of each value, and how much of it is here.
    each: Vec<(u64, usize)>,
    offered: u64,
    /// One in 2 to the power of that is kept.
    sparsity: u32,
}

impl Samples {
    /// Shows it the next value.
    pub fn offer(&mut self, value: &[u8]) {
        let number = self.offered;
        self.offered += 1;
        if !self.keeps(number) || value.is_empty() {
            return;
        }
        // Any part of it: the begin of a value need not look like the rest.
        let parts = (value.len().saturating_sub(MAX_SAMPLE_BYTES) + 1) as u64;
        let begin = (mixed(!number) % parts / 8 * 8) as usize;
        let kept = &value[begin..value.len().min(begin + MAX_SAMPLE_BYTES)];
        while self.bytes.len() + kept.len() > MAX_SAMPLES_BYTES || self.each.len() == MAX_SAMPLES {
            self.thin();
            if !self.keeps(number) {
                return;
            }
        }
        self.bytes.extend_from_slice(kept);
        self.each.push((number, kept.len()));
    }

    fn keeps(&self, number: u64) -> bool {
        mixed(number).trailing_zeros() >= self.sparsity
    }

    /// Keeps every second one, by chance.
    fn thin(&mut self) {
        self.sparsity += 1;
        let (mut from, mut to) = (0, 0);
        let sparsity = self.sparsity;
        let bytes = &mut self.bytes;
        self.each.retain(|(number, length)| {
            let stays = mixed(*number).trailing_zeros() >= sparsity;
            if stays {
                bytes.copy_within(from..from + length, to);
                to += length;
            }
            from += length;
            stays
        });
        self.bytes.truncate(to);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.each.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of memory that they take.
    pub fn memory(&self) -> usize {
        self.bytes.capacity() + self.each.capacity() * size_of::<(u64, usize)>()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut at = 0;
        self.each.iter().map(move |(_, length)| {
            at += length;
            &self.bytes[at - length..at]
        })
    }

    /// Whether no more are wanted than there are: each further one takes the place of another.
    pub fn is_full(&self) -> bool {
        self.sparsity > 0
    }

    /// The longest dictionary that they are to be trained to.
    pub fn dictionary_bytes(&self) -> usize {
        (self.bytes() / MIN_SAMPLES_PER_DICTIONARY).min(DEFAULT_DICTIONARY_BYTES)
    }

    /// Whether there are enough for a dictionary of that length.
    pub fn suffice_for(&self, dictionary_bytes: usize) -> bool {
        self.len() >= MIN_SAMPLES && self.bytes() >= dictionary_bytes.saturating_mul(MIN_SAMPLES_PER_DICTIONARY)
    }

    /// Splits them: one in four to measure with, the others to train with, so that a dictionary is
    /// not praised for knowing what it was made from.
    pub fn split(self) -> (Self, Self) {
        let (mut train, mut measure) = (Self::default(), Self::default());
        for (number, sample) in self.iter().enumerate() {
            let part = if number % SPLIT == SPLIT - 1 { &mut measure } else { &mut train };
            part.each.push((part.offered, sample.len()));
            part.offered += 1;
            part.bytes.extend_from_slice(sample);
        }
        (train, measure)
    }
}

/// SplitMix64's finish.
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// A dictionary of at most `max_bytes` from these samples; `None` where they do not suffice, or have
/// nothing in common.
pub fn train(samples: &Samples, max_bytes: usize) -> Option<Dictionary> {
    let max_bytes = max_bytes.clamp(MIN_DICTIONARY_BYTES, MAX_DICTIONARY_BYTES);
    if !samples.suffice_for(max_bytes) {
        return None;
    }
    let lengths: Vec<usize> = samples.each.iter().map(|(_, length)| *length).collect();
    let training = Training { segment_bytes: PIECE_BYTES, counters_log: COUNTERS_LOG, acceleration: 1 };
    let content = zstd::train(&samples.bytes, &lengths, max_bytes, training)?;
    Dictionary::new(content).ok()
}

#[cfg(test)]
mod tests {
    use super::super::tests::telemetry;
    use super::*;

    #[test]
    fn samples_stay_within_their_bounds_and_come_from_all_times() {
        for length in [10, 300, 5000, 1 << 20] {
            let mut samples = Samples::default();
            let values = 40_000_000 / length.clamp(300, 5000);
            for number in 0..values {
                let mut value = vec![0; length];
                // Wherever a sample begins.
                value.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&(number as u64).to_le_bytes()));
                samples.offer(&value);
                assert!(samples.bytes() <= MAX_SAMPLES_BYTES && samples.len() <= MAX_SAMPLES);
            }
            assert!(samples.suffice_for(10_000), "{} samples", samples.len());
            let numbers: Vec<u64> =
                samples.iter().map(|sample| u64::from_le_bytes(*sample.first_chunk().unwrap())).collect();
            assert!(numbers.is_sorted());
            let early = numbers.iter().filter(|number| **number < values as u64 / 2).count();
            assert!((numbers.len() * 4 / 10..=numbers.len() * 6 / 10).contains(&early), "{early} of {}", numbers.len());
        }
    }

    #[test]
    fn the_same_values_train_the_same_dictionary_and_too_few_train_none() {
        let trained = |values: usize| {
            let mut samples = Samples::default();
            (0..values).for_each(|number| samples.offer(&telemetry(number as u64, 300)));
            train(&samples, DEFAULT_DICTIONARY_BYTES)
        };
        let dictionary = trained(2000).unwrap();
        assert!(dictionary.content().len() <= DEFAULT_DICTIONARY_BYTES);
        assert_eq!(dictionary.id(), trained(2000).unwrap().id());
        assert!(trained(MIN_SAMPLES - 1).is_none());
        assert!(trained(200).is_none());
    }

    #[test]
    fn few_samples_train_a_short_dictionary_also_once_they_are_split() {
        let mut samples = Samples::default();
        (0..MIN_SPLIT_SAMPLES as u64).for_each(|number| samples.offer(&telemetry(number, 300)));
        let (training, measuring) = samples.split();
        assert!(training.len() >= MIN_SAMPLES && measuring.len() > MIN_SAMPLES / 4);
        let bytes = training.dictionary_bytes();
        let dictionary = train(&training, bytes).unwrap();
        assert!(bytes < DEFAULT_DICTIONARY_BYTES && dictionary.content().len() <= bytes);
    }

    #[test]
    fn values_that_are_too_short_to_come_to_many_bytes_fill_the_samples_all_the_same() {
        let mut samples = Samples::default();
        let mut offered = 0_u64;
        while !samples.is_full() {
            samples.offer(&telemetry(offered, 40));
            offered += 1;
        }
        assert_eq!(offered, MAX_SAMPLES as u64 + 1);
        assert!(samples.bytes() < MAX_SAMPLES_BYTES / 2);
    }

    #[test]
    fn what_has_nothing_in_common_trains_something_or_nothing_and_never_fails() {
        let mut samples = Samples::default();
        let mut state = 1;
        for _ in 0..3000 {
            let value: Vec<u8> = std::iter::repeat_with(|| {
                state = mixed(state);
                state.to_le_bytes()
            })
            .take(40)
            .flatten()
            .collect();
            samples.offer(&value);
        }
        if let Some(dictionary) = train(&samples, MAX_DICTIONARY_BYTES) {
            assert!(dictionary.content().len() <= MAX_DICTIONARY_BYTES);
        }
        for byte in [0, 7] {
            let mut samples = Samples::default();
            (0..5000).for_each(|_| samples.offer(&[byte; 300]));
            let _ = train(&samples, MAX_DICTIONARY_BYTES);
        }
    }

    #[test]
    fn a_split_has_every_sample_once() {
        let mut samples = Samples::default();
        (0..103).for_each(|number| samples.offer(&telemetry(number, 300)));
        let all: Vec<Vec<u8>> = samples.iter().map(<[u8]>::to_vec).collect();
        let (train, measure) = samples.split();
        assert_eq!((train.len(), measure.len()), (78, 25));
        let mut parts: Vec<Vec<u8>> = train.iter().chain(measure.iter()).map(<[u8]>::to_vec).collect();
        let mut all = all;
        parts.sort();
        all.sort();
        assert_eq!(parts, all);
    }
}
