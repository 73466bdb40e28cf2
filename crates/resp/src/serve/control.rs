//! What all connections of a server are notified of: that it stops, and that limits have changed.
//!
//! It is one channel and not two, so that a client that waits for its next request waits on one
//! thing less.

use std::sync::Arc;

use tokio::sync::watch;

use crate::service::Service;

#[derive(Debug, Clone, Copy, Default)]
struct State {
    stops: bool,
    /// How often limits have changed.
    limits_version: u64,
}

/// The sending half.
#[derive(Debug, Clone)]
pub(super) struct ControlSender(watch::Sender<State>);

/// The receiving half. Each connection has its own.
#[derive(Debug, Clone)]
pub(super) struct ControlReceiver(watch::Receiver<State>);

/// Both halves.
pub(super) fn control() -> (ControlSender, ControlReceiver) {
    let (sender, told) = watch::channel(State::default());
    (ControlSender(sender), ControlReceiver(told))
}

impl ControlSender {
    /// The server stops.
    pub(super) fn stop(&self) {
        self.0.send_modify(|state| state.stops = true);
    }

    /// Passes on that limits of `service` have changed, until the server stops.
    pub(super) async fn pass_on_limits(self, service: Arc<Service>, mut control: ControlReceiver) {
        let mut changes = service.limits_changed.subscribe();
        loop {
            tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.0.send_modify(|state| state.limits_version += 1);
                }
                () = control.stops() => return,
            }
        }
    }
}

impl ControlReceiver {
    /// Waits until the server stops.
    pub(super) async fn stops(&mut self) {
        let _ = self.0.wait_for(|state| state.stops).await;
    }

    /// Waits for a notification that was not seen.
    pub(super) async fn changed(&mut self) {
        // The end of the sender is one as well.
        let _ = self.0.changed().await;
    }

    /// Whether there is a notification that was not seen.
    pub(super) fn has_changed(&self) -> bool {
        self.0.has_changed().unwrap_or(true)
    }

    /// Whether the server stops. Marks nothing as seen.
    pub(super) fn has_stopped(&self) -> bool {
        self.0.borrow().stops || self.0.has_changed().is_err()
    }

    /// Marks all notifications as seen. Returns whether the server stops.
    pub(super) fn see(&mut self) -> bool {
        // The end of the sender means the same.
        self.0.borrow_and_update().stops || self.0.has_changed().is_err()
    }
}
