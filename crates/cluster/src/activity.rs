//! How servers fare, for people who watch: nothing is decided by it.
//!
//! It travels beside the load of a report. What comes from a peer is believed whole or not at all,
//! and bounded: it is shown by others.

use std::time::Duration;

use ecotone_policy::machine::LoadSample;
use ecotone_policy::server_table::Disabled;
use ecotone_transport::wire;
use ecotone_types::ServerId;
use ecotone_types::units::MAX_PLAUSIBLE;

/// The longest name of a source of energy that is taken from a peer, in bytes.
const MAX_SOURCE_BYTES: usize = 16;

/// What a server knows of itself; once a second it goes into the report to the coordinator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LocalLoad {
    /// Tables in level 0.
    pub l0_tables: u32,
    /// User bytes written in the last second.
    pub input_bytes_per_s: f64,
    /// User bytes written since the start.
    pub input_bytes_total: u64,
    /// Bytes in memtables.
    pub memtable_bytes: u64,
    /// Tables made by flushes since the start.
    pub flushed_tables_total: u64,
    /// Cores of the server.
    pub cores: f64,
    /// Cores that were idle in the last second.
    pub free_cores: f64,
    /// Speed of one core relative to the reference core of the policy's parameters.
    pub core_speed: f64,
    /// Whether writes are slowed or stopped.
    pub stalled: bool,
    /// Watts of one busy core above idle.
    pub active_watts: f64,
    /// Watts of the idle server.
    pub idle_watts: f64,
    /// Joules used since the start.
    pub joules_total: f64,
}

/// Where the federation learns of its own server. Called from its threads; must not block.
pub trait LoadSource: Send + Sync {
    /// The load as last measured.
    fn load(&self) -> LocalLoad;

    /// The rest of what it knows of itself, for people who watch. The federation adds its jobs and
    /// the forecast.
    fn activity(&self) -> Activity {
        Activity::default()
    }
}

/// Whether a store takes writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Writers {
    /// As fast as they come.
    #[default]
    Run,
    /// Slower than they come, so that compactions keep up.
    Slowed,
    /// Not at all, until a compaction or flush has ended.
    Stopped,
}

impl Writers {
    /// Its name in INFO.
    pub fn name(self) -> &'static str {
        match self {
            Writers::Run => "run",
            Writers::Slowed => "slowed",
            Writers::Stopped => "stopped",
        }
    }
}

/// What a server does, needs and has, beside its [`LoadSample`]. Totals count from its start.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Activity {
    /// From its start to when this was counted, and the load beside it: two of them give the time
    /// between two counts.
    pub uptime_ms: u64,
    /// Operations of the workload, or commands of clients.
    pub operations_total: u64,
    /// The same in the last second.
    pub ops_per_s: f64,
    /// Bytes of keys and values that were written to its store. The load's input counts what goes
    /// to memtables: of a value in the value log, a pointer.
    pub written_bytes_total: u64,
    /// The same in the last second.
    pub write_bytes_per_s: f64,
    /// Whether its store takes writes.
    pub writers: Writers,
    /// Time in which writes were slowed or stopped.
    pub stall_ms_total: u64,
    /// Seconds until the stall threshold is met, if it is: T_max of ECO-KVS, equation 3.
    pub stall_in_s: Option<f64>,
    /// Compactions of its store that run, wherever.
    pub running_compactions: u32,
    /// Those of them that workers run.
    pub running_offloaded: u32,
    /// Jobs of other servers that it runs.
    pub running_worker_jobs: u32,
    /// Power in the last second.
    pub watts: f64,
    /// Where watts and joules come from, as
    /// [`EnergySource::name`](ecotone_energy::EnergySource::name) says it.
    pub energy_source: String,
    /// Clock frequency of its cores; 0 where it cannot be read.
    pub frequency_hz: f64,
    /// Bytes of its tables and segments.
    pub store_bytes: u64,
    /// Bytes of what lives in them, by estimate; 0 before there is one.
    pub live_bytes: u64,
    /// Bytes free on its file system.
    pub free_bytes: u64,
    /// Compactions of its store that ran elsewhere.
    pub jobs_offloaded_total: u64,
    /// Compactions of other stores that ran here.
    pub jobs_taken_total: u64,
    /// Offers that it declined.
    pub jobs_declined_total: u64,
    /// Compactions that it ran because an offload failed.
    pub jobs_fallen_back_total: u64,
}

impl Activity {
    pub(crate) fn to_wire(&self) -> wire::Activity {
        wire::Activity {
            uptime_ms: self.uptime_ms,
            operations_total: self.operations_total,
            ops_per_s: self.ops_per_s,
            written_bytes_total: self.written_bytes_total,
            write_bytes_per_s: self.write_bytes_per_s,
            writers: self.writers as u32,
            stall_ms_total: self.stall_ms_total,
            stall_in_s: self.stall_in_s,
            running_compactions: self.running_compactions,
            running_offloaded: self.running_offloaded,
            running_worker_jobs: self.running_worker_jobs,
            watts: self.watts,
            energy_source: self.energy_source.clone(),
            frequency_hz: self.frequency_hz,
            store_bytes: self.store_bytes,
            live_bytes: self.live_bytes,
            free_bytes: self.free_bytes,
            jobs_offloaded_total: self.jobs_offloaded_total,
            jobs_taken_total: self.jobs_taken_total,
            jobs_declined_total: self.jobs_declined_total,
            jobs_fallen_back_total: self.jobs_fallen_back_total,
        }
    }

    /// `None` where anything in it is impossible.
    pub(crate) fn from_wire(sent: &wire::Activity) -> Option<Activity> {
        let plausible = 0.0..=MAX_PLAUSIBLE;
        let stall_in_s = sent.stall_in_s.unwrap_or_default();
        let numbers = [sent.ops_per_s, sent.write_bytes_per_s, stall_in_s, sent.watts, sent.frequency_hz];
        let source = sent.energy_source.as_str();
        let is_name = source.len() <= MAX_SOURCE_BYTES && source.bytes().all(|byte| byte.is_ascii_lowercase());
        let writers = [Writers::Run, Writers::Slowed, Writers::Stopped].get(sent.writers as usize)?;
        (is_name && numbers.iter().all(|number| plausible.contains(number))).then(|| Activity {
            uptime_ms: sent.uptime_ms,
            operations_total: sent.operations_total,
            ops_per_s: sent.ops_per_s,
            written_bytes_total: sent.written_bytes_total,
            write_bytes_per_s: sent.write_bytes_per_s,
            writers: *writers,
            stall_ms_total: sent.stall_ms_total,
            stall_in_s: sent.stall_in_s,
            running_compactions: sent.running_compactions,
            running_offloaded: sent.running_offloaded,
            running_worker_jobs: sent.running_worker_jobs,
            watts: sent.watts,
            energy_source: source.to_owned(),
            frequency_hz: sent.frequency_hz,
            store_bytes: sent.store_bytes,
            live_bytes: sent.live_bytes,
            free_bytes: sent.free_bytes,
            jobs_offloaded_total: sent.jobs_offloaded_total,
            jobs_taken_total: sent.jobs_taken_total,
            jobs_declined_total: sent.jobs_declined_total,
            jobs_fallen_back_total: sent.jobs_fallen_back_total,
        })
    }
}

/// What another server reported of itself, as far as it is plausible.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedReport {
    pub(crate) load: Option<LoadSample>,
    pub(crate) activity: Option<Activity>,
}

impl ReceivedReport {
    pub(crate) fn new(load: LoadSample, activity: Option<&wire::Activity>) -> ReceivedReport {
        ReceivedReport {
            load: Some(load).filter(|load| load.problem().is_none()),
            activity: activity.and_then(Activity::from_wire),
        }
    }
}

/// A server of the federation, as this one knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownServer {
    /// Its name.
    pub name: ServerId,
    /// Where it listens for other servers, as it says itself.
    pub address: String,
    /// Whether it is this server.
    pub is_self: bool,
    /// Whether it places the jobs.
    pub is_coordinator: bool,
    /// Time since its last report.
    pub silent_for: Duration,
    /// The load it last reported; `None` where that was not plausible.
    pub load: Option<LoadSample>,
    /// The rest of it; `None` for a server of an earlier release.
    pub activity: Option<Activity>,
    /// Whether the coordinator would give it jobs now, and why not; `None` where this server is not
    /// the coordinator.
    pub takes_jobs: Option<Result<(), Disabled>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported() -> wire::Activity {
        wire::Activity {
            ops_per_s: 12.5,
            writers: 2,
            stall_in_s: Some(3.0),
            energy_source: "model".into(),
            operations_total: u64::MAX,
            ..wire::Activity::default()
        }
    }

    #[test]
    fn what_one_server_tells_another_reads() {
        let activity = Activity::from_wire(&reported()).unwrap();
        assert_eq!((activity.writers, activity.stall_in_s), (Writers::Stopped, Some(3.0)));
        assert_eq!(Activity::from_wire(&activity.to_wire()), Some(activity));
        // A server that reports none of it has reported nothing impossible.
        assert_eq!(Activity::from_wire(&wire::Activity::default()), Some(Activity::default()));
    }

    #[test]
    fn the_impossible_is_not_believed() {
        for wrong in [
            wire::Activity { watts: f64::NAN, ..reported() },
            wire::Activity { ops_per_s: -1.0, ..reported() },
            wire::Activity { stall_in_s: Some(f64::INFINITY), ..reported() },
            wire::Activity { frequency_hz: 1e300, ..reported() },
            wire::Activity { writers: 3, ..reported() },
            wire::Activity { energy_source: "model,name=forged".into(), ..reported() },
            wire::Activity { energy_source: "\u{1b}[2J".into(), ..reported() },
            wire::Activity { energy_source: "m".repeat(1 << 20), ..reported() },
        ] {
            assert_eq!(Activity::from_wire(&wrong), None, "{wrong:?}");
        }
    }
}
