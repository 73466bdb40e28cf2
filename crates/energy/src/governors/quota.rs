//! The governor of emulated cores: changes their quotas, speed = core_speed x f / fmax, one domain
//! for each core.

use std::sync::Arc;

use ecotone_types::units::Hertz;
use parking_lot::Mutex;

use super::{Capped, FrequencyDomain, FrequencyGovernor};
use crate::EnergyError;
use crate::cores::{CoreGroups, CoreQuota, ThreadGroup};
use crate::meter::EnergyMeter;
use crate::model::PowerModel;
use crate::pstate::PStateIndex;

/// Sets the frequency of emulated cores by the P-states of their power model.
///
/// While all cores have one P-state the meter is set to it in the same breath, so that joules are
/// priced at the frequency they were used at. Where they differ, the caller says which class of
/// cores is at which ([`EnergyMeter::set_class_p_state`]), as only it knows the classes. Threads
/// without a core are as fast as the fastest one.
pub struct QuotaGovernor {
    meter: Arc<EnergyMeter>,
    model: PowerModel,
    groups: CoreGroups,
    domains: Arc<[FrequencyDomain]>,
    states: Mutex<Vec<PStateIndex>>,
}

impl QuotaGovernor {
    /// A governor for the cores of a server whose energy `meter` counts.
    ///
    /// # Errors
    /// [`EnergyError::Model`] if the meter's model has no `core_speed`, [`EnergyError::CoreSpeed`]
    /// if its lowest P-state is slower than a quota can be.
    pub fn new(meter: Arc<EnergyMeter>, groups: CoreGroups) -> Result<Self, EnergyError> {
        let model = meter.model();
        if model.keys().core_speed.is_none() {
            return Err(EnergyError::model(
                "core_speed is missing; emulated cores need their speed at the highest P-state",
            ));
        }
        let table = model.p_states();
        CoreQuota::for_speed(model.core_speed(table.lowest()))?;
        let domain = |core| FrequencyDomain {
            cores: vec![core],
            lowest: table.frequency(table.lowest()),
            highest: table.frequency(0),
            steps: table.states().iter().map(|state| Hertz(state.frequency_hz)).collect(),
        };
        let domains: Arc<[FrequencyDomain]> = (0..groups.cores()).map(domain).collect();
        let states = Mutex::new(vec![meter.p_state(); domains.len()]);
        Ok(Self { meter, model, groups, domains, states })
    }

    /// Runs all cores, and the server's other threads, at a P-state of the server's power model: 0
    /// is the highest, beyond the table means its lowest.
    ///
    /// # Errors
    /// [`EnergyError`] if the frequency cannot be set.
    pub fn set_p_state(&self, p_state: PStateIndex) -> Result<(), EnergyError> {
        let mut states = self.states.lock();
        self.groups.set_speed(self.model.core_speed(p_state))?;
        self.meter.set_p_state(p_state);
        states.fill(self.meter.p_state());
        Ok(())
    }

    /// The P-state of the server's threads without a duty, and of all cores unless they were capped
    /// one by one.
    pub fn p_state(&self) -> PStateIndex {
        self.meter.p_state()
    }
}

impl FrequencyGovernor for QuotaGovernor {
    fn name(&self) -> &'static str {
        "quota"
    }

    fn domains(&self) -> Arc<[FrequencyDomain]> {
        self.domains.clone()
    }

    fn is_online(&self, domain: usize) -> bool {
        domain < self.domains.len()
    }

    fn cap(&self, domain: usize, highest: Hertz) -> Result<Capped, EnergyError> {
        let mut states = self.states.lock();
        let Some(state) = states.get_mut(domain) else { return Ok(Capped::Offline) };
        let p_state = self.model.p_states().highest_within(highest);
        // Domains are as many as cores, whose number is a u32.
        let core = self.domains[domain].cores[0];
        self.groups.set_group_speed(ThreadGroup::Core(core), self.model.core_speed(p_state))?;
        *state = p_state;
        let fastest = states.iter().copied().min().unwrap_or(p_state);
        self.groups.set_group_speed(ThreadGroup::Rest, self.model.core_speed(fastest))?;
        if states.iter().all(|state| *state == p_state) {
            self.meter.set_p_state(p_state);
        }
        Ok(Capped::At(self.model.p_states().frequency(p_state)))
    }

    fn reached(&self, domain: usize) -> Option<Hertz> {
        let core = *self.domains.get(domain)?.cores.first()?;
        // What the quota says, not what was asked for.
        let share = self.groups.core_speed(core).ok()? / self.model.core_speed(0);
        Some(Hertz(share * self.model.p_states().frequency(0).0))
    }

    fn restore(&self) -> Result<(), EnergyError> {
        self.set_p_state(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::CgroupVersion;
    use ecotone_types::CoreClass;
    use std::fs;
    use std::path::Path;

    /// Plain files in the shape of a server that the lab made, of two cores of half a host core.
    fn server(folder: &Path) {
        fs::write(folder.join("cpu.max"), "").unwrap();
        for group in ["rest", "core-0", "core-1"] {
            fs::create_dir(folder.join(group)).unwrap();
            fs::write(folder.join(group).join("cgroup.type"), "threaded\n").unwrap();
            fs::write(folder.join(group).join("cpu.max"), "10000 20000\n").unwrap();
        }
    }

    #[test]
    fn each_core_has_its_own_frequency() {
        let dir = tempfile::tempdir().unwrap();
        server(dir.path());
        let groups = CoreGroups::open(dir.path()).unwrap();
        assert_eq!(groups.version(), CgroupVersion::V2);
        let meter = EnergyMeter::start(PowerModel::emulated(2.0, 6.0, 0.5).unwrap()).unwrap();
        let governor = QuotaGovernor::new(meter.clone(), groups).unwrap();
        assert_eq!(governor.domains().len(), 2);

        // 1.3 GHz lies between states: the one below it, 1.2 GHz.
        assert_eq!(governor.cap(1, Hertz(1.3e9)).unwrap(), Capped::At(Hertz(1.2e9)));
        assert!((governor.reached(1).unwrap().0 - 1.2e9).abs() < 0.01e9);
        assert!((governor.reached(0).unwrap().0 - 2.2e9).abs() < 0.01e9);
        assert_eq!(meter.p_state(), 0, "cores differ");
        meter.set_class_p_state(CoreClass::Slow, 5);
        assert_eq!((meter.class_p_state(CoreClass::Slow), meter.class_p_state(CoreClass::Fast)), (5, 0));
        // Below the table is its lowest; now both are there, and the meter follows.
        governor.cap(0, Hertz(0.0)).unwrap();
        governor.cap(1, Hertz(1.0e9)).unwrap();
        assert_eq!((meter.p_state(), meter.class_p_state(CoreClass::Slow)), (6, 6));
        assert_eq!(governor.cap(2, Hertz(1.0e9)).unwrap(), Capped::Offline);

        governor.restore().unwrap();
        assert_eq!(governor.p_state(), 0);
        for core in 0..2 {
            assert!((governor.reached(core).unwrap().0 - 2.2e9).abs() < 0.01e9);
        }
    }
}
