//! What the rest of a server knows of the federation, and asks of it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ecotone_control::entry::Entry;
use ecotone_control::machine::{RULES_OF_COPIES, Refusal};
use ecotone_control::map::{Features, Map};
use ecotone_control::recover::has_voted_alone;
use ecotone_identity::{Identity, JoinToken};
use ecotone_transport::connections::{Connections, Timeouts};
use ecotone_transport::security::Security;
use parking_lot::RwLock;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::driver::Driver;
use crate::duties;
use crate::error::{Error, Result};
use crate::folder;
use crate::known::{Announced, Known};
use crate::outbox::{Callers, Outboxes, Paths};
use crate::proposals::Decided;
use crate::seal::Custody;
use crate::shared::Shared;

/// The feature levels of this build. The highest rises when a new kind of entry, or another thing
/// that all servers must know, comes in; the lowest when support for an old one goes.
pub const FEATURES: Features = Features { min: 1, max: RULES_OF_COPIES };
/// How long a stop waits for calls under way.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// What a server's part in the federation needs.
#[derive(Debug, Clone)]
pub struct Options {
    /// The folder of the control plane's log.
    pub directory: PathBuf,
    /// The folder of the server's identity.
    pub identity_folder: PathBuf,
    /// A server that may know who leads, beside those of the map.
    pub join: Option<String>,
    /// What fails together with this server; empty: nobody says.
    pub zone: String,
    /// The feature levels that this server says it knows: [`FEATURES`], but in tests.
    pub features: Features,
}

/// A server's part in its federation. Ends when dropped.
pub struct Membership {
    shared: Arc<Shared>,
    bulk: Arc<Connections>,
    /// At its start.
    has_voted_alone: bool,
    runtime: Option<Runtime>,
}

impl Membership {
    /// Goes on with the log in the server's folder. When this returns, servers that are known to be
    /// removed are refused. Connections of `also` are made anew when the certificate is.
    ///
    /// # Errors
    /// [`Error::Log`]; [`Error::Control`] for a log of a newer build; [`Error::Refused`] where the
    /// federation works at a level that this build does not know; [`Error::Usage`] if log and
    /// certificate are not of one server.
    pub fn start(
        options: Options,
        security: Arc<Security>,
        timeouts: Timeouts,
        also: Vec<Arc<Connections>>,
    ) -> Result<Membership> {
        let Options { directory, identity_folder, join, zone, features } = options;
        let Some(identity) = security.identity().cloned() else {
            return Err(Error::Usage("a server without a certificate is in no federation".into()));
        };
        let opened = folder::open(&directory)?;
        let own = identity.own();
        let in_log = opened.content.identity;
        if in_log.member.0 != own.member.number() || in_log.federation.0 != own.federation.bytes() {
            return Err(Error::Usage(format!(
                "{} is of {} of federation {}, the certificate of server {} of federation {}: one of the two was copied here",
                directory.display(),
                in_log.member,
                in_log.federation,
                own.member.number(),
                own.federation
            )));
        }
        let has_voted_alone = has_voted_alone(&opened.content);
        let first = opened.known()?;
        let level = first.map.feature_level;
        // Who has joined a moment ago has no map.
        if !first.map.servers.is_empty() && !features.support(level) {
            return Err(Error::Refused(
                Refusal::FeatureLevel { level, min: features.min, max: features.max }.to_string(),
            ));
        }
        refuse_removed(&identity, &first.map);
        let member = first.member;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("ecotone-members")
            .enable_all()
            .build()
            .map_err(|source| Error::Thread { what: "messages of the control plane", source })?;
        let connections = Arc::new(Connections::new(own.name.clone(), timeouts, security.clone()));
        let bulk = Arc::new(Connections::new(own.name, timeouts, security.clone()));
        let also = also.into_iter().chain([bulk.clone()]).collect();
        let known = watch::Sender::new(Arc::new(first));
        let (announced, callers) = (watch::Sender::new(None), Arc::new(Callers::default()));
        let paths = Paths {
            connections: connections.clone(),
            known: known.subscribe(),
            announced: announced.subscribe(),
            callers: callers.clone(),
        };
        let handle = runtime.handle().clone();
        let driver = Driver::start(opened, directory.clone(), known, security.clone(), |events| {
            Outboxes::new(handle, paths, events)
        })?;
        let shared = Arc::new(Shared {
            member,
            identity,
            security,
            connections,
            join,
            custody: Custody::new(&identity_folder)?,
            announced,
            callers,
            runtime: runtime.handle().clone(),
            known: driver.known(),
            driver: RwLock::new(Some(Arc::new(driver))),
        });
        runtime.spawn(follow(shared.clone()));
        runtime.spawn(duties::announce(shared.clone(), in_log.directory, zone, features));
        runtime.spawn(duties::lead(shared.clone()));
        runtime.spawn(duties::fetch_seal(shared.clone()));
        runtime.spawn(duties::renew(shared.clone(), also));
        runtime.spawn(duties::cut(shared.clone()));
        runtime.spawn(duties::seek(shared.clone()));
        Ok(Membership { shared, bulk, has_voted_alone, runtime: Some(runtime) })
    }

    /// What is known now.
    pub fn known(&self) -> Arc<Known> {
        self.shared.known()
    }

    /// A way to wait for news.
    pub fn following(&self) -> watch::Receiver<Arc<Known>> {
        self.shared.following()
    }

    /// Where this server can be reached from now on; the others are told.
    pub fn announce(&self, announced: Announced) {
        self.shared.announced.send_replace(Some(announced));
    }

    /// Waits, on a thread of the caller's, as a task of this server's would.
    pub fn block_on<F: Future>(&self, work: F) -> F::Output {
        self.shared.runtime.block_on(work)
    }

    /// Waits until this server's map is that of the others, for at most ten seconds. One that votes
    /// alone has nobody to ask: all that is in its log is decided. Without an answer the last map
    /// counts: no server waits for ever because others are off.
    pub fn catch_up(&self) {
        if self.has_voted_alone {
            return;
        }
        // When it is applied here, so is all before it.
        if let Err(error) = self.propose(Entry::Barrier) {
            warn!(
                %error,
                "this server goes on by the last map that it has; what was given to another server meanwhile must not be served here"
            );
        }
    }

    /// Has a change decided, wherever the leader is. Blocks for at most ten seconds.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::NotDecided`].
    pub fn propose(&self, entry: Entry) -> Result<Decided> {
        self.shared.runtime.block_on(self.shared.propose(entry))
    }

    /// As [`propose`](Self::propose), without waiting: `done` is called with what became of it.
    pub fn propose_later(&self, entry: Entry, done: impl FnOnce(Result<Decided>) + Send + 'static) {
        let shared = self.shared.clone();
        self.shared.runtime.spawn(async move { done(shared.propose(entry).await) });
    }

    /// Waits, on a thread of the caller's, until something else is known than `following` has seen, for
    /// `longest` at most. What is known then counts as seen.
    pub fn wait_for_change(&self, following: &mut watch::Receiver<Arc<Known>>, longest: Duration) {
        self.shared.runtime.block_on(async {
            let _ = tokio::time::timeout(longest, following.changed()).await;
        });
    }

    /// A token with which one server can join within an hour.
    ///
    /// # Errors
    /// [`Error::NotAVoter`] where this server does not keep the authority.
    pub fn issue_token(&self) -> Result<JoinToken> {
        let known = self.known();
        match self.shared.custody.authority(&known.map)? {
            Some(authority) => Ok(authority.issue_token(self.shared.identity.now())?),
            None => {
                let names = known.voters.iter().filter_map(|voter| known.map.server(*voter));
                let names: Vec<&str> = names.map(|server| server.name.as_str()).collect();
                Err(Error::NotAVoter(known.member, names.join(", ")))
            }
        }
    }

    /// Whether this server has the key of the federation's authority, and so can let servers in while
    /// it leads, and issue tokens. One that votes has it soon, if another one that has it can be
    /// reached.
    pub fn keeps_authority(&self) -> bool {
        matches!(self.shared.custody.authority(&self.known().map), Ok(Some(_)))
    }

    /// A server that speaks of another history of this generation: the federation was begun anew by
    /// force on two servers. One of the two histories must end: stop those of one, and let them join
    /// anew.
    pub fn other_history(&self) -> Option<ecotone_control::ids::MemberId> {
        self.shared.driver().and_then(|driver| driver.other_history())
    }

    /// The connections to other servers that carry the control plane's messages, for small ones of
    /// others: to be opened on [`runtime`](Self::runtime).
    pub fn connections(&self) -> &Arc<Connections> {
        &self.shared.connections
    }

    /// Connections to the same servers for what is long, and must not be ahead of small messages.
    /// Nothing of the control plane goes over them; they are made anew with the certificate.
    pub fn bulk_connections(&self) -> &Arc<Connections> {
        &self.bulk
    }

    /// Where the control plane's messages are carried, by one thread: nothing there may wait.
    pub fn runtime(&self) -> &Handle {
        &self.shared.runtime
    }

    /// What other servers call.
    pub fn service(&self) -> crate::Service {
        crate::Service(self.shared.clone())
    }

    /// Who answers servers that join, and that ask for their next certificate.
    pub fn enrollment(&self) -> Arc<dyn ecotone_transport::enrollment::Enrollment> {
        Arc::new(crate::enrollment::AtLeader(self.shared.clone()))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let driver = self.shared.driver.write().take();
        if let Some(driver) = driver {
            driver.stop();
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(STOP_TIMEOUT);
        }
    }
}

/// Has connections refused of servers that the map knows to be removed.
fn refuse_removed(identity: &Identity, map: &Map) -> bool {
    let present: BTreeSet<u64> = map.members().map(|(member, _)| member.0).collect();
    identity.set_members(map.next_member, present)
}

/// Applies the map to connections, as it changes.
async fn follow(shared: Arc<Shared>) {
    let mut following = shared.following();
    let mut was_removed = false;
    loop {
        let known = following.borrow_and_update().clone();
        let map = &known.map;
        if refuse_removed(&shared.identity, map) {
            let cut = shared.security.cut_unwelcome(shared.identity.now());
            info!(servers = map.members().count(), connections_cut = cut, "the servers of the federation have changed");
        }
        if known.is_removed() && !std::mem::replace(&mut was_removed, true) {
            warn!(
                "this server was removed from the federation: to come back it joins anew, with a token and an empty folder"
            );
        }
        if following.changed().await.is_err() {
            return;
        }
    }
}
