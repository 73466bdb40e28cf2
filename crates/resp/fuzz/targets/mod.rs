//! What each fuzz target does with its input. Included by the targets of libFuzzer and by the tests
//! of `ecotone-resp`, so it uses nothing but the standard library and the crates under test. A
//! target panics where something is wrong.

#![allow(dead_code)] // each target of libFuzzer uses its part

pub mod commands;
pub mod packed;
pub mod requests;
pub mod service;
pub mod stored;
pub mod well_formed;

/// Takes an input apart from its front. Past the end there are zeros and nothing.
pub struct Input<'i>(pub &'i [u8]);

impl<'i> Input<'i> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *byte
    }

    pub fn bytes(&mut self, count: usize) -> &'i [u8] {
        let (bytes, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    pub fn of<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[usize::from(self.byte()) % choices.len()]
    }
}
