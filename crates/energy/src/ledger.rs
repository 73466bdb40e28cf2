//! Prices CPU time: turns the growth of CPU counters into joules at the P-state they grew in. Pure.
//!
//! Invariant: every nanosecond of the process is priced once, at the P-state that was current
//! between two calls of [`Ledger::settle`]; so settle before a P-state changes. All figures only
//! grow.

use std::collections::BTreeMap;

use ecotone_types::units::{Seconds, Watts};
use ecotone_types::{CoreClass, Duty};

use crate::EnergyError;
use crate::account::{ACCOUNTS, CpuByAccount, account_of};
use crate::model::PowerModel;
use crate::pstate::PStateIndex;
use crate::reading::{EnergySource, IDLE, Reading, UNATTRIBUTED};

/// The books of one meter.
#[derive(Debug)]
pub(crate) struct Ledger {
    model: PowerModel,
    /// Of the threads without a duty.
    p_state: PStateIndex,
    /// Of each account.
    p_states: [PStateIndex; ACCOUNTS],
    elapsed_ns: u64,
    process_ns: u64,
    cpu_ns: CpuByAccount,
    unattributed_ns: u64,
    joules: [f64; ACCOUNTS],
    unattributed_joules: f64,
    idle_joules: f64,
    busy_core_seconds: f64,
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl Ledger {
    pub(crate) fn new(model: PowerModel) -> Self {
        Self {
            model,
            p_state: 0,
            p_states: [0; ACCOUNTS],
            elapsed_ns: 0,
            process_ns: 0,
            cpu_ns: [0; ACCOUNTS],
            unattributed_ns: 0,
            joules: [0.0; ACCOUNTS],
            unattributed_joules: 0.0,
            idle_joules: 0.0,
            busy_core_seconds: 0.0,
        }
    }

    /// Takes in the counters since the start: CPU time by account, of the whole process, and
    /// wall-clock time. A counter that reads lower than before is taken as unchanged.
    pub(crate) fn settle(&mut self, cpu_ns: &CpuByAccount, process_ns: u64, elapsed_ns: u64) {
        for (i, &now) in cpu_ns.iter().enumerate() {
            let grown = now.saturating_sub(self.cpu_ns[i]);
            self.cpu_ns[i] += grown;
            self.joules[i] += self.price(grown, self.p_states[i]);
        }
        self.process_ns = self.process_ns.max(process_ns);
        // The kernel brings the counters of running threads up to date at different moments, so the
        // difference may shrink for an instant; it is priced when it grows beyond what was priced
        // before.
        let outside = self.process_ns.saturating_sub(self.cpu_ns.iter().sum());
        let grown = outside.saturating_sub(self.unattributed_ns);
        self.unattributed_ns += grown;
        self.unattributed_joules += self.price(grown, self.p_state);
        let elapsed = elapsed_ns.saturating_sub(self.elapsed_ns);
        self.elapsed_ns += elapsed;
        self.idle_joules += self.model.idle_joules(Seconds(seconds(elapsed))).0;
    }

    fn price(&mut self, cpu_ns: u64, p_state: PStateIndex) -> f64 {
        let cpu = Seconds(seconds(cpu_ns));
        self.busy_core_seconds += self.model.busy(cpu, p_state).0;
        self.model.active_joules(cpu, p_state).0
    }

    /// Prices what comes from now on at another P-state; beyond the table means its lowest.
    pub(crate) fn set_p_state(&mut self, p_state: PStateIndex) {
        self.p_state = p_state.min(self.model.p_states().lowest());
        self.p_states = [self.p_state; ACCOUNTS];
    }

    /// The same for duties on cores of one class. Threads without a duty are on fast ones.
    pub(crate) fn set_class_p_state(&mut self, class: CoreClass, p_state: PStateIndex) {
        let p_state = p_state.min(self.model.p_states().lowest());
        for duty in Duty::ALL {
            self.p_states[account_of(duty, class)] = p_state;
        }
        if class == CoreClass::Fast {
            self.p_state = p_state;
        }
    }

    pub(crate) fn account_p_state(&self, account: usize) -> PStateIndex {
        self.p_states[account]
    }

    pub(crate) fn class_p_state(&self, class: CoreClass) -> PStateIndex {
        self.p_states[account_of(Duty::Foreground, class)]
    }

    /// Prices what comes from now on with other watts.
    pub(crate) fn set_watts(&mut self, idle: Watts, active: Watts) -> Result<(), EnergyError> {
        self.model = self.model.with_watts(idle, active)?;
        Ok(())
    }

    /// CPU time by account, and outside all.
    pub(crate) fn cpu_ns(&self) -> (&CpuByAccount, u64) {
        (&self.cpu_ns, self.unattributed_ns)
    }

    pub(crate) fn p_state(&self) -> PStateIndex {
        self.p_state
    }

    pub(crate) fn model(&self) -> &PowerModel {
        &self.model
    }

    pub(crate) fn reading(&self, unbalanced_switches: u64) -> Reading {
        let by_duty = |value: &dyn Fn(usize) -> f64| -> BTreeMap<String, f64> {
            let both = |duty| value(account_of(duty, CoreClass::Fast)) + value(account_of(duty, CoreClass::Slow));
            Duty::ALL.into_iter().map(|duty| (duty.name().to_owned(), both(duty))).collect()
        };
        let elapsed = Seconds(seconds(self.elapsed_ns));
        let mut energy = by_duty(&|i| self.joules[i]);
        energy.insert(IDLE.to_owned(), self.idle_joules);
        energy.insert(UNATTRIBUTED.to_owned(), self.unattributed_joules);
        Reading {
            seconds: elapsed.0,
            process_cpu_seconds: seconds(self.process_ns),
            cpu_seconds_by_duty: by_duty(&|i| seconds(self.cpu_ns[i])),
            unattributed_cpu_seconds: seconds(self.unattributed_ns),
            busy_core_seconds: self.busy_core_seconds,
            total_joules: energy.values().sum(),
            energy_joules_by_duty: energy,
            source: EnergySource::Model,
            frequency_hz: self.model.p_states().frequency(self.p_state).0,
            unbalanced_switches,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9 * b.abs().max(1.0)
    }

    /// A Low server of the lab: 2 W idle, 6 W a busy core, cores of 0.07 of a host core.
    fn ledger() -> Ledger {
        Ledger::new(PowerModel::emulated(2.0, 6.0, 0.07).unwrap())
    }

    fn cpu(pairs: &[(Duty, u64)]) -> CpuByAccount {
        let mut all = [0; ACCOUNTS];
        for &(duty, ns) in pairs {
            all[duty as usize] = ns;
        }
        all
    }

    #[test]
    fn joules_by_hand() {
        let mut ledger = ledger();
        // 10 s of wall clock; 0.7 s of host CPU in foreground = 10 busy s = 60 J; 0.35 s in
        // compaction = 5 s = 30 J; 0.07 s outside = 1 s = 6 J; idle 20 J.
        let counters = cpu(&[(Duty::Foreground, 7 * SECOND / 10), (Duty::Compaction, 35 * SECOND / 100)]);
        ledger.settle(&counters, 112 * SECOND / 100, 10 * SECOND);
        let reading = ledger.reading(0);
        assert!(close(reading.energy(Duty::Foreground).0, 60.0));
        assert!(close(reading.energy(Duty::Compaction).0, 30.0));
        assert!(close(reading.energy(Duty::Worker).0, 0.0));
        assert!(close(reading.unattributed().0, 6.0));
        assert!(close(reading.idle().0, 20.0));
        assert!(close(reading.total().0, 116.0));
        assert!(close(reading.busy_core_seconds, 16.0));
        assert!(close(reading.unattributed_share(), 0.07 / 1.12));
        assert_eq!(reading.source.name(), "model");
        assert_eq!(reading.energy_joules_by_duty.len(), Duty::ALL.len() + 2);
    }

    #[test]
    fn each_second_is_priced_at_its_own_frequency() {
        let mut ledger = Ledger::new(PowerModel::hardware(0.0, 10.0).unwrap());
        ledger.settle(&cpu(&[(Duty::Worker, 2 * SECOND)]), 2 * SECOND, 2 * SECOND);
        ledger.set_p_state(6);
        ledger.settle(&cpu(&[(Duty::Worker, 5 * SECOND)]), 5 * SECOND, 5 * SECOND);
        ledger.set_p_state(99); // beyond the table: the lowest, which it has already
        ledger.settle(&cpu(&[(Duty::Worker, 6 * SECOND)]), 6 * SECOND, 6 * SECOND);
        // 2 s x 10 W + 4 s x 10 W x 0.7396 / 2.662.
        let reading = ledger.reading(0);
        assert!(close(reading.energy(Duty::Worker).0, 20.0 + 40.0 * 0.7396 / 2.662));
        assert!(close(reading.frequency_hz, 1.0e9));
    }

    #[test]
    fn no_figure_ever_falls_and_nothing_is_priced_twice() {
        let mut ledger = ledger();
        ledger.settle(&cpu(&[(Duty::Flush, SECOND)]), 3 * SECOND, 4 * SECOND);
        let before = ledger.reading(0);
        // The process counter lags behind: the difference shrinks from 2 s to 1 s, then grows to
        // 2.5 s.
        ledger.settle(&cpu(&[(Duty::Flush, 2 * SECOND)]), 3 * SECOND, 5 * SECOND);
        let between = ledger.reading(0);
        assert!(close(between.unattributed_cpu_seconds, before.unattributed_cpu_seconds));
        ledger.settle(&cpu(&[(Duty::Flush, 2 * SECOND)]), 4 * SECOND + SECOND / 2, 6 * SECOND);
        let after = ledger.reading(0);
        assert!(close(after.unattributed_cpu_seconds, 2.5));
        let difference = after.since(&before);
        assert!(close(difference.cpu(Duty::Flush).0, 1.0));
        assert!(close(difference.unattributed_cpu_seconds, 0.5));
        assert!(close(difference.total().0, 1.5 / 0.07 * 6.0 + 2.0 * 2.0));
    }

    /// All figures of a reading that add up from the start.
    fn sums(reading: &Reading) -> Vec<f64> {
        let by_duty = [&reading.cpu_seconds_by_duty, &reading.energy_joules_by_duty];
        let whole = [
            reading.seconds,
            reading.process_cpu_seconds,
            reading.unattributed_cpu_seconds,
            reading.busy_core_seconds,
            reading.total_joules,
        ];
        by_duty.into_iter().flat_map(|sums| sums.values().copied()).chain(whole).collect()
    }

    #[test]
    fn slow_cores_have_a_frequency_of_their_own() {
        let mut ledger = Ledger::new(PowerModel::hardware(0.0, 10.0).unwrap());
        ledger.set_class_p_state(CoreClass::Slow, 6);
        let mut counters = cpu(&[(Duty::Gc, SECOND), (Duty::Flush, SECOND)]);
        counters[account_of(Duty::Gc, CoreClass::Slow)] = SECOND;
        ledger.settle(&counters, 4 * SECOND, SECOND);
        let reading = ledger.reading(0);
        assert!(close(reading.energy(Duty::Gc).0, 10.0 + 10.0 * 0.7396 / 2.662));
        assert!(close(reading.cpu(Duty::Gc).0, 2.0));
        assert!(close(reading.energy(Duty::Flush).0, 10.0) && close(reading.unattributed().0, 10.0));
        // One for all ends it.
        ledger.set_p_state(0);
        assert_eq!(ledger.class_p_state(CoreClass::Slow), 0);
    }

    #[test]
    fn other_watts_count_from_then_on() {
        let mut ledger = Ledger::new(PowerModel::hardware(5.0, 10.0).unwrap());
        ledger.settle(&cpu(&[(Duty::Flush, SECOND)]), SECOND, 2 * SECOND);
        ledger.set_watts(Watts(1.0), Watts(20.0)).unwrap();
        ledger.settle(&cpu(&[(Duty::Flush, 2 * SECOND)]), 2 * SECOND, 4 * SECOND);
        let reading = ledger.reading(0);
        assert!(close(reading.idle().0, 12.0) && close(reading.energy(Duty::Flush).0, 30.0));
        assert!(ledger.set_watts(Watts(f64::NAN), Watts(20.0)).is_err());
    }

    proptest! {
        /// Metrics of a meter are counters, so they must never fall: whatever the kernel counts, in
        /// whatever order threads hand in what they used.
        #[test]
        fn no_figure_of_a_reading_is_less_than_in_the_one_before(
            looks in proptest::collection::vec(
                (proptest::array::uniform2(0..20 * SECOND), 0..40 * SECOND, 0..40 * SECOND, 0usize..7), 1..40
            )
        ) {
            let mut ledger = ledger();
            let mut before = sums(&ledger.reading(0));
            for ([flush, worker], process, elapsed, state) in looks {
                ledger.settle(&cpu(&[(Duty::Flush, flush), (Duty::Worker, worker)]), process, elapsed);
                let now = sums(&ledger.reading(0));
                prop_assert!(before.iter().zip(&now).all(|(before, now)| now >= before), "{:?} after {:?}", now, before);
                before = now;
                ledger.set_p_state(state);
            }
        }

        /// However often the books are settled and the frequency changes, each interval is priced
        /// once, at its own state.
        #[test]
        fn every_interval_is_priced_once_at_its_own_state(
            intervals in proptest::collection::vec((0usize..ACCOUNTS, 0..SECOND, 0..SECOND, 0usize..7, any::<bool>()), 0..60)
        ) {
            let mut ledger = ledger();
            let model = ledger.model().clone();
            let (mut counters, mut process, mut elapsed) = ([0; ACCOUNTS], 0, 0);
            let (mut joules, mut outside_joules) = (0.0, 0.0);
            for (duty, inside, outside, next_state, settle_twice) in intervals {
                let state = ledger.p_state();
                joules += model.active_joules(Seconds(seconds(inside)), state).0;
                outside_joules += model.active_joules(Seconds(seconds(outside)), state).0;
                counters[duty] += inside;
                process += inside + outside;
                elapsed += inside.max(outside);
                ledger.settle(&counters, process, elapsed);
                if settle_twice {
                    ledger.settle(&counters, process, elapsed);
                }
                ledger.set_p_state(next_state);
            }
            let reading = ledger.reading(0);
            let duties: f64 = Duty::ALL.iter().map(|&d| reading.energy(d).0).sum();
            prop_assert!(close(duties, joules), "{} != {}", duties, joules);
            prop_assert!(close(reading.unattributed().0, outside_joules));
            let cpu: f64 = reading.cpu_seconds_by_duty.values().sum();
            prop_assert!(close(cpu + reading.unattributed_cpu_seconds, reading.process_cpu_seconds));
            prop_assert!(close(reading.total().0, joules + outside_joules + 2.0 * reading.seconds));
        }
    }
}
