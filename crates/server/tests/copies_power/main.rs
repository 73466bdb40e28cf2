//! A loss of power of one server and of all at once, at every moment of the life of a shard with
//! three copies: what each level and durability promises is what survives (docs, "What each level
//! promises").
//!
//! A shard is written and copied by real stores, directories and machines, and the whole process is
//! recorded ([`calls`]). Right before or after syncs, and at some moments between, the disks of
//! some of its servers are made as a loss of power would leave them ([`disk`]), while the processes
//! of the others are killed at that moment: all start again with what they have, and the control
//! plane with what it had decided. Then a primary is there by itself wherever it has to be, it
//! holds what was acknowledged and nothing that was not written, the shard takes writes again, and
//! all copies come to hold the same.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

#[path = "../../../io/tests/common/calls.rs"]
mod calls;
mod disk;
#[path = "../../../engine/tests/common/random.rs"]
mod random;
mod world;
mod writes;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use calls::Call;
use disk::Image;
use ecotone_engine::{OpenMode, Store, StoreSettings};
use ecotone_replica::commit::{Durability, seals_needed};
use random::{Random, soak_time, with_seeds};
use world::{Note, Profile, SERVERS, SHARD, World, count_in, folder};
use writes::{contents_after, contents_of};

/// Rounds of a life.
const ROUNDS: usize = 400;
/// Moments that are looked at beside those at a sync, and of those about.
const ELSEWHERE: usize = 50;
const SYNCS: usize = 80;
/// One in so many of these moments ends with a look at all copies.
const COMPARED: usize = 4;

/// A life, as it was recorded.
struct Life {
    seed: u64,
    profile: Profile,
    calls: Vec<Call>,
    notes: Vec<Note>,
    decided: Vec<ecotone_control::machine::Machine>,
}

fn directory_in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn live(profile: Profile, seed: u64) -> Life {
    let root = directory_in_memory();
    let mut random = Random::new(seed);
    let mut world = World::found(root.path(), profile, seed);
    let (mut written, mut relocated) = (0, 0);
    let begin = Instant::now();
    let (mut round, mut epoch, mut has_changed) = (0, None, false);
    // GC goes on in a time of its own.
    while round < ROUNDS || relocated == 0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "GC never begins");
        round += 1;
        for _ in 0..random.below(5) {
            written += usize::from(world.write(written + 1, &writes::write(seed, written + 1)));
        }
        if written > 0 && *epoch.get_or_insert(world.shard().epoch) != world.shard().epoch {
            // Another primary, which may lack what nobody else has: numbers would not go on.
            has_changed = true;
            break;
        }
        if random.once_in(60) {
            // Long enough, every other time, to leave the set.
            world.cut_off(random.below(SERVERS), *random.of(&[10, 40]));
        }
        if let Some(store) = world.store() {
            match random.below(60) {
                0 => store.flush(true).unwrap(),
                1 => store.compact(..).unwrap(),
                _ => (),
            }
            relocated = store.value_log().map_or(0, |log| log.relocated_bytes).max(relocated);
        }
        world.round();
    }
    let acknowledged = world.acknowledged();
    assert!(
        has_changed || acknowledged.iter().all(|writes| *writes > 100),
        "{acknowledged:?} of {written} are acknowledged"
    );
    world.stop();
    let calls = world.recorder().take();
    let mut whole = Image::default();
    calls.iter().for_each(|call| whole.apply(call));
    whole.assert_is(root.path());
    let (notes, decided) = (std::mem::take(&mut world.notes), std::mem::take(&mut world.decided));
    Life { seed, profile, calls, notes, decided }
}

/// What is known at a moment.
#[derive(Debug, Clone, Default)]
struct Promises {
    begun: usize,
    /// By level.
    acknowledged: [usize; 3],
    decided: usize,
    /// By server.
    synced: [usize; SERVERS],
}

impl Promises {
    fn hear(&mut self, note: &Note) {
        match *note {
            Note::Begun(write) => self.begun = write,
            Note::Acknowledged(level, writes) => self.acknowledged[level] = writes,
            Note::Decided(place) => self.decided = place,
            Note::SaidSynced(at, writes) => self.synced[at] = writes,
        }
    }
}

/// What was met.
#[derive(Debug, Default)]
struct Met {
    forced: usize,
    lost_at_one: usize,
}

fn check(life: &Life, image: &Image, promises: &Promises, compares: bool, random: &mut Random, moment: &str) -> Met {
    let mut met = Met::default();
    let lost: BTreeSet<usize> = match random.below(8) {
        // All processes die, and no machine.
        0 => BTreeSet::new(),
        1..5 => (0..SERVERS).collect(),
        _ => [random.below(SERVERS)].into(),
    };
    let moment = format!("{moment}, power of {lost:?}, {promises:?}");
    let machine = life.decided[promises.decided].clone();
    let shard = machine.map().shards[&SHARD].clone();
    let root = directory_in_memory();
    image.after_power_loss(root.path(), &lost.iter().map(|at| folder(*at)).collect(), random);
    let mut boots = [0; SERVERS];
    lost.iter().for_each(|at| boots[*at] = 1);
    let mut world = World::revive(root.path(), life.profile, random.next(), machine, boots);

    // Whoever is in the set has been whole.
    let stays = shard.in_sync.iter().filter(|member| !lost.contains(&(member.0 as usize - 1))).count();
    let whole = if life.profile.durability == Durability::Synced { shard.in_sync.len() } else { stays };
    let mut least = promises.acknowledged[1].max(promises.acknowledged[2]);
    let ends = world.runs_until(|world| world.is_serving() || world.needs_force);
    assert!(ends, "{moment}: nobody serves: {}", world.describe());
    if world.needs_force && !world.is_serving() {
        assert!(whole < seals_needed(shard.in_sync.len()), "{moment}: force is needed: {}", world.describe());
        met.forced += 1;
        let by = world.force();
        least = promises.synced[by];
        assert!(world.runs_until(World::is_serving), "{moment}: force does not help: {}", world.describe());
    }
    let store = world.store().unwrap();
    let found = count_in(store);
    assert!(
        (least..=promises.begun).contains(&found),
        "{moment}: {found} writes are there, and at least {least} should be"
    );
    assert!(
        contents_of(store) == contents_after(life.seed, found),
        "{moment}: not what was there after {found} writes"
    );
    met.lost_at_one += usize::from(found < promises.acknowledged[0]);

    // It goes on.
    let number = found + 1;
    assert!(world.write(number, &writes::write(life.seed, number)), "{moment}: it takes no write");
    let is_well = world.runs_until(|world| world.acknowledged()[2] == number && world.is_same());
    assert!(is_well, "{moment}: it does not become whole: {}", world.describe());
    if compares {
        let expected = contents_after(life.seed, number);
        for path in world.stop() {
            let store = Store::open(&path, OpenMode::ReadOnly, StoreSettings::default());
            let store = store.unwrap_or_else(|error| panic!("{moment}: {error}"));
            assert!(contents_of(&store) == expected, "{moment}: {path:?} differs");
        }
    }
    met
}

fn survives(durability: Durability) {
    with_seeds(1, |seed| {
        let mut random = Random::new(seed);
        let profile = Profile { durability, min_in_sync: 1 + random.below(2) };
        let life = live(profile, seed);
        let is_sync = |call: &Call| matches!(call, Call::Synced { .. });
        let mut moments: Vec<usize> = (0..life.calls.len()).filter(|at| is_sync(&life.calls[*at])).collect();
        let many = moments.len();
        if soak_time().is_zero() {
            moments.retain(|_| random.below(many) < SYNCS);
        }
        moments.iter_mut().for_each(|at| *at += random.below(2));
        moments.extend((0..ELSEWHERE).map(|_| random.below(life.calls.len() + 1)));
        moments.sort_unstable();
        let (mut image, mut promises, mut done) = (Image::default(), Promises::default(), 0);
        let (mut forced, mut lost_at_one) = (0, 0);
        for (count, moment) in moments.into_iter().enumerate() {
            for call in &life.calls[done..moment] {
                image.apply(call);
                if let Call::Noted(note) = call {
                    promises.hear(&life.notes[*note]);
                }
            }
            done = moment;
            if moment < 10 {
                // Before that the folders of the servers may not be there.
                continue;
            }
            let name = format!("{durability:?}, seed {seed}, after {moment} of {} calls", life.calls.len());
            let met = check(&life, &image, &promises, count % COMPARED == 0, &mut random, &name);
            forced += met.forced;
            lost_at_one += met.lost_at_one;
        }
        assert!(forced > 0 || durability == Durability::Synced, "nothing that was not synced was ever missed");
        println!("{durability:?}: {many} syncs, {} calls, force {forced}, lost at one {lost_at_one}", life.calls.len());
    });
}

#[test]
fn what_is_acknowledged_survives_a_loss_of_power_where_copies_sync_it() {
    survives(Durability::Synced);
}

#[test]
fn what_is_acknowledged_survives_a_loss_of_power_of_one_and_of_all_as_far_as_it_was_synced() {
    survives(Durability::Received);
}
