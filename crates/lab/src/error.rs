//! The lab's errors, sorted by what the caller should do.

use std::{io, path::PathBuf};

/// Why a lab did not start or did not end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A profile file is wrong: correct the named key.
    #[error("profile {file}: {key}: {reason}")]
    Profile {
        /// The file's path, or the name of a built-in profile.
        file: String,
        /// The key, or the line and column where none can be named.
        key: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// An option is wrong: correct it.
    #[error("{option}: {reason}")]
    Option {
        /// The option as it is written on the command line.
        option: &'static str,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// The busy cores of all servers do not fit the host: use a larger host or a smaller profile.
    #[error(
        "profile {profile} does not fit this host: {reason}. It needs {needed_cores:.1} host cores, there are {host_cores:.1}; \
         take a larger host, or fewer servers, cores, worker slots or co-located threads"
    )]
    HostTooSmall {
        /// The profile's name.
        profile: String,
        /// Host cores the profile needs.
        needed_cores: f64,
        /// Host cores there are.
        host_cores: f64,
        /// Which limit is broken.
        reason: String,
    },
    /// The host lets nobody make cores of unequal speed; without them the lab measures nothing.
    #[error(
        "cannot make emulated cores: {reason}. The lab needs the right to make cpu cgroups (run it as root, or in a \
         delegated cgroup); without it the servers would be equal, so it stops"
    )]
    Emulation {
        /// What the kernel said.
        reason: String,
    },
    /// The process could not be limited to a number of cores: get the right to make cgroups, or run
    /// without the limit.
    #[error("cannot limit the process to {cores} cores: {reason}; run as root, or without --cores")]
    Cores {
        /// What was asked for.
        cores: f64,
        /// Why not.
        reason: String,
    },
    /// A server failed during a run: read its log.
    #[error("server {server} under policy {policy}: {what}\n{log}")]
    Server {
        /// The server's name.
        server: String,
        /// The policy of the run.
        policy: String,
        /// What happened, and when.
        what: String,
        /// The last lines of the server's log and where the rest is.
        log: String,
    },
    /// A server of a measured federation failed: read its log.
    #[error("server {server} {what}\n{log}")]
    ClusterServer {
        /// The server's name.
        server: String,
        /// What happened.
        what: String,
        /// The last lines of the server's log and where the rest is.
        log: String,
    },
    /// Something could not be measured: look at the reason.
    #[error("cannot measure {what}: {reason}")]
    Measurement {
        /// What was to be measured.
        what: String,
        /// Why not.
        reason: String,
    },
    /// The user ended the lab. Everything it made was removed.
    #[error("interrupted; all servers are stopped and what the lab made is removed")]
    Interrupted,
    /// A file or process operation failed: look at the path.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// The operation, such as `cannot write`.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl LabError {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> LabError {
        let path = path.into();
        move |source| LabError::Io { what, path, source }
    }

    pub(crate) fn option(option: &'static str, reason: impl Into<String>) -> LabError {
        LabError::Option { option, reason: reason.into() }
    }
}
