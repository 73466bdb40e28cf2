//! Load reports: once a second every server tells the coordinator how it fares and which jobs have ended.
//!
//! The own policy is told by whoever measures, once for each measurement ([`measured`]); what is sent is the last of them. A
//! slow coordinator delays reports and nothing else.
//!
//! A coordinator that does not answer, or refuses this server, is tried again at the next report; until then every compaction
//! is local.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ecotone_policy::machine::{Event, JobReport, Link, LoadSample};
use ecotone_policy::units::{Bytes, BytesPerSecond, Cores, Joules, Seconds, Watts};
use tonic::Code;
use tracing::{debug, info, warn};

use crate::activity::Told;
use crate::convert;
use crate::error::{Error, Result};
use crate::federation::Shared;
use crate::heard::{Arrival, Standing};
use crate::protocol::failed_call;
use crate::protocol::wire::coordinator_client::CoordinatorClient;
use crate::protocol::wire::peer_client::PeerClient;
use crate::protocol::wire::{ProbeRequest, ReportReply, ReportRequest};

/// Exchanges of one size when a link is measured.
const PROBE_EXCHANGES: usize = 3;
/// Time that one measuring exchange should take by what is known of the link: longer than a round trip, short enough not to
/// disturb.
const PROBE_SECONDS: f64 = 0.02;
/// Least bytes of a measuring exchange each way.
const PROBE_BYTES_MIN: usize = 64 << 10;
/// Most bytes of a measuring exchange each way.
const PROBE_BYTES_MAX: usize = 1 << 20;
/// The longest address that a server may say it has: a name of DNS, a port, and room to spare.
const ADDRESS_BYTES_MAX: usize = 1024;
/// Reports between two measurements of the link: what it carries changes with what runs on both ends.
const REPORTS_PER_PROBE: u32 = 5;

/// Finished jobs that the coordinator has not confirmed, numbered in the order in which they ended.
#[derive(Debug)]
pub(crate) struct Unreported {
    session: u64,
    last_number: u64,
    jobs: VecDeque<(u64, JobReport)>,
}

impl Default for Unreported {
    fn default() -> Self {
        // The standard library seeds each of these at random.
        let session = RandomState::new().build_hasher().finish();
        Unreported { session, last_number: 0, jobs: VecDeque::new() }
    }
}

impl Unreported {
    /// Keeps a job until it is confirmed; of more than `limit` the oldest go.
    pub(crate) fn push(&mut self, job: JobReport, limit: usize) {
        self.last_number += 1;
        self.jobs.push_back((self.last_number, job));
        while self.jobs.len() > limit {
            self.jobs.pop_front();
        }
    }

    /// Drawn at this start of the server.
    pub(crate) fn session(&self) -> u64 {
        self.session
    }

    fn forget_until(&mut self, last: u64) {
        self.jobs.retain(|(number, _)| *number > last);
    }
}

/// Reports to the coordinator until the server stops. Not for the coordinator itself.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut tick = tokio::time::interval(shared.options.limits.report_interval);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut link = None;
    let mut reports_sent = 0;
    // The kind of error that the last report met; each is logged once while it lasts.
    let mut trouble = None;
    loop {
        tick.tick().await;
        let Some(mut sample) = shared.last_sample() else { continue };
        sample.link = link;
        let outcome = report(&shared, &sample, &mut link, &mut reports_sent).await;
        shared.is_accepted.store(outcome.is_ok(), Ordering::Release);
        match outcome {
            Ok(()) => {
                if trouble.take().is_some() {
                    info!(coordinator = shared.coordinator_address(), "the coordinator takes reports again");
                }
            }
            Err(error) => {
                shared.connections.forget(&shared.coordinator_address());
                if trouble.replace(error.kind()) != Some(error.kind()) {
                    warn!(%error, "the coordinator takes no reports; every compaction is local until it does");
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
        server: shared.name.clone(),
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
    let (session, finished) = {
        let unreported = shared.unreported.lock();
        (unreported.session, unreported.jobs.iter().cloned().collect::<Vec<_>>())
    };
    let request = ReportRequest {
        load: Some(convert::load_to_wire(sample)),
        address: shared.address(),
        finished: finished.iter().map(|(number, job)| convert::report_to_wire(*number, job)).collect(),
        session,
        activity: Some(shared.activity().to_wire()),
    };
    let mut coordinator = CoordinatorClient::new(channel);
    let outcome = tokio::time::timeout(shared.options.limits.heartbeat_timeout, coordinator.report(request))
        .await
        .map_err(|_| Error::unreachable(&address, "no answer to a report in time"))
        .and_then(|reply| {
            reply.map_err(|status| match status.code() {
                Code::AlreadyExists => Error::Configuration(status.message().to_owned()),
                Code::ResourceExhausted => Error::NoRoom(status.message().to_owned()),
                _ => failed_call(&address, &status),
            })
        });
    // Without an answer they are sent again: the coordinator may have heard them or not, and knows them by their numbers.
    outcome.map(|reply| {
        // Told for people only: what makes no sense in it is left out, and the report counts.
        let told = reply.into_inner();
        if let Some(load) = told.load.and_then(|load| convert::load_from_wire(&load).ok()) {
            shared.coordinator_told(Told::new(load, told.activity.as_ref()));
        }
        if let Some((last, _)) = finished.last() {
            shared.unreported.lock().forget_until(*last);
        }
    })
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
                .map_err(|status| failed_call(address, &status))?;
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

/// The coordinator's side of a report. The reply tells how the coordinator fares.
pub(crate) fn receive(shared: &Arc<Shared>, request: ReportRequest) -> Result<ReportReply> {
    let load = request.load.ok_or_else(|| Error::BadResult("a report without load".into()))?;
    let sample = convert::load_from_wire(&load)?;
    if request.address.len() > ADDRESS_BYTES_MAX {
        return Err(Error::BadResult(format!("{} says an address of {} bytes", sample.server, request.address.len())));
    }
    if sample.server == shared.name {
        let name = &shared.name;
        return Err(Error::Configuration(format!(
            "the coordinator itself is called {name}; give each server a name of its own (--name)"
        )));
    }
    let arrival = Arrival { address: &request.address, session: request.session, at: Instant::now() };
    let standing = shared.heard.lock().arrive(&sample.server, arrival, shared.stale_after(), shared.room())?;
    match standing {
        Standing::Known => {}
        Standing::New => info!(server = %sample.server, address = request.address, "a server has joined"),
        Standing::Restarted => info!(server = %sample.server, address = request.address, "a server was restarted"),
        Standing::Moved => {
            info!(server = %sample.server, address = request.address, "a server has come back elsewhere")
        }
    }
    // As much room as for what is heard. Without an address it is given no job.
    let _ = shared.learn_address(&sample.server, &request.address);
    for job in &request.finished {
        let report = convert::report_from_wire(job)?;
        if shared.heard.lock().is_news(&sample.server, request.session, job.number) {
            shared.decide(Event::JobFinished(report));
        }
    }
    let told = Told::new(sample.clone(), request.activity.as_ref());
    shared.heard.lock().note(&sample.server, request.session, told);
    shared.decide(Event::LoadSampled(sample));
    let own = shared.last_sample();
    Ok(ReportReply { load: own.as_ref().map(convert::load_to_wire), activity: Some(shared.activity().to_wire()) })
}
