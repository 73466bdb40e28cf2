//! A compaction of everything, for who asks for it: all garbage that can be told from what lives is freed.
//!
//! First memtables are written to tables; then tables are compacted, [piece by piece](crate::pieces), into the last level, those that lie there
//! already included, so that what has expired goes as well; then what lives in segments that are partly garbage is relocated, down to a few hundredths of it.
//!
//! It rewrites all keys, and all values that lie beside them, so it costs as much as the store is large. Writes go on meanwhile. What a snapshot or an iterator holds stays.
//!
//! Failure: what was done before stays done. Ending it between two pieces leaves the store as good as it was.
//!
//! Threads: that of who asks, which waits.

use std::time::{Duration, Instant};

use ecotone_rocks_sys::tables::family_tables;
use rust_rocksdb::properties;

use crate::idle::Values;
use crate::limits::measure::log_bytes;
use crate::pieces::{PIECE_BYTES, pieces};
use crate::{Error, Result, Store};

/// How often who asked is asked whether it is to go on.
const TOLD_EVERY: Duration = Duration::from_millis(100);

/// Relocation that gets no further for so long is at its end: an iterator holds the rest, or it cannot be read.
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

/// While it is there, relocation does not rest before hardly any garbage is left.
struct Thorough<'v>(&'v Values);

impl<'v> Thorough<'v> {
    fn begin(values: &'v Values) -> Self {
        values.relocation.haste.set_thorough(true);
        Self(values)
    }
}

impl Drop for Thorough<'_> {
    fn drop(&mut self) {
        self.0.relocation.haste.set_thorough(false);
        self.0.wake.tables_changed();
    }
}

impl Store {
    /// Frees all garbage: see the module. `goes_on` is told how far it is, several times a second but while a piece is compacted, and ends it with `false`. Returns how it ended.
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
        self.relocate_all(&values, progress, goes_on)
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
            let turn = loop {
                progress.bytes = self.bytes_taken()?;
                if !goes_on(progress) {
                    return Ok(false);
                }
                if let Some(turn) = self.own.turn(TOLD_EVERY) {
                    break turn;
                }
            };
            let put_off = || self.gate.as_ref().map(|gate| gate.compactions_put_off());
            let put_off_before = put_off();
            piece.compact(&self.db, self.family, true);
            drop(turn);
            if let Some(detail) = self.background.error() {
                return Err(Error::Background { detail });
            }
            if let Some(gate) = self.gate.as_ref().filter(|_| put_off() != put_off_before) {
                return Err(gate.out_of_space());
            }
            progress.pieces_done += 1;
        }
        Ok(true)
    }

    fn relocate_all(
        &self,
        values: &Values,
        progress: &mut CompactionProgress,
        goes_on: &mut dyn FnMut(&CompactionProgress) -> bool,
    ) -> Result<bool> {
        let _thorough = Thorough::begin(values);
        let state = || (values.removal.properties().bytes, values.relocation.relocated_bytes());
        let (mut last, mut since) = (state(), Instant::now());
        loop {
            let ticket = values.relocation.haste.ask();
            values.wake.tables_changed();
            while !values.relocation.haste.has_answered(ticket) && since.elapsed() < MAX_STANDSTILL {
                progress.bytes = self.bytes_taken()?;
                if !goes_on(progress) {
                    return Ok(false);
                }
                std::thread::sleep(TOLD_EVERY);
                let now = state();
                if now != last {
                    (last, since) = (now, Instant::now());
                }
            }
            let now = state();
            let has_ended = now == last && values.relocation.cohort_segments() == 0;
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
