//! The memory that clients take, all together: what their connections keep, and what their commands
//! collect, build and write meanwhile.
//!
//! Whoever is about to take more asks [`Memory`] first, so that the sum stays below its limit
//! however many do so at the same time, and gives back what it no longer has. A command that gets
//! no more is refused, and nothing of it is done.
//!
//! Bounds: [`Memory::limit_to`]; beyond it each command has [`SMALL_BYTES`] and what its own
//! arguments take, which were counted when they came. What stands behind a [`MemoryReservation`] or
//! in a group is counted, the bytes of one value that is read are not.
//!
//! Threads: any.

use std::ops::{ControlFlow, Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Failure, Outcome, texts};

/// What one client may keep, and one command take, in any case, whatever others do: requests and
/// replies of the usual kind.
pub const SMALL_BYTES: usize = 128 * 1024;

/// A command that takes more goes on where waiting is allowed: to move the bytes alone takes longer
/// than other clients of a thread should wait. A value of half of it is written twice, into the
/// group and into its batch.
pub const MAX_NONBLOCKING_BYTES: usize = 2 * 1024 * 1024;

/// What an allocation takes besides its bytes, about.
const ALLOCATION_BYTES: usize = 16;

/// What all clients together have, and may have.
#[derive(Debug)]
pub struct Memory {
    taken_bytes: Arc<AtomicUsize>,
    max_bytes: AtomicUsize,
}

impl Default for Memory {
    fn default() -> Self {
        Self { taken_bytes: Arc::default(), max_bytes: AtomicUsize::new(usize::MAX) }
    }
}

impl Memory {
    /// What is taken, in bytes.
    pub fn taken_bytes(&self) -> &Arc<AtomicUsize> {
        &self.taken_bytes
    }

    /// From now on no more than `max_bytes` are given.
    pub fn limit_to(&self, max_bytes: usize) {
        self.max_bytes.store(max_bytes, Ordering::Relaxed);
    }

    /// Takes `bytes` more, if they are there.
    pub fn take(&self, bytes: usize) -> bool {
        let max_bytes = self.max_bytes.load(Ordering::Relaxed);
        let more = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= max_bytes);
        self.taken_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Gives `bytes` back that were taken.
    pub fn give_back(&self, bytes: usize) {
        self.taken_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Memory for what one command collects before it replies or writes. It is given back with this.
#[derive(Debug)]
pub struct MemoryReservation<'m> {
    memory: &'m Memory,
    may_take_long: bool,
    taken_bytes: usize,
    charged_bytes: usize,
    refusal: Option<Failure>,
}

impl<'m> MemoryReservation<'m> {
    /// None is taken yet. `may_take_long`: also more than should be moved while other clients wait
    /// for the thread.
    pub fn new(memory: &'m Memory, may_take_long: bool) -> Self {
        Self { memory, may_take_long, taken_bytes: 0, charged_bytes: 0, refusal: None }
    }

    /// Takes `bytes` more.
    ///
    /// # Errors
    ///
    /// [`Failure::WouldBlock`]; [`texts::SHORT_OF_MEMORY`].
    pub fn take(&mut self, bytes: usize) -> Outcome {
        let taken_bytes = self.taken_bytes.saturating_add(bytes);
        if taken_bytes > MAX_NONBLOCKING_BYTES && !self.may_take_long {
            return Err(Failure::WouldBlock);
        }
        let to_charge = taken_bytes.saturating_sub(SMALL_BYTES).saturating_sub(self.charged_bytes);
        if to_charge > 0 && !self.memory.take(to_charge) {
            return Err(texts::SHORT_OF_MEMORY);
        }
        self.charged_bytes += to_charge;
        self.taken_bytes = taken_bytes;
        Ok(())
    }

    /// The same within a visit, which ends where there is no more; [`check`](Self::check) tells.
    pub fn take_or_break(&mut self, bytes: usize) -> ControlFlow<()> {
        match self.take(bytes) {
            Ok(()) => ControlFlow::Continue(()),
            Err(refusal) => {
                self.refusal = Some(refusal);
                ControlFlow::Break(())
            }
        }
    }

    /// Fails if anything was refused so far.
    ///
    /// # Errors
    ///
    /// Those of [`take`](Self::take).
    pub fn check(&mut self) -> Outcome {
        self.refusal.take().map_or(Ok(()), Err)
    }
}

impl Drop for MemoryReservation<'_> {
    fn drop(&mut self) {
        if self.charged_bytes > 0 {
            self.memory.give_back(self.charged_bytes);
        }
    }
}

/// What a command has collected, as far as there is memory for it.
#[derive(Debug)]
pub struct BoundedVec<'m, T> {
    items: Vec<T>,
    reservation: MemoryReservation<'m>,
}

impl<'m, T> BoundedVec<'m, T> {
    /// Nothing yet.
    pub fn new(reservation: MemoryReservation<'m>) -> Self {
        Self { items: Vec::new(), reservation }
    }

    /// Keeps what `make` gives, which has `bytes` of its own. Breaks where there is no memory for
    /// it.
    pub fn add(&mut self, bytes: usize, make: impl FnOnce() -> T) -> ControlFlow<()> {
        // What the items lie in grows by doubling.
        self.reservation.take_or_break(2 * size_of::<T>() + ALLOCATION_BYTES + bytes)?;
        self.items.push(make());
        ControlFlow::Continue(())
    }

    /// Forgets those from `length` on.
    pub fn truncate(&mut self, length: usize) {
        self.items.truncate(length);
    }

    /// All that was offered.
    ///
    /// # Errors
    ///
    /// There was no memory for some of it.
    pub fn whole(mut self) -> Outcome<Self> {
        self.reservation.check()?;
        Ok(self)
    }

    /// Why something was not kept, if so.
    pub fn refusal(&mut self) -> Option<Failure> {
        self.reservation.refusal.take()
    }
}

impl<T> Deref for BoundedVec<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T> DerefMut for BoundedVec<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(max_bytes: usize) -> Arc<Memory> {
        let memory = Arc::new(Memory::default());
        memory.limit_to(max_bytes);
        memory
    }

    #[test]
    fn rooms_share_what_there_is_and_give_it_back() {
        let memory = limited(1 << 20);
        let mut one = MemoryReservation::new(&memory, true);
        one.take(SMALL_BYTES + (600 << 10)).unwrap();
        let mut other = MemoryReservation::new(&memory, true);
        other.take(SMALL_BYTES).unwrap();
        assert!(matches!(other.take(500 << 10), Err(Failure::Refused(_))));
        // What was refused is not taken.
        other.take(400 << 10).unwrap();
        drop(one);
        other.take(600 << 10).unwrap();
        drop(other);
        assert_eq!(memory.taken_bytes().load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_is_collected_is_whole_or_refused() {
        let memory = limited(1 << 20);
        let mut collected = BoundedVec::new(MemoryReservation::new(&memory, true));
        let all = (0..2000).try_for_each(|_| collected.add(1000, || vec![0_u8; 1000]));
        assert!(all.is_break() && collected.len() > 900 && collected.len() < 1300, "{}", collected.len());
        assert!(matches!(collected.whole(), Err(Failure::Refused(_))));
        let mut on_event_loop = BoundedVec::new(MemoryReservation::new(&memory, false));
        assert!(on_event_loop.add(MAX_NONBLOCKING_BYTES, || ()).is_break());
        assert!(matches!(on_event_loop.whole(), Err(Failure::WouldBlock)));
        assert_eq!(memory.taken_bytes().load(Ordering::Relaxed), 0);
    }
}
