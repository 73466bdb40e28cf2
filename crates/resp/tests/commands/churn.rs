//! Collections and the keyspace under churn: however long it goes on, no step of a client comes to
//! cost many times what it does at first. What is judged is what reads step over, not how long that
//! takes.

use crate::common;

use std::time::Instant;

use common::TestClient;
use common::random::soak_time;
use common::redis::{elements, text, texts};
use common::served::{Served, until};
use ecotone_engine::StoreSettings;
use ecotone_keyspace::{Slot, layout};
use ecotone_resp::service::{Limits, Service};

/// Members that stay.
const LIVE: u64 = 500;

/// Steps of a round: without anybody who cleans up, the last ones step over more than 20,000
/// entries each.
const STEPS: u64 = 600;

/// What one step may step over, twice as much as lives; a fresh one visits as many entries and
/// more.
const MAX_SKIPPED: u64 = 2 * LIVE;

fn skipped(service: &Service) -> u64 {
    service.keyspace.only_store().unwrap().counters().skipped_entries
}

/// A random number that is the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

struct Churn<'f> {
    client: TestClient<'f>,
    random: Random,
    /// How many members came.
    came: u64,
}

impl Churn<'_> {
    /// Twenty members come to each sorted set and as many go; the same of sets, hashes and keys.
    fn step(&mut self) {
        let (mut top, mut least) = ("ZADD top".to_owned(), "ZADD least".to_owned());
        let (mut set, mut hash) = ("SADD set".to_owned(), "HSET hash".to_owned());
        for _ in 0..20 {
            let (number, score) = (self.came, self.random.next() % 1_000_000);
            self.came += 1;
            top += &format!(" {score} n{number}");
            least += &format!(" {score} n{number}");
            set += &format!(" n{number}");
            hash += &format!(" n{number} value");
            self.client.ask(&format!("SET key{number} value"));
            if let Some(old) = number.checked_sub(LIVE) {
                self.client.ask(&format!("HDEL hash n{old}"));
                self.client.ask(&format!("DEL key{old}"));
            }
        }
        for request in [top, least, set, hash] {
            self.client.ask(&request);
        }
        self.client.ask(&format!("ZREMRANGEBYRANK top 0 -{}", LIVE + 1));
        self.client.ask(&format!("ZREMRANGEBYRANK least {LIVE} -1"));
        let more = self.client.ask("SCARD set")[1..].trim_end().parse::<u64>().unwrap().saturating_sub(LIVE);
        if more > 0 {
            self.client.ask(&format!("SPOP set {more}"));
        }
    }

    /// Each is asked until it steps over no more than may be.
    fn until_each_read_is_cheap(&mut self) {
        for request in [
            "ZRANGE top 0 9",
            "ZRANGE top 0 9 REV",
            "ZRANGEBYSCORE top -inf +inf LIMIT 0 1",
            "ZRANGE least 0 9 REV",
            "ZRANGE least 0 -1",
            "ZSCAN top 0 COUNT 1000",
            "SRANDMEMBER set 20",
            "SMEMBERS set",
            "SSCAN set 0 COUNT 1000",
            "HRANDFIELD hash 20",
            "HGETALL hash",
            "HSCAN hash 0 COUNT 1000",
            "SCAN 0 COUNT 1000",
            "RANDOMKEY",
            "DBSIZE",
            "KEYS *",
        ] {
            let service = self.client.service;
            let before = skipped(service);
            until(&format!("{request}: {:?}", service.keyspace.only_store().unwrap().counters()), || {
                let before = skipped(service);
                self.client.ask(request);
                skipped(service) - before <= MAX_SKIPPED
            });
            assert!(skipped(service) - before < 1 << 32, "{request}");
        }
    }
}

#[test]
fn no_step_comes_to_cost_many_times_what_it_does_at_first() {
    let served = Served::with(Limits::default(), StoreSettings::default(), 1);
    let service = &*served.service;
    let mut churn = Churn { client: TestClient::of(service), random: Random(1), came: 0 };
    let (began, mut rounds) = (Instant::now(), 0);
    while rounds < 2 || began.elapsed() < soak_time() {
        (0..STEPS).for_each(|_| churn.step());
        churn.until_each_read_is_cheap();
        rounds += 1;
    }
    let mut ask = |request: &str| churn.client.ask(request);
    for (request, count) in [("ZCARD top", LIVE), ("ZCARD least", LIVE), ("SCARD set", LIVE), ("HLEN hash", LIVE)] {
        assert_eq!(ask(request), format!(":{count}\r\n"), "{request}");
    }
    for request in ["ZRANGE top 0 -1", "ZRANGE least 0 -1", "SMEMBERS set", "HKEYS hash", "KEYS *"] {
        let found = texts(ask(request).as_bytes());
        assert_eq!(found.len() as u64, LIVE + if request == "KEYS *" { 4 } else { 0 }, "{request}");
    }
    assert!(service.keyspace.rewritten_collections() > 0);
}

/// Members, scores, times, cursors and who watches: nobody can tell that a collection was made
/// anew, but by the time that it takes to read.
#[test]
fn a_collection_that_is_made_anew_is_the_same() {
    let served = Served::with(Limits::default(), StoreSettings::default(), 1);
    let service = &*served.service;
    let mut client = TestClient::of(service);
    for number in 0..3_000 {
        client.ask(&format!("ZADD zset {number} m{number}"));
        client.ask(&format!("HSET hash m{number} v{number}"));
    }
    client.ask("RENAME hash renamed");
    client.ask("PEXPIREAT zset 33000000000000");
    for number in (0..3_000).filter(|number| number % 10 > 0) {
        client.ask(&format!("ZREM zset m{number}"));
        client.ask(&format!("HDEL renamed m{number}"));
    }
    let stored = |key: &[u8]| {
        let store = service.keyspace.only_store().unwrap();
        let stored = store.get(&layout::key(Slot::of(key), key)).unwrap();
        stored.unwrap().to_vec()
    };
    let before = [stored(b"zset"), stored(b"renamed")];
    let requests = ["ZRANGE zset 0 -1 WITHSCORES", "HGETALL renamed", "PEXPIRETIME zset", "ZCARD zset", "HLEN renamed"];
    let replies = requests.map(|request| client.ask(request));
    // Half of a scan before, the other half behind.
    let scan = client.ask("HSCAN renamed 0 COUNT 150");
    let mut watcher = TestClient::of(service);
    watcher.ask("WATCH zset renamed");
    until("both are made anew", || {
        client.ask("ZRANGE zset 0 -1");
        client.ask("HGETALL renamed");
        stored(b"zset")[..10] != before[0][..10] && stored(b"renamed")[..10] != before[1][..10]
    });
    // But for the number, all is as it was.
    assert_eq!((&stored(b"zset")[10..], &stored(b"renamed")[10..]), (&before[0][10..], &before[1][10..]));
    assert_eq!(requests.map(|request| client.ask(request)), replies);
    let parts = elements(scan.as_bytes()).unwrap();
    let cursor = String::from_utf8(text(parts[0]).to_vec()).unwrap();
    let mut found = texts(parts[1]);
    let rest = client.ask(&format!("HSCAN renamed {cursor} COUNT 1000"));
    found.extend(texts(elements(rest.as_bytes()).unwrap()[1]));
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 600, "fields and values");
    watcher.ask("MULTI");
    watcher.ask("SET done yes");
    assert_eq!(watcher.ask("EXEC"), "*1\r\n+OK\r\n", "nobody has changed what was watched");
    // What it was made of goes.
    until("the old elements are reclaimed", || service.keyspace.reclaimed_collections() >= 2);
}
