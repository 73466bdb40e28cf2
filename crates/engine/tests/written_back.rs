//! What is said to be durable is on the device: asked of the kernel, and not of the code that says so.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

mod common;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use common::appended::written_bytes;
use common::disk::Recorder;
use ecotone_engine::{Durability, OpenMode, SYNC_INTERVAL, Separation, Store, StoreOptions};
use ecotone_rocks_sys::page_cache::unwritten_pages;
use tempfile::TempDir;

/// A directory on a device; `None`, and said so, where the kernel does not tell what is written to it. Memory is no device: there all is dirty for ever.
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

/// The pages of each WAL and segment of a store that are not on the device, as far as something was written to them.
fn unwritten(store: &Path) -> Vec<(PathBuf, u64)> {
    let named = |directory: PathBuf| std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
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
        let options = StoreOptions {
            durability,
            separation: Some(Separation { min_bytes: 50, segment_bytes: 1 << 20 }),
            hooks: recorder.hooks(),
            ..common::small()
        };
        let store = Store::open(&path, OpenMode::Create, options).unwrap();
        // Within one window of what is mapped, and over several.
        for bytes in [100, 10_000, 300_000] {
            let syncs_before = recorder.background_syncs();
            store.put(b"key", &vec![7; bytes]).unwrap();
            if durability == Durability::EverySecond {
                let began = Instant::now();
                while recorder.background_syncs() == syncs_before {
                    assert!(began.elapsed() < 20 * SYNC_INTERVAL, "no background sync");
                    std::thread::yield_now();
                }
            }
            let mut found = unwritten(&path);
            if durability == Durability::None {
                // Nobody has asked for it, so the kernel has it in memory, unless it happens to write just then: what is looked at would show.
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
