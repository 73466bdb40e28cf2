//! Which segments of the value log are worth relocating, and when to compact for it alone.
//!
//! Values are moved late, when enough of their neighbours are garbage that moving the rest is
//! cheap: the delayed garbage collection of CaseDB ("Deduplication Adapted CaseDB for Edge
//! Computing", section 2.1), which keeps no list of what is garbage but asks the tables. With keys
//! in random order nearly every table refers to nearly every segment, so a segment is freed only
//! when all tables were rewritten. Segments are therefore relocated in candidate sets: one pass
//! over the keys frees all of them.
//!
//! A segment of `bytes` of which `referenced` are live costs `referenced` to move and gives back
//! `bytes - referenced`. Segments that are mostly garbage are in the candidate set however little
//! garbage there is in all: what compactions that run anyway copy of them is little. The others
//! join it when there is much garbage, as many as it takes, and only when there is too much are
//! tables compacted for it alone. Until a pass is over, its copies and what they were copied from
//! take space side by side, so a candidate set copies only a small part of all values
//! ([`copied_per_pass`]), what is worth most first, and the next one follows.
//!
//! What a segment is worth is its share of garbage, weighed by its age: what is young goes on to
//! become garbage by itself, what is old stays as it is. The thought is that of the cost-benefit of
//! a log-structured file system (Rosenblum and Ousterhout 1992, section 3.6), the formula is not:
//! theirs divides by what a copy costs, and takes the age of the youngest data. Here the share of
//! garbage alone stands for gain and cost, and the age is that of the segment, in segments begun
//! since: what was copied counts as new. Age is bounded ([`GcParameters::age_exponent`]): an old
//! segment comes before a new one with twice its share of garbage, and before none with more.
//!
//! Garbage that no compaction has met may count as far as samples tell of it
//! ([`SegmentUse::less_garbage`]): most likely the compaction that would copy such a segment meets
//! it.
//!
//! While writers have to wait for it, more garbage may stay for a burst
//! ([`GcParameters::under_pressure`]): the same copies free more then.
//!
//! The less space is free, the earlier garbage collection begins and the less it rests
//! ([`GcParameters::for_free_share`]); and a candidate set never copies more than there is room
//! for, so that the copies do not fill the disk that they are to empty.
//!
//! [`GcMachine`] decides by all of that what a store does when: events in, commands out.

mod burst_credit;
mod event;
mod machine;
mod parameters;
mod pass;
mod ranges;
mod scan;
mod writers;

pub use burst_credit::BurstCredit;
pub use event::{Command, CompactionOutcome, Conditions, Event, Hurry, RemovedRange, StoreState};
pub use machine::{GcMachine, MAX_FLUSHED_BYTES};
pub use parameters::GcParameters;
pub use writers::{MAX_WRITE_DELAY_MS, WriterTimes};

use crate::duplicates::Overlap;
use ecotone_types::units::{Bytes, Seconds};

/// So many segments begun since make a segment old, and none is older: numbers rise for ever, and
/// what is cold and hardly garbage must not keep out what is mostly garbage, however much of it
/// there is. With the default exponent the weight of age is at most 2.
const OLDEST: u32 = 16;

/// What is known of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentUse {
    /// Its number.
    pub segment: u32,
    /// Its length.
    pub bytes: Bytes,
    /// Bytes of it that tables refer to.
    pub referenced: Bytes,
    /// Whether it can be freed by compactions: it is sealed, and no memtable and no WAL names it.
    pub settled: bool,
}

impl SegmentUse {
    fn garbage(&self) -> u64 {
        self.bytes.0.saturating_sub(self.referenced.0)
    }

    /// The same once so much of what tables refer to has turned out to be garbage.
    #[must_use]
    pub fn less_garbage(self, shadowed: Bytes) -> Self {
        Self { referenced: Bytes(self.referenced.0.saturating_sub(shadowed.0)), ..self }
    }

    /// The share of it that no table refers to, 0 to 1.
    pub fn garbage_share(&self) -> f64 {
        self.garbage() as f64 / self.bytes.0.max(1) as f64
    }

    /// What it costs to free the segment by forced compactions of all `tables` that name it: bytes
    /// that are written, of values and of tables, for each byte that is given back in excess of the
    /// copies. Infinite where there is no garbage.
    pub fn cost(&self, tables: Bytes) -> f64 {
        let written = self.referenced.0.saturating_add(tables.0);
        if self.garbage() > 0 { written as f64 / self.garbage() as f64 } else { f64::INFINITY }
    }

    /// How much it is worth to copy what lives: the share of garbage, weighed by age.
    fn benefit(&self, newest: u32, age_exponent: f64) -> f64 {
        let age = newest.saturating_sub(self.segment).saturating_add(1).min(OLDEST);
        self.garbage_share() * f64::from(age).powf(age_exponent)
    }
}

/// The bytes of all segments by those that are live or may be; 1 where there is nothing.
pub fn ratio(segments: &[SegmentUse]) -> f64 {
    let (all, garbage) = sums(segments);
    if all > garbage { all as f64 / (all - garbage) as f64 } else { 1.0 }
}

/// All bytes, and those that are known to be garbage. What is not settled counts as live: its
/// references are still to come.
fn sums(segments: &[SegmentUse]) -> (u64, u64) {
    let all = segments.iter().map(|segment| segment.bytes.0).fold(0, u64::saturating_add);
    let settled = segments.iter().filter(|segment| segment.settled);
    (all, settled.map(SegmentUse::garbage).fold(0, u64::saturating_add))
}

/// What share of the entries that are flushed replaces an older one in a table: an average over the
/// last flushes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OverwriteShare {
    sampled: f64,
    replacing: f64,
}

/// What a flush counts when the next one is observed: the last one weighs as much as all before.
const FLUSH_DECAY: f64 = 0.5;

impl OverwriteShare {
    /// A memtable was flushed, whose keys have this overlap with the tables there were.
    pub fn observe(&mut self, flushed: Overlap) {
        self.sampled = self.sampled * FLUSH_DECAY + flushed.sampled as f64;
        self.replacing = self.replacing * FLUSH_DECAY + flushed.replacing as f64;
    }

    /// The share, 0 to 1; 0 while nothing is known.
    pub fn share(&self) -> f64 {
        if self.sampled > 0.0 { self.replacing / self.sampled } else { 0.0 }
    }
}

/// [`ratio`], where `hidden` bytes are garbage that counts as live. At most 10: then all may be
/// garbage.
pub fn ratio_with_shadowed(segments: &[SegmentUse], shadowed: Bytes) -> f64 {
    let (all, garbage) = sums(segments);
    let live = all as f64 - garbage as f64 - shadowed.0 as f64;
    if all == 0 { 1.0 } else { all as f64 / live.max(all as f64 / 10.0) }
}

/// The share of their time, 0 to 0.9, that writers rest at this ratio, so that garbage collection
/// keeps up with them: none up to `throttle_ratio`, most from `max_throttle_ratio` on, in
/// proportion between.
pub fn throttle(ratio_with_shadowed: f64, parameters: &GcParameters) -> f64 {
    let span = parameters.max_throttle_ratio - parameters.throttle_ratio;
    ((ratio_with_shadowed - parameters.throttle_ratio) / span).clamp(0.0, 1.0) * MAX_THROTTLE
}

/// Nobody waits for ever, however much garbage there is.
const MAX_THROTTLE: f64 = 0.9;

/// Whether tables are compacted forcibly at this ratio: from `forced_ratio` on, and once they are,
/// down to where that was to end ([`forced_end`]) when it began, or ends now if that is less. What
/// was begun is not left undone because more may stay by now.
pub fn is_forced(ratio: f64, began_to_end: Option<f64>, parameters: &GcParameters) -> bool {
    ratio >= began_to_end.map_or(parameters.forced_ratio, |end| end.min(forced_end(parameters)))
}

/// Whether a pass forcibly may wait for compactions that run anyway, which cost less: not from
/// `urgent_ratio` on, nor while writers are throttled, to this `degree` ([`BurstCredit::degree`]),
/// and would be slowed down most, since what compacts anyway frees too little then, though a
/// segment may go now and then.
pub fn may_wait(ratio: f64, ratio_with_shadowed: f64, degree: f64, parameters: &GcParameters) -> bool {
    ratio < parameters.urgent_ratio && (degree <= 0.0 || ratio_with_shadowed < parameters.max_throttle_ratio)
}

/// Where it ends that tables are compacted forcibly: when half of the way to `begin_ratio` is done.
pub fn forced_end(parameters: &GcParameters) -> f64 {
    (parameters.forced_ratio + parameters.begin_ratio) / 2.0
}

/// What a candidate set may copy, which is what a pass takes in addition until it is over. At least
/// what lives in any one segment, so that none is too large for ever.
pub fn copied_per_pass(segments: &[SegmentUse], parameters: &GcParameters) -> Bytes {
    let (all, garbage) = sums(segments);
    let is_forced = ratio(segments) >= parameters.forced_ratio;
    let share = if is_forced { parameters.forced_copy_share } else { parameters.opportunistic_copy_share };
    let largest = segments.iter().map(|segment| segment.referenced.0.min(segment.bytes.0)).max().unwrap_or(0);
    Bytes((((all - garbage) as f64 * share) as u64).max(largest))
}

/// How long to rest after a forced compaction that took `step`: as long as it took at the end of a
/// pass, and less the more there is to free.
pub fn rest(step: Seconds, ratio: f64, parameters: &GcParameters) -> Seconds {
    let span = parameters.urgent_ratio - parameters.end_ratio;
    Seconds(step.0 * ((parameters.urgent_ratio - ratio) / span).clamp(0.0, 1.0))
}

/// Segments to relocate, and what that costs and gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    /// Their numbers, what is worth most first.
    pub segments: Vec<u32>,
    /// Bytes that will have been copied.
    pub copied: Bytes,
    /// Bytes that will have been given back.
    pub freed: Bytes,
}

/// The candidate set that is worth relocating now; an empty one where none is. It has those
/// segments that are mostly garbage, and as many of the others as free enough, but only as many of
/// those that are worth most as can be copied with `free_space`; one that does not fit is passed
/// over for smaller ones.
///
/// Pure: the order of `segments` does not matter.
pub fn candidates(segments: &[SegmentUse], parameters: &GcParameters, free_space: Bytes) -> Candidates {
    let (all, garbage) = sums(segments);
    let live = all - garbage;
    let garbage_at = |ratio: f64| (live as f64 * (ratio - 1.0)) as u64;
    if garbage < parameters.min_garbage_bytes.0.max(1) {
        return Candidates::default();
    }
    let is_too_much = garbage >= garbage_at(parameters.begin_ratio);
    let to_free = if is_too_much { garbage - garbage_at(parameters.end_ratio).min(garbage) } else { 0 };
    let newest = segments.iter().map(|segment| segment.segment).max().unwrap_or(0);
    let is_mostly_garbage = |segment: &SegmentUse| segment.garbage_share() >= parameters.opportunistic_share;
    let mut worth: Vec<_> = segments
        .iter()
        .filter(|segment| segment.settled && segment.garbage_share() >= parameters.min_garbage_share)
        .map(|segment| (segment, segment.benefit(newest, parameters.age_exponent)))
        .collect();
    worth.sort_by(|(one, benefit), (other, other_benefit)| {
        other_benefit.total_cmp(benefit).then(one.segment.cmp(&other.segment))
    });
    let mut chosen = Candidates::default();
    for (segment, _) in worth {
        if chosen.freed.0 >= to_free && !is_mostly_garbage(segment) {
            continue;
        }
        let copied = chosen.copied.0.saturating_add(segment.bytes.0.min(segment.referenced.0));
        if copied > free_space.0 {
            continue;
        }
        chosen.segments.push(segment.segment);
        chosen.copied = Bytes(copied);
        chosen.freed = Bytes(chosen.freed.0 + segment.garbage());
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::parameters::spelled_out;
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const AMPLE: Bytes = Bytes(u64::MAX);

    fn segment(segment: u32, bytes: u64, referenced: u64) -> SegmentUse {
        SegmentUse { segment, bytes: Bytes(bytes * MIB), referenced: Bytes(referenced * MIB), settled: true }
    }

    /// Begins at 1.35 and ends at 1.15, whatever is the default.
    fn far_from_each_other() -> GcParameters {
        GcParameters { begin_ratio: 1.35, end_ratio: 1.15, min_garbage_share: 0.1, ..GcParameters::default() }
    }

    #[test]
    fn nothing_is_moved_below_the_ratio_and_what_is_mostly_garbage_above_it() {
        let parameters = far_from_each_other();
        // 400 MiB, 100 of them garbage: 400 / 300 is 1.33.
        let mut segments = vec![segment(1, 100, 65), segment(2, 100, 85), segment(3, 100, 65), segment(4, 100, 85)];
        assert_eq!(candidates(&segments, &parameters, AMPLE), Candidates::default());
        // One more MiB of garbage in each: 400 / 296 is 1.351. To be left: 0.15 of 296 MiB, so 59.6
        // are to be freed.
        for segment in &mut segments {
            segment.referenced = Bytes(segment.referenced.0 - MIB);
        }
        let chosen = candidates(&segments, &parameters, AMPLE);
        assert_eq!(chosen, Candidates { segments: vec![1, 3], copied: Bytes(128 * MIB), freed: Bytes(72 * MIB) });
    }

    #[test]
    fn of_as_much_garbage_the_older_is_moved_first_and_a_newer_one_where_it_has_much_more_or_space_is_short() {
        let ample = GcParameters { age_exponent: 0.25, opportunistic_share: 0.9, ..far_from_each_other() };
        // Segments of 100 MiB, more garbage in all than may stay, and room for one of them.
        let chosen = |parameters: &GcParameters, garbage: [u64; 10]| {
            let segments =
                (1..).zip(garbage).map(|(number, garbage)| segment(number, 100, 100 - garbage)).collect::<Vec<_>>();
            candidates(&segments, parameters, Bytes(70 * MIB)).segments
        };
        assert_eq!(chosen(&ample, [34, 34, 34, 34, 34, 34, 34, 34, 34, 34]), [1]);
        // The newest has to have 10^(1/4) times the garbage of the oldest, 1.78.
        assert_eq!(chosen(&ample, [34, 30, 30, 30, 30, 30, 30, 30, 30, 60]), [1]);
        assert_eq!(chosen(&ample, [34, 30, 30, 30, 30, 30, 30, 30, 30, 61]), [10]);
        // 10^(1/8), and 1.
        let scarce = |free_share| ample.for_free_share(free_share);
        assert_eq!(chosen(&scarce(ample.ample_free_share / 2.0), [34, 30, 30, 30, 30, 30, 30, 30, 30, 45]), [1]);
        assert_eq!(chosen(&scarce(ample.ample_free_share / 2.0), [34, 30, 30, 30, 30, 30, 30, 30, 30, 46]), [10]);
        assert_eq!(chosen(&scarce(0.0), [34, 30, 30, 30, 30, 30, 30, 30, 30, 35]), [10]);
    }

    #[test]
    fn what_is_mostly_garbage_is_moved_before_what_is_older_and_is_not() {
        let parameters = GcParameters::default();
        // Cold ones of which a quarter is garbage, and hot ones that came much later. There is room
        // for about 60 of the cold.
        let cold = (1..=200).map(|number| segment(number, 60, 45));
        let hot = (10_001..=10_040).map(|number| segment(number, 60, 9));
        let segments: Vec<_> = cold.chain(hot).collect();
        let chosen = candidates(&segments, &parameters, copied_per_pass(&segments, &parameters));
        assert_eq!(chosen.segments.iter().filter(|number| **number > 10_000).count(), 40);
        assert!(chosen.copied.0 < chosen.freed.0, "{chosen:?}");
        // 555 MiB are garbage, 945 live: 331 may stay, so 224 are to be freed. The five hot ones do
        // that alone.
        let few: Vec<_> = segments[..20].iter().chain(&segments[200..205]).copied().collect();
        let chosen = candidates(&few, &GcParameters { begin_ratio: 1.4, end_ratio: 1.35, ..parameters }, AMPLE);
        assert_eq!(chosen.segments, [10_001, 10_002, 10_003, 10_004, 10_005]);
    }

    #[test]
    fn sixteen_segments_later_a_segment_is_old_and_none_is_older() {
        let parameters =
            GcParameters { age_exponent: 0.25, opportunistic_share: 0.9, begin_ratio: 1.2, ..far_from_each_other() };
        // Four segments, and room for one of them: the newest has to have 16^(1/4) times the
        // garbage of the oldest, 2, however many there have been between.
        for between in [12, 100, 1_000_000_000] {
            let chosen = |newest: u64| {
                let segments = [
                    segment(1, 100, 66),
                    segment(2, 100, 70),
                    segment(3, 100, 70),
                    segment(4 + between, 100, 100 - newest),
                ];
                candidates(&segments, &parameters, Bytes(70 * MIB)).segments
            };
            assert_eq!((chosen(67), chosen(69)), (vec![1], vec![4 + between]), "{between}");
        }
    }

    #[test]
    fn what_is_mostly_garbage_is_moved_opportunistically_however_little_garbage_there_is_in_all() {
        let parameters = spelled_out();
        // 1000 MiB of which 80 are garbage.
        let segments = [segment(1, 100, 60), segment(2, 100, 61), segment(3, 800, 799)];
        let chosen = candidates(&segments, &parameters, AMPLE);
        assert_eq!(chosen, Candidates { segments: vec![1], copied: Bytes(60 * MIB), freed: Bytes(40 * MIB) });
        assert_eq!(candidates(&segments, &parameters, Bytes(59 * MIB)), Candidates::default());
    }

    #[test]
    fn overwrites_are_learned_from_the_last_flushes() {
        let mut overwrites = OverwriteShare::default();
        assert_eq!(overwrites.share(), 0.0);
        // A load: nothing is replaced.
        (0..20).for_each(|_| overwrites.observe(Overlap { sampled: 1000, replacing: 0 }));
        assert_eq!(overwrites.share(), 0.0);
        // From now on four in five replace something.
        (0..2).for_each(|_| overwrites.observe(Overlap { sampled: 1000, replacing: 800 }));
        assert!(overwrites.share() > 0.5, "{overwrites:?}");
        (0..10).for_each(|_| overwrites.observe(Overlap { sampled: 1000, replacing: 800 }));
        assert!((overwrites.share() - 0.8).abs() < 0.01, "{overwrites:?}");
        // A flush of little says little.
        overwrites.observe(Overlap { sampled: 1, replacing: 0 });
        assert!(overwrites.share() > 0.75, "{overwrites:?}");
    }

    #[test]
    fn what_shadows_is_garbage_as_well() {
        let segments = [segment(1, 100, 80), segment(2, 100, 100)];
        let at = |shadowed: u64| ratio_with_shadowed(&segments, Bytes(shadowed * MIB));
        assert_eq!(at(0), ratio(&segments));
        assert_eq!(at(30), 200.0 / 150.0);
        assert_eq!(at(1000), 10.0);
        assert_eq!(ratio_with_shadowed(&[], Bytes(1)), 1.0);
    }

    #[test]
    fn the_more_garbage_the_slower_are_writers_but_never_stopped() {
        let parameters = spelled_out();
        let throttles = [1.0, 1.4, 1.55, 1.7, 9.0].map(|ratio| throttle(ratio, &parameters));
        for (throttle, expected) in throttles.into_iter().zip([0.0, 0.0, 0.45, 0.9, 0.9]) {
            assert!((throttle - expected).abs() < 1e-9, "{throttles:?}");
        }
    }

    #[test]
    fn nothing_waits_while_writers_are_slowed_down_most_however_much_more_may_stay() {
        for (degree, allowed) in [(0.1, 0.1), (1.0, 1.0), (1.0, 0.0)] {
            let parameters = spelled_out().under_pressure(allowed, 1.0);
            let (urgent, slowest) = (parameters.urgent_ratio, parameters.max_throttle_ratio);
            assert!(may_wait(urgent - 0.01, slowest - 0.01, degree, &parameters));
            assert!(!may_wait(1.0, slowest, degree, &parameters), "all the garbage shadows");
            assert!(!may_wait(urgent, 1.0, degree, &parameters));
            assert!(may_wait(1.0, slowest, 0.0, &parameters), "nobody is throttled");
        }
    }

    #[test]
    fn what_is_not_settled_is_neither_garbage_nor_moved() {
        let mut segments = vec![segment(1, 100, 0), segment(2, 100, 100)];
        segments[0].settled = false;
        assert_eq!(candidates(&segments, &spelled_out(), AMPLE), Candidates::default());
        segments[0].settled = true;
        assert_eq!(candidates(&segments, &spelled_out(), AMPLE).segments, [1]);
    }

    #[test]
    fn what_is_freed_costs_the_copies_and_the_tables_that_name_it() {
        let cost = |segment: SegmentUse, tables_mib: u64| segment.cost(Bytes(tables_mib * MIB));
        assert_eq!(cost(segment(1, 100, 20), 4), 24.0 / 80.0);
        assert_eq!(cost(segment(1, 100, 0), 0), 0.0);
        assert_eq!(cost(segment(1, 100, 100), 0), f64::INFINITY);
        // Named more often than it is long: tables that were merged name a value twice.
        assert_eq!(cost(segment(1, 100, 120), 4), f64::INFINITY);
    }

    #[test]
    fn a_little_garbage_is_left_alone_however_large_its_share() {
        assert_eq!(candidates(&[segment(1, 15, 0)], &spelled_out(), AMPLE), Candidates::default());
        assert_eq!(candidates(&[segment(1, 16, 0)], &spelled_out(), AMPLE).segments, [1]);
    }

    #[test]
    fn the_more_there_is_to_free_the_less_rest() {
        let parameters = spelled_out();
        let rests = [1.0, 1.1, 1.4, 1.7, 2.0].map(|ratio| rest(Seconds(2.0), ratio, &parameters).0);
        for (rest, expected) in rests.into_iter().zip([2.0, 2.0, 1.0, 0.0, 0.0]) {
            assert!((rest - expected).abs() < 1e-9, "{rests:?}");
        }
        assert_eq!(ratio(&[]), 1.0);
        assert_eq!(ratio(&[segment(1, 100, 50), segment(2, 100, 100)]), 200.0 / 150.0);
    }

    #[test]
    fn the_less_is_free_the_earlier_gc_begins() {
        let parameters = spelled_out();
        for (free_share, begin, end, urgent, min_garbage_mib) in [
            (1.0, 1.2, 1.1, 1.7, 16),
            (0.25, 1.2, 1.1, 1.7, 16),
            (0.125, 1.1, 1.05, 1.35, 8),
            (0.05, 1.04, 1.02, 1.14, 3),
            (0.025, 1.02, 1.01, 1.07, 1),
            (0.0, 1.02, 1.01, 1.07, 0),
        ] {
            let now = parameters.for_free_share(free_share);
            now.validate().unwrap();
            for (ratio, expected) in
                [now.begin_ratio, now.end_ratio, now.urgent_ratio].into_iter().zip([begin, end, urgent])
            {
                assert!((ratio - expected).abs() < 1e-9, "{free_share}: {now:?}");
            }
            assert_eq!(now.min_garbage_bytes.0 / MIB, min_garbage_mib, "{free_share}");
            assert_eq!(now.min_garbage_share, parameters.min_garbage_share);
        }
        // 180 MiB, 14 of them garbage: nobody minds while there is space.
        let segments = [segment(1, 60, 46), segment(2, 120, 120)];
        assert_eq!(candidates(&segments, &parameters, AMPLE), Candidates::default());
        assert_eq!(candidates(&segments, &parameters.for_free_share(0.05), AMPLE).segments, [1]);
        let step = Seconds(1.0);
        assert!(rest(step, 1.1, &parameters.for_free_share(0.1)).0 < rest(step, 1.1, &parameters).0);
    }

    #[test]
    fn no_candidate_set_copies_more_than_there_is_room_for() {
        let parameters = far_from_each_other();
        // By age as by the share of their garbage: 1, 2, 3, 4.
        let segments = [segment(1, 60, 6), segment(2, 400, 70), segment(3, 100, 30), segment(4, 100, 40)];
        for (free_space, chosen, copied) in [
            (u64::MAX, vec![1, 2, 3, 4], 146),
            (106 * MIB, vec![1, 2, 3], 106),
            (106 * MIB - 1, vec![1, 2], 76),
            (76 * MIB - 1, vec![1, 3], 36),
            (6 * MIB, vec![1], 6),
            (6 * MIB - 1, vec![], 0),
        ] {
            let found = candidates(&segments, &parameters, Bytes(free_space));
            assert_eq!((found.segments, found.copied), (chosen, Bytes(copied * MIB)), "{free_space}");
        }
    }

    #[test]
    fn little_is_copied_immediately_and_more_where_it_is_forcibly() {
        let parameters = spelled_out();
        assert_eq!(copied_per_pass(&[], &parameters), Bytes(0));
        // 140 by 100, then 150 by 100.
        let segments = |bytes: u64| (0..20).map(move |number| segment(number, bytes, 5)).collect::<Vec<_>>();
        assert_eq!(copied_per_pass(&segments(7), &parameters), Bytes(12 * MIB));
        assert_eq!(copied_per_pass(&segments(8), &parameters), Bytes(25 * MIB));
        assert_eq!(copied_per_pass(&[segment(1, 12, 10), segment(2, 12, 9)], &parameters), Bytes(10 * MIB));
    }

    #[test]
    fn what_is_done_forcibly_is_done_for_a_while() {
        let parameters = spelled_out();
        let at = |ratio, end| is_forced(ratio, end, &parameters);
        assert!(!at(1.44, None) && at(1.45, None));
        let end = Some(forced_end(&parameters));
        assert!(at(1.33, end) && !at(1.32, end));
        // Writers are throttled meanwhile: it goes on to where it was to end; and no farther where
        // that is nearer by now.
        let throttled = parameters.under_pressure(1.0, 1.0);
        assert!(!is_forced(1.45, None, &throttled) && is_forced(1.33, end, &throttled));
        assert!(!is_forced(1.32, end, &throttled) && at(1.33, Some(forced_end(&throttled))));
    }

    #[test]
    fn writers_are_not_slowed_down_for_garbage_that_is_never_moved() {
        // A fifth of each segment is garbage, less the last byte.
        let segments: Vec<_> = (0..50).map(|number| segment(number, 100, 81)).collect();
        let now = spelled_out().for_free_share(0.01);
        now.validate().unwrap();
        assert_eq!(candidates(&segments, &now, AMPLE), Candidates::default());
        assert_eq!(throttle(ratio(&segments), &now), 0.0);
    }

    proptest! {
        #[test]
        fn a_candidate_set_frees_enough_or_all_there_is_and_no_order_changes_it(
            uses in proptest::collection::vec((0..100_u64, 0..100_u64, any::<bool>()), 0..40),
            begin in 1.01..3.0_f64,
        ) {
            let parameters = GcParameters { begin_ratio: begin, end_ratio: 1.0 + (begin - 1.0) / 2.0, forced_ratio: begin + 0.5, urgent_ratio: begin + 1.0, min_garbage_share: 0.01, ..spelled_out() };
            let mut segments: Vec<_> = uses
                .iter()
                .enumerate()
                .map(|(number, (one, other, settled))| SegmentUse { settled: *settled, ..segment(number as u32, *one.max(other), *one.min(other)) })
                .collect();
            let chosen = candidates(&segments, &parameters, AMPLE);
            if !chosen.segments.is_empty() {
                let of = |number: u32| segments.iter().find(|segment| segment.segment == number).unwrap();
                prop_assert!(chosen.segments.iter().all(|number| of(*number).settled));
                let garbage: u64 = segments.iter().filter(|segment| segment.settled).map(SegmentUse::garbage).sum();
                let all: u64 = segments.iter().map(|segment| segment.bytes.0).sum();
                let left = garbage - chosen.freed.0;
                let live = all - garbage;
                // What is below the least share is not moved, however much there is of it.
                let too_little: u64 = segments.iter().filter(|segment| segment.settled && segment.garbage_share() < 0.01).map(SegmentUse::garbage).sum();
                let is_mostly_garbage = |number: &u32| of(*number).garbage_share() >= parameters.opportunistic_share;
                prop_assert!(
                    left <= too_little
                        || left as f64 <= live as f64 * (parameters.end_ratio - 1.0) + 1.0
                        // Opportunistically only.
                        || (ratio(&segments) <= begin && chosen.segments.iter().all(is_mostly_garbage))
                );
            }
            segments.reverse();
            prop_assert_eq!(candidates(&segments, &parameters, AMPLE), chosen);
        }

        #[test]
        fn nothing_keeps_out_what_is_mostly_garbage_but_what_is_worth_as_much_and_what_is_not_comes_as_far_as_it_is_needed(
            uses in proptest::collection::vec((0..100_u64, 1..100_u64, 1..1_000_000_u32), 1..40),
            free_space in 0..2_000_u64,
            free_share in 0.0..1.0_f64,
            age_exponent in 0.0..1.0_f64,
        ) {
            let parameters = GcParameters { age_exponent, ..GcParameters::default() }.for_free_share(free_share);
            let mut number = 0;
            let mut next = |step: u32| { number += step; number };
            let segments: Vec<_> = uses.iter().map(|(one, other, step)| segment(next(*step), *one.max(other), *one.min(other))).collect();
            let chosen = candidates(&segments, &parameters, Bytes(free_space * MIB));
            prop_assert!(chosen.copied.0 <= free_space * MIB);
            let (all, garbage) = sums(&segments);
            if garbage < parameters.min_garbage_bytes.0.max(1) {
                return Ok(());
            }
            let place = |it: &SegmentUse| chosen.segments.iter().position(|number| *number == it.segment);
            let (mostly_garbage, others): (Vec<SegmentUse>, Vec<SegmentUse>) =
                segments.iter().partition(|it| it.garbage_share() >= parameters.opportunistic_share);
            // One that is left would not fit beside those that are worth as much, be they as old as
            // can be.
            let heaviest = f64::from(OLDEST).powf(parameters.age_exponent);
            for left in mostly_garbage.iter().filter(|it| place(it).is_none()) {
                let rivals = segments.iter().filter(|it| place(it).is_some() && it.garbage_share() * heaviest >= left.garbage_share());
                prop_assert!(rivals.map(|it| it.referenced.0).sum::<u64>() + left.referenced.0 > free_space * MIB);
            }
            // Of the others none is taken once those before it free enough.
            if let Some(last) = others.iter().filter_map(place).max() {
                let before: u64 = segments.iter().filter(|it| place(it).is_some_and(|place| place < last)).map(SegmentUse::garbage).sum();
                prop_assert!((garbage - before) as f64 > (all - garbage) as f64 * (parameters.end_ratio - 1.0) - 1.0);
            }
        }
    }
}
