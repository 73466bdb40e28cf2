//! One thread's duties and the CPU time they used. Pure: times are arguments.
//!
//! Invariant: between the first begin and any later moment, the account's CPU time is the thread's
//! CPU time minus what passed while no duty was open; nothing is lost or counted twice, in any
//! order of begins and ends.

use ecotone_types::Duty;

/// Number of duties.
pub(crate) const DUTIES: usize = Duty::ALL.len();

/// How deep duties may nest on a thread. A compaction that moves values over the network is three
/// deep; a deeper nesting than this is a forgotten end, and its time goes to the innermost duty
/// that was kept.
pub const MAX_NESTED_DUTIES: usize = 16;

/// CPU nanoseconds by duty, in the order of `Duty::ALL`.
pub(crate) type CpuByDuty = [u64; DUTIES];

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
    cpu_ns: CpuByDuty,
}

impl ThreadAccount {
    /// Brings the account up to `now_ns` of the thread's CPU time.
    pub(crate) fn accrue(&mut self, now_ns: u64) {
        let used = now_ns.saturating_sub(self.seen_ns);
        self.seen_ns = self.seen_ns.max(now_ns);
        if let Some(duty) = self.current() {
            self.cpu_ns[duty as usize] += used;
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

    /// CPU time by duty up to the last call.
    pub(crate) fn cpu_ns(&self) -> &CpuByDuty {
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
            let mut oracle = [0u64; DUTIES];
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
