//! The HTTP face: `/metrics`, `/healthz` and `/readyz`, for who watches a server.
//!
//! From the bottom: [`face`] is what is told, and outlives none of what it tells of; [`health`] says whether the server lives and is
//! ready; [`metrics`] is the page of metrics; [`head`] reads a request; [`answer`] makes the response; [`listen`] takes
//! connections, within bounds, and [`seats`] says which of them makes room for another.
//!
//! It speaks as much of HTTP/1.1 as watching takes: GET and HEAD without a body, one request a connection. Each bound is a constant
//! in [`listen`] or [`seats`]. Nothing here waits for the store, so it answers while the store hangs, and says so.
//!
//! Threads: one, of its own, for all connections. It belongs to no duty; its processor time is `unattributed`.

mod answer;
pub(crate) mod face;
mod head;
pub(crate) mod health;
mod listen;
mod metrics;
mod seats;

pub(crate) use listen::HttpServer;
pub use metrics::reference;
