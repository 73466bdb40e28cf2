//! A server that is nothing but its part in a federation.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ecotone_control::entry::{Entry, NewServer};
use ecotone_control::ids::{DirectoryId, FederationId, MemberId};
use ecotone_control::map::{Addresses, Features, Map, Role, ServerState};
use ecotone_identity::founding::{Founded, found};
use ecotone_identity::join::Joining;
use ecotone_identity::{Clock, Identity, JoinToken, Joined, SystemClock, Timestamp};
use ecotone_membership::{Announced, Decided, FEATURES, Known, Membership, Options, Result, folder};
use ecotone_transport::connections::Timeouts;
use ecotone_transport::enrollment::{self, Introduction};
use ecotone_transport::file_server::FileServer;
use ecotone_transport::listener::{Accepting, accept};
use ecotone_transport::peers::Quotas;
use ecotone_transport::protocol::PROTOCOL_VERSION;
use ecotone_transport::security::Security;
use ecotone_transport::wire::control_server::ControlServer;
use ecotone_transport::wire::peer_server::{Peer, PeerServer};
use ecotone_transport::wire::{HelloReply, HelloRequest, ProbeReply, ProbeRequest};
use ecotone_types::{Duty, DutyObserver, ServerId};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// Nothing takes longer, not even on a busy machine.
pub const LONGEST: Duration = Duration::from_secs(30);

pub const TIMEOUTS: Timeouts =
    Timeouts { connect: Duration::from_secs(1), read: Duration::from_secs(3), silence: Duration::from_secs(3) };

struct NoDuties;

impl DutyObserver for NoDuties {
    fn begin(&self, _duty: Duty) {}
    fn end(&self) {}
}

#[derive(Clone)]
struct Greeter(ServerId);

#[tonic::async_trait]
impl Peer for Greeter {
    async fn hello(&self, _request: Request<HelloRequest>) -> std::result::Result<Response<HelloReply>, Status> {
        Ok(Response::new(HelloReply {
            protocol_version: PROTOCOL_VERSION,
            server: self.0.as_str().to_owned(),
            coordinator_address: String::new(),
        }))
    }

    async fn probe(&self, _request: Request<ProbeRequest>) -> std::result::Result<Response<ProbeReply>, Status> {
        Ok(Response::new(ProbeReply::default()))
    }
}

/// What a server is like, beside its folder.
#[derive(Clone)]
pub struct Kind {
    pub zone: &'static str,
    pub witness: bool,
    pub features: Features,
}

impl Default for Kind {
    fn default() -> Kind {
        Kind { zone: "", witness: false, features: FEATURES }
    }
}

pub struct TestServer {
    pub membership: Option<Membership>,
    pub security: Arc<Security>,
    pub address: String,
    folder: PathBuf,
    runtime: Option<Runtime>,
}

/// A clock that is ahead by so many seconds.
#[derive(Debug)]
pub struct Ahead(pub u64);

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        SystemClock.now().plus(self.0)
    }
}

/// Founds a federation in `folder`, and starts its first server.
pub fn first(folder: PathBuf, with_shard: bool) -> TestServer {
    first_of(folder, with_shard, &Kind::default())
}

/// The same with a server of this kind.
pub fn first_of(folder: PathBuf, with_shard: bool, kind: &Kind) -> TestServer {
    let identity_folder = folder.join("identity");
    let founded = found(&identity_folder, &ServerId::new("a").unwrap(), SystemClock.now()).unwrap();
    let server = NewServer {
        directory: DirectoryId(founded.joined.directory),
        name: founded.name.clone(),
        addresses: Addresses::default(),
        zone: String::new(),
        role: Role::Data,
        features: kind.features,
    };
    let federation = FederationId(founded.federation().bytes());
    folder::found(&folder.join("control"), federation, server, founded.sealed.clone(), with_shard).unwrap();
    Founded::end(&identity_folder).unwrap();
    Joined::end(&identity_folder).unwrap();
    TestServer::start(folder, None, kind).unwrap()
}

/// Lets a server in through `other`.
pub fn join(
    folder: PathBuf,
    name: &str,
    token: &JoinToken,
    other: &str,
    kind: &Kind,
) -> std::result::Result<TestServer, String> {
    let identity_folder = folder.join("identity");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let about = Introduction {
        zone: kind.zone.to_owned(),
        is_witness: kind.witness,
        min_feature_level: kind.features.min,
        max_feature_level: kind.features.max,
        address: None,
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let joining = Joining::begin(&identity_folder, token.clone(), ServerId::new(name).unwrap()).unwrap();
    let joined = runtime
        .block_on(enrollment::join(joining, other, &about, &clock, Duration::from_secs(10)))
        .map_err(|error| error.to_string())?;
    folder::begin(
        &folder.join("control"),
        FederationId(joined.federation.bytes()),
        joined.generation,
        MemberId(joined.member.number()),
        DirectoryId(joined.directory),
    )
    .map_err(|error| error.to_string())?;
    Joined::end(&identity_folder).map_err(|error| error.to_string())?;
    TestServer::start(folder, Some(other.to_owned()), kind).map_err(|error| error.to_string())
}

impl TestServer {
    /// Starts a server with what is in its folder.
    pub fn start(folder: PathBuf, hint: Option<String>, kind: &Kind) -> Result<TestServer> {
        TestServer::start_at("127.0.0.1:0", folder, hint, kind)
    }

    /// Starts it at this address.
    pub fn start_at(address: &str, folder: PathBuf, hint: Option<String>, kind: &Kind) -> Result<TestServer> {
        TestServer::start_by(Arc::new(SystemClock), address, folder, hint, kind)
    }

    /// Starts it with another clock.
    pub fn start_by(
        clock: Arc<dyn Clock>,
        address: &str,
        folder: PathBuf,
        hint: Option<String>,
        kind: &Kind,
    ) -> Result<TestServer> {
        let identity = Arc::new(Identity::open(&folder.join("identity"), clock).unwrap().unwrap());
        let name = identity.own().name;
        let security = Security::new(Some(identity), Quotas::with_rate(f64::INFINITY));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let address: SocketAddr = address.parse().unwrap();
        // The listener of a server that was ended a moment ago may be there still.
        let begun = Instant::now();
        let listener = loop {
            match runtime.block_on(TcpListener::bind(address)) {
                Ok(listener) => break listener,
                Err(error) => assert!(begun.elapsed() < LONGEST, "{error}"),
            }
            std::thread::yield_now();
        };
        let address = listener.local_addr().unwrap().to_string();
        let options = Options {
            directory: folder.join("control"),
            identity_folder: folder.join("identity"),
            join: hint,
            zone: kind.zone.to_owned(),
            features: kind.features,
        };
        let membership = Membership::start(options, security.clone(), TIMEOUTS, Vec::new())?;
        membership.announce(Announced { peers: address.clone(), clients: Some(format!("clients-of-{address}")) });
        let (for_calls, calls) = tokio::sync::mpsc::channel(16);
        let files = FileServer::new(Arc::default(), Arc::default(), Arc::new(NoDuties), Arc::new(|_| {}));
        let accepting = Accepting {
            security: security.clone(),
            file_server: Arc::new(files),
            for_calls,
            enrollment: membership.enrollment(),
            max_connections: 64,
            greeting_timeout: Duration::from_secs(3),
        };
        runtime.spawn(accept(listener, accepting));
        let serving = tonic::transport::Server::builder()
            .add_service(PeerServer::new(Greeter(name)))
            .add_service(ControlServer::new(membership.service()))
            .serve_with_incoming(ReceiverStream::new(calls));
        runtime.spawn(async move {
            let _ = serving.await;
        });
        Ok(TestServer { membership: Some(membership), security, address, folder, runtime: Some(runtime) })
    }

    pub fn membership(&self) -> &Membership {
        self.membership.as_ref().unwrap()
    }

    pub fn known(&self) -> Arc<Known> {
        self.membership().known()
    }

    pub fn map(&self) -> Arc<Map> {
        self.known().map.clone()
    }

    pub fn member(&self) -> MemberId {
        self.known().member
    }

    pub fn propose(&self, entry: Entry) -> Result<Decided> {
        self.membership().propose(entry)
    }

    /// Waits until it knows what is asked for.
    pub fn wait(&self, what: &str, is_so: impl Fn(&Known) -> bool) -> Arc<Known> {
        let until = Instant::now() + LONGEST;
        let mut following = self.membership().following();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let waited = runtime.block_on(async {
            let wait = following.wait_for(|known| is_so(known));
            tokio::time::timeout(until.saturating_duration_since(Instant::now()), wait)
                .await
                .map(|known| known.unwrap().clone())
        });
        waited.unwrap_or_else(|_| panic!("{}: {what} did not come: {:?}", self.member(), self.known()))
    }

    /// Ends at once: its connections break. Returns its folder.
    pub fn stop(mut self) -> PathBuf {
        self.end();
        self.folder.clone()
    }

    /// Ends at once, and says where its folder is.
    pub fn end_in_folder(&mut self) -> PathBuf {
        self.end();
        self.folder.clone()
    }

    fn end(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        self.security.peers().cut(|_, _| false);
        self.membership.take();
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits until one of these leads and all of them know it.
pub fn leader(servers: &[&TestServer]) -> MemberId {
    let known = servers[0].wait("a leader", |known| known.leader.is_some());
    let leader = known.leader.unwrap();
    for server in servers {
        server.wait("the same leader", |known| known.leader == Some(leader));
    }
    leader
}

/// Whether so many servers have started.
pub fn active(count: usize) -> impl Fn(&Known) -> bool {
    move |known| known.map.members().filter(|(_, server)| server.state == ServerState::Active).count() == count
}

/// Three servers of this kind that vote; the first one has founded their federation.
pub fn three(root: &Path, kind: &Kind) -> Vec<TestServer> {
    let a = first_of(root.join("a"), true, kind);
    a.wait("to lead", |known| known.leads());
    let mut servers = vec![a];
    for name in ["b", "c"] {
        let token = servers[0].membership().issue_token().unwrap();
        servers.push(join(root.join(name), name, &token, &servers[0].address, kind).unwrap());
    }
    for server in &servers {
        server.wait("three voters", |known| known.voters.len() == 3 && active(3)(known));
    }
    servers
}

/// The one that leads.
pub fn leader_of<'s>(servers: &[&'s TestServer]) -> &'s TestServer {
    let leads = leader(servers);
    servers.iter().find(|server| server.member() == leads).unwrap()
}
