//! What the models know of a compaction before it runs.

use serde::{Deserialize, Serialize};

use ecotone_types::units::Bytes;

/// Compactions that take the same for each byte.
///
/// Ours: ECO-KVS has one model of a server's compactions. One of level 0 merges as many sorted runs
/// as it has tables, a deeper one merges two; the lab saw a difference of a fifth for each byte,
/// which one line over both has as its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobClass {
    /// From level 0.
    LevelZero,
    /// From a deeper level.
    Deeper,
}

impl JobClass {
    /// Both.
    pub const ALL: [JobClass; 2] = [JobClass::LevelZero, JobClass::Deeper];

    /// The class of jobs of a level.
    pub const fn of_level(input_level: i32) -> Self {
        if input_level <= 0 { JobClass::LevelZero } else { JobClass::Deeper }
    }

    /// The one that this is not.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            JobClass::LevelZero => JobClass::Deeper,
            JobClass::Deeper => JobClass::LevelZero,
        }
    }
}

/// A compaction as the models see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// What it reads.
    pub input_bytes: Bytes,
    /// What of it the worker holds in a copy: it does not travel.
    pub held_bytes: Bytes,
    /// What kind it is.
    pub class: JobClass,
}

impl Job {
    /// A compaction of `input_level`.
    pub const fn new(input_bytes: Bytes, input_level: i32) -> Self {
        Self { input_bytes, held_bytes: Bytes::ZERO, class: JobClass::of_level(input_level) }
    }

    /// The same where the worker holds so much of its input.
    #[must_use]
    pub fn holding(self, held_bytes: Bytes) -> Self {
        Self { held_bytes: held_bytes.min(self.input_bytes), ..self }
    }
}
