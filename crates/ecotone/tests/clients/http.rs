//! The real program, watched by HTTP: metrics under load, health, and clients of HTTP that
//! misbehave.

use crate::common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::http::{answer, get, metrics, send};
use common::{Server, configuration, serve};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connections that the server takes at a time.
const MAX_CONNECTIONS: usize = 64;

/// Connections of one address that the server takes at a time.
const MAX_OF_ONE_PEER: usize = 16;

/// Tries to be answered, of which the quickest counts: the machine may have had something else to
/// do.
const TRIES: usize = 3;

fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "{what} has not come");
        std::thread::yield_now();
    }
}

fn set(key: &str, bytes: usize) -> String {
    format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${bytes}\r\n{}\r\n", key.len(), "x".repeat(bytes))
}

/// Writes values, some of them separated, until stopped.
fn write_until(server: &Server, stop: &AtomicBool) {
    let (mut stream, mut replies) = (server.connect().0, vec![0; 5 * 100]);
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let requests: String = (0..100).map(|at| set(&format!("key{}", (number + at) % 5000), 40 + at * 10)).collect();
        number += 100;
        stream.write_all(requests.as_bytes()).unwrap();
        stream.read_exact(&mut replies).unwrap();
    }
}

#[test]
fn metrics_are_well_formed_and_counters_never_decrease_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
    let mut command =
        serve(&["--config", file.to_str().unwrap(), "--name", "a\"b\\c", "--store-option", "memtable_bytes=1048576"]);
    command.arg("--store-option").arg("profile=small-device");
    let server = Server::start(command);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| write_until(&server, &stop));
        let (mut last, mut changes, mut written) = (BTreeMap::new(), 0, 0.0);
        // Until some samples were taken, and flushes and compactions have run.
        let page = until("enough work", || {
            let page = metrics(&server.http);
            for sample in page.counters() {
                let series = (sample.name.clone(), sample.labels.clone());
                let before = last.insert(series, sample.value).unwrap_or(0.0);
                assert!(sample.value >= before, "{sample:?} was {before}");
            }
            let now = page.samples["ecotone_store_written_bytes_total"].first().map_or(0.0, |sample| sample.value);
            changes += u32::from(now > written);
            written = now;
            let has_flushed =
                page.samples["ecotone_store_flushes_total"].first().is_some_and(|sample| sample.value > 1.0);
            (changes >= 4 && has_flushed).then_some(page)
        });
        stop.store(true, Ordering::Relaxed);
        let [written, inserted] =
            ["ecotone_store_written_bytes_total", "ecotone_store_inserted_bytes_total"].map(|name| page.value(name));
        assert!(written > 1.5 * inserted, "separated values were written, too");
        let info = &page.samples["ecotone_federation_info"][0].labels;
        assert_eq!((info["name"].as_str(), info["role"].as_str()), ("a\"b\\c", "coordinator"));
        assert!(page.labelled("ecotone_commands_total", "command", "set") > 0.0);
        assert!(page.labelled("ecotone_energy_joules_total", "duty", "foreground") > 0.0);
        assert!(page.value("ecotone_clients_received_bytes_total") > page.value("ecotone_clients_sent_bytes_total"));
        assert!(page.value("process_resident_memory_bytes") > 1e6 && page.value("process_open_fds") > 3.0);
        let began = page.value("process_start_time_seconds");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        assert!(began <= now + 2.0 && began > now - 600.0, "{began} of {now}");
        assert!(page.value("ecotone_sample_age_seconds") < 15.0);
        let counted =
            |name: &str| page.samples[name].iter().find(|sample| sample.name.ends_with("_count")).unwrap().value;
        assert!(counted("ecotone_clients_response_seconds") > 0.0, "what clients wait for is measured");
        let strings: f64 = page.samples["ecotone_command_duration_seconds"]
            .iter()
            .filter(|sample| sample.name.ends_with("_count") && sample.labels["family"] == "string")
            .map(|sample| sample.value)
            .sum();
        assert!(strings > 0.0);
    });
    // An error is counted by its word, and one that a client makes up is none of the words.
    let mut client = server.connect();
    client.says("*1\r\n$6\r\nnosuch\r\n", "-ERR unknown command 'nosuch', with args beginning with: \r\n");
    let page = metrics(&server.http);
    assert_eq!(page.labelled("ecotone_clients_errors_total", "word", "ERR"), 1.0);
    server.terminate();
}

fn names_in(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_of_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
    ["ecotone_", "process_"].into_iter().flat_map(move |prefix| {
        text.match_indices(prefix).filter_map(move |(at, _)| {
            // Not in the middle of another name.
            if text[..at].ends_with(is_of_name) {
                return None;
            }
            let name = &text[at..];
            let end = name.find(|character| !is_of_name(character)).unwrap_or(name.len());
            let behind = &name[end..];
            let labels =
                behind.strip_prefix('{').and_then(|inside| inside.split_once('}')).map_or("", |(labels, _)| labels);
            Some((&name[..end], labels))
        })
    })
}

/// Every string of a key in a JSON document.
fn strings_of<'j>(json: &'j serde_json::Value, key: &str, found: &mut Vec<&'j str>) {
    match json {
        serde_json::Value::Object(object) => {
            found.extend(object.get(key).and_then(|value| value.as_str()));
            object.values().for_each(|value| strings_of(value, key, found));
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| strings_of(item, key, found)),
        _ => {}
    }
}

#[test]
fn dashboard_alerts_and_docs_name_only_metrics_that_are_there_and_the_docs_name_all() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let server = Server::with(&configuration(folder.path(), "listen = \"127.0.0.1:0\"\n"));
    let page = metrics(&server.http);
    server.terminate();
    // Name, type, labels.
    let reference = ecotone_server::metrics_reference();
    let known: BTreeMap<&str, &str> = reference
        .lines()
        .skip(2)
        .map(|row| {
            let mut cells = row.split('|').map(str::trim).skip(1);
            (cells.next().unwrap().trim_matches('`'), cells.nth(1).unwrap())
        })
        .collect();
    assert_eq!(known.keys().copied().collect::<Vec<_>>(), page.kinds.keys().collect::<Vec<_>>());

    let dashboard: serde_json::Value = serde_json::from_str(&read("contrib/grafana/ecotone.json")).unwrap();
    let mut expressions = Vec::new();
    strings_of(&dashboard, "expr", &mut expressions);
    assert!(expressions.len() > 20, "{expressions:?}");
    let mut queries = Vec::new();
    strings_of(&dashboard["templating"], "query", &mut queries);
    let (alerts, docs) = (read("contrib/prometheus/alerts.yml"), read("docs/operations.md"));
    let all = expressions.into_iter().chain(queries).chain([alerts.as_str(), docs.as_str()]);
    let mut used = 0;
    for (name, labels) in all.flat_map(names_in) {
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| {
            name.strip_suffix(suffix).filter(|family| page.kinds.get(*family).is_some_and(|kind| kind == "histogram"))
        });
        let family = family.unwrap_or(name);
        assert!(page.kinds.contains_key(family), "there is no metric {name}");
        for label in labels.split(',').filter(|label| !label.is_empty()) {
            let label = label.trim().split(['=', '!', '~']).next().unwrap();
            let is_known = ["instance", "job", "le"].contains(&label) || known[family].contains(&format!("`{label}`"));
            assert!(is_known, "{name} has no label {label}");
        }
        used += 1;
    }
    assert!(used > 100, "{used}");
    for name in page.kinds.keys() {
        assert!(docs.contains(&format!("| `{name}` |")), "docs/operations.md does not name {name}");
    }
}

#[test]
fn what_is_not_asked_for_as_it_should_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::with(&configuration(folder.path(), "listen = \"127.0.0.1:0\"\n"));
    let http = server.http.as_str();
    let status = |request: &[u8]| send(http, request).status;
    assert_eq!(status(b"GET /healthz HTTP/1.0\r\n\r\n"), 200);
    let other = get(http, "/metric");
    assert!(other.status == 404 && other.body.contains("/metrics") && other.body.contains("/readyz"), "{other:?}");
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let refused = send(http, format!("{method} /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc").as_bytes());
        assert!(refused.status == 405 && refused.head.contains("\r\nAllow: GET, HEAD"), "{refused:?}");
    }
    let head = send(http, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.status == 200 && head.body.is_empty() && head.head.contains("Content-Length: "), "{head:?}");
    // Also where it is refused: a body would be taken for the next answer.
    for (refused, said) in [(400, "HEAD nothing HTTP/1.1\r\n\r\n"), (505, "HEAD / HTTP/3.0\r\n\r\n")] {
        let head = send(http, said.as_bytes());
        assert!(head.status == refused && head.body.is_empty() && !head.head.contains("Length: 0"), "{head:?}");
    }
    // What comes behind the empty line is no part of the head, however its lines end.
    assert_eq!(status(b"GET /healthz HTTP/1.1\n\n\xff\xfe"), 200);
    assert_eq!(status(b"GET /healthz HTTP/1.1\n\nno header\r\n\r\n"), 200);
    assert_eq!(status(b"*1\r\n$4\r\nPING\r\n\r\n"), 400);
    assert_eq!(status(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"), 400);
    assert_eq!(status(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
    // However much comes, the answer is not lost.
    let long = format!("GET /metrics HTTP/1.1\r\nCookie: {}\r\n\r\n", "c".repeat(30_000));
    assert_eq!(status(long.as_bytes()), 431);
    let many: String = (0..2000).map(|number| format!("H{number}: v\r\n")).collect();
    assert_eq!(status(format!("GET /metrics HTTP/1.1\r\n{many}\r\n").as_bytes()), 431);
    // By the header as by the query.
    let asked = send(http, b"GET /readyz HTTP/1.1\r\nAccept: application/json\r\n\r\n");
    let json = |body: &str| serde_json::from_str::<serde_json::Value>(body).unwrap();
    assert_eq!(json(&asked.body)["status"], "ready");
    assert_eq!(json(&get(http, "/healthz?json").body), serde_json::json!({"status": "ok", "reasons": []}));
    // Two requests on one connection: the second is not answered, since the first one says that it
    // closes.
    let twice = send(http, b"GET /healthz HTTP/1.1\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n");
    assert_eq!((twice.status, twice.body.as_str()), (200, "ok\n"));
    assert!(twice.head.contains("Connection: close"), "{}", twice.head);
    server.terminate();
}

#[test]
fn who_sends_nothing_or_slowly_is_cut_off_and_others_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::with(&configuration(folder.path(), "listen = \"127.0.0.1:0\"\n"));
    let connect = |said: &str| {
        let mut stream = TcpStream::connect(&server.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(said.as_bytes()).unwrap();
        stream
    };
    let begun = "GET /metrics HTTP/1.1\r\nX: ";
    let mut slow = Vec::new();
    // A health check that waits until those are cut off fails, and its server is restarted.
    let tries = (0..TRIES).map(|_| {
        slow.extend((0..MAX_CONNECTIONS + 20).map(|number| connect(if number % 2 == 0 { begun } else { "" })));
        let began = Instant::now();
        assert_eq!(get(&server.http, "/healthz").status, 200);
        began.elapsed()
    });
    let quickest = tries.min().unwrap();
    assert!(quickest < Duration::from_secs(1), "{quickest:?}");
    // Of one address the newest stay, and get an answer when their time is over; the others were
    // evicted.
    let oldest = slow.len() - MAX_OF_ONE_PEER - 1;
    assert!(matches!(slow[oldest].read(&mut [0]), Ok(0) | Err(_)));
    // Bytes that trickle in do not prolong it.
    let (mut last, mut trickle) = (connect(begun), connect(begun));
    let trickling = std::thread::spawn(move || {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE && trickle.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
        begin.elapsed()
    });
    assert_eq!(answer(&mut last).status, 408);
    assert!(trickling.join().unwrap() < Duration::from_secs(30));
    // Clients of the store never noticed.
    server.connect().says("*1\r\n$4\r\nPING\r\n", "+PONG\r\n");
    drop(slow);
    server.terminate();
}

#[test]
fn a_server_that_refuses_writes_is_not_ready_but_lives() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
    let text = std::fs::read_to_string(&file).unwrap();
    // Its values shrink to nothing where they are compressed.
    let store = "[store]\nprofile = \"small-device\"\nvalue_compression = \"none\"\n";
    std::fs::write(&file, format!("{text}{store}[space]\nmax_bytes = 50331648\n")).unwrap();
    let server = Server::with(&file);
    until("ready", || (get(&server.http, "/readyz").status == 200).then_some(()));
    assert_eq!(get(&server.http, "/readyz").body, "ready\n");
    let mut client = server.connect().0;
    let mut reply = BufReader::new(client.try_clone().unwrap());
    let mut write = |request: &str| {
        client.write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        reply.read_line(&mut line).unwrap();
        line
    };
    let refused =
        (0..2000).map(|number| write(&set(&format!("key{number}"), 100_000))).find(|reply| reply != "+OK\r\n");
    assert!(refused.expect("200 MB do not fit into 48").starts_with("-OOM"));
    // What is smaller may still fit.
    let mut number = 0;
    let unready = until("not ready", || {
        number += 1;
        write(&set(&format!("small{number}"), 10_000));
        Some(get(&server.http, "/readyz")).filter(|answer| answer.status == 503)
    });
    assert!(unready.body.starts_with("not ready: writes are refused for want of space"), "{unready:?}");
    let json: serde_json::Value = serde_json::from_str(&get(&server.http, "/readyz?json").body).unwrap();
    assert_eq!(json["reasons"].as_array().unwrap().len(), 1, "{json}");
    assert_eq!(get(&server.http, "/healthz").status, 200);
    let page = metrics(&server.http);
    assert_eq!((page.value("ecotone_ready"), page.value("ecotone_healthy")), (0.0, 1.0));
    assert_eq!(page.value("ecotone_space_writes_refused"), 1.0);
    // What is deleted is compacted away, and then it is ready again by itself.
    assert_eq!(write("*1\r\n$8\r\nFLUSHALL\r\n"), "+OK\r\n");
    until("ready again", || (get(&server.http, "/readyz").status == 200).then_some(()));
    server.terminate();
}

/// What a server says that does not come up.
fn refused(arguments: &[&str]) -> String {
    let output = serve(arguments).stderr(Stdio::piped()).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn an_address_that_cannot_be_had_is_refused_by_name_and_the_default_one_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
    let text = std::fs::read_to_string(&file).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let said = refused(&["--config", file.to_str().unwrap(), "--http", &taken.local_addr().unwrap().to_string()]);
    assert!(said.contains("http.listen") && said.contains(&taken.local_addr().unwrap().to_string()), "{said}");

    std::fs::write(&file, text.replace("[http]\nlisten = \"127.0.0.1:0\"", "[http]\nlisten = \"0.0.0.0:0\"")).unwrap();
    let said = refused(&["--config", file.to_str().unwrap()]);
    let line = text.lines().position(|line| line == "[http]").unwrap() + 2;
    for part in [&format!("{}:{line}: http.listen", file.display()), "0.0.0.0:0", "http.public = true"] {
        assert!(said.contains(part), "{part:?} is not in {said:?}");
    }

    let _default = until("the default address", || TcpListener::bind("127.0.0.1:7480").ok());
    std::fs::write(&file, text.replace("[http]\nlisten = \"127.0.0.1:0\"\n", "")).unwrap();
    let server = Server::with(&file);
    assert_eq!(server.http, "", "it serves clients, and says that nobody can watch it");
    server.connect().says("*1\r\n$4\r\nPING\r\n", "+PONG\r\n");
    server.terminate();
}

#[test]
fn every_line_of_a_log_in_json_is_an_object() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
    let server = Server::with(&file);
    let objects = |text: &str| {
        text.lines().map(|line| serde_json::from_str::<serde_json::Map<_, _>>(line).unwrap()).collect::<Vec<_>>()
    };
    // A second server for the same folder does not come up, and says so in the same form.
    let said = refused(&["--config", file.to_str().unwrap()]);
    let last = objects(&said).pop().unwrap();
    assert_eq!(last["level"], "ERROR", "{said}");
    assert!(last["error"].as_str().unwrap().contains("in use"), "{said}");
    let rest = server.terminate_and_read();
    assert!(!objects(&rest).is_empty(), "its end is logged");
}

#[test]
fn the_level_of_the_log_is_what_the_configuration_says_unless_the_environment_says_more() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
    let notify = folder.path().join("notify");
    let quiet = |command: &mut std::process::Command| {
        let _ = std::fs::remove_file(&notify);
        let ready = UnixDatagram::bind(&notify).unwrap();
        ready.set_read_timeout(Some(PATIENCE)).unwrap();
        command.env("ECOTONE_SERVER_LOG_LEVEL", "error").env("NOTIFY_SOCKET", &notify);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 1024];
        while !said.starts_with(b"READY=1") {
            ready.recv(&mut said).unwrap();
        }
        let id = child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success(), "{said}");
        said
    };
    assert_eq!(quiet(&mut serve(&["--config", file.to_str().unwrap()])), "");
    let said = quiet(serve(&["--config", file.to_str().unwrap()]).env("RUST_LOG", "info"));
    assert!(said.contains("clients are served"), "{said}");
}
