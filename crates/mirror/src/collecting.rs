//! A copy makes the segments that its primary's GC wrote, of those that it has.
//!
//! A `Collect` is pending like a file that is finished and not here ([`crate::pending`]): MANIFEST
//! edits behind it, and the deletions of what it is made of, wait for it. Until then, and where this
//! copy becomes a primary without it, the MANIFEST in force names the values where they were.
//!
//! Invariant: what is put in place has the length and the checksum of its content id, and is on the
//! device. Failure: where a source is missing, shorter, or not what it was, the segment is fetched
//! from the primary like any other file; a full disk is tried again.
//!
//! Threads: a [`CollectJob`] runs on any, beside the directory's owner. It reads the sources by
//! their names: they stay while the item is pending.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ecotone_replica::stream::FileKind;

use crate::catalog::Hasher;
use crate::error::{Error, Result};
use crate::fetched::{Want, checked_path};
use crate::names::{FileName, path_of};
use crate::recipe::{Recipe, Step};
use crate::record;

/// Bytes that are written at a time.
const PIECE_BYTES: usize = 256 << 10;
/// Segments that are open at a time.
const MAX_OPEN: usize = 64;

/// A segment that is to be made. Once it has [run](Self::run) it is
/// [taken](crate::directory::Directory::fetched) like a file that was fetched.
#[must_use]
pub struct CollectJob {
    pub(crate) directory: PathBuf,
    pub(crate) want: Want,
    pub(crate) recipe: Vec<u8>,
    /// Where a fetch would write it.
    pub(crate) temporary: PathBuf,
}

impl CollectJob {
    /// Which segment, and what it will hold.
    #[must_use]
    pub fn want(&self) -> &Want {
        &self.want
    }

    /// Makes it, compares it and syncs it.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`], [`Error::Mismatch`] and [`Error::Malformed`] where this copy cannot make
    /// it: it is to be fetched. [`Error::Io`] where it cannot be written: it may be tried again.
    pub fn run(&self) -> Result<()> {
        let path = making_path(&self.temporary);
        let made = self.make(&path);
        if made.is_err() {
            // What could not be removed is written over by the next one.
            drop(record::remove_file(&path));
        }
        made
    }

    fn make(&self, path: &Path) -> Result<()> {
        let Want { file, content } = self.want;
        let recipe = Recipe::decode(&self.recipe, content.len);
        let recipe = recipe.map_err(|error| Error::Malformed { path: path.to_path_buf(), what: error.to_string() })?;
        let mut sources = Sources { directory: &self.directory, open: HashMap::new() };
        let mut making = Making::begin(path)?;
        let mut piece = vec![0; PIECE_BYTES];
        let number = u32::try_from(file.number).map_err(|_| Error::Missing { file })?;
        let base = Step::Copy { segment: number, offset: 0, len: recipe.base };
        for step in std::iter::once(base).filter(|base| !base.is_empty()).chain(recipe.steps) {
            let Step::Copy { segment, mut offset, len } = step else {
                if let Step::Bytes(bytes) = step {
                    making.write(bytes)?;
                }
                continue;
            };
            let end = offset + len;
            while offset < end {
                let bytes = usize::try_from(end - offset).map_or(PIECE_BYTES, |rest| rest.min(PIECE_BYTES));
                sources.read(segment, offset, &mut piece[..bytes])?;
                making.write(&piece[..bytes])?;
                offset += bytes as u64;
            }
        }
        let (opened, found) = making.finish()?;
        if found != content {
            let what = format!("what was made of other segments has {} bytes that are not its", found.len);
            return Err(Error::Mismatch { file, what });
        }
        record::flush(&opened).map_err(|error| Error::io("sync", path, error))?;
        record::rename(path, &checked_path(&self.temporary))
    }
}

/// Where it is until it is compared.
pub(crate) fn making_path(temporary: &Path) -> PathBuf {
    temporary.with_extension("making")
}

/// The segments that it is made of.
struct Sources<'a> {
    directory: &'a Path,
    open: HashMap<u32, File>,
}

impl Sources<'_> {
    fn read(&mut self, segment: u32, offset: u64, into: &mut [u8]) -> Result<()> {
        let file = FileName::new(FileKind::Segment, segment.into());
        if !self.open.contains_key(&segment) {
            if self.open.len() == MAX_OPEN {
                self.open.clear();
            }
            let opened = File::open(path_of(self.directory, file));
            self.open.insert(segment, opened.map_err(|error| unusable(file, &error))?);
        }
        let opened = self.open.get(&segment).ok_or(Error::Missing { file })?;
        opened.read_exact_at(into, offset).map_err(|error| unusable(file, &error))
    }
}

/// Whatever is wrong with a source, the segment can be had from the primary.
fn unusable(file: FileName, error: &std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::Missing { file },
        _ => Error::Mismatch { file, what: format!("it cannot be read: {error}") },
    }
}

/// A file that is being written.
struct Making<'a> {
    path: &'a Path,
    file: File,
    written: u64,
    collected: Vec<u8>,
    hasher: Hasher,
}

impl<'a> Making<'a> {
    fn begin(path: &'a Path) -> Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path);
        let file = file.map_err(|error| Error::io("create", path, error))?;
        Ok(Self { path, file, written: 0, collected: Vec::with_capacity(2 * PIECE_BYTES), hasher: Hasher::new() })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.collected.extend_from_slice(bytes);
        if self.collected.len() >= PIECE_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        if !self.collected.is_empty() {
            self.hasher.update(&self.collected);
            let written = record::write_at(&self.file, &self.collected, self.written);
            written.map_err(|error| Error::io("write", self.path, error))?;
            self.written += self.collected.len() as u64;
            self.collected.clear();
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(File, ecotone_replica::stream::ContentId)> {
        self.flush()?;
        Ok((self.file, self.hasher.finish()))
    }
}
