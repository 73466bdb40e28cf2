//! The bytes between a client and a server, as a client, or an adversary, sees them. The expected
//! texts were taken from Redis 7.0.15.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

mod fuzz_targets;
mod glob;
mod number;
#[path = "../../../engine/tests/common/random.rs"]
mod random;
mod reply;
mod request;
mod request_streams;
#[path = "../../fuzz/targets/mod.rs"]
mod targets;

/// A small deterministic source of chance (splitmix64), so that a failure comes back with its seed.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `bound`, which is not 0.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}
