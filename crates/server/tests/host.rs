//! A server as the commands of its clients see it: INFO and CONFIG, without the protocol between.

#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ecotone_resp::host::Host;
use ecotone_server::config::Config;
use ecotone_server::{ClientOptions, Daemon};

struct Running {
    daemon: Daemon,
    was_shut_down: Arc<AtomicBool>,
}

/// A server with `text` in its file, or without a file.
fn start(folder: &Path, text: Option<&str>) -> Running {
    let file = folder.join("ecotone.toml");
    if let Some(text) = text {
        std::fs::write(&file, text).unwrap();
    }
    let of = |name: &str, value: &str| (name.into(), value.into());
    let environment = [
        of("ECOTONE_SERVER_DIR", folder.join("data").to_str().unwrap()),
        of("ECOTONE_FEDERATION_LISTEN", "127.0.0.1:0"),
        of("ECOTONE_CLIENTS_LISTEN", "127.0.0.1:0"),
        of("ECOTONE_HTTP_LISTEN", "off"),
    ];
    let config = Config::load(text.map(|_| file.as_path()), environment).unwrap();
    let was_shut_down = Arc::new(AtomicBool::new(false));
    let flag = was_shut_down.clone();
    let clients = ClientOptions {
        listen: config.listen().unwrap().unwrap(),
        config: config.clone(),
        shut_down: Arc::new(move || flag.store(true, Ordering::SeqCst)),
        panicked: Arc::new(|| panic!("a thread panicked")),
        allocator: None,
    };
    let mut options = config.serve_options().unwrap();
    options.clients = Some(clients);
    Running { daemon: Daemon::start(options, None).unwrap(), was_shut_down }
}

#[test]
fn a_server_without_a_name_is_named_by_the_port_that_it_got() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = start(folder.path(), None).daemon;
    assert!(!daemon.address().ends_with(":0"), "{}", daemon.address());
    assert_eq!(daemon.name(), daemon.address());
}

impl Running {
    fn host(&self) -> &dyn Host {
        self.daemon.service().unwrap().host.as_ref()
    }

    fn get(&self, name: &str) -> Option<String> {
        self.host().settings(&|known| known == name).remove(name)
    }

    fn set(&self, settings: &[(&str, &str)]) -> Result<(), String> {
        let settings: Vec<_> = settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        self.host().change(&settings)
    }
}

/// Files that this process may open.
fn max_files() -> u64 {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap_or(u64::MAX)
}

#[test]
fn every_setting_can_be_set_to_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let running = start(folder.path(), Some("[clients]\npassword = \"p\"\nenable_debug_command = \"local\"\n"));
    let all = running.host().settings(&|_| true);
    assert!(all.len() > 100, "{all:?}");
    for (name, value) in &all {
        assert_eq!(running.set(&[(name, value)]), Ok(()), "{name} = {value}");
    }
    assert_eq!(running.host().settings(&|_| true), all);
    assert_eq!(all["enable-debug-command"], "local");
    // As some tools write it.
    for (name, value) in [("appendonly", "YES"), ("enable-debug-command", "LOCAL"), ("protected-mode", "Yes")] {
        assert_eq!(running.set(&[(name, value)]), Ok(()), "{name} = {value}");
    }
    for (name, value) in [("appendonly", "no"), ("enable-debug-command", "yes"), ("databases", "16")] {
        assert!(running.set(&[(name, value)]).unwrap_err().ends_with("can't set immutable config"), "{name} = {value}");
    }
}

#[test]
fn settings_change_all_or_none_and_hold_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), None);
    let service = server.daemon.service().unwrap();
    server
        .set(&[("maxclients", "7"), ("requirepass", "p"), ("timeout", "30"), ("slowlog-log-slower-than", "-1")])
        .unwrap();
    let limits = service.limits.read().clone();
    assert_eq!((limits.clients, limits.password.as_deref(), limits.slow_after), (7, Some("p"), None));
    assert_eq!(limits.idle, Some(Duration::from_secs(30)));
    assert_eq!(server.get("clients.max_clients").as_deref(), Some("7"));

    for wrong in [
        &[("maxclients", "8"), ("port", "1")][..],
        &[("maxclients", "8"), ("timeout", "x")],
        // An argument must fit into a request.
        &[("maxclients", "8"), ("client-query-buffer-limit", "1mb")],
        // And into a reply.
        &[("maxclients", "8"), ("clients.max_output_bytes", "1048576")],
    ] {
        let refused = server.set(wrong).unwrap_err();
        // In Redis' words, which name the last of each of these.
        let named = format!("CONFIG SET failed (possibly related to argument '{}') - ", wrong[1].0);
        assert!(refused.starts_with(&named), "{refused}");
        assert!(!refused.contains('\n'), "{refused}");
    }
    let few =
        |refused: String| assert!(refused.contains("'maxclients'") && refused.contains(", try with "), "{refused}");
    assert_eq!(server.set(&[("maxclients", "1000000")]).map_err(few).is_ok(), max_files() >= 1_008_192);
    server.set(&[("maxclients", "7")]).unwrap();
    assert_eq!(service.limits.read().clients, 7, "of a refused change nothing is taken");
    assert_eq!(server.host().rewrite().unwrap_err(), "The server is running without a config file");
    server.daemon.stop().unwrap();
}

#[test]
fn clients_are_told_what_redis_would_tell_them() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), Some("[store]\ndurability = \"always\"\nprofile = \"small-device\"\n"));
    let port = server.daemon.listening().unwrap().addresses[0].port().to_string();
    let directory = folder.path().join("data");
    for (name, value) in [
        ("maxmemory", "0"),
        ("maxmemory-policy", "noeviction"),
        ("save", ""),
        ("appendonly", "yes"),
        ("appendfsync", "always"),
        ("databases", "1"),
        ("maxclients", "10000"),
        ("timeout", "0"),
        ("proto-max-bulk-len", "536870912"),
        ("bind", "127.0.0.1"),
        ("port", &port),
        ("dir", directory.to_str().unwrap()),
        ("tls-port", "0"),
        ("hz", "1"),
        ("dynamic-hz", "no"),
        ("loglevel", "notice"),
        ("tcp-keepalive", "300"),
        ("store.memtable_bytes", "4194304"),
    ] {
        assert_eq!(server.get(name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(server.get("no-such"), None);
    server.daemon.stop().unwrap();
}

#[test]
fn what_was_changed_is_written_into_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), Some("# Ours.\n[clients]\nmax_clients = 5 # few\n"));
    server.set(&[("maxclients", "6")]).unwrap();
    let file = folder.path().join("ecotone.toml").display().to_string();
    assert_eq!(server.host().info("server")[0].lines, [("config_file".to_owned(), file)]);
    server.host().rewrite().unwrap();
    let text = std::fs::read_to_string(folder.path().join("ecotone.toml")).unwrap();
    assert_eq!(text, "# Ours.\n[clients]\nmax_clients = 6 # few\n");
    std::fs::remove_file(folder.path().join("ecotone.toml")).unwrap();
    assert!(server.host().rewrite().unwrap_err().starts_with("Rewriting config file"));
    server.daemon.stop().unwrap();
}

#[test]
fn info_tells_of_the_store_the_federation_and_the_energy() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), None);
    let store = server.daemon.only_store().unwrap();
    // The keyspace's own note of the time: a key as clients write them would do as well.
    store.put(b"mclock", &[0; 8]).unwrap();
    store.flush(true).unwrap();
    let sections = server.host().info("everything");
    let names: Vec<&str> = sections.iter().map(|section| section.name).collect();
    assert_eq!(names, ["Server", "Store", "Federation", "Cluster", "Replication", "Energy"]);
    let lines: BTreeMap<String, String> = sections.into_iter().flat_map(|section| section.lines).collect();
    let number = |name: &str| lines[name].parse::<f64>().unwrap_or_else(|_| panic!("{name}: {}", lines[name]));
    assert_eq!(lines["config_file"], "", "there is none");
    assert_eq!(lines["level0"].split(',').next(), Some("tables=1"));
    assert_eq!((lines["writers"].as_str(), number("flushes_total")), ("run", 1.0));
    assert!(number("space_free_bytes") > 0.0);
    assert_eq!((lines["federation_role"].as_str(), lines["policy"].as_str()), ("coordinator", "eco"));
    assert_eq!(lines["federation_address"], server.daemon.address());
    assert_eq!(lines["energy_source"], "model");
    let own: BTreeMap<&str, &str> = lines["server0"].split(',').map(|field| field.split_once('=').unwrap()).collect();
    assert_eq!((own["address"], own["role"], own["self"]), (server.daemon.address(), "coordinator", "1"));
    assert_eq!((lines["servers"].as_str(), own["name"]), ("1", lines["federation_name"].as_str()));
    let by_duty = lines.iter().filter(|(name, _)| name.starts_with("energy_joules_") && *name != "energy_joules_total");
    let sum: f64 = by_duty.map(|(_, joules)| joules.parse::<f64>().unwrap()).sum();
    assert!((sum - number("energy_joules_total")).abs() < 0.02, "{sum} of {}", lines["energy_joules_total"]);
    // Values must not break the lines of INFO.
    assert!(lines.iter().all(|(name, value)| !name.contains([':', '\n']) && !value.contains('\n')));
    assert_eq!(server.host().info("energy").len(), 1);
    assert!(server.host().info("keyspace").is_empty());

    drop(store);
    server.host().shut_down();
    assert!(server.was_shut_down.load(Ordering::SeqCst));
    server.daemon.stop().unwrap();
}

#[test]
fn what_users_write_counts_whole_wherever_it_lies() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), None);
    let store = server.daemon.only_store().unwrap();
    let before = store.counters();
    for number in 0..100_u32 {
        store.put(&number.to_be_bytes(), &[7; 1000]).unwrap();
        store.put(&(number + 100).to_be_bytes(), &[7; 50]).unwrap();
    }
    let after = store.counters();
    assert_eq!(after.separated_bytes - before.separated_bytes, 100_000, "long values are separated");
    let user_bytes = after.user_bytes() - before.user_bytes();
    assert!((105_000..115_000).contains(&user_bytes), "{user_bytes}");
    drop(store);
    server.daemon.stop().unwrap();
}
