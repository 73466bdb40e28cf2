//! The file: read with the line of every value, and changed without touching anything else in it.
//!
//! Failure: see [`replace`](super::replace) for what a crash leaves while it is written.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::replace::{Replaced, copy_beside, replace};
use super::{Config, Key, ValueOrigin, no_such_key, refusal};
use crate::error::{Error, Result};

/// A configuration file is not longer; what is, is something else.
const MAX_BYTES: u64 = 1 << 20;

/// What the parser says of a duplicate key. It points at the key, and does not name it.
const DUPLICATE_KEY: &str = "duplicate key";

/// Sets in `config` what `file` says.
pub(super) fn read_into(file: &Path, config: &mut Config) -> Result<()> {
    let text = read(file)?;
    set_all(file, &text, config)
}

fn read(file: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    // Not by the length that it is said to have: devices and pipes have none.
    let read = File::open(file).and_then(|from| from.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|error| failed("read", file, &error))?;
    if bytes.len() as u64 > MAX_BYTES {
        let why = format!("{}: more than {MAX_BYTES} bytes are no configuration", file.display());
        return Err(Error::Configuration(why));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = line_of(error.as_bytes(), error.utf8_error().valid_up_to());
        let origin = ValueOrigin::Line { file: file.to_path_buf(), line };
        Error::Configuration(format!("{origin}: this is not UTF-8"))
    })
}

fn failed(action: &str, file: &Path, error: &std::io::Error) -> Error {
    Error::Configuration(format!("cannot {action} the configuration {}: {error}", file.display()))
}

fn set_all(file: &Path, text: &str, config: &mut Config) -> Result<()> {
    let origin = |at: usize| ValueOrigin::Line { file: file.to_path_buf(), line: line_of(text.as_bytes(), at) };
    let refused = |at: usize, why: &str| Error::Configuration(format!("{}: {why}", origin(at)));
    let table = DeTable::parse(text).map_err(|error| {
        let span = error.span().unwrap_or_default();
        // Elsewhere there may be a password.
        let key = if error.message() == DUPLICATE_KEY { text.get(span.clone()) } else { None };
        let key = key.map_or_else(String::new, |key| format!(" {key}"));
        let copy = copy_beside(file);
        let copy = match copy.exists() {
            true => format!("; {} has what was being written when a CONFIG REWRITE was cut short", copy.display()),
            false => String::new(),
        };
        refused(span.start, &format!("this is not TOML: {}{key}{copy}", error.message()))
    })?;
    for (section, value) in table.get_ref() {
        let DeValue::Table(section_table) = value.get_ref() else {
            let why = format!("{} is in no section; write [section] above it", section.get_ref());
            return Err(refused(section.span().start, &why));
        };
        if section_table.is_empty() && super::SECTIONS.iter().all(|(name, _)| name != section.get_ref()) {
            return Err(refused(section.span().start, &no_such_key(&format!("{}.", section.get_ref()))));
        }
        for (name, value) in section_table {
            let path = format!("{}.{}", section.get_ref(), name.get_ref());
            let origin = origin(name.span().start);
            let key =
                super::find(&path).ok_or_else(|| Error::Configuration(format!("{origin}: {}", no_such_key(&path))))?;
            let shown = text.get(value.span()).unwrap_or_default();
            let given = key.kind.text_of(value.get_ref());
            let given = given.map_err(|why| Error::Configuration(refusal(&origin, key, shown, &why)))?;
            config.set(&path, &given, origin)?;
        }
    }
    Ok(())
}

/// The line of the byte at `at`, from 1.
fn line_of(text: &[u8], at: usize) -> usize {
    text.iter().take(at).filter(|byte| **byte == b'\n').count() + 1
}

/// Puts values into `file`. Everything else in it stays as it is, byte for byte. See [`replace`]
/// for `elsewhere`.
pub(super) fn rewrite(file: &Path, changed: &[(&'static Key, &str)], elsewhere: &Path) -> Result<Replaced> {
    let mut text = read(file)?;
    for (key, value) in changed {
        text = with_value(file, text, key, value)?;
    }
    // What was made must say what was meant.
    let mut reread = Config::default();
    set_all(file, &text, &mut reread)?;
    if let Some((key, _)) = changed.iter().find(|(key, value)| reread.text(&key.path) != *value) {
        return Err(Error::Configuration(format!(
            "{}: {} cannot be put there; change it by hand",
            file.display(),
            key.path
        )));
    }
    replace(file, &text, elsewhere).map_err(|error| failed("write", file, &error))
}

/// Where a value is put.
enum At {
    /// In the place of another.
    Over(Range<usize>),
    /// On a line of its own, behind the one in which this byte is.
    Below(usize),
    /// On such a line, with the name of its section before its own.
    BelowDotted(usize),
    /// In braces, behind the value that ends here.
    Behind(usize),
    /// In braces that begin here and have nothing in them.
    Into(usize),
    /// In a section of its own, at the end.
    End,
}

impl At {
    fn of(key: &Key, text: &str, table: &DeTable<'_>) -> Self {
        let section = table.iter().find(|(name, _)| name.get_ref() == key.section());
        let Some((name, section)) = section else { return Self::End };
        let Some(entries) = section.get_ref().as_table() else { return Self::End };
        if let Some((_, value)) = entries.iter().find(|(name, _)| name.get_ref() == key.name()) {
            return Self::Over(value.span());
        }
        let last = entries.values().map(|value| value.span().end).max();
        let line = text[..name.span().start].rfind('\n').map_or(0, |end| end + 1);
        // Some editors begin a file with it.
        let before = text[line..name.span().start].trim_start_matches('\u{feff}').trim_start();
        let braces = section.span();
        match last {
            _ if before.starts_with('[') => Self::Below(last.unwrap_or(name.span().end)),
            None => Self::Into(braces.start + 1),
            Some(last) if text.get(braces.clone()).is_some_and(|braces| braces.starts_with('{')) => Self::Behind(last),
            Some(last) => Self::BelowDotted(last),
        }
    }
}

/// `text` with one value put in: where it is, else at the end of its section however that is
/// written, else in a section of its own at the end.
fn with_value(file: &Path, mut text: String, key: &Key, value: &str) -> Result<String> {
    let literal = key.kind.literal(value);
    let (section, name) = (key.section(), key.name());
    let at = {
        let table = DeTable::parse(&text).map_err(|error| {
            Error::Configuration(format!("{}: it is no longer TOML: {}", file.display(), error.message()))
        })?;
        At::of(key, &text, table.get_ref())
    };
    let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let mut add_line = |behind: usize, line: &str| match text[behind..].find('\n') {
        Some(length) => text.insert_str(behind + length + 1, &format!("{line}{end}")),
        None => text.push_str(&format!("{end}{line}{end}")),
    };
    match at {
        At::Over(range) => text.replace_range(range, &literal),
        At::Below(behind) => add_line(behind, &format!("{name} = {literal}")),
        At::BelowDotted(behind) => add_line(behind, &format!("{section}.{name} = {literal}")),
        At::Behind(last) => text.insert_str(last, &format!(", {name} = {literal}")),
        At::Into(begin) => {
            let space = if text[begin..].starts_with('}') { " " } else { "" };
            text.insert_str(begin, &format!(" {name} = {literal}{space}"));
        }
        At::End => {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push_str(end);
            }
            text.push_str(&format!("{end}[{section}]{end}{name} = {literal}{end}"));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use rustix::fs::XattrFlags;

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
        config.set("clients.max_clients", "77", ValueOrigin::Client).unwrap();
        config.set("clients.idle_timeout_s", "off", ValueOrigin::Client).unwrap();
        config.set("clients.password", "a \"b\" #c", ValueOrigin::Client).unwrap();
        config.set("store.compression", "zstd", ValueOrigin::Variable("ECOTONE_STORE_COMPRESSION".into())).unwrap();
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
        config.set("clients.password", "p", ValueOrigin::Client).unwrap();
        config.rewrite().unwrap();
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            "[energy]\nidle_watts = 1.0\n\n[clients]\npassword = \"p\"\n"
        );
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// `text` after a client has changed these settings and had them written.
    fn rewritten(text: &str, changes: &[(&str, &str)]) -> String {
        let (folder, mut config) = config_in(text);
        for (path, value) in changes {
            config.set(path, value, ValueOrigin::Client).unwrap();
        }
        config.rewrite().unwrap();
        let file = folder.path().join("ecotone.toml");
        let again = Config::load(Some(&file), []).unwrap();
        for (path, value) in changes {
            assert_eq!(again.text(path), *value, "{path} in {text}");
        }
        std::fs::read_to_string(file).unwrap()
    }

    #[test]
    fn settings_are_added_in_whatever_way_their_section_is_written() {
        let changes =
            [("clients.max_clients", "11"), ("clients.idle_timeout_s", "off"), ("clients.slowlog_entries", "5")];
        for (text, expected) in [
            (
                "clients = { max_clients = 10 } # all\n",
                "clients = { max_clients = 11, idle_timeout_s = \"off\", slowlog_entries = 5 } # all\n",
            ),
            ("clients = {}\n", "clients = { max_clients = 11, idle_timeout_s = \"off\", slowlog_entries = 5 }\n"),
            (
                "clients.max_clients = 10 # few\nserver.dir = \"/d\"\n",
                "clients.max_clients = 11 # few\nclients.idle_timeout_s = \"off\"\nclients.slowlog_entries = 5\nserver.dir = \"/d\"\n",
            ),
            (
                "\"clients\".'max_clients' = 10\n\n# Below.\n[energy]\n",
                "\"clients\".'max_clients' = 11\nclients.idle_timeout_s = \"off\"\nclients.slowlog_entries = 5\n\n# Below.\n[energy]\n",
            ),
            (
                "# First.\nclients.max_clients = 10\nserver.dir = \"/d\" # there\n# Second.\nclients.event_loops = 1\nserver.cores = 1\n",
                "# First.\nclients.max_clients = 11\nserver.dir = \"/d\" # there\n# Second.\nclients.event_loops = 1\nclients.idle_timeout_s = \"off\"\n\
                 clients.slowlog_entries = 5\nserver.cores = 1\n",
            ),
            (
                "clients = { event_loops = 1, # one\n  max_clients = 10, # few\n}\n",
                "clients = { event_loops = 1, # one\n  max_clients = 11, idle_timeout_s = \"off\", slowlog_entries = 5, # few\n}\n",
            ),
            (
                "[clients] # ours\n# nothing yet\n\n[energy] # theirs\nidle_watts = 1.5\n",
                "[clients] # ours\nmax_clients = 11\nidle_timeout_s = \"off\"\nslowlog_entries = 5\n# nothing yet\n\n[energy] # theirs\nidle_watts = 1.5\n",
            ),
            (
                "[store]\r\ndurability = 'always' # safe\r\n\r\n[ clients ]\r\nmax_clients=10\t# few\r\n",
                "[store]\r\ndurability = 'always' # safe\r\n\r\n[ clients ]\r\nmax_clients=11\t# few\r\nidle_timeout_s = \"off\"\r\nslowlog_entries = 5\r\n",
            ),
            (
                "\u{feff}[clients]\nlisten = [\n  \"127.0.0.1:1\", # one\n  \"127.0.0.1:2\",\n]\nmax_clients = 0x0A",
                "\u{feff}[clients]\nlisten = [\n  \"127.0.0.1:1\", # one\n  \"127.0.0.1:2\",\n]\nmax_clients = 11\nidle_timeout_s = \"off\"\nslowlog_entries = 5\n",
            ),
            (
                "# Nothing.\n",
                "# Nothing.\n\n[clients]\nmax_clients = 11\nidle_timeout_s = \"off\"\nslowlog_entries = 5\n",
            ),
        ] {
            assert_eq!(rewritten(text, &changes), expected, "{text}");
            assert_eq!(rewritten(expected, &changes), expected, "and once more");
        }
    }

    #[test]
    fn any_password_can_be_written_and_is_read_as_it_was() {
        for password in [
            "tab\tin it",
            "two\nlines",
            "\r\n",
            "nul\0",
            "\u{1}\u{7f}\u{85}",
            "'\"\"\"'''\\",
            " ",
            "#",
            "\u{1f511}\u{feff}",
        ] {
            for text in
                ["[clients]\npassword = \"old\" # secret\n", "clients = { }\n", "clients.listen = \"off\"\r\n", ""]
            {
                let written = rewritten(text, &[("clients.password", password)]);
                assert!(!written.contains('\0') && written.lines().count() <= 3, "{written:?}");
                assert_eq!(written.contains("# secret"), text.contains("# secret"), "{written:?}");
            }
        }
    }

    #[test]
    fn a_file_that_is_no_longer_what_it_was_is_refused_and_stays() {
        let (folder, mut config) = config_in("[clients]\n");
        let file = folder.path().join("ecotone.toml");
        config.set("clients.max_clients", "11", ValueOrigin::Client).unwrap();
        for text in [
            "clients = 5\n",
            "[[clients]]\nmax_clients = 5\n",
            "[clients\n",
            "[clients]\nmax_clients = []\nno_such = 1\n",
        ] {
            std::fs::write(&file, text).unwrap();
            let refused = config.rewrite().unwrap_err().to_string();
            assert!(refused.contains("ecotone.toml"), "{refused}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
        }
    }

    #[test]
    fn owner_rights_attributes_and_links_stay() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let (folder, mut config) = config_in("[clients]\n");
        let file = folder.path().join("ecotone.toml");
        // Who may not give files away has none of others.
        let is_given_away = std::os::unix::fs::chown(&file, Some(1234), Some(4321)).is_ok();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        let has_attribute = rustix::fs::setxattr(&file, "user.ours", b"kept", XattrFlags::empty()).is_ok();
        let (link, was) = (folder.path().join("link.toml"), std::fs::metadata(&file).unwrap());
        std::os::unix::fs::symlink("ecotone.toml", &link).unwrap();
        config.file = Some(link.clone());
        config.set("clients.max_clients", "11", ValueOrigin::Client).unwrap();
        assert_eq!(config.rewrite().unwrap().1, Replaced::Whole);
        let is = std::fs::metadata(&file).unwrap();
        assert_eq!((is.uid(), is.gid(), is.mode()), (was.uid(), was.gid(), was.mode()));
        assert!(!is_given_away || is.uid() == 1234);
        assert_ne!(is.ino(), was.ino(), "it is another file");
        if has_attribute {
            let mut value = [0; 16];
            let length = rustix::fs::getxattr(&file, "user.ours", &mut value[..]).unwrap();
            assert_eq!(&value[..length], b"kept");
        }
        assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("ecotone.toml"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[clients]\nmax_clients = 11\n");
    }

    /// A mount point of its own is one of those, too; a test cannot make one everywhere.
    #[test]
    fn a_file_that_cannot_be_replaced_is_written_in_place() {
        use std::os::unix::fs::MetadataExt;
        let long = format!("[clients]\nmax_clients = 10\n{}", "# much\n".repeat(1000));
        for text in ["[clients]\nmax_clients = 1000000\n", long.as_str()] {
            let (folder, mut config) = config_in(text);
            let file = folder.path().join("ecotone.toml");
            let was = std::fs::metadata(&file).unwrap().ino();
            std::fs::hard_link(&file, folder.path().join("other-name")).unwrap();
            config.set("clients.max_clients", "11", ValueOrigin::Client).unwrap();
            let (written, how) = config.rewrite().unwrap();
            let in_place = Replaced::InPlace { why: "it has several names".into() };
            assert_eq!((written, how), (vec!["clients.max_clients"], in_place));
            assert_eq!(std::fs::metadata(&file).unwrap().ino(), was);
            let expected = text.replace("1000000", "11").replace("= 10\n", "= 11\n");
            assert_eq!(std::fs::read_to_string(folder.path().join("other-name")).unwrap(), expected);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "the copy is gone");
        }
    }

    #[test]
    fn the_copy_lies_elsewhere_where_it_cannot_lie_beside_the_file() {
        let (folder, mut config) = config_in("[clients]\n");
        let (file, data) = (folder.path().join("ecotone.toml"), folder.path().join("data"));
        // Nothing can be put there.
        std::fs::create_dir(copy_beside(&file)).unwrap();
        config.set("clients.max_clients", "11", ValueOrigin::Client).unwrap();
        config.set("server.dir", data.to_str().unwrap(), ValueOrigin::Argument("--dir".into())).unwrap();
        let refused = config.rewrite().unwrap_err().to_string();
        assert!(refused.contains("no copy can be made") && refused.contains(data.to_str().unwrap()), "{refused}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[clients]\n");
        std::fs::create_dir(&data).unwrap();
        assert!(matches!(config.rewrite().unwrap().1, Replaced::InPlace { .. }));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[clients]\nmax_clients = 11\n");
        assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0, "the copy is gone");
    }

    #[test]
    fn who_starts_with_half_a_file_is_told_where_all_of_it_is() {
        let (folder, _) = config_in("[clients]\n");
        let file = folder.path().join("ecotone.toml");
        std::fs::write(&file, "[clients]\nmax_clients = 11\nidle_ti").unwrap();
        let refused = |file: &Path| Config::load(Some(file), []).unwrap_err().to_string();
        assert!(!refused(&file).contains(".ecotone.toml.rewrite"), "{}", refused(&file));
        std::fs::write(copy_beside(&file), "[clients]\n").unwrap();
        assert!(refused(&file).contains(".ecotone.toml.rewrite has what was being written"), "{}", refused(&file));
    }
}
