//! What a member of the federation may say to others, and what is refused: each message here comes
//! over a connection of its sender, as its certificate says.

use std::collections::BTreeSet;

use ecotone_control::Snapshot;
use ecotone_control::entry::{Entry, Proposal};
use ecotone_control::ids::{DirectoryId, HistoryId, KeyHash, MemberId, TokenId};
use ecotone_control::log::{File, Identity, Log, begin_generation, create, open};
use ecotone_control::machine::Outcome;
use ecotone_control::node::{
    Command, Event, MAX_ELECTION_TICKS, MAX_GENERATION_STEP, Node, NotProposed, may_be_message,
};
use ecotone_control::recover;

use super::log_files::{IDENTITY, Memory};
use super::{found, server};

const APPEND: u8 = 0;
const APPEND_RESPONSE: u8 = 1;
const REQUEST_VOTE: u8 = 2;
const HEARTBEAT: u8 = 5;
const TIMEOUT_NOW: u8 = 7;

/// A server that runs, and what it has said.
struct Host {
    node: Node,
    log: Log<Memory>,
    said: Vec<(MemberId, Vec<u8>)>,
    answers: Vec<(u64, Result<Outcome, NotProposed>)>,
    begins: Option<Command>,
}

impl Host {
    fn of(log: Log<Memory>, content: ecotone_control::log::Content) -> Host {
        let node = Node::new(content, 7).unwrap();
        Host { node, log, said: Vec::new(), answers: Vec::new(), begins: None }
    }

    fn joined(member: u64) -> Host {
        let directory = DirectoryId([member as u8; 16]);
        let identity = Identity { member: MemberId(member), directory, history: HistoryId::UNKNOWN, ..IDENTITY };
        let (log, content) = create(Memory::default(), identity, Snapshot::default()).unwrap();
        Host::of(log, content)
    }

    fn handle(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut commands = Vec::new();
            self.node.handle(event, &mut commands).unwrap();
            for command in commands {
                match command {
                    Command::Persist { number, records } => {
                        self.log.persist(&records).unwrap();
                        events.push(Event::Persisted(number));
                    }
                    Command::Compact(records) => self.log.persist(&records).unwrap(),
                    Command::Send { to, bytes } => self.said.push((to, bytes)),
                    Command::Decided { id, outcome, .. } => self.answers.push((id, Ok(outcome))),
                    Command::NotProposed { id, why } => self.answers.push((id, Err(why))),
                    Command::NewGeneration { .. } => self.begins = Some(command),
                    _ => {}
                }
            }
        }
    }

    fn receive(&mut self, from: u64, bytes: Vec<u8>) {
        self.handle(Event::Receive { from: MemberId(from), bytes });
    }

    /// Whether this is refused, and nothing comes of it.
    fn refuses(&mut self, from: u64, bytes: Vec<u8>) -> bool {
        let before = (self.node.refused_messages(), self.node.term(), self.node.leader(), self.said.len());
        self.receive(from, bytes);
        let after = (self.node.refused_messages(), self.node.term(), self.node.leader(), self.said.len());
        self.begins.is_none() && after == (before.0 + 1, before.1, before.2, before.3)
    }

    fn forge(&self, from: u64, kind: u8) -> Forged {
        let Identity { generation, history, .. } = IDENTITY;
        Forged {
            generation,
            history,
            kind,
            to: self.node.member().0,
            from,
            term: self.node.term(),
            index: 0,
            commit: 0,
        }
    }
}

/// A message as bytes, whatever it says.
#[derive(Clone, Copy)]
struct Forged {
    generation: u64,
    history: HistoryId,
    kind: u8,
    to: u64,
    from: u64,
    term: u64,
    index: u64,
    commit: u64,
}

impl Forged {
    fn bytes(self) -> Vec<u8> {
        let number = |mut number: u64, bytes: &mut Vec<u8>| {
            while number >= 0x80 {
                bytes.push(number as u8 | 0x80);
                number >>= 7;
            }
            bytes.push(number as u8);
        };
        let mut bytes = vec![1];
        number(self.generation, &mut bytes);
        bytes.extend(self.history.0);
        bytes.push(self.kind);
        for field in [self.to, self.from, self.term, 0, self.index, self.commit, 0, 0] {
            number(field, &mut bytes);
        }
        // Not rejected, no hint, priority, context, entries, snapshot.
        bytes.extend([0; 6]);
        bytes
    }
}

/// Lets time pass for all of them, and delivers what they say to each other.
fn pass(hosts: &mut [Host], ticks: usize) {
    for _ in 0..ticks {
        for host in hosts.iter_mut() {
            host.handle(Event::Tick);
        }
        for _ in 0..20 {
            let said: Vec<(u64, MemberId, Vec<u8>)> = hosts
                .iter_mut()
                .flat_map(|host| {
                    let from = host.node.member().0;
                    host.said.drain(..).map(move |(to, bytes)| (from, to, bytes)).collect::<Vec<_>>()
                })
                .collect();
            for (from, to, bytes) in said {
                if let Some(host) = hosts.iter_mut().find(|host| host.node.member() == to) {
                    host.receive(from, bytes);
                }
            }
        }
    }
}

fn ask(host: &mut Host, entry: Entry) -> Result<Outcome, NotProposed> {
    let id = host.answers.len() as u64 + 1_000;
    host.handle(Event::Propose { id, proposal: Proposal { by: host.node.member(), entry } });
    host.answers.last().filter(|(of, _)| *of == id).map_or(Err(NotProposed::Superseded), |(_, answer)| answer.clone())
}

/// So many servers: with one or two the first votes, with three all do.
fn federation(count: u64) -> Vec<Host> {
    let (log, content) = create(Memory::default(), IDENTITY, recover::found(IDENTITY.federation)).unwrap();
    let mut hosts = vec![Host::of(log, content)];
    pass(&mut hosts, 50);
    hosts[0].handle(Event::Propose { id: 1, proposal: found() });
    for number in 2..=count {
        let new = server(number as u8);
        let (token, key) = (TokenId([number as u8; 16]), KeyHash([0; 32]));
        let join = Entry::Join { token, token_expires_s: 9, key, server: new.clone() };
        let leads = hosts.iter_mut().find(|host| host.node.leads()).unwrap();
        leads.handle(Event::Propose { id: 2, proposal: Proposal { by: MemberId(1), entry: join } });
        hosts.push(Host::joined(number));
        pass(&mut hosts, 50);
        let announce = Entry::Announce {
            member: MemberId(number),
            directory: new.directory,
            addresses: new.addresses,
            zone: new.zone,
            features: new.features,
        };
        let leads = hosts.iter_mut().find(|host| host.node.leads()).unwrap();
        leads.handle(Event::Propose { id: 3, proposal: Proposal { by: MemberId(number), entry: announce } });
        pass(&mut hosts, 50);
    }
    pass(&mut hosts, 200);
    let voters = if count < 3 { 1 } else { count as usize };
    for host in &hosts {
        assert_eq!(host.node.voters().len(), voters, "{}", host.node.member());
        assert_eq!(host.node.map(), hosts[0].node.map());
    }
    hosts
}

#[test]
fn a_generation_that_somebody_makes_up_ends_nothing() {
    let mut hosts = federation(2);
    let [a, b] = &mut hosts[..] else { panic!() };
    for generation in [1 << 62, u64::MAX, 2 + MAX_GENERATION_STEP] {
        for kind in [APPEND, APPEND_RESPONSE, REQUEST_VOTE, HEARTBEAT, TIMEOUT_NOW] {
            assert!(a.refuses(2, Forged { generation, ..a.forge(2, kind) }.bytes()), "{generation}, kind {kind}");
            assert!(b.refuses(1, Forged { generation, ..b.forge(1, kind) }.bytes()), "{generation}, kind {kind}");
        }
    }
    // One that may be: it is asked for what it has, and only that counts.
    let next = Forged { generation: 2, history: HistoryId([5; 8]), ..a.forge(2, HEARTBEAT) };
    for kind in [APPEND_RESPONSE, REQUEST_VOTE, TIMEOUT_NOW] {
        assert!(a.refuses(2, Forged { kind, ..next }.bytes()), "kind {kind} is not a leader's");
    }
    assert!(a.refuses(2, Forged { from: 1, ..next }.bytes()), "it is not from whom it says");
    assert!(a.refuses(2, Forged { to: 2, ..next }.bytes()), "it is for another server");
    let term = a.node.term();
    a.receive(2, next.bytes());
    assert!(a.begins.is_none() && a.node.leads() && a.node.term() == term);
    assert_eq!(a.said.len(), 1);
    // Nor does one that was removed begin anything.
    assert_eq!(ask(a, Entry::Remove { member: MemberId(2), force: true }), Ok(Outcome::Changed));
    a.said.clear();
    assert!(a.refuses(2, next.bytes()));
}

#[test]
fn what_would_make_raft_panic_is_refused() {
    let mut hosts = federation(3);
    let at = hosts.iter().position(|host| !host.node.leads()).unwrap();
    let leads = hosts.iter().find(|host| host.node.leads()).unwrap().node.member().0;
    let other = 6 - leads - hosts[at].node.member().0;
    let follower = &mut hosts[at];
    let heartbeat = follower.forge(leads, HEARTBEAT);
    assert!(follower.refuses(leads, Forged { commit: 1 << 40, ..heartbeat }.bytes()));
    assert!(follower.refuses(other, Forged { commit: 1 << 40, term: 99, from: other, ..heartbeat }.bytes()));
    assert!(follower.refuses(leads, Forged { term: 0, ..heartbeat }.bytes()));
    for kind in [APPEND, APPEND_RESPONSE, REQUEST_VOTE, HEARTBEAT] {
        let term = u64::MAX - 1;
        assert!(follower.refuses(leads, Forged { kind, term, ..heartbeat }.bytes()), "kind {kind} of a last term");
    }
    // Answers to a leader, of entries that nobody has.
    let leader = hosts.iter_mut().find(|host| host.node.leads()).unwrap();
    assert!(leader.refuses(other, Forged { index: 1 << 40, ..leader.forge(other, APPEND_RESPONSE) }.bytes()));
    pass(&mut hosts, 40);
    assert!(hosts.iter().all(|host| host.node.leader() == Some(MemberId(leads))));
}

#[test]
fn only_a_voter_leads() {
    let mut hosts = federation(2);
    let [a, b] = &mut hosts[..] else { panic!() };
    for kind in [APPEND, HEARTBEAT, TIMEOUT_NOW] {
        let forged = Forged { term: a.node.term() + 1, ..a.forge(2, kind) };
        assert!(a.refuses(2, forged.bytes()), "kind {kind} of a learner");
        let forged = Forged { term: b.node.term() + 1, ..b.forge(3, kind) };
        assert!(b.refuses(3, forged.bytes()), "kind {kind} of somebody that is not known");
    }
    assert!(a.node.leads());
}

#[test]
fn a_server_that_was_off_while_all_voters_changed_learns_from_the_new_ones() {
    let mut hosts = federation(3);
    // One that knows the first server as the only voter.
    let (log, content) = create(
        Memory::default(),
        Identity { member: MemberId(4), directory: DirectoryId([4; 16]), ..IDENTITY },
        recover::found(IDENTITY.federation),
    )
    .unwrap();
    let late = Host::of(log, content);
    assert_eq!(late.node.voters(), BTreeSet::from([MemberId(1)]));
    let leads = |hosts: &[Host]| hosts.iter().position(|host| host.node.leads()).unwrap();
    let first = hosts.iter().position(|host| host.node.member() == MemberId(1)).unwrap();
    // Another one leads.
    let gone = hosts.remove(first);
    pass(&mut hosts, 200);
    hosts.push(gone);
    pass(&mut hosts, 100);
    let at = leads(&hosts);
    assert_ne!(hosts[at].node.member(), MemberId(1));
    let new = server(4);
    let join = Entry::Join { token: TokenId([4; 16]), token_expires_s: 9, key: KeyHash([0; 32]), server: new };
    hosts[at].handle(Event::Propose { id: 4, proposal: Proposal { by: MemberId(2), entry: join } });
    hosts.push(late);
    pass(&mut hosts, 400);
    let at = leads(&hosts);
    let late = hosts.iter().find(|host| host.node.member() == MemberId(4)).unwrap();
    assert_eq!(late.node.map(), hosts[at].node.map());
    assert_eq!(late.node.voters().len(), 3);
}

/// Begins anew with what this one knows.
fn force_new(host: Host, history: HistoryId) -> Host {
    let (log, content) = open(host.log.into_storage()).unwrap().unwrap();
    let (map, last) = recover::replay(&content).unwrap();
    let snapshot = recover::force_new(&map, last, &content, history).unwrap();
    let identity = recover::identity(&content.identity, &snapshot).unwrap();
    let (log, content) = begin_generation(log.into_storage(), identity, snapshot).unwrap();
    Host::of(log, content)
}

#[test]
fn a_new_generation_is_taken_when_its_snapshot_is_there_and_not_before() {
    let mut hosts = federation(2);
    let b = hosts.remove(1);
    let a = force_new(hosts.remove(0), HistoryId([5; 8]));
    let files = b.log.into_storage().files;
    let (log, content) = open(Memory { files: files.clone(), ..Memory::default() }).unwrap().unwrap();
    let mut hosts = vec![a, Host::of(log, content)];
    for _ in 0..400 {
        pass(&mut hosts, 1);
        if hosts[1].begins.is_some() {
            break;
        }
        assert_eq!(hosts[1].node.map().generation, 1);
    }
    let b = hosts.remove(1);
    let Some(Command::NewGeneration { identity, snapshot, from, bytes }) = b.begins else { panic!("none came") };
    assert_eq!((identity.generation, identity.history, from), (2, HistoryId([5; 8]), MemberId(1)));
    let storage = b.log.into_storage();
    assert_eq!(storage.files[&File::Snapshot], files[&File::Snapshot], "nothing is given up yet");
    let (log, content) = begin_generation(storage, identity, *snapshot).unwrap();
    let mut b = Host::of(log, content);
    b.receive(from.0, bytes);
    assert_eq!(b.said.len(), 1, "the leader is answered");
    hosts.push(b);
    pass(&mut hosts, 20);
    assert_eq!(ask(&mut hosts[0], Entry::Set { name: "a".into(), value: Some("b".into()) }), Ok(Outcome::Changed));
    pass(&mut hosts, 20);
    assert_eq!(hosts[1].node.map(), hosts[0].node.map());
    // What there was can be gone back to, and what is there can be opened.
    let storage = hosts.remove(1).log.into_storage();
    assert_eq!(storage.aside, Some((1, files[&File::Snapshot].clone())));
    assert_eq!(open(storage).unwrap().unwrap().1.identity, identity);
}

#[test]
fn two_that_begin_anew_each_by_itself_do_not_become_one() {
    let mut hosts = federation(2);
    let b = force_new(hosts.remove(1), HistoryId([6; 8]));
    let a = force_new(hosts.remove(0), HistoryId([5; 8]));
    let mut hosts = vec![a, b];
    pass(&mut hosts, 400);
    for (host, other) in hosts.iter().zip([2, 1]) {
        assert!(host.node.leads(), "it goes on alone, and the other is refused");
        assert_eq!(host.node.other_history(), Some(MemberId(other)));
        assert!(host.node.refused_messages() > 0 && host.begins.is_none());
    }
    assert_ne!(hosts[0].node.map().history, hosts[1].node.map().history);
}

#[test]
fn a_removal_that_would_leave_no_majority_is_refused_also_by_force() {
    let remove = |member: u64| Entry::Remove { member: MemberId(member), force: true };
    // The leader of two, who is the only voter.
    let mut hosts = federation(2);
    assert_eq!(ask(&mut hosts[0], remove(1)), Err(NotProposed::Leads(MemberId(1))));
    assert_eq!(ask(&mut hosts[0], remove(2)), Ok(Outcome::Changed));

    let mut hosts = federation(3);
    let leads = hosts.iter().position(|host| host.node.leads()).unwrap();
    hosts.swap(0, leads);
    let [leader, b, c] = [0, 1, 2].map(|at: usize| hosts[at].node.member().0);
    assert_eq!(ask(&mut hosts[0], remove(leader)), Err(NotProposed::Leads(MemberId(leader))));
    // Of three one is off: another one must stay.
    let mut off = hosts.remove(2);
    pass(&mut hosts, 120);
    assert_eq!(ask(&mut hosts[0], remove(b)), Err(NotProposed::LeavesNoMajority(MemberId(b))));
    off.said.clear();
    hosts.push(off);
    pass(&mut hosts, 200);
    // All are there: one may go, and the next when the first has lost its vote.
    assert_eq!(ask(&mut hosts[0], remove(b)), Err(NotProposed::Superseded), "it is proposed, and not decided yet");
    assert_eq!(ask(&mut hosts[0], remove(c)), Err(NotProposed::Busy));
    pass(&mut hosts, 5);
    assert!(hosts[0].node.map().is_removed(MemberId(b)));
    pass(&mut hosts, 200);
    assert!(!hosts[0].node.voters().contains(&MemberId(b)));
    ask(&mut hosts[0], Entry::Set { name: "a".into(), value: Some("b".into()) }).ok();
    pass(&mut hosts, 20);
    assert_eq!(hosts[0].node.map().settings.len(), 1, "it is still decided");
}

#[test]
fn one_that_learns_forgets_a_leader_that_is_silent() {
    let mut hosts = federation(2);
    assert_eq!(hosts[1].node.leader(), Some(MemberId(1)));
    for _ in 0..=MAX_ELECTION_TICKS {
        hosts[1].handle(Event::Tick);
    }
    assert_eq!(hosts[1].node.leader(), None);
    pass(&mut hosts, 20);
    assert_eq!(hosts[1].node.leader(), Some(MemberId(1)));
}

#[test]
fn only_snapshots_are_large() {
    let hosts = federation(2);
    let mut bytes = hosts[0].forge(2, APPEND).bytes();
    assert!(may_be_message(&bytes));
    bytes.resize(1 << 20, 0);
    assert!(!may_be_message(&bytes));
    let mut bytes = hosts[0].forge(2, 4).bytes();
    bytes.resize(1 << 20, 0);
    assert!(may_be_message(&bytes));
    bytes.resize(64 << 20, 0);
    assert!(!may_be_message(&bytes));
}
