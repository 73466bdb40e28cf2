//! A snapshot as one JSON object: what the server reported, and the rates between two answers. What
//! is missing is `null`.

use serde_json::{Value, json};

use super::model::board::{Board, Row};

pub(super) fn object(board: &Board, at_unix_s: f64) -> Value {
    let Some(snapshot) = &board.snapshot else { return Value::Null };
    json!({
        "at_unix_s": at_unix_s,
        "asked": board.address,
        "server": snapshot.name,
        "version": snapshot.version,
        "run": snapshot.run,
        "role": snapshot.role,
        "policy": snapshot.policy,
        "coordinator": snapshot.coordinator,
        "uptime_s": snapshot.uptime_s,
        "servers": board.rows().iter().map(server).collect::<Vec<_>>(),
        "energy_source": snapshot.energy_source,
        "power_mode": snapshot.power_mode,
        "power_cap_watts": snapshot.power_cap.map(|cap| cap.0),
        "power_cap_kept": snapshot.power_cap.and_then(|cap| cap.1),
        "energy_joules_by_duty": snapshot.joules_by_duty,
        "watts_by_duty": board.own.watts_by_duty,
        "jobs_declined": snapshot.declined,
        "jobs_fallen_back": snapshot.fallen_back,
        "value_log": snapshot.values.map(|values| json!({
            "segments": values.segments,
            "bytes": values.bytes,
            "referenced_bytes": values.referenced_bytes,
            "gc_segments": values.gc_segments,
            "gc_bytes_total": values.gc_bytes_total,
            "removed_bytes_total": values.removed_bytes_total,
            "throttled_ms_total": values.throttled_ms_total,
        })),
        "duplicates": snapshot.duplicates.as_ref().map(|of| json!({
            "shadowed_keys": of.shadowed_keys,
            "shadowed_bytes": of.shadowed_bytes,
            "shadowed_bytes_by_level": of.by_level,
            "dup_ratio": of.dup_ratio,
            "error": of.error,
            "extensions_total": of.extensions_total,
            "merges_total": of.merges_total,
        })),
        "writes_refused": snapshot.writes_refused,
        "control": snapshot.control.as_ref().map(|of| json!({
            "leader": of.leader,
            "term": of.term,
            "voters": of.voters.split(',').filter(|name| !name.is_empty()).collect::<Vec<_>>(),
            "map_version": of.map_version,
            "shards": of.shards,
            "shards_owned": of.shards_owned,
            "certificate_left_s": of.certificate_left_s,
            "stopped": of.stopped,
        })),
        "copies": snapshot.copies.as_ref().map(|of| json!({
            "wanted": of.wanted,
            "level": of.level,
            "here": of.here,
            "here_in_sync": of.here_in_sync,
            "max_lag_bytes": of.max_lag_bytes,
            "max_lag_ms": of.max_lag_ms,
            "seeding_bytes": of.seeding_bytes,
            "seeding_of_bytes": of.seeding_of_bytes,
            "shards_unprotected": of.shards_unprotected,
            "shards_incomplete": of.shards_incomplete,
            "trouble": of.trouble,
        })),
    })
}

fn server(row: &Row<'_>) -> Value {
    let (state, rates) = (row.state, row.rates);
    json!({
        "name": state.name,
        "address": state.address,
        "role": state.role,
        "is_self": state.is_self,
        "is_gone": state.is_gone(),
        "report_age_ms": state.report_age_ms,
        "takes_jobs": state.takes_jobs,
        "uptime_ms": state.uptime_ms,
        "ops_per_s": rates.ops_per_s,
        "operations_total": state.operations_total,
        "write_bytes_per_s": rates.write_bytes_per_s,
        "written_bytes_total": state.written_bytes_total,
        "writers": state.writers,
        "stall_share": rates.stall_share,
        "stall_ms_total": state.stall_ms_total,
        "stall_in_s": state.stall_in_s,
        "l0_tables": state.l0_tables,
        "running_compactions": state.running_compactions,
        "running_offloaded": state.running_offloaded,
        "running_worker_jobs": state.running_worker_jobs,
        "cores": state.cores,
        "free_cores": state.free_cores,
        "frequency_hz": state.frequency_hz,
        "watts": rates.watts,
        "joules_per_op": rates.joules_per_op,
        "joules_total": state.joules_total,
        "energy_source": state.energy_source,
        "store_bytes": state.store_bytes,
        "live_bytes": state.live_bytes,
        "free_bytes": state.free_bytes,
        "space_amplification": state.space_amplification(),
        "jobs_offloaded_total": state.offloaded_total,
        "jobs_taken_total": state.taken_total,
        "jobs_declined_total": state.declined_total,
        "jobs_fallen_back_total": state.fallen_back_total,
    })
}
