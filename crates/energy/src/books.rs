//! Joules of a server with a meter, from its start on. Pure.
//!
//! Until the meter's joules can be given out, in the first minute, those of the model count, and the
//! meter's of that time are dropped: a second is counted once. So the sums never fall.

use ecotone_types::Duty;

use crate::meters::{Attribution, MeterReport};
use crate::reading::{IDLE, Reading, UNATTRIBUTED};

/// The joules so far, and what each source had given when it was looked at last.
#[derive(Debug, Default)]
pub(crate) struct Books {
    sum: Attribution,
    given_out: Attribution,
    modelled: Attribution,
    is_measured: bool,
}

/// The joules of a reading.
pub(crate) fn joules_of(reading: &Reading) -> Attribution {
    let of = |name: &str| reading.energy_joules_by_duty.get(name).copied().unwrap_or(0.0);
    let mut joules = Attribution { unattributed: of(UNATTRIBUTED), idle: of(IDLE), ..Attribution::default() };
    for duty in Duty::ALL {
        joules.duties[duty.index()] = of(duty.name());
    }
    joules
}

impl Books {
    /// Takes in what the meter has given out and what the model says since the start; gives what
    /// was used since the last call.
    pub(crate) fn close(&mut self, report: &MeterReport, reading: &Reading) -> Attribution {
        let modelled = joules_of(reading);
        let by_model = modelled.since(&self.modelled);
        let by_meter = report.joules.since(&self.given_out);
        (self.modelled, self.given_out) = (modelled, report.joules);
        let used = if self.is_measured { by_meter } else { by_model };
        // What was held is given out at once, at the end of the first minute.
        self.is_measured |= report.joules.total().0 > 0.0 && report.held.0 == 0.0;
        self.sum.add(&used);
        used
    }

    pub(crate) fn is_measured(&self) -> bool {
        self.is_measured
    }

    pub(crate) fn sum(&self) -> &Attribution {
        &self.sum
    }
}
