//! Rows that were read lately, by key: what RocksDB would find, without its walk through memtables,
//! filters, indexes and blocks.
//!
//! A row is what is stored with a key: the whole of a short value, of a value separated the
//! pointer. With the pointer comes a value of up to half a page once it was read by the row: where
//! memory is short the kernel's cache would hold a whole page for it, and asking the kernel costs
//! more than the copy. Rows go when others need their place, and nothing depends on them. What was
//! written lately is likely to be read next, so a write brings its rows while there is room for
//! them, but for those without a value. Once there is none reads alone decide what is worth a
//! place: a write then changes the row that is here, and brings none. A row that had its value has
//! the new one from the write on: it was read, and need not be read again from where the write has
//! put it. Of a pointer whose row had to go its [cached pointer](cached_pointers) stays longer.
//!
//! # Invariants
//!
//! - A row that is told is what RocksDB has at some moment of the lookup. While a write is under
//!   way, rows of its shards are neither told nor kept (one that is here may still get its value);
//!   when it is over, what it changed is replaced or gone.
//! - What a lookup found in RocksDB is kept only if no write was under way in its shard since
//!   before the lookup.
//! - A row may name a place in the value log that its value has left: who finds it gone
//!   [forgets](RowCache::forget) the row and asks RocksDB. A value in a row is what its pointer led
//!   to, and no other value is ever there, so wherever it has gone since it is the same.
//! - A row in a range that was removed is gone: where it is still here, who asks for it sees that
//!   ([`removed`]). With a range that is likely to hold most of them all rows go, whose memory a
//!   thread frees.
//!
//! Bounds: the bytes given, shared evenly by the shards, with what a row costs beside its bytes;
//! rows of at most [`MAX_ROW_BYTES`], values beside them of at most [`MAX_VALUE_BYTES`]. Rows that
//! a wide removal took count until they are freed, and others come only as far as both have room.
//! While they are freed a further wide removal is remembered as any other range, so there is one
//! thread at most.
//!
//! Threads: any. A shard is locked for a few hundred nanoseconds; longer where a value takes the
//! place of many rows, where its places double, and once when its first pointer comes, for which a
//! quarter of its rows may go.

mod cached_pointers;
mod removed;
mod writing;

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use quick_cache::unsync::Cache;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};
use twox_hash::XxHash3_64;

use self::cached_pointers::{CachedPointer, CachedPointers, FORGOTTEN_AFTER, Tag};
use self::removed::RemovedRanges;
pub(crate) use self::writing::{RowChange, Writing};
use crate::header::{Header, Kind};
use ecotone_valuelog::log::MAX_CACHED_VALUE_BYTES;

/// Longer rows are not kept: copying them costs what finding them does.
pub(crate) const MAX_ROW_BYTES: usize = 1024;

/// Longer values stay where they are: their pages hold little else, so the kernel keeps them as
/// well, and one would take the place of dozens of pointers.
pub(crate) const MAX_VALUE_BYTES: usize = MAX_CACHED_VALUE_BYTES;

/// Of the bytes given, at most one in so many parts is for places: of values of 1 KiB about a dozen
/// times as many as there are rows with them then.
const CACHED_POINTERS_OF_SHARD: u64 = 4;

/// A value takes at most one in so many parts of its shard.
const VALUES_OF_SHARD: u64 = 8;

/// In so many shards threads seldom meet. A power of two.
const MAX_SHARDS: u64 = 128;

/// Where there is little memory there are fewer, so that each has room for some rows with values.
const MIN_SHARD_BYTES: u64 = 16 * 1024;

/// What a row takes beside its bytes: its allocation, and its place in the table of the shard,
/// which grows by doubling and has places for rows that have gone as well.
const ROW_OVERHEAD_BYTES: u64 = 152;

/// For the size of the tables.
const USUAL_ROW_BYTES: u64 = 256;

/// Of one shard, by the hash of the key; of two keys with one hash the later one is here.
type Rows = Cache<u64, Kept, RowWeight, HashItself, Evicted>;

/// None yet, and room for `bytes`.
fn rows(bytes: u64) -> Rows {
    let mut options = OptionsBuilder::new();
    options.weight_capacity(bytes);
    options.estimated_items_capacity(usize::try_from(bytes / USUAL_ROW_BYTES).unwrap_or(usize::MAX));
    let options = options.build().unwrap_or_else(|_| unreachable!("both that must be given are"));
    Cache::with_options(options, RowWeight, HashItself, Evicted)
}

/// The rows of one store, or of several with different keys ([`crate::SharedRows`]).
pub(crate) struct RowCache {
    shards: Box<[Mutex<Shard>]>,
    /// Whether there may be any.
    has_pointers: bool,
    /// Of the hashes by which places stand.
    cached_pointers_seed: u64,
    writes: AtomicU64,
    removed: RemovedRanges,
    freeing: Arc<Freeing>,
}

/// Rows that are here no more and still take memory.
#[derive(Default)]
struct Freeing {
    is_under_way: AtomicBool,
    bytes: AtomicU64,
}

/// Frees the rows when it is dropped.
struct Gone {
    rows: Vec<Rows>,
    freeing: Arc<Freeing>,
}

impl Drop for Gone {
    fn drop(&mut self) {
        for rows in self.rows.drain(..) {
            let bytes = rows.weight();
            drop(rows);
            self.freeing.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        self.freeing.is_under_way.store(false, Ordering::Release);
    }
}

struct Shard {
    rows: Rows,
    /// Of keys whose rows are not here.
    cached_pointers: CachedPointers,
    /// What places take at most. Rows have no room for that from the first pointer on.
    cached_pointer_bytes: u64,
    has_pointers: bool,
    /// Changes of keys of this shard that are under way.
    writers: u32,
    /// The write that began when there were none.
    writer: u64,
    /// Whether another one has begun since: which of them came last is not known here.
    is_mixed: bool,
    /// Changes that are over.
    changes: u64,
    hits: u64,
    misses: u64,
}

/// Tells which pointers have given way to another row, with the hashes of their keys.
#[derive(Clone)]
struct Evicted;

impl Lifecycle<u64, Kept> for Evicted {
    type RequestState = Vec<(u64, Kept)>;

    #[inline]
    fn on_evict(&self, evicted: &mut Vec<(u64, Kept)>, hash: u64, kept: Kept) {
        if is_pointer(kept.row.stored()) {
            evicted.push((hash, kept));
        }
    }
}

/// A row that is here.
struct Kept {
    row: Row,
    /// How many ranges had been removed when it was last seen to be in none of them.
    spared: AtomicU64,
}

/// What is stored with a key, and perhaps the value that it leads to.
#[derive(Clone)]
pub(crate) struct Row {
    /// The key, what is stored with it, the value.
    bytes: Arc<[u8]>,
    key_bytes: u32,
    stored_bytes: u32,
}

impl Row {
    /// `key` and `stored` are short: neither is kept beyond [`MAX_ROW_BYTES`] and the longest key.
    /// An empty `value` is none.
    fn of(key: &[u8], stored: &[u8], value: &[u8]) -> Self {
        let bytes = joined(&[key, stored, value]);
        Self { bytes, key_bytes: key.len() as u32, stored_bytes: stored.len() as u32 }
    }

    /// Puts `stored` and `value` in the place of what is here of `key`, where they are as long and
    /// nobody else has it. `false`: nothing was done.
    fn overwrite(&mut self, key: &[u8], stored: &[u8], value: &[u8]) -> bool {
        let (key_bytes, stored_bytes) = (self.key_bytes as usize, self.stored_bytes as usize);
        let is_as_long = (key_bytes, stored_bytes) == (key.len(), stored.len());
        if !is_as_long || self.bytes.len() != key_bytes + stored_bytes + value.len() {
            return false;
        }
        match Arc::get_mut(&mut self.bytes) {
            Some(bytes) if bytes[..key_bytes] == *key => {
                bytes[key_bytes..key_bytes + stored_bytes].copy_from_slice(stored);
                bytes[key_bytes + stored_bytes..].copy_from_slice(value);
                true
            }
            _ => false,
        }
    }

    fn with(&self, value: &[u8]) -> Self {
        Self { bytes: joined(&[&self.bytes[..self.value_begins()], value]), ..*self }
    }

    fn value_begins(&self) -> usize {
        (self.key_bytes + self.stored_bytes) as usize
    }

    fn key(&self) -> &[u8] {
        &self.bytes[..self.key_bytes as usize]
    }

    /// What is stored.
    #[inline]
    pub(crate) fn stored(&self) -> &[u8] {
        &self.bytes[self.key_bytes as usize..self.value_begins()]
    }

    /// The value that the pointer stored leads to, where it is here as well.
    #[inline]
    pub(crate) fn value(&self) -> Option<&[u8]> {
        Some(&self.bytes[self.value_begins()..]).filter(|value| !value.is_empty())
    }
}

/// All parts, one behind the other, where they stay.
fn joined(parts: &[&[u8]]) -> Arc<[u8]> {
    let mut all: Arc<[u8]> = std::iter::repeat_n(0, parts.iter().map(|part| part.len()).sum()).collect();
    if let Some(mut rest) = Arc::get_mut(&mut all) {
        for part in parts {
            let (place, behind) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = behind;
        }
    }
    all
}

/// A key of which no row was told.
#[derive(Clone, Copy)]
pub(crate) struct Absent {
    hash: u64,
    /// Of its shard at that time; `None` while it is written to.
    changes: Option<u64>,
}

/// How often rows were asked for, and what they take.
#[derive(Debug, Clone, Copy, Default)]
pub struct RowCounts {
    /// Rows that were there.
    pub hits: u64,
    /// Rows that were not.
    pub misses: u64,
    /// Bytes that they take.
    pub bytes: u64,
}

impl RowCache {
    /// Of about `bytes`. Where there are pointers, those whose rows have no room any more are kept
    /// without them.
    pub(crate) fn new(bytes: u64, has_pointers: bool) -> Self {
        let shards = 1 << (bytes / MIN_SHARD_BYTES).clamp(1, MAX_SHARDS).ilog2();
        let bytes = bytes / shards;
        let cached_pointer_bytes = if has_pointers { bytes / CACHED_POINTERS_OF_SHARD } else { 0 };
        let shard = || Shard {
            rows: rows(bytes),
            cached_pointers: CachedPointers::new(cached_pointer_bytes),
            cached_pointer_bytes,
            has_pointers: false,
            writers: 0,
            writer: 0,
            is_mixed: false,
            changes: 0,
            hits: 0,
            misses: 0,
        };
        Self {
            shards: (0..shards).map(|_| Mutex::new(shard())).collect(),
            has_pointers,
            // A client that knew it could have a key taken for another.
            cached_pointers_seed: RandomState::new().hash_one(()),
            writes: AtomicU64::new(0),
            removed: RemovedRanges::default(),
            freeing: Arc::default(),
        }
    }

    #[inline]
    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        // The tables of the shards go by the lowest and the highest bits.
        &self.shards[(hash >> 32) as usize & (self.shards.len() - 1)]
    }

    /// The row of `key`.
    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Result<Row, Absent> {
        let hash = XxHash3_64::oneshot(key);
        let mut shard = self.shard(hash).lock();
        if shard.writers > 0 {
            shard.misses += 1;
            return Err(Absent { hash, changes: None });
        }
        if let Some(kept) = shard.rows.get(&hash).filter(|kept| kept.row.key() == key) {
            if self.is_spared(kept) {
                let row = kept.row.clone();
                shard.hits += 1;
                return Ok(row);
            }
            shard.rows.remove(&hash);
        }
        if let Some(row) = self.row_of_cached_pointer(&mut shard, hash, key) {
            shard.hits += 1;
            return Ok(row);
        }
        shard.misses += 1;
        Err(Absent { hash, changes: Some(shard.changes) })
    }

    /// Makes a row of the place that is here for `key`.
    fn row_of_cached_pointer(&self, shard: &mut Shard, hash: u64, key: &[u8]) -> Option<Row> {
        if shard.cached_pointers.are_empty() {
            return None;
        }
        let place = shard.cached_pointers.take(self.tag(key))?;
        let kept = Kept { row: Row::of(key, place.stored(), &[]), spared: place.spared(self.removed.count()).into() };
        if !self.is_spared(&kept) {
            return None;
        }
        let row = kept.row.clone();
        let gone_bytes = self.gone_bytes();
        if gone_bytes == 0 || shard.has_space(row.bytes.len(), gone_bytes) {
            self.insert(shard, hash, kept);
        } else {
            shard.cached_pointers.put(self.tag(key), place);
        }
        Some(row)
    }

    fn tag(&self, key: &[u8]) -> Tag {
        Tag::of(XxHash3_64::oneshot_with_seed(self.cached_pointers_seed, key))
    }

    /// Adds a row. Of those that give way to it pointers stay.
    fn insert(&self, shard: &mut Shard, hash: u64, kept: Kept) {
        self.expect_cached_pointers(shard, kept.row.stored());
        let (mut evicted, newest) = (Vec::new(), Arc::as_ptr(&kept.row.bytes));
        shard.rows.insert_with_lifecycle(hash, kept, &mut evicted);
        self.keep_cached_pointers(shard, evicted, hash, newest);
    }

    /// Puts a row in the place of the one that is here, as [`insert`](Self::insert) does.
    fn replace(&self, shard: &mut Shard, hash: u64, kept: Kept) {
        self.expect_cached_pointers(shard, kept.row.stored());
        let (mut evicted, newest) = (Vec::new(), Arc::as_ptr(&kept.row.bytes));
        // It is here, or has just lost its room. The lookup that found it has counted as one
        // already.
        let _ = shard.rows.replace_with_lifecycle(hash, kept, true, &mut evicted);
        self.keep_cached_pointers(shard, evicted, hash, newest);
    }

    /// With the first pointer that comes to a shard rows leave room for places, while there may not
    /// be any yet.
    fn expect_cached_pointers(&self, shard: &mut Shard, stored: &[u8]) {
        if self.has_pointers && !shard.has_pointers && is_pointer(stored) {
            shard.has_pointers = true;
            // What goes for that goes without a place.
            shard.rows.set_capacity(shard.rows.capacity() - shard.cached_pointer_bytes);
        }
    }

    /// Keeps the pointers of rows that have gone because `newest` came, whose key has `hash`.
    fn keep_cached_pointers(&self, shard: &mut Shard, evicted: Vec<(u64, Kept)>, hash: u64, newest: *const [u8]) {
        if !self.has_pointers {
            return;
        }
        for (evicted_hash, Kept { row, spared }) in evicted {
            // One that was replaced has gone as well, and is out of date. The newest itself may
            // have found no room.
            let is_replaced = evicted_hash == hash && !std::ptr::addr_eq(Arc::as_ptr(&row.bytes), newest);
            let spared = spared.load(Ordering::Relaxed);
            if !is_replaced && let Some(place) = CachedPointer::of(row.stored(), spared, self.removed.count()) {
                shard.cached_pointers.put(self.tag(row.key()), place);
            }
        }
    }

    /// Takes away what is known of `key`.
    fn remove_key(&self, shard: &mut Shard, hash: u64, key: &[u8]) {
        shard.rows.remove(&hash);
        if !shard.cached_pointers.are_empty() {
            shard.cached_pointers.take(self.tag(key));
        }
    }

    /// Whether the row is in no range that was removed since it came here. No write is under way in
    /// its shard.
    #[inline]
    fn is_spared(&self, kept: &Kept) -> bool {
        let (count, spared) = (self.removed.count(), kept.spared.load(Ordering::Relaxed));
        if count != spared {
            if !self.removed.spare(kept.row.key(), spared) {
                return false;
            }
            // What is removed from now on is seen the next time.
            kept.spared.store(count, Ordering::Relaxed);
        }
        true
    }

    /// `row`, of what RocksDB has now.
    fn kept(&self, row: Row) -> Kept {
        Kept { row, spared: self.removed.count().into() }
    }

    /// What RocksDB had in `range` is removed. Writes are under way in all shards.
    fn remove(&self, range: Range<&[u8]>) {
        let first = |key: &[u8]| key.first().copied().unwrap_or_default();
        let is_wide = first(range.end).saturating_sub(first(range.start)) > 1;
        // A wide one is likely to hold most rows. Freeing millions takes seconds, in which nobody
        // may wait: a thread does it.
        match if is_wide { self.let_go() } else { None } {
            // Where no thread is to be had they are freed here, with what it was to run.
            Some(gone) => drop(std::thread::Builder::new().name("ecotone-rows".into()).spawn(move || drop(gone))),
            None => {
                if self.removed.add(range).is_multiple_of(FORGOTTEN_AFTER) {
                    self.shards.iter().for_each(|shard| shard.lock().cached_pointers.clear());
                }
            }
        }
    }

    /// Lets go of all rows; `None` while those of the last time are still being freed.
    fn let_go(&self) -> Option<Gone> {
        if self.freeing.is_under_way.swap(true, Ordering::Acquire) {
            return None;
        }
        let take = |shard: &Mutex<Shard>| {
            let mut shard = shard.lock();
            shard.cached_pointers.clear();
            let none = rows(shard.rows.capacity());
            let gone = std::mem::replace(&mut shard.rows, none);
            self.freeing.bytes.fetch_add(gone.weight(), Ordering::Relaxed);
            gone
        };
        Some(Gone { rows: self.shards.iter().map(take).collect(), freeing: self.freeing.clone() })
    }

    /// Each shard's part of what is still being freed.
    #[inline]
    fn gone_bytes(&self) -> u64 {
        self.freeing.bytes.load(Ordering::Relaxed).div_ceil(self.shards.len() as u64)
    }

    /// Keeps what RocksDB has `stored` with `key`, found since `absent` was told of it.
    pub(crate) fn keep(&self, absent: Absent, key: &[u8], stored: &[u8]) {
        let Some(changes) = absent.changes else { return };
        if stored.len() > MAX_ROW_BYTES {
            return;
        }
        let row = Row::of(key, stored, &[]);
        let gone_bytes = self.gone_bytes();
        let mut shard = self.shard(absent.hash).lock();
        let fits = gone_bytes == 0 || shard.has_space(row.bytes.len(), gone_bytes);
        if shard.writers == 0 && shard.changes == changes && fits {
            if !shard.cached_pointers.are_empty() {
                // Another lookup may have brought it, whose row has gone again.
                shard.cached_pointers.take(self.tag(key));
            }
            self.insert(&mut shard, absent.hash, self.kept(row));
        }
    }

    /// Keeps the `value` that the pointer of `row` leads to, unless that row has gone meanwhile.
    pub(crate) fn keep_value(&self, row: &Row, value: &[u8]) {
        if value.len() > MAX_VALUE_BYTES {
            return;
        }
        let hash = XxHash3_64::oneshot(row.key());
        let gone_bytes = self.gone_bytes();
        let mut shard = self.shard(hash).lock();
        // Another row of the same look may name another value. While a write is under way this one
        // stays as it is until that is over.
        let here = shard.rows.peek(&hash).filter(|here| Arc::ptr_eq(&here.row.bytes, &row.bytes));
        let spared = here.map(|here| here.spared.load(Ordering::Relaxed));
        if let Some(spared) = spared
            && shard.takes_value(value)
            && (gone_bytes == 0 || shard.has_space(value.len(), gone_bytes))
        {
            self.replace(&mut shard, hash, Kept { row: row.with(value), spared: spared.into() });
        }
    }

    /// The row of `key` is of no use any more.
    pub(crate) fn forget(&self, key: &[u8]) {
        let hash = XxHash3_64::oneshot(key);
        self.remove_key(&mut self.shard(hash).lock(), hash, key);
    }

    /// `changes` are about to be written, in their order. Say when they were
    /// ([`Writing::succeed`]); if that is never said they were not.
    pub(crate) fn begin_write<'c, C>(&'c self, changes: C) -> Writing<'c, C>
    where
        C: Iterator<Item = RowChange<'c>> + Clone,
    {
        Writing::begin(self, changes, self.writes.fetch_add(1, Ordering::Relaxed))
    }

    /// `key` has `stored` from now on. A pointer leads to the `separated` value.
    fn put(&self, shard: &mut Shard, hash: u64, key: &[u8], stored: &[u8], separated: Option<&[u8]>) {
        let had_cached_pointer =
            !shard.cached_pointers.are_empty() && shard.cached_pointers.take(self.tag(key)).is_some();
        // Of the room so many bytes are still taken by rows that have gone.
        let gone_bytes = self.gone_bytes();
        if shard.is_mixed || stored.len() > MAX_ROW_BYTES {
            shard.rows.remove(&hash);
        } else if let Some(here) = shard.rows.peek(&hash) {
            let had_value = here.row.value().is_some();
            let value = separated.filter(|value| had_value && shard.takes_value(value)).unwrap_or_default();
            self.expect_cached_pointers(shard, stored);
            if let Some(mut here) = shard.rows.peek_mut(&hash)
                && here.row.overwrite(key, stored, value)
            {
                here.spared = self.removed.count().into();
                return;
            }
            let row = Row::of(key, stored, value);
            if gone_bytes == 0 || shard.has_space(row.bytes.len(), gone_bytes) {
                self.replace(shard, hash, self.kept(row));
            } else {
                shard.rows.remove(&hash);
            }
        } else if stored.len() > 1 && shard.has_space(key.len() + stored.len(), gone_bytes) {
            // What has no value is often a name in an order, which is gone through and not looked
            // up; where it is, that brings its row.
            self.insert(shard, hash, self.kept(Row::of(key, stored, &[])));
        } else if self.has_pointers && is_pointer(stored) {
            self.expect_cached_pointers(shard, stored);
            let removed = self.removed.count();
            if let Some(place) = CachedPointer::of(stored, removed, removed) {
                // As with rows: a write brings none that would take another's room.
                match had_cached_pointer {
                    true => shard.cached_pointers.put(self.tag(key), place),
                    false => _ = shard.cached_pointers.put_where_space(self.tag(key), place),
                }
            }
        }
    }

    pub(crate) fn counts(&self) -> RowCounts {
        let mut counts = RowCounts::default();
        for shard in &self.shards {
            let shard = shard.lock();
            counts.hits += shard.hits;
            counts.misses += shard.misses;
            counts.bytes += shard.rows.weight() + shard.cached_pointers.bytes();
        }
        counts.bytes += self.freeing.bytes.load(Ordering::Relaxed);
        counts
    }
}

impl Shard {
    fn begin(&mut self, write: u64) {
        if self.writers == 0 {
            (self.writer, self.is_mixed) = (write, false);
        }
        self.is_mixed |= self.writer != write;
        self.writers += 1;
    }

    fn end(&mut self) {
        self.writers -= 1;
        self.changes += 1;
    }

    /// Whether a row of so many bytes fits beside all that are here, and those that have gone and
    /// are not freed.
    #[inline]
    fn has_space(&self, bytes: usize, gone_bytes: u64) -> bool {
        self.rows.weight() + weight(bytes) + gone_bytes <= self.rows.capacity()
    }

    /// Whether `value` may stand beside its pointer.
    fn takes_value(&self, value: &[u8]) -> bool {
        value.len() <= MAX_VALUE_BYTES && weight(value.len()) <= self.rows.capacity() / VALUES_OF_SHARD
    }
}

fn is_pointer(stored: &[u8]) -> bool {
    Header::decode(stored).is_ok_and(|header| matches!(header.kind, Kind::Separated(_)))
}

#[derive(Clone)]
struct RowWeight;

impl Weighter<u64, Kept> for RowWeight {
    #[inline]
    fn weight(&self, _: &u64, kept: &Kept) -> u64 {
        weight(kept.row.bytes.len())
    }
}

#[inline]
fn weight(bytes: usize) -> u64 {
    bytes as u64 + ROW_OVERHEAD_BYTES
}

/// Rows are filed by hashes already.
#[derive(Clone, Copy)]
struct HashItself;

impl std::hash::BuildHasher for HashItself {
    type Hasher = Itself;

    fn build_hasher(&self) -> Itself {
        Itself(0)
    }
}

struct Itself(u64);

impl std::hash::Hasher for Itself {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = XxHash3_64::oneshot(bytes);
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests;
