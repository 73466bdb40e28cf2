//! Tables that a sound MANIFEST does not name, of which each is one of two things:
//!
//! - what a job was writing that had not ended when the process died, a flush or a compaction: all
//!   that is in it is in the WALs or in other tables as well, and it is no part of the store;
//! - a part of the store that the MANIFEST named in records which it has lost from its end, without
//!   a trace.
//!
//! Its contents decide. A job copies versions of keys, with their sequence numbers or, where
//! nothing is older, with the number 0. So where the WALs and the named tables have, of each key in
//! the table, a version that is as new or newer, and delete what it deletes, the table adds
//! nothing, whatever it is. Where they have not, it counts, and the MANIFEST may have lost more.
//!
//! Memory: a few blocks of each table that overlaps, and all range deletions.

use std::collections::BTreeSet;

use ecotone_engine::Result;
use ecotone_rocks::salvage::RangeDeletion;

use super::merge::{Merge, Noticed, TableSource, Version};
use super::ranges::Tombstones;
use super::report::Repairing;
use super::runs::Run;
use super::tables::{LISTED, Tables};

/// Keys between two calls of the progress.
const PROGRESS_KEYS: u64 = 10_000;

/// Those of the [unlisted](Tables::unlisted) tables that hold what nothing else does. `runs` and
/// `deleted_ranges` are those of the WALs.
pub(super) fn that_count(
    tables: &Tables,
    runs: Vec<Run>,
    deleted_ranges: &[RangeDeletion],
    progress: &mut impl FnMut(Repairing),
) -> Result<BTreeSet<u64>> {
    let known: Vec<&RangeDeletion> = tables.deleted_ranges.iter().chain(deleted_ranges).collect();
    let deletes_more = |ranges: &[RangeDeletion]| ranges.iter().any(|range| !is_covered(range, &known));
    let suspects = tables.unlisted.iter().filter(|(_, table)| table.is_damaged || deletes_more(&table.deleted_ranges));
    let mut counting: BTreeSet<u64> = suspects.map(|(number, _)| *number).collect();
    let mut shadowed = Tombstones::default();
    known.into_iter().for_each(|range| shadowed.add(range.clone(), None));
    shadowed.begin();
    let mut merge = Merge::new(overlapping(tables), runs)?;
    let (mut versions, mut keys) = (Vec::new(), 0_u64);
    loop {
        merge.next_versions(&mut versions, |_, _| true)?;
        for noticed in merge.take_noticed() {
            // The unreadable part may be what nothing else has.
            if let Noticed::Gap { table, .. } | Noticed::End { table, missing: 1.. } = noticed
                && tables.unlisted.contains_key(&table)
            {
                counting.insert(table);
            }
        }
        if versions.is_empty() {
            return Ok(counting);
        }
        let is_known = |version: &Version| version.precedence == 0 || version.precedence & LISTED != 0;
        let newest = versions.iter().find(|version| is_known(version)).map(|version| version.sequence);
        for version in versions.iter().filter(|version| !is_known(version)) {
            if newest < Some(version.sequence) && !shadowed.shadow(version) {
                counting.insert(version.precedence);
            }
        }
        keys += 1;
        if keys.is_multiple_of(PROGRESS_KEYS) {
            progress(Repairing::Unlisted { keys });
        }
    }
}

/// The tables to be compared: those that are not named, and what has keys between their first and
/// last.
fn overlapping(tables: &Tables) -> Vec<TableSource> {
    let range = |number: &u64| tables.known.get(number).map(|known| (known.from.as_deref(), known.to.as_deref()));
    let unlisted: Vec<_> = tables.unlisted.keys().filter_map(range).collect();
    let overlaps = |number: &u64| {
        range(number).is_none_or(|(from, to)| {
            unlisted.iter().any(|(other_from, other_to)| {
                to.is_none_or(|to| other_from.is_none_or(|other| other <= to))
                    && from.is_none_or(|from| other_to.is_none_or(|other| other >= from))
            })
        })
    };
    tables.sources.iter().filter(|source| overlaps(&source.number)).cloned().collect()
}

/// Whether all of a range is deleted by others that are as new or newer.
fn is_covered(range: &RangeDeletion, known: &[&RangeDeletion]) -> bool {
    let mut covering: Vec<_> =
        known.iter().filter(|other| other.sequence >= range.sequence && other.to > range.from).collect();
    covering.sort_by(|one, other| one.from.cmp(&other.from));
    let mut covered = &range.from;
    for other in covering {
        if other.from > *covered || *covered >= range.to {
            break;
        }
        covered = covered.max(&other.to);
    }
    *covered >= range.to
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range((from, to, sequence): (u8, u8, u64)) -> RangeDeletion {
        RangeDeletion { from: vec![from], to: vec![to], sequence }
    }

    proptest! {
        #[test]
        fn a_range_is_covered_where_each_of_its_keys_is_deleted(
            of in (0..20_u8, 0..20_u8, 0..4_u64),
            known in proptest::collection::vec((0..20_u8, 0..20_u8, 0..4_u64), 0..8),
        ) {
            let (of, known) = (range(of), known.into_iter().map(range).collect::<Vec<_>>());
            let is_in = |key: &Vec<u8>, range: &RangeDeletion| range.from <= *key && *key < range.to;
            let deleted = |key: &Vec<u8>| known.iter().any(|other| is_in(key, other) && other.sequence >= of.sequence);
            let expected = (0..20_u8).map(|key| vec![key]).filter(|key| is_in(key, &of)).all(|key| deleted(&key));
            prop_assert_eq!(is_covered(&of, &known.iter().collect::<Vec<_>>()), expected);
        }
    }
}
