//! Five servers, each a process on a machine of its own (a network namespace), under faults: killed,
//! stopped, cut off one way and both, unplugged, wiped, removed. Clients change the federation, move
//! shards, write and read keys meanwhile.
//!
//! Half a minute of faults, or as long as a soak gives. Whatever fails: one leader a term, one owner
//! of a shard in an epoch, one map of each version; what was answered is not lost; what a removed
//! server is asked for never comes to be; and 30 s after the last fault all have one map.
//!
//! Needs root, for the namespaces; else it says so and tests nothing.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

mod client;
mod history;
mod load;
mod net;
#[path = "../../../engine/tests/common/random.rs"]
mod random;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use client::{Reply, ask};
use history::{History, array, content};
use load::Load;
use net::Net;
use random::{Random, soak_time, with_seeds};
use serde_json::Value;
use server::{PATIENCE, Server, cluster, ecotone, status_at, until};

/// Servers with shards. They are never wiped: each has the only copy.
const KEEPERS: usize = 3;
/// Servers without, which come and go.
const GUESTS: usize = 2;
const SERVERS: usize = KEEPERS + GUESTS;
/// Half of them are moved meanwhile, the others have keys.
const SHARDS: usize = 2 * KEEPERS;
/// Clients that have shards moved.
const MOVERS: u64 = 3;
/// Tags of keys for each shard.
const TAGS: usize = 2;
/// How long there are faults in `make test`.
const SHORT: Duration = Duration::from_secs(30);
/// After the last fault all have one map.
const CONVERGES_WITHIN: Duration = Duration::from_secs(30);
/// What is given to a server that was removed, and waits for an answer that must not come.
const FORBIDDEN_PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    KillOne,
    KillLeader,
    KillMost,
    KillAll,
    StopOne,
    StopLeader,
    /// Nobody hears the leader.
    LeaderIsNotHeard,
    /// The leader hears nobody.
    LeaderDoesNotHear,
    /// One way between two of them.
    CutPair,
    /// Two servers on one side, three on the other.
    Divide,
    Unplug,
    /// A guest is drained and removed, acts on, and joins anew.
    Remove,
    /// A guest loses its folder, joins as another, and is removed as what it was.
    Wipe,
}

const FAULTS: [Fault; 13] = [
    Fault::KillOne,
    Fault::KillLeader,
    Fault::KillMost,
    Fault::KillAll,
    Fault::StopOne,
    Fault::StopLeader,
    Fault::LeaderIsNotHeard,
    Fault::LeaderDoesNotHear,
    Fault::CutPair,
    Fault::Divide,
    Fault::Unplug,
    Fault::Remove,
    Fault::Wipe,
];

#[test]
fn servers_on_machines_of_their_own_agree_whatever_fails() {
    // The files of a process belong to whom it acts as.
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("SKIPPED: only root can make network namespaces; nothing was tested");
        return;
    }
    let hosts: Vec<u8> = (1..=SERVERS as u8).collect();
    let net = match Net::new(&hosts) {
        Ok(net) => net,
        Err(why) => {
            eprintln!("SKIPPED: there can be no network namespaces here ({why}); nothing was tested");
            return;
        }
    };
    // In a soak one federation has all the time: with_seeds stops after it.
    let time = soak_time().max(SHORT);
    with_seeds(1, |seed| run(&net, seed, time));
}

fn run(net: &Net, seed: u64, time: Duration) {
    let root = tempfile::tempdir().unwrap();
    let mut world = World::found(net, root.path(), seed);
    let load = world.deal();
    while world.servers.len() < SERVERS {
        world.join(world.servers.len() as u8 + 1);
    }
    until("all to vote", || load.servers.iter().all(|(_, clients)| votes(status_at(clients).as_ref()) == SERVERS));
    let more = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let (load, more) = (&load, &more);
        // Whatever panics here, the others end.
        let ends = Ends { load, more };
        let mut clients: Vec<ScopedJoinHandle<'_, ()>> = Vec::new();
        for client in 0..KEEPERS {
            let seed = seed + client as u64;
            clients.push(scope.spawn(move || load.change(client)));
            clients.push(scope.spawn(move || load.write(client, seed)));
        }
        for client in 0..MOVERS {
            clients.push(scope.spawn(move || load.move_shards(seed + client)));
        }
        for server in &world.servers {
            let clients = server.clients.clone();
            scope.spawn(move || load.look(&clients, more));
        }
        world.fail_for(time, load, || clients.iter().all(|client| !client.is_finished()));
        load.ends.store(true, Ordering::SeqCst);
        let healed = Instant::now();
        world.converges(healed);
        println!("seed {seed}: one map {} ms after the last fault", healed.elapsed().as_millis());
        for client in clients {
            client.join().unwrap();
        }
        let status = world.converges(Instant::now());
        load.check(&status);
        drop(ends);
    });
    let [changes, moves, reads] = *load.counts.lock().unwrap();
    let history = load.history.lock().unwrap();
    println!("seed {seed}: {changes} changes, {moves} moves, {reads} reads; {}", history.summary());
    history.assert_sound("at the end");
    assert!(changes > 20 && moves > 0 && reads > 100 && history.terms() > 2 && history.moves() > 0);
}

/// Ends the load.
struct Ends<'l> {
    load: &'l Load,
    more: &'l AtomicBool,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.load.ends.store(true, Ordering::SeqCst);
        self.more.store(false, Ordering::SeqCst);
    }
}

fn votes(status: Option<&Value>) -> usize {
    status.map_or(0, |status| array(&status["voters"]).len())
}

fn in_map<'s>(status: &'s Value, name: &str) -> Option<&'s Value> {
    array(&status["servers"]).iter().find(|server| server["name"] == name)
}

/// Tries until it is decided.
fn decided(arguments: &[&str]) -> Value {
    let began = Instant::now();
    loop {
        match ecotone(&[&["cluster"], arguments].concat()) {
            Ok(answer) => return answer,
            Err(error) => {
                assert!(began.elapsed() < PATIENCE, "{arguments:?}: {error}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

struct World<'n> {
    net: &'n Net,
    root: PathBuf,
    random: Random,
    servers: Vec<Server>,
    /// How many there have been.
    names: usize,
}

impl<'n> World<'n> {
    /// A federation of those that keep shards.
    fn found(net: &'n Net, root: &Path, seed: u64) -> World<'n> {
        let mut world = World { net, root: root.to_owned(), random: Random::new(seed), servers: Vec::new(), names: 1 };
        let mut first = Server::new(net, root, 1, "s1");
        cluster(&["init", "--dir", first.folder().to_str().unwrap(), "--name", "s1", "--zone", "s1"]);
        first.start_and_wait(net, &[]);
        until("the first to lead", || first.status().is_some_and(|status| status["leader"]["name"] == "s1"));
        world.servers.push(first);
        while world.servers.len() < KEEPERS {
            world.join(world.servers.len() as u8 + 1);
        }
        until("three to vote", || world.servers.iter().all(|server| votes(server.status().as_ref()) == KEEPERS));
        world
    }

    /// Deals the shards, and chooses which have keys.
    fn deal(&self) -> Load {
        let first = &self.servers[0].clients;
        decided(&["create", first, "--shards", &SHARDS.to_string()]);
        until("all to know the shards", || {
            let knows =
                |server: &Server| server.status().is_some_and(|status| array(&status["shards"]).len() == SHARDS);
            self.servers.iter().all(knows)
        });
        // Their stores are made meanwhile; what is said of the map comes sooner.
        until("all to serve them", || {
            let serves = |server: &Server| {
                let info = ask(&server.clients, &["CLUSTER", "INFO"], PATIENCE);
                matches!(info, Ok(Reply::Text(info)) if info.contains("cluster_slots_ok:16384"))
            };
            self.servers.iter().all(serves)
        });
        let status = self.servers[0].status().unwrap();
        let (mut with_keys, mut owners, mut moved) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        for shard in array(&status["shards"]) {
            let number = shard["shard"].as_u64().unwrap();
            if owners.insert(shard["primary"].as_str().unwrap().to_owned()) {
                with_keys.insert(number, shard["slots"].clone());
            } else {
                moved.push(number);
            }
        }
        assert_eq!((with_keys.len(), moved.len()), (KEEPERS, SHARDS - KEEPERS));
        let mut tags: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for number in 0.. {
            let tag = format!("t{number}");
            let Reply::Text(slot) = ask(first, &["CLUSTER", "KEYSLOT", &tag], PATIENCE).unwrap() else {
                panic!("no slot")
            };
            let slot: u64 = slot.parse().unwrap();
            let has = |ranges: &Value| {
                array(ranges).iter().any(|range| (range[0].as_u64()..=range[1].as_u64()).contains(&Some(slot)))
            };
            if let Some(shard) = with_keys.iter().find_map(|(shard, ranges)| has(ranges).then_some(*shard)) {
                let there = tags.entry(shard).or_default();
                if there.len() < TAGS {
                    there.push(tag);
                }
            }
            if tags.len() == KEEPERS && tags.values().all(|tags| tags.len() == TAGS) {
                break;
            }
        }
        Load {
            servers: self.servers.iter().map(|server| (server.name.clone(), server.clients.clone())).collect(),
            tags: tags.into_values().flatten().collect(),
            moved,
            ends: AtomicBool::new(false),
            history: Mutex::new(History::default()),
            settings: Mutex::default(),
            keys: Mutex::default(),
            counts: Mutex::default(),
        }
    }

    /// A server on this machine joins with a token of a voter.
    fn join(&mut self, host: u8) {
        let (token, through) = self.token();
        self.names += 1;
        let mut server = Server::new(self.net, &self.root, host, &format!("s{}", self.names));
        server.join(self.net, &through, &token);
        let place = usize::from(host) - 1;
        if place < self.servers.len() { self.servers[place] = server } else { self.servers.push(server) }
    }

    /// A token, and where it is good.
    fn token(&mut self) -> (String, String) {
        let began = Instant::now();
        loop {
            let server = self.random.of(&self.servers[..self.servers.len().min(KEEPERS)]);
            match ecotone(&["cluster", "token", &server.clients]) {
                Ok(answer) => return (answer["token"].as_str().unwrap().to_owned(), server.peers.clone()),
                Err(error) => assert!(began.elapsed() < PATIENCE, "no token: {error}"),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn fail_for(&mut self, time: Duration, load: &Load, goes_on: impl Fn() -> bool) {
        let began = Instant::now();
        let mut left: Vec<Fault> = Vec::new();
        while began.elapsed() < time {
            if left.is_empty() {
                left = FAULTS.to_vec();
            }
            let fault = left.swap_remove(self.random.below(left.len()));
            println!("{:5.1} s: {fault:?}", began.elapsed().as_secs_f64());
            self.fail(fault, load);
            self.servers.iter_mut().for_each(Server::assert_runs);
            load.history.lock().unwrap().assert_sound(&format!("after {fault:?}"));
            assert!(goes_on(), "a client has found what must not be, see above");
            self.rest(200, 600);
        }
    }

    fn rest(&mut self, least_ms: u64, most_ms: u64) {
        let ms = least_ms + self.random.below((most_ms - least_ms) as usize) as u64;
        std::thread::sleep(Duration::from_millis(ms));
    }

    /// As long as a fault lasts, mostly long enough for an election.
    fn hold(&mut self) {
        self.rest(800, if soak_time().is_zero() { 2500 } else { 6000 });
    }

    fn any(&mut self) -> usize {
        self.random.below(SERVERS)
    }

    /// Who leads, as it says itself.
    fn leader(&mut self) -> usize {
        let leads = |server: &Server| {
            server.status().is_some_and(|status| status["leader"]["member"] == status["asked"]["member"])
        };
        self.servers.iter().position(leads).unwrap_or_else(|| self.random.below(SERVERS))
    }

    fn some(&mut self, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..SERVERS).collect();
        (0..count).map(|_| all.swap_remove(self.random.below(all.len()))).collect()
    }

    fn fail(&mut self, fault: Fault, load: &Load) {
        match fault {
            Fault::KillOne => {
                let one = self.any();
                self.kill(&[one]);
            }
            Fault::KillLeader => {
                let leader = self.leader();
                self.kill(&[leader]);
            }
            Fault::KillMost => {
                let most = self.some(SERVERS / 2 + 1);
                self.kill(&most);
            }
            Fault::KillAll => self.kill(&(0..SERVERS).collect::<Vec<_>>()),
            Fault::StopOne => {
                let one = self.any();
                self.stop(one);
            }
            Fault::StopLeader => {
                let leader = self.leader();
                self.stop(leader);
            }
            Fault::LeaderIsNotHeard => {
                let leader = self.leader();
                self.cut(|from, _| from == leader);
            }
            Fault::LeaderDoesNotHear => {
                let leader = self.leader();
                self.cut(|_, to| to == leader);
            }
            Fault::CutPair => {
                let pair = self.some(2);
                self.cut(|from, to| (from, to) == (pair[0], pair[1]));
            }
            Fault::Divide => {
                let one_side = self.some(SERVERS / 2);
                self.cut(|from, to| one_side.contains(&from) != one_side.contains(&to));
            }
            Fault::Unplug => {
                let host = self.any() as u8 + 1;
                self.net.set_link(host, false);
                self.hold();
                self.net.set_link(host, true);
            }
            Fault::Remove => self.remove(load),
            Fault::Wipe => self.wipe(load),
        }
    }

    fn kill(&mut self, servers: &[usize]) {
        servers.iter().for_each(|server| self.servers[*server].kill());
        self.rest(100, 1500);
        servers.iter().for_each(|server| self.servers[*server].start(self.net, &[]));
    }

    fn stop(&mut self, server: usize) {
        self.servers[server].signal("-STOP");
        self.hold();
        self.servers[server].signal("-CONT");
    }

    fn cut(&mut self, is_cut: impl Fn(usize, usize) -> bool) {
        let all = (0..SERVERS).flat_map(|from| (0..SERVERS).map(move |to| (from, to)));
        let cut: Vec<(u8, u8)> = all
            .filter(|(from, to)| from != to && is_cut(*from, *to))
            .map(|(from, to)| (from as u8 + 1, to as u8 + 1))
            .collect();
        cut.iter().for_each(|(from, to)| self.net.cut(*from, *to));
        self.hold();
        cut.iter().for_each(|(from, to)| self.net.heal(*from, *to));
    }

    /// A guest, and where those that stay serve clients.
    fn guest(&mut self) -> (usize, String) {
        let guest = KEEPERS + self.random.below(GUESTS);
        (guest, self.random.of(&self.servers[..KEEPERS]).clients.clone())
    }

    /// Drains and removes a server, as one that stays is asked to.
    fn have_removed(&self, asked: &str, name: &str, force: bool, load: &Load) {
        decided(&["drain", asked, name]);
        let force: &[&str] = if force { &["--force"] } else { &[] };
        let removed = decided(&[&["remove", asked, name], force].concat());
        let member = removed["removed"]["member"].as_u64().unwrap();
        let index = removed["decided"]["index"].as_u64().unwrap();
        load.history.lock().unwrap().remove(member, index);
        let status = status_at(asked);
        assert!(status.is_none_or(|status| in_map(&status, name).is_none()), "{asked} still knows {name}");
    }

    fn remove(&mut self, load: &Load) {
        let (guest, asked) = self.guest();
        let (name, clients) = (self.servers[guest].name.clone(), self.servers[guest].clients.clone());
        // In some runs it does not hear of it.
        let is_stopped = self.random.once_in(2);
        decided(&["drain", &asked, &name]);
        if is_stopped {
            self.servers[guest].signal("-STOP");
        }
        self.have_removed(&asked, &name, false, load);
        if is_stopped {
            self.servers[guest].signal("-CONT");
        }
        // It acts as before, and nothing comes of it.
        let forbidden = format!("faults.by.{name}");
        load.history.lock().unwrap().forbidden.insert(forbidden.clone());
        let answer = ask(&clients, &["FEDERATION", "SET", &forbidden, "x"], FORBIDDEN_PATIENCE);
        assert!(!matches!(answer, Ok(Reply::Text(_))), "{name} was removed, and is obeyed: {answer:?}");
        until("it to serve nobody", || {
            let answer = ask(&clients, &["GET", &format!("{{{}}}:1", load.tags[0])], FORBIDDEN_PATIENCE);
            matches!(answer, Ok(Reply::Error(error)) if error.starts_with("CLUSTERDOWN"))
        });
        // Nor when it is started again.
        self.servers[guest].kill();
        self.servers[guest].start_and_wait(self.net, &[]);
        until("it to hear of it again", || {
            let status = self.servers[guest].status();
            status.is_some_and(|status| {
                assert!(status["leader"]["member"] != status["asked"]["member"], "{name} leads, and was removed");
                status["is_removed"] == true
            })
        });
        self.servers[guest].kill();
        std::fs::remove_dir_all(self.servers[guest].folder()).unwrap();
        self.join(guest as u8 + 1);
    }

    fn wipe(&mut self, load: &Load) {
        let (guest, asked) = self.guest();
        let name = self.servers[guest].name.clone();
        self.servers[guest].kill();
        std::fs::remove_dir_all(self.servers[guest].folder()).unwrap();
        self.join(guest as u8 + 1);
        self.have_removed(&asked, &name, true, load);
    }

    /// Waits until all have one map: what they say.
    fn converges(&self, since: Instant) -> Value {
        loop {
            let statuses: Vec<Option<Value>> = self.servers.iter().map(Server::status).collect();
            if let Some(status) = is_one(&statuses) {
                return status.clone();
            }
            assert!(since.elapsed() < CONVERGES_WITHIN, "no one map: {statuses:#?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// What all say, if they say the same and all is well.
fn is_one(statuses: &[Option<Value>]) -> Option<&Value> {
    let first = statuses[0].as_ref()?;
    let is_same = |status: &Value| {
        ["leader", "term", "voters", "map_version"].iter().all(|part| status[part] == first[part])
            && content(status) == content(first)
    };
    let are_same = statuses.iter().all(|status| status.as_ref().is_some_and(is_same));
    let are_active = array(&first["servers"]).iter().all(|server| server["state"] == "active");
    let all = array(&first["servers"]).len() == SERVERS && votes(Some(first)) == SERVERS;
    (are_same && are_active && all && !first["leader"].is_null() && first["stopped"].is_null()).then_some(first)
}
