//! Handshakes that others have begun here and that are not over.
//!
//! Whoever begins one is a stranger until it is over, and may never go on. So there are few places,
//! and a new handshake is never turned away: where all are taken the oldest one gives up its place,
//! of the network with the most. One that goes on is over long before it is the oldest, so idle
//! strangers keep nobody out, however many they are; and a network that begins few loses none to
//! one that begins many. One network alone may have all places: a whole federation may be behind
//! one address, and come back at once.
//!
//! Threads: any.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Incoming handshakes at a time: one of each server that a federation may have, where all begin at
/// once. One takes about a millisecond of a slow core.
pub const MAX_HANDSHAKES: usize = 256;

/// What one stranger has for itself: an address of IPv4, 64 bits of one of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Network(IpAddr);

impl Network {
    fn of(address: IpAddr) -> Network {
        Network(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            address => address,
        })
    }
}

/// The handshakes by number, in the order in which they began. To drop a sender ends its handshake.
#[derive(Debug, Default)]
struct Table {
    next: u64,
    begun: BTreeMap<u64, (Network, oneshot::Sender<()>)>,
}

impl Table {
    /// The handshake that gives up its place for a new one, if one must.
    fn to_end(&self) -> Option<u64> {
        if self.begun.len() < MAX_HANDSHAKES {
            return None;
        }
        let mut counts: HashMap<Network, usize> = HashMap::new();
        self.begun.values().for_each(|(from, _)| *counts.entry(*from).or_default() += 1);
        // Of networks with as many, that of the oldest one.
        let most = counts.values().max()?;
        self.begun.iter().find(|(_, (from, _))| counts.get(from) == Some(most)).map(|(number, _)| *number)
    }
}

/// Incoming handshakes that are under way.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Arc<Mutex<Table>>);

impl UnderWay {
    /// One begins.
    pub(crate) fn begin(&self, from: IpAddr) -> Place {
        let network = Network::of(from);
        let (goes_on, ended) = oneshot::channel();
        let mut table = self.0.lock();
        if let Some(number) = table.to_end() {
            table.begun.remove(&number);
        }
        let number = table.next;
        table.next += 1;
        table.begun.insert(number, (network, goes_on));
        Place { table: self.0.clone(), number, ended }
    }
}

/// The place of a handshake. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    table: Arc<Mutex<Table>>,
    number: u64,
    ended: oneshot::Receiver<()>,
}

impl Place {
    /// Does what the place is for; `None` if it was given to another one meanwhile.
    pub(crate) async fn hold<W: Future>(&mut self, work: W) -> Option<W::Output> {
        tokio::select! {
            // What is done is done, also where the place is lost at the same time.
            biased;
            done = work => Some(done),
            _ = &mut self.ended => None,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.table.lock().begun.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    fn is_over(place: &mut Place) -> bool {
        place.ended.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn the_oldest_of_a_network_with_too_many_gives_way_and_no_other_does() {
        let under_way = UnderWay::default();
        let mut other = under_way.begin(address(1));
        let mut places: Vec<Place> = (1..MAX_HANDSHAKES).map(|_| under_way.begin(address(2))).collect();
        assert!(!places.iter_mut().any(is_over), "one network alone may have all that are free");
        let mut newest = under_way.begin(address(2));
        let over: Vec<bool> = places.iter_mut().map(is_over).collect();
        assert_eq!(over.iter().position(|over| *over), Some(0));
        assert_eq!(over.iter().filter(|over| **over).count(), 1);
        assert!(!is_over(&mut newest) && !is_over(&mut other));
    }

    #[test]
    fn where_all_places_are_taken_who_has_the_most_loses_one() {
        let under_way = UnderWay::default();
        let mut honest = under_way.begin(address(1));
        let mut strangers: Vec<Place> =
            (1..MAX_HANDSHAKES).map(|number| under_way.begin(address(2 + (number % 8) as u8))).collect();
        for number in 0..10 * MAX_HANDSHAKES {
            let place = under_way.begin(address(2 + (number % 8) as u8));
            assert!(!is_over(&mut honest), "the one handshake of its network was ended");
            strangers.push(place);
            assert!(under_way.0.lock().begun.len() <= MAX_HANDSHAKES);
        }
        strangers.retain_mut(|place| !is_over(place));
        assert_eq!(strangers.len(), MAX_HANDSHAKES - 1);
        drop(strangers);
        assert_eq!(under_way.0.lock().begun.len(), 1, "places are given back");
    }

    #[test]
    fn addresses_of_one_network_count_together() {
        let under_way = UnderWay::default();
        // The older ones are of two networks with fewer each than the one network has.
        let mut older: Vec<Place> = (0..80).map(|number| under_way.begin(address(1 + number % 2))).collect();
        let in_network = |last: u16| IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, last));
        let mut places: Vec<Place> =
            (80..=MAX_HANDSHAKES as u16).map(|last| under_way.begin(in_network(last))).collect();
        assert!(is_over(&mut places[0]) && !older.iter_mut().any(is_over));
        drop(places);
        let mapped = IpAddr::from(Ipv4Addr::new(192, 0, 2, 9).to_ipv6_mapped());
        let addresses = [address(9), mapped].into_iter().cycle();
        let mut places: Vec<Place> =
            addresses.take(MAX_HANDSHAKES + 1 - 80).map(|address| under_way.begin(address)).collect();
        assert!(is_over(&mut places[0]) && !older.iter_mut().any(is_over));
    }
}
