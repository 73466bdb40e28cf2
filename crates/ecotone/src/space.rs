//! `ecotone space`.

use std::path::PathBuf;

use anyhow::Result;
use ecotone_engine::{OpenMode, Space, Store, StoreOptions};

/// Segments that the table shows, the emptiest first.
const SHOWN_SEGMENTS: usize = 20;

#[derive(clap::Args)]
#[command(
    after_help = "The store is opened read-only and should not be written meanwhile.\n\nExample:\n  ecotone space /var/lib/ecotone/store"
)]
pub(crate) struct Arguments {
    /// Folder of the store
    dir: PathBuf,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let store = Store::open(&arguments.dir, OpenMode::ReadOnly, StoreOptions::default())?;
    let space = store.space()?;
    if arguments.json {
        println!("{}", serde_json::to_string(&space)?);
    } else {
        print(&space);
    }
    Ok(())
}

fn print(space: &Space) {
    println!("{:<22}{:>9}{:>16}{:>16}", "", "files", "bytes", "named by tables");
    for (level, tables) in space.levels.iter().enumerate() {
        println!("{:<22}{:>9}{:>16}", format!("tables, level {level}"), tables.tables, tables.bytes);
    }
    println!(
        "{:<22}{:>9}{:>16}{:>16}",
        "segments",
        space.segments.len(),
        space.segment_bytes(),
        space.referenced_bytes()
    );
    println!("{:<22}{:>9}{:>16}", "write-ahead logs", "", space.wal_bytes);
    println!("{:<22}{:>9}{:>16}", "other", "", space.other_bytes);
    println!("{:<22}{:>9}{:>16}", "all", "", space.all_bytes());
    println!("keys, about {:>33}", space.keys_estimate);
    if !space.silent_tables.is_empty() {
        println!("{} tables do not say which segments they name; compact them", space.silent_tables.len());
    }
    let mut segments: Vec<_> = space.segments.iter().filter(|segment| segment.unnamed_bytes() > 0).collect();
    if segments.is_empty() {
        return;
    }
    segments.sort_by_key(|segment| std::cmp::Reverse(segment.unnamed_bytes()));
    println!("\nsegments with most bytes that no table names (garbage, or in the write-ahead log only):");
    println!("{:>10}{:>16}{:>16}{:>9}", "segment", "bytes", "not named", "share");
    for segment in segments.iter().take(SHOWN_SEGMENTS) {
        let share = 100.0 * segment.unnamed_bytes() as f64 / segment.bytes.max(1) as f64;
        println!("{:>10}{:>16}{:>16}{share:>8.1}%", segment.segment, segment.bytes, segment.unnamed_bytes());
    }
    if segments.len() > SHOWN_SEGMENTS {
        println!("and {} more", segments.len() - SHOWN_SEGMENTS);
    }
}
