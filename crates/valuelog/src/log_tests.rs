//! [`ValueLog`]: what is appended is read, whatever is open and wherever it is read from.

use std::collections::HashMap;
use std::io;
use std::sync::Barrier;

use ecotone_io::missed_reads::noting_missed;
use ecotone_io::tap::{CopiedRange, WriteTap};

use super::*;

fn log(segment_bytes: u64) -> (tempfile::TempDir, ValueLog) {
    let directory = tempfile::tempdir().unwrap();
    let log = ValueLog::open(directory.path(), segment_bytes, Tap::SILENT).unwrap();
    log.opened();
    (directory, log)
}

fn value(number: usize) -> Vec<u8> {
    vec![number as u8; number]
}

fn read(log: &ValueLog, key: &[u8], pointer: Pointer) -> Result<Vec<u8>> {
    let mut record = Vec::new();
    let value = log.read(key, pointer, &mut record)?;
    Ok(record[value].to_vec())
}

#[test]
fn values_of_all_sizes_are_found_again_over_many_segments_and_after_reopening() {
    let (directory, log) = log(4096);
    let sizes = [0, 1, 100, 4000, 4096, 5000, 3, COPIED_BYTES, COPIED_BYTES + 1, 200_000, 17];
    let pointers: Vec<_> =
        sizes.map(|size| log.append(ValueOrigin::Written, &size.to_le_bytes(), &value(size)).unwrap().0).into();
    let all = |log: &ValueLog| {
        for (size, pointer) in sizes.iter().zip(&pointers) {
            assert_eq!(read(log, &size.to_le_bytes(), *pointer).unwrap(), value(*size));
        }
    };
    all(&log);
    assert!(log.segments().len() > 4);
    let within = log.segments().iter().all(|segment| segment.bytes() <= 4096 || segment.is_sealed());
    assert!(within, "only a record that is longer than a segment makes one longer");
    drop(log);
    let log = ValueLog::open(directory.path(), 4096, Tap::SILENT).unwrap();
    all(&log);
    let (next, _) = log.append(ValueOrigin::Written, b"k", b"v").unwrap();
    assert!(pointers.iter().all(|pointer| pointer.segment < next.segment), "a found segment is never appended to");
}

#[test]
fn a_sync_moves_the_watermark_over_what_was_appended_before_it() {
    let (directory, log) = log(4096);
    assert!(!log.is_dirty());
    let pointers: Vec<_> = (0..20).map(|_| log.append(ValueOrigin::Written, b"key", &value(1000)).unwrap().0).collect();
    assert!(log.is_dirty());
    log.sync().unwrap();
    assert!(!log.is_dirty());
    let (later, _) = log.append(ValueOrigin::Written, b"key", &value(1000)).unwrap();
    drop(log);
    let log = ValueLog::open(directory.path(), 4096, Tap::SILENT).unwrap();
    assert!(pointers.iter().all(|pointer| log.was_durable(b"key", *pointer)));
    assert!(!log.was_durable(b"key", later));
}

#[test]
fn numbers_are_not_used_again_after_their_segment_is_gone() {
    let relocated = ValueOrigin::Relocated { level: 6, again: false };
    // The last one may have been written by a user, or by a compaction, of which the watermark says
    // nothing.
    for places in [
        [ValueOrigin::Written; 3],
        [ValueOrigin::Written, relocated, relocated],
        [relocated, ValueOrigin::Written, relocated],
    ] {
        let (directory, mut log) = log(4096);
        let mut given = Vec::new();
        for round in 0..3 {
            for place in places {
                let (pointer, _) = log.append(place, b"key", &value(1000)).unwrap();
                let is_new = given.iter().all(|before: &Pointer| before.segment < pointer.segment);
                assert!(is_new, "round {round}: {pointer:?} after {given:?}");
                given.push(pointer);
                log.seal_active();
            }
            log.sync().unwrap();
            log.sync_relocated().unwrap();
            let segments = log.segments();
            let (last, others) = segments.split_last().unwrap();
            assert_eq!(log.remove(last), Ok(false), "who opens the store must find it");
            for segment in others {
                assert_eq!(log.remove(segment), Ok(true));
            }
            for pointer in &given[..given.len() - 1] {
                assert!(read(&log, b"key", *pointer).unwrap_err().to_string().contains("missing"));
            }
            read(&log, b"key", given[given.len() - 1]).unwrap();
            drop((segments, log));
            log = ValueLog::open(directory.path(), 4096, Tap::SILENT).unwrap();
            log.opened();
        }
    }
}

#[test]
fn the_greatest_number_goes_once_there_is_a_segment_behind_it() {
    let (_directory, log) = log(4096);
    let (of_user, _) = log.append(ValueOrigin::Written, b"key", &value(100)).unwrap();
    let (relocated, _) = log.append(ValueOrigin::Relocated { level: 6, again: false }, b"key", &value(100)).unwrap();
    // The users' segment has a lesser number, and is still appended to.
    let segments = log.segments();
    assert_eq!(log.remove(&segments[1]), Ok(false));
    log.go_behind(relocated.segment).unwrap();
    assert_eq!(log.remove(&segments[1]), Ok(true));
    let (next, _) = log.append(ValueOrigin::Written, b"key", &value(100)).unwrap();
    assert!(next.segment > relocated.segment, "{next:?}");
    assert_eq!(read(&log, b"key", of_user).unwrap(), value(100));
    // There is one behind it now.
    log.go_behind(of_user.segment).unwrap();
    let (last, _) = log.append(ValueOrigin::Written, b"key", &value(100)).unwrap();
    assert_eq!(last.segment, next.segment);
    log.sync().unwrap();
}

#[test]
fn a_pointer_that_leads_elsewhere_is_an_error_that_names_the_file() {
    let (_directory, log) = log(1 << 20);
    let (pointer, _) = log.append(ValueOrigin::Written, b"key", &value(100)).unwrap();
    log.append(ValueOrigin::Written, b"other", &value(100)).unwrap();
    for wrong in [
        Pointer { offset: 0, ..pointer },
        Pointer { offset: pointer.offset + 1, ..pointer },
        Pointer { value_bytes: 99, ..pointer },
        Pointer { value_bytes: 101, ..pointer },
        Pointer { value_bytes: u32::MAX / 8, ..pointer },
        Pointer { offset: u32::MAX, ..pointer },
    ] {
        let error = read(&log, b"key", wrong).unwrap_err().to_string();
        assert!(error.contains("000001.segment at offset"), "{error}");
    }
    assert!(read(&log, b"kez", pointer).is_err());
}

#[test]
fn more_segments_than_may_be_open_can_be_read() {
    for (asked, most) in [(16, 16), (usize::MAX, MAX_OPEN)] {
        let (directory, log) = log(64);
        let log = log.with_max_open(asked);
        let pointers: Vec<_> = (0..2 * MAX_OPEN as u32)
            .map(|number| log.append(ValueOrigin::Written, &number.to_le_bytes(), &value(40)).unwrap().0)
            .collect();
        log.seal_active();
        // Until it is synced a segment stays open: where the kernel fails to write it, who has it
        // open is told.
        log.close_some();
        assert_eq!(log.descriptors.open(), pointers.len());
        log.sync().unwrap();
        let open = |log: &ValueLog| {
            let open = log.descriptors.open();
            assert!(open <= most + 1, "{open} of {most}");
            open
        };
        let read_all = |log: &ValueLog| {
            for (number, pointer) in pointers.iter().enumerate() {
                assert_eq!(read(log, &(number as u32).to_le_bytes(), *pointer).unwrap(), value(40));
                open(log);
            }
        };
        read_all(&log);
        // Those of a process before, which nobody has opened yet.
        drop(log);
        let log = ValueLog::open(directory.path(), 64, Tap::SILENT).unwrap().with_max_open(asked);
        assert_eq!(open(&log), 0, "opening a store reads no header");
        assert!(log.segments().iter().all(|segment| !segment.is_relocated()));
        assert!(log.segments().iter().all(|segment| segment.mapped().is_some()));
        assert_eq!(open(&log), 0);
        read_all(&log);
        // By whoever relocates.
        let begin = |number: u32| log.append(ValueOrigin::Written, &number.to_le_bytes(), &value(40)).unwrap();
        for (number, pointer) in pointers.iter().enumerate() {
            let key = (number as u32).to_le_bytes();
            let by_call = |segment: &Arc<Segment>, offset, into: &mut [u8]| {
                log.will_open(segment, false);
                segment.read(offset, into)
            };
            log.read_record_by(&key, *pointer, &mut Vec::new(), by_call).unwrap();
            begin(number as u32);
            log.sync().unwrap();
            open(&log);
        }
        // Half of them by the kernel's cache, then all of them past it.
        let log = log.with_page_cache(Some(0));
        for (number, pointer) in pointers.iter().enumerate().take(most / 2) {
            read(&log, &(number as u32).to_le_bytes(), *pointer).unwrap();
        }
        for (number, pointer) in pointers.iter().enumerate() {
            let key = (number as u32).to_le_bytes();
            // What comes of it depends on the file system.
            let _ = noting_missed(|| log.try_read(&key, *pointer, &mut Vec::new()));
            open(&log);
        }
        assert!(open(&log) > 0);
    }
}

#[test]
fn values_are_read_past_the_kernels_cache_where_it_is_far_too_small_for_them() {
    let (directory, log) = log(4096);
    let log = log.with_page_cache(Some(10_000));
    let reads_directly = |log: &ValueLog| log.reads_directly.load(Ordering::Relaxed);
    let append = |log: &ValueLog| log.append(ValueOrigin::Written, b"key", &value(1000)).unwrap().0;
    (0..30).for_each(|_| _ = append(&log));
    assert!(!reads_directly(&log));
    (0..20).for_each(|_| _ = append(&log));
    assert!(reads_directly(&log));
    log.seal_active();
    drop(log);
    let open = |bytes| ValueLog::open(directory.path(), 4096, Tap::SILENT).unwrap().with_page_cache(bytes);
    assert_eq!([Some(10_000), Some(20_000), None].map(|bytes| reads_directly(&open(bytes))), [true, false, false]);
    let log = open(Some(10_000));
    log.segments().iter().take(6).for_each(|segment| assert!(log.remove(segment).unwrap()));
    assert!(!reads_directly(&log));
}

/// A device that loses what it was given, of which the kernel tells whoever syncs first, and nobody
/// else.
#[derive(Default)]
struct TellsOnce {
    /// Names are lost, and bytes are not.
    loses_names: bool,
    has_reported: AtomicBool,
}

impl WriteTap for TellsOnce {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        let is_lost = match event {
            TapEvent::Synced { .. } => !self.loses_names,
            TapEvent::DirectorySynced { .. } => self.loses_names,
            _ => false,
        };
        if is_lost && !self.has_reported.swap(true, Ordering::SeqCst) {
            return Err(io::Error::other("it is lost"));
        }
        Ok(())
    }
}

#[test]
fn of_those_that_sync_at_a_time_none_is_told_that_all_is_well_after_a_failure() {
    let (written, relocated) = (ValueOrigin::Written, ValueOrigin::Relocated { level: 6, again: false });
    // The names of all segments are synced together, their bytes stream by stream.
    for (loses_names, places) in [(false, [written; 2]), (false, [relocated; 2]), (true, [written, relocated])] {
        for round in 0..100 {
            let (directory, recorded) = (tempfile::tempdir().unwrap(), Arc::<Mutex<Vec<String>>>::default());
            let reported = recorded.clone();
            let tap = Arc::new(TellsOnce { loses_names, ..TellsOnce::default() });
            let log = ValueLog::open(directory.path(), 1 << 20, Tap::new(tap)).unwrap();
            let log = log.with_failure(SyncFailure::reporting_to(Some(Box::new(move |_, detail| {
                reported.lock().push(detail.to_owned())
            }))));
            log.opened();
            for place in places {
                log.append(place, b"key", &value(100)).unwrap();
            }
            let begin = Barrier::new(4);
            let sync = |place| {
                begin.wait();
                if place == ValueOrigin::Written { log.sync() } else { log.sync_relocated() }
            };
            let outcomes: Vec<_> = std::thread::scope(|scope| {
                let syncs: Vec<_> = places
                    .into_iter()
                    .cycle()
                    .take(4)
                    .map(|place| {
                        let sync = &sync;
                        scope.spawn(move || sync(place))
                    })
                    .collect();
                syncs.into_iter().map(|sync| sync.join().unwrap()).collect()
            });
            let failed = |outcome: &Result<()>| matches!(outcome, Err(Error::Background { .. }));
            assert!(outcomes.iter().all(failed), "round {round}: {outcomes:?}");
            assert!(log.append(ValueOrigin::Written, b"key", &value(100)).is_err());
            assert!(log.sync().is_err() && log.sync_relocated().is_err());
            let recorded = recorded.lock();
            assert!(matches!(&recorded[..], [detail] if detail.contains("it is lost")));
        }
    }
}

/// Keeps what it is told of copies, and of bytes.
#[derive(Default)]
struct Follows {
    copied: Mutex<Vec<(PathBuf, CopiedRange)>>,
    /// Up to where.
    appended: Mutex<HashMap<PathBuf, u64>>,
    ended: Mutex<Vec<PathBuf>>,
    follows: bool,
}

impl WriteTap for Follows {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        match event {
            TapEvent::Appended { path, offset, bytes } => {
                self.appended.lock().insert(path.to_path_buf(), offset + bytes.len() as u64);
            }
            TapEvent::Closed { path, .. } => self.ended.lock().push(path.to_path_buf()),
            _ => (),
        }
        Ok(())
    }

    fn follows_copies(&self) -> bool {
        self.follows
    }

    fn copied(&self, path: &Path, ranges: &[CopiedRange]) {
        let end = self.appended.lock().get(path).copied().unwrap_or_default();
        for range in ranges {
            assert!(range.offset >= end, "it is said before the bytes");
            self.copied.lock().push((path.to_path_buf(), *range));
        }
    }
}

/// A log with values in one sealed segment, and who follows it.
fn followed(
    segment_bytes: u64,
    count: usize,
    follows: bool,
) -> (tempfile::TempDir, ValueLog, Vec<Pointer>, Arc<Follows>) {
    let directory = tempfile::tempdir().unwrap();
    let tap = Arc::new(Follows { follows, ..Follows::default() });
    let log = ValueLog::open(directory.path(), segment_bytes, Tap::new(tap.clone())).unwrap();
    log.opened();
    let append =
        |number: usize| log.append(ValueOrigin::Written, &number.to_le_bytes(), &value(number % 200)).unwrap().0;
    let pointers = (0..count).map(append).collect();
    log.seal_active();
    (directory, log, pointers, tap)
}

fn relocate(log: &ValueLog, number: usize, pointer: Pointer) -> Pointer {
    let (key, mut record) = (number.to_le_bytes(), Vec::new());
    log.read_record_by(&key, pointer, &mut record, |segment, offset, into| segment.read(offset, into)).unwrap();
    log.append_record(ValueOrigin::Relocated { level: 3, again: false }, pointer, &record).unwrap().0
}

#[test]
fn who_follows_copies_learns_from_where_each_relocated_record_comes_before_its_bytes() {
    for follows in [true, false] {
        let (_directory, log, pointers, tap) = followed(1 << 20, 2000, follows);
        // Not in the order in which they lie.
        let order = (0..2000).map(|number| number * 997 % 2000);
        let copies: Vec<_> = order.map(|number| (number, relocate(&log, number, pointers[number]))).collect();
        log.sync_relocated().unwrap();
        let told = tap.copied.lock();
        assert_eq!(told.len(), if follows { copies.len() } else { 0 });
        for ((path, range), (number, copy)) in told.iter().zip(&copies) {
            let segment = log.segment(copy.segment).unwrap();
            assert_eq!((path.as_path(), range.offset), (segment.path(), u64::from(copy.offset)));
            assert_eq!(range.from, u64::from(pointers[*number].segment.0));
            let bytes_of = |path: &Path, offset: u64| {
                let bytes = std::fs::read(path).unwrap();
                bytes[offset as usize..][..range.len as usize].to_vec()
            };
            let from = log.segment(SegmentNumber(range.from as u32)).unwrap();
            assert_eq!(bytes_of(path, range.offset), bytes_of(from.path(), range.from_offset));
        }
    }
}

#[test]
fn relocated_values_are_sealed_before_a_table_may_refer_to_them_if_somebody_follows_and_they_are_many() {
    for (follows, count, seals) in [(true, 2000, true), (true, 100, false), (false, 2000, false)] {
        let (_directory, log, pointers, tap) = followed(1 << 20, 2000, follows);
        let copies: Vec<_> = (0..count).map(|number| relocate(&log, number, pointers[number])).collect();
        let segment = log.segment(copies[0].segment).unwrap();
        log.sync_relocated().unwrap();
        assert_eq!(segment.is_sealed(), seals, "{} bytes", segment.bytes());
        let path = segment.path().to_path_buf();
        assert_eq!(tap.ended.lock().contains(&path), seals);
    }
}

#[test]
fn a_segment_of_which_too_much_would_have_to_be_said_is_sealed() {
    const COUNT: usize = 60_000;
    for (follows, many) in [(true, true), (false, false)] {
        let (_directory, log, pointers, tap) = followed(1 << 30, COUNT, follows);
        (0..COUNT).for_each(|number| _ = relocate(&log, number, pointers[number]));
        log.seal_active();
        log.sync_relocated().unwrap();
        let mut ranges = SegmentMap::<usize>::default();
        let told = tap.copied.lock();
        for (path, _) in told.iter() {
            let number = segment::number_in(path.file_name().unwrap().to_str().unwrap()).unwrap();
            *ranges.entry(number).or_default() += 1;
        }
        assert!(ranges.values().all(|ranges| *ranges < 25_000), "{ranges:?}");
        assert_eq!(ranges.len() > 1, many);
    }
}
