//! How much writers have waited for relocation lately, and so how much more garbage may stay.
//!
//! Garbage costs space, and copies cost time that writers wait for. Where nobody waits, space is what counts. While writers want more than
//! relocation can keep up with, the same copies free more if they come later: so the more they wait, the nearer the ratios of relocation are to those
//! of [`RelocationParameters::pressed_ratio`](super::RelocationParameters::pressed_ratio), as long as there is space, and they return once the writers have had what they wanted.

use crate::units::Seconds;

/// What was longer ago than this counts for a third: longer than a compaction of a small store takes.
const MEMORY: Seconds = Seconds(10.0);

/// Writers that rest for no more than this share of their time are not held up: some rests come at any rate.
const LEAST_SHARE: f64 = 0.02;

/// Those that rest for this share of it are, and more does not count: so the longest ways back take [`MEMORY`] times the logarithm of how many
/// times [`LEAST_SHARE`] it is, 23 s.
const MOST_SHARE: f64 = 0.2;

/// What share of their time writers have rested, up to [`MOST_SHARE`]: an average in which what is older weighs less.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    rested_share: f64,
}

impl Pressure {
    /// In `slowed` of the last `elapsed` writers were to rest, and have rested then for `rested` and been at work for `busy`, summed over all of them. Of one writer the
    /// rest of the time counts as well: it has nothing to write then. Of many that write at the same time it is the average that counts.
    pub fn observe(&mut self, rested: Seconds, busy: Seconds, slowed: Seconds, elapsed: Seconds) {
        if elapsed.0 > 0.0 {
            let before = (-elapsed.0 / MEMORY.0).exp();
            let slowed = slowed.0.clamp(0.0, elapsed.0);
            // Who rests at the end of it may do so beyond it.
            let while_slowed =
                if slowed > 0.0 { (rested.0 / (rested.0 + busy.0).max(slowed)).clamp(0.0, 1.0) } else { 0.0 };
            let share = while_slowed * slowed / elapsed.0;
            self.rested_share = (self.rested_share * before + share * (1.0 - before)).min(MOST_SHARE);
        }
    }

    /// 0 where nobody is held up, 1 where everybody is.
    pub fn degree(&self) -> f64 {
        ((self.rested_share - LEAST_SHARE) / (MOST_SHARE - LEAST_SHARE)).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After so many seconds in which one writer rested for so long.
    fn after(seconds: f64, rested: f64, of: Pressure) -> Pressure {
        let mut pressure = of;
        pressure.observe(Seconds(rested), Seconds(0.0), Seconds(seconds), Seconds(seconds));
        pressure
    }

    #[test]
    fn it_rises_while_writers_rest_and_is_gone_soon_after() {
        let calm = Pressure::default();
        assert_eq!(calm.degree(), 0.0);
        assert_eq!(after(60.0, 1.0, calm).degree(), 0.0, "a rest in a minute holds nobody up");
        assert!(after(1.0, 0.5, calm).degree() > 0.0 && after(1.0, 0.5, calm).degree() < 0.3, "a second is not enough");
        for rested in [15.0, 30.0] {
            let pressed = after(30.0, rested, calm);
            assert_eq!(pressed.degree(), 1.0);
            assert!(after(10.0, 0.0, pressed).degree() < pressed.degree());
            assert_eq!(after(24.0, 0.0, pressed).degree(), 0.0);
        }
    }

    #[test]
    fn many_writers_are_held_up_where_each_is() {
        let by = |writers: f64, rested_share: f64| {
            let (mut pressure, elapsed) = (Pressure::default(), 30.0);
            let all = writers * elapsed;
            let (rested, busy) = (Seconds(all * rested_share), Seconds(all * (1.0 - rested_share)));
            pressure.observe(rested, busy, Seconds(elapsed), Seconds(elapsed));
            pressure.degree()
        };
        for writers in [1.0, 50.0] {
            assert_eq!(by(writers, 0.004), 0.0);
            assert_eq!(by(writers, 0.5), 1.0);
        }
        assert!((by(1.0, 0.1) - by(50.0, 0.1)).abs() < 1e-9);
    }

    #[test]
    fn writers_that_are_slowed_for_a_moment_are_not_held_up() {
        let slowed_for = |writers: f64, slowed: f64| {
            let mut pressure = Pressure::default();
            let all = writers * slowed;
            pressure.observe(Seconds(0.9 * all), Seconds(0.1 * all), Seconds(slowed), Seconds(10.0));
            pressure
        };
        for writers in [1.0, 50.0] {
            assert_eq!(slowed_for(writers, 0.06).degree(), 0.0);
            assert!(slowed_for(writers, 5.0).degree() > 0.5);
        }
        assert!((slowed_for(1.0, 1.0).degree() - slowed_for(50.0, 1.0).degree()).abs() < 1e-9);
        let mut never = Pressure::default();
        never.observe(Seconds(5.0), Seconds(0.0), Seconds(0.0), Seconds(10.0));
        assert_eq!(never, Pressure::default(), "nobody was to rest");
    }

    #[test]
    fn how_often_it_is_asked_does_not_matter() {
        let at_once = after(5.0, 1.0, Pressure::default());
        let in_steps = (0..50).fold(Pressure::default(), |pressure, _| after(0.1, 0.02, pressure));
        assert!(at_once.degree() > 0.0 && (at_once.degree() - in_steps.degree()).abs() < 1e-9);
        assert_eq!(after(0.0, 0.0, at_once), at_once);
    }
}
