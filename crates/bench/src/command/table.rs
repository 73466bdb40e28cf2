//! Reports for people.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{BenchReport, Comparison, Ratios};
use crate::target::TargetSettings;
use crate::workload::WorkloadOptions;

/// One run as lines of text.
pub fn report_table(report: &BenchReport) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<22}{value}");
    };
    line("workload", format!("{} on {}", report.workload, report.target));
    match &report.server {
        None => line("store", layout(&report.options.store)),
        Some(server) => {
            line("server", format!("{} {} at {}", server.kind, server.version, server.address));
            line("connections", format!("{}, each with {} under way", server.connections, server.pipeline));
        }
    }
    line("values", values(&report.options.workload));
    line("operations", format!("{} in {:.2} s", grouped(report.ops), report.seconds));
    if let Some(entries) = report.scan_entries {
        line("entries per seek", grouped(u64::from(entries)));
    }
    line("throughput", format!("{} op/s", grouped(report.ops_per_s.round() as u64)));
    for (kind, ops) in &report.ops_by_kind {
        let per_s = grouped((*ops as f64 / report.seconds).round() as u64);
        line(&format!("  {kind}"), format!("{} op/s", per_s));
    }
    for (kind, latency) in &report.latency_us {
        let times = format!(
            "p50 {}   p99 {}   p99.9 {}   max {}",
            duration(latency.p50),
            duration(latency.p99),
            duration(latency.p999),
            duration(latency.max)
        );
        line(&format!("latency of {kind}"), times);
    }
    line("stalled", known(report.stall_ms.map(|ms| format!("{ms:.0} ms"))));
    line("user data written", bytes(report.bytes_user));
    line("written to device", known(report.bytes_device.map(bytes)));
    line("write amplification", known(report.war.map(ratio)));
    line("  second half", known(report.war_steady.map(ratio)));
    line("space amplification", known(report.sar.map(ratio)));
    line("  before settling", known(report.sar_at_end.map(ratio)));
    line("  highest", known(report.sar_max.map(ratio)));
    line("  mean, second half", known(report.sar_mean_steady.map(ratio)));
    if report.options.store.separation_min_bytes.is_some() {
        line("moved by GC", known(report.gc_bytes.map(bytes)));
        line("  writers throttled", known(report.throttled_ms.map(|ms| format!("{ms} ms"))));
        line("  processor time", known(report.gc_cpu_share.map(|share| format!("{:.1} %", share * 100.0))));
    }
    if report.options.store.dedup.is_some() {
        let found = &report.duplicates;
        let of = |shadowed: Option<u64>, dup_ratio: Option<f64>| {
            format!("{}, one in {} entries", known(shadowed.map(bytes)), known(dup_ratio.map(|it| format!("{it:.1}"))))
        };
        line("shadowed", of(found.shadowed_bytes_true, found.dup_ratio_true));
        if found.shadowed_bytes_estimated.is_some() {
            let error = known(found.dup_ratio_error.map(|error| format!("{:.1} %", error * 100.0)));
            line(
                "  as estimated",
                format!("{}, +- {error}", of(found.shadowed_bytes_estimated, found.dup_ratio_estimated)),
            );
        }
        if let (Some(extensions), Some(merges)) = (found.dedup_extensions, found.dedup_merges) {
            let share = |share: Option<f64>| known(share.map(|share| format!("{:.1} %", share * 100.0)));
            let read = known(found.dedup_read_bytes.map(bytes));
            line("  extended", format!("{extensions} compactions, by {merges} merges of {read}"));
            line("  of compactions' CPU", format!("{} counting", share(found.dedup_cpu_share)));
            line("", format!("{} merging", share(found.dedup_merge_cpu_share)));
        }
    }
    line("processor time", known(report.cpu_seconds.map(|seconds| format!("{seconds:.2} s"))));
    line("  per operation", known(report.cpu_us_per_op.map(|us| format!("{us:.2} us"))));
    line("memory peak", known(report.rss_max_bytes.map(bytes)));
    if let Some(server) = &report.server {
        line("memory at the end", known(server.memory_bytes.map(bytes)));
        let source = server.energy_source.as_deref().unwrap_or("unknown source");
        line("energy", known(server.energy_joules.map(|joules| format!("{joules:.2} J ({source})"))));
        line("  per operation", known(server.epo_uj.map(|uj| format!("{uj:.1} uJ"))));
    }
    if report.missed > 0 {
        line("found nothing", format!("{} reads", grouped(report.missed)));
    }
    let mut figures = BTreeMap::<&str, Vec<&str>>::new();
    for (figure, reason) in &report.unavailable {
        figures.entry(reason).or_default().push(figure);
    }
    for (reason, figures) in figures {
        line("note", format!("{}: {reason}", figures.join(", ")));
    }
    text
}

/// A comparison as a table: what each side was opened with, each round, then the median of the
/// ratios of our store by the mark.
pub fn comparison_table(comparison: &Comparison) -> String {
    let mut text = String::new();
    let heads = ["op/s", "cpu/op", "stall", "war", "sar", "sar, end", "sar, max", "rss"];
    let mark = comparison.rounds.first().map_or("", |round| round.baseline.target.name());
    for report in comparison.rounds.first().iter().flat_map(|round| [&round.engine, &round.baseline]) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:<23}{}", report.target, layout(&report.options.store));
    }
    if let Some(round) = comparison.rounds.first() {
        let _ = writeln!(text, "{:<23}{}", "values", values(&round.engine.options.workload));
    }
    row(&mut text, &format!("engine / {mark}"), heads.map(str::to_owned));
    let cells = |ratios: &Ratios| {
        [
            ratios.ops_per_s,
            ratios.cpu_us_per_op,
            ratios.stall_ms,
            ratios.war,
            ratios.sar,
            ratios.sar_at_end,
            ratios.sar_max,
            ratios.rss_max_bytes,
        ]
        .map(|ratio| known(ratio.map(|ratio| format!("{ratio:.3}"))))
    };
    for (number, round) in comparison.rounds.iter().enumerate() {
        row(&mut text, &format!("round {}", number + 1), cells(&round.ratios()));
    }
    row(&mut text, "median", cells(&comparison.median));
    row(&mut text, "least", cells(&comparison.least));
    row(&mut text, "greatest", cells(&comparison.greatest));
    text
}

/// How long values are, and what they consist of.
fn values(workload: &WorkloadOptions) -> String {
    format!("{} of {} B", workload.values, grouped(workload.value_bytes.into()))
}

/// Where values lie, and the sizes that follow from it.
fn layout(store: &TargetSettings) -> String {
    let values = store
        .separation_min_bytes
        .map_or("with their keys".to_owned(), |from| format!("of {from} B or more separated"));
    let sizes = match store.store_options() {
        // Options of the store may say otherwise.
        Ok(options) => {
            (options.memtable_count, [options.memtable_bytes, options.level_base_bytes, options.target_file_bytes])
        }
        Err(_) => (store.memtable_count, [store.memtable_bytes, store.level_base_bytes, store.target_file_bytes]),
    };
    let (count, [memtable, level, table]) = (sizes.0, sizes.1.map(bytes));
    format!("values {values}; {count} memtables of {memtable}, level 1 {level}, tables {table}")
}

fn row(text: &mut String, name: &str, cells: [String; 8]) {
    let cells: String = cells.iter().map(|cell| format!("{cell:>10}")).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{name:<23}{cells}");
}

fn ratio(ratio: f64) -> String {
    format!("{ratio:.2}")
}

fn known(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".into())
}

fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = (bytes.ilog2() / 10).min(UNITS.len() as u32);
    format!("{:.1} {}", bytes as f64 / (1u64 << (10 * power)) as f64, UNITS[power as usize - 1])
}

fn duration(us: f64) -> String {
    match us {
        _ if us < 1e3 => format!("{us:.1} us"),
        _ if us < 1e6 => format!("{:.1} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

/// Digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!([0, 999, 1000, 1234567].map(grouped), ["0", "999", "1 000", "1 234 567"]);
        assert_eq!([0, 1023, 1024, 3 << 29].map(bytes), ["0 B", "1023 B", "1.0 KiB", "1.5 GiB"]);
        assert_eq!([0.4, 999.94, 1500.0, 2.5e6].map(duration), ["0.4 us", "999.9 us", "1.5 ms", "2.50 s"]);
    }
}
