//! Appends through a window in memory: they are what writes would be, whatever the size, and fail
//! as writes do.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::numbers::Numbers;
use crate::tmpfs::Tmpfs;
use ecotone_io::mapped_file::{MAX_PARTS, MappedFile};

const NO_LIMIT: u64 = u64::MAX;

/// So near that no window fits: every append is a call, as on a file system that reserves nothing.
const WRITE_BYTES: u64 = 0;

fn file(directory: &Path) -> (PathBuf, Arc<File>) {
    let path = directory.join("file");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).expect("creates");
    (path, Arc::new(file))
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).expect("is there").len()
}

#[test]
fn what_is_appended_is_in_the_file_immediately_and_nothing_else_after_trimming() {
    for limit in [NO_LIMIT, WRITE_BYTES, 3_000_000, 3 << 20] {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, file) = file(directory.path());
        file.write_all_at(b"header, and what is lost", 0).expect("writes");
        let mut appends = MappedFile::new(file.clone(), 6, limit, limit != 3_000_000).expect("there is memory");
        let (mut expected, mut numbers) = (b"header".to_vec(), Numbers(7));
        while expected.len() < 6_000_000 {
            let most = [30, 5_000, 70_000, 1_500_000][numbers.below(4) as usize / (1 + numbers.below(3) as usize)];
            let parts: Vec<_> = (0..=numbers.below(MAX_PARTS as u64))
                .take(MAX_PARTS)
                .map(|_| {
                    let len = numbers.below(most) as usize;
                    vec![numbers.next() as u8; len]
                })
                .collect();
            let parts: Vec<_> = parts.iter().map(Vec::as_slice).collect();
            assert_eq!(appends.append(&parts).expect("appends"), expected.len() as u64);
            expected.extend(parts.concat());
            assert_eq!(appends.len(), expected.len() as u64);
            if numbers.below(50) == 0 {
                appends.trim().expect("trims");
                assert_eq!(length(&path), expected.len() as u64);
            }
            // As another process would see it, and as it would be left by a kill.
            let last = expected.len().saturating_sub(100);
            let mut found = vec![0; expected.len() - last];
            file.read_exact_at(&mut found, last as u64).expect("is there");
            assert_eq!(found, expected[last..], "limit {limit}");
        }
        let found = std::fs::read(&path).expect("reads");
        let (found, behind) = found.split_at(expected.len());
        assert!(found == expected, "limit {limit}");
        assert!(behind.iter().all(|byte| *byte == 0) && behind.len() <= 256 << 10, "limit {limit}");
        assert!(limit != WRITE_BYTES || behind.is_empty());
        drop(appends);
        assert_eq!(length(&path), expected.len() as u64, "limit {limit}");
    }
}

#[test]
fn a_window_that_was_made_ready_ahead_is_left_where_appends_become_slow() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, file) = file(directory.path());
    let mut appends = MappedFile::new(file, 0, NO_LIMIT, true).expect("there is memory");
    let name = path.to_str().expect("is text").to_owned();
    let is_mapped = || std::fs::read_to_string("/proc/self/maps").expect("reads").contains(&name);
    let deadline = Instant::now() + Duration::from_secs(60);
    // Four windows in less time than one may take.
    loop {
        let begin = Instant::now();
        (0..1 << 10).for_each(|_| _ = appends.append(&[&[1; 1000]]).expect("appends"));
        if begin.elapsed() < Duration::from_millis(90) {
            break;
        }
        assert!(Instant::now() < deadline, "this machine is too slow for the test");
    }
    if !is_mapped() {
        // This file system reserves nothing, so there is no window.
        return;
    }
    // For one byte in it each sync would write the whole of it.
    while is_mapped() {
        appends.append(&[b""]).expect("appends nothing");
        assert!(Instant::now() < deadline, "the window is kept");
    }
    let fast = appends.len();
    for slow in 1..=300 << 10 {
        appends.append(&[b"2"]).expect("appends");
        assert!(slow > 1 || !is_mapped(), "what would fit the window is appended by calls");
    }
    assert!(is_mapped(), "behind it there is another");
    drop(appends);
    let found = std::fs::read(&path).expect("reads");
    let (first, second) = found.split_at(fast as usize);
    assert!(first.iter().all(|byte| *byte == 1) && second == b"2".repeat(300 << 10));
}

#[test]
fn more_parts_than_an_append_may_have_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, file) = file(directory.path());
    let mut appends = MappedFile::new(file, 0, NO_LIMIT, true).expect("there is memory");
    let error = appends.append(&[&b"x"[..]; MAX_PARTS + 1]).expect_err("too many");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(appends.append(&[&b"x"[..]; MAX_PARTS]).expect("as many as may be"), 0);
    drop(appends);
    assert_eq!(std::fs::read(path).expect("reads"), b"x".repeat(MAX_PARTS));
}

#[test]
fn others_read_and_sync_what_is_appended_meanwhile() {
    const RECORD: usize = 1000;
    let directory = tempfile::tempdir().expect("a directory");
    let (_, file) = file(directory.path());
    let mut appends = MappedFile::new(file.clone(), 0, NO_LIMIT, true).expect("there is memory");
    let appended = AtomicU64::new(0);
    let records = 10_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for record in 0..records {
                appends.append(&[&vec![record as u8; RECORD]]).expect("appends");
                appended.store(record + 1, Ordering::Release);
            }
        });
        scope.spawn(|| {
            while appended.load(Ordering::Acquire) < records {
                file.sync_data().expect("syncs");
            }
        });
        let mut found = vec![0; RECORD];
        loop {
            let there = appended.load(Ordering::Acquire);
            if there > 0 {
                file.read_exact_at(&mut found, (there - 1) * RECORD as u64).expect("reads");
                assert!(found.iter().all(|byte| *byte == (there - 1) as u8), "record {}", there - 1);
            }
            if there == records {
                break;
            }
        }
    });
}

#[test]
fn a_full_disk_is_an_error_and_appending_goes_on_when_there_is_room() {
    let Some(disk) = Tmpfs::mount(6 << 20) else { return };
    let (path, file) = file(disk.path());
    let mut appends = MappedFile::new(file, 0, NO_LIMIT, true).expect("there is memory");
    let append = |appends: &mut MappedFile, number: u64| appends.append(&[&[number as u8 + 1; 1000]]);
    for number in 0..1500 {
        append(&mut appends, number).expect("there is room");
    }
    disk.fill();
    let mut number = 1500;
    let error = loop {
        match append(&mut appends, number) {
            Ok(_) => number += 1,
            Err(error) => break error,
        }
        assert!(number < 3000, "what was reserved before is all there is");
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    for _ in 0..3 {
        append(&mut appends, number).expect_err("still full");
    }
    disk.empty();
    for number in number..4000 {
        append(&mut appends, number).expect("there is room again");
    }
    // Up to the last block: where a window does not fit, a record still does.
    let mut number = 4000;
    while append(&mut appends, number).is_ok() {
        number += 1;
    }
    assert!(number * 1000 > (6 << 20) - (64 << 10), "{number}");
    drop(appends);
    let found = std::fs::read(path).expect("reads");
    assert_eq!(found.len() as u64, number * 1000);
    for (number, record) in found.chunks(1000).enumerate() {
        assert!(record.iter().all(|byte| *byte == number as u8 + 1), "record {number}");
    }
}

#[test]
fn a_page_that_the_kernel_cannot_give_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, file) = file(directory.path());
    let mut appends = MappedFile::new(file.clone(), 0, NO_LIMIT, true).expect("there is memory");
    appends.append(&[&[1; 5000]]).expect("appends");
    if length(&path) == 5000 {
        // This file system reserves nothing, so there is no window.
        return;
    }
    for _ in 0..3 {
        // What the kernel does with a page of a device that failed can be had from a file that was
        // cut.
        file.set_len(0).expect("cuts");
        let len = appends.len();
        // Several pages, of which the first is not the first in the window.
        appends.append(&[&[2; 50_000]]).expect_err("no page is there");
        assert_eq!(appends.len(), len);
        assert_eq!(appends.append(&[&[3; 50_000]]).expect("the next window is sound"), len);
    }
    drop(appends);
    let found = std::fs::read(path).expect("reads");
    assert!(found[found.len() - 50_000..].iter().all(|byte| *byte == 3));
}

const CHILD: &str = "ECOTONE_TEST_SENT_BUS_ERROR";
const MAX_SENT: usize = 1_000;

/// Not a test of its own without the variable.
#[test]
fn child_that_is_sent_a_bus_error() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    let (_, file) = file(Path::new(&directory));
    let mut appends = MappedFile::new(file, 0, NO_LIMIT, true).expect("there is memory");
    appends.append(&[b"x"]).expect("appends");
    // The runtime's own handler takes the first for a mistake of its own, and removes itself. Those
    // that are sent before the first has arrived are one with it, so that a busy machine may need
    // many.
    for _ in 0..MAX_SENT {
        Command::new("kill").args(["-BUS", &std::process::id().to_string()]).status().expect("sends");
    }
}

#[test]
fn bus_errors_that_are_not_ours_still_end_the_process() {
    let directory = tempfile::tempdir().expect("a directory");
    let status = Command::new(std::env::current_exe().expect("this program"))
        .args(["mapped_file::child_that_is_sent_a_bus_error", "--exact", "--test-threads=1"])
        .env(CHILD, directory.path())
        .stdout(Stdio::null())
        .status()
        .expect("starts");
    const SIGBUS: i32 = 7;
    assert_eq!(status.signal(), Some(SIGBUS), "{status}");
}
