//! Compactions that are extended: ranges that wait, and the merge of them all that frees the most
//! for what it costs.
//!
//! Invariant: a range waits for as long as a merge candidate of it is worth a merge. Of a merge
//! that frees too little or fails the keys are given up, until a compaction or a start finds
//! something there again, or so many ranges wait that two become one; those beside them wait on.
//!
//! Failure modes: which ranges wait is lost when the store is closed, so all of it is looked at
//! once it is open again.

use super::candidates::{Allowance, Choice, CostedMerge, MergeCosts, Ranges, choose, merge_candidates, worth_merging};
use super::decide::{Verdict, Why, is_worth};
use super::estimate::Estimate;
use super::plan::{KeyRange, MergeLimits, Tree};
use super::sketches::KeySketches;
use super::{DedupParameters, DedupThreshold};

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Extension {
    threshold: DedupThreshold,
    parameters: DedupParameters,
    waiting: Ranges,
    costs: MergeCosts,
}

impl Extension {
    /// Of merges that are worth it by this threshold.
    pub(super) fn new(threshold: DedupThreshold, parameters: DedupParameters) -> Self {
        Self { threshold, parameters, waiting: Ranges::default(), costs: MergeCosts::default() }
    }

    /// So much was found in a range: it waits, if a merge of it is worth what it costs, or if it
    /// does already.
    ///
    /// # Errors
    ///
    /// Why none is.
    pub(super) fn found(
        &mut self,
        tree: &Tree<'_>,
        keys: &dyn KeySketches,
        range: KeyRange,
        estimate: &Estimate,
    ) -> Result<(), Why> {
        match is_worth(estimate, self.threshold, &self.parameters) {
            // More may shadow between lower levels, and there less may be rewritten for it.
            Verdict::Extend | Verdict::Leave(Why::NotProfitable) => (),
            Verdict::Leave(why) => return Err(why),
        }
        // What waits is costed once a merge is to be chosen.
        if !self.waiting.covers(&range) {
            self.worth_merging(tree, keys, &range)?;
            self.waiting.add(range);
        }
        Ok(())
    }

    /// A merge of these keys came to nothing.
    pub(super) fn give_up(&mut self, span: &KeyRange) {
        self.waiting.remove(span);
    }

    /// These are the tables that there are.
    pub(super) fn forget_gone(&mut self, tree: &Tree<'_>) {
        self.costs.forget_gone(|table| tree.table(table).is_some());
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The best merge of all ranges that is allowed now. Ranges of which nothing is worth one any
    /// more are forgotten.
    pub(super) fn next(
        &mut self,
        tree: &Tree<'_>,
        keys: &dyn KeySketches,
        allowance: Allowance,
    ) -> Choice<CostedMerge> {
        let ranges: Vec<_> = self.waiting.iter().collect();
        let mut worth = Vec::new();
        for range in ranges {
            match self.worth_merging(tree, keys, &range) {
                Ok(of_range) => worth.extend(of_range),
                Err(_) => self.waiting.remove(&range),
            }
        }
        self.costs.forget_unasked();
        choose(worth, allowance)
    }

    fn worth_merging(
        &mut self,
        tree: &Tree<'_>,
        keys: &dyn KeySketches,
        range: &KeyRange,
    ) -> Result<Vec<CostedMerge>, Why> {
        let one_in = keys.one_in();
        let cost = |candidate| {
            let expected = self.costs.of(&candidate, one_in, |table| Some(keys.sketch(tree.table(table)?)));
            CostedMerge { candidate, expected }
        };
        let limits = MergeLimits { max_bytes: self.parameters.max_merge_bytes };
        let costed = merge_candidates(tree, range, &limits)?.into_iter().map(cost).collect();
        worth_merging(costed, self.threshold)
    }
}

#[cfg(test)]
mod tests {
    use ecotone_types::units::Bytes;

    use super::super::plan::Table;
    use super::*;
    use crate::duplicates::KeySample;

    /// Nothing is known of any table.
    struct Nothing;

    impl KeySketches for Nothing {
        fn one_in(&self) -> u64 {
            64
        }

        fn samples(&self, _table: u64) -> Option<&[KeySample]> {
            None
        }
    }

    /// Each of these keys in L1 and L2, in a table of its own.
    fn two_levels(keys: &[u8], first_number: u64) -> Vec<Table> {
        let numbered = (first_number..).zip(keys.iter().flat_map(|key| [(1, *key), (2, *key)]));
        let table = |(number, (level, key))| Table {
            number,
            level,
            first: vec![key],
            last: vec![key],
            bytes: Bytes::from_mib(1),
            entries: 100,
            is_busy: false,
        };
        numbered.map(table).collect()
    }

    #[test]
    fn costs_are_of_tables_that_are_there() {
        let mut extension = Extension::new(DedupThreshold::try_from(10.0).unwrap(), DedupParameters::default());
        // Nobody asks for the next merge: nothing is ever worth one.
        for round in 0..50 {
            let tables = two_levels(b"abcd", round * 100);
            let tree = Tree::new(&tables);
            let range = KeyRange::of(&tables);
            assert!(extension.worth_merging(&tree, &Nothing, &range).is_err());
            extension.forget_gone(&tree);
            assert_eq!(extension.costs.len(), 4);
        }
    }

    #[test]
    fn what_waits_already_is_not_costed_again() {
        let mut extension = Extension::new(DedupThreshold::try_from(10.0).unwrap(), DedupParameters::default());
        let tables = two_levels(b"abcd", 1);
        let tree = Tree::new(&tables);
        let found = Estimate {
            total_keys: 10_000,
            duplicate_keys: 5_000,
            sampled_duplicates: 5_000,
            one_in: 1,
            ..Estimate::default()
        };
        let finds = |extension: &mut Extension, tables: &[Table]| {
            extension.found(&tree, &Nothing, KeyRange::of(tables), &found).is_ok()
        };
        extension.waiting.add(KeyRange::of(&tables[..4]));
        assert!(finds(&mut extension, &tables[2..4]) && finds(&mut extension, &tables[..4]));
        assert_eq!(extension.costs.len(), 0);
        // Nothing is known of these tables, so no merge is worth it.
        assert!(!finds(&mut extension, &tables[2..6]));
        assert_eq!(extension.costs.len(), 2);
    }

    #[test]
    fn of_what_waits_only_the_keys_of_a_merge_are_given_up() {
        let mut extension = Extension::new(DedupThreshold::try_from(10.0).unwrap(), DedupParameters::default());
        let tables = two_levels(b"abcd", 1);
        extension.waiting.add(KeyRange::of(&tables));
        extension.give_up(&KeyRange::of(&tables[2..4]));
        let waits = |key: u8| {
            let mut ranges = extension.waiting.iter();
            ranges.any(|range| (range.first..range.end).contains(&vec![key]))
        };
        assert_eq!(b"abcd".map(waits), [true, false, true, true]);
    }
}
