//! The stores of a server: one for each shard that it holds. They share one limit of memory, one
//! row cache, one space, one bound of open files, RocksDB's threads, and the federation.
//!
//! Shard 1 lies in `store/`, as that of a server without a federation does; shard N in `shards/N/`.
//!
//! Stores come and go while the server runs: one whose shard is given up is closed as soon as nobody
//! uses it, and its folder is free for others then. What it has done stays in the sums.
//!
//! Failure: where one of several stores cannot be opened those that could are closed again, and the
//! server does not start. At the end each is closed whatever becomes of the others.
//!
//! Threads: any. Stores are opened, and closed, side by side on threads that end with that; the
//! list is locked for a copy of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ecotone_cluster::copies::PrimaryCopy;
use ecotone_cluster::{Federation, StoreOffload};
use ecotone_energy::ThreadDuties;
use ecotone_engine::{
    CompactionFinished, CompressionProperties, Counters, DedupProperties, FreeSpace, LocalSlots, MIN_LIMIT_BYTES,
    MemoryLimit, SharedRows, SharedSpace, StallChanged, StallCondition, Store, StoreEvents, StoreProperties,
    StoreSettings, ValueLogProperties,
};
use ecotone_io::tap::WriteTap;
use ecotone_keyspace::gate::CommitGate;
use ecotone_keyspace::{OpenShard, ShardError, ShardId, SlotRanges, all_slots, layout};
use ecotone_mirror::names;
use parking_lot::RwLock;
use tracing::{info, warn};

use crate::error::{Error, Result};
use crate::open_files::per_store;

/// The folder of shard 1, as of a store without a federation.
const FIRST_FOLDER: &str = "store";

/// The folder of the others' folders.
const OTHERS_FOLDER: &str = "shards";

/// What RocksDB may write that follows a copy, beside that copy's directory.
const FOLLOWER_FOLDER: &str = "reader";

/// Whoever looks at all stores has them for less than this.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// Who waits for a store looks so often whether it is free.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A shard that a server holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardOptions {
    /// Its number.
    pub id: ShardId,
    /// The first and the last slot of each of its ranges; none: it waits for some.
    pub slots: SlotRanges,
}

impl ShardOptions {
    /// What a server without a federation holds: one shard with all slots.
    pub fn only() -> Vec<Self> {
        vec![Self { id: ShardId::FIRST, slots: all_slots() }]
    }

    /// Where its store lies in the folder of the server.
    pub fn directory(&self, server: &Path) -> PathBuf {
        directory_of(server, self.id)
    }
}

/// The folders in that of a server where stores of shards may be: shard 1 first, then the others
/// that are there, by number.
pub fn stores_of_server(server: &Path) -> Vec<PathBuf> {
    let others = std::fs::read_dir(server.join(OTHERS_FOLDER)).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = others.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.retain(|number| *number != ShardId::FIRST.0);
    numbers.sort_unstable();
    std::iter::once(ShardId::FIRST).chain(numbers.into_iter().map(ShardId)).map(|id| directory_of(server, id)).collect()
}

fn directory_of(server: &Path, id: ShardId) -> PathBuf {
    match id {
        ShardId::FIRST => server.join(FIRST_FOLDER),
        ShardId(number) => server.join(OTHERS_FOLDER).join(number.to_string()),
    }
}

/// What stores are opened with.
pub(crate) struct Opening {
    /// The folder of the server.
    pub(crate) directory: PathBuf,
    /// For all stores together, as if there were one.
    pub(crate) settings: StoreSettings,
    /// Whether their keys are those of clients: then rows of all of them can be in one cache.
    pub(crate) has_clients: bool,
    pub(crate) local_slots: Arc<LocalSlots>,
    pub(crate) federation: Arc<Federation>,
    pub(crate) duties: Arc<ThreadDuties>,
    /// Is told when writers of any store are slowed or stopped, and when none are.
    pub(crate) note_stall: Arc<dyn Fn(bool) + Send + Sync>,
    /// The tables that may be open, of all stores, where that need not be bounded yet.
    pub(crate) max_tables: Option<u32>,
}

/// See the module.
pub(crate) struct Stores {
    opening: Opening,
    memory: Option<MemoryLimit>,
    rows: Option<SharedRows>,
    space: SharedSpace,
    stalled: Arc<AtomicUsize>,
    /// Whether no more than `max_tables` are held open from now on.
    are_tables_bounded: AtomicBool,
    /// The most that were open at a time: what is divided is divided by so many.
    most: AtomicUsize,
    all: RwLock<All>,
}

#[derive(Default)]
struct All {
    open: Vec<OpenShard>,
    /// Those that are to be closed, and that somebody still has.
    leaving: Vec<(ShardId, Arc<Store>)>,
    /// What those have done that are not open any more.
    closed: Done,
}

/// What stores have done.
#[derive(Clone, Default)]
struct Done {
    counters: Counters,
    values: Option<ValueLogProperties>,
    compression: Option<CompressionProperties>,
    dedup: Option<DedupProperties>,
}

impl Done {
    /// By a store that is about to be closed. Waits where its value log is busy.
    fn by(store: &Store) -> Self {
        Self {
            counters: store.counters(),
            values: store.value_log().map(ValueLogProperties::of_closed),
            compression: store.value_compression().map(CompressionProperties::of_closed),
            dedup: store.try_dedup().map(DedupProperties::of_closed),
        }
    }

    /// As it is now, where nothing has to be waited for.
    fn refresh(&mut self, store: &Store) {
        self.counters = store.counters();
        self.values = store.try_value_log().map(ValueLogProperties::of_closed).or(self.values);
    }

    fn add(&mut self, other: Self) {
        let Self { counters, values, compression, dedup } = other;
        self.counters += counters;
        self.values = sum(self.values.take().into_iter().chain(values));
        self.compression = sum(self.compression.take().into_iter().chain(compression));
        self.dedup = sum(self.dedup.take().into_iter().chain(dedup));
    }
}

/// What makes a store that of a primary whose shard has copies elsewhere.
pub(crate) struct Copied {
    /// All that changes in its folder is told to it, from the first change on.
    pub(crate) tap: Arc<dyn WriteTap>,
    /// The segments that it begins have numbers from here on.
    pub(crate) least_segment: u32,
    /// What replies wait for.
    pub(crate) gate: Arc<dyn CommitGate>,
    /// What jobs of it that run elsewhere know of its copies, where there may be some.
    pub(crate) primary: Option<Arc<dyn PrimaryCopy>>,
}

impl Stores {
    /// Opens the stores of these shards.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] of the first that cannot be opened; a shard that is there twice.
    pub(crate) fn open(opening: Opening, shards: &[ShardOptions]) -> Result<Arc<Self>> {
        let mut ids: Vec<ShardId> = shards.iter().map(|shard| shard.id).collect();
        ids.sort_unstable();
        if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::Configuration(format!("{} is held twice", twice[0])));
        }
        let settings = &opening.settings;
        let row_bytes = settings.row_cache_bytes.filter(|bytes| *bytes > 0 && opening.has_clients);
        let rows = row_bytes.map(|bytes| SharedRows::new(bytes, settings.separation.is_some(), layout::OWN_PREFIX));
        let stores = Self {
            memory: settings.memory_limit_bytes.map(MemoryLimit::new),
            rows,
            space: SharedSpace::default(),
            stalled: Arc::default(),
            are_tables_bounded: AtomicBool::new(settings.max_open_files.is_some()),
            most: AtomicUsize::new(shards.len()),
            all: RwLock::default(),
            opening,
        };
        let opened: Vec<Result<OpenShard>> = std::thread::scope(|scope| {
            let open = |shard: &ShardOptions| stores.open_one(shard, None);
            let (first, others) = match shards.split_first() {
                Some((first, others)) => (Some(first), others),
                None => (None, &[][..]),
            };
            let threads: Vec<_> = others
                .iter()
                .map(|shard| {
                    let work = move || open(shard);
                    // Where the system gives no thread they are opened one after the other.
                    std::thread::Builder::new().name("ecotone-open".into()).spawn_scoped(scope, work).map_err(|_| shard)
                })
                .collect();
            let first = first.map(open);
            let others = threads.into_iter().map(|thread| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(shard) => open(shard),
            });
            first.into_iter().chain(others).collect()
        });
        stores.all.write().open = opened.into_iter().collect::<Result<_>>()?;
        Ok(Arc::new(stores))
    }

    /// Opens the store of a shard.
    fn open_one(&self, shard: &ShardOptions, copied: Option<Copied>) -> Result<OpenShard> {
        let Opening { directory, settings, local_slots, federation, duties, note_stall, .. } = &self.opening;
        let directory = shard.directory(directory);
        if let Some(above) = directory.parent() {
            make_folder(above).map_err(|source| Error::Folder { path: above.to_path_buf(), source })?;
        }
        let primary = copied.as_ref().and_then(|copied| copied.primary.clone());
        let placed = match primary {
            Some(primary) => federation.store_offload_of(primary),
            None => federation.store_offload(),
        };
        let events = Events {
            placed: placed.clone(),
            note_stall: note_stall.clone(),
            is_stalled: AtomicBool::new(false),
            stalled: self.stalled.clone(),
        };
        let mut builder = Store::builder(&directory)
            .settings(share(settings, self.most.load(Ordering::Relaxed)))
            .space(self.space.clone())
            .offload(placed.offload())
            .local_slots(local_slots.clone())
            .duties(duties.clone())
            .events(Arc::new(events));
        if let Some(memory) = &self.memory {
            builder = builder.memory(memory.clone());
        }
        if let Some(rows) = &self.rows {
            builder = builder.rows(rows.clone());
        }
        let mut gate = None;
        if let Some(copied) = copied {
            builder = builder.tap(copied.tap).flush_on_open().least_segment(copied.least_segment);
            gate = Some(copied.gate);
        }
        let store = Arc::new(builder.open()?);
        Ok(OpenShard { id: shard.id, slots: shard.slots.clone(), store, gate })
    }

    /// Opens the store of one more shard while the server runs. It is given back, and not in the
    /// list yet.
    ///
    /// # Errors
    ///
    /// Those of an opening; it is open already.
    pub(crate) fn open_more(&self, shard: &ShardOptions) -> Result<OpenShard> {
        self.open_another(shard, None)
    }

    /// The same of a shard that has copies on other servers, of which this one has the primary.
    /// Nothing is left in logs that were there before.
    ///
    /// # Errors
    ///
    /// Those of an opening; it is open already.
    pub(crate) fn open_primary(&self, shard: &ShardOptions, copied: Copied) -> Result<OpenShard> {
        self.open_another(shard, Some(copied))
    }

    /// Opens the files of a copy, which replication writes, to be read. The store is no one of these:
    /// it counts nowhere, and is closed by whoever has it.
    ///
    /// # Errors
    ///
    /// Those of an opening: what is there may not be a whole store yet.
    pub(crate) fn open_follower(&self, id: ShardId) -> Result<Store> {
        let Opening { directory, settings, duties, .. } = &self.opening;
        let directory = directory_of(directory, id);
        // Rows and maps would show what was there before.
        let settings = StoreSettings {
            row_cache_bytes: None,
            mapped_read_bytes: 0,
            page_cache_bytes: None,
            ..share(settings, self.most.load(Ordering::Relaxed) + 1)
        };
        let beside = names::copy_directory(&directory).join(FOLLOWER_FOLDER);
        let mut builder = Store::builder(&directory).settings(settings).following(&beside).duties(duties.clone());
        if let Some(memory) = &self.memory {
            builder = builder.memory(memory.clone());
        }
        Ok(builder.open()?)
    }

    fn open_another(&self, shard: &ShardOptions, copied: Option<Copied>) -> Result<OpenShard> {
        let open = {
            let all = self.all.read();
            let is_leaving = all.leaving.iter().any(|(id, _)| *id == shard.id);
            if is_leaving || all.open.iter().any(|open| open.id == shard.id) {
                return Err(Error::Configuration(format!("{} is open already", shard.id)));
            }
            all.open.len() + all.leaving.len()
        };
        self.most.fetch_max(open + 1, Ordering::Relaxed);
        self.open_one(shard, copied)
    }

    /// One that was [opened](Self::open_more) is used from now on.
    pub(crate) fn add(&self, shard: OpenShard) {
        self.all.write().open.push(shard);
        if self.are_tables_bounded.load(Ordering::Relaxed) {
            self.bound_tables();
        }
    }

    /// The store of a shard, where it is open, held or not.
    pub(crate) fn of(&self, id: ShardId) -> Option<Arc<Store>> {
        let all = self.all.read();
        let open = all.open.iter().map(|open| (open.id, &open.store));
        let mut found = open.chain(all.leaving.iter().map(|(id, store)| (*id, store)));
        found.find(|(of, _)| *of == id).map(|(_, store)| store.clone())
    }

    /// Closes the store of a shard that nobody holds any more, once those have let it go who look at
    /// all of them. When this returns nobody here touches its folder, and another may have it.
    ///
    /// # Errors
    ///
    /// [`ShardError::InUse`] where somebody has it for too long: this may be called again then.
    /// Those of the store; it is closed then.
    pub(crate) fn close_one(&self, id: ShardId) -> Result<()> {
        let until = Instant::now() + CLOSE_WITHIN;
        let open = self.all.read().open.iter().find(|open| open.id == id).map(|open| open.store.clone());
        if let Some(store) = open {
            let mut done = Done::by(&store);
            let mut all = self.all.write();
            all.open.retain(|open| open.id != id);
            done.refresh(&store);
            all.closed.add(done);
            all.leaving.push((id, store));
        }
        loop {
            {
                let mut all = self.all.write();
                let place = all.leaving.iter().position(|(leaving, _)| *leaving == id);
                let (_, store) = all.leaving.swap_remove(place.ok_or(Error::Shard(ShardError::NotHeld(id)))?);
                match Arc::try_unwrap(store) {
                    Ok(store) => {
                        drop(all);
                        return Ok(store.close()?);
                    }
                    Err(store) => all.leaving.push((id, store)),
                }
            }
            if Instant::now() >= until {
                return Err(Error::Shard(ShardError::InUse(id)));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// All of them, with the slots that they had when they were opened.
    pub(crate) fn shards(&self) -> Vec<OpenShard> {
        self.all.read().open.clone()
    }

    /// All stores.
    pub(crate) fn list(&self) -> Vec<Arc<Store>> {
        self.all.read().open.iter().map(|shard| shard.store.clone()).collect()
    }

    /// The same, and what those have done that are not open any more.
    fn list_and_closed(&self) -> (Vec<Arc<Store>>, Done) {
        let all = self.all.read();
        (all.open.iter().map(|shard| shard.store.clone()).collect(), all.closed.clone())
    }

    /// The one where there is exactly one.
    pub(crate) fn only(&self) -> Option<Arc<Store>> {
        match &self.all.read().open[..] {
            [only] => Some(only.store.clone()),
            _ => None,
        }
    }

    /// The folder of the only store; else that of the server.
    pub(crate) fn directory(&self) -> PathBuf {
        self.only().map_or_else(|| self.opening.directory.clone(), |store| store.directory().to_path_buf())
    }

    /// The folder of the server.
    pub(crate) fn server_directory(&self) -> &Path {
        &self.opening.directory
    }

    /// The folder of shard 1, whether that is held or not.
    pub(crate) fn first_directory(&self) -> PathBuf {
        directory_of(&self.opening.directory, ShardId::FIRST)
    }

    /// The tables that may be open in all stores together, where they are not bounded yet.
    pub(crate) fn max_tables(&self) -> Option<u32> {
        self.opening.max_tables.filter(|_| !self.are_tables_bounded.load(Ordering::Relaxed))
    }

    /// No more tables are held open from now on than the process may have.
    pub(crate) fn bound_tables(&self) {
        let Some(most) = self.opening.max_tables.or(self.opening.settings.max_open_files) else { return };
        let stores = self.list();
        let each = per_store(most, stores.len());
        let bound = stores.iter().try_for_each(|store| store.bound_open_tables(each));
        self.are_tables_bounded.store(bound.is_ok(), Ordering::Relaxed);
        match bound {
            Ok(()) => info!(
                "no more than {most} tables are held open from now on, by the limit of the process (ulimit -n, LimitNOFILE)"
            ),
            Err(error) => {
                warn!(%error, "the tables that are held open cannot be bounded; it is tried again");
            }
        }
    }

    /// The state of all stores together.
    ///
    /// # Errors
    ///
    /// The first that a store tells of.
    pub(crate) fn properties(&self) -> std::result::Result<StoreProperties, ecotone_engine::Error> {
        let mut sum = StoreProperties::default();
        for store in self.list() {
            sum += store.properties()?;
        }
        sum.row_cache_bytes += self.rows.as_ref().map_or(0, |rows| rows.counts().bytes);
        Ok(sum)
    }

    /// What all of them have done.
    pub(crate) fn counters(&self) -> Counters {
        let (stores, closed) = self.list_and_closed();
        let mut sum = closed.counters;
        for store in stores {
            sum += store.counters();
        }
        if let Some(rows) = &self.rows {
            let counts = rows.counts();
            sum.keys_read += counts.hits;
            sum.row_cache_hits += counts.hits;
            sum.row_cache_misses += counts.misses;
        }
        sum
    }

    /// What all value logs hold.
    pub(crate) fn value_log(&self) -> Option<ValueLogProperties> {
        let (stores, closed) = self.list_and_closed();
        sum(stores.iter().filter_map(|store| store.value_log()).chain(closed.values))
    }

    /// The same without waiting; `None` also where one would have to be waited for.
    pub(crate) fn try_value_log(&self) -> Option<ValueLogProperties> {
        let (stores, closed) = self.list_and_closed();
        let all: Option<Vec<_>> = stores.iter().map(|store| store.try_value_log()).collect();
        sum(all?.into_iter().chain(closed.values))
    }

    /// How values are compressed.
    pub(crate) fn value_compression(&self) -> Option<CompressionProperties> {
        let (stores, closed) = self.list_and_closed();
        sum(stores.iter().filter_map(|store| store.value_compression()).chain(closed.compression))
    }

    /// What is known of duplicates without reading anything; `None` also where one store has not
    /// counted yet.
    pub(crate) fn try_dedup(&self) -> Option<DedupProperties> {
        let (stores, closed) = self.list_and_closed();
        let all: Option<Vec<_>> = stores.iter().map(|store| store.try_dedup()).collect();
        sum(all?.into_iter().chain(closed.dedup))
    }

    /// The same, counted where nobody has yet.
    pub(crate) fn cached_dedup(&self) -> Option<DedupProperties> {
        let (stores, closed) = self.list_and_closed();
        let all: Option<Vec<_>> = stores.iter().map(|store| store.cached_dedup()).collect();
        sum(all?.into_iter().chain(closed.dedup))
    }

    /// How much room there is, found out now: of the store that has least.
    pub(crate) fn free_space(&self) -> Option<FreeSpace> {
        least(self.list().iter().filter_map(|store| store.free_space()))
    }

    /// The same as the stores found it last.
    pub(crate) fn try_free_space(&self) -> Option<FreeSpace> {
        least(self.list().iter().filter_map(|store| store.try_free_space()))
    }

    /// Why writes to one of them fail.
    pub(crate) fn write_failure(&self) -> Option<String> {
        let mut failing = self.list().into_iter().filter_map(|store| store.write_failure());
        failing.next()
    }

    /// Closes all, side by side, once nobody else has any.
    ///
    /// # Errors
    ///
    /// The first of those of the stores; all are closed, or synced, by then.
    pub(crate) fn close(&self) -> Result<()> {
        let All { open, leaving, .. } = std::mem::take(&mut *self.all.write());
        let open = open.into_iter().map(|shard| shard.store).chain(leaving.into_iter().map(|(_, store)| store));
        std::thread::scope(|scope| {
            let closings: Vec<_> = open
                .map(|store| {
                    let close = move || close(store);
                    std::thread::Builder::new().name("ecotone-close".into()).spawn_scoped(scope, close)
                })
                .collect();
            let mut outcome = Ok(());
            for closing in closings {
                outcome = outcome.and(match closing {
                    Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                    // What it was given was dropped with it, which closes the store.
                    Err(source) => Err(Error::Thread { what: "the closing of a store", source }),
                });
            }
            outcome
        })
    }
}

fn close(store: Arc<Store>) -> Result<()> {
    match Arc::try_unwrap(store) {
        Ok(store) => Ok(store.close()?),
        // A request that took too long to wait for it. The process ends with it, so what was
        // acknowledged is to be durable now.
        Err(store) => {
            warn!(
                "a request is still under way: the store is left as it is, and its log is replayed at the next start"
            );
            Ok(store.sync()?)
        }
    }
}

/// Makes a folder, and its name durable: the store makes its own in it.
fn make_folder(path: &Path) -> std::io::Result<()> {
    if !path.is_dir() {
        std::fs::create_dir_all(path)?;
        if let Some(above) = path.parent().filter(|above| above.is_dir()) {
            std::fs::File::open(above)?.sync_all()?;
        }
    }
    Ok(())
}

/// The settings of one of `count` stores, where `settings` are for all of them. What stores share
/// they have whole.
fn share(settings: &StoreSettings, count: usize) -> StoreSettings {
    let count = count.max(1) as u64;
    StoreSettings {
        // Of the limit that is shared a store takes nothing else by itself.
        memory_limit_bytes: settings.memory_limit_bytes.map(|bytes| (bytes / count).max(MIN_LIMIT_BYTES)),
        max_open_files: settings.max_open_files.map(|most| per_store(most, count as usize)),
        page_cache_bytes: settings.page_cache_bytes.map(|bytes| bytes / count),
        mapped_bytes: settings.mapped_bytes / count,
        mapped_read_bytes: settings.mapped_read_bytes / count,
        ..settings.clone()
    }
}

fn sum<T: std::ops::AddAssign>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next()?;
    Some(all.fold(first, |mut sum, of| {
        sum += of;
        sum
    }))
}

/// Refusing comes before taking; then the least room.
fn least(all: impl Iterator<Item = FreeSpace>) -> Option<FreeSpace> {
    all.min_by_key(|room| (!room.writes_refused, room.spare_bytes()))
}

/// Passes a store's events on.
struct Events {
    placed: StoreOffload,
    note_stall: Arc<dyn Fn(bool) + Send + Sync>,
    is_stalled: AtomicBool,
    /// How many stores are.
    stalled: Arc<AtomicUsize>,
}

impl StoreEvents for Events {
    fn compaction_finished(&self, event: &CompactionFinished) {
        self.placed.compaction_finished(event);
    }

    fn stall_changed(&self, event: &StallChanged) {
        let is_stalled = event.to != StallCondition::Normal;
        let stalled = match (self.is_stalled.swap(is_stalled, Ordering::AcqRel), is_stalled) {
            (false, true) => self.stalled.fetch_add(1, Ordering::AcqRel) + 1,
            (true, false) => self.stalled.fetch_sub(1, Ordering::AcqRel) - 1,
            _ => self.stalled.load(Ordering::Acquire),
        };
        (self.note_stall)(stalled > 0);
    }
}

impl Drop for Events {
    /// A store that is closed while it is stalled holds nobody up any more.
    fn drop(&mut self) {
        if self.is_stalled.swap(false, Ordering::AcqRel) {
            let stalled = self.stalled.fetch_sub(1, Ordering::AcqRel) - 1;
            (self.note_stall)(stalled > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_shard_lies_where_a_store_alone_does() {
        let folder = |id| directory_of(Path::new("/srv"), ShardId(id));
        assert_eq!(
            [folder(1), folder(2), folder(17)],
            ["/srv/store", "/srv/shards/2", "/srv/shards/17"].map(PathBuf::from)
        );
        assert_eq!(ShardOptions::only()[0].directory(Path::new("/srv")), folder(1));
    }

    #[test]
    fn the_store_with_least_room_tells_of_room_and_one_that_refuses_before_it() {
        let room = |free_bytes, writes_refused| FreeSpace { free_bytes, writes_refused, ..FreeSpace::default() };
        assert_eq!(least([room(7, false), room(5, false), room(9, false)].into_iter()).unwrap().free_bytes, 5);
        assert!(least([room(7, false), room(9, true)].into_iter()).unwrap().writes_refused);
        assert!(least(std::iter::empty()).is_none());
    }

    #[test]
    fn what_stores_do_not_share_is_divided() {
        let settings = StoreSettings {
            max_open_files: Some(100),
            page_cache_bytes: Some(1000),
            mapped_bytes: 80,
            ..StoreSettings::default()
        };
        let quarter = share(&settings, 4);
        assert_eq!((quarter.max_open_files, quarter.page_cache_bytes, quarter.mapped_bytes), (Some(25), Some(250), 20));
        assert_eq!(share(&settings, 1), settings);
    }
}
