//! How much writers have waited for relocation lately, and so how much more garbage may stay.
//!
//! Garbage costs space, and copies cost time that writers wait for. Where nobody waits, space is what counts. While writers want more than
//! relocation can keep up with, the same copies free more if they come later: so the more they wait, the nearer the ratios of relocation are to those
//! of [`RelocationParameters::pressed_ratio`](super::RelocationParameters::pressed_ratio), as long as there is space, and they return once the writers have had what they wanted.

use crate::units::Seconds;

/// What was longer ago than this counts for a third. Shorter than a user minds, longer than a compaction of a small store.
const MEMORY: Seconds = Seconds(10.0);

/// Writers that rest for no more than this share of the time are not held up: a rest ends some compactions at any rate.
const LEAST_SHARE: f64 = 0.02;

/// Those that rest for this share of it are.
const MOST_SHARE: f64 = 0.2;

/// What share of their time writers have rested: an average in which what is older weighs less. Several that rest at the same time count together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    rested_share: f64,
}

impl Pressure {
    /// Writers have rested for `rested` in the last `elapsed`.
    pub fn observe(&mut self, rested: Seconds, elapsed: Seconds) {
        if elapsed.0 > 0.0 {
            let before = (-elapsed.0 / MEMORY.0).exp();
            let share = (rested.0 / elapsed.0).clamp(0.0, 1.0);
            self.rested_share = self.rested_share * before + share * (1.0 - before);
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

    fn after(seconds: f64, rested: f64, of: Pressure) -> Pressure {
        let mut pressure = of;
        pressure.observe(Seconds(rested), Seconds(seconds));
        pressure
    }

    #[test]
    fn it_rises_while_writers_rest_and_is_gone_soon_after() {
        let calm = Pressure::default();
        assert_eq!(calm.degree(), 0.0);
        assert_eq!(after(60.0, 1.0, calm).degree(), 0.0, "a rest in a minute holds nobody up");
        let pressed = after(30.0, 15.0, calm);
        assert_eq!(pressed.degree(), 1.0);
        assert!(after(1.0, 0.5, calm).degree() > 0.0 && after(1.0, 0.5, calm).degree() < 0.3, "a second is not enough");
        assert!(after(10.0, 0.0, pressed).degree() < pressed.degree());
        assert_eq!(after(40.0, 0.0, pressed).degree(), 0.0);
        // Many writers at once are no more than all.
        assert_eq!(after(1.0, 100.0, calm), after(1.0, 1.0, calm));
    }

    #[test]
    fn how_often_it_is_asked_does_not_matter() {
        let at_once = after(5.0, 2.0, Pressure::default());
        let in_steps = (0..50).fold(Pressure::default(), |pressure, _| after(0.1, 0.04, pressure));
        assert!((at_once.degree() - in_steps.degree()).abs() < 1e-9);
        assert_eq!(after(0.0, 0.0, at_once), at_once);
    }
}
