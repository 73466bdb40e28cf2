//! Who reads a copy's directory while items are applied to it.
//!
//! A reader opens the files that D shows, and shows later what D shows then. It needs the files of
//! what it has shown until it has caught up with the MANIFEST that does without them; so nothing is
//! deleted while it is behind that, however long. Where another directory, or the files of another
//! epoch, are to take the place of what is there, and before the engine opens D for writing, the
//! reader has to end: it is asked to, and waited for for at most [`MAX_CLOSE_TIME`]. It only reads,
//! so what goes on beside it is safe; what it reads from then on is not, and is given to nobody.
//!
//! Invariants: one reader at a time; a reader that was asked to end never finds itself admitted
//! again; no file is deleted between a reader's first look at D and its being open.
//!
//! Threads: any. Deletions hold the lock, so a reader begins before or after them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Who changes the files waits so long for a reader to end. A failover takes several times as much.
pub const MAX_CLOSE_TIME: Duration = Duration::from_millis(100);

/// A reader that holds deletions up for so long is asked to end. They wait until it has.
pub const MAX_HOLD_TIME: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct State {
    /// D may be read.
    is_admitting: bool,
    /// There is one, or one that was asked to end and has not.
    is_reading: bool,
    /// Set when it is asked to end.
    over: Arc<AtomicBool>,
    /// How far the file side is: what is to be deleted is not named there.
    drained: u64,
    /// The same, of what the reader has caught up with.
    passed: Option<u64>,
    /// Since when deletions wait.
    waiting_since: Option<Instant>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Readers {
    state: Mutex<State>,
    changed: Condvar,
}

/// While it is there, no file is deleted that a reader may need. One reader's.
#[derive(Debug)]
pub struct Reading {
    readers: Arc<Readers>,
    over: Arc<AtomicBool>,
}

/// While it is there no reader begins.
pub(crate) struct Deleting<'r> {
    _state: MutexGuard<'r, State>,
}

impl Readers {
    /// Begins to read; none while D may not be read, or somebody else reads.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> Option<Reading> {
        let mut state = self.state.lock();
        if !state.is_admitting || state.is_reading {
            return None;
        }
        (state.is_reading, state.passed, state.waiting_since) = (true, None, None);
        state.over = Arc::default();
        Some(Reading { readers: self.clone(), over: state.over.clone() })
    }

    /// Whether a reader may begin, or has begun and may go on.
    #[must_use]
    pub fn are_admitted(&self) -> bool {
        self.state.lock().is_admitting
    }

    /// From now on D may be read, or not by those who begin.
    pub(crate) fn admit(&self, is_admitting: bool) {
        self.state.lock().is_admitting = is_admitting;
    }

    /// Has the reader end, and lets none begin. False where it has not ended after `within`.
    pub fn close(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        let mut state = self.state.lock();
        state.is_admitting = false;
        state.over.store(true, Ordering::SeqCst);
        self.changed.notify_all();
        while state.is_reading {
            if self.changed.wait_until(&mut state, until).timed_out() {
                return !state.is_reading;
            }
        }
        true
    }

    /// Whether what nothing names from `drained` on may be deleted, and while this is there. Else
    /// the reader is asked to catch up.
    pub(crate) fn deleting(&self, drained: u64) -> Option<Deleting<'_>> {
        let mut state = self.state.lock();
        let is_behind = state.is_reading && state.passed.is_none_or(|passed| passed < drained);
        if !is_behind {
            state.waiting_since = None;
            state.drained = drained;
            return Some(Deleting { _state: state });
        }
        if state.drained != drained {
            state.drained = drained;
            self.changed.notify_all();
        }
        let since = *state.waiting_since.get_or_insert_with(Instant::now);
        if since.elapsed() > MAX_HOLD_TIME {
            state.waiting_since = None;
            state.over.store(true, Ordering::SeqCst);
            self.changed.notify_all();
        }
        None
    }
}

impl Reading {
    /// Whether it is to end: what it reads from here on may be wrong.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// The same, for those to whom what was read would be given: it is set before files change.
    #[must_use]
    pub fn over(&self) -> Arc<AtomicBool> {
        self.over.clone()
    }

    /// Before the files are opened, or caught up with: what [`passed`](Self::passed) is given then.
    #[must_use]
    pub fn drained(&self) -> u64 {
        self.readers.state.lock().drained
    }

    /// It shows at least what D showed when [`drained`](Self::drained) was asked, and nobody has
    /// anything of before.
    pub fn passed(&self, drained: u64) {
        let mut state = self.readers.state.lock();
        state.passed = state.passed.max(Some(drained));
        if state.passed >= Some(state.drained) {
            state.waiting_since = None;
        }
    }

    /// Waits for `longest`, or until deletions wait for it or it is to end.
    pub fn rest(&self, longest: Duration) {
        let until = Instant::now() + longest;
        let mut state = self.readers.state.lock();
        while !self.is_over() && state.waiting_since.is_none() {
            if self.readers.changed.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut state = self.readers.state.lock();
        (state.is_reading, state.passed, state.waiting_since) = (false, None, None);
        self.readers.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reads_at_a_time_and_none_where_nothing_is_shown() {
        let readers = Arc::new(Readers::default());
        assert!(readers.begin().is_none(), "nothing is there yet");
        readers.admit(true);
        let reading = readers.begin().unwrap();
        assert!(readers.begin().is_none() && !reading.is_over());
        drop(reading);
        assert!(readers.begin().is_some());
    }

    #[test]
    fn deletions_wait_until_the_reader_has_passed_what_does_without_them() {
        let readers = Arc::new(Readers::default());
        readers.admit(true);
        assert!(readers.deleting(10).is_some(), "nobody reads");
        let reading = readers.begin().unwrap();
        assert!(readers.deleting(10).is_none(), "it may be about to look at the files");
        reading.passed(reading.drained());
        assert!(readers.deleting(10).is_some());
        assert!(readers.deleting(30).is_none());
        // What it looked at before is not what it is to pass now.
        reading.passed(10);
        assert!(readers.deleting(30).is_none());
        reading.passed(reading.drained());
        assert!(readers.deleting(30).is_some());
        assert!(readers.deleting(40).is_none());
        drop(reading);
        assert!(readers.deleting(40).is_some());
    }

    #[test]
    fn a_reader_is_waited_for_and_not_for_ever() {
        let readers = Arc::new(Readers::default());
        readers.admit(true);
        let reading = readers.begin().unwrap();
        assert!(!readers.close(Duration::from_millis(1)));
        assert!(reading.is_over());
        readers.admit(true);
        assert!(reading.is_over() && readers.begin().is_none(), "it has not ended yet");
        let closing = readers.clone();
        let closing = std::thread::spawn(move || closing.close(Duration::from_secs(60)));
        drop(reading);
        assert!(closing.join().unwrap());
        assert!(readers.begin().is_none() && !readers.are_admitted());
        readers.admit(true);
        assert!(readers.begin().is_some());
    }

    #[test]
    fn a_reader_that_rests_wakes_when_deletions_wait_for_it() {
        let readers = Arc::new(Readers::default());
        readers.admit(true);
        let reading = readers.begin().unwrap();
        reading.passed(reading.drained());
        let resting = std::thread::spawn(move || {
            reading.rest(Duration::from_secs(60));
            reading.passed(reading.drained());
            reading
        });
        while readers.deleting(7).is_none() {
            std::thread::yield_now();
        }
        drop(resting.join().unwrap());
    }
}
