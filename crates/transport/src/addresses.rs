//! Where the other servers listen: those that report, as the coordinator knows them, or the workers
//! that an owner was given.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ecotone_types::ServerId;

/// How many servers are kept in memory, and for how long: as in the policy's server table.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// Servers beside this one.
    pub max_servers: usize,
    /// Silence after which a server gives up its entry to another one.
    pub forget_after: Duration,
}

impl Retention {
    /// Whether `servers` may take one more. Only a full table is searched for those that have long
    /// been silent.
    pub fn admits_another<T>(
        self,
        servers: &mut HashMap<ServerId, T>,
        now: Instant,
        last_report: impl Fn(&T) -> Instant,
    ) -> bool {
        if servers.len() >= self.max_servers {
            servers.retain(|_, server| now.saturating_duration_since(last_report(server)) <= self.forget_after);
        }
        servers.len() < self.max_servers
    }
}

#[derive(Debug)]
struct Entry {
    address: String,
    /// When it was last reported.
    at: Instant,
}

/// Addresses by name. Bounded by [`Retention`].
#[derive(Debug, Default)]
pub struct Addresses(HashMap<ServerId, Entry>);

impl Addresses {
    /// Keeps where a server listens; `false`, and nothing kept, when the table is full or there is
    /// no address.
    pub fn learn(&mut self, server: &ServerId, address: &str, at: Instant, retention: Retention) -> bool {
        if address.is_empty() {
            return false;
        }
        if let Some(entry) = self.0.get_mut(server) {
            entry.at = at;
            if entry.address != address {
                entry.address = address.to_owned();
            }
            return true;
        }
        let is_admitted = retention.admits_another(&mut self.0, at, |entry| entry.at);
        if is_admitted {
            self.0.insert(server.clone(), Entry { address: address.to_owned(), at });
        }
        is_admitted
    }

    /// Whether a server listens there.
    pub fn has(&self, address: &str) -> bool {
        self.0.values().any(|entry| entry.address == address)
    }

    /// Where a server listens, as last reported.
    pub fn of(&self, server: &ServerId) -> Option<String> {
        self.0.get(server).map(|entry| entry.address.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_was_silent_for_long_gives_up_its_entry_and_no_other() {
        let retention = Retention { max_servers: 2, forget_after: Duration::from_secs(60) };
        let (mut addresses, began) = (Addresses::default(), Instant::now());
        let [one, two, three] = ["one", "two", "three"].map(|name| ServerId::new(name).unwrap());
        let mut learn = |server: &ServerId, address: &str, seconds| {
            let learned = addresses.learn(server, address, began + Duration::from_secs(seconds), retention);
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
