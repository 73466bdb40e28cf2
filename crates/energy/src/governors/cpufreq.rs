//! Caps through the kernel's cpufreq files (kernel: Documentation/admin-guide/pm/cpufreq): one folder
//! `policyN` for each group of cores that share a frequency, with `scaling_max_freq` as the cap.
//!
//! Invariants: a cap lies between `scaling_min_freq` and the limit that was there at the start, so
//! that what an operator forbade stays forbidden. Before the first cap the limits are in the record;
//! whatever step this process is killed at, [`restore`] or the next [`Cpufreq::open`] brings them
//! back. One process governs: it holds locks beside the record and of the cpufreq folder for as long
//! as it lives.
//!
//! Failure modes: cores that go offline make a cap [`Capped::Offline`], and their limit stays in the
//! record until they are back or the machine is started anew. Cores that were offline at the start
//! are found once they are there ([`FrequencyGovernor::find_more`]); their limit is in the record
//! before they can be capped. A limit that someone else changes
//! meanwhile is overwritten at the end.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ecotone_types::units::Hertz;
use parking_lot::{Mutex, RwLock};

use super::disk::Disk;
use super::record::{Limits, Record};
use super::{Capped, FrequencyDomain, FrequencyGovernor};
use crate::{EnergyError, sysfs};

/// The most domains that are looked at.
const MAX_DOMAINS: usize = 1_024;

/// cpufreq of one machine.
pub struct Cpufreq {
    disk: Disk,
    known: RwLock<Known>,
    root: PathBuf,
    record: Record,
    boot: String,
    state: Mutex<State>,
    /// Held while this lives; the kernel lets go of it when the process ends, however it ends.
    _locks: (File, Option<File>),
}

/// What was found so far; only grows.
#[derive(Clone, Debug, Default)]
struct Known {
    policies: Vec<Policy>,
    domains: Arc<[FrequencyDomain]>,
}

#[derive(Clone, Debug)]
struct Policy {
    folder: PathBuf,
    /// `scaling_max_freq` from before the first cap, in kHz.
    limit: u64,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the limits are in the record.
    recorded: bool,
}

fn folder(root: &Path) -> PathBuf {
    root.join("sys/devices/system/cpu/cpufreq")
}

/// Which start of the machine this is.
fn boot(root: &Path) -> String {
    sysfs::text(&root.join("proc/sys/kernel/random/boot_id")).unwrap_or_else(|_| "unknown".to_owned())
}

/// The locks of who governs: one beside the record, and one of the machine, lest a server with
/// another folder takes our caps for the limits that were there before.
fn lock(root: &Path, record: &Path) -> Result<(File, Option<File>), EnergyError> {
    let path = record.with_extension("lock");
    let open = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let of_record = take(open, path)?;
    // A folder, which nobody needs a right to write for.
    let path = folder(root);
    let of_machine = if path.exists() { Some(take(File::open(&path), path)?) } else { None };
    Ok((of_record, of_machine))
}

fn take(open: std::io::Result<File>, path: PathBuf) -> Result<File, EnergyError> {
    let file = open.map_err(|e| EnergyError::system("open", &path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(EnergyError::Governed { path }),
        Err(TryLockError::Error(e)) => Err(EnergyError::system("lock", &path, e)),
    }
}

/// Whether an error says that the cores of a policy are offline.
fn is_offline(error: &EnergyError) -> bool {
    let EnergyError::System { source, .. } = error else { return false };
    // A policy without a core online keeps its folder for a while and answers EBUSY, ENODEV or EIO.
    source.kind() == ErrorKind::NotFound
        || matches!(source.raw_os_error(), Some(libc::EBUSY | libc::ENODEV | libc::EIO))
}

/// Brings back the limits that a record holds, if no process that lives governs them: for the end
/// of a service (`ExecStopPost`), after whatever ended it. Gives the number of policies restored.
///
/// # Errors
/// [`EnergyError::Governed`] while a server runs; [`EnergyError`] of the first limit that could not
/// be written, while the others are.
pub fn restore(root: &Path, record: &Path) -> Result<usize, EnergyError> {
    if !record.exists() {
        return Ok(0);
    }
    let _locks = lock(root, record)?;
    let record = Record::new(record);
    let limits = record.read(&boot(root))?;
    let left = bring_back(&Disk::default(), root, &limits)?;
    if left.is_empty() {
        record.remove(&Disk::default())?;
    }
    Ok(limits.len() - left.len())
}

/// Writes limits back; gives those whose cores are offline. The first error comes after all were
/// tried.
fn bring_back(disk: &Disk, root: &Path, limits: &Limits) -> Result<Limits, EnergyError> {
    let (mut left, mut failed) = (Limits::new(), None);
    for (policy, khz) in limits {
        let path = folder(root).join(policy).join("scaling_max_freq");
        let restored = match sysfs::number::<u64>(&path) {
            Ok(now) if now == *khz => Ok(()),
            // A text that is no number must not stay either.
            Ok(_) | Err(EnergyError::Form { .. }) => disk.write(&path, &khz.to_string()),
            Err(error) => Err(error),
        };
        match restored {
            Ok(()) => {}
            Err(error) if is_offline(&error) => left.push((policy.clone(), *khz)),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(left), Err)
}

impl Cpufreq {
    /// Opens the domains below `root`, after bringing back what a process before this one left
    /// capped; `None` if the machine has no cpufreq.
    ///
    /// # Errors
    /// [`EnergyError::System`] if the limits may not be written, [`EnergyError::Governed`] if
    /// another process governs them, [`EnergyError::Form`] for a record that is not one.
    pub fn open(root: &Path, record: &Path) -> Result<Option<Self>, EnergyError> {
        Self::open_with(root, record, Disk::default())
    }

    fn open_with(root: &Path, record: &Path, disk: Disk) -> Result<Option<Self>, EnergyError> {
        let folders = folders(root)?;
        if folders.is_empty() {
            return Ok(None);
        }
        for path in &folders {
            sysfs::may_write(&path.join("scaling_max_freq"))?;
        }
        let (locks, boot) = (lock(root, record)?, boot(root));
        let record = Record::new(record);
        let before = record.read(&boot)?;
        // Those that cannot be brought back now keep the limit that the record has.
        let left = bring_back(&disk, root, &before)?;
        let known = Known::default().with(folders, &left);
        if known.policies.is_empty() {
            return Ok(None);
        }
        let governor = Self {
            disk,
            known: RwLock::new(known),
            root: root.to_path_buf(),
            record,
            boot,
            state: Mutex::new(State { recorded: !left.is_empty() }),
            _locks: locks,
        };
        if left.is_empty() {
            governor.record.remove(&governor.disk)?;
        } else {
            governor.keep_record(&governor.limits(), &left)?;
        }
        Ok(Some(governor))
    }

    fn limits(&self) -> Limits {
        self.known.read().limits()
    }

    /// Writes the record: the limits of all domains, and of policies that are away.
    fn keep_record(&self, limits: &Limits, away: &Limits) -> Result<(), EnergyError> {
        let is_away = |(policy, _): &&(String, u64)| !limits.iter().any(|(known, _)| known == policy);
        let all: Limits = limits.iter().chain(away.iter().filter(is_away)).cloned().collect();
        self.record.write(&self.disk, &self.boot, &all)
    }

    fn set(&self, domain: usize, khz: u64) -> Result<Capped, EnergyError> {
        let Some(path) = self.known.read().file(domain, "scaling_max_freq") else { return Ok(Capped::Offline) };
        let outcome = self.disk.write(&path, &khz.to_string()).and_then(|()| sysfs::number::<f64>(&path));
        match outcome {
            Ok(khz) => Ok(Capped::At(Hertz(khz * 1e3))),
            Err(error) if is_offline(&error) => Ok(Capped::Offline),
            Err(error) => Err(error),
        }
    }
}

/// The folders of policies, in the order of their numbers.
fn folders(root: &Path) -> Result<Vec<PathBuf>, EnergyError> {
    let mut folders = sysfs::entries(&folder(root))?;
    folders.retain(|path| path.join("scaling_max_freq").exists());
    folders.truncate(MAX_DOMAINS);
    // By number: policy10 comes after policy9.
    folders.sort_by_key(|path| sysfs::file_name(path).trim_start_matches("policy").parse::<u32>().ok());
    Ok(folders)
}

impl Known {
    /// These, and those that can be read; a limit that a record knows is not read.
    fn with(mut self, folders: Vec<PathBuf>, recorded: &Limits) -> Self {
        let mut domains = self.domains.to_vec();
        for folder in folders {
            // One without a core online says no limit; it is looked at again.
            let Ok(now) = sysfs::number(&folder.join("scaling_max_freq")) else { continue };
            let known = recorded.iter().find(|(policy, _)| policy == sysfs::file_name(&folder));
            let limit = known.map_or(now, |(_, limit)| *limit);
            let Some(domain) = domain(&folder, limit) else { continue };
            self.policies.push(Policy { folder, limit });
            domains.push(domain);
        }
        self.domains = domains.into();
        self
    }

    fn limits(&self) -> Limits {
        let name = |policy: &Policy| sysfs::file_name(&policy.folder).to_owned();
        self.policies.iter().map(|policy| (name(policy), policy.limit)).collect()
    }

    fn file(&self, domain: usize, name: &str) -> Option<PathBuf> {
        Some(self.policies.get(domain)?.folder.join(name))
    }
}

/// What a policy's folder says of its cores.
fn domain(folder: &Path, limit: u64) -> Option<FrequencyDomain> {
    let text =
        sysfs::text(&folder.join("related_cpus")).or_else(|_| sysfs::text(&folder.join("affected_cpus"))).ok()?;
    let cores: Vec<u32> = text.split_whitespace().filter_map(|core| core.parse().ok()).collect();
    let read = |name: &str| sysfs::number::<u64>(&folder.join(name));
    let lowest = read("scaling_min_freq").or_else(|_| read("cpuinfo_min_freq")).ok()?.min(limit);
    let hertz = |khz: u64| Hertz(khz as f64 * 1e3);
    let listed = sysfs::text(&folder.join("scaling_available_frequencies")).unwrap_or_default();
    let mut steps: Vec<u64> = listed.split_whitespace().filter_map(|khz| khz.parse().ok()).collect();
    steps.retain(|khz| (lowest..=limit).contains(khz));
    steps.sort_unstable_by(|a, b| b.cmp(a));
    steps.dedup();
    (!cores.is_empty()).then(|| FrequencyDomain {
        cores,
        lowest: hertz(lowest),
        highest: hertz(limit),
        steps: steps.into_iter().map(hertz).collect(),
    })
}

impl FrequencyGovernor for Cpufreq {
    fn name(&self) -> &'static str {
        "cpufreq"
    }

    fn domains(&self) -> Arc<[FrequencyDomain]> {
        self.known.read().domains.clone()
    }

    fn find_more(&self) -> Result<(), EnergyError> {
        // Held throughout: nothing is capped or restored meanwhile.
        let state = self.state.lock();
        let known = self.known.read().clone();
        let mut new = folders(&self.root)?;
        new.retain(|folder| !known.policies.iter().any(|policy| policy.folder == *folder));
        new.truncate(MAX_DOMAINS.saturating_sub(known.policies.len()));
        if new.is_empty() {
            return Ok(());
        }
        // Of one that was capped by a process before this one, and has been away since.
        let recorded = if state.recorded { self.record.read(&self.boot)? } else { Limits::new() };
        let count = known.policies.len();
        let more = known.with(new, &recorded);
        if more.policies.len() == count {
            return Ok(());
        }
        for policy in &more.policies[count..] {
            sysfs::may_write(&policy.folder.join("scaling_max_freq"))?;
        }
        if state.recorded {
            self.keep_record(&more.limits(), &recorded)?;
        }
        tracing::info!(domains = more.policies.len() - count, "cores came online whose frequencies are governed now");
        *self.known.write() = more;
        Ok(())
    }

    fn online_cores(&self) -> Option<Vec<u32>> {
        let list = sysfs::text(&self.root.join("sys/devices/system/cpu/online")).ok()?;
        sysfs::processors(&list)
    }

    fn is_online(&self, domain: usize) -> bool {
        let limit = self.known.read().file(domain, "scaling_max_freq");
        limit.is_some_and(|path| sysfs::number::<u64>(&path).is_ok())
    }

    fn cap(&self, domain: usize, highest: Hertz) -> Result<Capped, EnergyError> {
        let range = self.domains();
        let Some(range) = range.get(domain) else { return Ok(Capped::Offline) };
        // A NaN is the highest: `clamp` of it would stay one.
        let hz = if highest.0.is_nan() { range.highest.0 } else { highest.0.clamp(range.lowest.0, range.highest.0) };
        let mut state = self.state.lock();
        if !state.recorded {
            self.keep_record(&self.limits(), &Limits::new())?;
            state.recorded = true;
        }
        self.set(domain, (hz / 1e3).round() as u64)
    }

    fn reached(&self, domain: usize) -> Option<Hertz> {
        let [scaling, own] = ["scaling_cur_freq", "cpuinfo_cur_freq"].map(|name| self.known.read().file(domain, name));
        let khz = sysfs::number::<f64>(&scaling?).or_else(|error| own.map_or(Err(error), |own| sysfs::number(&own)));
        khz.ok().filter(|khz| *khz > 0.0).map(|khz| Hertz(khz * 1e3))
    }

    fn restore(&self) -> Result<(), EnergyError> {
        let mut state = self.state.lock();
        if !state.recorded {
            return Ok(());
        }
        let left = bring_back(&self.disk, &self.root, &self.record.read(&self.boot)?)?;
        if left.is_empty() {
            self.record.remove(&self.disk)?;
            state.recorded = false;
        }
        Ok(())
    }
}

impl Drop for Cpufreq {
    fn drop(&mut self) {
        if let Err(error) = self.restore() {
            tracing::warn!(%error, "the limits of frequencies could not be restored; the next start does it");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use proptest::prelude::*;

    fn tree(limits: &[u64]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("proc/sys/kernel/random")).unwrap();
        fs::write(dir.path().join("proc/sys/kernel/random/boot_id"), "b1\n").unwrap();
        for (number, limit) in limits.iter().enumerate() {
            let policy = folder(dir.path()).join(format!("policy{number}"));
            fs::create_dir_all(&policy).unwrap();
            for (name, text) in [
                ("related_cpus", number.to_string()),
                ("scaling_min_freq", "800000".to_owned()),
                ("scaling_max_freq", limit.to_string()),
            ] {
                fs::write(policy.join(name), text + "\n").unwrap();
            }
        }
        dir
    }

    fn limit(root: &Path, number: usize) -> u64 {
        sysfs::number(&folder(root).join(format!("policy{number}/scaling_max_freq"))).unwrap()
    }

    proptest! {
        // Each case waits for the disk many times.
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        /// Killed before any of its changes, and started anew or cleaned up after: the limits are
        /// those of the beginning, and no record is left.
        #[test]
        fn limits_come_back_after_a_kill_at_any_step(
            limits in proptest::collection::vec(900_000u64..4_000_000, 1..4),
            caps in proptest::collection::vec((0usize..4, 0.0..5e9f64), 0..8),
            kills in proptest::collection::vec(0u64..16, 1..4), by_the_next_start in any::<bool>()
        ) {
            let dir = tree(&limits);
            let record = dir.path().join("limits");
            for kill in kills {
                let disk = Disk { steps_left: Some(AtomicU64::new(kill)) };
                // Once its steps are used up it can change nothing, not even while it is dropped.
                if let Ok(Some(governor)) = Cpufreq::open_with(dir.path(), &record, disk) {
                    for (domain, hz) in &caps {
                        let _ = governor.cap(*domain, Hertz(*hz));
                        let now = (0..limits.len()).map(|n| limit(dir.path(), n));
                        prop_assert!(now.zip(&limits).all(|(now, before)| now <= *before));
                    }
                }
            }
            if by_the_next_start {
                drop(Cpufreq::open(dir.path(), &record).unwrap());
            } else {
                restore(dir.path(), &record).unwrap();
            }
            let now: Vec<u64> = (0..limits.len()).map(|n| limit(dir.path(), n)).collect();
            prop_assert_eq!(now, limits);
            prop_assert!(!record.exists());
        }
    }

    #[test]
    fn every_step_of_a_long_life_is_a_step_it_may_be_killed_at() {
        let limits = [2_200_000, 3_000_000];
        let mut steps = 0;
        loop {
            let dir = tree(&limits);
            let record = dir.path().join("limits");
            let disk = Disk { steps_left: Some(AtomicU64::new(steps)) };
            let lived = (|| {
                let governor = Cpufreq::open_with(dir.path(), &record, disk)?.unwrap();
                governor.cap(0, Hertz(1e9))?;
                governor.cap(1, Hertz(1.5e9))?;
                governor.cap(0, Hertz(2e9))?;
                governor.restore()
            })();
            let cut = (limit(dir.path(), 0), limit(dir.path(), 1)) != (limits[0], limits[1]);
            restore(dir.path(), &record).unwrap();
            assert_eq!([limit(dir.path(), 0), limit(dir.path(), 1)], limits, "killed before step {steps}");
            if lived.is_ok() {
                assert!(!cut);
                break;
            }
            steps += 1;
        }
        // The record (2 steps and 1 to remove an old one), three caps, two limits back, the record
        // removed.
        assert_eq!(steps, 9);
    }

    #[test]
    fn a_record_of_another_boot_is_void() {
        let dir = tree(&[2_200_000]);
        let record = dir.path().join("limits");
        fs::write(&record, "ecotone-cpufreq 1\nboot b0\npolicy0 1000000\nend\n").unwrap();
        assert_eq!(restore(dir.path(), &record).unwrap(), 0);
        assert_eq!(limit(dir.path(), 0), 2_200_000);
        fs::write(&record, "ecotone-cpufreq 1\nboot b1\npolicy0 1000000\nend\n").unwrap();
        assert_eq!(restore(dir.path(), &record).unwrap(), 1);
        assert_eq!(limit(dir.path(), 0), 1_000_000);
        fs::write(&record, "nonsense").unwrap();
        assert!(matches!(Cpufreq::open(dir.path(), &record), Err(EnergyError::Form { .. })));
    }
}
