//! The cgroup trees of a lab: made, found again, retuned and removed.
//!
//! The lab's process owns the [`LabTree`] and one [`EmulatedServer`] per server; the server's own process opens the
//! same folder as [`CoreGroups`] and moves its threads. Everything is removed on drop. A lab that was killed leaves
//! its tree behind; the next lab removes it by its name, unless processes still run in it: those are reported, not
//! touched.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::hierarchy::{CgroupVersion, CpuHierarchy};
use super::layout::{self, MAX_CORES, Place};
use super::quota::CoreQuota;
use super::usage::GroupUsage;
use crate::PowerError;

/// Names of lab trees begin so; the process id follows.
const TREE_PREFIX: &str = "ecotone-lab-";

/// How long a removal waits for tasks to leave: a killed process needs some milliseconds, more under load.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(3);

/// How long a removal waits between two tries.
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

/// The longest name of a server: it becomes a folder's name.
const MAX_NAME_BYTES: usize = 64;

/// How many trees this process has made. Locked while one is made, so that two makers do not clean up after one another.
static TREES_MADE: Mutex<u64> = Mutex::new(0);

/// The tree of a lab that ended, still holding processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleTree {
    /// Its folder.
    pub folder: PathBuf,
    /// The processes in it: servers that outlived their lab. They take CPU time; end them before measuring.
    pub processes: Vec<u32>,
}

/// The top group of one lab. Removed on drop, after its servers.
#[derive(Debug)]
pub struct LabTree {
    hierarchy: CpuHierarchy,
    folder: PathBuf,
    stale: Vec<StaleTree>,
}

impl LabTree {
    /// Removes the trees of labs that are dead and makes one for this process.
    ///
    /// # Errors
    /// [`PowerError::NotPermitted`] without the right to make cgroups, [`PowerError::NoCpuController`] if this group
    /// may not hand its CPU controller down, [`PowerError::Cgroup`] for other answers of the kernel.
    pub fn create(hierarchy: CpuHierarchy) -> Result<Self, PowerError> {
        let mut made = TREES_MADE.lock();
        let number = *made;
        let own_id = std::process::id();
        let stale = remove_stale(&hierarchy, if number == 0 { Some(own_id) } else { None });
        let name =
            if number == 0 { format!("{TREE_PREFIX}{own_id}") } else { format!("{TREE_PREFIX}{own_id}-{number}") };
        let folder = hierarchy.base().join(name);
        layout::apply(&layout::make_tree(hierarchy.version(), hierarchy.base(), &folder)).map_err(|error| {
            let _ = fs::remove_dir(&folder); // the error that is returned says more
            match error {
                PowerError::Cgroup { action: "write", path, source } if path.ends_with("cgroup.subtree_control") => {
                    PowerError::NoCpuController {
                        what: format!("{} refused to hand the cpu controller down ({source})", path.display()),
                        next_step:
                            "A cgroup that holds processes cannot; run in the host's cgroup namespace, or move this \
                                    container's processes into a child group first"
                                .to_owned(),
                    }
                }
                other => other,
            }
        })?;
        *made += 1;
        Ok(Self { hierarchy, folder, stale })
    }

    /// The folder of this lab.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The hierarchy it stands in.
    pub fn hierarchy(&self) -> &CpuHierarchy {
        &self.hierarchy
    }

    /// Trees of dead labs that could not be removed because processes still run in them.
    pub fn stale(&self) -> &[StaleTree] {
        &self.stale
    }
}

impl Drop for LabTree {
    fn drop(&mut self) {
        if let Err(error) = remove_group(&self.folder) {
            tracing::warn!(folder = %self.folder.display(), %error, "the lab's cgroup stays behind; the next lab removes it");
        }
    }
}

/// The groups of one server, for whoever moves threads or changes the speed. Does not own them.
#[derive(Clone, Debug)]
pub struct CoreGroups {
    version: CgroupVersion,
    folder: PathBuf,
    cores: u32,
}

impl CoreGroups {
    /// Opens the groups of a server that an [`EmulatedServer`] made.
    ///
    /// # Errors
    /// [`PowerError::Server`] if the folder holds no cores, [`PowerError::Cgroup`] if it cannot be read.
    pub fn open(folder: &Path) -> Result<Self, PowerError> {
        let name = || folder.display().to_string();
        if !folder.is_dir() {
            return Err(PowerError::cgroup("open", folder, io::ErrorKind::NotFound.into()));
        }
        let rest = folder.join(Place::Rest.folder_name());
        let version = if rest.join("cgroup.type").exists() { CgroupVersion::V2 } else { CgroupVersion::V1 };
        let cores =
            (0..MAX_CORES).take_while(|&core| folder.join(Place::Core(core).folder_name()).is_dir()).count() as u32;
        if cores == 0 || !rest.is_dir() {
            return Err(PowerError::Server { name: name(), what: "the folder holds no emulated cores".to_owned() });
        }
        Ok(Self { version, folder: folder.to_path_buf(), cores })
    }

    /// The server's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// How many cores it has.
    pub fn cores(&self) -> u32 {
        self.cores
    }

    /// The folder of a place.
    pub fn place(&self, place: Place) -> PathBuf {
        self.folder.join(place.folder_name())
    }

    /// The file through which threads are moved to a place.
    pub(crate) fn threads_file(&self, place: Place) -> PathBuf {
        self.place(place).join(match self.version {
            CgroupVersion::V1 => "tasks",
            CgroupVersion::V2 => "cgroup.threads",
        })
    }

    /// Threads that are in a place now.
    ///
    /// # Errors
    /// [`PowerError::Cgroup`] if the kernel's list cannot be read.
    pub fn threads(&self, place: Place) -> Result<Vec<u32>, PowerError> {
        read_ids(&self.threads_file(place))
    }

    /// Moves a whole process into `rest`. Its threads leave from there for cores as they become busy; threads and
    /// children it makes later stay within the server.
    ///
    /// # Errors
    /// [`PowerError::NotPermitted`] or [`PowerError::Cgroup`].
    pub fn adopt(&self, process: u32) -> Result<(), PowerError> {
        if self.version == CgroupVersion::V2 {
            // A process enters a threaded subtree at its root.
            layout::write_control(&self.folder.join("cgroup.procs"), &process.to_string())?;
        }
        layout::write_control(&self.place(Place::Rest).join("cgroup.procs"), &process.to_string())
    }

    /// The speed of a core now, as its quota says.
    ///
    /// # Errors
    /// [`PowerError::Cgroup`] or [`PowerError::Form`] if the quota cannot be read.
    pub fn speed(&self) -> Result<f64, PowerError> {
        Ok(self.quota()?.speed())
    }

    fn quota(&self) -> Result<CoreQuota, PowerError> {
        let core = self.place(Place::Core(0));
        let read = |name: &str| {
            let path = core.join(name);
            let text = fs::read_to_string(&path).map_err(|e| PowerError::cgroup("read", &path, e))?;
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
        parse().ok_or_else(|| PowerError::Form { path, what: format!("no quota and period in {text:?}") })
    }

    /// Gives every core (and `rest`) another speed, in host cores.
    ///
    /// # Errors
    /// [`PowerError::CoreSpeed`] for a speed that quotas cannot give; [`PowerError::Cgroup`] if the kernel refuses.
    pub fn set_speed(&self, speed: f64) -> Result<(), PowerError> {
        let new = CoreQuota::for_speed(speed)?;
        let steps = layout::change_speed(self.version, &self.folder, self.cores, self.quota()?, new);
        layout::apply(&steps)
    }

    /// Counters of a place.
    ///
    /// # Errors
    /// As [`GroupUsage::read`].
    pub fn usage(&self, place: Place) -> Result<GroupUsage, PowerError> {
        GroupUsage::read(&self.place(place))
    }

    /// Counters of the whole server.
    ///
    /// # Errors
    /// As [`GroupUsage::read`].
    pub fn server_usage(&self) -> Result<GroupUsage, PowerError> {
        GroupUsage::read(&self.folder)
    }
}

/// An emulated server: `cores` cores of one speed. Owned by the lab; its groups go when it is dropped, once the
/// server's process has ended.
#[derive(Debug)]
pub struct EmulatedServer {
    groups: CoreGroups,
    origin: PathBuf,
}

impl EmulatedServer {
    /// Makes the groups of a server called `name` with 1 to [`MAX_CORES`] cores of `speed` host cores each.
    ///
    /// # Errors
    /// [`PowerError::Server`] for a name or number that cannot be used or that is taken, [`PowerError::CoreSpeed`]
    /// for a speed that quotas cannot give, else as [`LabTree::create`].
    pub fn create(lab: &LabTree, name: &str, cores: u32, speed: f64) -> Result<Self, PowerError> {
        let server = |what: String| PowerError::Server { name: name.to_owned(), what };
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(plain) {
            return Err(server(format!("use 1 to {MAX_NAME_BYTES} letters, digits, - and _")));
        }
        if !(1..=MAX_CORES).contains(&cores) {
            return Err(server(format!("{cores} cores; give 1 to {MAX_CORES}")));
        }
        let quota = CoreQuota::for_speed(speed)?;
        let folder = lab.folder.join(name);
        if folder.exists() {
            return Err(server("this lab already has a server of that name".to_owned()));
        }
        let version = lab.hierarchy.version();
        let made = layout::apply(&layout::make_server(version, &folder, cores, quota));
        let this =
            Self { groups: CoreGroups { version, folder, cores }, origin: lab.hierarchy.own_group().to_path_buf() };
        // On failure `this` is dropped and removes what was made.
        made.map_err(|error| match error {
            PowerError::Cgroup { path, source, .. } if source.kind() == io::ErrorKind::InvalidInput => server(format!(
                "the kernel refused {cores} cores of speed {speed} ({}: {source}); an enclosing cgroup grants less",
                path.display()
            )),
            other => other,
        })?;
        Ok(this)
    }

    /// The groups, to move processes and threads, change the speed and read counters.
    pub fn groups(&self) -> &CoreGroups {
        &self.groups
    }

    /// The folder to give to the server's process, which opens it with [`super::CgroupCores`].
    pub fn folder(&self) -> &Path {
        &self.groups.folder
    }

    /// Threads of this very process would keep the groups alive: they go back to where the process came from.
    fn evacuate(&self) {
        let own = std::process::id();
        for place in layout::places(self.groups.cores) {
            for thread in self.groups.threads(place).unwrap_or_default() {
                if Path::new(&format!("/proc/self/task/{thread}")).exists() {
                    let (file, id) = match self.groups.version {
                        CgroupVersion::V1 => ("tasks", thread),
                        CgroupVersion::V2 => ("cgroup.procs", own),
                    };
                    if let Err(error) = layout::write_control(&self.origin.join(file), &id.to_string()) {
                        tracing::debug!(thread, %error, "a thread could not leave its emulated core");
                    }
                }
            }
        }
    }
}

impl Drop for EmulatedServer {
    fn drop(&mut self) {
        self.evacuate();
        let folder = &self.groups.folder;
        if let Err(error) = remove_group(folder) {
            let processes = processes_in(folder);
            tracing::warn!(folder = %folder.display(), ?processes, %error, "an emulated server's cgroup stays behind");
        }
    }
}

/// Removes a group and those below it, deepest first, waiting for tasks to leave. A group that is gone is removed.
fn remove_group(dir: &Path) -> io::Result<()> {
    let deadline = Instant::now() + REMOVAL_PATIENCE;
    for child in child_groups(dir) {
        remove_group_until(&child, deadline)?;
    }
    remove_group_until(dir, deadline)
}

fn remove_group_until(dir: &Path, deadline: Instant) -> io::Result<()> {
    loop {
        match fs::remove_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                std::thread::sleep(REMOVAL_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// All groups below `dir`, deepest first.
fn child_groups(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(child_groups(&entry.path()));
            found.push(entry.path());
        }
    }
    found
}

/// Processes in a group and below it.
fn processes_in(dir: &Path) -> Vec<u32> {
    let mut all: Vec<u32> = child_groups(dir)
        .iter()
        .map(PathBuf::as_path)
        .chain([dir])
        .flat_map(|group| read_ids(&group.join("cgroup.procs")).unwrap_or_default())
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn read_ids(file: &Path) -> Result<Vec<u32>, PowerError> {
    let text = fs::read_to_string(file).map_err(|e| PowerError::cgroup("read", file, e))?;
    Ok(text.lines().filter_map(|line| line.trim().parse().ok()).collect())
}

/// The process id in the name of a lab's tree.
fn owner_of(name: &str) -> Option<u32> {
    let rest = name.strip_prefix(TREE_PREFIX)?;
    rest.split_once('-').map_or(rest, |(id, _)| id).parse().ok()
}

/// Removes trees whose lab is dead (or that a dead process with our own id left); returns those that hold processes.
fn remove_stale(hierarchy: &CpuHierarchy, own_id: Option<u32>) -> Vec<StaleTree> {
    let mut stale = Vec::new();
    for entry in fs::read_dir(hierarchy.base()).into_iter().flatten().flatten() {
        let Some(owner) = entry.file_name().to_str().and_then(owner_of) else { continue };
        let alive = Path::new(&format!("/proc/{owner}")).exists();
        if alive && own_id != Some(owner) {
            continue;
        }
        let folder = entry.path();
        let processes = processes_in(&folder);
        if !processes.is_empty() {
            tracing::warn!(folder = %folder.display(), ?processes, "servers of a dead lab still run and take CPU time");
            stale.push(StaleTree { folder, processes });
        } else if let Err(error) = remove_group(&folder) {
            tracing::warn!(folder = %folder.display(), %error, "the cgroup of a dead lab could not be removed");
        }
    }
    stale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_tree_stands_in_its_name() {
        assert_eq!(owner_of("ecotone-lab-123"), Some(123));
        assert_eq!(owner_of("ecotone-lab-123-4"), Some(123));
        for other in ["ecotone-lab-", "ecotone-lab-x", "ecotone-123", "lab-1", "ecotone-lab--1"] {
            assert_eq!(owner_of(other), None, "{other}");
        }
    }

    #[test]
    fn folders_that_are_no_server_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(CoreGroups::open(&dir.path().join("none")), Err(PowerError::Cgroup { .. })));
        assert!(matches!(CoreGroups::open(dir.path()), Err(PowerError::Server { .. })));
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
            assert!(matches!(groups.speed(), Err(PowerError::Cgroup { .. })));
            fs::write(core.join("cpu.max"), "1400 20000\n").unwrap();
            fs::write(core.join("cpu.cfs_quota_us"), "1400\n").unwrap();
            fs::write(core.join("cpu.cfs_period_us"), "20000\n").unwrap();
            assert!((groups.speed().unwrap() - 0.07).abs() < 1e-12);
            fs::write(core.join("cpu.max"), "max 20000\n").unwrap();
            fs::write(core.join("cpu.cfs_quota_us"), "-1\n").unwrap();
            assert!(matches!(groups.speed(), Err(PowerError::Form { .. })));
        }
    }
}
