//! Profiles: what they refuse, and how they fit hosts.

use ecotone_bench::workload::Workload;
use ecotone_lab::{
    Demand, HOST_SHARE, LabError, LabOptions, MIN_SPEED, OfferedRate, Profile, ScaledProfile, StoreProfile,
};
use ecotone_policy::policy::PolicyName;

const ALONE: Demand = Demand { foreground_threads: 1, colocated_threads: 0, seconds: 90 };

fn near(left: f64, right: f64) -> bool {
    (left - right).abs() < 5e-5
}

fn scaled(name: &str, host_cores: f64, demand: Demand) -> ScaledProfile {
    Profile::load(name).unwrap().scaled_to(host_cores, demand).unwrap()
}

#[test]
fn three_tiers_on_two_cores_by_hand() {
    // Busy: one foreground thread, flush, compaction and rest each, and 2, 2, 1 worker slots: 6, 6
    // and, of 4 cores, 4. 6 x 4.5 + 6 x 3.4 + 4 x 1.5 = 53.4; k = 0.97 x 2 / 53.4 = 0.036330.
    let profile = scaled("three-tier", 2.0, ALONE);
    assert!(near(profile.scale.unwrap(), 0.036330), "{:?}", profile.scale);
    let servers = &profile.servers;
    assert_eq!(servers.iter().map(|server| server.busy_cores).collect::<Vec<_>>(), [6, 6, 4]);
    assert_eq!(servers.iter().map(|server| server.cores).collect::<Vec<_>>(), [8, 6, 4]);
    for (server, speed) in servers.iter().zip([0.163483, 0.123521, 0.054494]) {
        assert!(near(server.speed, speed), "{server:?}");
    }
    assert!(near(profile.host_share, HOST_SHARE));
    assert_eq!(profile.store.memtable_bytes, Some(10 << 20), "two host cores are what the sizes stand for");
}

#[test]
fn colocated_threads_keep_the_cores_of_high_busy() {
    // High: all 8 cores. 8 x 4.5 + 6 x 3.4 + 4 x 1.5 = 62.4; k = 1.94 / 62.4 = 0.031090.
    let profile = scaled("three-tier", 2.0, Demand { colocated_threads: 8, ..ALONE });
    assert_eq!(profile.servers[0].busy_cores, 8);
    assert!(near(profile.servers[0].speed, 0.139904) && near(profile.servers[2].speed, 0.046635), "{profile:?}");
}

#[test]
fn more_foreground_threads_never_ask_for_more_cores_than_there_are() {
    let profile = scaled("three-tier", 2.0, Demand { foreground_threads: 64, ..ALONE });
    assert_eq!(profile.servers.iter().map(|server| server.busy_cores).collect::<Vec<_>>(), [8, 6, 4]);
}

#[test]
fn on_a_large_host_the_fastest_core_is_a_whole_one_and_stores_grow() {
    let profile = scaled("three-tier", 64.0, ALONE);
    assert!(near(profile.servers[0].speed, 1.0) && near(profile.servers[1].speed, 3.4 / 4.5), "{profile:?}");
    // k = 1 / 4.5 = 0.22222, 6.1167 times that of two cores: 10 MiB become 61.17 MiB.
    let grown = profile.store.memtable_bytes.unwrap() as f64 / (10 << 20) as f64;
    assert!((grown - 0.222222 / 0.03633).abs() < 0.02, "{grown}");
    assert!(profile.host_share < 0.4);
}

#[test]
fn six_servers_shrink_to_fit_two_cores_and_are_whole_on_four() {
    // 2 x (4 x 4.5 + 4 x 3.4 + 3 x 1.5) = 72.2; k = 1.94 / 72.2 = 0.026870.
    let small = scaled("six", 2.0, ALONE);
    assert_eq!(small.servers.iter().map(|server| server.cores).collect::<Vec<_>>(), [4, 4, 3, 4, 4, 3]);
    for (server, speed) in small.servers.iter().zip([0.120914, 0.091357, 0.040305]) {
        assert!(near(server.speed, speed), "{server:?}");
    }
    assert!(small.servers.iter().all(|server| server.speed >= MIN_SPEED));
    let whole = scaled("six", 4.0, ALONE);
    assert_eq!(whole.servers.iter().map(|server| server.cores).collect::<Vec<_>>(), [8, 6, 4, 8, 6, 4]);
}

#[test]
fn a_host_that_is_too_small_is_refused_with_what_it_takes() {
    let error = Profile::load("three-tier").unwrap().scaled_to(1.0, ALONE).unwrap_err();
    // 0.04 / 1.5 x 53.4 / 0.97 = 1.468.
    let LabError::HostTooSmall { needed_cores, .. } = &error else { panic!("{error}") };
    assert!((needed_cores - 1.468).abs() < 1e-3, "{needed_cores}");
    assert!(error.to_string().contains("needs 1.5 host cores, there are 1.0"), "{error}");
    // What it asks for is enough.
    Profile::load("three-tier").unwrap().scaled_to(*needed_cores, ALONE).unwrap();
    assert!(Profile::load("six").unwrap().scaled_to(1.9, ALONE).is_err());
}

/// A profile of one server with some lines of its own.
fn server(lines: &str) -> String {
    format!(
        "name = \"mine\"\n[[servers]]\nname = \"a\"\ntier = \"high\"\ncores = 4\nactive_watts = 1.0\nidle_watts = 0.1\nworker_slots = 1\n{lines}\n"
    )
}

#[test]
fn a_users_speeds_are_taken_as_they_are_or_refused() {
    let profile = Profile::parse(&server("speed = 0.25"), "mine.toml").unwrap();
    let fits = profile.scaled_to(2.0, ALONE).unwrap();
    assert_eq!((fits.scale, fits.servers[0].speed, fits.servers[0].busy_cores), (None, 0.25, 4));
    assert!(near(fits.host_share, 0.5));
    // Four busy cores of 0.25 are a whole host core; 0.97 of it may be used.
    let error = profile.scaled_to(1.0, ALONE).unwrap_err().to_string();
    assert!(error.contains("add up to 1.00 host cores, 0.97 may be used"), "{error}");
    let slow = Profile::parse(&server("speed = 0.02"), "mine.toml").unwrap().scaled_to(2.0, ALONE).unwrap_err();
    assert!(slow.to_string().contains("speed"), "{slow}");
}

#[test]
fn tiers_too_far_apart_are_refused_on_any_host() {
    let second = "[[servers]]\nname = \"b\"\ntier = \"low\"\ncores = 1\nghz = 0.1\nactive_watts = 1.0\nidle_watts = 0.1\nworker_slots = 0";
    let profile = Profile::parse(&server(&format!("ghz = 5.0\n{second}")), "far.toml").unwrap();
    let error = profile.scaled_to(1000.0, ALONE).unwrap_err().to_string();
    assert!(error.contains("0.020 of a host core"), "{error}");
}

#[test]
fn errors_name_file_key_and_reason() {
    let cases: [(String, &str, &str); 13] = [
        (server("ghz = 1.0\nturbo = true"), "servers[0].turbo", "unknown field `turbo`"),
        (server("ghz = 0.0"), "servers[0].ghz", "above 0"),
        (server("ghz = nan"), "servers[0].ghz", "above 0"),
        (server("ghz = \"fast\""), "servers[0].ghz", "invalid type"),
        (server("speed = 1.5"), "servers[0].speed", "at most 1 host core"),
        (server("speed = 0.5\nghz = 1.0"), "servers[0].speed", "only one"),
        (server(""), "servers[0].ghz", "missing"),
        (server("ghz = 1.0\nmin_cores = 9"), "servers[0].min_cores", "1 to `cores`"),
        (server("ghz = 1.0\n[store]\nmemtable_bytes = 7"), "store.memtable_bytes", "at least 65536"),
        (server("ghz = 1.0\n[store]\nl0_stop_trigger = 3"), "store.l0_stop_trigger", "must not be below"),
        (server("ghz = 1.0\n[store]\ncompression = \"zip\""), "store.compression", "none, lz4, zstd"),
        (server("ghz = 1.0\n[workload]\nkeys_filled = 0"), "workload.keys_filled", "at least 1"),
        (
            server("ghz = 1.0") + &server("ghz = 1.0").replace("name = \"mine\"\n", ""),
            "servers[1].name",
            "used by another",
        ),
    ];
    for (text, key, reason) in cases {
        let error = Profile::parse(&text, "mine.toml").unwrap_err().to_string();
        assert!(
            error.starts_with("profile mine.toml: ") && error.contains(key) && error.contains(reason),
            "{error}\n{text}"
        );
    }
    let mixed = server("ghz = 1.0") + &server("speed = 0.1").replace("name = \"mine\"\n", "").replace("\"a\"", "\"b\"");
    assert!(Profile::parse(&mixed, "mine.toml").unwrap_err().to_string().contains("servers[1].speed"));
    let missing = Profile::parse("name = \"x\"\n", "mine.toml").unwrap_err().to_string();
    assert!(missing.contains("missing field `servers`"), "{missing}");
}

#[test]
fn a_profile_that_is_neither_built_in_nor_a_file_says_so() {
    let error = Profile::load("four-tier").unwrap_err().to_string();
    assert!(error.contains("three-tier") && error.contains("four-tier"), "{error}");
    assert_eq!(Profile::built_in_names().collect::<Vec<_>>(), ["three-tier", "six", "pair"]);
}

#[test]
fn offered_rates_are_operations_or_shares() {
    assert_eq!("2500".parse::<OfferedRate>().unwrap(), OfferedRate::OpsPerS(2500.0));
    assert_eq!("70%".parse::<OfferedRate>().unwrap(), OfferedRate::ShareOfLocal(0.7));
    for wrong in ["", "0", "-1", "0%", "101%", "fast", "inf", "nan", "%"] {
        let error = wrong.parse::<OfferedRate>().unwrap_err().to_string();
        assert!(error.starts_with("--rate"), "{wrong}: {error}");
    }
}

#[test]
fn impossible_options_are_refused_before_anything_starts() {
    let options = |change: fn(&mut LabOptions)| {
        let policies = vec![PolicyName::Local, PolicyName::Eco];
        let mut options =
            LabOptions::new(Workload::FillRandom, Profile::load("three-tier").unwrap(), policies, 90).unwrap();
        change(&mut options);
        options.check().map_err(|error| error.to_string())
    };
    assert_eq!(options(|_| {}), Ok(()));
    type Change = fn(&mut LabOptions);
    let cases: [(Change, &str); 6] = [
        (|options| options.policies.clear(), "--policies"),
        (|options| options.policies.push(PolicyName::Eco), "--policies"),
        (|options| options.seconds = 0, "--seconds"),
        (|options| options.threads = 0, "--threads"),
        (|options| options.colocated = 100, "--colocated"),
        (|options| options.profile.servers[0].tier = "big".to_owned(), ""),
    ];
    for (change, option) in cases {
        let refused = options(change);
        match option {
            "" => assert_eq!(refused, Ok(()), "no co-located load was asked for"),
            option => assert!(refused.unwrap_err().starts_with(option), "{option}"),
        }
    }
}

#[test]
fn a_shorter_run_gets_smaller_stores_and_a_longer_one_no_larger_ones() {
    let store = |seconds| {
        let profile = scaled("three-tier", 2.0, Demand { seconds, ..ALONE });
        (profile.store.memtable_bytes.unwrap(), profile.workload.keys_filled)
    };
    let (memtable_bytes, keys) = store(90);
    assert_eq!(store(45), (memtable_bytes / 2, keys / 2));
    assert_eq!(store(600), (memtable_bytes, keys));
}

/// Half, the same and a sixteenth, and a memtable more.
#[test]
fn with_values_apart_sizes_are_less_by_what_they_are_less_by_default() {
    let store = scaled("three-tier", 2.0, Demand { seconds: 90, ..ALONE }).store;
    let separated = store.separated();
    let near = |bytes: Option<u64>, expected: f64| (bytes.unwrap() as f64 - expected).abs() <= 32768.0;
    assert!(near(separated.memtable_bytes, store.memtable_bytes.unwrap() as f64 / 2.0), "{separated:?}");
    assert!(near(separated.target_file_bytes, store.target_file_bytes.unwrap() as f64 / 16.0), "{separated:?}");
    assert_eq!(separated.level_base_bytes, store.level_base_bytes);
    assert_eq!((store.memtable_count, separated.memtable_count), (None, Some(3)));
    assert_eq!(StoreProfile { memtable_count: Some(5), ..store.clone() }.separated().memtable_count, Some(5));
    // The engine takes no less.
    let small = StoreProfile { level_base_bytes: Some(1), target_file_bytes: Some(1), ..store }.separated();
    assert_eq!((small.level_base_bytes, small.target_file_bytes), (Some(1 << 20), Some(1 << 16)));
}
