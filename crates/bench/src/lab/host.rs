//! The machine a lab runs on, as far as a reader of its numbers must know it.

use serde::{Deserialize, Serialize};

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
        let cores = ecotone_power::host_cores().unwrap_or_else(|error| {
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
