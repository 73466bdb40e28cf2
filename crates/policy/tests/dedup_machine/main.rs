//! The machine of dedup: situations of a store's life with the commands that they lead to, and what
//! holds whatever happens.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod filters;
mod golden;
mod properties;
mod store;
