//! A limit of processor time for the whole process: a cgroup with a quota.
//!
//! The same for every target, so that a comparison under a limit is one of equals. The cgroup is the lab's kind, made where the lab
//! makes its own, and needs the same right.

use std::path::PathBuf;

use ecotone_power::cores::{CpuHierarchy, EmulatedServer, LabTree, MAX_CORES, MIN_CORE_SPEED};

use crate::{Error, Result};

/// While it lives, all threads of this process together use no more than the limit.
pub(super) struct CoreLimit {
    origin: PathBuf,
    _group: EmulatedServer,
    // After the group: a tree is removed when it is empty.
    _tree: LabTree,
}

impl CoreLimit {
    /// The least limit, in host cores: the kernel's least quota in the longest period that does not look like a stall.
    pub(super) const MIN: f64 = MIN_CORE_SPEED;
    /// The largest limit, in host cores.
    pub(super) const MAX: f64 = MAX_CORES as f64;

    /// Limits this process to `cores` host cores, from [`CoreLimit::MIN`] to [`CoreLimit::MAX`].
    ///
    /// # Errors
    ///
    /// [`Error::Cores`] without the right to make cgroups, or while servers of an earlier lab still take processor time.
    pub(super) fn begin(cores: f64) -> Result<Self> {
        let refused = |reason: String| Error::Cores { cores, reason };
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
