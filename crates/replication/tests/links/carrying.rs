//! Messages: their order, their loss, and who may say what.

use std::time::{Duration, Instant};

use ecotone_control::ids::{DirectoryId, Epoch, MemberId};
use ecotone_control::map::ServerState;
use ecotone_replica::position::{BootId, Incarnation, Position};
use ecotone_replica::promotion::SealReport;
use ecotone_replica::wire::{Message, Parcel};
use ecotone_replication::links::MAX_WAITING_BYTES;
use tempfile::tempdir;

use crate::common::{Federation, SHARD, heartbeat, items, wait};

const ONE: MemberId = MemberId(1);
const TWO: MemberId = MemberId(2);
const THREE: MemberId = MemberId(3);

#[test]
fn what_is_sent_comes_in_order_within_its_kind() {
    let root = tempdir().unwrap();
    let federation = Federation::new(root.path(), 3);
    let [one, two, three] = &federation.servers[..] else { panic!("three") };
    let sent: Vec<Parcel> = (0..100).map(|at| items(at, vec![at as u8; 5_000])).collect();
    for (at, parcel) in sent.iter().enumerate() {
        one.links().send(TWO, &heartbeat(at as u64));
        one.links().send(TWO, parcel);
        one.links().send(THREE, &heartbeat(at as u64));
        two.links().send(ONE, &heartbeat(1_000 + at as u64));
    }
    let until: Vec<u64> = (0..100).collect();
    for server in [two, three] {
        wait("heartbeats", || server.notes.heartbeats().len() == 100);
        assert_eq!(server.notes.heartbeats(), until);
    }
    wait("the other way", || one.notes.heartbeats().len() == 100);
    assert!(one.notes.small.lock().iter().all(|(from, _)| *from == TWO));
    wait("items", || two.notes.bulk.lock().len() == 100);
    let came: Vec<(MemberId, Parcel)> = two.notes.bulk.lock().clone();
    assert!(came.iter().map(|(from, parcel)| (from, parcel)).eq(sent.iter().map(|parcel| (&ONE, parcel))));
    assert!(one.links().is_reachable(TWO) && two.links().is_reachable(ONE));
    assert_eq!(one.links().free_bytes(TWO), MAX_WAITING_BYTES);
}

#[test]
fn a_server_that_goes_is_noticed_and_found_again() {
    let root = tempdir().unwrap();
    let mut federation = Federation::new(root.path(), 2);
    let [one, two] = &mut federation.servers[..] else { panic!("two") };
    one.links().send(TWO, &heartbeat(1));
    wait("the first one", || two.notes.heartbeats() == [1]);
    two.hang_up();
    let mut next = 1;
    wait("that it is gone", || {
        next += 1;
        one.links().send(TWO, &heartbeat(next));
        !one.links().is_reachable(TWO) && one.notes.unreachable.lock().contains(&TWO)
    });
    // What is sent while it is gone is lost, and nobody waits for it.
    let lost = next + 1..next + 50;
    lost.clone().for_each(|at| one.links().send(TWO, &heartbeat(at)));
    std::thread::sleep(Duration::from_millis(300));
    two.listen();
    let mut next = 1_000;
    wait("that it is back", || {
        next += 1;
        one.links().send(TWO, &heartbeat(next));
        two.notes.heartbeats().iter().any(|at| *at > 1_000) && one.links().is_reachable(TWO)
    });
    let came = two.notes.heartbeats();
    assert!(came.is_sorted(), "{came:?}");
    assert!(lost.clone().any(|at| !came.contains(&at)), "all of {lost:?} came: {came:?}");
}

#[test]
fn heartbeats_come_while_items_are_stuck() {
    let root = tempdir().unwrap();
    let federation = Federation::new(root.path(), 2);
    let [one, two] = &federation.servers[..] else { panic!("two") };
    two.notes.set_stuck(true);
    // Noise: it is to stay as long as it is.
    let mut state = 1_u32;
    let noise = (0..1 << 20).map(|_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    });
    let noise: Vec<u8> = noise.collect();
    let begun = Instant::now();
    // More than all queues and windows hold.
    let all = 2 * MAX_WAITING_BYTES as u64 / noise.len() as u64;
    (0..all).for_each(|at| one.links().send(TWO, &items(at, noise.clone())));
    wait("the queue to be full", || one.links().free_bytes(TWO) < noise.len() * 32);
    for at in 0..50 {
        one.links().send(TWO, &heartbeat(at));
        let sent = Instant::now();
        wait("a heartbeat", || two.notes.heartbeats().len() == at as usize + 1);
        assert!(sent.elapsed() < Duration::from_secs(2), "{:?}", sent.elapsed());
    }
    assert!(two.notes.bulk.lock().is_empty());
    two.notes.set_stuck(false);
    wait("what waited", || one.links().free_bytes(TWO) == MAX_WAITING_BYTES);
    let mut session = all;
    wait("new ones", || {
        session += 1;
        one.links().send(TWO, &items(session, b"x".to_vec()));
        two.notes.bulk.lock().iter().any(|(_, parcel)| parcel.bytes[0] == b"x")
    });
    let came = two.notes.bulk.lock().len() as u64;
    assert!(came < session, "all of {session} came in {:?}: nothing was bounded", begun.elapsed());
}

#[test]
fn only_servers_of_the_map_are_listened_to() {
    let root = tempdir().unwrap();
    let mut federation = Federation::new(root.path(), 3);
    federation.map.shards.get_mut(&SHARD).unwrap().copies.remove(&THREE);
    federation.publish();
    let [one, two, three] = &federation.servers[..] else { panic!("three") };
    // It has a certificate and no copy: it may say how it is, and nothing about the shard.
    let report = SealReport {
        shard: SHARD,
        member: THREE,
        epoch: Epoch(1),
        incarnation: Incarnation { directory: DirectoryId([1; 16]), boot: BootId([1; 16]) },
        position: Position::default(),
        is_whole: true,
    };
    three.links().send(ONE, &Message::Sealed(report).into());
    three.links().send(ONE, &Message::Verified { shard: SHARD, epoch: Epoch(1), is_sound: true }.into());
    three.links().send(ONE, &items(1, b"x".to_vec()));
    three.links().send(ONE, &heartbeat(7));
    wait("the heartbeat", || one.notes.heartbeats() == [7]);
    assert_eq!(one.notes.small.lock().len(), 1);
    // One that has a copy speaks for itself only.
    two.links().send(ONE, &Message::Sealed(report).into());
    two.links().send(ONE, &Message::Sealed(SealReport { member: TWO, ..report }).into());
    wait("a report", || one.notes.small.lock().len() == 2);
    assert_eq!(one.notes.small.lock()[1], (TWO, Message::Sealed(SealReport { member: TWO, ..report })));
    assert!(one.notes.bulk.lock().is_empty());
    // Not in the map any more, though its certificate is taken still.
    federation.map.servers.get_mut(&THREE).unwrap().state = ServerState::Removed;
    one.know(&federation.map, Some(ONE));
    three.links().send(ONE, &heartbeat(8));
    two.links().send(ONE, &heartbeat(9));
    wait("the other one", || one.notes.heartbeats().contains(&9));
    std::thread::sleep(Duration::from_millis(200));
    assert!(!one.notes.heartbeats().contains(&8));
}

#[test]
fn what_a_leader_asks_is_taken_from_the_leader() {
    let root = tempdir().unwrap();
    let federation = Federation::new(root.path(), 2);
    let [one, two] = &federation.servers[..] else { panic!("two") };
    let asked: Vec<Message> = vec![
        Message::Seal(SHARD, Epoch(1)),
        Message::Verify(SHARD, Epoch(1)),
        Message::Repair { shard: SHARD, epoch: Epoch(1), from: vec![ONE] },
        Message::HandOver { shard: SHARD, epoch: Epoch(1), to: None },
        Message::Force { shard: SHARD, epoch: Epoch(1) },
    ];
    let ask = |times| {
        asked.iter().for_each(|message| two.links().send(ONE, &message.clone().into()));
        two.links().send(ONE, &heartbeat(times));
        wait("the heartbeat", || one.notes.heartbeats().len() as u64 == times);
    };
    ask(1);
    assert_eq!(one.notes.small.lock().len(), 1, "server 1 leads");
    // People may have asked server 2, which asks the leader.
    let wished = Message::HandOver { shard: SHARD, epoch: Epoch(1), to: Some(TWO) };
    two.links().send(ONE, &wished.clone().into());
    wait("what people wish", || one.notes.small.lock().last() == Some(&(TWO, wished.clone())));
    one.notes.small.lock().pop();
    one.know(&federation.map, Some(TWO));
    ask(2);
    let came: Vec<Message> = one.notes.small.lock().drain(1..).map(|(_, message)| message).collect();
    assert_eq!(came[..asked.len()], asked);
}

#[test]
fn calls_end_with_who_makes_them() {
    let root = tempdir().unwrap();
    let mut federation = Federation::new(root.path(), 2);
    let [one, two] = &mut federation.servers[..] else { panic!("two") };
    one.links().send(TWO, &heartbeat(1));
    one.links().send(TWO, &items(1, b"x".to_vec()));
    wait("both", || two.notes.heartbeats() == [1] && two.notes.bulk.lock().len() == 1);
    let tasks = || one.calling().metrics().num_alive_tasks();
    let before = tasks();
    one.drop_links();
    wait("its tasks to end", || one.calling().metrics().num_alive_tasks() + 2 <= before);
}
