//! `ecotone lab copies`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use ecotone_lab::cluster::copies::{CopiesOptions, Part, run_copies_lab, text};

use crate::output;
use crate::progress::Spinner;

#[derive(clap::Args)]
#[command(
    after_help = "Parts: throughput (SETs of 50 clients with pipelines of 16 at each level, beside a shard with one copy), costs (processor time, \
                  joules and bytes on the wire of three copies, beside three servers alone that are fed the same writes), lag (until replicas \
                  have a write, at 70 % of the peak), switch-over, failover (the primary is killed), both (it leads, too), seeding (a copy is made \
                  over a limited link).\n\nEach server has a quota of its own (cgroups) and a link of its own (network namespaces, tbf), which \
                  needs root, `ip` and `tc`; without them all share the machine, and the output says what is missing. The machine should be \
                  quiet. With defaults it takes some eight minutes.\n\nExamples:\n  ecotone lab copies\n  ecotone lab copies --only failover,both \
                  --kills 200\n  ecotone lab copies --only costs --seconds 60 --json"
)]
pub(super) struct Arguments {
    /// Parts to measure [default: all]
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<String>,
    /// Rounds of what is compared: throughput, costs [default: 3]
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    /// Length of the runs of costs and lag; those of throughput take a quarter [default: 20]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u32>,
    /// How often the primary is killed, and a quarter as often while it leads [default: 20]
    #[arg(long, value_name = "N")]
    kills: Option<u32>,
    /// How often the shard is handed over [default: 20]
    #[arg(long, value_name = "N")]
    switches: Option<u32>,
    /// Keys that are overwritten, with values of 1000 bytes [default: 100000]
    #[arg(long, value_name = "N")]
    keys: Option<u32>,
    /// Link over which a copy is made, in Mbit/s: slow enough that it is the limit [default: 100]
    #[arg(long, value_name = "MBIT")]
    seeding_mbit: Option<u32>,
    /// Where the servers' folders lie while they run [default: /var/tmp]
    #[arg(long, value_name = "DIR")]
    stores: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let mut options = CopiesOptions::new()?;
    if !arguments.only.is_empty() {
        let parts = arguments.only.iter().map(|part| part.parse::<Part>());
        options.parts = parts.collect::<Result<_, _>>()?;
    }
    let set = |option: &mut u32, said: Option<u32>| *option = said.unwrap_or(*option);
    set(&mut options.rounds, arguments.rounds);
    set(&mut options.seconds, arguments.seconds);
    set(&mut options.kills, arguments.kills);
    set(&mut options.switches, arguments.switches);
    set(&mut options.keys, arguments.keys);
    set(&mut options.seeding_mbit, arguments.seeding_mbit);
    options.stores.clone_from(&arguments.stores);
    let spinner = Spinner::start();
    let report = run_copies_lab(&options, &mut |what| spinner.say(what.to_owned()));
    spinner.end();
    let report = report?;
    if arguments.json {
        return output::print(&serde_json::to_string(&report).context("cannot write the report")?);
    }
    output::print(&text(&report))
}
