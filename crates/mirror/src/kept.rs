//! Second names of files that are appended to, in `D.copy/kept`: the bytes of an item can be read
//! from there as long as a copy may need them, whatever the store removes meanwhile.
//!
//! Invariant: a link is there as long as its [`Link`] lives, and is gone after. What a killed
//! process left is cleared by the next [`KeptFiles::prepare`].
//!
//! Failure: where a link cannot be made (no inode is free) the file is held open instead; where
//! that fails too its items can be read until the store removes it.
//!
//! Threads: any.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::names::{FileName, VALUES_DIRECTORY, beside, path_of};

const KEPT_DIRECTORY: &str = "kept";
const PROBE: &str = "probe";
const LINKED_PROBE: &str = "probe-linked";

/// Files that are left open for the next read: the newest WAL, segment and MANIFEST, and a few for
/// copies that lag.
const MAX_OPEN: usize = 16;

/// The directory of the links.
pub(crate) struct KeptFiles {
    path: PathBuf,
    next: AtomicU64,
    /// Those read last, the newest at the end.
    opened: Mutex<Vec<(u64, Arc<File>)>>,
}

/// A file that is kept.
#[derive(Debug)]
pub(crate) struct Link {
    id: u64,
    holds: Holds,
}

#[derive(Debug)]
enum Holds {
    Name(PathBuf),
    Opened(Arc<File>),
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Holds::Name(path) = &self.holds
            && let Err(error) = fs::remove_file(path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(?path, %error, "a link to a file of the store could not be removed: it takes space until the store is opened again");
        }
    }
}

impl KeptFiles {
    /// Makes the directory for the store in `directory`, empty.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], also where the file system has no hard links.
    pub(crate) fn prepare(directory: &Path) -> Result<Self> {
        Self::clear(directory)?;
        let path = beside(directory, KEPT_DIRECTORY);
        fs::create_dir_all(&path).map_err(|error| Error::io("create the directory", &path, error))?;
        let kept = Self { path, next: AtomicU64::new(0), opened: Mutex::default() };
        let probed = kept.probe(directory);
        probed.map_err(|error| Error::io("make hard links to a store's files in", &kept.path, error))?;
        Ok(kept)
    }

    /// Removes the directory.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub(crate) fn clear(directory: &Path) -> Result<()> {
        let path = beside(directory, KEPT_DIRECTORY);
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("clear", &path, error)),
            _ => Ok(()),
        }
    }

    /// That links can be made from the store to here.
    fn probe(&self, directory: &Path) -> io::Result<()> {
        let (probe, linked) = (self.path.join(PROBE), self.path.join(LINKED_PROBE));
        // A file of the store, which may be on another file system than what lies beside it, or any
        // before it has one.
        let original = match any_file_in(directory)? {
            Some(file) => file,
            None => {
                File::create(&probe)?;
                probe.clone()
            }
        };
        let made = fs::hard_link(&original, &linked);
        let _ = fs::remove_file(&linked);
        let _ = fs::remove_file(&probe);
        made
    }

    /// Keeps the file in `directory`, if it is there.
    pub(crate) fn keep(&self, directory: &Path, file: FileName) -> Option<Arc<Link>> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let from = path_of(directory, file);
        let flat = from.file_name().unwrap_or_default().to_string_lossy();
        let to = self.path.join(format!("{id}-{flat}"));
        let holds = match fs::hard_link(&from, &to) {
            Ok(()) => Holds::Name(to),
            Err(error) => {
                tracing::warn!(path = ?from, %error, "a file of the store could not be linked, and is held open until its bytes are in all copies");
                Holds::Opened(Arc::new(File::open(&from).ok()?))
            }
        };
        Some(Arc::new(Link { id, holds }))
    }

    /// The file of a link, open for reading.
    pub(crate) fn open(&self, link: &Link) -> io::Result<Arc<File>> {
        let path = match &link.holds {
            Holds::Opened(file) => return Ok(file.clone()),
            Holds::Name(path) => path,
        };
        let mut opened = self.opened.lock();
        if let Some(at) = opened.iter().position(|(id, _)| *id == link.id) {
            // Mostly the last one, and then nothing moves.
            opened[at..].rotate_left(1);
            return Ok(opened[opened.len() - 1].1.clone());
        }
        let file = Arc::new(File::open(path)?);
        if opened.len() == MAX_OPEN {
            opened.remove(0);
        }
        opened.push((link.id, file.clone()));
        Ok(file)
    }

    /// These links are of no use any more: their names and descriptors go.
    pub(crate) fn release(&self, links: Vec<Arc<Link>>) {
        if !links.is_empty() {
            self.opened.lock().retain(|(id, _)| !links.iter().any(|link| link.id == *id));
        }
    }

    /// Gives what a link holds one more name.
    pub(crate) fn link_to(&self, link: &Link, to: &Path) -> io::Result<()> {
        match &link.holds {
            Holds::Name(path) => fs::hard_link(path, to),
            Holds::Opened(_) => Err(ErrorKind::NotFound.into()),
        }
    }

    /// A new directory for the links of an offer.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub(crate) fn offer_directory(&self) -> Result<PathBuf> {
        let path = self.path.join(format!("offer-{}", self.next.fetch_add(1, Ordering::Relaxed)));
        let values = path.join(VALUES_DIRECTORY);
        fs::create_dir_all(&values).map_err(|error| Error::io("create the directory", &values, error))?;
        Ok(path)
    }
}

/// Any file of the store, in `directory` itself or below.
fn any_file_in(directory: &Path) -> io::Result<Option<PathBuf>> {
    for path in [directory.to_path_buf(), directory.join(VALUES_DIRECTORY)] {
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                return Ok(Some(entry.path()));
            }
        }
    }
    Ok(None)
}
