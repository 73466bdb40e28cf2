//! What was found in a table against what was promised. Pure.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use super::{ExpectedTable, TableSummary, VerifyError};

/// RocksDB ends an internal key with sequence number and kind.
const FOOTER_BYTES: usize = 8;
/// RocksDB's `kMaxSequenceNumber`.
const GREATEST_SEQUENCE: u64 = (1 << 56) - 1;

/// A kind of fault; the file is added by [`Comparison::refuse`].
type Kind = fn(PathBuf, String) -> VerifyError;

fn foreign(file: PathBuf, what: String) -> VerifyError {
    VerifyError::Foreign { file, what }
}

fn miscounted(file: PathBuf, what: String) -> VerifyError {
    VerifyError::CountMismatch { file, what }
}

fn out_of_range(file: PathBuf, what: String) -> VerifyError {
    VerifyError::OutOfRange { file, what }
}

pub fn check(found: &TableSummary, file: &Path, expected: &ExpectedTable) -> Result<(), VerifyError> {
    let comparison = Comparison { found, file, expected };
    comparison.identity()?;
    comparison.counts()?;
    comparison.sequences()?;
    comparison.range()?;
    comparison.smallest()?;
    comparison.largest()
}

pub fn check_size(found: u64, file: &Path, expected: Option<u64>) -> Result<(), VerifyError> {
    equal(file, foreign, "size", found, expected)
}

struct Comparison<'a> {
    found: &'a TableSummary,
    file: &'a Path,
    expected: &'a ExpectedTable,
}

impl Comparison<'_> {
    fn refuse(&self, kind: Kind, what: impl Into<String>) -> Result<(), VerifyError> {
        Err(kind(self.file.to_owned(), what.into()))
    }

    fn identity(&self) -> Result<(), VerifyError> {
        check_size(self.found.file_bytes, self.file, self.expected.file_bytes)?;
        if self.expected.unique_id.is_some_and(|promised| promised != self.found.unique_id) {
            return self.refuse(foreign, "its identity is not the one promised");
        }
        Ok(())
    }

    fn counts(&self) -> Result<(), VerifyError> {
        let (found, expected) = (self.found, self.expected);
        for (what, found, expected) in [
            ("count of entries", found.entries, expected.entries),
            ("count of deletions", found.deletions, expected.deletions),
            ("count of range deletions", found.range_deletions, expected.range_deletions),
            ("count of key bytes", found.raw_key_bytes, expected.raw_key_bytes),
            ("count of value bytes", found.raw_value_bytes, expected.raw_value_bytes),
        ] {
            equal(self.file, miscounted, what, found, expected)?;
        }
        equal(self.file, foreign, "offset of the tail", found.tail_offset, expected.tail_offset)
    }

    fn sequences(&self) -> Result<(), VerifyError> {
        if self.found.entries == 0 {
            return Ok(());
        }
        let (least, greatest) = (self.found.smallest_seqno, self.found.largest_seqno);
        let too_small = self.expected.smallest_seqno.is_some_and(|promised| least < promised);
        let too_great = self.expected.largest_seqno.is_some_and(|promised| greatest > promised);
        if too_small || too_great {
            return self
                .refuse(out_of_range, format!("its sequence numbers {least} to {greatest} go beyond those promised"));
        }
        Ok(())
    }

    /// The entries are in order, so the first and the last stand for all.
    fn range(&self) -> Result<(), VerifyError> {
        let (found, expected) = (self.found, self.expected);
        let (begin, end) = (expected.begin.as_deref(), expected.end.as_deref());
        if let Some((first, _)) = split(&found.first_key)
            && begin.is_some_and(|begin| first < begin)
        {
            return self.refuse(out_of_range, format!("key {} is before the range of the job", show(first)));
        }
        if let Some((last, _)) = split(&found.last_key)
            && end.is_some_and(|end| last >= end)
        {
            return self.refuse(out_of_range, format!("key {} is behind the range of the job", show(last)));
        }
        // RocksDB writes a range deletion whole into each output that it touches; only the bounds
        // of the table say where it ends. So one may reach beyond the range of the job, but must
        // touch it.
        let apart = begin.is_some_and(|begin| found.deleted_end.as_slice() <= begin)
            || end.is_some_and(|end| found.deleted_begin.as_slice() >= end);
        if found.range_deletions > 0 && apart {
            return self.refuse(out_of_range, "its range deletions are outside of the range of the job");
        }
        Ok(())
    }

    fn smallest(&self) -> Result<(), VerifyError> {
        let Some(promised) = self.expected.smallest_internal_key.as_deref() else { return Ok(()) };
        let Some((user_key, _)) = split(promised) else {
            return self.refuse(foreign, "the smallest key promised is no internal key");
        };
        if self.expected.begin.as_deref().is_some_and(|begin| user_key < begin) {
            return self.refuse(out_of_range, "the smallest key promised is before the range of the job");
        }
        // Before the first entry the table can begin only where a range deletion does, or where it
        // was cut.
        match compare(promised, &self.found.first_key) {
            Some(Ordering::Equal) => Ok(()),
            Some(Ordering::Less) | None if self.is_deleted(user_key) => Ok(()),
            _ => self.refuse(
                foreign,
                format!("its first key is {}, promised was {}", show(&self.found.first_key), show(promised)),
            ),
        }
    }

    fn largest(&self) -> Result<(), VerifyError> {
        let Some(promised) = self.expected.largest_internal_key.as_deref() else { return Ok(()) };
        let Some((user_key, footer)) = split(promised) else {
            return self.refuse(foreign, "the largest key promised is no internal key");
        };
        // The end of a range deletion stands, with the greatest sequence number, for all before
        // that key.
        let exclusive = footer >> 8 == GREATEST_SEQUENCE;
        if self.expected.end.as_deref().is_some_and(|end| user_key > end || (user_key == end && !exclusive)) {
            return self.refuse(out_of_range, "the largest key promised is behind the range of the job");
        }
        match compare(promised, &self.found.last_key) {
            Some(Ordering::Equal) => Ok(()),
            Some(Ordering::Greater) | None if self.is_deleted(user_key) => Ok(()),
            _ => self.refuse(
                foreign,
                format!("its last key is {}, promised was {}", show(&self.found.last_key), show(promised)),
            ),
        }
    }

    /// Whether a range deletion of the table accounts for a bound at this key.
    fn is_deleted(&self, user_key: &[u8]) -> bool {
        let found = self.found;
        found.range_deletions > 0 && (found.deleted_begin.as_slice()..=found.deleted_end.as_slice()).contains(&user_key)
    }
}

fn equal(file: &Path, kind: Kind, what: &str, found: u64, expected: Option<u64>) -> Result<(), VerifyError> {
    match expected {
        Some(expected) if expected != found => {
            Err(kind(file.to_owned(), format!("{what} is {found}, promised was {expected}")))
        }
        _ => Ok(()),
    }
}

/// A user key and its footer; `None` for what is no internal key.
fn split(internal: &[u8]) -> Option<(&[u8], u64)> {
    let (user_key, footer) = internal.split_last_chunk::<FOOTER_BYTES>()?;
    Some((user_key, u64::from_le_bytes(*footer)))
}

/// RocksDB's internal order: bytewise user keys ascending, then the newest first. `None` unless
/// both are internal keys.
fn compare(one: &[u8], other: &[u8]) -> Option<Ordering> {
    let ((one, one_footer), (other, other_footer)) = (split(one)?, split(other)?);
    Some(one.cmp(other).then(other_footer.cmp(&one_footer)))
}

fn show(key: &[u8]) -> String {
    key.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02X}"))
}
