//! `ecotone repair`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use ecotone_inspect::{ManifestState, RepairReport, Repairing, repair_leaving_out};
use ecotone_server::DerivedKeys;

use crate::inspection;
use crate::live_server::{self, StoreLocation};
use crate::output::{self, line};
use crate::progress::Spinner;

/// Lost values, tables and parts of logs that are printed, of each sort; `--json` has more.
const SHOWN_LOSSES: usize = 20;

/// Characters of a key that are printed.
const SHOWN_KEY_CHARACTERS: usize = 64;

#[derive(clap::Args)]
#[command(
    after_help = "The damaged store is only read, and must not be open for writing meanwhile. A key whose newest value is lost is \
                  listed and not saved, also where an older value is there. Ends with an error when something was lost; what could \
                  be saved is saved all the same.\n\nExample:\n  ecotone repair /var/lib/ecotone/store --into /var/lib/ecotone/saved"
)]
pub(crate) struct Arguments {
    /// Folder of the damaged store, or of the server that has it
    dir: PathBuf,
    /// Folder of the new store; must not exist, and its parent must
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let store = match live_server::locate(&arguments.dir)? {
        StoreLocation::Store(store) => store,
        StoreLocation::Server(server) => {
            bail!("{}: stop it first; `ecotone verify` asks it whether there is anything to repair", server.in_use())
        }
    };
    let spinner = Spinner::start();
    let mut derived = DerivedKeys::default();
    let report = repair_leaving_out(
        &store,
        &arguments.into,
        |key| derived.has_next(key),
        |repairing| spinner.say(describe(repairing)),
    );
    spinner.end();
    let report = report?;
    output::print(&if arguments.json { serde_json::to_string(&report)? } else { described(&report) })?;
    let into = &arguments.into;
    if report.has_losses() {
        bail!("{into:?} is a sound store with what could be saved, and something was lost: see what is listed");
    }
    if !report.is_complete() {
        bail!(
            "{into:?} is a sound store with all that was found; without a sound MANIFEST nobody knows if that is all"
        );
    }
    Ok(())
}

fn describe(repairing: Repairing) -> String {
    match repairing {
        Repairing::Table { done, of } => format!("looking at table {} of {of}", done + 1),
        Repairing::Wal { done, of } => format!("reading write-ahead log {} of {of}", done + 1),
        Repairing::Unlisted { keys } => format!("comparing tables that the MANIFEST does not name: {keys} keys"),
        Repairing::Entries { done } => format!("{done} entries saved"),
        Repairing::Result(checking) => format!("checking the new store: {}", inspection::describe(checking)),
    }
}

fn described(report: &RepairReport) -> String {
    let mut text = String::new();
    line!(text, "tables    {} read ({} bytes)", report.tables, report.table_bytes);
    line!(text, "segments  {} found ({} bytes)", report.segments, report.segment_bytes);
    line!(text, "logs      {} read ({} bytes)", report.wals, report.wal_bytes);
    line!(text, "saved     {} entries ({} bytes)", report.saved_entries, report.saved_bytes);
    match &report.manifest {
        ManifestState::Sound => (),
        ManifestState::Damaged(detail) => line!(text, "MANIFEST  damaged: {detail}"),
        ManifestState::Missing => line!(text, "MANIFEST  missing: tables were found by listing the folder"),
    }
    for note in &report.notes {
        line!(text, "note      {note}");
    }
    for lost in report.lost_tables.iter().take(SHOWN_LOSSES) {
        let end = |key: &Option<String>| key.as_ref().map_or_else(|| "?".into(), |key| cut(key));
        let entries = lost.entries.map_or_else(|| "an unknown number of".into(), |entries| entries.to_string());
        let about = if lost.gaps == 0 && lost.entries.is_some() { "about " } else { "" };
        line!(
            text,
            "LOST      {}: {about}{entries} entries from {} to {}: {}",
            lost.table,
            end(&lost.from),
            end(&lost.to),
            lost.reason
        );
    }
    more(&mut text, report.lost_tables.len(), report.lost_table_count, "tables");
    for lost in report.lost_wals.iter().take(SHOWN_LOSSES) {
        let writes = lost.writes.map_or_else(String::new, |writes| format!(" ({writes} writes)"));
        line!(
            text,
            "LOST      {} from offset {}: {} bytes{writes}: {}",
            lost.wal,
            lost.offset,
            lost.bytes,
            lost.reason
        );
    }
    more(&mut text, report.lost_wals.len(), report.lost_wal_count, "parts of logs");
    for lost in report.lost_values.iter().take(SHOWN_LOSSES) {
        line!(text, "LOST      the value of {}: {} {}", cut(&lost.key), lost.place, lost.reason);
    }
    more(&mut text, report.lost_values.len(), report.lost_value_count, "values");
    if report.doubtful_entries > 0 {
        line!(
            text,
            "DOUBTFUL  {} saved entries lie where newer ones or deletions may have been lost with a table",
            report.doubtful_entries
        );
    }
    if report.older_may_be_back {
        line!(text, "DOUBTFUL  deleted keys and overwritten values may be back: what said so may be lost");
    }
    if report.is_complete() {
        line!(text, "nothing was lost");
    }
    text
}

/// A key as a line shows it.
fn cut(key: &str) -> String {
    match key.char_indices().nth(SHOWN_KEY_CHARACTERS) {
        Some((end, _)) => format!("\"{}\"...", &key[..end]),
        None => format!("\"{key}\""),
    }
}

fn more(text: &mut String, listed: usize, all: u64, what: &str) {
    let shown = listed.min(SHOWN_LOSSES) as u64;
    if all > shown {
        line!(text, "LOST      {} more {what}; --json lists {listed}", all - shown);
    }
}
