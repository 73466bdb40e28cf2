//! Profiles: which servers a lab has and how their stores are set up. A TOML file or one that is
//! built in.
//!
//! A profile says either `ghz` for every server (relative; the lab scales all of them to the host)
//! or `speed` for every server (absolute, in host cores). Unknown keys and impossible values are
//! refused with file, key and reason.

use std::{collections::BTreeSet, fs, path::Path};

use ecotone_engine::{Compression, Durability};
use serde::{Deserialize, Serialize};

use crate::error::LabError;

/// Most servers of a profile. Each is a process with a store; the lab is for one machine.
const MAX_SERVERS: usize = 32;
/// Most cores of a server.
const MAX_CORES: u32 = 64;
/// Longest profile file, so that a wrong path is not read into memory.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The profiles that need no file, as (name, text).
const BUILT_IN: [(&str, &str); 3] = [
    ("three-tier", include_str!("../profiles/three-tier.toml")),
    ("six", include_str!("../profiles/six.toml")),
    ("pair", include_str!("../profiles/pair.toml")),
];

/// The servers of a lab and how their stores are set up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name in reports.
    pub name: String,
    /// What it stands for, in a sentence or two.
    #[serde(default)]
    pub about: String,
    /// Sizes of the workloads.
    #[serde(default)]
    pub workload: WorkloadSizes,
    /// Settings of every store.
    #[serde(default)]
    pub store: StoreProfile,
    /// The servers; the first is the coordinator.
    pub servers: Vec<ServerProfile>,
}

/// One server of a profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerProfile {
    /// Unique; letters, digits, `-` and `_`.
    pub name: String,
    /// Servers of equal strength share a tier: `high`, `medium`, `low`.
    pub tier: String,
    /// Emulated cores.
    pub cores: u32,
    /// Cores it may be reduced to where the host is too small for `cores`; default: `cores`, no
    /// reduction.
    #[serde(default)]
    pub min_cores: Option<u32>,
    /// Clock relative to the other servers of the profile. Either this or `speed`.
    #[serde(default)]
    pub ghz: Option<f64>,
    /// Speed of each core in host cores, (0, 1]. Either this or `ghz`.
    #[serde(default)]
    pub speed: Option<f64>,
    /// Watts of one busy core.
    pub active_watts: f64,
    /// Watts of the whole server when nothing runs.
    pub idle_watts: f64,
    /// Jobs of other servers it runs at once.
    pub worker_slots: u32,
}

/// Keys of each server's store, scaled to the host as the sizes are
/// ([`StoreProfile::sizes_at_scale`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkloadSizes {
    /// For workloads that fill an empty store.
    pub keys_filled: u64,
    /// For workloads that load the store first.
    pub keys_loaded: u64,
}

impl Default for WorkloadSizes {
    fn default() -> Self {
        WorkloadSizes { keys_filled: 1_000_000, keys_loaded: 200_000 }
    }
}

/// Settings of every store, passed to the servers as `--store-option key=value`. What is not set
/// stays at the server's default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreProfile {
    /// Size of a memtable.
    pub memtable_bytes: Option<u64>,
    /// Memtables, the active one included, before writers wait for a flush.
    pub memtable_count: Option<u32>,
    /// Target size of level 1.
    pub level_base_bytes: Option<u64>,
    /// Whether level sizes are counted from the last level upwards instead of from the first
    /// downwards.
    pub dynamic_levels: Option<bool>,
    /// Size of a table below level 0.
    pub target_file_bytes: Option<u64>,
    /// If set, the sizes above, and the keys of the workload, stand for a host whose scale (host
    /// cores per GHz) is this one; on another host they are multiplied with the quotient of the
    /// scales, so that stores behave alike and only the clock differs.
    pub sizes_at_scale: Option<f64>,
    /// If set, the sizes and keys stand for runs of this many seconds; in a shorter one they are
    /// smaller in proportion, so that it shows the same. Longer runs keep them.
    pub sizes_at_seconds: Option<u64>,
    /// Tables in level 0 that begin a compaction.
    pub l0_compaction_trigger: u32,
    /// Tables in level 0 that slow writes: the papers' stall threshold (WST).
    pub l0_slowdown_trigger: u32,
    /// Tables in level 0 that stop writes.
    pub l0_stop_trigger: u32,
    /// Compactions that a server runs at once for itself.
    pub background_compactions: u32,
    /// Compression of tables: `none`, `lz4` or `zstd`.
    pub compression: Option<String>,
    /// Durability of writes: `none`, `everysec` or `always`.
    pub durability: Option<String>,
}

impl Default for StoreProfile {
    /// RocksDB's defaults, as in the papers.
    fn default() -> Self {
        StoreProfile {
            memtable_bytes: None,
            memtable_count: None,
            level_base_bytes: None,
            dynamic_levels: None,
            target_file_bytes: None,
            sizes_at_scale: None,
            sizes_at_seconds: None,
            l0_compaction_trigger: 4,
            l0_slowdown_trigger: 20,
            l0_stop_trigger: 36,
            background_compactions: 1,
            compression: None,
            durability: None,
        }
    }
}

impl Profile {
    /// The names of the profiles that need no file.
    pub fn built_in_names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Reads the built-in profile of that name, else the file at that path.
    ///
    /// # Errors
    /// [`LabError::Io`] if the file cannot be read, [`LabError::Profile`] if it is wrong.
    pub fn load(name_or_path: &str) -> Result<Profile, LabError> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_path) {
            return Profile::parse(text, name);
        }
        let path = Path::new(name_or_path);
        let length = fs::metadata(path).map(|metadata| metadata.len()).map_err(LabError::io(
            "no built-in profile (three-tier, six, pair) has this name, and cannot read a file",
            path,
        ))?;
        if length > MAX_FILE_BYTES {
            return Err(wrong(
                name_or_path,
                "file",
                format!("is {length} bytes long, at most {MAX_FILE_BYTES} are read"),
            ));
        }
        Profile::parse(&fs::read_to_string(path).map_err(LabError::io("cannot read profile", path))?, name_or_path)
    }

    /// Reads a profile's text; `file` is its name in errors.
    ///
    /// # Errors
    /// [`LabError::Profile`] that names file, key and reason.
    pub fn parse(text: &str, file: &str) -> Result<Profile, LabError> {
        let profile: Profile = toml::from_str(text).map_err(|error| {
            let key = error.span().map_or_else(|| "file".to_owned(), |span| key_at(text, span.start));
            wrong(file, &key, error.message().to_owned())
        })?;
        profile.check(file)?;
        Ok(profile)
    }

    /// The server that gets the co-located threads: the first of tier `high`.
    pub fn colocated_server(&self) -> Option<usize> {
        colocated_server(self.servers.iter().map(|server| server.tier.as_str()))
    }

    fn check(&self, file: &str) -> Result<(), LabError> {
        if self.name.trim().is_empty() {
            return Err(wrong(file, "name", "must not be empty"));
        }
        if self.servers.is_empty() || self.servers.len() > MAX_SERVERS {
            return Err(wrong(
                file,
                "servers",
                format!("must name 1 to {MAX_SERVERS} servers, there are {}", self.servers.len()),
            ));
        }
        let mut names = BTreeSet::new();
        for (index, server) in self.servers.iter().enumerate() {
            let at = |key: &str| format!("servers[{index}].{key}");
            server.check(|key, reason| wrong(file, &at(key), reason))?;
            if !names.insert(&server.name) {
                return Err(wrong(file, &at("name"), format!("`{}` is used by another server", server.name)));
            }
            if server.speed.is_some() != self.servers[0].speed.is_some() {
                return Err(wrong(file, &at("speed"), "either every server has `speed` or every server has `ghz`"));
            }
        }
        self.store.check(|key, reason| wrong(file, &format!("store.{key}"), reason))?;
        for (key, keys) in [("keys_filled", self.workload.keys_filled), ("keys_loaded", self.workload.keys_loaded)] {
            if keys == 0 {
                return Err(wrong(file, &format!("workload.{key}"), "must be at least 1"));
            }
        }
        Ok(())
    }
}

impl ServerProfile {
    fn check(&self, wrong: impl Fn(&str, String) -> LabError) -> Result<(), LabError> {
        let is_name = |text: &str| {
            !text.is_empty()
                && text.len() <= 32
                && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        };
        for (key, text) in [("name", &self.name), ("tier", &self.tier)] {
            if !is_name(text) {
                return Err(wrong(key, format!("`{text}` must be 1 to 32 letters, digits, `-` or `_`")));
            }
        }
        if self.cores == 0 || self.cores > MAX_CORES {
            return Err(wrong("cores", format!("must be 1 to {MAX_CORES}, is {}", self.cores)));
        }
        if self.min_cores.is_some_and(|least| least == 0 || least > self.cores) {
            return Err(wrong("min_cores", format!("must be 1 to `cores` ({})", self.cores)));
        }
        match (self.ghz, self.speed) {
            (Some(_), Some(_)) => {
                return Err(wrong("speed", "is given beside `ghz`; give only one of them".to_owned()));
            }
            (None, None) => {
                return Err(wrong("ghz", "is missing; give `ghz` (relative) or `speed` (host cores)".to_owned()));
            }
            (Some(ghz), None) if !(ghz > 0.0 && ghz <= 100.0) => {
                return Err(wrong("ghz", format!("must be above 0 and at most 100, is {ghz}")));
            }
            (None, Some(speed)) if !(speed > 0.0 && speed <= 1.0) => {
                return Err(wrong("speed", format!("must be above 0 and at most 1 host core, is {speed}")));
            }
            _ => {}
        }
        for (key, watts) in [("active_watts", self.active_watts), ("idle_watts", self.idle_watts)] {
            if !(0.0..=10_000.0).contains(&watts) {
                return Err(wrong(key, format!("must be 0 to 10000, is {watts}")));
            }
        }
        if self.worker_slots > MAX_CORES {
            return Err(wrong("worker_slots", format!("must be at most {MAX_CORES}")));
        }
        Ok(())
    }
}

impl StoreProfile {
    fn check(&self, wrong: impl Fn(&str, String) -> LabError) -> Result<(), LabError> {
        /// RocksDB raises a smaller memtable to this in silence.
        const MIN_BYTES: u64 = 64 << 10;
        let sizes = [
            ("memtable_bytes", self.memtable_bytes),
            ("level_base_bytes", self.level_base_bytes),
            ("target_file_bytes", self.target_file_bytes),
        ];
        for (key, bytes) in sizes {
            if bytes.is_some_and(|bytes| bytes < MIN_BYTES) {
                return Err(wrong(key, format!("must be at least {MIN_BYTES}")));
            }
        }
        if self.sizes_at_scale.is_some_and(|scale| !(scale > 0.0 && scale.is_finite())) {
            return Err(wrong("sizes_at_scale", "must be above 0".to_owned()));
        }
        if self.sizes_at_seconds == Some(0) {
            return Err(wrong("sizes_at_seconds", "must be at least 1".to_owned()));
        }
        if self.memtable_count.is_some_and(|count| count < 2) {
            return Err(wrong("memtable_count", "must be at least 2".to_owned()));
        }
        if self.background_compactions == 0 || self.background_compactions > MAX_CORES {
            return Err(wrong("background_compactions", format!("must be 1 to {MAX_CORES}")));
        }
        if self.l0_compaction_trigger == 0 {
            return Err(wrong("l0_compaction_trigger", "must be at least 1".to_owned()));
        }
        if self.l0_slowdown_trigger < self.l0_compaction_trigger {
            return Err(wrong("l0_slowdown_trigger", "must not be below l0_compaction_trigger".to_owned()));
        }
        if self.l0_stop_trigger < self.l0_slowdown_trigger {
            return Err(wrong("l0_stop_trigger", "must not be below l0_slowdown_trigger".to_owned()));
        }
        for (key, value, known) in [
            ("compression", &self.compression, Compression::ALL.map(Compression::name)),
            ("durability", &self.durability, Durability::ALL.map(Durability::name)),
        ] {
            if let Some(value) = value.as_deref().filter(|value| !known.contains(value)) {
                return Err(wrong(key, format!("`{value}` is none of {}", known.join(", "))));
            }
        }
        Ok(())
    }
}

fn wrong(file: &str, key: &str, reason: impl Into<String>) -> LabError {
    LabError::Profile { file: file.to_owned(), key: key.to_owned(), reason: reason.into() }
}

/// Names the key at a byte of a TOML text, such as `line 12, servers[1].cores`, for errors of the
/// parser, which knows only the position.
fn key_at(text: &str, offset: usize) -> String {
    let mut table = String::new();
    let mut array_lengths = std::collections::BTreeMap::<&str, usize>::new();
    let mut begin = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let trimmed = line.trim();
        if let Some(name) =
            trimmed.strip_prefix("[[").and_then(|rest| rest.split_once("]]")).map(|(name, _)| name.trim())
        {
            let count = array_lengths.entry(name).or_default();
            table = format!("{name}[{count}]");
            *count += 1;
        } else if let Some(name) =
            trimmed.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(name, _)| name.trim())
        {
            table = name.to_owned();
        }
        begin += line.len();
        if offset < begin || begin == text.len() {
            let key = trimmed.split_once('=').map_or("", |(key, _)| key.trim());
            let dot = if table.is_empty() || key.is_empty() { "" } else { "." };
            return format!("line {}, {table}{dot}{key}", number + 1).trim_end_matches([',', ' ']).to_owned();
        }
    }
    "line 1".to_owned()
}

/// The server that gets the co-located threads: the first of tier `high`, as the papers load their
/// largest one.
pub(crate) fn colocated_server<'a>(mut tiers: impl Iterator<Item = &'a str>) -> Option<usize> {
    tiers.position(|tier| tier == "high")
}

/// From 0 to `threads` in equal steps, each level for an equal time.
pub(crate) fn colocated_steps(seconds: u64, threads: u32) -> Vec<(f64, u32)> {
    (0..=threads).map(|level| (seconds as f64 * f64::from(level) / f64::from(threads + 1), level)).collect()
}
