//! The thread that frees garbage while nobody writes. What it does next is decided in
//! [`ecotone_policy::idle`]; here it is found out what there is, and done.
//!
//! Steps are flushes, [pieces](crate::pieces) of a compaction, tables in which values have expired,
//! and a word to the [thread of the value log](crate::gc::worker) that it need not be patient.
//! Where space is low [`crate::space::reclaim`] does the same with more right.
//!
//! Failure: what fails is tried again after [`RETRY_AFTER`]. RocksDB does not tell whether a
//! compaction of a range failed: [`MAX_FUTILE`] steps that leave the store as large as it was end
//! it until somebody writes.
//!
//! Threads: one of its own, which waits for what it does. It looks once a second while there is
//! something to do, and every [`REST_INTERVAL`] at one number while there is nothing.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ecotone_policy::idle::{Changes, Found, PARAMETERS, Quiet, Step, next};
use ecotone_rocks::tables::{FamilyTable, family_tables};
use ecotone_types::units::{Bytes, Seconds, Time};
use ecotone_valuelog::ValueLog;
use parking_lot::{Condvar, Mutex};
use rust_rocksdb::{DB, FlushOptions, properties};

use crate::background::BackgroundThread;
use crate::compaction::internal::InternalCompactions;
use crate::expired::ExpiredValues;
use crate::family::DataFamily;
use crate::gc::copying::Gc;
use crate::gc::notifier;
use crate::gc::removal::Removal;
use crate::live_share::live_share;
use crate::pieces::{PIECE_BYTES, is_above, last_level, pieces};
use crate::space::admission::AdmissionControl;
use crate::space::expired_tables::ExpiredTables;
use crate::space::measure::log_bytes;
use crate::{Error, Result};

/// Between two looks while there may be something to do.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Between two looks while there is nothing to do unless somebody writes.
const REST_INTERVAL: Duration = Duration::from_secs(2);

/// After a step that others end: a flush.
const STEP_INTERVAL: Duration = Duration::from_millis(200);

/// The longest time between two looks while something is in the way, such as an old snapshot: it
/// gets longer by [`CHECK_INTERVAL`] each time.
const MAX_THROTTLED: Duration = Duration::from_secs(10);

/// After a failure.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Steps in a row that free nothing.
const MAX_FUTILE: u32 = 3;

/// So long garbage collection may free nothing: it may wait for an iterator.
const MAX_GC_WAIT: Duration = Duration::from_secs(15);

/// The parts of a store that the thread works with.
pub(crate) struct IdleComponents {
    pub(crate) directory: PathBuf,
    pub(crate) internal: Arc<InternalCompactions>,
    pub(crate) admission: Arc<AdmissionControl>,
    /// How many ranges of keys were removed.
    pub(crate) removed_ranges: Arc<AtomicU64>,
    /// Where values that have expired are reclaimed.
    pub(crate) expired: Option<ExpiredTables>,
    /// Where values are separated from their keys.
    pub(crate) values: Option<Values>,
}

/// What it needs of a value log.
pub(crate) struct Values {
    pub(crate) log: Arc<ValueLog>,
    pub(crate) removal: Arc<Removal>,
    pub(crate) gc: Arc<Gc>,
    pub(crate) notifier: Arc<notifier::GcNotifier>,
}

#[derive(Default)]
struct Stopping {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Stopping {
    /// Waits for `time`. False when the thread is to end.
    fn wait(&self, time: Duration) -> bool {
        let mut is_set = self.is_set.lock();
        self.changed.wait_while_for(&mut is_set, |is_set| !*is_set, time);
        !*is_set
    }
}

/// Starts the thread.
pub(crate) fn start(components: IdleComponents, db: &Arc<DB>, family: DataFamily) -> std::io::Result<BackgroundThread> {
    let stopping = Arc::new(Stopping::default());
    let (inside, db) = (stopping.clone(), Arc::downgrade(db));
    let ask_to_stop = move || {
        *stopping.is_set.lock() = true;
        stopping.changed.notify_all();
    };
    BackgroundThread::start("ecotone-idle", ask_to_stop, move || Thread::new(components, family).run(&inside, &db))
}

/// That there is nothing to do, and what was known then.
struct Rested {
    at: Instant,
    writes: u64,
    removed_ranges: u64,
    entries: u64,
    may_expire: bool,
}

struct Thread {
    components: IdleComponents,
    family: DataFamily,
    began: Instant,
    quiet: Option<Quiet>,
    rested: Option<Rested>,
    /// Looks in a row at which something was in the way.
    throttled: u32,
    /// What was taken before the last step that was to free something, and how many of them have
    /// freed nothing.
    before: Option<Bytes>,
    futile: u32,
    /// What was taken, and what had been copied, when garbage collection was told to hurry or has
    /// got on last, and when that was.
    relocates: Option<(Bytes, u64, Instant)>,
}

impl Thread {
    fn new(components: IdleComponents, family: DataFamily) -> Self {
        let began = Instant::now();
        let (quiet, rested, before, relocates) = (None, None, None, None);
        Self { components, family, began, quiet, rested, throttled: 0, before, futile: 0, relocates }
    }

    fn run(mut self, stopping: &Stopping, db: &Weak<DB>) {
        let mut wait = CHECK_INTERVAL;
        while stopping.wait(wait) {
            // The store ends this thread before it closes the database, so the family is good while
            // this is.
            let Some(db) = db.upgrade() else { return };
            wait = self.look(&db).unwrap_or_else(|error| {
                tracing::debug!(%error, "garbage cannot be freed while nobody writes; it is tried again");
                RETRY_AFTER
            });
        }
    }

    /// One look, and one step. Returns how long to wait.
    fn look(&mut self, db: &DB) -> Result<Duration> {
        let writes = db.latest_sequence_number();
        let now = Time::from_seconds(self.began.elapsed().as_secs_f64());
        let quiet = self.quiet.get_or_insert_with(|| Quiet::begin(now, writes));
        if !quiet.observe(now, writes, &PARAMETERS) {
            self.end();
            self.rested = None;
            return Ok(CHECK_INTERVAL);
        }
        let removed_ranges = self.components.removed_ranges.load(Ordering::Relaxed);
        if let Some(rested) = &self.rested {
            let changes = Changes {
                writes: writes.saturating_sub(rested.writes),
                removed_ranges: removed_ranges != rested.removed_ranges,
                expiring: rested.may_expire.then(|| Seconds(rested.at.elapsed().as_secs_f64())),
                entries: rested.entries,
            };
            if !changes.are_worth_checking(&PARAMETERS) {
                return Ok(REST_INTERVAL);
            }
            self.rested = None;
        }
        if self.components.admission.is_space_low() {
            self.end();
            return Ok(CHECK_INTERVAL);
        }
        let tables = self.tables(db)?;
        let found = self.find(db, &tables)?;
        if !found.is_worth_checking(&PARAMETERS) {
            return Ok(self.rest(writes, removed_ranges, &tables, &found));
        }
        if found.is_throttled {
            self.throttled = self.throttled.saturating_add(1);
            return Ok(MAX_THROTTLED.min(CHECK_INTERVAL * self.throttled));
        }
        self.throttled = 0;
        let expired = self.components.expired.as_ref().map(|_| ExpiredValues.at_begin());
        let live = live_share(db, self.family, &tables, expired.as_ref())?;
        let step = next(&found, live, &PARAMETERS);
        tracing::debug!(?found, live, ?step, "nobody writes");
        if matches!(step, Step::CompactDown | Step::RewriteExpired) {
            let has_freed = self.before.replace(found.taken()).is_none_or(|before| found.taken() < before);
            self.futile = if has_freed { 0 } else { self.futile + 1 };
            if self.futile >= MAX_FUTILE {
                return Ok(self.rest(writes, removed_ranges, &tables, &found));
            }
        }
        let goes_on = match step {
            Step::Rest => false,
            Step::Wait => return Ok(CHECK_INTERVAL),
            Step::Flush => {
                self.flush(db)?;
                return Ok(STEP_INTERVAL);
            }
            Step::CompactDown => self.compact_down(db)?,
            Step::RewriteExpired => match &mut self.components.expired {
                Some(expired) => expired.rewrite(db, self.family)?,
                None => false,
            },
            Step::Relocate => {
                return Ok(self.relocate(&found).unwrap_or_else(|| self.rest(writes, removed_ranges, &tables, &found)));
            }
        };
        if goes_on { Ok(Duration::ZERO) } else { Ok(self.rest(writes, removed_ranges, &tables, &found)) }
    }

    /// There is nothing to do until something changes.
    fn rest(&mut self, writes: u64, removed_ranges: u64, tables: &[FamilyTable], found: &Found) -> Duration {
        self.end();
        let entries = tables.iter().map(|table| table.entries).sum();
        let at = Instant::now();
        // A store that is left alone for its size is left alone whatever expires.
        let may_expire = self.components.expired.is_some() && found.is_worth_checking(&PARAMETERS);
        self.rested = Some(Rested { at, writes, removed_ranges, entries, may_expire });
        REST_INTERVAL
    }

    /// Nothing more is to be done now.
    fn end(&mut self) {
        (self.throttled, self.before, self.futile) = (0, None, 0);
        if self.relocates.take().is_some()
            && let Some(values) = &self.components.values
        {
            values.gc.urgency.set_idle(false);
        }
    }

    fn tables(&self, db: &DB) -> Result<Vec<FamilyTable>> {
        family_tables(db, &self.family).map_err(|error| Error::Rocks { detail: error.to_string() })
    }

    fn find(&mut self, db: &DB, tables: &[FamilyTable]) -> Result<Found> {
        let number = |property: &properties::PropName| -> Result<u64> {
            Ok(db
                .property_int_value_cf(&self.family, property)
                .map_err(|error| Error::from_rocks(&error))?
                .unwrap_or(0))
        };
        // Before tables and segments: what they move there is counted once at least.
        let log_bytes = log_bytes(&self.components.directory);
        let log_bytes = log_bytes.map_err(|error| Error::io("list", &self.components.directory, &error))?;
        let busy = [
            properties::NUM_SNAPSHOTS,
            properties::NUM_RUNNING_COMPACTIONS,
            properties::NUM_RUNNING_FLUSHES,
            properties::COMPACTION_PENDING,
            properties::MEM_TABLE_FLUSH_PENDING,
        ];
        let mut is_throttled = false;
        for property in busy {
            is_throttled |= number(property)? > 0;
        }
        let in_memory =
            number(properties::NUM_ENTRIES_ACTIVE_MEM_TABLE)? + number(properties::NUM_ENTRIES_IMM_MEM_TABLES)?;
        let values = match &self.components.values {
            Some(values) => values.removal.recount(db, self.family)?,
            None => Default::default(),
        };
        let last = last_level(tables);
        let expired = match &mut self.components.expired {
            Some(expired) => expired.has_due(db, self.family)?,
            None => false,
        };
        Ok(Found {
            tables: Bytes(tables.iter().map(|table| table.bytes).sum()),
            values: Bytes(values.bytes),
            named: Bytes(values.referenced_bytes),
            logs: Bytes(log_bytes),
            in_memory: in_memory > 0,
            // One that nobody has looked at counts as well.
            above: tables.iter().filter(|table| is_above(table, last)).map(|table| table.entries.max(1)).sum(),
            expired,
            is_throttled,
        })
    }

    /// Begins a flush, and ends the segment that values are appended to: both hold what only a
    /// compaction could tell to be garbage.
    fn flush(&self, db: &DB) -> Result<()> {
        if let Some(values) = &self.components.values {
            values.log.seal_active();
        }
        let mut options = FlushOptions::default();
        options.set_wait(false);
        // Otherwise it would wait, without limit, until compactions have caught up.
        options.set_allow_write_stall(true);
        match db.flush_cf_opt(&self.family, &options).map_err(|error| Error::from_rocks(&error)) {
            Err(Error::Busy { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Compacts the piece that has the most above the last level. False where there is none.
    fn compact_down(&self, db: &DB) -> Result<bool> {
        let Some(_permit) = self.components.internal.permit(CHECK_INTERVAL) else { return Ok(true) };
        // Chosen by who holds the permit.
        let tables = self.tables(db)?;
        let last = last_level(&tables);
        let above = |piece: &crate::pieces::Piece| -> u64 {
            let met = tables.iter().filter(|table| is_above(table, last) && piece.meets(table));
            met.map(|table| table.bytes).sum()
        };
        let pieces = pieces(&tables, PIECE_BYTES);
        let Some(piece) = pieces.iter().max_by_key(|piece| above(piece)).filter(|piece| above(piece) > 0) else {
            return Ok(false);
        };
        piece.compact(db, self.family, false);
        Ok(true)
    }

    /// Has the value log relocate without patience. `None` where that has freed nothing for long.
    fn relocate(&mut self, found: &Found) -> Option<Duration> {
        let taken = found.taken();
        let values = self.components.values.as_ref()?;
        let copied = values.gc.relocated_bytes();
        if self.relocates.is_none() {
            // Where a flush came by itself before, it is appended to still.
            values.log.seal_active();
        }
        match self.relocates {
            Some((before, copied_before, since)) if taken >= before && copied == copied_before => {
                if since.elapsed() >= MAX_GC_WAIT {
                    return None;
                }
            }
            _ => self.relocates = Some((taken, copied, Instant::now())),
        }
        values.gc.urgency.set_idle(true);
        values.notifier.tables_changed();
        Some(CHECK_INTERVAL)
    }
}
