//! Finding what upper levels have replaced in lower ones, and merging it away.
//!
//! - [`sketch`]: what each table tells of its keys: [`samples`], and [`filters`] where one is wanted.
//! - [`known`]: what all of them tell, in memory.

pub(crate) mod filters;
pub(crate) mod known;
pub(crate) mod samples;
mod settings;
pub(crate) mod sketch;

pub use settings::{DedupLevel, DedupMode, DedupOptions, DedupProperties};
