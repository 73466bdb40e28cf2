use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::workload::OperationKind;

fn options(workload: Workload, keys: u64) -> WorkloadOptions {
    WorkloadOptions { workload, keys, ..WorkloadOptions::default() }
}

fn operations(options: &WorkloadOptions, thread: u32, count: usize) -> Vec<Operation> {
    let mut generator = Generator::new(options, thread);
    (0..count).map(|_| generator.next_operation()).collect()
}

/// The share of each kind among 200 000 operations, in per cent. A share of one half has a standard
/// deviation of 0.11.
fn shares(workload: Workload) -> BTreeMap<OperationKind, f64> {
    let mut shares = BTreeMap::new();
    let operations = operations(&options(workload, 1000), 0, 200_000);
    for operation in &operations {
        *shares.entry(operation.kind()).or_default() += 100.0 / operations.len() as f64;
    }
    shares
}

#[test]
fn every_workload_has_its_published_mix() {
    use OperationKind::*;
    let published: [(Workload, &[(OperationKind, f64)]); 12] = [
        (Workload::FillRandom, &[(Put, 100.0)]),
        (Workload::FillSeq, &[(Put, 100.0)]),
        (Workload::Overwrite, &[(Put, 100.0)]),
        (Workload::ReadRandom, &[(Get, 100.0)]),
        (Workload::SeekRandom, &[(Seek, 100.0)]),
        (Workload::MixGraph, &[(Put, 25.0), (Get, 50.0), (Seek, 25.0)]),
        (Workload::YcsbA, &[(Put, 50.0), (Get, 50.0)]),
        (Workload::YcsbB, &[(Put, 5.0), (Get, 95.0)]),
        (Workload::YcsbC, &[(Get, 100.0)]),
        (Workload::YcsbD, &[(Put, 5.0), (Get, 95.0)]),
        (Workload::YcsbE, &[(Put, 5.0), (Scan, 95.0)]),
        (Workload::YcsbF, &[(Get, 50.0), (ReadModifyWrite, 50.0)]),
    ];
    for (workload, mix) in published {
        let shares = shares(workload);
        assert_eq!(shares.keys().copied().collect::<Vec<_>>(), mix.iter().map(|(kind, _)| *kind).collect::<Vec<_>>());
        for (kind, share) in mix {
            assert!((shares[kind] - share).abs() < 0.6, "{workload}: {shares:?}");
        }
    }
}

#[test]
fn readwhilewriting_has_one_writer_and_else_readers() {
    let options = WorkloadOptions { threads: 3, ..options(Workload::ReadWhileWriting, 1000) };
    assert_eq!(options.workload.driver_threads(options.threads), 4);
    for thread in 0..4 {
        let kinds: HashSet<_> = operations(&options, thread, 1000).iter().map(Operation::kind).collect();
        let expected = if thread == 0 { OperationKind::Put } else { OperationKind::Get };
        assert_eq!(kinds, HashSet::from([expected]));
    }
}

#[test]
fn fillseq_puts_every_key_once_and_in_order_whatever_the_threads() {
    for threads in [1, 3, 7] {
        let options = WorkloadOptions { threads, ..options(Workload::FillSeq, 1000) };
        let mut keys = Vec::new();
        for thread in 0..threads {
            let (from, to) = share(1000, thread.into(), threads.into());
            let share: Vec<u64> =
                operations(&options, thread, (to - from) as usize).iter().map(Operation::key).collect();
            assert!(share.is_sorted());
            keys.extend(share);
        }
        assert_eq!(keys, (0..1000).collect::<Vec<_>>());
    }
}

#[test]
fn the_load_puts_every_key_once() {
    let options = WorkloadOptions { threads: 3, ..options(Workload::YcsbA, 1000) };
    let keys: Vec<u64> =
        (0..3).flat_map(|thread| Generator::preload(&options, thread, 3)).map(|operation| operation.key()).collect();
    assert_eq!(keys, (0..1000).collect::<Vec<_>>());
}

#[test]
fn mixgraph_values_have_the_asked_mean_within_two_percent_when_loaded_and_when_put() {
    let options = options(Workload::MixGraph, 300_000);
    let mean = |operations: Vec<Operation>| {
        let sizes: Vec<f64> = operations
            .into_iter()
            .filter_map(|operation| match operation {
                Operation::Put { value_bytes, .. } => Some(f64::from(value_bytes)),
                _ => None,
            })
            .collect();
        assert!(sizes.iter().all(|&size| (10.0..=64_000.0).contains(&size)));
        sizes.iter().sum::<f64>() / sizes.len() as f64
    };
    let loaded = mean(Generator::preload(&options, 0, 1).collect());
    let put = mean(operations(&options, 0, 1_200_000));
    assert!((loaded - 1000.0).abs() < 20.0, "{loaded}");
    assert!((put - 1000.0).abs() < 20.0, "{put}");
}

#[test]
fn mixgraph_scan_lengths_follow_the_pareto_of_db_bench() {
    let lengths: Vec<u32> = operations(&options(Workload::MixGraph, 1000), 0, 400_000)
        .into_iter()
        .filter_map(|operation| match operation {
            Operation::Seek { entries, .. } => Some(entries),
            _ => None,
        })
        .collect();
    assert!(lengths.iter().all(|&entries| (1..10_000).contains(&entries)));
    // P(length <= 10) = 1 - (1 + k 10 / sigma)^(-1/k) = 0.331; what wraps around adds its part of 1
    // in 1000.
    let short = lengths.iter().filter(|&&entries| entries <= 10).count() as f64 / lengths.len() as f64;
    let (k, sigma): (f64, f64) = (GeneralizedPareto::SCAN_K, GeneralizedPareto::SCAN_SIGMA);
    let theory = 1.0 - (1.0 + k * 10.0 / sigma).powf(-1.0 / k);
    assert!((short - theory).abs() < 0.01, "{short}, theory {theory}");
}

#[test]
fn scans_of_ycsb_e_are_uniform_from_one_to_a_hundred() {
    let mut counts = [0u32; 101];
    for operation in operations(&options(Workload::YcsbE, 1000), 0, 200_000) {
        if let Operation::Scan { entries, .. } = operation {
            counts[entries as usize] += 1;
        }
    }
    assert_eq!(counts[0], 0);
    assert!(counts[1..].iter().all(|&count| count.abs_diff(1900) < 250), "{counts:?}");
}

#[test]
fn ycsb_d_reads_only_what_is_there_and_mostly_the_newest() {
    let options = WorkloadOptions { threads: 2, ..options(Workload::YcsbD, 10_000) };
    let mut inserted = HashSet::new();
    let (mut reads, mut recent) = (0, 0);
    for operation in operations(&options, 1, 100_000) {
        match operation {
            Operation::Put { key, .. } => {
                assert!(key >= 10_000 && inserted.insert(key), "key {key} is inserted twice");
            }
            Operation::Get { key } => {
                assert!(key < 10_000 || inserted.contains(&key), "key {key} is not there yet");
                reads += 1;
                recent += u32::from(key >= 10_000);
            }
            other => panic!("{other:?}"),
        }
    }
    // 5000 keys are inserted beside 10 000: uniform reads would meet them in a quarter of the cases
    // on average.
    assert!(f64::from(recent) > 0.6 * f64::from(reads), "{recent} of {reads}");
}

#[test]
fn no_two_threads_insert_the_same_key() {
    for workload in [Workload::YcsbE, Workload::Updates] {
        let share = (workload == Workload::Updates).then_some(70.0);
        let options = WorkloadOptions { threads: 4, update_share_percent: share, ..options(workload, 1000) };
        let mut inserted = HashSet::new();
        for thread in 0..4 {
            for operation in operations(&options, thread, 10_000) {
                if let Operation::Put { key, .. } = operation
                    && key >= 1000
                {
                    assert!(inserted.insert(key), "{workload}");
                }
            }
        }
        assert!(!inserted.is_empty());
    }
}

/// The keys that `updates` puts: of the load, and new ones.
fn updated_and_inserted(update_share_percent: f64, zipf_theta: Option<f64>) -> (Vec<u64>, Vec<u64>) {
    let options = WorkloadOptions {
        update_share_percent: Some(update_share_percent),
        zipf_theta,
        ..options(Workload::Updates, 1000)
    };
    operations(&options, 0, 100_000)
        .iter()
        .map(|operation| match operation {
            Operation::Put { key, .. } => *key,
            other => panic!("{other:?}"),
        })
        .partition(|key| *key < 1000)
}

#[test]
fn updates_have_the_asked_share_and_the_rest_are_new_keys() {
    assert_eq!(updated_and_inserted(100.0, None).1, [] as [u64; 0]);
    let (updated, inserted) = updated_and_inserted(0.0, None);
    assert!(updated.is_empty() && inserted.into_iter().eq(1000..101_000));
    let (updated, inserted) = updated_and_inserted(30.0, Some(0.5));
    assert!(updated.len().abs_diff(30_000) < 800, "{}", updated.len());
    assert!(inserted.into_iter().eq((1000..).take(100_000 - updated.len())), "each new key once, in turn");
}

#[test]
fn a_zipfian_updates_few_keys_often_and_without_one_all_are_alike() {
    let max_popular = |zipf_theta| {
        let mut counts = BTreeMap::<u64, u32>::new();
        updated_and_inserted(100.0, zipf_theta).0.into_iter().for_each(|key| *counts.entry(key).or_default() += 1);
        counts.into_values().max().unwrap()
    };
    // Of 100 000 updates of 1000 keys 100 fall on each; a Zipfian of 0.99 gives the first key 1 /
    // zeta(1000) = 12.9 %.
    let uniform = max_popular(None);
    assert!((100..160).contains(&uniform), "{uniform}");
    let skewed = max_popular(Some(0.99));
    assert!(skewed.abs_diff(12_900) < 700, "{skewed}");
}

#[test]
fn updates_before_are_uniform_draws_of_loaded_keys_shared_by_the_threads() {
    let options = WorkloadOptions { updates_before_percent: Some(250.0), ..options(Workload::SeekRandom, 1000) };
    let mut counts = [0; 1000];
    for thread in 0..3 {
        for operation in Generator::updates_before(&options, thread, 3) {
            assert_eq!(operation, Operation::Put { key: operation.key(), value_bytes: options.value_bytes });
            counts[operation.key() as usize] += 1;
        }
    }
    assert_eq!(counts.iter().sum::<u32>(), 2500);
    // Each key is drawn e^-2.5 of the times not at all.
    let untouched = counts.iter().filter(|&&count| count == 0).count();
    assert!((50..120).contains(&untouched), "{untouched}");
    let without = WorkloadOptions { updates_before_percent: None, ..options };
    assert_eq!(Generator::updates_before(&without, 0, 1).count(), 0);
}

fn any_workload() -> impl Strategy<Value = Workload> {
    proptest::sample::select(Workload::ALL.to_vec())
}

proptest! {
    #[test]
    fn one_seed_gives_one_sequence(workload in any_workload(), keys in 1u64..5000, seed: u64, thread in 0u32..4) {
        let options = WorkloadOptions { seed, threads: 4, ..options(workload, keys) };
        prop_assert_eq!(operations(&options, thread, 200), operations(&options, thread, 200));
    }

    #[test]
    fn another_seed_or_thread_gives_another_sequence(workload in any_workload(), seed in 0u64..1 << 62) {
        prop_assume!(workload != Workload::FillSeq);
        let first = WorkloadOptions { seed, threads: 4, ..options(workload, 100_000) };
        let second = WorkloadOptions { seed: seed + 1, ..first.clone() };
        prop_assert_ne!(operations(&first, 1, 50), operations(&second, 1, 50));
        prop_assert_ne!(operations(&first, 1, 50), operations(&first, 2, 50));
    }

    #[test]
    fn every_key_is_in_range(workload in any_workload(), keys in 1u64..200, threads in 1u32..9, seed: u64) {
        let options = WorkloadOptions { seed, threads, ..options(workload, keys) };
        for thread in 0..workload.driver_threads(threads) {
            for operation in operations(&options, thread, 300) {
                let inserts = matches!(workload, Workload::YcsbD | Workload::YcsbE);
                prop_assert!(operation.key() < keys || inserts, "{:?} of {} keys", operation, keys);
            }
        }
    }
}
