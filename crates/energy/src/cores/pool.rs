//! Which thread is on which core of a server. Pure.
//!
//! Policy: one thread a core while cores are free; when more threads are busy than cores exist,
//! further ones go to the core with the fewest threads and share it, as on a real server; when a
//! core falls free while others are shared, one of those threads moves over. (A real scheduler also
//! rotates unequal shares; over a few seconds the difference is small.)

/// The threads of each core.
#[derive(Debug)]
pub(crate) struct CorePool {
    threads: Vec<Vec<u32>>,
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
        Self { threads: (0..cores.max(1)).map(|_| Vec::new()).collect() }
    }

    /// The core for a thread that becomes busy. `alive` is asked only when no core is free: threads
    /// that ended without leaving are removed then.
    pub(crate) fn enter(&mut self, thread: u32, alive: impl Fn(u32) -> bool) -> usize {
        // A known thread that enters again is a new one under the number of one that ended.
        self.forget(thread);
        let mut core = self.least_crowded();
        if !self.threads[core].is_empty() {
            self.threads.iter_mut().for_each(|on_core| on_core.retain(|&t| alive(t)));
            core = self.least_crowded();
        }
        self.threads[core].push(thread);
        core
    }

    /// Takes a thread off its core; another one may now move there.
    pub(crate) fn leave(&mut self, thread: u32) -> Option<Move> {
        let freed = self.forget(thread)?;
        if !self.threads[freed].is_empty() {
            return None;
        }
        let crowded = (0..self.threads.len()).max_by_key(|&core| self.threads[core].len())?;
        if self.threads[crowded].len() < 2 {
            return None;
        }
        let thread = self.threads[crowded].pop()?;
        self.threads[freed].push(thread);
        Some(Move { thread, core: freed })
    }

    /// Removes a thread and says where it was.
    pub(crate) fn forget(&mut self, thread: u32) -> Option<usize> {
        let core = self.core_of(thread)?;
        self.threads[core].retain(|&t| t != thread);
        Some(core)
    }

    /// The core of a thread.
    pub(crate) fn core_of(&self, thread: u32) -> Option<usize> {
        self.threads.iter().position(|on_core| on_core.contains(&thread))
    }

    /// Number of cores with at least one thread.
    pub(crate) fn busy(&self) -> usize {
        self.threads.iter().filter(|on_core| !on_core.is_empty()).count()
    }

    fn least_crowded(&self) -> usize {
        (0..self.threads.len()).min_by_key(|&core| self.threads[core].len()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn free_cores_first_then_shared_evenly() {
        let mut pool = CorePool::new(2);
        assert_eq!([10, 11, 12, 13, 14].map(|t| pool.enter(t, |_| true)), [0, 1, 0, 1, 0]);
        assert_eq!(pool.busy(), 2);
    }

    #[test]
    fn a_core_that_falls_free_takes_a_thread_that_shares() {
        let mut pool = CorePool::new(2);
        for thread in [10, 11, 12] {
            pool.enter(thread, |_| true);
        }
        assert_eq!(pool.leave(11), Some(Move { thread: 12, core: 1 }));
        assert_eq!(pool.leave(12), None);
        assert_eq!(pool.leave(99), None);
        assert_eq!(pool.core_of(10), Some(0));
    }

    #[test]
    fn threads_that_died_make_room_when_it_is_needed() {
        let mut pool = CorePool::new(1);
        pool.enter(10, |_| true);
        assert_eq!(pool.enter(11, |thread| thread != 10), 0);
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
                        pool.enter(thread, |_| true);
                    }
                } else {
                    busy.remove(&thread);
                    pool.leave(thread);
                }
                let placed: Vec<u32> = pool.threads.iter().flatten().copied().collect();
                prop_assert_eq!(placed.len(), busy.len());
                prop_assert!(busy.iter().all(|t| placed.contains(t)));
                let sizes: Vec<usize> = pool.threads.iter().map(Vec::len).collect();
                if sizes.contains(&0) {
                    prop_assert!(sizes.iter().all(|&n| n < 2), "{:?}", sizes);
                }
            }
        }
    }
}
