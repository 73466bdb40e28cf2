//! Reads of a store's tables that the kernel can answer from its memory.
//!
//! Of a file system of [`crate::filesystem`], and of its local files only. While a thread asks not
//! to be made to wait, what is not in the kernel's memory, or is not open yet, is RocksDB's error
//! `Busy`; the kernel may begin to read it ahead. RocksDB caches no such answer.
//!
//! What was not there can be noted, so that [`crate::awaited_reads`] brings it into memory before
//! the read is tried again.
//!
//! Threads: what one asks for holds for itself alone.

use std::cell::RefCell;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ffi;

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

thread_local! {
    /// What is noted of files that are read past the kernel's cache; `None` while nobody notes what
    /// is missed.
    static DIRECT: RefCell<Option<Vec<MissedRead>>> = const { RefCell::new(None) };
}

/// Whether this thread notes what it misses.
pub(crate) fn notes_missed() -> bool {
    DIRECT.with_borrow(Option::is_some)
}

/// Notes `missed`. False where there is no more room.
pub(crate) fn note_direct(missed: MissedRead) -> bool {
    DIRECT.with_borrow_mut(|noted| {
        let Some(noted) = noted.as_mut().filter(|noted| noted.len() < MAX_NOTED) else { return false };
        noted.push(missed);
        true
    })
}

/// Calls `read`, in which this thread waits for no local file.
///
/// It may still wait for another thread where RocksDB opens tables when they are first read: keep
/// all of them open (`Options::set_max_open_files(-1)`).
#[inline]
pub fn without_waiting<T>(read: impl FnOnce() -> T) -> T {
    let _asked = Asked { before: set(true) };
    read()
}

struct Asked {
    before: bool,
}

impl Drop for Asked {
    #[inline]
    fn drop(&mut self) {
        set(self.before);
    }
}

#[inline]
fn set(waits_never: bool) -> bool {
    // SAFETY: it sets a variable of this thread.
    unsafe { ffi::ecotone_waits_never(waits_never) }
}

/// Calls `run`, and notes what it does not find in memory of files that are read
/// [`without_waiting`], and of those of [`note_missed`]: as many as are read at once for one client
/// with gain. Each holds a descriptor until it is dropped. Of what `run` does in such a call of its
/// own nothing is noted here.
pub fn noting_missed<T>(run: impl FnOnce() -> T) -> (T, Vec<MissedRead>) {
    let mut reads = [const { MaybeUninit::<ffi::MissedRead>::uninit() }; MAX_NOTED];
    let mut noted =
        Noted { missed: ffi::MissedReads { reads: reads.as_mut_ptr().cast(), capacity: MAX_NOTED, count: 0 } };
    // SAFETY: `noted` and `reads` stay where they are until `Noting` ends, which takes the pointer
    // back.
    let noting = Noting { before: unsafe { ffi::ecotone_notes_missed(&raw mut noted.missed) } };
    let direct = NotingDirect { before: DIRECT.replace(Some(Vec::new())) };
    let done = run();
    drop(noting);
    let mut missed = noted.take();
    missed.extend(DIRECT.take().unwrap_or_default());
    drop(direct);
    (done, missed)
}

/// Notes that `bytes` bytes of `file` at `offset` were not in memory, where [`noting_missed`] asks
/// for it.
pub fn note_missed(file: &File, offset: u64, bytes: u64) {
    // SAFETY: the descriptor is open during the call.
    unsafe { ffi::ecotone_note_missed(file.as_raw_fd(), offset, bytes) }
}

struct NotingDirect {
    before: Option<Vec<MissedRead>>,
}

impl Drop for NotingDirect {
    fn drop(&mut self) {
        DIRECT.set(self.before.take());
    }
}

struct Noting {
    before: *mut ffi::MissedReads,
}

impl Drop for Noting {
    fn drop(&mut self) {
        // SAFETY: what was noted into before lives: its call is around this one.
        unsafe { ffi::ecotone_notes_missed(self.before) };
    }
}

struct Noted {
    missed: ffi::MissedReads,
}

impl Noted {
    fn take(&mut self) -> Vec<MissedRead> {
        let count = std::mem::take(&mut self.missed.count);
        let take = |index| {
            // SAFETY: the shim has written the first `count`, and gives each descriptor to who
            // takes it.
            let ffi::MissedRead { fd, offset, len } = unsafe { ptr::read(self.missed.reads.add(index)) };
            // SAFETY: as above.
            let file = Descriptor::Own(unsafe { OwnedFd::from_raw_fd(fd) });
            MissedRead { file, offset, bytes: len, direct: None }
        };
        (0..count).map(take).collect()
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        // After a panic.
        drop(self.take());
    }
}
