//! The federation: jobs, network, models.

use std::collections::{BTreeMap, HashMap};

use ecotone_policy::machine::{DeclineReason, LocalReason, ModelKind, ModelSummary};
use ecotone_policy::predictor::JobClass;

use super::page::Page;
use crate::http::status::ServingParts;
use crate::monitor::ServerSample;

/// Kinds of failure that are shown from the start, as 0: who watches a rate must not miss the
/// first. Others come when they happen.
const FALLBACKS: [&str; 7] =
    ["bad-result", "deadline", "disk-full", "not-installed", "silent", "unreachable", "worker-failed"];

pub(super) fn write(page: &mut Page, sample: Option<&ServerSample>, parts: Option<&ServingParts>) {
    page.gauges(
        "ecotone_federation_info",
        "This server in its federation; always 1.",
        ["name", "role", "policy"],
        parts.map(|parts| ([parts.name.as_str(), parts.role, parts.policy], 1u64)),
    );
    page.gauge(
        "ecotone_federation_worker_slots",
        "Jobs of other servers that this one takes at a time.",
        parts.map(|parts| parts.worker_slots),
    );
    let done = sample.map(|sample| &sample.federation);
    page.gauge(
        "ecotone_federation_running_worker_jobs",
        "Jobs of other servers that run here.",
        done.map(|of| of.running_worker_jobs),
    );
    page.counter(
        "ecotone_federation_jobs_offloaded_total",
        "Compactions of this store that ran on a worker.",
        done.map(|of| of.offloaded),
    );
    page.counter(
        "ecotone_federation_jobs_taken_total",
        "Compactions of other servers that ran here.",
        done.map(|of| of.taken),
    );
    page.counters(
        "ecotone_federation_jobs_declined_total",
        "Jobs of other servers that were declined, by reason.",
        ["reason"],
        done.map(|of| by_reason(&of.declined, DeclineReason::ALL.map(DeclineReason::name))).unwrap_or_default(),
    );
    let fallbacks =
        LocalReason::ALL.into_iter().filter(|reason| reason.is_fallback() && *reason != LocalReason::Failed);
    let fallbacks = fallbacks.map(LocalReason::name).chain(FALLBACKS);
    page.counters(
        "ecotone_federation_jobs_fallen_back_total",
        "Compactions that ran at home because offloading them failed, by reason.",
        ["reason"],
        done.map(|of| by_reason(&of.fallbacks, fallbacks)).unwrap_or_default(),
    );
    let kept = LocalReason::ALL.into_iter().filter(|reason| !reason.is_fallback()).map(LocalReason::name);
    page.counters(
        "ecotone_federation_jobs_kept_total",
        "Compactions that ran at home because the policy wants them there, by reason; the parts of one count each.",
        ["reason"],
        done.map(|of| by_reason(&of.kept, kept)).unwrap_or_default(),
    );
    page.counter(
        "ecotone_federation_held_bytes_total",
        "Bytes of inputs of this server's jobs that were not sent, since their workers held them in copies.",
        done.map(|of| of.held_bytes),
    );
    page.counter(
        "ecotone_federation_sent_bytes_total",
        "Bytes of files sent to other servers.",
        done.map(|of| of.network_bytes_sent),
    );
    page.counter(
        "ecotone_federation_received_bytes_total",
        "Bytes of files received from other servers.",
        done.map(|of| of.network_bytes_received),
    );
    page.counter(
        "ecotone_federation_handshakes_total",
        "TLS handshakes with other servers that led to a connection, either way.",
        done.map(|of| of.handshakes),
    );
    page.counters(
        "ecotone_federation_handshakes_failed_total",
        "TLS handshakes with other servers that failed, by reason; none where servers speak plain text.",
        ["reason"],
        done.map(|of| by_reason(&of.failed_handshakes, [])).unwrap_or_default(),
    );
    page.gauge(
        "ecotone_federation_certificate_expiry_seconds",
        "When this server's certificate ends, in seconds since 1970; it is renewed 12 hours before. None in plain text.",
        done.and_then(|of| of.certificate_expiry_s),
    );
    models(page, sample);
}

fn by_reason(
    counts: &HashMap<&'static str, u64>,
    reasons: impl IntoIterator<Item = &'static str>,
) -> Vec<([&'static str; 1], u64)> {
    let mut all: BTreeMap<&'static str, u64> = reasons.into_iter().map(|reason| (reason, 0)).collect();
    all.extend(counts.iter().map(|(reason, count)| (*reason, *count)));
    all.into_iter().map(|(reason, count)| ([reason], count)).collect()
}

/// Models of all servers and pairs together, by what they predict: there are as many of them as the
/// federation is large squared.
fn models(page: &mut Page, sample: Option<&ServerSample>) {
    let models = sample.map(|sample| &sample.models);
    page.counter(
        "ecotone_federation_ignored_messages_total",
        "Messages of other servers that were ignored because a number in them was impossible or a limit was reached.",
        models.map(|of| of.ignored_messages_total),
    );
    page.gauge(
        "ecotone_federation_models",
        "Models of jobs that this server keeps: of itself, and as coordinator of others.",
        models.map(|of| of.models.len()),
    );
    let kinds = || models.into_iter().flat_map(|of| kinds().map(|(kind, class)| (kind, class, &of.models)));
    page.gauges(
        "ecotone_federation_model_samples",
        "Jobs that the models have learned from, summed over models.",
        ["kind", "class"],
        kinds().map(|(kind, class, all)| {
            (names(kind, class), of_kind(all, kind, class).map(|model| model.samples).sum::<u64>())
        }),
    );
    page.gauges(
        "ecotone_federation_model_error_ratio",
        "Mean relative error of recent predictions over all models, 0.05 for 5 %. None before the first prediction was put to the test.",
        ["kind", "class"],
        kinds().filter_map(|(kind, class, all)| {
            let errors: Vec<f64> = of_kind(all, kind, class).filter_map(|model| model.recent_error).collect();
            let mean = errors.iter().sum::<f64>() / errors.len() as f64;
            (!errors.is_empty()).then(|| (names(kind, class), mean))
        }),
    );
    page.gauge(
        "ecotone_federation_input_bytes_per_second",
        "Bytes that are forecast to come into memtables in the next second.",
        models.filter(|of| of.rate.samples > 0).map(|of| of.rate.predicted.0),
    );
    page.gauge(
        "ecotone_federation_input_error_ratio",
        "Mean relative error of recent forecasts of that.",
        models.and_then(|of| of.rate.recent_error),
    );
}

fn kinds() -> impl Iterator<Item = (ModelKind, JobClass)> {
    [ModelKind::Time, ModelKind::Energy].into_iter().flat_map(|kind| JobClass::ALL.map(|class| (kind, class)))
}

fn names(kind: ModelKind, class: JobClass) -> [&'static str; 2] {
    let kind = match kind {
        ModelKind::Time => "time",
        ModelKind::Energy => "energy",
    };
    let class = match class {
        JobClass::LevelZero => "level-zero",
        JobClass::Deeper => "deeper",
    };
    [kind, class]
}

fn of_kind(all: &[ModelSummary], kind: ModelKind, class: JobClass) -> impl Iterator<Item = &ModelSummary> {
    all.iter().filter(move |model| model.kind == kind && model.class == class)
}
