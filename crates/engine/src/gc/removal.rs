//! Removal of segments that nobody can name any more.
//!
//! A sealed segment goes when all of this holds, found out in this order:
//!
//! 1. no write that has its value there is still on its way into RocksDB;
//! 2. every WAL that was there then is obsolete: what it names is in tables, or overwritten there;
//! 3. no table refers to it that is live, or that a new reader may still be given, looked at after
//!    2, so that what a flush moved from memtable to table meanwhile is seen;
//! 4. no iterator is left that was made before 3;
//! 5. no checkpoint is being made;
//! 6. there is one with a greater number, so that its own is not given again
//!    ([`ValueLog::remove`]).
//!
//! Compactions that run, here or on a worker, read tables that stay live until their outputs are,
//! and the outputs name nothing that the inputs do not, but for what was relocated: no table refers
//! to that before the compaction is installed. So a segment of relocated values is judged only once
//! none of the tables is being compacted any more that were when its last filter was done: the
//! inputs of that compaction are among them, and stay so until it is installed or has failed. Where
//! it is open whether it has failed ([`super::uncommitted`]) the segment stays.
//!
//! A segment of relocated values is appended to until it is full, which may be never. So it is
//! sealed once much of it is garbage and nothing was appended since the last round; the next rounds
//! remove it, or its values are relocated again.
//!
//! A lookup may read its pointer and lose the segment before it reads the value; it then looks up
//! again (see `read.rs`).
//!
//! Threads: rounds are made by the thread of [`super::worker`]. Failure: the round ends, and the
//! next one tries again.

use std::collections::HashSet;
use std::collections::hash_map::Entry;
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ecotone_policy::gc::{SegmentUse, StoreState};
use ecotone_rocks::tables::live_tables;
use ecotone_types::units::Bytes;
use ecotone_valuelog::log::ValueLog;
use ecotone_valuelog::pointer::{SegmentMap, SegmentSet};
use ecotone_valuelog::segment::Segment;
use ecotone_valuelog::segment_header::SEGMENT_HEADER_BYTES;
use parking_lot::Mutex;
use rust_rocksdb::{DB, properties};

use super::readers::Readers;
use super::references::References;
use super::uncommitted::UncommittedTables;
use crate::dedup::sample_registry::SampleRegistry;
use crate::family::DataFamily;
use crate::identity::Identity;
use crate::{Error, Result};

/// A round does not begin to remove another segment after this time: some file systems take long to
/// free blocks, and what is known must not grow old meanwhile.
const MAX_REMOVAL_TIME: Duration = Duration::from_millis(100);

/// The number of a WAL.
pub(crate) type WalNumber = u64;

/// Older than any.
const NO_WAL: WalNumber = 0;

/// What is known of the sealed segments.
#[derive(Debug)]
pub(crate) struct Removal {
    log: Arc<ValueLog>,
    readers: Readers,
    known: Arc<SampleRegistry>,
    directory: PathBuf,
    identity: Identity,
    /// Held during a round, and during a checkpoint.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The newest WAL that may name a value of the segment.
    last_wal: SegmentMap<WalNumber>,
    /// Tables that were being compacted when the last filter had appended to the segment, and may
    /// be still.
    appended_by: SegmentMap<HashSet<u64>>,
    /// The epoch in which no table named the segment any more.
    unnamed_since: SegmentMap<u64>,
    /// The length that segments of relocated values had in the last round, of those that are
    /// appended to.
    appended: SegmentMap<u64>,
    references: References,
    uncommitted: UncommittedTables,
    removed_segments: u64,
    removed_bytes: u64,
    warned: bool,
}

/// What the value log holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ValueLogProperties {
    /// Segments there are.
    pub segments: u64,
    /// Their length together, in bytes.
    pub bytes: u64,
    /// Bytes of records that a table refers to; values that are in memtables only are not counted
    /// yet.
    pub referenced_bytes: u64,
    /// By how much those values are longer than what is stored of them.
    pub saved_bytes: u64,
    /// Segments whose values are being relocated forcibly. Those that wait for compactions that run
    /// anyway are not counted.
    pub gc_segments: u64,
    /// The `forced_ratio` in force ([`GcParameters`](ecotone_policy::gc::GcParameters)), in
    /// thousandths: it rises while writers are throttled, for a burst, and falls as space gets
    /// short.
    pub ratio_per_mille: u64,
    /// Bytes of records that were relocated since the store was opened.
    pub relocated_bytes: u64,
    /// How long writers have rested since the store was opened, all together, so that garbage
    /// collection keeps up; in milliseconds.
    pub throttled_ms: u64,
    /// Segments removed since the store was opened.
    pub removed_segments: u64,
    /// Their length together, in bytes.
    pub removed_bytes: u64,
}

impl ValueLogProperties {
    /// How many times what is stored of them the values are that tables refer to; 1 where there are
    /// none.
    pub fn compression_ratio(&self) -> f64 {
        let user = self.referenced_bytes + self.saved_bytes;
        if self.referenced_bytes == 0 { 1.0 } else { user as f64 / self.referenced_bytes as f64 }
    }

    /// What stays to be told once the store is closed: what it has done.
    #[must_use]
    pub fn of_closed(self) -> Self {
        let Self { relocated_bytes, throttled_ms, removed_segments, removed_bytes, .. } = self;
        Self { relocated_bytes, throttled_ms, removed_segments, removed_bytes, ..Self::default() }
    }
}

impl AddAssign for ValueLogProperties {
    /// Of several stores; the ratio is the greatest.
    fn add_assign(&mut self, other: Self) {
        let Self {
            segments,
            bytes,
            referenced_bytes,
            saved_bytes,
            gc_segments,
            ratio_per_mille,
            relocated_bytes,
            throttled_ms,
            removed_segments,
            removed_bytes,
        } = other;
        self.segments += segments;
        self.bytes += bytes;
        self.referenced_bytes += referenced_bytes;
        self.saved_bytes += saved_bytes;
        self.gc_segments += gc_segments;
        self.ratio_per_mille = self.ratio_per_mille.max(ratio_per_mille);
        self.relocated_bytes += relocated_bytes;
        self.throttled_ms += throttled_ms;
        self.removed_segments += removed_segments;
        self.removed_bytes += removed_bytes;
    }
}

impl Removal {
    /// `newest_wal` is the newest that was there before the database was opened: segments found
    /// then can be named by none that came later.
    pub(crate) fn new(
        log: Arc<ValueLog>,
        readers: Readers,
        known: Arc<SampleRegistry>,
        directory: &Path,
        newest_wal: WalNumber,
        identity: Identity,
    ) -> Self {
        let last_wal = log.segments().iter().map(|segment| (segment.number(), newest_wal)).collect();
        let state = Mutex::new(State { last_wal, ..State::default() });
        Self { log, readers, known, directory: directory.to_path_buf(), identity, state }
    }

    /// Holds back removals while `action` runs.
    pub(crate) fn hold<T>(&self, action: impl FnOnce() -> T) -> T {
        let _state = self.state.lock();
        action()
    }

    /// What there is now; references as of the last round.
    pub(crate) fn properties(&self) -> ValueLogProperties {
        self.properties_of(&self.state.lock())
    }

    /// The same; `None` while somebody removes segments or holds removals back.
    pub(crate) fn try_properties(&self) -> Option<ValueLogProperties> {
        self.state.try_lock().map(|state| self.properties_of(&state))
    }

    /// The same, with what the tables of now refer to.
    ///
    /// # Errors
    ///
    /// Where RocksDB cannot read what a table says.
    pub(crate) fn recount(&self, db: &DB, family: DataFamily) -> Result<ValueLogProperties> {
        let mut state = self.state.lock();
        state.references.update(db, &family, self.identity)?;
        Ok(self.properties_of(&state))
    }

    fn properties_of(&self, state: &State) -> ValueLogProperties {
        let segments = self.log.segments();
        ValueLogProperties {
            segments: segments.len() as u64,
            bytes: segments.iter().map(|segment| segment.bytes()).sum(),
            referenced_bytes: state.references.bytes.values().sum(),
            saved_bytes: state.references.saved_bytes(),
            gc_segments: 0,
            ratio_per_mille: 0,
            relocated_bytes: 0,
            throttled_ms: 0,
            removed_segments: state.removed_segments,
            removed_bytes: state.removed_bytes,
        }
    }

    /// One round: removes what can go, and tells what there is of segments, and of the tables that
    /// refer to them. `candidates` are the segments that are being relocated. Those of relocated
    /// values are sealed once `seal_from` (0 to 1) of them is garbage.
    pub(crate) fn round(
        &self,
        db: &DB,
        family: DataFamily,
        candidates: &SegmentSet,
        seal_from: f64,
    ) -> Result<StoreState> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let (sealed, appended): (Vec<_>, Vec<_>) =
            self.log.segments().into_iter().partition(|segment| segment.is_sealed());
        let sealed: Vec<_> = sealed.into_iter().filter(|segment| !segment.has_writers()).collect();
        // Before references are counted: of one that rests tables then name what lives.
        let appended: Vec<_> =
            appended.into_iter().filter(|segment| segment.is_relocated()).map(Appended::now).collect();
        for segment in &sealed {
            if let Entry::Vacant(unknown) = state.last_wal.entry(segment.number()) {
                unknown.insert(if segment.may_be_in_wal() { self.last_wal(db, family)? } else { NO_WAL });
            }
        }
        let not_installed = state.not_installed(db, &sealed)?;
        let oldest_wal = db
            .property_int_value_cf(&family, properties::MIN_LOG_NUMBER_TO_KEEP)
            .map_err(|error| Error::from_rocks(&error))?
            .unwrap_or(0);
        // Before the question above was answered all of these segments had lost their writers.
        let nothing_since =
            if active_is_empty(db, family)? { Some(newest_wal(&self.directory)?.saturating_sub(1)) } else { None };
        // After the question above, see 3.
        state.references.update(db, &family, self.identity)?;
        let tables = state.references.silent_tables();
        if !tables.is_empty() {
            if !std::mem::replace(&mut state.warned, true) {
                tracing::warn!(
                    ?tables,
                    "tables do not say which values they name: no space is reclaimed until they are compacted"
                );
            }
            return Ok(StoreState::default());
        }
        drop(self.known.look(db, &family)?);
        let mut round =
            StoreState { referencing: state.references.references(candidates), oldest_wal, ..StoreState::default() };
        {
            let mut sketches = self.known.now();
            round.overlaps = sketches.take_overlaps();
            let shadowed = sketches.duplicates().shadowed_in_segments();
            round.shadowed = shadowed.collect();
        }
        let mut began: Option<Instant> = None;
        let mut has_looked = false;
        for segment in sealed {
            let number = segment.number();
            if not_installed.contains(&number) {
                round.waits = true;
                continue;
            }
            let referenced = state.references.bytes.get(&number).copied().unwrap_or(0);
            let mut settled = state.last_wal.get(&number).is_some_and(|last| *last < oldest_wal);
            if !settled && nothing_since.is_some_and(|wal| wal < oldest_wal) {
                // A flush came between the two looks of `last_wal`, which so named a WAL that
                // nothing was written to.
                state.last_wal.insert(number, oldest_wal - 1);
                settled = true;
            }
            if !settled || referenced > 0 {
                round.segments.push(use_of(&segment, referenced, settled));
                if segment.is_relocated() {
                    round.relocated.insert(number.0);
                }
                continue;
            }
            // In the next round at the earliest, once the iterators are gone that were made before
            // this one.
            let known = state.unnamed_since.get(&number).copied();
            let epoch = *state.unnamed_since.entry(number).or_insert_with(|| self.readers.next_epoch());
            if known.is_none() || !self.readers.are_gone(epoch) {
                round.found_unreferenced |= known.is_none();
                round.waits = true;
                continue;
            }
            if began.get_or_insert_with(Instant::now).elapsed() >= MAX_REMOVAL_TIME {
                round.is_unfinished = true;
                continue;
            }
            // One without records takes nothing, and each opening would make another to let it go.
            let is_empty = segment.is_empty() || segment.bytes() <= SEGMENT_HEADER_BYTES as u64;
            if self.log.stays(&segment) && is_empty {
                continue;
            }
            if segment.is_relocated() {
                if !std::mem::replace(&mut has_looked, true) {
                    state.uncommitted.look(db, &self.directory, self.identity)?;
                }
                if state.uncommitted.may_name(number) {
                    round.waits = true;
                    continue;
                }
            }
            if self.log.stays(&segment)
                && let Err(error) = self.log.go_behind(number)
            {
                tracing::debug!(%error, ?number, "no segment can be made behind one that nothing refers to");
                round.waits = true;
                continue;
            }
            let removed = self.log.remove(&segment);
            match removed {
                Ok(false) => continue,
                // It is there still.
                Err(error @ ecotone_valuelog::Error::Background { .. }) => return Err(error.into()),
                _ => (),
            }
            state.last_wal.remove(&number);
            state.appended_by.remove(&number);
            state.unnamed_since.remove(&number);
            state.removed_segments += 1;
            state.removed_bytes += segment.bytes();
            removed?;
        }
        round.waits |= state.seal(&self.log, appended, seal_from);
        Ok(round)
    }
}

/// A segment of relocated values that is appended to.
struct Appended {
    segment: Arc<Segment>,
    bytes: u64,
    has_writers: bool,
}

impl Appended {
    fn now(segment: Arc<Segment>) -> Self {
        // A filter that has appended to it may go on.
        let has_writers = segment.has_writers();
        Self { bytes: segment.bytes(), has_writers, segment }
    }
}

impl State {
    /// Seals those of these segments of which `from` is garbage and which rest: nobody has appended
    /// to them since the last round, nor is about to. Where a compaction is still to be installed
    /// one may be sealed too early, which costs a short segment and no more. Returns whether there
    /// is one that a further round has to look at.
    fn seal(&mut self, log: &ValueLog, appended: Vec<Appended>, from: f64) -> bool {
        let before = std::mem::take(&mut self.appended);
        let mut waits = false;
        for Appended { segment, bytes, has_writers } in appended {
            let number = segment.number();
            let referenced = self.references.bytes.get(&number).copied().unwrap_or(0);
            let records = bytes.saturating_sub(segment.head_bytes());
            let usage = SegmentUse { bytes: Bytes(records), ..use_of(&segment, referenced, true) };
            if usage.garbage_share() >= from {
                // It is sealed now, or it may rest by then.
                waits = true;
                if !has_writers && before.get(&number) == Some(&bytes) && log.seal_relocated(&segment, bytes) {
                    continue;
                }
            }
            self.appended.insert(number, bytes);
        }
        waits
    }

    /// Segments of relocated values that a compaction may be about to name. Looked at before the
    /// tables' references are counted.
    fn not_installed(&mut self, db: &DB, sealed: &[Arc<Segment>]) -> Result<SegmentSet> {
        let waits = |state: &Self, number| state.appended_by.get(&number).is_none_or(|tables| !tables.is_empty());
        let relocated: Vec<_> =
            sealed.iter().filter(|segment| !segment.may_be_in_wal()).map(|it| it.number()).collect();
        if !relocated.iter().any(|number| waits(self, *number)) {
            return Ok(SegmentSet::default());
        }
        let tables = live_tables(db).map_err(|error| Error::Rocks { detail: error.to_string() })?;
        let compacted: HashSet<_> =
            tables.into_iter().filter(|table| table.being_compacted).map(|table| table.file_number).collect();
        let mut not_installed = SegmentSet::default();
        for number in relocated {
            let tables = self.appended_by.entry(number).or_insert_with(|| compacted.clone());
            tables.retain(|table| compacted.contains(table));
            if !tables.is_empty() {
                not_installed.insert(number);
            }
        }
        Ok(not_installed)
    }
}

impl Removal {
    /// The newest WAL that can name a value of a segment whose writers are gone.
    fn last_wal(&self, db: &DB, family: DataFamily) -> Result<WalNumber> {
        // Looked at before the WALs: the last write is in the active memtable, whose WAL is there,
        // or in an older one.
        let is_empty = active_is_empty(db, family)?;
        let newest = newest_wal(&self.directory)?;
        // A memtable begins with a WAL of its own, so nothing is in that one.
        Ok(if is_empty { newest.saturating_sub(1) } else { newest })
    }
}

/// Whether nothing was written since the last memtable was closed.
fn active_is_empty(db: &DB, family: DataFamily) -> Result<bool> {
    let entries = db.property_int_value_cf(&family, properties::NUM_ENTRIES_ACTIVE_MEM_TABLE);
    Ok(entries.map_err(|error| Error::from_rocks(&error))? == Some(0))
}

fn use_of(segment: &Segment, referenced: u64, settled: bool) -> SegmentUse {
    SegmentUse { segment: segment.number().0, bytes: Bytes(segment.bytes()), referenced: Bytes(referenced), settled }
}

/// The newest WAL in a store's directory, 0 without any.
///
/// # Errors
///
/// [`Error::Io`] where the directory cannot be listed.
pub(crate) fn newest_wal(directory: &Path) -> Result<WalNumber> {
    let failed = |error: std::io::Error| Error::io("list", directory, &error);
    let mut newest = 0;
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".log")).and_then(|stem| stem.parse().ok());
        newest = newest.max(number.unwrap_or(0));
    }
    Ok(newest)
}
