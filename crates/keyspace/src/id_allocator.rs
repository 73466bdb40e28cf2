//! Ids of large collections: each is allocated once in the life of a store.
//!
//! Ids are reserved in the store by the thousand before they are allocated. A power loss that takes
//! the reservation takes everything written after it as well, so no id of what is left is allocated
//! again. A repair may lose the reservation alone, or have an older one: so it leaves it out
//! ([`DerivedKeys`]), and where there is none the greatest id in use is read from the collections
//! themselves.

use std::ops::Bound;

use ecotone_engine::{Direction, Error as StoreError, Store};
use parking_lot::Mutex;

use crate::error::Blocking;
use crate::layout::{self, CollectionId};

/// Under which name they are set aside.
const NAME: &str = "numbers";

/// Set aside at once.
const RESERVED_IDS: u64 = 1 << 16;

/// Gives numbers.
#[derive(Debug)]
pub struct IdAllocator {
    state: Mutex<AllocatorState>,
}

#[derive(Debug)]
struct AllocatorState {
    next: u64,
    reserved_until: u64,
}

impl IdAllocator {
    /// Goes on behind what was set aside in `store`, or else behind the greatest number there.
    ///
    /// # Errors
    ///
    /// Those of a read; [`StoreError::Corrupt`] where the note is none.
    pub fn of(store: &Store) -> Result<Self, StoreError> {
        let next = match layout::read_own(store, NAME)? {
            Some(next) => next,
            // The greatest there can be has one behind it.
            None => greatest_id(store)? + 1,
        };
        Ok(Self { state: Mutex::new(AllocatorState { next, reserved_until: next }) })
    }

    /// The next number.
    ///
    /// # Errors
    ///
    /// Those of a write, and [`StoreError::WouldBlock`] where one is due and the caller does not
    /// wait; no number was given.
    pub fn allocate(&self, store: &Store, blocking: Blocking) -> Result<u64, StoreError> {
        let state = match blocking {
            // Who sets some aside holds it while the store is written.
            Blocking::Never => self.state.try_lock().ok_or(StoreError::WouldBlock),
            Blocking::Briefly | Blocking::Allowed => Ok(self.state.lock()),
        };
        let mut state = state?;
        if state.next == state.reserved_until {
            if blocking == Blocking::Never {
                return Err(StoreError::WouldBlock);
            }
            // Numbers do not end: only one that is damaged is near.
            let reserved_until = state.reserved_until.checked_add(RESERVED_IDS).ok_or_else(|| StoreError::Corrupt {
                location: Some(format!("the keyspace's own entry {NAME:?}")),
                detail: format!("{} collections were never made", state.reserved_until),
            })?;
            store.put(&layout::own(NAME), &reserved_until.to_be_bytes())?;
            state.reserved_until = reserved_until;
        }
        state.next += 1;
        Ok(state.next - 1)
    }
}

/// The greatest number of a collection that the ledger or an element names; 0: there is none. Takes
/// two looks for each slot that has any.
fn greatest_id(store: &Store) -> Result<u64, StoreError> {
    let mut greatest = 0;
    for of_collections in layout::of_collections() {
        let mut from = of_collections.start.clone();
        // In each slot they ascend, so the last one counts.
        while let Some(slot) = first(store, &from, &of_collections.end, Direction::Forward)?.map(|id| id.slot) {
            let end = layout::behind_slot(&of_collections.start, slot);
            if let Some(last) = first(store, &from, &end, Direction::Reverse)? {
                greatest = greatest.max(last.number);
            }
            from = end;
        }
    }
    Ok(greatest)
}

/// The first collection that is named between two keys of the store's, in this direction.
fn first(store: &Store, from: &[u8], end: &[u8], direction: Direction) -> Result<Option<CollectionId>, StoreError> {
    let mut scan = store.scan((Bound::Included(from), Bound::Excluded(end)), direction, None)?;
    while let Some((key, _)) = scan.next_key()? {
        // What is none was written by nobody, or by a later version.
        if let Some((id, _)) = key.get(1..).and_then(CollectionId::decode) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Tells which entries of a store follow from all others, and would be wrong if some of those were
/// lost: a repair leaves them out.
#[derive(Debug, Default)]
pub struct DerivedKeys {
    has_collections: bool,
    has_foreign: bool,
}

impl DerivedKeys {
    /// Whether `key` is one. It is to be told all keys of the store's, in their order: of a store
    /// that clients have not written none is.
    pub fn has_next(&mut self, key: &[u8]) -> bool {
        self.has_foreign |= !layout::is_known(key);
        self.has_collections |= layout::of_collections().iter().any(|range| *range.start <= *key && *key < *range.end);
        self.has_collections && !self.has_foreign && *key == *layout::own(NAME)
    }
}

#[cfg(test)]
mod tests {
    use ecotone_engine::{OpenMode, StoreSettings};

    use super::*;
    use crate::slot::Slot;

    fn id(key: &[u8], number: u64) -> CollectionId {
        CollectionId { slot: Slot::of(key), number }
    }

    #[test]
    fn without_a_note_the_greatest_number_counts() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("store"), OpenMode::Create, StoreSettings::default()).unwrap();
        assert_eq!(greatest_id(&store).unwrap(), 0);
        for (key, number) in [(b"a", 7), (b"b", 300), (b"a", 1 << 40), (b"c", 2)] {
            store.put(&layout::ledger(id(key, number)), key).unwrap();
        }
        assert_eq!(greatest_id(&store).unwrap(), 1 << 40);
        // Of one that the ledger does not name any more.
        store.put(&layout::element(id(b"z", 1 << 50), &[b"field"]), b"value").unwrap();
        store.put(&layout::element(id(b"z", 5), &[b"field"]), b"value").unwrap();
        assert_eq!(greatest_id(&store).unwrap(), 1 << 50);
        let allocator = IdAllocator::of(&store).unwrap();
        assert_eq!(allocator.allocate(&store, Blocking::Allowed).unwrap(), (1 << 50) + 1);
        // From here on the note counts.
        assert_eq!(
            IdAllocator::of(&store).unwrap().allocate(&store, Blocking::Allowed).unwrap(),
            (1 << 50) + 1 + RESERVED_IDS
        );
    }

    #[test]
    fn what_a_keyspace_counts_is_derived_and_nothing_else() {
        let (ledger, element) = (layout::ledger(id(b"a", 7)), layout::element(id(b"a", 7), &[b"field"]));
        let (key, clock, numbers) = (layout::key(Slot::of(b"k"), b"k"), layout::own("clock"), layout::own(NAME));
        let derived = |keys: &[&[u8]]| {
            let mut derived = DerivedKeys::default();
            keys.iter().map(|key| derived.has_next(key)).collect::<Vec<_>>()
        };
        assert_eq!(derived(&[&ledger, &element, &key, &clock, &numbers]), [false, false, false, false, true]);
        assert_eq!(derived(&[&element, &numbers]), [false, true]);
        // There is no collection that could be mistaken for another, or none of these is a
        // keyspace.
        assert_eq!(derived(&[&key, &numbers]), [false, false]);
        assert_eq!(derived(&[&numbers]), [false]);
        assert_eq!(derived(&[&ledger, b"foreign", &numbers]), [false, false, false]);
    }
}
