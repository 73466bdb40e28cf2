//! Syncs the WAL in the background for [`Durability::EverySecond`](crate::Durability::EverySecond).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ecotone_valuelog::sync_failure::SyncFailure;
use parking_lot::{Condvar, Mutex};
use rust_rocksdb::DB;

use crate::background::BackgroundThread;
use crate::compaction::jobs::BackgroundState;
use crate::sync_pace::SyncPace;
use crate::{Error, Result};

/// What became of a sync that has not failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Synced {
    /// All is durable.
    Now,
    /// It must be tried again: nothing can be synced while the disk is full, and nothing is written
    /// either.
    Later,
}

/// What RocksDB says to a sync of a file that an append to has failed, before it tells of a
/// background error (`GetWriterHasPreviousErrorStatus`). A sync that failed is told in other words,
/// and first.
const APPEND_FAILED: &str = "Writer has previous error";

/// Syncs of the WAL that this program asks for: one at a time, so that who waited for one that
/// fails finds that failure. The kernel tells of what it has dropped once; RocksDB remembers that a
/// file failed, but says so in the words ([`APPEND_FAILED`]) that stand for want of space as well.
/// RocksDB syncs by itself where nothing is separated and each write is to be durable, and a WAL
/// that it ends.
pub(crate) struct WalSyncs {
    directory: PathBuf,
    one_at_a_time: Mutex<()>,
    warned: AtomicBool,
    failure: Arc<SyncFailure>,
    background: Arc<BackgroundState>,
}

/// Why the WAL is not durable.
#[derive(Debug)]
pub(crate) enum NotSynced {
    /// RocksDB does not sync a WAL that it could not append to, or whose sync it has seen fail. It
    /// takes no writes then: where space was short until there is some again, and first flushes all
    /// memtables, so that what was acknowledged is durable in tables; else for good.
    Yet(rust_rocksdb::Error),
    /// Never will be: no write is taken any more.
    Ever(Error),
}

impl WalSyncs {
    /// None yet, of the store in `directory`.
    pub(crate) fn new(directory: &Path, failure: Arc<SyncFailure>, background: Arc<BackgroundState>) -> Arc<Self> {
        Arc::new(Self {
            directory: directory.to_path_buf(),
            one_at_a_time: Mutex::default(),
            warned: AtomicBool::new(false),
            failure,
            background,
        })
    }

    /// Makes durable what the WAL of `db` holds.
    pub(crate) fn sync(&self, db: &DB) -> Result<(), NotSynced> {
        let _one_at_a_time = self.one_at_a_time.lock();
        self.failure.check().map_err(|error| NotSynced::Ever(error.into()))?;
        db.flush_wal(true).map_err(|error| {
            if self.background.is_disk_full() || error.as_ref().contains(APPEND_FAILED) {
                if let Err(error) = self.sync_files()
                    && !self.warned.swap(true, Ordering::Relaxed)
                {
                    tracing::warn!(
                        directory = ?self.directory,
                        %error,
                        "what was written before an append to the WAL failed cannot be synced: it may be lost with power until there is space again"
                    );
                }
                return NotSynced::Yet(error);
            }
            let failure = self.failure.set("WAL sync", format!("the WAL could not be synced: {error}"));
            NotSynced::Ever(failure.into())
        })
    }

    /// Syncs the files of the WAL in RocksDB's stead, and their names: what was acknowledged before
    /// the append that failed is in them, and may have to wait long for space. No tap is told,
    /// since RocksDB alone knows how much of them was written.
    fn sync_files(&self) -> io::Result<()> {
        let mut outcome = Ok(());
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "log") {
                continue;
            }
            match File::open(&path).and_then(|file| file.sync_data()) {
                // What it held is in tables.
                Err(error) if error.kind() == io::ErrorKind::NotFound => (),
                synced => outcome = outcome.and(synced),
            }
        }
        outcome.and_then(|()| File::open(&self.directory)?.sync_all())
    }
}

/// The thread that syncs, and what writers and it tell each other.
pub(crate) struct WalSync {
    shared: Arc<SyncState>,
    thread: BackgroundThread,
    failure: Arc<SyncFailure>,
}

#[derive(Default)]
struct SyncState {
    /// A write since the last sync wants one.
    wanted: AtomicBool,
    stop: Mutex<bool>,
    stopped: Condvar,
}

impl WalSync {
    /// Starts the thread; `sync` makes all of the WAL durable, and all that it names. What it fails
    /// with is left in `failure`, if nothing is yet.
    pub(crate) fn start(
        sync: impl Fn() -> std::result::Result<Synced, String> + Send + 'static,
        failure: Arc<SyncFailure>,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(SyncState::default());
        let (of_thread, fails) = (shared.clone(), failure.clone());
        let stopping = shared.clone();
        let ask_to_stop = move || {
            *stopping.stop.lock() = true;
            stopping.stopped.notify_all();
        };
        let thread = BackgroundThread::start("ecotone-wal-sync", ask_to_stop, move || of_thread.run(&sync, &fails))?;
        Ok(Self { shared, thread, failure })
    }

    /// Says that a write wants to be durable within [`SYNC_INTERVAL`](crate::SYNC_INTERVAL).
    #[inline]
    pub(crate) fn want(&self) {
        // Read first: the line then stays shared between the cores of all writers.
        if !self.shared.wanted.load(Ordering::Relaxed) {
            self.shared.wanted.store(true, Ordering::Release);
        }
    }

    /// The error of the first sync that failed, of the WAL or of the value log, whoever asked for
    /// it.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        Ok(self.failure.check()?)
    }

    /// Ends the thread. Writes since its last sync are for the caller to sync.
    pub(crate) fn stop(&mut self) {
        self.thread.stop();
    }
}

impl SyncState {
    fn run(&self, sync: &dyn Fn() -> std::result::Result<Synced, String>, failure: &SyncFailure) {
        let mut stop = self.stop.lock();
        let mut pace = SyncPace::new();
        while !*stop {
            self.stopped.wait_for(&mut stop, pace.pause());
            if *stop || !self.wanted.swap(false, Ordering::AcqRel) {
                continue;
            }
            let begin = Instant::now();
            let outcome = parking_lot::MutexGuard::unlocked(&mut stop, sync);
            pace.took(begin.elapsed());
            if outcome == Ok(Synced::Later) {
                self.wanted.store(true, Ordering::Release);
            }
            if let Err(reason) = outcome {
                failure.set("WAL sync", reason);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::events::{BackgroundError, StoreEvents, sync_failures_to};
    use crate::sync_pace::SYNC_INTERVAL;
    use std::sync::mpsc;

    struct ErrorEvents(mpsc::Sender<BackgroundError>);

    impl StoreEvents for ErrorEvents {
        fn background_error(&self, event: &BackgroundError) {
            self.0.send(event.clone()).unwrap();
        }
    }

    #[test]
    fn a_failed_sync_is_told_once_and_fails_every_later_write() {
        let (told, reported) = mpsc::channel();
        let (tried, tries) = mpsc::channel();
        let sync = move || {
            tried.send(()).unwrap();
            Err("disk on fire".into())
        };
        let sync = WalSync::start(sync, SyncFailure::reporting_to(sync_failures_to(Some(Arc::new(ErrorEvents(told))))))
            .unwrap();
        sync.check().unwrap();
        sync.want();
        let event = reported.recv_timeout(10 * SYNC_INTERVAL).unwrap();
        assert!(event.during == "WAL sync" && event.detail.contains("disk on fire") && event.writes_stopped);
        tries.recv().unwrap();
        for _ in 0..2 {
            // It fails again, of which nobody is told any more.
            sync.want();
            tries.recv_timeout(10 * SYNC_INTERVAL).unwrap();
            match sync.check() {
                Err(Error::Background { detail }) => assert!(detail.contains("disk on fire")),
                other => panic!("{other:?}"),
            }
        }
        drop(sync);
        assert!(reported.recv().is_err());
    }

    #[test]
    fn the_longer_a_sync_takes_the_sooner_the_next_one_begins() {
        let (told, reported) = mpsc::channel();
        let sync = move || {
            told.send(Instant::now()).unwrap();
            // What a slow device does.
            std::thread::sleep(SYNC_INTERVAL / 4);
            Ok(Synced::Now)
        };
        let sync = WalSync::start(sync, Arc::default()).unwrap();
        let begins = (0..12).map(|_| {
            sync.want();
            let begin = reported.recv_timeout(20 * SYNC_INTERVAL).unwrap();
            // Covered by the next one only.
            sync.want();
            begin
        });
        let begins: Vec<_> = begins.collect();
        let between = begins.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap();
        assert!(between < SYNC_INTERVAL, "{between:?} at best");
    }

    #[test]
    fn syncs_when_a_write_wants_it_and_only_then() {
        let (told, reported) = mpsc::channel();
        let mut sync =
            WalSync::start(move || told.send(()).map(|()| Synced::Now).map_err(|e| e.to_string()), Arc::default())
                .unwrap();
        sync.want();
        reported.recv_timeout(20 * SYNC_INTERVAL).unwrap();
        assert!(reported.recv_timeout(2 * SYNC_INTERVAL).is_err(), "no further write wanted a sync");
        sync.stop();
    }

    #[test]
    fn what_cannot_be_synced_for_want_of_space_is_tried_again() {
        let (told, reported) = mpsc::channel();
        let sync = move || {
            told.send(()).unwrap();
            Ok(Synced::Later)
        };
        let sync = WalSync::start(sync, Arc::default()).unwrap();
        sync.want();
        for _ in 0..2 {
            reported.recv_timeout(20 * SYNC_INTERVAL).unwrap();
        }
        sync.check().unwrap();
    }
}
