//! Builds of different feature levels in one federation: upgraded one by one, and taken back.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ecotone_control::entry::Entry;
use ecotone_control::map::Features;
use ecotone_membership::{Decision, Error};

use crate::common::{Kind, LONGEST, TestServer, active, first_of, join, leader_of, three};

/// A build, and the next one, which can work with it.
const OLD: Features = Features { min: 1, max: 1 };
const NEW: Features = Features { min: 1, max: 2 };
/// Clients that ask at the same time.
const CLIENTS: u64 = 4;
/// How often each of them asks.
const PACE: Duration = Duration::from_millis(5);
/// A kind of entry that no build has.
const UNKNOWN_KIND: u8 = 200;
/// How the names of settings begin whose entries become of that kind.
const PREFIX: &str = "upgrade.";

fn of(features: Features) -> Kind {
    Kind { features, ..Kind::default() }
}

fn setting(name: &str, value: &str) -> Entry {
    Entry::Set { name: name.into(), value: Some(value.into()) }
}

/// Starts a server again, with another build.
fn with_build(servers: &mut [TestServer], at: usize, features: Features) {
    let hint = servers[(at + 1) % servers.len()].address.clone();
    let folder = servers[at].end_in_folder();
    servers[at] = TestServer::start(folder, Some(hint), &of(features)).unwrap();
    let member = servers[at].member();
    for server in servers.iter() {
        server.wait("the build", |known| known.map.server(member).is_some_and(|server| server.features == features));
    }
}

#[test]
fn builds_are_changed_one_by_one_and_changed_back_until_all_are_new() {
    let root = tempfile::tempdir().unwrap();
    let mut servers = three(root.path(), &of(OLD));
    let level = |servers: &[TestServer]| servers.iter().map(|server| server.map().feature_level).max().unwrap();
    // Two are upgraded, one of them is taken back and upgraded again: nothing has risen, and all
    // decide together.
    for (step, (at, features)) in [(0, NEW), (1, NEW), (0, OLD), (0, NEW)].into_iter().enumerate() {
        with_build(&mut servers, at, features);
        let decided = servers[(at + 1) % 3].propose(setting("step", &step.to_string())).unwrap();
        assert_eq!(decided.decision, Decision::Changed);
        assert_eq!(level(&servers), 1, "the third is of the old build");
    }
    with_build(&mut servers, 2, NEW);
    for server in &servers {
        server.wait("the level to rise", |known| known.map.feature_level == 2);
    }

    // Now there is no way back: neither for a server that was there, nor for one that comes.
    let hint = servers[1].address.clone();
    let folder = servers[0].end_in_folder();
    let refused = TestServer::start(folder.clone(), Some(hint.clone()), &of(OLD)).err().unwrap();
    assert!(matches!(refused, Error::Refused(_)), "{refused}");
    for said in ["feature level 2", "this build at 1 to 1", "start another build"] {
        assert!(refused.to_string().contains(said), "{said}: {refused}");
    }
    let token = leader_of(&[&servers[1], &servers[2]]).membership().issue_token().unwrap();
    let refused = join(root.path().join("d"), "d", &token, &hint, &of(OLD)).err().unwrap();
    assert!(refused.contains("feature level 2"), "{refused}");
    // Its token is not spent.
    let joined = join(root.path().join("d"), "d", &token, &hint, &of(NEW)).unwrap();
    joined.wait("to be active", active(4));
    // The new build goes on with the folder.
    let back = TestServer::start(folder, Some(hint), &of(NEW)).unwrap();
    back.wait("what it missed", active(4));
}

#[test]
fn a_server_that_was_off_while_the_level_rose_is_told_why_it_may_not_announce_itself() {
    let root = tempfile::tempdir().unwrap();
    let a = first_of(root.path().join("a"), true, &of(OLD));
    a.wait("to lead", |known| known.leads());
    let token = a.membership().issue_token().unwrap();
    let b = join(root.path().join("b"), "b", &token, &a.address, &of(NEW)).unwrap();
    b.wait("to be active", active(2));
    let (address, folder) = (b.address.clone(), b.stop());
    let a = TestServer::start(a.stop(), None, &of(NEW)).unwrap();
    a.wait("the level to rise", |known| known.leads() && known.map.feature_level == 2);
    // Its log does not know of the level. It hears the entries, and works on with what it can read.
    let b = TestServer::start_at(&address, folder, Some(a.address.clone()), &of(OLD)).unwrap();
    b.wait("the level", |known| known.map.feature_level == 2);
    let announced = b.propose(Entry::Announce {
        member: b.member(),
        directory: b.map().server(b.member()).unwrap().directory,
        addresses: b.map().server(b.member()).unwrap().addresses.clone(),
        zone: String::new(),
        features: OLD,
    });
    assert!(matches!(&announced, Err(Error::Refused(why)) if why.contains("feature level 2")), "{announced:?}");
    assert_eq!(a.map().server(b.member()).unwrap().features, NEW);
}

/// Makes the entry that sets `name` one of a kind that this build does not know, in a log.
fn make_unknown(control: &Path, name: &str) -> bool {
    const HEAD: usize = 10;
    let path = control.join("log");
    let mut bytes = std::fs::read(&path).unwrap();
    let (mut at, mut is_there) = (0, false);
    while at + HEAD <= bytes.len() {
        assert_eq!(bytes[at..at + 2], [0xe7, 0x4c], "a record at {at}");
        let length = u32::from_le_bytes(bytes[at + 2..at + 6].try_into().unwrap()) as usize;
        let payload = at + HEAD..at + HEAD + length;
        let found = bytes[payload.clone()].windows(name.len()).position(|window| window == name.as_bytes());
        if let Some(found) = found {
            // Version, kind, who asks, the length of the name, the name.
            let kind = payload.start + found - 3;
            assert_eq!(usize::from(bytes[payload.start + found - 1]), name.len());
            bytes[kind] = UNKNOWN_KIND;
            let sum = crc32c::crc32c_append(crc32c::crc32c(&(at as u64).to_le_bytes()), &bytes[payload.clone()]);
            bytes[at + 6..at + 10].copy_from_slice(&sum.to_le_bytes());
            is_there = true;
        }
        at = payload.end;
    }
    assert_eq!(at, bytes.len(), "the log ends with a record");
    std::fs::write(&path, bytes).unwrap();
    is_there
}

#[test]
fn an_entry_of_a_newer_build_stops_the_node_and_the_server_goes_on_by_its_last_map() {
    let root = tempfile::tempdir().unwrap();
    let servers = three(root.path(), &Kind::default());
    servers[0].propose(setting("last", "known")).unwrap();
    // Changes that are asked for all the time, until the leader is alone: the last ones are in its
    // log and nobody has decided them.
    let leads = leader_of(&servers.iter().collect::<Vec<_>>()).member();
    let (mut leader, mut others) = (None, Vec::new());
    servers
        .into_iter()
        .for_each(|server| if server.member() == leads { leader = Some(server) } else { others.push(server) });
    let leader = leader.unwrap();
    let (number, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut folders: Vec<(String, PathBuf)> = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !ends.load(Ordering::SeqCst) {
                    let name = format!("{PREFIX}{:06}", number.fetch_add(1, Ordering::SeqCst));
                    let value = number.load(Ordering::SeqCst).to_string();
                    let _ = leader.propose(setting(&name, &value));
                    std::thread::sleep(PACE);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(200));
        folders.extend(others.drain(..).map(|server| (server.address.clone(), server.stop())));
        leader.wait("to lead no more", |known| known.leader.is_none());
        ends.store(true, Ordering::SeqCst);
    });
    let applied = leader.known().applied;
    let (address, alone) = (leader.address.clone(), leader.stop());
    let last = last_setting(&alone.join("control"));
    folders.push((address, alone));
    let changed = folders.iter().filter(|(_, folder)| make_unknown(&folder.join("control"), &last)).count();
    assert!(changed > 0, "{last} is in no log");
    let started: Vec<_> = folders
        .into_iter()
        .map(|(address, folder)| TestServer::start_at(&address, folder, None, &Kind::default()))
        .collect();
    let mut running = Vec::new();
    for server in started {
        match server {
            // It is told apart from damage: another build can read it.
            Err(error) => assert!(matches!(error, Error::Control(_)), "{error}"),
            Ok(server) => running.push(server),
        }
    }
    // Two decide it: whoever leads stops, and then the next one, until nobody can lead.
    let is_stopped = |server: &&TestServer| server.known().stopped.is_some();
    let began = Instant::now();
    while running.iter().filter(is_stopped).count() + 1 < running.len() {
        assert!(
            began.elapsed() < LONGEST,
            "they go on: {:?}",
            running.iter().map(TestServer::known).collect::<Vec<_>>()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(running.len() > 1, "not enough were running when the entry came");
    for server in &running {
        let known = server.wait("nobody to lead", |known| known.leader.is_none());
        if let Some(why) = &known.stopped {
            assert!(why.contains("cannot be applied by this build"), "{why}");
        }
        let last = known.map.settings.get("last");
        assert_eq!(last.map(String::as_str), Some("known"), "it serves on by the last map");
        assert!(known.applied <= applied + CLIENTS + 2, "{} of {applied}", known.applied);
    }
}

/// The name in the last entry of a log that sets something.
fn last_setting(control: &Path) -> String {
    let bytes = std::fs::read(control.join("log")).unwrap();
    let found = bytes.windows(PREFIX.len()).rposition(|window| window == PREFIX.as_bytes()).unwrap();
    String::from_utf8(bytes[found..found + PREFIX.len() + 6].to_vec()).unwrap()
}
