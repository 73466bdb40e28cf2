//! The thread that looks at what compactions have written, and extends them where that is worth it.
//!
//! What is looked at, what is merged and when is decided by [`DedupMachine`]; this reads what it
//! asks for and does what it commands. Its time begins when the thread is made.
//!
//! Invariants:
//!
//! - Tables are chosen, and merged, by who holds the permit for internal compactions; it is given
//!   back before the thread waits.
//! - All that is read for one decision about tables is of one moment: the samples stay locked for
//!   as long as that takes.
//!
//! Failure: what cannot be read, and what RocksDB refuses or fails, is logged and told the machine,
//! which tries again later. **Threads**: one for each store; it ends when the queue says so.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ecotone_policy::dedup::deferral::MergeFailure;
use ecotone_policy::dedup::estimate::Estimate;
use ecotone_policy::dedup::forecast::Pressure;
use ecotone_policy::dedup::machine::{Command, Counting, Event, TableFacts, Wait};
use ecotone_policy::dedup::plan::{Merge, Table};
use ecotone_policy::dedup::{DedupMachine, DedupParameters, DedupThreshold};
use ecotone_types::Duty;
use ecotone_types::units::{Bytes, Seconds, Time};
use parking_lot::MutexGuard;
use rust_rocksdb::event_listener::CompactionJobInfo;
use rust_rocksdb::{DB, ErrorKind, properties};

use super::counts::COUNTED;
use super::sample_registry::{SampleRegistry, Sketches};
use super::{DedupMode, DedupState};
use crate::compaction::by_names;
use crate::compaction::internal::{CompactionPermit, InternalCompactions};
use crate::compaction::jobs::{BackgroundState, CompactionPurpose, Totals};
use crate::duties::ThreadDuties;
use crate::duties::thread_cpu;
use crate::family::DataFamily;
use crate::options::PENDING_SLOWDOWN_BYTES;
use crate::properties::stall_condition;
use crate::space::admission::AdmissionControl;
use crate::{Error, Result, StallCondition, StoreSettings};

/// A wait that is cut short is a reason to ask the machine again, no more.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);

/// What the thread goes by.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    counting: Counting,
    /// `None`: it only counts.
    threshold: Option<DedupThreshold>,
    parameters: DedupParameters,
    l0_compaction_trigger: u64,
    l0_slowdown_trigger: u64,
    target_file_bytes: u64,
}

impl Settings {
    /// `None` where nothing is counted.
    pub(crate) fn of(options: &StoreSettings) -> Option<Self> {
        let counting = match options.dedup_mode() {
            DedupMode::Off => return None,
            DedupMode::Sample => Counting::Samples,
            DedupMode::Filter => Counting::Filters,
            DedupMode::Triggered { interval } => Counting::Levels { interval: Seconds(interval.as_secs_f64()) },
        };
        let mut parameters = options.dedup.parameters.clone();
        parameters.max_merge_bytes = parameters.max_merge_bytes.max(min_merge_bytes(options));
        Some(Self {
            counting,
            threshold: options.dedup_threshold(),
            parameters,
            l0_compaction_trigger: options.l0_compaction_trigger.into(),
            l0_slowdown_trigger: options.l0_slowdown_trigger.into(),
            target_file_bytes: options.target_file_bytes,
        })
    }
}

/// What one table of a level takes with those that it meets in the level below: with less nothing
/// could be merged. There are as many as levels differ in size, and one at each end.
fn min_merge_bytes(options: &StoreSettings) -> Bytes {
    let tables = u64::from(options.level_multiplier) + 2;
    Bytes(options.target_file_bytes.saturating_mul(tables))
}

/// The parts of a store that the thread works with.
pub(crate) struct DedupComponents {
    pub(crate) samples: Arc<SampleRegistry>,
    pub(crate) internal: Arc<InternalCompactions>,
    pub(crate) admission: Option<Arc<AdmissionControl>>,
    pub(crate) background: Arc<BackgroundState>,
    pub(crate) totals: Arc<Totals>,
    pub(crate) duties: ThreadDuties,
}

pub(super) struct Thread {
    settings: Settings,
    components: DedupComponents,
    shared: Arc<DedupState>,
    family: DataFamily,
    began: Instant,
    machine: DedupMachine,
}

impl Thread {
    pub(super) fn new(
        settings: Settings,
        components: DedupComponents,
        shared: Arc<DedupState>,
        family: DataFamily,
    ) -> Self {
        let machine = DedupMachine::new(settings.counting, settings.threshold, settings.parameters.clone());
        Self { settings, components, shared, family, began: Instant::now(), machine }
    }

    pub(super) fn run(mut self, db: &Weak<DB>) {
        let mut wait = Wait::ZERO;
        while let Some(compactions) = self.wait(wait) {
            // The store ends this thread before it closes the database, so the family is good while
            // this is.
            let Some(db) = db.upgrade() else { return };
            wait = self.round(&db, compactions);
        }
    }

    /// The compactions that have ended meanwhile; `None` when the thread is to end.
    fn wait(&self, wait: Wait) -> Option<Vec<Vec<u64>>> {
        let not_before = Instant::now() + duration(wait.checks_not_before.since(self.now()));
        self.shared.queue.wait(wait.at_most.map(duration), not_before)
    }

    /// Tells what has ended, and does what is commanded until that is to wait.
    fn round(&mut self, db: &DB, compactions: Vec<Vec<u64>>) -> Wait {
        let internal = self.components.internal.clone();
        let mut permit = None;
        let flushed_tables = self.components.totals.flushes.load(Relaxed);
        let mut command = self.decide(Event::Woken { compactions, flushed_tables });
        loop {
            command = match command {
                Command::Wait(wait) => return wait,
                Command::ReadTables => self.metered(|thread| thread.read_tables(db)),
                Command::TakePermit { at_most } => {
                    permit = internal.permit(duration(at_most));
                    match permit.is_some() {
                        true => self.metered(|thread| thread.read_pressure(db)),
                        false => self.decide(Event::PermitUnavailable),
                    }
                }
                Command::ReadTablesAndSpace => self.metered(|thread| thread.read_tables_and_space(db)),
                Command::Merge { merge, expected } => match permit.take() {
                    Some(permit) => self.merge(db, permit, &merge, &expected),
                    // It follows a permit, always; else the machine would wait for an end.
                    None => self.decide(Event::MergeFailed(MergeFailure::Conflict)),
                },
            };
        }
    }

    fn decide(&mut self, event: Event<'_>) -> Command {
        let command = self.machine.handle(self.now(), event);
        for check in self.machine.checked() {
            tracing::debug!(?check, "looked for duplicates");
        }
        self.shared.counts.decided(&self.machine);
        command
    }

    fn now(&self) -> Time {
        Time::from_seconds(self.began.elapsed().as_secs_f64())
    }

    /// Counts what `act` takes of the processor.
    fn metered<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let duties = self.components.duties.clone();
        let _duty = duties.enter(Duty::Dedup);
        let (began, counted) = (thread_cpu(), COUNTED.get());
        let outcome = act(self);
        let counted = COUNTED.get().saturating_sub(counted);
        let took = thread_cpu().saturating_sub(began).saturating_sub(counted);
        self.shared.counts.check_cpu_us.fetch_add(took.as_micros() as u64, Relaxed);
        outcome
    }

    fn read_tables(&mut self, db: &DB) -> Command {
        let samples = self.components.samples.clone();
        match look(&samples, db, &self.family) {
            Ok((tables, known)) => self.decide(Event::TablesRead(TableFacts { tables: &tables, keys: &*known })),
            Err(error) => self.unreadable(&error),
        }
    }

    fn read_tables_and_space(&mut self, db: &DB) -> Command {
        let free_space = self.free_space();
        let samples = self.components.samples.clone();
        match look(&samples, db, &self.family) {
            Ok((tables, known)) => {
                let facts = TableFacts { tables: &tables, keys: &*known };
                self.decide(Event::TablesAndSpaceRead { facts, free_space })
            }
            Err(error) => self.unreadable(&error),
        }
    }

    fn read_pressure(&mut self, db: &DB) -> Command {
        if self.components.background.error().is_some() {
            return self.decide(Event::PermitTaken { pressure: None });
        }
        match self.pressure(db) {
            Ok(pressure) => self.decide(Event::PermitTaken { pressure: Some(pressure) }),
            Err(error) => self.unreadable(&error),
        }
    }

    fn unreadable(&mut self, error: &Error) -> Command {
        tracing::warn!(%error, "duplicates could not be looked at; trying again");
        self.decide(Event::FactsUnreadable)
    }

    /// For a merge, beside what it replaces.
    fn free_space(&self) -> Bytes {
        let Some(admission) = &self.components.admission else { return Bytes(u64::MAX) };
        admission.probe();
        Bytes(if admission.free_space().writes_refused { 0 } else { admission.for_gc() })
    }

    fn pressure(&self, db: &DB) -> Result<Pressure> {
        let failed = |error: rust_rocksdb::Error| Error::from_rocks(&error);
        let l0_tables = db.property_value_cf(&self.family, properties::num_files_at_level(0)).map_err(failed)?;
        let pending = db.property_int_value_cf(&self.family, properties::ESTIMATE_PENDING_COMPACTION_BYTES);
        Ok(Pressure {
            l0_tables: l0_tables.and_then(|tables| tables.parse().ok()).unwrap_or(0),
            l0_compaction_trigger: self.settings.l0_compaction_trigger,
            l0_slowdown_trigger: self.settings.l0_slowdown_trigger,
            is_slowed: stall_condition(db, self.family).is_some_and(|now| now != StallCondition::Normal),
            pending_compaction_bytes: Bytes(pending.map_err(failed)?.unwrap_or(0)),
            pending_slowdown_bytes: Bytes(PENDING_SLOWDOWN_BYTES),
        })
    }

    fn merge(&mut self, db: &DB, permit: CompactionPermit<'_>, merge: &Merge, expected: &Estimate) -> Command {
        let (purpose, target_file_bytes) = (CompactionPurpose::Dedup, self.settings.target_file_bytes);
        let began = Instant::now();
        let outcome = by_names::run(db, self.family, &permit, purpose, merge, target_file_bytes);
        let took = began.elapsed();
        // All of its time, but what it waited for a worker.
        let took_here = (!permit.was_remote()).then(|| took.saturating_sub(permit.was_away()));
        drop(permit);
        match outcome {
            Ok(Some(reported)) => {
                let found_keys = self.count_merge(reported.info());
                let expected = expected.duplicate_keys;
                tracing::debug!(?merge, expected, found_keys, ?took, "merged duplicates away");
                let admission = self.components.admission.as_ref();
                self.decide(Event::MergeEnded {
                    found_keys,
                    took: Seconds(took.as_secs_f64()),
                    took_here: took_here.map(|time| Seconds(time.as_secs_f64())),
                    is_space_low: admission.is_some_and(|admission| admission.is_space_low()),
                })
            }
            Ok(None) => self.decide(Event::MergeUnreported),
            Err(error) => {
                let failure = failure_of(&error);
                match failure {
                    MergeFailure::Conflict => tracing::debug!(%error, "a merge met another compaction"),
                    MergeFailure::NoSpace | MergeFailure::Closing => (),
                    MergeFailure::Failure => {
                        tracing::warn!(%error, "a merge of duplicates failed; the next one waits");
                    }
                }
                self.decide(Event::MergeFailed(failure))
            }
        }
    }

    /// Counts what a merge did, and returns how many entries it freed.
    fn count_merge(&self, info: &CompactionJobInfo) -> u64 {
        let stats = info.stats();
        let counts = &self.shared.counts;
        counts.read_bytes.fetch_add(stats.total_input_bytes(), Relaxed);
        counts.written_bytes.fetch_add(stats.total_output_bytes(), Relaxed);
        counts.merge_cpu_us.fetch_add(stats.cpu_micros(), Relaxed);
        stats.num_input_records().saturating_sub(stats.num_output_records())
    }
}

/// The tables that there are, and what is known of them.
fn look<'k>(known: &'k SampleRegistry, db: &DB, family: &DataFamily) -> Result<(Vec<Table>, MutexGuard<'k, Sketches>)> {
    let (tables, known) = known.look(db, family)?;
    Ok((tables.iter().map(by_names::table).collect(), known))
}

fn failure_of(error: &rust_rocksdb::Error) -> MergeFailure {
    match error.kind() {
        ErrorKind::Aborted | ErrorKind::InvalidArgument => MergeFailure::Conflict,
        ErrorKind::CompactionTooLarge => MergeFailure::NoSpace,
        ErrorKind::Incomplete | ErrorKind::ShutdownInProgress => MergeFailure::Closing,
        _ => MergeFailure::Failure,
    }
}

fn duration(time: Seconds) -> Duration {
    Duration::try_from_secs_f64(time.0).map_or(MAX_WAIT, |time| time.min(MAX_WAIT))
}
