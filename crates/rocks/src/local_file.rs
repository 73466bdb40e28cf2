//! Reads of a store's tables that the kernel can answer from its memory.
//!
//! Of a file system of [`crate::filesystem`], and of its local files only. While a thread asks not
//! to be made to wait, what is not in the kernel's memory, or is not open yet, is RocksDB's error
//! `Busy`; the kernel may begin to read it ahead. RocksDB caches no such answer.
//!
//! What was not there is [noted](ecotone_io::missed_reads), where somebody asks for that.
//!
//! Threads: what one asks for holds for itself alone.

use std::os::fd::{BorrowedFd, RawFd};

use ecotone_io::missed_reads;

use crate::ffi;

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

/// For C++: see `cpp/shim.h`.
#[unsafe(no_mangle)]
extern "C" fn ecotone_note_missed(fd: RawFd, offset: u64, bytes: u64) {
    // SAFETY: C++ calls with a descriptor that is open during the call.
    missed_reads::note_missed(unsafe { BorrowedFd::borrow_raw(fd) }, offset, bytes);
}
