//! Classes and frequencies of a federation's cores.
//!
//! 1. Each server's domains are divided into fast and slow by the mode and the demand of its roles.
//!    The demand is spread over the domains of its class by what they can do.
//! 2. Fast domains take their highest step, slow ones the lowest that carries their share.
//! 3. While all cores together, busy, would draw more than the cap, one step is taken down: of the
//!    slow domain that is highest above its lowest step, in all servers; when no slow one is left,
//!    of the fast ones. The steps that are taken do not depend on the cap, only how many: so a lower
//!    cap goes farther along the same way.
//!
//! What a domain's share exceeds after step 3 is deferred: its work waits rather than moving to
//! cores that are meant for other roles.

use ecotone_types::units::{Cores, Hertz, Joules, Seconds, Watts};
use ecotone_types::{CoreClass, ServerId};

use super::mode::{PowerMode, Role};

/// Slow cores are planned to be busy for this share of the time at most, so that what comes in
/// bursts (the stream of a copy) is soon done.
pub const MAX_UTILISATION: f64 = 0.7;

/// A frequency of a domain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The frequency.
    pub frequency: Hertz,
    /// What one busy core adds at it.
    pub watts: Watts,
}

/// Cores that share one frequency.
#[derive(Clone, Debug, PartialEq)]
pub struct Domain {
    /// The cores, by number.
    pub cores: Vec<u32>,
    /// Its frequencies, highest first. A domain without one is left alone.
    pub steps: Vec<Step>,
}

impl Domain {
    fn lowest(&self) -> usize {
        self.steps.len().saturating_sub(1)
    }

    fn step(&self, at: usize) -> Step {
        self.steps.get(at).copied().unwrap_or(Step { frequency: Hertz(0.0), watts: Watts::ZERO })
    }

    /// What all its cores draw when they are busy.
    fn most(&self, at: usize) -> Watts {
        Watts(self.step(at).watts.0 * self.cores.len() as f64)
    }

    /// What it can do, in cores that run at `reference`.
    fn capacity(&self, at: usize, reference: Hertz) -> f64 {
        if reference.0 > 0.0 { self.cores.len() as f64 * self.step(at).frequency.0 / reference.0 } else { 0.0 }
    }
}

/// What the manager knows of one server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerPower {
    /// Its name.
    pub server: ServerId,
    /// What it draws when nothing runs.
    pub idle: Watts,
    /// Its frequency domains.
    pub domains: Vec<Domain>,
    /// Cores of its highest frequency that each role keeps busy. A role that is not named needs
    /// none.
    pub demand: Vec<(Role, Cores)>,
}

impl ServerPower {
    fn reference(&self) -> Hertz {
        self.domains.iter().map(|domain| domain.step(0).frequency).fold(Hertz(0.0), Hertz::max)
    }

    fn demand(&self, mode: PowerMode, class: CoreClass) -> f64 {
        let of_class = self.demand.iter().filter(|(role, cores)| mode.class(*role) == class && cores.is_plausible());
        of_class.map(|(_, cores)| cores.0).sum()
    }
}

/// The settings of a federation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PowerSettings {
    /// `power.mode`.
    pub mode: PowerMode,
    /// `power.cap_watts`: the most that all servers together may draw.
    pub cap: Option<Watts>,
}

/// The plan of one server; its vectors are in the order of the server's domains.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerPlan {
    /// Its name.
    pub server: ServerId,
    /// Fast or slow.
    pub classes: Vec<CoreClass>,
    /// The position of each domain's step.
    pub steps: Vec<usize>,
    /// The work that each domain is meant to do, in cores of the highest frequency.
    shares: Vec<f64>,
}

/// Whether the cap is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CapState {
    /// There is none.
    None,
    /// It is kept whatever the load.
    Kept,
    /// It is not: with every core at its lowest frequency the servers can still draw this much.
    CannotBeKept(Watts),
}

/// The plan of a federation.
#[derive(Clone, Debug, PartialEq)]
pub struct PowerPlan {
    /// By server, in the order they were given.
    pub servers: Vec<ServerPlan>,
    /// What all servers draw when every core is busy.
    pub most: Watts,
    /// Whether the cap is kept.
    pub cap: CapState,
}

/// Decides.
pub fn plan(settings: PowerSettings, servers: &[ServerPower]) -> PowerPlan {
    let mut plans: Vec<ServerPlan> =
        servers.iter().map(|server| ServerPlan::before_cap(settings.mode, server)).collect();
    let most = |plans: &[ServerPlan]| Watts(servers.iter().zip(plans).map(|(server, plan)| plan.most(server).0).sum());
    let cap = match settings.cap {
        None => CapState::None,
        Some(cap) => loop {
            let now = most(&plans);
            if now <= cap {
                break CapState::Kept;
            }
            if !lower_one(servers, &mut plans) {
                break CapState::CannotBeKept(now);
            }
        },
    };
    PowerPlan { most: most(&plans), servers: plans, cap }
}

/// Takes one step down; false if there is none.
fn lower_one(servers: &[ServerPower], plans: &mut [ServerPlan]) -> bool {
    let mut best: Option<(CoreClass, f64, usize, usize)> = None;
    for (s, (server, plan)) in servers.iter().zip(plans.iter()).enumerate() {
        for (d, domain) in server.domains.iter().enumerate() {
            if plan.steps[d] >= domain.lowest() {
                continue;
            }
            let above = domain.step(plan.steps[d]).frequency.0 / domain.step(domain.lowest()).frequency.0;
            // Slow before fast, then the highest above its lowest; of equals the first.
            let better = best
                .is_none_or(|(class, most, ..)| plan.classes[d] > class || plan.classes[d] == class && above > most);
            if better {
                best = Some((plan.classes[d], above, s, d));
            }
        }
    }
    best.is_some_and(|(_, _, server, domain)| {
        plans[server].steps[domain] += 1;
        true
    })
}

impl ServerPlan {
    /// Classes, steps and shares where no cap is.
    fn before_cap(mode: PowerMode, server: &ServerPower) -> Self {
        let classes = classes(mode, server);
        let reference = server.reference();
        let mut steps = vec![0; classes.len()];
        let mut shares = vec![0.0; classes.len()];
        for class in [CoreClass::Fast, CoreClass::Slow] {
            let of_class = |d: &usize| classes[*d] == class;
            let whole: f64 =
                (0..classes.len()).filter(of_class).map(|d| server.domains[d].capacity(0, reference)).sum();
            if whole <= 0.0 {
                continue;
            }
            let mut demand = server.demand(mode, class);
            // One domain cannot be divided: it does the work of both.
            if !classes.contains(&CoreClass::Slow) {
                demand += server.demand(mode, CoreClass::Slow);
            }
            for d in (0..classes.len()).filter(of_class) {
                let domain = &server.domains[d];
                shares[d] = demand * domain.capacity(0, reference) / whole;
                let carries = |at: &usize| domain.capacity(*at, reference) * MAX_UTILISATION >= shares[d];
                steps[d] = match (mode, class) {
                    (_, CoreClass::Fast) => 0,
                    (PowerMode::AllLow, CoreClass::Slow) => domain.lowest(),
                    (_, CoreClass::Slow) => (0..domain.steps.len()).rev().find(carries).unwrap_or(0),
                };
            }
        }
        Self { server: server.server.clone(), classes, steps, shares }
    }

    /// What the server draws when every core is busy.
    pub fn most(&self, server: &ServerPower) -> Watts {
        let domains = server.domains.iter().zip(&self.steps);
        Watts(server.idle.0 + domains.map(|(domain, step)| domain.most(*step).0).sum::<f64>())
    }

    /// The cap of each domain.
    pub fn caps(&self, server: &ServerPower) -> Vec<Hertz> {
        server.domains.iter().zip(&self.steps).map(|(domain, step)| domain.step(*step).frequency).collect()
    }

    /// The cores that a role runs on: of its class, or all where the server has but one class.
    pub fn cores(&self, server: &ServerPower, mode: PowerMode, role: Role) -> Vec<u32> {
        let class = mode.class(role);
        let divided = self.classes.contains(&class);
        let domains = server.domains.iter().zip(&self.classes).filter(|(_, of)| !divided || **of == class);
        domains.flat_map(|(domain, _)| domain.cores.iter().copied()).collect()
    }

    /// Joules over a time, idle power included, of the work that the steps let be done.
    pub fn predicted(&self, server: &ServerPower, elapsed: Seconds) -> Joules {
        let reference = server.reference();
        let mut watts = server.idle.0;
        for ((domain, step), share) in server.domains.iter().zip(&self.steps).zip(&self.shares) {
            let capacity = domain.capacity(*step, reference);
            if capacity > 0.0 {
                watts += domain.most(*step).0 * (share / capacity).min(1.0);
            }
        }
        Watts(watts) * elapsed
    }

    /// The work that has to wait, in cores of the highest frequency.
    pub fn deferred(&self, server: &ServerPower) -> Cores {
        let reference = server.reference();
        let domains = server.domains.iter().zip(&self.steps).zip(&self.shares);
        Cores(domains.map(|((domain, step), share)| (share - domain.capacity(*step, reference)).max(0.0)).sum())
    }
}

/// Divides a server's domains. In `concerto` the fastest are fast; slow are as many of the rest, from
/// the slowest, as carry the slow roles at their lowest step, one at least, while those that are
/// left carry the fast roles.
fn classes(mode: PowerMode, server: &ServerPower) -> Vec<CoreClass> {
    let count = server.domains.len();
    match mode {
        PowerMode::AllHigh => return vec![CoreClass::Fast; count],
        PowerMode::AllLow => return vec![CoreClass::Slow; count],
        PowerMode::Concerto => {}
    }
    let mut classes = vec![CoreClass::Fast; count];
    let mut slowest_first: Vec<usize> = (0..count).collect();
    let highest = |d: usize| server.domains[d].step(0).frequency.0;
    slowest_first.sort_by(|a, b| highest(*a).total_cmp(&highest(*b)).then(b.cmp(a)));
    let reference = server.reference();
    let (fast, slow) = (server.demand(mode, CoreClass::Fast), server.demand(mode, CoreClass::Slow));
    let mut left: f64 = server.domains.iter().map(|domain| domain.capacity(0, reference)).sum();
    let mut carried = 0.0;
    for (taken, d) in slowest_first.iter().take(count.saturating_sub(1)).enumerate() {
        let domain = &server.domains[*d];
        left -= domain.capacity(0, reference);
        let enough = carried * MAX_UTILISATION >= slow;
        let would_starve = left * MAX_UTILISATION < fast;
        if taken > 0 && (enough || would_starve) {
            break;
        }
        carried += domain.capacity(domain.lowest(), reference);
        classes[*d] = CoreClass::Slow;
    }
    classes
}
