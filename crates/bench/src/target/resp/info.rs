//! What a server tells of itself (INFO).

use std::collections::BTreeMap;

/// The answer to INFO. What a server does not tell is none, never zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerInfo(BTreeMap<String, String>);

/// The field by which each kind of server tells its version. Those that call themselves Redis as
/// well come first.
const VERSIONS: [(&str, &str); 5] = [
    ("ecotone_version", "ecotone"),
    ("kvrocks_version", "kvrocks"),
    ("dragonfly_version", "dragonfly"),
    ("valkey_version", "valkey"),
    ("redis_version", "redis"),
];

impl ServerInfo {
    /// Reads `name:value` lines; other lines are passed over.
    pub fn parse(text: &str) -> Self {
        let pairs = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(':'));
        Self(pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }

    /// The kind of server and its version, as far as it tells.
    pub fn kind(&self) -> (&'static str, &str) {
        let found = VERSIONS.into_iter().find_map(|(field, kind)| Some((kind, self.text(field)?)));
        found.unwrap_or(("unknown", ""))
    }

    /// Whether it is one of ours.
    pub fn is_ecotone(&self) -> bool {
        self.kind().0 == "ecotone"
    }

    /// A field as the server reported it.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.0.get(field).map(String::as_str)
    }

    /// A field that is a number.
    pub fn number(&self, field: &str) -> Option<f64> {
        self.text(field)?.parse().ok().filter(|number: &f64| number.is_finite())
    }

    /// How much a sum has grown since `before`; none if one of the two does not tell, or it began
    /// anew in between.
    pub fn growth(&self, before: &ServerInfo, field: &str) -> Option<f64> {
        let (now, then) = (self.number(field)?, before.number(field)?);
        (now >= then).then_some(now - then)
    }

    /// Processor seconds of the server's process since it began.
    pub fn cpu_seconds(&self) -> Option<f64> {
        Some(self.number("used_cpu_user")? + self.number("used_cpu_sys")?)
    }

    /// Whether the store behind it flushes, compacts or collects; a server that does not report it
    /// counts as idle.
    pub fn is_busy(&self) -> bool {
        const WORK: [&str; 6] = [
            "memtables_waiting",
            "running_flushes",
            "running_compactions",
            "value_log_gc_segments",
            "aof_rewrite_in_progress",
            "rdb_bgsave_in_progress",
        ];
        WORK.into_iter().any(|field| self.number(field).is_some_and(|number| number > 0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_apart() {
        for (text, kind) in [
            ("# Server\r\nredis_version:7.0.15\r\necotone_version:0.1.0\r\n", ("ecotone", "0.1.0")),
            ("redis_version:7.0.15\r\nos:Linux", ("redis", "7.0.15")),
            ("redis_version:4.0.0\r\nkvrocks_version:2.9.0\r\n", ("kvrocks", "2.9.0")),
            ("nothing of the kind", ("unknown", "")),
        ] {
            assert_eq!(ServerInfo::parse(text).kind(), kind);
        }
    }

    #[test]
    fn what_is_not_told_is_none_and_not_zero() {
        let before = ServerInfo::parse("stall_ms_total:10\r\nused_cpu_sys:1.0\r\nodd:nan\r\nenergy_joules_total:5\r\n");
        let after = ServerInfo::parse("stall_ms_total:25\r\nused_cpu_user:1.0\r\nodd:nan\r\nenergy_joules_total:1\r\n");
        assert_eq!(after.growth(&before, "stall_ms_total"), Some(15.0));
        assert_eq!(after.growth(&before, "flushes_total"), None);
        assert_eq!(after.growth(&before, "energy_joules_total"), None, "it was started again in between");
        assert_eq!((after.cpu_seconds(), after.number("odd")), (None, None));
        assert!(!after.is_busy());
        assert!(ServerInfo::parse("running_compactions:1").is_busy());
    }
}
