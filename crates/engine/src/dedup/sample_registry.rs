//! What the tables of a store tell of their keys, kept in memory and in step with the tables.
//!
//! The listener hands over what flushes and compactions tell of their new tables: properties come
//! with the event, so nothing is looked up. [`SampleRegistry::look`] compares with the tables that
//! there are, and reads the properties of those that it does not know: of all tables the first
//! time, later only of those whose event has not come or did not fit. No data block is ever read;
//! the properties of an open table are in memory, those of a closed one are one block.
//!
//! Bounds: [`max_samples`] of all tables together once they are known, and what [`READ_BATCH`]
//! tables, or a [`MAX_READS`]th of all, tell while they are read, some 24 bytes for each 64
//! entries; [`DedupOptions::max_filter_bytes`](super::DedupOptions) of filters, [`MAX_CHANGES`] and
//! [`MAX_CHANGE_BYTES`] of what was heard and not looked at yet; beyond these the changes are
//! forgotten, and the next look reads what they told.
//!
//! Threads: any. Who hears never waits for who looks: there is a lock for each.
//!
//! Failure modes: a table without samples (of an earlier version, or of a worker of one) counts as
//! one without duplicates.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use ecotone_policy::dedup::filter::{FilterView, KeyFilter};
use ecotone_policy::dedup::sketches::KeySketches;
use ecotone_policy::duplicates::{Duplicates, KeySample, Overlap};
use ecotone_rocks::tables::{FamilyTable, collected_properties_but, family_tables};
use parking_lot::{Mutex, MutexGuard};
use rust_rocksdb::event_listener::FlushJobInfo;
use rust_rocksdb::table_properties::TableProperties;
use rust_rocksdb::{AsColumnFamilyRef, DB};

use super::filters::{self, FilterName, KeyHashes};
use super::samples;
use super::sketch::Sketching;
use crate::compaction::by_names::number_of;
use crate::compaction::table_changes::{CompactedTables, TableSubscriber};
use crate::{Error, Result};

/// Samples that are kept in memory, of all tables together: some 24 MiB. With one key in 64 they
/// last for 16 million entries.
const MAX_SAMPLES: usize = 1 << 18;

/// What one takes, with its place in the order of them.
const SAMPLE_BYTES: u64 = 96;

/// Where there is a limit of memory they take no more than this share of it, beside it.
const MEMORY_SHARE: u64 = 16;

/// With fewer, chance would say more than they do.
const MIN_SAMPLES: usize = 1 << 14;

/// How many samples a store keeps whose block cache and memtables may take so much.
pub(crate) fn max_samples(memory_bytes: Option<u64>) -> usize {
    let within = memory_bytes.map_or(u64::MAX, |bytes| bytes / MEMORY_SHARE / SAMPLE_BYTES);
    usize::try_from(within).unwrap_or(usize::MAX).clamp(MIN_SAMPLES, MAX_SAMPLES)
}

/// Flushes and compactions that were heard of and not looked at: looks come at least as often as
/// checks, so this is more than ever waits.
const MAX_CHANGES: usize = 256;

/// And what they told.
const MAX_CHANGE_BYTES: usize = 16 * 1024 * 1024;

/// Tables whose properties are read at a time: all at once would take as much memory as all of them
/// tell, for a moment and with filters gigabytes. Each time all tables are gone through, so of very
/// many more are read at a time.
const READ_BATCH: usize = 32;

/// In no more goes than that.
const MAX_READS: usize = 32;

/// Both properties begin with it.
const PREFIX: &str = "ecotone.";

/// See the module.
#[derive(Debug)]
pub(crate) struct SampleRegistry {
    wants_filters: bool,
    /// What the collectors of the store share.
    sketching: Arc<Sketching>,
    pending: Mutex<Pending>,
    sketches: Mutex<Sketches>,
}

/// What all tables that are known tell.
#[derive(Debug)]
pub(crate) struct Sketches {
    sketching: Arc<Sketching>,
    duplicates: Duplicates,
    tables: BTreeMap<u64, Table>,
    filter_bytes: usize,
    /// `None`: nobody asks filters.
    max_filter_bytes: Option<u64>,
    /// Of tables that came since somebody took them.
    overlaps: BTreeMap<u64, Overlap>,
}

#[derive(Debug)]
struct Table {
    is_sampled: bool,
    filter: Option<(FilterName, KeyFilter)>,
}

impl Table {
    fn filter_bytes(&self) -> usize {
        self.filter.as_ref().map_or(0, |(_, filter)| filter.bytes().len())
    }
}

#[derive(Debug, Default)]
struct Pending {
    changes: Vec<Change>,
    bytes: usize,
}

/// Tables that came, and those that went for them.
#[derive(Debug)]
struct Change {
    came: Vec<NewTable>,
    gone: Vec<u64>,
}

#[derive(Debug)]
struct NewTable {
    number: u64,
    samples: Option<Vec<u8>>,
    filter: Option<Vec<u8>>,
}

impl NewTable {
    fn bytes(&self) -> usize {
        [&self.samples, &self.filter].into_iter().flatten().map(Vec::len).sum()
    }
}

impl SampleRegistry {
    /// Nothing yet; with so many samples, and so many bytes of filters where the tables carry them
    /// and somebody asks them.
    pub(crate) fn new(max_samples: usize, max_filter_bytes: Option<u64>) -> Arc<Self> {
        let wants_filters = max_filter_bytes.is_some();
        let max_recent_bytes = usize::try_from(max_filter_bytes.unwrap_or(0) / 2).unwrap_or(usize::MAX);
        let sketching = Arc::new(Sketching::new(max_recent_bytes));
        let sketches = Sketches {
            sketching: sketching.clone(),
            duplicates: Duplicates::new(max_samples),
            tables: BTreeMap::new(),
            filter_bytes: 0,
            max_filter_bytes,
            overlaps: BTreeMap::new(),
        };
        Arc::new(Self { wants_filters, sketching, pending: Mutex::default(), sketches: Mutex::new(sketches) })
    }

    /// For the collectors of the store.
    pub(crate) fn sketching(&self) -> &Arc<Sketching> {
        &self.sketching
    }

    /// Brings everything in step with the tables that there are, and returns these and what is
    /// known of them.
    pub(crate) fn look(
        &self,
        db: &DB,
        family: &impl AsColumnFamilyRef,
    ) -> Result<(Vec<FamilyTable>, MutexGuard<'_, Sketches>)> {
        let failed = |error: ecotone_rocks::Error| Error::Rocks { detail: error.to_string() };
        let mut sketches = self.now();
        let tables = family_tables(db, family).map_err(failed)?;
        let numbers: HashSet<_> = tables.iter().map(|table| table.file_number).collect();
        sketches.replace(|number| !numbers.contains(&number), Vec::new());
        // Tables carry more than was kept of them when there were many; that they come again is no
        // news.
        let overlaps = sketches.duplicates.is_needlessly_thin().then(|| sketches.forget());
        let mut unknown: Vec<_> = tables.iter().filter(|it| !sketches.tables.contains_key(&it.file_number)).collect();
        // What is replaced comes before what replaces it, as where all are told at once.
        unknown.sort_unstable_by_key(|table| (Reverse(table.level), table.file_number));
        for read in unknown.chunks(READ_BATCH.max(unknown.len() / MAX_READS)) {
            let is_read = |number: u64| read.iter().any(|table| table.file_number == number);
            let mut others: Vec<_> = numbers.iter().copied().filter(|number| !is_read(*number)).collect();
            others.sort_unstable();
            let mut told = collected_properties_but(db, family, PREFIX, &others).map_err(failed)?;
            // Nothing is told of tables that were not asked, and what a compaction has just
            // replaced may come as well.
            told.retain(|table| is_read(table.file_number));
            let new = told.into_iter().map(|mut table| NewTable {
                number: table.file_number,
                samples: table.properties.remove(samples::PROPERTY),
                filter: table.properties.remove(filters::PROPERTY).filter(|_| self.wants_filters),
            });
            self.timed(|| sketches.replace(|_| false, new.collect()));
        }
        if let Some(overlaps) = overlaps {
            sketches.overlaps = overlaps;
        }
        Ok((tables, sketches))
    }

    /// What is known, with all that was heard of; of tables that went unheard of until the next
    /// [`look`](Self::look).
    pub(crate) fn now(&self) -> MutexGuard<'_, Sketches> {
        self.in_step(self.sketches.lock())
    }

    fn in_step<'a>(&self, mut sketches: MutexGuard<'a, Sketches>) -> MutexGuard<'a, Sketches> {
        // Not in the head of the loop, where the lock would be held until its end.
        let changes = std::mem::take(&mut *self.pending.lock()).changes;
        for change in changes {
            self.timed(|| sketches.replace(|number| change.gone.contains(&number), change.came));
        }
        sketches
    }

    fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        self.sketching.timed(1, work)
    }

    /// Processor time that was spent on samples and filters, in flushes and compactions and to keep
    /// them in memory, in microseconds.
    pub(crate) fn sketch_cpu_us(&self) -> u64 {
        self.sketching.cpu_us()
    }

    /// As [`now`](Self::now), unless somebody else looks.
    pub(crate) fn read_now(&self) -> Option<MutexGuard<'_, Sketches>> {
        Some(self.in_step(self.sketches.try_lock()?))
    }

    fn table(&self, number: u64, properties: Option<&TableProperties<'_>>) -> NewTable {
        let property = |name: &str| {
            let mut all = properties?.user_collected_properties();
            all.find(|(found, _)| *found == name.as_bytes()).map(|(_, property)| property.to_vec())
        };
        let filter = if self.wants_filters { property(filters::PROPERTY) } else { None };
        NewTable { number, samples: property(samples::PROPERTY), filter }
    }

    fn enqueue(&self, change: Change) {
        let more: usize = change.came.iter().map(NewTable::bytes).sum();
        let mut pending = self.pending.lock();
        if pending.changes.len() >= MAX_CHANGES || pending.bytes + more > MAX_CHANGE_BYTES {
            *pending = Pending::default();
        }
        pending.bytes += more;
        pending.changes.push(change);
    }
}

impl TableSubscriber for SampleRegistry {
    fn flushed(&self, info: &FlushJobInfo) {
        let came = self.timed(|| vec![self.table(info.file_number(), Some(&info.table_properties()))]);
        self.enqueue(Change { came, gone: Vec::new() });
    }

    /// A compaction has ended; also one that RocksDB tells no listener of. What the event tells of
    /// a worker's tables is what the worker said, and nobody has held it against the tables: those
    /// are read by the next [`look`](Self::look).
    fn compacted(&self, &CompactedTables { info, is_remote, .. }: &CompactedTables<'_>) {
        if info.status().is_err() {
            return;
        }
        let written: Vec<_> = info.output_files().filter_map(|path| Some((path, number_of(path)?))).collect();
        let (mut came, mut bytes) = (Vec::new(), 0);
        for (path, number) in &written {
            // What would be forgotten again is not copied.
            if is_remote || bytes > MAX_CHANGE_BYTES {
                came.clear();
                break;
            }
            let table = self.timed(|| self.table(*number, info.table_properties_for_file(path).as_ref()));
            bytes += table.bytes();
            came.push(table);
        }
        // A table that is only moved is both.
        let stays = |number: &u64| written.iter().any(|(_, written)| written == number);
        let gone = info.input_files().filter_map(number_of).filter(|number| !stays(number)).collect();
        self.enqueue(Change { came, gone });
    }
}

impl Sketches {
    /// The samples of all tables.
    pub(crate) fn duplicates(&self) -> &Duplicates {
        &self.duplicates
    }

    /// Whether a table has told its samples. One that has none may hold any key; so may one that is
    /// not known yet.
    pub(crate) fn is_sampled(&self, table: u64) -> bool {
        self.tables.get(&table).is_some_and(|table| table.is_sampled)
    }

    /// Whether filters are asked, and a table has none that could be.
    pub(crate) fn lacks_filter(&self, table: u64) -> bool {
        self.max_filter_bytes.is_some() && self.filter(table).is_none()
    }

    /// How many keys of the tables that came since the last call were in tables that were there
    /// before, by the table's number.
    pub(crate) fn take_overlaps(&mut self) -> BTreeMap<u64, Overlap> {
        std::mem::take(&mut self.overlaps)
    }

    /// Forgets all tables, and returns what was to be told of those that came.
    fn forget(&mut self) -> BTreeMap<u64, Overlap> {
        self.duplicates.clear();
        self.tables.clear();
        self.filter_bytes = 0;
        std::mem::take(&mut self.overlaps)
    }

    /// Tables are gone, and others came together.
    fn replace(&mut self, is_gone: impl Fn(u64) -> bool, came: Vec<NewTable>) {
        self.overlaps.retain(|number, _| !is_gone(*number));
        self.tables.retain(|number, _| !is_gone(*number));
        self.filter_bytes = self.tables.values().map(Table::filter_bytes).sum();
        let mut sampled: Vec<(u64, Vec<KeySample>)> = Vec::new();
        for table in came {
            if self.tables.contains_key(&table.number) {
                continue;
            }
            let is_sampled = table.samples.is_some();
            if let Some(property) = table.samples {
                sampled.push((table.number, samples::decode(&property)));
            }
            let free_space = self.max_filter_bytes.unwrap_or(0).saturating_sub(self.filter_bytes as u64);
            let filter = table.filter.filter(|filter| filter.len() as u64 <= free_space);
            let filter = filter.and_then(|bytes| Some((FilterName::of(&bytes), KeyFilter::parse(bytes).ok()?)));
            let table_known = Table { is_sampled, filter };
            self.filter_bytes += table_known.filter_bytes();
            self.tables.insert(table.number, table_known);
        }
        // The older first, so that a flush finds what it replaces.
        sampled.sort_by_key(|(_, samples)| samples.iter().map(|sample| sample.sequence).max());
        let overlaps = self.duplicates.replace(is_gone, sampled);
        self.overlaps.extend(overlaps.into_iter().filter(|(_, overlap)| overlap.sampled > 0));
    }
}

/// What checks and merges go by.
impl KeySketches for Sketches {
    fn one_in(&self) -> u64 {
        self.duplicates.one_in()
    }

    fn samples(&self, table: u64) -> Option<&[KeySample]> {
        self.duplicates.samples(table).filter(|_| self.is_sampled(table))
    }

    /// Also `None` of one that is damaged.
    fn filter(&self, table: u64) -> Option<FilterView<'_>> {
        self.tables.get(&table)?.filter.as_ref().map(|(_, filter)| filter.view())
    }

    /// Where the table carries a filter: until some tables later.
    fn key_hashes(&self, table: u64) -> Option<KeyHashes> {
        let (name, _) = self.tables.get(&table)?.filter.as_ref()?;
        self.sketching.hashes_of(*name)
    }
}

#[cfg(test)]
#[path = "sample_registry_tests.rs"]
mod tests;
