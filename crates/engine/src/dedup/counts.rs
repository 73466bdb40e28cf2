//! What has been done about duplicates since the store was opened.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::DedupProperties;

/// Counted by the thread, read by anybody.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(super) checks: AtomicU64,
    pub(super) extensions: AtomicU64,
    pub(super) merges: AtomicU64,
    pub(super) merges_aborted: AtomicU64,
    pub(super) merges_forbidden: AtomicU64,
    pub(super) expected_keys: AtomicU64,
    pub(super) found_keys: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) check_cpu_us: AtomicU64,
    pub(super) merge_cpu_us: AtomicU64,
    pub(super) is_busy: AtomicBool,
}

impl Counts {
    /// What was done, nothing of what there is.
    pub(super) fn properties(&self) -> DedupProperties {
        let count = |count: &AtomicU64| count.load(Relaxed);
        DedupProperties {
            checks: count(&self.checks),
            extensions: count(&self.extensions),
            merges: count(&self.merges),
            merges_aborted: count(&self.merges_aborted),
            merges_forbidden: count(&self.merges_forbidden),
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
