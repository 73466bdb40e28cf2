//! The data layer of a store that has one: the value log, and what keeps it in step with RocksDB.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ecotone_rocks_sys::compaction_filter::set_compaction_filter;
use ecotone_rocks_sys::filesystem::FileSystemHooks;
use ecotone_rocks_sys::tables::live_tables;
use rust_rocksdb::{DB, Options, WriteBatch};

use crate::batch_records::{Record, records};
use crate::choices::Durability;
use crate::dedup::known::KnownSamples;
use crate::duties::ThreadDuties;
use crate::expired::ExpiredValues;
use crate::family::DataFamily;
use crate::group_sync::GroupSync;
use crate::header::{Header, Kind, encode_separated};
use crate::identity::Identity;
use crate::limits::gate::Gate;
use crate::log_check::Logs;
use crate::options::Separation;
use crate::own_compactions::OwnCompactions;
use crate::sync_failure::SyncFailure;
use crate::tap::Tap;
use crate::values::ValueLog;
use crate::values::barrier::Barrier;
use crate::values::log::{Place, VALUES_DIRECTORY};
use crate::values::pacing::Pacing;
use crate::values::readers::{Reader, Readers};
use crate::values::relocation::{Relocation, Relocators};
use crate::values::removal::{Removal, newest_wal};
use crate::values::removed_ranges::KeyRange;
use crate::values::replay::{Replay, ReplayOutcome};
use crate::values::segment::{self, InFlight, Segment};
use crate::values::tail;
use crate::values::upkeep::{Settings, Upkeep};
use crate::values::wake::Wake;
use crate::values::watermark::{Watermark, WatermarkFile};
use crate::{Error, Result, StoreOptions, ValueLogProperties, identity, idle};

/// Segments of a store that keeps no values apart from now on: only their reading matters then.
const IDLE: Separation = Separation::from_bytes(u32::MAX);

/// Bytes of a segment that are copied at once.
const COPIED_BYTES: usize = 1024 * 1024;

/// See the module.
pub(crate) struct DataLayer {
    pub(crate) log: Arc<ValueLog>,
    min_bytes: usize,
    readers: Readers,
    removal: Arc<Removal>,
    pub(crate) relocation: Arc<Relocation>,
    group: GroupSync,
    upkeep: Option<Upkeep>,
    /// Of values that were written apart from their keys.
    separated_bytes: AtomicU64,
}

/// The data layer of a store whose database is being opened.
pub(crate) struct Opening {
    log: Arc<ValueLog>,
    separation: Option<Separation>,
    newest_wal: u64,
    outcome: Arc<ReplayOutcome>,
    relocation: Arc<Relocation>,
    settings: Settings,
    wake: Arc<Wake>,
    opening: Arc<AtomicBool>,
    tap: Tap,
}

/// What the data layer shares with the rest of its store.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'s> {
    /// `None` where the store is read only.
    pub(crate) gate: Option<&'s Arc<Gate>>,
    pub(crate) own: &'s Arc<OwnCompactions>,
    pub(crate) failure: &'s Arc<SyncFailure>,
    pub(crate) logs: &'s Arc<Logs>,
    pub(crate) outcome: &'s Arc<ReplayOutcome>,
}

/// What the listener tells the data layer.
#[derive(Clone)]
pub(crate) struct TableEvents {
    wake: Arc<Wake>,
}

impl TableEvents {
    /// A memtable is full, or is to be flushed for another reason; the next one is empty.
    pub(crate) fn memtable_begins(&self) {
        self.wake.memtable_begins();
    }

    /// A flush or a compaction has ended, or there is less space than before.
    pub(crate) fn tables_changed(&self) {
        self.wake.tables_changed();
    }
}

impl Opening {
    /// Prepares the options of the database in `directory`, whose identity is there. `None` for a store without values of its own that is
    /// to stay so.
    pub(crate) fn prepare(
        directory: &Path,
        Shared { gate, own, failure, logs, outcome }: Shared<'_>,
        expired: Option<ExpiredValues>,
        store_options: &StoreOptions,
        hooks: &mut Option<FileSystemHooks>,
        options: &mut Options,
    ) -> Result<Option<Self>> {
        let writable = gate.is_some();
        let separation = store_options.separation.filter(|_| writable);
        if separation.is_none() && !identity::read(directory)?.has_value_log() {
            return Ok(None);
        }
        let tap = Tap::of(hooks.as_ref());
        if writable {
            tail::trim(&directory.join(VALUES_DIRECTORY), &tap)?;
        }
        let log = ValueLog::open(directory, separation.unwrap_or(IDLE).segment_bytes, tap.clone())?
            .with_failure(failure.clone())
            .with_synced_writes(store_options.durability == Durability::Always)
            .with_mapped_reads(store_options.mapped_read_bytes)
            .with_page_cache(store_options.page_cache_bytes);
        let log = Arc::new(match store_options.max_open_files {
            Some(most) => log.with_max_open(most as usize),
            None => log,
        });
        if let Some(gate) = gate {
            gate.has_values(&log);
        }
        options.set_wal_filter(Replay::new(directory, Some(log.clone()), logs.clone(), outcome.clone()));
        let duties = ThreadDuties::new(store_options.duties.clone());
        let mapped = store_options.mapped_bytes;
        let relocation = Relocation::new(log.clone(), gate.cloned(), own.clone(), expired, mapped, duties);
        let relocation = Arc::new(relocation);
        set_compaction_filter(options, Arc::new(Relocators(relocation.clone())));
        let next = hooks.take().unwrap_or_default();
        let opening = Arc::new(AtomicBool::new(true));
        *hooks = Some(FileSystemHooks {
            tap: Some(Arc::new(Barrier::new(log.clone(), outcome.clone(), opening.clone(), next.tap.clone()))),
            maps_wals: true,
            ..next
        });
        Ok(Some(Self {
            log,
            separation,
            newest_wal: newest_wal(directory)?,
            outcome: outcome.clone(),
            relocation,
            settings: Settings {
                parameters: store_options.relocation.clone(),
                // A compaction of level 0 takes all tables below it, and must be able to begin. With fewer none is due.
                most_l0_tables: u64::from(store_options.l0_compaction_trigger - 1),
                target_file_bytes: store_options.target_file_bytes,
            },
            wake: Arc::default(),
            opening,
            tap,
        }))
    }

    /// What the listener is to tell.
    pub(crate) fn table_events(&self) -> TableEvents {
        TableEvents { wake: self.wake.clone() }
    }

    /// What went wrong in the value log when the database could not be opened.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.outcome.corrupt.get().cloned()
    }

    /// The database is open.
    pub(crate) fn finish(
        self,
        directory: &Path,
        db: &Arc<DB>,
        family: DataFamily,
        known: Arc<KnownSamples>,
        writable: bool,
    ) -> Result<DataLayer> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        self.opening.store(false, Ordering::Release);
        self.log.opened();
        if writable {
            // What was found has to be opened for it. Now that may fail; later, for want of a descriptor, it would end all writing.
            self.log.sync()?;
        }
        let mut identity = identity::read(directory)?;
        if writable && !identity.has_value_log() {
            // Tables that replay has just written say what they refer to, so it does no harm that they are below.
            let newest = live_tables(db).map_err(|error| Error::Rocks { detail: error.to_string() })?;
            let newest = newest.iter().map(|table| table.file_number).max();
            identity = Identity::with_value_log(newest.map_or(0, |newest| newest + 1));
            identity::write(directory, identity, &self.tap)?;
        }
        let readers = Readers::default();
        let removal = Removal::new(self.log.clone(), readers.clone(), known, directory, self.newest_wal, identity);
        let removal = Arc::new(removal);
        let relocation = self.relocation;
        let upkeep = if writable {
            let upkeep = Upkeep::start(removal.clone(), relocation.clone(), self.settings, self.wake, db, family);
            Some(upkeep.map_err(|error| Error::io("start the value log's thread of", directory, &error))?)
        } else {
            None
        };
        let min_bytes = self.separation.map_or(usize::MAX, |separation| separation.min_bytes as usize);
        Ok(DataLayer {
            log: self.log,
            min_bytes,
            readers,
            removal,
            relocation,
            group: GroupSync::default(),
            upkeep,
            separated_bytes: AtomicU64::new(0),
        })
    }
}

impl DataLayer {
    /// Whether a value of this length goes to the value log.
    #[inline]
    pub(crate) fn takes(&self, value_bytes: usize) -> bool {
        value_bytes >= self.min_bytes
    }

    /// Appends the value of `key` and leaves in `stored` what goes to RocksDB instead. `header` is that of the inline value.
    pub(crate) fn separate(&self, key: &[u8], header: &[u8], value: &[u8], stored: &mut Vec<u8>) -> Result<InFlight> {
        let (pointer, in_flight) = self.log.append(Place::Written, key, value)?;
        if let Some(upkeep) = &self.upkeep {
            upkeep.wrote(pointer.record_bytes(key.len()));
        }
        self.separated_bytes.fetch_add(value.len() as u64, Ordering::Relaxed);
        stored.clear();
        encode_separated(header, pointer, stored);
        Ok(in_flight)
    }

    /// A range of keys was removed.
    pub(crate) fn removed(&self, range: KeyRange) {
        if let Some(upkeep) = &self.upkeep {
            upkeep.removed(range);
        }
    }

    /// Bytes of the values that were written apart from their keys, relocation left out.
    pub(crate) fn separated_bytes(&self) -> u64 {
        self.separated_bytes.load(Ordering::Relaxed)
    }

    /// The same batch with its long values in the value log; `None` where it has none.
    ///
    /// # Errors
    ///
    /// [`Error::WouldWait`] with `at_once`, where another value is being written that takes long; nothing was written. Others as of a write.
    pub(crate) fn separate_all(
        &self,
        batch: &WriteBatch,
        family: DataFamily,
        at_once: bool,
    ) -> Result<Option<(WriteBatch, Vec<InFlight>)>> {
        // The header counts as well: a batch without a stored value of this length has no value of this length.
        let long = records(batch.data())
            .any(|record| matches!(record, Ok(Record::Put { value, .. }) if self.takes(value.len())));
        if !long {
            return Ok(None);
        }
        if at_once && !self.log.takes_at_once() {
            return Err(Error::WouldWait);
        }
        let (mut separated, mut in_flights, mut stored) = (WriteBatch::default(), Vec::new(), Vec::new());
        for record in records(batch.data()) {
            match record {
                Ok(Record::Put { key, value, .. }) => {
                    let header = Header::decode(value).map_err(|reason| Error::corrupt_value(key, &reason))?;
                    let payload = &value[header.bytes..];
                    if header.kind == Kind::Inline && self.takes(payload.len()) {
                        in_flights.push(self.separate(key, &value[..header.bytes], payload, &mut stored)?);
                        separated.put_cf(&family, key, &stored);
                    } else {
                        separated.put_cf(&family, key, value);
                    }
                }
                Ok(Record::Delete { key }) => separated.delete_cf(&family, key),
                Ok(Record::DeleteRange { from, to }) => separated.delete_range_cf(&family, from, to),
                Ok(Record::Other) | Err(_) => {
                    return Err(Error::invalid("batch", "it holds what no batch of a store holds"));
                }
            }
        }
        Ok(Some((separated, in_flights)))
    }

    /// Makes durable what was written before the call, segments and WAL side by side. Writers that call at the same time
    /// share one sync.
    pub(crate) fn sync(&self, sync_wal: impl FnOnce() -> Result<()>) -> Result<()> {
        self.group.wait(|| {
            if !self.log.is_dirty() {
                return sync_wal();
            }
            std::thread::scope(|scope| {
                let beside = std::thread::Builder::new().name("ecotone-value-sync".into());
                let Ok(values) = beside.spawn_scoped(scope, || self.log.sync()) else {
                    // No further thread is to be had: one after the other.
                    return self.log.sync().and_then(|()| sync_wal());
                };
                let wal = sync_wal();
                let values = values.join().unwrap_or_else(|_| {
                    Err(Error::Background { detail: "the thread that synced the value log panicked".into() })
                });
                values.and(wal)
            })
        })
    }

    /// What who frees garbage works with; `None` where the store is read only.
    pub(crate) fn for_reclaim(&self) -> Option<idle::Values> {
        let wake = self.upkeep.as_ref()?.waker().clone();
        let (log, removal, relocation) = (self.log.clone(), self.removal.clone(), self.relocation.clone());
        Some(idle::Values { log, removal, relocation, wake })
    }

    /// How slow writes are to be.
    pub(crate) fn pacing(&self) -> &Pacing {
        &self.relocation.pacing
    }

    /// Registers an iterator that is about to be made.
    pub(crate) fn reader(&self) -> Reader {
        self.readers.enter()
    }

    /// What the value log holds.
    pub(crate) fn properties(&self) -> ValueLogProperties {
        self.with_relocation(self.removal.properties())
    }

    /// The same; `None` while somebody removes segments or makes a checkpoint.
    pub(crate) fn properties_at_once(&self) -> Option<ValueLogProperties> {
        self.removal.properties_at_once().map(|properties| self.with_relocation(properties))
    }

    fn with_relocation(&self, properties: ValueLogProperties) -> ValueLogProperties {
        ValueLogProperties {
            relocating_segments: self.relocation.cohort_segments(),
            ratio_per_mille: self.relocation.ratio_per_mille(),
            relocated_bytes: self.relocation.relocated_bytes(),
            paced_ms: self.relocation.pacing.rested().as_millis() as u64,
            ..properties
        }
    }

    /// Makes a copy with `copy`, which is given the directory of the new store and fills it, and adds the segments.
    pub(crate) fn checkpoint(&self, directory: &Path, copy: impl FnOnce() -> Result<()>) -> Result<()> {
        // Segments that the copy names must stay until they are linked.
        self.removal.hold(|| {
            self.log.seal_active();
            copy()?;
            // Not segment by segment: a failure that the kernel tells here it tells nobody else.
            self.log.sync()?;
            self.log.sync_relocated()?;
            let values = directory.join(VALUES_DIRECTORY);
            std::fs::create_dir(&values).map_err(|error| Error::io("create the directory", &values, &error))?;
            let mut last = None;
            for segment in self.log.segments() {
                let offset = copy_segment(&segment, &values)?;
                last = Some(Watermark { segment: segment.number(), offset });
            }
            // All of it is durable, so that who opens the copy need not sync it.
            if let Some(last) = last {
                WatermarkFile::open(&values, &Tap::SILENT)?.set(last)?;
            }
            identity::sync_directory(&values, &Tap::SILENT)?;
            identity::sync_directory(directory, &Tap::SILENT)
        })
    }

    /// Asks the background work to end; [`stop`](Self::stop) waits for it.
    pub(crate) fn ask_to_stop(&self) {
        self.relocation.stop();
        if let Some(upkeep) = &self.upkeep {
            upkeep.ask_to_stop();
        }
    }

    /// Ends the segments that are appended to. What is reserved for them and not used is freed.
    pub(crate) fn seal(&self) {
        self.log.close();
    }

    /// Ends the background work. Manual compactions must have been disabled.
    pub(crate) fn stop(&mut self) {
        self.upkeep = None;
    }
}

/// Gives `segment` a second name in `directory`; where it is not sealed yet, copies what is in it. Returns how much that is.
fn copy_segment(segment: &Arc<Segment>, directory: &Path) -> Result<u64> {
    let to = directory.join(segment::file_name(segment.number()));
    let bytes = segment.bytes_in_file();
    if segment.is_sealed() && std::fs::hard_link(segment.path(), &to).is_ok() {
        return Ok(bytes);
    }
    copy_bytes(segment.path(), &to, bytes).map_err(|error| Error::io("copy a segment to", &to, &error))?;
    Ok(bytes)
}

/// Copies the first `bytes` bytes, and makes them durable. The kernel is not asked to do it: it might let both files share their
/// blocks, and a file that is appended to must own what it has reserved.
fn copy_bytes(from: &Path, to: &Path, bytes: u64) -> std::io::Result<()> {
    let mut from = BufReader::with_capacity(COPIED_BYTES, File::open(from)?.take(bytes));
    let mut to = File::create(to)?;
    loop {
        let read = from.fill_buf()?;
        if read.is_empty() {
            return to.sync_all();
        }
        to.write_all(read)?;
        let written = read.len();
        from.consume(written);
    }
}
