//! HELLO, AUTH, PING, ECHO, SELECT, QUIT, RESET.

use crate::common;

use std::sync::Arc;

use common::{Fixture, TestClient};
use ecotone_resp::client::Then;
use ecotone_resp::service::Limits;

const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
const NOAUTH: &str = "-NOAUTH Authentication required.\r\n";

fn with_password() -> Fixture {
    let fixture = Fixture::new();
    set_password(&fixture, Some("secret"));
    fixture
}

fn set_password(fixture: &Fixture, password: Option<&str>) {
    *fixture.service.limits.write() = Arc::new(Limits { password: password.map(str::to_owned), ..Limits::default() });
}

#[test]
fn a_password_is_asked_for_and_only_the_right_one_is_taken() {
    let fixture = with_password();
    let mut client = fixture.client();
    for refused in ["GET a", "PING", "ECHO a", "SELECT 0", "INFO", "CLIENT LIST", "CONFIG GET requirepass"] {
        assert_eq!(client.ask(refused), NOAUTH, "{refused}");
    }
    for wrong in [
        "AUTH x",
        "AUTH secre",
        "AUTH secrets",
        "AUTH SECRET",
        "AUTH default x",
        "AUTH other secret",
        "AUTH DEFAULT secret",
    ] {
        assert_eq!(client.ask(wrong), WRONG, "{wrong}");
        assert_eq!(client.ask("PING"), NOAUTH);
    }
    assert_eq!(client.send(&[b"AUTH", b""]), WRONG.as_bytes());
    assert_eq!(client.ask("AUTH a b c"), "-ERR syntax error\r\n");
    assert_eq!(client.ask("AUTH"), "-ERR wrong number of arguments for 'auth' command\r\n");
    assert_eq!(client.ask("AUTH secret"), "+OK\r\n");
    assert_eq!(client.ask("PING"), "+PONG\r\n");
    // A wrong one takes nothing away.
    assert_eq!(client.ask("AUTH x"), WRONG);
    assert_eq!(client.ask("PING"), "+PONG\r\n");
    assert_eq!(fixture.client().ask("AUTH default secret"), "+OK\r\n");
}

#[test]
fn where_no_password_is_asked_for_any_more_those_who_gave_none_are_let_in() {
    let fixture = with_password();
    let mut client = fixture.client();
    assert_eq!(client.ask("PING"), NOAUTH);
    set_password(&fixture, None);
    assert_eq!(client.ask("PING"), "+PONG\r\n");
    set_password(&fixture, Some("another"));
    assert_eq!(client.ask("PING"), NOAUTH);
}

#[test]
fn an_empty_password_is_no_way_in() {
    let fixture = with_password();
    let mut client = fixture.client();
    for given in [&b""[..], b"\0", b"secret\0", b"\xff"] {
        assert_eq!(client.send(&[b"AUTH", given]), WRONG.as_bytes());
    }
    assert_eq!(client.ask("PING"), NOAUTH);
}

#[test]
fn hello_lets_in_who_gives_the_password_and_changes_nothing_for_others() {
    let fixture = with_password();
    let mut client = fixture.client();
    // Of Redis 7.2, word by word.
    let not_yet = "-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> \
                   option can be used to authenticate the client and select the RESP protocol version at the same time\r\n";
    assert_eq!([client.ask("HELLO"), client.ask("HELLO 3")], [not_yet; 2]);
    let misnamed = client.send(&[b"HELLO", b"3", b"AUTH", b"default", b"secret", b"SETNAME", b"c d"]);
    assert!(misnamed.starts_with(b"-ERR Client names cannot"));
    assert_eq!(client.ask("PING"), NOAUTH, "what is refused changes nothing");
    assert_eq!(client.ask("HELLO 3 AUTH default x SETNAME me"), WRONG);
    assert_eq!(client.ask("AUTH secret"), "+OK\r\n");
    // Still RESP2, and nameless.
    assert_eq!(client.ask("CLIENT GETNAME"), "$-1\r\n");
    let hello = client.ask("HELLO 3 SETNAME me AUTH default secret");
    assert!(hello.starts_with("%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n"), "{hello}");
    assert_eq!(client.ask("CLIENT GETNAME"), "$2\r\nme\r\n");
    assert_eq!(client.ask("GET nothing"), "_\r\n");
    // Without a version the version stays.
    assert!(client.ask("HELLO").contains("$5\r\nproto\r\n:3\r\n"));
    assert!(client.ask("HELLO 2").starts_with("*14\r\n"));
    assert_eq!(client.ask("GET nothing"), "$-1\r\n");
}

#[test]
fn a_hello_that_is_refused_changes_nothing() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for refused in ["HELLO 3 SETNAME me AUTH other x", "HELLO 3 SETNAME me nothing", "HELLO 4 SETNAME me"] {
        assert!(client.ask(refused).starts_with('-'), "{refused}");
        // Nameless, and nothing as in RESP2.
        assert_eq!(client.ask("CLIENT GETNAME"), "$-1\r\n", "{refused}");
    }
    assert!(client.ask("INFO stats").contains("\r\nacl_access_denied_auth:1\r\n"));
}

#[test]
fn reset_takes_back_all_that_a_client_was() {
    let fixture = with_password();
    let (mut client, mut other) = (fixture.client(), fixture.client());
    client.ask("HELLO 3 AUTH default secret SETNAME me");
    other.ask("AUTH secret");
    client.ask("WATCH a");
    client.ask("CLIENT NO-EVICT on");
    client.ask("CLIENT NO-TOUCH on");
    assert!(client.ask("CLIENT INFO").contains(" flags=eT "));
    client.ask("MULTI");
    client.ask("SET a 1");
    assert_eq!(client.ask("RESET"), "+RESET\r\n");
    assert_eq!(client.ask("PING"), NOAUTH);
    client.ask("AUTH secret");
    assert_eq!(client.ask("EXEC"), "-ERR EXEC without MULTI\r\n");
    assert_eq!(client.ask("CLIENT GETNAME"), "$-1\r\n");
    assert!(client.ask("CLIENT INFO").contains(" flags=N "));
    // The watch is gone as well.
    other.ask("SET a 2");
    client.ask("MULTI");
    client.ask("GET a");
    assert_eq!(client.ask("EXEC"), "*1\r\n$1\r\n2\r\n");
    // Where no password is asked for, none is needed after.
    set_password(&fixture, None);
    client.ask("RESET");
    assert_eq!(client.ask("PING"), "+PONG\r\n");
}

#[test]
fn quit_closes_even_within_a_transaction_and_before_the_password() {
    let fixture = with_password();
    let mut client = fixture.client();
    assert_eq!(client.ask("QUIT"), "+OK\r\n");
    assert_eq!(client.client.then, Then::Close);
    let mut client = fixture.client();
    client.ask("AUTH secret");
    client.ask("MULTI");
    assert_eq!(client.ask("QUIT now"), "+OK\r\n");
    assert_eq!(client.client.then, Then::Close);
}

#[test]
fn in_a_transaction_hello_and_auth_are_queued() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.ask("MULTI");
    for queued in ["HELLO 3", "AUTH default x", "PING", "SELECT 0", "SELECT 1"] {
        assert_eq!(client.ask(queued), "+QUEUED\r\n");
    }
    let replies = client.ask("EXEC");
    assert!(replies.starts_with("*5\r\n%7\r\n"), "{replies}");
    assert!(replies.ends_with("+OK\r\n+PONG\r\n+OK\r\n-ERR DB index is out of range\r\n"), "{replies}");
}

#[test]
fn passwords_do_not_stand_in_the_slow_log() {
    let fixture = with_password();
    let limits = Limits { slow_after: Some(std::time::Duration::ZERO), ..(**fixture.service.limits.read()).clone() };
    fixture.service.set_limits(limits);
    fixture.host.settings.lock().insert("maxclients".into(), "5".into());
    let mut client: TestClient<'_> = fixture.client();
    for request in [
        "AUTH typo",
        "AUTH default secret",
        "AUTH too many secrets",
        "HELLO 2 AUTH default secret SETNAME me",
        "hello x auth default secret",
        "HELLO 2 AUTH default",
        "HELLO AUTH default secret",
        "HELLO 2 SETNAME me AUTH default secret",
        "HELLO 3 AUHT default secret",
        "HELLO 3 secret",
        "CONFIG SET maxclients 1 REQUIREPASS other requirepass other",
        "CONFIG SET requirepas secret",
        "CONFIG SET requirepass my secret password",
        "CONFIG SET requirepass secret password",
        "CLIENT LIST",
    ] {
        client.ask(request);
    }
    let log = fixture.service.slowlog.newest(100);
    let line = |arguments: &[Vec<u8>]| String::from_utf8(arguments.join(&b' ')).unwrap();
    let shown: Vec<String> = log.iter().rev().map(|slow| line(&slow.arguments)).collect();
    let expected = [
        "AUTH (redacted)",
        "AUTH (redacted) (redacted)",
        "AUTH (redacted) (redacted) (redacted)",
        "HELLO 2 AUTH (redacted) (redacted) SETNAME me",
        "hello (redacted) (redacted) (redacted) (redacted)",
        "HELLO 2 AUTH (redacted)",
        "HELLO AUTH (redacted) (redacted)",
        "HELLO 2 SETNAME me AUTH (redacted) (redacted)",
        "HELLO 3 (redacted) (redacted) (redacted)",
        "HELLO 3 (redacted)",
        "CONFIG SET maxclients 1 REQUIREPASS (redacted) requirepass (redacted)",
        "CONFIG SET (redacted) (redacted)",
        "CONFIG SET requirepass (redacted) (redacted) (redacted)",
        "CONFIG SET (redacted) (redacted) (redacted)",
        "CLIENT LIST",
    ];
    assert_eq!(shown, expected);
}
