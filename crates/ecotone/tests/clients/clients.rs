//! The real program with clients: a configuration file, requests over TCP, and how it ends.

use crate::common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use std::process::{Command, Stdio};

use common::{Connection, Server, configuration, refused, serve};

const SET: &str = "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n";
const GET: &str = "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n";
const VALUE: &str = "$5\r\nvalue\r\n";

#[test]
fn clients_are_served_as_the_file_says_and_find_their_data_again() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let file =
        configuration(folder.path(), &format!("listen = \"127.0.0.1:0\"\nunix_socket = {:?}\n", socket.display()));
    let server = Server::with(&file);
    let (addresses, path) = server.listening.split_once(", ").unwrap();
    assert_eq!(path, socket.to_str().unwrap());
    let mut stream = Connection(TcpStream::connect(addresses).unwrap());
    stream.says(SET, "+OK\r\n");
    let mut local = Connection(UnixStream::connect(&socket).unwrap());
    local.says(GET, VALUE);
    server.terminate();
    assert!(!socket.exists(), "the socket was left behind");
    // Who was connected gets an error and is not left waiting.
    assert_eq!(stream.0.read(&mut [0; 1]).unwrap(), 0);

    let mut again = serve(&["--config", file.to_str().unwrap(), "--clients", "127.0.0.1:0"]);
    again.env("ECOTONE_CLIENTS_UNIX_SOCKET", "");
    let server = Server::start(again);
    server.connect().says(GET, VALUE);
    server.terminate();
}

#[test]
fn clients_leave_file_descriptors_to_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
    let mut command = Command::new("bash");
    command.args(["-c", "ulimit -n 512 && exec \"$0\" serve --config \"$1\"", env!("CARGO_BIN_EXE_ecotone")]);
    command.arg(&file).env_remove("RUST_LOG");
    let server = Server::start(command);
    assert!(server.said.contains("128 are served"), "{}", server.said);
    let mut first = server.connect();
    first.says(SET, "+OK\r\n");
    first.says("CONFIG GET maxclients\r\n", "*2\r\n$10\r\nmaxclients\r\n$3\r\n128\r\n");
    server.connect().says("*1\r\n$600000000\r\n", "-ERR Protocol error: invalid bulk length\r\n");
    let mut all: Vec<_> = (0..300).map(|_| server.connect()).collect();
    let last = all.last_mut().unwrap();
    last.says("", "-ERR max number of clients reached\r\n");
    let stats = text(&mut first, "INFO stats\r\n");
    let refused = stats.lines().find_map(|line| line.strip_prefix("rejected_connections:")).unwrap();
    assert!((1..=300).contains(&refused.parse::<u32>().unwrap()), "{stats}");
    // A table, a log and a segment are begun.
    first.says("*1\r\n$4\r\nSAVE\r\n", "+OK\r\n");
    first.says(SET, "+OK\r\n");
    first.says(GET, VALUE);
    let log = server.terminate_and_read();
    assert_eq!(log.matches("max_clients").count(), 1, "once for many: {log}");
    assert_eq!(log.matches("max_argument_bytes").count(), 1, "{log}");
}

#[test]
fn a_store_of_more_tables_than_the_process_may_have_files_goes_on_being_written() {
    let folder = tempfile::tempdir().unwrap();
    let small_tables = "[store]\nseparation_min_bytes = 2000\nmemtable_bytes = 1048576\ntarget_file_bytes = 65536\n\
                        level_base_bytes = 1048576\ncompression = \"none\"\n";
    let file = configuration(folder.path(), &format!("listen = \"127.0.0.1:0\"\n{small_tables}"));
    let start = || {
        let mut command = Command::new("bash");
        command.args(["-c", "ulimit -n 512 && exec \"$0\" serve --config \"$1\"", env!("CARGO_BIN_EXE_ecotone")]);
        command.arg(&file);
        Server::start(command)
    };
    let value = "v".repeat(500);
    let set = |key: usize| format!("*3\r\n$3\r\nSET\r\n$8\r\n{key:08}\r\n$500\r\n{value}\r\n");
    for batches in [300, 50] {
        let server = start();
        // As many clients as there may be, connections for metrics, and segments.
        let metrics: Vec<_> = (0..16).map(|_| TcpStream::connect(&server.http).unwrap()).collect();
        let others: Vec<_> = (0..127).map(|_| server.connect()).collect();
        let mut client = server.connect();
        let refusal = "-ERR CONFIG SET failed (possibly related to argument 'maxclients') - The operating system is not able to handle the specified \
                       number of clients, try with 128\r\n";
        client.says("CONFIG SET maxclients 129\r\n", refusal);
        for number in 0..40 {
            let long = format!("*3\r\n$3\r\nSET\r\n$6\r\nlong{number:02}\r\n$2000000\r\n{}\r\n", "v".repeat(2_000_000));
            client.says(&long, "+OK\r\n");
        }
        for batch in 0..batches {
            // Spread over all keys, so that tables overlap and are merged.
            let requests: String = (0..1000).map(|key| set((batch * 1000 + key) * 7919 % 300_007)).collect();
            client.says(&requests, &"+OK\r\n".repeat(1000));
        }
        client.says("*1\r\n$4\r\nSAVE\r\n", "+OK\r\n");
        client.says("*2\r\n$3\r\nGET\r\n$8\r\n00000000\r\n", &format!("$500\r\n{value}\r\n"));
        drop((others, metrics));
        server.terminate();
        let tables = std::fs::read_dir(folder.path().join("data/store")).unwrap();
        let tables =
            tables.filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|end| end == "sst")).count();
        assert!(tables > 300, "{batches}: {tables} tables do not show anything");
    }
}

#[test]
fn a_process_that_may_have_hardly_any_files_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
    let mut command = Command::new("bash");
    command.args(["-c", "ulimit -n 300 && exec \"$0\" serve --config \"$1\"", env!("CARGO_BIN_EXE_ecotone")]);
    command.arg(&file);
    let said = refused(command);
    assert!(said.contains("may have 300 files open") && said.contains("LimitNOFILE"), "{said}");
}

#[test]
fn a_socket_that_another_server_has_is_left_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let other_folder = tempfile::tempdir().unwrap();
    let line = format!("listen = \"127.0.0.1:0\"\nunix_socket = {:?}\n", socket.display());
    let server = Server::with(&configuration(folder.path(), &line));
    let other_file = configuration(other_folder.path(), &line);
    let said = refused(serve(&["--config", other_file.to_str().unwrap()]));
    assert!(said.contains("clients.unix_socket") && said.contains("end the process that has it"), "{said}");
    Connection(UnixStream::connect(&socket).unwrap()).says(SET, "+OK\r\n");
    // And whose it is no more does not remove it.
    std::fs::remove_file(&socket).unwrap();
    let other = Server::with(&other_file);
    server.terminate();
    Connection(UnixStream::connect(&socket).unwrap()).says(GET, "$-1\r\n");
    other.terminate();
    assert!(!socket.exists());
}

#[test]
fn who_does_the_same_wrong_again_and_again_fills_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\nmax_memory_bytes = 16777216\n");
    let mut command = serve(&["--config", file.to_str().unwrap()]);
    command.env_remove("RUST_LOG");
    let server = Server::start(command);
    for _ in 0..100 {
        server
            .connect()
            .says("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "-ERR wrong number of arguments for 'get' command\r\n");
        server.connect().says("\x16\x03\x01\x00\r\n", "-ERR Protocol error: TLS is not spoken at this address\r\n");
    }
    let mut large = server.connect();
    let _ =
        large.0.write_all(format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$50000000\r\n{}", "x".repeat(40_000_000)).as_bytes());
    large.says("", "-ERR all clients together keep as much memory as they may (clients.max_memory_bytes)");
    let log = server.terminate_and_read();
    for warning in ["speaks HTTP", "speaks TLS", "max_memory_bytes"] {
        assert_eq!(log.matches(warning).count(), 1, "{warning}: {log}");
    }
}

#[test]
fn an_address_for_other_servers_that_is_taken_is_refused_with_what_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = refused(serve(&["--config", file.to_str().unwrap(), "--listen", &address]));
    assert!(said.contains(&address) && said.contains("--listen or federation.listen"), "{said}");
}

#[test]
fn a_terminal_that_goes_ends_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::with(&configuration(folder.path(), "listen = \"127.0.0.1:0\"\n"));
    server.signal("-HUP");
    server.connect().says(SET, "+OK\r\n");
    server.terminate();
}

#[test]
fn a_folder_in_use_is_refused_and_one_that_was_left_by_a_killed_server_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
    let mut server = Server::with(&file);
    server.connect().says(SET, "+OK\r\n");
    let said = refused(serve(&["--config", file.to_str().unwrap()]));
    let data = folder.path().join("data");
    assert!(said.contains("in use by another server") && said.contains(data.to_str().unwrap()), "{said}");
    server.connect().says(GET, VALUE);

    server.signal("-KILL");
    server.child.wait().unwrap();
    let server = Server::with(&file);
    server.connect().says(GET, VALUE);
    server.terminate();
}

#[test]
fn what_cannot_be_listened_on_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "");
    let with = |arguments: &[&str]| serve(&[&["--config", file.to_str().unwrap()], arguments].concat());
    let said = refused(with(&["--clients", "0.0.0.0:0"]));
    for says in ["--clients", "clients.password", "unix_socket"] {
        assert!(said.contains(says), "{says:?} is not in {said:?}");
    }
    assert!(!folder.path().join("data").exists(), "it made its folder before it looked");

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = refused(with(&["--clients", &address]));
    assert!(said.contains(&address) && said.contains("in use") && said.contains("clients.listen"), "{said}");

    let said = refused(with(&["--clients", "127.0.0.1:0", "--workload", "fillrandom"]));
    assert!(said.contains("--clients off"), "{said}");
    let precious = folder.path().join("precious");
    std::fs::write(&precious, "kept").unwrap();
    let mut command = with(&["--clients", "off"]);
    let said = refused({
        command.env("ECOTONE_CLIENTS_UNIX_SOCKET", &precious);
        command
    });
    assert!(said.contains("is no socket") && said.contains("ECOTONE_CLIENTS_UNIX_SOCKET"), "{said}");
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "kept");

    let nowhere = folder.path().join("missing/socket");
    let file = configuration(folder.path(), &format!("listen = \"off\"\nunix_socket = {:?}\n", nowhere.display()));
    let said = refused(serve(&["--config", file.to_str().unwrap()]));
    let place = format!("ecotone.toml:10: clients.unix_socket = {}: ", nowhere.display());
    assert!(said.contains(&place) && said.contains("make its folder"), "{said}");
}

#[test]
fn a_folder_that_cannot_be_used_is_refused_once_with_what_named_it() {
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("taken");
    std::fs::write(&taken, "a file").unwrap();
    let taken = taken.to_str().unwrap();
    let said =
        refused(serve(&["--dir", taken, "--listen", "127.0.0.1:0", "--http", "off", "--clients", "127.0.0.1:0"]));
    let said = said.lines().last().unwrap();
    assert!(said.starts_with(&format!("ecotone: --dir (server.dir): {taken:?}: ")), "{said}");
    assert_eq!(said.matches("os error").count(), 1, "{said}");
}

#[test]
fn the_folder_of_a_server_stands_for_the_store_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::with(&configuration(folder.path(), "listen = \"127.0.0.1:0\"\n"));
    server.connect().says(SET, "+OK\r\n");
    server.terminate();
    let (data, saved) = (folder.path().join("data"), folder.path().join("saved"));
    let output_of = |command: &str, dir: &std::path::Path, more: &[&str]| {
        let mut ecotone = std::process::Command::new(env!("CARGO_BIN_EXE_ecotone"));
        let out = ecotone.arg(command).arg(dir).args(more).arg("--json").output().unwrap();
        assert!(out.status.success(), "{command} {dir:?}: {}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    };
    assert_eq!(output_of("verify", &data, &[]), output_of("verify", &data.join("store"), &[]));
    assert_eq!(output_of("space", &data, &[]), output_of("space", &data.join("store"), &[]));
    output_of("repair", &data, &["--into", saved.to_str().unwrap()]);
    output_of("verify", &saved, &[]);
    // A full device for the output is reported; a reader that stops early is no error.
    for command in ["verify", "space"] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let told_to = |out: Stdio| {
            let mut ecotone = std::process::Command::new(env!("CARGO_BIN_EXE_ecotone"));
            let ended = ecotone.arg(command).arg(&saved).stdout(out).stderr(Stdio::piped()).output().unwrap();
            (ended.status.success(), String::from_utf8(ended.stderr).unwrap())
        };
        let (succeeded, said) = told_to(full.into());
        assert!(!succeeded && said.contains("cannot print") && said.lines().count() == 1, "{said}");
        assert_eq!(told_to(writer.into()), (true, String::new()));
    }
}

#[test]
fn what_was_repaired_is_served_and_new_collections_are_none_of_the_old() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
    let large = |key: &str, field: &str| {
        let fields: Vec<String> = (0..300).map(|number| format!("{field}{number} v")).collect();
        format!("HSET {{tag}}{key} {}\r\n", fields.join(" "))
    };
    let server = Server::with(&file);
    server.connect().says(&large("old", "a"), ":300\r\n");
    server.terminate();
    let (data, saved) = (folder.path().join("data"), folder.path().join("saved"));
    let mut repair = std::process::Command::new(env!("CARGO_BIN_EXE_ecotone"));
    assert!(repair.arg("repair").arg(&data).arg("--into").arg(&saved).status().unwrap().success());
    std::fs::remove_dir_all(data.join("store")).unwrap();
    std::fs::rename(saved, data.join("store")).unwrap();

    let server = Server::with(&file);
    let mut client = server.connect();
    client.says("HLEN {tag}old\r\n", ":300\r\n");
    client.says(&large("new", "b"), ":300\r\n");
    client.says("HEXISTS {tag}new a7\r\n", ":0\r\n");
    client.says("DEL {tag}old\r\n", ":1\r\n");
    client.says("HLEN {tag}new\r\n", ":300\r\n");
    client.says("HGET {tag}new b299\r\n", "$1\r\nv\r\n");
    server.terminate();
}

#[test]
fn with_a_password_a_server_may_listen_beyond_its_machine() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "");
    let mut command = serve(&["--config", file.to_str().unwrap(), "--clients", "0.0.0.0:0"]);
    command.env("ECOTONE_CLIENTS_PASSWORD", "secret");
    let server = Server::start(command);
    let port = server.listening.rsplit_once(':').unwrap().1;
    let mut stream = Connection(TcpStream::connect(format!("127.0.0.1:{port}")).unwrap());
    stream.says(GET, "-NOAUTH ");
    server.terminate();
}

#[test]
fn clients_do_not_get_a_store_that_a_workload_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\n");
    let data = folder.path().join("data");
    let mut workload = serve(&["--dir", data.to_str().unwrap(), "--listen", "127.0.0.1:0", "--workload", "fillrandom"]);
    workload.args(["--keys", "100", "--seconds", "0.2", "--wait-for-start", "--records", "-"]);
    let mut child = workload.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"start\n").unwrap();
    let mut records = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let sums = records.find(|record| record.contains("\"final\"")).unwrap();
    drop(input);
    assert!(child.wait().unwrap().success(), "{sums}");
    let said = refused(serve(&["--config", file.to_str().unwrap()]));
    assert!(said.contains("from another folder") && said.contains("--clients off"), "{said}");
}

#[test]
fn the_printed_configuration_is_one_and_wrong_ones_are_refused_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let printed = serve(&["--print-config"]).output().unwrap();
    assert!(printed.status.success());
    let file = folder.path().join("printed.toml");
    std::fs::write(&file, &printed.stdout).unwrap();
    let dir = folder.path().join("data");
    let mut command = serve(&["--dir", dir.to_str().unwrap(), "--listen", "127.0.0.1:0", "--clients", "127.0.0.1:0"]);
    command.env("ECOTONE_CONFIG", &file).env("ECOTONE_SERVER_LOG_FORMAT", "json");
    Server::start(command).terminate();

    let wrong = configuration(folder.path(), "max_clients = 0\n");
    let said = refused(serve(&["--config", wrong.to_str().unwrap()]));
    assert!(said.contains("ecotone.toml:9: clients.max_clients = 0: must be a whole number from 1"), "{said}");
    let mut command = serve(&["--dir", dir.to_str().unwrap()]);
    let said = refused({
        command.env("ECOTONE_STORE_MEMTABLES", "3");
        command
    });
    assert!(said.contains("ECOTONE_STORE_MEMTABLES"), "{said}");
    let said = refused(serve(&["--dir", dir.to_str().unwrap(), "--cores", "0"]));
    assert!(said.contains("--cores") && said.contains("from 1 to"), "{said}");
}

/// The reply to `request`, a bulk string.
fn text(client: &mut Connection<TcpStream>, request: &str) -> String {
    client.0.write_all(request.as_bytes()).unwrap();
    let mut reply = BufReader::new(&client.0);
    let mut head = String::new();
    reply.read_line(&mut head).unwrap();
    let bytes: usize = head.strip_prefix('$').unwrap().trim_end().parse().unwrap();
    let mut text = vec![0; bytes + 2];
    reply.read_exact(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn what_the_allocator_holds_is_told_and_what_nobody_uses_is_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), "listen = \"127.0.0.1:0\"\nmax_memory_bytes = 1073741824\n");
    let mut command = serve(&["--config", file.to_str().unwrap()]);
    command.env("MALLOC_CONF", "dirty_decay_ms:-1");
    let server = Server::start(command);
    let mut client = server.connect();
    let field = |info: &str, name: &str| -> u64 {
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("{name}: {info}")).parse().unwrap()
    };
    assert!(text(&mut client, "INFO memory\r\n").contains("mem_allocator:jemalloc-5."));
    const LONG: usize = 64 << 20;
    let set = format!("*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n${LONG}\r\n{}\r\n", "x".repeat(LONG));
    client.says(&set, "+OK\r\n");
    // Nothing is given back unasked, as MALLOC_CONF says.
    let info = text(&mut client, "INFO memory\r\n");
    let (held, active) = (field(&info, "allocator_resident"), field(&info, "allocator_active"));
    assert!(held >= active + LONG as u64 / 2, "{held} {active}");
    client.says("MEMORY PURGE\r\n", "+OK\r\n");
    let left = field(&text(&mut client, "INFO memory\r\n"), "allocator_resident");
    assert!(left + LONG as u64 / 2 <= held, "{held} {left}");
    let report = text(&mut client, "MEMORY MALLOC-STATS\r\n");
    // What the environment says, and what it does not.
    for setting in ["opt.dirty_decay_ms: -1", "opt.narenas: 2"] {
        assert!(report.contains(setting), "{setting}: {report}");
    }
    server.terminate();
}
