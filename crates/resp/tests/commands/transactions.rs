//! MULTI, EXEC, WATCH.

use crate::common;

use common::{Fixture, TestClient};
use ecotone_keyspace::{Blocking, Slot, WriteGroup, layout};
use ecotone_resp::client::Then;
use ecotone_resp::execute::Step;
use ecotone_resp::service::Limits;

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
fn exec_that_is_refused_ends_the_transaction_and_what_was_watched() {
    let wrong_number = "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command\r\n";
    let fixture = Fixture::new();
    let mut one = fixture.client();
    one.ask("MULTI");
    one.ask("SET a 1");
    assert_eq!(one.ask("EXEC x"), wrong_number);
    assert_eq!(one.ask("GET a"), "$-1\r\n");
    assert_eq!(one.ask("EXEC"), "-ERR EXEC without MULTI\r\n");
    // The same where there is none.
    assert_eq!(one.ask("WATCH watched"), "+OK\r\n");
    assert_eq!(one.ask("EXEC x y"), wrong_number);
    one.ask("SET watched 1");
    one.ask("MULTI");
    assert_eq!(one.ask("EXEC"), "*0\r\n");
    // Other commands with a wrong number of arguments leave it to EXEC.
    one.ask("MULTI");
    assert_eq!(one.ask("DISCARD x"), "-ERR wrong number of arguments for 'discard' command\r\n");
    assert_eq!(one.ask("EXEC"), "-EXECABORT Transaction discarded because of previous errors.\r\n");
    let limits = Limits { password: Some("secret".into()), ..Limits::default() };
    fixture.service.set_limits(limits);
    let unauthenticated = "-EXECABORT Transaction discarded because of: NOAUTH Authentication required.\r\n";
    assert_eq!(fixture.client().ask("EXEC"), unauthenticated);
    let counted = fixture.service.statistics.errors_by_word.lock().get("EXECABORT").copied();
    assert_eq!(counted, Some(4));
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
    // UNWATCH is queued like another command, and comes too late for its own transaction.
    one.ask("WATCH watched");
    other.ask("SET watched 2");
    one.ask("MULTI");
    assert_eq!(one.ask("UNWATCH"), "+QUEUED\r\n");
    assert_eq!(one.ask("EXEC"), "*-1\r\n");
    one.ask("WATCH watched");
    one.ask("MULTI");
    one.ask("UNWATCH");
    one.ask("SET watched 3");
    assert_eq!(one.ask("EXEC"), "*2\r\n+OK\r\n+OK\r\n");
    // A client's own write counts as well.
    one.ask("WATCH watched");
    one.ask("SET watched 3");
    one.ask("MULTI");
    assert_eq!(one.ask("EXEC"), "*-1\r\n");
}

#[test]
fn a_transaction_that_looks_at_all_keys_waits_for_whoever_writes_one() {
    let fixture = Fixture::new();
    let mut one = fixture.client();
    for command in ["KEYS *", "SCAN 0", "DBSIZE", "RANDOMKEY"] {
        let mut writer = WriteGroup::new(fixture.service.keyspace.clone());
        assert!(writer.hold(&[Slot::of(b"written")], Blocking::Never));
        one.ask("MULTI");
        one.ask(command);
        // In a group that has a latch already: it does not wait, and says so.
        let mut group = WriteGroup::new(fixture.service.keyspace.clone());
        assert!(group.hold(&[Slot::of(b"other")], Blocking::Never));
        assert_eq!(one.try_in(&mut group, &[b"EXEC"]), Err(Step::Latched), "{command}");
        drop(writer);
        assert!(one.try_in(&mut group, &[b"EXEC"]).is_ok_and(|reply| reply.starts_with(b"*1\r\n")), "{command}");
    }
}

#[test]
fn to_remove_all_keys_concerns_who_watches_one_that_is_there() {
    let fixture = Fixture::new();
    let (mut one, mut other) = (fixture.client(), fixture.client());
    // Before, between and after: what is done, and whether the transaction of who watches is
    // carried out.
    for flush in ["FLUSHALL", "FLUSHDB"] {
        for (before, then, expected) in [
            ("PING", "PING", "*1\r\n+PONG\r\n"),
            ("SET more 1", "PING", "*1\r\n+PONG\r\n"),
            ("SET watched 1", "PING", "*-1\r\n"),
            ("SET watched 1", "SET watched 1", "*-1\r\n"),
            ("PING", "SET watched 1", "*-1\r\n"),
            ("HSET watched a 1", "HSET watched a 1", "*-1\r\n"),
        ] {
            other.ask("FLUSHALL");
            other.ask(before);
            one.ask("WATCH nothing watched");
            other.ask(flush);
            other.ask(then);
            one.ask("MULTI");
            one.ask("PING");
            assert_eq!(one.ask("EXEC"), expected, "{before}, {flush}, {then}");
        }
    }
    // Its own counts like another's.
    one.ask("SET watched 1");
    one.ask("WATCH watched");
    one.ask("FLUSHALL");
    one.ask("MULTI");
    assert_eq!(one.ask("EXEC"), "*-1\r\n");
}

#[test]
fn what_was_taken_back_disturbs_nobody() {
    let limits = Limits { memory_bytes: 100_000, ..Limits::default() };
    let fixture = Fixture::new();
    fixture.service.set_limits(limits);
    let (mut one, mut other) = (fixture.client(), fixture.client());
    one.ask("SET watched 1");
    one.ask("WATCH watched");
    for request in ["MULTI", "FLUSHALL", "SETRANGE long 200000 x"] {
        other.ask(request);
    }
    let refused = other.ask("EXEC");
    assert!(refused.starts_with("-ERR the transaction writes more than 100000 bytes"), "{refused}");
    one.ask("MULTI");
    one.ask("GET watched");
    assert_eq!(one.ask("EXEC"), "*1\r\n$1\r\n1\r\n");
}

#[test]
fn what_is_watched_is_not_read_again() {
    let fixture = Fixture::new();
    let mut one = fixture.client();
    one.ask("SET watched 1");
    // The second time nothing of it is there that could be looked at: only what was told counts.
    one.ask("WATCH watched");
    let stored = layout::key(Slot::of(b"watched"), b"watched");
    fixture.service.keyspace.only_store().unwrap().delete(&stored).unwrap();
    one.ask("MULTI");
    one.ask("PING");
    assert_eq!(one.ask("EXEC"), "*1\r\n+PONG\r\n");
}

#[test]
fn of_many_watched_keys_each_is_watched_once() {
    let fixture = Fixture::new();
    let (mut one, mut other) = (fixture.client(), fixture.client());
    let keys: Vec<String> = (0..2000).map(|number| format!("k{number}")).collect();
    let all = format!("WATCH {}", keys.join(" "));
    assert_eq!(one.ask(&all), "+OK\r\n");
    let bytes = one.client.watched_bytes;
    assert_eq!(one.ask(&all), "+OK\r\n");
    assert_eq!(one.ask("WATCH k7 k7 k8"), "+OK\r\n");
    assert_eq!((one.client.watched.len(), one.client.watched_bytes), (2000, bytes));
    one.ask("MULTI");
    one.ask("SET result 1");
    // That many are for a thread that may wait.
    assert_eq!(one.step_at_once("EXEC"), Step::WouldBlock);
    other.ask("SET k1999 1");
    assert_eq!(one.ask("EXEC"), "*-1\r\n");
    assert!(one.client.watched.is_empty());
}

#[test]
fn a_watched_key_whose_time_has_ended_since_ends_the_transaction() {
    let fixture = Fixture::new();
    let (mut one, mut other) = (fixture.client(), fixture.client());
    let remaining_ms = |client: &mut TestClient<'_>| -> i64 {
        client.ask("PTTL watched").trim_start_matches(':').trim_end().parse().unwrap()
    };
    // A busy machine may need longer than the first ones to watch it in time.
    let watched_in_time = [20, 200, 2000, 20_000].into_iter().any(|ms| {
        one.ask(&format!("SET watched 1 PX {ms}"));
        one.ask("WATCH watched");
        let is_in_time = remaining_ms(&mut other) > 0;
        if !is_in_time {
            one.ask("UNWATCH");
        }
        is_in_time
    });
    assert!(watched_in_time);
    while remaining_ms(&mut other) > 0 {
        std::thread::yield_now();
    }
    one.ask("MULTI");
    one.ask("SET result 1");
    assert_eq!(one.ask("EXEC"), "*-1\r\n");
    assert_eq!(one.ask("GET result"), "$-1\r\n");
    // One whose time was over when it was watched is like one that is not there.
    assert_eq!(one.ask("WATCH watched"), "+OK\r\n");
    one.ask("MULTI");
    one.ask("SET result 2");
    assert_eq!(one.ask("EXEC"), "*1\r\n+OK\r\n");
    // One whose time is not over is as it was.
    one.ask("SET watched 3 PX 10000000");
    one.ask("WATCH watched");
    one.ask("MULTI");
    one.ask("SET result 3");
    assert_eq!(one.ask("EXEC"), "*1\r\n+OK\r\n");
}

#[test]
fn who_kills_itself_in_a_transaction_is_told_nothing_behind_that() {
    let fixture = Fixture::new();
    let (mut one, mut other) = (fixture.client(), fixture.client());
    let kill = format!("CLIENT KILL ID {} SKIPME no", one.client.info.id);
    for request in ["MULTI", "PING", &kill, "SET a 1", "GET a", "DEBUG SLEEP 1"] {
        one.ask(request);
    }
    assert_eq!(one.ask("EXEC"), "*5\r\n+PONG\r\n:1\r\n");
    assert_eq!(one.client.then, Then::Close);
    // What follows is carried out all the same.
    assert_eq!(other.ask("GET a"), "$1\r\n1\r\n");
}
