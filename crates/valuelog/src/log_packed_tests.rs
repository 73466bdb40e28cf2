//! [`ValueLog`] with packed values: both formats side by side, dictionaries that come and go, and
//! any damage.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::AtomicU8;

use ecotone_io::tap::WriteTap;

use super::*;
use crate::compression::Level;
use crate::compression::dictionary::MAX_DICTIONARY_BYTES;
use crate::compression::tests::{CODECS, telemetry, trained};
use crate::mutation::mutated;

const SEGMENT_BYTES: u64 = 1 << 20;
const ZSTD: Codec = Codec::Zstd(Level::MAX);
const WRITTEN: ValueOrigin = ValueOrigin::Written;
const RELOCATED: ValueOrigin = ValueOrigin::Relocated { level: 6, again: false };

fn opened(directory: &Path) -> ValueLog {
    let log = ValueLog::open(directory, SEGMENT_BYTES, Tap::SILENT).unwrap().with_packed_values(1 << 20);
    log.opened();
    log
}

fn read(log: &ValueLog, key: &[u8], pointer: RecordPointer) -> Result<Vec<u8>> {
    let mut into = b"what was there before".to_vec();
    let value = log.read(key, pointer, &mut into)?;
    Ok(into[value].to_vec())
}

/// The content of a dictionary of its own.
fn content(bytes: usize) -> Vec<u8> {
    trained(bytes).content().to_vec()
}

fn path(log: &ValueLog, pointer: RecordPointer) -> PathBuf {
    log.segment(pointer.segment).unwrap().path().to_path_buf()
}

/// Values that pack well, badly and not at all, short and long.
fn values() -> Vec<Vec<u8>> {
    let mut random = crate::mutation::Random::new(1);
    let noise: Vec<u8> = std::iter::repeat_with(|| random.next().to_le_bytes()).take(40_000).flatten().collect();
    let lengths = [0, 1, 40, 300, 1000, 70_000, 300_000];
    lengths.iter().flat_map(|length| [telemetry(*length as u64, *length), noise[..*length].to_vec()]).collect()
}

#[test]
fn values_of_both_formats_are_found_again_whatever_dictionary_was_in_force() {
    let directory = tempfile::tempdir().unwrap();
    let log = opened(directory.path());
    let mut written = Vec::new();
    for dictionary in [None, Some(content(4096)), Some(content(16 * 1024)), None, Some(content(4096))] {
        log.set_dictionary(dictionary).unwrap();
        for place in [WRITTEN, RELOCATED] {
            for (number, value) in values().into_iter().enumerate() {
                let key = number.to_le_bytes();
                for codec in CODECS {
                    written.push((key, log.append_packed(place, codec, &key, &value).unwrap().0, value.clone()));
                }
                // By a store of format 1.
                written.push((key, log.append(place, &key, &value).unwrap().0.into(), value));
            }
        }
    }
    log.sync().unwrap();
    log.sync_relocated().unwrap();
    let all = |log: &ValueLog| {
        for (key, pointer, value) in &written {
            assert_eq!(pointer.value_bytes as usize, value.len(), "known without a read");
            assert!(read(log, key, *pointer).unwrap() == *value, "{pointer:?}");
            let encoded = {
                let mut bytes = Vec::new();
                pointer.encode(&mut bytes);
                bytes
            };
            if pointer.stored_bytes.is_some() {
                assert_eq!(RecordPointer::decode_packed(&encoded), Some(*pointer));
            }
        }
    };
    all(&log);
    drop(log);
    let log = opened(directory.path());
    all(&log);
    for (key, pointer, value) in &written {
        let mut into = Vec::new();
        // Everything is in the kernel's memory, where the file system can tell.
        match log.try_read(key, *pointer, &mut into) {
            Ok(found) => assert!(into[found] == *value),
            Err(error) => assert_eq!(error, Error::WouldBlock),
        }
    }
}

#[test]
fn a_value_costs_one_read_of_its_record() {
    let directory = tempfile::tempdir().unwrap();
    let log = opened(directory.path());
    log.set_dictionary(Some(content(16 * 1024))).unwrap();
    let value = telemetry(5, 1000);
    for codec in CODECS {
        let (pointer, _) = log.append_packed(WRITTEN, codec, b"key", &value).unwrap();
        assert_eq!(pointer.stored_bytes.unwrap() < 500, codec != Codec::None);
        let reads = Cell::new(Vec::new());
        let mut into = Vec::new();
        let read = |segment: &Arc<Segment>, offset, into: &mut [u8]| {
            reads.set([reads.take(), vec![(offset, into.len())]].concat());
            segment.read(offset, into)
        };
        let found = log.read_value(b"key", pointer, &mut into, true, read);
        assert_eq!(&into[found.unwrap()], &value);
        assert_eq!(reads.take(), [(u64::from(pointer.offset), pointer.record_bytes(3))]);
    }
}

#[test]
fn a_segment_has_its_dictionary_in_it_and_another_dictionary_begins_another_segment() {
    let directory = tempfile::tempdir().unwrap();
    let log = opened(directory.path());
    let append = |codec, length| log.append_packed(WRITTEN, codec, b"key", &telemetry(1, length)).unwrap().0;
    let plain = append(ZSTD, 300);
    let one = log.set_dictionary(Some(content(4096))).unwrap();
    // What needs no dictionary goes on where it was.
    assert_eq!(append(Codec::None, 300).segment, plain.segment);
    let first = append(ZSTD, 300);
    assert!(first.segment > plain.segment);
    assert!(first.stored_bytes < plain.stored_bytes);
    assert_eq!(append(Codec::Lz4, 300).segment, first.segment);
    let other = log.set_dictionary(Some(content(16 * 1024))).unwrap();
    let second = append(ZSTD, 300);
    assert!(second.segment > first.segment && one != other);
    let formats = [plain, first, second].map(|pointer| log.segment(pointer.segment).unwrap().format().unwrap());
    assert_eq!(formats, [None, one, other].map(SegmentFormat::Packed));
    // What it costs is a part of its length.
    let head = u64::from(second.offset);
    assert!(head > 1000 && head < 8 * 1024, "{head}");
    // The next process goes on with it.
    log.sync().unwrap();
    drop(log);
    let log = opened(directory.path());
    assert_eq!(log.dictionary().map(|dictionary| dictionary.id()), None);
    assert_eq!(log.take_over_dictionary(), other);
    assert_eq!(log.dictionary().map(|dictionary| dictionary.id()), other);
    assert!(log.dictionary_memory() > 0);
    assert_eq!(read(&log, b"key", first).unwrap(), telemetry(1, 300));
}

#[test]
fn a_segment_has_no_dictionary_where_nothing_in_it_is_packed() {
    let directory = tempfile::tempdir().unwrap();
    let log = opened(directory.path());
    let in_force = log.set_dictionary(Some(content(4096))).unwrap();
    let append = |place, codec| log.append_packed(place, codec, b"key", &telemetry(1, 300)).unwrap().0;
    let dictionary_of = |pointer: RecordPointer| log.segment(pointer.segment).unwrap().format().unwrap().dictionary();
    assert_eq!(dictionary_of(append(WRITTEN, Codec::None)), None, "there is one, and it is not used");
    let packed = append(WRITTEN, ZSTD);
    assert_eq!(dictionary_of(packed), in_force);
    // Copies of values that are packed need it, also where nothing is packed any more; and so that not
    // every other segment is sealed early, the next one has it before anything needs it.
    let copy = |pointer: RecordPointer| {
        let mut record = Vec::new();
        log.read_record_by(b"key", pointer, &mut record, |segment, offset, into| segment.read(offset, into)).unwrap();
        log.append_copy(RELOCATED, Codec::None, b"key", pointer, &record).unwrap().0
    };
    let plain = append(WRITTEN, Codec::None);
    assert_eq!(dictionary_of(copy(plain)), None);
    assert_eq!(dictionary_of(copy(packed)), in_force);
    for has_dictionary in [in_force, None] {
        log.seal_active();
        assert_eq!(dictionary_of(copy(plain)), has_dictionary);
    }
    assert_eq!(dictionary_of(copy(packed)), in_force);
    // What is packed again and does not shrink leaves the next segment ready for what does.
    log.seal_active();
    let noise: Vec<u8> = values()[7][..].to_vec();
    let unshrunk = log.append_packed(WRITTEN, ZSTD, b"key", &noise).unwrap().0;
    assert_eq!((dictionary_of(unshrunk), unshrunk.saved_bytes()), (in_force, 0));
}

#[test]
fn a_dictionary_that_is_none_is_refused_and_the_one_in_force_stays() {
    let directory = tempfile::tempdir().unwrap();
    let log = opened(directory.path());
    let id = log.set_dictionary(Some(content(4096))).unwrap();
    for wrong in [0, 100, MAX_DICTIONARY_BYTES + 1] {
        assert_eq!(log.set_dictionary(Some(vec![7; wrong])), Err(DictionaryError::Length(wrong)));
    }
    assert_eq!(log.dictionary().map(|dictionary| dictionary.id()), id);
}

#[test]
fn a_copy_is_the_record_as_it_is_where_that_will_do_and_the_value_anew_where_not() {
    let directory = tempfile::tempdir().unwrap();
    let log = opened(directory.path());
    let value = telemetry(9, 1000);
    let copy = |pointer: RecordPointer, codec| {
        let mut record = Vec::new();
        log.read_record_by(b"key", pointer, &mut record, |segment, offset, into| segment.read(offset, into)).unwrap();
        let (copied, _) = log.append_copy(RELOCATED, codec, b"key", pointer, &record).unwrap();
        log.sync_relocated().unwrap();
        assert_eq!(read(&log, b"key", copied).unwrap(), value);
        let mut again = Vec::new();
        log.read_record_by(b"key", copied, &mut again, |segment, offset, into| segment.read(offset, into)).unwrap();
        (copied, record == again)
    };
    let of_format_1 = RecordPointer::from(log.append(WRITTEN, b"key", &value).unwrap().0);
    let (converted, _) = copy(of_format_1, Codec::None);
    assert_eq!(converted.stored_bytes, Some(converted.value_bytes));
    log.set_dictionary(Some(content(16 * 1024))).unwrap();
    let append = |codec| log.append_packed(WRITTEN, codec, b"key", &value).unwrap().0;
    let [plain, lz4, zstd] = [Codec::None, Codec::Lz4, ZSTD].map(append);
    assert!(copy(plain, Codec::None).1 && copy(lz4, Codec::Lz4).1 && copy(zstd, ZSTD).1);
    assert!(copy(lz4, Codec::None).1 && copy(zstd, Codec::None).1, "nothing stands against it");
    for (from, to) in [(of_format_1, ZSTD), (plain, Codec::Lz4), (lz4, ZSTD), (zstd, Codec::Lz4)] {
        let (copied, is_as_it_was) = copy(from, to);
        assert!(!is_as_it_was && copied.value_bytes == from.value_bytes, "{from:?} {to:?}");
    }
    assert!(copy(lz4, ZSTD).0.stored_bytes < lz4.stored_bytes);
    // With another dictionary it is packed anew, and needs the former one no more.
    log.set_dictionary(Some(content(8 * 1024))).unwrap();
    let (copied, is_as_it_was) = copy(zstd, ZSTD);
    assert!(!is_as_it_was);
    // So it is where nothing is packed any more: a copy that takes more space than what was there
    // would fill the disk.
    let (stays_packed, is_as_it_was) = copy(zstd, Codec::None);
    assert!(!is_as_it_was && stays_packed.stored_bytes < Some(500), "{stays_packed:?}");
    log.set_dictionary(None).unwrap();
    log.seal_active();
    assert!(!copy(copied, ZSTD).1, "nor does one that is packed without");
}

#[test]
fn whoever_writes_while_dictionaries_change_writes_what_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let log = opened(directory.path());
    let contents = [Some(content(4096)), None, Some(content(8 * 1024))];
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u64)
            .map(|writer| {
                let log = &log;
                scope.spawn(move || {
                    let write = |number: u64| {
                        let (key, value) = (number.to_le_bytes(), telemetry(writer << 32 | number, 300));
                        (key, log.append_packed(WRITTEN, ZSTD, &key, &value).unwrap().0, value)
                    };
                    (0..500).map(write).collect::<Vec<_>>()
                })
            })
            .collect();
        for round in 0..30 {
            log.set_dictionary(contents[round % 3].clone()).unwrap();
            std::thread::yield_now();
        }
        for writer in writers {
            for (key, pointer, value) in writer.join().unwrap() {
                assert_eq!(read(&log, &key, pointer).unwrap(), value);
            }
        }
    });
    // Each change may end a segment, and one that a writer was late for.
    assert!(log.segments().len() <= 31 * 5, "{} segments", log.segments().len());
}

/// A log of two values in a segment with a dictionary, one that needs it and one that does not.
fn two_values(directory: &Path) -> (RecordPointer, RecordPointer, PathBuf) {
    let log = opened(directory);
    log.set_dictionary(Some(content(4096))).unwrap();
    let (with, _) = log.append_packed(WRITTEN, ZSTD, b"with", &telemetry(1, 300)).unwrap();
    let (without, _) = log.append_packed(WRITTEN, Codec::None, b"without", &telemetry(2, 300)).unwrap();
    assert_eq!(with.segment, without.segment);
    log.sync().unwrap();
    let path = path(&log, with);
    log.close();
    (with, without, path)
}

#[test]
fn a_damaged_dictionary_takes_only_what_needs_it_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let (with, without, path) = two_values(directory.path());
    let sound = std::fs::read(&path).unwrap();
    // Each bit of what nobody else knows, and some of the rest.
    let of_head = (SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + 24).flat_map(|at| (0..8).map(move |bit| (at, bit)));
    let of_content = (SEGMENT_HEADER_BYTES + 24..with.offset as usize).step_by(97).map(|at| (at, 3));
    for (at, bit) in of_head.chain(of_content) {
        let mut damaged = sound.clone();
        damaged[at] ^= 1 << bit;
        std::fs::write(&path, &damaged).unwrap();
        let log = opened(directory.path());
        assert_eq!(read(&log, b"without", without).unwrap(), telemetry(2, 300));
        let Err(Error::Corrupt { location: Some(location), detail }) = read(&log, b"with", with) else {
            panic!("byte {at} of the dictionary is wrong, and nobody notices");
        };
        assert!(location.ends_with(&format!("000001.segment at offset {}", with.offset)), "{location}");
        assert!(detail.contains("dictionary"), "{detail}");
        let segment = log.segment(with.segment).unwrap();
        assert!(matches!(log.dictionary_in(&segment), Err(Error::Corrupt { .. })));
        assert_eq!(log.take_over_dictionary(), None);
        assert_eq!(log.is_damaged(b"with", with), Ok(true), "byte {at}, bit {bit}: no loss of power does that");
    }
    // Two bits are not told from a loss of power.
    let mut damaged = sound.clone();
    damaged[SEGMENT_HEADER_BYTES + 5] ^= 1;
    damaged[SEGMENT_HEADER_BYTES + 6] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    assert_eq!(opened(directory.path()).is_damaged(b"with", with), Ok(false));
    // What a loss of power takes of it is none.
    let mut lost = sound;
    lost[SEGMENT_HEADER_BYTES..512].fill(0);
    std::fs::write(&path, &lost).unwrap();
    let log = opened(directory.path());
    assert!(read(&log, b"with", with).is_err());
    assert_eq!(log.is_damaged(b"with", with), Ok(false));
}

#[test]
fn a_damaged_dictionary_is_taken_from_another_segment_that_has_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let (with, _, path) = two_values(directory.path());
    {
        let log = opened(directory.path());
        log.take_over_dictionary().unwrap();
        log.append_packed(WRITTEN, ZSTD, b"other", &telemetry(3, 300)).unwrap();
        log.close();
    }
    let mut damaged = std::fs::read(&path).unwrap();
    damaged[100..600].fill(0);
    std::fs::write(&path, &damaged).unwrap();
    let log = opened(directory.path());
    let segments = log.segments();
    let [of_it, other] = &segments[..] else { panic!("{segments:?}") };
    assert_eq!((of_it.has_dictionary(), other.has_dictionary()), (Ok(false), Ok(true)));
    assert_eq!(read(&log, b"with", with).unwrap(), telemetry(1, 300));
}

#[test]
fn the_last_sound_copy_of_a_dictionary_stays_as_long_as_another_segment_needs_it() {
    let directory = tempfile::tempdir().unwrap();
    let log = opened(directory.path());
    let append = |log: &ValueLog, number| {
        let (pointer, _) = log.append_packed(WRITTEN, ZSTD, b"key", &telemetry(number, 300)).unwrap();
        log.seal_active();
        pointer
    };
    log.set_dictionary(Some(content(4096))).unwrap();
    let [first, second, third] = [0, 1, 2].map(|number| append(&log, number));
    log.sync().unwrap();
    // What rots on the device nobody sees as long as the dictionary is in memory.
    let file = std::fs::OpenOptions::new().write(true).open(path(&log, first)).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 100], 200).unwrap();
    assert_eq!(read(&log, b"key", first).unwrap(), telemetry(0, 300));
    let unsynced = append(&log, 3);
    log.set_dictionary(Some(content(8192))).unwrap();
    append(&log, 4);
    let segment = |log: &ValueLog, pointer: RecordPointer| log.segment(pointer.segment).unwrap();
    assert_eq!(log.remove(&segment(&log, third)), Ok(true), "another has a sound one");
    assert_eq!(log.remove(&segment(&log, second)), Ok(false), "which a loss of power may still take");
    log.sync().unwrap();
    assert_eq!(log.remove(&segment(&log, unsynced)), Ok(true));
    assert_eq!(log.remove(&segment(&log, second)), Ok(false));
    log.close();
    drop(log);
    let log = opened(directory.path());
    assert_eq!(log.remove(&segment(&log, second)), Ok(false), "whoever has asked for what");
    assert_eq!(read(&log, b"key", first).unwrap(), telemetry(0, 300));
    assert_eq!(log.remove(&segment(&log, first)), Ok(true), "its own is of use to nobody");
    assert_eq!(log.remove(&segment(&log, second)), Ok(true), "once nobody needs it");
}

/// Puts `stored` in the place of what is stored of `key`, in a record that is whole.
fn forge(path: &Path, key: &[u8], pointer: RecordPointer, packing: Packing, stored: &[u8]) {
    let header = packed_record::encode_header(packing, key, stored, pointer.value_bytes as usize);
    let record = [&header[..], key, stored].concat();
    assert_eq!(record.len(), pointer.record_bytes(key.len()));
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &record, u64::from(pointer.offset)).unwrap();
}

#[test]
fn a_whole_record_that_does_not_unpack_was_not_lost_with_power() {
    let directory = tempfile::tempdir().unwrap();
    let (with, _, path) = two_values(directory.path());
    let stored = vec![0x5a; with.stored_bytes.unwrap() as usize];
    for with_dictionary in [true, false] {
        for method in [Method::Zstd, Method::Lz4] {
            forge(&path, b"with", with, Packing::Value { method, with_dictionary }, &stored);
            let log = opened(directory.path());
            let refused = read(&log, b"with", with).unwrap_err();
            assert!(matches!(&refused, Error::Corrupt { detail, .. } if detail.contains("does not give")), "{refused}");
            assert_eq!(log.is_damaged(b"with", with), Ok(true));
        }
    }
}

/// What zstd cannot make ready may be sound: the same is what it says where memory is short.
#[test]
fn a_value_whose_dictionary_cannot_be_made_ready_is_not_said_to_be_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let log = opened(directory.path());
    // It begins as those of zstd do, and is none.
    let content = [&0xEC30_A437_u32.to_le_bytes()[..], &content(4096)].concat();
    log.set_dictionary(Some(content)).unwrap();
    let (pointer, _) = log.append_packed(WRITTEN, Codec::Lz4, b"key", &telemetry(1, 300)).unwrap();
    log.sync().unwrap();
    assert_eq!(read(&log, b"key", pointer).unwrap(), telemetry(1, 300));
    let packing = Packing::Value { method: Method::Zstd, with_dictionary: true };
    forge(&path(&log, pointer), b"key", pointer, packing, &vec![1; pointer.stored_bytes.unwrap() as usize]);
    let refused = read(&log, b"key", pointer).unwrap_err();
    assert!(matches!(&refused, Error::NoMemory { location, .. } if location.contains("000001.segment")), "{refused}");
}

#[test]
fn behind_a_damaged_header_values_are_read_with_their_dictionary_where_that_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let (with, without, path) = two_values(directory.path());
    let mut damaged = std::fs::read(&path).unwrap();
    damaged[21] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    assert!(read(&opened(directory.path()), b"without", without).is_err());
    let log = opened(directory.path()).ignoring_headers();
    assert_eq!(read(&log, b"with", with).unwrap(), telemetry(1, 300));
    assert_eq!(read(&log, b"without", without).unwrap(), telemetry(2, 300));
}

#[test]
fn a_flipped_bit_of_a_packed_record_is_told_from_a_loss_of_power() {
    let directory = tempfile::tempdir().unwrap();
    let (with, _, path) = two_values(directory.path());
    let sound = std::fs::read(&path).unwrap();
    let (begin, end) = (with.offset as usize, with.end(4) as usize);
    for at in (begin..end).step_by(7) {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x20;
        std::fs::write(&path, &damaged).unwrap();
        let log = opened(directory.path());
        assert!(read(&log, b"with", with).is_err());
        assert_eq!(log.is_damaged(b"with", with), Ok(true), "byte {at}");
    }
    let mut lost = sound;
    lost[begin..].fill(0);
    std::fs::write(&path, &lost).unwrap();
    assert_eq!(opened(directory.path()).is_damaged(b"with", with), Ok(false));
}

#[test]
fn of_a_mutated_segment_the_values_are_right_or_errors() {
    let directory = tempfile::tempdir().unwrap();
    let log = opened(directory.path());
    log.set_dictionary(Some(content(1024))).unwrap();
    let values: Vec<_> = (0..6)
        .map(|number| {
            let value = telemetry(number, 40 + 60 * number as usize);
            let codec = CODECS[number as usize % CODECS.len()];
            (log.append_packed(WRITTEN, codec, b"key", &value).unwrap().0, value)
        })
        .collect();
    let path = path(&log, values[0].0);
    log.close();
    drop(log);
    let sound = std::fs::read(&path).unwrap();
    let head = sound[..values[0].0.offset as usize].to_vec();
    let mut wrong = 0;
    mutated(&[sound.clone(), head], |bytes, random| {
        // Writing files takes its time.
        if !random.once_in(20) {
            return;
        }
        std::fs::write(&path, &bytes).unwrap();
        let log = opened(directory.path());
        let log = if random.once_in(3) { log.ignoring_headers() } else { log };
        for (pointer, value) in &values {
            match read(&log, b"key", *pointer) {
                Ok(found) => assert!(found == *value),
                Err(Error::Corrupt { location, .. }) => {
                    wrong += 1;
                    assert!(location.unwrap().contains("000001.segment"));
                    log.is_damaged(b"key", *pointer).unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
    assert!(wrong > 50, "{wrong}");
}

#[test]
fn the_greatest_number_goes_once_there_is_a_packed_segment_behind_it() {
    let directory = tempfile::tempdir().unwrap();
    let log = opened(directory.path());
    log.set_dictionary(Some(content(4096))).unwrap();
    let (first, _) = log.append_packed(WRITTEN, ZSTD, b"key", &telemetry(1, 300)).unwrap();
    log.go_behind(first.segment).unwrap();
    let segment = log.segment(first.segment).unwrap();
    assert_eq!(log.remove(&segment), Ok(true));
    let behind = log.segment(SegmentNumber(first.segment.0 + 1)).unwrap();
    assert_eq!((behind.bytes(), behind.is_empty()), (SEGMENT_HEADER_BYTES as u64, true), "no dictionary for nothing");
    let next = |codec| log.append_packed(WRITTEN, codec, b"key", &telemetry(1, 300)).unwrap().0.segment;
    assert_eq!(next(Codec::None), behind.number(), "it was made for such values");
    assert_eq!(next(ZSTD).0, behind.number().0 + 1, "and has not what this one needs");
}

/// A device that has no space for a file, or for its first bytes.
#[derive(Default)]
struct Full(AtomicU8);

impl Full {
    const FOR_A_FILE: u8 = 1;
    const FOR_ITS_HEAD: u8 = 2;
}

impl WriteTap for Full {
    fn record(&self, event: TapEvent<'_>) -> std::io::Result<()> {
        let is_full = match (self.0.load(Ordering::Relaxed), event) {
            (Self::FOR_A_FILE, TapEvent::Created { path }) => path.extension().is_some_and(|end| end == "segment"),
            (Self::FOR_ITS_HEAD, TapEvent::Appended { offset: 0, .. }) => true,
            _ => false,
        };
        if is_full { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

#[test]
fn a_segment_that_has_no_space_for_its_dictionary_leaves_nothing_and_is_made_later() {
    let directory = tempfile::tempdir().unwrap();
    let full = Arc::new(Full::default());
    let tap = Tap::new(full.clone());
    let log = ValueLog::open(directory.path(), SEGMENT_BYTES, tap).unwrap().with_packed_values(1 << 20);
    log.opened();
    let id = log.set_dictionary(Some(content(4096))).unwrap();
    let append = |place, number| log.append_packed(place, ZSTD, b"key", &telemetry(number, 300));
    let mut written = Vec::new();
    for (number, place) in [(0, WRITTEN), (1, RELOCATED)] {
        for when in [Full::FOR_A_FILE, Full::FOR_ITS_HEAD] {
            full.0.store(when, Ordering::Relaxed);
            for _ in 0..3 {
                assert!(matches!(append(place, number), Err(Error::DiskFull { .. })));
            }
            assert_eq!(log.segments().len(), written.len());
            let files = std::fs::read_dir(log.directory()).unwrap().map(|entry| entry.unwrap().path());
            let files = files.filter(|path| path.extension().is_some_and(|end| end == "segment"));
            assert_eq!(files.count(), written.len(), "nothing is left");
        }
        full.0.store(0, Ordering::Relaxed);
        written.push((number, append(place, number).unwrap().0));
    }
    log.sync().unwrap();
    log.sync_relocated().unwrap();
    log.close();
    drop(log);
    let log = opened(directory.path());
    assert_eq!(log.take_over_dictionary(), id);
    for (number, pointer) in written {
        assert_eq!(read(&log, b"key", pointer).unwrap(), telemetry(number, 300));
        assert_eq!(log.segment(pointer.segment).unwrap().has_dictionary(), Ok(true));
    }
}
