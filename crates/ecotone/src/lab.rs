//! `ecotone lab`.

mod cluster;
mod concerto;
mod copies;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use ecotone_bench::report::PageHeader;
use ecotone_bench::workload::{ValueKind, Workload};
use ecotone_lab::report::{html, models_text, papers_text, results_text};
use ecotone_lab::{LabOptions, LabReport, OfferedRate, Profile, Through, run_lab};
use ecotone_policy::policy::PolicyName;

use crate::bench::{SeparationArgument, separation};
use crate::output::{self, line};
use crate::progress::LabBars;

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    subcommand_value_name = "MEASUREMENT",
    subcommand_help_heading = "Other measurements",
    after_help = "Energy is compared at the same offered load (--rate 70%), throughput at saturation (no --rate).\n\nThe lab needs \
                  the right to make cgroups (root) and refuses to run without it: unequal servers that were equal would \
                  prove nothing."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,
    /// What the servers run: a workload of `ecotone bench`
    #[arg(required = true)]
    workload: Option<String>,
    /// The servers: three-tier, six, pair, or a TOML file
    #[arg(long, default_value = "three-tier")]
    profile: String,
    /// Policies to compare, in order: local, local-split, edgepilot, eco, eco-gate, eco-target
    #[arg(long, value_delimiter = ',', default_value = "local,local-split,edgepilot,eco")]
    policies: Vec<String>,
    /// Values of at least so many bytes are separated from their keys; off: none, as in the papers,
    /// though serve and bench separate them. Of several, such as off,128, each policy runs with
    /// each
    #[arg(long, value_name = "BYTES|off", value_delimiter = ',', default_value = "off", value_parser = separation)]
    separation: Vec<SeparationArgument>,
    /// How the workload reaches the servers: inside (in each server's process, as in the papers) or
    /// resp (clients outside of the emulated cores send it by the Redis protocol)
    #[arg(long, default_value = "inside", value_parser = ["inside", "resp"])]
    through: String,
    /// Requests that each client thread has under way at once [default: 1]
    #[arg(long, value_name = "N")]
    pipeline: Option<u32>,
    /// Servers show certificates to each other and encrypt, as on several machines; else they speak
    /// plain text
    #[arg(long)]
    tls: bool,
    /// Length of each run
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Load offered to each server: operations per second, or N% of what `local` reaches, which is
    /// then measured first [default: as many as each takes]
    #[arg(long)]
    rate: Option<String>,
    /// Busy threads of another application on the first server of the highest tier, growing from 0
    /// to this
    #[arg(long, default_value_t = 0, value_name = "THREADS")]
    colocated: u32,
    /// Client threads of each server
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Keys of each server's store [default: the profile's]
    #[arg(long)]
    keys: Option<u64>,
    /// What values consist of: random, half, json, text or zeros:SHARE, as of `ecotone bench`
    #[arg(long, default_value = "random", value_name = "KIND")]
    values: String,
    /// Seed of the workload, the same for every policy
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep logs, records and the report in this folder
    #[arg(long)]
    record: Option<PathBuf>,
    /// Where the servers' stores lie while they run [default: in memory where they fit, else
    /// /var/tmp]
    #[arg(long, value_name = "DIR")]
    stores: Option<PathBuf>,
    /// The HTML report [default: lab-WORKLOAD-PROFILE.html in --record, else in the current folder]
    #[arg(long)]
    report: Option<PathBuf>,
    /// Print the figures of the papers beside the results
    #[arg(long)]
    papers: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Other {
    /// Measure a federation of processes: how fast it decides, and what it costs
    Cluster(cluster::Arguments),
    /// Measure copies of a shard: what they cost, and how fast one takes over
    Copies(copies::Arguments),
    /// Measure a primary and its replicas with slow cores for background work
    Concerto(concerto::Arguments),
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    match &arguments.other {
        Some(Other::Cluster(arguments)) => return cluster::run(arguments),
        Some(Other::Copies(arguments)) => return copies::run(arguments),
        Some(Other::Concerto(arguments)) => return concerto::run(arguments),
        None => {}
    }
    let profile = Profile::load(&arguments.profile)?;
    let workload = arguments.workload.as_deref().unwrap_or_default().parse::<Workload>()?;
    let policies = arguments.policies.iter().map(|policy| policy.parse::<PolicyName>());
    let policies = policies.collect::<Result<Vec<_>, _>>().context("--policies")?;
    let mut options = LabOptions::new(workload, profile, policies, arguments.seconds)?;
    options.rate = arguments.rate.as_deref().map(str::parse::<OfferedRate>).transpose()?;
    options.separations = arguments.separation.iter().map(|separation| separation.0).collect();
    options.through = match (arguments.through.as_str(), arguments.pipeline) {
        ("resp", pipeline) => Through::Resp { pipeline: pipeline.unwrap_or(1) },
        (_, None) => Through::Inside,
        (_, Some(_)) => bail!("--pipeline is for --through resp: inside a server nothing is sent"),
    };
    options.tls = arguments.tls;
    options.colocated = arguments.colocated;
    options.threads = arguments.threads;
    options.keys = arguments.keys;
    options.values = arguments.values.parse::<ValueKind>()?;
    options.seed = arguments.seed;
    options.record = arguments.record.clone();
    options.stores = arguments.stores.clone();
    let report = {
        let mut bars = LabBars::new();
        run_lab(&options, &mut bars)?
    };
    let path = arguments.report_path(&report);
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let page = html(&report, &PageHeader { command: &command, date: &output::today() });
    std::fs::write(&path, page).with_context(|| format!("cannot write the report to {} (--report)", path.display()))?;
    if arguments.json {
        return output::print(&serde_json::to_string(&report)?);
    }
    let mut text = String::new();
    line!(text, "{}", results_text(&report));
    line!(text, "{}", models_text(&report));
    if arguments.papers
        && let Some(papers) = papers_text(&report)
    {
        line!(text, "{papers}");
    }
    for warning in &report.warnings {
        line!(text, "note: {warning}");
    }
    line!(text, "report: {}", path.display());
    output::print(&text)
}

impl Arguments {
    fn report_path(&self, report: &LabReport) -> PathBuf {
        self.report.clone().unwrap_or_else(|| {
            let name = format!("lab-{}-{}.html", report.workload, report.profile);
            self.record.clone().unwrap_or_default().join(name)
        })
    }
}
