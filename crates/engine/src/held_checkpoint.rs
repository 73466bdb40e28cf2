//! A checkpoint that is held while somebody copies it: the store as it was at one moment, under
//! names of its own.
//!
//! It lies in `checkpoint_tmp/` of the store's directory, so that tables and sealed segments are
//! linked and not copied. It goes with the value that holds it; what a process left that was killed
//! goes when the store is next opened for writing.
//!
//! Space: a link keeps what the store removes meanwhile. That counts as the store's own
//! (`limits/measure.rs`).
//!
//! Reads go past the kernel's page cache (`O_DIRECT`) where the file system can: to copy a store
//! through the cache would push out what its users read. Elsewhere they go through it.
//!
//! Threads: any, also several at a time. Nobody waits for who copies: the store goes on as ever.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ecotone_io::objects::read_past_cache;

use crate::layout::CHECKPOINTS_DIRECTORY;
use crate::{Error, Result, Store};

/// The store as it was at one moment, for as long as this lives.
#[derive(Debug)]
pub struct HeldCheckpoint {
    directory: PathBuf,
    files: BTreeMap<String, HeldFile>,
}

/// One of its files. It does not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldFile {
    /// Its length.
    pub bytes: u64,
    /// What tells it from every other file that had its path and length in this store, on this file
    /// system: the inode, and when it was last written. A file that two checkpoints share has the
    /// same in both.
    pub stamp: String,
}

impl Store {
    /// Makes a [checkpoint](Self::checkpoint) of the store as it is now, with all that was
    /// acknowledged, and holds it.
    ///
    /// # Errors
    ///
    /// Those of a checkpoint; nothing is left of one that failed.
    pub fn hold_checkpoint(&self) -> Result<HeldCheckpoint> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // The checkpoint's own flush would wait, without limit, until compactions have caught up;
        // after this one it has next to nothing to do.
        self.flush(true)?;
        let all = self.directory().join(CHECKPOINTS_DIRECTORY);
        fs::create_dir_all(&all).map_err(|error| Error::io("create the directory", &all, &error))?;
        let directory = all.join(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
        // From here on it is removed again, whatever happens.
        let mut held = HeldCheckpoint { directory, files: BTreeMap::new() };
        self.checkpoint(&held.directory)?;
        list(&held.directory, "", &mut held.files)
            .map_err(|error| Error::io("list the directory", &held.directory, &error))?;
        Ok(held)
    }

    /// What this store and its checkpoints have in common, and no other store has, unless it was
    /// made of one of them.
    pub fn lineage(&self) -> Result<String> {
        let identity = self.db.get_db_identity().map_err(|error| Error::Rocks { detail: error.to_string() })?;
        Ok(String::from_utf8_lossy(&identity).into_owned())
    }
}

impl HeldCheckpoint {
    /// Whether it was made of `store`.
    pub fn is_of(&self, store: &Store) -> bool {
        self.directory.starts_with(store.directory())
    }

    /// All of its files, by their paths within the store's directory, with `/` between names.
    pub fn files(&self) -> &BTreeMap<String, HeldFile> {
        &self.files
    }

    /// What `file` holds from `offset` on: so many bytes, or fewer at its end.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where there is no such file, [`Error::Io`].
    pub fn read(&self, file: &str, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        let Some(HeldFile { bytes: length, .. }) = self.files.get(file) else {
            return Err(Error::invalid("file", "the checkpoint has no file of this path"));
        };
        let bytes = usize::try_from(length.saturating_sub(offset)).map_or(bytes, |left| left.min(bytes));
        let path = self.directory.join(file);
        read_past_cache(&path, offset, bytes).map_err(|error| Error::io("read", &path, &error))
    }
}

impl Drop for HeldCheckpoint {
    fn drop(&mut self) {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(directory = %self.directory.display(), %error, "a checkpoint could not be removed; it goes at the next start");
            }
            _ => {}
        }
    }
}

fn list(directory: &Path, prefix: &str, files: &mut BTreeMap<String, HeldFile>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            list(&entry.path(), &format!("{path}/"), files)?;
            continue;
        }
        let stamp = format!("{}-{}.{:09}", metadata.ino(), metadata.mtime(), metadata.mtime_nsec());
        files.insert(path, HeldFile { bytes: metadata.len(), stamp });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpenMode, StoreSettings};

    fn options(separates: bool) -> StoreSettings {
        let options = StoreSettings::default();
        if separates { options.with_separation(100) } else { options }
    }

    /// Everything in the store's folder and below.
    fn checkpoints(store: &Path) -> usize {
        fs::read_dir(store.join(CHECKPOINTS_DIRECTORY)).map_or(0, Iterator::count)
    }

    #[test]
    fn it_stays_as_it_was_and_goes_with_its_holder() {
        for separates in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let store = Store::open(directory.path(), OpenMode::Create, options(separates)).unwrap();
            for key in 0..2000_u32 {
                store.put(&key.to_be_bytes(), &[1; 300]).unwrap();
            }
            let held = store.hold_checkpoint().unwrap();
            let files: Vec<(String, Vec<u8>)> =
                held.files().keys().map(|path| (path.clone(), fs::read(held.directory.join(path)).unwrap())).collect();
            assert!(held.files().contains_key("CURRENT") && held.files().contains_key("STORE"), "{files:?}");
            assert_eq!(held.files().keys().any(|path| path.starts_with("values/")), separates);
            for key in 0..2000_u32 {
                store.put(&key.to_be_bytes(), &[2; 300]).unwrap();
            }
            store.flush(true).unwrap();
            store.compact(..).unwrap();
            for (path, was) in &files {
                assert_eq!(held.files()[path].bytes, was.len() as u64);
                // At and around what unbuffered reads need, and at the end.
                for offset in [0, 1, 4095, 4096, 5000, was.len().saturating_sub(1), was.len(), was.len() + 1] {
                    for bytes in [0, 1, 4096, 4097, 1 << 20] {
                        let part =
                            &was[offset.min(was.len())..(offset + bytes).min(was.len()).max(offset.min(was.len()))];
                        let read = held.read(path, offset as u64, bytes).unwrap();
                        assert!(read == part, "{path}: {bytes} bytes from {offset}");
                    }
                }
            }
            assert!(matches!(held.read("../STORE", 0, 1), Err(Error::InvalidArgument { .. })));
            // What the store did not change is the same file in the next one.
            let next = store.hold_checkpoint().unwrap();
            let again = store.hold_checkpoint().unwrap();
            let mut shared = 0;
            for (path, file) in next.files().iter().filter(|(path, _)| path.ends_with(".sst")) {
                if let Some(same) = again.files().get(path) {
                    assert_eq!(same, file, "{path}");
                    shared += 1;
                }
            }
            // Where values are separated they may be relocated in between, and all tables with
            // them.
            assert!(shared > 0 || separates);
            assert_eq!(checkpoints(directory.path()), 3);
            drop((held, next));
            assert_eq!(checkpoints(directory.path()), 1);
            // As a killed process leaves it.
            std::mem::forget(again);
            let lineage = store.lineage().unwrap();
            store.close().unwrap();
            let store = Store::open(directory.path(), OpenMode::Open, options(separates)).unwrap();
            assert_eq!(checkpoints(directory.path()), 0);
            assert_eq!((store.lineage().unwrap(), lineage.is_empty()), (lineage, false));
        }
    }
}
