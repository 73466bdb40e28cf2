//! Compactions, whoever asks for them.
//!
//! - [`jobs`]: what is known of flushes and compactions that run, and counted of those that ended.
//! - [`internal`]: those that this program asks for beside RocksDB's own. [`by_names`]: of tables
//!   that are named.
//! - [`table_changes`]: who learns that tables have changed.
//! - [`manual`]: the whole store compacted on a user's wish, and moments without any compaction.

pub(crate) mod by_names;
pub(crate) mod internal;
pub(crate) mod jobs;
pub(crate) mod manual;
pub(crate) mod table_changes;
