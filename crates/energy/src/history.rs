//! The last hour by minute: what was spent on what, at which frequency, and what it would have
//! taken at the highest one. Pure.
//!
//! Bound: [`MAX_MINUTES`] minutes; an older one is dropped.

use std::collections::{BTreeMap, VecDeque};

use ecotone_types::Duty;
use serde::{Deserialize, Serialize};

use crate::meters::Attribution;
use crate::reading::{IDLE, UNATTRIBUTED};

/// How many minutes are kept: an hour, and the one under way.
pub const MAX_MINUTES: usize = 61;

/// A minute of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Minute {
    /// When it began, in seconds since 1970.
    pub unix_s: u64,
    /// How much of it is in the sums.
    pub seconds: f64,
    /// `model`, or the meter.
    pub source: String,
    /// Joules by duty, and of `idle` and `unattributed`.
    pub joules: BTreeMap<String, f64>,
    /// Joules of other processes of the machine, where a meter sees them.
    pub other_joules: f64,
    /// Joules that a meter measured, those of others included.
    pub measured_joules: f64,
    /// What the same work would have taken with all cores at their highest frequency, by the model.
    pub all_high_joules: f64,
    /// Processor seconds by duty, and of `unattributed`.
    pub cpu_s: BTreeMap<String, f64>,
    /// Cycles by duty, in the units of `cpu_s` x hertz: by `cpu_s` they give the mean frequency.
    pub cycles: BTreeMap<String, f64>,
}

/// What a piece of a minute adds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Piece<'a> {
    pub(crate) seconds: f64,
    pub(crate) source: &'a str,
    pub(crate) joules: Attribution,
    pub(crate) measured: f64,
    pub(crate) all_high: f64,
    /// Duty, processor seconds, hertz.
    pub(crate) work: Vec<(Option<Duty>, f64, f64)>,
}

/// The minutes, oldest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    minutes: VecDeque<Minute>,
}

fn add(sums: &mut BTreeMap<String, f64>, name: &str, value: f64) {
    if value > 0.0 {
        *sums.entry(name.to_owned()).or_default() += value;
    }
}

impl History {
    /// The minutes that are known, oldest first.
    pub fn minutes(&self) -> impl Iterator<Item = &Minute> {
        self.minutes.iter()
    }

    /// Adds a piece that ended at `unix_s`. A clock that is set back begins no minute of its own.
    pub(crate) fn add(&mut self, unix_s: u64, piece: &Piece<'_>) {
        let begin = unix_s / 60 * 60;
        if self.minutes.back().is_none_or(|last| last.unix_s < begin) {
            if self.minutes.len() == MAX_MINUTES {
                self.minutes.pop_front();
            }
            self.minutes.push_back(Minute { unix_s: begin, ..Minute::default() });
        }
        let Some(minute) = self.minutes.back_mut() else { return };
        piece.source.clone_into(&mut minute.source);
        minute.seconds += piece.seconds;
        for duty in Duty::ALL {
            add(&mut minute.joules, duty.name(), piece.joules.duty(duty).0);
        }
        add(&mut minute.joules, UNATTRIBUTED, piece.joules.unattributed);
        add(&mut minute.joules, IDLE, piece.joules.idle);
        minute.other_joules += piece.joules.others;
        minute.measured_joules += piece.measured;
        minute.all_high_joules += piece.all_high;
        for (duty, cpu, hertz) in &piece.work {
            let name = duty.map_or(UNATTRIBUTED, Duty::name);
            add(&mut minute.cpu_s, name, *cpu);
            add(&mut minute.cycles, name, cpu * hertz);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(joules: f64) -> Piece<'static> {
        let mut given = Attribution { idle: 1.0, ..Attribution::default() };
        given.duties[Duty::Flush.index()] = joules;
        Piece {
            seconds: 1.0,
            source: "model",
            joules: given,
            all_high: joules * 2.0,
            work: vec![(Some(Duty::Flush), 0.5, 1e9), (Some(Duty::Flush), 0.5, 2e9), (None, 0.0, 1e9)],
            ..Piece::default()
        }
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let mut history = History::default();
        for second in 0..2 * 3600 {
            history.add(1_000_000 * 60 + second, &piece(3.0));
        }
        let minutes: Vec<&Minute> = history.minutes().collect();
        assert_eq!(minutes.len(), MAX_MINUTES);
        assert_eq!(minutes[60].unix_s, (1_000_000 + 119) * 60);
        assert_eq!((minutes[60].joules["flush"], minutes[60].joules["idle"]), (180.0, 60.0));
        assert_eq!((minutes[60].seconds, minutes[60].all_high_joules), (60.0, 360.0));
        assert!((minutes[60].cycles["flush"] / minutes[60].cpu_s["flush"] - 1.5e9).abs() < 1.0);
        assert!(!minutes[60].cpu_s.contains_key("unattributed"));
    }

    #[test]
    fn a_clock_that_is_set_back_loses_nothing() {
        let mut history = History::default();
        for unix_s in [6_000, 5_000, 5_059, 6_001, 6_060] {
            history.add(unix_s, &piece(1.0));
        }
        let seconds: Vec<f64> = history.minutes().map(|minute| minute.seconds).collect();
        assert_eq!(seconds, [4.0, 1.0]);
    }
}
