//! Where the other servers listen: those that report, as the coordinator knows them, or the workers that an owner was told of.

use std::collections::HashMap;
use std::time::Instant;

use ecotone_policy::ids::ServerId;

use crate::heard::Room;

#[derive(Debug)]
struct Known {
    address: String,
    /// When it was last told.
    at: Instant,
}

/// Addresses by name. Bounded by [`Room`].
#[derive(Debug, Default)]
pub(crate) struct Addresses(HashMap<ServerId, Known>);

impl Addresses {
    /// Keeps in mind where a server listens; `false`, and nothing kept, when there is no room or no address.
    pub(crate) fn learn(&mut self, server: &ServerId, address: &str, at: Instant, room: Room) -> bool {
        if address.is_empty() {
            return false;
        }
        if let Some(known) = self.0.get_mut(server) {
            known.at = at;
            if known.address != address {
                known.address = address.to_owned();
            }
            return true;
        }
        let has_room = room.make(&mut self.0, at, |known| known.at);
        if has_room {
            self.0.insert(server.clone(), Known { address: address.to_owned(), at });
        }
        has_room
    }

    /// Whether a server listens there.
    pub(crate) fn has(&self, address: &str) -> bool {
        self.0.values().any(|known| known.address == address)
    }

    /// Where it was last told that a server listens.
    pub(crate) fn of(&self, server: &ServerId) -> Option<String> {
        self.0.get(server).map(|known| known.address.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_server_that_was_long_not_told_of_makes_room_and_no_other() {
        let room = Room { max_servers: 2, forget_after: Duration::from_secs(60) };
        let (mut addresses, began) = (Addresses::default(), Instant::now());
        let [one, two, three] = ["one", "two", "three"].map(|name| ServerId::new(name).unwrap());
        let mut learn = |server: &ServerId, address: &str, seconds| {
            let learned = addresses.learn(server, address, began + Duration::from_secs(seconds), room);
            (learned, addresses.of(server))
        };
        assert_eq!(learn(&one, "", 0), (false, None));
        assert_eq!(learn(&one, "a:1", 0), (true, Some("a:1".into())));
        assert_eq!(learn(&two, "b:1", 0), (true, Some("b:1".into())));
        assert_eq!(learn(&one, "a:2", 30), (true, Some("a:2".into())));
        assert_eq!(learn(&three, "c:1", 60), (false, None));
        assert_eq!(learn(&three, "c:1", 61), (true, Some("c:1".into())));
        assert_eq!(addresses.of(&one), Some("a:2".into()));
        assert_eq!(addresses.of(&two), None);
    }
}
