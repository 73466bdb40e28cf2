//! The time by which keys expire, from one life of a store to the next: what a client has found
//! gone stays gone.

use crate::common;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::Fixture;
use common::served::{Served, until};
use ecotone_engine::{Durability, OpenMode, Store, StoreSettings};
use ecotone_keyspace::layout::own;
use ecotone_keyspace::{Blocking, Keyspace};
use ecotone_resp::service::Limits;

const HOUR_MS: u64 = 3_600_000;

fn system_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn options() -> StoreSettings {
    StoreSettings { durability: Durability::None, ..StoreSettings::default() }.with_separation(128)
}

/// The time that `store` will go on from.
fn noted_ms(store: &Store) -> Option<u64> {
    Some(u64::from_be_bytes(store.get(&own("clock")).unwrap()?[..].try_into().unwrap()))
}

/// The directory of `fixture`, which is at an end, and whose store had `change` done to it then.
fn ended(fixture: Fixture, change: impl FnOnce(&Store)) -> tempfile::TempDir {
    let Fixture { service, directory, .. } = fixture;
    drop(service);
    change(&Store::open(directory.path(), OpenMode::Open, options()).unwrap());
    directory
}

/// The number that `reply` is.
fn number(reply: &str) -> u64 {
    reply.trim_start_matches(':').trim_end().parse().unwrap_or_else(|_| panic!("{reply:?}"))
}

/// The clock of the system is behind what the store has seen: by two hours, as the store knows.
#[test]
fn a_store_goes_on_from_a_time_in_the_future_until_it_is_told_to_forget_it() {
    let fixture = Fixture::with(options());
    let mut client = fixture.client();
    let began_ms = system_ms();
    client.ask(&format!("SET short v PXAT {}", began_ms + HOUR_MS));
    client.ask(&format!("SET long v PXAT {}", began_ms + 10 * HOUR_MS));
    client.ask("SET kept v");
    client.ask(&format!("RPUSH list {}", vec!["element"; 300].join(" ")));
    client.ask(&format!("PEXPIREAT list {}", began_ms + HOUR_MS));
    assert_eq!(client.ask("EXISTS short long kept list"), ":4\r\n");

    let later = (began_ms + 2 * HOUR_MS).to_be_bytes();
    let fixture = Fixture::at(ended(fixture, |store| store.put(&own("clock"), &later).unwrap()), options());
    let clock = fixture.service.keyspace.clock();
    assert!(clock.ahead_of_system() > Duration::from_millis(2 * HOUR_MS - 60_000), "{:?}", clock.ahead_of_system());
    let is_gone = |fixture: &Fixture| {
        let mut client = fixture.client();
        assert_eq!(client.ask("MGET short long kept"), "*3\r\n$-1\r\n$1\r\nv\r\n$1\r\nv\r\n");
        for (request, reply) in [
            ("GET short", "$-1\r\n"),
            ("EXISTS short list", ":0\r\n"),
            ("PTTL short", ":-2\r\n"),
            ("LLEN list", ":0\r\n"),
            ("TYPE list", "+none\r\n"),
            ("PERSIST short", ":0\r\n"),
            ("RENAME short other", "-ERR no such key\r\n"),
            ("COPY list other", ":0\r\n"),
        ] {
            assert_eq!(client.ask(request), reply, "{request}");
        }
        let left_ms = number(&client.ask("PTTL long"));
        assert!(left_ms > 7 * HOUR_MS && left_ms <= 8 * HOUR_MS, "{left_ms}");
    };
    is_gone(&fixture);
    let mut client = fixture.client();
    assert_eq!(client.ask("DBSIZE"), ":2\r\n");
    // The time does not stand still until the system's is as late.
    client.ask("SET brief v PX 20");
    until("a key goes when its time is over", || client.ask("GET brief") == "$-1\r\n");
    client.ask(&format!("SET new v PX {}", HOUR_MS / 2));

    // Once more, and with all that it has written since.
    fixture.service.keyspace.persist_clock(Blocking::Allowed).unwrap();
    let fixture =
        Fixture::at(ended(fixture, |store| assert!(noted_ms(store) >= Some(began_ms + 2 * HOUR_MS))), options());
    is_gone(&fixture);
    assert_eq!(fixture.client().ask("DBSIZE"), ":3\r\n");

    // Until somebody says that it was all a mistake.
    assert_eq!(fixture.found_and_reclaimed(), 0, "what is over may be had back");
    let fixture = Fixture::at(ended(fixture, |store| Keyspace::forget_time(store).unwrap()), options());
    let mut client = fixture.client();
    assert_eq!(fixture.service.keyspace.clock().ahead_of_system(), Duration::ZERO);
    assert_eq!(client.ask("MGET short long kept new"), "*4\r\n".to_owned() + &"$1\r\nv\r\n".repeat(4));
    assert_eq!(client.ask("LLEN list"), ":300\r\n");
    let left_ms = number(&client.ask("PTTL short"));
    assert!(left_ms <= HOUR_MS, "{left_ms}");
    // It was given half an hour when it was two hours later.
    let left_ms = number(&client.ask("PTTL new"));
    assert!(left_ms > 2 * HOUR_MS && left_ms <= 5 * HOUR_MS / 2 + 60_000, "{left_ms}");
}

#[test]
fn a_store_without_keys_knows_what_time_it_was() {
    let fixture = Fixture::with(options());
    let later = (system_ms() + 2 * HOUR_MS).to_be_bytes();
    let fixture = Fixture::at(ended(fixture, |store| store.put(&own("clock"), &later).unwrap()), options());
    let mut client = fixture.client();
    client.ask("SET key v");
    assert_eq!(client.ask("FLUSHALL"), "+OK\r\n");
    assert_eq!(client.ask("DBSIZE"), ":0\r\n");
    let store = fixture.service.keyspace.only_store().unwrap();
    assert_eq!(noted_ms(&store), Some(u64::from_be_bytes(later)));
}

#[test]
fn a_time_that_is_no_time_is_refused_and_not_taken_for_an_early_one() {
    let directory = ended(Fixture::with(options()), |store| store.put(&own("clock"), b"noon").unwrap());
    let store = Store::open(directory.path(), OpenMode::Open, options()).unwrap();
    let refused = Keyspace::open(store.into(), Durability::None).unwrap_err();
    assert!(refused.to_string().contains("clock"), "{refused}");
}

/// A store that nobody writes to: what its clients have found gone is noted, and nothing else.
#[test]
fn the_time_is_noted_after_a_write_and_after_a_key_was_found_gone_and_not_for_an_idle_store() {
    let requests = ["GET key", "TTL key", "DBSIZE", "MGET key other", "SCAN 0", "EXISTS other key"];
    let fixtures = requests.map(|request| (request, Fixture::with(options())));
    // They are opened by now, which waits for the device.
    let at_ms = system_ms() + 5000;
    let fixtures: Vec<(&str, Fixture)> = fixtures
        .map(|(request, fixture)| {
            let keyspace = fixture.service.keyspace.clone();
            assert_eq!(noted_ms(&keyspace.only_store().unwrap()), None);
            fixture.client().ask(&format!("SET key v PXAT {at_ms}"));
            keyspace.persist_clock(Blocking::Allowed).unwrap();
            let noted = noted_ms(&keyspace.only_store().unwrap());
            assert!(noted.is_some_and(|noted| noted < at_ms), "{noted:?} before {at_ms}: this machine is too busy");
            (request, fixture)
        })
        .into();
    let batches = |fixture: &Fixture| fixture.service.keyspace.only_store().unwrap().counters().batches_written;
    for (request, fixture) in &fixtures {
        let keyspace = &fixture.service.keyspace;
        until("its time is over", || keyspace.clock().now_ms() >= at_ms);
        let before = batches(fixture);
        keyspace.persist_clock(Blocking::Allowed).unwrap();
        fixture.client().ask("GET other");
        keyspace.persist_clock(Blocking::Allowed).unwrap();
        assert_eq!(batches(fixture), before, "nobody has written, and nobody has seen it gone");

        let reply = fixture.client().ask(request);
        assert!(!reply.contains("v\r\n") && !reply.contains("key"), "{request}: {reply}");
        keyspace.persist_clock(Blocking::Allowed).unwrap();
        let noted = noted_ms(&keyspace.only_store().unwrap());
        assert!(noted >= Some(at_ms), "{request}: it is gone since {at_ms}, and {noted:?} is noted");
        let noted = batches(fixture);
        assert_eq!(noted, before + 1, "{request}");
        fixture.client().ask(request);
        keyspace.persist_clock(Blocking::Allowed).unwrap();
        assert_eq!(batches(fixture), noted, "{request}: it is noted already");
    }
}

#[test]
fn a_server_that_ends_in_order_notes_the_time_first() {
    let served = Served::with(Limits::default(), options(), 1);
    let Served { server, service, directory } = served;
    let mut wire = common::wire::Wire::to(server.listening().addresses[0]);
    assert_eq!(wire.ask("SET key v PX 30"), "+OK\r\n");
    until("its time is over", || wire.ask("GET key") == "$-1\r\n");
    let gone_ms = system_ms();
    server.stop();
    drop(service);
    let store = Store::open(directory.path(), OpenMode::Open, options()).unwrap();
    assert!(noted_ms(&store) >= Some(gone_ms), "{:?} is noted, and it was {gone_ms}", noted_ms(&store));
}
