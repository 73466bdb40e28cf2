//! `ecotone restore`.

use std::path::PathBuf;

use anyhow::Result;
use ecotone_server::backup::restore;

use crate::backup::{described, human};
use crate::output::{self, line};
use crate::progress::Spinner;

#[derive(clap::Args)]
#[command(
    after_help = "Every byte is read against its checksum. Nothing is overwritten, and a restore that was cut short opens as no store: run it again, and it \
                  goes on.\n\nExample:\n  ecotone restore /backup/ecotone --to /var/lib/ecotone\n  ecotone serve --dir /var/lib/ecotone"
)]
pub(crate) struct Arguments {
    /// Folder of backups
    dir: PathBuf,
    /// Which backup, as `ecotone backup --list DIR` names it [default: the newest]
    #[arg(long, value_name = "ID")]
    backup: Option<String>,
    /// Folder of the server that is made: empty, or not there
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let spinner = Spinner::start();
    let restored = restore(&arguments.dir, arguments.backup.as_deref(), &arguments.to, &mut |progress| {
        spinner.say(described(progress));
    });
    spinner.end();
    let report = restored?;
    if arguments.json {
        return output::print(&serde_json::to_string(&report)?);
    }
    let mut text = String::new();
    line!(text, "backup    {}", report.id);
    line!(text, "files     {} ({}), in {:.1} s", report.files, human(report.bytes), report.took_ms as f64 / 1e3);
    if report.resumed_bytes > 0 {
        line!(text, "resumed   {} had been written before", human(report.resumed_bytes));
    }
    line!(text, "start it with `ecotone serve --dir {}`", arguments.to.display());
    output::print(&text)
}
