//! One thread's duties and the CPU time they used. Pure: times are arguments.
//!
//! Invariant: between the first begin and any later moment, the account's CPU time is the thread's
//! CPU time minus what passed while no duty was open; nothing is lost or counted twice, in any
//! order of begins and ends.

use ecotone_types::{CoreClass, Duty, Task};

use crate::placement::SlowWork;

/// Number of duties.
pub(crate) const DUTIES: usize = Duty::ALL.len();

/// Accounts of a thread and of a process: each duty on fast cores, then each on slow ones.
pub(crate) const ACCOUNTS: usize = 2 * DUTIES;

/// The account of a duty on cores of a class.
pub(crate) const fn account_of(duty: Duty, class: CoreClass) -> usize {
    match class {
        CoreClass::Fast => duty.index(),
        CoreClass::Slow => DUTIES + duty.index(),
    }
}

/// How deep duties may nest on a thread. A compaction that moves values over the network is three
/// deep; a deeper nesting than this is a forgotten end, and its time goes to the innermost duty
/// that was kept.
pub const MAX_NESTED_DUTIES: usize = 16;

/// CPU nanoseconds by account.
pub(crate) type CpuByAccount = [u64; ACCOUNTS];

/// What a switch of duty means for the thread's core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreChange {
    /// The thread began its outermost duty that needs a core.
    Take,
    /// The thread ended it.
    Give,
    /// It stays where it is.
    Keep,
}

/// A thread in [`Duty::Transport`] moves bytes for the network runtime and stays with the server's
/// other threads; any other duty is work for a core of its own.
pub(crate) fn needs_core(duty: Duty) -> bool {
    duty != Duty::Transport
}

/// A stack of open duties and the CPU time of each duty so far.
#[derive(Debug, Default)]
pub(crate) struct ThreadAccount {
    open: [Option<Duty>; MAX_NESTED_DUTIES],
    depth: usize,
    /// Begins beyond [`MAX_NESTED_DUTIES`] that still await their end.
    beyond: usize,
    /// How many of the open duties need a core.
    on_core: usize,
    /// Thread CPU time up to which this account is complete.
    seen_ns: u64,
    /// What the thread is on its core for; `None` without one.
    task: Option<Task>,
    on_slow_core: bool,
    cpu_ns: CpuByAccount,
}

impl ThreadAccount {
    /// Brings the account up to `now_ns` of the thread's CPU time.
    pub(crate) fn accrue(&mut self, now_ns: u64) {
        let used = now_ns.saturating_sub(self.seen_ns);
        self.seen_ns = self.seen_ns.max(now_ns);
        if let Some(duty) = self.current() {
            let class = if self.on_slow_core { CoreClass::Slow } else { CoreClass::Fast };
            self.cpu_ns[account_of(duty, class)] += used;
        }
    }

    /// The innermost open duty.
    pub(crate) fn current(&self) -> Option<Duty> {
        self.depth.checked_sub(1).and_then(|top| self.open[top])
    }

    /// Opens a duty inside the current one.
    pub(crate) fn begin(&mut self, duty: Duty, now_ns: u64) -> CoreChange {
        self.accrue(now_ns);
        if self.depth == MAX_NESTED_DUTIES {
            self.beyond += 1;
            return CoreChange::Keep;
        }
        self.open[self.depth] = Some(duty);
        self.depth += 1;
        if !needs_core(duty) {
            return CoreChange::Keep;
        }
        self.on_core += 1;
        if self.on_core == 1 { CoreChange::Take } else { CoreChange::Keep }
    }

    /// Closes the innermost duty; `None` if none is open.
    pub(crate) fn end(&mut self, now_ns: u64) -> Option<CoreChange> {
        self.accrue(now_ns);
        if self.beyond > 0 {
            self.beyond -= 1;
            return Some(CoreChange::Keep);
        }
        let duty = self.current()?;
        self.depth -= 1;
        self.open[self.depth] = None;
        if !needs_core(duty) {
            return Some(CoreChange::Keep);
        }
        self.on_core -= 1;
        Some(if self.on_core == 0 { CoreChange::Give } else { CoreChange::Keep })
    }

    /// The thread has taken a core for `task`, or given it back; bring the account up to date before.
    pub(crate) fn takes_core(&mut self, task: Option<Task>, slow: SlowWork) {
        self.task = task;
        self.place(slow);
    }

    /// Other work is slow from now on; bring the account up to date before.
    pub(crate) fn place(&mut self, slow: SlowWork) {
        self.on_slow_core = self.task.is_some_and(|task| slow.class(task) == CoreClass::Slow);
    }

    /// CPU time by account up to the last call.
    pub(crate) fn cpu_ns(&self) -> &CpuByAccount {
        &self.cpu_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn inner_time_belongs_to_the_inner_duty_only() {
        let mut account = ThreadAccount::default();
        assert_eq!(account.begin(Duty::Compaction, 100), CoreChange::Take);
        assert_eq!(account.begin(Duty::Gc, 110), CoreChange::Keep);
        assert_eq!(account.end(150), Some(CoreChange::Keep));
        assert_eq!(account.end(155), Some(CoreChange::Give));
        assert_eq!(account.end(999), None);
        assert_eq!(account.cpu_ns()[Duty::Compaction as usize], 10 + 5);
        assert_eq!(account.cpu_ns()[Duty::Gc as usize], 40);
        assert_eq!(account.cpu_ns().iter().sum::<u64>(), 55);
    }

    #[test]
    fn transport_takes_no_core_and_keeps_one_that_is_held() {
        let mut account = ThreadAccount::default();
        assert_eq!(account.begin(Duty::Transport, 0), CoreChange::Keep);
        assert_eq!(account.begin(Duty::Worker, 1), CoreChange::Take);
        assert_eq!(account.begin(Duty::Transport, 2), CoreChange::Keep);
        assert_eq!(account.end(3), Some(CoreChange::Keep));
        assert_eq!(account.end(4), Some(CoreChange::Give));
        assert_eq!(account.end(5), Some(CoreChange::Keep));
    }

    #[test]
    fn time_on_slow_cores_is_kept_apart() {
        let slow = SlowWork::where_slow(|task| task.duty == Duty::Compaction && task.is_deep);
        let deep = Task { duty: Duty::Compaction, is_deep: true };
        let mut account = ThreadAccount::default();
        account.begin(Duty::Compaction, 0);
        account.takes_core(Some(deep), slow);
        // Inside of it, on the same core.
        account.begin(Duty::Gc, 10);
        account.end(30);
        // All cores are fast again.
        account.accrue(35);
        account.place(SlowWork::default());
        account.end(42);
        let on = |duty, class| account.cpu_ns()[account_of(duty, class)];
        assert_eq!((on(Duty::Compaction, CoreClass::Slow), on(Duty::Gc, CoreClass::Slow)), (15, 20));
        assert_eq!((on(Duty::Compaction, CoreClass::Fast), on(Duty::Gc, CoreClass::Fast)), (7, 0));
    }

    #[test]
    fn the_order_of_duties_is_their_index() {
        for (i, duty) in Duty::ALL.into_iter().enumerate() {
            assert_eq!(duty as usize, i);
        }
    }

    proptest! {
        /// Against an oracle that keeps whole history: one entry for each nanosecond of the
        /// thread's life.
        #[test]
        fn no_time_is_lost_or_counted_twice(
            steps in proptest::collection::vec((0u64..50, proptest::option::of(0usize..DUTIES), any::<bool>()), 0..200)
        ) {
            let mut account = ThreadAccount::default();
            let mut stack: Vec<Duty> = Vec::new();
            let mut oracle = [0u64; ACCOUNTS];
            let mut now = 0u64;
            let mut core_held = false;
            for (used, begin, sample) in steps {
                if let Some(duty) = stack.iter().take(MAX_NESTED_DUTIES).next_back() {
                    oracle[*duty as usize] += used;
                }
                now += used;
                if sample {
                    // A sampler that reads now, and one that comes late with an older clock value.
                    account.accrue(now);
                    account.accrue(now.saturating_sub(7));
                }
                let change = match begin {
                    Some(index) => {
                        stack.push(Duty::ALL[index]);
                        Some(account.begin(Duty::ALL[index], now))
                    }
                    None => {
                        let change = account.end(now);
                        prop_assert_eq!(change.is_some(), stack.pop().is_some());
                        change
                    }
                };
                match change {
                    Some(CoreChange::Take) => { prop_assert!(!core_held); core_held = true; }
                    Some(CoreChange::Give) => { prop_assert!(core_held); core_held = false; }
                    Some(CoreChange::Keep) | None => {}
                }
                let wants_core = stack.iter().take(MAX_NESTED_DUTIES).any(|&d| needs_core(d));
                prop_assert_eq!(core_held, wants_core);
            }
            prop_assert_eq!(account.cpu_ns(), &oracle);
        }
    }
}
