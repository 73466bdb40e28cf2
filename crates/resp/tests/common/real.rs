//! A real Redis server on a socket in a folder of its own, and a client that sees the bytes of its replies.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Runs until it is dropped.
pub struct RealServer {
    process: Child,
    directory: tempfile::TempDir,
}

impl RealServer {
    /// `None` where this version is not installed.
    pub fn start(more: &[&str]) -> Option<Self> {
        let version = Command::new("redis-server").arg("--version").output().ok()?;
        if !String::from_utf8_lossy(&version.stdout).contains("v=7.0.15 ") {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket", "socket"])
            .args(more)
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Some(Self { process, directory })
    }

    /// A client of its own.
    pub fn client(&self) -> RealClient {
        let deadline = Instant::now() + Duration::from_secs(30);
        let stream = loop {
            match UnixStream::connect(self.directory.path().join("socket")) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < deadline, "the server does not listen: {error}"),
            }
        };
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        RealClient(BufReader::new(stream))
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// A client that waits for each reply.
pub struct RealClient(BufReader<UnixStream>);

impl RealClient {
    /// The bytes of the reply to one request.
    pub fn send(&mut self, arguments: &[&[u8]]) -> Vec<u8> {
        let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            request.extend_from_slice(&[format!("${}\r\n", argument.len()).as_bytes(), argument, b"\r\n"].concat());
        }
        self.0.get_mut().write_all(&request).unwrap();
        let mut reply = Vec::new();
        self.read(&mut reply);
        reply
    }

    fn read(&mut self, reply: &mut Vec<u8>) {
        let begin = reply.len();
        self.0.read_until(b'\n', reply).unwrap();
        let line = std::str::from_utf8(&reply[begin..]).unwrap().trim_end();
        let (kind, number) = (line.as_bytes()[0], line[1..].parse::<i64>().unwrap_or(0).max(-1));
        match kind {
            b'*' | b'~' | b'>' => (0..number).for_each(|_| self.read(reply)),
            b'%' => (0..2 * number).for_each(|_| self.read(reply)),
            b'$' | b'=' if number >= 0 => {
                let mut payload = vec![0; number as usize + 2];
                self.0.read_exact(&mut payload).unwrap();
                reply.extend_from_slice(&payload);
            }
            _ => {}
        }
    }
}
