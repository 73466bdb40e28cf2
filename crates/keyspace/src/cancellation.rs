//! Cancellation of requests: when the client has gone or was killed, when the server stops, or when
//! latches have been held for longer than any request may hold them.
//!
//! All long work goes through the keyspace: lookups, visits and writes. Each of them is a step, and
//! every [`CHECK_INTERVAL_STEPS`] steps the token is checked. The connection reports through its
//! [`CancellationSource`]. A cancelled request leaves nothing behind, like any command that fails.
//!
//! Only threads that may block check: what an event loop does by itself is bounded (see
//! [`Blocking`](crate::Blocking)).
//!
//! Bounds: [`MAX_LATCH_HOLD`], [`MAX_HALF_CLOSED`].
//!
//! Threads: a source is set by one thread and read by another; a token belongs to the thread that
//! carries out the request.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Failure, Outcome, texts};

/// No request holds a latch for longer than this while it is carried out: others wait for it. Long
/// reads take none, they read a snapshot ([`Keys::hold_still`](crate::Keys::hold_still)). A write
/// of a million entries takes about two seconds on a fast core.
pub const MAX_LATCH_HOLD: Duration = Duration::from_secs(5);

/// A request goes on for so long after its client has closed its side: the client may have gone, or
/// wait for the replies to all that it sent. Over TCP the two look alike until something is sent.
pub const MAX_HALF_CLOSED: Duration = Duration::from_secs(1);

/// Steps between two checks of a token. Each takes a microsecond in memory, and some milliseconds
/// where the device is slow.
const CHECK_INTERVAL_STEPS: usize = 64;

/// Why the requests of a client are cancelled. Of two reasons the later variant prevails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum CancelReason {
    /// The client sends no more. It may take replies.
    HalfClosed = 1,
    /// Its connection has ended.
    Gone = 2,
    /// `CLIENT KILL`.
    Killed = 3,
}

/// Cancels the requests of one client.
#[derive(Debug, Default)]
pub struct CancellationSource(AtomicU8);

impl CancellationSource {
    /// Cancels them, for this reason.
    pub fn cancel(&self, reason: CancelReason) {
        self.0.fetch_max(reason as u8, Ordering::Release);
    }

    fn is_cancelled(&self, reason: CancelReason) -> bool {
        self.0.load(Ordering::Acquire) >= reason as u8
    }
}

/// Whether one request is cancelled.
#[derive(Debug, Clone)]
pub struct CancellationToken {
    source: Arc<CancellationSource>,
    stops: Arc<AtomicBool>,
    began: Instant,
    /// When the first latch was taken of those that are held.
    latched_since: Cell<Option<Instant>>,
    steps: Cell<usize>,
}

impl CancellationToken {
    /// A request begins. `stops` is set when the server stops.
    pub fn from_now(source: Arc<CancellationSource>, stops: Arc<AtomicBool>) -> Self {
        Self { source, stops, began: Instant::now(), latched_since: Cell::new(None), steps: Cell::new(0) }
    }

    /// The same while latches are held that another request of the client took.
    pub(super) fn inherit_latches(self, before: Option<&Self>) -> Self {
        self.latched_since.set(before.and_then(|before| before.latched_since.get()));
        self
    }

    /// Whether latches are held from now on.
    pub(super) fn set_latched(&self, is_latched: bool) {
        self.latched_since.set(is_latched.then(|| self.latched_since.get().unwrap_or_else(Instant::now)));
    }

    /// Whether latches were held for so long that they are to be given back.
    pub(super) fn has_latched_too_long(&self) -> bool {
        self.latched_since.get().is_some_and(|since| since.elapsed() >= MAX_LATCH_HOLD)
    }

    /// After so many steps.
    ///
    /// # Errors
    ///
    /// Why the request is cancelled.
    #[inline]
    pub(super) fn step(&self, steps: usize) -> Outcome {
        let steps = self.steps.get().saturating_add(steps);
        if steps < CHECK_INTERVAL_STEPS {
            self.steps.set(steps);
            return Ok(());
        }
        self.steps.set(0);
        self.reason().map_or(Ok(()), Err)
    }

    /// Why the request is cancelled, if it is.
    pub(super) fn reason(&self) -> Option<Failure> {
        if self.source.is_cancelled(CancelReason::Killed) {
            return Some(texts::KILLED);
        }
        if self.source.is_cancelled(CancelReason::Gone) {
            return Some(texts::GONE);
        }
        if self.stops.load(Ordering::Relaxed) {
            return Some(texts::STOPS);
        }
        if self.source.is_cancelled(CancelReason::HalfClosed) && self.began.elapsed() >= MAX_HALF_CLOSED {
            return Some(Failure::with(format!(
                "ERR the client has closed its side of the connection, and the request takes longer than {} s; keep it open until the reply has come",
                MAX_HALF_CLOSED.as_secs()
            )));
        }
        self.has_latched_too_long().then(|| {
            Failure::with(format!(
                "ERR the request has kept others from its keys for {} s, longer than any may; nothing of it was done; ask for less at a time",
                MAX_LATCH_HOLD.as_secs()
            ))
        })
    }
}

/// The same for work that is no visit: patterns are matched, or elements in memory are drawn.
/// Breaks where the request is cancelled.
#[derive(Debug)]
pub struct CancellationCheck {
    /// None where what is done is bounded.
    token: Option<CancellationToken>,
    ended: Option<Failure>,
}

impl CancellationCheck {
    pub(super) fn of(token: Option<&CancellationToken>) -> Self {
        Self { token: token.cloned(), ended: None }
    }

    /// After so many steps of a microsecond at most.
    pub fn after_steps(&mut self, steps: usize) -> ControlFlow<()> {
        if let Some(token) = &self.token
            && let Err(failure) = token.step(steps)
        {
            self.ended = Some(failure);
            self.token = None;
            return ControlFlow::Break(());
        }
        if self.ended.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// After the last step: whether all were done.
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

    fn token() -> (Arc<CancellationSource>, Arc<AtomicBool>, CancellationToken) {
        let (source, stops) = (Arc::<CancellationSource>::default(), Arc::<AtomicBool>::default());
        (source.clone(), stops.clone(), CancellationToken::from_now(source, stops))
    }

    fn why(token: &CancellationToken) -> String {
        token.reason().map_or_else(String::new, |failure| failure.to_string())
    }

    #[test]
    fn who_has_gone_is_told_from_who_only_sends_no_more() {
        let (source, _, mut token) = token();
        assert_eq!(why(&token), "");
        source.cancel(CancelReason::HalfClosed);
        assert_eq!(why(&token), "", "its replies may be read");
        token.began -= MAX_HALF_CLOSED;
        assert!(why(&token).contains("keep it open"), "{}", why(&token));
        source.cancel(CancelReason::Gone);
        assert_eq!(why(&token), "ERR the client has gone");
        source.cancel(CancelReason::HalfClosed);
        assert_eq!(why(&token), "ERR the client has gone", "nobody comes back");
    }

    #[test]
    fn latches_are_held_for_so_long_and_no_longer_whoever_took_them() {
        let (source, stops, token) = token();
        token.latched_since.set(Instant::now().checked_sub(MAX_LATCH_HOLD));
        assert!(why(&token).contains("kept others from its keys for 5 s"), "{}", why(&token));
        let next = CancellationToken::from_now(source, stops).inherit_latches(Some(&token));
        assert!(next.has_latched_too_long());
        next.set_latched(false);
        assert_eq!(why(&next), "");
        next.set_latched(true);
        assert_eq!(why(&next), "");
    }

    #[test]
    fn it_is_looked_behind_few_steps() {
        let (source, _, token) = token();
        source.cancel(CancelReason::Killed);
        let steps = (0..).take_while(|_| token.step(1).is_ok()).count();
        assert!(steps < CHECK_INTERVAL_STEPS, "{steps}");
        let mut check = CancellationCheck::of(Some(&token));
        assert!(check.after_steps(CHECK_INTERVAL_STEPS).is_break() && check.after_steps(1).is_break());
        assert!(check.end().is_err());
        assert!(CancellationCheck::of(None).after_steps(usize::MAX).is_continue(), "what is bounded goes on");
    }
}
