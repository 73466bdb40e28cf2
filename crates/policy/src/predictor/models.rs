//! The models of time and energy of some jobs, one pair of them for each class of jobs.

use crate::regression::{Line, Weights};
use ecotone_types::units::{Bytes, Joules, Seconds, Time};

use super::job::JobClass;
use super::learned::Learned;

/// A model of time and one of energy.
#[derive(Clone, Debug)]
pub(super) struct Models {
    pub(super) time: Learned,
    pub(super) energy: Learned,
}

/// Which of the two models.
pub(super) type Quantity = fn(&Models) -> &Learned;

/// Models for both classes.
#[derive(Clone, Debug)]
pub(super) struct ClassModels {
    level_zero: Models,
    deeper: Models,
}

impl Models {
    fn new(weights: Weights, error_window: u32, now: Time) -> Self {
        Self { time: Learned::new(weights, error_window, now), energy: Learned::new(weights, error_window, now) }
    }

    /// Learns from a job; `predicted` is what was said of it before. Without joules nothing was
    /// measured.
    pub(super) fn learn(
        &mut self,
        now: Time,
        bytes: Bytes,
        actual: (Seconds, Joules),
        predicted: Option<(Seconds, Joules)>,
    ) {
        self.time.learn(now, bytes, actual.0.0, predicted.map(|predicted| predicted.0.0));
        if actual.1 > Joules::ZERO {
            self.energy.learn(now, bytes, actual.1.0, predicted.map(|predicted| predicted.1.0));
        }
    }
}

impl ClassModels {
    pub(super) fn new(weights: Weights, error_window: u32, now: Time) -> Self {
        let models = Models::new(weights, error_window, now);
        Self { level_zero: models.clone(), deeper: models }
    }

    pub(super) fn of(&self, class: JobClass) -> &Models {
        match class {
            JobClass::LevelZero => &self.level_zero,
            JobClass::Deeper => &self.deeper,
        }
    }

    pub(super) fn of_mut(&mut self, class: JobClass) -> &mut Models {
        match class {
            JobClass::LevelZero => &mut self.level_zero,
            JobClass::Deeper => &mut self.deeper,
        }
    }

    /// Jobs learned from, of both classes.
    pub(super) fn samples(&self) -> u64 {
        self.level_zero.time.samples + self.deeper.time.samples
    }

    /// The line of a class. What is known of the other class is nearer to it than any prior.
    pub(super) fn line(&self, quantity: Quantity, class: JobClass, prior: Line) -> Line {
        let other = quantity(self.of(class.other()));
        let prior = if other.samples > 0 { other.line(prior) } else { prior };
        quantity(self.of(class)).line(prior)
    }
}
