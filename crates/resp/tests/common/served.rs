//! A service that clients reach over TCP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ecotone_engine::StoreOptions;
use ecotone_resp::serve::{Listen, Server};
use ecotone_resp::service::{Limits, Service};

use super::Fixture;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Served {
    pub server: Server,
    pub service: Arc<Service>,
    pub address: SocketAddr,
    pub directory: tempfile::TempDir,
}

impl Served {
    /// A server over a store in a new folder.
    pub fn with(limits: Limits, options: StoreOptions, lanes: usize) -> Self {
        Self::at(tempfile::tempdir().unwrap(), limits, options, lanes)
    }

    /// A server over the store in `directory`.
    pub fn at(directory: tempfile::TempDir, limits: Limits, options: StoreOptions, lanes: usize) -> Self {
        let Fixture { service, directory, .. } = Fixture::at(directory, options);
        *service.limits.write() = Arc::new(limits);
        let service = Arc::new(service);
        let listen = Listen { addresses: vec!["127.0.0.1:0".parse().unwrap()], lanes, ..Listen::default() };
        let server = Server::start(service.clone(), &listen, None).unwrap();
        let address = server.listening().addresses[0];
        Self { server, service, address, directory }
    }
}

/// Looks until it is so; a test that waits for what never comes fails.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}
