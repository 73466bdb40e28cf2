//! Event-loop scaling: how many event loops serve the clients.
//!
//! One event loop that serves all clients reads from many sockets on each wakeup and commits for
//! all of them at once; two event loops each wake, read and commit by themselves. So more event
//! loops cost processor time, and pay where one cannot keep up and much of a core is free. Which
//! holds is measured: where it might, twice as many event loops serve for a trial, and are kept if
//! they carried more requests, or as many with headroom; now and then half as many do, and are kept
//! if they carried as many. Event loops that have little to do are halved without a trial.
//!
//! Pure: measurements come in, window by window, and a number of event loops goes out.

/// An event loop that is busy for this share of the time has clients waiting. The rest goes into
/// asking the kernel what has come.
const SATURATED: f64 = 0.75;

/// Event loops that would not be busier than this if they were half as many are halved without a
/// trial.
const IDLE: f64 = 0.5;

/// So many windows in a row must be idle.
const IDLE_WINDOWS: u32 = 4;

/// Less of a core than this for each event loop more is not worth a trial: [`MIN_GAIN`] times the
/// requests, each at 1.1 to 1.4 times the processor time, take a sixth to half of a core more, and
/// their clients a sixteenth.
const TRIED_CORES: f64 = 0.35;

/// Event loops that leave as much of a core as this stay more where they carry no less.
const FREE_CORES: f64 = 0.5;

/// Event loops have room where as much of a core is left.
const HEADROOM_CORES: f64 = 0.2;

/// Event loops that have no rest, or leave less than [`FREE_CORES`], stay more only if they carry
/// so many times the requests.
const MIN_GAIN: f64 = 1.06;

/// As many requests, within what two neighbouring windows differ by.
const MIN_KEPT: f64 = 0.95;

/// More requests, by more than two neighbouring times of as many windows differ by.
const MORE: f64 = 1.05;

/// Windows of a trial that do not count: clients are just going to their event loops.
const SETTLING_WINDOWS: u32 = 1;

/// Windows of a trial that count, and as many before it.
const TRIAL_WINDOWS: usize = 4;

/// A trial ends after half of those where all of them carry less than this part of the requests.
const HOPELESS: f64 = 0.9;

/// Half as many event loops are tried where they would be busy for no more than this, or where
/// those there are leave no room anyway.
const FITTING: f64 = 1.1;

/// Windows between two trials, unless the second goes on in the direction in which the first was
/// kept. Each that fails doubles them.
const MIN_PAUSE: u32 = 40;

/// Up to this: a minute of quarter seconds, of which a trial is then a fiftieth.
const MAX_PAUSE: u32 = 240;

/// The load is another one, and pauses are short again, when requests come so many times as often
/// or cost so many times as much, or by so many times less.
const OTHER_LOAD: f64 = 1.5;

/// What was measured in one window of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Window {
    /// Clients, idle ones included. An event loop without one has no load.
    pub(super) clients: usize,
    /// Requests executed by second.
    pub(super) requests_per_s: f64,
    /// Of all event loops, added up: the share of the window in which one was busy.
    pub(super) busy_loops: f64,
    /// Idle cores of the machine; `None`: unknown.
    pub(super) idle_cores: Option<f64>,
}

impl Window {
    /// Busy time of a request, in seconds.
    fn cost(&self) -> f64 {
        self.busy_loops / self.requests_per_s.max(1.0)
    }

    fn has_cores(&self, least: f64) -> bool {
        self.idle_cores.is_none_or(|idle| idle >= least)
    }
}

/// Decides.
#[derive(Debug)]
pub(super) struct Scaler {
    most: usize,
    event_loops: usize,
    /// Since the last change of their number, the latest last.
    windows: Vec<Window>,
    idle_windows: u32,
    trial: Option<Trial>,
    last: Option<LastTrial>,
    /// What a request cost before the last trial of more event loops.
    cost_before_scale_up: Option<f64>,
}

#[derive(Debug)]
struct Trial {
    from: usize,
    before: Window,
    windows: u32,
}

#[derive(Debug)]
struct LastTrial {
    was_scale_up: bool,
    was_kept: bool,
    /// What was measured with the number that it came to.
    typical: Window,
    windows_since: u32,
    pause: u32,
}

impl Scaler {
    /// One event loop, and `most` of them at most.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            event_loops: 1,
            windows: Vec::new(),
            idle_windows: 0,
            trial: None,
            last: None,
            cost_before_scale_up: None,
        }
    }

    /// How many event loops are to serve after what `window` shows.
    pub(super) fn after(&mut self, window: Window) -> usize {
        match self.trial.take() {
            Some(trial) => self.go_on(trial, window),
            None => self.consider(window),
        }
        self.event_loops
    }

    fn consider(&mut self, window: Window) {
        if let Some(last) = &mut self.last {
            last.windows_since = last.windows_since.saturating_add(1);
        }
        self.note(window);
        let fewer = self.event_loops / 2;
        if window.busy_loops < IDLE * self.event_loops as f64 / 2.0 {
            self.idle_windows += 1;
            if self.idle_windows == IDLE_WINDOWS {
                // What was tried under that load says nothing of the next.
                self.last = None;
                self.scale_to(fewer.max(1));
            }
            return;
        }
        self.idle_windows = 0;
        if self.windows.len() < TRIAL_WINDOWS {
            return;
        }
        let before = typical(&self.windows);
        if before.requests_per_s == 0.0 {
            return;
        }
        let most = self.most.min(before.clients);
        let more = (2 * self.event_loops).min(most);
        let has_cores = before.has_cores(TRIED_CORES * more.saturating_sub(self.event_loops) as f64);
        let could_use_more = self.event_loops < most && self.is_saturated(&before) && has_cores;
        let more = could_use_more.then_some(more);
        // Event loops with room are not made fewer than can carry the load: their clients would
        // wait. Requests cost fewer event loops less, as they did then.
        let cost = self.cost_before_scale_up.map_or(before.cost(), |then| then.min(before.cost()));
        let fits = before.requests_per_s * cost <= FITTING * fewer as f64;
        let less = (fewer > 0 && (fits || !self.has_headroom(&before, HEADROOM_CORES))).then_some(fewer);
        let event_loops = match &self.last {
            // More were in vain, or fewer were not: first on in that direction.
            Some(last) if last.was_scale_up != last.was_kept => less.or(more),
            _ => more.or(less),
        };
        if let Some(event_loops) = event_loops
            && !self.is_paused(event_loops > self.event_loops, &before)
        {
            if event_loops > self.event_loops {
                self.cost_before_scale_up = Some(before.cost());
            }
            self.trial = Some(Trial { from: self.event_loops, before, windows: 0 });
            self.scale_to(event_loops);
        }
    }

    fn go_on(&mut self, mut trial: Trial, window: Window) {
        trial.windows += 1;
        if trial.windows > SETTLING_WINDOWS {
            self.note(window);
        }
        let gain = |now: &Window| now.requests_per_s / trial.before.requests_per_s;
        let is_hopeless =
            self.windows.len() == TRIAL_WINDOWS / 2 && self.windows.iter().all(|window| gain(window) < HOPELESS);
        if self.windows.len() < TRIAL_WINDOWS && !is_hopeless {
            self.trial = Some(trial);
            return;
        }
        let was_scale_up = self.event_loops > trial.from;
        let now = typical(&self.windows);
        let needs_gain = was_scale_up && !self.has_headroom(&now, FREE_CORES);
        let was_kept = gain(&now) >= if needs_gain { MIN_GAIN } else { MIN_KEPT };
        let pause = match &self.last {
            Some(last) if !was_kept && !last.is_of_other_load(&trial.before) => (last.pause * 2).min(MAX_PAUSE),
            _ => MIN_PAUSE,
        };
        let typical = if was_kept { now } else { trial.before };
        self.last = Some(LastTrial { was_scale_up, was_kept, typical, windows_since: 0, pause });
        // What is seen from here on is compared with the next trial: the load may have changed
        // within this one.
        self.scale_to(if was_kept { self.event_loops } else { trial.from });
    }

    fn scale_to(&mut self, event_loops: usize) {
        self.event_loops = event_loops;
        self.windows.clear();
        self.idle_windows = 0;
    }

    fn note(&mut self, window: Window) {
        if self.windows.len() == TRIAL_WINDOWS {
            self.windows.remove(0);
        }
        self.windows.push(window);
    }

    fn is_paused(&self, is_scale_up: bool, now: &Window) -> bool {
        self.last.as_ref().is_some_and(|last| {
            let goes_on = last.was_kept && last.was_scale_up == is_scale_up;
            let pause = match (last.is_of_other_load(now), is_scale_up) {
                // Event loops that have no rest carry more than they did: clients may send much
                // more.
                (_, true) if now.requests_per_s > MORE * last.typical.requests_per_s => 0,
                (true, true) => MIN_PAUSE,
                // What made them more is over.
                (true, false) => 0,
                (false, _) => last.pause,
            };
            !goes_on && last.windows_since < pause
        })
    }

    fn is_saturated(&self, window: &Window) -> bool {
        window.busy_loops >= SATURATED * self.event_loops as f64
    }

    fn has_headroom(&self, window: &Window, cores: f64) -> bool {
        !self.is_saturated(window) && window.has_cores(cores)
    }
}

impl LastTrial {
    fn is_of_other_load(&self, now: &Window) -> bool {
        let is_other = |now: f64, then: f64| now > OTHER_LOAD * then || then > OTHER_LOAD * now;
        is_other(now.requests_per_s, self.typical.requests_per_s) || is_other(now.cost(), self.typical.cost())
    }
}

/// Medians, which one window of another load does not move.
fn typical(windows: &[Window]) -> Window {
    let of = |value: fn(&Window) -> f64| median(windows.iter().map(value).collect());
    let idle: Option<Vec<f64>> = windows.iter().map(|window| window.idle_cores).collect();
    Window {
        clients: windows.iter().map(|window| window.clients).max().unwrap_or(0),
        requests_per_s: of(|window| window.requests_per_s),
        busy_loops: of(|window| window.busy_loops),
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
        /// Seconds of an event loop that a request takes where one event loop serves, and by which
        /// it grows with each event loop more.
        request_s: f64,
        more_s: f64,
        /// Cores that clients use for each request carried out by second.
        client_s: f64,
        /// Clients on machines of their own send this much; `None`: as much as is answered.
        sent_per_s: Option<f64>,
        /// Event loops wait for each other: together they carry no more than one.
        one_key: bool,
    }

    const NEAR: Load =
        Load { cores: 2.0, request_s: 20e-6, more_s: 8e-6, client_s: 20e-6, sent_per_s: None, one_key: false };

    impl Load {
        fn window(&self, event_loops: usize) -> Window {
            let request_s = self.request_s + self.more_s * (event_loops - 1) as f64;
            let carried = if self.one_key { 1.0 } else { event_loops as f64 } / request_s;
            let carried = carried.min(self.cores / (request_s + self.client_s));
            let requests_per_s = self.sent_per_s.map_or(carried, |sent| sent.min(carried));
            // Who waits for a core is busy as well.
            let busy = if self.sent_per_s.is_none() && !self.one_key {
                event_loops as f64
            } else {
                requests_per_s * request_s
            };
            let idle = self.cores - requests_per_s * (request_s + self.client_s);
            Window { clients: 50, requests_per_s, busy_loops: 0.95 * busy, idle_cores: Some(idle.max(0.0)) }
        }

        /// Event loops in each of `windows`.
        fn event_loops(&self, scaler: &mut Scaler, windows: usize) -> Vec<usize> {
            (0..windows).map(|_| scaler.after(self.window(scaler.event_loops))).collect()
        }
    }

    fn share(event_loops: &[usize], of: usize) -> f64 {
        event_loops.iter().filter(|one| **one == of).count() as f64 / event_loops.len() as f64
    }

    #[test]
    fn clients_that_use_the_other_core_themselves_are_served_by_one_event_loop() {
        let event_loops = NEAR.event_loops(&mut Scaler::new(2), 4000);
        assert_eq!(share(&event_loops, 1), 1.0, "nothing is free, so nothing is tried");
        // Something is free, and yet it does not pay.
        let event_loops = Load { cores: 2.5, ..NEAR }.event_loops(&mut Scaler::new(2), 4000);
        let tried = share(&event_loops, 2);
        assert!(tried > 0.0 && tried < 0.03, "{tried}");
        assert_eq!(event_loops[..12].iter().max(), Some(&2));
    }

    #[test]
    fn long_requests_get_as_many_event_loops_as_they_have_cores_for() {
        let far = Load { request_s: 80e-6, client_s: 0.0, ..NEAR };
        let event_loops = far.event_loops(&mut Scaler::new(2), 4000);
        assert!(event_loops.iter().position(|event_loops| *event_loops == 2).unwrap() < 6);
        assert!(share(&event_loops, 2) > 0.97, "{}", share(&event_loops, 2));
        for cores in [4, 6, 16] {
            let event_loops =
                Load { cores: cores as f64, more_s: 1e-6, ..far }.event_loops(&mut Scaler::new(cores), 4000);
            assert!(share(&event_loops, cores) > 0.95, "{cores}: {}", share(&event_loops, cores));
        }
    }

    #[test]
    fn event_loops_that_wait_for_each_other_become_one() {
        let contended = Load { cores: 4.0, client_s: 0.0, one_key: true, ..NEAR };
        let mut scaler = Scaler::new(4);
        let spread = Load { one_key: false, ..contended };
        assert_eq!(spread.event_loops(&mut scaler, 400).last(), Some(&4));
        let event_loops = contended.event_loops(&mut scaler, 4000);
        assert!(share(&event_loops[100..], 1) > 0.95, "{event_loops:?}");
    }

    /// Clients that send at a rate of their own send later what was not answered. How late they are
    /// at most, in seconds.
    fn lateness_s(load: Load, scaler: &mut Scaler, windows: usize) -> f64 {
        let (window_s, mut late, mut latest_s) = (0.25, 0.0_f64, 0.0_f64);
        let sent_per_s = load.sent_per_s.unwrap();
        for _ in 0..windows {
            let window = Load { sent_per_s: Some(sent_per_s + late / window_s), ..load }.window(scaler.event_loops);
            late += (sent_per_s - window.requests_per_s) * window_s;
            latest_s = latest_s.max(late / sent_per_s);
            scaler.after(window);
        }
        latest_s
    }

    #[test]
    fn clients_that_send_what_one_event_loop_just_cannot_carry_get_two() {
        for (more_s, times) in
            [0.0, 1e-6, 8e-6].into_iter().flat_map(|more_s| [1.02, 1.04, 1.08, 1.12].map(|it| (more_s, it)))
        {
            let open = Load { cores: 4.0, client_s: 0.0, more_s, sent_per_s: Some(50_000.0 * times), ..NEAR };
            let late_s = lateness_s(open, &mut Scaler::new(4), 4000);
            assert!(late_s < 1.5, "{times} of what one carries, {more_s}: late by {late_s} s");
        }
    }

    #[test]
    fn clients_that_begin_to_send_more_do_not_wait_for_the_next_trial() {
        let late_s = |windows| {
            let mut scaler = Scaler::new(4);
            let open = Load { cores: 4.0, client_s: 0.0, more_s: 2e-6, sent_per_s: Some(46_000.0), ..NEAR };
            lateness_s(open, &mut scaler, windows);
            lateness_s(Load { sent_per_s: Some(100_000.0), ..open }, &mut scaler, 400)
        };
        let mut late_s: Vec<f64> = (400..700).map(late_s).collect();
        late_s.sort_unstable_by(f64::total_cmp);
        // Those who begin within a trial of fewer event loops make it look good, and wait for the
        // shortest pause.
        assert!(late_s[270] < 3.0 && late_s[299] < 7.0, "{late_s:?}");
    }

    #[test]
    fn one_stalled_window_does_not_end_a_trial() {
        let far = Load { request_s: 80e-6, client_s: 0.0, ..NEAR };
        let mut scaler = Scaler::new(2);
        let mut event_loops = Vec::new();
        for number in 0..20 {
            let window = far.window(scaler.event_loops);
            let stalled = Window { requests_per_s: 0.0, ..window };
            event_loops.push(scaler.after(if number == 5 { stalled } else { window }));
        }
        assert_eq!(event_loops[3..], [2; 17]);
    }

    #[test]
    fn a_trial_that_carries_much_less_is_short() {
        let contended = Load { cores: 4.0, client_s: 0.0, one_key: true, ..NEAR };
        let busy =
            |event_loops: usize| Window { busy_loops: 0.95 * event_loops as f64, ..contended.window(event_loops) };
        let mut scaler = Scaler::new(2);
        let event_loops: Vec<_> = (0..12).map(|_| scaler.after(busy(scaler.event_loops))).collect();
        assert_eq!(event_loops[2..8], [1, 2, 2, 2, 1, 1], "one window to settle, and half of those that count");
    }

    #[test]
    fn one_client_has_one_event_loop() {
        let far = Load { request_s: 80e-6, client_s: 0.0, ..NEAR };
        let mut scaler = Scaler::new(2);
        let event_loops: Vec<usize> =
            (0..400).map(|_| scaler.after(Window { clients: 1, ..far.window(scaler.event_loops) })).collect();
        assert_eq!(share(&event_loops, 1), 1.0);
    }

    #[test]
    fn event_loops_that_another_load_has_made_two_become_one_soon() {
        let far = Load { request_s: 80e-6, client_s: 0.0, ..NEAR };
        let mut scaler = Scaler::new(2);
        assert_eq!(far.event_loops(&mut scaler, 40).last(), Some(&2));
        // More than one event loop carries by the processor time of two, and less than two have
        // room for.
        let near = Load { sent_per_s: Some(40_000.0), client_s: 0.0, ..NEAR };
        let event_loops = near.event_loops(&mut scaler, 400);
        assert!(event_loops[..10].contains(&1), "{event_loops:?}");
    }

    /// As where clients go from pipelines to one request at a time.
    #[test]
    fn event_loops_that_a_change_of_load_within_a_trial_has_made_two_become_one_soon() {
        let cheap = Load { request_s: 5e-6, more_s: 2e-6, client_s: 0.0, ..NEAR };
        for windows in 0..20 {
            let mut scaler = Scaler::new(2);
            cheap.event_loops(&mut scaler, windows);
            let event_loops = NEAR.event_loops(&mut scaler, 60);
            assert!(share(&event_loops, 1) > 0.8, "{windows}: {event_loops:?}");
        }
    }

    #[test]
    fn event_loops_with_little_to_do_become_one_and_stay_it() {
        let mut scaler = Scaler::new(16);
        let loaded = Load { cores: 16.0, client_s: 0.0, more_s: 0.0, ..NEAR };
        assert_eq!(loaded.event_loops(&mut scaler, 100).last(), Some(&16));
        let light = Load { sent_per_s: Some(5_000.0), ..loaded };
        let event_loops = light.event_loops(&mut scaler, 40);
        assert_eq!(event_loops.last(), Some(&1));
        assert_eq!(share(&light.event_loops(&mut scaler, 4000), 1), 1.0);
        let idle = Load { sent_per_s: Some(0.0), ..loaded };
        assert_eq!(share(&idle.event_loops(&mut scaler, 4000), 1), 1.0);
    }

    #[test]
    fn after_a_lull_as_many_event_loops_serve_again_soon() {
        let far = Load { cores: 4.0, request_s: 80e-6, more_s: 1e-6, client_s: 0.0, ..NEAR };
        let mut scaler = Scaler::new(4);
        assert!(share(&far.event_loops(&mut scaler, 4000), 4) > 0.9);
        assert_eq!(Load { sent_per_s: Some(0.0), ..far }.event_loops(&mut scaler, 12).last(), Some(&1));
        let event_loops = far.event_loops(&mut scaler, 40);
        assert!(event_loops[..20].contains(&4), "{event_loops:?}");
    }

    #[test]
    fn event_loops_go_on_becoming_fewer_where_that_carries_more() {
        let contended = Load { cores: 16.0, client_s: 0.0, one_key: true, ..NEAR };
        let mut scaler = Scaler::new(16);
        Load { one_key: false, more_s: 0.0, ..contended }.event_loops(&mut scaler, 400);
        // They never rest: who waits for a latch may do so busily.
        let busy =
            |event_loops: usize| Window { busy_loops: 0.95 * event_loops as f64, ..contended.window(event_loops) };
        let event_loops: Vec<_> = (0..300).map(|_| scaler.after(busy(scaler.event_loops))).collect();
        let first = event_loops.iter().position(|event_loops| *event_loops == 4).unwrap();
        assert!(event_loops[first..first + 20].contains(&1), "{event_loops:?}");
    }

    #[test]
    fn event_loops_with_room_are_not_made_fewer_than_carry_the_load() {
        let open = Load { cores: 8.0, client_s: 0.0, more_s: 0.0, sent_per_s: Some(120_000.0), ..NEAR };
        let mut scaler = Scaler::new(4);
        open.event_loops(&mut scaler, 200);
        let event_loops = open.event_loops(&mut scaler, 4000);
        assert_eq!(share(&event_loops, 4), 1.0, "2.4 event loops of work");
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_tried_out() {
        let unknown = |event_loops| Window { idle_cores: None, ..NEAR.window(event_loops) };
        let mut scaler = Scaler::new(2);
        let event_loops: Vec<usize> = (0..4000).map(|_| scaler.after(unknown(scaler.event_loops))).collect();
        assert_eq!(event_loops[3], 2);
        assert!(share(&event_loops, 1) > 0.97, "{}", share(&event_loops, 1));
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
            let mut scaler = Scaler::new(most);
            for _ in 0..20_000 {
                let window = Window {
                    clients: (random() * 10.0) as usize,
                    requests_per_s: if random() < 0.1 { 0.0 } else { random() * 1e5 },
                    busy_loops: random() * most as f64,
                    idle_cores: Some(random()),
                };
                let event_loops = scaler.after(window);
                assert!((1..=most).contains(&event_loops));
            }
        }
    }
}
