//! How a change is asked for: at this server's node where it leads, else at the leader, until
//! somebody decides.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ecotone_control::entry::{Entry, Proposal};
use ecotone_control::ids::MemberId;
use ecotone_control::machine::Outcome;
use ecotone_control::node::NotProposed;
use ecotone_transport::protocol::failed_call;
use ecotone_transport::wire::control_client::ControlClient;
use ecotone_transport::wire::{ProposeReply, ProposeRequest};

use crate::driver::UNANSWERED;
use crate::error::{Error, Result};
use crate::shared::Shared;

/// How long it is tried to have a change decided: longer than an election.
pub(crate) const MAX_PROPOSAL_TIME: Duration = Duration::from_secs(10);
/// Longest wait for one server's answer.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(3);
/// Between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// What became of a change that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    /// Where it is in the log.
    pub index: u64,
    /// What became of it.
    pub decision: Decision,
}

/// What became of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The map has changed.
    Changed,
    /// It was so already.
    Unchanged,
    /// A server has joined, now or before, under this number.
    Joined(MemberId),
    /// The shard is in another epoch: look again.
    Outdated,
}

/// The names of decisions between servers.
const CHANGED: &str = "changed";
const UNCHANGED: &str = "unchanged";
const JOINED: &str = "joined";
const OUTDATED: &str = "outdated";
const REFUSED: &str = "refused";

/// What is added where an answer was lost.
const MAY_BE_DECIDED: &str = "it may have been decided all the same: look before you ask again";

/// What an attempt came to.
enum Attempt {
    Decided(Decided),
    Refused(String),
    /// It may be decided elsewhere, or later.
    Not {
        leader_address: String,
        why: String,
        /// Somebody was asked, and has not answered.
        is_open: bool,
    },
}

impl Shared {
    /// Has a change decided.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::NotDecided`] if nobody has decided in time.
    pub(crate) async fn propose(&self, entry: Entry) -> Result<Decided> {
        let until = Instant::now() + MAX_PROPOSAL_TIME;
        // Where the leader is said to be, by those who were asked; and whom to ask where it is not known.
        let (mut said, mut next_hint) = (String::new(), 0);
        let mut may_be_decided = false;
        loop {
            let known = self.known();
            if known.is_removed() {
                return Err(Error::Refused("this server was removed from the federation".into()));
            }
            let proposal = Proposal { by: self.member, entry: entry.clone() };
            let attempt = if known.leads() {
                self.attempt_here(proposal).await
            } else {
                let leader = known.leader.and_then(|leader| known.map.server(leader));
                let address = match leader.map(|leader| leader.addresses.peers.clone()) {
                    Some(address) => address,
                    None if !said.is_empty() => std::mem::take(&mut said),
                    None => {
                        let hints = self.hints(&known.map);
                        next_hint += 1;
                        hints.get(next_hint % hints.len().max(1)).cloned().unwrap_or_default()
                    }
                };
                // One that stands still, or hears nobody, does not answer; another that leads will. Both
                // may decide it: a change can be applied twice.
                let (asked, mut following) = (known.leader, self.following());
                let another_leads =
                    async { following.wait_for(|now| now.leader.is_some() && now.leader != asked).await.is_ok() };
                tokio::select! {
                    attempt = self.attempt_at(&address, &proposal) => attempt,
                    true = another_leads, if Instant::now() < until => continue,
                }
            };
            let why = match attempt {
                Attempt::Decided(decided) => {
                    self.wait_until_applied(decided.index, until).await;
                    return Ok(decided);
                }
                Attempt::Refused(why) => return Err(Error::Refused(why)),
                Attempt::Not { leader_address, why, is_open } => {
                    said = leader_address;
                    may_be_decided |= is_open;
                    why
                }
            };
            let is_alone = known.stopped.is_some() && self.hints(&known.map).is_empty();
            if is_alone || Instant::now() >= until {
                let why = match &known.stopped {
                    Some(stopped) => format!("{}; {why}", NotProposed::Stopped(stopped.clone())),
                    None => why,
                };
                let is_said = !may_be_decided || why.contains(MAY_BE_DECIDED);
                return Err(Error::NotDecided(if is_said { why } else { format!("{why}; {MAY_BE_DECIDED}") }));
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Servers that may know who leads.
    pub(crate) fn hints(&self, map: &ecotone_control::map::Map) -> Vec<String> {
        let others = map.members().filter(|(member, _)| *member != self.member);
        let addresses = others.map(|(_, server)| server.addresses.peers.clone()).filter(|address| !address.is_empty());
        self.join.iter().cloned().chain(addresses).collect()
    }

    /// What follows needs the map as the change left it.
    async fn wait_until_applied(&self, index: u64, until: Instant) {
        let mut following = self.following();
        let applied = following.wait_for(|known| known.applied >= index || known.stopped.is_some());
        let _ = tokio::time::timeout(until.saturating_duration_since(Instant::now()), applied).await;
    }

    async fn attempt_here(&self, proposal: Proposal) -> Attempt {
        match tokio::time::timeout(MAX_ANSWER_TIME, self.propose_here(proposal)).await {
            Ok(reply) => attempt(reply),
            Err(_) => Attempt::Not { leader_address: String::new(), why: "no decision in time".into(), is_open: true },
        }
    }

    async fn attempt_at(&self, address: &str, proposal: &Proposal) -> Attempt {
        let not = |why: String, is_open| Attempt::Not { leader_address: String::new(), why, is_open };
        if address.is_empty() {
            return not("it is not known who leads".into(), false);
        }
        let is_sent = AtomicBool::new(false);
        let asked = async {
            let channel = self.connections.to(address, None).await.map_err(|error| error.to_string())?;
            let request = ProposeRequest { proposal: proposal.encode() };
            is_sent.store(true, Ordering::Relaxed);
            let reply = ControlClient::new(channel).propose(request).await;
            reply.map_err(|status| failed_call(address, &status).to_string())
        };
        match tokio::time::timeout(MAX_ANSWER_TIME, asked).await {
            Ok(Ok(reply)) => attempt(reply.into_inner()),
            Ok(Err(why)) => {
                self.connections.forget(address);
                not(why, is_sent.load(Ordering::Relaxed))
            }
            Err(_) => {
                self.connections.forget(address);
                not(format!("no answer from {address} in time"), is_sent.load(Ordering::Relaxed))
            }
        }
    }

    /// Asks this server's node, and says what came of it as others are told.
    pub(crate) async fn propose_here(&self, proposal: Proposal) -> ProposeReply {
        let answer = match self.driver() {
            Some(driver) => driver.propose(proposal).await,
            None => Err(NotProposed::Busy),
        };
        let (index, outcome) = match answer {
            Ok(decided) => decided,
            Err(
                why @ (NotProposed::StillVotes(_)
                | NotProposed::Leads(_)
                | NotProposed::LeavesNoMajority(_)
                | NotProposed::Invalid(_)),
            ) => {
                return ProposeReply { outcome: REFUSED.into(), detail: why.to_string(), ..ProposeReply::default() };
            }
            Err(why) => return ProposeReply { leader_address: self.leader_address(), ..not_decided(&why) },
        };
        let named = |outcome: &str| ProposeReply { outcome: outcome.into(), index, ..ProposeReply::default() };
        match outcome {
            Outcome::Changed => named(CHANGED),
            Outcome::Unchanged => named(UNCHANGED),
            Outcome::Joined(member) => ProposeReply { number: member.0, ..named(JOINED) },
            Outcome::Outdated { .. } => named(OUTDATED),
            Outcome::Refused(why) => ProposeReply { detail: why.to_string(), ..named(REFUSED) },
        }
    }

    /// Where the leader is, as far as this server knows.
    pub(crate) fn leader_address(&self) -> String {
        let known = self.known();
        let leader = known.leader.and_then(|leader| known.map.server(leader));
        leader.map(|leader| leader.addresses.peers.clone()).unwrap_or_default()
    }
}

/// The answer where the map says at once that nothing would come of it.
pub(crate) fn outdated(applied: u64) -> ProposeReply {
    ProposeReply { outcome: OUTDATED.into(), index: applied, ..ProposeReply::default() }
}

fn not_decided(why: &NotProposed) -> ProposeReply {
    // Others may have it already.
    let is_open = matches!(why, NotProposed::Stopped(why) if why == UNANSWERED);
    let detail = if is_open { format!("{why}; {MAY_BE_DECIDED}") } else { why.to_string() };
    ProposeReply { detail, ..ProposeReply::default() }
}

/// Reads an answer. What is not known there was not decided.
fn attempt(reply: ProposeReply) -> Attempt {
    let decided = |decision| Attempt::Decided(Decided { index: reply.index, decision });
    match reply.outcome.as_str() {
        CHANGED => decided(Decision::Changed),
        UNCHANGED => decided(Decision::Unchanged),
        JOINED => decided(Decision::Joined(MemberId(reply.number))),
        OUTDATED => decided(Decision::Outdated),
        REFUSED => Attempt::Refused(reply.detail),
        _ => {
            let is_open = reply.detail.contains(MAY_BE_DECIDED);
            Attempt::Not { leader_address: reply.leader_address, why: reply.detail, is_open }
        }
    }
}
