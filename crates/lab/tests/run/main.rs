//! The lab against a server that speaks the protocol of records but stores nothing: this program
//! itself, started again.
//!
//! What the server does is said by the lab's script: `calm`, `dies`, `hangs` and so on. Emulated
//! cores are folders, so that these tests need no rights and see whether they were removed.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

mod collecting;
mod core_limit;
mod emulation;
mod interruption;
mod server;
mod server_faults;
mod surroundings;
