//! What a job is for, as far as the decision where to run it depends on that.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a (sub)compaction is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobPurpose {
    /// The shape of the tree, or somebody asked for it: the store cannot do without.
    #[default]
    Compaction,
    /// It merges away what newer versions have replaced ([`crate::dedup`]): the store could do without, until space is short.
    Dedup,
}

impl JobPurpose {
    /// Every purpose.
    pub const ALL: [JobPurpose; 2] = [JobPurpose::Compaction, JobPurpose::Dedup];

    /// The name, as on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            JobPurpose::Compaction => "compaction",
            JobPurpose::Dedup => "dedup",
        }
    }
}

impl fmt::Display for JobPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
