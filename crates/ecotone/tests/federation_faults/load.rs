//! What clients do meanwhile: they change settings of the federation, move shards, write and read
//! keys. They keep what was answered, and go on whatever fails.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::{Client, Reply, ask};
use crate::history::History;
use crate::random::Random;
use crate::server::status_at;

/// A change is decided or not within ten seconds.
const CHANGE_PATIENCE: Duration = Duration::from_secs(15);
/// Longest wait for a key.
const KEY_PATIENCE: Duration = Duration::from_secs(2);
/// Names that each client sets in turn. All at that pace they are set again after 18 s only, when
/// no request to set them before is under way any more.
const NAMES: u64 = 60;
const CHANGE_PACE: Duration = Duration::from_millis(300);
const MOVE_PACE: Duration = Duration::from_millis(200);
const KEY_PACE: Duration = Duration::from_millis(5);
const LOOK_PACE: Duration = Duration::from_millis(50);
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// What a setting may be.
#[derive(Default, Debug)]
pub struct Setting {
    /// What was answered last.
    answered: Option<String>,
    /// What was asked for since, without an answer.
    undecided: Vec<String>,
}

/// What all clients share.
pub struct Load {
    /// Servers with shards, by where clients reach them.
    pub servers: Vec<(String, String)>,
    /// Tags of keys whose shards are not moved.
    pub tags: Vec<String>,
    /// Shards that are moved.
    pub moved: Vec<u64>,
    pub ends: AtomicBool,
    pub history: Mutex<History>,
    pub settings: Mutex<BTreeMap<String, Setting>>,
    /// Keys whose write was answered, with their values.
    pub keys: Mutex<Vec<(String, String)>>,
    /// Answered changes, moves and reads.
    pub counts: Mutex<[u64; 3]>,
}

impl Load {
    fn goes_on(&self) -> bool {
        !self.ends.load(Ordering::SeqCst)
    }

    fn count(&self, what: usize) {
        self.counts.lock().unwrap()[what] += 1;
    }

    /// Sets settings at one server.
    pub fn change(&self, client: usize) {
        let (_, address) = &self.servers[client];
        for number in 0.. {
            if !self.goes_on() {
                return;
            }
            let began = Instant::now();
            let (name, value) = (format!("faults.c{client}.n{}", number % NAMES), format!("v{number}"));
            self.settings.lock().unwrap().entry(name.clone()).or_default().undecided.push(value.clone());
            let answer = ask(address, &["FEDERATION", "SET", &name, &value], CHANGE_PATIENCE);
            if let Ok(Reply::Text(_)) = answer {
                self.count(0);
                let mut settings = self.settings.lock().unwrap();
                settings.insert(name.clone(), Setting { answered: Some(value.clone()), undecided: Vec::new() });
                drop(settings);
                // Who is answered finds it at the server that was asked.
                if let Some(status) = status_at(address) {
                    let there = status["settings"][&name].as_str().map(str::to_owned);
                    assert_eq!(there, Some(value), "{name}, by {address}");
                }
            }
            std::thread::sleep(CHANGE_PACE.saturating_sub(began.elapsed()).max(RETRY_PAUSE));
        }
    }

    /// Has shards moved, by several clients at once, each asking any server: it is refused while the
    /// server that has the shard answers.
    pub fn move_shards(&self, seed: u64) {
        let mut random = Random::new(seed);
        while self.goes_on() {
            let (_, address) = random.of(&self.servers);
            let (to, _) = random.of(&self.servers);
            let shard = random.of(&self.moved).to_string();
            let answer = ask(address, &["FEDERATION", "MOVE", &shard, "TO", to], CHANGE_PATIENCE);
            if matches!(answer, Ok(Reply::Text(_))) {
                self.count(1);
            }
            std::thread::sleep(MOVE_PACE);
        }
    }

    /// Writes keys, each once, and reads those again that were written.
    pub fn write(&self, client: usize, seed: u64) {
        let mut random = Random::new(seed);
        let mut written: Vec<(String, String)> = Vec::new();
        let mut asked = Asked { load: self, at: client % self.servers.len(), clients: BTreeMap::new() };
        for number in 0.. {
            if !self.goes_on() {
                return;
            }
            let tag = random.of(&self.tags);
            let (key, value) = (format!("{{{tag}}}:{client}:{number}"), format!("value {number}"));
            if asked.ask(&["SET", &key, &value]) == Some(Reply::Text("OK".into())) {
                written.push((key.clone(), value.clone()));
                self.keys.lock().unwrap().push((key, value));
            }
            if !written.is_empty() {
                let (key, value) = random.of(&written);
                match asked.ask(&["GET", key]) {
                    Some(Reply::Text(there)) => {
                        assert_eq!(there, *value, "{key}");
                        self.count(2);
                    }
                    Some(Reply::Nothing) => panic!("{key} was acknowledged, and is lost"),
                    _ => {}
                }
            }
            std::thread::sleep(KEY_PACE);
        }
    }

    /// Asks a server how the federation is, all the time.
    pub fn look(&self, address: &str, more: &AtomicBool) {
        while more.load(Ordering::SeqCst) {
            if let Some(status) = status_at(address) {
                self.history.lock().unwrap().see(&status);
            }
            std::thread::sleep(LOOK_PACE);
        }
    }

    /// All that was answered must be in the map, and all keys at their servers.
    pub fn check(&self, status: &Value) {
        for (name, setting) in self.settings.lock().unwrap().iter() {
            let there = status["settings"][name].as_str();
            let may_be = there.is_some_and(|there| setting.undecided.iter().any(|value| value == there));
            assert!(may_be || there == setting.answered.as_deref(), "{name} is {there:?}, and may be {setting:?}");
        }
        let mut asked = Asked { load: self, at: 0, clients: BTreeMap::new() };
        for (key, value) in self.keys.lock().unwrap().iter() {
            assert_eq!(asked.ask(&["GET", key]), Some(Reply::Text(value.clone())), "{key}");
        }
    }
}

/// Asks whoever has the key.
struct Asked<'l> {
    load: &'l Load,
    at: usize,
    clients: BTreeMap<usize, Client>,
}

impl Asked<'_> {
    /// The answer of whoever has the key, if it is there.
    fn ask(&mut self, words: &[&str]) -> Option<Reply> {
        for _ in 0..=self.load.servers.len() {
            let (_, address) = &self.load.servers[self.at];
            let client = match self.clients.remove(&self.at) {
                Some(client) => Ok(client),
                None => Client::connect(address, KEY_PATIENCE),
            };
            let answer = client.and_then(|mut client| client.ask(words).map(|reply| (client, reply)));
            match answer {
                Ok((client, Reply::Error(error))) if error.starts_with("MOVED ") => {
                    self.clients.insert(self.at, client);
                    let to = error.rsplit(' ').next().unwrap_or_default();
                    let place = self.load.servers.iter().position(|(_, address)| address == to);
                    self.at = place.unwrap_or_else(|| panic!("{error}: there is no such server"));
                }
                Ok((client, reply)) => {
                    self.clients.insert(self.at, client);
                    return Some(reply);
                }
                Err(_) => {
                    self.at = (self.at + 1) % self.load.servers.len();
                    std::thread::sleep(RETRY_PAUSE);
                }
            }
        }
        None
    }
}
