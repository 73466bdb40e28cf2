//! A federation as its operator makes it, sees it and changes it: by commands, with tokens.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ecotone_server::record::Record;
use serde_json::{Value, json};

/// How long anything may take on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn ecotone(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    command.args(arguments).env_remove("RUST_LOG").env_remove("ECOTONE_CLIENTS_PASSWORD");
    command.output().unwrap()
}

pub(super) fn cluster(arguments: &[&str]) -> Value {
    let output = ecotone(&[&["cluster"], arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What a command says that is refused.
pub(super) fn refused(arguments: &[&str]) -> String {
    let output = ecotone(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

pub(super) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A server of a federation, killed when dropped.
pub(super) struct Server {
    pub(super) name: String,
    child: Child,
    /// Where servers and clients reach it.
    peers: String,
    pub(super) clients: String,
}

impl Server {
    /// Starts it at any free ports, or where it was before.
    pub(super) fn start(directory: &Path, name: &str, at: Option<(&str, &str)>, more: &[&str]) -> Server {
        let (listen, clients) = at.unwrap_or(("127.0.0.1:0", "127.0.0.1:0"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
        command.args(["serve", "--name", name, "--listen", listen, "--clients", clients, "--http", "off"]);
        command.args(["--zone", name, "--records", "-", "--dir"]).arg(directory.join(name)).args(more);
        let mut child = command.env("RUST_LOG", "error").stdout(Stdio::piped()).spawn().unwrap();
        let mut records = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        records.read_line(&mut line).unwrap();
        let Ok(Record::Ready(ready)) = serde_json::from_str(&line) else { panic!("{name} is not ready: {line}") };
        // Its samples: a server does not wait for who reads them, but a pipe holds only so many.
        std::thread::spawn(move || std::io::copy(&mut records, &mut std::io::sink()));
        Server { name: name.into(), child, peers: ready.listen, clients: ready.clients.unwrap() }
    }

    /// Another one, which joins by a token of this one.
    pub(super) fn joined(&self, directory: &Path, name: &str) -> Server {
        let token = cluster(&["token", &self.clients])["token"].as_str().unwrap().to_owned();
        Server::start(directory, name, None, &["--join", &self.peers, "--token", &token])
    }

    /// The same with more arguments.
    pub(super) fn joined_with(&self, directory: &Path, name: &str, more: &[&str]) -> Server {
        let token = cluster(&["token", &self.clients])["token"].as_str().unwrap().to_owned();
        Server::start(directory, name, None, &[&["--join", &self.peers, "--token", &token], more].concat())
    }

    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn again(&self, directory: &Path) -> Server {
        Server::start(directory, &self.name, Some((&self.peers, &self.clients)), &[])
    }

    pub(super) fn status(&self) -> Value {
        cluster(&["status", &self.clients])
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks as a client does: what comes until the server ends the connection.
    pub(super) fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.clients).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(format!("{request}\r\nQUIT\r\n").as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }
}

impl Server {
    /// What cluster clients know it by, once it serves them: it begins to when it has heard of more
    /// than one shard.
    fn id(&self) -> String {
        let mut id = String::new();
        until("it serves cluster clients", || {
            let reply = self.ask("CLUSTER MYID");
            id = reply.lines().nth(1).unwrap_or_default().to_owned();
            reply.starts_with('$')
        });
        id
    }

    /// Its connections with others: the direction of each, the other one's id, and since when.
    fn links(&self) -> Vec<(String, String, u64)> {
        let reply = self.ask("CLUSTER LINKS");
        let lines: Vec<&str> = reply.lines().collect();
        let after = |name: &str, skipped: usize| {
            let places = lines.iter().enumerate().filter(|(_, line)| **line == name);
            places.map(|(place, _)| lines[place + skipped].to_owned()).collect::<Vec<_>>()
        };
        let since = after("create-time", 1).into_iter().map(|ms| ms.trim_start_matches(':').parse().unwrap());
        after("direction", 2).into_iter().zip(after("node", 2)).zip(since).map(|((to, id), ms)| (to, id, ms)).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn names(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

fn server<'s>(status: &'s Value, name: &str) -> Option<&'s Value> {
    status["servers"].as_array().unwrap().iter().find(|server| server["name"] == name)
}

#[test]
fn a_folder_becomes_the_first_of_a_federation_once() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("first");
    let made = cluster(&["init", "--dir", text(&folder), "--name", "first", "--zone", "north"]);
    assert_eq!((&made["server"], &made["member"], &made["shards"]), (&json!("first"), &json!(1), &json!(0)));
    assert_eq!(made["federation"].as_str().unwrap().len(), 16);
    let again = refused(&["cluster", "init", "--dir", text(&folder)]);
    assert!(again.contains("server.pem"), "{again}");
    // Its folder gives tokens and the map as long as it does not run.
    let [one, other] = [(), ()].map(|()| cluster(&["token", text(&folder)])["token"].as_str().unwrap().to_owned());
    assert!(one != other && one.starts_with("eco1-"), "{one} {other}");
    let file = directory.path().join("map");
    let exported = cluster(&["export", text(&folder), text(&file)]);
    assert_eq!((&exported["federation"], &exported["servers"]), (&made["federation"], &json!(1)));
    assert!(file.metadata().unwrap().len() > 100);
    // What needs others needs a server that runs.
    let stopped = refused(&["cluster", "status", text(&folder)]);
    assert!(stopped.contains("no server runs on") && stopped.contains("ecotone serve --dir"), "{stopped}");
    let nowhere = refused(&["cluster", "token", text(directory.path())]);
    assert!(nowhere.contains("has no log of a federation"), "{nowhere}");
    let with_store = directory.path().join("data");
    std::fs::create_dir_all(with_store.join("store")).unwrap();
    std::fs::write(with_store.join("store/CURRENT"), "MANIFEST-000001\n").unwrap();
    let witness = refused(&["cluster", "init", "--dir", text(&with_store), "--name", "w", "--witness"]);
    assert!(witness.contains("a witness holds no data"), "{witness}");
    assert_eq!(cluster(&["init", "--dir", text(&with_store), "--name", "w"])["shards"], 1);
}

#[test]
fn to_begin_anew_is_refused_without_a_word_for_it_and_says_what_is_at_risk() {
    let directory = tempfile::tempdir().unwrap();
    let [first, foreign] = ["first", "foreign"].map(|name| directory.path().join(name));
    let federation = cluster(&["init", "--dir", text(&first), "--name", "first"])["federation"].clone();
    cluster(&["init", "--dir", text(&foreign), "--name", "first"]);
    let recover = ["cluster", "recover", "--force-new", "--dir", text(&first)];
    let risks = refused(&recover);
    for said in ["nothing was changed", "--yes", "is lost", "must never again run", "Do it on one server only", "index"]
    {
        assert!(risks.contains(said), "{said}: {risks}");
    }
    assert!(refused(&recover[..2]).contains("--force-new"));
    let done = cluster(&[&recover[1..], &["--yes"]].concat());
    assert_eq!((&done["federation"], &done["generation"], &done["member"]), (&federation, &json!(2), &json!(1)));
    assert_eq!(done["keeps_authority"], true);
    let file = directory.path().join("map");
    cluster(&["export", text(&first), text(&file)]);
    assert_eq!(cluster(&["import", text(&file), "--dir", text(&first), "--yes"])["generation"], 3);
    let other = refused(&["cluster", "import", text(&file), "--dir", text(&foreign), "--yes"]);
    assert!(other.contains("the map is of federation"), "{other}");
    std::fs::write(&file, "nothing of the kind").unwrap();
    let damaged = refused(&["cluster", "import", text(&file), "--dir", text(&first), "--yes"]);
    assert!(damaged.contains("is no map of a federation"), "{damaged}");
    // It begins with what it was given, and while it runs nobody can do it.
    let server = Server::start(directory.path(), "first", None, &[]);
    until("it leads", || server.status()["leader"]["name"] == "first");
    assert_eq!(server.status()["generation"], 3);
    let running = refused(&[&recover[..], &["--yes"]].concat());
    assert!(running.contains("another process runs the control plane"), "{running}");
}

#[test]
fn what_is_stored_already_is_the_first_shard() {
    let directory = tempfile::tempdir().unwrap();
    let mut alone = Server::start(directory.path(), "only", None, &[]);
    assert!(alone.ask("SET a 1").starts_with("+OK"));
    let unknown = refused(&["cluster", "status", &alone.clients]);
    assert!(unknown.contains("is alone") && unknown.contains("ecotone cluster init --dir"), "{unknown}");
    alone.kill();
    assert_eq!(cluster(&["init", "--dir", text(&directory.path().join("only")), "--name", "only"])["shards"], 1);
    let server = alone.again(directory.path());
    until("it leads", || server.status()["leader"]["name"] == "only");
    let status = server.status();
    let shard = &status["shards"][0];
    assert_eq!((&shard["shard"], &shard["slots"], &shard["epoch"]), (&json!(1), &json!([[0, 16383]]), &json!(1)));
    assert_eq!((&shard["primary"], &shard["copies"][0]["server"]), (&json!("only"), &json!("only")));
    assert_eq!((status["shards"].as_array().unwrap().len(), &shard["unprotected"]), (1, &json!(false)));
    assert!(server.ask("GET a").starts_with("$1\r\n1\r\n"));
    let dealt = refused(&["cluster", "create", &server.clients, "--shards", "3"]);
    assert!(dealt.contains("slots are dealt already (1 shard on only)"), "{dealt}");
}

/// Three servers join, get shards, lose their leader, and let one go.
#[test]
fn a_federation_lives_through_the_death_of_its_leader_and_lets_servers_go() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    cluster(&["init", "--dir", text(&folder.join("one")), "--name", "one", "--zone", "one"]);
    let one = Server::start(folder, "one", None, &[]);
    until("the first one leads", || one.status()["leader"]["name"] == "one");
    let too_soon = one.ask("SET a 1");
    assert!(too_soon.starts_with("-CLUSTERDOWN"), "{too_soon}");
    let token = cluster(&["token", &one.clients])["token"].as_str().unwrap().to_owned();
    let two = Server::start(folder, "two", None, &["--join", &one.peers, "--token", &token]);
    // A token is good once; who comes with a spent one does not come up.
    let late = ["serve", "--name", "late", "--listen", "127.0.0.1:0", "--clients", "off", "--http", "off", "--dir"];
    let late_folder = folder.join("late");
    let late = [&late[..], &[text(&late_folder), "--join", &one.peers, "--token", &token]].concat();
    let spent = refused(&late);
    assert!(spent.contains("spent") && spent.contains("ecotone cluster token"), "{spent}");
    let three = one.joined(folder, "three");
    let mut servers = vec![one, two, three];
    until("three vote", || {
        let status = servers[0].status();
        names(&status["voters"]).len() == 3
            && status["servers"].as_array().unwrap().iter().all(|server| server["state"] == "active")
    });

    // Who votes has the authority, and can let others in.
    let add = ["cluster", "add", &servers[2].clients, "--name", "four", "--zone", "west"];
    until("a new voter gives tokens", || ecotone(&add).status.success());
    let command = cluster(&add[1..])["command"].as_str().unwrap().to_owned();
    assert!(
        command.contains("--name four --zone west --join 127.0.0.1:") && command.contains(" --token eco1-"),
        "{command}"
    );

    // Whoever is asked, the leader decides; and all come to know it.
    let created = cluster(&["create", &servers[2].clients, "--shards", "6"]);
    assert_eq!(created["shards"].as_array().unwrap().len(), 6);
    until("all know the shards", || {
        servers.iter().all(|server| server.status()["servers"].as_array().unwrap().iter().all(|of| of["shards"] == 2))
    });
    assert_eq!(cluster(&["rebalance", &servers[1].clients])["moves"], json!([]));
    let nobody = refused(&["cluster", "drain", &servers[0].clients, "four"]);
    assert!(nobody.contains("there are one, two, three"), "{nobody}");
    let info = servers[0].ask("INFO cluster");
    for line in ["control_voters:one,two,three\r\n", "control_shards_owned:2\r\n", "control_servers_active:3\r\n"] {
        assert!(info.contains(line), "{line}: {info}");
    }
    assert!(info.contains("cluster_enabled:") && info.contains("control_certificate_expiry_seconds:"), "{info}");

    // The leader has connections with both others, both ways, and says so.
    let leader = servers[0].status()["leader"]["name"].as_str().unwrap().to_owned();
    let place = servers.iter().position(|server| server.name == leader).unwrap();
    let mut dead = servers.remove(place);
    let (dead_id, ids) = (dead.id(), [servers[0].id(), servers[1].id()]);
    until("its connections are told", || {
        let links = dead.links();
        let is_there = |to: &str, id: &String| links.iter().any(|(direction, node, _)| direction == to && node == id);
        ids.iter().all(|id| is_there("to", id) && is_there("from", id))
    });
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    for (direction, node, since_ms) in dead.links() {
        assert!(["to", "from"].contains(&direction.as_str()) && ids.contains(&node), "{direction} {node}");
        assert!(since_ms + 600_000 > now_ms && since_ms <= now_ms + 60_000, "{since_ms}, now {now_ms}");
    }
    until("the others tell of it", || servers[0].links().iter().any(|(_, node, _)| *node == dead_id));

    // It dies; the others go on, and decide.
    dead.kill();
    until("its connections are gone", || !servers[0].links().iter().any(|(_, node, _)| *node == dead_id));
    until("another one leads", || {
        let leader = servers[0].status()["leader"]["name"].clone();
        !leader.is_null() && leader != dead.name.as_str()
    });
    let held = refused(&["cluster", "remove", &servers[0].clients, &dead.name]);
    assert!(held.contains("vote") || held.contains("last in-sync copy"), "{held}");
    let drained = cluster(&["drain", &servers[1].clients, &dead.name]);
    assert_eq!((&drained["decided"]["outcome"], drained["shards"].as_array().unwrap().len()), (&json!("changed"), 2));
    let plan = cluster(&["rebalance", &servers[0].clients]);
    let moves = plan["moves"].as_array().unwrap();
    assert!(moves.len() == 2 && moves.iter().all(|shard| shard["from"] == dead.name.as_str()), "{plan}");

    // It comes back, and learns what was decided without it.
    let back = dead.again(folder);
    until("it has learned", || {
        let status = back.status();
        server(&status, &dead.name).is_some_and(|own| own["state"] == "draining") && !status["leader"].is_null()
    });
    until("it votes no longer", || !names(&servers[0].status()["voters"]).contains(&dead.name));
    let held = refused(&["cluster", "remove", &servers[0].clients, &dead.name]);
    assert!(held.contains("last in-sync copy"), "{held}");
    let removed = cluster(&["remove", &servers[0].clients, &dead.name, "--force"]);
    assert_eq!(removed["removed"]["name"], dead.name.as_str());
    for server_left in &servers {
        until("it is gone", || server(&server_left.status(), &dead.name).is_none());
    }
    let orphans =
        servers[0].status()["shards"].as_array().unwrap().iter().filter(|shard| shard["primary"].is_null()).count();
    assert_eq!(orphans, 2);
    // Nothing comes of what it asks.
    let other = servers[0].name.clone();
    refused(&["cluster", "drain", &back.clients, &other]);
    assert_eq!(server(&servers[0].status(), &other).unwrap()["state"], "active");
    let held = refused(&["cluster", "remove", &servers[1].clients, &other]);
    assert!(["vote", "last in-sync copy", "leads the federation"].iter().any(|why| held.contains(why)), "{held}");
}

#[test]
fn a_server_that_others_can_reach_needs_an_identity() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("data");
    let with = ["serve", "--dir", text(&folder), "--clients", "off", "--http", "off", "--listen", "0.0.0.0:0"];
    let refused = refused(&[&with[..], &["--announce", "edge:7411"]].concat());
    for said in ["0.0.0.0:0", "ecotone cluster init --dir", "--token"] {
        assert!(refused.contains(said), "{said}: {refused}");
    }
    assert!(!folder.join("store").exists());
}

#[test]
fn a_witness_takes_neither_clients_nor_a_workload() {
    let directory = tempfile::tempdir().unwrap();
    let with = ["serve", "--dir", text(directory.path()), "--witness", "--http", "off", "--listen", "127.0.0.1:0"];
    let clients = refused(&[&with[..], &["--clients", "127.0.0.1:0"]].concat());
    assert!(clients.contains("a witness has no store"), "{clients}");
    let workload = refused(&[&with[..], &["--workload", "fillrandom"]].concat());
    assert!(workload.contains("a witness has no store, and so no workload"), "{workload}");
    let alone = refused(&with);
    assert!(alone.contains("a witness belongs to a federation"), "{alone}");
}
