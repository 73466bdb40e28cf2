//! Connections and the threads that serve them.
//!
//! Clients are [dealt out](deal) to [lanes](lane), one thread each, of which [as many as pay](width) serve. Those that come by TLS first pass
//! the [handshake](handshake), on a thread for that. What is not in memory is brought there [beside](device) the lane.

mod accept;
mod certificate;
mod connection;
mod deal;
mod device;
mod handshake;
mod lane;
mod lasting;
mod listener;
mod look_ahead;
mod memory;
mod pulse;
mod session;
mod signal;
mod stream;
mod tls;
mod width;

pub use accept::KEEPALIVE_IDLE;
pub use certificate::CertificateEnds;
pub use deal::IdleCores;
pub use listener::{Lanes, Listen, ListenTls, Listening, Machine, Panicked, ServeError, Server};
pub use pulse::Pulse;
pub use tls::{TlsError, TlsFile, TlsFiles};
