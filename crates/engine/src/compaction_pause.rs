//! Moments in which the tables of a store stay as they are.

use rust_rocksdb::DB;

use crate::{Result, Store};

/// Compactions are paused until this is dropped.
#[must_use = "compactions go on when it is dropped"]
pub struct CompactionPause<'s> {
    db: &'s DB,
}

impl Drop for CompactionPause<'_> {
    fn drop(&mut self) {
        self.db.enable_manual_compaction();
        // It fails only where nothing is paused.
        if let Err(error) = self.db.continue_background_work() {
            tracing::error!(%error, "compactions do not go on after a pause: close the store and open it again");
        }
    }
}

impl Store {
    /// Writes all memtables to tables, waits for the compactions that run, and begins no others, extensions and relocation included, until what it
    /// returns is dropped. Then the tables are those of the moment. Nothing is flushed either meanwhile: writers come to wait, so this is for
    /// moments without any. What is relocating, or being extended, goes on afterwards.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush), and what RocksDB says while the store is closed.
    pub fn pause_compactions(&self) -> Result<CompactionPause<'_>> {
        self.flush(true)?;
        // Those on purpose are manual ones to RocksDB. The count of pauses goes up even where waiting fails.
        self.db.disable_manual_compaction();
        let paused = self.db.pause_background_work();
        let pause = CompactionPause { db: &self.db };
        paused.map_err(|error| self.failure(&error))?;
        Ok(pause)
    }
}
