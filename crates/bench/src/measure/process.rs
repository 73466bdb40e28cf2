//! What this process has used, as the kernel counts it.
//!
//! Where a counter is not to be had, the reason is given instead: a benchmark never reports a zero
//! that is a guess.

use std::collections::BTreeMap;
use std::fs;

/// A figure, or the reason why there is none.
pub type Measured<T> = Result<T, String>;

/// Why figures are missing, by the name of the figure.
#[derive(Default)]
pub(crate) struct Reasons(pub(crate) BTreeMap<String, String>);

impl Reasons {
    pub(crate) fn keep<T>(&mut self, figure: &str, measured: Measured<T>) -> Option<T> {
        measured.map_err(|reason| self.0.insert(figure.to_owned(), reason)).ok()
    }
}

/// Write amplification: bytes to the device by bytes of the user.
pub(crate) fn war(bytes_device: Option<u64>, bytes_user: u64) -> Measured<f64> {
    let written = bytes_device.ok_or("there is no bytes_device")?;
    if bytes_user == 0 {
        return Err("the workload wrote nothing".into());
    }
    Ok(written as f64 / bytes_user as f64)
}

/// What this process has used since it began.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessUsage {
    /// Processor time of all threads, user and system, in seconds (`getrusage`). RocksDB's
    /// background threads are in it.
    pub cpu_seconds: f64,
    /// Bytes that this process caused to be written to storage (`write_bytes` of `/proc/self/io`).
    ///
    /// The kernel counts a page when it becomes dirty in the page cache, not when it is written
    /// back. So a page that is changed twice before it is written counts once; a file that is
    /// deleted before it is written back counts though it never reached the device; what file
    /// system metadata and journal cost is not in it; on a file system in memory it stays 0.
    pub bytes_device: Measured<u64>,
    /// The most memory the process held at once since [`reset_rss_peak`], in bytes (`VmHWM` of
    /// `/proc/self/status`).
    pub rss_max_bytes: Measured<u64>,
}

impl ProcessUsage {
    /// Reads the counters now.
    pub fn now() -> Self {
        Self {
            cpu_seconds: cpu_seconds(),
            bytes_device: field("/proc/self/io", "write_bytes:"),
            // The kernel writes kB and means KiB.
            rss_max_bytes: field("/proc/self/status", "VmHWM:").map(|kib| kib * 1024),
        }
    }

    /// The bytes that went to storage from this moment to `end`, while the user wrote `bytes_user`.
    /// A counter that stands still meanwhile says nothing: then there is a reason and no zero.
    pub fn bytes_device_until(&self, end: &ProcessUsage, bytes_user: u64) -> Measured<u64> {
        let written = end.bytes_device.clone()?.saturating_sub(self.bytes_device.clone()?);
        if written == 0 && bytes_user > 0 {
            return Err(
                "the kernel counted no byte to a device: the directory seems to be on a file system in memory".into()
            );
        }
        Ok(written)
    }
}

/// Makes the memory peak begin anew, so that it does not show what was used before. Where the
/// kernel does not let a process do that, the peak stays that of the whole process.
pub fn reset_rss_peak() {
    if let Err(error) = fs::write("/proc/self/clear_refs", "5") {
        tracing::debug!("the memory peak includes what came before the measured part: {error}");
    }
}

fn field(path: &str, name: &str) -> Measured<u64> {
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"))?;
    parse_field(&text, name).ok_or_else(|| format!("{path} has no number for {name}"))
}

fn parse_field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[allow(unsafe_code)] // The standard library has no processor time of a process.
fn cpu_seconds() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to memory of the right type, which the call fills; all-zero bytes are
    // a valid `rusage` should it fail, which it cannot for RUSAGE_SELF.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_costs_processor_time() {
        let before = cpu_seconds();
        let mut sum = 0u64;
        while cpu_seconds() < before + 0.01 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(sum > 0);
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let io = "rchar: 5\nwrite_bytes: 4096\ncancelled_write_bytes: 17\n";
        assert_eq!(parse_field(io, "write_bytes:"), Some(4096));
        assert_eq!(parse_field("VmHWM:\t   1234 kB\n", "VmHWM:"), Some(1234));
        assert_eq!(parse_field(io, "VmHWM:"), None);
    }

    #[test]
    fn a_counter_that_is_missing_has_a_reason() {
        assert!(field("/proc/self/no-such-file", "x:").unwrap_err().contains("no-such-file"));
    }

    #[test]
    fn memory_that_was_touched_is_in_the_peak() {
        const TOUCHED: usize = 64 << 20;
        let memory = std::hint::black_box(vec![1u8; TOUCHED]);
        let peak = ProcessUsage::now().rss_max_bytes.unwrap();
        assert!(peak >= TOUCHED as u64, "{peak}");
        drop(memory);
    }

    fn usage(bytes_device: Measured<u64>) -> ProcessUsage {
        ProcessUsage { cpu_seconds: 0.0, bytes_device, rss_max_bytes: Ok(0) }
    }

    #[test]
    fn a_counter_that_stands_still_is_no_zero() {
        assert_eq!(usage(Ok(100)).bytes_device_until(&usage(Ok(350)), 50), Ok(250));
        assert_eq!(usage(Ok(100)).bytes_device_until(&usage(Ok(100)), 0), Ok(0));
        assert!(usage(Ok(100)).bytes_device_until(&usage(Ok(100)), 50).unwrap_err().contains("in memory"));
        assert_eq!(usage(Ok(1)).bytes_device_until(&usage(Err("no /proc".into())), 50), Err("no /proc".into()));
    }

    #[test]
    fn write_amplification_needs_both_sides() {
        assert_eq!(war(Some(300), 100), Ok(3.0));
        assert!(war(None, 100).unwrap_err().contains("bytes_device"));
        assert!(war(Some(300), 0).unwrap_err().contains("wrote nothing"));
    }
}
