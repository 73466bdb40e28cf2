//! The thread that drives the meter and the frequencies of a server.
//!
//! It looks at the meter when a look is due, closes about once a second, and publishes copies of
//! what it knows: readers wait for a copy at most. When it ends, frequencies are as before.
//!
//! A copy that is promoted asks it to go through the plan at once ([`EnergyThread::promotion`]), opens
//! its store meanwhile, and then waits for its cores: at most
//! [`MAX_PROMOTION_WAIT`](ecotone_policy::power::MAX_PROMOTION_WAIT) after it has asked, whether this
//! thread lives or not.
//!
//! Failure: when it ends, also by a panic, frequencies and threads are as before, and promoted copies
//! wait for nothing.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ecotone_policy::power::{PowerSettings, Promotion, promotion};
use ecotone_types::units::{Hertz, Seconds, Time};
use parking_lot::{Condvar, Mutex};

use crate::driver::{Driver, EnergyView};
use crate::governors::FrequencyGovernor;
use crate::history::Minute;
use crate::meter::EnergyMeter;
use crate::reading::Reading;

/// Between two looks at the frequency while a promoted copy waits for it.
const PROMOTION_LOOK: Duration = Duration::from_millis(2);

/// How the wait of a promoted copy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromotionWait {
    /// Its cores are fast, or nobody can say.
    AtSpeed,
    /// They are not, and it takes writes all the same.
    BelowSpeed,
}

struct State {
    stops: bool,
    /// The thread has ended, whatever ended it.
    is_over: bool,
    /// Promotions so far, and how many of them were taken in.
    promotions: u64,
    promotions_seen: u64,
    awaited: Option<(Arc<dyn FrequencyGovernor>, usize, Hertz)>,
    view: Arc<EnergyView>,
    minutes: Arc<Vec<Minute>>,
}

struct Shared {
    started: Instant,
    state: Mutex<State>,
    notifier: Condvar,
    promoted: AtomicU64,
    below_speed: AtomicU64,
}

/// A copy that is promoted, and whose cores become fast.
#[must_use = "a copy takes writes when it was waited for"]
pub struct PendingPromotion {
    shared: Arc<Shared>,
    since: Time,
    /// Its number among those that have asked.
    asked: u64,
}

/// Ends what the thread has given others, also while a panic unwinds. Goes before the driver does.
struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        // It holds the governor, whose limits come back with the driver.
        (state.awaited, state.is_over) = (None, true);
        if std::thread::panicking() {
            let why = "the thread that counts joules and caps frequencies has panicked; frequencies are as before it";
            state.view = Arc::new(state.view.without_power(why));
        }
    }
}

/// The thread, and what it publishes. Stopped when dropped.
pub struct EnergyThread {
    shared: Arc<Shared>,
    meter: Arc<EnergyMeter>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EnergyThread {
    /// Starts it. `settings` is asked each second.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        driver: Driver,
        meter: Arc<EnergyMeter>,
        settings: impl Fn() -> PowerSettings + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            started: Instant::now(),
            state: Mutex::new(State {
                stops: false,
                is_over: false,
                promotions: 0,
                promotions_seen: 0,
                awaited: None,
                view: Arc::new(driver.view()),
                minutes: Arc::default(),
            }),
            notifier: Condvar::new(),
            promoted: AtomicU64::new(0),
            below_speed: AtomicU64::new(0),
        });
        let (inside, of) = (shared.clone(), meter.clone());
        let thread = std::thread::Builder::new()
            .name("ecotone-energy".into())
            .spawn(move || inside.run(driver, &of, &settings))?;
        Ok(Self { shared, meter, thread: Mutex::new(Some(thread)) })
    }

    /// What was published last.
    pub fn view(&self) -> Arc<EnergyView> {
        self.shared.state.lock().view.clone()
    }

    /// The last hour by minute, oldest first.
    pub fn minutes(&self) -> Arc<Vec<Minute>> {
        self.shared.state.lock().minutes.clone()
    }

    /// The meter's reading now, with joules that were measured, if any were.
    pub fn reading(&self) -> Reading {
        self.view().over(self.meter.reading())
    }

    /// A copy is promoted: has its cores made fast from now on.
    pub fn promotion(&self) -> PendingPromotion {
        let since = self.shared.now();
        let asked = {
            let mut state = self.shared.state.lock();
            state.promotions += 1;
            state.promotions
        };
        self.shared.notifier.notify_all();
        PendingPromotion { shared: self.shared.clone(), since, asked }
    }

    /// How many copies were promoted here, and how many of them took writes before their cores were
    /// fast.
    pub fn promotions(&self) -> (u64, u64) {
        (self.shared.promoted.load(Ordering::Relaxed), self.shared.below_speed.load(Ordering::Relaxed))
    }

    /// Ends it; frequencies are as before afterwards.
    pub fn stop(&self) {
        self.shared.state.lock().stops = true;
        self.shared.notifier.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the energy meter panicked");
        }
    }
}

impl PendingPromotion {
    /// Waits until its cores are fast, but for no more than 50 ms from when that was asked for.
    pub fn wait(self) -> PromotionWait {
        let outcome = self.outcome();
        self.shared.promoted.fetch_add(1, Ordering::Relaxed);
        if outcome == PromotionWait::BelowSpeed {
            self.shared.below_speed.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    fn outcome(&self) -> PromotionWait {
        loop {
            let (is_seen, awaited) = {
                let state = self.shared.state.lock();
                (state.is_over || state.promotions_seen >= self.asked, state.awaited.clone())
            };
            let wanted = awaited.as_ref().map_or(Hertz(1.0), |awaited| awaited.2);
            let reached = match (&awaited, is_seen) {
                (_, false) => Some(Hertz(0.0)),
                (Some((governor, domain, _)), true) => governor.reached(*domain),
                (None, true) => None,
            };
            match promotion(self.since, self.shared.now(), wanted, reached) {
                Promotion::Ready => return PromotionWait::AtSpeed,
                Promotion::ReadyBelowSpeed => return PromotionWait::BelowSpeed,
                Promotion::Wait(left) => {
                    std::thread::sleep(PROMOTION_LOOK.min(Duration::from_secs_f64(left.0.max(0.0))));
                }
            }
        }
    }
}

impl Drop for EnergyThread {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn now(&self) -> Time {
        Time::from_seconds(self.started.elapsed().as_secs_f64())
    }

    fn run(&self, mut driver: Driver, meter: &EnergyMeter, settings: &dyn Fn() -> PowerSettings) {
        let _ending = Ending(self);
        let (mut next_look, mut next_close) = (Seconds::ZERO, Seconds::ZERO);
        loop {
            let now = self.now();
            if now.0 >= next_close {
                let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                driver.close(now, unix_s, settings(), meter.cpu());
                // From the planned time on, so that closes do not drift; a late one is not made up
                // for.
                next_close = (next_close + driver.close_interval()).max(now.0);
                let (view, minutes) = (driver.view(), driver.history().minutes().cloned().collect());
                let mut state = self.state.lock();
                (state.view, state.minutes) = (Arc::new(view), Arc::new(minutes));
                state.awaited = driver.awaited();
            } else if driver.look_interval().is_some() && now.0 >= next_look {
                driver.look(now);
            }
            if let Some(interval) = driver.look_interval()
                && now.0 >= next_look
            {
                next_look = (next_look + interval).max(now.0);
            }
            let promotions = {
                let mut state = self.state.lock();
                if state.stops {
                    return;
                }
                if state.promotions == state.promotions_seen {
                    let next = if driver.look_interval().is_some() { next_close.min(next_look) } else { next_close };
                    let until = self.started + Duration::from_secs_f64(next.0.max(0.0));
                    if until > Instant::now() {
                        self.notifier.wait_until(&mut state, until);
                    }
                }
                (state.promotions != state.promotions_seen).then_some(state.promotions)
            };
            if let Some(promotions) = promotions {
                driver.promoted(self.now(), settings());
                let mut state = self.state.lock();
                state.view = Arc::new(driver.view());
                state.awaited = driver.awaited();
                state.promotions_seen = promotions;
            }
        }
    }
}
