//! What begins a segment.
//!
//! ```text
//!  0            8         12        16      20           28        32
//!  +------------+---------+---------+-------+------------+---------+ - - - - -
//!  | "ECOVALUE" | format  | segment | level | 0 (8 bytes)| crc32c  | records
//!  |            | u32     | u32     | u32   |            | u32     |
//!  +------------+---------+---------+-------+------------+---------+ - - - - -
//!  |<------- what the checksum is over ------------------>|
//! ```
//!
//! All numbers are little-endian. The level is 0 in a segment that users' writes went to; in one of
//! relocated values it is one more than the level that they came to rest in.

use crate::pointer::SegmentNumber;
use crate::record::flipped_bit;

/// The length of a segment's header.
pub const SEGMENT_HEADER_BYTES: usize = 32;

const MAGIC: &[u8; 8] = b"ECOVALUE";
const FORMAT: u32 = 1;
const CHECKSUM_AT: usize = SEGMENT_HEADER_BYTES - 4;

/// Why bytes are not the header that was looked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// They are not those of a header.
    #[error("{0}")]
    Damaged(&'static str),
    /// They are, but of another segment, or of another version of this program.
    #[error("{0}")]
    Another(String),
}

/// The header of a segment that users' writes go to, or of one of values that were relocated to a
/// level.
pub fn encode(number: SegmentNumber, resting_level: Option<u32>) -> [u8; SEGMENT_HEADER_BYTES] {
    let mut header = [0; SEGMENT_HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    header[12..16].copy_from_slice(&number.0.to_le_bytes());
    header[16..20].copy_from_slice(&resting_level.map_or(0, |level| level + 1).to_le_bytes());
    let checksum = crc32c::crc32c(&header[..CHECKSUM_AT]);
    header[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Checks the header of this segment, and returns the level that its values were relocated to, if
/// they were.
pub fn check(found: &[u8; SEGMENT_HEADER_BYTES], number: SegmentNumber) -> Result<Option<u32>, HeaderError> {
    if found[..8] != *MAGIC {
        return Err(HeaderError::Damaged("it does not begin as a segment does"));
    }
    if checksum_difference(found) != 0 {
        return Err(HeaderError::Damaged("the checksum of its header does not match"));
    }
    let format = field(found, 8);
    if format != FORMAT {
        let reason = format!("its format is {format}, this version reads {FORMAT}: use a newer version");
        return Err(HeaderError::Another(reason));
    }
    let says = SegmentNumber(field(found, 12));
    if says != number {
        return Err(HeaderError::Another(format!("its header says that it is segment {says}")));
    }
    if found[20..CHECKSUM_AT] != [0; 8] {
        return Err(HeaderError::Another("its header sets bytes that this version does not know".into()));
    }
    Ok(field(found, 16).checked_sub(1))
}

/// Whether it would be one if one of its bits were another. A loss of power takes it whole or not
/// at all: it lies within a sector.
pub fn is_one_but_for_a_bit(found: &[u8; SEGMENT_HEADER_BYTES]) -> bool {
    let difference = checksum_difference(found);
    difference.is_power_of_two() || flipped_bit(difference, CHECKSUM_AT).is_some()
}

fn checksum_difference(found: &[u8; SEGMENT_HEADER_BYTES]) -> u32 {
    field(found, CHECKSUM_AT) ^ crc32c::crc32c(&found[..CHECKSUM_AT])
}

fn field(found: &[u8; SEGMENT_HEADER_BYTES], at: usize) -> u32 {
    found[at..at + 4].iter().rev().fold(0, |number: u32, byte| number << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::mutated;

    #[test]
    fn the_bytes_of_a_header_never_change() {
        let bytes = encode(SegmentNumber(0x0102), Some(2));
        assert_eq!(bytes[..28], *b"ECOVALUE\x01\0\0\0\x02\x01\0\0\x03\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(bytes[28..], crc32c::crc32c(&bytes[..28]).to_le_bytes());
    }

    #[test]
    fn a_mutated_header_is_one_or_is_refused() {
        let originals = [encode(SegmentNumber(7), None).to_vec(), encode(SegmentNumber(u32::MAX), Some(6)).to_vec()];
        mutated(&originals, |mut bytes, random| {
            if bytes.len() == SEGMENT_HEADER_BYTES && random.once_in(2) {
                let checksum = crc32c::crc32c(&bytes[..28]);
                bytes[28..].copy_from_slice(&checksum.to_le_bytes());
            }
            let Ok(found) = <&[u8; SEGMENT_HEADER_BYTES]>::try_from(&bytes[..]) else { return };
            let number = SegmentNumber(u32::from_le_bytes([found[12], found[13], found[14], found[15]]));
            if let Ok(level) = check(found, number) {
                assert_eq!(encode(number, level), *found);
                assert!(check(found, SegmentNumber(number.0 ^ 1)).is_err());
            }
        });
    }

    #[test]
    fn a_flipped_bit_is_told_from_a_header_that_never_reached_the_device() {
        let sound = encode(SegmentNumber(12_345), Some(4));
        assert!(!is_one_but_for_a_bit(&sound), "nothing is wrong with it");
        assert!(!is_one_but_for_a_bit(&[0; SEGMENT_HEADER_BYTES]));
        let flip = |bit: usize, header: &mut [u8]| header[bit / 8] ^= 1 << (bit % 8);
        for one in 0..SEGMENT_HEADER_BYTES * 8 {
            let mut bad = sound;
            flip(one, &mut bad);
            assert!(is_one_but_for_a_bit(&bad), "bit {one}");
            for other in (0..one).step_by(7) {
                let mut worse = bad;
                flip(other, &mut worse);
                assert!(!is_one_but_for_a_bit(&worse), "bits {one} and {other}");
            }
        }
    }
}
