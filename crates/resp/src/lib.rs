//! The Redis protocol and its commands, over a store.
//!
//! From the bottom: [`memory`] is what all clients together take, [`buffers`] what one has; [`protocol`] is bytes; [`keyspace`] is typed keys with expiry, changed
//! under latches and committed in groups; [`collections`] is how those lie in the store; [`command`] has one file for each family of commands; [`execute`] carries out one request; [`serve`] is connections and threads.
//!
//! What must never be in here: files and tables (that is `engine`), the configuration file, HTTP and the wiring of a server (that is
//! `server`).

pub mod backups;
pub mod buffers;
pub mod client;
pub mod collections;
pub mod command;
pub mod compactions;
pub mod error;
pub mod execute;
pub mod histogram;
pub mod inspections;
pub mod keyspace;
pub mod memory;
pub mod occasions;
mod process;
pub mod protocol;
pub mod saves;
pub mod serve;
pub mod service;
pub mod slowlog;
pub mod usage;
