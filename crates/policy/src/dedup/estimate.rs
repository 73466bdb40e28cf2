//! How many stale versions shadow, counted from what tables tell of their keys.
//!
//! Two counts. What the keys of a compaction's output ([`Estimator::count`], the paper's
//! `DUP_RATIO`) find in the levels below says whether to extend that compaction. What a merge of
//! certain tables would free ([`shadowed_within`], [`freed_at_bottom`]) says what to expect of it.
//!
//! Failure modes: memtables and range deletions are not seen. A table with range deletions does not
//! count as one of which nothing is known for that: nothing would be merged in its range then,
//! where more is freed than is counted here. Snapshots keep versions that are counted here as
//! shadowed: a merge then frees less than expected, see [`super::back_off`].

use std::cmp::Reverse;

use super::filter::FilterView;
use super::ordered::OrderedHashes;
use crate::duplicates::KeySample;

/// A table of so many keys, or more, for each one sampled has samples (but for once in e^16);
/// without any it was written by a program that took none.
const SURELY_SAMPLED: u64 = 16;

/// What one table tells of its keys.
#[derive(Clone, Copy, Debug)]
pub struct TableSketch<'a> {
    /// What it holds; 0 where that is not known.
    pub entries: u64,
    /// Its first key.
    pub first: &'a [u8],
    /// Its last key.
    pub last: &'a [u8],
    /// Of its keys, rising by hash; empty where it carries none.
    pub samples: &'a [KeySample],
    /// The hashes of all of its keys, where they are still known: just after it was written. Only
    /// filters are asked for them.
    pub hashes: Option<&'a OrderedHashes>,
    /// Where it carries one. Only [`Filtered`] asks it.
    pub filter: Option<FilterView<'a>>,
}

impl TableSketch<'_> {
    fn keys(&self, one_in: u64) -> u64 {
        if self.entries > 0 { self.entries } else { self.samples.len() as u64 * one_in }
    }

    fn is_unsampled(&self, one_in: u64) -> bool {
        self.samples.is_empty() && self.entries >= one_in.saturating_mul(SURELY_SAMPLED)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// How many stale versions shadow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Entries of all tables that were looked at: TOTAL_KEYS.
    pub total_keys: u64,
    /// Stale versions among them: DUP_KEYS.
    pub duplicate_keys: u64,
    /// What was counted to know `duplicate_keys`.
    pub sampled_duplicates: u64,
    /// Of so many keys one was looked at.
    pub one_in: u64,
    /// Of the answers of filters, false ones to be expected: they are not in `sampled_duplicates`.
    /// 0 where samples are compared.
    pub false_positives: f64,
    /// Of `total_keys`, entries of tables that tell nothing of their keys: counted as no
    /// duplicates.
    pub unknown_keys: u64,
}

impl Estimate {
    /// DUP_RATIO, entries rewritten for each stale version freed: at least 1. `None` where no
    /// duplicate was found.
    pub fn ratio(&self) -> Option<f64> {
        (self.duplicate_keys > 0).then(|| (self.total_keys as f64 / self.duplicate_keys as f64).max(1.0))
    }

    /// One standard deviation of `duplicate_keys` by itself; `None` where no duplicate was found.
    ///
    /// Each of the D duplicates is in the sample with the chance p = 1 / `one_in`, so of d sampled
    /// ones the variance is D p (1 - p) = d (1 - p), and each false positive adds itself.
    pub fn relative_error(&self) -> Option<f64> {
        let sampled = self.sampled_duplicates as f64;
        let variance = sampled * (1.0 - 1.0 / self.one_in.max(1) as f64) + self.false_positives;
        (self.sampled_duplicates > 0).then(|| variance.sqrt() / sampled)
    }
}

/// Counts what the outputs of a compaction replace in the levels that it did not reach
/// (`DedupCheckout`).
pub trait Estimator {
    /// TOTAL_KEYS are the entries of both; DUP_KEYS the versions in `below` whose key is in
    /// `reached`, one in each of two lower levels counting twice (the paper's Equation 1). Tables
    /// that are partly in the range count whole: a merge rewrites them whole.
    fn count(&self, reached: &[TableSketch<'_>], below: &[TableSketch<'_>]) -> Estimate;
}

/// Compares samples.
#[derive(Clone, Copy, Debug)]
pub struct Sampled {
    /// Of so many keys one is sampled, see
    /// [`Duplicates::one_in`](crate::duplicates::Duplicates::one_in).
    pub one_in: u64,
}

impl Estimator for Sampled {
    fn count(&self, reached: &[TableSketch<'_>], below: &[TableSketch<'_>]) -> Estimate {
        let mut hashes: Vec<_> = reached.iter().flat_map(|table| table.samples).map(|sample| sample.hash).collect();
        hashes.sort_unstable();
        let below_samples = below.iter().flat_map(|table| table.samples);
        let sampled = below_samples.filter(|sample| hashes.binary_search(&sample.hash).is_ok()).count() as u64;
        let all = || reached.iter().chain(below);
        Estimate {
            total_keys: all().map(|table| table.keys(self.one_in)).sum(),
            duplicate_keys: sampled * self.one_in,
            sampled_duplicates: sampled,
            one_in: self.one_in,
            false_positives: 0.0,
            unknown_keys: all().filter(|table| table.is_unsampled(self.one_in)).map(|table| table.entries).sum(),
        }
    }
}

/// Asks the filters of the lower tables for every key, as the paper does, or for the sampled ones
/// where not all are known any more: each table for the keys that lie in its range, as far as these
/// are known.
///
/// Where one of the lower tables has none, samples are compared instead: filters beyond a limit of
/// memory are not kept, and what no filter is asked for would count as unknown until nothing is
/// merged any more.
///
/// The paper counts false answers as duplicates. With several levels of filters at 1 % that is too
/// many by more than half where 5 % are duplicates; so as many as are to be expected are taken
/// away: of n keys that p answers were positive for, (p - n f) / (1 - f) are there.
#[derive(Clone, Copy, Debug)]
pub struct Filtered {
    /// Of so many keys one is sampled.
    pub one_in: u64,
}

impl Estimator for Filtered {
    fn count(&self, reached: &[TableSketch<'_>], below: &[TableSketch<'_>]) -> Estimate {
        let filters: Option<Vec<_>> = below.iter().map(|lower| Some((lower, lower.filter.as_ref()?))).collect();
        let Some(filters) = filters else { return Sampled { one_in: self.one_in }.count(reached, below) };
        let knows_all = reached.iter().all(|table| table.hashes.is_some());
        let one_in = if knows_all { 1 } else { self.one_in };
        let (mut duplicates, mut false_positives) = (0.0, 0.0);
        for table in reached {
            let sampled: Vec<_> = match knows_all {
                true => Vec::new(),
                false => table.samples.iter().map(|sample| sample.hash).collect(),
            };
            for (lower, filter) in filters.iter().filter(|(lower, _)| lower.overlaps(table)) {
                let asked = match table.hashes {
                    Some(hashes) if knows_all => hashes.within(lower.first, lower.last),
                    _ => &sampled,
                };
                let share = filter.false_positive_share();
                let positive = asked.iter().filter(|hash| filter.may_hold(**hash)).count() as f64;
                let expected = asked.len() as f64 * share;
                if share < 1.0 {
                    duplicates += (positive - expected) / (1.0 - share);
                    false_positives += expected;
                }
            }
        }
        // By chance fewer answers may be false than expected.
        let duplicates = duplicates.max(0.0);
        let unknown = reached.iter().filter(|table| !knows_all && table.is_unsampled(one_in));
        Estimate {
            total_keys: reached.iter().chain(below).map(|table| table.keys(self.one_in)).sum(),
            duplicate_keys: (duplicates * one_in as f64).round() as u64,
            sampled_duplicates: duplicates.round() as u64,
            one_in,
            false_positives,
            unknown_keys: unknown.map(|table| table.keys(self.one_in)).sum(),
        }
    }
}

/// What a merge of these tables would free: every version but one of each key. By samples.
pub fn shadowed_within(inputs: &[TableSketch<'_>], one_in: u64) -> Estimate {
    // Nothing but the hashes: every merge candidate near a compaction is costed so, and most of the
    // time goes into this order.
    let mut hashes: Vec<_> = inputs.iter().flat_map(|table| table.samples).map(|sample| sample.hash).collect();
    hashes.sort_unstable();
    let sampled = hashes.windows(2).filter(|pair| pair[0] == pair[1]).count();
    freed(inputs, sampled, one_in)
}

/// The same of a merge below which none of its keys lies: where the newest version of a key is a
/// deletion, nothing is left for it to delete, and it goes as well. What was deleted is so worth
/// twice of what was overwritten.
pub fn freed_at_bottom(inputs: &[TableSketch<'_>], one_in: u64) -> Estimate {
    let samples = || inputs.iter().flat_map(|table| table.samples);
    if samples().all(|sample| sample.bytes.is_some()) {
        return shadowed_within(inputs, one_in);
    }
    // Of two that claim to be the same write the value counts as newer: rather too little is
    // expected than too much.
    let mut versions: Vec<_> =
        samples().map(|sample| (sample.hash, Reverse(sample.sequence), sample.bytes.is_none())).collect();
    versions.sort_unstable();
    let of_keys = versions.chunk_by(|one, other| one.0 == other.0);
    let sampled = of_keys.map(|newest_first| newest_first.len() - usize::from(!newest_first[0].2)).sum();
    freed(inputs, sampled, one_in)
}

fn freed(inputs: &[TableSketch<'_>], sampled: usize, one_in: u64) -> Estimate {
    let sampled = sampled as u64;
    Estimate {
        total_keys: inputs.iter().map(|table| table.keys(one_in)).sum(),
        duplicate_keys: sampled * one_in,
        sampled_duplicates: sampled,
        one_in,
        false_positives: 0.0,
        unknown_keys: inputs.iter().filter(|table| table.is_unsampled(one_in)).map(|table| table.entries).sum(),
    }
}
