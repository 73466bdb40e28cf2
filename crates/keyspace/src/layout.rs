//! What stands where in the store.
//!
//! ```text
//!  'k' slot:u16 position:u16 key      header + payload       a key of the user's
//!  'e' slot:u16 id:u64 sub-key        header + payload       an element of a large collection
//!  'c' slot:u16 id:u64                key                    the ledger of large collections: which key the collection is under
//!  'm' name                           ...                    what the keyspace remembers of itself
//! ```
//!
//! Numbers are big-endian, so that they sort. `position` is [`position_in_slot`]: keys are scanned
//! in the order of slot and position, so that a cursor is a number and needs no memory of the
//! server's. The type of a key stands in its header (see [`ecotone_engine::header`]): none for a
//! string, else [`Type`], and [`LARGE`] where the elements have entries of their own.

use std::num::NonZeroU8;
use std::ops::Range;

use ecotone_engine::{Attributes, Error as StoreError, Store};
use smallvec::SmallVec;

use crate::slot::{SLOTS, Slot, position_in_slot};

const KEY: u8 = b'k';
const ELEMENT: u8 = b'e';
const LEDGER: u8 = b'c';

/// What the keyspace remembers of itself begins so in every store, and nothing else does.
pub const OWN_PREFIX: u8 = b'm';
const OWN: u8 = OWN_PREFIX;

/// Most keys of the store's are no longer. One that a group has written takes so much of its table
/// whatever its length.
const SHORT_KEY_BYTES: usize = 48;

/// A key of the store's. A short one takes no memory of its own: each write has some.
pub type StoredKey = SmallVec<[u8; SHORT_KEY_BYTES]>;

/// Bytes before the user's key in the store's key.
pub const KEY_PREFIX_BYTES: usize = 5;

/// Parts of a sub-key at most: more are a panic.
pub const MAX_PARTS: usize = 3;

/// Bytes before the sub-key in an element's key.
pub const ELEMENT_PREFIX_BYTES: usize = 11;

/// In the tag of a key's header: its elements have entries of their own, and the payload is what
/// they have in common.
pub const LARGE: u8 = 0x80;

/// What a key holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Type {
    /// Bytes.
    String,
    /// Fields with values.
    Hash,
    /// Members with scores.
    SortedSet,
    /// Members.
    Set,
    /// Elements in an order.
    List,
}

impl Type {
    /// As `TYPE` names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Hash => "hash",
            Self::SortedSet => "zset",
            Self::Set => "set",
            Self::List => "list",
        }
    }
}

/// Type and encoding of a key, as its header has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag {
    /// What the key holds.
    pub of: Type,
    /// Whether the elements have entries of their own.
    pub is_large: bool,
}

impl Tag {
    /// Of a string.
    pub const STRING: Self = Self { of: Type::String, is_large: false };

    /// Of a collection in one value.
    pub const fn small(of: Type) -> Self {
        Self { of, is_large: false }
    }

    /// Of a collection with an entry for each element.
    pub const fn large(of: Type) -> Self {
        Self { of, is_large: true }
    }

    /// The tag in a header; `None` where this version does not know it.
    pub fn of(attributes: &Attributes) -> Option<Self> {
        let Some(tag) = attributes.type_tag.map(NonZeroU8::get) else { return Some(Self::STRING) };
        let of = match tag & !LARGE {
            1 => Type::Hash,
            2 => Type::SortedSet,
            3 => Type::Set,
            4 => Type::List,
            _ => return None,
        };
        Some(Self { of, is_large: tag & LARGE != 0 })
    }

    /// As a header has it.
    pub fn encode(self) -> Option<NonZeroU8> {
        let of = match self.of {
            Type::String => 0,
            Type::Hash => 1,
            Type::SortedSet => 2,
            Type::Set => 3,
            Type::List => 4,
        };
        NonZeroU8::new(of | if self.is_large { LARGE } else { 0 })
    }
}

/// A large collection: a number that no other ever has, and the slot its elements are in. That is
/// the slot of the key it was made under; renaming a key leaves the elements where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CollectionId {
    /// The slot.
    pub slot: Slot,
    /// The number: not 0, and not the greatest, so that there is one behind it.
    pub number: u64,
}

/// Bytes of an encoded [`CollectionId`].
pub const COLLECTION_ID_BYTES: usize = 10;

impl CollectionId {
    /// As it begins the payload of a large collection's key.
    pub fn encode(self) -> [u8; COLLECTION_ID_BYTES] {
        let mut bytes = [0; COLLECTION_ID_BYTES];
        bytes[..2].copy_from_slice(&self.slot.number().to_be_bytes());
        bytes[2..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// What `payload` begins with, and the rest of it.
    pub fn decode(payload: &[u8]) -> Option<(Self, &[u8])> {
        let (slot, rest) = payload.split_first_chunk::<2>()?;
        let (number, rest) = rest.split_first_chunk::<8>()?;
        let number = u64::from_be_bytes(*number);
        (1..u64::MAX).contains(&number).then_some((Self { slot: Slot::new(u16::from_be_bytes(*slot))?, number }, rest))
    }
}

/// Puts the store's key of the user's `key` into `to`.
#[inline]
pub fn key_into(slot: Slot, key: &[u8], to: &mut StoredKey) {
    join_into(&[&[KEY], &slot.number().to_be_bytes(), &position_in_slot(key).to_be_bytes(), key], to);
}

/// Puts all `parts` into `to`, one behind the other.
#[inline]
fn join_into(parts: &[&[u8]], to: &mut StoredKey) {
    to.clear();
    // Not the next power of two: long ones are many bytes.
    to.reserve_exact(parts.iter().map(|part| part.len()).sum());
    parts.iter().for_each(|part| to.extend_from_slice(part));
}

/// The store's key of the user's `key`.
pub fn key(slot: Slot, key: &[u8]) -> StoredKey {
    let mut stored = StoredKey::new();
    key_into(slot, key, &mut stored);
    stored
}

/// The user's key in a store's key that begins with [`KEY_PREFIX_BYTES`].
pub fn user_key(stored: &[u8]) -> &[u8] {
    stored.get(KEY_PREFIX_BYTES..).unwrap_or_default()
}

/// Slot and position as one number: the order of keys in the store. `None` for what is no user's
/// key.
pub fn position_of(stored: &[u8]) -> Option<u32> {
    let [KEY, place @ ..] = *stored.first_chunk::<KEY_PREFIX_BYTES>()? else { return None };
    Some(u32::from_be_bytes(place))
}

/// So many places are in one slot: position by position.
pub const POSITIONS_PER_SLOT: u32 = 1 << 16;

/// Places go up to before this number.
pub const POSITIONS: u32 = SLOTS as u32 * POSITIONS_PER_SLOT;

/// The store's keys from `place` on begin here.
pub fn from_position(place: u32) -> Vec<u8> {
    let mut stored = vec![KEY];
    stored.extend_from_slice(&place.to_be_bytes());
    stored
}

/// From the first of the user's keys to before what follows the last.
pub fn all_keys() -> Range<Vec<u8>> {
    vec![KEY]..vec![KEY + 1]
}

/// The same of the user's keys in one slot.
pub fn keys_of_slot(slot: Slot) -> Range<Vec<u8>> {
    let first = u32::from(slot.number()) * POSITIONS_PER_SLOT;
    // What follows the last position of the last slot would be no number.
    let end = if slot.number() + 1 < SLOTS { from_position(first + POSITIONS_PER_SLOT) } else { all_keys().end };
    from_position(first)..end
}

/// The slot that all that stands under a key of the store's belongs to; `None` for what the keyspace
/// remembers of itself, and for what is too short to name one.
#[inline]
pub fn slot_of(stored: &[u8]) -> Option<Slot> {
    match *stored.first_chunk::<3>()? {
        [KEY | ELEMENT | LEDGER, high, low] => Slot::new(u16::from_be_bytes([high, low])),
        _ => None,
    }
}

/// The same of the ledger.
pub fn whole_ledger() -> Range<Vec<u8>> {
    vec![LEDGER]..vec![LEDGER + 1]
}

/// All keys that begin with the number of a collection: the ledger and the elements.
pub fn of_collections() -> [Range<Vec<u8>>; 2] {
    [whole_ledger(), vec![ELEMENT]..vec![ELEMENT + 1]]
}

/// Of such keys, those that begin as `start` does and are in slots up to `slot` end before this.
pub fn behind_slot(start: &[u8], slot: Slot) -> Vec<u8> {
    [start, &(slot.number() + 1).to_be_bytes()].concat()
}

/// The same of all that clients have written: keys, elements and the ledger.
pub fn everything() -> [Range<Vec<u8>>; 3] {
    let [ledger, elements] = of_collections();
    [all_keys(), elements, ledger]
}

/// The same of one slot.
pub fn everything_of_slot(slot: Slot) -> [Range<Vec<u8>>; 3] {
    let ranges = |kind: u8| {
        let begin = |number: u16| [&[kind][..], &number.to_be_bytes()].concat();
        begin(slot.number())..begin(slot.number() + 1)
    };
    [KEY, ELEMENT, LEDGER].map(ranges)
}

/// Puts the store's key of an element into `to`. The sub-key is all its parts, of which there are
/// at most [`MAX_PARTS`].
#[inline]
pub fn element_into(id: CollectionId, sub_key: &[&[u8]], to: &mut StoredKey) {
    let id = id.encode();
    let mut parts: [&[u8]; 2 + MAX_PARTS] = [&[ELEMENT], &id, &[], &[], &[]];
    parts[2..2 + sub_key.len()].copy_from_slice(sub_key);
    join_into(&parts, to);
}

/// The store's key of an element.
pub fn element(id: CollectionId, sub_key: &[&[u8]]) -> StoredKey {
    let mut stored = StoredKey::new();
    element_into(id, sub_key, &mut stored);
    stored
}

/// The same of all from one sub-key to before another one.
pub fn element_range(id: CollectionId, range: Range<&[u8]>) -> Range<Vec<u8>> {
    element(id, &[range.start]).into_vec()..element(id, &[range.end]).into_vec()
}

/// The sub-key in the store's key of an element.
pub fn sub_key(stored: &[u8]) -> &[u8] {
    stored.get(ELEMENT_PREFIX_BYTES..).unwrap_or_default()
}

/// The collection that a key of the store's is an element of, and the sub-key.
pub fn element_of(stored: &[u8]) -> Option<(CollectionId, &[u8])> {
    CollectionId::decode(stored.strip_prefix(&[ELEMENT])?)
}

/// From the first element of a collection to before what follows its last.
pub fn elements(id: CollectionId) -> Range<Vec<u8>> {
    let from = element(id, &[]).into_vec();
    let after = element(CollectionId { number: id.number + 1, ..id }, &[]).into_vec();
    from..after
}

/// The store's key of a collection in the ledger.
pub fn ledger(id: CollectionId) -> Vec<u8> {
    let mut stored = vec![LEDGER];
    stored.extend_from_slice(&id.encode());
    stored
}

/// The collection that a key of the ledger is of.
pub fn ledger_id(stored: &[u8]) -> Option<CollectionId> {
    match CollectionId::decode(stored.strip_prefix(&[LEDGER])?)? {
        (id, []) => Some(id),
        _ => None,
    }
}

/// The store's key of what the keyspace remembers under `name`.
pub fn own(name: &str) -> Vec<u8> {
    let mut stored = vec![OWN];
    stored.extend_from_slice(name.as_bytes());
    stored
}

/// Whether a keyspace may have written this key of the store. What a workload or the library wrote
/// is told apart by it.
pub fn is_known(stored: &[u8]) -> bool {
    match stored.first() {
        Some(&KEY) => {
            stored.get(..KEY_PREFIX_BYTES).is_some() && {
                let user = user_key(stored);
                key(Slot::of(user), user)[..] == *stored
            }
        }
        Some(&ELEMENT) => CollectionId::decode(&stored[1..]).is_some(),
        Some(&LEDGER) => ledger_id(stored).is_some(),
        // It has few names, and later versions may have more.
        Some(&OWN) => stored.len() > 1 && stored[1..].iter().all(|byte| byte.is_ascii_lowercase() || *byte == b'-'),
        _ => false,
    }
}

/// The number that the entry of the keyspace's own with this `name` holds; `None`: there is none.
///
/// # Errors
///
/// Those of a read; [`StoreError::Corrupt`] where it holds no number.
pub(crate) fn read_own(store: &Store, name: &str) -> Result<Option<u64>, StoreError> {
    let Some(found) = store.get(&own(name))? else { return Ok(None) };
    let number = <[u8; 8]>::try_from(&found[..]).map_err(|_| StoreError::Corrupt {
        location: Some(format!("the keyspace's own entry {name:?}")),
        detail: format!("{} bytes instead of 8", found.len()),
    })?;
    Ok(Some(u64::from_be_bytes(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_keyspace_writes_is_known_and_nothing_else() {
        let id = CollectionId { slot: Slot::of(b"k"), number: 7 };
        for own in [
            key(Slot::of(b""), b""),
            key(Slot::of(b"{a}b"), b"{a}b"),
            element(id, &[]),
            ledger(id).into(),
            own("clock").into(),
        ] {
            assert!(is_known(&own), "{}", own.escape_ascii());
        }
        assert_eq!(slot_of(&key(Slot::of(b"{a}b"), b"{a}b")), Some(Slot::of(b"a")));
        assert_eq!([slot_of(&element(id, &[b"f"])), slot_of(&ledger(id))], [Some(Slot::of(b"k")); 2]);
        assert_eq!([slot_of(&own("clock")), slot_of(b"k\x01"), slot_of(b"k\xff\xff")], [None; 3]);
        for (range, own) in
            everything_of_slot(id.slot).iter().zip([&key(id.slot, b"k"), &element(id, &[]), &ledger(id).into()])
        {
            assert!(range.contains(&own.to_vec()), "{}", own.escape_ascii());
        }
        for foreign in [
            &b""[..],
            b"0000000000000001",
            b"user6284781860667377211",
            b"k",
            b"key",
            b"key00000000001",
            b"e",
            b"m",
            b"m0",
        ] {
            assert!(!is_known(foreign), "{}", foreign.escape_ascii());
        }
    }
}
