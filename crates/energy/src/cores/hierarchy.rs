//! Where this machine's cgroup CPU controller is mounted, and which group this process is in.
//!
//! Read from /proc/self/mountinfo and /proc/self/cgroup (see cgroups(7) and proc(5)); v1 is
//! preferred where both exist, since a controller belongs to one hierarchy only.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::layout::{self, CgroupVersion};
use crate::EnergyError;

/// The hierarchy that has the CPU controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuHierarchy {
    version: CgroupVersion,
    mount: PathBuf,
    own_group: PathBuf,
}

impl CpuHierarchy {
    /// Looks for the controller on this machine.
    ///
    /// # Errors
    /// [`EnergyError::NoCpuController`] if no hierarchy has it; [`EnergyError::Form`] if /proc
    /// cannot be read.
    pub fn detect() -> Result<Self, EnergyError> {
        let read = |path: &str| {
            fs::read_to_string(path).map_err(|e| EnergyError::Form { path: path.into(), what: e.to_string() })
        };
        Self::find(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?)
    }

    /// The search itself, over the texts of the two files.
    fn find(mountinfo: &str, own_groups: &str) -> Result<Self, EnergyError> {
        let mounts: Vec<Mount> = mountinfo.lines().filter_map(Mount::parse).collect();
        let mut own = own_groups.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            Some((parts.next()?, parts.next()?))
        });
        if let Some(mount) = mounts.iter().find(|m| m.kind == "cgroup" && has(&m.options, ',', "cpu")) {
            let group = own.find(|(controllers, _)| has(controllers, ',', "cpu")).map_or("/", |(_, path)| path);
            return Ok(mount.hierarchy(CgroupVersion::V1, group));
        }
        let Some(mount) = mounts.iter().find(|m| m.kind == "cgroup2") else {
            return Err(EnergyError::NoCpuController {
                what: "no cgroup file system is mounted".to_owned(),
                next_step: "Mount it: mount -t cgroup2 none /sys/fs/cgroup".to_owned(),
            });
        };
        let group = own.find(|(controllers, _)| controllers.is_empty()).map_or("/", |(_, path)| path);
        let hierarchy = mount.hierarchy(CgroupVersion::V2, group);
        let controllers = fs::read_to_string(hierarchy.mount.join("cgroup.controllers")).unwrap_or_default();
        if !has(controllers.trim(), ' ', "cpu") {
            return Err(EnergyError::NoCpuController {
                what: format!("{} offers the controllers [{}], not cpu", hierarchy.mount.display(), controllers.trim()),
                next_step:
                    "Let the container's parent delegate the cpu controller, or use a kernel with CONFIG_CFS_BANDWIDTH"
                        .to_owned(),
            });
        }
        Ok(hierarchy)
    }

    /// The interface spoken here.
    pub fn version(&self) -> CgroupVersion {
        self.version
    }

    /// Where the hierarchy is mounted.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// The group of this process.
    pub fn own_group(&self) -> &Path {
        &self.own_group
    }

    /// The group under which new trees are made: in v1 this process's own, so that its limits still
    /// hold; in v2 the mount's root, since a v2 group that holds processes cannot hand controllers
    /// down.
    pub fn base(&self) -> &Path {
        match self.version {
            CgroupVersion::V1 => &self.own_group,
            CgroupVersion::V2 => &self.mount,
        }
    }

    /// Makes the top group of a lab in a new `folder` of [`CpuHierarchy::base`].
    ///
    /// # Errors
    /// [`EnergyError::NotPermitted`] or [`EnergyError::Cgroup`], of the first step that failed.
    pub fn make_tree(&self, folder: &Path) -> Result<(), EnergyError> {
        layout::apply(&layout::make_tree(self.version, self.base(), folder))
    }
}

fn has(list: &str, separator: char, wanted: &str) -> bool {
    list.split(separator).any(|item| item == wanted)
}

/// One line of mountinfo, as far as it matters here.
struct Mount {
    /// The folder of the file system that is mounted.
    root: String,
    point: PathBuf,
    kind: String,
    options: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (unescape(before.next()?), unescape(before.next()?));
        let mut after = after.split(' ');
        let kind = after.next()?.to_owned();
        let options = after.nth(1)?.to_owned();
        Some(Self { root, point: PathBuf::from(point), kind, options })
    }

    /// A container may see only a part of the tree (`root`), while its group's path counts from the
    /// true root. A path that leads out of what is mounted is taken as the mount's root.
    fn hierarchy(&self, version: CgroupVersion, group: &str) -> CpuHierarchy {
        let group = Path::new(group);
        let relative = group.strip_prefix(&self.root).or_else(|_| group.strip_prefix("/")).unwrap_or(Path::new(""));
        let inside = relative.components().all(|c| matches!(c, Component::Normal(_)));
        let own_group = if inside { self.point.join(relative) } else { self.point.clone() };
        let own_group = if own_group.is_dir() { own_group } else { self.point.clone() };
        CpuHierarchy { version, mount: self.point.clone(), own_group }
    }
}

/// mountinfo writes space, tab, newline and backslash as three octal digits after a backslash.
fn unescape(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(field.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that plays /sys/fs/cgroup, and the mountinfo line of a hierarchy in it.
    fn line(point: &Path, root: &str, kind: &str, options: &str) -> String {
        let point = point.display().to_string().replace(' ', "\\040");
        format!("32 31 0:29 {root} {point} rw,relatime shared:7 master:1 - {kind} none rw,{options}\n")
    }

    #[test]
    fn v1_with_the_controllers_mounted_together() {
        let sys = tempfile::Builder::new().prefix("sys fs ").tempdir().unwrap();
        let cpu = sys.path().join("cpu,cpuacct");
        fs::create_dir_all(cpu.join("user.slice/mine")).unwrap();
        let mountinfo = format!(
            "22 27 0:21 / /proc rw,relatime - proc proc rw\n{}{}{}",
            line(&sys.path().join("cpuset"), "/", "cgroup", "cpuset"),
            line(&sys.path().join("unified"), "/", "cgroup2", "nsdelegate"),
            line(&cpu, "/", "cgroup", "cpu,cpuacct"),
        );
        let own = "5:cpuset:/\n3:cpu,cpuacct:/user.slice/mine\n1:name=systemd:/x:y\n0::/other\n";
        let found = CpuHierarchy::find(&mountinfo, own).unwrap();
        assert_eq!(found.version(), CgroupVersion::V1);
        assert_eq!(found.mount(), cpu);
        assert_eq!(found.own_group(), cpu.join("user.slice/mine"));
        assert_eq!(found.base(), found.own_group());
    }

    #[test]
    fn v2_needs_the_cpu_controller() {
        let sys = tempfile::tempdir().unwrap();
        fs::create_dir_all(sys.path().join("user.slice")).unwrap();
        let mountinfo = line(sys.path(), "/", "cgroup2", "nsdelegate,memory_recursiveprot");
        let own = "0::/user.slice\n";
        fs::write(sys.path().join("cgroup.controllers"), "cpuset memory pids\n").unwrap();
        let error = CpuHierarchy::find(&mountinfo, own).unwrap_err();
        assert!(error.is_missing_right());
        assert!(error.to_string().contains("[cpuset memory pids], not cpu"), "{error}");

        fs::write(sys.path().join("cgroup.controllers"), "cpuset cpu memory pids\n").unwrap();
        let found = CpuHierarchy::find(&mountinfo, own).unwrap();
        assert_eq!(found.version(), CgroupVersion::V2);
        assert_eq!(found.own_group(), sys.path().join("user.slice"));
        assert_eq!(found.base(), sys.path());
    }

    #[test]
    fn a_container_sees_its_part_of_the_tree() {
        let sys = tempfile::tempdir().unwrap();
        fs::create_dir_all(sys.path().join("inner")).unwrap();
        let mountinfo = line(sys.path(), "/docker/abc", "cgroup", "cpu");
        for (path, expected) in
            [("/docker/abc/inner", "inner"), ("/docker/abc", ""), ("/elsewhere", ""), ("/../../docker", "")]
        {
            let found = CpuHierarchy::find(&mountinfo, &format!("1:cpu:{path}\n")).unwrap();
            assert_eq!(found.own_group(), sys.path().join(expected), "{path}");
        }
    }

    #[test]
    fn no_cgroups_at_all() {
        let error = CpuHierarchy::find("22 27 0:21 / /proc rw - proc proc rw\ngarbage\n\n", "").unwrap_err();
        assert!(error.is_missing_right());
        assert!(error.to_string().contains("no cgroup file system is mounted"));
    }
}
