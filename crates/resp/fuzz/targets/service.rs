//! A live service over a store in memory, and a client of it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ecotone_engine::{Durability, OpenMode, Store, StoreSettings};
use ecotone_keyspace::{Blocking, Keyspace, Slot, WriteGroup};
use ecotone_resp::client::{Client, Then};
use ecotone_resp::execute::{Step, execute};
use ecotone_resp::host::{Host, InfoSection};
use ecotone_resp::protocol::reply::{Reply, Version};
use ecotone_resp::service::{Limits, Service};

use super::well_formed;

/// Replies beyond this are not made: an input asks for the same member again and again.
const MAX_REPLY_BYTES: usize = 1 << 20;

struct NoHost;

impl Host for NoHost {
    fn info(&self, _: &str) -> Vec<InfoSection> {
        Vec::new()
    }

    fn settings(&self, _: &dyn Fn(&str) -> bool) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn is_secret(&self, _: &str) -> bool {
        false
    }

    fn change(&self, _: &[(String, String)]) -> Result<(), String> {
        Err("there is no setting".into())
    }

    fn rewrite(&self) -> Result<(), String> {
        Err("there is no file".into())
    }

    fn shut_down(&self) {}
}

/// A service, and the folder of its store, which goes with it.
pub struct Live {
    pub service: Service,
    directory: PathBuf,
}

/// Inputs that one service is lent for: what was cleared stays in its memtable, and makes reads
/// slow in the end.
const MAX_INPUTS: usize = 50;

thread_local! {
    static LIVE: RefCell<(Option<Live>, usize)> = const { RefCell::new((None, 0)) };
}

/// Lends this thread's service.
pub fn with_live<T>(act: impl FnOnce(&Live) -> T) -> T {
    LIVE.with_borrow_mut(|(live, inputs)| {
        *inputs += 1;
        if *inputs > MAX_INPUTS {
            (*live, *inputs) = (None, 1);
        }
        act(live.get_or_insert_with(Live::new))
    })
}

impl Live {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = parent.join(format!("ecotone-fuzz-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let options =
            StoreSettings { durability: Durability::None, memtable_bytes: 4 << 20, ..StoreSettings::default() };
        let store = Store::open(&directory, OpenMode::Create, options.with_separation(128)).expect("a store in memory");
        let keyspace = Keyspace::open(Arc::new(store), Durability::None).expect("a new store is empty");
        let limits = Limits { output_bytes: MAX_REPLY_BYTES, slow_after: None, ..Limits::default() };
        Self { service: Service::new(keyspace, limits, Arc::new(NoHost)), directory }
    }

    pub fn client(&self) -> LiveClient<'_> {
        let info = self.service.clients.add("127.0.0.1:1".into(), "127.0.0.1:2".into(), 16).expect("there are few");
        LiveClient { live: self, client: Client::new(info, true), reply: Reply::new(Version::Resp2) }
    }

    pub fn group(&self) -> WriteGroup {
        WriteGroup::new(self.service.keyspace.clone())
    }

    /// Removes all keys, for the next input.
    pub fn clear(&self) {
        let mut group = self.group();
        assert!(group.hold(&Slot::all().collect::<Vec<_>>(), Blocking::Allowed));
        group.keys(Blocking::Allowed).clear();
        group.commit(Blocking::Allowed).expect("a store in memory takes writes");
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub struct LiveClient<'l> {
    live: &'l Live,
    pub client: Client,
    reply: Reply,
}

impl LiveClient<'_> {
    /// The reply to one request, carried out in `group`: exactly one well-formed answer, unless the
    /// client is to go. What cannot be had at once is done again where waiting is allowed, after a
    /// commit, as an event loop does it.
    pub fn ask(&mut self, group: &mut WriteGroup, arguments: &[&[u8]]) -> Vec<u8> {
        let before = self.reply.version();
        let mut step = self.run(group, arguments, Blocking::Never);
        if !matches!(step, Step::Done { .. }) {
            assert!(self.reply.is_empty(), "what is to be done again has replied: {:?}", shown(arguments));
            group.commit(Blocking::Allowed).expect("a store in memory takes writes");
            step = self.run(group, arguments, Blocking::Allowed);
        }
        assert!(matches!(step, Step::Done { .. }), "{step:?}: {:?}", shown(arguments));
        let reply = self.reply.take();
        let is_whole = [before, self.reply.version()]
            .iter()
            .any(|version| well_formed::answer(&reply, *version) == Some(reply.len()));
        // Who kills itself within a transaction is told nothing of what follows.
        let closes = std::mem::take(&mut self.client.then) == Then::Close;
        assert!(is_whole || closes, "{:?} is no answer to {:?}", reply.escape_ascii().to_string(), shown(arguments));
        reply
    }

    fn run(&mut self, group: &mut WriteGroup, arguments: &[&[u8]], waiting: Blocking) -> Step {
        execute(&self.live.service, &mut self.client, group, arguments, &mut self.reply, waiting)
    }
}

impl Drop for LiveClient<'_> {
    fn drop(&mut self) {
        self.client.unwatch(&self.live.service.keyspace);
        self.live.service.clients.remove(self.client.info.id);
    }
}

/// A request as a person may read it.
pub fn shown(arguments: &[&[u8]]) -> String {
    arguments.iter().map(|argument| argument.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
}
