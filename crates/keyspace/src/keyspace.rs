//! The keys of one store, and what all its users share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use ecotone_engine::{Direction, Durability, Error as StoreError, Store, WriteOptions};

use crate::clock::Clock;
use crate::error::Blocking;
use crate::id_allocator::IdAllocator;
use crate::key_count::{KeyCountCache, KeyCountEstimate};
use crate::latches::Latches;
use crate::layout;
use crate::memory::Memory;
use crate::ranks::Ranks;
use crate::reclaimable::ReclaimableCollections;
use crate::slow_reads::SlowReads;
use crate::watch::Watches;

/// How much of a foreign key an error shows.
const SHOWN_KEY_BYTES: usize = 64;

/// The keys of one store. Shared by all threads; the store is used by nobody else meanwhile.
#[derive(Debug)]
pub struct Keyspace {
    pub(crate) store: Arc<Store>,
    pub(crate) latches: Latches,
    pub(crate) watches: Watches,
    pub(crate) clock: Clock,
    pub(crate) id_allocator: IdAllocator,
    pub(crate) reclaimable: ReclaimableCollections,
    pub(crate) reclaimed_collections: AtomicU64,
    pub(crate) slow_reads: SlowReads,
    pub(crate) memory: Arc<Memory>,
    pub(crate) ranks: Ranks,
    pub(crate) syncs_each_write: bool,
    pub(crate) unsynced: UnsyncedWrites,
    /// Whether the time is to be noted: a group was committed since it was, or a key was found gone
    /// whose time was over later.
    pub(crate) is_to_note: AtomicBool,
    /// The time that was noted last.
    pub(crate) noted_ms: AtomicU64,
    pub(crate) key_count: KeyCountCache,
}

impl Keyspace {
    /// The keys of `store`, which was opened for writing with `durability`.
    ///
    /// # Errors
    ///
    /// Those of a read; [`StoreError::WrongFormat`] where the store holds what no server wrote.
    pub fn open(store: Arc<Store>, durability: Durability) -> Result<Arc<Self>, StoreError> {
        refuse_foreign_keys(&store)?;
        let noted_ms = layout::read_own(&store, "clock")?.unwrap_or(0);
        Ok(Arc::new(Self {
            latches: Latches::default(),
            watches: Watches::default(),
            id_allocator: IdAllocator::of(&store)?,
            reclaimable: ReclaimableCollections::default(),
            reclaimed_collections: AtomicU64::new(0),
            slow_reads: SlowReads::default(),
            memory: Arc::default(),
            ranks: Ranks::default(),
            syncs_each_write: durability == Durability::Always,
            unsynced: UnsyncedWrites::default(),
            is_to_note: AtomicBool::new(false),
            noted_ms: AtomicU64::new(noted_ms),
            key_count: KeyCountCache::default(),
            clock: Clock::from(noted_ms),
            store,
        }))
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

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Whether what was read before this call may be lost with the power, though each write is to
    /// be synced before anybody is told of it: then a client is told after a [`Store::sync`] that
    /// begins now.
    pub fn has_unsynced(&self) -> bool {
        self.unsynced.any()
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

    /// Writes down what time it is, if clients have written since the last time or have found a key
    /// gone whose time was not over then: so that it is not earlier in the next life of the store.
    /// An idle store is left alone. Call it every
    /// [`CLOCK_PERSIST_INTERVAL`](crate::clock::CLOCK_PERSIST_INTERVAL).
    ///
    /// # Errors
    ///
    /// Those of a write, [`StoreError::WouldBlock`] among them where it may not wait; it is tried
    /// again by the next call.
    pub fn persist_clock(&self, blocking: Blocking) -> Result<(), StoreError> {
        if self.is_to_note.swap(false, Ordering::Relaxed) {
            let now_ms = self.clock.now_ms();
            let options = WriteOptions { no_wait: blocking == Blocking::Never, ..WriteOptions::default() };
            let noted = self.store.put_opt(&layout::own("clock"), &now_ms.to_be_bytes(), options);
            noted.inspect_err(|_| self.is_to_note.store(true, Ordering::Relaxed))?;
            self.noted_ms.store(now_ms, Ordering::Relaxed);
        }
        Ok(())
    }

    /// How many keys there are, as they were counted last; `None` before.
    pub fn cached_key_count(&self) -> Option<KeyCountEstimate> {
        self.key_count.at(self.clock.now_ms())
    }

    /// Counts the keys again if that is due. `goes_on` is asked again and again; `false` ends it.
    ///
    /// # Errors
    ///
    /// Those of reads.
    pub fn refresh_key_count_if_due(&self, goes_on: impl Fn() -> bool) -> Result<(), StoreError> {
        self.key_count.refresh_if_due(&self.store, &self.clock, goes_on)
    }

    /// Whether a key with this time is there at `now_ms`, for a client to be told.
    #[inline]
    pub fn is_there(&self, expires_at_ms: Option<u64>, now_ms: u64) -> bool {
        let Some(at_ms) = expires_at_ms else { return true };
        let is_there = at_ms > now_ms;
        if !is_there && at_ms > self.noted_ms.load(Ordering::Relaxed) {
            self.is_to_note.store(true, Ordering::Relaxed);
        }
        is_there
    }
}

/// Writes that everybody can see and a power loss may still take. With a sync before each reply a
/// group is written, then synced with others, and then its clients are told. Who reads its keys
/// meanwhile must not be told either, until a sync that began later has ended.
#[derive(Debug, Default)]
pub(super) struct UnsyncedWrites(Arc<AtomicUsize>);

/// One of these writes, until it is dropped: it is synced then, or has failed.
#[derive(Debug)]
pub struct Unsynced(Arc<AtomicUsize>);

impl UnsyncedWrites {
    /// Before it can be seen.
    pub(super) fn begin(&self) -> Unsynced {
        self.0.fetch_add(1, Ordering::SeqCst);
        Unsynced(self.0.clone())
    }

    /// Whether what was read before this call may be one of them.
    pub(super) fn any(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Unsynced {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
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
