//! A directory that was built takes the place of D, by renames: D to `D.old`, `D.new` to D.
//!
//! What is to be done is written to `D.copy/switch` first, and that is the moment at which the new
//! directory counts: a crash after it is made good by who starts next. Of the old one nothing stays
//! but, where it may have had a tail that no other copy has, its WALs, in `D.copy/aside/`: of the
//! last such directory only.
//!
//! Invariants: at every moment D, or what takes its place, is there whole; to do all again is to do
//! it once.

use std::path::Path;

use ecotone_replica::standing::Standing;
use ecotone_replica::stream::FileKind;

use crate::error::{Error, Result};
use crate::fetched::{fetched_in, remove_fetched};
use crate::files::{crc_of, files_in, names_in};
use crate::names::{self, beside, new_directory, old_directory, path_of};
use crate::record::{self, Reader, SYNCED_FILE, Slots, Synced, Writer};
use crate::seed::pool_of;

const SWITCH_FILE: &str = "switch";
const MAGIC: &[u8; 8] = b"ECOSWCH1";
/// What of the last directory that had diverged is kept.
const ASIDE_DIRECTORY: &str = "aside";
const NEW_ASIDE_DIRECTORY: &str = "aside.new";
/// What is being removed.
const TRASH_DIRECTORY: &str = "trash";

/// From here on it is done, whatever happens.
pub(crate) fn commit(directory: &Path, synced: &Synced, standing: &Standing, is_diverged: bool) -> Result<()> {
    let mut payload = Writer::default();
    payload.synced(synced).standing(standing).u8(u8::from(is_diverged));
    record::write_checked(&beside(directory, SWITCH_FILE), MAGIC, &payload.0)
}

/// Does what was committed and not done.
pub(crate) fn recover(directory: &Path) -> Result<()> {
    let path = beside(directory, SWITCH_FILE);
    let decode = |reader: &mut Reader| Some((reader.synced()?, reader.standing()?, reader.bool()?));
    let Some((synced, standing, is_diverged)) = record::read_checked(&path, MAGIC, decode)? else {
        return record::remove_directory(&beside(directory, TRASH_DIRECTORY));
    };
    let (new, old) = (new_directory(directory), old_directory(directory));
    let above = directory.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if new.exists() {
        if directory.exists() {
            record::remove_directory(&old)?;
            record::rename(directory, &old)?;
            record::sync_directory(above)?;
        }
        record::rename(&new, directory)?;
        record::sync_directory(above)?;
    }
    let (mut slots, before) = Slots::open(beside(directory, SYNCED_FILE), record::decode_synced)?;
    if before.is_none_or(|before| before.log.generation < synced.log.generation) {
        record::write_standing(directory, &standing)?;
        slots.write(&record::encode_synced(&synced))?;
        slots.sync()?;
    }
    if old.exists() {
        if is_diverged {
            keep_aside(directory, &old)?;
        }
        // Gone at once: what is left of it is never taken for it.
        let trash = beside(directory, TRASH_DIRECTORY);
        record::remove_directory(&trash)?;
        record::rename(&old, &trash)?;
        record::sync_directory(above)?;
        record::remove_directory(&trash)?;
    }
    record::remove_directory(&pool_of(directory))?;
    record::make_directory(&fetched_in(directory))?;
    remove_fetched(directory, |_| false)?;
    record::remove_file(&path)?;
    record::sync_directory(&names::copy_directory(directory))
}

/// Keeps the WALs whose bytes the new directory does not have.
fn keep_aside(directory: &Path, old: &Path) -> Result<()> {
    let (new_aside, aside) = (beside(directory, NEW_ASIDE_DIRECTORY), beside(directory, ASIDE_DIRECTORY));
    record::remove_directory(&new_aside)?;
    record::make_directory(&new_aside)?;
    let (mut files, mut bytes) = (0, 0);
    for (file, len) in files_in(old)? {
        if file.kind != FileKind::Wal || len == 0 {
            continue;
        }
        let from = path_of(old, file);
        let is_prefix = match crc_of(&path_of(directory, file), file, len) {
            Ok(crc) => crc == crc_of(&from, file, len)?,
            Err(Error::Missing { .. } | Error::Mismatch { .. }) => false,
            Err(error) => return Err(error),
        };
        if !is_prefix {
            let to = path_of(&new_aside, file);
            record::link(&from, &to).map_err(|error| Error::io("link", &from, error))?;
            (files, bytes) = (files + 1, bytes + len);
        }
    }
    record::remove_directory(&aside)?;
    record::rename(&new_aside, &aside)?;
    record::sync_directory(&names::copy_directory(directory))?;
    let directory = directory.display();
    tracing::warn!(%directory, files, bytes, "WALs of a copy that was replaced are kept aside: it may have diverged");
    Ok(())
}

/// WALs that are kept aside.
pub(crate) fn kept_aside(directory: &Path) -> Result<usize> {
    Ok(names_in(&beside(directory, ASIDE_DIRECTORY))?.len())
}
