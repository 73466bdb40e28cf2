//! Reports of a lab, rendered from a record that a small model of three servers made up.

use std::collections::BTreeMap;

use ecotone_bench::report::PageHeader;
use ecotone_bench::workload::ValueKind;
use ecotone_lab::report::{html, models_text, papers_text, results_text};
use ecotone_lab::{
    Demand, Host, LabReport, Offered, PolicyRecording, PolicyRun, Profile, Recording, ServerRecording, relate_to_local,
};
use ecotone_server::record::{Final, Job, Outcome, Record, Sample};

const SECONDS: u64 = 90;
const MEMTABLE: f64 = 4.0 * 1024.0 * 1024.0;

/// A coin that always falls the same way.
struct Coin(u64);

impl Coin {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as f64 / (1u64 << 31) as f64
    }
}

/// One server under one policy: L0 fills with flushes; a compaction takes all tables there are;
/// above 20 tables writes slow down. A policy that offloads has a faster worker for the weak
/// servers until the co-located load takes it away.
fn server(name: &str, speed: f64, policy: &str, coin: &mut Coin, colocated: u32) -> ServerRecording {
    let mut recording = ServerRecording { server: name.to_owned(), ..Default::default() };
    let mut sums = Final { server: name.to_owned(), energy_source: "model".to_owned(), ..Default::default() };
    let (mut l0, mut stalled_s, mut energy, mut compaction): (f64, f64, f64, Option<(f64, f64, Job)>) =
        (0.0, 0.0, 0.0, None);
    let mut foretold_rate = None;
    let mut trainings = 0;
    let mut duties = BTreeMap::<String, f64>::new();
    let watts = if name.starts_with("high") {
        10.0
    } else if name.starts_with("medium") {
        6.0
    } else {
        2.0
    };
    for second in 1..=SECONDS {
        let at_s = second as f64;
        let stalling = l0 >= 20.0;
        let ops = speed * 130_000.0 * if stalling { 0.35 } else { 1.0 } * (0.93 + 0.14 * coin.next());
        let rate = ops * 1016.0;
        if stalling {
            stalled_s += 1.0;
        } else if stalled_s > 0.0 {
            sums.stalls.push(stalled_s * 1000.0 * (0.6 + 0.4 * coin.next()));
            stalled_s = 0.0;
        }
        sums.stall_ms += if stalling { 1000.0 } else { 0.0 };
        l0 += rate / MEMTABLE;
        if let Some((end_s, tables, job)) = compaction.take() {
            if end_s <= at_s {
                l0 = (l0 - tables).max(0.0);
                let joules = job.joules;
                energy += joules;
                *duties.entry("compaction".to_owned()).or_default() +=
                    if job.outcome == Outcome::Local { joules } else { 0.0 };
                recording.jobs.push(Job { at_s, ..job });
                trainings += 1;
            } else {
                compaction = Some((end_s, tables, job));
            }
        }
        if compaction.is_none() && l0 >= 4.0 {
            let loaded = f64::from(colocated) * (second - 1) as f64 / SECONDS as f64;
            let away = policy != "local"
                && policy != "local-split"
                && !name.starts_with("high")
                && (policy == "edgepilot" || l0 > 9.0);
            let (worker, fast) = match away {
                true if loaded < 3.0 + 2.0 * coin.next() => ("high-1", 0.16),
                true if name.starts_with("low") => ("medium-1", 0.12),
                _ => (name, speed * if policy == "local-split" { 2.0 } else { 1.0 }),
            };
            let tables = l0.floor();
            let input = (2.0 * tables * MEMTABLE) as u64;
            let seconds = input as f64 / (fast * 60e6) + 0.2;
            let off = 1.0 + (coin.next() - 0.5) * (0.1 + 0.8 / (1.0 + trainings as f64 / 3.0));
            let joules = seconds * watts * 0.9;
            let outcome = match (worker == name, coin.next() < 0.05) {
                (true, _) => Outcome::Local,
                (false, true) => Outcome::Fallback,
                (false, false) => Outcome::Offloaded,
            };
            match outcome {
                Outcome::Offloaded => sums.offloaded += 1,
                Outcome::Fallback => *sums.fallbacks.entry("declined".to_owned()).or_default() += 1,
                Outcome::Local => {}
            }
            let job = Job {
                held_bytes: 0,
                at_s,
                job: second,
                owner: name.to_owned(),
                worker: if outcome == Outcome::Fallback { name } else { worker }.to_owned(),
                input_level: 0,
                output_level: 1,
                input_bytes: input,
                output_bytes: input / 10 * 9,
                seconds,
                joules,
                predicted_seconds: (policy != "local").then_some(seconds * off),
                predicted_joules: (policy != "local").then_some(joules * (2.0 - off)),
                trainings,
                outcome,
                reason: "forecast".to_owned(),
            };
            compaction = Some((at_s + seconds, tables, job));
        }
        *duties.entry("foreground".to_owned()).or_default() += watts * 0.95;
        *duties.entry("flush".to_owned()).or_default() += watts * 0.3;
        *duties.entry("idle".to_owned()).or_default() += watts * 0.2;
        *duties.entry("unattributed".to_owned()).or_default() += watts * 0.03;
        energy += watts * 1.48;
        sums.ops += ops as u64;
        sums.l0_max = sums.l0_max.max(l0 as u64);
        recording.samples.push(Sample {
            at_s,
            ops: ops as u64,
            writes: ops as u64,
            l0_tables: l0 as u64,
            stall_ms: sums.stall_ms,
            input_rate_bytes_per_s: rate,
            input_rate_predicted_bytes_per_s: foretold_rate,
            energy_joules: energy,
            ..Default::default()
        });
        foretold_rate = Some(foretold_rate.map_or(rate, |before| 0.5 * before + 0.5 * rate));
    }
    sums.writes = sums.ops;
    sums.seconds = SECONDS as f64;
    sums.energy_joules = duties.values().sum();
    sums.energy_joules_by_duty = duties;
    sums.cpu_seconds = speed * 90.0 * 2.2;
    recording.sums = Some(sums);
    recording
}

fn report(policies: &[&str], colocated: u32) -> LabReport {
    report_on("three-tier", policies, colocated)
}

fn report_on(profile: &str, policies: &[&str], colocated: u32) -> LabReport {
    let profile = Profile::load(profile).unwrap();
    let emulated = profile
        .scaled_to(2.0, Demand { foreground_threads: 1, colocated_threads: colocated, seconds: SECONDS })
        .unwrap();
    let mut recording = Recording::default();
    for policy in policies {
        let mut coin = Coin(7);
        let mut servers: Vec<ServerRecording> =
            (emulated.servers.iter()).map(|one| server(&one.name, one.speed, policy, &mut coin, colocated)).collect();
        let jobs: Vec<Job> = servers.iter().flat_map(|server| server.jobs.clone()).collect();
        for server in &mut servers {
            let taken = jobs.iter().filter(|job| job.worker == server.server && job.owner != server.server);
            let (count, joules) = taken.fold((0, 0.0), |(count, joules), job| (count + 1, joules + job.joules));
            let sums = server.sums.as_mut().unwrap();
            sums.taken = count;
            sums.energy_joules += joules;
            sums.energy_joules_by_duty.insert("worker".to_owned(), joules);
        }
        recording.runs.push(PolicyRecording { policy: (*policy).to_owned(), servers, ..PolicyRecording::default() });
    }
    let mut runs: Vec<PolicyRun> = recording.runs.iter().map(|run| PolicyRun::of(run, &emulated).unwrap()).collect();
    relate_to_local(&mut runs);
    LabReport {
        profile: profile.name.clone(),
        about: profile.about.clone(),
        host: Host { cores: 2.0, cpu: "a <fast> processor & more".to_owned(), system: "linux x86_64".to_owned() },
        workload: "fillrandom".to_owned(),
        values: ValueKind::Random,
        seconds: SECONDS,
        offered: Offered { rate: "saturation".to_owned(), ops_per_s: BTreeMap::new() },
        colocated,
        emulated,
        stores: "memory (/dev/shm)".to_owned(),
        through: "inside".to_owned(),
        runs,
        calibration: None,
        warnings: Vec::new(),
        recording,
    }
}

const HEADER: PageHeader<'_> = PageHeader {
    command: "ecotone lab fillrandom --profile three-tier --policies local,local-split,edgepilot,eco --seconds 90",
    date: "2026-11-21 04:00 UTC",
};

/// Checks that a text is one well-formed XML element: tags nest, attributes are quoted and named
/// once, `&` and `<` are escaped. Panics with what is wrong.
fn assert_well_formed(xml: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = xml;
    let mut roots = 0;
    while let Some(at) = rest.find('<') {
        assert_entities(&rest[..at]);
        let end = rest[at..].find('>').unwrap_or_else(|| panic!("a tag is not closed: {}", &rest[at..])) + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closing tag without its opening one");
            continue;
        }
        let closed = tag.ends_with('/');
        let tag = tag.trim_end_matches('/');
        let (name, mut attributes) = tag.split_once(char::is_whitespace).unwrap_or((tag, ""));
        assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric()), "odd tag <{tag}>");
        let mut names = Vec::new();
        while !attributes.trim().is_empty() {
            let (name, after) =
                attributes.trim_start().split_once("=\"").unwrap_or_else(|| panic!("odd attributes in <{tag}>"));
            let (value, after) = after.split_once('"').unwrap_or_else(|| panic!("open quote in <{tag}>"));
            assert_entities(value);
            assert!(!names.contains(&name), "attribute {name} twice in <{tag}>");
            names.push(name);
            attributes = after;
        }
        roots += usize::from(open.is_empty());
        if !closed {
            open.push(name);
        }
    }
    assert_entities(rest);
    assert!(open.is_empty() && roots == 1, "{roots} roots, open at the end: {open:?}");
}

fn assert_entities(text: &str) {
    for (at, _) in text.match_indices('&') {
        let entity = text[at..].split(';').next().unwrap();
        assert!(["&amp", "&lt", "&gt", "&quot", "&#39", "&apos"].contains(&entity), "stray & in {text:?}");
    }
    assert!(!text.contains("NaN") && !text.contains("inf"), "a number is not finite in {text:?}");
}

fn svgs(page: &str) -> Vec<&str> {
    page.match_indices("<svg ").map(|(at, _)| &page[at..at + page[at..].find("</svg>").unwrap() + 6]).collect()
}

#[test]
fn the_page_holds_every_plot_and_every_plot_is_xml() {
    let report = report(&["local", "local-split", "edgepilot", "eco"], 8);
    let page = html(&report, &HEADER);
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("lab-report.html");
    std::fs::write(path, &page).unwrap();

    for name in [
        "Throughput relative to local",
        "Energy per operation relative to local",
        "Throughput of low-1 over time",
        "Tables in level 0 of medium-1 over time",
        "Distribution of stall lengths on high-1",
        "Energy of low-1 by duty",
        "Time of a compaction: error of forecasts",
        "Energy of a compaction: error of forecasts",
        "Input rate of low-1, real and predicted",
        "Jobs taken by high-1 as co-located load grows",
    ] {
        assert!(page.contains(&format!("aria-label=\"{name}\"")), "no plot is called {name}");
    }
    assert!(page.contains("owner \\ worker"));
    let plots = svgs(&page);
    assert_eq!(plots.len(), 4 + 5 * 3 + 2 + 1, "relative, five for each server, models, co-located");
    for plot in plots {
        assert_well_formed(plot);
    }
    assert!(!page.contains("not drawn"), "a plot failed");
}

#[test]
fn the_page_needs_nothing_but_itself_and_escapes_what_it_is_told() {
    let mut report = report(&["local", "eco"], 0);
    report.warnings.push("a <b>bold</b> claim".to_owned());
    let header = PageHeader { command: "ecotone lab '<script>alert(1)</script>'", date: "today" };
    let page = html(&report, &header);
    assert!(!page.contains("<script"), "a script");
    for outside in ["src=", "@import", "url(", "<link"] {
        assert!(!page.contains(outside), "the page loads something: {outside}");
    }
    assert!(page.contains("a &lt;b&gt;bold&lt;/b&gt; claim") && page.contains("a &lt;fast&gt; processor &amp; more"));
    assert!(page.contains("&#39;&lt;script&gt;alert(1)&lt;/script&gt;&#39;"));
    assert!(!page.contains("Co-located load"), "no co-located load was asked for");
}

#[test]
fn a_lab_of_one_policy_that_did_nothing_still_makes_a_page() {
    let mut report = report(&["eco"], 0);
    for server in &mut report.recording.runs[0].servers {
        server.samples.clear();
        server.jobs.clear();
        server.sums = Some(Final { server: server.server.clone(), ..Final::default() });
    }
    report.runs = vec![PolicyRun::of(&report.recording.runs[0], &report.emulated).unwrap()];
    let page = html(&report, &HEADER);
    for plot in svgs(&page) {
        assert_well_formed(plot);
    }
    assert!(page.contains("no stall under any policy") && page.contains("nothing was predicted"));
    assert!(!results_text(&report).contains("vs local"), "there is no local to compare with");
}

#[test]
fn six_servers_that_read_and_write_have_all_their_plots_and_both_rates() {
    let policies = ["local", "local-split", "edgepilot", "eco", "eco-gate", "eco-target"];
    let mut report = report_on("six", &policies, 0);
    report.workload = "readwhilewriting".to_owned();
    for server in report.recording.runs.iter_mut().flat_map(|run| &mut run.servers) {
        let sums = server.sums.as_mut().unwrap();
        (sums.reads, sums.ops) = (sums.writes / 2, sums.ops + sums.writes / 2);
    }
    report.runs = report.recording.runs.iter().map(|run| PolicyRun::of(run, &report.emulated).unwrap()).collect();
    relate_to_local(&mut report.runs);
    let page = html(&report, &HEADER);
    std::fs::write(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("lab-report-six.html"), &page).unwrap();
    let plots = svgs(&page);
    assert_eq!(plots.len(), 5 + 5 * 6 + 2);
    plots.into_iter().for_each(assert_well_formed);
    assert!(
        page.contains("Reads per second relative to local") && page.contains("Tables in level 0 of low-2 over time")
    );
    let text = results_text(&report);
    let head: Vec<&str> =
        text.lines().next().unwrap().split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    for rate in ["reads/s", "writes/s"] {
        let at = head.iter().position(|cell| *cell == rate).unwrap();
        assert_eq!(head[at + 1], "vs local", "{text}");
    }
    assert!(head.contains(&"µJ/op (model)"), "{text}");
    assert!(papers_text(&report).unwrap().contains("+61 %"));
}

#[test]
fn tables_compare_with_local_and_with_the_papers() {
    let report = report(&["local", "edgepilot", "eco"], 0);
    let text = results_text(&report);
    assert_eq!(text.lines().filter(|line| line.trim_start().starts_with("total")).count(), 3, "{text}");
    let local = report.runs[0].total.ops_per_s;
    let eco = report.runs[2].total.ops_per_s;
    assert!(text.contains(&format!("{:+.1} %", (eco / local - 1.0) * 100.0)), "{text}");

    let papers = papers_text(&report).unwrap();
    assert!(papers.contains("ECO-KVS, Fig. 7(a)") && papers.contains("EdgePilot, Fig. 8(a)"), "{papers}");
    assert!(!papers.contains("eco-gate"), "not run:\n{papers}");
    assert!(models_text(&report).contains("declined"));
}

#[test]
fn a_stall_that_local_did_not_have_is_said_to_be_new() {
    let mut report = report(&["local", "eco"], 0);
    for sums in report.recording.runs[0].servers.iter_mut().map(|server| server.sums.as_mut().unwrap()) {
        sums.stall_ms = 0.0;
    }
    report.recording.runs[1].servers[0].sums.as_mut().unwrap().stall_ms = 1500.0;
    report.runs = report.recording.runs.iter().map(|run| PolicyRun::of(run, &report.emulated).unwrap()).collect();
    relate_to_local(&mut report.runs);
    let (text, page) = (results_text(&report), html(&report, &HEADER));
    assert!(text.contains("more than none"), "{text}");
    assert!(page.contains("<em class=\"worse\">more than none</em>"));
    assert!(page.contains("µJ per operation (model)") && page.contains("µJ/op (model)"));
}

#[test]
fn space_is_told_of_each_server_and_of_all_together() {
    let mut report = report(&["local", "eco"], 0);
    assert!(!results_text(&report).contains("SAR"), "no server reported it");
    for (index, server) in report.recording.runs[1].servers.iter_mut().enumerate() {
        let sums = server.sums.as_mut().unwrap();
        (sums.bytes_directory, sums.bytes_live) = (Some(1500 + 500 * index as u64), Some(1000.0));
    }
    report.runs = report.recording.runs.iter().map(|run| PolicyRun::of(run, &report.emulated).unwrap()).collect();
    let [local, eco] = [0, 1].map(|run| &report.runs[run]);
    assert_eq!(
        eco.servers.iter().map(|server| server.sar_at_end).collect::<Vec<_>>(),
        [Some(1.5), Some(2.0), Some(2.5)]
    );
    assert_eq!((eco.total.sar_at_end, local.total.sar_at_end), (Some(2.0), None));
    let text = results_text(&report);
    assert!(text.contains("SAR at end") && text.contains("2.50"), "{text}");
    // What one does not know, all together do not.
    report.recording.runs[1].servers[0].sums.as_mut().unwrap().bytes_live = None;
    assert_eq!(PolicyRun::of(&report.recording.runs[1], &report.emulated).unwrap().total.sar_at_end, None);
}

#[test]
fn the_papers_have_nothing_on_other_workloads() {
    let mut report = report(&["local", "eco"], 0);
    report.workload = "ycsb-a".to_owned();
    assert_eq!(papers_text(&report), None);
    assert!(!html(&report, &HEADER).contains("Beside the papers"));
}

#[test]
fn the_json_has_the_promised_shape() {
    let report = report(&["local", "eco"], 0);
    let json = serde_json::to_value(&report).unwrap();
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    for key in ["profile", "host", "runs"] {
        assert!(keys(&json).iter().any(|one| one == key), "{key}");
    }
    assert!(json.get("recording").is_none());
    let run = &json["runs"][1];
    for key in ["policy", "servers", "total", "models"] {
        assert!(run.get(key).is_some(), "{key}");
    }
    for key in [
        "name",
        "tier",
        "ops",
        "ops_per_s",
        "stall_ms",
        "energy_joules",
        "energy_source",
        "epo_uj",
        "offloaded",
        "taken",
        "bytes_directory",
        "bytes_live",
        "sar_at_end",
    ] {
        assert!(run["servers"][2].get(key).is_some(), "servers: {key}");
    }
    for key in ["ops_per_s", "stall_ms", "energy_joules", "epo_uj"] {
        assert!(run["total"][key].is_number(), "total: {key}");
    }
    assert_eq!(
        keys(&run["models"])[..],
        ["energy_error", "jobs", "rate_error", "rate_error_with_stalls", "seconds", "time_error"]
    );
    assert!(json["runs"][0]["models"]["time_error"].is_null(), "local predicts nothing");
    assert!(json["runs"][0]["total"].get("relative").is_none() && run["total"]["relative"]["ops_per_s"].is_number());
    assert_eq!(serde_json::from_value::<LabReport>(json).unwrap().runs, report.runs);
}

#[test]
fn records_are_what_the_contract_says() {
    let ready = r#"{"type":"ready","server":"low-1","listen":"127.0.0.1:41231"}"#;
    assert!(matches!(serde_json::from_str(ready).unwrap(), Record::Ready(ready) if ready.listen == "127.0.0.1:41231"));
    let job = r#"{"type":"job","at_s":1.5,"job":1,"owner":"a","worker":"b","input_level":0,"output_level":1,"input_bytes":8,
        "output_bytes":8,"seconds":1.0,"joules":2.0,"outcome":"fallback","reason":"declined","new_field":1}"#;
    let Record::Job(job) = serde_json::from_str(job).unwrap() else { panic!("not a job") };
    assert_eq!((job.outcome, job.trainings, job.predicted_seconds), (Outcome::Fallback, 0, None));
    let text = serde_json::to_string(&Record::Sample(Sample::default())).unwrap();
    assert!(text.starts_with(r#"{"type":"sample","at_s":0.0,"#), "{text}");
    for wrong in [r#"{"type":"job","at_s":1.0}"#, r#"{"type":"other"}"#, r#"{"server":"x"}"#] {
        assert!(serde_json::from_str::<Record>(wrong).is_err(), "{wrong}");
    }
}
