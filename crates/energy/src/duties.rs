//! What happens when a thread changes its duty: its CPU time goes to another account, and it takes
//! or gives back a core.
//!
//! A thread is on a core of its own from its outermost begin of a duty other than transport until
//! the matching end; duties nested inside stay on that core. Begin a duty around a piece of work (a
//! client's loop, a flush, a compaction), not around a single read: the meter is cheap, a change of
//! emulated core is a system call.

use std::marker::PhantomData;
use std::sync::Arc;

use ecotone_types::{Duty, DutyObserver, Task};

use crate::account::CoreChange;
use crate::cores::CoreBinder;
use crate::meter::EnergyMeter;
use crate::thread_clock::this_thread_id;

/// The observer of a server: a meter and a core binder. Every thread may call it; it never fails
/// and never panics.
pub struct ThreadDuties {
    meter: Arc<EnergyMeter>,
    binder: Arc<dyn CoreBinder>,
}

impl ThreadDuties {
    /// An observer that feeds `meter` and binds threads by `binder` ([`crate::cores::Unbound`] on a
    /// real machine).
    pub fn new(meter: Arc<EnergyMeter>, binder: Arc<dyn CoreBinder>) -> Self {
        Self { meter, binder }
    }

    /// The meter.
    pub fn meter(&self) -> &Arc<EnergyMeter> {
        &self.meter
    }

    /// The core binder.
    pub fn binder(&self) -> &Arc<dyn CoreBinder> {
        &self.binder
    }
}

impl ThreadDuties {
    fn take_up(&self, task: Task) {
        if self.meter.begin(task) == CoreChange::Take {
            self.binder.enter(this_thread_id(), task);
        }
    }
}

impl DutyObserver for ThreadDuties {
    fn begin(&self, duty: Duty) {
        self.take_up(duty.into());
    }

    fn begin_deep(&self, duty: Duty) {
        self.take_up(Task { duty, is_deep: true });
    }

    fn end(&self) {
        if self.meter.end() == CoreChange::Give {
            self.binder.leave(this_thread_id());
        }
    }
}

/// A duty that lasts as long as this value: ends it when dropped, also while a panic unwinds. Stays
/// on its thread.
#[must_use = "the duty ends when this is dropped"]
pub struct DutyScope<'a> {
    observer: &'a dyn DutyObserver,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl<'a> DutyScope<'a> {
    /// Begins a duty on the calling thread.
    pub fn begin(observer: &'a dyn DutyObserver, duty: Duty) -> Self {
        observer.begin(duty);
        Self { observer, stays_on_its_thread: PhantomData }
    }
}

impl Drop for DutyScope<'_> {
    fn drop(&mut self) {
        self.observer.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PowerModel;
    use parking_lot::Mutex;

    #[derive(Default)]
    struct Recorder(Mutex<Vec<(&'static str, u32)>>);

    impl CoreBinder for Recorder {
        fn enter(&self, thread: u32, _: Task) {
            self.0.lock().push(("enter", thread));
        }
        fn leave(&self, thread: u32) {
            self.0.lock().push(("leave", thread));
        }
        fn place(&self, _: &crate::placement::Placement) {}
    }

    fn duties() -> (Arc<Recorder>, ThreadDuties) {
        let recorder = Arc::new(Recorder::default());
        let meter = EnergyMeter::start(PowerModel::hardware(1.0, 5.0).unwrap()).unwrap();
        (recorder.clone(), ThreadDuties::new(meter, recorder))
    }

    #[test]
    fn one_core_for_a_thread_however_deep_its_duties_nest() {
        let (recorder, duties) = duties();
        {
            let _compaction = DutyScope::begin(&duties, Duty::Compaction);
            let _gc = DutyScope::begin(&duties, Duty::Gc);
            let _transport = DutyScope::begin(&duties, Duty::Transport);
            assert_eq!(duties.meter().current_duty(), Some(Duty::Transport));
        }
        let me = this_thread_id();
        assert_eq!(*recorder.0.lock(), [("enter", me), ("leave", me)]);
    }

    #[test]
    fn network_threads_take_no_core() {
        let (recorder, duties) = duties();
        drop(DutyScope::begin(&duties, Duty::Transport));
        assert!(recorder.0.lock().is_empty());
    }

    #[test]
    fn a_panic_gives_the_core_back_and_a_lost_end_is_counted() {
        let (recorder, duties) = duties();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _flush = DutyScope::begin(&duties, Duty::Flush);
            std::panic::resume_unwind(Box::new("a flush failed"));
        }));
        assert!(outcome.is_err());
        assert_eq!(recorder.0.lock().len(), 2);
        assert_eq!(duties.meter().current_duty(), None);
        duties.end();
        assert_eq!(recorder.0.lock().len(), 2);
        assert_eq!(duties.meter().reading().unbalanced_switches, 1);
    }
}
