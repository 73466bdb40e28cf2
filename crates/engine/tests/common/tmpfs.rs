//! A small file system of a test's own, and how full it gets.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A file system in memory; unmounted when dropped.
pub struct Tmpfs {
    directory: tempfile::TempDir,
}

impl Tmpfs {
    /// Only root may mount. Without it: `None`, and what is not tested in the output. Root that
    /// cannot mount is a failure, or nobody would notice that disks are never full.
    pub fn mount(bytes: u64) -> Option<Self> {
        if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
            skipped("what a full disk does is not tested, because only root may mount a file system for it");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let size = format!("size={bytes}");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "ecotone-test"]).arg(directory.path()).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self { directory }),
            why => panic!(
                "no tmpfs can be mounted at {}, so a full disk cannot be tested: {why:?}; \
                 allow mounting (CAP_SYS_ADMIN in a container), or run these tests as another user than root to skip it",
                directory.path().display()
            ),
        }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn store(&self) -> PathBuf {
        self.path().join("store")
    }

    /// Takes all that is free, as another process might.
    pub fn fill(&self) {
        let filler = File::options().create(true).append(true).open(self.path().join("filler"));
        // Ends with "no space left", as it shall.
        if let Ok(mut filler) = filler {
            while filler.write_all(&[7; 64 << 10]).is_ok() {}
        }
    }

    /// Takes what is free but for so many bytes.
    pub fn fill_but(&self, bytes: u64) {
        let taken = free_bytes(self.path()).checked_sub(bytes).unwrap();
        std::fs::write(self.path().join("filler"), vec![7; usize::try_from(taken).unwrap()]).unwrap();
    }

    pub fn empty(&self) {
        std::fs::remove_file(self.path().join("filler")).unwrap();
    }
}

/// Says what a test leaves out, also where the output of tests that pass is not shown: that holds
/// back what the macros print only.
pub fn skipped(what: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {what}");
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// Bytes that a folder takes, as `du` counts them.
pub fn bytes_below(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let bytes = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let metadata = entry.metadata().ok()?;
        Some(if metadata.is_dir() { bytes_below(&entry.path()) } else { metadata.blocks() * 512 })
    };
    entries.filter_map(bytes).sum()
}

pub fn free_bytes(directory: &Path) -> u64 {
    let found = rustix::fs::statvfs(directory).unwrap();
    found.f_bavail * found.f_frsize
}

/// Looks again and again how little is free, and how much the store takes, until it is dropped.
pub struct Watched {
    stop: Arc<AtomicBool>,
    min_free: Arc<AtomicU64>,
    max_used: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watched {
    pub fn begin(directory: &Path) -> Self {
        let (stop, min_free, max_used) =
            (Arc::<AtomicBool>::default(), Arc::new(AtomicU64::new(u64::MAX)), Arc::<AtomicU64>::default());
        let (is_over, least, most, directory) =
            (stop.clone(), min_free.clone(), max_used.clone(), directory.to_path_buf());
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                least.fetch_min(free_bytes(&directory), Ordering::Relaxed);
                most.fetch_max(bytes_below(&directory), Ordering::Relaxed);
                // A sample, and time for those who are looked at.
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Self { stop, min_free, max_used, thread: Some(thread) }
    }

    /// The least that was free, and the most that the store took.
    pub fn end(mut self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        (self.min_free.load(Ordering::Relaxed), self.max_used.load(Ordering::Relaxed))
    }
}
