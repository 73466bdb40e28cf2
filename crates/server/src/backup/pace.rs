//! How fast a backup may go.

use std::time::{Duration, Instant};

use super::{BackupError, MAX_PIECE_BYTES, Result};

/// The least rate that can be asked for: a piece then takes a second, and who holds the store waits
/// for longer than that.
pub const MIN_LIMIT_BYTES_PER_S: u64 = 4096;

/// What was not used for so long may be made up for.
const BURST: Duration = Duration::from_millis(250);

/// How often a waiting copy checks whether to go on.
const LOOKS_EVERY: Duration = Duration::from_millis(200);

/// A rate in bytes a second, as a bucket that fills with time: in any span at most what the rate
/// gives for it and [`BURST`], and one piece. No clock: time is an argument, counted from any
/// moment.
#[derive(Debug, Clone)]
pub struct Pace {
    bytes_per_s: Option<u64>,
    /// When the next piece may go.
    next: Duration,
}

impl Pace {
    /// So many bytes a second; `None`: as fast as it goes.
    pub fn new(bytes_per_s: Option<u64>) -> Self {
        Self { bytes_per_s: bytes_per_s.map(|rate| rate.max(1)), next: Duration::ZERO }
    }

    /// How long a piece of `bytes` has to wait at `now`. It counts from here on.
    pub fn take(&mut self, bytes: u64, now: Duration) -> Duration {
        let Some(rate) = self.bytes_per_s else { return Duration::ZERO };
        let begins = self.next.max(now.saturating_sub(BURST));
        self.next = begins + Duration::from_secs_f64(bytes as f64 / rate as f64);
        begins.saturating_sub(now)
    }

    /// Bytes of a piece: a quarter of a second's, as far as pieces may be so short or long.
    pub fn piece_bytes(&self) -> usize {
        let quarter = self.bytes_per_s.map_or(u64::MAX, |rate| rate / 4);
        usize::try_from(quarter).unwrap_or(usize::MAX).clamp(MIN_LIMIT_BYTES_PER_S as usize, MAX_PIECE_BYTES)
    }
}

/// A [`Pace`] by the clock, that can be ended.
pub struct Limiter<'g> {
    pace: Pace,
    since: Instant,
    goes_on: &'g dyn Fn() -> bool,
}

impl<'g> Limiter<'g> {
    /// At `bytes_per_s` while `goes_on` says so.
    pub fn new(bytes_per_s: Option<u64>, goes_on: &'g dyn Fn() -> bool) -> Self {
        Self { pace: Pace::new(bytes_per_s), since: Instant::now(), goes_on }
    }

    /// Bytes of a piece.
    pub fn piece_bytes(&self) -> usize {
        self.pace.piece_bytes()
    }

    /// Waits until `bytes` more may be read.
    ///
    /// # Errors
    ///
    /// [`BackupError::Ended`].
    pub fn wait_for(&mut self, bytes: u64) -> Result<()> {
        let now = self.since.elapsed();
        let until = now + self.pace.take(bytes, now);
        loop {
            if !(self.goes_on)() {
                return Err(BackupError::Ended);
            }
            let left = until.saturating_sub(self.since.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOKS_EVERY));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces go when they may, with pauses between; in no span do more go than the rate allows.
    #[test]
    fn no_span_has_more_than_the_rate_gives() {
        for (rate, piece) in [(1 << 20, 512 << 10), (10_000, 4096), (100 << 20, 512 << 10), (4096, 4096)] {
            let mut pace = Pace::new(Some(rate));
            let mut went = Vec::new();
            let mut now = Duration::ZERO;
            for number in 0..400_u64 {
                if number % 50 == 49 {
                    // It was idle for longer than may be made up for.
                    now += BURST * 7;
                }
                now += pace.take(piece, now);
                went.push(now);
            }
            for first in 0..went.len() {
                for last in first..went.len() {
                    let span = (went[last] - went[first] + BURST).as_secs_f64();
                    let bytes = (last - first) as f64 * piece as f64;
                    assert!(bytes <= span * rate as f64 * 1.000_001, "{bytes} bytes in {span} s at {rate}");
                }
            }
            // And not much less: without the eight pauses it takes what the rate says for the
            // others.
            let busy = now.saturating_sub(BURST * 7 * 8).as_secs_f64();
            let by_rate = 391.0 * piece as f64 / rate as f64;
            assert!((busy - by_rate).abs() <= BURST.as_secs_f64() * 9.0, "{busy} s and not {by_rate} s");
        }
    }

    #[test]
    fn without_a_rate_nothing_waits_and_pieces_are_as_long_as_they_may_be() {
        let mut pace = Pace::new(None);
        assert_eq!((0..1000).map(|_| pace.take(1 << 30, Duration::ZERO)).sum::<Duration>(), Duration::ZERO);
        assert_eq!(pace.piece_bytes(), MAX_PIECE_BYTES);
        assert_eq!(Pace::new(Some(MIN_LIMIT_BYTES_PER_S)).piece_bytes(), 4096);
        assert_eq!(Pace::new(Some(1 << 20)).piece_bytes(), 256 << 10);
        assert_eq!(Pace::new(Some(u64::MAX)).piece_bytes(), MAX_PIECE_BYTES);
    }

    #[test]
    fn who_waits_can_be_told_to_end() {
        let asked = std::cell::Cell::new(0);
        let goes_on = || {
            asked.set(asked.get() + 1);
            asked.get() < 4
        };
        let mut limiter = Limiter::new(Some(MIN_LIMIT_BYTES_PER_S), &goes_on);
        limiter.wait_for(1 << 40).unwrap();
        // Years from now.
        assert!(matches!(limiter.wait_for(1), Err(BackupError::Ended)));
        assert_eq!(asked.get(), 4);
    }
}
