//! How a parcel is wrapped for its way: as it is, or compressed where that pays.
//!
//! The last byte says which: 0, the parcel precedes it; 1, an LZ4 block, then the length of the
//! parcel (`u32`, little-endian). Nothing is kept compressed that does not become a tenth shorter.
//!
//! Whether compressing pays is asked anew every [`PERIOD`] messages by trying with some of them: values
//! that clients or the store have compressed already would cost their time for nothing.

use ecotone_control::codec::{Malformed, Problem};
use ecotone_io::lz4::{Compressor, decompress};
use ecotone_replica::wire::{self, MAX_PARCEL_BYTES, Parcel};

/// The longest wrapped parcel.
pub const MAX_PACKED_BYTES: usize = MAX_PARCEL_BYTES + TRAILER_BYTES;
/// What protobuf adds to the bytes of a message.
pub(crate) const FRAMING_BYTES: usize = 64;
/// What is shorter is sent as it is: its frames and headers cost more than could be saved.
const MIN_COMPRESSED_BYTES: usize = 512;
/// Messages between two decisions.
const PERIOD: u32 = 64;
/// Of them, the first ones, by which it is decided.
const SAMPLES: u32 = 4;
/// Length and flag.
const TRAILER_BYTES: usize = 5;

const PLAIN: u8 = 0;
const LZ4: u8 = 1;

/// Whether messages to one server are compressed.
#[derive(Debug, Default)]
pub(crate) struct Sampling {
    /// Messages of this period.
    seen: u32,
    /// Of samples: their lengths, and what became of them.
    sampled: (u64, u64),
    /// What the last samples said.
    pays: bool,
}

impl Sampling {
    /// Whether the next message is to be compressed, and whether it is a sample.
    fn next(&mut self) -> (bool, bool) {
        if self.seen == PERIOD {
            (self.seen, self.sampled) = (0, (0, 0));
        }
        let is_sample = self.seen < SAMPLES;
        self.seen += 1;
        (is_sample || self.pays, is_sample)
    }

    fn sampled(&mut self, before: usize, after: usize) {
        self.sampled.0 += before as u64;
        self.sampled.1 += after as u64;
        let (before, after) = self.sampled;
        self.pays = after * 10 <= before * 9;
    }
}

/// Wraps a parcel. With `sampling` it may be compressed; that is locked for moments only.
pub(crate) fn pack(parcel: &Parcel, sampling: Option<&parking_lot::Mutex<Sampling>>) -> Result<Vec<u8>, Malformed> {
    let mut bytes = wire::encode(parcel)?;
    if let Some(sampling) = sampling.filter(|_| bytes.len() >= MIN_COMPRESSED_BYTES) {
        let (is_tried, is_sample) = sampling.lock().next();
        let compressed = if is_tried { compress(&bytes) } else { None };
        if is_sample {
            let after = compressed.as_ref().map_or(bytes.len(), Vec::len);
            sampling.lock().sampled(bytes.len(), after);
        }
        if let Some(compressed) = compressed {
            return Ok(compressed);
        }
    }
    bytes.push(PLAIN);
    Ok(bytes)
}

/// None where it does not become a tenth shorter.
fn compress(bytes: &[u8]) -> Option<Vec<u8>> {
    let max_bytes = (bytes.len() / 10 * 9).checked_sub(TRAILER_BYTES)?;
    let mut packed = Vec::with_capacity(max_bytes + TRAILER_BYTES);
    if !Compressor::new()?.compress(None, bytes, max_bytes, &mut packed) {
        return None;
    }
    packed.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    packed.push(LZ4);
    Some(packed)
}

/// Takes a parcel out of what [`pack`] made.
pub(crate) fn unpack(packed: &[u8]) -> Result<Parcel, Malformed> {
    let wrong = |problem| Malformed::new("wrapping of a parcel", problem);
    match packed.split_last() {
        Some((&PLAIN, parcel)) => wire::decode(parcel),
        Some((&LZ4, rest)) => {
            let (block, length) = rest.split_last_chunk().ok_or_else(|| wrong(Problem::Ends))?;
            let length = u32::from_le_bytes(*length) as usize;
            if length > MAX_PARCEL_BYTES {
                return Err(wrong(Problem::TooMany { found: length as u64, limit: MAX_PARCEL_BYTES as u64 }));
            }
            let mut parcel = Vec::with_capacity(length);
            if !decompress(&[], block, length, &mut parcel) {
                return Err(wrong(Problem::Inconsistent("no block of that length".into())));
            }
            wire::decode(&parcel)
        }
        Some((other, _)) => Err(wrong(Problem::Value(u64::from(*other)))),
        None => Err(wrong(Problem::Ends)),
    }
}

#[cfg(test)]
mod tests {
    use ecotone_control::ids::{Epoch, ShardId};
    use ecotone_replica::position::Mark;
    use ecotone_replica::stream::{FileKind, Item, Kind, ToCopy, ToCopyBody};
    use ecotone_replica::wire::Message;
    use parking_lot::Mutex;

    use super::*;

    fn parcel(bytes: Vec<u8>) -> Parcel {
        let kind = Kind::Append { file: FileKind::Segment, number: 1, offset: 0 };
        let item = Item::behind(Mark::default(), kind, bytes.len() as u64, 0);
        let body = ToCopyBody::Items { items: vec![item], end_bytes: 0 };
        let message = Message::ToCopy(ShardId(1), ToCopy { epoch: Epoch(1), session: 1, body });
        Parcel { message, bytes: vec![bytes] }
    }

    /// Bytes that LZ4 does not shorten.
    fn noise(length: usize, seed: u32) -> Vec<u8> {
        let mut state = seed | 1;
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        };
        (0..length).map(next).collect()
    }

    #[test]
    fn what_is_packed_is_unpacked() {
        let sampling = Mutex::new(Sampling::default());
        for bytes in [Vec::new(), vec![7; 10], vec![7; 100_000], noise(100_000, 9)] {
            let parcel = parcel(bytes);
            for sampling in [None, Some(&sampling)] {
                let packed = pack(&parcel, sampling).unwrap();
                assert!(packed.len() <= MAX_PACKED_BYTES);
                assert_eq!(unpack(&packed).unwrap(), parcel);
            }
        }
        assert!(pack(&parcel(vec![7; 100_000]), Some(&sampling)).unwrap().len() < 2_000);
    }

    #[test]
    fn what_does_not_pay_is_tried_now_and_then() {
        let sampling = Mutex::new(Sampling::default());
        let flag = |parcel: &Parcel| *pack(parcel, Some(&sampling)).unwrap().last().unwrap();
        let (dense, sparse) = (parcel(noise(10_000, 77)), parcel(vec![1; 10_000]));
        for _ in 0..SAMPLES {
            assert_eq!(flag(&dense), PLAIN);
        }
        // Decided: even what would become shorter is not tried until the period ends.
        for _ in SAMPLES..PERIOD {
            assert_eq!(flag(&sparse), PLAIN);
        }
        for _ in 0..PERIOD {
            assert_eq!(flag(&sparse), LZ4);
        }
        for _ in 0..PERIOD {
            assert_eq!(flag(&dense), PLAIN);
        }
        assert!(!sampling.lock().pays);
    }

    #[test]
    fn what_is_damaged_is_refused() {
        let packed = pack(&parcel(vec![7; 10_000]), Some(&Mutex::default())).unwrap();
        assert_eq!(packed.last(), Some(&LZ4));
        for at in 0..packed.len() {
            for bit in 0..8 {
                let mut flipped = packed.clone();
                flipped[at] ^= 1 << bit;
                // Some of it is bytes of an item, whose checksum is compared by whoever takes it.
                if let Ok(other) = unpack(&flipped) {
                    assert_eq!(other.bytes[0].len(), 10_000);
                }
            }
            assert!(unpack(&packed[..at]).is_err(), "{at} bytes");
        }
        // A length that nobody sends takes no memory.
        let mut long = packed.clone();
        let at = long.len() - TRAILER_BYTES;
        long[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let limit = MAX_PARCEL_BYTES as u64;
        let refused = Problem::TooMany { found: u64::from(u32::MAX), limit };
        assert_eq!(unpack(&long).unwrap_err().problem, refused);
        assert_eq!(unpack(&[]).unwrap_err().problem, Problem::Ends);
        assert_eq!(unpack(&[0, 9]).unwrap_err().problem, Problem::Value(9));
    }
}
