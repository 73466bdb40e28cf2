//! `verify`, `space` and `repair` of a store that a server has open: it is asked, and nothing is
//! ever called damaged; where it cannot be asked the command says by whom the store is used, and
//! how to ask.

use crate::common;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use common::{PATIENCE, Server, configuration, serve};
use ecotone_engine::{OpenMode, Store, StoreSettings};
use serde_json::Value;

/// Small memtables and tables, so that flushes, compactions and removals of segments never end.
const BUSY: &str = "[store]\nmemtable_bytes = 131072\nlevel_base_bytes = 1048576\ntarget_file_bytes = 131072\nl0_compaction_trigger = 2\n";

/// Commands of each kind while the server is written.
const ROUNDS: usize = 6;

fn ecotone(arguments: &[&str], password: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    command.args(arguments).env_remove("RUST_LOG").env_remove("ECOTONE_CLIENTS_PASSWORD");
    if let Some(password) = password {
        command.env("ECOTONE_CLIENTS_PASSWORD", password);
    }
    command.output().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What a command that must succeed printed as JSON.
#[track_caller]
fn report_of(arguments: &[&str], password: Option<&str>) -> Value {
    let output = ecotone(arguments, password);
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {error}{out}");
    assert_eq!(error, "", "{arguments:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What a command that must fail said. No damage may have been reported.
#[track_caller]
fn refused(arguments: &[&str], password: Option<&str>) -> String {
    let output = ecotone(arguments, password);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}: {said}");
    assert!(!said.contains("damage") && !said.contains("loss of power"), "{said}");
    said
}

fn names(of: &Value) -> Vec<&String> {
    of.as_object().unwrap().keys().collect()
}

/// Writes, overwrites and deletes until it is to end.
fn write_until(server: &Server, ends: &AtomicBool) {
    let mut client = server.connect();
    let value = "v".repeat(700);
    for number in 0_u64.. {
        if ends.load(Ordering::Relaxed) {
            return;
        }
        let key = format!("key{:05}", number.wrapping_mul(2_654_435_761) % 4_000);
        let short = &value[..if number.is_multiple_of(3) { 20 } else { 700 }];
        match number % 40 {
            0 => {
                let request = format!("*2\r\n$3\r\nDEL\r\n${}\r\n{key}\r\n", key.len());
                client.0.write_all(request.as_bytes()).unwrap();
                let mut reply = [0; 4];
                client.0.read_exact(&mut reply).unwrap();
            }
            _ => client.says(
                &format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n{short}\r\n", key.len(), short.len()),
                "+OK\r\n",
            ),
        }
    }
}

fn a_server_under_load_is_asked(more: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), &format!("listen = \"127.0.0.1:0\"\n{BUSY}{more}"));
    let data = folder.path().join("data");
    let server = Server::with(&file);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2).map(|_| scope.spawn(|| write_until(&server, &ends))).collect();
        let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..ROUNDS {
                // The server's folder and its store, and the address of the server, mean the same.
                let place = match round % 3 {
                    0 => text(&data).to_owned(),
                    1 => text(&data.join("store")).to_owned(),
                    _ => server.listening.clone(),
                };
                let report = report_of(&["verify", &place, "--json"], None);
                assert_eq!(report["damaged_count"], 0, "{report}");
                assert!(report["torn_ends"].as_array().unwrap().is_empty(), "{report}");
                let space = report_of(&["space", &place, "--json"], None);
                assert!(space["levels"].is_array(), "{space}");
                report_of(&["space", &place, "--json", "--exact"], None);
            }
        }));
        ends.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        asked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let live = report_of(&["verify", text(&data), "--json"], None);
    let live_space = report_of(&["space", text(&data), "--json"], None);
    let output = ecotone(&["verify", text(&data)], None);
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("sound\n"));
    // Nothing is left of what was checked.
    let left: Vec<_> = std::fs::read_dir(data.join("store")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_str().unwrap().starts_with("checked")), "{left:?}");
    let said = refused(&["repair", text(&data), "--into", text(&folder.path().join("saved"))], None);
    assert!(said.contains(&format!("in use by process {}", server.child.id())) && said.contains("stop it"), "{said}");
    assert!(!folder.path().join("saved").exists() && !folder.path().join("saved.unfinished").exists());

    // A server that was killed is not there to be asked, though its file says where it was.
    let mut server = server;
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    assert!(data.join("serving.json").exists());
    let offline = report_of(&["verify", text(&data), "--json"], None);
    assert_eq!(offline["damaged_count"], 0, "{offline}");
    assert_eq!(names(&live), names(&offline));
    assert_eq!(live["entries"], offline["entries"]);
    assert_eq!(names(&live_space), names(&report_of(&["space", text(&data), "--json"], None)));
}

#[test]
fn a_server_with_a_value_log_is_asked_while_it_is_written() {
    a_server_under_load_is_asked("gc_ratio = 1.1\n");
}

#[test]
fn a_server_without_a_value_log_is_asked_while_it_is_written() {
    a_server_under_load_is_asked("separation_min_bytes = \"off\"\n");
}

#[test]
fn damage_is_found_by_the_server_that_has_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
    let data = folder.path().join("data");
    let server = Server::with(&file);
    let mut client = server.connect();
    for number in 0..2_000 {
        let key = format!("key{number:05}");
        client.says(&format!("*3\r\n$3\r\nSET\r\n$8\r\n{key}\r\n$20\r\n{}\r\n", "v".repeat(20)), "+OK\r\n");
    }
    client.says("*1\r\n$4\r\nSAVE\r\n", "+OK\r\n");
    let tables = std::fs::read_dir(data.join("store")).unwrap().map(|entry| entry.unwrap().path());
    // The only one: nothing is compacted meanwhile.
    let table = tables.filter(|path| path.extension().is_some_and(|extension| extension == "sst")).max().unwrap();
    let mut bytes = std::fs::read(&table).unwrap();
    bytes[100] ^= 1;
    // In the same file, which the server has open.
    let mut damaged = std::fs::File::options().write(true).open(&table).unwrap();
    damaged.write_all(&bytes).unwrap();
    let output = ecotone(&["verify", text(&data), "--json"], None);
    assert!(!output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["damaged_count"].as_u64().unwrap() > 0, "{report}");
    let place = report["damaged"][0]["place"].as_str().unwrap();
    assert_eq!(place, text(&table), "{report}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("is damaged in") && said.contains(&server.listening), "{said}");
}

#[test]
fn a_password_is_asked_for_and_given() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\npassword = \"secret\"\n");
    let data = folder.path().join("data");
    let server = Server::with(&file);
    for command in ["verify", "space"] {
        let said = refused(&[command, text(&data)], None);
        let by = format!("in use by process {}", server.child.id());
        assert!(
            said.contains(&by) && said.contains("asks for a password") && said.contains("--password-file"),
            "{said}"
        );
        let said = refused(&[command, text(&data)], Some("wrong"));
        assert!(said.contains("does not take the password"), "{said}");
        report_of(&[command, text(&data), "--json"], Some("secret"));
        let password = folder.path().join("password");
        std::fs::write(&password, "secret\n").unwrap();
        report_of(&[command, text(&data), "--json", "--password-file", text(&password)], None);
    }
    server.terminate();
    assert!(!data.join("serving.json").exists(), "a server that has ended says nothing any more");
    report_of(&["verify", text(&data), "--json"], None);
}

#[test]
fn a_unix_socket_is_enough_and_without_any_the_command_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let file = configuration(folder.path(), &format!("listen = \"off\"\nunix_socket = {:?}\n", text(&socket)));
    let data = folder.path().join("data");
    let server = Server::with(&file);
    assert_eq!(report_of(&["verify", text(&data), "--json"], None)["damaged_count"], 0);
    server.terminate();

    let file = configuration(folder.path(), "listen = \"off\"\n");
    let mut command = serve(&["--config", text(&file)]);
    let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    until(|| data.join("serving.json").exists());
    let said = refused(&["verify", text(&data)], None);
    assert!(said.contains("serves no clients") && said.contains(&format!("process {}", child.id())), "{said}");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Waits until it is so.
fn until(is_so: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A store in the folder of a server, open in this process, which is no server.
fn held_here(folder: &Path) -> (PathBuf, Store) {
    let data = folder.join("data");
    std::fs::create_dir(&data).unwrap();
    let store = Store::open(&data.join("store"), OpenMode::Create, StoreSettings::default()).unwrap();
    store.put(b"key", b"value").unwrap();
    (data, store)
}

#[test]
fn a_store_that_another_program_has_open_is_in_use_whatever_its_folder_says() {
    let folder = tempfile::tempdir().unwrap();
    let (data, store) = held_here(folder.path());
    let own = format!("in use by process {}", std::process::id());
    let commands = ["verify", "space"];
    for command in commands {
        let said = refused(&[command, text(&data)], None);
        assert!(said.contains(&own) && said.contains("HOST:PORT"), "{said}");
    }
    // What another process has said, or nobody could have.
    let says = |text: &str| std::fs::write(data.join("serving.json"), text).unwrap();
    let addresses = |pid: u32, clients: &str| {
        format!("{{\"pid\":{pid},\"clients\":[{clients}],\"tls\":[],\"socket\":null,\"http\":[]}}")
    };
    for stale in [String::new(), "{\"pid\":".into(), addresses(std::process::id() + 1, "\"127.0.0.1:1\"")] {
        says(&stale);
        let said = refused(&["verify", text(&data)], None);
        assert!(said.contains(&own) && said.contains("does not say"), "{stale}: {said}");
    }
    // Nobody is there.
    says(&addresses(std::process::id(), "\"127.0.0.1:1\""));
    let said = refused(&["verify", text(&data)], None);
    assert!(said.contains(&own) && said.contains("no server answers") && said.contains("127.0.0.1:1"), "{said}");
    // Another server is.
    let other_folder = tempfile::tempdir().unwrap();
    let other = Server::with(&configuration(other_folder.path(), "listen = \"127.0.0.1:0\"\n"));
    says(&addresses(std::process::id(), &format!("{:?}", other.listening)));
    let said = refused(&["verify", text(&data)], None);
    assert!(said.contains(&own) && said.contains("another server answers"), "{said}");
    // By TLS it may be there.
    says(&format!(
        "{{\"pid\":{},\"clients\":[],\"tls\":[\"127.0.0.1:7\"],\"socket\":null,\"http\":[]}}",
        std::process::id()
    ));
    let said = refused(&["verify", text(&data)], None);
    assert!(said.contains("by TLS only") && said.contains("INSPECT START VERIFY") && said.contains("-p 7"), "{said}");
    // Closed, it is read.
    store.close().unwrap();
    assert_eq!(report_of(&["verify", text(&data), "--json"], None)["entries"], 1);
}

#[test]
fn one_inspection_at_a_time_which_ends_with_its_client() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::with(&configuration(folder.path(), "listen = \"127.0.0.1:0\"\n"));
    const START: &str = "*3\r\n$7\r\nINSPECT\r\n$5\r\nSTART\r\n$6\r\nVERIFY\r\n";
    let mut first = server.connect();
    // What came of it is kept for its client, and keeps others out as long.
    first.says(START, "+OK\r\n");
    let mut second = server.connect();
    second.says(START, "-BUSY an inspection of client ");
    drop(first);
    until(|| {
        let mut third = server.connect();
        third.0.write_all(START.as_bytes()).unwrap();
        let mut reply = [0; 5];
        third.0.read_exact(&mut reply).unwrap();
        &reply == b"+OK\r\n"
    });
    server.terminate();
}
