//! Connections and the threads that serve them.
//!
//! Clients are [spread](rebalancing) over [event loops](event_loop), one thread each, of which [as
//! many as pay](scaling) serve. Those that come by TLS first pass the [handshake](handshake), on a
//! thread for that. What is not in memory is read [beside](device) the event loop.

mod accept;
mod certificate;
mod connection;
mod control;
mod device;
mod event_loop;
mod forward;
mod handshake;
mod held_replies;
mod listener;
mod liveness;
mod memory;
mod outcome;
mod prefetch;
mod rebalancing;
mod scaling;
mod session;
mod stream;
mod tls;

pub use accept::KEEPALIVE_IDLE;
pub use certificate::CertificateEnds;
pub use listener::{EventLoops, Listen, ListenTls, Listening, Machine, Panicked, ServeError, Server};
pub use liveness::Heartbeat;
pub use rebalancing::IdleCores;
pub use tls::{TlsError, TlsFile, TlsFiles};
