//! How many lanes serve the clients.
//!
//! One lane that serves all clients reads from many sockets each time it wakes and commits for all of them at once; two lanes each wake, read and
//! commit by themselves. So more lanes cost processor time, and pay where one cannot keep up and a core is free. Which holds is not
//! guessed: where it might, twice as many lanes serve for a moment, and go on if that carried more requests; now and then half as many do, and go
//! on if that carried as many. Lanes that have little to do are halved without a trial. Clients that send more than one lane carries have more to
//! send as soon as there are two, so as many requests as before mean that one was enough.
//!
//! Pure: what was seen comes in, window by window, and a number of lanes goes out.

/// A lane that is busy for this share of the time has clients waiting. The rest goes into asking the kernel what has come.
const SATURATED: f64 = 0.75;

/// Lanes that would not be busier than this if they were half as many are halved without a trial.
const RELAXED: f64 = 0.5;

/// So many windows in a row must be relaxed.
const RELAXED_WINDOWS: u32 = 4;

/// Less of a core than this is not worth a trial: [`GAIN`] times the requests, each at 1.3 times the processor time, take two fifths of a core more,
/// and their clients a tenth.
const FREE_CORES: f64 = 0.5;

/// More lanes stay only if they carry so many times the requests.
const GAIN: f64 = 1.1;

/// As many requests, within what two neighbouring windows differ by.
const SAME: f64 = 0.95;

/// Windows of a trial that do not count: clients are just going to their lanes.
const SETTLING_WINDOWS: u32 = 1;

/// Windows of a trial that count, and as many before it.
const TRIAL_WINDOWS: usize = 4;

/// After half of those a trial of more lanes ends that carry less than this part of the requests.
const HOPELESS: f64 = 0.9;

/// Half as many lanes are tried where they would be busy for no more than this if requests cost them as much, which they do not; or where those
/// there are leave no room anyway.
const FITTING: f64 = 1.25;

/// Windows between two trials, unless the second goes on in the direction in which the first was kept. Each that fails doubles them.
const LEAST_PAUSE: u32 = 40;

/// Up to this: a minute of quarter seconds, of which a trial is then a fiftieth.
const MOST_PAUSE: u32 = 240;

/// The load is another one, and pauses are short again, when requests come so many times as often or cost so many times as much, or by so many
/// times less.
const OTHER_LOAD: f64 = 1.5;

/// What was seen in one window of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Window {
    /// Clients there are. A lane without one carries nothing.
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

    fn has_core(&self) -> bool {
        self.idle_cores.is_none_or(|idle| idle >= FREE_CORES)
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
        Self { most, lanes: 1, seen: Vec::new(), relaxed_windows: 0, trial: None, last: None }
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
        if fewer > 0 && window.busy_lanes < RELAXED * fewer as f64 {
            self.relaxed_windows += 1;
            if self.relaxed_windows == RELAXED_WINDOWS {
                // What was tried under that load says nothing of the next.
                self.last = None;
                self.turn_to(fewer);
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
        let could_use_more = self.could_use_more(&before);
        let most = self.most.min(before.clients);
        let wider = (self.lanes < most && could_use_more).then_some((2 * self.lanes).min(most));
        // Lanes with room are not made fewer than can carry the load: their clients would wait.
        let has_room = !self.has_saturated_lanes(&before) && before.has_core();
        let fits = !has_room || before.busy_lanes <= FITTING * fewer as f64;
        let narrower = (fewer > 0 && fits).then_some(fewer);
        let lanes = match &self.last {
            // More were in vain, or fewer were not: first on in that direction.
            Some(last) if last.was_wider != last.was_kept => narrower.or(wider),
            _ => wider.or(narrower),
        };
        if let Some(lanes) = lanes
            && !self.pauses(lanes > self.lanes, &before)
        {
            self.trial = Some(Trial { from: self.lanes, before, windows: 0 });
            self.turn_to(lanes);
        }
    }

    fn go_on(&mut self, mut trial: Trial, window: Window) {
        trial.windows += 1;
        if trial.windows > SETTLING_WINDOWS {
            self.note(window);
        }
        let was_wider = self.lanes > trial.from;
        let now = typical(&self.seen);
        let gain = now.requests_per_s / trial.before.requests_per_s;
        let is_hopeless = was_wider && self.seen.len() >= TRIAL_WINDOWS / 2 && gain < HOPELESS;
        if self.seen.len() < TRIAL_WINDOWS && !is_hopeless {
            self.trial = Some(trial);
            return;
        }
        let was_kept = gain >= if was_wider { GAIN } else { SAME };
        let pause = match &self.last {
            Some(last) if !was_kept && !last.is_of_other_load(&trial.before) => (last.pause * 2).min(MOST_PAUSE),
            _ => LEAST_PAUSE,
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
                (true, true) => LEAST_PAUSE,
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

    fn could_use_more(&self, window: &Window) -> bool {
        self.has_saturated_lanes(window) && window.has_core()
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
        clients: windows.last().map_or(0, |window| window.clients),
        requests_per_s: of(|window| window.requests_per_s),
        busy_lanes: of(|window| window.busy_lanes),
        idle_cores: idle.map(median),
    }
}

/// Of many numbers the mean of the two in the middle, of none 0.
fn median(mut values: Vec<f64>) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
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
        let lanes = Load { cores: 2.55, ..NEAR }.lanes(&mut Width::new(2), 4000);
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

    /// Clients that send at a rate of their own send what was not answered later.
    #[test]
    fn clients_that_send_what_one_lane_just_cannot_carry_get_two() {
        let mut width = Width::new(4);
        // Seconds of a window; requests a second, and requests.
        let (window_s, sent_per_s, mut late) = (0.25, 54_000.0, 0.0_f64);
        let mut lanes = Vec::new();
        for _ in 0..4000 {
            let now = Load { cores: 4.0, client_s: 0.0, sent_per_s: Some(sent_per_s + late / window_s), ..NEAR };
            let window = now.window(width.lanes);
            late += (sent_per_s - window.requests_per_s) * window_s;
            assert!(late < sent_per_s, "they wait for seconds: {lanes:?}");
            lanes.push(width.after(window));
        }
        assert!(share(&lanes, 2) > 0.9, "{}", share(&lanes, 2));
    }

    #[test]
    fn clients_that_have_what_they_send_carried_by_one_lane_keep_it() {
        // It has no rest to speak of, and two would each have much.
        let open = Load { cores: 4.0, client_s: 0.0, sent_per_s: Some(46_000.0), ..NEAR };
        let lanes = open.lanes(&mut Width::new(4), 4000);
        assert!(share(&lanes, 1) > 0.97, "{}", share(&lanes, 1));
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
        let near = Load { sent_per_s: Some(42_000.0), client_s: 0.0, ..NEAR };
        let lanes = near.lanes(&mut width, 400);
        assert!(lanes[..10].contains(&1) && share(&lanes, 1) > 0.9, "{lanes:?}");
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
        let open = Load { cores: 8.0, client_s: 0.0, more_s: 0.0, sent_per_s: Some(140_000.0), ..NEAR };
        let mut width = Width::new(4);
        open.lanes(&mut width, 200);
        let lanes = open.lanes(&mut width, 4000);
        assert_eq!(share(&lanes, 4), 1.0, "2.8 lanes of work");
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
