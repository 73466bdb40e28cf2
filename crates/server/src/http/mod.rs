//! The status endpoint: `/metrics`, `/healthz` and `/readyz` by HTTP, for whoever monitors a
//! server.
//!
//! From the bottom: [`status`] is the state of the server, and outlives none of what it shows;
//! [`health`] says whether the server lives and is ready; [`metrics`] is the page of metrics;
//! [`answer`] makes the response; [`listen`] serves connections, within bounds, and [`slots`] says
//! which of them is evicted for another.
//!
//! It takes GET and HEAD without a body, one request a connection. Each bound is a constant in
//! [`listen`] or [`slots`]. Nothing here waits for the store, so it answers while the store hangs,
//! and says so.
//!
//! Threads: one, of its own, for all connections. It belongs to no duty; its processor time is
//! `unattributed`.

mod answer;
pub(crate) mod health;
mod listen;
mod metrics;
mod slots;
pub(crate) mod status;

pub(crate) use listen::HttpServer;
pub use metrics::reference;
