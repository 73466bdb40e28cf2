//! The status of the server for its endpoint: whether it opens, serves or stops, and of what it
//! consists while it serves.
//!
//! The lock on the state is held while an answer is made, so that nothing of the server is in use
//! any more once [`stops`](ServerStatus::stops) has returned: the store can then be closed.

use std::sync::{Arc, Weak};

use ecotone_resp::serve::Heartbeat;
use ecotone_resp::service::Service;
use parking_lot::{RwLock, RwLockReadGuard};

use crate::monitor::SamplerState;
use crate::options::LostLines;

/// The status of the server.
#[derive(Default)]
pub(crate) struct ServerStatus {
    phase: RwLock<Phase>,
}

/// The phase of its life that the server is in.
#[derive(Default)]
pub(super) enum Phase {
    /// The store is not open yet.
    #[default]
    Opening,
    Serving(ServingParts),
    Stopping,
}

/// A server that serves.
pub(crate) struct ServingParts {
    pub(crate) sampler: Arc<SamplerState>,
    pub(crate) clients: Option<ClientParts>,
    pub(crate) name: String,
    /// `coordinator` or `member`.
    pub(crate) role: &'static str,
    pub(crate) policy: &'static str,
    pub(crate) worker_slots: u32,
    pub(crate) stall_threshold_tables: u32,
    pub(crate) lost_log_lines: Option<LostLines>,
}

/// Clients that are served.
pub(crate) struct ClientParts {
    /// Weak: it holds the store.
    pub(crate) service: Weak<Service>,
    pub(crate) event_loops: Arc<[Heartbeat]>,
}

impl ServerStatus {
    /// The server serves from now on.
    pub(crate) fn serves(&self, parts: ServingParts) {
        *self.phase.write() = Phase::Serving(parts);
    }

    /// The server stops. When this returns nobody uses its parts any more through it.
    pub(crate) fn stops(&self) {
        *self.phase.write() = Phase::Stopping;
    }

    /// The present phase, which lasts as long as this is held.
    pub(super) fn phase(&self) -> RwLockReadGuard<'_, Phase> {
        self.phase.read()
    }
}
