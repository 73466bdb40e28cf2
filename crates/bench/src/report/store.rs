//! The page of `ecotone bench`: one store over time, or several side by side.

use std::collections::BTreeMap;

use super::format::{bytes, escaped, grouped, percent, seconds};
use super::table::Table;
use super::{PageHeader, STYLE, legend};
use super::{palette, store_plots};
use crate::command::BenchReport;
use crate::target::DedupSettings;

/// The page of one run, or of all runs of a comparison in their order: write and space
/// amplification and throughput over time, with a line for each run in the colour of its target.
pub fn store_html(reports: &[BenchReport], header: &PageHeader<'_>) -> String {
    let title = reports.first().map_or_else(String::new, |report| format!("{} on one store", report.workload));
    let facts: String = facts(reports, header)
        .into_iter()
        .map(|(name, fact)| format!("<div><dt>{name}</dt><dd>{fact}</dd></div>"))
        .collect();
    let figure = |title: &str, content: &str, caption: &str| {
        format!("<figure><h3>{title}</h3>{content}<figcaption>{caption}</figcaption></figure>")
    };
    let mut targets: Vec<_> = reports.iter().map(|report| report.target).collect();
    targets.dedup();
    targets.sort_by_key(|target| target.name());
    targets.dedup();
    let legend = legend(targets.iter().map(|target| (target.name(), palette::target(*target))));
    let over_time = figure(
        "Over time",
        &(legend + &store_plots::store(reports)),
        "A line for each run, by a sample a second. WAR: bytes to storage by bytes of the user, both since the begin of the measured \
         part. SAR: bytes of the store's folder by bytes of live keys and values.",
    );
    let numbers = figure(
        "Numbers",
        &table(reports).html(),
        "SAR: before the store settled, the highest, the mean of the second half, and after settling. Processor time counts until \
         the store has settled.",
    );
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>Ecotone bench: {title}</title><style>{}</style></head>\n<body><header><div class=\"inner\">\
         <p class=\"kicker\">Ecotone bench</p><h1>{title}</h1><dl>{facts}</dl></div></header>\
         <main><section>{over_time}{numbers}{}</section></main><footer>Ecotone bench.</footer></body></html>\n",
        STYLE,
        notes(reports),
        title = escaped(&title),
    )
}

fn facts(reports: &[BenchReport], header: &PageHeader<'_>) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if let Some(report) = reports.first() {
        let workload = &report.options.workload;
        let records =
            format!("{}, of {} + {} B", grouped(workload.keys as f64), workload.key_bytes, workload.value_bytes);
        facts.push(("Keys", records));
        facts.push(("Values", workload.values.to_string()));
        facts.push(("Threads", workload.threads.to_string()));
        if let Some(cores) = report.options.cores {
            facts.push(("Limit of processor time", format!("{cores} cores")));
        }
    }
    facts.push(("Date", escaped(header.date)));
    facts.push(("Command", format!("<code>{}</code>", escaped(header.command))));
    facts
}

fn table(reports: &[BenchReport]) -> Table {
    let mut table = (Table::default().words("target").words("separated values").words("durability"))
        .numbers("op/s")
        .numbers("stalled s")
        .numbers("CPU µs/op")
        .numbers("WAR")
        .numbers("WAR, second half")
        .numbers("SAR, before")
        .numbers("highest")
        .numbers("mean")
        .numbers("settled")
        .numbers("moved by GC")
        .numbers("GC, of CPU");
    let asks = reports.iter().any(|report| report.options.store.dedup.is_some());
    if asks {
        table = (table.words("dedup").numbers("shadowed").numbers("DUP_RATIO").numbers("estimated"))
            .numbers("merges")
            .numbers("counting, of compactions' CPU");
    }
    let ratio = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    for report in reports {
        let store = &report.options.store;
        let mut cells = vec![
            report.target.to_string(),
            store.separation_min_bytes.map_or_else(|| "none".to_owned(), |bytes| format!("from {bytes} B")),
            store.durability.name().to_owned(),
            grouped(report.ops_per_s),
            report.stall_ms.map_or_else(|| "-".to_owned(), seconds),
            ratio(report.cpu_us_per_op),
            ratio(report.war),
            ratio(report.war_steady),
            ratio(report.sar_at_end),
            ratio(report.sar_max),
            ratio(report.sar_mean_steady),
            ratio(report.sar),
            report.gc_bytes.map_or_else(|| "-".to_owned(), bytes),
            percent(report.gc_cpu_share),
        ];
        if asks {
            let found = &report.duplicates;
            cells.extend([
                store.dedup.as_ref().map_or_else(|| "-".to_owned(), way),
                found.shadowed_bytes_true.map_or_else(|| "-".to_owned(), bytes),
                ratio(found.dup_ratio_true),
                ratio(found.dup_ratio_estimated),
                found.dedup_merges.map_or_else(|| "-".to_owned(), |merges| grouped(merges as f64)),
                percent(found.dedup_cpu_share),
            ]);
        }
        table.row(cells);
    }
    table
}

fn way(dedup: &DedupSettings) -> String {
    let threshold = dedup.threshold.map_or_else(String::new, |ratio| format!(" up to {ratio}"));
    format!("{}{threshold}", dedup.kind.name())
}

/// Why figures are missing.
fn notes(reports: &[BenchReport]) -> String {
    let notes: BTreeMap<(&str, &str), &str> = reports
        .iter()
        .flat_map(|report| {
            report.unavailable.iter().map(|(figure, why)| ((report.target.name(), figure.as_str()), why))
        })
        .map(|(key, why)| (key, why.as_str()))
        .collect();
    let notes = notes.into_iter().map(|((target, figure), why)| {
        format!("<li>{target}, <code>{}</code>: {}</li>", escaped(figure), escaped(why))
    });
    let notes: String = notes.collect();
    if notes.is_empty() { notes } else { format!("<figure><h3>What is missing</h3><ul>{notes}</ul></figure>") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{BenchOptions, run_bench};
    use crate::target::{Profile, TargetKind, TargetSettings};
    use crate::workload::{Workload, WorkloadOptions};

    #[test]
    fn all_runs_are_on_one_page_and_nothing_is_loaded_from_elsewhere() {
        let reports: Vec<BenchReport> = TargetKind::ALL
            .into_iter()
            .map(|target| {
                let workload = WorkloadOptions {
                    workload: Workload::Updates,
                    keys: 1_000,
                    value_bytes: 200,
                    seconds: Some(2.5),
                    rate_ops_per_s: Some(2_000.0),
                    ..WorkloadOptions::default()
                };
                let store = TargetSettings::for_target(target, Profile::Default, None);
                run_bench(&BenchOptions { workload, target, store, ..BenchOptions::default() }, |_| {}).unwrap()
            })
            .collect();
        for report in &reports {
            assert!(report.samples.len() >= 3, "one a second and the last: {:?}", report.samples);
            assert!(report.samples.windows(2).all(|pair| pair[0].seconds < pair[1].seconds));
        }
        let header = PageHeader { command: "ecotone bench '<updates>'", date: "2026-01-01" };
        let page = store_html(&reports, &header);
        assert_eq!(page.matches("<svg ").count(), 3);
        for (target, name) in TargetKind::ALL.map(|target| (target, target.name())) {
            assert!(page.contains(&format!("<td>{name}</td>")), "{name}");
            let colour = palette::target(target).css().to_uppercase();
            let drawn = page.split("<svg ").skip(1).filter(|svg| svg.contains(&format!("stroke=\"{colour}\""))).count();
            assert!(drawn >= 2, "{name} is drawn in {drawn} plots");
        }
        assert!(page.contains("&lt;updates&gt;") && !page.contains("<script") && !page.contains("src="));
        assert!(page.contains("does not tell"), "BlobDB's processor time is missing, with the reason");
    }
}
