//! Opens perf events in the kernel.
#![allow(unsafe_code)] // libc has no safe form of this system call.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use super::perf::{EventCounter, EventSource, PowerEvent};

/// The kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelEvents;

/// `struct perf_event_attr` in its first version (`PERF_ATTR_SIZE_VER0`), which every kernel takes.
#[repr(C)]
#[derive(Debug, Default)]
struct Attributes {
    source: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

const SIZE: u32 = size_of::<Attributes>() as u32;
const _: () = assert!(SIZE == 64);

/// The file descriptor is closed in programs that this process runs.
const CLOSE_ON_EXEC: libc::c_ulong = 8;

impl EventSource for KernelEvents {
    fn open(&self, event: PowerEvent) -> io::Result<Box<dyn EventCounter>> {
        let attributes = Attributes { source: event.source, size: SIZE, config: event.config, ..Attributes::default() };
        let cpu = libc::c_int::try_from(event.cpu).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (every_process, no_group): (libc::pid_t, libc::c_int) = (-1, -1);
        // SAFETY: `attributes` is valid for reads of the size that it says, and the kernel keeps no
        // pointer to it; the other arguments are numbers.
        let opened = unsafe {
            libc::syscall(libc::SYS_perf_event_open, &raw const attributes, every_process, cpu, no_group, CLOSE_ON_EXEC)
        };
        if opened < 0 {
            return Err(io::Error::last_os_error());
        }
        let opened = RawFd::try_from(opened).map_err(|_| io::ErrorKind::InvalidData)?;
        // SAFETY: the call has just made this descriptor, and nobody else has it.
        Ok(Box::new(Opened(File::from(unsafe { OwnedFd::from_raw_fd(opened) }))))
    }
}

struct Opened(File);

impl EventCounter for Opened {
    fn count(&mut self) -> io::Result<u64> {
        let mut count = [0; 8];
        self.0.read_exact(&mut count)?;
        Ok(u64::from_ne_bytes(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of a test may not allow it; then it is refused, and nothing worse.
    #[test]
    fn the_kernel_counts_or_refuses() {
        // The clock of a processor (PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK), which every kernel has.
        match KernelEvents.open(PowerEvent { source: 1, config: 0, cpu: 0 }) {
            Ok(mut counter) => {
                let first = counter.count().unwrap();
                assert!(counter.count().unwrap() >= first);
            }
            Err(error) => eprintln!("SKIPPED: no perf events here: {error}"),
        }
        assert!(KernelEvents.open(PowerEvent { source: u32::MAX, config: 0, cpu: 0 }).is_err());
        assert!(KernelEvents.open(PowerEvent { source: 1, config: 0, cpu: u32::MAX }).is_err());
    }
}
