//! Joules from readings of power: the area under the straight lines between them. Pure.

use ecotone_types::units::{Joules, Seconds, Time, Watts};

/// The integral of one sensor.
#[derive(Debug)]
pub(super) struct Integral {
    /// Readings farther apart than this are not joined by a line: what went on between is not known.
    max_gap: Seconds,
    last: Option<(Time, Watts)>,
}

impl Integral {
    pub(super) fn new(max_gap: Seconds) -> Self {
        Self { max_gap, last: None }
    }

    /// Joules since the reading before; `None` for the first one and after a gap.
    pub(super) fn advance(&mut self, now: Time, watts: Watts) -> Option<Joules> {
        let (then, before) = self.last.replace((now, watts))?;
        let elapsed = now.since(then);
        (elapsed <= self.max_gap).then(|| Watts((before.0 + watts.0) / 2.0) * elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_between_readings() {
        let mut integral = Integral::new(Seconds(3.0));
        let mut at = |s: f64, w: f64| integral.advance(Time::from_seconds(s), Watts(w));
        assert_eq!(at(0.0, 4.0), None);
        assert_eq!(at(0.5, 8.0), Some(Joules(3.0)));
        // A clock that stands still, and one that steps back.
        assert_eq!(at(0.5, 100.0), Some(Joules(0.0)));
        assert_eq!(at(0.25, 100.0), Some(Joules(0.0)));
        // After a gap it begins anew.
        assert_eq!(at(10.0, 8.0), None);
        assert_eq!(at(11.0, 8.0), Some(Joules(8.0)));
    }
}
