//! `ecotone bench`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use ecotone_bench::command::{
    BenchOptions, BenchProgress, BenchReport, DEFAULT_ROUNDS, child_options, comparison_table, report_table, run_bench,
    run_compare,
};
use ecotone_bench::driver::Phase;
use ecotone_bench::report::{PageHeader, store_html};
use ecotone_bench::target::resp::{Credentials, ServerAddress, ServerOptions};
use ecotone_bench::target::{DedupKind, DedupSettings, Durability, Profile, TargetKind, TargetSettings};
use ecotone_bench::workload::{ValueKind, Workload, WorkloadOptions};
use ecotone_lab::CoreLimit;

use crate::output;
use crate::progress::Spinner;

/// How a server is named.
const TARGET_SHAPE: &str = "resp://HOST:PORT";

/// Where a server's password may be given, so that it is in no list of processes.
const PASSWORD_VARIABLE: &str = "ECOTONE_BENCH_PASSWORD";

#[derive(clap::Args)]
#[command(
    after_help = "Workloads: fillrandom, fillseq, overwrite, readrandom, readwhilewriting, mixgraph (Put 25, Get 50, Seek 25), \
                  seekrandom, ycsb-a to ycsb-f; updates (loads all keys, then puts of which --update-share per cent update keys of \
                  the load and the rest insert new ones).\n\nExamples, our store beside RocksDB alone, and beside \
                  BlobDB:\n  ecotone bench fillrandom --seconds 20 --compare\n  ecotone bench updates --zipf 0.9 --seconds 60 \
                  --compare --baseline rocksdb-blob --values json --report updates.html\n\nA running server, Ecotone or Redis, over four \
                  connections (fillrandom, fillseq, overwrite, readrandom, readwhilewriting, updates, ycsb-a to -d and -f; the others \
                  read keys in their order, which the protocol cannot):\n  ecotone bench readrandom --target \
                  resp://127.0.0.1:6379 --threads 4 --pipeline 16 --seconds 20"
)]
pub(crate) struct Arguments {
    /// What to run
    #[arg(required_unless_present = "run_options")]
    workload: Option<String>,
    /// What to run it on: engine (this store), rocksdb (the same library and options, nothing of
    /// ours in between) or rocksdb-blob (the same with RocksDB's own separation of values and its
    /// garbage collection); or a running server of the Redis protocol:
    /// resp://[[USER]:PASSWORD@]HOST:PORT or unix:///PATH. A password may also be given in
    /// ECOTONE_BENCH_PASSWORD
    #[arg(long, default_value = "engine")]
    target: String,
    /// Requests that each thread has under way at once on its connection to a server [default: 1]
    #[arg(long, value_name = "N")]
    pipeline: Option<u32>,
    /// Run engine and --baseline in turn and print the ratios
    #[arg(long, conflicts_with = "target")]
    compare: bool,
    /// What engine is compared with: rocksdb or rocksdb-blob
    #[arg(long, default_value = "rocksdb", requires = "compare")]
    baseline: String,
    /// When a write of the baseline is acknowledged: none, everysec or always [default: as
    /// --durability]
    #[arg(long, requires = "compare")]
    baseline_durability: Option<String>,
    /// Rounds of a comparison; each runs both targets once
    #[arg(long, default_value_t = DEFAULT_ROUNDS, requires = "compare")]
    rounds: u32,
    /// Folder of the store [default: a temporary one, removed at the end]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Run on the store that is in --dir, and keep it; on the keys that are in the server, where
    /// --target names one
    #[arg(long)]
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
    /// What values consist of: random (bytes that do not compress), half (as db_bench's: they
    /// compress to a half), json (telemetry of devices), text (lines of a log), or zeros:SHARE
    /// (random bytes and such a share of zeros, as zeros:0.5) [default: random; with --compare
    /// half]
    #[arg(long, value_name = "KIND")]
    values: Option<String>,
    /// Stop after so many seconds
    #[arg(long)]
    seconds: Option<f64>,
    /// Stop after so many operations [default: as many as there are keys, unless --seconds is
    /// given]
    #[arg(long)]
    ops: Option<u64>,
    /// Threads; of readwhilewriting the readers, beside one writer
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Operations per second that are offered, all threads together [default: as many as the store
    /// takes]
    #[arg(long)]
    rate: Option<f64>,
    /// Per cent of the puts of updates that update keys of the load; the rest insert new keys
    /// [default: 100]
    #[arg(long, value_name = "PERCENT")]
    update_share: Option<f64>,
    /// Draw the keys that updates updates by a Zipfian of this theta, 0.01 to 0.999 [default:
    /// uniformly]
    #[arg(long, value_name = "THETA")]
    zipf: Option<f64>,
    /// Entries that seekrandom reads after each seek, the one it lands on included: one operation.
    /// 1 to 10000 [default: 1]
    #[arg(long, value_name = "N")]
    scan_entries: Option<u32>,
    /// Update what was loaded before the measured part: puts of uniformly drawn keys, in per cent
    /// of --keys, 0 to 1000 [default: 0]
    #[arg(long, value_name = "PERCENT")]
    updates_before: Option<f64>,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// When a write is acknowledged: none, everysec or always [default: everysec]
    #[arg(long)]
    durability: Option<String>,
    /// Options of the store to start from: default, or small-device (below 128 MiB resident)
    /// [default: default]
    #[arg(long)]
    profile: Option<String>,
    /// Memory for block cache and memtables, in bytes [default: as the profile has it]
    #[arg(long)]
    memory_limit: Option<u64>,
    /// How tables are compressed: none, lz4 or zstd [default: lz4]
    #[arg(long, value_name = "WAY")]
    compression: Option<String>,
    #[arg(long, value_name = "BYTES|off", value_parser = separation, help = separation_help())]
    separation: Option<SeparationArgument>,
    /// Share of BlobDB's files, oldest first, whose live values a compaction moves (rocksdb-blob
    /// only) [default: 0.25, as RocksDB's]
    #[arg(long, value_name = "SHARE")]
    blob_gc_age_cutoff: Option<f64>,
    /// Share of garbage in those files that makes compactions for it alone; 1: never (rocksdb-blob
    /// only) [default: 1, as RocksDB's]
    #[arg(long, value_name = "SHARE")]
    blob_gc_force_threshold: Option<f64>,
    /// How BlobDB's files are compressed: none, lz4 or zstd (rocksdb-blob only) [default: none, as
    /// RocksDB's]
    #[arg(long, value_name = "WAY")]
    blob_compression: Option<String>,
    /// How duplicates in lower levels are counted: off, sample, filter, or triggered, which checks
    /// at fixed intervals and is there to be compared with (engine only). Small trees need
    /// --store-option to have levels; without --threshold they are only counted. With any of them,
    /// off too, those left at the end are counted by reading all tables, and compared [default:
    /// they are not asked for]
    #[arg(long, value_name = "WAY")]
    dedup: Option<String>,
    /// Extend a compaction where there is a duplicate in at most so many entries, 2 to 100, or off:
    /// none is; with a ratio they are counted by --dedup sample unless that says otherwise, with
    /// off by none [default: 10 with separated values and without --dedup, else off]
    #[arg(long, value_name = "RATIO|off", value_parser = threshold)]
    threshold: Option<ThresholdArgument>,
    /// Seconds between two checks of --dedup triggered, 1 to 3600 [default: 5]
    #[arg(long, value_name = "SECONDS", requires = "dedup")]
    dedup_interval: Option<f64>,
    /// Any other option of the store, such as level_multiplier=4; `ecotone serve --help` says where
    /// they are listed (engine only; may be repeated)
    #[arg(long, value_name = "NAME=VALUE")]
    store_option: Vec<String>,
    /// How long to wait at the end until compactions and GC are done
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    settle_seconds: f64,
    /// Limit the whole process to so many cores, such as 0.4, with a cgroup; needs the right to
    /// make cgroups
    #[arg(long)]
    cores: Option<f64>,
    /// Write a page with plots over time to this file
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// One run of a comparison, as JSON
    #[arg(long, hide = true)]
    run_options: Option<String>,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    if let Some(options) = &arguments.run_options {
        let report = run_limited(&child_options(options)?, |_| {})?;
        return output::print(&serde_json::to_string(&report)?);
    }
    let Some(name) = &arguments.workload else { bail!("name a workload; `ecotone bench --help` lists them") };
    let server = arguments.server()?;
    let target = if server.is_some() { TargetKind::Resp } else { arguments.target.parse::<TargetKind>()? };
    let baseline = if ServerAddress::is_meant_by(&arguments.baseline) {
        bail!("a comparison opens both stores itself: run servers one after the other, each with --target (--baseline)")
    } else {
        arguments.baseline.parse::<TargetKind>()?
    };
    arguments.check_blob_options(target, baseline)?;
    let separation = arguments.separation.map_or(target.default_separation(), |asked| asked.0);
    let profile = arguments.profile.as_deref().map_or(Ok(Profile::Default), str::parse)?;
    let sizes = TargetSettings::for_target(target, profile, separation);
    let durability = arguments.durability.as_deref().map_or(Ok(Durability::default()), str::parse)?;
    let options = BenchOptions {
        workload: WorkloadOptions {
            workload: name.parse::<Workload>()?,
            keys: arguments.keys,
            key_bytes: arguments.key_bytes,
            value_bytes: arguments.value_bytes,
            values: arguments.values()?,
            seconds: arguments.seconds,
            ops: arguments.ops,
            threads: arguments.threads,
            rate_ops_per_s: arguments.rate,
            update_share_percent: arguments.update_share,
            zipf_theta: arguments.zipf,
            scan_entries: arguments.scan_entries,
            updates_before_percent: arguments.updates_before,
            seed: arguments.seed,
            ..WorkloadOptions::default()
        },
        target,
        server,
        dir: arguments.dir.clone(),
        use_existing: arguments.use_existing,
        store: TargetSettings {
            durability,
            memory_limit_bytes: arguments.memory_limit.or(sizes.memory_limit_bytes),
            separation_min_bytes: separation,
            blob_gc_age_cutoff: arguments.blob_gc_age_cutoff.unwrap_or(sizes.blob_gc_age_cutoff),
            blob_gc_force_threshold: arguments.blob_gc_force_threshold.unwrap_or(sizes.blob_gc_force_threshold),
            compression: arguments.compression.as_deref().map_or(Ok(sizes.compression), str::parse)?,
            blob_compression: arguments.blob_compression.as_deref().map_or(Ok(sizes.blob_compression), str::parse)?,
            dedup: arguments.dedup()?,
            options: arguments.store_option.clone(),
            ..sizes
        },
        settle_seconds: arguments.settle_seconds,
        cores: arguments.cores,
    };
    let spinner = Spinner::start();
    if arguments.compare {
        let program = std::env::current_exe()?;
        let rounds = arguments.rounds;
        let mut baseline = options.of_baseline(baseline);
        if let Some(durability) = &arguments.baseline_durability {
            baseline.store.durability = durability.parse::<Durability>()?;
        }
        let comparison = run_compare(&options, &baseline, rounds, &program, &["bench"], |round, target| {
            spinner.say(format!("round {round} of {rounds}: {target}"));
        })?;
        spinner.end();
        let reports = comparison.rounds.iter().flat_map(|round| [&round.engine, &round.baseline]).cloned();
        arguments.write_page(&reports.collect::<Vec<_>>())?;
        output::print(&if arguments.json { serde_json::to_string(&comparison)? } else { comparison_table(&comparison) })
    } else {
        let report = run_limited(&options, |progress| spinner.say(describe(progress)))?;
        spinner.end();
        arguments.write_page(std::slice::from_ref(&report))?;
        output::print(&if arguments.json { serde_json::to_string(&report)? } else { report_table(&report) })
    }
}

/// Runs a workload in this process, with no more processor time than `--cores` says.
fn run_limited(options: &BenchOptions, progress: impl FnMut(&BenchProgress)) -> Result<BenchReport> {
    options.validate()?;
    let _limit = options.cores.map(CoreLimit::begin).transpose()?;
    Ok(run_bench(options, progress)?)
}

impl Arguments {
    /// The server that --target names, if it names one. What is for stores that are opened here is
    /// refused beside it.
    fn server(&self) -> Result<Option<ServerOptions>> {
        if !ServerAddress::is_meant_by(&self.target) {
            if self.pipeline.is_some() {
                bail!("--pipeline is for servers (--target resp://HOST:PORT): a store here answers when it is done");
            }
            if self.use_existing && self.dir.is_none() {
                bail!("--use-existing needs --dir: where is the store?");
            }
            return Ok(None);
        }
        let [age_cutoff, force_threshold, blob_compression] = self.blob_options();
        let refused = [
            ("--dir", self.dir.is_some()),
            ("--durability", self.durability.is_some()),
            ("--profile", self.profile.is_some()),
            ("--memory-limit", self.memory_limit.is_some()),
            ("--compression", self.compression.is_some()),
            ("--separation", self.separation.is_some()),
            age_cutoff,
            force_threshold,
            blob_compression,
            ("--dedup", self.dedup.is_some()),
            ("--threshold", self.threshold.is_some()),
            ("--store-option", !self.store_option.is_empty()),
            ("--cores", self.cores.is_some()),
        ];
        if let Some((name, _)) = refused.into_iter().find(|(_, is_given)| *is_given) {
            bail!("{name} is for stores that are opened here; a server (--target {TARGET_SHAPE}) has its own settings");
        }
        let (address, said) = ServerAddress::parse(&self.target)?;
        let credentials = said.or_else(|| std::env::var(PASSWORD_VARIABLE).ok().map(Credentials::password));
        Ok(Some(ServerOptions { credentials, pipeline: self.pipeline.unwrap_or(1), ..ServerOptions::new(address) }))
    }

    /// Stores that are compared compress what they can, so they get something to compress.
    fn values(&self) -> Result<ValueKind> {
        let default = if self.compare { ValueKind::COMPARED } else { ValueKind::default() };
        Ok(self.values.as_deref().map_or(Ok(default), str::parse)?)
    }

    /// What is asked of BlobDB must find one.
    fn check_blob_options(&self, target: TargetKind, baseline: TargetKind) -> Result<()> {
        let blobs = TargetKind::RocksdbBlob;
        let is_measured = target == blobs || (self.compare && baseline == blobs);
        match self.blob_options().into_iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) if !is_measured => {
                bail!(
                    "{name} is for BlobDB: measure it with --target {blobs}, or beside our store with --compare --baseline {blobs}"
                )
            }
            _ => Ok(()),
        }
    }

    fn blob_options(&self) -> [(&'static str, bool); 3] {
        [
            ("--blob-gc-age-cutoff", self.blob_gc_age_cutoff.is_some()),
            ("--blob-gc-force-threshold", self.blob_gc_force_threshold.is_some()),
            ("--blob-compression", self.blob_compression.is_some()),
        ]
    }

    fn dedup(&self) -> Result<Option<DedupSettings>> {
        let kind = match (&self.dedup, self.threshold) {
            (Some(way), _) => way.parse::<DedupKind>()?,
            (None, Some(ThresholdArgument(None))) => DedupKind::Off,
            (None, Some(ThresholdArgument(Some(_)))) => DedupKind::Sample,
            (None, None) => return Ok(None),
        };
        let threshold = self.threshold.and_then(|asked| asked.0);
        Ok(Some(DedupSettings { kind, threshold, interval_seconds: self.dedup_interval }))
    }

    fn write_page(&self, reports: &[BenchReport]) -> Result<()> {
        let Some(path) = &self.report else { return Ok(()) };
        let shown = |argument: String| {
            // Without its password.
            ServerAddress::parse(argument.trim_start_matches("--target="))
                .map_or(argument, |(address, _)| format!("--target={address}"))
        };
        let command =
            std::env::args().filter(|argument| argument != "--target").map(shown).collect::<Vec<_>>().join(" ");
        let page = store_html(reports, &PageHeader { command: &command, date: &output::today() });
        std::fs::write(path, page).with_context(|| format!("cannot write the report to {} (--report)", path.display()))
    }
}

/// The least length of a value that is separated from its key, if any is.
#[derive(Clone, Copy)]
pub(crate) struct SeparationArgument(pub(crate) Option<u32>);

pub(crate) fn separation(text: &str) -> Result<SeparationArgument, String> {
    match text {
        "off" => Ok(SeparationArgument(None)),
        bytes => match bytes.parse() {
            Ok(bytes) if bytes > 0 => Ok(SeparationArgument(Some(bytes))),
            _ => Err("give the least length of a value in bytes, at least 1, or `off`".into()),
        },
    }
}

/// The DUP_RATIO up to which compactions are extended, if any are.
#[derive(Clone, Copy)]
struct ThresholdArgument(Option<f64>);

/// Its range is the store's to check.
fn threshold(text: &str) -> Result<ThresholdArgument, String> {
    match text {
        "off" => Ok(ThresholdArgument(None)),
        ratio => ratio
            .parse()
            .map(|ratio| ThresholdArgument(Some(ratio)))
            .map_err(|_| "give a ratio from 2 to 100, or `off`".to_owned()),
    }
}

fn separation_help() -> String {
    let [ours, blobs] = [TargetKind::Engine, TargetKind::RocksdbBlob]
        .map(|target| target.default_separation().map_or("off".to_owned(), |bytes| bytes.to_string()));
    format!(
        "Values of at least so many bytes are separated from their keys, in the value log or BlobDB's files; off: none \
         [default: {ours}; of rocksdb off, of rocksdb-blob {blobs}]"
    )
}

fn describe(progress: &BenchProgress) -> String {
    match progress {
        BenchProgress::CountingDuplicates => "counting duplicates".into(),
        BenchProgress::SettlingAfter => "waiting for compactions to end".into(),
        BenchProgress::Running(snapshot) => match snapshot.phase {
            Phase::Loading => format!("loading: {} keys", snapshot.loaded),
            Phase::Updating => "loaded; updating".into(),
            Phase::Settling => "loaded; waiting for compactions to end".into(),
            Phase::Measuring | Phase::Finished => {
                let seconds = snapshot.elapsed.as_secs_f64();
                format!("{seconds:.0} s: {:.0} op/s", snapshot.counts.total() as f64 / seconds.max(1e-3))
            }
        },
    }
}
