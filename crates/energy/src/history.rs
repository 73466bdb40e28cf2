//! The last hour by minute: what was spent on what, at which frequency, and what it would have
//! taken at the highest one. Pure.
//!
//! Minutes are cut by time that went by, and named by the wall clock as it is now: one that is set
//! renames them all, and mixes none.
//!
//! Bound: [`MAX_MINUTES`] minutes; an older one is dropped.

use std::collections::{BTreeMap, VecDeque};

use ecotone_types::Duty;
use ecotone_types::units::Time;
use serde::{Deserialize, Serialize};

use crate::meters::Attribution;
use crate::reading::{IDLE, UNATTRIBUTED};

/// How many minutes are kept: an hour, and the one under way.
pub const MAX_MINUTES: usize = 61;

const MINUTE_S: u64 = 60;
/// A clock that differs by less was not set: it is read in whole seconds, and kept right by small
/// steps.
const MAX_CLOCK_JITTER_S: f64 = 2.0;

/// A minute of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Minute {
    /// When it began, in seconds since 1970 by the clock as it was set last.
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
    /// The wall clock's seconds at time 0, as minutes are named.
    began: Option<f64>,
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

    /// Where a time is on the wall clock, after minutes were renamed by one that was set.
    fn on_clock(&mut self, now: Time, unix_s: u64) -> u64 {
        let since = now.since(Time::default()).0;
        let began = unix_s as f64 - since;
        let was = *self.began.get_or_insert(began);
        if (began - was).abs() <= MAX_CLOCK_JITTER_S {
            return (was + since).max(0.0) as u64;
        }
        let by = (began - was).round() as i64;
        self.minutes.iter_mut().for_each(|minute| minute.unix_s = minute.unix_s.saturating_add_signed(by));
        self.began = Some(began);
        unix_s
    }

    /// Adds a piece that ended at `now`, which is `unix_s` by the wall clock.
    pub(crate) fn add(&mut self, now: Time, unix_s: u64, piece: &Piece<'_>) {
        let at = self.on_clock(now, unix_s);
        // Of a clock that was set its minutes begin where those before end.
        let next = self.minutes.back().map_or(0, |last| last.unix_s + MINUTE_S);
        if self.minutes.is_empty() || at >= next {
            let begin = (at / MINUTE_S * MINUTE_S).max(next);
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
            history.add(Time::from_seconds(second as f64 + 17.0), 1_000_000 * 60 + second, &piece(3.0));
        }
        let minutes: Vec<&Minute> = history.minutes().collect();
        assert_eq!(minutes.len(), MAX_MINUTES);
        assert_eq!(minutes[60].unix_s, (1_000_000 + 119) * 60);
        assert_eq!((minutes[60].joules["flush"], minutes[60].joules["idle"]), (180.0, 60.0));
        assert_eq!((minutes[60].seconds, minutes[60].all_high_joules), (60.0, 360.0));
        assert!((minutes[60].cycles["flush"] / minutes[60].cpu_s["flush"] - 1.5e9).abs() < 1.0);
        assert!(!minutes[60].cpu_s.contains_key("unattributed"));
    }

    /// Half an hour with a clock that is set in the middle.
    fn with_clock_set(by: i64) -> Vec<Minute> {
        let mut history = History::default();
        for second in 0..1800u64 {
            let unix_s = 1_000_020 + second;
            let unix_s = if second < 900 { unix_s } else { unix_s.saturating_add_signed(by) };
            history.add(Time::from_seconds(second as f64 + 0.4), unix_s, &piece(1.0));
        }
        history.minutes().cloned().collect()
    }

    #[test]
    fn a_clock_that_is_set_renames_minutes_and_mixes_none() {
        for by in [-100_000, -3600, -90, -7, 7, 90, 3600, 100_000] {
            let minutes = with_clock_set(by);
            let seconds: f64 = minutes.iter().map(|minute| minute.seconds).sum();
            assert_eq!(seconds, 1800.0, "{by}");
            assert!((30..=32).contains(&minutes.len()), "{by}: {} minutes", minutes.len());
            assert!(minutes.iter().all(|minute| minute.seconds <= 60.0), "{by}: {minutes:?}");
            let begins: Vec<u64> = minutes.iter().map(|minute| minute.unix_s).collect();
            assert!(begins.windows(2).all(|two| two[0] + 60 <= two[1]), "{by}: {begins:?}");
            // All of it is within the last half hour, by the clock as it is now.
            let now = (1_000_020i64 + 1799 + by) as u64;
            assert!(now - begins[0] <= 1860 && *begins.last().unwrap() <= now, "{by}: {begins:?}");
        }
    }

    #[test]
    fn a_clock_that_trembles_was_not_set() {
        let mut history = History::default();
        for second in 0..600u64 {
            let trembling = 6_000 + second + [0, 1, 0, 2][second as usize % 4];
            history.add(Time::from_seconds(second as f64), trembling, &piece(1.0));
        }
        let begins: Vec<u64> = history.minutes().map(|minute| minute.unix_s).collect();
        assert_eq!(begins, (0..10).map(|minute| 6_000 + minute * 60).collect::<Vec<u64>>());
    }
}
