//! Several servers of a federation in one process, with real connections, certificates and logs.

mod common;
mod federation;
mod loss;
mod upgrades;
