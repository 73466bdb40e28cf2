//! The control plane, with everything that goes wrong, in virtual time. Each invariant has a file,
//! and a world in which it is hard to keep; every world is watched for all of them.
//!
//! A failure names its seed: `ECOTONE_SEED=7 cargo test --release -p ecotone-sim` begins with it.
//! `ECOTONE_SOAK_SECONDS=600` gives each test ten minutes of further seeds; `ECOTONE_SIM_SEEDS=20000`
//! gives each so many instead.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod committed_is_never_lost;
mod failover;
mod map_converges;
mod one_leader_a_term;
mod one_owner_an_epoch;
mod planted;
mod removed_never_acts;
mod replay;

use std::time::{Duration, Instant};

use ecotone_sim::{Faults, Profile, Report, run};

/// Seeds of each world in `make test`.
const SEEDS: u64 = 100;

fn number_in(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|number| number.parse().unwrap())
}

fn first_seed() -> u64 {
    number_in("ECOTONE_SEED").unwrap_or(0)
}

/// Five servers and a bit of everything.
fn profile() -> Profile {
    Profile {
        servers: 5,
        witnesses: 0,
        zones: 3,
        shards: 4,
        seconds: 30,
        latency_ms: (1, 20),
        disk_ms: (1, 8),
        faults: Faults::all(),
        changes: 500,
        compaction: (24, 8),
        plant: None,
    }
}

/// Runs `profile` with many seeds, and says what they met.
fn with_seeds(name: &str, profile: &Profile) -> Report {
    let (first, begin) = (first_seed(), Instant::now());
    let seeds = number_in("ECOTONE_SIM_SEEDS").unwrap_or(SEEDS);
    let time = Duration::from_secs(number_in("ECOTONE_SOAK_SECONDS").unwrap_or(0));
    let mut seed = first;
    let mut sum = Report { trace: 0, changes: 0, terms: 0, kills: 0, torn: 0, events: 0 };
    while seed - first < seeds || begin.elapsed() < time {
        match run(seed, profile) {
            Ok(report) => {
                sum.changes += report.changes;
                sum.terms += report.terms;
                sum.kills += report.kills;
                sum.torn += report.torn;
                sum.events += report.events;
            }
            Err(violation) => panic!("ECOTONE_SEED={seed}: {violation}"),
        }
        seed += 1;
    }
    println!("{name}: {} seeds in {:?}: {sum:?}", seed - first, begin.elapsed());
    // A world in which nothing happens would pass as well.
    let count = seed - first;
    assert!(sum.changes as u64 > 20 * count, "{} changes in {count} seeds", sum.changes);
    sum
}
