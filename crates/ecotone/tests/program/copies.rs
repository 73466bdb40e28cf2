//! Copies of shards on real processes: what was acknowledged outlives the server that acknowledged
//! it, a shard changes hands under load, and a server that is drained ends up empty.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::cluster::{PATIENCE, Server, cluster, refused, text, until};
use crate::tmpfs::Tmpfs;

/// A server that does not answer a client within this is asked no more.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// A client that knows all servers, goes where it is sent, and asks again where it gets no answer,
/// as cluster clients do.
pub(super) struct Client {
    addresses: Vec<String>,
    open: HashMap<String, BufReader<TcpStream>>,
    /// Where it was answered last.
    last: usize,
}

impl Client {
    pub(super) fn new(addresses: &[String]) -> Client {
        Client { addresses: addresses.to_vec(), open: HashMap::new(), last: 0 }
    }

    /// Asks until it is answered by anything but an error.
    pub(super) fn ask(&mut self, words: &[&str]) -> String {
        let began = Instant::now();
        let mut said = String::new();
        while began.elapsed() < PATIENCE {
            let address = self.addresses[self.last].clone();
            said = match self.ask_at(&address, words) {
                Ok(reply) if !reply.starts_with('-') => return reply,
                Ok(error) => error,
                Err(error) => {
                    self.open.remove(&address);
                    error.to_string()
                }
            };
            let moved = said.strip_prefix("-MOVED ").and_then(|moved| moved.split(' ').nth(1));
            match moved.and_then(|to| self.addresses.iter().position(|known| known == to)) {
                Some(place) if place != self.last => self.last = place,
                // It is asked again somewhere else, not as fast as it can be refused.
                _ => {
                    self.last = (self.last + 1) % self.addresses.len();
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
        panic!("{words:?} is not answered: {said}");
    }

    pub(super) fn ask_at(&mut self, address: &str, words: &[&str]) -> std::io::Result<String> {
        if !self.open.contains_key(address) {
            let stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(ANSWER_TIME))?;
            stream.set_nodelay(true)?;
            self.open.insert(address.to_owned(), BufReader::new(stream));
        }
        let connection = self.open.get_mut(address).unwrap();
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        connection.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        if connection.read_line(&mut line)? == 0 {
            return Err(Error::new(ErrorKind::UnexpectedEof, "the server has gone"));
        }
        let line = line.trim_end().to_owned();
        let Some(len) = line.strip_prefix('$').and_then(|len| len.parse::<usize>().ok()) else { return Ok(line) };
        let mut value = vec![0; len + 2];
        connection.read_exact(&mut value)?;
        value.truncate(len);
        Ok(String::from_utf8(value).unwrap())
    }

    /// The next line that a server says.
    pub(super) fn line(&mut self, address: &str) -> std::io::Result<String> {
        let mut line = String::new();
        self.open.get_mut(address).ok_or(ErrorKind::NotConnected)?.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

/// The value of a key: long enough to be a separated one.
pub(super) fn value(number: u64) -> String {
    format!("{number}-{}", "v".repeat(200))
}

/// Writes keys one after the other, each once, until it is ended.
pub(super) struct Load {
    acknowledged: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    pub(super) fn start(addresses: &[String]) -> Load {
        let (acknowledged, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, stop, mut client) = (acknowledged.clone(), ends.clone(), Client::new(addresses));
        let thread = std::thread::spawn(move || {
            for number in 0.. {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                // Where the outcome is not known it is written again, with the same value.
                assert_eq!(client.ask(&["SET", &format!("key:{number}"), &value(number)]), "+OK");
                count.store(number + 1, Ordering::Release);
            }
        });
        Load { acknowledged, ends, thread: Some(thread) }
    }

    /// How many are acknowledged by now: keys from 0 on.
    pub(super) fn so_far(&self) -> u64 {
        self.acknowledged.load(Ordering::Acquire)
    }

    /// Waits until so many more are acknowledged.
    pub(super) fn more(&self, count: u64) {
        let wanted = self.acknowledged.load(Ordering::Acquire) + count;
        until("writes are acknowledged", || {
            assert!(!self.thread.as_ref().unwrap().is_finished(), "the client has failed");
            self.acknowledged.load(Ordering::Acquire) >= wanted
        });
    }

    /// How many were acknowledged: keys from 0 on.
    pub(super) fn end(mut self) -> u64 {
        self.ends.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap();
        self.acknowledged.load(Ordering::Acquire)
    }
}

/// Every one of them is there.
pub(super) fn all_are_there(addresses: &[String], acknowledged: u64) {
    let mut client = Client::new(addresses);
    let lost: Vec<u64> =
        (0..acknowledged).filter(|number| client.ask(&["GET", &format!("key:{number}")]) != value(*number)).collect();
    assert!(lost.is_empty(), "{} of {acknowledged} are lost: {lost:?}", lost.len());
}

/// Servers of these names, of which the first two or more vote, with shards that are dealt, all of
/// whose copies are in sync.
pub(super) fn federation(folder: &Path, names: &[&str], create: &[&str], copies: usize) -> Vec<Server> {
    cluster(&["init", "--dir", text(&folder.join(names[0])), "--name", names[0], "--zone", names[0]]);
    let first = Server::start(folder, names[0], None, &[]);
    until("the first one leads", || first.status()["leader"]["name"] == names[0]);
    let others: Vec<Server> = names[1..].iter().map(|name| first.joined(folder, name)).collect();
    let servers: Vec<Server> = [first].into_iter().chain(others).collect();
    until("all vote and are active", || {
        let status = servers[0].status();
        let is_active = |server: &Value| server["state"] == "active" && server["clients"] != "";
        status["voters"].as_array().unwrap().len() == 3 && status["servers"].as_array().unwrap().iter().all(is_active)
    });
    cluster(&[&["create", &servers[0].clients], create].concat());
    until("all copies are in sync", || are_in_sync(&servers[0].status(), copies));
    servers
}

pub(super) fn shards(status: &Value) -> &Vec<Value> {
    status["shards"].as_array().unwrap()
}

fn in_sync(shard: &Value) -> Vec<&str> {
    let copies = shard["copies"].as_array().unwrap().iter();
    copies.filter(|copy| copy["in_sync"] == true).map(|copy| copy["server"].as_str().unwrap()).collect()
}

/// Whether each shard has a primary, and so many copies that all are in sync.
fn are_in_sync(status: &Value, copies: usize) -> bool {
    let is_so = |shard: &Value| {
        let all = shard["copies"].as_array().unwrap().len();
        !shard["primary"].is_null() && all == copies && in_sync(shard).len() == copies
    };
    shards(status).iter().all(is_so)
}

pub(super) fn addresses(servers: &[Server]) -> Vec<String> {
    servers.iter().map(|server| server.clients.clone()).collect()
}

/// The server that leads, as another one knows it.
fn leader<'s>(servers: &'s [Server], asked: &Server) -> &'s Server {
    let mut found = None;
    until("somebody leads", || {
        let name = asked.status()["leader"]["name"].clone();
        found = servers.iter().find(|server| name == server.name.as_str());
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn what_was_acknowledged_outlives_a_primary_that_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    let mut servers = federation(folder, &["a", "b", "c"], &["--shards", "3", "--copies", "3"], 3);
    let status = servers[0].status();
    assert_eq!((&status["replication"]["level"], &status["replication"]["copies"]), (&"quorum".into(), &3.into()));
    let everywhere = addresses(&servers);
    let load = Load::start(&everywhere);
    load.more(300);

    let victim = shards(&status)[0]["primary"].as_str().unwrap().to_owned();
    let place = servers.iter().position(|server| server.name == victim).unwrap();
    let mut dead = servers.remove(place);
    dead.kill();
    // Keys of all shards come in turn, so it goes on only once each shard has a primary again.
    load.more(300);
    let status = servers[0].status();
    assert!(shards(&status).iter().all(|shard| shard["primary"] != victim.as_str()), "{status}");
    until("the set goes on without it", || {
        shards(&servers[0].status()).iter().all(|shard| !in_sync(shard).contains(&victim.as_str()))
    });

    // It comes back, and has all that it lacked.
    let back = dead.again(folder);
    servers.push(back);
    until("it is in sync again", || are_in_sync(&servers[0].status(), 3));
    load.more(100);
    let acknowledged = load.end();
    all_are_there(&everywhere, acknowledged);
    // What it has is served by it alone now.
    for shard in 1..=3_u32 {
        cluster(&["switch-over", &servers[0].clients, &shard.to_string(), "--to", &victim]);
    }
    let status = servers[0].status();
    assert!(shards(&status).iter().all(|shard| shard["primary"] == victim.as_str()), "{status}");
    all_are_there(&everywhere, acknowledged);
}

#[test]
fn a_shard_changes_hands_under_load_and_force_needs_a_word() {
    let directory = tempfile::tempdir().unwrap();
    // Data folders are often reached by a link.
    let (disk, folder) = (directory.path().join("disk"), directory.path().join("folder"));
    std::fs::create_dir(&disk).unwrap();
    std::os::unix::fs::symlink(&disk, &folder).unwrap();
    let servers = federation(&folder, &["a", "b", "c"], &["--shards", "1", "--copies", "3", "--level", "all"], 3);
    let everywhere = addresses(&servers);
    let load = Load::start(&everywhere);
    load.more(100);
    for round in 0..3 {
        // Whoever is asked, the leader has it done.
        let asked = &servers[round % servers.len()];
        let status = asked.status();
        let shard = &shards(&status)[0];
        let to = in_sync(shard).into_iter().find(|name| shard["primary"] != *name).unwrap().to_owned();
        let done = cluster(&["switch-over", &asked.clients, "1", "--to", &to]);
        assert_eq!((&done["to"]["name"], &done["decided"]["outcome"]), (&to.as_str().into(), &"changed".into()));
        load.more(100);
        until("all are in sync", || are_in_sync(&asked.status(), 3));
    }
    let acknowledged = load.end();
    all_are_there(&everywhere, acknowledged);

    let status = servers[0].status();
    let primary = shards(&status)[0]["primary"].as_str().unwrap();
    let other = ["a", "b", "c"].into_iter().find(|name| *name != primary).unwrap();
    let leader = leader(&servers, &servers[0]);
    let promote = ["cluster", "promote", &leader.clients, "1", "--to", other];
    let said = refused(&promote);
    for part in ["nothing was changed", "SWITCHOVER", "FORCE"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Nobody answers the question, and a primary that serves is not deposed in any case.
    let said = refused(&[&promote[..], &["--force"]].concat());
    assert!(said.contains("is lost for good") && said.contains("nothing was changed"), "{said}");
    let said = refused(&[&promote[..], &["--force", "--yes"]].concat());
    assert!(said.contains("nothing needs to be forced"), "{said}");
    assert_eq!(shards(&servers[0].status())[0]["primary"], primary);
}

#[test]
fn a_server_that_is_drained_ends_up_empty() {
    let directory = tempfile::tempdir().unwrap();
    let servers = federation(directory.path(), &["a", "b", "c"], &["--shards", "3", "--copies", "2"], 2);
    let everywhere = addresses(&servers);
    let load = Load::start(&everywhere);
    load.more(200);
    let drained = cluster(&["drain", &servers[0].clients, "c"]);
    assert_eq!(drained["shards"], drained["leave_by_themselves"]);
    let copies_of = |status: &Value| {
        status["servers"].as_array().unwrap().iter().find(|server| server["name"] == "c").unwrap()["copies"].clone()
    };
    until("it has no copies", || {
        let status = servers[0].status();
        copies_of(&status) == 0 && are_in_sync(&status, 2)
    });
    load.more(100);
    let acknowledged = load.end();
    all_are_there(&everywhere, acknowledged);
    until("its files are gone", || {
        let held = std::fs::read_dir(directory.path().join("c/shards"));
        !directory.path().join("c/store/CURRENT").exists() && held.map_or(0, Iterator::count) == 0
    });
    until("it can be removed", || {
        super::cluster::ecotone(&["cluster", "remove", &servers[0].clients, "c"]).status.success()
    });
    all_are_there(&everywhere[..2], acknowledged);
}

#[test]
fn a_replica_whose_disk_is_full_leaves_the_set_and_returns_by_itself_once_there_is_space() {
    let Some(disk) = Tmpfs::mount(128 << 20) else { return };
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    // All that this server has is on that disk, its part of the control plane too.
    std::fs::create_dir(disk.path().join("c")).unwrap();
    std::os::unix::fs::symlink(disk.path().join("c"), folder.join("c")).unwrap();
    let servers = federation(folder, &["a", "b", "c"], &["--shards", "1", "--copies", "3"], 3);
    let everywhere = addresses(&servers);
    if shards(&servers[0].status())[0]["primary"] == "c" {
        cluster(&["switch-over", &servers[0].clients, "1", "--to", "a"]);
        until("all are in sync", || are_in_sync(&servers[0].status(), 3));
    }
    let load = Load::start(&everywhere);
    load.more(200);
    disk.fill();
    until("it leaves the set", || in_sync(&shards(&servers[0].status())[0]) == ["a", "b"]);
    // Nobody waits for it.
    load.more(300);
    // It says why, to people and to whatever watches it.
    let own = |status: &Value| {
        let copies = shards(status)[0]["copies"].as_array().unwrap().clone();
        copies.into_iter().find(|copy| copy["server"] == "c").unwrap()
    };
    let info = || Client::new(&everywhere).ask_at(&servers[2].clients, &["INFO", "cluster"]).unwrap();
    let said = |said: &str, what: &str| said.contains("No space left on device") && said.contains(what);
    until("it says what its trouble is", || {
        said(own(&servers[2].status())["trouble"].as_str().unwrap_or_default(), "")
    });
    let told = info();
    assert!(said(&told, "copies_trouble:shard 1: ") && told.contains("copies_here_in_sync:0"), "{told}");
    assert_eq!(in_sync(&shards(&servers[0].status())[0]), ["a", "b"]);

    disk.empty();
    until("it is in sync again", || are_in_sync(&servers[0].status(), 3));
    until("its trouble is over", || own(&servers[2].status())["trouble"].is_null());
    assert!(!info().contains("copies_trouble"), "{}", info());
    load.more(100);
    let acknowledged = load.end();
    cluster(&["switch-over", &servers[0].clients, "1", "--to", "c"]);
    assert_eq!(shards(&servers[0].status())[0]["primary"], "c");
    all_are_there(&everywhere, acknowledged);
}

/// The tables and segments of shard 1 on a server, with what is in them.
fn files_of(folder: &Path, server: &str) -> BTreeMap<String, Vec<u8>> {
    let store = folder.join(server).join("store");
    let mut files = BTreeMap::new();
    for below in [store.clone(), store.join("values")] {
        for entry in std::fs::read_dir(&below).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|kind| kind == "sst" || kind == "segment")
                && let Ok(mut bytes) = std::fs::read(&path)
            {
                // A primary reserves space for what it appends to.
                let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                bytes.truncate(end);
                files.insert(path.strip_prefix(&store).unwrap().to_str().unwrap().to_owned(), bytes);
            }
        }
    }
    files
}

/// One bit of a file becomes another one, as a device does that: its times do not change.
fn flip_bit(path: &Path) {
    let modified = std::fs::metadata(path).unwrap().modified().unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.len() / 3;
    bytes[at] ^= 8;
    std::fs::write(path, bytes).unwrap();
    std::fs::File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
}

/// The only finding, and of whose copy.
fn only_finding(answer: &Value) -> (&str, &Value) {
    assert_eq!(answer["differing"], 1, "{answer}");
    let copies = answer["copies"].as_array().unwrap();
    let copy = copies.iter().find(|copy| copy["differing"] == 1).unwrap();
    (copy["server"].as_str().unwrap(), &copy["named"][0])
}

#[test]
fn a_flipped_bit_in_any_copy_is_found_and_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let (folder, names) = (directory.path(), ["a", "b", "c"]);
    let servers = federation(folder, &names, &["--shards", "1", "--copies", "3", "--level", "all"], 3);
    let everywhere = addresses(&servers);
    let load = Load::start(&everywhere);
    load.more(300);
    // An opening leaves what was in WALs in tables, and segments that are sealed.
    let status = servers[0].status();
    let to = in_sync(&shards(&status)[0]).into_iter().find(|name| shards(&status)[0]["primary"] != *name).unwrap();
    cluster(&["switch-over", &servers[0].clients, "1", "--to", to]);
    load.more(50);
    let acknowledged = load.end();
    until("all have the same files", || {
        let [a, b, c] = names.map(|name| files_of(folder, name));
        are_in_sync(&servers[0].status(), 3) && a.keys().any(|name| name.ends_with(".sst")) && a == b && b == c
    });
    let repair = ["repair", &servers[0].clients, "1"];
    let sound = cluster(&repair);
    assert_eq!(
        (&sound["whole"], &sound["differing"], sound["copies"].as_array().unwrap().len()),
        (&true.into(), &0.into(), 3)
    );
    let compared = |copy: &Value| copy["phase"] == "done" && copy["files"] == copy["of_files"] && copy["bytes"] != 0;
    assert!(sound["copies"].as_array().unwrap().iter().all(compared), "{sound}");

    // At a replica.
    let primary = || shards(&servers[0].status())[0]["primary"].as_str().unwrap().to_owned();
    let (before, good) = (primary(), files_of(folder, "a"));
    let table = good.keys().find(|name| name.ends_with(".sst")).unwrap();
    let path = |server: &str| folder.join(server).join("store").join(table);
    let replica = names.into_iter().find(|name| *name != before).unwrap();
    flip_bit(&path(replica));
    let mended = cluster(&[&repair[..], &["--server", replica]].concat());
    let (of, finding) = only_finding(&mended);
    assert_eq!(
        (of, finding["file"].as_str(), &finding["replaced"]),
        (replica, Some(&table[..]), &true.into()),
        "{mended}"
    );
    assert_eq!((mended["copies"].as_array().unwrap().len(), primary()), (1, before.clone()));
    assert!(files_of(folder, replica)[table] == good[table]);

    // At the primary: another copy takes over, and nothing is lost.
    flip_bit(&path(&before));
    let mended = cluster(&repair);
    let (of, finding) = only_finding(&mended);
    assert_eq!(
        (of, finding["file"].as_str(), &finding["replaced"]),
        (&before[..], Some(&table[..]), &true.into()),
        "{mended}"
    );
    assert_ne!(primary(), before);
    assert!(files_of(folder, &before)[table] == good[table]);
    all_are_there(&everywhere, acknowledged);
    until("all are in sync, with the same files", || {
        let [a, b, c] = names.map(|name| files_of(folder, name));
        are_in_sync(&servers[0].status(), 3) && a == b && b == c
    });

    // Everywhere: nobody can give it, and that is said. Where one has it again, the others get it.
    names.iter().for_each(|name| flip_bit(&path(name)));
    let output = super::cluster::ecotone(&["cluster", "repair", &servers[0].clients, "1"]);
    let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success() && said.contains("NOT replaced: no other copy"), "{said} {error}");
    assert!(error.contains("damaged files that no other copy in reach has whole, on a, b, c"), "{error}");
    let trouble = servers[0].status();
    let own = shards(&trouble)[0]["copies"].as_array().unwrap().iter().find(|copy| copy["server"] == "a").unwrap();
    assert!(own["trouble"].as_str().unwrap().contains(&format!("{table} is damaged")), "{own}");
    // Bit by bit it is what it was.
    flip_bit(&path("b"));
    let mended = cluster(&repair);
    assert_eq!((&mended["whole"], &mended["replaced"]), (&true.into(), &2.into()), "{mended}");
    assert!(names.iter().all(|name| files_of(folder, name)[table] == good[table]));
    all_are_there(&everywhere, acknowledged);
}
