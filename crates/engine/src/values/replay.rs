//! Replay of the WAL after a crash: stops at the first record whose value never reached the device.
//!
//! The kernel writes back as it likes, so after a loss of power the WAL can name values that are gone. All from the first such
//! record on is dropped, so that what remains is what the store was at one moment. A kill of the process alone never
//! leads here: values are given to the kernel before the WAL names them.
//!
//! Pointers before the watermark are not looked at: their values were synced. Where the segment of one of them is missing
//! altogether, files were lost, and opening is refused instead of dropping what was acknowledged.
//!
//! Threads: called by the one thread that opens the database.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rust_rocksdb::WriteBatch;
use rust_rocksdb::wal_filter::{ColumnFamilyLogNumbers, WalFilter, WalRecordAction};

use super::ValueLog;
use crate::Error;
use crate::batch_records::{Record, records};
use crate::error::Printable;
use crate::family::DATA_FAMILY;
use crate::header::{Header, Kind};

/// What replay met.
#[derive(Debug, Default)]
pub(crate) struct ReplayOutcome {
    /// Why replay stopped early, where it did.
    pub(crate) stopped: OnceLock<String>,
    /// Why opening must fail, where it must.
    pub(crate) corrupt: OnceLock<String>,
}

/// The filter that RocksDB asks for each record.
pub(crate) struct Replay {
    log: Arc<ValueLog>,
    family: AtomicU32,
    /// Of older logs everything is in tables.
    first_log: AtomicU64,
    outcome: Arc<ReplayOutcome>,
}

const NO_FAMILY: u32 = u32::MAX;

impl Replay {
    pub(crate) fn new(log: Arc<ValueLog>) -> (Self, Arc<ReplayOutcome>) {
        let outcome = Arc::<ReplayOutcome>::default();
        let (family, first_log) = (AtomicU32::new(NO_FAMILY), AtomicU64::new(0));
        (Self { log, family, first_log, outcome: outcome.clone() }, outcome)
    }

    fn check(&self, batch: &WriteBatch) -> WalRecordAction {
        let data_family = self.family.load(Ordering::Relaxed);
        let mut record = Vec::new();
        for found in records(batch.data()) {
            let Ok(found) = found else {
                return self.refuse("the WAL has a record that this version cannot read".into());
            };
            let Record::Put { family, key, value } = found else { continue };
            if family != data_family {
                continue;
            }
            // A value that cannot be decoded is for the reader to report.
            let Ok(Header { kind: Kind::Separated(pointer), .. }) = Header::decode(value) else { continue };
            if self.log.was_durable(key, pointer) {
                if self.log.segment(pointer.segment).is_none() {
                    return self.refuse(format!(
                        "the WAL names a value in segment {}, which is missing: restore the file",
                        pointer.segment
                    ));
                }
                continue;
            }
            let read = self.log.read(key, pointer, &mut record);
            if let Err(error) = &read
                && !matches!(error, Error::Corrupt { .. })
            {
                // The value may well be there: to stop would be to drop what was acknowledged.
                return self.refuse(format!("the value of key {} cannot be read: {error}", Printable(key)));
            }
            if let Err(error) = read {
                let _ = self.outcome.stopped.set(format!("the value of key {} is not there: {error}", Printable(key)));
                return WalRecordAction::StopReplay;
            }
        }
        WalRecordAction::Continue
    }

    /// Opening must fail. RocksDB would take this for the end of the WAL and go on; see [`super::barrier`].
    fn refuse(&self, reason: String) -> WalRecordAction {
        let _ = self.outcome.corrupt.set(reason);
        WalRecordAction::Corrupted
    }
}

impl WalFilter for Replay {
    fn name(&self) -> &CStr {
        c"ecotone-values"
    }

    fn log_record_found(
        &self,
        log_number: u64,
        _log_file_name: &[u8],
        batch: &WriteBatch,
        _replacement: &mut WriteBatch,
    ) -> WalRecordAction {
        if log_number < self.first_log.load(Ordering::Relaxed) {
            return WalRecordAction::Continue;
        }
        self.check(batch)
    }

    fn column_family_log_number_map(&self, families: &ColumnFamilyLogNumbers<'_>) {
        let Some(family) = families.id(DATA_FAMILY.as_bytes()) else { return };
        self.family.store(family, Ordering::Relaxed);
        self.first_log.store(families.log_number(family).unwrap_or(0), Ordering::Relaxed);
    }
}
