//! The first sync that failed, of the WAL or of the value log.
//!
//! From then on the store takes no writes. The kernel may have dropped the bytes that it could not
//! write, and tells of that once: later syncs would say success for nothing.
//!
//! Threads: any.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::{Error, Result};

/// See the module. Shared by all that syncs in a store, and by all that writes.
#[derive(Default)]
pub struct SyncFailure {
    first: OnceLock<String>,
    report: Option<Report>,
}

/// Is told of the first failure: during what, and the reason. Must neither wait nor panic.
pub type Report = Box<dyn Fn(&'static str, &str) + Send + Sync>;

impl SyncFailure {
    /// None yet; `report` is told of the first.
    pub fn reporting_to(report: Option<Report>) -> Arc<Self> {
        Arc::new(Self { first: OnceLock::new(), report })
    }

    /// The error of the first sync that failed. Costs a look at memory.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.first.get().is_some() { Err(self.error()) } else { Ok(()) }
    }

    #[cold]
    fn error(&self) -> Error {
        Error::Background { detail: self.first.get().cloned().unwrap_or_default() }
    }

    /// A sync has failed. The first one is kept and told; those that follow are likely to follow
    /// from it. Returns the error of the first.
    #[cold]
    pub fn set(&self, during: &'static str, detail: String) -> Error {
        if self.first.set(detail.clone()).is_ok() {
            tracing::error!(during, detail, "a sync failed: the store takes no more writes");
            if let Some(report) = &self.report {
                report(during, &detail);
            }
        }
        self.error()
    }
}

impl fmt::Debug for SyncFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncFailure").field("first", &self.first).finish_non_exhaustive()
    }
}
