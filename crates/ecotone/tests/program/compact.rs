//! Garbage of the real program: freed while nobody writes, and by `ecotone compact`.

use crate::common;

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use common::{PATIENCE, Server, configuration, http};

const MIB: u64 = 1 << 20;

/// What all files below `directory` take of the device.
fn taken(directory: &Path) -> u64 {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        // Removed meanwhile: the rest counts.
        let Ok(found) = entry.metadata() else { continue };
        bytes += if found.is_dir() { taken(&entry.path()) } else { found.blocks() * 512 };
    }
    bytes
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

/// Sends many requests, whose replies are all as long as this one.
fn send(server: &Server, requests: impl Iterator<Item = String>, reply: &str) {
    let mut client = server.connect().0;
    let requests: Vec<_> = requests.collect();
    for some in requests.chunks(500) {
        client.write_all(some.concat().as_bytes()).unwrap();
        let mut got = vec![0; some.len() * reply.len()];
        client.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), reply.repeat(some.len()));
    }
}

fn set(server: &Server, keys: u32) {
    let value = |key: u32| {
        let mut state = u64::from(key) + 1;
        (0..62).fold(String::new(), |mut text, _| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let _ = write!(text, "{state:016x}");
            text
        })
    };
    send(server, (0..keys).map(|key| format!("SET key{key} {}\r\n", value(key))), "+OK\r\n");
}

fn delete(server: &Server, keys: std::ops::Range<u32>) {
    send(server, keys.map(|key| format!("DEL key{key}\r\n")), ":1\r\n");
}

fn compact(what: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    command.args(["compact", what]).args(more).env_remove("RUST_LOG").env_remove("ECOTONE_CLIENTS_PASSWORD");
    command.output().unwrap()
}

fn freed(output: &Output) -> u64 {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["stage"], "done", "{report}");
    report["bytes_before"].as_u64().unwrap() - report["bytes"].as_u64().unwrap()
}

/// Of 120,000 values of 1000 bytes a tenth is left; then none.
#[test]
fn an_idle_server_frees_what_was_deleted_and_counts_what_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let more = "listen = \"127.0.0.1:0\"\n[store]\nvalue_compression = \"none\"";
    let file = configuration(folder.path(), more);
    let data = folder.path().join("data");
    let server = Server::with(&file);
    set(&server, 120_000);
    assert!(taken(&data) > 110 * MIB);
    delete(&server, 12_000..120_000);
    let began = Instant::now();
    until("a tenth is left", || taken(&data) <= 32 * MIB);
    eprintln!("{} MiB after {:.1} s", taken(&data) / MIB, began.elapsed().as_secs_f64());
    let keys = |server: &Server| -> Option<u64> {
        let page = http::get(&server.http, "/metrics").body;
        page.lines().find_map(|line| line.strip_prefix("ecotone_store_keys ")?.parse().ok())
    };
    until("12,000 keys are counted", || keys(&server).is_some_and(|keys| (10_800..13_200).contains(&keys)));
    delete(&server, 0..12_000);
    server.terminate();
    let server = Server::with(&file);
    until("no key is counted", || keys(&server) == Some(0));
    server.terminate();
}

#[test]
fn compact_frees_the_garbage_of_a_server_and_of_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let more = "listen = \"127.0.0.1:0\"\npassword = \"a secret\"\n[store]\nvalue_compression = \"none\"";
    let file = configuration(folder.path(), more);
    let data = folder.path().join("data");
    let password = folder.path().join("password");
    std::fs::write(&password, "a secret\n").unwrap();
    let password = ["--password-file", password.to_str().unwrap(), "--json"];
    let server = Server::with(&file);
    let refused = compact(&server.listening, &[]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("NOAUTH"), "{said}");
    // Little enough that an idle server leaves it alone.
    let begin = |server: &Server| {
        let mut client = server.connect();
        client.says("AUTH \"a secret\"\r\n", "+OK\r\n");
        for key in 0..5000 {
            client.says(&format!("SET key{key} {}\r\n", format!("{key:04}").repeat(250)), "+OK\r\n");
        }
        client.says("FLUSHALL\r\n", "+OK\r\n");
    };
    begin(&server);
    assert!(freed(&compact(&server.listening, &password)) > 4 * MIB);
    begin(&server);
    let refused = compact(data.to_str().unwrap(), &[]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("ecotone compact HOST:PORT"), "{said}");
    server.terminate();
    assert!(freed(&compact(data.to_str().unwrap(), &["--json"])) > 4 * MIB);
    let text = compact(data.to_str().unwrap(), &[]);
    assert!(String::from_utf8_lossy(&text.stdout).contains(" freed in "), "{text:?}");
    let server = Server::with(&file);
    let mut client = server.connect();
    client.says("AUTH \"a secret\"\r\nDBSIZE\r\n", "+OK\r\n:0\r\n");
    server.terminate();
}

#[test]
fn a_folder_is_compacted_with_the_options_of_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let more = "listen = \"127.0.0.1:0\"\n[store]\ncompression = \"none\"\nseparation_min_bytes = \"off\"";
    let file = configuration(folder.path(), more);
    let data = folder.path().join("data");
    let server = Server::with(&file);
    let value = "compressible ".repeat(80);
    let requests =
        (0..20_000).map(|key| format!("*3\r\n$3\r\nSET\r\n$8\r\nkey{key:05}\r\n${}\r\n{value}\r\n", value.len()));
    send(&server, requests, "+OK\r\n");
    server.terminate();
    let path = data.to_str().unwrap();
    let config = file.to_str().unwrap();
    let of = |more: &[&str]| {
        let output = compact(path, more);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        taken(&data) / MIB
    };
    let uncompressed = of(&["--config", config, "--json"]);
    assert!(uncompressed >= 19, "{uncompressed} MiB");
    let compressed = of(&["--json"]);
    assert!(compressed < uncompressed / 2, "{compressed} MiB, and {uncompressed} uncompressed");
    let unknown = compact(path, &["--config", "/nowhere/ecotone.toml"]);
    assert!(!unknown.status.success());
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("/nowhere/ecotone.toml"));
}
