//! MULTI, EXEC, WATCH.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

mod common;

use common::Fixture;

#[test]
fn a_transaction_is_carried_out_whole_or_not_at_all() {
    let fixture = Fixture::new();
    let (mut one, mut other) = (fixture.client(), fixture.client());
    assert_eq!(one.ask("EXEC"), "-ERR EXEC without MULTI\r\n");
    assert_eq!(one.ask("MULTI"), "+OK\r\n");
    assert_eq!(one.ask("MULTI"), "-ERR MULTI calls can not be nested\r\n");
    assert_eq!(one.ask("SET a 1"), "+QUEUED\r\n");
    assert_eq!(one.ask("GET a"), "+QUEUED\r\n");
    assert_eq!(other.ask("GET a"), "$-1\r\n");
    assert_eq!(one.ask("EXEC"), "*2\r\n+OK\r\n$1\r\n1\r\n");
    assert_eq!(other.ask("GET a"), "$1\r\n1\r\n");
    // One that is refused when it is queued.
    one.ask("MULTI");
    assert!(one.ask("SET a").starts_with("-ERR wrong number of arguments for 'set' command"));
    assert_eq!(one.ask("SET a 2"), "+QUEUED\r\n");
    assert_eq!(one.ask("EXEC"), "-EXECABORT Transaction discarded because of previous errors.\r\n");
    // One that fails when it is carried out does not stop the others.
    one.ask("MULTI");
    one.ask("SET b 1");
    one.ask("SET b 1 EX 0");
    one.ask("SET c 1");
    let expected = "*3\r\n+OK\r\n-ERR invalid expire time in 'set' command\r\n+OK\r\n";
    assert_eq!(one.ask("EXEC"), expected);
    assert_eq!(other.ask("GET c"), "$1\r\n1\r\n");
    one.ask("MULTI");
    one.ask("SET a 3");
    assert_eq!(one.ask("DISCARD"), "+OK\r\n");
    assert_eq!(one.ask("GET a"), "$1\r\n1\r\n");
}

#[test]
fn a_watched_key_that_was_written_ends_the_transaction() {
    let fixture = Fixture::new();
    let (mut one, mut other) = (fixture.client(), fixture.client());
    for (writes, expected) in [("SET watched 1", "*-1\r\n"), ("SET unwatched 1", "*1\r\n+OK\r\n")] {
        assert_eq!(one.ask("WATCH watched more"), "+OK\r\n");
        other.ask(writes);
        one.ask("MULTI");
        assert_eq!(one.ask("WATCH x"), "-ERR WATCH inside MULTI is not allowed\r\n");
        one.ask("SET result 1");
        assert_eq!(one.ask("EXEC"), expected, "{writes}");
    }
    // Nothing is watched after EXEC, DISCARD and UNWATCH.
    one.ask("WATCH watched");
    one.ask("UNWATCH");
    other.ask("SET watched 2");
    one.ask("MULTI");
    assert_eq!(one.ask("EXEC"), "*0\r\n");
    // A client's own write counts as well, and so does the end of a key's time.
    one.ask("WATCH watched");
    one.ask("SET watched 3");
    one.ask("MULTI");
    assert_eq!(one.ask("EXEC"), "*-1\r\n");
    one.ask("SET watched 3 PXAT 99999999999999");
    one.ask("WATCH watched");
    assert!(fixture.service.keyspace.clock().now_ms() > 1);
    one.ask("MULTI");
    one.ask("SET watched 4");
    assert_eq!(one.ask("EXEC"), "*1\r\n+OK\r\n");
}
