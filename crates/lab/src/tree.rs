//! The cgroup trees of a lab: made, found again and removed.
//!
//! The lab's process owns the [`LabTree`] and one [`EmulatedServer`] per server; the server's
//! process opens the same folder as [`CoreGroups`] and moves its threads. Everything is removed on
//! drop. A lab that was killed leaves its tree behind; the next lab removes it by its name, unless
//! processes still run in it: those are reported, not touched.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ecotone_energy::EnergyError;
use ecotone_energy::cores::{CgroupVersion, CoreGroups, CoreQuota, CpuHierarchy, MAX_CORES};
use parking_lot::Mutex;

/// Names of lab trees begin so; the process id follows.
const TREE_PREFIX: &str = "ecotone-lab-";

/// How long a removal waits for tasks to leave: a killed process needs some milliseconds, more
/// under load.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(3);

/// How long a removal waits between two tries.
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

/// The longest name of a server: it becomes a folder's name.
const MAX_NAME_BYTES: usize = 64;

/// How many trees this process has made. Locked while one is made, so that two makers do not clean
/// up after one another.
static TREES_MADE: Mutex<u64> = Mutex::new(0);

/// The tree of a lab that ended, still holding processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleTree {
    /// Its folder.
    pub folder: PathBuf,
    /// The processes in it: servers that outlived their lab. They take CPU time; end them before
    /// measuring.
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
    /// [`EnergyError::NotPermitted`] without the right to make cgroups,
    /// [`EnergyError::NoCpuController`] if this group may not hand its CPU controller down,
    /// [`EnergyError::Cgroup`] for other answers of the kernel.
    pub fn create(hierarchy: CpuHierarchy) -> Result<Self, EnergyError> {
        let mut made = TREES_MADE.lock();
        let number = *made;
        let own_id = std::process::id();
        let stale = remove_stale(&hierarchy, if number == 0 { Some(own_id) } else { None });
        let name =
            if number == 0 { format!("{TREE_PREFIX}{own_id}") } else { format!("{TREE_PREFIX}{own_id}-{number}") };
        let folder = hierarchy.base().join(name);
        hierarchy.make_tree(&folder).map_err(|error| {
            let _ = fs::remove_dir(&folder); // the error that is returned says more
            match error {
                EnergyError::Cgroup { action: "write", path, source } if path.ends_with("cgroup.subtree_control") => {
                    EnergyError::NoCpuController {
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

    /// The hierarchy it is in.
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

/// An emulated server: `cores` cores of one speed. Owned by the lab; its groups go when it is
/// dropped, once the server's process has ended.
#[derive(Debug)]
pub struct EmulatedServer {
    groups: CoreGroups,
    origin: PathBuf,
}

impl EmulatedServer {
    /// Makes the groups of a server called `name` with 1 to [`MAX_CORES`] cores of `speed` host
    /// cores each.
    ///
    /// # Errors
    /// [`EnergyError::Server`] for a name or number that cannot be used or that is taken,
    /// [`EnergyError::CoreSpeed`] for a speed that quotas cannot give, else as [`LabTree::create`].
    pub fn create(lab: &LabTree, name: &str, cores: u32, speed: f64) -> Result<Self, EnergyError> {
        let server = |what: String| EnergyError::Server { name: name.to_owned(), what };
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
        let made = CoreGroups::create(lab.hierarchy.version(), folder.clone(), cores, quota);
        let groups = made.map_err(|error| {
            remove_server(&folder);
            match error {
                EnergyError::Cgroup { path, source, .. } if source.kind() == io::ErrorKind::InvalidInput => {
                    server(format!(
                        "the kernel refused {cores} cores of speed {speed} ({}: {source}); an enclosing cgroup grants less",
                        path.display()
                    ))
                }
                other => other,
            }
        })?;
        Ok(Self { groups, origin: lab.hierarchy.own_group().to_path_buf() })
    }

    /// The groups, to move processes and threads, change the speed and read counters.
    pub fn groups(&self) -> &CoreGroups {
        &self.groups
    }

    /// The folder to give to the server's process, which opens it with
    /// [`ecotone_energy::cores::CgroupCores`].
    pub fn folder(&self) -> &Path {
        self.groups.folder()
    }

    /// Threads of this very process would keep the groups alive: they go back to where the process
    /// came from.
    fn evacuate(&self) {
        let own = std::process::id();
        for group in self.groups.all() {
            for thread in self.groups.threads(group).unwrap_or_default() {
                if Path::new(&format!("/proc/self/task/{thread}")).exists() {
                    let (file, id) = match self.groups.version() {
                        CgroupVersion::V1 => ("tasks", thread),
                        CgroupVersion::V2 => ("cgroup.procs", own),
                    };
                    if let Err(error) = write_id(&self.origin.join(file), id) {
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
        remove_server(self.groups.folder());
    }
}

fn remove_server(folder: &Path) {
    if let Err(error) = remove_group(folder) {
        let processes = processes_in(folder);
        tracing::warn!(folder = %folder.display(), ?processes, %error, "an emulated server's cgroup stays behind");
    }
}

/// Writes a process or thread id in one system call, as the kernel demands. Never creates the file.
fn write_id(file: &Path, id: u32) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(file)?.write_all(id.to_string().as_bytes())
}

/// Removes a group and those below it, deepest first, waiting for tasks to leave. A group that is
/// gone is removed.
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
        .flat_map(|group| fs::read_to_string(group.join("cgroup.procs")))
        .flat_map(|text| text.lines().filter_map(|line| line.trim().parse().ok()).collect::<Vec<u32>>())
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The process id in the name of a lab's tree.
fn owner_of(name: &str) -> Option<u32> {
    let rest = name.strip_prefix(TREE_PREFIX)?;
    rest.split_once('-').map_or(rest, |(id, _)| id).parse().ok()
}

/// Removes trees whose lab is dead (or that a dead process with our own id left); returns those
/// that hold processes.
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
}
