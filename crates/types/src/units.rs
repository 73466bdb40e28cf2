//! Quantities with their units, so that seconds are never added to joules.
//!
//! All but [`Bytes`] hold a 64-bit float whose usual range is zero or more and finite. The types do
//! not enforce it, as differences may be negative; whatever comes from outside is checked with
//! `is_plausible` before it is used.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

use serde::{Deserialize, Serialize};

/// The greatest value of any quantity that is believed: far above everything real, and small enough
/// that sums of squares stay finite.
pub const MAX_PLAUSIBLE: f64 = 1e18;

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $symbol:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub f64);

        impl $name {
            /// Nothing of it.
            pub const ZERO: Self = Self(0.0);

            /// Whether it is a number from zero to [`MAX_PLAUSIBLE`].
            pub fn is_plausible(self) -> bool {
                (0.0..=MAX_PLAUSIBLE).contains(&self.0)
            }

            /// The smaller of two; a NaN loses.
            #[must_use]
            pub fn min(self, other: Self) -> Self {
                Self(self.0.min(other.0))
            }

            /// The larger of two; a NaN loses.
            #[must_use]
            pub fn max(self, other: Self) -> Self {
                Self(self.0.max(other.0))
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl Mul<f64> for $name {
            type Output = Self;
            fn mul(self, factor: f64) -> Self {
                Self(self.0 * factor)
            }
        }

        impl Div<f64> for $name {
            type Output = Self;
            fn div(self, divisor: f64) -> Self {
                Self(self.0 / divisor)
            }
        }

        impl Div for $name {
            type Output = f64;
            fn div(self, other: Self) -> f64 {
                self.0 / other.0
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                Self(items.map(|item| item.0).sum())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)?;
                f.write_str(concat!(" ", $symbol))
            }
        }
    };
}

quantity! {
    /// A length of time in seconds. Zero or more; a difference of two may be negative.
    Seconds, "s"
}
quantity! {
    /// Energy in joules. Zero or more.
    Joules, "J"
}
quantity! {
    /// Power in watts. Zero or more.
    Watts, "W"
}
quantity! {
    /// A flow of data in bytes per second. Zero or more.
    BytesPerSecond, "B/s"
}
quantity! {
    /// A number of L0 tables. Zero or more; fractions are tables that are still being filled.
    Tables, "tables"
}
quantity! {
    /// A number of L0 tables for each second. Zero or more.
    TablesPerSecond, "tables/s"
}
quantity! {
    /// A clock frequency in hertz. More than zero.
    Hertz, "Hz"
}
quantity! {
    /// A number of cores of one server. Zero or more; fractions are cores that are busy part of the
    /// time.
    Cores, "cores"
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// `count` times 1024 * 1024 bytes.
    pub const fn from_mib(count: u64) -> Self {
        Self(count.saturating_mul(1 << 20))
    }

    /// As a float, for formulas. Exact up to 2^53 bytes (8 PiB).
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }

    /// What remains after `other` is taken away; zero if that is more.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)?;
        f.write_str(" B")
    }
}

impl Mul<Seconds> for Watts {
    type Output = Joules;
    fn mul(self, time: Seconds) -> Joules {
        Joules(self.0 * time.0)
    }
}

impl Mul<Seconds> for TablesPerSecond {
    type Output = Tables;
    fn mul(self, time: Seconds) -> Tables {
        Tables(self.0 * time.0)
    }
}

impl Div<TablesPerSecond> for Tables {
    type Output = Seconds;
    fn div(self, rate: TablesPerSecond) -> Seconds {
        Seconds(self.0 / rate.0)
    }
}

impl Div<Seconds> for Joules {
    type Output = Watts;
    fn div(self, time: Seconds) -> Watts {
        Watts(self.0 / time.0)
    }
}

impl Div<BytesPerSecond> for Bytes {
    type Output = Seconds;
    fn div(self, rate: BytesPerSecond) -> Seconds {
        Seconds(self.as_f64() / rate.0)
    }
}

impl Div<Seconds> for Bytes {
    type Output = BytesPerSecond;
    fn div(self, time: Seconds) -> BytesPerSecond {
        BytesPerSecond(self.as_f64() / time.0)
    }
}

/// A point in time: seconds since a start that the caller chose once (for a daemon a monotonic
/// clock, for a simulator its own). Only differences mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub Seconds);

impl Time {
    /// The point `seconds` after the start.
    pub const fn from_seconds(seconds: f64) -> Self {
        Self(Seconds(seconds))
    }

    /// How long after `earlier` this is; zero if it is not after it, so that a clock that steps
    /// back harms nobody.
    pub fn since(self, earlier: Self) -> Seconds {
        (self.0 - earlier.0).max(Seconds::ZERO)
    }
}

impl Add<Seconds> for Time {
    type Output = Self;
    fn add(self, time: Seconds) -> Self {
        Self(self.0 + time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_combine_as_in_physics() {
        assert_eq!(Watts(10.0) * Seconds(3.0), Joules(30.0));
        assert_eq!(Joules(30.0) / Seconds(3.0), Watts(10.0));
        assert_eq!(Bytes(500) / BytesPerSecond(250.0), Seconds(2.0));
        assert_eq!(Bytes(500) / Seconds(2.0), BytesPerSecond(250.0));
        assert_eq!(Seconds(3.0) / Seconds(2.0), 1.5);
    }

    #[test]
    fn nothing_overflows_and_time_never_runs_backwards() {
        assert_eq!(Bytes(u64::MAX) + Bytes(1), Bytes(u64::MAX));
        assert_eq!(Bytes(1).saturating_sub(Bytes(2)), Bytes::ZERO);
        assert_eq!(Time::from_seconds(1.0).since(Time::from_seconds(2.0)), Seconds::ZERO);
    }

    #[test]
    fn implausible_values_are_told_apart() {
        for bad in [f64::NAN, f64::INFINITY, -1.0, 1e19] {
            assert!(!Seconds(bad).is_plausible());
        }
        assert!(Seconds(0.0).is_plausible());
    }
}
