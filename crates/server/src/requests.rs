//! What clients have asked for: the workload of a server that has none inside.

use std::sync::atomic::Ordering;

use ecotone_resp::command::flag;
use ecotone_resp::service::Service;

use crate::monitor::Progress;

/// Requests of clients that read or changed keys. `PING`, `INFO` and the like are not among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// Commands that only read.
    pub reads: u64,
    /// Commands that change keys.
    pub writes: u64,
    /// Lookups that found no key.
    pub missed: u64,
}

impl Requests {
    /// All that `service` has counted.
    pub(crate) fn of(service: &Service) -> Requests {
        let statistics = &service.statistics;
        let mut requests = Requests { missed: statistics.misses.load(Ordering::Relaxed), ..Requests::default() };
        for counts in statistics.usage.used() {
            let calls = counts.calls.load(Ordering::Relaxed);
            match counts.flags {
                flags if flags & flag::WRITE != 0 => requests.writes += calls,
                flags if flags & flag::READONLY != 0 => requests.reads += calls,
                _ => {}
            }
        }
        requests
    }

    /// Those since `before`. A client may have set the statistics to zero in between; then those
    /// since.
    pub fn since(&self, before: &Requests) -> Requests {
        let less = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
        Requests {
            reads: less(self.reads, before.reads),
            writes: less(self.writes, before.writes),
            missed: less(self.missed, before.missed),
        }
    }

    /// The same as the progress of a workload.
    pub fn progress(&self) -> Progress {
        Progress { ops: self.reads + self.writes, reads: self.reads, writes: self.writes }
    }
}
