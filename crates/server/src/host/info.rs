//! INFO's sections about the store, the federation and the energy.

use std::collections::BTreeMap;

use ecotone_cluster::{FederationStatistics, KnownServer};
use ecotone_energy::{EnergyView, Minute, PowerView};
use ecotone_engine::{CompressionProperties, Counters, DedupProperties, StoreProperties, ValueLogProperties};
use ecotone_policy::machine::ModelSummary;
use ecotone_types::Duty;
use ecotone_types::units::Hertz;

use super::Around;
use crate::monitor::{keys_about, taken_and_live_bytes, writers};
use crate::stores::Stores;

/// Models that are shown. A federation of hundreds has one for every pair of servers and kind of
/// job; who wants all asks each server.
const MAX_MODELS: usize = 64;

/// Servers that are shown: as many as a coordinator takes by default.
const MAX_SERVERS: usize = 256;

/// Groups of cores that are shown.
const MAX_DOMAINS: usize = 256;

/// Characters of a name or an address that are shown. An address is whatever a server says of
/// itself.
const MAX_CHARACTERS: usize = 256;

type Lines = Vec<(String, String)>;

fn line(name: &str, value: impl ToString) -> (String, String) {
    (name.to_owned(), value.to_string())
}

/// Counts by reason: `prefix_reason`, by name.
fn by_reason<'a>(prefix: &str, counts: impl IntoIterator<Item = (&'a &'static str, &'a u64)>) -> Lines {
    let sorted: BTreeMap<_, _> = counts.into_iter().collect();
    sorted.into_iter().map(|(reason, count)| line(&format!("{prefix}_{}", reason.replace('-', "_")), count)).collect()
}

/// The stores, all together. `keys` are those of clients, once they were counted.
pub(super) fn store(stores: &Stores, keys: Option<u64>) -> Lines {
    let counters = stores.counters();
    let mut lines = vec![line("directory", stores.directory().display())];
    // Who watches asks each second, and so may many others.
    let dedup = stores.cached_dedup();
    match stores.properties() {
        Ok(properties) => {
            let keys = keys.unwrap_or_else(|| keys_about(&properties, dedup.as_ref()));
            lines.push(line("keys_estimate", keys));
            lines.extend(of_tree(&properties, &counters, stores.value_log().as_ref(), dedup.as_ref()));
        }
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
        line("expired_values_total", counters.expired_values),
        line("written_bytes_total", counters.user_bytes()),
        line("block_cache_hits_total", counters.block_cache_hits),
        line("block_cache_misses_total", counters.block_cache_misses),
        line("row_cache_hits_total", counters.row_cache_hits),
        line("row_cache_misses_total", counters.row_cache_misses),
    ]);
    if let Some(written) = device_written_bytes() {
        lines.push(line("device_written_bytes_total", written));
        let user = counters.user_bytes();
        if user > 0 {
            let ratio = written as f64 / user as f64;
            lines.push(line("write_amplification_of_process", format!("{ratio:.2}")));
        }
    }
    if let Some(values) = stores.value_log() {
        lines.extend([
            line("value_log_segments", values.segments),
            line("value_log_bytes", values.bytes),
            line("value_log_referenced_bytes", values.referenced_bytes),
            line("value_log_gc_segments", values.gc_segments),
            line("value_log_gc_ratio", format!("{:.3}", values.ratio_per_mille as f64 / 1e3)),
            line("value_log_gc_bytes_total", values.relocated_bytes),
            line("value_log_removed_bytes_total", values.removed_bytes),
            line("value_log_throttled_ms_total", values.throttled_ms),
            line("value_log_user_bytes", values.referenced_bytes + values.saved_bytes),
            line("value_log_compression_ratio", format!("{:.3}", values.compression_ratio())),
        ]);
    }
    lines.extend(stores.value_compression().iter().flat_map(of_compression));
    lines.extend(dedup.iter().flat_map(of_duplicates));
    if let Some(space) = stores.free_space() {
        lines.extend([
            line("space_writes_refused", u8::from(space.writes_refused)),
            line("space_free_bytes", space.free_bytes),
            line("space_disk_bytes", space.disk_bytes),
            line("space_reserve_bytes", space.reserve_bytes),
            line("space_reservations_bytes", space.reserved_bytes),
            line("space_spare_bytes", space.spare_bytes()),
            line("space_refused_writes_total", counters.refused_writes),
        ]);
        lines.extend(space.max_bytes.map(|bytes| line("space_max_bytes", bytes)));
        lines.extend(space.used_bytes.map(|bytes| line("space_used_bytes", bytes)));
    }
    lines
}

fn of_compression(values: &CompressionProperties) -> Lines {
    let dictionary = values.dictionary.map_or_else(|| "none".to_owned(), |id| id.to_string());
    vec![
        line("value_compression_written", values.written_by.name()),
        line("value_compression_relocated", values.relocated_by.name()),
        line("value_compression_user_bytes_total", values.written.raw_bytes),
        line("value_compression_stored_bytes_total", values.written.stored_bytes),
        line("value_compression_dictionary", dictionary),
        line("value_compression_dictionary_memory_bytes", values.dictionary_memory_bytes),
        line("value_compression_thread_memory_bytes", values.thread_memory_bytes),
        line("value_compression_training_memory_bytes", values.training_memory_bytes),
        line("value_compression_trainings_total", values.trainings),
        line("value_compression_dictionaries_total", values.installed_dictionaries),
    ]
}

/// Shadowed versions, and what was done about them.
fn of_duplicates(dedup: &DedupProperties) -> Lines {
    let mut lines = vec![
        line("shadowed_keys_estimate", dedup.duplicate_keys),
        line("shadowed_bytes_estimate", dedup.shadowed_bytes),
        line("dedup_unsampled_tables", dedup.unsampled_tables),
        line("dedup_unfiltered_tables", dedup.unfiltered_tables),
    ];
    lines.extend(dedup.ratio().map(|ratio| line("dup_ratio_estimate", format!("{ratio:.2}"))));
    lines.extend(dedup.relative_error.map(|error| line("dup_ratio_error", format!("{error:.3}"))));
    lines.extend([
        line("dedup_busy", u8::from(dedup.is_busy)),
        line("dedup_checks_total", dedup.checks),
        line("dedup_checks_dropped_total", dedup.checks_dropped),
        line("dedup_extensions_total", dedup.extensions),
        line("dedup_merges_total", dedup.merges),
        line("dedup_merges_aborted_total", dedup.merges_aborted),
        line("dedup_expected_keys_total", dedup.expected_keys),
        line("dedup_found_keys_total", dedup.found_keys),
        line("dedup_read_bytes_total", dedup.read_bytes),
        line("dedup_written_bytes_total", dedup.written_bytes),
        line("dedup_check_cpu_ms_total", dedup.check_cpu_us / 1000),
        line("dedup_sketch_cpu_ms_total", dedup.sketch_cpu_us / 1000),
        line("dedup_merge_cpu_ms_total", dedup.merge_cpu_us / 1000),
    ]);
    lines.extend(by_reason("dedup_checks_skipped", &dedup.checks_left));
    lines.push(line("dedup_merges_deferred_total", dedup.merges_deferred.values().sum::<u64>()));
    lines.extend(by_reason("dedup_merges_deferred", &dedup.merges_deferred));
    lines
}

fn of_tree(
    properties: &StoreProperties,
    counters: &Counters,
    values: Option<&ValueLogProperties>,
    dedup: Option<&DedupProperties>,
) -> Lines {
    let mut lines = vec![
        line("writers", writers(properties).name()),
        line("delayed_write_rate_bytes_per_s", properties.delayed_write_rate_bytes_per_s),
        line("table_bytes", properties.table_bytes),
        line("memtable_bytes", properties.memtable_bytes),
        line("memtables_waiting", properties.immutable_memtables),
        line("pending_compaction_bytes", properties.pending_compaction_bytes),
        line("running_flushes", properties.running_flushes),
        line("running_compactions", properties.running_compactions),
        line("running_offloaded_compactions", properties.running_remote_compactions),
        line("block_cache_bytes", properties.block_cache_bytes),
        line("row_cache_bytes", properties.row_cache_bytes),
        line("background_errors", properties.background_errors),
        line("last_sequence", properties.last_sequence),
    ];
    for (level, of) in properties.levels.iter().enumerate() {
        let shadowed =
            dedup.map(|dedup| dedup.levels.get(level).copied().unwrap_or_default()).map_or_else(String::new, |of| {
                format!(",shadowed_keys={},shadowed_bytes={}", of.shadowed_keys, of.shadowed_bytes)
            });
        lines.push(line(&format!("level{level}"), format!("tables={},bytes={}{shadowed}", of.tables, of.bytes)));
    }
    let (taken, live) = taken_and_live_bytes(properties, values, dedup);
    if live > 0 && counters.flushes > 0 {
        lines.push(line("space_amplification_estimate", format!("{:.2}", taken as f64 / live as f64)));
    }
    lines
}

/// Bytes that the process wrote to its device, jobs of other servers included. `None` where the
/// kernel counts none, as of a store in memory.
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
        held_bytes,
        declined,
        fallbacks,
        kept,
        network_bytes_sent,
        network_bytes_received,
        running_worker_jobs,
        handshakes,
        failed_handshakes,
        certificate_expiry_s,
    } = around.federation.statistics();
    let models = around.federation.models();
    let role = if around.join.is_some() { "member" } else { "coordinator" };
    let mut lines = vec![
        line("federation_name", around.name.as_str()),
        line("federation_role", role),
        line("federation_address", around.federation.address()),
    ];
    lines.extend(around.join.as_ref().map(|address| line("federation_coordinator", address)));
    // In plain text there is none.
    lines.extend(certificate_expiry_s.map(|end| line("federation_certificate_expiry_seconds", end)));
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
    lines.push(line("jobs_kept_total", kept.values().sum::<u64>()));
    lines.extend(by_reason("jobs_kept", &kept));
    lines.extend([
        line("jobs_held_bytes_total", held_bytes),
        line("network_sent_bytes_total", network_bytes_sent),
        line("network_received_bytes_total", network_bytes_received),
        line("handshakes_total", handshakes),
        line("handshakes_failed_total", failed_handshakes.values().sum::<u64>()),
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
    let servers = around.federation.servers();
    lines.push(line("servers", servers.len()));
    lines.extend(servers.iter().take(MAX_SERVERS).enumerate().map(|(number, server)| of_server(number, server)));
    lines.extend(models.models.iter().take(MAX_MODELS).enumerate().map(|(number, model)| of_model(number, model)));
    lines
}

/// One server: what it did not report is left out. Rates and watts are those of its last second.
fn of_server(number: usize, server: &KnownServer) -> (String, String) {
    let role = if server.is_coordinator { "coordinator" } else { "member" };
    let mut fields = vec![
        ("name", text(server.name.as_str())),
        ("address", text(&server.address)),
        ("role", role.into()),
        ("self", u8::from(server.is_self).to_string()),
        ("report_age_ms", server.silent_for.as_millis().to_string()),
    ];
    if let Some(takes_jobs) = server.takes_jobs {
        fields.push(("takes_jobs", takes_jobs.map_or_else(|reason| reason.name().to_owned(), |()| "yes".into())));
    }
    if let Some(load) = &server.load {
        fields.extend([
            ("stalled", u8::from(load.stalled).to_string()),
            ("l0_tables", load.l0_tables.to_string()),
            ("input_bytes_per_s", format!("{:.0}", load.input_bytes_per_s.0)),
            ("cores", format!("{:.2}", load.cores.0)),
            ("free_cores", format!("{:.2}", load.free_cores.0)),
            ("worker_slots_free", load.worker_slots_free.to_string()),
            ("joules_total", format!("{:.3}", load.joules_total.0)),
        ]);
    }
    if let Some(activity) = &server.activity {
        fields.extend([
            ("uptime_ms", activity.uptime_ms.to_string()),
            ("writers", activity.writers.name().into()),
            ("ops_per_s", format!("{:.1}", activity.ops_per_s)),
            ("operations_total", activity.operations_total.to_string()),
            ("write_bytes_per_s", format!("{:.0}", activity.write_bytes_per_s)),
            ("written_bytes_total", activity.written_bytes_total.to_string()),
            ("stall_ms_total", activity.stall_ms_total.to_string()),
            ("running_compactions", activity.running_compactions.to_string()),
            ("running_offloaded", activity.running_offloaded.to_string()),
            ("running_worker_jobs", activity.running_worker_jobs.to_string()),
            ("watts", format!("{:.3}", activity.watts)),
            ("energy_source", activity.energy_source.clone()),
            ("frequency_hz", format!("{:.0}", activity.frequency_hz)),
            ("store_bytes", activity.store_bytes.to_string()),
            ("live_bytes", activity.live_bytes.to_string()),
            ("free_bytes", activity.free_bytes.to_string()),
            ("jobs_offloaded_total", activity.jobs_offloaded_total.to_string()),
            ("jobs_taken_total", activity.jobs_taken_total.to_string()),
            ("jobs_declined_total", activity.jobs_declined_total.to_string()),
            ("jobs_fallen_back_total", activity.jobs_fallen_back_total.to_string()),
        ]);
        fields.extend(activity.stall_in_s.map(|seconds| ("stall_in_s", format!("{seconds:.1}"))));
    }
    let fields: Vec<String> = fields.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    line(&format!("server{number}"), fields.join(","))
}

/// Words of another server as a value: what would end it, and control characters, as `%` with two
/// hexadecimal digits for each byte.
fn text(words: &str) -> String {
    let mut shown = String::new();
    for character in words.chars().take(MAX_CHARACTERS) {
        if character.is_control() || matches!(character, ',' | '=' | '%') {
            let mut bytes = [0; 4];
            character.encode_utf8(&mut bytes).bytes().for_each(|byte| shown.push_str(&format!("%{byte:02X}")));
        } else {
            shown.push(character);
        }
    }
    shown
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
    let (reading, view) = (around.energy.reading(), around.energy.view());
    let mut lines =
        vec![line("energy_source", reading.source.name()), joules("energy_joules_total", reading.total_joules)];
    let duties = Duty::ALL.iter().map(|duty| duty.name());
    for name in duties.chain([ecotone_energy::IDLE, ecotone_energy::UNATTRIBUTED]) {
        let used = reading.energy_joules_by_duty.get(name).copied().unwrap_or(0.0);
        lines.push(joules(&format!("energy_joules_{name}"), used));
    }
    lines.extend(around.sampler.watts().map(|watts| line("energy_watts", format!("{watts:.3}"))));
    lines.extend([
        line("busy_core_seconds_total", format!("{:.3}", reading.busy_core_seconds)),
        line("frequency_hz", format!("{:.0}", reading.frequency_hz)),
    ]);
    lines.extend(of_meter(&view));
    lines.extend(of_power(&view.power));
    let (promoted, below_speed) = around.energy.promotions();
    lines.extend([line("power_promotions", promoted), line("power_promotions_below_speed", below_speed)]);
    lines
}

/// How far joules are to be believed.
fn of_meter(view: &EnergyView) -> Lines {
    let mut lines = vec![
        line("energy_idle_watts", format!("{:.3}", view.model.0.0)),
        line("energy_active_watts", format!("{:.3}", view.model.1.0)),
        line("energy_cost_seconds_total", format!("{:.3}", view.cost.0)),
        line("energy_cost_share", format!("{:.6}", view.cost_share)),
    ];
    let Some(meter) = &view.meter else { return lines };
    lines.extend([
        line("energy_meter", meter.source.name()),
        line("energy_meter_covers", one_line(&meter.covers)),
        line("energy_meter_leaves_out", meter.leaves_out),
        line("energy_measured_share", format!("{:.4}", meter.measured_share)),
        joules("energy_others_joules_total", view.others.0),
        line("energy_meter_doubt", meter.doubt.map_or("none", |doubt| doubt.name())),
    ]);
    lines.extend(meter.memory.map(|memory| joules("energy_memory_joules_total", memory.0)));
    lines.extend(meter.error.map(|error| line("energy_model_error", format!("{error:.4}"))));
    lines.extend(view.watts.map(|watts| line("energy_machine_watts", format!("{:.3}", watts.0.0))));
    lines
}

fn one_line(words: &str) -> String {
    words.replace(char::is_control, " ")
}

fn of_power(power: &PowerView) -> Lines {
    let mut lines = vec![
        line("power_mode", power.mode),
        line("power_governor", power.governor),
        line("power_divided", u8::from(power.is_divided)),
    ];
    lines.extend(power.cap.map(|watts| line("power_cap_watts", format!("{:.3}", watts.0))));
    lines.extend(power.is_cap_kept.map(|kept| line("power_cap_kept", u8::from(kept))));
    lines.extend(power.most.map(|watts| line("power_most_watts", format!("{:.3}", watts.0))));
    let hertz = |hertz: Option<Hertz>| hertz.map(|hertz| format!("{:.0}", hertz.0)).unwrap_or_default();
    for (number, domain) in power.domains.iter().enumerate().take(MAX_DOMAINS) {
        let cores: Vec<String> = domain.cores.iter().map(u32::to_string).collect();
        let (cores, class) = (cores.join(" "), domain.class.name());
        let (cap, now) = (hertz(domain.cap), hertz(domain.reached));
        lines.push(line(&format!("domain{number}"), format!("cores={cores},class={class},cap_hz={cap},hz={now}")));
    }
    lines.extend(power.trouble.iter().map(|trouble| line("power_trouble", one_line(trouble))));
    lines
}

/// The last hour, a minute in each line, oldest first.
pub(super) fn energy_history(around: &Around) -> Lines {
    let minutes = around.energy.minutes();
    let of = |(number, minute): (usize, &Minute)| {
        line(&format!("minute{number}"), serde_json::to_string(minute).unwrap_or_default())
    };
    minutes.iter().enumerate().map(of).collect()
}

fn joules(name: &str, joules: f64) -> (String, String) {
    line(name, format!("{joules:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_newer_versions_hide_is_told_by_level_and_does_not_live() {
        let levels = vec![ecotone_engine::LevelProperties { tables: 2, bytes: 300 }; 2];
        let properties =
            StoreProperties { levels, table_bytes: 600, live_data_bytes_estimate: 500, ..StoreProperties::default() };
        let values = ValueLogProperties { bytes: 4_000, referenced_bytes: 3_500, ..ValueLogProperties::default() };
        let counters = Counters { flushes: 1, ..Counters::default() };
        let dedup = DedupProperties {
            total_keys: 1_000,
            duplicate_keys: 128,
            shadowed_bytes: 1_700,
            levels: vec![ecotone_engine::DedupLevel { shadowed_keys: 128, shadowed_bytes: 1_700 }],
            merges_deferred: BTreeMap::from([("slowed", 2), ("would-stall", 3)]),
            ..DedupProperties::default()
        };
        let tree = |dedup| of_tree(&properties, &counters, Some(&values), dedup);
        let value = |lines: &Lines, name: &str| lines.iter().find(|line| line.0 == name).map(|line| line.1.clone());
        let lines = tree(Some(&dedup));
        assert_eq!(
            value(&lines, "level0").as_deref(),
            Some("tables=2,bytes=300,shadowed_keys=128,shadowed_bytes=1700")
        );
        assert_eq!(value(&lines, "level1").as_deref(), Some("tables=2,bytes=300,shadowed_keys=0,shadowed_bytes=0"));
        assert_eq!(value(&lines, "space_amplification_estimate").as_deref(), Some("2.00"));
        let lines = tree(None);
        assert_eq!(value(&lines, "level0").as_deref(), Some("tables=2,bytes=300"));
        assert_eq!(value(&lines, "space_amplification_estimate").as_deref(), Some("1.15"));
        let lines = of_duplicates(&dedup);
        assert_eq!(value(&lines, "dup_ratio_estimate").as_deref(), Some("7.81"));
        assert_eq!(
            (value(&lines, "dup_ratio_error"), value(&lines, "dedup_merges_total").as_deref()),
            (None, Some("0"))
        );
        let deferred =
            ["total", "slowed", "would_stall"].map(|reason| value(&lines, &format!("dedup_merges_deferred_{reason}")));
        assert_eq!(deferred.each_ref().map(Option::as_deref), [Some("5"), Some("2"), Some("3")]);
    }

    #[test]
    fn words_of_another_server_end_no_field_and_no_line() {
        assert_eq!(text("edge-1 (Köln)"), "edge-1 (Köln)");
        assert_eq!(text("a,self=1\r\n\u{1b}[2J\u{9b}100%"), "a%2Cself%3D1%0D%0A%1B[2J%C2%9B100%25");
        assert_eq!(text(&"x".repeat(1 << 20)).len(), MAX_CHARACTERS);
    }
}
