//! Bytes that this server sent to and received from other servers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

/// Counters of file bytes that crossed the network, protocol overhead not included.
#[derive(Debug)]
pub struct Traffic {
    sent: AtomicU64,
    received: AtomicU64,
    /// When the rate was last asked for, and what had moved by then.
    asked: Mutex<(Instant, u64)>,
}

impl Default for Traffic {
    fn default() -> Self {
        Traffic { sent: AtomicU64::default(), received: AtomicU64::default(), asked: Mutex::new((Instant::now(), 0)) }
    }
}

impl Traffic {
    /// Counts file bytes that were sent.
    pub fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts file bytes that were received.
    pub fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// File bytes sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// File bytes received so far.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Bytes each second, both ways together, since this was last asked.
    pub fn bytes_per_s_since_last(&self) -> f64 {
        let (now, moved) = (Instant::now(), self.sent() + self.received());
        let (then, moved_before) = std::mem::replace(&mut *self.asked.lock(), (now, moved));
        moved.saturating_sub(moved_before) as f64 / now.duration_since(then).as_secs_f64().max(1e-3)
    }
}
