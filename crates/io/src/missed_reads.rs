//! What a thread that does not wait did not find in the kernel's memory: noted, so that
//! [`crate::awaited_reads`] brings it there before the read is tried again.
//!
//! Bounds: of each kind of file as many as are read at once for one client with gain; further ones
//! are dropped, and met again by the next try.
//!
//! Failure: where a descriptor cannot be had, the read is not noted.
//!
//! Threads: what one notes it notes for itself alone.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many misses are noted at a time: as many as are read at once for one client with gain.
const MAX_NOTED: usize = 64;

/// Says which bytes are the same: those of one number never change, however often they are read,
/// and by which descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileNumber(u64);

impl FileNumber {
    /// One that nothing has.
    pub fn next() -> Self {
        static GIVEN: AtomicU64 = AtomicU64::new(0);
        Self(GIVEN.fetch_add(1, Ordering::Relaxed))
    }
}

/// Bytes of a file that were not in memory.
#[derive(Debug)]
pub struct MissedRead {
    file: Descriptor,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Where they are to be read past the kernel's cache: the number of the
    /// [file](crate::direct_reads).
    pub(crate) direct: Option<FileNumber>,
}

#[derive(Debug)]
enum Descriptor {
    Own(OwnedFd),
    Shared(Arc<File>),
}

impl MissedRead {
    pub(crate) fn direct(file: Arc<File>, offset: u64, bytes: u64, number: FileNumber) -> Self {
        Self { file: Descriptor::Shared(file), offset, bytes, direct: Some(number) }
    }
}

impl AsRawFd for MissedRead {
    fn as_raw_fd(&self) -> RawFd {
        match &self.file {
            Descriptor::Own(file) => file.as_raw_fd(),
            Descriptor::Shared(file) => file.as_raw_fd(),
        }
    }
}

/// What is noted of one thread.
#[derive(Default)]
struct Noted {
    cached: Vec<MissedRead>,
    /// Of files that are read past the kernel's cache.
    direct: Vec<MissedRead>,
}

thread_local! {
    /// `None` while nobody notes what is missed.
    static NOTED: RefCell<Option<Noted>> = const { RefCell::new(None) };
}

/// Whether this thread notes what it misses.
pub(crate) fn notes_missed() -> bool {
    NOTED.with_borrow(Option::is_some)
}

/// Notes `missed`. False where there is no more room.
pub(crate) fn note_direct(missed: MissedRead) -> bool {
    NOTED.with_borrow_mut(|noted| {
        let Some(noted) = noted.as_mut().filter(|noted| noted.direct.len() < MAX_NOTED) else { return false };
        noted.direct.push(missed);
        true
    })
}

/// Calls `run`, and notes what it does not find in memory: of RocksDB's files that are read without
/// waiting, of those of [`note_missed`], and of [direct ones](crate::direct_reads). Each holds a
/// descriptor until it is dropped. Of what `run` does in such a call of its own nothing is noted
/// here.
pub fn noting_missed<T>(run: impl FnOnce() -> T) -> (T, Vec<MissedRead>) {
    let noting = Noting { before: NOTED.replace(Some(Noted::default())) };
    let done = run();
    let Noted { mut cached, direct } = NOTED.take().unwrap_or_default();
    drop(noting);
    cached.extend(direct);
    (done, cached)
}

/// Notes that `bytes` bytes of `file` at `offset` were not in memory, where [`noting_missed`] asks
/// for it. The file may be closed then: what is noted has a descriptor of its own.
pub fn note_missed(file: impl AsFd, offset: u64, bytes: u64) {
    NOTED.with_borrow_mut(|noted| {
        let Some(noted) = noted.as_mut().filter(|noted| noted.cached.len() < MAX_NOTED) else { return };
        if let Ok(own) = file.as_fd().try_clone_to_owned() {
            noted.cached.push(MissedRead { file: Descriptor::Own(own), offset, bytes, direct: None });
        }
    });
}

/// Also after a panic.
struct Noting {
    before: Option<Noted>,
}

impl Drop for Noting {
    fn drop(&mut self) {
        NOTED.set(self.before.take());
    }
}
