//! Random commands to a Redis server and to this one: the replies are the same bytes.
//!
//! A family of commands takes part with a file of [`generate::Family`] and one line in
//! [`FAMILIES`]. Where a reply is not the same bytes by its nature (a time, a set), its line in the
//! family says how to compare. Nothing may depend on how fast the test runs: what expires does so
//! long before or long after.
//!
//! A failure shows the seed and few commands that still fail alone.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod docs;
mod errors;
mod generate;
mod hashes;
mod keys;
mod lists;
mod pipelines;
mod sets;
mod sides;
mod sorted_sets;
mod strings;
mod table;
mod transactions;

use common::Fixture;
use common::redis::RealRedis;
use ecotone_engine::{Durability, StoreSettings};
use ecotone_resp::protocol::reply::Version;
use generate::{Family, Random, Request};
use sides::{Here, Side, There, first_difference};

const FAMILIES: &[Family] =
    &[strings::FAMILY, keys::FAMILY, hashes::FAMILY, lists::FAMILY, sets::FAMILY, sorted_sets::FAMILY, errors::FAMILY];

/// Collections by themselves: among all commands few live long enough to become large.
const COLLECTIONS: &[&[Family]] = &[&[hashes::FAMILY], &[lists::FAMILY], &[sets::FAMILY], &[sorted_sets::FAMILY]];

/// Commands for each seed.
const COMMANDS: usize = 3000;

/// How often commands come in a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transactions {
    Never,
    Often,
}

fn requests(families: &[Family], transactions: Transactions, seed: u64) -> Vec<Request> {
    let (mut random, mut requests) = (Random::new(seed), Vec::new());
    while requests.len() < COMMANDS {
        // About half of all commands are in one or around one.
        if transactions == Transactions::Often && random.below(7) == 0 {
            requests.extend(transactions::requests(&mut random, families));
        } else {
            requests.push(random.request(families));
        }
    }
    requests.extend(generate::closing_requests());
    requests
}

/// Compares, and where that fails looks for few requests that do.
fn compare(requests: &[Request], seed: u64, ours: &mut dyn Side, other: &mut dyn Side) {
    let Some(failed) = first_difference(requests, ours, other) else { return };
    let mut kept: Vec<Request> = requests[..=failed.at].to_vec();
    let mut part = kept.len() / 2;
    while part > 0 {
        let mut begin = 0;
        while begin + part < kept.len() {
            let mut fewer = kept.clone();
            fewer.drain(begin..begin + part);
            match first_difference(&fewer, ours, other) {
                Some(failed) => kept = fewer[..=failed.at].to_vec(),
                None => begin += part,
            }
        }
        part /= 2;
    }
    // What depends on groups or flushes may not fail again.
    let shown = first_difference(&kept, ours, other).unwrap_or(failed);
    let list: Vec<String> = kept.iter().map(|request| format!("  {request}\n")).collect();
    panic!("seed {seed}\n{}{shown}", list.concat());
}

fn compare_with_redis(families: &[Family], transactions: Transactions, seeds: std::ops::Range<u64>, version: Version) {
    let redis = RealRedis::start();
    for seed in common::random::seeds(seeds) {
        let fixture = Fixture::new();
        let number = if version == Version::Resp2 { 2 } else { 3 };
        let mut there = There::new(std::array::from_fn(|_| redis.client(number)));
        let requests = requests(families, transactions, seed);
        compare(&requests, seed, &mut Here::new(&fixture, version, seed, 1), &mut there);
    }
}

#[test]
fn replies_are_those_of_redis_in_resp2() {
    compare_with_redis(FAMILIES, Transactions::Never, 0..4, Version::Resp2);
}

#[test]
fn replies_are_those_of_redis_in_resp3() {
    compare_with_redis(FAMILIES, Transactions::Never, 4..8, Version::Resp3);
}

#[test]
fn transactions_are_those_of_redis() {
    compare_with_redis(FAMILIES, Transactions::Often, 40..44, Version::Resp2);
    compare_with_redis(FAMILIES, Transactions::Often, 44..48, Version::Resp3);
    for families in COLLECTIONS {
        compare_with_redis(families, Transactions::Often, 48..50, Version::Resp2);
    }
}

#[test]
fn large_collections_are_those_of_redis() {
    for families in COLLECTIONS {
        compare_with_redis(families, Transactions::Never, 20..23, Version::Resp2);
        compare_with_redis(families, Transactions::Never, 23..25, Version::Resp3);
    }
}

#[test]
fn pipelines_over_sockets_are_those_of_redis() {
    let redis = RealRedis::start();
    for (seed, version) in [(60, 2), (61, 3)] {
        pipelines::compare(&redis, FAMILIES, Transactions::Never, version, seed);
    }
    for (seed, version) in [(62, 3), (63, 2)] {
        pipelines::compare(&redis, FAMILIES, Transactions::Often, version, seed);
    }
    for (seed, families) in (64..).zip(COLLECTIONS) {
        pipelines::compare(&redis, families, Transactions::Never, 2, seed);
    }
}

#[test]
fn groups_and_flushes_change_no_reply() {
    for seed in common::random::seeds(100..106) {
        compare_groups(FAMILIES, Transactions::Never, seed);
    }
    for seed in common::random::seeds(109..113) {
        compare_groups(FAMILIES, Transactions::Often, seed);
    }
    for families in COLLECTIONS {
        common::random::seeds(106..109).for_each(|seed| compare_groups(families, Transactions::Never, seed));
    }
}

fn compare_groups(families: &[Family], transactions: Transactions, seed: u64) {
    let mut random = Random::new(seed);
    let options = StoreSettings {
        memtable_bytes: (64 << 10) << random.below(3),
        durability: Durability::None,
        ..StoreSettings::default()
    };
    let (plain, small) = (Fixture::new(), Fixture::with(options.with_separation(1 << random.below(10))));
    let most = 2 + random.below(15);
    let mut one_by_one = Here::new(&plain, Version::Resp2, seed, 1);
    let requests = requests(families, transactions, seed);
    compare(&requests, seed, &mut Here::new(&small, Version::Resp2, seed, most), &mut one_by_one);
}
