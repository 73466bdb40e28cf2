//! The Redis protocol and its commands, over a store.
//!
//! What must never be in here: files and tables (that is `engine`), the configuration file, HTTP and the wiring of a server (that is
//! `server`).

pub mod protocol;
