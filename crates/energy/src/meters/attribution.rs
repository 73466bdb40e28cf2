//! To whom measured joules belong. Pure.
//!
//! Idle power is set apart first, by the fitted model and never more than was measured. The rest is
//! given out by processor time weighted with V^2 f at the frequency it ran at: to this process's
//! duties, to its time outside duties, and to the other processes of the machine.
//!
//! Invariant: the parts add up to what was measured, and none is below zero.

use ecotone_types::Duty;
use ecotone_types::units::{Hertz, Joules, Seconds};

use crate::account::DUTIES;
use crate::pstate::PStateTable;

/// Processor time of this process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// What for; `None` outside every duty.
    pub duty: Option<Duty>,
    /// How much.
    pub cpu: Seconds,
    /// At which frequency the cores of this duty ran.
    pub frequency: Hertz,
}

/// Joules by what they were used for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attribution {
    /// Of each duty, in the order of `Duty::ALL`.
    pub duties: [f64; DUTIES],
    /// Of this process outside duties.
    pub unattributed: f64,
    /// Of other processes.
    pub others: f64,
    /// Of a machine that does nothing.
    pub idle: f64,
}

impl Attribution {
    /// All of them.
    pub fn total(&self) -> Joules {
        Joules(self.duties.iter().sum::<f64>() + self.unattributed + self.others + self.idle)
    }

    /// Joules of a duty.
    pub fn duty(&self, duty: Duty) -> Joules {
        Joules(self.duties[duty.index()])
    }

    /// What came since `earlier`, of sums that only grow.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let mut grown = *self;
        for (now, then) in grown.duties.iter_mut().zip(earlier.duties) {
            *now = (*now - then).max(0.0);
        }
        grown.unattributed = (self.unattributed - earlier.unattributed).max(0.0);
        grown.others = (self.others - earlier.others).max(0.0);
        grown.idle = (self.idle - earlier.idle).max(0.0);
        grown
    }

    pub(crate) fn add(&mut self, more: &Self) {
        for (sum, more) in self.duties.iter_mut().zip(more.duties) {
            *sum += more;
        }
        self.unattributed += more.unattributed;
        self.others += more.others;
        self.idle += more.idle;
    }
}

/// Gives `measured` joules out: `idle` of them to nobody, the rest in proportion to weighted
/// processor time, of which the whole machine used `machine` and this process `work`.
pub fn attribute(measured: Joules, idle: Joules, machine: Seconds, work: &[Work], table: &PStateTable) -> Attribution {
    let measured = measured.0.max(0.0);
    let weight = |work: &Work| work.cpu.0.max(0.0) * table.relative_power_at(work.frequency);
    let own: f64 = work.iter().map(weight).sum();
    // The machine's counters are coarser than this process's clock.
    let all = machine.0.max(own);
    let mut parts = Attribution { idle: idle.0.clamp(0.0, measured), ..Attribution::default() };
    if all <= 0.0 {
        parts.idle = measured;
        return parts;
    }
    let active = measured - parts.idle;
    for piece in work {
        let joules = active * weight(piece) / all;
        match piece.duty {
            Some(duty) => parts.duties[duty.index()] += joules,
            None => parts.unattributed += joules,
        }
    }
    parts.others = active * ((all - own) / all);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn work(duty: Option<Duty>, cpu: f64, ghz: f64) -> Work {
        Work { duty, cpu: Seconds(cpu), frequency: Hertz(ghz * 1e9) }
    }

    #[test]
    fn by_hand() {
        let table = PStateTable::xeon_silver_4114();
        // 1 s at 2.2 GHz weighs 1; 1 s at 1.0 GHz weighs 0.7396 / 2.662 = 0.277836; others 2 - 1.277836.
        let pieces = [work(Some(Duty::Foreground), 1.0, 2.2), work(Some(Duty::Gc), 1.0, 1.0)];
        let parts = attribute(Joules(50.0), Joules(10.0), Seconds(2.0), &pieces, &table);
        assert!((parts.duty(Duty::Foreground).0 - 20.0).abs() < 1e-9);
        assert!((parts.duty(Duty::Gc).0 - 20.0 * 0.7396 / 2.662).abs() < 1e-9);
        assert!((parts.others - 20.0 * (1.0 - 0.7396 / 2.662)).abs() < 1e-9);
        assert_eq!(parts.idle, 10.0);
        // A machine that did nothing: all is idle. Less measured than idling takes: all is idle.
        assert_eq!(attribute(Joules(9.0), Joules(10.0), Seconds(2.0), &pieces, &table).idle, 9.0);
        assert_eq!(attribute(Joules(50.0), Joules(10.0), Seconds(0.0), &[], &table).idle, 50.0);
    }

    proptest! {
        #[test]
        fn parts_add_up_and_none_is_negative(
            measured in 0.0..1e4f64, idle in -10.0..2e4f64, machine in 0.0..64.0f64,
            pieces in proptest::collection::vec((0usize..=DUTIES, 0.0..4.0f64, 0.0..5.0f64), 0..12)
        ) {
            let pieces: Vec<Work> =
                pieces.iter().map(|(duty, cpu, ghz)| work(Duty::ALL.get(*duty).copied(), *cpu, *ghz)).collect();
            let table = PStateTable::xeon_silver_4114();
            let parts = attribute(Joules(measured), Joules(idle), Seconds(machine), &pieces, &table);
            prop_assert!((parts.total().0 - measured).abs() <= 1e-9 * measured.max(1.0));
            let each = parts.duties.iter().chain([&parts.unattributed, &parts.others, &parts.idle]);
            prop_assert!(each.into_iter().all(|part| *part >= 0.0));
        }
    }
}
