//! The power model of one server: what a second of CPU time costs, at each P-state, and what idling
//! costs.
//!
//! joules = busy core-seconds x active watts at the P-state + elapsed seconds x idle watts
//! (docs/lab.md; the shape of Concerto's section 4, power x time, with its V^2 f for other states).
//! A model, not a measurement: every figure made with it is labelled so.
//!
//! Pure; a model cannot exist with impossible values.

use ecotone_types::units::{Joules, Seconds, Watts};
use serde::{Deserialize, Serialize};

use crate::EnergyError;
use crate::pstate::{PStateIndex, PStateTable};

/// The most watts a model accepts, for a core or a whole server: ten times a large server; above it
/// a unit was mistaken.
pub const MAX_WATTS: f64 = 10_000.0;

/// What a server's cores cost. Cheap to copy behind an `Arc`; valid by construction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "PowerModelKeys", into = "PowerModelKeys")]
pub struct PowerModel {
    keys: PowerModelKeys,
}

/// The keys of a power model as they are written in a configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerModelKeys {
    /// Watts of the whole server when nothing runs; 0 to [`MAX_WATTS`].
    pub idle_watts: f64,
    /// Watts that one busy core adds at the highest P-state; above 0, at most [`MAX_WATTS`].
    pub active_watts: f64,
    /// The P-states of a core, highest frequency first. Default: Intel Xeon Silver 4114.
    #[serde(default = "PStateTable::xeon_silver_4114")]
    pub p_states: PStateTable,
    /// Absent on real hardware. For an emulated core: its speed at the highest P-state as a share
    /// of a host core, above 0, at most 1. A core of speed s turns c seconds of host CPU time into
    /// c/s busy seconds of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_speed: Option<f64>,
}

impl PowerModel {
    /// A checked model.
    ///
    /// # Errors
    /// [`EnergyError::Model`] naming the key whose value is impossible.
    pub fn new(keys: PowerModelKeys) -> Result<Self, EnergyError> {
        let in_watts = |value: f64| value.is_finite() && value <= MAX_WATTS;
        if !(in_watts(keys.idle_watts) && keys.idle_watts >= 0.0) {
            return Err(EnergyError::model(format!("idle_watts is {}; give 0 to {MAX_WATTS}", keys.idle_watts)));
        }
        if !(in_watts(keys.active_watts) && keys.active_watts > 0.0) {
            let value = keys.active_watts;
            return Err(EnergyError::model(format!(
                "active_watts is {value}; give a value above 0, at most {MAX_WATTS}"
            )));
        }
        if let Some(speed) = keys.core_speed
            && !(speed > 0.0 && speed <= 1.0)
        {
            return Err(EnergyError::model(format!(
                "core_speed is {speed}; give a share of a host core above 0, at most 1, or leave it out on real hardware"
            )));
        }
        Ok(Self { keys })
    }

    /// A model of emulated cores with the default P-states: `core_speed` of a host core each.
    ///
    /// # Errors
    /// As [`PowerModel::new`].
    pub fn emulated(idle_watts: f64, active_watts: f64, core_speed: f64) -> Result<Self, EnergyError> {
        let p_states = PStateTable::xeon_silver_4114();
        Self::new(PowerModelKeys { idle_watts, active_watts, p_states, core_speed: Some(core_speed) })
    }

    /// A model of this machine's own cores with the default P-states.
    ///
    /// # Errors
    /// As [`PowerModel::new`].
    pub fn hardware(idle_watts: f64, active_watts: f64) -> Result<Self, EnergyError> {
        let p_states = PStateTable::xeon_silver_4114();
        Self::new(PowerModelKeys { idle_watts, active_watts, p_states, core_speed: None })
    }

    /// The keys this model was made of.
    pub fn keys(&self) -> &PowerModelKeys {
        &self.keys
    }

    /// The P-states of a core.
    pub fn p_states(&self) -> &PStateTable {
        &self.keys.p_states
    }

    /// The same with other watts.
    ///
    /// # Errors
    /// As [`PowerModel::new`].
    pub fn with_watts(&self, idle: Watts, active: Watts) -> Result<Self, EnergyError> {
        Self::new(PowerModelKeys { idle_watts: idle.0, active_watts: active.0, ..self.keys.clone() })
    }

    /// The same with other P-states.
    pub fn with_p_states(&self, p_states: PStateTable) -> Self {
        Self { keys: PowerModelKeys { p_states, ..self.keys.clone() } }
    }

    /// Watts of the whole server when nothing runs.
    pub fn idle_watts(&self) -> Watts {
        Watts(self.keys.idle_watts)
    }

    /// Watts that one busy core adds at a P-state: active_watts x V^2 f / (Vmax^2 fmax) (Concerto,
    /// section 2.1).
    pub fn active_watts(&self, p_state: PStateIndex) -> Watts {
        Watts(self.keys.active_watts * self.p_states().relative_power(p_state))
    }

    /// Seconds of host CPU time that a core busy for one second uses. 1 on real hardware at every
    /// P-state (a slow core is busy longer by itself); for an emulated core core_speed x f / fmax,
    /// which is what its quota gives.
    pub fn core_speed(&self, p_state: PStateIndex) -> f64 {
        match self.keys.core_speed {
            None => 1.0,
            Some(speed) => speed * self.p_states().relative_speed(p_state),
        }
    }

    /// How long a core was busy to use this much host CPU time.
    pub fn busy(&self, cpu: Seconds, p_state: PStateIndex) -> Seconds {
        Seconds(cpu.0 / self.core_speed(p_state))
    }

    /// Joules of this much host CPU time at a P-state, idle power not included.
    pub fn active_joules(&self, cpu: Seconds, p_state: PStateIndex) -> Joules {
        Joules(self.busy(cpu, p_state).0 * self.active_watts(p_state).0)
    }

    /// Joules of the server's idle power over a time.
    pub fn idle_joules(&self, elapsed: Seconds) -> Joules {
        Joules(elapsed.0 * self.keys.idle_watts)
    }
}

impl TryFrom<PowerModelKeys> for PowerModel {
    type Error = EnergyError;

    fn try_from(keys: PowerModelKeys) -> Result<Self, EnergyError> {
        Self::new(keys)
    }
}

impl From<PowerModel> for PowerModelKeys {
    fn from(model: PowerModel) -> Self {
        model.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9 * b.abs().max(1.0)
    }

    #[test]
    fn an_emulated_core_is_busy_longer_than_its_host_cpu_time() {
        let model = PowerModel::emulated(2.0, 6.0, 0.25).unwrap();
        // 1.5 s of host CPU on a quarter core: busy for 6 s, at 6 W = 36 J.
        assert!(close(model.busy(Seconds(1.5), 0).0, 6.0));
        assert!(close(model.active_joules(Seconds(1.5), 0).0, 36.0));
        // At 1.0 of 2.2 GHz the same CPU time is 6 x 2.2 = 13.2 s at 6 x 0.7396 / 2.662 W.
        assert!(close(model.busy(Seconds(1.5), 6).0, 13.2));
        assert!(close(model.active_joules(Seconds(1.5), 6).0, 13.2 * 6.0 * 0.7396 / 2.662));
        assert!(close(model.idle_joules(Seconds(10.0)).0, 20.0));
    }

    #[test]
    fn on_hardware_busy_time_is_cpu_time_at_every_state() {
        let model = PowerModel::hardware(5.0, 10.0).unwrap();
        for p_state in 0..7 {
            assert!(close(model.busy(Seconds(3.0), p_state).0, 3.0));
        }
        assert!(close(model.active_joules(Seconds(3.0), 6).0, 30.0 * 0.7396 / 2.662));
    }

    #[test]
    fn impossible_models_are_refused_with_the_key() {
        for (idle, active, speed, key) in [
            (-1.0, 1.0, 0.5, "idle_watts is -1"),
            (f64::NAN, 1.0, 0.5, "idle_watts"),
            (1.0, 0.0, 0.5, "active_watts is 0"),
            (1.0, 20_000.0, 0.5, "active_watts is 20000"),
            (1.0, 1.0, 0.0, "core_speed is 0"),
            (1.0, 1.0, 1.5, "core_speed is 1.5"),
            (1.0, 1.0, f64::NAN, "core_speed"),
        ] {
            let message = PowerModel::emulated(idle, active, speed).expect_err(key).to_string();
            assert!(message.contains(key), "{message:?} should name {key:?}");
        }
    }

    #[test]
    fn configuration_is_checked_while_it_is_read() {
        let read = |keys: &[(&'static str, f64)]| {
            let keys = serde::de::value::MapDeserializer::<_, serde::de::value::Error>::new(keys.iter().copied());
            PowerModel::deserialize(keys).map_err(|error| error.to_string())
        };
        let model = read(&[("idle_watts", 2.0), ("active_watts", 6.0)]).unwrap();
        assert_eq!(model, PowerModel::hardware(2.0, 6.0).unwrap());
        for (keys, part) in [
            (vec![("idle_watts", 2.0), ("active_watts", -6.0)], "active_watts is -6"),
            (vec![("idle_watts", 2.0), ("active_watts", 6.0), ("idle_wats", 1.0)], "idle_wats"),
            (vec![("active_watts", 6.0)], "idle_watts"),
        ] {
            let error = read(&keys).expect_err(part);
            assert!(error.contains(part), "{error:?} should name {part:?}");
        }
    }
}
