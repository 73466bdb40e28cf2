//! A client over TCP that reads whole replies.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub struct Wire {
    pub stream: TcpStream,
    reader: BufReader<TcpStream>,
}

/// The bytes of a request.
pub fn request(arguments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl Wire {
    pub fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { reader: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The bytes of the next reply; empty at the end of the connection.
    pub fn reply(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.read_reply(&mut bytes);
        bytes
    }

    fn read_reply(&mut self, bytes: &mut Vec<u8>) {
        let begin = bytes.len();
        if self.reader.read_until(b'\n', bytes).unwrap_or(0) == 0 {
            return;
        }
        let line = &bytes[begin..bytes.len() - 2];
        let number = || std::str::from_utf8(&line[1..]).unwrap().parse::<i64>().unwrap();
        match line[0] {
            b'$' | b'=' if number() >= 0 => {
                let mut rest = vec![0; number() as usize + 2];
                self.reader.read_exact(&mut rest).unwrap();
                bytes.extend(rest);
            }
            b'*' | b'~' | b'>' => (0..number().max(0)).for_each(|_| self.read_reply(bytes)),
            b'%' => (0..number() * 2).for_each(|_| self.read_reply(bytes)),
            _ => {}
        }
    }

    /// The reply to a request in words, as text.
    pub fn ask(&mut self, words: &str) -> String {
        self.send(&request(&super::words(words)));
        String::from_utf8_lossy(&self.reply()).into_owned()
    }
}
