//! Which work and which cores are slow.
//!
//! Decided elsewhere (`policy::power`); the meter counts by it and a [`CoreBinder`] binds threads by
//! it. Pure but for the copy that threads share.
//!
//! [`CoreBinder`]: crate::cores::CoreBinder

use std::sync::atomic::{AtomicU32, Ordering};

use ecotone_types::{CoreClass, Duty, Task};

/// The tasks that run on slow cores. None, unless somebody says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowWork(u32);

const fn bit(task: Task) -> u32 {
    1 << (2 * task.duty.index() + task.is_deep as usize)
}

impl SlowWork {
    /// Those for which `is_slow` says so.
    pub fn where_slow(is_slow: impl Fn(Task) -> bool) -> Self {
        let tasks = Duty::ALL.into_iter().flat_map(|duty| [false, true].map(|is_deep| Task { duty, is_deep }));
        Self(tasks.filter(|task| is_slow(*task)).fold(0, |bits, task| bits | bit(task)))
    }

    /// The cores that a task runs on.
    pub const fn class(self, task: Task) -> CoreClass {
        if self.0 & bit(task) != 0 { CoreClass::Slow } else { CoreClass::Fast }
    }
}

/// The same for threads that look it up at every task.
#[derive(Debug, Default)]
pub(crate) struct SharedSlowWork(AtomicU32);

impl SharedSlowWork {
    pub(crate) fn get(&self) -> SlowWork {
        SlowWork(self.0.load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, slow: SlowWork) {
        self.0.store(slow.0, Ordering::Release);
    }
}

/// Which cores are slow, and who runs there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The work that runs on slow cores.
    pub slow_work: SlowWork,
    /// Cores by number. Where there are none of a class, nobody is bound.
    pub cores: Vec<(u32, CoreClass)>,
}

impl Placement {
    /// Whether there are cores of both classes.
    pub fn is_divided(&self) -> bool {
        let has = |class| self.cores.iter().any(|core| core.1 == class);
        has(CoreClass::Fast) && has(CoreClass::Slow)
    }

    /// The cores that a task runs on; `None`: on any.
    pub fn cores_of(&self, task: Task) -> Option<Vec<u32>> {
        let class = self.slow_work.class(task);
        let cores = self.cores.iter().filter(|core| core.1 == class);
        self.is_divided().then(|| cores.map(|core| core.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_has_a_bit_of_its_own() {
        for duty in Duty::ALL {
            for is_deep in [false, true] {
                let only = Task { duty, is_deep };
                let slow = SlowWork::where_slow(|task| task == only);
                for other in Duty::ALL.into_iter().flat_map(|duty| [false, true].map(|is_deep| Task { duty, is_deep }))
                {
                    assert_eq!(slow.class(other) == CoreClass::Slow, other == only);
                }
            }
        }
    }

    #[test]
    fn nobody_is_bound_where_all_cores_are_of_one_class() {
        let slow_work = SlowWork::where_slow(|task| task.duty == Duty::Gc);
        let mut placement = Placement { slow_work, cores: vec![(0, CoreClass::Fast), (1, CoreClass::Fast)] };
        assert_eq!(placement.cores_of(Duty::Gc.into()), None);
        placement.cores[1].1 = CoreClass::Slow;
        assert_eq!(placement.cores_of(Duty::Gc.into()), Some(vec![1]));
        assert_eq!(placement.cores_of(Duty::Foreground.into()), Some(vec![0]));
    }
}
