//! Recursive least squares for y = a x + b with forgetting (ECO-KVS section VI-B, "linear
//! regression ... y = ax + b").
//!
//! The recursion keeps the five weighted sums of the normal equations (the information form), not a
//! covariance matrix: both give the same line, but sums of non-negative terms that shrink by the
//! forgetting factor cannot wind up, lose their symmetry or become negative, whatever is fed to
//! them. A line is solved from them in closed form when it is asked for.
//!
//! **Weights.** Times of jobs scatter in proportion to their size. Ordinary least squares would let
//! the largest jobs rule and predict small ones badly; so by default a sample weighs 1 / x^2, which
//! makes the *relative* error least. The test
//! `relative_weights_predict_all_sizes_better_under_multiplicative_noise` decided it: under 5 % of
//! multiplicative noise over jobs of 4 MiB to 1 GiB it more than halves the mean relative error of
//! small jobs and loses nothing for large ones.
//!
//! **Priors.** A prior line is handed in with each question, since it may itself be learned (a
//! worker's model is the prior of its pairs). It acts in two ways. Its *shape* (the ratio of b to
//! a) is in the sums as two pseudo-samples of a small weight, so that one sample, or a thousand of
//! the same size, still give a line; they lie on the prior raised or lowered to the *level* of the
//! samples. And that level is then drawn back towards the prior's, as a ratio, by as much as the
//! prior has samples' worth of say.
//!
//! **Range.** a and b are never negative: time and energy of a job grow with its bytes, and no job
//! is free. The solution is that of least squares under this constraint, which in two dimensions is
//! exact and cheap.

use crate::machine::{ModelParameters, Weighting};
use ecotone_types::units::{Bytes, MAX_PLAUSIBLE};

/// Fewer samples than this are none: their sums would soon be too small for a float.
const FORGOTTEN: f64 = 1e-6;

/// y = a x + b, with x in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Line {
    /// Units of y for each byte.
    pub a: f64,
    /// Units of y for each job.
    pub b: f64,
}

impl Line {
    /// y for a job of this size, from 0 to [`MAX_PLAUSIBLE`].
    pub fn at(self, bytes: Bytes) -> f64 {
        (self.a * bytes.as_f64() + self.b).clamp(0.0, MAX_PLAUSIBLE)
    }

    /// The line with both coefficients multiplied.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { a: self.a * factor, b: self.b * factor }
    }

    /// The sum of two lines.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { a: self.a + other.a, b: self.b + other.b }
    }
}

/// How samples and priors weigh.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// Each further sample multiplies the weight of all before it by this: more than 0, at most 1.
    pub forgetting: f64,
    /// What a new sample weighs.
    pub weighting: Weighting,
    /// Under [`Weighting::Relative`] smaller jobs weigh as if they had this size. At least 1.
    pub floor_bytes: Bytes,
    /// The size that is 1 inside the sums. At least 1.
    pub reference_bytes: Bytes,
    /// How many samples the level of the prior counts as. More than 0.
    pub prior_samples: f64,
    /// How many samples the prior's shape counts as. More than 0.
    pub shape_samples: f64,
    /// The two sizes at which the prior's shape is put into the sums, in reference sizes. More than
    /// 0, the first less than the second.
    pub shape_sizes: [f64; 2],
}

impl Weights {
    /// For the model of a server's own jobs.
    pub fn of_server(parameters: &ModelParameters) -> Self {
        Self {
            forgetting: parameters.forgetting,
            weighting: parameters.weighting,
            floor_bytes: parameters.weight_floor_bytes,
            reference_bytes: parameters.reference_bytes,
            prior_samples: parameters.server_prior_samples,
            shape_samples: parameters.shape_prior_samples,
            shape_sizes: parameters.shape_prior_sizes,
        }
    }

    /// For the model of a worker and an owner.
    pub fn of_pair(parameters: &ModelParameters) -> Self {
        Self { prior_samples: parameters.pair_prior_samples, ..Self::of_server(parameters) }
    }

    /// The weight of a sample of `x` reference sizes.
    fn of_sample(&self, x: f64) -> f64 {
        match self.weighting {
            Weighting::Absolute => 1.0,
            Weighting::Relative => {
                let x = x.max(self.floor_bytes.as_f64() / self.reference_bytes.as_f64());
                1.0 / (x * x)
            }
        }
    }
}

/// Weighted sums over the samples; x is counted in reference sizes, so that all sums are of similar
/// magnitude.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    /// The number of samples, less what was forgotten.
    n: f64,
    w: f64,
    wx: f64,
    wxx: f64,
    wy: f64,
    wxy: f64,
}

impl Sums {
    fn add(&mut self, weight: f64, x: f64, y: f64) {
        self.w += weight;
        self.wx += weight * x;
        self.wxx += weight * x * x;
        self.wy += weight * y;
        self.wxy += weight * x * y;
    }

    fn scale(&mut self, factor: f64) {
        for sum in [&mut self.n, &mut self.w, &mut self.wx, &mut self.wxx, &mut self.wy, &mut self.wxy] {
            *sum *= factor;
        }
    }

    /// What the sum of squared errors of a line is, but for a constant.
    fn cost(&self, line: Line) -> f64 {
        let Line { a, b } = line;
        a * a * self.wxx + 2.0 * a * b * self.wx + b * b * self.w - 2.0 * (a * self.wxy + b * self.wy)
    }

    /// The line of least squares among those with a >= 0 and b >= 0.
    fn solve(&self) -> Line {
        let determinant = self.w * self.wxx - self.wx * self.wx;
        if determinant > 0.0 {
            let a = (self.w * self.wxy - self.wx * self.wy) / determinant;
            let b = (self.wxx * self.wy - self.wx * self.wxy) / determinant;
            if a >= 0.0 && b >= 0.0 && a.is_finite() && b.is_finite() {
                return Line { a, b };
            }
        }
        // The least of a convex cost outside the quadrant means that the best point within it lies
        // on an axis.
        let proportional = Line { a: non_negative_ratio(self.wxy, self.wxx), b: 0.0 };
        let constant = Line { a: 0.0, b: non_negative_ratio(self.wy, self.w) };
        if self.cost(constant) < self.cost(proportional) { constant } else { proportional }
    }
}

/// A line over reference sizes as a line over bytes.
fn in_bytes(line: Line, unit: f64) -> Line {
    Line { a: line.a / unit, b: line.b }
}

fn non_negative_ratio(numerator: f64, denominator: f64) -> f64 {
    if denominator > 0.0 { (numerator / denominator).max(0.0) } else { 0.0 }
}

/// A line that is learned from samples, one by one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Regression {
    weights: Weights,
    sums: Sums,
}

impl Regression {
    /// Knows nothing but what a prior will say.
    pub fn new(weights: Weights) -> Self {
        Self { weights, sums: Sums::default() }
    }

    /// Learns that a job of `bytes` gave `y` (finite, zero or more); all samples before it lose
    /// weight.
    pub fn learn(&mut self, bytes: Bytes, y: f64) {
        let x = self.in_reference_sizes(bytes);
        self.sums.scale(self.weights.forgetting);
        self.sums.n += 1.0;
        self.sums.add(self.weights.of_sample(x), x, y);
    }

    /// Multiplies the weight of all samples by `factor`, from 0 to 1: they have aged.
    pub fn fade(&mut self, factor: f64) {
        self.sums.scale(factor.clamp(0.0, 1.0));
        if self.sums.n < FORGOTTEN {
            self.sums = Sums::default();
        }
    }

    /// The line that samples and prior give together: the prior while there are no samples, else
    /// g^(-p / (n + p)) times the line of
    ///
    /// ```text
    /// least  sum_i w_i (y_i - a x_i - b)^2  +  sum_k s v_k / 2 (g P(x_k) - a x_k - b)^2     with a, b >= 0
    /// ```
    ///
    /// where P is the prior; g = sum_i w_i y_i P(x_i) / sum_i w_i P(x_i)^2 is the level of the
    /// samples as a multiple of it; x_k are two fixed sizes and v_k their weights; n is the number
    /// of samples, less what was forgotten; p and s are the numbers of samples that the prior and
    /// its shape count as.
    pub fn line(&self, prior: Line) -> Line {
        let unit = self.weights.reference_bytes.as_f64();
        let scaled_prior = Line { a: prior.a * unit, b: prior.b };
        let Some(level) = self.level(scaled_prior) else {
            return if self.sums.n > 0.0 { in_bytes(self.sums.solve(), unit) } else { prior };
        };
        let mut sums = self.sums;
        for x in self.weights.shape_sizes {
            let weight = self.weights.of_sample(x) * self.weights.shape_samples / self.weights.shape_sizes.len() as f64;
            sums.add(weight, x, level * (scaled_prior.a * x + scaled_prior.b));
        }
        let say_of_prior = self.weights.prior_samples / (self.sums.n + self.weights.prior_samples);
        in_bytes(sums.solve(), unit).scaled(level.powf(-say_of_prior))
    }

    /// By what factor the prior must be multiplied to fit the samples best. `None` when that is no
    /// factor at all: without samples, or when the prior or all samples are next to nothing.
    fn level(&self, prior: Line) -> Option<f64> {
        let sums = &self.sums;
        let with_samples = prior.a * sums.wxy + prior.b * sums.wy;
        let with_itself = prior.a * prior.a * sums.wxx + 2.0 * prior.a * prior.b * sums.wx + prior.b * prior.b * sums.w;
        let level = with_samples / with_itself;
        // Beyond what is plausible its powers are no numbers, and such a prior tells nothing of the
        // samples anyway.
        (1.0 / MAX_PLAUSIBLE..=MAX_PLAUSIBLE).contains(&level).then_some(level)
    }

    fn in_reference_sizes(&self, bytes: Bytes) -> f64 {
        bytes.as_f64() / self.weights.reference_bytes.as_f64()
    }
}
