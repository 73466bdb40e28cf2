//! What the kernel has of a file in its memory and not yet on the device: what a test of durability
//! can believe that did not write the code which says that it synced.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `cachestat(2)`, since Linux 6.5: its number on x86-64, ARM64 and RISC-V.
const CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range`.
#[repr(C)]
struct Range {
    offset: u64,
    bytes: u64,
}

/// `struct cachestat`, in pages.
#[repr(C)]
#[derive(Default)]
struct Pages {
    cached: u64,
    dirty: u64,
    in_writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// How many pages of the first `bytes` bytes of `file`, at least one, would be lost with the power:
/// those that are dirty, or on their way.
///
/// # Errors
///
/// Those of the kernel: [`Unsupported`](io::ErrorKind::Unsupported) where it is older than Linux
/// 6.5, or the file's system keeps no pages.
pub fn unwritten_pages(file: &File, bytes: u64) -> io::Result<u64> {
    // A length of 0 would mean the whole file.
    let range = Range { offset: 0, bytes: bytes.max(1) };
    let mut pages = Pages::default();
    let flags: libc::c_int = 0;
    // SAFETY: the descriptor is open, and both structs are those that the kernel reads and writes,
    // alive during the call.
    let outcome = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut pages, flags) };
    if outcome == 0 { Ok(pages.dirty + pages.in_writeback) } else { Err(io::Error::last_os_error()) }
}
