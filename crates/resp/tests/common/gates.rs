//! A gate that a test drives: what is written is what the store has written, and how far copies are
//! is what the test says.

use std::sync::{Arc, Weak};

use ecotone_engine::Store;
use ecotone_keyspace::gate::{CommitGate, Level, Place, Refused};
use parking_lot::Mutex;

type Waker = Weak<dyn Fn() + Send + Sync>;

#[derive(Debug)]
struct State {
    epoch: u64,
    level: Level,
    /// By level: up to where copies are; `None`: all that is written.
    held: [Option<u64>; 3],
    /// By level.
    refused: [Option<Refused>; 3],
    /// Up to where each copy is: in memory, and synced.
    copies: Vec<(u64, u64)>,
    clock_limit_ms: u64,
}

pub struct TestGate {
    store: Arc<Store>,
    state: Mutex<State>,
    wakers: Mutex<Vec<Waker>>,
}

impl std::fmt::Debug for TestGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestGate").field("state", &self.state).finish_non_exhaustive()
    }
}

impl TestGate {
    /// One that lets everything through, and asks for a quorum.
    pub fn of(store: &Arc<Store>) -> Arc<Self> {
        let state = State {
            epoch: 1,
            level: Level::Quorum,
            held: [None; 3],
            refused: [None; 3],
            copies: Vec::new(),
            clock_limit_ms: u64::MAX,
        };
        Arc::new(Self { store: store.clone(), state: Mutex::new(state), wakers: Mutex::default() })
    }

    /// What the store has written.
    pub fn number(&self) -> u64 {
        self.store.counters().keys_written
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        let wakers: Vec<_> = self.wakers.lock().iter().filter_map(Weak::upgrade).collect();
        wakers.iter().for_each(|wake| wake());
    }

    /// Copies take nothing beyond what there is now.
    pub fn hold(&self, levels: &[Level]) {
        let number = self.number();
        self.change(|state| levels.iter().for_each(|level| state.held[*level as usize] = Some(number)));
    }

    /// They have come to here.
    pub fn reach(&self, level: Level, number: u64) {
        self.change(|state| state.held[level as usize] = Some(number));
    }

    /// They take everything.
    pub fn release(&self) {
        self.change(|state| state.held = [None; 3]);
    }

    pub fn refuse(&self, levels: &[Level], refused: Option<Refused>) {
        self.change(|state| levels.iter().for_each(|level| state.refused[*level as usize] = refused));
    }

    pub fn begin_epoch(&self) {
        self.change(|state| state.epoch += 1);
    }

    pub fn set_copies(&self, copies: &[(u64, u64)]) {
        self.change(|state| state.copies = copies.to_vec());
    }

    pub fn limit_clock(&self, limit_ms: u64) {
        self.change(|state| state.clock_limit_ms = limit_ms);
    }

    /// How many event loops are woken.
    pub fn watchers(&self) -> usize {
        self.wakers.lock().iter().filter(|waker| waker.strong_count() > 0).count()
    }
}

impl CommitGate for TestGate {
    fn written(&self) -> Place {
        Place { epoch: self.state.lock().epoch, number: self.number() }
    }

    fn answerable(&self, level: Level) -> Result<Place, Refused> {
        let state = self.state.lock();
        if let Some(refused) = state.refused[level as usize] {
            return Err(refused);
        }
        Ok(Place { epoch: state.epoch, number: state.held[level as usize].unwrap_or_else(|| self.number()) })
    }

    fn takes_writes(&self) -> bool {
        true
    }

    fn level(&self) -> Level {
        self.state.lock().level
    }

    fn copies_with(&self, place: Place, synced: bool) -> usize {
        let state = self.state.lock();
        let has = |(received, durable): &&(u64, u64)| *(if synced { durable } else { received }) >= place.number;
        if place.epoch == state.epoch { state.copies.iter().filter(has).count() } else { 0 }
    }

    fn clock_limit_ms(&self) -> u64 {
        self.state.lock().clock_limit_ms
    }

    fn wakes(&self, wake: &Arc<dyn Fn() + Send + Sync>) {
        self.wakers.lock().push(Arc::downgrade(wake));
    }
}
