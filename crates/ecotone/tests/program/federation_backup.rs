//! Backups of a federation on real processes: under writes, over the loss of a primary, by TLS, and
//! restored into federations of one server and of two.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::slice::from_ref;

use serde_json::Value;

use super::backup::certificates::{Authority, replace};
use super::cluster::{Server, cluster, ecotone, refused, text, until};
use super::common;
use super::copies::{Client, Load, addresses, all_are_there, federation, shards, value};

/// As fast as it goes.
const UNLIMITED: [&str; 2] = ["--limit-bytes-per-second", "0"];

fn back_up(address: &str, to: &Path, more: &[&str]) -> Value {
    cluster(&[&["backup", address, "--to", text(to)], &UNLIMITED[..], more].concat())
}

/// Restores into the folder of a server of this name, which is started.
fn restored(backups: &Path, folder: &Path, name: &str) -> (Value, Server) {
    let made = cluster(&["restore", text(backups), "--dir", text(&folder.join(name)), "--name", name, "--zone", name]);
    let server = Server::start(folder, name, None, &[]);
    until("it serves all shards", || {
        let status = server.status();
        status["leader"]["name"] == name && shards(&status).iter().all(|shard| serves(shard, name))
    });
    (made, server)
}

/// Whether this server is the primary, and serves.
fn serves(shard: &Value, name: &str) -> bool {
    let copies = shard["copies"].as_array().unwrap();
    shard["primary"] == name && copies.iter().any(|copy| copy["server"] == name && copy["serves"] == true)
}

/// The keys of all servers, each of its shards.
fn key_count(addresses: &[String]) -> u64 {
    let mut client = Client::new(addresses);
    let keys = |address: &String| {
        let said = client.ask_at(address, &["DBSIZE"]).unwrap();
        said.strip_prefix(':').unwrap_or_else(|| panic!("{said}")).parse::<u64>().unwrap()
    };
    addresses.iter().map(keys).sum()
}

fn listed(backups: &Path) -> Vec<Value> {
    let output = ecotone(&["backup", "--list", text(backups), "--json"]);
    assert!(output.status.success());
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    list["backups"].as_array().unwrap().clone()
}

fn is_sound(backups: &Path) -> bool {
    ecotone(&["backup", "--verify", text(backups), "--json"]).status.success()
}

/// Three servers under writes; what was acknowledged before a backup is in the federation that is made
/// of it, with one server and with two.
#[test]
fn what_was_acknowledged_before_a_backup_is_in_the_federation_that_is_made_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    let backups = folder.join("backups");
    let servers = federation(folder, &["a", "b", "c"], &["--shards", "2", "--copies", "2"], 2);
    let old = servers[0].status()["federation"].clone();
    let everywhere = addresses(&servers);
    let load = Load::start(&everywhere);
    load.more(300);
    let before = load.so_far();
    let made = back_up(&servers[1].clients, &backups, &[]);
    assert_eq!((&made["federation"], made["shards"].as_array().unwrap().len()), (&old, 2));
    // One server's store is a part of it, and no backup.
    for server in &servers {
        let part = refused(&["backup", &server.clients, "--to", text(&folder.join("part"))]);
        assert!(part.contains("ecotone cluster backup"), "{part}");
    }
    let servers_read: BTreeSet<&str> =
        made["shards"].as_array().unwrap().iter().map(|shard| shard["server"].as_str().unwrap()).collect();
    assert!(servers_read.len() > 1, "{made}");
    for shard in made["shards"].as_array().unwrap() {
        let is_primary = |state: &&Value| state["shard"] == shard["shard"] && state["primary"] == shard["server"];
        assert!(shards(&servers[0].status()).iter().any(|state| is_primary(&state)), "{shard}");
        assert!(shard["epoch"].as_u64() >= Some(1) && shard["number"].as_u64() > Some(0), "{shard}");
    }
    load.more(100);
    let [listed_first] = &listed(&backups)[..] else { panic!("not one backup") };
    assert_eq!((&listed_first["id"], &listed_first["federation"]["id"]), (&made["id"], &old));
    assert!(is_sound(&backups));
    let (report, one) = restored(&backups, &folder.join("first"), "one");
    assert_eq!((&report["old_federation"], &report["id"]), (&old, &made["id"]));
    all_are_there(from_ref(&one.clients), before);
    let status = one.status();
    assert!(status["federation"] != old && status["federation"] == report["federation"], "{status}");
    assert_eq!(status["servers"].as_array().unwrap().len(), 1);
    // It takes writes, and what it was restored from is not touched by that.
    let mut client = Client::new(from_ref(&one.clients));
    assert_eq!(client.ask(&["SET", "key:0", "other"]), "+OK");
    assert_eq!(Client::new(&everywhere).ask(&["GET", "key:0"]), value(0));
    drop(one);

    // At rest all of it is there, and nothing else.
    let acknowledged = load.end();
    let keys = key_count(&everywhere);
    assert_eq!(keys, acknowledged);
    let second = back_up(&servers[2].clients, &backups, &["--keep", "1"]);
    assert_eq!((&second["removed_backups"], listed(&backups).len()), (&Value::from(1), 1));
    assert!(second["new_bytes"].as_u64() < second["bytes"].as_u64(), "{second}");
    let (_, two) = restored(&backups, &folder.join("second"), "two");
    assert_eq!(key_count(from_ref(&two.clients)), keys);
    // No server of the old federation is let in, and a new one gets shards by itself.
    let three = two.joined(&folder.join("second"), "three");
    until("shards are spread", || {
        let status = two.status();
        let primaries = |name: &str| shards(&status).iter().filter(|shard| shard["primary"] == name).count();
        (primaries("two"), primaries("three")) == (1, 1)
            && shards(&three.status()).iter().any(|shard| serves(shard, "three"))
    });
    let both = [two.clients.clone(), three.clients.clone()];
    all_are_there(&both, acknowledged);
    assert_eq!(key_count(&both), keys);
}

/// The primary of a shard is killed while it is read: the next one is.
#[test]
fn a_backup_outlives_a_primary_that_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    let backups = folder.join("backups");
    let mut servers = federation(folder, &["a", "b", "c"], &["--shards", "2", "--copies", "3"], 3);
    let everywhere = addresses(&servers);
    let load = Load::start(&everywhere);
    load.more(1000);
    let acknowledged = load.end();
    let primary = shards(&servers[0].status())[1]["primary"].as_str().unwrap().to_owned();
    let place = servers.iter().position(|server| server.name == primary).unwrap();
    let asked = servers.iter().find(|server| server.name != primary).unwrap().clients.clone();
    // So slow that it is under way when the second shard's primary is killed.
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    command.args(["cluster", "backup", &asked, "--to", text(&backups), "--limit-bytes-per-second", "300000", "--json"]);
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let is_read = |name: &str| {
        let store = folder.join(name).join("shards/2/checkpoint_tmp");
        std::fs::read_dir(store).map_or(0, Iterator::count) > 0
    };
    until("the second shard is read", || is_read(&primary));
    let mut dead = servers.remove(place);
    dead.kill();
    let output = running.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let made: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(made["retries"].as_u64() >= Some(1), "{made}");
    assert!(made["shards"][1]["server"] != primary.as_str(), "{made}");
    assert!(is_sound(&backups));
    let (_, one) = restored(&backups, folder, "one");
    all_are_there(from_ref(&one.clients), acknowledged);
    assert_eq!(key_count(from_ref(&one.clients)), acknowledged);
}

/// What is damaged is named, and no server starts in what is half restored.
#[test]
fn damage_is_named_and_a_restore_that_was_cut_short_is_no_server() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    let backups = folder.join("backups");
    cluster(&["init", "--dir", text(&folder.join("old")), "--name", "old"]);
    let server = Server::start(folder, "old", None, &[]);
    until("it leads", || server.status()["leader"]["name"] == "old");
    let nothing = refused(&["cluster", "backup", &server.clients, "--to", text(&backups)]);
    assert!(nothing.contains("ecotone cluster create"), "{nothing}");
    // Without copies shards have no positions, and are backed up all the same.
    cluster(&["create", &server.clients, "--shards", "3"]);
    let load = Load::start(from_ref(&server.clients));
    load.more(100);
    let acknowledged = load.end();
    // A server with several shards says which command takes them.
    let lone = refused(&["backup", &server.clients, "--to", text(&folder.join("lone"))]);
    assert!(lone.contains("ecotone cluster backup"), "{lone}");
    let made = back_up(&server.clients, &backups, &[]);
    assert!(made["shards"].as_array().unwrap().iter().all(|shard| shard["number"].is_null() && shard["epoch"] == 1));
    let id = made["id"].as_str().unwrap();
    let manifest = backups.join("backups").join(id).join("MANIFEST");
    let said: Value =
        serde_json::from_str(std::fs::read_to_string(&manifest).unwrap().lines().next().unwrap()).unwrap();
    let files = said["files"].as_array().unwrap();
    let of_two = files.iter().find(|file| file["path"].as_str().unwrap().starts_with("shards/2/values/")).unwrap();
    let object = backups.join("objects").join(of_two["object"].as_str().unwrap());
    let whole = std::fs::read(&object).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    std::fs::write(&object, &damaged).unwrap();
    let dir = folder.join("new");
    let restore = ["cluster", "restore", text(&backups), "--dir", text(&dir), "--name", "new"];
    let zone = refused(&[&restore[..], &["--zone", &"z".repeat(65)]].concat());
    assert!(zone.contains("zone") && !dir.exists(), "{zone}");
    let refusal = refused(&restore);
    assert!(refusal.contains(text(&object)) && refusal.contains("shards/2/values/"), "{refusal}");
    let no_server = ["serve", "--dir", text(&dir), "--clients", "off", "--http", "off", "--listen", "127.0.0.1:0"];
    for command in [&no_server[..], &["cluster", "init", "--dir", text(&dir), "--name", "new"]] {
        let refusal = refused(command);
        assert!(refusal.contains("cut short") && refusal.contains("ecotone cluster restore"), "{refusal}");
    }
    std::fs::write(&object, &whole).unwrap();
    let (report, new) = restored(&backups, folder, "new");
    assert!(report["resumed_bytes"].as_u64() > Some(0), "{report}");
    all_are_there(from_ref(&new.clients), acknowledged);
    let full = refused(&restore);
    assert!(full.contains("nothing is overwritten"), "{full}");
    // Whoever restores one store of it is told how.
    let lone = refused(&["restore", text(&backups), "--to", text(&folder.join("x"))]);
    assert!(lone.contains("ecotone cluster restore"), "{lone}");
    let text_of_manifest = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text_of_manifest.replacen("\"epoch\":1", "\"epoch\":2", 1)).unwrap();
    let refusal = refused(&["cluster", "restore", text(&backups), "--dir", text(&folder.join("y"))]);
    assert!(refusal.contains(text(&manifest)) && refusal.contains("checksum"), "{refusal}");
    // A server that is alone is backed up by the other command.
    let alone = Server::start(folder, "alone", None, &[]);
    let said = refused(&["cluster", "backup", &alone.clients, "--to", text(&folder.join("z"))]);
    assert!(said.contains("ecotone backup"), "{said}");
}

#[test]
fn a_federation_is_backed_up_by_tls_and_with_a_password() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("ours");
    authority.server().write(folder.path());
    let path = |name: &str| folder.path().join(name).display().to_string();
    replace(&PathBuf::from(path("ca.pem")), &authority.certificate);
    let clients = format!(
        "listen = \"127.0.0.1:0\"\ntls_listen = \"127.0.0.1:0\"\ntls_certificate = {:?}\ntls_key = {:?}\npassword = \"secret\"\n",
        path("server.pem"),
        path("server.key")
    );
    cluster(&["init", "--dir", &path("data"), "--name", "only"]);
    let server = common::Server::with(&common::configuration(folder.path(), &clients));
    let (backups, tls) = (path("backups"), server.tls.clone().unwrap());
    std::fs::write(folder.path().join("password"), "secret\n").unwrap();
    let password = path("password");
    let with = ["--password-file", &password];
    until("it leads", || {
        let output = ecotone(&[&["cluster", "create", &server.listening, "--shards", "2"], &with[..]].concat());
        output.status.success()
    });
    let said = refused(&["cluster", "backup", &server.listening, "--to", &backups]);
    assert!(said.contains("NOAUTH") && said.contains("--password-file"), "{said}");
    let said = refused(&[&["cluster", "backup", &tls, "--to", &backups], &with[..]].concat());
    assert!(said.contains("--tls and --cacert") || said.contains("closed"), "{said}");
    let ca = path("ca.pem");
    let trusted = [&["--tls", "--cacert", &ca], &with[..]].concat();
    let made = cluster(&[&["backup", &tls, "--to", &backups], &trusted[..]].concat());
    assert_eq!(made["shards"].as_array().unwrap().len(), 2);
    // So do the other commands.
    assert_eq!(cluster(&[&["status", &tls], &trusted[..]].concat())["federation"], made["federation"]);
    let said = refused(&[&["cluster", "status", &tls], &with[..]].concat());
    assert!(said.contains("--tls") || said.contains("closed"), "{said}");
    assert!(is_sound(Path::new(&backups)));
}
