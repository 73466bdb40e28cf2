//! A service without connections: requests go in, replies come out.

#![allow(dead_code)] // each test file uses its part

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ecotone_engine::{Durability, OpenMode, Store, StoreOptions};
use ecotone_resp::client::Client;
use ecotone_resp::execute::{Step, execute};
use ecotone_resp::keyspace::{Group, Keyspace, Waiting};
use ecotone_resp::protocol::reply::{Reply, Version};
use ecotone_resp::service::{Host, InfoSection, Limits, Service};
use parking_lot::Mutex;

/// A host with settings that are kept and nothing behind them.
#[derive(Default)]
pub struct TestHost {
    pub settings: Mutex<BTreeMap<String, String>>,
    pub was_shut_down: AtomicBool,
}

impl Host for TestHost {
    fn info(&self, _: &str) -> Vec<InfoSection> {
        Vec::new()
    }

    fn settings(&self, matches: &dyn Fn(&str) -> bool) -> BTreeMap<String, String> {
        let settings = self.settings.lock();
        settings.iter().filter(|(name, _)| matches(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    fn change(&self, settings: &[(String, String)]) -> Result<(), String> {
        let mut known = self.settings.lock();
        for (name, _) in settings {
            if !known.contains_key(name) {
                return Err(format!("Unknown option or number of arguments for CONFIG SET - '{name}'"));
            }
        }
        known.extend(settings.iter().cloned());
        Ok(())
    }

    fn rewrite(&self) -> Result<(), String> {
        Err("The server is running without a config file".into())
    }

    fn shut_down(&self, _: bool) {
        self.was_shut_down.store(true, Ordering::SeqCst);
    }
}

/// A service over a store in a folder of its own.
pub struct Fixture {
    pub service: Service,
    pub host: Arc<TestHost>,
    pub directory: tempfile::TempDir,
}

impl Fixture {
    pub fn new() -> Self {
        Self::with(StoreOptions { durability: Durability::None, ..StoreOptions::default() }.with_separation(128))
    }

    pub fn with(options: StoreOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::at(directory, options)
    }

    pub fn at(directory: tempfile::TempDir, options: StoreOptions) -> Self {
        let durability = options.durability;
        let store = Arc::new(Store::open(directory.path(), OpenMode::CreateOrOpen, options).unwrap());
        let host = Arc::new(TestHost::default());
        let keyspace = Keyspace::open(store, durability).unwrap();
        let service = Service::new(keyspace, Limits::default(), host.clone());
        Self { service, host, directory }
    }

    pub fn client(&self) -> TestClient<'_> {
        let info = self.service.clients.add("127.0.0.1:1".into(), "127.0.0.1:6379".into(), 100).unwrap();
        let is_authenticated = self.service.limits.read().password.is_none();
        TestClient {
            service: &self.service,
            client: Client::new(info, is_authenticated),
            reply: Reply::new(Version::Resp2),
        }
    }
}

/// A client that waits for each reply.
pub struct TestClient<'f> {
    pub service: &'f Service,
    pub client: Client,
    reply: Reply,
}

impl TestClient<'_> {
    /// The bytes of the reply to one request.
    pub fn send(&mut self, arguments: &[&[u8]]) -> Vec<u8> {
        let mut group = Group::new(self.service.keyspace.clone());
        let step = execute(self.service, &mut self.client, &mut group, arguments, &mut self.reply, Waiting::Allowed);
        assert!(matches!(step, Step::Done { .. }), "{step:?}");
        group.commit(Waiting::Allowed).unwrap();
        self.reply.take()
    }

    /// The same of a request in words, without quotes, with the reply as text.
    pub fn ask(&mut self, request: &str) -> String {
        let arguments: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
        String::from_utf8_lossy(&self.send(&arguments)).into_owned()
    }
}
