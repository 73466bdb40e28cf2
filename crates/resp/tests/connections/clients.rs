//! CLIENT: who is connected.

use crate::common;

use std::sync::atomic::Ordering;

use common::Fixture;
use common::served::{Served, any_port, until};
use common::wire::{Wire, request};
use ecotone_resp::client::Then;
use ecotone_resp::serve::Listen;
use ecotone_resp::service::{CLIENT_BYTES, Limits};

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

/// A field of the line of the client that has named itself so; 0 where it is not there.
fn field(list: &str, name: &str, field: &str) -> String {
    let line = list.lines().find(|line| line.contains(&format!(" name={name} "))).unwrap_or_default();
    let value = line.split(' ').find_map(|pair| pair.strip_prefix(field)?.strip_prefix('='));
    value.unwrap_or("0").to_owned()
}

fn number(list: &str, name: &str, of: &str) -> usize {
    field(list, name, of).parse().unwrap()
}

/// A number of INFO.
fn told(wire: &mut Wire, section: &str, name: &str) -> usize {
    let info = wire.ask(&format!("INFO {section}"));
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("{name} is not in {info}")).parse().unwrap()
}

#[test]
fn who_asks_sees_its_own_request_and_what_its_connection_has() {
    let served = Served::listening(&Listen { addresses: any_port(), ..Listen::default() }, Limits::default());
    let mut wire = Wire::to(served.address());
    wire.ask("CLIENT SETNAME me");
    let list = wire.ask("CLIENT LIST");
    // The request is *2 $6 client $4 list, each on a line: as Redis tells it.
    assert_eq!((number(&list, "me", "qbuf"), number(&list, "me", "argv-mem")), (26, 10), "{list}");
    assert!(number(&list, "me", "qbuf-free") < 1 << 20 && number(&list, "me", "rbs") >= "+OK\r\n".len(), "{list}");
    for none in ["multi-mem", "obl", "oll", "omem"] {
        assert_eq!(number(&list, "me", none), 0, "{none} in {list}");
    }
    assert_eq!(field(&list, "me", "events"), "r");
    let (buffers, all) =
        (["qbuf", "qbuf-free", "rbs"].map(|of| number(&list, "me", of)), number(&list, "me", "tot-mem"));
    assert_eq!(all, CLIENT_BYTES + buffers.iter().sum::<usize>(), "{list}");
    let descriptor = format!("/proc/self/fd/{}", number(&list, "me", "fd"));
    assert!(std::fs::read_link(&descriptor).unwrap().to_string_lossy().starts_with("socket:"), "{descriptor}");
    // The longest reply lately was that list.
    let peak = number(&wire.ask("CLIENT LIST"), "me", "rbp");
    assert!((list.len() - 20..list.len() + 20).contains(&peak), "{peak} of {}", list.len());
    wire.ask("CLIENT NO-TOUCH ON");
    assert_eq!(field(&wire.ask("CLIENT LIST"), "me", "flags"), "T");
    // As INFO tells it of all.
    assert!(told(&mut wire, "memory", "mem_clients_normal") >= CLIENT_BYTES);
    assert!(told(&mut wire, "clients", "client_recent_max_input_buffer") > 0);
    served.server.stop();
}

#[test]
fn others_see_what_a_client_has_sent_queued_and_not_taken() {
    let served = Served::listening(&Listen { addresses: any_port(), ..Listen::default() }, Limits::default());
    let (mut watch, mut other) = (Wire::to(served.address()), Wire::to(served.address()));
    let before = told(&mut watch, "memory", "mem_clients_normal");
    other.ask("CLIENT SETNAME other");
    // The beginning of a request.
    other.send(b"*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n$4000000\r\n");
    other.send(&vec![b'x'; 1_000_000]);
    let mut list = String::new();
    until("the beginning is seen", || {
        list = watch.ask("CLIENT LIST");
        number(&list, "other", "qbuf") > 1_000_000
    });
    assert_eq!(number(&list, "other", "argv-mem"), "SETlarge".len(), "{list}");
    let seen = ["qbuf", "qbuf-free", "tot-mem"].map(|of| number(&list, "other", of));
    assert!(seen[0] < 1_000_100 && seen[2] >= seen[0] + seen[1], "{seen:?}");
    assert!(told(&mut watch, "memory", "mem_clients_normal") > before + 1_000_000);
    assert!(told(&mut watch, "clients", "client_recent_max_input_buffer") > 1_000_000);
    other.send(&[&vec![b'x'; 3_000_000][..], b"\r\n"].concat());
    assert_eq!(other.reply(), b"+OK\r\n");
    until("it is done with", || number(&watch.ask("CLIENT LIST"), "other", "qbuf") == 0);
    assert_eq!(number(&watch.ask("CLIENT LIST"), "other", "argv-mem"), 0);

    // Commands that are queued.
    other.ask("MULTI");
    other.ask(&format!("SET a {}", "x".repeat(1000)));
    list = watch.ask("CLIENT LIST");
    assert!((1000..2000).contains(&number(&list, "other", "multi-mem")), "{list}");
    assert!(number(&list, "other", "tot-mem") > CLIENT_BYTES + 1000, "{list}");
    other.ask("EXEC");
    assert_eq!(number(&watch.ask("CLIENT LIST"), "other", "multi-mem"), 0);

    // Replies that are not taken: more than the kernel keeps for it.
    let gets = request(&[b"GET", b"large"]).repeat(8);
    other.send(&gets);
    until("replies wait", || {
        list = watch.ask("CLIENT LIST");
        number(&list, "other", "omem") > 1_000_000
    });
    assert_eq!((number(&list, "other", "oll"), field(&list, "other", "events").as_str()), (1, "rw"), "{list}");
    assert!(told(&mut watch, "clients", "client_recent_max_output_buffer") > 1_000_000);
    for _ in 0..8 {
        assert_eq!(other.reply().len(), 4_000_000 + "$4000000\r\n\r\n".len());
    }
    until("all is taken", || number(&watch.ask("CLIENT LIST"), "other", "omem") == 0);
    let list = watch.ask("CLIENT LIST");
    assert_eq!((number(&list, "other", "oll"), field(&list, "other", "events").as_str()), (0, "r"), "{list}");
    served.server.stop();
}

#[test]
fn a_client_of_a_unix_socket_is_told_as_such() {
    use std::io::{Read, Write};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.sock");
    let served = Served::listening(&Listen { socket: Some(path.clone()), ..Listen::default() }, Limits::default());
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    stream.write_all(b"CLIENT SETNAME me\r\nCLIENT LIST\r\nQUIT\r\n").unwrap();
    let mut list = String::new();
    stream.read_to_string(&mut list).unwrap();
    assert_eq!(field(&list, "me", "flags"), "U", "{list}");
    assert!(number(&list, "me", "fd") > 2, "{list}");
    served.server.stop();
}
