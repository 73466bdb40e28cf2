//! What the finished files of a primary hold, for who compares copies with it.

use std::collections::BTreeMap;

use ecotone_replica::position::Mark;
use ecotone_replica::stream::{ContentId, FileKind};

use super::{Source, UNREADABLE};
use crate::error::{Error, Result};
use crate::names::FileName;

impl Source {
    /// The finished tables and segments at the last item, with what they held when they were
    /// finished. One that could not be read then is left out.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] before this opening has put `CURRENT` in place, and once this server is no
    /// primary any more.
    pub fn contents(&self) -> Result<(Mark, BTreeMap<FileName, ContentId>)> {
        let state = self.lock();
        if !state.is_opened || state.is_over {
            return Err(Error::Missing { file: FileName::new(FileKind::Current, 0) });
        }
        let (mark, _) = self.sink.mark();
        let contents = state.files.iter().filter_map(|(file, known)| Some((*file, known.content?)));
        Ok((mark, contents.filter(|(_, content)| content.hash != UNREADABLE).collect()))
    }
}
