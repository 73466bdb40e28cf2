//! What a server does by itself: it says where it is, fetches the seal when it begins to vote, and
//! while it leads keeps the map tidy.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ecotone_control::entry::Entry;
use ecotone_control::ids::DirectoryId;
use ecotone_control::map::{Addresses, Features, Map, ServerState};
use ecotone_identity::SealKey;
use ecotone_transport::connections::Connections;
use ecotone_transport::enrollment;
use ecotone_transport::wire::control_client::ControlClient;
use ecotone_transport::wire::{RaftMessage, SealKeyRequest};
use tracing::{debug, info, warn};

use crate::error::Error;
use crate::shared::Shared;

/// After a failure it is tried again so much later.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// After a refusal so much later, twice as long after each further one: it is refused until something
/// has changed, another build mostly.
const MIN_REFUSED_DELAY: Duration = Duration::from_secs(60);
/// And at most.
const MAX_REFUSED_DELAY: Duration = Duration::from_secs(600);
/// How often others are told where this server is while nobody leads.
const SEEK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for one of them.
const MAX_SEEK_TIME: Duration = Duration::from_secs(3);
/// How often the leader looks whether there is something to do.
const LEADER_INTERVAL: Duration = Duration::from_millis(500);
/// How often the leader forgets what is over.
const PRUNE_INTERVAL: Duration = Duration::from_secs(600);
/// How often it is looked whether the certificate is to be renewed.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(500);
/// After a renewal that failed so much later, where the certificate is of no use: nothing works then.
const INVALID_DELAY: Duration = Duration::from_secs(5);
/// Longest wait for the next certificate.
const MAX_RENEWAL_TIME: Duration = Duration::from_secs(5);
/// How often connections are cut whose certificates have ended.
const CUT_INTERVAL: Duration = Duration::from_millis(500);
/// Longest wait for the seal.
const MAX_SEAL_TIME: Duration = Duration::from_secs(3);

/// Says where this server is, until the map says so.
pub(crate) async fn announce(shared: Arc<Shared>, directory: DirectoryId, zone: String, features: Features) {
    let (mut following, mut announced) = (shared.following(), shared.announced.subscribe());
    let mut refused_delay = MIN_REFUSED_DELAY;
    loop {
        let known = following.borrow_and_update().clone();
        let own = announced.borrow_and_update().clone();
        if known.is_removed() {
            return;
        }
        let there = known.map.server(shared.member);
        let entry = own.and_then(|own| {
            // Without any, those that were announced before stay.
            let addresses = Addresses { peers: own.peers, clients: own.clients.unwrap_or_default() };
            let is_said = there.is_some_and(|server| {
                server.addresses.peers == addresses.peers
                    && (addresses.clients.is_empty() || server.addresses.clients == addresses.clients)
                    && server.zone == zone
                    && server.features == features
                    && server.state != ServerState::Joining
            });
            let (member, zone) = (shared.member, zone.clone());
            (!is_said).then_some(Entry::Announce { member, directory, addresses, zone, features })
        });
        if let Some(entry) = entry {
            match shared.propose(entry).await {
                Ok(decided) => {
                    refused_delay = MIN_REFUSED_DELAY;
                    debug!(index = decided.index, "this server's addresses are in the map");
                }
                Err(error @ Error::Refused(_)) => {
                    warn!(%error, again_s = refused_delay.as_secs(), "the federation does not take what this server says of itself");
                    let version = known.map.version;
                    let changes = async {
                        tokio::select! {
                            changed = following.wait_for(|known| known.map.version != version) => changed.is_ok(),
                            changed = announced.changed() => changed.is_ok(),
                        }
                    };
                    match tokio::time::timeout(refused_delay, changes).await {
                        Ok(false) => return,
                        Ok(true) => {}
                        Err(_) => refused_delay = (2 * refused_delay).min(MAX_REFUSED_DELAY),
                    }
                    continue;
                }
                Err(error) => {
                    warn!(%error, "the federation does not know where this server is; it is told again");
                    tokio::time::sleep(RETRY_DELAY).await;
                    continue;
                }
            }
        }
        let ended = tokio::select! {
            changed = following.changed() => changed.is_err(),
            changed = announced.changed() => changed.is_err(),
        };
        if ended {
            return;
        }
    }
}

/// What a leader does.
pub(crate) async fn lead(shared: Arc<Shared>) {
    let mut tick = tokio::time::interval(LEADER_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut pruned = tokio::time::Instant::now();
    loop {
        tick.tick().await;
        let known = shared.known();
        if !known.leads() {
            continue;
        }
        let now_s = shared.identity.now().0;
        let mut entries = Vec::new();
        entries.extend(level_to_reach(&known.map).map(|level| Entry::RaiseFeatureLevel { level }));
        if pruned.elapsed() >= PRUNE_INTERVAL && is_over(&known.map, now_s) {
            pruned = tokio::time::Instant::now();
            entries.push(Entry::Prune { now_s });
        }
        for entry in entries {
            match shared.propose(entry.clone()).await {
                Ok(_) => info!(?entry, "the federation has changed"),
                Err(error) => debug!(%error, ?entry, "a change was not made; it is tried again"),
            }
        }
    }
}

/// The highest feature level that all servers know, if it is above the present one.
fn level_to_reach(map: &Map) -> Option<u32> {
    let level = map.members().map(|(_, server)| server.features.max).min()?;
    (level > map.feature_level).then_some(level)
}

/// Whether the map remembers what nobody need know any more.
fn is_over(map: &Map, now_s: u64) -> bool {
    map.spent_tokens.values().any(|spent| spent.expires_s <= now_s)
        || map.servers.values().any(|server| server.state == ServerState::Removed)
}

/// Says where this server is to those that may be there, while nobody leads: when all were started
/// elsewhere, no map says where anybody is. Who is told sends there what it has to say.
pub(crate) async fn seek(shared: Arc<Shared>) {
    let mut tick = tokio::time::interval(SEEK_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let known = shared.known();
        let own = shared.announced.borrow().as_ref().map(|own| own.peers.clone()).unwrap_or_default();
        if known.leader.is_some() || known.is_removed() || own.is_empty() {
            continue;
        }
        let mut told = tokio::task::JoinSet::new();
        for address in shared.hints(&known.map) {
            let (connections, own) = (shared.connections.clone(), own.clone());
            told.spawn(async move {
                let says = async {
                    let channel = connections.to(&address, None).await.map_err(|error| error.to_string())?;
                    let message = RaftMessage { message: Vec::new(), address: own };
                    let mut client = ControlClient::new(channel);
                    let call = client.raft(tokio_stream::once(message));
                    call.await.map_err(|status| status.message().to_owned())
                };
                let said = tokio::time::timeout(MAX_SEEK_TIME, says).await;
                if let Err(why) = said.unwrap_or_else(|_| Err("no answer in time".into())) {
                    connections.forget(&address);
                    debug!(address, why, "a server was not told where this one is");
                }
            });
        }
        while told.join_next().await.is_some() {}
    }
}

/// Gets the seal from another server, when this one begins to vote.
pub(crate) async fn fetch_seal(shared: Arc<Shared>) {
    let mut following = shared.following();
    loop {
        let known = following.borrow_and_update().clone();
        let wants = known.voters.contains(&shared.member) && known.map.authority.is_some();
        // Also when it leads: who led before it may be gone, and others have it that voted once.
        let is_alone = known.map.members().all(|(member, _)| member == shared.member);
        if wants && shared.custody.seal().is_none() && !is_alone {
            match fetch(&shared).await {
                Ok(()) => info!("this server votes, and keeps the authority's key with the others"),
                Err(why) => debug!(why, "the seal of the authority's key did not come; it is asked for again"),
            }
            tokio::time::sleep(RETRY_DELAY).await;
            continue;
        }
        if following.changed().await.is_err() {
            return;
        }
    }
}

async fn fetch(shared: &Shared) -> Result<(), String> {
    let known = shared.known();
    // Whoever has it: the leader, another voter, or one that has voted before.
    let members = known.map.members().map(|(member, _)| member);
    let others = known.leader.into_iter().chain(known.voters.iter().copied()).chain(members);
    let mut asked = BTreeSet::from([shared.member]);
    let mut why = "there is nobody else".to_owned();
    for server in others.filter(|other| asked.insert(*other)).filter_map(|other| known.map.server(other)) {
        if server.addresses.peers.is_empty() {
            continue;
        }
        let asked = async {
            let channel = shared.connections.to(&server.addresses.peers, Some(&server.name)).await;
            let channel = channel.map_err(|error| error.to_string())?;
            let reply = ControlClient::new(channel).seal_key(SealKeyRequest {}).await;
            let key = reply.map_err(|status| status.message().to_owned())?.into_inner().key;
            let seal = SealKey::from_bytes(&key).map_err(|error| error.to_string())?;
            shared.custody.take(seal, &known.map).map_err(|error| error.to_string())
        };
        match tokio::time::timeout(MAX_SEAL_TIME, asked).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => why = error,
            Err(_) => why = "no answer in time".into(),
        }
    }
    Err(why)
}

/// Renews the certificate when half of its life is over.
pub(crate) async fn renew(shared: Arc<Shared>, also: Vec<Arc<Connections>>) {
    let identity = shared.identity.clone();
    let mut tick = tokio::time::interval(RENEWAL_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if !identity.renewal_is_due() {
            continue;
        }
        // With a certificate that is not valid now nobody can speak to another, and so nobody can lead:
        // who keeps the authority gives itself the next one.
        let renewed = if shared.known().leads() || !identity.is_valid_now() {
            renew_here(shared.clone()).await
        } else {
            Err("nobody leads the federation now".into())
        };
        let renewed = match renewed {
            Err(why) if !shared.known().leads() => renew_elsewhere(&shared).await.map_err(|error| error.unwrap_or(why)),
            renewed => renewed,
        };
        match renewed {
            Ok(()) => {
                info!(ends_unix = identity.own().ends.0, "the certificate is renewed");
                for connections in also.iter().chain([&shared.connections]) {
                    connections.renew().await;
                }
            }
            Err(error) if !identity.is_valid_now() => {
                warn!(error, "the certificate is not valid now and could not be renewed; it is tried again");
                tokio::time::sleep(INVALID_DELAY).await;
            }
            Err(error) => {
                identity.renewal_failed();
                let ends_in_s = identity.own().ends.since(identity.now());
                warn!(error, ends_in_s, "the certificate could not be renewed; it is tried again");
            }
        }
    }
}

/// Asks for the next certificate: the leader, and where that is not known, or does not answer,
/// whoever may know it. A certificate that has ended is enough for that.
async fn renew_elsewhere(shared: &Shared) -> Result<(), Option<String>> {
    let leader = Some(shared.leader_address()).filter(|address| !address.is_empty());
    let hints = shared.hints(&shared.known().map);
    let mut asked = BTreeSet::new();
    let mut why = None;
    for address in leader.into_iter().chain(hints).filter(|address| asked.insert(address.clone())) {
        match enrollment::renew(&shared.security, &address, MAX_RENEWAL_TIME).await {
            Ok(()) => return Ok(()),
            Err(error) => why = Some(error.to_string()),
        }
    }
    Err(why)
}

/// A server that keeps the authority gives itself its next certificate.
async fn renew_here(shared: Arc<Shared>) -> Result<(), String> {
    let renewed = tokio::task::spawn_blocking(move || {
        let (identity, known) = (&shared.identity, shared.known());
        let authority = shared.custody.authority(&known.map).map_err(|error| error.to_string())?;
        let authority = authority.ok_or("this server does not keep the authority's key")?;
        authority.renew(identity).map_err(|error| error.to_string())
    });
    renewed.await.map_err(|error| error.to_string())?
}

/// Cuts connections whose certificates have ended.
pub(crate) async fn cut(shared: Arc<Shared>) {
    let mut tick = tokio::time::interval(CUT_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        shared.security.cut_unwelcome(shared.identity.now());
    }
}
