//! The settings under the names that clients of Redis know, beside those of the configuration.
//!
//! Redis has a file without sections and units of its own; each [`Alias`] says how one of its
//! settings is written in ours. What Redis can be and this server never is is in [`FIXED`], so that
//! clients can ask for it.

use std::collections::BTreeMap;

use ecotone_keyspace::MAINTENANCE_HZ;
use ecotone_resp::serve::{KEEPALIVE_IDLE, Listening};

use crate::config::{Config, Kind, OFF, ON, ValueOrigin, addresses, find, keys};

/// A setting of Redis that is one of ours.
struct Alias {
    name: &'static str,
    path: &'static str,
    units: Units,
}

/// How Redis writes the value.
#[derive(Clone, Copy)]
enum Units {
    /// As we do.
    Same,
    /// Bytes, also with `kb`, `mb`, `gb`.
    Bytes,
    /// A number where `off` is this one.
    OffIs(&'static str),
    /// `yes` or `no` for `on` or `off`.
    YesNo,
}

const ALIASES: &[Alias] = &[
    Alias { name: "maxclients", path: "clients.max_clients", units: Units::Same },
    Alias { name: "timeout", path: "clients.idle_timeout_s", units: Units::OffIs("0") },
    Alias { name: "requirepass", path: "clients.password", units: Units::Same },
    Alias { name: "proto-max-bulk-len", path: "clients.max_argument_bytes", units: Units::Bytes },
    Alias { name: "client-query-buffer-limit", path: "clients.max_request_bytes", units: Units::Bytes },
    Alias { name: "slowlog-log-slower-than", path: "clients.slow_after_us", units: Units::OffIs("-1") },
    Alias { name: "slowlog-max-len", path: "clients.slowlog_entries", units: Units::Same },
    Alias { name: "cluster-enabled", path: "clients.cluster", units: Units::YesNo },
    Alias { name: "cluster-announce-ip", path: "clients.announce_ip", units: Units::Same },
    Alias { name: "cluster-announce-hostname", path: "clients.announce_hostname", units: Units::Same },
    Alias { name: "cluster-announce-port", path: "clients.announce_port", units: Units::OffIs("0") },
    Alias { name: "cluster-announce-tls-port", path: "clients.announce_tls_port", units: Units::OffIs("0") },
    Alias { name: "cluster-preferred-endpoint-type", path: "clients.preferred_endpoint", units: Units::Same },
    Alias { name: "enable-debug-command", path: "clients.enable_debug_command", units: Units::Same },
];

/// What never changes.
const FIXED: &[(&str, &str)] = &[
    ("appendonly", "yes"),
    ("daemonize", "no"),
    ("databases", "1"),
    ("dynamic-hz", "no"),
    ("maxmemory", "0"),
    ("maxmemory-policy", "noeviction"),
    ("notify-keyspace-events", ""),
    ("protected-mode", "yes"),
    ("save", ""),
];

impl Units {
    fn shown(self, text: &str) -> String {
        match self {
            Self::OffIs(number) if text == OFF => number.into(),
            Self::YesNo => if text == ON { "yes" } else { "no" }.into(),
            _ => text.into(),
        }
    }

    /// Ours for Redis'. What is no value is left for the key to refuse.
    fn taken(self, value: &str) -> String {
        match self {
            Self::OffIs(number) if value == number => OFF.into(),
            Self::YesNo if value.eq_ignore_ascii_case("yes") => ON.into(),
            Self::YesNo if value.eq_ignore_ascii_case("no") => OFF.into(),
            Self::Bytes => bytes(value).map_or_else(|| value.into(), |bytes| bytes.to_string()),
            _ => value.into(),
        }
    }

    /// Why `value`, as Redis writes it, is refused by a key of this `kind`: in Redis' words, where
    /// it has any.
    fn refusal(self, kind: &Kind, value: &str) -> String {
        let Kind::Whole { least, most, .. } = kind else { return format!("argument must be {}", kind.range()) };
        let is_number = match self {
            Self::Bytes => bytes(value).is_some(),
            // As Redis reads numbers: in one way only.
            Self::Same | Self::OffIs(_) | Self::YesNo => {
                value.parse::<i64>().is_ok_and(|number| number.to_string() == value)
            }
        };
        match self {
            Self::OffIs(least) if is_number => format!("argument must be between {least} and {most} inclusive"),
            _ if is_number => format!("argument must be between {least} and {most} inclusive"),
            Self::Bytes => "argument must be a memory value".into(),
            _ => "argument couldn't be parsed into an integer".into(),
        }
    }
}

/// As Redis reads sizes: `k` is a thousand, `kb` 1024.
fn bytes(value: &str) -> Option<u64> {
    let value = value.to_ascii_lowercase();
    let digits = value.trim_end_matches(|end: char| end.is_ascii_alphabetic());
    let factor: u64 = match &value[digits.len()..] {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// All settings by name: ours by their paths, and Redis'.
pub(super) fn all(config: &Config, listening: Option<&Listening>) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> =
        keys().iter().map(|key| (key.path.clone(), config.text(&key.path).to_owned())).collect();
    if let Ok(options) = config.store() {
        // The defaults of another profile are others.
        for option in crate::store_options::STORE_OPTIONS {
            let path = crate::config::path_of_store_option(option.name);
            if !config.is_said(&path) && option.name != "max_subcompactions" {
                all.insert(path, (option.get)(&options));
            }
        }
    }
    all.extend(ALIASES.iter().map(|alias| (alias.name.to_owned(), alias.units.shown(config.text(alias.path)))));
    all.extend(FIXED.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let addresses = listening.map(|listening| listening.addresses.as_slice()).unwrap_or_default();
    let socket = listening.and_then(|listening| listening.socket.as_ref());
    let tls_addresses = listening.map(|listening| listening.tls_addresses.as_slice()).unwrap_or_default();
    let port_of =
        |addresses: &[std::net::SocketAddr]| addresses.first().map_or(0, std::net::SocketAddr::port).to_string();
    let binds: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
    let directory = std::path::absolute(config.text("server.dir"));
    let computed = [
        ("appendfsync", redis_durability(config.text("store.durability")).to_owned()),
        ("bind", binds.join(" ")),
        ("dir", directory.map(|directory| directory.display().to_string()).unwrap_or_default()),
        ("hz", MAINTENANCE_HZ.to_string()),
        ("loglevel", redis_level(config.text("server.log_level")).to_owned()),
        ("port", port_of(addresses)),
        ("tcp-keepalive", KEEPALIVE_IDLE.as_secs().to_string()),
        ("tls-port", port_of(tls_addresses)),
        ("unixsocket", socket.map(|path| path.display().to_string()).unwrap_or_default()),
    ];
    all.extend(computed.map(|(name, value)| (name.to_owned(), value)));
    all
}

/// Those of the settings that a client has changed, as the configuration names them.
pub(super) fn paths(settings: &[(String, String)]) -> Vec<String> {
    settings.iter().map(|(given, _)| path(&given.to_lowercase()).to_owned()).collect()
}

/// Whether the value of the setting of this name, ours or Redis', is a password.
pub(super) fn is_secret(name: &str) -> bool {
    path(name) == "clients.password"
}

fn alias(name: &str) -> Option<&'static Alias> {
    ALIASES.iter().find(|alias| alias.name == name)
}

/// Of the setting of this name, ours or Redis', in lower case.
fn path(name: &str) -> &str {
    alias(name).map_or(name, |alias| alias.path)
}

fn redis_durability(durability: &str) -> &str {
    if durability == "none" { "no" } else { durability }
}

fn redis_level(level: &str) -> &'static str {
    match level {
        "trace" | "debug" => "debug",
        "info" => "notice",
        _ => "warning",
    }
}

/// The configuration with `settings`; nothing of them is taken if one is refused. The error is
/// Redis' text.
pub(super) fn changed(
    config: &Config,
    listening: Option<&Listening>,
    settings: &[(String, String)],
) -> Result<Config, String> {
    let (mut changed, present) = (config.clone(), all(config, listening));
    let mut assigned = Vec::new();
    for (given, value) in settings {
        let name = given.to_lowercase();
        let refused = |why: &str| failed(given, why);
        let Some(present) = present.get(&name) else {
            return Err(format!("Unknown option or number of arguments for CONFIG SET - '{given}'"));
        };
        let (path, text) = match alias(&name) {
            Some(alias) => (alias.path, alias.units.taken(value)),
            None => (name.as_str(), value.clone()),
        };
        if assigned.iter().any(|assigned| assigned == path) {
            return Err(refused("duplicate parameter"));
        }
        assigned.push(path.to_owned());
        match find(path) {
            Some(key) if key.is_live => {
                key.kind.check(&text).map_err(|why| match alias(&name) {
                    Some(alias) => refused(&alias.units.refusal(&key.kind, value)),
                    None => refused(&format!("argument {why}")),
                })?;
                changed.set(path, &text, ValueOrigin::Client).map_err(|error| refused(&error.to_string()))?;
            }
            // Some clients set what holds already, to be sure of it. Redis refuses that, too.
            key if is_same(key.map(|key| &key.kind), present, value) => {}
            _ => return Err(refused("can't set immutable config")),
        }
    }
    Ok(changed)
}

/// Whether two values of a setting mean the same, however they are written: of a setting of ours by
/// its `kind`, of Redis' by what it looks like.
fn is_same(kind: Option<&Kind>, present: &str, value: &str) -> bool {
    let both = |same: fn(&str) -> Option<String>| same(present).is_some_and(|present| same(value) == Some(present));
    let flag = |text: &str| match text.to_ascii_lowercase().as_str() {
        "yes" | "true" => Some("yes".to_owned()),
        "no" | "false" => Some("no".to_owned()),
        _ => None,
    };
    let size = |text: &str| bytes(text).map(|bytes| bytes.to_string());
    let number = |text: &str| text.parse::<f64>().ok().map(|number| number.to_string());
    let list = |text: &str| addresses(text).map(|all| format!("{all:?}"));
    let is_word = |text: &str| text.eq_ignore_ascii_case(present);
    let is_place = |text: &str| {
        let absolute = |text: &str| std::path::absolute(text).ok();
        !present.is_empty() && absolute(text).is_some_and(|path| absolute(present) == Some(path))
    };
    present == value
        || match kind {
            Some(Kind::Whole { .. }) => both(size) || is_word(value),
            Some(Kind::Real { .. }) => both(number),
            Some(Kind::Flag) => both(flag),
            Some(Kind::OneOf(_)) => is_word(value),
            Some(Kind::Address | Kind::Addresses) => both(list) || is_word(value),
            Some(Kind::Text { .. }) => is_place(value),
            None => both(flag) || both(size) || is_word(value) || (present.starts_with('/') && is_place(value)),
        }
}

/// Refuses `settings` in Redis' words where they ask for more clients than the `most` that the
/// process has descriptors for.
pub(super) fn refuse_clients(settings: &[(String, String)], most: usize) -> Result<(), String> {
    let why = format!("The operating system is not able to handle the specified number of clients, try with {most}");
    let asks = |(given, _): &&(String, String)| path(&given.to_lowercase()) == "clients.max_clients";
    settings.iter().find(asks).map_or(Ok(()), |(given, _)| Err(failed(given, &why)))
}

fn failed(given: &str, why: &str) -> String {
    format!("CONFIG SET failed (possibly related to argument '{given}') - {why}")
}

/// The error of `settings` that do not fit the others, in Redis' words. It names the one that `why`
/// speaks of.
pub(super) fn unfit(settings: &[(String, String)], why: &str) -> String {
    let spoken_of = settings.iter().find(|(given, _)| why.contains(path(&given.to_lowercase())));
    failed(spoken_of.or(settings.first()).map_or("", |(given, _)| given), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(settings: &[(&str, &str)]) -> Result<Config, String> {
        let owned: Vec<_> = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        changed(&Config::default(), None, &owned)
    }

    #[test]
    fn every_alias_names_a_key_and_no_name_stands_twice() {
        for alias in ALIASES {
            assert!(find(alias.path).is_some(), "{}", alias.name);
            assert!(FIXED.iter().all(|(name, _)| *name != alias.name), "{}", alias.name);
        }
    }

    #[test]
    fn what_redis_says_is_written_as_ours() {
        for (name, value, path, text) in [
            ("maxclients", "5", "clients.max_clients", "5"),
            ("TIMEOUT", "0", "clients.idle_timeout_s", "off"),
            ("timeout", "9", "clients.idle_timeout_s", "9"),
            ("slowlog-log-slower-than", "-1", "clients.slow_after_us", "off"),
            ("slowlog-log-slower-than", "0", "clients.slow_after_us", "0"),
            ("proto-max-bulk-len", "2mb", "clients.max_argument_bytes", "2097152"),
            ("client-query-buffer-limit", "2g", "clients.max_request_bytes", "2000000000"),
            ("requirepass", "", "clients.password", ""),
            ("clients.slowlog_entries", "7", "clients.slowlog_entries", "7"),
        ] {
            let config = change(&[(name, value)]).unwrap();
            assert_eq!(config.text(path), text, "{name} {value}");
            let shown = all(&config, None);
            let back = change(&[(name, &shown[&name.to_lowercase()])]).unwrap();
            assert_eq!(back.text(path), text, "{name} as it is shown");
        }
    }

    #[test]
    fn the_password_is_a_secret_by_both_its_names_and_nothing_else_is() {
        let config = Config::default();
        let secrets: Vec<String> = all(&config, None).into_keys().filter(|name| is_secret(name)).collect();
        assert_eq!(secrets, ["clients.password", "requirepass"]);
    }

    #[test]
    fn what_cannot_change_is_refused_in_redis_words_and_what_holds_is_no_change() {
        assert!(
            change(&[
                ("save", ""),
                ("tcp-keepalive", "300"),
                ("hz", "1"),
                ("dynamic-hz", "no"),
                ("appendfsync", "everysec"),
                ("loglevel", "notice"),
                ("appendonly", "yes"),
                ("databases", "1"),
                ("store.compression", "lz4")
            ])
            .is_ok()
        );
        // However it is written.
        for (name, value) in [
            ("appendonly", "YES"),
            ("maxmemory", "0b"),
            ("maxmemory-policy", "NoEviction"),
            ("appendfsync", "EverySec"),
            ("enable-debug-command", "No"),
            ("store.memtable_bytes", "8mb"),
            ("store.compression", "LZ4"),
            ("clients.listen", "127.0.0.1:6379 "),
            ("clients.io_uring", "yes"),
            ("energy.idle_watts", "5"),
            ("federation.listen", "127.0.0.1:7411"),
        ] {
            assert!(change(&[(name, value)]).is_ok(), "{name} {value}: {:?}", change(&[(name, value)]));
        }
        // All of them as CONFIG GET shows them, one by one and at once.
        let shown = all(&Config::default(), None);
        for (name, value) in &shown {
            assert!(change(&[(name, value)]).is_ok(), "{name} {value}: {:?}", change(&[(name, value)]));
        }
        for (settings, says) in [
            (&[("appendonly", "no")][..], "'appendonly') - can't set immutable config"),
            (&[("store.memtable_bytes", "1048576")], "'store.memtable_bytes') - can't set immutable config"),
            (&[("maxmemory", "100mb")], "can't set immutable config"),
            (&[("port", "1")], "can't set immutable config"),
            (&[("no-such", "1")], "Unknown option or number of arguments for CONFIG SET - 'no-such'"),
            (&[("hz", "100")], "'hz') - can't set immutable config"),
            (&[("dir", "..")], "'dir') - can't set immutable config"),
            (&[("enable-debug-command", "yes")], "'enable-debug-command') - can't set immutable config"),
            (&[("store.memtable_bytes", "8m")], "'store.memtable_bytes') - can't set immutable config"),
            (&[("server.name", "NAME")], "'server.name') - can't set immutable config"),
            (&[("clients.tls_key", "/key.pem")], "'clients.tls_key') - can't set immutable config"),
            (&[("appendfsync", "always")], "'appendfsync') - can't set immutable config"),
            (&[("maxclients", "0")], "'maxclients') - argument must be between 1 and 1000000 inclusive"),
            (&[("maxclients", "0100")], "'maxclients') - argument couldn't be parsed into an integer"),
            (&[("MaxClients", "x")], "'MaxClients') - argument couldn't be parsed into an integer"),
            (&[("timeout", "-1")], "'timeout') - argument must be between 0 and 31536000 inclusive"),
            (&[("slowlog-log-slower-than", "-2")], "'slowlog-log-slower-than') - argument must be between -1 and "),
            (
                &[("proto-max-bulk-len", "1")],
                "'proto-max-bulk-len') - argument must be between 1048576 and 536870912 inclusive",
            ),
            (&[("proto-max-bulk-len", "1x")], "'proto-max-bulk-len') - argument must be a memory value"),
            (
                &[("clients.max_clients", "0")],
                "'clients.max_clients') - argument must be a whole number from 1 to 1000000",
            ),
            (&[("maxclients", "5"), ("clients.max_clients", "6")], "duplicate parameter"),
            (&[("maxclients", "5"), ("timeout", "-1")], "'timeout')"),
        ] {
            let refused = change(settings).unwrap_err();
            assert!(refused.contains(says), "{says:?} is not in {refused:?}");
        }
    }
}
