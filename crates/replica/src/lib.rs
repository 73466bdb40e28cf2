//! Replication: what a shard's copies owe each other, and when a write may be acknowledged.
//!
//! A shard has one primary, and replicas that hold the same files a little later. [`copy`] is one
//! copy on one server, a replica ([`receiver`]) or the primary ([`primary`]: [`commit`] says what is
//! acknowledged, [`sender`] who is sent what). [`lease`] is what servers promise each other;
//! [`promotion`] is what the leader of the control plane decides when a shard lacks a primary.
//! [`stream`] has the items and messages, [`wire`] what they are as bytes, [`position`] what orders
//! them.
//!
//! Time is an argument: microseconds of a clock that goes on while the machine sleeps and never
//! jumps (`CLOCK_BOOTTIME`). Whoever drives a machine does the commands that it gives in their
//! order. The daemon and the simulator (`sim`) run the same code.
//!
//! **Never in this crate:** IO, clocks, threads, randomness, the contents of files (an item is a
//! kind, a number of bytes and a checksum), and any other crate of the workspace but `control`,
//! whose ids and entries it speaks.
//!
//! How a server drives it: docs/internals/replication.md.

pub mod command;
pub mod commit;
pub mod copy;
pub mod lease;
pub mod planted;
pub mod position;
pub mod primary;
pub mod promotion;
pub mod receiver;
pub mod sender;
pub mod standing;
pub mod stream;
pub mod wire;
