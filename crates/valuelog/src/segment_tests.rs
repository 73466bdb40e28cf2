use ecotone_io::tap::WriteTap;

use super::*;

fn plain(resting_level: Option<u32>) -> Head<'static> {
    Head { resting_level, contents: Contents::Plain }
}

#[test]
fn a_name_and_a_number_belong_together() {
    assert_eq!(file_name(SegmentNumber(7)), "000007.segment");
    assert_eq!(file_name(SegmentNumber(u32::MAX)), "4294967295.segment");
    for number in [0, 7, 999_999, 1_000_000, u32::MAX].map(SegmentNumber) {
        assert_eq!(number_in(&file_name(number)), Some(number));
    }
    for other in ["7.segment", "0000007.segment", "+00007.segment", "4294967296.segment", ".segment", "000007.sst"] {
        assert_eq!(number_in(other), None, "{other}");
    }
}

#[test]
fn a_damaged_header_is_refused_and_says_where() {
    let directory = tempfile::tempdir().unwrap();
    let number = SegmentNumber(3);
    drop(
        Segment::create(directory.path(), number, plain(None), 4096, false, &Descriptors::default(), &Tap::SILENT)
            .unwrap(),
    );
    let path = directory.path().join(file_name(number));
    let good = std::fs::read(&path).unwrap();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, &bad).unwrap();
        let error = Segment::found(directory.path(), number, 32, &Descriptors::default(), &Tap::SILENT)
            .read(0, &mut [0; 1])
            .unwrap_err();
        assert!(
            matches!(&error, Error::Corrupt { location: Some(location), .. } if location.contains("000003.segment")),
            "{error}"
        );
    }
    std::fs::write(&path, &good[..31]).unwrap();
    let error = Segment::found(directory.path(), number, 31, &Descriptors::default(), &Tap::SILENT)
        .read(0, &mut [0; 1])
        .unwrap_err();
    assert!(error.to_string().contains("ends inside its header"), "{error}");
    std::fs::remove_file(&path).unwrap();
    let error = Segment::found(directory.path(), number, 31, &Descriptors::default(), &Tap::SILENT)
        .read(0, &mut [0; 1])
        .unwrap_err();
    assert!(error.to_string().contains("is missing"), "{error}");
}

#[test]
fn what_stands_behind_a_damaged_header_is_read_where_that_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let number = SegmentNumber(3);
    let segment =
        Segment::create(directory.path(), number, plain(None), 4096, false, &Descriptors::default(), &Tap::SILENT)
            .unwrap();
    let (offset, _) = segment.append(&[b"a record"]).unwrap();
    let path = directory.path().join(file_name(number));
    let mut bytes = std::fs::read(&path).unwrap();
    let found = |number, bytes| Segment::found(directory.path(), number, bytes, &Descriptors::default(), &Tap::SILENT);
    let read = |segment: &Segment| segment.read(offset, &mut [0; 8]);
    let asked = |number, bytes: &[u8]| {
        std::fs::write(directory.path().join(file_name(number)), bytes).unwrap();
        let segment = found(number, bytes.len() as u64);
        segment.ignore_header();
        segment
    };
    // Of another segment, not damaged: that one's values are not this one's.
    read(&asked(SegmentNumber(4), &bytes)).unwrap_err();
    bytes[3] ^= 1;
    let segment = asked(number, &bytes);
    read(&segment).unwrap();
    assert!(!segment.is_relocated(), "nobody knows");
    read(&found(number, bytes.len() as u64)).unwrap_err();
    read(&asked(number, &bytes[..20])).unwrap_err();
}

#[test]
fn a_segment_that_is_found_again_tells_whether_its_values_were_relocated_and_where() {
    let directory = tempfile::tempdir().unwrap();
    for (number, level) in [(1, None), (2, Some(0)), (3, Some(6))] {
        let (number, tap) = (SegmentNumber(number), Tap::SILENT);
        let made = Segment::create(directory.path(), number, plain(level), 4096, false, &Descriptors::default(), &tap)
            .unwrap();
        let found = || Segment::found(directory.path(), number, 32, &Descriptors::default(), &tap);
        let (unread, read) = (found(), found());
        read.read(0, &mut [0; 1]).unwrap();
        for segment in [made, unread, read] {
            assert_eq!((segment.resting_level(), segment.is_relocated()), (level, level.is_some()));
        }
        assert!(found().may_be_in_wal());
    }
    assert!(
        !Segment::found(directory.path(), SegmentNumber(4), 32, &Descriptors::default(), &Tap::SILENT).is_relocated()
    );
}

#[test]
fn an_append_that_failed_leaves_no_trace() {
    let directory = tempfile::tempdir().unwrap();
    let segment = Segment::create(
        directory.path(),
        SegmentNumber(1),
        plain(None),
        1 << 20,
        false,
        &Descriptors::default(),
        &Tap::SILENT,
    )
    .unwrap();
    let (first, _) = segment.append(&[b"one", b"two"]).unwrap();
    // A file opened for reading takes no bytes.
    let read_only = Arc::new(File::open(segment.path()).unwrap());
    let lost = MappedFile::new(read_only, segment.bytes(), 1 << 20, false).unwrap();
    let writable = segment.appends.lock().replace(Appends::Mapped(lost));
    segment.append(&[b"lost"]).unwrap_err();
    assert_eq!(segment.bytes(), 38);
    *segment.appends.lock() = writable;
    let (second, _) = segment.append(&[b"three"]).unwrap();
    assert_eq!((first, second), (32, 38));
    let mut bytes = [0; 11];
    segment.read(32, &mut bytes).unwrap();
    assert_eq!(&bytes, b"onetwothree");
}

/// Refuses every other append.
#[derive(Default)]
struct Refuses(AtomicU32);

impl WriteTap for Refuses {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        let TapEvent::Appended { .. } = event else { return Ok(()) };
        if self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) { Ok(()) } else { Err(io::Error::other("refused")) }
    }
}

#[test]
fn an_append_that_the_tap_refuses_leaves_no_trace() {
    let directory = tempfile::tempdir().unwrap();
    let tap = Tap::new(Arc::new(Refuses::default()));
    let segment =
        Segment::create(directory.path(), SegmentNumber(1), plain(None), 1 << 20, false, &Descriptors::default(), &tap)
            .unwrap();
    // A copy and a call.
    for bytes in [1000, 300_000] {
        segment.append(&[&vec![1; bytes]]).unwrap_err();
        let begin = segment.bytes();
        assert_eq!(segment.append(&[b"kept"]).unwrap().0, begin);
    }
    segment.append(&[&[2; 5000]]).unwrap_err();
    segment.seal();
    let found = std::fs::read(segment.path()).unwrap();
    assert_eq!(found[SEGMENT_HEADER_BYTES..], *b"keptkept");
}

/// Counts bytes that are appended; those of a header do not count.
#[derive(Default)]
struct Counts(AtomicU64);

impl WriteTap for Counts {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        if let TapEvent::Appended { offset: SEGMENT_HEADER_BYTES_U64.., bytes, .. } = event {
            self.0.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

const SEGMENT_HEADER_BYTES_U64: u64 = SEGMENT_HEADER_BYTES as u64;

#[test]
fn relocated_values_are_in_the_file_once_it_is_synced_or_sealed_and_users_immediately() {
    for (level, ends) in [(None, false), (Some(1), false), (Some(1), true)] {
        let directory = tempfile::tempdir().unwrap();
        let counts = Arc::new(Counts::default());
        let (tap, descriptors) = (Tap::new(counts.clone()), Descriptors::default());
        let segment =
            Segment::create(directory.path(), SegmentNumber(1), plain(level), 1 << 20, false, &descriptors, &tap)
                .unwrap();
        let in_file = || {
            let mut found = [0; 3];
            segment.read(SEGMENT_HEADER_BYTES_U64, &mut found).is_ok() && &found == b"one"
        };
        segment.append(&[b"one"]).unwrap();
        let collects = !in_file();
        if level.is_none() {
            assert!(!collects);
        } else if !collects {
            return eprintln!("nothing is tested: this file system does not reserve for certain");
        }
        assert_eq!(counts.0.load(Ordering::Relaxed), if collects { 0 } else { 3 });
        assert_eq!(segment.bytes(), SEGMENT_HEADER_BYTES_U64 + 3);
        assert_eq!(segment.bytes_in_file(), SEGMENT_HEADER_BYTES_U64 + if collects { 0 } else { 3 });
        if ends {
            segment.seal();
        } else {
            assert_eq!(segment.sync().unwrap(), SEGMENT_HEADER_BYTES_U64 + 3);
        }
        assert!(in_file());
        assert_eq!(segment.bytes_in_file(), segment.bytes());
        assert_eq!(counts.0.load(Ordering::Relaxed), 3);
        segment.seal();
        segment.append(&[b"two"]).unwrap_err();
        assert_eq!(std::fs::read(segment.path()).unwrap().len(), SEGMENT_HEADER_BYTES + 3);
    }
}

#[test]
fn a_sync_fails_while_relocated_values_cannot_be_written_sealed_or_not() {
    for seals in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let (tap, descriptors) = (Tap::new(Arc::new(Refuses::default())), Descriptors::default());
        let segment =
            Segment::create(directory.path(), SegmentNumber(1), plain(Some(1)), 1 << 20, false, &descriptors, &tap)
                .unwrap();
        if segment.append(&[b"one"]).is_err() {
            return eprintln!("nothing is tested: this file system does not reserve for certain");
        }
        // The first time it is refused.
        if seals {
            segment.seal();
        } else {
            segment.sync().unwrap_err();
        }
        let synced = segment.sync().unwrap();
        assert_eq!(synced, SEGMENT_HEADER_BYTES_U64 + 3);
        segment.seal();
        assert_eq!(std::fs::read(segment.path()).unwrap()[SEGMENT_HEADER_BYTES..], *b"one");
    }
}

/// Keeps how long a segment that is sealed is said to be, and is.
#[derive(Default)]
struct Ends {
    ends: Mutex<Vec<(u64, u64)>>,
    refuses: AtomicBool,
}

impl WriteTap for Ends {
    fn record(&self, event: TapEvent<'_>) -> io::Result<()> {
        match event {
            TapEvent::Closed { path, len } => self.ends.lock().push((len, std::fs::metadata(path)?.len())),
            TapEvent::Appended { .. } if self.refuses.load(Ordering::Relaxed) => {
                return Err(io::Error::other("refused"));
            }
            _ => (),
        }
        Ok(())
    }
}

#[test]
fn the_tap_learns_once_that_a_segment_is_sealed_when_all_of_it_is_in_the_file() {
    for (level, refuses) in [(None, false), (Some(1), false), (Some(1), true)] {
        let directory = tempfile::tempdir().unwrap();
        let ends = Arc::new(Ends::default());
        let (tap, descriptors) = (Tap::new(ends.clone()), Descriptors::default());
        let segment =
            Segment::create(directory.path(), SegmentNumber(1), plain(level), 1 << 20, false, &descriptors, &tap)
                .unwrap();
        ends.refuses.store(refuses, Ordering::Relaxed);
        if segment.append(&[b"one"]).is_err() {
            return eprintln!("nothing is tested: this file system does not reserve for certain");
        }
        assert!(ends.ends.lock().is_empty());
        segment.seal();
        if refuses {
            assert!(ends.ends.lock().is_empty(), "its value is in memory still");
            ends.refuses.store(false, Ordering::Relaxed);
            segment.sync().unwrap();
        }
        segment.sync().unwrap();
        segment.seal();
        let len = SEGMENT_HEADER_BYTES_U64 + 3;
        assert_eq!(*ends.ends.lock(), [(len, len)]);
    }
}
