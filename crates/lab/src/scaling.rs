//! How fast each emulated core may be, so that all busy cores of all servers fit the host at once.
//!
//! The rule: a server can keep `busy` of its cores busy: one for each foreground thread, flush, own
//! compaction, job of others, co-located thread, and one for all the rest (transport, reports), but
//! no more than it has. Jobs of others are at most its worker slots, and at most the compactions
//! that all others run. With a scale k in host cores per GHz, `speed = ghz * k`; k is the largest
//! for which the busy cores of all servers together use at most [`HOST_SHARE`] of the host and no
//! core is faster than a host core.

use ecotone_engine::{DEFAULT_SEPARATION_BYTES, StoreSettings};
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::profile::{Profile, StoreProfile, WorkloadSizes};

/// Share of the host that emulated cores may use. The rest is for the lab itself and the kernel.
pub const HOST_SHARE: f64 = 0.97;
/// Slowest emulated core: the kernel's least quota is 1 ms, and a longer period would look like a
/// stall.
pub const MIN_SPEED: f64 = ecotone_energy::cores::MIN_CORE_SPEED;
/// Steps in which servers that may be reduced lose cores: eighths of what they have.
const REDUCTION_STEPS: u32 = 8;

/// The machine a lab ran on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Cores this process may use.
    pub cores: f64,
    /// The processor's name, if the system tells it.
    pub cpu: String,
    /// Operating system and architecture.
    pub system: String,
}

impl Host {
    /// The machine this process runs on.
    pub fn here() -> Host {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        let cores = ecotone_energy::host_cores().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot tell how many cores this process may use; counting processors");
            std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
        });
        Host {
            cores,
            cpu: cpu.unwrap_or_else(|| "unknown processor".to_owned()),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        }
    }
}

/// What the run asks of each server besides its own background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Client threads of the workload.
    pub foreground_threads: u32,
    /// Co-located threads on [`Profile::colocated_server`].
    pub colocated_threads: u32,
    /// Length of the run.
    pub seconds: u64,
}

/// A profile made to fit a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScaledProfile {
    /// Host cores per GHz; none where the profile gives speeds.
    pub scale: Option<f64>,
    /// Share of the host's cores in use when every server is as busy as it can be.
    pub host_share: f64,
    /// The servers, in the profile's order.
    pub servers: Vec<ScaledServer>,
    /// The stores' settings with sizes scaled.
    pub store: StoreProfile,
    /// The stores' keys, scaled as their sizes.
    #[serde(default)]
    pub workload: WorkloadSizes,
}

/// One server made to fit a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScaledServer {
    /// As in the profile.
    pub name: String,
    /// As in the profile.
    pub tier: String,
    /// Emulated cores, reduced where the host is too small and the profile allows it.
    pub cores: u32,
    /// Cores it can keep busy at once.
    pub busy_cores: u32,
    /// Speed of a core in host cores.
    pub speed: f64,
    /// Watts of one busy core.
    pub active_watts: f64,
    /// Watts of the whole server when nothing runs.
    pub idle_watts: f64,
    /// Jobs of other servers it runs at once.
    pub worker_slots: u32,
    /// Threads that one compaction may be split into on this server where a policy splits at home:
    /// as many as can be busy with compactions of any kind, so that the busy cores are the same
    /// under every policy.
    pub subcompactions: u32,
}

impl Profile {
    /// Makes the profile fit a host of `host_cores` cores.
    ///
    /// # Errors
    /// [`LabError::HostTooSmall`] if the busy cores do not fit, with the host cores it would take.
    pub fn scaled_to(&self, host_cores: f64, demand: Demand) -> Result<ScaledProfile, LabError> {
        let full = self.scaled_with(1.0, host_cores, demand);
        if full.is_ok() || self.servers.iter().all(|server| server.min_cores.is_none()) {
            return full;
        }
        (1..REDUCTION_STEPS)
            .rev()
            .map(|step| self.scaled_with(f64::from(step) / f64::from(REDUCTION_STEPS), host_cores, demand))
            .reduce(|best, next| best.or(next))
            .unwrap_or(full)
    }

    /// Makes the profile fit with only a `share` of the cores of those servers that may be reduced.
    fn scaled_with(&self, share: f64, host_cores: f64, demand: Demand) -> Result<ScaledProfile, LabError> {
        let mut servers: Vec<ScaledServer> = (self.servers.iter().enumerate())
            .map(|(index, server)| {
                let least = server.min_cores.unwrap_or(server.cores);
                let cores = least.max((f64::from(server.cores) * share).ceil() as u32);
                let colocated = if self.colocated_server() == Some(index) { demand.colocated_threads } else { 0 };
                let of_others = self.store.background_compactions * (self.servers.len() as u32 - 1);
                let compactions = self.store.background_compactions + server.worker_slots.min(of_others);
                // One for flushes, one for the rest.
                let wanted = demand.foreground_threads + 1 + compactions + 1 + colocated;
                ScaledServer {
                    name: server.name.clone(),
                    tier: server.tier.clone(),
                    cores,
                    busy_cores: wanted.min(cores),
                    speed: server.speed.or(server.ghz).unwrap_or(1.0),
                    active_watts: server.active_watts,
                    idle_watts: server.idle_watts,
                    worker_slots: server.worker_slots,
                    subcompactions: compactions.min(cores),
                }
            })
            .collect();

        let absolute = self.servers[0].speed.is_some();
        let busy_speed: f64 = servers.iter().map(|server| f64::from(server.busy_cores) * server.speed).sum();
        let slowest = servers.iter().map(|server| server.speed).fold(f64::INFINITY, f64::min);
        let fastest = servers.iter().map(|server| server.speed).fold(0.0, f64::max);
        let too_small = |needed_cores: f64, reason: String| {
            Err(LabError::HostTooSmall { profile: self.name.clone(), needed_cores, host_cores, reason })
        };

        let available = HOST_SHARE * host_cores;
        let scale = if absolute { 1.0 } else { (available / busy_speed).min(1.0 / fastest) };
        // A hair of tolerance, so that a profile that fits exactly is not refused for the last bit
        // of a sum.
        const TOLERANCE: f64 = 1e-9;
        if slowest * scale < MIN_SPEED - TOLERANCE {
            if absolute || slowest / fastest < MIN_SPEED {
                return Err(LabError::Profile {
                    file: self.name.clone(),
                    key: if absolute { "speed" } else { "ghz" }.to_owned(),
                    reason: format!(
                        "the slowest core would have {:.3} of a host core, the least is {MIN_SPEED}",
                        slowest * scale
                    ),
                });
            }
            let needed = MIN_SPEED / slowest * busy_speed / HOST_SHARE;
            return too_small(
                needed,
                format!("its slowest core would have {:.3} of a host core, the least is {MIN_SPEED}", slowest * scale),
            );
        }
        if absolute && busy_speed > available + TOLERANCE {
            let reason = format!("its busy cores add up to {busy_speed:.2} host cores, {available:.2} may be used");
            return too_small(busy_speed / HOST_SHARE, reason);
        }

        for server in &mut servers {
            // Never below by the last bit of a product.
            server.speed = (server.speed * scale).max(MIN_SPEED);
        }
        let scale = (!absolute).then_some(scale);
        let faster = scale.zip(self.store.sizes_at_scale).map(|(scale, at)| scale / at);
        // A longer run shows more of the same; a shorter one would end before anything is seen.
        let shorter = self.store.sizes_at_seconds.map(|at| (demand.seconds as f64 / at as f64).min(1.0));
        let growth = (faster.is_some() || shorter.is_some()).then(|| faster.unwrap_or(1.0) * shorter.unwrap_or(1.0));
        Ok(ScaledProfile {
            scale,
            host_share: servers.iter().map(|server| f64::from(server.busy_cores) * server.speed).sum::<f64>()
                / host_cores,
            servers,
            store: growth.map_or_else(|| self.store.clone(), |growth| self.store.scaled_by(growth)),
            workload: growth.map_or_else(|| self.workload.clone(), |growth| self.workload.scaled_by(growth)),
        })
    }
}

impl WorkloadSizes {
    fn scaled_by(&self, growth: f64) -> WorkloadSizes {
        let scaled = |keys: u64| rounded(keys as f64 * growth, 1000);
        WorkloadSizes { keys_filled: scaled(self.keys_filled), keys_loaded: scaled(self.keys_loaded) }
    }
}

/// A whole number of grains, at least one, so that numbers read well.
fn rounded(number: f64, grain: u64) -> u64 {
    ((number / grain as f64).round().max(1.0) as u64).saturating_mul(grain)
}

impl StoreProfile {
    /// The same settings for a host that is `growth` times as fast as the one they are meant for.
    fn scaled_by(&self, growth: f64) -> StoreProfile {
        let mut store = self.clone();
        let sizes = [&mut store.memtable_bytes, &mut store.level_base_bytes, &mut store.target_file_bytes];
        for bytes in sizes.into_iter().flatten() {
            *bytes = rounded(*bytes as f64 * growth, 65536);
        }
        store
    }

    /// The same settings for a store that separates values: each size is to this one what it is to
    /// the default of a store with values beside their keys in [`StoreSettings::separated`], and
    /// there are at least as many memtables as there.
    pub fn separated(&self) -> StoreProfile {
        /// The least of the engine.
        const MIN_LEVEL_BYTES: u64 = 1 << 20;
        let (beside, separated) = (StoreSettings::default(), StoreSettings::separated(DEFAULT_SEPARATION_BYTES));
        let sized = |bytes: Option<u64>, of: fn(&StoreSettings) -> u64| {
            let part = of(&separated) as f64 / of(&beside) as f64;
            rounded(bytes.unwrap_or(of(&beside)) as f64 * part, 65536)
        };
        let memtable_count = self.memtable_count.unwrap_or(beside.memtable_count).max(separated.memtable_count);
        StoreProfile {
            memtable_bytes: Some(sized(self.memtable_bytes, |it| it.memtable_bytes)),
            memtable_count: Some(memtable_count),
            level_base_bytes: Some(sized(self.level_base_bytes, |it| it.level_base_bytes).max(MIN_LEVEL_BYTES)),
            target_file_bytes: Some(sized(self.target_file_bytes, |it| it.target_file_bytes)),
            ..self.clone()
        }
    }

    /// The settings as `key=value`, in a fixed order.
    pub fn options(&self) -> Vec<String> {
        let mut options = Vec::new();
        let mut put = |key: &str, value: Option<String>| options.extend(value.map(|value| format!("{key}={value}")));
        put("memtable_bytes", self.memtable_bytes.map(|value| value.to_string()));
        put("memtable_count", self.memtable_count.map(|value| value.to_string()));
        put("level_base_bytes", self.level_base_bytes.map(|value| value.to_string()));
        put("target_file_bytes", self.target_file_bytes.map(|value| value.to_string()));
        put("l0_compaction_trigger", Some(self.l0_compaction_trigger.to_string()));
        put("l0_slowdown_trigger", Some(self.l0_slowdown_trigger.to_string()));
        put("l0_stop_trigger", Some(self.l0_stop_trigger.to_string()));
        put("background_compactions", Some(self.background_compactions.to_string()));
        put("dynamic_levels", self.dynamic_levels.map(|value| value.to_string()));
        put("compression", self.compression.clone());
        put("durability", self.durability.clone());
        options
    }
}
