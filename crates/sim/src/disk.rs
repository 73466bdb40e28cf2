//! A disk that loses what was not synced: torn appends, sectors that never arrived, a crash between
//! any two writes.

use std::collections::BTreeMap;

use ecotone_control::log::{File, Storage, StorageError};

use crate::random::Random;

const SECTOR: usize = 512;

/// The disk of a server.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    files: BTreeMap<File, Vec<u8>>,
    /// How much of the log a loss of power leaves.
    synced: usize,
    /// Writes until the power is gone.
    writes_left: Option<u64>,
    /// A snapshot that has its name, and is not durable: only where that failure is planted.
    floating: Option<Option<Vec<u8>>>,
    /// Whether the log is replaced before the snapshot is durable.
    log_before_snapshot: bool,
}

impl Disk {
    /// A disk; `log_before_snapshot` is the planted failure.
    pub fn new(log_before_snapshot: bool) -> Self {
        Self { log_before_snapshot, ..Self::default() }
    }

    /// The power goes after `writes` further writes.
    pub fn fail_after(&mut self, writes: u64) {
        self.writes_left = Some(writes);
    }

    /// The power is gone: of what was not synced, some is there.
    pub fn lose_power(&mut self, random: &mut Random) {
        self.writes_left = None;
        if let Some(before) = self.floating.take() {
            match before {
                Some(before) => self.files.insert(File::Snapshot, before),
                None => self.files.remove(&File::Snapshot),
            };
        }
        let synced = self.synced;
        let Some(log) = self.files.get_mut(&File::Log) else { return };
        log.truncate(random.between(synced as u64, log.len() as u64) as usize);
        // Sectors are written in any order; the first may be one of which a part was synced.
        let sectors = log.len().div_ceil(SECTOR);
        for sector in synced / SECTOR..sectors {
            if random.per_mille(200) {
                let end = log.len().min((sector + 1) * SECTOR);
                log[(sector * SECTOR).max(synced)..end].fill(0);
            }
        }
        self.synced = log.len();
    }

    fn write(&mut self) -> Result<(), StorageError> {
        match &mut self.writes_left {
            Some(0) => Err(StorageError("the power is gone".into())),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Storage for Disk {
    fn read(&mut self, file: File) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(self.files.get(&file).cloned())
    }

    fn replace(&mut self, file: File, content: &[u8]) -> Result<(), StorageError> {
        self.write()?;
        let before = self.files.insert(file, content.to_vec());
        match file {
            File::Log => self.synced = content.len(),
            File::Snapshot if self.log_before_snapshot => self.floating = Some(before),
            File::Snapshot | File::Identity => {}
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        let is_cut = self.write();
        let log = self.files.entry(File::Log).or_default();
        log.extend_from_slice(if is_cut.is_ok() { bytes } else { &bytes[..bytes.len() / 2] });
        is_cut
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.write()?;
        self.floating = None;
        self.synced = self.files.get(&File::Log).map_or(0, Vec::len);
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> Result<(), StorageError> {
        self.write()?;
        if let Some(log) = self.files.get_mut(&File::Log) {
            log.truncate(length as usize);
            self.synced = log.len();
        }
        Ok(())
    }
}
