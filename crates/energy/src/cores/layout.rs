//! The groups of an emulated server and the writes that make them: pure plans, carried out by
//! [`apply`].

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::quota::CoreQuota;
use crate::EnergyError;

/// Which of the kernel's two cgroup interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// A hierarchy with the `cpu` controller; threads are moved through `tasks`.
    V1,
    /// The unified hierarchy in threaded mode; threads are moved through `cgroup.threads`.
    V2,
}

/// The most cores of one emulated server: above any edge server, and each is a cgroup.
pub const MAX_CORES: u32 = 256;

/// Shares of a lab's tree among its neighbours on the host (kernel's default: 1024). The speed of
/// an emulated core must not depend on what else runs, so the tree comes first; its quotas bound
/// what it takes.
const TREE_SHARES_V1: &str = "16384";
/// The same for v2 (default: 100).
const TREE_WEIGHT_V2: &str = "1600";

/// A cgroup for threads within a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadGroup {
    /// All threads without a core of their own.
    Rest,
    /// The emulated core of this number, from 0.
    Core(u32),
}

impl ThreadGroup {
    /// The name of its folder.
    pub(crate) fn folder_name(self) -> String {
        match self {
            Self::Rest => "rest".to_owned(),
            Self::Core(core) => format!("core-{core}"),
        }
    }
}

/// All groups for threads of a server.
pub(crate) fn thread_groups(cores: u32) -> impl Iterator<Item = ThreadGroup> {
    std::iter::once(ThreadGroup::Rest).chain((0..cores).map(ThreadGroup::Core))
}

/// One change in the cgroup file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Make(PathBuf),
    Write(PathBuf, String),
}

fn write(dir: &Path, file: &str, text: impl Into<String>) -> Step {
    Step::Write(dir.join(file), text.into())
}

/// A group's quota. In v1 the kernel refuses a child whose quota / period exceeds its parent's;
/// period first is right for slower, quota first for faster (see [`CoreQuota`]).
pub(crate) fn quota_steps(version: CgroupVersion, dir: &Path, quota: CoreQuota, faster: bool) -> Vec<Step> {
    match version {
        CgroupVersion::V1 => {
            let period = write(dir, "cpu.cfs_period_us", quota.period_us.to_string());
            let quota = write(dir, "cpu.cfs_quota_us", quota.quota_us.to_string());
            if faster { vec![quota, period] } else { vec![period, quota] }
        }
        CgroupVersion::V2 => vec![write(dir, "cpu.max", format!("{} {}", quota.quota_us, quota.period_us))],
    }
}

/// Makes the top group of a lab.
pub(crate) fn make_tree(version: CgroupVersion, base: &Path, tree: &Path) -> Vec<Step> {
    let tree_steps = [Step::Make(tree.to_path_buf())];
    match version {
        CgroupVersion::V1 => tree_steps.into_iter().chain([write(tree, "cpu.shares", TREE_SHARES_V1)]).collect(),
        CgroupVersion::V2 => std::iter::once(write(base, "cgroup.subtree_control", "+cpu"))
            .chain(tree_steps)
            .chain([write(tree, "cpu.weight", TREE_WEIGHT_V2), write(tree, "cgroup.subtree_control", "+cpu")])
            .collect(),
    }
}

/// Makes a server's groups. In v2 the children become threaded before the server hands the
/// controller down to them: a group turns into a threaded domain by its first threaded child.
pub(crate) fn make_server(version: CgroupVersion, server: &Path, cores: u32, core: CoreQuota) -> Vec<Step> {
    let mut steps = vec![Step::Make(server.to_path_buf())];
    steps.extend(quota_steps(version, server, core.times(cores), false));
    let folders: Vec<PathBuf> = thread_groups(cores).map(|group| server.join(group.folder_name())).collect();
    for folder in &folders {
        steps.push(Step::Make(folder.clone()));
        if version == CgroupVersion::V2 {
            steps.push(write(folder, "cgroup.type", "threaded"));
        }
    }
    if version == CgroupVersion::V2 {
        steps.push(write(server, "cgroup.subtree_control", "+cpu"));
    }
    for folder in &folders {
        steps.extend(quota_steps(version, folder, core, false));
    }
    steps
}

/// Changes the speed of all cores: the server first when it gets faster, its cores first when
/// slower.
pub(crate) fn change_speed(
    version: CgroupVersion,
    server: &Path,
    cores: u32,
    old: CoreQuota,
    new: CoreQuota,
) -> Vec<Step> {
    let faster = new.speed() > old.speed();
    let own = quota_steps(version, server, new.times(cores), faster);
    let children =
        thread_groups(cores).flat_map(|group| quota_steps(version, &server.join(group.folder_name()), new, faster));
    if faster { own.into_iter().chain(children).collect() } else { children.chain(own).collect() }
}

/// Carries a plan out; stops at the first failure.
pub(crate) fn apply(steps: &[Step]) -> Result<(), EnergyError> {
    for step in steps {
        match step {
            Step::Make(dir) => fs::create_dir(dir).map_err(|e| EnergyError::cgroup("make", dir, e))?,
            Step::Write(file, text) => write_control(file, text)?,
        }
    }
    Ok(())
}

/// Writes a control file in one system call, as the kernel demands. Never creates the file.
pub(crate) fn write_control(file: &Path, text: &str) -> Result<(), EnergyError> {
    fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(file)
        .and_then(|mut f| f.write_all(text.as_bytes()))
        .map_err(|e| EnergyError::cgroup("write", file, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(steps: &[Step]) -> Vec<String> {
        steps
            .iter()
            .map(|step| match step {
                Step::Make(dir) => format!("mkdir {}", dir.display()),
                Step::Write(file, text) => format!("{} = {text}", file.display()),
            })
            .collect()
    }

    #[test]
    fn a_server_in_v1() {
        let quota = CoreQuota::for_speed(0.24).unwrap();
        let steps = make_server(CgroupVersion::V1, Path::new("/s"), 1, quota);
        assert_eq!(
            show(&steps),
            [
                "mkdir /s",
                "/s/cpu.cfs_period_us = 20000",
                "/s/cpu.cfs_quota_us = 4800",
                "mkdir /s/rest",
                "mkdir /s/core-0",
                "/s/rest/cpu.cfs_period_us = 20000",
                "/s/rest/cpu.cfs_quota_us = 4800",
                "/s/core-0/cpu.cfs_period_us = 20000",
                "/s/core-0/cpu.cfs_quota_us = 4800",
            ]
        );
    }

    #[test]
    fn a_lab_and_a_server_in_v2() {
        let mut steps = make_tree(CgroupVersion::V2, Path::new("/c"), Path::new("/c/t"));
        let quota = CoreQuota::for_speed(0.05).unwrap();
        steps.extend(make_server(CgroupVersion::V2, Path::new("/c/t/s"), 2, quota));
        assert_eq!(
            show(&steps),
            [
                "/c/cgroup.subtree_control = +cpu",
                "mkdir /c/t",
                "/c/t/cpu.weight = 1600",
                "/c/t/cgroup.subtree_control = +cpu",
                "mkdir /c/t/s",
                "/c/t/s/cpu.max = 2000 20000",
                "mkdir /c/t/s/rest",
                "/c/t/s/rest/cgroup.type = threaded",
                "mkdir /c/t/s/core-0",
                "/c/t/s/core-0/cgroup.type = threaded",
                "mkdir /c/t/s/core-1",
                "/c/t/s/core-1/cgroup.type = threaded",
                "/c/t/s/cgroup.subtree_control = +cpu",
                "/c/t/s/rest/cpu.max = 1000 20000",
                "/c/t/s/core-0/cpu.max = 1000 20000",
                "/c/t/s/core-1/cpu.max = 1000 20000",
            ]
        );
    }

    /// Plays a v1 kernel: no child may ever have a larger quota / period than its parent.
    fn never_above_the_parent(old: f64, new: f64, cores: u32) {
        let (old, new) = (CoreQuota::for_speed(old).unwrap(), CoreQuota::for_speed(new).unwrap());
        let server = Path::new("/s");
        let mut files = std::collections::BTreeMap::new();
        let made = make_server(CgroupVersion::V1, server, cores, old);
        let changed = change_speed(CgroupVersion::V1, server, cores, old, new);
        for step in made.iter().chain(&changed) {
            if let Step::Write(file, text) = step {
                files.insert(file.clone(), text.parse::<f64>().unwrap());
            }
            let ratio = |dir: &Path| {
                let period = files.get(&dir.join("cpu.cfs_period_us")).copied().unwrap_or(100_000.0);
                files.get(&dir.join("cpu.cfs_quota_us")).map(|quota| quota / period)
            };
            if let (Some(parent), Some(child)) = (ratio(server), ratio(&server.join("core-0"))) {
                assert!(child <= parent + 1e-12, "{child} above {parent} after {step:?}");
            }
        }
        assert_eq!(files[&server.join("core-0/cpu.cfs_quota_us")], new.quota_us as f64);
        assert_eq!(files[&server.join("cpu.cfs_period_us")], new.period_us as f64);
    }

    #[test]
    fn changes_of_speed_never_break_the_kernels_rule() {
        for cores in [1, 4] {
            for (old, new) in [(0.24, 0.04), (0.04, 0.24), (0.045, 0.04), (0.04, 1.0), (1.0, 0.05), (0.3, 0.3)] {
                never_above_the_parent(old, new, cores);
            }
        }
    }
}
