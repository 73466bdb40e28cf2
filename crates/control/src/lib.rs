//! The control plane: who belongs to a federation, who holds which shard, and who decides.
//!
//! Some servers vote in one Raft group (the crate `raft`), the others learn. Its log holds
//! [`entry`]s; [`machine`] applies them to the [`map`]; [`node`] turns events (ticks, messages,
//! proposals) into commands (persist, send, applied); [`log`] is what it persists, as bytes over a
//! small trait; [`voters`] chooses who votes; [`dealing`] who gets which shard; [`placing`] where its
//! copies belong; [`settings`] what may be set; [`recover`] begins a log.
//!
//! **Never in this crate:** IO, clocks, threads, randomness, and any other crate of the workspace
//! but `types`. The files are `raftlog`'s; messages, time and seeds are given. The daemon and the
//! simulator (`sim`) run the same code.
//!
//! How a server drives it: docs/internals/control-plane.md.

pub mod codec;
pub mod dealing;
mod entries;
pub mod entry;
mod error;
pub mod ids;
pub mod log;
pub mod machine;
pub mod map;
pub mod node;
pub mod placing;
pub mod recover;
pub mod settings;
pub mod voters;
mod wire;

pub use codec::{Malformed, Problem};
pub use error::Error;
pub use raft::eraftpb::Snapshot;
