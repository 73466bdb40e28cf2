//! Connections and the threads that serve them.
//!
//! Clients are dealt out to [lanes](lane), one thread each. A client stays on its lane.

mod connection;
mod lane;
mod listener;
mod pulse;

pub use listener::{Listen, Listening, ServeError, Server};
pub use pulse::Pulse;
