//! `ecotone backup`.

pub(crate) mod remote;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use ecotone_server::backup::{
    BackupEntry, BackupOptions, BackupReport, CopyProgress, DEFAULT_LIMIT_BYTES_PER_S, MIN_LIMIT_BYTES_PER_S, Manifest,
    VerifyBackupsReport, back_up, list, verify,
};

use crate::live_server::ConnectionArguments;
use crate::output::{self, line};
use crate::progress::Spinner;
use remote::{Remote, server};

/// What is printed of what needs a damaged object; `--json` has all.
const SHOWN_NEEDS: usize = 5;

#[derive(clap::Args)]
#[command(
    group(clap::ArgGroup::new("what").required(true).args(["address", "list", "verify"])),
    after_help = "A backup shows the store as it was at one moment: all that was acknowledged before it began, and no part of a transaction. The server \
                  goes on meanwhile. Of what earlier backups in DIR have, nothing is sent again; one that was cut short is gone on with by the \
                  same command. Ends with an error unless the backup is complete and durable.\n\nExamples:\n  ecotone backup 10.0.0.5:6379 --to /backup/ecotone --keep 7 \
                  --password-file /etc/ecotone/password\n  ecotone backup --list /backup/ecotone\n  ecotone backup --verify /backup/ecotone\n  \
                  ecotone restore /backup/ecotone --to /var/lib/ecotone\n\nOf a federation with several shards: `ecotone cluster backup` and \
                  `ecotone cluster restore`. --list and --verify are for both."
)]
pub(crate) struct Arguments {
    /// Where the server serves clients; or unix:///PATH
    #[arg(value_name = "HOST:PORT", requires = "to")]
    address: Option<String>,
    /// Folder of backups, made if there is none
    #[arg(long, value_name = "DIR", requires = "address")]
    to: Option<PathBuf>,
    /// How many backups of this store stay in it, this one included [default: all]
    #[arg(long, value_name = "NUMBER", requires = "address", value_parser = clap::value_parser!(u64).range(1..))]
    keep: Option<u64>,
    /// Bytes a second that are read of the server at most; 0: as fast as it goes
    #[arg(long, value_name = "BYTES", requires = "address", default_value_t = DEFAULT_LIMIT_BYTES_PER_S)]
    limit_bytes_per_second: u64,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// List the backups in a folder
    #[arg(long, value_name = "DIR")]
    list: Option<PathBuf>,
    /// Read everything in a folder of backups, and report what is damaged
    #[arg(long, value_name = "DIR")]
    verify: Option<PathBuf>,
    /// Verify this backup only
    #[arg(long, value_name = "ID", requires = "verify")]
    backup: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if let Some(directory) = &arguments.list {
        return print_list(directory, arguments.json);
    }
    if let Some(directory) = &arguments.verify {
        return check(directory, arguments);
    }
    let (Some(address), Some(to)) = (&arguments.address, &arguments.to) else {
        bail!("say of which server, and --to DIR")
    };
    let mut source = Remote::of(server(address, &arguments.connection)?);
    let options = options(arguments.limit_bytes_per_second, arguments.keep)?;
    let spinner = Spinner::start();
    let made = back_up(to, &mut source, options, &|| true, &mut |progress| spinner.say(described(progress)));
    spinner.end();
    let report = made?;
    output::print(&if arguments.json { serde_json::to_string(&report)? } else { made_text(&report, to) })?;
    all_removed(&report)
}

/// How a backup is made.
pub(crate) fn options(limit_bytes_per_s: u64, keep: Option<u64>) -> Result<BackupOptions> {
    let limit = limit_bytes_per_s;
    if limit != 0 && limit < MIN_LIMIT_BYTES_PER_S {
        bail!("--limit-bytes-per-second must be at least {MIN_LIMIT_BYTES_PER_S}, or 0 for no limit");
    }
    Ok(BackupOptions { limit_bytes_per_s: (limit != 0).then_some(limit), keep })
}

/// An error where old backups should have been removed.
pub(crate) fn all_removed(report: &BackupReport) -> Result<()> {
    match &report.not_removed {
        Some(why) => bail!("the backup is complete, but old ones were not removed: {why}"),
        None => Ok(()),
    }
}

pub(crate) fn described(progress: CopyProgress) -> String {
    let CopyProgress { done_files, files, done_bytes, bytes, new_bytes } = progress;
    format!("{done_files} of {files} files, {} of {} ({} new)", human(done_bytes), human(bytes), human(new_bytes))
}

/// Bytes as people read them.
pub(crate) fn human(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

pub(crate) fn made_text(report: &BackupReport, to: &Path) -> String {
    let mut text = String::new();
    line!(text, "backup    {} in {}", report.id, to.display());
    line!(text, "files     {} ({})", report.files, human(report.bytes));
    line!(
        text,
        "new       {} ({}), in {:.1} s",
        report.new_files,
        human(report.new_bytes),
        report.took_ms as f64 / 1e3
    );
    if report.resumed_bytes > 0 {
        line!(text, "resumed   {} had come before", human(report.resumed_bytes));
    }
    if report.removed_backups + report.removed_objects > 0 {
        let (backups, objects) = (report.removed_backups, report.removed_objects);
        line!(
            text,
            "removed   {backups} old backups, {objects} files that none needs ({})",
            human(report.removed_bytes)
        );
    }
    text
}

fn print_list(directory: &Path, is_json: bool) -> Result<()> {
    let entries = list(directory)?;
    let damaged = entries.iter().filter(|entry| entry.manifest.is_err()).count();
    output::print(&if is_json { listed_json(&entries).to_string() } else { listed(&entries) })?;
    if damaged > 0 {
        bail!("{damaged} backups in {} cannot be restored: their MANIFEST is damaged", directory.display());
    }
    Ok(())
}

fn listed_json(entries: &[BackupEntry]) -> serde_json::Value {
    let entries = entries.iter().map(|entry| match &entry.manifest {
        Ok(Manifest { id, program, store, time_ms, took_ms, bytes, new_bytes, files, federation, .. }) => {
            serde_json::json!({
                "id": id, "program": program, "store": store, "time_ms": time_ms, "took_ms": took_ms, "files": files.len(),
                "bytes": bytes, "new_bytes": new_bytes, "federation": federation,
            })
        }
        Err(why) => serde_json::json!({ "id": entry.id, "damaged": why }),
    });
    serde_json::json!({ "backups": entries.collect::<Vec<_>>() })
}

fn listed(entries: &[BackupEntry]) -> String {
    let mut text = String::new();
    if entries.is_empty() {
        line!(text, "no backups");
    }
    for entry in entries {
        match &entry.manifest {
            Ok(Manifest { id, store, bytes, new_bytes, files, federation, .. }) => {
                let of = match federation {
                    Some(federation) => format!("{store}, {} shards", federation.shards.len()),
                    None => format!("store {store}"),
                };
                let (bytes, new_bytes) = (human(*bytes), human(*new_bytes));
                line!(text, "{id}  {bytes} in {} files, {new_bytes} of them new; {of}", files.len());
            }
            Err(why) => line!(text, "{}  DAMAGED: {why}", entry.id),
        }
    }
    text
}

fn check(directory: &Path, arguments: &Arguments) -> Result<()> {
    let spinner = Spinner::start();
    let checked = verify(directory, arguments.backup.as_deref(), &mut |progress| {
        spinner.say(format!("{} of {} read", human(progress.done_bytes), human(progress.bytes)));
    });
    spinner.end();
    let report = checked?;
    output::print(&if arguments.json { serde_json::to_string(&report)? } else { checked_text(&report) })?;
    if !report.is_sound() {
        bail!(
            "{} is damaged: {} backups and {} objects. Remove a damaged object, and the next backup fetches it again, as far as the server \
             still has it; a backup that needs it cannot be restored until then",
            directory.display(),
            report.damaged_backups.len(),
            report.damaged_objects.len()
        );
    }
    Ok(())
}

fn checked_text(report: &VerifyBackupsReport) -> String {
    let mut text = String::new();
    line!(text, "backups   {}", report.backups);
    line!(text, "objects   {} ({})", report.objects, human(report.bytes));
    if report.unneeded_objects > 0 {
        let bytes = human(report.unneeded_bytes);
        line!(text, "unneeded  {} objects ({bytes}); the next backup removes them", report.unneeded_objects);
    }
    for why in &report.damaged_backups {
        line!(text, "DAMAGED   {why}");
    }
    for object in &report.damaged_objects {
        line!(text, "DAMAGED   {}: {}", object.path, object.reason);
        for need in object.needed_by.iter().take(SHOWN_NEEDS) {
            line!(text, "          needed by {need}");
        }
        if object.needed_by.len() > SHOWN_NEEDS {
            line!(text, "          and {} more", object.needed_by.len() - SHOWN_NEEDS);
        }
    }
    if report.is_sound() {
        line!(text, "sound");
    }
    text
}
