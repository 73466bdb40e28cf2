//! What the last look at the server found: the one source of its metrics and of whether it is ready.
//!
//! The sampler looks once a second and waits for nobody. So who asks, however often, takes no lock of the store, and all figures of one
//! answer are of one moment.

use std::time::Instant;

use ecotone_engine::{Counters, Room, StoreProperties, ValueLogProperties};
use ecotone_offload::FederationStatistics;
use ecotone_policy::machine::ModelReport;
use ecotone_power::Reading;

/// One look.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// When it began.
    pub(crate) at: Instant,
    pub(crate) properties: StoreProperties,
    pub(crate) counters: Counters,
    /// `None` where the store has no value log. While the log was busy, as it was found the time before.
    pub(crate) values: Option<ValueLogProperties>,
    pub(crate) room: Option<Room>,
    /// Why writes fail until the store recovers.
    pub(crate) write_failure: Option<String>,
    pub(crate) reading: Reading,
    /// The power since the look before; `None` at the first.
    pub(crate) watts: Option<f64>,
    pub(crate) free_cores: f64,
    /// File descriptors of the process; `None` where Linux does not tell.
    pub(crate) open_files: Option<u64>,
    pub(crate) federation: FederationStatistics,
    pub(crate) models: ModelReport,
}

/// `now`, where nothing is less than in `before`. A meter adds up what threads have used one after the other: when one ends a duty its
/// seconds move from `unattributed` to that duty, and a counter that is told must not fall.
pub(crate) fn never_less(mut now: Reading, before: Option<&Reading>) -> Reading {
    let Some(before) = before else { return now };
    for (of, sums) in [
        (&before.energy_joules_by_duty, &mut now.energy_joules_by_duty),
        (&before.cpu_seconds_by_duty, &mut now.cpu_seconds_by_duty),
    ] {
        for (name, sum) in sums.iter_mut() {
            *sum = sum.max(of.get(name).copied().unwrap_or(0.0));
        }
    }
    for (of, sum) in [
        (before.total_joules, &mut now.total_joules),
        (before.busy_core_seconds, &mut now.busy_core_seconds),
        (before.unattributed_cpu_seconds, &mut now.unattributed_cpu_seconds),
    ] {
        *sum = sum.max(of);
    }
    now
}
