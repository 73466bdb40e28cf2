//! A seed gives the same run, event by event.

use ecotone_sim::replication::run;

use super::{first_seed, profile};

#[test]
fn a_seed_gives_the_same_trace() {
    for seed in first_seed()..first_seed() + 5 {
        let first = run(seed, &profile()).unwrap();
        let second = run(seed, &profile()).unwrap();
        assert_eq!(first, second, "ECOTONE_SEED={seed}");
        let other = run(seed + 1_000, &profile()).unwrap();
        assert_ne!(first.trace, other.trace, "the trace says nothing");
    }
}
