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
    /// It merges away obsolete versions: the store could do without, until space is short.
    Dedup,
    /// It moves values: the store could do without, until space is short. Whoever merges its tables
    /// says where values go, and the server whose store it is copies them.
    Gc,
}

impl JobPurpose {
    /// Every purpose.
    pub const ALL: [JobPurpose; 3] = [JobPurpose::Compaction, JobPurpose::Dedup, JobPurpose::Gc];

    /// Whether it goes only to who has a copy of its tables: a merge of few keys that name long
    /// values is not worth the transfer.
    pub const fn needs_copy(self) -> bool {
        matches!(self, JobPurpose::Gc)
    }

    /// The name, as on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            JobPurpose::Compaction => "compaction",
            JobPurpose::Dedup => "dedup",
            JobPurpose::Gc => "gc",
        }
    }
}

impl fmt::Display for JobPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
