//! Finding what upper levels have replaced in lower ones, and merging it away.

mod settings;

pub use settings::{DedupLevel, DedupMode, DedupOptions, DedupProperties};
