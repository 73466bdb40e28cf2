//! The thread that keeps the value log in shape: it removes segments that nothing refers to,
//! chooses a candidate set when there is too much garbage, and compacts the tables that still refer
//! to it, one after the other.
//!
//! Most of a candidate set is relocated by compactions that happen anyway. What rests in tables
//! that nobody would compact is compacted forcibly ([`super::scan`]), with rests between, and not
//! while level 0 fills or what level 0 will be merged with. Such compactions stay on this server,
//! since a worker has no segments.
//!
//! What was overwritten counts as named until a compaction has met it, which is late where tables
//! hold little but keys; where space is low, [`crate::space`] sees to it that it is met. Where
//! nothing is written any more it is met forcibly, and so are ranges that were removed
//! ([`super::removed_ranges`]).
//!
//! The values behind a memtable cannot be freed before it is flushed, so it is flushed once they
//! are a part of all values ([`super::notifier`]), however few keys that are. While garbage grows
//! faster than it is freed, writers are slowed down ([`super::throttle`]): while something compacts
//! that frees some, or will find out what is garbage; not where garbage collection cannot help,
//! because a pass was given up. The more they wait for it the more garbage may stay, for a burst
//! and where there is space.
//!
//! Bounds: one forced compaction at a time; a pass in which no segment goes is given up after
//! [`STEPS_PER_TABLE`] compactions for each table there was, and its segments are left alone for
//! [`AFTER_FAILED_PASS`]: one may hold a value that cannot be read. When the next pass comes to
//! nothing as well, nothing is tried for as long.
//!
//! Failure: whatever fails is logged and tried again in the next round, but for compactions of
//! removed ranges: RocksDB's C API does not tell whether they have failed.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ecotone_policy::gc::{
    GcParameters, OverwriteShare, SegmentUse, candidates, copied_per_pass, forced_end, is_forced, may_wait, ratio,
    ratio_with_shadowed, rest, throttle,
};
use ecotone_rocks_sys::tables::{FamilyTable, family_tables};
use ecotone_types::units::{Bytes, Seconds};
use ecotone_valuelog::pointer::{SegmentMap, SegmentNumber, SegmentSet};
use ecotone_valuelog::segment;
use rust_rocksdb::{DB, ErrorKind, FlushOptions, properties};

use super::copying::Gc;
use super::notifier::GcNotifier;
use super::removal::{Removal, Round, WalNumber};
use super::removed_ranges::{self, KeyRange, RemovedRanges};
use super::scan::{GcScan, compact_down, compact_range};
use super::throttle::ThrottleObserver;
use super::urgency::Hurry;
use crate::background::BackgroundThread;
use crate::family::DataFamily;
use crate::{Error, Result};

/// The longest time between two rounds while something is waited for that nobody tells of.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);

/// The time to the next round where a segment was found that nothing refers to: what is read now
/// has been looked up before.
const REMOVAL_AFTER: Duration = Duration::from_millis(50);

/// A segment that was sealed waits so long for a flush to settle what names it; then one is begun.
const SETTLE_AFTER: Duration = Duration::from_secs(5);

/// Once for each table would do if nothing else compacted, and if the candidate set did not grow.
const STEPS_PER_TABLE: usize = 4;

/// How long segments are left alone whose pass was given up.
const AFTER_FAILED_PASS: Duration = Duration::from_secs(60);

/// So long a pass waits for compactions that run anyway, which cost less, before it compacts
/// forcibly; not where much is to be freed, or writers are slowed down most.
const PATIENCE: Duration = Duration::from_secs(5);

/// So long after a flush the next compaction of level 0 is waited for, which rewrites what the
/// flush overlaps: once, instead of twice.
const PATIENCE_FOR_FLUSHES: Duration = Duration::from_secs(30);

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
        let burst_credit = settings.parameters.burst_credit;
        let of_thread = Thread {
            removed: removed.clone(),
            unmet_ranges: None,
            flushed_ranges: None,
            removal,
            gc,
            settings,
            notifier: notifier.clone(),
            family,
            pass: None,
            scan: GcScan::default(),
            has_stepped: false,
            again: None,
            stuck: None,
            has_failed: false,
            unsettled: None,
            overwrites: OverwriteShare::default(),
            writers: ThrottleObserver::new(burst_credit),
            newest_table: 0,
            last_flush: None,
            unmet: None,
            hurried: Hurry::None,
        };
        let db = Arc::downgrade(db);
        // What the last process left.
        notifier.tables_changed();
        let told = notifier.clone();
        let thread = BackgroundThread::start("ecotone-values", move || told.ask_to_stop(), move || of_thread.run(&db))?;
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

struct Thread {
    removal: Arc<Removal>,
    gc: Arc<Gc>,
    settings: Settings,
    notifier: Arc<GcNotifier>,
    family: DataFamily,
    pass: Option<Pass>,
    scan: GcScan,
    /// Whether the last round has compacted something forcibly: then the next one is about to.
    has_stepped: bool,
    /// Before this nothing is relocated forcibly.
    again: Option<Instant>,
    /// Segments of the last pass that was given up, and until when they are left alone.
    stuck: Option<(SegmentSet, Instant)>,
    /// Whether no segment has gone since a pass was given up.
    has_failed: bool,
    /// Since when no flush has settled anything, though something waits for one.
    unsettled: Option<(WalNumber, Instant)>,
    overwrites: OverwriteShare,
    newest_table: u64,
    /// The newest table in level 0, and since when.
    last_flush: Option<(u64, Instant)>,
    writers: ThrottleObserver,
    /// How patient the last round was.
    hurried: Hurry,
    /// Since when tables above the last level rest, and which was the newest then.
    unmet: Option<(u64, Instant)>,
    removed: Arc<RemovedRanges>,
    /// Since when there are removed ranges to look at and no table has come, and which was the
    /// newest then.
    unmet_ranges: Option<(u64, Instant)>,
    /// How many ranges had been removed when a flush was begun for them.
    flushed_ranges: Option<u64>,
}

/// The garbage collection of a candidate set, which may grow until it is gone.
#[derive(Default)]
struct Pass {
    candidates: SegmentSet,
    /// Forced compactions that are left until the candidate set must have shrunk; `None` before the
    /// first.
    steps_left: Option<usize>,
    /// Tables are compacted forcibly, down to this ratio.
    forced: Option<f64>,
    /// Since when the candidate set has not shrunk.
    waits_since: Option<Instant>,
}

impl Thread {
    fn run(mut self, db: &Weak<DB>) {
        let mut wait = None;
        // Why the last round failed that did: it may be the same each second.
        let mut failed = None;
        while self.notifier.wait(wait) {
            // The store ends this thread before it closes the database, so the family is good while
            // this is.
            let Some(db) = db.upgrade() else { return };
            let asked = self.gc.urgency.asked();
            wait = self.round(&db).unwrap_or_else(|error| {
                // Nobody would know when they have rested enough.
                self.slow_down(0.0);
                if failed.as_ref() != Some(&error) {
                    tracing::warn!(
                        %error,
                        "the value log could not be looked after: no space is reclaimed until it can; it is tried again each second (ecotone verify \
                         tells whether a table is damaged, ecotone repair saves the rest)"
                    );
                    failed = Some(error);
                }
                Some(ROUND_INTERVAL)
            });
            if wait.is_none_or(|wait| wait >= ROUND_INTERVAL) {
                self.gc.urgency.answer(asked);
            }
        }
    }

    /// One round. Returns how long to wait for a reason for the next; `None` is for ever.
    fn round(&mut self, db: &DB) -> Result<Option<Duration>> {
        let none = SegmentSet::default();
        let candidates_now = self.pass.as_ref().map_or(&none, |pass| &pass.candidates);
        // While there is a pass, more is to come to the segments that values are relocated to, so
        // of less garbage they are not sealed.
        let parameters = self.parameters_now();
        let seal_from = if self.pass.is_some() { parameters.opportunistic_share } else { parameters.min_garbage_share };
        let round = self.removal.round(db, self.family, candidates_now, seal_from)?;
        if let Some(admission) = &self.gc.admission {
            admission.changed();
        }
        let next = self.next_step(db, &round)?;
        Ok(if round.found_unnamed { Some(next.map_or(REMOVAL_AFTER, |wait| wait.min(REMOVAL_AFTER))) } else { next })
    }

    /// What there is to do after a round, and how long to wait then; `None` is for ever.
    fn next_step(&mut self, db: &DB, round: &Round) -> Result<Option<Duration>> {
        self.writers.sample(&self.gc.throttle, Instant::now());
        self.gc.set_ratio(self.parameters_now().forced_ratio);
        let waits_for_flush = self.settle(db, round)?;
        let wait = (round.waits || waits_for_flush).then_some(ROUND_INTERVAL);
        let tables = family_tables(db, &self.family).map_err(|error| Error::Rocks { detail: error.to_string() })?;
        let shadowed = self.shadowed(&tables, round);
        let free = self.free_of_failure(round);
        let ratio_with_shadowed = ratio_with_shadowed(&free, shadowed);
        let is_given_up = self.again.is_some_and(|again| Instant::now() < again);
        // What an old version is kept for is not garbage when a compaction meets it.
        let meets_hidden = !has_snapshots(db)?;
        let changed = if is_given_up { None } else { self.choose(round, &free, meets_hidden) };
        // Where nothing compacts, or nothing is to be freed, a rest would help nobody. What shadows
        // will be known once a compaction has met it.
        let finds =
            !is_given_up && self.stuck.is_none() && shadowed >= self.parameters_now().min_garbage_bytes && meets_hidden;
        let may_free = self.pass.is_some() || finds;
        // A merge of duplicates is work as well, though it frees nothing by itself: it meets what
        // shadows, which is what they rest for, and the sooner it ends the sooner garbage
        // collection has its turn.
        let in_level_zero = tables.iter().filter(|table| table.level == 0).count() as u64;
        let others_work =
            in_level_zero > self.settings.most_l0_tables || tables.iter().any(|table| table.being_compacted);
        let is_at_work = others_work || self.has_stepped;
        let throttled =
            if is_at_work && may_free { throttle(ratio_with_shadowed, &self.parameters_now()) } else { 0.0 };
        self.slow_down(throttled);
        if round.is_unfinished {
            // Space that is free for the taking comes first.
            return Ok(Some(Duration::ZERO));
        }
        if is_given_up {
            return Ok(Some(ROUND_INTERVAL));
        }
        if changed == Some(true) {
            // The next round knows which tables refer to it.
            return Ok(Some(Duration::ZERO));
        }
        if self.pursues() {
            let paced_for_others = if others_work { throttled } else { 0.0 };
            return self.step(db, round, paced_for_others, ratio_with_shadowed).map(Some);
        }
        // Of a compaction that fails nobody may tell.
        let looks_again = self.stuck.is_some() || throttled > 0.0 || self.writers.degree() > 0.0;
        let wait = wait.or(looks_again.then_some(ROUND_INTERVAL));
        if std::mem::take(&mut self.has_stepped) && !others_work {
            // What they rested for was the last one.
            self.slow_down(0.0);
        }
        Ok(match self.meet_overwrites(db, &tables, ratio_with_shadowed) {
            Some(again) => Some(again),
            None if self.removed.has_new() => Some(self.meet_removed_ranges(db, &tables, round)?),
            None => wait,
        })
    }

    /// From now on writers rest for this share of their time.
    fn slow_down(&mut self, share: f64) {
        self.writers.slow_down(&self.gc.throttle, share, Instant::now());
    }

    /// The segments but for those of passes that were given up.
    fn free_of_failure(&mut self, round: &Round) -> Vec<SegmentUse> {
        self.stuck.take_if(|(_, until)| Instant::now() >= *until);
        let stuck = self.stuck.as_ref().map(|(stuck, _)| stuck);
        let is_free = |it: &&SegmentUse| stuck.is_none_or(|stuck| !stuck.contains(&SegmentNumber(it.segment)));
        round.segments.iter().filter(is_free).copied().collect()
    }

    /// Whether there is a candidate set that is relocated forcibly.
    fn pursues(&mut self) -> bool {
        let pursues = self.pass.as_ref().is_some_and(|pass| pass.forced.is_some());
        self.gc.set_pursued(pursues);
        pursues
    }

    /// Brings the candidate set up to date. Returns whether others are in it than the round knows
    /// of, `None` where there is none. It changes also while a pass is under way: a compaction
    /// takes along what is known when it begins. Opportunistically it is what is worth most now,
    /// with what samples tell of garbage that no compaction has met: most likely the one that
    /// copies will. Where it is forced it is chosen by what tables tell alone and pursued until it
    /// is gone: what is worth more by now joins it only as far as there is room beside what is left
    /// of it.
    fn choose(&mut self, round: &Round, free: &[SegmentUse], meets_hidden: bool) -> Option<bool> {
        let admission = self.gc.admission.as_ref();
        let parameters = self.parameters_now();
        let non_blocking = copied_per_pass(&round.segments, &parameters).0;
        let free_bytes = admission.map_or(u64::MAX, |admission| admission.for_gc());
        let free_space = free_bytes.min(non_blocking);
        let hurry = self.gc.urgency.hurry();
        let was_hurried = std::mem::replace(&mut self.hurried, hurry);
        let pass = self.pass.get_or_insert_default();
        if hurry < was_hurried {
            // What only somebody in a hurry wanted ends with that.
            pass.forced = None;
        }
        let was_on_purpose = pass.forced.is_some();
        pass.forced = is_forced(ratio(&round.segments), pass.forced, &parameters)
            .then(|| pass.forced.unwrap_or_else(|| forced_end(&parameters)));
        let forced = pass.forced.is_some();
        // What goes on only because it was begun when less might stay takes nothing more.
        let may_grow = !forced || ratio(&round.segments) >= forced_end(&parameters);
        // A compaction for garbage collection alone would copy what shadows, instead of meeting it.
        // So would one that does not reach what shadows it, but the copy is not copied again for
        // that: it lies in a segment of relocated values.
        let meets_hidden = meets_hidden && !forced;
        let seen = |it: &SegmentUse| {
            let number = SegmentNumber(it.segment);
            match round.shadowed.get(&number) {
                Some(shadowed) if meets_hidden && !round.relocated.contains(&number) => {
                    it.less_garbage(shadowed.at_least)
                }
                _ => *it,
            }
        };
        let chosen = candidates(&free.iter().map(seen).collect::<Vec<_>>(), &parameters, Bytes(free_space));
        let there: SegmentSet = round.segments.iter().map(|segment| SegmentNumber(segment.segment)).collect();
        let before = pass.candidates.len();
        pass.candidates.retain(|segment| there.contains(segment));
        let kept = pass.candidates.len();
        let known = pass.candidates.clone();
        if !(was_on_purpose && forced) {
            pass.candidates.clear();
        }
        let uses: SegmentMap<_> = round
            .segments
            .iter()
            .map(|it| (SegmentNumber(it.segment), (seen(it).referenced.0, it.referenced.0)))
            .collect();
        let copies = |segment: &SegmentNumber| uses.get(segment).copied().unwrap_or_default();
        let sum = |(seen, named): (u64, u64), (more, more_named): (u64, u64)| {
            (seen.saturating_add(more), named.saturating_add(more_named))
        };
        let mut added = Vec::new();
        // What is left of the candidate set will be copied, too.
        let mut copied = pass.candidates.iter().map(copies).fold((0, 0), sum);
        for segment in
            chosen.segments.into_iter().map(SegmentNumber).filter(|segment| !pass.candidates.contains(segment))
        {
            let with_it = sum(copied, copies(&segment));
            // What shadows may be copied after all: that must not fill the device.
            if may_grow && with_it.0 <= free_space && with_it.1 <= free_bytes {
                copied = with_it;
                added.push(segment);
            }
        }
        pass.candidates.extend(added);
        let grown = !pass.candidates.is_subset(&known);
        if grown || pass.candidates.len() < before {
            pass.steps_left = None;
            self.gc.set_candidates(pass.candidates.clone());
        }
        self.has_failed &= kept == before;
        if kept < before || pass.waits_since.is_none() {
            pass.waits_since = Some(Instant::now());
        }
        if pass.candidates.is_empty() {
            self.gc.set_pursued(false);
            self.pass = None;
            return None;
        }
        // One opportunistically that gives way to one forcibly may lose segments that nobody has
        // removed.
        Some(grown || (forced && pass.candidates != known))
    }

    /// The parameters for as much space as there is, for how much writers are throttled, and for
    /// who waits for space to be free.
    fn parameters_now(&self) -> GcParameters {
        let free_share = self.gc.admission.as_ref().map_or(1.0, |admission| admission.free_space().free_share());
        let parameters = &self.settings.parameters;
        match self.gc.urgency.hurry() {
            Hurry::None => parameters.under_pressure(self.writers.allowed(), free_share).for_free_share(free_share),
            Hurry::Idle => parameters.while_idle().for_free_share(free_share),
            Hurry::Thorough => parameters.thorough(),
        }
    }

    /// Whether nobody is to be waited for.
    fn hurries(&self) -> bool {
        self.gc.urgency.hurry() > Hurry::None
    }

    /// Bytes of garbage that count as live: in tables because no compaction has met them, in
    /// memtables because nobody has looked.
    fn shadowed(&mut self, tables: &[FamilyTable], round: &Round) -> Bytes {
        // Those that a flush made: compactions within level 0 are few.
        let flushed = tables.iter().filter(|table| table.level == 0);
        for overlap in flushed.filter_map(|table| round.overlaps.get(&table.file_number)) {
            self.overwrites.observe(*overlap);
        }
        let newest_flushed = tables.iter().filter(|table| table.level == 0).map(|table| table.file_number).max();
        if let Some(newest) = newest_flushed
            && self.last_flush.is_none_or(|(before, _)| before < newest)
        {
            self.last_flush = Some((newest, Instant::now()));
        }
        self.newest_table = tables.iter().map(|table| table.file_number).max().unwrap_or(0).max(self.newest_table);
        let unsettled = round.segments.iter().filter(|segment| !segment.settled);
        let in_memtables: u64 = unsettled.map(|segment| segment.bytes.0).sum();
        let in_tables = round.shadowed.values().map(|shadowed| shadowed.estimate.0).fold(0, u64::saturating_add);
        Bytes(in_tables.saturating_add((in_memtables as f64 * self.overwrites.share()) as u64))
    }

    /// Where nothing is written any more nobody compacts what lies above the last level, and what
    /// it replaces is not known to be garbage: then it is compacted forcibly. Returns how long to
    /// wait until that is to be asked again, `None` where it need not.
    fn meet_overwrites(&mut self, db: &DB, tables: &[FamilyTable], ratio_with_shadowed: f64) -> Option<Duration> {
        let last_level = tables.iter().map(|table| table.level).max().unwrap_or(0);
        let above = tables.iter().filter(|table| table.level < last_level).min_by_key(|table| table.level);
        let (Some(table), true) = (above, ratio_with_shadowed >= self.parameters_now().forced_ratio) else {
            self.unmet = None;
            return None;
        };
        match self.unmet {
            Some((newest, since)) if newest == self.newest_table => {
                if since.elapsed() >= PATIENCE
                    && !table.being_compacted
                    && let Some(permit) = self.gc.internal.permit(ROUND_INTERVAL)
                {
                    self.unmet = None;
                    // RocksDB's C API does not return the outcome.
                    drop(compact_down(db, self.family, table, &permit));
                }
            }
            _ => self.unmet = Some((self.newest_table, Instant::now())),
        }
        Some(ROUND_INTERVAL)
    }

    /// Where nothing is flushed any more nobody compacts what was removed as a range: then it is
    /// compacted forcibly, where it shadows enough. Returns how long to wait until that is to be
    /// asked again.
    fn meet_removed_ranges(&mut self, db: &DB, tables: &[FamilyTable], round: &Round) -> Result<Duration> {
        if has_snapshots(db)? {
            return Ok(PATIENCE);
        }
        let rests = self.unmet_ranges.filter(|(newest, _)| *newest == self.newest_table);
        let (_, since) = *self.unmet_ranges.insert(rests.unwrap_or_else(|| (self.newest_table, Instant::now())));
        if since.elapsed() < PATIENCE || tables.iter().any(|table| table.being_compacted) {
            return Ok(ROUND_INTERVAL);
        }
        let values = Bytes(round.segments.iter().map(|segment| segment.referenced.0).sum());
        let data = removed_ranges::Data { tables, values, least: self.parameters_now().min_garbage_bytes };
        let Some(flushed) = self.flushed_ranges else {
            let removed = self.removed.added();
            if self.removed.may_be_worth_it(db, self.family, &data)? {
                self.flushed_ranges = self.flush(db)?.then_some(removed);
                // Time for the flush to end, which brings a table unless there is nothing to flush.
                self.unmet_ranges = None;
            }
            return Ok(ROUND_INTERVAL);
        };
        let Some(permit) = self.gc.internal.permit(ROUND_INTERVAL) else { return Ok(ROUND_INTERVAL) };
        self.flushed_ranges = None;
        if let Some(((from, to), bytes)) = self.removed.take(db, self.family, &data, flushed)? {
            // RocksDB's C API does not return the outcome.
            drop(compact_range(db, self.family, (&from, &to), bytes.0, &permit));
        }
        Ok(ROUND_INTERVAL)
    }

    /// Begins a flush. `false`: writes are stopped, and RocksDB begins none that it is asked for.
    fn flush(&self, db: &DB) -> Result<bool> {
        let mut options = FlushOptions::default();
        options.set_wait(false);
        // Otherwise it would wait, without limit, until compactions have caught up.
        options.set_allow_write_stall(true);
        match db.flush_cf_opt(&self.family, &options).map_err(|error| Error::from_rocks(&error)) {
            Ok(()) => Ok(true),
            Err(Error::Busy { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Begins a flush where segments have waited for one for long, or many bytes do. Returns
    /// whether any wait.
    fn settle(&mut self, db: &DB, round: &Round) -> Result<bool> {
        let all_bytes = round.segments.iter().map(|segment| segment.bytes.0).sum();
        let replaced = self.parameters_now().memtable_share;
        if self.notifier.takes_flush(all_bytes, replaced, self.overwrites.share()) {
            if self.flush(db)? {
                self.unsettled = None;
            } else {
                self.notifier.flush_is_due_still();
            }
            return Ok(true);
        }
        if round.segments.iter().all(|segment| segment.settled) {
            self.unsettled = None;
            return Ok(false);
        }
        match self.unsettled {
            Some((wal, since)) if wal == round.oldest_wal => {
                if since.elapsed() >= SETTLE_AFTER && self.flush(db)? {
                    self.unsettled = None;
                }
            }
            _ => self.unsettled = Some((round.oldest_wal, Instant::now())),
        }
        Ok(true)
    }

    /// Compacts one table that names the candidate set. Where it comes to nothing writers are
    /// `throttled` as before. Returns how long to wait for a reason to go on.
    fn step(&mut self, db: &DB, round: &Round, throttled: f64, ratio_with_shadowed: f64) -> Result<Duration> {
        self.has_stepped = self.compact_one(db, round, ratio_with_shadowed)?;
        if !self.has_stepped {
            self.slow_down(throttled);
            return Ok(ROUND_INTERVAL);
        }
        Ok(Duration::ZERO)
    }

    /// Compacts one table that names the candidate set, if there is one that can be, and sets the
    /// rest after it.
    fn compact_one(&mut self, db: &DB, round: &Round, ratio_with_shadowed: f64) -> Result<bool> {
        let (parameters, hurries) = (self.parameters_now(), self.hurries());
        let Some(pass) = &mut self.pass else { return Ok(false) };
        let now = ratio(&round.segments);
        let is_patient = !hurries
            && may_wait(now, ratio_with_shadowed, self.writers.degree(), &parameters)
            && pass.waits_since.is_none_or(|since| since.elapsed() < PATIENCE);
        if is_patient || level_zero_tables(db, self.family)? > self.settings.most_l0_tables {
            return Ok(false);
        }
        let Some(permit) = self.gc.internal.permit(ROUND_INTERVAL) else { return Ok(false) };
        let tables = family_tables(db, &self.family).map_err(|error| Error::Rocks { detail: error.to_string() })?;
        let is_flushing = !hurries && self.last_flush.is_some_and(|(_, at)| at.elapsed() < PATIENCE_FOR_FLUSHES);
        let Some(table) = self.scan.next(&tables, &round.referencing_candidates, &round.segments, is_flushing) else {
            // A compaction is rewriting what names the candidate set, or soon will, or only
            // iterators hold its segments.
            return Ok(false);
        };
        let left = pass.steps_left.get_or_insert(round.referencing_candidates.len() * STEPS_PER_TABLE);
        let Some(fewer) = left.checked_sub(1) else {
            let mut segments: Vec<_> = pass.candidates.iter().map(|number| segment::file_name(*number)).collect();
            segments.sort_unstable();
            tracing::warn!(
                directory = ?self.gc.directory(), ?segments,
                "garbage collection does not come to its end, so these segments are left alone for {AFTER_FAILED_PASS:?}: \
                 a snapshot may hold old values, or a table cannot be compacted, or values cannot be read"
            );
            let until = Instant::now() + AFTER_FAILED_PASS;
            if std::mem::replace(&mut self.has_failed, true) {
                self.again = Some(until);
            }
            let mut stuck = self.stuck.take().map(|(stuck, _)| stuck).unwrap_or_default();
            stuck.extend(self.pass.take().map(|pass| pass.candidates).unwrap_or_default());
            self.stuck = Some((stuck, until));
            self.gc.set_pursued(false);
            self.gc.set_candidates(SegmentSet::default());
            return Ok(false);
        };
        // RocksDB compacts nothing else meanwhile, so garbage must not grow at full speed from the
        // first step on. Not by the method: `pass` is borrowed.
        self.writers.slow_down(&self.gc.throttle, throttle(ratio_with_shadowed, &parameters), Instant::now());
        let began = Instant::now();
        let outcome = self.scan.compact(db, self.family, &tables, table, self.settings.target_file_bytes, &permit);
        drop(permit);
        let (is_done, counts) = match &outcome {
            Ok(is_done) => (*is_done, *is_done),
            Err(error) => {
                // Another compaction was faster, most likely; the next round looks again.
                tracing::debug!(table = table.file_number, %error, "a table could not be compacted forcibly");
                // That it does not fit now, or that compactions are paused, says nothing of the
                // pass.
                (false, !matches!(error.kind(), ErrorKind::CompactionTooLarge | ErrorKind::Incomplete))
            }
        };
        if let (true, Some(pass)) = (counts, &mut self.pass) {
            pass.steps_left = Some(fewer);
        }
        if !is_done {
            return Ok(false);
        }
        let rest = if hurries { Seconds::ZERO } else { rest(Seconds(began.elapsed().as_secs_f64()), now, &parameters) };
        self.notifier.rest(Duration::from_secs_f64(rest.0.max(0.0)));
        Ok(true)
    }
}

/// Whether somebody holds old versions, so that compactions free none.
fn has_snapshots(db: &DB) -> Result<bool> {
    let snapshots = db.property_int_value(properties::NUM_SNAPSHOTS).map_err(|error| Error::from_rocks(&error))?;
    Ok(snapshots.is_some_and(|snapshots| snapshots > 0))
}

fn level_zero_tables(db: &DB, family: DataFamily) -> Result<u64> {
    let tables = db.property_value_cf(&family, properties::num_files_at_level(0)).map_err(|e| Error::from_rocks(&e))?;
    Ok(tables.and_then(|tables| tables.parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpenMode, Separation, Store, StoreOptions};

    /// Tables know nothing of it before, samples do.
    #[test]
    fn what_a_compaction_will_find_to_be_garbage_it_relocates_immediately() {
        let directory = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            separation: Some(Separation { min_bytes: 50, segment_bytes: 1 << 20 }),
            gc: GcParameters {
                min_garbage_bytes: Bytes(64 * 1024),
                forced_ratio: 1e6,
                urgent_ratio: 2e6,
                ..GcParameters::default()
            },
            ..StoreOptions::default()
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
