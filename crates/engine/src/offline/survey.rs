//! What lies in the folder of a store that may be damaged, and what its MANIFEST says should be
//! there.
//!
//! The MANIFEST is read as far as it is sound, and damage within it is passed over. What it says of
//! tables is used in one way only: a table that it removed is ignored, every other one is read,
//! whether it is named or not. So a MANIFEST that has lost records, or its end, or is not there,
//! never costs a table; it may bring back one that was compacted into others and not deleted yet.
//! Versions of a key are ordered by their sequence numbers, so that does harm only where the table
//! that deleted a key, and then lost the deletion in a compaction, is not the newest any more.
//!
//! A MANIFEST begins with all tables that there were then. So a table with a smaller number than a
//! sound one, which does not name it, was no part of the store: its deletion was cut short, or the
//! job that wrote it. Unless the end of the MANIFEST is missing, and that said otherwise: then the
//! tables or the WAL are gone whose place it took. While all of these are there, such a table is
//! ignored as well.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use ecotone_rocks::salvage::{ManifestEdit, ManifestTable, manifest_edit};
use serde::Serialize;

use super::log_file::LogFile;
use crate::family::DATA_FAMILY;
use crate::{Error, Result};

/// The number of [`DATA_FAMILY`] in every store: it is made right after RocksDB's own.
const DATA_FAMILY_NUMBER: u32 = 1;

/// Whether the MANIFEST says which tables there should be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ManifestState {
    /// All that the MANIFEST says was read.
    Sound,
    /// A part of it was read, or it may not be the right one. Tables of which it says nothing were
    /// found by listing the folder; one that is missing may not be noticed.
    Damaged(String),
    /// There is none: all tables were found by listing the folder; any that is missing is not
    /// noticed.
    #[default]
    Missing,
}

/// A file with a number.
#[derive(Debug, Clone)]
pub struct Found {
    /// The number in its name.
    pub number: u64,
    /// Where it lies.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
}

impl Found {
    /// Its name without folder.
    pub fn name(&self) -> String {
        self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// What is there, and what should be.
#[derive(Debug, Default)]
pub struct Survey {
    /// Whether the MANIFEST can be relied on.
    pub manifest: ManifestState,
    /// Tables that are there and were not removed, by their numbers.
    pub tables: Vec<Found>,
    /// Tables that are part of the store by the MANIFEST, there or not.
    pub listed: BTreeMap<u64, ManifestTable>,
    /// WALs that may hold what is in no table, by their numbers.
    pub wals: Vec<Found>,
    /// The WAL with which replay would begin; 0 where that is unknown.
    pub first_wal: u64,
    /// No write with a greater sequence number is in the tables that the MANIFEST names.
    pub last_sequence: u64,
    /// WALs that were synced up to a length.
    pub synced_wals: BTreeMap<u64, u64>,
    /// The number of the family that holds all data, in WALs.
    pub data_family: u32,
    /// Whether a MANIFEST names that family.
    pub names_data_family: bool,
    /// What a report should mention.
    pub notes: Vec<String>,
}

/// Looks at `directory`.
///
/// # Errors
///
/// [`Error::Io`] where it cannot be listed.
pub fn survey(directory: &Path) -> Result<Survey> {
    let failed = |error| Error::io("list the directory", directory, &error);
    let (mut tables, mut wals, mut manifests) = (Vec::new(), Vec::new(), Vec::new());
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let (files, digits) = match (name.strip_prefix("MANIFEST-"), name.rsplit_once('.')) {
            (Some(digits), _) => (&mut manifests, digits),
            (None, Some((digits, "sst"))) => (&mut tables, digits),
            (None, Some((digits, "log"))) => (&mut wals, digits),
            _ => continue,
        };
        if let Some(number) = number_in(digits) {
            let bytes = entry.metadata().map_err(failed)?.len();
            files.push(Found { number, path: entry.path(), bytes });
        }
    }
    for files in [&mut tables, &mut wals, &mut manifests] {
        files.sort_by_key(|file| file.number);
    }
    let mut survey = Survey { data_family: DATA_FAMILY_NUMBER, ..Survey::default() };
    let mut given_up_below = 0;
    let (manifest, doubt) = choose_manifest(directory, &manifests, &mut survey.notes);
    let mut removed = HashSet::new();
    if let Some(manifest) = manifest {
        let damage = survey.read_manifest(manifest, &mut removed);
        survey.manifest = match damage.or(doubt) {
            None => {
                given_up_below = manifest.number;
                ManifestState::Sound
            }
            Some(detail) => ManifestState::Damaged(detail),
        };
    }
    tables.retain(|table| !removed.contains(&table.number));
    wals.retain(|wal| wal.number >= survey.first_wal);
    let is_there = |number| tables.binary_search_by_key(number, |table| table.number).is_ok();
    if wals.first().is_some_and(|wal| wal.number == survey.first_wal) && survey.listed.keys().all(is_there) {
        let is_given_up = |table: &Found| table.number < given_up_below && !survey.listed.contains_key(&table.number);
        let given_up: Vec<_> = tables.extract_if(.., |table| is_given_up(table)).map(|table| table.name()).collect();
        if !given_up.is_empty() {
            survey.notes.push(format!(
                "{} were given up before, and not removed: they are no part of the store",
                listed(&given_up)
            ));
        }
    }
    (survey.tables, survey.wals) = (tables, wals);
    Ok(survey)
}

/// Names that a note lists.
const MAX_NAMED: usize = 3;

/// The first of these names, and how many there are besides.
pub fn listed(names: &[String]) -> String {
    let shown = names[..names.len().min(MAX_NAMED)].join(", ");
    if names.len() > MAX_NAMED { format!("{shown} and {} more tables", names.len() - MAX_NAMED) } else { shown }
}

fn number_in(digits: &str) -> Option<u64> {
    (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// The MANIFEST that is the store's, and why that is not certain, where it is not.
fn choose_manifest<'m>(
    directory: &Path,
    manifests: &'m [Found],
    notes: &mut Vec<String>,
) -> (Option<&'m Found>, Option<String>) {
    let newest = manifests.last();
    let named = match std::fs::read_to_string(directory.join("CURRENT")) {
        Ok(text) => text.strip_suffix('\n').and_then(|line| number_in(line.strip_prefix("MANIFEST-")?)),
        Err(_) => None,
    };
    match (named, manifests) {
        (Some(number), _) => match manifests.iter().find(|manifest| manifest.number == number) {
            Some(manifest) => (Some(manifest), None),
            None => (newest, Some(format!("CURRENT names MANIFEST-{number:06}, which is missing"))),
        },
        (None, [_]) => {
            notes.push("CURRENT is missing or damaged; there is one MANIFEST only, and it was taken".into());
            (newest, None)
        }
        (None, _) => (newest, Some("CURRENT is missing or damaged, and there are several MANIFESTs".into())),
    }
}

impl Survey {
    /// Reads what can be read of a MANIFEST. Returns what is wrong with it.
    fn read_manifest(&mut self, manifest: &Found, removed: &mut HashSet<u64>) -> Option<String> {
        let mut log = match LogFile::open(&manifest.path) {
            Ok(log) => log,
            Err(error) => return Some(format!("{} cannot be opened: {error}", manifest.name())),
        };
        let (mut damage, mut edits) = (None, 0_u64);
        loop {
            let (offset, detail) = match log.next_record() {
                Ok(Some((offset, record))) => match manifest_edit(record) {
                    Ok(edit) => {
                        edits += 1;
                        self.apply(edit, removed);
                        continue;
                    }
                    Err(error) => (offset, error.to_string()),
                },
                Ok(None) => break,
                Err(found) => {
                    log.resume();
                    (found.offset, found.detail)
                }
            };
            damage.get_or_insert_with(|| format!("{} at offset {offset}: {detail}", manifest.name()));
        }
        if edits == 0 {
            damage.get_or_insert_with(|| format!("{} holds nothing", manifest.name()));
        }
        damage
    }

    fn apply(&mut self, edit: ManifestEdit, removed: &mut HashSet<u64>) {
        if edit.added_family.as_deref() == Some(DATA_FAMILY) {
            self.data_family = edit.column_family;
            self.names_data_family = true;
        }
        if edit.column_family == self.data_family {
            self.first_wal = self.first_wal.max(edit.first_wal.unwrap_or(0));
        }
        // A table that is moved is removed and added at once.
        for number in edit.removed {
            self.listed.remove(&number);
            removed.insert(number);
        }
        for table in edit.added {
            removed.remove(&table.number);
            self.listed.insert(table.number, table);
        }
        self.last_sequence = self.last_sequence.max(edit.last_sequence.unwrap_or(0));
        self.synced_wals.extend(edit.synced_wals);
        if let Some(first) = edit.wals_removed_below {
            self.synced_wals.retain(|number, _| *number >= first);
        }
    }

    /// Whether the MANIFEST says all there is to say.
    pub fn is_sound(&self) -> bool {
        self.manifest == ManifestState::Sound
    }
}

/// The WAL with which a replay of the store in `directory` begins, by a sound MANIFEST. None where
/// there is any doubt.
///
/// # Errors
///
/// [`Error::Io`] where the directory cannot be listed.
pub(crate) fn first_wal(directory: &Path) -> Result<Option<u64>> {
    let survey = survey(directory)?;
    Ok((survey.is_sound() && survey.names_data_family).then_some(survey.first_wal))
}

/// The tables in `directory` that a sound MANIFEST does not name, while all are there that it does:
/// what RocksDB removes once it is open. None where there is any doubt.
///
/// # Errors
///
/// [`Error::Io`] where the directory cannot be listed.
pub(crate) fn unnamed_tables(directory: &Path) -> Result<Vec<PathBuf>> {
    let survey = survey(directory)?;
    let is_there = |number: &u64| directory.join(format!("{number:06}.sst")).exists();
    if !survey.is_sound() || !survey.names_data_family || !survey.listed.keys().all(is_there) {
        return Ok(Vec::new());
    }
    let failed = |error| Error::io("list the directory", directory, &error);
    let mut unnamed = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_table = path.extension().is_some_and(|extension| extension == "sst");
        let number = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<u64>().ok());
        if is_table && number.is_some_and(|number| !survey.listed.contains_key(&number)) {
            unnamed.push(path);
        }
    }
    Ok(unnamed)
}
