//! The shards that a server holds, as the map of its federation says and changes it.
//!
//! A shard that comes is opened before clients are told that it is here; one that goes is given up
//! after they are told that it is elsewhere, and after the last write to it is committed.
//!
//! Failure: a store that cannot be opened is tried again each second; meanwhile clients are told
//! what was so before.
//!
//! Threads: one follows the map. Any may change shards, one at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use ecotone_control::map::Map;
use ecotone_keyspace::{Keyspace, ShardId, Slot, SlotRanges};
use ecotone_membership::{Known, Membership};
use ecotone_resp::cluster_view::{Cluster, ClusterView};
use ecotone_resp::service::Service;
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::error::{Error, Result};
use crate::stores::{ShardOptions, Stores};

/// After a failure it is tried again so much later.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The shards of this map that a server is to serve.
pub(crate) fn shards_of(known: &Known) -> Vec<ShardOptions> {
    held_by(known).into_iter().map(|(id, slots)| ShardOptions { id, slots }).collect()
}

fn held_by(known: &Known) -> BTreeMap<ShardId, SlotRanges> {
    let map: &Map = &known.map;
    let own = map.shards.iter().filter(|(_, shard)| shard.primary == Some(known.member));
    own.map(|(id, shard)| (ShardId(id.0), shard.slots.iter().map(|range| (range.first, range.last)).collect()))
        .collect()
}

/// Changes which shards a running server holds.
pub(crate) struct Shards {
    stores: Arc<Stores>,
    /// Weak: it holds the stores. Empty where no clients are served.
    service: OnceLock<Weak<Service>>,
    /// Held by who changes them.
    changing: Mutex<()>,
}

impl Shards {
    pub(crate) fn new(stores: Arc<Stores>) -> Arc<Shards> {
        Arc::new(Shards { stores, service: OnceLock::new(), changing: Mutex::default() })
    }

    /// Clients are served from now on.
    pub(crate) fn serve(&self, service: &Arc<Service>) {
        let _ = self.service.set(Arc::downgrade(service));
    }

    fn keyspace(&self) -> Option<Arc<Keyspace>> {
        Some(self.service.get()?.upgrade()?.keyspace.clone())
    }

    /// See [`Daemon::add_shard`](crate::Daemon::add_shard).
    pub(crate) fn add(&self, id: ShardId, slots: &[(u16, u16)]) -> Result<()> {
        let _changing = self.changing.lock();
        let keyspace = self.keyspace();
        if self.stores.has(id) {
            // It was dropped since the server began, and its store is open still.
            return match keyspace {
                Some(keyspace) => Ok(keyspace.set_slots(id, slots)?),
                None => Err(Error::Configuration(format!("{id} is open already"))),
            };
        }
        let opened = self.stores.open_more(&ShardOptions { id, slots: slots.to_vec() })?;
        if let Some(keyspace) = keyspace {
            keyspace.add_shard(opened.clone())?;
        }
        self.stores.add(opened);
        info!(shard = id.0, "a shard was added");
        Ok(())
    }

    /// See [`Daemon::drop_shard`](crate::Daemon::drop_shard).
    pub(crate) fn give_up(&self, id: ShardId) -> Result<()> {
        let _changing = self.changing.lock();
        let keyspace = self.keyspace().ok_or_else(|| Error::Configuration("no clients are served".into()))?;
        keyspace.drop_shard(id)?;
        info!(shard = id.0, "a shard was dropped");
        Ok(())
    }
}

/// What clients are told of what is known.
pub(crate) type Viewer = Box<dyn Fn(&Known, &Service) -> ClusterView + Send>;

/// Follows the map until it is dropped.
pub(crate) struct Follower {
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// From now on `shards` are those of the map; clients of `service` are told what `view` makes of
    /// it. The stores that are open are those of `first`.
    pub(crate) fn start(
        membership: Arc<Membership>,
        first: &Known,
        shards: Arc<Shards>,
        service: &Arc<Service>,
        view: Viewer,
    ) -> Result<Follower> {
        let (stop, mut stopped) = watch::channel(());
        let mut held = held_by(first);
        let service = Arc::downgrade(service);
        let thread = std::thread::Builder::new().name("ecotone-shards".into()).spawn(move || {
            let mut following = membership.following();
            let mut trouble = None;
            loop {
                let known = following.borrow_and_update().clone();
                let Some(service) = service.upgrade() else { return };
                let done = apply(&known, &mut held, &shards, &service, &view);
                drop(service);
                match &done {
                    Ok(()) => trouble = None,
                    Err(error) => {
                        let text = error.to_string();
                        if trouble.as_ref() != Some(&text) {
                            warn!(%error, "a shard that the federation has given to this server cannot be served yet; it is tried again");
                        }
                        trouble = Some(text);
                    }
                }
                let goes_on = membership.block_on(async {
                    tokio::select! {
                        _ = stopped.changed() => false,
                        changed = following.changed() => changed.is_ok(),
                        () = tokio::time::sleep(RETRY_DELAY), if done.is_err() => true,
                    }
                });
                if !goes_on {
                    return;
                }
            }
        });
        let thread = thread.map_err(|source| Error::Thread { what: "the shards of the federation", source })?;
        Ok(Follower { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that follows the map has panicked");
        }
    }
}

/// Opens what comes, tells clients, and gives up what goes.
fn apply(
    known: &Known,
    held: &mut BTreeMap<ShardId, SlotRanges>,
    shards: &Shards,
    service: &Service,
    view: &Viewer,
) -> Result<()> {
    let wanted = held_by(known);
    for (id, slots) in &wanted {
        if !held.contains_key(id) {
            shards.add(*id, slots)?;
            held.insert(*id, slots.clone());
        }
    }
    service.cluster.publish(view(known, service));
    let gone: Vec<ShardId> = held.keys().filter(|id| !wanted.contains_key(id)).copied().collect();
    for id in gone {
        let slots: Vec<Slot> =
            held[&id].iter().flat_map(|(first, last)| *first..=*last).filter_map(Slot::new).collect();
        // A commit that fails fails later ones, too: nothing more is written there in any case.
        Cluster::fence(&service.keyspace, &slots);
        shards.give_up(id)?;
        held.remove(&id);
    }
    Ok(())
}
