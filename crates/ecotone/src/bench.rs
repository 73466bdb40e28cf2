//! `ecotone bench`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use ecotone_bench::command::{
    BenchOptions, BenchProgress, DEFAULT_ROUNDS, comparison_table, report_table, run_bench, run_child, run_compare,
};
use ecotone_bench::driver::Phase;
use ecotone_bench::target::{Durability, StoreSettings, TargetKind};
use ecotone_bench::workload::{Workload, WorkloadOptions};

use crate::progress::Spinner;

#[derive(clap::Args)]
#[command(
    after_help = "Workloads: fillrandom, fillseq, overwrite, readrandom, readwhilewriting, mixgraph (Put 25, Get 50, Seek 25), \
                  seekrandom, ycsb-a to ycsb-f.\n\nExample, our store beside RocksDB alone in one run:\n  ecotone bench \
                  fillrandom --seconds 20 --compare"
)]
pub(crate) struct Arguments {
    /// What to run
    #[arg(required_unless_present = "run_options")]
    workload: Option<String>,
    /// What to run it on: engine (this store) or rocksdb (the same library and options, nothing of ours in between)
    #[arg(long, default_value = "engine")]
    target: String,
    /// Run both targets in turn and print the ratios
    #[arg(long, conflicts_with = "target")]
    compare: bool,
    /// Rounds of a comparison; each runs both targets once
    #[arg(long, default_value_t = DEFAULT_ROUNDS, requires = "compare")]
    rounds: u32,
    /// Folder of the store [default: a temporary one, removed at the end]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Run on the store that is in --dir, and keep it
    #[arg(long, requires = "dir")]
    use_existing: bool,
    /// Keys of the key space
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Bytes of a key
    #[arg(long, default_value_t = 16)]
    key_bytes: u32,
    /// Bytes of a value; of mixgraph the mean
    #[arg(long, default_value_t = 1000)]
    value_bytes: u32,
    /// Stop after so many seconds
    #[arg(long)]
    seconds: Option<f64>,
    /// Stop after so many operations [default: as many as there are keys, unless --seconds is given]
    #[arg(long)]
    ops: Option<u64>,
    /// Threads; of readwhilewriting the readers, beside one writer
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Operations per second that are offered, all threads together [default: as many as the store takes]
    #[arg(long)]
    rate: Option<f64>,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// When a write is acknowledged: none, everysec or always
    #[arg(long, default_value = "everysec")]
    durability: String,
    /// Memory for block cache and memtables, in bytes
    #[arg(long)]
    memory_limit: Option<u64>,
    /// Values of at least so many bytes are kept apart from their keys, in the value log; off: none (engine only)
    #[arg(long, value_name = "BYTES|off", default_value = "off", value_parser = separation)]
    separation: SeparationArgument,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// One run of a comparison, as JSON
    #[arg(long, hide = true)]
    run_options: Option<String>,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    if let Some(options) = &arguments.run_options {
        println!("{}", run_child(options, |_| {})?);
        return Ok(());
    }
    let Some(name) = &arguments.workload else { bail!("name a workload; `ecotone bench --help` lists them") };
    let defaults = StoreSettings::with_separation(arguments.separation.0);
    let options = BenchOptions {
        workload: WorkloadOptions {
            workload: name.parse::<Workload>()?,
            keys: arguments.keys,
            key_bytes: arguments.key_bytes,
            value_bytes: arguments.value_bytes,
            seconds: arguments.seconds,
            ops: arguments.ops,
            threads: arguments.threads,
            rate_ops_per_s: arguments.rate,
            seed: arguments.seed,
            ..WorkloadOptions::default()
        },
        target: arguments.target.parse::<TargetKind>()?,
        dir: arguments.dir.clone(),
        use_existing: arguments.use_existing,
        store: StoreSettings {
            durability: arguments.durability.parse::<Durability>()?,
            memory_limit_bytes: arguments.memory_limit.or(defaults.memory_limit_bytes),
            ..defaults
        },
    };
    let spinner = Spinner::start();
    if arguments.compare {
        let program = std::env::current_exe()?;
        let rounds = arguments.rounds;
        let comparison = run_compare(&options, rounds, &program, &["bench"], |round, target| {
            spinner.say(format!("round {round} of {rounds}: {target}"));
        })?;
        spinner.end();
        if arguments.json {
            println!("{}", serde_json::to_string(&comparison)?);
        } else {
            print!("{}", comparison_table(&comparison));
        }
    } else {
        let report = run_bench(&options, |progress| spinner.say(describe(progress)))?;
        spinner.end();
        if arguments.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            print!("{}", report_table(&report));
        }
    }
    Ok(())
}

/// The least length of a value that goes to the value log, where there is one.
#[derive(Clone, Copy)]
struct SeparationArgument(Option<u32>);

fn separation(text: &str) -> Result<SeparationArgument, String> {
    match text {
        "off" => Ok(SeparationArgument(None)),
        bytes => match bytes.parse() {
            Ok(bytes) if bytes > 0 => Ok(SeparationArgument(Some(bytes))),
            _ => Err("give the least length of a value in bytes, at least 1, or `off`".into()),
        },
    }
}

fn describe(progress: &BenchProgress) -> String {
    match progress {
        BenchProgress::SettlingAfter => "waiting for compactions to end".into(),
        BenchProgress::Running(snapshot) => match snapshot.phase {
            Phase::Loading => format!("loading: {} keys", snapshot.loaded),
            Phase::Settling => "loaded; waiting for compactions to end".into(),
            Phase::Measuring | Phase::Finished => {
                let seconds = snapshot.elapsed.as_secs_f64();
                format!("{seconds:.0} s: {:.0} op/s", snapshot.counts.total() as f64 / seconds.max(1e-3))
            }
        },
    }
}
