//! The shards that a server holds: which slots each has, its store, and what is known of it.
//!
//! Every key of a store's begins with its slot (see [`crate::layout`]), so all that belongs to one
//! key of a user's is in one store. A table leads from a slot to its shard; with one shard all
//! entries of it are the same.
//!
//! Invariants:
//!
//! - A slot has one shard at most. It changes hands under its latch: who holds that finds the same
//!   shard until it gives the latch back.
//! - A shard that is here once stays until the keyspace goes, since lookups without a latch may
//!   still read its store. One that was [dropped](crate::Keyspace::drop_shard) has no slots, and
//!   nobody counts it or works for it any more; its store is idle.
//! - A shard that keeps some of its slots gives away only those that have no keys.
//!
//! Bounds: [`MAX_LOCAL_SHARDS`] in one life of a keyspace, dropped ones included.
//!
//! Threads: any may look, and waits for nobody; of two changes one comes after the other.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use ecotone_engine::{Direction, Error as StoreError, Store};
use parking_lot::{Mutex, RwLock};

use crate::id_allocator::IdAllocator;
use crate::key_count::KeyCountCache;
use crate::layout;
use crate::slot::{SLOTS, Slot};

/// Shards that a keyspace may hold, those it has dropped included.
pub const MAX_LOCAL_SHARDS: usize = 128;

/// No shard here has the slot.
const UNHELD: u8 = u8::MAX;

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
}

/// Why a shard is not held, or has not the slots that were asked for.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// More than [`MAX_LOCAL_SHARDS`].
    #[error("a server holds {MAX_LOCAL_SHARDS} shards at most, dropped ones included until its next start")]
    TooMany,
    /// It is held already.
    #[error("{0} is held already")]
    Held(ShardId),
    /// It is not held.
    #[error("{0} is not held here")]
    NotHeld(ShardId),
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
    /// Its place among the shards of the keyspace.
    index: usize,
    store: Arc<Store>,
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
    fn open(index: usize, id: ShardId, store: Arc<Store>) -> Result<Self, StoreError> {
        refuse_foreign_keys(&store)?;
        Ok(Self {
            id,
            index,
            is_held: AtomicBool::new(true),
            id_allocator: IdAllocator::of(&store)?,
            key_count: KeyCountCache::default(),
            is_to_note: AtomicBool::new(false),
            noted_ms: AtomicU64::new(layout::read_own(&store, "clock")?.unwrap_or(0)),
            unsynced: AtomicUsize::new(0),
            store,
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

    #[inline]
    pub(crate) fn index(&self) -> usize {
        self.index
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

/// The shards of a keyspace.
#[derive(Debug)]
pub(crate) struct Shards {
    /// By slot: the place of its shard, or [`UNHELD`].
    by_slot: Box<[AtomicU8]>,
    /// In the order in which they came: those that are set are the first ones.
    all: Box<[OnceLock<Shard>]>,
    /// How many are held.
    held: AtomicUsize,
    /// What `by_slot` says, as runs of slots of one shard, ascending.
    runs: RwLock<Arc<[Run]>>,
    /// Held by who changes them.
    changing: Mutex<()>,
}

impl Default for Shards {
    fn default() -> Self {
        Self {
            by_slot: (0..SLOTS).map(|_| AtomicU8::new(UNHELD)).collect(),
            all: (0..MAX_LOCAL_SHARDS).map(|_| OnceLock::new()).collect(),
            held: AtomicUsize::new(0),
            runs: RwLock::default(),
            changing: Mutex::new(()),
        }
    }
}

impl Shards {
    /// The shard that has `slot`.
    #[inline]
    pub(crate) fn of(&self, slot: Slot) -> Option<&Shard> {
        let index = self.by_slot[usize::from(slot.number())].load(Ordering::Acquire);
        self.all.get(usize::from(index)).and_then(OnceLock::get)
    }

    /// The same of what stands in a store under `stored`.
    #[inline]
    pub(crate) fn of_stored(&self, stored: &[u8]) -> Option<&Shard> {
        self.of(layout::slot_of(stored)?)
    }

    /// The one at this place.
    pub(crate) fn at(&self, index: usize) -> Option<&Shard> {
        self.all.get(index).and_then(OnceLock::get)
    }

    /// All that are held, in the order in which they came.
    pub(crate) fn held(&self) -> impl Iterator<Item = &Shard> + Clone {
        self.all.iter().map_while(OnceLock::get).filter(|shard| shard.is_held.load(Ordering::Acquire))
    }

    /// How many those are.
    pub(crate) fn held_count(&self) -> usize {
        self.held.load(Ordering::Acquire)
    }

    /// The slots from `first` to `last` that are held, in their order, as runs of slots of one
    /// shard.
    pub(crate) fn runs(&self, first: Slot, last: Slot) -> impl Iterator<Item = (&Shard, u16, u16)> {
        let runs = self.runs.read().clone();
        let (first, last) = (first.number(), last.number());
        let begin = runs.partition_point(|run| run.last < first);
        let within = (begin..runs.len()).map(move |place| runs[place]).take_while(move |run| run.first <= last);
        within.filter_map(move |run| Some((self.at(usize::from(run.index))?, run.first.max(first), run.last.min(last))))
    }

    /// After each change of `by_slot`.
    fn note_runs(&self) {
        let mut runs: Vec<Run> = Vec::new();
        for (slot, index) in (0..SLOTS).zip(&self.by_slot) {
            let index = index.load(Ordering::Acquire);
            match runs.last_mut() {
                _ if index == UNHELD => {}
                Some(run) if run.index == index && run.last + 1 == slot => run.last = slot,
                _ => runs.push(Run { index, first: slot, last: slot }),
            }
        }
        *self.runs.write() = runs.into();
    }

    /// The slots of a shard.
    fn slots_of(&self, index: usize) -> impl Iterator<Item = Slot> {
        Slot::all()
            .filter(move |slot| usize::from(self.by_slot[usize::from(slot.number())].load(Ordering::Acquire)) == index)
    }

    fn find(&self, id: ShardId) -> Option<&Shard> {
        self.all.iter().map_while(OnceLock::get).find(|shard| shard.id == id)
    }

    /// Holds one more. `latched` is called with the slots that change hands, and holds their
    /// latches until what it gives is dropped.
    pub(crate) fn add<L>(&self, shard: OpenShard, latched: impl FnOnce(&[Slot]) -> L) -> Result<&Shard, ShardError> {
        let _changing = self.changing.lock();
        let OpenShard { id, slots, store } = shard;
        if self.find(id).is_some() {
            return Err(ShardError::Held(id));
        }
        let slots = self.free_slots(&slots, None)?;
        let index = self.all.iter().position(|place| place.get().is_none()).ok_or(ShardError::TooMany)?;
        let shard = Shard::open(index, id, store)?;
        let _latched = latched(&slots);
        let shard = self.all[index].get_or_init(|| shard);
        self.held.fetch_add(1, Ordering::AcqRel);
        self.give(&slots, index);
        Ok(shard)
    }

    /// Gives a shard these slots instead of those it has. One that was dropped is held again.
    pub(crate) fn set_slots<L>(
        &self,
        id: ShardId,
        slots: &[(u16, u16)],
        latched: impl FnOnce(&[Slot]) -> L,
    ) -> Result<(), ShardError> {
        let _changing = self.changing.lock();
        let shard = self.find(id).ok_or(ShardError::NotHeld(id))?;
        let after = self.free_slots(slots, Some(shard.index))?;
        let before: Vec<Slot> = self.slots_of(shard.index).collect();
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
        self.take_away(&gone);
        shard.store.give_rows_up(false);
        self.give(&come, shard.index);
        if !shard.is_held.swap(true, Ordering::AcqRel) {
            self.held.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Holds a shard no more, with all that is in it.
    pub(crate) fn drop_shard<L>(&self, id: ShardId, latched: impl FnOnce(&[Slot]) -> L) -> Result<&Shard, ShardError> {
        let _changing = self.changing.lock();
        let is_held = |shard: &&Shard| shard.is_held.load(Ordering::Acquire);
        let shard = self.find(id).filter(is_held).ok_or(ShardError::NotHeld(id))?;
        let slots: Vec<Slot> = self.slots_of(shard.index).collect();
        let _latched = latched(&slots);
        self.take_away(&slots);
        shard.is_held.store(false, Ordering::Release);
        shard.store.give_rows_up(true);
        self.held.fetch_sub(1, Ordering::AcqRel);
        Ok(shard)
    }

    fn give(&self, slots: &[Slot], index: usize) {
        for slot in slots {
            self.by_slot[usize::from(slot.number())].store(index as u8, Ordering::Release);
        }
        self.note_runs();
    }

    fn take_away(&self, slots: &[Slot]) {
        for slot in slots {
            self.by_slot[usize::from(slot.number())].store(UNHELD, Ordering::Release);
        }
        self.note_runs();
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
