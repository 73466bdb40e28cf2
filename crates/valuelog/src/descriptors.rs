//! How many files of a value log are open.
//!
//! Invariant: what is open counts, whoever opened it, until it is closed. What a reader still holds
//! of a file that was closed meanwhile does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The count, shared by all segments of a log.
#[derive(Debug, Clone, Default)]
pub struct Descriptors(Arc<AtomicUsize>);

impl Descriptors {
    /// How many are open.
    pub fn open(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts `file` for as long as it is kept.
    pub fn count<T>(&self, file: T) -> Counted<T> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Counted { file, of: self.clone() }
    }
}

/// An open file that counts.
#[derive(Debug)]
pub struct Counted<T> {
    file: T,
    of: Descriptors,
}

impl<T: Clone> Counted<T> {
    /// For one reader.
    pub fn get(&self) -> T {
        self.file.clone()
    }
}

impl<T> Drop for Counted<T> {
    fn drop(&mut self) {
        self.of.0.fetch_sub(1, Ordering::Relaxed);
    }
}
