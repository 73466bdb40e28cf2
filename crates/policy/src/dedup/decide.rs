//! Whether duplicates are worth a merge.

use std::collections::BTreeSet;

use super::estimate::{Estimate, Estimator, Sampled, TableSketch};
use super::plan::{Merge, MergeLimits, Table, merges};
use super::{DedupParameters, DedupThreshold};
use crate::duplicates::KeySample;

/// A range of which a greater share of entries is in tables without a sketch is left: too little is
/// known of it.
pub const GREATEST_UNKNOWN_SHARE: f64 = 0.1;

/// What to do about duplicates that were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A merge is worth what it costs.
    Extend,
    /// It is not, or may not be.
    Leave(Why),
}

/// Why duplicates are left where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// There are none.
    NoDuplicates,
    /// Too much is in tables that tell nothing of their keys.
    Unknown,
    /// The estimate rests on too little.
    Uncertain,
    /// More entries would be rewritten for each one freed than the threshold allows.
    NotProfitable,
    /// Every merge would take more than `max_merge_bytes`.
    TooLarge,
}

impl Why {
    /// All reasons.
    pub const ALL: [Self; 5] =
        [Self::NoDuplicates, Self::Unknown, Self::Uncertain, Self::NotProfitable, Self::TooLarge];

    /// As it is told.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoDuplicates => "no-duplicates",
            Self::Unknown => "unknown-keys",
            Self::Uncertain => "uncertain",
            Self::NotProfitable => "not-profitable",
            Self::TooLarge => "too-large",
        }
    }
}

/// Whether what was counted is worth a merge as a whole: where DUP_RATIO is at or below the
/// threshold, and the estimate is as sure as one from `min_sampled_duplicates`.
pub fn is_worth(estimate: &Estimate, threshold: DedupThreshold, parameters: &DedupParameters) -> Verdict {
    let least = parameters.min_sampled_duplicates;
    let is_uncertain =
        estimate.sampled_duplicates < least || estimate.relative_error().is_none_or(|e| e * e * least as f64 > 1.0);
    match pays(estimate, threshold) {
        Verdict::Extend | Verdict::Leave(Why::NotProfitable) if is_uncertain => Verdict::Leave(Why::Uncertain),
        verdict => verdict,
    }
}

/// Whether one merge of an extension is at or below the threshold by itself, as far as is known.
/// That there are duplicates has been made sure of for the whole of it: a merge is small, and where
/// entries are large or samples thin few of its duplicates are sampled.
pub fn pays(estimate: &Estimate, threshold: DedupThreshold) -> Verdict {
    let Some(ratio) = estimate.ratio() else {
        return Verdict::Leave(Why::NoDuplicates);
    };
    if estimate.unknown_keys as f64 > GREATEST_UNKNOWN_SHARE * estimate.total_keys as f64 {
        Verdict::Leave(Why::Unknown)
    } else if ratio > threshold.ratio() {
        Verdict::Leave(Why::NotProfitable)
    } else {
        Verdict::Extend
    }
}

/// Deduplication-triggered compaction, what the paper compares itself with (its reference 15): at
/// fixed intervals every level from L1 is compared with the next one that has tables, and where
/// that is at or below the threshold all of it is compacted into that one. From the uppermost level
/// down; the merges of one call have no table in common. The limits of extensions do not hold them
/// back, but `max_merge_bytes` of each, and room.
///
/// `samples_of` gives a table's samples, sorted by hash.
pub fn decide_triggered<'a>(
    tables: &[Table],
    samples_of: impl Fn(u64) -> &'a [KeySample],
    one_in: u64,
    threshold: DedupThreshold,
    parameters: &DedupParameters,
) -> Vec<Merge> {
    let limits = MergeLimits { max_bytes: parameters.max_merge_bytes };
    let levels: BTreeSet<_> = tables.iter().map(|table| table.level).filter(|level| *level > 0).collect();
    let mut free = tables.to_vec();
    let mut planned: Vec<Merge> = Vec::new();
    for (&level, &next) in levels.iter().zip(levels.iter().skip(1)) {
        let sketches = |level| -> Vec<TableSketch<'_>> {
            let tables = tables.iter().filter(|table| table.level == level);
            tables.map(|table| table.sketch(samples_of(table.number))).collect()
        };
        let estimate = Sampled { one_in }.count(&sketches(level), &sketches(next));
        if is_worth(&estimate, threshold, parameters) != Verdict::Extend {
            continue;
        }
        let seeds: Vec<_> = tables.iter().filter(|table| table.level == level).map(|table| table.number).collect();
        let merges = merges(&free, &seeds, next, &limits);
        for table in &mut free {
            table.is_busy |= merges.iter().any(|merge| merge.inputs.contains(&table.number));
        }
        planned.extend(merges);
    }
    planned
}
