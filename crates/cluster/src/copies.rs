//! Jobs where a copy is: what a job knows of the copies of its shard, at its owner and at its
//! worker.
//!
//! The store of a shard with copies is opened anew in each epoch, and its side of the federation
//! ([`Federation::store_offload_of`](crate::Federation::store_offload_of)) with it: so a job, its
//! token and its result belong to one epoch and one session. The owner names its input tables by what
//! they hold; a worker whose copy holds the same reads its own files, and what it makes is there when
//! its copy wants it.
//!
//! # What holds whatever fails
//!
//! - A file of a copy is used only where its content is the one that the owner named: length and
//!   XXH3 of 128 bits, compared when the copy got it. Its number says nothing.
//! - A result is taken only while this server is the primary of the job's epoch.
//! - A copy that lacks a table, or is away, costs nothing but the bytes: they are fetched from the
//!   owner, as by a worker without a copy.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ecotone_types::ServerId;

/// A table that copies could have for so long is taken to be at each that follows: so long a copy
/// waits before it fetches one, and as long again for the fetch.
const HELD_AFTER: Duration = Duration::from_secs(2);

/// What a table holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TableContent {
    /// Its length.
    pub bytes: u64,
    /// XXH3 with 128 bits of all of them.
    pub hash: u128,
}

impl TableContent {
    /// The hash as it is sent.
    pub(crate) fn hash_to_wire(self) -> Vec<u8> {
        self.hash.to_le_bytes().to_vec()
    }

    /// `None` for what is no hash: the table has to be fetched.
    pub(crate) fn from_wire(bytes: u64, hash: &[u8]) -> Option<TableContent> {
        Some(TableContent { bytes, hash: u128::from_le_bytes(hash.try_into().ok()?) })
    }
}

/// A store that was opened as the primary of a shard with copies. It belongs to one epoch.
pub trait PrimaryCopy: Send + Sync {
    /// The number of the shard; not 0.
    fn shard(&self) -> u32;

    /// The epoch in which the store was opened.
    fn epoch(&self) -> u64;

    /// Whether this server is the primary in that epoch still. Once it is not it never is again.
    fn is_primary(&self) -> bool;

    /// What a table holds, by its number, and for how long copies could have had it; `None` where
    /// nobody has computed that.
    fn content_of(&self, table: u64) -> Option<(TableContent, Duration)>;

    /// The servers whose copies follow now.
    fn holders(&self) -> Vec<ServerId>;
}

/// An input table that a worker would rather have from its own copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedTable {
    /// What it must hold.
    pub content: TableContent,
    /// Where it is to be linked.
    pub link: PathBuf,
}

/// The copies of shards on this server, as jobs of other servers use them. Called on the threads of
/// these jobs.
pub trait HeldCopies: Send + Sync {
    /// The epoch of a shard that has a copy here, as that knows it; `None`: there is none.
    fn epoch_of(&self, shard: u32) -> Option<u64>;

    /// Links each table that the shard's copy here holds to the path that it came with. Says of each
    /// whether it does. A link keeps the bytes whatever becomes of the copy.
    fn link(&self, shard: u32, tables: &[NamedTable]) -> Vec<bool>;

    /// A table that was linked as holding this does not.
    fn distrust(&self, shard: u32, content: TableContent);

    /// A job has made this table of the shard, and its owner may install it: the copy here may take
    /// it when it wants such a one. The file goes soon.
    fn keep(&self, shard: u32, table: &Path);
}

/// Whether copies that follow hold a table by now.
pub(crate) fn is_held(age: Duration) -> bool {
    age >= HELD_AFTER
}

/// The number of a table that is called so.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    name.strip_suffix(".sst").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
}
