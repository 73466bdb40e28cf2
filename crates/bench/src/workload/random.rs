//! A small random source whose sequence never changes.
//!
//! A run must be repeatable by its seed, also with a later version of this program, so the
//! generator is a named one: xoshiro256++ (Blackman and Vigna, "Scrambled linear pseudorandom
//! number generators", ACM TOMS 47, 2021). `rand::StdRng` may be another one in each version of
//! `rand`.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A repeatable source of uniform random numbers (xoshiro256++). Not for secrets.
#[derive(Clone, Debug)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// A source that is set by `seed` and `stream`: two streams of one seed have nothing visible in
    /// common. The driver gives every thread its own stream.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut split = mix64(seed).wrapping_add(mix64(stream ^ 0x5851_f42d_4c95_7f2d));
        let mut state = [0; 32];
        for word in state.chunks_exact_mut(8) {
            split = split.wrapping_add(0x9e37_79b9_7f4a_7c15);
            word.copy_from_slice(&mix64(split).to_le_bytes());
        }
        Self(Xoshiro256PlusPlus::from_seed(state))
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A uniform number in `0..bound`; `bound` is at least 1. The bias of the multiplication is
    /// below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A uniform number in `(0, 1]`: never zero, so that logarithms and negative powers of it are
    /// finite.
    pub fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// A bijection of the 64-bit numbers that scatters neighbours (the finalizer of splitmix64).
pub fn mix64(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_of_a_seed_never_changes() {
        let mut random = Random::new(42, 0);
        let first: Vec<u64> = (0..3).map(|_| random.next_u64()).collect();
        assert_eq!(first, [13000693690908903901, 13458607271329619873, 5310462805841781896]);
    }

    #[test]
    fn streams_of_one_seed_differ_and_seeds_differ() {
        let draw = |seed, stream| Random::new(seed, stream).next_u64();
        let mut seen: Vec<u64> = (0..100).flat_map(|seed| (0..100).map(move |stream| draw(seed, stream))).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 10_000);
    }

    #[test]
    fn below_is_uniform_and_within_its_bound() {
        let mut random = Random::new(7, 1);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[random.below(10) as usize] += 1;
        }
        // Each count is binomial with a standard deviation of 95: five of them is a chance of one
        // in a million.
        assert!(counts.iter().all(|&count| count.abs_diff(10_000) < 475), "{counts:?}");
        assert!((0..1000).all(|_| random.below(1) == 0));
    }

    #[test]
    fn unit_is_never_zero_and_has_mean_one_half() {
        let mut random = Random::new(9, 2);
        let draws: Vec<f64> = (0..100_000).map(|_| random.unit()).collect();
        assert!(draws.iter().all(|&draw| draw > 0.0 && draw <= 1.0));
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
    }
}
