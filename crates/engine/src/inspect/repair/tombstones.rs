//! Deletions of ranges, asked for keys that rise.
//!
//! A range deletion shadows every older version of a key that it covers. Where a compaction has set
//! the sequence number of a version to 0 its age is not known any more. Then it is shadowed only
//! where the range deletion holds within the bounds of its own table: within these nothing newer
//! lies in a deeper level. Beyond them the same range deletion stood in other tables, which may
//! have met, and outlived, newer versions since.

use ecotone_rocks_sys::salvage::RangeDeletion;

use super::merge::Version;

/// Where a range deletion shadows versions without an age.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) from: Vec<u8>,
    pub(super) to: Vec<u8>,
    pub(super) ends_before_to: bool,
}

impl Bounds {
    fn contain(&self, key: &[u8]) -> bool {
        let to = &self.to[..];
        &self.from[..] <= key && (key < to || key == to && !self.ends_before_to)
    }
}

struct Tombstone {
    range: RangeDeletion,
    /// `None`: nowhere.
    ageless: Option<Bounds>,
}

/// All range deletions of a store.
#[derive(Default)]
pub(super) struct Tombstones {
    /// Those that may cover a key to come, the next one last.
    coming: Vec<Tombstone>,
    /// Those that cover the key asked for last, or did before.
    open: Vec<Tombstone>,
}

impl Tombstones {
    pub(super) fn add(&mut self, range: RangeDeletion, ageless: Option<Bounds>) {
        self.coming.push(Tombstone { range, ageless });
    }

    /// All are added; keys are asked for from now on.
    pub(super) fn begin(&mut self) {
        self.coming.sort_by(|one, other| other.range.from.cmp(&one.range.from));
    }

    /// Whether `version` is deleted. Keys must not fall from call to call.
    pub(super) fn shadow(&mut self, version: &Version) -> bool {
        let key = &version.key[..];
        while let Some(next) = self.coming.pop_if(|next| &next.range.from[..] <= key) {
            self.open.push(next);
        }
        self.open.retain(|tombstone| &tombstone.range.to[..] > key);
        self.open.iter().any(|Tombstone { range, ageless }| {
            range.sequence > version.sequence
                && (version.sequence > 0 || ageless.as_ref().is_some_and(|bounds| bounds.contain(key)))
        })
    }
}
