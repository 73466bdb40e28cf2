//! What clients are disconnected for, or do wrong: each such occasion is counted, and told in the log once in a while.
//!
//! Anybody who reaches an address may cause most of these as often as the network lets them, also without the password. So a line stands for all of its kind
//! that were since the one before.
//!
//! Threads: any.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Of one kind there is a line at most so often.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// A kind of occasion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// There were as many clients as there may be.
    MaxClients,
    /// A client announced an argument that is longer than it may be.
    MaxArgumentBytes,
    /// A request was longer than it may be.
    MaxRequestBytes,
    /// All clients together kept as much as they may, and one was to keep more.
    MaxMemoryBytes,
    /// A client sent nothing for long.
    IdleTimeout,
    /// A client took nothing of its replies for long.
    SendTimeout,
    /// A client did not end its TLS handshake in time.
    TlsHandshakeTimeout,
    /// A TLS handshake failed.
    TlsHandshakeFailed,
    /// A client sent what is not TLS to an address for TLS.
    NoTls,
    /// A client spoke TLS at an address without.
    UnexpectedTls,
    /// A client spoke HTTP.
    Http,
    /// The store could not do what a command asked for. Its client stays.
    StoreFailed,
}

impl Occasion {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::MaxClients,
        Self::MaxArgumentBytes,
        Self::MaxRequestBytes,
        Self::MaxMemoryBytes,
        Self::IdleTimeout,
        Self::SendTimeout,
        Self::TlsHandshakeTimeout,
        Self::TlsHandshakeFailed,
        Self::NoTls,
        Self::UnexpectedTls,
        Self::Http,
        Self::StoreFailed,
    ];

    /// Why a client was disconnected or turned away, as metrics have it: where that is a limit, by the name of its setting. `None`: it was not.
    pub const fn reason(self) -> Option<&'static str> {
        Some(match self {
            Self::MaxClients => "max_clients",
            Self::MaxArgumentBytes => "max_argument_bytes",
            Self::MaxRequestBytes => "max_request_bytes",
            Self::MaxMemoryBytes => "max_memory_bytes",
            Self::IdleTimeout => "idle_timeout_s",
            Self::SendTimeout => "send_timeout_s",
            Self::TlsHandshakeTimeout => "tls-handshake-timeout",
            Self::TlsHandshakeFailed => "tls-handshake-failed",
            Self::NoTls => "no-tls",
            Self::UnexpectedTls => "unexpected-tls",
            Self::Http => "http",
            Self::StoreFailed => return None,
        })
    }
}

/// All of one kind.
#[derive(Debug, Default)]
struct OfKind {
    number: AtomicU64,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    at: Option<Instant>,
    /// How many there had been by then.
    number: u64,
}

/// What has occurred since the start, or since that was to be forgotten.
#[derive(Debug, Default)]
pub struct Occasions([OfKind; Occasion::ALL.len()]);

impl Occasions {
    /// Counts another one. Where it is to be told, gives how many there were since the last that was, itself not among them.
    pub fn note(&self, occasion: Occasion) -> Option<u64> {
        self.note_at(occasion, Instant::now())
    }

    fn note_at(&self, occasion: Occasion, now: Instant) -> Option<u64> {
        let of_kind = &self.0[occasion as usize];
        let number = of_kind.number.fetch_add(1, Ordering::Relaxed) + 1;
        // Whoever holds it tells.
        let mut told = of_kind.told.try_lock()?;
        if told.at.is_some_and(|at| now.saturating_duration_since(at) < TOLD_EVERY) {
            return None;
        }
        let others = number.saturating_sub(told.number + 1);
        *told = Told { at: Some(now), number };
        Some(others)
    }

    /// Counts all from 0 again.
    pub fn reset(&self) {
        for of_kind in &self.0 {
            let mut told = of_kind.told.lock();
            of_kind.number.store(0, Ordering::Relaxed);
            told.number = 0;
        }
    }

    /// How many there were.
    pub fn number(&self, of: Occasion) -> u64 {
        self.0[of as usize].number.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_of_one_kind_the_first_of_each_minute_is_told_with_the_number_of_the_others() {
        let (occasions, begin) = (Occasions::default(), Instant::now());
        let http = |after: Duration| occasions.note_at(Occasion::Http, begin + after);
        assert_eq!(http(Duration::ZERO), Some(0));
        for ms in 0..500 {
            assert_eq!(http(Duration::from_millis(ms)), None);
        }
        // Another kind has a minute of its own.
        assert_eq!(occasions.note_at(Occasion::NoTls, begin), Some(0));
        assert_eq!(http(TOLD_EVERY), Some(500));
        assert_eq!(http(3 * TOLD_EVERY), Some(0));
        assert_eq!((occasions.number(Occasion::Http), occasions.number(Occasion::NoTls)), (503, 1));
        assert_eq!(occasions.number(Occasion::MaxClients), 0);
        occasions.reset();
        assert_eq!(http(3 * TOLD_EVERY), None);
        assert_eq!(http(4 * TOLD_EVERY), Some(1));
        assert_eq!(occasions.number(Occasion::Http), 2);
    }

    #[test]
    fn each_kind_has_a_place_and_a_reason_of_its_own() {
        let mut reasons: Vec<_> = Occasion::ALL.iter().filter_map(|of| of.reason()).collect();
        assert!(Occasion::ALL.iter().enumerate().all(|(place, of)| *of as usize == place));
        reasons.sort_unstable();
        reasons.dedup();
        assert_eq!(reasons.len(), Occasion::ALL.len() - 1);
    }
}
