//! A running server's part in replication: it drives [`ecotone_replica`]'s machines, whose files
//! [`ecotone_mirror`] reads and writes, over connections of servers that have shown who they are
//! ([`ecotone_transport`]), by the map that [`ecotone_membership`] knows.
//!
//! What must never be in it: who may acknowledge and who is promoted (replica), what a store's
//! files are called (mirror), stores, keys and clients.

//!
//! # Threads
//!
//! Each copy has one, see [`shard`]; leases one, which waits for no disk; the map and the leader's part
//! one each, and one compares files ([`scrub`]). Messages of others arrive on threads that carry messages, which wait for none of these.

mod clock;
mod comparing;
mod copies;
mod duty_scope;
pub mod error;
mod fetcher;
pub mod fetching;
mod followed;
mod gate;
mod host;
mod leader;
mod leases;
mod leftovers;
pub mod links;
mod packing;
mod primary_tables;
mod published;
mod repairing;
mod scrub;
pub mod service;
mod shard;
mod table;
mod troubles;

pub use clock::now_us;
pub use copies::{Copies, Parts, Reported, is_replicated};
pub use error::{Error, Result};
pub use followed::Followed;
pub use gate::CommitGate;
pub use host::{Host, Opening};
pub use primary_tables::PrimaryTables;
pub use repairing::{Differing, Phase, Repair, Scrubbed};
pub use shard::{Applied, Facts};
