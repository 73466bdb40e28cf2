//! One server's part in a federation: its start and stop, and what its program asks of it.
//!
//! # Threads
//!
//! A run time with few threads carries all messages; they have the duty `transport`. A job of
//! another server has a thread of its own, a job of this server holds its compaction's thread.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ecotone_energy::ThreadDuties;
use ecotone_engine::{CompactionFinished, CompactionOffload};
use ecotone_identity::join::Joining;
use ecotone_identity::{Clock, JoinToken, Joined, Peer};
use ecotone_membership::{Announced, Known, Membership};
use ecotone_policy::machine::{ModelReport, PolicyCore};
use ecotone_transport::Error as TransportError;
use ecotone_transport::connections::{CONNECTION_WINDOW_BYTES, FRAME_BYTES, STREAM_WINDOW_BYTES};
use ecotone_transport::enrollment::{Enrollment, Introduction, refused};
use ecotone_transport::listener::{Accepting, accept};
use ecotone_transport::peers::{Link, Quotas};
use ecotone_transport::protocol::{MAX_MESSAGE_BYTES, refuse_other_versions};
use ecotone_transport::security::Security;
use ecotone_transport::wire::control_server::ControlServer;
use ecotone_transport::wire::coordinator_server::CoordinatorServer;
use ecotone_transport::wire::peer_server::PeerServer;
use ecotone_transport::wire::worker_server::WorkerServer;
use ecotone_transport::wire::{EnrollReply, EnrollRequest};
use ecotone_types::ServerId;
use ecotone_types::{Duty, DutyObserver};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::Server;
use tracing::{info, warn};

use crate::activity::{KnownServer, LoadSource};
use crate::config::Options;
use crate::coordinator;
use crate::copies::{HeldCopies, PrimaryCopy};
use crate::error::{Error, Result};
use crate::finished_jobs::JobObserver;
use crate::member::{Coordinator, Member, Parts};
use crate::owner::OwnerSide;
use crate::placement_queue::PlacementQueue;
use crate::reports;
use crate::services::Services;
use crate::statistics::FederationStatistics;

/// Threads that carry messages. Moving bytes is cheap beside compacting them.
const TRANSPORT_THREADS: usize = 2;
/// Threads for what would block the run time: looking up names.
const BLOCKING_THREADS: usize = 2;
/// How long a stop waits for calls under way.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for the answer when a server joins. The authority syncs its device meanwhile.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that wait to be served.
const CONNECTIONS_WAITING: usize = 64;
/// The most often that outputs are looked for that no owner came for.
const MIN_ORPHAN_LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// And the least: each look wakes an idle server.
const MAX_ORPHAN_LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// How the compactions of one store are placed: RocksDB numbers those of each store from the
/// beginning, so a store has one of its own.
#[derive(Clone)]
pub struct StoreOffload(Arc<OwnerSide>);

impl StoreOffload {
    /// What the store's options need.
    pub fn offload(&self) -> Arc<dyn CompactionOffload> {
        self.0.clone()
    }

    /// To be called with every compaction that the store reports: the models learn from those that
    /// ran here.
    pub fn compaction_finished(&self, event: &CompactionFinished) {
        self.0.compaction_finished(event);
    }
}

/// One server's part in a federation. Stops when dropped.
pub struct Federation {
    member: Arc<Member>,
    /// Of the stores whose compactions are placed.
    owners: Mutex<Vec<Weak<OwnerSide>>>,
    membership: Option<Arc<Membership>>,
    runtime: Option<Runtime>,
}

impl Federation {
    /// Starts to listen and to report, and to coordinate where it leads, or where it neither has an
    /// identity nor joins another. A coordinator that cannot be reached yet is no error: everything
    /// is local until it can.
    ///
    /// # Errors
    /// [`Error::Configuration`] for options that cannot work; [`Error::Listen`]; [`Error::Io`] for
    /// the worker's folder.
    pub fn start(options: Options, duties: Arc<ThreadDuties>, observer: Arc<dyn JobObserver>) -> Result<Federation> {
        Federation::start_with(options, duties, observer, |routes| routes)
    }

    /// The same, with services of others beside its own.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        options: Options,
        duties: Arc<ThreadDuties>,
        observer: Arc<dyn JobObserver>,
        add_services: impl FnOnce(Routes) -> Routes,
    ) -> Result<Federation> {
        options.validate()?;
        let (begin, end) = (duties.clone(), duties.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(TRANSPORT_THREADS)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("ecotone-transport")
            .on_thread_start(move || begin.begin(Duty::Transport))
            .on_thread_stop(move || end.end())
            .enable_all()
            .build()
            .map_err(|error| Error::Configuration(format!("no run time for the network: {error}")))?;
        let listener = runtime
            .block_on(TcpListener::bind(options.listen))
            .and_then(|listener| listener.local_addr().map(|address| (listener, address)))
            .map_err(|source| Error::Listen { address: options.listen, source });
        let (listener, listening): (_, SocketAddr) = listener?;
        let address = options.announce.clone().unwrap_or_else(|| listening.to_string());
        let unusable = |error: &dyn std::fmt::Display| Error::Configuration(error.to_string());
        let name = match (&options.identity, &options.name) {
            (Some(identity), _) => identity.own().name,
            (None, Some(name)) => name.clone(),
            // Of the port that it got: servers that all ask for any would have one name.
            (None, None) => ServerId::new(address.clone()).map_err(|error| unusable(&error))?,
        };
        let core = PolicyCore::new(name.clone(), options.policy.clone()).map_err(|error| unusable(&error))?;

        let (queue, queue_end) = PlacementQueue::new(options.limits.placement_queue);
        let security = Security::new(options.identity.clone(), Quotas::with_rate(options.network_bytes_per_s));
        let member = Arc::new(Member::new(Parts {
            options,
            name,
            address,
            runtime: runtime.handle().clone(),
            core,
            queue,
            security,
            duties,
            observer,
        })?);

        // Before anybody is let in: it knows who was removed.
        let membership = match member.options.membership.clone() {
            None => None,
            Some(options) => {
                let also = vec![member.connections.clone()];
                let timeouts = member.options.limits.timeouts();
                let membership = Membership::start(options, member.security.clone(), timeouts, also)?;
                membership.announce(Announced { peers: member.address(), clients: None });
                Some(Arc::new(membership))
            }
        };
        let enrollment: Arc<dyn Enrollment> = match &membership {
            Some(membership) => membership.enrollment(),
            None => Arc::new(NoFederation),
        };

        let (for_calls, calls) = tokio::sync::mpsc::channel(CONNECTIONS_WAITING);
        let limits = &member.options.limits;
        let accepting = Accepting {
            security: member.security.clone(),
            file_server: member.file_server.clone(),
            for_calls,
            enrollment,
            max_connections: limits.connections,
            greeting_timeout: limits.heartbeat_timeout,
        };
        runtime.spawn(accept(listener, accepting));
        let services = Services { member: member.clone() };
        let routes = Routes::new(PeerServer::new(services.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
            .add_service(CoordinatorServer::new(services.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
            .add_service(WorkerServer::new(services).max_decoding_message_size(MAX_MESSAGE_BYTES));
        let routes = match &membership {
            Some(membership) => {
                let control = ControlServer::new(membership.service());
                routes.add_service(control.max_decoding_message_size(MAX_MESSAGE_BYTES))
            }
            None => routes,
        };
        let serving = Server::builder()
            .http2_keepalive_interval(Some(limits.heartbeat_timeout / 2))
            .http2_keepalive_timeout(Some(limits.heartbeat_timeout))
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES)
            .max_concurrent_streams(limits.calls_per_connection)
            .add_routes(refuse_other_versions(add_services(routes)))
            .serve_with_incoming(ReceiverStream::new(calls));
        runtime.spawn(async move {
            if let Err(error) = serving.await {
                warn!(%error, "the federation's services ended");
            }
        });
        runtime.spawn(reports::run(member.clone()));
        runtime.spawn(tick(member.clone()));
        runtime.spawn(coordinator::serve(member.clone(), queue_end));
        if let Some(membership) = &membership {
            runtime.spawn(follow_leader(member.clone(), membership.following()));
        }
        info!(
            server = %member.name,
            address = member.own_address(),
            coordinator = member.coordinator_address(),
            policy = %member.options.policy.policy,
            "in the federation"
        );
        Ok(Federation { member, owners: Mutex::default(), membership, runtime: Some(runtime) })
    }

    /// This server's part in the control plane; `None` where it has no identity.
    pub fn membership(&self) -> Option<&Arc<Membership>> {
        self.membership.as_ref()
    }

    /// Where calls of other servers are answered, and where those that carry bulk may be made.
    pub fn runtime(&self) -> &Handle {
        &self.member.runtime
    }

    /// Where other servers reach this one.
    pub fn address(&self) -> &str {
        self.member.own_address()
    }

    /// Places the compactions of one more store.
    pub fn store_offload(&self) -> StoreOffload {
        self.place_for(OwnerSide::new(self.member.clone(), None))
    }

    /// The same of a store that was opened as the primary of a shard with copies: its jobs belong to
    /// that epoch, and go where a copy is if that is cheaper.
    pub fn store_offload_of(&self, primary: Arc<dyn PrimaryCopy>) -> StoreOffload {
        self.place_for(OwnerSide::new(self.member.clone(), Some(primary)))
    }

    fn place_for(&self, owner: OwnerSide) -> StoreOffload {
        let owner = Arc::new(owner);
        let mut owners = self.owners.lock();
        owners.retain(|owner| owner.strong_count() > 0);
        owners.push(Arc::downgrade(&owner));
        StoreOffload(owner)
    }

    /// The copies of shards here, which jobs of other servers may read from now on. Called once; later
    /// calls change nothing.
    pub fn set_held_copies(&self, copies: Arc<dyn HeldCopies>) {
        self.member.set_held_copies(copies);
    }

    /// Where the server's load is read from now on. Called once, when its store is open; later
    /// calls change nothing.
    pub fn set_load_source(&self, source: Arc<dyn LoadSource>) {
        self.member.set_load_source(source);
    }

    /// The load source has a new measurement, which is taken now: once a second, as the forecast of
    /// the input rate counts in seconds. Without a load source it does nothing. Never waits for the
    /// network.
    pub fn load_measured(&self) {
        reports::measured(&self.member);
    }

    /// Counters since the start.
    pub fn statistics(&self) -> FederationStatistics {
        self.member.counters()
    }

    /// The open connections with servers that have shown who they are. None in plain text.
    pub fn links(&self) -> Vec<Link> {
        self.member.security.peers().links()
    }

    /// This server's name.
    pub fn name(&self) -> &ServerId {
        &self.member.name
    }

    /// This server first, then the others that it knows, by name: all that report where it is the
    /// coordinator, else its coordinator. Bounded by the policy's `max_servers`.
    pub fn servers(&self) -> Vec<KnownServer> {
        self.member.servers()
    }

    /// What the models of this server know.
    pub fn models(&self) -> ModelReport {
        self.member.models()
    }
}

impl Drop for Federation {
    fn drop(&mut self) {
        self.owners.lock().iter().filter_map(Weak::upgrade).for_each(|owner| owner.cancel_all());
        self.member.worker.cancel_all();
        self.member.worker.wait_for_threads(STOP_TIMEOUT);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(STOP_TIMEOUT);
        }
    }
}

/// Answers of a server that takes nobody in.
struct NoFederation;

impl Enrollment for NoFederation {
    fn answer(&self, _request: &EnrollRequest, _peer: Option<&Peer>) -> EnrollReply {
        refused("no-federation", "this server keeps no record of who belongs to the federation")
    }
}

/// The leader coordinates.
async fn follow_leader(member: Arc<Member>, mut following: watch::Receiver<Arc<Known>>) {
    loop {
        let known = following.borrow_and_update().clone();
        let coordinator = if known.leads() {
            Coordinator::Here
        } else {
            let leader = known.leader.and_then(|leader| known.map.server(leader));
            match leader.map(|leader| leader.addresses.peers.clone()).filter(|address| !address.is_empty()) {
                Some(address) => Coordinator::At(address),
                None => Coordinator::Unknown,
            }
        };
        if member.set_coordinator(coordinator.clone()) {
            info!(?coordinator, "jobs are placed by");
        }
        if following.changed().await.is_err() {
            return;
        }
    }
}

/// Joins the federation of the token as `name`: asks the server at `address` for a certificate, and
/// stores it in the folder of identities. Blocks.
///
/// # Errors
/// As [`ecotone_transport::enrollment::join`].
pub fn join_federation(
    folder: &Path,
    address: &str,
    token: JoinToken,
    name: ServerId,
    about: &Introduction,
    clock: &Arc<dyn Clock>,
) -> Result<Joined> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Configuration(format!("no run time for the network: {error}")))?;
    let joining = Joining::begin(folder, token, name).map_err(TransportError::from)?;
    Ok(runtime.block_on(ecotone_transport::enrollment::join(joining, address, about, clock, JOIN_TIMEOUT))?)
}

/// Removes outputs that no owner came for.
async fn tick(member: Arc<Member>) {
    // So often that they are kept little longer than they should be.
    let interval = member.options.limits.output_kept / 10;
    let mut tick = tokio::time::interval(interval.clamp(MIN_ORPHAN_LOOK_INTERVAL, MAX_ORPHAN_LOOK_INTERVAL));
    loop {
        tick.tick().await;
        member.worker.forget_orphans(&member.options.limits);
    }
}
