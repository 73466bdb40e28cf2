//! Makes one merge, as RocksDB lets us: the tables are named, RocksDB adds what they overlap down to the level that is written to.

use ecotone_policy::dedup::plan::{Merge, Table};
use ecotone_policy::units::Bytes;
use ecotone_rocks_sys::tables::TableMetadata;
use rust_rocksdb::compaction::CompactionOptions;
use rust_rocksdb::event_listener::OwnedCompactionJobInfo;
use rust_rocksdb::{DB, Error, ErrorKind};

use crate::family::DataFamily;
use crate::own_compactions::{Purpose, Turn};

/// As the policy sees a table.
pub(super) fn table(table: &TableMetadata) -> Table {
    Table {
        number: table.file_number,
        level: table.level,
        first: table.smallest_user_key.clone(),
        last: table.largest_user_key.clone(),
        bytes: Bytes(table.bytes),
        entries: table.entries,
        is_busy: table.being_compacted,
    }
}

/// Runs `merge`, and returns what RocksDB tells of it.
pub(super) fn run(
    db: &DB,
    family: DataFamily,
    turn: &Turn<'_>,
    merge: &Merge,
    target_file_bytes: u64,
) -> Result<Option<OwnedCompactionJobInfo>, Error> {
    let mut options = CompactionOptions::default();
    // Otherwise all of it would become one table.
    options.set_output_file_size_limit(target_file_bytes);
    // One core is enough, and one part is what its duty and its counts are told of.
    options.set_max_subcompactions(1);
    let names: Vec<_> = merge.seeds.iter().map(|number| format!("{number:06}.sst")).collect();
    // Levels are few.
    let level = merge.output_level as i32;
    let compact = || Ok(db.compact_files_cf(&family, &options, &names, level)?.job_info);
    turn.run(Purpose::Dedup, merge.bytes.0, compact)
}

/// What to make of a merge that RocksDB did not make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setback {
    /// RocksDB compacts some of its tables, or has done so meanwhile.
    Conflict,
    /// There is no room for it now.
    NoRoom,
    /// The store closes.
    Closing,
    /// Anything else.
    Failure,
}

impl Setback {
    pub(super) fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Aborted | ErrorKind::InvalidArgument => Self::Conflict,
            ErrorKind::CompactionTooLarge => Self::NoRoom,
            ErrorKind::Incomplete | ErrorKind::ShutdownInProgress => Self::Closing,
            _ => Self::Failure,
        }
    }
}
