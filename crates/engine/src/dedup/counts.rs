//! What has been done about duplicates since the store was opened.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use ecotone_policy::dedup::decide::Why;
use rustix::time::{ClockId, clock_gettime};

use super::DedupProperties;
use super::deferral::Deferral;

/// Counted by the thread, read by anybody.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(super) checks: AtomicU64,
    pub(super) extensions: AtomicU64,
    pub(super) merges: AtomicU64,
    pub(super) merges_aborted: AtomicU64,
    /// In the order of [`Deferral::ALL`] and [`Why::ALL`].
    merges_deferred: [AtomicU64; Deferral::ALL.len()],
    checks_left: [AtomicU64; Why::ALL.len()],
    pub(super) expected_keys: AtomicU64,
    pub(super) found_keys: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) check_cpu_us: AtomicU64,
    pub(super) merge_cpu_us: AtomicU64,
    pub(super) is_busy: AtomicBool,
}

impl Counts {
    /// A merge waits.
    pub(super) fn deferred(&self, why: Deferral) {
        add_one(&Deferral::ALL, why, &self.merges_deferred);
    }

    /// A check found enough to extend a compaction.
    pub(super) fn found(&self) {
        self.extensions.fetch_add(1, Relaxed);
        self.is_busy.store(true, Relaxed);
    }

    /// A check found nothing to extend a compaction for.
    pub(super) fn left(&self, why: Why) {
        add_one(&Why::ALL, why, &self.checks_left);
    }

    /// What was done, nothing of what there is.
    pub(super) fn properties(&self) -> DedupProperties {
        let count = |count: &AtomicU64| count.load(Relaxed);
        DedupProperties {
            checks: count(&self.checks),
            extensions: count(&self.extensions),
            merges: count(&self.merges),
            merges_aborted: count(&self.merges_aborted),
            merges_deferred: by_reason(Deferral::ALL.map(Deferral::name), &self.merges_deferred),
            checks_left: by_reason(Why::ALL.map(Why::name), &self.checks_left),
            expected_keys: count(&self.expected_keys),
            found_keys: count(&self.found_keys),
            read_bytes: count(&self.read_bytes),
            written_bytes: count(&self.written_bytes),
            check_cpu_us: count(&self.check_cpu_us),
            merge_cpu_us: count(&self.merge_cpu_us),
            is_busy: self.is_busy.load(Relaxed),
            ..DedupProperties::default()
        }
    }
}

fn add_one<R: PartialEq>(all: &[R], reason: R, counts: &[AtomicU64]) {
    let count = all.iter().position(|one| *one == reason).and_then(|at| counts.get(at));
    if let Some(count) = count {
        count.fetch_add(1, Relaxed);
    }
}

fn by_reason<const N: usize>(names: [&'static str; N], counts: &[AtomicU64; N]) -> BTreeMap<&'static str, u64> {
    names.into_iter().zip(counts.iter().map(|count| count.load(Relaxed))).collect()
}

/// What this thread has taken of the processor. `Instant` would count the time of others as well.
pub(super) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

thread_local! {
    /// What this thread has counted already, as time of [`super::sketch::Sketching`].
    pub(super) static COUNTED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}
