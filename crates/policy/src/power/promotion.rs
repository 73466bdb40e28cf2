//! How long a copy that was promoted waits for its cores to become fast.

use ecotone_types::units::{Hertz, Seconds, Time};

/// It takes writes after this time, at whatever speed.
pub const MAX_PROMOTION_WAIT: Seconds = Seconds(0.050);

/// The share of the wanted frequency that counts as reached: processors round, and report a mean.
const REACHED: f64 = 0.95;

/// What a promoted copy does now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Promotion {
    /// Looks again, after this time at the latest.
    Wait(Seconds),
    /// Takes writes, at full speed or where no speed can be read.
    Ready,
    /// Takes writes although its cores are not fast yet.
    ReadyBelowSpeed,
}

/// Decides for a copy that was promoted at `since`, wants its cores at `wanted` and reads `reached`
/// back.
pub fn promotion(since: Time, now: Time, wanted: Hertz, reached: Option<Hertz>) -> Promotion {
    let fast = reached.is_none_or(|reached| reached.0 >= REACHED * wanted.0);
    let left = MAX_PROMOTION_WAIT - now.since(since);
    if fast {
        Promotion::Ready
    } else if left > Seconds::ZERO {
        Promotion::Wait(left)
    } else {
        Promotion::ReadyBelowSpeed
    }
}
