//! The machine of garbage collection: events in, commands out.
//!
//! It looks at a store whenever something has changed there, removes segments that nothing refers
//! to, chooses a candidate set when there is too much garbage, and compacts the tables that still
//! refer to it, one after the other.
//!
//! ```text
//!   Woken ---> RemoveSegments ==> Inspected ---> [Flush ==> Flushed] ---+
//!     ^                                                                 |
//!     |   +------------------------ nothing to compact <----------------+
//!     |   v                                                             v
//!   Sleep <--- CompactionEnded <== Compact... <--- Permitted <== TakePermit
//! ```
//!
//! Most of a candidate set is relocated by compactions that happen anyway. What rests in tables
//! that nobody would compact is compacted forcibly ([`GcScan`]), with rests between, and not while
//! level 0 fills or what level 0 will be merged with. A table is rewritten together with what
//! overlaps it in levels above, where that is not too much: a value that was overwritten there is
//! not copied, and keys that would go down before long do so now.
//!
//! What was overwritten counts as referenced until a compaction has met it, which is late where
//! tables hold little but keys. Where nothing is written any more it is met forcibly, and so are
//! ranges that were removed ([`RangeWorth`]): once nothing is flushed any more the one that shadows
//! most is compacted, where more is freed so than rewritten.
//!
//! The values behind a memtable cannot be freed before it is flushed, so it is flushed once they
//! are a part of all values, however few keys that are. While garbage grows faster than it is
//! freed, writers are slowed down: while something compacts that frees some, or will find out what
//! is garbage; not where garbage collection cannot help, because a pass was given up. The more they
//! wait for it the more garbage may stay, for a burst and where there is space.
//!
//! **Invariants.**
//! 1. Of the commands that follow from an event the last, and no other, is answered by an event.
//!    So there is one compaction at a time, and none without the permit.
//! 2. Whatever fails is tried again no sooner than after [`ROUND_INTERVAL`], unless the machine is
//!    woken. It never sleeps without end while something waits that nobody tells of.
//! 3. Candidates are settled segments that are still referenced.
//! 4. Writers are slowed down by a share of 0 to 0.9, and by none once something has failed: nobody
//!    would know when they have rested enough.
//!
//! **Bounds.** A pass in which no segment goes is given up after [`STEPS_PER_TABLE`] compactions
//! for each table there was, and its segments are left alone for [`AFTER_FAILED_PASS`]: one may
//! hold a value that cannot be read. When the next pass comes to nothing as well, nothing is tried
//! for as long.
//!
//! **Failure modes.** None of its own. An event that answers no command ends what was under way,
//! and the machine looks again later. **Threads.** None: whoever drives the machine gives it one
//! event at a time.

use std::collections::BTreeSet;

use ecotone_types::units::{Bytes, Seconds, Time};

use super::event::{Command, CompactionOutcome, Conditions, Event, Hurry, RemovedRange, StoreState};
use super::pass::Pass;
use super::ranges::RangeWorth;
use super::scan::GcScan;
use super::writers::WriterObserver;
use super::{GcParameters, OverwriteShare, SegmentUse, may_wait, ratio, ratio_with_shadowed, rest, throttle};
use crate::dedup::plan::{Merge, MergeLimits, Table, with_those_above};

/// The longest time between two looks while something is waited for that nobody tells of.
const ROUND_INTERVAL: Seconds = Seconds(1.0);

/// The time to the next look where a segment was found that nothing refers to: what is read now has
/// been looked up before.
const REMOVAL_AFTER: Seconds = Seconds(0.05);

/// A segment that was sealed waits so long for a flush to settle what names it; then one is begun.
const SETTLE_AFTER: Seconds = Seconds(5.0);

/// Once for each table would do if nothing else compacted, and if the candidate set did not grow.
const STEPS_PER_TABLE: usize = 4;

/// How long segments are left alone whose pass was given up.
const AFTER_FAILED_PASS: Seconds = Seconds(60.0);

/// So long a pass waits for compactions that run anyway, which cost less, before it compacts
/// forcibly; not where much is to be freed, or writers are slowed down most.
const PATIENCE: Seconds = Seconds(5.0);

/// So long after a flush the next compaction of level 0 is waited for, which rewrites what the
/// flush overlaps: once, instead of twice.
const PATIENCE_FOR_FLUSHES: Seconds = Seconds(30.0);

/// What one compaction takes at most, where a single table is not more than that: a second of one
/// core. RocksDB begins none of its own meanwhile, and nobody looks how fast garbage grows.
const MAX_STEP_BYTES: Bytes = Bytes::from_mib(16);

/// A memtable is not flushed for fewer bytes of values.
const MIN_FLUSHED_BYTES: Bytes = Bytes::from_mib(16);

/// It is flushed for so many bytes of values, whatever they replace.
pub const MAX_FLUSHED_BYTES: Bytes = Bytes::from_mib(256);

/// See the module.
#[derive(Debug, Clone)]
pub struct GcMachine {
    parameters: GcParameters,
    /// No forced compaction begins with more tables in level 0.
    max_l0_tables: u64,
    /// The time of the latest event; time does not run backwards here.
    now: Time,
    phase: Phase,
    /// What follows from the event that is being handled.
    commands: Vec<Command>,
    in_force: InForce,
    pass: Option<Pass>,
    scan: GcScan,
    /// Whether something was compacted forcibly the last time: then it is about to be again.
    has_stepped: bool,
    /// Whether a segment was found unreferenced since the machine was woken.
    found_unreferenced: bool,
    /// Before this nothing is relocated forcibly.
    again: Option<Time>,
    /// Segments of the last pass that was given up, and until when they are left alone.
    stuck: Option<(BTreeSet<u32>, Time)>,
    /// Whether no segment has gone since a pass was given up.
    has_failed: bool,
    /// Since when no flush has settled anything, though something waits for one, and the oldest WAL
    /// then.
    unsettled: Option<(u64, Time)>,
    overwrites: OverwriteShare,
    newest_table: u64,
    /// The newest table in level 0, and since when.
    last_flush: Option<(u64, Time)>,
    writers: WriterObserver,
    /// How patient the machine was when it chose candidates last.
    hurry: Hurry,
    /// Since when tables above the last level rest, and which was the newest then.
    unmet: Option<(u64, Time)>,
    /// Since when there are removed ranges to look at and no table has come, and which was the
    /// newest then.
    unmet_ranges: Option<(u64, Time)>,
    /// How many ranges had been removed when a flush was begun for them.
    flushed_ranges: Option<u64>,
}

/// What the driver was told last: it is told of changes only.
#[derive(Debug, Clone, Default)]
struct InForce {
    throttle: f64,
    is_forced: bool,
    forced_ratio: Option<f64>,
    flush_at: Option<Bytes>,
}

/// What a round knows once it has looked.
#[derive(Debug, Clone)]
struct Round {
    conditions: Conditions,
    parameters: GcParameters,
    store: StoreState,
    /// Whether a segment waits for a flush.
    waits_for_flush: bool,
}

/// A forced compaction for the candidate set, from the permit on.
#[derive(Debug, Clone)]
struct Step {
    round: Round,
    ratio_with_shadowed: f64,
    /// How much writers are throttled because of what others compact.
    paced_for_others: f64,
}

/// The same once the compaction runs.
#[derive(Debug, Clone)]
struct Running {
    step: Step,
    since: Time,
    /// What is left of the pass where it counts.
    steps_left: usize,
    /// Where it takes tables by their names.
    by_names: Option<ByNames>,
}

#[derive(Debug, Clone)]
struct ByNames {
    tables: Vec<Table>,
    table: u64,
    level: u32,
    max_bytes: Bytes,
    merge: Merge,
}

/// What the next event answers.
#[derive(Debug, Clone, Default)]
enum Phase {
    #[default]
    Sleeping,
    Inspecting,
    Settling(Box<Round>),
    /// The permit is asked for.
    PermitForStep(Box<Step>),
    PermitForOverwrites(Table),
    PermitForRanges(RangeWorth, u64),
    Stepping(Box<Running>),
    /// Is a flush worth it?
    MeasuringBeforeFlush(RangeWorth),
    /// So many removed ranges are flushed by it.
    FlushingRanges(u64),
    /// Which of the first so many ranges?
    Measuring(RangeWorth, u64),
    /// Whatever becomes of it.
    Compacting,
}

impl GcMachine {
    /// A machine that knows nothing yet. No forced compaction begins with more than `max_l0_tables`
    /// tables in level 0.
    pub fn new(parameters: GcParameters, max_l0_tables: u64) -> Self {
        Self {
            writers: WriterObserver::new(parameters.burst_credit),
            parameters,
            max_l0_tables,
            now: Time::default(),
            phase: Phase::default(),
            commands: Vec::new(),
            in_force: InForce::default(),
            pass: None,
            scan: GcScan::default(),
            has_stepped: false,
            found_unreferenced: false,
            again: None,
            stuck: None,
            has_failed: false,
            unsettled: None,
            overwrites: OverwriteShare::default(),
            newest_table: 0,
            last_flush: None,
            hurry: Hurry::None,
            unmet: None,
            unmet_ranges: None,
            flushed_ranges: None,
        }
    }

    /// Takes an event and gives the commands that follow from it, in the order in which they are to
    /// be carried out; the last one brings the next event. A `now` before that of an earlier event
    /// counts as that earlier one.
    pub fn handle(&mut self, now: Time, event: Event) -> Vec<Command> {
        if now.0.is_plausible() && now > self.now {
            self.now = now;
        }
        match (std::mem::take(&mut self.phase), event) {
            (_, Event::Woken { conditions }) => self.woken(&conditions),
            (Phase::Inspecting, Event::Inspected { conditions, store }) => self.inspected(conditions, *store),
            (Phase::Settling(round), Event::Flushed { begun }) => {
                if begun {
                    self.unsettled = None;
                }
                self.decide(Round { waits_for_flush: true, ..*round });
            }
            (Phase::PermitForStep(step), Event::Permitted { tables }) => self.step(*step, tables),
            (Phase::PermitForStep(step), Event::NotPermitted) => self.came_to_nothing(step.paced_for_others),
            (Phase::PermitForOverwrites(table), Event::Permitted { .. }) => {
                self.unmet = None;
                self.compact_down(&table, Phase::Compacting);
            }
            (Phase::PermitForRanges(worth, flushed), Event::Permitted { .. }) => {
                self.flushed_ranges = None;
                self.ask(Command::MeasureRanges, Phase::Measuring(worth, flushed));
            }
            (Phase::Stepping(running), Event::CompactionEnded { outcome, away }) => {
                self.stepped(*running, outcome, away);
            }
            (Phase::MeasuringBeforeFlush(worth), Event::RangesMeasured { removed, ranges }) => {
                self.flush_for_ranges(worth, removed, &ranges);
            }
            (Phase::FlushingRanges(removed), Event::Flushed { begun }) => {
                self.flushed_ranges = begun.then_some(removed);
                // Time for the flush to end, which brings a table unless there is nothing to flush.
                self.unmet_ranges = None;
                self.sleep(Some(ROUND_INTERVAL));
            }
            (Phase::Measuring(worth, flushed), Event::RangesMeasured { ranges, .. }) => {
                self.compact_ranges(worth, flushed, &ranges);
            }
            (Phase::PermitForOverwrites(_) | Phase::PermitForRanges(..), Event::NotPermitted)
            | (Phase::Compacting, Event::CompactionEnded { .. }) => self.sleep(Some(ROUND_INTERVAL)),
            // Whatever has failed, or answers nothing that was asked.
            _ => {
                self.slow_down(0.0);
                self.found_unreferenced = false;
                self.sleep(Some(ROUND_INTERVAL));
            }
        }
        std::mem::take(&mut self.commands)
    }

    /// The last command, and what its answer will mean.
    fn ask(&mut self, command: Command, phase: Phase) {
        self.commands.push(command);
        self.phase = phase;
    }

    /// Waits for so long for a reason for the next look; `None` is for ever.
    fn sleep(&mut self, wait: Option<Seconds>) {
        let wait = if self.found_unreferenced {
            Some(wait.map_or(REMOVAL_AFTER, |wait| wait.min(REMOVAL_AFTER)))
        } else {
            wait
        };
        if wait.is_none_or(|wait| wait >= ROUND_INTERVAL) {
            self.commands.push(Command::AnswerWaiting);
        }
        self.ask(Command::Sleep(wait), Phase::Sleeping);
    }

    /// From now on writers rest for this share of their time.
    fn slow_down(&mut self, share: f64) {
        self.writers.slow_down(share, self.now);
        if self.in_force.throttle != share {
            self.in_force.throttle = share;
            self.commands.push(Command::Throttle(share));
        }
    }

    /// Says whether tables are compacted for the candidate set alone.
    fn set_forced(&mut self, is_forced: bool) {
        if std::mem::replace(&mut self.in_force.is_forced, is_forced) != is_forced {
            self.commands.push(Command::SetForced(is_forced));
        }
    }

    /// The parameters for as much space as there is, for how much writers are throttled, and for
    /// who waits for space to be free.
    fn parameters_in_force(&self, conditions: &Conditions) -> GcParameters {
        let free_share = conditions.free_share;
        match conditions.hurry {
            Hurry::None => {
                self.parameters.under_pressure(self.writers.allowed(), free_share).for_free_share(free_share)
            }
            Hurry::Idle => self.parameters.while_idle().for_free_share(free_share),
            Hurry::Thorough => self.parameters.thorough(),
        }
    }

    fn woken(&mut self, conditions: &Conditions) {
        self.found_unreferenced = false;
        // While there is a pass, more is to come to the segments that values are relocated to, so
        // of less garbage they are not sealed.
        let parameters = self.parameters_in_force(conditions);
        let seal_from = if self.pass.is_some() { parameters.opportunistic_share } else { parameters.min_garbage_share };
        self.ask(Command::RemoveSegments { seal_from }, Phase::Inspecting);
    }

    fn inspected(&mut self, conditions: Conditions, store: StoreState) {
        self.found_unreferenced = store.found_unreferenced;
        self.writers.sample(conditions.writers, self.now);
        let parameters = self.parameters_in_force(&conditions);
        let forced_ratio = parameters.forced_ratio;
        if self.in_force.forced_ratio.replace(forced_ratio) != Some(forced_ratio) {
            self.commands.push(Command::SetForcedRatio(forced_ratio));
        }
        self.settle(Round { conditions, parameters, store, waits_for_flush: false });
    }

    /// Begins a flush where segments have waited for one for long, or many bytes do.
    fn settle(&mut self, mut round: Round) {
        let all_bytes = round.store.segments.iter().map(|segment| segment.bytes.0).sum();
        let flush_at = flushed_bytes(Bytes(all_bytes), &round.parameters, self.overwrites);
        let was_at = self.in_force.flush_at.replace(flush_at);
        if round.store.unflushed >= flush_at {
            return self.ask(Command::Flush { at_least: Some(flush_at) }, Phase::Settling(Box::new(round)));
        }
        if was_at != Some(flush_at) {
            self.commands.push(Command::AwaitWrites(flush_at));
        }
        if round.store.segments.iter().all(|segment| segment.settled) {
            self.unsettled = None;
            return self.decide(round);
        }
        match self.unsettled {
            Some((wal, since)) if wal == round.store.oldest_wal => {
                if self.now.since(since) >= SETTLE_AFTER {
                    return self.ask(Command::Flush { at_least: None }, Phase::Settling(Box::new(round)));
                }
            }
            _ => self.unsettled = Some((round.store.oldest_wal, self.now)),
        }
        round.waits_for_flush = true;
        self.decide(round);
    }

    /// What there is to do once it is clear what there is.
    fn decide(&mut self, round: Round) {
        let store = &round.store;
        let shadowed = self.shadowed(store);
        let free = self.free_of_failure(store);
        let ratio_with_shadowed = ratio_with_shadowed(&free, shadowed);
        let is_given_up = self.again.is_some_and(|again| self.now < again);
        let changed = if is_given_up { None } else { self.choose(&round, &free) };
        // Where nothing compacts, or nothing is to be freed, a rest would help nobody. What shadows
        // will be known once a compaction has met it.
        let finds = !is_given_up
            && self.stuck.is_none()
            && shadowed >= round.parameters.min_garbage_bytes
            && !store.has_snapshots;
        let may_free = self.pass.is_some() || finds;
        // A merge of duplicates is work as well, though it frees nothing by itself: it meets what
        // shadows, which is what they rest for, and the sooner it ends the sooner garbage
        // collection has its turn.
        let others_work = self.is_level_zero_full(&store.tables) || store.tables.iter().any(|table| table.is_busy);
        let is_at_work = others_work || self.has_stepped;
        let throttled = if is_at_work && may_free { throttle(ratio_with_shadowed, &round.parameters) } else { 0.0 };
        self.slow_down(throttled);
        if store.is_unfinished {
            // Space that is free for the taking comes first.
            return self.sleep(Some(Seconds::ZERO));
        }
        if is_given_up {
            return self.sleep(Some(ROUND_INTERVAL));
        }
        if changed == Some(true) {
            // The next look tells which tables refer to it.
            return self.sleep(Some(Seconds::ZERO));
        }
        let is_forced = self.pass.as_ref().is_some_and(|pass| pass.forced.is_some());
        self.set_forced(is_forced);
        if is_forced {
            let paced_for_others = if others_work { throttled } else { 0.0 };
            return self.begin_step(Step { round, ratio_with_shadowed, paced_for_others });
        }
        // Of a compaction that fails nobody may tell.
        let looks_again = store.waits
            || round.waits_for_flush
            || self.stuck.is_some()
            || throttled > 0.0
            || self.writers.degree() > 0.0;
        if std::mem::take(&mut self.has_stepped) && !others_work {
            // What they rested for was the last one.
            self.slow_down(0.0);
        }
        if ratio_with_shadowed >= round.parameters.forced_ratio
            && let Some(table) = above_the_last_level(&store.tables)
        {
            return self.meet_overwrites(table);
        }
        self.unmet = None;
        if store.has_removed_ranges {
            return self.meet_removed_ranges(&round);
        }
        self.sleep(looks_again.then_some(ROUND_INTERVAL));
    }

    /// Brings the candidate set up to date. Returns whether others are in it than the tables'
    /// references are known of, `None` where there is none.
    fn choose(&mut self, round: &Round, free: &[SegmentUse]) -> Option<bool> {
        let hurry = round.conditions.hurry;
        let before = std::mem::replace(&mut self.hurry, hurry);
        let mut pass = self.pass.take().unwrap_or_default();
        if hurry < before {
            // What only somebody in a hurry wanted ends with that.
            pass.forced = None;
        }
        let change = pass.choose(self.now, &round.store, free, &round.conditions, &round.parameters);
        if change.is_new {
            self.commands.push(Command::SetCandidates(pass.candidates.clone()));
        }
        self.has_failed &= !change.has_shrunk;
        if pass.candidates.is_empty() {
            self.set_forced(false);
            return None;
        }
        self.pass = Some(pass);
        Some(change.is_unknown)
    }

    /// The segments but for those of passes that were given up.
    fn free_of_failure(&mut self, store: &StoreState) -> Vec<SegmentUse> {
        self.stuck.take_if(|(_, until)| self.now >= *until);
        let stuck = self.stuck.as_ref().map(|(stuck, _)| stuck);
        let is_free = |it: &&SegmentUse| stuck.is_none_or(|stuck| !stuck.contains(&it.segment));
        store.segments.iter().filter(is_free).copied().collect()
    }

    /// Bytes of garbage that count as live: in tables because no compaction has met them, in
    /// memtables because nobody has looked.
    fn shadowed(&mut self, store: &StoreState) -> Bytes {
        // Those that a flush made: compactions within level 0 are few.
        let flushed = store.tables.iter().filter(|table| table.level == 0);
        for overlap in flushed.clone().filter_map(|table| store.overlaps.get(&table.number)) {
            self.overwrites.observe(*overlap);
        }
        if let Some(newest) = flushed.map(|table| table.number).max()
            && self.last_flush.is_none_or(|(before, _)| before < newest)
        {
            self.last_flush = Some((newest, self.now));
        }
        self.newest_table = store.tables.iter().map(|table| table.number).max().unwrap_or(0).max(self.newest_table);
        let unsettled = store.segments.iter().filter(|segment| !segment.settled);
        let in_memtables: u64 = unsettled.map(|segment| segment.bytes.0).sum();
        let in_tables = store.shadowed.values().map(|shadowed| shadowed.estimate.0).fold(0, u64::saturating_add);
        Bytes(in_tables.saturating_add((in_memtables as f64 * self.overwrites.share()) as u64))
    }

    fn is_level_zero_full(&self, tables: &[Table]) -> bool {
        tables.iter().filter(|table| table.level == 0).count() as u64 > self.max_l0_tables
    }

    /// Asks for the permit to compact a table that names the candidate set, unless it is to be
    /// waited for others.
    fn begin_step(&mut self, step: Step) {
        let Some(pass) = &self.pass else { return self.came_to_nothing(step.paced_for_others) };
        let Round { conditions, parameters, store, .. } = &step.round;
        let is_patient = conditions.hurry == Hurry::None
            && may_wait(ratio(&store.segments), step.ratio_with_shadowed, self.writers.degree(), parameters)
            && pass.waits_since.is_none_or(|since| self.now.since(since) < PATIENCE);
        if is_patient || self.is_level_zero_full(&store.tables) {
            return self.came_to_nothing(step.paced_for_others);
        }
        self.ask(Command::TakePermit(ROUND_INTERVAL), Phase::PermitForStep(Box::new(step)));
    }

    /// No table was compacted for the candidate set: writers rest for what others compact.
    fn came_to_nothing(&mut self, paced_for_others: f64) {
        self.has_stepped = false;
        self.slow_down(paced_for_others);
        self.sleep(Some(ROUND_INTERVAL));
    }

    /// Compacts one table that names the candidate set, if there is one that can be.
    fn step(&mut self, step: Step, tables: Vec<Table>) {
        let Step { round: Round { conditions, parameters, store, .. }, ratio_with_shadowed, paced_for_others } = &step;
        let Some(pass) = &mut self.pass else { return self.came_to_nothing(*paced_for_others) };
        let is_flushing = conditions.hurry == Hurry::None
            && self.last_flush.is_some_and(|(_, at)| self.now.since(at) < PATIENCE_FOR_FLUSHES);
        let next = self.scan.next(&tables, &store.referencing, &store.segments, is_flushing);
        let Some(table) = next.cloned() else {
            // A compaction is rewriting what names the candidate set, or soon will, or only
            // iterators hold its segments.
            return self.came_to_nothing(*paced_for_others);
        };
        let left = pass.steps_left.get_or_insert(store.referencing.len() * STEPS_PER_TABLE);
        let Some(steps_left) = left.checked_sub(1) else {
            self.give_up();
            return self.came_to_nothing(*paced_for_others);
        };
        // RocksDB compacts nothing else meanwhile, so garbage must not grow at full speed from the
        // first step on.
        self.slow_down(throttle(*ratio_with_shadowed, parameters));
        self.scan.pass_over(table.level, &table.last);
        let running = Running { step, since: self.now, steps_left, by_names: None };
        if table.level == 0 {
            // Tables of level 0 overlap and go down with what is below them.
            return self.compact_down(&table, Phase::Stepping(Box::new(running)));
        }
        self.compact_by_names(running, tables, table.number, table.level, MAX_STEP_BYTES);
    }

    fn compact_down(&mut self, table: &Table, phase: Phase) {
        let (first, last) = (table.first.clone(), table.last.clone());
        self.ask(Command::CompactDown { first, last, bytes: table.bytes }, phase);
    }

    /// Rewrites a table in its level, with what overlaps it above as far as that is not too much.
    fn compact_by_names(&mut self, running: Running, tables: Vec<Table>, table: u64, level: u32, max_bytes: Bytes) {
        let Ok(merge) = with_those_above(&tables, table, &MergeLimits { max_bytes }) else {
            // It cannot be had now, because of a compaction that runs.
            return self.came_to_nothing(running.step.paced_for_others);
        };
        let by_names = ByNames { tables, table, level, max_bytes, merge: merge.clone() };
        let running = Running { by_names: Some(by_names), ..running };
        let may_go = self.may_go(&running.step.round);
        self.ask(Command::CompactTables { merge, may_go }, Phase::Stepping(Box::new(running)));
    }

    /// Whether another server may compact for the candidate set: what that takes longer than here
    /// must cost nobody anything. So not at the ratio that is urgent, nor while writers are slowed
    /// down, nor where space is short. Who wants less garbage than that is in no such hurry.
    fn may_go(&self, Round { conditions, store, .. }: &Round) -> bool {
        let calm = self.parameters.for_free_share(conditions.free_share);
        ratio(&store.segments) < calm.urgent_ratio
            && self.writers.degree() <= 0.0
            && conditions.free_share >= calm.ample_free_share
    }

    fn stepped(&mut self, running: Running, outcome: CompactionOutcome, away: Seconds) {
        // Another compaction was faster, most likely, where it has failed. That it does not fit
        // now, or that compactions are paused, says nothing of the pass.
        let counts = matches!(outcome, CompactionOutcome::Done | CompactionOutcome::Failed);
        if let (true, Some(pass)) = (counts, &mut self.pass) {
            pass.steps_left = Some(running.steps_left);
        }
        match (outcome, running.by_names) {
            (CompactionOutcome::TooLarge, Some(by_names)) if by_names.merge.bytes <= by_names.max_bytes => {
                // The table alone may fit where more does not.
                let ByNames { tables, table, level, .. } = by_names;
                self.compact_by_names(Running { by_names: None, ..running }, tables, table, level, Bytes::ZERO);
            }
            (CompactionOutcome::Done, by_names) => {
                let last = by_names.as_ref().and_then(ByNames::last_of_its_level);
                if let (Some(last), Some(by_names)) = (last, &by_names) {
                    self.scan.pass_over(by_names.level, last);
                }
                let Step { round, .. } = &running.step;
                // A server that only waits has nothing to rest from.
                let took = self.now.since(running.since);
                let took = Seconds((took.0 - away.0).max(0.0));
                if round.conditions.hurry == Hurry::None {
                    let time = rest(took, ratio(&round.store.segments), &round.parameters);
                    self.commands.extend((time > Seconds::ZERO).then_some(Command::Rest(time)));
                }
                self.has_stepped = true;
                self.sleep(Some(Seconds::ZERO));
            }
            _ => self.came_to_nothing(running.step.paced_for_others),
        }
    }

    /// The pass does not come to its end: its segments are left alone for a while.
    fn give_up(&mut self) {
        let until = self.now + AFTER_FAILED_PASS;
        let candidates = self.pass.take().map(|pass| pass.candidates).unwrap_or_default();
        self.commands.push(Command::LeaveAlone(candidates.clone(), AFTER_FAILED_PASS));
        if std::mem::replace(&mut self.has_failed, true) {
            self.again = Some(until);
        }
        let mut stuck = self.stuck.take().map(|(stuck, _)| stuck).unwrap_or_default();
        stuck.extend(candidates);
        self.stuck = Some((stuck, until));
        self.set_forced(false);
        self.commands.push(Command::SetCandidates(BTreeSet::new()));
    }

    /// Where nothing is written any more nobody compacts what lies above the last level, and what
    /// it replaces is not known to be garbage: then it is compacted forcibly.
    fn meet_overwrites(&mut self, table: &Table) {
        match self.unmet {
            Some((newest, since)) if newest == self.newest_table => {
                if self.now.since(since) >= PATIENCE && !table.is_busy {
                    let phase = Phase::PermitForOverwrites(table.clone());
                    return self.ask(Command::TakePermit(ROUND_INTERVAL), phase);
                }
            }
            _ => self.unmet = Some((self.newest_table, self.now)),
        }
        self.sleep(Some(ROUND_INTERVAL));
    }

    /// Where nothing is flushed any more nobody compacts what was removed as a range: then it is
    /// compacted forcibly, where it shadows enough. A removal that is in a memtable is flushed
    /// first, where that may pay.
    fn meet_removed_ranges(&mut self, round: &Round) {
        let store = &round.store;
        if store.has_snapshots {
            return self.sleep(Some(PATIENCE));
        }
        let rests = self.unmet_ranges.filter(|(newest, _)| *newest == self.newest_table);
        let (_, since) = *self.unmet_ranges.insert(rests.unwrap_or((self.newest_table, self.now)));
        if self.now.since(since) < PATIENCE || store.tables.iter().any(|table| table.is_busy) {
            return self.sleep(Some(ROUND_INTERVAL));
        }
        let worth = RangeWorth {
            tables: store.tables.iter().map(|table| table.bytes).sum(),
            values: store.segments.iter().map(|segment| segment.referenced).sum(),
            least: round.parameters.min_garbage_bytes,
        };
        match self.flushed_ranges {
            None => self.ask(Command::MeasureRanges, Phase::MeasuringBeforeFlush(worth)),
            Some(flushed) => {
                self.ask(Command::TakePermit(ROUND_INTERVAL), Phase::PermitForRanges(worth, flushed));
            }
        }
    }

    /// Flushes the removals, if all ranges together may be worth a compaction: so nothing is
    /// flushed for a little.
    fn flush_for_ranges(&mut self, worth: RangeWorth, removed: u64, ranges: &[RemovedRange]) {
        if worth.pays(ranges.iter().map(|range| range.bytes)) {
            self.commands.push(Command::KeepRanges);
            self.ask(Command::Flush { at_least: None }, Phase::FlushingRanges(removed));
        } else {
            self.sleep(Some(ROUND_INTERVAL));
        }
    }

    /// Compacts the range that shadows most, if that pays, of the first `flushed` that were
    /// removed: no memtable holds their removal.
    fn compact_ranges(&mut self, worth: RangeWorth, flushed: u64, ranges: &[RemovedRange]) {
        let (flushed, later): (Vec<RemovedRange>, Vec<RemovedRange>) =
            ranges.iter().partition(|range| range.number < flushed);
        let choice = worth.choose(&flushed);
        if !choice.forget.is_empty() {
            self.commands.push(Command::ForgetRanges(choice.forget));
        }
        // Where none of them pays there is none to look at until another is removed.
        if !later.is_empty() || (choice.compact.is_some() && choice.is_left) {
            self.commands.push(Command::KeepRanges);
        }
        match choice.compact {
            Some(range) => self.ask(Command::CompactRemoved(range), Phase::Compacting),
            None => self.sleep(Some(ROUND_INTERVAL)),
        }
    }
}

impl ByNames {
    /// The last key of what was compacted in the level of its table.
    fn last_of_its_level(&self) -> Option<&[u8]> {
        let taken = |table: &&Table| table.level == self.level && self.merge.inputs.contains(&table.number);
        self.tables.iter().filter(taken).map(|table| table.last.as_slice()).max()
    }
}

/// A table that is not in the last level, of the first of these levels.
fn above_the_last_level(tables: &[Table]) -> Option<&Table> {
    let last_level = tables.iter().map(|table| table.level).max().unwrap_or(0);
    tables.iter().filter(|table| table.level < last_level).min_by_key(|table| table.level)
}

/// For how many bytes of values that users have written since it was begun a memtable is flushed,
/// when there are `all` in segments and a write replaces another with a probability: once it
/// replaces the share `memtable_share` of all.
fn flushed_bytes(all: Bytes, parameters: &GcParameters, overwrites: OverwriteShare) -> Bytes {
    let bytes = all.0 as f64 * parameters.memtable_share / overwrites.share().max(f64::MIN_POSITIVE);
    Bytes((bytes as u64).clamp(MIN_FLUSHED_BYTES.0, MAX_FLUSHED_BYTES.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duplicates::Overlap;

    #[test]
    fn a_memtable_is_flushed_once_it_replaces_a_share_of_all_values_and_within_bounds() {
        let at = |all_mib, overwrites: f64| {
            let mut learned = OverwriteShare::default();
            learned.observe(Overlap { sampled: 1000, replacing: (overwrites * 1000.0) as u64 });
            let parameters = GcParameters { memtable_share: 1.0 / 32.0, ..GcParameters::default() };
            flushed_bytes(Bytes::from_mib(all_mib), &parameters, learned)
        };
        assert_eq!(at(1024, 0.5), Bytes::from_mib(64));
        assert_eq!(at(1024, 1.0), Bytes::from_mib(32));
        // A small store, and one that replaces nothing.
        assert_eq!((at(0, 1.0), at(1024, 0.0)), (MIN_FLUSHED_BYTES, MAX_FLUSHED_BYTES));
    }
}
