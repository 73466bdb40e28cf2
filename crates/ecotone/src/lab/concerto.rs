//! `ecotone lab concerto`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use ecotone_bench::report::PageHeader;
use ecotone_lab::cluster::copies::concerto::{ConcertoOptions, Load, html, run_concerto_lab, text};
use ecotone_policy::power::PowerMode;

use crate::output;
use crate::progress::Spinner;

/// What `--only` calls the comparison with servers without copies.
const COMPARE: &str = "compare";

#[derive(clap::Args)]
#[command(
    after_help = "Workloads: set, get (with each length of values), ycsb-a to ycsb-f (values of 1000 bytes; e scans through a sorted set \
                  of all keys, as YCSB does on Redis), and compare: the same writes to three plain servers that each compact, and to one. A primary and two replicas run each \
                  in the modes all-high, all-low and concerto of power.mode: first as fast as they can, then a share of the peak in the first mode, \
                  whose joules are counted until background work has settled.\n\nCores are emulated by cgroups with quotas, at the P-states of \
                  the paper's Xeon or those of --p-states: a file with a line for each frequency, the highest first, megahertz and volts, such as \
                  `2200 1.10`; what stands behind # is skipped. That needs root. Joules are the model's. With defaults it takes some forty minutes.\n\nExamples:\n  \
                  ecotone lab concerto\n  ecotone lab concerto --only set,get --values 256,1024 --json\n  ecotone lab concerto --only ycsb-a \
                  --seconds 60 --report concerto.html"
)]
pub(super) struct Arguments {
    /// Workloads [default: all]
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',')]
    only: Vec<String>,
    /// Modes; all is compared with all-high [default: all-high,all-low,concerto]
    #[arg(long, value_name = "MODE", value_delimiter = ',')]
    modes: Vec<String>,
    /// The frequencies and voltages of emulated cores [default: those of a Xeon Silver 4114]
    #[arg(long, value_name = "FILE")]
    p_states: Option<PathBuf>,
    /// Bytes of values of set and get [default: 256,512,1024,2048]
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    values: Vec<u32>,
    /// Length of each run whose joules are counted [default: 20]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u32>,
    /// Keys of the store [default: 50000]
    #[arg(long, value_name = "N")]
    keys: Option<u32>,
    /// Emulated cores of each server [default: 3]
    #[arg(long, value_name = "N")]
    cores: Option<u32>,
    /// What is offered, as a share of the peak in the first mode [default: 0.7]
    #[arg(long, value_name = "SHARE")]
    load: Option<f64>,
    /// Where the servers' folders lie while they run [default: /var/tmp]
    #[arg(long, value_name = "DIR")]
    stores: Option<PathBuf>,
    /// Write an HTML report as well
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let mut options = ConcertoOptions::new()?;
    if !arguments.only.is_empty() {
        options.compares = arguments.only.iter().any(|only| only == COMPARE);
        let loads = arguments.only.iter().filter(|only| *only != COMPARE);
        options.loads = loads.map(|load| load.parse::<Load>()).collect::<Result<_, _>>()?;
    }
    if !arguments.modes.is_empty() {
        let modes = arguments.modes.iter().map(|mode| mode.parse::<PowerMode>());
        options.modes = modes.collect::<Result<_, _>>().context("--modes")?;
    }
    options.p_states.clone_from(&arguments.p_states);
    if !arguments.values.is_empty() {
        options.values.clone_from(&arguments.values);
    }
    let set = |option: &mut u32, said: Option<u32>| *option = said.unwrap_or(*option);
    set(&mut options.seconds, arguments.seconds);
    set(&mut options.keys, arguments.keys);
    set(&mut options.cores, arguments.cores);
    options.load = arguments.load.unwrap_or(options.load);
    options.stores.clone_from(&arguments.stores);
    let spinner = Spinner::start();
    let report = run_concerto_lab(&options, &mut |what| spinner.say(what.to_owned()));
    spinner.end();
    let report = report?;
    if let Some(path) = &arguments.report {
        let command = std::env::args().collect::<Vec<_>>().join(" ");
        let page = html(&report, &PageHeader { command: &command, date: &output::today() });
        std::fs::write(path, page)
            .with_context(|| format!("cannot write the report to {} (--report)", path.display()))?;
    }
    if arguments.json {
        return output::print(&serde_json::to_string(&report).context("cannot write the report")?);
    }
    output::print(&text(&report))
}
