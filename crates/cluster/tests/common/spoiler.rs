//! A worker that is not what it seems: it speaks the protocol by itself, has an honest worker do
//! the job where it needs one, and changes what it likes of all that passes.

use std::collections::HashSet;
use std::io::Write;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::files::{Files, MAGIC, Range, read_hello, read_request};
use super::wire::coordinator_client::CoordinatorClient;
use super::wire::job_event::Event;
use super::wire::peer_server::{Peer, PeerServer};
use super::wire::worker_client::WorkerClient;
use super::wire::worker_server::{Worker, WorkerServer};
use super::wire::{
    Declined, Failed, Finished, HelloReply, HelloRequest, JobEvent, JobOffer, Link, Load, OutputReady, ProbeReply,
    ProbeRequest, ReleaseReply, ReleaseRequest, ReportRequest,
};

/// What a spoiler does instead of passing something on.
pub enum Act {
    Send(Event),
    /// The same for ever, as fast as it is taken, after this time each.
    Repeat(Event, Duration),
    /// Nothing more, and the stream stays open.
    Hang,
    /// The stream ends.
    Close,
}

/// What a spoiler answers to a read.
pub enum Answer {
    Data(Vec<u8>),
    /// These bytes after such a head, whatever they are.
    Raw {
        status: u8,
        length: u32,
        data: Vec<u8>,
    },
    /// A byte, and after this time the next.
    Drip(Vec<u8>, Duration),
    Hang,
    Refuse,
    Close,
}

/// From when on a spoiler answers nothing at all: neither calls, nor reads, nor with further
/// events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mute {
    #[default]
    Never,
    /// It takes connections, and that is all.
    Connected,
    /// From the first offer on.
    Offered,
    /// From the first release on.
    Released,
    /// It never answers a release, and does everything else.
    OnlyReleases,
}

type OnOffer = dyn Fn(&JobOffer) -> Vec<Act> + Send + Sync;
type OnEvent = dyn Fn(Event) -> Vec<Act> + Send + Sync;
type OnRead = dyn Fn(&Range, Vec<u8>) -> Answer + Send + Sync;
type FileBehind = dyn Fn(&str) -> String + Send + Sync;

/// How a spoiler behaves. The default passes everything on.
pub struct Behaviour {
    pub version: u32,
    pub mute: Mute,
    pub on_offer: Box<OnOffer>,
    pub on_event: Box<OnEvent>,
    pub on_read: Box<OnRead>,
    /// Which of the honest worker's files is read when the owner asks for one of this name.
    pub file_behind: Box<FileBehind>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Behaviour {
            version: ecotone_cluster::PROTOCOL_VERSION,
            mute: Mute::Never,
            on_offer: Box::new(|_| Vec::new()),
            on_event: Box::new(|event| vec![Act::Send(event)]),
            on_read: Box::new(|_, data| Answer::Data(data)),
            file_behind: Box::new(str::to_owned),
        }
    }
}

impl Behaviour {
    pub fn mute(mute: Mute) -> Behaviour {
        Behaviour { mute, ..Behaviour::default() }
    }

    pub fn on_offer(act: impl Fn(&JobOffer) -> Vec<Act> + Send + Sync + 'static) -> Behaviour {
        Behaviour { on_offer: Box::new(act), ..Behaviour::default() }
    }

    pub fn on_event(act: impl Fn(Event) -> Vec<Act> + Send + Sync + 'static) -> Behaviour {
        Behaviour { on_event: Box::new(act), ..Behaviour::default() }
    }

    pub fn on_read(act: impl Fn(&Range, Vec<u8>) -> Answer + Send + Sync + 'static) -> Behaviour {
        Behaviour { on_read: Box::new(act), ..Behaviour::default() }
    }

    /// Spoils the announcement of each table.
    pub fn on_table(act: impl Fn(OutputReady) -> Vec<OutputReady> + Send + Sync + 'static) -> Behaviour {
        Behaviour::on_event(move |event| match event {
            Event::OutputReady(table) => {
                act(table).into_iter().map(|table| Act::Send(Event::OutputReady(table))).collect()
            }
            other => vec![Act::Send(other)],
        })
    }

    /// Spoils the result, and vouches for it.
    pub fn on_result(change: impl Fn(&mut Vec<u8>) + Send + Sync + 'static) -> Behaviour {
        Behaviour::on_event(move |event| match event {
            Event::Finished(mut finished) => {
                change(&mut finished.result);
                finished.result_crc32c = crc32c::crc32c(&finished.result);
                vec![Act::Send(Event::Finished(finished))]
            }
            other => vec![Act::Send(other)],
        })
    }

    pub fn decline(reason: &'static str) -> Behaviour {
        Behaviour::on_offer(move |_| {
            let declined = Declined { reason: reason.into(), detail: "no".into() };
            vec![Act::Send(Event::Declined(declined)), Act::Close]
        })
    }

    pub fn fail() -> Behaviour {
        Behaviour::on_offer(|_| {
            vec![Act::Send(Event::Failed(Failed { reason: "it fell off the table".into() })), Act::Close]
        })
    }

    pub fn finish_with(result: &'static [u8]) -> Behaviour {
        Behaviour::on_offer(|_| {
            let result_crc32c = crc32c::crc32c(result);
            let finished = Finished { result: result.to_vec(), result_crc32c, ..Default::default() };
            vec![Act::Send(Event::Finished(finished)), Act::Close]
        })
    }
}

struct Shared {
    behaviour: Behaviour,
    /// The honest worker behind it.
    honest: Option<String>,
    offers: Mutex<Vec<JobOffer>>,
    released: Mutex<HashSet<Vec<u8>>>,
    streams: AtomicUsize,
    is_mute: AtomicBool,
    /// When the first offer came, and when something first got no answer that was due.
    first_offer: OnceLock<Instant>,
    silent_since: OnceLock<Instant>,
    unanswered_releases: AtomicUsize,
}

impl Shared {
    /// Never returns. The other side is in the dark from now on.
    async fn no_answer(&self) {
        self.silent_since.get_or_init(Instant::now);
        std::future::pending().await
    }

    async fn no_answer_if_mute(&self) {
        if self.is_mute.load(Ordering::SeqCst) {
            self.no_answer().await;
        }
    }
}

/// Counts a call for as long as its caller waits.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn on(calls: &'a AtomicUsize) -> Waiting<'a> {
        calls.fetch_add(1, Ordering::SeqCst);
        Waiting(calls)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs until dropped.
pub struct Spoiler {
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
    pub address: String,
}

impl Spoiler {
    /// Offers itself to `coordinator` as the best of all workers. `honest` does its jobs.
    pub fn start(coordinator: &str, honest: Option<String>, behaviour: Behaviour) -> Spoiler {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            behaviour,
            honest,
            offers: Mutex::default(),
            released: Mutex::default(),
            streams: AtomicUsize::new(0),
            is_mute: AtomicBool::new(false),
            first_offer: OnceLock::new(),
            silent_since: OnceLock::new(),
            unanswered_releases: AtomicUsize::new(0),
        });
        let services = Services(shared.clone());
        let (calls, incoming) = mpsc::channel(16);
        runtime.spawn(accept(listener, calls, shared.clone()));
        runtime.spawn(
            tonic::transport::Server::builder()
                .add_service(PeerServer::new(services.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
                .add_service(WorkerServer::new(services).max_decoding_message_size(MAX_MESSAGE_BYTES))
                .serve_with_incoming(ReceiverStream::new(incoming)),
        );
        runtime.spawn(report(coordinator.to_owned(), address.clone()));
        Spoiler { shared, runtime: Some(runtime), address }
    }

    pub fn offers(&self) -> Vec<JobOffer> {
        self.shared.offers.lock().unwrap().clone()
    }

    pub fn was_released(&self, token: &[u8]) -> bool {
        self.shared.released.lock().unwrap().contains(token)
    }

    /// When it first left the other side without an answer that was due; else when it got its first
    /// offer.
    pub fn silent_since(&self) -> Option<Instant> {
        self.shared.silent_since.get().or(self.shared.first_offer.get()).copied()
    }

    /// Calls to release a job whose caller waits for the answer now.
    pub fn unanswered_releases(&self) -> usize {
        self.shared.unanswered_releases.load(Ordering::SeqCst)
    }

    /// Streams of events that are open now.
    pub fn streams(&self) -> usize {
        self.shared.streams.load(Ordering::SeqCst)
    }
}

impl Drop for Spoiler {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

pub const MAX_MESSAGE_BYTES: usize = 32 << 20;

/// The load of a server that everybody wants to work for them.
pub fn tempting(server: &str) -> Load {
    Load {
        server: server.into(),
        cores: 64.0,
        free_cores: 64.0,
        core_speed: 1e5,
        free_network_bytes_per_s: 1e9,
        link: Some(Link { bytes_per_s: 1e11, round_trip_seconds: 1e-6 }),
        worker_slots_free: 64,
        active_watts: 1.0,
        idle_watts: 1.0,
        ..Load::default()
    }
}

async fn report(coordinator: String, address: String) {
    let mut tick = tokio::time::interval(Duration::from_millis(50));
    let mut client = None;
    loop {
        tick.tick().await;
        if client.is_none() {
            client = CoordinatorClient::connect(format!("http://{coordinator}")).await.ok();
        }
        if let Some(coordinator) = &mut client {
            let request =
                ReportRequest { load: Some(tempting("spoiler")), address: address.clone(), ..Default::default() };
            let _ = coordinator.report(request).await;
        }
    }
}

/// Separates connections for files from those for calls.
async fn accept(listener: TcpListener, calls: mpsc::Sender<std::io::Result<TcpStream>>, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (calls, shared) = (calls.clone(), shared.clone());
        tokio::spawn(async move {
            if shared.behaviour.mute == Mute::Connected {
                shared.no_answer().await;
            }
            let mut first = [0; MAGIC.len()];
            while let Ok(seen) = stream.peek(&mut first).await
                && seen > 0
                && seen < first.len()
            {}
            if first == MAGIC {
                let stream = stream.into_std().unwrap();
                std::thread::spawn(move || serve_files(&shared, stream));
            } else {
                let _ = calls.send(Ok(stream)).await;
            }
        });
    }
}

/// Reads from the honest worker what the owner asks for, and answers as the behaviour has it.
fn serve_files(shared: &Shared, mut stream: std::net::TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let token = read_hello(&mut stream)?;
    stream.write_all(&[0])?;
    let mut honest = None;
    loop {
        let range = read_request(&mut stream)?;
        if shared.is_mute.load(Ordering::SeqCst) {
            return shared.hang(&mut stream);
        }
        let behind = Range { file: (shared.behaviour.file_behind)(&range.file), ..range.clone() };
        if let (None, Some(address)) = (&honest, &shared.honest) {
            honest = Files::connect(address, &token).ok();
        }
        // What the honest worker does not know, the spoiler may still answer.
        let data = honest.as_mut().and_then(|files| files.read(&behind).ok()).unwrap_or_default();
        let (status, length, data) = match (shared.behaviour.on_read)(&range, data) {
            Answer::Data(data) => (0, data.len() as u32, data),
            Answer::Raw { status, length, data } => (status, length, data),
            Answer::Refuse => (1, 0, Vec::new()),
            Answer::Close => return Ok(()),
            Answer::Hang => return shared.hang(&mut stream),
            Answer::Drip(data, pause) => {
                shared.silent_since.get_or_init(Instant::now);
                stream.write_all(&[0])?;
                stream.write_all(&(data.len() as u32).to_le_bytes())?;
                for byte in data {
                    stream.write_all(&[byte])?;
                    std::thread::sleep(pause);
                }
                continue;
            }
        };
        stream.write_all(&[status])?;
        stream.write_all(&length.to_le_bytes())?;
        stream.write_all(&data)?;
    }
}

impl Shared {
    /// Takes requests for files and answers none, until there are no more.
    fn hang(&self, stream: &mut std::net::TcpStream) -> std::io::Result<()> {
        self.silent_since.get_or_init(Instant::now);
        loop {
            read_request(stream)?;
        }
    }
}

#[derive(Clone)]
struct Services(Arc<Shared>);

impl Shared {
    async fn honest_worker(&self) -> Result<String, Status> {
        self.honest.clone().map(|address| format!("http://{address}")).ok_or_else(|| Status::internal("nobody works"))
    }
}

#[tonic::async_trait]
impl Peer for Services {
    async fn hello(&self, _request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        Ok(Response::new(HelloReply {
            protocol_version: self.0.behaviour.version,
            server: "spoiler".into(),
            coordinator_address: String::new(),
        }))
    }

    async fn probe(&self, request: Request<ProbeRequest>) -> Result<Response<ProbeReply>, Status> {
        Ok(Response::new(ProbeReply { payload: vec![0; request.into_inner().reply_bytes as usize] }))
    }
}

#[tonic::async_trait]
impl Worker for Services {
    type RunStream = Pin<Box<dyn Stream<Item = Result<JobEvent, Status>> + Send>>;

    async fn run(&self, request: Request<JobOffer>) -> Result<Response<Self::RunStream>, Status> {
        let offer = request.into_inner();
        self.0.first_offer.get_or_init(Instant::now);
        self.0.offers.lock().unwrap().push(offer.clone());
        self.0.is_mute.fetch_or(self.0.behaviour.mute == Mute::Offered, Ordering::SeqCst);
        self.0.no_answer_if_mute().await;
        let (sender, receiver) = mpsc::channel(64);
        let shared = self.0.clone();
        shared.streams.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(async move {
            tokio::select! {
                () = pump(&shared, offer, &sender) => {}
                () = sender.closed() => {}
            }
            shared.streams.fetch_sub(1, Ordering::SeqCst);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn release(&self, request: Request<ReleaseRequest>) -> Result<Response<ReleaseReply>, Status> {
        let request = request.into_inner();
        self.0.released.lock().unwrap().insert(request.token.clone());
        if matches!(self.0.behaviour.mute, Mute::Released | Mute::OnlyReleases) {
            self.0.is_mute.fetch_or(self.0.behaviour.mute == Mute::Released, Ordering::SeqCst);
            let _waiting = Waiting::on(&self.0.unanswered_releases);
            // Nobody's job waits for this answer: that it is missing is no silence yet.
            return std::future::pending().await;
        }
        if let Ok(address) = self.0.honest_worker().await
            && let Ok(mut client) = WorkerClient::connect(address).await
        {
            let _ = client.release(request).await;
        }
        Ok(Response::new(ReleaseReply {}))
    }
}

type Sender = mpsc::Sender<Result<JobEvent, Status>>;

/// Passes a job's events on, as the behaviour has it, until either side ends.
async fn pump(shared: &Shared, offer: JobOffer, sender: &Sender) {
    if !act(shared, (shared.behaviour.on_offer)(&offer), sender).await {
        return;
    }
    let Ok(address) = shared.honest_worker().await else { return };
    let Ok(mut client) = WorkerClient::connect(address).await else { return };
    let Ok(events) = client.run(offer).await else { return };
    let mut events = events.into_inner();
    while let Ok(Some(JobEvent { event: Some(event) })) = events.message().await {
        shared.no_answer_if_mute().await;
        if !act(shared, (shared.behaviour.on_event)(event), sender).await {
            return;
        }
    }
}

/// Whether to go on.
async fn act(shared: &Shared, acts: Vec<Act>, sender: &Sender) -> bool {
    for act in acts {
        match act {
            Act::Send(event) => {
                if sender.send(Ok(JobEvent { event: Some(event) })).await.is_err() {
                    return false;
                }
            }
            Act::Repeat(event, pause) => loop {
                if sender.send(Ok(JobEvent { event: Some(event.clone()) })).await.is_err() {
                    return false;
                }
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            },
            Act::Hang => shared.no_answer().await,
            Act::Close => return false,
        }
    }
    true
}
