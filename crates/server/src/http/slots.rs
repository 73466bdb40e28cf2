//! Bounded slots for connections, and which one is evicted for another that comes when all are
//! taken.
//!
//! A connection that has sent its request soon ends; a silent one may stay for long and wants
//! nothing yet. So the silent are evicted first, the oldest before others, and those of a peer with
//! too many before anybody else's. A request that is sent at once is thus answered at once, however
//! many connections are silent. A semaphore would make it wait for them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Connections at a time: who watches has few.
pub(super) const MAX_CONNECTIONS: usize = 64;

/// Connections of one address at a time.
pub(super) const MAX_OF_ONE_PEER: usize = 16;

/// How far a connection is. The least is evicted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConnectionProgress {
    /// Its request has not come.
    Silent,
    /// It was answered, and is to close.
    Answered,
    /// It is being answered.
    Asked,
}

/// All connections, with what closes each. One thread takes slots.
#[derive(Debug)]
pub(super) struct ConnectionSlots<C> {
    /// The oldest first.
    taken: Mutex<Vec<TakenSlot<C>>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct TakenSlot<C> {
    number: u64,
    peer: IpAddr,
    progress: ConnectionProgress,
    close: C,
}

/// The slot of one connection, free when this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot<C> {
    number: u64,
    slots: Arc<ConnectionSlots<C>>,
}

impl<C> ConnectionSlots<C> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { taken: Mutex::new(Vec::with_capacity(MAX_CONNECTIONS)), next: AtomicU64::new(0) })
    }

    /// Takes a slot for a connection of `peer`, which `start` begins, and gives what closes the one
    /// that is evicted for it.
    pub(super) fn take(self: &Arc<Self>, peer: IpAddr, start: impl FnOnce(ConnectionSlot<C>) -> C) -> Option<C> {
        // An address of version 4 is one and the same on a listener of version 6.
        let peer = peer.to_canonical();
        let evicted = self.evict_for(peer);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // Not under the lock: a slot that is given back takes it.
        let close = start(ConnectionSlot { number, slots: self.clone() });
        self.taken.lock().push(TakenSlot { number, peer, progress: ConnectionProgress::Silent, close });
        evicted
    }

    fn evict_for(&self, peer: IpAddr) -> Option<C> {
        let mut taken = self.taken.lock();
        let of_peer = taken.iter().filter(|other| other.peer == peer).count();
        let evicted = if of_peer >= MAX_OF_ONE_PEER {
            first_to_evict(&taken, |other| other.peer == peer)
        } else if taken.len() >= MAX_CONNECTIONS {
            first_to_evict(&taken, |_| true)
        } else {
            None
        };
        evicted.map(|at| taken.remove(at).close)
    }
}

/// The oldest of the least progress.
fn first_to_evict<C>(taken: &[TakenSlot<C>], may_evict: impl Fn(&TakenSlot<C>) -> bool) -> Option<usize> {
    let candidates = taken.iter().enumerate().filter(|(_, other)| may_evict(other));
    candidates.min_by_key(|(_, other)| other.progress).map(|(at, _)| at)
}

impl<C> ConnectionSlot<C> {
    /// The connection has come so far.
    pub(super) fn reaches(&self, progress: ConnectionProgress) {
        // It may have been evicted already.
        if let Some(own) = self.slots.taken.lock().iter_mut().find(|other| other.number == self.number) {
            own.progress = progress;
        }
    }
}

impl<C> Drop for ConnectionSlot<C> {
    fn drop(&mut self) {
        self.slots.taken.lock().retain(|other| other.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WATCHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn peer(number: usize) -> IpAddr {
        IpAddr::from([10, 0, (number / 250) as u8, (number % 250) as u8])
    }

    /// Takes a slot for connection `number`: the one that is evicted for it, and the slot.
    fn take(
        slots: &Arc<ConnectionSlots<usize>>,
        peer: IpAddr,
        number: usize,
    ) -> (Option<usize>, ConnectionSlot<usize>) {
        let mut slot = None;
        let closed = slots.take(peer, |given| {
            slot = Some(given);
            number
        });
        (closed, slot.unwrap())
    }

    #[test]
    fn the_oldest_silent_connection_is_evicted_and_who_has_asked_stays() {
        let slots = ConnectionSlots::new();
        let mut held: Vec<_> = (0..MAX_CONNECTIONS).map(|number| take(&slots, peer(number), number)).collect();
        assert!(held.iter().all(|(closed, _)| closed.is_none()));
        held[0].1.reaches(ConnectionProgress::Asked);
        held[1].1.reaches(ConnectionProgress::Answered);
        let (closed, new) = take(&slots, WATCHER, 100);
        assert_eq!(closed, Some(2));
        // What it reports after that changes nothing.
        held[2].1.reaches(ConnectionProgress::Asked);
        let (_, gone) = held.swap_remove(2);
        drop(gone);
        // All others have asked: one that is answered is evicted before one that still waits for
        // its answer.
        held.iter().for_each(|(_, slot)| slot.reaches(ConnectionProgress::Asked));
        new.reaches(ConnectionProgress::Answered);
        let (closed, _newer) = take(&slots, WATCHER, 101);
        assert_eq!(closed, Some(100));
        assert_eq!(slots.taken.lock().len(), MAX_CONNECTIONS);
    }

    #[test]
    fn a_peer_with_too_many_evicts_its_own_and_nobody_elses() {
        let slots = ConnectionSlots::new();
        let (_, watcher) = take(&slots, WATCHER, 1000);
        let greedy = peer(1);
        let mut held = Vec::new();
        for number in 0..200 {
            // The same address by version 6.
            let IpAddr::V4(v4) = greedy else { unreachable!() };
            let from = if number % 2 == 0 { greedy } else { v4.to_ipv6_mapped().into() };
            let (closed, slot) = take(&slots, from, number);
            assert_eq!(closed, number.checked_sub(MAX_OF_ONE_PEER));
            held.push(slot);
        }
        assert_eq!(slots.taken.lock().len(), 1 + MAX_OF_ONE_PEER);
        drop(held);
        drop(watcher);
        assert!(slots.taken.lock().is_empty());
    }
}
