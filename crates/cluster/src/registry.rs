//! The coordinator's registry of servers: where each listens, which of its starts reports, and its
//! last finished job.
//!
//! A name belongs to one server. Two that share it would mix their loads, their models and their
//! jobs, so the second is refused while the first reports. A server that was restarted is
//! recognised by its address, and one that moved may take its name again when its old self has been
//! silent for long enough to be out of use. Where two share the address as well, the one that came
//! later is taken for a restart, and the other, which goes on to speak, for what it is.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use ecotone_transport::addresses::Retention;
use ecotone_types::ServerId;

use crate::activity::ReceivedReport;
use crate::error::{Error, Result};

/// Former sessions of a server that are remembered. Those that still speak are forgotten last, and
/// so many servers of one name nobody starts at once.
const MAX_FORMER_SESSIONS: usize = 16;

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
    /// The same start as before.
    Continued,
    New,
    /// The same server, started anew: its jobs are numbered from 1 again.
    Restarted,
    /// Under another address, after its silence.
    Moved,
}

#[derive(Debug)]
struct Server {
    address: String,
    session: u64,
    /// Sessions that had the name before this one, the one that reported last at the end.
    former: VecDeque<u64>,
    /// Number, in this session, of the last finished job.
    last_job: u64,
    at: Instant,
    /// What its last report said, where it was taken.
    report: Option<ReceivedReport>,
}

impl Server {
    fn new(Arrival { address, session, at }: Arrival<'_>) -> Server {
        Server { address: address.to_owned(), session, former: VecDeque::new(), last_job: 0, at, report: None }
    }

    /// A session that has lost the name still speaks, or has just lost it.
    fn remember_former(&mut self, session: u64) {
        self.former.retain(|former| *former != session);
        if self.former.len() >= MAX_FORMER_SESSIONS {
            self.former.pop_front();
        }
        self.former.push_back(session);
    }
}

/// The servers by name. Bounded by [`Retention`].
#[derive(Debug, Default)]
pub(crate) struct Registry(HashMap<ServerId, Server>);

impl Registry {
    /// A report has come.
    ///
    /// # Errors
    /// [`Error::Configuration`] if the name is that of another server that reported within
    /// `silence`; [`Error::FederationFull`] if the federation is full. Then nothing of the report
    /// counts.
    pub(crate) fn arrive(
        &mut self,
        name: &ServerId,
        arrival: Arrival<'_>,
        silence: Duration,
        retention: Retention,
    ) -> Result<Standing> {
        let Arrival { address, session, at } = arrival;
        let Some(server) = self.0.get_mut(name) else {
            if !retention.admits_another(&mut self.0, at, |server| server.at) {
                return Err(Error::FederationFull(format!(
                    "the server {name} at {address} is one too many: its coordinator takes {} servers beside itself \
                     (max_servers); stop one of them, whose entry is free after {:.0} s, or start a second federation",
                    retention.max_servers,
                    retention.forget_after.as_secs_f64(),
                )));
            }
            self.0.insert(name.clone(), Server::new(arrival));
            return Ok(Standing::New);
        };
        let is_here = server.address == address;
        let is_former = is_here && server.former.contains(&session);
        let quiet = at.saturating_duration_since(server.at);
        if (!is_here || is_former) && quiet <= silence {
            let (quiet, silence) = (quiet.as_secs_f64(), silence.as_secs_f64());
            if !is_former {
                return Err(Error::Configuration(format!(
                    "the name {name} belongs to the server at {}, which last reported {quiet:.1} s ago; give the one at {address} a \
                     name of its own (--name), or stop the other and wait {silence:.1} s",
                    server.address,
                )));
            }
            server.remember_former(session);
            return Err(Error::Configuration(format!(
                "the name {name} and the address {address} belong to a server that was started later and last reported \
                 {quiet:.1} s ago; give each of the two a name (--name) and an address (--listen) of its own, or stop the other and \
                 wait {silence:.1} s"
            )));
        }
        server.at = at;
        if is_here && server.session == session {
            return Ok(Standing::Continued);
        }
        server.remember_former(server.session);
        server.former.retain(|former| *former != session);
        *server = Server { former: std::mem::take(&mut server.former), ..Server::new(arrival) };
        Ok(if is_here { Standing::Restarted } else { Standing::Moved })
    }

    /// Whether this session of the server is the one whose reports are taken.
    pub(crate) fn is_accepted(&self, name: &ServerId, session: u64) -> bool {
        self.0.get(name).is_some_and(|server| server.session == session)
    }

    /// What the present session of the server has reported of itself.
    pub(crate) fn note(&mut self, name: &ServerId, session: u64, report: ReceivedReport) {
        if let Some(server) = self.0.get_mut(name).filter(|server| session == server.session) {
            server.report = Some(report);
        }
    }

    /// Every server, in no order: its name, its address, when its last report came, and what that
    /// said.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&ServerId, &str, Instant, Option<&ReceivedReport>)> {
        self.0.iter().map(|(name, server)| (name, server.address.as_str(), server.at, server.report.as_ref()))
    }

    /// Whether a finished job of the server's present session was not reported yet; from now on it
    /// was. `false` for another session, and for servers of which nothing is kept.
    pub(crate) fn is_news(&mut self, name: &ServerId, session: u64, number: u64) -> bool {
        let Some(server) = self.0.get_mut(name).filter(|server| session == server.session && number > server.last_job)
        else {
            return false;
        };
        server.last_job = number;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(3);
    const RETENTION: Retention = Retention { max_servers: 2, forget_after: Duration::from_secs(60) };

    /// The answer to a server called `name` that reports from `address` in `session`, `seconds`
    /// after the first.
    fn report(
        registry: &mut Registry,
        began: Instant,
        name: &str,
        from: (&str, u64),
        seconds: f64,
    ) -> Result<Standing> {
        let at = began + Duration::from_secs_f64(seconds);
        registry.arrive(
            &ServerId::new(name).unwrap(),
            Arrival { address: from.0, session: from.1, at },
            SILENCE,
            RETENTION,
        )
    }

    #[test]
    fn a_name_belongs_to_one_server_until_it_is_silent() {
        let (mut registry, began) = (Registry::default(), Instant::now());
        let mut edge = |from, seconds| report(&mut registry, began, "edge", from, seconds);
        assert_eq!(edge(("a:1", 10), 0.0).unwrap(), Standing::New);
        assert_eq!(edge(("a:1", 10), 1.0).unwrap(), Standing::Continued);
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
        let (mut registry, began) = (Registry::default(), Instant::now());
        let name = ServerId::new("edge").unwrap();
        report(&mut registry, began, "edge", ("a:1", 10), 0.0).unwrap();
        assert!(
            registry.is_news(&name, 10, 1)
                && registry.is_news(&name, 10, 2)
                && !registry.is_news(&name, 10, 2)
                && !registry.is_news(&name, 10, 1)
        );
        assert_eq!(report(&mut registry, began, "edge", ("a:1", 11), 0.1).unwrap(), Standing::Restarted);
        // What the former one had still to report is not counted as the new one's.
        assert!(!registry.is_news(&name, 10, 7));
        assert!(registry.is_news(&name, 11, 1) && !registry.is_news(&name, 11, 1));
    }

    #[test]
    fn of_two_servers_with_one_name_and_one_address_the_later_one_stays() {
        let (mut registry, began) = (Registry::default(), Instant::now());
        let name = ServerId::new("edge").unwrap();
        let (first, second) = (("a:1", 10), ("a:1", 20));
        assert_eq!(report(&mut registry, began, "edge", first, 0.0).unwrap(), Standing::New);
        assert_eq!(report(&mut registry, began, "edge", second, 0.5).unwrap(), Standing::Restarted);
        // They go on to take turns.
        for turn in 1..50 {
            let seconds = f64::from(turn);
            let refused = report(&mut registry, began, "edge", first, seconds).unwrap_err();
            assert!(matches!(refused, Error::Configuration(_)), "{refused}");
            for said in ["edge", "a:1", "0.5 s ago", "--name", "--listen"] {
                assert!(refused.to_string().contains(said), "{said}: {refused}");
            }
            assert!(!registry.is_accepted(&name, 10) && registry.is_accepted(&name, 20));
            assert_eq!(report(&mut registry, began, "edge", second, seconds + 0.5).unwrap(), Standing::Continued);
        }
        // The later one is stopped.
        assert!(report(&mut registry, began, "edge", first, 52.5).is_err());
        assert_eq!(report(&mut registry, began, "edge", first, 52.6).unwrap(), Standing::Restarted);
        assert!(report(&mut registry, began, "edge", second, 52.7).is_err());
    }

    #[test]
    fn a_former_server_that_still_speaks_stays_refused_over_many_restarts() {
        let (mut registry, began) = (Registry::default(), Instant::now());
        report(&mut registry, began, "edge", ("a:1", 0), 0.0).unwrap();
        for session in 1..10 * MAX_FORMER_SESSIONS as u64 {
            assert_eq!(report(&mut registry, began, "edge", ("a:1", session), 1.0).unwrap(), Standing::Restarted);
            assert!(report(&mut registry, began, "edge", ("a:1", 0), 1.0).is_err(), "after {session} restarts");
        }
        assert!(registry.0.values().all(|server| server.former.len() <= MAX_FORMER_SESSIONS));
    }

    #[test]
    fn a_full_federation_keeps_nothing_of_another_server_until_one_was_silent_for_long() {
        let (mut registry, began) = (Registry::default(), Instant::now());
        for name in ["one", "two"] {
            report(&mut registry, began, name, (name, 1), 0.0).unwrap();
        }
        let three = ServerId::new("three").unwrap();
        let refused = report(&mut registry, began, "three", ("three", 1), 0.0).unwrap_err();
        assert!(matches!(refused, Error::FederationFull(_)), "{refused}");
        for said in ["three", "2 servers", "max_servers", "60 s"] {
            assert!(refused.to_string().contains(said), "{said}: {refused}");
        }
        assert!(!registry.is_news(&three, 1, 1) && !registry.is_accepted(&three, 1));
        assert_eq!(report(&mut registry, began, "one", ("one", 1), 30.0).unwrap(), Standing::Continued);
        assert!(report(&mut registry, began, "three", ("three", 1), 60.0).is_err());
        assert_eq!(report(&mut registry, began, "three", ("three", 1), 60.1).unwrap(), Standing::New);
        // It is the silent one that was forgotten.
        assert_eq!(report(&mut registry, began, "one", ("one", 1), 60.2).unwrap(), Standing::Continued);
        assert!(report(&mut registry, began, "two", ("two", 1), 60.3).is_err());
    }
}
