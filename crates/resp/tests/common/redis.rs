//! A Redis server to compare with, and a client that reads whole replies as bytes.

#![allow(dead_code)] // each test file uses its part

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A server with one database in memory, on a socket in a folder of its own.
pub struct RealRedis {
    server: Child,
    _log: BufReader<ChildStdout>,
    directory: tempfile::TempDir,
}

impl RealRedis {
    /// Starts it and waits until it serves.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same, with further arguments.
    pub fn start_with(more: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut server = Command::new("redis-server")
            .args(["--port", "0", "--unixsocket", "redis.sock", "--save", "", "--appendonly", "no", "--databases", "1"])
            .args(more)
            .current_dir(directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("redis-server does not start ({error}): these tests compare with it. Install Debian's redis-server: make setup")
            });
        let mut log = BufReader::new(server.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("eady to accept connections") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "redis-server ended before it was ready");
        }
        Self { server, _log: log, directory }
    }

    /// Whether it is of a version before 7.2, the one that this server says to be: Debian 12 has
    /// 7.0, and what is new since is not to be compared with that.
    pub fn is_before_7_2(&self) -> bool {
        let info = String::from_utf8(self.new_client().send(&[b"INFO", b"server"])).unwrap();
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap().to_owned();
        let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap()) < (7, 2)
    }

    /// A new client that speaks version 2 or 3 of the protocol.
    pub fn client(&self, version: u8) -> RedisClient {
        let mut client = self.new_client();
        client.send(&[b"HELLO", version.to_string().as_bytes()]);
        client
    }
}

impl RealRedis {
    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    /// A client that has said nothing yet.
    pub fn new_client(&self) -> RedisClient {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        RedisClient { stream: BufReader::new(stream) }
    }
}

impl Drop for RealRedis {
    fn drop(&mut self) {
        // It keeps nothing that could be lost.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A client that waits for each reply.
pub struct RedisClient {
    stream: BufReader<UnixStream>,
}

impl RedisClient {
    /// The bytes of the reply to one request.
    pub fn send(&mut self, arguments: &[&[u8]]) -> Vec<u8> {
        let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            request.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            request.extend_from_slice(argument);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request).unwrap();
        let mut reply = Vec::new();
        self.read_answer(&mut reply);
        reply
    }

    /// The bytes of the replies to so many requests, which are sent in one piece.
    pub fn send_bytes(&mut self, bytes: &[u8], requests: usize) -> Vec<Vec<u8>> {
        self.stream.get_mut().write_all(bytes).unwrap();
        let replies = (0..requests).map(|_| {
            let mut reply = Vec::new();
            self.read_answer(&mut reply);
            reply
        });
        replies.collect()
    }

    fn read_answer(&mut self, reply: &mut Vec<u8>) {
        let begin = reply.len();
        self.stream.read_until(b'\n', reply).unwrap();
        let header = Header::of(&reply[begin..]);
        let read = reply.len();
        reply.resize(read + header.bytes, 0);
        self.stream.read_exact(&mut reply[read..]).unwrap();
        for _ in 0..header.answers {
            self.read_answer(reply);
        }
    }
}

/// What follows the first line of an answer.
struct Header {
    bytes: usize,
    answers: usize,
}

impl Header {
    fn of(line: &[u8]) -> Self {
        let count = || std::str::from_utf8(&line[1..line.len() - 2]).unwrap().parse::<i64>().unwrap();
        let counted = || usize::try_from(count()).unwrap_or(0);
        match line.first() {
            Some(b'$' | b'=' | b'!') if count() >= 0 => Self { bytes: counted() + 2, answers: 0 },
            Some(b'*' | b'~' | b'>') => Self { bytes: 0, answers: counted() },
            Some(b'%') => Self { bytes: 0, answers: 2 * counted() },
            Some(_) => Self { bytes: 0, answers: 0 },
            None => panic!("the connection was closed"),
        }
    }
}

/// The length of the answer that `replies` begins with.
fn length(replies: &[u8]) -> usize {
    let line = replies.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let header = Header::of(&replies[..line]);
    (0..header.answers).fold(line + header.bytes, |end, _| end + length(&replies[end..]))
}

/// The answers in an array, a set or a map, each as its bytes; `None` for what is none of them.
pub fn elements(reply: &[u8]) -> Option<Vec<&[u8]>> {
    if !matches!(reply.first(), Some(b'*' | b'~' | b'>' | b'%')) {
        return None;
    }
    let line = reply.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let mut begin = line;
    let answers = (0..Header::of(&reply[..line]).answers).map(|_| {
        let end = begin + length(&reply[begin..]);
        let answer = &reply[begin..end];
        begin = end;
        answer
    });
    Some(answers.collect())
}

/// The texts of the answers in an array, a set or a map.
pub fn texts(reply: &[u8]) -> Vec<Vec<u8>> {
    elements(reply).unwrap().into_iter().map(|answer| text(answer).to_vec()).collect()
}

/// The text of a bulk string, a status or an integer.
pub fn text(answer: &[u8]) -> &[u8] {
    let line = answer.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    match answer[0] {
        b'$' if answer.len() > line => &answer[line..answer.len() - 2],
        _ => &answer[1..line - 2],
    }
}
