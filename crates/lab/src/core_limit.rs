//! A limit of processor time for the whole process, for `ecotone bench`: a cgroup with a quota.
//!
//! It is the same for every target, so that a comparison under a limit is one of equals. The cgroup
//! is made like those of a lab and needs the same right.

use std::path::PathBuf;

use ecotone_energy::cores::CpuHierarchy;

use crate::error::LabError;
use crate::tree::{EmulatedServer, LabTree};

/// While it lives, all threads of this process together use no more than the limit.
pub struct CoreLimit {
    origin: PathBuf,
    _group: EmulatedServer,
    // After the group: a tree is removed when it is empty.
    _tree: LabTree,
}

impl CoreLimit {
    /// Limits this process to `cores` host cores, within [`ecotone_bench::command::CORE_LIMITS`].
    ///
    /// # Errors
    ///
    /// [`LabError::Cores`] without the right to make cgroups, or while servers of an earlier lab
    /// still take processor time.
    pub fn begin(cores: f64) -> Result<Self, LabError> {
        let refused = |reason: String| LabError::Cores { cores, reason };
        let hierarchy = CpuHierarchy::detect().map_err(|error| refused(error.to_string()))?;
        let origin = hierarchy.own_group().join("cgroup.procs");
        let tree = LabTree::create(hierarchy).map_err(|error| refused(error.to_string()))?;
        if let Some(stale) = tree.stale().first() {
            return Err(refused(format!(
                "servers of an earlier lab still run in {}; end them",
                stale.folder.display()
            )));
        }
        // A part of a core counts as one that is slower.
        let whole = cores.ceil();
        let group = EmulatedServer::create(&tree, "bench", whole as u32, cores / whole);
        let group = group.map_err(|error| refused(error.to_string()))?;
        let procs = group.folder().join("cgroup.procs");
        std::fs::write(&procs, std::process::id().to_string())
            .map_err(|error| refused(format!("{} took no process: {error}", procs.display())))?;
        Ok(Self { origin, _group: group, _tree: tree })
    }
}

impl Drop for CoreLimit {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(&self.origin, std::process::id().to_string()) {
            tracing::warn!("the limit of processor time could not be lifted at {}: {error}", self.origin.display());
        }
    }
}
