//! RocksDB with nothing of ours in between: no listener, no hooked file system, no compaction
//! service, no header before the values; with BlobDB or without. The marks that our store is
//! measured against.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ecotone_engine::{DATA_FAMILY, SyncPace};
use parking_lot::Mutex;
use rust_rocksdb::statistics::Ticker;
use rust_rocksdb::{DB, FlushOptions, Options, ReadOptions, WriteOptions, properties};

use super::settle::{check_empty, until_idle};
use super::{Durability, GcWork, Target, TargetKind, TargetSettings};
use crate::measure::StallClock;
use crate::{Error, Result};
use family::Family;

mod family;
mod options;

/// RocksDB as a target. Closed when dropped.
pub struct RocksdbTarget {
    // Before `db`: the thread must end first.
    _syncs: Option<WalSyncs>,
    family: Family,
    read_options: ReadOptions,
    write_options: WriteOptions,
    stalls: Mutex<StallClock>,
    opened: Instant,
    directory: PathBuf,
    kind: TargetKind,
    /// Its statistics are the database's.
    options: Options,
    db: Arc<DB>,
}

impl std::fmt::Debug for RocksdbTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RocksdbTarget").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl RocksdbTarget {
    /// Opens a database in `directory`: an empty or missing one, or with `existing` one that a
    /// target like this wrote. With BlobDB where the settings separate values.
    pub fn open(directory: &Path, existing: bool, settings: &TargetSettings) -> Result<Self> {
        if !existing {
            check_empty(directory)?;
        }
        let store_options = settings.store_options()?;
        let mut options = options::database(&store_options);
        let kind = match &store_options.separation {
            None => TargetKind::Rocksdb,
            Some(separation) => {
                options::blobs(&mut options, separation, settings);
                TargetKind::RocksdbBlob
            }
        };
        let failed = |operation| failed(kind, operation);
        options.create_if_missing(!existing);
        options.create_missing_column_families(!existing);
        let db =
            DB::open_cf_with_opts(&options, directory, [(DATA_FAMILY, options.clone())]).map_err(failed("open"))?;
        let db = Arc::new(db);
        let family =
            Family::of(&db).ok_or_else(|| Error::target(kind.name(), "open", "it has no data column family"))?;
        let mut write_options = WriteOptions::default();
        write_options.set_sync(settings.durability == Durability::Always);
        let syncs = (settings.durability == Durability::EverySecond).then(|| WalSyncs::start(&db)).transpose()?;
        Ok(Self {
            _syncs: syncs,
            family,
            read_options: ReadOptions::default(),
            write_options,
            stalls: Mutex::default(),
            opened: Instant::now(),
            directory: directory.to_path_buf(),
            kind,
            options,
            db,
        })
    }

    fn failed(&self, operation: &'static str) -> impl Fn(rust_rocksdb::Error) -> Error + use<> {
        failed(self.kind, operation)
    }

    fn property(&self, name: &std::ffi::CStr) -> Result<u64> {
        let value = self.db.property_int_value_cf(&self.family, name).map_err(self.failed("read a property"))?;
        value.ok_or_else(|| Error::target(self.kind.name(), "read a property", format!("{name:?} is unknown")))
    }
}

impl Target for RocksdbTarget {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.db.put_cf_opt(&self.family, key, value, &self.write_options).map_err(self.failed("put"))
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.db.get_pinned_cf_opt(&self.family, key, &self.read_options).map_err(self.failed("get"))?;
        let Some(found) = found else {
            return Ok(false);
        };
        value.extend_from_slice(&found);
        Ok(true)
    }

    fn seek_scan(&self, key: &[u8], entries: u32) -> Result<u32> {
        let mut rows = self.db.raw_iterator_cf_opt(&self.family, ReadOptions::default());
        rows.seek(key);
        for read in 0..entries {
            let Some((key, value)) = rows.item() else {
                rows.status().map_err(self.failed("scan"))?;
                return Ok(read);
            };
            black_box((key.last(), value.last()));
            if read + 1 < entries {
                rows.next();
            }
        }
        Ok(entries)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.db.delete_cf_opt(&self.family, key, &self.write_options).map_err(self.failed("delete"))
    }

    fn flush(&self) -> Result<()> {
        self.db.flush_cf_opt(&self.family, &FlushOptions::default()).map_err(self.failed("flush"))
    }

    fn settle(&self, limit: Duration, stop: &AtomicBool) -> Result<bool> {
        self.flush()?;
        until_idle(limit, stop, Duration::ZERO, || {
            Ok(self.property(properties::COMPACTION_PENDING.as_ref())? != 0
                || self.property(properties::NUM_RUNNING_COMPACTIONS.as_ref())? != 0
                || self.property(properties::NUM_RUNNING_FLUSHES.as_ref())? != 0)
        })
    }

    fn stall_time(&self) -> Result<Duration> {
        let stalled = self.property(properties::IS_WRITE_STOPPED.as_ref())? != 0
            || self.property(properties::ACTUAL_DELAYED_WRITE_RATE.as_ref())? != 0;
        let mut stalls = self.stalls.lock();
        stalls.sample(self.opened.elapsed(), stalled);
        Ok(stalls.stalled())
    }

    fn gc(&self) -> Result<Option<GcWork>> {
        Ok((self.kind == TargetKind::RocksdbBlob).then(|| GcWork {
            // Its writers wait for RocksDB's stalls only.
            throttled_ms: 0,
            bytes: self.options.get_ticker_count(Ticker::BlobDbGcBytesRelocated),
            cpu_seconds: Err("RocksDB does not tell what moving values costs its compactions".into()),
        }))
    }

    fn directory(&self) -> Option<&Path> {
        Some(&self.directory)
    }
}

fn failed(kind: TargetKind, operation: &'static str) -> impl Fn(rust_rocksdb::Error) -> Error {
    move |error| Error::target(kind.name(), operation, error)
}

/// Syncs the write-ahead log at the pace at which the engine does for the same durability.
struct WalSyncs {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl WalSyncs {
    fn start(db: &Arc<DB>) -> Result<Self> {
        let (stop, stopped) = sync_channel::<()>(0);
        let db = Arc::clone(db);
        let thread = std::thread::Builder::new()
            .name("rocksdb-wal-sync".into())
            .spawn(move || {
                let mut pace = SyncPace::new();
                while stopped.recv_timeout(pace.pause()) == Err(RecvTimeoutError::Timeout) {
                    let begin = Instant::now();
                    if let Err(error) = db.flush_wal(true) {
                        tracing::error!("the write-ahead log could not be synced: {error}; the run is not durable");
                        return;
                    }
                    pace.took(begin.elapsed());
                }
            })
            .map_err(|error| Error::target(TargetKind::Rocksdb.name(), "start the thread that syncs", error))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for WalSyncs {
    fn drop(&mut self) {
        // Dropping the sender wakes the thread.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, its message is on standard error and the run is over
            // anyway.
            let _ = thread.join();
        }
    }
}
