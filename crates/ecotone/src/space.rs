//! `ecotone space`.

use std::path::PathBuf;

use anyhow::Result;
use ecotone_engine::{DuplicateCensus, OpenMode, Space, Store, StoreOptions};

use crate::inspection;
use crate::live_server::{self, PasswordArgument, Place};
use crate::output::{self, line};

/// What newer versions hide, in one sentence or two.
fn of_hidden(hidden: &DuplicateCensus, is_exact: bool) -> String {
    let way = match (is_exact, hidden.relative_error) {
        (true, _) => "counted".to_owned(),
        (false, None) => "estimated (--exact counts)".to_owned(),
        (false, Some(error)) => format!("estimated, +- {:.1} % (--exact counts)", error * 100.0),
    };
    let ratio = hidden.ratio().map_or_else(String::new, |ratio| format!(", one of {ratio:.1} entries"));
    let (keys, bytes) = (hidden.duplicate_keys(), hidden.hidden_bytes());
    let mut text = format!("hidden by newer versions: {keys} versions{ratio}, {bytes} bytes; {way}");
    if hidden.unsampled_tables > 0 {
        text.push_str(&format!(
            "\n{} tables carry no samples: what hides in them is not estimated",
            hidden.unsampled_tables
        ));
    }
    text
}

/// Segments that the table shows, the emptiest first.
const SHOWN_SEGMENTS: usize = 20;

#[derive(clap::Args)]
#[command(
    after_help = "A store that a server has open is looked at by that server, which is asked where it says in its folder that it serves clients. Any \
                  other is opened read-only. What newer versions hide is garbage that no compaction has met; it is estimated where tables carry \
                  samples of their keys.\n\nExamples:\n  ecotone space /var/lib/ecotone\n  ecotone space 127.0.0.1:6379 --exact"
)]
pub(crate) struct Arguments {
    /// Folder of the store, or of the server that has it; or where a server serves clients
    #[arg(value_name = "DIR|HOST:PORT")]
    dir: PathBuf,
    #[command(flatten)]
    password: PasswordArgument,
    /// Count what newer versions hide by reading all tables, instead of estimating it
    #[arg(long)]
    exact: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let space = match live_server::place(&arguments.dir) {
        Place::Store(store) => {
            let store = Store::open(&store, OpenMode::ReadOnly, StoreOptions::default())?;
            let mut space = store.space()?;
            if arguments.exact {
                space.duplicates = Some(store.count_duplicates()?);
            }
            space
        }
        Place::Server(server) => {
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
    let hidden = space.duplicates.as_ref();
    let heads = if hidden.is_some() { format!("{:>14}{:>16}", "hidden keys", "hidden bytes") } else { String::new() };
    line!(text, "{:<22}{:>9}{:>16}{:>16}{heads}", "", "files", "bytes", "named by tables");
    for (level, tables) in space.levels.iter().enumerate() {
        let hidden = hidden.and_then(|hidden| hidden.levels.get(level));
        let hidden =
            hidden.map_or_else(String::new, |of| format!("{:>16}{:>14}{:>16}", "", of.hidden_keys, of.hidden_bytes));
        line!(text, "{:<22}{:>9}{:>16}{hidden}", format!("tables, level {level}"), tables.tables, tables.bytes);
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
    if let Some(hidden) = hidden {
        line!(text, "{}", of_hidden(hidden, is_exact));
    }
    if space.unnamed_bytes() > 0 {
        let share = percent(space.unnamed_bytes(), space.segment_bytes());
        line!(
            text,
            "named by no table: {} bytes, {share:.1} % of all segments; garbage, or in the write-ahead log only",
            space.unnamed_bytes()
        );
    }
    if !space.silent_tables.is_empty() {
        line!(text, "{} tables do not say which segments they name; compact them", space.silent_tables.len());
    }
    let mut segments: Vec<_> = space.segments.iter().filter(|segment| segment.unnamed_bytes() > 0).collect();
    if segments.is_empty() {
        return text;
    }
    segments.sort_by_key(|segment| std::cmp::Reverse(segment.unnamed_bytes()));
    line!(
        text,
        "\nsegments with most bytes that no table names, and what is in them: values as users wrote them, or relocated to a level"
    );
    line!(text, "{:>10}{:>12}{:>16}{:>16}{:>9}", "segment", "values", "bytes", "not named", "share");
    for segment in segments.iter().take(SHOWN_SEGMENTS) {
        let share = percent(segment.unnamed_bytes(), segment.bytes);
        let values = segment.resting_level.map_or_else(|| "written".to_owned(), |level| format!("level {level}"));
        line!(
            text,
            "{:>10}{values:>12}{:>16}{:>16}{share:>8.1}%",
            segment.segment,
            segment.bytes,
            segment.unnamed_bytes()
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
    use ecotone_engine::CountedLevel;

    #[test]
    fn an_estimate_says_how_far_it_may_be_off_and_what_it_leaves_out() {
        let level = |entries, hidden_keys, hidden_bytes| CountedLevel { entries, hidden_keys, hidden_bytes };
        let mut hidden = DuplicateCensus {
            levels: vec![level(100, 0, 0), level(1_900, 640, 64_000)],
            relative_error: Some(0.314),
            unsampled_tables: 2,
        };
        assert_eq!(
            of_hidden(&hidden, false),
            "hidden by newer versions: 640 versions, one of 3.1 entries, 64000 bytes; estimated, +- 31.4 % (--exact counts)\n\
             2 tables carry no samples: what hides in them is not estimated"
        );
        hidden.unsampled_tables = 0;
        assert!(of_hidden(&hidden, true).ends_with("64000 bytes; counted"));
        let none = DuplicateCensus { levels: vec![level(5, 0, 0)], ..DuplicateCensus::default() };
        assert_eq!(
            of_hidden(&none, false),
            "hidden by newer versions: 0 versions, 0 bytes; estimated (--exact counts)"
        );
    }
}
