//! The metrics of a server, from the same typed sources as INFO.
//!
//! What belongs to the store, the federation and the energy is as the sampler last
//! [sampled](crate::monitor::ServerSample) it, at most about a second ago; what belongs to clients
//! and the process is read when it is asked for. No lock of the store is taken, and nothing is read
//! from the device: `/proc` is memory.

mod clients;
mod control;
mod energy;
mod federation;
mod page;
mod process;
mod reference;
mod replication;
mod store;

use std::time::Instant;

use ecotone_resp::service::Service;

use super::health;
use super::status::{Phase, ServerStatus, ServingParts};
use crate::monitor::ServerSample;
use page::{Family, Page};

pub use reference::reference;

/// What a page is made of. Where something is missing its metrics have no values.
#[derive(Default)]
struct Source<'a> {
    parts: Option<&'a ServingParts>,
    sample: Option<&'a ServerSample>,
    service: Option<&'a Service>,
    is_healthy: Option<bool>,
    is_ready: Option<bool>,
}

/// The page of a server at `now`.
pub(super) fn page(status: &ServerStatus, now: Instant) -> String {
    let phase = status.phase();
    let parts = match &*phase {
        Phase::Serving(parts) => Some(parts),
        Phase::Opening | Phase::Stopping => None,
    };
    let sample = parts.and_then(|parts| parts.sampler.sample());
    let service = parts.and_then(|parts| parts.clients.as_ref()?.service.upgrade());
    let source = Source {
        parts,
        sample: sample.as_deref(),
        service: service.as_deref(),
        is_healthy: Some(health::hanging(&phase, now).is_empty()),
        is_ready: Some(health::unready(&phase, now).is_empty()),
    };
    written(&source).finish().0
}

/// All metrics there are, in the order of the page.
fn families() -> Vec<Family> {
    written(&Source::default()).finish().1
}

fn written(source: &Source<'_>) -> Page {
    let mut page = Page::default();
    server(&mut page, source);
    clients::write(&mut page, source.service);
    store::write(&mut page, source.sample, source.parts);
    federation::write(&mut page, source.sample, source.parts);
    control::write(&mut page, source.sample.and_then(|sample| sample.known.as_deref()));
    replication::write(&mut page, source.sample);
    energy::write(&mut page, source.sample);
    process::write(&mut page, source.sample);
    page
}

fn server(page: &mut Page, source: &Source<'_>) {
    page.gauges("ecotone_build_info", "The program; always 1.", ["version"], [([env!("CARGO_PKG_VERSION")], 1u64)]);
    page.gauge("ecotone_healthy", "Whether /healthz answers 200: no thread that serves hangs.", source.is_healthy);
    page.gauge("ecotone_ready", "Whether /readyz answers 200: clients are served and may write.", source.is_ready);
    let lost = source.parts.map(|parts| parts.lost_log_lines.as_ref().map_or(0, |lost| lost()));
    page.counter(
        "ecotone_log_lines_lost_total",
        "Lines of the log that were lost, since nobody read it fast enough.",
        lost,
    );
    let age_s = source.sample.map(|sample| Instant::now().saturating_duration_since(sample.at).as_secs_f64());
    page.gauge(
        "ecotone_sample_age_seconds",
        "Age of the figures of the store, the federation and the energy: about a second at most unless the sampler hangs.",
        age_s,
    );
}
