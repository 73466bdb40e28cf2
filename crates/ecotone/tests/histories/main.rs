//! Three servers, each a process on a machine of its own (a network namespace), with three copies of
//! each shard, under faults: killed, stopped, cut off one way and both, wiped, handed over. Clients
//! write, read, and write what depends on what they have read, at levels `quorum` and `all`.
//!
//! Whatever fails: what clients saw of each register is linearizable, nothing that was acknowledged
//! is lost, no two servers answer for a shard at the same time, and in the end all copies hold the
//! same keys, each read as the primary.
//!
//! Needs root, for the namespaces; else it says so and tests nothing. A run that fails keeps its
//! folders, logs and histories.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

mod answers;
#[path = "../federation_faults/client.rs"]
mod client;
#[allow(dead_code)] // the tests of the control plane use the rest
#[path = "../federation_faults/history.rs"]
mod federation;
mod load;
#[allow(dead_code)] // the tests of the control plane use the rest
#[path = "../federation_faults/net.rs"]
mod net;
#[path = "../../../engine/tests/common/random.rs"]
mod random;
mod register;
#[allow(dead_code)] // the tests of the control plane use the rest
#[path = "../federation_faults/server.rs"]
mod server;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use client::{Client, Reply, ask};
use federation::{History, array};
use load::{Load, Records, Register};
use net::Net;
use random::{Random, soak_time, with_seeds};
use serde_json::Value;
use server::{PATIENCE, Server, cluster, ecotone, until};

const SERVERS: usize = 3;
const SHARDS: usize = 2;
const CLIENTS: usize = 8;
/// Of each shard; every third has two keys.
const REGISTERS: usize = 3;
/// How long there are faults in `make test`, and with one seed of a soak.
const SHORT: Duration = Duration::from_secs(35);
const LONG: Duration = Duration::from_secs(300);
/// After the last fault all copies are in sync.
const IN_SYNC_WITHIN: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    KillOne,
    KillPrimary,
    KillLeader,
    KillMost,
    KillAll,
    StopOne,
    StopPrimary,
    StopLeader,
    /// Nobody hears the primary, but clients do.
    PrimaryIsNotHeard,
    PrimaryDoesNotHear,
    /// Both ways, from one of the others, or from both.
    PrimaryIsCutFromOne,
    PrimaryIsAlone,
    /// One way between two.
    CutPair,
    /// Clients do not reach it either.
    Unplug,
    SwitchOver,
    /// While another copy does not answer.
    SwitchOverWithout,
    /// It comes back with the control plane's folder and without copies.
    Wipe,
}

const FAULTS: [Fault; 17] = [
    Fault::KillOne,
    Fault::KillPrimary,
    Fault::KillLeader,
    Fault::KillMost,
    Fault::KillAll,
    Fault::StopOne,
    Fault::StopPrimary,
    Fault::StopLeader,
    Fault::PrimaryIsNotHeard,
    Fault::PrimaryDoesNotHear,
    Fault::PrimaryIsCutFromOne,
    Fault::PrimaryIsAlone,
    Fault::CutPair,
    Fault::Unplug,
    Fault::SwitchOver,
    Fault::SwitchOverWithout,
    Fault::Wipe,
];

#[test]
fn histories_are_linearizable_whatever_fails() {
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
    with_seeds(1, |seed| run(&net, seed, soak_time().clamp(SHORT, LONG)));
}

/// A folder that stays if the test fails.
struct Folder(Option<tempfile::TempDir>);

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(folder) = self.0.take()
        {
            eprintln!("what is left lies in {}", folder.keep().display());
        }
    }
}

fn run(net: &Net, seed: u64, time: Duration) {
    let folder = Folder(Some(tempfile::tempdir().unwrap()));
    let root = folder.0.as_ref().unwrap().path().to_owned();
    let mut world = World::found(net, &root, seed);
    let load = world.deal();
    let more = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let (load, more) = (&load, &more);
        // Whatever panics here, the others end.
        let ends = Ends { load, more };
        let clients: Vec<ScopedJoinHandle<'_, ()>> = (0..CLIENTS)
            .map(|client| scope.spawn(move || load.work(client, seed.wrapping_mul(CLIENTS as u64) + client as u64)))
            .collect();
        for (_, address) in &load.servers {
            scope.spawn(move || load.look(address, more));
        }
        world.fail_for(time, load, || clients.iter().all(|client| !client.is_finished()));
        let healed = Instant::now();
        world.until_in_sync(healed);
        println!("seed {seed}: all in sync {} ms after the last fault", healed.elapsed().as_millis());
        load.ends.store(true, Ordering::SeqCst);
        for client in clients {
            client.join().unwrap();
        }
        world.until_in_sync(Instant::now());
        world.compare_copies(load);
        drop(ends);
    });
    verify(&load, &root, seed);
}

/// Checks all that was seen.
fn verify(load: &Load, root: &Path, seed: u64) {
    let records = load.records.lock().unwrap();
    let history = load.history.lock().unwrap();
    let all = records.operations.iter().flatten();
    let (known, unknown): (Vec<_>, Vec<_>) = all.partition(|operation| operation.returned.is_some());
    let once = records.once.len();
    println!("seed {seed}: {} answers, {} outcomes unknown, {once} keys written once", known.len(), unknown.len());
    println!("seed {seed}: {}; errors: {:#?}", history.summary(), records.errors);
    history.assert_sound("at the end");
    let mut wrong = Vec::new();
    for (register, operations) in load.registers.iter().zip(&records.operations) {
        if let Err(why) = register::check(operations) {
            let file = root.join(format!("history-{}", register.keys[0]));
            let lines: Vec<String> = operations.iter().map(|operation| format!("{operation}\n")).collect();
            std::fs::write(&file, lines.concat()).unwrap();
            wrong.push(format!("{:?} (all in {}): {why}", register.keys, file.display()));
        }
    }
    for (shard, answers) in &records.answers {
        if let Err(why) = answers::check(answers, &records.said[shard]) {
            wrong.push(format!("two servers answer for shard {shard}: {why}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(known.len() > 1000 && once > 50 && history.moves() > 3, "too little was tested");
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

struct World<'n> {
    net: &'n Net,
    random: Random,
    servers: Vec<Server>,
}

impl<'n> World<'n> {
    /// A federation of three that vote.
    fn found(net: &'n Net, root: &Path, seed: u64) -> World<'n> {
        let mut world = World { net, random: Random::new(seed), servers: Vec::new() };
        let mut first = Server::new(net, root, 1, "s1");
        cluster(&["init", "--dir", first.folder().to_str().unwrap(), "--name", "s1", "--zone", "s1"]);
        first.start_and_wait(net, &[]);
        until("the first to lead", || first.status().is_some_and(|status| status["leader"]["name"] == "s1"));
        world.servers.push(first);
        while world.servers.len() < SERVERS {
            let host = world.servers.len() as u8 + 1;
            let (clients, peers) = (&world.servers[0].clients, world.servers[0].peers.clone());
            let token = cluster(&["token", clients])["token"].as_str().unwrap().to_owned();
            let mut server = Server::new(net, root, host, &format!("s{host}"));
            server.join(net, &peers, &token);
            world.servers.push(server);
        }
        until("all to vote", || {
            let votes = |server: &Server| server.status().is_some_and(|of| array(&of["voters"]).len() == SERVERS);
            world.servers.iter().all(votes)
        });
        world
    }

    /// Deals the shards, and chooses the registers.
    fn deal(&self) -> Load {
        let first = &self.servers[0].clients;
        until("three copies to be wanted", || ecotone(&["cluster", "set", first, "replication.copies", "3"]).is_ok());
        until("shards", || ecotone(&["cluster", "create", first, "--shards", &SHARDS.to_string()]).is_ok());
        self.until_in_sync(Instant::now());
        let status = self.servers[0].status().unwrap();
        let mut tags: BTreeMap<u64, String> = BTreeMap::new();
        for number in 0.. {
            let tag = format!("t{number}");
            let Reply::Text(slot) = ask(first, &["CLUSTER", "KEYSLOT", &tag], PATIENCE).unwrap() else {
                panic!("no slot")
            };
            let slot: u64 = slot.parse().unwrap();
            let has = |shard: &&Value| {
                array(&shard["slots"]).iter().any(|range| (range[0].as_u64()..=range[1].as_u64()).contains(&Some(slot)))
            };
            let shard = array(&status["shards"]).iter().find(has).unwrap();
            tags.entry(shard["shard"].as_u64().unwrap()).or_insert(tag);
            if tags.len() == SHARDS {
                break;
            }
        }
        let mut registers = Vec::new();
        for number in 0..REGISTERS {
            for (shard, tag) in &tags {
                let keys = (0..if number % 3 == 2 { 2 } else { 1 }).map(|part| format!("{{{tag}}}:{number}{part}"));
                registers.push(Register { shard: *shard, keys: keys.collect() });
            }
        }
        Load {
            servers: self.servers.iter().map(|server| (server.name.clone(), server.clients.clone())).collect(),
            records: Mutex::new(Records { operations: vec![Vec::new(); registers.len()], ..Records::default() }),
            registers,
            began: Instant::now(),
            ends: AtomicBool::new(false),
            values: AtomicU64::new(1),
            clients: AtomicU64::new(1),
            history: Mutex::new(History::default()),
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
            println!("{:8.1} s: {fault:?}", load.began.elapsed().as_secs_f64());
            self.fail(fault);
            self.servers.iter_mut().for_each(Server::assert_runs);
            load.history.lock().unwrap().assert_sound(&format!("after {fault:?}"));
            assert!(goes_on(), "a client has found what must not be, see above");
            self.rest(100, 1200);
        }
    }

    fn rest(&mut self, least_ms: u64, most_ms: u64) {
        let ms = least_ms + self.random.below((most_ms - least_ms) as usize) as u64;
        std::thread::sleep(Duration::from_millis(ms));
    }

    /// As long as a fault lasts: mostly long enough for another primary.
    fn hold(&mut self) {
        self.rest(500, if soak_time().is_zero() { 3000 } else { 9000 });
    }

    fn any(&mut self) -> usize {
        self.random.below(SERVERS)
    }

    /// Another one.
    fn other(&mut self, than: usize) -> usize {
        (than + 1 + self.random.below(SERVERS - 1)) % SERVERS
    }

    fn status(&self) -> Option<Value> {
        self.servers.iter().find_map(|server| server.status().filter(|status| !status["leader"].is_null()))
    }

    fn named(&mut self, name: &Value) -> usize {
        let place = self.servers.iter().position(|server| *name == server.name.as_str());
        place.unwrap_or_else(|| self.random.below(SERVERS))
    }

    /// Who has one of the shards.
    fn primary(&mut self) -> usize {
        let shard = self.random.below(SHARDS);
        let primary = self.status().map(|status| status["shards"][shard]["primary"].clone());
        self.named(&primary.unwrap_or_default())
    }

    fn leader(&mut self) -> usize {
        let leader = self.status().map(|status| status["leader"]["name"].clone());
        self.named(&leader.unwrap_or_default())
    }

    fn fail(&mut self, fault: Fault) {
        match fault {
            Fault::KillOne => {
                let one = self.any();
                self.kill(&[one]);
            }
            Fault::KillPrimary => {
                let primary = self.primary();
                self.kill(&[primary]);
            }
            Fault::KillLeader => {
                let leader = self.leader();
                self.kill(&[leader]);
            }
            Fault::KillMost => {
                let one = self.any();
                let other = self.other(one);
                self.kill(&[one, other]);
            }
            Fault::KillAll => self.kill(&[0, 1, 2]),
            Fault::StopOne => {
                let one = self.any();
                self.stop(one);
            }
            Fault::StopPrimary => {
                let primary = self.primary();
                self.stop(primary);
            }
            Fault::StopLeader => {
                let leader = self.leader();
                self.stop(leader);
            }
            Fault::PrimaryIsNotHeard => {
                let primary = self.primary();
                self.cut(|from, _| from == primary);
            }
            Fault::PrimaryDoesNotHear => {
                let primary = self.primary();
                self.cut(|_, to| to == primary);
            }
            Fault::PrimaryIsCutFromOne => {
                let primary = self.primary();
                let other = self.other(primary);
                self.cut(|from, to| [(primary, other), (other, primary)].contains(&(from, to)));
            }
            Fault::PrimaryIsAlone => {
                let primary = self.primary();
                self.cut(|from, to| from == primary || to == primary);
            }
            Fault::CutPair => {
                let one = self.any();
                let other = self.other(one);
                self.cut(|from, to| (from, to) == (one, other));
            }
            Fault::Unplug => {
                let host = self.any() as u8 + 1;
                self.net.set_link(host, false);
                self.hold();
                self.net.set_link(host, true);
            }
            Fault::SwitchOver => {
                let (asked, to) = (self.any(), self.any());
                let shard = 1 + self.random.below(SHARDS);
                self.switch_over(asked, shard, to);
            }
            Fault::SwitchOverWithout => {
                let to = self.any();
                let (asked, stopped) = (self.other(to), self.other(to));
                let shard = 1 + self.random.below(SHARDS);
                self.servers[stopped].signal("-STOP");
                self.switch_over(if asked == stopped { to } else { asked }, shard, to);
                self.servers[stopped].signal("-CONT");
            }
            Fault::Wipe => self.wipe(),
        }
    }

    fn kill(&mut self, servers: &[usize]) {
        servers.iter().for_each(|server| self.servers[*server].kill());
        self.rest(50, 2500);
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

    /// Asks for it; it may be refused.
    fn switch_over(&self, asked: usize, shard: usize, to: usize) -> bool {
        let words = ["FEDERATION", "SWITCHOVER", &shard.to_string(), "TO", &self.servers[to].name];
        matches!(ask(&self.servers[asked].clients, &words, Duration::from_secs(3)), Ok(Reply::Text(_)))
    }

    /// One loses its copies while two others are whole: more than that no level promises.
    fn wipe(&mut self) {
        self.until_in_sync(Instant::now());
        let one = self.any();
        self.servers[one].kill();
        let folder = self.servers[one].folder().to_owned();
        let is_of_copies = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name == "shards" || name == "store" || name.starts_with("store.")
        };
        let entries: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        let copies: Vec<&PathBuf> = entries.iter().filter(|path| is_of_copies(path)).collect();
        assert!(copies.len() > 1, "where are the copies? {entries:?}");
        copies.into_iter().for_each(|path| std::fs::remove_dir_all(path).unwrap());
        self.rest(50, 2500);
        self.servers[one].start(self.net, &[]);
    }

    /// Waits until all copies of all shards are in sync, and all servers say so.
    fn until_in_sync(&self, since: Instant) {
        let is_well = |shard: &Value| {
            let in_sync = array(&shard["copies"]).iter().filter(|copy| copy["in_sync"] == true);
            in_sync.count() == SERVERS && shard["primary"].is_string()
        };
        loop {
            let statuses: Vec<Option<Value>> = self.servers.iter().map(Server::status).collect();
            let are_well = statuses.iter().all(|status| {
                let shards = status.as_ref().map(|status| array(&status["shards"])).unwrap_or_default();
                shards.len() == SHARDS && shards.iter().all(is_well)
            });
            let serve = |server: &Server| {
                let info = ask(&server.clients, &["CLUSTER", "INFO"], PATIENCE);
                matches!(info, Ok(Reply::Text(info)) if info.contains("cluster_slots_ok:16384"))
            };
            if are_well && self.servers.iter().all(serve) {
                return;
            }
            let shown = |status: &Option<Value>| {
                status.as_ref().map_or("no answer".to_owned(), |status| {
                    format!("{} at {}: {}", status["asked"]["name"], status["map_version"], status["shards"])
                })
            };
            let said = || statuses.iter().map(shown).collect::<Vec<_>>().join("\n");
            assert!(since.elapsed() < IN_SYNC_WITHIN, "copies are not in sync:\n{}", said());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Makes each server in turn the primary of each shard, and reads everything there.
    fn compare_copies(&self, load: &Load) {
        let once = load.records.lock().unwrap().once.clone();
        for shard in 1..=SHARDS {
            let registers: Vec<usize> =
                (0..load.registers.len()).filter(|at| load.registers[*at].shard == shard as u64).collect();
            let (tag, _) = load.registers[registers[0]].keys[0].split_once(':').unwrap();
            let mut first: Option<BTreeMap<String, Reply>> = None;
            for number in 0..SERVERS {
                let there = self.content(number, shard, tag);
                let mut client = load.client(number);
                for register in &registers {
                    until("a register to be read", || client.read(*register).is_some());
                }
                let name = &self.servers[number].name;
                let is_lost = |key: &String, value: u64| there.get(key).map(load::value_of) != Some(Some(value));
                let of_shard = once.iter().filter(|(key, _)| key.starts_with(tag));
                let lost: Vec<&String> =
                    of_shard.filter(|(key, value)| is_lost(key, **value)).map(|(key, _)| key).collect();
                assert!(lost.is_empty(), "acknowledged, and lost at {name}, which has {}: {lost:?}", there.len());
                let first = first.get_or_insert_with(|| there.clone());
                let keys = first.keys().chain(there.keys());
                let differing: Vec<&String> = keys.filter(|key| first.get(*key) != there.get(*key)).collect();
                assert!(differing.is_empty(), "{name} has other {differing:?} than the first");
            }
        }
    }

    /// All that a copy has, as it says while it is the primary.
    fn content(&self, number: usize, shard: usize, tag: &str) -> BTreeMap<String, Reply> {
        let server = &self.servers[number];
        let epoch = || {
            let status = server.status()?;
            let of = &array(&status["shards"])[shard - 1];
            (of["primary"] == server.name.as_str()).then(|| of["epoch"].as_u64()).flatten()
        };
        let began = Instant::now();
        loop {
            // The leader of the federation hands shards over by itself, so that each has as many.
            self.switch_over(number, shard, number);
            let before = epoch();
            let found = content(&server.clients, tag);
            // What is answered in one epoch is answered by its primary.
            if let Ok(found) = found
                && before.is_some()
                && epoch() == before
            {
                return found;
            }
            assert!(began.elapsed() < PATIENCE, "{} does not stay the primary of {shard}", server.name);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The keys with that tag of the server there, read there, unless it does not serve them all the time.
fn content(address: &str, tag: &str) -> io::Result<BTreeMap<String, Reply>> {
    let mut client = Client::connect(address, PATIENCE)?;
    let mut ask = |words: &[&str]| match client.ask(words)? {
        Reply::Error(error) => Err(io::Error::other(error)),
        reply => Ok(reply),
    };
    let (mut there, mut cursor) = (BTreeMap::new(), String::from("0"));
    // SCAN passes over slots that are not served; this is refused, before and behind it.
    ask(&["GET", tag])?;
    loop {
        let reply = ask(&["SCAN", &cursor, "COUNT", "1000"])?;
        let Reply::Array(parts) = reply else { panic!("SCAN: {reply:?}") };
        let [Reply::Text(next), Reply::Array(keys)] = &parts[..] else { panic!("SCAN: {parts:?}") };
        for key in keys {
            let Reply::Text(key) = key else { panic!("no key: {key:?}") };
            if key.starts_with(tag) {
                there.insert(key.clone(), Reply::Nothing);
            }
        }
        if next == "0" {
            break;
        }
        cursor.clone_from(next);
    }
    ask(&["GET", tag])?;
    for (key, value) in &mut there {
        *value = ask(&["GET", key])?;
    }
    Ok(there)
}
