//! Which thread is on which core of a server. Pure.
//!
//! Policy: one thread a core while cores are free; when more threads are busy than cores exist,
//! further ones go to the core with the fewest threads and share it, as on a real server; when a
//! core falls free while others are shared, one of those threads moves over. (A real scheduler also
//! rotates unequal shares; over a few seconds the difference is small.)
//!
//! Where cores have classes all of that holds among the cores of a class: a thread is never on a
//! core of another one.

use ecotone_types::{CoreClass, Task};

use crate::placement::{Placement, SlowWork};

/// The threads of each core.
#[derive(Debug)]
pub(crate) struct CorePool {
    threads: Vec<Vec<(u32, Task)>>,
    /// The class of each core; none: they have none.
    classes: Option<(Vec<CoreClass>, SlowWork)>,
}

/// A thread goes to a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) thread: u32,
    pub(crate) core: usize,
}

impl CorePool {
    /// A pool of at least one core.
    pub(crate) fn new(cores: u32) -> Self {
        Self { threads: (0..cores.max(1)).map(|_| Vec::new()).collect(), classes: None }
    }

    /// The core for a thread that becomes busy. `alive` is asked only when no core is free: threads
    /// that ended without leaving are removed then.
    pub(crate) fn enter(&mut self, thread: u32, task: Task, alive: impl Fn(u32) -> bool) -> usize {
        // A known thread that enters again is a new one under the number of one that ended.
        self.forget(thread);
        let mut core = self.least_crowded(task);
        if !self.threads[core].is_empty() {
            self.threads.iter_mut().for_each(|on_core| on_core.retain(|of| alive(of.0)));
            core = self.least_crowded(task);
        }
        self.threads[core].push((thread, task));
        core
    }

    /// Takes a thread off its core; another one may now move there.
    pub(crate) fn leave(&mut self, thread: u32) -> Option<Move> {
        let freed = self.forget(thread)?;
        if !self.threads[freed].is_empty() {
            return None;
        }
        let of_class = |core: &usize| self.threads[*core].iter().any(|of| self.may_be_on(freed, of.1));
        let crowded = (0..self.threads.len()).filter(of_class).max_by_key(|&core| self.threads[core].len())?;
        if self.threads[crowded].len() < 2 {
            return None;
        }
        let (thread, task) = self.threads[crowded].pop()?;
        self.threads[freed].push((thread, task));
        Some(Move { thread, core: freed })
    }

    /// Cores have these classes from now on. Gives the threads that go to another core.
    pub(crate) fn place(&mut self, placement: &Placement) -> Vec<Move> {
        let class_of = |core: usize| {
            let known = placement.cores.iter().find(|known| known.0 as usize == core);
            known.map_or(CoreClass::Fast, |known| known.1)
        };
        let classes: Vec<CoreClass> = (0..self.threads.len()).map(class_of).collect();
        let has = |class| classes.contains(&class);
        let is_divided = has(CoreClass::Fast) && has(CoreClass::Slow);
        self.classes = is_divided.then_some((classes, placement.slow_work));
        let empty = vec![Vec::new(); self.threads.len()];
        let before = std::mem::replace(&mut self.threads, empty);
        let mut homeless = Vec::new();
        // One of each core stays, if it may.
        for (core, threads) in before.into_iter().enumerate() {
            for (thread, task) in threads {
                if self.threads[core].is_empty() && self.may_be_on(core, task) {
                    self.threads[core].push((thread, task));
                } else {
                    homeless.push((thread, task, core));
                }
            }
        }
        let mut moves = Vec::new();
        for (thread, task, was) in homeless {
            let core = self.least_crowded(task);
            self.threads[core].push((thread, task));
            if core != was {
                moves.push(Move { thread, core });
            }
        }
        moves
    }

    /// Removes a thread and says where it was.
    pub(crate) fn forget(&mut self, thread: u32) -> Option<usize> {
        let core = self.core_of(thread)?;
        self.threads[core].retain(|of| of.0 != thread);
        Some(core)
    }

    /// The core of a thread.
    pub(crate) fn core_of(&self, thread: u32) -> Option<usize> {
        self.threads.iter().position(|on_core| on_core.iter().any(|of| of.0 == thread))
    }

    /// Number of cores with at least one thread.
    pub(crate) fn busy(&self) -> usize {
        self.threads.iter().filter(|on_core| !on_core.is_empty()).count()
    }

    fn may_be_on(&self, core: usize, task: Task) -> bool {
        self.classes.as_ref().is_none_or(|(classes, slow)| classes[core] == slow.class(task))
    }

    fn least_crowded(&self, task: Task) -> usize {
        let may = (0..self.threads.len()).filter(|core| self.may_be_on(*core, task));
        may.min_by_key(|&core| self.threads[core].len()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ecotone_types::Duty;
    use proptest::prelude::*;

    const FOREGROUND: Task = Task { duty: Duty::Foreground, is_deep: false };
    const GC: Task = Task { duty: Duty::Gc, is_deep: false };

    #[test]
    fn free_cores_first_then_shared_evenly() {
        let mut pool = CorePool::new(2);
        assert_eq!([10, 11, 12, 13, 14].map(|t| pool.enter(t, FOREGROUND, |_| true)), [0, 1, 0, 1, 0]);
        assert_eq!(pool.busy(), 2);
    }

    #[test]
    fn a_core_that_falls_free_takes_a_thread_that_shares() {
        let mut pool = CorePool::new(2);
        for thread in [10, 11, 12] {
            pool.enter(thread, FOREGROUND, |_| true);
        }
        assert_eq!(pool.leave(11), Some(Move { thread: 12, core: 1 }));
        assert_eq!(pool.leave(12), None);
        assert_eq!(pool.leave(99), None);
        assert_eq!(pool.core_of(10), Some(0));
    }

    #[test]
    fn threads_that_died_make_room_when_it_is_needed() {
        let mut pool = CorePool::new(1);
        pool.enter(10, FOREGROUND, |_| true);
        assert_eq!(pool.enter(11, FOREGROUND, |thread| thread != 10), 0);
        assert_eq!(pool.core_of(10), None);
    }

    proptest! {
        #[test]
        fn every_busy_thread_has_one_core_and_no_core_idles_beside_a_crowd(
            cores in 1u32..5,
            steps in proptest::collection::vec((0u32..12, any::<bool>()), 0..100)
        ) {
            let mut pool = CorePool::new(cores);
            let mut busy = std::collections::BTreeSet::new();
            for (thread, enters) in steps {
                if enters {
                    // In life a thread enters only when it is not on a core.
                    if busy.insert(thread) {
                        pool.enter(thread, FOREGROUND, |_| true);
                    }
                } else {
                    busy.remove(&thread);
                    pool.leave(thread);
                }
                let placed: Vec<u32> = pool.threads.iter().flatten().map(|of| of.0).collect();
                prop_assert_eq!(placed.len(), busy.len());
                prop_assert!(busy.iter().all(|t| placed.contains(t)));
                let sizes: Vec<usize> = pool.threads.iter().map(Vec::len).collect();
                if sizes.contains(&0) {
                    prop_assert!(sizes.iter().all(|&n| n < 2), "{:?}", sizes);
                }
            }
        }

        /// However tasks come and go and classes change: a thread is on a core of its class, and
        /// what is said to move is all that moves.
        #[test]
        fn a_thread_is_on_a_core_of_its_class(
            cores in 1u32..6,
            steps in proptest::collection::vec((0u32..12, 0u8..3, any::<bool>(), any::<u8>()), 0..100)
        ) {
            let mut pool = CorePool::new(cores);
            let mut books = std::collections::BTreeMap::new();
            let mut placement = Placement::default();
            for (thread, act, is_slow, mask) in steps {
                match act {
                    0 => {
                        let task = if is_slow { GC } else { FOREGROUND };
                        books.insert(thread, (pool.enter(thread, task, |_| true), task));
                    }
                    1 => {
                        books.remove(&thread);
                        if let Some(moved) = pool.leave(thread) {
                            books.get_mut(&moved.thread).unwrap().0 = moved.core;
                        }
                    }
                    _ => {
                        let class = |core: u32| match mask >> core & 1 { 0 => CoreClass::Fast, _ => CoreClass::Slow };
                        placement = Placement {
                            slow_work: SlowWork::where_slow(|task| task == GC),
                            cores: (0..cores).map(|core| (core, class(core))).collect(),
                        };
                        for moved in pool.place(&placement) {
                            books.get_mut(&moved.thread).unwrap().0 = moved.core;
                        }
                    }
                }
                for (thread, (core, task)) in &books {
                    prop_assert_eq!(pool.core_of(*thread), Some(*core));
                    let allowed = placement.cores_of(*task);
                    prop_assert!(allowed.is_none_or(|allowed| allowed.contains(&(*core as u32))));
                }
                prop_assert_eq!(pool.threads.iter().map(Vec::len).sum::<usize>(), books.len());
            }
        }
    }
}
