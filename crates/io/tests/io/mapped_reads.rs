//! Reads through memory: they are what reads by calls would be, and fail as those do.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;

use crate::numbers::Numbers;
use ecotone_io::mapped_reads::MappedReads;

/// A file of so many bytes that do not repeat soon.
fn written(directory: &tempfile::TempDir, bytes: usize) -> (std::path::PathBuf, Vec<u8>) {
    let path = directory.path().join("file");
    let mut numbers = Numbers(3);
    let content: Vec<u8> = (0..bytes).map(|_| numbers.next() as u8).collect();
    std::fs::write(&path, &content).expect("writes");
    (path, content)
}

#[test]
fn what_is_read_is_what_is_there_from_any_thread_and_nothing_beyond_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, content) = written(&directory, 3_000_001);
    let reads = MappedReads::new(&File::open(path).expect("opens"), content.len() as u64).expect("there is memory");
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (reads, content) = (&reads, &content);
            scope.spawn(move || {
                let mut numbers = Numbers(seed);
                for _ in 0..2000 {
                    let from = numbers.below(content.len() as u64) as usize;
                    let len = numbers.below(5000).min((content.len() - from) as u64) as usize;
                    let mut found = vec![0; len];
                    reads.read_exact_at(&mut found, from as u64).expect("reads");
                    assert_eq!(found, content[from..from + len]);
                }
            });
        }
    });
    for (offset, len) in [(2_999_999, 3), (3_000_002, 0), (u64::MAX, 1), (1, 3_000_001)] {
        let error = reads.read_exact_at(&mut vec![0; len], offset).expect_err("nothing is there");
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }
}

#[test]
fn a_page_that_the_kernel_cannot_give_is_an_error_of_its_file_only() {
    let directories: Vec<_> = (0..2).map(|_| tempfile::tempdir().expect("a directory")).collect();
    let files: Vec<_> = directories.iter().map(|directory| written(directory, 100_000)).collect();
    let open = |path| OpenOptions::new().read(true).write(true).open(path).expect("opens");
    let reads: Vec<_> =
        files.iter().map(|(path, _)| MappedReads::new(&open(path), 100_000).expect("there is memory")).collect();
    let mut found = vec![0; 50_000];
    reads[0].read_exact_at(&mut found, 0).expect("reads");
    open(&files[0].0).set_len(60_000).expect("cuts");
    reads[0].read_exact_at(&mut found, 40_000).expect_err("no page is there");
    reads[0].read_exact_at(&mut found, 0).expect_err("nobody knows what is there");
    reads[1].read_exact_at(&mut found, 50_000).expect("reads");
    assert_eq!(found, files[1].1[50_000..]);
}

#[test]
fn nothing_is_mapped_of_an_empty_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, _) = written(&directory, 0);
    assert!(MappedReads::new(&File::open(path).expect("opens"), 0).is_none());
}
