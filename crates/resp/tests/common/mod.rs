//! A service without connections: requests go in, replies come out.

#![allow(dead_code)] // each test file uses its part

pub mod gates;
#[path = "../../../engine/tests/common/random.rs"] // one copy for all crates
pub mod random;
pub mod redis;
pub mod served;
pub mod wire;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ecotone_engine::{
    Direction, Durability, Error as StoreError, MemoryLimit, OpenMode, SharedRows, SharedSpace, Store, StoreSettings,
};
use ecotone_keyspace::collections::Large;
use ecotone_keyspace::{
    Blocking, CollectionId, Keys, Keyspace, OpenShard, ShardId, Slot, SlotRanges, Tag, Type, WriteGroup, layout,
};
use ecotone_resp::client::Client;
use ecotone_resp::cluster_view::LinkView;
use ecotone_resp::command::table;
use ecotone_resp::execute::{Step, execute};
use ecotone_resp::host::{Host, HostError, InfoSection};
use ecotone_resp::protocol::reply::{Reply, Version};
use ecotone_resp::service::{DebugCommand, Limits, Service};
use parking_lot::Mutex;

/// The words of a request, which has no quotes.
pub fn words(request: &str) -> Vec<&[u8]> {
    request.split(' ').map(str::as_bytes).collect()
}

/// So many bytes, always the same, that do not compress.
pub fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(byte).take(bytes).collect()
}

/// A host with settings that are kept and nothing behind them.
#[derive(Default)]
pub struct TestHost {
    pub settings: Mutex<BTreeMap<String, String>>,
    pub was_shut_down: AtomicBool,
    /// With force or without.
    pub failed_over: Mutex<Vec<bool>>,
    pub links: Mutex<Vec<LinkView>>,
}

impl Host for TestHost {
    fn info(&self, _: &str) -> Vec<InfoSection> {
        Vec::new()
    }

    fn settings(&self, matches: &dyn Fn(&str) -> bool) -> BTreeMap<String, String> {
        let settings = self.settings.lock();
        settings.iter().filter(|(name, _)| matches(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    fn is_secret(&self, name: &str) -> bool {
        name == "requirepass"
    }

    fn change(&self, settings: &[(String, String)]) -> Result<(), String> {
        let mut known = self.settings.lock();
        for (name, _) in settings {
            if !known.contains_key(&name.to_lowercase()) {
                return Err(format!("Unknown option or number of arguments for CONFIG SET - '{name}'"));
            }
        }
        known.extend(settings.iter().map(|(name, value)| (name.to_lowercase(), value.clone())));
        Ok(())
    }

    fn rewrite(&self) -> Result<(), String> {
        Err("The server is running without a config file".into())
    }

    fn links(&self) -> Vec<LinkView> {
        self.links.lock().clone()
    }

    fn fail_over(&self, force: bool) -> Result<(), HostError> {
        if let Some(why) = self.settings.lock().get("refuses-failover") {
            return Err(HostError(why.clone()));
        }
        self.failed_over.lock().push(force);
        Ok(())
    }

    fn shut_down(&self) {
        self.was_shut_down.store(true, Ordering::SeqCst);
    }
}

/// The store in `directory`. A thread that waited for a server which has stopped may hold the store
/// for a moment longer.
fn opened(directory: &Path, options: &StoreSettings) -> Store {
    let began = Instant::now();
    loop {
        match Store::open(directory, OpenMode::CreateOrOpen, options.clone()) {
            Err(StoreError::Locked { .. }) if began.elapsed() < Duration::from_secs(60) => std::thread::yield_now(),
            store => return store.unwrap(),
        }
    }
}

/// What stores of one server share.
#[derive(Clone)]
pub struct Shared {
    pub memory: MemoryLimit,
    pub rows: SharedRows,
    pub space: SharedSpace,
}

impl Shared {
    pub fn new() -> Self {
        let rows = SharedRows::new(4 << 20, true, layout::OWN_PREFIX);
        Self { memory: MemoryLimit::new(64 << 20), rows, space: SharedSpace::default() }
    }

    /// A shard whose store is in the folder of its number.
    pub fn open(&self, directory: &Path, id: u32, slots: SlotRanges, options: &StoreSettings) -> OpenShard {
        let builder = Store::builder(&directory.join(id.to_string())).settings(options.clone());
        let builder = builder.memory(self.memory.clone()).rows(self.rows.clone()).space(self.space.clone());
        OpenShard { id: ShardId(id), slots, store: Arc::new(builder.open().unwrap()), gate: None }
    }
}

/// The keyspace of these shards, numbered from 1 on.
pub fn sharded_keyspace(directory: &Path, shards: &[SlotRanges], options: &StoreSettings) -> Arc<Keyspace> {
    let shared = Shared::new();
    let open = (1..).zip(shards).map(|(id, slots)| shared.open(directory, id, slots.clone(), options)).collect();
    Keyspace::open_shards(open, options.durability).unwrap()
}

/// A service over a store in a folder of its own.
pub struct Fixture {
    pub service: Service,
    pub host: Arc<TestHost>,
    pub directory: tempfile::TempDir,
}

impl Fixture {
    pub fn new() -> Self {
        Self::with(StoreSettings { durability: Durability::None, ..StoreSettings::default() }.with_separation(128))
    }

    pub fn with(options: StoreSettings) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::at(directory, options)
    }

    pub fn at(directory: tempfile::TempDir, options: StoreSettings) -> Self {
        let store = opened(directory.path(), &options);
        Self::over(directory, store, options.durability)
    }

    /// A service over a store that is open.
    pub fn over(directory: tempfile::TempDir, store: Store, durability: Durability) -> Self {
        Self::of(directory, Keyspace::open(Arc::new(store), durability).unwrap())
    }

    /// A service over a store for each of `shards`, in folders by their numbers, which share what
    /// stores of one server share.
    pub fn sharded(directory: tempfile::TempDir, shards: &[SlotRanges], options: &StoreSettings) -> Self {
        let keyspace = sharded_keyspace(directory.path(), shards, options);
        Self::of(directory, keyspace)
    }

    /// A service over shards that are open.
    pub fn over_shards(directory: tempfile::TempDir, shards: Vec<OpenShard>, durability: Durability) -> Self {
        Self::of(directory, Keyspace::open_shards(shards, durability).unwrap())
    }

    fn of(directory: tempfile::TempDir, keyspace: Arc<Keyspace>) -> Self {
        let host = Arc::new(TestHost::default());
        // Tests let a client sleep.
        let limits = Limits { debug_command: DebugCommand::Yes, ..Limits::default() };
        let service = Service::new(keyspace, limits, host.clone());
        Self { service, host, directory }
    }

    /// Changes keys past all commands, and commits.
    pub fn change<T>(&self, change: impl FnOnce(&mut Keys<'_>) -> T) -> T {
        let mut group = WriteGroup::new(self.service.keyspace.clone());
        group.hold(&Slot::all().collect::<Vec<_>>(), Blocking::Allowed);
        let changed = change(&mut group.keys(Blocking::Allowed));
        group.commit(Blocking::Allowed).unwrap();
        changed
    }

    /// Puts a large collection of no special kind under `key`: its elements are `0` to `elements -
    /// 1`, each with its number as value.
    pub fn plant_large(&self, key: &str, of: Type, elements: u32) -> CollectionId {
        self.change(|keys| {
            let id = keys.new_collection(key.as_bytes()).unwrap();
            for number in 0..elements {
                let number = number.to_string();
                keys.set_element(id, &[number.as_bytes()], number.as_bytes()).unwrap();
            }
            let payload = [&id.encode()[..], b"common"].concat();
            keys.set(key.as_bytes(), Tag::large(of), None, &payload).unwrap();
            id
        })
    }

    /// Where the large collection under `key` lies; none: it is small.
    pub fn large(&self, key: &str) -> Option<Large> {
        self.change(|keys| {
            let entry = keys.entry(key.as_bytes()).unwrap().unwrap();
            entry.tag.is_large.then(|| Large::decode(&entry).unwrap().0)
        })
    }

    /// Sub-keys and values of all elements of a collection, also of one without a key.
    pub fn elements(&self, id: CollectionId) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.change(|keys| {
            let mut elements = Vec::new();
            keys.visit_all_elements(id, Direction::Forward, |sub_key, value| {
                elements.push((sub_key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            })
            .unwrap();
            elements
        })
    }

    /// How many collections without a key were left to be removed.
    pub fn reclaimed(&self) -> u64 {
        let known = self.service.keyspace.reclaim_collections(100, || true).unwrap().collections;
        // Nothing was forgotten, and nothing is removed that has a key.
        assert_eq!(self.found_and_reclaimed(), 0);
        known
    }

    /// The same of those that nobody remembers as well.
    pub fn found_and_reclaimed(&self) -> u64 {
        let keyspace = &self.service.keyspace;
        assert!(keyspace.find_reclaimable(|| true).unwrap());
        keyspace.reclaim_collections(usize::MAX, || true).unwrap().collections
    }

    /// The type tag and the bytes under a key of the store.
    pub fn stored(&self, key: &[u8]) -> (u8, Vec<u8>) {
        let store = self.service.keyspace.only_store().unwrap();
        let value = store.get(key).unwrap().unwrap();
        (value.attributes().type_tag.map_or(0, |tag| tag.get()), value.to_vec())
    }

    /// Asks a new client's requests and compares the replies. Keys that a command makes which is
    /// not there yet are planted.
    pub fn check(requests: &[(&str, &str)]) {
        let fixture = Self::new();
        let mut client = fixture.client();
        for (request, reply) in requests {
            match request.split_once(' ') {
                Some(("RPUSH", rest)) if table::find(b"rpush").is_none() => {
                    let key = rest.split(' ').next().unwrap().as_bytes();
                    fixture.change(|keys| keys.set(key, Tag::small(Type::List), None, b"planted")).unwrap();
                }
                _ => assert_eq!(client.ask(request), *reply, "{request}"),
            }
        }
    }

    pub fn client(&self) -> TestClient<'_> {
        self.client_of("127.0.0.1:1")
    }

    /// One that came from this address.
    pub fn client_of(&self, address: &str) -> TestClient<'_> {
        TestClient::from(&self.service, address)
    }
}

/// A client that waits for each reply.
pub struct TestClient<'f> {
    pub service: &'f Service,
    pub client: Client,
    reply: Reply,
    /// Requests of [`Self::at_once`] that had to wait after all.
    waits: usize,
}

/// A flush or a compaction may bring what is asked for into a table that is not in memory yet.
const MAX_WAITS: usize = 10;

impl<'f> TestClient<'f> {
    /// A new client of `service`, beside those that come over a network.
    pub fn of(service: &'f Service) -> Self {
        Self::from(service, "127.0.0.1:1")
    }

    /// One that came from this address.
    fn from(service: &'f Service, address: &str) -> Self {
        let info = service.clients.add(address.into(), "127.0.0.1:6379".into(), 100).unwrap();
        let is_authenticated = service.limits.read().password.is_none();
        Self { service, client: Client::new(info, is_authenticated), reply: Reply::new(Version::Resp2), waits: 0 }
    }

    /// From now on replies are of this version.
    pub fn speak(&mut self, version: Version) {
        self.reply.set_version(version);
    }

    /// The bytes of the reply to one request.
    pub fn send(&mut self, arguments: &[&[u8]]) -> Vec<u8> {
        let mut group = WriteGroup::new(self.service.keyspace.clone());
        let reply = self.run(&mut group, arguments, Blocking::Allowed).unwrap();
        group.commit(Blocking::Allowed).unwrap();
        reply
    }

    /// The same in a group that may hold more already, and is committed by the caller; or here,
    /// where the request needs waiting.
    pub fn send_in(&mut self, group: &mut WriteGroup, arguments: &[&[u8]]) -> Vec<u8> {
        if let Ok(reply) = self.run(group, arguments, Blocking::Never) {
            return reply;
        }
        group.commit(Blocking::Allowed).unwrap();
        self.run(group, arguments, Blocking::Allowed).unwrap()
    }

    /// The same, once: or why it was not carried out.
    pub fn try_in(&mut self, group: &mut WriteGroup, arguments: &[&[u8]]) -> Result<Vec<u8>, Step> {
        self.run(group, arguments, Blocking::Allowed)
    }

    fn run(&mut self, group: &mut WriteGroup, arguments: &[&[u8]], waiting: Blocking) -> Result<Vec<u8>, Step> {
        match execute(self.service, &mut self.client, group, arguments, &mut self.reply, waiting) {
            Step::Done { .. } => Ok(self.reply.take()),
            step => Err(step),
        }
    }

    /// The reply to one request in words, without quotes, as text.
    pub fn ask(&mut self, request: &str) -> String {
        String::from_utf8_lossy(&self.send(&words(request))).into_owned()
    }

    /// The same as [`TestClient::send_in`] does it.
    pub fn ask_in(&mut self, group: &mut WriteGroup, request: &str) -> String {
        String::from_utf8_lossy(&self.send_in(group, &words(request))).into_owned()
    }

    /// All that a scan returns; `between` is called after each step but the last.
    pub fn scan(&mut self, command: &str, options: &str, mut between: impl FnMut(&mut Self)) -> Vec<Vec<u8>> {
        let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
        loop {
            let reply = self.send(&words(format!("{command} {cursor} {options}").trim_end()));
            let answers = redis::elements(&reply).unwrap();
            cursor = String::from_utf8(redis::text(answers[0]).to_vec()).unwrap();
            found.extend(redis::texts(answers[1]));
            if cursor == "0" {
                return found;
            }
            between(self);
        }
    }

    /// The reply of an event loop, which waits for nothing, but for a few times in all, and commits
    /// what it did.
    pub fn at_once(&mut self, request: &str) -> String {
        let mut group = WriteGroup::new(self.service.keyspace.clone());
        let mut done = self.run(&mut group, &words(request), Blocking::Never);
        if done == Err(Step::WouldBlock) && self.waits < MAX_WAITS {
            self.waits += 1;
            self.reply.clear();
            done = self.run(&mut group, &words(request), Blocking::Allowed);
        }
        let reply = done.unwrap_or_else(|step| panic!("{request}: {step:?}"));
        group.commit(Blocking::Allowed).unwrap();
        String::from_utf8(reply).unwrap()
    }

    /// How far an event loop comes, which waits for nothing. What it did is not committed.
    pub fn step_at_once(&mut self, request: &str) -> Step {
        self.step_in(&mut WriteGroup::new(self.service.keyspace.clone()), request)
    }

    /// The same in a group that may hold more already.
    pub fn step_in(&mut self, group: &mut WriteGroup, request: &str) -> Step {
        self.reply.clear();
        execute(self.service, &mut self.client, group, &words(request), &mut self.reply, Blocking::Never)
    }

    /// What becomes of a request where others wait.
    pub fn step_of(&mut self, arguments: &[&[u8]]) -> Step {
        self.reply.clear();
        let mut group = WriteGroup::new(self.service.keyspace.clone());
        let step = execute(self.service, &mut self.client, &mut group, arguments, &mut self.reply, Blocking::Never);
        self.reply.clear();
        step
    }
}
