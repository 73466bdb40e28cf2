//! How servers come, change what is decided, and go.

use std::collections::BTreeSet;

use ecotone_control::entry::Entry;
use ecotone_control::ids::MemberId;
use ecotone_control::map::Role;
use ecotone_membership::{Decision, Error, Known, folder};

use crate::common::{Kind, TestServer, active, first, join};

#[test]
fn servers_join_by_token_and_vote_and_a_removed_one_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let folder = |name: &str| root.path().join(name);
    let a = first(folder("a"), false);
    a.wait("to lead", |known| known.leads());
    let (one, two) = (a.membership().issue_token().unwrap(), a.membership().issue_token().unwrap());
    let b = join(folder("b"), "b", &one, &a.address, &Kind { zone: "cellar", ..Kind::default() }).unwrap();
    b.wait("to be active", active(2));
    // Asked of one that does not lead, and so sent on.
    let c = join(folder("c"), "c", &two, &b.address, &Kind { witness: true, ..Kind::default() }).unwrap();
    for server in [&a, &b, &c] {
        let known = server.wait("three voters", |known| known.voters.len() == 3 && active(3)(known));
        assert_eq!(known.voters, BTreeSet::from([MemberId(1), MemberId(2), MemberId(3)]));
        let named = |name: &str| known.map.members().find(|(_, server)| server.name.as_str() == name).unwrap().1;
        assert_eq!((named("b").zone.as_str(), named("c").role), ("cellar", Role::Witness));
        assert_eq!(named("b").addresses.peers, b.address);
        assert_eq!(named("b").addresses.clients, format!("clients-of-{}", b.address));
    }

    // Spent, forged, and of a name that is there.
    let spent = join(folder("d"), "d", &one, &a.address, &Kind::default()).err().unwrap();
    assert!(spent.contains("spent"), "{spent}");
    let three = a.membership().issue_token().unwrap();
    let taken = join(folder("e"), "b", &three, &a.address, &Kind::default()).err().unwrap();
    assert!(taken.contains("another server has this name"), "{taken}");
    let forged: ecotone_identity::JoinToken = {
        let text = three.to_string();
        let at = text.find('-').unwrap() + 1;
        let other = if text.as_bytes()[at] == b'0' { "1" } else { "0" };
        format!("{}{other}{}", &text[..at], &text[at + 1..]).parse().unwrap()
    };
    let refused = join(folder("f"), "f", &forged, &a.address, &Kind::default()).err().unwrap();
    assert!(refused.contains("unknown"), "{refused}");

    // A change that is asked of a server that does not lead.
    let decided = c.propose(Entry::Deal { primaries: vec![a.member(), b.member()] }).unwrap();
    assert_eq!(decided.decision, Decision::Changed);
    assert_eq!(c.map().shards.len(), 2, "who is answered finds what was asked for");
    let witness = c.propose(Entry::Move {
        shard: *c.map().shards.keys().next().unwrap(),
        epoch: c.map().shards.values().next().unwrap().epoch,
        to: c.member(),
    });
    assert!(matches!(witness, Err(Error::Refused(_))), "{witness:?}");

    // A voter keeps the authority, once it has the seal.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while b.membership().issue_token().is_err() {
        assert!(std::time::Instant::now() < until);
        std::thread::yield_now();
    }

    // Gone for good.
    b.propose(Entry::Drain { member: c.member(), drain: true }).unwrap();
    a.wait("it to lose its vote", |known| !known.voters.contains(&MemberId(3)));
    a.propose(Entry::Remove { member: MemberId(3), force: false }).unwrap();
    b.wait("to know", |known| known.map.is_removed(MemberId(3)));
    let b_identity = b.security.identity().unwrap().clone();
    b.wait("it to be refused", |_| b_identity.is_removed(ecotone_identity::MemberId::from_number(3)));
    let asked = c.propose(Entry::Set { name: "x".into(), value: Some("y".into()) });
    assert!(asked.is_err(), "{asked:?}");
    // Nobody sends it the entry, and it learns by being refused.
    c.wait("to hear that it is removed", Known::is_removed);
    assert!(!c.map().is_removed(c.member()) && !c.known().leads());
    let asked = c.propose(Entry::Set { name: "x".into(), value: Some("y".into()) });
    assert!(matches!(&asked, Err(Error::Refused(why)) if why.contains("removed")), "{asked:?}");
}

#[test]
fn a_federation_of_one_knows_all_of_its_log_as_soon_as_it_starts() {
    let root = tempfile::tempdir().unwrap();
    let a = first(root.path().join("a"), true);
    a.wait("to lead", |known| known.leads());
    a.propose(Entry::Set { name: "x".into(), value: Some("y".into()) }).unwrap();
    let map = a.map();
    let folder = a.stop();
    let a = TestServer::start(folder, None, &Kind::default()).unwrap();
    // Before it leads, and for good.
    assert_eq!(a.map().settings, map.settings);
    assert_eq!(a.map().shards, map.shards);
    a.membership().issue_token().unwrap();
    let mut following = a.membership().following();
    a.wait("to lead", |known| {
        assert_eq!(known.map.settings.len(), 1, "what was known is not forgotten");
        known.leads()
    });
    assert_eq!(following.borrow_and_update().map.shards, map.shards);
}

#[test]
fn a_log_that_is_another_servers_or_gone_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let a = first(root.path().join("a"), true);
    a.wait("to lead", |known| known.leads());
    assert_eq!(a.map().shards.len(), 1);
    let token = a.membership().issue_token().unwrap();
    let b = join(root.path().join("b"), "b", &token, &a.address, &Kind::default()).unwrap();
    b.wait("to be active", active(2));
    let (a, b) = (a.stop(), b.stop());
    let aside = root.path().join("aside");
    std::fs::rename(a.join("control"), &aside).unwrap();
    assert!(!folder::is_there(&a.join("control")));
    let missing = TestServer::start(a.clone(), None, &Kind::default()).err().unwrap();
    assert!(matches!(missing, Error::Usage(_)), "{missing}");
    std::fs::remove_dir_all(a.join("control")).unwrap();
    std::fs::rename(b.join("control"), a.join("control")).unwrap();
    let copied = TestServer::start(a, None, &Kind::default()).err().unwrap();
    assert!(copied.to_string().contains("copied"), "{copied}");
}
