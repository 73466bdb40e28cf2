//! The lab's clients of one server: threads of the lab's own process, so outside of all emulated
//! cores, that send the workload by the Redis protocol.
//!
//! What they use is in no server's processor time and in no server's joules.

use std::sync::Arc;
use std::thread::JoinHandle;

use ecotone_bench::driver::{Driver, Outcome, Running};
use ecotone_bench::target::Target;
use ecotone_bench::target::resp::{RespTarget, ServerAddress, ServerOptions};
use ecotone_bench::workload::{OperationKind, Preload, WorkloadOptions};
use ecotone_bench::{Error, Result};
use ecotone_server::record::{Final, Latency, Sample};

/// How far the server's count of requests may be from the clients' before a warning says so. Both
/// count every request.
const COUNTS_DIFFER: f64 = 0.01;

/// The clients of one server.
pub(crate) struct Clients {
    target: Arc<dyn Target>,
    workload: WorkloadOptions,
    filling: Option<JoinHandle<Result<bool>>>,
    running: Option<Running>,
    outcome: Option<Outcome>,
    twice: Twice,
}

/// Operations that a server counts twice: a read-modify-write is two requests, of which it cannot
/// know that they are one operation.
#[derive(Debug, Default)]
struct Twice {
    taken_off: u64,
}

impl Twice {
    /// Leaves in `requests` of a second the operations they belong to, where there were `so_far`
    /// read-modify-writes since the begin. Those that the server has not counted yet are left to
    /// its next seconds.
    fn operations(&mut self, requests: u64, so_far: u64) -> u64 {
        let twice = so_far.saturating_sub(self.taken_off).min(requests);
        self.taken_off += twice;
        requests - twice
    }
}

impl Clients {
    /// Connects to the server at `address`.
    pub(crate) fn connect(address: &str, pipeline: u32, workload: WorkloadOptions) -> Result<Self> {
        let server = ServerOptions { pipeline, ..ServerOptions::new(ServerAddress::Tcp(address.to_owned())) };
        let target = Arc::new(RespTarget::open(&server)?);
        Ok(Self { target, workload, filling: None, running: None, outcome: None, twice: Twice::default() })
    }

    /// Begins to load the store, where the workload needs it.
    pub(crate) fn fill(&mut self) -> Result<()> {
        let (target, workload) = (Arc::clone(&self.target), self.workload.clone());
        // Ends with its server, should the lab end before it.
        let thread = std::thread::Builder::new()
            .name("lab-load".into())
            .spawn(move || Driver::fill(target, workload, None, Arc::default()))
            .map_err(|error| Error::Options(format!("cannot start a thread: {error}")))?;
        self.filling = Some(thread);
        Ok(())
    }

    pub(crate) fn has_filled(&self) -> bool {
        self.filling.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Whether the store settled after its load.
    pub(crate) fn filled(&mut self) -> Result<bool> {
        self.filling.take().map_or(Ok(true), |thread| thread.join().unwrap_or(Err(Error::Panicked)))
    }

    /// Begins the workload.
    pub(crate) fn start(&mut self) -> Result<()> {
        // The server began with an empty store.
        let preload = if self.workload.preloads() { Preload::Filled } else { Preload::Automatic };
        let workload = WorkloadOptions { preload, ..self.workload.clone() };
        self.running = Some(Driver::start(Arc::clone(&self.target), workload, None)?);
        Ok(())
    }

    /// Whether the workload has ended since it was asked last.
    pub(crate) fn ended(&mut self) -> Result<bool> {
        match self.running.take() {
            Some(running) if running.is_finished() => {
                self.outcome = Some(running.join()?);
                Ok(true)
            }
            running => {
                self.running = running;
                Ok(false)
            }
        }
    }

    /// A second of the server, with operations of its clients for the requests it counted.
    pub(crate) fn complete_second(&mut self, sample: Sample) -> Sample {
        let counts = match (&self.running, &self.outcome) {
            (Some(running), _) => running.snapshot().counts,
            (None, Some(outcome)) => outcome.counts,
            (None, None) => return sample,
        };
        Sample { ops: self.twice.operations(sample.ops, counts.of(OperationKind::ReadModifyWrite)), ..sample }
    }

    /// The sums of the server with what only its clients know. Also a warning, should their counts
    /// disagree.
    pub(crate) fn complete(&self, sums: Final) -> (Final, Option<String>) {
        let Some(outcome) = &self.outcome else {
            return (sums, Some("it summed up before its clients had ended; this run is not valid".to_owned()));
        };
        let answered = outcome.counts.reads() + outcome.counts.writes();
        let differs = answered.abs_diff(sums.ops) as f64 > COUNTS_DIFFER * answered as f64;
        let warning = differs.then(|| {
            format!(
                "it counted {} requests, its clients {answered} answers; others may have used it, and this run is not valid",
                sums.ops
            )
        });
        let latency_us = OperationKind::ALL.into_iter().filter_map(|kind| {
            let summary = outcome.latency_us(kind)?;
            let latency = Latency { p50: summary.p50, p99: summary.p99, p999: summary.p999, max: summary.max };
            Some((kind.name().to_owned(), latency))
        });
        let sums = Final {
            // A read-modify-write is two requests and one operation.
            ops: sums.ops.saturating_sub(outcome.counts.of(OperationKind::ReadModifyWrite)),
            missed: outcome.missed,
            seconds: outcome.seconds,
            bytes_user: outcome.bytes_user,
            bytes_live: outcome.live.map(|live| live.bytes),
            latency_us: latency_us.collect(),
            ..sums
        };
        (sums, warning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_count_operations_as_the_sums_do() {
        let mut twice = Twice::default();
        // 10 reads and 10 read-modify-writes, of which the server has counted 25 requests of 30.
        assert_eq!(twice.operations(25, 10), 15);
        assert_eq!(twice.operations(5, 10), 5);
        // The clients are ahead of the server's count by more than it has: what is left over is
        // taken off the next second.
        assert_eq!((twice.operations(4, 20), twice.operations(16, 20)), (0, 10));
        assert_eq!(twice.operations(7, 20), 7);
    }
}
