//! Which cores a thread may run on.
#![allow(unsafe_code)] // libc has no safe form of these two calls.

use std::io;

/// The most cores that a set has: those of glibc's `cpu_set_t`.
const MAX_CORES: u32 = libc::CPU_SETSIZE as u32;

fn checked(outcome: libc::c_int) -> io::Result<()> {
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn empty_set() -> libc::cpu_set_t {
    // SAFETY: a set of cores is an array of integers, of which all bits 0 is a valid one.
    unsafe { std::mem::zeroed() }
}

/// The cores that the calling thread may run on.
pub(crate) fn allowed_cores() -> io::Result<Vec<u32>> {
    let mut set = empty_set();
    // SAFETY: `set` is valid for writes of the size that is given; 0 is the calling thread.
    checked(unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) })?;
    // SAFETY: the core is below the size of the set.
    Ok((0..MAX_CORES).filter(|core| unsafe { libc::CPU_ISSET(*core as usize, &set) }).collect())
}

/// Has a thread of this process run on these cores only.
pub(crate) fn bind_thread(thread: u32, cores: &[u32]) -> io::Result<()> {
    let mut set = empty_set();
    for core in cores.iter().filter(|core| **core < MAX_CORES) {
        // SAFETY: the core is below the size of the set.
        unsafe { libc::CPU_SET(*core as usize, &mut set) };
    }
    let thread = libc::pid_t::try_from(thread).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: `set` is valid for reads of the size that is given; a thread that is not there gives
    // ESRCH.
    checked(unsafe { libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &raw const set) })
}
