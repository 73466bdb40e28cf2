//! SIGKILL under load: whatever was acknowledged to a client is there when the server comes up
//! again, and a transaction is there whole or not at all.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

mod client;
mod clock;
#[path = "../common/mod.rs"]
mod common;
mod copies;
mod families;
mod flush;
mod passing;
#[path = "../../../engine/tests/common/random.rs"]
mod random;
mod vast;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use client::Client;
use common::{Server, configuration};
use families::Family;

/// Kills of a server.
const KILLS: u64 = 24;

/// A server that is to end does so within this, however busy the machine and its store.
const ENDS_WITHIN: Duration = Duration::from_secs(90);

/// Writers of each family.
const WRITERS: u64 = 2;

/// All families.
fn families() -> impl Iterator<Item = &'static Family> {
    let lasting = families::FAMILIES.iter().chain(&copies::FAMILIES).chain(&vast::FAMILIES).chain(&windows::FAMILIES);
    lasting.chain(&passing::FAMILIES)
}

/// What there is by every count of keys.
fn check_counts(client: &mut Client) {
    let mut names = BTreeSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let reply = client.ask(&format!("SCAN {cursor} COUNT 100")).unwrap();
        let mut words = reply.split(' ').filter(|word| !word.is_empty()).map(str::to_owned);
        cursor = words.next().unwrap();
        names.extend(words);
        if cursor == "0" {
            break;
        }
    }
    let count = names.len().to_string();
    assert_eq!(client.ask("DBSIZE").unwrap(), count);
    let all: Vec<String> = names.into_iter().collect();
    assert_eq!(client.ask(&format!("EXISTS {}", all.join(" "))).unwrap(), count);
}

/// Asks until `key` is gone. `None` where the server is.
fn is_seen_gone(client: &mut Client, key: &str) -> Option<()> {
    while client.ask(&format!("EXISTS {key}"))? != "0" {}
    Some(())
}

/// Writes from `from` on until the server is gone: the last number that was acknowledged.
fn write(server: &Server, family: &Family, who: &str, from: u64, written: &AtomicU64) -> u64 {
    let mut client = Client::of(server);
    let mut acknowledged = from;
    loop {
        for request in (family.write)(who, acknowledged + 1) {
            if client.ask(&request).is_none() {
                return acknowledged;
            }
        }
        if let Some(key) = (family.passes)(who, acknowledged + 1)
            && is_seen_gone(&mut client, &key).is_none()
        {
            return acknowledged;
        }
        acknowledged += 1;
        written.fetch_add(1, Ordering::Relaxed);
    }
}

/// The last write of each writer of each family.
type Writes = BTreeMap<(usize, u64), u64>;

/// Lets all families write, ends the server by `end` after so many writes, and returns what each
/// writer was told when all connections have ended.
fn end_under_load(server: &Server, end: impl FnOnce(&Server), from: &Writes, after: u64) -> Writes {
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let written = &written;
        let mut writers = Vec::new();
        for (which, family) in families().enumerate() {
            for writer in 0..WRITERS {
                let from = from.get(&(which, writer)).copied().unwrap_or(0);
                let handle = scope.spawn(move || write(server, family, &writer.to_string(), from, written));
                writers.push(((which, writer), handle));
            }
        }
        let has_ended =
            |writers: &[(_, ScopedJoinHandle<'_, u64>)]| writers.iter().any(|(_, writer)| writer.is_finished());
        while written.load(Ordering::Relaxed) < after && !has_ended(&writers) {
            std::thread::yield_now();
        }
        let are_all_there = !has_ended(&writers);
        end(server);
        let writes = writers.into_iter().map(|(of, handle)| (of, handle.join().unwrap())).collect();
        assert!(are_all_there, "the server has ended by itself");
        writes
    })
}

/// Finds what was acknowledged to each writer by `client`'s server: what is there.
fn check(client: &mut Client, acknowledged_by_writer: &Writes, when: &str) -> Writes {
    let families: Vec<&Family> = families().collect();
    let mut found = Writes::new();
    for ((which, writer), acknowledged) in acknowledged_by_writer {
        let last = (families[*which].last)(client, &writer.to_string());
        // The one that was under way when it ended may be there.
        assert!(
            last == *acknowledged || last == acknowledged + 1,
            "{when}, family {which}, writer {writer}: {acknowledged} was acknowledged, {last} is there"
        );
        found.insert((*which, *writer), last);
    }
    check_counts(client);
    found
}

fn is_sound(folder: &Path) {
    let verified = Command::new(env!("CARGO_BIN_EXE_ecotone")).arg("verify").arg(folder.join("data/store")).output();
    let verified = verified.unwrap();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
}

fn nothing_is_lost() {
    for durability in ["none", "everysec", "always"] {
        let folder = tempfile::tempdir().unwrap();
        let more =
            format!("listen = \"127.0.0.1:0\"\n[store]\ndurability = \"{durability}\"\nmemtable_bytes = 1048576\n");
        let file = configuration(folder.path(), &more);
        let mut expected = Writes::new();
        for kill in 0..KILLS / 3 {
            let acknowledged_by_writer =
                end_under_load(&Server::with(&file), |server| server.signal("-KILL"), &expected, 650 + 900 * kill);
            let server = Server::with(&file);
            expected = check(&mut Client::of(&server), &acknowledged_by_writer, &format!("{durability}, kill {kill}"));
            server.terminate();
        }
        for ((which, writer), last) in &expected {
            let family = families().nth(*which).unwrap();
            assert!(*last > family.least, "{durability}, family {which}, writer {writer}: {last} writes are too few");
        }
        is_sound(folder.path());
    }
}

#[test]
fn nothing_that_was_acknowledged_is_lost_by_a_kill_in_any_durability() {
    // What is written in which order is left to the threads.
    random::with_seeds(1, |_| nothing_is_lost());
}

#[test]
fn a_server_that_is_told_to_end_while_its_store_holds_writers_up_does_so_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    // Every few writes there is a flush, and every few of these the writers wait for a compaction.
    let store = "durability = \"always\"\nmemtable_bytes = 65536\nl0_compaction_trigger = 2\nl0_slowdown_trigger = 2\nl0_stop_trigger = 3\n";
    let file = configuration(folder.path(), &format!("listen = \"127.0.0.1:0\"\n[store]\n{store}"));
    let mut expected = Writes::new();
    for (end, how) in ["-TERM", "SHUTDOWN", "-INT", "SHUTDOWN NOSAVE", "SHUTDOWN NOW FORCE"].into_iter().enumerate() {
        let server = Server::with(&file);
        let ended = |server: &Server| match how.strip_prefix('-') {
            Some(_) => server.signal(how),
            // The connection ends, and that is all the reply there is.
            None => assert_eq!(Client::of(server).ask(how), None),
        };
        let acknowledged_by_writer = end_under_load(&server, ended, &expected, 1000 + 100 * end as u64);
        let began = Instant::now();
        server.ends_well();
        assert!(began.elapsed() < ENDS_WITHIN, "{:?}", began.elapsed());
        let server = Server::with(&file);
        expected = check(&mut Client::of(&server), &acknowledged_by_writer, &format!("ended by {how}"));
        server.terminate();
    }
    is_sound(folder.path());
}
