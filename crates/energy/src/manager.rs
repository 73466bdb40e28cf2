//! The power manager of one server: has the frequencies and the places of threads that
//! [`ecotone_policy::power`] decides on, and says what became of it.
//!
//! Nothing of the machine is touched while the mode is `all-high` and there is no cap: only what a
//! process before this one left capped is restored at the start. The governor is opened when it is
//! needed first, and closed, with everything as it was before, when it is not needed any more.
//!
//! Invariants: caps that go down are set before those that go up, so that a cap in watts holds
//! between two writes as well; cores that are offline take no part; in `concerto` slow work is bound
//! once there are cores of both classes, and else runs anywhere.
//!
//! Whether a cap in watts is kept is judged by what was read back: by the limit that the kernel took,
//! and by the frequency that cores reached where that is above it.
//!
//! Failure: a machine without control, or without the right to it, is said once and left alone; it is
//! looked at again, more and more seldom. When the manager goes, however that comes, frequencies are
//! as before and threads run anywhere. A cap that cannot be set is in [`PowerView::trouble`], and
//! tried again.
//!
//! Threads: one, that of [`EnergyThread`](crate::EnergyThread).

use std::path::PathBuf;
use std::sync::Arc;

use ecotone_policy::power::{CapState, Domain, PowerMode, PowerPlan, PowerSettings, Role, ServerPower, Step, plan};
use ecotone_types::units::{Cores, Hertz, Seconds, Time, Watts};
use ecotone_types::{CoreClass, ServerId, Task};
use tracing::{info, warn};

use crate::EnergyError;
use crate::cores::{CoreBinder, CoreGroups};
use crate::governors::{
    Capped, Cpufreq, Frequencies, FrequencyDomain, FrequencyGovernor, NoGovernor, QuotaGovernor, cpufreq,
};
use crate::meter::{CpuUse, EnergyMeter};
use crate::placement::{Placement, SlowWork};

/// Steps of a range in which any frequency is possible.
const RANGE_STEPS: usize = 12;
/// Caps are written again so often, since a driver that changes its mode forgets them; and cores are
/// looked for that were offline.
const REWRITE_AFTER: Seconds = Seconds(10.0);
/// A frequency that is above its cap by less is at it: processors round, and report a mean.
const AT_CAP: f64 = 1.02;
/// Caps are whole kilohertz, and so a little beside their watts.
const ROUNDED: f64 = 1.001;
/// Where no governor is, one is looked for again after this time, and after twice as long each time.
const MIN_GOVERNOR_RETRY: Seconds = Seconds(10.0);
/// But at least so often.
const MAX_GOVERNOR_RETRY: Seconds = Seconds(640.0);
/// A cap that is kept and not kept by turns is logged so often at most.
const SAY_AGAIN_AFTER: Seconds = Seconds(600.0);
/// How long a copy that was promoted counts as one that will have clients.
const PROMOTED_FOR: Seconds = Seconds(10.0);
/// How fast demand is forgotten, by one second.
const DEMAND_RATE: f64 = 0.2;

/// What frequencies are controlled by.
#[derive(Clone, Debug)]
pub enum Governing {
    /// The kernel of the machine whose file system begins at `root`; limits from before the first
    /// cap are kept in the file `record`.
    Machine {
        /// `/`, or a test's folder.
        root: PathBuf,
        /// Of the server, and of no other one.
        record: PathBuf,
    },
    /// Quotas of emulated cores.
    Emulated(CoreGroups),
}

/// Cores that share a frequency, as they are now.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainView {
    /// The cores, by number.
    pub cores: Vec<u32>,
    /// Fast or slow.
    pub class: CoreClass,
    /// The cap that holds; `None`: none of ours.
    pub cap: Option<Hertz>,
    /// What they run at; `None` where it cannot be read, or while they are offline.
    pub reached: Option<Hertz>,
}

/// What the manager does.
#[derive(Clone, Debug, PartialEq)]
pub struct PowerView {
    /// The mode that is wanted.
    pub mode: PowerMode,
    /// This server's share of the cap.
    pub cap: Option<Watts>,
    /// Whether it is kept, by the frequencies that were read back; `None` without one.
    pub is_cap_kept: Option<bool>,
    /// What the server draws by the model when all its cores are busy, at the frequencies that were
    /// read back; `None` where nothing is governed.
    pub most: Option<Watts>,
    /// Work that waits for the sake of the cap.
    pub deferred: Cores,
    /// `cpufreq`, `quota` or `none`.
    pub governor: &'static str,
    /// Every domain that is known.
    pub domains: Vec<DomainView>,
    /// Whether slow work is bound to slow cores.
    pub is_divided: bool,
    /// What cannot be done, for people.
    pub trouble: Option<String>,
}

impl PowerView {
    pub(crate) fn idle() -> Self {
        Self {
            mode: PowerMode::AllHigh,
            cap: None,
            is_cap_kept: None,
            most: None,
            deferred: Cores(0.0),
            governor: "none",
            domains: Vec::new(),
            is_divided: false,
            trouble: None,
        }
    }

    /// The mean frequency of the cores of a class; of all, where there are none of it.
    pub fn frequency(&self, class: CoreClass) -> Option<Hertz> {
        let mean = |of_class: &dyn Fn(&DomainView) -> bool| {
            let (mut cores, mut sum) = (0.0, 0.0);
            for domain in self.domains.iter().filter(|domain| of_class(domain)) {
                let Some(reached) = domain.reached else { continue };
                cores += domain.cores.len() as f64;
                sum += reached.0 * domain.cores.len() as f64;
            }
            (cores > 0.0).then(|| Hertz(sum / cores))
        };
        mean(&|domain| domain.class == class).or_else(|| mean(&|_| true))
    }
}

/// See the module.
pub struct PowerManager {
    governing: Governing,
    meter: Arc<EnergyMeter>,
    binder: Arc<dyn CoreBinder>,
    frequencies: Frequencies,
    governor: Option<Arc<dyn FrequencyGovernor>>,
    /// The caps that were asked for, by domain of the governor; `None`: it was refused.
    caps: Vec<Option<Hertz>>,
    /// What the governor took for them.
    held: Vec<Option<Hertz>>,
    /// What these domains ran at when they were looked at last.
    reached: Vec<Option<Hertz>>,
    /// Frequencies above the cap that held when they were looked at last.
    above: Vec<Option<Hertz>>,
    written: Option<Time>,
    placement: Placement,
    /// Cores of the highest frequency that each role keeps busy.
    demand: [f64; Role::ALL.len()],
    promoted: Option<Time>,
    /// How often no governor was found, and when one is looked for again.
    missed: Option<(u32, Time)>,
    name: ServerId,
    view: PowerView,
    said_undivided: bool,
    said_not_kept: Option<Time>,
}

impl PowerManager {
    /// Restores what a process before this one left capped, and touches nothing else.
    pub fn new(
        governing: Governing,
        meter: Arc<EnergyMeter>,
        binder: Arc<dyn CoreBinder>,
    ) -> Result<Self, EnergyError> {
        let frequencies = match &governing {
            Governing::Machine { root, record } => {
                match cpufreq::restore(root, record) {
                    Ok(0) => {}
                    Ok(count) => {
                        info!(count, "limits of frequencies were restored that a server before this one had lowered")
                    }
                    Err(error) => {
                        warn!(%error, "limits of frequencies that a server before this one had lowered cannot be restored")
                    }
                }
                Frequencies::of(root)
            }
            Governing::Emulated(_) => Frequencies::default(),
        };
        let name = ServerId::new("self").map_err(|_| EnergyError::model("a name"))?;
        Ok(Self {
            governing,
            meter,
            binder,
            frequencies,
            governor: None,
            caps: Vec::new(),
            held: Vec::new(),
            reached: Vec::new(),
            above: Vec::new(),
            written: None,
            placement: Placement::default(),
            demand: [0.0; Role::ALL.len()],
            promoted: None,
            missed: None,
            name,
            view: PowerView::idle(),
            said_undivided: false,
            said_not_kept: None,
        })
    }

    /// What holds since the last step.
    pub fn view(&self) -> &PowerView {
        &self.view
    }

    /// What caps frequencies now, if anything does.
    pub fn governor(&self) -> Option<&Arc<dyn FrequencyGovernor>> {
        self.governor.as_ref()
    }

    /// The fast domain that a promoted copy waits for, and the frequency it should reach.
    pub fn awaited(&self) -> Option<(usize, Hertz)> {
        let fast = |domain: &&(usize, &DomainView)| domain.1.class == CoreClass::Fast;
        let domains: Vec<(usize, &DomainView)> = self.view.domains.iter().enumerate().collect();
        let best = domains.iter().filter(fast).max_by(|a, b| {
            let cap = |domain: &DomainView| domain.cap.map_or(0.0, |cap| cap.0);
            cap(a.1).total_cmp(&cap(b.1))
        })?;
        Some((best.0, best.1.cap?))
    }

    /// A copy here was promoted: there will be clients.
    pub fn promoted(&mut self, now: Time) {
        self.promoted = Some(now);
    }

    /// Looks at what cores run at. Once for each step: a machine has many cores.
    pub fn look(&mut self) {
        let Some(governor) = self.governor.clone().filter(|governor| !governor.domains().is_empty()) else {
            return self.look_ungoverned();
        };
        self.reached = (0..governor.domains().len()).map(|at| governor.reached(at)).collect();
        let above = |(reached, held): (&Option<Hertz>, &Option<Hertz>)| {
            let held = (*held)?;
            reached.filter(|reached| reached.0 > held.0 * AT_CAP)
        };
        self.above = self.reached.iter().zip(&self.held).map(above).collect();
        for (domain, reached) in self.view.domains.iter_mut().zip(&self.reached) {
            domain.reached = *reached;
        }
        self.price();
    }

    /// Learns what was used within `elapsed`.
    pub fn learn(&mut self, used: &[CpuUse], elapsed: Seconds) {
        if elapsed.0 <= 0.0 {
            return;
        }
        let mut now = [0.0; Role::ALL.len()];
        let highest = self.meter.model().p_states().frequency(0);
        for piece in used {
            let Some(duty) = piece.duty else { continue };
            let is_deep = piece.class == CoreClass::Slow;
            let speed = self.view.frequency(piece.class).map_or(1.0, |reached| (reached.0 / highest.0).min(1.0));
            let at = Role::ALL.iter().position(|role| *role == Role::of(Task { duty, is_deep })).unwrap_or(0);
            now[at] += self.meter.model().busy(piece.cpu, 0).0 / elapsed.0 * self.weight(speed);
        }
        for (demand, now) in self.demand.iter_mut().zip(now) {
            *demand += DEMAND_RATE.min(1.0) * (now - *demand);
        }
    }

    /// A second of a slow core does less work, but for an emulated one, which uses less of the host.
    fn weight(&self, speed: f64) -> f64 {
        if matches!(self.governing, Governing::Emulated(_)) { 1.0 } else { speed }
    }

    /// Decides and carries out. `idle` and `active` are the watts of the model in force.
    pub fn step(&mut self, now: Time, settings: PowerSettings, (idle, active): (Watts, Watts)) {
        self.view.trouble = None;
        self.view.mode = settings.mode;
        self.view.cap = settings.cap;
        if settings.mode == PowerMode::AllHigh && settings.cap.is_none() {
            self.release();
            return;
        }
        let governor = self.opened(now);
        if self.is_old(now) {
            self.find_more(&*governor);
        }
        let online = self.online(&*governor);
        if online.is_empty() {
            self.view.is_cap_kept = settings.cap.map(|_| false);
            self.view.most = None;
            self.place(Placement::default());
            return;
        }
        let server = self.server(&governor.domains(), &online, idle, active, now);
        let plan = plan(settings, std::slice::from_ref(&server));
        let Some(of) = plan.servers.first() else { return };
        let positions: Vec<usize> = online.iter().map(|domain| domain.0).collect();
        let wanted: Vec<(usize, Hertz)> = positions.iter().copied().zip(of.caps(&server)).collect();
        self.set_caps(&*governor, &wanted, now);
        self.judge(&plan, settings.cap, &server, &positions, (active, now));
        self.view.deferred = of.deferred(&server);
        let classes: Vec<(usize, CoreClass)> = positions.into_iter().zip(of.classes.iter().copied()).collect();
        self.look_at(&*governor, &classes);
        let slow_work = SlowWork::where_slow(|task| settings.mode.class(Role::of(task)) == CoreClass::Slow);
        let of_domain = |((_, cores), class): (&(usize, Vec<u32>), &CoreClass)| {
            cores.iter().map(|core| (*core, *class)).collect::<Vec<_>>()
        };
        let placement = Placement { slow_work, cores: online.iter().zip(&of.classes).flat_map(of_domain).collect() };
        let divides = settings.mode == PowerMode::Concerto && placement.is_divided();
        if settings.mode == PowerMode::Concerto && !divides && !self.said_undivided {
            self.said_undivided = true;
            info!("all cores of this server share one frequency: in the mode concerto they stay fast");
        }
        self.place(if divides { placement } else { Placement::default() });
        if matches!(self.governing, Governing::Emulated(_)) {
            // Quotas hold at once, and are priced at once.
            self.look();
        }
    }

    /// Whether the cap is kept: the plan says what was asked for, and the machine what became of it.
    fn judge(
        &mut self,
        plan: &PowerPlan,
        cap: Option<Watts>,
        server: &ServerPower,
        online: &[usize],
        (active, now): (Watts, Time),
    ) {
        let model = self.meter.model();
        let busy = |(domain, at): (&Domain, &usize)| {
            // Without a cap that was taken it may run as fast as it can.
            let highest = domain.steps.first().map_or(model.p_states().frequency(0), |step| step.frequency);
            let may = self.held[*at].unwrap_or(highest);
            let hertz = self.above[*at].map_or(may, |above| may.max(above));
            active.0 * model.p_states().relative_power_at(hertz) * domain.cores.len() as f64
        };
        let most = Watts(server.idle.0 + server.domains.iter().zip(online).map(busy).sum::<f64>());
        let kept = cap.map(|cap| !matches!(plan.cap, CapState::CannotBeKept(_)) && most.0 <= cap.0 * ROUNDED);
        if let (Some(cap), Some(false)) = (cap, kept) {
            let why = match plan.cap {
                CapState::CannotBeKept(_) => "with every core at its lowest frequency",
                _ => "at the frequencies that its cores have, which are above what they were set to",
            };
            let is_news = self.said_not_kept.is_none_or(|said| now.since(said) >= SAY_AGAIN_AFTER);
            if self.view.is_cap_kept != Some(false) && is_news {
                self.said_not_kept = Some(now);
                warn!("the cap of {:.1} W is not kept: {why} this server draws up to {:.1} W", cap.0, most.0);
            }
            let said = || format!("the cap is not kept: {why} this server draws up to {:.1} W", most.0);
            self.view.trouble.get_or_insert_with(said);
        }
        (self.view.is_cap_kept, self.view.most) = (kept, Some(most));
    }

    /// Nothing is governed any more.
    fn release(&mut self) {
        (self.view.is_cap_kept, self.view.most, self.view.deferred) = (None, None, Cores(0.0));
        self.place(Placement::default());
        let Some(governor) = &self.governor else { return };
        if let Err(error) = governor.restore() {
            self.view.trouble = Some(format!("frequencies are not restored: {error}"));
            return;
        }
        (self.governor, self.written, self.missed) = (None, None, None);
        (self.caps, self.held, self.above) = (Vec::new(), Vec::new(), Vec::new());
        self.look_ungoverned();
    }

    fn opened(&mut self, now: Time) -> Arc<dyn FrequencyGovernor> {
        let is_retry = self.missed.is_some_and(|(_, again)| now >= again);
        if let Some(governor) = self.governor.as_ref().filter(|_| !is_retry) {
            return governor.clone();
        }
        let governor = self.find_governor(now);
        self.caps = vec![None; governor.domains().len()];
        self.held = self.caps.clone();
        self.view.governor = governor.name();
        self.governor = Some(governor.clone());
        self.look();
        governor
    }

    fn find_governor(&mut self, now: Time) -> Arc<dyn FrequencyGovernor> {
        let (root, record) = match &self.governing {
            Governing::Machine { root, record } => (root, record),
            Governing::Emulated(groups) => match QuotaGovernor::new(self.meter.clone(), groups.clone()) {
                Ok(governor) => return Arc::new(governor),
                Err(error) => {
                    warn!(%error, "emulated cores cannot be slowed");
                    return Arc::new(NoGovernor);
                }
            },
        };
        let misses = self.missed.map_or(0, |(misses, _)| misses);
        match Cpufreq::open(root, record) {
            Ok(Some(governor)) => {
                if misses > 0 {
                    info!("the frequencies of this machine can be controlled now");
                }
                self.missed = None;
                return Arc::new(governor);
            }
            // Said once, however often it is looked for.
            _ if misses > 0 => {}
            Ok(None) => info!("this machine offers no control of its frequencies; they are left alone"),
            Err(error) => {
                warn!(%error, "the frequencies of this machine cannot be controlled; they are left alone");
            }
        }
        let after = MIN_GOVERNOR_RETRY.0 * f64::from(misses.min(16)).exp2();
        self.missed = Some((misses.saturating_add(1), now + MAX_GOVERNOR_RETRY.min(Seconds(after))));
        Arc::new(NoGovernor)
    }

    /// Cores that were offline until now may be there.
    fn find_more(&mut self, governor: &dyn FrequencyGovernor) {
        if let Err(error) = governor.find_more() {
            self.view.trouble = Some(format!("cores that came online are not governed: {error}"));
        }
        let count = governor.domains().len();
        if count > self.caps.len() {
            self.caps.resize(count, None);
            self.held.resize(count, None);
            self.look();
        }
    }

    /// The domains that have cores online, with these.
    fn online(&mut self, governor: &dyn FrequencyGovernor) -> Vec<(usize, Vec<u32>)> {
        let (known, domains) = (governor.online_cores(), governor.domains());
        let mut online = Vec::new();
        for (at, domain) in domains.iter().enumerate() {
            let is_there = |core: &&u32| known.as_ref().is_none_or(|known| known.contains(core));
            let cores: Vec<u32> = domain.cores.iter().filter(is_there).copied().collect();
            // One that says no frequency may be offline, or not say it.
            if !cores.is_empty() && (self.reached[at].is_some() || governor.is_online(at)) {
                online.push((at, cores));
            } else {
                // It comes back with whatever limit the kernel gives it.
                (self.caps[at], self.held[at], self.above[at]) = (None, None, None);
                self.reached[at] = None;
            }
        }
        online
    }

    fn is_old(&self, now: Time) -> bool {
        self.written.is_none_or(|written| now.since(written) >= REWRITE_AFTER)
    }

    fn server(
        &self,
        domains: &[FrequencyDomain],
        online: &[(usize, Vec<u32>)],
        idle: Watts,
        active: Watts,
        now: Time,
    ) -> ServerPower {
        let model = self.meter.model();
        let step = |frequency: Hertz| Step {
            frequency,
            watts: Watts(active.0 * model.p_states().relative_power_at(frequency)),
        };
        let domain = |(at, cores): &(usize, Vec<u32>)| {
            let of = &domains[*at];
            let steps = if of.steps.is_empty() { range_steps(of.lowest, of.highest) } else { of.steps.clone() };
            Domain { cores: cores.clone(), steps: steps.into_iter().map(step).collect() }
        };
        let domains: Vec<Domain> = online.iter().map(domain).collect();
        let mut demand: Vec<(Role, Cores)> = Role::ALL.into_iter().zip(self.demand.map(Cores)).collect();
        if self.promoted.is_some_and(|promoted| now.since(promoted) < PROMOTED_FOR) {
            let half = domains.iter().map(|domain| domain.cores.len()).sum::<usize>() as f64 / 2.0;
            demand[0].1 = Cores(demand[0].1.0.max(half));
        }
        ServerPower { server: self.name.clone(), idle, domains, demand }
    }

    fn set_caps(&mut self, governor: &dyn FrequencyGovernor, wanted: &[(usize, Hertz)], now: Time) {
        let is_old = self.is_old(now);
        let mut changes: Vec<(usize, Hertz)> =
            wanted.iter().copied().filter(|(at, hertz)| is_old || self.caps[*at] != Some(*hertz)).collect();
        let rises = |(at, hertz): &(usize, Hertz)| self.caps[*at].is_some_and(|cap| cap < *hertz);
        changes.sort_by_key(|change| rises(change));
        if is_old {
            self.written = Some(now);
        }
        for (at, hertz) in changes {
            if self.caps[at] != Some(hertz) {
                // What it ran at so far says nothing of this cap.
                self.above[at] = None;
            }
            (self.caps[at], self.held[at]) = match governor.cap(at, hertz) {
                Ok(Capped::At(held)) => (Some(hertz), Some(held)),
                Ok(Capped::Offline) => (None, None),
                Err(error) => {
                    self.view.trouble = Some(format!("a frequency cannot be capped: {error}"));
                    (None, None)
                }
            };
        }
    }

    fn place(&mut self, placement: Placement) {
        self.view.is_divided = placement.is_divided();
        if self.placement == placement {
            return;
        }
        self.meter.set_slow_work(if placement.is_divided() { placement.slow_work } else { SlowWork::default() });
        self.binder.place(&placement);
        self.placement = placement;
    }

    fn look_ungoverned(&mut self) {
        let class = CoreClass::Fast;
        self.view.governor = "none";
        let of =
            |(cores, reached): (&[u32], Option<Hertz>)| DomainView { cores: cores.to_vec(), class, cap: None, reached };
        self.view.domains = self.frequencies.now().into_iter().map(of).collect();
        self.price();
    }

    fn look_at(&mut self, governor: &dyn FrequencyGovernor, classes: &[(usize, CoreClass)]) {
        let of = |(at, domain): (usize, &FrequencyDomain)| DomainView {
            cores: domain.cores.clone(),
            class: classes.iter().find(|known| known.0 == at).map_or(CoreClass::Slow, |known| known.1),
            cap: self.held[at],
            reached: self.reached[at],
        };
        self.view.domains = governor.domains().iter().enumerate().map(of).collect();
    }

    /// From now on joules are priced at the frequencies that were reached.
    fn price(&self) {
        let model = self.meter.model();
        let (fast, slow) = (self.view.frequency(CoreClass::Fast), self.view.frequency(CoreClass::Slow));
        for (class, reached) in [(CoreClass::Fast, fast), (CoreClass::Slow, slow)] {
            if let Some(reached) = reached {
                let p_state = model.p_states().nearest(reached);
                if self.meter.class_p_state(class) != p_state {
                    self.meter.set_class_p_state(class, p_state);
                }
            }
        }
    }
}

impl Drop for PowerManager {
    fn drop(&mut self) {
        self.place(Placement::default());
        // Others may have the governor still: it does not restore by itself then.
        if let Some(Err(error)) = self.governor.as_ref().map(|governor| governor.restore()) {
            warn!(%error, "frequencies are not restored; the next start does it");
        }
    }
}

fn range_steps(lowest: Hertz, highest: Hertz) -> Vec<Hertz> {
    if highest <= lowest {
        return vec![highest];
    }
    let of = |step: usize| {
        let share = step as f64 / (RANGE_STEPS - 1) as f64;
        // Whole kilohertz, as the kernel takes them.
        Hertz(((highest.0 + (lowest.0 - highest.0) * share) / 1e3).round() * 1e3)
    };
    (0..RANGE_STEPS).map(of).collect()
}
