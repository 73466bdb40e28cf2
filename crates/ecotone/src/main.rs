//! The command `ecotone`: the only place that speaks to people.

#[allow(unsafe_code)] // the allocator reads a symbol of C
mod allocator;
mod backup;
mod bench;
mod cluster;
mod compact;
mod energy;
mod inspection;
mod lab;
mod live_server;
mod log;
mod output;
mod progress;
mod repair;
mod restore;
mod serve;
#[allow(unsafe_code)]
// the standard library neither stops a process nor ends one without running what others registered
mod signals;
mod space;
mod supervisor;
mod top;
mod verify;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "ecotone",
    version,
    about = "An energy-aware key-value store for edge federations",
    long_about = "An energy-aware key-value store for edge federations: servers that compact for one another where it is \
                  cheapest in time and joules.\n\nBegin with `ecotone lab fillrandom --profile three-tier`: it plays three unequal servers on this \
                  machine and shows what each policy does.",
    after_help = "The level of the log on standard error is set with RUST_LOG (error, warn, info, debug); the default is warn, and \
                  for `serve` what its configuration says (info)."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one server of a federation
    Serve(Box<serve::Arguments>),
    /// Make a federation, let servers join it, or remove one
    Cluster(cluster::Arguments),
    /// Measure a workload against this store or against RocksDB alone
    Bench(Box<bench::Arguments>),
    /// Play unequal servers on this machine and compare policies
    Lab(Box<lab::Arguments>),
    /// Show a federation live in the terminal
    Top(top::Arguments),
    /// Show what a server spent its joules on within the last hour
    Energy(energy::Arguments),
    /// Check every table, segment and value of a store
    Verify(verify::Arguments),
    /// Save what can be saved of a damaged store
    Repair(repair::Arguments),
    /// Show where the bytes of a store are
    Space(space::Arguments),
    /// Free what was deleted, overwritten or has expired, of a server or a store
    Compact(compact::Arguments),
    /// Back up a running server, list backups, or check them
    Backup(Box<backup::Arguments>),
    /// Make the folder of a server of a backup
    Restore(restore::Arguments),
}

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    let mut logs_json = false;
    if !matches!(arguments.command, Command::Serve(_)) {
        log::directly("warn");
    }
    let outcome = match arguments.command {
        Command::Serve(arguments) if arguments.print_config => serve::print_config(),
        Command::Serve(arguments) => arguments.config().and_then(|config| {
            logs_json = config.text("server.log_format") == "json";
            log::background(config.text("server.log_level"), config.text("server.log_format"));
            serve::run(&arguments, config)
        }),
        Command::Cluster(arguments) => cluster::run(&arguments),
        Command::Bench(arguments) => bench::run(*arguments),
        Command::Lab(arguments) => lab::run(*arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Energy(arguments) => energy::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Repair(arguments) => repair::run(&arguments),
        Command::Space(arguments) => space::run(&arguments),
        Command::Compact(arguments) => compact::run(&arguments),
        Command::Backup(arguments) => backup::run(&arguments),
        Command::Restore(arguments) => restore::run(&arguments),
    };
    let status = match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) if logs_json => {
            tracing::error!(error = with_causes(&error), "ecotone ends");
            std::process::ExitCode::FAILURE
        }
        Err(error) => {
            log::say(&format!("ecotone: {}", with_causes(&error)));
            std::process::ExitCode::FAILURE
        }
    };
    log::flush();
    status
}

/// The error and what it came of, in a line. Some errors include their cause already.
fn with_causes(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
}
