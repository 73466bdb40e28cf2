//! How many lanes serve the clients.
//!
//! One lane that serves all clients reads from many sockets each time it wakes and commits for all of them at once; two lanes each wake, read and
//! commit by themselves. So more lanes cost processor time, and pay where one cannot keep up and much of a core is free. Which holds is not
//! guessed: where it might, twice as many lanes serve for a moment, and go on if that carried more requests, or as many with room for more;
//! now and then half as many do, and go on if that carried as many. Lanes that have little to do are halved without a trial.
//!
//! Pure: what was seen comes in, window by window, and a number of lanes goes out.

/// A lane that is busy for this share of the time has clients waiting. The rest goes into asking the kernel what has come.
const SATURATED: f64 = 0.75;

/// Lanes that would not be busier than this if they were half as many are halved without a trial.
const RELAXED: f64 = 0.5;

/// So many windows in a row must be relaxed.
const RELAXED_WINDOWS: u32 = 4;

/// Less of a core than this for each lane more is not worth a trial: [`GAIN`] times the requests, each at 1.1 to 1.4 times the processor
/// time, take a sixth to half of a core more, and their clients a sixteenth.
const TRIED_CORES: f64 = 0.35;

/// Lanes that leave as much of a core as this stay more where they carry no less.
const FREE_CORES: f64 = 0.5;

/// Lanes have room where as much of a core is left.
const ROOM_CORES: f64 = 0.2;

/// Lanes that have no rest, or leave less than [`FREE_CORES`], stay more only if they carry so many times the requests.
const GAIN: f64 = 1.06;

/// As many requests, within what two neighbouring windows differ by.
const SAME: f64 = 0.95;

/// More requests, by more than two neighbouring times of as many windows differ by.
const MORE: f64 = 1.05;

/// Windows of a trial that do not count: clients are just going to their lanes.
const SETTLING_WINDOWS: u32 = 1;

/// Windows of a trial that count, and as many before it.
const TRIAL_WINDOWS: usize = 4;

/// A trial ends after half of those where all of them carry less than this part of the requests.
const HOPELESS: f64 = 0.9;

/// Half as many lanes are tried where they would be busy for no more than this, or where those there are leave no room anyway.
const FITTING: f64 = 1.1;

/// Windows between two trials, unless the second goes on in the direction in which the first was kept. Each that fails doubles them.
const MIN_PAUSE: u32 = 40;

/// Up to this: a minute of quarter seconds, of which a trial is then a fiftieth.
const MAX_PAUSE: u32 = 240;

/// The load is another one, and pauses are short again, when requests come so many times as often or cost so many times as much, or by so many
/// times less.
const OTHER_LOAD: f64 = 1.5;

/// What was seen in one window of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Window {
    /// Clients there are, those included that ask for nothing. A lane without one carries nothing.
    pub(super) clients: usize,
    /// Requests carried out by second.
    pub(super) requests_per_s: f64,
    /// Of all lanes, added up: the share of the window in which one was busy.
    pub(super) busy_lanes: f64,
    /// Cores of the machine that nobody used; `None`: not known.
    pub(super) idle_cores: Option<f64>,
}

impl Window {
    /// Busy time of a request, in seconds.
    fn cost(&self) -> f64 {
        self.busy_lanes / self.requests_per_s.max(1.0)
    }

    fn has_cores(&self, least: f64) -> bool {
        self.idle_cores.is_none_or(|idle| idle >= least)
    }
}

/// Decides.
#[derive(Debug)]
pub(super) struct Width {
    most: usize,
    lanes: usize,
    /// At this width, the latest last.
    seen: Vec<Window>,
    relaxed_windows: u32,
    trial: Option<Trial>,
    last: Option<LastTrial>,
    /// What a request cost before the last trial of more lanes.
    narrow_cost: Option<f64>,
}

#[derive(Debug)]
struct Trial {
    from: usize,
    before: Window,
    windows: u32,
}

#[derive(Debug)]
struct LastTrial {
    was_wider: bool,
    was_kept: bool,
    /// What was seen at the width that it came to.
    seen: Window,
    windows_since: u32,
    pause: u32,
}

impl Width {
    /// One lane, and `most` of them at most.
    pub(super) fn new(most: usize) -> Self {
        Self { most, lanes: 1, seen: Vec::new(), relaxed_windows: 0, trial: None, last: None, narrow_cost: None }
    }

    /// How many lanes are to serve after what `window` shows.
    pub(super) fn after(&mut self, window: Window) -> usize {
        match self.trial.take() {
            Some(trial) => self.go_on(trial, window),
            None => self.consider(window),
        }
        self.lanes
    }

    fn consider(&mut self, window: Window) {
        if let Some(last) = &mut self.last {
            last.windows_since = last.windows_since.saturating_add(1);
        }
        self.note(window);
        let fewer = self.lanes / 2;
        if window.busy_lanes < RELAXED * self.lanes as f64 / 2.0 {
            self.relaxed_windows += 1;
            if self.relaxed_windows == RELAXED_WINDOWS {
                // What was tried under that load says nothing of the next.
                self.last = None;
                self.turn_to(fewer.max(1));
            }
            return;
        }
        self.relaxed_windows = 0;
        if self.seen.len() < TRIAL_WINDOWS {
            return;
        }
        let before = typical(&self.seen);
        if before.requests_per_s == 0.0 {
            return;
        }
        let most = self.most.min(before.clients);
        let wider = (2 * self.lanes).min(most);
        let has_cores = before.has_cores(TRIED_CORES * wider.saturating_sub(self.lanes) as f64);
        let could_use_more = self.lanes < most && self.has_saturated_lanes(&before) && has_cores;
        let wider = could_use_more.then_some(wider);
        // Lanes with room are not made fewer than can carry the load: their clients would wait. Requests cost fewer lanes less, as they did then.
        let cost = self.narrow_cost.map_or(before.cost(), |then| then.min(before.cost()));
        let fits = before.requests_per_s * cost <= FITTING * fewer as f64;
        let narrower = (fewer > 0 && (fits || !self.has_room(&before, ROOM_CORES))).then_some(fewer);
        let lanes = match &self.last {
            // More were in vain, or fewer were not: first on in that direction.
            Some(last) if last.was_wider != last.was_kept => narrower.or(wider),
            _ => wider.or(narrower),
        };
        if let Some(lanes) = lanes
            && !self.pauses(lanes > self.lanes, &before)
        {
            if lanes > self.lanes {
                self.narrow_cost = Some(before.cost());
            }
            self.trial = Some(Trial { from: self.lanes, before, windows: 0 });
            self.turn_to(lanes);
        }
    }

    fn go_on(&mut self, mut trial: Trial, window: Window) {
        trial.windows += 1;
        if trial.windows > SETTLING_WINDOWS {
            self.note(window);
        }
        let gain = |now: &Window| now.requests_per_s / trial.before.requests_per_s;
        let is_hopeless =
            self.seen.len() == TRIAL_WINDOWS / 2 && self.seen.iter().all(|window| gain(window) < HOPELESS);
        if self.seen.len() < TRIAL_WINDOWS && !is_hopeless {
            self.trial = Some(trial);
            return;
        }
        let was_wider = self.lanes > trial.from;
        let now = typical(&self.seen);
        let needs_gain = was_wider && !self.has_room(&now, FREE_CORES);
        let was_kept = gain(&now) >= if needs_gain { GAIN } else { SAME };
        let pause = match &self.last {
            Some(last) if !was_kept && !last.is_of_other_load(&trial.before) => (last.pause * 2).min(MAX_PAUSE),
            _ => MIN_PAUSE,
        };
        let seen = if was_kept { now } else { trial.before };
        self.last = Some(LastTrial { was_wider, was_kept, seen, windows_since: 0, pause });
        // What is seen from here on is compared with the next trial: the load may have changed within this one.
        self.turn_to(if was_kept { self.lanes } else { trial.from });
    }

    fn turn_to(&mut self, lanes: usize) {
        self.lanes = lanes;
        self.seen.clear();
        self.relaxed_windows = 0;
    }

    fn note(&mut self, window: Window) {
        if self.seen.len() == TRIAL_WINDOWS {
            self.seen.remove(0);
        }
        self.seen.push(window);
    }

    fn pauses(&self, would_widen: bool, now: &Window) -> bool {
        self.last.as_ref().is_some_and(|last| {
            let goes_on = last.was_kept && last.was_wider == would_widen;
            let pause = match (last.is_of_other_load(now), would_widen) {
                // Lanes that have no rest carry more than they did: clients may send much more.
                (_, true) if now.requests_per_s > MORE * last.seen.requests_per_s => 0,
                (true, true) => MIN_PAUSE,
                // What made them more is over.
                (true, false) => 0,
                (false, _) => last.pause,
            };
            !goes_on && last.windows_since < pause
        })
    }

    fn has_saturated_lanes(&self, window: &Window) -> bool {
        window.busy_lanes >= SATURATED * self.lanes as f64
    }

    fn has_room(&self, window: &Window, cores: f64) -> bool {
        !self.has_saturated_lanes(window) && window.has_cores(cores)
    }
}

impl LastTrial {
    fn is_of_other_load(&self, now: &Window) -> bool {
        let is_other = |now: f64, then: f64| now > OTHER_LOAD * then || then > OTHER_LOAD * now;
        is_other(now.requests_per_s, self.seen.requests_per_s) || is_other(now.cost(), self.seen.cost())
    }
}

/// Medians, which one window of another load does not move.
fn typical(windows: &[Window]) -> Window {
    let of = |value: fn(&Window) -> f64| median(windows.iter().map(value).collect());
    let idle: Option<Vec<f64>> = windows.iter().map(|window| window.idle_cores).collect();
    Window {
        clients: windows.iter().map(|window| window.clients).max().unwrap_or(0),
        requests_per_s: of(|window| window.requests_per_s),
        busy_lanes: of(|window| window.busy_lanes),
        idle_cores: idle.map(median),
    }
}

/// The mean of the two numbers in the middle. There is one at least.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let upper = values.len() / 2;
    (values[values.len().div_ceil(2) - 1] + values[upper]) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine and the clients that load it, in steady state.
    #[derive(Clone, Copy)]
    struct Load {
        cores: f64,
        /// Seconds of a lane that a request takes where one lane serves, and by which it grows with each lane more.
        request_s: f64,
        more_s: f64,
        /// Cores that clients use for each request carried out by second.
        client_s: f64,
        /// Clients on machines of their own send this much; `None`: as much as is answered.
        sent_per_s: Option<f64>,
        /// Lanes wait for each other: together they carry no more than one.
        one_key: bool,
    }

    const NEAR: Load =
        Load { cores: 2.0, request_s: 20e-6, more_s: 8e-6, client_s: 20e-6, sent_per_s: None, one_key: false };

    impl Load {
        fn window(&self, lanes: usize) -> Window {
            let request_s = self.request_s + self.more_s * (lanes - 1) as f64;
            let carried = if self.one_key { 1.0 } else { lanes as f64 } / request_s;
            let carried = carried.min(self.cores / (request_s + self.client_s));
            let requests_per_s = self.sent_per_s.map_or(carried, |sent| sent.min(carried));
            // Who waits for a core is busy as well.
            let busy =
                if self.sent_per_s.is_none() && !self.one_key { lanes as f64 } else { requests_per_s * request_s };
            let idle = self.cores - requests_per_s * (request_s + self.client_s);
            Window { clients: 50, requests_per_s, busy_lanes: 0.95 * busy, idle_cores: Some(idle.max(0.0)) }
        }

        /// Lanes in each of `windows`.
        fn lanes(&self, width: &mut Width, windows: usize) -> Vec<usize> {
            (0..windows).map(|_| width.after(self.window(width.lanes))).collect()
        }
    }

    fn share(lanes: &[usize], of: usize) -> f64 {
        lanes.iter().filter(|one| **one == of).count() as f64 / lanes.len() as f64
    }

    #[test]
    fn clients_that_use_the_other_core_themselves_are_served_by_one_lane() {
        let lanes = NEAR.lanes(&mut Width::new(2), 4000);
        assert_eq!(share(&lanes, 1), 1.0, "nothing is free, so nothing is tried");
        // Something is free, and yet it does not pay.
        let lanes = Load { cores: 2.5, ..NEAR }.lanes(&mut Width::new(2), 4000);
        let tried = share(&lanes, 2);
        assert!(tried > 0.0 && tried < 0.03, "{tried}");
        assert_eq!(lanes[..12].iter().max(), Some(&2));
    }

    #[test]
    fn long_requests_get_as_many_lanes_as_they_have_cores_for() {
        let far = Load { request_s: 80e-6, client_s: 0.0, ..NEAR };
        let lanes = far.lanes(&mut Width::new(2), 4000);
        assert!(lanes.iter().position(|lanes| *lanes == 2).unwrap() < 6);
        assert!(share(&lanes, 2) > 0.97, "{}", share(&lanes, 2));
        for cores in [4, 6, 16] {
            let lanes = Load { cores: cores as f64, more_s: 1e-6, ..far }.lanes(&mut Width::new(cores), 4000);
            assert!(share(&lanes, cores) > 0.95, "{cores}: {}", share(&lanes, cores));
        }
    }

    #[test]
    fn lanes_that_wait_for_each_other_become_one() {
        let contended = Load { cores: 4.0, client_s: 0.0, one_key: true, ..NEAR };
        let mut width = Width::new(4);
        let spread = Load { one_key: false, ..contended };
        assert_eq!(spread.lanes(&mut width, 400).last(), Some(&4));
        let lanes = contended.lanes(&mut width, 4000);
        assert!(share(&lanes[100..], 1) > 0.95, "{lanes:?}");
    }

    /// Clients that send at a rate of their own send later what was not answered. How late they are at most, in seconds.
    fn lateness_s(load: Load, width: &mut Width, windows: usize) -> f64 {
        let (window_s, mut late, mut latest_s) = (0.25, 0.0_f64, 0.0_f64);
        let sent_per_s = load.sent_per_s.unwrap();
        for _ in 0..windows {
            let window = Load { sent_per_s: Some(sent_per_s + late / window_s), ..load }.window(width.lanes);
            late += (sent_per_s - window.requests_per_s) * window_s;
            latest_s = latest_s.max(late / sent_per_s);
            width.after(window);
        }
        latest_s
    }

    #[test]
    fn clients_that_send_what_one_lane_just_cannot_carry_get_two() {
        for (more_s, times) in
            [0.0, 1e-6, 8e-6].into_iter().flat_map(|more_s| [1.02, 1.04, 1.08, 1.12].map(|it| (more_s, it)))
        {
            let open = Load { cores: 4.0, client_s: 0.0, more_s, sent_per_s: Some(50_000.0 * times), ..NEAR };
            let late_s = lateness_s(open, &mut Width::new(4), 4000);
            assert!(late_s < 1.5, "{times} of what one carries, {more_s}: late by {late_s} s");
        }
    }

    #[test]
    fn clients_that_begin_to_send_more_do_not_wait_for_the_next_trial() {
        let late_s = |windows| {
            let mut width = Width::new(4);
            let open = Load { cores: 4.0, client_s: 0.0, more_s: 2e-6, sent_per_s: Some(46_000.0), ..NEAR };
            lateness_s(open, &mut width, windows);
            lateness_s(Load { sent_per_s: Some(100_000.0), ..open }, &mut width, 400)
        };
        let mut late_s: Vec<f64> = (400..700).map(late_s).collect();
        late_s.sort_unstable_by(f64::total_cmp);
        // Those who begin within a trial of fewer lanes make it look good, and wait for the shortest pause.
        assert!(late_s[270] < 3.0 && late_s[299] < 7.0, "{late_s:?}");
    }

    #[test]
    fn one_stalled_window_does_not_end_a_trial() {
        let far = Load { request_s: 80e-6, client_s: 0.0, ..NEAR };
        let mut width = Width::new(2);
        let mut lanes = Vec::new();
        for number in 0..20 {
            let window = far.window(width.lanes);
            let stalled = Window { requests_per_s: 0.0, ..window };
            lanes.push(width.after(if number == 5 { stalled } else { window }));
        }
        assert_eq!(lanes[3..], [2; 17]);
    }

    #[test]
    fn a_trial_that_carries_much_less_is_short() {
        let contended = Load { cores: 4.0, client_s: 0.0, one_key: true, ..NEAR };
        let busy = |lanes: usize| Window { busy_lanes: 0.95 * lanes as f64, ..contended.window(lanes) };
        let mut width = Width::new(2);
        let lanes: Vec<_> = (0..12).map(|_| width.after(busy(width.lanes))).collect();
        assert_eq!(lanes[2..8], [1, 2, 2, 2, 1, 1], "one window to settle, and half of those that count");
    }

    #[test]
    fn one_client_has_one_lane() {
        let far = Load { request_s: 80e-6, client_s: 0.0, ..NEAR };
        let mut width = Width::new(2);
        let lanes: Vec<usize> =
            (0..400).map(|_| width.after(Window { clients: 1, ..far.window(width.lanes) })).collect();
        assert_eq!(share(&lanes, 1), 1.0);
    }

    #[test]
    fn lanes_that_another_load_has_made_two_become_one_soon() {
        let far = Load { request_s: 80e-6, client_s: 0.0, ..NEAR };
        let mut width = Width::new(2);
        assert_eq!(far.lanes(&mut width, 40).last(), Some(&2));
        // More than one lane carries by the processor time of two, and less than two have room for.
        let near = Load { sent_per_s: Some(40_000.0), client_s: 0.0, ..NEAR };
        let lanes = near.lanes(&mut width, 400);
        assert!(lanes[..10].contains(&1), "{lanes:?}");
    }

    /// As where clients go from pipelines to one request at a time.
    #[test]
    fn lanes_that_a_change_of_load_within_a_trial_has_made_two_become_one_soon() {
        let cheap = Load { request_s: 5e-6, more_s: 2e-6, client_s: 0.0, ..NEAR };
        for windows in 0..20 {
            let mut width = Width::new(2);
            cheap.lanes(&mut width, windows);
            let lanes = NEAR.lanes(&mut width, 60);
            assert!(share(&lanes, 1) > 0.8, "{windows}: {lanes:?}");
        }
    }

    #[test]
    fn lanes_with_little_to_do_become_one_and_stay_it() {
        let mut width = Width::new(16);
        let loaded = Load { cores: 16.0, client_s: 0.0, more_s: 0.0, ..NEAR };
        assert_eq!(loaded.lanes(&mut width, 100).last(), Some(&16));
        let light = Load { sent_per_s: Some(5_000.0), ..loaded };
        let lanes = light.lanes(&mut width, 40);
        assert_eq!(lanes.last(), Some(&1));
        assert_eq!(share(&light.lanes(&mut width, 4000), 1), 1.0);
        let idle = Load { sent_per_s: Some(0.0), ..loaded };
        assert_eq!(share(&idle.lanes(&mut width, 4000), 1), 1.0);
    }

    #[test]
    fn after_a_lull_as_many_lanes_serve_again_soon() {
        let far = Load { cores: 4.0, request_s: 80e-6, more_s: 1e-6, client_s: 0.0, ..NEAR };
        let mut width = Width::new(4);
        assert!(share(&far.lanes(&mut width, 4000), 4) > 0.9);
        assert_eq!(Load { sent_per_s: Some(0.0), ..far }.lanes(&mut width, 12).last(), Some(&1));
        let lanes = far.lanes(&mut width, 40);
        assert!(lanes[..20].contains(&4), "{lanes:?}");
    }

    #[test]
    fn lanes_go_on_becoming_fewer_where_that_carries_more() {
        let contended = Load { cores: 16.0, client_s: 0.0, one_key: true, ..NEAR };
        let mut width = Width::new(16);
        Load { one_key: false, more_s: 0.0, ..contended }.lanes(&mut width, 400);
        // They never rest: who waits for a latch may do so busily.
        let busy = |lanes: usize| Window { busy_lanes: 0.95 * lanes as f64, ..contended.window(lanes) };
        let lanes: Vec<_> = (0..300).map(|_| width.after(busy(width.lanes))).collect();
        let first = lanes.iter().position(|lanes| *lanes == 4).unwrap();
        assert!(lanes[first..first + 20].contains(&1), "{lanes:?}");
    }

    #[test]
    fn lanes_with_room_are_not_made_fewer_than_carry_the_load() {
        let open = Load { cores: 8.0, client_s: 0.0, more_s: 0.0, sent_per_s: Some(120_000.0), ..NEAR };
        let mut width = Width::new(4);
        open.lanes(&mut width, 200);
        let lanes = open.lanes(&mut width, 4000);
        assert_eq!(share(&lanes, 4), 1.0, "2.4 lanes of work");
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_tried_out() {
        let unknown = |lanes| Window { idle_cores: None, ..NEAR.window(lanes) };
        let mut width = Width::new(2);
        let lanes: Vec<usize> = (0..4000).map(|_| width.after(unknown(width.lanes))).collect();
        assert_eq!(lanes[3], 2);
        assert!(share(&lanes, 1) > 0.97, "{}", share(&lanes, 1));
    }

    #[test]
    fn no_window_leads_beyond_the_bounds() {
        // A generator of its own: windows need no good ones.
        let mut state = 7_u64;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f64 / (1_u64 << 24) as f64
        };
        for most in [1, 2, 3, 5, 8] {
            let mut width = Width::new(most);
            for _ in 0..20_000 {
                let window = Window {
                    clients: (random() * 10.0) as usize,
                    requests_per_s: if random() < 0.1 { 0.0 } else { random() * 1e5 },
                    busy_lanes: random() * most as f64,
                    idle_cores: Some(random()),
                };
                let lanes = width.after(window);
                assert!((1..=most).contains(&lanes));
            }
        }
    }
}
