//! All that the screen shows, and what keys do to it.

use std::collections::BTreeMap;

use super::rates::{self, Rates, Track};
use super::snapshot::{ServerState, Snapshot};

/// By what the table is sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::top) enum Sort {
    #[default]
    Name,
    Operations,
    Writes,
    Level0,
    Watts,
    Jobs,
}

impl Sort {
    const ALL: [Sort; 6] = [Sort::Name, Sort::Operations, Sort::Writes, Sort::Level0, Sort::Watts, Sort::Jobs];

    pub(in crate::top) fn name(self) -> &'static str {
        match self {
            Sort::Name => "name",
            Sort::Operations => "ops/s",
            Sort::Writes => "writes",
            Sort::Level0 => "L0",
            Sort::Watts => "watts",
            Sort::Jobs => "jobs",
        }
    }

    fn next(self) -> Self {
        let index = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(index + 1) % Self::ALL.len()]
    }

    /// The greatest comes first.
    fn figure(self, row: &Row<'_>) -> f64 {
        let state = row.state;
        match self {
            Sort::Name => 0.0,
            Sort::Operations => row.rates.ops_per_s.unwrap_or(-1.0),
            Sort::Writes => row.rates.write_bytes_per_s.unwrap_or(-1.0),
            Sort::Level0 => state.l0_tables.map_or(-1.0, |tables| tables as f64),
            Sort::Watts => row.rates.watts.unwrap_or(-1.0),
            Sort::Jobs => {
                [state.running_compactions, state.running_worker_jobs].into_iter().flatten().sum::<u64>() as f64
            }
        }
    }
}

/// What a user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::top) enum Wish {
    Up,
    Down,
    First,
    Last,
    Sort,
    Pause,
    Help,
    /// Away with the help.
    Back,
}

/// The server that is asked does not answer.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::top) struct Trouble {
    pub why: String,
    /// When it is asked again, in seconds of the asker's clock.
    pub next_try_s: f64,
}

/// One server of the table.
#[derive(Debug, Clone, Copy)]
pub(in crate::top) struct Row<'a> {
    pub state: &'a ServerState,
    /// Nothing, of a server that is gone.
    pub rates: Rates,
    pub is_selected: bool,
}

/// Figures of the server that is asked, between its last two answers. `None` before there are two
/// of one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::top) struct OwnRates {
    pub watts_by_duty: BTreeMap<String, f64>,
    pub gc_bytes_per_s: Option<f64>,
    pub removed_bytes_per_s: Option<f64>,
    /// The share of time for which writers were throttled; more than 1 where several were.
    pub throttled_share: Option<f64>,
}

/// The state of the screen.
#[derive(Debug, Default)]
pub(in crate::top) struct Board {
    /// Who is asked, and how often.
    pub address: String,
    pub interval_s: f64,
    /// The last answer; `None` before the first.
    pub snapshot: Option<Snapshot>,
    pub own: OwnRates,
    pub trouble: Option<Trouble>,
    pub sort: Sort,
    pub is_paused: bool,
    pub shows_help: bool,
    tracks: BTreeMap<String, Track>,
    /// The name of the selected server; the one that is asked until somebody selects another.
    selected: Option<String>,
}

impl Board {
    pub(in crate::top) fn new(address: &str, interval_s: f64) -> Self {
        Self { address: address.to_owned(), interval_s, ..Self::default() }
    }

    /// An answer has come. While the screen is paused it changes nothing.
    pub(in crate::top) fn take(&mut self, snapshot: Snapshot) {
        self.trouble = None;
        if self.is_paused {
            return;
        }
        self.tracks.retain(|name, _| snapshot.servers.iter().any(|server| server.name == *name));
        let period_s = self.period_s();
        for server in &snapshot.servers {
            self.tracks.entry(server.name.clone()).or_default().take(server, period_s);
        }
        self.own = match &self.snapshot {
            Some(before) if before.run == snapshot.run => between(before, &snapshot),
            _ => OwnRates::default(),
        };
        self.snapshot = Some(snapshot);
    }

    /// No answer has come.
    pub(in crate::top) fn lose(&mut self, trouble: Trouble) {
        self.trouble = Some(trouble);
    }

    pub(in crate::top) fn wish(&mut self, wish: Wish) {
        let names: Vec<String> = self.rows().iter().map(|row| row.state.name.clone()).collect();
        let at = names.iter().position(|name| Some(name.as_str()) == self.selected_name()).unwrap_or(0);
        let last = names.len().saturating_sub(1);
        let mut select = |index: usize| self.selected = names.get(index).cloned();
        match wish {
            Wish::Up => select(at.saturating_sub(1)),
            Wish::Down => select((at + 1).min(last)),
            Wish::First => select(0),
            Wish::Last => select(last),
            Wish::Sort => self.sort = self.sort.next(),
            Wish::Pause => self.is_paused = !self.is_paused,
            Wish::Help => self.shows_help = !self.shows_help,
            Wish::Back => self.shows_help = false,
        }
    }

    /// The servers in the order of the table.
    pub(in crate::top) fn rows(&self) -> Vec<Row<'_>> {
        let selected = self.selected_name();
        let servers = self.snapshot.iter().flat_map(|snapshot| &snapshot.servers);
        let mut rows: Vec<Row<'_>> = servers
            .map(|state| Row {
                state,
                rates: if state.is_gone() {
                    Rates::default()
                } else {
                    self.track(&state.name).map_or_else(Rates::default, |track| track.rates)
                },
                is_selected: Some(state.name.as_str()) == selected,
            })
            .collect();
        rows.sort_by(|one, other| {
            let figures = self.sort.figure(other).total_cmp(&self.sort.figure(one));
            figures.then_with(|| one.state.name.cmp(&other.state.name))
        });
        rows
    }

    /// Seconds between two figures of a server's history.
    pub(in crate::top) fn period_s(&self) -> f64 {
        rates::period_s(self.interval_s)
    }

    /// The figures of a server over time.
    pub(in crate::top) fn track(&self, name: &str) -> Option<&Track> {
        self.tracks.get(name)
    }

    /// The selected server, as long as it is in the table; else the one that is asked.
    pub(in crate::top) fn selected_name(&self) -> Option<&str> {
        let servers = &self.snapshot.as_ref()?.servers;
        let chosen = servers.iter().find(|server| Some(&server.name) == self.selected.as_ref());
        chosen
            .or_else(|| servers.iter().find(|server| server.is_self))
            .or(servers.first())
            .map(|server| server.name.as_str())
    }
}

fn between(before: &Snapshot, now: &Snapshot) -> OwnRates {
    let passed_s = now.at_s - before.at_s;
    if passed_s <= 0.0 {
        return OwnRates::default();
    }
    let watts = now.joules_by_duty.iter().filter_map(|(duty, joules)| {
        let grown = joules - before.joules_by_duty.get(duty)?;
        (grown >= 0.0).then(|| (duty.clone(), grown / passed_s))
    });
    let per_s = |figure: fn(&super::snapshot::Values) -> u64| {
        let (now, before) = (now.values.as_ref()?, before.values.as_ref()?);
        Some(figure(now).checked_sub(figure(before))? as f64 / passed_s)
    };
    OwnRates {
        watts_by_duty: watts.collect(),
        gc_bytes_per_s: per_s(|values| values.gc_bytes_total),
        removed_bytes_per_s: per_s(|values| values.removed_bytes_total),
        throttled_share: per_s(|values| values.throttled_ms_total).map(|throttled_ms| throttled_ms / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, l0_tables: u64) -> ServerState {
        ServerState { name: name.into(), l0_tables: Some(l0_tables), is_self: name == "b", ..ServerState::default() }
    }

    fn snapshot(servers: &[(&str, u64)]) -> Snapshot {
        Snapshot { servers: servers.iter().map(|(name, l0)| server(name, *l0)).collect(), ..Snapshot::default() }
    }

    fn order(board: &Board) -> Vec<&str> {
        board.rows().iter().map(|row| row.state.name.as_str()).collect()
    }

    #[test]
    fn a_selected_server_stays_selected_wherever_it_stands() {
        let mut board = Board::new("here", 1.0);
        assert_eq!(board.selected_name(), None);
        board.wish(Wish::Down);
        board.take(snapshot(&[("b", 1), ("a", 5), ("c", 9)]));
        assert_eq!((order(&board), board.selected_name()), (vec!["a", "b", "c"], Some("b")));
        board.wish(Wish::Down);
        board.wish(Wish::Down);
        assert_eq!(board.selected_name(), Some("c"));
        while board.sort != Sort::Level0 {
            board.wish(Wish::Sort);
        }
        assert_eq!((order(&board), board.selected_name()), (vec!["c", "a", "b"], Some("c")));
        // It has left the federation.
        board.take(snapshot(&[("b", 1), ("a", 5)]));
        assert_eq!(board.selected_name(), Some("b"));
        board.wish(Wish::First);
        assert_eq!(board.selected_name(), Some("a"));
    }

    #[test]
    fn a_paused_screen_stands_still_and_tells_when_the_server_is_back() {
        let mut board = Board::new("here", 1.0);
        board.take(snapshot(&[("a", 1)]));
        board.wish(Wish::Pause);
        board.lose(Trouble { why: "gone".into(), next_try_s: 1.0 });
        board.take(snapshot(&[("a", 2)]));
        assert_eq!((board.rows()[0].state.l0_tables, &board.trouble), (Some(1), &None));
        board.wish(Wish::Pause);
        board.take(snapshot(&[("a", 3)]));
        assert_eq!(board.rows()[0].state.l0_tables, Some(3));
    }

    #[test]
    fn own_figures_begin_anew_with_another_run() {
        let of = |run: &str, at_s: f64, joules: f64, throttled_ms_total: u64| Snapshot {
            run: run.into(),
            at_s,
            joules_by_duty: [("flush".to_owned(), joules)].into(),
            values: Some(super::super::snapshot::Values { throttled_ms_total, ..Default::default() }),
            ..Snapshot::default()
        };
        let mut board = Board::new("here", 1.0);
        board.take(of("1", 0.0, 10.0, 0));
        board.take(of("1", 2.0, 13.0, 500));
        assert_eq!((board.own.watts_by_duty["flush"], board.own.throttled_share), (1.5, Some(0.25)));
        board.take(of("2", 3.0, 100.0, 900));
        assert_eq!(board.own, OwnRates::default());
    }
}
