//! Which merge frees the most for what it costs: merge candidates and their costs.
//!
//! A *merge candidate* is what one merge takes to rewrite a table below which nothing of its range
//! lies, together with all that overlaps it in the levels from some level down. What a compaction
//! has written says that duplicates are near, and not which tables are worth a merge: more of them
//! shadow between the levels that it did not touch than below its own keys. So every merge
//! candidate of the range is costed by itself ([`freed_at_bottom`]), and of all ranges that wait
//! the cheapest is merged first.
//!
//! Invariants: [`Ranges`] holds disjoint ranges; no merge candidate takes a table of L0, or more
//! bytes than allowed; a cost is that of just these tables.
//!
//! Bounds: [`MAX_RANGES`]; as many costs as the tables that there are make merge candidates.

use std::collections::{BTreeMap, BTreeSet};

use super::DedupThreshold;
use super::decide::{Verdict, Why, pays};
use super::estimate::{Estimate, TableSketch, freed_at_bottom, shadowed_within};
use super::plan::{KeyRange, Merge, MergeLimits, Tree};
use ecotone_types::units::Bytes;

/// Ranges that wait. Beyond it two neighbours become one, with what was given up between them.
const MAX_RANGES: usize = 64;

/// Ranges in which merge candidates may be worth a merge.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    /// The end by the first key.
    ranges: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Ranges {
    /// One more, or more of those that it overlaps or touches.
    pub fn add(&mut self, range: KeyRange) {
        let KeyRange { mut first, mut end } = range;
        if first >= end {
            return;
        }
        while let Some((met, its_end)) = self.ranges.range(..=end.clone()).next_back()
            && *its_end >= first
        {
            let met = met.clone();
            if let Some(its_end) = self.ranges.remove(&met) {
                end = end.max(its_end);
            }
            first = first.min(met);
        }
        self.insert(first, end);
        self.keep_to_bound(None);
    }

    /// These keys wait no more; what waits beside them does.
    pub fn remove(&mut self, range: &KeyRange) {
        let KeyRange { first, end } = range;
        if first >= end {
            return;
        }
        let met = self.ranges.range(..end.clone()).filter(|(_, its_end)| *its_end > first);
        let met: Vec<_> = met.map(|(its_first, its_end)| (its_first.clone(), its_end.clone())).collect();
        for (its_first, its_end) in met {
            self.ranges.remove(&its_first);
            self.insert(its_first, its_end.clone().min(first.clone()));
            self.insert(end.clone(), its_end);
        }
        self.keep_to_bound(Some(first));
    }

    fn insert(&mut self, first: Vec<u8>, end: Vec<u8>) {
        if first < end {
            self.ranges.insert(first, end);
        }
    }

    /// All of them, in the order of keys.
    pub fn iter(&self) -> impl Iterator<Item = KeyRange> {
        self.ranges.iter().map(|(first, end)| KeyRange { first: first.clone(), end: end.clone() })
    }

    /// Whether all of a range waits.
    pub fn covers(&self, range: &KeyRange) -> bool {
        let begins_before = self.ranges.range(..=range.first.clone()).next_back();
        begins_before.is_some_and(|(_, its_end)| *its_end >= range.end)
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// What begins at `removed` has just been, and stays so.
    fn keep_to_bound(&mut self, removed: Option<&Vec<u8>>) {
        if self.ranges.len() <= MAX_RANGES {
            return;
        }
        let follows_removed = self.ranges.values().next() == removed;
        let joined = if follows_removed { self.ranges.keys().next_back() } else { self.ranges.keys().nth(1) }.cloned();
        if let Some((first, end)) = joined.and_then(|first| self.ranges.remove_entry(&first))
            && let Some((_, its_end)) = self.ranges.range_mut(..first).next_back()
        {
            *its_end = end;
        }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeCandidate {
    /// How it is merged.
    pub merge: Merge,
    /// From the first key to the last of the tables that it is the merge candidate of.
    pub span: KeyRange,
    /// Whether a compaction reads some of it now.
    pub is_busy: bool,
    /// Whether nothing of the range of any of its tables lies below the level that it writes to.
    /// Below the table that it is the merge candidate of nothing does; its neighbours, which come
    /// along, may have something there, that deletions must go on to delete.
    pub is_at_bottom: bool,
}

/// All merge candidates of a range that take at most so many bytes: of each table below which
/// nothing lies with what is above it, from each level down to it. Each is named once, also where
/// several tables have the same.
///
/// # Errors
///
/// Why there is none: nothing lies above anything, or all take too much.
pub fn merge_candidates(tree: &Tree<'_>, range: &KeyRange, limits: &MergeLimits) -> Result<Vec<MergeCandidate>, Why> {
    let mut known = BTreeSet::new();
    let mut merge_candidates = Vec::new();
    let mut why = Why::NoDuplicates;
    // Neighbours are mostly below the same tables of a level far above them, and what these take is
    // foretold once.
    let mut last_seeds: BTreeMap<(u32, u32), Vec<u64>> = BTreeMap::new();
    for (base, level) in tree.lowest(range) {
        for from in 1..level {
            let seeds = tree.overlapping(from, base);
            if seeds.is_empty() || last_seeds.get(&(from, level)) == Some(&seeds) {
                continue;
            }
            let Ok((merge, is_busy)) = tree.foretell(&seeds, level) else { continue };
            last_seeds.insert((from, level), seeds);
            if merge.bytes > limits.max_bytes {
                why = Why::TooLarge;
            } else if known.insert(merge.inputs.clone()) {
                let inputs = merge.inputs.iter().filter_map(|table| tree.table(*table));
                let span = KeyRange::of(inputs.filter(|table| table.level == level));
                let is_at_bottom = tree.is_at_bottom(&merge);
                merge_candidates.push(MergeCandidate { merge, span, is_busy, is_at_bottom });
            }
        }
    }
    if merge_candidates.is_empty() { Err(why) } else { Ok(merge_candidates) }
}

/// What merge candidates are expected to free, remembered for as long as they consist of the same
/// tables.
#[derive(Clone, Debug, Default)]
pub struct MergeCosts {
    /// By the tables; with their entries, of which not all may have been known, and whether they
    /// were at the bottom.
    known: BTreeMap<Vec<u64>, (u64, bool, Estimate)>,
    asked: BTreeSet<Vec<u64>>,
}

impl MergeCosts {
    /// What merging a merge candidate frees. `sketch_of` is asked for its tables where that is not
    /// known yet.
    pub fn of<'a>(
        &mut self,
        candidate: &MergeCandidate,
        one_in: u64,
        sketch_of: impl Fn(u64) -> Option<TableSketch<'a>>,
    ) -> Estimate {
        let merge = &candidate.merge;
        self.asked.insert(merge.inputs.clone());
        match self.known.get(&merge.inputs) {
            Some((entries, at_bottom, estimate))
                if (*entries, *at_bottom) == (merge.entries, candidate.is_at_bottom) =>
            {
                *estimate
            }
            _ => {
                let sketches: Vec<_> = merge.inputs.iter().filter_map(|table| sketch_of(*table)).collect();
                let count = if candidate.is_at_bottom { freed_at_bottom } else { shadowed_within };
                let estimate = count(&sketches, one_in);
                self.known.insert(merge.inputs.clone(), (merge.entries, candidate.is_at_bottom, estimate));
                estimate
            }
        }
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Forgets the merge candidates of tables that are gone: a check may ask, and nobody after it.
    pub fn forget_gone(&mut self, is_live: impl Fn(u64) -> bool) {
        self.known.retain(|tables, _| tables.iter().all(|table| is_live(*table)));
        self.asked.retain(|tables| tables.iter().all(|table| is_live(*table)));
    }

    /// Forgets what nobody has asked for since the last time.
    pub fn forget_unasked(&mut self) {
        let asked = std::mem::take(&mut self.asked);
        self.known.retain(|tables, _| asked.contains(tables));
    }
}

/// A merge candidate, and what merging it frees.
#[derive(Clone, Debug, PartialEq)]
pub struct CostedMerge {
    /// What.
    pub candidate: MergeCandidate,
    /// How much.
    pub expected: Estimate,
}

impl CostedMerge {
    /// Its DUP_RATIO.
    fn cost(&self) -> f64 {
        self.expected.ratio().unwrap_or(f64::INFINITY)
    }
}

/// The merge candidates that are at or below the threshold by themselves.
///
/// # Errors
///
/// Why there is none: of the one that comes nearest.
pub fn worth_merging(costed: Vec<CostedMerge>, threshold: DedupThreshold) -> Result<Vec<CostedMerge>, Why> {
    let mut why = Why::NoDuplicates;
    let mut worth = Vec::new();
    for costed in costed {
        match pays(&costed.expected, threshold) {
            Verdict::Extend => worth.push(costed),
            Verdict::Leave(Why::NotProfitable) => why = Why::NotProfitable,
            Verdict::Leave(nearer) if why == Why::NoDuplicates => why = nearer,
            Verdict::Leave(_) => (),
        }
    }
    if worth.is_empty() { Err(why) } else { Ok(worth) }
}

/// How much a merge may take now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// As far as there is room on the disk.
    pub free_space: Bytes,
    /// As far as writers are not slowed before it ends.
    pub time: Bytes,
}

/// Which of several merges to make.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice<T> {
    /// There is none.
    Nothing,
    /// This one.
    Merge(T),
    /// Compactions read tables of all.
    Busy,
    /// There is no room.
    NoSpace,
    /// It would end too late.
    NoTime,
}

impl<T> Choice<T> {
    /// The same of something else.
    pub fn map<U>(self, of: impl FnOnce(T) -> U) -> Choice<U> {
        match self {
            Self::Nothing => Choice::Nothing,
            Self::Merge(merge) => Choice::Merge(of(merge)),
            Self::Busy => Choice::Busy,
            Self::NoSpace => Choice::NoSpace,
            Self::NoTime => Choice::NoTime,
        }
    }
}

/// The cheapest that is allowed now; where there is none, what the cheapest waits for.
pub fn choose(mut worth: Vec<CostedMerge>, allowance: Allowance) -> Choice<CostedMerge> {
    worth.sort_by(|a, b| a.cost().total_cmp(&b.cost()));
    let mut choice = Choice::Nothing;
    for costed in worth {
        let bytes = costed.candidate.merge.bytes;
        let wait = match costed.candidate.is_busy {
            true => Choice::Busy,
            false if bytes > allowance.free_space => Choice::NoSpace,
            false if bytes > allowance.time => Choice::NoTime,
            false => return Choice::Merge(costed),
        };
        if choice == Choice::Nothing {
            choice = wait;
        }
    }
    choice
}
