//! The file that remembers the limits of frequencies from before the first cap, so that they come
//! back after a crash.
//!
//! It is written, synced and in place before the first limit is touched, and removed after the last
//! is restored. It names the boot: a machine that was started anew has its limits back already.
//! A record is whole or not there: it is renamed into place. One of another form is an error, since
//! guessing would turn a cap into the operator's own limit.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::disk::Disk;
use crate::EnergyError;

const HEAD: &str = "ecotone-cpufreq 1";
const END: &str = "end";

/// Limits by the name of the policy's folder, in kHz.
pub(super) type Limits = Vec<(String, u64)>;

/// The record of one machine.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
}

impl Record {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf() }
    }

    /// The limits that must come back; none if there is no record, or one of another boot.
    pub(super) fn read(&self, boot: &str) -> Result<Limits, EnergyError> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Limits::new()),
            Err(e) => return Err(EnergyError::system("read", &self.path, e)),
        };
        let (of, limits) = parse(&text).ok_or_else(|| EnergyError::Form {
            path: self.path.clone(),
            what: "not a record of frequency limits; look at scaling_max_freq of every core, then remove it".to_owned(),
        })?;
        Ok(if of == boot { limits } else { Limits::new() })
    }

    pub(super) fn write(&self, disk: &Disk, boot: &str, limits: &Limits) -> Result<(), EnergyError> {
        let lines: String = limits.iter().map(|(policy, khz)| format!("{policy} {khz}\n")).collect();
        let text = format!("{HEAD}\nboot {boot}\n{lines}{END}\n");
        let new = self.path.with_extension("new");
        let failed = |e| EnergyError::system("write", &self.path, e);
        disk.step(&new)?;
        let written = File::create(&new).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        written.map_err(failed)?;
        disk.step(&self.path)?;
        fs::rename(&new, &self.path).map_err(failed)?;
        self.sync_folder()
    }

    pub(super) fn remove(&self, disk: &Disk) -> Result<(), EnergyError> {
        disk.step(&self.path)?;
        match fs::remove_file(&self.path) {
            Ok(()) => self.sync_folder(),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            Err(e) => Err(EnergyError::system("remove", &self.path, e)),
        }
    }

    fn sync_folder(&self) -> Result<(), EnergyError> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| EnergyError::system("sync", folder, e))
    }
}

fn parse(text: &str) -> Option<(&str, Limits)> {
    let mut lines = text.lines();
    (lines.next()? == HEAD).then_some(())?;
    let boot = lines.next()?.strip_prefix("boot ")?;
    let mut limits = Limits::new();
    for line in lines.by_ref() {
        if line == END {
            return lines.next().is_none().then_some((boot, limits));
        }
        let (policy, khz) = line.split_once(' ')?;
        // The name becomes part of a path that is written.
        let number = policy.strip_prefix("policy")?;
        (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(())?;
        limits.push((policy.to_owned(), khz.parse().ok()?));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let record = Record::new(&dir.path().join("frequencies"));
        assert_eq!(record.read("a").unwrap(), Limits::new());
        let limits = vec![("policy0".to_owned(), 2_200_000), ("policy12".to_owned(), 1_000_000)];
        record.write(&Disk::default(), "a", &limits).unwrap();
        assert_eq!(record.read("a").unwrap(), limits);
        assert_eq!(record.read("b").unwrap(), Limits::new(), "another boot");
        record.remove(&Disk::default()).unwrap();
        record.remove(&Disk::default()).unwrap();
        assert_eq!(record.read("a").unwrap(), Limits::new());
    }

    #[test]
    fn whatever_is_not_a_whole_record_is_refused() {
        let whole = "ecotone-cpufreq 1\nboot a\npolicy0 1\nend\n";
        assert!(parse(whole).is_some());
        for length in 0..whole.len() - 1 {
            assert!(parse(&whole[..length]).is_none(), "{:?}", &whole[..length]);
        }
        for wrong in [
            "ecotone-cpufreq 2\nboot a\nend\n",
            "ecotone-cpufreq 1\nboot a\n../x 1\nend\n",
            "ecotone-cpufreq 1\nboot a\npolicy/../x 1\nend\n",
            "ecotone-cpufreq 1\nboot a\npolicy0 -1\nend\n",
        ] {
            assert!(parse(wrong).is_none(), "{wrong:?}");
        }
    }
}
