//! A client of the cluster that writes one key after the other, and finds who takes writes now.

use std::time::Duration;

use ecotone_bench::target::resp::{Bounds, Client, Limits, Reply};

use super::super::servers::{Server, open};

/// Until it asks again, where it was refused.
const RETRY: Duration = Duration::from_millis(5);
const VALUE: [u8; 1000] = [b'v'; 1000];
/// A server that was killed refuses at once; one that waits for copies answers within 5 s.
const LIMITS: Limits = Limits {
    connect_timeout: Duration::from_millis(500),
    silence_timeout: Duration::from_secs(6),
    reply_timeout: None,
    reply_bounds: Bounds { bytes: 1 << 20, elements: 1 << 10 },
};

pub(super) struct ClusterClient {
    addresses: Vec<String>,
    password: Option<&'static str>,
    /// Which of them is asked.
    at: usize,
    connection: Option<Client>,
    written: u64,
}

impl ClusterClient {
    pub(super) fn of(servers: &[Server], password: Option<&'static str>) -> Self {
        let addresses = servers.iter().map(|server| server.clients().to_owned()).collect();
        ClusterClient { addresses, password, at: 0, connection: None, written: 0 }
    }

    /// Tries one write; whether it was acknowledged. Where it was not, the next one goes where the
    /// server said, else to the next server.
    pub(super) fn write(&mut self) -> bool {
        let reply = self.try_write();
        let moved = match &reply {
            Some(Reply::Status(said)) if said == "OK" => return true,
            Some(Reply::Error(said)) => self.moved_to(said),
            _ => {
                self.connection = None;
                None
            }
        };
        if moved.is_none() {
            std::thread::sleep(RETRY);
        }
        let next = moved.unwrap_or((self.at + 1) % self.addresses.len());
        if next != self.at {
            (self.at, self.connection) = (next, None);
        }
        false
    }

    fn try_write(&mut self) -> Option<Reply> {
        if self.connection.is_none() {
            self.connection = open(&self.addresses[self.at], self.password, LIMITS).ok();
        }
        let key = format!("client:{}", self.written % 1000);
        self.written += 1;
        self.connection.as_mut()?.ask(&[b"SET", key.as_bytes(), &VALUE]).ok()
    }

    /// Which server an error names, if it is one of those and not the one that was asked.
    fn moved_to(&self, said: &str) -> Option<usize> {
        let address = said.strip_prefix("MOVED ")?.split(' ').nth(1)?;
        self.addresses.iter().position(|known| known == address).filter(|to| *to != self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_is_followed_to_a_server_that_is_known() {
        let addresses = vec!["127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned()];
        let client = ClusterClient { addresses, password: None, at: 0, connection: None, written: 0 };
        assert_eq!(client.moved_to("MOVED 3999 127.0.0.1:2"), Some(1));
        for nowhere in ["MOVED 3999 127.0.0.1:1", "MOVED 3999 127.0.0.1:3", "CLUSTERDOWN no primary", "MOVED 1"] {
            assert_eq!(client.moved_to(nowhere), None, "{nowhere}");
        }
    }
}
