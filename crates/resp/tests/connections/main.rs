//! Clients and what serves them: connections, event loops, what may block, limits, TLS.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

mod against_redis;
mod blocking;
mod bounds;
mod cancellation;
mod clients;
mod cluster;
mod cluster_tools;
mod cold_reads;
#[path = "../common/mod.rs"]
mod common;
mod connection;
mod copies;
mod event_loops;
mod isolation;
mod manners;
mod panics;
mod pipelines;
mod server;
mod serving;
mod tls;
