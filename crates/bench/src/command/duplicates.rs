//! The figures of duplicates in a report.

use serde::{Deserialize, Serialize};

use crate::measure::{Measured, Reasons};
use crate::target::{CountedDuplicates, DedupWork};

/// What a run found of duplicates. All null where they were not asked for (`--dedup`).
///
/// Estimate and truth are of one moment: the end of the measured part, with memtables flushed and
/// compactions ended, before the store settles. A duplicate is a version of a key that a newer one
/// in another table shadows; DUP_RATIO is the entries of all tables by that. The rest is since the
/// store was opened, until it had settled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DuplicateFigures {
    /// DUP_RATIO as the store estimates it.
    pub dup_ratio_estimated: Option<f64>,
    /// One standard deviation of that, as the store says, by itself.
    pub dup_ratio_error: Option<f64>,
    /// DUP_RATIO, counted by reading all tables.
    pub dup_ratio_true: Option<f64>,
    /// Bytes of shadowed versions as the store estimates them.
    pub shadowed_bytes_estimated: Option<u64>,
    /// Bytes of shadowed versions, counted.
    pub shadowed_bytes_true: Option<u64>,
    /// Processor time of samples, filters and checks by that of all compactions.
    pub dedup_cpu_share: Option<f64>,
    /// Processor time of the merges that duplicates were the reason for by that of all compactions.
    pub dedup_merge_cpu_share: Option<f64>,
    /// Checks.
    pub dedup_checks: Option<u64>,
    /// Compactions that were not looked at, since too many had ended.
    pub dedup_checks_dropped: Option<u64>,
    /// Checks that found enough to extend a compaction.
    pub dedup_extensions: Option<u64>,
    /// Merges made for them.
    pub dedup_merges: Option<u64>,
    /// Merges given up because their tables were taken.
    pub dedup_aborted: Option<u64>,
    /// Times that merges came to wait: for the sake of writers, for space or tables, or since those
    /// before freed little or failed.
    pub dedup_deferred: Option<u64>,
    /// Stale versions that merges freed.
    pub dedup_found_keys: Option<u64>,
    /// Those that they were expected to free.
    pub dedup_expected_keys: Option<u64>,
    /// Bytes of tables that merges read.
    pub dedup_read_bytes: Option<u64>,
    /// Bytes of tables that merges wrote.
    pub dedup_written_bytes: Option<u64>,
    /// Tables without samples at the end of the measured part: what is shadowed in them is in no
    /// estimate.
    pub dedup_unsampled_tables: Option<u64>,
}

impl DuplicateFigures {
    /// Of what was counted at the end of the measured part, and of what had been done once the
    /// store had settled.
    pub(super) fn of(counted: Measured<&CountedDuplicates>, work: Option<&DedupWork>, reasons: &mut Reasons) -> Self {
        let counts_none = || "the store counts no duplicates while it runs".to_owned();
        let nothing_hides = "nothing is replaced by a newer version in another table";
        let estimate = counted.clone().and_then(|it| it.estimate.as_ref().ok_or_else(counts_none));
        let ratio =
            estimate.clone().and_then(|it| it.ratio().ok_or_else(|| format!("as it is estimated, {nothing_hides}")));
        let error = (estimate.clone()).and_then(|it| {
            it.relative_error.ok_or_else(|| "no duplicate is among the keys that are sampled".to_owned())
        });
        let truth = counted.clone().and_then(|it| it.truth.ratio().ok_or_else(|| nothing_hides.to_owned()));
        let work = work.ok_or_else(counts_none);
        let share = |cpu_us: u64| match &work.clone()?.compaction_cpu_seconds {
            Ok(seconds) if *seconds > 0.0 => Ok(cpu_us as f64 / 1e6 / seconds),
            Ok(_) => Err("nothing was compacted".to_owned()),
            Err(reason) => Err(reason.clone()),
        };
        let shares = work.clone().and_then(|it| {
            let counting = it.properties.check_cpu_us + it.properties.sketch_cpu_us;
            Ok((share(counting)?, share(it.properties.merge_cpu_us)?))
        });
        let done = work.clone().ok().map(|it| &it.properties);
        Self {
            dup_ratio_estimated: reasons.keep("dup_ratio_estimated", ratio),
            dup_ratio_error: reasons.keep("dup_ratio_error", error),
            dup_ratio_true: reasons.keep("dup_ratio_true", truth),
            shadowed_bytes_estimated: reasons
                .keep("shadowed_bytes_estimated", estimate.clone().map(|it| it.shadowed_bytes)),
            shadowed_bytes_true: reasons.keep("shadowed_bytes_true", counted.map(|it| it.truth.shadowed_bytes())),
            dedup_cpu_share: reasons.keep("dedup_cpu_share", shares.clone().map(|it| it.0)),
            dedup_merge_cpu_share: reasons.keep("dedup_merge_cpu_share", shares.map(|it| it.1)),
            dedup_checks: reasons.keep("dedup_checks", work.map(|it| it.properties.checks)),
            dedup_checks_dropped: done.map(|it| it.checks_dropped),
            dedup_extensions: done.map(|it| it.extensions),
            dedup_merges: done.map(|it| it.merges),
            dedup_aborted: done.map(|it| it.merges_aborted),
            dedup_deferred: done.map(|it| it.merges_deferred.values().sum()),
            dedup_found_keys: done.map(|it| it.found_keys),
            dedup_expected_keys: done.map(|it| it.expected_keys),
            dedup_read_bytes: done.map(|it| it.read_bytes),
            dedup_written_bytes: done.map(|it| it.written_bytes),
            dedup_unsampled_tables: estimate.ok().map(|it| it.unsampled_tables),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ecotone_engine::DedupProperties;
    use ecotone_inspect::{CountedLevel, DuplicateCensus};

    fn counted(estimate: Option<DedupProperties>, shadowed_keys: u64) -> CountedDuplicates {
        let level = CountedLevel { entries: 1_000, shadowed_keys, shadowed_bytes: shadowed_keys * 100 };
        let truth = DuplicateCensus { levels: vec![CountedLevel::default(), level], ..DuplicateCensus::default() };
        CountedDuplicates { estimate, truth, cpu_seconds: 0.0 }
    }

    #[test]
    fn shares_are_of_all_compactions_and_tell_counting_from_merging() {
        let properties = DedupProperties {
            total_keys: 1_024,
            duplicate_keys: 64,
            relative_error: Some(0.5),
            check_cpu_us: 10_000,
            sketch_cpu_us: 30_000,
            merge_cpu_us: 500_000,
            merges: 7,
            ..DedupProperties::default()
        };
        let mut work = DedupWork { properties: properties.clone(), compaction_cpu_seconds: Ok(2.0) };
        let mut reasons = Reasons::default();
        let counted = counted(Some(properties), 50);
        let figures = DuplicateFigures::of(Ok(&counted), Some(&work), &mut reasons);
        assert_eq!((figures.dup_ratio_estimated, figures.dup_ratio_error), (Some(16.0), Some(0.5)));
        assert_eq!((figures.dup_ratio_true, figures.shadowed_bytes_true), (Some(20.0), Some(5_000)));
        assert_eq!((figures.dedup_cpu_share, figures.dedup_merge_cpu_share), (Some(0.02), Some(0.25)));
        assert_eq!((figures.dedup_merges, reasons.0.len()), (Some(7), 0));
        for (cpu, reason) in [(Ok(0.0), "nothing was compacted"), (Err("no clock".to_owned()), "no clock")] {
            work.compaction_cpu_seconds = cpu;
            let mut reasons = Reasons::default();
            let figures = DuplicateFigures::of(Ok(&counted), Some(&work), &mut reasons);
            assert_eq!(figures.dedup_cpu_share, None);
            assert_eq!(reasons.0["dedup_cpu_share"], reason);
        }
    }

    #[test]
    fn what_is_missing_says_why() {
        let mut reasons = Reasons::default();
        let figures = DuplicateFigures::of(Ok(&counted(None, 0)), None, &mut reasons);
        assert_eq!((figures.dup_ratio_true, figures.shadowed_bytes_true), (None, Some(0)));
        assert!(reasons.0["dup_ratio_true"].contains("nothing is replaced"));
        assert!(reasons.0["dup_ratio_estimated"].contains("counts no duplicates"));
        let mut reasons = Reasons::default();
        let counted = counted(Some(DedupProperties::default()), 3);
        let figures = DuplicateFigures::of(Ok(&counted), None, &mut reasons);
        assert_eq!((figures.shadowed_bytes_estimated, figures.dup_ratio_estimated), (Some(0), None));
        assert!(reasons.0["dup_ratio_error"].contains("sampled"));
        let figures = DuplicateFigures::of(Err("the store stopped".into()), None, &mut reasons);
        assert_eq!((figures.dup_ratio_true, reasons.0["shadowed_bytes_true"].as_str()), (None, "the store stopped"));
    }
}
