//! What a copy's files should hold, and how one that does not is replaced.

use super::{Directory, Want};
use crate::comparing::{Held, Part, mended_path};
use crate::error::{Error, Result};
use crate::files::make_parent;
use crate::names::path_of;
use crate::record;

impl Directory {
    /// What the files should hold now. Nothing is read but what is in memory.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::Malformed`] where that cannot be said now: it is open for writing, it
    /// changes from one epoch to another, or a sync has failed.
    pub fn held(&self) -> Result<Held> {
        self.check_usable()?;
        if self.opening.is_some() {
            return Err(self.malformed("it changes from one epoch to another".to_owned()));
        }
        let mut growing: Vec<Part> = Vec::new();
        let mut absent = std::collections::BTreeSet::new();
        if !self.is_foreign {
            let side = self.durable.lock().synced.side.clone();
            let tails = super::tails_of(&self.growing).into_iter().chain(side.manifests);
            growing.extend(tails.map(|tail| Part { file: tail.file, len: tail.len, crc: tail.crc }));
            absent.extend(self.pending.absent().into_iter().map(|absent| absent.file));
        }
        let finished = self.catalog.lock().entries().filter(|(file, _)| !self.growing.contains_key(file)).collect();
        Ok(Held { mark: self.recorded, finished, growing, absent })
    }

    /// Puts what was fetched to [`mend_path`](crate::comparing::mend_path) and
    /// [checked](super::check_fetched) in the place of a finished file. Whoever has that open keeps
    /// what it had. False: it is not a finished file of this copy (any more), or will be fetched.
    ///
    /// # Errors
    ///
    /// As [`held`](Self::held); [`Error::Missing`] where nothing was fetched.
    pub fn replace(&mut self, want: &Want) -> Result<bool> {
        let held = self.held()?;
        let fetched = mended_path(&self.path, want);
        if !fetched.exists() {
            return Err(Error::Missing { file: want.file });
        }
        let is_growing = self.growing.contains_key(&want.file);
        if !want.file.is_finished_once() || is_growing || held.absent.contains(&want.file) {
            record::remove_file(&fetched)?;
            return Ok(false);
        }
        let path = path_of(&self.path, want.file);
        make_parent(&path)?;
        record::rename(&fetched, &path)?;
        path.parent().map_or(Ok(()), record::sync_directory)?;
        self.catalog.lock().put(want.file, want.content)?;
        Ok(true)
    }
}
