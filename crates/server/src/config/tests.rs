use std::collections::BTreeSet;
use std::ffi::OsString;

use super::*;

fn file_with(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ecotone.toml");
    std::fs::write(&file, text).unwrap();
    (folder, file)
}

fn load(text: &str) -> Result<Config> {
    let (_folder, file) = file_with(text);
    Config::load(Some(&file), [])
}

fn variables(of: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    of.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

/// A value that is wrong for each key, as it is written in the file. A key without one here fails
/// the test below.
const WRONG: &[(&str, &str)] = &[
    ("server.dir", "7"),
    ("server.name", "\"a\\nb\""),
    ("server.cores", "0"),
    ("server.log_level", "\"loud\""),
    ("server.log_format", "\"xml\""),
    ("clients.listen", "\"localhost\""),
    ("clients.unix_socket", "true"),
    ("clients.tls_listen", "\"0.0.0.0\""),
    ("clients.tls_certificate", "7"),
    ("clients.tls_key", "true"),
    ("clients.tls_client_ca", "[\"/ca.pem\"]"),
    ("clients.event_loops", "\"off\""),
    ("clients.blocking_threads", "0"),
    ("clients.io_uring", "\"on\""),
    ("clients.password", "1234"),
    ("clients.enable_debug_command", "\"maybe\""),
    ("clients.cluster", "true"),
    ("clients.proxy", "\"maybe\""),
    ("clients.announce_ip", "\"localhost\""),
    ("clients.announce_hostname", "\"a b\""),
    ("clients.announce_port", "0"),
    ("clients.announce_tls_port", "65536"),
    ("clients.preferred_endpoint", "\"name\""),
    ("clients.max_clients", "0"),
    ("clients.max_request_bytes", "1000"),
    ("clients.max_argument_bytes", "536870913"),
    ("clients.pipeline_requests", "-1"),
    ("clients.max_output_bytes", "0"),
    ("clients.idle_timeout_s", "0"),
    ("clients.send_timeout_s", "1.5"),
    ("clients.transaction_bytes", "\"64MB\""),
    ("clients.max_memory_bytes", "0"),
    ("clients.trust_system_clock", "1"),
    ("clients.slow_after_us", "-1"),
    ("clients.slowlog_entries", "1000001"),
    ("store.profile", "\"tiny\""),
    ("store.durability", "\"maybe\""),
    ("store.compression", "\"gzip\""),
    ("store.memory_limit_bytes", "1"),
    ("store.row_cache_bytes", "-1"),
    ("store.memtable_bytes", "1"),
    ("store.memtable_count", "1"),
    ("store.memtable_order", "\"hash\""),
    ("store.l0_compaction_trigger", "0"),
    ("store.l0_slowdown_trigger", "0"),
    ("store.l0_stop_trigger", "0"),
    ("store.level_base_bytes", "1"),
    ("store.level_multiplier", "1"),
    ("store.dynamic_levels", "\"maybe\""),
    ("store.target_file_bytes", "1"),
    ("store.max_subcompactions", "257"),
    ("store.background_flushes", "0"),
    ("store.background_compactions", "0"),
    ("store.bloom_bits_per_key", "31"),
    ("store.block_bytes", "1"),
    ("store.separation_min_bytes", "0"),
    ("store.value_compression", "\"brotli\""),
    ("store.dedup", "\"triggered\""),
    ("store.dedup_threshold", "1"),
    ("store.gc_min_garbage_share", "0.6"),
    ("store.gc_ratio", "1"),
    ("store.gc_throttled_ratio", "1"),
    ("store.gc_burst_credit_seconds", "-1"),
    ("store.max_open_files", "15"),
    ("store.max_wal_bytes", "\"off\""),
    ("store.expired_compaction_seconds", "315360001"),
    ("store.page_cache_bytes", "\"off\""),
    ("space.max_bytes", "1"),
    ("space.reserve_bytes", "\"off\""),
    ("federation.listen", "\"7411\""),
    ("federation.announce", "\"here\""),
    ("federation.zone", "\"a\\nb\""),
    ("federation.witness", "\"yes\""),
    ("federation.token", "\"eco1-secret\""),
    ("federation.join", "\"host:0\""),
    ("federation.policy", "\"Eco\""),
    ("federation.worker_slots", "-1"),
    ("federation.network_bytes_per_s", "0"),
    ("backup.dir", "true"),
    ("backup.keep", "0"),
    ("backup.limit_bytes_per_s", "0"),
    ("energy.active_watts", "0"),
    ("energy.idle_watts", "nan"),
    ("power.mode", "\"fast\""),
    ("power.cap_watts", "0"),
    ("http.listen", "\"localhost\""),
    ("http.public", "\"yes\""),
];

#[test]
fn every_key_is_refused_where_it_is_wrong_with_its_line_and_what_it_must_be() {
    let tried: BTreeSet<&str> = WRONG.iter().map(|(path, _)| *path).collect();
    let all: BTreeSet<&str> = keys().iter().map(|key| key.path.as_str()).collect();
    assert_eq!(tried, all, "each key has a wrong value in this test");
    for (path, wrong) in WRONG {
        let key = find(path).unwrap();
        let (folder, file) = file_with(&format!("# 1\n\n[{}]\n# 4\n{} = {wrong}\n", key.section(), key.name()));
        let refused = Config::load(Some(&file), []).unwrap_err().to_string();
        for says in [&format!("{}:5: ", file.display()), *path, &key.kind.range()] {
            assert!(refused.contains(says), "{says:?} is not in {refused:?}");
        }
        drop(folder);
        // The environment is held to the same.
        let text = wrong.trim_matches('"').replace("\\n", "\n");
        if let Err(refused) = Config::load(None, variables(&[(&key.variable(), &text)])) {
            let refused = refused.to_string();
            assert!(refused.contains(&key.variable()) && refused.contains(&key.kind.range()), "{refused}");
        } else {
            // Any text is right for these.
            let harmless = [
                "server.dir",
                "clients.unix_socket",
                "clients.tls_certificate",
                "clients.tls_key",
                "clients.tls_client_ca",
                "clients.password",
                "backup.dir",
            ];
            assert!(harmless.contains(path), "{path} = {text:?} was taken from the environment");
        }
    }
}

#[test]
fn the_command_line_wins_over_the_environment_and_that_over_the_file() {
    let (_folder, file) = file_with("[clients]\nmax_clients = 1\nevent_loops = 2\npipeline_requests = 3\n");
    let environment = [("ECOTONE_CLIENTS_MAX_CLIENTS", "10"), ("ECOTONE_CLIENTS_EVENT_LOOPS", "20"), ("PATH", "/bin")];
    let mut config = Config::load(Some(&file), variables(&environment)).unwrap();
    config.set("clients.max_clients", "100", ValueOrigin::Argument("--max".into())).unwrap();
    let texts = ["max_clients", "event_loops", "pipeline_requests", "send_timeout_s"];
    let texts = texts.map(|name| config.text(&format!("clients.{name}")).to_owned());
    assert_eq!(texts, ["100", "20", "3", "60"]);
}

#[test]
fn what_does_not_count_is_told_with_both_places_and_without_values() {
    let text =
        "[clients]\npassword = \"in the file\"\nmax_clients = 1\nevent_loops = 2\n[store]\ndurability = \"always\"\n";
    let (_folder, file) = file_with(text);
    let environment = [
        ("ECOTONE_CLIENTS_PASSWORD", "outside"),
        ("ECOTONE_CLIENTS_EVENT_LOOPS", "2"),
        ("ECOTONE_STORE_DURABILITY", "none"),
    ];
    let mut config = Config::load(Some(&file), variables(&environment)).unwrap();
    config.set_store_option("durability=none", ValueOrigin::Argument("--store-option".into())).unwrap();
    config.set("store.durability", "everysec", ValueOrigin::Argument("--durability".into())).unwrap();
    let warnings = config.overridden();
    let expected = [
        (":2", "clients.password", "environment variable ECOTONE_CLIENTS_PASSWORD"),
        (":6", "store.durability", "--durability says"),
        ("environment variable ECOTONE_STORE_DURABILITY", "store.durability", "--durability says"),
        ("--store-option", "store.durability", "--durability says"),
    ];
    assert_eq!(warnings.len(), expected.len(), "what says the same counts: {warnings:?}");
    for (line, (loser, path, winner)) in warnings.iter().zip(expected) {
        assert!(line.starts_with(path) && line.contains(loser) && line.contains(winner), "{line}");
        assert!(!line.contains("in the file") && !line.contains("outside"), "{line}");
    }
    assert!(Config::load(Some(&file), []).unwrap().overridden().is_empty());

    // What a client changes is lost where something wins over the file that says something else.
    for (path, text) in [("clients.password", "by a client"), ("clients.max_clients", "7")] {
        config.set(path, text, ValueOrigin::Client).unwrap();
    }
    let lost = |config: &Config| -> Vec<String> {
        let all: Vec<&str> = keys().iter().map(|key| key.path.as_str()).collect();
        config.lost_at_next_start(&all).map(|(path, place)| format!("{path}: {place}")).collect()
    };
    assert_eq!(lost(&config), ["clients.password: environment variable ECOTONE_CLIENTS_PASSWORD"]);
    config.set("clients.password", "outside", ValueOrigin::Client).unwrap();
    assert!(lost(&config).is_empty(), "it is the same");
    assert_eq!((config.text("clients.password"), config.text("clients.max_clients")), ("outside", "7"));
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    for (text, says) in [
        ("[client]\nmax_clients = 1\n", vec![":2: ", "[client]", "[clients]"]),
        ("[client]\n", vec![":1: ", "[client]"]),
        ("\n[clients]\nmax = 1\n", vec![":3: ", "max_clients"]),
        ("[store]\nmax_clients = 1\n", vec![":2: ", "belongs to [clients]"]),
        ("dir = \"/tmp\"\n", vec![":1: ", "no section"]),
        ("[clients]\nmax_clients = \n", vec![":2: ", "not TOML"]),
        ("[clients]\nmax_clients = 1\nmax_clients = 2\n", vec![":3: ", "not TOML", "max_clients"]),
    ] {
        let refused = load(text).unwrap_err().to_string();
        for says in says {
            assert!(refused.contains(says), "{says:?} is not in {refused:?}");
        }
    }
    let (_folder, file) = file_with("");
    std::fs::write(&file, b"[clients]\npassword = \"hidden\xff\"\n").unwrap();
    let refused = Config::load(Some(&file), []).unwrap_err().to_string();
    assert!(refused.contains("ecotone.toml:2: ") && refused.contains("UTF-8"), "{refused}");
    assert!(!refused.contains("hidden"), "{refused}");
    // It has no length and never ends.
    let refused = Config::load(Some(Path::new("/dev/zero")), []).unwrap_err().to_string();
    assert!(refused.contains("/dev/zero") && refused.contains("no configuration"), "{refused}");
    let missing = Config::load(Some(Path::new("/there/is/none.toml")), []).unwrap_err().to_string();
    assert!(missing.contains("/there/is/none.toml"), "{missing}");
    let refused = Config::load(None, variables(&[("ECOTONE_CLIENTS_MAXCLIENTS", "1")])).unwrap_err().to_string();
    assert!(refused.contains("ECOTONE_CLIENTS_MAXCLIENTS"), "{refused}");
    // Of other programs that know the name: a cluster tells its services so.
    assert!(Config::load(None, variables(&[("ECOTONE_SERVICE_HOST", "10.0.0.1"), ("ECOTONE_CONFIG", "x")])).is_ok());
}

#[test]
fn values_that_do_not_fit_one_another_are_refused_where_they_stand() {
    let dir = "[server]\ndir = \"/nowhere\"\n";
    for (text, says) in [
        ("[store]\nl0_slowdown_trigger = 3\n", ":4: store.l0_slowdown_trigger"),
        ("[store]\nl0_compaction_trigger = 21\n", ":4: store.l0_compaction_trigger"),
        ("[store]\nl0_stop_trigger = 19\n", ":4: store.l0_stop_trigger"),
        ("[store]\nmax_wal_bytes = 65536\n", ":4: store.max_wal_bytes"),
        ("[store]\nprofile = \"small-device\"\nmemtable_bytes = 67108864\n", ":5: store.memtable_bytes"),
        ("[store]\nmemory_limit_bytes = 8388608\nmemtable_bytes = 16777216\n", ":5: store.memtable_bytes"),
        ("[space]\nmax_bytes = 33554432\nreserve_bytes = 16777216\n", ":4: space.max_bytes"),
        ("[federation]\nlisten = \"0.0.0.0:7411\"\n", ":4: federation.listen"),
    ] {
        let refused = load(&format!("{dir}{text}")).unwrap().serve_options().err().unwrap().to_string();
        assert!(refused.contains(says), "{says:?} is not in {refused:?}");
    }
    for (text, says) in [
        (
            "max_request_bytes = 2000000\n",
            ":2: clients.max_request_bytes = 2000000: an argument may have 536870912 bytes",
        ),
        (
            "max_output_bytes = 536870911\n",
            ":2: clients.max_output_bytes = 536870911: a string may have 536870912 bytes",
        ),
        ("max_argument_bytes = 3000000\nmax_output_bytes = 3000000\n", ":3: clients.max_output_bytes = 3000000: "),
        ("max_argument_bytes = 3000000\nmax_output_bytes = 3524287\n", "which must be 524288 more"),
    ] {
        let refused = load(&format!("[clients]\n{text}")).unwrap().listen().unwrap_err().to_string();
        assert!(refused.contains(says), "{says:?} is not in {refused:?}");
    }
    assert!(load("[clients]\nmax_argument_bytes = 3000000\nmax_output_bytes = 3524288\n").unwrap().limits().is_ok());
    let refused = load("").unwrap().serve_options().err().unwrap().to_string();
    assert!(refused.contains("--dir") && refused.contains("server.dir"), "{refused}");
}

#[test]
fn what_the_store_refuses_is_told_with_its_line() {
    let config = load("[store]\nmemtable_bytes = 1000000\n").unwrap();
    let of_store = |field| {
        config
            .explain(Error::Store(ecotone_engine::Error::InvalidArgument { field, reason: "is odd".into() }))
            .to_string()
    };
    assert!(of_store("memtable_bytes").ends_with(":2: store.memtable_bytes = 1000000: is odd"));
    assert_eq!(of_store("space.max_bytes"), "space.max_bytes = off: is odd");
    assert!(of_store("separation.min_bytes").starts_with("store.separation_min_bytes"));
    assert_eq!(of_store("gc"), "store: invalid gc: is odd");
}

#[test]
fn beyond_this_machine_nobody_is_listened_for_without_a_password() {
    let listen = |text: &str| load(&format!("[clients]\n{text}\n")).unwrap().listen();
    for own in ["listen = \"127.0.0.1:1\"", "listen = [\"[::1]:1\", \"127.1.2.3:1\", \"[::ffff:127.0.0.1]:1\"]", ""] {
        assert!(listen(own).unwrap().is_some(), "{own}");
    }
    for open in ["0.0.0.0:1", "[::]:1", "10.0.0.5:1", "127.0.0.1:1,192.168.1.1:1", "[::ffff:10.0.0.1]:1"] {
        let refused = listen(&format!("listen = \"{open}\"")).unwrap_err().to_string();
        assert!(refused.contains("clients.password") && refused.contains(":2: clients.listen"), "{refused}");
        assert!(listen(&format!("listen = \"{open}\"\npassword = \"p\"")).unwrap().is_some(), "{open}");
    }
    assert_eq!(listen("listen = \"off\"").unwrap(), None);
    let socket = listen("listen = \"off\"\nunix_socket = \"/tmp/e.sock\"").unwrap().unwrap();
    assert_eq!((socket.addresses.len(), socket.socket), (0, Some("/tmp/e.sock".into())));
}

#[test]
fn beyond_this_machine_tls_is_for_those_with_a_password_or_a_certificate() {
    // Whether the files are there is another matter.
    let limits = |text: &str| load(&format!("[clients]\n{text}\n")).unwrap().limits();
    for own in ["127.0.0.1:1", "[::1]:1"] {
        assert!(limits(&format!("tls_listen = \"{own}\"")).is_ok(), "{own}");
    }
    for open in ["0.0.0.0:1", "[::]:1", "127.0.0.1:1,10.0.0.5:1"] {
        let refused = limits(&format!("tls_listen = \"{open}\"")).unwrap_err().to_string();
        for says in [":2: clients.tls_listen", "clients.password", "clients.tls_client_ca"] {
            assert!(refused.contains(says), "{says:?} is not in {refused:?}");
        }
        for asks in ["password = \"p\"", "tls_client_ca = \"/ca.pem\""] {
            assert!(limits(&format!("tls_listen = \"{open}\"\n{asks}")).is_ok(), "{open} {asks}");
        }
        // A certificate is not asked for there.
        let plain = limits(&format!("listen = \"{open}\"\ntls_client_ca = \"/ca.pem\""));
        assert!(plain.unwrap_err().to_string().contains("clients.listen"));
    }
}

#[test]
fn tls_without_its_files_is_refused_where_it_stands() {
    let listen = |text: &str| load(&format!("[clients]\n{text}\n")).unwrap().listen();
    let refused = listen("tls_listen = \"127.0.0.1:1\"").unwrap_err().to_string();
    assert!(refused.contains(":2: clients.tls_listen") && refused.contains("clients.tls_certificate"), "{refused}");
    let files = "tls_certificate = \"/no/such.pem\"\ntls_key = \"/no/such.key\"";
    let refused = listen(&format!("tls_listen = \"127.0.0.1:1\"\n{files}")).unwrap_err().to_string();
    assert!(refused.contains(":3: clients.tls_certificate = /no/such.pem: it cannot be read"), "{refused}");
    // Where nobody listens nobody reads them.
    assert_eq!(listen(files).unwrap().unwrap().tls, None);
}

#[test]
fn beyond_this_machine_metrics_are_told_only_where_that_is_said() {
    let http = |text: &str| {
        let config = load(&format!("[server]\ndir = \"/nowhere\"\n[http]\n{text}\n")).unwrap();
        config.serve_options().map(|options| options.http)
    };
    let default = http("").unwrap().unwrap();
    assert_eq!((default.addresses, default.is_default), (vec!["127.0.0.1:7480".parse().unwrap()], true));
    let said = http("listen = [\"127.0.0.1:0\", \"[::1]:0\"]").unwrap().unwrap();
    assert_eq!((said.addresses.len(), said.is_default), (2, false));
    assert_eq!(http("listen = \"off\"").unwrap(), None);
    for open in ["0.0.0.0:1", "[::]:1", "127.0.0.1:1,192.168.1.1:1", "[::ffff:10.0.0.1]:1"] {
        let refused = http(&format!("listen = \"{open}\"")).unwrap_err().to_string();
        assert!(refused.contains(":4: http.listen") && refused.contains("http.public = true"), "{refused}");
        assert!(http(&format!("listen = \"{open}\"\npublic = false")).is_err(), "{open}");
        assert!(http(&format!("listen = \"{open}\"\npublic = true")).unwrap().is_some(), "{open}");
    }
}

#[test]
fn a_password_is_not_shown() {
    let refused = Config::load(None, variables(&[("ECOTONE_CLIENTS_PASSWORD", &"hidden".repeat(100))])).unwrap_err();
    assert!(!refused.to_string().contains("hidden"), "{refused}");
}

#[test]
fn a_variable_that_is_no_text_is_refused_by_name_and_not_shown() {
    use std::os::unix::ffi::OsStringExt;
    let no_text = |text: &str| OsString::from_vec([text.as_bytes(), b"\xff"].concat());
    for name in ["ECOTONE_CLIENTS_PASSWORD", "ECOTONE_SERVER_DIR"] {
        let refused = Config::load(None, [(name.into(), no_text("hidden"))]).unwrap_err().to_string();
        assert!(refused.contains(name) && refused.contains("UTF-8") && !refused.contains("hidden"), "{refused}");
    }
    let refused = Config::load(None, [(no_text("ECOTONE_CLIENTS_PASSWORD"), "hidden".into())]).unwrap_err().to_string();
    assert!(refused.contains("ECOTONE_CLIENTS_PASSWORD") && !refused.contains("hidden"), "{refused}");
    assert!(Config::load(None, [("OF_OTHERS".into(), no_text("x")), (no_text("OF_OTHERS"), "x".into())]).is_ok());
}

#[test]
fn settings_become_what_a_server_is_started_with() {
    let config = load(
        "[server]\ndir = \"/data\"\nname = \"n\"\ncores = 3\n[clients]\nidle_timeout_s = 5\nslow_after_us = \"off\"\npassword = \"p\"\n\
         max_clients = 0x10\n[store]\ndurability = \"always\"\nmax_subcompactions = 2\n[space]\nmax_bytes = 1_000_000_000\n\
         [federation]\nworker_slots = 0\nnetwork_bytes_per_s = 1000000\n[energy]\nactive_watts = 0x10\nidle_watts = 0.5\n",
    )
    .unwrap();
    let options = config.serve_options().unwrap();
    assert_eq!(options.directory, Path::new("/data"));
    let name = options.name.as_ref().map(|name| name.as_str());
    assert_eq!((name, options.cores, options.worker_slots()), (Some("n"), 3, 0));
    assert_eq!((options.max_subcompactions, options.network_bytes_per_s, options.idle_watts), (Some(2), 1e6, 0.5));
    assert_eq!(options.active_watts, 16.0);
    assert_eq!(options.store.durability, ecotone_engine::Durability::Always);
    assert_eq!(options.store.space.max_bytes, Some(1_000_000_000));
    let limits = config.limits().unwrap();
    assert_eq!((limits.clients, limits.password.as_deref(), limits.slow_after), (16, Some("p"), None));
    assert_eq!(limits.idle, Some(std::time::Duration::from_secs(5)));
    // What nobody says is what those hold who ask for nothing.
    let options = load("[server]\ndir = \"/data\"\n").unwrap().serve_options().unwrap();
    assert_eq!((options.max_subcompactions, options.name), (None, None));
    let limits = load("").unwrap().limits().unwrap();
    // That is a share of this machine's.
    let memory_bytes = limits.memory_bytes;
    assert!(memory_bytes > 0);
    assert_eq!(limits, ecotone_resp::service::Limits { memory_bytes, ..Default::default() });
}

#[test]
fn a_witness_has_no_clients() {
    let witness =
        |more: &str| load(&format!("[server]\ndir = \"/d\"\n[federation]\nwitness = true\nzone = \"north\"\n{more}"));
    let config = witness("").unwrap();
    let options = config.serve_options().unwrap();
    assert!(options.witness && options.zone == "north");
    // Where they are listened for by default nobody has asked for.
    assert!(config.listen().unwrap().is_none());
    assert!(witness("[clients]\nlisten = \"off\"").unwrap().listen().unwrap().is_none());
    for said in ["listen = \"127.0.0.1:1\"", "unix_socket = \"/s\"", "tls_listen = \"127.0.0.1:1\""] {
        let refused = witness(&format!("[clients]\n{said}")).unwrap().listen().unwrap_err().to_string();
        assert!(refused.contains("a witness has no store") && refused.contains("clients."), "{refused}");
    }
    let data = load("[server]\ndir = \"/d\"").unwrap();
    assert!(!data.serve_options().unwrap().witness && data.listen().unwrap().is_some());
}
