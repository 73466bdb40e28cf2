//! The two ways of counting duplicates, side by side, on keys of which the truth is known: error,
//! time and bytes.
//!
//! `cargo test --release -p ecotone-policy --test decisions dedup_accuracy -- --nocapture` prints
//! the table that docs/performance.md has.

use std::time::Instant;

use ecotone_policy::dedup::estimate::{Estimator, Filtered, Sampled, TableSketch};
use ecotone_policy::dedup::filter::{DEFAULT_BITS_PER_KEY, FilterView, build};
use ecotone_policy::dedup::ordered::OrderedHashes;
use ecotone_policy::duplicates::{KeySample, SAMPLED_ONE_IN};

/// What a compaction has written, and what lies below it: two levels of equal tables, of which each
/// has a range of its own.
const WRITTEN: u64 = 100_000;
const BELOW: u64 = 1_600_000;
const LEVELS: u64 = 2;
const TABLES: u64 = 16;
const SEEDS: u64 = 5;

/// Of a sample in a table's property: hash, sequence, bytes, segment.
const SAMPLE_BYTES: f64 = 24.0;

/// A hash in which nothing is to be seen.
fn hash(key: u64, seed: u64) -> u64 {
    let mut mixed = key.wrapping_add(seed << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

fn samples(hashes: &[u64], sequence: u64) -> Vec<KeySample> {
    let sampled = hashes.iter().filter(|hash| hash.is_multiple_of(SAMPLED_ONE_IN));
    sampled.map(|hash| KeySample { hash: *hash, bytes: Some(100), segment: None, sequence }).collect()
}

/// The keys of a level below, rising: between each key that was written and the next one as many,
/// of which the first is that written one itself where the level shares it.
fn level(number: u64, shares: impl Fn(u64) -> bool) -> Vec<u64> {
    let (per_written, apart) = (BELOW / LEVELS / WRITTEN, BELOW / WRITTEN + 1);
    let between = |written: u64| {
        let own = (0..per_written).map(move |at| written * apart + 1 + at * LEVELS + number);
        let shared = shares(written).then_some(written * apart);
        let skipped = usize::from(shared.is_some());
        shared.into_iter().chain(own.skip(skipped))
    };
    (0..WRITTEN).flat_map(between).collect()
}

/// Errors of the estimates of a check by the truth, samples first, and seconds that each took.
fn errors(share: f64, seed: u64) -> ([f64; 2], [f64; 2]) {
    let stride = BELOW / WRITTEN + 1;
    let mut written = OrderedHashes::default();
    (0..WRITTEN).map(|key| key * stride).for_each(|key| written.push(&key.to_be_bytes(), hash(key, seed)));
    // Spread evenly over the keys, each in one of the levels.
    let shared_before = |written: u64| (written as f64 * share) as u64;
    let shared = shared_before(WRITTEN);
    let is_shared = |written: u64| shared_before(written + 1) > shared_before(written);
    let levels = (0..LEVELS).map(|number| level(number, |it| is_shared(it) && shared_before(it) % LEVELS == number));
    let tables: Vec<Vec<u64>> = levels
        .flat_map(|keys| keys.chunks((BELOW / TABLES) as usize).map(<[u64]>::to_vec).collect::<Vec<_>>())
        .collect();
    assert_eq!(tables.len() as u64, TABLES);
    let hashed: Vec<Vec<u64>> = tables.iter().map(|keys| keys.iter().map(|key| hash(*key, seed)).collect()).collect();
    let filters: Vec<_> = hashed.iter().map(|hashes| build(hashes, DEFAULT_BITS_PER_KEY)).collect();
    let ends: Vec<_> = tables.iter().map(|keys| [keys[0], keys[keys.len() - 1]].map(u64::to_be_bytes)).collect();
    let own = samples(written.all(), 9);
    let others: Vec<_> = hashed.iter().map(|hashes| samples(hashes, 1)).collect();
    let upper = [TableSketch {
        entries: WRITTEN,
        first: &0_u64.to_be_bytes(),
        last: &((WRITTEN - 1) * stride).to_be_bytes(),
        samples: &own,
        hashes: Some(&written),
        filter: None,
    }];
    let lower: Vec<_> = others
        .iter()
        .zip(&filters)
        .zip(&ends)
        .map(|((samples, filter), [first, last])| TableSketch {
            entries: BELOW / TABLES,
            first,
            last,
            samples,
            hashes: None,
            filter: Some(FilterView::parse(filter).unwrap()),
        })
        .collect();
    let one_in = SAMPLED_ONE_IN;
    let ways: [&dyn Estimator; 2] = [&Sampled { one_in }, &Filtered { one_in }];
    let counted = ways.map(|way| {
        let began = Instant::now();
        let estimate = way.count(&upper, &lower);
        (estimate.duplicate_keys as f64 / shared as f64 - 1.0, began.elapsed().as_secs_f64())
    });
    (counted.map(|it| it.0), counted.map(|it| it.1))
}

#[test]
fn samples_are_as_good_as_their_number_and_filters_nearly_exact() {
    println!("duplicates %, greatest error of {SEEDS} in %: samples, filters; ms a check: samples, filters");
    for share in [0.02, 0.05, 0.1, 0.2, 0.5] {
        let (mut greatest, mut times) = ([0.0_f64; 2], [0.0; 2]);
        for seed in 1..=SEEDS {
            let (errors, took) = errors(share, seed);
            for way in 0..2 {
                greatest[way] = greatest[way].max(errors[way].abs());
                times[way] += took[way] / SEEDS as f64;
            }
        }
        println!(
            "{:.0}: {:.1} {:.2}; {:.2} {:.2}",
            share * 100.0,
            greatest[0] * 100.0,
            greatest[1] * 100.0,
            times[0] * 1e3,
            times[1] * 1e3
        );
        let deviation = (SAMPLED_ONE_IN as f64 / (WRITTEN as f64 * share)).sqrt();
        assert!(greatest[0] < 4.0 * deviation, "{share}: {greatest:?}");
        assert!(share < 0.05 || greatest[1] < 0.05, "{share}: {greatest:?}");
        // False positives that are taken away by their known share leave their deviation.
        let left = (LEVELS as f64 * WRITTEN as f64 * 0.01).sqrt() / (WRITTEN as f64 * share);
        assert!(greatest[1] < 4.0 * left + 0.01, "{share}: {greatest:?}");
    }
    println!(
        "bytes of a key in tables: {:.2} and {:.2} more",
        SAMPLE_BYTES / SAMPLED_ONE_IN as f64,
        DEFAULT_BITS_PER_KEY / 8.0
    );
}
