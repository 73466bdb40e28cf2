//! The shards that a server holds, as the map of its federation says and changes it.
//!
//! A shard that comes is opened before clients are told that it is here; one that goes is given up
//! after they are told that it is elsewhere, and after the last write to it is committed. Its store
//! is closed then, and its folder free for others.
//!
//! A shard with copies is opened and closed by who decides which copy is the primary
//! ([`Shards::become_primary`], [`Shards::resign`]), and not by who follows the map.
//!
//! Failure: a store that cannot be opened is tried again each second, as is one that cannot be closed
//! since somebody still reads it; meanwhile clients are told what was so before.
//!
//! Threads: one follows the map. Any may change shards; of two openings or closings one comes after
//! the other, and no giving up waits for either.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use ecotone_control::map::{Map, Shard};
use ecotone_energy::{EnergyThread, PromotionWait};
use ecotone_keyspace::{OpenShard, ShardError, ShardId, Slot, SlotRanges};
use ecotone_membership::{Known, Membership};
use ecotone_replication::is_replicated;
use ecotone_resp::cluster_view::{Cluster, ClusterView};
use ecotone_resp::service::Service;
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::error::{Error, Result};
use crate::stores::{Copied, ShardOptions, Stores};

/// After a failure it is tried again so much later.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Whoever works with a store that is given up ends sooner than this, but for a read that a slow
/// device holds up.
const LET_GO_WITHIN: Duration = Duration::from_secs(10);

/// Clients are told so often how far copies are, without a change of the map.
const LAG_INTERVAL: Duration = Duration::from_secs(1);

/// The shards of this map that a server is to serve by itself: those with copies are opened and
/// closed by replication.
pub(crate) fn shards_of(known: &Known) -> Vec<ShardOptions> {
    held_by(known).into_iter().map(|(id, slots)| ShardOptions { id, slots }).collect()
}

fn held_by(known: &Known) -> BTreeMap<ShardId, SlotRanges> {
    let map: &Map = &known.map;
    let is_own = |shard: &Shard| shard.primary == Some(known.member) && !is_replicated(map, shard);
    let own = map.shards.iter().filter(|(_, shard)| is_own(shard));
    own.map(|(id, shard)| (ShardId(id.0), shard.slots.iter().map(|range| (range.first, range.last)).collect()))
        .collect()
}

/// Changes which shards a running server holds.
pub(crate) struct Shards {
    stores: Arc<Stores>,
    energy: Arc<EnergyThread>,
    /// Weak: it holds the stores. Empty where no clients are served.
    service: OnceLock<Weak<Service>>,
    /// Held by who changes them.
    changing: Mutex<()>,
    /// Whose the folders of shards are now. Who opens a store, or touches its files, has taken it.
    owners: Mutex<BTreeMap<ShardId, Owner>>,
}

/// Who has the folder of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// It has one copy, and is served by who follows the map.
    Follower,
    /// It has copies, or is to have some.
    Replication,
}

impl Shards {
    pub(crate) fn new(stores: Arc<Stores>, energy: Arc<EnergyThread>) -> Arc<Shards> {
        let (changing, owners) = (Mutex::default(), Mutex::default());
        Arc::new(Shards { stores, energy, service: OnceLock::new(), changing, owners })
    }

    /// Clients are served from now on.
    pub(crate) fn serve(&self, service: &Arc<Service>) {
        let _ = self.service.set(Arc::downgrade(service));
    }

    /// Takes the folder of a shard. False while another one has it.
    pub(crate) fn take(&self, id: ShardId, by: Owner) -> bool {
        *self.owners.lock().entry(id).or_insert(by) == by
    }

    /// Gives it back. False while the store is open.
    pub(crate) fn give_back(&self, id: ShardId, by: Owner) -> bool {
        let mut owners = self.owners.lock();
        if owners.get(&id) == Some(&by) {
            if self.stores.of(id).is_some() {
                return false;
            }
            owners.remove(&id);
        }
        true
    }

    fn service(&self) -> Option<Arc<Service>> {
        self.service.get()?.upgrade()
    }

    /// Holds one shard more, of which there is no other copy: its store is made, or opened where
    /// there is one already.
    ///
    /// # Errors
    ///
    /// The store cannot be opened; slots that another shard here has. Nothing has changed then, but
    /// for the folder of a store that was made.
    pub(crate) fn add(&self, id: ShardId, slots: &[(u16, u16)]) -> Result<()> {
        let _changing = self.changing.lock();
        self.hold(self.stores.open_more(&ShardOptions { id, slots: slots.to_vec() })?)
    }

    /// See [`Daemon::become_primary`](crate::Daemon::become_primary). Clients come: its cores get fast
    /// while the store opens, or it takes writes without.
    pub(crate) fn become_primary(&self, id: ShardId, slots: &[(u16, u16)], copied: Copied) -> Result<()> {
        let cores = self.energy.promotion();
        let _changing = self.changing.lock();
        let shard = ShardOptions { id, slots: slots.to_vec() };
        let opened = self.stores.open_primary(&shard, copied)?;
        if cores.wait() == PromotionWait::BelowSpeed {
            info!(shard = id.0, "a promoted copy takes writes before its cores are fast");
        }
        self.hold(opened)
    }

    /// A store that was opened is served from now on; where it cannot be, it is closed again.
    fn hold(&self, opened: OpenShard) -> Result<()> {
        let id = opened.id;
        if let Some(service) = self.service() {
            service.keyspace.add_shard(opened.clone())?;
        }
        self.stores.add(opened);
        info!(shard = id.0, "a shard is served");
        Ok(())
    }

    /// See [`Daemon::resign`](crate::Daemon::resign).
    pub(crate) fn resign(&self, id: ShardId) -> Result<()> {
        // Its keyspace refuses to hold it once more.
        let service = self.service();
        if let Some(service) = &service {
            self.give_up(service, id)?;
        }
        let _changing = self.changing.lock();
        if let Some(service) = &service {
            let store = self.stores.of(id).ok_or(Error::Shard(ShardError::NotHeld(id)))?;
            service.let_go(&store);
            drop(store);
            match service.keyspace.take_shard(id, LET_GO_WITHIN) {
                // Nor was it before, and the store waits for others.
                Ok(_) | Err(ShardError::NotHeld(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.stores.close_one(id)?;
        info!(shard = id.0, "a shard is served no more, and its store is closed");
        Ok(())
    }

    /// No write to the shard is let through from now on. Also where that was said before.
    fn give_up(&self, service: &Service, id: ShardId) -> Result<()> {
        match service.keyspace.give_up_shard(id) {
            Err(ShardError::NotHeld(_)) if self.stores.of(id).is_some() => Ok(()),
            outcome => Ok(outcome?),
        }
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
        held.keys().for_each(|id| _ = shards.take(*id, Owner::Follower));
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
                let has_copies = known.map.shards.values().any(|shard| shard.copies.len() > 1);
                let goes_on = membership.block_on(async {
                    tokio::select! {
                        _ = stopped.changed() => false,
                        changed = following.changed() => changed.is_ok(),
                        () = tokio::time::sleep(RETRY_DELAY), if done.is_err() => true,
                        () = tokio::time::sleep(LAG_INTERVAL), if has_copies => true,
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
            if !shards.take(*id, Owner::Follower) {
                return Err(Error::Configuration(format!("{id} had copies, and is still being closed")));
            }
            if let Err(error) = shards.add(*id, slots) {
                shards.give_back(*id, Owner::Follower);
                return Err(error);
            }
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
        match shards.resign(id) {
            Ok(()) | Err(Error::Shard(ShardError::NotHeld(_))) => {}
            Err(error) => return Err(error),
        }
        held.remove(&id);
        shards.give_back(id, Owner::Follower);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ecotone_control::ids::{Epoch, FederationId, MemberId};

    use super::*;

    #[test]
    fn a_shard_with_copies_is_not_served_by_who_follows_the_map() {
        let mut map = Map { feature_level: 2, ..Map::new(FederationId([7; 8])) };
        let shard = |copies: &[u64]| Shard {
            slots: Vec::new(),
            copies: copies.iter().map(|member| MemberId(*member)).collect(),
            in_sync: BTreeSet::from([MemberId(1)]),
            primary: Some(MemberId(1)),
            epoch: Epoch(1),
            set_version: 1,
        };
        let replicated = |map: &Map| [&[1][..], &[1, 2]].map(|copies| is_replicated(map, &shard(copies)));
        assert_eq!(replicated(&map), [false, true]);
        for (copies, all) in [("1", true), ("2", true)] {
            map.settings.insert("replication.copies".into(), copies.into());
            assert_eq!(replicated(&map), [all, true], "{copies}");
        }
    }
}
