//! Finding what upper levels have replaced in lower ones, and merging it away.
//!
//! - [`samples`], [`filters`]: what each table tells of its keys. [`known`]: what all of them tell, in memory.

pub(crate) mod filters;
pub(crate) mod known;
pub(crate) mod samples;
mod settings;

pub use settings::{DedupLevel, DedupMode, DedupOptions, DedupProperties};
