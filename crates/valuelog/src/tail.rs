//! What a killed process leaves behind the last record of a segment: zeros, because space was
//! reserved for further records.
//!
//! They mean nothing and do no harm, but take space. They are cut off when the store is opened for
//! writing. Only zeros are ever cut off, and only behind whole records: where anything else
//! follows, as after a loss of power, the segment stays as it is.
//!
//! Bounds: a segment is looked at only where its length is that of reserved space, and its last
//! byte is zero; of those, the newest [`MAX_WALKED`] are walked, from the watermark where that is
//! in them.
//!
//! Threads: before anything else is done with the value log. Failure: the segment stays as it is;
//! only that of the store's tap, which would know a file that is not there any more, is an error.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ecotone_io::tap::TapEvent;

use crate::pointer::SegmentNumber;
use crate::record::RecordError;
use crate::segment::{self, is_zero};
use crate::segment_header::{self, SEGMENT_HEADER_BYTES, SegmentFormat};
use crate::watermark;
use crate::{Error, Result};
use ecotone_io::tap::Tap;

/// Space is reserved in pages. No machine has smaller ones.
const PAGE_BYTES: u64 = 4096;

/// A process appends to one segment of users and to one for each level at a time, and seals each
/// before the next. A further one is only there by a rare chance.
const MAX_WALKED: usize = 16;

/// Bytes that are read at once, unless a record is longer.
const CHUNK_BYTES: u64 = 1024 * 1024;

/// Cuts the zeros off the segments in `directory`, and tells the tap of each that is cut.
///
/// # Errors
///
/// [`Error::Io`] where it cannot be listed, and those of the tap.
pub fn trim(directory: &Path, tap: &Tap) -> Result<()> {
    let watermark = watermark::read(directory)?;
    let mut walked = 0;
    for (number, bytes) in segment::list(directory)?.into_iter().rev() {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) || walked == MAX_WALKED {
            continue;
        }
        let path = directory.join(segment::file_name(number));
        // Up to there records are known to be whole.
        let known = watermark.filter(|watermark| watermark.segment == number).map_or(0, |watermark| watermark.offset);
        let trimmed = OpenOptions::new().read(true).write(true).open(&path).and_then(|file| {
            if !is_zero(&file, bytes - 1, bytes)? {
                return Ok(None);
            }
            walked += 1;
            let format = format_of(&file, number, bytes)?;
            let end = end_of_records(&file, format, known.max(SEGMENT_HEADER_BYTES as u64), bytes)?;
            let is_reserved = end < bytes && is_zero(&file, end, bytes)?;
            is_reserved.then(|| file.set_len(end).map(|()| end)).transpose()
        });
        match trimmed {
            Ok(None) => (),
            Ok(Some(len)) => tap
                .tell(TapEvent::Truncated { path: &path, len })
                .map_err(|error| Error::io("cut off the end of", &path, &error))?,
            Err(error) => {
                tracing::warn!(?path, %error, "what was reserved for a segment and not used could not be freed");
            }
        }
    }
    Ok(())
}

/// Which records are in a file of `bytes` bytes. Where its header does not say so, nothing is found
/// that could be cut off but a segment that never had one.
fn format_of(file: &File, number: SegmentNumber, bytes: u64) -> io::Result<SegmentFormat> {
    let mut header = [0; SEGMENT_HEADER_BYTES];
    if bytes >= SEGMENT_HEADER_BYTES as u64 {
        file.read_exact_at(&mut header, 0)?;
    }
    Ok(segment_header::check(&header, number).map_or(SegmentFormat::Plain, |says| says.format))
}

/// Behind the last of the whole records of that format that follow one another from `from` on, in a
/// file of `bytes` bytes.
fn end_of_records(file: &File, format: SegmentFormat, mut from: u64, bytes: u64) -> io::Result<u64> {
    let (mut chunk, mut wanted) = (Vec::new(), CHUNK_BYTES);
    while from < bytes {
        let have = (bytes - from).min(wanted);
        chunk.resize(have as usize, 0);
        file.read_exact_at(&mut chunk, from)?;
        let mut within = 0;
        let stop = loop {
            match format.check_record(&chunk[within..]) {
                Ok(length) => within += length,
                Err(stop) => break stop,
            }
        };
        from += within as u64;
        match stop {
            // The rest of it is in the next chunk, or there is none.
            RecordError::Truncated { need, .. } if from + need as u64 <= bytes => wanted = CHUNK_BYTES.max(need as u64),
            _ => break,
        }
    }
    Ok(from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::tests::{telemetry, trained};
    use crate::compression::{Codec, Level};
    use crate::log::{ValueLog, ValueOrigin};
    use crate::pointer::{Pointer, RecordPointer};

    const SEGMENT: u64 = 64 << 20;

    /// A log whose process was killed, with where its records are.
    fn killed(values: &[Vec<u8>], sync: bool) -> (tempfile::TempDir, Vec<Pointer>) {
        let directory = tempfile::tempdir().unwrap();
        let log = ValueLog::open(directory.path(), SEGMENT, Tap::SILENT).unwrap();
        log.opened();
        let pointers = values.iter().map(|value| log.append(ValueOrigin::Written, b"key", value).unwrap().0).collect();
        if sync {
            log.sync().unwrap();
        }
        let copy = tempfile::tempdir().unwrap();
        std::fs::create_dir(copy.path().join("values")).unwrap();
        for entry in std::fs::read_dir(log.directory()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.path().join("values").join(entry.file_name())).unwrap();
        }
        (copy, pointers)
    }

    fn length(store: &Path) -> u64 {
        segment::list(&store.join("values")).unwrap()[0].1
    }

    fn check(store: &Path, values: &[Vec<u8>], pointers: &[Pointer]) {
        let log = ValueLog::open(store, SEGMENT, Tap::SILENT).unwrap();
        let mut record = Vec::new();
        for (value, pointer) in values.iter().zip(pointers) {
            let found = log.read(b"key", *pointer, &mut record).unwrap();
            assert_eq!(&record[found], value);
        }
    }

    #[test]
    fn zeros_behind_the_last_record_are_cut_off_and_zeros_in_it_are_not() {
        // The last values end in zeros, are longer than a chunk, or both.
        for last in [vec![1; 100], vec![0; 100], vec![0; 3 << 20], Vec::new()] {
            for sync in [false, true] {
                let values = [vec![7; 1000], vec![0; 9000], last.clone()];
                let (copy, pointers) = killed(&values, sync);
                let end = pointers[2].end(3);
                let page_end = end.next_multiple_of(PAGE_BYTES);
                if length(copy.path()) == end {
                    // This file system reserves nothing.
                    let path = copy.path().join("values").join(segment::file_name(SegmentNumber(1)));
                    OpenOptions::new().write(true).open(path).unwrap().set_len(page_end).unwrap();
                }
                trim(&copy.path().join("values"), &Tap::SILENT).unwrap();
                assert_eq!(length(copy.path()), end);
                check(copy.path(), &values, &pointers);
                trim(&copy.path().join("values"), &Tap::SILENT).unwrap();
                assert_eq!(length(copy.path()), end);
            }
        }
    }

    #[test]
    fn zeros_behind_packed_records_are_cut_off_and_none_in_them_are() {
        let directory = tempfile::tempdir().unwrap();
        let log = ValueLog::open(directory.path(), SEGMENT, Tap::SILENT).unwrap();
        log.set_dictionary(Some(trained(4096).content().to_vec())).unwrap();
        let values = [telemetry(1, 300), vec![0; 9000], telemetry(2, 3 << 20), vec![0; 20]];
        let pointers: Vec<RecordPointer> = [Codec::Zstd(Level::MIN), Codec::None, Codec::Lz4, Codec::None]
            .iter()
            .zip(&values)
            .map(|(codec, value)| log.append_packed(ValueOrigin::Written, *codec, b"key", value).unwrap().0)
            .collect();
        let copy = tempfile::tempdir().unwrap();
        let in_copy = copy.path().join("values");
        std::fs::create_dir(&in_copy).unwrap();
        let name = segment::file_name(SegmentNumber(1));
        std::fs::copy(log.directory().join(&name), in_copy.join(&name)).unwrap();
        let end = pointers[3].end(3);
        let file = OpenOptions::new().write(true).open(in_copy.join(&name)).unwrap();
        file.set_len(end.next_multiple_of(PAGE_BYTES)).unwrap();
        trim(&in_copy, &Tap::SILENT).unwrap();
        assert_eq!(length(copy.path()), end);
        let log = ValueLog::open(copy.path(), SEGMENT, Tap::SILENT).unwrap();
        for (value, pointer) in values.iter().zip(&pointers) {
            let mut into = Vec::new();
            let found = log.read(b"key", *pointer, &mut into).unwrap();
            assert!(into[found] == **value);
        }
    }

    #[test]
    fn what_is_behind_a_hole_is_kept() {
        let values = [vec![7; 1000], vec![8; 5000], vec![9; 1000], vec![0; 1000]];
        let (copy, pointers) = killed(&values, false);
        let path = copy.path().join("values").join(segment::file_name(SegmentNumber(1)));
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        // From within the first record to within the second.
        file.write_all_at(&[0; 4000], 500).unwrap();
        trim(&copy.path().join("values"), &Tap::SILENT).unwrap();
        assert_eq!(length(copy.path()), 1 << 20);
        check(copy.path(), &values[2..], &pointers[2..]);
    }

    #[test]
    fn a_directory_that_is_missing_or_holds_damaged_segments_is_no_error() {
        let directory = tempfile::tempdir().unwrap();
        trim(&directory.path().join("values"), &Tap::SILENT).unwrap();
        for (number, bytes) in [(1, 0), (2, 4096), (3, 8192)] {
            let path = directory.path().join(segment::file_name(SegmentNumber(number)));
            std::fs::write(path, vec![0; bytes]).unwrap();
        }
        trim(directory.path(), &Tap::SILENT).unwrap();
        let left: Vec<_> = segment::list(directory.path()).unwrap().into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(left, [0, 32, 32]);
    }
}
