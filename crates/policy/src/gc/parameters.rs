//! What garbage collection goes by: ratios, shares and bounds, and how they change as space runs
//! short.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use ecotone_types::units::{Bytes, Seconds};

/// Constants of garbage collection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GcParameters {
    /// From this share of garbage on a segment is relocated opportunistically, by the compactions
    /// that run anyway. Default 0.5: such a copy frees as much as it writes. At least
    /// `min_garbage_share` and less than 1.
    pub opportunistic_share: f64,
    /// The bytes of all segments by the bytes that tables refer to, from which on segments with
    /// less garbage join the candidate set. Default 1.1, more than 1.
    pub begin_ratio: f64,
    /// That ratio once the candidate set is gone, where it may be so large. Default 1.05, at least
    /// 1 and less than `begin_ratio`.
    pub end_ratio: f64,
    /// The ratio from which on tables that nobody compacts are compacted forcibly. Default 1.35, at
    /// least `begin_ratio`.
    pub forced_ratio: f64,
    /// A segment is never moved while less than this share of it is garbage. Default 0.2, more than
    /// 0 and less than 1: such a copy frees a quarter of its bytes.
    pub min_garbage_share: f64,
    /// What the age of a segment is raised to before it weighs the share of garbage. The age counts
    /// the segments begun since, and itself, up to 16. Default 0.25, 0 (no weight) to 1 (in
    /// proportion): where a Zipfian decides what is overwritten and little is copied at a time, a
    /// simulation of segments (one seed) kept a quarter less garbage with it than without; where
    /// much is copied age made no difference.
    pub age_exponent: f64,
    /// The share of what lives that a candidate set may copy opportunistically. Default 0.25, more
    /// than 0 and at most 1.
    pub opportunistic_copy_share: f64,
    /// The share of what lives that a candidate set may copy forcibly: with a larger one fewer
    /// passes rewrite the keys. Default 0.3, at least `opportunistic_copy_share` and at most 1.
    pub forced_copy_share: f64,
    /// Less garbage than this is left alone. Default 16 MiB.
    pub min_garbage_bytes: Bytes,
    /// The ratio from which on there is no rest between two forced compactions, and none before the
    /// first. Default 1.55, more than `forced_ratio`.
    pub urgent_ratio: f64,
    /// The ratio, with garbage that no compaction has met yet, from which on writers are slowed
    /// down. Default 1.2, more than 1.
    pub throttle_ratio: f64,
    /// The ratio at which they are slowed down most: to a tenth. Default 1.4, more than
    /// `throttle_ratio`.
    pub max_throttle_ratio: f64,
    /// What `forced_ratio` becomes, and the other ratios in proportion, while writers are
    /// throttled, for a `burst_credit`, and space is ample
    /// ([`under_pressure`](GcParameters::under_pressure)). Default 1.9, more than 1; less than
    /// `forced_ratio` changes nothing. Whoever sets that without
    /// [`with_ratio`](GcParameters::with_ratio) sets this as well.
    pub throttled_ratio: f64,
    /// For how long writers that are throttled may have all of that: for half of the time, and less
    /// and less of it in the other half. The less they are throttled, the longer it lasts, and a
    /// fifth of it for good. Calm gives it back, four seconds for one
    /// ([`BurstCredit::allowed`](super::BurstCredit::allowed)). Default 120 s, 0 (never) or more.
    pub burst_credit: Seconds,
    /// A memtable is flushed once what it replaces is about this share of all values, however few
    /// keys that are: they can be freed only then. Default 1/32, more than 0 and at most 1.
    pub memtable_share: f64,
    /// What `memtable_share` becomes with `throttled_ratio`. Default 1/16, more than 0 and at most
    /// 1: keys are rewritten half as often. Less than `memtable_share` changes nothing.
    pub throttled_memtable_share: f64,
    /// Below this share of free space (0 to 1) garbage collection begins earlier and rests less.
    /// Default 0.25, more than 0 and at most 1.
    pub ample_free_share: f64,
}

/// Garbage that is left alone in a store that rests.
const MAX_IDLE_GARBAGE: Bytes = Bytes::from_mib(8);

/// A segment with less garbage is not moved for who wants all of it freed: twenty bytes would be
/// copied for one.
const THOROUGH_GARBAGE_SHARE: f64 = 0.05;

/// However little is free, ratios keep this part of their distance from 1: closer to 1, all that
/// lives would be copied again for every little garbage. 0 to 1.
const MIN_DISTANCE: f64 = 0.1;

impl Default for GcParameters {
    fn default() -> Self {
        Self {
            opportunistic_share: 0.5,
            begin_ratio: 1.1,
            end_ratio: 1.05,
            forced_ratio: 1.35,
            min_garbage_share: 0.2,
            age_exponent: 0.25,
            opportunistic_copy_share: 0.25,
            forced_copy_share: 0.3,
            min_garbage_bytes: Bytes::from_mib(16),
            urgent_ratio: 1.55,
            throttle_ratio: 1.2,
            max_throttle_ratio: 1.4,
            throttled_ratio: 1.9,
            burst_credit: Seconds(120.0),
            memtable_share: 1.0 / 32.0,
            throttled_memtable_share: 1.0 / 16.0,
            ample_free_share: 0.25,
        }
    }
}

impl GcParameters {
    /// Checks every range.
    ///
    /// # Errors
    ///
    /// [`Error::Parameter`] names the first one outside its range.
    pub fn validate(&self) -> Result<()> {
        let refuse = |name, value: f64, expected| Err(Error::Parameter { name, value: value.to_string(), expected });
        if !(self.begin_ratio > 1.0 && self.begin_ratio.is_finite()) {
            return refuse("gc.begin_ratio", self.begin_ratio, "more than 1 and finite");
        }
        if !(self.end_ratio >= 1.0 && self.end_ratio < self.begin_ratio) {
            return refuse("gc.end_ratio", self.end_ratio, "at least 1 and less than `begin_ratio`");
        }
        if !(self.min_garbage_share > 0.0 && self.min_garbage_share < 1.0) {
            return refuse("gc.min_garbage_share", self.min_garbage_share, "more than 0 and less than 1");
        }
        if !(self.age_exponent >= 0.0 && self.age_exponent <= 1.0) {
            return refuse("gc.age_exponent", self.age_exponent, "0 to 1");
        }
        if !(self.forced_ratio >= self.begin_ratio && self.forced_ratio.is_finite()) {
            let expected = "at least `begin_ratio` and finite";
            return refuse("gc.forced_ratio", self.forced_ratio, expected);
        }
        if !(self.opportunistic_copy_share > 0.0 && self.opportunistic_copy_share <= 1.0) {
            return refuse("gc.opportunistic_copy_share", self.opportunistic_copy_share, "more than 0 and at most 1");
        }
        if !(self.forced_copy_share >= self.opportunistic_copy_share && self.forced_copy_share <= 1.0) {
            let expected = "at least `opportunistic_copy_share` and at most 1";
            return refuse("gc.forced_copy_share", self.forced_copy_share, expected);
        }
        if !(self.urgent_ratio > self.forced_ratio && self.urgent_ratio.is_finite()) {
            return refuse("gc.urgent_ratio", self.urgent_ratio, "more than `forced_ratio` and finite");
        }
        if !(self.opportunistic_share >= self.min_garbage_share && self.opportunistic_share < 1.0) {
            let expected = "at least `min_garbage_share` and less than 1";
            return refuse("gc.opportunistic_share", self.opportunistic_share, expected);
        }
        if !(self.throttle_ratio > 1.0 && self.throttle_ratio.is_finite()) {
            return refuse("gc.throttle_ratio", self.throttle_ratio, "more than 1 and finite");
        }
        if !(self.max_throttle_ratio > self.throttle_ratio && self.max_throttle_ratio.is_finite()) {
            return refuse("gc.max_throttle_ratio", self.max_throttle_ratio, "more than `throttle_ratio` and finite");
        }
        if !(self.throttled_ratio > 1.0 && self.throttled_ratio.is_finite()) {
            return refuse("gc.throttled_ratio", self.throttled_ratio, "more than 1 and finite");
        }
        if !self.burst_credit.is_plausible() {
            return refuse("gc.burst_credit", self.burst_credit.0, "seconds, 0 or more and finite");
        }
        if !(self.memtable_share > 0.0 && self.memtable_share <= 1.0) {
            return refuse("gc.memtable_share", self.memtable_share, "more than 0 and at most 1");
        }
        if !(self.throttled_memtable_share > 0.0 && self.throttled_memtable_share <= 1.0) {
            let expected = "more than 0 and at most 1";
            return refuse("gc.throttled_memtable_share", self.throttled_memtable_share, expected);
        }
        if !(self.ample_free_share > 0.0 && self.ample_free_share <= 1.0) {
            return refuse("gc.ample_free_share", self.ample_free_share, "more than 0 and at most 1");
        }
        Ok(())
    }

    /// The same for a store that may take `forced_ratio` times what lives before tables are
    /// compacted for it: the distance of each ratio from 1 grows or shrinks in proportion, and what
    /// is copied opportunistically is never less garbage than such a store has on average.
    #[must_use]
    pub fn with_ratio(&self, forced_ratio: f64) -> Self {
        let part = (forced_ratio - 1.0) / (self.forced_ratio - 1.0);
        let scaled = |ratio: f64| 1.0 + (ratio - 1.0) * part;
        Self {
            begin_ratio: scaled(self.begin_ratio),
            end_ratio: scaled(self.end_ratio),
            forced_ratio,
            urgent_ratio: scaled(self.urgent_ratio),
            throttle_ratio: scaled(self.throttle_ratio),
            max_throttle_ratio: scaled(self.max_throttle_ratio),
            // Who allows more has said how much; who allows less wants that under pressure as well.
            throttled_ratio: self.throttled_ratio.min(scaled(self.throttled_ratio)),
            opportunistic_share: self.opportunistic_share.max(1.0 - 1.0 / forced_ratio),
            ..self.clone()
        }
    }

    /// What holds while writers are throttled and so much is `allowed`
    /// ([`BurstCredit::allowed`](super::BurstCredit::allowed)), and `free_share` (0 to 1) of the
    /// space is free: the ratios of `throttled_ratio` and `throttled_memtable_share` where all is
    /// and space is ample, and the nearer to these the less is allowed and the less is free.
    #[must_use]
    pub fn under_pressure(&self, allowed: f64, free_share: f64) -> Self {
        let more = (self.throttled_ratio - self.forced_ratio).max(0.0);
        let part = allowed.clamp(0.0, 1.0) * (free_share / self.ample_free_share).clamp(0.0, 1.0);
        if more * part == 0.0 {
            // Calm parameters are those that were set, to the last of them.
            return self.clone();
        }
        let memtable_share =
            self.memtable_share + (self.throttled_memtable_share - self.memtable_share).max(0.0) * part;
        Self { memtable_share, ..self.with_ratio(self.forced_ratio + more * part) }
    }

    /// What holds while nobody writes: writers wait for nothing, so no ratio is larger than by
    /// default, and less garbage is left alone.
    #[must_use]
    pub fn while_idle(&self) -> Self {
        let ratio = self.forced_ratio.min(Self::default().forced_ratio);
        let min_garbage_bytes = self.min_garbage_bytes.min(MAX_IDLE_GARBAGE);
        Self { min_garbage_bytes, ..self.with_ratio(ratio) }
    }

    /// What holds while somebody waits for all garbage to be freed, whatever that costs.
    #[must_use]
    pub fn thorough(&self) -> Self {
        let min_garbage_share = self.min_garbage_share.min(THOROUGH_GARBAGE_SHARE);
        Self { min_garbage_share, ..self.for_free_share(0.0) }
    }

    /// What holds while `free_share` (0 to 1) of the space is free. Below `ample_free_share` the
    /// distance of each ratio from 1 shrinks in proportion to it, down to a tenth, and the garbage
    /// that is left alone down to nothing: a small store must not stay full of it; and so does the
    /// weight of age, since what frees most for a copy is then better than what lasts longest.
    /// `min_garbage_share` stays: what a freed byte may cost in copies is not changed by want of
    /// space.
    #[must_use]
    pub fn for_free_share(&self, free_share: f64) -> Self {
        let part = (free_share / self.ample_free_share).clamp(0.0, 1.0);
        let nearer = |ratio: f64| 1.0 + (ratio - 1.0) * part.max(MIN_DISTANCE);
        // So much garbage is never moved, and writers must not be slowed down for it.
        let may_stay = 1.0 / (1.0 - self.min_garbage_share);
        Self {
            begin_ratio: nearer(self.begin_ratio),
            end_ratio: nearer(self.end_ratio),
            forced_ratio: nearer(self.forced_ratio),
            urgent_ratio: nearer(self.urgent_ratio),
            throttle_ratio: nearer(self.throttle_ratio).max(may_stay),
            max_throttle_ratio: nearer(self.max_throttle_ratio).max(may_stay + MIN_DISTANCE),
            min_garbage_bytes: Bytes((self.min_garbage_bytes.0 as f64 * part) as u64),
            age_exponent: self.age_exponent * part,
            ..self.clone()
        }
    }
}

/// Whatever is default: what follows from these numbers can be reckoned.
#[cfg(test)]
pub(super) fn spelled_out() -> GcParameters {
    GcParameters {
        opportunistic_share: 0.4,
        begin_ratio: 1.2,
        end_ratio: 1.1,
        forced_ratio: 1.45,
        opportunistic_copy_share: 0.12,
        forced_copy_share: 0.25,
        urgent_ratio: 1.7,
        throttle_ratio: 1.4,
        max_throttle_ratio: 1.7,
        ..GcParameters::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_ratio_moves_all_of_them() {
        let default = GcParameters::default();
        assert_eq!(default.with_ratio(1.35), default);
        for ratio in [1.01, 1.1, 2.0, 10.0] {
            let parameters = default.with_ratio(ratio);
            parameters.validate().unwrap();
            assert_eq!(parameters.forced_ratio, ratio);
        }
        // Ten times as far from 1.
        let ample = default.with_ratio(4.5);
        let near = |one: f64, other: f64| assert!((one - other).abs() < 1e-9, "{one} {other}");
        near(ample.begin_ratio, 2.0);
        near(ample.max_throttle_ratio, 5.0);
        near(ample.opportunistic_share, 7.0 / 9.0);
    }

    #[test]
    fn more_garbage_may_stay_the_more_writers_are_throttled_and_the_more_space_is_free() {
        let default = GcParameters { throttled_ratio: 2.05, ..GcParameters::default() };
        let ratio = |allowed, free_share| default.under_pressure(allowed, free_share).forced_ratio;
        for (allowed, free_share, expected) in [
            (0.0, 1.0, 1.35),
            (0.5, 1.0, 1.7),
            (1.0, 1.0, 2.05),
            (1.0, 0.25, 2.05),
            (1.0, 0.125, 1.7),
            (1.0, 0.0, 1.35),
        ] {
            assert!((ratio(allowed, free_share) - expected).abs() < 1e-9, "{allowed} {free_share}");
        }
        default.under_pressure(1.0, 1.0).validate().unwrap();
        // Twice as far from 1: so are all others.
        assert_eq!(
            default.under_pressure(0.5, 1.0),
            GcParameters { memtable_share: 1.5 / 32.0, ..default.with_ratio(1.7) }
        );
        assert_eq!(default.under_pressure(1.0, 1.0).memtable_share, default.throttled_memtable_share);
        assert_eq!(default.under_pressure(1.0, 0.0).memtable_share, default.memtable_share);
        let large = GcParameters { memtable_share: 0.1, ..default.clone() };
        large.validate().unwrap();
        assert_eq!(large.under_pressure(1.0, 1.0).memtable_share, 0.1);
        // Who allows more than that has it, and nothing else changes.
        let ample = GcParameters { forced_ratio: 3.0, urgent_ratio: 4.0, ..default.clone() };
        assert_eq!(ample.under_pressure(1.0, 1.0), ample);
        // Who allows less has less of both.
        let scarce = default.with_ratio(1.175);
        assert!((scarce.under_pressure(1.0, 1.0).forced_ratio - 1.525).abs() < 1e-9);
        assert_eq!(default.with_ratio(1.8).throttled_ratio, default.throttled_ratio);
    }

    #[test]
    fn while_nobody_writes_no_more_garbage_may_stay_than_by_default() {
        let default = GcParameters::default();
        assert_eq!(default.while_idle(), GcParameters { min_garbage_bytes: MAX_IDLE_GARBAGE, ..default.clone() });
        let ample = default.with_ratio(4.0).while_idle();
        ample.validate().unwrap();
        assert_eq!(ample.forced_ratio, default.forced_ratio);
        let scarce = default.with_ratio(1.1);
        assert_eq!(scarce.while_idle().forced_ratio, 1.1);
        let thorough = ample.thorough();
        thorough.validate().unwrap();
        assert!(
            thorough.forced_ratio < 1.05
                && thorough.min_garbage_bytes == Bytes::ZERO
                && thorough.min_garbage_share <= 0.05
        );
    }

    #[test]
    fn parameters_that_make_no_sense_are_refused_by_name() {
        GcParameters::default().validate().unwrap();
        let valid = spelled_out();
        valid.validate().unwrap();
        for (name, wrong) in [
            ("begin_ratio", GcParameters { begin_ratio: 1.0, ..valid.clone() }),
            ("begin_ratio", GcParameters { begin_ratio: f64::NAN, ..valid.clone() }),
            ("end_ratio", GcParameters { end_ratio: 1.4, ..valid.clone() }),
            ("end_ratio", GcParameters { end_ratio: 0.9, ..valid.clone() }),
            ("urgent_ratio", GcParameters { urgent_ratio: 1.3, ..valid.clone() }),
            ("forced_ratio", GcParameters { forced_ratio: 1.1, ..valid.clone() }),
            ("opportunistic_copy_share", GcParameters { opportunistic_copy_share: 0.0, ..valid.clone() }),
            ("forced_copy_share", GcParameters { forced_copy_share: 0.05, ..valid.clone() }),
            ("forced_copy_share", GcParameters { forced_copy_share: 1.1, ..valid.clone() }),
            ("opportunistic_share", GcParameters { opportunistic_share: 0.05, ..valid.clone() }),
            ("opportunistic_share", GcParameters { opportunistic_share: 1.0, ..valid.clone() }),
            ("throttle_ratio", GcParameters { throttle_ratio: 1.0, ..valid.clone() }),
            ("max_throttle_ratio", GcParameters { max_throttle_ratio: 1.4, ..valid.clone() }),
            ("throttled_ratio", GcParameters { throttled_ratio: 1.0, ..valid.clone() }),
            ("throttled_ratio", GcParameters { throttled_ratio: f64::NAN, ..valid.clone() }),
            ("burst_credit", GcParameters { burst_credit: Seconds(-1.0), ..valid.clone() }),
            ("burst_credit", GcParameters { burst_credit: Seconds(f64::INFINITY), ..valid.clone() }),
            ("memtable_share", GcParameters { memtable_share: 0.0, ..valid.clone() }),
            ("memtable_share", GcParameters { memtable_share: 1.1, ..valid.clone() }),
            ("throttled_memtable_share", GcParameters { throttled_memtable_share: 0.0, ..valid.clone() }),
            ("throttled_memtable_share", GcParameters { throttled_memtable_share: f64::NAN, ..valid.clone() }),
            ("ample_free_share", GcParameters { ample_free_share: 0.0, ..valid.clone() }),
            ("ample_free_share", GcParameters { ample_free_share: f64::NAN, ..valid.clone() }),
            ("min_garbage_share", GcParameters { min_garbage_share: 0.0, ..valid.clone() }),
            ("age_exponent", GcParameters { age_exponent: -0.1, ..valid.clone() }),
            ("age_exponent", GcParameters { age_exponent: 1.1, ..valid.clone() }),
            ("age_exponent", GcParameters { age_exponent: f64::NAN, ..valid.clone() }),
        ] {
            assert!(wrong.validate().unwrap_err().to_string().contains(name));
        }
    }
}
