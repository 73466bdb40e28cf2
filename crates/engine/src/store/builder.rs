//! What a store is opened with: its settings, and the components it shares with its process.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ecotone_io::tap::WriteTap;
use ecotone_rocks::filesystem::FileSystemHooks;
use ecotone_types::DutyObserver;

use super::open::{self, StoreComponents};
use crate::offload::slots::LocalSlots;
use crate::{
    CompactionOffload, MemoryLimit, OpenMode, Result, SharedRows, SharedSpace, Store, StoreEvents, StoreSettings,
};

/// Opens a store: see [`Store::builder`].
#[derive(Clone)]
#[must_use]
pub struct StoreBuilder {
    directory: PathBuf,
    mode: OpenMode,
    settings: StoreSettings,
    components: StoreComponents,
}

impl StoreBuilder {
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_path_buf(),
            mode: OpenMode::CreateOrOpen,
            settings: StoreSettings::default(),
            components: StoreComponents::default(),
        }
    }

    /// What may be in the directory; [`OpenMode::CreateOrOpen`] unless said.
    pub fn mode(mut self, mode: OpenMode) -> Self {
        self.mode = mode;
        self
    }

    /// The numbers and choices; [`StoreSettings::default`] unless said.
    pub fn settings(mut self, settings: StoreSettings) -> Self {
        self.settings = settings;
        self
    }

    /// One limit of memory for the block caches and memtables of all stores that share it, whatever
    /// [`StoreSettings::memory_limit_bytes`] says.
    pub fn memory(mut self, memory: MemoryLimit) -> Self {
        self.components.memory = Some(memory);
        self
    }

    /// Rows that several stores share, whatever [`StoreSettings::row_cache_bytes`] says: the keys of
    /// two of them must not be the same, but for those with the private prefix. What is told of
    /// rows is told by them, and not by the store.
    pub fn rows(mut self, rows: SharedRows) -> Self {
        self.components.rows = Some(rows);
        self
    }

    /// The space that several stores share: what the others will still write is not given away, and
    /// [`SpaceLimits::max_bytes`](crate::SpaceLimits) is the limit of all of them together.
    pub fn space(mut self, space: SharedSpace) -> Self {
        self.components.space = Some(space);
        self
    }

    /// Hooks under RocksDB's file system.
    pub fn hooks(mut self, hooks: FileSystemHooks) -> Self {
        self.components.hooks = Some(hooks);
        self
    }

    /// Sees every change of the store's files, with its first one on: see [`ecotone_io::tap`].
    pub fn tap(mut self, tap: Arc<dyn WriteTap>) -> Self {
        self.components.hooks.get_or_insert_default().tap = Some(tap);
        self
    }

    /// Whatever WALs hold is in tables before the MANIFEST that the opening writes is in force, so
    /// that what follows from there on needs nothing of older WALs. That is so in any case but on a
    /// full disk, where it would otherwise stay in WALs: with this it is flushed there as well, or the
    /// opening fails.
    pub fn flush_on_open(mut self) -> Self {
        self.components.flush_on_open = true;
        self
    }

    /// The next segment of the value log has this number at least: lower ones may have been given
    /// where nobody here knows of it.
    pub fn least_segment(mut self, number: u32) -> Self {
        self.components.least_segment = number;
        self
    }

    /// Follows a store that somebody else writes: it is read only, shows what the files held when it
    /// was opened, and later what they held when it [caught up](Store::catch_up) last. Nothing is
    /// written in its directory; whoever writes there removes no file that this one has not passed.
    /// `beside` is a folder that RocksDB may use, outside of that directory.
    pub fn following(mut self, beside: &Path) -> Self {
        self.mode = OpenMode::ReadOnly;
        self.components.follows_beside = Some(beside.to_path_buf());
        self
    }

    /// Runs compactions elsewhere. Without one all are local.
    pub fn offload(mut self, offload: Arc<dyn CompactionOffload>) -> Self {
        self.components.offload = Some(offload);
        self
    }

    /// Bounds the compactions that come back from the offload to be run here after all. Two at a
    /// time unless said.
    pub fn local_slots(mut self, slots: Arc<LocalSlots>) -> Self {
        self.components.local_slots = Some(slots);
        self
    }

    /// Is told when a thread of RocksDB takes up and ends a flush or a compaction.
    pub fn duties(mut self, duties: Arc<dyn DutyObserver>) -> Self {
        self.components.duties = Some(duties);
        self
    }

    /// Is told what happened.
    pub fn events(mut self, events: Arc<dyn StoreEvents>) -> Self {
        self.components.events = Some(events);
        self
    }

    /// Opens the store.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) names the setting that is out of
    /// range; [`NotFound`](crate::Error::NotFound),
    /// [`AlreadyExists`](crate::Error::AlreadyExists) and
    /// [`WrongFormat`](crate::Error::WrongFormat) say what the directory holds;
    /// [`Locked`](crate::Error::Locked) that it is in use; [`InUse`](crate::Error::InUse) that it
    /// is, and cannot even be read; [`Corrupt`](crate::Error::Corrupt) that files are damaged.
    pub fn open(self) -> Result<Store> {
        open::open(&self.directory, self.mode, &self.settings, self.components)
    }
}

impl fmt::Debug for StoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreComponents {
            memory,
            rows,
            space,
            hooks,
            offload,
            local_slots,
            duties,
            events,
            flush_on_open,
            least_segment,
            follows_beside,
        } = &self.components;
        f.debug_struct("StoreBuilder")
            .field("directory", &self.directory)
            .field("mode", &self.mode)
            .field("settings", &self.settings)
            .field("memory", memory)
            .field("rows", rows)
            .field("space", space)
            .field("hooks", &hooks.is_some())
            .field("offload", &offload.is_some())
            .field("local_slots", local_slots)
            .field("duties", &duties.is_some())
            .field("events", &events.is_some())
            .field("flush_on_open", flush_on_open)
            .field("least_segment", least_segment)
            .field("follows_beside", follows_beside)
            .finish()
    }
}
