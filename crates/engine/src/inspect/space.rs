//! Where the bytes of a store are.

use serde::{Deserialize, Serialize};

use super::DuplicateCensus;
use crate::directory_lock::unless_in_use;
use crate::gc::references::References;
use crate::{Error, LevelProperties, Result, Store, identity};

/// Where the bytes of a store are, at one moment. Sizes are lengths of files, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Space {
    /// The levels of tables, L0 first.
    pub levels: Vec<LevelProperties>,
    /// The segments of the value log, in the order of their numbers; none without one.
    pub segments: Vec<SegmentSpace>,
    /// Write-ahead logs.
    pub wal_bytes: u64,
    /// Everything else: MANIFEST, OPTIONS, RocksDB's own logs.
    pub other_bytes: u64,
    /// Keys, by RocksDB's estimate of entries, without those that newer ones are estimated to
    /// shadow.
    pub keys_estimate: u64,
    /// Tables that do not say which segments they refer to. While there are any, all of a segment
    /// may be live.
    pub silent_tables: Vec<String>,
    /// What of each level newer versions in other tables shadow, by an estimate; `None` where no
    /// table carries samples of its keys.
    pub duplicates: Option<DuplicateCensus>,
}

/// One segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentSpace {
    /// Its number.
    pub segment: u32,
    /// Its length.
    pub bytes: u64,
    /// Bytes of it that tables refer to. What was overwritten or deleted counts until a compaction
    /// has met it.
    pub referenced_bytes: u64,
    /// The level that its values came to rest in when they were relocated; none where users wrote
    /// them.
    pub resting_level: Option<u32>,
}

impl SegmentSpace {
    /// Bytes that no table refers to: garbage, unless only a memtable or a WAL names them.
    pub fn unnamed_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.referenced_bytes)
    }
}

impl Space {
    /// Bytes of all tables.
    pub fn table_bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.bytes).sum()
    }

    /// Bytes of all segments.
    pub fn segment_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Bytes of segments that tables refer to.
    pub fn referenced_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.referenced_bytes).sum()
    }

    /// Bytes of segments that no table refers to: garbage, but for what only a memtable or a WAL
    /// names.
    pub fn unnamed_bytes(&self) -> u64 {
        self.segments.iter().map(SegmentSpace::unnamed_bytes).sum()
    }

    /// Bytes of everything.
    pub fn all_bytes(&self) -> u64 {
        self.table_bytes() + self.segment_bytes() + self.wal_bytes + self.other_bytes
    }
}

impl Store {
    /// Where the bytes are. Reads a few properties of every table: for the scale of minutes, not of
    /// requests.
    ///
    /// # Errors
    ///
    /// What a table or the directory says when it cannot be read. [`Error::InUse`] where this store
    /// is open read-only, and somebody else writes it, who may have removed what is missing.
    pub fn space(&self) -> Result<Space> {
        let is_reader = self.admission.is_none();
        self.space_now().map_err(|error| if is_reader { unless_in_use(self.directory(), error) } else { error })
    }

    fn space_now(&self) -> Result<Space> {
        let properties = self.properties()?;
        let duplicates = self.estimate_duplicates()?;
        let keys_estimate = duplicates.as_ref().map_or(properties.keys_estimate, |duplicates| {
            properties.keys_about(duplicates.total_keys(), duplicates.duplicate_keys())
        });
        let mut space = Space {
            levels: properties.levels,
            segments: Vec::new(),
            wal_bytes: 0,
            other_bytes: 0,
            keys_estimate,
            silent_tables: Vec::new(),
            duplicates,
        };
        if let Some(values) = &self.values {
            let identity = identity::read(self.directory())?;
            let references = References::count(&self.db, &self.family, identity)?;
            let named = |number| references.bytes.get(&number).copied().unwrap_or(0);
            space.segments = values
                .log
                .segments()
                .iter()
                .map(|segment| SegmentSpace {
                    segment: segment.number().0,
                    bytes: segment.bytes(),
                    referenced_bytes: named(segment.number()),
                    resting_level: segment.resting_level(),
                })
                .collect();
            space.silent_tables = references.silent_tables();
        }
        let failed = |error| Error::io("list", self.directory(), &error);
        for entry in std::fs::read_dir(self.directory()).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // Files come and go while it is looked at.
            let Ok(metadata) = entry.metadata() else { continue };
            match entry.file_name().to_str().and_then(|name| name.rsplit_once('.')).map(|(_, end)| end) {
                Some("sst") => (),
                Some("log") => space.wal_bytes += metadata.len(),
                _ if metadata.is_file() => space.other_bytes += metadata.len(),
                _ => (),
            }
        }
        Ok(space)
    }
}
