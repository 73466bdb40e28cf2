//! What of a segment of relocated values is a copy of bytes of other segments, for a tap that
//! follows copies: whoever has the others can make the segment of them.
//!
//! A range is kept until the bytes that it speaks of are told as appended. What all of a segment
//! comes to is counted as well: before there is too much for one who passes it on, the segment is
//! sealed (see [`Copies::is_full`]).
//!
//! Bounds: the ranges of what is collected in memory ([`crate::collected`]); none where nobody
//! follows. Threads: one at a time.

use ecotone_io::tap::CopiedRange;

use crate::pointer::SegmentNumber;

/// What a range takes where it is passed on, at most about: a segment, an offset and a length.
const RANGE_BYTES: u64 = 10;

/// So much is said of one segment at most, ranges and bytes that are no copies, as long as what they
/// say is worth it. One item of a stream to copies of the store takes a little more.
const MAX_SAID_BYTES: u64 = 224 * 1024;

/// It is worth it where it is at most this part of the segment.
const MIN_GAIN: u64 = 4;

/// A record is a copy of the bytes that begin there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CopyOf {
    pub segment: SegmentNumber,
    pub offset: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    ranges: Vec<CopiedRange>,
    /// What saying all of the segment takes.
    said_bytes: u64,
}

impl Copies {
    /// `len` bytes are about to be appended at `offset`, copied from there if from anywhere.
    pub fn begin(&mut self, offset: u64, len: u64, from: Option<CopyOf>) {
        match from {
            Some(CopyOf { segment, offset: from_offset }) => {
                let (from, from_offset) = (u64::from(segment.0), u64::from(from_offset));
                self.ranges.push(CopiedRange { offset, len, from, from_offset });
                self.said_bytes += RANGE_BYTES;
            }
            None => self.said_bytes += len,
        }
    }

    /// They were not appended.
    pub fn take_back(&mut self, offset: u64) {
        self.ranges.retain(|range| range.offset < offset);
    }

    /// The ranges that begin before `end`, whose bytes are told of next.
    pub fn take_before(&mut self, end: u64) -> Vec<CopiedRange> {
        let count = self.ranges.partition_point(|range| range.offset < end);
        self.ranges.drain(..count).collect()
    }

    /// Whether a segment of so many bytes should get no more.
    pub fn is_full(&self, bytes: u64) -> bool {
        self.said_bytes >= MAX_SAID_BYTES && bytes / MIN_GAIN >= self.said_bytes
    }
}
