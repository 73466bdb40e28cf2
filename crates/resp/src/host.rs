//! The server around the protocol: what its commands need, and a store does not know.

use std::collections::BTreeMap;
use std::sync::Arc;

use ecotone_keyspace::{Replica, Slot};

use crate::backups::{BackupSnapshot, Backups};
use crate::cluster_view::LinkView;
use crate::federation::FederationRequest;

/// The server around the protocol: what its commands need and a store does not know.
pub trait Host: Send + Sync {
    /// Sections of `INFO`: name, and lines of key and value. `name` is what was asked for, in lower
    /// case: a section, `default`, `all` or `everything`. Lines of a section that the protocol has
    /// itself (`server`, `memory`) are added to it.
    fn info(&self, name: &str) -> Vec<InfoSection>;

    /// The settings whose names match one of the lower-case glob patterns, by name.
    fn settings(&self, matches: &dyn Fn(&str) -> bool) -> BTreeMap<String, String>;

    /// Whether the value of a setting is a password. `name` is in lower case.
    fn is_secret(&self, name: &str) -> bool;

    /// The allocator of the process; `None`: the C library's.
    fn allocator(&self) -> Option<&dyn Allocator> {
        None
    }

    /// Changes settings, all or none. Names are as the client wrote them, in any case. The error is
    /// a text without code word.
    ///
    /// # Errors
    ///
    /// Which setting, and why.
    fn change(&self, settings: &[(String, String)]) -> Result<(), String>;

    /// Writes the settings into the file they came from.
    ///
    /// # Errors
    ///
    /// Why not.
    fn rewrite(&self) -> Result<(), String>;

    /// Where `BGSAVE` makes a backup; `None`: nowhere, and it writes what is in memory into tables.
    fn backup_target(&self) -> Option<Arc<dyn BackupTarget>> {
        None
    }

    /// Does what is asked of the federation: a JSON document, but for what says otherwise. It may
    /// wait for other servers, for some seconds. The error is a text without code word.
    ///
    /// # Errors
    ///
    /// Why it cannot be done, where, and what to do.
    fn federation(&self, _request: &FederationRequest) -> Result<Vec<u8>, String> {
        Err("this server is alone, and knows nothing of federations".into())
    }

    /// The open connections between this server and others (`CLUSTER LINKS`).
    fn links(&self) -> Vec<LinkView> {
        Vec::new()
    }

    /// Makes this server the primary of the shards that it has copies of (`CLUSTER FAILOVER`): by
    /// switch-over, or with `force` although that may lose what this copy lacks. It may wait for
    /// other servers, for some seconds.
    ///
    /// # Errors
    ///
    /// Why it is not.
    fn fail_over(&self, _force: bool) -> Result<(), HostError> {
        Err(HostError("this server has no copies of other servers' shards".into()))
    }

    /// A client asks the server to stop. It returns at once; the server stops after. What was
    /// acknowledged is made durable.
    fn shut_down(&self);
}

/// The copies of other servers' shards that may be read here.
pub trait ReplicaReads: Send + Sync {
    /// That of the shard with `slot`, if it may be read now. Who asks wants to read, also later.
    fn find(&self, slot: Slot) -> Option<Arc<Replica>>;
}

/// Why the server does not do what a client asks of it: a text without code word.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HostError(pub String);

/// Where backups lie that the server makes by itself.
pub trait BackupTarget: Send + Sync {
    /// Copies there what is not there yet. It takes long; `goes_on` says now and then whether it
    /// may go on.
    ///
    /// # Errors
    ///
    /// Why there is no backup, and what to do.
    fn copy(&self, backups: &Backups, held: &Arc<BackupSnapshot>, goes_on: &dyn Fn() -> bool) -> Result<(), String>;
}

/// The allocator of the process, as far as it can be asked. Any thread may.
pub trait Allocator: Send + Sync {
    /// Its name and version, as Redis writes them: `jemalloc-5.3.1`.
    fn name(&self) -> String;

    /// What it has given out and holds; `None`: it does not say.
    fn counts(&self) -> Option<AllocatorCounts>;

    /// All that it tells of itself, for people.
    fn report(&self) -> String;

    /// Gives back to the system what nobody uses, at once: some milliseconds where that is much.
    /// `false`: it cannot.
    fn purge(&self) -> bool;
}

/// Bytes of an [`Allocator`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllocatorCounts {
    /// Given out.
    pub allocated: u64,
    /// In pages of which something is given out.
    pub active: u64,
    /// In memory, with pages that are kept and what it needs for itself.
    pub resident: u64,
}

/// A section of `INFO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InfoSection {
    /// As in `# Name`.
    pub name: &'static str,
    /// Keys and values.
    pub lines: Vec<(String, String)>,
}
