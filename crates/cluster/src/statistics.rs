//! Counters of a server's part in a federation.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use ecotone_policy::machine::LocalReason;
use parking_lot::Mutex;

/// Counters since the start.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    offloaded: AtomicU64,
    taken: AtomicU64,
    held_bytes: AtomicU64,
    declined: Mutex<HashMap<&'static str, u64>>,
    fallbacks: Mutex<HashMap<&'static str, u64>>,
    kept: Mutex<HashMap<&'static str, u64>>,
}

impl Statistics {
    pub(crate) fn count_offloaded(&self) {
        self.offloaded.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_taken(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// So many bytes of a job's input were not sent, since its worker held them in a copy.
    pub(crate) fn count_held(&self, bytes: u64) {
        self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_declined(&self, reason: &'static str) {
        *self.declined.lock().entry(reason).or_default() += 1;
    }

    pub(crate) fn count_fallback(&self, reason: &'static str) {
        *self.fallbacks.lock().entry(reason).or_default() += 1;
    }

    /// A compaction runs here for this reason. What has failed elsewhere counts by its error, see
    /// above.
    pub(crate) fn count_here(&self, reason: LocalReason) {
        if !reason.is_fallback() {
            *self.kept.lock().entry(reason.name()).or_default() += 1;
        }
    }

    /// A copy, without what others count.
    pub(crate) fn snapshot(&self) -> FederationStatistics {
        FederationStatistics {
            offloaded: self.offloaded.load(Ordering::Relaxed),
            taken: self.taken.load(Ordering::Relaxed),
            held_bytes: self.held_bytes.load(Ordering::Relaxed),
            declined: self.declined.lock().clone(),
            fallbacks: self.fallbacks.lock().clone(),
            kept: self.kept.lock().clone(),
            ..FederationStatistics::default()
        }
    }
}

/// A copy of a server's counters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FederationStatistics {
    /// Compactions of this store that ran elsewhere.
    pub offloaded: u64,
    /// Compactions of other stores that ran here.
    pub taken: u64,
    /// Bytes of input tables of this server's jobs that were not sent, since their workers held them
    /// in copies.
    pub held_bytes: u64,
    /// Offers declined, by reason.
    pub declined: HashMap<&'static str, u64>,
    /// Compactions that ran here because an offload failed, by kind of error.
    pub fallbacks: HashMap<&'static str, u64>,
    /// Compactions that ran here because the policy wants them here, by its reason. The parts of
    /// one that is split count each.
    pub kept: HashMap<&'static str, u64>,
    /// File bytes sent to other servers.
    pub network_bytes_sent: u64,
    /// File bytes received from other servers.
    pub network_bytes_received: u64,
    /// Jobs of other servers that run now.
    pub running_worker_jobs: usize,
    /// Handshakes with other servers that led to a connection, either way.
    pub handshakes: u64,
    /// Handshakes that failed, by reason. None in plain text.
    pub failed_handshakes: HashMap<&'static str, u64>,
    /// Seconds since 1970 when this server's certificate ends; `None`: it has none.
    pub certificate_expiry_s: Option<u64>,
}
