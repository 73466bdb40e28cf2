//! How collections are stored: small ones in the value of their key, large ones with an entry
//! for each element.
//!
//! A collection becomes large when it outgrows [`MAX_SMALL_ELEMENTS`] or [`MAX_SMALL_BYTES`], and
//! stays so until it is deleted, or a set of which little is left is rewritten; one without
//! elements is no key. [`packed`] is the value of a small one, [`Large`] that of a large one. Each
//! type of collection has a file here for what it stores, and one among the commands of the crate
//! `resp`.

pub mod by_hash;
pub mod draw;
pub mod list;
pub mod named;
pub mod packed;
pub mod page;
pub mod sorted_set;

use ecotone_engine::Error as StoreError;

use crate::keys::Entry;
use crate::layout::CollectionId;

/// Elements of a small collection. Each change of one writes all of it: that must be cheap beside a
/// write of its own.
pub const MAX_SMALL_ELEMENTS: usize = 128;

/// Bytes of a small collection's value.
pub const MAX_SMALL_BYTES: usize = 4096;

/// The value of a large collection's key: which collection it is, how many elements it has, and
/// what its type adds.
///
/// ```text
///  0            10            18
///  +------------+-------------+- - - - -
///  | collection | elements    | by type
///  | u16, u64   | u64         |
///  +------------+-------------+- - - - -
/// ```
///
/// Numbers are big-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Large {
    /// Where its elements are.
    pub id: CollectionId,
    /// How many there are, at least one.
    pub elements: u64,
}

impl Large {
    /// Encodes it into `to`, which is cleared; what the type adds follows.
    pub fn encode(self, to: &mut Vec<u8>) {
        to.clear();
        to.extend_from_slice(&self.id.encode());
        to.extend_from_slice(&self.elements.to_be_bytes());
    }

    /// Decodes `payload`; with what the type added.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`].
    pub fn decode(payload: &[u8]) -> Result<(Self, &[u8]), StoreError> {
        let decoded = CollectionId::decode(payload).and_then(|(id, rest)| {
            let (elements, rest) = rest.split_first_chunk::<8>()?;
            Some((Self { id, elements: u64::from_be_bytes(*elements) }, rest))
        });
        decoded.ok_or_else(|| corrupt("the key of a large collection does not say where its elements are"))
    }
}

/// What the key of a large collection holds whose type adds nothing to it; `None`: it is a small
/// one.
///
/// # Errors
///
/// [`StoreError::Corrupt`].
pub fn large_of(entry: &Entry<'_>) -> Result<Option<Large>, StoreError> {
    if !entry.tag.is_large {
        return Ok(None);
    }
    match Large::decode(entry)? {
        (large, []) => Ok(Some(large)),
        _ => Err(corrupt("the key of a large collection holds more than where its elements are")),
    }
}

/// A stored collection that is damaged.
#[cold]
pub fn corrupt(detail: &str) -> StoreError {
    StoreError::Corrupt { location: None, detail: detail.into() }
}
