//! Finding what upper levels have replaced in lower ones, and merging it away.
//!
//! - [`sketch`]: what each table tells of its keys: [`samples`], and [`filters`] where one is
//!   wanted.
//! - [`sample_registry`]: what all of them tell, in memory.
//! - [`queue`]: compactions that have ended. [`thread`]: does what
//!   [`ecotone_policy::dedup::machine`] decides: looks at them, and extends some.
//! - [`counts`]: what was done. [`levels`]: what there is. [`settings`]: what a store is told, and
//!   what it tells.

mod counts;
pub(crate) mod filters;
mod levels;
pub(crate) mod queue;
pub(crate) mod sample_registry;
pub(crate) mod samples;
mod settings;
pub(crate) mod sketch;
mod thread;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rust_rocksdb::DB;

use crate::background::BackgroundThread;
use crate::compaction::jobs::CompactionPurpose;
use crate::compaction::table_changes::{CompactedTables, TableSubscriber};
use crate::family::DataFamily;
use counts::Counts;
pub(crate) use levels::with_levels;
use queue::Queue;
pub use settings::{DedupLevel, DedupMode, DedupOptions, DedupProperties, ExtensionThreshold, SEPARATED_THRESHOLD};
pub(crate) use thread::{DedupComponents, Settings};

/// What listener, thread and store share.
#[derive(Debug, Default)]
pub(crate) struct DedupState {
    pub(crate) queue: Queue,
    counts: Counts,
    /// What there was, and when it was counted. Never held for longer than to copy it.
    cached: Mutex<Option<(Instant, DedupProperties)>>,
    /// Held by who counts.
    counting: Mutex<()>,
}

/// All samples are sorted for it, and whoever watches asks each second.
const COUNTED_EVERY: Duration = Duration::from_secs(10);

/// So long who asks while the first count is made waits for it. Counting takes milliseconds, unless
/// tables have to be read for it first: one waits for that, and all others do without.
const FIRST_COUNT_WAIT: Duration = Duration::from_millis(100);

impl DedupState {
    /// What there was within the last [`COUNTED_EVERY`], or is by `count`; where that has nothing,
    /// or somebody else counts, as it was counted last.
    pub(crate) fn cached(
        &self,
        now: Instant,
        count: impl FnOnce() -> Option<DedupProperties>,
    ) -> Option<DedupProperties> {
        let is_due = || self.cached.lock().as_ref().is_none_or(|(at, _)| now.duration_since(*at) >= COUNTED_EVERY);
        if is_due()
            && let Some(_counting) = self.counting.try_lock()
            // Somebody may just have done so.
            && is_due()
            && let Some(counted) = count()
        {
            *self.cached.lock() = Some((now, counted));
        }
        self.counted_last()
    }

    /// As it was counted last; where nobody has, by `count`, once for all who ask meanwhile. `None`
    /// where that takes others longer than [`FIRST_COUNT_WAIT`].
    pub(crate) fn cached_or_first(
        &self,
        now: Instant,
        count: impl FnOnce() -> Option<DedupProperties>,
    ) -> Option<DedupProperties> {
        let _counting = self.counting.try_lock_for(FIRST_COUNT_WAIT)?;
        if let Some(counted) = self.counted_last() {
            return Some(counted);
        }
        let counted = count()?;
        *self.cached.lock() = Some((now, counted.clone()));
        Some(counted)
    }

    fn counted_last(&self) -> Option<DedupProperties> {
        self.cached.lock().as_ref().map(|(_, counted)| counted.clone())
    }

    /// What was done about duplicates, nothing of what there is.
    pub(crate) fn properties(&self) -> DedupProperties {
        let properties = self.counts.properties();
        DedupProperties {
            checks_dropped: properties.checks_dropped + self.queue.dropped(),
            is_busy: properties.is_busy || self.queue.has_more(),
            ..properties
        }
    }
}

impl TableSubscriber for DedupState {
    fn compacted(&self, compaction: &CompactedTables<'_>) {
        // One that merges duplicates goes on itself with what it has written.
        if compaction.rewrites && compaction.purpose != Some(CompactionPurpose::Dedup) {
            self.queue.compacted(compaction.info);
        }
    }
}

/// Starts the thread.
pub(crate) fn start(
    settings: Settings,
    components: DedupComponents,
    shared: Arc<DedupState>,
    db: &Arc<DB>,
    family: DataFamily,
) -> std::io::Result<BackgroundThread> {
    let of_thread = thread::Thread::new(settings, components, shared.clone(), family);
    let db: Weak<DB> = Arc::downgrade(db);
    BackgroundThread::start("ecotone-dedup", move || shared.queue.ask_to_stop(), move || of_thread.run(&db))
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn counted(total_keys: u64) -> Option<DedupProperties> {
        Some(DedupProperties { total_keys, ..DedupProperties::default() })
    }

    #[test]
    fn who_asks_while_another_counts_gets_what_was_counted_last() {
        let (shared, begin) = (DedupState::default(), Instant::now());
        // The first one: there is nothing to be had yet.
        let first = shared.cached(begin, || {
            assert_eq!(shared.cached(begin, || panic!("two count at a time")), None);
            counted(1)
        });
        assert_eq!(first, counted(1));
        let soon = begin + COUNTED_EVERY / 2;
        assert_eq!(shared.cached(soon, || panic!("it is not due")), counted(1));
        let due = begin + COUNTED_EVERY;
        let second = shared.cached(due, || {
            assert_eq!(shared.cached(due, || panic!("two count at a time")), counted(1));
            counted(2)
        });
        assert_eq!(second, counted(2));
        // Where it cannot be counted now.
        assert_eq!(shared.cached(due + COUNTED_EVERY, || None), counted(2));
        assert_eq!(shared.cached_or_first(due + COUNTED_EVERY, || panic!("it was counted before")), counted(2));
    }

    #[test]
    fn many_who_are_the_first_to_ask_have_it_counted_once() {
        let (shared, all_ask, counts) = (DedupState::default(), Barrier::new(8), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    all_ask.wait();
                    let found =
                        shared.cached_or_first(Instant::now(), || counted(counts.fetch_add(1, Ordering::Relaxed)));
                    // Or it was too slow for who waited, which is what the bound is for.
                    assert!(found.is_none() || found == counted(0), "{found:?}");
                });
            }
        });
        assert_eq!(counts.load(Ordering::Relaxed), 1);
    }
}
