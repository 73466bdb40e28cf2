//! The data layer: values apart from their keys, each written once.
//!
//! - [`record`], [`pointer`], [`segment_header`], [`segment`]: the formats.
//! - [`stream`], [`log`]: appends, reads and syncs. [`collected`]: appends of what was relocated. [`mappings`]: reads through memory. [`watermark`]: up to where it is durable.
//! - [`replay`], [`tail`]: what a crash left. [`damage`]: and what it did not. [`barrier`]: no table before its values.
//! - [`references`], [`readers`], [`removal`]: when a segment may go.
//! - [`relocation`], [`upkeep`], [`sweep`]: what makes segments go that are mostly garbage. [`removed_ranges`]: and those of collections that were
//!   deleted. [`pacing`]: no more of it than can be relocated. [`haste`]: who waits for it.

pub(crate) mod barrier;
mod collected;
mod damage;
pub(crate) mod descriptors;
pub(crate) mod haste;
pub(crate) mod log;
pub(crate) mod mappings;
pub(crate) mod pacing;
pub(crate) mod pointer;
pub(crate) mod readers;
pub(crate) mod record;
pub(crate) mod references;
pub(crate) mod relocation;
pub(crate) mod removal;
pub(crate) mod removed_ranges;
pub(crate) mod replay;
pub(crate) mod segment;
pub(crate) mod segment_header;
pub(crate) mod stream;
pub(crate) mod sweep;
pub(crate) mod tail;
mod undecided;
pub(crate) mod upkeep;
pub(crate) mod wake;
pub(crate) mod watermark;

pub(crate) use log::ValueLog;
pub use removal::ValueLogProperties;
