//! The file: read with the line of every value, and changed without touching anything else in it.
//!
//! Failure: a file that is being written is written whole beside the old one, synced, and put in its place by one renaming.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::{Config, Key, Place, no_such_key, refusal};
use crate::error::{Error, Result};

/// A configuration file is not longer; what is, is something else.
const MOST_BYTES: u64 = 1 << 20;

/// What the parser says of a key that stands there twice. It points at the key, and does not name it.
const DUPLICATE_KEY: &str = "duplicate key";

/// Sets in `config` what `file` says.
pub(super) fn read_into(file: &Path, config: &mut Config) -> Result<()> {
    let text = read(file)?;
    set_all(file, &text, config)
}

fn read(file: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    // Not by the length that it is said to have: devices and pipes have none.
    let read = File::open(file).and_then(|from| from.take(MOST_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|error| failed("read", file, &error))?;
    if bytes.len() as u64 > MOST_BYTES {
        let why = format!("{}: more than {MOST_BYTES} bytes are no configuration", file.display());
        return Err(Error::Configuration(why));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = line_of(error.as_bytes(), error.utf8_error().valid_up_to());
        let place = Place::Line { file: file.to_path_buf(), line };
        Error::Configuration(format!("{place}: this is not UTF-8"))
    })
}

fn failed(action: &str, file: &Path, error: &std::io::Error) -> Error {
    Error::Configuration(format!("cannot {action} the configuration {}: {error}", file.display()))
}

fn set_all(file: &Path, text: &str, config: &mut Config) -> Result<()> {
    let place = |at: usize| Place::Line { file: file.to_path_buf(), line: line_of(text.as_bytes(), at) };
    let refused = |at: usize, why: &str| Error::Configuration(format!("{}: {why}", place(at)));
    let table = DeTable::parse(text).map_err(|error| {
        let span = error.span().unwrap_or_default();
        // Elsewhere there may be a password.
        let key = if error.message() == DUPLICATE_KEY { text.get(span.clone()) } else { None };
        let key = key.map_or_else(String::new, |key| format!(" {key}"));
        refused(span.start, &format!("this is not TOML: {}{key}", error.message()))
    })?;
    for (section, value) in table.get_ref() {
        let DeValue::Table(section_table) = value.get_ref() else {
            let why = format!("{} stands in no section; write [section] above it", section.get_ref());
            return Err(refused(section.span().start, &why));
        };
        if section_table.is_empty() && super::SECTIONS.iter().all(|(name, _)| name != section.get_ref()) {
            return Err(refused(section.span().start, &no_such_key(&format!("{}.", section.get_ref()))));
        }
        for (name, value) in section_table {
            let path = format!("{}.{}", section.get_ref(), name.get_ref());
            let place = place(name.span().start);
            let key =
                super::find(&path).ok_or_else(|| Error::Configuration(format!("{place}: {}", no_such_key(&path))))?;
            let shown = text.get(value.span()).unwrap_or_default();
            let given = key.kind.text_of(value.get_ref());
            let given = given.map_err(|why| Error::Configuration(refusal(&place, key, shown, &why)))?;
            config.set(&path, &given, place)?;
        }
    }
    Ok(())
}

/// The line of the byte at `at`, from 1.
fn line_of(text: &[u8], at: usize) -> usize {
    text.iter().take(at).filter(|byte| **byte == b'\n').count() + 1
}

/// Puts values into `file`. Everything else in it stays as it is.
pub(super) fn rewrite(file: &Path, changed: &[(&'static Key, &str)]) -> Result<()> {
    let mut text = read(file)?;
    for (key, value) in changed {
        text = with_value(file, text, key, value)?;
    }
    // What was made must say what was meant: a section may be written in ways that cannot be added to.
    let mut reread = Config::default();
    set_all(file, &text, &mut reread)?;
    if let Some((key, _)) = changed.iter().find(|(key, value)| reread.text(&key.path) != *value) {
        return Err(Error::Configuration(format!(
            "{}: {} cannot be put there; change it by hand",
            file.display(),
            key.path
        )));
    }
    // Through links, so that the file itself is replaced.
    let file = std::fs::canonicalize(file).map_err(|error| failed("write", file, &error))?;
    let mut beside = file.clone().into_os_string();
    beside.push(".new");
    let beside = Path::new(&beside);
    let outcome = write_whole(beside, &file, &text);
    if outcome.is_err() {
        let _ = std::fs::remove_file(beside);
    }
    outcome.map_err(|error| failed("write", &file, &error))
}

fn write_whole(beside: &Path, file: &Path, text: &str) -> std::io::Result<()> {
    // There may be a password in it: nobody may read what could not be read before.
    let permissions = std::fs::metadata(file)?.permissions();
    let mut new = File::create(beside)?;
    new.set_permissions(permissions)?;
    new.write_all(text.as_bytes())?;
    new.sync_all()?;
    std::fs::rename(beside, file)?;
    match file.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// `text` with one value put in: where it stands, else at the end of its section, else in a section of its own at the end.
fn with_value(file: &Path, mut text: String, key: &Key, value: &str) -> Result<String> {
    enum At {
        Over(std::ops::Range<usize>),
        Below(usize),
        End,
    }
    let literal = key.kind.literal(value);
    let at = {
        let table = DeTable::parse(&text).map_err(|error| {
            Error::Configuration(format!("{}: it is no longer TOML: {}", file.display(), error.message()))
        })?;
        let section = table.get_ref().iter().find(|(name, _)| name.get_ref() == key.section());
        match section.and_then(|(name, value)| Some((name.span(), value.get_ref().as_table()?))) {
            Some((header, entries)) => match entries.iter().find(|(name, _)| name.get_ref() == key.name()) {
                Some((_, value)) => At::Over(value.span()),
                None => At::Below(entries.values().map(|value| value.span().end).fold(header.end, usize::max)),
            },
            None => At::End,
        }
    };
    match at {
        At::Over(range) => text.replace_range(range, &literal),
        At::Below(at) => {
            let end = text[at..].find('\n').map_or(text.len(), |length| at + length);
            text.insert_str(end, &format!("\n{} = {literal}", key.name()));
        }
        At::End => {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(&format!("\n[{}]\n{} = {literal}\n", key.section(), key.name()));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str =
        "# Ours.\n[clients]\nlisten = \"off\" # nobody\nmax_clients = 10 # few\n\n[energy]\nidle_watts = 2.5\n";

    fn config_in(text: &str) -> (tempfile::TempDir, Config) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ecotone.toml");
        std::fs::write(&file, text).unwrap();
        let config = Config::load(Some(&file), []).unwrap();
        (folder, config)
    }

    #[test]
    fn what_clients_changed_is_written_and_all_else_stays() {
        let (folder, mut config) = config_in(FILE);
        let file = folder.path().join("ecotone.toml");
        config.set("clients.max_clients", "77", Place::Client).unwrap();
        config.set("clients.idle_timeout_s", "off", Place::Client).unwrap();
        config.set("clients.password", "a \"b\" #c", Place::Client).unwrap();
        config.set("store.compression", "zstd", Place::Variable("ECOTONE_STORE_COMPRESSION".into())).unwrap();
        config.rewrite().unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        for kept in ["# Ours.", "listen = \"off\" # nobody", "max_clients = 77 # few", "idle_watts = 2.5"] {
            assert!(text.contains(kept), "{kept} in {text}");
        }
        let again = Config::load(Some(&file), []).unwrap();
        assert_eq!(again.text("clients.password"), "a \"b\" #c");
        assert_eq!(again.text("clients.idle_timeout_s"), "off");
        assert!(again.is_said("clients.idle_timeout_s"));
        assert!(!again.is_said("store.compression"), "the environment is not the file's");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
        config.rewrite().unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    }

    #[test]
    fn a_section_that_is_not_there_is_added_and_rights_stay() {
        use std::os::unix::fs::PermissionsExt;
        let (folder, mut config) = config_in("[energy]\nidle_watts = 1.0");
        let file = folder.path().join("ecotone.toml");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        config.set("clients.password", "p", Place::Client).unwrap();
        config.rewrite().unwrap();
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            "[energy]\nidle_watts = 1.0\n\n[clients]\npassword = \"p\"\n"
        );
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_cannot_be_added_to_is_left_as_it_was() {
        for text in ["clients = { max_clients = 10 }\n", "clients.max_clients = 10\n"] {
            let (folder, mut config) = config_in(text);
            config.set("clients.max_clients", "11", Place::Client).unwrap();
            config.rewrite().unwrap();
            let file = folder.path().join("ecotone.toml");
            let changed = std::fs::read_to_string(&file).unwrap();
            assert_eq!(changed, text.replace("10", "11"));
            config.set("clients.slowlog_entries", "5", Place::Client).unwrap();
            let refused = config.rewrite().unwrap_err().to_string();
            assert!(refused.contains("ecotone.toml"), "{refused}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), changed);
        }
    }
}
