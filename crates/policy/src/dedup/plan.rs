//! Which tables a merge takes.
//!
//! A merge is named by a few tables, its seeds, and the level that it writes to. RocksDB adds what
//! it must take as well: in each level what shares a key with what is taken there, and below it all
//! that overlaps. [`closure`] foretells that, so that a merge is known by its bytes before it
//! begins, and is not begun where it would meet a running compaction.
//!
//! Invariants: no merge takes a table that is busy, one of L0, or more bytes than allowed; two
//! merges of a plan have no table in common.
//!
//! Failure modes: tables change between the look and the call. RocksDB then refuses the merge, and
//! it must be planned anew.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::estimate::TableSketch;
use crate::duplicates::KeySample;
use ecotone_types::units::Bytes;

/// A live table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// In its name.
    pub number: u64,
    /// Where it is.
    pub level: u32,
    /// Its first key.
    pub first: Vec<u8>,
    /// Its last key, itself in it.
    pub last: Vec<u8>,
    /// Its size.
    pub bytes: Bytes,
    /// What it holds; 0 where that is not known.
    pub entries: u64,
    /// Whether a compaction reads it.
    pub is_busy: bool,
}

impl Table {
    /// With its samples, for the estimators.
    pub fn sketch<'a>(&'a self, samples: &'a [KeySample]) -> TableSketch<'a> {
        TableSketch { entries: self.entries, first: &self.first, last: &self.last, samples, hashes: None, filter: None }
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// What bounds a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeLimits {
    /// It takes no more bytes of tables: at most `max_merge_bytes` of the parameters, less where a
    /// stall is near.
    pub max_bytes: Bytes,
}

/// A merge to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    /// The tables that it is called with.
    pub seeds: Vec<u64>,
    /// All that it takes, seeds among them, by level and key.
    pub inputs: Vec<u64>,
    /// Where it writes to.
    pub output_level: u32,
    /// Of all inputs.
    pub bytes: Bytes,
    /// Of all inputs.
    pub entries: u64,
}

/// Why there is no such merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// A compaction reads this table, which the merge would take.
    Busy(u64),
    /// There is no such table any more.
    Gone(u64),
    /// A seed in L0: all older ones of L0, and nearly all below, would come with it.
    InL0(u64),
    /// A seed below the level that is to be written.
    BelowOutput(u64),
    /// Nothing was named.
    NoSeeds,
}

/// What a check after a compaction looks at: for each of its tables that is still there, the tables
/// of deeper levels that overlap it. One of them may have been moved further down by itself
/// meanwhile, and what lies in its new level is below the others all the same.
pub fn below<'a>(tables: &'a [Table], reached: &[u64]) -> Vec<&'a Table> {
    let (reached, others): (Vec<_>, Vec<_>) = tables.iter().partition(|table| reached.contains(&table.number));
    let is_below = |table: &Table| reached.iter().any(|upper| upper.level < table.level && upper.overlaps(table));
    others.into_iter().filter(|table| is_below(table)).collect()
}

/// What RocksDB compacts when it is told to compact `seeds` to `output_level`.
///
/// # Errors
///
/// [`Unfit`] where it would refuse, or where that is no merge that duplicates are worth.
pub fn closure(tables: &[Table], seeds: &[u64], output_level: u32) -> Result<Merge, Unfit> {
    let tree = Tree::new(tables);
    let inputs = tree.inputs(seeds, output_level)?;
    match tree.tables(&inputs).find(|table| table.is_busy) {
        Some(table) => Err(Unfit::Busy(table.number)),
        None => Ok(tree.merge(seeds.to_vec(), &inputs, output_level)),
    }
}

/// How to rewrite `table` in its level: together with what overlaps it in levels above, from as
/// high up as `limits` allow, so that entries which are overwritten there are dropped and not
/// written once more. The table alone where nothing above it fits or is free.
///
/// # Errors
///
/// [`Unfit`] where not even the table can be compacted now.
pub fn with_those_above(tables: &[Table], table: u64, limits: &MergeLimits) -> Result<Merge, Unfit> {
    let tree = Tree::new(tables);
    let &(level, at) = tree.places.get(&table).ok_or(Unfit::Gone(table))?;
    let rewritten = tree.at((level, at));
    for above in 1..level as u32 {
        let seeds = tree.overlapping(above, rewritten);
        if seeds.is_empty() {
            continue;
        }
        let (merge, is_busy) = tree.foretell(&seeds, level as u32)?;
        if merge.bytes <= limits.max_bytes && !is_busy {
            return Ok(merge);
        }
    }
    closure(tables, &[table], level as u32)
}

/// How to bring `seeds`, all of one level, to `output_level`, the next one that holds tables: as
/// few merges as `limits` allow, in the order of keys.
///
/// Left out are seeds that are in L0, are gone, or have nothing below them; and for now those whose
/// merge would take a busy table, one of another merge of this plan, or more than is allowed. So
/// after a merge plan anew with what is left.
pub fn merges(tables: &[Table], seeds: &[u64], output_level: u32, limits: &MergeLimits) -> Vec<Merge> {
    let tree = Tree::new(tables);
    let mut taken = BTreeSet::new();
    let mut merges = Vec::new();
    let places: BTreeSet<_> =
        seeds.iter().filter_map(|seed| tree.places.get(seed).copied()).filter(|at| at.0 > 0).collect();
    let mut places = places.into_iter().peekable();
    while let Some(seed) = places.next() {
        let number = tree.at(seed).number;
        if taken.contains(&number) {
            continue;
        }
        let Some(mut merge) = tree.free_merge(&[number], output_level, limits, &taken) else { continue };
        let mut last = seed;
        while let Some(next) = places.peek().copied().filter(|next| *next == (last.0, last.1 + 1)) {
            let mut seeds = merge.seeds.clone();
            seeds.push(tree.at(next).number);
            let Some(wider) = tree.free_merge(&seeds, output_level, limits, &taken) else { break };
            (merge, last) = (wider, next);
            places.next();
        }
        taken.extend(&merge.inputs);
        merges.push(merge);
    }
    merges
}

/// Tables by level and key.
pub struct Tree<'a> {
    levels: Vec<Vec<&'a Table>>,
    /// Level and place in it.
    places: BTreeMap<u64, (usize, usize)>,
}

/// Of one level, the tables from the first to before the second. What is taken of a level has no
/// gaps.
type Span = Option<(usize, usize)>;

fn wider(span: Span, from: usize, to: usize) -> Span {
    if from >= to {
        return span;
    }
    Some(span.map_or((from, to), |span| (span.0.min(from), span.1.max(to))))
}

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

impl<'a> Tree<'a> {
    /// Of all tables of a store.
    pub fn new(tables: &'a [Table]) -> Self {
        let mut levels = Vec::new();
        for table in tables {
            let level = table.level as usize;
            if levels.len() <= level {
                levels.resize_with(level + 1, Vec::new);
            }
            levels[level].push(table);
        }
        let mut places = BTreeMap::new();
        for (level, tables) in levels.iter_mut().enumerate() {
            tables.sort_by(|a: &&Table, b| (&a.first, &a.last, a.number).cmp(&(&b.first, &b.last, b.number)));
            places.extend(tables.iter().enumerate().map(|(at, table)| (table.number, (level, at))));
        }
        Self { levels, places }
    }

    /// The table of this number.
    pub fn table(&self, number: u64) -> Option<&'a Table> {
        self.places.get(&number).map(|place| self.at(*place))
    }

    fn at(&self, (level, at): (usize, usize)) -> &'a Table {
        self.levels[level][at]
    }

    /// What a compaction of the seeds takes of each level.
    fn inputs(&self, seeds: &[u64], output_level: u32) -> Result<Vec<Span>, Unfit> {
        let output_level = output_level as usize;
        let mut spans: Vec<Span> = vec![None; self.levels.len().min(output_level + 1)];
        for seed in seeds {
            let (level, at) = *self.places.get(seed).ok_or(Unfit::Gone(*seed))?;
            match level {
                0 => return Err(Unfit::InL0(*seed)),
                _ if level > output_level => return Err(Unfit::BelowOutput(*seed)),
                _ => spans[level] = wider(spans[level], at, at + 1),
            }
        }
        let mut range: Option<(&[u8], &[u8])> = None;
        for level in 1..spans.len() {
            let Some((mut from, mut to)) = spans[level] else { continue };
            let tables = &self.levels[level];
            // Versions of one key may stand in two neighbours; they stay together.
            while from > 0 && tables[from - 1].last >= tables[from].first {
                from -= 1;
            }
            while to < tables.len() && tables[to].first <= tables[to - 1].last {
                to += 1;
            }
            spans[level] = Some((from, to));
            let (mut first, mut last) = (tables[from].first.as_slice(), tables[to - 1].last.as_slice());
            if let Some(above) = range {
                (first, last) = (first.min(above.0), last.max(above.1));
            }
            range = Some((first, last));
            for (tables, span) in self.levels.iter().zip(&mut spans).skip(level) {
                let from = tables.partition_point(|table| table.last.as_slice() < first);
                let to = tables.partition_point(|table| table.first.as_slice() <= last);
                *span = wider(*span, from, to);
            }
        }
        if range.is_none() { Err(Unfit::NoSeeds) } else { Ok(spans) }
    }

    fn tables(&self, inputs: &[Span]) -> impl Iterator<Item = &'a Table> {
        let spans =
            self.levels.iter().zip(inputs).filter_map(|(tables, span)| span.map(|(from, to)| &tables[from..to]));
        spans.flatten().copied()
    }

    fn merge(&self, seeds: Vec<u64>, inputs: &[Span], output_level: u32) -> Merge {
        Merge {
            seeds,
            inputs: self.tables(inputs).map(|table| table.number).collect(),
            output_level,
            bytes: self.tables(inputs).map(|table| table.bytes).sum(),
            entries: self.tables(inputs).map(|table| table.entries).sum(),
        }
    }

    /// A merge of the seeds that is allowed and meets nothing; `None` where they have nothing below
    /// them, or must wait.
    fn free_merge(
        &self,
        seeds: &[u64],
        output_level: u32,
        limits: &MergeLimits,
        taken: &BTreeSet<u64>,
    ) -> Option<Merge> {
        if seeds.iter().any(|seed| self.places.get(seed).is_none_or(|(level, _)| *level as u32 >= output_level)) {
            return None;
        }
        let inputs = self.inputs(seeds, output_level).ok()?;
        // Never to a level that holds nothing of the range: that would make the tree deeper.
        if inputs.len() <= output_level as usize || inputs.last()?.is_none() {
            return None;
        }
        let must_wait = self.tables(&inputs).any(|table| table.is_busy || taken.contains(&table.number));
        let merge = self.merge(seeds.to_vec(), &inputs, output_level);
        (!must_wait && merge.bytes <= limits.max_bytes).then_some(merge)
    }

    /// The tables below L0 that hold some of a range and have nothing of their own range below
    /// them, with their levels.
    pub(super) fn lowest(&self, range: &KeyRange) -> Vec<(&'a Table, u32)> {
        let mut lowest = Vec::new();
        for (level, tables) in self.levels.iter().enumerate().skip(1) {
            let from = tables.partition_point(|table| table.last < range.first);
            for table in tables[from..].iter().take_while(|table| table.first < range.end) {
                let is_lowest = (level + 1..self.levels.len()).all(|below| self.span(below, table).is_empty());
                if is_lowest {
                    lowest.push((*table, level as u32));
                }
            }
        }
        lowest
    }

    /// Whether nothing of the range of any input lies below the level that a merge writes to.
    pub(super) fn is_at_bottom(&self, merge: &Merge) -> bool {
        let deeper = || merge.output_level as usize + 1..self.levels.len();
        let inputs = merge.inputs.iter().filter_map(|number| self.table(*number));
        inputs.into_iter().all(|table| deeper().all(|below| self.span(below, table).is_empty()))
    }

    /// What of a level overlaps a table.
    pub(super) fn overlapping(&self, level: u32, table: &Table) -> Vec<u64> {
        self.levels[level as usize][self.span(level as usize, table)].iter().map(|table| table.number).collect()
    }

    /// As [`closure`], with whether some of it is busy.
    pub(super) fn foretell(&self, seeds: &[u64], output_level: u32) -> Result<(Merge, bool), Unfit> {
        let inputs = self.inputs(seeds, output_level)?;
        let is_busy = self.tables(&inputs).any(|table| table.is_busy);
        Ok((self.merge(seeds.to_vec(), &inputs, output_level), is_busy))
    }

    fn span(&self, level: usize, table: &Table) -> Range<usize> {
        let tables = &self.levels[level];
        let from = tables.partition_point(|other| other.last < table.first);
        let to = tables.partition_point(|other| other.first <= table.last);
        from..to.max(from)
    }
}
