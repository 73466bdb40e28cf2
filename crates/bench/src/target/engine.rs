//! Our store under test.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ecotone_engine::{Direction, OpenMode, Store};

use super::settle::{check_empty, until_idle};
use super::{StoreSettings, Target, TargetKind};
use crate::{Error, Result};

const NAME: &str = TargetKind::Engine.name();

/// [`ecotone_engine::Store`] as a target.
#[derive(Debug)]
pub struct EngineTarget {
    store: Arc<Store>,
}

impl EngineTarget {
    /// Opens a store of its own in `directory`: an empty or missing one, or with `existing` one that holds a store.
    pub fn open(directory: &Path, existing: bool, settings: &StoreSettings) -> Result<Self> {
        if !existing {
            check_empty(directory)?;
        }
        let mode = if existing { OpenMode::Open } else { OpenMode::Create };
        let store = Store::open(directory, mode, settings.store_options()).map_err(failed("open"))?;
        Ok(Self { store: Arc::new(store) })
    }

    /// A store that is open already: for a server that runs a driver inside itself.
    pub fn of(store: Arc<Store>) -> Self {
        Self { store }
    }
}

impl Target for EngineTarget {
    fn name(&self) -> &'static str {
        NAME
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store.put(key, value).map_err(failed("put"))
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let Some(found) = self.store.get(key).map_err(failed("get"))? else {
            return Ok(false);
        };
        value.extend_from_slice(&found);
        Ok(true)
    }

    fn seek_scan(&self, key: &[u8], entries: u32) -> Result<u32> {
        let mut scan = self.store.scan(key.., Direction::Forward, None).map_err(failed("scan"))?;
        for read in 0..entries {
            let Some(entry) = scan.next_entry().map_err(failed("scan"))? else {
                return Ok(read);
            };
            black_box((entry.key.last(), entry.value.last()));
        }
        Ok(entries)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.store.delete(key).map_err(failed("delete"))
    }

    fn flush(&self) -> Result<()> {
        self.store.flush(true).map_err(failed("flush"))
    }

    fn settle(&self, limit: Duration) -> Result<bool> {
        self.flush()?;
        until_idle(limit, || {
            let now = self.store.properties().map_err(failed("read properties"))?;
            Ok(now.compaction_pending || now.running_compactions > 0 || now.running_flushes > 0)
        })
    }

    fn stall_time(&self) -> Result<Duration> {
        Ok(Duration::from_micros(self.store.counters().stall_us()))
    }

    fn directory(&self) -> Option<&Path> {
        Some(self.store.directory())
    }
}

fn failed(operation: &'static str) -> impl Fn(ecotone_engine::Error) -> Error {
    move |error| Error::target(NAME, operation, error)
}
