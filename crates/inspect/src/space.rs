//! Where the bytes of a store are.

use ecotone_engine::offline::{reading, references, value_log};
use ecotone_engine::{Error, LevelProperties, Result, Store};
use serde::{Deserialize, Serialize};

use crate::duplicates::{DuplicateCensus, estimate_duplicates};

/// Where the bytes of a store are, at one moment. Sizes are lengths of files, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Space {
    /// The levels of tables, L0 first.
    pub levels: Vec<LevelProperties>,
    /// The segments of the value log, in the order of their numbers; none without one.
    pub segments: Vec<SegmentSpace>,
    /// By how much values that tables refer to are longer than what is stored of them.
    #[serde(default)]
    pub saved_bytes: u64,
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
    pub fn unreferenced_bytes(&self) -> u64 {
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

    /// What the records that tables refer to would take if no value were compressed.
    pub fn uncompressed_bytes(&self) -> u64 {
        self.referenced_bytes().saturating_add(self.saved_bytes)
    }

    /// Bytes before compression for each that is stored, of the records that tables refer to; `None`
    /// where there are none.
    pub fn compression_ratio(&self) -> Option<f64> {
        let stored = self.referenced_bytes();
        (stored > 0).then(|| self.uncompressed_bytes() as f64 / stored as f64)
    }

    /// Bytes of segments that no table refers to: garbage, but for what only a memtable or a WAL
    /// names.
    pub fn unreferenced_bytes(&self) -> u64 {
        self.segments.iter().map(SegmentSpace::unreferenced_bytes).sum()
    }

    /// Bytes of everything.
    pub fn all_bytes(&self) -> u64 {
        self.table_bytes() + self.segment_bytes() + self.wal_bytes + self.other_bytes
    }
}

/// Where the bytes of `store` are. Reads a few properties of every table: for the scale of minutes,
/// not of requests.
///
/// # Errors
///
/// Those of a table or of the directory that cannot be read. [`Error::InUse`] where this store is
/// open read-only, and somebody else writes it, who may have removed what is missing.
pub fn space(store: &Store) -> Result<Space> {
    reading(store, || space_now(store))
}

fn space_now(store: &Store) -> Result<Space> {
    let properties = store.properties()?;
    let duplicates = estimate_duplicates(store)?;
    let keys_estimate = duplicates.as_ref().map_or(properties.keys_estimate, |duplicates| {
        properties.keys_about(duplicates.total_keys(), duplicates.duplicate_keys())
    });
    let (mut segments, mut silent_tables, mut saved_bytes) = (Vec::new(), Vec::new(), 0);
    if let Some(log) = value_log(store) {
        let references = references(store)?;
        segments.extend(log.segments().iter().map(|segment| SegmentSpace {
            segment: segment.number().0,
            bytes: segment.bytes(),
            referenced_bytes: references.bytes.get(&segment.number()).copied().unwrap_or(0),
            resting_level: segment.resting_level(),
        }));
        silent_tables = references.silent_tables();
        saved_bytes = references.saved_bytes();
    }
    let (mut wal_bytes, mut other_bytes) = (0, 0);
    let failed = |error| Error::io("list", store.directory(), &error);
    for entry in std::fs::read_dir(store.directory()).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // Files come and go meanwhile.
        let Ok(metadata) = entry.metadata() else { continue };
        match entry.file_name().to_str().and_then(|name| name.rsplit_once('.')).map(|(_, end)| end) {
            Some("sst") => (),
            Some("log") => wal_bytes += metadata.len(),
            _ if metadata.is_file() => other_bytes += metadata.len(),
            _ => (),
        }
    }
    Ok(Space {
        levels: properties.levels,
        segments,
        saved_bytes,
        wal_bytes,
        other_bytes,
        keys_estimate,
        silent_tables,
        duplicates,
    })
}
