//! Files of the kernel: short texts, read whole and written in one system call.
//!
//! Every path begins with a root that a test may choose. Failure: an [`EnergyError::System`] that
//! names the path.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::EnergyError;

/// The most bytes that are read of one file: `/proc/stat` of a machine with a thousand processors
/// has fewer.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The text of a file, without white space around it.
pub(crate) fn text(path: &Path) -> Result<String, EnergyError> {
    let read = || {
        let mut text = String::new();
        File::open(path)?.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|e: io::Error| EnergyError::system("read", path, e))?;
    Ok(text.trim().to_owned())
}

/// The number that a file holds.
pub(crate) fn number<T: FromStr>(path: &Path) -> Result<T, EnergyError> {
    let text = text(path)?;
    text.parse().map_err(|_| EnergyError::Form { path: path.to_path_buf(), what: format!("{text:?} is no number") })
}

/// The most processors that a list of them may name.
const MAX_PROCESSORS: u32 = 65_536;

/// The numbers in a list of processors, `0-3,7`; `None` if it is not one.
pub(crate) fn processors(list: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last >= MAX_PROCESSORS {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// Writes a file that is there. Never makes one.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), EnergyError> {
    let written =
        OpenOptions::new().write(true).truncate(true).open(path).and_then(|mut f| f.write_all(text.as_bytes()));
    written.map_err(|e| EnergyError::system("write", path, e))
}

/// Whether this process may write a file, which is left as it is.
pub(crate) fn may_write(path: &Path) -> Result<(), EnergyError> {
    OpenOptions::new().write(true).open(path).map(drop).map_err(|e| EnergyError::system("write", path, e))
}

/// The entries of a folder in the order of their names; none if it is not there.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>, EnergyError> {
    let listed = match fs::read_dir(folder) {
        Ok(listed) => listed,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(EnergyError::system("read", folder, e)),
    };
    let mut paths: Vec<PathBuf> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}

/// The last part of a path as text.
pub(crate) fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}
