//! Drives meter, power manager and history of one server.
//!
//! Two steps, as the [`Sampler`]'s. [`Driver::look`] reads the meter, [`Driver::close`], about once a
//! second, gives joules out, keeps the history, and has the frequencies that the settings ask for.
//!
//! Invariants: joules by duty only grow. What all of it costs is measured, and closes move apart
//! where they would cost more than [`MAX_COST_SHARE`] of a core. Failure: none after the start.
//!
//! Threads: one; what others see is a copy ([`EnergyView`]).

use std::path::Path;
use std::sync::Arc;

use ecotone_policy::power::PowerSettings;
use ecotone_types::units::{Hertz, Joules, Seconds, Time, Watts};
use ecotone_types::{CoreClass, Duty};

use crate::EnergyError;
use crate::books::{Books, joules_of};
use crate::cores::CoreBinder;
use crate::governors::Frequencies;
use crate::history::{History, Piece};
use crate::manager::{Governing, PowerManager, PowerView};
use crate::meter::{CpuUse, EnergyMeter};
use crate::meters::{Attribution, MeterReport, Sampler, Work};
use crate::model::PowerModel;
use crate::reading::{EnergySource, IDLE, Reading, UNATTRIBUTED};
use crate::thread_clock::this_thread_cpu_ns;

/// The most of a core that meter and governor together may take.
pub const MAX_COST_SHARE: f64 = 0.005;

/// Between two closes.
const CLOSE_INTERVAL: Seconds = Seconds(1.0);
/// The most between two closes, whatever they cost.
const MAX_CLOSE_INTERVAL: Seconds = Seconds(30.0);

/// What a server's joules are counted with, and what its frequencies are controlled by.
pub struct DriverOptions {
    /// The meter by processor time.
    pub meter: Arc<EnergyMeter>,
    /// What binds threads to cores.
    pub binder: Arc<dyn CoreBinder>,
    /// What controls frequencies. On emulated cores joules are the model's: a meter sees the host.
    pub governing: Governing,
}

/// What others see.
#[derive(Clone, Debug)]
pub struct EnergyView {
    /// The meter in hardware; `None` without one.
    pub meter: Option<MeterReport>,
    /// Joules from the start on, once they are the meter's.
    measured: Option<Attribution>,
    /// Joules of other processes, as far as a meter sees them.
    pub others: Joules,
    /// Power of the machine between the last two closes, where a meter measures it, and what of it
    /// is this server's.
    pub watts: Option<(Watts, Watts)>,
    /// What is done about frequencies.
    pub power: PowerView,
    /// The watts that joules are computed with: configured, or fitted to the meter.
    pub model: (Watts, Watts),
    /// Processor time of meter and governor so far.
    pub cost: Seconds,
    /// Of that, the share of a core since the start.
    pub cost_share: f64,
}

impl EnergyView {
    /// Where joules come from.
    pub fn source(&self) -> EnergySource {
        match (&self.meter, &self.measured) {
            (Some(meter), Some(_)) => meter.source,
            _ => EnergySource::Model,
        }
    }

    /// The same, of a server whose frequencies are left alone from now on, and why.
    pub(crate) fn without_power(&self, why: &str) -> Self {
        Self { power: PowerView { trouble: Some(why.to_owned()), ..PowerView::idle() }, ..self.clone() }
    }

    /// A reading of the meter by processor time, with the joules that were measured instead of its
    /// own, if there are any.
    pub fn over(&self, mut reading: Reading) -> Reading {
        if let Some(frequency) = self.power.frequency(CoreClass::Fast) {
            reading.frequency_hz = frequency.0;
        }
        let Some(measured) = &self.measured else { return reading };
        for duty in Duty::ALL {
            reading.energy_joules_by_duty.insert(duty.name().to_owned(), measured.duty(duty).0);
        }
        reading.energy_joules_by_duty.insert(UNATTRIBUTED.to_owned(), measured.unattributed);
        reading.energy_joules_by_duty.insert(IDLE.to_owned(), measured.idle);
        reading.total_joules = reading.energy_joules_by_duty.values().sum();
        reading.source = self.source();
        reading
    }
}

/// The power model of a machine: the configured one, with frequencies of the machine's own.
pub fn machine_model(root: &Path, configured: &PowerModel) -> PowerModel {
    let highest = Frequencies::of(root).highest();
    let scaled = highest.and_then(|highest| configured.p_states().scaled_to(highest.0).ok());
    scaled.map_or_else(|| configured.clone(), |table| configured.with_p_states(table))
}

/// See the module.
pub struct Driver {
    meter: Arc<EnergyMeter>,
    sampler: Option<Sampler>,
    manager: PowerManager,
    books: Books,
    history: History,
    last_close: Option<(Time, Vec<CpuUse>, Attribution)>,
    started: Option<Time>,
    now: Time,
    watts_now: Option<(Watts, Watts)>,
    cost: Seconds,
    cost_of_close: Seconds,
}

impl Driver {
    /// Chooses the meter of the machine.
    ///
    /// # Errors
    /// [`EnergyError`] that says what is wrong with the options.
    pub fn start(options: DriverOptions) -> Result<Self, EnergyError> {
        let DriverOptions { meter, binder, governing } = options;
        let sampler = match &governing {
            Governing::Machine { root, .. } => Some(Sampler::start(root, &meter.model())),
            Governing::Emulated(_) => None,
        };
        Ok(Self {
            // Without a meter what the process used is priced, and not what the machine did.
            sampler: sampler.filter(|sampler| sampler.label().is_some()),
            manager: PowerManager::new(governing, meter.clone(), binder)?,
            meter,
            books: Books::default(),
            history: History::default(),
            last_close: None,
            started: None,
            now: Time::default(),
            watts_now: None,
            cost: Seconds::ZERO,
            cost_of_close: Seconds::ZERO,
        })
    }

    /// How long to wait between two looks; `None` without a meter.
    pub fn look_interval(&self) -> Option<Seconds> {
        self.sampler.as_ref().and_then(Sampler::interval)
    }

    /// How long to wait between two closes.
    pub fn close_interval(&self) -> Seconds {
        // What looks may cost is not there for closes.
        let share = MAX_COST_SHARE - crate::meters::MAX_COST_SHARE;
        Seconds((self.cost_of_close.0 / share).clamp(CLOSE_INTERVAL.0, MAX_CLOSE_INTERVAL.0))
    }

    /// Reads the meter.
    pub fn look(&mut self, now: Time) {
        let before = this_thread_cpu_ns().unwrap_or(0);
        if let Some(sampler) = &mut self.sampler {
            sampler.look(now);
        }
        self.cost += since(before);
    }

    /// A copy here was promoted: frequencies follow at once.
    pub fn promoted(&mut self, now: Time, settings: PowerSettings) {
        self.manager.promoted(now);
        self.manager.step(now, settings, self.watts());
    }

    /// Closes a span: `cpu` is what the process used since the meter by processor time started.
    pub fn close(&mut self, now: Time, unix_s: u64, settings: PowerSettings, cpu: Vec<CpuUse>) {
        let before = this_thread_cpu_ns().unwrap_or(0);
        self.started.get_or_insert(now);
        self.now = now;
        self.manager.look();
        let reading = self.meter.reading();
        let modelled = joules_of(&reading);
        let (elapsed, used) = match &self.last_close {
            Some((then, earlier, _)) => (now.since(*then), less(&cpu, earlier)),
            None => (Seconds::ZERO, Vec::new()),
        };
        let work: Vec<Work> = used.iter().map(|piece| self.work(piece)).collect();
        let given = match &mut self.sampler {
            Some(sampler) => {
                sampler.close(now, &work);
                let report = sampler.report();
                if sampler.fit().is_sound() && !sampler.fit().ignores_load() {
                    let fitted = sampler.fit().model();
                    // A figure that no model may have stays what it was.
                    let _ = self.meter.set_watts(fitted.idle, fitted.active);
                }
                self.books.close(&report, &reading)
            }
            None => match &self.last_close {
                Some((_, _, earlier)) => modelled.since(earlier),
                None => Attribution::default(),
            },
        };
        if elapsed > Seconds::ZERO {
            let (all, others) = (given.total(), Joules(given.others));
            self.watts_now = Some((all / elapsed, (all - others) / elapsed));
            let measured = if self.books.is_measured() { given.total().0 } else { 0.0 };
            let piece = Piece {
                seconds: elapsed.0,
                source: self.source().name(),
                joules: given,
                measured,
                all_high: self.all_high(&given, &work),
                work: work.iter().map(|of| (of.duty, of.cpu.0, of.frequency.0)).collect(),
            };
            self.history.add(now, unix_s, &piece);
        }
        self.manager.learn(&used, elapsed);
        self.manager.step(now, settings, self.watts());
        self.last_close = Some((now, cpu, modelled));
        let spent = since(before);
        self.cost_of_close = spent.max(Seconds(self.cost_of_close.0 * 0.9));
        self.cost += spent;
    }

    fn source(&self) -> EnergySource {
        let label = self.sampler.as_ref().and_then(Sampler::label).filter(|_| self.books.is_measured());
        label.map_or(EnergySource::Model, |label| label.source)
    }

    fn watts(&self) -> (Watts, Watts) {
        let model = self.meter.model();
        (model.idle_watts(), Watts(model.keys().active_watts))
    }

    fn work(&self, used: &CpuUse) -> Work {
        let highest = self.meter.model().p_states().frequency(0);
        let frequency = self.manager.view().frequency(used.class).unwrap_or(highest);
        Work { duty: used.duty, cpu: used.cpu, frequency }
    }

    /// What the work of a span would have taken with all cores at their highest frequency.
    fn all_high(&self, given: &Attribution, work: &[Work]) -> f64 {
        let model = self.meter.model();
        let (table, highest) = (model.p_states(), model.p_states().frequency(0));
        let is_emulated = model.keys().core_speed.is_some();
        let (mut now, mut then) = (0.0, 0.0);
        for of in work.iter().filter(|of| of.frequency.0 > 0.0) {
            let speed = of.frequency.0 / highest.0;
            // An emulated core takes the same of the host for the same work, at any speed.
            let cpu_at_highest = if is_emulated { of.cpu.0 } else { of.cpu.0 * speed };
            now += cpu_at_highest / speed * table.relative_power_at(of.frequency);
            then += cpu_at_highest;
        }
        let active = given.total().0 - given.idle - given.others;
        given.idle + if now > 0.0 { active * then / now } else { active }
    }

    /// The hour.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The power manager.
    pub fn manager(&self) -> &PowerManager {
        &self.manager
    }

    /// What others see.
    pub fn view(&self) -> EnergyView {
        let meter = self.sampler.as_ref().map(Sampler::report);
        let elapsed = self.started.map_or(0.0, |started| self.now.since(started).0);
        EnergyView {
            measured: self.books.is_measured().then_some(*self.books.sum()),
            others: Joules(self.books.sum().others),
            watts: self.watts_now.filter(|_| self.books.is_measured()),
            meter,
            power: self.manager.view().clone(),
            model: self.watts(),
            cost: self.cost,
            cost_share: if elapsed > 0.0 { self.cost.0 / elapsed } else { 0.0 },
        }
    }

    /// The frequency that a promoted copy waits for, and who says what was reached.
    pub fn awaited(&self) -> Option<(Arc<dyn crate::governors::FrequencyGovernor>, usize, Hertz)> {
        let (domain, wanted) = self.manager.awaited()?;
        Some((self.manager.governor()?.clone(), domain, wanted))
    }
}

fn since(cpu_ns: u64) -> Seconds {
    Seconds(this_thread_cpu_ns().unwrap_or(0).saturating_sub(cpu_ns) as f64 / 1e9)
}

fn less(now: &[CpuUse], earlier: &[CpuUse]) -> Vec<CpuUse> {
    let before = |of: &CpuUse| {
        let same = |other: &&CpuUse| other.duty == of.duty && other.class == of.class;
        earlier.iter().find(same).map_or(Seconds::ZERO, |other| other.cpu)
    };
    let grown = |of: &CpuUse| CpuUse { cpu: (of.cpu - before(of)).max(Seconds::ZERO), ..*of };
    now.iter().map(grown).filter(|of| of.cpu > Seconds::ZERO).collect()
}
