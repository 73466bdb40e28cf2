//! The power model fitted to a meter, while it runs. Pure.
//!
//! watts = idle + active x u, where u is the number of busy cores, each weighted by V^2 f at the
//! frequency it reached (1 at the highest). Observations are gathered in bins by u, each with a
//! bounded weight: an hour of steady load refreshes its own bin and does not wipe out what was
//! learned at other loads. The two figures are those of least squares over the bins, within
//! 0 to [`MAX_WATTS`]; the configured model pulls at them with a tenth of an observation's weight, so
//! that they are defined before the load ever changed.
//!
//! The error is that of predictions made before their observation was learned.

use ecotone_types::units::{Joules, Seconds, Watts};

use crate::model::{MAX_WATTS, PowerModel};

/// Bins from no load to all cores busy.
const BINS: usize = 32;
/// The most observations that a bin remembers: a minute and a half at one each second.
const MAX_BIN_WEIGHT: f64 = 100.0;
/// How much the configured model weighs, in observations.
const PRIOR_WEIGHT: f64 = 0.1;
/// Observations before the fit and its error are believed.
const MIN_OBSERVATIONS: u64 = 10;
/// The least spread of loads, as a share of all cores, before they are.
const MIN_SPREAD: f64 = 0.1;
/// How fast the error forgets.
const ERROR_RATE: f64 = 1.0 / 32.0;
/// A meter whose power changes by less than this share from the least load to the highest does not
/// see the load.
const MIN_RESPONSE: f64 = 0.02;

/// The two figures of a fitted model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FittedModel {
    /// Watts when nothing runs.
    pub idle: Watts,
    /// Watts that one busy core adds at the highest P-state.
    pub active: Watts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    weight: f64,
    load: f64,
    watts: f64,
}

/// The fit of a power model to one meter.
#[derive(Debug)]
pub struct Fit {
    prior: FittedModel,
    cores: f64,
    bins: [Bin; BINS],
    observations: u64,
    error: Option<f64>,
    now: FittedModel,
}

impl Fit {
    /// Begins with the configured model, on a machine of so many cores.
    pub fn new(prior: &PowerModel, cores: f64) -> Self {
        let prior = FittedModel { idle: prior.idle_watts(), active: Watts(prior.keys().active_watts) };
        Self { prior, cores: cores.max(1.0), bins: [Bin::default(); BINS], observations: 0, error: None, now: prior }
    }

    /// The model now.
    pub fn model(&self) -> FittedModel {
        self.now
    }

    /// The mean relative error of recent predictions, 0.05 for 5 %; `None` before there were enough.
    pub fn error(&self) -> Option<f64> {
        self.error.filter(|_| self.observations >= MIN_OBSERVATIONS)
    }

    /// Whether loads differed enough to tell idle power from active.
    pub fn is_sound(&self) -> bool {
        self.observations >= MIN_OBSERVATIONS && self.spread() >= MIN_SPREAD * self.cores
    }

    /// Whether the meter shows the same power whatever the load. A meter that lies so is not
    /// evidence of anything.
    pub fn ignores_load(&self) -> bool {
        let highest = self.used().map(|bin| bin.watts).fold(0.0, f64::max);
        self.is_sound() && self.now.active.0 * self.spread() < MIN_RESPONSE * highest
    }

    /// What `busy` weighted core seconds within `elapsed` cost by the model now.
    pub fn predict(&self, busy: Seconds, elapsed: Seconds) -> Joules {
        self.now.idle * elapsed + self.now.active * busy
    }

    /// Learns that they cost `measured`.
    pub fn learn(&mut self, busy: Seconds, elapsed: Seconds, measured: Joules) {
        let plausible = elapsed.0 > 0.0 && busy.is_plausible() && measured.is_plausible() && measured.0 > 0.0;
        if !plausible {
            return;
        }
        if self.observations > 0 {
            let off = (self.predict(busy, elapsed).0 - measured.0).abs() / measured.0;
            let off = off.min(1e3);
            self.error = Some(self.error.map_or(off, |error| error + ERROR_RATE * (off - error)));
        }
        self.observations += 1;
        let (load, watts) = (busy.0 / elapsed.0, measured.0 / elapsed.0);
        let at = (load / self.cores * BINS as f64) as usize;
        let bin = &mut self.bins[at.min(BINS - 1)];
        bin.weight = (bin.weight + 1.0).min(MAX_BIN_WEIGHT);
        bin.load += (load - bin.load) / bin.weight;
        bin.watts += (watts - bin.watts) / bin.weight;
        self.now = self.solve();
    }

    fn used(&self) -> impl Iterator<Item = &Bin> {
        self.bins.iter().filter(|bin| bin.weight > 0.0)
    }

    fn spread(&self) -> f64 {
        let most = self.used().map(|bin| bin.load).fold(f64::NEG_INFINITY, f64::max);
        let least = self.used().map(|bin| bin.load).fold(f64::INFINITY, f64::min);
        (most - least).max(0.0)
    }

    /// Least squares in two unknowns within a box: the inner solution where it is allowed, else the
    /// best of the four edges.
    fn solve(&self) -> FittedModel {
        // Normal equations: [n, x; x, xx] (idle, active) = (y, xy).
        let (mut n, mut x, mut xx, mut y, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for bin in self.used() {
            n += bin.weight;
            x += bin.weight * bin.load;
            xx += bin.weight * bin.load * bin.load;
            y += bin.weight * bin.watts;
            xy += bin.weight * bin.load * bin.watts;
        }
        n += PRIOR_WEIGHT;
        xx += PRIOR_WEIGHT;
        y += PRIOR_WEIGHT * self.prior.idle.0;
        xy += PRIOR_WEIGHT * self.prior.active.0;
        let determinant = n * xx - x * x;
        let (idle, active) = ((xx * y - x * xy) / determinant, (n * xy - x * y) / determinant);
        let allowed = 0.0..=MAX_WATTS;
        if allowed.contains(&idle) && allowed.contains(&active) {
            return FittedModel { idle: Watts(idle), active: Watts(active) };
        }
        let cost = |idle: f64, active: f64| {
            n * idle * idle + xx * active * active + 2.0 * (x * idle * active - y * idle - xy * active)
        };
        let edges = [0.0, MAX_WATTS].into_iter().flat_map(|edge| {
            let active = ((xy - x * edge) / xx).clamp(0.0, MAX_WATTS);
            let idle = ((y - x * edge) / n).clamp(0.0, MAX_WATTS);
            [(edge, active), (idle, edge)]
        });
        let best = edges.min_by(|a, b| cost(a.0, a.1).total_cmp(&cost(b.0, b.1)));
        best.map_or(self.prior, |(idle, active)| FittedModel { idle: Watts(idle), active: Watts(active) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fit() -> Fit {
        Fit::new(&PowerModel::hardware(5.0, 10.0).unwrap(), 8.0)
    }

    #[test]
    fn before_anything_was_seen_it_is_the_configured_model() {
        let fit = fit();
        assert_eq!(fit.predict(Seconds(2.0), Seconds(1.0)), Joules(25.0));
        assert_eq!((fit.error(), fit.is_sound(), fit.ignores_load()), (None, false, false));
    }

    #[test]
    fn a_steady_hour_does_not_wipe_out_what_other_loads_taught() {
        let mut fit = fit();
        let truth = |load: f64| Joules(20.0 + 7.0 * load);
        for load in [0.5, 2.0, 4.0, 6.0, 8.0].iter().cycle().take(200) {
            fit.learn(Seconds(*load), Seconds(1.0), truth(*load));
        }
        for _ in 0..3_600 {
            fit.learn(Seconds(2.0), Seconds(1.0), truth(2.0));
        }
        let model = fit.model();
        assert!((model.idle.0 - 20.0).abs() < 0.3 && (model.active.0 - 7.0).abs() < 0.1, "{model:?}");
        assert!(fit.is_sound() && !fit.ignores_load());
        assert!(fit.error().is_some_and(|error| error < 0.01), "{:?}", fit.error());
    }

    #[test]
    fn a_meter_that_ignores_the_load_is_found_out() {
        let mut fit = fit();
        for load in [0.5, 2.0, 4.0, 6.0, 8.0].iter().cycle().take(500) {
            fit.learn(Seconds(*load), Seconds(1.0), Joules(30.0));
        }
        assert!(fit.ignores_load(), "{:?}", fit.model());
    }

    proptest! {
        /// Whatever a meter says, the figures stay in their box, and no point of a grid in the box
        /// explains what was seen better than they do.
        #[test]
        fn figures_stay_in_their_box_and_are_the_best_there(
            seen in proptest::collection::vec((0.0..8.0f64, 0.001..500.0f64), 1..60)
        ) {
            let mut fit = fit();
            for (busy, joules) in &seen {
                fit.learn(Seconds(*busy), Seconds(1.0), Joules(*joules));
            }
            let FittedModel { idle, active } = fit.model();
            prop_assert!((0.0..=MAX_WATTS).contains(&idle.0) && (0.0..=MAX_WATTS).contains(&active.0));
            let cost = |idle: f64, active: f64| {
                let squares: f64 = fit.bins.iter()
                    .map(|bin| bin.weight * (idle + active * bin.load - bin.watts).powi(2)).sum();
                squares + 0.1 * ((idle - 5.0).powi(2) + (active - 10.0).powi(2))
            };
            let found = cost(idle.0, active.0);
            for i in 0..40 {
                for a in 0..40 {
                    let other = cost(f64::from(i) * 15.0, f64::from(a) * 15.0);
                    prop_assert!(found <= other * (1.0 + 1e-9), "{} at {:?}, {} at {} {}", found, fit.model(), other, i, a);
                }
            }
        }
    }
}
