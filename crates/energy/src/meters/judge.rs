//! What of a meter's figures is believed. Pure.
//!
//! Each look is admitted, or replaced by what the fitted model predicts for the same time:
//! - a meter that cannot be read, or was set back by itself: predicted;
//! - one that stands still: a counter at once, since no processor uses nothing for a second; a sensor
//!   only after a while in which the load changed, since a steady load looks the same;
//! - one that jumps, to more watts than its hardware can draw: predicted.
//!
//! Invariant: what a counter gives after a gap is not counted twice. The predicted joules of the gap
//! are owed, and taken off what it gives first.

use ecotone_types::units::{Joules, Seconds, Watts};

use super::{Look, MeterLabel};
use crate::EnergyError;

/// A counter that shows no growth for this long stands still.
const MAX_STILL_COUNTER: Seconds = Seconds(0.5);
/// A sensor that shows the same reading for this long stands still if the load changed meanwhile.
const MAX_STILL_SENSOR: Seconds = Seconds(20.0);
/// The least change of predicted power, as a share of its highest, that counts as a changed load.
const MIN_LOAD_CHANGE: f64 = 0.25;

/// Why figures of a meter are doubted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// It cannot be read.
    Lost,
    /// It shows the same value whatever happens.
    Frozen,
    /// It showed more than its hardware can draw.
    Jumped,
    /// It was set back by itself.
    Reset,
    /// Its figures are the same at every load.
    IgnoresLoad,
}

impl Doubt {
    /// The name, as in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Frozen => "frozen",
            Self::Jumped => "jumped",
            Self::Reset => "reset",
            Self::IgnoresLoad => "ignores-load",
        }
    }
}

/// How often each happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Looks that failed.
    pub lost: u64,
    /// Looks at a meter that stands still.
    pub frozen: u64,
    /// Looks with impossible power.
    pub jumped: u64,
    /// Looks at a meter that was set back.
    pub reset: u64,
}

/// What one look counts for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Admitted {
    pub(super) joules: Joules,
    /// Whether it was measured, and all of it in the time of this look: only then it teaches.
    pub(super) measured: bool,
}

/// The judge of one meter.
#[derive(Debug)]
pub(super) struct Judge {
    counts: bool,
    max_watts: Watts,
    faults: Faults,
    doubt: Option<Doubt>,
    /// Predicted joules that the meter may still give.
    owed: Joules,
    /// How long ago the meter gave joules.
    since_growth: Seconds,
    still: Still,
}

/// A stretch in which the meter showed one value.
#[derive(Debug, Default)]
struct Still {
    time: Seconds,
    least: f64,
    most: f64,
}

impl Judge {
    pub(super) fn new(label: &MeterLabel) -> Self {
        Self {
            counts: label.counts,
            max_watts: label.max_watts,
            faults: Faults::default(),
            doubt: None,
            owed: Joules::ZERO,
            since_growth: Seconds::ZERO,
            still: Still::default(),
        }
    }

    pub(super) fn faults(&self) -> Faults {
        self.faults
    }

    /// What is wrong at the last look.
    pub(super) fn doubt(&self) -> Option<Doubt> {
        self.doubt
    }

    /// Judges a look that came `elapsed` after the one before, when `predicted` was to be expected.
    pub(super) fn admit(&mut self, look: &Result<Look, EnergyError>, elapsed: Seconds, predicted: Joules) -> Admitted {
        self.since_growth += elapsed;
        let doubt = match *look {
            Err(_) => Some(Doubt::Lost),
            Ok(Look::Reset) => Some(Doubt::Reset),
            Ok(Look::First) => None,
            Ok(Look::Grew { joules, unchanged }) => {
                let stands_still = self.stands_still(unchanged, elapsed, predicted);
                if stands_still {
                    Some(Doubt::Frozen)
                } else if joules.0 > self.max_watts.0 * self.since_growth.0 {
                    Some(Doubt::Jumped)
                } else {
                    self.doubt = None;
                    return self.take(joules);
                }
            }
        };
        self.doubt = doubt;
        match doubt {
            Some(Doubt::Lost) => self.faults.lost += 1,
            Some(Doubt::Frozen) => self.faults.frozen += 1,
            Some(Doubt::Jumped) => self.faults.jumped += 1,
            Some(Doubt::Reset) => self.faults.reset += 1,
            Some(Doubt::IgnoresLoad) | None => {}
        }
        // What a counter did not show yet it will show later; of anything else it has begun anew.
        let will_come = self.counts && matches!(doubt, Some(Doubt::Lost | Doubt::Frozen));
        self.owed = if will_come { self.owed + predicted } else { Joules::ZERO };
        if !will_come {
            self.since_growth = Seconds::ZERO;
        }
        Admitted { joules: predicted, measured: false }
    }

    fn stands_still(&mut self, unchanged: bool, elapsed: Seconds, predicted: Joules) -> bool {
        if !unchanged {
            self.still = Still::default();
            return false;
        }
        let watts = if elapsed.0 > 0.0 { predicted.0 / elapsed.0 } else { 0.0 };
        let still = &mut self.still;
        if still.time == Seconds::ZERO {
            (still.least, still.most) = (watts, watts);
        }
        still.time += elapsed;
        still.least = still.least.min(watts);
        still.most = still.most.max(watts);
        if self.counts {
            return still.time > MAX_STILL_COUNTER;
        }
        still.time > MAX_STILL_SENSOR && still.most - still.least > MIN_LOAD_CHANGE * still.most
    }

    fn take(&mut self, joules: Joules) -> Admitted {
        // No growth within half a second is a look between two updates of the counter.
        let settled = self.owed == Joules::ZERO && joules > Joules::ZERO;
        let rest = (joules - self.owed).max(Joules::ZERO);
        // A counter that was away shows all of it at once; one that did not count meanwhile never
        // will.
        if joules > Joules::ZERO {
            self.owed = Joules::ZERO;
        }
        self.since_growth = Seconds::ZERO;
        Admitted { joules: rest, measured: settled }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::EnergySource;

    fn judge(counts: bool) -> Judge {
        Judge::new(&MeterLabel {
            source: EnergySource::Rapl,
            covers: String::new(),
            leaves_out: "",
            interval: Seconds(1.0),
            max_watts: Watts(100.0),
            counts,
            runs_program: false,
        })
    }

    fn grew(joules: f64) -> Result<Look, EnergyError> {
        Ok(Look::Grew { joules: Joules(joules), unchanged: joules == 0.0 })
    }

    fn lost() -> Result<Look, EnergyError> {
        Err(EnergyError::model("gone"))
    }

    #[test]
    fn a_counter_that_was_away_is_counted_once() {
        let mut judge = judge(true);
        let mut sum = 0.0;
        // Ten seconds at 20 W, of which the meter is away for three and stands still for two; the
        // model believes in 15 W.
        for look in
            [grew(20.0), lost(), lost(), lost(), grew(80.0), grew(0.0), grew(0.0), grew(60.0), grew(20.0), grew(20.0)]
        {
            sum += judge.admit(&look, Seconds(1.0), Joules(15.0)).joules.0;
        }
        assert!((sum - 200.0).abs() < 1e-9, "{sum}");
        assert_eq!(judge.faults(), Faults { lost: 3, frozen: 2, ..Faults::default() });
        assert_eq!(judge.doubt(), None);
    }

    #[test]
    fn a_jump_is_replaced_and_nothing_is_owed() {
        let mut judge = judge(true);
        let one = |judge: &mut Judge, look| judge.admit(&look, Seconds(1.0), Joules(15.0));
        one(&mut judge, grew(20.0));
        assert_eq!(one(&mut judge, grew(5_000.0)), Admitted { joules: Joules(15.0), measured: false });
        assert_eq!(judge.doubt(), Some(Doubt::Jumped));
        assert_eq!(one(&mut judge, grew(20.0)), Admitted { joules: Joules(20.0), measured: true });
        assert_eq!(one(&mut judge, Ok(Look::Reset)), Admitted { joules: Joules(15.0), measured: false });
        assert_eq!(one(&mut judge, grew(21.0)), Admitted { joules: Joules(21.0), measured: true });
        assert_eq!(judge.faults(), Faults { jumped: 1, reset: 1, ..Faults::default() });
    }

    #[test]
    fn a_sensor_may_show_one_value_while_the_load_is_steady() {
        let mut steady = judge(false);
        let same = || Ok(Look::Grew { joules: Joules(5.0), unchanged: true });
        for _ in 0..100 {
            assert!(steady.admit(&same(), Seconds(1.0), Joules(5.0)).measured);
        }
        let mut frozen = judge(false);
        for second in 0..100 {
            let predicted = if second % 2 == 0 { 5.0 } else { 9.0 };
            let admitted = frozen.admit(&same(), Seconds(1.0), Joules(predicted));
            assert_eq!(admitted.measured, second < 20, "at {second}");
        }
        assert_eq!(frozen.doubt(), Some(Doubt::Frozen));
        assert!(frozen.admit(&grew(6.0), Seconds(1.0), Joules(9.0)).measured);
    }
}
