//! Connections and the threads that serve them.
//!
//! Clients are dealt out to [lanes](lane), one thread each. A client stays on its lane. Those that come by TLS first pass the
//! [handshake](handshake), on a thread for that. What is not in memory is brought there [beside](device) the lane.

mod accept;
mod connection;
mod device;
mod handshake;
mod lane;
mod listener;
mod look_ahead;
mod memory;
mod pulse;
mod session;
mod signal;
mod stream;
mod tls;

pub use listener::{Listen, ListenTls, Listening, ServeError, Server};
pub use pulse::Pulse;
pub use tls::{TlsError, TlsFile, TlsFiles};
