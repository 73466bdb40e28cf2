//! Where a lab keeps its files: logs and records in one directory, the servers' stores in another.
//!
//! **Stores lie in memory** (`/dev/shm`) where they fit. The servers of a lab stand for machines
//! with a disk each. On one disk that all share, the kernel's write-back comes in bursts that make
//! every thread of every server up to twice as slow for seconds: the cost of a compacted byte then
//! varies by a fifth from job to job, which no server could foresee.
//!
//! Invariant: stores are gone when the directories are; those of a lab that was killed go when the
//! next one begins.

use std::{
    fs,
    path::{Path, PathBuf},
};

use ecotone_server::free_bytes;

use crate::error::LabError;
use crate::locked_directory::LockedDirectory;
use crate::options::LabOptions;
use crate::recording::PolicyRecording;
use crate::summary::LabReport;

/// Marks a directory as one the lab has recorded into, which it may then record into again.
const MARK: &str = ".ecotone-lab";
/// The report in a recorded directory.
const REPORT_FILE: &str = "lab.json";
/// The file system in memory.
const MEMORY: &str = "/dev/shm";
/// On a disk, by custom.
const DISK: &str = "/var/tmp";
/// What all stores of a run take at most, for each second and each host core that is busy with
/// them: twice what saturated servers were seen to.
const STORE_BYTES_PER_CORE_SECOND: f64 = 45e6;
/// What must be free beyond that: for the servers' own memory and the rest of the machine.
const SPARE_BYTES: u64 = 2 << 30;

/// The directories of a lab.
pub(crate) struct LabDirectories {
    /// Logs, records and the report.
    root: PathBuf,
    is_recorded: bool,
    stores: LockedDirectory,
    /// Removes `root` when it is not to stay.
    _temporary: Option<LockedDirectory>,
}

impl LabDirectories {
    /// Makes the directories. `busy_cores` is how many of the host's cores the servers can keep
    /// busy.
    pub(crate) fn make(options: &LabOptions, busy_cores: f64) -> Result<LabDirectories, LabError> {
        let beneath = match &options.stores {
            Some(directory) => directory.clone(),
            None => default_stores(options.seconds, busy_cores),
        };
        let stores = LockedDirectory::make_in(&beneath)
            .map_err(LabError::io("cannot make a directory for stores in", &beneath))?;
        if let Some(directory) = &options.record {
            let root = recorded(directory)?;
            return Ok(LabDirectories { root, is_recorded: true, stores, _temporary: None });
        }
        let temporary = std::env::temp_dir();
        let temporary_root =
            LockedDirectory::make_in(&temporary).map_err(LabError::io("cannot make a directory in", &temporary))?;
        Ok(LabDirectories {
            root: temporary_root.path().to_owned(),
            is_recorded: false,
            stores,
            _temporary: Some(temporary_root),
        })
    }

    /// Where the stores lie, for people.
    pub(crate) fn stores_text(&self) -> String {
        let path = self.stores.path().parent().unwrap_or(Path::new("/")).display().to_string();
        if path == MEMORY { format!("memory ({MEMORY})") } else { path }
    }

    /// An empty directory for a run's logs. What an earlier lab recorded there is removed.
    pub(crate) fn fresh(&self, name: &str) -> Result<PathBuf, LabError> {
        let directory = self.root.join(name);
        if directory.exists() {
            fs::remove_dir_all(&directory).map_err(LabError::io("cannot remove", &directory))?;
        }
        fs::create_dir_all(&directory).map_err(LabError::io("cannot make directory", &directory))?;
        Ok(directory)
    }

    /// An empty directory for a run's stores.
    pub(crate) fn fresh_stores(&self, name: &str) -> Result<PathBuf, LabError> {
        let directory = self.stores.path().join(name);
        fs::create_dir_all(&directory).map_err(LabError::io("cannot make directory", &directory))?;
        Ok(directory)
    }

    /// Removes a run's stores and, if asked for, writes its records.
    pub(crate) fn tidy(&self, logs: &Path, stores: &Path, recording: &PolicyRecording) -> Result<(), LabError> {
        fs::remove_dir_all(stores).map_err(LabError::io("cannot remove", stores))?;
        if self.is_recorded {
            for server in &recording.servers {
                server.write(&logs.join(format!("{}.records.jsonl", server.server)))?;
            }
        }
        Ok(())
    }

    /// Writes the report if asked for.
    pub(crate) fn keep(&self, report: &LabReport) -> Result<(), LabError> {
        if self.is_recorded {
            let path = self.root.join(REPORT_FILE);
            let text = serde_json::to_string_pretty(report)
                .map_err(|error| LabError::io("cannot write", &path)(error.into()))?;
            fs::write(&path, text + "\n").map_err(LabError::io("cannot write", &path))?;
        }
        Ok(())
    }
}

/// The directory that was asked for: empty, or one of the lab's own.
fn recorded(directory: &Path) -> Result<PathBuf, LabError> {
    fs::create_dir_all(directory).map_err(LabError::io("cannot make directory", directory))?;
    let mark = directory.join(MARK);
    let mut entries = fs::read_dir(directory).map_err(LabError::io("cannot read directory", directory))?;
    if !mark.exists() && entries.next().is_some() {
        let reason = format!("{} is not empty and was not made by the lab; name another", directory.display());
        return Err(LabError::option("--record", reason));
    }
    fs::write(&mark, "").map_err(LabError::io("cannot write", &mark))?;
    std::path::absolute(directory).map_err(LabError::io("cannot find directory", directory))
}

/// Memory if there is enough of it, else the disk.
fn default_stores(seconds: u64, busy_cores: f64) -> PathBuf {
    let needed = stores_bytes(seconds, busy_cores).saturating_add(SPARE_BYTES);
    let fits = free_bytes(Path::new(MEMORY)).is_ok_and(|free| free >= needed)
        && fs::read_to_string("/proc/meminfo").is_ok_and(|text| available_bytes(&text) >= needed);
    if fits {
        return MEMORY.into();
    }
    let disk = PathBuf::from(DISK);
    if disk.is_dir() { disk } else { std::env::temp_dir() }
}

/// What the stores take at most.
fn stores_bytes(seconds: u64, busy_cores: f64) -> u64 {
    (seconds as f64 * busy_cores * STORE_BYTES_PER_CORE_SECOND) as u64
}

/// `MemAvailable` of `/proc/meminfo`; 0 where it is not reported.
fn available_bytes(meminfo: &str) -> u64 {
    let kibibytes = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kibibytes.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot go on should say where

    use super::*;
    use crate::profile::Profile;
    use crate::scaling::Demand;

    #[test]
    fn memory_that_is_available_is_read_from_the_kernel() {
        assert_eq!(available_bytes("MemTotal: 10 kB\nMemAvailable:    2048 kB\nBuffers: 1 kB\n"), 2 << 20);
        assert_eq!(available_bytes("MemTotal: 10 kB\n"), 0);
        assert_eq!(available_bytes("MemAvailable: much\n"), 0);
    }

    #[test]
    fn a_demo_takes_of_each_core_what_the_readme_says_and_of_a_large_host_what_its_servers_can_use() {
        let bytes = |host_cores: f64| {
            let demand = Demand { foreground_threads: 1, colocated_threads: 0, seconds: 45 };
            let emulated = Profile::load("three-tier").unwrap().scaled_to(host_cores, demand).unwrap();
            stores_bytes(45, host_cores * emulated.host_share)
        };
        for cores in [2.0, 4.0, 8.0] {
            assert!((1.9e9..=2.03e9).contains(&(bytes(cores) as f64 / cores)), "{cores} cores: {}", bytes(cores));
        }
        assert!(bytes(64.0) < 25_000_000_000, "{}", bytes(64.0));
        assert_eq!(bytes(64.0), bytes(128.0), "cores that no server uses write nothing");
    }

    #[test]
    fn a_run_too_long_for_memory_goes_to_the_disk() {
        assert_ne!(default_stores(u64::MAX / 2, 2.0), PathBuf::from(MEMORY));
    }
}
