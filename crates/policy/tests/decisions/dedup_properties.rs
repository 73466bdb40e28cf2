//! What holds of duplicates in every tree of tables.
use std::collections::{BTreeMap, BTreeSet};

use ecotone_policy::dedup::candidates::{MergeCandidate, Ranges, merge_candidates};
use ecotone_policy::dedup::decide::Why;
use ecotone_policy::dedup::estimate::{Estimator, Sampled, TableSketch, freed_at_bottom, shadowed_within};
use ecotone_policy::dedup::levels::shadowed_by_level;
use ecotone_policy::dedup::plan::{KeyRange, MergeLimits, Table, Tree, Unfit, closure, merges, with_those_above};
use ecotone_policy::duplicates::{Duplicates, KeySample};
use ecotone_types::units::Bytes;
use proptest::prelude::*;

/// Per level, tables by their keys: a key, whether it is a value, and what that takes.
type Contents = Vec<Vec<BTreeMap<u64, (bool, u32)>>>;

/// Two tables in L0, and below it levels of which each table holds some keys out of a range of its
/// own.
fn contents() -> impl Strategy<Value = Contents> {
    let version = || (any::<bool>(), 0_u32..1000);
    let keys = move |range| prop::collection::btree_map(range, version(), 0..12);
    let level = move |width: u64| (0..40 / width).map(|at| keys(at * width..(at + 1) * width)).collect::<Vec<_>>();
    (vec![keys(0..40), keys(0..40)], level(40), level(20), level(10)).prop_map(|(l0, l1, l2, l3)| vec![l0, l1, l2, l3])
}

fn samples(contents: &Contents, one_in: u64) -> Vec<(u32, Vec<KeySample>)> {
    let mut sequence = 1000;
    let mut tables = Vec::new();
    for (level, of_level) in contents.iter().enumerate() {
        for keys in of_level {
            sequence -= 1;
            let sample = |(key, (is_value, bytes)): (&u64, &(bool, u32))| KeySample {
                hash: key * one_in,
                bytes: is_value.then_some(*bytes),
                segment: None,
                sequence,
            };
            tables.push((level as u32, keys.iter().map(sample).collect()));
        }
    }
    tables
}

fn sketches(tables: &[(u32, Vec<KeySample>)]) -> Vec<TableSketch<'_>> {
    tables
        .iter()
        .map(|(_, samples)| TableSketch {
            entries: samples.len() as u64,
            first: b"",
            last: b"",
            samples,
            hashes: None,
            filter: None,
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn with_every_key_sampled_the_counts_are_exact(contents in contents(), upper_levels in 1_u32..4) {
        let tables = samples(&contents, 1);
        let sketches = sketches(&tables);
        let is_reached = |at: &usize| tables[*at].0 < upper_levels;
        let (reached, below): (Vec<_>, Vec<_>) = (0..sketches.len()).partition(is_reached);
        let of = |tables: &[usize]| tables.iter().map(|at| sketches[*at]).collect::<Vec<_>>();

        // Every version of a lower level whose key stands anywhere above.
        let above: BTreeSet<_> = contents[..upper_levels as usize].iter().flatten().flat_map(BTreeMap::keys).collect();
        let lower = contents[upper_levels as usize..].iter().flatten().flatten();
        let found: Vec<_> = lower.filter(|(key, _)| above.contains(key)).collect();
        let count = Sampled { one_in: 1 }.count(&of(&reached), &of(&below));
        prop_assert_eq!(count.duplicate_keys, found.len() as u64);
        prop_assert_eq!(count.total_keys, contents.iter().flatten().map(|keys| keys.len() as u64).sum::<u64>());
        prop_assert!(count.ratio().is_none_or(|ratio| ratio >= 1.0));

        // Every version but the first one that is met from above.
        let mut seen = BTreeSet::new();
        let shadowed = contents.iter().flatten().flatten().filter(|(key, _)| !seen.insert(*key)).count();
        prop_assert_eq!(shadowed_within(&sketches, 1).duplicate_keys, shadowed as u64);

        // Of a merge of all that keeps what can still be read: a deletion cannot.
        let mut newest = BTreeMap::new();
        contents.iter().flatten().flatten().for_each(|(key, (is_value, _))| _ = newest.entry(*key).or_insert(*is_value));
        let kept = newest.values().filter(|is_value| **is_value).count() as u64;
        let freed = freed_at_bottom(&sketches, 1);
        prop_assert_eq!(freed.total_keys - freed.duplicate_keys, kept);
    }

    #[test]
    fn levels_sum_to_the_store(contents in contents(), most in prop_oneof![Just(10_000_usize), 2..60_usize]) {
        let mut duplicates = Duplicates::new(most);
        let tables = samples(&contents, 64);
        for (number, (_, samples)) in tables.iter().enumerate() {
            duplicates.replace(|_| false, vec![(number as u64, samples.clone())]);
        }
        let levels = shadowed_by_level(&duplicates, |number| Some(tables[number as usize].0));
        prop_assert_eq!(levels.iter().map(|level| level.bytes).sum::<Bytes>(), duplicates.shadowed_bytes());
        let kept: Vec<_> = tables.iter().enumerate().map(|(number, (level, _))| (*level, duplicates.samples(number as u64).unwrap().to_vec())).collect();
        let one_in = duplicates.one_in();
        prop_assert!(kept.iter().all(|(_, samples)| samples.is_sorted_by_key(|sample| sample.hash)));
        prop_assert!(kept.iter().flat_map(|(_, samples)| samples).all(|sample| sample.hash % one_in == 0));
        prop_assert_eq!(levels.iter().map(|level| level.keys).sum::<u64>(), shadowed_within(&sketches(&kept), one_in).duplicate_keys);
        prop_assert_eq!(levels.iter().map(|level| level.sampled * one_in).sum::<u64>(), levels.iter().map(|level| level.keys).sum::<u64>());
    }
}

/// Levels of tables that rise by key; neighbours may share one. Widths and gaps of each, and who is
/// busy.
fn trees() -> impl Strategy<Value = Vec<Table>> {
    let level = |most: usize| prop::collection::vec((0_u8..4, 0_u8..6, 1_u64..5, prop::bool::weighted(0.05)), 0..most);
    (level(3), level(4), level(7), level(12)).prop_map(|(l0, l1, l2, l3)| {
        let mut tables = Vec::new();
        for (level, of_level) in [l0, l1, l2, l3].into_iter().enumerate() {
            let mut key = 0;
            for (gap, width, mib, is_busy) in of_level {
                let first = key + gap;
                key = first + width;
                tables.push(Table {
                    number: 100 - tables.len() as u64,
                    level: level as u32,
                    first: vec![first],
                    last: vec![key],
                    bytes: Bytes::from_mib(mib),
                    entries: mib,
                    is_busy,
                });
            }
        }
        tables
    })
}

/// The inputs of a compaction as RocksDB finds them, in sets: level by level, what is taken there
/// is filled up and widened by shared keys, and all that overlaps what was taken so far comes along
/// in this level and those below it.
fn naive(tables: &[Table], seeds: &[u64], output_level: u32) -> Option<BTreeSet<u64>> {
    let overlaps =
        |table: &Table, range: (&[u8], &[u8])| table.first.as_slice() <= range.1 && range.0 <= table.last.as_slice();
    let mut taken: BTreeSet<u64> = seeds.iter().copied().collect();
    let mut range: Option<(&[u8], &[u8])> = None;
    for level in 1..=output_level {
        let of_level: Vec<_> = tables.iter().filter(|table| table.level == level).collect();
        loop {
            let here: Vec<_> = of_level.iter().filter(|table| taken.contains(&table.number)).collect();
            let (Some(first), Some(last)) =
                (here.iter().map(|t| t.first.as_slice()).min(), here.iter().map(|t| t.last.as_slice()).max())
            else {
                break;
            };
            let before = taken.len();
            taken.extend(of_level.iter().filter(|table| overlaps(table, (first, last))).map(|table| table.number));
            if taken.len() == before {
                range = Some(range.map_or((first, last), |range| (first.min(range.0), last.max(range.1))));
                break;
            }
        }
        if let Some(range) = range {
            let lower = tables.iter().filter(|table| (level..=output_level).contains(&table.level));
            taken.extend(lower.filter(|table| overlaps(table, range)).map(|table| table.number));
        }
    }
    let is_busy = tables.iter().any(|table| table.is_busy && taken.contains(&table.number));
    (!is_busy).then_some(taken)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn the_closure_is_that_of_sets(
        tables in trees(),
        seeds in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
        output_level in 1_u32..6,
    ) {
        let able: Vec<_> = tables.iter().filter(|table| (1..=output_level).contains(&table.level)).collect();
        prop_assume!(!able.is_empty());
        let seeds: Vec<_> = seeds.iter().map(|seed| able[seed.index(able.len())].number).collect();
        match (closure(&tables, &seeds, output_level), naive(&tables, &seeds, output_level)) {
            (Ok(merge), Some(expected)) => {
                prop_assert_eq!(merge.inputs.iter().copied().collect::<BTreeSet<_>>(), expected);
                let inputs = tables.iter().filter(|table| merge.inputs.contains(&table.number));
                prop_assert_eq!(merge.bytes, inputs.map(|table| table.bytes).sum::<Bytes>());
            }
            (Err(Unfit::Busy(number)), None) => {
                prop_assert!(tables.iter().any(|table| table.number == number && table.is_busy));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn plans_keep_their_limits(tables in trees(), max_mib in 1_u64..40, level in 0_u32..4, output_level in 1_u32..6) {
        let seeds: Vec<_> = tables.iter().filter(|table| table.level == level).map(|table| table.number).collect();
        let by_number: BTreeMap<_, _> = tables.iter().map(|table| (table.number, table)).collect();
        let limits = MergeLimits { max_bytes: Bytes::from_mib(max_mib) };
        let mut taken = BTreeSet::new();
        for merge in merges(&tables, &seeds, output_level, &limits) {
            prop_assert!(merge.bytes <= limits.max_bytes);
            prop_assert_eq!(merge.output_level, output_level);
            for number in &merge.inputs {
                let table = by_number[number];
                prop_assert!(taken.insert(*number), "in two merges");
                prop_assert!(!table.is_busy && table.level > 0 && table.level <= merge.output_level);
            }
            // The output level holds something already, and lies below the seeds.
            prop_assert!(merge.inputs.iter().any(|number| by_number[number].level == merge.output_level));
            prop_assert!(merge.seeds.iter().all(|seed| by_number[seed].level < merge.output_level && merge.inputs.contains(seed)));
            // What RocksDB is called with gives what was planned.
            let called = closure(&tables, &merge.seeds, merge.output_level).unwrap();
            prop_assert_eq!(&called.inputs, &merge.inputs);
        }
    }

    #[test]
    fn a_table_is_rewritten_with_as_much_of_what_is_above_it_as_fits(
        tables in trees(),
        chosen in any::<prop::sample::Index>(),
        max_mib in 0_u64..40,
    ) {
        let able: Vec<_> = tables.iter().filter(|table| table.level > 0).collect();
        prop_assume!(!able.is_empty());
        let table = able[chosen.index(able.len())];
        let limits = MergeLimits { max_bytes: Bytes::from_mib(max_mib) };
        // Called with what overlaps it in one level, from the uppermost on, and at last with
        // itself.
        let overlapping = |level: u32| {
            let upper = tables.iter().filter(|upper| upper.level == level);
            upper.filter(|upper| upper.first <= table.last && table.first <= upper.last).map(|upper| upper.number).collect::<BTreeSet<_>>()
        };
        let with_level = (1..table.level).filter_map(|level| closure(&tables, &overlapping(level).into_iter().collect::<Vec<_>>(), table.level).ok());
        let first_that_fits = with_level.into_iter().find(|merge| merge.bytes <= limits.max_bytes);
        let expected = first_that_fits.map_or_else(|| closure(&tables, &[table.number], table.level), Ok);
        let mut found = with_those_above(&tables, table.number, &limits);
        found.iter_mut().for_each(|merge| merge.seeds.sort_unstable());
        prop_assert_eq!(&found, &expected);
        if let Ok(merge) = found {
            prop_assert!(merge.inputs.contains(&table.number));
            prop_assert_eq!(merge.output_level, table.level);
        }
    }

    #[test]
    fn every_candidate_is_a_merge_of_a_table_with_nothing_below_it_and_of_something_above(
        tables in trees(),
        max_mib in 1_u64..40,
        (from, to) in (0_u8..60, 0_u8..60),
    ) {
        let range = KeyRange { first: vec![from.min(to)], end: vec![from.max(to)] };
        let limits = MergeLimits { max_bytes: Bytes::from_mib(max_mib) };
        let merge_candidates = merge_candidates(&Tree::new(&tables), &range, &limits);
        let meet = |a: &Table, b: &Table| a.first <= b.last && b.first <= a.last;
        let is_lowest = |table: &Table| table.level > 0 && !tables.iter().any(|other| other.level > table.level && meet(other, table));
        let (mut expected, mut free, mut too_large) = (BTreeMap::new(), tables.clone(), false);
        free.iter_mut().for_each(|table| table.is_busy = false);
        for base in tables.iter().filter(|table| is_lowest(table) && table.first < range.end && range.first <= table.last) {
            for level in 1..base.level {
                let seeds: Vec<_> = tables.iter().filter(|table| table.level == level && meet(table, base)).map(|table| table.number).collect();
                if let Some(inputs) = naive(&free, &seeds, base.level).filter(|inputs| !inputs.is_empty()) {
                    let of = |count: fn(&Table) -> u64| tables.iter().filter(|table| inputs.contains(&table.number)).map(count).sum::<u64>();
                    if of(|table| table.bytes.0) <= limits.max_bytes.0 {
                        let bases = || tables.iter().filter(|table| inputs.contains(&table.number) && table.level == base.level);
                        let span = (bases().map(|table| &table.first).min(), bases().map(|table| [&table.last[..], &[0]].concat()).max());
                        expected.insert(
                            inputs.clone(),
                            (base.level, span.0.cloned(), span.1, of(|table| table.entries), of(|table| u64::from(table.is_busy)) > 0),
                        );
                    } else {
                        too_large = true;
                    }
                }
            }
        }
        let Ok(found) = merge_candidates else {
            prop_assert_eq!(merge_candidates, Err(if too_large { Why::TooLarge } else { Why::NoDuplicates }));
            prop_assert!(expected.is_empty());
            return Ok(());
        };
        let count = found.len();
        let found: BTreeMap<_, _> = found.into_iter().map(|candidate| {
            let inputs = candidate.merge.inputs.iter().copied().collect::<BTreeSet<_>>();
            (inputs, (candidate.merge.output_level, Some(candidate.span.first), Some(candidate.span.end), candidate.merge.entries, candidate.is_busy))
        }).collect();
        prop_assert_eq!(count, found.len(), "one of them twice");
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn ranges_hold_the_keys_that_were_added_and_not_removed(
        steps in prop::collection::vec((prop::bool::weighted(0.7), 0_u16..1000, 0_u16..20), 0..300),
    ) {
        let mut ranges = Ranges::default();
        // Key by key.
        let mut expected = [false; 1100];
        let key = |number: usize| (number as u16).to_be_bytes().to_vec();
        let runs = |keys: &[bool]| -> Vec<(usize, usize)> {
            let edge = |at: usize| at == 0 || !keys[at - 1];
            let firsts = (0..keys.len()).filter(|at| keys[*at] && edge(*at));
            firsts.map(|first| (first, first + keys[first..].iter().take_while(|is_in| **is_in).count())).collect()
        };
        for (adds, first, width) in steps {
            let (first, end) = (usize::from(first), usize::from(first + width));
            expected[first..end].fill(adds);
            let range = KeyRange { first: key(first), end: key(end) };
            if adds { ranges.add(range) } else { ranges.remove(&range) }
            let mut left = runs(&expected);
            if left.len() > 64 {
                // Two become one, and not those between which it was removed.
                let at = if !adds && left[0].1 == first { left.len() - 2 } else { 0 };
                expected[left[at].1..left[at + 1].0].fill(true);
                left = runs(&expected);
                prop_assert!(adds || end == first || !expected[first..end].iter().any(|is_in| *is_in));
            }
            let found: Vec<_> = ranges.iter().map(|range| (range.first, range.end)).collect();
            prop_assert_eq!(found, left.iter().map(|(first, end)| (key(*first), key(*end))).collect::<Vec<_>>());
            prop_assert_eq!(ranges.is_empty(), left.is_empty());
            for (first, end) in [(first, end), (first.saturating_sub(1), end), (first, end + 1), (end, end + 30)] {
                let covers = ranges.covers(&KeyRange { first: key(first), end: key(end) });
                prop_assert!(first == end || covers == expected[first..end].iter().all(|is_in| *is_in));
            }
        }
    }

    #[test]
    fn candidates_that_are_merged_again_and_again_leave_nothing_above_anything(mut tables in trees()) {
        tables.iter_mut().for_each(|table| table.is_busy = false);
        tables.retain(|table| table.level > 0);
        let (limits, all) = (MergeLimits { max_bytes: Bytes::from_mib(1000) }, KeyRange { first: vec![], end: vec![255] });
        for _ in 0..50 {
            let Ok(found) = merge_candidates(&Tree::new(&tables), &all, &limits) else { break };
            let MergeCandidate { merge, .. } = found[0].clone();
            // One table in the place of all.
            let inputs: Vec<_> = tables.extract_if(.., |table| merge.inputs.contains(&table.number)).collect();
            tables.push(Table {
                number: inputs[0].number,
                level: merge.output_level,
                first: inputs.iter().map(|table| table.first.clone()).min().unwrap(),
                last: inputs.iter().map(|table| table.last.clone()).max().unwrap(),
                bytes: Bytes(1),
                entries: 1,
                is_busy: false,
            });
        }
        let deepest = |table: &Table| tables.iter().any(|lower| lower.level > table.level && lower.first <= table.last && table.first <= lower.last);
        prop_assert!(!tables.iter().any(deepest), "{:?}", tables);
    }
}
