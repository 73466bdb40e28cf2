//! What all clients together keep in memory.
//!
//! Each connection says after each round what it keeps: bytes that came and were not carried out,
//! replies that were not sent, what it queued and watches. Where that is more than the clients may
//! keep together, who is small goes on, and who wants more is refused.
//!
//! Bounds: [`Limits::memory_bytes`](crate::service::Limits::memory_bytes), and beyond it
//! [`SMALL_BYTES`](crate::service::SMALL_BYTES) for each client until all have a quarter more than
//! they may, then and for who has given no password [`MIN_BYTES`] each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::service::{SMALL_BYTES, Service};

/// What is left to each client in any case: the password can be told in less, and so can that there
/// is no memory.
const MIN_BYTES: usize = 4 * 1024;

/// What one connection keeps, as all know it.
#[derive(Debug, Default)]
pub(super) struct Charge {
    bytes: usize,
    of_all: Option<Arc<AtomicUsize>>,
}

impl Charge {
    /// It keeps so much from now on.
    pub(super) fn set(&mut self, service: &Service, bytes: usize) {
        if self.bytes == bytes {
            return;
        }
        // May wrap in between; the sum is right whenever all have added theirs.
        self.of_all.get_or_insert_with(|| service.client_memory.clone());
        self.set_known(bytes);
    }

    /// The same, without a look at the service: nothing was charged where it was never looked at.
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
