//! The value store of a store that has one: the value log, and what keeps it in step with RocksDB.

pub(crate) mod barrier;
pub(crate) mod replay;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ecotone_rocks_sys::compaction_filter::set_compaction_filter;
use ecotone_rocks_sys::filesystem::FileSystemHooks;
use ecotone_rocks_sys::tables::live_tables;
use ecotone_valuelog::log::ValueLog;
use ecotone_valuelog::log::{VALUES_DIRECTORY, ValueOrigin};
use ecotone_valuelog::segment::{self, InFlight, Segment};
use ecotone_valuelog::sync_failure::SyncFailure;
use ecotone_valuelog::tail;
use ecotone_valuelog::tap::Tap;
use ecotone_valuelog::watermark::{Watermark, WatermarkFile};
use rust_rocksdb::{DB, Options, WriteBatch};

use crate::batch_records::{Record, records};
use crate::choices::Durability;
use crate::compaction::internal::InternalCompactions;
use crate::dedup::sample_registry::SampleRegistry;
use crate::duties::ThreadDuties;
use crate::expired::ExpiredValues;
use crate::family::DataFamily;
use crate::gc::copying::{Gc, GcFilterFactory};
use crate::gc::notifier::GcNotifier;
use crate::gc::readers::{Reader, Readers};
use crate::gc::removal::{Removal, newest_wal};
use crate::gc::removed_ranges::KeyRange;
use crate::gc::throttle::WriteThrottle;
use crate::gc::worker::{GcWorker, Settings};
use crate::group_sync::GroupSync;
use crate::header::{Header, Kind, encode_separated};
use crate::identity::Identity;
use crate::log_check::Logs;
use crate::options::Separation;
use crate::space::admission::AdmissionControl;
use crate::value_store::barrier::Barrier;
use crate::value_store::replay::{Replay, ReplayOutcome};
use crate::{Error, Result, StoreOptions, ValueLogProperties, identity, idle};

/// Segments of a store that separates no values from now on: only their reading matters then.
const IDLE: Separation = Separation::from_bytes(u32::MAX);

/// Bytes of a segment that are copied at once.
const COPIED_BYTES: usize = 1024 * 1024;

/// See the module.
pub(crate) struct ValueStore {
    pub(crate) log: Arc<ValueLog>,
    min_bytes: usize,
    readers: Readers,
    removal: Arc<Removal>,
    pub(crate) gc: Arc<Gc>,
    group: GroupSync,
    worker: Option<GcWorker>,
    /// Of values that were separated from their keys.
    separated_bytes: AtomicU64,
}

/// The value store of a store whose database is being opened.
pub(crate) struct Opening {
    log: Arc<ValueLog>,
    separation: Option<Separation>,
    newest_wal: u64,
    outcome: Arc<ReplayOutcome>,
    gc: Arc<Gc>,
    settings: Settings,
    notifier: Arc<GcNotifier>,
    opening: Arc<AtomicBool>,
    tap: Tap,
}

/// What the value store shares with the rest of its store.
#[derive(Clone, Copy)]
pub(crate) struct Components<'s> {
    /// `None` where the store is read only.
    pub(crate) admission: Option<&'s Arc<AdmissionControl>>,
    pub(crate) internal: &'s Arc<InternalCompactions>,
    pub(crate) failure: &'s Arc<SyncFailure>,
    pub(crate) logs: &'s Arc<Logs>,
    pub(crate) outcome: &'s Arc<ReplayOutcome>,
}

impl Opening {
    /// Prepares the options of the database in `directory`, whose identity is there. `None` for a
    /// store without values of its own that is to stay so.
    pub(crate) fn prepare(
        directory: &Path,
        Components { admission, internal, failure, logs, outcome }: Components<'_>,
        expired: Option<ExpiredValues>,
        store_options: &StoreOptions,
        hooks: &mut Option<FileSystemHooks>,
        options: &mut Options,
    ) -> Result<Option<Self>> {
        let writable = admission.is_some();
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
        if let Some(admission) = admission {
            admission.has_values(&log);
        }
        options.set_wal_filter(Replay::new(directory, Some(log.clone()), logs.clone(), outcome.clone()));
        let duties = ThreadDuties::new(store_options.duties.clone());
        let mapped = store_options.mapped_bytes;
        let gc = Gc::new(log.clone(), admission.cloned(), internal.clone(), expired, mapped, duties);
        let gc = Arc::new(gc);
        set_compaction_filter(options, Arc::new(GcFilterFactory(gc.clone())));
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
            gc,
            settings: Settings {
                parameters: store_options.gc.clone(),
                // A compaction of level 0 takes all tables below it, and must be able to begin.
                // With fewer none is due.
                most_l0_tables: u64::from(store_options.l0_compaction_trigger - 1),
                target_file_bytes: store_options.target_file_bytes,
            },
            notifier: Arc::default(),
            opening,
            tap,
        }))
    }

    /// Wakes the thread of the value log.
    pub(crate) fn notifier(&self) -> &Arc<GcNotifier> {
        &self.notifier
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
        known: Arc<SampleRegistry>,
        writable: bool,
    ) -> Result<ValueStore> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        self.opening.store(false, Ordering::Release);
        self.log.opened();
        if writable {
            // What was found has to be opened for it. Now that may fail; later, for want of a
            // descriptor, it would end all writing.
            self.log.sync()?;
        }
        let mut identity = identity::read(directory)?;
        if writable && !identity.has_value_log() {
            // Tables that replay has just written say what they refer to, so it does no harm that
            // they are below.
            let newest = live_tables(db).map_err(|error| Error::Rocks { detail: error.to_string() })?;
            let newest = newest.iter().map(|table| table.file_number).max();
            identity = Identity::with_value_log(newest.map_or(0, |newest| newest + 1));
            identity::write(directory, identity, &self.tap)?;
        }
        let readers = Readers::default();
        let removal = Removal::new(self.log.clone(), readers.clone(), known, directory, self.newest_wal, identity);
        let removal = Arc::new(removal);
        let gc = self.gc;
        let worker = if writable {
            let worker = GcWorker::start(removal.clone(), gc.clone(), self.settings, self.notifier, db, family);
            Some(worker.map_err(|error| Error::io("start the value log's thread of", directory, &error))?)
        } else {
            None
        };
        let min_bytes = self.separation.map_or(usize::MAX, |separation| separation.min_bytes as usize);
        Ok(ValueStore {
            log: self.log,
            min_bytes,
            readers,
            removal,
            gc,
            group: GroupSync::default(),
            worker,
            separated_bytes: AtomicU64::new(0),
        })
    }
}

impl ValueStore {
    /// Whether a value of this length goes to the value log.
    #[inline]
    pub(crate) fn takes(&self, value_bytes: usize) -> bool {
        value_bytes >= self.min_bytes
    }

    /// Appends the value of `key` and leaves in `stored` what goes to RocksDB instead. `header` is
    /// that of the inline value.
    pub(crate) fn separate(&self, key: &[u8], header: &[u8], value: &[u8], stored: &mut Vec<u8>) -> Result<InFlight> {
        let (pointer, in_flight) = self.log.append(ValueOrigin::Written, key, value)?;
        if let Some(worker) = &self.worker {
            worker.wrote(pointer.record_bytes(key.len()));
        }
        self.separated_bytes.fetch_add(value.len() as u64, Ordering::Relaxed);
        stored.clear();
        encode_separated(header, pointer, stored);
        Ok(in_flight)
    }

    /// A range of keys was removed.
    pub(crate) fn removed(&self, range: KeyRange) {
        if let Some(worker) = &self.worker {
            worker.removed(range);
        }
    }

    /// Bytes of the values that were separated from their keys, garbage collection left out.
    pub(crate) fn separated_bytes(&self) -> u64 {
        self.separated_bytes.load(Ordering::Relaxed)
    }

    /// The same batch with its long values in the value log; `None` where it has none.
    ///
    /// # Errors
    ///
    /// [`Error::WouldBlock`] with `non_blocking`, where another value is being written that takes
    /// long; nothing was written. Others as of a write.
    pub(crate) fn separate_all(
        &self,
        batch: &WriteBatch,
        family: DataFamily,
        non_blocking: bool,
    ) -> Result<Option<(WriteBatch, Vec<InFlight>)>> {
        // The header counts as well: a batch without a stored value of this length has no value of
        // this length.
        let long = records(batch.data())
            .any(|record| matches!(record, Ok(Record::Put { value, .. }) if self.takes(value.len())));
        if !long {
            return Ok(None);
        }
        if non_blocking && !self.log.is_unblocked() {
            return Err(Error::WouldBlock);
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

    /// Makes durable what was written before the call, segments and WAL side by side. Writers that
    /// call at the same time share one sync.
    pub(crate) fn sync(&self, sync_wal: impl FnOnce() -> Result<()>) -> Result<()> {
        self.group.wait(|| {
            if !self.log.is_dirty() {
                return sync_wal();
            }
            std::thread::scope(|scope| {
                let beside = std::thread::Builder::new().name("ecotone-value-sync".into());
                let Ok(values) = beside.spawn_scoped(scope, || self.log.sync().map_err(Error::from)) else {
                    // No further thread is to be had: one after the other.
                    return self.log.sync().map_err(Error::from).and_then(|()| sync_wal());
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
        let notifier = self.worker.as_ref()?.notifier().clone();
        let (log, removal, gc) = (self.log.clone(), self.removal.clone(), self.gc.clone());
        Some(idle::Values { log, removal, gc, notifier })
    }

    /// How slow writes are to be.
    pub(crate) fn throttle(&self) -> &WriteThrottle {
        &self.gc.throttle
    }

    /// Registers an iterator that is about to be made.
    pub(crate) fn reader(&self) -> Reader {
        self.readers.enter()
    }

    /// What the value log holds.
    pub(crate) fn properties(&self) -> ValueLogProperties {
        self.with_gc(self.removal.properties())
    }

    /// The same; `None` while somebody removes segments or makes a checkpoint.
    pub(crate) fn try_properties(&self) -> Option<ValueLogProperties> {
        self.removal.try_properties().map(|properties| self.with_gc(properties))
    }

    fn with_gc(&self, properties: ValueLogProperties) -> ValueLogProperties {
        ValueLogProperties {
            gc_segments: self.gc.candidate_segments(),
            ratio_per_mille: self.gc.ratio_per_mille(),
            relocated_bytes: self.gc.relocated_bytes(),
            throttled_ms: self.gc.throttle.throttled().as_millis() as u64,
            ..properties
        }
    }

    /// Makes a copy with `copy`, which is given the directory of the new store and fills it, and
    /// adds the segments.
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
        self.gc.stop();
        if let Some(worker) = &self.worker {
            worker.ask_to_stop();
        }
    }

    /// Ends the segments that are appended to. What is reserved for them and not used is freed.
    pub(crate) fn seal(&self) {
        self.log.close();
    }

    /// Ends the background work. Manual compactions must have been disabled.
    pub(crate) fn stop(&mut self) {
        self.worker = None;
    }
}

/// Gives `segment` a second name in `directory`; where it is not sealed yet, copies what is in it.
/// Returns how much that is.
fn copy_segment(segment: &Arc<Segment>, directory: &Path) -> Result<u64> {
    let to = directory.join(segment::file_name(segment.number()));
    let bytes = segment.bytes_in_file();
    if segment.is_sealed() && std::fs::hard_link(segment.path(), &to).is_ok() {
        return Ok(bytes);
    }
    copy_bytes(segment.path(), &to, bytes).map_err(|error| Error::io("copy a segment to", &to, &error))?;
    Ok(bytes)
}

/// Copies the first `bytes` bytes, and makes them durable. The kernel is not asked to do it: it
/// might let both files share their blocks, and a file that is appended to must own what it has
/// reserved.
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
