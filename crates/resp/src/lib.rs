//! The Redis protocol and its commands, over a store.
//!
//! From the bottom: [`buffers`] is what one client has in memory; [`protocol`] is bytes;
//! [`command`] has one file for each family of commands; [`execute`] carries out one request;
//! [`serve`] is connections and threads. The keys themselves, and how collections lie in the store,
//! are the crate `keyspace`.
//!
//! What must never be in here: files and tables (that is `engine`), how keys lie in the store (that
//! is `keyspace`), the configuration file, HTTP and the wiring of a server (that is `server`).

pub mod answer;
pub mod backups;
pub mod buffers;
pub mod client;
pub mod client_events;
pub mod cluster_view;
pub mod command;
pub mod compactions;
pub mod copies;
pub mod execute;
pub mod federation;
pub mod histogram;
pub mod host;
pub mod inspections;
mod process;
pub mod protocol;
pub mod replica_reads;
pub mod saves;
pub mod serve;
pub mod service;
pub mod slowlog;
pub mod usage;
