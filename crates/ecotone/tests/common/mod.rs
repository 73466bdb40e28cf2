//! The real program, started as a user starts it.

#![allow(dead_code)] // each test file uses its part

pub mod http;
pub mod prometheus;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

/// How long anything may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A server, killed should the test fail.
pub struct Server {
    pub child: Child,
    log: BufReader<ChildStderr>,
    /// Where it listens, as its log says.
    pub listening: String,
    /// And where by TLS.
    pub tls: Option<String>,
    /// To whom it listens there, as its log says.
    pub serves: String,
    /// What it said before that, line by line.
    pub said: String,
    /// Where it answers metrics and health checks.
    pub http: String,
}

pub fn serve(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecotone"));
    command.arg("serve").args(arguments).env_remove("RUST_LOG");
    command
}

/// Runs a server that must not come up: what it said.
pub fn refused(mut command: Command) -> String {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    while log.read_line(&mut said).unwrap() > 0 {
        if said.contains("clients are served") {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it came up: {said}");
        }
    }
    assert!(!child.wait().unwrap().success(), "it ended well: {said}");
    said
}

/// A configuration in `folder` of a server that takes any free ports, and `more`.
pub fn configuration(folder: &Path, more: &str) -> PathBuf {
    let file = folder.join("ecotone.toml");
    let dir = folder.join("data");
    let text = format!(
        "[server]\ndir = {:?}\nlog_format = \"json\"\n[federation]\nlisten = \"127.0.0.1:0\"\n\
         [http]\nlisten = \"127.0.0.1:0\"\n[clients]\n{more}",
        dir.display()
    );
    std::fs::write(&file, text).unwrap();
    file
}

impl Server {
    /// Starts it and waits until it serves.
    pub fn start(mut command: Command) -> Server {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let (mut log_text, mut http) = (String::new(), String::new());
        let (listening, tls, serves) = loop {
            let mut line = String::new();
            if log.read_line(&mut line).unwrap() == 0 {
                panic!("it ended: {}; {log_text}", child.wait().unwrap());
            }
            let record: serde_json::Value =
                serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            if let Some(address) = record["http"].as_str() {
                http = address.to_owned();
            }
            if let Some(listening) = record["listening"].as_str() {
                let serves = record["message"].as_str().unwrap_or_default().to_owned();
                break (listening.to_owned(), record["tls"].as_str().map(str::to_owned), serves);
            }
            log_text.push_str(&line);
        };
        Server { child, log, listening, tls, serves, said: log_text, http }
    }

    pub fn with(file: &Path) -> Server {
        Server::start(serve(&["--config", file.to_str().unwrap()]))
    }

    pub fn connect(&self) -> Connection<TcpStream> {
        let stream = TcpStream::connect(&self.listening).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Connection(stream)
    }

    /// Waits for a line of the log whose message has `says` in it.
    pub fn until_it_says(&mut self, says: &str) -> serde_json::Value {
        let mut log_text = String::new();
        loop {
            let mut line = String::new();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "it ended without {says:?}: {log_text}");
            let record: serde_json::Value = serde_json::from_str(&line).unwrap();
            if record["message"].as_str().is_some_and(|message| message.contains(says)) {
                return record;
            }
            log_text.push_str(&line);
        }
    }

    pub fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Ends it as a supervisor does.
    pub fn terminate(self) {
        self.terminate_and_read();
    }

    /// The same, and what it logged since it began to serve.
    pub fn terminate_and_read(self) -> String {
        self.signal("-TERM");
        self.ends_well()
    }

    /// It is ending: waits until it has. What it logged since it began to serve.
    pub fn ends_well(mut self) -> String {
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {rest}");
        rest
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub struct Connection<S>(pub S);

impl<S: Read + Write> Connection<S> {
    /// Sends `request` and reads as many bytes as `reply` has, which they must be.
    pub fn says(&mut self, request: &str, reply: &str) {
        self.0.write_all(request.as_bytes()).unwrap();
        let mut got = vec![0; reply.len()];
        self.0.read_exact(&mut got).unwrap_or_else(|error| panic!("{request:?}: {error}"));
        assert_eq!(String::from_utf8_lossy(&got), reply, "{request:?}");
    }
}
