//! `ecotone verify`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use ecotone_engine::{Checking, VerifyReport, verify};

use crate::progress::Spinner;
use crate::store_folder::store_in;

#[derive(clap::Args)]
#[command(
    after_help = "The store is opened read-only and must not be written meanwhile. Ends with an error when something is \
                        damaged.\n\nExample:\n  ecotone verify /var/lib/ecotone/store"
)]
pub(crate) struct Arguments {
    /// Folder of the store, or of the server that has it
    dir: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let spinner = Spinner::start();
    let directory = store_in(&arguments.dir);
    let report = verify(&directory, |checking| spinner.say(describe(checking)))?;
    spinner.end();
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    if !report.is_sound() {
        bail!(
            "{:?} is damaged in {} places; restore it from a copy, or save what can be saved with `ecotone repair`",
            directory,
            report.damaged_count
        );
    }
    Ok(())
}

pub(crate) fn describe(checking: Checking) -> String {
    match checking {
        Checking::Table { done, of } => format!("table {} of {of}", done + 1),
        Checking::Segment { done, of } => format!("segment {} of {of}", done + 1),
        Checking::Entries { done } => format!("{done} entries"),
    }
}

fn print(report: &VerifyReport) {
    println!("tables    {} ({} bytes)", report.tables, report.table_bytes);
    println!("segments  {} ({} bytes, {} records)", report.segments, report.segment_bytes, report.records);
    println!("entries   {}", report.entries);
    for finding in &report.torn_ends {
        println!(
            "torn end  {}: {} (what a crash leaves behind, or damage to what nothing names)",
            finding.place, finding.detail
        );
    }
    for finding in &report.damaged {
        println!("DAMAGED   {}: {}", finding.place, finding.detail);
    }
    if report.is_sound() {
        println!("sound");
    }
}
