//! When a server asks for its next certificate.

use crate::clock::Timestamp;

/// Seconds that a server's certificate is valid.
pub const LIFETIME_S: u64 = 24 * 3600;
/// Seconds that a certificate is valid before it was made: clocks of servers differ.
pub const BACKDATED_S: u64 = 5 * 60;
/// Seconds between two attempts after one has failed.
pub const RETRY_S: u64 = 60;

/// Whether a certificate that is valid from `begins` to `ends` is to be renewed now: after half of
/// its life, when it is over, and when it is not valid yet, which is of no use to anybody; after a failed attempt not before [`RETRY_S`] have passed.
///
/// A clock that was set back to before the last attempt does not delay the next one.
pub fn is_due(begins: Timestamp, ends: Timestamp, last_failure: Option<Timestamp>, now: Timestamp) -> bool {
    let made = begins.plus(BACKDATED_S).min(ends);
    let half_over = now.0 >= made.0 + ends.since(made) / 2;
    let may_retry = last_failure.is_none_or(|failed| now < failed || now.since(failed) >= RETRY_S);
    (half_over || now < begins) && may_retry
}
