//! Asks one server for all of INFO, again and again: what comes is a snapshot, or why there is none
//! and what to do.

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use ecotone_bench::target::resp::{Bounds, Broken, Client, Limits, Reply, ServerAddress};

use super::model::info::{Info, clean};
use super::model::snapshot::Snapshot;

/// The port of Redis, where none is said.
const DEFAULT_PORT: u16 = 6379;

/// A server that is busy answers late, one that is gone never. INFO of the largest federation is a
/// tenth of the longest reply, and a text.
const LIMITS: Limits = Limits {
    connect_timeout: Duration::from_secs(2),
    silence_timeout: Duration::from_secs(5),
    reply_timeout: Some(Duration::from_secs(5)),
    reply_bounds: Bounds { bytes: 4 << 20, elements: 0 },
};

/// The longest wait between two tries to reach a server that is away.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Answers that wait for the screen; it polls ten times a second.
const ANSWERS_WAITING: usize = 4;

/// Lines of a foreign server's INFO that say what it is.
const TELLING: [&str; 8] = [
    "redis_version",
    "valkey_version",
    "server_name",
    "redis_mode",
    "role",
    "uptime_in_seconds",
    "connected_clients",
    "used_memory_human",
];

/// Why there is no snapshot. Says what was tried, what came, and what to do.
#[derive(Debug)]
pub(super) enum Trouble {
    NoServer { address: String, why: String },
    Lost { address: String, why: String },
    NotRedis { address: String, why: String },
    SpeaksTls { address: String },
    NeedsPassword { address: String, said: String },
    WrongPassword { address: String, said: String },
    Refused { address: String, said: String },
    NotEcotone { address: String, found: Vec<String> },
}

impl Trouble {
    /// In a few words, for one line of the screen.
    pub(super) fn short(&self) -> String {
        match self {
            Trouble::NoServer { why, .. } | Trouble::Lost { why, .. } | Trouble::NotRedis { why, .. } => why.clone(),
            Trouble::NeedsPassword { said, .. }
            | Trouble::WrongPassword { said, .. }
            | Trouble::Refused { said, .. } => said.clone(),
            Trouble::SpeaksTls { .. } => "it speaks TLS now".into(),
            Trouble::NotEcotone { .. } => "another server, not Ecotone, is there now".into(),
        }
    }

    fn of(broken: &Broken, address: &str) -> Self {
        let (address, why) = (address.to_owned(), clean(&broken.to_string()));
        match broken {
            Broken::NoServer(_) => Trouble::NoServer { address, why },
            Broken::Lost(_) => Trouble::Lost { address, why },
            Broken::NotRedis(_) => Trouble::NotRedis { address, why },
            Broken::SpeaksTls => Trouble::SpeaksTls { address },
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::NoServer { address, why } => write!(
                f,
                "no server at {address}: {why}\n  start one with `ecotone serve --dir DIR`, or say where one serves clients: `ecotone top HOST:PORT`\n  \
                 (a server with a workload, or with --clients off, serves none: ask the coordinator of its federation)"
            ),
            Trouble::Lost { address, why } => {
                write!(f, "the server at {address} did not answer: {why}\n  see its log, and try again")
            }
            Trouble::NotRedis { address, why } => write!(
                f,
                "what listens at {address} is no server for clients: {why}\n  give the address after `clients are served` in the log of `ecotone serve` \
                 (the one of --listen is for other servers)"
            ),
            Trouble::SpeaksTls { address } => write!(
                f,
                "the server at {address} speaks TLS, which top does not\n  give an address without it: `clients.listen` of its configuration, on \
                 its own machine or through a tunnel such as ssh"
            ),
            Trouble::NeedsPassword { address, said } => write!(
                f,
                "the server at {address} asks for a password: {said}\n  give it with --password-file FILE or in ECOTONE_CLIENTS_PASSWORD"
            ),
            Trouble::WrongPassword { address, said } => write!(
                f,
                "the server at {address} does not take the password: {said}\n  it is the `clients.password` of its configuration; give it with \
                 --password-file FILE or in ECOTONE_CLIENTS_PASSWORD"
            ),
            Trouble::Refused { address, said } => write!(
                f,
                "the server at {address} refuses INFO, so it is not known what it is: {said}\n  ask an Ecotone server, or give a password that may"
            ),
            Trouble::NotEcotone { address, found } => {
                write!(f, "the server at {address} is not an Ecotone server: its INFO ")?;
                match found.as_slice() {
                    [] => write!(f, "reports nothing that can be read")?,
                    found => write!(f, "says\n    {}", found.join("\n    "))?,
                }
                write!(f, "\n  give the address of one, or start one with `ecotone serve --dir DIR --clients ADDRESS`")
            }
        }
    }
}

impl std::error::Error for Trouble {}

/// `HOST:PORT`, also where only one of the two was said.
pub(crate) fn with_port(address: &str) -> String {
    let is_port = !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_digit());
    if is_port {
        format!("127.0.0.1:{address}")
    } else if address.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']')) {
        address.to_owned()
    } else if address.contains(':') && !address.starts_with('[') {
        format!("[{address}]:{DEFAULT_PORT}")
    } else {
        format!("{address}:{DEFAULT_PORT}")
    }
}

/// Asks one server. Connects when it must.
pub(super) struct Asker {
    address: String,
    password: Option<String>,
    client: Option<Client>,
    since: Instant,
}

impl Asker {
    /// Snapshots are timed from `since` on.
    pub(super) fn new(address: String, password: Option<String>, since: Instant) -> Self {
        Self { address, password, client: None, since }
    }

    /// Asks once. After any trouble the next call connects anew.
    pub(super) fn ask(&mut self) -> Result<Snapshot, Trouble> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => self.connected()?,
        };
        let said = |said: &str| (self.address.clone(), clean(said));
        match client.ask(&[b"INFO", b"everything"]).map_err(|broken| Trouble::of(&broken, &self.address))? {
            Reply::Error(error) if error.starts_with("NOAUTH") => {
                let (address, said) = said(&error);
                Err(Trouble::NeedsPassword { address, said })
            }
            Reply::Error(error) => {
                let (address, said) = said(&error);
                Err(Trouble::Refused { address, said })
            }
            reply => {
                let text = if let Reply::Bulk(Some(text)) = reply { text } else { Vec::new() };
                let info = Info::parse(&String::from_utf8_lossy(&text));
                let at_s = self.since.elapsed().as_secs_f64();
                let snapshot = Snapshot::of(&info, at_s).ok_or_else(|| Trouble::NotEcotone {
                    address: self.address.clone(),
                    found: TELLING.iter().filter_map(|name| Some(format!("{name}: {}", info.text(name)?))).collect(),
                })?;
                self.client = Some(client);
                Ok(snapshot)
            }
        }
    }

    fn connected(&self) -> Result<Client, Trouble> {
        let broken = |broken: Broken| Trouble::of(&broken, &self.address);
        let address = ServerAddress::Tcp(self.address.clone());
        let mut client = Client::open(&address, LIMITS).map_err(broken)?;
        if let Some(password) = &self.password {
            match client.ask(&[b"AUTH", password.as_bytes()]).map_err(broken)? {
                Reply::Error(error) if error.starts_with("WRONGPASS") => {
                    return Err(Trouble::WrongPassword { address: self.address.clone(), said: clean(&error) });
                }
                // It asks for none; the next request shows whether it answers.
                _ => {}
            }
        }
        Ok(client)
    }
}

/// What the asking thread sends.
pub(super) enum Answer {
    Snapshot(Box<Snapshot>),
    Trouble { trouble: Trouble, next_try_s: f64 },
}

/// The wait before a server that did not answer for the `failures`th time is asked again: it
/// doubles.
pub(super) fn retry_after(failures: u32, interval: Duration) -> Duration {
    let first = Duration::from_secs(1).max(interval.min(MAX_RETRY_DELAY));
    first.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(MAX_RETRY_DELAY.max(interval))
}

/// Asks every `interval` on a thread of its own, until nobody listens any more. The first question
/// is asked at once.
///
/// # Errors
/// If the system refuses the thread.
pub(super) fn start(mut asker: Asker, interval: Duration) -> std::io::Result<Receiver<Answer>> {
    let (sender, receiver): (SyncSender<Answer>, _) = sync_channel(ANSWERS_WAITING);
    std::thread::Builder::new().name("ecotone-top-asker".into()).spawn(move || {
        let mut failures = 0;
        let mut next = Instant::now();
        loop {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let answer = match asker.ask() {
                Ok(snapshot) => {
                    failures = 0;
                    // From the planned time on, so that figures come evenly; what is late is not
                    // made up for.
                    next = (next + interval).max(Instant::now());
                    Answer::Snapshot(Box::new(snapshot))
                }
                Err(trouble) => {
                    failures += 1;
                    next = Instant::now() + retry_after(failures, interval);
                    Answer::Trouble { trouble, next_try_s: next.duration_since(asker.since).as_secs_f64() }
                }
            };
            if sender.send(answer).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}
