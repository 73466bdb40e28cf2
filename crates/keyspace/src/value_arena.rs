//! Memory for the values of pending writes.
//!
//! All clients of a thread write into one group. With an allocation for each value more of them
//! would live at a time than an allocator caches for a thread: so short values are stored inline,
//! and those of usual length in one arena.
//!
//! Invariant: a [`PendingValue::Arena`] is read from the [`ValueArena`] that made it, before that
//! is cleared.

use std::ops::Deref;
use std::sync::Arc;

/// As many bytes stand in the table of what is written.
const MAX_INLINE_BYTES: usize = 22;

/// What one group has side by side. Far more than commands need that come at a time; of one that
/// writes more the rest has memory of its own.
const ARENA_BYTES: usize = 64 * 1024;

/// Few bytes.
#[derive(Debug, Clone)]
pub(super) struct InlineValue {
    length: u8,
    bytes: [u8; MAX_INLINE_BYTES],
}

impl Deref for InlineValue {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Bytes to be stored with a key.
#[derive(Debug, Clone)]
pub(super) enum PendingValue {
    Inline(InlineValue),
    /// In the group's [`ValueArena`].
    Arena {
        begin: u32,
        length: u32,
    },
    /// Longer, or built by its command where it is kept.
    Long(Arc<[u8]>),
}

/// A payload that needs no group.
#[derive(Debug)]
pub(super) enum DetachedValue {
    Inline(InlineValue),
    Long(Arc<[u8]>),
}

impl Deref for DetachedValue {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Inline(short) => short,
            Self::Long(bytes) => bytes,
        }
    }
}

/// The payloads of a group that are neither short nor long.
#[derive(Debug, Default)]
pub(super) struct ValueArena(Vec<u8>);

impl ValueArena {
    /// A payload of `bytes`.
    #[inline]
    pub(super) fn store(&mut self, bytes: &[u8]) -> PendingValue {
        let (begin, length) = (self.0.len(), bytes.len());
        let mut short = [0; MAX_INLINE_BYTES];
        if let Some(whole) = short.get_mut(..length) {
            whole.copy_from_slice(bytes);
            return PendingValue::Inline(InlineValue { length: length as u8, bytes: short });
        }
        if begin + length > ARENA_BYTES {
            return PendingValue::Long(bytes.into());
        }
        self.0.extend_from_slice(bytes);
        PendingValue::Arena { begin: begin as u32, length: length as u32 }
    }

    /// What `payload` is.
    #[inline]
    pub(super) fn bytes<'p>(&'p self, value: &'p PendingValue) -> &'p [u8] {
        match value {
            PendingValue::Inline(short) => short,
            PendingValue::Arena { begin, length } => &self.0[*begin as usize..][..*length as usize],
            PendingValue::Long(bytes) => bytes,
        }
    }

    /// The same as `payload`, for who keeps it while more is written.
    pub(super) fn detached(&self, value: &PendingValue) -> DetachedValue {
        match value {
            PendingValue::Inline(short) => DetachedValue::Inline(short.clone()),
            PendingValue::Arena { .. } => DetachedValue::Long(self.bytes(value).into()),
            PendingValue::Long(bytes) => DetachedValue::Long(bytes.clone()),
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
        assert_eq!(size_of::<PendingValue>(), 24);
        let mut arena = ValueArena::default();
        let lengths = [0, 1, MAX_INLINE_BYTES, MAX_INLINE_BYTES + 1, 1000, 40_000, 30_000, ARENA_BYTES + 1, 100, 23];
        let bytes = |length: usize| -> Vec<u8> { (0..length).map(|at| (at + length) as u8).collect() };
        let values = lengths.map(|length| (length, arena.store(&bytes(length))));
        for (length, value) in &values {
            assert_eq!(arena.bytes(value), bytes(*length));
            assert_eq!(*arena.detached(value), bytes(*length));
        }
        assert!(arena.end() <= ARENA_BYTES);
        // What was written before stays when a command is undone.
        let end = arena.end();
        assert!(matches!(arena.store(&bytes(200)), PendingValue::Arena { .. }));
        arena.forget_from(end);
        let again = arena.store(&bytes(300));
        assert_eq!(arena.bytes(&again), bytes(300));
        assert!(values.iter().all(|(length, value)| arena.bytes(value) == bytes(*length)));
    }
}
