//! The copies of shards on this server: what replication asks of it, the gates that replies wait
//! for, and what jobs that run elsewhere know of copies.
//!
//! Threads: stores are opened and closed on threads of replication.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ecotone_cluster::copies::{HeldCopies, NamedTable, PrimaryCopy, TableContent};
use ecotone_control::ids::{DirectoryId, ShardId as MapShardId};
use ecotone_energy::ThreadDuties;
use ecotone_engine::Durability;
use ecotone_keyspace::gate::{CommitGate, Level, Place, Refused};
use ecotone_keyspace::{ShardError, ShardId};
use ecotone_membership::Membership;
use ecotone_replica::commit;
use ecotone_replica::position::Position;
use ecotone_replica::stream::ContentId;
use ecotone_replication::links::{Links, Route};
use ecotone_replication::service::Service;
use ecotone_replication::{CommitGate as CopiesGate, Copies, Host, Opening, Parts, PrimaryTables};
use ecotone_types::{DutyObserver, ServerId};
use tokio::runtime::Handle;

use crate::error::{Error, Result};
use crate::shards::{Owner, Shards};
use crate::stores::{Copied, ShardOptions, Stores};

/// Drives the copies that the federation gives to this server.
///
/// # Errors
///
/// No thread.
pub(crate) fn start(
    membership: &Arc<Membership>,
    bulk: &Handle,
    parts: HostParts,
    durability: Durability,
    service: &Service,
) -> Result<Copies> {
    let host = Arc::new(Server(parts));
    let durability = match durability {
        Durability::Always => commit::Durability::Synced,
        Durability::None | Durability::EverySecond => commit::Durability::Received,
    };
    begin(membership, bulk, host, durability, service)
}

/// The same of a server that holds nothing, and may lead.
///
/// # Errors
///
/// No thread.
pub(crate) fn start_leading(membership: &Arc<Membership>, bulk: &Handle, service: &Service) -> Result<Copies> {
    begin(membership, bulk, Arc::new(HoldsNothing), commit::Durability::Received, service)
}

fn begin(
    membership: &Arc<Membership>,
    bulk: &Handle,
    host: Arc<dyn Host>,
    durability: commit::Durability,
    service: &Service,
) -> Result<Copies> {
    let small = Route { runtime: membership.runtime().clone(), connections: membership.connections().clone() };
    let bulk = Route { runtime: bulk.clone(), connections: membership.bulk_connections().clone() };
    let links = Links::new(small, bulk, membership.following());
    let known = membership.known();
    // Until it has said so itself, the map may not know this server.
    let directory = known.map.server(known.member).map_or(DirectoryId([0; 16]), |server| server.directory);
    let parts = Parts { membership: membership.clone(), directory, host, durability, links: links.clone() };
    let copies = Copies::start(parts)?;
    let incoming = copies.incoming();
    links.attach(&incoming);
    service.attach(membership.following(), &incoming);
    Ok(copies)
}

/// A witness: the map gives it no copies.
struct HoldsNothing;

impl Host for HoldsNothing {
    fn directory(&self, _: MapShardId) -> PathBuf {
        PathBuf::new()
    }

    fn reserve(&self, _: MapShardId) -> bool {
        false
    }

    fn release(&self, _: MapShardId) -> bool {
        true
    }

    fn open(&self, _: Opening) -> std::result::Result<(), String> {
        Err("a witness holds no stores".into())
    }

    fn close(&self, _: MapShardId) -> std::result::Result<(), String> {
        Ok(())
    }

    fn sync(&self, _: MapShardId) -> std::result::Result<(), String> {
        Ok(())
    }
}

/// What replication asks of the server goes to these.
pub(crate) struct HostParts {
    pub(crate) stores: Arc<Stores>,
    pub(crate) shards: Arc<Shards>,
    pub(crate) duties: Arc<ThreadDuties>,
}

struct Server(HostParts);

impl Host for Server {
    fn duties(&self) -> Option<Arc<dyn DutyObserver>> {
        Some(self.0.duties.clone())
    }

    fn directory(&self, shard: MapShardId) -> PathBuf {
        self.0.stores.directory_of(ShardId(shard.0))
    }

    fn reserve(&self, shard: MapShardId) -> bool {
        self.0.shards.take(ShardId(shard.0), Owner::Replication)
    }

    fn release(&self, shard: MapShardId) -> bool {
        self.0.shards.give_back(ShardId(shard.0), Owner::Replication)
    }

    fn open(&self, opening: Opening) -> std::result::Result<(), String> {
        let Opening { shard, slots, tap, least_segment, gate, tables } = opening;
        let slots: Vec<(u16, u16)> = slots.iter().map(|range| (range.first, range.last)).collect();
        let least_segment = u32::try_from(least_segment).map_err(|_| "no numbers of segments are left".to_owned())?;
        let gate = Arc::new(Waiting(gate));
        let primary: Option<Arc<dyn PrimaryCopy>> = Some(Arc::new(Primary(tables)));
        let copied = Copied { tap, least_segment, gate, primary };
        self.0.shards.become_primary(ShardId(shard.0), &slots, copied).map_err(|error| error.to_string())
    }

    fn close(&self, shard: MapShardId) -> std::result::Result<(), String> {
        match self.0.shards.resign(ShardId(shard.0)) {
            Ok(()) | Err(Error::Shard(ShardError::NotHeld(_))) => Ok(()),
            Err(error @ Error::Shard(_)) => Err(error.to_string()),
            // It is closed: what it could not make durable is not counted as that.
            Err(error) => {
                tracing::warn!(shard = shard.0, %error, "a store was not closed cleanly");
                Ok(())
            }
        }
    }

    fn sync(&self, shard: MapShardId) -> std::result::Result<(), String> {
        let store = self.0.stores.of(ShardId(shard.0)).ok_or("the store is not open")?;
        store.sync().map_err(|error| error.to_string())
    }
}

impl Stores {
    /// The folder of a shard's store, whether it is there or not.
    fn directory_of(&self, id: ShardId) -> PathBuf {
        ShardOptions { id, slots: Vec::new() }.directory(self.server_directory())
    }
}

/// The tables of a primary, as jobs that run elsewhere know them.
struct Primary(PrimaryTables);

impl PrimaryCopy for Primary {
    fn shard(&self) -> u32 {
        self.0.shard().0
    }

    fn epoch(&self) -> u64 {
        self.0.epoch().0
    }

    fn is_primary(&self) -> bool {
        self.0.is_primary()
    }

    fn content_of(&self, table: u64) -> Option<(TableContent, Duration)> {
        let (content, age) = self.0.content_of(table)?;
        Some((TableContent { bytes: content.len, hash: content.hash }, age))
    }

    fn holders(&self) -> Vec<ServerId> {
        self.0.holders()
    }
}

/// The copies here, as jobs of other servers use them. They are not kept alive.
pub(crate) fn held_by(copies: &Arc<Copies>) -> Arc<dyn HeldCopies> {
    Arc::new(Held(Arc::downgrade(copies)))
}

struct Held(Weak<Copies>);

fn content_id(content: TableContent) -> ContentId {
    ContentId { len: content.bytes, hash: content.hash }
}

impl HeldCopies for Held {
    fn epoch_of(&self, shard: u32) -> Option<u64> {
        Some(self.0.upgrade()?.epoch_of(MapShardId(shard))?.0)
    }

    fn link(&self, shard: u32, tables: &[NamedTable]) -> Vec<bool> {
        let wanted = tables.iter().map(|table| (content_id(table.content), table.link.clone())).collect();
        let linked = self.0.upgrade().map(|copies| copies.link_tables(MapShardId(shard), wanted));
        match linked {
            Some(Ok(linked)) => linked,
            Some(Err(error)) => {
                tracing::debug!(shard, %error, "a job reads nothing of the copy here");
                vec![false; tables.len()]
            }
            None => vec![false; tables.len()],
        }
    }

    fn distrust(&self, shard: u32, content: TableContent) {
        if let Some(copies) = self.0.upgrade() {
            copies.distrust(MapShardId(shard), content_id(content));
        }
    }

    fn keep(&self, shard: u32, table: &Path) {
        let kept = self.0.upgrade().map(|copies| copies.keep_made(MapShardId(shard), table));
        if let Some(Err(error)) = kept {
            tracing::debug!(shard, %error, "what a job has made is not kept for the copy here");
        }
    }
}

/// A gate, as the keyspace knows them.
#[derive(Debug)]
struct Waiting(Arc<CopiesGate>);

fn place(position: Position) -> Place {
    Place { epoch: position.epoch.0, number: position.number }
}

fn level_of(level: Level) -> commit::Level {
    match level {
        Level::One => commit::Level::One,
        Level::Quorum => commit::Level::Quorum,
        Level::All => commit::Level::All,
    }
}

impl CommitGate for Waiting {
    fn written(&self) -> Place {
        place(self.0.written())
    }

    fn answerable(&self, level: Level) -> std::result::Result<Place, Refused> {
        self.0.answerable(level_of(level)).map(place).map_err(|refusal| match refusal {
            commit::Refusal::TooFewInSync { in_sync, needed } => Refused::TooFewInSync { in_sync, needed },
            commit::Refusal::NoLease => Refused::NoLease,
            commit::Refusal::NotPrimary => Refused::NotPrimary,
        })
    }

    fn takes_writes(&self) -> bool {
        self.0.takes_writes()
    }

    fn level(&self) -> Level {
        match self.0.level() {
            commit::Level::One => Level::One,
            commit::Level::Quorum => Level::Quorum,
            commit::Level::All => Level::All,
        }
    }

    fn copies_with(&self, of: Place, synced: bool) -> usize {
        let durability = if synced { commit::Durability::Synced } else { commit::Durability::Received };
        let position = Position { epoch: ecotone_control::ids::Epoch(of.epoch), number: of.number };
        self.0.copies_with(position, durability)
    }

    fn clock_limit_ms(&self) -> u64 {
        self.0.clock_limit_ms()
    }

    fn wakes(&self, wake: &Arc<dyn Fn() + Send + Sync>) {
        self.0.wakes(wake);
    }
}
