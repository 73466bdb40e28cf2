//! A compaction of which it is open whether it is over: what it relocated stays until that is
//! decided.

use crate::common;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{assert_equals, halve, numbered};
use ecotone_engine::{OpenMode, Store, StoreSettings};
use ecotone_io::tap::{TapEvent, WriteTap};
use ecotone_rocks::filesystem::FileSystemHooks;

/// Several rounds of GC, each of which removes what nothing refers to.
const ROUNDS: Duration = Duration::from_secs(6);

/// A disk that writes a MANIFEST and says that it did not, once values have been relocated.
#[derive(Default)]
struct Disk {
    is_armed: AtomicBool,
    relocated: AtomicUsize,
    failed: AtomicUsize,
}

fn is_of(path: &Path, folder: &str) -> bool {
    path.parent().and_then(Path::file_name).is_some_and(|name| name == folder)
}

impl WriteTap for Disk {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        if !self.is_armed.load(Ordering::SeqCst) {
            return Ok(());
        }
        let is_manifest = event.path().file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"MANIFEST"));
        match event {
            TapEvent::Created { path } if is_of(path, "values") => {
                self.relocated.fetch_add(1, Ordering::SeqCst);
            }
            TapEvent::Synced { .. } if is_manifest && self.relocated.load(Ordering::SeqCst) > 0 => {
                self.failed.fetch_add(1, Ordering::SeqCst);
                return Err(io::Error::other("the disk does not say whether it has written that"));
            }
            _ => (),
        }
        Ok(())
    }
}

fn relocating() -> StoreSettings {
    common::collecting_early(64 * 1024)
}

#[test]
fn what_may_have_been_relocated_stays_until_that_is_decided() {
    let disk = Arc::<Disk>::default();
    let hooks = FileSystemHooks { tap: Some(disk.clone()), ..FileSystemHooks::default() };
    let (directory, store) = common::store_with(relocating(), |builder| builder.hooks(hooks));
    let mut model = numbered(&store, 4_000);
    store.compact(..).unwrap();
    halve(&store, &mut model);
    disk.is_armed.store(true, Ordering::SeqCst);
    // This relocates, or what follows it does.
    let _ = store.compact(..);
    let begin = Instant::now();
    while disk.failed.load(Ordering::SeqCst) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing was relocated");
        std::thread::yield_now();
    }
    let path = directory.path().join("store");
    let segments = || std::fs::read_dir(path.join("values")).unwrap().count();
    let (failed_at, before) = (Instant::now(), segments());
    while failed_at.elapsed() < ROUNDS {
        assert!(segments() >= before, "a segment was removed while it was open which tables are live");
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = store.close();
    let store = Store::open(&path, OpenMode::Open, relocating()).unwrap();
    assert_equals(&store, &model);
    // Now it is decided, and garbage collection goes on.
    store.compact(..).unwrap();
    let live: usize = model.iter().map(|(key, value)| 12 + key.len() + value.len()).sum();
    common::until(&store, |log| (log.bytes as f64) < 1.5 * live as f64);
    assert_equals(&store, &model);
}
