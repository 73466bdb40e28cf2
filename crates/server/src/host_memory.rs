//! How much memory there is for this process.
//!
//! The machine's, or the least limit of the control groups it is in, both versions. What cannot be read counts as no limit.

use std::fs;
use std::path::Path;

/// Bytes of memory that this process may use at most; `None` where the system does not say.
pub(crate) fn host_memory_bytes() -> Option<u64> {
    memory_below(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
}

fn memory_below(proc: &Path, cgroups: &Path) -> Option<u64> {
    let of_machine = fs::read_to_string(proc.join("meminfo")).ok().and_then(|text| total(&text));
    let groups = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    let limits = groups.lines().flat_map(|line| limits_of(line, cgroups));
    limits.chain(of_machine).min()
}

/// The line `MemTotal:  24682416 kB`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The limits of the group that a line of /proc/self/cgroup names (`9:memory:/a/b` or `0::/a/b`), and of those above it.
fn limits_of(line: &str, cgroups: &Path) -> Vec<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { return Vec::new() };
    let (mount, file) = match controllers {
        "" => (cgroups.to_path_buf(), "memory.max"),
        _ if controllers.split(',').any(|one| one == "memory") => (cgroups.join("memory"), "memory.limit_in_bytes"),
        _ => return Vec::new(),
    };
    let own = mount.join(group.trim_start_matches('/'));
    let above = own.ancestors().take_while(|folder| folder.starts_with(&mount));
    // `max`, no limit, is no number; version 1 writes a number beyond all memory, which is never the least.
    above.filter_map(|folder| fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()).collect()
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
        assert_eq!(memory_below(&proc, &cgroups), None);
        write(&proc.join("meminfo"), "MemTotal:        1024 kB\nMemFree:  7 kB\n");
        assert_eq!(memory_below(&proc, &cgroups), Some(1024 * 1024));
        write(&proc.join("self/cgroup"), "9:cpu:/x\n8:memory:/a/b\n0::/c\n");
        assert_eq!(memory_below(&proc, &cgroups), Some(1024 * 1024));
        write(&cgroups.join("memory/memory.limit_in_bytes"), "9223372036854771712\n");
        write(&cgroups.join("memory/a/memory.limit_in_bytes"), "500000\n");
        write(&cgroups.join("memory/a/b/memory.limit_in_bytes"), "600000\n");
        assert_eq!(memory_below(&proc, &cgroups), Some(500_000));
        write(&cgroups.join("c/memory.max"), "max\n");
        assert_eq!(memory_below(&proc, &cgroups), Some(500_000));
        write(&cgroups.join("c/memory.max"), "400000\n");
        assert_eq!(memory_below(&proc, &cgroups), Some(400_000));
    }

    #[test]
    fn this_machine_has_some() {
        assert!(host_memory_bytes().unwrap() > 1 << 20);
    }
}
