//! What clients do meanwhile: they write values that nobody else writes, read, and write what
//! depends on what they have read, at levels `quorum` and `all`; they follow `MOVED` and go on
//! whatever fails. All that was asked for and answered is kept.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use crate::answers::{Answer, Said};
use crate::client::{Client, Reply};
use crate::federation::{History, array};
use crate::random::Random;
use crate::register::{Operation, Value};
use crate::server::status_at;

/// Most clients give a server up sooner than it gives up copies, one waits until it says so.
const SHORT_PATIENCE: Duration = Duration::from_millis(1500);
const LONG_PATIENCE: Duration = Duration::from_secs(8);
const PACE: Duration = Duration::from_millis(3);
const RETRY_PAUSE: Duration = Duration::from_millis(20);
const LOOK_PACE: Duration = Duration::from_millis(40);
/// Levels of the clients, in turn; the last is that of the federation, `quorum`.
const LEVELS: [&str; 3] = ["quorum", "all", "default"];

/// A register: one key, or two that are written and read by transactions only, and hold the same.
#[derive(Debug, Clone)]
pub struct Register {
    pub shard: u64,
    pub keys: Vec<String>,
}

/// All that clients share.
pub struct Load {
    /// Names, and where clients reach them.
    pub servers: Vec<(String, String)>,
    pub registers: Vec<Register>,
    pub began: Instant,
    pub ends: AtomicBool,
    pub values: AtomicU64,
    pub clients: AtomicU64,
    pub records: Mutex<Records>,
    pub history: Mutex<History>,
}

#[derive(Default)]
pub struct Records {
    /// Of each register.
    pub operations: Vec<Vec<Operation>>,
    /// Of each shard.
    pub answers: BTreeMap<u64, Vec<Answer>>,
    pub said: BTreeMap<u64, Vec<Said>>,
    /// Keys that were written once, as was answered.
    pub once: BTreeMap<String, u64>,
    /// How often each error came.
    pub errors: BTreeMap<String, u64>,
}

/// What became of a request.
enum Outcome {
    Answered(Reply),
    /// Nothing was done.
    Refused,
    Unknown,
}

struct Asked {
    outcome: Outcome,
    invoked: u64,
    returned: u64,
    server: usize,
}

/// How a value is written: some beside the keys, some in the value log.
pub fn text(value: u64) -> String {
    let length = match value % 32 {
        0 => 20_000,
        1..=8 => 400,
        _ => 8,
    };
    format!("{value}:{}", "x".repeat(length))
}

/// The value whose text it is.
pub fn value_of(reply: &Reply) -> Value {
    match reply {
        Reply::Nothing => None,
        Reply::Text(there) => {
            let value = there.split(':').next().and_then(|number| number.parse().ok());
            let value = value.unwrap_or_else(|| panic!("nobody wrote {there:?}"));
            assert!(*there == text(value), "{value} is there with other bytes: {there:?}");
            Some(value)
        }
        other => panic!("no value: {other:?}"),
    }
}

impl Load {
    pub fn goes_on(&self) -> bool {
        !self.ends.load(Ordering::SeqCst)
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    pub fn client(&self, number: usize) -> Asking<'_> {
        Asking {
            load: self,
            id: self.clients.fetch_add(1, Ordering::SeqCst),
            at: number % self.servers.len(),
            level: LEVELS[number % LEVELS.len()],
            patience: if number == 0 { LONG_PATIENCE } else { SHORT_PATIENCE },
            connections: BTreeMap::new(),
        }
    }

    /// Asks a server how the federation is, all the time.
    pub fn look(&self, address: &str, more: &AtomicBool) {
        while more.load(Ordering::SeqCst) {
            if let Some(status) = status_at(address) {
                self.see(status);
            }
            std::thread::sleep(LOOK_PACE);
        }
    }

    fn see(&self, mut status: Json) {
        let at = self.now();
        for shard in array(&status["shards"]) {
            let (number, epoch) = (shard["shard"].as_u64().unwrap(), shard["epoch"].as_u64().unwrap());
            let said = Said { at, epoch, primary: shard["primary"].as_str().map(str::to_owned) };
            let mut records = self.records.lock().unwrap();
            let all = records.said.entry(number).or_default();
            if all.last().is_none_or(|last| (last.epoch, &last.primary) != (epoch, &said.primary)) {
                all.push(said);
            }
        }
        // How far copies are is what each knows by itself; the map says where they are.
        for shard in status["shards"].as_array_mut().into_iter().flatten() {
            for copy in shard["copies"].as_array_mut().into_iter().flatten() {
                *copy = serde_json::json!([copy["server"], copy["role"], copy["in_sync"]]);
            }
        }
        self.history.lock().unwrap().see(&status);
    }

    /// Reads and writes at random.
    pub fn work(&self, number: usize, seed: u64) {
        let mut random = Random::new(seed);
        let mut client = self.client(number);
        while self.goes_on() {
            // The first register is everybody's.
            let register = if random.once_in(3) { 0 } else { random.below(self.registers.len()) };
            match random.below(24) {
                0 => client.delete(register),
                1..=3 => client.write_once(register),
                4..=8 => client.write(register),
                9..=12 => client.swap(register),
                13..=16 => client.compare_and_set(register),
                _ => drop(client.read(register)),
            }
            std::thread::sleep(PACE);
        }
    }
}

/// A client of the federation, which has a connection to each server.
pub struct Asking<'l> {
    load: &'l Load,
    id: u64,
    at: usize,
    level: &'static str,
    patience: Duration,
    connections: BTreeMap<usize, Client>,
}

impl Asking<'_> {
    fn value(&self) -> u64 {
        self.load.values.fetch_add(1, Ordering::SeqCst)
    }

    fn next_server(&mut self) {
        self.at = (self.at + 1) % self.load.servers.len();
        std::thread::sleep(RETRY_PAUSE);
    }

    fn connect(&mut self) -> Option<Client> {
        let (_, address) = &self.load.servers[self.at];
        if let Some(client) = self.connections.remove(&self.at) {
            return Some(client);
        }
        let mut client = Client::connect(address, self.patience).ok()?;
        let level = client.ask(&["CLIENT", "LEVEL", self.level]).ok()?;
        (level == Reply::Text("OK".into())).then_some(client)
    }

    /// Asks the server that had the key last. After an outcome that is not known this is another
    /// client.
    fn ask(&mut self, words: &[&str]) -> Asked {
        let server = self.at;
        let Some(mut client) = self.connect() else {
            self.next_server();
            return Asked { outcome: Outcome::Refused, invoked: 0, returned: 0, server };
        };
        let invoked = self.load.now();
        let reply = client.ask(words);
        let returned = self.load.now();
        let outcome = match reply {
            Ok(Reply::Error(error)) => self.failed(&error, words),
            Ok(reply) => {
                self.connections.insert(server, client);
                Outcome::Answered(reply)
            }
            Err(error) => self.failed(&format!("connection: {:?}", error.kind()), words),
        };
        if matches!(outcome, Outcome::Unknown) {
            self.id = self.load.clients.fetch_add(1, Ordering::SeqCst);
        }
        Asked { outcome, invoked, returned, server }
    }

    /// What an error says. The connection is given up, and with it what was begun there.
    fn failed(&mut self, error: &str, words: &[&str]) -> Outcome {
        let says = |word: &str| error.starts_with(word);
        let kind: Vec<&str> = error.split(' ').take(if says("MOVED") { 1 } else { 7 }).collect();
        *self.load.records.lock().unwrap().errors.entry(kind.join(" ")).or_default() += 1;
        if says("MOVED ") {
            let to = error.rsplit(' ').next().unwrap_or_default();
            let place = self.load.servers.iter().position(|(_, address)| address == to);
            self.at = place.unwrap_or_else(|| panic!("{error}: there is no such server"));
            return Outcome::Refused;
        }
        self.next_server();
        if error.contains("unknown") || says("connection") {
            return Outcome::Unknown;
        }
        let is_refusal = ["CLUSTERDOWN ", "TRYAGAIN ", "NOREPLICAS ", "LOADING ", "EXECABORT "].into_iter().any(says);
        assert!(is_refusal, "{words:?}: {error}");
        Outcome::Refused
    }

    /// A transaction that writes `value`, if any; what the register held before.
    fn transaction(&mut self, register: usize, reads: bool, value: Option<&str>) -> Asked {
        let keys = &self.load.registers[register].keys;
        let mut commands: Vec<Vec<&str>> = vec![vec!["MULTI"]];
        if reads {
            commands.extend(keys.iter().map(|key| vec!["GET", key]));
        }
        if let Some(value) = value {
            commands.extend(keys.iter().map(|key| vec!["SET", key, value]));
        }
        for command in commands {
            let mut asked = self.ask(&command);
            if !matches!(asked.outcome, Outcome::Answered(_)) {
                asked.outcome = Outcome::Refused;
                return asked;
            }
        }
        let mut asked = self.ask(&["EXEC"]);
        if let Outcome::Answered(Reply::Array(replies)) = &asked.outcome
            && let Some(Reply::Error(error)) = replies.iter().find(|reply| matches!(reply, Reply::Error(_)))
        {
            // Each command is refused by itself, but a transaction is whole or absent.
            let are_all = replies.iter().all(|reply| matches!(reply, Reply::Error(_)));
            assert!(are_all, "a part of a transaction is refused: {replies:?}");
            let error = error.clone();
            self.connections.remove(&asked.server);
            asked.outcome = self.failed(&error, &["EXEC"]);
        }
        asked
    }

    /// Keeps what was seen.
    fn record(&self, register: usize, asked: &Asked, found: Option<Value>, wrote: Option<Value>, is_known: bool) {
        let (load, of) = (self.load, &self.load.registers[register]);
        let (server, _) = &load.servers[asked.server];
        let returned = is_known.then_some(asked.returned);
        let operation =
            Operation { client: self.id, server: server.clone(), found, wrote, invoked: asked.invoked, returned };
        let mut records = load.records.lock().unwrap();
        records.operations[register].push(operation);
        if is_known {
            let answer = Answer { server: server.clone(), invoked: asked.invoked, returned: asked.returned };
            records.answers.entry(of.shard).or_default().push(answer);
        }
    }

    /// What a transaction has read of a register, whose keys must hold the same.
    fn one_value(&self, register: usize, replies: &[Reply]) -> Value {
        let keys = &self.load.registers[register].keys;
        let values: Vec<Value> = replies[..keys.len()].iter().map(value_of).collect();
        assert!(values.iter().all(|value| *value == values[0]), "{keys:?} are written together, and hold {values:?}");
        values[0]
    }

    /// Whether it was read, and what.
    pub fn read(&mut self, register: usize) -> Option<Value> {
        let keys = &self.load.registers[register].keys;
        let asked =
            if let [key] = &keys[..] { self.ask(&["GET", key]) } else { self.transaction(register, true, None) };
        self.has_read(register, &asked)
    }

    fn has_read(&self, register: usize, asked: &Asked) -> Option<Value> {
        let found = match &asked.outcome {
            Outcome::Answered(Reply::Array(replies)) => self.one_value(register, replies),
            Outcome::Answered(reply) => value_of(reply),
            _ => return None,
        };
        self.record(register, asked, Some(found), None, true);
        Some(found)
    }

    fn write(&mut self, register: usize) {
        let value = self.value();
        let written = text(value);
        let keys = &self.load.registers[register].keys;
        let asked = if let [key] = &keys[..] {
            self.ask(&["SET", key, &written])
        } else {
            self.transaction(register, false, Some(&written))
        };
        match &asked.outcome {
            Outcome::Refused => {}
            outcome => self.record(register, &asked, None, Some(Some(value)), matches!(outcome, Outcome::Answered(_))),
        }
    }

    /// Writes, and is told what was there.
    fn swap(&mut self, register: usize) {
        let value = self.value();
        let written = text(value);
        let keys = &self.load.registers[register].keys;
        let asked = if let [key] = &keys[..] {
            self.ask(&["SET", key, &written, "GET"])
        } else {
            self.transaction(register, true, Some(&written))
        };
        let found = match &asked.outcome {
            Outcome::Refused => return,
            Outcome::Unknown => None,
            Outcome::Answered(Reply::Array(replies)) => Some(self.one_value(register, replies)),
            Outcome::Answered(reply) => Some(value_of(reply)),
        };
        self.record(register, &asked, found, Some(Some(value)), found.is_some());
    }

    /// Writes if nobody has written since it has read.
    fn compare_and_set(&mut self, register: usize) {
        let keys = self.load.registers[register].keys.clone();
        let watch: Vec<&str> = std::iter::once("WATCH").chain(keys.iter().map(String::as_str)).collect();
        if !matches!(self.ask(&watch).outcome, Outcome::Answered(_)) {
            return;
        }
        let watched_at = self.at;
        // A transaction would end the watch; one key alone is what the register is at one moment, too.
        let read = self.ask(&["GET", &keys[0]]);
        let Some(found) = self.has_read(register, &read) else {
            // A connection that has gone watches nothing.
            self.connections.clear();
            return;
        };
        let value = self.value();
        let asked = self.transaction(register, false, Some(&text(value)));
        assert!(asked.server == watched_at || matches!(asked.outcome, Outcome::Refused), "{watched_at}");
        match &asked.outcome {
            // Somebody has written.
            Outcome::Answered(Reply::Nothing) | Outcome::Refused => {}
            outcome => {
                let is_known = matches!(outcome, Outcome::Answered(_));
                self.record(register, &asked, Some(found), Some(Some(value)), is_known);
            }
        }
    }

    fn delete(&mut self, register: usize) {
        let keys = self.load.registers[register].keys.clone();
        let words: Vec<&str> = std::iter::once("DEL").chain(keys.iter().map(String::as_str)).collect();
        let asked = self.ask(&words);
        match &asked.outcome {
            Outcome::Refused => {}
            outcome => self.record(register, &asked, None, Some(None), matches!(outcome, Outcome::Answered(_))),
        }
    }

    /// A key beside the register that is written once: what was answered stays for ever.
    fn write_once(&mut self, register: usize) {
        let value = self.value();
        let key = format!("{}:{value}", self.load.registers[register].keys[0]);
        let asked = self.ask(&["SET", &key, &text(value)]);
        if let Outcome::Answered(_) = asked.outcome {
            let mut records = self.load.records.lock().unwrap();
            records.once.insert(key, value);
            let (server, _) = &self.load.servers[asked.server];
            let answer = Answer { server: server.clone(), invoked: asked.invoked, returned: asked.returned };
            records.answers.entry(self.load.registers[register].shard).or_default().push(answer);
        }
    }
}
