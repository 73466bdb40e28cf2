//! What happens when servers are lost.

use std::time::{Duration, Instant};

use ecotone_control::entry::Entry;
use ecotone_control::ids::MemberId;
use ecotone_membership::{Decision, Error, folder};

use crate::common::{Kind, TestServer, leader, three};

fn setting(value: &str) -> Entry {
    Entry::Set { name: "example.bytes".into(), value: Some(value.to_owned()) }
}

#[test]
fn another_server_leads_when_the_leader_is_gone_and_the_old_one_learns_what_it_missed() {
    let root = tempfile::tempdir().unwrap();
    let mut servers = three(root.path(), &Kind::default());
    let leads = leader(&servers.iter().collect::<Vec<_>>());
    let at = servers.iter().position(|server| server.member() == leads).unwrap();
    let gone = servers.remove(at);
    let hint = servers[0].address.clone();
    let folder = gone.stop();
    let began = Instant::now();
    let decided = servers[1].propose(setting("1000")).unwrap();
    assert_eq!(decided.decision, Decision::Changed);
    println!("decided {} ms after the leader was gone", began.elapsed().as_millis());
    assert!(began.elapsed() < Duration::from_secs(8));
    // It comes back elsewhere, and says so.
    let back = TestServer::start(folder, Some(hint), &Kind::default()).unwrap();
    back.wait("what it missed", |known| known.map.settings.values().any(|value| value == "1000"));
    let address = back.address.clone();
    servers[0].wait("its new address", |known| {
        known.map.server(leads).is_some_and(|server| server.addresses.peers == address)
    });
}

#[test]
fn without_most_voters_nothing_is_decided_until_it_is_forced() {
    let root = tempfile::tempdir().unwrap();
    let servers = three(root.path(), &Kind::default());
    servers[0].propose(setting("1")).unwrap();
    let [a, b, c]: [TestServer; 3] = servers.try_into().ok().unwrap();
    for server in [&b, &c] {
        server.wait("the setting", |known| !known.map.settings.is_empty());
    }
    let (folder_a, _folder_b) = (a.stop(), b.stop());
    let undecided = c.propose(setting("2"));
    assert!(matches!(undecided, Err(Error::NotDecided(_))), "{undecided:?}");
    assert_eq!(c.map().settings.len(), 1, "it serves on by the last map");
    assert!(folder::force_new(&root.path().join("c").join("control"), None).is_err(), "it runs");
    let folder_c = c.stop();

    // By an export of the map, which lies elsewhere.
    let known = folder::read(&folder_c.join("control")).unwrap();
    let file = root.path().join("map");
    folder::export(&known.map, &file).unwrap();
    let exported = std::fs::read(&file).unwrap();
    let recovered = folder::force_new(&folder_c.join("control"), Some(&exported)).unwrap();
    assert_eq!(recovered.map.generation, 2);
    assert_eq!(recovered.map.settings, known.map.settings);
    let c = TestServer::start(folder_c, None, &Kind::default()).unwrap();
    c.wait("to lead alone", |known| known.leads() && known.voters.len() == 1);
    assert_eq!(c.propose(setting("3")).unwrap().decision, Decision::Changed);
    // One of the old ones comes back, and takes the new history.
    let a = TestServer::start(folder_a, Some(c.address.clone()), &Kind::default()).unwrap();
    a.wait("the new history", |known| {
        known.map.generation == 2 && known.map.settings.values().any(|value| value == "3")
    });
    assert_eq!(a.member(), MemberId(1));
}
