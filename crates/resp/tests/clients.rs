//! CLIENT: who is connected.

#![allow(clippy::unwrap_used)] // a test fails where it is surprised

mod common;

use std::sync::atomic::Ordering;

use common::Fixture;
use ecotone_resp::client::Then;

#[test]
fn a_line_has_the_fields_of_redis_in_its_order() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.ask("CLIENT SETNAME me");
    client.ask("CLIENT SETINFO LIB-NAME lib");
    client.ask("CLIENT SETINFO lib-ver 1.2");
    let info = client.ask("CLIENT INFO");
    let line = info.split("\r\n").nth(1).unwrap();
    assert!(line.ends_with('\n'));
    let names: Vec<&str> = line.trim().split(' ').map(|field| field.split('=').next().unwrap()).collect();
    let expected = "id addr laddr fd name age idle flags db sub psub ssub multi qbuf qbuf-free argv-mem multi-mem rbs rbp \
                    obl oll omem tot-mem events cmd user redir resp lib-name lib-ver";
    assert_eq!(names.join(" "), expected);
    for field in
        ["id=1", "addr=127.0.0.1:1", "name=me", "flags=N", "multi=-1", "cmd=client|info", "resp=2", "lib-ver=1.2"]
    {
        assert!(line.split([' ', '\n']).any(|own| own == field), "{field} in {line}");
    }
    client.ask("MULTI");
    client.ask("CLIENT NO-EVICT ON");
    client.ask("CLIENT INFO");
    assert!(client.ask("EXEC").contains(" flags=xe "));
    client.ask("HELLO 3");
    assert!(client.ask("CLIENT LIST").starts_with('='));
}

#[test]
fn a_list_shows_who_is_asked_for() {
    let fixture = Fixture::new();
    let (mut one, _two, three) = (fixture.client(), fixture.client(), fixture.client());
    let ids = |reply: String| -> Vec<String> {
        let fields = reply.split([' ', '\n']).filter_map(|field| field.strip_prefix("id=").map(str::to_owned));
        fields.collect()
    };
    assert_eq!(ids(one.ask("CLIENT LIST")), ["1", "2", "3"]);
    assert_eq!(ids(one.ask("CLIENT LIST ID 3 1 9 -1 3")), ["3", "1", "3"]);
    assert_eq!(ids(one.ask("client list type NORMAL")), ["1", "2", "3"]);
    for none in ["master", "replica", "SLAVE", "pubsub"] {
        assert_eq!(one.ask(&format!("CLIENT LIST TYPE {none}")), "$0\r\n\r\n");
    }
    fixture.service.clients.remove(three.client.info.id);
    assert_eq!(ids(one.ask("CLIENT LIST")), ["1", "2"]);
}

#[test]
fn nobody_can_put_a_line_break_into_the_list() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for bad in [&b"a b"[..], b"a\nid=9", b"\x7f", "\u{e4}".as_bytes(), b"\0"] {
        let refused = client.send(&[b"CLIENT", b"SETNAME", bad]);
        assert_eq!(refused, b"-ERR Client names cannot contain spaces, newlines or special characters.\r\n");
        assert!(client.send(&[b"HELLO", b"2", b"SETNAME", bad]).starts_with(b"-ERR Client names cannot"));
        let refused = client.send(&[b"CLIENT", b"SETINFO", b"lib-name", bad]);
        assert_eq!(refused, b"-ERR lib-name cannot contain spaces, newlines or special characters.\r\n");
    }
    assert_eq!(client.ask("CLIENT SETINFO other x"), "-ERR Unrecognized option 'other'\r\n");
    assert_eq!(client.ask("CLIENT GETNAME"), "$-1\r\n");
    client.ask("CLIENT SETNAME me");
    assert_eq!(client.send(&[b"CLIENT", b"SETNAME", b""]), b"+OK\r\n");
    assert_eq!(client.ask("CLIENT GETNAME"), "$-1\r\n");
}

#[test]
fn kill_hits_who_is_meant() {
    let fixture = Fixture::new();
    let is_killed = |id: u64| {
        let all = fixture.service.clients.all();
        all.iter().find(|client| client.id == id).unwrap().is_killed.load(Ordering::Acquire)
    };
    let mut one = fixture.client();
    let _others = [fixture.client(), fixture.client(), fixture.client()];
    assert_eq!(one.ask("CLIENT KILL ID 2"), ":1\r\n");
    assert_eq!([1, 2, 3, 4].map(is_killed), [false, true, false, false]);
    // All conditions must hold.
    assert_eq!(one.ask("CLIENT KILL ID 3 ADDR 10.0.0.1:1"), ":0\r\n");
    assert_eq!(one.ask("CLIENT KILL TYPE pubsub USER default"), ":0\r\n");
    assert_eq!([1, 3, 4].map(is_killed), [false; 3]);
    // The killer itself only if it says so, and it is told.
    assert_eq!(one.ask("CLIENT KILL ADDR 127.0.0.1:1"), ":3\r\n");
    assert_eq!([1, 3, 4].map(is_killed), [false, true, true]);
    assert_eq!(one.client.then, Then::Go);
    assert_eq!(one.ask("CLIENT KILL LADDR 127.0.0.1:6379 SKIPME no"), ":4\r\n");
    assert_eq!(one.client.then, Then::Close);
    assert!(!is_killed(1));
    // The old form has no mercy.
    let mut one = fixture.client();
    assert_eq!(one.ask("CLIENT KILL 127.0.0.1:1"), "+OK\r\n");
    assert_eq!(one.client.then, Then::Close);
}
