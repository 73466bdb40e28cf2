//! The server table: what the coordinator knows of each server's state, and whether it may be given
//! work (ECO-KVS section VI-B, Tracker: "a binary Server Table that identifies whether compaction
//! offloading is feasible"; EdgePilot section IV-A, Monitor and Algorithm 1).
//!
//! Bounded: at most `max_servers` entries. A server that is silent for `stale_after` is disabled;
//! one that is silent for `forget_after` loses its entry.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::{LoadSample, Parameters};
use crate::queue_order::QueueLimits;
use ecotone_types::ServerId;
use ecotone_types::units::{BytesPerSecond, Cores, Seconds, Time};

/// Why a server may not be given work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disabled {
    /// It has never reported, or lost its entry.
    Unknown,
    /// Its last report is too old.
    Stale,
    /// It has too few free cores.
    NoFreeCore,
    /// It has no free bandwidth.
    NoFreeNetwork,
    /// It takes no more jobs.
    NoFreeSlot,
    /// Its own store is stalled, and stalled servers may not work.
    Stalled,
}

impl Disabled {
    /// Its name, as in reports and INFO.
    pub const fn name(self) -> &'static str {
        match self {
            Disabled::Unknown => "unknown",
            Disabled::Stale => "stale",
            Disabled::NoFreeCore => "no-free-core",
            Disabled::NoFreeNetwork => "no-free-network",
            Disabled::NoFreeSlot => "no-free-slot",
            Disabled::Stalled => "stalled",
        }
    }
}

/// What is known of one server.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    sample: LoadSample,
    at: Time,
    /// Jobs that were placed on it since that sample, as long as they are counted, the oldest
    /// first.
    placed: Vec<Placed>,
}

/// A job that was placed on a server.
#[derive(Clone, Debug, PartialEq)]
struct Placed {
    owner: ServerId,
    /// Grows with each placement of the table.
    number: u64,
}

impl Entry {
    fn free_cores(&self) -> Cores {
        (self.sample.free_cores - Cores(self.placed.len() as f64)).max(Cores::ZERO)
    }

    fn free_slots(&self) -> u32 {
        self.sample.worker_slots_free.saturating_sub(self.placed.len() as u32)
    }
}

/// The constants that decide what is enabled; see [`Parameters`].
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rules {
    limits: QueueLimits,
    stale_after: Seconds,
    forget_after: Seconds,
    stalled_servers_may_work: bool,
    count_placements: bool,
    max_servers: usize,
}

/// The state of all servers.
#[derive(Clone, Debug)]
pub struct ServerTable {
    rules: Rules,
    entries: BTreeMap<ServerId, Entry>,
    placements: u64,
}

impl ServerTable {
    /// No servers yet.
    pub fn new(parameters: &Parameters) -> Self {
        let rules = Rules {
            limits: QueueLimits {
                min_cores: parameters.min_free_cores,
                min_network: parameters.min_free_network_bytes_per_s,
            },
            stale_after: parameters.stale_after,
            forget_after: parameters.forget_after,
            stalled_servers_may_work: parameters.stalled_servers_may_work,
            count_placements: parameters.count_placements_between_samples,
            max_servers: parameters.max_servers,
        };
        Self { rules, entries: BTreeMap::new(), placements: 0 }
    }

    /// Takes a server's report. `false` when the table is full of servers that report: the report
    /// is ignored.
    #[must_use]
    pub fn update(&mut self, now: Time, sample: LoadSample) -> bool {
        if !self.entries.contains_key(&sample.server) && self.entries.len() >= self.rules.max_servers {
            let forget_after = self.rules.forget_after;
            self.entries.retain(|_, entry| now.since(entry.at) <= forget_after);
            if self.entries.len() >= self.rules.max_servers {
                return false;
            }
        }
        self.entries.insert(sample.server.clone(), Entry { sample, at: now, placed: Vec::new() });
        true
    }

    /// Counts a job of `owner` that was placed on a server, until the server's next report or until
    /// the owner says that it is over. Bounded: a server without free slots is given nothing more.
    pub fn count_placement(&mut self, server: &ServerId, owner: &ServerId) {
        if self.rules.count_placements
            && let Some(entry) = self.entries.get_mut(server)
        {
            self.placements += 1;
            entry.placed.push(Placed { owner: owner.clone(), number: self.placements });
        }
    }

    /// An owner says how many of its jobs are away. Of those that are counted, the oldest are over:
    /// a chain of small jobs would otherwise fill a server's slots until its next report.
    pub fn observe_away(&mut self, owner: &ServerId, jobs: u32) {
        let mut numbers: Vec<u64> = (self.entries.values().flat_map(|entry| &entry.placed))
            .filter(|placed| placed.owner == *owner)
            .map(|placed| placed.number)
            .collect();
        numbers.sort_unstable();
        let over = numbers.len().saturating_sub(jobs as usize);
        let Some(last) = over.checked_sub(1).map(|last| numbers[last]) else { return };
        for entry in self.entries.values_mut() {
            entry.placed.retain(|placed| placed.owner != *owner || placed.number > last);
        }
    }

    /// Whether a server may be given work: its entry in the binary server table, with the reason
    /// for a "no".
    ///
    /// # Errors
    /// The first reason that applies.
    pub fn check(&self, now: Time, server: &ServerId) -> Result<(), Disabled> {
        self.check_entry(now, self.entries.get(server).ok_or(Disabled::Unknown)?)
    }

    fn check_entry(&self, now: Time, entry: &Entry) -> Result<(), Disabled> {
        let Rules { limits, stale_after, stalled_servers_may_work, .. } = self.rules;
        if now.since(entry.at) > stale_after {
            Err(Disabled::Stale)
        } else if entry.free_cores() <= limits.min_cores {
            Err(Disabled::NoFreeCore)
        } else if entry.sample.free_network_bytes_per_s <= limits.min_network {
            Err(Disabled::NoFreeNetwork)
        } else if entry.free_slots() == 0 {
            Err(Disabled::NoFreeSlot)
        } else if entry.sample.stalled && !stalled_servers_may_work {
            Err(Disabled::Stalled)
        } else {
            Ok(())
        }
    }

    /// The enabled servers in the order of their names, with their free cores and bandwidth.
    pub fn enabled(&self, now: Time) -> impl Iterator<Item = (&ServerId, Cores, BytesPerSecond)> {
        self.entries
            .iter()
            .filter(move |(_, entry)| self.check_entry(now, entry).is_ok())
            .map(|(server, entry)| (server, entry.free_cores(), entry.sample.free_network_bytes_per_s))
    }

    /// How many servers are in the table.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no server is in the table.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
