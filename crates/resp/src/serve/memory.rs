//! What all clients together keep in memory.
//!
//! Each connection publishes after each round what it keeps: bytes that came and were not executed,
//! replies that were not sent, what it queued and watches. Where that exceeds the limit of all
//! clients, small ones go on, and larger ones are refused more.
//!
//! Bounds: [`Limits::memory_bytes`](crate::service::Limits::memory_bytes), and beyond it
//! [`SMALL_BYTES`](crate::service::SMALL_BYTES) for each client until all have a quarter more than
//! they may; then, and without authentication, [`MIN_BYTES`] each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::service::{SMALL_BYTES, Service};

/// What is left to each client in any case: enough for `AUTH`, and for the error that there is no
/// memory.
const MIN_BYTES: usize = 4 * 1024;

/// What one connection keeps, as it is counted.
#[derive(Debug, Default)]
pub(super) struct Charge {
    bytes: usize,
    of_all: Option<Arc<AtomicUsize>>,
}

impl Charge {
    /// Sets how much it keeps.
    pub(super) fn set(&mut self, service: &Service, bytes: usize) {
        if self.bytes == bytes {
            return;
        }
        // May wrap in between; the sum is right whenever all have added theirs.
        self.of_all.get_or_insert_with(|| service.client_memory.clone());
        self.set_known(bytes);
    }

    /// The same without the service: where that was never given, nothing was charged.
    pub(super) fn set_known(&mut self, bytes: usize) {
        if let Some(of_all) = &self.of_all {
            of_all.fetch_add(bytes.wrapping_sub(self.bytes), Ordering::Relaxed);
            self.bytes = bytes;
        }
    }

    /// Whether it may not keep `bytes`.
    pub(super) fn is_refused(&self, service: &Service, bytes: usize, is_authenticated: bool) -> bool {
        bytes > MIN_BYTES && self.left(service, is_authenticated) < bytes
    }

    /// What it may keep in all.
    pub(super) fn left(&self, service: &Service, is_authenticated: bool) -> usize {
        let of_others = service.client_memory.load(Ordering::Relaxed).wrapping_sub(self.bytes);
        let most = service.limits.read().memory_bytes;
        let is_small_spared = is_authenticated && of_others <= most.saturating_add(most / 4);
        let least = if is_small_spared { SMALL_BYTES } else { MIN_BYTES };
        most.saturating_sub(of_others).max(least)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(of_all) = &self.of_all {
            of_all.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}
