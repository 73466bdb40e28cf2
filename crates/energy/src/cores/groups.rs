//! The cgroups of one emulated server: opened, read, retuned, and threads moved in them. Who makes
//! and removes them is the lab.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::layout::{self, CgroupVersion, MAX_CORES, ThreadGroup};
use super::quota::CoreQuota;
use super::usage::GroupUsage;
use crate::EnergyError;

/// The groups of one server, for whoever moves threads or changes the speed. Does not own them.
#[derive(Clone, Debug)]
pub struct CoreGroups {
    version: CgroupVersion,
    folder: PathBuf,
    cores: u32,
}

impl CoreGroups {
    /// Makes the groups of a server of `cores` cores, each with the quota `core`, in a new
    /// `folder`. After an error some of them may be there.
    ///
    /// # Errors
    /// [`EnergyError::NotPermitted`] or [`EnergyError::Cgroup`], of the first step that failed.
    pub fn create(version: CgroupVersion, folder: PathBuf, cores: u32, core: CoreQuota) -> Result<Self, EnergyError> {
        layout::apply(&layout::make_server(version, &folder, cores, core))?;
        Ok(Self { version, folder, cores })
    }

    /// Opens the groups of a server that [`CoreGroups::create`] made.
    ///
    /// # Errors
    /// [`EnergyError::Server`] if the folder holds no cores, [`EnergyError::Cgroup`] if it cannot
    /// be read.
    pub fn open(folder: &Path) -> Result<Self, EnergyError> {
        let name = || folder.display().to_string();
        if !folder.is_dir() {
            return Err(EnergyError::cgroup("open", folder, io::ErrorKind::NotFound.into()));
        }
        let rest = folder.join(ThreadGroup::Rest.folder_name());
        let version = if rest.join("cgroup.type").exists() { CgroupVersion::V2 } else { CgroupVersion::V1 };
        let cores = (0..MAX_CORES)
            .take_while(|&core| folder.join(ThreadGroup::Core(core).folder_name()).is_dir())
            .count() as u32;
        if cores == 0 || !rest.is_dir() {
            return Err(EnergyError::Server { name: name(), what: "the folder holds no emulated cores".to_owned() });
        }
        Ok(Self { version, folder: folder.to_path_buf(), cores })
    }

    /// The interface of the kernel.
    pub fn version(&self) -> CgroupVersion {
        self.version
    }

    /// The server's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// How many cores it has.
    pub fn cores(&self) -> u32 {
        self.cores
    }

    /// All groups for threads.
    pub fn all(&self) -> impl Iterator<Item = ThreadGroup> {
        layout::thread_groups(self.cores)
    }

    /// The folder of a group.
    pub fn path(&self, group: ThreadGroup) -> PathBuf {
        self.folder.join(group.folder_name())
    }

    /// The file through which threads are moved to a group.
    pub(crate) fn threads_file(&self, group: ThreadGroup) -> PathBuf {
        self.path(group).join(match self.version {
            CgroupVersion::V1 => "tasks",
            CgroupVersion::V2 => "cgroup.threads",
        })
    }

    /// Threads that are in a group now.
    ///
    /// # Errors
    /// [`EnergyError::Cgroup`] if the kernel's list cannot be read.
    pub fn threads(&self, group: ThreadGroup) -> Result<Vec<u32>, EnergyError> {
        read_ids(&self.threads_file(group))
    }

    /// Moves one thread of the server to a group, whatever it is for. The binder of its process does
    /// not know of it.
    ///
    /// # Errors
    /// [`EnergyError::NotPermitted`] or [`EnergyError::Cgroup`], also of a thread that has ended.
    pub fn move_thread(&self, thread: u32, group: ThreadGroup) -> Result<(), EnergyError> {
        layout::write_control(&self.threads_file(group), &thread.to_string())
    }

    /// Moves a whole process into `rest`. Its threads leave from there for cores as they become
    /// busy; threads and children it makes later stay within the server.
    ///
    /// # Errors
    /// [`EnergyError::NotPermitted`] or [`EnergyError::Cgroup`].
    pub fn adopt(&self, process: u32) -> Result<(), EnergyError> {
        if self.version == CgroupVersion::V2 {
            // A process enters a threaded subtree at its root.
            layout::write_control(&self.folder.join("cgroup.procs"), &process.to_string())?;
        }
        layout::write_control(&self.path(ThreadGroup::Rest).join("cgroup.procs"), &process.to_string())
    }

    /// The speed of the fastest core now, as its quota says.
    ///
    /// # Errors
    /// [`EnergyError::Cgroup`] or [`EnergyError::Form`] if a quota cannot be read.
    pub fn speed(&self) -> Result<f64, EnergyError> {
        Ok(self.fastest()?.speed())
    }

    /// The speed of one core now, as its quota says.
    ///
    /// # Errors
    /// As [`CoreGroups::speed`].
    pub fn core_speed(&self, core: u32) -> Result<f64, EnergyError> {
        Ok(self.quota(ThreadGroup::Core(core))?.speed())
    }

    fn fastest(&self) -> Result<CoreQuota, EnergyError> {
        let mut fastest = self.quota(ThreadGroup::Core(0))?;
        for core in 1..self.cores {
            let quota = self.quota(ThreadGroup::Core(core))?;
            if quota.speed() > fastest.speed() {
                fastest = quota;
            }
        }
        Ok(fastest)
    }

    fn quota(&self, group: ThreadGroup) -> Result<CoreQuota, EnergyError> {
        let group = self.path(group);
        let read = |name: &str| {
            let path = group.join(name);
            let text = fs::read_to_string(&path).map_err(|e| EnergyError::cgroup("read", &path, e))?;
            Ok((path, text))
        };
        let (path, text) = match self.version {
            CgroupVersion::V1 => {
                let (path, quota) = read("cpu.cfs_quota_us")?;
                (path, format!("{} {}", quota.trim(), read("cpu.cfs_period_us")?.1.trim()))
            }
            CgroupVersion::V2 => read("cpu.max")?,
        };
        let parse = || {
            let (quota, period) = text.trim().split_once(' ')?;
            Some(CoreQuota { quota_us: quota.parse().ok()?, period_us: period.parse().ok()? })
        };
        parse().ok_or_else(|| EnergyError::Form { path, what: format!("no quota and period in {text:?}") })
    }

    /// Gives every core (and `rest`) another speed, in host cores.
    ///
    /// # Errors
    /// [`EnergyError::CoreSpeed`] for a speed that quotas cannot give; [`EnergyError::Cgroup`] if
    /// the kernel refuses.
    pub fn set_speed(&self, speed: f64) -> Result<(), EnergyError> {
        let new = CoreQuota::for_speed(speed)?;
        let steps = layout::change_speed(self.version, &self.folder, self.cores, self.fastest()?, new);
        layout::apply(&steps)
    }

    /// Gives one group another speed, in host cores: at most that of the server's fastest core when
    /// [`CoreGroups::set_speed`] was called last, or the kernel may refuse it.
    ///
    /// # Errors
    /// As [`CoreGroups::set_speed`].
    pub fn set_group_speed(&self, group: ThreadGroup, speed: f64) -> Result<(), EnergyError> {
        let (old, new) = (self.quota(group)?, CoreQuota::for_speed(speed)?);
        let folder = self.path(group);
        layout::apply(&layout::quota_steps(self.version, &folder, new, new.speed() > old.speed()))
    }

    /// Counters of a group.
    ///
    /// # Errors
    /// As [`GroupUsage::read`].
    pub fn usage(&self, group: ThreadGroup) -> Result<GroupUsage, EnergyError> {
        GroupUsage::read(&self.path(group))
    }

    /// Counters of the whole server.
    ///
    /// # Errors
    /// As [`GroupUsage::read`].
    pub fn server_usage(&self) -> Result<GroupUsage, EnergyError> {
        GroupUsage::read(&self.folder)
    }
}

fn read_ids(file: &Path) -> Result<Vec<u32>, EnergyError> {
    let text = fs::read_to_string(file).map_err(|e| EnergyError::cgroup("read", file, e))?;
    Ok(text.lines().filter_map(|line| line.trim().parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_are_no_server_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(CoreGroups::open(&dir.path().join("none")), Err(EnergyError::Cgroup { .. })));
        assert!(matches!(CoreGroups::open(dir.path()), Err(EnergyError::Server { .. })));
        fs::create_dir(dir.path().join("rest")).unwrap();
        for core in [0, 1, 3] {
            fs::create_dir(dir.path().join(format!("core-{core}"))).unwrap();
        }
        // core-3 does not follow core-1: only a gapless row counts.
        assert_eq!(CoreGroups::open(dir.path()).unwrap().cores(), 2);
    }

    #[test]
    fn the_speed_is_read_back_in_both_versions() {
        for version in [CgroupVersion::V1, CgroupVersion::V2] {
            let dir = tempfile::tempdir().unwrap();
            let core = dir.path().join("core-0");
            fs::create_dir(&core).unwrap();
            let groups = CoreGroups { version, folder: dir.path().to_path_buf(), cores: 1 };
            assert!(matches!(groups.speed(), Err(EnergyError::Cgroup { .. })));
            fs::write(core.join("cpu.max"), "1400 20000\n").unwrap();
            fs::write(core.join("cpu.cfs_quota_us"), "1400\n").unwrap();
            fs::write(core.join("cpu.cfs_period_us"), "20000\n").unwrap();
            assert!((groups.speed().unwrap() - 0.07).abs() < 1e-12);
            fs::write(core.join("cpu.max"), "max 20000\n").unwrap();
            fs::write(core.join("cpu.cfs_quota_us"), "-1\n").unwrap();
            assert!(matches!(groups.speed(), Err(EnergyError::Form { .. })));
        }
    }
}
