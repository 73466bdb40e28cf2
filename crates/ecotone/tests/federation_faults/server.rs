//! A server on a machine of the [`Net`], as it is started, killed, stopped and wiped.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::{PASSWORD, Reply, ask};
use crate::net::Net;

/// How long a server may take to answer that is well.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// How long anything may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Lines of each server's log that a failure shows.
const LINES_SHOWN: usize = 40;

/// `ecotone`, in the namespace of the test.
pub fn ecotone(arguments: &[&str]) -> Result<Value, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    command.args(arguments).arg("--json").env_remove("RUST_LOG").env("ECOTONE_CLIENTS_PASSWORD", PASSWORD);
    let output = command.output().unwrap();
    if output.status.success() {
        return Ok(serde_json::from_slice(&output.stdout).unwrap());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

pub fn cluster(arguments: &[&str]) -> Value {
    ecotone(&[&["cluster"], arguments].concat()).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What the server there says of the federation, if it says anything in time.
pub fn status_at(clients: &str) -> Option<Value> {
    match ask(clients, &["FEDERATION", "STATUS"], ANSWERS_WITHIN).ok()? {
        Reply::Text(text) => serde_json::from_str(&text).ok(),
        _ => None,
    }
}

pub struct Server {
    pub host: u8,
    pub name: String,
    /// Where clients and servers reach it.
    pub clients: String,
    pub peers: String,
    folder: PathBuf,
    log: PathBuf,
    child: Option<Child>,
}

impl Server {
    /// One that does not run yet, with its folder in `root`.
    pub fn new(net: &Net, root: &Path, host: u8, name: &str) -> Server {
        let ip = net.ip(host);
        Server {
            host,
            name: name.to_owned(),
            clients: format!("{ip}:6379"),
            peers: format!("{ip}:7411"),
            folder: root.join(name),
            log: root.join(format!("{name}.log")),
            child: None,
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts it.
    pub fn start(&mut self, net: &Net, more: &[&str]) {
        assert!(self.child.is_none(), "{} runs", self.name);
        let log = OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        let mut command = net.command(self.host, env!("CARGO_BIN_EXE_ecotone"));
        command.args(["serve", "--listen", &self.peers, "--clients", &self.clients, "--http", "off"]);
        command.args(["--name", &self.name, "--zone", &self.name, "--dir"]).arg(&self.folder).args(more);
        command.env("ECOTONE_CLIENTS_PASSWORD", PASSWORD).env("RUST_LOG", "info");
        self.child = Some(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap());
    }

    /// Starts it, and waits until it serves clients.
    pub fn start_and_wait(&mut self, net: &Net, more: &[&str]) {
        self.start(net, more);
        until(&format!("{} to serve", self.name), || {
            if let Some(ended) = self.child.as_mut().and_then(|child| child.try_wait().unwrap()) {
                panic!("{} has ended: {ended}", self.name);
            }
            self.status().is_some()
        });
    }

    /// Lets it join by a token, over and over: while nobody leads it ends without an answer. It
    /// gets one number all the same.
    pub fn join(&mut self, net: &Net, through: &str, token: &str) {
        let began = Instant::now();
        loop {
            self.start(net, &["--join", through, "--token", token]);
            while self.child.as_mut().unwrap().try_wait().unwrap().is_none() {
                if self.status().is_some() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            self.child = None;
            assert!(began.elapsed() < PATIENCE, "{} could not join", self.name);
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    pub fn status(&self) -> Option<Value> {
        status_at(&self.clients)
    }

    pub fn signal(&self, name: &str) {
        let process = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([name, &process]).status().unwrap().success());
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Whether it has ended by itself.
    pub fn assert_runs(&mut self) {
        let ended = self.child.as_mut().unwrap().try_wait().unwrap();
        assert!(ended.is_none(), "{} has ended by itself: {ended:?}", self.name);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let text = std::io::read_to_string(File::open(&self.log).unwrap()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            eprintln!("--- {} on {}", self.name, self.peers);
            lines[lines.len().saturating_sub(LINES_SHOWN)..].iter().for_each(|line| eprintln!("{line}"));
        }
    }
}
