//! Runs a meter: looks at it in time, judges and prices each look, fits the model, and keeps the
//! books of joules by duty.
//!
//! Two steps. [`Sampler::look`] is due every [`MeterLabel::interval`] and only reads the meter.
//! [`Sampler::close`], about once a second, takes the machine's load and this process's work since
//! the last close and gives the joules out.
//!
//! Joules of the first spans are held until loads have differed enough to tell idle power from
//! active, at most [`MAX_HELD_SPANS`]: the configured model would split them wrongly.
//!
//! Invariant: joules by duty, of others and idle add up to the total, and only grow. Its own cost is
//! measured and bounded: looks move farther apart where they would cost more than
//! [`MAX_COST_SHARE`] of a core. Failure: none after the start; a machine without a meter has the
//! model's figures, labelled so.

use std::path::Path;
use std::time::Instant;

use ecotone_types::units::{Joules, Seconds, Time, Watts};

use super::attribution::{Attribution, Work, attribute};
use super::fit::{Fit, FittedModel};
use super::host_load::HostLoad;
use super::judge::{Doubt, Faults, Judge};
use super::{Choice, Look, MeterLabel, PowerMeter, choose};
use crate::EnergyError;
use crate::model::PowerModel;
use crate::pstate::PStateTable;
use crate::reading::EnergySource;
use crate::thread_clock::this_thread_cpu_ns;

/// The most of a core that looking at the meter may take.
pub const MAX_COST_SHARE: f64 = 0.004;

/// Looks are never farther apart than this, whatever they cost.
const MAX_INTERVAL: Seconds = Seconds(30.0);

/// The most spans that are held at the start.
pub const MAX_HELD_SPANS: usize = 60;

/// What a sampler knows of its meter and of the joules so far.
#[derive(Clone, Debug, PartialEq)]
pub struct MeterReport {
    /// Where the joules come from.
    pub source: EnergySource,
    /// What is measured; empty without a meter.
    pub covers: String,
    /// What is not.
    pub leaves_out: &'static str,
    /// Joules of memory, which are in none of the other sums; `None` where nothing counts them.
    pub memory: Option<Joules>,
    /// The share of the total that was measured; the rest was filled in by the fitted model.
    pub measured_share: f64,
    /// The mean relative error of the fitted model against the meter; `None` while it is not known.
    pub error: Option<f64>,
    /// The fitted model.
    pub model: FittedModel,
    /// What is wrong with the meter now.
    pub doubt: Option<Doubt>,
    /// What was wrong so far.
    pub faults: Faults,
    /// Power between the last two closes.
    pub watts: Option<Watts>,
    /// Joules since the start, those that are held not included.
    pub joules: Attribution,
    /// Joules of the first spans that are not given out yet.
    pub held: Joules,
    /// Looks so far.
    pub looks: u64,
    /// What looking cost: this thread's processor time, and the time that programs ran.
    pub cost: Seconds,
    /// How far apart looks are now.
    pub interval: Seconds,
}

struct Metered {
    meter: Box<dyn PowerMeter>,
    judge: Judge,
}

/// What was gathered since the last close.
#[derive(Debug, Default)]
struct OpenSpan {
    looks: u64,
    joules: Joules,
    measured: Joules,
    /// A look whose joules were not measured in their own time.
    filled: bool,
    work: Vec<Work>,
}

/// A span whose joules are to be given out.
struct Closed {
    joules: Joules,
    measured: Joules,
    elapsed: Seconds,
    busy: Seconds,
    work: Vec<Work>,
}

/// The meter of a server.
pub struct Sampler {
    metered: Option<Metered>,
    table: PStateTable,
    host: HostLoad,
    fit: Fit,
    last_look: Option<Time>,
    last_close: Option<Time>,
    span: OpenSpan,
    /// Weighted busy cores of the last span that was closed.
    load: f64,
    joules: Attribution,
    /// `None` once spans are given out as they come.
    held: Option<Vec<Closed>>,
    measured: Joules,
    watts: Option<Watts>,
    looks: u64,
    cost: Seconds,
    cost_of_look: Seconds,
}

impl Sampler {
    /// Chooses the meter of the machine below `root` (see [`choose`]) and logs what it is. `prior`
    /// is the configured model; its highest P-state is that of the machine's cores.
    pub fn start(root: &Path, prior: &PowerModel) -> Self {
        let Choice { meter, unusable } = choose(root);
        for (source, error) in &unusable {
            let source = source.name();
            if meter.is_some() {
                tracing::info!(source, %error, "a power meter is there and cannot be used; another one is");
            } else {
                tracing::warn!(source, %error, "a power meter is there and cannot be used");
            }
        }
        if let Some(meter) = &meter {
            let label = meter.label();
            let (source, covers, leaves_out) = (label.source.name(), &label.covers, label.leaves_out);
            tracing::info!(source, covers, leaves_out, "joules are measured");
        } else {
            tracing::info!("no power meter; joules are computed by the power model");
        }
        Self::with(root, prior, meter)
    }

    /// The same with a meter that the caller gives, or none.
    pub fn with(root: &Path, prior: &PowerModel, meter: Option<Box<dyn PowerMeter>>) -> Self {
        let table = prior.p_states().clone();
        let mut host = HostLoad::new(root);
        let held = meter.is_some().then(Vec::new);
        let processors = host.look(&table).map_or(1, |span| span.processors);
        Self {
            metered: meter.map(|meter| Metered { judge: Judge::new(meter.label()), meter }),
            host,
            fit: Fit::new(prior, processors as f64),
            table,
            last_look: None,
            last_close: None,
            span: OpenSpan::default(),
            load: 0.0,
            joules: Attribution::default(),
            held,
            measured: Joules::ZERO,
            watts: None,
            looks: 0,
            cost: Seconds::ZERO,
            cost_of_look: Seconds::ZERO,
        }
    }

    /// How long to wait until the next look: the meter's interval, or longer where looks cost much.
    /// `None` without a meter.
    pub fn interval(&self) -> Option<Seconds> {
        let wanted = self.metered.as_ref()?.meter.label().interval;
        Some(wanted.max(Seconds(self.cost_of_look.0 / MAX_COST_SHARE)).min(MAX_INTERVAL.max(wanted)))
    }

    /// Reads the meter. Nothing without one.
    pub fn look(&mut self, now: Time) {
        let Some(metered) = &mut self.metered else { return };
        let cost = Stopwatch::start();
        let elapsed = self.last_look.map_or(Seconds::ZERO, |last| now.since(last));
        self.last_look = Some(now);
        let look = metered.meter.look(now);
        // The load between closes is not known yet; that of the last span stands for it.
        let predicted = self.fit.predict(Seconds(self.load * elapsed.0), elapsed);
        if elapsed > Seconds::ZERO {
            let before = metered.judge.faults();
            let admitted = metered.judge.admit(&look, elapsed, predicted);
            warn_once(metered, before, &look);
            self.span.looks += 1;
            self.span.joules += admitted.joules;
            if admitted.measured {
                self.span.measured += admitted.joules;
            }
            self.span.filled |= !admitted.measured;
        }
        self.looks += 1;
        let spent = cost.stop(metered.meter.label().runs_program);
        // The dearest of the looks before wears off slowly, so that a cheap one does not bring them
        // together at once.
        self.cost_of_look = spent.max(Seconds(self.cost_of_look.0 * 0.9));
        self.cost += spent;
    }

    /// Closes a span: `work` is what this process did since the last call. Gives the span's joules
    /// out and learns from them. Looks first where a look is due; where looks are so dear that none
    /// was due since the last close, the span stays open.
    pub fn close(&mut self, now: Time, work: &[Work]) {
        let since_look = self.last_look.map(|last| now.since(last));
        if self.interval().is_some_and(|interval| since_look.is_none_or(|since| since.0 >= interval.0 / 2.0)) {
            self.look(now);
        }
        let cost = Stopwatch::start();
        self.span.work.extend_from_slice(work);
        let elapsed = self.last_close.map_or(Seconds::ZERO, |last| now.since(last));
        if self.last_close.is_none() {
            let _ = self.host.look(&self.table);
            self.last_close = Some(now);
            self.span = OpenSpan::default();
        } else if elapsed > Seconds::ZERO && (self.metered.is_none() || self.span.looks > 0) {
            self.last_close = Some(now);
            self.settle(elapsed);
        }
        self.cost += cost.stop(false);
    }

    fn settle(&mut self, elapsed: Seconds) {
        let span = std::mem::take(&mut self.span);
        let host = self.host.look(&self.table);
        let known = host.is_ok();
        // Without the machine's counters this process is taken for all that ran.
        let own: f64 = span.work.iter().map(|work| work.cpu.0 * self.table.relative_power_at(work.frequency)).sum();
        let busy = host.map_or(Seconds(own), |host| host.weighted.max(Seconds(own)));
        let joules = if self.metered.is_some() { span.joules } else { self.fit.predict(busy, elapsed) };
        if self.metered.is_some() && known && !span.filled {
            self.fit.learn(busy, elapsed, joules);
        }
        self.load = busy.0 / elapsed.0;
        self.watts = Some(joules / elapsed);
        let closed = Closed { joules, measured: span.measured, elapsed, busy, work: span.work };
        match &mut self.held {
            Some(held) if !self.fit.is_sound() && held.len() < MAX_HELD_SPANS => held.push(closed),
            held => {
                let held = held.take().unwrap_or_default();
                held.iter().chain([&closed]).for_each(|closed| self.give_out(closed));
            }
        }
    }

    fn give_out(&mut self, closed: &Closed) {
        let idle = self.fit.model().idle * closed.elapsed;
        self.joules.add(&attribute(closed.joules, idle, closed.busy, &closed.work, &self.table));
        self.measured += closed.measured;
    }

    /// The model that was fitted.
    pub fn fit(&self) -> &Fit {
        &self.fit
    }

    /// Everything that is known.
    pub fn report(&self) -> MeterReport {
        let label = self.metered.as_ref().map(|metered| metered.meter.label());
        let judge = self.metered.as_ref().map(|metered| &metered.judge);
        let total = self.joules.total();
        let ignores = self.fit.ignores_load().then_some(Doubt::IgnoresLoad);
        MeterReport {
            source: label.map_or(EnergySource::Model, |label| label.source),
            covers: label.map(|label| label.covers.clone()).unwrap_or_default(),
            leaves_out: label.map_or("whatever the model does not know", |label| label.leaves_out),
            memory: self.metered.as_ref().and_then(|metered| metered.meter.memory()),
            measured_share: if total.0 > 0.0 { (self.measured.0 / total.0).min(1.0) } else { 0.0 },
            error: self.fit.error(),
            model: self.fit.model(),
            doubt: judge.and_then(Judge::doubt).or(ignores),
            faults: judge.map(Judge::faults).unwrap_or_default(),
            watts: self.watts,
            joules: self.joules,
            held: Joules(self.held.iter().flatten().map(|closed| closed.joules.0).sum()),
            looks: self.looks,
            cost: self.cost,
            interval: self.interval().unwrap_or(Seconds::ZERO),
        }
    }

    /// What the meter is; `None` without one.
    pub fn label(&self) -> Option<&MeterLabel> {
        self.metered.as_ref().map(|metered| metered.meter.label())
    }
}

/// Logs the first fault of each kind.
fn warn_once(metered: &Metered, before: Faults, look: &Result<Look, EnergyError>) {
    let (Some(doubt), after) = (metered.judge.doubt(), metered.judge.faults()) else { return };
    let is_first = [
        (before.lost, after.lost),
        (before.frozen, after.frozen),
        (before.jumped, after.jumped),
        (before.reset, after.reset),
    ]
    .contains(&(0, 1));
    if is_first {
        let (source, doubt) = (metered.meter.label().source.name(), doubt.name());
        let error = look.as_ref().err().map(ToString::to_string).unwrap_or_default();
        tracing::warn!(source, doubt, error, "a power meter is not believed; the fitted model fills in (logged once)");
    }
}

/// What a step costs: the thread's processor time, or the whole time where a program runs.
struct Stopwatch {
    cpu_ns: u64,
    wall: Instant,
}

impl Stopwatch {
    fn start() -> Self {
        Self { cpu_ns: this_thread_cpu_ns().unwrap_or(0), wall: Instant::now() }
    }

    fn stop(&self, whole: bool) -> Seconds {
        if whole {
            return Seconds(self.wall.elapsed().as_secs_f64());
        }
        Seconds(this_thread_cpu_ns().unwrap_or(0).saturating_sub(self.cpu_ns) as f64 / 1e9)
    }
}
