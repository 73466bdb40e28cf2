//! One draw at random from elements in the order of numbers that are derived from their names.
//!
//! The element behind a random number would be drawn more often the longer the gap before it is;
//! as the numbers never change, some would hardly ever be. So a draw samples several behind the
//! number and chooses one of those, which averages the gaps. Redis' `SRANDMEMBER` and `RANDOMKEY`
//! do the like (`dictGetFairRandomKey`), and come as near to equal chances.

use std::hash::{BuildHasher, RandomState};
use std::ops::{ControlFlow, Range};

/// Elements that one draw samples. The chances of any two differ by a third then, as standard
/// deviation; the sample of Redis has 15.
pub const LOOKED_AT: u64 = 16;

/// One draw. The elements of its range are offered in order from each number that
/// [`next_from`](Self::next_from) returns.
#[derive(Debug)]
pub struct Draw<T> {
    range: Range<u64>,
    from: u64,
    begun: Begun,
    looked_at: u64,
    last: Option<u64>,
    drawn: Option<T>,
}

#[derive(Debug, PartialEq, Eq)]
enum Begun {
    No,
    /// Behind the number.
    There,
    /// At the begin, up to the number: the range is a ring.
    Again,
}

impl<T> Draw<T> {
    /// From the elements with a number in `range`, which is not empty.
    pub fn within(range: Range<u64>) -> Self {
        let from = range.start + random_below(range.end - range.start);
        Self { range, from, begun: Begun::No, looked_at: 0, last: None, drawn: None }
    }

    /// Where to begin, as long as not enough was offered.
    pub fn next_from(&mut self) -> Option<u64> {
        let is_enough = self.looked_at >= LOOKED_AT;
        let (from, begun) = match self.begun {
            Begun::No => (self.from, Begun::There),
            Begun::There if !is_enough && self.from > self.range.start => (self.range.start, Begun::Again),
            _ => return None,
        };
        self.begun = begun;
        Some(from)
    }

    /// Offers an element with this `number`, which `make` returns. Breaks where there were enough.
    /// All with the same number have the same chance.
    pub fn offer(&mut self, number: u64, make: impl FnOnce() -> T) -> ControlFlow<()> {
        let end = if self.begun == Begun::Again { self.from } else { self.range.end };
        if number >= end || self.looked_at >= LOOKED_AT && self.last != Some(number) {
            return ControlFlow::Break(());
        }
        self.last = Some(number);
        self.looked_at += 1;
        if random_below(self.looked_at) == 0 {
            self.drawn = Some(make());
        }
        ControlFlow::Continue(())
    }

    /// Whether all of the range was offered.
    pub fn saw_all(&self) -> bool {
        self.looked_at < LOOKED_AT && (self.begun == Begun::Again || self.from == self.range.start)
    }

    /// What was drawn; `None` where nothing was offered.
    pub fn drawn(self) -> Option<T> {
        self.drawn
    }
}

/// 0 to `end` - 1.
pub fn random_below(end: u64) -> u64 {
    // The upper half of the product: Lemire, "Fast Random Integer Generation in an Interval"
    // (2019), without the rejection, whose bias is beyond notice here.
    ((u128::from(RandomState::new().hash_one(())) * u128::from(end)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each of `numbers`, which ascend, is drawn.
    fn drawn(range: Range<u64>, numbers: &[u64], draws: usize) -> Vec<u32> {
        let mut times = vec![0; numbers.len()];
        for _ in 0..draws {
            let mut draw = Draw::within(range.clone());
            while let Some(from) = draw.next_from() {
                let _ = numbers
                    .iter()
                    .enumerate()
                    .skip_while(|(_, number)| **number < from)
                    .try_for_each(|(place, number)| draw.offer(*number, || place));
            }
            times[draw.drawn().unwrap()] += 1;
        }
        times
    }

    #[test]
    fn few_have_the_same_chance_wherever_they_lie() {
        // Also those that share a number, and the one before which nearly all of the range lies.
        let times = drawn(5..1_000_005, &[6, 7, 7, 7, 8, 999_999], 60_000);
        assert!(times.iter().all(|times| (9_000..11_000).contains(times)), "{times:?}");
    }

    #[test]
    fn of_many_each_has_about_the_same_chance() {
        let mut numbers: Vec<u64> = (0..1000).map(|_| random_below(1 << 32)).collect();
        numbers.sort_unstable();
        let times = drawn(0..1 << 32, &numbers, 200_000);
        let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        // 200 would be the same for all. One behind a random number would have between 0 and 1500.
        assert!(*least > 20 && *most < 700, "{least} to {most}");
    }

    #[test]
    fn of_more_than_are_looked_at_with_one_number_all_have_a_chance() {
        let times = drawn(0..100, &[[7; 40].as_slice(), &[90]].concat(), 40_000);
        assert!(times.iter().all(|times| *times > 500), "{times:?}");
    }

    #[test]
    fn what_lies_beyond_the_range_is_not_drawn_and_of_nothing_there_is_nothing() {
        assert_eq!(drawn(10..20, &[5, 15, 25], 1000), [0, 1000, 0]);
        let mut draw = Draw::<u32>::within(10..20);
        while draw.next_from().is_some() {}
        assert_eq!(draw.drawn(), None);
    }
}
