//! The thread that looks at what compactions have written, and extends them where that is worth it.
//!
//! After each compaction the keys that it wrote are looked for in the levels that it did not reach,
//! by what is known of the tables in memory; without a threshold they are only counted. Where there
//! are some the range waits, and of all ranges that wait the merge is made that frees the most for
//! what it costs ([`super::extension`]). Before each of them the tables are looked at anew,
//! duplicates are counted in just the tables that it would take, and the forecast is asked.
//!
//! Invariants:
//!
//! - No merge begins that would end in a stall, takes room that there is not, or meets a running
//!   compaction, as far as that can be seen.
//! - After a merge the thread rests, and longer each time that merges free less than was expected:
//!   a snapshot may hold old versions.
//!
//! Failure: what RocksDB refuses is tried again, [`MAX_CONFLICTS`] times in a row at most. What
//! fails is logged, and merges wait as after one that freed nothing.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ecotone_policy::dedup::back_off::BackOff;
use ecotone_policy::dedup::candidates::{Allowance, Choice, CostedMerge};
use ecotone_policy::dedup::decide::decide_triggered;
use ecotone_policy::dedup::estimate::{
    Estimate, Estimator, Filtered, Sampled, TableSketch, freed_at_bottom, shadowed_within,
};
use ecotone_policy::dedup::forecast::{FlushRate, Forbidden, MergeTime, Pressure, may_run};
use ecotone_policy::dedup::plan::{KeyRange, Merge, Table, Tree, below};
use ecotone_policy::dedup::{DedupParameters, DedupThreshold};
use ecotone_types::Duty;
use ecotone_types::units::{Bytes, Seconds, Time};
use parking_lot::MutexGuard;
use rust_rocksdb::event_listener::CompactionJobInfo;
use rust_rocksdb::{DB, properties};

use super::counts::{COUNTED, thread_cpu};
use super::deferral::{Deferral, MergeFailure};
use super::extension::Extension;
use super::levels_compared::LevelsCompared;
use super::sample_registry::{SampleRegistry, Sketches, sketch};
use super::{DedupMode, DedupState};
use crate::compaction::by_names;
use crate::compaction::internal::InternalCompactions;
use crate::compaction::jobs::{BackgroundState, CompactionPurpose, Totals};
use crate::duties::ThreadDuties;
use crate::family::DataFamily;
use crate::properties::stall_condition;
use crate::space::admission::AdmissionControl;
use crate::{Error, Result, StallCondition, StoreOptions};

/// So often in a row RocksDB may refuse merges: 6 s in all. Then the keys of the last one, which it
/// has most likely merged further, are given up.
const MAX_CONFLICTS: u32 = 6;

/// After the first time; twice as long after each further one.
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// What nobody tells of is looked at again after this time: L0, free space, another's permit.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What the thread goes by.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    mode: DedupMode,
    /// `None`: it only counts.
    threshold: Option<DedupThreshold>,
    parameters: DedupParameters,
    l0_compaction_trigger: u64,
    l0_slowdown_trigger: u64,
    pending_slowdown_bytes: u64,
    target_file_bytes: u64,
}

impl Settings {
    /// `None` where nothing is counted.
    pub(crate) fn of(options: &StoreOptions) -> Option<Self> {
        let mut parameters = options.dedup.parameters.clone();
        parameters.max_merge_bytes = parameters.max_merge_bytes.max(min_merge_bytes(options));
        let mode = options.dedup_mode();
        (mode != DedupMode::Off).then(|| Self {
            mode,
            threshold: options.dedup_threshold(),
            parameters,
            l0_compaction_trigger: options.l0_compaction_trigger.into(),
            l0_slowdown_trigger: options.l0_slowdown_trigger.into(),
            pending_slowdown_bytes: options.pending_slowdown_bytes,
            target_file_bytes: options.target_file_bytes,
        })
    }
}

/// What one table of a level takes with those that it meets in the level below: with less nothing
/// could be merged. There are as many as levels differ in size, and one at each end.
fn min_merge_bytes(options: &StoreOptions) -> Bytes {
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
    work: Work,
    back_off: BackOff,
    flushes: FlushRate,
    merge_time: MergeTime,
    /// Until then the thread rests.
    rests_until: Instant,
    /// Why merges have been deferred since the last one.
    deferred: Option<Deferral>,
    /// Merges in a row that RocksDB has refused.
    conflicts: u32,
    /// Whether what was there before the store was opened has been looked at.
    has_scanned_all: bool,
}

/// What there is to merge.
enum Work {
    /// Duplicates are only counted.
    None,
    Extensions(Extension),
    Levels(LevelsCompared),
}

/// What the thread does next.
enum Next {
    Merge(Planned),
    Wait(Option<Duration>),
}

struct Planned {
    merge: Merge,
    expected: Estimate,
    /// The keys that it merges, where these wait by their range.
    span: Option<KeyRange>,
}

impl From<CostedMerge> for Planned {
    fn from(costed: CostedMerge) -> Self {
        let CostedMerge { candidate, expected } = costed;
        Self { merge: candidate.merge, expected, span: Some(candidate.span) }
    }
}

impl Thread {
    pub(super) fn new(
        settings: Settings,
        components: DedupComponents,
        shared: Arc<DedupState>,
        family: DataFamily,
    ) -> Self {
        let now = Instant::now();
        let work = match (settings.mode, settings.threshold) {
            (DedupMode::Triggered { interval }, _) => Work::Levels(LevelsCompared::new(interval)),
            (_, Some(threshold)) => Work::Extensions(Extension::new(threshold, settings.parameters.clone())),
            (_, None) => Work::None,
        };
        Self {
            back_off: BackOff::new(&settings.parameters),
            settings,
            components,
            shared,
            family,
            began: now,
            work,
            flushes: FlushRate::new(),
            merge_time: MergeTime::default(),
            rests_until: now,
            deferred: None,
            conflicts: 0,
            has_scanned_all: false,
        }
    }

    pub(super) fn run(mut self, db: &Weak<DB>) {
        let mut wait = Some(Duration::ZERO);
        let mut not_before = Instant::now();
        while let Some(finished) = self.shared.queue.wait(wait, not_before) {
            // The store ends this thread before it closes the database, so the family is good while
            // this is.
            let Some(db) = db.upgrade() else { return };
            if !finished.is_empty() {
                not_before = Instant::now() + Duration::from_secs_f64(self.settings.parameters.check_interval.0);
            }
            wait = self.round(&db, finished).unwrap_or_else(|error| {
                tracing::warn!(%error, "duplicates could not be looked at; trying again");
                not_before = Instant::now();
                Some(RETRY_AFTER)
            });
        }
    }

    /// Looks at what has ended, and makes at most one merge. Returns how long to wait for a reason
    /// to go on.
    fn round(&mut self, db: &DB, finished: VecDeque<Vec<u64>>) -> Result<Option<Duration>> {
        self.observe_flushes();
        self.metered(|thread| thread.check(db, finished))?;
        if !self.has_scanned_all {
            self.metered(|thread| thread.scan_all(db))?;
            self.has_scanned_all = true;
        }
        let internal = self.components.internal.clone();
        match self.must_wait() {
            Some(Duration::ZERO) => (),
            Some(wait) => return Ok(Some(self.until_check().map_or(wait, |check| check.min(wait)))),
            None => {
                self.deferred = None;
                self.shared.counts.is_busy.store(false, Relaxed);
                return Ok(self.until_check());
            }
        }
        // Tables are chosen by who holds the permit.
        let Some(permit) = internal.permit(RETRY_AFTER) else { return Ok(Some(Duration::ZERO)) };
        match self.metered(|thread| thread.next(db))? {
            Next::Wait(wait) => Ok(wait),
            Next::Merge(planned) => {
                let began = Instant::now();
                let outcome = by_names::run(
                    db,
                    self.family,
                    &permit,
                    CompactionPurpose::Dedup,
                    &planned.merge,
                    self.settings.target_file_bytes,
                );
                let took = began.elapsed();
                let took_here = (!permit.was_remote()).then(|| took.saturating_sub(permit.was_away()));
                drop(permit);
                match outcome {
                    Ok(Some(told)) => self.merged(&planned, told.info(), took_here, took),
                    // RocksDB tells nothing only of tables that it moves, which it was not allowed
                    // to.
                    Ok(None) => self.give_up(&planned),
                    Err(error) => self.failure(&planned, &error),
                }
                Ok(Some(Duration::ZERO))
            }
        }
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

    fn now(&self) -> Time {
        Time::from_seconds(self.began.elapsed().as_secs_f64())
    }

    fn observe_flushes(&mut self) {
        self.flushes.observe(self.now(), self.components.totals.flushes.load(Relaxed));
    }

    /// Whether forecast, rests and back-off hold merges back. Not those of levels compared: the
    /// paper's baseline starts what it has decided whatever else goes on, in merges of
    /// `max_merge_bytes` for which there is room. Only after one that failed it pauses as well.
    fn is_limited(&self) -> bool {
        !matches!(self.work, Work::Levels(_))
    }

    /// How long until levels are compared next.
    fn until_check(&self) -> Option<Duration> {
        match &self.work {
            Work::Levels(levels) => Some(levels.until_check()),
            Work::Extensions(_) | Work::None => None,
        }
    }

    /// How long no merge can begin, as far as that is known already; checks go on. `None` where
    /// nothing waits.
    fn must_wait(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let soonest = match &self.work {
            Work::None => None,
            Work::Extensions(extension) => (!extension.is_empty()).then_some(now),
            Work::Levels(levels) => levels.soonest(),
        };
        let soonest = soonest?;
        let pause = Duration::from_secs_f64(self.back_off.remaining(self.now()).0);
        // A store that backs off has nothing that would soon be done.
        self.shared.counts.is_busy.store(pause.is_zero(), Relaxed);
        if !pause.is_zero() {
            self.count_deferral(Deferral::BackedOff);
        }
        Some(soonest.max(self.rests_until).saturating_duration_since(now).max(pause))
    }

    /// What was found before the store was closed may still be there. It counts as a check if it
    /// is. Nobody else looks at the tables of a store without value log, and some tell what is
    /// known without looking.
    fn scan_all(&mut self, db: &DB) -> Result<()> {
        let (tables, known) = look(&self.components.samples, db, &self.family)?;
        let Work::Extensions(extension) = &mut self.work else { return Ok(()) };
        let sketches: Vec<_> = tables.iter().map(|table| sketch(&known, table)).collect();
        let estimate = freed_at_bottom(&sketches, known.duplicates().one_in());
        if extension.found(&Tree::new(&tables), &known, KeyRange::of(&tables), &estimate).is_ok() {
            self.shared.counts.checks.fetch_add(1, Relaxed);
            self.shared.counts.found();
        }
        Ok(())
    }

    fn check(&mut self, db: &DB, finished: VecDeque<Vec<u64>>) -> Result<()> {
        if let Work::Levels(levels) = &self.work {
            return if levels.until_check().is_zero() { self.check_levels(db) } else { Ok(()) };
        }
        if finished.is_empty() {
            return Ok(());
        }
        let samples = self.components.samples.clone();
        match look(&samples, db, &self.family) {
            Ok((tables, known)) => {
                let tree = Tree::new(&tables);
                finished.into_iter().for_each(|reached| self.check_below(&tables, &tree, &known, &reached));
                if let Work::Extensions(extension) = &mut self.work {
                    extension.forget_gone(&tree);
                }
            }
            Err(error) => {
                self.shared.queue.failed(finished);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Looks for the keys of new tables below them.
    fn check_below(&mut self, tables: &[Table], tree: &Tree<'_>, known: &Sketches, reached: &[u64]) {
        let lower = below(tables, reached);
        if lower.is_empty() {
            return;
        }
        let upper: Vec<_> = tables.iter().filter(|table| reached.contains(&table.number)).collect();
        if upper.iter().any(|table| table.level == 0) {
            // Nothing of level 0 is ever a seed.
            return;
        }
        let counts = &self.shared.counts;
        counts.checks.fetch_add(1, Relaxed);
        let range = KeyRange::of(upper.iter().copied());
        let one_in = known.duplicates().one_in();
        let asks_filters = self.settings.mode == DedupMode::Filter;
        let hashes: Vec<_> = upper.iter().map(|table| known.key_hashes(table.number)).collect();
        let upper: Vec<_> = upper
            .iter()
            .zip(&hashes)
            .map(|(table, hashes)| TableSketch { hashes: hashes.as_deref(), ..sketch(known, table) })
            .collect();
        let lower: Vec<_> = lower
            .iter()
            .map(|table| TableSketch { filter: known.filter(table.number), ..sketch(known, table) })
            .collect();
        let estimate = match asks_filters {
            true => Filtered { one_in }.count(&upper, &lower),
            false => Sampled { one_in }.count(&upper, &lower),
        };
        let Work::Extensions(extension) = &mut self.work else { return };
        let outcome = extension.found(tree, known, range, &estimate);
        tracing::debug!(?reached, ?estimate, ?outcome, "looked for duplicates");
        match outcome {
            Ok(()) => counts.found(),
            Err(why) => counts.left(why),
        }
    }

    /// Compares each level with the next.
    fn check_levels(&mut self, db: &DB) -> Result<()> {
        let (tables, known) = look(&self.components.samples, db, &self.family)?;
        self.shared.counts.checks.fetch_add(1, Relaxed);
        let Some(threshold) = self.settings.threshold else {
            // It only counts, until the next time.
            if let Work::Levels(levels) = &mut self.work {
                levels.decided(Vec::new());
            }
            return Ok(());
        };
        let samples = |table| known.duplicates().samples(table).unwrap_or_default();
        let one_in = known.duplicates().one_in();
        let decided = decide_triggered(&tables, samples, one_in, threshold, &self.settings.parameters);
        drop(known);
        self.shared.counts.extensions.fetch_add(u64::from(!decided.is_empty()), Relaxed);
        self.shared.counts.is_busy.store(!decided.is_empty(), Relaxed);
        if let Work::Levels(levels) = &mut self.work {
            levels.decided(decided);
        }
        Ok(())
    }

    /// What there is to merge, and whether it may begin.
    fn next(&mut self, db: &DB) -> Result<Next> {
        if self.components.background.error().is_some() {
            return Ok(Next::Wait(Some(RETRY_AFTER)));
        }
        let pressure = self.pressure(db)?;
        let parameters = self.settings.parameters.clone();
        let input = self.flushes.tables_per_s();
        let is_limited = self.is_limited();
        // Whatever there is would have to wait.
        if is_limited && let Err(why) = may_run(&pressure, input, Seconds::ZERO, &parameters) {
            return Ok(self.forbidden(why));
        }
        let samples = self.components.samples.clone();
        let time = input.filter(|_| is_limited);
        let time = time.and_then(|input| self.merge_time.max_bytes(&pressure, input, &parameters));
        // Where room is short, what fits is merged: it frees some.
        let allowance = Allowance { free_space: self.free_space(), time: time.unwrap_or(Bytes(u64::MAX)) };
        // Of one moment: a table of which nothing is known any more would make its range look
        // worthless.
        let (tables, known) = look(&samples, db, &self.family)?;
        let choice = match &mut self.work {
            Work::None => Choice::Nothing,
            Work::Extensions(extension) => extension.next(&Tree::new(&tables), &known, allowance).map(Planned::from),
            Work::Levels(levels) => levels.next(&tables, parameters.max_merge_bytes, allowance).map(|merge| {
                let inputs = tables.iter().filter(|table| merge.inputs.contains(&table.number));
                let inputs: Vec<_> = inputs.map(|table| sketch(&known, table)).collect();
                let expected = shadowed_within(&inputs, known.duplicates().one_in());
                Planned { merge, expected, span: None }
            }),
        };
        drop(known);
        // Who waits for a table, or for room, has not been told that there is time.
        if matches!(choice, Choice::Merge(_) | Choice::Nothing) {
            self.merge_time.allows();
        }
        match choice {
            // The next round finds out that nothing waits, or how long.
            Choice::Nothing => {
                self.deferred = None;
                Ok(Next::Wait(Some(Duration::ZERO)))
            }
            Choice::Busy => Ok(self.deferred(Deferral::TablesBusy, self.until_retry())),
            Choice::NoSpace => Ok(self.deferred(Deferral::NoSpace, RETRY_AFTER)),
            Choice::NoTime => {
                if let Some(input) = input {
                    self.merge_time.forbids(self.now(), &pressure, input, &parameters);
                }
                Ok(self.forbidden(Forbidden::WouldStall))
            }
            Choice::Merge(planned) => {
                let takes = self.merge_time.predict(planned.merge.bytes);
                if is_limited && let Err(why) = may_run(&pressure, input, takes, &parameters) {
                    return Ok(self.forbidden(why));
                }
                Ok(Next::Merge(planned))
            }
        }
    }

    /// How long until merges whose tables are all being compacted are tried again.
    fn until_retry(&self) -> Duration {
        let Work::Levels(levels) = &self.work else { return RETRY_AFTER };
        levels
            .soonest()
            .map_or(RETRY_AFTER, |soonest| soonest.saturating_duration_since(Instant::now()).min(RETRY_AFTER))
    }

    fn forbidden(&mut self, why: Forbidden) -> Next {
        match why {
            // Until flushes have been counted for a second nothing can be foretold.
            Forbidden::RateUnknown => Next::Wait(Some(RETRY_AFTER)),
            _ => self.deferred(Deferral::Forbidden(why), RETRY_AFTER),
        }
    }

    fn deferred(&mut self, why: Deferral, wait: Duration) -> Next {
        self.count_deferral(why);
        Next::Wait(Some(wait))
    }

    /// Once for as long as the reason is the same and nothing is merged.
    fn count_deferral(&mut self, why: Deferral) {
        if self.deferred.replace(why) != Some(why) {
            self.shared.counts.deferred(why);
        }
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
            pending_slowdown_bytes: Bytes(self.settings.pending_slowdown_bytes),
        })
    }

    /// `took_here`: what of the time it ran here, all of it; `None` where a worker made it.
    fn merged(&mut self, planned: &Planned, info: &CompactionJobInfo, took_here: Option<Duration>, took: Duration) {
        let (merge, expected) = (&planned.merge, planned.expected.duplicate_keys);
        let stats = info.stats();
        let found = stats.num_input_records().saturating_sub(stats.num_output_records());
        let counts = &self.shared.counts;
        counts.merges.fetch_add(1, Relaxed);
        counts.expected_keys.fetch_add(expected, Relaxed);
        counts.found_keys.fetch_add(found, Relaxed);
        counts.read_bytes.fetch_add(stats.total_input_bytes(), Relaxed);
        counts.written_bytes.fetch_add(stats.total_output_bytes(), Relaxed);
        counts.merge_cpu_us.fetch_add(stats.cpu_micros(), Relaxed);
        tracing::debug!(?merge, expected, found, ?took, "merged duplicates away");
        if let Some(took_here) = took_here {
            self.merge_time.learn(merge.bytes, Seconds(took_here.as_secs_f64()));
        }
        let is_space_low = self.components.admission.as_ref().is_some_and(|admission| admission.is_space_low());
        if !is_space_low && self.is_limited() {
            self.rests_until = Instant::now() + took.mul_f64(self.settings.parameters.rest_share);
        }
        (self.conflicts, self.deferred) = (0, None);
        if let Work::Levels(levels) = &mut self.work {
            levels.merged(&merge.inputs);
        } else if self.back_off.observe(self.now(), &planned.expected, found) {
            self.give_up(planned);
        }
    }

    /// What this merge was to merge is left as it is.
    fn give_up(&mut self, planned: &Planned) {
        self.conflicts = 0;
        match (&mut self.work, &planned.span) {
            (Work::Extensions(extension), Some(span)) => extension.give_up(span),
            (Work::Levels(levels), _) => levels.give_up(&planned.merge.inputs),
            _ => (),
        }
    }

    fn failure(&mut self, planned: &Planned, error: &rust_rocksdb::Error) {
        match MergeFailure::of(error) {
            MergeFailure::Conflict => {
                tracing::debug!(%error, "a merge met another compaction");
                self.shared.counts.merges_aborted.fetch_add(1, Relaxed);
                if let Work::Levels(levels) = &mut self.work {
                    levels.met_another(&planned.merge.inputs);
                } else if self.conflicts < MAX_CONFLICTS {
                    self.rests_until = Instant::now() + FIRST_RETRY * (1 << self.conflicts);
                    self.conflicts += 1;
                } else {
                    self.give_up(planned);
                }
            }
            MergeFailure::NoSpace => {
                self.count_deferral(Deferral::NoSpace);
                self.rests_until = Instant::now() + RETRY_AFTER;
            }
            // Whoever closes the store has told this thread to end, or is about to.
            MergeFailure::Closing => self.rests_until = Instant::now() + RETRY_AFTER,
            MergeFailure::Failure => {
                tracing::warn!(%error, "a merge of duplicates failed; the next one waits");
                self.back_off.failed(self.now());
                self.give_up(planned);
            }
        }
    }
}

/// The tables that there are, and what is known of them.
fn look<'k>(known: &'k SampleRegistry, db: &DB, family: &DataFamily) -> Result<(Vec<Table>, MutexGuard<'k, Sketches>)> {
    let (tables, known) = known.look(db, family)?;
    Ok((tables.iter().map(by_names::table).collect(), known))
}
