//! Which merge frees the most for what it costs: slabs and their prices.
//!
//! A *slab* is what one merge takes to rewrite a table below which nothing of its range lies, together with all that overlaps it in the levels
//! from some level down. What a compaction has written says that duplicates are near, and not which tables are worth a merge: more of
//! them hide between the levels that it did not touch than below its own keys. So every slab of the range is priced by itself
//! ([`freed_at_bottom`]), and of all ranges that wait the cheapest is merged first.
//!
//! Invariants: [`Ranges`] holds disjoint ranges; no slab takes a table of L0, or more bytes than allowed; a price is that of
//! just these tables.
//!
//! Bounds: [`MAX_RANGES`]; as many prices as the tables that there are make slabs.

use std::collections::{BTreeMap, BTreeSet};

use super::DedupThreshold;
use super::decide::{Verdict, Why, pays};
use super::estimate::{Estimate, TableSketch, freed_at_bottom, hidden_within};
use super::plan::{Merge, MergeLimits, Table, Tree};
use crate::units::Bytes;

/// Ranges that wait. Beyond it two neighbours become one, with what was given up between them.
const MAX_RANGES: usize = 64;

/// Keys from the first on, up to the end, which is not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first.
    pub first: Vec<u8>,
    /// The end.
    pub end: Vec<u8>,
}

impl KeyRange {
    /// From the first key of these tables to the last.
    pub fn of<'a>(tables: impl IntoIterator<Item = &'a Table>) -> Self {
        let mut range: Option<(&[u8], &[u8])> = None;
        for table in tables {
            let (first, last) = range.unwrap_or((&table.first, &table.last));
            range = Some((first.min(&table.first), last.max(&table.last)));
        }
        match range {
            // The least key after the last.
            Some((first, last)) => Self { first: first.to_vec(), end: [last, &[0]].concat() },
            None => Self { first: Vec::new(), end: Vec::new() },
        }
    }
}

/// Ranges in which slabs may be worth a merge.
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
pub struct Slab {
    /// How it is merged.
    pub merge: Merge,
    /// From the first key to the last of the tables that it is the slab of.
    pub span: KeyRange,
    /// Whether a compaction reads some of it now.
    pub is_busy: bool,
    /// Whether nothing of the range of any of its tables lies below the level that it writes to. Below the table that it is the slab of nothing does; its neighbours, which
    /// come along, may have something there, that deletions must go on to delete.
    pub is_at_bottom: bool,
}

/// All slabs of a range that take at most so many bytes: of each table below which nothing lies with what is above it, from each level down to it.
/// Each is named once, also where several tables have the same.
///
/// # Errors
///
/// Why there is none: nothing lies above anything, or all take too much.
pub fn slabs(tree: &Tree<'_>, range: &KeyRange, limits: &MergeLimits) -> Result<Vec<Slab>, Why> {
    let mut known = BTreeSet::new();
    let mut slabs = Vec::new();
    let mut why = Why::NoDuplicates;
    // Neighbours are mostly below the same tables of a level far above them, and what these take is foretold once.
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
                slabs.push(Slab { merge, span, is_busy, is_at_bottom });
            }
        }
    }
    if slabs.is_empty() { Err(why) } else { Ok(slabs) }
}

/// What slabs are expected to free, remembered for as long as they consist of the same tables.
#[derive(Clone, Debug, Default)]
pub struct Prices {
    /// By the tables; with their entries, of which not all may have been known, and whether they were at the bottom.
    known: BTreeMap<Vec<u64>, (u64, bool, Estimate)>,
    asked: BTreeSet<Vec<u64>>,
}

impl Prices {
    /// What merging a slab frees. `sketch_of` is asked for its tables where that is not known yet.
    pub fn of<'a>(&mut self, slab: &Slab, one_in: u64, sketch_of: impl Fn(u64) -> Option<TableSketch<'a>>) -> Estimate {
        let merge = &slab.merge;
        self.asked.insert(merge.inputs.clone());
        match self.known.get(&merge.inputs) {
            Some((entries, at_bottom, estimate)) if (*entries, *at_bottom) == (merge.entries, slab.is_at_bottom) => {
                *estimate
            }
            _ => {
                let sketches: Vec<_> = merge.inputs.iter().filter_map(|table| sketch_of(*table)).collect();
                let count = if slab.is_at_bottom { freed_at_bottom } else { hidden_within };
                let estimate = count(&sketches, one_in);
                self.known.insert(merge.inputs.clone(), (merge.entries, slab.is_at_bottom, estimate));
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

    /// Forgets the slabs of tables that are gone: a check may ask, and nobody after it.
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

/// A slab, and what merging it frees.
#[derive(Clone, Debug, PartialEq)]
pub struct Priced {
    /// What.
    pub slab: Slab,
    /// How much.
    pub expected: Estimate,
}

impl Priced {
    /// Its DUP_RATIO.
    fn price(&self) -> f64 {
        self.expected.ratio().unwrap_or(f64::INFINITY)
    }
}

/// The slabs that are at or below the threshold by themselves.
///
/// # Errors
///
/// Why there is none: of the one that comes nearest.
pub fn worth_merging(priced: Vec<Priced>, threshold: DedupThreshold) -> Result<Vec<Priced>, Why> {
    let mut why = Why::NoDuplicates;
    let mut worth = Vec::new();
    for priced in priced {
        match pays(&priced.expected, threshold) {
            Verdict::Extend => worth.push(priced),
            Verdict::Leave(Why::TooDear) => why = Why::TooDear,
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
    pub room: Bytes,
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
    NoRoom,
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
            Self::NoRoom => Choice::NoRoom,
            Self::NoTime => Choice::NoTime,
        }
    }
}

/// The cheapest that is allowed now; where there is none, what the cheapest waits for.
pub fn choose(mut worth: Vec<Priced>, allowance: Allowance) -> Choice<Priced> {
    worth.sort_by(|a, b| a.price().total_cmp(&b.price()));
    let mut choice = Choice::Nothing;
    for priced in worth {
        let bytes = priced.slab.merge.bytes;
        let wait = match priced.slab.is_busy {
            true => Choice::Busy,
            false if bytes > allowance.room => Choice::NoRoom,
            false if bytes > allowance.time => Choice::NoTime,
            false => return Choice::Merge(priced),
        };
        if choice == Choice::Nothing {
            choice = wait;
        }
    }
    choice
}
