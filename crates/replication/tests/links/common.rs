//! Servers of a federation that do nothing but carry messages about copies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ecotone_control::ids::{DirectoryId, Epoch, FederationId, MemberId, ShardId};
use ecotone_control::map::{Addresses, Features, Map, Role, Server, ServerState, Shard};
use ecotone_identity::join::Joining;
use ecotone_identity::{Clock, Identity, SystemClock, found};
use ecotone_membership::Known;
use ecotone_mirror::names::FileName;
use ecotone_mirror::seed::Offer;
use ecotone_replica::lease::Heartbeat;
use ecotone_replica::position::Mark;
use ecotone_replica::stream::{ContentId, FileKind, Item, Kind, ToCopy, ToCopyBody};
use ecotone_replica::wire::{Message, Parcel};
use ecotone_replication::Repair;
use ecotone_replication::error::{Error, Result};
use ecotone_replication::links::{Links, Route};
use ecotone_replication::service::{Fetched, Incoming, Service};
use ecotone_transport::connections::{Connections, Timeouts};
use ecotone_transport::enrollment::{Enrollment, refused};
use ecotone_transport::file_server::FileServer;
use ecotone_transport::listener::{Accepting, accept};
use ecotone_transport::peers::Quotas;
use ecotone_transport::protocol::PROTOCOL_VERSION;
use ecotone_transport::security::Security;
use ecotone_transport::wire::peer_server::{Peer, PeerServer};
use ecotone_transport::wire::{EnrollReply, EnrollRequest, HelloReply, HelloRequest, ProbeReply, ProbeRequest};
use ecotone_types::{Duty, DutyObserver, ServerId};
use parking_lot::{Condvar, Mutex};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// Nothing takes longer, not even on a busy machine.
pub const LONGEST: Duration = Duration::from_secs(30);
pub const SHARD: ShardId = ShardId(1);
const TIMEOUTS: Timeouts =
    Timeouts { connect: Duration::from_secs(2), read: Duration::from_secs(3), silence: Duration::from_secs(5) };

/// Waits until it is so.
pub fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONGEST, "{what} did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn heartbeat(sent_us: u64) -> Parcel {
    Message::Heartbeat(Heartbeat { sent_us, asks: Vec::new() }).into()
}

pub fn items(session: u64, bytes: Vec<u8>) -> Parcel {
    let kind = Kind::Append { file: FileKind::Wal, number: 1, offset: 0 };
    let item = Item::behind(Mark::default(), kind, bytes.len() as u64, 0);
    let body = ToCopyBody::Items { items: vec![item], end_bytes: 0 };
    let message = Message::ToCopy(SHARD, ToCopy { epoch: Epoch(1), session, body });
    Parcel { message, bytes: vec![bytes] }
}

struct NoDuties;

impl DutyObserver for NoDuties {
    fn begin(&self, _duty: Duty) {}
    fn end(&self) {}
}

/// What threads said they are for; none: they ended it.
#[derive(Default)]
pub struct Heard(pub Mutex<Vec<Option<Duty>>>);

impl DutyObserver for Heard {
    fn begin(&self, duty: Duty) {
        self.0.lock().push(Some(duty));
    }

    fn end(&self) {
        self.0.lock().push(None);
    }
}

struct NoEnrollment;

impl Enrollment for NoEnrollment {
    fn answer(&self, _request: &EnrollRequest, _peer: Option<&ecotone_identity::Peer>) -> EnrollReply {
        refused("no-federation", "nobody is taken in here")
    }
}

#[derive(Clone)]
struct Greeter(ServerId);

#[tonic::async_trait]
impl Peer for Greeter {
    async fn hello(&self, _request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        Ok(Response::new(HelloReply {
            protocol_version: PROTOCOL_VERSION,
            server: self.0.as_str().to_owned(),
            coordinator_address: String::new(),
        }))
    }

    async fn probe(&self, _request: Request<ProbeRequest>) -> Result<Response<ProbeReply>, Status> {
        Ok(Response::new(ProbeReply::default()))
    }
}

/// Notes what comes, and gives what it was given.
#[derive(Default)]
pub struct Notes {
    pub small: Mutex<Vec<(MemberId, Message)>>,
    pub bulk: Mutex<Vec<(MemberId, Parcel)>>,
    pub unreachable: Mutex<Vec<MemberId>>,
    pub offers: Mutex<BTreeMap<u64, Arc<Offer>>>,
    pub finished: Mutex<BTreeMap<u64, PathBuf>>,
    pub contents: Mutex<Option<(Mark, BTreeMap<FileName, ContentId>)>>,
    pub repairs: Mutex<BTreeMap<ShardId, Repair>>,
    pub duties: Arc<Heard>,
    /// Nothing with items is taken while this is so.
    stuck: Mutex<bool>,
    changed: Condvar,
}

impl Notes {
    pub fn set_stuck(&self, stuck: bool) {
        *self.stuck.lock() = stuck;
        self.changed.notify_all();
    }

    /// The times of the heartbeats that have come.
    pub fn heartbeats(&self) -> Vec<u64> {
        let time = |(_, message): &(MemberId, Message)| match message {
            Message::Heartbeat(heartbeat) => Some(heartbeat.sent_us),
            _ => None,
        };
        self.small.lock().iter().filter_map(time).collect()
    }
}

impl Incoming for Notes {
    fn duties(&self) -> Option<Arc<dyn DutyObserver>> {
        Some(self.duties.clone())
    }

    fn message(&self, from: MemberId, parcel: Parcel) {
        if parcel.message.is_bulk() {
            // As slow as can be, and in nobody's way but its own call's.
            tokio::task::block_in_place(|| {
                let mut stuck = self.stuck.lock();
                while *stuck {
                    self.changed.wait(&mut stuck);
                }
            });
            self.bulk.lock().push((from, parcel));
        } else {
            self.small.lock().push((from, parcel.message));
        }
    }

    fn unreachable(&self, to: MemberId) {
        self.unreachable.lock().push(to);
    }

    fn offer(&self, _from: MemberId, _shard: ShardId, session: u64) -> Result<Arc<Offer>> {
        self.offers.lock().get(&session).cloned().ok_or_else(|| Error::NotThere("no such offer".into()))
    }

    fn open(&self, from: MemberId, shard: ShardId, what: Fetched) -> Result<File> {
        match what {
            Fetched::OfOffer { session, file } => Ok(self.offer(from, shard, session)?.open(file)?),
            Fetched::Finished { file, content } => {
                let path = self.finished.lock().get(&file.number).cloned();
                let path = path.ok_or_else(|| Error::NotThere(format!("{file:?}")))?;
                let open = File::open(&path).map_err(|error| Error::io("open", &path, error))?;
                let is_it = open.metadata().is_ok_and(|metadata| metadata.len() == content.len);
                is_it.then_some(open).ok_or_else(|| Error::NotThere(format!("{file:?} has other contents")))
            }
        }
    }

    fn contents(&self, _shard: ShardId) -> Result<(Mark, BTreeMap<FileName, ContentId>)> {
        self.contents.lock().clone().ok_or_else(|| Error::NotThere("the primary".into()))
    }

    fn repair(&self, shard: ShardId, begin: bool) -> Result<Repair> {
        let mut repairs = self.repairs.lock();
        if begin {
            return Ok(repairs.entry(shard).or_default().clone());
        }
        repairs.get(&shard).cloned().ok_or_else(|| Error::NotThere("nobody has asked".into()))
    }
}

/// A federation whose map is what a test says.
pub struct Federation {
    pub map: Map,
    pub leader: Option<MemberId>,
    pub servers: Vec<TestServer>,
}

pub struct TestServer {
    pub member: MemberId,
    pub notes: Arc<Notes>,
    pub service: Service,
    pub known: watch::Sender<Arc<Known>>,
    security: Arc<Security>,
    name: ServerId,
    address: String,
    links: Option<Links>,
    listening: Option<Runtime>,
    calling: Runtime,
}

impl Federation {
    /// So many servers, each with a copy of one shard.
    pub fn new(root: &Path, count: usize) -> Federation {
        let names: Vec<ServerId> = (0..count).map(|at| ServerId::new(format!("server-{at}")).unwrap()).collect();
        let founded = found(&root.join("0"), &names[0], SystemClock.now()).unwrap();
        for (at, name) in names.iter().enumerate().skip(1) {
            let now = SystemClock.now();
            let token = founded.authority.issue_token(now).unwrap();
            let joining = Joining::begin(&root.join(at.to_string()), token, name.clone()).unwrap();
            let member = ecotone_identity::MemberId::from_number(at as u64 + 1);
            let issued = founded.authority.issue(member, name, &joining.request, now).unwrap();
            joining.end(&issued, member, 1, now).unwrap();
        }
        let mut map = Map::new(FederationId(founded.federation().bytes()));
        (map.next_member, map.next_shard) = (count as u64 + 1, 2);
        let servers: Vec<TestServer> = (0..count).map(|at| TestServer::start(&root.join(at.to_string()))).collect();
        for server in &servers {
            let entry = Server {
                directory: DirectoryId([server.member.0 as u8; 16]),
                name: server.name.clone(),
                addresses: Addresses { peers: server.address.clone(), clients: String::new() },
                zone: String::new(),
                role: Role::Data,
                state: ServerState::Active,
                features: Features { min: 1, max: 1 },
            };
            map.servers.insert(server.member, entry);
        }
        let copies: BTreeSet<MemberId> = map.servers.keys().copied().collect();
        let primary = Some(MemberId(1));
        let in_sync = copies.clone();
        let shard = Shard { slots: Vec::new(), copies, in_sync, primary, epoch: Epoch(1), set_version: 1 };
        map.shards.insert(SHARD, shard);
        let federation = Federation { map, leader: Some(MemberId(1)), servers };
        federation.publish();
        federation
    }

    /// All servers know the map of now.
    pub fn publish(&self) {
        for server in &self.servers {
            server.know(&self.map, self.leader);
        }
    }
}

fn known(map: &Map, member: MemberId, leader: Option<MemberId>) -> Arc<Known> {
    Arc::new(Known {
        map: Arc::new(map.clone()),
        member,
        leader,
        term: 1,
        voters: BTreeSet::new(),
        gone: BTreeSet::new(),
        applied: 1,
        stopped: None,
        told_removed: false,
    })
}

impl TestServer {
    fn start(folder: &Path) -> TestServer {
        let identity = Arc::new(Identity::open(folder, Arc::new(SystemClock)).unwrap().unwrap());
        let own = identity.own();
        let member = MemberId(own.member.number());
        let security = Security::new(Some(identity), Quotas::with_rate(f64::INFINITY));
        let calling = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let known = watch::Sender::new(known(&Map::new(FederationId([0; 8])), member, None));
        let connections = || Arc::new(Connections::new(own.name.clone(), TIMEOUTS, security.clone()));
        let route = || Route { runtime: calling.handle().clone(), connections: connections() };
        let links = Links::new(route(), route(), known.subscribe());
        let notes: Arc<Notes> = Arc::default();
        let incoming: Arc<dyn Incoming> = notes.clone();
        links.attach(&incoming);
        let service = Service::new();
        service.attach(known.subscribe(), &incoming);
        let mut server = TestServer {
            member,
            notes,
            service,
            known,
            security: security.clone(),
            name: own.name.clone(),
            address: "127.0.0.1:0".into(),
            links: Some(links),
            listening: None,
            calling,
        };
        server.listen();
        server
    }

    /// Listens where it did before.
    pub fn listen(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let begun = Instant::now();
        let listener = loop {
            match runtime.block_on(TcpListener::bind(&self.address)) {
                Ok(listener) => break listener,
                Err(error) => assert!(begun.elapsed() < LONGEST, "{error}"),
            }
            std::thread::yield_now();
        };
        self.address = listener.local_addr().unwrap().to_string();
        let (for_calls, calls) = tokio::sync::mpsc::channel(16);
        let files = FileServer::new(Arc::default(), Arc::default(), Arc::new(NoDuties), Arc::new(|_| {}));
        let accepting = Accepting {
            security: self.security.clone(),
            file_server: Arc::new(files),
            for_calls,
            enrollment: Arc::new(NoEnrollment),
            max_connections: 64,
            greeting_timeout: Duration::from_secs(3),
        };
        runtime.spawn(accept(listener, accepting));
        let serving = tonic::transport::Server::builder()
            .add_service(PeerServer::new(Greeter(self.name.clone())))
            .add_service(self.service.server())
            .serve_with_incoming(ReceiverStream::new(calls));
        runtime.spawn(async move {
            let _ = serving.await;
        });
        self.listening = Some(runtime);
    }

    /// Nobody listens any more, and its connections break.
    pub fn hang_up(&mut self) {
        if let Some(runtime) = self.listening.take() {
            runtime.shutdown_background();
        }
        self.security.peers().cut(|_, _| false);
    }

    pub fn links(&self) -> &Links {
        self.links.as_ref().unwrap()
    }

    pub fn know(&self, map: &Map, leader: Option<MemberId>) {
        self.known.send_replace(known(map, self.member, leader));
    }

    /// Where the tasks of its calls run.
    pub fn calling(&self) -> &Runtime {
        &self.calling
    }

    /// The last one who sends goes.
    pub fn drop_links(&mut self) {
        self.links.take();
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.notes.set_stuck(false);
        self.links.take();
        self.hang_up();
    }
}
