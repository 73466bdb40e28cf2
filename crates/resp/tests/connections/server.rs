//! INFO, CONFIG, SLOWLOG, MEMORY, DEBUG, SAVE and what else is for who runs the server.

use crate::common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::served::until;
use common::{Fixture, TestClient};
use ecotone_engine::{Durability, StoreSettings};
use ecotone_keyspace::{Tag, Type};
use ecotone_resp::client::Then;
use ecotone_resp::command::table;
use ecotone_resp::execute::Step;
use ecotone_resp::service::{DebugCommand, Limits};

/// Sections by name, each with its lines, in order.
fn info(client: &mut TestClient<'_>, request: &str) -> Vec<(String, BTreeMap<String, String>)> {
    let reply = client.ask(request);
    let (_, text) = reply.split_once("\r\n").unwrap();
    let sections = text.split("# ").skip(1).map(|section| {
        let mut lines = section.lines();
        let name = lines.next().unwrap().to_owned();
        let lines = lines.filter_map(|line| line.split_once(':')).map(|(key, value)| (key.into(), value.into()));
        (name, lines.collect())
    });
    sections.collect()
}

fn names(sections: &[(String, BTreeMap<String, String>)]) -> String {
    sections.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" ")
}

#[test]
fn info_shows_the_sections_that_are_asked_for_in_redis_order() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let by_default = "Server Clients Memory Persistence Stats Replication CPU Modules Errorstats Cluster Keyspace";
    let all = &by_default.replace("Errorstats", "Commandstats Errorstats Latencystats");
    for (request, expected) in [
        ("INFO", by_default),
        ("INFO default", by_default),
        ("INFO DEFAULT commandstats", &by_default.replace("Errorstats", "Commandstats Errorstats")),
        ("INFO all", all),
        ("INFO everything server", all),
        ("INFO keyspace SERVER server cPu", "Server CPU Keyspace"),
        ("INFO nothing", ""),
    ] {
        assert_eq!(names(&info(&mut client, request)), expected, "{request}");
    }
    assert_eq!(client.ask("INFO nothing"), "$0\r\n\r\n");
    assert_eq!(client.ask("INFO cluster"), "$30\r\n# Cluster\r\ncluster_enabled:0\r\n\r\n");
    client.ask("HELLO 3");
    assert!(client.ask("INFO server").starts_with('='));
}

#[test]
fn info_tells_what_has_happened() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for request in ["SET a 1", "GET a", "GET b", "GET", "NOTHING", "CLIENT ID", "SELECT 1"] {
        client.ask(request);
    }
    let sections: BTreeMap<_, _> = info(&mut client, "INFO all").into_iter().collect();
    assert_eq!(sections["Stats"]["keyspace_hits"], "1");
    assert_eq!(sections["Stats"]["keyspace_misses"], "1");
    assert_eq!(sections["Stats"]["total_error_replies"], "3");
    assert_eq!(sections["Errorstats"]["errorstat_ERR"], "count=3");
    assert_eq!(sections["Keyspace"]["db0"], "keys=1,expires=0,avg_ttl=0");
    assert_eq!(sections["Clients"]["connected_clients"], "1");
    let of = |name: &str| sections["Commandstats"][name].clone();
    assert!(of("cmdstat_get").starts_with("calls=2,usec="), "{}", of("cmdstat_get"));
    assert!(of("cmdstat_get").ends_with(",rejected_calls=1,failed_calls=0"), "{}", of("cmdstat_get"));
    assert!(of("cmdstat_select").ends_with(",rejected_calls=0,failed_calls=1"));
    assert!(of("cmdstat_client|id").starts_with("calls=1,"));
    assert!(!sections["Commandstats"].contains_key("cmdstat_hello"));
    assert!(sections["Modules"].is_empty());
    let times: Vec<(&str, f64)> = sections["Latencystats"]["latency_percentiles_usec_get"]
        .split(',')
        .map(|time| time.split_once('=').unwrap())
        .map(|(of, us)| (of, us.parse().unwrap()))
        .collect();
    assert_eq!(times.iter().map(|(of, _)| *of).collect::<Vec<_>>(), ["p50", "p99", "p99.9"]);
    assert!(times[0].1 >= 1.0 && times.is_sorted_by(|one, other| one.1 <= other.1), "{times:?}");
    assert!(!sections["Latencystats"].contains_key("latency_percentiles_usec_hello"));
    for told in ["redis_git_sha1", "redis_git_dirty", "redis_build_id", "hz", "configured_hz"] {
        assert!(sections["Server"].contains_key(told), "{told}");
    }
    assert!(!sections["Stats"].contains_key("expired_keys"), "nobody counts them");
    assert_eq!(sections["Memory"]["mem_allocator"], "libc");
    assert_eq!(sections["Memory"]["allocator_rss_ratio"], "1.00", "which does not tell what it holds");
    for told in ["aof_last_bgrewrite_status", "aof_last_write_status"] {
        assert_eq!(sections["Persistence"][told], "ok", "{told}");
    }
    let resident: u64 = sections["Memory"]["used_memory_rss"].parse().unwrap();
    let peak: u64 = sections["Memory"]["used_memory_peak"].parse().unwrap();
    assert!(resident > 1 << 20 && peak >= resident);
    let bytes = |name: &str| -> u64 { sections["Memory"][name].parse().unwrap() };
    assert_eq!(bytes("used_memory_dataset") + bytes("used_memory_overhead"), bytes("used_memory"));
    assert!(bytes("used_memory_startup") > 1 << 20 && bytes("used_memory_startup") <= bytes("used_memory_overhead"));
    assert_eq!(sections["Server"]["run_id"].len(), 40);
    assert_eq!(client.ask("CONFIG RESETSTAT"), "+OK\r\n");
    let sections: BTreeMap<_, _> = info(&mut client, "INFO all").into_iter().collect();
    assert_eq!(sections["Stats"]["keyspace_hits"], "0");
    assert!(sections["Errorstats"].is_empty());
    assert!(!sections["Commandstats"].contains_key("cmdstat_get"));
}

#[test]
fn info_tells_of_collections_whose_elements_go_later() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let told = |client: &mut TestClient<'_>| {
        let memory = info(client, "INFO memory").remove(0).1;
        ["lazyfree_pending_objects", "lazyfreed_objects"].map(|name| memory[name].parse::<u64>().unwrap())
    };
    fixture.plant_large("set", Type::Set, 300);
    assert_eq!(told(&mut client), [0, 0]);
    client.ask("DEL set");
    assert_eq!(told(&mut client), [1, 0]);
    assert_eq!(fixture.reclaimed(), 1);
    assert_eq!(told(&mut client), [0, 1]);
    client.ask("CONFIG RESETSTAT");
    assert_eq!(told(&mut client), [0, 0]);
}

#[test]
fn info_and_config_agree_on_the_log() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for (setting, told) in [("yes", "aof_enabled:1\r\n"), ("no", "aof_enabled:0\r\n")] {
        fixture.host.settings.lock().insert("appendonly".into(), setting.into());
        assert!(client.ask("INFO persistence").contains(told), "{setting}");
    }
}

/// `keys`, `expires` and `avg_ttl` of `INFO keyspace`.
fn keyspace(client: &mut TestClient<'_>) -> [u64; 3] {
    let sections = info(client, "INFO keyspace");
    let Some(told) = sections[0].1.get("db0") else { return [0; 3] };
    let numbers: Vec<u64> = told.split(',').map(|number| number.split_once('=').unwrap().1.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

#[test]
fn info_counts_keys_and_not_what_large_collections_hold() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    assert_eq!(keyspace(&mut client), [0; 3]);
    let set = |fixture: &Fixture, keys: std::ops::Range<u32>, expires_at_ms: Option<u64>, tag: &str| {
        fixture.change(|of| {
            for key in keys {
                of.set(format!("{tag}{key}").as_bytes(), Tag::STRING, expires_at_ms, b"value").unwrap();
            }
        });
    };
    let now_ms = fixture.service.keyspace.clock().now_ms();
    // Few are counted, whatever large collections hold.
    fixture.plant_large("large", Type::Set, 50_000);
    set(&fixture, 0..2000, None, "");
    set(&fixture, 2000..3000, Some(now_ms + 1_000_000), "");
    set(&fixture, 3000..3500, Some(1), "");
    let [keys, expiring, average_ttl_ms] = keyspace(&mut client);
    assert_eq!((keys, expiring), (3001, 1000));
    assert!((900_000..=1_000_000).contains(&average_ttl_ms), "{average_ttl_ms}");
    assert_eq!(client.ask("DBSIZE"), ":3001\r\n");
    // Many are estimated: within what chance does to a sample of 4096.
    set(&fixture, 3500..20_000, None, "");
    set(&fixture, 20_000..40_000, Some(now_ms + 1_000_000), "");
    let [keys, expiring, average_ttl_ms] = keyspace(&mut client);
    assert!((35_000..45_000).contains(&keys), "{keys} instead of 39501");
    assert!((18_000..24_000).contains(&expiring), "{expiring} instead of 21000");
    assert!((900_000..=1_000_000).contains(&average_ttl_ms), "{average_ttl_ms}");
    // The whole store is about three times that.
    assert!(fixture.service.keyspace.only_store().unwrap().properties().unwrap().keys_estimate > 80_000);
}

#[test]
fn info_counts_keys_that_were_overwritten_once_also_after_a_restart() {
    for tag in ["", "{one tag}"] {
        let mut fixture = Fixture::new();
        for round in 0..3 {
            fixture.change(|keys| {
                for key in 0..30_000 {
                    let value = format!("value {round}");
                    keys.set(format!("{tag}{key}").as_bytes(), Tag::STRING, None, value.as_bytes()).unwrap();
                }
            });
            fixture.service.keyspace.only_store().unwrap().flush(true).unwrap();
        }
        for restarts in 0..2 {
            // Samples of new tables are looked at soon.
            until("hidden keys are known", || {
                let dedup = fixture.service.keyspace.only_store().unwrap().try_dedup();
                dedup.is_some_and(|dedup| dedup.duplicate_keys > 40_000)
            });
            let [keys, ..] = keyspace(&mut fixture.client());
            assert!((24_000..36_000).contains(&keys), "{keys} instead of 30000, {tag:?}, restarts: {restarts}");
            let Fixture { service, directory, .. } = fixture;
            drop(service);
            fixture = Fixture::at(
                directory,
                StoreSettings { durability: Durability::None, ..StoreSettings::default() }.with_separation(128),
            );
        }
    }
}

#[test]
fn info_counts_what_one_slot_has_beside_spread_keys_and_not_what_was_deleted() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let change = |tag: &str, keys: std::ops::Range<u32>, sets: bool| {
        fixture.change(|of| {
            for key in keys {
                let key = format!("{tag}{key}");
                if sets {
                    of.set(key.as_bytes(), Tag::STRING, None, b"value").unwrap();
                } else {
                    of.delete(key.as_bytes()).unwrap();
                }
            }
        });
    };
    change("", 0..8000, true);
    // In the middle of a part of the order, of which a sample sees the beginning.
    change("{t2}", 0..80_000, true);
    let [keys, ..] = keyspace(&mut client);
    assert!((75_000..100_000).contains(&keys), "{keys} instead of 88000");
    let store = fixture.service.keyspace.only_store().unwrap();
    store.flush(true).unwrap();
    change("{t2}", 0..60_000, false);
    store.flush(true).unwrap();
    until("hidden keys are known", || store.try_dedup().is_some_and(|dedup| dedup.duplicate_keys > 50_000));
    let [keys, ..] = keyspace(&mut client);
    assert!((22_000..36_000).contains(&keys), "{keys} instead of 28000");
}

#[test]
fn info_counts_keys_that_share_a_slot_as_well() {
    for has_collection in [false, true] {
        let fixture = Fixture::new();
        let mut client = fixture.client();
        if has_collection {
            fixture.plant_large("large", Type::Set, 1000);
        }
        fixture.change(|keys| {
            for key in 0..30_000 {
                keys.set(format!("{{one tag}}{key}").as_bytes(), Tag::STRING, None, b"value").unwrap();
            }
        });
        let [keys, ..] = keyspace(&mut client);
        assert!((29_000..33_000).contains(&keys), "{keys} instead of 30000");
    }
}

#[test]
fn config_is_the_hosts_and_changes_all_or_nothing() {
    let fixture = Fixture::new();
    let set = |name: &str, value: &str| fixture.host.settings.lock().insert(name.into(), value.into());
    for (name, value) in [("save", ""), ("appendonly", "no"), ("maxclients", "10")] {
        set(name, value);
    }
    let mut client = fixture.client();
    assert_eq!(
        client.ask("CONFIG GET SAVE append*"),
        "*4\r\n$10\r\nappendonly\r\n$2\r\nno\r\n$4\r\nSAVE\r\n$0\r\n\r\n"
    );
    assert_eq!(client.ask("CONFIG GET nothing"), "*0\r\n");
    assert_eq!(client.ask("CONFIG SET MaxClients 20 save x"), "+OK\r\n");
    assert_eq!(client.ask("CONFIG GET max*"), "*2\r\n$10\r\nmaxclients\r\n$2\r\n20\r\n");
    let unknown = "-ERR Unknown option or number of arguments for CONFIG SET - 'nothing'\r\n";
    assert_eq!(client.ask("CONFIG SET maxclients 30 nothing 1"), unknown);
    let twice = "-ERR CONFIG SET failed (possibly related to argument 'maxclients') - duplicate parameter\r\n";
    assert_eq!(client.ask("CONFIG SET MAXCLIENTS 30 maxclients 40"), twice);
    assert_eq!(client.ask("CONFIG SET nothing 1 maxclients 30 maxclients 40"), unknown);
    assert_eq!(client.ask("CONFIG SET nothing 1 nothing 2"), unknown);
    assert_eq!(client.ask("CONFIG SET maxclients 30 save"), "-ERR syntax error\r\n");
    assert!(client.send(&[b"CONFIG", b"SET", b"maxclients", b"\xff"]).starts_with(b"-ERR CONFIG SET failed"));
    assert_eq!(client.ask("CONFIG GET max*"), "*2\r\n$10\r\nmaxclients\r\n$2\r\n20\r\n");
    assert_eq!(client.ask("CONFIG REWRITE"), "-ERR The server is running without a config file\r\n");
    client.ask("HELLO 3");
    assert!(client.ask("CONFIG GET save").starts_with("%1\r\n"));
}

#[test]
fn the_slow_log_can_be_read_and_cleared() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.ask("CLIENT SETNAME me");
    for id in 0..12 {
        let words: [&[u8]; 2] = [b"GET", b"key"];
        fixture.service.slowlog.add(&words, id, Duration::from_micros(1500), "127.0.0.1:1", b"me", 100);
    }
    assert_eq!(client.ask("SLOWLOG LEN"), ":12\r\n");
    assert!(client.ask("SLOWLOG GET").starts_with("*10\r\n*6\r\n:11\r\n:11\r\n:1500\r\n*2\r\n$3\r\nGET\r\n"));
    assert!(client.ask("SLOWLOG GET -1").starts_with("*12\r\n"));
    let entry = "*1\r\n*6\r\n:11\r\n:11\r\n:1500\r\n*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n$11\r\n127.0.0.1:1\r\n$2\r\nme\r\n";
    assert_eq!(client.ask("SLOWLOG GET 1"), entry);
    assert_eq!(client.ask("SLOWLOG GET 0"), "*0\r\n");
    assert_eq!(client.ask("SLOWLOG RESET"), "+OK\r\n");
    assert_eq!(client.ask("SLOWLOG LEN"), ":0\r\n");
}

#[test]
fn the_slow_log_has_every_command_where_its_limit_is_0_and_none_where_it_is_off() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let debug_command = DebugCommand::Yes;
    let set = |slow_after| fixture.service.set_limits(Limits { slow_after, debug_command, ..Limits::default() });
    set(Some(Duration::ZERO));
    for number in 0..100 {
        // Some of them take less than a microsecond.
        client.ask("PING");
        assert_eq!(fixture.service.slowlog.len(), number + 1);
    }
    client.ask("EXEC");
    client.ask("nothing");
    assert_eq!(fixture.service.slowlog.len(), 100, "neither EXEC nor what is no command stands in it");
    set(None);
    client.ask("PING");
    assert_eq!(fixture.service.slowlog.len(), 100);
}

#[test]
fn debug_is_for_whom_the_setting_says_as_in_redis() {
    const REFUSED: &str = "-ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a \
                           local connection, otherwise you need to set this option in the configuration file, and then restart the \
                           server.\r\n";
    let fixture = Fixture::new();
    let allow = |debug_command| fixture.service.set_limits(Limits { debug_command, ..Limits::default() });
    assert_eq!(Limits::default().debug_command, DebugCommand::No);
    for (setting, is_local_let, is_other_let) in
        [(DebugCommand::No, false, false), (DebugCommand::Local, true, false), (DebugCommand::Yes, true, true)]
    {
        allow(setting);
        assert_eq!(DebugCommand::of(setting.name()), Some(setting));
        for (address, is_let) in [
            ("127.0.0.1:1", is_local_let),
            ("127.8.7.6:1", is_local_let),
            ("[::1]:1", is_local_let),
            ("[::ffff:127.0.0.1]:1", is_local_let),
            ("/run/ecotone.sock:0", is_local_let),
            ("ecotone.sock:0", is_local_let),
            ("10.0.0.1:1", is_other_let),
            ("128.0.0.1:1", is_other_let),
            ("[::2]:1", is_other_let),
        ] {
            let mut client = fixture.client_of(address);
            let expected = if is_let { "+OK\r\n" } else { REFUSED };
            assert_eq!(client.ask("DEBUG SLEEP 0"), expected, "{setting:?} {address}");
            client.client.then = Then::Go;
            // What is wrong with the request itself comes first.
            assert_eq!(client.ask("DEBUG"), "-ERR wrong number of arguments for 'debug' command\r\n");
            assert_eq!(client.ask("debug help").starts_with('*'), is_let, "{setting:?} {address}");
            client.ask("MULTI");
            assert_eq!(client.ask("DEBUG SLEEP 0"), if is_let { "+QUEUED\r\n" } else { REFUSED });
            assert_eq!(client.ask("EXEC").starts_with("-EXECABORT"), !is_let, "{setting:?} {address}");
        }
    }
    // Before the password, as Redis looks.
    let password = Some("secret".to_owned());
    fixture.service.set_limits(Limits { password, ..Limits::default() });
    let mut client = fixture.client();
    assert_eq!(client.ask("DEBUG SLEEP 0"), REFUSED);
    assert!(client.ask("PING").starts_with("-NOAUTH"));
}

#[test]
fn the_time_that_a_client_sleeps_is_time_of_its_command() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for request in ["DEBUG SLEEP 1.5", "MULTI", "DEBUG SLEEP 1.25", "EXEC", "WAIT 1 2000"] {
        client.ask(request);
        // Nobody waits here.
        client.client.then = Then::Go;
    }
    let slow: Vec<_> = fixture.service.slowlog.newest(10).into_iter().map(|slow| slow.took).collect();
    assert_eq!(slow.len(), 2, "{slow:?}");
    for (took, slept_ms) in slow.iter().zip([1250, 1500]) {
        assert!((slept_ms..slept_ms + 1000).contains(&took.as_millis()), "{took:?}");
    }
    let sections = info(&mut client, "INFO commandstats");
    for (name, min_us, max_us) in
        [("debug", 2_750_000, 9_000_000), ("exec", 1_250_000, 2_749_000), ("wait", 0, 1_999_000)]
    {
        let line = &sections[0].1[&format!("cmdstat_{name}")];
        let (_, usec) = line.split_once("usec=").unwrap();
        let usec: u64 = usec.split(',').next().unwrap().parse().unwrap();
        assert!((min_us..=max_us).contains(&usec), "{name}: {line}");
    }
}

#[test]
fn who_rests_or_closes_is_told_to_the_connection() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for (request, reply, then) in [
        ("DEBUG SLEEP 0.25", "+OK\r\n", Then::Rest(Duration::from_millis(250))),
        ("DEBUG SLEEP x", "+OK\r\n", Then::Rest(Duration::ZERO)),
        ("DEBUG SLEEP 0.25abc", "+OK\r\n", Then::Rest(Duration::from_millis(250))),
        ("DEBUG SLEEP +25e-2e", "+OK\r\n", Then::Rest(Duration::from_millis(250))),
        ("DEBUG SLEEP -1", "+OK\r\n", Then::Rest(Duration::ZERO)),
        ("DEBUG SLEEP nan", "+OK\r\n", Then::Rest(Duration::ZERO)),
        ("WAIT 1 50", ":0\r\n", Then::Rest(Duration::from_millis(50))),
        ("WAIT 0 50", ":0\r\n", Then::Go),
        ("WAIT 0 9223372036854775807", ":0\r\n", Then::Go),
        ("WAIT 1 0", ":0\r\n", Then::Go),
        ("WAITAOF 0 0 0", "*2\r\n:0\r\n:0\r\n", Then::Go),
        ("WAITAOF 0 1 50", "*2\r\n:0\r\n:0\r\n", Then::Rest(Duration::from_millis(50))),
        ("WAITAOF 2 0 0", "-ERR value is out of range, value must between 0 and 1\r\n", Then::Go),
        ("WAITAOF x 0 0", "-ERR value is not an integer or out of range\r\n", Then::Go),
        ("WAITAOF 0 -1 0", "-ERR value is out of range, must be positive\r\n", Then::Go),
        ("WAITAOF 1 0 x", "-ERR timeout is not an integer or out of range\r\n", Then::Go),
        ("WAITAOF 1 0 0", "-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n", Then::Go),
        ("WAIT 1 9223372036854775807", "-ERR timeout is out of range\r\n", Then::Go),
        ("SHUTDOWN ABORT", "-ERR No shutdown in progress.\r\n", Then::Go),
    ] {
        assert_eq!(client.ask(request), reply, "{request}");
        assert_eq!(std::mem::take(&mut client.client.then), then, "{request}");
    }
    for queued in ["MULTI", "DEBUG SLEEP 5", "PING", "DEBUG SLEEP 1"] {
        client.ask(queued);
    }
    assert_eq!(client.ask("EXEC"), "*3\r\n+OK\r\n+PONG\r\n+OK\r\n");
    assert_eq!(std::mem::take(&mut client.client.then), Then::Rest(Duration::from_secs(6)), "one rest after the other");
    // Longer than any clock goes.
    for queued in ["MULTI", "DEBUG SLEEP 1e19", "DEBUG SLEEP 1e19"] {
        client.ask(queued);
    }
    client.ask("EXEC");
    assert_eq!(std::mem::take(&mut client.client.then), Then::Rest(Duration::MAX));
    client.ask("MULTI");
    client.ask("WAIT 1 50");
    assert_eq!(client.ask("SHUTDOWN"), "-ERR Command not allowed inside a transaction\r\n");
    client.ask("DISCARD");
    client.ask("MULTI");
    client.ask("WAIT 1 50");
    assert_eq!(client.ask("EXEC"), "*1\r\n:0\r\n");
    assert_eq!(client.client.then, Then::Go);
    assert!(!fixture.host.was_shut_down.load(Ordering::SeqCst));
    assert_eq!(client.ask("SHUTDOWN NOSAVE NOW"), "");
    assert_eq!(client.client.then, Then::Close);
    assert!(fixture.host.was_shut_down.load(Ordering::SeqCst));
}

#[test]
fn a_save_puts_into_tables_what_is_in_memory() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let memory_tables = || fixture.service.keyspace.only_store().unwrap().counters().flushes;
    let saved = |client: &mut TestClient<'_>| -> BTreeMap<_, _> { info(client, "INFO persistence").remove(0).1 };
    client.ask("SET a 1");
    assert_ne!(saved(&mut client)["rdb_changes_since_last_save"], "0");
    let before = memory_tables();
    assert_eq!(client.ask("SAVE"), "+OK\r\n");
    assert!(memory_tables() > before);
    assert_eq!(saved(&mut client)["rdb_changes_since_last_save"], "0");
    assert_eq!(saved(&mut client)["rdb_saves"], "1");
    client.ask("SET a 2");
    assert_eq!(client.ask("BGSAVE SCHEDULE"), "+Background saving started\r\n");
    fixture.service.saves.finish();
    let lines = saved(&mut client);
    assert_eq!((lines["rdb_saves"].as_str(), lines["rdb_last_bgsave_status"].as_str()), ("2", "ok"));
    assert_eq!(lines["rdb_bgsave_in_progress"], "0");
    let last: u64 = client.ask("LASTSAVE")[1..].trim().parse().unwrap();
    assert_eq!(lines["rdb_last_save_time"], last.to_string());
}

#[test]
fn two_saves_do_not_run_at_once() {
    let fixture = Fixture::new();
    fixture.client().ask("SET a 1");
    // Whatever wins: a refusal has this text, and every client is answered.
    let refused = "-ERR Background save already in progress\r\n";
    let ask = |request: &str| fixture.client().ask(request);
    let replies: Vec<String> = std::thread::scope(|scope| {
        let threads = ["BGSAVE", "BGSAVE", "SAVE", "BGSAVE"].map(|request| scope.spawn(move || ask(request)));
        threads.map(|thread| thread.join().unwrap()).to_vec()
    });
    let succeeded = replies.iter().filter(|reply| reply.as_str() != refused).count();
    fixture.service.saves.finish();
    assert!(succeeded >= 1, "{replies:?}");
    assert_eq!(fixture.service.saves.last().number, succeeded as u64);
}

#[test]
fn memory_usage_is_what_is_stored() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.ask("SET key 12345");
    client.ask("SET key:longer 12345");
    client.send(&[b"SET", b"big", &[b'x'; 5000]]);
    let mut bytes = |key: &str| -> i64 { client.ask(&format!("MEMORY USAGE {key}"))[1..].trim().parse().unwrap() };
    assert_eq!(bytes("key:longer") - bytes("key"), 7);
    assert_eq!(bytes("big") - bytes("key"), 5000 - 5);
    assert!((13..32).contains(&bytes("key")));
    assert_eq!(client.ask("MEMORY USAGE nothing"), "$-1\r\n");
}

#[test]
fn memory_usage_of_a_large_collection_looks_at_samples() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for number in 10_000..12_000 {
        // All of the same length.
        for request in ["HSET hash f# v", "SADD set m#", "RPUSH list e#", "ZADD sorted 1# m#"] {
            client.ask(&request.replace('#', &number.to_string()));
        }
    }
    // Longer ones, which are neither first nor last.
    client.send(&[b"LSET", b"list", b"1000", &[b'x'; 10_000]]);
    let mut bytes =
        |request: &str| -> i64 { client.ask(&format!("MEMORY USAGE {request}"))[1..].trim().parse().unwrap() };
    for key in ["hash", "set", "sorted"] {
        let all = bytes(&format!("{key} SAMPLES 0"));
        assert!(all > 2000 * 20, "{key}: {all}");
        for samples in ["", " SAMPLES 1", " SAMPLES 1999", " SAMPLES 2000", " SAMPLES 9223372036854775807"] {
            assert_eq!(bytes(&format!("{key}{samples}")), all, "{key}{samples}");
        }
    }
    let all = bytes("list SAMPLES 0");
    assert_eq!(bytes("list SAMPLES 5000"), all);
    assert!((9_000..10_000).contains(&(all - bytes("list"))), "the long element is among none of 5 samples");
    for key in ["hash", "set", "list", "sorted"] {
        // On a thread of others, where no more than 1000 entries may be looked at.
        assert!(matches!(client.step_at_once(&format!("MEMORY USAGE {key}")), Step::Done { .. }), "{key}");
        assert_eq!(client.step_at_once(&format!("MEMORY USAGE {key} SAMPLES 0")), Step::WouldBlock, "{key}");
    }
}

#[test]
fn every_entry_of_the_table_is_sound() {
    let mut names = std::collections::BTreeSet::new();
    for command in table::all_with_subcommands() {
        assert!(names.insert(command.name), "{} twice", command.name);
        assert_eq!(command.name, command.name.to_lowercase());
        assert_ne!(command.arity, 0, "{}", command.name);
        assert!(command.summary.ends_with('.'), "{}", command.name);
        assert!(std::ptr::eq(table::find_full(command.name.to_uppercase().as_bytes()).unwrap(), command));
        for subcommand in command.subcommands {
            assert_eq!(subcommand.name.split('|').next().unwrap(), command.name);
        }
    }
    for none in [&b"client|"[..], b"client|nothing", b"|id", b"get|get", b"", b"client|id|id"] {
        assert!(table::find_full(none).is_none());
    }
}

#[test]
fn who_is_in_stays_in_when_a_password_is_set() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    *fixture.service.limits.write() = Arc::new(Limits { password: Some("x".into()), ..Limits::default() });
    // Who is in stays in, as in Redis; who comes later is asked.
    assert_eq!(client.ask("PING"), "+PONG\r\n");
    assert!(fixture.client().ask("PING").starts_with("-NOAUTH"));
}
