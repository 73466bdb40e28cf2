//! Rate-limited log of what clients are disconnected for, or do wrong: each event is counted, and
//! one of each kind is logged a minute.
//!
//! Anybody who reaches an address may cause most of these as often as the network lets them, also
//! without the password. So a line in the log stands for all events of its kind since the line
//! before.
//!
//! Threads: any.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Of one kind there is a line at most so often.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientEvent {
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

impl ClientEvent {
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

    /// Why a client was disconnected or turned away, as metrics have it: where that is a limit, by
    /// the name of its setting. `None`: it was not.
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
struct EventCount {
    number: AtomicU64,
    last_logged: Mutex<LastLogged>,
}

#[derive(Debug, Default)]
struct LastLogged {
    at: Option<Instant>,
    /// How many there had been by then.
    number: u64,
}

/// What has occurred since the start, or since that was to be forgotten.
#[derive(Debug, Default)]
pub struct ClientEvents([EventCount; ClientEvent::ALL.len()]);

impl ClientEvents {
    /// Counts another one. Where it is to be told, gives how many there were since the last that
    /// was, itself not among them.
    pub fn note(&self, event: ClientEvent) -> Option<u64> {
        self.note_at(event, Instant::now())
    }

    fn note_at(&self, event: ClientEvent, now: Instant) -> Option<u64> {
        let count = &self.0[event as usize];
        let number = count.number.fetch_add(1, Ordering::Relaxed) + 1;
        // Whoever holds it tells.
        let mut last_logged = count.last_logged.try_lock()?;
        if last_logged.at.is_some_and(|at| now.saturating_duration_since(at) < LOG_INTERVAL) {
            return None;
        }
        let others = number.saturating_sub(last_logged.number + 1);
        *last_logged = LastLogged { at: Some(now), number };
        Some(others)
    }

    /// Counts all from 0 again.
    pub fn reset(&self) {
        for count in &self.0 {
            let mut last_logged = count.last_logged.lock();
            count.number.store(0, Ordering::Relaxed);
            last_logged.number = 0;
        }
    }

    /// How many there were.
    pub fn number(&self, of: ClientEvent) -> u64 {
        self.0[of as usize].number.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_of_one_kind_the_first_of_each_minute_is_told_with_the_number_of_the_others() {
        let (events, begin) = (ClientEvents::default(), Instant::now());
        let http = |after: Duration| events.note_at(ClientEvent::Http, begin + after);
        assert_eq!(http(Duration::ZERO), Some(0));
        for ms in 0..500 {
            assert_eq!(http(Duration::from_millis(ms)), None);
        }
        // Another kind has a minute of its own.
        assert_eq!(events.note_at(ClientEvent::NoTls, begin), Some(0));
        assert_eq!(http(LOG_INTERVAL), Some(500));
        assert_eq!(http(3 * LOG_INTERVAL), Some(0));
        assert_eq!((events.number(ClientEvent::Http), events.number(ClientEvent::NoTls)), (503, 1));
        assert_eq!(events.number(ClientEvent::MaxClients), 0);
        events.reset();
        assert_eq!(http(3 * LOG_INTERVAL), None);
        assert_eq!(http(4 * LOG_INTERVAL), Some(1));
        assert_eq!(events.number(ClientEvent::Http), 2);
    }

    #[test]
    fn each_kind_has_a_place_and_a_reason_of_its_own() {
        let mut reasons: Vec<_> = ClientEvent::ALL.iter().filter_map(|of| of.reason()).collect();
        assert!(ClientEvent::ALL.iter().enumerate().all(|(place, of)| *of as usize == place));
        reasons.sort_unstable();
        reasons.dedup();
        assert_eq!(reasons.len(), ClientEvent::ALL.len() - 1);
    }
}
