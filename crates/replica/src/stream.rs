//! What travels between the copies of a shard.
//!
//! A stream is a sequence of items, one for each change of the primary's directory, in an order in
//! which the copy's directory can be opened after any prefix: values before the WAL bytes that name
//! them, tables before the MANIFEST edit that names them, deletions last. The contents of items are
//! opaque here: a checksum stands for them, which whoever reads the bytes has compared.

use ecotone_control::ids::Epoch;

use crate::position::{History, Incarnation, Mark, Position};

/// Items of one message.
pub const MAX_ITEMS: usize = 256;
/// Bytes of one message, if more than one item is in it.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 20;
/// Bytes of one item, as a primary makes them.
pub const MAX_ITEM_BYTES: usize = 256 << 10;
/// What an item costs on the wire beside its bytes, for flow control.
pub const ITEM_BYTES: u64 = 48;

/// What a finished file is known by everywhere: its length, and a checksum over its contents that
/// tells apart what accidents make. (Servers of a federation do not attack each other so: see
/// SECURITY.md.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentId {
    /// The length of the file.
    pub len: u64,
    /// XXH3, 128 bits, of all of it.
    pub hash: u128,
}

/// A file of a store. Segments have numbers of their own; all others share RocksDB's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// A segment of the value log.
    Segment = 0,
    /// RocksDB's WAL.
    Wal = 1,
    /// RocksDB's MANIFEST, up to a sync of it.
    Manifest = 2,
    /// A table.
    Table = 3,
    /// Which MANIFEST is in force. Its number is that MANIFEST's.
    Current = 4,
    /// What the directory is, and the version of its format. Its number is 0.
    Store = 5,
}

impl FileKind {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Segment, Self::Wal, Self::Manifest, Self::Table, Self::Current, Self::Store];
}

/// What an item does. Numbers of files are those of its epoch, and no other epoch in the history of
/// a copy gives them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes are appended to a segment, a WAL or a MANIFEST.
    Append {
        /// Which kind of file.
        file: FileKind,
        /// Its number.
        number: u64,
        /// At which length.
        offset: u64,
    },
    /// A segment, a WAL or a MANIFEST is cut.
    Truncate {
        /// Which kind of file.
        file: FileKind,
        /// Its number.
        number: u64,
        /// Its length from now on.
        len: u64,
    },
    /// A table or a segment is finished. No bytes come with it: a copy that lacks them asks for
    /// them, before a later edit of the MANIFEST is in force that needs them.
    Finished {
        /// Which kind of file.
        file: FileKind,
        /// Its number.
        number: u64,
        /// What it holds.
        content: ContentId,
    },
    /// A small file is replaced whole: `CURRENT`, `STORE`. In an epoch the first `CURRENT` ends the
    /// opening: a copy holds nothing of the epoch before it has all up to there.
    Put {
        /// Which file.
        file: FileKind,
        /// Its number.
        number: u64,
    },
    /// GC moved values, and the segment is finished: the copy makes the same one from what it has, as
    /// the bytes say. It may take its time; no later edit of the MANIFEST is in force before the
    /// segment is there, verified and durable.
    Collect {
        /// The segment that results.
        content: ContentId,
        /// Its number.
        number: u64,
    },
    /// A file goes, once no reader of the copy can need it.
    Delete {
        /// Which kind of file.
        file: FileKind,
        /// Its number.
        number: u64,
    },
    /// The primary synced. Never applied as durability: it says when syncing is worth while.
    Sync,
    /// The clock by which keys expire stays at or below this until another such item. Who opens a
    /// copy as primary begins with it.
    Clock {
        /// Milliseconds since 1970.
        limit_ms: u64,
    },
}

/// A change of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Where in the stream.
    pub position: Position,
    /// What it does.
    pub kind: Kind,
    /// How many bytes come with it.
    pub bytes: u64,
    /// The checksum of these bytes.
    pub checksum: u32,
    /// Over this item and all before it.
    pub chain: u32,
}

impl Item {
    /// The item behind `before`.
    pub fn behind(before: Mark, kind: Kind, bytes: u64, checksum: u32) -> Self {
        let position = before.position.next();
        let mut item = Self { position, kind, bytes, checksum, chain: 0 };
        item.chain = item.chain_behind(before.chain);
        item
    }

    /// Where it leads.
    pub fn mark(&self) -> Mark {
        Mark { position: self.position, chain: self.chain }
    }

    /// Whether it is the one behind `before`, undamaged.
    pub fn follows(&self, before: Mark) -> bool {
        self.position == before.position.next() && self.chain == self.chain_behind(before.chain)
    }

    /// What flow control counts.
    pub fn cost(&self) -> u64 {
        self.bytes + ITEM_BYTES
    }

    fn chain_behind(&self, before: u32) -> u32 {
        let (tag, file, first, second, content): (u8, FileKind, u64, u64, Option<&ContentId>) = match &self.kind {
            Kind::Append { file, number, offset } => (1, *file, *number, *offset, None),
            Kind::Truncate { file, number, len } => (2, *file, *number, *len, None),
            Kind::Finished { file, number, content } => (3, *file, *number, 0, Some(content)),
            Kind::Put { file, number } => (4, *file, *number, 0, None),
            Kind::Collect { content, number } => (5, FileKind::Segment, *number, 0, Some(content)),
            Kind::Delete { file, number } => (6, *file, *number, 0, None),
            Kind::Sync => (7, FileKind::Wal, 0, 0, None),
            Kind::Clock { limit_ms } => (8, FileKind::Wal, *limit_ms, 0, None),
        };
        let mut chain = crc32c::crc32c_append(before, &[tag, file as u8]);
        for number in [self.position.epoch.0, self.position.number, first, second, self.bytes] {
            chain = crc32c::crc32c_append(chain, &number.to_le_bytes());
        }
        chain = crc32c::crc32c_append(chain, &self.checksum.to_le_bytes());
        content.map_or(chain, |content| {
            crc32c::crc32c_append(crc32c::crc32c_append(chain, &content.len.to_le_bytes()), &content.hash.to_le_bytes())
        })
    }
}

/// How a copy is to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// By items behind what it has.
    Stream,
    /// First another directory is built, by links to what is there and the bytes that are missing,
    /// and takes the place of the old one. What is there should be a part of it.
    Complete,
    /// The same, from files that match by content. The old one's tail may be in no other copy: it
    /// is kept aside.
    Rebuild,
}

/// To a copy. Whatever names another epoch or session than the copy's is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToCopy {
    /// The epoch of the primary.
    pub epoch: Epoch,
    /// Counts the sessions of this primary.
    pub session: u64,
    /// What it says.
    pub body: ToCopyBody,
}

/// What a primary says to a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToCopyBody {
    /// Begins a session: the answer to a greeting.
    Open {
        /// How to go on.
        resume: Resume,
        /// Where the epochs before this one ended, and where this one began.
        history: History,
        /// Less than it acknowledged: it may not be counted, whatever it believes.
        is_distrusted: bool,
    },
    /// What changed.
    Items {
        /// In order, each behind the one before.
        items: Vec<Item>,
        /// The bytes of the stream up to the last of them, in this epoch.
        end_bytes: u64,
    },
    /// Where the primary is, also when nothing changes.
    Beat {
        /// Its last item.
        last: Mark,
        /// Up to where it has sent items to this copy: what has not come by now never will.
        sent: Position,
        /// The bytes of the stream up to it, in this epoch.
        end_bytes: u64,
        /// The time in the copy's last message; 0 if there was none, or the lease has ended.
        echo_us: u64,
    },
    /// It holds all that was acknowledged to anybody: it may say so after a failure.
    Whole,
}

/// To a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToPrimary {
    /// The epoch that it is meant for.
    pub epoch: Epoch,
    /// The session; 0 before one.
    pub session: u64,
    /// What it says.
    pub body: ToPrimaryBody,
}

/// What a copy says to a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToPrimaryBody {
    /// Asks for a session.
    Hello(Hello),
    /// How far it is.
    Acknowledge(Acknowledgement),
    /// It has recorded that it is whole.
    IsWhole,
}

/// What a copy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Which copy it is.
    pub incarnation: Incarnation,
    /// How far it is.
    pub applied: Mark,
    /// Its files may hold what the stream never told: it was a primary, or was written half.
    pub is_exact: bool,
    /// It holds all that it acknowledged.
    pub is_whole: bool,
    /// The bytes that it takes in the new session.
    pub credit: u64,
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    /// In the kernel's memory up to here.
    pub received: Position,
    /// Durable up to here, by its own syncs.
    pub synced: Position,
    /// All bytes that it takes in this session, those that it took among them.
    pub credit: u64,
    /// Its clock.
    pub now_us: u64,
}
