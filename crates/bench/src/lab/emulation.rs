//! The seam between the lab and whatever makes cores of unequal speed.

use std::path::PathBuf;

/// Makes emulated servers. The lab's own is [`Cgroups`](super::Cgroups); tests bring others.
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
