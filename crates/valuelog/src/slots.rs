//! A small fact that is replaced often, kept over restarts in a file of two slots.
//!
//! ```text
//!  0        8         8 + n     12 + n
//!  +--------+---------+---------+
//!  | count  | payload | crc32c  |      u64, n bytes, u32; little-endian
//!  +--------+---------+---------+
//! ```
//!
//! The slots lie 512 bytes apart and are written in turn, so that a torn write spoils one of them
//! only. Of two good slots the one with the greater count holds. A write is not synced unless asked
//! for: whichever of its former contents a loss of power leaves was true when it was written, so a
//! fact that stays true can be kept here at the cost of one call.
//!
//! Threads: one owner. Failure: what was written before stays.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ecotone_io::tap::TapEvent;

use crate::{Error, Result};
use ecotone_io::tap::{Tap, sync_directory};

/// Apart by a sector.
const SLOT_DISTANCE: u64 = 512;

const COUNT_BYTES: usize = 8;
const CHECKSUM_BYTES: usize = 4;

/// The file, open for writing.
#[derive(Debug)]
pub struct SlotFile<const PAYLOAD: usize> {
    path: PathBuf,
    file: File,
    count: u64,
    name_is_synced: bool,
    tap: Tap,
}

impl<const PAYLOAD: usize> SlotFile<PAYLOAD> {
    /// Opens the file for writing, makes it where it is missing, and returns what it says, as far
    /// as `decode` knows it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::DiskFull`].
    pub fn open<T>(
        path: PathBuf,
        tap: &Tap,
        decode: impl Fn(&[u8; PAYLOAD]) -> Option<T>,
    ) -> Result<(Self, Option<T>)> {
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
        let (count, last) = newest(&file, decode).map_or((0, None), |(count, said)| (count, Some(said)));
        Ok((Self { path, file, count, name_is_synced: false, tap: tap.clone() }, last))
    }

    /// Says `payload` from now on.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); what it said before holds.
    pub fn write(&mut self, payload: &[u8; PAYLOAD]) -> Result<()> {
        let count = self.count + 1;
        let (slot, offset) = (encode(count, payload), (count % 2) * SLOT_DISTANCE);
        let written = self.file.write_all_at(&slot, offset);
        written
            .and_then(|()| self.tap.tell(TapEvent::Appended { path: &self.path, offset, bytes: &slot }))
            .map_err(|error| Error::io("write", &self.path, &error))?;
        self.count = count;
        Ok(())
    }

    /// Brings it to the device as it is, with its name.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn sync(&mut self) -> Result<()> {
        let synced = self.file.metadata().and_then(|metadata| {
            self.file.sync_data()?;
            self.tap.tell(TapEvent::Synced { path: &self.path, len: metadata.len() })
        });
        synced.map_err(|error| Error::io("sync", &self.path, &error))?;
        if !self.name_is_synced {
            if let Some(directory) = self.path.parent() {
                sync_directory(directory, &self.tap).map_err(|error| Error::io("sync", directory, &error))?;
            }
            self.name_is_synced = true;
        }
        Ok(())
    }
}

/// What the file says; `None` where there is none, or nothing in it that `decode` knows.
///
/// # Errors
///
/// [`Error::Io`] where there is a file that cannot be read.
pub fn read<const PAYLOAD: usize, T>(path: &Path, decode: impl Fn(&[u8; PAYLOAD]) -> Option<T>) -> Result<Option<T>> {
    match File::open(path) {
        Ok(file) => Ok(newest(&file, decode).map(|(_, said)| said)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("open", path, &error)),
    }
}

fn newest<const PAYLOAD: usize, T>(file: &File, decode: impl Fn(&[u8; PAYLOAD]) -> Option<T>) -> Option<(u64, T)> {
    let slots = [0, SLOT_DISTANCE].into_iter().filter_map(|offset| {
        let mut slot = vec![0; slot_bytes(PAYLOAD)];
        file.read_exact_at(&mut slot, offset).ok()?;
        let (count, payload) = decode_slot(&slot)?;
        decode(payload).map(|said| (count, said))
    });
    slots.max_by_key(|(count, _)| *count)
}

const fn slot_bytes(payload: usize) -> usize {
    COUNT_BYTES + payload + CHECKSUM_BYTES
}

fn encode<const PAYLOAD: usize>(count: u64, payload: &[u8; PAYLOAD]) -> Vec<u8> {
    const { assert!(slot_bytes(PAYLOAD) <= SLOT_DISTANCE as usize) };
    let mut slot = Vec::with_capacity(slot_bytes(PAYLOAD));
    slot.extend_from_slice(&count.to_le_bytes());
    slot.extend_from_slice(payload);
    let checksum = crc32c::crc32c(&slot);
    slot.extend_from_slice(&checksum.to_le_bytes());
    slot
}

fn decode_slot<const PAYLOAD: usize>(slot: &[u8]) -> Option<(u64, &[u8; PAYLOAD])> {
    let (checked, checksum) = slot.split_last_chunk::<CHECKSUM_BYTES>()?;
    let (count, payload) = checked.split_first_chunk::<COUNT_BYTES>()?;
    let (count, payload) = (u64::from_le_bytes(*count), payload.try_into().ok()?);
    // A slot of zeros has the right checksum of nothing written; counts begin at 1.
    (count != 0 && u32::from_le_bytes(*checksum) == crc32c::crc32c(checked)).then_some((count, payload))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::mutation::mutated;

    const PAYLOAD: usize = 16;

    fn any(payload: &[u8; PAYLOAD]) -> Option<[u8; PAYLOAD]> {
        Some(*payload)
    }

    #[test]
    fn the_latest_holds_also_after_reopening() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("FACT");
        assert_eq!(read(&path, any).unwrap(), None);
        for opened in 0..3_u8 {
            let (mut file, before) = SlotFile::open(path.clone(), &Tap::SILENT, any).unwrap();
            assert_eq!(before, opened.checked_sub(1).map(|opened| [opened * 10 + 4; PAYLOAD]));
            for number in 0..5 {
                file.write(&[opened * 10 + number; PAYLOAD]).unwrap();
                assert_eq!(read(&path, any).unwrap(), Some([opened * 10 + number; PAYLOAD]));
            }
        }
    }

    #[test]
    fn damage_falls_back_to_the_one_before_and_then_to_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("FACT");
        let (mut file, _) = SlotFile::open(path.clone(), &Tap::SILENT, any).unwrap();
        file.write(&[1; PAYLOAD]).unwrap();
        file.write(&[2; PAYLOAD]).unwrap();
        let good = fs::read(&path).unwrap();
        // The first write went to the second slot.
        for bit in 0..slot_bytes(PAYLOAD) * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bad).unwrap();
            assert_eq!(read(&path, any).unwrap(), Some([1; PAYLOAD]));
        }
        for rest in [0, 27, 512, 539] {
            fs::write(&path, vec![0; rest]).unwrap();
            assert_eq!(read(&path, any).unwrap(), None);
        }
    }

    #[test]
    fn a_mutated_slot_is_one_or_none() {
        let originals = [encode(1, &[7; PAYLOAD]), encode(u64::MAX, &[0; PAYLOAD])];
        mutated(&originals, |mut bytes, random| {
            if bytes.len() == slot_bytes(PAYLOAD) && random.once_in(2) {
                let end = bytes.len() - CHECKSUM_BYTES;
                let checksum = crc32c::crc32c(&bytes[..end]);
                bytes[end..].copy_from_slice(&checksum.to_le_bytes());
            }
            if let Some((count, payload)) = decode_slot::<PAYLOAD>(&bytes) {
                assert_eq!(encode(count, payload), bytes);
            }
        });
    }

    #[test]
    fn a_mutated_file_says_what_was_said_or_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("FACT");
        let (mut file, _) = SlotFile::open(path.clone(), &Tap::SILENT, any).unwrap();
        (1..4).for_each(|number| file.write(&[number; PAYLOAD]).unwrap());
        let original = fs::read(&path).unwrap();
        mutated(&[original], |bytes, _| {
            fs::write(&path, &bytes).unwrap();
            let found = read(&path, any).unwrap();
            assert!(found.is_none_or(|found| found == [2; PAYLOAD] || found == [3; PAYLOAD]), "{found:?}");
        });
    }
}
