//! Where the records end in files that are appended to: behind them may be zeros, which are
//! reserved space.

use std::ops::Range;
use std::path::Path;

pub const WAL_BLOCK_BYTES: usize = 32 * 1024;

const WAL_HEADER_BYTES: usize = 7;
pub const SEGMENT_HEADER_BYTES: usize = 32;
const RECORD_HEADER_BYTES: usize = 12;

const ZERO: u8 = 0;
const FULL: u8 = 1;
const FIRST: u8 = 2;

fn number(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// Where the records of a sound WAL begin, and where the last one ends. Its framing is a checksum
/// of 4 bytes, a length of 2 and a type, in blocks.
fn walk_wal(wal: &[u8]) -> (Vec<usize>, usize) {
    let (mut begins, mut at, mut end) = (Vec::new(), 0, 0);
    while at + WAL_HEADER_BYTES <= wal.len() {
        if WAL_BLOCK_BYTES - at % WAL_BLOCK_BYTES < WAL_HEADER_BYTES {
            at = at.next_multiple_of(WAL_BLOCK_BYTES);
            continue;
        }
        let (length, kind) = (number(&wal[at + 4..at + 6]), wal[at + 6]);
        if kind == ZERO && length == 0 {
            break;
        }
        if kind == FULL || kind == FIRST {
            begins.push(at);
        }
        at += WAL_HEADER_BYTES + length;
        end = at;
    }
    (begins, end)
}

/// Where the records of a sound WAL begin.
pub fn wal_records(wal: &[u8]) -> Vec<usize> {
    walk_wal(wal).0
}

/// Whether values of a segment may be compressed: its format, as its header has it.
pub fn is_packed(segment: &[u8]) -> bool {
    number(&segment[8..12]) == 2
}

/// Where the records of a sound segment lie, that of its dictionary among them.
pub fn segment_records(segment: &[u8]) -> Vec<Range<usize>> {
    let (mut found, mut at) = (Vec::new(), SEGMENT_HEADER_BYTES);
    let record_bytes = if segment.len() > at && is_packed(segment) { packed_record_bytes } else { plain_record_bytes };
    while let Some(bytes) = record_bytes(&segment[at.min(segment.len())..]) {
        found.push(at..at + bytes);
        at += bytes;
    }
    found
}

/// Where the dictionary of a sound segment lies, where it has one: it is its first record, and what
/// the header names is not 0.
pub fn dictionary_record(segment: &[u8]) -> Option<Range<usize>> {
    let has_one = is_packed(segment) && segment[20..28] != [0; 8];
    if has_one { segment_records(segment).into_iter().next() } else { None }
}

/// The length of the record of format 1 that begins `bytes`; none where nothing but zeros follows.
fn plain_record_bytes(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..RECORD_HEADER_BYTES).filter(|header| **header != [0; RECORD_HEADER_BYTES])?;
    Some(RECORD_HEADER_BYTES + number(&header[4..8]) + number(&header[8..]))
}

/// The same of one of format 2: a checksum of 4 bytes, the packing, the length of the key and of
/// what is stored, and where it is packed by how much it is longer.
fn packed_record_bytes(bytes: &[u8]) -> Option<usize> {
    bytes.get(..7).filter(|header| **header != [0; 7])?;
    let mut at = 5;
    let mut next = || {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = *bytes.get(at)?;
            at += 1;
            value |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
    };
    let (key_bytes, stored_bytes) = (next()?, next()?);
    if bytes[4] & 0x0f != 0 {
        next()?;
    }
    Some(at + key_bytes + stored_bytes)
}

fn segment_end(segment: &[u8]) -> usize {
    segment_records(segment).last().map_or(SEGMENT_HEADER_BYTES, |last| last.end)
}

/// The length of a sound WAL or segment without what is reserved behind its last record; of another
/// file its length.
pub fn written_bytes(path: &Path) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    let end = match path.extension().and_then(|extension| extension.to_str()) {
        Some("log") => walk_wal(&bytes).1,
        Some("segment") => segment_end(&bytes),
        _ => bytes.len(),
    };
    assert!(end <= bytes.len() && bytes[end..].iter().all(|byte| *byte == 0), "{path:?} is not sound");
    end as u64
}

/// Copies the files of a store and of its value log, as a kill would leave them.
pub fn copy_store(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.join("values")).unwrap();
    for directory in ["", "values"] {
        let Ok(entries) = std::fs::read_dir(from.join(directory)) else { continue };
        for entry in entries {
            let entry = entry.unwrap();
            if entry.path().is_file() && entry.file_name() != "LOCK" {
                std::fs::copy(entry.path(), to.join(directory).join(entry.file_name())).unwrap();
            }
        }
    }
}
