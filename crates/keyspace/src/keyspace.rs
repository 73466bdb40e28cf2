//! The keys of one store or several, and what all their users share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ecotone_engine::{Durability, Error as StoreError, Snapshot, Store, WriteOptions};

use crate::clock::Clock;
use crate::error::Blocking;
use crate::gate::{CommitGate, Level, Refused};
use crate::key_count::KeyCountEstimate;
use crate::latches::{LatchGuard, Latches};
use crate::layout;
use crate::memory::Memory;
use crate::ranks::Ranks;
use crate::reclaimable::ReclaimableCollections;
use crate::shards::{HeldShards, OpenShard, Shard, ShardError, ShardId, ShardSet, ShardTable, Shards, all_slots};
use crate::slot::{Slot, SlotSet};
use crate::slow_reads::SlowReads;
use crate::watch::Watches;

/// A store, and what replies wait for where its shard has copies elsewhere.
pub type GatedStore = (Arc<Store>, Option<Arc<dyn CommitGate>>);

/// The keys of the shards that a server holds, none or several. Shared by all threads; their stores
/// are used by nobody else meanwhile.
#[derive(Debug)]
pub struct Keyspace {
    pub(crate) shards: Shards,
    pub(crate) latches: Latches,
    pub(crate) watches: Watches,
    pub(crate) clock: Clock,
    pub(crate) reclaimable: ReclaimableCollections,
    pub(crate) reclaimed_collections: AtomicU64,
    pub(crate) slow_reads: SlowReads,
    pub(crate) memory: Arc<Memory>,
    pub(crate) ranks: Ranks,
    pub(crate) syncs_each_write: bool,
    pub(crate) unsynced: UnsyncedWrites,
    /// Whether the time is to be noted in all stores: a key was found gone whose time was over
    /// later than what was noted.
    found_gone: AtomicBool,
    /// The least time that a store has noted.
    noted_ms: AtomicU64,
}

/// The stores of a keyspace as they were, each at one moment.
#[derive(Default)]
pub struct KeyspaceSnapshot<'s> {
    stores: Vec<(&'s Shard, Snapshot<'s>)>,
}

impl std::fmt::Debug for KeyspaceSnapshot<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyspaceSnapshot").field("stores", &self.stores.len()).finish()
    }
}

impl<'s> KeyspaceSnapshot<'s> {
    /// That of one shard's store.
    pub(crate) fn of(&self, shard: &Shard) -> Option<&Snapshot<'s>> {
        self.stores.iter().find(|(of, _)| std::ptr::eq(*of, shard)).map(|(_, snapshot)| snapshot)
    }
}

impl Keyspace {
    /// The keys of `store`, which was opened for writing with `durability`: one shard with all
    /// slots.
    ///
    /// # Errors
    ///
    /// Those of a read; [`StoreError::WrongFormat`] where the store holds what no server wrote.
    pub fn open(store: Arc<Store>, durability: Durability) -> Result<Arc<Self>, StoreError> {
        let only = OpenShard { id: ShardId::FIRST, slots: all_slots(), store, gate: None };
        Self::open_shards(vec![only], durability).map_err(|error| match error {
            ShardError::Store(error) => error,
            other => unreachable!("one shard can have all slots: {other}"),
        })
    }

    /// The keys of these shards, whose stores were opened with `durability`.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); shards that cannot be held together.
    pub fn open_shards(shards: Vec<OpenShard>, durability: Durability) -> Result<Arc<Self>, ShardError> {
        let keyspace = Self::empty(durability, Clock::from(0), Arc::default());
        shards.into_iter().try_for_each(|shard| keyspace.add_shard(shard))?;
        Ok(Arc::new(keyspace))
    }

    /// One without shards.
    pub(crate) fn empty(durability: Durability, clock: Clock, memory: Arc<Memory>) -> Self {
        Self {
            shards: Shards::default(),
            latches: Latches::default(),
            watches: Watches::default(),
            reclaimable: ReclaimableCollections::default(),
            reclaimed_collections: AtomicU64::new(0),
            slow_reads: SlowReads::default(),
            memory,
            ranks: Ranks::default(),
            syncs_each_write: durability == Durability::Always,
            unsynced: UnsyncedWrites::default(),
            found_gone: AtomicBool::new(false),
            noted_ms: AtomicU64::new(u64::MAX),
            clock,
        }
    }

    /// Holds one shard more, whose slots no other has. Waits until nobody writes these slots; so no
    /// event loop may call it. Whoever sends clients here publishes that afterwards. A shard with a
    /// gate is added once the gate's clock limit is beyond what the [clock](Self::clock) shows: that
    /// never goes back.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); a shard that cannot be held beside the others. Nothing has changed
    /// then.
    pub fn add_shard(&self, shard: OpenShard) -> Result<(), ShardError> {
        // Before the time of any of its keys is looked at.
        self.note_gates(shard.gate.as_ref());
        let added = self.shards.add(shard, |slots| self.change_hands(slots));
        self.note_gates(None);
        let shard = added?;
        let noted_ms = shard.noted_ms.load(Ordering::Relaxed);
        self.noted_ms.fetch_min(noted_ms, Ordering::Relaxed);
        self.clock.show_at_least(noted_ms);
        Ok(())
    }

    /// Gives a shard these slots instead of those it has; those that it loses must have no keys.
    /// Waits as [`add_shard`](Self::add_shard) does; whoever sends clients here has told them before
    /// that the slots which go are not here any more.
    ///
    /// # Errors
    ///
    /// A shard that is not here, slots that another one has, or that have keys. Nothing has changed
    /// then.
    pub fn set_slots(&self, id: ShardId, slots: &[(u16, u16)]) -> Result<(), ShardError> {
        self.shards.set_slots(id, slots, |slots| self.latch(slots))?;
        self.note_gates(None);
        Ok(())
    }

    /// Holds a shard no more, with whatever is in it: no write to it is let through from now on, and
    /// those that were are committed. Waits as [`add_shard`](Self::add_shard) does, and should be
    /// told to clients before in the same way. Also where that was said before.
    ///
    /// # Errors
    ///
    /// A shard that is not held.
    pub fn give_up_shard(&self, id: ShardId) -> Result<(), ShardError> {
        self.shards.give_up(id, |slots| self.change_hands(slots))?;
        self.note_gates(None);
        Ok(())
    }

    /// [Gives a shard up](Self::give_up_shard), waits until nobody works with its store, but not
    /// longer than `within`, and gives the store: nobody here has it, or finds anything of what was
    /// in it, any more. Another store may be held as this shard from then on.
    ///
    /// # Errors
    ///
    /// A shard that is not held; [`ShardError::InUse`], after which this may be called again.
    pub fn take_shard(&self, id: ShardId, within: Duration) -> Result<Arc<Store>, ShardError> {
        self.give_up_shard(id)?;
        self.shards.take(id, within)
    }

    /// Takes the latches of slots whose keys will be others afterwards, and forgets what is known of
    /// those that are there: what is learnt under these latches is not learnt again before they are
    /// given back.
    fn change_hands(&self, slots: &[Slot]) -> Vec<LatchGuard<'_>> {
        let latched = self.latch(slots);
        let mut all = SlotSet::default();
        slots.iter().for_each(|slot| all.insert(*slot));
        self.ranks.forget_slots(&all);
        self.reclaimable.forget_slots(&all);
        self.slow_reads.forget_slots(&all);
        self.watches.touch_slots(&all);
        latched
    }

    /// After each change of the shards that are held, or before `coming` is the gate of one.
    fn note_gates(&self, coming: Option<&Arc<dyn CommitGate>>) {
        self.clock.limit_to(|| self.gates().into_iter().chain(coming.cloned()).collect());
    }

    /// The gates of the shards that are held.
    pub fn gates(&self) -> Vec<Arc<dyn CommitGate>> {
        self.shards.look(|newest| newest.all().filter_map(Shard::gate).cloned().collect())
    }

    /// Whether a shard that is held has copies on other servers.
    #[inline]
    pub fn has_gates(&self) -> bool {
        self.clock.is_limited()
    }

    /// Refuses what writes to these slots where a gate of theirs would refuse the reply by now,
    /// whatever comes: at `level`, or at its own.
    ///
    /// # Errors
    ///
    /// Why.
    pub fn check_gates(&self, slots: impl IntoIterator<Item = Slot>, level: Option<Level>) -> Result<(), Refused> {
        let newest = self.shards.now();
        let mut last = None;
        for slot in slots {
            let Some(shard) = newest.of(slot) else { continue };
            if last.replace(shard.index()) != Some(shard.index())
                && let Some(gate) = shard.gate()
            {
                if !gate.takes_writes() {
                    return Err(Refused::HandingOver);
                }
                gate.answerable(level.unwrap_or_else(|| gate.level()))?;
            }
        }
        Ok(())
    }

    /// Which epoch of its primaries the shard of `slot` is in, where it has copies.
    pub fn epoch_of(&self, slot: Slot) -> Option<u64> {
        self.shards.look(|newest| newest.of(slot).and_then(Shard::gate).map(|gate| gate.written().epoch))
    }

    fn latch(&self, slots: &[Slot]) -> Vec<LatchGuard<'_>> {
        slots.iter().map(|slot| LatchGuard::take(&self.latches, *slot)).collect()
    }

    /// Forgets what time it was in earlier lives of `store`, before it is opened as a keyspace: the
    /// system's clock counts again, also where it is behind. Keys that were given a time meanwhile
    /// live as much longer.
    ///
    /// # Errors
    ///
    /// Those of a write.
    pub fn forget_time(store: &Store) -> Result<(), StoreError> {
        store.delete(&layout::own("clock"))
    }

    /// The shards that are held now.
    pub fn held(&self) -> HeldShards {
        HeldShards(self.shards.now())
    }

    /// Whether no others are held now than were then.
    pub fn are_newest(&self, held: &HeldShards) -> bool {
        self.shards.are_newest(held)
    }

    /// Their stores.
    pub fn stores(&self) -> impl Iterator<Item = Arc<Store>> + Clone + use<> {
        self.shards.look(|newest| newest.all().map(|shard| shard.store().clone()).collect::<Vec<_>>()).into_iter()
    }

    /// The store, where there is exactly one: for what cannot be done with several.
    pub fn only_store(&self) -> Option<Arc<Store>> {
        let mut stores = self.stores();
        stores.next().filter(|_| stores.next().is_none())
    }

    /// The store of a shard that is held, and what replies wait for where it has copies elsewhere.
    pub fn store_of(&self, id: ShardId) -> Option<GatedStore> {
        let found = |shard: &Shard| (shard.store().clone(), shard.gate().cloned());
        self.shards.look(|newest| newest.all().find(|shard| shard.id() == id && shard.is_held()).map(found))
    }

    /// Whether this is the store of a shard that is held.
    pub fn has_store(&self, store: &Store) -> bool {
        self.shards.look(|newest| newest.all().any(|shard| std::ptr::eq(&**shard.store(), store)))
    }

    /// The slots that are held, as ranges of one shard each, ascending.
    pub fn held_slots(&self) -> Vec<(ShardId, u16, u16)> {
        let [first, last] = [Slot::FIRST, Slot::LAST];
        let runs = |newest: &ShardTable| {
            newest.runs(first, last).map(|(shard, first, last)| (shard.id(), first, last)).collect()
        };
        self.shards.look(runs)
    }

    /// Whether keys of these slots are in one store, so that one command may have them.
    pub fn are_together(&self, slots: impl IntoIterator<Item = Slot>) -> bool {
        self.shards.look(|newest| newest.are_together(slots))
    }

    /// Whether more than one shard is held: only then keys of two slots may be apart.
    #[inline]
    pub fn has_several(&self) -> bool {
        self.shards.held_count() > 1
    }

    /// Refuses what takes room where the store of one of these slots has none. A slot that is not
    /// held is refused when something is written to it.
    ///
    /// # Errors
    ///
    /// [`StoreError::OutOfSpace`].
    pub fn check_free_space(&self, slots: impl IntoIterator<Item = Slot>) -> Result<(), StoreError> {
        self.shards.now().check_free_space(slots)
    }

    /// Makes everything durable up to every write that was acknowledged before the call, in all
    /// stores.
    ///
    /// # Errors
    ///
    /// The first of those of the stores.
    pub fn sync(&self) -> Result<(), StoreError> {
        let held = self.held();
        sync_all(held.iter().map(|shard| &**shard.store()).collect())
    }

    /// The same for what [`has_unsynced`](Self::has_unsynced) tells of.
    ///
    /// # Errors
    ///
    /// The first of those of the stores.
    pub fn sync_unsynced(&self) -> Result<(), StoreError> {
        let all = self.shards.held_and_leaving();
        let is_unsynced = |shard: &&Arc<Shard>| shard.unsynced.load(Ordering::SeqCst) > 0;
        sync_all(all.iter().filter(is_unsynced).map(|shard| &**shard.store()).collect())
    }

    /// Whether what was read before this call may be lost with the power, though each write is to
    /// be synced before anybody is told of it: then a client is told after a
    /// [`sync_unsynced`](Self::sync_unsynced) that begins now.
    pub fn has_unsynced(&self) -> bool {
        self.unsynced.any()
    }

    /// Whether who has written to these shards should rest: see
    /// [`ecotone_engine::Store::throttle_delay`].
    pub fn throttled(&self, written: ShardSet) -> Option<Arc<Store>> {
        if written.is_empty() {
            return None;
        }
        self.shards.look(|newest| {
            let mut written = newest.all().filter(|shard| written.contains(shard.index())).map(Shard::store);
            written.find(|store| store.is_throttling()).cloned()
        })
    }

    /// Keys and elements that were written or removed since the stores were opened, those included
    /// that are not held any more.
    pub fn keys_written(&self) -> u64 {
        self.shards.keys_written()
    }

    /// The time by which keys expire.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The memory of those who use it.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// What is known of ranks in large collections.
    pub fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    /// Who watches which key.
    pub fn watches(&self) -> &Watches {
        &self.watches
    }

    /// Writes down what time it is in each store that clients have written since the last time, and
    /// in all of them where a key was found gone whose time was not over then: so that it is not
    /// earlier in the next life of the store. An idle store is left alone. Call it every
    /// [`CLOCK_PERSIST_INTERVAL`](crate::clock::CLOCK_PERSIST_INTERVAL).
    ///
    /// # Errors
    ///
    /// Those of a write, [`StoreError::WouldBlock`] among them where it may not wait; it is tried
    /// again by the next call.
    pub fn persist_clock(&self, blocking: Blocking) -> Result<(), StoreError> {
        let everywhere = self.found_gone.swap(false, Ordering::Relaxed);
        let now_ms = self.clock.now_ms();
        let mut outcome = Ok(());
        let held = self.held();
        for shard in held.iter().filter(|shard| shard.is_held()) {
            if !(shard.is_to_note.swap(false, Ordering::Relaxed) || everywhere) {
                continue;
            }
            let options = WriteOptions { no_wait: blocking == Blocking::Never, ..WriteOptions::default() };
            let noted = shard.store().put_opt(&layout::own("clock"), &now_ms.to_be_bytes(), options);
            match noted {
                Ok(()) => shard.noted_ms.store(now_ms, Ordering::Relaxed),
                Err(_) => shard.is_to_note.store(true, Ordering::Relaxed),
            }
            outcome = outcome.and(noted);
        }
        let noted = held.iter().map(|shard| shard.noted_ms.load(Ordering::Relaxed)).min();
        self.noted_ms.store(noted.unwrap_or(u64::MAX), Ordering::Relaxed);
        outcome
    }

    /// How many keys there are, as they were counted last; `None` before.
    pub fn cached_key_count(&self) -> Option<KeyCountEstimate> {
        let now_ms = self.clock.now_ms();
        self.shards.look(|newest| newest.all().map(|shard| shard.key_count.at(now_ms)).sum())
    }

    /// Counts the keys again where that is due. `goes_on` is asked again and again; `false` ends
    /// it, and so does that a shard is given up.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn refresh_key_count_if_due(&self, goes_on: impl Fn() -> bool) -> Result<(), StoreError> {
        self.held().iter().try_for_each(|shard| {
            shard.key_count.refresh_if_due(shard.store(), &self.clock, || goes_on() && shard.is_held())
        })
    }

    /// Whether a key with this time is there at `now_ms`, for a client to be told.
    #[inline]
    pub fn is_there(&self, expires_at_ms: Option<u64>, now_ms: u64) -> bool {
        let Some(at_ms) = expires_at_ms else { return true };
        let is_there = at_ms > now_ms;
        if !is_there && at_ms > self.noted_ms.load(Ordering::Relaxed) {
            self.found_gone.store(true, Ordering::Relaxed);
        }
        is_there
    }
}

/// Syncs stores side by side: each waits for the device.
fn sync_all(stores: Vec<&Store>) -> Result<(), StoreError> {
    let Some((last, others)) = stores.split_last() else { return Ok(()) };
    std::thread::scope(|scope| {
        let syncs: Vec<_> = others
            .iter()
            .map(|store| {
                let sync = || store.sync();
                // Where the system gives no thread this one does it.
                std::thread::Builder::new().name("ecotone-sync".into()).spawn_scoped(scope, sync).map_err(|_| *store)
            })
            .collect();
        let mut outcome = last.sync();
        for sync in syncs {
            let synced = match sync {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(store) => store.sync(),
            };
            outcome = outcome.and(synced);
        }
        outcome
    })
}

/// Writes that everybody can see and a power loss may still take. With a sync before each reply a
/// group is written, then synced with others, and then its clients are told. Who reads its keys
/// meanwhile must not be told either, until a sync that began later has ended.
#[derive(Debug, Default)]
pub(super) struct UnsyncedWrites(AtomicUsize);

/// One of these writes, until it is dropped: it is synced then, or has failed.
#[derive(Debug)]
pub struct Unsynced {
    keyspace: Arc<Keyspace>,
    /// What the stores are kept open by.
    table: Arc<ShardTable>,
    shards: ShardSet,
}

impl Unsynced {
    /// Before it can be seen: a write to these shards of a table.
    pub(super) fn begin(keyspace: &Arc<Keyspace>, table: &Arc<ShardTable>, shards: ShardSet) -> Self {
        for shard in shards.places().filter_map(|index| table.at(index)) {
            shard.unsynced.fetch_add(1, Ordering::SeqCst);
        }
        keyspace.unsynced.0.fetch_add(1, Ordering::SeqCst);
        Self { keyspace: keyspace.clone(), table: table.clone(), shards }
    }
}

impl UnsyncedWrites {
    /// Whether what was read before this call may be one of them.
    pub(super) fn any(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Unsynced {
    fn drop(&mut self) {
        self.keyspace.unsynced.0.fetch_sub(1, Ordering::SeqCst);
        for shard in self.shards.places().filter_map(|index| self.table.at(index)) {
            shard.unsynced.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl HeldShards {
    /// The stores of these slots as they are now; all of them where none is named.
    pub fn snapshot(&self, slots: impl IntoIterator<Item = Slot>) -> KeyspaceSnapshot<'_> {
        let mut named = ShardSet::default();
        let mut names_any = false;
        for slot in slots {
            names_any = true;
            self.0.of(slot).map(Shard::index).into_iter().for_each(|index| named.insert(index));
        }
        let is_meant = |shard: &&Shard| !names_any || named.contains(shard.index());
        KeyspaceSnapshot {
            stores: self.iter().filter(is_meant).map(|shard| (shard, shard.store().snapshot())).collect(),
        }
    }
}
