//! How much writers have waited for garbage collection lately, and so how much more garbage may
//! stay.
//!
//! Garbage costs space, and copies cost time that writers wait for. Where nobody waits, space is
//! what counts. While writers want more than garbage collection can keep up with, the same copies
//! free more if they come later: so the more they wait, the nearer the ratios of garbage collection
//! are to those of [`GcParameters::throttled_ratio`](super::GcParameters::throttled_ratio), as long
//! as there is space, and they return once the writers have had what they wanted.
//!
//! Later is not never: who writes that fast for good has to wait for copies in the end, and is
//! better off with a store of a known size. So what may stay for writers is lent for a burst of a
//! certain length ([`GcParameters::burst_credit`](super::GcParameters::burst_credit)), and less and
//! less of it in the second half, so that writers are not stopped for all that has to be freed
//! then. A burst is spent by how much writers are throttled, whether space lets them have what is
//! lent or not; it is not remembered over a restart.

use ecotone_types::units::Seconds;

/// What was longer ago than this counts for a third: longer than a compaction of a small store
/// takes.
const MEMORY: Seconds = Seconds(10.0);

/// Writers that rest for no more than this share of their time are not throttled: some rests come
/// at any rate.
const MIN_SHARE: f64 = 0.02;

/// Those that rest for this share of it are, and more does not count: so the longest ways back take
/// [`MEMORY`] times the logarithm of how many times [`MIN_SHARE`] it is, 23 s.
const MAX_SHARE: f64 = 0.2;

/// What a second in which nobody is throttled gives back of a burst, in seconds. So over any long
/// time a fifth of what `throttled_ratio` allows is lent, in the mean: all of it for a fifth of the
/// time, or a fifth of it for good.
const REGAINED: f64 = 0.25;

/// The share of a burst that is left while writers have all of what `throttled_ratio` allows; with
/// less of it they have less in proportion. Half: there is as much time to free garbage as there
/// was to make it, however large the store.
const ALL_ALLOWED: f64 = 0.5;

/// What share of their time writers have rested, up to [`MAX_SHARE`]: an average in which what is
/// older weighs less. And how much of a burst is left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BurstCredit {
    throttled_share: f64,
    burst_credit: Seconds,
    left: Seconds,
}

impl BurstCredit {
    /// Nobody has been throttled yet, and the whole of a `burst_credit` is left (0 s or more,
    /// finite).
    pub fn new(burst_credit: Seconds) -> Self {
        Self { throttled_share: 0.0, burst_credit, left: burst_credit }
    }

    /// In `slowed` of the last `elapsed` writers were to rest, and have rested then for `throttled`
    /// and been at work for `busy`, summed over all of them. Of one writer the rest of the time
    /// counts as well: it has nothing to write then. Of many that write at the same time it is the
    /// average that counts.
    pub fn observe(&mut self, throttled: Seconds, busy: Seconds, slowed: Seconds, elapsed: Seconds) {
        if elapsed.0 > 0.0 {
            let before = (-elapsed.0 / MEMORY.0).exp();
            let slowed = slowed.0.clamp(0.0, elapsed.0);
            // Who rests at the end of it may do so beyond it.
            let while_slowed =
                if slowed > 0.0 { (throttled.0 / (throttled.0 + busy.0).max(slowed)).clamp(0.0, 1.0) } else { 0.0 };
            let share = while_slowed * slowed / elapsed.0;
            let degree_before = self.degree();
            self.throttled_share = (self.throttled_share * before + share * (1.0 - before)).min(MAX_SHARE);
            let degree = (degree_before + self.degree()) / 2.0;
            let regained = REGAINED * (1.0 - degree) - degree;
            self.left = Seconds((self.left.0 + regained * elapsed.0).clamp(0.0, self.burst_credit.0));
        }
    }

    /// 0 where nobody is throttled, 1 where everybody is.
    pub fn degree(&self) -> f64 {
        ((self.throttled_share - MIN_SHARE) / (MAX_SHARE - MIN_SHARE)).clamp(0.0, 1.0)
    }

    /// How much of what `throttled_ratio` allows may be had now (0 to 1): the
    /// [`degree`](Self::degree), and less of it the less is left of a burst.
    pub fn allowed(&self) -> f64 {
        let lent = self.burst_credit.0 * ALL_ALLOWED;
        if lent > 0.0 { self.degree() * (self.left.0 / lent).min(1.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calm() -> BurstCredit {
        BurstCredit::new(Seconds(120.0))
    }

    /// After so many seconds in which one writer rested for so long.
    fn after(seconds: f64, throttled: f64, of: BurstCredit) -> BurstCredit {
        let mut pressure = of;
        pressure.observe(Seconds(throttled), Seconds(0.0), Seconds(seconds), Seconds(seconds));
        pressure
    }

    #[test]
    fn it_rises_while_writers_rest_and_is_gone_soon_after() {
        let calm = calm();
        assert_eq!(calm.degree(), 0.0);
        assert_eq!(after(60.0, 1.0, calm).degree(), 0.0, "a rest in a minute holds nobody up");
        assert!(after(1.0, 0.5, calm).degree() > 0.0 && after(1.0, 0.5, calm).degree() < 0.3, "a second is not enough");
        for throttled in [15.0, 30.0] {
            let throttled = after(30.0, throttled, calm);
            assert_eq!(throttled.degree(), 1.0);
            assert!(after(10.0, 0.0, throttled).degree() < throttled.degree());
            assert_eq!(after(24.0, 0.0, throttled).degree(), 0.0);
        }
    }

    #[test]
    fn many_writers_are_throttled_where_each_is() {
        let by = |writers: f64, throttled_share: f64| {
            let (mut pressure, elapsed) = (calm(), 30.0);
            let all = writers * elapsed;
            let (throttled, busy) = (Seconds(all * throttled_share), Seconds(all * (1.0 - throttled_share)));
            pressure.observe(throttled, busy, Seconds(elapsed), Seconds(elapsed));
            pressure.degree()
        };
        for writers in [1.0, 50.0] {
            assert_eq!(by(writers, 0.004), 0.0);
            assert_eq!(by(writers, 0.5), 1.0);
        }
        assert!((by(1.0, 0.1) - by(50.0, 0.1)).abs() < 1e-9);
    }

    #[test]
    fn writers_that_are_slowed_for_a_moment_are_not_throttled() {
        let slowed_for = |writers: f64, slowed: f64| {
            let mut pressure = calm();
            let all = writers * slowed;
            pressure.observe(Seconds(0.9 * all), Seconds(0.1 * all), Seconds(slowed), Seconds(10.0));
            pressure
        };
        for writers in [1.0, 50.0] {
            assert_eq!(slowed_for(writers, 0.06).degree(), 0.0);
            assert!(slowed_for(writers, 5.0).degree() > 0.5);
        }
        assert!((slowed_for(1.0, 1.0).degree() - slowed_for(50.0, 1.0).degree()).abs() < 1e-9);
        let mut never = calm();
        never.observe(Seconds(5.0), Seconds(0.0), Seconds(0.0), Seconds(10.0));
        assert_eq!(never, calm(), "nobody was to rest");
    }

    #[test]
    fn how_often_it_is_asked_does_not_matter() {
        let together = after(5.0, 1.0, calm());
        let in_steps = (0..50).fold(calm(), |pressure, _| after(0.1, 0.02, pressure));
        assert!(together.degree() > 0.0 && (together.degree() - in_steps.degree()).abs() < 1e-9);
        let flood = flooded(80, calm());
        let [often, seldom] = [0.1, 5.0].map(|every| {
            let steps = (30.0 / every) as u32;
            (0..steps).fold(flood, |pressure, _| after(every, 0.0, pressure)).left.0
        });
        assert!((often - seldom).abs() < 1.0, "{often} {seldom}");
        assert_eq!(after(0.0, 0.0, together), together);
    }

    /// Asked each second, with writers that rest for a third of it.
    fn flooded(seconds: u32, mut of: BurstCredit) -> BurstCredit {
        for _ in 0..seconds {
            of = after(1.0, 0.33, of);
        }
        of
    }

    #[test]
    fn a_flood_has_what_is_lent_for_half_of_a_burst_and_gives_it_back_in_the_other() {
        let begun = flooded(55, calm());
        assert_eq!((begun.degree(), begun.allowed()), (1.0, 1.0));
        let mut before = begun;
        for _ in 0..90 {
            let then = flooded(1, before);
            assert!(then.allowed() <= before.allowed() && before.allowed() - then.allowed() < 0.02, "evenly");
            before = then;
        }
        assert_eq!((before.degree(), before.allowed()), (1.0, 0.0));
        assert_eq!(flooded(3600, before), before, "however long it goes on");
    }

    #[test]
    fn what_was_lent_comes_back_in_four_times_the_calm() {
        let spent = flooded(1000, calm());
        // The average has to fall before anybody counts as calm.
        let [half, whole] = [25.0 + 240.0, 25.0 + 480.0].map(|calm_s| {
            let throttled = (0..calm_s as u32).fold(spent, |pressure, _| after(1.0, 0.0, pressure));
            flooded(10, throttled).allowed()
        });
        assert!(half > 0.8 && whole == 1.0, "{half} {whole}");
        let soon = flooded(10, after(30.0, 0.0, spent)).allowed();
        assert!(soon < 0.15, "{soon}");
    }

    #[test]
    fn writers_throttled_a_little_for_good_have_little_for_good() {
        // One that rests for 5.6 % of its time is throttled to a fifth: what calm gives back is
        // what that takes.
        let long = (0..36_000).fold(calm(), |pressure, _| after(1.0, 0.056, pressure));
        assert!((long.allowed() - 0.2).abs() < 0.01, "{long:?}");
        let longer = (0..36_000).fold(calm(), |pressure, _| after(1.0, 0.08, pressure));
        assert!(longer.degree() > 0.3 && longer.allowed() == 0.0);
    }

    #[test]
    fn no_burst_lends_nothing() {
        let never = flooded(60, BurstCredit::new(Seconds(0.0)));
        assert_eq!((never.degree(), never.allowed()), (1.0, 0.0));
    }
}
