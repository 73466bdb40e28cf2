//! Compactions that are extended: ranges that wait, and the merge of them all that frees the most for what it costs.
//!
//! Invariant: a range waits for as long as a slab of it is worth a merge, unless one of it frees too little or fails: then all of that range is given up,
//! until a compaction or a start finds something there again.
//!
//! Failure modes: which ranges wait is lost when the store is closed, so all of it is looked at once it is open again.

use std::collections::{HashMap, HashSet};

use ecotone_policy::dedup::decide::{Verdict, Why, is_worth};
use ecotone_policy::dedup::estimate::Estimate;
use ecotone_policy::dedup::plan::{MergeLimits, Table, Tree};
use ecotone_policy::dedup::slab::{Allowance, Choice, KeyRange, Priced, Prices, Ranges, choose, slabs, worth_merging};

use ecotone_policy::dedup::{DedupParameters, DedupThreshold};

use super::known::Sketches;
use super::thread::sketch;

/// See the module.
pub(super) struct Extension {
    threshold: DedupThreshold,
    parameters: DedupParameters,
    waiting: Ranges,
    prices: Prices,
}

impl Extension {
    /// Of merges that are worth it by this threshold.
    pub(super) fn new(threshold: DedupThreshold, parameters: DedupParameters) -> Self {
        Self { threshold, parameters, waiting: Ranges::default(), prices: Prices::default() }
    }

    /// So much was found in a range: it waits, if a merge of it is worth what it costs.
    ///
    /// # Errors
    ///
    /// Why none is.
    pub(super) fn found(
        &mut self,
        tables: &[Table],
        known: &Sketches,
        range: KeyRange,
        estimate: &Estimate,
    ) -> Result<(), Why> {
        match is_worth(estimate, self.threshold, &self.parameters) {
            // More may hide between lower levels, and there less may be rewritten for it.
            Verdict::Extend | Verdict::Leave(Why::TooDear) => (),
            Verdict::Leave(why) => return Err(why),
        }
        self.worth_merging(&Tree::new(tables), &by_number(tables), known, &range)?;
        self.waiting.add(range);
        Ok(())
    }

    /// A merge of a range came to nothing: what is left of it waits no more.
    pub(super) fn give_up(&mut self, range: &KeyRange) {
        self.waiting.remove(range);
    }

    /// These are the tables that there are.
    pub(super) fn forget_gone(&mut self, tables: &[Table]) {
        let live: HashSet<_> = tables.iter().map(|table| table.number).collect();
        self.prices.forget_gone(|table| live.contains(&table));
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The best merge of all ranges that is allowed now. Ranges of which nothing is worth one any more are forgotten.
    pub(super) fn next(&mut self, tables: &[Table], known: &Sketches, allowance: Allowance) -> Choice<Priced> {
        let (tree, by_number) = (Tree::new(tables), by_number(tables));
        let ranges: Vec<_> = self.waiting.iter().collect();
        let mut worth = Vec::new();
        for range in ranges {
            match self.worth_merging(&tree, &by_number, known, &range) {
                Ok(of_range) => worth.extend(of_range),
                Err(_) => self.waiting.remove(&range),
            }
        }
        self.prices.forget_unasked();
        choose(worth, allowance)
    }

    fn worth_merging(
        &mut self,
        tree: &Tree<'_>,
        by_number: &HashMap<u64, &Table>,
        known: &Sketches,
        range: &KeyRange,
    ) -> Result<Vec<Priced>, Why> {
        let one_in = known.duplicates().one_in();
        let price = |slab| {
            let expected = self.prices.of(&slab, one_in, |table| Some(sketch(known, by_number.get(&table)?)));
            Priced { slab, expected }
        };
        let limits = MergeLimits { max_bytes: self.parameters.max_merge_bytes };
        let priced = slabs(tree, range, &limits).into_iter().map(price).collect();
        worth_merging(priced, self.threshold)
    }
}

fn by_number(tables: &[Table]) -> HashMap<u64, &Table> {
    tables.iter().map(|table| (table.number, table)).collect()
}
