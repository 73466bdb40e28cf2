//! A walk over one of RocksDB's logs, a WAL or a MANIFEST: how far it is as a writer left it, where
//! that ends, and what stands behind.
//!
//! It goes over whole fragments with right checksums (the format is that of
//! `offline/log_file.rs`), in the order that their kinds allow, and in a WAL over records
//! whose writes follow one another by their numbers. It ends at the first place where that is not
//! so: its trouble. Zeros up to the end of the file are none.
//!
//! Of a trouble it tells whether an interrupted write can have left it at all:
//!
//! - a type of recycled files: our stores recycle none;
//! - a record that is whole but for one bit, with a whole one behind it. What was being written
//!   last has nothing behind it, and what was not synced is lost by sectors: that takes more than
//!   one bit, or the begin of the next record as well;
//! - a length that leads beyond the file and is one bit away from one with which the checksum fits.
//!
//! What is behind is counted, not used: whole records in the block of the trouble, wherever they
//! begin, and in later blocks from their begin on.
//!
//! Bounds: the file is read once, block by block; only in the block of the trouble each byte is
//! tried for the begin of a record.

use std::io::{self, Read};
use std::ops::Range;

use ecotone_valuelog::record::flipped_bit;

use crate::batch_records::{BATCH_HEADER_BYTES, sequences};

pub(crate) const BLOCK_BYTES: usize = 32 * 1024;
pub(crate) const HEADER_BYTES: usize = 7;

/// The kind of what was set aside and not written.
pub(crate) const ZERO: u8 = 0;

const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// What a WAL says of the one before it.
const PREDECESSOR: u8 = 130;

/// Kinds with this bit may be passed over by who does not know them.
const MAY_BE_IGNORED: u8 = 0x80;

const fn is_recyclable(kind: u8) -> bool {
    matches!(kind, 5..=8 | 11 | 131)
}

/// What a walk found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Walk {
    /// The length of the file.
    pub(crate) bytes: u64,
    /// Where it ended: at its trouble, where nothing but zeros follows, or at the end of the file.
    pub(crate) end: u64,
    /// Where the last record ends that is as it was written.
    pub(crate) sound_bytes: u64,
    /// Records up to there.
    pub(crate) records: u64,
    /// In a WAL the numbers of the writes up to there; `None` where there are none.
    pub(crate) writes: Option<Range<u64>>,
    /// Why it ended before the end of the file.
    pub(crate) trouble: Option<Trouble>,
}

/// Where a log is not as a writer leaves it that was not interrupted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// Where the record begins.
    pub(crate) record: u64,
    /// Where the fragment begins that is not as it should be.
    pub(crate) at: u64,
    /// Where it would end, if what stands at its begin can be the begin of one that comes next.
    pub(crate) end: Option<u64>,
    /// What is wrong.
    pub(crate) detail: &'static str,
    /// Whether no interrupted write can have left it.
    pub(crate) is_damage: bool,
    /// What is lost with it.
    pub(crate) behind: Behind,
}

/// What stands in a log from the begin of a record on that cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Behind {
    /// Bytes up to the last one that is not zero.
    pub(crate) bytes: u64,
    /// Whole records that were recognised behind it, as many as begin there.
    pub(crate) records: u64,
    /// In a WAL the number behind that of the last write of them.
    pub(crate) next_write: Option<u64>,
}

const RECYCLED: &str = "the type of a record says that the file is a recycled one, and no store has such";
const TOO_LONG: &str = "the length of a record leads beyond its block, and its checksum is that of a shorter one";
const ONE_BIT: &str = "the checksum of a record does not match, and it was not the last one";
const CHECKSUM: &str = "the checksum of a record does not match";
const LENGTH: &str = "a record has a length that it cannot have";
const KIND: &str = "a record is of a type that no store writes";
const PART: &str = "a record lacks a part";
const HOLE: &str = "zeros stand where a record should begin";
const NUMBER: &str = "a record is not the one that comes next by the numbers of its writes";
const END_IN_HEADER: &str = "the file ends within the header of a record";
const END_IN_RECORD: &str = "the file ends within a record";

/// Which kind of log is walked over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Records {
    /// Batches of writes: those of a WAL.
    Writes,
    /// Anything: those of a MANIFEST.
    Any,
}

/// Walks over `log`.
///
/// # Errors
///
/// Those of reading.
pub(crate) fn walk(log: impl Read, records: Records) -> io::Result<Walk> {
    let mut walker = Walker { blocks: Blocks::of(log), records, open: None, walk: Walk::default() };
    if let Some(stop) = walker.walk_until_stop()? {
        walker.look_behind(stop)?;
    }
    walker.walk.bytes = walker.blocks.read_to_end_of_file()?;
    Ok(walker.walk)
}

/// A log, block by block.
struct Blocks<R> {
    log: R,
    block: Vec<u8>,
    /// Where it begins.
    begin: u64,
    /// Behind the last byte so far that is not zero.
    written_bytes: u64,
    is_last: bool,
}

impl<R: Read> Blocks<R> {
    fn of(log: R) -> Self {
        Self { log, block: Vec::with_capacity(BLOCK_BYTES), begin: 0, written_bytes: 0, is_last: false }
    }

    /// Reads the next block. False where there is none.
    fn advance(&mut self) -> io::Result<bool> {
        if self.is_last {
            return Ok(false);
        }
        self.begin += self.block.len() as u64;
        self.block.clear();
        (&mut self.log).take(BLOCK_BYTES as u64).read_to_end(&mut self.block)?;
        self.is_last = self.block.len() < BLOCK_BYTES;
        if let Some(last) = self.block.iter().rposition(|byte| *byte != 0) {
            self.written_bytes = self.begin + last as u64 + 1;
        }
        Ok(!self.block.is_empty())
    }

    /// Reads on to the end of the file, and says where that is.
    fn read_to_end_of_file(&mut self) -> io::Result<u64> {
        while self.advance()? {}
        Ok(self.begin + self.block.len() as u64)
    }

    /// Whether nothing but zeros stands from `at` in the block on to the end of the file. If not,
    /// the block is one that has something else.
    fn is_zero_from(&mut self, at: usize) -> io::Result<bool> {
        let mut is_zero = self.block[at..].iter().all(|byte| *byte == 0);
        while is_zero && self.advance()? {
            is_zero = self.block.iter().all(|byte| *byte == 0);
        }
        Ok(is_zero)
    }
}

/// A record of which not all parts have come yet.
struct Open {
    begin: u64,
    /// Its first bytes, as many as a batch has before its first write.
    head: Vec<u8>,
}

/// Where a walk stopped.
struct Stop {
    /// As of [`Trouble`].
    at: u64,
    end: Option<u64>,
    detail: &'static str,
    is_damage: bool,
    /// Where it would end in the block if one bit of it were another.
    end_but_for_a_bit: Option<usize>,
}

impl Stop {
    fn at(at: u64, detail: &'static str) -> Self {
        Self { at, end: None, detail, is_damage: false, end_but_for_a_bit: None }
    }
}

struct Walker<R> {
    blocks: Blocks<R>,
    records: Records,
    open: Option<Open>,
    walk: Walk,
}

impl<R: Read> Walker<R> {
    fn walk_until_stop(&mut self) -> io::Result<Option<Stop>> {
        let mut at = 0;
        while self.blocks.advance()? {
            at = 0;
            while let Some(header) = self.blocks.block[at..].first_chunk::<HEADER_BYTES>() {
                let header = Header::of(*header);
                if header.is_zero() {
                    let begin = self.blocks.begin + at as u64;
                    self.walk.end = begin;
                    let is_end = self.blocks.is_zero_from(at)? && self.open.is_none();
                    return Ok((!is_end).then(|| Stop::at(begin, HOLE)));
                }
                let end = match self.sound_end(&header, at) {
                    Ok(end) => end,
                    Err(stop) => return Ok(Some(stop)),
                };
                if let Err(stop) = self.take(&header, at, end) {
                    return Ok(Some(stop));
                }
                at = end;
            }
            // What is left of a whole block is too short for a header.
            if self.blocks.is_last {
                break;
            }
            at = 0;
        }
        let end = self.blocks.begin + at as u64;
        self.walk.end = end;
        let is_cut = self.blocks.block.get(at..).is_some_and(|rest| rest.iter().any(|byte| *byte != 0));
        Ok(match &self.open {
            _ if is_cut => Some(Stop::at(end, END_IN_HEADER)),
            Some(_) => Some(Stop::at(end, END_IN_RECORD)),
            None => None,
        })
    }

    /// Where the fragment at `at` ends, if it is whole and of a kind that there is.
    fn sound_end(&self, header: &Header, at: usize) -> Result<usize, Stop> {
        let rest = &self.blocks.block[at..];
        let stop =
            |detail| Stop { end: self.possible_end(header, at), ..Stop::at(self.blocks.begin + at as u64, detail) };
        if is_recyclable(header.kind) {
            return Err(Stop { is_damage: true, ..stop(RECYCLED) });
        }
        let is_too_long = header.end() > rest.len();
        if let Some(end) = header.end_in(rest) {
            let is_known = (FULL..=LAST).contains(&header.kind) || header.kind & MAY_BE_IGNORED != 0;
            return if is_known { Ok(at + end) } else { Err(stop(KIND)) };
        }
        let detail = match (is_too_long, self.blocks.is_last) {
            (false, _) => CHECKSUM,
            (true, false) => LENGTH,
            (true, true) => END_IN_RECORD,
        };
        Err(match header.end_but_for_a_bit(rest) {
            Some(_) if is_too_long => Stop { is_damage: true, ..stop(TOO_LONG) },
            end => Stop { end_but_for_a_bit: end.map(|end| at + end), ..stop(detail) },
        })
    }

    /// Where a fragment with this header would end, if it can be the next one. One that is followed
    /// by another of its record fills its block.
    fn possible_end(&self, header: &Header, at: usize) -> Option<u64> {
        let end = at + header.end();
        let is_next = match header.kind {
            FULL => self.open.is_none() && end <= BLOCK_BYTES,
            FIRST => self.open.is_none() && end == BLOCK_BYTES,
            MIDDLE => self.open.is_some() && end == BLOCK_BYTES,
            LAST => self.open.is_some() && end <= BLOCK_BYTES,
            _ => header.kind == PREDECESSOR && self.open.is_none() && end <= BLOCK_BYTES,
        };
        is_next.then_some(self.blocks.begin + end as u64)
    }

    /// Takes a sound fragment, unless it cannot be the next one.
    fn take(&mut self, header: &Header, at: usize, end: usize) -> Result<(), Stop> {
        if header.kind & MAY_BE_IGNORED != 0 {
            return Ok(());
        }
        let begin = self.blocks.begin + at as u64;
        if matches!(header.kind, FULL | FIRST) != self.open.is_none() {
            return Err(Stop::at(begin, PART));
        }
        let open = self.open.get_or_insert_with(|| Open { begin, head: Vec::with_capacity(BATCH_HEADER_BYTES) });
        let payload = &self.blocks.block[at + HEADER_BYTES..end];
        let wanted = (BATCH_HEADER_BYTES - open.head.len()).min(payload.len());
        open.head.extend_from_slice(&payload[..wanted]);
        if matches!(header.kind, FIRST | MIDDLE) {
            return Ok(());
        }
        if self.records == Records::Writes {
            let Ok(writes) = sequences(&open.head) else { return Err(Stop::at(open.begin, NUMBER)) };
            let known = self.walk.writes.get_or_insert(writes.start..writes.start);
            if known.end != writes.start {
                return Err(Stop::at(open.begin, NUMBER));
            }
            known.end = writes.end;
        }
        self.open = None;
        self.walk.sound_bytes = self.blocks.begin + end as u64;
        self.walk.records += 1;
        Ok(())
    }

    /// Counts what stands behind a stop, in the block that was read last and in those that follow.
    fn look_behind(&mut self, mut stop: Stop) -> io::Result<()> {
        let record = self.open.as_ref().map_or(stop.at, |open| open.begin);
        let mut behind = Behind::default();
        let within = usize::try_from(stop.at.saturating_sub(self.blocks.begin)).unwrap_or(0);
        self.count(within, true, &mut behind);
        // Where the fragment would end with the block, what follows it begins the next one.
        let follows = |block: &[u8], at: usize| {
            let rest = block.get(at..).unwrap_or_default();
            (rest.len() >= HEADER_BYTES).then(|| begins_with_a_record(rest))
        };
        let mut is_followed = stop.end_but_for_a_bit.map(|end| follows(&self.blocks.block, end));
        while self.blocks.advance()? {
            if is_followed == Some(None) {
                is_followed = Some(follows(&self.blocks.block, 0));
            }
            self.count(0, false, &mut behind);
        }
        if is_followed == Some(Some(true)) {
            (stop.detail, stop.is_damage) = (ONE_BIT, true);
        }
        behind.bytes = self.blocks.written_bytes.saturating_sub(record);
        let Stop { at, end, detail, is_damage, .. } = stop;
        self.walk.end = at;
        self.walk.trouble = Some(Trouble { record, at, end, detail, is_damage, behind });
        Ok(())
    }

    /// Counts the whole records that begin in the block from `at` on: one behind the other, or
    /// `anywhere`.
    fn count(&self, mut at: usize, anywhere: bool, behind: &mut Behind) {
        let block = &self.blocks.block;
        while let Some(header) = block.get(at..).and_then(|rest| rest.first_chunk::<HEADER_BYTES>()) {
            let header = Header::of(*header);
            let is_known = matches!(header.kind, FULL..=LAST | PREDECESSOR);
            match header.end_in(&block[at..]).filter(|_| is_known) {
                Some(end) => {
                    let payload = &block[at + HEADER_BYTES..at + end];
                    if matches!(header.kind, FULL | FIRST) {
                        behind.records += 1;
                        if self.records == Records::Writes
                            && let Ok(writes) = sequences(payload)
                        {
                            behind.next_write = behind.next_write.max(Some(writes.end));
                        }
                    }
                    at += end;
                }
                None if anywhere => at += 1,
                None => break,
            }
        }
    }
}

fn begins_with_a_record(bytes: &[u8]) -> bool {
    bytes.first_chunk().is_some_and(|header| {
        let header = Header::of(*header);
        !header.is_zero() && header.end_in(bytes).is_some()
    })
}

/// What stands before the payload of a fragment.
struct Header {
    checksum: u32,
    length: u16,
    kind: u8,
}

impl Header {
    fn of([c, h, e, k, low, high, kind]: [u8; HEADER_BYTES]) -> Self {
        let checksum = u32::from_le_bytes([c, h, e, k]);
        Self { checksum, length: u16::from_le_bytes([low, high]), kind }
    }

    /// Of space that was set aside.
    fn is_zero(&self) -> bool {
        self.kind == ZERO && self.length == 0
    }

    /// Where the fragment ends.
    fn end(&self) -> usize {
        HEADER_BYTES + usize::from(self.length)
    }

    /// Where the fragment ends that `bytes` begin with, if it is whole.
    fn end_in(&self, bytes: &[u8]) -> Option<usize> {
        let record = bytes.get(..self.end())?;
        (unmasked(self.checksum) == crc32c::crc32c(&record[6..])).then_some(self.end())
    }

    /// Where the fragment ends that `bytes` begin with, if it would be whole with one other bit.
    fn end_but_for_a_bit(&self, bytes: &[u8]) -> Option<usize> {
        let lengths = (0..16).map(|bit| Self { length: self.length ^ 1 << bit, ..*self });
        let checksums = (0..32).map(|bit| Self { checksum: self.checksum ^ 1 << bit, ..*self });
        let whole = lengths.chain(checksums).find_map(|header| header.end_in(bytes));
        whole.or_else(|| {
            let record = bytes.get(..self.end())?;
            let difference = unmasked(self.checksum) ^ crc32c::crc32c(&record[6..]);
            flipped_bit(difference, record.len() - 6).map(|_| self.end())
        })
    }
}

/// RocksDB stores checksums rotated and shifted (`util/crc32c.h`), so that one over bytes with
/// checksums in them is as good.
pub(crate) fn unmasked(stored: u32) -> u32 {
    stored.wrapping_sub(0xA282_EAD8).rotate_left(15)
}

#[cfg(test)]
#[path = "log_walk_tests.rs"]
mod tests;
