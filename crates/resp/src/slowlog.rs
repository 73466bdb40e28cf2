//! Commands that took long (`SLOWLOG`).
//!
//! Bounds: so many entries as [`crate::service::Limits`] says, each of at most [`MOST_ARGUMENTS`] arguments of [`MOST_BYTES`] bytes: Redis'.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Arguments of a command that are kept.
const MOST_ARGUMENTS: usize = 32;

/// Bytes of an argument that are kept.
const MOST_BYTES: usize = 128;

/// The slow log.
#[derive(Debug, Default)]
pub struct Slowlog {
    next_id: AtomicU64,
    entries: Mutex<VecDeque<Slow>>,
}

/// A command that took long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slow {
    /// Its number, from 0.
    pub id: u64,
    /// When, in seconds since 1970.
    pub at_s: u64,
    /// How long it took.
    pub took: Duration,
    /// What it was, shortened.
    pub arguments: Vec<Vec<u8>>,
    /// Who sent it.
    pub address: String,
    /// The client's name.
    pub name: Vec<u8>,
}

impl Slowlog {
    /// Notes a command. The oldest beyond `most` are forgotten.
    pub fn add(&self, arguments: &[&[u8]], at_s: u64, took: Duration, address: &str, name: &[u8], most: usize) {
        let kept = if arguments.len() > MOST_ARGUMENTS { MOST_ARGUMENTS - 1 } else { arguments.len() };
        let mut short: Vec<Vec<u8>> = arguments[..kept].iter().map(|argument| shortened(argument)).collect();
        if kept < arguments.len() {
            short.push(format!("... ({} more arguments)", arguments.len() - kept).into_bytes());
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let slow = Slow { id, at_s, took, arguments: short, address: address.to_owned(), name: name.to_vec() };
        let mut entries = self.entries.lock();
        entries.push_front(slow);
        entries.truncate(most);
    }

    /// The newest first, at most `most`.
    pub fn newest(&self, most: usize) -> Vec<Slow> {
        self.entries.lock().iter().take(most).cloned().collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.lock().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets all.
    pub fn clear(&self) {
        self.entries.lock().clear();
    }
}

fn shortened(argument: &[u8]) -> Vec<u8> {
    if argument.len() <= MOST_BYTES {
        return argument.to_vec();
    }
    let mut short = argument[..MOST_BYTES].to_vec();
    short.extend_from_slice(format!("... ({} more bytes)", argument.len() - MOST_BYTES).as_bytes());
    short
}
