//! Random choices that a seed repeats, and how long the tests go on that make them.
//!
//! In `make test` each has its short, fixed length and its fixed seeds. `make soak` gives all of
//! them more time, and another first seed.
#![allow(dead_code)] // each test uses its part

use std::ops::Range;
use std::time::{Duration, Instant};

/// The variable that makes each seeded test go on with further seeds for so many seconds.
const SOAK_SECONDS: &str = "ECOTONE_SOAK_SECONDS";

/// The variable that gives the first seed, instead of 0.
const SEED: &str = "ECOTONE_SEED";

/// What a test takes in `make test`, about, whose length is a count.
const SHORT_SECONDS: u64 = 10;

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

fn number_in(variable: &str) -> u64 {
    std::env::var(variable).map_or(0, |number| number.parse().unwrap())
}

/// How long a soak gives each test; no time in `make test`.
pub fn soak_time() -> Duration {
    Duration::from_secs(number_in(SOAK_SECONDS))
}

/// `short`, and in a soak as many times that as take its time, about.
pub fn longer(short: u64) -> u64 {
    short * (1 + number_in(SOAK_SECONDS) / SHORT_SECONDS)
}

/// As [`longer`], for a test of proptest's.
pub fn cases(short: u32) -> u32 {
    u32::try_from(longer(u64::from(short))).unwrap_or(u32::MAX)
}

/// The seeds of a test that has its own: those, or in a soak more and others.
pub fn seeds(short: Range<u64>) -> Range<u64> {
    let first = number_in(SEED) + short.start;
    first..first + longer(short.end - short.start)
}

/// Runs `test` with `least` seeds, and in a soak with more until its time is over.
pub fn with_seeds(least: u64, mut test: impl FnMut(u64)) {
    let (first, time, begin) = (number_in(SEED), soak_time(), Instant::now());
    let mut seed = first;
    while seed - first < least || begin.elapsed() < time {
        let named = Named(seed);
        test(seed);
        drop(named);
        seed += 1;
    }
}

/// Says with which seed a test has failed.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {0}, which {SEED}={0} begins with", self.0);
        }
    }
}
