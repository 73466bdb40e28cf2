//! What was acknowledged survives the death of the process.
//!
//! The test starts itself again as a child that writes and reports each acknowledged write on its
//! output, kills it with SIGKILL in the middle, and looks for every acknowledged write in the
//! store.

use crate::common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::value_of;
use ecotone_engine::{Direction, Durability, Error, LockHolder, OpenMode, Store, StoreSettings, WriteOptions};

const DIRECTORY: &str = "ECOTONE_TEST_DIRECTORY";
const DURABILITY: &str = "ECOTONE_TEST_DURABILITY";
const SEPARATED: &str = "ECOTONE_TEST_SEPARATED";

/// Writes of the child: batches of this many keys, which must be there together or not at all.
const BATCH: u64 = 3;

fn key(thread: u64, number: u64, part: u64) -> Vec<u8> {
    format!("t{thread}-n{number:08}-p{part}").into_bytes()
}

/// Not a test of its own: the child that the tests below start. Without its variables it has
/// nothing to do.
#[test]
fn child() {
    let (Ok(directory), Ok(name)) = (std::env::var(DIRECTORY), std::env::var(DURABILITY)) else {
        return;
    };
    let mut options = StoreSettings { durability: name.parse().unwrap(), ..common::collecting_early(64 * 1024) };
    if std::env::var_os(SEPARATED).is_none() {
        options.separation = None;
    }
    let store = Store::open(Path::new(&directory), OpenMode::CreateOrOpen, options).unwrap();
    let generation = store.properties().unwrap().last_sequence;
    println!("opened {generation}");
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let store = &store;
            scope.spawn(move || {
                for number in 0.. {
                    let mut batch = ecotone_engine::Batch::new();
                    for part in 0..BATCH {
                        let key = key(thread, number, part);
                        batch.put(&key, &value_of(&key, generation, 200)).unwrap();
                    }
                    store.write(&batch, WriteOptions::default()).unwrap();
                    // One write to the pipe for a line: lines of two threads do not mix.
                    let line = format!("acknowledged {thread} {number} {generation}\n");
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
}

fn start(directory: &Path, durability: Durability, separated: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    if separated {
        command.env(SEPARATED, "yes");
    }
    command
        .args(["durability::child", "--exact", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .env(DURABILITY, durability.name())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills children in the middle of `writes` acknowledged writes, several times over, and checks the
/// store after each.
fn nothing_acknowledged_is_lost(durability: Durability, separated: bool, rounds: usize, writes: usize) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    for round in 0..rounds {
        let mut child = start(&path, durability, separated);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acknowledged = Vec::new();
        while acknowledged.len() < writes + round * 37 {
            let line = lines.next().expect("the child writes until it is killed").unwrap();
            acknowledged.extend(parse(&line));
        }
        if round == 0 {
            let refused = Store::open(&path, OpenMode::Open, common::small()).unwrap_err();
            assert!(
                matches!(refused, Error::Locked { holder: LockHolder::AnotherProcess { pid: Some(_) }, .. }),
                "{refused}"
            );
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What it said before it died counts as well; a line cut short does not.
        acknowledged.extend(lines.map_while(Result::ok).filter_map(|line| parse(&line)));

        // The dead process's lock is no hindrance.
        let store = Store::open(&path, OpenMode::Open, common::small()).unwrap();
        for (thread, number, generation) in &acknowledged {
            for part in 0..BATCH {
                let key = key(*thread, *number, part);
                let found = store.get(&key).unwrap();
                assert_eq!(
                    found.as_deref(),
                    Some(&value_of(&key, *generation, 200)[..]),
                    "write {number} of thread {thread}"
                );
            }
        }
        let entries = store.scan(.., Direction::Forward, None).unwrap().map(Result::unwrap).count();
        assert!((entries as u64).is_multiple_of(BATCH), "a batch is there in part");
        store.close().unwrap();
    }
}

fn parse(line: &str) -> Option<(u64, u64, u64)> {
    let mut words = line.strip_prefix("acknowledged ")?.split(' ').map(|word| word.parse().ok());
    Some((words.next()??, words.next()??, words.next()??))
}

#[test]
fn a_kill_takes_nothing_without_sync() {
    nothing_acknowledged_is_lost(Durability::None, false, 3, 4_000);
}

#[test]
fn a_kill_takes_nothing_with_a_sync_every_second() {
    nothing_acknowledged_is_lost(Durability::EverySecond, false, 3, 4_000);
}

#[test]
fn a_kill_takes_nothing_with_a_sync_always() {
    nothing_acknowledged_is_lost(Durability::Always, false, 3, 300);
}

#[test]
fn a_kill_takes_no_separated_value_without_sync() {
    nothing_acknowledged_is_lost(Durability::None, true, 20, 2_000);
}

#[test]
fn a_kill_takes_no_separated_value_with_a_sync_every_second() {
    nothing_acknowledged_is_lost(Durability::EverySecond, true, 20, 2_000);
}

#[test]
fn a_kill_takes_no_separated_value_with_a_sync_always() {
    nothing_acknowledged_is_lost(Durability::Always, true, 5, 200);
}

#[test]
fn always_syncs_before_it_acknowledges_and_the_others_do_not() {
    let (_directory, store) = common::store(StoreSettings { durability: Durability::None, ..common::small() });
    let syncs = |durability| {
        let before = store.counters().wal_syncs;
        store.put_opt(b"k", b"v", WriteOptions { durability, ..WriteOptions::default() }).unwrap();
        store.counters().wal_syncs - before
    };
    assert_eq!(syncs(None), 0);
    assert_eq!(syncs(Some(Durability::None)), 0);
    assert_eq!(syncs(Some(Durability::Always)), 1);
    assert_eq!(syncs(Some(Durability::Always)), 1);
}

#[test]
fn every_second_syncs_soon_after() {
    let (_directory, store) = common::store(StoreSettings { durability: Durability::EverySecond, ..common::small() });
    let before = store.counters().wal_syncs;
    store.put(b"k", b"v").unwrap();
    let began = std::time::Instant::now();
    while store.counters().wal_syncs == before {
        assert!(began.elapsed() < 60 * ecotone_engine::SYNC_INTERVAL, "no sync came");
        std::thread::yield_now();
    }
}
