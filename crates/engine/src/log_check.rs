//! A look at RocksDB's logs before RocksDB reads them: the write-ahead logs and the MANIFEST.
//!
//! RocksDB 11.12 takes the first record that it cannot read for the one that was being written when the machine stopped, and drops it
//! with all that follows. In a WAL that is acknowledged writes; in a MANIFEST, where the length of a record leads beyond the file,
//! whole tables, whose files it then removes. And it never comes back from a record whose type says that its file is a
//! recycled one where the file is none (`db/log_reader.cc`: `ReadPhysicalRecord` returns `kBadRecord` there without going on, and
//! `ReadRecord` asks it again, for ever).
//!
//! So what no interrupted write leaves is found here, and named:
//!
//! - a type of recycled files: our stores recycle none;
//! - a record that is whole but for one bit, with a whole one behind it. What was being written last has nothing behind it, and
//!   what was not synced is lost by sectors: that takes more than one bit, or the begin of the next record as well;
//! - a length that leads beyond the file and is one bit away from one with which the checksum fits.
//!
//! All other damage is left to RocksDB. The walk goes only where its reader would go: over whole records with right checksums.
//! The format is that of `inspect/repair/log_file.rs`.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::flipped_bit::flipped_bit;
use crate::{Error, Result};

pub(crate) const BLOCK_BYTES: usize = 32 * 1024;
pub(crate) const HEADER_BYTES: usize = 7;

/// The kind of what was set aside and not written.
pub(crate) const ZERO: u8 = 0;

const fn is_recyclable(kind: u8) -> bool {
    matches!(kind, 5..=8 | 11 | 131)
}

/// What there is of logs.
pub(crate) struct Logs {
    has_manifest: bool,
    has_wal: bool,
}

impl Logs {
    /// Whether RocksDB may refuse a store that has no WAL at all. One whose creation a loss of power has cut short may have
    /// none, and so may a copy.
    pub(crate) const fn may_want_a_wal(&self) -> bool {
        self.has_wal || !self.has_manifest
    }
}

/// Refuses a store with a log whose damage RocksDB would not notice.
///
/// # Errors
///
/// [`Error::Corrupt`] names file and offset; [`Error::Io`] where a log cannot be read.
pub(crate) fn check(directory: &Path) -> Result<Logs> {
    let mut logs = Logs { has_manifest: false, has_wal: false };
    for log in files(directory).map_err(|error| Error::io("list", directory, &error))? {
        let is_wal = log.extension().is_some_and(|extension| extension == "log");
        logs.has_wal |= is_wal;
        logs.has_manifest |= !is_wal;
        match File::open(&log).and_then(damage) {
            Ok(None) => (),
            Ok(Some(Damage { offset, detail })) => {
                let location = Some(format!("{} at offset {offset}", log.display()));
                return Err(Error::Corrupt { location, detail: format!("{detail}; ecotone repair saves the rest") });
            }
            // Removed meanwhile, by the process that writes the store.
            Err(error) if error.kind() == ErrorKind::NotFound => (),
            Err(error) => return Err(Error::io("read", &log, &error)),
        }
    }
    Ok(logs)
}

/// The write-ahead logs, and the MANIFEST that is in force.
fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let current = fs::read_to_string(directory.join("CURRENT")).unwrap_or_default();
    let mut logs = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if entry.file_type()?.is_file() && (name.ends_with(".log") || name == current.trim_end()) {
            logs.push(entry.path());
        }
    }
    Ok(logs)
}

#[derive(Debug, PartialEq, Eq)]
struct Damage {
    /// Where the record begins.
    offset: u64,
    detail: &'static str,
}

const RECYCLED: &str = "the type of a record says that the file is a recycled one, and no store has such";
const TOO_LONG: &str = "the length of a record leads beyond its block, and its checksum is that of a shorter one";
const ONE_BIT: &str = "the checksum of a record does not match, and it was not the last one";

/// The first damage that RocksDB would not notice.
fn damage(mut log: impl Read) -> io::Result<Option<Damage>> {
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    let mut block_begins = 0;
    let next_block = |log: &mut dyn Read, block: &mut Vec<u8>| {
        block.clear();
        log.take(BLOCK_BYTES as u64).read_to_end(block)
    };
    loop {
        next_block(&mut log, &mut block)?;
        let mut rest = &block[..];
        while let Some(header) = rest.first_chunk::<HEADER_BYTES>() {
            let offset = block_begins + (block.len() - rest.len()) as u64;
            let header = Header::of(*header);
            if is_recyclable(header.kind) {
                return Ok(Some(Damage { offset, detail: RECYCLED }));
            }
            if header.is_zero() {
                break;
            }
            if let Some(end) = header.end_in(rest) {
                rest = &rest[end..];
                continue;
            }
            let Some(end) = header.end_but_for_a_bit(rest) else { return Ok(None) };
            if header.end() > rest.len() {
                return Ok(Some(Damage { offset, detail: TOO_LONG }));
            }
            let mut behind = rest[end..].to_vec();
            if behind.len() < HEADER_BYTES {
                next_block(&mut log, &mut behind)?;
            }
            return Ok(begins_with_a_record(&behind).then_some(Damage { offset, detail: ONE_BIT }));
        }
        if block.len() < BLOCK_BYTES {
            return Ok(None);
        }
        block_begins += BLOCK_BYTES as u64;
    }
}

fn begins_with_a_record(bytes: &[u8]) -> bool {
    bytes.first_chunk().is_some_and(|header| {
        let header = Header::of(*header);
        !header.is_zero() && header.end_in(bytes).is_some()
    })
}

/// What stands before the payload of a record.
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

    /// Where the record ends.
    fn end(&self) -> usize {
        HEADER_BYTES + usize::from(self.length)
    }

    /// Where the record ends that `bytes` begin with, if it is whole.
    fn end_in(&self, bytes: &[u8]) -> Option<usize> {
        let record = bytes.get(..self.end())?;
        (unmasked(self.checksum) == crc32c::crc32c(&record[6..])).then_some(self.end())
    }

    /// Where the record ends that `bytes` begin with, if it would be whole with one other bit.
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

/// RocksDB stores checksums rotated and shifted (`util/crc32c.h`), so that one over bytes with checksums in them is as good.
pub(crate) fn unmasked(stored: u32) -> u32 {
    stored.wrapping_sub(0xA282_EAD8).rotate_left(15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::mutated;

    const FULL: u8 = 1;
    const FIRST: u8 = 2;
    const LAST: u8 = 4;

    fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
        let typed = [&[kind][..], payload].concat();
        let checksum = crc32c::crc32c(&typed).rotate_right(15).wrapping_add(0xA282_EAD8);
        [&checksum.to_le_bytes()[..], &(payload.len() as u16).to_le_bytes(), &typed].concat()
    }

    /// Four records in two blocks, and where they begin.
    fn log() -> (Vec<u8>, [usize; 4]) {
        let first = record(FULL, b"one");
        let second = record(FIRST, &vec![7; BLOCK_BYTES - first.len() - HEADER_BYTES - 3]);
        let log = [first, second, vec![0; 3], record(LAST, &[9; 500]), record(FULL, b"four")].concat();
        (log, [0, 10, BLOCK_BYTES, BLOCK_BYTES + 507])
    }

    fn found(log: &[u8]) -> Option<(usize, &'static str)> {
        damage(log).unwrap().map(|damage| (damage.offset as usize, damage.detail))
    }

    #[test]
    fn every_flipped_bit_is_found_but_in_the_last_record_where_a_write_may_have_been_cut() {
        let (sound, begins) = log();
        assert_eq!(found(&sound), None);
        let all = (0..BLOCK_BYTES * 8).step_by(509).chain(0..200).chain(BLOCK_BYTES * 8..sound.len() * 8);
        for bit in all {
            let mut bad = sound.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let begin = begins.into_iter().rev().find(|begin| *begin <= bit / 8).unwrap();
            let found = found(&bad);
            if begin == begins[3] {
                assert!(found.is_none_or(|found| found.0 == begin), "bit {bit}");
            } else if !(BLOCK_BYTES - 3..BLOCK_BYTES).contains(&(bit / 8)) {
                assert_eq!(found.map(|found| found.0), Some(begin), "bit {bit}");
            }
        }
    }

    #[test]
    fn what_a_loss_of_power_leaves_is_no_damage() {
        let (sound, _) = log();
        for cut in (0..sound.len()).step_by(61).chain(sound.len() - 600..sound.len()) {
            assert_eq!(found(&sound[..cut]), None, "cut at {cut}");
            // The kernel has written the length of the file and not what is in it.
            let zeros = [&sound[..cut], &vec![0; sound.len() - cut]].concat();
            assert_eq!(found(&zeros), None, "zeros from {cut}");
            let mut hole = sound.clone();
            hole[cut..sound.len().min(cut + 300)].fill(0);
            assert_eq!(found(&hole), None, "a hole at {cut}");
        }
    }

    #[test]
    fn the_type_of_a_recycled_file_is_damage_wherever_rocksdb_comes_to_it() {
        let (sound, begins) = log();
        for begin in begins {
            let mut bad = sound.clone();
            bad[begin + 6] = 5;
            assert_eq!(found(&bad), Some((begin, RECYCLED)));
        }
    }

    #[test]
    fn a_length_beyond_the_file_is_told_from_a_record_that_was_cut() {
        let sound = [record(FULL, b"one"), record(FULL, b"two, the last one")].concat();
        for bit in 5..16 {
            let mut bad = sound.clone();
            bad[10 + 4 + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(found(&bad), Some((10, TOO_LONG)), "bit {bit}");
        }
    }

    #[test]
    fn any_bytes_come_to_an_end() {
        let sound = [record(FULL, b"one"), record(2, &[7; 300]), record(LAST, b"three"), record(130, b"four")].concat();
        mutated(&[sound], |bytes, _| {
            let found = damage(&bytes[..]).unwrap();
            assert!(found.is_none_or(|damage| (damage.offset as usize) + HEADER_BYTES <= bytes.len()));
        });
    }
}
