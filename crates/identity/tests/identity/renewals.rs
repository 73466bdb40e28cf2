//! When a certificate is renewed.

use ecotone_identity::Timestamp;
use ecotone_identity::renewal::is_due;
use proptest::prelude::*;

/// Valid from 1,000,000 on, made 300 s later, for 24 h.
const BEGINS: Timestamp = Timestamp(1_000_000);
const MADE: u64 = 1_000_300;
const ENDS: Timestamp = Timestamp(1_000_300 + 86_400);

#[test]
fn it_is_due_after_half_of_its_life_and_a_minute_after_a_failure() {
    for (at, last_failure, expected) in [
        (MADE, None, false),
        (MADE + 43_199, None, false),
        (MADE + 43_200, None, true),
        (MADE + 43_200, Some(MADE + 43_200), false),
        (MADE + 43_259, Some(MADE + 43_200), false),
        (MADE + 43_260, Some(MADE + 43_200), true),
        // It has ended, and was never renewed.
        (ENDS.0 + 1_000_000, None, true),
        // The clock was ahead when it failed, and was set back.
        (MADE + 43_200, Some(MADE + 90_000), true),
        // Set back to before it was made, and to before it is valid.
        (MADE - 300, None, false),
        (MADE - 301, None, true),
        (MADE - 301, Some(MADE - 302), false),
        (MADE - 100_000, None, true),
    ] {
        let due = is_due(BEGINS, ENDS, last_failure.map(Timestamp), Timestamp(at));
        assert_eq!(due, expected, "at {at} after a failure at {last_failure:?}");
    }
}

proptest! {
    #[test]
    fn attempts_are_a_minute_apart_and_never_cease(
        life in 1_u64..200_000, steps in prop::collection::vec(1_u64..500, 1..200),
    ) {
        let (begins, ends) = (Timestamp(5_000), Timestamp(5_300 + life));
        let (mut now, mut last): (u64, Option<u64>) = (5_300, None);
        for step in steps {
            now += step;
            if is_due(begins, ends, last.map(Timestamp), Timestamp(now)) {
                prop_assert!(now >= 5_300 + life / 2);
                prop_assert!(last.is_none_or(|last| now - last >= 60));
                last = Some(now);
            } else {
                prop_assert!(now < 5_300 + life / 2 || last.is_some_and(|last| now - last < 60));
            }
        }
    }
}
