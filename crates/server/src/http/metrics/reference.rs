//! The table of all metrics in `docs/operations.md`, made of the metrics themselves.

use std::fmt::Write;

use super::families;

/// The table of all metrics, as `docs/operations.md` has it.
pub fn reference() -> String {
    let mut table = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for family in families() {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind) = (family.name, family.kind.name());
        // Writing to a text does not fail.
        let _ = writeln!(table, "| `{name}` | {kind} | {} | {} |", labels.join(", "), family.help);
    }
    table
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::super::page::Kind;
    use super::*;

    const BEGIN: &str = "<!-- metrics: made of crates/server/src/http/metrics: UPDATE=1 cargo test --release -p ecotone-server reference -->\n";
    const END: &str = "<!-- end of metrics -->";

    #[test]
    fn the_table_of_metrics_is_up_to_date() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
        let there = std::fs::read_to_string(&page).unwrap();
        let (before, rest) = there.split_once(BEGIN).expect("where the table begins");
        let (_, after) = rest.split_once(END).expect("where it ends");
        let new = format!("{before}{BEGIN}\n{}\n{END}{after}", reference());
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&page, &new).unwrap();
        }
        let there = std::fs::read_to_string(&page).unwrap();
        assert!(
            there == new,
            "docs/operations.md is out of date: UPDATE=1 cargo test --release -p ecotone-server reference"
        );
    }

    #[test]
    fn names_follow_the_conventions_and_are_unique() {
        let mut names = BTreeSet::new();
        for family in families() {
            let name = family.name;
            assert!(names.insert(name), "{name} is there twice");
            // Names of others, with their meaning.
            let prefixes = ["ecotone_", "process_", "kepler_"];
            assert!(prefixes.iter().any(|prefix| name.starts_with(prefix)), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert_eq!(name.ends_with("_total"), family.kind == Kind::Counter, "{name}");
            for unit in ["_ms", "_us", "_milliseconds", "_kb", "_mb", "_percent", "_hz"] {
                assert!(!name.contains(&format!("{unit}_")) && !name.ends_with(unit), "{name} is no base unit");
            }
            assert!(family.help.ends_with('.') && !family.help.contains('|'), "{name}: {}", family.help);
            assert!(family.labels.iter().all(|label| !["le", "quantile"].contains(label)), "{name}");
        }
    }
}
