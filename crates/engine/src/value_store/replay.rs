//! Replay of the WAL after a crash: stops at the first write that is missing, and at the first
//! record whose value never reached the device.
//!
//! Each write has a number, one more than the write before it, so a gap tells that some are
//! missing, and one that goes back that older bytes have taken their place. RocksDB does not look:
//! zeros where a record should begin it takes for the end of their block, or of the file, and goes
//! on with the next one. That a WAL cannot be read to its end is known before
//! ([`crate::log_check`]), and said here, where it is known which WALs are needed.
//!
//! The kernel writes back as it likes, so after a loss of power the WAL can name values that are
//! gone. All from the first such record on is dropped, so that what remains is what the store was
//! at one moment. A kill of the process alone never leads here: values are given to the kernel
//! before the WAL names them.
//!
//! A value of which one bit alone is wrong was not cut by a loss of power, nor was one that does not
//! decompress though its record is whole (`damage` of the value log): opening is refused there, as
//! it is where a log is damaged so ([`crate::log_check`]). It is refused as well where a value
//! cannot be had for another reason, want of memory among them.
//!
//! Pointers before the watermark are not looked at: their values were synced. Where the segment of
//! one of them is missing altogether, files were lost, and opening is refused instead of dropping
//! what was acknowledged.
//!
//! Threads: called by the one thread that opens the database.

use std::ffi::CStr;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ecotone_valuelog::log::ValueLog;
use ecotone_valuelog::pointer::RecordPointer;
use parking_lot::Mutex;
use rust_rocksdb::WriteBatch;
use rust_rocksdb::wal_filter::{ColumnFamilyLogNumbers, WalFilter, WalRecordAction};

use crate::Error;
use crate::batch_records::{Record, records, sequences};
use crate::error::Printable;
use crate::family::DATA_FAMILY;
use crate::header::{Header, Kind};
use crate::log_check::{Logs, TornEnd};

/// What replay met.
#[derive(Debug, Default)]
pub(crate) struct ReplayOutcome {
    /// Why opening must fail, where it must.
    pub(crate) corrupt: OnceLock<Error>,
    /// Where the logs could not be read any further, as after a crash: the place, and what was left
    /// out.
    pub(crate) left_out: Mutex<Vec<(String, String)>>,
    /// Whether readable records were passed over. Another replay of the same WALs must not meet
    /// them: what keeps it from them (the watermark, the numbers of writes) goes on once the store
    /// is written to.
    pub(crate) is_stopped: AtomicBool,
}

/// A record of a WAL, as errors and the log name it: RocksDB does not say at which offset it lies.
struct Found<'r> {
    wal: &'r [u8],
    /// The number of its first write.
    first_write: u64,
}

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, in the record of write {}", String::from_utf8_lossy(self.wal), self.first_write)
    }
}

/// The filter that RocksDB asks for each record.
pub(crate) struct Replay {
    directory: PathBuf,
    /// Where the store has one.
    log: Option<Arc<ValueLog>>,
    family: AtomicU32,
    /// Of older logs everything is in tables.
    first_log: AtomicU64,
    /// The number of the write that comes next; 0 before the first.
    next_write: AtomicU64,
    /// What was found in the logs before.
    logs: Arc<Logs>,
    outcome: Arc<ReplayOutcome>,
}

const NO_FAMILY: u32 = u32::MAX;

impl Replay {
    /// Of the store in `directory`, whose logs were looked at.
    pub(crate) fn new(
        directory: &Path,
        log: Option<Arc<ValueLog>>,
        logs: Arc<Logs>,
        outcome: Arc<ReplayOutcome>,
    ) -> Self {
        Self {
            directory: directory.to_path_buf(),
            log,
            family: AtomicU32::new(NO_FAMILY),
            first_log: AtomicU64::new(0),
            next_write: AtomicU64::new(0),
            logs,
            outcome,
        }
    }

    /// The write that should come before those of these numbers, if another one comes.
    fn missing_before(&self, writes: &Range<u64>) -> Option<u64> {
        let next = self.next_write.swap(writes.end, Ordering::Relaxed);
        (next != 0 && writes.start != next).then_some(next)
    }

    /// Says of each WAL that is needed and cannot be read to its end what is left out.
    fn tell_of_torn_ends(&self, first_log: u64) {
        for TornEnd { path, offset, detail, loss, .. } in self.logs.torn.iter().filter(|torn| torn.wal >= first_log) {
            tracing::warn!(
                directory = ?self.directory,
                wal = ?path,
                offset,
                dropped_bytes = loss.bytes,
                dropped_records = loss.records,
                dropped_writes = loss.writes.as_ref().map_or(0, |writes| writes.end - writes.start),
                from_write = loss.writes.as_ref().map_or(0, |writes| writes.start),
                reason = detail,
                "the log cannot be read from here on, and nobody knows that this was durable: as what a kill or a loss of power leaves it is dropped"
            );
            self.leave_out(format!("{} at offset {offset}", path.display()), format!("{detail}; left out: {loss}"));
        }
    }

    /// Whether it was said already that these writes are left out.
    fn is_behind_torn_end(&self, wal: u64, writes: &Range<u64>) -> bool {
        let first_log = self.first_log.load(Ordering::Relaxed);
        self.logs.torn.iter().filter(|torn| torn.wal >= first_log).any(|torn| {
            let from = torn.loss.writes.as_ref().map_or(0, |lost| lost.start);
            torn.wal < wal || (torn.wal == wal && writes.start >= from)
        })
    }

    fn leave_out(&self, place: String, detail: String) {
        self.outcome.left_out.lock().push((place, detail));
    }

    fn check(&self, log: &ValueLog, found: &Found<'_>, batch: &WriteBatch) -> WalRecordAction {
        let data_family = self.family.load(Ordering::Relaxed);
        let mut bytes = Vec::new();
        for record in records(batch.data()) {
            let Ok(record) = record else {
                return self.refuse(Some(found.to_string()), "it holds what this version cannot read".into());
            };
            let Record::Put { family, key, value } = record else { continue };
            if family != data_family {
                continue;
            }
            // A value that cannot be decoded is for the reader to report.
            let Ok(Header { kind: Kind::Separated(pointer), .. }) = Header::decode(value) else { continue };
            if log.was_durable(key, pointer) {
                if log.segment(pointer.segment).is_none() {
                    let detail = format!("the segment is missing, and named by {found}: restore the file");
                    return self.refuse(Some(log.place(pointer)), detail);
                }
                continue;
            }
            match log.read(key, pointer, &mut bytes) {
                Ok(_) => match Self::has_lost_dictionary(log, pointer) {
                    Ok(false) => (),
                    Ok(true) => {
                        let reason = format!("the value of key {} has lost its dictionary with power", Printable(key));
                        return self.stop(found, &reason);
                    }
                    Err(error) => return self.refuse_unread(log, found, key, pointer, &error.into()),
                },
                Err(error @ ecotone_valuelog::Error::Corrupt { .. }) => match log.is_damaged(key, pointer) {
                    Ok(false) => {
                        return self.stop(found, &format!("the value of key {} is not there: {error}", Printable(key)));
                    }
                    Ok(true) => return self.refuse_damaged(found, error.into()),
                    Err(error) => return self.refuse_unread(log, found, key, pointer, &error.into()),
                },
                Err(error) => return self.refuse_unread(log, found, key, pointer, &error.into()),
            }
        }
        WalRecordAction::Continue
    }

    /// Whether a loss of power took the dictionary that the value needs from its segment. It can be
    /// read as long as another segment has the same and is sound; what is in a table must not depend
    /// on that.
    fn has_lost_dictionary(log: &ValueLog, pointer: RecordPointer) -> ecotone_valuelog::Result<bool> {
        let segment = log.segment(pointer.segment).filter(|_| pointer.saved_bytes() > 0);
        segment.map_or(Ok(false), |segment| log.has_lost_dictionary(&segment))
    }

    fn stop(&self, found: &Found<'_>, reason: &str) -> WalRecordAction {
        self.outcome.is_stopped.store(true, Ordering::Relaxed);
        let Found { wal, first_write } = found;
        let (directory, wal) = (&self.directory, String::from_utf8_lossy(wal));
        let dropped_writes = self.logs.next_write.saturating_sub(*first_write);
        self.leave_out(found.to_string(), format!("{reason}; left out: {dropped_writes} writes"));
        tracing::warn!(
            ?directory,
            wal = &*wal,
            from_write = first_write,
            dropped_writes,
            reason,
            "after a loss of power the store goes on from before the first write that was lost: of this WAL, and of those behind it, nothing \
             is kept from that write on"
        );
        WalRecordAction::StopReplay
    }

    fn refuse_damaged(&self, found: &Found<'_>, error: Error) -> WalRecordAction {
        let (location, detail) = match error {
            Error::Corrupt { location, detail } => (location, detail),
            other => (None, other.to_string()),
        };
        let why = "it was damaged, and not by a loss of power";
        self.refuse(location, format!("{detail}; {why}; {found} names it; ecotone repair saves the rest"))
    }

    /// The value may well be there: to stop would be to drop what was acknowledged.
    fn refuse_unread(
        &self,
        log: &ValueLog,
        found: &Found<'_>,
        key: &[u8],
        pointer: RecordPointer,
        error: &Error,
    ) -> WalRecordAction {
        let detail = format!("the value of key {} cannot be read, named by {found}: {error}", Printable(key));
        self.refuse(Some(log.place(pointer)), detail)
    }

    /// Opening must fail. RocksDB would take this for the end of the WAL and go on; see
    /// [`super::barrier`].
    fn refuse(&self, location: Option<String>, detail: String) -> WalRecordAction {
        let _ = self.outcome.corrupt.set(Error::Corrupt { location, detail });
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
        log_file_name: &[u8],
        batch: &WriteBatch,
        _replacement: &mut WriteBatch,
    ) -> WalRecordAction {
        if log_number < self.first_log.load(Ordering::Relaxed) {
            return WalRecordAction::Continue;
        }
        // RocksDB has refused one that has no numbers.
        let Ok(writes) = sequences(batch.data()) else { return WalRecordAction::Continue };
        let found = Found { wal: log_file_name, first_write: writes.start };
        if let Some(missing) = self.missing_before(&writes) {
            // RocksDB goes on behind what it passes over, and with the next WAL.
            return match self.is_behind_torn_end(log_number, &writes) {
                true => {
                    self.outcome.is_stopped.store(true, Ordering::Relaxed);
                    WalRecordAction::StopReplay
                }
                false => self.stop(&found, &format!("write {missing} should come here")),
            };
        }
        self.log.as_ref().map_or(WalRecordAction::Continue, |log| self.check(log, &found, batch))
    }

    fn column_family_log_number_map(&self, families: &ColumnFamilyLogNumbers<'_>) {
        let Some(family) = families.id(DATA_FAMILY.as_bytes()) else { return };
        self.family.store(family, Ordering::Relaxed);
        let first_log = families.log_number(family).unwrap_or(0);
        self.first_log.store(first_log, Ordering::Relaxed);
        self.tell_of_torn_ends(first_log);
    }
}
