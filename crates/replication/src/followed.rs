//! A copy of a shard as who reads it here sees it, while it is a replica.
//!
//! Threads: any; nothing here waits for a disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ecotone_mirror::readers::Readers;

use crate::shard::{Applied, Shared};

/// See the module.
pub struct Followed {
    shared: Arc<Shared>,
    directory: PathBuf,
}

impl Followed {
    pub(crate) fn new(shared: Arc<Shared>, directory: PathBuf) -> Self {
        Self { shared, directory }
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Who reads them: nothing else may open them.
    pub fn readers(&self) -> &Arc<Readers> {
        &self.shared.readers
    }

    /// Whether this copy is not driven any more. Another one may be, of the same shard.
    pub fn is_over(&self) -> bool {
        self.shared.is_over()
    }

    /// How far what is in its files by now is behind its primary; none while that is not known.
    pub fn applied(&self) -> Option<Applied> {
        self.shared.applied()
    }
}
