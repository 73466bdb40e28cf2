//! FEDERATION, as a client sees it: what it asks of the server around the protocol, and how it is
//! answered.

use crate::common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use common::Fixture;
use common::served::{Served, any_port};
use ecotone_engine::StoreSettings;
use ecotone_resp::command::{categories, table};
use ecotone_resp::federation::{FederationRequest, MAX_REQUESTS};
use ecotone_resp::host::{Host, InfoSection};
use ecotone_resp::serve::{EventLoops, Listen};
use ecotone_resp::service::Limits;
use parking_lot::Mutex;

const PATIENCE: Duration = Duration::from_secs(120);

/// A host that hands requests over, and answers what it is told to.
struct Federated {
    asked: Mutex<Sender<FederationRequest>>,
    answers: Mutex<Receiver<Result<Vec<u8>, String>>>,
}

impl Host for Federated {
    fn info(&self, _: &str) -> Vec<InfoSection> {
        Vec::new()
    }

    fn settings(&self, _: &dyn Fn(&str) -> bool) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn is_secret(&self, _: &str) -> bool {
        false
    }

    fn change(&self, _: &[(String, String)]) -> Result<(), String> {
        Ok(())
    }

    fn rewrite(&self) -> Result<(), String> {
        Ok(())
    }

    fn federation(&self, request: &FederationRequest) -> Result<Vec<u8>, String> {
        self.asked.lock().send(request.clone()).unwrap();
        self.answers.lock().recv_timeout(PATIENCE).unwrap()
    }

    fn shut_down(&self) {}
}

struct Asked {
    served: Served,
    requests: Receiver<FederationRequest>,
    answers: Sender<Result<Vec<u8>, String>>,
}

fn served() -> Asked {
    let (asked, requests) = channel();
    let (answers, answered) = channel();
    let host = Arc::new(Federated { asked: Mutex::new(asked), answers: Mutex::new(answered) });
    let mut fixture = Fixture::with(StoreSettings::default());
    fixture.service.host = host;
    let listen = Listen { addresses: any_port(), event_loops: EventLoops::All(1), ..Listen::default() };
    Asked { served: Served::over(fixture, &listen, Limits::default()), requests, answers }
}

impl Asked {
    fn connect(&self) -> BufReader<TcpStream> {
        let stream = TcpStream::connect(self.served.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        BufReader::new(stream)
    }

    fn request(&self) -> FederationRequest {
        self.requests.recv_timeout(PATIENCE).unwrap()
    }
}

fn say(client: &mut BufReader<TcpStream>, request: &str) {
    client.get_mut().write_all(format!("{request}\r\n").as_bytes()).unwrap();
}

fn line(client: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    line
}

#[test]
fn each_subcommand_is_asked_of_the_host_and_its_answer_is_the_reply() {
    let asked = served();
    let mut client = asked.connect();
    let name = || "edge-2".to_owned();
    for (request, wanted) in [
        ("FEDERATION STATUS", FederationRequest::Status),
        ("federation token", FederationRequest::Token),
        ("FEDERATION CREATE", FederationRequest::Create { shards: None, copies: None, level: None }),
        ("FEDERATION CREATE 12", FederationRequest::Create { shards: Some(12), copies: None, level: None }),
        (
            "FEDERATION CREATE 12 level All copies 3",
            FederationRequest::Create { shards: Some(12), copies: Some(3), level: Some("all".into()) },
        ),
        ("FEDERATION CREATE COPIES 2", FederationRequest::Create { shards: None, copies: Some(2), level: None }),
        ("FEDERATION SWITCHOVER 3 to edge-2", FederationRequest::SwitchOver { shard: 3, to: name() }),
        ("FEDERATION PROMOTE 3 TO edge-2", FederationRequest::Promote { shard: 3, to: name(), force: false }),
        ("FEDERATION PROMOTE 3 TO edge-2 force", FederationRequest::Promote { shard: 3, to: name(), force: true }),
        ("FEDERATION REPAIR 3", FederationRequest::Repair { shard: 3, server: None, begin: true }),
        ("FEDERATION REPAIR 3 progress", FederationRequest::Repair { shard: 3, server: None, begin: false }),
        (
            "FEDERATION REPAIR 3 server edge-2 PROGRESS",
            FederationRequest::Repair { shard: 3, server: Some(name()), begin: false },
        ),
        ("FEDERATION GET", FederationRequest::Get { name: None }),
        ("FEDERATION GET a", FederationRequest::Get { name: Some("a".into()) }),
        ("FEDERATION DRAIN edge-2", FederationRequest::Drain { server: name(), drain: true }),
        ("FEDERATION UNDRAIN edge-2", FederationRequest::Drain { server: name(), drain: false }),
        ("FEDERATION REMOVE edge-2", FederationRequest::Remove { server: name(), force: false }),
        ("FEDERATION REMOVE edge-2 force", FederationRequest::Remove { server: name(), force: true }),
        ("FEDERATION REBALANCE", FederationRequest::Rebalance),
        ("FEDERATION MOVE 3 to edge-2", FederationRequest::Move { shard: 3, to: name() }),
        ("FEDERATION SET a b", FederationRequest::Set { name: "a".into(), value: Some("b".into()) }),
        ("FEDERATION SET a", FederationRequest::Set { name: "a".into(), value: None }),
        ("FEDERATION EXPORT", FederationRequest::Export),
    ] {
        say(&mut client, request);
        assert_eq!(asked.request(), wanted, "{request}");
        // Bytes of any kind, as those of a map.
        asked.answers.send(Ok(b"\r\n\x00{}".to_vec())).unwrap();
        let mut reply = [0; 11];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"$5\r\n\r\n\x00{}\r\n", "{request}");
    }
    say(&mut client, "FEDERATION REBALANCE");
    asked.answers.send(Err("nobody leads:\nask again".into())).unwrap();
    assert_eq!(line(&mut client), "-ERR nobody leads: ask again\r\n");
}

#[test]
fn who_waits_keeps_nobody_from_being_served_and_too_many_are_refused() {
    let asked = served();
    let (mut waiting, mut other) = (Vec::new(), asked.connect());
    for _ in 0..MAX_REQUESTS {
        let mut client = asked.connect();
        say(&mut client, "PING\r\nFEDERATION STATUS\r\nPING");
        assert_eq!(line(&mut client), "+PONG\r\n", "what was asked before is answered meanwhile");
        asked.request();
        waiting.push(client);
    }
    say(&mut other, "FEDERATION STATUS");
    assert!(line(&mut other).starts_with("-BUSY 8 requests to the federation are under way"));
    say(&mut other, "SET a 1");
    assert_eq!(line(&mut other), "+OK\r\n");
    for _ in &waiting {
        asked.answers.send(Ok(b"{}".to_vec())).unwrap();
    }
    for client in &mut waiting {
        assert_eq!([line(client), line(client), line(client)], ["$2\r\n", "{}\r\n", "+PONG\r\n"]);
    }
    say(&mut other, "FEDERATION STATUS");
    asked.request();
    // It has gone, and a stop waits for what it has asked.
    drop(other);
    asked.answers.send(Ok(b"{}".to_vec())).unwrap();
    asked.served.service.federation.finish();
    let mut late = asked.connect();
    say(&mut late, "FEDERATION STATUS");
    assert_eq!(line(&mut late), "-ERR the server stops\r\n");
}

#[test]
fn its_arguments_and_who_may_ask_are_as_of_other_commands() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for (request, reply) in [
        ("FEDERATION CREATE many", "-ERR value is not an integer or out of range\r\n"),
        ("FEDERATION CREATE -1", "-ERR value is out of range, must be positive\r\n"),
        ("FEDERATION CREATE 1 2", "-ERR syntax error\r\n"),
        ("FEDERATION CREATE 1 COPIES", "-ERR syntax error\r\n"),
        ("FEDERATION CREATE COPIES 2 COPIES 3", "-ERR syntax error\r\n"),
        ("FEDERATION REMOVE a NOW", "-ERR syntax error\r\n"),
        ("FEDERATION SWITCHOVER 1 INTO a", "-ERR syntax error\r\n"),
        ("FEDERATION PROMOTE 1 TO a NOW", "-ERR syntax error\r\n"),
        ("FEDERATION GET a b", "-ERR syntax error\r\n"),
        ("FEDERATION MOVE 1 INTO a", "-ERR syntax error\r\n"),
        ("FEDERATION DRAIN", "-ERR wrong number of arguments for 'federation|drain' command\r\n"),
        ("FEDERATION", "-ERR wrong number of arguments for 'federation' command\r\n"),
    ] {
        assert_eq!(client.ask(request), reply, "{request}");
    }
    client.ask("MULTI");
    assert_eq!(client.ask("FEDERATION STATUS"), "-ERR Command not allowed inside a transaction\r\n");
    let command = table::find_full(b"federation|status").unwrap();
    let categories: Vec<_> = categories::categories(command).collect();
    assert_eq!(categories, ["admin", "slow", "dangerous"]);
}
