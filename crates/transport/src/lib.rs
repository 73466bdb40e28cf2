//! How bytes and calls travel between servers.
//!
//! The protocol (its version and its messages), mutual TLS by the servers' identities and quotas for
//! each peer, connections that begin with a handshake, the listener that separates calls from
//! connections for files and from servers that join, exports of files under a token, and reads of
//! those files by range. Who asks whom for what, and what is made of an answer, is the
//! business of `ecotone-cluster`.
//!
//! What must never be in it: roles (coordinator, owner, worker), jobs, decisions, stores,
//! configuration files.

pub mod addresses;
pub mod connections;
pub mod enrollment;
pub mod error;
pub mod exports;
pub mod file_client;
pub mod file_server;
mod file_stream;
pub mod listener;
pub mod peers;
pub mod protocol;
pub mod remote_files;
pub mod resolve;
pub mod security;
mod stream;
pub mod traffic;
pub mod under_way;

pub use error::{Error, Result};
pub use protocol::{PROTOCOL_VERSION, wire};
