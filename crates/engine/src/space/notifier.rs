//! Wakes the thread that measures how much space there is.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Between two probes near the limit, or beyond it.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_millis(200);

/// Wakes the thread.
#[derive(Debug, Default)]
pub(crate) struct ProbeNotifier {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Wanted {
    probe: bool,
    stop: bool,
}

impl ProbeNotifier {
    /// Asks for a probe at once.
    pub(crate) fn probe_now(&self) {
        self.wanted.lock().probe = true;
        self.changed.notify_one();
    }

    /// Waits for `time` or until a probe is asked for. False when the thread is to end.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let mut wanted = self.wanted.lock();
        self.changed.wait_while_for(&mut wanted, |wanted| !wanted.probe && !wanted.stop, time);
        wanted.probe = false;
        !wanted.stop
    }

    /// Tells the thread to end.
    pub(super) fn ask_to_stop(&self) {
        self.wanted.lock().stop = true;
        self.changed.notify_one();
    }
}
