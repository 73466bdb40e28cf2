//! Connections to other servers, kept open and checked by a handshake.
//!
//! One HTTP/2 connection per peer carries everything. A connection that failed is dropped; the next
//! use opens a new one. Where the transport reconnects by itself there is no handshake: whether a
//! restarted peer speaks this version is checked by each call (see [`crate::protocol`]).

use std::collections::HashMap;
use std::time::Duration;

use ecotone_types::ServerId;
use parking_lot::Mutex;
use tonic::transport::{Channel, Endpoint};

use crate::error::{Error, Result};
use crate::protocol::wire::peer_client::PeerClient;
use crate::protocol::wire::{HelloReply, HelloRequest};
use crate::protocol::{MAX_MESSAGE_BYTES, PROTOCOL_VERSION, failed_call};

/// Bytes in flight on one stream: enough that a range is never cut by the window.
pub const STREAM_WINDOW_BYTES: u32 = MAX_MESSAGE_BYTES as u32;
/// Bytes in flight on one connection.
pub const CONNECTION_WINDOW_BYTES: u32 = 2 * STREAM_WINDOW_BYTES;
/// HTTP/2 frames large enough that their headers do not count.
pub const FRAME_BYTES: u32 = 256 << 10;

/// How long this side waits for the other.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For a connection and its handshake.
    pub connect: Duration,
    /// For one range of a file.
    pub read: Duration,
    /// For any sign of life, before the peer is taken for dead.
    pub silence: Duration,
}

/// Open connections by address. Bounded by the number of servers of the federation: see
/// [`Connections::keep_only`].
pub struct Connections {
    own: ServerId,
    timeouts: Timeouts,
    by_address: Mutex<HashMap<String, Channel>>,
}

impl Connections {
    /// No connections yet, of the server called `own`.
    pub fn new(own: ServerId, timeouts: Timeouts) -> Connections {
        Connections { own, timeouts, by_address: Mutex::default() }
    }

    /// The connection to `address`, opened and greeted if need be.
    pub async fn to(&self, address: &str) -> Result<Channel> {
        if let Some(channel) = self.by_address.lock().get(address) {
            return Ok(channel.clone());
        }
        let (channel, _) = self.greet(address).await?;
        self.by_address.lock().insert(address.to_owned(), channel.clone());
        Ok(channel)
    }

    /// The connection to `address` if one is open.
    pub fn if_open(&self, address: &str) -> Option<Channel> {
        self.by_address.lock().get(address).cloned()
    }

    /// Opens a new connection and shakes hands.
    pub async fn greet(&self, address: &str) -> Result<(Channel, HelloReply)> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| Error::Address(format!("{address:?} is no address of a server (host:port): {error}")))?
            .connect_timeout(self.timeouts.connect)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keep_alive_interval(self.timeouts.silence / 2)
            .keep_alive_timeout(self.timeouts.silence)
            .keep_alive_while_idle(true);
        let connect = async {
            let channel = endpoint.connect().await.map_err(|error| Error::unreachable(address, root_cause(&error)))?;
            let request = HelloRequest { protocol_version: PROTOCOL_VERSION, server: self.own.as_str().to_owned() };
            let reply = PeerClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .hello(request)
                .await
                .map_err(|status| failed_call(address, &status))?
                .into_inner();
            if reply.protocol_version != PROTOCOL_VERSION {
                return Err(Error::Version {
                    peer: address.to_owned(),
                    theirs: reply.protocol_version,
                    ours: PROTOCOL_VERSION,
                });
            }
            Ok((channel, reply))
        };
        tokio::time::timeout(2 * self.timeouts.connect, connect)
            .await
            .map_err(|_| Error::unreachable(address, "no handshake in time"))?
    }

    /// Forgets the connections to addresses where no server listens any more. Calls under way on
    /// them go on.
    pub fn keep_only(&self, is_known: impl Fn(&str) -> bool) {
        self.by_address.lock().retain(|address, _| is_known(address));
    }

    /// Forgets the connection to `address` after a failure.
    pub fn forget(&self, address: &str) {
        self.by_address.lock().remove(address);
    }
}

/// The innermost cause, which says what happened ("connection refused") where the outer ones say
/// "transport error".
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
