//! What must mend itself: a disk that is full, keys and certificates that are not there, addresses
//! that nobody knows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ecotone_control::entry::Entry;
use ecotone_control::ids::MemberId;
use ecotone_identity::SealKey;
use ecotone_membership::{Decision, Error};

use crate::common::{Ahead, Kind, TestServer, active, first, join, leader, leader_of, three};

fn setting(value: u64) -> Entry {
    Entry::Set { name: "example.bytes".into(), value: Some(value.to_string()) }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "{what} did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_write_that_fails_ends_its_part_until_it_can_write_again() {
    let root = tempfile::tempdir().unwrap();
    let a = first(root.path().join("a"), true);
    a.wait("to lead", |known| known.leads());
    // Nothing can be put in the place of the snapshot, which is due after some thousand entries.
    let in_the_way = root.path().join("a").join("control").join("snapshot.new");
    std::fs::create_dir(&in_the_way).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..32 {
            let a = &a;
            scope.spawn(move || {
                for value in 0..400 {
                    if a.known().stopped.is_some() || a.propose(setting(thread * 1_000 + value)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    let known = a.wait("the failure", |known| known.stopped.is_some());
    assert!(!known.leads());
    let why = known.stopped.clone().unwrap();
    assert!(why.contains("snapshot"), "{why}");
    let refused = a.propose(setting(1)).unwrap_err().to_string();
    assert!(refused.contains("takes no part") && refused.contains("snapshot"), "{refused}");
    assert!(!refused.contains("may have been decided"), "nothing was sent: {refused}");
    std::fs::remove_dir(&in_the_way).unwrap();
    a.wait("it to take part again", |known| known.stopped.is_none() && known.leads());
    assert_eq!(a.propose(setting(9_999_999)).unwrap().decision, Decision::Changed);
    assert!(a.map().settings.values().any(|value| value == "9999999"));
}

#[test]
fn who_leads_without_the_seal_gets_it_from_one_that_has_voted() {
    let root = tempfile::tempdir().unwrap();
    let servers = three(root.path(), &Kind::default());
    for server in &servers {
        until("the seal", || server.membership().keeps_authority());
    }
    let folders: Vec<_> = servers.into_iter().map(TestServer::stop).collect();
    for folder in &folders[1..] {
        std::fs::remove_file(folder.join("identity").join(SealKey::FILE)).unwrap();
    }
    // Only the first has it, and gives up its vote at once.
    let a = TestServer::start(folders[0].clone(), None, &Kind::default()).unwrap();
    let start = |at: usize| TestServer::start(folders[at].clone(), Some(a.address.clone()), &Kind::default()).unwrap();
    let (b, c) = (start(1), start(2));
    leader(&[&a, &b, &c]);
    a.propose(Entry::Drain { member: MemberId(1), drain: true }).unwrap();
    a.wait("it to lose its vote", |known| !known.voters.contains(&MemberId(1)));
    let leads = leader_of(&[&b, &c]);
    until("the seal", || leads.membership().keeps_authority());
    let token = leads.membership().issue_token().unwrap();
    join(root.path().join("d"), "d", &token, &leads.address, &Kind::default()).unwrap();
}

#[test]
fn servers_that_are_all_started_elsewhere_find_each_other() {
    let root = tempfile::tempdir().unwrap();
    let servers = three(root.path(), &Kind::default());
    let folders: Vec<_> = servers.into_iter().map(TestServer::stop).collect();
    let a = TestServer::start(folders[0].clone(), None, &Kind::default()).unwrap();
    let start = |at: usize| TestServer::start(folders[at].clone(), Some(a.address.clone()), &Kind::default()).unwrap();
    let (b, c) = (start(1), start(2));
    leader(&[&a, &b, &c]);
    for (member, address) in [(1, &a.address), (2, &b.address), (3, &c.address)] {
        a.wait("the new addresses", |known| {
            known.map.server(MemberId(member)).is_some_and(|server| server.addresses.peers == *address)
        });
    }
}

#[test]
fn a_certificate_that_has_ended_is_renewed_without_a_word_who_leads() {
    let root = tempfile::tempdir().unwrap();
    let a = first(root.path().join("a"), true);
    a.wait("to lead", |known| known.leads());
    let token = a.membership().issue_token().unwrap();
    let b = join(root.path().join("b"), "b", &token, &a.address, &Kind::default()).unwrap();
    b.wait("to be active", active(2));
    let (address, folder_b) = (a.address.clone(), b.stop());
    let folder_a = a.stop();
    // Two days later. The one that votes renews its own, the other asks where the map says it was.
    let clock = || Arc::new(Ahead(48 * 3600));
    let a = TestServer::start_by(clock(), &address, folder_a, None, &Kind::default()).unwrap();
    a.wait("to lead", |known| known.leads());
    let b = TestServer::start_by(clock(), "127.0.0.1:0", folder_b, None, &Kind::default()).unwrap();
    assert!(!b.security.identity().unwrap().is_valid_now());
    until("the certificate", || b.security.identity().unwrap().is_valid_now());
    b.wait("who leads", |known| known.leader == Some(MemberId(1)));
    assert_eq!(b.propose(setting(1)).unwrap().decision, Decision::Changed);
}

#[test]
fn who_leads_cannot_be_removed_and_the_federation_goes_on() {
    let root = tempfile::tempdir().unwrap();
    let servers = three(root.path(), &Kind::default());
    let leads = leader_of(&servers.iter().collect::<Vec<_>>()).member();
    for server in &servers {
        let refused = server.propose(Entry::Remove { member: leads, force: true });
        assert!(matches!(&refused, Err(Error::Refused(why)) if why.contains("drain it first")), "{refused:?}");
    }
    assert_eq!(servers[0].propose(setting(7)).unwrap().decision, Decision::Changed);
}
