//! A client of a server that may be killed at any time.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::common::Server;

/// It waits for each reply.
pub struct Client {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    pub fn of(server: &Server) -> Self {
        let stream = server.connect().0;
        Self { reader: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    /// The reply to a request in words: its bytes without the type, items of an array one behind
    /// the other. `None` where the server is gone.
    pub fn ask(&mut self, words: &str) -> Option<String> {
        let words: Vec<&str> = words.split(' ').collect();
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        self.stream.write_all(request.as_bytes()).ok()?;
        self.reply()
    }

    fn reply(&mut self) -> Option<String> {
        let mut line = String::new();
        if replied(self.reader.read_line(&mut line))? == 0 || !line.ends_with("\r\n") {
            return None;
        }
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "$" if rest == "-1" => Some("nothing".into()),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                replied(self.reader.read_exact(&mut bytes))?;
                bytes.truncate(bytes.len() - 2);
                Some(String::from_utf8(bytes).unwrap())
            }
            "*" => {
                let items: Option<Vec<String>> = (0..rest.parse::<usize>().unwrap()).map(|_| self.reply()).collect();
                Some(items?.join(" "))
            }
            "-" => panic!("refused: {rest}"),
            _ => Some(rest.into()),
        }
    }
}

/// Nothing where the server is gone. One that is there and says nothing is none of its ends.
fn replied<T>(read: io::Result<T>) -> Option<T> {
    if let Err(error) = &read {
        assert!(!matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "no reply: {error}");
    }
    read.ok()
}
