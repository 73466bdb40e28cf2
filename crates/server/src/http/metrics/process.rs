//! The process, under the names that Prometheus' own clients give. What Linux does not count is
//! left out.

use std::fs::read_to_string;

use super::page::Page;
use crate::monitor::ServerSample;
use crate::open_files;

/// Linux counts the time of processes in these, on all machines that this runs on (`USER_HZ`).
const TICKS_PER_S: f64 = 100.0;

pub(super) fn write(page: &mut Page, sample: Option<&ServerSample>) {
    let stat = read_to_string("/proc/self/stat").ok();
    // The name, in parentheses, may hold anything; behind it comes field 3. See proc_pid_stat(5):
    // utime 14, stime 15, starttime 22.
    let behind = stat.as_deref().and_then(|stat| stat.rsplit_once(')')).map(|(_, behind)| behind);
    let field = |number: usize| behind?.split_whitespace().nth(number - 3)?.parse::<f64>().ok();
    let cpu_s = field(14).zip(field(15)).map(|(user, system)| (user + system) / TICKS_PER_S);
    page.counter("process_cpu_seconds_total", "Processor time, in the program and in the system for it.", cpu_s);
    let booted_s = read_to_string("/proc/stat").ok().and_then(|stat| number(&stat, "btime"));
    page.gauge(
        "process_start_time_seconds",
        "When the process began, in seconds since 1970.",
        booted_s.zip(field(22)).map(|(booted_s, ticks)| booted_s as f64 + ticks / TICKS_PER_S),
    );
    let status = read_to_string("/proc/self/status").unwrap_or_default();
    let bytes = |name: &str| number(&status, name).map(|kib| kib * 1024);
    page.gauge(
        "process_resident_memory_bytes",
        "Bytes in memory, mapped segments included, which the kernel can take back.",
        bytes("VmRSS:"),
    );
    page.gauge("process_virtual_memory_bytes", "Bytes of address space.", bytes("VmSize:"));
    page.gauge("process_threads", "Threads.", number(&status, "Threads:"));
    let open = open_files::counted_by_kernel().or_else(|| sample.and_then(|sample| sample.open_files));
    page.gauge("process_open_fds", "File descriptors in use.", open);
    let limits = read_to_string("/proc/self/limits").unwrap_or_default();
    page.gauge("process_max_fds", "File descriptors there may be.", number(&limits, "Max open files"));
    let io = read_to_string("/proc/self/io").unwrap_or_default();
    page.counter(
        "process_device_written_bytes_total",
        "Bytes written to the device by the kernel's count, jobs of other servers included; by ecotone_store_written_bytes_total it is \
         the write amplification. 0 where files lie in memory.",
        number(&io, "write_bytes:"),
    );
    page.counter(
        "process_device_read_bytes_total",
        "Bytes read from the device by the kernel's count.",
        number(&io, "read_bytes:"),
    );
}

/// The number behind `name` at the begin of a line.
fn number(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}
