//! What is said of comparisons: of those that people have asked for, to them and between servers,
//! and of what all have come to.

use std::collections::BTreeMap;

use ecotone_control::ids::MemberId;
use ecotone_mirror::names::FileName;
use ecotone_transport::wire::{DifferingFile, RepairReply};

/// Files that are named, of those that differ. The others are counted.
pub const MAX_NAMED: usize = 64;

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Another shard's copy is compared first.
    #[default]
    Waiting,
    /// Files are compared.
    Comparing,
    /// All were.
    Done,
    /// Not all could be.
    Failed,
}

/// A file that differed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differing {
    /// Its name.
    pub file: String,
    /// How that was seen.
    pub what: String,
    /// The server whose file took its place, where that is one.
    pub from: Option<MemberId>,
    /// Why it was not replaced.
    pub left: Option<String>,
}

/// The comparison of one copy's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// How far it is.
    pub phase: Phase,
    /// Whether the copy was the primary when it began.
    pub is_primary: bool,
    /// Files that were compared.
    pub files: u64,
    /// Of how many.
    pub of_files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of how many.
    pub of_bytes: u64,
    /// How many differed.
    pub differing: u64,
    /// How many of these were replaced.
    pub replaced: u64,
    /// The first of them.
    pub named: Vec<Differing>,
    /// Who became the primary so that this copy could be mended.
    pub handed_over_to: Option<MemberId>,
    /// Why it has failed.
    pub trouble: Option<String>,
}

impl Repair {
    /// Whether nothing more comes of it.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Done | Phase::Failed)
    }

    pub(crate) fn reply(&self) -> RepairReply {
        let named = self.named.iter().map(|differing| DifferingFile {
            file: differing.file.clone(),
            what: differing.what.clone(),
            from: differing.from.map(|from| from.0),
            left: differing.left.clone().unwrap_or_default(),
        });
        RepairReply {
            phase: match self.phase {
                Phase::Waiting => 0,
                Phase::Comparing => 1,
                Phase::Done => 2,
                Phase::Failed => 3,
            },
            primary: self.is_primary,
            files: self.files,
            of_files: self.of_files,
            bytes: self.bytes,
            of_bytes: self.of_bytes,
            differing: self.differing,
            replaced: self.replaced,
            named: named.collect(),
            handed_over_to: self.handed_over_to.map(|to| to.0),
            trouble: self.trouble.clone().unwrap_or_default(),
        }
    }

    pub(crate) fn said(reply: RepairReply) -> Repair {
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let named = reply.named.into_iter().take(MAX_NAMED).map(|differing| Differing {
            file: differing.file,
            what: differing.what,
            from: differing.from.map(MemberId),
            left: some(differing.left),
        });
        Repair {
            phase: match reply.phase {
                0 => Phase::Waiting,
                1 => Phase::Comparing,
                2 => Phase::Done,
                _ => Phase::Failed,
            },
            is_primary: reply.primary,
            files: reply.files,
            of_files: reply.of_files,
            bytes: reply.bytes,
            of_bytes: reply.of_bytes,
            differing: reply.differing,
            replaced: reply.replaced,
            named: named.collect(),
            handed_over_to: reply.handed_over_to.map(MemberId),
            trouble: some(reply.trouble),
        }
    }
}

/// What comparing a copy has come to since this process began.
#[derive(Debug, Clone, Default)]
pub struct Scrubbed {
    /// Bytes of files that were compared.
    pub compared_bytes: u64,
    /// Files that differed.
    pub differing: u64,
    /// Of these, those that were replaced.
    pub replaced: u64,
    /// Files that differ still, and why they could not be replaced.
    pub damaged: BTreeMap<FileName, String>,
    /// When the last whole round ended, in seconds since 1970. None before the first one.
    pub ended_s: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_comparison_arrives() {
        let of = |phase| Repair {
            phase,
            is_primary: true,
            files: 1,
            of_files: 2,
            bytes: 3,
            of_bytes: 4,
            differing: 2,
            replaced: 1,
            named: vec![
                Differing {
                    file: "000012.sst".into(),
                    what: "it is missing".into(),
                    from: Some(MemberId(3)),
                    left: None,
                },
                Differing { file: "000013.sst".into(), what: "a bit".into(), from: None, left: Some("nobody".into()) },
            ],
            handed_over_to: Some(MemberId(3)),
            trouble: Some("the disk".into()),
        };
        for phase in [Phase::Waiting, Phase::Comparing, Phase::Done, Phase::Failed] {
            assert_eq!(Repair::said(of(phase).reply()), of(phase));
        }
        assert_eq!(Repair::said(Repair::default().reply()), Repair::default());
    }
}
