//! What is told of the server: whether it opens, serves or stops, and of what it consists while it serves.
//!
//! Who asks holds the lock on the state while the answer is made, so that nothing of the server is in use any more once
//! [`stops`](Face::stops) has returned: the store can then be closed.

use std::sync::{Arc, Weak};
use std::time::Instant;

use ecotone_resp::serve::Pulse;
use ecotone_resp::service::Service;
use parking_lot::RwLock;

use super::{health, metrics};
use crate::monitor::Watch;
use crate::options::LostLines;

/// The server, for who watches it.
#[derive(Default)]
pub(crate) struct Face {
    state: RwLock<State>,
}

/// In which part of its life the server is.
#[derive(Default)]
pub(super) enum State {
    /// The store is not open yet.
    #[default]
    Opening,
    Serving(Parts),
    Stopping,
}

/// A server that serves.
pub(crate) struct Parts {
    pub(crate) watch: Arc<Watch>,
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
    pub(crate) lanes: Arc<[Pulse]>,
}

impl Face {
    /// The server serves from now on.
    pub(crate) fn serves(&self, parts: Parts) {
        *self.state.write() = State::Serving(parts);
    }

    /// The server stops. When this returns nobody uses its parts any more through the face.
    pub(crate) fn stops(&self) {
        *self.state.write() = State::Stopping;
    }

    /// What hangs at `now`, by name; nothing if the server is well.
    pub(crate) fn hanging(&self, now: Instant) -> Vec<String> {
        health::hanging(&self.state.read(), now)
    }

    /// Why the server is not ready at `now`; nothing if it is.
    pub(crate) fn unready(&self, now: Instant) -> Vec<String> {
        health::unready(&self.state.read(), now)
    }

    /// The page of metrics.
    pub(super) fn metrics(&self, now: Instant) -> String {
        let state = self.state.read();
        let parts = match &*state {
            State::Serving(parts) => Some(parts),
            State::Opening | State::Stopping => None,
        };
        let seen = parts.and_then(|parts| parts.watch.seen());
        let service = parts.and_then(|parts| parts.clients.as_ref()?.service.upgrade());
        metrics::page(&metrics::Source {
            parts,
            seen: seen.as_deref(),
            service: service.as_deref(),
            is_healthy: Some(health::hanging(&state, now).is_empty()),
            is_ready: Some(health::unready(&state, now).is_empty()),
        })
    }
}
