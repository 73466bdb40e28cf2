//! The messages between the servers of a federation about the copies of their shards, as bytes.
//!
//! One message and the bytes that belong to its items are a [`Parcel`]. The bytes follow behind all
//! else, in the order of the items, without lengths of their own: the items say them. Invariants:
//! what is read comes from another server, so each length is compared with a named limit before
//! anything is allocated, each parcel has one encoding, and what is left over is an error. What is
//! refused when it is read is not written either ([`encode`] says why). Whether an item's bytes are
//! those of its checksum is compared by whoever takes them.
//!
//! Compression is not here: see `ecotone-replication`. The layout: docs/internals/formats.md.

use std::collections::BTreeSet;

use ecotone_control::codec::{Malformed, Problem, Reader, Writer};
use ecotone_control::ids::{DirectoryId, Epoch, MemberId, ShardId};
use ecotone_control::map::{MAX_COPIES, MAX_SHARDS};

use crate::lease::{Heartbeat, Promise};
use crate::position::{BootId, History, Incarnation, MAX_EPOCHS, Mark, Position};
use crate::promotion::{SealReport, Serving};
use crate::stream::{
    Acknowledgement, ContentId, FileKind, Hello, Item, Kind, MAX_ITEMS, MAX_MESSAGE_BYTES, Resume, ToCopy, ToCopyBody,
    ToPrimary, ToPrimaryBody,
};

/// The first byte of each parcel.
pub const VERSION: u8 = 1;
/// The longest item on the wire: kind, file, two numbers of ten bytes, a content of 26, the position,
/// the number of bytes and two checksums.
const MAX_ITEM_HEAD_BYTES: usize = 2 + 20 + 26 + 20 + 10 + 8;
/// The longest report of a copy: nine numbers, a kind and three flags.
const MAX_REPORT_BYTES: usize = 9 * 10 + 4;
/// What precedes lists: version, kind, shard, epoch, session, count, end.
const MAX_HEAD_BYTES: usize = 64;
/// The longest parcel: items of a full message, or reports of all shards.
pub const MAX_PARCEL_BYTES: usize = {
    let items = MAX_MESSAGE_BYTES as usize + MAX_ITEMS * MAX_ITEM_HEAD_BYTES;
    let reports = MAX_SHARDS * MAX_REPORT_BYTES;
    MAX_HEAD_BYTES + if items > reports { items } else { reports }
};
/// Files in one part of a listing.
pub const MAX_LISTED_FILES: usize = 4_096;

/// What servers say to each other about copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Asks for promises.
    Heartbeat(Heartbeat),
    /// The answer.
    Promise(Promise),
    /// A primary to a copy.
    ToCopy(ShardId, ToCopy),
    /// A copy to its primary.
    ToPrimary(ShardId, ToPrimary),
    /// To the leader: what a server's copies are.
    Report(Vec<ShardReport>),
    /// The leader to a copy: seal up to this epoch.
    Seal(ShardId, Epoch),
    /// The answer.
    Sealed(SealReport),
    /// The leader to a sealed copy: verify the log.
    Verify(ShardId, Epoch),
    /// The answer.
    Verified {
        /// The shard.
        shard: ShardId,
        /// In which epoch it was asked.
        epoch: Epoch,
        /// Nothing is damaged.
        is_sound: bool,
    },
    /// The leader to a sealed copy: replace what is damaged.
    Repair {
        /// The shard.
        shard: ShardId,
        /// In which epoch it is sealed.
        epoch: Epoch,
        /// Other sealed copies.
        from: Vec<MemberId>,
    },
    /// The answer.
    Repaired {
        /// The shard.
        shard: ShardId,
        /// In which epoch it was asked.
        epoch: Epoch,
        /// Nothing is damaged any more.
        is_whole: bool,
    },
    /// The primary to a copy: build a directory from what `source` offers.
    Seed {
        /// The shard.
        shard: ShardId,
        /// The epoch of the primary.
        epoch: Epoch,
        /// The session of the copy.
        session: u64,
        /// Who offers: a sibling, or the primary itself.
        source: MemberId,
        /// What is to become of what the copy has: not [`Resume::Stream`], which needs no seed.
        resume: Resume,
    },
    /// The leader to a primary: hand over.
    HandOver {
        /// The shard.
        shard: ShardId,
        /// The epoch of the primary.
        epoch: Epoch,
        /// To whom; `None`: go on.
        to: Option<MemberId>,
    },
    /// The leader to a copy, as people force it.
    Force {
        /// The shard.
        shard: ShardId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// The leader to a primary: let members leave the set, as they are being emptied.
    Excuse {
        /// The shard.
        shard: ShardId,
        /// The epoch of the primary.
        epoch: Epoch,
        /// Who.
        members: BTreeSet<MemberId>,
    },
}

/// What a server says of one of its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardReport {
    /// The shard.
    pub shard: ShardId,
    /// The epoch that the copy knows of.
    pub epoch: Epoch,
    /// Whether it serves.
    pub serving: Serving,
    /// How far it is.
    pub position: Position,
    /// It holds all that it acknowledged.
    pub is_whole: bool,
    /// The bytes of the stream that it lacks of what it knows of.
    pub lag_bytes: u64,
    /// While it is being seeded: the bytes that it has, and all of them.
    pub seeding: Option<(u64, u64)>,
}

/// A message, and the bytes of its items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel {
    /// What is said.
    pub message: Message,
    /// The bytes of each item where it brings items, empty for those that have none; else nothing.
    pub bytes: Vec<Vec<u8>>,
}

impl From<Message> for Parcel {
    /// Of a message without items.
    fn from(message: Message) -> Self {
        Self { message, bytes: Vec::new() }
    }
}

impl Message {
    /// The items that it brings.
    pub fn items(&self) -> &[Item] {
        match self {
            Self::ToCopy(_, ToCopy { body: ToCopyBody::Items { items, .. }, .. }) => items,
            _ => &[],
        }
    }

    /// Whether it belongs to what a primary sends a copy, which may be long, and must neither be ahead
    /// of heartbeats nor overtake itself: a beat says what was sent before it.
    pub fn is_bulk(&self) -> bool {
        matches!(self, Self::ToCopy(..) | Self::Seed { .. })
    }
}

/// One file of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedFile {
    /// What it is.
    pub kind: FileKind,
    /// Its number.
    pub number: u64,
    /// Its length, as far as it is offered.
    pub len: u64,
    /// What it holds, of one that is finished.
    pub content: Option<ContentId>,
}

/// A part of the answer to who asks for an offer: a head, then as many files and items as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListingPart {
    /// The first part.
    Head {
        /// What the files hold.
        mark: Mark,
        /// The last limit of the clock in them.
        clock_limit_ms: u64,
        /// How many files there are.
        files: u64,
        /// How many items follow them.
        pending: u64,
    },
    /// Some files.
    Files(Vec<ListedFile>),
    /// Some items that belong to the mark and are in no file, with their bytes.
    Pending(Vec<(Item, Vec<u8>)>),
}

/// A parcel as bytes.
///
/// # Errors
/// [`Malformed`] for one that nobody would read: more than the limits allow, or items whose bytes
/// are not there.
pub fn encode(parcel: &Parcel) -> Result<Vec<u8>, Malformed> {
    let (items, mut w) = (parcel.message.items(), writer(&parcel.bytes));
    w.byte(VERSION);
    write_message(&parcel.message, &mut w)?;
    check_items(items, parcel.bytes.iter().map(Vec::len))?;
    parcel.bytes.iter().for_each(|bytes| w.raw(bytes));
    Ok(w.done())
}

/// Reads a parcel.
///
/// # Errors
/// [`Malformed`].
pub fn decode(bytes: &[u8]) -> Result<Parcel, Malformed> {
    let mut r = reader(bytes)?;
    let message = read_message(&mut r)?;
    let items = message.items();
    check_items(items, items.iter().map(|item| item.bytes as usize))?;
    let bytes = items.iter().map(|item| Ok(r.raw(item.bytes as usize)?.to_vec())).collect::<Result<_, Malformed>>()?;
    r.end()?;
    Ok(Parcel { message, bytes })
}

/// A part of a listing as bytes.
///
/// # Errors
/// [`Malformed`], as [`encode`].
pub fn encode_part(part: &ListingPart) -> Result<Vec<u8>, Malformed> {
    let nothing = Vec::new();
    let pending = if let ListingPart::Pending(pending) = part { pending } else { &nothing };
    let mut w = Writer::with_capacity(pending.iter().map(|(_, bytes)| bytes.len() + MAX_ITEM_HEAD_BYTES).sum());
    w.byte(VERSION);
    match part {
        ListingPart::Head { mark, clock_limit_ms, files, pending } => {
            w.byte(0);
            write_mark(*mark, &mut w);
            w.number(*clock_limit_ms);
            w.number(*files);
            w.number(*pending);
        }
        ListingPart::Files(files) => {
            w.byte(1);
            write_count(files.len(), MAX_LISTED_FILES, &mut w)?;
            for file in files {
                w.byte(file.kind as u8);
                w.number(file.number);
                w.number(file.len);
                w.flag(file.content.is_some());
                file.content.iter().for_each(|content| write_content(content, &mut w));
            }
        }
        ListingPart::Pending(pending) => {
            w.byte(2);
            let items: Vec<Item> = pending.iter().map(|(item, _)| *item).collect();
            write_items(&items, &mut w)?;
            check_items(&items, pending.iter().map(|(_, bytes)| bytes.len()))?;
            pending.iter().for_each(|(_, bytes)| w.raw(bytes));
        }
    }
    Ok(w.done())
}

/// Reads a part of a listing.
///
/// # Errors
/// [`Malformed`].
pub fn decode_part(bytes: &[u8]) -> Result<ListingPart, Malformed> {
    let mut r = reader(bytes)?;
    let part = match r.byte()? {
        0 => ListingPart::Head {
            mark: read_mark(&mut r)?,
            clock_limit_ms: r.number()?,
            files: r.number()?,
            pending: r.number()?,
        },
        1 => {
            let count = r.count(MAX_LISTED_FILES)?;
            let files = (0..count).map(|_| read_listed(&mut r)).collect::<Result<_, _>>()?;
            ListingPart::Files(files)
        }
        2 => {
            let items = read_items(&mut r)?;
            check_items(&items, items.iter().map(|item| item.bytes as usize))?;
            let pending = items.into_iter().map(|item| Ok((item, r.raw(item.bytes as usize)?.to_vec())));
            ListingPart::Pending(pending.collect::<Result<_, Malformed>>()?)
        }
        other => return Err(r.wrong(Problem::Value(u64::from(other)))),
    };
    r.end()?;
    Ok(part)
}

const WHAT: &str = "message about copies";

fn writer(bytes: &[Vec<u8>]) -> Writer {
    Writer::with_capacity(bytes.iter().map(|bytes| bytes.len() + MAX_ITEM_HEAD_BYTES).sum())
}

fn reader(bytes: &[u8]) -> Result<Reader<'_>, Malformed> {
    let mut r = Reader::new(bytes, WHAT);
    if bytes.len() > MAX_PARCEL_BYTES {
        return Err(too_many(bytes.len(), MAX_PARCEL_BYTES));
    }
    match r.byte()? {
        VERSION => Ok(r),
        other => Err(r.wrong(Problem::Version(u64::from(other)))),
    }
}

fn too_many(found: usize, limit: usize) -> Malformed {
    Malformed::new(WHAT, Problem::TooMany { found: found as u64, limit: limit as u64 })
}

/// The lengths of the bytes are those that the items say, and all of them are no more than fits.
fn check_items(items: &[Item], lengths: impl ExactSizeIterator<Item = usize>) -> Result<(), Malformed> {
    let wrong = |problem| Err(Malformed::new(WHAT, problem));
    if items.len() != lengths.len() {
        return wrong(Problem::Inconsistent(format!("bytes of {} items for {} items", lengths.len(), items.len())));
    }
    let mut all = 0_u64;
    for (item, length) in items.iter().zip(lengths) {
        if item.bytes != length as u64 {
            return wrong(Problem::Inconsistent(format!("{length} bytes for an item of {}", item.bytes)));
        }
        all = all.saturating_add(item.bytes);
    }
    if all > MAX_MESSAGE_BYTES {
        return wrong(Problem::TooMany { found: all, limit: MAX_MESSAGE_BYTES });
    }
    Ok(())
}

fn write_count(count: usize, limit: usize, w: &mut Writer) -> Result<(), Malformed> {
    if count > limit {
        return Err(too_many(count, limit));
    }
    w.count(count);
    Ok(())
}

fn write_message(message: &Message, w: &mut Writer) -> Result<(), Malformed> {
    match message {
        Message::Heartbeat(Heartbeat { sent_us, asks: shards }) => {
            w.byte(1);
            write_epochs(*sent_us, shards, w)?;
        }
        Message::Promise(Promise { sent_us, granted: shards }) => {
            w.byte(2);
            write_epochs(*sent_us, shards, w)?;
        }
        Message::ToCopy(shard, said) => {
            w.byte(3);
            write_shard(*shard, said.epoch, w);
            w.number(said.session);
            write_to_copy(&said.body, w)?;
        }
        Message::ToPrimary(shard, said) => {
            w.byte(4);
            write_shard(*shard, said.epoch, w);
            w.number(said.session);
            write_to_primary(&said.body, w);
        }
        Message::Report(reports) => {
            w.byte(5);
            write_count(reports.len(), MAX_SHARDS, w)?;
            reports.iter().for_each(|report| write_report(report, w));
        }
        Message::Seal(shard, epoch) => {
            w.byte(6);
            write_shard(*shard, *epoch, w);
        }
        Message::Sealed(report) => {
            w.byte(7);
            write_shard(report.shard, report.epoch, w);
            w.number(report.member.0);
            write_incarnation(report.incarnation, w);
            write_position(report.position, w);
            w.flag(report.is_whole);
        }
        Message::Verify(shard, epoch) => {
            w.byte(8);
            write_shard(*shard, *epoch, w);
        }
        Message::Verified { shard, epoch, is_sound } => {
            w.byte(9);
            write_shard(*shard, *epoch, w);
            w.flag(*is_sound);
        }
        Message::Repair { shard, epoch, from } => {
            w.byte(10);
            write_shard(*shard, *epoch, w);
            write_count(from.len(), MAX_COPIES, w)?;
            from.iter().for_each(|member| w.number(member.0));
        }
        Message::Repaired { shard, epoch, is_whole } => {
            w.byte(11);
            write_shard(*shard, *epoch, w);
            w.flag(*is_whole);
        }
        Message::Seed { shard, epoch, session, source, resume } => {
            w.byte(12);
            write_shard(*shard, *epoch, w);
            w.number(*session);
            w.number(source.0);
            write_resume(resume, w);
        }
        Message::HandOver { shard, epoch, to } => {
            w.byte(13);
            write_shard(*shard, *epoch, w);
            w.flag(to.is_some());
            to.iter().for_each(|member| w.number(member.0));
        }
        Message::Force { shard, epoch } => {
            w.byte(14);
            write_shard(*shard, *epoch, w);
        }
        Message::Excuse { shard, epoch, members } => {
            w.byte(15);
            write_shard(*shard, *epoch, w);
            write_count(members.len(), MAX_COPIES, w)?;
            members.iter().for_each(|member| w.number(member.0));
        }
    }
    Ok(())
}

fn read_message(r: &mut Reader<'_>) -> Result<Message, Malformed> {
    let kind = r.byte()?;
    Ok(match kind {
        1 => {
            let (sent_us, asks) = read_epochs(r)?;
            Message::Heartbeat(Heartbeat { sent_us, asks })
        }
        2 => {
            let (sent_us, granted) = read_epochs(r)?;
            Message::Promise(Promise { sent_us, granted })
        }
        3 => {
            let (shard, epoch) = read_shard(r)?;
            let session = r.number()?;
            Message::ToCopy(shard, ToCopy { epoch, session, body: read_to_copy(r)? })
        }
        4 => {
            let (shard, epoch) = read_shard(r)?;
            let session = r.number()?;
            Message::ToPrimary(shard, ToPrimary { epoch, session, body: read_to_primary(r)? })
        }
        5 => {
            let count = r.count(MAX_SHARDS)?;
            Message::Report((0..count).map(|_| read_report(r)).collect::<Result<_, _>>()?)
        }
        6 => {
            let (shard, epoch) = read_shard(r)?;
            Message::Seal(shard, epoch)
        }
        7 => {
            let (shard, epoch) = read_shard(r)?;
            let member = MemberId(r.number()?);
            let (incarnation, position) = (read_incarnation(r)?, read_position(r)?);
            Message::Sealed(SealReport { shard, member, epoch, incarnation, position, is_whole: r.flag()? })
        }
        8 => {
            let (shard, epoch) = read_shard(r)?;
            Message::Verify(shard, epoch)
        }
        9 => {
            let (shard, epoch) = read_shard(r)?;
            Message::Verified { shard, epoch, is_sound: r.flag()? }
        }
        10 => {
            let (shard, epoch) = read_shard(r)?;
            let count = r.count(MAX_COPIES)?;
            let from = (0..count).map(|_| r.number().map(MemberId)).collect::<Result<_, _>>()?;
            Message::Repair { shard, epoch, from }
        }
        11 => {
            let (shard, epoch) = read_shard(r)?;
            Message::Repaired { shard, epoch, is_whole: r.flag()? }
        }
        12 => {
            let (shard, epoch) = read_shard(r)?;
            let (session, source) = (r.number()?, MemberId(r.number()?));
            Message::Seed { shard, epoch, session, source, resume: read_resume(r)? }
        }
        13 => {
            let (shard, epoch) = read_shard(r)?;
            let to = if r.flag()? { Some(MemberId(r.number()?)) } else { None };
            Message::HandOver { shard, epoch, to }
        }
        14 => {
            let (shard, epoch) = read_shard(r)?;
            Message::Force { shard, epoch }
        }
        15 => {
            let (shard, epoch) = read_shard(r)?;
            let count = r.count(MAX_COPIES)?;
            let mut members = BTreeSet::new();
            for _ in 0..count {
                let member = MemberId(r.number()?);
                if members.last().is_some_and(|last| *last >= member) {
                    return Err(r.wrong(Problem::Inconsistent("members that do not ascend".into())));
                }
                members.insert(member);
            }
            Message::Excuse { shard, epoch, members }
        }
        other => return Err(r.wrong(Problem::Value(u64::from(other)))),
    })
}

fn write_to_copy(body: &ToCopyBody, w: &mut Writer) -> Result<(), Malformed> {
    match body {
        ToCopyBody::Open { resume, history, is_distrusted } => {
            w.byte(0);
            write_resume(resume, w);
            write_count(history.ends().len(), MAX_EPOCHS, w)?;
            history.ends().iter().for_each(|end| write_mark(*end, w));
            w.flag(*is_distrusted);
        }
        ToCopyBody::Items { items, end_bytes } => {
            w.byte(1);
            w.number(*end_bytes);
            write_items(items, w)?;
        }
        ToCopyBody::Beat { last, sent, end_bytes, echo_us } => {
            w.byte(2);
            write_mark(*last, w);
            write_position(*sent, w);
            w.number(*end_bytes);
            w.number(*echo_us);
        }
        ToCopyBody::Whole => w.byte(3),
    }
    Ok(())
}

fn read_to_copy(r: &mut Reader<'_>) -> Result<ToCopyBody, Malformed> {
    Ok(match r.byte()? {
        0 => ToCopyBody::Open { resume: read_resume(r)?, history: read_history(r)?, is_distrusted: r.flag()? },
        1 => {
            let end_bytes = r.number()?;
            ToCopyBody::Items { items: read_items(r)?, end_bytes }
        }
        2 => {
            let (last, sent) = (read_mark(r)?, read_position(r)?);
            ToCopyBody::Beat { last, sent, end_bytes: r.number()?, echo_us: r.number()? }
        }
        3 => ToCopyBody::Whole,
        other => return Err(r.wrong(Problem::Value(u64::from(other)))),
    })
}

fn write_to_primary(body: &ToPrimaryBody, w: &mut Writer) {
    match body {
        ToPrimaryBody::Hello(hello) => {
            w.byte(0);
            write_incarnation(hello.incarnation, w);
            write_mark(hello.applied, w);
            w.flag(hello.is_exact);
            w.flag(hello.is_whole);
            w.number(hello.credit);
        }
        ToPrimaryBody::Acknowledge(said) => {
            w.byte(1);
            write_position(said.received, w);
            write_position(said.synced, w);
            w.number(said.credit);
            w.number(said.now_us);
        }
        ToPrimaryBody::IsWhole => w.byte(2),
    }
}

fn read_to_primary(r: &mut Reader<'_>) -> Result<ToPrimaryBody, Malformed> {
    Ok(match r.byte()? {
        0 => ToPrimaryBody::Hello(Hello {
            incarnation: read_incarnation(r)?,
            applied: read_mark(r)?,
            is_exact: r.flag()?,
            is_whole: r.flag()?,
            credit: r.number()?,
        }),
        1 => ToPrimaryBody::Acknowledge(Acknowledgement {
            received: read_position(r)?,
            synced: read_position(r)?,
            credit: r.number()?,
            now_us: r.number()?,
        }),
        2 => ToPrimaryBody::IsWhole,
        other => return Err(r.wrong(Problem::Value(u64::from(other)))),
    })
}

fn write_items(items: &[Item], w: &mut Writer) -> Result<(), Malformed> {
    write_count(items.len(), MAX_ITEMS, w)?;
    items.iter().for_each(|item| write_item(item, w));
    Ok(())
}

fn read_items(r: &mut Reader<'_>) -> Result<Vec<Item>, Malformed> {
    let count = r.count(MAX_ITEMS)?;
    (0..count).map(|_| read_item(r)).collect()
}

/// An item without its bytes.
pub fn write_item(item: &Item, w: &mut Writer) {
    match &item.kind {
        Kind::Append { file, number, offset } => {
            w.byte(1);
            w.byte(*file as u8);
            w.number(*number);
            w.number(*offset);
        }
        Kind::Truncate { file, number, len } => {
            w.byte(2);
            w.byte(*file as u8);
            w.number(*number);
            w.number(*len);
        }
        Kind::Finished { file, number, content } => {
            w.byte(3);
            w.byte(*file as u8);
            w.number(*number);
            write_content(content, w);
        }
        Kind::Put { file, number } => {
            w.byte(4);
            w.byte(*file as u8);
            w.number(*number);
        }
        Kind::Collect { content, number } => {
            w.byte(5);
            w.number(*number);
            write_content(content, w);
        }
        Kind::Delete { file, number } => {
            w.byte(6);
            w.byte(*file as u8);
            w.number(*number);
        }
        Kind::Sync => w.byte(7),
        Kind::Clock { limit_ms } => {
            w.byte(8);
            w.number(*limit_ms);
        }
    }
    write_position(item.position, w);
    w.number(item.bytes);
    w.raw(&item.checksum.to_le_bytes());
    w.raw(&item.chain.to_le_bytes());
}

/// Reads what [`write_item`] wrote.
///
/// # Errors
/// [`Malformed`].
pub fn read_item(r: &mut Reader<'_>) -> Result<Item, Malformed> {
    let kind = match r.byte()? {
        1 => Kind::Append { file: read_file_kind(r)?, number: r.number()?, offset: r.number()? },
        2 => Kind::Truncate { file: read_file_kind(r)?, number: r.number()?, len: r.number()? },
        3 => Kind::Finished { file: read_file_kind(r)?, number: r.number()?, content: read_content(r)? },
        4 => Kind::Put { file: read_file_kind(r)?, number: r.number()? },
        5 => {
            let number = r.number()?;
            Kind::Collect { content: read_content(r)?, number }
        }
        6 => Kind::Delete { file: read_file_kind(r)?, number: r.number()? },
        7 => Kind::Sync,
        8 => Kind::Clock { limit_ms: r.number()? },
        other => return Err(r.wrong(Problem::Value(u64::from(other)))),
    };
    Ok(Item {
        kind,
        position: read_position(r)?,
        bytes: r.number()?,
        checksum: u32::from_le_bytes(r.array()?),
        chain: u32::from_le_bytes(r.array()?),
    })
}

fn read_file_kind(r: &mut Reader<'_>) -> Result<FileKind, Malformed> {
    let kind = r.byte()?;
    FileKind::ALL.get(usize::from(kind)).copied().ok_or_else(|| r.wrong(Problem::Value(u64::from(kind))))
}

fn write_content(content: &ContentId, w: &mut Writer) {
    w.number(content.len);
    w.raw(&content.hash.to_le_bytes());
}

fn read_content(r: &mut Reader<'_>) -> Result<ContentId, Malformed> {
    Ok(ContentId { len: r.number()?, hash: u128::from_le_bytes(r.array()?) })
}

fn read_listed(r: &mut Reader<'_>) -> Result<ListedFile, Malformed> {
    let (kind, number, len) = (read_file_kind(r)?, r.number()?, r.number()?);
    let content = if r.flag()? { Some(read_content(r)?) } else { None };
    Ok(ListedFile { kind, number, len, content })
}

fn write_epochs(sent_us: u64, shards: &[(ShardId, Epoch)], w: &mut Writer) -> Result<(), Malformed> {
    w.number(sent_us);
    write_count(shards.len(), MAX_SHARDS, w)?;
    shards.iter().for_each(|(shard, epoch)| write_shard(*shard, *epoch, w));
    Ok(())
}

fn read_epochs(r: &mut Reader<'_>) -> Result<(u64, Vec<(ShardId, Epoch)>), Malformed> {
    let sent_us = r.number()?;
    let count = r.count(MAX_SHARDS)?;
    Ok((sent_us, (0..count).map(|_| read_shard(r)).collect::<Result<_, _>>()?))
}

fn write_shard(shard: ShardId, epoch: Epoch, w: &mut Writer) {
    w.number(u64::from(shard.0));
    w.number(epoch.0);
}

fn read_shard(r: &mut Reader<'_>) -> Result<(ShardId, Epoch), Malformed> {
    Ok((ShardId(r.small()?), Epoch(r.number()?)))
}

fn write_report(report: &ShardReport, w: &mut Writer) {
    write_shard(report.shard, report.epoch, w);
    match report.serving {
        Serving::Replica => w.byte(0),
        Serving::Primary { epoch, has_lease } => {
            w.byte(1);
            w.number(epoch.0);
            w.flag(has_lease);
        }
    }
    write_position(report.position, w);
    w.flag(report.is_whole);
    w.number(report.lag_bytes);
    w.flag(report.seeding.is_some());
    if let Some((done, all)) = report.seeding {
        w.number(done);
        w.number(all);
    }
}

fn read_report(r: &mut Reader<'_>) -> Result<ShardReport, Malformed> {
    let (shard, epoch) = read_shard(r)?;
    let serving = match r.byte()? {
        0 => Serving::Replica,
        1 => Serving::Primary { epoch: Epoch(r.number()?), has_lease: r.flag()? },
        other => return Err(r.wrong(Problem::Value(u64::from(other)))),
    };
    let (position, is_whole, lag_bytes) = (read_position(r)?, r.flag()?, r.number()?);
    let seeding = if r.flag()? { Some((r.number()?, r.number()?)) } else { None };
    Ok(ShardReport { shard, epoch, serving, position, is_whole, lag_bytes, seeding })
}

fn write_position(position: Position, w: &mut Writer) {
    w.number(position.epoch.0);
    w.number(position.number);
}

fn read_position(r: &mut Reader<'_>) -> Result<Position, Malformed> {
    Ok(Position { epoch: Epoch(r.number()?), number: r.number()? })
}

fn write_mark(mark: Mark, w: &mut Writer) {
    write_position(mark.position, w);
    w.raw(&mark.chain.to_le_bytes());
}

fn read_mark(r: &mut Reader<'_>) -> Result<Mark, Malformed> {
    Ok(Mark { position: read_position(r)?, chain: u32::from_le_bytes(r.array()?) })
}

fn read_history(r: &mut Reader<'_>) -> Result<History, Malformed> {
    let mut history = History::default();
    for _ in 0..r.count(MAX_EPOCHS)? {
        let end = read_mark(r)?;
        if history.ends().last().is_some_and(|last| last.position.epoch >= end.position.epoch) {
            return Err(r.wrong(Problem::Inconsistent("epochs that do not ascend".into())));
        }
        history = history.and(end);
    }
    Ok(history)
}

fn write_incarnation(incarnation: Incarnation, w: &mut Writer) {
    w.raw(&incarnation.directory.0);
    w.raw(&incarnation.boot.0);
}

fn read_incarnation(r: &mut Reader<'_>) -> Result<Incarnation, Malformed> {
    Ok(Incarnation { directory: DirectoryId(r.array()?), boot: BootId(r.array()?) })
}

fn write_resume(resume: &Resume, w: &mut Writer) {
    w.byte(match resume {
        Resume::Stream => 0,
        Resume::Complete => 1,
        Resume::Rebuild => 2,
    });
}

fn read_resume(r: &mut Reader<'_>) -> Result<Resume, Malformed> {
    match r.byte()? {
        0 => Ok(Resume::Stream),
        1 => Ok(Resume::Complete),
        2 => Ok(Resume::Rebuild),
        other => Err(r.wrong(Problem::Value(u64::from(other)))),
    }
}

#[cfg(test)]
mod tests;
