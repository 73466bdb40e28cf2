//! How many versions of keys are replaced by newer ones in other tables: counted by reading every
//! table, or estimated from the samples of keys that tables carry, whoever has the store open.
//!
//! A version is shadowed where a newer version of its key, or the newer deletion of a range with
//! its key, is in another table. What a snapshot still needs is counted as well: it cannot be
//! freed yet. Keys are distinguished by 64 bits of their hash.
//!
//! Memory: at most [`MAX_VERSIONS`] versions of 24 bytes at a time; where there are more, the
//! tables are read several times, each time for the keys of other hashes. All deletions of ranges
//! are kept, and compared with each entry.
//!
//! Failure modes: a damaged table is an error, and so is one that another process has removed.
//! Tables that a compaction replaces meanwhile stay until they are read, so the count is of one
//! moment. Memtables are not counted.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ecotone_engine::header::{Header, Kind};
use ecotone_engine::offline::{SAMPLES_PROPERTY, decode_samples, keeping_tables, table_properties};
use ecotone_engine::{DATA_FAMILY, Error, Result, Store, TableMetadata};
use ecotone_policy::duplicates::SAMPLED_ONE_IN;
use ecotone_rocks::properties::{EntryKind, TableCollector};
use ecotone_rocks::verify::{VerifyError, recount_table};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

/// Versions that are in memory at a time: 192 MiB. What `bench` holds is within, so that its tables
/// are read once.
const MAX_VERSIONS: usize = 1 << 23;

/// Samples that are in memory at a time, of all tables together: 96 MiB. Whenever there are more,
/// half of them are dropped.
const MAX_SAMPLES: usize = 1 << 22;

/// No finer classes of hashes are made: keys that are still together were chosen to collide, and
/// are kept in memory.
const MAX_CLASSES: u64 = 1 << 20;

/// What one level holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CountedLevel {
    /// Entries, deletions included.
    pub entries: u64,
    /// Versions, deletions of single keys included, that a newer one in another table shadows.
    pub shadowed_keys: u64,
    /// What their values take: in tables, or in the value log where values are separated.
    pub shadowed_bytes: u64,
}

/// What all tables of one moment hold.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DuplicateCensus {
    /// The levels, L0 first, down to the last that has tables.
    pub levels: Vec<CountedLevel>,
    /// Of an estimate: one standard deviation of the shadowed keys by themselves; `None` where none
    /// was sampled, and of a count.
    pub relative_error: Option<f64>,
    /// Of an estimate: tables without samples; what is shadowed in them is not in it.
    pub unsampled_tables: u64,
}

impl DuplicateCensus {
    /// Entries of all tables: TOTAL_KEYS of the whole store.
    pub fn total_keys(&self) -> u64 {
        self.levels.iter().map(|level| level.entries).sum()
    }

    /// Shadowed versions of all tables: DUP_KEYS of the whole store.
    pub fn duplicate_keys(&self) -> u64 {
        self.levels.iter().map(|level| level.shadowed_keys).sum()
    }

    /// What shadowed versions take.
    pub fn shadowed_bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.shadowed_bytes).sum()
    }

    /// DUP_RATIO of the whole store: entries for each shadowed version; `None` where nothing is
    /// shadowed.
    pub fn ratio(&self) -> Option<f64> {
        let duplicates = self.duplicate_keys();
        (duplicates > 0).then(|| self.total_keys() as f64 / duplicates as f64)
    }

    /// Adds each version that a newer one of its key in another table shadows, as often as `weight`
    /// says. Returns how many there are.
    fn add_shadowed(&mut self, tables: &[TableMetadata], versions: &mut [Version], weight: u64) -> u64 {
        // Where RocksDB has forgotten a sequence number nothing older is left below, so that the
        // upper table has the newer.
        versions.sort_unstable_by_key(|version| (version.hash, Reverse(version.sequence), version.table & !RANGE));
        let mut found = 0;
        for of_key in versions.chunk_by(|one, other| one.hash == other.hash) {
            let newest = of_key[0].table & !RANGE;
            let behind = of_key.iter().skip_while(|version| version.table & !RANGE == newest);
            for version in behind.filter(|version| version.table & RANGE == 0) {
                let level = &mut self.levels[tables[version.table as usize].level as usize];
                level.shadowed_keys += weight;
                level.shadowed_bytes += u64::from(version.bytes) * weight;
                found += 1;
            }
        }
        found
    }
}

/// Counts what newer versions shadow, by reading all tables whole: minutes where they are large.
/// Beside [`Store::pause_compactions`] it is the count of the tables that are there now.
///
/// # Errors
///
/// Those of a table that is damaged or cannot be read. [`Error::InUse`] where this store is open
/// read-only, and somebody else writes it, who may have removed what is missing.
pub fn count_duplicates(store: &Store) -> Result<DuplicateCensus> {
    count_within(store, MAX_VERSIONS)
}

fn count_within(store: &Store, max_versions: usize) -> Result<DuplicateCensus> {
    keeping_tables(store, || count(&tables_of_data(store)?, max_versions))
}

/// Estimates the same from samples, without reading entries; `None` where no table carries any.
/// Asks every table for its properties: for the scale of minutes, not of requests.
pub(crate) fn estimate_duplicates(store: &Store) -> Result<Option<DuplicateCensus>> {
    let tables = tables_of_data(store)?;
    let mut properties = table_properties(store, SAMPLES_PROPERTY)?;
    let (mut one_in, mut sampled_tables, mut unsampled_tables) = (SAMPLED_ONE_IN, 0, 0);
    let (mut versions, mut sampled) = (Vec::new(), vec![0_u64; tables.len()]);
    for ((table, place), count) in tables.iter().zip(0..).zip(&mut sampled) {
        let samples = match properties.remove(&table.file_number) {
            Some(Some(samples)) => decode_samples(&samples),
            Some(None) => {
                unsampled_tables += 1;
                continue;
            }
            // A compaction has replaced it since it was listed.
            None => continue,
        };
        sampled_tables += 1;
        *count = samples.len() as u64 * SAMPLED_ONE_IN;
        versions.extend(samples.into_iter().filter(|sample| sample.hash.is_multiple_of(one_in)).map(|sample| {
            Version { hash: sample.hash, sequence: sample.sequence, bytes: sample.bytes.unwrap_or(0), table: place }
        }));
        while versions.len() > MAX_SAMPLES && one_in < MAX_CLASSES {
            one_in *= 2;
            versions.retain(|version| version.hash.is_multiple_of(one_in));
        }
    }
    if sampled_tables == 0 {
        return Ok(None);
    }
    let mut census = DuplicateCensus { unsampled_tables, ..of_levels(&tables) };
    for (table, sampled) in tables.iter().zip(sampled) {
        // RocksDB may not have read the table's properties since the store was opened.
        let entries = if table.entries == 0 { sampled } else { table.entries };
        census.levels[table.level as usize].entries += entries;
    }
    let duplicates = census.add_shadowed(&tables, &mut versions, one_in);
    census.relative_error = (duplicates > 0).then(|| ((1.0 - 1.0 / one_in as f64) / duplicates as f64).sqrt());
    Ok(Some(census))
}

fn tables_of_data(store: &Store) -> Result<Vec<TableMetadata>> {
    let mut tables = store.live_tables()?;
    tables.retain(|table| table.column_family == DATA_FAMILY);
    tables.sort_unstable_by_key(|table| table.level);
    Ok(tables)
}

/// Marks a version that represents the deletion of a range: it shadows, and is no entry.
const RANGE: u32 = 1 << 31;

/// One version of a key in one table.
#[derive(Debug, Clone, Copy)]
struct Version {
    hash: u64,
    sequence: u64,
    bytes: u32,
    /// Its place in the list of tables, or [`RANGE`] with it.
    table: u32,
}

/// The deletion of a range of keys.
#[derive(Debug, Clone)]
struct DeletedRange {
    begin: Vec<u8>,
    end: Vec<u8>,
    sequence: u64,
    table: u32,
}

impl DeletedRange {
    fn shadows(&self, key: &[u8], sequence: u64, table: u32) -> bool {
        self.sequence > sequence && self.table != table && (&*self.begin..&*self.end).contains(&key)
    }
}

/// The keys whose hash leaves one remainder.
#[derive(Debug, Clone, Copy)]
struct Class {
    remainder: u64,
    /// A power of two.
    classes: u64,
}

impl Default for Class {
    /// All keys.
    fn default() -> Self {
        Self { remainder: 0, classes: 1 }
    }
}

impl Class {
    fn has(self, hash: u64) -> bool {
        hash & (self.classes - 1) == self.remainder
    }

    /// Two halves of it.
    fn halves(self) -> [Self; 2] {
        let classes = self.classes * 2;
        [Self { remainder: self.remainder, classes }, Self { remainder: self.remainder + self.classes, classes }]
    }
}

/// One reading of all tables.
#[derive(Default)]
struct Pass {
    class: Class,
    /// Classes that there was no memory for.
    left: Vec<Class>,
    max_versions: usize,
    /// All deletions of ranges there are, from an earlier pass.
    deleted: Arc<Vec<DeletedRange>>,
    found_deleted: Vec<DeletedRange>,
    versions: Vec<Version>,
    /// The place of the table that is being read.
    table: u32,
}

impl Pass {
    fn add(&mut self, key: &[u8], value: &[u8], kind: EntryKind, sequence: u64) {
        let bytes = match kind {
            EntryKind::Put => value_bytes(key, value),
            EntryKind::RangeDelete => {
                let (begin, end) = (key.to_vec(), value.to_vec());
                return self.found_deleted.push(DeletedRange { begin, end, sequence, table: self.table });
            }
            _ => 0,
        };
        let hash = XxHash3_64::oneshot(key);
        if !self.class.has(hash) {
            return;
        }
        if self.versions.len() >= self.max_versions && self.class.classes < MAX_CLASSES {
            let [kept, left] = self.class.halves();
            self.class = kept;
            self.left.push(left);
            self.versions.retain(|version| kept.has(version.hash));
            if !kept.has(hash) {
                return;
            }
        }
        self.versions.push(Version { hash, sequence, bytes, table: self.table });
        // The newest of them counts as a version of this key: it shadows what is older in other
        // tables.
        let hiding = self.deleted.iter().filter(|range| range.shadows(key, sequence, self.table));
        if let Some(newest) = hiding.max_by_key(|range| range.sequence) {
            self.versions.push(Version { hash, sequence: newest.sequence, bytes: 0, table: RANGE | newest.table });
        }
    }

    /// Returns the entries of each table, and what was kept of them.
    fn read(self, tables: &[TableMetadata]) -> Result<(Vec<u64>, Self)> {
        let pass = Arc::new(Mutex::new(self));
        let mut entries = Vec::with_capacity(tables.len());
        for (table, place) in tables.iter().zip(0..) {
            pass.lock().table = place;
            let path = table.directory.join(&table.name);
            let found = recount_table(&path, &AtomicBool::new(false), Box::new(Shown(Arc::clone(&pass))), &[]);
            entries.push(found.map_err(unreadable)?.entries);
        }
        let pass = std::mem::take(&mut *pass.lock());
        Ok((entries, pass))
    }
}

fn value_bytes(key: &[u8], value: &[u8]) -> u32 {
    let bytes = match Header::decode(value) {
        Ok(Header { kind: Kind::Separated(pointer), .. }) => pointer.record_bytes(key.len()),
        _ => value.len(),
    };
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// What shows the entries of one table to a pass.
struct Shown(Arc<Mutex<Pass>>);

impl TableCollector for Shown {
    fn add(&mut self, key: &[u8], value: &[u8], kind: EntryKind, sequence: u64, _file_bytes: u64) {
        self.0.lock().add(key, value, kind, sequence);
    }

    /// No properties.
    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        Vec::new()
    }
}

/// Nothing counted yet.
fn of_levels(tables: &[TableMetadata]) -> DuplicateCensus {
    let levels = tables.iter().map(|table| table.level as usize + 1).max().unwrap_or(1);
    DuplicateCensus { levels: vec![CountedLevel::default(); levels], ..DuplicateCensus::default() }
}

fn count(tables: &[TableMetadata], max_versions: usize) -> Result<DuplicateCensus> {
    let mut census = of_levels(tables);
    let mut deleted = None;
    let mut classes = vec![Class::default()];
    while let Some(class) = classes.pop() {
        let is_first = deleted.is_none();
        let known = deleted.get_or_insert_default();
        let pass = Pass { class, max_versions, deleted: Arc::clone(known), ..Pass::default() };
        let (entries, mut pass) = pass.read(tables)?;
        if is_first {
            for (table, entries) in tables.iter().zip(entries) {
                census.levels[table.level as usize].entries += entries;
            }
            if !pass.found_deleted.is_empty() {
                // They shadow entries that were read before they were found.
                *known = Arc::new(pass.found_deleted);
                classes.push(class);
                continue;
            }
        }
        classes.append(&mut pass.left);
        census.add_shadowed(tables, &mut pass.versions, 1);
    }
    Ok(census)
}

fn unreadable(error: VerifyError) -> Error {
    match error {
        VerifyError::Io { file, what } => Error::Io { action: "read", path: file, detail: what },
        error => Error::Corrupt { location: None, detail: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ecotone_engine::{OpenMode, StoreSettings};

    #[test]
    fn with_memory_for_a_few_versions_the_count_is_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("store"), OpenMode::Create, StoreSettings::default()).unwrap();
        for round in 0..3_u32 {
            for key in (round * 100)..1_000 {
                store.put(format!("key{key}").as_bytes(), &[7; 30]).unwrap();
            }
            if round == 1 {
                store.delete_range(&b"key5"[..]..&b"key7"[..]).unwrap();
            }
            store.flush(true).unwrap();
        }
        let whole = count_within(&store, usize::MAX).unwrap();
        assert!(whole.duplicate_keys() > 1_000, "{whole:?}");
        for most in [1, 7, 100, 2_000] {
            assert_eq!(count_within(&store, most).unwrap(), whole, "{most}");
        }
    }
}
