//! The thread that keeps the value log in shape.
//!
//! What is to be done is decided by [`ecotone_policy::gc::GcMachine`]: when, and which segments,
//! which table next, how long to wait after a failure, how slow writers are to be. The thread tells
//! it what there is, one event at a time, and carries out its commands: it removes segments,
//! flushes, compacts, rests and sleeps.
//!
//! Bounds: one compaction at a time, with the permit of [`crate::compaction::internal`]. Such
//! compactions may go to a server with a copy ([`super::moving`]).
//!
//! Failure: whatever fails is logged, once while it is the same, and the machine is told. RocksDB's
//! C API does not tell whether a compaction of a range of keys has failed: it counts as done.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ecotone_policy::gc::{Command, CompactionOutcome, Conditions, Event, GcMachine, GcParameters};
use ecotone_rocks::tables::{FamilyTable, family_tables};
use ecotone_types::units::{Bytes, Seconds, Time};
use ecotone_valuelog::pointer::SegmentNumber;
use ecotone_valuelog::segment;
use rust_rocksdb::{CompactOptions, DB, ErrorKind, FlushOptions, properties};

use super::copying::Gc;
use super::notifier::GcNotifier;
use super::removal::Removal;
use super::removed_ranges::{KeyRange, RemovedRanges};
use crate::background::BackgroundThread;
use crate::compaction::by_names;
use crate::compaction::internal::{CompactionPermit, InternalCompactions};
use crate::compaction::jobs::CompactionPurpose;
use crate::family::DataFamily;
use crate::{Error, Result};

/// What the thread goes by.
pub(crate) struct Settings {
    pub(crate) parameters: GcParameters,
    /// No forced compaction begins with more tables in level 0.
    pub(crate) most_l0_tables: u64,
    /// Of what they write.
    pub(crate) target_file_bytes: u64,
}

/// The thread, while it lives.
pub(crate) struct GcWorker {
    notifier: Arc<GcNotifier>,
    removed: Arc<RemovedRanges>,
    thread: BackgroundThread,
}

impl GcWorker {
    pub(crate) fn start(
        removal: Arc<Removal>,
        gc: Arc<Gc>,
        settings: Settings,
        notifier: Arc<GcNotifier>,
        db: &Arc<DB>,
        family: DataFamily,
    ) -> std::io::Result<Self> {
        let removed = Arc::new(RemovedRanges::default());
        let driver = Driver {
            removal,
            internal: gc.internal.clone(),
            gc,
            notifier: notifier.clone(),
            removed: removed.clone(),
            family,
            target_file_bytes: settings.target_file_bytes,
        };
        let machine = GcMachine::new(settings.parameters, settings.most_l0_tables);
        let db = Arc::downgrade(db);
        // What the last process left.
        notifier.tables_changed();
        let told = notifier.clone();
        let thread =
            BackgroundThread::start("ecotone-values", move || told.ask_to_stop(), move || driver.run(machine, &db))?;
        Ok(Self { notifier, removed, thread })
    }

    /// What wakes the thread.
    pub(crate) fn notifier(&self) -> &Arc<GcNotifier> {
        &self.notifier
    }

    /// A user's value was appended.
    #[inline]
    pub(crate) fn wrote(&self, bytes: usize) {
        self.notifier.wrote(bytes);
    }

    /// A range of keys was removed.
    pub(crate) fn removed(&self, range: KeyRange) {
        if self.removed.add(range) {
            self.notifier.tables_changed();
        }
    }

    /// Tells the thread to end. A compaction that it waits for must be stopped by the caller.
    pub(crate) fn ask_to_stop(&self) {
        self.thread.ask_to_stop();
    }
}

/// Tells the machine what there is, and does what it says.
struct Driver {
    removal: Arc<Removal>,
    gc: Arc<Gc>,
    internal: Arc<InternalCompactions>,
    notifier: Arc<GcNotifier>,
    removed: Arc<RemovedRanges>,
    family: DataFamily,
    target_file_bytes: u64,
}

/// From the moment the thread is woken until it sleeps again.
struct Round<'a> {
    db: &'a DB,
    /// How often somebody had asked whether there is more to do.
    asked: u64,
    /// See [`Command::TakePermit`].
    permit: Option<CompactionPermit<'a>>,
}

impl Driver {
    fn run(self, mut machine: GcMachine, db: &Weak<DB>) {
        let began = Instant::now();
        let now = || Time::from_seconds(began.elapsed().as_secs_f64());
        // Why something failed the last time: it may be the same each second.
        let mut failed = None;
        let mut wait = None;
        while self.notifier.wait(wait) {
            // The store ends this thread before it closes the database, so the family is good while
            // this is.
            let Some(db) = db.upgrade() else { return };
            let mut round = Round { db: &db, asked: self.gc.urgency.asked(), permit: None };
            let mut event = Event::Woken { conditions: self.conditions() };
            wait = 'round: loop {
                // The last command brings the next event.
                let mut next = Event::Failed;
                for command in machine.handle(now(), event) {
                    if let Command::Sleep(wait) = command {
                        break 'round wait.map(duration);
                    }
                    match self.carry_out(&mut round, command) {
                        Ok(None) => (),
                        Ok(Some(event)) => next = event,
                        Err(error) => {
                            if failed.as_ref() != Some(&error) {
                                tracing::warn!(
                                    %error,
                                    "the value log could not be looked after: no space is reclaimed until it can; it is \
                                     tried again each second (ecotone verify tells whether a table is damaged, ecotone \
                                     repair saves the rest)"
                                );
                                failed = Some(error);
                            }
                        }
                    }
                }
                event = next;
            };
        }
    }

    /// Does what the machine says. Returns what comes of it, where the machine is to know.
    fn carry_out<'a>(&'a self, round: &mut Round<'a>, command: Command) -> Result<Option<Event>> {
        let db = round.db;
        Ok(match command {
            Command::SetCandidates(segments) => {
                self.gc.set_candidates(segments.into_iter().map(SegmentNumber).collect());
                None
            }
            Command::SetForced(is_forced) => {
                self.gc.set_pursued(is_forced);
                None
            }
            Command::SetForcedRatio(ratio) => {
                self.gc.set_ratio(ratio);
                None
            }
            Command::Throttle(share) => {
                self.gc.throttle.set(share);
                None
            }
            Command::AwaitWrites(bytes) => {
                self.notifier.await_unflushed(bytes);
                None
            }
            Command::LeaveAlone(segments, time) => {
                let segments: Vec<_> = segments.into_iter().map(|it| segment::file_name(SegmentNumber(it))).collect();
                tracing::warn!(
                    directory = ?self.gc.directory(), ?segments,
                    "garbage collection does not come to its end, so these segments are left alone for {:?}: a snapshot \
                     may hold old values, or a table cannot be compacted, or values cannot be read", duration(time)
                );
                None
            }
            Command::ForgetRanges(ranges) => {
                self.removed.forget(&ranges);
                None
            }
            Command::KeepRanges => {
                self.removed.keep();
                None
            }
            Command::Rest(time) => {
                self.notifier.rest(duration(time));
                None
            }
            Command::AnswerWaiting => {
                self.gc.urgency.answer(round.asked);
                None
            }
            Command::RemoveSegments { seal_from } => Some(self.inspect(db, seal_from)?),
            Command::Flush { at_least } => Some(Event::Flushed { begun: self.flush(db, at_least)? }),
            Command::TakePermit(time) => {
                round.permit = self.internal.permit(duration(time));
                Some(match &round.permit {
                    Some(_) => Event::Permitted { tables: self.tables(db)?.iter().map(by_names::table).collect() },
                    None => Event::NotPermitted,
                })
            }
            Command::MeasureRanges => {
                let removed = self.removed.added();
                Some(Event::RangesMeasured {
                    removed,
                    ranges: self.removed.measure(db, self.family, &self.tables(db)?)?,
                })
            }
            Command::CompactTables { merge, may_go } => {
                self.gc.set_may_go(may_go);
                let bytes = self.target_file_bytes;
                round.compaction(|permit| {
                    by_names::run(db, self.family, permit, CompactionPurpose::Gc, &merge, bytes).map(drop)
                })
            }
            Command::CompactDown { first, last, bytes } => {
                round.compaction(|permit| compact_range(db, self.family, (&first, &last), bytes, permit))
            }
            Command::CompactRemoved(range) => {
                let keys = self.removed.take(range.number);
                round.compaction(|permit| {
                    keys.map_or(Ok(()), |(from, to)| compact_range(db, self.family, (&from, &to), range.bytes, permit))
                })
            }
            Command::Sleep(_) => None,
        })
    }

    fn conditions(&self) -> Conditions {
        let admission = self.gc.admission.as_ref();
        Conditions {
            hurry: self.gc.urgency.hurry(),
            free_share: admission.map_or(1.0, |admission| admission.free_space().free_share()),
            free_for_copies: Bytes(admission.map_or(u64::MAX, |admission| admission.for_gc())),
            writers: self.gc.throttle.times(),
        }
    }

    /// Removes segments, and tells what there is.
    fn inspect(&self, db: &DB, seal_from: f64) -> Result<Event> {
        let mut store = self.removal.round(db, self.family, &self.gc.candidates(), seal_from)?;
        if let Some(admission) = &self.gc.admission {
            admission.changed();
        }
        store.tables = self.tables(db)?.iter().map(by_names::table).collect();
        store.has_snapshots = has_snapshots(db)?;
        store.has_removed_ranges = self.removed.has_new();
        store.unflushed = self.notifier.unflushed();
        Ok(Event::Inspected { conditions: self.conditions(), store: Box::new(store) })
    }

    fn tables(&self, db: &DB) -> Result<Vec<FamilyTable>> {
        family_tables(db, &self.family).map_err(|error| Error::Rocks { detail: error.to_string() })
    }

    /// Begins a flush, unless the memtable was begun a moment ago and holds less than `at_least`.
    /// `false`: writes are stopped, and RocksDB begins none that it is asked for.
    fn flush(&self, db: &DB, at_least: Option<Bytes>) -> Result<bool> {
        if at_least.is_some_and(|at_least| !self.notifier.takes_flush(at_least)) {
            return Ok(true);
        }
        let mut options = FlushOptions::default();
        options.set_wait(false);
        // Otherwise it would wait, without limit, until compactions have caught up.
        options.set_allow_write_stall(true);
        match db.flush_cf_opt(&self.family, &options).map_err(|error| Error::from_rocks(&error)) {
            Ok(()) => Ok(true),
            Err(Error::Busy { .. }) => {
                if at_least.is_some() {
                    self.notifier.flush_is_due_still();
                }
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

impl Round<'_> {
    /// Compacts with the permit, and lets it go unless nothing could be begun for want of space: a
    /// smaller one may follow.
    fn compaction(
        &mut self,
        compact: impl FnOnce(&CompactionPermit<'_>) -> std::result::Result<(), rust_rocksdb::Error>,
    ) -> Option<Event> {
        let permit = self.permit.take();
        let outcome = match permit.as_ref().map(compact) {
            Some(Ok(())) => CompactionOutcome::Done,
            Some(Err(error)) => {
                tracing::debug!(%error, "tables could not be compacted forcibly");
                match error.kind() {
                    ErrorKind::CompactionTooLarge => CompactionOutcome::TooLarge,
                    ErrorKind::Incomplete => CompactionOutcome::Paused,
                    _ => CompactionOutcome::Failed,
                }
            }
            None => CompactionOutcome::Failed,
        };
        let away = permit.as_ref().map_or(Duration::ZERO, CompactionPermit::was_away);
        if outcome == CompactionOutcome::TooLarge {
            self.permit = permit;
        }
        Some(Event::CompactionEnded { outcome, away: Seconds(away.as_secs_f64()) })
    }
}

fn duration(time: Seconds) -> Duration {
    Duration::try_from_secs_f64(time.0).unwrap_or_default()
}

/// Brings the keys of a range to the last level, of which tables have so many bytes.
fn compact_range(
    db: &DB,
    family: DataFamily,
    (from, to): (&[u8], &[u8]),
    bytes: Bytes,
    permit: &CompactionPermit<'_>,
) -> std::result::Result<(), rust_rocksdb::Error> {
    let mut options = CompactOptions::default();
    options.set_exclusive_manual_compaction(false);
    let compact = || {
        db.compact_range_cf_opt(&family, Some(from), Some(to), &options);
        Ok(None)
    };
    permit.run(CompactionPurpose::Gc, bytes.0, compact).map(drop)
}

/// Whether somebody holds old versions, so that compactions free none.
fn has_snapshots(db: &DB) -> Result<bool> {
    let snapshots = db.property_int_value(properties::NUM_SNAPSHOTS).map_err(|error| Error::from_rocks(&error))?;
    Ok(snapshots.is_some_and(|snapshots| snapshots > 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpenMode, Separation, Store, StoreSettings};
    use ecotone_valuelog::pointer::SegmentSet;

    /// Tables know nothing of it before, samples do.
    #[test]
    fn what_a_compaction_will_find_to_be_garbage_it_relocates_immediately() {
        let directory = tempfile::tempdir().unwrap();
        let options = StoreSettings {
            separation: Some(Separation { min_bytes: 50, segment_bytes: 1 << 20 }),
            gc: GcParameters {
                min_garbage_bytes: Bytes(64 * 1024),
                forced_ratio: 1e6,
                urgent_ratio: 2e6,
                ..GcParameters::default()
            },
            ..StoreSettings::default()
        };
        let store = Store::open(&directory.path().join("store"), OpenMode::Create, options).unwrap();
        let write = |keys: &mut dyn Iterator<Item = u32>, value: [u8; 100]| {
            keys.for_each(|key| store.put(&key.to_be_bytes(), &value).unwrap());
            store.flush(true).unwrap();
        };
        let keys = 40_000;
        write(&mut (0..keys), [1; 100]);
        store.compact(..).unwrap();
        let values = store.values.as_ref().unwrap();
        let loaded: SegmentSet = values.log.segments().iter().map(|segment| segment.number()).collect();
        write(&mut (0..keys).filter(|key| key % 4 > 0), [2; 100]);
        let began = Instant::now();
        // The last one goes on with what came next.
        while loaded.difference(&values.gc.candidates()).count() > 1 {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", store.value_log());
            std::thread::yield_now();
        }
        assert_eq!(store.value_log().unwrap().relocated_bytes, 0);
        store.compact(..).unwrap();
        // One in four of the load, and none of what has replaced the others.
        let record_bytes = 12 + 4 + 100;
        let live = u64::from(keys) / 4 * record_bytes;
        let relocated = store.value_log().unwrap().relocated_bytes;
        assert!((live * 8 / 10..=live).contains(&relocated), "{relocated} of {live}");
        let is_left = || values.log.segments().iter().filter(|segment| loaded.contains(&segment.number())).count() > 1;
        while is_left() {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", store.value_log());
            std::thread::yield_now();
        }
        for key in 0..keys {
            let expected = [if key % 4 > 0 { 2 } else { 1 }; 100];
            assert_eq!(store.get(&key.to_be_bytes()).unwrap().as_deref(), Some(&expected[..]), "{key}");
        }
    }
}
