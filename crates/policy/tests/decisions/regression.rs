//! The regression against independent oracles, and the models under the noise that jobs have.
use ecotone_policy::machine::{ModelParameters, Weighting};
use ecotone_policy::prequential::{PrequentialError, relative_error};
use ecotone_policy::regression::{Line, Regression, Weights};
use ecotone_types::units::Bytes;
use proptest::prelude::*;

const MIB: f64 = 1048576.0;

fn weights() -> Weights {
    Weights::of_server(&ModelParameters::default())
}

/// A small, seeded source of noise (SplitMix64, sum of twelve uniforms).
struct Noise(u64);

impl Noise {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Mean 0, standard deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    /// Log-uniform between two sizes.
    fn bytes(&mut self, least: f64, greatest: f64) -> Bytes {
        Bytes((least * (greatest / least).powf(self.uniform())) as u64)
    }
}

/// Rows of an ordinary least-squares problem, each already multiplied by the root of its weight.
type Rows = Vec<(f64, f64, f64)>;

/// The documented cost, written out as rows (the samples by age, and the prior's shape at the level
/// of the samples), and the factor that the line is multiplied with in the end.
fn rows(w: &Weights, prior: Line, samples: &[(Bytes, f64)]) -> (Rows, f64) {
    let unit = w.reference_bytes.as_f64();
    let weigh = |x: f64| match w.weighting {
        Weighting::Absolute => 1.0,
        Weighting::Relative => x.max(w.floor_bytes.as_f64() / unit).powi(-2),
    };
    let p = |x: f64| prior.a * unit * x + prior.b;
    let mut rows = Rows::new();
    let (mut with_y, mut with_itself, mut count) = (0.0, 0.0, 0.0);
    for (age, (bytes, y)) in samples.iter().rev().enumerate() {
        let x = bytes.as_f64() / unit;
        let kept = w.forgetting.powi(age as i32);
        let root = (kept * weigh(x)).sqrt();
        rows.push((root * x, root, root * y));
        with_y += root * root * y * p(x);
        with_itself += root * root * p(x) * p(x);
        count += kept;
    }
    let level: f64 = if samples.is_empty() { 1.0 } else { with_y / with_itself };
    for x in [0.25, 4.0] {
        let root = (w.shape_samples * weigh(x) / 2.0).sqrt();
        rows.push((root * x, root, root * level * p(x)));
    }
    (rows, level.powf(-w.prior_samples / (count + w.prior_samples)))
}

/// Least squares by modified Gram-Schmidt: another road than the normal equations of the code.
fn solve(rows: &Rows) -> (f64, f64) {
    let dot = |f: &dyn Fn(&(f64, f64, f64)) -> f64| rows.iter().map(f).sum::<f64>();
    let q1 = dot(&|r| r.1 * r.1).sqrt();
    let r12 = dot(&|r| r.1 / q1 * r.0);
    let rest: Vec<f64> = rows.iter().map(|r| r.0 - r.1 / q1 * r12).collect();
    let q2 = rest.iter().map(|v| v * v).sum::<f64>().sqrt();
    let y1 = dot(&|r| r.1 / q1 * r.2);
    let y2 = rest.iter().zip(rows).map(|(v, r)| v / q2 * (r.2 - r.1 / q1 * y1)).sum::<f64>();
    let a = y2 / q2;
    (a, (y1 - r12 * a) / q1)
}

fn cost(rows: &Rows, a: f64, b: f64) -> f64 {
    rows.iter().map(|(x, one, y)| (y - a * x - b * one).powi(2)).sum()
}

fn learned(w: Weights, samples: &[(Bytes, f64)]) -> Regression {
    let mut regression = Regression::new(w);
    for (bytes, y) in samples {
        regression.learn(*bytes, *y);
    }
    regression
}

fn samples() -> impl Strategy<Value = Vec<(Bytes, f64)>> {
    prop::collection::vec(((16.0f64..34.0).prop_map(|e| Bytes(e.exp2() as u64)), 0.001f64..100.0), 0..60)
}

fn lines() -> impl Strategy<Value = Line> {
    ((-10.0f64..-7.0).prop_map(|e| 10f64.powf(e)), 0.0f64..1.0).prop_map(|(a, b)| Line { a, b })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever came in, the line is that of closed-form weighted least squares where that has no
    /// negative coefficient.
    #[test]
    fn the_recursion_gives_the_closed_form(samples in samples(), prior in lines(), relative in any::<bool>(), forgetting in 0.8f64..=1.0) {
        let weighting = if relative { Weighting::Relative } else { Weighting::Absolute };
        let w = Weights { weighting, forgetting, ..weights() };
        let line = learned(w, &samples).line(prior);
        let unit = w.reference_bytes.as_f64();
        let (rows, factor) = rows(&w, prior, &samples);
        let (a, b) = solve(&rows);
        let (a, b) = (a * factor, b * factor);
        if a >= 0.0 && b >= 0.0 {
            let scale = a + b;
            prop_assert!((line.a * unit - a).abs() <= 1e-6 * scale, "a {} {a}, b {} {b}", line.a * unit, line.b);
            prop_assert!((line.b - b).abs() <= 1e-6 * scale, "a {} {a}, b {} {b}", line.a * unit, line.b);
        }
    }

    /// Where it has, no other line with both coefficients at or above zero has a lower cost.
    #[test]
    fn no_line_of_the_quadrant_fits_better(samples in samples(), prior in lines(), others in prop::collection::vec((0.0f64..4.0, 0.0f64..4.0), 50)) {
        let w = weights();
        let line = learned(w, &samples).line(prior);
        prop_assert!(line.a >= 0.0 && line.b >= 0.0);
        let unit = w.reference_bytes.as_f64();
        let (rows, factor) = rows(&w, prior, &samples);
        let line = line.scaled(1.0 / factor);
        let own = cost(&rows, line.a * unit, line.b);
        let near = others.iter().flat_map(|(f, g)| [(line.a * unit * f, line.b * g), (*f * 10.0, *g * 10.0), (line.a * unit * f, 0.0), (0.0, *g)]);
        for (a, b) in near {
            prop_assert!(own <= cost(&rows, a, b) * (1.0 + 1e-9) + 1e-9, "({a}, {b}) is better than {line:?}");
        }
    }

    /// Nothing that can be a job breaks the model, and no prediction is negative.
    #[test]
    fn any_sequence_keeps_the_line_finite(values in prop::collection::vec((any::<u64>(), 0.0f64..1e18), 1..100), a in 0.0f64..1e3, b in 0.0f64..1e6, ask in any::<u64>()) {
        let mut regression = Regression::new(weights());
        for (bytes, y) in values {
            regression.learn(Bytes(bytes), y);
            let line = regression.line(Line { a, b });
            prop_assert!(line.a.is_finite() && line.b.is_finite() && line.at(Bytes(ask)) >= 0.0, "{line:?}");
        }
    }
}

/// Textbook recursive least squares in covariance form, for well-spread samples: the other form of
/// the same recursion.
#[test]
fn the_recursion_agrees_with_the_covariance_form() {
    let w = Weights { prior_samples: 1e-9, shape_samples: 1e-9, ..weights() };
    let unit = w.reference_bytes.as_f64();
    let mut noise = Noise(7);
    let mut regression = Regression::new(w);
    let (mut theta, mut p) = ([0.0, 0.0], [[1e8, 0.0], [0.0, 1e8]]);
    for round in 0..200 {
        let bytes = noise.bytes(4.0 * MIB, 1024.0 * MIB);
        let y = (2.0 * bytes.as_f64() / unit + 0.5) * (1.0 + 0.05 * noise.normal());
        regression.learn(bytes, y);
        // Relative weighting: both sides of y = a x + b are divided by x.
        let x = bytes.as_f64() / unit;
        let (phi, target) = ([1.0, 1.0 / x], y / x);
        let pphi = [p[0][0] * phi[0] + p[0][1] * phi[1], p[1][0] * phi[0] + p[1][1] * phi[1]];
        let gain_divisor = w.forgetting + phi[0] * pphi[0] + phi[1] * pphi[1];
        let error = target - (theta[0] * phi[0] + theta[1] * phi[1]);
        for i in 0..2 {
            theta[i] += pphi[i] / gain_divisor * error;
            for j in 0..2 {
                p[i][j] = (p[i][j] - pphi[i] * pphi[j] / gain_divisor) / w.forgetting;
            }
        }
        if round >= 10 {
            let line = regression.line(Line { a: 1e-8, b: 0.1 });
            assert!((line.a * unit - theta[0]).abs() < 1e-4 && (line.b - theta[1]).abs() < 1e-4, "{line:?} {theta:?}");
        }
    }
}

#[test]
fn a_prior_is_all_there_is_at_first_and_one_job_sets_its_level() {
    let prior = Line { a: 1e-8, b: 0.02 };
    let mut regression = Regression::new(weights());
    let before = regression.line(prior);
    assert!((before.a / prior.a - 1.0).abs() < 1e-9 && (before.b / prior.b - 1.0).abs() < 1e-9, "{before:?}");

    // One job takes three times as long as thought: so do, nearly, those of other sizes.
    let bytes = Bytes::from_mib(64);
    regression.learn(bytes, 3.0 * prior.at(bytes));
    for size in [4, 16, 64, 256, 1024] {
        let ratio = regression.line(prior).at(Bytes::from_mib(size)) / prior.at(Bytes::from_mib(size));
        assert!((2.8..=3.0).contains(&ratio), "{size} MiB: {ratio}");
    }
}

#[test]
fn jobs_of_one_size_never_unsettle_the_line() {
    let prior = Line { a: 1e-8, b: 0.02 };
    let bytes = Bytes::from_mib(100);
    let mut regression = Regression::new(weights());
    let mut noise = Noise(3);
    for _ in 0..100_000 {
        regression.learn(bytes, 2.0 * (1.0 + 0.1 * noise.normal()));
    }
    let line = regression.line(prior);
    assert!((line.at(bytes) - 2.0).abs() < 0.1, "{line:?}");
    // Nothing was seen of other sizes, so the prior's shape must hold there.
    let ratio = line.b / line.a / (prior.b / prior.a);
    assert!((0.99..=1.01).contains(&ratio), "the ratio of b to a moved by {ratio}");
}

#[test]
fn a_server_that_slows_down_is_followed() {
    let mut regression = Regression::new(weights());
    let mut noise = Noise(5);
    let mut run = |regression: &mut Regression, slope: f64, jobs: usize| {
        for _ in 0..jobs {
            let bytes = noise.bytes(8.0 * MIB, 512.0 * MIB);
            regression.learn(bytes, slope * bytes.as_f64());
        }
        regression.line(Line { a: 1e-8, b: 0.01 }).at(Bytes::from_mib(64)) / (slope * 64.0 * MIB)
    };
    run(&mut regression, 1e-8, 500);
    let ratio = run(&mut regression, 3e-8, 100);
    assert!((ratio - 1.0).abs() < 0.12, "after 100 jobs at the new speed: {ratio}");
    let ratio = run(&mut regression, 3e-8, 200);
    assert!((ratio - 1.0).abs() < 0.01, "after 300 jobs at the new speed: {ratio}");
}

/// Mean relative error against the truth, over small and over large jobs, after `jobs` noisy
/// samples.
fn error_against_truth(weighting: Weighting, seed: u64, jobs: usize) -> [f64; 2] {
    let truth = Line { a: 2e-8, b: 0.3 };
    let mut noise = Noise(seed);
    let mut regression = Regression::new(Weights { weighting, ..weights() });
    for _ in 0..jobs {
        let bytes = noise.bytes(4.0 * MIB, 1024.0 * MIB);
        regression.learn(bytes, truth.at(bytes) * (1.0 + 0.05 * noise.normal()));
    }
    let line = regression.line(Line { a: 1e-8, b: 0.02 });
    let mean = |sizes: &[u64]| {
        let errors = sizes.iter().map(|size| Bytes::from_mib(*size));
        errors.map(|bytes| relative_error(line.at(bytes), truth.at(bytes)).unwrap()).sum::<f64>() / sizes.len() as f64
    };
    [mean(&[4, 8, 16]), mean(&[256, 512, 1024])]
}

#[test]
fn relative_weights_predict_all_sizes_better_under_multiplicative_noise() {
    let mean = |weighting| {
        let runs = 200;
        let sums = (0..runs)
            .map(|seed| error_against_truth(weighting, seed, 20))
            .fold([0.0; 2], |sum, error| [sum[0] + error[0], sum[1] + error[1]]);
        sums.map(|sum| sum / runs as f64)
    };
    let [small_relative, large_relative] = mean(Weighting::Relative);
    let [small_absolute, large_absolute] = mean(Weighting::Absolute);
    let seen = format!(
        "small {small_relative:.4} against {small_absolute:.4}, large {large_relative:.4} against {large_absolute:.4}"
    );
    assert!(small_relative < small_absolute / 2.0, "{seen}");
    assert!(large_relative < large_absolute * 1.1, "{seen}");
}

/// ECO-KVS section VII-C: after 20 trainings the error of time is 3.9 %, of energy 4.2 %.
#[test]
fn twenty_jobs_with_five_percent_noise_bring_the_error_below_five_percent() {
    let truth = Line { a: 2e-8, b: 0.1 };
    let (mut after, mut against_truth) = (0.0, 0.0);
    let runs = 200;
    for seed in 0..runs {
        let mut noise = Noise(seed);
        let mut regression = Regression::new(weights());
        // The prior is wrong by a factor from a third to three.
        let prior = truth.scaled(9f64.powf(noise.uniform() - 0.5));
        let mut errors = PrequentialError::new(20);
        for job in 0..60 {
            let bytes = noise.bytes(8.0 * MIB, 512.0 * MIB);
            let seconds = truth.at(bytes) * (1.0 + 0.05 * noise.normal());
            let predicted = regression.line(prior).at(bytes);
            if job >= 20 {
                errors.record(predicted, seconds);
                against_truth += relative_error(predicted, truth.at(bytes)).unwrap() / 40.0;
            }
            regression.learn(bytes, seconds);
        }
        after += errors.mean().unwrap();
    }
    let (after, against_truth) = (after / runs as f64, against_truth / runs as f64);
    // Noise of 5 % alone has a mean absolute error of 4 %: nobody can predict better than that.
    assert!(after < 0.05, "prequential error {after:.4}");
    assert!(against_truth < 0.02, "error against the truth {against_truth:.4}");
}
