//! A service that clients reach over TCP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ecotone_engine::{CompactionOffload, Store, StoreSettings};
use ecotone_resp::serve::{EventLoops, Listen, Machine, Server};
use ecotone_resp::service::{Limits, Service};

use super::Fixture;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Served {
    pub server: Server,
    pub service: Arc<Service>,
    pub directory: tempfile::TempDir,
}

impl Served {
    /// A server over a store in a new folder.
    pub fn with(limits: Limits, options: StoreSettings, event_loops: usize) -> Self {
        Self::at(tempfile::tempdir().unwrap(), limits, options, event_loops)
    }

    /// A server over the store in `directory`.
    pub fn at(directory: tempfile::TempDir, limits: Limits, options: StoreSettings, event_loops: usize) -> Self {
        Self::at_listening(
            directory,
            limits,
            options,
            &Listen { addresses: any_port(), event_loops: EventLoops::All(event_loops), ..Listen::default() },
        )
    }

    /// The same that listens as it is told.
    pub fn at_listening(directory: tempfile::TempDir, limits: Limits, options: StoreSettings, listen: &Listen) -> Self {
        Self::over(Fixture::at(directory, options), listen, limits)
    }

    /// A server over a store in a new folder whose compactions go to `offload`.
    pub fn offloading(settings: StoreSettings, offload: Arc<dyn CompactionOffload>, event_loops: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let durability = settings.durability;
        let store = Store::builder(directory.path()).settings(settings).offload(offload).open().unwrap();
        let event_loops = EventLoops::All(event_loops);
        let listen = Listen { addresses: any_port(), event_loops, ..Listen::default() };
        Self::over(Fixture::over(directory, store, durability), &listen, Limits::default())
    }

    /// A server over a small store in a new folder that listens as it is told.
    pub fn listening(listen: &Listen, limits: Limits) -> Self {
        Self::over(Fixture::with(StoreSettings::default().with_separation(128)), listen, limits)
    }

    /// A server of what the fixture has.
    pub fn over(fixture: Fixture, listen: &Listen, limits: Limits) -> Self {
        let Fixture { service, directory, .. } = fixture;
        service.set_limits(limits);
        let service = Arc::new(service);
        let server = Server::start(service.clone(), listen, Machine::default()).unwrap();
        Self { server, service, directory }
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
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}
