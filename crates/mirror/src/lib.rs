//! The files of a shard's copies: how the changes of a store's directory become the items of a
//! stream, and how another directory takes them.
//!
//! What must never be in it: who is sent what, when a write is acknowledged, who is the primary
//! (replica); connections (transport); RocksDB and what the bytes of files mean, but for the
//! checksums of its logs.

pub mod catalog;
pub mod collecting;
pub mod comparing;
pub mod directory;
pub mod error;
mod fetched;
mod files;
mod instructions;
mod kept;
mod logs;
pub mod made;
pub mod names;
mod opening;
pub mod pending;
pub mod readers;
pub mod recipe;
pub mod record;
pub mod seed;
pub mod source;
mod switch;
pub mod whole;
