//! What has been done about duplicates since the store was opened.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use ecotone_policy::dedup::DedupMachine;
use ecotone_policy::dedup::machine::DedupCounts;
use parking_lot::Mutex;

use super::DedupProperties;

/// Counted by the thread, read by anybody.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Never held for longer than to copy it.
    decided: Mutex<Decided>,
    pub(super) read_bytes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) check_cpu_us: AtomicU64,
    pub(super) merge_cpu_us: AtomicU64,
}

#[derive(Debug, Clone, Default)]
struct Decided {
    counts: DedupCounts,
    is_busy: bool,
}

impl Counts {
    /// The machine has decided something.
    pub(super) fn decided(&self, machine: &DedupMachine) {
        *self.decided.lock() = Decided { counts: machine.counts().clone(), is_busy: machine.is_busy() };
    }

    /// What was done, nothing of what there is.
    pub(super) fn properties(&self) -> DedupProperties {
        let count = |count: &AtomicU64| count.load(Relaxed);
        let Decided { counts, is_busy } = self.decided.lock().clone();
        DedupProperties {
            checks: counts.checks,
            checks_dropped: counts.checks_dropped,
            extensions: counts.extensions,
            merges: counts.merges,
            merges_aborted: counts.merges_aborted,
            merges_deferred: counts.merges_deferred().map(|(why, times)| (why.name(), times)).collect(),
            checks_left: counts.checks_left().map(|(why, times)| (why.name(), times)).collect(),
            expected_keys: counts.expected_keys,
            found_keys: counts.found_keys,
            read_bytes: count(&self.read_bytes),
            written_bytes: count(&self.written_bytes),
            check_cpu_us: count(&self.check_cpu_us),
            merge_cpu_us: count(&self.merge_cpu_us),
            is_busy,
            ..DedupProperties::default()
        }
    }
}

thread_local! {
    /// What this thread has counted already, as time of [`super::sketch::Sketching`].
    pub(super) static COUNTED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}
