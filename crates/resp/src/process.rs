//! What Linux tells of this process. Where it does not, it is 0 or nothing.

use std::fs::read_to_string;

/// Bytes in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ProcessMemory {
    /// Of this process, now.
    pub resident_bytes: u64,
    /// The most that it had.
    pub peak_bytes: u64,
    /// Of the machine.
    pub system_bytes: u64,
}

pub(crate) fn memory() -> ProcessMemory {
    let status = read_to_string("/proc/self/status").unwrap_or_default();
    let machine = read_to_string("/proc/meminfo").unwrap_or_default();
    let resident_bytes = kilobytes(&status, "VmRSS:");
    ProcessMemory {
        resident_bytes,
        // The two are not written at the same instant.
        peak_bytes: kilobytes(&status, "VmHWM:").max(resident_bytes),
        system_bytes: kilobytes(&machine, "MemTotal:"),
    }
}

/// The bytes that the line beginning with `name` tells in kB.
fn kilobytes(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    let number = value.and_then(|value| value.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    number.unwrap_or(0) * 1024
}

/// Linux counts the time of processes in these, on all machines that this runs on (`USER_HZ`).
const TICKS_PER_S: f64 = 100.0;

/// Seconds of the processor, in the program and in the system for it.
pub(crate) fn cpu_s() -> Option<(f64, f64)> {
    let stat = read_to_string("/proc/self/stat").ok()?;
    // The name, in parentheses, may hold anything; behind it comes field 3. See proc_pid_stat(5):
    // utime is 14, stime 15.
    let (_, behind) = stat.rsplit_once(')')?;
    let mut fields = behind.split_whitespace().skip(14 - 3).map(str::parse::<f64>);
    Some((fields.next()?.ok()? / TICKS_PER_S, fields.next()?.ok()? / TICKS_PER_S))
}

/// As `uname -srm` tells it.
pub(crate) fn system() -> String {
    let release = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {} {}", release.trim(), std::env::consts::ARCH)
}
