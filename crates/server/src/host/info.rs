//! What INFO tells of the store, the federation and the energy.

use std::collections::BTreeMap;

use ecotone_engine::{Counters, Store, StoreProperties, ValueLogProperties};
use ecotone_offload::FederationStatistics;
use ecotone_policy::duty::Duty;
use ecotone_policy::machine::ModelSummary;

use super::Around;

/// Models that are told. A federation of hundreds has one for every pair of servers and kind of job; who wants all asks each server.
const MOST_MODELS: usize = 64;

type Lines = Vec<(String, String)>;

fn line(name: &str, value: impl ToString) -> (String, String) {
    (name.to_owned(), value.to_string())
}

/// Counts by reason: `prefix_reason`, by name.
fn by_reason<'a>(prefix: &str, counts: impl IntoIterator<Item = (&'a &'static str, &'a u64)>) -> Lines {
    let sorted: BTreeMap<_, _> = counts.into_iter().collect();
    sorted.into_iter().map(|(reason, count)| line(&format!("{prefix}_{}", reason.replace('-', "_")), count)).collect()
}

/// The store.
pub(super) fn store(store: &Store) -> Lines {
    let counters = store.counters();
    let mut lines = vec![line("directory", store.directory().display())];
    match store.properties() {
        Ok(properties) => lines.extend(of_tree(&properties, &counters, store.value_log().as_ref())),
        Err(error) => lines.push(line("error", error)),
    }
    lines.extend([
        line("stall_ms_total", counters.stall_us() / 1000),
        line("writer_stall_ms_total", counters.writer_stall_us / 1000),
        line("flushes_total", counters.flushes),
        line("flush_bytes_total", counters.flush_bytes),
        line("compactions_total", counters.compactions),
        line("compactions_offloaded_total", counters.remote_compactions),
        line("compactions_failed_total", counters.failed_compactions),
        line("compaction_read_bytes_total", counters.compaction_read_bytes),
        line("compaction_written_bytes_total", counters.compaction_written_bytes),
        line("offloaded_read_bytes_total", counters.remote_read_bytes),
        line("offloaded_written_bytes_total", counters.remote_written_bytes),
        line("written_bytes_total", counters.bytes_written),
        line("block_cache_hits_total", counters.block_cache_hits),
        line("block_cache_misses_total", counters.block_cache_misses),
    ]);
    if let Some(written) = device_written_bytes() {
        lines.push(line("device_written_bytes_total", written));
        if counters.bytes_written > 0 {
            let ratio = written as f64 / counters.bytes_written as f64;
            lines.push(line("write_amplification_of_process", format!("{ratio:.2}")));
        }
    }
    if let Some(values) = store.value_log() {
        lines.extend([
            line("value_log_segments", values.segments),
            line("value_log_bytes", values.bytes),
            line("value_log_referenced_bytes", values.referenced_bytes),
            line("value_log_relocating_segments", values.relocating_segments),
            line("value_log_relocated_bytes_total", values.relocated_bytes),
            line("value_log_removed_bytes_total", values.removed_bytes),
            line("value_log_expired_values_total", values.expired_values),
            line("value_log_paced_ms_total", values.paced_ms),
        ]);
    }
    if let Some(room) = store.room() {
        lines.extend([
            line("space_writes_refused", u8::from(room.writes_refused)),
            line("space_free_bytes", room.free_bytes),
            line("space_disk_bytes", room.disk_bytes),
            line("space_reserve_bytes", room.reserve_bytes),
            line("space_pledged_bytes", room.pledged_bytes),
            line("space_spare_bytes", room.spare_bytes()),
            line("space_refused_writes_total", counters.refused_writes),
        ]);
        lines.extend(room.max_bytes.map(|bytes| line("space_max_bytes", bytes)));
        lines.extend(room.used_bytes.map(|bytes| line("space_used_bytes", bytes)));
    }
    lines
}

fn of_tree(properties: &StoreProperties, counters: &Counters, values: Option<&ValueLogProperties>) -> Lines {
    let writers = match properties {
        StoreProperties { write_stopped: true, .. } => "stopped",
        StoreProperties { delayed_write_rate_bytes_per_s: 1.., .. } => "slowed",
        _ => "run",
    };
    let mut lines = vec![
        line("writers", writers),
        line("delayed_write_rate_bytes_per_s", properties.delayed_write_rate_bytes_per_s),
        line("keys_estimate", properties.keys_estimate),
        line("table_bytes", properties.table_bytes),
        line("memtable_bytes", properties.memtable_bytes),
        line("memtables_waiting", properties.immutable_memtables),
        line("pending_compaction_bytes", properties.pending_compaction_bytes),
        line("running_flushes", properties.running_flushes),
        line("running_compactions", properties.running_compactions),
        line("running_offloaded_compactions", properties.running_remote_compactions),
        line("block_cache_bytes", properties.block_cache_bytes),
        line("background_errors", properties.background_errors),
        line("last_sequence", properties.last_sequence),
    ];
    for (level, of) in properties.levels.iter().enumerate() {
        lines.push(line(&format!("level{level}"), format!("tables={},bytes={}", of.tables, of.bytes)));
    }
    // Of what has left the memtables, by RocksDB's estimate of what lives.
    let live = properties.live_data_bytes_estimate + values.map_or(0, |values| values.referenced_bytes);
    let taken = properties.table_bytes + values.map_or(0, |values| values.bytes);
    if live > 0 && counters.flushes > 0 {
        lines.push(line("space_amplification_estimate", format!("{:.2}", taken as f64 / live as f64)));
    }
    lines
}

/// Bytes that the process wrote to its device, jobs of other servers included. `None` where the kernel counts none, as of a store in
/// memory.
fn device_written_bytes() -> Option<u64> {
    let io = std::fs::read_to_string("/proc/self/io").ok()?;
    let written: u64 = io.lines().find_map(|line| line.strip_prefix("write_bytes: "))?.trim().parse().ok()?;
    (written > 0).then_some(written)
}

/// The federation.
pub(super) fn federation(around: &Around) -> Lines {
    let FederationStatistics {
        offloaded,
        taken,
        declined,
        fallbacks,
        network_bytes_sent,
        network_bytes_received,
        running_worker_jobs,
    } = around.federation.statistics();
    let models = around.federation.models();
    let role = if around.join.is_some() { "member" } else { "coordinator" };
    let mut lines = vec![
        line("federation_name", around.name.as_str()),
        line("federation_role", role),
        line("federation_address", around.federation.address()),
    ];
    lines.extend(around.join.as_ref().map(|address| line("federation_coordinator", address)));
    lines.extend([
        line("policy", around.policy),
        line("worker_slots", around.worker_slots),
        line("running_worker_jobs", running_worker_jobs),
        line("jobs_offloaded_total", offloaded),
        line("jobs_taken_total", taken),
        line("jobs_declined_total", declined.values().sum::<u64>()),
    ]);
    lines.extend(by_reason("jobs_declined", &declined));
    lines.push(line("jobs_fallen_back_total", fallbacks.values().sum::<u64>()));
    lines.extend(by_reason("jobs_fallen_back", &fallbacks));
    lines.extend([
        line("network_sent_bytes_total", network_bytes_sent),
        line("network_received_bytes_total", network_bytes_received),
        line("ignored_messages_total", models.ignored_messages_total),
        line(
            "input_rate_model",
            format!(
                "samples={},predicted_bytes_per_s={:.0},{}",
                models.rate.samples,
                models.rate.predicted.0,
                errors(models.rate.recent_error, models.rate.mean_error)
            ),
        ),
        line("models", models.models.len()),
    ]);
    lines.extend(models.models.iter().take(MOST_MODELS).enumerate().map(|(number, model)| of_model(number, model)));
    lines
}

fn of_model(number: usize, model: &ModelSummary) -> (String, String) {
    let owner = model.owner.as_ref().map_or("", |owner| owner.as_str());
    let what = format!("{:?},class={:?}", model.kind, model.class).to_lowercase();
    let (server, samples) = (model.server.as_str(), model.samples);
    let errors = errors(model.recent_error, model.mean_error);
    line(&format!("model{number}"), format!("server={server},owner={owner},kind={what},samples={samples},{errors}"))
}

/// Relative errors, 0.05 for 5 %; empty before the first prediction was put to the test.
fn errors(recent: Option<f64>, mean: Option<f64>) -> String {
    let shown = |error: Option<f64>| error.map(|error| format!("{error:.3}")).unwrap_or_default();
    format!("recent_error={},mean_error={}", shown(recent), shown(mean))
}

/// The energy since the start.
pub(super) fn energy(around: &Around) -> Lines {
    let reading = around.duties.meter().reading();
    let mut lines =
        vec![line("energy_source", reading.source.name()), joules("energy_joules_total", reading.total_joules)];
    let duties = Duty::ALL.iter().map(|duty| duty.name());
    for name in duties.chain([ecotone_power::IDLE, ecotone_power::UNATTRIBUTED]) {
        let used = reading.energy_joules_by_duty.get(name).copied().unwrap_or(0.0);
        lines.push(joules(&format!("energy_joules_{name}"), used));
    }
    lines.extend(around.watch.watts().map(|watts| line("energy_watts", format!("{watts:.3}"))));
    lines.extend([
        line("busy_core_seconds_total", format!("{:.3}", reading.busy_core_seconds)),
        line("frequency_hz", format!("{:.0}", reading.frequency_hz)),
    ]);
    lines
}

fn joules(name: &str, joules: f64) -> (String, String) {
    line(name, format!("{joules:.3}"))
}
