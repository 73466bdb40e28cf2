//! The versions of one sampled key, and which of them shadows which.
//!
//! Invariant: the newest comes first. Of two with one sequence that of the table with the lesser
//! number counts as newer.

use std::cmp::Reverse;

/// A value and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) bytes: u32,
    pub(super) segment: Option<u32>,
}

/// A version, and the table that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) sequence: u64,
    pub(super) table: u64,
    /// `None` for a deletion.
    pub(super) value: Option<Value>,
}

impl Version {
    fn place(&self) -> (Reverse<u64>, u64) {
        (Reverse(self.sequence), self.table)
    }
}

/// See the module. Most keys have one version, which takes no memory of its own.
#[derive(Clone, Debug, Default)]
pub(super) enum Versions {
    /// Only while they change.
    #[default]
    None,
    One(Version),
    Several(Vec<Version>),
}

impl Versions {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Several(versions) => versions.len(),
        }
    }

    /// Adds one, and returns what it shadows, or itself where it is shadowed; `None` where there
    /// was no other, or that is a deletion.
    pub(super) fn add(&mut self, version: Version) -> Option<Value> {
        match self {
            Self::None => {
                *self = Self::One(version);
                None
            }
            Self::One(other) => {
                let is_newer = version.place() < other.place();
                let (newest, shadowed) = if is_newer { (version, *other) } else { (*other, version) };
                *self = Self::Several(vec![newest, shadowed]);
                shadowed.value
            }
            Self::Several(versions) => {
                let at = versions.partition_point(|other| other.place() < version.place());
                versions.insert(at, version);
                versions[at.max(1)].value
            }
        }
    }

    /// Removes that of a table, if it is there, and returns what was shadowed and is not any more:
    /// the next one where it was the newest, else itself. `None` where nothing was, or that is a
    /// deletion.
    pub(super) fn remove(&mut self, sequence: u64, table: u64) -> Option<Value> {
        let is_it = |version: &Version| (version.sequence, version.table) == (sequence, table);
        match self {
            Self::One(only) if is_it(only) => {
                *self = Self::None;
                None
            }
            Self::None | Self::One(_) => None,
            Self::Several(versions) => {
                let at = versions.iter().position(is_it)?;
                let shown = versions[at.max(1)].value;
                versions.remove(at);
                if let [only] = versions[..] {
                    *self = Self::One(only);
                }
                shown
            }
        }
    }
}
