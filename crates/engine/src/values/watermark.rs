//! Up to where the value log is known to be durable, kept over restarts.
//!
//! ```text
//!  0        8         12       16       24        28
//!  +--------+---------+--------+--------+---------+
//!  | count  | segment | 0      | offset | crc32c  |      u64, u32, u32, u64, u32, little-endian
//!  +--------+---------+--------+--------+---------+
//! ```
//!
//! Two such slots, 512 bytes apart, are written in turn, each time after the segments were synced. The file itself is synced when it comes
//! to another segment, and when the store is closed: whichever of its former contents a crash leaves was true when it was written and still
//! is, but behind an old one replay takes damage for the loss of power, and drops what follows. Of two good slots the one with the
//! greater count holds; without any nothing is known to be durable, and replay checks every pointer.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ecotone_rocks_sys::filesystem::TapEvent;

use super::pointer::SegmentNumber;
use crate::identity::sync_directory;
use crate::tap::Tap;
use crate::{Error, Result};

/// The file's name, beside the segments.
pub const WATERMARK_FILE: &str = "WATERMARK";

const SLOT_BYTES: usize = 28;

/// Apart by a sector, so that a torn write spoils one of them only.
const SLOT_DISTANCE: u64 = 512;

/// All segments with a lower number are durable, and this one up to `offset`.
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
    path: PathBuf,
    file: File,
    count: u64,
    /// What it says.
    last: Option<Watermark>,
    /// The segment that it named when it was synced.
    on_device: Option<SegmentNumber>,
    name_is_synced: bool,
    tap: Tap,
}

impl WatermarkFile {
    /// Opens the file in `directory` for writing, and makes it where it is missing.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::DiskFull`].
    pub fn open(directory: &Path, tap: &Tap) -> Result<Self> {
        let path = directory.join(WATERMARK_FILE);
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let file = match options.open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let created = options.create_new(true).open(&path);
                created.and_then(|file| tap.tell(TapEvent::Created { path: &path }).map(|()| file))
            }
            opened => opened,
        };
        let file = file.map_err(|error| Error::io("open", &path, &error))?;
        let newest = slots(&file).into_iter().flatten().max_by_key(|(count, _)| *count);
        let (count, last) = newest.map_or((0, None), |(count, watermark)| (count, Some(watermark)));
        Ok(Self { path, file, count, last, on_device: None, name_is_synced: false, tap: tap.clone() })
    }

    /// Keeps `watermark`, on the device where it names another segment than the one before, unless somebody who synced later has come first with a
    /// greater one. A failure is no harm: the former one goes on being true.
    pub fn set(&mut self, watermark: Watermark) -> Result<()> {
        if self.last > Some(watermark) {
            return Ok(());
        }
        self.write(watermark).map_err(|error| Error::io("write", &self.path, &error))?;
        if self.on_device != Some(watermark.segment) {
            self.sync()?;
            self.on_device = Some(watermark.segment);
        }
        Ok(())
    }

    fn write(&mut self, watermark: Watermark) -> std::io::Result<()> {
        let count = self.count + 1;
        let (slot, offset) = (encode(count, watermark), (count % 2) * SLOT_DISTANCE);
        self.file.write_all_at(&slot, offset)?;
        self.tap.tell(TapEvent::Appended { path: &self.path, offset, bytes: &slot })?;
        (self.count, self.last) = (count, Some(watermark));
        Ok(())
    }

    /// Brings it to the device as it is.
    ///
    /// # Errors
    ///
    /// As little harm as one of [`set`](Self::set).
    pub fn sync(&mut self) -> Result<()> {
        let synced = self.file.metadata().and_then(|metadata| {
            self.file.sync_data()?;
            self.tap.tell(TapEvent::Synced { path: &self.path, len: metadata.len() })
        });
        synced.map_err(|error| Error::io("sync", &self.path, &error))?;
        if !self.name_is_synced {
            self.path.parent().map_or(Ok(()), |directory| sync_directory(directory, &self.tap))?;
            self.name_is_synced = true;
        }
        Ok(())
    }
}

/// The watermark that is kept in `directory`.
///
/// # Errors
///
/// [`Error::Io`] where there is a file that cannot be read.
pub fn read(directory: &Path) -> Result<Option<Watermark>> {
    let path = directory.join(WATERMARK_FILE);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("open", &path, &error)),
    };
    Ok(slots(&file).into_iter().flatten().max_by_key(|(count, _)| *count).map(|(_, watermark)| watermark))
}

fn slots(file: &File) -> [Option<(u64, Watermark)>; 2] {
    [0, SLOT_DISTANCE].map(|offset| {
        let mut slot = [0; SLOT_BYTES];
        file.read_exact_at(&mut slot, offset).ok()?;
        decode(&slot)
    })
}

fn encode(count: u64, watermark: Watermark) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..8].copy_from_slice(&count.to_le_bytes());
    slot[8..12].copy_from_slice(&watermark.segment.0.to_le_bytes());
    slot[16..24].copy_from_slice(&watermark.offset.to_le_bytes());
    let checksum = crc32c::crc32c(&slot[..24]);
    slot[24..].copy_from_slice(&checksum.to_le_bytes());
    slot
}

fn decode(slot: &[u8; SLOT_BYTES]) -> Option<(u64, Watermark)> {
    let number = |at: usize, bytes: usize| {
        slot[at..at + bytes].iter().rev().fold(0, |number: u64, byte| number << 8 | u64::from(*byte))
    };
    // A slot of zeros has the right checksum of nothing written; counts begin at 1. What this version does not write it does not
    // take on trust.
    if number(24, 4) != u64::from(crc32c::crc32c(&slot[..24])) || number(0, 8) == 0 || number(12, 4) != 0 {
        return None;
    }
    let segment = SegmentNumber(number(8, 4) as u32);
    Some((number(0, 8), Watermark { segment, offset: number(16, 8) }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ecotone_rocks_sys::filesystem::{FileSystemHooks, WriteTap};
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
        let tap = Tap::of(Some(&FileSystemHooks { tap: Some(syncs.clone()), ..FileSystemHooks::default() }));
        for opened in 1..3 {
            let mut file = WatermarkFile::open(directory.path(), &tap).unwrap();
            for segment in 3 * opened..3 * opened + 3 {
                (1..10).for_each(|offset| file.set(at(segment, offset)).unwrap());
            }
            assert_eq!(*syncs.0.lock(), (opened * 3, opened));
        }
    }

    #[test]
    fn a_mutated_slot_is_one_or_none() {
        let originals = [encode(1, at(1, 32)).to_vec(), encode(u64::MAX, at(u32::MAX, u64::MAX)).to_vec()];
        mutated(&originals, |mut bytes, random| {
            if bytes.len() == SLOT_BYTES && random.once_in(2) {
                let checksum = crc32c::crc32c(&bytes[..24]);
                bytes[24..].copy_from_slice(&checksum.to_le_bytes());
            }
            let Ok(slot) = <&[u8; SLOT_BYTES]>::try_from(&bytes[..]) else { return };
            if let Some((count, watermark)) = decode(slot) {
                assert_eq!(encode(count, watermark), *slot);
            }
        });
    }

    #[test]
    fn a_mutated_file_is_read_or_holds_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = WatermarkFile::open(directory.path(), &Tap::SILENT).unwrap();
        (1..4).for_each(|number| file.set(at(number, 100)).unwrap());
        let path = directory.path().join(WATERMARK_FILE);
        let original = std::fs::read(&path).unwrap();
        mutated(&[original], |bytes, _| {
            std::fs::write(&path, &bytes).unwrap();
            let found = read(directory.path()).unwrap();
            assert!(found.is_none_or(|found| found == at(2, 100) || found == at(3, 100)), "{found:?}");
        });
    }

    #[test]
    fn damage_falls_back_to_the_one_before_and_then_to_none() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = WatermarkFile::open(directory.path(), &Tap::SILENT).unwrap();
        file.set(at(1, 10)).unwrap();
        file.set(at(2, 20)).unwrap();
        let path = directory.path().join(WATERMARK_FILE);
        let good = std::fs::read(&path).unwrap();
        // The first write went to the second slot.
        for bit in 0..SLOT_BYTES * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &bad).unwrap();
            assert_eq!(read(directory.path()).unwrap(), Some(at(1, 10)));
        }
        for rest in [0, 27, 512, 539] {
            std::fs::write(&path, vec![0; rest]).unwrap();
            assert_eq!(read(directory.path()).unwrap(), None);
        }
    }
}
