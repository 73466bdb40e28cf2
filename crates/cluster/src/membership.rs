//! Who is in the federation: certificates are renewed, removed servers are cut off.
//!
//! The coordinator keeps the authority and reads its record of removed servers; the others wait for
//! it to answer that the record has changed. Each refuses what it knows to be removed, also while it
//! does not reach the coordinator; a certificate that has ended is refused by all.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ecotone_identity::{Authority, Identity, MemberId};
use ecotone_transport::Error as TransportError;
use ecotone_transport::enrollment;
use ecotone_transport::protocol::{MAX_MESSAGE_BYTES, failed_call};
use ecotone_transport::wire::RemovedServers;
use ecotone_transport::wire::coordinator_client::CoordinatorClient;
use tracing::{debug, info, warn};

use crate::error::{Error, Result};
use crate::member::Member;

/// How often the record is looked at, and connections that have become unwelcome are cut: a removed
/// server is to be refused within a second by all.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How often it is checked whether the certificate is to be renewed.
const RENEWAL_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// After so long the coordinator answers that nothing has changed.
const WATCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Applies the authority's record, where this server keeps it, and cuts off who is unwelcome.
pub(crate) async fn enforce(member: Arc<Member>) {
    let Some(identity) = member.security.identity().cloned() else { return };
    let mut tick = tokio::time::interval(CHECK_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut was_unreadable = false;
    loop {
        tick.tick().await;
        if let (Some(authority), Some(_)) = (&member.options.authority, &member.queue) {
            match removed_of(authority.clone()).await {
                Ok(removed) => {
                    was_unreadable = false;
                    apply(&member, &identity, removed);
                }
                Err(error) if !std::mem::replace(&mut was_unreadable, true) => {
                    warn!(%error, "the federation's record cannot be read; removed servers stay as they were");
                }
                Err(_) => {}
            }
        }
        member.security.cut_unwelcome(identity.now());
    }
}

async fn removed_of(authority: Arc<Authority>) -> Result<BTreeSet<MemberId>> {
    let state = tokio::task::spawn_blocking(move || authority.state()).await;
    let state = state.map_err(|error| Error::Configuration(error.to_string()))?.map_err(TransportError::from)?;
    Ok(state.removed().collect())
}

fn apply(member: &Member, identity: &Identity, removed: BTreeSet<MemberId>) {
    let before = identity.removed();
    let news: Vec<String> = removed.difference(&before).map(ToString::to_string).collect();
    if !identity.set_removed(removed) {
        return;
    }
    let cut = member.security.cut_unwelcome(identity.now());
    if !news.is_empty() {
        info!(removed = news.join(", "), connections_cut = cut, "servers were removed from the federation");
    }
    member.removed.send_replace(());
}

fn on_wire(removed: &BTreeSet<MemberId>) -> Vec<String> {
    removed.iter().map(ToString::to_string).collect()
}

/// The coordinator's side: answers when others were removed than the caller knows of.
pub(crate) async fn changed(member: &Member, known: &[String]) -> RemovedServers {
    let Some(identity) = member.security.identity() else { return RemovedServers::default() };
    let mut news = member.removed.subscribe();
    let wait = async {
        loop {
            let members = on_wire(&identity.removed());
            if members != known || news.changed().await.is_err() {
                return RemovedServers { members };
            }
        }
    };
    match tokio::time::timeout(WATCH_TIMEOUT, wait).await {
        Ok(changed) => changed,
        Err(_) => RemovedServers { members: on_wire(&identity.removed()) },
    }
}

/// The others' side. The reports connect; here is only asked.
pub(crate) async fn watch(member: Arc<Member>) {
    let Some(identity) = member.security.identity().cloned() else { return };
    loop {
        let address = member.coordinator_address();
        let asked = match member.connections.if_open(&address) {
            Some(channel) => {
                let known = RemovedServers { members: on_wire(&identity.removed()) };
                let mut coordinator = CoordinatorClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
                let longest = WATCH_TIMEOUT + member.options.limits.heartbeat_timeout;
                match tokio::time::timeout(longest, coordinator.watch_removed(known)).await {
                    Ok(Ok(reply)) => Some(reply.into_inner()),
                    Ok(Err(status)) => {
                        debug!(error = %failed_call(&address, &status), "removed servers are not told");
                        None
                    }
                    Err(_) => None,
                }
            }
            None => None,
        };
        let removed =
            asked.map(|asked| asked.members.iter().map(|id| id.parse()).collect::<ecotone_identity::Result<_>>());
        match removed {
            Some(Ok(removed)) => apply(&member, &identity, removed),
            Some(Err(error)) => {
                debug!(%error, "the coordinator sends what is no id of a server");
                tokio::time::sleep(member.options.limits.report_interval).await;
            }
            None => tokio::time::sleep(CHECK_INTERVAL).await,
        }
    }
}

/// Renews the certificate when half of its life is over.
pub(crate) async fn renew(member: Arc<Member>) {
    let Some(identity) = member.security.identity().cloned() else { return };
    let mut tick = tokio::time::interval(RENEWAL_CHECK_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if !identity.renewal_is_due() {
            continue;
        }
        let renewed = match (&member.options.authority, &member.queue) {
            (Some(authority), Some(_)) => renew_here(identity.clone(), authority.clone()).await,
            _ => {
                let address = member.coordinator_address();
                let longest = member.options.limits.heartbeat_timeout;
                enrollment::renew(&member.security, &address, longest).await.map_err(Error::from)
            }
        };
        match renewed {
            Ok(()) => {
                info!(ends_unix = identity.own().ends.0, "the certificate is renewed");
                member.connections.renew().await;
            }
            Err(error) => {
                identity.renewal_failed();
                let ends_in_s = identity.own().ends.since(identity.now());
                warn!(%error, ends_in_s, "the certificate could not be renewed; it is tried again");
            }
        }
    }
}

async fn renew_here(identity: Arc<Identity>, authority: Arc<Authority>) -> Result<()> {
    let renewed = tokio::task::spawn_blocking(move || {
        let renewal = identity.begin_renewal()?;
        let issued = authority.renew(identity.own().member, &renewal.request, identity.now())?;
        identity.end_renewal(&renewal, &issued)
    });
    let renewed = renewed.await.map_err(|error| Error::Configuration(error.to_string()))?;
    Ok(renewed.map_err(TransportError::from)?)
}
