//! Live counts, written by one thread each and read by anyone.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::workload::OperationKind;

/// How many operations of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCounts([u64; OperationKind::ALL.len()]);

impl OperationCounts {
    /// The count of one kind.
    pub fn of(&self, kind: OperationKind) -> u64 {
        self.0[kind.index()]
    }

    /// All operations; a read-modify-write is one.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Operations that read, read-modify-writes included.
    pub fn reads(&self) -> u64 {
        OperationKind::ALL.into_iter().filter(|kind| kind.reads()).map(|kind| self.of(kind)).sum()
    }

    /// Operations that write, read-modify-writes included.
    pub fn writes(&self) -> u64 {
        OperationKind::ALL.into_iter().filter(|kind| kind.writes()).map(|kind| self.of(kind)).sum()
    }
}

/// The counts of one thread, on cache lines of their own so that the threads do not slow each
/// other.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct ThreadCounters {
    kinds: [AtomicU64; OperationKind::ALL.len()],
    bytes_user: AtomicU64,
    inserted: AtomicU64,
}

impl ThreadCounters {
    /// Counts one operation. Only one thread may call this on one object: it stores instead of
    /// adding atomically.
    pub(super) fn count(&self, kind: OperationKind) {
        let counter = &self.kinds[kind.index()];
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Shows how many bytes of keys and values this thread has put so far, and how many keys beyond
    /// those of the options.
    pub(super) fn show(&self, bytes_user: u64, inserted: u64) {
        self.bytes_user.store(bytes_user, Ordering::Relaxed);
        self.inserted.store(inserted, Ordering::Relaxed);
    }

    pub(super) fn bytes_user(&self) -> u64 {
        self.bytes_user.load(Ordering::Relaxed)
    }

    pub(super) fn inserted(&self) -> u64 {
        self.inserted.load(Ordering::Relaxed)
    }

    pub(super) fn add_to(&self, counts: &mut OperationCounts) {
        for (sum, counter) in counts.0.iter_mut().zip(&self.kinds) {
            *sum += counter.load(Ordering::Relaxed);
        }
    }
}

/// Which keys were written, one bit each: the live data of a run that began with an empty store.
#[derive(Debug)]
pub(super) struct LiveKeys {
    words: Vec<AtomicU64>,
}

impl LiveKeys {
    pub(super) fn new(keys: u64) -> Self {
        let words = usize::try_from(keys.div_ceil(64)).unwrap_or(usize::MAX);
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    pub(super) fn mark(&self, key: u64) {
        let (word, bit) = (&self.words[(key / 64) as usize], 1 << (key % 64));
        // Most puts of a long run meet a key that is marked: looking first spares the shared cache
        // line.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }
}
