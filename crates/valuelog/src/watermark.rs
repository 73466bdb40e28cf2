//! Up to where the value log is known to be durable, kept over restarts.
//!
//! ```text
//!  0         4        8        16
//!  +---------+--------+--------+
//!  | segment | 0      | offset |      u32, u32, u64, little-endian
//!  +---------+--------+--------+
//! ```
//!
//! That is the payload of a [`SlotFile`], which is written each time after the segments were
//! synced. The file itself is synced when it comes to another segment, and when the store is
//! closed: whichever of its former contents a crash leaves was true when it was written and still
//! is, but behind an old one replay takes damage for the loss of power, and drops what follows.
//! Without any nothing is known to be durable, and replay checks every pointer.

use std::path::Path;

use crate::Result;
use crate::pointer::SegmentNumber;
use crate::slots::{self, SlotFile};
use ecotone_io::tap::Tap;

/// The file's name, beside the segments.
pub const WATERMARK_FILE: &str = "WATERMARK";

const PAYLOAD_BYTES: usize = 16;

/// All segments with a lower number that users' values were appended to are durable, and this one up
/// to `offset`. Relocated ones may have lower numbers and be begun later; they are synced before a
/// table names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watermark {
    /// The segment.
    pub segment: SegmentNumber,
    /// Its durable bytes.
    pub offset: u64,
}

/// Where the watermark is kept.
#[derive(Debug)]
pub struct WatermarkFile {
    file: SlotFile<PAYLOAD_BYTES>,
    /// What it says.
    last: Option<Watermark>,
    /// The segment that it named when it was synced.
    on_device: Option<SegmentNumber>,
}

impl WatermarkFile {
    /// Opens the file in `directory` for writing, and makes it where it is missing.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io), [`Error::DiskFull`](crate::Error::DiskFull).
    pub fn open(directory: &Path, tap: &Tap) -> Result<Self> {
        let (file, last) = SlotFile::open(directory.join(WATERMARK_FILE), tap, decode)?;
        Ok(Self { file, last, on_device: None })
    }

    /// Keeps `watermark`, on the device where it names another segment than the one before, unless
    /// somebody who synced later has come first with a greater one. A failure is no harm: the
    /// former one goes on being true.
    pub fn set(&mut self, watermark: Watermark) -> Result<()> {
        if self.last > Some(watermark) {
            return Ok(());
        }
        self.file.write(&encode(watermark))?;
        self.last = Some(watermark);
        if self.on_device != Some(watermark.segment) {
            self.sync()?;
            self.on_device = Some(watermark.segment);
        }
        Ok(())
    }

    /// Brings it to the device as it is.
    ///
    /// # Errors
    ///
    /// As little harm as one of [`set`](Self::set).
    pub fn sync(&mut self) -> Result<()> {
        self.file.sync()
    }
}

/// The watermark that is kept in `directory`.
///
/// # Errors
///
/// [`Error::Io`](crate::Error::Io) where there is a file that cannot be read.
pub fn read(directory: &Path) -> Result<Option<Watermark>> {
    slots::read(&directory.join(WATERMARK_FILE), decode)
}

fn encode(watermark: Watermark) -> [u8; PAYLOAD_BYTES] {
    let mut payload = [0; PAYLOAD_BYTES];
    payload[..4].copy_from_slice(&watermark.segment.0.to_le_bytes());
    payload[8..].copy_from_slice(&watermark.offset.to_le_bytes());
    payload
}

fn decode(payload: &[u8; PAYLOAD_BYTES]) -> Option<Watermark> {
    let [a, b, c, d, zeros @ .., o0, o1, o2, o3, o4, o5, o6, o7] = *payload;
    // What this version does not write it does not take on trust.
    let watermark = Watermark {
        segment: SegmentNumber(u32::from_le_bytes([a, b, c, d])),
        offset: u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
    };
    (zeros == [0; 4]).then_some(watermark)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ecotone_io::tap::{TapEvent, WriteTap};
    use parking_lot::Mutex;

    use super::*;
    use crate::mutation::mutated;

    fn at(segment: u32, offset: u64) -> Watermark {
        Watermark { segment: SegmentNumber(segment), offset }
    }

    #[test]
    fn the_latest_holds_also_after_reopening() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read(directory.path()).unwrap(), None);
        let mut file = WatermarkFile::open(directory.path(), &Tap::SILENT).unwrap();
        assert_eq!(read(directory.path()).unwrap(), None);
        for number in 1..6 {
            file.set(at(number, 100)).unwrap();
            assert_eq!(read(directory.path()).unwrap(), Some(at(number, 100)));
        }
        drop(file);
        let mut file = WatermarkFile::open(directory.path(), &Tap::SILENT).unwrap();
        file.set(at(6, 50)).unwrap();
        assert_eq!(read(directory.path()).unwrap(), Some(at(6, 50)));
    }

    #[test]
    fn who_synced_earlier_and_comes_later_does_not_move_it_back() {
        let directory = tempfile::tempdir().unwrap();
        for opened in 0..2 {
            let mut file = WatermarkFile::open(directory.path(), &Tap::SILENT).unwrap();
            file.set(at(8 + opened, 100)).unwrap();
            for (segment, offset) in [(7, 500), (8, 40)] {
                file.set(at(segment, offset)).unwrap();
                assert_eq!(read(directory.path()).unwrap(), Some(at(8 + opened, 100)));
            }
        }
    }

    /// Hears of syncs of the file, and of its name.
    #[derive(Default)]
    struct Syncs(Mutex<(u32, u32)>);

    impl WriteTap for Syncs {
        fn record(&self, event: TapEvent<'_>) -> std::io::Result<()> {
            match event {
                TapEvent::Synced { path, len } => {
                    assert!(path.ends_with(WATERMARK_FILE) && len == std::fs::metadata(path)?.len());
                    self.0.lock().0 += 1;
                }
                TapEvent::DirectorySynced { .. } => self.0.lock().1 += 1,
                _ => (),
            }
            Ok(())
        }
    }

    #[test]
    fn it_is_on_the_device_once_for_each_segment() {
        let directory = tempfile::tempdir().unwrap();
        let syncs = Arc::<Syncs>::default();
        let tap = Tap::new(syncs.clone());
        for opened in 1..3 {
            let mut file = WatermarkFile::open(directory.path(), &tap).unwrap();
            for segment in 3 * opened..3 * opened + 3 {
                (1..10).for_each(|offset| file.set(at(segment, offset)).unwrap());
            }
            assert_eq!(*syncs.0.lock(), (opened * 3, opened));
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_documentation() {
        let directory = tempfile::tempdir().unwrap();
        WatermarkFile::open(directory.path(), &Tap::SILENT).unwrap().set(at(7, 0x1234)).unwrap();
        let bytes = std::fs::read(directory.path().join(WATERMARK_FILE)).unwrap();
        let slot = [[1, 0, 0, 0, 0, 0, 0, 0], [7, 0, 0, 0, 0, 0, 0, 0], [0x34, 0x12, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!(bytes[512..], [&slot[..], &crc32c::crc32c(&slot).to_le_bytes()].concat());
    }

    #[test]
    fn a_mutated_payload_is_one_or_none() {
        mutated(&[encode(at(1, 32)).to_vec(), encode(at(u32::MAX, u64::MAX)).to_vec()], |bytes, _| {
            let Ok(payload) = <&[u8; PAYLOAD_BYTES]>::try_from(&bytes[..]) else { return };
            if let Some(watermark) = decode(payload) {
                assert_eq!(encode(watermark), *payload);
            }
        });
    }
}
