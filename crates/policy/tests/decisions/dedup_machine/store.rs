//! A store that is made up: it answers what the machine asks for, until it is to wait or to merge.

use std::collections::BTreeMap;

use ecotone_policy::dedup::DedupMachine;
use ecotone_policy::dedup::forecast::Pressure;
use ecotone_policy::dedup::machine::{Command, Event, TableFacts};
use ecotone_policy::dedup::plan::Table;
use ecotone_policy::dedup::sketches::KeySketches;
use ecotone_policy::duplicates::KeySample;
use ecotone_types::units::{Bytes, Time};

pub const ONE_IN: u64 = 64;

/// A sampled key in a table of this level: what lies higher up is newer.
pub fn sample(key: u64, level: u32) -> KeySample {
    KeySample { hash: key * ONE_IN, bytes: Some(100), segment: None, sequence: 100 - u64::from(level) }
}

/// The samples of all tables.
#[derive(Clone, Default)]
pub struct Samples(pub BTreeMap<u64, Vec<KeySample>>);

impl KeySketches for Samples {
    fn one_in(&self) -> u64 {
        ONE_IN
    }

    fn samples(&self, table: u64) -> Option<&[KeySample]> {
        self.0.get(&table).map(Vec::as_slice)
    }
}

#[derive(Clone)]
pub struct Store {
    pub tables: Vec<Table>,
    pub samples: Samples,
    pub flushed: u64,
    pub pressure: Pressure,
    pub has_background_error: bool,
    pub free_space: Bytes,
    pub is_permit_free: bool,
    pub is_readable: bool,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            tables: Vec::new(),
            samples: Samples::default(),
            flushed: 0,
            pressure: Pressure {
                l0_tables: 0,
                l0_compaction_trigger: 4,
                l0_slowdown_trigger: 20,
                is_slowed: false,
                pending_compaction_bytes: Bytes(0),
                pending_slowdown_bytes: Bytes::from_mib(1024),
            },
            has_background_error: false,
            free_space: Bytes(u64::MAX),
            is_permit_free: true,
            is_readable: true,
        }
    }
}

impl Store {
    pub fn add(&mut self, table: Table, samples: Vec<KeySample>) {
        self.samples.0.insert(table.number, samples);
        self.tables.push(table);
    }

    pub fn remove(&mut self, numbers: &[u64]) {
        self.tables.retain(|table| !numbers.contains(&table.number));
        self.samples.0.retain(|number, _| !numbers.contains(number));
    }

    pub fn table(&self, number: u64) -> Option<&Table> {
        self.tables.iter().find(|table| table.number == number)
    }

    pub fn facts(&self) -> TableFacts<'_> {
        TableFacts { tables: &self.tables, keys: &self.samples }
    }

    /// Wakes the machine, and answers until it is to wait or to merge: all commands. The time
    /// passes only where somebody else holds the permit.
    pub fn wake(&self, machine: &mut DedupMachine, now: &mut Time, compactions: Vec<Vec<u64>>) -> Vec<Command> {
        let mut commands = vec![machine.handle(*now, Event::Woken { compactions, flushed_tables: self.flushed })];
        while let Some(command) = commands.last()
            && let Some(event) = self.answer(command, now)
        {
            commands.push(machine.handle(*now, event));
        }
        commands
    }

    fn answer(&self, command: &Command, now: &mut Time) -> Option<Event<'_>> {
        Some(match command {
            Command::Wait(_) | Command::Merge { .. } => return None,
            Command::ReadTables | Command::ReadTablesAndSpace if !self.is_readable => Event::FactsUnreadable,
            Command::ReadTables => Event::TablesRead(self.facts()),
            Command::TakePermit { at_most } if !self.is_permit_free => {
                *now = *now + *at_most;
                Event::PermitUnavailable
            }
            Command::TakePermit { .. } => {
                Event::PermitTaken { pressure: (!self.has_background_error).then_some(self.pressure) }
            }
            Command::ReadTablesAndSpace => {
                Event::TablesAndSpaceRead { facts: self.facts(), free_space: self.free_space }
            }
        })
    }
}
