//! The first sync that failed, of the WAL or of the value log.
//!
//! From then on the store takes no writes. The kernel may have dropped the bytes that it could not write, and tells of that once: later
//! syncs would say success for nothing.
//!
//! Threads: any.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use crate::events::{BackgroundError, StoreEvents};
use crate::{Error, Result};

/// See the module. Shared by all that syncs in a store, and by all that writes.
#[derive(Default)]
pub(crate) struct SyncFailure {
    first: OnceLock<String>,
    events: Option<Arc<dyn StoreEvents>>,
}

impl SyncFailure {
    /// None yet; `events` are told of the first.
    pub(crate) fn told_to(events: Option<Arc<dyn StoreEvents>>) -> Arc<Self> {
        Arc::new(Self { first: OnceLock::new(), events })
    }

    /// The error of the first sync that failed. Costs a look at memory.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.first.get().is_some() { Err(self.error()) } else { Ok(()) }
    }

    #[cold]
    fn error(&self) -> Error {
        Error::Background { detail: self.first.get().cloned().unwrap_or_default() }
    }

    /// A sync has failed. The first one is kept and told; those that follow are likely to follow from it. Returns the error of the first.
    #[cold]
    pub(crate) fn set(&self, during: &'static str, detail: String) -> Error {
        if self.first.set(detail.clone()).is_ok() {
            tracing::error!(during, detail, "a sync failed: the store takes no more writes");
            if let Some(events) = &self.events {
                let event = BackgroundError { during, detail, writes_stopped: true };
                if catch_unwind(AssertUnwindSafe(|| events.background_error(&event))).is_err() {
                    tracing::error!("an observer of the store panicked");
                }
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
