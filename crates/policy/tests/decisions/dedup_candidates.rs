//! Which merge candidate is merged, situation by situation, with numbers worked by hand.
use std::cell::RefCell;

use ecotone_policy::dedup::DedupThreshold;
use ecotone_policy::dedup::candidates::{
    Allowance, Choice, CostedMerge, MergeCandidate, MergeCosts, choose, merge_candidates, worth_merging,
};
use ecotone_policy::dedup::decide::Why;
use ecotone_policy::dedup::estimate::{Estimate, TableSketch};
use ecotone_policy::dedup::plan::{KeyRange, Merge, MergeLimits, Table, Tree};
use ecotone_policy::duplicates::KeySample;
use ecotone_types::units::Bytes;

fn threshold(ratio: f64) -> DedupThreshold {
    DedupThreshold::try_from(ratio).unwrap()
}

fn table(number: u64, level: u32, keys: (&str, &str)) -> Table {
    Table {
        number,
        level,
        first: keys.0.into(),
        last: keys.1.into(),
        bytes: Bytes::from_mib(1),
        entries: 640,
        is_busy: false,
    }
}

/// With so many entries for each one freed, and so many MiB; its number is that of its only table.
fn costed(number: u64, ratio: u64, mib: u64) -> CostedMerge {
    let merge = Merge {
        seeds: vec![number],
        inputs: vec![number],
        output_level: 3,
        bytes: Bytes::from_mib(mib),
        entries: 64_000 * ratio,
    };
    let expected = Estimate {
        total_keys: 64_000 * ratio,
        duplicate_keys: 64_000,
        sampled_duplicates: 1000,
        one_in: 64,
        ..Estimate::default()
    };
    let span = KeyRange { first: vec![], end: vec![] };
    CostedMerge { candidate: MergeCandidate { merge, span, is_busy: false, is_at_bottom: true }, expected }
}

const PLENTY: Allowance = Allowance { free_space: Bytes(u64::MAX), time: Bytes(u64::MAX) };

fn chosen(worth: &[CostedMerge], allowance: Allowance) -> Choice<u64> {
    choose(worth.to_vec(), allowance).map(|costed| costed.candidate.merge.inputs[0])
}

#[test]
fn the_cheapest_is_merged_first_and_the_next_one_where_that_may_not_begin() {
    let worth = [costed(1, 5, 10), costed(2, 3, 40), costed(3, 4, 20)];
    assert_eq!(chosen(&worth, PLENTY), Choice::Merge(2));
    let mib = Bytes::from_mib;
    assert_eq!(chosen(&worth, Allowance { time: mib(39), ..PLENTY }), Choice::Merge(3));
    assert_eq!(chosen(&worth, Allowance { free_space: mib(19), ..PLENTY }), Choice::Merge(1));
    let mut busy = worth.clone();
    busy[1].candidate.is_busy = true;
    assert_eq!(chosen(&busy, PLENTY), Choice::Merge(3));
    // Where none may begin it is told what the cheapest waits for.
    assert_eq!(chosen(&worth, Allowance { time: mib(9), ..PLENTY }), Choice::NoTime);
    assert_eq!(chosen(&worth, Allowance { free_space: mib(9), time: mib(9) }), Choice::NoSpace);
    assert_eq!(chosen(&busy, Allowance { time: mib(9), ..PLENTY }), Choice::Busy);
    assert_eq!(chosen(&[], PLENTY), Choice::Nothing);
}

#[test]
fn the_reason_why_none_is_worth_it_is_that_of_the_nearest() {
    let of = |all: &[CostedMerge], ratio| worth_merging(all.to_vec(), threshold(ratio)).map(|worth| worth.len());
    let all = [costed(1, 5, 1), costed(2, 7, 1), costed(3, 6, 1)];
    assert_eq!(of(&all, 6.0), Ok(2), "the threshold itself is within");
    assert_eq!(of(&all, 4.0), Err(Why::NotProfitable));
    assert_eq!(of(&[], 6.0), Err(Why::NoDuplicates));
    let none = CostedMerge {
        expected: Estimate { duplicate_keys: 0, sampled_duplicates: 0, ..all[0].expected },
        ..all[0].clone()
    };
    let unknown = CostedMerge { expected: Estimate { unknown_keys: 64_000, ..all[0].expected }, ..all[0].clone() };
    assert_eq!(of(std::slice::from_ref(&none), 6.0), Err(Why::NoDuplicates));
    assert_eq!(of(&[none.clone(), unknown.clone()], 6.0), Err(Why::Unknown));
    assert_eq!(of(&[unknown, none, costed(4, 9, 1)], 6.0), Err(Why::NotProfitable));
}

/// L1 is written over a to d; L2 has a to b, and L3 all of it in four tables.
fn three_levels() -> Vec<Table> {
    let l3 = [("a", "a"), ("b", "b"), ("c", "c"), ("d", "d")];
    let mut tables = vec![table(1, 1, ("a", "d")), table(2, 2, ("a", "b"))];
    tables.extend((3..).zip(l3).map(|(number, keys)| table(number, 3, keys)));
    tables
}

#[test]
fn a_table_has_a_candidate_from_each_level_above_it() {
    let tables = three_levels();
    let of = |first: &str, end: &str, max_mib| {
        let range = KeyRange { first: first.into(), end: end.into() };
        let merge_candidates =
            merge_candidates(&Tree::new(&tables), &range, &MergeLimits { max_bytes: Bytes::from_mib(max_mib) });
        merge_candidates.map(|merge_candidates| {
            merge_candidates
                .into_iter()
                .map(|candidate| (candidate.merge.seeds, candidate.merge.inputs))
                .collect::<Vec<_>>()
        })
    };
    let (all, without_l1) = ((vec![1], vec![1, 2, 3, 4, 5, 6]), (vec![2], vec![2, 3, 4]));
    assert_eq!(of("a", "e", 10), Ok(vec![all.clone(), without_l1.clone()]), "each once, whoever's it is");
    assert_eq!(of("a", "e", 5), Ok(vec![without_l1]));
    assert_eq!(of("c", "d", 10), Ok(vec![all]), "the end is not in it");
    assert_eq!(of("c", "d", 5), Err(Why::TooLarge));
    assert_eq!(of("e", "z", 10), Err(Why::NoDuplicates));
}

#[test]
fn a_cost_is_asked_for_once_and_anew_when_the_tables_are_others() {
    let tables = three_levels();
    let range = KeyRange { first: "a".into(), end: "e".into() };
    let limits = MergeLimits { max_bytes: Bytes::from_mib(10) };
    let samples = |keys: std::ops::Range<u64>| -> Vec<_> {
        keys.map(|key| KeySample { hash: key * 64, bytes: Some(1), segment: None, sequence: 0 }).collect()
    };
    // L1 and L2 hold keys that L3 holds, the same five.
    let (upper, lower) = (samples(0..5), samples(0..10));
    let asked = RefCell::new(Vec::new());
    let sketch = |number| {
        asked.borrow_mut().push(number);
        let table = tables.iter().find(|table| table.number == number)?;
        let samples = match number {
            1 | 2 => &upper,
            3 => &lower,
            _ => return Some(table.sketch(&[])),
        };
        Some(TableSketch { entries: 640, ..table.sketch(samples) })
    };
    let mut costs = MergeCosts::default();
    let merge_candidates = merge_candidates(&Tree::new(&tables), &range, &limits).unwrap();
    let mut cost = |candidate: &MergeCandidate| costs.of(candidate, 64, sketch).sampled_duplicates;
    assert_eq!(merge_candidates.iter().map(&mut cost).collect::<Vec<_>>(), [10, 5]);
    assert_eq!(asked.borrow_mut().drain(..).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 2, 3, 4]);
    assert_eq!(merge_candidates.iter().map(&mut cost).collect::<Vec<_>>(), [10, 5]);
    assert_eq!(*asked.borrow(), [0_u64; 0]);
    // What was not known of its tables is known now.
    let mut known = merge_candidates[1].clone();
    known.merge.entries += 1;
    cost(&known);
    assert_eq!(asked.borrow_mut().drain(..).collect::<Vec<_>>(), [2, 3, 4]);
    // What nobody asks for between two calls is forgotten.
    costs.forget_unasked();
    costs.of(&merge_candidates[0], 64, sketch);
    costs.forget_unasked();
    assert_eq!(*asked.borrow(), [0_u64; 0]);
    costs.of(&merge_candidates[1], 64, sketch);
    assert_eq!(*asked.borrow(), [2, 3, 4]);
}

#[test]
fn deletions_go_with_what_they_delete_only_where_nothing_is_left_below_to_delete() {
    // Nothing lies below 2, but what 1 and 2 are merged with has 4 below it.
    let tables = [table(1, 1, ("a", "d")), table(2, 2, ("a", "b")), table(3, 2, ("c", "d")), table(4, 3, ("c", "d"))];
    let version = |key: u64, bytes, sequence| KeySample { hash: key * 64, bytes, segment: None, sequence };
    // Key 1 is deleted above 2, key 2 above 3 and 4, and key 3 is nowhere else. Key 4 was deleted
    // and written again.
    let samples = [
        vec![version(1, None, 9), version(2, None, 9), version(3, None, 9), version(4, Some(1), 9)],
        vec![version(1, Some(1), 5)],
        vec![version(2, Some(1), 5), version(4, None, 5)],
        vec![version(2, Some(1), 0), version(4, Some(1), 0)],
    ];
    let range = KeyRange { first: "a".into(), end: "e".into() };
    let limits = MergeLimits { max_bytes: Bytes::from_mib(10) };
    let merge_candidates = merge_candidates(&Tree::new(&tables), &range, &limits).unwrap();
    let mut costs = MergeCosts::default();
    let mut cost = |candidate: &MergeCandidate| {
        let sketch = |number: u64| Some(tables[number as usize - 1].sketch(&samples[number as usize - 1]));
        (candidate.merge.inputs.clone(), costs.of(candidate, 64, sketch).sampled_duplicates)
    };
    let costed: Vec<_> = merge_candidates.iter().map(&mut cost).collect();
    // The first keeps what deletes keys 1 to 3, of which it knows no better; the second keeps key 4
    // alone. Of the third 4 keeps key 2, and key 4 goes whole.
    assert_eq!(costed, [(vec![1, 2, 3], 3), (vec![1, 2, 3, 4], 8), (vec![3, 4], 3)]);
}
