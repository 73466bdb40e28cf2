//! Asks other servers for offers, and for the bytes of files. Blocking: for threads of their own.
//!
//! What comes is handed on in order, as it comes; whoever has got a part of a range asks for the
//! rest. Nothing is compared here: whether bytes are those that they should be is known when the
//! file is whole.
//!
//! With a [`Limiter`] so much is asked for at a time as may come now: what is asked for is sent as
//! fast as the link allows, and what is on its way cannot be held up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ecotone_control::ids::{MemberId, ShardId};
use ecotone_mirror::names::FileName;
use ecotone_mirror::pending::{MAX_PENDING_BYTES, MAX_PENDING_ITEMS};
use ecotone_mirror::seed::{Listing, MAX_OFFERED_FILES, OfferedFile};
use ecotone_replica::position::Mark;
use ecotone_replica::stream::ContentId;
use ecotone_replica::wire::{ListedFile, ListingPart, MAX_PARCEL_BYTES, decode_part};
use ecotone_transport::wire::copies_client::CopiesClient;
use ecotone_transport::wire::{ContentsRequest, FetchRequest, OfferRequest, RepairRequest};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::error::{Error, Result};
use crate::links::{Links, Paths};
use crate::packing::FRAMING_BYTES;
use crate::repairing::Repair;
use crate::service::{Fetched, MAX_PART_BYTES};

/// How long an offer may take to be made.
const MAX_OFFER_TIME: Duration = Duration::from_secs(60);
/// How long the next part of an answer may take.
const MAX_SILENCE: Duration = Duration::from_secs(10);
/// Parts that have come and are not taken.
const MAX_WAITING_PARTS: usize = 4;
/// The least that is asked for at a time, whatever the limit.
const MIN_LIMITED_BYTES: u64 = 16 << 10;
/// How often in a second a limited copy asks.
const LIMITED_REQUESTS_PER_S: u64 = 8;

/// How many bytes a second are fetched; shared by all who fetch for it.
#[derive(Debug, Default)]
pub struct Limiter {
    /// 0: as many as come.
    bytes_per_s: AtomicU64,
    /// When what was asked for so far will be paid for.
    paid: Mutex<Option<Instant>>,
}

impl Limiter {
    /// So many bytes a second, or as many as come.
    pub fn new(bytes_per_s: Option<u64>) -> Limiter {
        let limiter = Limiter::default();
        limiter.set(bytes_per_s);
        limiter
    }

    /// The same from now on.
    pub fn set(&self, bytes_per_s: Option<u64>) {
        self.bytes_per_s.store(bytes_per_s.map_or(0, |bytes| bytes.max(1)), Ordering::Relaxed);
    }

    /// How many of `left` bytes are to be asked for next, and how long to wait before.
    fn next(&self, left: u64, now: Instant) -> (u64, Duration) {
        let bytes_per_s = self.bytes_per_s.load(Ordering::Relaxed);
        if bytes_per_s == 0 {
            return (left, Duration::ZERO);
        }
        let bytes = left.min((bytes_per_s / LIMITED_REQUESTS_PER_S).max(MIN_LIMITED_BYTES));
        let mut paid = self.paid.lock();
        let begins = paid.unwrap_or(now).max(now);
        *paid = Some(begins + Duration::from_secs_f64(bytes as f64 / bytes_per_s as f64));
        (bytes, begins - now)
    }
}

/// What `from` offers for this session.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::Busy`]: ask again later. [`Error::NotThere`]: it offers nothing for
/// this session. [`Error::Refused`], [`Error::Malformed`].
pub fn fetch_offer(links: &Links, from: MemberId, shard: ShardId, session: u64) -> Result<Listing> {
    fetch_listing(links, from, shard, Some(session))
}

/// What the finished files of `from`'s copy hold, at a mark.
///
/// # Errors
/// As [`fetch_offer`]; [`Error::NotThere`] also if it is not the primary.
pub fn fetch_contents(links: &Links, from: MemberId, shard: ShardId) -> Result<(Mark, BTreeMap<FileName, ContentId>)> {
    let Listing { mark, files, .. } = fetch_listing(links, from, shard, None)?;
    let contents = files.into_iter().map(|offered| match offered.content {
        Some(content) if offered.file.is_finished_once() => Ok((offered.file, content)),
        _ => Err(Error::Malformed { server: from, what: format!("{} among finished files", offered.file) }),
    });
    Ok((mark, contents.collect::<Result<_>>()?))
}

/// Has `to` compare and mend the files of its copy, or asks how far that is.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::Refused`]; [`Error::NotThere`] if it has no copy, or was not asked.
pub fn ask_repair(links: &Links, to: MemberId, shard: ShardId, begin: bool) -> Result<Repair> {
    let paths = links.bulk().clone();
    let (sender, mut answers) = mpsc::channel(1);
    paths.route.runtime.clone().spawn(async move {
        let asked = async {
            let mut client = paths.client(to).await?;
            let answer = client.repair(RepairRequest { shard: shard.0, begin });
            let answer = tokio::time::timeout(MAX_SILENCE, answer).await;
            let answer = answer.map_err(|_| Error::unreachable(to, "it does not answer"))?;
            answer.map_err(|status| failed(to, &status))
        };
        match asked.await {
            Ok(answer) => drop(sender.send(Ok(answer.into_inner())).await),
            Err(error) => paths.gave_up(to, error, &sender).await,
        }
    });
    answers.blocking_recv().unwrap_or(Err(Error::Stopped)).map(Repair::said)
}

/// An offer for a session, or without one only what is finished.
fn fetch_listing(links: &Links, from: MemberId, shard: ShardId, session: Option<u64>) -> Result<Listing> {
    let paths = links.bulk().clone();
    let runtime = paths.route.runtime.clone();
    let (sender, mut parts) = mpsc::channel(MAX_WAITING_PARTS);
    runtime.spawn(async move {
        let asked = async {
            let mut client = paths.client(from).await?;
            let answer = match session {
                Some(session) => client.offer(OfferRequest { shard: shard.0, session }).await,
                None => {
                    let answer = client.contents(ContentsRequest { shard: shard.0 });
                    let answer = tokio::time::timeout(MAX_SILENCE, answer).await;
                    answer.map_err(|_| Error::unreachable(from, "it does not answer"))?
                }
            };
            answer.map_err(|status| failed(from, &status))
        };
        // To say what is known takes no time; an offer has to link all files.
        let first = if session.is_some() { MAX_OFFER_TIME } else { MAX_SILENCE };
        match asked.await {
            Ok(answer) => forward(from, answer.into_inner(), first, &sender, |part| part.part).await,
            Err(error) => paths.gave_up(from, error, &sender).await,
        }
    });
    let malformed = |what: String| Error::Malformed { server: from, what };
    let mut next = |is_wanted: bool| -> Result<Option<ListingPart>> {
        if !is_wanted {
            return Ok(None);
        }
        let bytes = parts.blocking_recv().unwrap_or(Err(Error::Stopped))?;
        let bytes = bytes.ok_or_else(|| malformed("the offer ends too early".into()))?;
        decode_part(&bytes).map(Some).map_err(|why| malformed(why.to_string()))
    };
    let Some(ListingPart::Head { mark, clock_limit_ms, files: all_files, pending: all_pending }) = next(true)? else {
        return Err(malformed("an offer without a head".into()));
    };
    if all_files > MAX_OFFERED_FILES as u64 || all_pending > MAX_PENDING_ITEMS as u64 {
        return Err(malformed(format!("an offer of {all_files} files and {all_pending} items")));
    }
    let (mut files, mut pending, mut pending_bytes) = (Vec::new(), Vec::new(), 0);
    while let Some(part) = next((files.len() as u64) < all_files || (pending.len() as u64) < all_pending)? {
        let before = files.len() + pending.len();
        match part {
            ListingPart::Files(more) => files.extend(more.into_iter().map(offered)),
            ListingPart::Pending(more) => {
                pending_bytes += more.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
                pending.extend(more);
            }
            ListingPart::Head { .. } => return Err(malformed("a second head in an offer".into())),
        }
        let is_too_much = files.len() as u64 > all_files || pending.len() as u64 > all_pending;
        if is_too_much || pending_bytes > MAX_PENDING_BYTES || files.len() + pending.len() == before {
            return Err(malformed("an offer that does not hold what its head says".into()));
        }
    }
    Ok(Listing { mark, clock_limit_ms, files, pending })
}

fn offered(listed: ListedFile) -> OfferedFile {
    let file = FileName::new(listed.kind, listed.number);
    OfferedFile { file, len: listed.len, content: listed.content }
}

/// Hands `bytes` bytes from `offset` on to `sink`, in order. After an error it has got those before.
///
/// # Errors
/// As [`fetch_offer`]; [`Error::NotThere`] also if the file is shorter; those of the sink.
pub fn fetch_range(
    links: &Links,
    from: MemberId,
    shard: ShardId,
    what: Fetched,
    (mut offset, bytes): (u64, u64),
    limiter: Option<&Limiter>,
    mut sink: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut left = bytes;
    while left > 0 {
        let (asked, wait) = limiter.map_or((left, Duration::ZERO), |limiter| limiter.next(left, Instant::now()));
        thread::sleep(wait);
        fetch_once(links, from, request(shard, what, offset, asked), &mut sink)?;
        (offset, left) = (offset + asked, left - asked);
    }
    Ok(())
}

fn request(shard: ShardId, what: Fetched, offset: u64, bytes: u64) -> FetchRequest {
    let (session, file, content) = match what {
        Fetched::OfOffer { session, file } => (Some(session), file, None),
        Fetched::Finished { file, content } => (None, file, Some(content)),
    };
    FetchRequest {
        shard: shard.0,
        session,
        kind: file.kind as u32,
        number: file.number,
        content_bytes: content.map_or(0, |content| content.len),
        content_hash: content.map_or(Vec::new(), |content| content.hash.to_le_bytes().to_vec()),
        offset,
        bytes,
    }
}

fn fetch_once(
    links: &Links,
    from: MemberId,
    request: FetchRequest,
    sink: &mut impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let paths = links.bulk().clone();
    let runtime = paths.route.runtime.clone();
    let mut left = request.bytes;
    let (sender, mut parts) = mpsc::channel(MAX_WAITING_PARTS);
    runtime.spawn(async move {
        let asked = async {
            let mut client = paths.client(from).await?;
            client.fetch(request).await.map_err(|status| failed(from, &status))
        };
        match asked.await {
            Ok(answer) => forward(from, answer.into_inner(), MAX_SILENCE, &sender, |part| part.bytes).await,
            Err(error) => paths.gave_up(from, error, &sender).await,
        }
    });
    while left > 0 {
        let part = parts.blocking_recv().unwrap_or(Err(Error::Stopped))?;
        let part = part.ok_or_else(|| Error::NotThere(format!("the last {left} bytes of what was asked for")))?;
        if part.is_empty() || part.len() > MAX_PART_BYTES || part.len() as u64 > left {
            return Err(Error::Malformed { server: from, what: format!("{} bytes of {left}", part.len()) });
        }
        sink(&part)?;
        left -= part.len() as u64;
    }
    Ok(())
}

impl Paths {
    async fn client(&self, to: MemberId) -> Result<CopiesClient<Channel>> {
        let (address, name) = self.to(to).ok_or_else(|| Error::unreachable(to, "nobody knows where it is"))?;
        let connected = self.route.connections.to(&address, Some(&name)).await;
        let channel = connected.map_err(|error| Error::unreachable(to, error))?;
        Ok(CopiesClient::new(channel).max_decoding_message_size(MAX_PARCEL_BYTES + FRAMING_BYTES))
    }

    /// A call has failed before it was answered: the next one tries another connection.
    async fn gave_up<T>(&self, from: MemberId, error: Error, sender: &mpsc::Sender<Result<T>>) {
        if let (Error::Unreachable { .. }, Some((address, _))) = (&error, self.to(from)) {
            self.route.connections.forget(&address);
        }
        let _ = sender.send(Err(error)).await;
    }
}

/// Hands the parts of an answer on; none at its end.
async fn forward<Part, Bytes>(
    from: MemberId,
    mut answer: Streaming<Part>,
    first: Duration,
    sender: &mpsc::Sender<Result<Option<Bytes>>>,
    bytes: impl Fn(Part) -> Bytes,
) {
    let mut longest = first;
    loop {
        let part = match tokio::time::timeout(longest, answer.message()).await {
            Ok(Ok(part)) => Ok(part.map(&bytes)),
            Ok(Err(status)) => Err(failed(from, &status)),
            Err(_) => Err(Error::unreachable(from, "it sends nothing more")),
        };
        let is_last = !matches!(part, Ok(Some(_)));
        if sender.send(part).await.is_err() || is_last {
            return;
        }
        longest = MAX_SILENCE;
    }
}

fn failed(from: MemberId, status: &Status) -> Error {
    let text = status.message().to_owned();
    match status.code() {
        Code::NotFound => Error::NotThere(text),
        Code::ResourceExhausted => Error::Busy(text),
        Code::PermissionDenied => Error::Refused(text),
        Code::InvalidArgument => Error::Malformed { server: from, what: text },
        _ => Error::unreachable(from, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_over_time_and_gathers_no_credit() {
        let (limiter, began) = (Limiter::new(Some(1_000_000)), Instant::now());
        let (bytes, wait) = limiter.next(10_000_000, began);
        assert_eq!((bytes, wait), (125_000, Duration::ZERO));
        let second = limiter.next(10_000_000, began);
        assert_eq!(second, (125_000, Duration::from_millis(125)));
        // Late: it begins anew, and does not make up for what nobody asked for.
        let late = began + Duration::from_secs(60);
        assert_eq!(limiter.next(10_000_000, late), (125_000, Duration::ZERO));
        assert_eq!(limiter.next(100, late), (100, Duration::from_millis(125)));
        limiter.set(Some(10));
        assert_eq!(limiter.next(1 << 30, late + Duration::from_secs(9)).0, MIN_LIMITED_BYTES);
        limiter.set(None);
        assert_eq!(limiter.next(1 << 30, late), (1 << 30, Duration::ZERO));
    }
}
