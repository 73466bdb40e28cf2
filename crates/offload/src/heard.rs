//! What the coordinator has heard of each server: where it listens, which of its starts speaks, and its last finished job.
//!
//! A name belongs to one server. Two that share it would mix their loads, their models and their jobs, so the second is
//! refused while the first is heard of. A server that was restarted is known by its address, and one that moved may take its
//! name again when its old self has been silent for long enough to be out of use.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ecotone_policy::ids::ServerId;

use crate::error::{Error, Result};

/// Where a report comes from, and when it came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival<'a> {
    pub(crate) address: &'a str,
    /// Drawn at each start of the sender.
    pub(crate) session: u64,
    pub(crate) at: Instant,
}

/// What a report says of its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Known,
    New,
    /// The same server, started anew: its jobs are numbered from 1 again.
    Restarted,
    /// Under another address, after its silence.
    Moved,
    /// The federation is full; nothing of this server is kept.
    NoRoom,
}

#[derive(Debug)]
struct Server {
    address: String,
    session: u64,
    /// Number, in this session, of the last finished job.
    last_job: u64,
    at: Instant,
}

/// The servers by name. Bounded by the servers that a federation may have.
#[derive(Debug, Default)]
pub(crate) struct Heard(HashMap<ServerId, Server>);

impl Heard {
    /// A report has come.
    ///
    /// # Errors
    /// [`Error::Configuration`] if the name is that of another server, heard of within `silence`.
    pub(crate) fn arrive(
        &mut self,
        name: &ServerId,
        arrival: Arrival<'_>,
        silence: Duration,
        max_servers: usize,
    ) -> Result<Standing> {
        let Arrival { address, session, at } = arrival;
        let Some(known) = self.0.get_mut(name) else {
            if self.0.len() >= max_servers {
                return Ok(Standing::NoRoom);
            }
            self.0.insert(name.clone(), Server { address: address.to_owned(), session, last_job: 0, at });
            return Ok(Standing::New);
        };
        let is_here = known.address == address;
        let quiet = at.saturating_duration_since(known.at);
        if !is_here && quiet <= silence {
            return Err(Error::Configuration(format!(
                "the name {name} belongs to the server at {}, heard of {:.1} s ago; give the one at {address} a name of \
                 its own (--name), or stop the other and wait {:.1} s",
                known.address,
                quiet.as_secs_f64(),
                silence.as_secs_f64(),
            )));
        }
        known.at = at;
        if is_here && known.session == session {
            return Ok(Standing::Known);
        }
        *known = Server { address: address.to_owned(), session, last_job: 0, at };
        Ok(if is_here { Standing::Restarted } else { Standing::Moved })
    }

    /// Whether a finished job of the server's present session has not been heard of yet; from now on it has. `false` for
    /// servers of which nothing is kept.
    pub(crate) fn is_news(&mut self, name: &ServerId, number: u64) -> bool {
        let Some(server) = self.0.get_mut(name).filter(|server| number > server.last_job) else { return false };
        server.last_job = number;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(3);

    /// What a server called `name` is told that reports from `address` in `session`, `seconds` after the first.
    fn told(heard: &mut Heard, began: Instant, name: &str, from: (&str, u64), seconds: f64) -> Result<Standing> {
        let at = began + Duration::from_secs_f64(seconds);
        heard.arrive(&ServerId::new(name).unwrap(), Arrival { address: from.0, session: from.1, at }, SILENCE, 2)
    }

    #[test]
    fn a_name_belongs_to_one_server_until_it_is_silent() {
        let (mut heard, began) = (Heard::default(), Instant::now());
        let mut edge = |from, seconds| told(&mut heard, began, "edge", from, seconds);
        assert_eq!(edge(("a:1", 10), 0.0).unwrap(), Standing::New);
        assert_eq!(edge(("a:1", 10), 1.0).unwrap(), Standing::Known);
        let refused = edge(("b:1", 20), 2.0).unwrap_err();
        assert!(matches!(refused, Error::Configuration(_)), "{refused}");
        for said in ["edge", "a:1", "b:1", "1.0 s ago", "--name"] {
            assert!(refused.to_string().contains(said), "{said}: {refused}");
        }
        // That the second asks again and again keeps nothing alive, and takes nothing.
        assert!(edge(("b:1", 20), 4.0).is_err());
        assert_eq!(edge(("b:1", 20), 4.1).unwrap(), Standing::Moved);
        assert!(edge(("a:1", 10), 4.2).is_err());
    }

    #[test]
    fn a_restarted_server_begins_its_numbers_anew() {
        let (mut heard, began) = (Heard::default(), Instant::now());
        let name = ServerId::new("edge").unwrap();
        told(&mut heard, began, "edge", ("a:1", 10), 0.0).unwrap();
        assert!(
            heard.is_news(&name, 1) && heard.is_news(&name, 2) && !heard.is_news(&name, 2) && !heard.is_news(&name, 1)
        );
        assert_eq!(told(&mut heard, began, "edge", ("a:1", 11), 0.1).unwrap(), Standing::Restarted);
        assert!(heard.is_news(&name, 1) && !heard.is_news(&name, 1));
    }

    #[test]
    fn a_full_federation_keeps_nothing_of_another_server() {
        let (mut heard, began) = (Heard::default(), Instant::now());
        for name in ["one", "two"] {
            told(&mut heard, began, name, (name, 1), 0.0).unwrap();
        }
        assert_eq!(told(&mut heard, began, "three", ("three", 1), 0.0).unwrap(), Standing::NoRoom);
        assert!(!heard.is_news(&ServerId::new("three").unwrap(), 1));
        assert_eq!(told(&mut heard, began, "one", ("one", 1), 0.0).unwrap(), Standing::Known);
    }
}
