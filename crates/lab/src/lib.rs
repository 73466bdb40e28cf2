//! The lab: real servers of unequal speed on one machine, driven with the papers' workloads under
//! one policy after another.
//!
//! Flow: [`Profile`] -> [`ScaledProfile`] (speeds that fit this host) -> for each policy, and each
//! minimum length of separated values, a run (emulated cores, server processes, their records) ->
//! [`LabReport`] -> [`report`].
//!
//! Apart from that, [`cluster`]: what a federation of servers of equal speed costs on this machine,
//! and how fast it decides.
//!
//! Invariants. A run never compares unequal servers that were equal: without emulated cores the lab
//! stops. Whatever a run makes (processes, cgroups, stores) is gone when it ends, also by an error
//! or Ctrl-C. Every wait is bounded by [`Patience`]. Energy in a report is what servers computed
//! from their model, and says so.
//!
//! Threads: the lab runs on the caller's thread; one thread for each server reads its output. Where
//! the workload goes through the protocol, each server has client threads in this process, outside
//! of all emulated cores.
//!
//! **Never in this crate:** anything that a server needs in order to serve. A server learns of the
//! lab only by its options, its standard input and the records that it writes
//! (`ecotone_server::record`).

mod clients;
pub mod cluster;
mod core_limit;
mod directories;
mod emulation;
mod error;
mod lab;
mod locked_directory;
mod model_errors;
mod options;
mod process;
mod profile;
mod progress;
mod recording;
pub mod report;
mod run;
mod scaling;
mod server_process;
mod summary;
mod tree;

pub use core_limit::CoreLimit;
pub use emulation::{Cgroups, EmulatedCores, Emulation};
pub use error::LabError;
pub use lab::{run_lab, run_lab_on};
pub use model_errors::{COUNTED_FROM_TRAININGS, ModelErrors};
pub use options::{LabOptions, OfferedRate, Patience, Through};
pub use profile::{Profile, ServerProfile, StoreProfile, WorkloadSizes};
pub use progress::{Progress, Quiet, Tick};
pub use recording::{PolicyRecording, Recording, ServerRecording};
pub use scaling::{Demand, HOST_SHARE, Host, MIN_SPEED, ScaledProfile, ScaledServer};
pub use summary::{LabReport, Offered, PolicyRun, Relative, ServerRun, Total, relate_to_local};
pub use tree::{EmulatedServer, LabTree, StaleTree};
