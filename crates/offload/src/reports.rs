//! Load reports: once a second every server tells the coordinator how it fares and which jobs have ended.
//!
//! The own policy is told by whoever measures, once for each measurement ([`measured`]); what is sent is the last of them. A
//! slow coordinator delays reports and nothing else.
//!
//! A coordinator that does not answer is tried again at the next report; until then every compaction is local.

use std::sync::Arc;
use std::time::Instant;

use ecotone_policy::machine::{Event, Link, LoadSample};
use ecotone_policy::units::{Bytes, BytesPerSecond, Cores, Joules, Seconds, Watts};
use tracing::{debug, info, warn};

use crate::convert;
use crate::error::{Error, Result};
use crate::federation::Shared;
use crate::protocol::wire::ProbeRequest;
use crate::protocol::wire::ReportRequest;
use crate::protocol::wire::coordinator_client::CoordinatorClient;
use crate::protocol::wire::peer_client::PeerClient;

/// Exchanges of one size when a link is measured.
const PROBE_EXCHANGES: usize = 3;
/// Time that one measuring exchange should take by what is known of the link: longer than a round trip, short enough not to
/// disturb.
const PROBE_SECONDS: f64 = 0.02;
/// Least bytes of a measuring exchange each way.
const PROBE_BYTES_MIN: usize = 64 << 10;
/// Most bytes of a measuring exchange each way.
const PROBE_BYTES_MAX: usize = 1 << 20;
/// Reports between two measurements of the link: what it carries changes with what runs on both ends.
const REPORTS_PER_PROBE: u32 = 5;

/// Reports to the coordinator until the server stops. Not for the coordinator itself.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut tick = tokio::time::interval(shared.options.limits.report_interval);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut link = None;
    let mut reports_sent = 0;
    let mut reachable = true;
    loop {
        tick.tick().await;
        let Some(mut sample) = shared.last_sample() else { continue };
        sample.link = link;
        match report(&shared, &sample, &mut link, &mut reports_sent).await {
            Ok(()) if !reachable => {
                reachable = true;
                info!(coordinator = shared.coordinator_address(), "the coordinator answers again");
            }
            Ok(()) => {}
            Err(error) => {
                shared.connections.forget(&shared.coordinator_address());
                if std::mem::take(&mut reachable) {
                    warn!(%error, "the coordinator does not answer; every compaction is local until it does");
                }
            }
        }
    }
}

/// The load has been measured: the own policy learns it now, the coordinator with the next report.
pub(crate) fn measured(shared: &Shared) {
    let Some(sample) = sample(shared) else { return };
    shared.set_last_sample(sample.clone());
    shared.decide(Event::LoadSampled(sample));
}

/// What this server is like now; `None` until its store is open.
fn sample(shared: &Shared) -> Option<LoadSample> {
    let load = shared.local_load()?;
    let free_network = (shared.options.network_bytes_per_s - shared.traffic.bytes_per_s_since_last()).max(0.0);
    shared.set_free_network(free_network);
    let slots = shared.options.limits.worker_slots as usize;
    Some(LoadSample {
        server: shared.options.name.clone(),
        l0_tables: load.l0_tables,
        input_bytes_per_s: BytesPerSecond(load.input_bytes_per_s),
        input_bytes_total: Bytes(load.input_bytes_total),
        memtable_bytes: Bytes(load.memtable_bytes),
        flushed_tables_total: load.flushed_tables_total,
        flushed_bytes_total: Bytes(load.flushed_bytes_total),
        free_cores: Cores(load.free_cores),
        cores: Cores(load.cores),
        core_speed: load.core_speed,
        free_network_bytes_per_s: BytesPerSecond(free_network),
        link: None,
        worker_slots_free: slots.saturating_sub(shared.worker.running()) as u32,
        stalled: load.stalled,
        active_watts: Watts(load.active_watts),
        idle_watts: Watts(load.idle_watts),
        joules_total: Joules(load.joules_total),
    })
}

async fn report(
    shared: &Arc<Shared>,
    sample: &LoadSample,
    link: &mut Option<Link>,
    reports_sent: &mut u32,
) -> Result<()> {
    let address = shared.coordinator_address();
    let channel = shared.connections.to(&address).await?;
    if reports_sent.is_multiple_of(REPORTS_PER_PROBE) {
        *link = Some(probe(shared, &address, *link).await?);
    }
    *reports_sent = reports_sent.wrapping_add(1);
    let finished = shared.reports_waiting.lock().drain(..).collect::<Vec<_>>();
    let request = ReportRequest {
        load: Some(convert::load_to_wire(sample)),
        address: shared.address(),
        finished: finished.iter().map(convert::report_to_wire).collect(),
    };
    let mut coordinator = CoordinatorClient::new(channel);
    let outcome = tokio::time::timeout(shared.options.limits.heartbeat_timeout, coordinator.report(request))
        .await
        .map_err(|_| Error::unreachable(&address, "no answer to a report in time"))
        .and_then(|reply| reply.map_err(|status| Error::unreachable(&address, status.message())));
    match outcome {
        Ok(_) => Ok(()),
        Err(error) => {
            // What the coordinator has not learned yet is sent again.
            let mut waiting = shared.reports_waiting.lock();
            for job in finished.into_iter().rev() {
                waiting.push_front(job);
            }
            waiting.truncate(shared.options.limits.reports_waiting);
            Err(error)
        }
    }
}

/// Measures the link: empty exchanges for its round trip, larger ones for its rate. The best of a few counts: other traffic
/// and a busy core only ever make an exchange slower.
async fn probe(shared: &Arc<Shared>, address: &str, known: Option<Link>) -> Result<Link> {
    let mut client = PeerClient::new(shared.connections.to(address).await?);
    let mut best_of = async |bytes: usize| {
        let mut best = f64::INFINITY;
        for _ in 0..PROBE_EXCHANGES {
            let request = ProbeRequest { payload: vec![0; bytes], reply_bytes: bytes as u32 };
            let began = Instant::now();
            tokio::time::timeout(shared.options.limits.read_timeout, client.probe(request))
                .await
                .map_err(|_| Error::unreachable(address, "the link is too slow to be measured"))?
                .map_err(|status| Error::unreachable(address, status.message()))?;
            best = best.min(began.elapsed().as_secs_f64());
        }
        Ok(best)
    };
    let round_trip_seconds = best_of(0).await?;
    let bytes = known.map_or(PROBE_BYTES_MIN as f64, |link| link.bytes_per_s.0 * PROBE_SECONDS);
    let bytes = bytes.clamp(PROBE_BYTES_MIN as f64, PROBE_BYTES_MAX as f64) as usize;
    let seconds = best_of(bytes).await?;
    let bytes_per_s = 2.0 * bytes as f64 / (seconds - round_trip_seconds).max(1e-4);
    let bytes_per_s = BytesPerSecond(bytes_per_s.min(shared.options.network_bytes_per_s));
    let link = Link { bytes_per_s, round_trip: Seconds(round_trip_seconds) };
    debug!(address, ?link, "measured the link");
    Ok(link)
}

/// The coordinator's side of a report.
pub(crate) fn receive(shared: &Arc<Shared>, request: ReportRequest) -> Result<()> {
    let load = request.load.ok_or_else(|| Error::BadResult("a report without load".into()))?;
    let sample = convert::load_from_wire(&load)?;
    shared.learn_address(&sample.server, &request.address);
    for job in &request.finished {
        shared.decide(Event::JobFinished(convert::report_from_wire(job)?));
    }
    shared.decide(Event::LoadSampled(sample));
    Ok(())
}
