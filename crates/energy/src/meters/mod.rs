//! Meters of power: what the hardware says of the joules that were used.
//!
//! A [`PowerMeter`] gives joules since the last look. [`choose`] takes the first that is there and
//! may be read, in this order, from the nearest to the processor to the farthest:
//!
//! 1. **perf events** ([`PerfEvents`]): the processor's packages, by counters that miss nothing
//!    between looks; cheaper to read than the next, which shows the same.
//! 2. **RAPL** ([`Powercap`]): the same through powercap files, which root may read without more.
//! 3. **hwmon** ([`Hwmon`]): INA3221 and other sensors of power, integrated at 10 Hz.
//! 4. **PMIC** ([`Pmic`]): a Raspberry Pi 5, through its own program, once a second.
//! 5. None: the power model stays the only source.
//!
//! Memory (DRAM) has counters of its own in the first two. Its joules are in no package, and are told
//! apart ([`PowerMeter::memory`]): they are in no look, so that nothing is counted twice.
//!
//! [`Sampler`] runs the chosen one: it judges each look (`judge`), fits a model to it (`fit`), and
//! gives the joules to duties (`attribution`). No meter is believed unseen: one that vanishes,
//! freezes or jumps has its gaps filled by the fitted model, and the share that was filled is shown.
//!
//! Threads: everything here belongs to one thread, the one that looks.

mod attribution;
mod counter;
mod fit;
mod host_load;
mod hwmon;
mod integral;
mod judge;
mod kernel_events;
mod perf;
mod pmic;
mod powercap;
mod sampler;

use std::path::Path;

use ecotone_types::units::{Joules, Seconds, Time, Watts};

pub use attribution::{Attribution, Work, attribute};
pub use fit::{Fit, FittedModel};
pub use hwmon::Hwmon;
pub use judge::{Doubt, Faults};
pub use kernel_events::KernelEvents;
pub use perf::{EventCounter, EventSource, PerfEvents, PowerEvent};
pub use pmic::Pmic;
pub use powercap::Powercap;
pub use sampler::{MAX_COST_SHARE, MAX_HELD_SPANS, MeterReport, Sampler};

use crate::EnergyError;
use crate::reading::EnergySource;

/// What a meter is, for whoever reads its figures.
#[derive(Clone, Debug, PartialEq)]
pub struct MeterLabel {
    /// The kind.
    pub source: EnergySource,
    /// What it measures, by the names that the kernel gives.
    pub covers: String,
    /// What belongs to the machine and is not in its figures.
    pub leaves_out: &'static str,
    /// How often it must be looked at.
    pub interval: Seconds,
    /// More than this is a fault of the meter.
    pub max_watts: Watts,
    /// Whether it counts energy itself, so that nothing between two looks is lost.
    pub counts: bool,
    /// Whether a look runs a program, whose processor time is not this thread's.
    pub runs_program: bool,
}

/// What a look at a meter gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Look {
    /// Nothing yet: this look is the beginning of the next.
    First,
    /// Joules since the last look that gave any.
    Grew {
        /// How many.
        joules: Joules,
        /// Whether the meter shows the very value it showed before.
        unchanged: bool,
    },
    /// The meter was set back by itself: what it counted since the last look cannot be known.
    Reset,
}

/// A source of joules in hardware.
pub trait PowerMeter: Send {
    /// What it is.
    fn label(&self) -> &MeterLabel;

    /// Joules since the last look.
    ///
    /// # Errors
    /// [`EnergyError`] if it cannot be read now. A later look may succeed again; one at a counter
    /// then gives the joules of the gap too.
    fn look(&mut self, now: Time) -> Result<Look, EnergyError>;

    /// Joules of memory from the first look to the last, which are in none of them; `None` where
    /// memory has no counter.
    fn memory(&self) -> Option<Joules> {
        None
    }
}

/// What was found on a machine.
pub struct Choice {
    /// The meter, if there is one.
    pub meter: Option<Box<dyn PowerMeter>>,
    /// Meters that are there and cannot be used, with the reason.
    pub unusable: Vec<(EnergySource, EnergyError)>,
}

/// Chooses a meter of the machine whose file system begins at `root` (`/`, or a test's folder), in
/// the order of this module's description.
pub fn choose(root: &Path) -> Choice {
    choose_with(root, &KernelEvents)
}

/// The same with perf events that `events` opens.
pub fn choose_with(root: &Path, events: &dyn EventSource) -> Choice {
    type Open = fn(&Path, &dyn EventSource) -> Result<Option<Box<dyn PowerMeter>>, EnergyError>;
    let order: [(EnergySource, Open); 4] = [
        (EnergySource::Perf, |root, events| Ok(PerfEvents::open(root, events)?.map(|meter| Box::new(meter) as _))),
        (EnergySource::Rapl, |root, _| Ok(Powercap::open(root)?.map(|meter| Box::new(meter) as _))),
        (EnergySource::Hwmon, |root, _| Ok(Hwmon::open(root)?.map(|meter| Box::new(meter) as _))),
        (EnergySource::Pmic, |root, _| Ok(Pmic::open(root)?.map(|meter| Box::new(meter) as _))),
    ];
    let mut unusable = Vec::new();
    for (source, open) in order {
        match open(root, events) {
            Ok(None) => {}
            Ok(meter) => return Choice { meter, unusable },
            Err(error) => unusable.push((source, error)),
        }
    }
    Choice { meter: None, unusable }
}
