//! What other servers call: messages about copies, offers, ranges of files.
//!
//! Who calls is known by its certificate; what it may say, by this server's map. A map may be older
//! than the caller's: what is refused for that is lost, and said again. Invariants: nothing of a
//! shard is given to a server without a copy of it; what only a leader may ask is taken from no
//! other server.
//!
//! # Bounds
//!
//! Calls as [`ecotone_transport::peers::Quotas`] say; [`MAX_FETCHES_OF_SERVER`] offers and fetches of
//! one server at a time, [`MAX_FETCHES`] of all, each with a thread of its own that reads
//! [`MAX_PART_BYTES`] ahead of what the other server has taken, twice.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::{Arc, Weak};

use ecotone_control::ids::{MemberId, ShardId};
use ecotone_membership::Known;
use ecotone_mirror::error::Error as MirrorError;
use ecotone_mirror::names::FileName;
use ecotone_mirror::seed::{Offer, OfferedFile};
use ecotone_replica::position::Mark;
use ecotone_replica::stream::{ContentId, FileKind, Item, MAX_ITEMS, MAX_MESSAGE_BYTES};
use ecotone_replica::wire::{ListedFile, ListingPart, MAX_LISTED_FILES, Message, Parcel, encode_part};
use ecotone_transport::listener::Caller;
use ecotone_transport::peers::Call;
use ecotone_transport::wire::copies_server::{Copies, CopiesServer};
use ecotone_transport::wire::{
    CarryEnd, ContentsRequest, CopyParcel, FetchPart, FetchRequest, OfferPart, OfferRequest, RepairReply, RepairRequest,
};
use ecotone_types::{Duty, DutyObserver};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};
use tracing::debug;

use crate::duty_scope::Scope;
use crate::error::{Error, Result};
use crate::packing::{FRAMING_BYTES, MAX_PACKED_BYTES, unpack};
use crate::repairing::Repair;

/// Offers and fetches of one server at a time.
pub const MAX_FETCHES_OF_SERVER: usize = 4;
/// Offers and fetches at a time.
pub const MAX_FETCHES: usize = 32;
/// Bytes of a file in one message.
pub const MAX_PART_BYTES: usize = 256 << 10;
/// Parts that wait to be sent.
const MAX_WAITING_PARTS: usize = 1;

/// Which bytes are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// A file of an offer.
    OfOffer {
        /// The session that the offer is for.
        session: u64,
        /// The file.
        file: FileName,
    },
    /// A file that is finished.
    Finished {
        /// The file.
        file: FileName,
        /// What it must hold.
        content: ContentId,
    },
}

/// What takes messages, and answers for the files of copies.
pub trait Incoming: Send + Sync {
    /// A message has come from a server that may say it. Called on a thread that carries messages: it
    /// must not wait.
    fn message(&self, from: MemberId, parcel: Parcel);
    /// Small messages to a server were lost: it may be gone. Must not wait either.
    fn unreachable(&self, to: MemberId);
    /// What there is for the copy of another server, in this session. May wait for the disk.
    ///
    /// # Errors
    /// [`Error::NotThere`] if it is not to get one.
    fn offer(&self, from: MemberId, shard: ShardId, session: u64) -> Result<Arc<Offer>>;
    /// A file for the copy of another server. May wait for the disk.
    ///
    /// # Errors
    /// [`Error::NotThere`] if there is no such file, or not any more.
    fn open(&self, from: MemberId, shard: ShardId, what: Fetched) -> Result<File>;
    /// What the finished files of the copy here hold, at a mark.
    ///
    /// # Errors
    /// [`Error::NotThere`] if it is not the primary.
    fn contents(&self, shard: ShardId) -> Result<(Mark, BTreeMap<FileName, ContentId>)>;
    /// Has the files of the copy here compared and mended, or says how far that is. Must not wait.
    ///
    /// # Errors
    /// [`Error::NotThere`] if there is no copy, or nobody has asked for it.
    fn repair(&self, shard: ShardId, begin: bool) -> Result<Repair>;
    /// Whom threads tell that send files; `None`: nobody.
    fn duties(&self) -> Option<Arc<dyn DutyObserver>> {
        None
    }
}

/// The service of one server; cheap to clone. Until it is attached to something it answers as a
/// server without replication.
#[derive(Clone, Default)]
pub struct Service(Arc<Shared>);

/// Which call of a server is the newest, of those that carry its small messages, and of the others.
#[derive(Default)]
struct Turns(Mutex<HashMap<(MemberId, bool), Newest>>);

/// The number of the newest call.
type Newest = Arc<Mutex<u64>>;

impl Turns {
    /// A call has begun: it is the newest.
    fn begin(&self, from: MemberId, is_bulk: bool) -> (Newest, u64) {
        let newest = self.0.lock().entry((from, is_bulk)).or_default().clone();
        let own = {
            let mut newest = newest.lock();
            *newest += 1;
            *newest
        };
        (newest, own)
    }
}

#[derive(Default)]
struct Shared {
    turns: Turns,
    attached: RwLock<Option<Attached>>,
    fetches: Arc<Mutex<HashMap<MemberId, usize>>>,
}

#[derive(Clone)]
struct Attached {
    known: watch::Receiver<Arc<Known>>,
    incoming: Weak<dyn Incoming>,
}

/// One of the offers and fetches that a server may have under way.
struct Place {
    from: MemberId,
    fetches: Arc<Mutex<HashMap<MemberId, usize>>>,
}

impl Place {
    fn take(fetches: &Arc<Mutex<HashMap<MemberId, usize>>>, from: MemberId) -> Option<Place> {
        let mut counts = fetches.lock();
        let all: usize = counts.values().sum();
        let of_server = counts.get(&from).copied().unwrap_or_default();
        if all >= MAX_FETCHES || of_server >= MAX_FETCHES_OF_SERVER {
            return None;
        }
        counts.insert(from, of_server + 1);
        Some(Place { from, fetches: fetches.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.fetches.lock();
        if let Some(count) = counts.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.from);
            }
        }
    }
}

/// Who calls, by its certificate, and the call counted against its quota.
fn caller<T>(request: &Request<T>) -> Result<(MemberId, Call), Status> {
    let connection = request.extensions().get::<Caller>().and_then(|caller| caller.0.as_ref());
    let connection = connection.ok_or_else(|| Status::permission_denied("only servers with a certificate may ask"))?;
    let call = connection.begin_call();
    let call = call.ok_or_else(|| Status::resource_exhausted("as many calls in flight as a server may have"))?;
    Ok((MemberId(connection.peer().member.number()), call))
}

fn has_copy(known: &Known, member: MemberId, shard: ShardId) -> bool {
    known.map.server(member).is_some()
        && known.map.shards.get(&shard).is_some_and(|shard| shard.copies.contains(&member))
}

/// Whether a server may say this, by what this one knows.
fn may_say(known: &Known, from: MemberId, message: &Message) -> bool {
    match message {
        // Each server to each other one: what it asks and promises is for its own shards and copies.
        Message::Heartbeat(_) | Message::Promise(_) | Message::Report(_) => known.map.server(from).is_some(),
        Message::ToCopy(shard, _)
        | Message::ToPrimary(shard, _)
        | Message::Seed { shard, .. }
        | Message::Verified { shard, .. }
        | Message::Repaired { shard, .. } => has_copy(known, from, *shard),
        // People may ask any server, which asks the leader.
        Message::HandOver { to: Some(_), .. } if known.leads() => known.map.server(from).is_some(),
        Message::Sealed(report) => report.member == from && has_copy(known, from, report.shard),
        Message::Seal(..)
        | Message::Verify(..)
        | Message::Repair { .. }
        | Message::HandOver { .. }
        | Message::Excuse { .. }
        | Message::Force { .. } => known.leader == Some(from) && known.map.server(from).is_some(),
    }
}

fn status(error: &Error) -> Status {
    let text = error.to_string();
    match error {
        Error::NotThere(_) | Error::Mirror(MirrorError::Missing { .. } | MirrorError::Mismatch { .. }) => {
            Status::not_found(text)
        }
        Error::Busy(_) => Status::resource_exhausted(text),
        Error::Refused(_) => Status::permission_denied(text),
        _ => Status::unavailable(text),
    }
}

impl Service {
    /// None of this server's copies is spoken of yet.
    pub fn new() -> Service {
        Service::default()
    }

    /// From now on `incoming` is asked, for as long as it is there, and what a caller may say is
    /// judged by `known`.
    pub fn attach(&self, known: watch::Receiver<Arc<Known>>, incoming: &Arc<dyn Incoming>) {
        *self.0.attached.write() = Some(Attached { known, incoming: Arc::downgrade(incoming) });
    }

    /// The service among others of this server.
    pub fn add_to(&self, routes: Routes) -> Routes {
        routes.add_service(self.server())
    }

    /// The service, for a server that has no other ones.
    pub fn server(&self) -> CopiesServer<Service> {
        CopiesServer::new(self.clone()).max_decoding_message_size(MAX_PACKED_BYTES + FRAMING_BYTES)
    }

    fn attached(&self) -> Result<(Attached, Arc<dyn Incoming>), Status> {
        let attached = self.0.attached.read().clone();
        let attached = attached.ok_or_else(|| Status::unimplemented("this server has no copies"))?;
        let incoming = attached.incoming.upgrade().ok_or_else(|| Status::unavailable("this server stops"))?;
        Ok((attached, incoming))
    }

    /// Who asks for something of a shard, if it may.
    fn asker<T>(&self, request: &Request<T>, shard: ShardId) -> Result<Asker, Status> {
        let (from, call) = caller(request)?;
        let (attached, incoming) = self.attached()?;
        if !has_copy(&attached.known.borrow(), from, shard) {
            return Err(Status::permission_denied(format!("{from} has no copy of {shard} by the map of this server")));
        }
        let place = Place::take(&self.0.fetches, from);
        let place = place.ok_or_else(|| Status::resource_exhausted("too much is fetched at a time"))?;
        Ok(Asker { from, shard, incoming, _call: call, _place: place })
    }
}

/// Who asks for something of a shard.
struct Asker {
    from: MemberId,
    shard: ShardId,
    incoming: Arc<dyn Incoming>,
    _call: Call,
    _place: Place,
}

type Parts<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The sending side of an answer in parts. Its methods wait until the other server has taken what is
/// ahead, and fail once it does not want more.
struct Answer<T>(mpsc::Sender<Result<T, Status>>);

impl<T> Answer<T> {
    fn send(&self, part: T) -> Result<()> {
        self.0.blocking_send(Ok(part)).map_err(|_| Error::Stopped)
    }
}

/// Has an answer made by a thread of its own.
fn answer<T: Send + 'static>(
    name: &str,
    asker: Asker,
    make: impl FnOnce(&Asker, &Answer<T>) -> Result<()> + Send + 'static,
) -> Result<Response<Parts<T>>, Status> {
    let (sender, parts) = mpsc::channel(MAX_WAITING_PARTS);
    let work = move || {
        // What is sent here fills a copy that is behind; no client waits for it.
        let _duty = Scope::begin(asker.incoming.duties(), Duty::Seed);
        let answer = Answer(sender);
        match make(&asker, &answer) {
            Ok(()) | Err(Error::Stopped) => {}
            Err(why) => {
                debug!(server = %asker.from, shard = %asker.shard, %why, "what was asked for is not sent");
                let _ = answer.0.blocking_send(Err(status(&why)));
            }
        }
    };
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    thread.map_err(|error| Status::resource_exhausted(format!("no thread for it: {error}")))?;
    Ok(Response::new(Box::pin(ReceiverStream::new(parts))))
}

#[tonic::async_trait]
impl Copies for Service {
    type ContentsStream = Parts<OfferPart>;
    type OfferStream = Parts<OfferPart>;
    type FetchStream = Parts<FetchPart>;

    async fn carry(&self, request: Request<Streaming<CopyParcel>>) -> Result<Response<CarryEnd>, Status> {
        let (from, _call) = caller(&request)?;
        let mut messages = request.into_inner();
        let mut turn = None;
        while let Some(message) = messages.next().await {
            let parcel = unpack(&message?.parcel).map_err(|why| Status::invalid_argument(why.to_string()))?;
            let (attached, incoming) = self.attached()?;
            let may_say = may_say(&attached.known.borrow(), from, &parcel.message);
            let (newest, own) = turn.get_or_insert_with(|| self.0.turns.begin(from, parcel.message.is_bulk()));
            // Held while it is passed on: what an older call still has never comes behind a newer one's.
            let newest = newest.lock();
            if *newest != *own {
                break;
            }
            if may_say {
                incoming.message(from, parcel);
            } else {
                debug!(%from, message = ?std::mem::discriminant(&parcel.message), "a message that it may not send");
            }
        }
        Ok(Response::new(CarryEnd {}))
    }

    async fn offer(&self, request: Request<OfferRequest>) -> Result<Response<Self::OfferStream>, Status> {
        let OfferRequest { shard, session } = *request.get_ref();
        let asker = self.asker(&request, ShardId(shard))?;
        answer("ecotone-offer", asker, move |asker, answer| {
            let offer = asker.incoming.offer(asker.from, asker.shard, session)?;
            list((offer.mark, offer.clock_limit_ms), &offer.files, &offer.pending, |part| {
                let part = encode_part(&part).map_err(|why| Error::NotThere(format!("it cannot be sent: {why}")))?;
                answer.send(OfferPart { part: part.into() })
            })
        })
    }

    async fn contents(&self, request: Request<ContentsRequest>) -> Result<Response<Self::ContentsStream>, Status> {
        let asker = self.asker(&request, ShardId(request.get_ref().shard))?;
        answer("ecotone-contents", asker, move |asker, answer| {
            let (mark, contents) = asker.incoming.contents(asker.shard)?;
            let offered =
                |(file, content): (FileName, ContentId)| OfferedFile { file, len: content.len, content: Some(content) };
            let files: Vec<OfferedFile> = contents.into_iter().map(offered).collect();
            list((mark, 0), &files, &[], |part| {
                let part = encode_part(&part).map_err(|why| Error::NotThere(format!("it cannot be sent: {why}")))?;
                answer.send(OfferPart { part: part.into() })
            })
        })
    }

    async fn repair(&self, request: Request<RepairRequest>) -> Result<Response<RepairReply>, Status> {
        let (from, _call) = caller(&request)?;
        let (attached, incoming) = self.attached()?;
        if attached.known.borrow().map.server(from).is_none() {
            return Err(Status::permission_denied(format!("{from} is not in the map of this server")));
        }
        let RepairRequest { shard, begin } = request.into_inner();
        let repair = incoming.repair(ShardId(shard), begin).map_err(|error| status(&error))?;
        Ok(Response::new(repair.reply()))
    }

    async fn fetch(&self, request: Request<FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        let shard = ShardId(request.get_ref().shard);
        let (what, offset, bytes) = asked_for(request.get_ref()).map_err(Status::invalid_argument)?;
        let asker = self.asker(&request, shard)?;
        answer("ecotone-fetch", asker, move |asker, answer| {
            let file = asker.incoming.open(asker.from, asker.shard, what)?;
            send_range(&file, what, (offset, bytes), answer)
        })
    }
}

fn send_range(file: &File, what: Fetched, (mut offset, bytes): (u64, u64), answer: &Answer<FetchPart>) -> Result<()> {
    let mut left = bytes;
    while left > 0 {
        let mut part = vec![0; MAX_PART_BYTES.min(usize::try_from(left).unwrap_or(MAX_PART_BYTES))];
        let read = match file.read_at(&mut part, offset) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => return Err(Error::Io { action: "read", path: format!("{what:?}").into(), source }),
        };
        if read == 0 {
            break;
        }
        part.truncate(read);
        (offset, left) = (offset + read as u64, left - read as u64);
        answer.send(FetchPart { bytes: part.into() })?;
    }
    Ok(())
}

/// What a request asks for.
fn asked_for(request: &FetchRequest) -> Result<(Fetched, u64, u64), String> {
    let kind = usize::try_from(request.kind).ok().and_then(|kind| FileKind::ALL.get(kind));
    let kind = *kind.ok_or_else(|| format!("{} is no kind of file", request.kind))?;
    let file = FileName::new(kind, request.number);
    let what = match request.session {
        Some(session) => Fetched::OfOffer { session, file },
        None => {
            let hash: [u8; 16] = request.content_hash[..].try_into().map_err(|_| "no hash of 16 bytes".to_owned())?;
            let content = ContentId { len: request.content_bytes, hash: u128::from_le_bytes(hash) };
            Fetched::Finished { file, content }
        }
    };
    // `pread` takes no more.
    let end = request.offset.checked_add(request.bytes).filter(|end| *end <= i64::MAX as u64);
    end.ok_or_else(|| "no file is so long".to_owned())?;
    Ok((what, request.offset, request.bytes))
}

/// An offer in parts.
fn list(
    (mark, clock_limit_ms): (Mark, u64),
    all_files: &[OfferedFile],
    all_pending: &[(Item, Vec<u8>)],
    mut send: impl FnMut(ListingPart) -> Result<()>,
) -> Result<()> {
    let (files, pending) = (all_files.len() as u64, all_pending.len() as u64);
    send(ListingPart::Head { mark, clock_limit_ms, files, pending })?;
    for files in all_files.chunks(MAX_LISTED_FILES) {
        let listed = files.iter().map(|offered| {
            let FileName { kind, number } = offered.file;
            ListedFile { kind, number, len: offered.len, content: offered.content }
        });
        send(ListingPart::Files(listed.collect()))?;
    }
    let mut part: Vec<(Item, Vec<u8>)> = Vec::new();
    let mut part_bytes = 0;
    for (item, bytes) in all_pending {
        if part.len() == MAX_ITEMS || (!part.is_empty() && part_bytes + bytes.len() as u64 > MAX_MESSAGE_BYTES) {
            send(ListingPart::Pending(std::mem::take(&mut part)))?;
            part_bytes = 0;
        }
        part_bytes += bytes.len() as u64;
        part.push((*item, bytes.clone()));
    }
    if part.is_empty() { Ok(()) } else { send(ListingPart::Pending(part)) }
}
