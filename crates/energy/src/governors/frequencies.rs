//! The frequencies of a machine whose caps are left alone: read, never written.

use std::path::{Path, PathBuf};

use ecotone_types::units::Hertz;

use crate::sysfs;

/// The most groups of cores that are looked at.
const MAX_DOMAINS: usize = 1_024;

/// The groups of cores that share a frequency.
#[derive(Debug, Default)]
pub struct Frequencies {
    domains: Vec<(Vec<u32>, PathBuf)>,
}

impl Frequencies {
    /// Those of the machine whose file system begins at `root`; none where the kernel shows none.
    pub fn of(root: &Path) -> Self {
        let folders = sysfs::entries(&root.join("sys/devices/system/cpu/cpufreq")).unwrap_or_default();
        let mut domains: Vec<(Vec<u32>, PathBuf)> = folders
            .into_iter()
            .filter_map(|folder| {
                let cores = sysfs::text(&folder.join("related_cpus")).ok()?;
                let cores: Vec<u32> = cores.split_whitespace().filter_map(|core| core.parse().ok()).collect();
                (!cores.is_empty()).then_some((cores, folder))
            })
            .take(MAX_DOMAINS)
            .collect();
        domains.sort();
        Self { domains }
    }

    /// The highest frequency that a core of the machine is made for.
    pub fn highest(&self) -> Option<Hertz> {
        let of = |folder: &PathBuf| sysfs::number::<f64>(&folder.join("cpuinfo_max_freq")).ok();
        let highest = self.domains.iter().filter_map(|domain| of(&domain.1)).fold(0.0, f64::max);
        (highest > 0.0).then_some(Hertz(highest * 1e3))
    }

    /// The cores of each group, and what they run at now; `None` where that cannot be read.
    pub fn now(&self) -> Vec<(&[u32], Option<Hertz>)> {
        let of = |folder: &PathBuf| sysfs::number::<f64>(&folder.join("scaling_cur_freq")).ok();
        let hertz = |khz: f64| (khz > 0.0).then_some(Hertz(khz * 1e3));
        self.domains.iter().map(|(cores, folder)| (cores.as_slice(), of(folder).and_then(hertz))).collect()
    }
}
