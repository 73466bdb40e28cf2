//! The CPU clocks of threads and of the process, and the kernel's id of a thread. The crate's only
//! unsafe code.
//!
//! A [`ThreadClock`] can be read from any thread of the process. Reading it after its thread ended
//! gives an error, not memory unsafety: the clock is named by a number, not by an address.
#![allow(unsafe_code)] // libc has no safe form of these four calls.

use std::io;
use std::mem::MaybeUninit;

/// The CPU clock of one thread, readable from every thread of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    /// The calling thread's clock.
    pub(crate) fn of_this_thread() -> io::Result<Self> {
        let mut id = MaybeUninit::<libc::clockid_t>::uninit();
        // SAFETY: pthread_self() is the calling thread, which is alive; `id` is valid for one
        // write.
        let rc = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), id.as_mut_ptr()) };
        if rc != 0 {
            return Err(io::Error::from_raw_os_error(rc));
        }
        // SAFETY: the call returned 0, so it wrote `id`.
        Ok(Self(unsafe { id.assume_init() }))
    }

    /// Nanoseconds of CPU time of this clock's thread since it began.
    ///
    /// # Errors
    /// If the thread has ended.
    pub(crate) fn cpu_ns(self) -> io::Result<u64> {
        read_ns(self.0)
    }
}

/// Nanoseconds of CPU time of the calling thread since it began.
pub(crate) fn this_thread_cpu_ns() -> io::Result<u64> {
    read_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Nanoseconds of CPU time of all threads of this process, ended ones included, since it began.
pub(crate) fn process_cpu_ns() -> io::Result<u64> {
    read_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// The kernel's id of the calling thread.
pub fn this_thread_id() -> u32 {
    // SAFETY: gettid takes no arguments and always succeeds.
    let tid = unsafe { libc::gettid() };
    tid.unsigned_abs()
}

fn read_ns(clock: libc::clockid_t) -> io::Result<u64> {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `time` is valid for one write of a timespec; any clock id is allowed, an unknown one
    // gives EINVAL.
    let rc = unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call returned 0, so it wrote `time`.
    let time = unsafe { time.assume_init() };
    // CPU clocks begin at 0 and never run backwards, so neither part is negative.
    Ok(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}
