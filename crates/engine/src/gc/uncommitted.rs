//! Tables that lie in the store's folder, are not live, and may be after the next start.
//!
//! Where RocksDB fails to write down that a compaction is over, whether it is remains open: the
//! record may have reached the MANIFEST. It goes on with the tables that the compaction has read,
//! and keeps those that it has written until a later record decides. After a crash or an orderly
//! end before that they may be what is live. So the relocated values that they name must stay,
//! although no live table refers to them.
//!
//! Invariant: a table that is not told of here is live, or was never whole, or is gone. One that
//! cannot be read now may name anything.
//!
//! Bounds: as many tables as lie there, each with its segments. Usually there are few: outputs of
//! compactions that run, and inputs that somebody still reads.
//!
//! Threads: of whoever makes a round of [`super::removal`]. Failure: where the folder cannot be
//! listed nobody knows, and the round ends.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

use ecotone_rocks::salvage::SalvagedTable;
use ecotone_rocks::tables::live_tables;
use ecotone_valuelog::pointer::{SegmentNumber, SegmentSet};
use rust_rocksdb::DB;

use super::references::{PROPERTY, decode};
use crate::identity::Identity;
use crate::{Error, Result};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct UncommittedTables {
    /// What each of these tables names, by its number. `None`: it does not tell.
    tables: BTreeMap<u64, Option<SegmentSet>>,
    /// Whether there was one in the last look that could not be read.
    is_in_doubt: bool,
}

impl UncommittedTables {
    /// Looks at what lies in `directory` now.
    ///
    /// # Errors
    ///
    /// The folder cannot be listed, or RocksDB does not tell which tables are live.
    pub(super) fn look(&mut self, db: &DB, directory: &Path, identity: Identity) -> Result<()> {
        // Listed before: what becomes live meanwhile is live in the second look.
        let mut lying = numbers_in(directory)?;
        let live = live_tables(db).map_err(|error| Error::Rocks { detail: error.to_string() })?;
        let live: HashSet<_> = live.into_iter().map(|table| table.file_number).collect();
        lying.retain(|number| !live.contains(number));
        self.tables.retain(|number, _| lying.contains(number));
        self.is_in_doubt = false;
        for number in lying {
            if number < identity.plain_tables_below || self.tables.contains_key(&number) {
                continue;
            }
            let path = directory.join(format!("{number:06}.sst"));
            match SalvagedTable::open(&path) {
                Ok(table) => {
                    let property = table.description().collected.get(PROPERTY);
                    let named = property.and_then(|property| decode(property));
                    let named = named.map(|items| items.into_iter().map(|(segment, _)| segment).collect());
                    self.tables.insert(number, named);
                }
                // It is being written, and is looked at again the next time.
                Err(error) if is_no_table(&error) => (),
                Err(_) if !path.exists() => (),
                Err(error) => {
                    tracing::debug!(?path, %error, "a table cannot be read now: no relocated value is let go");
                    self.is_in_doubt = true;
                }
            }
        }
        Ok(())
    }

    /// Whether one of them names `segment`, or may.
    pub(super) fn may_name(&self, segment: SegmentNumber) -> bool {
        self.is_in_doubt
            || self.tables.values().any(|named| named.as_ref().is_none_or(|named| named.contains(&segment)))
    }
}

/// Whether the file has been read, and is no whole table.
fn is_no_table(error: &ecotone_rocks::Error) -> bool {
    matches!(error, ecotone_rocks::Error::RocksDb { message, .. } if message.starts_with("Corruption"))
}

/// The numbers of the tables that lie in a folder.
fn numbers_in(directory: &Path) -> Result<BTreeSet<u64>> {
    let failed = |error: std::io::Error| Error::io("list", directory, &error);
    let mut numbers = BTreeSet::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let stem = name.to_str().and_then(|name| name.strip_suffix(".sst"));
        numbers.extend(stem.and_then(|stem| stem.parse::<u64>().ok()));
    }
    Ok(numbers)
}
