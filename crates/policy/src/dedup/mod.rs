//! Compaction extended where duplicates are: what to count, when that is worth a merge, which
//! tables it takes, and when it must not run.
//!
//! A compaction stops at the level it writes to; older versions of its keys live on below it, and
//! their values with them, until something compacts those levels. After every compaction the keys
//! that it wrote are therefore looked for in the levels that it did not reach (`DedupCheckout` of
//! "Deduplication Adapted CaseDB for Edge Computing", section 3), and where enough of them are
//! there to be sure of it, tables of their range are merged down to the last level: those that free
//! the most for what that costs ([`candidates`]). All of that is decided here, from what tables
//! tell of their keys, without reading data.
//!
//! **DUP_RATIO** = TOTAL_KEYS / DUP_KEYS (paper, section 3, Equation 1): the entries that a merge
//! would rewrite for each stale version that it frees. It is never below 1, and the lower, the
//! cheaper is what a merge frees. At or below [`DedupThreshold`] one is made.

pub mod back_off;
pub mod candidates;
pub mod decide;
pub mod deferral;
pub mod estimate;
mod extension;
pub mod filter;
pub mod forecast;
pub mod levels;
mod levels_compared;
pub mod machine;
pub mod ordered;
pub mod plan;
pub mod sketches;

pub use machine::DedupMachine;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use ecotone_types::units::{Bytes, Seconds};

/// The DUP_RATIO up to which tables are merged: 2 to 100 entries rewritten for each stale version
/// freed. The paper explores 10 to 100, with keys apart from values; where values stand with their
/// keys, entries are large, and lower ones are of use.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct DedupThreshold(f64);

impl DedupThreshold {
    /// The least: a merge halves what it takes.
    pub const MIN: f64 = 2.0;
    /// The greatest.
    pub const GREATEST: f64 = 100.0;

    /// Entries rewritten for each version freed.
    pub const fn ratio(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for DedupThreshold {
    type Error = Error;

    fn try_from(ratio: f64) -> Result<Self> {
        if (Self::MIN..=Self::GREATEST).contains(&ratio) {
            return Ok(Self(ratio));
        }
        Err(Error::Parameter { name: "dedup.threshold", value: ratio.to_string(), expected: "from 2 to 100" })
    }
}

impl From<DedupThreshold> for f64 {
    fn from(threshold: DedupThreshold) -> Self {
        threshold.0
    }
}

impl fmt::Display for DedupThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Constants of the extension of compactions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DedupParameters {
    /// A merge takes no more bytes of tables than that; what needs more is not merged by
    /// this, until compactions have brought it further down. Default 64 MiB, at least 1 MiB.
    pub max_merge_bytes: Bytes,
    /// So long after a check the next one waits, and looks at all that has been compacted since:
    /// what is compacted again meanwhile is not looked at in vain. Merges rest longer than that.
    /// Default 0.25 s, 0 or more.
    pub check_interval: Seconds,
    /// An estimate that rests on fewer sampled duplicates is not acted upon: its standard error is
    /// above one part in the root of their number. Default 44 (15 %), at least 1.
    pub min_sampled_duplicates: u64,
    /// A merge that freed less than this share of what was expected makes the next ones wait.
    /// Default 0.5, more than 0 and at most 1.
    pub min_found_share: f64,
    /// How long they wait the first time; twice as long each time after. Default 1 s, more than 0.
    pub first_pause: Seconds,
    /// How long at most. Default 600 s, at least `first_pause`: while a snapshot is held, merges
    /// rewrite `max_merge_bytes` so seldom.
    pub longest_pause: Seconds,
    /// A merge may take longer than predicted: by this factor before writers would stall. Default
    /// 1.5, at least 1.
    pub stall_margin: f64,
    /// The rest after a merge by the time that it took. Default 1: at most half a core. 0 to 1000.
    pub rest_share: f64,
}

impl Default for DedupParameters {
    fn default() -> Self {
        Self {
            max_merge_bytes: Bytes::from_mib(64),
            check_interval: Seconds(0.25),
            min_sampled_duplicates: 44,
            min_found_share: 0.5,
            first_pause: Seconds(1.0),
            longest_pause: Seconds(600.0),
            stall_margin: 1.5,
            rest_share: 1.0,
        }
    }
}

impl DedupParameters {
    /// Checks every range.
    ///
    /// # Errors
    ///
    /// [`Error::Parameter`] names the first one outside its range.
    pub fn validate(&self) -> Result<()> {
        let refuse = |name, value: String, expected| Err(Error::Parameter { name, value, expected });
        if self.max_merge_bytes < Bytes::from_mib(1) {
            return refuse("dedup.max_merge_bytes", self.max_merge_bytes.0.to_string(), "at least 1048576");
        }
        if !self.check_interval.is_plausible() {
            return refuse("dedup.check_interval", self.check_interval.0.to_string(), "0 s or more and finite");
        }
        if self.min_sampled_duplicates == 0 {
            return refuse("dedup.min_sampled_duplicates", "0".to_owned(), "at least 1");
        }
        if !(self.min_found_share > 0.0 && self.min_found_share <= 1.0) {
            return refuse("dedup.min_found_share", self.min_found_share.to_string(), "more than 0 and at most 1");
        }
        if !(self.first_pause.is_plausible() && self.first_pause > Seconds::ZERO) {
            return refuse("dedup.first_pause", self.first_pause.0.to_string(), "more than 0 s and finite");
        }
        if !(self.longest_pause.is_plausible() && self.longest_pause >= self.first_pause) {
            return refuse(
                "dedup.longest_pause",
                self.longest_pause.0.to_string(),
                "at least `first_pause` and finite",
            );
        }
        if !(self.stall_margin >= 1.0 && self.stall_margin.is_finite()) {
            return refuse("dedup.stall_margin", self.stall_margin.to_string(), "at least 1 and finite");
        }
        if !(0.0..=1000.0).contains(&self.rest_share) {
            return refuse("dedup.rest_share", self.rest_share.to_string(), "from 0 to 1000");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_outside_their_range_are_refused_wherever_they_come_from() {
        for ratio in [2.0, 10.0, 99.5, 100.0] {
            assert_eq!(DedupThreshold::try_from(ratio).unwrap().ratio(), ratio);
        }
        for ratio in [1.99, 100.1, 0.0, -10.0, f64::NAN, f64::INFINITY] {
            assert!(DedupThreshold::try_from(ratio).is_err(), "{ratio}");
        }
    }

    #[test]
    fn each_impossible_parameter_is_refused_by_its_name() {
        DedupParameters::default().validate().unwrap();
        type Spoil = fn(&mut DedupParameters);
        let spoiled: [(&str, Spoil); 8] = [
            ("dedup.max_merge_bytes", |p| p.max_merge_bytes = Bytes(1)),
            ("dedup.check_interval", |p| p.check_interval = Seconds(f64::NAN)),
            ("dedup.min_sampled_duplicates", |p| p.min_sampled_duplicates = 0),
            ("dedup.min_found_share", |p| p.min_found_share = 0.0),
            ("dedup.first_pause", |p| p.first_pause = Seconds::ZERO),
            ("dedup.longest_pause", |p| p.longest_pause = Seconds(0.5)),
            ("dedup.stall_margin", |p| p.stall_margin = 0.9),
            ("dedup.rest_share", |p| p.rest_share = 1001.0),
        ];
        for (name, spoil) in spoiled {
            let mut parameters = DedupParameters::default();
            spoil(&mut parameters);
            match parameters.validate() {
                Err(Error::Parameter { name: named, .. }) => assert_eq!(named, name),
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}
