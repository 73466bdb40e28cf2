//! `ecotone lab cluster`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use ecotone_lab::cluster::{ClusterOptions, Part, run_cluster_lab, text};

use crate::output;
use crate::progress::Spinner;

#[derive(clap::Args)]
#[command(
    after_help = "Parts: commit (a change of the federation), idle (processor time and bytes between servers while nobody asks), failover (the \
                  leader killed, stopped, or cut off one way), clients (redis-benchmark in cluster mode beside a server alone), tls (offloaded \
                  jobs with TLS beside without), shards (several on one server beside one).\n\nServers run at the speed of this machine, which \
                  should be quiet. idle needs `ss`, clients and shards need `redis-benchmark`; tls needs the right to make cgroups (root)."
)]
pub(super) struct Arguments {
    /// Parts to measure [default: all]
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<String>,
    /// Servers of the federation
    #[arg(long)]
    servers: Option<usize>,
    /// How often the leader is killed [default: 200]
    #[arg(long, value_name = "N")]
    kills: Option<u32>,
    /// How often it is stopped, and as often cut off one way [default: 30]
    #[arg(long, value_name = "N")]
    pauses: Option<u32>,
    /// Changes asked for at the leader, and as many at another server [default: 500]
    #[arg(long, value_name = "N")]
    commits: Option<u32>,
    /// How long idle servers are watched [default: 30]
    #[arg(long, value_name = "SECONDS")]
    idle_seconds: Option<u64>,
    /// Rounds of what is compared: clients, tls, shards [default: 5]
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    /// Requests of each run of redis-benchmark [default: 200000]
    #[arg(long, value_name = "N")]
    requests: Option<u32>,
    /// Length of each run whose offloaded jobs are timed [default: 40]
    #[arg(long, value_name = "SECONDS")]
    job_seconds: Option<u64>,
    /// Shards of the server that is compared with one of one shard [default: 16]
    #[arg(long, value_name = "N")]
    shards: Option<u32>,
    /// Where the servers' folders lie while they run [default: /var/tmp]
    #[arg(long, value_name = "DIR")]
    stores: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let mut options = ClusterOptions::new()?;
    if !arguments.only.is_empty() {
        let parts = arguments.only.iter().map(|part| part.parse::<Part>());
        options.parts = parts.collect::<Result<_, _>>()?;
    }
    let set = |option: &mut u32, said: Option<u32>| *option = said.unwrap_or(*option);
    set(&mut options.kills, arguments.kills);
    set(&mut options.pauses, arguments.pauses);
    set(&mut options.commits, arguments.commits);
    set(&mut options.rounds, arguments.rounds);
    set(&mut options.requests, arguments.requests);
    set(&mut options.shards, arguments.shards);
    options.servers = arguments.servers.unwrap_or(options.servers);
    options.job_seconds = arguments.job_seconds.unwrap_or(options.job_seconds);
    options.idle = arguments.idle_seconds.map_or(options.idle, Duration::from_secs);
    options.stores.clone_from(&arguments.stores);
    let spinner = Spinner::start();
    let report = run_cluster_lab(&options, &mut |what| spinner.say(what.to_owned()));
    spinner.end();
    let report = report?;
    if arguments.json {
        return output::print(&serde_json::to_string(&report).context("cannot write the report")?);
    }
    output::print(&text(&report))
}
