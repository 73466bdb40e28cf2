//! Operations on whole keys, whatever they hold: delete, move, copy.
//!
//! A large collection is more than its key's value: its elements and its ledger entry have to
//! follow. Whoever removes, overwrites or moves a key that it has not made itself does so here.

use ecotone_engine::{Attributes, Description, Direction, Error as StoreError};

use crate::error::{Failure, Outcome};
use crate::keys::{Entry, Keys};
use crate::layout::{CollectionId, Tag};
use crate::memory::BoundedVec;

impl Entry<'_> {
    /// The large collection that this is the key's part of.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`]: it says that it is one, and does not say which.
    pub fn collection(&self) -> Result<Option<CollectionId>, StoreError> {
        if !self.tag.is_large {
            return Ok(None);
        }
        match CollectionId::decode(self) {
            Some((id, _)) => Ok(Some(id)),
            None => Err(StoreError::Corrupt {
                location: None,
                detail: format!("a large collection's key holds {} bytes that do not name it", self.len()),
            }),
        }
    }
}

/// What is to be known of a key that is removed or overwritten. Its value is not: it may be long,
/// or damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyMetadata {
    /// When it expires, in ms since 1970 UTC.
    pub expires_at_ms: Option<u64>,
    /// The large collection that it is the key of; `None` also where it does not say of which: that
    /// one is found in the ledger later.
    collection: Option<CollectionId>,
}

impl<'c> Keys<'c> {
    /// What stands under `key`, whose slot is held, unless its time is over.
    pub fn metadata(&mut self, key: &[u8]) -> Outcome<Option<KeyMetadata>> {
        let Some(Description { attributes, .. }) = self.description(key)? else { return Ok(None) };
        let Attributes { expires_at_ms, .. } = attributes;
        let is_there = self.keyspace.is_there(expires_at_ms, self.now_ms);
        let unnamed = is_there.then_some(KeyMetadata { expires_at_ms, collection: None });
        if !Tag::of(&attributes).is_none_or(|tag| tag.is_large) {
            return Ok(unnamed);
        }
        // Which it is stands in its value, and is told where its time is over.
        match self.entry(key) {
            Ok(entry) => Ok(entry.map(|entry| KeyMetadata {
                expires_at_ms: entry.expires_at_ms,
                collection: entry.collection().ok().flatten(),
            })),
            Err(Failure::Store(StoreError::Corrupt { .. })) => Ok(unnamed),
            Err(failure) => Err(failure),
        }
    }

    /// Removes whatever is under `key`, whose slot is held. Tells whether something was.
    pub fn delete(&mut self, key: &[u8]) -> Outcome<bool> {
        let Some(standing) = self.metadata(key)? else { return Ok(false) };
        self.remove(key)?;
        self.give_up(standing);
        Ok(true)
    }

    /// Removes `key`, whose slot is held, and gives what was under it. A large collection keeps its
    /// elements: the entry must be put under another key with [`put_entry`](Self::put_entry), or
    /// given up.
    pub fn take(&mut self, key: &[u8]) -> Outcome<Option<Entry<'c>>> {
        let entry = self.entry(key)?;
        if entry.is_some() {
            self.remove(key)?;
        }
        Ok(entry)
    }

    /// Sees to the elements of what stood under a key that has been removed or overwritten.
    pub fn give_up(&mut self, stood: KeyMetadata) {
        if let Some(id) = stood.collection {
            self.mark_reclaimable(id);
        }
    }

    /// Puts what was [taken](Self::take) from another key under `key`, whose slot is held. Whatever
    /// was there is deleted. Takes the same time whatever the size.
    pub fn put_entry(&mut self, key: &[u8], entry: &Entry<'_>) -> Outcome {
        let id = entry.collection()?;
        if let Some(old) = self.metadata(key)? {
            self.give_up(old);
        }
        self.set(key, entry.tag, entry.expires_at_ms, entry)?;
        if let Some(id) = id {
            self.moved(id, key)?;
        }
        Ok(())
    }

    /// Puts a copy of `entry`, which is under another key, under `key`, whose slot is held.
    /// Whatever was there is deleted. The elements of a large collection are copied, which needs
    /// waiting.
    ///
    /// # Errors
    ///
    /// Those of reads and writes.
    pub fn put_copy(&mut self, key: &[u8], entry: &Entry<'_>) -> Outcome {
        let old = self.metadata(key)?;
        match entry.collection()? {
            None => self.set(key, entry.tag, entry.expires_at_ms, entry)?,
            Some(from) => self.put_large_copy(key, entry, from)?,
        }
        if let Some(old) = old {
            self.give_up(old);
        }
        Ok(())
    }

    fn put_large_copy(&mut self, key: &[u8], entry: &Entry<'_>, from: CollectionId) -> Outcome {
        if !self.may_take_long() {
            return Err(Failure::WouldBlock);
        }
        let mut elements = BoundedVec::new(self.reserve_memory());
        self.visit_all_elements(from, Direction::Forward, |sub_key, value| {
            elements.add(sub_key.len() + value.len(), || (sub_key.to_vec(), value.to_vec()))
        })?;
        let elements = elements.whole()?;
        let to = self.new_collection(key)?;
        for (sub_key, value) in elements.iter() {
            self.set_element(to, &[sub_key], value)?;
        }
        let mut payload = to.encode().to_vec();
        payload.extend_from_slice(&entry[payload.len()..]);
        self.set(key, entry.tag, entry.expires_at_ms, &payload)
    }
}
