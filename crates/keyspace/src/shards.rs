//! The shards that a server holds: which slots each has, its store, and what is known of it.
//!
//! Every key of a store's begins with its slot (see [`crate::layout`]), so all that belongs to one
//! key of a user's is in one store. A table leads from a slot to its shard; with one shard all
//! entries of it are the same. A table does not change: with each change of shards another takes
//! its place.
//!
//! Who works with stores has a share of the table that was newest when the work began
//! ([`HeldShards`], and for commands [`Pin`]), and gives it back soon. So no lookup counts anything,
//! and whoever [takes a shard away](crate::Keyspace::take_shard) waits until the last table that
//! knows it is gone: then nobody has the store.
//!
//! Invariants:
//!
//! - A slot has one shard at most. It changes hands under its latch: who holds that, and looks at
//!   the newest table then, finds the same shard until it gives the latch back.
//! - A shard has its place among the others as long as any table knows it that may still be used;
//!   the place of one that was given up goes to the next that comes.
//! - A shard that keeps some of its slots gives away only those that have no keys.
//!
//! Bounds: [`MAX_LOCAL_SHARDS`] at a time, those included whose store is not free yet.
//!
//! Threads: any may look, and waits for nobody; of two changes one comes after the other.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ecotone_engine::{Direction, Error as StoreError, Store};
use parking_lot::{Mutex, RwLock};

use crate::gate::CommitGate;
use crate::id_allocator::IdAllocator;
use crate::key_count::KeyCountCache;
use crate::layout;
use crate::slot::{SLOTS, Slot};

/// Shards that a keyspace may hold at a time.
pub const MAX_LOCAL_SHARDS: usize = 128;

/// No shard here has the slot.
const UNHELD: u8 = u8::MAX;

/// Who waits for a store looks so often whether it is free.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How much of a foreign key an error shows.
const SHOWN_KEY_BYTES: usize = 64;

/// The number of a shard in its federation: never given to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u32);

impl ShardId {
    /// The shard that a store without a federation is.
    pub const FIRST: Self = Self(1);
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {}", self.0)
    }
}

/// The first and the last slot of each range that a shard has.
pub type SlotRanges = Vec<(u16, u16)>;

/// All slots.
pub fn all_slots() -> SlotRanges {
    vec![(0, SLOTS - 1)]
}

/// A shard with its open store, for a keyspace to hold.
#[derive(Debug, Clone)]
pub struct OpenShard {
    /// Its number.
    pub id: ShardId,
    /// Its slots.
    pub slots: SlotRanges,
    /// Its store, which was opened for writing and is used by nobody else.
    pub store: Arc<Store>,
    /// What replies wait for, where the shard has copies on other servers.
    pub gate: Option<Arc<dyn CommitGate>>,
}

/// Why a shard is not held, or has not the slots that were asked for.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// More than [`MAX_LOCAL_SHARDS`].
    #[error("a server holds {MAX_LOCAL_SHARDS} shards at most")]
    TooMany,
    /// It is held already.
    #[error("{0} is held already")]
    Held(ShardId),
    /// It is not held.
    #[error("{0} is not held here")]
    NotHeld(ShardId),
    /// It was given up, and somebody still works with its store.
    #[error("somebody still works with the store of {0}")]
    InUse(ShardId),
    /// A range that is none.
    #[error("{0}-{1} is no range of slots")]
    Range(u16, u16),
    /// A slot that another shard has.
    #[error("slot {0} has {1} already")]
    Taken(u16, ShardId),
    /// A slot with keys that the shard does not keep: they would be lost.
    #[error("slot {0} of {1} has keys; a shard that keeps other slots gives away empty ones only")]
    NotEmpty(u16, ShardId),
    /// What the store said.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// One shard, and what the keyspace knows of its store.
#[derive(Debug)]
pub struct Shard {
    id: ShardId,
    /// Its place among the shards of the keyspace, once it has one.
    index: usize,
    store: Arc<Store>,
    gate: Option<Arc<dyn CommitGate>>,
    is_held: AtomicBool,
    pub(crate) id_allocator: IdAllocator,
    pub(crate) key_count: KeyCountCache,
    /// Whether a group was committed since the time was noted.
    pub(crate) is_to_note: AtomicBool,
    /// The time that was noted last.
    pub(crate) noted_ms: AtomicU64,
    /// Writes that everybody can see and a power loss may still take.
    pub(crate) unsynced: AtomicUsize,
}

impl Shard {
    fn open(id: ShardId, store: Arc<Store>, gate: Option<Arc<dyn CommitGate>>) -> Result<Self, StoreError> {
        refuse_foreign_keys(&store)?;
        Ok(Self {
            id,
            index: 0,
            is_held: AtomicBool::new(true),
            id_allocator: IdAllocator::of(&store)?,
            key_count: KeyCountCache::default(),
            is_to_note: AtomicBool::new(false),
            noted_ms: AtomicU64::new(layout::read_own(&store, "clock")?.unwrap_or(0)),
            unsynced: AtomicUsize::new(0),
            store,
            gate,
        })
    }

    /// Its number.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// Its store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// What replies wait for, where it has copies on other servers.
    #[inline]
    pub fn gate(&self) -> Option<&Arc<dyn CommitGate>> {
        self.gate.as_ref()
    }

    #[inline]
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Whether it has not been given up: long work on its store that nobody waits for ends then.
    pub fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }
}

/// Some of the shards of a keyspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShardSet(u128);

impl ShardSet {
    /// All of them.
    pub const ALL: Self = Self(u128::MAX);

    /// This one.
    #[inline]
    pub(crate) const fn of(index: usize) -> Self {
        Self(1 << index)
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are not in the other one.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether any is in both.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    #[inline]
    pub(crate) fn insert(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    #[inline]
    pub(crate) const fn contains(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }

    /// The one where there is exactly one.
    pub(crate) const fn only(self) -> Option<usize> {
        if self.0.is_power_of_two() { Some(self.0.trailing_zeros() as usize) } else { None }
    }

    /// Their places, ascending.
    pub(crate) fn places(self) -> impl Iterator<Item = usize> {
        (0..MAX_LOCAL_SHARDS).filter(move |index| self.contains(*index))
    }
}

/// Slots in a row that one shard has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    /// The shard's place.
    index: u8,
    first: u16,
    last: u16,
}

/// The shards of a keyspace at one moment.
#[derive(Debug)]
pub(crate) struct ShardTable {
    /// Counts changes.
    version: u64,
    /// By slot: the place of its shard, or [`UNHELD`].
    by_slot: Box<[u8]>,
    /// By place.
    places: Vec<Option<Arc<Shard>>>,
    /// What `by_slot` says, as runs of slots of one shard, ascending.
    runs: Vec<Run>,
}

impl Default for ShardTable {
    fn default() -> Self {
        Self { version: 0, by_slot: vec![UNHELD; usize::from(SLOTS)].into(), places: Vec::new(), runs: Vec::new() }
    }
}

impl ShardTable {
    /// The shard that has `slot`.
    #[inline]
    pub(crate) fn of(&self, slot: Slot) -> Option<&Shard> {
        self.at(usize::from(self.by_slot[usize::from(slot.number())]))
    }

    /// The same of what stands in a store under `stored`.
    #[inline]
    pub(crate) fn of_stored(&self, stored: &[u8]) -> Option<&Shard> {
        self.of(layout::slot_of(stored)?)
    }

    /// The one at this place.
    #[inline]
    pub(crate) fn at(&self, index: usize) -> Option<&Shard> {
        self.places.get(index)?.as_deref()
    }

    /// All of them, by their places.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Shard> + Clone {
        self.places.iter().flatten().map(|shard| &**shard)
    }

    /// Those that have slots.
    pub(crate) fn with_slots(&self) -> ShardSet {
        let mut all = ShardSet::default();
        self.runs.iter().for_each(|run| all.insert(usize::from(run.index)));
        all
    }

    /// The slots from `first` to `last` that are held, in their order, as runs of slots of one
    /// shard.
    pub(crate) fn runs(&self, first: Slot, last: Slot) -> impl Iterator<Item = (&Shard, u16, u16)> {
        let (first, last) = (first.number(), last.number());
        let begin = self.runs.partition_point(|run| run.last < first);
        let within = self.runs[begin..].iter().take_while(move |run| run.first <= last);
        within.filter_map(move |run| Some((self.at(usize::from(run.index))?, run.first.max(first), run.last.min(last))))
    }

    /// Whether keys of these slots are in one store.
    pub(crate) fn are_together(&self, slots: impl IntoIterator<Item = Slot>) -> bool {
        let mut slots = slots.into_iter().map(|slot| self.of(slot).map(Shard::index));
        let first = slots.next();
        first.is_none_or(|first| slots.all(|other| other == first))
    }

    /// Refuses what takes room where the store of one of these slots has none.
    pub(crate) fn check_free_space(&self, slots: impl IntoIterator<Item = Slot>) -> Result<(), StoreError> {
        let mut last = None;
        for slot in slots {
            let Some(shard) = self.of(slot) else { continue };
            if last.replace(shard.index()) != Some(shard.index()) {
                shard.store().check_free_space()?;
            }
        }
        Ok(())
    }

    /// The slots of a shard.
    fn slots_of(&self, index: usize) -> impl Iterator<Item = Slot> {
        Slot::all().filter(move |slot| usize::from(self.by_slot[usize::from(slot.number())]) == index)
    }

    fn find(&self, id: ShardId) -> Option<&Arc<Shard>> {
        self.places.iter().flatten().find(|shard| shard.id == id)
    }

    /// The slots of `ranges`, ascending, of which none has another shard than that at `own`.
    fn free_slots(&self, ranges: &[(u16, u16)], own: Option<usize>) -> Result<Vec<Slot>, ShardError> {
        let mut slots = Vec::new();
        for &(first, last) in ranges {
            let is_range = first <= last && last < SLOTS;
            let of_range = (first..=last).filter_map(Slot::new);
            slots.extend(is_range.then_some(of_range).ok_or(ShardError::Range(first, last))?);
        }
        slots.sort_unstable();
        slots.dedup();
        let taken = slots.iter().find_map(|slot| {
            self.of(*slot).filter(|shard| Some(shard.index) != own).map(|shard| (slot.number(), shard.id))
        });
        taken.map_or(Ok(slots), |(slot, shard)| Err(ShardError::Taken(slot, shard)))
    }

    /// The table that comes next, with these changes: to each of the slots the place that stands
    /// with it.
    fn changed(&self, slots: &[Slot], to: u8, change: impl FnOnce(&mut Vec<Option<Arc<Shard>>>)) -> Self {
        let (mut by_slot, mut places) = (self.by_slot.clone(), self.places.clone());
        slots.iter().for_each(|slot| by_slot[usize::from(slot.number())] = to);
        change(&mut places);
        let mut runs: Vec<Run> = Vec::new();
        for (slot, index) in (0..SLOTS).zip(&by_slot) {
            match runs.last_mut() {
                _ if *index == UNHELD => {}
                Some(run) if run.index == *index && run.last + 1 == slot => run.last = slot,
                _ => runs.push(Run { index: *index, first: slot, last: slot }),
            }
        }
        Self { version: self.version + 1, by_slot, places, runs }
    }
}

/// The shards of a keyspace as they were at one moment. Their stores stay open as long as this
/// lives, so it is to be given back soon.
#[derive(Debug, Clone)]
pub struct HeldShards(pub(crate) Arc<ShardTable>);

impl HeldShards {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Shard> + Clone {
        self.0.all()
    }
}

/// The share of a table that a group of commands has, and takes and gives back again and again.
#[derive(Debug, Default)]
pub(crate) struct Pin {
    held: Option<Arc<ShardTable>>,
    /// The one that was had last: most often it is still the newest.
    last: Weak<ShardTable>,
}

impl Pin {
    /// The newest table, which stays here from now on.
    #[inline]
    pub(crate) fn newest(&mut self, shards: &Shards) -> &Arc<ShardTable> {
        let version = shards.version.load(Ordering::Acquire);
        let held = self.held.take().filter(|table| table.version == version);
        let table = held.unwrap_or_else(|| match self.last.upgrade().filter(|table| table.version == version) {
            Some(table) => table,
            None => {
                let table = shards.now();
                self.last = Arc::downgrade(&table);
                table
            }
        });
        self.held.insert(table)
    }

    /// The one that is here.
    #[inline]
    pub(crate) fn held(&self) -> Option<&Arc<ShardTable>> {
        self.held.as_ref()
    }

    /// It is not needed any more.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.held = None;
    }
}

/// The shards of a keyspace.
#[derive(Debug, Default)]
pub(crate) struct Shards {
    newest: RwLock<Arc<ShardTable>>,
    /// That of the newest table. Set behind it: who sees the number finds the table.
    version: AtomicU64,
    /// How many are held.
    held: AtomicUsize,
    leaving: Mutex<Leaving>,
    /// Held by who changes them.
    changing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Leaving {
    /// Those that were given up, until their stores are free.
    shards: Vec<Arc<Shard>>,
    /// Keys that were written to stores which were taken since.
    keys_written: u64,
}

impl Shards {
    /// Whether nothing has changed since these were.
    #[inline]
    pub(crate) fn are_newest(&self, held: &HeldShards) -> bool {
        held.0.version == self.version.load(Ordering::Acquire)
    }

    /// The newest table.
    pub(crate) fn now(&self) -> Arc<ShardTable> {
        self.newest.read().clone()
    }

    /// What `look` finds in the newest table, without a share of it. It must be short, and wait for
    /// nothing.
    #[inline]
    pub(crate) fn look<T>(&self, look: impl FnOnce(&ShardTable) -> T) -> T {
        look(&self.newest.read())
    }

    /// Whether `shard` has `slot`, whose latch is held, now.
    pub(crate) fn has(&self, shard: &Shard, slot: Slot) -> bool {
        self.look(|newest| newest.of(slot).is_some_and(|of| std::ptr::eq(of, shard)))
    }

    /// How many are held.
    pub(crate) fn held_count(&self) -> usize {
        self.held.load(Ordering::Acquire)
    }

    /// Those that are held, and those whose stores are not free yet.
    pub(crate) fn held_and_leaving(&self) -> Vec<Arc<Shard>> {
        self.with_leaving(&self.leaving.lock())
    }

    fn with_leaving(&self, leaving: &Leaving) -> Vec<Arc<Shard>> {
        // One that goes over is among both for a moment, and never in neither.
        let mut all: Vec<_> = self.look(|newest| newest.places.iter().flatten().cloned().collect());
        for shard in &leaving.shards {
            if !all.iter().any(|held| Arc::ptr_eq(held, shard)) {
                all.push(shard.clone());
            }
        }
        all
    }

    /// Keys and elements that were written or removed in all stores that were ever held.
    pub(crate) fn keys_written(&self) -> u64 {
        let leaving = self.leaving.lock();
        let all = self.with_leaving(&leaving);
        leaving.keys_written + all.iter().map(|shard| shard.store.counters().keys_written).sum::<u64>()
    }

    fn publish(&self, table: ShardTable) {
        let (version, held) = (table.version, table.all().count());
        // What goes with the former one goes outside of the lock.
        let former = std::mem::replace(&mut *self.newest.write(), Arc::new(table));
        self.held.store(held, Ordering::Release);
        self.version.store(version, Ordering::Release);
        drop(former);
    }

    /// Holds one more. `latched` is called with the slots that change hands, and holds their
    /// latches until what it gives is dropped.
    pub(crate) fn add<L>(
        &self,
        shard: OpenShard,
        latched: impl FnOnce(&[Slot]) -> L,
    ) -> Result<Arc<Shard>, ShardError> {
        let OpenShard { id, slots, store, gate } = shard;
        // Before the lock: whoever gives another one up is not to wait for what is read here.
        let mut shard = Shard::open(id, store, gate)?;
        let _changing = self.changing.lock();
        let now = self.now();
        shard.index = {
            let leaving = self.leaving.lock();
            if now.find(id).is_some() || leaving.shards.iter().any(|leaving| leaving.id == id) {
                return Err(ShardError::Held(id));
            }
            let is_free =
                |index: &usize| now.at(*index).is_none() && leaving.shards.iter().all(|it| it.index != *index);
            (0..MAX_LOCAL_SHARDS).find(is_free).ok_or(ShardError::TooMany)?
        };
        let slots = now.free_slots(&slots, None)?;
        let index = shard.index;
        let shard = Arc::new(shard);
        let _latched = latched(&slots);
        self.publish(now.changed(&slots, index as u8, |places| {
            places.resize(places.len().max(index + 1), None);
            places[index] = Some(shard.clone());
        }));
        Ok(shard)
    }

    /// Gives a shard these slots instead of those it has.
    pub(crate) fn set_slots<L>(
        &self,
        id: ShardId,
        slots: &[(u16, u16)],
        latched: impl FnOnce(&[Slot]) -> L,
    ) -> Result<(), ShardError> {
        let _changing = self.changing.lock();
        let now = self.now();
        let shard = now.find(id).ok_or(ShardError::NotHeld(id))?;
        let after = now.free_slots(slots, Some(shard.index))?;
        let before: Vec<Slot> = now.slots_of(shard.index).collect();
        let is_in = |slots: &[Slot], slot: &Slot| slots.binary_search(slot).is_ok();
        let gone: Vec<Slot> = before.iter().filter(|slot| !is_in(&after, slot)).copied().collect();
        let come: Vec<Slot> = after.iter().filter(|slot| !is_in(&before, slot)).copied().collect();
        let mut changing = [gone.as_slice(), come.as_slice()].concat();
        changing.sort_unstable();
        let _latched = latched(&changing);
        for slot in &gone {
            if has_any(&shard.store, *slot)? {
                return Err(ShardError::NotEmpty(slot.number(), id));
            }
        }
        let without = now.changed(&gone, UNHELD, |_| ());
        let mut with = without.changed(&come, shard.index as u8, |_| ());
        with.version = now.version + 1;
        self.publish(with);
        Ok(())
    }

    /// Holds a shard no more: no table from now on knows it. Its store is free once nobody has an
    /// older one. Also where that was said before.
    pub(crate) fn give_up<L>(&self, id: ShardId, latched: impl FnOnce(&[Slot]) -> L) -> Result<(), ShardError> {
        let _changing = self.changing.lock();
        let now = self.now();
        let Some(shard) = now.find(id) else {
            let is_leaving = self.leaving.lock().shards.iter().any(|leaving| leaving.id == id);
            return is_leaving.then_some(()).ok_or(ShardError::NotHeld(id));
        };
        let slots: Vec<Slot> = now.slots_of(shard.index).collect();
        let _latched = latched(&slots);
        shard.is_held.store(false, Ordering::Release);
        // Before no table has it: whoever syncs all that is not synced meets it in either place.
        self.leaving.lock().shards.push(shard.clone());
        self.publish(now.changed(&slots, UNHELD, |places| places[shard.index] = None));
        // What lookups find that are under way is not kept.
        shard.store.give_rows_up(true);
        Ok(())
    }

    /// The store of a shard that was given up, once nobody works with it.
    ///
    /// # Errors
    ///
    /// [`ShardError::InUse`] where somebody does for longer than `within`: it can be asked for
    /// again.
    pub(crate) fn take(&self, id: ShardId, within: Duration) -> Result<Arc<Store>, ShardError> {
        let until = Instant::now() + within;
        loop {
            {
                let mut leaving = self.leaving.lock();
                let place = leaving.shards.iter().position(|shard| shard.id == id).ok_or(ShardError::NotHeld(id))?;
                match Arc::try_unwrap(leaving.shards.swap_remove(place)) {
                    Ok(shard) => {
                        leaving.keys_written += shard.store.counters().keys_written;
                        return Ok(shard.store);
                    }
                    Err(shard) => leaving.shards.push(shard),
                }
            }
            if Instant::now() >= until {
                return Err(ShardError::InUse(id));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Whether a store has anything of a slot.
fn has_any(store: &Store, slot: Slot) -> Result<bool, StoreError> {
    for range in layout::everything_of_slot(slot) {
        let mut scan = store.scan(range.start.as_slice()..range.end.as_slice(), Direction::Forward, None)?;
        if scan.next_key()?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Looks at the first and the last key: the keyspace's own stand together, so what others wrote is
/// at one end or the other.
fn refuse_foreign_keys(store: &Store) -> Result<(), StoreError> {
    for direction in [Direction::Forward, Direction::Reverse] {
        let mut scan = store.scan(.., direction, None)?;
        let entry = match scan.next_entry() {
            // One damaged value keeps nobody from the others: who reads it is told.
            Err(StoreError::Corrupt { .. }) => continue,
            entry => entry?,
        };
        let Some(entry) = entry else { return Ok(()) };
        if !layout::is_known(entry.key) {
            let shown = &entry.key[..entry.key.len().min(SHOWN_KEY_BYTES)];
            return Err(StoreError::WrongFormat {
                directory: store.directory().to_path_buf(),
                reason: format!(
                    "it holds the key \"{}\", which was not written for clients but by a workload or a program of its own; serve \
                     clients from another folder, or this one without clients (`ecotone serve --clients off`)",
                    shown.escape_ascii()
                ),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_into_it() {
        let mut set = ShardSet::default();
        assert!(set.is_empty() && set.only().is_none());
        set.insert(127);
        assert_eq!((set.only(), set.contains(127), set.contains(0)), (Some(127), true, false));
        set = set.union(ShardSet::of(3));
        assert_eq!(set.places().collect::<Vec<_>>(), [3, 127]);
        assert_eq!(set.only(), None);
        assert_eq!(set.without(ShardSet::of(127)), ShardSet::of(3));
        assert!(set.meets(ShardSet::of(3)) && !set.meets(ShardSet::of(4)) && set.meets(ShardSet::ALL));
    }
}
