//! One answer of a server to INFO, as typed figures. What it did not report is `None`, never a
//! guess.

use std::collections::BTreeMap;

use super::info::{Info, count, fields, number};

/// Servers that are taken from one answer: more than a coordinator shows.
const MAX_SERVERS: usize = 1024;

/// Reasons of declines and fallbacks that are taken from one answer.
const MAX_REASONS: usize = 64;

/// No tree is deeper.
const MAX_LEVELS: usize = 64;

/// Duties that are taken from one answer.
const MAX_DUTIES: usize = 32;

/// Silence after which a server counts as gone: reports come once a second, and a coordinator gives
/// no jobs after 3 s.
const GONE_AFTER_MS: u64 = 5_000;

/// What one server said.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::top) struct Snapshot {
    /// When it was said, in seconds of the asker's clock.
    pub at_s: f64,
    pub version: String,
    /// Changes with each start of the server.
    pub run: String,
    pub name: String,
    pub role: String,
    pub policy: String,
    /// Where the coordinator is, if it is another server.
    pub coordinator: Option<String>,
    pub uptime_s: Option<u64>,
    pub servers: Vec<ServerState>,
    pub energy_source: String,
    /// How fast cores are to run; `None`: it is not said.
    pub power_mode: Option<String>,
    /// The server's share of the cap, and whether it is kept.
    pub power_cap: Option<(f64, Option<bool>)>,
    /// Joules since the start, by duty.
    pub joules_by_duty: BTreeMap<String, f64>,
    pub declined: BTreeMap<String, u64>,
    pub fallen_back: BTreeMap<String, u64>,
    pub values: Option<Values>,
    pub duplicates: Option<Duplicates>,
    pub writes_refused: Option<bool>,
    /// Of a server with an identity.
    pub control: Option<Control>,
    /// Where shards have copies, or are to have some.
    pub copies: Option<Copies>,
}

/// Copies of shards, as the server that was asked knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::top) struct Copies {
    /// How many a shard should have.
    pub wanted: u64,
    /// Who must have a write before it is acknowledged.
    pub level: String,
    pub here: u64,
    pub here_in_sync: u64,
    /// Of the copy here that is farthest behind.
    pub max_lag_bytes: u64,
    pub max_lag_ms: u64,
    /// Of all copies here that are being made.
    pub seeding_bytes: u64,
    pub seeding_of_bytes: u64,
    pub shards_unprotected: u64,
    pub shards_incomplete: u64,
    /// What is wrong with a copy here.
    pub trouble: Option<String>,
}

impl Copies {
    fn of(info: &Info) -> Option<Self> {
        let count = |name: &str| info.count(&format!("copies_{name}")).unwrap_or(0);
        Some(Copies {
            wanted: info.count("copies_wanted")?,
            level: info.text("copies_level").unwrap_or_default(),
            here: count("here"),
            here_in_sync: count("here_in_sync"),
            max_lag_bytes: count("max_lag_bytes"),
            max_lag_ms: count("max_lag_ms"),
            seeding_bytes: count("seeding_bytes"),
            seeding_of_bytes: count("seeding_of_bytes"),
            shards_unprotected: count("shards_unprotected"),
            shards_incomplete: count("shards_incomplete"),
            trouble: info.text("copies_trouble"),
        })
    }
}

/// The control plane, as the server that was asked knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::top) struct Control {
    /// Who leads, if that is known.
    pub leader: Option<String>,
    pub term: u64,
    /// Their names, with commas between them.
    pub voters: String,
    pub map_version: u64,
    pub shards: u64,
    pub shards_owned: u64,
    /// Until the server's certificate ends, by its own clock; negative once it has.
    pub certificate_left_s: Option<i64>,
    /// Why it takes no part any more.
    pub stopped: Option<String>,
}

impl Control {
    fn of(info: &Info) -> Option<Self> {
        let count = |name: &str| info.count(&format!("control_{name}")).unwrap_or(0);
        let now_s = info.count("server_time_usec").map(|now_us| now_us / 1_000_000);
        let ends_s = info.count("control_certificate_expiry_seconds");
        let left_s = ends_s.zip(now_s).map(|(ends_s, now_s)| (i128::from(ends_s) - i128::from(now_s)) as i64);
        Some(Control {
            leader: info.text("control_leader"),
            term: info.count("control_term")?,
            voters: info.text("control_voters").unwrap_or_default(),
            map_version: count("map_version"),
            shards: count("shards"),
            shards_owned: count("shards_owned"),
            certificate_left_s: left_s,
            stopped: info.text("control_stopped"),
        })
    }
}

/// A server of the federation, as the one that was asked knows it. Totals count from its start.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::top) struct ServerState {
    pub name: String,
    pub address: String,
    pub role: String,
    pub is_self: bool,
    pub report_age_ms: u64,
    /// `yes`, or why not; only a coordinator knows.
    pub takes_jobs: Option<String>,
    /// From its start to when it counted all this.
    pub uptime_ms: Option<u64>,
    /// `run`, `slowed` or `stopped`.
    pub writers: Option<String>,
    pub l0_tables: Option<u64>,
    pub stall_in_s: Option<f64>,
    pub stall_ms_total: Option<u64>,
    pub ops_per_s: Option<f64>,
    pub operations_total: Option<u64>,
    pub write_bytes_per_s: Option<f64>,
    pub written_bytes_total: Option<u64>,
    pub running_compactions: Option<u64>,
    pub running_offloaded: Option<u64>,
    pub running_worker_jobs: Option<u64>,
    pub cores: Option<f64>,
    pub free_cores: Option<f64>,
    pub frequency_hz: Option<f64>,
    pub watts: Option<f64>,
    pub joules_total: Option<f64>,
    pub energy_source: Option<String>,
    pub store_bytes: Option<u64>,
    pub live_bytes: Option<u64>,
    pub free_bytes: Option<u64>,
    pub offloaded_total: Option<u64>,
    pub taken_total: Option<u64>,
    pub declined_total: Option<u64>,
    pub fallen_back_total: Option<u64>,
}

/// The value log of the server that was asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::top) struct Values {
    pub segments: u64,
    pub bytes: u64,
    pub referenced_bytes: u64,
    pub gc_segments: u64,
    pub gc_bytes_total: u64,
    pub removed_bytes_total: u64,
    pub throttled_ms_total: u64,
}

/// Shadowed versions in the store of the server that was asked, as it estimates them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::top) struct Duplicates {
    pub shadowed_keys: u64,
    pub shadowed_bytes: u64,
    /// The bytes by level.
    pub by_level: BTreeMap<u32, u64>,
    /// Entries for each of them.
    pub dup_ratio: Option<f64>,
    pub error: Option<f64>,
    pub extensions_total: u64,
    pub merges_total: u64,
}

impl Snapshot {
    /// `None` where the text is not an Ecotone server's.
    pub(in crate::top) fn of(info: &Info, at_s: f64) -> Option<Self> {
        let version = info.text("ecotone_version")?;
        let text = |name: &str| info.text(name).unwrap_or_default();
        let reasons = |prefix: &str| -> BTreeMap<String, u64> {
            let all = info.beginning(prefix).filter(|(reason, _)| *reason != "total");
            all.filter_map(|(reason, value)| Some((reason.replace('_', "-"), count(value)?)))
                .take(MAX_REASONS)
                .collect()
        };
        let numbers = (0..MAX_SERVERS)
            .map_while(|number| info.beginning(&format!("server{number}")).find(|(rest, _)| rest.is_empty()));
        let duties = info.beginning("energy_joules_").filter(|(duty, _)| *duty != "total");
        Some(Snapshot {
            at_s,
            version,
            run: text("run_id"),
            name: text("federation_name"),
            role: text("federation_role"),
            policy: text("policy"),
            coordinator: info.text("federation_coordinator"),
            uptime_s: info.count("uptime_in_seconds"),
            servers: numbers.filter_map(|(_, value)| ServerState::of(value)).collect(),
            energy_source: text("energy_source"),
            power_mode: info.text("power_mode"),
            power_cap: info
                .text("power_cap_watts")
                .and_then(|watts| number(&watts))
                .map(|watts| (watts, info.count("power_cap_kept").map(|kept| kept == 1))),
            joules_by_duty: duties
                .filter_map(|(duty, joules)| Some((duty.to_owned(), number(joules)?)))
                .take(MAX_DUTIES)
                .collect(),
            declined: reasons("jobs_declined_"),
            fallen_back: reasons("jobs_fallen_back_"),
            values: info.count("value_log_segments").map(|segments| {
                let count = |name: &str| info.count(&format!("value_log_{name}")).unwrap_or(0);
                Values {
                    segments,
                    bytes: count("bytes"),
                    referenced_bytes: count("referenced_bytes"),
                    gc_segments: count("gc_segments"),
                    gc_bytes_total: count("gc_bytes_total"),
                    removed_bytes_total: count("removed_bytes_total"),
                    throttled_ms_total: count("throttled_ms_total"),
                }
            }),
            duplicates: info.count("shadowed_bytes_estimate").map(|shadowed_bytes| {
                let figure = |name: &str| info.text(name).and_then(|text| number(&text));
                let levels = info
                    .beginning("level")
                    .filter_map(|(level, of)| Some((level.parse().ok()?, count(fields(of).get("shadowed_bytes")?)?)));
                Duplicates {
                    shadowed_keys: info.count("shadowed_keys_estimate").unwrap_or(0),
                    shadowed_bytes,
                    by_level: levels.take(MAX_LEVELS).collect(),
                    dup_ratio: figure("dup_ratio_estimate"),
                    error: figure("dup_ratio_error"),
                    extensions_total: info.count("dedup_extensions_total").unwrap_or(0),
                    merges_total: info.count("dedup_merges_total").unwrap_or(0),
                }
            }),
            writes_refused: info.count("space_writes_refused").map(|refused| refused > 0),
            control: Control::of(info),
            copies: Copies::of(info),
        })
    }
}

impl ServerState {
    fn of(line: &str) -> Option<Self> {
        let fields = fields(line);
        let text = |name: &str| fields.get(name).filter(|text| !text.is_empty()).cloned();
        let float = |name: &str| number(fields.get(name)?);
        let whole = |name: &str| count(fields.get(name)?);
        Some(ServerState {
            name: text("name")?,
            address: text("address").unwrap_or_default(),
            role: text("role").unwrap_or_default(),
            is_self: whole("self") == Some(1),
            report_age_ms: whole("report_age_ms").unwrap_or(0),
            takes_jobs: text("takes_jobs"),
            uptime_ms: whole("uptime_ms"),
            writers: text("writers"),
            l0_tables: whole("l0_tables"),
            stall_in_s: float("stall_in_s"),
            stall_ms_total: whole("stall_ms_total"),
            ops_per_s: float("ops_per_s"),
            operations_total: whole("operations_total"),
            write_bytes_per_s: float("write_bytes_per_s"),
            written_bytes_total: whole("written_bytes_total"),
            running_compactions: whole("running_compactions"),
            running_offloaded: whole("running_offloaded"),
            running_worker_jobs: whole("running_worker_jobs"),
            cores: float("cores"),
            free_cores: float("free_cores"),
            frequency_hz: float("frequency_hz"),
            watts: float("watts"),
            joules_total: float("joules_total"),
            energy_source: text("energy_source"),
            store_bytes: whole("store_bytes"),
            live_bytes: whole("live_bytes"),
            free_bytes: whole("free_bytes"),
            offloaded_total: whole("jobs_offloaded_total"),
            taken_total: whole("jobs_taken_total"),
            declined_total: whole("jobs_declined_total"),
            fallen_back_total: whole("jobs_fallen_back_total"),
        })
    }

    /// It has not reported for a while: its figures are of the past.
    pub(in crate::top) fn is_gone(&self) -> bool {
        self.report_age_ms > GONE_AFTER_MS
    }

    /// Bytes on disk for each byte that lives (SAR); `None` before there is an estimate.
    pub(in crate::top) fn space_amplification(&self) -> Option<f64> {
        let live = self.live_bytes.filter(|live| *live > 0)?;
        Some(self.store_bytes? as f64 / live as f64)
    }
}
