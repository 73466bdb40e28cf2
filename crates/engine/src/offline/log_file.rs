//! The framing that RocksDB's WAL and MANIFEST share (`db/log_format.h`), read as far as it is
//! sound.
//!
//! ```text
//! file:      blocks of 32 KiB, the last one shorter
//! block:     fragments, and less than 7 bytes of zeros where no header fits
//! fragment:  | crc32c u32 | length u16 | kind u8 | length bytes |        the checksum, masked, is over kind and bytes
//! record:    one fragment of kind full, or first, any of middle, last
//! ```
//!
//! All numbers are little-endian. Zeros up to the end of the file are space that was set aside, not
//! damage. A file that cannot be read any further is one that is damaged there, and ends there.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::log_walk::{BLOCK_BYTES, HEADER_BYTES, ZERO, unmasked};

const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;
/// Kinds with this bit may be passed over by who does not know them.
const MAY_BE_IGNORED: u8 = 0x80;

/// Where a log cannot be read, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogDamage {
    /// Where the record begins that cannot be read.
    pub offset: u64,
    /// What is wrong.
    pub detail: String,
}

/// The records of a log, one after another.
pub struct LogFile {
    file: Box<dyn Read>,
    written_bytes: u64,
    block: Vec<u8>,
    /// Nothing follows the block, or nothing that can be read.
    is_last: bool,
    /// Why it cannot be read any further, until that was returned.
    unreadable: Option<String>,
    /// Where the block begins in the file.
    block_begin: u64,
    /// Where the next fragment begins in the block.
    at: usize,
    /// Where the fragment that is damaged ends, where that can be guessed.
    behind_damage: Option<usize>,
    record: Vec<u8>,
}

/// A fragment: where it begins, its kind, and where its bytes are in the block.
struct Fragment {
    offset: u64,
    kind: u8,
    bytes: std::ops::Range<usize>,
}

impl LogFile {
    /// Opens the log at `path`.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        Ok(Self::of(Box::new(File::open(path)?)))
    }

    fn of(file: Box<dyn Read>) -> Self {
        Self {
            file,
            written_bytes: 0,
            block: Vec::new(),
            is_last: false,
            unreadable: None,
            block_begin: 0,
            at: 0,
            behind_damage: None,
            record: Vec::new(),
        }
    }

    /// Where the last fragment ended that was read, and was sound. What was reserved behind it and
    /// not written does not count.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Where the next record begins, and the record. `None` at the end.
    ///
    /// # Errors
    ///
    /// Where and why it cannot be read. [`resume`](Self::resume) goes on behind that.
    pub fn next_record(&mut self) -> Result<Option<(u64, &[u8])>, LogDamage> {
        let mut begin = None;
        self.record.clear();
        loop {
            let fragment = match self.next_fragment() {
                Ok(fragment) => fragment,
                // All of the record is lost.
                Err(damage) => return Err(LogDamage { offset: begin.unwrap_or(damage.offset), ..damage }),
            };
            let Some(Fragment { offset, kind, bytes }) = fragment else {
                return match begin {
                    None => Ok(None),
                    Some(offset) => Err(LogDamage { offset, detail: "the file ends within a record".into() }),
                };
            };
            let starts = matches!(kind, FULL | FIRST);
            if starts != begin.is_none() {
                self.behind_damage = Some(if starts { bytes.start - HEADER_BYTES } else { bytes.end });
                let offset = begin.unwrap_or(offset);
                return Err(LogDamage { offset, detail: "a record lacks a part".into() });
            }
            begin = begin.or(Some(offset));
            self.record.extend_from_slice(&self.block[bytes]);
            if matches!(kind, FULL | LAST) {
                return Ok(begin.map(|offset| (offset, &self.record[..])));
            }
        }
    }

    /// Goes on behind damage: behind the fragment where its length can be right, else with the next
    /// block.
    pub fn resume(&mut self) {
        self.at = self.behind_damage.take().unwrap_or(self.block.len());
    }

    fn next_fragment(&mut self) -> Result<Option<Fragment>, LogDamage> {
        loop {
            let rest = self.block.len() - self.at;
            if rest < HEADER_BYTES {
                if self.is_last {
                    let offset = self.offset();
                    if let Some(detail) = self.unreadable.take() {
                        (self.at, self.behind_damage) = (self.block.len(), None);
                        return Err(LogDamage { offset, detail });
                    }
                    let torn = self.block[self.at..].iter().any(|byte| *byte != 0);
                    (self.at, self.behind_damage) = (self.block.len(), None);
                    if torn {
                        return Err(LogDamage { offset, detail: "the file ends within a header".into() });
                    }
                    return Ok(None);
                }
                self.next_block();
                continue;
            }
            let offset = self.offset();
            let damaged = |detail: &str| Err(LogDamage { offset, detail: detail.into() });
            let header = &self.block[self.at..self.at + HEADER_BYTES];
            let stored = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
            let (length, kind) = (usize::from(u16::from_le_bytes([header[4], header[5]])), header[6]);
            let bytes = self.at + HEADER_BYTES..self.at + HEADER_BYTES + length;
            self.behind_damage = None;
            if kind == ZERO && length == 0 {
                return if self.rest_is_zeros()? { Ok(None) } else { damaged("zeros where a record should begin") };
            }
            if bytes.end > self.block.len() {
                if let Some(detail) = self.unreadable.take() {
                    return Err(LogDamage { offset, detail });
                }
                return damaged(if self.is_last {
                    "the file ends within a record"
                } else {
                    "a record has a length that it cannot have"
                });
            }
            self.behind_damage = Some(bytes.end);
            if unmasked(stored) != crc32c::crc32c(&self.block[bytes.start - 1..bytes.end]) {
                return damaged("the checksum of a record does not match");
            }
            self.at = bytes.end;
            self.written_bytes = self.offset();
            match kind {
                FULL | FIRST | MIDDLE | LAST => return Ok(Some(Fragment { offset, kind, bytes })),
                _ if kind & MAY_BE_IGNORED != 0 => (),
                _ => {
                    return Err(LogDamage {
                        offset,
                        detail: format!("a record is of kind {kind}, which no store writes"),
                    });
                }
            }
        }
    }

    fn offset(&self) -> u64 {
        self.block_begin + self.at as u64
    }

    /// Reads the next block, which is empty behind the end of the file, and ends where it cannot be
    /// read: it would be as unreadable once more.
    fn next_block(&mut self) {
        self.block_begin += self.block.len() as u64;
        (self.at, self.behind_damage) = (0, None);
        self.block.clear();
        let read = (&mut self.file).take(BLOCK_BYTES as u64).read_to_end(&mut self.block);
        self.is_last = self.block.len() < BLOCK_BYTES;
        self.unreadable = read.err().map(|error| {
            self.is_last = true;
            format!("it cannot be read: {error}")
        });
    }

    /// Whether nothing but zeros follows. Leaves the log at its end then, and else where something
    /// follows, if that is in another block.
    fn rest_is_zeros(&mut self) -> Result<bool, LogDamage> {
        let mut is_behind = false;
        loop {
            if self.block[self.at..].iter().any(|byte| *byte != 0) {
                self.behind_damage = is_behind.then_some(self.at);
                return Ok(false);
            }
            self.at = self.block.len();
            if self.is_last {
                let offset = self.offset();
                return self.unreadable.take().map_or(Ok(true), |detail| Err(LogDamage { offset, detail }));
            }
            self.next_block();
            is_behind = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io;

    /// A sector that cannot be read.
    struct Unreadable;

    impl Read for Unreadable {
        fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("a bad sector"))
        }
    }

    #[test]
    fn a_file_ends_where_it_cannot_be_read_and_is_damaged_there() {
        let records = vec![vec![7; 1000]; 100];
        let sound = write(&records);
        for readable in [0, 1, 1006, 1007, 1010, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, BLOCK_BYTES + 5000] {
            // What is cut off there has as many whole records.
            let (expected, _) = read(&sound[..readable]);
            let file = io::Cursor::new(sound[..readable].to_vec()).chain(Unreadable);
            let (found, damaged) = read_from(Box::new(file), readable);
            assert_eq!((found, damaged), (expected, 1), "{readable}");
        }
        // Zeros that were set aside, as far as can be seen.
        let with_zeros = [write(&records[..1]), vec![0; 2 * BLOCK_BYTES]].concat();
        let file = io::Cursor::new(with_zeros[..BLOCK_BYTES].to_vec()).chain(Unreadable);
        assert_eq!(read_from(Box::new(file), BLOCK_BYTES), (records[..1].to_vec(), 1));
        assert_eq!(read(&with_zeros), (records[..1].to_vec(), 0));
    }

    #[test]
    fn zeros_up_to_a_block_cost_what_they_hit() {
        let records: Vec<_> = (0..130_u8).map(|number| vec![number; 1000]).collect();
        let sound = write(&records);
        for (from, to) in [(28_672, BLOCK_BYTES), (BLOCK_BYTES, 2 * BLOCK_BYTES), (28_672, 2 * BLOCK_BYTES)] {
            let mut holed = sound.clone();
            holed[from..to].fill(0);
            let (found, damaged) = read(&holed);
            // Each takes 1007 bytes and a few more where it is divided.
            let most = (to - from) / 1000 + 2;
            assert!(
                found.len() >= records.len() - most,
                "{} of {} between {from} and {to}",
                found.len(),
                records.len()
            );
            assert!(damaged >= 1 && found.iter().all(|record| records.contains(record)));
        }
    }

    #[test]
    fn a_file_that_ends_within_a_header_is_damaged_there_once() {
        let record = vec![vec![7; 1000]];
        for (torn, damaged) in [(0, 0), (1, 1), (HEADER_BYTES - 1, 1)] {
            assert_eq!(read(&[write(&record), vec![1; torn]].concat()), (record.clone(), damaged), "{torn}");
        }
    }

    #[test]
    fn a_directory_in_the_place_of_a_log_cannot_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = LogFile::open(directory.path()).unwrap();
        log.next_record().unwrap_err();
        log.resume();
        assert_eq!(log.next_record(), Ok(None));
    }

    /// The fragments of records, as RocksDB would write them.
    fn write(records: &[Vec<u8>]) -> Vec<u8> {
        let mut file = Vec::new();
        for record in records {
            let (mut rest, mut begun) = (&record[..], false);
            loop {
                let room = BLOCK_BYTES - file.len() % BLOCK_BYTES;
                if room < HEADER_BYTES {
                    file.resize(file.len() + room, 0);
                    continue;
                }
                let (part, after) = rest.split_at(rest.len().min(room - HEADER_BYTES));
                let kind = match (begun, after.is_empty()) {
                    (false, true) => FULL,
                    (false, false) => FIRST,
                    (true, false) => MIDDLE,
                    (true, true) => LAST,
                };
                let checked = [&[kind][..], part].concat();
                let masked = crc32c::crc32c(&checked).rotate_right(15).wrapping_add(0xA282_EAD8);
                file.extend(masked.to_le_bytes());
                file.extend((part.len() as u16).to_le_bytes());
                file.extend(checked);
                (rest, begun) = (after, true);
                if rest.is_empty() {
                    break;
                }
            }
        }
        file
    }

    /// All records, going on behind damage, and how often there was some.
    fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, usize) {
        read_from(Box::new(io::Cursor::new(bytes.to_vec())), bytes.len())
    }

    fn read_from(file: Box<dyn Read>, bytes: usize) -> (Vec<Vec<u8>>, usize) {
        let mut log = LogFile::of(file);
        let (mut records, mut damaged) = (Vec::new(), 0);
        loop {
            match log.next_record() {
                Ok(Some((offset, record))) => {
                    assert!(offset < bytes as u64);
                    records.push(record.to_vec());
                }
                Ok(None) => return (records, damaged),
                Err(damage) => {
                    assert!(damage.offset <= bytes as u64);
                    damaged += 1;
                    assert!(damaged <= bytes + 1, "it is damaged again and again");
                    log.resume();
                }
            }
        }
    }

    fn records() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let length = prop_oneof![0..100_usize, 32_740..32_780_usize, 60_000..100_000_usize];
        proptest::collection::vec((length, any::<u8>()).prop_map(|(length, byte)| vec![byte; length]), 0..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_is_read(records in records(), zeros in 0..70_000_usize) {
            let mut bytes = write(&records);
            prop_assert_eq!(read(&bytes), (records.clone(), 0));
            bytes.resize(bytes.len() + zeros, 0);
            prop_assert_eq!(read(&bytes), (records, 0));
        }

        #[test]
        fn damage_costs_what_it_hits_and_never_makes_a_record(records in records(), at: proptest::sample::Index, flip in 1..=255_u8) {
            let mut bytes = write(&records);
            prop_assume!(!bytes.is_empty());
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            let (found, damaged) = read(&bytes);
            let mut rest = records.iter();
            prop_assert!(found.iter().all(|record| rest.any(|other| other == record)), "records that never were");
            // A byte of the filler at the end of a block may change.
            prop_assert!(damaged > 0 || found == records);
        }

        #[test]
        fn any_bytes_come_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..2000), repeated in 1..40_usize) {
            read(&bytes.repeat(repeated));
        }
    }
}
