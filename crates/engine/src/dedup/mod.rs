//! Finding what upper levels have replaced in lower ones, and merging it away.
//!
//! - [`sketch`]: what each table tells of its keys: [`samples`], and [`filters`] where one is wanted.
//! - [`known`]: what all of them tell, in memory.
//! - [`queue`]: compactions that have ended. [`thread`]: looks at them, and extends some. [`extension`]: which merge is made for that.
//!   [`levels_compared`]: which are made for measurements. [`merge`]: one merge.
//! - [`counts`]: what was done. [`levels`]: what there is. [`settings`]: what a store is told, and what it tells.

mod counts;
mod extension;
pub(crate) mod filters;
pub(crate) mod known;
mod levels;
mod levels_compared;
pub(crate) mod merge;
pub(crate) mod queue;
pub(crate) mod samples;
mod settings;
pub(crate) mod sketch;
mod thread;

use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rust_rocksdb::DB;
use rustix::time::{ClockId, clock_gettime};

use crate::family::DataFamily;
use counts::Counts;
pub(crate) use levels::with_levels;
use queue::Queue;
pub use settings::{DedupLevel, DedupMode, DedupOptions, DedupProperties, ExtensionThreshold, SEPARATED_THRESHOLD};
pub(crate) use thread::{Parts, Settings};

/// What this thread has taken of the processor. `Instant` would count the time of others as well.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

thread_local! {
    /// What this thread has counted already, as time of [`sketch::Sketching`].
    static COUNTED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// What listener, thread and store share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) queue: Queue,
    counts: Counts,
    /// What there was, and when it was counted.
    lately: Mutex<Option<(Instant, DedupProperties)>>,
}

/// All samples are sorted for it, and whoever watches asks each second.
const COUNTED_EVERY: Duration = Duration::from_secs(10);

impl Shared {
    /// What there was within the last [`COUNTED_EVERY`], or is by `count`; where that has nothing, as it was counted last.
    pub(crate) fn lately(&self, count: impl FnOnce() -> Option<DedupProperties>) -> Option<DedupProperties> {
        // Who counts is somebody else who looks.
        let mut lately = self.lately.try_lock()?;
        let is_due = lately.as_ref().is_none_or(|(at, _)| at.elapsed() >= COUNTED_EVERY);
        if is_due && let Some(counted) = count() {
            *lately = Some((Instant::now(), counted));
        }
        lately.as_ref().map(|(_, counted)| counted.clone())
    }

    /// What was done about duplicates, nothing of what there is.
    pub(crate) fn properties(&self) -> DedupProperties {
        let properties = self.counts.properties();
        DedupProperties {
            checks_dropped: self.queue.dropped(),
            is_busy: properties.is_busy || self.queue.has_more(),
            ..properties
        }
    }
}

/// The thread, while it lives.
pub(crate) struct Dedup {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Dedup {
    pub(crate) fn start(
        settings: Settings,
        parts: Parts,
        shared: Arc<Shared>,
        db: &Arc<DB>,
        family: DataFamily,
    ) -> std::io::Result<Self> {
        let of_thread = thread::Thread::new(settings, parts, shared.clone(), family);
        let db: Weak<DB> = Arc::downgrade(db);
        let thread = std::thread::Builder::new().name("ecotone-dedup".into()).spawn(move || of_thread.run(&db))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Tells the thread to end. A merge that it waits for must be stopped by the caller.
    pub(crate) fn ask_to_stop(&self) {
        self.shared.queue.ask_to_stop();
    }
}

impl Drop for Dedup {
    fn drop(&mut self) {
        self.ask_to_stop();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, its message is on standard error.
            let _ = thread.join();
        }
    }
}
