//! Reads past the kernel's cache, of files of which it can keep so little that what it brings in is gone before it is asked for again.
//!
//! A thread that must not wait notes what it misses of a [`DirectFile`], as it does with what [is not in memory](crate::local_file). When
//! [`crate::awaited_reads`] has read it, it is handed to the thread for the next try ([`with_arrived`]), and goes with it. So a read costs no
//! page of the kernel's, and takes the place of none. Who may wait [reads at once](DirectFile::read).
//!
//! Bounds: those of [`noting_missed`](crate::local_file::noting_missed) and of [`crate::awaited_reads`], which counts what has arrived until it is
//! dropped.
//!
//! Failure: what a read does not bring is missed again. Where a file system offers no such reads there is no [`DirectFile`].
//!
//! Threads: what arrived is for the thread that it is handed to.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{AtFlags, OFlags, StatxFlags, statx};
use rustix::io::{Errno, preadv};

use crate::local_file::{MissedRead, note_direct, notes_missed};

/// Where reads begin and end in memory and in the file, unless the device wants it coarser.
const BLOCK_BYTES: usize = 512;

/// Devices that want their reads coarser are not read so: most of what came would be thrown away.
const MOST_ALIGNMENT_BYTES: u64 = 4096;

/// Says which bytes are the same: those of one number never change, however often they are read, and by which descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileNumber(u64);

impl FileNumber {
    /// One that nothing has.
    pub fn next() -> Self {
        static GIVEN: AtomicU64 = AtomicU64::new(0);
        Self(GIVEN.fetch_add(1, Ordering::Relaxed))
    }
}

thread_local! {
    static ARRIVED: RefCell<Vec<Arrived>> = const { RefCell::new(Vec::new()) };
}

/// A piece of memory as the device wants it.
#[derive(Clone)]
#[repr(C, align(512))]
pub(crate) struct Block([u8; BLOCK_BYTES]);

/// A file that is read past the kernel's cache.
#[derive(Debug)]
pub struct DirectFile {
    file: Arc<File>,
    number: FileNumber,
    alignment: u64,
}

/// What became of a read that does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectRead {
    /// The bytes are there.
    Arrived,
    /// They were missed, and noted.
    Noted,
    /// Nobody notes here what is missed, or no more of it: they are to be read in another way.
    Refused,
}

impl DirectFile {
    /// The file at `path`, whose bytes have `number`; `None` where its file system cannot read it so.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    pub fn open(path: &Path, number: FileNumber) -> io::Result<Option<Self>> {
        let opened = OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path);
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(None),
            opened => opened?,
        };
        // Where nobody may ask (an old kernel, a filter of system calls) it is not known how to read so.
        let Ok(told) = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else { return Ok(None) };
        let alignment = u64::from(told.stx_dio_offset_align);
        let fits = told.stx_mask & StatxFlags::DIOALIGN.bits() != 0
            && (1..=MOST_ALIGNMENT_BYTES).contains(&alignment)
            && alignment.is_power_of_two()
            && told.stx_dio_mem_align as usize <= BLOCK_BYTES;
        Ok(fits.then(|| Self { file: Arc::new(file), number, alignment: alignment.max(BLOCK_BYTES as u64) }))
    }

    /// Reads `into.len()` bytes at `offset`, if they have arrived.
    pub fn read_at_once(&self, offset: u64, into: &mut [u8]) -> DirectRead {
        let has_arrived = ARRIVED.with_borrow(|all| all.iter().any(|one| one.copy(self.number, offset, into)));
        if has_arrived {
            return DirectRead::Arrived;
        }
        let (true, Some((begin, bytes))) = (notes_missed(), self.around(offset, into.len())) else {
            return DirectRead::Refused;
        };
        let missed = MissedRead::direct(self.file.clone(), begin, bytes, self.number);
        if note_direct(missed) { DirectRead::Noted } else { DirectRead::Refused }
    }

    /// Reads `into.len()` bytes at `offset`, and waits for the device.
    ///
    /// # Errors
    ///
    /// The device's, and [`io::ErrorKind::UnexpectedEof`] where the file ends before.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let (begin, bytes) = self.around(offset, into.len()).ok_or(io::ErrorKind::InvalidInput)?;
        let mut blocks = blocks(bytes);
        let mut slices: Vec<_> = blocks.iter_mut().map(|block| IoSliceMut::new(&mut block.0)).collect();
        let read = loop {
            match preadv(&*self.file, &mut slices, begin) {
                Err(Errno::INTR) => (),
                read => break read?,
            }
        };
        let skip = (offset - begin) as usize;
        if read < skip + into.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        copy_from(&blocks, skip, into);
        Ok(())
    }

    /// Where a read of so many bytes at `offset` begins and how much it brings.
    fn around(&self, offset: u64, bytes: usize) -> Option<(u64, u64)> {
        let begin = offset - offset % self.alignment;
        let end = offset.checked_add(bytes as u64)?.checked_next_multiple_of(self.alignment)?;
        Some((begin, end - begin))
    }
}

/// Bytes of a [`DirectFile`] that were read.
pub struct Arrived {
    number: FileNumber,
    offset: u64,
    blocks: Vec<Block>,
    /// Of these so many.
    bytes: usize,
    _held: Held,
}

/// Bytes of memory that count until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl Held {
    pub(crate) fn new(bytes: usize, all: &Arc<AtomicUsize>) -> Self {
        all.fetch_add(bytes, Ordering::Relaxed);
        Self { bytes, all: all.clone() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Arrived {
    pub(crate) fn new(number: FileNumber, offset: u64, blocks: Vec<Block>, bytes: usize, held: Held) -> Self {
        Self { number, offset, blocks, bytes, _held: held }
    }

    /// Copies what lies at `offset` of file `number`; false where that is not here whole.
    fn copy(&self, number: FileNumber, offset: u64, into: &mut [u8]) -> bool {
        let skip = offset.checked_sub(self.offset).and_then(|skip| usize::try_from(skip).ok());
        let Some(skip) = skip.filter(|skip| number == self.number && skip.saturating_add(into.len()) <= self.bytes)
        else {
            return false;
        };
        copy_from(&self.blocks, skip, into);
        true
    }
}

/// Copies what lies behind the first `skip` bytes of `blocks`, which have all of it.
fn copy_from(blocks: &[Block], skip: usize, into: &mut [u8]) {
    let (mut block, mut from, mut rest) = (skip / BLOCK_BYTES, skip % BLOCK_BYTES, into);
    while !rest.is_empty() {
        let bytes = (BLOCK_BYTES - from).min(rest.len());
        let (now, later) = rest.split_at_mut(bytes);
        now.copy_from_slice(&blocks[block].0[from..from + bytes]);
        (block, from, rest) = (block + 1, 0, later);
    }
}

impl std::fmt::Debug for Arrived {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrived").field("offset", &self.offset).field("bytes", &self.bytes).finish()
    }
}

/// Memory for a read of so many bytes.
pub(crate) fn blocks(bytes: u64) -> Vec<Block> {
    vec![Block([0; BLOCK_BYTES]); bytes.div_ceil(BLOCK_BYTES as u64) as usize]
}

/// Whether a read past the kernel's cache may be of use to this thread: it notes what it misses, or something has arrived for it.
pub fn are_of_use() -> bool {
    notes_missed() || ARRIVED.with_borrow(|all| !all.is_empty())
}

/// Calls `run`, in which this thread finds what has `arrived`.
pub fn with_arrived<T>(arrived: &mut Vec<Arrived>, run: impl FnOnce() -> T) -> T {
    struct Handed<'a> {
        arrived: &'a mut Vec<Arrived>,
        before: Vec<Arrived>,
    }
    impl Drop for Handed<'_> {
        fn drop(&mut self) {
            *self.arrived = ARRIVED.replace(std::mem::take(&mut self.before));
        }
    }
    let before = ARRIVED.replace(std::mem::take(arrived));
    let _handed = Handed { arrived, before };
    run()
}
