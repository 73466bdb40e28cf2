//! EdgePilot's queue: the total order against Algorithm 2 as it is printed.
use std::cmp::Ordering;

use ecotone_policy::queue_order::{QueueLimits, ServerStatus, compare, head};
use ecotone_types::ServerId;
use ecotone_types::units::{BytesPerSecond, Cores};
use proptest::prelude::*;

/// EdgePilot's own.
const LIMITS: QueueLimits = QueueLimits { min_cores: Cores(1.0), min_network: BytesPerSecond(0.0) };

/// Algorithm 2, `CompareServerStatus(serverA, serverB)`, line by line: whether A comes before B.
fn algorithm_2(a: &ServerStatus, b: &ServerStatus, limits: QueueLimits) -> bool {
    if a.available_cores <= limits.min_cores || b.available_cores <= limits.min_cores {
        return a.available_cores >= b.available_cores;
    }
    if a.available_network <= limits.min_network || b.available_network <= limits.min_network {
        return a.available_network >= b.available_network;
    }
    if a.compaction_bytes_per_s != b.compaction_bytes_per_s {
        return a.compaction_bytes_per_s >= b.compaction_bytes_per_s;
    }
    a.available_cores >= b.available_cores
}

fn status(name: usize, cores: f64, network: f64, speed: f64) -> ServerStatus {
    ServerStatus {
        server: ServerId::new(format!("server-{name}")).unwrap(),
        available_cores: Cores(cores),
        available_network: BytesPerSecond(network),
        compaction_bytes_per_s: BytesPerSecond(speed),
    }
}

/// Few values, so that ties and limits come up often.
fn statuses(count: usize) -> impl Strategy<Value = Vec<ServerStatus>> {
    let one = (0u8..5, -1i8..3, 0u8..3).prop_map(|(c, n, s)| (f64::from(c) / 2.0, f64::from(n), f64::from(s)));
    prop::collection::vec(one, count)
        .prop_map(|values| values.into_iter().enumerate().map(|(name, (c, n, s))| status(name, c, n, s)).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_order_is_total_and_agrees_with_algorithm_2(three in statuses(3)) {
        let (a, b, c) = (&three[0], &three[1], &three[2]);
        prop_assert_eq!(compare(a, b, LIMITS), compare(b, a, LIMITS).reverse());
        prop_assert_ne!(compare(a, b, LIMITS), Ordering::Equal, "two servers never tie");
        if compare(a, b, LIMITS).is_lt() && compare(b, c, LIMITS).is_lt() {
            prop_assert!(compare(a, c, LIMITS).is_lt());
        }
        // Whoever comes first is at least as good as the other in the words of the paper.
        let (first, second) = if compare(a, b, LIMITS).is_lt() { (a, b) } else { (b, a) };
        prop_assert!(algorithm_2(first, second, LIMITS), "{:?} before {:?}", first, second);
        // And where the paper has no doubt, neither has the order.
        if !algorithm_2(b, a, LIMITS) {
            prop_assert!(compare(a, b, LIMITS).is_lt());
        }
    }

    #[test]
    fn the_head_does_not_depend_on_the_order_of_reports(mut servers in statuses(6), seed in any::<prop::sample::Index>()) {
        let expected = head(&servers, LIMITS).cloned();
        let at = seed.index(servers.len());
        servers.rotate_left(at);
        servers.swap(0, at);
        prop_assert_eq!(head(&servers, LIMITS).cloned(), expected);
    }
}

#[test]
fn algorithm_2_as_printed_puts_each_of_two_equals_before_the_other() {
    let (a, b) = (status(0, 4.0, 1.0, 1.0), status(1, 4.0, 1.0, 1.0));
    assert!(algorithm_2(&a, &b, LIMITS) && algorithm_2(&b, &a, LIMITS));
    assert!(compare(&a, &b, LIMITS).is_lt(), "the name decides");
}

#[test]
fn what_is_not_a_number_stands_last() {
    let good = status(9, 4.0, 1.0, 1.0);
    for bad in [status(0, f64::NAN, 1.0, 1.0), status(0, 4.0, f64::NAN, 1.0), status(0, 4.0, 1.0, f64::NAN)] {
        assert!(compare(&good, &bad, LIMITS).is_lt(), "{bad:?}");
        assert!(compare(&bad, &good, LIMITS).is_gt(), "{bad:?}");
    }
}
