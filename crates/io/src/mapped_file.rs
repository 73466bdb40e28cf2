//! Appends to a file through a window of it that is mapped into memory.
//!
//! To append is a copy into the kernel's page cache then, without a call of the kernel: what was
//! appended survives a kill of the process as if it had been written. The window, 256 KiB, is
//! reserved before it is used, so that a full device is an error of an append and nothing else.
//! Long appends, and all where the file system does not reserve for certain, are calls.
//!
//! While it is appended to, the file is longer than what was appended, and ends in zeros: until
//! [`MappedFile::trim`], or the drop. Who finds a file whose process was killed finds the zeros,
//! and must take them for nothing.
//!
//! Failure: a page that the kernel cannot give (the device has failed, the file was cut by somebody
//! else) raises SIGBUS. With the first file a handler for it is installed, which makes an error of
//! the append from it; SIGBUS of other memory go to the handler before it.
//!
//! Threads: one appends; others may read and sync the file meanwhile, but not beyond what was
//! appended.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::ffi;

/// Parts of one append.
pub const MAX_PARTS: usize = 4;

/// A file that is being appended to. Trimmed when dropped.
#[derive(Debug)]
pub struct MappedFile {
    raw: NonNull<ffi::MappedFile>,
    len: u64,
    /// Stays open as long as `raw` uses it.
    _file: Arc<File>,
}

// SAFETY: the C++ object is bound to no thread.
unsafe impl Send for MappedFile {}
// SAFETY: a shared reference gives the length only, which is Rust's.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Appends to `file`, which is open for reading and writing, behind its first `len` bytes; what
    /// lies behind these is lost. The file is expected to end at `limit`, and may grow beyond:
    /// where that is near, all appends are calls. With `touches_ahead` pages are made ready ahead
    /// of fast appends, which saves a fault for each; a sync writes them then, so not where syncs
    /// are frequent.
    ///
    /// # Errors
    ///
    /// `OutOfMemory`.
    pub fn new(file: Arc<File>, len: u64, limit: u64, touches_ahead: bool) -> io::Result<Self> {
        // SAFETY: the descriptor stays open, since the file is kept.
        let raw = unsafe { ffi::ecotone_mapped_file_new(file.as_raw_fd(), len, limit, touches_ahead) };
        Ok(Self { raw: NonNull::new(raw).ok_or(io::ErrorKind::OutOfMemory)?, len, _file: file })
    }

    /// Appends at most [`MAX_PARTS`] `parts`, one behind the other, and returns where they begin.
    ///
    /// # Errors
    ///
    /// Those of a write, `InvalidInput` where there are more parts. Nothing was appended: the next
    /// call writes over what this one left.
    pub fn append(&mut self, parts: &[&[u8]]) -> io::Result<u64> {
        let mut borrowed = [ffi::Part::borrow(&[]); MAX_PARTS];
        if parts.len() > MAX_PARTS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more parts than an append may have"));
        }
        for (borrowed, part) in borrowed.iter_mut().zip(parts) {
            *borrowed = ffi::Part::borrow(part);
        }
        // SAFETY: the object lives, nobody else uses it during the call, and the parts live through
        // it.
        done(unsafe { ffi::ecotone_mapped_file_append(self.raw.as_ptr(), borrowed.as_ptr(), parts.len()) })?;
        let begin = self.len;
        self.len += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        Ok(begin)
    }

    /// Forgets what was appended from `len` on: the next call writes over it.
    pub fn take_back(&mut self, len: u64) {
        let len = len.min(self.len);
        // SAFETY: the object lives, and nobody else uses it during the call.
        unsafe { ffi::ecotone_mapped_file_take_back(self.raw.as_ptr(), len) }
        self.len = len;
    }

    /// Cuts the file off behind what was appended. Appending may go on.
    ///
    /// # Errors
    ///
    /// Those of a truncation. Zeros follow what was appended then.
    pub fn trim(&mut self) -> io::Result<()> {
        // SAFETY: the object lives, and nobody else uses it during the call.
        done(unsafe { ffi::ecotone_mapped_file_trim(self.raw.as_ptr()) })
    }

    /// Bytes that the file holds.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and not used again.
        unsafe { ffi::ecotone_mapped_file_free(self.raw.as_ptr()) }
    }
}

/// Whether it is known of the file's file system that what it has reserved can be written later.
#[must_use]
pub fn reserves_for_certain(file: &File) -> bool {
    // SAFETY: the descriptor is open during the call.
    unsafe { ffi::ecotone_reserves_for_certain(file.as_raw_fd()) }
}

fn done(errno: i32) -> io::Result<()> {
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}
