//! A service that listens.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ecotone_engine::StoreOptions;
use ecotone_resp::serve::{Listen, Server};
use ecotone_resp::service::{Limits, Service};

use super::Fixture;

pub struct Served {
    pub server: Server,
    pub service: Arc<Service>,
    _directory: tempfile::TempDir,
}

impl Served {
    pub fn at(listen: &Listen, limits: Limits) -> Self {
        let Fixture { service, directory, .. } = Fixture::with(StoreOptions::default().with_separation(128));
        service.set_limits(limits);
        let service = Arc::new(service);
        let server = Server::start(service.clone(), listen, None).unwrap();
        Self { server, service, _directory: directory }
    }

    pub fn address(&self) -> SocketAddr {
        self.server.listening().addresses[0]
    }

    pub fn tls_address(&self) -> SocketAddr {
        self.server.listening().tls_addresses[0]
    }

    /// Waits until there are so many clients.
    pub fn until_clients(&self, clients: usize) {
        until(&format!("there are {clients} clients"), || self.service.clients.len() == clients);
    }
}

pub fn any_port() -> Vec<SocketAddr> {
    vec!["127.0.0.1:0".parse().unwrap()]
}

/// Looks until it is so; a test that waits for what never comes fails.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::yield_now();
    }
}
