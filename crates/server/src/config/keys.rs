//! Every setting there is.

use std::sync::LazyLock;

use ecotone_control::map::MAX_ZONE_BYTES;
use ecotone_control::settings;
use ecotone_energy::MAX_WATTS;
use ecotone_engine::MAX_VALUE_BYTES;
use ecotone_identity::JoinToken;
use ecotone_policy::policy::PolicyName;
use ecotone_resp::cluster_view::Endpoint;
use ecotone_resp::serve::Listen;
use ecotone_resp::service::{DebugCommand, Limits};
use ecotone_types::ServerId;

use super::key::{Key, Kind, OFF, ON};
use crate::backup::{DEFAULT_LIMIT_BYTES_PER_S, MIN_LIMIT_BYTES_PER_S};
use crate::store_options::{STORE_OPTIONS, store_options};

/// The parts of the file, and what each is about.
pub const SECTIONS: &[(&str, &str)] = &[
    ("server", "The process."),
    ("clients", "Redis clients: where they are listened for, and what they may take."),
    (
        "store",
        "The store. With `profile = \"small-device\"` other defaults hold; every value that is given is taken as it is.",
    ),
    ("space", "How much space the store may take."),
    ("federation", "Other servers that compact for this one, and for which it compacts."),
    ("energy", "The model that joules are computed with."),
    ("power", "Frequencies of cores, where the federation sets nothing else."),
    ("http", "Metrics and health checks by HTTP. See [operations.md](operations.md)."),
    ("backup", "Backups that `BGSAVE` makes. See [operations.md](operations.md#backups)."),
];

const MIB: u64 = 1 << 20;
/// For counts of bytes that memory bounds before.
const TIB: u64 = 1 << 40;

/// The longest path of a Unix socket that Linux takes.
const SOCKET_PATH_BYTES: usize = 107;

/// The longest password.
const PASSWORD_BYTES: usize = 512;

/// The prefix of the options that belong to `[space]`.
const SPACE: &str = "space_";

/// Every setting, in the order of the file.
pub fn keys() -> &'static [Key] {
    static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
        let mut keys = server();
        keys.extend(clients());
        keys.extend(store());
        keys.extend(federation());
        keys.extend(http());
        keys.extend(backup());
        keys
    });
    &KEYS
}

/// The setting of this path.
pub(crate) fn find(path: &str) -> Option<&'static Key> {
    keys().iter().find(|key| key.path == path)
}

/// The setting of a [store option](STORE_OPTIONS).
pub(crate) fn path_of_store_option(name: &str) -> String {
    match name.strip_prefix(SPACE) {
        Some(name) => format!("space.{name}"),
        None => format!("store.{name}"),
    }
}

fn whole(least: u64, most: u64) -> Kind {
    Kind::Whole { least, most, words: &[] }
}

fn whole_or(words: &'static [&'static str], least: u64, most: u64) -> Kind {
    Kind::Whole { least, most, words }
}

fn text(what: &'static str, is_one: fn(&str) -> bool) -> Kind {
    Kind::Text { what, is_one }
}

/// Whether it is one line of visible characters: anything else is a slip.
fn is_plain(text: &str) -> bool {
    !text.contains(char::is_control)
}

fn path() -> Kind {
    text("a path", is_plain)
}

fn is_host_name(text: &str) -> bool {
    const MAX_HOST_NAME_BYTES: usize = 253;
    text.len() <= MAX_HOST_NAME_BYTES && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
}

fn host_and_port() -> Kind {
    text("a host and a port, such as 10.0.0.5:7411", |text| {
        let is_host = |host: &str| !host.is_empty() && is_plain(host);
        text.rsplit_once(':')
            .is_some_and(|(host, port)| is_host(host) && port.parse::<u16>().is_ok_and(|port| port > 0))
    })
}

fn key(path: &str, kind: Kind, default: impl ToString, unit: &'static str, about: &str) -> Key {
    Key { path: path.into(), kind, default: default.to_string(), unit, about: about.into(), is_live: false }
}

fn live(key: Key) -> Key {
    Key { is_live: true, ..key }
}

fn server() -> Vec<Key> {
    let name = text("a name of at most 255 bytes", |text| is_plain(text) && ServerId::new(text).is_ok());
    let levels = Kind::OneOf(vec!["error", "warn", "info", "debug", "trace"]);
    vec![
        key("server.dir", path(), "", "", "Folder of the store, made if it is not there. It must be given."),
        key(
            "server.name",
            name,
            "",
            "",
            "Name of this server, unique in its federation; none: the address that others reach it under.",
        ),
        key(
            "server.cores",
            whole_or(&["auto"], 1, 4096),
            "auto",
            "cores",
            "Cores it may use; `auto`: all of the machine.",
        ),
        key(
            "server.log_level",
            levels,
            "info",
            "",
            "What is logged, on standard error. The variable RUST_LOG, where it is set, counts instead.",
        ),
        key(
            "server.log_format",
            Kind::OneOf(vec!["text", "json"]),
            "text",
            "",
            "How it is logged: lines for people, or one JSON object a line.",
        ),
    ]
}

fn clients() -> Vec<Key> {
    let (limits, listen) = (Limits::default(), Listen::default());
    let socket = text("a path of at most 107 bytes", |text| text.len() <= SOCKET_PATH_BYTES && is_plain(text));
    let password = text("a text of at most 512 bytes", |text| text.len() <= PASSWORD_BYTES);
    let slow_after = limits.slow_after.map_or(OFF.into(), |slow_after| slow_after.as_micros().to_string());
    let idle = limits.idle.map_or(OFF.into(), |idle| idle.as_secs().to_string());
    vec![
        key(
            "clients.listen",
            Kind::Addresses,
            "127.0.0.1:6379",
            "",
            "Where clients are listened for; `off`: nowhere but at `unix_socket`. Beyond loopback only with a `password`. \
             Port 0 takes any free one.",
        ),
        key("clients.unix_socket", socket, "", "", "Path of a Unix socket besides; none: none."),
        key(
            "clients.tls_listen",
            Kind::Addresses,
            OFF,
            "",
            "Where clients are listened for by TLS (1.2 and 1.3), besides; `off`: nowhere. Beyond loopback only with a `password` or a \
             `tls_client_ca`. Port 0 takes any free one.",
        ),
        key(
            "clients.tls_certificate",
            path(),
            "",
            "",
            "Path of the server's certificate for TLS, in PEM, with those between it and its authority behind it. This file and \
             the next two are read again when they change.",
        ),
        key(
            "clients.tls_key",
            path(),
            "",
            "",
            "Path of the certificate's private key, in PEM, not encrypted. Nobody but the server should be able to read it.",
        ),
        key(
            "clients.tls_client_ca",
            path(),
            "",
            "",
            "Path of the certificates of authorities, in PEM: who comes by TLS must show a certificate that one of them has \
             signed; none: clients show none.",
        ),
        key(
            "clients.event_loops",
            whole_or(&["auto"], 1, 1024),
            "auto",
            "threads",
            "Event loops, each a thread, that serve clients: so many, always. `auto`: there is one for each core, and as many of them serve as the load \
             gains by (event_loops_in_use of INFO).",
        ),
        key(
            "clients.blocking_threads",
            whole(1, 1024),
            listen.blocking_threads,
            "threads",
            "Threads of each event loop that may block on the device. A quarter of them, where there are two or more one at least, never waits for \
             writers.",
        ),
        key(
            "clients.io_uring",
            Kind::Flag,
            listen.uses_io_uring,
            "",
            "Whether the kernel reads by io_uring what requests miss in memory, where it offers that; else `blocking_threads` do.",
        ),
        live(key(
            "clients.password",
            password,
            "",
            "",
            "What clients must give by AUTH; none: nothing. Give it in the file or the environment, never where others can read it. It \
             may have any characters, in the file as TOML escapes them.",
        )),
        key(
            "clients.enable_debug_command",
            Kind::OneOf(DebugCommand::ALL.map(DebugCommand::name).to_vec()),
            limits.debug_command.name(),
            "",
            "Who may use DEBUG: nobody, clients of this machine (on loopback or at `unix_socket`), or all. It is for tests.",
        ),
        key(
            "clients.cluster",
            Kind::OneOf(vec!["auto", OFF, ON]),
            "auto",
            "",
            "Whether clients find this server to be one of a Redis cluster: with CLUSTER SLOTS, SHARDS and NODES, and keys that go together only \
             by their hash slot. `off`: it is a single Redis. `auto`: a cluster where the federation has more than one shard.",
        ),
        key(
            "clients.proxy",
            Kind::OneOf(vec![OFF, ON]),
            OFF,
            "",
            "Whether a client may ask this server for keys that another one of the federation has: it is asked, with this server's `password`, \
             instead of redirecting the client. For clients that follow no redirects.",
        ),
        key(
            "clients.announce_ip",
            text("an IP address", |text| text.parse::<std::net::IpAddr>().is_ok()),
            "",
            "",
            "The address that cluster clients are told to reach this server under, behind NAT or in a container; none: the one of `listen`, or \
             where that is every interface the one that the client came to.",
        ),
        key(
            "clients.announce_hostname",
            text("a host name of at most 253 letters, digits, points and hyphens", is_host_name),
            "",
            "",
            "The host name that cluster clients are told besides, for certificates and DNS; none: none. See `preferred_endpoint`.",
        ),
        key(
            "clients.announce_port",
            whole_or(&[OFF], 1, 65_535),
            OFF,
            "",
            "The port that goes with it; `off`: the one of `listen`.",
        ),
        key(
            "clients.announce_tls_port",
            whole_or(&[OFF], 1, 65_535),
            OFF,
            "",
            "The same for clients that come by TLS; `off`: the one of `tls_listen`.",
        ),
        key(
            "clients.preferred_endpoint",
            Kind::OneOf(Endpoint::ALL.map(Endpoint::name).to_vec()),
            Endpoint::default().name(),
            "",
            "Under which name cluster clients are told to reach servers: by address, by host name, or by the one that they know already, with \
             another port.",
        ),
        live(key("clients.max_clients", whole(1, 1_000_000), limits.clients, "clients", "Clients at a time.")),
        live(key(
            "clients.max_request_bytes",
            whole(MIB, TIB),
            limits.request_bytes,
            "bytes",
            "Bytes of one request, with all its arguments. At least `max_argument_bytes`.",
        )),
        live(key(
            "clients.max_argument_bytes",
            whole(MIB, MAX_VALUE_BYTES as u64),
            limits.argument_bytes,
            "bytes",
            "Bytes of one argument, and of a string that APPEND or SETRANGE makes.",
        )),
        live(key(
            "clients.pipeline_requests",
            whole(1, 1_000_000),
            limits.pipeline_requests,
            "requests",
            "Requests of one client that are carried out before its replies are sent.",
        )),
        live(key(
            "clients.max_output_bytes",
            whole(MIB, TIB),
            limits.output_bytes,
            "bytes",
            &format!(
                "Bytes of replies that may wait for one client, and of requests that it may send before it takes them; instead of a reply that \
                 would be longer it is sent an error. At least {} more than `max_argument_bytes`.",
                Limits::AROUND_LONGEST_BYTES
            ),
        )),
        live(key(
            "clients.idle_timeout_s",
            whole_or(&[OFF], 1, 31_536_000),
            idle,
            "seconds",
            "A client that sends nothing for so long is disconnected.",
        )),
        live(key(
            "clients.send_timeout_s",
            whole(1, 86_400),
            limits.send.as_secs(),
            "seconds",
            "A client that takes nothing of its replies for so long is disconnected.",
        )),
        live(key(
            "clients.transaction_bytes",
            whole(MIB, TIB),
            limits.transaction_bytes,
            "bytes",
            "Bytes of commands that one client may queue by MULTI, and of keys that it may watch.",
        )),
        key(
            "clients.trust_system_clock",
            Kind::Flag,
            false,
            "",
            "Keys expire by the latest time that the store has seen, so that a clock which is set back brings none of them to life again (after a \
             loss of power: none that had expired more than about 10 s before). `true`, for one start, takes the system's clock all the same: \
             after one that was ahead by mistake was set right.",
        ),
        live(key(
            "clients.max_memory_bytes",
            whole_or(&["auto"], MIB, TIB),
            "auto",
            "bytes",
            "What all clients together may take of memory: requests that have not come whole, replies that were not sent, commands queued by \
             MULTI, and what commands collect, build and write until it is replied and committed. Beyond it each command still has 128 KiB, and \
             what its own arguments take; so has each client until all have a quarter more, then, and before the password, 4 KiB. `auto`: an \
             eighth of the memory, or of what the cgroup allows.",
        )),
        live(key(
            "clients.slow_after_us",
            whole_or(&[OFF], 0, 3_600_000_000),
            slow_after,
            "microseconds",
            "Commands that take longer are recorded in the slow log; `off`: none.",
        )),
        live(key(
            "clients.slowlog_entries",
            whole(0, 1_000_000),
            limits.slowlog_entries,
            "entries",
            "Length of the slow log.",
        )),
    ]
}

fn store() -> Vec<Key> {
    // Without assignments nothing can be refused.
    let defaults = store_options(&[] as &[&str]).unwrap_or_default();
    let mut keys: Vec<Key> = Vec::new();
    for option in STORE_OPTIONS {
        let path = path_of_store_option(option.name);
        keys.push(match option.name {
            "max_subcompactions" => {
                let about = "Subcompactions of one L0 compaction; `auto`: as the policy sets it.";
                key(&path, whole_or(&["auto"], 1, 256), "auto", option.unit, about)
            }
            _ => key(&path, (option.kind)(), (option.get)(&defaults), option.unit, option.about),
        });
    }
    // In the order of the sections.
    keys.sort_by_key(|key| key.section() == "space");
    keys
}

fn federation() -> Vec<Key> {
    let policies = Kind::OneOf(PolicyName::ALL.map(PolicyName::name).to_vec());
    vec![
        key(
            "federation.listen",
            Kind::Address,
            "127.0.0.1:7411",
            "",
            "Where other servers are listened for; port 0 takes any free one. Beyond loopback only with an identity: `ecotone cluster init`, or \
             `token`.",
        ),
        key(
            "federation.announce",
            host_and_port(),
            "",
            "",
            "Address under which other servers reach this one; none: the one it listens on.",
        ),
        key(
            "federation.join",
            host_and_port(),
            "",
            "",
            "Address of a server of the federation to join, or that knows who leads it; none: the federation is known from this \
             server's folder, or it is alone. Without identities, on loopback: the coordinator; none: this server coordinates.",
        ),
        key(
            "federation.token",
            text("a join token, as `ecotone cluster token` prints it", |text| text.parse::<JoinToken>().is_ok()),
            "",
            "",
            "Token with which it joins the federation of `join` when it has no certificate yet; later it is not looked at.",
        ),
        key(
            "federation.zone",
            text("a label of at most 64 bytes", |text| is_plain(text) && text.len() <= MAX_ZONE_BYTES),
            "",
            "",
            "What fails together with this server: a rack, a site, a power supply. Voters and neighbouring shards are spread over zones; \
             none: nobody says.",
        ),
        key(
            "federation.witness",
            Kind::Flag,
            false,
            "",
            "Whether it only votes, and has neither a store nor clients: two servers with data and a witness survive the loss of any one.",
        ),
        key(
            "federation.policy",
            policies,
            PolicyName::default(),
            "",
            "Where compactions run. All servers of a federation are given the same one.",
        ),
        key(
            "federation.worker_slots",
            whole_or(&["auto"], 0, 1024),
            "auto",
            "jobs",
            "Jobs of other servers at a time; `auto`: a quarter of the cores, at least one.",
        ),
        key(
            "federation.network_bytes_per_s",
            Kind::Real { least: 1.0, most: 1e15 },
            "1.25e9",
            "bytes per second",
            "Bandwidth to other servers, each way.",
        ),
        key(
            "energy.active_watts",
            Kind::Real { least: 0.001, most: MAX_WATTS },
            "10.0",
            "watts",
            "What one busy core takes above idle.",
        ),
        key(
            "energy.idle_watts",
            Kind::Real { least: 0.0, most: MAX_WATTS },
            "5.0",
            "watts",
            "What the idle server takes.",
        ),
        key(
            "power.mode",
            Kind::OneOf(settings::POWER_MODES.to_vec()),
            settings::POWER_MODES[0],
            "",
            "How fast cores run: `all-high` leaves them alone, `all-low` runs all at their lowest frequency, `concerto` runs what clients wait \
             for on fast cores and background work on slow ones.",
        ),
        key(
            "power.cap_watts",
            whole_or(&[OFF], 1, settings::MAX_CAP_WATTS),
            OFF,
            "watts",
            "The most that the server may draw with all cores busy, by the model: slow cores are lowered first.",
        ),
    ]
}

fn http() -> Vec<Key> {
    vec![
        key(
            "http.listen",
            Kind::Addresses,
            "127.0.0.1:7480",
            "",
            "Where `/metrics`, `/healthz` and `/readyz` are answered; `off`: nowhere. Beyond loopback only with `public`. Port 0 takes any \
             free one. Where it is not given and another process has the default, the server goes on without and says so.",
        ),
        key(
            "http.public",
            Kind::Flag,
            false,
            "",
            "Whether `listen` may be reached from other machines. There is no password and no encryption: whoever reaches it can read names, \
             sizes and rates, though no keys and no values.",
        ),
    ]
}

fn backup() -> Vec<Key> {
    vec![
        key(
            "backup.dir",
            path(),
            "",
            "",
            "Folder of backups, on another disk if it can be, to which `BGSAVE` adds one; none: `BGSAVE` writes what is in memory into the store's \
             tables, and makes no copy.",
        ),
        live(key(
            "backup.keep",
            whole_or(&[OFF], 1, 1_000_000),
            OFF,
            "backups",
            "How many backups of this store are kept there: older ones are removed after each. `off`: all.",
        )),
        live(key(
            "backup.limit_bytes_per_s",
            whole_or(&[OFF], MIN_LIMIT_BYTES_PER_S, TIB),
            DEFAULT_LIMIT_BYTES_PER_S,
            "bytes per second",
            "How fast the store is read for a backup at most, so that clients keep the rest of the device; `off`: as fast as it goes.",
        )),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_whole_and_in_a_section_and_its_default_is_a_value() {
        let mut paths: Vec<&str> = keys().iter().map(|key| key.path.as_str()).collect();
        let of_section = |key: &Key| SECTIONS.iter().position(|(name, _)| *name == key.section()).unwrap();
        assert!(keys().is_sorted_by_key(of_section), "keys are in the order of their sections");
        for key in keys() {
            assert_eq!(key.kind.check(&key.default), Ok(()), "{}", key.path);
            assert!(key.about.ends_with('.'), "{}: {:?} is no sentence", key.path, key.about);
            assert_eq!(find(&key.path).map(|found| &found.path), Some(&key.path));
        }
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), keys().len(), "a key is there twice");
    }
}
