//! What users ask about compactions: one of everything, and moments in which the tables stay as
//! they are.
//!
//! A compaction of everything is for who asks for it: all garbage that can be told from what lives
//! is freed.
//!
//! First memtables are written to tables; then tables are compacted,
//! [piece by piece](crate::pieces), into the last level, those that lie there already included, so
//! that what has expired goes as well; then what lives in segments that are partly garbage is
//! relocated, down to a few hundredths of it.
//!
//! It rewrites all keys, and all values that lie beside them, so it costs as much as the store is
//! large. Writes go on meanwhile. What a snapshot or an iterator holds stays.
//!
//! Failure: what was done before stays done. Ending it between two pieces leaves the store as good
//! as it was.
//!
//! Threads: that of who asks, which waits.

use std::time::{Duration, Instant};

use ecotone_rocks::tables::family_tables;
use rust_rocksdb::{DB, properties};

use crate::idle::Values;
use crate::pieces::{PIECE_BYTES, pieces};
use crate::space::measure::log_bytes;
use crate::{Error, Result, Store};

/// How often who asked is asked whether it is to go on.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Garbage collection that gets no further for so long is at its end: an iterator holds the rest,
/// or it cannot be read.
const MAX_STANDSTILL: Duration = Duration::from_secs(5);

/// How far a compaction of everything is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompactionProgress {
    /// What is done now.
    pub stage: CompactionStage,
    /// Pieces that tables are compacted in.
    pub pieces: u64,
    /// Those that are done.
    pub pieces_done: u64,
    /// What tables, segments and logs took when it began, in bytes.
    pub bytes_before: u64,
    /// What they take now.
    pub bytes: u64,
}

/// What a compaction of everything does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CompactionStage {
    /// It writes memtables to tables.
    #[default]
    Memtables,
    /// It compacts tables.
    Tables,
    /// It relocates values.
    Values,
    /// Nothing more: all is done.
    Done,
    /// Nothing more: it was ended before all was done.
    Ended,
}

impl CompactionStage {
    /// In one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memtables => "memtables",
            Self::Tables => "tables",
            Self::Values => "values",
            Self::Done => "done",
            Self::Ended => "ended",
        }
    }
}

/// While it is there, garbage collection does not rest before hardly any garbage is left.
struct Thorough<'v>(&'v Values);

impl<'v> Thorough<'v> {
    fn begin(values: &'v Values) -> Self {
        values.gc.urgency.set_thorough(true);
        Self(values)
    }
}

impl Drop for Thorough<'_> {
    fn drop(&mut self) {
        self.0.gc.urgency.set_thorough(false);
        self.0.notifier.tables_changed();
    }
}

impl Store {
    /// Frees all garbage: see the module. `goes_on` is told how far it is, several times a second
    /// but while a piece is compacted, and ends it with `false`. Returns how it ended.
    ///
    /// # Errors
    ///
    /// As [`compact`](Self::compact).
    pub fn compact_all(&self, goes_on: &mut dyn FnMut(&CompactionProgress) -> bool) -> Result<CompactionProgress> {
        self.check_writable()?;
        let bytes_before = self.bytes_taken()?;
        let mut progress = CompactionProgress { bytes_before, bytes: bytes_before, ..CompactionProgress::default() };
        let is_whole = self.compact_stages(&mut progress, goes_on)?;
        progress.stage = if is_whole { CompactionStage::Done } else { CompactionStage::Ended };
        progress.bytes = self.bytes_taken()?;
        Ok(progress)
    }

    /// Whether it came to its end.
    fn compact_stages(
        &self,
        progress: &mut CompactionProgress,
        goes_on: &mut dyn FnMut(&CompactionProgress) -> bool,
    ) -> Result<bool> {
        let values = self.values.as_ref().and_then(|values| values.for_reclaim());
        if !goes_on(progress) {
            return Ok(false);
        }
        if let Some(values) = &values {
            values.log.seal_active();
        }
        self.flush(true)?;
        progress.stage = CompactionStage::Tables;
        if !self.compact_tables(progress, goes_on)? {
            return Ok(false);
        }
        let Some(values) = values else { return Ok(true) };
        progress.stage = CompactionStage::Values;
        self.collect_all(&values, progress, goes_on)
    }

    fn compact_tables(
        &self,
        progress: &mut CompactionProgress,
        goes_on: &mut dyn FnMut(&CompactionProgress) -> bool,
    ) -> Result<bool> {
        let tables =
            family_tables(&self.db, &self.family).map_err(|error| Error::Rocks { detail: error.to_string() })?;
        let pieces = pieces(&tables, PIECE_BYTES);
        progress.pieces = pieces.len() as u64;
        for piece in pieces {
            let permit = loop {
                progress.bytes = self.bytes_taken()?;
                if !goes_on(progress) {
                    return Ok(false);
                }
                if let Some(permit) = self.internal.permit(REPORT_INTERVAL) {
                    break permit;
                }
            };
            let deferred = || self.admission.as_ref().map(|admission| admission.compactions_deferred());
            let deferred_before = deferred();
            piece.compact(&self.db, self.family, true);
            drop(permit);
            if let Some(detail) = self.background.error() {
                return Err(Error::Background { detail });
            }
            if let Some(admission) = self.admission.as_ref().filter(|_| deferred() != deferred_before) {
                return Err(admission.out_of_space());
            }
            progress.pieces_done += 1;
        }
        Ok(true)
    }

    fn collect_all(
        &self,
        values: &Values,
        progress: &mut CompactionProgress,
        goes_on: &mut dyn FnMut(&CompactionProgress) -> bool,
    ) -> Result<bool> {
        let _thorough = Thorough::begin(values);
        let state = || (values.removal.properties().bytes, values.gc.relocated_bytes());
        let (mut last, mut since) = (state(), Instant::now());
        loop {
            let ticket = values.gc.urgency.ask();
            values.notifier.tables_changed();
            while !values.gc.urgency.has_answered(ticket) && since.elapsed() < MAX_STANDSTILL {
                progress.bytes = self.bytes_taken()?;
                if !goes_on(progress) {
                    return Ok(false);
                }
                std::thread::sleep(REPORT_INTERVAL);
                let now = state();
                if now != last {
                    (last, since) = (now, Instant::now());
                }
            }
            let now = state();
            let has_ended = now == last && values.gc.candidate_segments() == 0;
            if has_ended || since.elapsed() >= MAX_STANDSTILL {
                return Ok(true);
            }
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
    }

    /// Bytes of tables, segments and logs.
    fn bytes_taken(&self) -> Result<u64> {
        let tables = self.db.property_int_value_cf(&self.family, properties::LIVE_SST_FILES_SIZE);
        let tables = tables.map_err(|error| Error::from_rocks(&error))?.unwrap_or(0);
        let logs = log_bytes(self.directory()).map_err(|error| Error::io("list", self.directory(), &error))?;
        let values = self.values.as_ref().map_or(0, |values| values.properties().bytes);
        Ok(tables.saturating_add(logs).saturating_add(values))
    }
}

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
    /// Writes all memtables to tables, waits for the compactions that run, and begins no others,
    /// extensions and garbage collection included, until what it returns is dropped. Then the
    /// tables are those of the moment. Nothing is flushed either meanwhile: writers come to wait,
    /// so this is for moments without any. What is relocating, or being extended, goes on
    /// afterwards.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush), and what RocksDB says while the store is closed.
    pub fn pause_compactions(&self) -> Result<CompactionPause<'_>> {
        self.flush(true)?;
        // Those forcibly are manual ones to RocksDB. The count of pauses goes up even where waiting
        // fails.
        self.db.disable_manual_compaction();
        let paused = self.db.pause_background_work();
        let pause = CompactionPause { db: &self.db };
        paused.map_err(|error| self.failure(&error))?;
        Ok(pause)
    }
}
