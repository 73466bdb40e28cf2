//! What is to be stored with a key.
//!
//! All clients of a thread write into one group. Were each payload a piece of memory, more of them would live at a time than an allocator keeps at
//! hand for a thread: so numbers, scores and the like stand where they are named, and those of usual length side by side.
//!
//! Invariant: what is [`Payload::Beside`] is asked of the [`SideBySide`] that it was made by, before that is cleared.

use std::ops::Deref;
use std::sync::Arc;

/// As many bytes stand in the table of what is written.
const SHORT_BYTES: usize = 22;

/// What one group has side by side. Far more than commands need that come at a time; of one that writes more the rest has memory of its own.
const SIDE_BY_SIDE_BYTES: usize = 64 * 1024;

/// Few bytes.
#[derive(Debug, Clone)]
pub(super) struct Short {
    length: u8,
    bytes: [u8; SHORT_BYTES],
}

impl Deref for Short {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Bytes to be stored with a key.
#[derive(Debug, Clone)]
pub(super) enum Payload {
    Short(Short),
    /// In the group's [`SideBySide`].
    Beside {
        begin: u32,
        length: u32,
    },
    /// Longer, or built by its command where it is kept.
    Long(Arc<[u8]>),
}

/// A payload that needs no group.
#[derive(Debug)]
pub(super) enum Detached {
    Short(Short),
    Long(Arc<[u8]>),
}

impl Deref for Detached {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Short(short) => short,
            Self::Long(bytes) => bytes,
        }
    }
}

/// The payloads of a group that are neither short nor long.
#[derive(Debug, Default)]
pub(super) struct SideBySide(Vec<u8>);

impl SideBySide {
    /// A payload of `bytes`.
    #[inline]
    pub(super) fn payload(&mut self, bytes: &[u8]) -> Payload {
        let (begin, length) = (self.0.len(), bytes.len());
        let mut short = [0; SHORT_BYTES];
        if let Some(whole) = short.get_mut(..length) {
            whole.copy_from_slice(bytes);
            return Payload::Short(Short { length: length as u8, bytes: short });
        }
        if begin + length > SIDE_BY_SIDE_BYTES {
            return Payload::Long(bytes.into());
        }
        self.0.extend_from_slice(bytes);
        Payload::Beside { begin: begin as u32, length: length as u32 }
    }

    /// What `payload` is.
    #[inline]
    pub(super) fn bytes<'p>(&'p self, payload: &'p Payload) -> &'p [u8] {
        match payload {
            Payload::Short(short) => short,
            Payload::Beside { begin, length } => &self.0[*begin as usize..][..*length as usize],
            Payload::Long(bytes) => bytes,
        }
    }

    /// The same as `payload`, for who keeps it while more is written.
    pub(super) fn detached(&self, payload: &Payload) -> Detached {
        match payload {
            Payload::Short(short) => Detached::Short(short.clone()),
            Payload::Beside { .. } => Detached::Long(self.bytes(payload).into()),
            Payload::Long(bytes) => Detached::Long(bytes.clone()),
        }
    }

    /// Where the next one would stand, for [`forget_from`](Self::forget_from).
    pub(super) fn end(&self) -> usize {
        self.0.len()
    }

    /// Nothing that stands from `end` on is asked for any more.
    pub(super) fn forget_from(&mut self, end: usize) {
        self.0.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_what_it_was_made_of_whatever_its_length_and_what_comes_behind() {
        assert_eq!(size_of::<Payload>(), 24);
        let mut beside = SideBySide::default();
        let lengths = [0, 1, SHORT_BYTES, SHORT_BYTES + 1, 1000, 40_000, 30_000, SIDE_BY_SIDE_BYTES + 1, 100, 23];
        let bytes = |length: usize| -> Vec<u8> { (0..length).map(|at| (at + length) as u8).collect() };
        let payloads = lengths.map(|length| (length, beside.payload(&bytes(length))));
        for (length, payload) in &payloads {
            assert_eq!(beside.bytes(payload), bytes(*length));
            assert_eq!(*beside.detached(payload), bytes(*length));
        }
        assert!(beside.end() <= SIDE_BY_SIDE_BYTES);
        // What was written before stays when a command is undone.
        let end = beside.end();
        assert!(matches!(beside.payload(&bytes(200)), Payload::Beside { .. }));
        beside.forget_from(end);
        let again = beside.payload(&bytes(300));
        assert_eq!(beside.bytes(&again), bytes(300));
        assert!(payloads.iter().all(|(length, payload)| beside.bytes(payload) == bytes(*length)));
    }
}
