//! Names of fields that clients and those who watch servers look for, compared with those of a real
//! server: of version 7.0 or 7.2.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};

use common::redis::{RealRedis, text};
use common::{Fixture, words};

/// Of `INFO`, what Redis tells and this server does not, by why.
const NOT_TOLD: [(&str, &[&str]); 5] = [
    ("of how Redis was built", &["atomicvar_api", "gcc_version"]),
    ("known to the server around, which these tests go without", &["tcp_port", "config_file"]),
    ("no thread is the main one", &["used_cpu_sys_main_thread", "used_cpu_user_main_thread"]),
    (
        "keys expire by compactions, where nobody counts them",
        &["expired_keys", "expired_stale_perc", "expired_time_cap_reached_count", "expire_cycle_cpu_milliseconds"],
    ),
    (
        "of how Redis reads and writes its sockets",
        &[
            "io_threaded_reads_processed",
            "io_threaded_writes_processed",
            "reply_buffer_expands",
            "reply_buffer_shrinks",
        ],
    ),
];

/// The names in each section.
fn names(info: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut sections = BTreeMap::<String, BTreeSet<String>>::new();
    let mut section = String::new();
    for line in info.lines() {
        if let Some(name) = line.strip_prefix("# ") {
            section = name.to_owned();
        } else if let Some((name, _)) = line.split_once(':') {
            sections.entry(section.clone()).or_default().insert(name.to_owned());
        }
    }
    sections
}

#[test]
fn info_has_what_redis_tells_in_the_same_sections() {
    let (real, own) = (RealRedis::start(), Fixture::new());
    let (mut ours, mut theirs) = (own.client(), real.new_client());
    let version = theirs.send(&words("INFO server"));
    let version = String::from_utf8_lossy(&version).into_owned();
    let is_known = ["7.0.", "7.2."].iter().any(|known| version.contains(&format!("redis_version:{known}")));
    assert!(is_known, "the lists here are of another Redis: {version}");
    for request in ["SET a 1", "GET a", "nothing"] {
        ours.ask(request);
        theirs.send(&words(request));
    }
    let ours = ours.send(&words("INFO everything"));
    let theirs = theirs.send(&words("INFO everything"));
    let [ours, theirs] = [ours, theirs].map(|info| names(std::str::from_utf8(text(&info)).unwrap()));
    let not_told: BTreeSet<&str> = NOT_TOLD.into_iter().flat_map(|(_, names)| names.iter().copied()).collect();
    // What depends on the commands that were asked for, and on times.
    let changes = |section: &str| ["Commandstats", "Errorstats", "Latencystats"].contains(&section);
    assert!(theirs.len() > 9, "{theirs:?}");
    for (section, names) in theirs.iter().filter(|(section, _)| !changes(section)) {
        let own = ours.get(section).unwrap_or_else(|| panic!("there is no section {section}"));
        let missing: Vec<&String> = names.difference(own).filter(|name| !not_told.contains(name.as_str())).collect();
        assert!(missing.is_empty(), "{section}: {missing:?}");
    }
    let told: BTreeSet<&str> = ours.values().flatten().map(String::as_str).collect();
    let theirs: BTreeSet<&str> = theirs.values().flatten().map(String::as_str).collect();
    assert_eq!(not_told.intersection(&told).collect::<Vec<_>>(), Vec::<&&str>::new(), "it is told now");
    assert_eq!(not_told.difference(&theirs).collect::<Vec<_>>(), Vec::<&&str>::new(), "Redis does not tell it either");
}

#[test]
fn clients_are_shown_with_the_fields_of_redis() {
    let (real, own) = (RealRedis::start(), Fixture::new());
    let (mut ours, mut theirs) = (own.client(), real.new_client());
    let fields = |line: &[u8]| -> Vec<String> {
        let line = std::str::from_utf8(text(line)).unwrap().lines().next().unwrap().to_owned();
        line.split(' ').map(|field| field.split_once('=').unwrap().0.to_owned()).collect()
    };
    for request in ["CLIENT INFO", "CLIENT LIST"] {
        let (ours, mut theirs) = (fields(&ours.send(&words(request))), fields(&theirs.send(&words(request))));
        if real.is_before_7_2() {
            // CLIENT SETINFO is of 7.2, which shows them there.
            theirs.extend(["lib-name", "lib-ver"].map(str::to_owned));
        }
        assert_eq!(ours, theirs, "{request}");
    }
}

#[test]
fn hello_tells_the_same_names_in_the_same_order() {
    let (real, own) = (RealRedis::start(), Fixture::new());
    let (mut ours, mut theirs) = (own.client(), real.new_client());
    let word = |line: &str| line.starts_with(|first: char| first.is_ascii_lowercase());
    let names = |reply: Vec<u8>| -> Vec<String> {
        let reply = String::from_utf8(reply).unwrap();
        // Names and those values that are words: which version of which server it is does not
        // concern a client.
        reply.lines().filter(|line| word(line)).map(str::to_owned).collect()
    };
    for request in ["HELLO", "HELLO 2", "HELLO 3", "HELLO 3 SETNAME a", "HELLO 2"] {
        let (ours, theirs) = (names(ours.send(&words(request))), names(theirs.send(&words(request))));
        assert_eq!(ours, theirs, "{request}");
        assert!(ours.contains(&"proto".to_owned()), "{ours:?}");
    }
}
