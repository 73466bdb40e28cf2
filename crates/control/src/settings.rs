//! Settings of the whole federation, as they are in the map: which names and values there may be,
//! and what they come to.
//!
//! Pure. Values are checked when an entry sets them ([`check`]), from the feature level on at which
//! all servers do that; what an older build has let in is read as if it were not there. Reading never
//! fails: [`Replication::of`] gives what is in force.

use std::collections::BTreeMap;

use crate::map::{MAX_COPIES, Map};

/// The settings of replication begin so. No others of this beginning may be set.
pub const REPLICATION: &str = "replication.";
/// The least that a copy may lag before it leaves the set: a few messages.
pub const MIN_LAG_BYTES: u64 = 1 << 20;
/// The least that a seed may be limited to: a copy must catch up at some time.
pub const MIN_SEED_BYTES_PER_S: u64 = 64 << 10;

/// The settings of frequencies begin so. No others of this beginning may be set.
pub const POWER: &str = "power.";
/// How fast cores run.
pub const POWER_MODE: &str = "power.mode";
/// The most that all servers together may draw, in watts.
pub const POWER_CAP_WATTS: &str = "power.cap_watts";
/// What `power.mode` may be.
pub const POWER_MODES: [&str; 3] = ["all-high", "all-low", "concerto"];
/// The highest cap: a power station.
pub const MAX_CAP_WATTS: u64 = 1_000_000_000;

/// How many copies each shard should have.
pub const COPIES: &str = "replication.copies";
const LEVEL: &str = "replication.level";
/// How many copies must be in sync for level `all`.
pub const MIN_IN_SYNC: &str = "replication.min_in_sync";
const MAX_LAG_BYTES: &str = "replication.max_lag_bytes";
const MAX_STALENESS_MS: &str = "replication.max_staleness_ms";
const SEED_BYTES_PER_S: &str = "replication.seed_bytes_per_s";

/// Who must have a write before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The primary.
    One,
    /// A majority of all copies that there should be.
    Quorum,
    /// Every member of the in-sync set.
    All,
}

impl Level {
    /// The level of this name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "one" => Some(Self::One),
            "quorum" => Some(Self::Quorum),
            "all" => Some(Self::All),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Quorum => "quorum",
            Self::All => "all",
        }
    }
}

/// What is in force for the copies of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replication {
    /// How many copies a shard should have.
    pub copies: usize,
    /// What writes need that name no level.
    pub level: Level,
    /// How many copies must be in sync for `all`.
    pub min_in_sync: usize,
    /// A copy that lacks more leaves the in-sync set.
    pub max_lag_bytes: u64,
    /// Reads at a replica that is staler are refused.
    pub max_staleness_ms: Option<u64>,
    /// What a seed may take of the network.
    pub seed_bytes_per_s: Option<u64>,
}

impl Default for Replication {
    fn default() -> Self {
        Self {
            copies: 1,
            level: Level::One,
            min_in_sync: 1,
            max_lag_bytes: 64 << 20,
            max_staleness_ms: None,
            seed_bytes_per_s: None,
        }
    }
}

impl Replication {
    /// What `map` says, and where it says nothing that may be set, the default.
    pub fn of(map: &Map) -> Self {
        let default = Self::default();
        let number = |name| number(&map.settings, name);
        let copies = number(COPIES).map_or(default.copies, |copies| copies as usize);
        let level = map.settings.get(LEVEL).and_then(|name| Level::named(name));
        let usual = if copies > 1 { Level::Quorum } else { default.level };
        Self {
            copies,
            level: level.unwrap_or(usual),
            min_in_sync: number(MIN_IN_SYNC).map_or(default.min_in_sync, |members| members as usize),
            max_lag_bytes: number(MAX_LAG_BYTES).unwrap_or(default.max_lag_bytes),
            max_staleness_ms: number(MAX_STALENESS_MS),
            seed_bytes_per_s: number(SEED_BYTES_PER_S),
        }
    }
}

/// What is in force for the frequencies of cores. Where nothing is set each server does what it is
/// configured to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Power {
    /// One of [`POWER_MODES`].
    pub mode: Option<String>,
    /// The most that all servers together may draw.
    pub cap_watts: Option<u64>,
}

impl Power {
    /// What `map` says that may be set.
    pub fn of(map: &Map) -> Self {
        let said = |name: &str| map.settings.get(name).filter(|value| check_power(name, value).is_ok());
        Self { mode: said(POWER_MODE).cloned(), cap_watts: said(POWER_CAP_WATTS).and_then(|value| value.parse().ok()) }
    }
}

/// As a number is printed: no sign, no space, no zeros before it.
fn is_number(value: &str, first: u64, last: u64) -> bool {
    value.parse().is_ok_and(|number: u64| (first..=last).contains(&number) && number.to_string() == value)
}

/// Whether a setting of frequencies may have this value. The log lets any in, since builds that do
/// not know these settings do; so this is asked before an entry is proposed, and when it is read.
///
/// # Errors
/// With what it should be.
pub fn check_power(name: &str, value: &str) -> Result<(), &'static str> {
    let (may_be, why) = match name {
        POWER_MODE => (POWER_MODES.contains(&value), "`all-high`, `all-low` or `concerto`"),
        POWER_CAP_WATTS => (is_number(value, 1, MAX_CAP_WATTS), "a number of watts, at least 1"),
        _ => (!name.starts_with(POWER), "another name: there is no such setting of power"),
    };
    if may_be { Ok(()) } else { Err(why) }
}

/// A number that may be set.
fn number(settings: &BTreeMap<String, String>, name: &str) -> Option<u64> {
    let value = settings.get(name).filter(|value| check(name, value).is_ok())?;
    value.parse().ok()
}

/// Whether a setting of this name may have this value. Settings that do not belong to replication
/// may have any.
///
/// # Errors
/// With what it should be.
pub fn check(name: &str, value: &str) -> Result<(), &'static str> {
    let is_in = |first: u64, last: u64| is_number(value, first, last);
    let (may_be, why) = match name {
        COPIES => (is_in(1, MAX_COPIES as u64), "a number of copies from 1 to 7"),
        MIN_IN_SYNC => (is_in(1, MAX_COPIES as u64), "a number of copies from 1 to 7"),
        LEVEL => (Level::named(value).is_some(), "`one`, `quorum` or `all`"),
        MAX_LAG_BYTES => (is_in(MIN_LAG_BYTES, u64::MAX), "a number of bytes, at least 1048576"),
        MAX_STALENESS_MS => (is_in(1, u64::MAX), "a number of milliseconds, at least 1"),
        SEED_BYTES_PER_S => (is_in(MIN_SEED_BYTES_PER_S, u64::MAX), "a number of bytes, at least 65536"),
        _ => (!name.starts_with(REPLICATION), "another name: replication has no such setting"),
    };
    if may_be { Ok(()) } else { Err(why) }
}
