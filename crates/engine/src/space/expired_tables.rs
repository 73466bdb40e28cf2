//! Rewrites tables in which something has expired, while writes are refused.
//!
//! RocksDB compacts nothing then that would free it: what rests in the last level has no level to
//! go to, and above it nothing presses. The scan of old tables
//! ([`crate::StoreSettings::expired_compaction_seconds`]) comes in weeks. Each table says when the
//! first of its values expires ([`crate::expired`]), so those without such a value are left alone,
//! and those whose time has not come; the earliest goes first. A table that does not say is taken
//! for one whose first value has expired when it was made. It says once it has been rewritten.
//!
//! A table is rewritten in its level. Those of level 0 overlap, so they are compacted down.
//!
//! Bounds: what begins within [`PROBE_INTERVAL`], of at most [`MAX_TABLES`]; then it is looked how
//! much room there is. What was rewritten is left alone for [`REWRITTEN_REST`]: a snapshot may keep
//! what has expired, and values may expire one after the other. In memory a few bytes for each
//! table.
//!
//! Threads: that of [`super::watch`]. It waits for the compaction, and for its turn among others of
//! our own.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ecotone_policy::dedup::plan::Merge;
use ecotone_rocks::tables::{TableMetadata, collected_properties_but, live_tables};
use ecotone_types::units::Bytes;
use rust_rocksdb::DB;

use super::notifier::PROBE_INTERVAL;
use crate::compaction::by_names::{self, number_of};
use crate::compaction::internal::{InternalCompactions, is_refusal};
use crate::compaction::jobs::CompactionPurpose;
use crate::expired::{PROPERTY, decode, now_ms};
use crate::family::{DATA_FAMILY, DataFamily};
use crate::{Error, Result};

/// Tables that are rewritten in one go.
const MAX_TABLES: usize = 64;

/// What was rewritten is left alone for so long.
const REWRITTEN_REST: Duration = Duration::from_secs(60);

/// Where there was nothing to rewrite it is looked again after so long: RocksDB goes through all
/// tables for it.
const PROBE_REST: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct ExpiredTables {
    internal: Arc<InternalCompactions>,
    target_file_bytes: u64,
    /// By the number of the table; `None` for one that does not say.
    earliest_ms: BTreeMap<u64, Option<u64>>,
    /// Tables that were written here, and when.
    rewritten: HashMap<u64, Instant>,
    /// Rests until then.
    again: Option<Instant>,
}

impl ExpiredTables {
    /// Those of the store that `internal` compacts, in tables of so many bytes.
    pub(crate) fn new(internal: Arc<InternalCompactions>, target_file_bytes: u64) -> Self {
        Self { internal, target_file_bytes, earliest_ms: BTreeMap::new(), rewritten: HashMap::new(), again: None }
    }

    /// Rewrites some. False where nothing has expired, or nothing can be rewritten now.
    ///
    /// # Errors
    ///
    /// What RocksDB says to a table that it cannot compact, or not read.
    pub(crate) fn rewrite(&mut self, db: &DB, family: DataFamily) -> Result<bool> {
        if self.again.is_some_and(|again| Instant::now() < again) {
            return Ok(false);
        }
        self.again = Some(Instant::now() + PROBE_REST);
        let internal = self.internal.clone();
        let Some(permit) = internal.permit(PROBE_INTERVAL) else { return Ok(false) };
        let tables = self.probe(db, family)?;
        let (began, mut any) = (Instant::now(), false);
        for table in self.due(&tables, now_ms()) {
            if began.elapsed() >= PROBE_INTERVAL {
                break;
            }
            if table.level == 0 {
                let (from, to) = (&table.smallest_user_key, &table.largest_user_key);
                let suggested = db.suggest_compact_range_cf(&family, Some(from), Some(to));
                suggested.map_err(|error| Error::from_rocks(&error))?;
                any = true;
                continue;
            }
            let alone = Merge {
                seeds: vec![table.file_number],
                inputs: vec![table.file_number],
                output_level: table.level,
                bytes: Bytes(table.bytes),
                entries: table.entries,
            };
            match by_names::run(db, family, &permit, CompactionPurpose::Expired, &alone, self.target_file_bytes) {
                Ok(told) => {
                    let written = told.iter().flat_map(|told| told.info().output_files().filter_map(number_of));
                    self.rewritten.extend(written.map(|number| (number, Instant::now())));
                    any = true;
                }
                // It does not fit, or is compacted already, or the store closes: another one may
                // do.
                Err(error) if is_refusal(&error) => (),
                Err(error) => return Err(Error::from_rocks(&error)),
            }
        }
        if any {
            self.again = None;
        }
        Ok(any)
    }

    /// Whether something has expired in a table that can be rewritten now.
    ///
    /// # Errors
    ///
    /// Where RocksDB cannot read what a table says.
    pub(crate) fn has_due(&mut self, db: &DB, family: DataFamily) -> Result<bool> {
        let tables = self.probe(db, family)?;
        Ok(!self.due(&tables, now_ms()).is_empty())
    }

    /// The tables that there are, with all that they say known.
    fn probe(&mut self, db: &DB, family: DataFamily) -> Result<Vec<TableMetadata>> {
        let failed = |error: ecotone_rocks::Error| Error::Rocks { detail: error.to_string() };
        let known: Vec<_> = self.earliest_ms.keys().copied().collect();
        let mut said: BTreeMap<_, _> = std::mem::take(&mut self.earliest_ms);
        for mut table in collected_properties_but(db, &family, PROPERTY, &known).map_err(failed)? {
            let known = said.remove(&table.file_number);
            let says = || table.properties.remove(PROPERTY).and_then(|property| decode(&property));
            self.earliest_ms.insert(table.file_number, known.unwrap_or_else(says));
        }
        let mut tables = live_tables(db).map_err(failed)?;
        tables.retain(|table| table.column_family == DATA_FAMILY);
        let known = &self.earliest_ms;
        self.rewritten.retain(|number, at| known.contains_key(number) && at.elapsed() < REWRITTEN_REST);
        Ok(tables)
    }

    /// Those in which something has expired by `now_ms`, the earliest first. A table that has come
    /// since the last probe is left for the next.
    fn due<'t>(&self, tables: &'t [TableMetadata], now_ms: u64) -> Vec<&'t TableMetadata> {
        let earliest_ms = |table: &TableMetadata| {
            let says = self.earliest_ms.get(&table.file_number)?;
            Some(says.unwrap_or(table.created_s.saturating_mul(1000)))
        };
        let is_free =
            |table: &&TableMetadata| !table.being_compacted && !self.rewritten.contains_key(&table.file_number);
        let due = tables.iter().filter(is_free).filter_map(|table| Some((earliest_ms(table)?, table)));
        let mut due: Vec<_> = due.filter(|(earliest_ms, _)| *earliest_ms <= now_ms).collect();
        due.sort_by_key(|(earliest_ms, table)| (*earliest_ms, table.file_number));
        due.truncate(MAX_TABLES);
        due.into_iter().map(|(_, table)| table).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_whose_time_is_over_come_in_its_order_and_no_others() {
        let mut expired = ExpiredTables::new(InternalCompactions::idle(), 1);
        expired.earliest_ms = [
            (1, Some(u64::MAX)),
            (2, Some(7_000)),
            (3, Some(5_000)),
            (4, Some(7_001)),
            // Made at 6 s and at 8.
            (5, None),
            (6, None),
            (7, Some(1)),
            (8, Some(1)),
        ]
        .into();
        expired.rewritten.insert(7, Instant::now());
        let table = |file_number, created_s| TableMetadata { file_number, created_s, ..TableMetadata::default() };
        let mut tables = [table(1, 1), table(2, 9), table(3, 9), table(4, 1), table(5, 6), table(6, 8), table(7, 1)];
        let numbers = |expired: &ExpiredTables, tables: &[TableMetadata], now_ms| {
            let due = expired.due(tables, now_ms);
            due.iter().map(|table| table.file_number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&expired, &tables, 7_000), [3, 5, 2]);
        assert_eq!(numbers(&expired, &tables, 4_999), [0; 0]);
        tables[1].being_compacted = true;
        // One that nobody has looked at yet.
        tables[2].file_number = 9;
        assert_eq!(numbers(&expired, &tables, 8_000), [5, 4, 6]);
    }
}
