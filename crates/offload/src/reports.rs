//! Load reports: once a second every server tells the coordinator how it fares and which jobs have ended.
//!
//! A coordinator that does not answer is tried again at the next report; until then every compaction is local.

use std::sync::Arc;
use std::time::Instant;

use ecotone_policy::machine::{Event, Link, LoadSample};
use ecotone_policy::units::{Bytes, BytesPerSecond, Cores, Joules, Seconds, Watts};
use tracing::{info, warn};

use crate::convert;
use crate::error::{Error, Result};
use crate::federation::Shared;
use crate::protocol::wire::ProbeRequest;
use crate::protocol::wire::ReportRequest;
use crate::protocol::wire::coordinator_client::CoordinatorClient;
use crate::protocol::wire::peer_client::PeerClient;

/// Bytes sent each way to measure a link once, when it opens: large enough to outlast a round trip, small enough for a
/// slow link.
const PROBE_BYTES: usize = 1 << 20;

/// Reports until the server stops.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut tick = tokio::time::interval(shared.options.limits.report_interval);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut link = None;
    let mut reachable = true;
    let mut last = (Instant::now(), 0);
    loop {
        tick.tick().await;
        shared.worker.forget_orphans(&shared.options.limits);
        let Some(sample) = sample(&shared, link, &mut last) else { continue };
        shared.decide(Event::LoadSampled(sample.clone()));
        if shared.queue.is_some() {
            continue;
        }
        match report(&shared, &sample, &mut link).await {
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

/// What this server is like now; `None` until its store is open.
fn sample(shared: &Shared, link: Option<Link>, last: &mut (Instant, u64)) -> Option<LoadSample> {
    let load = shared.local_load()?;
    let moved = shared.traffic.sent() + shared.traffic.received();
    let seconds = last.0.elapsed().as_secs_f64().max(1e-3);
    let used = (moved - last.1) as f64 / seconds;
    *last = (Instant::now(), moved);
    let slots = shared.options.limits.worker_slots as usize;
    Some(LoadSample {
        server: shared.options.name.clone(),
        l0_tables: load.l0_tables,
        input_bytes_per_s: BytesPerSecond(load.input_bytes_per_s),
        input_bytes_total: Bytes(load.input_bytes_total),
        memtable_bytes: Bytes(load.memtable_bytes),
        flushed_tables_total: load.flushed_tables_total,
        free_cores: Cores(load.free_cores),
        cores: Cores(load.cores),
        core_speed: load.core_speed,
        free_network_bytes_per_s: BytesPerSecond((shared.options.network_bytes_per_s - used).max(0.0)),
        link,
        worker_slots_free: slots.saturating_sub(shared.worker.running()) as u32,
        stalled: load.stalled,
        active_watts: Watts(load.active_watts),
        idle_watts: Watts(load.idle_watts),
        joules_total: Joules(load.joules_total),
    })
}

async fn report(shared: &Arc<Shared>, sample: &LoadSample, link: &mut Option<Link>) -> Result<()> {
    let address = shared.coordinator_address();
    let is_new = shared.connections.if_open(&address).is_none();
    let channel = shared.connections.to(&address).await?;
    if is_new {
        *link = Some(probe(shared, &address).await?);
    }
    let finished = shared.reports_waiting.lock().drain(..).collect::<Vec<_>>();
    let request = ReportRequest {
        load: Some(convert::load_to_wire(sample)),
        address: shared.address(),
        finished: finished.iter().map(convert::report_to_wire).collect(),
    };
    let began = Instant::now();
    let mut coordinator = CoordinatorClient::new(channel);
    let outcome = tokio::time::timeout(shared.options.limits.heartbeat_timeout, coordinator.report(request))
        .await
        .map_err(|_| Error::unreachable(&address, "no answer to a report in time"))
        .and_then(|reply| reply.map_err(|status| Error::unreachable(&address, status.message())));
    match outcome {
        Ok(_) => {
            if let Some(link) = link {
                link.round_trip = Seconds(began.elapsed().as_secs_f64());
            }
            Ok(())
        }
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

/// Measures the link: an empty exchange for its round trip, a large one for its rate.
async fn probe(shared: &Arc<Shared>, address: &str) -> Result<Link> {
    let mut client = PeerClient::new(shared.connections.to(address).await?);
    let mut exchange = async |bytes: usize| {
        let request = ProbeRequest { payload: vec![0; bytes], reply_bytes: bytes as u32 };
        let began = Instant::now();
        tokio::time::timeout(shared.options.limits.read_timeout, client.probe(request))
            .await
            .map_err(|_| Error::unreachable(address, "the link is too slow to be measured"))?
            .map_err(|status| Error::unreachable(address, status.message()))?;
        Ok(began.elapsed().as_secs_f64())
    };
    let round_trip_seconds = exchange(0).await?;
    let seconds = exchange(PROBE_BYTES).await?;
    let bytes_per_s = 2.0 * PROBE_BYTES as f64 / (seconds - round_trip_seconds).max(1e-4);
    let bytes_per_s = BytesPerSecond(bytes_per_s.min(shared.options.network_bytes_per_s));
    Ok(Link { bytes_per_s, round_trip: Seconds(round_trip_seconds) })
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
