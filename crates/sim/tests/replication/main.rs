//! Replication, with everything that goes wrong, in virtual time. Each invariant has a file, and
//! worlds in which it is hard to keep; every world is watched for all of them.
//!
//! A failure names its seed: `ECOTONE_SEED=7 cargo test --release -p ecotone-sim` begins with it.
//! `ECOTONE_SOAK_SECONDS=600` gives each test ten minutes of further seeds; `ECOTONE_SIM_SEEDS=20000`
//! gives each so many instead.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod acknowledged_is_never_lost;
mod clock_never_goes_back;
mod copies_converge;
mod no_needless_failover;
mod no_stale_read;
mod one_primary_an_epoch;
mod planted;
mod replay;
mod synced_is_kept;

use std::time::{Duration, Instant};

use ecotone_replica::commit::Durability;
use ecotone_sim::replication::{Faults, Profile, Report, run};

/// Seeds of each world in `make test`.
const SEEDS: u64 = 100;

fn number_in(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|number| number.parse().unwrap())
}

fn first_seed() -> u64 {
    number_in("ECOTONE_SEED").unwrap_or(0)
}

/// Three copies on four servers, and a bit of everything.
fn profile() -> Profile {
    Profile {
        servers: 4,
        copies: 3,
        min_in_sync: 1,
        durability: Durability::Received,
        seconds: 12,
        latency_ms: (1, 10),
        requests: 60,
        max_lag_bytes: 60_000,
        faults: Faults::all(),
        loses_one: false,
        planted: None,
        heartbeats_stall: false,
    }
}

/// Runs `profile` with many seeds, and says what they met.
fn with_seeds(name: &str, profile: &Profile) -> Report {
    let (first, begin) = (first_seed(), Instant::now());
    let seeds = number_in("ECOTONE_SIM_SEEDS").unwrap_or(SEEDS);
    let time = Duration::from_secs(number_in("ECOTONE_SOAK_SECONDS").unwrap_or(0));
    let mut seed = first;
    let mut sum = Report::default();
    while seed - first < seeds || begin.elapsed() < time {
        match run(seed, profile) {
            Ok(report) => {
                sum.events += report.events;
                sum.writes += report.writes;
                sum.lost_at_one += report.lost_at_one;
                sum.lost_by_force += report.lost_by_force;
                sum.reads += report.reads;
                sum.opened += report.opened;
                sum.forced += report.forced;
                sum.seeds += report.seeds;
                sum.power += report.power;
                sum.abandoned += report.abandoned;
                sum.excused += report.excused;
            }
            Err(violation) => panic!("ECOTONE_SEED={seed}: {violation}"),
        }
        seed += 1;
    }
    println!("{name}: {} seeds in {:?}: {sum:?}", seed - first, begin.elapsed());
    // A world in which nothing happens would pass as well.
    let count = seed - first;
    assert!(sum.writes > 100 * count && sum.reads > 100 * count, "{sum:?} in {count} seeds");
    sum
}
