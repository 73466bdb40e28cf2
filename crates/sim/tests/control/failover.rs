//! How long until a change is decided again, in virtual time: `cargo test --release -p ecotone-sim
//! failover -- --nocapture` prints it.

use ecotone_control::entry::Entry;
use ecotone_control::node::{COMPACT_ENTRIES, KEEP_ENTRIES};
use ecotone_sim::random::Random;
use ecotone_sim::{Faults, Profile, World};

use super::{first_seed, profile};

const MS: u64 = 1_000;
const TIMES: usize = 200;
const LIMIT_MS: u64 = 1_500;
/// Round trips of 10 to 50 ms.
const LATENCY_MS: (u64, u64) = (5, 25);

fn quiet() -> Profile {
    Profile { faults: Faults::default(), changes: 0, latency_ms: LATENCY_MS, disk_ms: (1, 10), ..profile() }
}

fn settled(seed: u64, profile: Profile) -> World {
    let compare = profile.servers < 50;
    let mut world = World::new(seed, profile);
    world.compare_maps(compare);
    world.settle().unwrap_or_else(|violation| panic!("{violation}"));
    world
}

fn settles(world: &mut World, seconds: u64) {
    let is_settled = world.run_until(world.now_us() + seconds * 1_000 * MS, World::is_settled).unwrap();
    assert!(is_settled, "{}", world.describe());
}

/// Asks whoever leads, again each 10 ms, until a change is decided; how long that took.
fn decide(world: &mut World, value: u64) -> u64 {
    let begin = world.now_us();
    let mut asks = Vec::new();
    loop {
        asks.extend(world.ask_leader(Entry::Set { name: "failover".into(), value: Some(value.to_string()) }));
        let end = world.now_us() + 10 * MS;
        let is_decided = |world: &World| asks.iter().any(|ask| world.answer(*ask).is_some());
        if world.run_until(end, is_decided).unwrap() {
            return world.now_us() - begin;
        }
        assert!(world.now_us() - begin < 60_000 * MS, "nothing is decided in a minute");
    }
}

/// The medians and the 99th percentiles, in milliseconds.
/// How often servers compact their logs.
const AS_SERVERS_DO: (usize, u64) = (COMPACT_ENTRIES, KEEP_ENTRIES);

fn measure(name: &str, servers: usize, fault: impl Fn(&mut World, usize)) -> u64 {
    let mut random = Random::new(first_seed());
    let mut world = settled(first_seed(), Profile { servers, ..quiet() });
    let mut times: Vec<u64> = (0..TIMES)
        .map(|time| {
            // At any point between heartbeats.
            world.run_for(random.below(1_000 * MS)).unwrap();
            let leader = world.leader().unwrap();
            fault(&mut world, leader);
            let took = decide(&mut world, time as u64);
            world.start_after(leader, 0);
            settles(&mut world, 60);
            took / MS
        })
        .collect();
    times.sort_unstable();
    let (half, most) = (times[TIMES / 2], times[TIMES * 99 / 100 - 1]);
    println!("leader {name}, {servers} servers: p50 {half} ms, p99 {most} ms, longest {} ms", times[TIMES - 1]);
    most
}

#[test]
fn failover_of_a_killed_leader() {
    for servers in [3, 5] {
        let most = measure("killed", servers, |world, leader| world.kill(leader));
        assert!(most <= LIMIT_MS, "{most} ms");
    }
}

#[test]
fn failover_of_a_leader_that_stands_still_is_cut_off_or_jumps() {
    let still = measure("standing still", 5, |world, leader| world.pause(leader, 4_000 * MS));
    let mute = measure("cut off one way: it is not heard", 5, |world, leader| world.cut_off(leader, false, 4_000 * MS));
    let deaf = measure("cut off one way: it hears nothing", 5, |world, leader| world.deafen(leader, 4_000 * MS));
    let cut = measure("cut off", 5, |world, leader| world.cut_off(leader, true, 4_000 * MS));
    let jump = measure("whose clock jumps by 5 s", 5, |world, leader| world.jump(leader, 5_000 * MS).unwrap());
    for most in [still, mute, deaf, cut, jump] {
        assert!(most <= LIMIT_MS, "{most} ms");
    }
}

#[test]
fn failover_of_two_hundred_servers_and_a_thousand_shards() {
    const SERVERS: usize = 200;
    const SHARDS: usize = 1_000;
    let mut longest = 0;
    let mut world = settled(
        first_seed(),
        Profile { servers: SERVERS, shards: SHARDS, zones: 10, compaction: AS_SERVERS_DO, ..quiet() },
    );
    for time in 0..3 {
        let leader = world.leader().unwrap();
        let dead = world.member(leader).unwrap();
        let begin = world.now_us();
        world.kill(leader);
        // The new leader takes the dead one's shards from it, each by an entry.
        let leads = world.run_until(begin + 60_000 * MS, |world| world.leader().is_some()).unwrap();
        assert!(leads, "{}", world.describe());
        let map = world.map(world.leader().unwrap()).unwrap();
        let orphans: Vec<_> = map
            .shards
            .iter()
            .filter(|(_, shard)| shard.primary == Some(dead))
            .map(|(id, shard)| Entry::SetPrimary { shard: *id, epoch: shard.epoch, primary: None })
            .collect();
        let taken: Vec<u64> = orphans.into_iter().filter_map(|entry| world.ask_leader(entry)).collect();
        decide(&mut world, time);
        let is_over = |world: &World| taken.iter().all(|ask| world.answer(*ask).is_some()) && world.has_converged();
        assert!(world.run_until(begin + 60_000 * MS, is_over).unwrap());
        let took = (world.now_us() - begin) / MS;
        println!("{SERVERS} servers, {SHARDS} shards: all have the map {took} ms after the leader's death");
        longest = longest.max(took);
        world.start_after(leader, 0);
        settles(&mut world, 120);
    }
    assert!(longest <= 2_000, "{longest} ms");
}
