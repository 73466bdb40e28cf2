//! Reads of a file through memory: a copy out of the kernel's page cache instead of a call.
//!
//! For many short reads of a file that does not change any more. The pages that were read count as
//! resident memory of the process until the drop, though the kernel can take them back at any time.
//!
//! Failure: as of [`crate::mapped_file`]: a page that the kernel cannot give makes an error of the
//! read, and of all that follow.
//!
//! Threads: any number may read.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use crate::ffi;

/// A file in memory.
#[derive(Debug)]
pub struct MappedReads(NonNull<ffi::MappedReads>);

// SAFETY: the C++ object is bound to no thread.
unsafe impl Send for MappedReads {}
// SAFETY: reads change nothing but a flag that is atomic.
unsafe impl Sync for MappedReads {}

impl MappedReads {
    /// The first `len` bytes of `file`, which may be closed then. `None` where it cannot be had:
    /// empty, or too many at a time.
    #[must_use]
    pub fn new(file: &File, len: u64) -> Option<Self> {
        // SAFETY: the descriptor is open during the call.
        NonNull::new(unsafe { ffi::ecotone_mapped_reads_new(file.as_raw_fd(), len) }).map(Self)
    }

    /// Reads `into.len()` bytes at `offset`.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` where the file ends before, those of a read else. What `into` holds means
    /// nothing then.
    pub fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        // SAFETY: the object lives, and `into` is as long as it says.
        let errno = unsafe { ffi::ecotone_mapped_reads_copy(self.0.as_ptr(), offset, into.as_mut_ptr(), into.len()) };
        match errno {
            0 => Ok(()),
            OUT_OF_RANGE => Err(io::ErrorKind::UnexpectedEof.into()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// ERANGE, of Linux on every machine.
const OUT_OF_RANGE: i32 = 34;

impl Drop for MappedReads {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and not used again.
        unsafe { ffi::ecotone_mapped_reads_free(self.0.as_ptr()) }
    }
}
