//! What holds for the machine of garbage collection whatever happens, and that it gets on.

use std::collections::{BTreeMap, BTreeSet};

use ecotone_policy::dedup::plan::Table;
use ecotone_policy::duplicates::{Overlap, ShadowedBytes};
use ecotone_policy::gc::{
    Command, CompactionOutcome, Conditions, Event, GcMachine, GcParameters, Hurry, RemovedRange, SegmentUse,
    StoreState, WriterTimes, ratio,
};
use ecotone_types::units::{Bytes, Seconds, Time};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const MAX_L0_TABLES: u64 = 4;

/// A seeded sequence of numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Once in so many times.
    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

fn conditions() -> Conditions {
    Conditions {
        hurry: Hurry::None,
        free_share: 1.0,
        free_for_copies: Bytes(u64::MAX),
        writers: WriterTimes::default(),
    }
}

/// A driver that keeps the rules by which commands are carried out, and looks whether they are kept
/// by the machine.
struct Driver {
    machine: GcMachine,
    now: f64,
    has_permit: bool,
    throttle: f64,
    candidates: BTreeSet<u32>,
    /// The last that was told.
    store: StoreState,
    tables: Vec<Table>,
    compactions: u64,
}

impl Driver {
    fn new(parameters: GcParameters) -> Self {
        Self {
            machine: GcMachine::new(parameters, MAX_L0_TABLES),
            now: 0.0,
            has_permit: false,
            throttle: 0.0,
            candidates: BTreeSet::new(),
            store: StoreState::default(),
            tables: Vec::new(),
            compactions: 0,
        }
    }

    /// Gives the event, and returns the command that an event has to answer.
    fn handle(&mut self, event: Event) -> Command {
        match &event {
            Event::Inspected { store, .. } => (self.store, self.tables) = ((**store).clone(), store.tables.clone()),
            // Whoever wakes the machine without being asked to has ended what was under way.
            Event::Woken { .. } => self.has_permit = false,
            Event::Permitted { tables } => (self.has_permit, self.tables) = (true, tables.clone()),
            Event::CompactionEnded { outcome, .. } if *outcome != CompactionOutcome::TooLarge => {
                self.has_permit = false
            }
            _ => (),
        }
        let now = Time::from_seconds(self.now);
        let twin = self.machine.clone().handle(now, event.clone());
        let mut commands = self.machine.handle(now, event.clone());
        assert_eq!(commands, twin, "the same event gives the same commands");
        let last = commands.pop().expect("something follows from each event");
        assert!(last.is_answered() && !commands.iter().any(Command::is_answered), "{commands:?} {last:?}");
        for command in commands {
            match command {
                Command::Throttle(share) => {
                    assert!((0.0..=0.9).contains(&share), "{share}");
                    self.throttle = share;
                }
                Command::SetCandidates(candidates) => {
                    let use_of = |segment: &u32| self.store.segments.iter().find(|it| it.segment == *segment);
                    assert!(candidates.iter().all(|segment| use_of(segment).is_some()), "{candidates:?}");
                    // Writers do not come back to a segment, so what was settled once stays so.
                    let mut new = candidates.difference(&self.candidates);
                    assert!(new.all(|segment| use_of(segment).is_some_and(|it| it.settled)), "{candidates:?}");
                    self.candidates = candidates;
                }
                Command::Rest(time) => {
                    assert!(!self.has_permit, "others wait for the permit");
                    assert!(time.0 >= 0.0 && time.0.is_finite());
                    self.now += time.0;
                }
                Command::LeaveAlone(segments, time) => assert!(!segments.is_empty() && time.0 > 0.0),
                Command::AwaitWrites(bytes) => assert!((16 * MIB..=256 * MIB).contains(&bytes.0)),
                _ => (),
            }
        }
        match &last {
            Command::TakePermit(_) => assert!(!self.has_permit),
            Command::CompactTables { merge, .. } => {
                let inputs = merge.inputs.iter().map(|number| self.tables.iter().find(|it| it.number == *number));
                assert!(inputs.into_iter().all(|table| table.is_some_and(|table| !table.is_busy)), "{merge:?}");
            }
            Command::Sleep(wait) => {
                self.has_permit = false;
                let is_settled = self.store.segments.iter().all(|segment| segment.settled);
                if wait.is_none() {
                    assert!(self.throttle == 0.0 && is_settled && !self.store.waits, "nobody would wake it");
                }
                if matches!(event, Event::Failed) {
                    assert_eq!((*wait, self.throttle), (Some(Seconds(1.0)), 0.0));
                }
            }
            _ => (),
        }
        if last.is_compaction() {
            assert!(self.has_permit, "{last:?}");
            self.compactions += 1;
        }
        last
    }
}

/// A store in which everything is possible.
fn any_store(random: &mut Random) -> StoreState {
    let mut store = StoreState::default();
    let segments = random.below(8) as u32;
    for segment in 1..=segments {
        let bytes = (1 + random.below(200)) * MIB;
        let settled = !random.one_in(6);
        store.segments.push(SegmentUse {
            segment,
            bytes: Bytes(bytes),
            referenced: Bytes(random.below(bytes + MIB)),
            settled,
        });
        if random.one_in(4) {
            store.relocated.insert(segment);
        }
        if random.one_in(3) {
            let estimate = random.below(bytes);
            let shadowed = ShadowedBytes { estimate: Bytes(estimate), at_least: Bytes(estimate / 2) };
            store.shadowed.insert(segment, shadowed);
        }
    }
    store.tables = any_tables(random);
    for table in &store.tables {
        let names: Vec<_> = (1..=segments).filter(|_| random.one_in(2)).collect();
        if !names.is_empty() {
            store.referencing.insert(table.number, names);
        }
        if random.one_in(4) {
            store.overlaps.insert(table.number, Overlap { sampled: 100, replacing: random.below(101) });
        }
    }
    store.oldest_wal = random.below(3);
    (store.waits, store.found_unreferenced, store.is_unfinished) =
        (random.one_in(5), random.one_in(5), random.one_in(10));
    (store.has_snapshots, store.has_removed_ranges) = (random.one_in(5), random.one_in(3));
    store.unflushed = Bytes(random.below(80) * MIB);
    store
}

fn any_tables(random: &mut Random) -> Vec<Table> {
    let mut tables = Vec::new();
    let from = random.below(30);
    for level in 0..4_u32 {
        for key in 0..random.below(4) as u8 {
            tables.push(Table {
                number: from + tables.len() as u64,
                level,
                first: vec![key * 10],
                last: vec![key * 10 + if level == 0 { 25 } else { 9 }],
                bytes: Bytes((1 + random.below(20)) * MIB),
                entries: 1000,
                is_busy: random.one_in(8),
            });
        }
    }
    tables
}

fn any_conditions(random: &mut Random) -> Conditions {
    Conditions {
        hurry: [Hurry::None, Hurry::None, Hurry::Idle, Hurry::Thorough][random.below(4) as usize],
        free_share: random.below(101) as f64 / 100.0,
        free_for_copies: Bytes(if random.one_in(3) { random.below(300) * MIB } else { u64::MAX }),
        writers: WriterTimes::default(),
    }
}

/// What may answer a command; now and then something that does not.
fn any_answer(random: &mut Random, command: &Command) -> Event {
    let outcome =
        [CompactionOutcome::Done, CompactionOutcome::TooLarge, CompactionOutcome::Paused, CompactionOutcome::Failed]
            [random.below(4) as usize];
    if random.one_in(40) {
        return [
            Event::Failed,
            Event::NotPermitted,
            Event::Flushed { begun: true },
            Event::Woken { conditions: conditions() },
            Event::RangesMeasured { removed: 1, ranges: Vec::new() },
        ][random.below(5) as usize]
            .clone();
    }
    match command {
        _ if random.one_in(12) && !matches!(command, Command::Sleep(_)) => Event::Failed,
        Command::RemoveSegments { seal_from } => {
            assert!((0.0..1.0).contains(seal_from));
            Event::Inspected { conditions: any_conditions(random), store: Box::new(any_store(random)) }
        }
        Command::Flush { .. } => Event::Flushed { begun: !random.one_in(3) },
        Command::TakePermit(_) if random.one_in(3) => Event::NotPermitted,
        Command::TakePermit(_) => Event::Permitted { tables: any_tables(random) },
        Command::MeasureRanges => {
            let removed = 1 + random.below(4);
            let ranges = (0..removed).map(|number| RemovedRange {
                number,
                bytes: Bytes(random.below(60) * MIB),
                is_held: !random.one_in(3),
            });
            Event::RangesMeasured { removed, ranges: ranges.collect() }
        }
        command if command.is_compaction() => Event::CompactionEnded { outcome, away: Seconds::ZERO },
        _ => Event::Woken { conditions: any_conditions(random) },
    }
}

proptest! {
    #[test]
    fn whatever_happens_the_rules_are_kept(seed: u64) {
        let random = &mut Random(seed);
        let mut driver = Driver::new(GcParameters::default());
        let mut event = Event::Woken { conditions: conditions() };
        for _ in 0..400 {
            let last = driver.handle(event);
            driver.now += random.below(4000) as f64 / 1000.0;
            event = any_answer(random, &last);
        }
    }

    #[test]
    fn what_fails_is_not_tried_in_a_tight_loop(seed: u64) {
        let random = &mut Random(seed);
        let mut world = World::new(random, GcParameters::default());
        let outcome = [CompactionOutcome::Paused, CompactionOutcome::Failed][random.below(2) as usize];
        let mut events = 0;
        while world.driver.now < 300.0 {
            world.round(Some(outcome));
            events += 1;
        }
        // Some looks find candidates, and are followed by another; then there is one a second.
        prop_assert!(world.driver.compactions <= 300 && events < 330, "{} {events}", world.driver.compactions);
    }

    #[test]
    fn with_more_garbage_than_may_stay_it_gets_on_until_there_is_not(seed: u64) {
        let random = &mut Random(seed);
        let mut world = World::new(random, GcParameters::default());
        let begin = world.ratio();
        prop_assert!(world.has_too_much(), "{begin}");
        let mut last = (begin, world.driver.now, world.driver.compactions);
        let mut rounds = 0;
        while world.has_too_much() {
            world.round(None);
            rounds += 1;
            if world.ratio() < last.0 {
                last = (world.ratio(), world.driver.now, world.driver.compactions);
            }
            // Each table once for the candidates there are, and for those that join them.
            prop_assert!(world.driver.compactions - last.2 <= 2 * world.tables.len() as u64, "{last:?}");
            prop_assert!(world.driver.now - last.1 < 60.0 && rounds < 10_000, "{last:?} {}", world.driver.now);
        }
    }

    #[test]
    fn a_store_at_rest_ends_in_a_sleep_without_end(seed: u64) {
        let mut world = World::new(&mut Random(seed), GcParameters::default());
        let mut sleeps_for_ever = false;
        for _ in 0..10_000 {
            sleeps_for_ever = world.round(None).is_none();
            if sleeps_for_ever {
                break;
            }
        }
        prop_assert!(sleeps_for_ever);
        prop_assert_eq!(world.driver.throttle, 0.0);
        prop_assert!(!world.has_too_much(), "{}", world.ratio());
    }
}

/// Tables of a store that nobody writes to, and the bytes that each refers to of each segment.
/// Compactions copy what lies in candidates to a new segment.
struct World {
    driver: Driver,
    tables: BTreeMap<u64, (Table, BTreeMap<u32, u64>)>,
    segments: BTreeMap<u32, u64>,
}

impl World {
    /// Segments of which 30 to 90 % are garbage, and tables of one level that refer to any of them.
    fn new(random: &mut Random, parameters: GcParameters) -> Self {
        let mut world = Self { driver: Driver::new(parameters), tables: BTreeMap::new(), segments: BTreeMap::new() };
        let count = 1 + random.below(12);
        for number in 0..count {
            let first = vec![number as u8 * 10];
            let last = vec![number as u8 * 10 + 9];
            let bytes = Bytes((1 + random.below(8)) * MIB);
            let table = Table { number, level: 3, first, last, bytes, entries: 1000, is_busy: false };
            world.tables.insert(number, (table, BTreeMap::new()));
        }
        for segment in 1..=2 + random.below(20) as u32 {
            let bytes = (40 + random.below(60)) * MIB;
            world.segments.insert(segment, bytes);
            let live = bytes * (10 + random.below(60)) / 100;
            let mut named: Vec<u64> = (0..count).filter(|_| random.one_in(2)).collect();
            if named.is_empty() {
                named.push(random.below(count));
            }
            let part = live / named.len() as u64;
            for table in named {
                world.tables.get_mut(&table).unwrap().1.insert(segment, part);
            }
        }
        world
    }

    fn referenced(&self, segment: u32) -> u64 {
        self.tables.values().filter_map(|(_, names)| names.get(&segment)).sum()
    }

    fn uses(&self) -> Vec<SegmentUse> {
        let of = |(segment, bytes): (&u32, &u64)| SegmentUse {
            segment: *segment,
            bytes: Bytes(*bytes),
            referenced: Bytes(self.referenced(*segment)),
            settled: true,
        };
        self.segments.iter().map(of).filter(|it| it.referenced > Bytes::ZERO).collect()
    }

    fn ratio(&self) -> f64 {
        ratio(&self.uses())
    }

    /// By default parameters.
    fn has_too_much(&self) -> bool {
        let garbage: u64 = self.uses().iter().map(|it| it.bytes.0.saturating_sub(it.referenced.0)).sum();
        self.ratio() >= 1.35 && garbage >= 16 * MIB
    }

    fn tables(&self) -> Vec<Table> {
        self.tables.values().map(|(table, _)| table.clone()).collect()
    }

    /// From being woken until it sleeps again, and the sleep. All compactions end so, or well.
    fn round(&mut self, all: Option<CompactionOutcome>) -> Option<Seconds> {
        let mut event = Event::Woken { conditions: conditions() };
        loop {
            event = match self.driver.handle(event) {
                Command::Sleep(wait) => {
                    // A look takes some time.
                    self.driver.now += wait.unwrap_or_default().0 + 0.001;
                    return wait;
                }
                Command::RemoveSegments { .. } => {
                    let segments = self.uses();
                    self.segments.retain(|segment, _| segments.iter().any(|it| it.segment == *segment));
                    let candidates = &self.driver.candidates;
                    let names = |(_, names): &(Table, BTreeMap<u32, u64>)| -> Vec<u32> {
                        names.keys().copied().filter(|segment| candidates.contains(segment)).collect()
                    };
                    let referencing = self.tables.iter().map(|(number, table)| (*number, names(table)));
                    let referencing = referencing.filter(|(_, names)| !names.is_empty()).collect();
                    let store = StoreState { segments, referencing, tables: self.tables(), ..StoreState::default() };
                    Event::Inspected { conditions: conditions(), store: Box::new(store) }
                }
                Command::TakePermit(_) => Event::Permitted { tables: self.tables() },
                Command::CompactTables { merge, .. } => {
                    self.driver.now += 0.1;
                    if all.is_none() {
                        merge.inputs.iter().for_each(|number| self.rewrite(*number));
                    }
                    Event::CompactionEnded { outcome: all.unwrap_or(CompactionOutcome::Done), away: Seconds::ZERO }
                }
                other => panic!("nothing else is to be done: {other:?}"),
            };
        }
    }

    fn rewrite(&mut self, number: u64) {
        let (table, names) = self.tables.remove(&number).unwrap();
        let is_candidate = |segment: &u32| self.driver.candidates.contains(segment);
        let (copied, mut names): (BTreeMap<u32, u64>, BTreeMap<u32, u64>) =
            names.into_iter().partition(|(segment, _)| is_candidate(segment));
        let copied: u64 = copied.values().sum();
        if copied > 0 {
            let segment = self.segments.keys().max().unwrap() + 1;
            self.segments.insert(segment, copied);
            names.insert(segment, copied);
        }
        let number = self.tables.keys().max().copied().unwrap_or_default().max(number) + 1;
        self.tables.insert(number, (Table { number, ..table }, names));
    }
}
