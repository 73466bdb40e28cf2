//! Modes, roles, and the class of cores that a role has in a mode.

use std::fmt;
use std::str::FromStr;

use ecotone_types::{CoreClass, Duty, Task};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// How fast cores run (`power.mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PowerMode {
    /// Every core at its highest frequency.
    #[default]
    AllHigh,
    /// Every core at its lowest.
    AllLow,
    /// By role.
    Concerto,
}

impl PowerMode {
    /// Every mode.
    pub const ALL: [PowerMode; 3] = [PowerMode::AllHigh, PowerMode::AllLow, PowerMode::Concerto];

    /// The name, as in settings and reports.
    pub const fn name(self) -> &'static str {
        match self {
            PowerMode::AllHigh => "all-high",
            PowerMode::AllLow => "all-low",
            PowerMode::Concerto => "concerto",
        }
    }

    /// The cores that a role runs on.
    pub const fn class(self, role: Role) -> CoreClass {
        match self {
            PowerMode::AllHigh => CoreClass::Fast,
            PowerMode::AllLow => CoreClass::Slow,
            PowerMode::Concerto => role.class(),
        }
    }
}

impl fmt::Display for PowerMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PowerMode {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name).ok_or_else(|| Error::Parameter {
            name: "power.mode",
            value: name.chars().take(32).collect(),
            expected: "all-high, all-low or concerto",
        })
    }
}

/// What a thread's work is to those who wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Commands of clients.
    Foreground,
    /// What reads at a replica wait for; they themselves are commands of clients.
    Read,
    /// A memtable becomes a table: writes wait for it.
    Flush,
    /// A compaction out of L0: writes wait for it soon.
    ShallowCompaction,
    /// Bytes and messages between servers, replies of reads among them.
    Transport,
    /// Applying the stream of a copy.
    ApplyStream,
    /// Filling a new copy.
    Seeding,
    /// Reading files to find errors.
    Scrubbing,
    /// Garbage collection of values.
    Gc,
    /// A compaction out of a deeper level.
    DeepCompaction,
    /// Erasure coding.
    Coding,
    /// Moving files to object storage and back.
    Tiering,
    /// Merging duplicates.
    Dedup,
}

impl Role {
    /// Every role.
    pub const ALL: [Role; 13] = [
        Role::Foreground,
        Role::Read,
        Role::Flush,
        Role::ShallowCompaction,
        Role::Transport,
        Role::ApplyStream,
        Role::Seeding,
        Role::Scrubbing,
        Role::Gc,
        Role::DeepCompaction,
        Role::Coding,
        Role::Tiering,
        Role::Dedup,
    ];

    /// The name, as in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Foreground => "foreground",
            Role::Read => "read",
            Role::Flush => "flush",
            Role::ShallowCompaction => "shallow-compaction",
            Role::Transport => "transport",
            Role::ApplyStream => "apply-stream",
            Role::Seeding => "seeding",
            Role::Scrubbing => "scrubbing",
            Role::Gc => "gc",
            Role::DeepCompaction => "deep-compaction",
            Role::Coding => "coding",
            Role::Tiering => "tiering",
            Role::Dedup => "dedup",
        }
    }

    /// Its cores in `concerto`: fast where someone waits.
    pub const fn class(self) -> CoreClass {
        match self {
            Role::Foreground | Role::Read | Role::Flush | Role::ShallowCompaction | Role::Transport => CoreClass::Fast,
            Role::ApplyStream
            | Role::Seeding
            | Role::Scrubbing
            | Role::Gc
            | Role::DeepCompaction
            | Role::Coding
            | Role::Tiering
            | Role::Dedup => CoreClass::Slow,
        }
    }

    /// The role of a task.
    pub const fn of(task: Task) -> Self {
        match task.duty {
            Duty::Foreground => Role::Foreground,
            Duty::Flush => Role::Flush,
            Duty::Compaction | Duty::Worker if task.is_deep => Role::DeepCompaction,
            Duty::Compaction | Duty::Worker => Role::ShallowCompaction,
            Duty::Transport => Role::Transport,
            Duty::Replica => Role::ApplyStream,
            Duty::Gc => Role::Gc,
            Duty::Coding => Role::Coding,
            Duty::Tiering => Role::Tiering,
            Duty::Dedup => Role::Dedup,
            Duty::Read => Role::Read,
            Duty::Seed => Role::Seeding,
            Duty::Scrub => Role::Scrubbing,
        }
    }
}
