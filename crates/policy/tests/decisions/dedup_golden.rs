//! Duplicates, situation by situation, with numbers worked by hand.
use ecotone_policy::dedup::back_off::BackOff;
use ecotone_policy::dedup::decide::{Verdict, Why, decide_triggered, is_worth, pays};
use ecotone_policy::dedup::estimate::{Estimate, Estimator, Filtered, Sampled, TableSketch, shadowed_within};
use ecotone_policy::dedup::filter::{FilterView, build};
use ecotone_policy::dedup::forecast::{FlushRate, Forbidden, MergeTime, Pressure, SpaceGrowth, deadline, may_run};
use ecotone_policy::dedup::ordered::OrderedHashes;
use ecotone_policy::dedup::plan::{Merge, MergeLimits, Table, Unfit, below, closure, merges};
use ecotone_policy::dedup::{DedupParameters, DedupThreshold};
use ecotone_policy::duplicates::KeySample;
use ecotone_types::units::{Bytes, BytesPerSecond, Seconds, TablesPerSecond, Time};

fn threshold(ratio: f64) -> DedupThreshold {
    DedupThreshold::try_from(ratio).unwrap()
}

fn put(key: u64, bytes: u32, sequence: u64) -> KeySample {
    KeySample { hash: key * 64, bytes: Some(bytes), segment: None, sequence }
}

fn delete(key: u64, sequence: u64) -> KeySample {
    KeySample { hash: key * 64, bytes: None, segment: None, sequence }
}

fn sketch(entries: u64, samples: &[KeySample]) -> TableSketch<'_> {
    TableSketch { entries, first: b"a", last: b"z", samples, hashes: None, filter: None }
}

fn estimate(total_keys: u64, sampled_duplicates: u64) -> Estimate {
    Estimate {
        total_keys,
        duplicate_keys: sampled_duplicates * 64,
        sampled_duplicates,
        one_in: 64,
        ..Estimate::default()
    }
}

/// A table whose name says all: `1 L2 c-f 4` is table 1 in L2 with the keys c to f and 4 MiB; `!`
/// at the end: it is being compacted.
fn table(text: &str) -> Table {
    let words: Vec<_> = text.split_whitespace().collect();
    let (first, last) = words[2].split_once('-').unwrap();
    let mib: u64 = words.get(3).map_or(1, |mib| mib.parse().unwrap());
    Table {
        number: words[0].parse().unwrap(),
        level: words[1][1..].parse().unwrap(),
        first: first.into(),
        last: last.into(),
        bytes: Bytes::from_mib(mib),
        entries: mib * 1000,
        is_busy: words.get(4) == Some(&"!"),
    }
}

fn tables(texts: &[&str]) -> Vec<Table> {
    texts.iter().map(|text| table(text)).collect()
}

// What to count, and whether it is worth it.

#[test]
fn two_million_entries_for_forty_five_thousand_stale_ones_are_worth_it_at_50_and_not_at_40() {
    // 170,000 keys were written above 2,000,000; 703 of the sampled ones are there, too: 44,992
    // keys, 2,170,000 / 44,992 = 48.2.
    let above: Vec<_> = (0..2656).map(|key| put(key, 10, 9)).collect();
    let lower: Vec<_> = (2656 - 703..2656 - 703 + 31_250).map(|key| put(key, 10, 1)).collect();
    let counted = Sampled { one_in: 64 }.count(&[sketch(170_000, &above)], &[sketch(2_000_000, &lower)]);
    assert_eq!((counted.total_keys, counted.duplicate_keys), (2_170_000, 44_992));
    assert!((counted.ratio().unwrap() - 48.23).abs() < 0.01, "{:?}", counted.ratio());
    let parameters = DedupParameters::default();
    assert_eq!(is_worth(&counted, threshold(50.0), &parameters), Verdict::Extend);
    assert_eq!(is_worth(&counted, threshold(40.0), &parameters), Verdict::Leave(Why::NotProfitable));
    // The threshold itself is within.
    assert_eq!(is_worth(&estimate(64_000, 100), threshold(10.0), &parameters), Verdict::Extend);
    assert_eq!(is_worth(&estimate(64_001, 100), threshold(10.0), &parameters), Verdict::Leave(Why::NotProfitable));
}

#[test]
fn without_duplicates_there_is_no_ratio_and_nothing_to_do() {
    let none = estimate(2_170_000, 0);
    assert_eq!((none.ratio(), none.relative_error()), (None, None));
    assert_eq!(is_worth(&none, threshold(100.0), &DedupParameters::default()), Verdict::Leave(Why::NoDuplicates));
}

#[test]
fn an_estimate_that_rests_on_too_little_is_left() {
    let parameters = DedupParameters::default();
    assert_eq!(is_worth(&estimate(5_000, 43), threshold(50.0), &parameters), Verdict::Leave(Why::Uncertain));
    assert_eq!(is_worth(&estimate(5_000, 44), threshold(50.0), &parameters), Verdict::Extend);
    // Of 1000 duplicates 200,000 false positives taken away: wrong by half.
    let noisy = Estimate { false_positives: 200_000.0, one_in: 1, ..estimate(5_000, 1000) };
    assert!((noisy.relative_error().unwrap() - 0.447).abs() < 0.001);
    assert_eq!(is_worth(&noisy, threshold(50.0), &parameters), Verdict::Leave(Why::Uncertain));
    let half_known = Estimate { unknown_keys: 501, ..estimate(5_000, 44) };
    assert_eq!(is_worth(&half_known, threshold(50.0), &parameters), Verdict::Leave(Why::Unknown));
}

#[test]
fn the_error_is_that_of_the_number_of_samples() {
    // Duplicates and error in percent: sqrt(63/64 / sampled).
    for (sampled, percent) in [(44, 15.0), (175, 7.5), (394, 5.0), (1_560, 2.5)] {
        let error = estimate(1_000_000, sampled).relative_error().unwrap() * 100.0;
        assert!((error - percent).abs() < 0.05, "{sampled}: {error}");
    }
    let all = Estimate { one_in: 1, ..estimate(1000, 10) };
    assert_eq!(all.relative_error(), Some(0.0), "nothing was left to chance");
}

#[test]
fn three_levels_by_both_counts() {
    let l1 = [put(1, 1, 9), put(2, 2, 9), put(3, 3, 9)];
    let l2 = [put(2, 20, 5), put(3, 30, 5), put(4, 40, 5)];
    let l3 = [put(1, 100, 0), put(3, 300, 0), put(4, 400, 0), put(5, 500, 0)];
    let (upper, lower) = ([sketch(192, &l1)], [sketch(192, &l2), sketch(256, &l3)]);
    // Keys 2 and 3 in L2, 1 and 3 in L3: key 3 counts twice. Key 4 is not among those written.
    let reached = Sampled { one_in: 64 }.count(&upper, &lower);
    assert_eq!((reached.total_keys, reached.sampled_duplicates, reached.duplicate_keys), (640, 4, 256));
    assert_eq!(reached.ratio(), Some(2.5));
    // A merge of all three frees the older version of key 4 as well.
    let range = shadowed_within(&[upper[0], lower[0], lower[1]], 64);
    assert_eq!((range.total_keys, range.sampled_duplicates, range.duplicate_keys), (640, 5, 320));
}

#[test]
fn deletions_shadow_what_is_below_them() {
    let l1 = [delete(1, 9), delete(2, 9)];
    let l2 = [delete(1, 5), put(2, 20, 5)];
    let l3 = [put(1, 100, 0), put(2, 200, 0)];
    let all = [sketch(2, &l1), sketch(2, &l2), sketch(2, &l3)];
    for count in [Sampled { one_in: 64 }.count(&all[..1], &all[1..]), shadowed_within(&all, 64)] {
        assert_eq!(count.sampled_duplicates, 4);
    }
}

#[test]
fn entries_that_are_not_known_are_told_from_samples_and_tables_without_samples_are_named() {
    let samples = [put(1, 1, 1), put(2, 1, 1)];
    let count = Sampled { one_in: 64 }.count(&[sketch(0, &samples)], &[sketch(1_000_000, &[])]);
    assert_eq!((count.total_keys, count.unknown_keys), (1_000_128, 1_000_000));
    // One that is small may well have none.
    assert_eq!(Sampled { one_in: 64 }.count(&[], &[sketch(100, &[])]).unknown_keys, 0);
}

// A hash in which nothing is to be seen.
fn hash(key: u64) -> u64 {
    let mut mixed = key.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// So many keys from k00000 on.
fn ordered(keys: u64) -> OrderedHashes {
    let mut hashes = OrderedHashes::default();
    (0..keys).for_each(|key| hashes.push(format!("k{key:05}").as_bytes(), hash(key)));
    hashes
}

#[test]
fn a_filter_is_asked_for_the_keys_of_its_table_only() {
    // 20,000 keys above two tables of a level, of which each holds 500 of them.
    let above = ordered(20_000);
    let filters = [0_u64, 10_000].map(|from| {
        let others = (from + 1) * 1_000_000;
        build(&(from..from + 500).chain(others..others + 39_500).map(hash).collect::<Vec<_>>(), 10.5)
    });
    let ranges: [[&[u8]; 2]; 2] = [[b"k00000", b"k09999"], [b"k10000", b"k19999"]];
    let lower = [0, 1].map(|at: usize| TableSketch {
        first: ranges[at][0],
        last: ranges[at][1],
        filter: Some(FilterView::parse(&filters[at]).unwrap()),
        ..sketch(40_000, &[])
    });
    let count = Filtered { one_in: 64 }.count(&[TableSketch { hashes: Some(&above), ..sketch(20_000, &[]) }], &lower);
    // One in a hundred of 20,000 questions, and not of 40,000.
    assert!((150.0..250.0).contains(&count.false_positives), "{}", count.false_positives);
    assert!((count.duplicate_keys as f64 - 1000.0).abs() < 57.0, "{}", count.duplicate_keys);
}

#[test]
fn filters_find_as_many_as_there_are_once_the_false_ones_are_taken_away() {
    // 20,000 keys above; of them 600, 400 and 0 in three lower tables of 40,000 keys each: 1000
    // duplicates, 5 %.
    let above = ordered(20_000);
    let lower = [0_u64, 600, 1000].map(|from| {
        let shared = [600, 400, 0][[0, 600, 1000].iter().position(|at| *at == from).unwrap()];
        let others = (from + 1) * 1_000_000;
        build(&(from..from + shared).chain(others..others + 40_000 - shared).map(hash).collect::<Vec<_>>(), 10.5)
    });
    let value = [put(1, 400, 1)];
    let lower = [0, 1, 2].map(|at: usize| TableSketch {
        filter: Some(FilterView::parse(&lower[at]).unwrap()),
        ..sketch(40_000, &value)
    });
    let upper = TableSketch { hashes: Some(&above), ..sketch(20_000, &[]) };
    let count = Filtered { one_in: 64 }.count(&[upper], &lower);
    assert_eq!((count.total_keys, count.one_in, count.unknown_keys), (140_000, 1, 0));
    // About 600 false positives, of which the deviation is 25.
    assert!((500.0..700.0).contains(&count.false_positives), "{}", count.false_positives);
    assert!((count.duplicate_keys as f64 - 1000.0).abs() < 75.0, "{}", count.duplicate_keys);
    // Where the keys do not meet, nothing is asked.
    let elsewhere = TableSketch { first: b"{", last: b"}", ..upper };
    assert_eq!(Filtered { one_in: 64 }.count(&[elsewhere], &lower).duplicate_keys, 0);
    // With neither filter nor samples a table is unknown, not free of duplicates.
    let without = TableSketch { filter: None, samples: &[], ..lower[0] };
    assert_eq!(Filtered { one_in: 64 }.count(&[upper], &[without]).unknown_keys, 60_000);
}

#[test]
fn filters_are_asked_for_the_sampled_keys_where_the_others_are_forgotten() {
    let samples: Vec<_> = (0..2_000_000)
        .map(hash)
        .filter(|hash| hash % 64 == 0)
        .map(|hash| KeySample { hash, bytes: Some(1), segment: None, sequence: 1 })
        .collect();
    let filter = build(&(1_000_000..2_000_000).map(hash).collect::<Vec<_>>(), 10.5);
    let lower = TableSketch { filter: Some(FilterView::parse(&filter).unwrap()), ..sketch(1_000_000, &samples) };
    let count = Filtered { one_in: 64 }.count(&[sketch(2_000_000, &samples)], &[lower]);
    assert_eq!(count.one_in, 64);
    // 15,625 are sampled of the million: four deviations are 3.2 %.
    assert!((count.duplicate_keys as f64 / 1e6 - 1.0).abs() < 0.032, "{}", count.duplicate_keys);

    // Where one of the lower tables has none, samples are compared.
    let (upper, lower) = ([sketch(2_000_000, &samples)], [lower, TableSketch { filter: None, ..lower }]);
    let count = Filtered { one_in: 64 }.count(&upper, &lower);
    assert_eq!(count, Sampled { one_in: 64 }.count(&upper, &lower));
    assert!(count.unknown_keys == 0 && count.duplicate_keys > 3_000_000, "{count:?}");
}

// Which tables.

#[track_caller]
fn takes(tables: &[Table], seeds: &[u64], output_level: u32, expected: &[u64]) -> Merge {
    let merge = closure(tables, seeds, output_level).unwrap();
    assert_eq!(merge.inputs, expected);
    merge
}

#[test]
fn a_shared_key_pulls_the_neighbour_of_a_seed() {
    let tables = tables(&["1 L2 a-d", "2 L2 d-f", "3 L2 f-f", "4 L2 g-k", "5 L3 e-h", "6 L3 i-z"]);
    // 1 and 2 share d, 2 and 3 share f; so the range ends at f, which lies in 5.
    let merge = takes(&tables, &[1], 3, &[1, 2, 3, 5]);
    assert_eq!((merge.bytes, merge.entries), (Bytes::from_mib(4), 4000));
    takes(&tables, &[3], 3, &[1, 2, 3, 5]);
    takes(&tables, &[4], 3, &[4, 5, 6]);
}

#[test]
fn what_is_taken_of_a_level_widens_the_range_below_it() {
    let tables = tables(&["1 L1 c-e", "2 L2 a-d", "3 L2 e-h", "4 L3 a-b", "5 L3 g-i", "6 L3 j-z"]);
    takes(&tables, &[1], 3, &[1, 2, 3, 4, 5]);
    takes(&tables, &[1], 2, &[1, 2, 3]);
    takes(&tables, &[1], 1, &[1]);
}

#[test]
fn what_is_taken_below_pulls_nothing_above() {
    let tables = tables(&["1 L1 a-c", "2 L1 d-f", "3 L2 b-e", "9 L0 a-z"]);
    takes(&tables, &[1], 2, &[1, 3]);
    // Though a neighbour below is pulled by a shared key, and widens what is taken below that.
    let tables = self::tables(&["1 L1 a-c", "3 L2 b-e", "4 L2 e-j", "5 L3 i-k", "6 L3 l-m"]);
    takes(&tables, &[1], 3, &[1, 3, 4, 5]);
}

#[test]
fn what_lies_between_two_seeds_comes_along() {
    let tables = tables(&["1 L1 a-b", "2 L1 c-d", "3 L1 e-f", "4 L1 g-h", "5 L2 d-d", "6 L2 g-g"]);
    takes(&tables, &[3, 1], 2, &[1, 2, 3, 5]);
    // Seeds of two levels: all of the lower one between them.
    let tables = self::tables(&["1 L1 a-b", "2 L2 c-d", "3 L2 e-f", "4 L2 g-h"]);
    takes(&tables, &[1, 3], 2, &[1, 2, 3]);
}

#[test]
fn a_merge_that_rocksdb_would_refuse_is_none() {
    let tables = tables(&["1 L1 a-b", "2 L2 a-d", "3 L3 d-e 1 !", "4 L0 a-z"]);
    assert_eq!(closure(&tables, &[1], 3), Err(Unfit::Busy(3)));
    takes(&tables, &[1], 2, &[1, 2]);
    assert_eq!(closure(&tables, &[1, 7], 3), Err(Unfit::Gone(7)));
    assert_eq!(closure(&tables, &[4], 3), Err(Unfit::InL0(4)));
    assert_eq!(closure(&tables, &[3], 2), Err(Unfit::BelowOutput(3)));
    assert_eq!(closure(&tables, &[], 2), Err(Unfit::NoSeeds));
}

#[test]
fn a_check_looks_at_what_overlaps_below() {
    let tables = tables(&["1 L1 a-c", "2 L2 b-d", "3 L2 e-f", "4 L3 a-a", "5 L3 d-z", "6 L1 d-z", "7 L0 a-z"]);
    let numbers = |reached: &[u64]| below(&tables, reached).iter().map(|table| table.number).collect::<Vec<_>>();
    assert_eq!(numbers(&[1]), [2, 4]);
    assert_eq!(numbers(&[3]), [5]);
    assert_eq!(numbers(&[4]), [0_u64; 0]);
    assert_eq!(numbers(&[99]), [0_u64; 0]);
}

#[test]
fn a_table_that_has_moved_further_down_shadows_nothing_of_what_lies_below_the_others() {
    // 1 and 2 were written to L1, and 2 met nothing on its way to L2.
    let tables = tables(&["1 L1 a-c", "2 L2 d-f", "3 L2 a-b", "4 L3 e-e", "5 L3 g-z"]);
    let numbers: Vec<_> = below(&tables, &[1, 2]).iter().map(|table| table.number).collect();
    assert_eq!(numbers, [3, 4]);
    // One of its own tables is not what a compaction is to find below it, though they share a key.
    let tables = self::tables(&["1 L1 a-d", "2 L2 d-f", "3 L3 d-d"]);
    let numbers: Vec<_> = below(&tables, &[1, 2]).iter().map(|table| table.number).collect();
    assert_eq!(numbers, [3]);
}

/// L1 one table over all keys, L2 four, L3 sixteen, 4 MiB each: 84 MiB.
fn pyramid() -> Vec<Table> {
    let mut all = vec![table("1 L1 a-p 4")];
    for (at, (first, last)) in [('a', 'd'), ('e', 'h'), ('i', 'l'), ('m', 'p')].iter().enumerate() {
        all.push(table(&format!("{} L2 {first}-{last} 4", 20 + at)));
    }
    for (at, key) in ('a'..='p').enumerate() {
        all.push(table(&format!("{} L3 {key}-{key} 4", 30 + at)));
    }
    all
}

fn plan(tables: &[Table], seeds: &[u64], output_level: u32, max_mib: u64) -> Vec<(Vec<u64>, u64)> {
    let limits = MergeLimits { max_bytes: Bytes::from_mib(max_mib) };
    let plan = merges(tables, seeds, output_level, &limits).into_iter();
    plan.map(|merge| (merge.seeds, merge.bytes.0 >> 20)).collect()
}

#[test]
fn what_is_too_large_for_one_merge_is_not_merged() {
    let tables = pyramid();
    assert_eq!(plan(&tables, &[1], 2, 1000), [(vec![1], 20)]);
    assert_eq!(plan(&tables, &[1], 2, 20), [(vec![1], 20)]);
    assert_eq!(plan(&tables, &[1], 2, 19), []);
}

#[test]
fn a_merge_takes_as_many_tables_as_fit() {
    // Five tables of 4 MiB in L2, over three or four of L3 each.
    let mut tables = pyramid().split_off(5);
    for text in ["50 L2 a-c 4", "51 L2 d-f 4", "52 L2 g-i 4", "53 L2 j-l 4", "54 L2 m-p 4"] {
        tables.push(table(text));
    }
    let seeds = [54, 53, 52, 51, 50];
    // Each takes 16 MiB, the last 20: 64 are four, and the last one for itself.
    assert_eq!(plan(&tables, &seeds, 3, 64), [(vec![50, 51, 52, 53], 64), (vec![54], 20)]);
    assert_eq!(plan(&tables, &seeds, 3, 40), [(vec![50, 51], 32), (vec![52, 53], 32), (vec![54], 20)]);
    assert_eq!(plan(&tables, &seeds, 3, 84), [(seeds.iter().rev().copied().collect(), 84)]);
}

#[test]
fn a_merge_waits_for_busy_tables_and_for_the_one_before_it() {
    let tables = tables(&["1 L1 a-c", "2 L1 d-f", "3 L1 g-i", "5 L2 a-d", "6 L2 e-f 1 !", "7 L2 g-i"]);
    // 2 would take 6, which is being compacted.
    assert_eq!(plan(&tables, &[1, 2, 3], 2, 9), [(vec![1], 2), (vec![3], 2)]);
    // 1 and 2 share 5; together they are too large, so 2 waits for the next plan, and 3 need not.
    let tables = self::tables(&["1 L1 a-c", "2 L1 d-f", "3 L1 g-i", "5 L2 a-d 2", "6 L2 e-f", "7 L2 g-i"]);
    assert_eq!(plan(&tables, &[1, 2, 3], 2, 4), [(vec![1], 3), (vec![3], 2)]);
}

#[test]
fn no_merge_makes_the_tree_deeper_or_takes_l0() {
    let tables = tables(&["1 L1 a-c", "2 L2 x-z", "3 L0 a-z", "4 L1 e-f", "5 L3 e-e"]);
    // Nothing below 1, and of 4 only in L3.
    assert_eq!(plan(&tables, &[1, 2, 3, 4, 99], 2, 100), []);
    assert_eq!(plan(&tables, &[1, 2, 3, 4, 99], 3, 100), [(vec![4], 2)]);
    assert_eq!(plan(&tables, &[1, 2, 3, 4, 99], 4, 100), []);
    // What is to be brought down is not there already, or below.
    assert_eq!(plan(&tables, &[2, 5], 2, 100), []);
}

#[test]
fn the_triggered_baseline_compares_each_level_with_the_next_one() {
    // L1 has 100 keys of which all are in L2 (200): ratio 3. L2 has none in L3.
    let tables = tables(&["1 L1 a-c", "2 L1 d-f", "3 L2 a-f", "4 L3 a-f"]);
    let (l1, l2, l3): (Vec<_>, Vec<_>, Vec<_>) = (
        (0..50).map(|key| put(key, 1, 9)).collect(),
        (0..200).map(|key| put(key, 1, 5)).collect(),
        (1000..1400).map(|key| put(key, 1, 0)).collect(),
    );
    let samples_of = |number| match number {
        1 | 2 => l1.as_slice(),
        3 => &l2,
        _ => &l3,
    };
    let mut tables = tables;
    tables.iter_mut().for_each(|table| table.entries = samples_of(table.number).len() as u64 * 64);
    let parameters = DedupParameters::default();
    let decide = |ratio| decide_triggered(&tables, samples_of, 64, threshold(ratio), &parameters);
    // (50 + 50 + 200) / 50 = 6.
    let merges = decide(6.0);
    assert_eq!(merges.len(), 1);
    assert_eq!((merges[0].inputs.as_slice(), merges[0].output_level), ([1, 2, 3].as_slice(), 2));
    assert_eq!(decide(5.9), []);
    // The next one that there is: between them L3 has nothing.
    let sunk: Vec<_> =
        tables.iter().map(|table| Table { level: table.level + u32::from(table.level > 1), ..table.clone() }).collect();
    let merges = decide_triggered(&sunk, samples_of, 64, threshold(6.0), &parameters);
    assert_eq!(merges.len(), 1);
    assert_eq!((merges[0].inputs.as_slice(), merges[0].output_level), ([1, 2, 3].as_slice(), 3));
}

// When.

const CALM: Pressure = Pressure {
    l0_tables: 14,
    l0_compaction_trigger: 15,
    l0_slowdown_trigger: 22,
    is_slowed: false,
    pending_compaction_bytes: Bytes(0),
    pending_slowdown_bytes: Bytes(1000),
};

#[test]
fn a_merge_ends_before_the_stall_or_does_not_begin() {
    // 14 tables and 2.5 more each second, 20 are too many: the stall comes after 2.4 s. 1.5 s may
    // last 2.25, 1.7 s 2.55.
    let parameters = DedupParameters::default();
    let rate = Some(TablesPerSecond(2.5));
    assert_eq!(may_run(&CALM, rate, Seconds(1.5), &parameters), Ok(()));
    assert_eq!(may_run(&CALM, rate, Seconds(1.7), &parameters), Err(Forbidden::WouldStall));
    assert_eq!(may_run(&CALM, rate, Seconds(1.6), &parameters), Err(Forbidden::WouldStall), "reaching it is a stall");
    assert_eq!(may_run(&CALM, Some(TablesPerSecond::ZERO), Seconds(1e9), &parameters), Ok(()));
    assert_eq!(may_run(&CALM, None, Seconds(0.1), &parameters), Err(Forbidden::RateUnknown));
}

#[test]
fn nothing_runs_while_rocksdb_is_throttled() {
    let parameters = DedupParameters::default();
    let ask = |pressure| may_run(&pressure, Some(TablesPerSecond::ZERO), Seconds(0.1), &parameters);
    assert_eq!(ask(Pressure { is_slowed: true, ..CALM }), Err(Forbidden::Slowed));
    assert_eq!(ask(Pressure { pending_compaction_bytes: Bytes(500), ..CALM }), Err(Forbidden::PendingBytes));
    assert_eq!(ask(Pressure { pending_compaction_bytes: Bytes(499), ..CALM }), Ok(()));
    let unbounded = Pressure { pending_compaction_bytes: Bytes(500), pending_slowdown_bytes: Bytes(0), ..CALM };
    assert_eq!(ask(unbounded), Ok(()));
    // The usual triggers, 4 and 20: pressed from 8 on. With 10 and 20: from 10 + 10 / 4 = 12 on,
    // not from 20 on.
    let usual = Pressure { l0_compaction_trigger: 4, l0_slowdown_trigger: 20, ..CALM };
    assert_eq!(ask(Pressure { l0_tables: 7, ..usual }), Ok(()));
    assert_eq!(ask(Pressure { l0_tables: 8, ..usual }), Err(Forbidden::L0Backlog));
    let late = Pressure { l0_compaction_trigger: 10, ..usual };
    assert_eq!(ask(Pressure { l0_tables: 11, ..late }), Ok(()));
    assert_eq!(ask(Pressure { l0_tables: 12, ..late }), Err(Forbidden::L0Backlog));
}

#[test]
fn a_store_that_slows_writers_immediately_lets_nothing_run() {
    let least = Pressure { l0_tables: 0, l0_compaction_trigger: 1, l0_slowdown_trigger: 1, ..CALM };
    let parameters = DedupParameters::default();
    assert_eq!(may_run(&least, Some(TablesPerSecond::ZERO), Seconds(0.1), &parameters), Err(Forbidden::WouldStall));
}

#[test]
fn the_rate_of_flushes_follows_within_seconds() {
    let mut rate = FlushRate::new();
    let at = Time::from_seconds;
    rate.observe(at(0.0), 10);
    assert_eq!(rate.tables_per_s(), None);
    rate.observe(at(0.5), 11);
    assert_eq!(rate.tables_per_s(), None, "half a second is no sample");
    rate.observe(at(1.0), 12);
    assert_eq!(rate.tables_per_s(), Some(TablesPerSecond(2.0)));
    rate.observe(at(2.0), 12);
    assert_eq!(rate.tables_per_s(), Some(TablesPerSecond(1.0)));
    // Two seconds with 4 tables a second: 1 / 4 + 4 x 3 / 4.
    rate.observe(at(4.0), 20);
    assert_eq!(rate.tables_per_s(), Some(TablesPerSecond(3.25)));
    rate.observe(at(3.0), 21);
    assert_eq!(rate.tables_per_s(), Some(TablesPerSecond(3.25)), "a clock that steps back");

    // Ten minutes of nothing, and then a burst: what it is like is known a second later, and not as
    // an average over all of that.
    rate.observe(at(604.0), 22);
    assert_eq!(rate.tables_per_s(), None);
    rate.observe(at(605.0), 27);
    assert_eq!(rate.tables_per_s(), Some(TablesPerSecond(5.0)));
}

#[test]
fn one_merge_need_not_be_as_sure_as_the_whole_extension() {
    let parameters = DedupParameters::default();
    // 1,000 entries, of which 2 x 64 shadow: large values, or a part of the extension.
    let small = estimate(1_000, 2);
    assert_eq!(is_worth(&small, threshold(10.0), &parameters), Verdict::Leave(Why::Uncertain));
    assert_eq!(pays(&small, threshold(10.0)), Verdict::Extend);
    assert_eq!(pays(&small, threshold(7.0)), Verdict::Leave(Why::NotProfitable));
    assert_eq!(pays(&estimate(1_000, 0), threshold(10.0)), Verdict::Leave(Why::NoDuplicates));
    let half_known = Estimate { unknown_keys: 500, ..small };
    assert_eq!(pays(&half_known, threshold(10.0)), Verdict::Leave(Why::Unknown));
}

#[test]
fn the_time_of_merges_is_learned_and_bounds_their_bytes() {
    let parameters = DedupParameters::default();
    let mut time = MergeTime::default();
    assert!((time.predict(Bytes(50_000_000)).0 - 1.01).abs() < 1e-9);
    // 2.4 s are left, 1.6 of them with the margin: 0.01 and 79.5 MB at 50 MB/s.
    let most = |time: &MergeTime| time.max_bytes(&CALM, TablesPerSecond(2.5), &parameters).unwrap();
    assert!((most(&time).0 as f64 / 79.5e6 - 1.0).abs() < 1e-6, "{}", most(&time));
    for _ in 0..20 {
        time.learn(Bytes(20_000_000), Seconds(2.0));
        time.learn(Bytes(10_000_000), Seconds(1.0));
    }
    assert!((time.predict(Bytes(15_000_000)).0 / 1.5 - 1.0).abs() < 0.05, "{}", time.predict(Bytes(15_000_000)));
    assert!((most(&time).0 as f64 / 16e6 - 1.0).abs() < 0.05, "{}", most(&time));
    assert_eq!(time.max_bytes(&CALM, TablesPerSecond::ZERO, &parameters), None);
    let here = Pressure { l0_tables: 20, ..CALM };
    assert_eq!(time.max_bytes(&here, TablesPerSecond(1.0), &parameters), Some(Bytes(0)));
    time.learn(Bytes(1), Seconds(f64::NAN));
    assert!(time.predict(Bytes(15_000_000)).is_plausible());
}

/// Seconds of writes that never rest until a merge of 32 MiB may begin, after these were learned.
fn until_allowed(time: &mut MergeTime, max_seconds: u32) -> Option<u32> {
    let (parameters, input) = (DedupParameters::default(), TablesPerSecond(2.5));
    (0..max_seconds).find(|second| {
        let is_allowed = time.max_bytes(&CALM, input, &parameters).unwrap() >= Bytes::from_mib(32);
        time.forbids(Time::from_seconds(f64::from(*second)), &CALM, input, &parameters);
        is_allowed
    })
}

#[test]
fn merges_that_were_slow_once_are_tried_again_and_not_immediately() {
    // 32 MiB, foretold at 0.7 s; 1.6 s are left.
    let slow = |merges: u32| {
        let mut time = MergeTime::default();
        (0..merges).for_each(|_| time.learn(Bytes::from_mib(32), Seconds(60.0)));
        time
    };
    let once = until_allowed(&mut slow(1), 3600).expect("one slow merge is not the last one");
    assert!((120..900).contains(&once), "{once} s");
    let often = until_allowed(&mut slow(100), 3600).expect("nor are a hundred");
    assert!((once + 60..1800).contains(&often), "{once} and {often} s");
    // The next one says anew how long it takes.
    let mut time = slow(1);
    let begin = until_allowed(&mut time, 3600).unwrap();
    time.learn(Bytes::from_mib(32), Seconds(60.0));
    assert_eq!(until_allowed(&mut time, begin / 2), None);
}

#[test]
fn what_was_learned_of_merges_fades_only_while_it_is_what_forbids_them() {
    let (parameters, input) = (DedupParameters::default(), TablesPerSecond(2.5));
    let learned = |time: &MergeTime| time.predict(Bytes::from_mib(32)).0;
    let mut time = MergeTime::default();
    time.learn(Bytes::from_mib(32), Seconds(60.0));
    let before = learned(&time);
    // Level 0 has no place for any merge, and then there is time for every one.
    let full = Pressure { l0_tables: 20, ..CALM };
    for second in 0..600 {
        time.forbids(Time::from_seconds(f64::from(second)), &full, input, &parameters);
    }
    time.forbids(Time::from_seconds(1000.0), &CALM, TablesPerSecond::ZERO, &parameters);
    assert_eq!(learned(&time), before);
    // Two moments with nothing that waits between them are no time that it has forbidden anything.
    time.forbids(Time::from_seconds(2000.0), &CALM, input, &parameters);
    time.allows();
    time.forbids(Time::from_seconds(9000.0), &CALM, input, &parameters);
    assert_eq!(learned(&time), before);
    time.forbids(Time::from_seconds(9060.0), &CALM, input, &parameters);
    assert!(learned(&time) < before);
    // Faster than assumed: that is no reason to forget it.
    let mut fast = MergeTime::default();
    fast.learn(Bytes::from_mib(32), Seconds(0.1));
    let before = learned(&fast);
    for second in 0..600 {
        fast.forbids(Time::from_seconds(f64::from(second)), &CALM, input, &parameters);
    }
    assert_eq!(learned(&fast), before);
}

#[test]
fn space_that_runs_out_within_an_hour_is_a_deadline() {
    assert_eq!(deadline(Bytes(1000), BytesPerSecond(10.0)), Some(Seconds(100.0)));
    assert_eq!(deadline(Bytes(36_000), BytesPerSecond(10.0)), Some(Seconds(3600.0)));
    assert_eq!(deadline(Bytes(36_001), BytesPerSecond(10.0)), None);
    assert_eq!(deadline(Bytes(0), BytesPerSecond(10.0)), Some(Seconds(0.0)));
    for growth in [0.0, -5.0, f64::NAN] {
        assert_eq!(deadline(Bytes(0), BytesPerSecond(growth)), None, "{growth}");
    }
}

#[test]
fn the_growth_of_space_is_followed_slowly_and_net_of_what_is_freed() {
    let at = Time::from_seconds;
    let mut growth = SpaceGrowth::new();
    let near = |growth: &SpaceGrowth, expected: f64| (growth.bytes_per_s().0 - expected).abs() < 1e-6;
    growth.observe(at(0.0), Bytes(1_000_000));
    assert!(near(&growth, 0.0), "one look tells no growth");
    growth.observe(at(0.5), Bytes(0));
    assert!(near(&growth, 0.0), "half a second is no sample");
    // A minute with 1000 bytes a second: half of that. Another one: three quarters.
    growth.observe(at(60.0), Bytes(940_000));
    assert!(near(&growth, 500.0), "{growth:?}");
    growth.observe(at(120.0), Bytes(880_000));
    assert!(near(&growth, 750.0), "{growth:?}");
    growth.observe(at(60.0), Bytes(0));
    assert!(near(&growth, 750.0), "a clock that steps back");
    // What is freed counts against it, and a store that shrinks does not grow: 750 / 2 - 2000 / 2.
    growth.observe(at(180.0), Bytes(1_000_000));
    assert!(near(&growth, 0.0), "{growth:?}");
    growth.observe(at(240.0), Bytes(700_000));
    assert!(near(&growth, -625.0 / 2.0 + 2500.0), "what was freed before still counts: {growth:?}");

    // A compaction that takes 100 MB for two seconds of a store that does not grow.
    let mut growth = SpaceGrowth::new();
    for (second, free_space) in [(0.0, 9e9), (1.0, 8.95e9), (2.0, 8.9e9), (3.0, 9e9), (4.0, 9e9)] {
        growth.observe(at(second), Bytes(free_space as u64));
        assert_eq!(deadline(Bytes(9_000_000_000), growth.bytes_per_s()), None, "{second}: {growth:?}");
    }
}

/// What was expected of a merge.
fn merge(duplicate_keys: u64, sampled_duplicates: u64) -> Estimate {
    Estimate { duplicate_keys, sampled_duplicates, one_in: 64, ..Estimate::default() }
}

#[test]
fn merges_of_few_samples_are_judged_together() {
    let mut back_off = BackOff::new(&DedupParameters::default());
    let now = Time::from_seconds(100.0);
    // Under an old snapshot, of each a trickle is freed: 4 x 11 samples are as good as 44.
    for round in 0..2 {
        for _ in 0..3 {
            assert!(!back_off.observe(now, &merge(704, 11), 1));
        }
        assert!(back_off.observe(now, &merge(704, 11), 1));
        assert_eq!(back_off.remaining(now), Seconds([1.0, 2.0][round]));
    }
    // One of a few samples that finds more by chance ends no pause.
    assert!(!back_off.observe(now, &merge(64, 1), 640));
    assert_eq!(back_off.remaining(now), Seconds(2.0));
    // Together with what comes then it does.
    assert!(!back_off.observe(now, &merge(2752, 43), 2752));
    assert_eq!(back_off.remaining(now), Seconds::ZERO);
    // What was found before one that finds nothing counts no more.
    assert!(!back_off.observe(now, &merge(2752, 43), 2752));
    assert!(back_off.observe(now, &merge(64, 1), 0));
    assert!(!back_off.observe(now, &merge(64, 1), 64));
    assert_eq!(back_off.remaining(now), Seconds(1.0));
}

#[test]
fn merges_that_free_too_little_come_less_and_less_often() {
    let mut back_off = BackOff::new(&DedupParameters::default());
    let now = Time::from_seconds(100.0);
    assert_eq!(back_off.remaining(now), Seconds::ZERO);
    for pause in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 600.0, 600.0] {
        assert!(back_off.observe(now, &merge(1000, 44), 499), "the extension is dropped");
        assert_eq!(back_off.remaining(now), Seconds(pause));
    }
    assert_eq!(back_off.remaining(now + Seconds(585.0)), Seconds(15.0));
    assert_eq!(back_off.remaining(now + Seconds(601.0)), Seconds::ZERO);
    // Half of what was expected neither lengthens the pause nor ends it; four fifths do.
    assert!(!back_off.observe(now, &merge(1000, 44), 500));
    assert_eq!(back_off.remaining(now), Seconds(600.0));
    assert!(!back_off.observe(now, &merge(1000, 44), 800));
    assert_eq!(back_off.remaining(now), Seconds::ZERO);
    assert!(back_off.observe(now, &merge(1000, 1), 0));
    assert_eq!(back_off.remaining(now), Seconds(1.0), "it begins anew");
    back_off.failed(now);
    assert_eq!(back_off.remaining(now), Seconds(2.0));
}

#[test]
fn with_a_snapshot_held_there_are_few_merges() {
    // Each takes 0.1 s and frees nothing; how many begin in 30 s?
    let mut back_off = BackOff::new(&DedupParameters::default());
    let (mut now, mut begun) = (Time::from_seconds(0.0), 0);
    while now < Time::from_seconds(30.0) {
        begun += 1;
        now = now + Seconds(0.1);
        back_off.observe(now, &merge(10_000, 156), 0);
        now = now + back_off.remaining(now);
    }
    // At 0, 1.1, 3.2, 7.3 and 15.4 s.
    assert_eq!(begun, 5);
}
