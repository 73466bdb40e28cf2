//! The state machine of dedup: events in, one command out.
//!
//! After each compaction the keys that it wrote are looked for in the levels that it did not reach,
//! by what is known of the tables in memory; without a threshold they are only counted. Where there
//! are some the range waits, and of all ranges that wait the merge is made that frees the most for
//! what it costs ([`super::extension`]). Before each of them the tables are looked at anew,
//! duplicates are counted in just the tables that it would take, and the forecast is asked.
//!
//! ```text
//!   Woken ==> ReadTables ==> TablesRead          where there are checks to be made
//!                            |
//!   (nothing waits, or rests, or backs off) ==> Wait
//!                            |
//!             TakePermit ==> PermitUnavailable ==> Wait
//!                            PermitTaken
//!                            |
//!   (writers would be slowed) ==> Wait
//!                            |
//!     ReadTablesAndSpace ==> TablesAndSpaceRead
//!                            |
//!   (tables are busy, or there is no room, or no time) ==> Wait
//!                            |
//!                  Merge ==> MergeEnded, MergeFailed ==> Wait
//! ```
//!
//! **Invariants.**
//! 1. Each event is followed by exactly one command; from a `Woken` to the next `Wait` there are at
//!    most four others.
//! 2. `Merge` follows only `TablesAndSpaceRead`, under the permit, and takes only tables of that
//!    moment that no compaction reads. Until it is answered nothing else is commanded.
//! 3. No merge begins that would end in a stall or takes room that there is not, by the forecast.
//!    (The baseline of [`super::levels_compared`] asks only for room.)
//! 4. After a merge the next one rests, and longer each time that merges free less than was
//!    expected: a snapshot may hold old versions.
//! 5. What a merge that came to nothing was to merge rests, backs off, or is given up.
//!
//! **Failure modes.** What RocksDB refuses is tried again, [`MAX_CONFLICTS`] times in a row at
//! most. After what fails merges wait as after one that freed nothing. What could not be read is
//! read again after [`RETRY_AFTER`]; at most [`MAX_UNCHECKED`] compactions are kept for that.
//!
//! **Threads.** None: whoever drives the machine gives it one event at a time.

mod counts;
mod event;

pub use counts::DedupCounts;
pub use event::{Check, Command, Event, TableFacts, Wait};

use ecotone_types::units::{Bytes, Seconds, Time};

use super::back_off::BackOff;
use super::candidates::{Allowance, Choice, CostedMerge};
use super::decide::decide_triggered;
use super::deferral::{Deferral, MergeFailure, retry_pause};
use super::estimate::{Estimate, Estimator, Filtered, Sampled, TableSketch, freed_at_bottom, shadowed_within};
use super::extension::Extension;
use super::forecast::{FlushRate, Forbidden, MergeTime, Pressure, may_run};
use super::levels_compared::LevelsCompared;
use super::plan::{KeyRange, Merge, Tree, below};
use super::{DedupParameters, DedupThreshold};

/// So often in a row RocksDB may refuse merges: 6 s in all. Then the keys of the last one, which it
/// has most likely merged further, are given up.
const MAX_CONFLICTS: u32 = 6;

/// What nobody tells of is looked at again after this time: L0, free space, another's permit.
const RETRY_AFTER: Seconds = Seconds(1.0);

/// Compactions that could not be looked at yet: more than ever end in [`RETRY_AFTER`].
const MAX_UNCHECKED: usize = 64;

/// How duplicates are counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Counting {
    /// After each compaction, by samples.
    Samples,
    /// After each compaction, by the filters of the lower levels: the paper's way.
    Filters,
    /// By samples, at such intervals, each level against the next one.
    Levels {
        /// Between two checks.
        interval: Seconds,
    },
}

/// See the module.
#[derive(Clone, Debug)]
pub struct DedupMachine {
    counting: Counting,
    threshold: Option<DedupThreshold>,
    parameters: DedupParameters,
    /// The time of the latest event; time does not run backwards here.
    now: Time,
    phase: Phase,
    work: Work,
    /// Compactions that are to be looked at.
    unchecked: Vec<Vec<u64>>,
    checks_not_before: Time,
    back_off: BackOff,
    flushes: FlushRate,
    merge_time: MergeTime,
    /// Until then no merge begins.
    rests_until: Time,
    /// Why merges have been deferred since the last one.
    deferred: Option<Deferral>,
    /// Merges in a row that RocksDB has refused.
    conflicts: u32,
    /// Whether what was there before the store was opened has been looked at.
    has_scanned_all: bool,
    is_busy: bool,
    counts: DedupCounts,
    checked: Vec<Check>,
}

/// What there is to merge.
#[derive(Clone, Debug)]
enum Work {
    /// Duplicates are only counted.
    None,
    Extensions(Extension),
    Levels(LevelsCompared),
}

/// The command that is to be answered.
#[derive(Clone, Debug)]
enum Phase {
    Waiting,
    Checking,
    TakingPermit,
    Choosing(Pressure),
    Merging(Planned),
}

#[derive(Clone, Debug)]
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

impl DedupMachine {
    /// One that knows nothing yet. Without a threshold it only counts. Its time begins at zero.
    pub fn new(counting: Counting, threshold: Option<DedupThreshold>, parameters: DedupParameters) -> Self {
        let work = match (counting, threshold) {
            (Counting::Levels { interval }, _) => Work::Levels(LevelsCompared::new(interval)),
            (_, Some(threshold)) => Work::Extensions(Extension::new(threshold, parameters.clone())),
            (_, None) => Work::None,
        };
        Self {
            back_off: BackOff::new(&parameters),
            counting,
            threshold,
            parameters,
            now: Time::default(),
            phase: Phase::Waiting,
            work,
            unchecked: Vec::new(),
            checks_not_before: Time::default(),
            flushes: FlushRate::new(),
            merge_time: MergeTime::default(),
            rests_until: Time::default(),
            deferred: None,
            conflicts: 0,
            has_scanned_all: false,
            is_busy: false,
            counts: DedupCounts::default(),
            checked: Vec::new(),
        }
    }

    /// Takes an event and gives the command that follows from it. A `now` before that of an earlier
    /// event counts as that earlier one. After one that answers no command there is nothing but a
    /// wait.
    pub fn handle(&mut self, now: Time, event: Event<'_>) -> Command {
        if now.0.is_plausible() && now > self.now {
            self.now = now;
        }
        self.checked.clear();
        match (std::mem::replace(&mut self.phase, Phase::Waiting), event) {
            (Phase::Merging(planned), event) => self.merge_answered(planned, event),
            (_, Event::Woken { compactions, flushed_tables }) => self.woken(compactions, flushed_tables),
            (Phase::Checking, Event::TablesRead(facts)) => {
                self.check(&facts);
                self.go_on()
            }
            (Phase::Checking | Phase::TakingPermit | Phase::Choosing(_), Event::FactsUnreadable) => self.unreadable(),
            (Phase::TakingPermit, Event::PermitTaken { pressure }) => self.permitted(pressure),
            (Phase::TakingPermit, Event::PermitUnavailable) => self.wait(Some(Seconds::ZERO)),
            (Phase::Choosing(pressure), Event::TablesAndSpaceRead { facts, free_space }) => {
                self.choose(&pressure, &facts, free_space)
            }
            _ => self.wait(Some(RETRY_AFTER)),
        }
    }

    /// What was decided so far.
    pub fn counts(&self) -> &DedupCounts {
        &self.counts
    }

    /// What the last event's checks found.
    pub fn checked(&self) -> &[Check] {
        &self.checked
    }

    /// Whether something is to be looked at, or would be merged soon.
    pub fn is_busy(&self) -> bool {
        self.is_busy || !self.unchecked.is_empty()
    }

    /// Whether forecast, rests and back-off hold merges back. Not those of levels compared: the
    /// paper's baseline starts what it has decided whatever else goes on, in merges of
    /// `max_merge_bytes` for which there is room. Only after one that failed it pauses as well.
    fn is_limited(&self) -> bool {
        !matches!(self.work, Work::Levels(_))
    }

    /// How long until levels are compared next.
    fn until_check(&self) -> Option<Seconds> {
        match &self.work {
            Work::Levels(levels) => Some(levels.until_check(self.now)),
            Work::Extensions(_) | Work::None => None,
        }
    }

    fn wait(&self, at_most: Option<Seconds>) -> Command {
        Command::Wait(Wait { at_most, checks_not_before: self.checks_not_before })
    }

    // Checks.

    fn woken(&mut self, compactions: Vec<Vec<u64>>, flushed_tables: u64) -> Command {
        self.flushes.observe(self.now, flushed_tables);
        let is_due = match &self.work {
            Work::Levels(levels) => {
                if !compactions.is_empty() {
                    self.checks_not_before = self.now + self.parameters.check_interval;
                }
                levels.until_check(self.now) == Seconds::ZERO
            }
            Work::Extensions(_) | Work::None => {
                self.unchecked.extend(compactions);
                if !self.unchecked.is_empty() {
                    self.checks_not_before = self.now + self.parameters.check_interval;
                }
                !self.unchecked.is_empty()
            }
        };
        if is_due || !self.has_scanned_all {
            self.phase = Phase::Checking;
            return Command::ReadTables;
        }
        self.go_on()
    }

    /// Looks at what has ended.
    fn check(&mut self, facts: &TableFacts<'_>) {
        match &self.work {
            Work::Levels(levels) if levels.until_check(self.now) == Seconds::ZERO => self.compare_levels(facts),
            Work::Levels(_) => (),
            Work::Extensions(_) | Work::None => self.check_compactions(facts),
        }
        if !self.has_scanned_all {
            self.scan_all(facts);
            self.has_scanned_all = true;
        }
    }

    fn check_compactions(&mut self, facts: &TableFacts<'_>) {
        let unchecked = std::mem::take(&mut self.unchecked);
        if unchecked.is_empty() {
            return;
        }
        let tree = Tree::new(facts.tables);
        unchecked.into_iter().for_each(|written| self.check_below(facts, &tree, written));
        if let Work::Extensions(extension) = &mut self.work {
            extension.forget_gone(&tree);
        }
    }

    /// Looks for the keys of new tables below them.
    fn check_below(&mut self, facts: &TableFacts<'_>, tree: &Tree<'_>, written: Vec<u64>) {
        let TableFacts { tables, keys } = *facts;
        let lower = below(tables, &written);
        if lower.is_empty() {
            return;
        }
        let upper: Vec<_> = tables.iter().filter(|table| written.contains(&table.number)).collect();
        if upper.iter().any(|table| table.level == 0) {
            // Nothing of level 0 is ever a seed.
            return;
        }
        self.counts.checks += 1;
        let range = KeyRange::of(upper.iter().copied());
        let one_in = keys.one_in();
        let hashes: Vec<_> = upper.iter().map(|table| keys.key_hashes(table.number)).collect();
        let upper: Vec<_> = upper
            .iter()
            .zip(&hashes)
            .map(|(table, hashes)| TableSketch { hashes: hashes.as_deref(), ..keys.sketch(table) })
            .collect();
        let lower: Vec<_> =
            lower.iter().map(|table| TableSketch { filter: keys.filter(table.number), ..keys.sketch(table) }).collect();
        let estimate = match self.counting {
            Counting::Filters => Filtered { one_in }.count(&upper, &lower),
            Counting::Samples | Counting::Levels { .. } => Sampled { one_in }.count(&upper, &lower),
        };
        let Work::Extensions(extension) = &mut self.work else { return };
        let outcome = extension.found(tree, keys, range, &estimate);
        match outcome {
            Ok(()) => self.found(),
            Err(why) => self.counts.left(why),
        }
        self.checked.push(Check { written, estimate, outcome });
    }

    /// What was found before the store was closed may still be there. It counts as a check if it
    /// is. Tables are read for it also where nothing is merged: nobody else looks at those of a
    /// store without value log, and some tell what is known without looking.
    fn scan_all(&mut self, facts: &TableFacts<'_>) {
        let TableFacts { tables, keys } = *facts;
        let Work::Extensions(extension) = &mut self.work else { return };
        let sketches: Vec<_> = tables.iter().map(|table| keys.sketch(table)).collect();
        let estimate = freed_at_bottom(&sketches, keys.one_in());
        if extension.found(&Tree::new(tables), keys, KeyRange::of(tables), &estimate).is_ok() {
            self.counts.checks += 1;
            self.found();
        }
    }

    /// A check found enough to extend a compaction.
    fn found(&mut self) {
        self.counts.extensions += 1;
        self.is_busy = true;
    }

    /// Compares each level with the next; without a threshold until the next time.
    fn compare_levels(&mut self, facts: &TableFacts<'_>) {
        let TableFacts { tables, keys } = *facts;
        self.counts.checks += 1;
        let decided = self.threshold.map(|threshold| {
            let samples = |table| keys.samples(table).unwrap_or_default();
            decide_triggered(tables, samples, keys.one_in(), threshold, &self.parameters)
        });
        if let Some(decided) = &decided {
            self.counts.extensions += u64::from(!decided.is_empty());
            self.is_busy = !decided.is_empty();
        }
        if let Work::Levels(levels) = &mut self.work {
            levels.decided(self.now, decided.unwrap_or_default());
        }
    }

    /// What could not be looked at is looked at the next time, before what has ended by then.
    fn unreadable(&mut self) -> Command {
        let beyond = self.unchecked.len().saturating_sub(MAX_UNCHECKED);
        self.unchecked.drain(..beyond);
        self.counts.checks_dropped += beyond as u64;
        self.checks_not_before = self.now;
        self.wait(Some(RETRY_AFTER))
    }

    // Merges.

    /// Whether there is something to merge, and when.
    fn go_on(&mut self) -> Command {
        match self.must_wait() {
            Some(wait) if wait > Seconds::ZERO => {
                self.wait(Some(self.until_check().map_or(wait, |check| check.min(wait))))
            }
            Some(_) => {
                self.phase = Phase::TakingPermit;
                Command::TakePermit { at_most: RETRY_AFTER }
            }
            None => {
                self.deferred = None;
                self.is_busy = false;
                self.wait(self.until_check())
            }
        }
    }

    /// How long no merge can begin, as far as that is known already; checks go on. `None` where
    /// nothing waits.
    fn must_wait(&mut self) -> Option<Seconds> {
        let soonest = match &self.work {
            Work::None => None,
            Work::Extensions(extension) => (!extension.is_empty()).then_some(self.now),
            Work::Levels(levels) => levels.soonest(),
        };
        let soonest = soonest?;
        let pause = self.back_off.remaining(self.now);
        // A store that backs off has nothing that would soon be done.
        self.is_busy = pause == Seconds::ZERO;
        if pause > Seconds::ZERO {
            self.count_deferral(Deferral::BackedOff);
        }
        Some(soonest.since(self.now).max(self.rests_until.since(self.now)).max(pause))
    }

    /// Whether a merge may begin at all.
    fn permitted(&mut self, pressure: Option<Pressure>) -> Command {
        let Some(pressure) = pressure else { return self.wait(Some(RETRY_AFTER)) };
        // Whatever there is would have to wait.
        if self.is_limited()
            && let Err(why) = may_run(&pressure, self.flushes.tables_per_s(), Seconds::ZERO, &self.parameters)
        {
            return self.forbidden(why);
        }
        self.phase = Phase::Choosing(pressure);
        Command::ReadTablesAndSpace
    }

    /// What there is to merge, and whether it may begin.
    fn choose(&mut self, pressure: &Pressure, facts: &TableFacts<'_>, free_space: Bytes) -> Command {
        let TableFacts { tables, keys } = *facts;
        let is_limited = self.is_limited();
        let input = self.flushes.tables_per_s();
        let time = input.filter(|_| is_limited);
        let time = time.and_then(|input| self.merge_time.max_bytes(pressure, input, &self.parameters));
        // Where room is short, what fits is merged: it frees some.
        let allowance = Allowance { free_space, time: time.unwrap_or(Bytes(u64::MAX)) };
        let choice = match &mut self.work {
            Work::None => Choice::Nothing,
            Work::Extensions(extension) => extension.next(&Tree::new(tables), keys, allowance).map(Planned::from),
            Work::Levels(levels) => {
                levels.next(self.now, tables, self.parameters.max_merge_bytes, allowance).map(|merge| {
                    let inputs = tables.iter().filter(|table| merge.inputs.contains(&table.number));
                    let inputs: Vec<_> = inputs.map(|table| keys.sketch(table)).collect();
                    let expected = shadowed_within(&inputs, keys.one_in());
                    Planned { merge, expected, span: None }
                })
            }
        };
        // Who waits for a table, or for room, has not been told that there is time.
        if matches!(choice, Choice::Merge(_) | Choice::Nothing) {
            self.merge_time.allows();
        }
        match choice {
            // The next round finds out that nothing waits, or how long.
            Choice::Nothing => {
                self.deferred = None;
                self.wait(Some(Seconds::ZERO))
            }
            Choice::Busy => self.defer(Deferral::TablesBusy, self.until_retry()),
            Choice::NoSpace => self.defer(Deferral::NoSpace, RETRY_AFTER),
            Choice::NoTime => {
                if let Some(input) = input {
                    self.merge_time.forbids(self.now, pressure, input, &self.parameters);
                }
                self.forbidden(Forbidden::WouldStall)
            }
            Choice::Merge(planned) => {
                let takes = self.merge_time.predict(planned.merge.bytes);
                if is_limited && let Err(why) = may_run(pressure, input, takes, &self.parameters) {
                    return self.forbidden(why);
                }
                let command = Command::Merge { merge: planned.merge.clone(), expected: planned.expected };
                self.phase = Phase::Merging(planned);
                command
            }
        }
    }

    /// How long until merges whose tables are all being compacted are tried again.
    fn until_retry(&self) -> Seconds {
        let Work::Levels(levels) = &self.work else { return RETRY_AFTER };
        levels.soonest().map_or(RETRY_AFTER, |soonest| soonest.since(self.now).min(RETRY_AFTER))
    }

    fn forbidden(&mut self, why: Forbidden) -> Command {
        match why {
            // Until flushes have been counted for a second nothing can be foretold.
            Forbidden::RateUnknown => self.wait(Some(RETRY_AFTER)),
            _ => self.defer(Deferral::Forbidden(why), RETRY_AFTER),
        }
    }

    fn defer(&mut self, why: Deferral, wait: Seconds) -> Command {
        self.count_deferral(why);
        self.wait(Some(wait))
    }

    /// Once for as long as the reason is the same and nothing is merged.
    fn count_deferral(&mut self, why: Deferral) {
        if self.deferred.replace(why) != Some(why) {
            self.counts.deferred(why);
        }
    }

    fn merge_answered(&mut self, planned: Planned, event: Event<'_>) -> Command {
        match event {
            Event::MergeEnded { found_keys, took, took_here, is_space_low } => {
                if let Some(took_here) = took_here {
                    self.merge_time.learn(planned.merge.bytes, took_here);
                }
                if !is_space_low && self.is_limited() {
                    self.rests_until = self.now + took * self.parameters.rest_share;
                }
                self.merged(&planned, found_keys);
            }
            Event::MergeUnreported => self.give_up(&planned),
            Event::MergeFailed(failure) => self.failed(&planned, failure),
            // It still runs.
            _ => {
                self.phase = Phase::Merging(planned);
                return self.wait(Some(RETRY_AFTER));
            }
        }
        self.wait(Some(Seconds::ZERO))
    }

    fn merged(&mut self, planned: &Planned, found: u64) {
        self.counts.merges += 1;
        self.counts.expected_keys += planned.expected.duplicate_keys;
        self.counts.found_keys += found;
        (self.conflicts, self.deferred) = (0, None);
        if let Work::Levels(levels) = &mut self.work {
            levels.merged(&planned.merge.inputs);
        } else if self.back_off.observe(self.now, &planned.expected, found) {
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

    fn failed(&mut self, planned: &Planned, failure: MergeFailure) {
        match failure {
            MergeFailure::Conflict => {
                self.counts.merges_aborted += 1;
                if let Work::Levels(levels) = &mut self.work {
                    levels.met_another(self.now, &planned.merge.inputs);
                } else if self.conflicts < MAX_CONFLICTS {
                    self.rests_until = self.now + retry_pause(self.conflicts);
                    self.conflicts += 1;
                } else {
                    self.give_up(planned);
                }
            }
            MergeFailure::NoSpace => {
                self.count_deferral(Deferral::NoSpace);
                self.rests_until = self.now + RETRY_AFTER;
            }
            // Whoever closes the store has told its driver to end, or is about to.
            MergeFailure::Closing => self.rests_until = self.now + RETRY_AFTER,
            MergeFailure::Failure => {
                self.back_off.failed(self.now);
                self.give_up(planned);
            }
        }
    }
}
