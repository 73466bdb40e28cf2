//! Load reports: once a second every server reports its load and its finished jobs to the
//! coordinator.
//!
//! The own policy gets each measurement once, from whoever measures ([`measured`]); the last of
//! them is sent. A slow coordinator delays reports and nothing else.
//!
//! A coordinator that does not answer, or refuses this server, is tried again at the next report;
//! until then every compaction is local.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ecotone_policy::machine::{Event, Link, LoadSample};
use ecotone_transport::protocol::failed_call;
use ecotone_transport::wire::coordinator_client::CoordinatorClient;
use ecotone_transport::wire::peer_client::PeerClient;
use ecotone_transport::wire::{ProbeRequest, ReportReply, ReportRequest};
use ecotone_types::units::{Bytes, BytesPerSecond, Cores, Joules, Seconds, Watts};
use tonic::Code;
use tracing::{debug, info, warn};

use crate::activity::ReceivedReport;
use crate::convert;
use crate::error::{Error, Result};
use crate::member::{Coordinator, Member};
use crate::registry::{Arrival, Standing};

/// Exchanges of one size when a link is measured.
const PROBE_EXCHANGES: usize = 3;
/// Time that one measuring exchange should take by the last measurement of the link: longer than a
/// round trip, short enough not to disturb.
const PROBE_SECONDS: f64 = 0.02;
/// Least bytes of a measuring exchange each way.
const MIN_PROBE_BYTES: usize = 64 << 10;
/// Most bytes of a measuring exchange each way.
const MAX_PROBE_BYTES: usize = 1 << 20;
/// The longest address that a server may say it has: a name of DNS, a port, and some more.
const MAX_ADDRESS_BYTES: usize = 1024;
/// Reports between two measurements of the link while this server writes or works for others: what
/// the link carries changes with what runs on both ends.
const REPORTS_PER_PROBE: u32 = 5;
/// Measurements after which an idle server makes them seldom: the first is by few bytes and says too
/// little, and who is taken to have a slow link is given no job, so it stays idle.
const MIN_PROBES: u32 = 3;
/// Reports between two measurements while a server is idle: they move megabytes.
const REPORTS_PER_IDLE_PROBE: u32 = 3600;

/// What is known of the link to a coordinator.
#[derive(Default)]
struct Measured {
    link: Option<Link>,
    /// How often it was measured.
    probes: u32,
    /// Reports since then.
    reports: u32,
    /// What had been written here until then.
    input_bytes_total: Bytes,
}

impl Measured {
    /// Whether it should be measured before the next report.
    fn is_due(&self, sample: &LoadSample, worker_slots: u32) -> bool {
        let is_in_use = sample.worker_slots_free < worker_slots || sample.input_bytes_total != self.input_bytes_total;
        let between = if is_in_use || self.probes < MIN_PROBES { REPORTS_PER_PROBE } else { REPORTS_PER_IDLE_PROBE };
        self.link.is_none() || self.reports >= between
    }
}

/// Reports to the coordinator until the server stops, while that is another server.
pub(crate) async fn run(member: Arc<Member>) {
    let mut tick = tokio::time::interval(member.options.limits.report_interval);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut measured = Measured::default();
    // The kind of error that the last report met; each is logged once while it lasts.
    let mut trouble = None;
    let mut reported_to: Option<String> = None;
    loop {
        tick.tick().await;
        let Some(mut sample) = member.last_sample() else { continue };
        let Coordinator::At(address) = member.coordinator() else { continue };
        if reported_to.replace(address.clone()).is_some_and(|before| before != address) {
            measured = Measured::default();
        }
        sample.link = measured.link;
        let outcome = report(&member, &address, &sample, &mut measured).await;
        // Of another one that leads meanwhile it says nothing.
        let is_still_there = member.coordinator() == Coordinator::At(address.clone());
        member.is_accepted.store(outcome.is_ok() && is_still_there, Ordering::Release);
        match outcome {
            Ok(()) => {
                if trouble.take().is_some() {
                    info!(coordinator = address, "the coordinator takes reports again");
                }
            }
            Err(error) => {
                member.connections.forget(&address);
                if trouble.replace(error.kind()) != Some(error.kind()) {
                    warn!(%error, "the coordinator takes no reports; every compaction is local until it does");
                }
            }
        }
    }
}

/// The load has been measured: the own policy learns it now, the coordinator with the next report.
pub(crate) fn measured(member: &Member) {
    let Some(sample) = sample(member) else { return };
    member.set_last_sample(sample.clone());
    member.decide(Event::LoadSampled(sample));
}

/// What this server is like now; `None` until its store is open.
fn sample(member: &Member) -> Option<LoadSample> {
    let load = member.local_load()?;
    let free_network = (member.options.network_bytes_per_s - member.traffic.bytes_per_s_since_last()).max(0.0);
    member.set_free_network(free_network);
    let slots = member.options.limits.worker_slots as usize;
    Some(LoadSample {
        server: member.name.clone(),
        l0_tables: load.l0_tables,
        input_bytes_per_s: BytesPerSecond(load.input_bytes_per_s),
        input_bytes_total: Bytes(load.input_bytes_total),
        memtable_bytes: Bytes(load.memtable_bytes),
        flushed_tables_total: load.flushed_tables_total,
        free_cores: Cores(load.free_cores),
        cores: Cores(load.cores),
        core_speed: load.core_speed,
        free_network_bytes_per_s: BytesPerSecond(free_network),
        link: None,
        worker_slots_free: slots.saturating_sub(member.worker.running()) as u32,
        stalled: load.stalled,
        active_watts: Watts(load.active_watts),
        idle_watts: Watts(load.idle_watts),
        joules_total: Joules(load.joules_total),
    })
}

async fn report(member: &Arc<Member>, address: &str, sample: &LoadSample, measured: &mut Measured) -> Result<()> {
    let channel = member.connections.to(address, None).await?;
    if measured.is_due(sample, member.options.limits.worker_slots) {
        let link = probe(member, address, measured.link).await?;
        let (probes, input_bytes_total) = (measured.probes.saturating_add(1), sample.input_bytes_total);
        *measured = Measured { link: Some(link), probes, reports: 0, input_bytes_total };
    }
    measured.reports = measured.reports.saturating_add(1);
    let (session, finished) = {
        let unreported = member.unreported.lock();
        (unreported.session(), unreported.numbered().cloned().collect::<Vec<_>>())
    };
    let request = ReportRequest {
        load: Some(convert::load_to_wire(sample)),
        address: member.address(),
        finished: finished.iter().map(|(number, job)| convert::report_to_wire(*number, job)).collect(),
        session,
        activity: Some(member.activity().to_wire()),
    };
    let mut coordinator = CoordinatorClient::new(channel);
    let outcome = tokio::time::timeout(member.options.limits.heartbeat_timeout, coordinator.report(request))
        .await
        .map_err(|_| Error::unreachable(address, "no answer to a report in time"))
        .and_then(|reply| {
            reply.map_err(|status| match status.code() {
                Code::AlreadyExists => Error::Configuration(status.message().to_owned()),
                Code::ResourceExhausted => Error::FederationFull(status.message().to_owned()),
                _ => failed_call(address, &status).into(),
            })
        });
    // Without an answer they are sent again: the coordinator may have taken them or not, and knows
    // them by their numbers.
    outcome.map(|reply| {
        // For people only: what makes no sense in it is left out, and the report counts.
        let reply = reply.into_inner();
        if let Some(load) = reply.load.and_then(|load| convert::load_from_wire(&load).ok()) {
            member.set_coordinator_report(ReceivedReport::new(load, reply.activity.as_ref()));
        }
        if let Some((last, _)) = finished.last() {
            member.unreported.lock().forget_until(*last);
        }
    })
}

/// Measures the link: empty exchanges for its round trip, larger ones for its rate. The best of a
/// few counts: other traffic and a busy core only ever make an exchange slower.
async fn probe(member: &Arc<Member>, address: &str, last: Option<Link>) -> Result<Link> {
    let mut client = PeerClient::new(member.connections.to(address, None).await?);
    let mut best_of = async |bytes: usize| {
        let mut best = f64::INFINITY;
        for _ in 0..PROBE_EXCHANGES {
            let request = ProbeRequest { payload: vec![0; bytes], reply_bytes: bytes as u32 };
            let began = Instant::now();
            tokio::time::timeout(member.options.limits.read_timeout, client.probe(request))
                .await
                .map_err(|_| Error::unreachable(address, "the link is too slow to be measured"))?
                .map_err(|status| failed_call(address, &status))?;
            best = best.min(began.elapsed().as_secs_f64());
        }
        Ok::<f64, Error>(best)
    };
    let round_trip_seconds = best_of(0).await?;
    let bytes = last.map_or(MIN_PROBE_BYTES as f64, |link| link.bytes_per_s.0 * PROBE_SECONDS);
    let bytes = bytes.clamp(MIN_PROBE_BYTES as f64, MAX_PROBE_BYTES as f64) as usize;
    let seconds = best_of(bytes).await?;
    let bytes_per_s = 2.0 * bytes as f64 / (seconds - round_trip_seconds).max(1e-4);
    let bytes_per_s = BytesPerSecond(bytes_per_s.min(member.options.network_bytes_per_s));
    let link = Link { bytes_per_s, round_trip: Seconds(round_trip_seconds) };
    debug!(address, ?link, "measured the link");
    Ok(link)
}

/// The coordinator's side of a report. The reply says how the coordinator fares.
pub(crate) fn receive(member: &Arc<Member>, request: ReportRequest) -> Result<ReportReply> {
    let load = request.load.ok_or_else(|| Error::BadResult("a report without load".into()))?;
    let sample = convert::load_from_wire(&load)?;
    if request.address.len() > MAX_ADDRESS_BYTES {
        return Err(Error::BadResult(format!("{} says an address of {} bytes", sample.server, request.address.len())));
    }
    if sample.server == member.name {
        let name = &member.name;
        return Err(Error::Configuration(format!(
            "the coordinator itself is called {name}; give each server a name of its own (--name)"
        )));
    }
    let arrival = Arrival { address: &request.address, session: request.session, at: Instant::now() };
    let standing = member.registry.lock().arrive(&sample.server, arrival, member.stale_after(), member.retention())?;
    match standing {
        Standing::Continued => {}
        Standing::New => info!(server = %sample.server, address = request.address, "a server has joined"),
        Standing::Restarted => info!(server = %sample.server, address = request.address, "a server was restarted"),
        Standing::Moved => {
            info!(server = %sample.server, address = request.address, "a server has come back elsewhere")
        }
    }
    // Bounded like the registry. Without an address it is given no job.
    let _ = member.learn_address(&sample.server, &request.address);
    for job in &request.finished {
        let report = convert::report_from_wire(job)?;
        if member.registry.lock().is_news(&sample.server, request.session, job.number) {
            member.decide(Event::JobFinished(report));
        }
    }
    let report = ReceivedReport::new(sample.clone(), request.activity.as_ref());
    member.registry.lock().note(&sample.server, request.session, report);
    member.decide(Event::LoadSampled(sample));
    let own = member.last_sample();
    Ok(ReportReply { load: own.as_ref().map(convert::load_to_wire), activity: Some(member.activity().to_wire()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_server_measures_its_link_seldom_and_a_busy_one_again_and_again() {
        const SLOTS: u32 = 2;
        let link = Link { bytes_per_s: BytesPerSecond(1e8), round_trip: Seconds(1e-3) };
        let sample = |written: u64, worker_slots_free: u32| LoadSample {
            server: ecotone_types::ServerId::new("server").unwrap(),
            l0_tables: 0,
            input_bytes_per_s: BytesPerSecond(0.0),
            input_bytes_total: Bytes(written),
            memtable_bytes: Bytes(0),
            flushed_tables_total: 0,
            free_cores: Cores(1.0),
            cores: Cores(1.0),
            core_speed: 1.0,
            free_network_bytes_per_s: BytesPerSecond(0.0),
            link: None,
            worker_slots_free,
            stalled: false,
            active_watts: Watts(1.0),
            idle_watts: Watts(1.0),
            joules_total: Joules(0.0),
        };
        assert!(Measured::default().is_due(&sample(0, SLOTS), SLOTS));
        let input_bytes_total = Bytes(7);
        let measured = |reports| Measured { link: Some(link), probes: MIN_PROBES, reports, input_bytes_total };
        assert!(!measured(REPORTS_PER_IDLE_PROBE - 1).is_due(&sample(7, SLOTS), SLOTS), "idle");
        assert!(measured(REPORTS_PER_IDLE_PROBE).is_due(&sample(7, SLOTS), SLOTS), "idle for long");
        let begun = Measured { probes: MIN_PROBES - 1, ..measured(REPORTS_PER_PROBE) };
        assert!(begun.is_due(&sample(7, SLOTS), SLOTS), "the first measurements say too little");
        assert!(measured(REPORTS_PER_PROBE).is_due(&sample(8, SLOTS), SLOTS), "writes");
        assert!(measured(REPORTS_PER_PROBE).is_due(&sample(7, SLOTS - 1), SLOTS), "works for another");
        assert!(!measured(REPORTS_PER_PROBE - 1).is_due(&sample(8, SLOTS - 1), SLOTS), "measured a moment ago");
    }
}
