use super::*;
use crate::mutation::mutated;

fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
    let typed = [&[kind][..], payload].concat();
    let checksum = crc32c::crc32c(&typed).rotate_right(15).wrapping_add(0xA282_EAD8);
    [&checksum.to_le_bytes()[..], &(payload.len() as u16).to_le_bytes(), &typed].concat()
}

/// Four records in two blocks, and where they begin.
fn log() -> (Vec<u8>, [usize; 4]) {
    let first = record(FULL, b"one");
    let second = record(FIRST, &vec![7; BLOCK_BYTES - first.len() - HEADER_BYTES - 3]);
    let log = [first, second, vec![0; 3], record(LAST, &[9; 500]), record(FULL, b"four")].concat();
    (log, [0, 10, BLOCK_BYTES, BLOCK_BYTES + 507])
}

fn trouble(log: &[u8]) -> Option<Trouble> {
    walk(log, Records::Any).unwrap().trouble
}

/// Damage that no interrupted write leaves.
fn found(log: &[u8]) -> Option<(usize, &'static str)> {
    trouble(log).filter(|trouble| trouble.is_damage).map(|trouble| (trouble.at as usize, trouble.detail))
}

/// A batch of so many writes, the first of them with this number.
fn batch(first: u64, writes: u32, bytes: usize) -> Vec<u8> {
    [&first.to_le_bytes()[..], &writes.to_le_bytes(), &vec![writes as u8; bytes]].concat()
}

/// A WAL as RocksDB would write it, and where its records begin.
fn wal(batches: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
    let (mut log, mut begins) = (Vec::new(), Vec::new());
    for batch in batches {
        let (mut rest, mut begun) = (&batch[..], false);
        while !begun || !rest.is_empty() {
            let room = BLOCK_BYTES - log.len() % BLOCK_BYTES;
            if room < HEADER_BYTES {
                log.resize(log.len() + room, 0);
                continue;
            }
            if !begun {
                begins.push(log.len());
            }
            let (part, after) = rest.split_at(rest.len().min(room - HEADER_BYTES));
            let kind = match (begun, after.is_empty()) {
                (false, true) => FULL,
                (false, false) => FIRST,
                (true, false) => MIDDLE,
                (true, true) => LAST,
            };
            log.extend(record(kind, part));
            (rest, begun) = (after, true);
        }
    }
    (log, begins)
}

/// Records of all lengths: the numbers of their writes begin at 100, and each has one to three.
fn writes() -> (Vec<u8>, Vec<usize>, u64) {
    let mut next = 100;
    let lengths = [40, 500, 3000, 0, 70_000, 120, 9000].into_iter().cycle().take(30);
    let batches: Vec<_> = lengths
        .enumerate()
        .map(|(number, bytes)| {
            let count = 1 + number as u32 % 3;
            next += u64::from(count);
            batch(next - u64::from(count), count, bytes)
        })
        .collect();
    let (log, begins) = wal(&batches);
    (log, begins, next)
}

#[test]
fn a_sound_wal_is_walked_to_its_end_and_zeros_behind_it_are_none() {
    let (log, begins, next) = writes();
    for zeros in [0, 1, 5000, 200_000] {
        let padded = [&log[..], &vec![0; zeros]].concat();
        let expected = Walk {
            bytes: padded.len() as u64,
            end: log.len() as u64,
            sound_bytes: log.len() as u64,
            records: begins.len() as u64,
            writes: Some(100..next),
            trouble: None,
        };
        assert_eq!(walk(&padded[..], Records::Writes).unwrap(), expected);
    }
    assert_eq!(walk(&[][..], Records::Writes).unwrap(), Walk::default());
    // What a WAL says of the one before it has no number.
    let (of_one, _) = wal(&[batch(5, 1, 30)]);
    let with_info = [record(PREDECESSOR, &[1; 20]), of_one].concat();
    let walked = walk(&with_info[..], Records::Writes).unwrap();
    assert_eq!((walked.writes, walked.trouble), (Some(5..6), None));
}

#[test]
fn a_hole_anywhere_is_a_trouble_of_the_record_that_it_begins_in() {
    let (log, begins, next) = writes();
    for from in (0..log.len() - 1300).step_by(1511) {
        for filler in [0, 0xA5] {
            let mut bad = log.clone();
            bad[from..from + 600].fill(filler);
            if bad == log {
                continue;
            }
            let first = (from..from + 600).find(|at| bad[*at] != log[*at]).unwrap();
            let record = begins.iter().rev().find(|begin| **begin <= first).unwrap();
            let walked = walk(&bad[..], Records::Writes).unwrap();
            let trouble = walked.trouble.unwrap_or_else(|| panic!("{filler} from {from}"));
            assert_eq!(trouble.record, *record as u64, "{filler} from {from}: {trouble:?}");
            assert!((trouble.record..=first as u64).contains(&trouble.at), "{filler} from {from}: {trouble:?}");
            assert_eq!(trouble.record + trouble.behind.bytes, log.len() as u64, "{filler} from {from}: {trouble:?}");
            assert_eq!(trouble.behind.next_write, Some(next), "{filler} from {from}: {trouble:?}");
            assert!(trouble.behind.records <= begins.iter().filter(|begin| **begin > from).count() as u64);
        }
    }
}

#[test]
fn whole_records_that_do_not_come_next_are_a_trouble() {
    let batches: Vec<_> = (0..200).map(|number| batch(100 + number, 1, 109)).collect();
    let (log, _) = wal(&batches);
    // Each is 128 bytes: an older page has as many whole ones.
    let mut bad = log.clone();
    bad.copy_within(4096..8192, 12_288);
    let Walk { writes, trouble, .. } = walk(&bad[..], Records::Writes).unwrap();
    let trouble = trouble.unwrap();
    assert_eq!((trouble.at, trouble.record, trouble.detail, writes), (12_288, 12_288, NUMBER, Some(100..196)));
    assert_eq!(trouble.behind.next_write, Some(300));
    // As is a part of a record without the others.
    let whole = record(FULL, &batch(1, 1, 30));
    for part in [LAST, MIDDLE] {
        let log = [&whole[..], &record(part, &batch(2, 1, 30))].concat();
        let trouble = walk(&log[..], Records::Writes).unwrap().trouble.unwrap();
        assert_eq!((trouble.at, trouble.detail), (whole.len() as u64, PART));
    }
}

/// A record in one block, and one whose parts lie in two: the first of them is 40 bytes long.
fn writes_of_parts() -> (Vec<u8>, Vec<usize>, u64) {
    let (log, begins) = wal(&[batch(1, 1, BLOCK_BYTES - 2 * HEADER_BYTES - 40 - 12), batch(2, 1, 200)]);
    (log, begins, 3)
}

#[test]
fn where_a_fragment_would_end_is_told_if_it_can_be_the_next_one() {
    let (log, begins, _) = writes_of_parts();
    let end = |bad: &[u8]| walk(bad, Records::Writes).unwrap().trouble.unwrap().end;
    // Cut in the payload of the record, of its first part, of its last one.
    assert_eq!(end(&log[..1000]), Some(begins[1] as u64));
    assert_eq!(end(&log[..BLOCK_BYTES - 1]), Some(BLOCK_BYTES as u64));
    assert_eq!(end(&log[..log.len() - 1]), Some(log.len() as u64));
    // Within a header nobody knows.
    assert_eq!(end(&log[..3]), None);
    assert_eq!(end(&log[..BLOCK_BYTES]), None);
    let mut bad = log;
    for kind in [LAST, MIDDLE, ZERO, 99] {
        bad[6] = kind;
        assert_eq!(end(&bad), None, "{kind}");
    }
    // A first part fills its block.
    bad[6] = FIRST;
    assert_eq!(end(&bad), None);
}

#[test]
fn every_flipped_bit_is_found_but_in_the_last_record_where_a_write_may_have_been_cut() {
    let (sound, begins) = log();
    assert_eq!(found(&sound), None);
    let all = (0..BLOCK_BYTES * 8).step_by(509).chain(0..200).chain(BLOCK_BYTES * 8..sound.len() * 8);
    for bit in all {
        let mut bad = sound.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let begin = begins.into_iter().rev().find(|begin| *begin <= bit / 8).unwrap();
        let found = found(&bad);
        if begin == begins[3] {
            assert!(found.is_none_or(|found| found.0 == begin), "bit {bit}");
        } else if !(BLOCK_BYTES - 3..BLOCK_BYTES).contains(&(bit / 8)) {
            assert_eq!(found.map(|found| found.0), Some(begin), "bit {bit}");
        }
    }
}

#[test]
fn what_a_loss_of_power_leaves_is_no_damage() {
    let (sound, _) = log();
    for cut in (0..sound.len()).step_by(61).chain(sound.len() - 600..sound.len()) {
        assert_eq!(found(&sound[..cut]), None, "cut at {cut}");
        // The kernel has written the length of the file and not what is in it.
        let zeros = [&sound[..cut], &vec![0; sound.len() - cut]].concat();
        assert_eq!(found(&zeros), None, "zeros from {cut}");
        let mut hole = sound.clone();
        hole[cut..sound.len().min(cut + 300)].fill(0);
        assert_eq!(found(&hole), None, "a hole at {cut}");
    }
}

#[test]
fn the_type_of_a_recycled_file_is_damage_wherever_rocksdb_comes_to_it() {
    let (sound, begins) = log();
    for begin in begins {
        let mut bad = sound.clone();
        bad[begin + 6] = 5;
        assert_eq!(found(&bad), Some((begin, RECYCLED)));
    }
}

#[test]
fn a_length_beyond_the_file_is_told_from_a_record_that_was_cut() {
    let sound = [record(FULL, b"one"), record(FULL, b"two, the last one")].concat();
    for bit in 5..16 {
        let mut bad = sound.clone();
        bad[10 + 4 + bit / 8] ^= 1 << (bit % 8);
        assert_eq!(found(&bad), Some((10, TOO_LONG)), "bit {bit}");
    }
}

#[test]
fn any_bytes_come_to_an_end() {
    let sound = [record(FULL, b"one"), record(2, &[7; 300]), record(LAST, b"three"), record(130, b"four")].concat();
    let (wal, _) = wal(&[batch(1, 2, 30), batch(3, 1, 300), batch(4, 1, 0)]);
    mutated(&[sound, wal], |bytes, _| {
        for records in [Records::Any, Records::Writes] {
            let Walk { bytes: length, sound_bytes, trouble, .. } = walk(&bytes[..], records).unwrap();
            assert!(length == bytes.len() as u64 && sound_bytes <= length);
            if let Some(trouble) = trouble {
                assert!(sound_bytes <= trouble.at && trouble.record <= trouble.at && trouble.at <= length);
                assert!(!trouble.is_damage || trouble.at + HEADER_BYTES as u64 <= length);
            }
        }
    });
}
