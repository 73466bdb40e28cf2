//! What a server does by itself: it says where it is, fetches the seal when it begins to vote, and
//! while it leads keeps the map tidy.

use std::sync::Arc;
use std::time::Duration;

use ecotone_control::entry::Entry;
use ecotone_control::ids::DirectoryId;
use ecotone_control::map::{Addresses, Features, Map, ServerState};
use ecotone_identity::SealKey;
use ecotone_transport::connections::Connections;
use ecotone_transport::enrollment;
use ecotone_transport::wire::SealKeyRequest;
use ecotone_transport::wire::control_client::ControlClient;
use tracing::{debug, info, warn};

use crate::error::Error;
use crate::shared::Shared;

/// After a failure it is tried again so much later.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// After a refusal so much later.
const REFUSED_DELAY: Duration = Duration::from_secs(5);
/// How often the leader looks whether there is something to do.
const LEADER_INTERVAL: Duration = Duration::from_millis(500);
/// How often the leader forgets what is over.
const PRUNE_INTERVAL: Duration = Duration::from_secs(600);
/// How often it is looked whether the certificate is to be renewed.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(500);
/// Longest wait for the next certificate.
const MAX_RENEWAL_TIME: Duration = Duration::from_secs(5);
/// How often connections are cut whose certificates have ended.
const CUT_INTERVAL: Duration = Duration::from_millis(500);
/// Longest wait for the seal.
const MAX_SEAL_TIME: Duration = Duration::from_secs(3);

/// Says where this server is, until the map says so.
pub(crate) async fn announce(shared: Arc<Shared>, directory: DirectoryId, zone: String, features: Features) {
    let (mut following, mut announced) = (shared.following(), shared.announced.subscribe());
    loop {
        let known = following.borrow_and_update().clone();
        let own = announced.borrow_and_update().clone();
        if known.stopped.is_some() || known.is_removed() {
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
                Ok(decided) => debug!(index = decided.index, "this server's addresses are in the map"),
                Err(error) => {
                    warn!(%error, "the federation does not know where this server is; it is told again");
                    // It is refused until something has changed: another build, mostly.
                    let is_refused = matches!(error, Error::Refused(_));
                    tokio::time::sleep(if is_refused { REFUSED_DELAY } else { RETRY_DELAY }).await;
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
        || map.revoked.values().any(|expires_s| *expires_s <= now_s)
        || map.servers.values().any(|server| server.state == ServerState::Removed)
}

/// Gets the seal from the leader, when this server begins to vote.
pub(crate) async fn fetch_seal(shared: Arc<Shared>) {
    let mut following = shared.following();
    loop {
        let known = following.borrow_and_update().clone();
        let wants = known.voters.contains(&shared.member) && known.map.authority.is_some();
        if wants && shared.custody.seal().is_none() && !known.leads() {
            let fetched = tokio::time::timeout(MAX_SEAL_TIME, fetch(&shared)).await;
            match fetched.unwrap_or_else(|_| Err("no answer in time".into())) {
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
    // Whoever has it: the leader, or another voter.
    let others = known.leader.into_iter().chain(known.voters.iter().copied()).filter(|voter| *voter != shared.member);
    let mut why = "nobody else votes".to_owned();
    for server in others.filter_map(|voter| known.map.server(voter)) {
        let asked = async {
            let channel = shared.connections.to(&server.addresses.peers, Some(&server.name)).await;
            let channel = channel.map_err(|error| error.to_string())?;
            let reply = ControlClient::new(channel).seal_key(SealKeyRequest {}).await;
            let key = reply.map_err(|status| status.message().to_owned())?.into_inner().key;
            let seal = SealKey::from_bytes(&key).map_err(|error| error.to_string())?;
            shared.custody.take(seal, &known.map).map_err(|error| error.to_string())
        };
        match asked.await {
            Ok(()) => return Ok(()),
            Err(error) => why = error,
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
        let renewed = if shared.known().leads() {
            renew_here(shared.clone()).await
        } else {
            let address = Some(shared.leader_address()).filter(|address| !address.is_empty());
            match address.or_else(|| shared.join.clone()) {
                Some(address) => {
                    let renewed = enrollment::renew(&shared.security, &address, MAX_RENEWAL_TIME).await;
                    renewed.map_err(|error| error.to_string())
                }
                None => Err("nobody leads the federation now".into()),
            }
        };
        // Where all certificates have ended nobody can speak to another, and so nobody can lead: who
        // keeps the authority gives itself the next one.
        let renewed = match renewed {
            Err(_) if identity.now() > identity.own().ends => renew_here(shared.clone()).await,
            renewed => renewed,
        };
        match renewed {
            Ok(()) => {
                info!(ends_unix = identity.own().ends.0, "the certificate is renewed");
                for connections in also.iter().chain([&shared.connections]) {
                    connections.renew().await;
                }
            }
            Err(error) => {
                identity.renewal_failed();
                let ends_in_s = identity.own().ends.since(identity.now());
                warn!(error, ends_in_s, "the certificate could not be renewed; it is tried again");
            }
        }
    }
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
