//! The value store of a store that has one: the value log, and what keeps it in step with RocksDB.

pub(crate) mod barrier;
pub(crate) mod compression;
pub(crate) mod replay;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ecotone_io::objects::{ObjectDirectory, Unchecked};
use ecotone_io::tap::Tap;
use ecotone_policy::compression::{CompressionMode, Parameters};
use ecotone_rocks::compaction_filter::set_compaction_filter;
use ecotone_rocks::filesystem::FileSystemHooks;
use ecotone_rocks::tables::live_tables;
use ecotone_valuelog::log::ValueLog;
use ecotone_valuelog::log::{VALUES_DIRECTORY, ValueOrigin};
use ecotone_valuelog::segment::{self, InFlight, Segment};
use ecotone_valuelog::sync_failure::SyncFailure;
use ecotone_valuelog::tail;
use ecotone_valuelog::watermark::{Watermark, WatermarkFile};
use rust_rocksdb::{DB, Options};

use crate::background::BackgroundThread;
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
use crate::header::encode_separated;
use crate::identity::Identity;
use crate::log_check::Logs;
use crate::options::Separation;
use crate::space::admission::AdmissionControl;
use crate::value_store::barrier::Barrier;
use crate::value_store::compression::{CompressionProperties, ValueCompression, dictionary_share};
use crate::value_store::replay::{Replay, ReplayOutcome};
use crate::{Error, Result, StoreSettings, ValueLogProperties, identity, idle};

/// Segments of a store that separates no values from now on: only their reading matters then.
const IDLE: Separation = Separation::from_bytes(u32::MAX);

/// See the module.
pub(crate) struct ValueStore {
    pub(crate) log: Arc<ValueLog>,
    min_bytes: usize,
    readers: Readers,
    removal: Arc<Removal>,
    pub(crate) gc: Arc<Gc>,
    group: GroupSync,
    worker: Option<GcWorker>,
    /// `None` where every segment is of format 1.
    compression: Option<Arc<ValueCompression>>,
    training: Option<BackgroundThread>,
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
    compression: Option<(Arc<ValueCompression>, CompressionMode, Parameters)>,
    duties: ThreadDuties,
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
    pub(crate) duties: &'s ThreadDuties,
    /// The next segment has this number at least.
    pub(crate) least_segment: u32,
    /// Others append to the segments, begin and remove them.
    pub(crate) follows: bool,
}

impl Opening {
    /// Prepares the options of the database in `directory`, whose identity is there. `None` for a
    /// store without values of its own that is to stay so.
    pub(crate) fn prepare(
        directory: &Path,
        Components { admission, internal, failure, logs, outcome, duties, least_segment, follows }: Components<'_>,
        expired: Option<ExpiredValues>,
        settings: &StoreSettings,
        hooks: &mut Option<FileSystemHooks>,
        options: &mut Options,
    ) -> Result<Option<Self>> {
        let writable = admission.is_some();
        let separation = settings.separation.filter(|_| writable);
        let identity = identity::read(directory)?;
        // Whom it follows may begin with either while it is open here.
        if separation.is_none() && !follows && !identity.has_value_log() {
            return Ok(None);
        }
        let mode = settings.value_compression;
        let packs = follows || identity.has_packed_values() || (writable && mode != CompressionMode::None);
        let tap = FileSystemHooks::tap_of(hooks.as_ref());
        if writable {
            tail::trim(&directory.join(VALUES_DIRECTORY), &tap)?;
        }
        let log = ValueLog::open(directory, separation.unwrap_or(IDLE).segment_bytes, tap.clone())?
            .with_least_number(least_segment)
            .with_failure(failure.clone())
            .with_synced_writes(settings.durability == Durability::Always)
            .with_mapped_reads(settings.mapped_read_bytes)
            .with_page_cache(settings.page_cache_bytes);
        let memory_bytes = settings.compression_memory_bytes;
        let log = if packs { log.with_packed_values(dictionary_share(memory_bytes)) } else { log };
        let log = if follows { log.following() } else { log };
        let log = Arc::new(match settings.max_open_files {
            Some(most) => log.with_max_open(most as usize),
            None => log,
        });
        let parameters = settings.compression_parameters;
        let compression =
            packs.then(|| (Arc::new(ValueCompression::new(log.clone(), &parameters, memory_bytes)), mode, parameters));
        if let Some(admission) = admission {
            admission.has_values(&log);
        }
        options.set_wal_filter(Replay::new(directory, Some(log.clone()), logs.clone(), outcome.clone()));
        let mapped = settings.mapped_bytes;
        let gc = Gc::new(log.clone(), admission.cloned(), internal.clone(), expired, mapped, duties.clone());
        let gc = Arc::new(gc.with_compression(compression.as_ref().map(|(compression, ..)| compression.clone())));
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
            compression,
            duties: duties.clone(),
            settings: Settings {
                parameters: settings.gc.clone(),
                // A compaction of level 0 takes all tables below it, and must be able to begin.
                // With fewer none is due.
                most_l0_tables: u64::from(settings.l0_compaction_trigger - 1),
                target_file_bytes: settings.target_file_bytes,
            },
            notifier: Arc::default(),
            opening,
            tap,
        }))
    }

    /// What garbage collection is to do.
    pub(crate) fn gc(&self) -> &Arc<Gc> {
        &self.gc
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
        if writable && self.compression.is_some() && !identity.has_packed_values() {
            // Before anything is appended: replay appends nothing.
            identity = identity.with_packed_values();
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
        let (compression, training) = match self.compression {
            Some((compression, mode, parameters)) if writable => {
                let training = compression.start(mode, parameters, self.duties);
                let training =
                    training.map_err(|error| Error::io("start the training thread of", directory, &error))?;
                (Some(compression), Some(training))
            }
            compression => (compression.map(|(compression, ..)| compression), None),
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
            compression,
            training,
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

    /// Whether a user's value of this length is to be packed and takes longer for it than a thread may
    /// that must not wait.
    #[inline]
    pub(crate) fn packs_slowly(&self, value_bytes: usize) -> bool {
        self.compression.as_ref().is_some_and(|compression| compression.packs_slowly(value_bytes))
    }

    /// Appends the value of `key` and leaves in `stored` what goes to RocksDB instead. `header` is
    /// that of the inline value.
    pub(crate) fn separate(&self, key: &[u8], header: &[u8], value: &[u8], stored: &mut Vec<u8>) -> Result<InFlight> {
        let (pointer, in_flight) = match &self.compression {
            Some(compression) => compression.append(key, value)?,
            None => {
                let (pointer, in_flight) = self.log.append(ValueOrigin::Written, key, value)?;
                (pointer.into(), in_flight)
            }
        };
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

    /// How values are compressed, where any may be.
    pub(crate) fn compression(&self) -> Option<CompressionProperties> {
        self.compression.as_ref().map(|compression| compression.properties())
    }

    /// See [`ValueCompression::compress_by_zstd`].
    pub(crate) fn compress_by_zstd(&self, content: Option<Vec<u8>>) {
        if let Some(compression) = &self.compression {
            compression.compress_by_zstd(content);
        }
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
            // Nobody follows what is beside the store.
            let (from, to) =
                (ObjectDirectory::new(self.log.directory(), Tap::SILENT), ObjectDirectory::new(&values, Tap::SILENT));
            to.make().map_err(|error| Error::io("create the directory", &values, &error))?;
            let mut last = None;
            for segment in self.log.segments() {
                let offset = copy_segment(&segment, &from, &to)?;
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
        if let Some(training) = &self.training {
            training.ask_to_stop();
        }
    }

    /// Ends the segments that are appended to. What is reserved for them and not used is freed.
    pub(crate) fn seal(&self) {
        self.log.close();
    }

    /// Ends the background work. Manual compactions must have been disabled.
    pub(crate) fn stop(&mut self) {
        self.worker = None;
        self.training = None;
    }
}

/// Gives `segment` a second name in `directory`; where it is not sealed yet, copies what is in it.
/// Returns how much that is.
fn copy_segment(segment: &Arc<Segment>, from: &ObjectDirectory, to: &ObjectDirectory) -> Result<u64> {
    let name = segment::file_name(segment.number());
    let bytes = segment.bytes_in_file();
    if segment.is_sealed() && from.link(&name, to).is_ok() {
        return Ok(bytes);
    }
    let copy = || {
        let mut copy = to.create::<Unchecked>(&name)?;
        copy.append_from(&from.open(&name)?, bytes)?;
        copy.seal()
    };
    copy().map_err(|error| Error::io("copy a segment to", &to.path().join(&name), &error))?;
    Ok(bytes)
}
