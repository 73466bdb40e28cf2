//! Random choices that a seed repeats.

use std::time::{Duration, Instant};

/// The variable that makes the seeded tests run for so many seconds each, instead of their short
/// fixed length.
pub const FUZZ_SECONDS: &str = "ECOTONE_FUZZ_SECONDS";

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number from 0 to `end - 1`; 0 where that is nothing.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() % end as u64) as usize }
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}

/// Runs `test` with seeds from 0 on: `least` of them, and more until the time is over that
/// [`FUZZ_SECONDS`] gives.
pub fn with_seeds(least: u64, mut test: impl FnMut(u64)) {
    let seconds = std::env::var(FUZZ_SECONDS).ok().map_or(0, |seconds| seconds.parse().unwrap());
    let begin = Instant::now();
    let mut seed = 0;
    while seed < least || begin.elapsed() < Duration::from_secs(seconds) {
        test(seed);
        seed += 1;
    }
}
