//! A counter of microjoules that wraps around. Pure.
//!
//! Invariant: the sum of all growth equals the joules that went by, if less than one round passes
//! between two looks; of a counter that was set back to anything else nothing is claimed.

/// A counter of 32 bits in units of 1/2^n J, for the n that processors have. It tells the range of
/// a counter whose kernel says 0.
const UNIT_BITS: std::ops::RangeInclusive<u32> = 10..=20;

/// What the counter did since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// There was no last look.
    First,
    /// Microjoules.
    Grew(u64),
    /// It fell, and no wrap explains it.
    Reset,
}

/// The counter of one zone.
#[derive(Debug)]
pub(super) struct Counter {
    /// The greatest value before it begins at 0 again, in microjoules; 0 if that is not known.
    range: u64,
    last: Option<u64>,
}

impl Counter {
    pub(super) fn new(range: u64) -> Self {
        Self { range, last: None }
    }

    /// Takes in a value. `max_growth` is the most that can have been used since the last one: it
    /// tells a wrap from a counter that was set back.
    pub(super) fn advance(&mut self, now: u64, max_growth: u64) -> Growth {
        let Some(last) = self.last.replace(now) else { return Growth::First };
        if now >= last {
            return Growth::Grew(now - last);
        }
        let over = |range: u64| Some(range.checked_sub(last)? + now).filter(|growth| *growth <= max_growth);
        let growth = match self.range {
            0 => UNIT_BITS.rev().find_map(|bits| over((1_000_000u64 << 32) >> bits)),
            range => over(range),
        };
        growth.map_or(Growth::Reset, Growth::Grew)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The range that the kernel shows for units of 61 uJ, and for those of 15.3 uJ.
    const RANGES: [u64; 2] = [262_143_328_850, 65_532_610_987];

    #[test]
    fn a_wrap_by_hand() {
        let mut counter = Counter::new(RANGES[0]);
        assert_eq!(counter.advance(RANGES[0] - 1_000, 0), Growth::First);
        assert_eq!(counter.advance(500, 2_000), Growth::Grew(1_500));
        assert_eq!(counter.advance(700, 2_000), Growth::Grew(200));
    }

    #[test]
    fn a_counter_that_was_set_back_claims_nothing() {
        for range in [0, RANGES[0]] {
            let mut counter = Counter::new(range);
            counter.advance(5_000_000, 0);
            assert_eq!(counter.advance(10, 1_000_000), Growth::Reset);
            assert_eq!(counter.advance(30, 1_000_000), Growth::Grew(20));
        }
        // Above its own range: a lie, whose wrap is not computed.
        let mut counter = Counter::new(1_000);
        counter.advance(2_000, 0);
        assert_eq!(counter.advance(1, u64::MAX), Growth::Reset);
    }

    proptest! {
        /// Whatever is used between looks is found again, over any number of wraps, with a range
        /// that is known and with one that reads 0.
        #[test]
        fn nothing_is_lost_at_wraps(
            known in any::<bool>(), which in 0usize..2, start in 0u64..1_400_000_000,
            used in proptest::collection::vec(0u64..1_000_000_000, 1..200)
        ) {
            // The kernel's ranges are a few units short of the power of two; so is what is lost.
            let range = RANGES[which];
            let mut counter = Counter::new(if known { range } else { 0 });
            // Near the end of the range, so that a wrap comes soon.
            let mut total = range - 1_500_000_000 + start;
            let mut found = 0;
            counter.advance(total % range, 0);
            let (mut sum, mut wraps) = (0, 0);
            for step in used {
                let before = total / range;
                total += step;
                wraps += total / range - before;
                sum += step;
                match counter.advance(total % range, 1_000_000_000 + 10_000_000) {
                    Growth::Grew(growth) => found += growth,
                    other => prop_assert!(false, "{:?} after {}", other, step),
                }
            }
            let short = ((1_000_000u64 << 32) >> if which == 0 { 14 } else { 16 }) - range;
            let allowed = if known { 0 } else { wraps * short };
            prop_assert!(found >= sum && found - sum <= allowed, "{} of {} with {} wraps", found, sum, wraps);
        }
    }
}
