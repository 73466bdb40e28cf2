//! Requests that other servers carry out, on behalf of clients that follow no redirects
//! (`clients.proxy`).
//!
//! Each event loop has connections of its own to the ports where others serve clients. Requests of
//! many clients share one, one behind the other, and their replies are passed on as they are; so
//! there are connections for each version of the protocol. All requests of one client to one server
//! go over the same connection, so they stay in order. The other server is told that redirects are
//! followed here (`CLIENT CAPA redirect`), so it never forwards a request further: where two
//! servers have different views for a moment the client sees `MOVED`.
//!
//! Bounds: [`MAX_CONNECTIONS`] to one server; on each [`MAX_IN_FLIGHT`] requests and
//! [`MAX_IN_FLIGHT_BYTES`] of them, beyond which clients wait; what is received counts as memory of
//! clients. A request has [`ANSWER_WITHIN`].
//!
//! Failure: a server that cannot be reached, refuses this one, or does not answer in time costs the
//! requests that wait for it, and nobody else; the error names it, and says whether the request may
//! have been carried out. The next request connects anew.
//!
//! Threads: that of the event loop.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::client::ClientInfo;
use crate::cluster_view::{ClusterView, Endpoint, ServerView};
use crate::service::Service;

/// Connections of one event loop to one server, for each version of the protocol.
const MAX_CONNECTIONS: usize = 2;

/// Requests that wait for their replies on one connection.
const MAX_IN_FLIGHT: usize = 1024;

/// Bytes of these requests.
const MAX_IN_FLIGHT_BYTES: usize = 16 << 20;

/// A longer request is not forwarded.
const MAX_REQUEST_BYTES: usize = 8 << 20;

/// Time for connecting, and for the greeting.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// Time from the receipt of a request to its reply.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// A connection that nobody has used for so long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// How often it is checked whether this server stops, while a reply is awaited.
const LOOK_FOR_STOP_EVERY: Duration = Duration::from_millis(100);

/// Bytes that are received at once.
const READ_BYTES: usize = 16 * 1024;

/// The reply to the greeting is shorter.
const MAX_GREETING_BYTES: usize = 64 * 1024;

/// Lines of a reply, but for texts and errors, are shorter.
const MAX_COUNT_DIGITS: usize = 20;

/// The connections of an event loop.
#[derive(Default)]
pub(super) struct Forwarder {
    peers: RefCell<HashMap<Key, Peer>>,
}

/// Which connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    id: String,
    host: String,
    port: u16,
    /// Of the protocol.
    version: u8,
    /// One of [`MAX_CONNECTIONS`].
    number: usize,
}

impl Key {
    fn name(&self) -> String {
        format!("server {} at {}:{}", self.id, self.host, self.port)
    }
}

/// A connection, as those who send see it.
#[derive(Clone)]
struct Peer {
    requests: mpsc::UnboundedSender<Request>,
    number: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

struct Request {
    bytes: Vec<u8>,
    due: Instant,
    answer: oneshot::Sender<Result<Answer, String>>,
    _in_flight: [OwnedSemaphorePermit; 2],
}

impl Request {
    fn fail(self, why: &str) {
        // Its client may have gone.
        let _ = self.answer.send(Err(why.to_owned()));
    }
}

/// A reply, whole.
#[derive(Debug)]
pub(super) struct Answer {
    bytes: Vec<u8>,
    _taken: Taken,
}

impl Answer {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes that count as memory of clients.
#[derive(Debug)]
struct Taken {
    of_all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Taken {
    fn none(service: &Service) -> Self {
        Self { of_all: service.client_memory.clone(), bytes: 0 }
    }

    fn set(&mut self, bytes: usize) {
        self.of_all.fetch_add(bytes, Ordering::Relaxed);
        self.of_all.fetch_sub(std::mem::replace(&mut self.bytes, bytes), Ordering::Relaxed);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A reply that is to come.
pub(super) struct Awaited {
    answer: oneshot::Receiver<Result<Answer, String>>,
    service: Arc<Service>,
}

impl Awaited {
    fn refused(service: &Arc<Service>, why: String) -> Self {
        let (sender, answer) = oneshot::channel();
        let _ = sender.send(Err(why));
        Self { answer, service: service.clone() }
    }

    /// The reply, or the error instead.
    pub(super) async fn answer(mut self) -> Result<Answer, String> {
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut self.answer => break answer,
                () = sleep(LOOK_FOR_STOP_EVERY) => {}
            }
            if self.service.stops.load(Ordering::Relaxed) {
                break Ok(Err(
                    "ERR the server stops; whether another one has carried out this command is not known".into()
                ));
            }
        };
        // Whoever ends a connection says why.
        let answer = answer.unwrap_or_else(|_| Err("CLUSTERDOWN a connection to another server has ended".into()));
        if answer.is_err() {
            self.service.statistics.forwards_failed.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }
}

/// Where a server is reached from here.
fn host(view: &ClusterView, server: &ServerView) -> String {
    let by_name = server.ip.is_empty() || view.endpoint() == Endpoint::HostName && !server.host_name.is_empty();
    if by_name { server.host_name.clone() } else { server.ip.clone() }
}

impl Forwarder {
    /// Sends requests, each to the server at a place in the `view`. Waits while there are too many
    /// under way. The replies are to be awaited in order.
    pub(super) async fn send(
        &self,
        service: &Arc<Service>,
        view: &ClusterView,
        client: &ClientInfo,
        requests: Vec<(usize, Vec<u8>)>,
    ) -> Vec<Awaited> {
        let due = Instant::now() + ANSWER_WITHIN;
        let mut awaited = Vec::with_capacity(requests.len());
        for (place, bytes) in requests {
            service.statistics.forwarded.fetch_add(1, Ordering::Relaxed);
            let server = &view.servers()[place];
            let key = Key {
                id: server.id.clone(),
                host: host(view, server),
                port: server.port,
                version: client.protocol.load(Ordering::Relaxed),
                number: client.id as usize % MAX_CONNECTIONS,
            };
            awaited.push(match self.send_one(service, &key, bytes, due).await {
                Ok(answer) => Awaited { answer, service: service.clone() },
                Err(why) => Awaited::refused(service, why),
            });
        }
        awaited
    }

    async fn send_one(
        &self,
        service: &Arc<Service>,
        key: &Key,
        bytes: Vec<u8>,
        due: Instant,
    ) -> Result<oneshot::Receiver<Result<Answer, String>>, String> {
        let name = key.name();
        if key.port == 0 || key.host.is_empty() {
            return Err(format!(
                "CLUSTERDOWN {name} has no port where it serves clients without TLS; nothing was done"
            ));
        }
        if bytes.len() > MAX_REQUEST_BYTES {
            return Err(format!(
                "ERR a request of more than {MAX_REQUEST_BYTES} bytes is not forwarded: send it to {}:{}; nothing was done",
                key.host, key.port
            ));
        }
        let peer = self.peer(service, key);
        let in_flight = async {
            // They are never closed.
            let one = peer.number.clone().acquire_owned().await.ok()?;
            let its_bytes = peer.bytes.clone().acquire_many_owned(bytes.len() as u32).await.ok()?;
            Some([one, its_bytes])
        };
        let Ok(Some(in_flight)) = timeout_at(due, in_flight).await else {
            return Err(format!("CLUSTERDOWN {name} has too many requests under way; nothing was done"));
        };
        let (sender, answer) = oneshot::channel();
        let request = Request { bytes, due, answer: sender, _in_flight: in_flight };
        // It may have ended meanwhile; then a new one is begun.
        if let Err(unsent) = peer.requests.send(request)
            && let Err(unsent) = self.peer(service, key).requests.send(unsent.0)
        {
            unsent.0.fail(&format!("CLUSTERDOWN {name} cannot be reached; nothing was done"));
        }
        Ok(answer)
    }

    /// The connection, which is begun if there is none.
    fn peer(&self, service: &Arc<Service>, key: &Key) -> Peer {
        let mut peers = self.peers.borrow_mut();
        if let Some(peer) = peers.get(key).filter(|peer| !peer.requests.is_closed()) {
            return peer.clone();
        }
        peers.retain(|_, peer| !peer.requests.is_closed());
        let (requests, receiver) = mpsc::unbounded_channel();
        let peer = Peer {
            requests,
            number: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            bytes: Arc::new(Semaphore::new(MAX_IN_FLIGHT_BYTES)),
        };
        peers.insert(key.clone(), peer.clone());
        let conversation = Conversation {
            taken: Taken::none(service),
            service: service.clone(),
            key: key.clone(),
            requests: receiver,
            unanswered: VecDeque::new(),
            out: Vec::new(),
            written: 0,
            input: Vec::new(),
            frame: Frame::default(),
        };
        tokio::task::spawn_local(conversation.hold());
        peer
    }
}

/// A connection, as it is served.
struct Conversation {
    service: Arc<Service>,
    key: Key,
    requests: mpsc::UnboundedReceiver<Request>,
    /// Those that were taken, in order.
    unanswered: VecDeque<Request>,
    /// Their bytes, of which so many are sent.
    out: Vec<u8>,
    written: usize,
    /// Replies, from the beginning of the first that is not whole.
    input: Vec<u8>,
    frame: Frame,
    taken: Taken,
}

impl Conversation {
    /// Until it has not been used for long, or fails.
    async fn hold(mut self) {
        let name = self.key.name();
        let stream = match timeout(CONNECT_WITHIN, self.connect()).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(why)) => return self.end(&format!("CLUSTERDOWN {name} cannot be asked: {why}")),
            Err(_) => {
                let within_s = CONNECT_WITHIN.as_secs();
                return self.end(&format!("CLUSTERDOWN {name} did not answer within {within_s} s"));
            }
        };
        if let Err(why) = self.exchange(stream).await {
            self.end(&format!("CLUSTERDOWN {name} {why}"));
        }
    }

    /// All that wait for it are told why it ends.
    fn end(mut self, why: &str) {
        tracing::debug!(why, "requests that were forwarded have failed");
        self.requests.close();
        for request in self.unanswered.drain(..) {
            request.fail(&format!("{why}; whether it has carried out this command is not known"));
        }
        while let Ok(request) = self.requests.try_recv() {
            // Nothing of it was sent.
            request.fail(&format!("{why}; nothing was done"));
        }
    }

    /// Connects and says who asks.
    async fn connect(&mut self) -> Result<TcpStream, String> {
        let address = (self.key.host.as_str(), self.key.port);
        let mut stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let password = self.service.limits.read().password.clone();
        let version = self.key.version.to_string();
        let mut hello = vec!["HELLO", &version];
        hello.extend(password.iter().flat_map(|password| ["AUTH", "default", password]));
        for greeting in [hello, vec!["CLIENT", "CAPA", "redirect"]] {
            let mut request = format!("*{}\r\n", greeting.len());
            greeting.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
            stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
            let reply = loop {
                if let Some(length) = self.frame.end(&self.input)? {
                    break self.input.drain(..length).collect::<Vec<u8>>();
                }
                if self.input.len() > MAX_GREETING_BYTES {
                    return Err("it has no end to its greeting".into());
                }
                match stream.read_buf(&mut self.input).await {
                    Ok(0) => return Err("it has closed the connection".into()),
                    Ok(_) => {}
                    Err(error) => return Err(error.to_string()),
                }
            };
            if let Some(error) = reply.strip_prefix(b"-") {
                let error = String::from_utf8_lossy(error);
                let is_password = error.starts_with("WRONGPASS") || error.starts_with("NOAUTH");
                let hint = if is_password { ", which must have the same clients.password" } else { "" };
                return Err(format!("it refuses this server{hint}: {}", error.trim_end()));
            }
        }
        Ok(stream)
    }

    /// Sends requests and receives replies, at the same time.
    async fn exchange(&mut self, mut stream: TcpStream) -> Result<(), String> {
        let (mut reader, mut writer) = stream.split();
        loop {
            let due = self.unanswered.front().map(|request| request.due);
            let ends = due.unwrap_or_else(|| Instant::now() + IDLE);
            self.input.reserve(READ_BYTES);
            tokio::select! {
                biased;
                read = reader.read_buf(&mut self.input) => match read {
                    Ok(0) => return Err("has closed the connection".into()),
                    Ok(_) => self.take_answers()?,
                    Err(error) => return Err(format!("is not heard any more: {error}")),
                },
                written = writer.write(&self.out[self.written..]), if self.written < self.out.len() => {
                    self.written += written.map_err(|error| format!("takes no more requests: {error}"))?;
                    if self.written == self.out.len() {
                        self.out.clear();
                        self.out.shrink_to(READ_BYTES);
                        self.written = 0;
                    }
                }
                request = self.requests.recv() => match request {
                    Some(mut request) => {
                        self.out.append(&mut request.bytes);
                        self.unanswered.push_back(request);
                    }
                    // The event loop has ended.
                    None => return Ok(()),
                },
                () = sleep_until(ends) => {
                    if due.is_some() {
                        return Err(format!("did not answer within {} s", ANSWER_WITHIN.as_secs()));
                    }
                    // Nothing has come meanwhile: all is on one thread.
                    self.requests.close();
                    return Ok(());
                }
            }
        }
    }

    /// Gives the replies that are whole to those who wait for them.
    fn take_answers(&mut self) -> Result<(), String> {
        let mut begin = 0;
        while let Some(length) = self.frame.end(&self.input[begin..])? {
            let Some(request) = self.unanswered.pop_front() else { return Err("answers what nobody has asked".into()) };
            let bytes = self.input[begin..begin + length].to_vec();
            let mut taken = Taken::none(&self.service);
            taken.set(bytes.len());
            // Its client may have gone.
            let _ = request.answer.send(Ok(Answer { bytes, _taken: taken }));
            begin += length;
        }
        self.input.drain(..begin);
        if self.input.is_empty() {
            self.input.shrink_to(READ_BYTES);
        }
        if self.unanswered.is_empty() && !self.input.is_empty() {
            return Err("answers what nobody has asked".into());
        }
        self.taken.set(self.input.capacity());
        if self.input.len() > self.service.limits.read().output_bytes {
            return Err("has a longer reply than a client may be owed (clients.max_output_bytes)".into());
        }
        if self.service.is_short_of_memory(self.input.len()) {
            return Err("has a longer reply than there is memory for (clients.max_memory_bytes)".into());
        }
        Ok(())
    }
}

/// How far the reply is known that the bytes begin with.
#[derive(Debug)]
struct Frame {
    /// So many bytes are of it.
    at: usize,
    /// So many answers follow behind these.
    missing: u64,
}

impl Default for Frame {
    fn default() -> Self {
        Self { at: 0, missing: 1 }
    }
}

impl Frame {
    /// The length of the reply that `bytes` begin with, which begin as at the last call that found
    /// none; `None`: it is not whole.
    fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, String> {
        while self.missing > 0 {
            let rest = &bytes[self.at.min(bytes.len())..];
            let Some(line) = rest.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
            let count =
                || count(&rest[1..line.max(1)]).ok_or_else(|| "does not speak the protocol of Redis".to_owned());
            let (own, behind) = match rest[0] {
                b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => (0, 0),
                b'$' | b'=' | b'!' => match count()? {
                    Some(bytes) => (usize::try_from(bytes).unwrap_or(usize::MAX).saturating_add(2), 0),
                    None => (0, 0),
                },
                b'*' | b'~' | b'>' => (0, count()?.unwrap_or(0)),
                b'%' => (0, count()?.unwrap_or(0).saturating_mul(2)),
                _ => return Err("does not speak the protocol of Redis".into()),
            };
            let end = self.at.saturating_add(line + 1).saturating_add(own);
            if end > bytes.len() {
                return Ok(None);
            }
            self.at = end;
            self.missing = (self.missing - 1).saturating_add(behind);
        }
        let Self { at, .. } = std::mem::take(self);
        Ok(Some(at))
    }
}

/// The number in the first line of an answer, which ends with CR; `Some(None)` where it is -1.
fn count(line: &[u8]) -> Option<Option<u64>> {
    let digits = line.strip_suffix(b"\r")?;
    if digits == b"-1" {
        return Some(None);
    }
    let is_number = !digits.is_empty() && digits.len() <= MAX_COUNT_DIGITS && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(digits).ok()?.parse().ok()).flatten().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_end_where_they_end_however_they_come() {
        let replies: [&[u8]; 12] = [
            b"+OK\r\n",
            b"-ERR no\r\n",
            b":-7\r\n",
            b"$-1\r\n",
            b"$4\r\na\r\nb\r\n",
            b"*0\r\n",
            b"*-1\r\n",
            b"*2\r\n*1\r\n$0\r\n\r\n:1\r\n",
            b"%2\r\n+a\r\n*1\r\n:1\r\n+b\r\n_\r\n",
            b"~1\r\n=5\r\ntxt:a\r\n",
            b",1.5\r\n",
            b"#t\r\n",
        ];
        let all: Vec<u8> = replies.concat();
        for piece in [1, 3, 7, all.len()] {
            let (mut frame, mut input, mut found) = (Frame::default(), Vec::new(), Vec::new());
            for bytes in all.chunks(piece) {
                input.extend_from_slice(bytes);
                while let Some(length) = frame.end(&input).unwrap() {
                    found.push(input.drain(..length).collect::<Vec<u8>>());
                }
            }
            assert_eq!(found, replies, "in pieces of {piece}");
            assert!(input.is_empty());
        }
    }

    #[test]
    fn what_is_no_reply_ends_the_conversation() {
        for wrong in
            [&b"HTTP/1.1 400\r\n"[..], b"$x\r\n", b"$\r\n", b"*-2\r\n", b"$1\n", b"\r\n", b"*99999999999999999999\r\n"]
        {
            assert!(Frame::default().end(wrong).is_err(), "{}", wrong.escape_ascii());
        }
        // It may yet come.
        assert_eq!(Frame::default().end(b"$18446744073709551615\r\n"), Ok(None));
    }
}
