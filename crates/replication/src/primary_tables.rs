//! The tables of a primary's store, and who has copies of them: for jobs that run elsewhere.
//!
//! It belongs to one opening of the store, and so to one epoch. Once the copy is the primary of
//! that epoch no more, nothing is said of its tables, and no result of a job may be taken.
//!
//! Threads: any.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ecotone_control::ids::{Epoch, MemberId, ShardId};
use ecotone_mirror::names::FileName;
use ecotone_replica::stream::{ContentId, FileKind};
use ecotone_types::ServerId;

use crate::links::Links;

/// The copy whose tables they are.
pub(crate) trait Primary: Send + Sync {
    /// Whether it is the primary of that epoch still.
    fn is_primary_in(&self, epoch: Epoch) -> bool;
    /// What a finished file holds, and for how long copies could have it.
    fn content_of(&self, file: FileName) -> Option<(ContentId, Duration)>;
    /// Who follows.
    fn followers(&self) -> Vec<MemberId>;
}

/// See the module.
pub struct PrimaryTables {
    /// Weak: a store that is being closed keeps no copy from ending.
    primary: Weak<dyn Primary>,
    shard: ShardId,
    epoch: Epoch,
    links: Links,
}

impl PrimaryTables {
    pub(crate) fn new(primary: Weak<dyn Primary>, shard: ShardId, epoch: Epoch, links: Links) -> PrimaryTables {
        PrimaryTables { primary, shard, epoch, links }
    }

    /// Of which shard.
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// In which epoch the store was opened.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn current(&self) -> Option<Arc<dyn Primary>> {
        self.primary.upgrade().filter(|primary| primary.is_primary_in(self.epoch))
    }

    /// Whether this server is the primary in that epoch still.
    pub fn is_primary(&self) -> bool {
        self.current().is_some()
    }

    /// What a finished table holds, and for how long copies could have fetched it.
    pub fn content_of(&self, number: u64) -> Option<(ContentId, Duration)> {
        self.current()?.content_of(FileName::new(FileKind::Table, number))
    }

    /// The servers whose copies follow.
    pub fn holders(&self) -> Vec<ServerId> {
        let followers = self.current().map(|primary| primary.followers()).unwrap_or_default();
        followers.into_iter().filter_map(|member| self.links.name_of(member)).collect()
    }
}
