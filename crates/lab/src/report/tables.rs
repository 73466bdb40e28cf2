//! The tables of a report.

use ecotone_bench::report::format::{bytes, change, grouped, microjoules, of_source, percent, seconds, stall_change};
use ecotone_bench::report::table::Table;

use crate::summary::{LabReport, PolicyRun, Relative};

/// Throughput, stalls, energy and offloading of every server under every policy, each beside its
/// change from `local`.
pub(super) fn results(report: &LabReport) -> Table {
    let mixed = report.runs.iter().any(|run| run.total.reads_per_s > 0.0 && run.total.writes_per_s > 0.0);
    let against = report.local().map(|run| format!("vs {}", run.policy));
    let compared = against.is_some();
    let against = against.unwrap_or_default();
    let mut table = Table::default().words("policy").words("server").numbers("op/s");
    if compared {
        table = table.numbers(&against);
    }
    if mixed {
        for head in ["reads/s", "writes/s"] {
            table = table.numbers(head);
            if compared {
                table = table.numbers(&against);
            }
        }
    }
    table = table.numbers("stall s");
    if compared {
        table = table.numbers(&against);
    }
    table = table.numbers(&of_source("µJ/op", &report.energy_source()));
    if compared {
        table = table.numbers(&against);
    }
    let tells_space = report.runs.iter().flat_map(|run| &run.servers).any(|server| server.sar_at_end.is_some());
    if tells_space {
        table = table.numbers("SAR at end");
    }
    table = table.numbers("offloaded").numbers("taken");

    for run in &report.runs {
        let mut row = |name: &str, numbers: &Numbers, taken: u64, sum: bool| {
            let relative = numbers.relative.unwrap_or_default();
            // Only the first row of a policy names it, so that the eye finds the groups.
            let first = run.servers.first().is_some_and(|server| server.name == name);
            let mut cells = vec![if first { run.policy.clone() } else { String::new() }, name.to_owned()];
            let mut put = |own: String, change: String| {
                cells.push(own);
                if compared {
                    cells.push(if numbers.relative.is_some() { change } else { String::new() });
                }
            };
            put(grouped(numbers.ops_per_s), change(relative.ops_per_s));
            if mixed {
                put(grouped(numbers.reads_per_s), change(relative.reads_per_s));
                put(grouped(numbers.writes_per_s), change(relative.writes_per_s));
            }
            put(seconds(numbers.stall_ms), stall_change(numbers.stall_ms, relative.stall_ms));
            put(microjoules(numbers.epo_uj), change(relative.epo_uj));
            if tells_space {
                cells.push(numbers.sar_at_end.map_or_else(|| "-".to_owned(), |sar| format!("{sar:.2}")));
            }
            cells.push(numbers.offloaded.to_string());
            cells.push(taken.to_string());
            if sum { table.sum(cells) } else { table.row(cells) }
        };
        for server in &run.servers {
            let numbers = Numbers {
                ops_per_s: server.ops_per_s,
                reads_per_s: server.reads_per_s,
                writes_per_s: server.writes_per_s,
                stall_ms: server.stall_ms,
                epo_uj: server.epo_uj,
                sar_at_end: server.sar_at_end,
                offloaded: server.offloaded,
                relative: server.relative,
            };
            row(&server.name, &numbers, server.taken, false);
        }
        let total = &run.total;
        let numbers = Numbers {
            ops_per_s: total.ops_per_s,
            reads_per_s: total.reads_per_s,
            writes_per_s: total.writes_per_s,
            stall_ms: total.stall_ms,
            epo_uj: total.epo_uj,
            sar_at_end: total.sar_at_end,
            offloaded: total.offloaded,
            relative: total.relative,
        };
        row("total", &numbers, run.servers.iter().map(|server| server.taken).sum(), true);
    }
    table
}

/// What a row of [`results`] shows of a server or of all of them.
struct Numbers {
    ops_per_s: f64,
    reads_per_s: f64,
    writes_per_s: f64,
    stall_ms: f64,
    epo_uj: Option<f64>,
    sar_at_end: Option<f64>,
    offloaded: u64,
    relative: Option<Relative>,
}

/// How well the policies predicted, and what came home.
pub(super) fn models(report: &LabReport) -> Table {
    let mut table = (Table::default().words("policy").numbers("time error").numbers("energy error").numbers("jobs"))
        .numbers("rate error, calm")
        .numbers("seconds")
        .numbers("rate error, all")
        .numbers("came home")
        .words("because");
    for run in &report.runs {
        let models = &run.models;
        table.row(vec![
            run.policy.clone(),
            percent(models.time_error),
            percent(models.energy_error),
            models.jobs.to_string(),
            percent(models.rate_error),
            models.seconds.to_string(),
            percent(models.rate_error_with_stalls),
            run.total.fallbacks.to_string(),
            reasons(run),
        ]);
    }
    table
}

/// Why offloaded compactions came home, most frequent first.
fn reasons(run: &PolicyRun) -> String {
    let mut counts = std::collections::BTreeMap::<&str, u64>::new();
    for (reason, count) in run.servers.iter().flat_map(|server| &server.fallbacks) {
        *counts.entry(reason).or_default() += count;
    }
    let mut counts: Vec<(&str, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(reason, count)| (std::cmp::Reverse(*count), *reason));
    counts.iter().map(|(reason, count)| format!("{reason} {count}")).collect::<Vec<_>>().join(", ")
}

/// The servers as they were emulated.
pub(super) fn servers(report: &LabReport) -> Table {
    let mut table = (Table::default().words("server").words("tier").numbers("cores").numbers("busy at most"))
        .numbers("speed (host cores)")
        .numbers("W per busy core")
        .numbers("W idle")
        .numbers("worker slots");
    let offered = !report.offered.ops_per_s.is_empty();
    if offered {
        table = table.numbers("offered op/s");
    }
    for server in &report.emulated.servers {
        let mut cells = vec![
            server.name.clone(),
            server.tier.clone(),
            server.cores.to_string(),
            server.busy_cores.to_string(),
            format!("{:.3}", server.speed),
            server.active_watts.to_string(),
            server.idle_watts.to_string(),
            server.worker_slots.to_string(),
        ];
        if offered {
            cells
                .push(report.offered.ops_per_s.get(&server.name).map_or_else(|| "-".to_owned(), |rate| grouped(*rate)));
        }
        table.row(cells);
    }
    table
}

/// The sizes of every store, in a line.
pub(super) fn store(report: &LabReport) -> String {
    let store = &report.emulated.store;
    let mut parts = Vec::new();
    for (what, size) in
        [("memtable", store.memtable_bytes), ("level 1", store.level_base_bytes), ("tables", store.target_file_bytes)]
    {
        parts.extend(size.map(|size| format!("{what} {}", bytes(size))));
    }
    parts.push(format!(
        "level 0: compaction from {} tables, writes slowed from {}, stopped at {}",
        store.l0_compaction_trigger, store.l0_slowdown_trigger, store.l0_stop_trigger
    ));
    parts.join("; ")
}
