//! Time as certificates count it: whole seconds since 1970.

use std::fmt::Debug;
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970, UTC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// So many seconds later.
    pub fn plus(self, seconds: u64) -> Timestamp {
        Timestamp(self.0.saturating_add(seconds))
    }

    /// So many seconds earlier.
    pub fn minus(self, seconds: u64) -> Timestamp {
        Timestamp(self.0.saturating_sub(seconds))
    }

    /// Seconds from `earlier` until this; none if it is not earlier.
    pub fn since(self, earlier: Timestamp) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Tells the time. Tests have one that they set.
pub trait Clock: Debug + Send + Sync {
    /// The time now.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }
}
