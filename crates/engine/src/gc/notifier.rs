//! Wakes the thread that keeps the value log in shape, and counts what waits for a flush.
//!
//! A memtable is flushed once enough values lie behind it ([`ecotone_policy::gc::GcMachine`]).
//! What counts is what was written since it was begun, whoever had the one before flushed: to
//! flush one that was just begun would make a small table and a wait of writers, and free nothing.
//!
//! Threads: any may tell; one waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ecotone_policy::gc::MAX_FLUSHED_BYTES;
use ecotone_types::units::Bytes;
use parking_lot::{Condvar, Mutex};
use rust_rocksdb::event_listener::FlushJobInfo;

use crate::compaction::jobs::CompactionPurpose;
use crate::compaction::table_changes::{CompactedTables, TableSubscriber};

/// Wakes the thread; shared with the listener.
#[derive(Debug, Default)]
pub(crate) struct GcNotifier {
    /// Bytes of values that users have written.
    written: AtomicU64,
    /// At how many of them a flush is due; 0 before the first round and the first full memtable.
    flush_at: AtomicU64,
    memtable: Mutex<Memtable>,
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

/// The memtable that is being filled, in bytes of values that users have written.
#[derive(Debug)]
struct Memtable {
    /// Those that were written before it was begun.
    begins_at: u64,
    /// How many are due to be flushed.
    max_bytes: u64,
}

impl Default for Memtable {
    fn default() -> Self {
        Self { begins_at: 0, max_bytes: MAX_FLUSHED_BYTES.0 }
    }
}

#[derive(Debug, Default)]
struct Wanted {
    round: bool,
    stop: bool,
}

impl GcNotifier {
    /// A user's value was appended.
    #[inline]
    pub(super) fn wrote(&self, bytes: usize) {
        let before = self.written.fetch_add(bytes as u64, Ordering::SeqCst);
        let flush_at = self.flush_at.load(Ordering::SeqCst);
        if before < flush_at && before + bytes as u64 >= flush_at {
            self.tables_changed();
        }
    }

    /// What was written since the memtable was begun.
    pub(super) fn unflushed(&self) -> Bytes {
        let memtable = self.memtable.lock();
        Bytes(self.written.load(Ordering::SeqCst).saturating_sub(memtable.begins_at))
    }

    /// From now on the write that makes `max` since the memtable was begun wakes the thread.
    pub(super) fn await_unflushed(&self, max: Bytes) {
        let mut memtable = self.memtable.lock();
        memtable.max_bytes = max.0;
        self.await_writes(&memtable);
    }

    /// Whether a flush is due because at least `max` was written since the memtable was begun. It
    /// is due once.
    pub(super) fn takes_flush(&self, max: Bytes) -> bool {
        let mut memtable = self.memtable.lock();
        memtable.max_bytes = max.0;
        let written = self.written.load(Ordering::SeqCst);
        let is_due = written >= memtable.begins_at + memtable.max_bytes;
        if is_due {
            memtable.begins_at = written;
        }
        self.await_writes(&memtable);
        is_due
    }

    /// The flush that was due could not be begun: it is due when somebody asks again. No write
    /// wakes the thread for it meanwhile.
    pub(super) fn flush_is_due_still(&self) {
        let mut memtable = self.memtable.lock();
        memtable.begins_at = memtable.begins_at.saturating_sub(memtable.max_bytes);
    }

    /// A memtable is to be flushed, whoever wanted that: what is written from now on goes to an
    /// empty one.
    fn memtable_begins(&self) {
        let mut memtable = self.memtable.lock();
        memtable.begins_at = self.written.load(Ordering::SeqCst);
        self.await_writes(&memtable);
    }

    /// From now on the write that makes a flush due wakes the thread.
    fn await_writes(&self, memtable: &Memtable) {
        let flush_at = memtable.begins_at + memtable.max_bytes;
        self.flush_at.store(flush_at, Ordering::SeqCst);
        // It may have come meanwhile, and have looked before.
        if self.written.load(Ordering::SeqCst) >= flush_at {
            self.tables_changed();
        }
    }

    /// A flush or a compaction has ended.
    pub(crate) fn tables_changed(&self) {
        self.wanted.lock().round = true;
        self.changed.notify_one();
    }

    /// The thread is to end.
    pub(super) fn ask_to_stop(&self) {
        self.wanted.lock().stop = true;
        self.changed.notify_one();
    }

    /// Waits until there is a reason for a round, or for `most`. False when the thread is to end.
    pub(super) fn wait(&self, most: Option<Duration>) -> bool {
        let mut wanted = self.wanted.lock();
        match most {
            _ if wanted.stop || wanted.round => (),
            Some(most) => drop(self.changed.wait_for(&mut wanted, most)),
            None => {
                self.changed.wait_while(&mut wanted, |wanted| !wanted.stop && !wanted.round);
            }
        }
        wanted.round = false;
        !wanted.stop
    }

    /// Rests for `time`. False when the thread is to end.
    pub(super) fn rest(&self, time: Duration) -> bool {
        let mut wanted = self.wanted.lock();
        let until = Instant::now() + time;
        while !wanted.stop && !self.changed.wait_until(&mut wanted, until).timed_out() {}
        !wanted.stop
    }
}

impl TableSubscriber for GcNotifier {
    fn memtable_sealed(&self) {
        self.memtable_begins();
    }

    fn flushed(&self, _: &FlushJobInfo) {
        self.tables_changed();
    }

    fn compacted(&self, compaction: &CompactedTables<'_>) {
        // Who relocates by names knows of it, and is not to be woken from its rest.
        if compaction.purpose != Some(CompactionPurpose::Gc) {
            self.tables_changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    /// 64 MiB are due to be flushed.
    fn due(notifier: &GcNotifier) -> bool {
        notifier.takes_flush(Bytes::from_mib(64))
    }

    fn write(notifier: &GcNotifier, mib: u64) {
        (0..mib).for_each(|_| notifier.wrote(MIB as usize));
    }

    fn assert_due_after_64_mib(notifier: &GcNotifier) {
        write(notifier, 63);
        assert!(!due(notifier));
        write(notifier, 1);
        assert!(due(notifier));
    }

    #[test]
    fn a_flush_is_due_once_for_what_was_written() {
        let notifier = GcNotifier::default();
        assert_due_after_64_mib(&notifier);
        assert!(!due(&notifier));
        assert_due_after_64_mib(&notifier);
    }

    #[test]
    fn a_flush_that_was_not_begun_is_due_when_somebody_asks_again() {
        let notifier = GcNotifier::default();
        assert_due_after_64_mib(&notifier);
        notifier.wanted.lock().round = false;
        notifier.flush_is_due_still();
        assert!(!std::mem::take(&mut notifier.wanted.lock().round), "nothing else is woken for");
        assert!(due(&notifier));
        assert!(!due(&notifier));
        assert_due_after_64_mib(&notifier);
    }

    #[test]
    fn what_a_flush_took_that_others_wanted_is_not_flushed_for() {
        let notifier = GcNotifier::default();
        assert!(!due(&notifier));
        for _ in 0..10 {
            write(&notifier, 60);
            notifier.memtable_begins();
            assert!(!due(&notifier));
        }
        assert_due_after_64_mib(&notifier);
    }

    #[test]
    fn another_bound_counts_from_the_same_begin() {
        let notifier = GcNotifier::default();
        notifier.await_unflushed(Bytes::from_mib(64));
        write(&notifier, 20);
        assert_eq!(notifier.unflushed(), Bytes::from_mib(20));
        let wakes = |notifier: &GcNotifier| std::mem::take(&mut notifier.wanted.lock().round);
        assert!(!wakes(&notifier));
        notifier.await_unflushed(Bytes::from_mib(16));
        assert!(wakes(&notifier), "it was written meanwhile");
        assert!(notifier.takes_flush(Bytes::from_mib(16)) && notifier.unflushed() == Bytes::ZERO);
    }

    #[test]
    fn the_write_with_which_a_flush_is_due_wakes_the_thread() {
        let notifier = GcNotifier::default();
        assert!(!due(&notifier));
        let wakes = |notifier: &GcNotifier| std::mem::take(&mut notifier.wanted.lock().round);
        write(&notifier, 63);
        assert!(!wakes(&notifier));
        write(&notifier, 1);
        assert!(wakes(&notifier));
        // Not again before it was taken, and not for what others have flushed.
        write(&notifier, 1);
        assert!(!wakes(&notifier));
        notifier.memtable_begins();
        write(&notifier, 63);
        assert!(!wakes(&notifier));
        write(&notifier, 1);
        assert!(wakes(&notifier));
    }
}
