//! Whether what a request asks for is still wanted, and may go on: not once its client has gone or was killed, or the server stops, nor for
//! longer than anybody may hold latches.
//!
//! All long work goes through the keyspace: it looks up, visits and writes. Each of these is a step, and every [`STEPS_BETWEEN_LOOKS`] steps it is looked
//! whether anybody waits for the outcome. Who serves the connection tells by its [`Interest`]. What ends so leaves nothing behind, like any other
//! command that fails.
//!
//! Only threads that may wait look: what a lane does by itself is bounded (see [`Waiting`](super::Waiting)).
//!
//! Bounds: [`MAX_LATCHED`], [`MAX_HALF_CLOSED`].
//!
//! Threads: an interest is told by one thread and looked at by another; what is wanted belongs to the thread that carries out the request.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Failure, Outcome, texts};

/// No request holds a latch for longer than this while it is carried out: others wait for it. Reads that take long take none, they see the store at one
/// moment ([`Keys::hold_still`](super::Keys::hold_still)). A write of a million entries takes about two seconds on a fast core.
pub const MAX_LATCHED: Duration = Duration::from_secs(5);

/// So long a request goes on at most whose client sends no more: it may have gone, or wait for the replies to all that it sent. Over TCP the two look
/// alike until something is sent.
pub const MAX_HALF_CLOSED: Duration = Duration::from_secs(1);

/// Steps between two looks at whether the request is still wanted. Each takes a microsecond in memory, and some milliseconds where the device is slow.
const STEPS_BETWEEN_LOOKS: usize = 64;

/// Why nobody waits for what a client has asked for. Of two the later one counts more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Lost {
    /// The client sends no more. It may take replies.
    HalfClosed = 1,
    /// Its connection has ended.
    Gone = 2,
    /// `CLIENT KILL`.
    Killed = 3,
}

/// What is known of whether a client still waits.
#[derive(Debug, Default)]
pub struct Interest(AtomicU8);

impl Interest {
    /// From now on nobody waits, for this reason.
    pub fn lose(&self, why: Lost) {
        self.0.fetch_max(why as u8, Ordering::Release);
    }

    fn is_lost(&self, why: Lost) -> bool {
        self.0.load(Ordering::Acquire) >= why as u8
    }
}

/// Whether one request is still wanted.
#[derive(Debug, Clone)]
pub struct Wanted {
    interest: Arc<Interest>,
    stops: Arc<AtomicBool>,
    began: Instant,
    /// When the first latch was taken of those that are held.
    latched_since: Cell<Option<Instant>>,
    steps: Cell<usize>,
}

impl Wanted {
    /// A request begins. `stops` is set when the server stops.
    pub fn from_now(interest: Arc<Interest>, stops: Arc<AtomicBool>) -> Self {
        Self { interest, stops, began: Instant::now(), latched_since: Cell::new(None), steps: Cell::new(0) }
    }

    /// The same while latches are held that another request of the client took.
    pub(super) fn latched_as(self, before: Option<&Self>) -> Self {
        self.latched_since.set(before.and_then(|before| before.latched_since.get()));
        self
    }

    /// Whether latches are held from now on.
    pub(super) fn set_latched(&self, is_latched: bool) {
        self.latched_since.set(is_latched.then(|| self.latched_since.get().unwrap_or_else(Instant::now)));
    }

    /// Whether latches were held for so long that they are to be given back.
    pub(super) fn has_latched_too_long(&self) -> bool {
        self.latched_since.get().is_some_and(|since| since.elapsed() >= MAX_LATCHED)
    }

    /// Behind so many steps.
    ///
    /// # Errors
    ///
    /// Why the next one is in vain.
    #[inline]
    pub(super) fn step(&self, steps: usize) -> Outcome {
        let steps = self.steps.get().saturating_add(steps);
        if steps < STEPS_BETWEEN_LOOKS {
            self.steps.set(steps);
            return Ok(());
        }
        self.steps.set(0);
        self.look().map_or(Ok(()), Err)
    }

    /// Why nobody wants it any more, or it may not go on.
    pub(super) fn look(&self) -> Option<Failure> {
        if self.interest.is_lost(Lost::Killed) {
            return Some(texts::KILLED);
        }
        if self.interest.is_lost(Lost::Gone) {
            return Some(texts::GONE);
        }
        if self.stops.load(Ordering::Relaxed) {
            return Some(texts::STOPS);
        }
        if self.interest.is_lost(Lost::HalfClosed) && self.began.elapsed() >= MAX_HALF_CLOSED {
            return Some(Failure::with(format!(
                "ERR the client has closed its side of the connection, and the request takes longer than {} s; keep it open until the reply has come",
                MAX_HALF_CLOSED.as_secs()
            )));
        }
        self.has_latched_too_long().then(|| {
            Failure::with(format!(
                "ERR the request has kept others from its keys for {} s, longer than any may; nothing of it was done; ask for less at a time",
                MAX_LATCHED.as_secs()
            ))
        })
    }
}

/// The same beside a visit that is not all of the work: patterns are matched, or what is at hand is drawn from. Breaks where the next step is in vain.
#[derive(Debug)]
pub struct Going {
    /// None where what is done is bounded.
    wanted: Option<Wanted>,
    ended: Option<Failure>,
}

impl Going {
    pub(super) fn on(wanted: Option<&Wanted>) -> Self {
        Self { wanted: wanted.cloned(), ended: None }
    }

    /// Behind so many steps of a microsecond at most.
    pub fn on_after(&mut self, steps: usize) -> ControlFlow<()> {
        if let Some(wanted) = &self.wanted
            && let Err(failure) = wanted.step(steps)
        {
            self.ended = Some(failure);
            self.wanted = None;
            return ControlFlow::Break(());
        }
        if self.ended.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Behind the last step: whether all were done.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn end(self) -> Outcome {
        self.ended.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> (Arc<Interest>, Arc<AtomicBool>, Wanted) {
        let (interest, stops) = (Arc::<Interest>::default(), Arc::<AtomicBool>::default());
        (interest.clone(), stops.clone(), Wanted::from_now(interest, stops))
    }

    fn why(wanted: &Wanted) -> String {
        wanted.look().map_or_else(String::new, |failure| failure.to_string())
    }

    #[test]
    fn who_has_gone_is_told_from_who_only_sends_no_more() {
        let (interest, _, mut wanted) = wanted();
        assert_eq!(why(&wanted), "");
        interest.lose(Lost::HalfClosed);
        assert_eq!(why(&wanted), "", "its replies may be read");
        wanted.began -= MAX_HALF_CLOSED;
        assert!(why(&wanted).contains("keep it open"), "{}", why(&wanted));
        interest.lose(Lost::Gone);
        assert_eq!(why(&wanted), "ERR the client has gone");
        interest.lose(Lost::HalfClosed);
        assert_eq!(why(&wanted), "ERR the client has gone", "nobody comes back");
    }

    #[test]
    fn latches_are_held_for_so_long_and_no_longer_whoever_took_them() {
        let (interest, stops, wanted) = wanted();
        wanted.latched_since.set(Instant::now().checked_sub(MAX_LATCHED));
        assert!(why(&wanted).contains("kept others from its keys for 5 s"), "{}", why(&wanted));
        let next = Wanted::from_now(interest, stops).latched_as(Some(&wanted));
        assert!(next.has_latched_too_long());
        next.set_latched(false);
        assert_eq!(why(&next), "");
        next.set_latched(true);
        assert_eq!(why(&next), "");
    }

    #[test]
    fn it_is_looked_behind_few_steps() {
        let (interest, _, wanted) = wanted();
        interest.lose(Lost::Killed);
        let steps = (0..).take_while(|_| wanted.step(1).is_ok()).count();
        assert!(steps < STEPS_BETWEEN_LOOKS, "{steps}");
        let mut going = Going::on(Some(&wanted));
        assert!(going.on_after(STEPS_BETWEEN_LOOKS).is_break() && going.on_after(1).is_break());
        assert!(going.end().is_err());
        assert!(Going::on(None).on_after(usize::MAX).is_continue(), "what is bounded goes on");
    }
}
