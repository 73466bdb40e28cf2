//! The joule meter: process-wide CPU time by duty, priced by a power model.
//!
//! Threads tell the meter where they change duty ([`EnergyMeter::begin`], [`EnergyMeter::end`],
//! nested like a stack). Each thread has an account behind a lock of its own; a reader on another
//! thread brings every account up to date through the thread's CPU clock, so a compaction that runs
//! for minutes shows while it runs. A thread that ends hands its account in.
//!
//! Invariants: CPU time of the process = sum over duties + unattributed, at every reading; figures
//! only grow. Failure: after [`EnergyMeter::start`] succeeded nothing fails; ends without a begin
//! are ignored and counted. Locks: registry before account. A switch takes its own thread's account
//! only (uncontended but for a reader's moment), reads one clock, and allocates nothing after a
//! thread's first switch.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use ecotone_types::units::{Joules, Seconds, Watts};
use ecotone_types::{CoreClass, Duty, Task};
use parking_lot::Mutex;

use crate::EnergyError;
use crate::account::{ACCOUNTS, CoreChange, CpuByAccount, ThreadAccount, account_of};
use crate::ledger::Ledger;
use crate::model::PowerModel;
use crate::placement::{SharedSlowWork, SlowWork};
use crate::pstate::PStateIndex;
use crate::reading::Reading;
use crate::thread_clock::{ThreadClock, process_cpu_ns, this_thread_cpu_ns};

/// Meters the whole process. Usually one exists, made first in `main` and shared behind an [`Arc`].
pub struct EnergyMeter {
    id: u64,
    shared: Arc<MeterState>,
}

/// What the calling thread has used in duties, since its first switch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThreadUse {
    /// Host CPU seconds inside duties.
    pub cpu: Seconds,
    /// Joules of them at the present P-state, without idle power.
    pub energy: Joules,
}

/// Processor time of the process for one purpose, on cores of one class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuUse {
    /// What for; `None` outside every duty.
    pub duty: Option<Duty>,
    /// On which cores.
    pub class: CoreClass,
    /// Since the meter started.
    pub cpu: Seconds,
}

struct MeterState {
    started: Instant,
    process_ns_at_start: u64,
    registry: Mutex<Registry>,
    unbalanced_switches: AtomicU64,
    slow_work: SharedSlowWork,
}

struct Registry {
    threads: Vec<Arc<ThreadSlot>>,
    /// CPU time of threads that have ended.
    ended_cpu_ns: CpuByAccount,
    ledger: Ledger,
}

struct ThreadSlot {
    clock: ThreadClock,
    account: Mutex<ThreadAccount>,
}

/// This thread's slot in one meter.
struct Membership {
    meter: u64,
    shared: Weak<MeterState>,
    slot: Arc<ThreadSlot>,
}

/// All meters that this thread belongs to; hands its accounts in when the thread ends.
#[derive(Default)]
struct Memberships(RefCell<Vec<Membership>>);

thread_local! {
    static MEMBERSHIPS: Memberships = Memberships::default();
}

static NEXT_METER: AtomicU64 = AtomicU64::new(1);

impl Drop for Memberships {
    fn drop(&mut self) {
        for membership in self.0.get_mut().drain(..) {
            if let Some(shared) = membership.shared.upgrade() {
                shared.retire(&membership.slot);
            }
        }
    }
}

impl EnergyMeter {
    /// Starts to meter this process: CPU time used before is not counted.
    ///
    /// # Errors
    /// [`EnergyError::Clock`] if the kernel gives no CPU clocks (a sandbox may refuse them).
    pub fn start(model: PowerModel) -> Result<Arc<Self>, EnergyError> {
        let thread_clock = |source| EnergyError::Clock { of: "this thread", source };
        ThreadClock::of_this_thread().map_err(thread_clock)?.cpu_ns().map_err(thread_clock)?;
        let process_ns_at_start =
            process_cpu_ns().map_err(|source| EnergyError::Clock { of: "this process", source })?;
        Ok(Arc::new(Self {
            id: NEXT_METER.fetch_add(1, Ordering::Relaxed),
            shared: Arc::new(MeterState {
                started: Instant::now(),
                process_ns_at_start,
                registry: Mutex::new(Registry {
                    threads: Vec::new(),
                    ended_cpu_ns: [0; ACCOUNTS],
                    ledger: Ledger::new(model),
                }),
                unbalanced_switches: AtomicU64::new(0),
                slow_work: SharedSlowWork::default(),
            }),
        }))
    }

    /// The calling thread begins a duty inside its current one. Not across an `await`: the end must
    /// come on this thread.
    pub fn begin(&self, task: impl Into<Task>) -> CoreChange {
        let task = task.into();
        let begun = self.with_slot(|slot| {
            let mut account = slot.account.lock();
            let change = account.begin(task.duty, now_ns());
            if change == CoreChange::Take {
                // Under the account's lock, so that a change of what is slow comes before or after.
                account.takes_core(Some(task), self.shared.slow_work.get());
            }
            change
        });
        begun.unwrap_or(CoreChange::Keep)
    }

    /// The calling thread ends its innermost duty. Without a begin: ignored and counted.
    pub fn end(&self) -> CoreChange {
        let ended = self.with_known_slot(|slot| {
            let mut account = slot.account.lock();
            let change = account.end(now_ns());
            if change == Some(CoreChange::Give) {
                account.takes_core(None, SlowWork::default());
            }
            change
        });
        let ended = ended.flatten();
        ended.unwrap_or_else(|| {
            self.shared.unbalanced_switches.fetch_add(1, Ordering::Relaxed);
            CoreChange::Keep
        })
    }

    /// The innermost duty of the calling thread.
    pub fn current_duty(&self) -> Option<Duty> {
        self.with_known_slot(|slot| slot.account.lock().current()).flatten()
    }

    /// What the calling thread has used so far; the difference of two calls on one thread is the
    /// cost of what ran between them (one compaction, say), if the P-state did not change.
    pub fn thread_use(&self) -> ThreadUse {
        let cpu_ns = self.with_known_slot(|slot| {
            let mut account = slot.account.lock();
            account.accrue(now_ns());
            *account.cpu_ns()
        });
        let registry = self.shared.registry.lock();
        let ledger = &registry.ledger;
        let mut used = ThreadUse { cpu: Seconds::ZERO, energy: Joules::ZERO };
        for (account, ns) in cpu_ns.unwrap_or_default().into_iter().enumerate() {
            let cpu = Seconds(ns as f64 / 1e9);
            used.cpu += cpu;
            used.energy += ledger.model().active_joules(cpu, ledger.account_p_state(account));
        }
        used
    }

    /// The state of the meter now, threads inside long duties included. Any thread; takes
    /// microseconds.
    pub fn reading(&self) -> Reading {
        let mut registry = self.shared.registry.lock();
        self.shared.settle(&mut registry);
        registry.ledger.reading(self.shared.unbalanced_switches.load(Ordering::Relaxed))
    }

    /// From now on cores run at this P-state (0 is the highest; beyond the table means its lowest).
    /// What was used until now keeps its old price.
    pub fn set_p_state(&self, p_state: PStateIndex) {
        let mut registry = self.shared.registry.lock();
        self.shared.settle(&mut registry);
        registry.ledger.set_p_state(p_state);
    }

    /// From now on cores of a class are at this P-state, whatever the others are at. Ends with the
    /// next [`EnergyMeter::set_p_state`].
    pub fn set_class_p_state(&self, class: CoreClass, p_state: PStateIndex) {
        let mut registry = self.shared.registry.lock();
        self.shared.settle(&mut registry);
        registry.ledger.set_class_p_state(class, p_state);
    }

    /// The P-state of the cores of a class.
    pub fn class_p_state(&self, class: CoreClass) -> PStateIndex {
        self.shared.registry.lock().ledger.class_p_state(class)
    }

    /// From now on this work runs on slow cores; what ran until now is counted where it ran.
    pub fn set_slow_work(&self, slow: SlowWork) {
        let mut registry = self.shared.registry.lock();
        self.shared.settle(&mut registry);
        self.shared.slow_work.set(slow);
        for slot in &registry.threads {
            let mut account = slot.account.lock();
            if let Ok(now_ns) = slot.clock.cpu_ns() {
                account.accrue(now_ns);
            }
            account.place(slow);
        }
    }

    /// Prices what comes from now on with these watts: those of a model that was fitted to a meter.
    ///
    /// # Errors
    /// [`EnergyError::Model`] for watts that are none.
    pub fn set_watts(&self, idle: Watts, active: Watts) -> Result<(), EnergyError> {
        let mut registry = self.shared.registry.lock();
        self.shared.settle(&mut registry);
        registry.ledger.set_watts(idle, active)
    }

    /// Processor time by duty and class of cores, and outside every duty.
    pub fn cpu(&self) -> Vec<CpuUse> {
        let mut registry = self.shared.registry.lock();
        self.shared.settle(&mut registry);
        let (by_account, outside) = registry.ledger.cpu_ns();
        let seconds = |ns: u64| Seconds(ns as f64 / 1e9);
        let mut all = vec![CpuUse { duty: None, class: CoreClass::Fast, cpu: seconds(outside) }];
        for class in [CoreClass::Fast, CoreClass::Slow] {
            let of = |duty| CpuUse { duty: Some(duty), class, cpu: seconds(by_account[account_of(duty, class)]) };
            all.extend(Duty::ALL.into_iter().map(of));
        }
        all
    }

    /// The current P-state, of threads without a duty where duties have their own.
    pub fn p_state(&self) -> PStateIndex {
        self.shared.registry.lock().ledger.p_state()
    }

    /// The power model.
    pub fn model(&self) -> PowerModel {
        self.shared.registry.lock().ledger.model().clone()
    }

    /// Threads that are known to the meter and alive.
    pub fn threads(&self) -> usize {
        self.shared.registry.lock().threads.len()
    }

    /// Runs `f` with this thread's slot, made on first use; `None` while the thread is being torn
    /// down.
    fn with_slot<R>(&self, f: impl FnOnce(&ThreadSlot) -> R) -> Option<R> {
        MEMBERSHIPS
            .try_with(|memberships| {
                let mut memberships = memberships.0.borrow_mut();
                if let Some(known) = memberships.iter().find(|m| m.meter == self.id) {
                    return Some(f(&known.slot));
                }
                memberships.retain(|m| m.shared.strong_count() > 0);
                let slot = self.shared.enlist()?;
                let result = f(&slot);
                memberships.push(Membership { meter: self.id, shared: Arc::downgrade(&self.shared), slot });
                Some(result)
            })
            .ok()
            .flatten()
    }

    fn with_known_slot<R>(&self, f: impl FnOnce(&ThreadSlot) -> R) -> Option<R> {
        MEMBERSHIPS
            .try_with(|memberships| {
                memberships.0.borrow().iter().find(|m| m.meter == self.id).map(|known| f(&known.slot))
            })
            .ok()
            .flatten()
    }
}

/// A thread's clock of itself was tried in [`EnergyMeter::start`]; the kernel does not take it away
/// later. If it did, time would stand still and the CPU time would show as unattributed.
fn now_ns() -> u64 {
    this_thread_cpu_ns().unwrap_or(0)
}

impl MeterState {
    fn enlist(&self) -> Option<Arc<ThreadSlot>> {
        let clock = ThreadClock::of_this_thread().ok()?;
        let slot = Arc::new(ThreadSlot { clock, account: Mutex::default() });
        self.registry.lock().threads.push(slot.clone());
        Some(slot)
    }

    /// Called on the ending thread itself, so its own clock is at hand.
    fn retire(&self, slot: &Arc<ThreadSlot>) {
        let mut registry = self.registry.lock();
        let mut account = slot.account.lock();
        account.accrue(now_ns());
        if account.current().is_some() {
            self.unbalanced_switches.fetch_add(1, Ordering::Relaxed);
        }
        add(&mut registry.ended_cpu_ns, account.cpu_ns());
        registry.threads.retain(|other| !Arc::ptr_eq(other, slot));
    }

    /// Brings every thread's account and then the ledger up to date.
    fn settle(&self, registry: &mut Registry) {
        let mut cpu_ns = registry.ended_cpu_ns;
        let mut ended = [0; ACCOUNTS];
        registry.threads.retain(|slot| {
            let mut account = slot.account.lock();
            let clock = slot.clock.cpu_ns();
            if let Ok(now_ns) = clock {
                account.accrue(now_ns);
            } else {
                // The thread ended without its destructors: what it had used until the last look
                // stays counted.
                add(&mut ended, account.cpu_ns());
            }
            add(&mut cpu_ns, account.cpu_ns());
            clock.is_ok()
        });
        add(&mut registry.ended_cpu_ns, &ended);
        // Last, so that the process's time contains all that was read before.
        let process_ns = process_cpu_ns().unwrap_or(0).saturating_sub(self.process_ns_at_start);
        let elapsed_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        registry.ledger.settle(&cpu_ns, process_ns, elapsed_ns);
    }
}

fn add(sum: &mut CpuByAccount, more: &CpuByAccount) {
    for (s, m) in sum.iter_mut().zip(more) {
        *s += m;
    }
}
