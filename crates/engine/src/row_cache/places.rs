//! Where values lie whose rows had to give way: what is stored with a key, without the key and the value, in a fortieth of what a row with a value of a
//! kilobyte takes. A lookup of RocksDB costs half of what it costs to read such a value from the device, so a place is worth more than a row of the same size.
//!
//! A key stands here by 64 bits of a hash with a seed that nobody knows, from which follows where it stands. That a lookup of a key that is not
//! here finds another one's place happens once in 2^64 by the number of places; where the value is read, its record tells.
//!
//! Bounds: the bytes given, which are taken as they are needed, by doubling. In a full bucket one goes for another.
//!
//! Threads: those of the shard it is part of, one at a time.

use super::removed::MOST_RANGES;

/// The longest pointer with its header and an expiry.
pub(super) const MOST_PLACE_BYTES: usize = 22;

/// A key may stand in any of so many.
const WAYS: usize = 4;

/// There are at least so many, unless there is room for fewer.
const FEWEST_BUCKETS: usize = 32;

/// After so many removed ranges all places are forgotten, so that [`Place`] tells by 16 bits how many had been removed when it was last looked at.
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
pub(super) struct Place {
    bytes: [u8; MOST_PLACE_BYTES],
    length: u8,
    /// How many ranges had been removed when the key was known to be in none of them: the lower bits.
    spared: u16,
}

impl Place {
    /// Of what is `stored`, when `spared` ranges had been removed of `removed` by now. `None`: it is too long, or removed for all that is known.
    pub(super) fn of(stored: &[u8], spared: u64, removed: u64) -> Option<Self> {
        if stored.is_empty() || removed.saturating_sub(spared) > MOST_RANGES as u64 {
            return None;
        }
        let mut bytes = [0; MOST_PLACE_BYTES];
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

/// Tags stand together, so that one line of the processor's cache tells whether a key is here.
#[derive(Clone)]
struct Bucket {
    tags: [u64; WAYS],
    places: [Place; WAYS],
}

const NO_PLACE: Place = Place { bytes: [0; MOST_PLACE_BYTES], length: 0, spared: 0 };

const EMPTY: Bucket = Bucket { tags: [0; WAYS], places: [NO_PLACE; WAYS] };

const BUCKET_BYTES: usize = size_of::<Bucket>();

/// The places of one shard.
pub(super) struct Places {
    buckets: Vec<Bucket>,
    first_buckets: usize,
    /// So many times twice the first ones that it is all there is room for, but for a part of it.
    most_buckets: usize,
}

impl Places {
    /// None yet, and room for `bytes`.
    pub(super) fn new(bytes: u64) -> Self {
        let mut first_buckets = usize::try_from(bytes / BUCKET_BYTES as u64).unwrap_or(usize::MAX);
        let mut doublings = 0;
        while first_buckets >= 2 * FEWEST_BUCKETS {
            (first_buckets, doublings) = (first_buckets / 2, doublings + 1);
        }
        Self { buckets: Vec::new(), first_buckets, most_buckets: first_buckets << doublings }
    }

    pub(super) fn are_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.buckets.iter().flat_map(|bucket| &bucket.tags).filter(|tag| **tag != 0).count()
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.buckets.len() * BUCKET_BYTES) as u64
    }

    pub(super) fn clear(&mut self) {
        self.buckets = Vec::new();
    }

    /// Where `tag` stands, if it does.
    fn find(&self, tag: Tag) -> Option<(usize, usize)> {
        let bucket = bucket_of(tag, self.buckets.len())?;
        let way = self.buckets[bucket].tags.iter().position(|here| *here == tag.0)?;
        Some((bucket, way))
    }

    /// Takes the place of `tag` away, if it is here.
    pub(super) fn take(&mut self, tag: Tag) -> Option<Place> {
        let (bucket, way) = self.find(tag)?;
        let bucket = &mut self.buckets[bucket];
        bucket.tags[way] = 0;
        Some(bucket.places[way])
    }

    /// Puts `place` here, where another one may go for it.
    pub(super) fn put(&mut self, tag: Tag, place: Place) {
        if !self.put_where_room(tag, place)
            && let Some(bucket) = bucket_of(tag, self.buckets.len())
        {
            // Any: bits of the hash that its bucket does not follow from.
            let way = tag.0 as usize % WAYS;
            let bucket = &mut self.buckets[bucket];
            (bucket.tags[way], bucket.places[way]) = (tag.0, place);
        }
    }

    /// Puts `place` here if no other of its bucket has to go for it.
    pub(super) fn put_where_room(&mut self, tag: Tag, place: Place) -> bool {
        loop {
            if let Some(bucket) = bucket_of(tag, self.buckets.len()) {
                let bucket = &mut self.buckets[bucket];
                let of_tag = bucket.tags.iter().position(|here| *here == tag.0);
                if let Some(way) = of_tag.or_else(|| bucket.tags.iter().position(|here| *here == 0)) {
                    (bucket.tags[way], bucket.places[way]) = (tag.0, place);
                    return true;
                }
            }
            if self.buckets.len() >= self.most_buckets {
                return false;
            }
            self.grow();
        }
    }

    /// Each bucket becomes two.
    fn grow(&mut self) {
        let count = (self.buckets.len() * 2).max(self.first_buckets);
        let before = std::mem::replace(&mut self.buckets, vec![EMPTY; count]);
        for (tag, place) in before.into_iter().flat_map(|bucket| bucket.tags.into_iter().zip(bucket.places)) {
            if tag != 0 {
                self.put_where_room(Tag(tag), place);
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

    fn place(number: u64) -> Place {
        Place::of(&number.to_le_bytes(), 0, 0).unwrap()
    }

    #[test]
    fn what_was_put_is_here_until_it_is_taken() {
        let mut places = Places::new(1 << 20);
        assert!(places.are_empty() && places.take(tag(1)).is_none());
        for number in 0..2000 {
            assert!(places.put_where_room(tag(number), place(number)), "{number}");
        }
        assert!(places.bytes() <= 1 << 20);
        assert!(places.put_where_room(tag(7), place(8)), "one that is here changes");
        assert_eq!(places.take(tag(7)).map(|place| place.stored().to_vec()), Some(8u64.to_le_bytes().to_vec()));
        assert_eq!(places.take(tag(7)), None);
        for number in (0..2000).filter(|number| *number != 7) {
            assert_eq!(places.take(tag(number)), Some(place(number)), "{number}");
        }
        places.clear();
        assert_eq!(places.bytes(), 0);
    }

    #[test]
    fn a_full_one_takes_no_more_than_it_was_given_and_keeps_what_came_last() {
        for bytes in [0, 100, 4096, 100_000] {
            let mut places = Places::new(bytes);
            let most = bytes / BUCKET_BYTES as u64 * WAYS as u64;
            for number in 0..10 * most {
                places.put(tag(number), place(number));
                assert!(places.bytes() <= bytes);
                assert_eq!(places.find(tag(number)).is_some(), !places.are_empty());
            }
            let mut is_here =
                |number| places.take(tag(number)).inspect(|here| assert_eq!(*here, place(number))).is_some();
            let here = (0..10 * most).filter(|number| is_here(*number)).count() as u64;
            assert!(here <= most && here * 10 >= most * 9, "{here} of {most}");
        }
    }

    #[test]
    fn a_place_tells_how_many_ranges_it_was_spared() {
        for removed in [0, 5, 1 << 16, (1 << 16) + 3, 1 << 40] {
            for behind in [0, 1, MOST_RANGES as u64] {
                let spared = u64::saturating_sub(removed, behind);
                let place = Place::of(b"stored", spared, removed).unwrap();
                for later in [0, 1, FORGOTTEN_AFTER] {
                    assert_eq!(place.spared(removed + later), spared, "{removed} {behind} {later}");
                }
            }
        }
        assert_eq!(Place::of(b"stored", 0, MOST_RANGES as u64 + 1), None);
        assert_eq!(Place::of(&[1; MOST_PLACE_BYTES + 1], 0, 0), None);
        assert_eq!(Place::of(&[], 0, 0), None);
    }
}
