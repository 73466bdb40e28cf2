//! Joules, and the frequencies of cores, of a running server: which settings are in force, and the
//! thread that carries them out.
//!
//! A cap of the federation is shared out equally among the servers that hold data: each knows the
//! map, and none needs to know the others' processors. What one server does not need another one
//! does not get.

use std::path::Path;
use std::sync::Arc;

use ecotone_control::map::{Map, Role, ServerState};
use ecotone_control::settings::Power;
use ecotone_energy::cores::{CoreBinder, CoreGroups};
use ecotone_energy::{Driver, DriverOptions, EnergyMeter, EnergyThread, Governing};
use ecotone_membership::Membership;
use ecotone_policy::power::PowerSettings;
use ecotone_types::units::Watts;

use crate::error::{Error, Result};
use crate::options::ServeOptions;

/// The file in a server's folder that holds the limits of frequencies from before it lowered any.
pub const LIMITS_FILE: &str = "frequencies";

/// Servers that hold data, or may. One that is being emptied draws power as the others do.
fn holders(map: &Map) -> usize {
    let runs = |state: ServerState| matches!(state, ServerState::Active | ServerState::Draining);
    map.members().filter(|(_, server)| runs(server.state) && server.role != Role::Witness).count()
}

/// What is in force on one server: what the federation has set, else what the server is configured
/// to do.
pub(crate) fn in_force(configured: PowerSettings, map: Option<&Map>) -> PowerSettings {
    let Some(map) = map else { return configured };
    let power = Power::of(map);
    let mode = power.mode.and_then(|mode| mode.parse().ok()).unwrap_or(configured.mode);
    let share = power.cap_watts.map(|watts| Watts(watts as f64 / holders(map).max(1) as f64));
    PowerSettings { mode, cap: share.or(configured.cap) }
}

/// Starts the thread.
///
/// # Errors
/// No thread; emulated cores that are none.
pub(crate) fn start(
    options: &ServeOptions,
    meter: &Arc<EnergyMeter>,
    binder: &Arc<dyn CoreBinder>,
    membership: Option<&Arc<Membership>>,
) -> Result<Arc<EnergyThread>> {
    let governing = match &options.emulated {
        Some(emulated) => Governing::Emulated(CoreGroups::open(&emulated.cgroup)?),
        None => Governing::Machine { root: options.machine_root.clone(), record: options.directory.join(LIMITS_FILE) },
    };
    let driver = Driver::start(DriverOptions { meter: meter.clone(), binder: binder.clone(), governing })?;
    let (configured, membership) = (options.power, membership.map(Arc::downgrade));
    let settings = move || {
        let membership = membership.as_ref().and_then(std::sync::Weak::upgrade);
        in_force(configured, membership.map(|membership| membership.known()).as_ref().map(|known| &*known.map))
    };
    let thread = EnergyThread::start(driver, meter.clone(), settings);
    Ok(Arc::new(thread.map_err(|source| Error::Thread { what: "the energy meter", source })?))
}

/// Brings back the limits that a server left whose folder this is, unless it runs. Gives how many.
///
/// # Errors
/// What could not be restored.
pub fn restore_frequencies(directory: &Path) -> Result<usize> {
    Ok(ecotone_energy::governors::cpufreq::restore(Path::new("/"), &directory.join(LIMITS_FILE))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ecotone_policy::power::PowerMode;

    #[test]
    fn modes_have_the_names_that_the_federation_takes() {
        let names: Vec<&str> = PowerMode::ALL.iter().map(|mode| mode.name()).collect();
        assert_eq!(names, ecotone_control::settings::POWER_MODES);
    }

    #[test]
    fn the_federation_wins_and_shares_its_cap_out() {
        let configured = PowerSettings { mode: PowerMode::AllLow, cap: Some(Watts(7.0)) };
        assert_eq!(in_force(configured, None), configured);
        let known = crate::host::federation::tests::federation(&["a", "b", "c"]);
        assert_eq!(in_force(configured, Some(&known.map)), configured);
        let mut map = ecotone_control::map::Map::clone(&known.map);
        map.settings.insert("power.mode".into(), "concerto".into());
        map.settings.insert("power.cap_watts".into(), "90".into());
        let shared = PowerSettings { mode: PowerMode::Concerto, cap: Some(Watts(30.0)) };
        assert_eq!(in_force(configured, Some(&map)), shared);
        // One that is being emptied runs, and draws its share, until it is gone.
        let set = |map: &mut ecotone_control::map::Map, state| map.servers.values_mut().last().unwrap().state = state;
        set(&mut map, ServerState::Draining);
        assert_eq!(in_force(configured, Some(&map)), shared);
        set(&mut map, ServerState::Removed);
        assert_eq!(in_force(configured, Some(&map)).cap, Some(Watts(45.0)));
        set(&mut map, ServerState::Active);
        // What an older build has let in.
        map.settings.insert("power.mode".into(), "fast".into());
        assert_eq!(in_force(configured, Some(&map)).mode, PowerMode::AllLow);
    }
}
