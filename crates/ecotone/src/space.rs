//! `ecotone space`.

use std::path::PathBuf;

use anyhow::Result;
use ecotone_engine::{OpenMode, Store, StoreSettings};
use ecotone_inspect::{DuplicateCensus, Space, count_duplicates, space};

use crate::inspection;
use crate::live_server::{self, PasswordArgument, StoreLocation};
use crate::output::{self, line};

/// Shadowed versions, in one sentence or two.
fn of_shadowed(shadowed: &DuplicateCensus, is_exact: bool) -> String {
    let way = match (is_exact, shadowed.relative_error) {
        (true, _) => "counted".to_owned(),
        (false, None) => "estimated (--exact counts)".to_owned(),
        (false, Some(error)) => format!("estimated, +- {:.1} % (--exact counts)", error * 100.0),
    };
    let ratio = shadowed.ratio().map_or_else(String::new, |ratio| format!(", one of {ratio:.1} entries"));
    let (keys, bytes) = (shadowed.duplicate_keys(), shadowed.shadowed_bytes());
    let mut text = format!("shadowed by newer versions: {keys} versions{ratio}, {bytes} bytes; {way}");
    if shadowed.unsampled_tables > 0 {
        text.push_str(&format!(
            "\n{} tables carry no samples: what is shadowed in them is not estimated",
            shadowed.unsampled_tables
        ));
    }
    text
}

/// Segments that the table shows, the emptiest first.
const SHOWN_SEGMENTS: usize = 20;

#[derive(clap::Args)]
#[command(
    after_help = "A store that a server has open is inspected by that server, which is asked where it says in its folder that it serves clients. Any \
                  other is opened read-only. What newer versions shadow is garbage that no compaction has met; it is estimated where tables carry \
                  samples of their keys.\n\nExamples:\n  ecotone space /var/lib/ecotone\n  ecotone space 127.0.0.1:6379 --exact"
)]
pub(crate) struct Arguments {
    /// Folder of the store, or of the server that has it; or where a server serves clients
    #[arg(value_name = "DIR|HOST:PORT")]
    dir: PathBuf,
    #[command(flatten)]
    password: PasswordArgument,
    /// Count shadowed versions by reading all tables, instead of estimating it
    #[arg(long)]
    exact: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let space = match live_server::locate(&arguments.dir)? {
        StoreLocation::Store(store) => {
            let store = Store::open(&store, OpenMode::ReadOnly, StoreSettings::default())?;
            let mut space = space(&store)?;
            if arguments.exact {
                space.duplicates = Some(count_duplicates(&store)?);
            }
            space
        }
        StoreLocation::Server(server) => {
            let password = arguments.password.password()?;
            let requests = "INSPECT START SPACE, then INSPECT STATUS";
            let mut server = server.connect(password.as_deref(), "ecotone space", requests)?;
            let question: &[&[u8]] = if arguments.exact { &[b"SPACE", b"EXACT"] } else { &[b"SPACE"] };
            inspection::ask(&mut server, question)?
        }
    };
    output::print(&if arguments.json { serde_json::to_string(&space)? } else { described(&space, arguments.exact) })
}

fn percent(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

fn described(space: &Space, is_exact: bool) -> String {
    let mut text = String::new();
    let shadowed = space.duplicates.as_ref();
    let heads =
        if shadowed.is_some() { format!("{:>14}{:>16}", "shadowed keys", "shadowed bytes") } else { String::new() };
    line!(text, "{:<22}{:>9}{:>16}{:>16}{heads}", "", "files", "bytes", "referenced");
    for (level, tables) in space.levels.iter().enumerate() {
        let shadowed = shadowed.and_then(|shadowed| shadowed.levels.get(level));
        let shadowed = shadowed
            .map_or_else(String::new, |of| format!("{:>16}{:>14}{:>16}", "", of.shadowed_keys, of.shadowed_bytes));
        line!(text, "{:<22}{:>9}{:>16}{shadowed}", format!("tables, level {level}"), tables.tables, tables.bytes);
    }
    line!(
        text,
        "{:<22}{:>9}{:>16}{:>16}",
        "segments",
        space.segments.len(),
        space.segment_bytes(),
        space.referenced_bytes()
    );
    line!(text, "{:<22}{:>9}{:>16}", "write-ahead logs", "", space.wal_bytes);
    line!(text, "{:<22}{:>9}{:>16}", "other", "", space.other_bytes);
    line!(text, "{:<22}{:>9}{:>16}", "all", "", space.all_bytes());
    line!(text, "keys, about {:>33}", space.keys_estimate);
    if let Some(shadowed) = shadowed {
        line!(text, "{}", of_shadowed(shadowed, is_exact));
    }
    if space.saved_bytes > 0 {
        line!(
            text,
            "referenced bytes before compression: {}, {:.2} for each that is stored",
            space.uncompressed_bytes(),
            space.compression_ratio().unwrap_or(1.0)
        );
    }
    if space.unreferenced_bytes() > 0 {
        let share = percent(space.unreferenced_bytes(), space.segment_bytes());
        line!(
            text,
            "referenced by no table: {} bytes, {share:.1} % of all segments; garbage, or in the write-ahead log only",
            space.unreferenced_bytes()
        );
    }
    if !space.silent_tables.is_empty() {
        line!(text, "{} tables do not say which segments they reference; compact them", space.silent_tables.len());
    }
    let mut segments: Vec<_> = space.segments.iter().filter(|segment| segment.unreferenced_bytes() > 0).collect();
    if segments.is_empty() {
        return text;
    }
    segments.sort_by_key(|segment| std::cmp::Reverse(segment.unreferenced_bytes()));
    line!(
        text,
        "\nsegments with most bytes that no table references, and what is in them: values as users wrote them, or collected to a level"
    );
    line!(text, "{:>10}{:>12}{:>16}{:>16}{:>9}", "segment", "values", "bytes", "unreferenced", "share");
    for segment in segments.iter().take(SHOWN_SEGMENTS) {
        let share = percent(segment.unreferenced_bytes(), segment.bytes);
        let values = segment.resting_level.map_or_else(|| "written".to_owned(), |level| format!("level {level}"));
        line!(
            text,
            "{:>10}{values:>12}{:>16}{:>16}{share:>8.1}%",
            segment.segment,
            segment.bytes,
            segment.unreferenced_bytes()
        );
    }
    if segments.len() > SHOWN_SEGMENTS {
        line!(text, "and {} more", segments.len() - SHOWN_SEGMENTS);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ecotone_inspect::CountedLevel;

    #[test]
    fn an_estimate_says_how_far_it_may_be_off_and_what_it_leaves_out() {
        let level = |entries, shadowed_keys, shadowed_bytes| CountedLevel { entries, shadowed_keys, shadowed_bytes };
        let mut shadowed = DuplicateCensus {
            levels: vec![level(100, 0, 0), level(1_900, 640, 64_000)],
            relative_error: Some(0.314),
            unsampled_tables: 2,
        };
        assert_eq!(
            of_shadowed(&shadowed, false),
            "shadowed by newer versions: 640 versions, one of 3.1 entries, 64000 bytes; estimated, +- 31.4 % (--exact counts)\n\
             2 tables carry no samples: what is shadowed in them is not estimated"
        );
        shadowed.unsampled_tables = 0;
        assert!(of_shadowed(&shadowed, true).ends_with("64000 bytes; counted"));
        let none = DuplicateCensus { levels: vec![level(5, 0, 0)], ..DuplicateCensus::default() };
        assert_eq!(
            of_shadowed(&none, false),
            "shadowed by newer versions: 0 versions, 0 bytes; estimated (--exact counts)"
        );
    }
}
