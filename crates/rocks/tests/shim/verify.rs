//! What a worker may send instead of the table it promised: all of it is refused, and what is sound
//! is accepted.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Numbers, key, small_store};
use crate::job::{Job, Shape, run};
use ecotone_rocks::properties::{EntryKind, TableCollector};
use ecotone_rocks::remote::RemoteOutput;
use ecotone_rocks::tables::live_tables;
use ecotone_rocks::verify::{
    ExpectedTable, VerifyError, file_checksum, read_table, verify_and_recount_table, verify_table,
};
use rust_rocksdb::{DB, Options, SstFileWriter};

const PLAIN: Shape = Shape { keys: 2000, value_bytes: 120, subcompactions: 1, range_deletions: false, seed: 1 };

/// Each table of each job.
fn tables(jobs: &[Job]) -> impl Iterator<Item = (&Job, &RemoteOutput)> {
    jobs.iter().flat_map(|job| job.result.output_files.iter().map(move |output| (job, output)))
}

/// The largest table, for it has blocks of every kind.
fn largest(jobs: &[Job]) -> (&Job, &RemoteOutput) {
    tables(jobs).max_by_key(|(_, output)| output.file_bytes).expect("a table")
}

#[test]
fn every_output_of_real_jobs_is_accepted() {
    let mut checked = [0; 4];
    for seed in 0..4 {
        for (subcompactions, range_deletions) in [(1, false), (1, true), (3, false), (3, true)] {
            let root = tempfile::tempdir().expect("a directory");
            let jobs = run(root.path(), Shape { subcompactions, range_deletions, seed, ..PLAIN });
            for (job, output) in tables(&jobs) {
                let found = verify_table(&job.path(output), &job.expected(output)).expect("sound");
                assert_eq!(found.entries, output.entries);
                assert_eq!(found.deletions, output.deletions);
                assert_eq!(found.range_deletions, output.range_deletions);
                assert_eq!(found.file_bytes, output.file_bytes);
                assert_eq!(found.unique_id, output.unique_id);
                assert!(found.smallest_seqno >= output.smallest_seqno && found.largest_seqno <= output.largest_seqno);
                assert_eq!(file_checksum(&job.path(output)).expect("reads").as_slice(), output.file_checksum);
                checked[0] += 1;
                checked[1] += u64::from(job.input.begin.is_some() && job.input.end.is_some());
                checked[2] += u64::from(output.range_deletions > 0);
                checked[3] += u64::from(output.deletions > 0);
            }
        }
    }
    assert!(
        checked.iter().all(|count| *count > 10),
        "tables, split ones, with range deletions, with deletions: {checked:?}"
    );
}

/// Counts entries, and would leave their number.
struct Entries(u64);

impl TableCollector for Entries {
    fn add(&mut self, _key: &[u8], _value: &[u8], _kind: EntryKind, _sequence: u64, _file_bytes: u64) {
        self.0 += 1;
    }

    fn finish(&mut self) -> Vec<(String, Vec<u8>)> {
        assert!(self.0 > 0, "no entry was shown");
        vec![("test.entries".into(), self.0.to_le_bytes().to_vec())]
    }
}

#[test]
fn a_table_that_is_counted_again_is_compared_with_its_promise_as_well() {
    let root = tempfile::tempdir().expect("a directory");
    let jobs = run(root.path(), PLAIN);
    let (job, output) = largest(&jobs);
    let sound = job.expected(output);
    let recount = |expected: &ExpectedTable, may_lack: &[&str]| {
        verify_and_recount_table(&job.path(output), expected, Box::new(Entries(0)), may_lack)
    };
    assert_eq!(recount(&sound, &["test.entries"]).expect("sound").entries, output.entries);
    assert!(matches!(recount(&sound, &[]), Err(VerifyError::Foreign { .. })), "nobody has left that property in it");
    let wrong = [
        ExpectedTable { entries: Some(output.entries + 1), ..sound.clone() },
        ExpectedTable { file_bytes: Some(output.file_bytes + 1), ..sound.clone() },
        ExpectedTable { file_checksum: Some(vec![0; 4]), ..sound },
    ];
    for expected in wrong {
        recount(&expected, &["test.entries"]).expect_err("must be refused");
    }
}

#[test]
fn a_reading_that_nobody_waits_for_stops() {
    let root = tempfile::tempdir().expect("a directory");
    let jobs = run(root.path(), PLAIN);
    let (job, output) = largest(&jobs);
    let stop = AtomicBool::new(false);
    assert_eq!(read_table(&job.path(output), &stop).expect("sound").entries, output.entries);
    stop.store(true, Ordering::Relaxed);
    let error = read_table(&job.path(output), &stop).expect_err("nobody waits");
    assert!(matches!(&error, VerifyError::Stopped { what, .. } if what.contains("after 0 entries")), "{error}");
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    let root = tempfile::tempdir().expect("a directory");
    let jobs = run(root.path(), Shape { range_deletions: true, ..PLAIN });
    let (job, output) = largest(&jobs);
    let sound = std::fs::read(job.path(output)).expect("reads");
    let path = root.path().join("flipped.sst");
    let mut numbers = Numbers(7);
    // Without the checksum of the file, so that the table must speak for itself; all of its end,
    // where its structure is.
    let expected = ExpectedTable { file_checksum: None, ..job.expected(output) };
    let ends = (0..600).map(|back| sound.len() as u64 - 1 - back);
    let offsets: Vec<u64> = (0..600).map(|_| numbers.below(sound.len() as u64)).chain(ends).collect();
    for offset in offsets {
        let mut flipped = sound.clone();
        flipped[offset as usize] ^= 1 << numbers.below(8);
        std::fs::write(&path, &flipped).expect("writes");
        let error = verify_table(&path, &expected).expect_err("must be refused");
        assert!(
            matches!(error, VerifyError::Corrupt { .. } | VerifyError::NotATable { .. }),
            "at {offset} of {}: {error}",
            sound.len()
        );
        let error = verify_table(&path, &job.expected(output)).expect_err("must be refused");
        assert!(matches!(error, VerifyError::Corrupt { .. }), "the checksum of the file finds it too: {error}");
    }
}

#[test]
fn a_table_cut_or_extended_is_refused() {
    let root = tempfile::tempdir().expect("a directory");
    let jobs = run(root.path(), PLAIN);
    let (job, output) = largest(&jobs);
    let sound = std::fs::read(job.path(output)).expect("reads");
    let path = root.path().join("cut.sst");
    let mut numbers = Numbers(8);
    let unsized_expected = ExpectedTable { file_bytes: None, file_checksum: None, ..job.expected(output) };
    for round in 0..200 {
        let len = if round < 60 { round } else { numbers.below(sound.len() as u64) } as usize;
        std::fs::write(&path, &sound[..len]).expect("writes");
        let error = verify_table(&path, &job.expected(output)).expect_err("must be refused");
        assert!(matches!(error, VerifyError::Foreign { .. }), "{error}");
        verify_table(&path, &unsized_expected).expect_err("must be refused without its size, too");
    }
    let mut extended = sound;
    extended.extend_from_slice(&[0; 100]);
    std::fs::write(&path, &extended).expect("writes");
    verify_table(&path, &job.expected(output)).expect_err("must be refused");
    verify_table(&path, &unsized_expected).expect_err("must be refused");
}

#[test]
fn what_is_no_table_is_refused() {
    let root = tempfile::tempdir().expect("a directory");
    let path = root.path().join("000001.sst");
    let any = ExpectedTable::default();
    assert!(matches!(verify_table(&path, &any), Err(VerifyError::Io { .. })), "a missing file");
    let mut numbers = Numbers(9);
    for len in [0, 1, 52, 53, 4096, 100_000] {
        std::fs::write(&path, numbers.bytes(len)).expect("writes");
        let error = verify_table(&path, &any).expect_err("must be refused");
        assert!(matches!(error, VerifyError::NotATable { .. }), "{len} bytes: {error}");
    }
    verify_table(root.path(), &any).expect_err("a directory");
    assert!(file_checksum(&root.path().join("none")).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound));
}

#[test]
fn another_table_than_promised_is_refused() {
    let root = tempfile::tempdir().expect("a directory");
    let jobs = run(root.path(), PLAIN);
    let all: Vec<_> = tables(&jobs).collect();
    assert!(all.len() > 5);
    for (job, output) in &all {
        for (other_job, other) in &all {
            if job.path(output) != other_job.path(other) {
                let mut expected = job.expected(output);
                verify_table(&other_job.path(other), &expected).expect_err("must be refused");
                // Also when it happens to have the size, and no checksum was promised.
                expected.file_bytes = None;
                expected.file_checksum = None;
                let error = verify_table(&other_job.path(other), &expected).expect_err("must be refused");
                assert!(matches!(error, VerifyError::Foreign { .. }), "{error}");
            }
        }
    }
}

#[test]
fn the_same_content_from_another_run_is_refused_by_its_identity() {
    let (first, second) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let (ours, theirs) = (run(first.path(), PLAIN), run(second.path(), PLAIN));
    let ((our_job, our_output), (their_job, their_output)) = (largest(&ours), largest(&theirs));
    let expected = ExpectedTable { file_checksum: None, file_bytes: None, ..our_job.expected(our_output) };
    let error = verify_table(&their_job.path(their_output), &expected).expect_err("must be refused");
    assert!(matches!(&error, VerifyError::Foreign { what, .. } if what.contains("identity")), "{error}");
    let sound = ExpectedTable { unique_id: None, tail_offset: None, ..expected };
    verify_table(&their_job.path(their_output), &sound).expect("all else is equal");
}

#[test]
fn keys_and_sequence_numbers_outside_of_the_promise_are_refused() {
    let root = tempfile::tempdir().expect("a directory");
    let jobs = run(root.path(), PLAIN);
    let (job, output) = largest(&jobs);
    let path = job.path(output);
    let sound = job.expected(output);
    let user_key = |internal: &[u8]| internal[..internal.len() - 8].to_vec();
    let (first, last) = (user_key(&output.smallest_internal_key), user_key(&output.largest_internal_key));
    let after = |key: &[u8]| [key, &[0]].concat();
    let refused = [
        ExpectedTable { begin: Some(after(&first)), ..sound.clone() },
        ExpectedTable { begin: Some(after(&last)), ..sound.clone() },
        ExpectedTable { end: Some(last.clone()), ..sound.clone() },
        ExpectedTable { end: Some(first.clone()), ..sound.clone() },
        ExpectedTable { end: Some(Vec::new()), ..sound.clone() },
        ExpectedTable { smallest_seqno: Some(output.smallest_seqno + 1), ..sound.clone() },
        ExpectedTable { largest_seqno: Some(output.largest_seqno - 1), ..sound.clone() },
    ];
    for expected in refused {
        let error = verify_table(&path, &expected).expect_err("must be refused");
        assert!(matches!(error, VerifyError::OutOfRange { .. }), "{error} for {expected:?}");
    }
    let tight = ExpectedTable { begin: Some(first.clone()), end: Some(after(&last)), ..sound };
    verify_table(&path, &tight).expect("just inside");
}

#[test]
fn promises_that_the_table_does_not_keep_are_refused() {
    let root = tempfile::tempdir().expect("a directory");
    let jobs = run(root.path(), PLAIN);
    let (job, output) = largest(&jobs);
    let sound = job.expected(output);
    let off = |value: Option<u64>| value.map(|value| value + 1);
    let miscounted = [
        ExpectedTable { entries: off(sound.entries), ..sound.clone() },
        ExpectedTable { deletions: off(sound.deletions), ..sound.clone() },
        ExpectedTable { range_deletions: off(sound.range_deletions), ..sound.clone() },
        ExpectedTable { raw_key_bytes: off(sound.raw_key_bytes), ..sound.clone() },
        ExpectedTable { raw_value_bytes: off(sound.raw_value_bytes), ..sound.clone() },
    ];
    for expected in miscounted {
        let error = verify_table(&job.path(output), &expected).expect_err("must be refused");
        assert!(matches!(error, VerifyError::CountMismatch { .. }), "{error}");
    }
    let bent = |key: &Option<Vec<u8>>, by: u8| {
        key.clone().map(|mut key| {
            let at = key.len() - 9;
            key[at] = key[at].wrapping_add(by);
            key
        })
    };
    let foreign = [
        ExpectedTable { file_bytes: off(sound.file_bytes), ..sound.clone() },
        ExpectedTable { tail_offset: off(sound.tail_offset), ..sound.clone() },
        ExpectedTable { unique_id: Some([1, 2]), ..sound.clone() },
        ExpectedTable { smallest_internal_key: bent(&sound.smallest_internal_key, 1), ..sound.clone() },
        ExpectedTable { smallest_internal_key: bent(&sound.smallest_internal_key, 255), ..sound.clone() },
        ExpectedTable { largest_internal_key: bent(&sound.largest_internal_key, 1), ..sound.clone() },
        ExpectedTable { largest_internal_key: bent(&sound.largest_internal_key, 255), ..sound.clone() },
        ExpectedTable { largest_internal_key: Some(b"short".to_vec()), ..sound.clone() },
        ExpectedTable { smallest_internal_key: Some(Vec::new()), ..sound.clone() },
    ];
    for expected in foreign {
        let error = verify_table(&job.path(output), &expected).expect_err("must be refused");
        assert!(matches!(error, VerifyError::Foreign { .. }), "{error} for {expected:?}");
    }
}

#[test]
fn bounds_that_no_range_deletion_accounts_for_are_refused() {
    let root = tempfile::tempdir().expect("a directory");
    let jobs = run(root.path(), Shape { range_deletions: true, ..PLAIN });
    let (job, output) =
        tables(&jobs).filter(|(_, output)| output.range_deletions > 0).last().expect("one with range deletions");
    let sound = job.expected(output);
    let internal =
        |user_key: &[u8], sequence: u64, kind: u64| [user_key, &(sequence << 8 | kind).to_le_bytes()].concat();
    let refused = [
        ExpectedTable { smallest_internal_key: Some(internal(b"a", output.smallest_seqno, 15)), ..sound.clone() },
        ExpectedTable { largest_internal_key: Some(internal(b"z", (1 << 56) - 1, 15)), ..sound.clone() },
    ];
    for expected in refused {
        let error = verify_table(&job.path(output), &expected).expect_err("must be refused");
        assert!(matches!(error, VerifyError::Foreign { .. }), "{error}");
    }
}

/// Writes tables in an order that the file then denies: descending, or all keys equal, under the
/// name of the bytewise order.
fn table_of_a_liar(directory: &Path, order: fn(&[u8], &[u8]) -> std::cmp::Ordering) -> std::path::PathBuf {
    let mut options = small_store();
    options.set_comparator("leveldb.BytewiseComparator", Box::new(order));
    let db = DB::open(&options, directory).expect("opens");
    for number in 0..300 {
        db.put(key(number), b"value").expect("writes");
    }
    db.flush().expect("flushes");
    let tables = live_tables(&db).expect("lists");
    tables[0].directory.join(&tables[0].name)
}

#[test]
fn a_table_out_of_order_is_refused() {
    let root = tempfile::tempdir().expect("a directory");
    let path = table_of_a_liar(root.path(), |a, b| b.cmp(a));
    let error = verify_table(&path, &ExpectedTable::default()).expect_err("must be refused");
    assert!(matches!(error, VerifyError::Misordered { .. }), "{error}");
    // Only two neighbours are exchanged, deep inside.
    let root = tempfile::tempdir().expect("a directory");
    let path = table_of_a_liar(root.path(), |a, b| {
        let exchanged = |bytes: &[u8]| match bytes {
            b"key00000200" => b"key00000201".to_vec(),
            b"key00000201" => b"key00000200".to_vec(),
            other => other.to_vec(),
        };
        exchanged(a).cmp(&exchanged(b))
    });
    let error = verify_table(&path, &ExpectedTable::default()).expect_err("must be refused");
    assert!(matches!(error, VerifyError::Misordered { .. }), "{error}");
}

#[test]
fn tables_of_another_order_or_for_ingestion_are_refused() {
    let root = tempfile::tempdir().expect("a directory");
    let mut options = small_store();
    options.set_comparator("other.order", Box::new(|a: &[u8], b: &[u8]| a.cmp(b)));
    let db = DB::open(&options, root.path().join("other")).expect("opens");
    db.put(b"key", b"value").expect("writes");
    db.flush().expect("flushes");
    let tables = live_tables(&db).expect("lists");
    let error = verify_table(&tables[0].directory.join(&tables[0].name), &ExpectedTable::default());
    assert!(matches!(error, Err(VerifyError::Foreign { .. })), "{error:?}");

    let path = root.path().join("ingest.sst");
    let options = Options::default();
    let mut writer = SstFileWriter::create(&options);
    writer.open(&path).expect("opens");
    writer.put(b"key", b"value").expect("writes");
    writer.finish().expect("finishes");
    let error = verify_table(&path, &ExpectedTable::default());
    assert!(matches!(error, Err(VerifyError::Foreign { .. })), "{error:?}");
}
