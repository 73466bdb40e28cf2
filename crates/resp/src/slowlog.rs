//! Commands that took long (`SLOWLOG`).
//!
//! Bounds: so many entries as [`crate::service::Limits`] says, each of at most [`MAX_ARGUMENTS`]
//! arguments of [`MAX_BYTES`] bytes: Redis'.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Arguments of a command that are kept.
const MAX_ARGUMENTS: usize = 32;

/// Bytes of an argument that are kept.
const MAX_BYTES: usize = 128;

/// The slow log.
#[derive(Debug)]
pub struct Slowlog {
    /// What takes so long is slow; the most there is: nothing.
    slow_after_ns: AtomicU64,
    next_id: AtomicU64,
    entries: Mutex<VecDeque<SlowlogEntry>>,
}

/// A command that took long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowlogEntry {
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
    /// One without entries, for commands that take so long; none: for no command.
    pub fn new(slow_after: Option<Duration>) -> Self {
        Self { slow_after_ns: in_ns(slow_after).into(), next_id: AtomicU64::default(), entries: Mutex::default() }
    }

    /// From now on commands are slow that take so long; none: no command.
    pub fn set_slow_after(&self, slow_after: Option<Duration>) {
        self.slow_after_ns.store(in_ns(slow_after), Ordering::Relaxed);
    }

    /// Whether a command that took so long is noted. Asked after each one: it costs a look at a
    /// number that hardly ever changes.
    #[inline]
    pub fn is_slow(&self, took: Duration) -> bool {
        let slow_after_ns = self.slow_after_ns.load(Ordering::Relaxed);
        slow_after_ns != u64::MAX && took.as_nanos() >= slow_after_ns.into()
    }

    /// Notes a command. The oldest beyond `most` are forgotten.
    pub fn add(&self, arguments: &[&[u8]], at_s: u64, took: Duration, address: &str, name: &[u8], most: usize) {
        let kept = if arguments.len() > MAX_ARGUMENTS { MAX_ARGUMENTS - 1 } else { arguments.len() };
        let mut short: Vec<Vec<u8>> = arguments[..kept].iter().map(|argument| shortened(argument)).collect();
        if kept < arguments.len() {
            short.push(format!("... ({} more arguments)", arguments.len() - kept).into_bytes());
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let slow = SlowlogEntry { id, at_s, took, arguments: short, address: address.to_owned(), name: name.to_vec() };
        let mut entries = self.entries.lock();
        entries.push_front(slow);
        entries.truncate(most);
    }

    /// The newest first, at most `most`.
    pub fn newest(&self, most: usize) -> Vec<SlowlogEntry> {
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

fn in_ns(slow_after: Option<Duration>) -> u64 {
    slow_after.map_or(u64::MAX, |after| u64::try_from(after.as_nanos()).unwrap_or(u64::MAX))
}

fn shortened(argument: &[u8]) -> Vec<u8> {
    if argument.len() <= MAX_BYTES {
        return argument.to_vec();
    }
    let mut short = argument[..MAX_BYTES].to_vec();
    short.extend_from_slice(format!("... ({} more bytes)", argument.len() - MAX_BYTES).as_bytes());
    short
}
