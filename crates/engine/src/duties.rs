//! Tells a [`DutyObserver`] what RocksDB's threads do, in pairs that nest, whatever RocksDB leaves
//! out.
//!
//! RocksDB tells no end of a flush that failed, or whose table another thread's flush committed,
//! and no end of anything once the store is closing. So each thread remembers what it has begun: a
//! missing end is made up before the thread begins its next job, or when the thread ends. Until
//! then the thread is idle, and uses no CPU that could be attributed wrongly.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use ecotone_types::{Duty, DutyObserver, Task};
use rustix::time::{ClockId, clock_gettime};

/// The observer of one store, if it has one. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct ThreadDuties(Option<Arc<dyn DutyObserver>>);

/// What a thread has begun and not ended, outermost first.
#[derive(Default)]
struct Begun {
    job: Option<Open>,
    part: Option<Open>,
}

struct Open {
    observer: Arc<dyn DutyObserver>,
    /// RocksDB's number of the job.
    number: i32,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.observer.end();
    }
}

impl Begun {
    fn end_all(&mut self) {
        self.part = None;
        self.job = None;
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.end_all();
    }
}

thread_local! {
    static BEGUN: RefCell<Begun> = const { RefCell::new(Begun { job: None, part: None }) };
}

fn begin(observer: &dyn DutyObserver, task: Task) {
    if task.is_deep { observer.begin_deep(task.duty) } else { observer.begin(task.duty) }
}

/// What this thread has taken of the processor. `Instant` would count the time of others as well.
pub(crate) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl ThreadDuties {
    pub(crate) fn new(observer: Option<Arc<dyn DutyObserver>>) -> Self {
        Self(observer)
    }

    /// This thread of RocksDB's pool begins a flush or a compaction.
    pub(crate) fn begin_job(&self, task: impl Into<Task>, number: i32) {
        let Some(observer) = &self.0 else { return };
        BEGUN.with_borrow_mut(|begun| {
            begun.end_all();
            begin(&**observer, task.into());
            begun.job = Some(Open { observer: observer.clone(), number });
        });
    }

    /// The job of this number has ended, if it is this thread's.
    pub(crate) fn end_job(&self, number: i32) {
        if self.0.is_none() {
            return;
        }
        BEGUN.with_borrow_mut(|begun| {
            if begun.job.as_ref().is_some_and(|job| job.number == number) {
                begun.end_all();
            }
        });
    }

    /// This thread begins a subcompaction of a compaction that runs here.
    pub(crate) fn begin_subcompaction(&self, task: impl Into<Task>, number: i32) {
        let Some(observer) = &self.0 else { return };
        BEGUN.with_borrow_mut(|begun| {
            begun.part = None;
            begin(&**observer, task.into());
            begun.part = Some(Open { observer: observer.clone(), number });
        });
    }

    /// The subcompaction that this thread began has ended.
    pub(crate) fn end_subcompaction(&self, number: i32) {
        if self.0.is_none() {
            return;
        }
        BEGUN.with_borrow_mut(|begun| {
            if begun.part.as_ref().is_some_and(|part| part.number == number) {
                begun.part = None;
            }
        });
    }

    /// A duty on this thread until [`end`](Self::end).
    pub(crate) fn begin(&self, duty: Duty) {
        if let Some(observer) = &self.0 {
            observer.begin(duty);
        }
    }

    /// The duty that this thread began last has ended.
    pub(crate) fn end(&self) {
        if let Some(observer) = &self.0 {
            observer.end();
        }
    }

    /// A duty for as long as the answer lives. The answer must be dropped on this thread, innermost
    /// first.
    pub(crate) fn enter(&self, duty: Duty) -> Entered<'_> {
        if let Some(observer) = &self.0 {
            observer.begin(duty);
        }
        Entered(self.0.as_deref())
    }
}

/// See [`ThreadDuties::enter`].
#[must_use]
pub(crate) struct Entered<'a>(Option<&'a dyn DutyObserver>);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(observer) = self.0 {
            observer.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    #[derive(Default)]
    struct Log(Mutex<Vec<Option<Duty>>>);

    impl DutyObserver for Log {
        fn begin(&self, duty: Duty) {
            self.0.lock().push(Some(duty));
        }
        fn end(&self) {
            self.0.lock().push(None);
        }
    }

    fn observed(act: impl FnOnce(&ThreadDuties) + Send + 'static) -> Vec<Option<Duty>> {
        let log = Arc::new(Log::default());
        let duties = ThreadDuties::new(Some(log.clone()));
        std::thread::spawn(move || act(&duties)).join().unwrap();
        log.0.lock().clone()
    }

    const FLUSH: Option<Duty> = Some(Duty::Flush);
    const COMPACTION: Option<Duty> = Some(Duty::Compaction);

    #[test]
    fn an_end_that_never_came_is_made_up_before_the_next_job() {
        let said = observed(|duties| {
            duties.begin_job(Duty::Flush, 1);
            duties.begin_job(Duty::Compaction, 2);
            duties.begin_subcompaction(Duty::Compaction, 2);
            duties.end_job(2);
        });
        assert_eq!(said, [FLUSH, None, COMPACTION, COMPACTION, None, None]);
    }

    #[test]
    fn the_end_of_another_threads_job_ends_nothing_here() {
        let said = observed(|duties| {
            duties.begin_job(Duty::Flush, 1);
            duties.end_job(7);
            duties.end_job(1);
            duties.end_job(1);
        });
        assert_eq!(said, [FLUSH, None]);
    }

    #[test]
    fn a_thread_that_ends_closes_what_it_began() {
        let said = observed(|duties| {
            duties.begin_job(Duty::Compaction, 1);
            duties.begin_subcompaction(Duty::Compaction, 1);
        });
        assert_eq!(said, [COMPACTION, COMPACTION, None, None]);
    }
}
