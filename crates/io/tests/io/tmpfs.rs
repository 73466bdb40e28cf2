//! A small file system of a test's own.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// A file system in memory; unmounted when dropped.
pub struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    /// Only root may mount. Without it: `None`, and what is not tested in the output.
    pub fn mount(bytes: u64) -> Option<Self> {
        if std::fs::metadata("/proc/self").expect("there is a process").uid() != 0 {
            let test = std::thread::current().name().unwrap_or("a test").to_owned();
            // The output of the macros is held back for tests that pass.
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: {test}: a full disk is not tested, because only root may mount a file system for it"
            );
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let size = format!("size={bytes}");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "ecotone-test"]).arg(directory.path()).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(directory)),
            why => panic!(
                "no tmpfs can be mounted at {}: {why:?}; allow mounting, or test as another user than root",
                directory.path().display()
            ),
        }
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes all that is free, as another process might.
    pub fn fill(&self) {
        // Ends with "no space left", as it shall.
        let _ = std::fs::write(self.path().join("filler"), vec![7; 64 << 20]);
    }

    pub fn empty(&self) {
        std::fs::remove_file(self.path().join("filler")).expect("there is a filler");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
