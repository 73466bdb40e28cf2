//! Energy accounting, and cores for threads.
//!
//! - [`EnergyMeter`]: joules by duty from CPU time and a [`PowerModel`]; every figure says its
//!   source.
//! - [`ThreadDuties`]: what a store and a worker call where a thread changes its duty; feeds the
//!   meter and binds the thread to a core.
//! - [`cores`]: emulated cores (a cgroup around one busy thread), so that one machine can play
//!   unequal servers.
//! - [`meters`]: meters in hardware, and what their joules were used for.
//! - [`governors`]: caps on the frequency of cores.
//! - [`EnergyThread`]: drives these, and binds threads to fast or slow cores, as
//!   [`ecotone_policy::power`] decides.
//!
//! ```
//! use std::sync::Arc;
//! use ecotone_types::Duty;
//! use ecotone_energy::{DutyScope, EnergyMeter, PowerModel, ThreadDuties, cores::Unbound};
//!
//! let meter = EnergyMeter::start(PowerModel::hardware(5.0, 10.0)?)?;
//! let duties = ThreadDuties::new(meter.clone(), Arc::new(Unbound));
//! {
//!     let _flush = DutyScope::begin(&duties, Duty::Flush);
//!     // ... the work of a flush ...
//! }
//! let reading = meter.reading();
//! assert!(reading.cpu(Duty::Flush).0 > 0.0 && reading.source.name() == "model");
//! # Ok::<(), ecotone_energy::EnergyError>(())
//! ```
//!
//! **Never in this crate:** decisions about where work runs or at which frequency (that is
//! `policy`), the store, the network, and any figure in joules without its source. Unsafe code is
//! in `thread_clock`, `affinity` and `meters::kernel_events` only.

mod account;
mod affinity;
mod books;
pub mod cores;
mod driver;
mod duties;
mod error;
pub mod governors;
mod history;
mod host;
mod ledger;
mod manager;
mod meter;
pub mod meters;
mod model;
mod placement;
mod pstate;
mod reading;
mod sysfs;
mod thread;
mod thread_clock;

pub use account::{CoreChange, MAX_NESTED_DUTIES};
pub use driver::{Driver, DriverOptions, EnergyView, MAX_COST_SHARE, machine_model};
pub use duties::{DutyScope, ThreadDuties};
pub use error::EnergyError;
pub use history::{History, MAX_MINUTES, Minute};
pub use host::host_cores;
pub use manager::{DomainView, Governing, PowerManager, PowerView};
pub use meter::{CpuUse, EnergyMeter, ThreadUse};
pub use model::{MAX_WATTS, PowerModel, PowerModelKeys};
pub use placement::{Placement, SlowWork};
pub use pstate::{MAX_P_STATES, PState, PStateIndex, PStateTable};
pub use reading::{EnergySource, IDLE, Reading, UNATTRIBUTED};
pub use thread::{EnergyThread, PendingPromotion, PromotionWait};
pub use thread_clock::this_thread_id;
