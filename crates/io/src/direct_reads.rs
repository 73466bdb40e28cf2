//! Reads past the kernel's cache, of files of which it can keep so little that what it brings in is
//! gone before it is asked for again.
//!
//! A thread that must not wait notes what it misses of a [`DirectFile`], as it does with what
//! [is not in memory](crate::missed_reads). When [`crate::awaited_reads`] has read it, it is handed
//! to the thread for the next try ([`with_arrived`]), and goes with it. So a read costs no page of
//! the kernel's, and takes the place of none. Who may wait [reads at once](DirectFile::read).
//!
//! Bounds: those of [`noting_missed`](crate::missed_reads::noting_missed) and of
//! [`crate::awaited_reads`], which counts what has arrived until it is dropped. Of memory that is
//! done with [`MAX_SPARE`] pieces of [`SPARE_BYTES`] are kept for each of those, and for each
//! thread that waits one as large as its longest read.
//!
//! Failure: what a read does not bring is missed again. Where a file system offers no such reads
//! there is no [`DirectFile`].
//!
//! Threads: what arrived stays with the thread that it was read for.

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use rustix::fs::{AtFlags, OFlags, StatxFlags, statx};
use rustix::io::{Errno, pread};

pub use crate::missed_reads::FileNumber;
use crate::missed_reads::{MissedRead, note_direct, notes_missed};

/// Where reads begin and end in memory and in the file, unless the device wants it coarser.
const BLOCK_BYTES: usize = 512;

/// Devices that want their reads coarser are not read so: most of what came would be thrown away.
const MAX_ALIGNMENT_BYTES: u64 = 4096;

/// Memory of this size serves read after read: that of most values of which the kernel's cache
/// would hold a whole page.
const SPARE_BYTES: usize = 4096;

/// So much of it is kept: as one client's reads take, or those of several.
const MAX_SPARE: usize = 64;

thread_local! {
    static ARRIVED: RefCell<Vec<Arrived>> = const { RefCell::new(Vec::new()) };
    /// For reads that this thread waits for: as large as the longest of them.
    static SCRATCH: RefCell<Buffer> = RefCell::default();
}

/// Memory that begins where the device wants it to.
#[derive(Default)]
struct Buffer {
    bytes: Box<[u8]>,
    /// Which of them are used.
    range: Range<usize>,
}

impl Buffer {
    fn of(bytes: usize) -> Self {
        let all = vec![0; bytes + BLOCK_BYTES - 1].into_boxed_slice();
        let skip = all.as_ptr().addr().wrapping_neg() % BLOCK_BYTES;
        Self { bytes: all, range: skip..skip + bytes }
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.range.clone()]
    }
}

/// What reads that nobody waits for bring: counted from the begin of each until it is dropped.
#[derive(Default)]
pub(crate) struct Memory {
    held_bytes: Cell<usize>,
    spare: RefCell<Vec<Buffer>>,
}

impl Memory {
    /// Bytes that reads hold now.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes.get()
    }

    /// What a read of so many bytes holds.
    pub(crate) fn held_by(bytes: usize) -> usize {
        bytes.max(SPARE_BYTES)
    }

    /// Takes memory for a read of so many bytes.
    pub(crate) fn hold(self: &Rc<Self>, bytes: usize) -> Held {
        let bytes = Self::held_by(bytes);
        let spare = if bytes == SPARE_BYTES { self.spare.borrow_mut().pop() } else { None };
        let buffer = spare.unwrap_or_else(|| Buffer::of(bytes));
        self.held_bytes.set(self.held_bytes.get() + bytes);
        Held { buffer, memory: self.clone() }
    }
}

/// Memory of one read.
pub(crate) struct Held {
    buffer: Buffer,
    memory: Rc<Memory>,
}

impl Held {
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        self.buffer.as_mut_slice()
    }

    /// Never frees it: the kernel may still write there.
    pub(crate) fn leak(mut self) {
        std::mem::forget(std::mem::take(&mut self.buffer));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Memory { held_bytes, spare } = &*self.memory;
        let bytes = self.buffer.range.len();
        held_bytes.set(held_bytes.get() - bytes);
        let mut spare = spare.borrow_mut();
        if bytes == SPARE_BYTES && spare.len() < MAX_SPARE {
            spare.push(std::mem::take(&mut self.buffer));
        }
    }
}

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
    /// The file at `path`, whose bytes have `number`; `None` where its file system cannot read it
    /// so.
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
        // Where nobody may ask (an old kernel, a filter of system calls) it is not known how to
        // read so.
        let Ok(told) = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else { return Ok(None) };
        let alignment = u64::from(told.stx_dio_offset_align);
        let fits = told.stx_mask & StatxFlags::DIOALIGN.bits() != 0
            && (1..=MAX_ALIGNMENT_BYTES).contains(&alignment)
            && alignment.is_power_of_two()
            && told.stx_dio_mem_align as usize <= BLOCK_BYTES;
        Ok(fits.then(|| Self { file: Arc::new(file), number, alignment: alignment.max(BLOCK_BYTES as u64) }))
    }

    /// Reads `into.len()` bytes at `offset`, if they have arrived.
    pub fn try_read(&self, offset: u64, into: &mut [u8]) -> DirectRead {
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
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        SCRATCH.with_borrow_mut(|scratch| {
            if scratch.range.len() < bytes {
                *scratch = Buffer::of(bytes);
            }
            let read = loop {
                match pread(&*self.file, &mut scratch.as_mut_slice()[..bytes], begin) {
                    Err(Errno::INTR) => (),
                    read => break read?,
                }
            };
            let skip = (offset - begin) as usize;
            let found = scratch.as_slice()[..read].get(skip..skip + into.len());
            into.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
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
    held: Held,
    /// Of what is held so many were read.
    bytes: usize,
}

impl Arrived {
    pub(crate) fn new(number: FileNumber, offset: u64, held: Held, bytes: usize) -> Self {
        Self { number, offset, held, bytes }
    }

    /// Copies what lies at `offset` of file `number`; false where that is not here whole.
    fn copy(&self, number: FileNumber, offset: u64, into: &mut [u8]) -> bool {
        let skip = offset.checked_sub(self.offset).and_then(|skip| usize::try_from(skip).ok());
        let found = skip.filter(|_| number == self.number).and_then(|skip| {
            let end = skip.checked_add(into.len()).filter(|end| *end <= self.bytes)?;
            self.held.buffer.as_slice().get(skip..end)
        });
        found.is_some_and(|found| {
            into.copy_from_slice(found);
            true
        })
    }
}

impl std::fmt::Debug for Arrived {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrived").field("offset", &self.offset).field("bytes", &self.bytes).finish()
    }
}

/// Whether a read past the kernel's cache may be of use to this thread: it notes what it misses, or
/// something has arrived for it.
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
