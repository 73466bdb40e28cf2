//! What a store is told about duplicates, and what it tells of them.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use ecotone_policy::dedup::{DedupParameters, DedupThreshold};

use crate::{Error, Result};

/// How duplicates are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DedupMode {
    /// Not at all: new tables carry nothing for it.
    #[default]
    Off,
    /// By a sample of the keys of each table: 1 in 64, the same ones everywhere. After each
    /// compaction.
    Sample,
    /// By filters of the lower levels that are asked for each key, as the paper does. After each
    /// compaction.
    Filter,
    /// By samples, at fixed intervals instead of after compactions, each level against the next one
    /// only, with compactions of one level each: what the paper compares itself with (its reference
    /// 15). For measurements.
    Triggered {
        /// Between two checks; 1 s to 1 h.
        interval: Duration,
    },
}

impl DedupMode {
    /// Whether tables carry samples.
    pub const fn samples(self) -> bool {
        !matches!(self, Self::Off)
    }

    /// `off`, `sample`, `filter` or `triggered`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Sample => "sample",
            Self::Filter => "filter",
            Self::Triggered { .. } => "triggered",
        }
    }
}

impl fmt::Display for DedupMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Up to which ratio compactions are extended.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum ExtensionThreshold {
    /// [`SEPARATED_THRESHOLD`] where values are separated, none else; see
    /// [`StoreSettings::dedup_threshold`](crate::StoreSettings::dedup_threshold).
    #[default]
    Auto,
    /// None is extended.
    Off,
    /// Up to this one.
    At(DedupThreshold),
}

/// What stands for `Auto` where values are separated: with it there is less of space and of
/// waiting, for more writing (docs/space.md, "Space by writes"), in trees whose levels differ less
/// than tenfold; in others it makes hardly any merge. Where values stand with their keys, entries
/// are costly, and each threshold costs some throughput for the space it wins.
pub const SEPARATED_THRESHOLD: f64 = 10.0;

/// What is done about duplicates.
#[derive(Debug, Clone, PartialEq)]
pub struct DedupOptions {
    /// How they are counted; `None`: by samples where there is a threshold, else not at all.
    pub mode: Option<DedupMode>,
    /// Up to which ratio a compaction is extended. Where none is, duplicates are only counted.
    pub threshold: ExtensionThreshold,
    /// The rest. `max_merge_bytes` counts as at least what one table of a level and those below it
    /// take, by the size of tables and `level_multiplier`: with less nothing could be merged.
    pub parameters: DedupParameters,
    /// What the filters of all tables may take of memory where they are asked, and half as much the
    /// keys of new tables; a table beyond is one without a filter. Default 64 MiB: some 50 million
    /// keys.
    pub max_filter_bytes: u64,
}

impl Default for DedupOptions {
    fn default() -> Self {
        Self {
            mode: None,
            threshold: ExtensionThreshold::Auto,
            parameters: DedupParameters::default(),
            max_filter_bytes: 64 * 1024 * 1024,
        }
    }
}

impl DedupOptions {
    pub(crate) fn validate(&self) -> Result<()> {
        self.parameters.validate().map_err(|error| Error::invalid("dedup", error.to_string()))?;
        if matches!(self.threshold, ExtensionThreshold::At(_)) && self.mode == Some(DedupMode::Off) {
            let problem = "nothing counts duplicates that it could be compared with; choose a mode, or no threshold";
            return Err(Error::invalid("dedup.threshold", problem));
        }
        if let Some(DedupMode::Triggered { interval }) = self.mode
            && !(Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&interval)
        {
            return Err(Error::invalid("dedup.interval", format!("{interval:?} is not from 1 s to 1 h")));
        }
        Ok(())
    }
}

/// What one level holds that upper ones have replaced, as estimated.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize)]
pub struct DedupLevel {
    /// Versions that a newer one in a level above shadows, or within L0 in a newer table.
    pub shadowed_keys: u64,
    /// What they take: in tables, or in the value log where values are separated.
    pub shadowed_bytes: u64,
}

/// What a store knows of its duplicates, and has done about them since it was opened.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DedupProperties {
    /// Entries of all tables.
    pub total_keys: u64,
    /// Of all tables, versions that a newer one in another table shadows, as estimated.
    pub duplicate_keys: u64,
    /// One standard deviation of that estimate by the estimate; `None` where nothing was sampled
    /// twice.
    pub relative_error: Option<f64>,
    /// What shadowed versions take, as estimated.
    pub shadowed_bytes: u64,
    /// The same by level, L0 first. What shadows in a table that has just gone is in none.
    pub levels: Vec<DedupLevel>,
    /// Tables that carry no samples: what shadows in them is not counted.
    pub unsampled_tables: u64,
    /// Tables without a filter in memory, where filters are asked: what shadows in them is not
    /// found by a check. [`DedupOptions::max_filter_bytes`] had no room for theirs, or they carry
    /// none.
    pub unfiltered_tables: u64,
    /// Checks after compactions (or at intervals).
    pub checks: u64,
    /// Compactions that were not looked at because too many had ended meanwhile.
    pub checks_dropped: u64,
    /// Checks that extended nothing, by the
    /// [name of the reason](ecotone_policy::dedup::decide::Why::name). Only with a threshold.
    pub checks_left: BTreeMap<&'static str, u64>,
    /// Checks that found enough to extend a compaction, or whose range waits for a merge already.
    pub extensions: u64,
    /// Merges that were made for them.
    pub merges: u64,
    /// Merges that were given up because RocksDB compacted some of their tables meanwhile.
    pub merges_aborted: u64,
    /// Times that a merge was deferred, by reason: for the sake of writers
    /// ([`Forbidden::name`](ecotone_policy::dedup::forecast::Forbidden::name)); `no-free_space`
    /// beside what it replaces; `tables-busy`: other compactions had its tables; `backed-off`:
    /// those before it freed too little, or failed. Counted once until the reason is another one or
    /// something was merged.
    pub merges_deferred: BTreeMap<&'static str, u64>,
    /// Stale versions that merges were expected to free.
    pub expected_keys: u64,
    /// Those that they freed.
    pub found_keys: u64,
    /// Bytes of tables that merges read.
    pub read_bytes: u64,
    /// Bytes of tables that merges wrote.
    pub written_bytes: u64,
    /// Processor time of the checks, in microseconds.
    pub check_cpu_us: u64,
    /// Processor time of collecting samples and filters in flushes and compactions, by timing a
    /// part of it, and of keeping them in memory, in microseconds.
    pub sketch_cpu_us: u64,
    /// Processor time of the merges, in microseconds.
    pub merge_cpu_us: u64,
    /// Whether a merge runs now, or an extension waits for its turn.
    pub is_busy: bool,
}

impl DedupProperties {
    /// What stays to be told once the store is closed: what it has done.
    #[must_use]
    pub fn of_closed(self) -> Self {
        Self {
            total_keys: 0,
            duplicate_keys: 0,
            relative_error: None,
            shadowed_bytes: 0,
            levels: Vec::new(),
            unsampled_tables: 0,
            unfiltered_tables: 0,
            is_busy: false,
            ..self
        }
    }
}

impl AddAssign for DedupProperties {
    /// Of several stores.
    fn add_assign(&mut self, other: Self) {
        let Self {
            total_keys,
            duplicate_keys,
            relative_error,
            shadowed_bytes,
            levels,
            unsampled_tables,
            unfiltered_tables,
            checks,
            checks_dropped,
            checks_left,
            extensions,
            merges,
            merges_aborted,
            merges_deferred,
            expected_keys,
            found_keys,
            read_bytes,
            written_bytes,
            check_cpu_us,
            sketch_cpu_us,
            merge_cpu_us,
            is_busy,
        } = other;
        // Errors of independent samples, each by what it counts.
        let parts = [(self.relative_error, self.duplicate_keys), (relative_error, duplicate_keys)];
        let squares = parts.map(|(error, keys)| (error.unwrap_or(0.0) * keys as f64).powi(2));
        let all = (self.duplicate_keys + duplicate_keys) as f64;
        let is_known = self.relative_error.is_some() || relative_error.is_some();
        self.relative_error = (is_known && all > 0.0).then(|| squares.iter().sum::<f64>().sqrt() / all);
        self.total_keys += total_keys;
        self.duplicate_keys += duplicate_keys;
        self.shadowed_bytes += shadowed_bytes;
        if self.levels.len() < levels.len() {
            self.levels.resize(levels.len(), DedupLevel::default());
        }
        for (sum, level) in self.levels.iter_mut().zip(levels) {
            sum.shadowed_keys += level.shadowed_keys;
            sum.shadowed_bytes += level.shadowed_bytes;
        }
        self.unsampled_tables += unsampled_tables;
        self.unfiltered_tables += unfiltered_tables;
        self.checks += checks;
        self.checks_dropped += checks_dropped;
        for (reason, count) in checks_left {
            *self.checks_left.entry(reason).or_default() += count;
        }
        self.extensions += extensions;
        self.merges += merges;
        self.merges_aborted += merges_aborted;
        for (reason, count) in merges_deferred {
            *self.merges_deferred.entry(reason).or_default() += count;
        }
        self.expected_keys += expected_keys;
        self.found_keys += found_keys;
        self.read_bytes += read_bytes;
        self.written_bytes += written_bytes;
        self.check_cpu_us += check_cpu_us;
        self.sketch_cpu_us += sketch_cpu_us;
        self.merge_cpu_us += merge_cpu_us;
        self.is_busy |= is_busy;
    }
}

impl DedupProperties {
    /// DUP_RATIO of the whole store: entries for each stale version; `None` where none is known.
    pub fn ratio(&self) -> Option<f64> {
        (self.duplicate_keys > 0).then(|| self.total_keys as f64 / self.duplicate_keys as f64)
    }
}
