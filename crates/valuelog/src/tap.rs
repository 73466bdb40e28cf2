//! What a store changes in a store's directory by itself, told to the store's tap beside what
//! RocksDB changes there.
//!
//! A tap (see [`ecotone_rocks_sys::filesystem::WriteTap`]) so hears of every change: of tables, WAL
//! and MANIFEST from the file system under RocksDB, of the identity, the segments and the watermark
//! from here. Of a checkpoint, which is made beside the store, only RocksDB's part is told.
//!
//! Invariants: a change is told after it has happened and before anything rests on it; a sync is
//! told with a length that it covers for certain. An error of the tap fails the operation, as
//! RocksDB's would.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use ecotone_rocks_sys::filesystem::{FileSystemHooks, TapEvent, WriteTap};

use crate::{Error, Result};

/// The tap of a store, where it has one.
#[derive(Clone, Default)]
pub struct Tap(Option<Arc<dyn WriteTap>>);

impl Tap {
    /// Nobody listens.
    pub const SILENT: Self = Self(None);

    /// The tap among the hooks that a store was given.
    pub fn of(hooks: Option<&FileSystemHooks>) -> Self {
        Self(hooks.and_then(|hooks| hooks.tap.clone()))
    }

    /// Tells of a change that has happened.
    #[inline]
    pub fn tell(&self, event: TapEvent<'_>) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |tap| tap.record(event))
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Tap" } else { "Tap::SILENT" })
    }
}

/// Makes the names in `directory` durable.
pub fn sync_directory(directory: &Path, tap: &Tap) -> Result<()> {
    let opened = File::open(directory).map_err(|e| Error::io("sync", directory, &e))?;
    sync_opened_directory(&opened, directory, tap)
}

/// The same of one that is open.
pub fn sync_opened_directory(opened: &File, directory: &Path, tap: &Tap) -> Result<()> {
    opened
        .sync_all()
        .and_then(|()| tap.tell(TapEvent::DirectorySynced { path: directory }))
        .map_err(|e| Error::io("sync", directory, &e))
}
