//! How much memory there is for this process.
//!
//! The machine's, or the least limit of the control groups it is in, both versions. What cannot be
//! read counts as no limit.

use std::fs;
use std::path::Path;

/// Memory that this process may use at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostMemory {
    pub(crate) bytes: u64,
    /// The limit is that of the very control group that this process is in: what is below it is for
    /// this process, and for others only if they were put into the same group. Else all others on
    /// the machine, or in the group above, take of it.
    pub(crate) is_own: bool,
}

/// `None` where the system does not say.
pub(crate) fn host_memory() -> Option<HostMemory> {
    memory_below(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
}

fn memory_below(proc: &Path, cgroups: &Path) -> Option<HostMemory> {
    let of_machine = fs::read_to_string(proc.join("meminfo")).ok().and_then(|text| total(&text));
    let groups = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    let limits = groups.lines().flat_map(|line| limits_of(line, cgroups));
    let shared = of_machine.map(|bytes| HostMemory { bytes, is_own: false });
    // Of equal limits the own one.
    limits.chain(shared).min_by_key(|memory| (memory.bytes, !memory.is_own))
}

/// The line `MemTotal:  24682416 kB`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The limits of the group that a line of /proc/self/cgroup names (`9:memory:/a/b` or `0::/a/b`),
/// and of those above it.
fn limits_of(line: &str, cgroups: &Path) -> Vec<HostMemory> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { return Vec::new() };
    let (mount, file) = match controllers {
        "" => (cgroups.to_path_buf(), "memory.max"),
        _ if controllers.split(',').any(|one| one == "memory") => (cgroups.join("memory"), "memory.limit_in_bytes"),
        _ => return Vec::new(),
    };
    let own = mount.join(group.trim_start_matches('/'));
    let above = own.ancestors().take_while(|folder| folder.starts_with(&mount));
    // `max`, no limit, is no number; version 1 writes a number beyond all memory, which is never
    // the least.
    let limit = |folder: &Path| {
        let bytes = fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()?;
        // Without a namespace of its own a container sees its group as the root, but reads of
        // itself where that is outside.
        let is_own = folder == own || (folder == mount && !own.exists());
        Some(HostMemory { bytes, is_own })
    };
    above.filter_map(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_least_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        let (proc, cgroups) = (root.path().join("proc"), root.path().join("cgroup"));
        let memory = || memory_below(&proc, &cgroups).map(|memory| (memory.bytes, memory.is_own));
        assert_eq!(memory(), None);
        write(&proc.join("meminfo"), "MemTotal:        1024 kB\nMemFree:  7 kB\n");
        assert_eq!(memory(), Some((1024 * 1024, false)));
        write(&proc.join("self/cgroup"), "9:cpu:/x\n8:memory:/a/b\n0::/c\n");
        assert_eq!(memory(), Some((1024 * 1024, false)));
        write(&cgroups.join("memory/memory.limit_in_bytes"), "9223372036854771712\n");
        write(&cgroups.join("memory/a/memory.limit_in_bytes"), "500000\n");
        write(&cgroups.join("memory/a/b/memory.limit_in_bytes"), "600000\n");
        assert_eq!(memory(), Some((500_000, false)), "others in the group above take of it");
        write(&cgroups.join("memory/a/b/memory.limit_in_bytes"), "500000\n");
        assert_eq!(memory(), Some((500_000, true)));
        write(&cgroups.join("c/memory.max"), "max\n");
        assert_eq!(memory(), Some((500_000, true)));
        write(&cgroups.join("c/memory.max"), "400000\n");
        assert_eq!(memory(), Some((400_000, true)));
    }

    #[test]
    fn this_machine_has_some() {
        assert!(host_memory().unwrap().bytes > 1 << 20);
    }
}
