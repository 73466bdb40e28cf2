//! The machine of dedup: situations of a store's life with the commands that they lead to, and what
//! holds whatever happens.

mod filters;
mod golden;
mod properties;
mod store;
