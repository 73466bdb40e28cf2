//! The keys of a store as Redis knows them: typed, with an expiry, changed under latches, watched.
//!
//! Nothing here knows a command or a client.

mod census;
mod clock;
mod group;
mod keys;
mod known;
mod latches;
pub mod layout;
mod numbers;
mod orphans;
mod payload;
mod pendings;
pub mod ranks;
mod renewal;
pub mod slot;
mod unsynced;
mod upkeep;
mod visits;
mod wanted;
mod watch;
mod whole;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ecotone_engine::{Direction, Durability, Error as StoreError, Store, WriteOptions};

pub use census::Census;
pub use clock::{Clock, NOTED_EVERY};
pub use group::{Committed, Group, Mark, Waiting};
pub use keys::{Entry, Keys, MAX_KEY_BYTES, Seen};
pub use known::{Known, MAX_TOGETHER};
pub use latches::Latches;
pub use layout::{CollectionId, Tag, Type};
pub use numbers::DerivedKeys;
pub use orphans::{Orphans, Reclaimed};
pub use slot::Slot;
pub use unsynced::Unsynced;
pub use upkeep::{UPKEEP_HZ, Upkeep};
pub use wanted::{Going, Interest, Lost, MAX_HALF_CLOSED, MAX_LATCHED, Wanted};
pub use watch::{Touched, Watches};
pub use whole::Standing;

use census::Counts;
use numbers::Numbers;
use ranks::Ranks;
use renewal::Slow;
use unsynced::UnsyncedWrites;

use crate::memory::Memory;

/// How much of a foreign key an error shows.
const SHOWN_KEY_BYTES: usize = 64;

/// The keys of one store. Shared by all threads; the store is used by nobody else meanwhile.
#[derive(Debug)]
pub struct Keyspace {
    store: Arc<Store>,
    latches: Latches,
    watches: Watches,
    clock: Clock,
    numbers: Numbers,
    orphans: Orphans,
    reclaimed_orphans: AtomicU64,
    slow: Slow,
    memory: Arc<Memory>,
    ranks: Ranks,
    syncs_each_write: bool,
    unsynced: UnsyncedWrites,
    /// Whether the time is to be noted: a group was committed since it was, or a key was found gone whose time was over later.
    is_to_note: AtomicBool,
    /// The time that was noted last.
    noted_ms: AtomicU64,
    counts: Counts,
}

impl Keyspace {
    /// The keys of `store`, which was opened for writing with `durability`.
    ///
    /// # Errors
    ///
    /// Those of a read; [`StoreError::WrongFormat`] where the store holds what no server wrote.
    pub fn open(store: Arc<Store>, durability: Durability) -> Result<Arc<Self>, StoreError> {
        refuse_foreign_keys(&store)?;
        let noted_ms = read_number(&store, "clock")?.unwrap_or(0);
        Ok(Arc::new(Self {
            latches: Latches::default(),
            watches: Watches::default(),
            numbers: Numbers::of(&store)?,
            orphans: Orphans::default(),
            reclaimed_orphans: AtomicU64::new(0),
            slow: Slow::default(),
            memory: Arc::default(),
            ranks: Ranks::default(),
            syncs_each_write: durability == Durability::Always,
            unsynced: UnsyncedWrites::default(),
            is_to_note: AtomicBool::new(false),
            noted_ms: AtomicU64::new(noted_ms),
            counts: Counts::default(),
            clock: Clock::from(noted_ms),
            store,
        }))
    }

    /// Forgets what time it was in earlier lives of `store`, before it is opened as a keyspace: the system's clock counts again, also where it
    /// is behind. Keys that were given a time meanwhile live as much longer.
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

    /// Whether what was read before this call may be lost with the power, though each write is to be synced before anybody is told of it: then
    /// a client is told after a [`Store::sync`] that begins now.
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

    /// Writes down what time it is, if clients have written since the last time or have found a key gone whose time was not over then: so that it is
    /// not earlier in the next life of the store. An idle store is left alone. Call it every [`NOTED_EVERY`].
    ///
    /// # Errors
    ///
    /// Those of a write, [`StoreError::WouldWait`] among them where it may not wait; it is tried again by the next call.
    pub fn note_time(&self, waiting: Waiting) -> Result<(), StoreError> {
        if self.is_to_note.swap(false, Ordering::Relaxed) {
            let now_ms = self.clock.now_ms();
            let options = WriteOptions { no_wait: waiting == Waiting::Never, ..WriteOptions::default() };
            let noted = self.store.put_opt(&layout::own("clock"), &now_ms.to_be_bytes(), options);
            noted.inspect_err(|_| self.is_to_note.store(true, Ordering::Relaxed))?;
            self.noted_ms.store(now_ms, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether a key with this time is there at `now_ms`, for a client to be told.
    #[inline]
    pub(crate) fn is_there(&self, expires_at_ms: Option<u64>, now_ms: u64) -> bool {
        let Some(at_ms) = expires_at_ms else { return true };
        let is_there = at_ms > now_ms;
        if !is_there && at_ms > self.noted_ms.load(Ordering::Relaxed) {
            self.is_to_note.store(true, Ordering::Relaxed);
        }
        is_there
    }
}

/// Looks at the first and the last key: the keyspace's own stand together, so what others wrote is at one end or the other.
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

fn read_number(store: &Store, name: &str) -> Result<Option<u64>, StoreError> {
    let Some(found) = store.get(&layout::own(name))? else { return Ok(None) };
    let number = <[u8; 8]>::try_from(&found[..]).map_err(|_| StoreError::Corrupt {
        location: Some(format!("the keyspace's own entry {name:?}")),
        detail: format!("{} bytes instead of 8", found.len()),
    })?;
    Ok(Some(u64::from_be_bytes(number)))
}
