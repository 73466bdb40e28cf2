//! The interface between the lab and whatever makes cores of unequal speed, and the lab's own
//! implementation: cgroups with quotas.

use std::path::PathBuf;

use ecotone_energy::cores::CpuHierarchy;

use crate::error::LabError;
use crate::tree::{EmulatedServer, LabTree};

/// Makes emulated servers. The lab's own is [`Cgroups`]; tests bring others.
pub trait Emulation {
    /// Makes a server of `cores` cores, each with `speed` (0 to 1] of a host core.
    ///
    /// # Errors
    /// The reason, in words for a user.
    fn create(&self, server: &str, cores: u32, speed: f64) -> Result<EmulatedCores, String>;
}

/// The cores of one emulated server; they vanish when this is dropped.
pub struct EmulatedCores {
    /// What the server gets as `--cgroup`.
    pub path: PathBuf,
    /// Removes the cores when dropped.
    pub guard: Box<dyn Send>,
}

/// A tree of cgroups that holds the servers of one lab; removed on drop, after the servers.
pub struct Cgroups {
    tree: LabTree,
}

impl Cgroups {
    /// Makes the tree.
    ///
    /// # Errors
    /// [`LabError::Emulation`] without the right to make cgroups, and where servers of an earlier
    /// lab still run: they would take time from the cores of this one.
    pub fn make() -> Result<Cgroups, LabError> {
        let refused = |reason: String| LabError::Emulation { reason };
        let tree = CpuHierarchy::detect().and_then(LabTree::create).map_err(|error| refused(error.to_string()))?;
        if let Some(stale) = tree.stale().first() {
            let processes: Vec<String> = stale.processes.iter().map(u32::to_string).collect();
            return Err(refused(format!(
                "servers of an earlier lab still run in {} (processes {}); end them first",
                stale.folder.display(),
                processes.join(", ")
            )));
        }
        Ok(Cgroups { tree })
    }
}

impl Emulation for Cgroups {
    fn create(&self, server: &str, cores: u32, speed: f64) -> Result<EmulatedCores, String> {
        let server = EmulatedServer::create(&self.tree, server, cores, speed).map_err(|error| error.to_string())?;
        let path: PathBuf = server.folder().to_owned();
        Ok(EmulatedCores { path, guard: Box::new(server) })
    }
}
