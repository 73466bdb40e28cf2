//! Where values lie whose rows had to give way: what is stored with a key, without the key and the
//! value, in a fortieth of what a row with a value of a kilobyte takes. A row spares a lookup of
//! RocksDB and a read of the device, forty places as many lookups.
//!
//! A key stands here by 64 bits of a hash with a seed that nobody knows, from which follows where
//! it stands. That a lookup of a key that is not here finds another one's place happens once in
//! 2^64 by the number of places; where the value is read, its record tells.
//!
//! Bounds: the bytes given, which are taken by doubling when half of what is there is used. In a
//! full bucket one goes for another.
//!
//! Threads: those of the shard it is part of, one at a time.

use super::removed::MAX_RANGES;

/// The longest pointer to a value that is not compressed, behind a header with a type and an expiry;
/// one to a compressed value of less than 16 KiB is no longer. What is longer has no place here.
pub(super) const MAX_CACHED_POINTER_BYTES: usize = 22;

/// A key may stand in any of so many.
const WAYS: usize = 4;

/// There are at least so many, unless there is room for fewer.
const MIN_BUCKETS: usize = 32;

/// After so many removed ranges all places are forgotten, so that [`CachedPointer`] tells by 16
/// bits how many had been removed when it was last looked at.
pub(super) const FORGOTTEN_AFTER: u64 = 1 << 15;

/// The hash of a key. 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tag(u64);

impl Tag {
    pub(super) fn of(hash: u64) -> Self {
        Self(hash.max(1))
    }
}

/// What is stored with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CachedPointer {
    bytes: [u8; MAX_CACHED_POINTER_BYTES],
    length: u8,
    /// How many ranges had been removed when the key was known to be in none of them: the lower
    /// bits.
    spared: u16,
}

impl CachedPointer {
    /// Of what is `stored`, when `spared` ranges had been removed of `removed` by now. `None`: it
    /// is too long, or removed for all that is known.
    pub(super) fn of(stored: &[u8], spared: u64, removed: u64) -> Option<Self> {
        if stored.is_empty() || removed.saturating_sub(spared) > MAX_RANGES as u64 {
            return None;
        }
        let mut bytes = [0; MAX_CACHED_POINTER_BYTES];
        bytes.get_mut(..stored.len())?.copy_from_slice(stored);
        Some(Self { bytes, length: stored.len() as u8, spared: spared as u16 })
    }

    pub(super) fn stored(&self) -> &[u8] {
        &self.bytes[..self.length.into()]
    }

    /// How many ranges it was spared, of `removed` by now.
    pub(super) fn spared(&self, removed: u64) -> u64 {
        removed.saturating_sub((removed as u16).wrapping_sub(self.spared).into())
    }
}

/// Tags stand together, so that one line of the processor's cache, or two, tell whether a key is
/// here.
#[derive(Clone)]
struct Bucket {
    tags: [u64; WAYS],
    cached_pointers: [CachedPointer; WAYS],
}

const NO_CACHED_POINTER: CachedPointer = CachedPointer { bytes: [0; MAX_CACHED_POINTER_BYTES], length: 0, spared: 0 };

const EMPTY: Bucket = Bucket { tags: [0; WAYS], cached_pointers: [NO_CACHED_POINTER; WAYS] };

const BUCKET_BYTES: usize = size_of::<Bucket>();

/// The places of one shard.
pub(super) struct CachedPointers {
    buckets: Vec<Bucket>,
    count: usize,
    first_buckets: usize,
    /// The first ones doubled as often as there is room.
    max_buckets: usize,
}

impl CachedPointers {
    /// None yet, and room for `bytes`.
    pub(super) fn new(bytes: u64) -> Self {
        let mut first_buckets = usize::try_from(bytes / BUCKET_BYTES as u64).unwrap_or(usize::MAX);
        let mut doublings = 0;
        while first_buckets >= 2 * MIN_BUCKETS {
            (first_buckets, doublings) = (first_buckets / 2, doublings + 1);
        }
        Self { buckets: Vec::new(), count: 0, first_buckets, max_buckets: first_buckets << doublings }
    }

    pub(super) fn are_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        assert_eq!(self.count, self.buckets.iter().flat_map(|bucket| &bucket.tags).filter(|tag| **tag != 0).count());
        self.count
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.buckets.len() * BUCKET_BYTES) as u64
    }

    pub(super) fn clear(&mut self) {
        (self.buckets, self.count) = (Vec::new(), 0);
    }

    /// Where `tag` stands, if it does.
    fn find(&self, tag: Tag) -> Option<(usize, usize)> {
        let bucket = bucket_of(tag, self.buckets.len())?;
        let way = self.buckets[bucket].tags.iter().position(|here| *here == tag.0)?;
        Some((bucket, way))
    }

    /// Takes the place of `tag` away, if it is here.
    pub(super) fn take(&mut self, tag: Tag) -> Option<CachedPointer> {
        let (bucket, way) = self.find(tag)?;
        let bucket = &mut self.buckets[bucket];
        bucket.tags[way] = 0;
        self.count -= 1;
        Some(bucket.cached_pointers[way])
    }

    /// Puts `place` here, where another one may go for it.
    pub(super) fn put(&mut self, tag: Tag, place: CachedPointer) {
        if !self.put_where_space(tag, place)
            && let Some(bucket) = bucket_of(tag, self.buckets.len())
        {
            // Any: bits of the hash that its bucket does not follow from.
            let way = tag.0 as usize % WAYS;
            let bucket = &mut self.buckets[bucket];
            (bucket.tags[way], bucket.cached_pointers[way]) = (tag.0, place);
        }
    }

    /// Puts `place` here if no other of its bucket has to go for it.
    pub(super) fn put_where_space(&mut self, tag: Tag, place: CachedPointer) -> bool {
        loop {
            if self.put_in_bucket(tag, place) {
                return true;
            }
            // Buckets fill unevenly: with one that is full most others are not.
            let is_half_full = 2 * self.count >= WAYS * self.buckets.len();
            if !is_half_full || self.buckets.len() >= self.max_buckets {
                return false;
            }
            self.grow();
        }
    }

    fn put_in_bucket(&mut self, tag: Tag, place: CachedPointer) -> bool {
        let Some(bucket) = bucket_of(tag, self.buckets.len()) else { return false };
        let bucket = &mut self.buckets[bucket];
        let of_tag = bucket.tags.iter().position(|here| *here == tag.0);
        let Some(way) = of_tag.or_else(|| bucket.tags.iter().position(|here| *here == 0)) else { return false };
        self.count += usize::from(of_tag.is_none());
        (bucket.tags[way], bucket.cached_pointers[way]) = (tag.0, place);
        true
    }

    /// Each bucket becomes two.
    fn grow(&mut self) {
        let count = (self.buckets.len() * 2).max(self.first_buckets);
        let before = std::mem::replace(&mut self.buckets, vec![EMPTY; count]);
        self.count = 0;
        for (tag, place) in before.into_iter().flat_map(|bucket| bucket.tags.into_iter().zip(bucket.cached_pointers)) {
            if tag != 0 {
                self.put_in_bucket(Tag(tag), place);
            }
        }
    }
}

/// Which of `count` buckets a key stands in, by the upper half of its hash.
fn bucket_of(Tag(tag): Tag, count: usize) -> Option<usize> {
    (count > 0).then(|| (((tag >> 32) * count as u64) >> 32) as usize)
}

#[cfg(test)]
mod tests {
    use twox_hash::XxHash3_64;

    use super::*;

    fn tag(number: u64) -> Tag {
        Tag::of(XxHash3_64::oneshot(&number.to_le_bytes()))
    }

    fn place(number: u64) -> CachedPointer {
        CachedPointer::of(&number.to_le_bytes(), 0, 0).unwrap()
    }

    #[test]
    fn what_was_put_is_here_until_it_is_taken() {
        let mut cached_pointers = CachedPointers::new(1 << 20);
        assert!(cached_pointers.are_empty() && cached_pointers.take(tag(1)).is_none());
        let here: Vec<u64> =
            (0..20_000).filter(|number| cached_pointers.put_where_space(tag(*number), place(*number))).collect();
        assert!(here.len() > 16_000 && here.len() == cached_pointers.count(), "{}", here.len());
        let one = here[7];
        assert!(cached_pointers.put_where_space(tag(one), place(one + 1)), "one that is here changes");
        assert_eq!(cached_pointers.take(tag(one)), Some(place(one + 1)));
        assert_eq!(cached_pointers.take(tag(one)), None);
        for number in here.into_iter().filter(|number| *number != one) {
            assert_eq!(cached_pointers.take(tag(number)), Some(place(number)), "{number}");
        }
        assert_eq!(cached_pointers.count(), 0);
        cached_pointers.clear();
        assert_eq!(cached_pointers.bytes(), 0);
    }

    #[test]
    fn memory_is_taken_when_half_of_what_there_is_has_a_use() {
        let mut cached_pointers = CachedPointers::new(1 << 20);
        for number in 0..40_000 {
            let before = (cached_pointers.bytes(), cached_pointers.count());
            cached_pointers.put(tag(number), place(number));
            let doubles = cached_pointers.bytes() > before.0 && before.0 > 0;
            assert!(!doubles || before.1 * 2 >= before.0 as usize / BUCKET_BYTES * WAYS, "{before:?}");
        }
        assert!(cached_pointers.bytes() > 1 << 19);
    }

    #[test]
    fn a_full_one_takes_no_more_than_it_was_given_and_keeps_what_came_last() {
        for bytes in [0, 100, 4096, 100_000] {
            let mut cached_pointers = CachedPointers::new(bytes);
            let most = bytes / BUCKET_BYTES as u64 * WAYS as u64;
            for number in 0..10 * most {
                cached_pointers.put(tag(number), place(number));
                assert!(cached_pointers.bytes() <= bytes);
                assert_eq!(cached_pointers.find(tag(number)).is_some(), !cached_pointers.are_empty());
            }
            let mut is_here =
                |number| cached_pointers.take(tag(number)).inspect(|here| assert_eq!(*here, place(number))).is_some();
            let here = (0..10 * most).filter(|number| is_here(*number)).count() as u64;
            assert!(here <= most && here * 10 >= most * 9, "{here} of {most}");
        }
    }

    #[test]
    fn a_place_tells_how_many_ranges_it_was_spared() {
        for removed in [0, 5, 1 << 16, (1 << 16) + 3, 1 << 40] {
            for behind in [0, 1, MAX_RANGES as u64] {
                let spared = u64::saturating_sub(removed, behind);
                let place = CachedPointer::of(b"stored", spared, removed).unwrap();
                for later in [0, 1, FORGOTTEN_AFTER] {
                    assert_eq!(place.spared(removed + later), spared, "{removed} {behind} {later}");
                }
            }
        }
        assert_eq!(CachedPointer::of(b"stored", 0, MAX_RANGES as u64 + 1), None);
        assert_eq!(CachedPointer::of(&[1; MAX_CACHED_POINTER_BYTES + 1], 0, 0), None);
        assert_eq!(CachedPointer::of(&[], 0, 0), None);
    }
}
