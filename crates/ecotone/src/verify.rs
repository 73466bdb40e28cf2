//! `ecotone verify`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use ecotone_inspect::{Finding, VerifyReport, verify};

use crate::live_server::{self, PasswordArgument, StoreLocation};
use crate::progress::Spinner;
use crate::{inspection, output};

/// What is said where tables understate what they name.
const LOSES_BY_WRITING: &str =
    "do not open the store for writing before it is repaired: segments would be removed that its tables still name";

#[derive(clap::Args)]
#[command(
    after_help = "A store that a server has open is checked by that server, as it is at one moment, while it goes on serving: it is asked where it says \
                  in its folder that it serves clients. Any other is opened read-only. Ends with an error when something is \
                  damaged.\n\nExamples:\n  ecotone verify /var/lib/ecotone\n  ecotone verify 10.0.0.5:6379 --password-file /etc/ecotone/password"
)]
pub(crate) struct Arguments {
    /// Folder of the store, or of the server that has it; or where a server serves clients
    #[arg(value_name = "DIR|HOST:PORT")]
    dir: PathBuf,
    #[command(flatten)]
    password: PasswordArgument,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let (place, report) = match live_server::locate(&arguments.dir)? {
        StoreLocation::Store(store) => {
            let spinner = Spinner::start();
            let report = verify(&store, |checking| spinner.say(inspection::describe(checking)))?;
            spinner.end();
            (format!("{store:?}"), report)
        }
        StoreLocation::Server(server) => {
            let password = arguments.password.password()?;
            let mut server =
                server.connect(password.as_deref(), "ecotone verify", "INSPECT START VERIFY, then INSPECT STATUS")?;
            let report = inspection::ask(&mut server, &[b"VERIFY"])?;
            (format!("the store of the server at {}", server.address()), report)
        }
    };
    output::print(&if arguments.json { serde_json::to_string(&report)? } else { text(&report) })?;
    judge(&place, &report)
}

fn judge(place: &str, report: &VerifyReport) -> Result<()> {
    if !report.is_sound() {
        bail!(
            "{place} is damaged in {} places; restore it from a copy, or save what can be saved with `ecotone repair`",
            report.damaged_count
        );
    }
    Ok(())
}

fn text(report: &VerifyReport) -> String {
    let mut lines = vec![
        format!("tables    {} ({} bytes)", report.tables, report.table_bytes),
        format!("segments  {} ({} bytes, {} records)", report.segments, report.segment_bytes, report.records),
        format!("entries   {}", report.entries),
    ];
    let mut list =
        |label: &str, findings: &[Finding], meaning: &str| {
            lines.extend(findings.iter().map(|Finding { kind, place, detail }| {
                format!("{label:<9} {}: {place}: {detail}{meaning}", kind.name())
            }));
        };
    list(
        "torn end",
        &report.torn_ends,
        " (what a crash leaves behind, or damage to what nothing names or no sync covered)",
    );
    list("note", &report.overstated, " (no damage: garbage is kept until the table is compacted)");
    list("DAMAGED", &report.damaged, "");
    if report.loses_by_writing() {
        lines.push(format!("WARNING   {LOSES_BY_WRITING}"));
    }
    if report.is_sound() {
        lines.push("sound".into());
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test fails where it is surprised

    use ecotone_inspect::FindingKind;

    use super::*;

    fn finding(kind: FindingKind) -> Finding {
        Finding { kind, place: "000007.sst".into(), detail: "so it is".into() }
    }

    fn said(report: &VerifyReport) -> (String, Option<String>) {
        (text(report), judge("store", report).err().map(|error| error.to_string()))
    }

    #[test]
    fn garbage_that_is_kept_is_a_note_and_no_error() {
        let overstated = vec![finding(FindingKind::OverstatedReferences)];
        let (text, error) = said(&VerifyReport { overstated, overstated_count: 1, ..VerifyReport::default() });
        assert!(text.contains("note      overstated-references: 000007.sst: so it is (no damage"), "{text}");
        assert!(text.ends_with("\nsound\n") && !text.contains("DAMAGED") && !text.contains("WARNING"), "{text}");
        assert_eq!(error, None);
    }

    #[test]
    fn damage_is_told_by_its_kind_and_who_would_lose_by_writing_is_warned() {
        for (kind, name, warns) in [
            (FindingKind::Damage, "damage", false),
            (FindingKind::DanglingPointer, "dangling-pointer", false),
            (FindingKind::UnderstatedReferences, "understated-references", true),
        ] {
            let damaged = vec![finding(kind)];
            let (text, error) = said(&VerifyReport { damaged, damaged_count: 1, ..VerifyReport::default() });
            assert!(text.contains(&format!("DAMAGED   {name}: 000007.sst: so it is\n")), "{text}");
            assert_eq!(text.contains("WARNING   do not open the store for writing"), warns, "{text}");
            assert!(!text.contains("sound"), "{text}");
            assert!(error.unwrap().contains("damaged in 1 places"));
        }
        // One of those that are not listed may be of that kind.
        let damaged = vec![finding(FindingKind::Damage)];
        let (text, _) = said(&VerifyReport { damaged, damaged_count: 2, ..VerifyReport::default() });
        assert!(text.contains("WARNING"), "{text}");
    }

    #[test]
    fn kinds_are_named_as_in_json() {
        use FindingKind::{Damage, DanglingPointer, OverstatedReferences, TornEnd, UnderstatedReferences};
        for kind in [Damage, DanglingPointer, OverstatedReferences, TornEnd, UnderstatedReferences] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
