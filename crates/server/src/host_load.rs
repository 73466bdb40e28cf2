//! How many cores of the host are idle, by the kernel's own count (`/proc/stat`).

use std::time::Instant;

/// Ticks per second of `/proc/stat`: 100 on every Linux architecture that Ecotone runs on
/// (USER_HZ).
const TICKS_PER_SECOND: f64 = 100.0;

/// Remembers the last count to give the difference.
pub(crate) struct HostLoad {
    last: Option<(Instant, f64)>,
}

impl HostLoad {
    pub(crate) fn new() -> HostLoad {
        HostLoad { last: None }
    }

    /// Cores that were idle since the last call; `None` at the first call or where the kernel does
    /// not count.
    pub(crate) fn idle_cores(&mut self) -> Option<f64> {
        let idle = idle_seconds(&std::fs::read_to_string("/proc/stat").ok()?)?;
        let now = Instant::now();
        let (before, idle_before) = self.last.replace((now, idle))?;
        let elapsed = now.duration_since(before).as_secs_f64();
        (elapsed > 0.0).then(|| ((idle - idle_before) / elapsed).max(0.0))
    }
}

/// Sum over all cores of the seconds spent idle or waiting for a disk.
fn idle_seconds(stat: &str) -> Option<f64> {
    let mut fields = stat.lines().find(|line| line.starts_with("cpu "))?.split_ascii_whitespace().skip(4);
    let idle: f64 = fields.next()?.parse().ok()?;
    let waiting: f64 = fields.next()?.parse().ok()?;
    Some((idle + waiting) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_count_as_idle() {
        let stat = "cpu  100 2 30 4000 500 0 7 0 0 0\ncpu0 50 1 15 2000 250 0 3 0 0 0\n";
        assert_eq!(idle_seconds(stat), Some(45.0));
        assert_eq!(idle_seconds("intr 5"), None);
        assert_eq!(idle_seconds("cpu  100 2"), None);
    }
}
