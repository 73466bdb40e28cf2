//! What can go wrong with power accounting and emulated cores, in kinds that tell the caller what
//! to do.
//!
//! Only set-up returns errors. Once a meter or a core binder runs, its hot path never fails: what
//! goes wrong there is counted, shown in the next reading, and logged once.

use std::path::{Path, PathBuf};

/// A failure of set-up. Every message says what, where, and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnergyError {
    /// A power model or P-state table with an impossible value. Next step: correct the
    /// configuration.
    #[error("power model: {what}")]
    Model {
        /// What is wrong with which key, and what would be right.
        what: String,
    },

    /// A core speed that cgroup quotas cannot give. Next step: choose another speed.
    #[error(
        "an emulated core of speed {speed} cannot be made from a CPU quota: use at least {min} and at most 1 of a host core \
         (the kernel's least quota is {min_quota_us} us and periods here are at most {max_period_us} us)"
    )]
    CoreSpeed {
        /// The speed asked for, in host cores.
        speed: f64,
        /// The least speed that can be emulated.
        min: f64,
        /// The kernel's least quota in microseconds.
        min_quota_us: u64,
        /// The longest period used here, in microseconds.
        max_period_us: u64,
    },

    /// A name or size of an emulated server that cannot be used. Next step: correct the profile.
    #[error("emulated server {name:?}: {what}")]
    Server {
        /// The name that was given.
        name: String,
        /// What is wrong with it.
        what: String,
    },

    /// This kernel or container offers no CPU controller. Next step: use another host, or do
    /// without emulated cores.
    #[error("emulated cores need the cgroup CPU controller: {what}. {next_step}")]
    NoCpuController {
        /// What was looked for and not found.
        what: String,
        /// What the operator can do.
        next_step: String,
    },

    /// The controller is there, but this process may not use it. Next step: run with the right that
    /// is missing.
    #[error(
        "no right to make cgroups: {action} {path:?} failed ({source}). Run as root, or in a container with --privileged, or let \
         root hand over a cgroup with the cpu controller; without it servers cannot be made unequal"
    )]
    NotPermitted {
        /// What was tried: "make", "write".
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },

    /// A cgroup file behaved in a way that is neither a missing right nor a missing controller.
    /// Next step: see `source`.
    #[error("cgroup: {action} {path:?} failed: {source}")]
    Cgroup {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },

    /// A file of the kernel had a form that this crate does not know. Next step: report the text.
    #[error("cannot read {path:?}: {what}")]
    Form {
        /// Which file.
        path: PathBuf,
        /// What was unexpected.
        what: String,
    },

    /// A file of a meter or of the processor's frequencies could not be used. Next step: see
    /// `source`; a missing right is in [`EnergyError::is_missing_right`].
    #[error("power files: {action} {path:?} failed: {source}")]
    System {
        /// What was tried: "read", "write", "run".
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },

    /// Another process caps the frequencies of this machine. Next step: stop one of the two.
    #[error(
        "another process governs the frequencies of this machine (it holds {path:?}); stop it, or run this one without"
    )]
    Governed {
        /// The record that the other one holds.
        path: PathBuf,
    },

    /// The kernel gave no CPU clock. Next step: check the sandbox; without it there are no joules.
    #[error("the kernel gives no CPU clock of {of}: {source}")]
    Clock {
        /// "this thread" or "this process".
        of: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

impl EnergyError {
    /// Sorts an IO error into "not permitted" (the operator must act) and the rest.
    pub(crate) fn cgroup(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                Self::NotPermitted { action, path, source }
            }
            _ => Self::Cgroup { action, path, source },
        }
    }

    pub(crate) fn model(what: impl Into<String>) -> Self {
        Self::Model { what: what.into() }
    }

    pub(crate) fn system(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::System { action, path: path.to_path_buf(), source }
    }

    /// True if more rights, or another host, would help: the lab then says so and stops.
    pub fn is_missing_right(&self) -> bool {
        use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        match self {
            Self::NotPermitted { .. } | Self::NoCpuController { .. } => true,
            Self::System { source, .. } => matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem),
            _ => false,
        }
    }
}
