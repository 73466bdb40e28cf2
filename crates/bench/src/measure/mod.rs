//! What a run costs the machine: processor time, memory, bytes to the device, stalls, space.

mod directory;
mod process;
mod stall;

pub use directory::directory_bytes;
pub use process::{Measured, ProcessUsage, reset_rss_peak};
pub(crate) use process::{Reasons, war};
pub use stall::StallClock;
