//! Whether RocksDB's logs are as their writer left them, of files that no record of this crate
//! speaks of: the primary of a passed epoch wrote them, and was killed or could not close.
//!
//! A log is blocks of 32 KiB, each full of fragments: `crc32c (masked), length, kind`, for kinds of
//! recycled files the number of the log, then the payload. The checksum is over all from the kind
//! on. Only checksums are looked at, and nothing is used.
//!
//! A writer that was interrupted leaves a torn fragment with nothing behind it, or, after a loss of
//! power, whole sectors of zeros where bytes were not synced. So damage is: a fragment that is not
//! sound, a sound one behind it, and no sector of zeros between.
//!
//! Bounds: a file is read once, block by block.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::error::{Error, Result};

const BLOCK_BYTES: usize = 32 << 10;
const HEADER_BYTES: usize = 7;
/// With the number of the log, in files that may be recycled.
const LONG_HEADER_BYTES: usize = 11;
const SECTOR_BYTES: usize = 512;
const MASK: u32 = 0xa282_ead8;

/// What stands at a place of a block.
enum Fragment {
    /// Its length, header and all.
    Sound(usize),
    /// Nothing was written here.
    Nothing,
    /// And the length that it claims, if that is within the block.
    Broken(Option<usize>),
}

fn fragment(bytes: &[u8]) -> Fragment {
    let [c0, c1, c2, c3, l0, l1, kind, ..] = *bytes else { return Fragment::Broken(None) };
    let (checksum, len) = (u32::from_le_bytes([c0, c1, c2, c3]), usize::from(u16::from_le_bytes([l0, l1])));
    if (checksum, len, kind) == (0, 0, 0) {
        return Fragment::Nothing;
    }
    let header = if matches!(kind, 5..=8 | 11 | 131) { LONG_HEADER_BYTES } else { HEADER_BYTES };
    let end = header + len;
    let Some(checked) = bytes.get(HEADER_BYTES - 1..end) else { return Fragment::Broken(None) };
    if checksum.wrapping_sub(MASK).rotate_left(15) == crc32c::crc32c(checked) {
        Fragment::Sound(end)
    } else {
        Fragment::Broken(Some(end))
    }
}

fn has_lost_sector(bytes: &[u8]) -> bool {
    bytes.chunks_exact(SECTOR_BYTES).any(|sector| sector.iter().all(|byte| *byte == 0))
}

/// Whether no interrupted write explains what is in the log at `path`. False where it is gone.
pub(crate) fn is_damaged(path: &Path) -> Result<bool> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(Error::io("open", path, error)),
    };
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    // A fragment that is not sound came before, and no lost sector since.
    let mut is_broken = false;
    loop {
        block.clear();
        let read = Read::by_ref(&mut file).take(BLOCK_BYTES as u64).read_to_end(&mut block);
        if read.map_err(|error| Error::io("read", path, error))? == 0 {
            return Ok(false);
        }
        let mut at = 0;
        // Too short for a header: a trailer.
        while block.len() - at >= HEADER_BYTES {
            match fragment(&block[at..]) {
                Fragment::Sound(_) if is_broken => return Ok(true),
                Fragment::Sound(len) => at += len,
                Fragment::Nothing => {
                    is_broken &= !has_lost_sector(&block[at.next_multiple_of(SECTOR_BYTES).min(block.len())..]);
                    break;
                }
                Fragment::Broken(len) => {
                    is_broken = true;
                    let end = len.map_or(block.len(), |len| at + len);
                    // Sectors of the file, as blocks begin with one.
                    let first = at.next_multiple_of(SECTOR_BYTES).min(block.len());
                    if has_lost_sector(&block[first..]) {
                        is_broken = false;
                        break;
                    }
                    at = end;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log as RocksDB writes it, and where its fragments begin.
    fn log(payloads: &[usize], kind: u8) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut begins) = (Vec::new(), Vec::new());
        let header = if kind == 5 { 11 } else { 7 };
        for (number, len) in payloads.iter().enumerate() {
            let mut left = *len;
            while left > 0 {
                let room = BLOCK_BYTES - bytes.len() % BLOCK_BYTES;
                if room <= header {
                    bytes.resize(bytes.len() + room, 0);
                    continue;
                }
                if left == *len {
                    begins.push(bytes.len());
                }
                let part = left.min(room - header);
                let mut checked = vec![kind];
                if kind == 5 {
                    checked.extend(77_u32.to_le_bytes());
                }
                checked.extend((0..part).map(|at| (at * 7 + number) as u8 | 1));
                let crc = crc32c::crc32c(&checked);
                bytes.extend((crc.rotate_right(15).wrapping_add(0xa282_ead8)).to_le_bytes());
                bytes.extend((part as u16).to_le_bytes());
                bytes.extend(checked);
                left -= part;
            }
        }
        (bytes, begins)
    }

    fn check(bytes: &[u8]) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("000001.log");
        std::fs::write(&path, bytes).unwrap();
        is_damaged(&path).unwrap()
    }

    #[test]
    fn a_fragment_that_another_writer_made_is_sound() {
        // The first one of LevelDB's MANIFESTs, of which RocksDB has the format.
        let name = b"\x01\x1aleveldb.BytewiseComparator";
        let mut bytes = vec![0x56, 0xf9, 0xb8, 0xf8, 0x1c, 0x00, 0x01];
        bytes.extend(name);
        assert!(matches!(fragment(&bytes), Fragment::Sound(35)));
    }

    #[test]
    fn damage_is_told_from_what_an_interrupted_write_leaves() {
        for kind in [1, 5] {
            let payloads: Vec<usize> = (0..300).map(|at| 100 + at * 3).collect();
            let (whole, begins) = log(&payloads, kind);
            assert!(whole.len() > 4 * BLOCK_BYTES);
            assert!(!check(&whole));
            let last = *begins.last().unwrap();
            for at in [0, 1, 5, 40, 299] {
                for offset in [0, 6, 30] {
                    let mut bad = whole.clone();
                    bad[begins[at] + offset] ^= 16;
                    assert_eq!(check(&bad), begins[at] != last, "a bit of fragment {at}, at {offset}");
                }
            }
            // The length of the first one: what is behind it in its block is not found, the next is.
            let mut bad = whole.clone();
            bad[begins[1] + 4] ^= 1;
            assert!(check(&bad));
            for len in [0, 3, begins[7], begins[7] + 3, begins[7] + 50, last + 20] {
                assert!(!check(&whole[..len]), "cut at {len}");
                let mut preallocated = whole[..len].to_vec();
                preallocated.resize(len + 100_000, 0);
                assert!(!check(&preallocated), "cut at {len}, zeros behind");
            }
            // Power was lost: a sector never came, and later ones did.
            let mut holed = whole.clone();
            let sector = begins[200].next_multiple_of(SECTOR_BYTES);
            holed[sector..sector + SECTOR_BYTES].fill(0);
            assert!(!check(&holed));
        }
    }
}
