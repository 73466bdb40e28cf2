//! The two servers that are compared.

use std::collections::BTreeSet;
use std::fmt;

use ecotone_keyspace::{Blocking, Slot, Tag, Type, WriteGroup};
use ecotone_resp::command::table;
use ecotone_resp::protocol::reply::Version;

use crate::common::redis::{RedisClient, elements, text};
use crate::common::{Fixture, TestClient};
use crate::generate::{Compare, Random, Request, shown};

/// The collections that `PLANT` plants: type, and the command with what follows the key.
const PLANTS: &[(&str, Type, &str, &[&str])] = &[
    ("hash", Type::Hash, "HSET", &["field", "value"]),
    ("list", Type::List, "RPUSH", &["element"]),
    ("set", Type::Set, "SADD", &["member"]),
    ("zset", Type::SortedSet, "ZADD", &["1", "member"]),
];

/// One of the two.
pub trait Side {
    /// Removes all keys. What follows goes as it did after the last time.
    fn restart(&mut self);

    /// The bytes of the reply to one request of one of the clients.
    fn send(&mut self, client: usize, arguments: &[&[u8]]) -> Vec<u8>;

    /// Puts a small collection under `key`, which holds nothing.
    fn plant(&mut self, of: Type, key: &[u8], command: &[&[u8]]);
}

/// Clients of each side.
pub const CLIENTS: usize = 2;

/// What each client sends before it begins anew.
const BEGINS: [&[u8]; 2] = [b"DISCARD", b"UNWATCH"];

/// This server, commands committed in groups of up to `most`.
pub struct Here<'f> {
    clients: [TestClient<'f>; CLIENTS],
    group: WriteGroup,
    seed: u64,
    random: Random,
    most: u64,
}

impl<'f> Here<'f> {
    pub fn new(fixture: &'f Fixture, version: Version, seed: u64, most: u64) -> Self {
        let clients = std::array::from_fn(|_| {
            let mut client = fixture.client();
            client.speak(version);
            client
        });
        Self {
            clients,
            group: WriteGroup::new(fixture.service.keyspace.clone()),
            seed,
            random: Random::new(seed),
            most,
        }
    }

    fn commit_now_and_then(&mut self) {
        if self.random.below(self.most) == 0 {
            self.group.commit(Blocking::Allowed).unwrap();
        }
    }
}

impl Side for Here<'_> {
    fn restart(&mut self) {
        for client in &mut self.clients {
            BEGINS.iter().for_each(|command| _ = client.send_in(&mut self.group, &[command]));
        }
        self.clients[0].send_in(&mut self.group, &[b"FLUSHALL"]);
        self.group.commit(Blocking::Allowed).unwrap();
        self.random = Random::new(self.seed);
    }

    fn send(&mut self, client: usize, arguments: &[&[u8]]) -> Vec<u8> {
        let reply = self.clients[client].send_in(&mut self.group, arguments);
        self.commit_now_and_then();
        reply
    }

    fn plant(&mut self, of: Type, key: &[u8], command: &[&[u8]]) {
        if table::find(command[0]).is_some() {
            self.send(0, command);
            return;
        }
        // No command does it yet.
        assert!(self.group.hold(&[Slot::of(key)], Blocking::Never));
        self.group.keys(Blocking::Allowed).set(key, Tag::small(of), None, b"planted").unwrap();
        self.group.keep();
        self.commit_now_and_then();
    }
}

/// A Redis server.
pub struct There([RedisClient; CLIENTS]);

impl There {
    pub fn new(clients: [RedisClient; CLIENTS]) -> Self {
        Self(clients)
    }
}

impl Side for There {
    fn restart(&mut self) {
        for client in &mut self.0 {
            BEGINS.iter().for_each(|command| _ = client.send(&[command]));
        }
        self.send(0, &[b"FLUSHALL"]);
    }

    fn send(&mut self, client: usize, arguments: &[&[u8]]) -> Vec<u8> {
        self.0[client].send(arguments)
    }

    fn plant(&mut self, _: Type, _: &[u8], command: &[&[u8]]) {
        self.send(0, command);
    }
}

/// The first request whose replies differ.
pub struct Difference {
    pub at: usize,
    ours: String,
    others: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "here:  {}\nthere: {}", self.ours, self.others)
    }
}

/// Restarts both and sends them `requests`.
pub fn first_difference(requests: &[Request], ours: &mut dyn Side, other: &mut dyn Side) -> Option<Difference> {
    ours.restart();
    other.restart();
    let mut queued = Queued::default();
    requests.iter().enumerate().find_map(|(at, request)| {
        let arguments: Vec<&[u8]> = request.arguments.iter().map(Vec::as_slice).collect();
        let (ours, others) = match request.compare {
            // It is several commands, and those would be queued.
            Compare::Plant | Compare::PopOne if queued.0.iter().any(Option::is_some) => return None,
            Compare::Plant => {
                plant(&arguments, ours);
                plant(&arguments, other);
                return None;
            }
            Compare::PopOne => both(ours, other, |side| {
                side.send(request.client, &[b"DEL", arguments[1]]);
                side.send(request.client, &[b"SADD", arguments[1], b"member"]);
                side.send(request.client, &arguments)
            }),
            Compare::WholeScan { cursor } => both(ours, other, |side| whole_scan(request, &arguments, cursor, 1, side)),
            Compare::WholeScanOfPairs { cursor } => {
                both(ours, other, |side| whole_scan(request, &arguments, cursor, 2, side))
            }
            _ => both(ours, other, |side| side.send(request.client, &arguments)),
        };
        let differs = !queued.is_same(request, &ours, &others);
        differs.then(|| Difference { at, ours: shown(&ours), others: shown(&others) })
    })
}

fn plant(arguments: &[&[u8]], side: &mut dyn Side) {
    let [_, name, key] = arguments else { panic!("PLANT type key") };
    let (_, of, command, rest) = PLANTS.iter().find(|(known, ..)| known.as_bytes() == *name).unwrap();
    side.send(0, &[b"DEL", key]);
    let mut words: Vec<&[u8]> = vec![command.as_bytes(), key];
    words.extend(rest.iter().map(|word| word.as_bytes()));
    side.plant(*of, key, &words);
}

/// All that a scan returns by `together` elements, sorted and each once, as if it were one reply;
/// or the first reply that is no step of a scan.
fn whole_scan(request: &Request, arguments: &[&[u8]], cursor: usize, together: usize, side: &mut dyn Side) -> Vec<u8> {
    let mut found = BTreeSet::new();
    let mut at = b"0".to_vec();
    loop {
        let mut step = arguments.to_vec();
        step[cursor] = &at;
        let reply = side.send(request.client, &step);
        let Some([next, names]) = elements(&reply).and_then(|answers| <[&[u8]; 2]>::try_from(answers).ok()) else {
            return reply;
        };
        found.extend(elements(names).unwrap().chunks(together).map(<[&[u8]]>::concat));
        let next = text(next).to_vec();
        if next == b"0" {
            return found.into_iter().collect::<Vec<_>>().concat();
        }
        at = next;
    }
}

fn both<T>(ours: &mut dyn Side, other: &mut dyn Side, mut ask: impl FnMut(&mut dyn Side) -> T) -> (T, T) {
    (ask(ours), ask(other))
}

/// How the replies to what each client has queued since `MULTI` are compared.
#[derive(Default)]
pub struct Queued([Option<Vec<Compare>>; CLIENTS]);

impl Queued {
    /// Whether the replies to `request` are the same; what it does to the transaction is noted.
    pub fn is_same(&mut self, request: &Request, ours: &[u8], others: &[u8]) -> bool {
        let queued = &mut self.0[request.client];
        let name = request.arguments[0].to_ascii_uppercase();
        match (name.as_slice(), queued.take()) {
            (b"EXEC", Some(compares)) => match (elements(ours), elements(others)) {
                (Some(ours), Some(others)) if ours.len() == others.len() && ours.len() == compares.len() => {
                    let mut pairs = ours.into_iter().zip(others).zip(compares);
                    pairs.all(|((ours, others), compare)| is_same(compare, ours, others))
                }
                _ => ours == others,
            },
            (b"MULTI", None) if ours == b"+OK\r\n" => {
                *queued = Some(Vec::new());
                ours == others
            }
            (b"DISCARD", Some(_)) if ours == b"+OK\r\n" => ours == others,
            (_, Some(mut compares)) => {
                if ours == b"+QUEUED\r\n" {
                    compares.push(match request.compare {
                        // One step, whose cursor is each server's own.
                        Compare::WholeScan { .. } | Compare::WholeScanOfPairs { .. } => Compare::Kind,
                        compare => compare,
                    });
                }
                *queued = Some(compares);
                ours == others
            }
            (_, None) => is_same(request.compare, ours, others),
        }
    }
}

fn is_same(compare: Compare, ours: &[u8], others: &[u8]) -> bool {
    let integer = |reply: &[u8]| std::str::from_utf8(reply.strip_prefix(b":")?).ok()?.trim_end().parse::<i64>().ok();
    match compare {
        Compare::Within(most) => match (integer(ours), integer(others)) {
            (Some(ours), Some(others)) if ours >= 0 && others >= 0 => ours.abs_diff(others) <= most.unsigned_abs(),
            _ => ours == others,
        },
        Compare::AnyOrder => match (elements(ours), elements(others)) {
            (Some(mut ours_now), Some(mut others_now)) => {
                ours_now.sort_unstable();
                others_now.sort_unstable();
                // An array, or a set.
                ours.first() == others.first() && ours_now == others_now
            }
            _ => ours == others,
        },
        Compare::PairsInAnyOrder => match (elements(ours), elements(others)) {
            (Some(ours_now), Some(others_now)) => {
                let sorted = |elements: &[&[u8]]| elements.chunks(2).map(<[&[u8]]>::concat).collect::<BTreeSet<_>>();
                ours.first() == others.first()
                    && ours_now.len() == others_now.len()
                    && sorted(&ours_now) == sorted(&others_now)
            }
            _ => ours == others,
        },
        Compare::Kind => {
            let is_nothing = |reply: &[u8]| reply.starts_with(b"$-1") || reply.starts_with(b"_");
            let is_error = ours.first() == Some(&b'-');
            ours.first() == others.first() && is_nothing(ours) == is_nothing(others) && (!is_error || ours == others)
        }
        _ => ours == others,
    }
}
