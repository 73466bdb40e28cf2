//! The real program and its clients.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

mod clients;
mod clients_cluster;
mod clients_libraries;
mod clients_tls;
#[path = "../common/mod.rs"]
mod common;
mod config_rewrite;
mod http;
#[path = "../../../resp/tests/common/redis.rs"]
mod redis;
mod supervision;
mod systemd;
mod top;
