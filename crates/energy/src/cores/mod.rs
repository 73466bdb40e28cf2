//! Emulated cores: what makes servers on one machine unequal.
//!
//! An emulated core is a cgroup around **one busy thread** with a CPU quota of speed x period
//! (docs/lab.md). A server is a group with the sum of its cores as its own quota, one group for
//! each core, and the group `rest` for all other threads, the network runtime included, which is
//! one emulated core too:
//!
//! ```text
//! ecotone-lab-<pid>/          one run of the lab, by its process id
//!   <server>/                 quota = cores x speed
//!     rest/                   quota = speed
//!     core-0/ core-1/ ...     quota = speed each
//! ```
//!
//! cgroup v1 (the `cpu` controller) and v2 (threaded mode) are both spoken. Without the right to
//! make cgroups creation fails with an error that says what is missing; there is no silent
//! fallback.
//!
//! On a real machine [`Affinity`] binds threads to cores of their class, once there are two.

mod affinity;
mod binder;
mod groups;
mod hierarchy;
mod layout;
mod pool;
mod quota;
mod usage;

use ecotone_types::Task;

pub use affinity::Affinity;
pub use binder::CgroupCores;
pub use groups::CoreGroups;
pub use hierarchy::CpuHierarchy;
pub use layout::{CgroupVersion, MAX_CORES, ThreadGroup};
pub use quota::{CoreQuota, MIN_CORE_SPEED};
pub use usage::GroupUsage;

use crate::placement::Placement;

/// Gives threads a core to run on. Called on hot paths: must not block for long and must not panic.
pub trait CoreBinder: Send + Sync {
    /// The thread begins work that occupies a core.
    fn enter(&self, thread: u32, task: Task);
    /// The thread has ended it.
    fn leave(&self, thread: u32);
    /// From now on cores have these classes; threads that are on others move.
    fn place(&self, placement: &Placement);
    /// How often a thread could not be put where it belongs. A run of the lab with a number above 0
    /// is not valid.
    fn failures(&self) -> u64 {
        0
    }
}

/// The binder of a real machine: the kernel's scheduler places threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unbound;

impl CoreBinder for Unbound {
    fn enter(&self, _thread: u32, _task: Task) {}
    fn leave(&self, _thread: u32) {}
    fn place(&self, _placement: &Placement) {}
}
