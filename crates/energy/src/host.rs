//! What this machine grants this process: how many cores' worth of CPU time.

use std::fs;
use std::path::Path;

use crate::cores::{CgroupVersion, CpuHierarchy};
use crate::{EnergyError, sysfs};

/// Host cores that this process may use, counting its CPU affinity and the CPU quotas of its
/// cgroups; fractions are possible (a container with a quota of 1.5). At least a hundredth.
///
/// # Errors
/// [`EnergyError::Form`] if the kernel's list of allowed CPUs cannot be read.
pub fn host_cores() -> Result<f64, EnergyError> {
    let path = Path::new("/proc/self/status");
    let form = |what: String| EnergyError::Form { path: path.to_path_buf(), what };
    let status = fs::read_to_string(path).map_err(|e| form(e.to_string()))?;
    let allowed = allowed_cpus(&status).ok_or_else(|| form("no usable Cpus_allowed_list".to_owned()))?;
    let quota = CpuHierarchy::detect().ok().and_then(|h| min_quota(h.version(), h.mount(), h.own_group()));
    Ok(quota.map_or(allowed, |quota| quota.min(allowed)).max(0.01))
}

/// The number of CPUs in the line `Cpus_allowed_list: 0-3,7` of /proc/self/status.
fn allowed_cpus(status: &str) -> Option<f64> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let count = sysfs::processors(list)?.len();
    (count > 0).then_some(count as f64)
}

/// The tightest CPU quota, in cores, from `group` up to `mount`; `None` if there is none.
fn min_quota(version: CgroupVersion, mount: &Path, group: &Path) -> Option<f64> {
    group.ancestors().take_while(|dir| dir.starts_with(mount)).filter_map(|dir| quota_of(version, dir)).reduce(f64::min)
}

fn quota_of(version: CgroupVersion, dir: &Path) -> Option<f64> {
    let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
    let (quota, period) = match version {
        CgroupVersion::V1 => (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?),
        CgroupVersion::V2 => {
            let text = read("cpu.max")?;
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.to_owned(), period.to_owned())
        }
    };
    // "-1" (v1) and "max" (v2) mean no quota: neither is a positive number.
    let (quota, period): (f64, f64) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        let of = |list: &str| allowed_cpus(&format!("Name:\tx\nCpus_allowed_list:\t{list}\nMems_allowed_list:\t0\n"));
        assert_eq!(of("0"), Some(1.0));
        assert_eq!(of("0-3,7"), Some(5.0));
        assert_eq!(of("2-2,4-5"), Some(3.0));
        for bad in ["", "x", "3-1", "1-"] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
        assert_eq!(allowed_cpus("Name: x\n"), None);
    }

    #[test]
    fn the_tightest_quota_on_the_way_up_counts() {
        let mount = tempfile::tempdir().unwrap();
        let group = mount.path().join("outer/inner");
        fs::create_dir_all(&group).unwrap();
        let v2 = |dir: &Path, text: &str| fs::write(dir.join("cpu.max"), text).unwrap();
        assert_eq!(min_quota(CgroupVersion::V2, mount.path(), &group), None);
        v2(&group, "max 100000\n");
        assert_eq!(min_quota(CgroupVersion::V2, mount.path(), &group), None);
        v2(&mount.path().join("outer"), "150000 100000\n");
        v2(&group, "400000 100000\n");
        assert_eq!(min_quota(CgroupVersion::V2, mount.path(), &group), Some(1.5));

        fs::write(group.join("cpu.cfs_quota_us"), "-1\n").unwrap();
        fs::write(group.join("cpu.cfs_period_us"), "100000\n").unwrap();
        assert_eq!(min_quota(CgroupVersion::V1, mount.path(), &group), None);
        fs::write(group.join("cpu.cfs_quota_us"), "25000\n").unwrap();
        assert_eq!(min_quota(CgroupVersion::V1, mount.path(), &group), Some(0.25));
    }

    #[test]
    fn this_machine_has_no_more_cores_than_it_has_processors() {
        let cores = host_cores().unwrap();
        let processors = fs::read_to_string("/proc/cpuinfo").unwrap();
        let processors = processors.lines().filter(|l| l.starts_with("processor")).count();
        assert!(cores >= 0.01 && (processors == 0 || cores <= processors as f64), "{cores} of {processors}");
    }
}
