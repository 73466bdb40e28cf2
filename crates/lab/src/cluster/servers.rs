//! The servers of a part: how they are started, asked, stopped and waited for.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use ecotone_bench::target::resp::{
    Bounds, Broken, Client, Credentials, Limits, Reply, ServerAddress, ServerInfo, ServerOptions,
};
use ecotone_server::record::{Ready, Record};

use super::ClusterOptions;
use super::copies::places::Places;
use super::forwarder::Forwarder;
use crate::error::LabError;
use crate::process::{Interruption, Signal};
use crate::server_process::{Event, ServerProcess};

/// Records that may wait to be read before a server's pipe fills.
const EVENT_QUEUE: usize = 1024;
/// Between two looks at what is waited for.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// What a server is asked by the lab.
const LIMITS: Limits = Limits {
    connect_timeout: Duration::from_secs(5),
    silence_timeout: Duration::from_secs(30),
    reply_timeout: None,
    reply_bounds: Bounds { bytes: 16 << 20, elements: 1 << 16 },
};
/// What a server may take: the lab's are many on one machine.
const MEMORY_LIMIT_BYTES: u64 = 256 << 20;
/// Any port.
const ANYWHERE: &str = "127.0.0.1:0";

/// Where and by what rules servers of the lab live.
pub(super) struct Scene<'a> {
    pub(super) options: &'a ClusterOptions,
    pub(super) folder: &'a Path,
    pub(super) interruption: &'a Interruption,
    pub(super) say: &'a mut dyn FnMut(&str),
    /// Quotas and networks of servers, by their names; none: all as the machine is.
    pub(super) places: Option<&'a Places>,
}

impl Scene<'_> {
    /// Fails once the user wants the lab to end.
    pub(super) fn goes_on(&self) -> Result<(), LabError> {
        if self.interruption.wanted() { Err(LabError::Interrupted) } else { Ok(()) }
    }

    /// Waits for so long, but not for what the user no longer wants.
    pub(super) fn rest(&self, time: Duration) -> Result<(), LabError> {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            self.goes_on()?;
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
        Ok(())
    }

    /// Runs a command of the server program to its end: what it printed.
    fn command(&self, what: &str, arguments: &[&str]) -> Result<String, LabError> {
        let mut command = Command::new(&self.options.server_program);
        let output = command.args(arguments).output();
        let output = output.map_err(LabError::io("cannot start server program", &self.options.server_program))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(LabError::Measurement { what: what.to_owned(), reason: said })
    }

    /// Makes a federation in the folder of its first server.
    pub(super) fn init(&self, folder: &Path, name: &str) -> Result<(), LabError> {
        let dir = folder.join(name).display().to_string();
        self.command("a federation", &["cluster", "init", "--dir", &dir, "--name", name, "--zone", name]).map(drop)
    }

    /// Starts a server at any free ports and waits until it is ready.
    pub(super) fn start(&self, folder: &Path, name: &str, more: &[&str]) -> Result<Server, LabError> {
        self.start_at(folder, name, more, (ANYWHERE, ANYWHERE))
    }

    fn start_at(
        &self,
        folder: &Path,
        name: &str,
        more: &[&str],
        (listen, clients): (&str, &str),
    ) -> Result<Server, LabError> {
        if let Some(places) = self.places {
            places.prepare(name)?;
        }
        let dir = folder.join(name);
        let mut own: Vec<OsString> = Vec::new();
        own.extend(["serve".into(), "--dir".into(), dir.clone().into_os_string()]);
        own.extend(["--name", name, "--http", "off", "--records", "-", "--memory-limit"].map(OsString::from));
        own.push(MEMORY_LIMIT_BYTES.to_string().into());
        own.extend(self.places.map(|places| places.arguments(name)).unwrap_or_default());
        let arguments: Vec<OsString> = own.into_iter().chain(more.iter().map(OsString::from)).collect();
        fs::create_dir_all(&dir).map_err(LabError::io("cannot make directory", &dir))?;
        let (mut listen, mut clients) = (listen.to_owned(), clients.to_owned());
        if let Some(host) = self.places.and_then(|places| places.host(name)) {
            clients = format!("{host}:0");
            // Without an identity a server may be reached by others of its own machine only.
            if dir.join("identity").exists() || more.contains(&"--join") {
                listen = format!("{host}:0");
            }
        }
        self.launch(name.to_owned(), dir, arguments, (listen, clients))
    }

    fn launch(
        &self,
        name: String,
        dir: PathBuf,
        arguments: Vec<OsString>,
        (listen, clients): (String, String),
    ) -> Result<Server, LabError> {
        let log = dir.with_extension("log");
        let (sender, events) = sync_channel(EVENT_QUEUE);
        let at = ["--listen", &listen, "--clients", &clients].map(OsString::from);
        let mut all: Vec<OsString> = arguments.iter().cloned().chain(at).collect();
        let password = self.places.and_then(Places::password).map(str::to_owned);
        let mut variables = vec![("RUST_LOG", "warn".to_owned())];
        variables.extend(password.clone().map(|password| ("ECOTONE_CLIENTS_PASSWORD", password)));
        let mut program = self.options.server_program.clone();
        if let Some(enter) = self.places.and_then(|places| places.enter(&name)) {
            all.insert(0, program.into_os_string());
            all.splice(0..0, enter.arguments);
            program = enter.program;
        }
        let began = Instant::now();
        let process = ServerProcess::start(&program, &all, &variables, log, 0, sender)?;
        if let Some(places) = self.places {
            places.limit(&name, process.id())?;
        }
        let mut server = Server {
            name,
            dir,
            arguments,
            process,
            events,
            ready: Ready { server: String::new(), listen: String::new(), clients: None },
            opening: Duration::ZERO,
            password,
        };
        while server.ready.server.is_empty() {
            match server.next_record(self, began + self.options.patience)? {
                Record::Ready(ready) => server.ready = ready,
                _ => return Err(server.failure("is not ready, but reports")),
            }
        }
        server.opening = began.elapsed();
        Ok(server)
    }

    /// Starts a server again that was stopped, where it was before.
    pub(super) fn start_again(&self, gone: Gone) -> Result<Server, LabError> {
        self.launch(gone.name, gone.dir, gone.arguments, gone.at)
    }

    /// Forms a federation. With `forwards` servers reach each other through the lab, which can then
    /// cut one off.
    pub(super) fn federation(&mut self, name: &str, count: usize, forwards: bool) -> Result<Federation, LabError> {
        (self.say)(&format!("forming a federation of {count}"));
        let folder = self.folder.join(name);
        let mut federation = Federation { servers: Vec::new(), forwarders: Vec::new() };
        let mut first: Option<String> = None;
        for index in 0..count {
            let name = format!("s{}", index + 1);
            let mut more = vec!["--zone".to_owned(), name.clone()];
            let mut listen = ANYWHERE.to_owned();
            if forwards {
                listen = free_address().map_err(LabError::io("cannot listen for", &folder))?;
                let forwarder = Forwarder::start(&listen).map_err(LabError::io("cannot listen for", &folder))?;
                more.extend(["--announce".to_owned(), forwarder.address().to_string()]);
                federation.forwarders.push(forwarder);
            }
            match &first {
                None => self.init(&folder, &name)?,
                Some(join) => {
                    let token = federation.servers[0].json(&["FEDERATION", "TOKEN"])?["token"].clone();
                    let token = token.as_str().unwrap_or_default().to_owned();
                    more.extend(["--join".to_owned(), join.clone(), "--token".to_owned(), token]);
                }
            }
            let more: Vec<&str> = more.iter().map(String::as_str).collect();
            let server = self.start_at(&folder, &name, &more, (&listen, ANYWHERE))?;
            first.get_or_insert_with(|| server.ready.listen.clone());
            federation.servers.push(server);
        }
        federation.settled(self)?;
        Ok(federation)
    }
}

/// An address that nobody has at this moment.
fn free_address() -> std::io::Result<String> {
    Ok(TcpListener::bind(ANYWHERE)?.local_addr()?.to_string())
}

/// A running server of the lab. Killed when it is dropped.
pub(super) struct Server {
    pub(super) name: String,
    dir: PathBuf,
    arguments: Vec<OsString>,
    process: ServerProcess,
    events: Receiver<(usize, Event)>,
    pub(super) ready: Ready,
    /// From the start of the process until it was ready.
    pub(super) opening: Duration,
    /// What it asks clients for, where it is reached from beyond its own loopback.
    password: Option<String>,
}

/// A server that was stopped, and can be started again where it was.
pub(super) struct Gone {
    name: String,
    dir: PathBuf,
    arguments: Vec<OsString>,
    at: (String, String),
}

impl Server {
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        self.process.signal(signal);
    }

    /// The next record that it prints.
    fn next_record(&mut self, scene: &Scene<'_>, until: Instant) -> Result<Record, LabError> {
        loop {
            scene.goes_on()?;
            match self.events.recv_timeout(LOOK_INTERVAL) {
                Ok((_, Event::Record(record))) => return Ok(*record),
                Ok((_, Event::Line(line))) => return Err(self.failure(&format!("prints what is no record: {line}"))),
                Ok((_, Event::Closed)) | Err(RecvTimeoutError::Disconnected) => return Err(self.failure("has ended")),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= until => {
                    return Err(self.failure("says nothing in time"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Kills it, and waits for it.
    pub(super) fn kill(self) -> Gone {
        let at = (self.ready.listen, self.ready.clients.unwrap_or_else(|| ANYWHERE.to_owned()));
        // It belongs already: a token is good once.
        let once = |argument: &OsString| argument == "--join" || argument == "--token";
        let mut arguments = Vec::new();
        let mut all = self.arguments.into_iter();
        while let Some(argument) = all.next() {
            if once(&argument) {
                all.next();
            } else {
                arguments.push(argument);
            }
        }
        Gone { name: self.name, dir: self.dir, arguments, at }
    }

    /// Stops it in order, and waits for it.
    pub(super) fn stop(mut self, scene: &Scene<'_>) -> Result<Gone, LabError> {
        self.process.signal(Signal::Terminate);
        let until = Instant::now() + scene.options.patience;
        while self.process.try_end().is_none() {
            scene.goes_on()?;
            if Instant::now() >= until {
                return Err(self.failure("does not stop"));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        Ok(self.kill())
    }

    pub(super) fn clients(&self) -> &str {
        self.ready.clients.as_deref().unwrap_or_default()
    }

    pub(super) fn connect(&self) -> Result<Client, LabError> {
        let failed = |error: Broken| self.failure(&format!("cannot be asked: {error}"));
        open(self.clients(), self.password.as_deref(), LIMITS).map_err(failed)
    }

    /// How load is sent to it.
    pub(super) fn as_target(&self, pipeline: u32) -> ServerOptions {
        let credentials = self.password.as_deref().map(Credentials::password);
        let address = ServerAddress::Tcp(self.clients().to_owned());
        ServerOptions { pipeline, credentials, ..ServerOptions::new(address) }
    }

    /// Asks for what is answered by a text.
    pub(super) fn text(&self, request: &[&str]) -> Result<String, LabError> {
        let parts: Vec<&[u8]> = request.iter().map(|part| part.as_bytes()).collect();
        let reply = self.connect()?.ask(&parts);
        match reply {
            Ok(Reply::Bulk(Some(text))) => Ok(String::from_utf8_lossy(&text).into_owned()),
            Ok(Reply::Status(text)) => Ok(text),
            Ok(other) => Err(self.failure(&format!("answers {} by {other:?}", request.join(" ")))),
            Err(error) => Err(self.failure(&format!("does not answer {}: {error}", request.join(" ")))),
        }
    }

    pub(super) fn json(&self, request: &[&str]) -> Result<serde_json::Value, LabError> {
        let text = self.text(request)?;
        serde_json::from_str(&text).map_err(|error| self.failure(&format!("answers {}: {error}", request.join(" "))))
    }

    /// What it says of the federation.
    pub(super) fn info(&self) -> Result<ServerInfo, LabError> {
        self.text(&["INFO", "cluster"]).map(|text| ServerInfo::parse(&text))
    }

    pub(super) fn failure(&self, what: &str) -> LabError {
        LabError::ClusterServer { server: self.name.clone(), what: what.to_owned(), log: self.process.log_tail() }
    }
}

/// A connection to where a server serves clients, with its password given.
///
/// # Errors
/// Why there is none.
pub(super) fn open(address: &str, password: Option<&str>, limits: Limits) -> Result<Client, Broken> {
    let mut client = Client::open(&ServerAddress::Tcp(address.to_owned()), limits)?;
    if let Some(password) = password {
        match client.ask(&[b"AUTH", password.as_bytes()])? {
            Reply::Status(said) if said == "OK" => {}
            other => return Err(Broken::Lost(std::io::Error::other(format!("AUTH: {other:?}")))),
        }
    }
    Ok(client)
}

/// Asks for a change of the federation's settings; whether it was decided.
///
/// # Errors
/// Why the server did not answer at all.
pub(super) fn change(client: &mut Client, number: u64) -> Result<bool, Broken> {
    let value = number.to_string();
    match client.ask(&[b"FEDERATION", b"SET", b"lab", value.as_bytes()])? {
        Reply::Bulk(Some(_)) => Ok(true),
        Reply::Error(_) => Ok(false),
        other => Err(Broken::Lost(std::io::Error::new(ErrorKind::InvalidData, format!("{other:?}")))),
    }
}

/// Servers that decide together.
pub(super) struct Federation {
    pub(super) servers: Vec<Server>,
    /// Of each server, where others reach it through the lab.
    pub(super) forwarders: Vec<Forwarder>,
}

impl Federation {
    /// Waits until all servers agree on who leads and know the same; which of them leads.
    pub(super) fn settled(&self, scene: &Scene<'_>) -> Result<usize, LabError> {
        let until = Instant::now() + scene.options.patience;
        loop {
            scene.goes_on()?;
            let infos = self.servers.iter().map(Server::info).collect::<Result<Vec<_>, _>>()?;
            let said = |info: &ServerInfo, field: &str| info.text(field).unwrap_or_default().to_owned();
            let same = ["control_leader", "control_voters", "control_applied_index", "control_servers_active"];
            let agree =
                infos.windows(2).all(|two| same.iter().all(|field| said(&two[0], field) == said(&two[1], field)));
            let leader = said(&infos[0], "control_leader");
            let active = infos[0].number("control_servers_active") == Some(self.servers.len() as f64);
            let votes =
                said(&infos[0], "control_voters").split(',').count() >= self.servers.len().min(super::MIN_SERVERS);
            let leads = self.servers.iter().position(|server| server.name == leader);
            match leads {
                Some(leads) if agree && active && votes => return Ok(leads),
                _ if Instant::now() >= until => {
                    let known = infos.iter().map(|info| {
                        let fields = same.map(|field| format!("{field} {}", said(info, field)));
                        fields.join(", ")
                    });
                    let known: Vec<String> = known.collect();
                    return Err(self.servers[0].failure(&format!("and the others do not agree: {}", known.join("; "))));
                }
                _ => std::thread::sleep(LOOK_INTERVAL),
            }
        }
    }
}
