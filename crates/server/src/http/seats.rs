//! Who has a connection, and whose is closed when another one comes and there are enough.
//!
//! One that has sent its request soon leaves; one that has not may stay for long and wants nothing yet. So it is the latter that make
//! room, the oldest first, and of the peer that has too many before anybody else's. Who sends a request at once is thus answered at once,
//! however many others keep silent.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Connections at a time: who watches has few.
pub(super) const MAX_CONNECTIONS: usize = 64;

/// Connections of one address at a time.
pub(super) const MAX_OF_ONE_PEER: usize = 16;

/// How far a connection is. Those that stand first make room first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    /// Its request has not come.
    Silent,
    /// It was answered, and is to close.
    Answered,
    /// It is being answered.
    Asked,
}

/// All connections, with what closes each. One thread takes seats.
#[derive(Debug)]
pub(super) struct Seats<C> {
    /// The oldest first.
    taken: Mutex<Vec<Taken<C>>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Taken<C> {
    number: u64,
    peer: IpAddr,
    progress: Progress,
    close: C,
}

/// The place of one connection, free when this goes.
#[derive(Debug)]
pub(super) struct Seat<C> {
    number: u64,
    seats: Arc<Seats<C>>,
}

impl<C> Seats<C> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { taken: Mutex::new(Vec::with_capacity(MAX_CONNECTIONS)), next: AtomicU64::new(0) })
    }

    /// Takes a seat for a connection of `peer`, which `start` begins and says how to close. Gives the one that must be closed for it.
    pub(super) fn take(self: &Arc<Self>, peer: IpAddr, start: impl FnOnce(Seat<C>) -> C) -> Option<C> {
        // An address of version 4 is one and the same on a listener of version 6.
        let peer = peer.to_canonical();
        let leaves = self.make_room(peer);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // Not under the lock: a seat that is given back takes it.
        let close = start(Seat { number, seats: self.clone() });
        self.taken.lock().push(Taken { number, peer, progress: Progress::Silent, close });
        leaves
    }

    fn make_room(&self, peer: IpAddr) -> Option<C> {
        let mut taken = self.taken.lock();
        let of_peer = taken.iter().filter(|other| other.peer == peer).count();
        let leaves = if of_peer >= MAX_OF_ONE_PEER {
            first_to_leave(&taken, |other| other.peer == peer)
        } else if taken.len() >= MAX_CONNECTIONS {
            first_to_leave(&taken, |_| true)
        } else {
            None
        };
        leaves.map(|at| taken.remove(at).close)
    }
}

/// The oldest of the least progress.
fn first_to_leave<C>(taken: &[Taken<C>], may_leave: impl Fn(&Taken<C>) -> bool) -> Option<usize> {
    let candidates = taken.iter().enumerate().filter(|(_, other)| may_leave(other));
    candidates.min_by_key(|(_, other)| other.progress).map(|(at, _)| at)
}

impl<C> Seat<C> {
    /// The connection has come so far.
    pub(super) fn reaches(&self, progress: Progress) {
        // It may have had to make room already.
        if let Some(own) = self.seats.taken.lock().iter_mut().find(|other| other.number == self.number) {
            own.progress = progress;
        }
    }
}

impl<C> Drop for Seat<C> {
    fn drop(&mut self) {
        self.seats.taken.lock().retain(|other| other.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WATCHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn peer(number: usize) -> IpAddr {
        IpAddr::from([10, 0, (number / 250) as u8, (number % 250) as u8])
    }

    /// Takes a seat for connection `number`: the one that is closed for it, and the seat.
    fn take(seats: &Arc<Seats<usize>>, peer: IpAddr, number: usize) -> (Option<usize>, Seat<usize>) {
        let mut seat = None;
        let closed = seats.take(peer, |given| {
            seat = Some(given);
            number
        });
        (closed, seat.unwrap())
    }

    #[test]
    fn the_oldest_that_is_silent_makes_room_and_who_has_asked_stays() {
        let seats = Seats::new();
        let mut held: Vec<_> = (0..MAX_CONNECTIONS).map(|number| take(&seats, peer(number), number)).collect();
        assert!(held.iter().all(|(closed, _)| closed.is_none()));
        held[0].1.reaches(Progress::Asked);
        held[1].1.reaches(Progress::Answered);
        let (closed, new) = take(&seats, WATCHER, 100);
        assert_eq!(closed, Some(2));
        // What it says after that concerns nobody.
        held[2].1.reaches(Progress::Asked);
        let (_, gone) = held.swap_remove(2);
        drop(gone);
        // All others have asked: one that is answered leaves before one that still waits for its answer.
        held.iter().for_each(|(_, seat)| seat.reaches(Progress::Asked));
        new.reaches(Progress::Answered);
        let (closed, _newer) = take(&seats, WATCHER, 101);
        assert_eq!(closed, Some(100));
        assert_eq!(seats.taken.lock().len(), MAX_CONNECTIONS);
    }

    #[test]
    fn a_peer_that_has_too_many_makes_room_for_itself_and_takes_none_from_others() {
        let seats = Seats::new();
        let (_, watcher) = take(&seats, WATCHER, 1000);
        let greedy = peer(1);
        let mut held = Vec::new();
        for number in 0..200 {
            // The same address by version 6.
            let IpAddr::V4(v4) = greedy else { unreachable!() };
            let from = if number % 2 == 0 { greedy } else { v4.to_ipv6_mapped().into() };
            let (closed, seat) = take(&seats, from, number);
            assert_eq!(closed, number.checked_sub(MAX_OF_ONE_PEER));
            held.push(seat);
        }
        assert_eq!(seats.taken.lock().len(), 1 + MAX_OF_ONE_PEER);
        drop(held);
        drop(watcher);
        assert!(seats.taken.lock().is_empty());
    }
}
