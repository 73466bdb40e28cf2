//! What there is to know of all keys, as a page and as a file to begin with. Both are made of the
//! keys themselves.

use std::fmt::Write;

use ecotone_engine::Profile;

use super::{Key, SECTIONS, keys};
use crate::store_options::{STORE_OPTIONS, store_options};

/// Above the tables of the reference. Everything below is made of the keys.
const HEAD: &str = "# Configuration

`ecotone serve` takes its settings from, each winning over those before:

1. the defaults below,
2. the file that `--config FILE` or the variable `ECOTONE_CONFIG` names (no file is read unless it is named),
3. variables of the environment, one for each key: `ECOTONE_<SECTION>_<KEY>`, such as `ECOTONE_CLIENTS_MAX_CLIENTS`,
4. the command line (`ecotone serve --help`).

The file is TOML: sections in brackets, and keys below them. `ecotone serve --print-config` prints one with every key, its default and
what it is for. An unknown key or an impossible value is refused with file, line and reason; so is a variable that
begins like those of a section and names no key. In the environment and by CONFIG SET a list is written with commas. Relative paths
count from the folder that the server is started in.

Keys marked *live* can be changed by CONFIG SET while the server runs, under their own name (`clients.max_clients`) or Redis'
(`maxclients`). CONFIG REWRITE writes what was changed into the file and leaves everything else in it as it is: comments, order, owner and mode. Limits hold at
once, also for connections that are open; a new password is asked of new connections. Every other key can be set to what it is, and nothing else.
What a variable or an argument says wins over the file at the next start as well: the log warns where that makes a change vain.

Without a password, clients are listened for on loopback and Unix sockets only; by TLS also beyond, where they must show a certificate
(`tls_client_ca`).

<!-- Made of the keys in crates/server/src/config: UPDATE=1 cargo test --release -p ecotone-server reference -->
";

/// The page of reference: `docs/config.md`.
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    for (section, about) in SECTIONS {
        let _ = write!(page, "\n## [{section}]\n\n{about}\n\n");
        page.push_str("| key | default | unit | values | meaning |\n|---|---|---|---|---|\n");
        for key in of_section(section) {
            let live = if key.is_live { " *Live.*" } else { "" };
            let values = key.kind.range();
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {values} | {}{live} |",
                key.name(),
                shown_default(key),
                key.unit,
                key.about
            );
        }
    }
    page.push_str("\n## The profile for small devices\n\nWith `profile = \"small-device\"` in `[store]` these defaults differ:\n\n");
    page.push_str("| key | default |\n|---|---|\n");
    let of = |profile: Profile| store_options(&[format!("profile={profile}")]).unwrap_or_default();
    let (usual, small) = (of(Profile::Default), of(Profile::SmallDevice));
    for option in STORE_OPTIONS {
        let (usual, small) = ((option.get)(&usual), (option.get)(&small));
        if usual != small {
            let _ = writeln!(page, "| `{}` | {small} |", option.name);
        }
    }
    page
}

fn shown_default(key: &Key) -> String {
    if key.default.is_empty() { "none".into() } else { format!("`{}`", key.default) }
}

/// A file with every key, each with its default behind `#`.
pub fn commented_file() -> String {
    let mut file = String::from(
        "# Configuration of a server: ecotone serve --config FILE\n# The value behind # is the default; remove the # to change it.\n",
    );
    for (section, about) in SECTIONS {
        file.push('\n');
        comment(&mut file, about);
        let _ = writeln!(file, "[{section}]");
        for key in of_section(section) {
            let unit = if key.unit.is_empty() { String::new() } else { format!(" Unit: {}.", key.unit) };
            let live = if key.is_live { " Live." } else { "" };
            file.push('\n');
            comment(&mut file, &format!("{}{unit} Values: {}.{live}", key.about, key.kind.range()));
            let _ = writeln!(file, "# {} = {}", key.name(), key.kind.literal(&key.default));
        }
    }
    file
}

fn of_section(section: &str) -> impl Iterator<Item = &'static Key> {
    keys().iter().filter(move |key| key.section() == section)
}

/// Width of a comment's line.
const WIDTH: usize = 100;

fn comment(file: &mut String, text: &str) {
    let mut line = String::from("##");
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(file, "{line}");
            line = String::from("##");
        }
        let _ = write!(line, " {word}");
    }
    let _ = writeln!(file, "{line}");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    #[test]
    fn the_page_of_reference_is_up_to_date() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/config.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&page, reference()).unwrap();
        }
        let there = std::fs::read_to_string(&page).unwrap_or_default();
        assert!(
            there == reference(),
            "docs/config.md is out of date: UPDATE=1 cargo test --release -p ecotone-server reference"
        );
    }

    #[test]
    fn the_printed_file_says_what_holds_without_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ecotone.toml");
        std::fs::write(&file, commented_file()).unwrap();
        assert!(keys().iter().all(|key| !Config::load(Some(&file), []).unwrap().is_said(&key.path)));
        // With every # before a key taken away it says the same.
        let spoken: Vec<String> = commented_file()
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(said) if said.contains(" = ") => said.to_owned(),
                _ => line.to_owned(),
            })
            .collect();
        std::fs::write(&file, spoken.join("\n")).unwrap();
        let config = Config::load(Some(&file), []).unwrap();
        for key in keys() {
            assert!(config.is_said(&key.path), "{} is not in the file", key.path);
            assert_eq!(config.text(&key.path), key.default, "{}", key.path);
        }
    }
}
