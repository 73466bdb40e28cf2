//! The configuration of a server: what was said, where, and what follows from it.
//!
//! From the bottom: [`key`] is one setting, [`keys`] all there are; a [`Config`] holds what was
//! said of them, by the file ([`file`]), the environment and the command line, each of which wins
//! over those before; [`resolve`] makes of it what a server is started with, and refuses what does
//! not fit together; [`describe`] describes all keys.
//!
//! Every key passes [`Config::set`], wherever it comes from, and every refusal says where the value
//! was set.
//!
//! Threads: none; a [`Config`] is a value.

mod describe;
mod file;
mod key;
mod keys;
mod replace;
mod resolve;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

pub use describe::{commented_file, reference};
pub use key::{Key, Kind};
pub use keys::{SECTIONS, keys};

pub(crate) use key::{OFF, ON, addresses};
pub(crate) use keys::{find, path_of_store_option};
pub(crate) use replace::Replaced;
pub(crate) use resolve::AnnouncedToClients;

use crate::error::{Error, Result};

/// The variable that names the file.
pub const FILE_VARIABLE: &str = "ECOTONE_CONFIG";

/// The variable that wins over [`LOG_LEVEL`], as in many programs.
const LOG_VARIABLE: &str = "RUST_LOG";

/// The key of how much is logged.
const LOG_LEVEL: &str = "server.log_level";

/// What was said of the settings. What nobody spoke of has its default.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Of each key all that was said; the last counts.
    said: BTreeMap<&'static str, Vec<Said>>,
    file: Option<PathBuf>,
}

#[derive(Debug, Clone)]
struct Said {
    text: String,
    origin: ValueOrigin,
}

/// Where a value was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueOrigin {
    /// A line of the file.
    Line {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A variable of the environment.
    Variable(String),
    /// An argument of the command line.
    Argument(String),
    /// A client, since the server began.
    Client,
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { file, line } => write!(to, "{}:{line}", file.display()),
            Self::Variable(name) => write!(to, "environment variable {name}"),
            Self::Argument(name) => write!(to, "{name}"),
            Self::Client => to.write_str("CONFIG SET"),
        }
    }
}

impl Config {
    /// What `file` says, if there is one, and then the variables of the environment.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`]: which value is refused, where it is set, and why. So are unknown keys, and variables that
    /// begin as those of a section and name no key.
    pub fn load(file: Option<&Path>, environment: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self> {
        let mut config = Self::default();
        if let Some(file) = file {
            file::read_into(file, &mut config)?;
            config.file = Some(std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf()));
        }
        for (name, value) in environment {
            // Bytes that are no text make no name of ours.
            let name = name.to_string_lossy().into_owned();
            let is_of_section = |(section, _): &(&str, &str)| {
                name.strip_prefix("ECOTONE_")
                    .and_then(|rest| rest.strip_prefix(&section.to_uppercase()))
                    .is_some_and(|rest| rest.starts_with('_'))
            };
            if !SECTIONS.iter().any(is_of_section) {
                continue;
            }
            let key = keys().iter().find(|key| key.variable() == name).ok_or_else(|| {
                Error::Configuration(format!(
                    "environment variable {name}: there is no such setting; unset it, or see `ecotone serve --print-config`"
                ))
            })?;
            // Not shown: it may be a password. Nor mended, which would make another one of it.
            let value = value.into_string().map_err(|_| {
                Error::Configuration(format!("environment variable {name} ({}): its value is not UTF-8", key.path))
            })?;
            config.set(&key.path, &value, ValueOrigin::Variable(name))?;
        }
        Ok(config)
    }

    /// Sets the key of this path.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`] if there is none, or `text` is no value of it.
    pub fn set(&mut self, path: &str, text: &str, origin: ValueOrigin) -> Result<()> {
        let key = find(path).ok_or_else(|| Error::Configuration(format!("{origin}: {}", no_such_key(path))))?;
        key.kind.check(text).map_err(|why| Error::Configuration(refusal(&origin, key, text, &why)))?;
        let said = self.said.entry(&key.path).or_default();
        // Of what clients say only the last is of interest; of all others each has an origin of its
        // own.
        said.retain(|said| said.origin != origin);
        said.push(Said { text: text.to_owned(), origin });
        Ok(())
    }

    /// Sets a [store option](crate::STORE_OPTIONS) that is given as `name=value`.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    pub fn set_store_option(&mut self, assignment: &str, origin: ValueOrigin) -> Result<()> {
        let (name, value) = assignment
            .split_once('=')
            .ok_or_else(|| Error::Configuration(format!("{origin}: {assignment:?} is not of the form name=value")))?;
        let path = path_of_store_option(name);
        if self.said(&path).is_some_and(|said| said.origin == origin) {
            return Err(Error::Configuration(format!("{origin}: {name} is given twice")));
        }
        self.set(&path, value, origin)
    }

    /// The text that holds at the key of this path: what was said, or its default.
    pub fn text(&self, path: &str) -> &str {
        match self.said(path) {
            Some(said) => &said.text,
            None => find(path).map_or("", |key| &key.default),
        }
    }

    /// What counts of what was said of the key of this path.
    fn said(&self, path: &str) -> Option<&Said> {
        self.said.get(path)?.last()
    }

    /// Whether anybody spoke of it.
    pub fn is_said(&self, path: &str) -> bool {
        self.said.contains_key(path)
    }

    /// The file that says what holds at the key of this path, if one does.
    pub(crate) fn file_that_says(&self, path: &str) -> Option<&Path> {
        match &self.said(path)?.origin {
            ValueOrigin::Line { file, .. } => Some(file),
            _ => None,
        }
    }

    /// What was said and does not count, because what wins over it says something else: a line for
    /// the log for each, with both places and no values.
    pub fn overridden(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (path, said) in &self.said {
            let Some((winner, others)) = said.split_last() else { continue };
            let differs = |other: &&Said| other.text != winner.text;
            warnings.extend(others.iter().filter(differs).map(|other| {
                format!(
                    "{path} of {} does not count: {} says something else and wins over it",
                    other.origin, winner.origin
                )
            }));
        }
        if let (Some(said), Some(_)) = (self.said(LOG_LEVEL), std::env::var_os(LOG_VARIABLE)) {
            warnings.push(format!(
                "{LOG_LEVEL} of {} does not count: environment variable {LOG_VARIABLE} wins over it",
                said.origin
            ));
        }
        warnings
    }

    /// For each of these keys that a client has changed: the origin that wins over the file at the
    /// next start and says something else.
    pub(crate) fn lost_at_next_start<'a>(
        &'a self,
        paths: &'a [&str],
    ) -> impl Iterator<Item = (&'a str, &'a ValueOrigin)> {
        paths.iter().filter_map(|path| {
            let (changed, others) = self.said.get(*path)?.split_last()?;
            let stays = others
                .last()
                .filter(|other| matches!(other.origin, ValueOrigin::Variable(_) | ValueOrigin::Argument(_)))?;
            (changed.origin == ValueOrigin::Client && stays.text != changed.text).then_some((*path, &stays.origin))
        })
    }

    /// The file it came from.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Writes what clients have changed since the start into the file that the rest came from. All
    /// else in it stays. Returns the keys that were written, and how the file was.
    ///
    /// # Errors
    ///
    /// [`Error::Configuration`] if there is no file, or it cannot be written; it is as it was then.
    pub(crate) fn rewrite(&self) -> Result<(Vec<&'static str>, Replaced)> {
        let file = self.file.as_ref().ok_or_else(|| Error::Configuration("there is no configuration file".into()))?;
        let changed = keys().iter().filter_map(|key| {
            let said = self.said(&key.path)?;
            (said.origin == ValueOrigin::Client).then_some((key, said.text.as_str()))
        });
        let changed: Vec<_> = changed.collect();
        // Where the file cannot have another beside it, the store's folder is one that can be
        // written to.
        let replaced = file::rewrite(file, &changed, Path::new(self.text("server.dir")))?;
        Ok((changed.iter().map(|(key, _)| key.path.as_str()).collect(), replaced))
    }

    /// An error that names the key of this path, its value and its origin.
    pub(crate) fn refuse(&self, path: &str, why: &str) -> Error {
        match (self.said(path), find(path)) {
            (Some(said), Some(key)) => Error::Configuration(refusal(&said.origin, key, &said.text, why)),
            _ => Error::Configuration(format!("{path} = {}: {why}", self.text(path))),
        }
    }
}

fn refusal(origin: &ValueOrigin, key: &Key, text: &str, why: &str) -> String {
    // Others may read the log.
    let shown = if key.path.ends_with("password") { "(not shown)" } else { text };
    match origin {
        ValueOrigin::Line { .. } | ValueOrigin::Client => format!("{origin}: {} = {shown}: {why}", key.path),
        _ => format!("{origin} ({}): {shown:?}: {why}", key.path),
    }
}

/// Says that there is no key of this path, and which there are.
fn no_such_key(path: &str) -> String {
    let (section, name) = path.split_once('.').unwrap_or(("", path));
    let names: Vec<&str> = keys().iter().filter(|key| key.section() == section).map(Key::name).collect();
    if names.is_empty() {
        let sections: Vec<String> = SECTIONS.iter().map(|(name, _)| format!("[{name}]")).collect();
        return format!("there is no section [{section}]; there are {}", sections.join(", "));
    }
    let elsewhere = keys().iter().find(|key| key.name() == name);
    let hint = elsewhere.map(|key| format!(" ({name} belongs to [{}])", key.section())).unwrap_or_default();
    format!("there is no key {name:?} in [{section}]{hint}; there are {}", names.join(", "))
}

#[cfg(test)]
mod tests;
