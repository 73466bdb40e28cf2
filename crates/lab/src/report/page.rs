//! The page of a lab.

use std::fmt::Write;

use ecotone_bench::report::format::{bytes, change, escaped, grouped, microjoules, of_source, seconds, stall_change};
use ecotone_bench::report::palette;
use ecotone_bench::report::{PageHeader, STYLE, legend};
use ecotone_bench::workload::ValueKind;

use super::{matrix, papers, plots, tables};
use crate::summary::{LabReport, PolicyRun};

fn policies(report: &LabReport) -> impl Iterator<Item = (&str, palette::Colour)> {
    let runs = report.runs.iter().enumerate();
    runs.map(|(index, run)| (run.policy.as_str(), palette::policy(&run.policy, index)))
}

/// The whole page.
pub fn html(report: &LabReport, header: &PageHeader<'_>) -> String {
    let mut page = Page::default();
    page.results(report);
    page.over_time(report);
    page.energy(report);
    page.offloading(report);
    page.forecasts(report);
    page.set_up(report);
    let title = format!("{} on {}", report.workload, report.profile);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>Ecotone lab: {}</title><style>{}</style></head>\n<body>{}{}<main>{}</main>\
         <footer>Ecotone lab. {} Servers were emulated on one machine.</footer></body></html>\n",
        escaped(&title),
        STYLE,
        head(report, header, &title),
        page.contents(),
        page.body,
        about_joules(&report.energy_source())
    )
}

/// Where the joules of a report come from, as a sentence.
fn about_joules(source: &str) -> String {
    match source {
        "model" => {
            "Joules come from a model (busy core-seconds times watts, plus idle watts), not from a meter.".to_owned()
        }
        "" => "The servers did not say where their joules come from.".to_owned(),
        source => format!("Source of joules: {}.", escaped(source)),
    }
}

fn head(report: &LabReport, header: &PageHeader<'_>, title: &str) -> String {
    let host = &report.host;
    let mut facts = vec![
        ("Host", format!("{}, {} cores, {}", host.cpu, host.cores, host.system)),
        ("Run", format!("{} s for each policy, offered: {}", report.seconds, report.offered.rate)),
        ("Date", header.date.to_owned()),
        ("Command", header.command.to_owned()),
    ];
    if report.colocated > 0 {
        facts.insert(2, ("Co-located", format!("0 to {} busy threads", report.colocated)));
    }
    let facts: String = facts
        .iter()
        .map(|(name, fact)| {
            let fact = escaped(fact);
            let fact = if *name == "Command" { format!("<code>{fact}</code>") } else { fact };
            format!("<div><dt>{name}</dt><dd>{fact}</dd></div>")
        })
        .collect();
    let mut text = format!(
        "<header><div class=\"inner\"><p class=\"kicker\">Ecotone lab</p><h1>{}</h1><p class=\"about\">{}</p><dl>{facts}</dl></div></header>",
        escaped(title),
        escaped(&report.about)
    );
    if !report.warnings.is_empty() {
        let items: String = report.warnings.iter().map(|warning| format!("<li>{}</li>", escaped(warning))).collect();
        text += &format!("<aside class=\"warning\"><b>Read this first</b><ul>{items}</ul></aside>");
    }
    text
}

/// A page in the making.
#[derive(Default)]
struct Page {
    body: String,
    sections: Vec<(&'static str, &'static str)>,
}

impl Page {
    fn section(&mut self, id: &'static str, title: &'static str) {
        if !self.sections.is_empty() {
            self.body += "</section>";
        }
        self.sections.push((id, title));
        // Writing to a string cannot fail.
        let _ = write!(self.body, "<section id=\"{id}\"><h2>{title}</h2>");
    }

    fn figure(&mut self, title: &str, legend: &str, content: &str, caption: &str) {
        let _ =
            write!(self.body, "<figure><h3>{title}</h3>{legend}{content}<figcaption>{caption}</figcaption></figure>");
    }

    /// Links to all sections. Closes the last one.
    fn contents(&mut self) -> String {
        if !self.sections.is_empty() {
            self.body += "</section>";
        }
        let links: String = self.sections.iter().map(|(id, title)| format!("<a href=\"#{id}\">{title}</a>")).collect();
        format!("<nav><div class=\"inner\">{links}</div></nav>")
    }

    fn results(&mut self, report: &LabReport) {
        self.section("results", "Results");
        self.body += &cards(report);
        let relative = plots::relative(report);
        if !relative.is_empty() {
            let compared = report.runs.iter().enumerate().filter(|(_, run)| run.total.relative.is_some());
            let legend =
                legend(compared.map(|(index, run)| (run.policy.as_str(), palette::policy(&run.policy, index))));
            self.figure(
                "Each policy beside RocksDB alone",
                &legend,
                &relative,
                &format!(
                    "Quotients to <code>{}</code> (<code>local</code> is RocksDB with its defaults); the red line is equality, \
                     numbers are changes in percent. A dash: it had none there. As in ECO-KVS, Fig. 7 to 9, and EdgePilot, \
                     Fig. 8, 9 and 12.",
                    escaped(report.local().map_or("local", |run| &run.policy))
                ),
            );
        }
        self.figure(
            "Numbers",
            "",
            &tables::results(report).html(),
            "Stall: time in which writes were slowed or stopped. µJ/op: energy per operation, idle power included. Offloaded: \
             compactions that another server ran; taken: compactions run for others.",
        );
        let papers = papers::table(report);
        if !papers.is_empty() {
            self.figure(
                "Beside the papers",
                "",
                &papers.html(),
                "Published figures come from other hardware, 600 s runs and RocksDB 8.3.2; what should agree is who gains and \
                 roughly how much. Tiers are compared by their first server.",
            );
        }
    }

    fn over_time(&mut self, report: &LabReport) {
        self.section("time", "Over time");
        self.figure(
            "Throughput",
            &legend(policies(report)),
            &plots::throughput(report),
            "Operations per second; faint: single seconds, strong: mean of five. Periodic drops are write stalls, which \
             offloading should take away. As in EdgePilot, Fig. 10.",
        );
        self.figure(
            "Tables in level 0",
            &legend(policies(report).chain([("stall threshold (WST)", palette::MARK)])),
            &plots::l0_tables(report),
            "Each flush adds a table, each finished compaction takes several away. Where the line reaches the stall threshold \
             (WST), RocksDB slows writes. This is the quantity that ECO-KVS forecasts (equations 1 to 3).",
        );
        self.figure(
            "Stalls",
            &legend(policies(report)),
            &plots::stalls(report),
            "Cumulative distribution of the length of single stalls, with their number and total below. A dot marks where a \
             curve reaches 100 %: the longest stall. A curve further left has shorter stalls. As in ECO-KVS, Fig. 5(b).",
        );
    }

    fn energy(&mut self, report: &LabReport) {
        self.section("energy", "Energy");
        self.figure(
            "Energy by duty",
            "",
            &plots::energy(report),
            "Joules of each server over the run by what its threads did, with energy per operation at the end of each bar. \
             <i>worker</i> is work for others: offloading moves joules from <i>compaction</i> of weak servers to <i>worker</i> of \
             strong ones. As in ECO-KVS, Fig. 4(b) and 7(c).",
        );
    }

    fn offloading(&mut self, report: &LabReport) {
        self.section("offloading", "Offloading");
        self.figure(
            "Who worked for whom",
            "",
            &matrix::who_worked_for_whom(report),
            "Compactions and their input bytes: rows are owners, columns are workers, the diagonal is work at home. The more \
             jobs a server took from another, the stronger the colour.",
        );
        if let Some(colocated) = plots::colocated(report) {
            self.figure(
                "Co-located load",
                &legend(policies(report)),
                &colocated,
                "Busy threads of another application take the strong server's cores one after the other. A policy that sees \
                 this sends fewer and fewer jobs there and at last none. As in EdgePilot, Fig. 11: fading from 3 threads on, \
                 none from 5.",
            );
        }
    }

    fn forecasts(&mut self, report: &LabReport) {
        self.section("forecasts", "Forecasts");
        self.figure(
            "Errors of the models",
            &legend(policies(report)),
            &plots::models(report),
            "Each faint dot is a compaction: how far its forecast was off, by how many jobs the model of the chosen server had \
             learned from; lines are means of five trainings. As in ECO-KVS, Fig. 10(c) and (d).",
        );
        if let Some((policy, plots)) = plots::input_rate(report) {
            let title = format!("Input rate under {}", escaped(&policy));
            self.figure(
                &title,
                "",
                &plots,
                "Bytes written in each second and what was predicted for it: a moving average over 3 s, so it follows a change \
                 within 3 to 5 s. As in ECO-KVS, Fig. 11(a).",
            );
        }
        self.figure(
            "Mean errors",
            "",
            &tables::models(report).html(),
            "Time and energy: means over forecasts made after 20 trainings; jobs that came home are not counted, because \
             another server ran them than the one predicted. Input rate: the mean over calm seconds, without a stall in them or in \
             the three before, and over all seconds as bytes predicted too many or too few by bytes that came. While writes \
             stall, the rate is what the store lets in.",
        );
    }

    fn set_up(&mut self, report: &LabReport) {
        self.section("set-up", "Set-up");
        let emulated = &report.emulated;
        let scale = emulated.scale.map_or_else(
            || "Speeds are the profile's own.".to_owned(),
            |scale| format!("Speeds are {scale:.4} host cores for each GHz of the profile."),
        );
        let network: u64 = report.runs.iter().flat_map(|run| &run.servers).map(|server| server.network_bytes).sum();
        let separated = if report.runs.iter().any(|run| run.separation_min_bytes.is_some()) {
            " In runs with a number behind the policy's name, values of at least so many bytes are separated from their keys, and \
             sizes of memtables and tables are less than these by what they are less by default."
        } else {
            ""
        };
        let through = match report.through.as_str() {
            "resp" => {
                " Clients outside of the emulated cores sent the workload by the Redis protocol; what they used is in no server's joules."
            }
            _ => "",
        };
        let values = match report.values {
            ValueKind::Random => String::new(),
            kind => format!(" Values: {kind}."),
        };
        self.figure(
            "Emulated servers",
            "",
            &tables::servers(report).html(),
            &format!(
                "Each core is a cgroup around one busy thread. {scale} If every core that can be busy is busy, they use {:.0} % of \
                 the host. Each store, in {}: {}.{values}{separated}{through} Servers exchanged {} in all runs, counted at both ends.",
                emulated.host_share * 100.0,
                escaped(&report.stores),
                escaped(&tables::store(report)),
                bytes(network)
            ),
        );
    }
}

/// A card for each policy: what it brought in three numbers.
fn cards(report: &LabReport) -> String {
    let cards = report.runs.iter().enumerate().map(|(index, run)| card(run, index));
    format!("<div class=\"cards\">{}</div>", cards.collect::<String>())
}

fn card(run: &PolicyRun, index: usize) -> String {
    let total = &run.total;
    let row = |name: &str, value: String, against: Option<(&str, String)>| {
        let against = against.map(|(verdict, text)| format!("<em class=\"{verdict}\">{text}</em>")).unwrap_or_default();
        format!("<div><dt>{}</dt><dd>{value}{against}</dd></div>", escaped(name))
    };
    let compared = |quotient: Option<f64>, more_is_better: bool| {
        let quotient = quotient?;
        // A percent either way is nothing one should colour.
        let verdict = match (quotient - 1.0).abs() >= 0.01 {
            true if (quotient > 1.0) == more_is_better => "better",
            true => "worse",
            false => "equal",
        };
        Some((verdict, change(Some(quotient))))
    };
    let relative = total.relative.unwrap_or_default();
    let new_stall = || {
        let is_new = total.relative.is_some() && relative.stall_ms.is_none() && total.stall_ms > 0.0;
        is_new.then(|| ("worse", stall_change(total.stall_ms, None)))
    };
    format!(
        "<div class=\"card\" style=\"border-top-color:{}\"><h3>{}</h3><dl>{}{}{}{}</dl></div>",
        palette::policy(&run.policy, index).css(),
        escaped(&run.policy),
        row("operations per second", grouped(total.ops_per_s), compared(relative.ops_per_s, true)),
        row("stalled, s", seconds(total.stall_ms), compared(relative.stall_ms, false).or_else(new_stall)),
        row(
            &of_source("µJ per operation", &run.energy_source()),
            microjoules(total.epo_uj),
            compared(relative.epo_uj, false)
        ),
        row("jobs offloaded", total.offloaded.to_string(), None),
    )
}
