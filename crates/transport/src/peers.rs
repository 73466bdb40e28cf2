//! Connections with servers that have shown who they are: what each peer may take at a time, and
//! how its connections are cut.
//!
//! # Invariants
//!
//! A connection is listed from before anything is answered on it until it ends. To cut it is to
//! shut its socket down, whatever its thread or task is waiting for.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ecotone_identity::tls::Protocol;
use ecotone_identity::{HandshakeFailure, MemberId, Peer};
use ecotone_io::send_queue::{send_buffer_bytes, unacknowledged_bytes};
use parking_lot::Mutex;

/// Connections for calls that one peer may have open here.
pub const MAX_CONNECTIONS_OF_PEER: usize = 8;
/// Connections for files that one peer may have open here.
pub const MAX_FILE_CONNECTIONS_OF_PEER: usize = 48;
/// Calls that one peer may have in flight, over all its connections.
pub const MAX_CALLS_OF_PEER: usize = 512;
/// What one peer may read of files at once beyond its rate.
const FILE_BURST: Duration = Duration::from_millis(250);

/// What one peer may take.
#[derive(Debug, Clone, Copy)]
pub struct Quotas {
    /// Connections for calls.
    pub connections: usize,
    /// Connections for files.
    pub file_connections: usize,
    /// Calls in flight.
    pub calls: usize,
    /// Bytes of files each second.
    pub file_bytes_per_s: f64,
}

impl Quotas {
    /// The default, with a rate for files.
    pub fn with_rate(file_bytes_per_s: f64) -> Quotas {
        Quotas {
            connections: MAX_CONNECTIONS_OF_PEER,
            file_connections: MAX_FILE_CONNECTIONS_OF_PEER,
            calls: MAX_CALLS_OF_PEER,
            file_bytes_per_s,
        }
    }
}

/// What a peer has read of files, as a bucket that empties at a rate.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Bytes above the rate, and when that was so.
    level: Option<(f64, Instant)>,
}

impl Pace {
    /// The peer reads so many bytes now: how long it is to wait for them.
    pub(crate) fn take(&mut self, bytes: usize, bytes_per_s: f64, now: Instant) -> Duration {
        let left = self.level.map_or(0.0, |(level, at)| {
            (level - now.saturating_duration_since(at).as_secs_f64() * bytes_per_s).max(0.0)
        });
        self.level = Some((left + bytes as f64, now));
        Duration::try_from_secs_f64(left / bytes_per_s).unwrap_or(Duration::ZERO).saturating_sub(FILE_BURST)
    }
}

/// What a peer uses now.
#[derive(Debug, Default)]
struct Usage {
    calls: AtomicUsize,
    pace: Mutex<Pace>,
}

struct Open {
    peer: Peer,
    protocol: Protocol,
    is_incoming: bool,
    since_ms: u64,
    socket: TcpStream,
    usage: Arc<Usage>,
}

#[derive(Default)]
struct Table {
    next: u64,
    open: HashMap<u64, Open>,
}

/// An open connection, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Who is at the other end.
    pub member: MemberId,
    /// Whether the other side has opened it.
    pub is_incoming: bool,
    /// Since when, in ms since 1970.
    pub since_ms: u64,
    /// Bytes that were sent and not acknowledged.
    pub queued_bytes: u64,
    /// Memory of the kernel for them.
    pub buffer_bytes: u64,
}

/// The open connections with identified peers. Bounded by the listener's limits, by [`Quotas`], and
/// by the peers that this server connects to.
pub struct Peers {
    quotas: Quotas,
    table: Mutex<Table>,
}

impl Peers {
    /// None yet.
    pub fn new(quotas: Quotas) -> Arc<Peers> {
        Arc::new(Peers { quotas, table: Mutex::default() })
    }

    /// Lists a connection. It is taken off when the returned value is dropped.
    ///
    /// # Errors
    /// [`HandshakeFailure::OverQuota`] for an incoming one too many; [`HandshakeFailure::Closed`]
    /// where the system gives no second descriptor of the socket.
    pub(crate) fn list(
        self: &Arc<Self>,
        peer: &Peer,
        protocol: Protocol,
        is_incoming: bool,
        socket: &impl AsFd,
    ) -> Result<Arc<PeerConnection>, HandshakeFailure> {
        let socket: OwnedFd = socket.as_fd().try_clone_to_owned().map_err(|_| HandshakeFailure::Closed)?;
        let mut table = self.table.lock();
        let same = |open: &&Open| open.peer.member == peer.member;
        let usage = table.open.values().find(same).map(|open| open.usage.clone()).unwrap_or_default();
        let there =
            table.open.values().filter(|open| same(open) && open.is_incoming && open.protocol == protocol).count();
        let allowed = match protocol {
            Protocol::Calls | Protocol::Enroll => self.quotas.connections,
            Protocol::Files => self.quotas.file_connections,
        };
        if is_incoming && there >= allowed {
            return Err(HandshakeFailure::OverQuota);
        }
        let number = table.next;
        table.next += 1;
        let since_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let (peer_of, usage_of) = (peer.clone(), usage.clone());
        let open = Open { peer: peer_of, protocol, is_incoming, since_ms, socket: socket.into(), usage: usage_of };
        table.open.insert(number, open);
        Ok(Arc::new(PeerConnection { peers: self.clone(), number, peer: peer.clone(), usage }))
    }

    /// Cuts the connections that may not stay. Returns how many.
    pub fn cut(&self, may_stay: impl Fn(&Peer, Protocol) -> bool) -> usize {
        let table = self.table.lock();
        let to_cut = table.open.values().filter(|open| !may_stay(&open.peer, open.protocol));
        // One that has ended by itself is as good as cut.
        to_cut.inspect(|open| _ = open.socket.shutdown(Shutdown::Both)).count()
    }

    /// The open connections, in the order in which they were opened.
    pub fn links(&self) -> Vec<Link> {
        let table = self.table.lock();
        let mut open: Vec<(&u64, &Open)> = table.open.iter().collect();
        open.sort_unstable_by_key(|(number, _)| **number);
        let link = |open: &Open| Link {
            member: open.peer.member,
            is_incoming: open.is_incoming,
            since_ms: open.since_ms,
            // One that has ended a moment ago has nothing to send.
            queued_bytes: unacknowledged_bytes(&open.socket).unwrap_or(0),
            buffer_bytes: send_buffer_bytes(&open.socket).unwrap_or(0),
        };
        open.into_iter().map(|(_, open)| link(open)).collect()
    }

    /// Open connections with this server, both ways.
    pub fn connections_with(&self, member: MemberId) -> usize {
        self.table.lock().open.values().filter(|open| open.peer.member == member).count()
    }
}

/// An open connection with an identified peer.
pub struct PeerConnection {
    peers: Arc<Peers>,
    number: u64,
    peer: Peer,
    usage: Arc<Usage>,
}

impl PeerConnection {
    /// Who is at the other end.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// A call begins; `None` if the peer has as many in flight as it may.
    pub fn begin_call(self: &Arc<Self>) -> Option<Call> {
        let before = self.usage.calls.fetch_add(1, Ordering::AcqRel);
        let call = Call(self.usage.clone());
        (before < self.peers.quotas.calls).then_some(call)
    }

    /// The peer reads so many bytes of files now: how long it is to wait for them.
    pub(crate) fn pace(&self, bytes: usize) -> Duration {
        self.usage.pace.lock().take(bytes, self.peers.quotas.file_bytes_per_s, Instant::now())
    }
}

impl Drop for PeerConnection {
    fn drop(&mut self) {
        self.peers.table.lock().open.remove(&self.number);
    }
}

/// A call in flight. Ends when dropped.
pub struct Call(Arc<Usage>);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_reads_faster_than_its_rate_waits_for_what_is_above_it() {
        let (mut pace, began) = (Pace::default(), Instant::now());
        let at = |seconds: f64| began + Duration::from_secs_f64(seconds);
        // A quarter of a second's worth is free.
        assert_eq!(pace.take(200, 1000.0, at(0.0)), Duration::ZERO);
        assert_eq!(pace.take(1000, 1000.0, at(0.0)), Duration::ZERO);
        let wait = pace.take(1, 1000.0, at(0.0)).as_secs_f64();
        assert!((wait - 0.95).abs() < 1e-6, "{wait}");
        // What was read is forgotten as time passes, and no credit is gathered.
        assert_eq!(pace.take(1, 1000.0, at(10.0)), Duration::ZERO);
        let wait = pace.take(2000, 1000.0, at(10.0)).as_secs_f64() + pace.take(0, 1000.0, at(10.0)).as_secs_f64();
        assert!((wait - 1.751).abs() < 1e-3, "{wait}");
    }
}
