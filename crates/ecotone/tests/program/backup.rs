//! Backups of the real program: `ecotone backup`, `ecotone restore` and BGSAVE, under load, over
//! kills, damage and full disks.

#[path = "../../../resp/tests/common/certificates.rs"]
pub(crate) mod certificates;
use crate::common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ecotone_bench::target::resp::{Bounds, Client, Limits, Reply, ServerAddress};

use crate::tmpfs::Tmpfs;
use certificates::{Authority, replace};
use common::{PATIENCE, Server, configuration, refused, serve};

const LIMITS: Limits = Limits {
    connect_timeout: PATIENCE,
    silence_timeout: PATIENCE,
    reply_timeout: None,
    reply_bounds: Bounds { bytes: 8 << 20, elements: 1 << 16 },
};

/// A client of `server`.
fn client(server: &Server) -> Client {
    Client::open(&ServerAddress::Tcp(server.listening.clone()), LIMITS).unwrap()
}

fn ask(client: &mut Client, request: &str) -> Reply {
    let parts: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
    client.ask(&parts).unwrap()
}

fn set(client: &mut Client, key: &str, value: &[u8]) {
    let said = client.ask(&[b"SET", key.as_bytes(), value]).unwrap();
    assert_eq!(said, Reply::Status("OK".into()), "{key}");
}

/// The field of a section of INFO.
fn info(client: &mut Client, section: &str, field: &str) -> String {
    let Reply::Bulk(Some(text)) = ask(client, &format!("INFO {section}")) else { panic!("no INFO") };
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")).map(str::to_owned));
    line.unwrap_or_else(|| panic!("no {field} in {text}"))
}

/// Bytes that do not compress, and no other number gives.
fn noise(number: u64, bytes: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(byte).take(bytes).collect()
}

fn ecotone(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    command.args(arguments).env_remove("RUST_LOG").env_remove("ECOTONE_CLIENTS_PASSWORD");
    command
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn backup_command(address: &str, to: &Path, more: &[&str]) -> Command {
    let mut command = ecotone(&["backup", address, "--to", text(to), "--json"]);
    command.args(more);
    command
}

/// As fast as it goes.
const UNLIMITED: [&str; 2] = ["--limit-bytes-per-second", "0"];

fn succeeds(mut command: Command) -> serde_json::Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", errors(&output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {command:?}"))
}

fn fails(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{command:?} succeeded");
    errors(&output)
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn back_up(server: &Server, to: &Path) -> serde_json::Value {
    succeeds(backup_command(&server.listening, to, &UNLIMITED))
}

fn number(report: &serde_json::Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("no {name} in {report}"))
}

fn is_sound(backups: &Path) {
    let report = succeeds(ecotone(&["backup", "--verify", text(backups), "--json"]));
    assert_eq!(number(&report, "unneeded_objects"), 0, "{report}");
}

fn listed(backups: &Path) -> Vec<String> {
    let report = succeeds(ecotone(&["backup", "--list", text(backups), "--json"]));
    report["backups"].as_array().unwrap().iter().map(|backup| backup["id"].as_str().unwrap().to_owned()).collect()
}

/// Restores the newest backup into `folder`, checks the store, and starts a server of it with the
/// keys of `[clients]` and further sections.
fn restored(backups: &Path, folder: &Path, more: &str) -> Server {
    std::fs::create_dir_all(folder).unwrap();
    let data = folder.join("data");
    succeeds(ecotone(&["restore", text(backups), "--to", text(&data), "--json"]));
    let report = succeeds(ecotone(&["verify", text(&data), "--json"]));
    assert_eq!(report["damaged_count"], 0, "{report}");
    Server::with(&configuration(folder, more))
}

/// Checkpoints that a server holds.
fn held(data: &Path) -> usize {
    std::fs::read_dir(data.join("store/checkpoint_tmp")).map_or(0, Iterator::count)
}

/// Bytes of files that lie in a folder of backups and do not make up one yet, as well as those that
/// do.
fn arrived(backups: &Path) -> u64 {
    let of = |within: &str| {
        let entries = std::fs::read_dir(backups.join(within)).into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.metadata().ok()).map(|file| file.len()).sum::<u64>()
    };
    of("objects") + of("partial")
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const CLIENTS: &str = "listen = \"127.0.0.1:0\"\n";

/// Writers make transactions that set two keys to the same number, and one that grows a list;
/// whatever moment the backup shows, the two are the same, and nothing is missing that was
/// acknowledged before it began.
#[test]
fn a_backup_under_load_shows_one_moment_with_all_that_was_acknowledged() {
    const WRITERS: usize = 3;
    for separation in ["128", "\"off\""] {
        let folder = tempfile::tempdir().unwrap();
        let more = format!("{CLIENTS}[store]\nseparation_min_bytes = {separation}\n");
        let server = Server::with(&configuration(folder.path(), &more));
        let mut asking = client(&server);
        let mut model = BTreeMap::new();
        for key in 0..300_u64 {
            let value = noise(key, if key % 3 == 0 { 2000 } else { 40 });
            set(&mut asking, &format!("still:{key}"), &value);
            model.insert(format!("still:{key}"), value);
        }
        for number in 0..400 {
            ask(&mut asking, &format!("HSET hash f{number} {number}"));
            ask(&mut asking, &format!("ZADD zset {number} m{number}"));
        }
        ask(&mut asking, "SET volatile x");
        ask(&mut asking, "PEXPIREAT volatile 4102444800123");
        ask(&mut asking, "SET gone x PX 1");
        let backups = folder.path().join("backups");
        let (acknowledged, stops): ([AtomicU64; WRITERS], AtomicBool) = Default::default();
        let before = std::thread::scope(|scope| {
            for (writer, acknowledged) in acknowledged.iter().enumerate() {
                let (mut client, stops) = (client(&server), &stops);
                scope.spawn(move || {
                    for number in 1.. {
                        // Sometimes short, sometimes separated from its key.
                        let value =
                            [format!("{number} ").into_bytes(), noise(number, (number % 5 * 100) as usize)].concat();
                        client.queue(&[b"MULTI"]);
                        for name in ["left", "right"] {
                            client.queue(&[b"SET", format!("{name}:{writer}").as_bytes(), &value]);
                        }
                        client.queue(&[b"RPUSH", format!("list:{writer}").as_bytes(), number.to_string().as_bytes()]);
                        client.queue(&[b"EXEC"]);
                        client.send().unwrap();
                        let replies: Vec<Reply> = (0..5).map(|_| client.receive().unwrap()).collect();
                        assert!(matches!(&replies[4], Reply::Array(Some(_))), "{replies:?}");
                        acknowledged.store(number, Ordering::SeqCst);
                        if stops.load(Ordering::SeqCst) {
                            return;
                        }
                    }
                });
            }
            until("all write", || acknowledged.iter().all(|number| number.load(Ordering::SeqCst) > 50));
            let before = acknowledged.each_ref().map(|number| number.load(Ordering::SeqCst));
            back_up(&server, &backups);
            stops.store(true, Ordering::SeqCst);
            before
        });
        server.terminate();
        is_sound(&backups);
        let server = restored(&backups, &folder.path().join("new"), &more);
        let mut client = client(&server);
        for (key, value) in &model {
            assert_eq!(ask(&mut client, &format!("GET {key}")), Reply::Bulk(Some(value.clone())), "{key}");
        }
        assert_eq!(ask(&mut client, "HLEN hash"), Reply::Integer(400));
        assert_eq!(ask(&mut client, "ZSCORE zset m399"), Reply::Bulk(Some(b"399".to_vec())));
        assert_eq!(ask(&mut client, "PEXPIRETIME volatile"), Reply::Integer(4_102_444_800_123));
        assert_eq!(ask(&mut client, "EXISTS gone"), Reply::Integer(0));
        for (writer, before) in before.into_iter().enumerate() {
            let (left, right) =
                (ask(&mut client, &format!("GET left:{writer}")), ask(&mut client, &format!("GET right:{writer}")));
            assert_eq!(left, right, "a part of a transaction");
            let Reply::Bulk(Some(value)) = left else { panic!("{left:?}") };
            let number: u64 = String::from_utf8_lossy(&value).split(' ').next().unwrap().parse().unwrap();
            assert!(number >= before, "{number} after {before} was acknowledged");
            assert_eq!(ask(&mut client, &format!("LLEN list:{writer}")), Reply::Integer(number as i64));
        }
        server.terminate();
    }
}

/// Fills a server with `count` values of 20,000 bytes that do not compress.
fn fill(client: &mut Client, count: u64) {
    for key in 0..count {
        set(client, &format!("key:{key}"), &noise(key, 20_000));
    }
}

fn read_bytes(server: &Server) -> u64 {
    let page = common::http::get(&server.http, "/metrics").body;
    let line = page.lines().find_map(|line| line.strip_prefix("ecotone_backup_read_bytes_total "));
    line.unwrap().parse().unwrap()
}

#[test]
fn the_next_backup_takes_what_is_new_and_old_ones_go() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::with(&configuration(folder.path(), CLIENTS));
    let mut asking = client(&server);
    fill(&mut asking, 400);
    let backups = folder.path().join("backups");
    let first = back_up(&server, &backups);
    assert!(number(&first, "new_bytes") == number(&first, "bytes") && number(&first, "bytes") > 8_000_000, "{first}");
    assert_eq!(read_bytes(&server), number(&first, "new_bytes"));
    set(&mut asking, "another", &noise(1, 50_000));
    let second = back_up(&server, &backups);
    assert!((50_000..400_000).contains(&number(&second, "new_bytes")), "{second}");
    assert_eq!(read_bytes(&server), number(&first, "new_bytes") + number(&second, "new_bytes"));
    assert_eq!(held(&folder.path().join("data")), 0);
    assert_eq!(listed(&backups).len(), 2);
    server.terminate();

    // Elsewhere no file is known, and yet long ones are not sent again.
    let server = restored(&backups, &folder.path().join("new"), CLIENTS);
    let third =
        succeeds(backup_command(&server.listening, &backups, &["--limit-bytes-per-second", "0", "--keep", "2"]));
    assert!(number(&third, "new_bytes") < 400_000 && number(&third, "compared_bytes") > 7_000_000, "{third}");
    assert_eq!(number(&third, "removed_backups"), 1);
    assert_eq!(listed(&backups), [second["id"].as_str().unwrap(), third["id"].as_str().unwrap()]);
    is_sound(&backups);
    let other = restored(&backups, &folder.path().join("newer"), CLIENTS);
    let mut asking = client(&other);
    for key in 0..400 {
        assert_eq!(ask(&mut asking, &format!("GET key:{key}")), Reply::Bulk(Some(noise(key, 20_000))));
    }
    assert_eq!(ask(&mut asking, "STRLEN another"), Reply::Integer(50_000));
}

#[test]
fn whoever_dies_in_the_middle_the_next_try_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(folder.path(), CLIENTS);
    let (backups, data) = (folder.path().join("backups"), folder.path().join("data"));
    let server = Server::with(&file);
    fill(&mut client(&server), 400);
    // So slow that it cannot end before it is killed.
    let slow = ["--limit-bytes-per-second", "1000000"];
    let begin = |server: &Server| {
        let mut command = backup_command(&server.listening, &backups, &slow);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut killed = begin(&server);
    until("some of it has come", || arrived(&backups) > 500_000);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(listed(&backups).is_empty(), "what is not complete is no backup");
    let came = arrived(&backups);
    assert_eq!(held(&data), 1);

    let going_on = begin(&server);
    until("more has come", || arrived(&backups) > came + 500_000);
    server.signal("-KILL");
    let mut server = server;
    server.child.wait().unwrap();
    let output = going_on.wait_with_output().unwrap();
    assert!(!output.status.success() && errors(&output).contains("goes on from there"), "{}", errors(&output));
    assert!(listed(&backups).is_empty());
    let came = arrived(&backups);

    // What the killed server held is given back, and nothing that has come is read again.
    let server = Server::with(&file);
    assert_eq!(held(&data), 0);
    let report = back_up(&server, &backups);
    let new_bytes = number(&report, "new_bytes");
    assert!(new_bytes + came < number(&report, "bytes") + 1_000_000, "{report}, and {came} bytes had come before");
    is_sound(&backups);
    let other = restored(&backups, &folder.path().join("new"), CLIENTS);
    let mut asking = client(&other);
    for key in 0..400 {
        assert_eq!(ask(&mut asking, &format!("GET key:{key}")), Reply::Bulk(Some(noise(key, 20_000))));
    }
}

/// A value as a device reports it: most of it stands in others as well.
fn reading(number: u64) -> Vec<u8> {
    let noise = noise(number, 8);
    let channel = |at: usize| {
        let (value, quality) = (u32::from(noise[at % 8]) * 7 + at as u32, ["good", "uncertain"][at % 2]);
        format!(
            "\"channel{at}\":{{\"name\":\"pressure\",\"value\":{value},\"unit\":\"bar\",\"quality\":\"{quality}\"}}"
        )
    };
    let channels: Vec<String> = (0..12).map(channel).collect();
    format!("{{\"device\":\"edge-{}\",\"sequence\":{number},{}}}", number % 300, channels.join(",")).into_bytes()
}

/// Values that are compressed are backed up by way of their segments, which bring
/// their dictionaries along. The server dies once while values are written, and once within a backup.
#[test]
fn compressed_values_are_backed_up_and_restored_over_kills() {
    const KEYS: u64 = 3000;
    let folder = tempfile::tempdir().unwrap();
    let more = format!("{CLIENTS}[store]\nvalue_compression = \"zstd\"\n");
    let file = configuration(folder.path(), &more);
    let backups = folder.path().join("backups");
    let mut server = Server::with(&file);
    let mut asking = client(&server);
    // Until a dictionary is trained; then all of them by zstd.
    let mut number = 0;
    until("a dictionary is trained", || {
        (0..500).for_each(|_| {
            set(&mut asking, &format!("key:{}", number % KEYS), &reading(number));
            number += 1;
        });
        info(&mut asking, "store", "value_compression_written") == "zstd"
    });
    let mut model = BTreeMap::new();
    for key in 0..KEYS {
        model.insert(format!("key:{key}"), reading(1 << 32 | key));
    }
    for key in 0..20 {
        // Some are too long to be compressed by the thread that serves their client, some do not shrink.
        model.insert(format!("long:{key}"), reading(key).repeat(150));
        model.insert(format!("noise:{key}"), noise(key, 3000));
    }
    assert!(model["long:7"].len() > 100_000);
    model.iter().for_each(|(key, value)| set(&mut asking, key, value));
    let stored: f64 = info(&mut asking, "store", "value_compression_stored_bytes_total").parse().unwrap();
    assert!(stored > 0.0);
    let dictionary = info(&mut asking, "store", "value_compression_dictionary");
    assert_ne!(dictionary, "none");
    // Everything is in the kernel's hands.
    server.signal("-KILL");
    server.child.wait().unwrap();

    let mut server = Server::with(&file);
    let mut asking = client(&server);
    assert_eq!(info(&mut asking, "store", "value_compression_dictionary"), dictionary, "that of the last process");
    for key in (0..KEYS).step_by(3) {
        // Of some the segments have two, one of which is garbage.
        model.insert(format!("key:{key}"), reading(2 << 32 | key));
        set(&mut asking, &format!("key:{key}"), &model[&format!("key:{key}")]);
    }
    ask(&mut asking, "COMPACT");
    let slow = ["--limit-bytes-per-second", "300000"];
    let mut command = backup_command(&server.listening, &backups, &slow);
    let dying = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    until("some of it has come", || arrived(&backups) > 150_000);
    server.signal("-KILL");
    server.child.wait().unwrap();
    assert!(!dying.wait_with_output().unwrap().status.success());
    assert!(listed(&backups).is_empty());

    let server = Server::with(&file);
    back_up(&server, &backups);
    is_sound(&backups);
    server.terminate();
    let server = restored(&backups, &folder.path().join("new"), &more);
    let mut asking = client(&server);
    for (key, value) in &model {
        assert_eq!(ask(&mut asking, &format!("STRLEN {key}")), Reply::Integer(value.len() as i64), "{key}");
        assert_eq!(ask(&mut asking, &format!("GET {key}")), Reply::Bulk(Some(value.clone())), "{key}");
    }
    let ratio: f64 = info(&mut asking, "store", "value_log_compression_ratio").parse().unwrap();
    assert!(ratio > 2.0, "{ratio}: they are restored as they were stored");
    assert_eq!(info(&mut asking, "store", "value_compression_dictionary"), dictionary);
    server.terminate();
}

#[test]
fn a_damaged_object_is_named_and_nothing_that_opens_is_made_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::with(&configuration(folder.path(), CLIENTS));
    fill(&mut client(&server), 20);
    let backups = folder.path().join("backups");
    let id = back_up(&server, &backups)["id"].as_str().unwrap().to_owned();
    let objects = std::fs::read_dir(backups.join("objects")).unwrap().map(|entry| entry.unwrap().path());
    let object = objects.max_by_key(|path| std::fs::metadata(path).unwrap().len()).unwrap();
    let whole = std::fs::read(&object).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    std::fs::write(&object, damaged).unwrap();

    let output = ecotone(&["backup", "--verify", text(&backups)]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success());
    assert!(
        said.contains(&format!("DAMAGED   {}", object.display())) && said.contains(&format!("needed by {id}: ")),
        "{said}"
    );
    let to = folder.path().join("new");
    let restore = || ecotone(&["restore", text(&backups), "--backup", &id, "--to", text(&to), "--json"]);
    assert!(fails(restore()).contains(text(&object)));
    let mut start = serve(&["--dir", text(&to), "--clients", "127.0.0.1:0", "--listen", "127.0.0.1:0"]);
    start.env("ECOTONE_HTTP_LISTEN", "off");
    assert!(refused(start).contains("is not a store that this version can open"));
    // The server's own folder is not written to, running or not.
    let live = ecotone(&["restore", text(&backups), "--to", text(&folder.path().join("data"))]);
    assert!(fails(live).contains("nothing is overwritten"));
    std::fs::write(&object, whole).unwrap();
    assert_eq!(succeeds(restore())["id"], id.as_str());
    let report = succeeds(ecotone(&["verify", text(&to), "--json"]));
    assert_eq!(report["damaged_count"], 0);
    assert!(fails(restore()).contains("nothing is overwritten"));
}

#[test]
fn only_who_is_let_in_makes_one_also_by_tls() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("ours");
    authority.server().write(folder.path());
    let ca = folder.path().join("ca.pem");
    replace(&ca, &authority.certificate);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let clients = format!(
        "{CLIENTS}tls_listen = \"127.0.0.1:0\"\ntls_certificate = {:?}\ntls_key = {:?}\npassword = \"secret\"\n",
        path("server.pem"),
        path("server.key")
    );
    let server = Server::with(&configuration(folder.path(), &clients));
    let (backups, tls) = (folder.path().join("backups"), server.tls.clone().unwrap());
    let file = |name: &str, password: &str| {
        std::fs::write(folder.path().join(name), format!("{password}\n")).unwrap();
        path(name)
    };
    let (right, wrong) = (file("right", "secret"), file("wrong", "guess"));
    let with = |address: &str, more: &[&str]| backup_command(address, &backups, more);
    let said = fails(with(&server.listening, &[]));
    assert!(said.contains("NOAUTH") && said.contains("--password-file"), "{said}");
    let said = fails(with(&server.listening, &["--password-file", &wrong]));
    assert!(said.contains("WRONGPASS"), "{said}");
    assert!(listed(&backups).is_empty());
    succeeds(with(&server.listening, &["--password-file", &right]));
    let said = fails(with(&tls, &["--password-file", &right]));
    assert!(said.contains("--tls and --cacert") || said.contains("closed"), "{said}");
    let trusted = ["--password-file", &right, "--tls", "--cacert", text(&ca)];
    succeeds(with(&tls, &trusted));
    let other = folder.path().join("other.pem");
    replace(&other, &Authority::new("another").certificate);
    let said = fails(with(&tls, &["--password-file", &right, "--tls", "--cacert", text(&other)]));
    assert!(said.contains("certificate"), "{said}");
    assert_eq!(listed(&backups).len(), 2);
    is_sound(&backups);
}

#[test]
fn a_full_disk_keeps_what_has_come() {
    let Some(disk) = Tmpfs::mount(6 << 20) else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::with(&configuration(folder.path(), CLIENTS));
    fill(&mut client(&server), 400);
    let backups = disk.path().join("backups");
    let said = fails(backup_command(&server.listening, &backups, &UNLIMITED));
    assert!(said.contains("No space left on device") && said.contains(text(&backups)), "{said}");
    assert!(listed(&backups).is_empty());
    let came = arrived(&backups);
    assert!(came > 2 << 20, "{came}");
    until("the server was notified that it is over", || held(&folder.path().join("data")) == 0);
    let grown = Command::new("mount").args(["-o", "remount,size=64m"]).arg(disk.path()).status().unwrap();
    assert!(grown.success());
    let report = back_up(&server, &backups);
    assert!(number(&report, "new_bytes") + came < number(&report, "bytes") + 1_000_000, "{report}; {came}");
    is_sound(&backups);
    // Neither does a restore begin that cannot end.
    let small = Tmpfs::mount(4 << 20).unwrap();
    let said = fails(ecotone(&["restore", text(&backups), "--to", text(&small.path().join("new"))]));
    assert!(said.contains("bytes free, and the backup takes"), "{said}");
}

#[test]
fn bgsave_makes_a_backup_where_there_is_a_place_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let backups = folder.path().join("backups");
    let more = format!("{CLIENTS}[backup]\ndir = {:?}\nkeep = 2\n", text(&backups));
    let server = Server::with(&configuration(folder.path(), &more));
    let mut asking = client(&server);
    fill(&mut asking, 50);
    let saved = |asking: &mut Client| {
        until("it ends", || info(asking, "persistence", "rdb_bgsave_in_progress") == "0");
        info(asking, "persistence", "rdb_last_bgsave_status")
    };
    for round in 0..4 {
        set(&mut asking, "round", format!("{round}").as_bytes());
        assert_eq!(ask(&mut asking, "BGSAVE"), Reply::Status("Background saving started".into()));
        assert_eq!(saved(&mut asking), "ok");
    }
    assert_eq!(listed(&backups).len(), 2);
    assert_eq!(info(&mut asking, "persistence", "rdb_saves"), "4");
    is_sound(&backups);
    let other = restored(&backups, &folder.path().join("new"), CLIENTS);
    assert_eq!(ask(&mut client(&other), "GET round"), Reply::Bulk(Some(b"3".to_vec())));
    // While one runs there is no other, and it ends with the server.
    fill(&mut asking, 100);
    assert_eq!(ask(&mut asking, "CONFIG SET backup.limit_bytes_per_s 4096"), Reply::Status("OK".into()));
    assert_eq!(ask(&mut asking, "BGSAVE"), Reply::Status("Background saving started".into()));
    for request in ["BGSAVE", "SAVE"] {
        assert_eq!(ask(&mut asking, request), Reply::Error("ERR Background save already in progress".into()));
    }
    assert_eq!(info(&mut asking, "persistence", "rdb_bgsave_in_progress"), "1");
    let log = server.terminate_and_read();
    assert!(log.contains("a save in the background failed"), "{log}");
    assert_eq!((listed(&backups).len(), held(&folder.path().join("data"))), (2, 0));
}

#[test]
fn a_backup_that_bgsave_cannot_make_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let backups = folder.path().join("backups");
    std::fs::write(&backups, "somebody's file").unwrap();
    let more = format!("{CLIENTS}[backup]\ndir = {:?}\n", text(&backups));
    let mut server = Server::with(&configuration(folder.path(), &more));
    let mut asking = client(&server);
    set(&mut asking, "key", b"value");
    assert_eq!(ask(&mut asking, "BGSAVE"), Reply::Status("Background saving started".into()));
    let line = server.until_it_says("a save in the background failed");
    assert!(line["error"].as_str().unwrap().contains(text(&backups)), "{line}");
    until("it is over", || info(&mut asking, "persistence", "rdb_bgsave_in_progress") == "0");
    assert_eq!(info(&mut asking, "persistence", "rdb_last_bgsave_status"), "err");
    server.terminate();
    // Nor may it be a folder that the server has for itself.
    let within = folder.path().join("data/store/backups");
    let more = format!("{CLIENTS}[backup]\ndir = {:?}\n", text(&within));
    let said = refused(serve(&["--config", text(&configuration(folder.path(), &more))]));
    assert!(said.contains("backup.dir") && said.contains("for itself"), "{said}");
}

#[test]
fn the_commands_refuse_what_makes_no_sense() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::with(&configuration(folder.path(), CLIENTS));
    let mut client = client(&server);
    let Reply::Array(Some(begun)) = ask(&mut client, "BACKUP BEGIN") else { panic!("no backup") };
    let field = |name: &str| {
        let pair = begun.chunks(2).find(|pair| pair[0] == Reply::Bulk(Some(name.as_bytes().to_vec())));
        pair.unwrap_or_else(|| panic!("no {name} in {begun:?}"))[1].clone()
    };
    let Reply::Bulk(Some(id)) = field("id") else { panic!("{begun:?}") };
    let id = String::from_utf8(id).unwrap();
    assert_eq!(field("read_bytes"), Reply::Integer(512 << 10));
    let Reply::Array(Some(files)) = ask(&mut client, &format!("BACKUP FILES {id} 0 1000")) else { panic!("no files") };
    assert_eq!(field("files"), Reply::Integer(files.len() as i64 / 3));
    assert_eq!(ask(&mut client, &format!("BACKUP FILES {id} 1000 10")), Reply::Array(Some(Vec::new())));
    for (request, says) in [
        ("BACKUP".to_owned(), "wrong number of arguments"),
        ("BACKUP NOTHING".to_owned(), "unknown subcommand"),
        ("BACKUP FILES none 0 10".to_owned(), "NOBACKUP there is no backup of this id"),
        (format!("BACKUP FILES {id} -1 10"), "out of range"),
        (format!("BACKUP READ {id} ../LOCK 0 10"), "has no file of this path"),
        (format!("BACKUP READ {id} /etc/passwd 0 10"), "has no file of this path"),
        (format!("BACKUP READ {id} STORE -1 10"), "out of range"),
        (format!("BACKUP HASH {id} STORE x 10"), "out of range"),
        (format!("BACKUP END {id} NOTHING"), "syntax error"),
    ] {
        let reply = ask(&mut client, &request);
        assert!(matches!(&reply, Reply::Error(said) if said.contains(says)), "{request}: {reply:?}");
    }
    ask(&mut client, "MULTI");
    let queued = ask(&mut client, "BACKUP BEGIN");
    assert!(matches!(&queued, Reply::Error(said) if said.contains("not allowed inside a transaction")), "{queued:?}");
    ask(&mut client, "DISCARD");
    assert_eq!(ask(&mut client, &format!("BACKUP END {id}")), Reply::Status("OK".into()));
    let again = ask(&mut client, &format!("BACKUP END {id}"));
    assert!(matches!(&again, Reply::Error(said) if said.starts_with("NOBACKUP")), "{again:?}");
    for wrong in [
        vec!["backup"],
        vec!["backup", "127.0.0.1:1"],
        vec!["backup", "127.0.0.1:1", "--to", "x", "--list", "y"],
        vec!["backup", "127.0.0.1:1", "--to", "x", "--keep", "0"],
        vec!["backup", "127.0.0.1:1", "--to", "x", "--tls"],
        vec!["backup", "127.0.0.1:1", "--to", "x", "--limit-bytes-per-second", "7"],
        vec!["restore", "x"],
    ] {
        fails(ecotone(&wrong));
    }
    let nowhere: PathBuf = folder.path().join("nowhere");
    assert!(fails(ecotone(&["backup", "--list", text(&nowhere)])).contains("is no folder of backups"));
}
