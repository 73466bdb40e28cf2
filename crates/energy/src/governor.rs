//! Frequency governors: set a P-state, and tell the meter in the same breath, so that joules are
//! priced at the frequency they were used at.

use std::sync::Arc;

use crate::EnergyError;
use crate::cores::CoreGroups;
use crate::meter::EnergyMeter;
use crate::pstate::PStateIndex;

/// Sets the frequency of a server's cores.
pub trait FrequencyGovernor: Send + Sync {
    /// Runs all cores at a P-state of the server's power model: 0 is the highest, beyond the table
    /// means its lowest.
    ///
    /// # Errors
    /// [`EnergyError`] if the frequency cannot be set; it is then as before.
    fn set_p_state(&self, p_state: PStateIndex) -> Result<(), EnergyError>;

    /// The P-state now.
    fn p_state(&self) -> PStateIndex;
}

/// Sets the frequency of emulated cores by changing their quotas: speed = core_speed x f / fmax.
pub struct QuotaGovernor {
    meter: Arc<EnergyMeter>,
    groups: CoreGroups,
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
        crate::cores::CoreQuota::for_speed(model.core_speed(model.p_states().lowest()))?;
        Ok(Self { meter, groups })
    }
}

impl FrequencyGovernor for QuotaGovernor {
    fn set_p_state(&self, p_state: PStateIndex) -> Result<(), EnergyError> {
        self.groups.set_speed(self.meter.model().core_speed(p_state))?;
        self.meter.set_p_state(p_state);
        Ok(())
    }

    fn p_state(&self) -> PStateIndex {
        self.meter.p_state()
    }
}
