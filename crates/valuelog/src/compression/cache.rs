//! The dictionaries in use.
//!
//! Bound: [`DictionaryCache::new`] says how many bytes of memory they may take. Those that somebody
//! holds are counted and stay, whatever that comes to: the writer's, and those of reads under way.
//! Of the others those go first that were not asked for longest.
//!
//! Threads: any number. A dictionary is read and made outside of the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::dictionary::{Dictionary, DictionaryError, DictionaryId};

/// What a cache holds unless it is told otherwise: some fifty dictionaries, digested for reading.
pub const DEFAULT_CACHE_BYTES: u64 = 2 * 1024 * 1024;

/// See the module.
#[derive(Debug)]
pub struct DictionaryCache {
    max_bytes: u64,
    all: Arc<AtomicU64>,
    /// Few: a segment names one, and many segments the same.
    kept: RwLock<Vec<Kept>>,
    /// Counts what was asked for.
    asked: AtomicU64,
}

#[derive(Debug)]
struct Kept {
    dictionary: Arc<Dictionary>,
    last_asked: AtomicU64,
}

impl Default for DictionaryCache {
    fn default() -> Self {
        Self::new(DEFAULT_CACHE_BYTES)
    }
}

impl DictionaryCache {
    /// One that keeps dictionaries of at most `max_bytes` bytes of memory that nobody holds.
    pub fn new(max_bytes: u64) -> Self {
        Self { max_bytes, all: Arc::default(), kept: RwLock::default(), asked: AtomicU64::new(0) }
    }

    /// Bytes of memory that dictionaries take, those among them that others hold.
    pub fn bytes(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }

    /// The dictionary of that name, where it is kept.
    pub fn get(&self, id: DictionaryId) -> Option<Arc<Dictionary>> {
        let kept = self.kept.read();
        let found = kept.iter().find(|kept| kept.dictionary.id() == id)?;
        found.last_asked.store(self.asked.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(found.dictionary.clone())
    }

    /// Keeps the dictionary of that content, or the same one that is kept already.
    ///
    /// # Errors
    ///
    /// [`DictionaryError::Length`].
    pub fn insert(&self, content: Vec<u8>) -> Result<Arc<Dictionary>, DictionaryError> {
        let made = Arc::new(Dictionary::counted_in(content, &self.all)?);
        let mut kept = self.kept.write();
        if let Some(found) = kept.iter().find(|kept| kept.dictionary.id() == made.id()) {
            return Ok(found.dictionary.clone());
        }
        let last_asked = AtomicU64::new(self.asked.fetch_add(1, Ordering::Relaxed));
        kept.push(Kept { dictionary: made.clone(), last_asked });
        let gone = self.take_excess(&mut kept);
        drop(kept);
        // Their memory is given back outside of the lock.
        drop(gone);
        Ok(made)
    }

    /// Those that go so that the rest is within the bound.
    fn take_excess(&self, kept: &mut Vec<Kept>) -> Vec<Kept> {
        let mut excess = self.bytes().saturating_sub(self.max_bytes);
        let mut gone = Vec::new();
        // Nobody can come to hold one meanwhile: that takes the lock.
        let is_free = |kept: &Kept| Arc::strong_count(&kept.dictionary) == 1;
        while excess > 0
            && let Some((at, _)) = kept
                .iter()
                .enumerate()
                .filter(|(_, kept)| is_free(kept))
                .min_by_key(|(_, kept)| kept.last_asked.load(Ordering::Relaxed))
        {
            let one = kept.swap_remove(at);
            excess = excess.saturating_sub(one.dictionary.bytes());
            gone.push(one);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Codec, Level, Method, pack, unpack};
    use super::*;

    fn content(seed: u8) -> Vec<u8> {
        (0..4096_u32).map(|at| (at.wrapping_mul(u32::from(seed) * 2 + 1) >> 3) as u8 ^ seed).collect()
    }

    #[test]
    fn the_ones_not_asked_for_longest_go_and_those_held_stay() {
        let cache = DictionaryCache::new(3 * 4096);
        let held = cache.insert(content(0)).unwrap();
        let ids: Vec<_> = (1..=2).map(|seed| cache.insert(content(seed)).unwrap().id()).collect();
        assert!(cache.get(ids[0]).is_some());
        cache.insert(content(3)).unwrap();
        // The new one is held by nobody any more either, but was asked for last.
        assert!(cache.get(ids[1]).is_none(), "it was not asked for longest");
        assert!(cache.get(ids[0]).is_some() && cache.get(held.id()).is_some());
        assert!(cache.bytes() <= 3 * 4096);
        drop(cache);
        assert_eq!(held.content(), content(0));
    }

    #[test]
    fn all_memory_is_counted_and_given_back() {
        let cache = DictionaryCache::new(1);
        let value = content(5)[1000..2000].to_vec();
        let first = cache.insert(content(5)).unwrap();
        let again = cache.insert(content(5)).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!(cache.bytes(), 4096);
        let mut bytes = Vec::new();
        let stored = pack(Codec::Zstd(Level::MAX), Some(&first), &value, &mut bytes).unwrap();
        assert_eq!(stored.method, Method::Zstd);
        let mut read = Vec::new();
        unpack(stored, Some(&first), &bytes, &mut read).unwrap();
        assert_eq!(read, value);
        let digested = cache.bytes();
        assert!(digested > 3 * 4096 && digested == first.bytes(), "{digested}");
        // It is beyond the bound, but held; once it is not, the next one takes its place.
        assert!(cache.get(first.id()).is_some());
        drop((first, again));
        let next = cache.insert(content(6)).unwrap();
        assert_eq!(cache.bytes(), next.bytes());
    }
}
