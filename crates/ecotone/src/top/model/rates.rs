//! What a server does in a second, from two of its counts; and the last of these.
//!
//! The time between two counts is the server's own, so that it does not matter when somebody asked.
//! A counter that fell is that of a server that was started anew: nothing is derived from it until
//! the next count.

use std::collections::VecDeque;

use super::snapshot::ServerState;

/// Figures that are kept for the sparklines: as many as a wide terminal shows.
const MAX_HISTORY: usize = 512;

/// Seconds between two samples of a server: who asks more often gets nothing new.
const LOOK_S: f64 = 1.0;

/// Figures that one may be repeated for: whoever asks as often as the server samples misses a
/// sample now and then. A longer gap is left empty.
const MAX_REPEATED: usize = 2;

/// Seconds between two figures of somebody who asks every `interval_s`.
pub(in crate::top) fn period_s(interval_s: f64) -> f64 {
    interval_s.max(LOOK_S)
}

/// What one server does. `None`: not reported.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(in crate::top) struct Rates {
    pub ops_per_s: Option<f64>,
    pub write_bytes_per_s: Option<f64>,
    pub watts: Option<f64>,
    /// EpO, idle power included.
    pub joules_per_op: Option<f64>,
    /// The share of time in which writes were slowed or stopped, 0 to 1.
    pub stall_share: Option<f64>,
}

impl Rates {
    /// Of its last second, as the server itself reports.
    pub(in crate::top) fn reported(now: &ServerState) -> Self {
        Rates {
            ops_per_s: now.ops_per_s,
            write_bytes_per_s: now.write_bytes_per_s,
            watts: now.watts,
            joules_per_op: now.ops_per_s.filter(|ops| *ops > 0.0).and_then(|ops| Some(now.watts? / ops)),
            stall_share: now.writers.as_ref().map(|writers| if writers == "run" { 0.0 } else { 1.0 }),
        }
    }

    /// Between two counts; `None` where no time has passed between them, or the server was started
    /// anew.
    pub(in crate::top) fn between(before: &ServerState, now: &ServerState) -> Option<Self> {
        let passed_ms = now.uptime_ms?.checked_sub(before.uptime_ms?).filter(|passed_ms| *passed_ms > 0)?;
        let passed_s = passed_ms as f64 / 1e3;
        let grown = |before: Option<u64>, now: Option<u64>| Some(now?.checked_sub(before?)? as f64);
        let operations = grown(before.operations_total, now.operations_total);
        let joules = now.joules_total.zip(before.joules_total).map(|(now, before)| now - before);
        let joules = joules.filter(|joules| *joules >= 0.0);
        let per_s = |grown: Option<f64>| grown.map(|grown| grown / passed_s);
        Some(Rates {
            ops_per_s: per_s(operations),
            write_bytes_per_s: per_s(grown(before.written_bytes_total, now.written_bytes_total)),
            watts: per_s(joules),
            joules_per_op: operations.filter(|operations| *operations > 0.0).and_then(|ops| Some(joules? / ops)),
            stall_share: per_s(grown(before.stall_ms_total, now.stall_ms_total)).map(|ms| (ms / 1e3).min(1.0)),
        })
    }
}

/// The figures of one server over time.
#[derive(Debug, Default)]
pub(in crate::top) struct Track {
    last: Option<ServerState>,
    pub rates: Rates,
    /// The oldest first, one for each period; `None` where there is none.
    pub ops_per_s: VecDeque<Option<f64>>,
    pub stall_share: VecDeque<Option<f64>>,
    pub watts: VecDeque<Option<f64>>,
}

impl Track {
    /// The server has said something, new or not. There is to be a figure for each `period_s`.
    pub(in crate::top) fn take(&mut self, now: &ServerState, period_s: f64) {
        let is_news = self.last.as_ref().is_none_or(|last| last.uptime_ms != now.uptime_ms || now.uptime_ms.is_none());
        if !is_news {
            return;
        }
        let between = self.last.as_ref().and_then(|last| Rates::between(last, now));
        let (gap, figures) = self.last.as_ref().map_or((0, 1), |last| passed(last, now, period_s));
        self.rates = between.unwrap_or_else(|| Rates::reported(now));
        self.last = Some(now.clone());
        for (history, value) in [
            (&mut self.ops_per_s, self.rates.ops_per_s),
            (&mut self.stall_share, self.rates.stall_share),
            (&mut self.watts, self.rates.watts),
        ] {
            history.extend(std::iter::repeat_n(None, gap).chain(std::iter::repeat_n(value, figures)));
            history.drain(..history.len().saturating_sub(MAX_HISTORY));
        }
    }
}

/// How many periods between two counts have no figure, and for how many the new figure is repeated.
fn passed(last: &ServerState, now: &ServerState, period_s: f64) -> (usize, usize) {
    match (last.uptime_ms, now.uptime_ms) {
        (Some(last), Some(now)) if now > last => {
            let periods = ((now - last) as f64 / 1e3 / period_s).round().clamp(1.0, MAX_HISTORY as f64) as usize;
            if periods <= MAX_REPEATED { (0, periods) } else { (periods - 1, 1) }
        }
        // It was started anew, after nobody knows how long.
        (Some(_), Some(_)) => (1, 1),
        _ => (0, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(uptime_ms: u64, operations: u64, joules: f64) -> ServerState {
        ServerState {
            uptime_ms: Some(uptime_ms),
            operations_total: Some(operations),
            written_bytes_total: Some(operations.saturating_mul(100)),
            joules_total: Some(joules),
            stall_ms_total: Some(uptime_ms / 4),
            ops_per_s: Some(7.0),
            watts: Some(14.0),
            writers: Some("slowed".into()),
            ..ServerState::default()
        }
    }

    #[test]
    fn rates_are_over_the_servers_own_time() {
        let rates = Rates::between(&state(1_000, 10, 5.0), &state(3_000, 30, 25.0)).unwrap();
        assert_eq!((rates.ops_per_s, rates.write_bytes_per_s), (Some(10.0), Some(1000.0)));
        assert_eq!((rates.watts, rates.joules_per_op, rates.stall_share), (Some(10.0), Some(1.0), Some(0.25)));
    }

    #[test]
    fn after_a_restart_nothing_is_derived_from_what_was_before() {
        assert_eq!(Rates::between(&state(100_000, 1000, 500.0), &state(900, 3, 0.5)), None);
        // It was away so long that it is older than it was.
        let rates = Rates::between(&state(1_000, 1000, 500.0), &state(9_000, 3, 0.5)).unwrap();
        assert_eq!((rates.ops_per_s, rates.watts, rates.joules_per_op), (None, None, None));

        let mut track = Track::default();
        track.take(&state(100_000, 1000, 500.0), 1.0);
        track.take(&state(900, 3, 0.5), 1.0);
        assert_eq!(track.ops_per_s, [Some(7.0), None, Some(7.0)], "in between it was away");
        assert_eq!(track.rates.ops_per_s, Some(7.0), "what the server says of its last second");
        assert_eq!(track.rates.joules_per_op, Some(2.0));
        track.take(&state(1_900, 8, 2.5), 1.0);
        assert_eq!((track.rates.ops_per_s, track.rates.watts), (Some(5.0), Some(2.0)));
    }

    #[test]
    fn what_was_heard_before_changes_nothing_and_history_is_bounded() {
        let mut track = Track::default();
        for second in 1..2000 {
            track.take(&state(second * 1000, second * 5, 0.0), 1.0);
            let rates = track.rates;
            track.take(&state(second * 1000, second * 5, 0.0), 1.0);
            assert_eq!(track.rates, rates);
        }
        assert_eq!((track.ops_per_s.len(), track.ops_per_s.back()), (MAX_HISTORY, Some(&Some(5.0))));
        assert_eq!(track.rates.joules_per_op, Some(0.0));
    }

    #[test]
    fn there_is_a_figure_for_each_period_and_a_gap_where_nothing_was_seen() {
        let mut track = Track::default();
        // 5 operations a second, asked five times as often as the server samples; once it samples a
        // little late, once it is not asked in time.
        for uptime_ms in [1000, 1000, 1000, 1000, 1000, 2000, 2000, 3100, 5000] {
            track.take(&state(uptime_ms, uptime_ms / 200, 0.0), period_s(0.2));
        }
        assert_eq!(track.ops_per_s.len(), 5);
        assert!(track.ops_per_s.iter().skip(1).all(|figure| figure.is_some_and(|ops| (4.5..5.5).contains(&ops))));
        // Nobody asked for a minute: its mean is the figure at its end.
        track.take(&state(65_000, 325, 0.0), period_s(0.2));
        assert_eq!((track.ops_per_s.len(), track.ops_per_s.iter().filter(|figure| figure.is_none()).count()), (65, 59));
        assert_eq!(track.ops_per_s.back(), Some(&Some(5.0)));
        // Asked every ten seconds, that minute has six.
        let mut track = Track::default();
        track.take(&state(5_000, 25, 0.0), period_s(10.0));
        track.take(&state(65_000, 325, 0.0), period_s(10.0));
        assert_eq!(track.ops_per_s.len(), 7);
        // What is not reported is no zero.
        let mut track = Track::default();
        track.take(&ServerState { watts: None, ..state(1_000, 5, 0.0) }, 1.0);
        assert_eq!(track.watts, [None]);
        track.take(&state(u64::MAX, 5, 0.0), 1.0);
        assert_eq!(track.watts.len(), MAX_HISTORY);
    }

    #[test]
    fn figures_beyond_reason_stay_figures() {
        let before = state(0, 0, 0.0);
        let huge = ServerState { joules_total: Some(f64::MAX), ..state(1, u64::MAX, 0.0) };
        let rates = Rates::between(&before, &ServerState { written_bytes_total: Some(u64::MAX), ..huge });
        assert!(rates.unwrap().ops_per_s.is_some_and(f64::is_finite));
    }
}
