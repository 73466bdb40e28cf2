//! The value log: separated values, each written once, in segments.
//!
//! - [`record`], [`packed_record`], [`pointer`], [`segment_header`], [`segment`]: the formats.
//! - [`compression`]: values packed one by one, with dictionaries.
//! - [`stream`], [`log`]: appends, reads and syncs. `collected`: appends of what garbage collection
//!   copies, `copies`: and from where. [`mappings`]: reads through memory. [`watermark`], in a [file of two slots](slots): up
//!   to where it is durable.
//! - [`tail`]: what a crash left. `damage`: and what it did not.
//! - [`moves`]: segments of relocated values whose places somebody else has chosen.
//! - [`sync_failure`]: the first sync that failed.
//!
//! What must never be in here: RocksDB, which segments may go and when (that is the engine's
//! garbage collection), a choice of policy. Below it is `io` alone.

mod collected;
pub mod compression;
mod copies;
mod damage;
pub mod descriptors;
mod error;
pub mod log;
pub mod mappings;
pub mod moves;
#[cfg(test)]
#[path = "../../engine/src/mutation.rs"]
mod mutation;
pub mod packed_record;
pub mod pointer;
pub mod record;
pub mod segment;
pub mod segment_header;
pub mod slots;
pub mod stream;
pub mod sync_failure;
pub mod tail;
mod varint;
pub mod watermark;

pub use error::{Error, Result};
pub use log::ValueLog;
