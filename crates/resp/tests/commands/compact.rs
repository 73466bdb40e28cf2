//! COMPACT, as a client sees it.

use crate::common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::Fixture;
use common::served::{Served, until};
use ecotone_engine::{Durability, StoreSettings};
use ecotone_resp::command::{categories, table};
use ecotone_resp::service::Limits;

const PATIENCE: Duration = Duration::from_secs(120);

fn served() -> Served {
    let options =
        StoreSettings { durability: Durability::None, target_file_bytes: 1 << 20, ..StoreSettings::default() };
    Served::with(Limits::default(), options.with_separation(128), 1)
}

fn connect(served: &Served) -> TcpStream {
    let stream = TcpStream::connect(served.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn ask(stream: &mut TcpStream, request: &str, reply: &str) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut got = vec![0; reply.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), reply, "{request:?}");
}

#[test]
fn it_replies_once_all_is_compacted_and_what_follows_is_carried_out_then() {
    let served = served();
    let mut client = connect(&served);
    for key in 0..2000 {
        ask(&mut client, &format!("SET key{key} {}\r\n", "v".repeat(500)), "+OK\r\n");
    }
    for key in 1..2000 {
        ask(&mut client, &format!("DEL key{key}\r\n"), ":1\r\n");
    }
    ask(&mut client, "PING\r\nCOMPACT\r\nDBSIZE\r\n", "+PONG\r\n+OK\r\n:1\r\n");
    let status = served.service.compactions.status().unwrap();
    assert!(!status.runs && status.failure.is_none() && status.progress.bytes < 600_000, "{status:?}");
    assert_eq!(status.progress.pieces_done, status.progress.pieces);
    assert!(status.progress.bytes_before > 1_000_000, "{status:?}");
}

#[test]
fn one_at_a_time_and_it_ends_with_who_waits_for_it_or_for_who_says_so() {
    let served = served();
    let mut other = connect(&served);
    // None can end while somebody else has the turn.
    let store = served.service.keyspace.only_store().unwrap().clone();
    let pause = store.pause_compactions().unwrap();
    let runs = || served.service.compactions.status().is_some_and(|status| status.runs);
    let mut client = connect(&served);
    client.write_all(b"SET a 1\r\nCOMPACT\r\n").unwrap();
    until("it has begun", runs);
    for again in ["COMPACT\r\n", "COMPACT NOWAIT\r\n"] {
        ask(&mut other, again, "-ERR A compaction is in progress already\r\n");
    }
    ask(&mut other, "PING\r\n", "+PONG\r\n");
    drop(client);
    drop(pause);
    until("it has ended", || !runs());
    ask(&mut other, "COMPACT CANCEL\r\n", "-ERR No compaction in progress.\r\n");
    ask(&mut other, "COMPACT NOWAIT\r\n", "+Background compaction started\r\n");
    until("that one has ended", || !runs());
    assert_eq!(served.service.compactions.status().unwrap().failure, None);
    assert_eq!(served.service.statistics.waiting.load(Ordering::Relaxed), 0, "no thread waits for it");
}

#[test]
fn its_arguments_and_who_may_ask_are_as_of_other_commands() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for (request, reply) in [
        ("COMPACT SOON", "-ERR syntax error\r\n"),
        ("COMPACT STATUS NOW", "-ERR syntax error\r\n"),
        ("COMPACT CANCEL", "-ERR No compaction in progress.\r\n"),
    ] {
        assert_eq!(client.ask(request), reply, "{request}");
    }
    let status = client.ask("COMPACT STATUS");
    assert!(status.starts_with("*16\r\n$5\r\nstate\r\n$4\r\nnone\r\n"), "{status}");
    client.ask("HELLO 3");
    assert!(client.ask("COMPACT STATUS").starts_with("%8\r\n"));
    client.ask("MULTI");
    assert_eq!(client.ask("COMPACT"), "-ERR Command not allowed inside a transaction\r\n");
    let command = table::find(b"compact").unwrap();
    let categories: Vec<_> = categories::categories(command).collect();
    assert_eq!(categories, ["admin", "slow", "dangerous"]);
}
