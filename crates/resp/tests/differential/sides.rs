//! The two servers that are compared.

use std::collections::BTreeSet;
use std::fmt;

use ecotone_resp::command::table;
use ecotone_resp::keyspace::{Group, Slot, Tag, Type, Waiting};
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

    /// The bytes of the reply to one request.
    fn send(&mut self, arguments: &[&[u8]]) -> Vec<u8>;

    /// Puts a small collection under `key`, which holds nothing.
    fn plant(&mut self, of: Type, key: &[u8], command: &[&[u8]]);
}

/// This server, commands committed in groups of up to `most`.
pub struct Here<'f> {
    client: TestClient<'f>,
    group: Group,
    seed: u64,
    random: Random,
    most: u64,
}

impl<'f> Here<'f> {
    pub fn new(fixture: &'f Fixture, version: Version, seed: u64, most: u64) -> Self {
        let mut client = fixture.client();
        client.speak(version);
        Self { client, group: Group::new(fixture.service.keyspace.clone()), seed, random: Random::new(seed), most }
    }

    fn commit_now_and_then(&mut self) {
        if self.random.below(self.most) == 0 {
            self.group.commit(Waiting::Allowed).unwrap();
        }
    }
}

impl Side for Here<'_> {
    fn restart(&mut self) {
        self.client.send_in(&mut self.group, &[b"FLUSHALL"]);
        self.group.commit(Waiting::Allowed).unwrap();
        self.random = Random::new(self.seed);
    }

    fn send(&mut self, arguments: &[&[u8]]) -> Vec<u8> {
        let reply = self.client.send_in(&mut self.group, arguments);
        self.commit_now_and_then();
        reply
    }

    fn plant(&mut self, of: Type, key: &[u8], command: &[&[u8]]) {
        if table::find(command[0]).is_some() {
            self.send(command);
            return;
        }
        // No command does it yet.
        assert!(self.group.hold(&[Slot::of(key)], Waiting::Never));
        self.group.keys(Waiting::Allowed).set(key, Tag::small(of), None, b"planted").unwrap();
        self.group.keep();
        self.commit_now_and_then();
    }
}

/// A Redis server.
pub struct There(RedisClient);

impl There {
    pub fn new(client: RedisClient) -> Self {
        Self(client)
    }
}

impl Side for There {
    fn restart(&mut self) {
        self.send(&[b"FLUSHALL"]);
    }

    fn send(&mut self, arguments: &[&[u8]]) -> Vec<u8> {
        self.0.send(arguments)
    }

    fn plant(&mut self, _: Type, _: &[u8], command: &[&[u8]]) {
        self.send(command);
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
    requests.iter().enumerate().find_map(|(at, request)| {
        let arguments: Vec<&[u8]> = request.arguments.iter().map(Vec::as_slice).collect();
        let (ours, others) = match request.compare {
            Compare::Plant => {
                plant(&arguments, ours);
                plant(&arguments, other);
                return None;
            }
            Compare::WholeScan { cursor } => {
                (whole_scan(&arguments, cursor, 1, ours), whole_scan(&arguments, cursor, 1, other))
            }
            Compare::WholeScanOfPairs { cursor } => {
                (whole_scan(&arguments, cursor, 2, ours), whole_scan(&arguments, cursor, 2, other))
            }
            _ => (ours.send(&arguments), other.send(&arguments)),
        };
        let differs = !is_same(request.compare, &ours, &others);
        differs.then(|| Difference { at, ours: shown(&ours), others: shown(&others) })
    })
}

fn plant(arguments: &[&[u8]], side: &mut dyn Side) {
    let [_, name, key] = arguments else { panic!("PLANT type key") };
    let (_, of, command, rest) = PLANTS.iter().find(|(known, ..)| known.as_bytes() == *name).unwrap();
    side.send(&[b"DEL", key]);
    let mut words: Vec<&[u8]> = vec![command.as_bytes(), key];
    words.extend(rest.iter().map(|word| word.as_bytes()));
    side.plant(*of, key, &words);
}

/// All that a scan returns by `together` elements, sorted and each once, as if it were one reply; or the first reply that is no step of a
/// scan.
fn whole_scan(arguments: &[&[u8]], cursor: usize, together: usize, side: &mut dyn Side) -> Vec<u8> {
    let mut found = BTreeSet::new();
    let mut at = b"0".to_vec();
    loop {
        let mut step = arguments.to_vec();
        step[cursor] = &at;
        let reply = side.send(&step);
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

fn is_same(compare: Compare, ours: &[u8], others: &[u8]) -> bool {
    let integer = |reply: &[u8]| std::str::from_utf8(reply.strip_prefix(b":")?).ok()?.trim_end().parse::<i64>().ok();
    match compare {
        Compare::Within(most) => match (integer(ours), integer(others)) {
            (Some(ours), Some(others)) if ours >= 0 && others >= 0 => ours.abs_diff(others) <= most.unsigned_abs(),
            _ => ours == others,
        },
        Compare::AnyOrder => match (elements(ours), elements(others)) {
            (Some(mut ours), Some(mut others)) => {
                ours.sort_unstable();
                others.sort_unstable();
                ours == others
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
