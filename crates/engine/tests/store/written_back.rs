//! What is said to be durable is on the device: asked of the kernel, and not of the code that says
//! so.

use crate::common;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use common::appended::written_bytes;
use common::disk::Recorder;
use ecotone_engine::{Durability, Error, OpenMode, SYNC_INTERVAL, Separation, Store, StoreSettings};
use ecotone_io::page_cache::unwritten_pages;
use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_rocks::filesystem::FileSystemHooks;
use tempfile::TempDir;

/// A directory on a device; `None`, and said so, where the kernel does not tell what is written to
/// it. Memory is no device: there all is dirty for ever.
fn on_a_device() -> Option<TempDir> {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut file = File::create_new(directory.path().join("probe")).unwrap();
    file.write_all(&[1; 8192]).unwrap();
    let before = unwritten_pages(&file, 8192);
    file.sync_data().unwrap();
    let after = unwritten_pages(&file, 8192);
    let tells = matches!((&before, &after), (Ok(1..), Ok(0)));
    if !tells {
        eprintln!(
            "skipped: in {directory:?} the kernel tells of unwritten pages {before:?}, and after a sync {after:?}"
        );
    }
    tells.then_some(directory)
}

/// The pages of each WAL and segment of a store that are not on the device, as far as something was
/// written to them.
fn unwritten(store: &Path) -> Vec<(PathBuf, u64)> {
    let named =
        |directory: PathBuf| std::fs::read_dir(directory).into_iter().flatten().map(|entry| entry.unwrap().path());
    let is_appended_to = |path: &PathBuf| path.extension().is_some_and(|it| it == "log" || it == "segment");
    let files = named(store.to_path_buf()).chain(named(store.join("values"))).filter(is_appended_to);
    files
        .map(|path| {
            let pages = unwritten_pages(&File::open(&path).unwrap(), written_bytes(&path)).unwrap();
            (path, pages)
        })
        .collect()
}

fn all_of(found: &[(PathBuf, u64)], holds: impl Fn(u64) -> bool) -> bool {
    let of = |extension| found.iter().filter(move |(path, _)| path.extension().is_some_and(|it| it == extension));
    of("log").count() > 0 && of("segment").count() > 0 && found.iter().all(|(_, pages)| holds(*pages))
}

#[test]
fn what_is_acknowledged_as_durable_is_on_the_device() {
    let Some(directory) = on_a_device() else { return };
    for durability in [Durability::None, Durability::EverySecond, Durability::Always] {
        let path = directory.path().join(format!("{durability:?}"));
        let recorder = Recorder::below(directory.path());
        let options = StoreSettings {
            durability,
            separation: Some(Separation { min_bytes: 50, segment_bytes: 1 << 20 }),
            ..common::small()
        };
        let builder = Store::builder(&path).mode(OpenMode::Create).settings(options);
        let store = builder.hooks(recorder.hooks()).open().unwrap();
        // Within one window of what is mapped, and over several.
        for bytes in [100, 10_000, 300_000] {
            let syncs_before = recorder.background_syncs();
            store.put(b"key", &vec![7; bytes]).unwrap();
            if durability == Durability::EverySecond {
                let began = Instant::now();
                while recorder.background_syncs() == syncs_before {
                    assert!(began.elapsed() < 60 * SYNC_INTERVAL, "no background sync");
                    std::thread::yield_now();
                }
            }
            let mut found = unwritten(&path);
            if durability == Durability::None {
                // Nobody has asked for it, so the kernel has it in memory, unless it happens to
                // write just then: what is looked at would show.
                for _ in 0..100 {
                    if all_of(&found, |pages| pages > 0) {
                        break;
                    }
                    store.put(b"key", &vec![7; bytes]).unwrap();
                    found = unwritten(&path);
                }
                assert!(all_of(&found, |pages| pages > 0), "{bytes} bytes: {found:?}");
            } else {
                assert!(all_of(&found, |pages| pages == 0), "{durability:?}, {bytes} bytes: {found:?}");
            }
        }
        store.close().unwrap();
    }
}

/// Whatever the store that it is a copy of does.
#[test]
fn all_of_a_checkpoint_is_on_the_device() {
    let Some(directory) = on_a_device() else { return };
    for separated in [false, true] {
        let store = directory.path().join(format!("store-{separated}"));
        let copy = directory.path().join(format!("copy-{separated}"));
        let options = StoreSettings {
            durability: Durability::None,
            separation: separated.then_some(Separation { min_bytes: 50, segment_bytes: 1 << 20 }),
            memtable_bytes: 1 << 20,
            ..common::small()
        };
        let store = Store::open(&store, OpenMode::Create, options).unwrap();
        for number in 0..3_000_u64 {
            store.put(format!("key{number}").as_bytes(), &[7; 1000]).unwrap();
        }
        store.checkpoint(&copy).unwrap();
        let mut files = 0;
        for folder in [copy.clone(), copy.join("values")] {
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let (path, metadata) = entry.map(|entry| (entry.path(), entry.metadata().unwrap())).unwrap();
                // What is cut off behind tables and logs once they are synced touches their last
                // page, and nothing of it.
                let is_cut = path.extension().is_some_and(|it| it == "sst" || it == "log");
                let bytes = if is_cut { metadata.len() / 4096 * 4096 } else { metadata.len() };
                if metadata.is_file() && bytes > 0 {
                    files += 1;
                    let pages = unwritten_pages(&File::open(&path).unwrap(), bytes).unwrap();
                    assert_eq!(pages, 0, "{path:?}");
                }
            }
        }
        assert!(files >= if separated { 7 } else { 5 }, "{files} files");
        // And that is known there: who opens the copy has nothing to sync.
        assert_eq!(copy.join("values/WATERMARK").exists(), separated);
        store.close().unwrap();
    }
}

/// Refuses what is appended to logs and tables, once it is told to.
struct FullDisk(AtomicBool);

impl WriteTap for FullDisk {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        let is_refused = |path: &Path| path.extension().is_some_and(|it| it == "log" || it == "sst");
        match event {
            TapEvent::Appended { path, .. } if self.0.load(Ordering::SeqCst) && is_refused(path) => {
                Err(io::Error::new(io::ErrorKind::StorageFull, "the disk is full"))
            }
            _ => Ok(()),
        }
    }
}

/// RocksDB syncs no file that an append to has failed, and the disk may stay full for long.
#[test]
fn what_was_acknowledged_before_the_disk_was_full_gets_to_the_device_all_the_same() {
    let Some(directory) = on_a_device() else { return };
    let mut was_unwritten = false;
    for (round, separated) in [false, true].into_iter().cycle().enumerate().take(20) {
        let path = directory.path().join(round.to_string());
        let disk = Arc::new(FullDisk(AtomicBool::new(false)));
        let options = StoreSettings {
            durability: Durability::EverySecond,
            separation: separated.then_some(Separation { min_bytes: 50, segment_bytes: 1 << 20 }),
            ..common::small()
        };
        let hooks = FileSystemHooks { tap: Some(disk.clone()), ..FileSystemHooks::default() };
        let store = Store::builder(&path).mode(OpenMode::Create).settings(options).hooks(hooks).open().unwrap();
        store.put(b"one", &[7; 10_000]).unwrap();
        disk.0.store(true, Ordering::SeqCst);
        let refused = store.put(b"two", b"short");
        let found = unwritten(&path);
        assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
        // Unless the thread synced in between.
        was_unwritten |= found.iter().any(|(path, pages)| path.extension().is_some_and(|it| it == "log") && *pages > 0);
        let began = Instant::now();
        while unwritten(&path).iter().any(|(_, pages)| *pages > 0) {
            assert!(began.elapsed() < 60 * SYNC_INTERVAL, "{:?}", unwritten(&path));
            std::thread::yield_now();
        }
        let _ = store.close();
        if was_unwritten && separated {
            return;
        }
    }
    panic!("it was written at once each time: what is looked at shows nothing");
}
