//! What is not in memory: noted, and brought there while nobody waits.

use std::fs::{File, OpenOptions};
use std::io::{IoSliceMut, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

use ecotone_io::awaited_reads::AwaitedReads;
use ecotone_io::direct_reads::{Arrived, DirectFile, DirectRead, FileNumber, with_arrived};
use ecotone_io::missed_reads::{MissedRead, note_missed, noting_missed};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

const FILE_BYTES: u64 = 4 << 20;
/// More are not under way at a time.
const MAX: usize = 256;

/// A file of which the kernel has nothing in memory, where the file system lets it forget.
fn forgotten(path: &Path) -> File {
    let mut file = OpenOptions::new().create_new(true).read(true).write(true).open(path).expect("a file");
    file.write_all(&vec![7; FILE_BYTES as usize]).expect("writes");
    file.sync_all().expect("syncs");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("forgets");
    file
}

/// Reads as long as nothing has to be waited for.
fn try_read(file: &File, offset: u64, bytes: usize) -> bool {
    let read = preadv2(file, &mut [IoSliceMut::new(&mut vec![0; bytes])], offset, ReadWriteFlags::NOWAIT);
    matches!(read, Ok(read) if read == bytes)
}

/// What a reader that finds nothing there would have noted.
fn missed(file: &File, pieces: impl IntoIterator<Item = (u64, u64)>) -> Vec<MissedRead> {
    let (count, missed) =
        noting_missed(|| pieces.into_iter().map(|(offset, bytes)| note_missed(file, offset, bytes)).count());
    assert_eq!(missed.len(), count, "there are descriptors");
    missed
}

/// `None` where the kernel has no io_uring, or forbids it: said aloud.
fn reads() -> Option<(AwaitedReads<Rc<()>>, OwnedFd)> {
    AwaitedReads::new().inspect_err(|error| eprintln!("not tested: {error}")).ok()
}

/// Adds reads and begins them. `false`: there is no room for them.
fn begin(reads: &mut AwaitedReads<Rc<()>>, missed: Vec<MissedRead>, token: &Rc<()>) -> std::io::Result<bool> {
    let added = reads.add(missed, token)?;
    reads.submit()?;
    Ok(added)
}

/// Ends reads until `token` is the only one of its kind.
fn end_all(reads: &mut AwaitedReads<Rc<()>>, over: &OwnedFd, token: &Rc<()>) {
    end_all_into(reads, over, token, &mut Vec::new());
}

/// The same; what they bring that is not in the kernel's memory comes into `arrived`.
fn end_all_into(reads: &mut AwaitedReads<Rc<()>>, over: &OwnedFd, token: &Rc<()>, arrived: &mut Vec<Arrived>) {
    const LONG: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
    while Rc::strong_count(token) > 1 {
        let ready = poll(&mut [PollFd::new(over, PollFlags::IN)], Some(&LONG));
        assert!(matches!(ready, Ok(1) | Err(Errno::INTR)), "a read does not end: {ready:?}");
        let _ = rustix::io::read(over, &mut [0; 8]);
        reads.end_some(|_, one| arrived.push(one)).expect("goes on");
    }
}

#[test]
fn what_was_missed_is_in_memory_when_its_read_is_over() {
    let Some((mut reads, over)) = reads() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let file = forgotten(&directory.path().join("file"));
    let token = Rc::new(());
    // Some across the end of a page; the last beyond the end of the file.
    let pieces: Vec<_> =
        (0..40).map(|number| (number * 100_000 + 4000, 1100)).chain([(FILE_BYTES - 10, 1100)]).collect();
    for pieces in pieces.chunks(11) {
        assert!(begin(&mut reads, missed(&file, pieces.iter().copied()), &token).expect("begins"));
    }
    end_all(&mut reads, &over, &token);
    preadv2(&file, &mut [IoSliceMut::new(&mut [0; 8])], 0, ReadWriteFlags::empty()).expect("reads");
    let can_tell = try_read(&file, 0, 8);
    for (offset, bytes) in &pieces[..40] {
        assert!(try_read(&file, *offset, *bytes as usize) || !can_tell, "at {offset}");
    }
}

/// `None` where the file system does not read so: said aloud.
fn direct(path: &Path) -> Option<DirectFile> {
    let direct = DirectFile::open(path, FileNumber::next()).expect("opens");
    if direct.is_none() {
        eprintln!("not tested: the file system of {} reads nothing past the kernel's cache", path.display());
    }
    direct
}

#[test]
fn who_may_wait_reads_past_the_kernels_cache_immediately() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("file");
    // Its end is within a block.
    let content: Vec<u8> = (0..10_001_u32).map(|at| (at % 251) as u8).collect();
    std::fs::write(&path, &content).expect("writes");
    let Some(direct) = direct(&path) else { return };
    for (offset, bytes) in
        [(0, 1), (5, 100), (500, 20), (511, 2), (512, 512), (1000, 5000), (4096, 4096), (9900, 101), (10_001, 0)]
    {
        let mut into = vec![0; bytes];
        direct.read(offset as u64, &mut into).expect("reads");
        assert!(into == content[offset..][..bytes], "{bytes} bytes at {offset}");
    }
    for (offset, bytes) in [(9900, 102), (10_001, 1), (20_000, 1), (u64::MAX - 5, 10)] {
        let error = direct.read(offset, &mut vec![0; bytes]).expect_err("beyond the end");
        assert!(
            matches!(error.kind(), std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::InvalidInput),
            "{error}"
        );
    }
}

#[test]
fn what_is_read_past_the_kernels_cache_is_handed_over_once() {
    let Some((mut reads, over)) = reads() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("file");
    let file = forgotten(&path);
    let content: Vec<u8> = (0..FILE_BYTES).map(|at| (at % 251) as u8).collect();
    file.write_all_at(&content, 0).expect("writes");
    let Some(direct) = direct(&path) else { return };
    let other = DirectFile::open(&path, FileNumber::next()).expect("opens").expect("as before");
    // Within a block, across some, whole ones, at the end of the file.
    let pieces = [(5, 100), (500, 20), (1000, 5000), (4096, 4096), (70_000, 60_000), (FILE_BYTES - 100, 100), (0, 1)];
    let read = |file: &DirectFile, (offset, bytes): (u64, usize)| {
        let mut into = vec![0; bytes];
        (file.try_read(offset, &mut into), into)
    };
    assert_eq!(read(&direct, pieces[0]).0, DirectRead::Refused, "nobody notes it");
    let (told, missed) = noting_missed(|| pieces.map(|piece| read(&direct, piece).0));
    assert_eq!((told, missed.len()), ([DirectRead::Noted; 7], 7));
    let token = Rc::new(());
    assert!(begin(&mut reads, missed, &token).expect("begins"));
    let mut arrived = Vec::new();
    end_all_into(&mut reads, &over, &token, &mut arrived);
    assert_eq!(arrived.len(), pieces.len());
    with_arrived(&mut arrived, || {
        for (offset, bytes) in pieces {
            let (told, found) = read(&direct, (offset, bytes));
            assert_eq!(told, DirectRead::Arrived);
            assert!(found == content[offset as usize..][..bytes], "{bytes} bytes at {offset}");
            assert_eq!(read(&other, (offset, bytes)).0, DirectRead::Refused, "of another opening");
        }
        // What lies around it, as far as it came along, and no further.
        assert_eq!(read(&direct, (0, 512)), (DirectRead::Arrived, content[..512].to_vec()));
        assert_eq!(read(&direct, (FILE_BYTES - 100, 101)).0, DirectRead::Refused);
        assert_eq!(read(&direct, (3 << 20, 10)).0, DirectRead::Refused);
    });
    assert_eq!((read(&direct, pieces[0]).0, arrived.len()), (DirectRead::Refused, pieces.len()), "it is given back");
    let panicked = std::panic::catch_unwind(|| {
        noting_missed(|| {
            read(&direct, pieces[0]);
            std::panic::resume_unwind(Box::new("struck forcibly"));
        })
    });
    assert!(panicked.is_err());
    assert_eq!(read(&direct, pieces[0]).0, DirectRead::Refused);
    drop((direct, other));
    assert_eq!(descriptors(&path), 1);
}

#[test]
fn past_the_kernels_cache_there_is_a_bound_and_an_end_as_well() {
    let Some((mut reads, over)) = reads() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("file");
    drop(forgotten(&path));
    let Some(direct) = direct(&path) else { return };
    let (noted, missed) = noting_missed(|| {
        let at = |number: u64| direct.try_read(number * 4096, &mut [0; 1000]) == DirectRead::Noted;
        (0..100).filter(|number| at(*number)).count()
    });
    assert_eq!((noted, missed.len()), (64, 64));
    let token = Rc::new(());
    assert!(begin(&mut reads, missed, &token).expect("begins"));
    // They go on when nobody wants them any more.
    drop((reads, over));
    assert_eq!(Rc::strong_count(&token), 1);
    // What is held counts until it is dropped.
    let Some((mut reads, over)) = self::reads() else { return };
    let mut held = Vec::new();
    let mut begun = 0;
    loop {
        let ((), missed) = noting_missed(|| _ = direct.try_read(0, &mut [0; 64 << 10]));
        if !begin(&mut reads, missed, &token).expect("begins or refuses") {
            break;
        }
        begun += 1;
        end_all_into(&mut reads, &over, &token, &mut held);
    }
    assert_eq!((begun, held.len()), (MAX, MAX));
    held.pop();
    let ((), missed) = noting_missed(|| _ = direct.try_read(0, &mut [0; 64 << 10]));
    assert!(begin(&mut reads, missed, &token).expect("begins"));
    drop((reads, over, held));
    // Beyond the end there is nothing to hand over.
    let Some((mut reads, over)) = self::reads() else { return };
    let ((), missed) = noting_missed(|| _ = direct.try_read(FILE_BYTES + 10_000, &mut [0; 100]));
    assert!(begin(&mut reads, missed, &token).expect("begins"));
    let mut arrived = Vec::new();
    end_all_into(&mut reads, &over, &token, &mut arrived);
    assert!(arrived.is_empty());
    assert!(DirectFile::open(&directory.path().join("none"), FileNumber::next()).is_err());
}

#[test]
fn many_rounds_of_reads_end_while_the_device_ends_others() {
    const ROUNDS: u64 = 4_000;
    let directory = tempfile::tempdir().expect("a directory");
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let path = directory.path().join(format!("file{thread}"));
            scope.spawn(move || {
                let Some((mut reads, over)) = reads() else { return };
                let file = forgotten(&path);
                for round in 0..ROUNDS {
                    if round % 8 == 0 {
                        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("forgets");
                    }
                    let token = Rc::new(());
                    let from = round * 7_919 * 4096;
                    let pieces = (0..16).map(|piece| ((from + piece * 262_144) % FILE_BYTES, 100));
                    assert!(begin(&mut reads, missed(&file, pieces), &token).expect("begins"));
                    end_all(&mut reads, &over, &token);
                }
            });
        }
    });
}

#[test]
fn what_cannot_be_read_ends_as_well() {
    let Some((mut reads, over)) = reads() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let folder = File::open(directory.path()).expect("opens");
    let writes = OpenOptions::new().create(true).append(true).open(directory.path().join("writes")).expect("opens");
    let token = Rc::new(());
    for file in [&folder, &writes] {
        assert!(begin(&mut reads, missed(file, [(0, 100)]), &token).expect("begins"));
    }
    end_all(&mut reads, &over, &token);
}

#[test]
fn no_more_are_begun_than_there_is_room_for_and_none_that_is_long() {
    let Some((mut reads, over)) = reads() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let file = forgotten(&directory.path().join("file"));
    let token = Rc::new(());
    for refused in [(0, (64 << 10) + 1), (u64::MAX, 100)] {
        assert!(!begin(&mut reads, missed(&file, [(0, 100), refused]), &token).expect("refuses"));
    }
    assert_eq!(Rc::strong_count(&token), 1, "none of them is begun");
    for round in 0..3 {
        let mut begun = 0;
        while begin(&mut reads, missed(&file, [(begun as u64 * 10_000, 100)]), &token).expect("begins or refuses") {
            begun += 1;
        }
        assert_eq!(begun, MAX, "round {round}");
        end_all(&mut reads, &over, &token);
    }
}

#[test]
fn reads_may_be_under_way_when_they_are_given_up() {
    let Some((mut reads, over)) = reads() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("file");
    let file = forgotten(&path);
    let token = Rc::new(());
    assert!(begin(&mut reads, missed(&file, (0..60).map(|number| (number * 65_536, 65_536))), &token).expect("begins"));
    drop((reads, over));
    assert_eq!((Rc::strong_count(&token), descriptors(&path)), (1, 1));
}

/// Descriptors of this process that `path` is open by.
fn descriptors(path: &Path) -> usize {
    let own = std::fs::read_dir("/proc/self/fd").expect("lists").filter_map(Result::ok);
    let path = path.canonicalize().expect("is there");
    own.filter(|own| std::fs::read_link(own.path()).is_ok_and(|open| open == path)).count()
}

#[test]
fn misses_are_noted_where_that_is_asked_for_up_to_a_bound_and_leave_nothing_open() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("file");
    let file = forgotten(&path);
    note_missed(&file, 1, 1);
    let (inner, outer) = noting_missed(|| {
        note_missed(&file, 2, 2);
        let ((), inner) = noting_missed(|| (0..1000).for_each(|_| note_missed(&file, 3, 3)));
        note_missed(&file, 4, 4);
        inner
    });
    assert_eq!((inner.len(), outer.len()), (64, 2));
    assert_eq!(descriptors(&path), 1 + 66, "each may be read though the reader closes its own");
    drop((inner, outer));
    let panicked = std::panic::catch_unwind(|| {
        noting_missed(|| {
            note_missed(&file, 5, 5);
            std::panic::resume_unwind(Box::new("struck forcibly"));
        })
    });
    assert!(panicked.is_err());
    note_missed(&file, 6, 6);
    assert_eq!(descriptors(&path), 1);
    assert!(noting_missed(|| ()).1.is_empty());
}
