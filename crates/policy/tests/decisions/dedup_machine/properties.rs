//! What holds whatever happens to the store, and however merges end.

use ecotone_policy::dedup::candidates::{CostedMerge, merge_candidates, worth_merging};
use ecotone_policy::dedup::deferral::MergeFailure;
use ecotone_policy::dedup::estimate::{Estimate, freed_at_bottom, shadowed_within};
use ecotone_policy::dedup::machine::{Command, Counting, Event, Wait};
use ecotone_policy::dedup::plan::{KeyRange, Merge, MergeLimits, Table, Tree};
use ecotone_policy::dedup::sketches::KeySketches;
use ecotone_policy::dedup::{DedupMachine, DedupParameters, DedupThreshold};
use ecotone_types::units::{Bytes, Seconds, Time};
use proptest::prelude::*;
use proptest::sample::Index;

use super::store::{ONE_IN, Store, sample};

/// Of any level, and of merges that a machine may begin without time passing.
const DEEPEST: u32 = 3;
const MAX_WAKES_AT_A_TIME: usize = 64;

/// Two rests of merges that were refused are never shorter.
const SHORTEST_RETRY: f64 = 0.1;

#[derive(Clone, Debug)]
enum Step {
    /// A compaction writes the table of a place, in place of the one that is there.
    Write {
        level: u32,
        place: Index,
        density: u64,
        offset: u64,
    },
    Remove(Index),
    Busy(Index, bool),
    Pressure {
        l0_tables: u64,
        is_slowed: bool,
        pending_mib: u64,
    },
    Space(u64),
    Permit(bool),
    Readable(bool),
    BackgroundError(bool),
    Flush(u64),
    Pass(f64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1..=DEEPEST, any::<Index>(), 1..5_u64, 0..5_u64)
            .prop_map(|(level, place, density, offset)| Step::Write { level, place, density, offset }),
        1 => any::<Index>().prop_map(Step::Remove),
        2 => (any::<Index>(), any::<bool>()).prop_map(|(table, is_busy)| Step::Busy(table, is_busy)),
        1 => (0..20_u64, prop::bool::weighted(0.2), 0..600_u64).prop_map(|(l0_tables, is_slowed, pending_mib)| {
            Step::Pressure { l0_tables, is_slowed, pending_mib }
        }),
        2 => Just(Step::Pressure { l0_tables: 0, is_slowed: false, pending_mib: 0 }),
        1 => (0..100_u64).prop_map(Step::Space),
        1 => any::<bool>().prop_map(Step::Permit),
        1 => any::<bool>().prop_map(Step::Readable),
        1 => any::<bool>().prop_map(Step::BackgroundError),
        1 => (0..4_u64).prop_map(Step::Flush),
        8 => (0.0..5.0).prop_map(Step::Pass),
    ]
}

/// How a merge ends.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// It frees this share of what there is.
    Frees {
        share: f64,
        took: f64,
        is_space_low: bool,
    },
    Fails(MergeFailure),
    Unreported,
}

const HONEST: Ending = Ending::Frees { share: 1.0, took: 0.5, is_space_low: false };

const FAILURES: [MergeFailure; 4] =
    [MergeFailure::Conflict, MergeFailure::NoSpace, MergeFailure::Closing, MergeFailure::Failure];

fn ending() -> impl Strategy<Value = Ending> {
    prop_oneof![
        3 => (0.0..=1.0, 0.0..3.0, any::<bool>())
            .prop_map(|(share, took, is_space_low)| Ending::Frees { share, took, is_space_low }),
        2 => prop::sample::select(FAILURES.to_vec()).prop_map(Ending::Fails),
        1 => Just(Ending::Unreported),
    ]
}

fn counting() -> impl Strategy<Value = Counting> {
    prop_oneof![
        3 => Just(Counting::Samples),
        1 => Just(Counting::Filters),
        2 => (1.0..10.0).prop_map(|interval| Counting::Levels { interval: Seconds(interval) }),
    ]
}

/// Keys of the table of a place: level 1 has 4 places, level 2 8, level 3 16.
fn keys_of(level: u32, place: u64) -> std::ops::Range<u64> {
    let keys = 256 >> (level + 1);
    place * keys..(place + 1) * keys
}

struct Run {
    store: Store,
    machine: DedupMachine,
    counting: Counting,
    parameters: DedupParameters,
    now: Time,
    wait: (Time, Wait),
    compactions: Vec<Vec<u64>>,
    endings: Vec<Ending>,
    next_table: u64,
    /// Begin, end and ending.
    merges: Vec<(Time, Time, Ending)>,
    rests_until: Time,
    woken: Time,
    wakes_at_a_time: usize,
    commands: Vec<Command>,
}

impl Run {
    fn new(counting: Counting, threshold: f64, rest_share: f64, endings: Vec<Ending>) -> Self {
        let parameters = DedupParameters {
            min_sampled_duplicates: 1,
            max_merge_bytes: Bytes::from_mib(32),
            rest_share,
            ..DedupParameters::default()
        };
        let threshold = Some(DedupThreshold::try_from(threshold).unwrap());
        Self {
            store: Store::default(),
            machine: DedupMachine::new(counting, threshold, parameters.clone()),
            counting,
            parameters,
            now: Time::default(),
            wait: (Time::default(), Wait::ZERO),
            compactions: Vec::new(),
            endings,
            next_table: 1,
            merges: Vec::new(),
            rests_until: Time::default(),
            woken: Time::default(),
            wakes_at_a_time: 0,
            commands: Vec::new(),
        }
    }

    fn is_baseline(&self) -> bool {
        matches!(self.counting, Counting::Levels { .. })
    }

    fn write(&mut self, level: u32, place: u64, keys: impl Iterator<Item = u64>) -> u64 {
        let range = keys_of(level, place);
        let (first, last) = (vec![range.start as u8], vec![(range.end - 1) as u8]);
        let there = self.store.tables.iter().filter(|it| it.level == level && it.first == first);
        let there: Vec<_> = there.map(|table| table.number).collect();
        self.store.remove(&there);
        let samples: Vec<_> = keys.map(|key| sample(key, level)).collect();
        let number = self.next_table;
        self.next_table += 1;
        let (entries, bytes) = (samples.len() as u64 * ONE_IN, Bytes::from_mib(1 + samples.len() as u64 / 16));
        self.store.add(Table { number, level, first, last, bytes, entries, is_busy: false }, samples);
        number
    }

    fn step(&mut self, step: &Step) {
        let table = |index: &Index, store: &Store| {
            (!store.tables.is_empty()).then(|| store.tables[index.index(store.tables.len())].number)
        };
        match step {
            Step::Write { level, place, density, offset } => {
                let place = place.index(2 << level) as u64;
                let keys = keys_of(*level, place).filter(|key| (key + offset).is_multiple_of(*density));
                let number = self.write(*level, place, keys);
                self.compactions.push(vec![number]);
            }
            Step::Remove(index) => {
                let gone: Vec<_> = table(index, &self.store).into_iter().collect();
                self.store.remove(&gone);
            }
            Step::Busy(index, is_busy) => {
                let number = table(index, &self.store);
                let tables = self.store.tables.iter_mut();
                tables.filter(|it| Some(it.number) == number).for_each(|it| it.is_busy = *is_busy);
            }
            Step::Pressure { l0_tables, is_slowed, pending_mib } => {
                self.store.pressure.l0_tables = *l0_tables;
                self.store.pressure.is_slowed = *is_slowed;
                self.store.pressure.pending_compaction_bytes = Bytes::from_mib(*pending_mib);
            }
            Step::Space(mib) => self.store.free_space = Bytes::from_mib(*mib),
            Step::Permit(is_free) => self.store.is_permit_free = *is_free,
            Step::Readable(is_readable) => self.store.is_readable = *is_readable,
            Step::BackgroundError(has_error) => self.store.has_background_error = *has_error,
            Step::Flush(tables) => self.store.flushed += tables,
            Step::Pass(seconds) => self.pass(*seconds),
        }
    }

    /// As the thread of a store: wakes the machine when it is due, until so much time has passed.
    fn pass(&mut self, seconds: f64) {
        let until = self.now + Seconds(seconds);
        loop {
            let (began, Wait { at_most, checks_not_before }) = self.wait;
            let later = |one: Time, other: Time| if one > other { one } else { other };
            let timer = at_most.map(|time| later(began + time, self.now));
            let check = (!self.compactions.is_empty()).then(|| later(checks_not_before, self.now));
            let due = [timer, check].into_iter().flatten().min_by(|a, b| a.partial_cmp(b).unwrap());
            let Some(due) = due.filter(|due| *due <= until) else {
                self.now = later(self.now, until);
                return;
            };
            self.wakes_at_a_time = if due > self.woken { 0 } else { self.wakes_at_a_time + 1 };
            let last = &self.commands[self.commands.len().saturating_sub(8)..];
            assert!(self.wakes_at_a_time < MAX_WAKES_AT_A_TIME, "it never waits: {last:?}");
            (self.now, self.woken) = (due, due);
            self.wake(checks_not_before);
        }
    }

    fn wake(&mut self, checks_not_before: Time) {
        let compactions = if self.now < checks_not_before { Vec::new() } else { std::mem::take(&mut self.compactions) };
        let commands = self.store.wake(&mut self.machine, &mut self.now, compactions);
        let (last, others) = commands.split_last().unwrap();
        assert!(commands.len() <= 4, "{commands:?}");
        let ends = |command: &Command| matches!(command, Command::Wait(_) | Command::Merge { .. });
        assert!(ends(last) && !others.iter().any(ends), "{commands:?}");
        let last = match last {
            Command::Merge { merge, expected } => {
                assert_eq!(others.last(), Some(&Command::ReadTablesAndSpace), "{commands:?}");
                self.merge(merge, expected)
            }
            wait => wait.clone(),
        };
        self.commands.extend(commands);
        let Command::Wait(wait) = last else { panic!("a merge is followed by {last:?}") };
        self.wait = (self.now, wait);
    }

    fn merge(&mut self, merge: &Merge, expected: &Estimate) -> Command {
        self.check(merge);
        let began = self.now;
        // One at a time.
        let woken = Event::Woken { compactions: Vec::new(), flushed_tables: self.store.flushed };
        for stray in [woken, Event::TablesRead(self.store.facts()), Event::PermitTaken { pressure: None }] {
            assert!(matches!(self.machine.handle(began, stray), Command::Wait(_)));
        }
        let ending = self.endings[self.merges.len() % self.endings.len()];
        let before = self.machine.counts().clone();
        let command = match ending {
            Ending::Frees { share, took, is_space_low } => {
                self.now = self.now + Seconds(took);
                let freed = self.apply(merge);
                assert_eq!(freed, expected.duplicate_keys, "samples are all that there is");
                let found_keys = (freed as f64 * share) as u64;
                let took = Seconds(took);
                let event = Event::MergeEnded { found_keys, took, took_here: Some(took), is_space_low };
                if !is_space_low && !self.is_baseline() {
                    self.rests_until = self.now + took * self.parameters.rest_share;
                }
                let command = self.machine.handle(self.now, event);
                assert_eq!(self.machine.counts().merges, before.merges + 1);
                command
            }
            Ending::Fails(failure) => self.machine.handle(self.now, Event::MergeFailed(failure)),
            Ending::Unreported => self.machine.handle(self.now, Event::MergeUnreported),
        };
        self.merges.push((began, self.now, ending));
        command
    }

    /// Whether it may begin now.
    fn check(&self, merge: &Merge) {
        let inputs: Vec<_> = merge.inputs.iter().map(|number| self.store.table(*number)).collect();
        assert!(inputs.iter().all(Option::is_some), "{merge:?} takes a table that is gone");
        let inputs: Vec<_> = inputs.into_iter().flatten().collect();
        assert!(inputs.len() > 1 && inputs.iter().all(|table| !table.is_busy), "{inputs:?}");
        assert!(inputs.iter().all(|table| (1..=merge.output_level).contains(&table.level)), "{inputs:?}");
        assert_eq!(merge.bytes, inputs.iter().map(|table| table.bytes).sum());
        assert!(merge.bytes <= self.parameters.max_merge_bytes && merge.bytes <= self.store.free_space);
        assert!(self.store.is_permit_free && !self.store.has_background_error && self.store.is_readable);
        if !self.is_baseline() {
            let pressure = &self.store.pressure;
            assert!(!pressure.is_slowed && pressure.l0_tables < 8, "{pressure:?}");
            assert!(pressure.pending_compaction_bytes < Bytes::from_mib(512), "{pressure:?}");
            assert!(self.now >= self.rests_until, "{:?} of a rest until {:?}", self.now, self.rests_until);
        }
    }

    /// Makes it; the entries that went.
    fn apply(&mut self, merge: &Merge) -> u64 {
        let inputs: Vec<_> = merge.inputs.iter().flat_map(|number| self.store.samples.0[number].clone()).collect();
        let mut keys: Vec<_> = inputs.iter().map(|sample| sample.hash / ONE_IN).collect();
        keys.sort_unstable();
        keys.dedup();
        self.store.remove(&merge.inputs);
        for place in 0..2 << merge.output_level {
            let range = keys_of(merge.output_level, place);
            let of_place: Vec<_> = keys.iter().copied().filter(|key| range.contains(key)).collect();
            if !of_place.is_empty() {
                self.write(merge.output_level, place, of_place.into_iter());
            }
        }
        (inputs.len() - keys.len()) as u64 * ONE_IN
    }

    /// Tables with as many duplicates as can be, in all places.
    fn fill(&mut self) {
        for level in 1..=DEEPEST {
            for place in 0..2 << level {
                let number = self.write(level, place, keys_of(level, place));
                self.compactions.push(vec![number]);
            }
        }
    }

    /// The merges that would be worth it, of all tables.
    fn worth(&self, threshold: f64) -> Vec<CostedMerge> {
        let tables = &self.store.tables;
        let limits = MergeLimits { max_bytes: self.parameters.max_merge_bytes };
        let candidates = merge_candidates(&Tree::new(tables), &KeyRange::of(tables), &limits).unwrap_or_default();
        let costed = candidates.into_iter().map(|candidate| {
            let inputs = candidate.merge.inputs.iter().filter_map(|number| self.store.table(*number));
            let sketches: Vec<_> = inputs.map(|table| self.store.samples.sketch(table)).collect();
            let count = if candidate.is_at_bottom { freed_at_bottom } else { shadowed_within };
            CostedMerge { expected: count(&sketches, ONE_IN), candidate }
        });
        worth_merging(costed.collect(), DedupThreshold::try_from(threshold).unwrap()).unwrap_or_default()
    }
}

fn played(counting: Counting, threshold: f64, endings: &[Ending], steps: &[Step]) -> Run {
    let mut run = Run::new(counting, threshold, 1.0, endings.to_vec());
    steps.iter().for_each(|step| run.step(step));
    run
}

proptest! {
    /// One at a time, of tables that are there, under the permit, while nothing forbids it
    /// ([`Run::check`]); and what was refused rests.
    #[test]
    fn merges_begin_only_where_they_may(
        counting in counting(),
        threshold in 2.0..50.0,
        endings in prop::collection::vec(ending(), 1..8),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let run = played(counting, threshold, &endings, &steps);
        // Of the baseline each of two levels may have been refused; of the others one was, and one
        // more where that was given up.
        let refused = run.merges.iter().filter(|(.., ending)| matches!(ending, Ending::Fails(_)));
        let times: Vec<_> = refused.map(|(_, end, _)| *end).collect();
        for window in times.windows(3 * DEEPEST as usize) {
            let time = window[window.len() - 1].since(window[0]).0;
            prop_assert!(time >= SHORTEST_RETRY * 0.99, "{} refused within {time} s", window.len());
        }
        let counts = run.machine.counts();
        let deferred: u64 = counts.merges_deferred().map(|(_, count)| count).sum();
        prop_assert!(deferred <= run.commands.len() as u64);
        prop_assert!(counts.found_keys <= counts.expected_keys && counts.extensions <= counts.checks);
    }

    #[test]
    fn the_same_events_lead_to_the_same_commands(
        counting in counting(),
        endings in prop::collection::vec(ending(), 1..8),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let [one, other] = [0, 1].map(|_| played(counting, 10.0, &endings, &steps));
        prop_assert_eq!(one.commands, other.commands);
        prop_assert_eq!(one.machine.counts(), other.machine.counts());
    }

    /// Then all is merged that is worth it, and the machine waits for the next compaction.
    #[test]
    fn where_nothing_hinders_all_that_is_worth_it_is_merged(
        threshold in 2.0..50.0,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut run = Run::new(Counting::Samples, threshold, 1.0, vec![HONEST]);
        steps.iter().filter(|step| matches!(step, Step::Write { .. })).for_each(|step| run.step(step));
        run.pass(1000.0);
        prop_assert!(!run.machine.is_busy());
        prop_assert_eq!(run.wait.1.at_most, None);
        prop_assert_eq!(run.worth(threshold), []);
        prop_assert_eq!(run.machine.counts().found_keys, run.machine.counts().expected_keys);
    }

    #[test]
    fn merges_take_their_share_of_the_time_and_no_more(
        rest_share in 0.2..5.0,
        took in prop::collection::vec(0.05..3.0, 1..8),
    ) {
        let frees = |took| Ending::Frees { share: 1.0, took, is_space_low: false };
        let mut run = Run::new(Counting::Samples, 10.0, rest_share, took.iter().copied().map(frees).collect());
        let longest = took.iter().copied().fold(0.0, f64::max);
        while run.now < Time::from_seconds(400.0) {
            run.fill();
            run.pass(1.0);
        }
        let spent: f64 = run.merges.iter().map(|(began, ended, _)| ended.since(*began).0).sum();
        let share = (run.now.0.0 + longest) / (1.0 + rest_share);
        prop_assert!(spent <= share + longest, "{spent} s of {:?}, {share} s would be its share", run.now);
        prop_assert!(run.merges.len() > 10, "{} merges", run.merges.len());
    }
}

/// Whatever fails, and however often the same is found again.
#[test]
fn failures_never_make_a_tight_loop() {
    let seconds = 600;
    for counting in [Counting::Samples, Counting::Levels { interval: Seconds(1.0) }] {
        for (ending, max_merges) in [
            // 7 refusals, with rests of 6.3 s.
            (Ending::Fails(MergeFailure::Conflict), 700),
            (Ending::Fails(MergeFailure::NoSpace), 610),
            (Ending::Fails(MergeFailure::Closing), 610),
            // 1 s, 2 s, ... 512 s.
            (Ending::Fails(MergeFailure::Failure), 12),
            (Ending::Frees { share: 0.0, took: 0.0, is_space_low: true }, 12),
        ] {
            let is_baseline = matches!(counting, Counting::Levels { .. });
            if is_baseline && matches!(ending, Ending::Frees { .. }) {
                // What it frees it asks for no more.
                continue;
            }
            let mut run = Run::new(counting, 10.0, 0.0, vec![ending]);
            for _ in 0..seconds {
                run.fill();
                run.pass(1.0);
            }
            // The baseline decides anew each second, for each of two levels.
            let max_merges = max_merges * if is_baseline { 10 } else { 1 };
            let merges = run.merges.len();
            assert!((1..=max_merges).contains(&merges), "{counting:?} {ending:?}: {merges} merges");
        }
    }
}

/// Nobody is asked for more than what waits: where there is nothing to be done there is no timer.
#[test]
fn an_idle_store_is_left_alone() {
    let mut run = Run::new(Counting::Samples, 10.0, 1.0, vec![HONEST]);
    run.pass(3600.0);
    assert_eq!(run.commands.len(), 2, "{:?}", run.commands);
}
