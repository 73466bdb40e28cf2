//! The policies by name, and what each of them may do.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use ecotone_types::JobPurpose;
use ecotone_types::units::Cores;

/// How a federation decides where compactions run. All servers of a federation are given the same
/// one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    /// RocksDB by default: never offload, one subcompaction. The papers' baseline.
    Local,
    /// RocksDB tuned: never offload, subcompactions on the server's own cores. The honest baseline.
    LocalSplit,
    /// EdgePilot: every compaction goes to the head of the queue of servers if it is predicted to
    /// be faster there.
    #[serde(rename = "edgepilot")]
    EdgePilot,
    /// ECO-KVS: an L0 compaction that would end in a stall goes where it costs the least energy and
    /// ends in time.
    #[default]
    Eco,
    /// ECO-KVS(Local) of section VII-E: ECO-KVS's gate, EdgePilot's target.
    EcoGate,
    /// ECO-KVS(Global) of section VII-E: no gate, ECO-KVS's target for every L0 compaction.
    EcoTarget,
}

impl PolicyName {
    /// Every policy, in the order in which reports show them.
    pub const ALL: [PolicyName; 6] = [
        PolicyName::Local,
        PolicyName::LocalSplit,
        PolicyName::EdgePilot,
        PolicyName::Eco,
        PolicyName::EcoGate,
        PolicyName::EcoTarget,
    ];

    /// The name, as in configurations, commands and reports.
    pub const fn name(self) -> &'static str {
        match self {
            PolicyName::Local => "local",
            PolicyName::LocalSplit => "local-split",
            PolicyName::EdgePilot => "edgepilot",
            PolicyName::Eco => "eco",
            PolicyName::EcoGate => "eco-gate",
            PolicyName::EcoTarget => "eco-target",
        }
    }

    /// Whether it ever runs a compaction on another server.
    pub const fn may_offload(self) -> bool {
        !matches!(self, PolicyName::Local | PolicyName::LocalSplit)
    }

    /// Whether it asks first if a compaction would end in a stall (ECO-KVS equation 2) and stays
    /// local if not.
    pub const fn has_gate(self) -> bool {
        matches!(self, PolicyName::Eco | PolicyName::EcoGate)
    }

    /// Whether it looks for the least energy within a latest time (ECO-KVS equations 3 and 4);
    /// else, if it offloads at all, it takes the head of EdgePilot's queue.
    pub const fn has_energy_target(self) -> bool {
        matches!(self, PolicyName::Eco | PolicyName::EcoTarget)
    }

    /// Whether it considers a compaction out of `input_level`. ECO-KVS section VI-B considers L0
    /// compactions only; EdgePilot section IV considers every one. Merges of duplicates, which
    /// neither paper knows, are considered at every level: what L0 is to ECO-KVS, the part of the
    /// tree that presses, is to them the space that they free. So is it to garbage collection.
    pub const fn considers(self, purpose: JobPurpose, input_level: i32) -> bool {
        match self {
            PolicyName::Local | PolicyName::LocalSplit => false,
            PolicyName::EdgePilot => true,
            PolicyName::Eco | PolicyName::EcoGate | PolicyName::EcoTarget => {
                input_level == 0 || matches!(purpose, JobPurpose::Dedup | JobPurpose::Gc)
            }
        }
    }

    /// RocksDB's `max_subcompactions` under this policy on a server of `cores` cores. The papers'
    /// systems leave RocksDB's default of one; `local-split` takes one for each whole core.
    pub fn max_subcompactions(self, cores: Cores) -> u32 {
        match self {
            PolicyName::LocalSplit => (cores.0 as u32).max(1),
            _ => 1,
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PolicyName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or_else(|| Error::UnknownPolicy {
            name: name.chars().take(32).collect(),
            valid: Self::ALL.map(Self::name).join(", "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_a_wrong_one_lists_the_right_ones() {
        for policy in PolicyName::ALL {
            assert_eq!(policy.to_string().parse::<PolicyName>(), Ok(policy));
        }
        let error = "Eco".parse::<PolicyName>().unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no policy `Eco`; choose one of: local, local-split, edgepilot, eco, eco-gate, eco-target"
        );
    }

    #[test]
    fn only_local_split_splits_and_never_below_one() {
        for policy in PolicyName::ALL {
            let expected = if policy == PolicyName::LocalSplit { 6 } else { 1 };
            assert_eq!(policy.max_subcompactions(Cores(6.9)), expected);
            assert_eq!(policy.max_subcompactions(Cores(0.3)), 1);
            assert_eq!(policy.max_subcompactions(Cores(f64::NAN)), 1);
        }
    }
}
