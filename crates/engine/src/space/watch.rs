//! The thread that looks how much room there is while nobody writes: so that writing resumes by
//! itself, and what other processes take is seen. Where space is low it has garbage looked for, see
//! [`super::reclaim`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use ecotone_policy::dedup::forecast::SpaceGrowth;
use ecotone_types::units::{Bytes, Time};

use super::admission::AdmissionControl;
use super::ballast::Ballast;
use super::expired_tables::ExpiredTables;
use super::notifier::PROBE_INTERVAL;
use super::reclaim::Reclaim;
use crate::background::BackgroundThread;
use crate::gc::notifier::GcNotifier;

/// Between two probes far from it.
const FAR_INTERVAL: Duration = Duration::from_secs(1);

/// The value log is told when the share of free space has fallen by so much since it was told last.
const REPORTED_STEP: f64 = 0.01;

/// Starts the thread. `values` are told as space gets less, also where nobody writes; `expired` are
/// rewritten while writes are refused. Memtables that were made larger for replay are to be of
/// `memtable_bytes` once there is room again.
pub(crate) fn start(
    admission: Arc<AdmissionControl>,
    values: Option<Arc<GcNotifier>>,
    expired: Option<ExpiredTables>,
    mut memtable_bytes: Option<u64>,
) -> std::io::Result<BackgroundThread> {
    let of_thread = admission.clone();
    let ask_to_stop = move || admission.notifier.ask_to_stop();
    BackgroundThread::start("ecotone-space", ask_to_stop, move || {
        let (mut interval, mut reclaim) = (PROBE_INTERVAL, Reclaim::new(values.is_some(), expired));
        let (mut reported_share, mut ballast) = (1.0, Ballast::of(of_thread.directory()));
        ballast.keep(of_thread.free_space().available_bytes(), of_thread.space_bytes());
        let (began, mut growth) = (Instant::now(), SpaceGrowth::new());
        while of_thread.notifier.wait(interval) {
            interval = if of_thread.probe() { PROBE_INTERVAL } else { FAR_INTERVAL };
            let free_space = of_thread.free_space();
            ballast.keep(free_space.available_bytes(), of_thread.space_bytes());
            growth.observe(Time::from_seconds(began.elapsed().as_secs_f64()), Bytes(free_space.available_bytes()));
            of_thread.grows_by(growth.bytes_per_s());
            let free_share = free_space.free_share();
            if free_share <= reported_share - REPORTED_STEP {
                values.iter().for_each(|values| values.tables_changed());
                reported_share = free_share;
            }
            reported_share = free_share.max(reported_share);
            if !free_space.writes_refused
                && let Some(bytes) = memtable_bytes
                && let Some((db, family)) = of_thread.database()
            {
                match db.set_options_cf(&family, &[("write_buffer_size", &bytes.to_string())]) {
                    Ok(()) => memtable_bytes = None,
                    Err(error) => tracing::debug!(%error, "memtables cannot be made smaller; trying again"),
                }
            }
            if of_thread.is_space_low()
                && let Some((db, family)) = of_thread.database()
                && let Err(error) = reclaim.step(&db, family, &free_space)
            {
                tracing::debug!(%error, "nothing could be done to find out what is garbage; trying again");
            }
        }
    })
}
